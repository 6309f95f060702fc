//! Replays the stored inputs of the fuzz targets (`fuzz/corpus`), without a nightly toolchain.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::Path;

use towpath_mptcp::fuzzing;

fn replay(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut inputs = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        run(&std::fs::read(entry.unwrap().path()).unwrap());
        inputs += 1;
    }
    assert!(inputs > 0, "{} is empty", folder.display());
}

#[test]
fn stored_packets_are_parsed_without_harm() {
    replay("wire_parse", fuzzing::wire_parse);
}

#[test]
fn stored_packets_do_no_harm_to_a_host() {
    replay("handle_packet", fuzzing::handle_packet);
}

#[test]
fn stored_conversations_do_no_harm() {
    replay("stack_pair", fuzzing::stack_pair);
}
