//! Records in the collector's folder: files that a killed collector left behind.

use std::fs::File;
use std::time::{Duration, UNIX_EPOCH};

use towpath_collect::Role;

use crate::site::{Collector, Database, RESULT};

#[test]
fn unfinished_files_of_a_killed_collector_are_removed_after_an_hour() {
    let collector = Collector::create(Database::Sqlite).unwrap();
    let site = collector.serve();
    let uploader = site.client(&site.token("lab", Role::Uploader));
    let id = uploader.upload(RESULT).json()["id"].as_str().unwrap().to_owned();
    drop(site);
    let folder = collector.path().join("records/runs").join(&id[..2]);
    let path = |name: &str| folder.join(name);
    let stored = format!("{id}.jsonl.zst");
    let (old, new) = (format!("{stored}#1"), format!("{stored}#2"));
    for name in [&old, &new, "notes#1"] {
        File::create(path(name)).unwrap();
    }
    for name in [&old, &stored, "notes#1"] {
        let file = File::options().append(true).open(path(name)).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(1_790_000_000)).unwrap();
    }
    drop(collector.serve());
    assert!(!path(&old).exists());
    for name in [&new, &stored, "notes#1"] {
        assert!(path(name).exists(), "{name}");
    }
}
