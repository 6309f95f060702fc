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
