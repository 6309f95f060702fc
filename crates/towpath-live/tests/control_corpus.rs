//! Replays the stored inputs of the fuzz targets (`fuzz/corpus`) without a nightly toolchain.

use std::path::Path;

use towpath_live::protocol::fuzzing;

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
fn untrusted_control_messages_do_no_harm() {
    replay("control", fuzzing::control);
}

#[test]
fn untrusted_datagrams_do_no_harm() {
    replay("datagram", fuzzing::datagram);
}

#[test]
fn untrusted_server_reports_do_no_harm() {
    replay("host_report", fuzzing::host_report);
}
