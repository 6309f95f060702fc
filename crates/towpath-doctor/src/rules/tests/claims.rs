//! Claims about every cause, and findings that a fact contradicts.

use super::random::any_observation;
use super::*;
use crate::finding::{ClaimState, Finding};
use crate::rules::view::ObservationView;

/// Returns the state and the reason of the claim about a cause.
fn claim_about(report: &Diagnosis, cause: Cause) -> (ClaimState, &str) {
    let claim = report.claims.iter().find(|claim| claim.cause == cause).unwrap();
    (claim.state, &claim.reason)
}

#[test]
fn two_paths_with_data_contradict_most_causes() {
    let report = diagnose(&healthy());
    let causes: Vec<_> = report.claims.iter().map(|claim| claim.cause).collect();
    assert_eq!(causes, Cause::ALL);
    let contradicted =
        report.claims.iter().filter(|claim| claim.state == ClaimState::Contradicted).count();
    assert!(contradicted > 40, "{:?}", report.claims);
    assert!(report.claims.iter().all(|claim| claim.state != ClaimState::Shown));
    let reason = "every-join: subflows from 10.0.2.1";
    assert_eq!(claim_about(&report, Cause::JoinReset).0, ClaimState::Contradicted);
    let load_balancer = claim_about(&report, Cause::LoadBalancerOtherHost);
    assert!(
        load_balancer.1 == "not join-ends: every subflow is established"
            || load_balancer.1 == reason
    );
    // Nothing compared the data.
    let (state, reason) = claim_about(&report, Cause::PayloadRewritten);
    assert_eq!(state, ClaimState::NotJudged);
    assert!(reason.contains("echoes data"), "{reason}");
}

#[test]
fn without_a_connection_the_claims_name_the_missing_option() {
    let observation = Observation { trial: None, ..healthy() };
    let report = diagnose(&observation);
    for cause in [Cause::RemoteSilent, Cause::JoinDropped, Cause::PathLossy] {
        let expected = (ClaimState::NotJudged, "needs --connect HOST:PORT");
        assert_eq!(claim_about(&report, cause), expected);
    }
}

#[test]
fn an_unanswered_join_leaves_a_dropped_join_and_contradicts_a_reset() {
    let report = diagnose_one_path(|_, trial| {
        trial.subflows.push(unanswered_subflow());
        trial.controls.push(plain_check(ConnectOutcome::Connected));
    });
    assert_eq!(claim_about(&report, Cause::JoinDropped).0, ClaimState::Shown);
    let (state, reason) = claim_about(&report, Cause::JoinReset);
    assert_eq!(state, ClaimState::Contradicted);
    assert_eq!(reason, "not join-ends: the SYN from 10.0.2.1 is unanswered");
}

#[test]
fn a_finding_that_a_fact_contradicts_becomes_possible() {
    let observation = healthy();
    let view = ObservationView::new(&observation);
    let mut findings = [
        Finding::new(Cause::RemoteRefused, "no program listens").at_location(TARGET),
        Finding::new(Cause::NoSourceRoute, "the other host's routes").at_location("other host, b"),
    ];
    crate::rules::claims::weigh(&view, &mut findings);
    let [here, there] = &findings;
    assert_eq!(here.confidence, Confidence::Possible);
    assert_eq!(here.evidence, ["against this: tcp-connects: a connection over plain TCP"]);
    assert_eq!((there.confidence, there.evidence.len()), (Confidence::Certain, 0));
}

proptest! {
    #[test]
    fn claims_agree_with_the_findings(observation in any_observation()) {
        let report = diagnose(&observation);
        for claim in &report.claims {
            let is_found = report.findings.iter().any(|finding| {
                finding.cause == claim.cause && finding.confidence > Confidence::Possible
            });
            prop_assert_eq!(claim.state == ClaimState::Shown, is_found, "{:?}", claim);
            prop_assert!(!claim.reason.is_empty());
        }
    }
}
