use std::collections::BTreeSet;

use super::*;
use crate::doctor::Cause;

fn draw_many(seed: u64) -> impl Iterator<Item = RandomCase> {
    (0..400).map(move |number| random_case(&format!("random-{seed}-{number}")).unwrap())
}

#[test]
fn a_name_identifies_a_drawn_case_and_other_text_is_refused() {
    let one = || random_case("random-7-12").unwrap();
    assert_eq!(format!("{:?}", one()), format!("{:?}", one()));
    for name in
        ["random-7", "random-07-1", "random-7-01", "random--1", "random-7-1x", "syn-dropped"]
    {
        assert!(random_case(name).is_none(), "{name}");
    }
}

#[test]
fn a_third_is_healthy_and_all_kinds_of_fault_are_drawn() {
    let drawn: Vec<_> = draw_many(1).collect();
    let healthy = drawn.iter().filter(|one| one.truth.causes.is_empty()).count();
    assert!((100..=170).contains(&healthy), "{healthy}");
    let causes: BTreeSet<_> = drawn.iter().flat_map(|one| one.truth.causes.clone()).collect();
    assert!(causes.len() >= 28, "{causes:?}");
    let known: BTreeSet<_> = Cause::ALL.iter().map(|cause| cause.id()).collect();
    assert!(causes.is_subset(&known), "{causes:?}");
    let decidable = drawn.iter().filter(|one| one.truth.decidable).count();
    assert!(decidable > 280, "{decidable}");
}

#[test]
fn every_drawn_endpoint_can_be_read() {
    for one in draw_many(2) {
        for change in one.case.changes {
            if let crate::failures::case::NetworkMutation::Endpoints(_, endpoints) = change {
                for text in *endpoints {
                    let words: Vec<_> = text.split(' ').collect();
                    assert!(words[0].parse::<std::net::IpAddr>().is_ok(), "{text}");
                }
            }
        }
    }
}
