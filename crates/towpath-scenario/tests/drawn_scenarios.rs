//! Parses the random scenarios of `cargo xtask validate-random` and its fixed cases. The generator
//! depends on none of our crates, so the check is in this crate.

use std::fs;
use std::path::Path;

use towpath_scenario::{Scenario, no_files};

#[path = "../../../xtask/src/validate_random/draw/mod.rs"]
mod draw;
#[path = "../../../xtask/src/validate_random/random.rs"]
#[expect(dead_code, reason = "the store's names are also made with it")]
mod random;

/// Root of the repository.
fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[test]
fn every_drawn_scenario_is_valid() {
    for seed in [1, 77, u64::MAX] {
        for number in 0..500 {
            let (name, text) = (draw::name(seed, number), draw::scenario(seed, number));
            let parsed = Scenario::parse(&name, &text, &no_files);
            assert!(parsed.is_ok(), "{text}\n{}", parsed.unwrap_err());
        }
    }
}

#[test]
fn every_simulator_comparison_case_is_a_scenario() {
    let folder = repository().join("xtask/src/validate_random/cases");
    let files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= 20, "{files:?}");
    for file in files {
        let bytes = fs::read(&file).unwrap();
        let parsed = Scenario::parse_bytes(&file.to_string_lossy(), &bytes, &no_files);
        let scenario = parsed.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(file.file_stem().unwrap().to_str(), Some(&*scenario.name));
    }
}

#[test]
fn the_page_shows_the_distributions_that_are_drawn_from() {
    let page = fs::read_to_string(repository().join("docs/lab/validation.md")).unwrap();
    assert!(
        page.contains(&draw::describe()),
        "docs/lab/validation.md must have:\n{}",
        draw::describe()
    );
}
