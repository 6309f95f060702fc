//! Replays the stored inputs of the fuzz target `scenario` without a nightly toolchain.

use std::path::Path;

use towpath_scenario::fuzzing;

#[expect(clippy::unwrap_used, reason = "a test that cannot read its inputs fails")]
fn replay(target: &str, fuzz_target: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut inputs = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        fuzz_target(&std::fs::read(entry.unwrap().path()).unwrap());
        inputs += 1;
    }
    assert!(inputs > 0, "{} is empty", folder.display());
}

#[test]
fn untrusted_scenarios_do_no_harm() {
    replay("scenario", fuzzing::scenario);
}
