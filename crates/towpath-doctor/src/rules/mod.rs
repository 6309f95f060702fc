//! Rules from evidence to findings: pure functions.
//!
//! The layers are evaluated in order. If one shows why Multipath TCP cannot work, evaluation ends,
//! because the layers above are not observable. For each unused path, exactly one cause is
//! reported. A doubtful configuration is reported only if no test showed that it does no harm.

mod addresses;
mod announcements;
mod claims;
mod configuration;
mod failed;
mod first_path;
mod handshake;
mod kernel;
mod limits;
mod parallel_links;
mod path;
mod programs;
mod quality;
mod routes;
mod sender_stats;
mod unannounced_links;
mod verdict;
mod view;

#[cfg(test)]
mod tests;

use super::finding::{Confidence, Diagnosis, Finding, SkippedCheck};
use super::local_findings::LocalFindings;
use super::observation::Observation;
use super::tried_commands::separate_tried_commands;

pub use claims::causes_page;
use view::ObservationView;
pub(super) use view::on_link;

/// Returns the diagnosis of an observation, causes before consequences.
pub fn diagnose(observation: &Observation) -> Diagnosis {
    let local_findings = LocalFindings::of(observation);
    let mut reported = findings(observation);
    for finding in &mut reported {
        finding.unverified = local_findings.find_same(finding).is_none();
    }
    let view = ObservationView::new(observation);
    let paths = verdict::paths(&view);
    let (verdict, reason) = verdict::verdict(&view, &reported, &paths);
    let claims = claims::claims(&view, &reported);
    Diagnosis {
        verdict,
        reason,
        paths,
        unused: addresses::unused_interfaces(&view),
        findings: reported,
        claims,
        checked: completed_checks(observation),
        not_checked: skipped_checks(observation),
    }
}

/// Returns the findings of an observation, each cause and location once.
pub(super) fn findings(observation: &Observation) -> Vec<Finding> {
    let view = ObservationView::new(observation);
    let mut findings = kernel::findings(&view);
    if findings.is_empty() {
        let handshake = handshake::findings(&view);
        let is_multipath = handshake.is_empty();
        findings.extend(handshake);
        if is_multipath {
            findings.extend(path::findings(&view));
            let explained = !findings.is_empty();
            findings.extend(configuration::findings(&view, explained));
            findings.extend(quality::findings(&view));
        }
        findings.extend(addresses::find_duplicate_addresses(&view));
        findings.extend(programs::findings(&view));
        findings.extend(sender_stats::findings(&view));
    }
    claims::weigh(&view, &mut findings);
    // Findings that are merely possible come last.
    findings.sort_by_key(|finding| {
        (std::cmp::Reverse(finding.confidence > Confidence::Possible), finding.cause)
    });
    let mut reported: Vec<Finding> = Vec::new();
    for finding in findings {
        if !reported.iter().any(|previous| previous.is_same_problem(&finding)) {
            reported.push(finding);
        }
    }
    for finding in &mut reported {
        separate_tried_commands(finding, observation);
    }
    reported
}

fn completed_checks(observation: &Observation) -> Vec<String> {
    let mut checks = vec!["kernel".to_owned(), "configuration".to_owned()];
    if observation.asked_for_programs {
        checks.push("sockets of applications".to_owned());
    }
    if let Some(trial) = &observation.trial {
        checks.push(format!("a connection to {}", trial.target));
        if let Some(exchange) = trial.exchange.filter(|exchange| exchange.sent > 0) {
            let sent = super::text::bytes(exchange.sent);
            checks.push(format!("{sent} sent and echoed"));
        }
        if trial.events.is_some() {
            checks.push("path manager events".to_owned());
        }
        if !trial.controls.is_empty() {
            checks.push(
                super::text::count(trial.controls.len() as u64, "path")
                    + " tested alone with plain TCP",
            );
        }
        if !trial.probes.is_empty() {
            checks.push("routers on the path, hop by hop".to_owned());
        }
    }
    if let Some(peer) = &observation.peer {
        checks.push(format!("the other host, as {} reports it", peer.address));
    }
    checks
}

fn skipped_checks(observation: &Observation) -> Vec<SkippedCheck> {
    let mut skipped = Vec::new();
    let mut add = |check: &str, requirement: &str| {
        skipped.push(SkippedCheck { what: check.to_owned(), why: requirement.to_owned() });
    };
    let programs = observation.programs.as_deref().unwrap_or_default();
    let unattributed_count = programs.iter().filter(|program| program.id.is_none()).count() as u64;
    if unattributed_count > 0 && !observation.rights.events {
        let sockets = super::text::count(unattributed_count, "socket");
        add(&format!("programs that own {sockets}"), "they belong to other users: needs root");
    }
    let Some(trial) = &observation.trial else {
        add("use of several paths", "needs --connect HOST:PORT");
        if !(observation.rights.raw && observation.rights.events) {
            let check = "causes of closed subflows, and the hop that drops or strips packets";
            add(check, "needs root and --connect");
        }
        if let Some(reason) = &observation.peer_error {
            add("observations of the other host", reason);
        }
        return skipped;
    };
    if let Some(check) = unannounced_links::untested_interface(&ObservationView::new(observation)) {
        add(&check, "needs `towpath server` there (--peer HOST:PORT)");
    }
    if trial.events.is_none() && trial.multipath {
        add("cause of a closed subflow (path manager events)", "needs root");
    }
    if !trial.echoes && trial.multipath {
        let check = "integrity of the data, and quality and loss of each path";
        add(check, &format!("{} does not echo data", trial.server.name()));
    }
    if !observation.rights.raw {
        add("the hop that drops or strips packets, and whether another host answers", "needs root");
    }
    if observation.peer.is_none() {
        let reason = observation.peer_error.clone();
        add(
            "observations of the other host, and whether data uses the intended paths",
            &reason.map_or_else(
                || "needs `towpath server` there (--peer HOST:PORT)".to_owned(),
                |reason| format!("needs `towpath server` there (--peer HOST:PORT): {reason}"),
            ),
        );
    }
    if !observation.asked_for_programs {
        add("programs that use Multipath TCP", "needs --all or --pid N");
    }
    skipped
}
