//! Replays the stored inputs of the fuzz targets (`fuzz/corpus`), for who has no nightly toolchain.

use std::path::Path;

use towpath_measure::live::fuzzing;

#[test]
fn stored_words_of_strangers_do_no_harm_to_a_server() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/control");
    let mut inputs = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        fuzzing::control(&std::fs::read(entry.unwrap().path()).unwrap());
        inputs += 1;
    }
    assert!(inputs > 0, "{} is empty", folder.display());
}
