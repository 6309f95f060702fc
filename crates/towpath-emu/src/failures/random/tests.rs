use std::collections::BTreeSet;

use super::*;

fn draw_many(seed: u64) -> impl Iterator<Item = RandomCase> {
    (0..400).map(move |number| random_case(&format!("random-{seed}-{number}")).unwrap())
}

#[test]
fn a_name_determines_a_random_case_and_other_text_is_refused() {
    let draw = || random_case("random-7-12").unwrap();
    assert_eq!(format!("{:?}", draw()), format!("{:?}", draw()));
    for name in
        ["random-7", "random-07-1", "random-7-01", "random--1", "random-7-1x", "syn-dropped"]
    {
        assert!(random_case(name).is_none(), "{name}");
    }
}

#[test]
fn a_third_of_the_random_cases_is_healthy_and_all_kinds_of_fault_occur() {
    let drawn: Vec<_> = draw_many(1).collect();
    let healthy = drawn.iter().filter(|case| case.truth.causes.is_empty()).count();
    assert!((100..=170).contains(&healthy), "{healthy}");
    let causes: BTreeSet<_> = drawn.iter().flat_map(|case| case.truth.causes.clone()).collect();
    assert!(causes.len() >= 28, "{causes:?}");
    let decidable = drawn.iter().filter(|case| case.truth.decidable).count();
    assert!(decidable > 280, "{decidable}");
}

#[test]
fn every_random_endpoint_has_a_valid_address() {
    for random in draw_many(2) {
        for change in random.case.changes {
            if let crate::failures::case::NetworkMutation::Endpoints(_, endpoints) = change {
                for text in *endpoints {
                    let words: Vec<_> = text.split(' ').collect();
                    assert!(words[0].parse::<std::net::IpAddr>().is_ok(), "{text}");
                }
            }
        }
    }
}

#[test]
fn unusual_properties_occur_in_healthy_and_faulty_cases() {
    let titles: Vec<_> = draw_many(3).map(|random| random.case.title).collect();
    for feature in [
        "point-to-point",
        "with a gateway",
        "bridge on",
        "parallel links",
        "double NAT",
        "server behind NAT",
        "only IPv4",
        "only IPv6",
        "1 interfaces",
        "idle interface",
        "two addresses",
        "exact limits",
        "strict filter",
    ] {
        let with_feature = || titles.iter().filter(|title| title.contains(feature));
        assert!(with_feature().any(|title| title.contains(": healthy")), "{feature}");
        assert!(with_feature().any(|title| !title.contains(": healthy")), "{feature}");
    }
    for fault in ["a proxy on path 1", "a proxy on path 2", "leads to another server", "balanced"] {
        assert!(titles.iter().any(|title| title.contains(fault)), "{fault}");
    }
}

#[test]
fn every_injected_cause_is_accepted_and_every_case_has_a_path() {
    for RandomCase { truth, .. } in draw_many(4) {
        assert!(truth.paths >= 1);
        assert!(truth.causes.iter().all(|cause| truth.accepted.contains(cause)), "{truth:?}");
        assert!(truth.decidable || !truth.all_decidable || truth.causes.is_empty(), "{truth:?}");
    }
}
