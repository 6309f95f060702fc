//! The export in which no device can be recognised.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::Path;

use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::Field;
use rand_core::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64;
use serde_json::Value;
use towpath_collect::{AnonymousReport, CollectError, Role, Store, run_to_end};

use crate::devices::{error_of, id_of};
use crate::site::{Collector, TestFolder, edited_result, on_both_databases, result};

on_both_databases!(
    no_device_can_be_recognised_in_an_anonymous_export,
    a_wrong_anonymous_export_is_refused,
);

/// Name of the table.
const FILE: &str = "anonymous-runs.parquet";
/// Number of runs.
const RUNS: u64 = 40;
/// Columns that are not attributes.
const VALUES: [&str; 11] = [
    "outcome",
    "multipath",
    "duration_us",
    "goodput_bps",
    "delay_p50_us",
    "delay_p99_us",
    "stall_us",
    "recovery_us",
    "connect_us",
    "retransmissions",
    "warnings",
];

fn export(
    collector: &Collector,
    target: &Path,
    devices: usize,
) -> Result<AnonymousReport, CollectError> {
    run_to_end(async {
        let store = Store::open(&collector.config()).await?;
        store.export_anonymously(target, "", devices).await
    })
}

fn rows(path: &Path) -> Vec<BTreeMap<String, String>> {
    let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
    let rows = reader.get_row_iter(None).unwrap().map(Result::unwrap);
    let row = |row: parquet::record::Row| {
        let cells = row.get_column_iter().filter(|(_, field)| **field != Field::Null);
        let text = |field: &Field| {
            if let Field::Str(text) = field { text.clone() } else { field.to_string() }
        };
        cells.map(|(name, field)| (name.clone(), text(field))).collect()
    };
    rows.map(row).collect()
}

/// Uploads runs of three devices and of a host; returns their identifiers, and the uploader of each
/// planned duration. Only the duration identifies the uploader in the export.
fn fill(collector: &Collector) -> (Vec<String>, BTreeMap<String, usize>) {
    let site = collector.serve();
    let mut rng = Pcg64::seed_from_u64(41);
    let names = ["secret-ada", "secret-bob", "secret-eve", "secret-lab"];
    let mut clients: Vec<_> = names[..3].iter().map(|name| site.client(&site.join(name))).collect();
    clients.push(site.client(&site.token(names[3], Role::Uploader)));
    let (mut uploader_of, mut ids) = (BTreeMap::new(), Vec::new());
    for seed in 0..RUNS {
        let uploader = rng.next_u32() as usize % clients.len();
        let mut pick =
            |choices: &[&str]| choices[rng.next_u32() as usize % choices.len()].to_owned();
        let (kernel, own) = (pick(&["6.18.0", "6.18.1", "6.12.0"]), format!("secret-{uploader}"));
        let (campaign, path) = (pick(&["stable", &own]), pick(&["wlan0", "wlan1", &own]));
        let duration_us = (seed + 100) * 10_000;
        uploader_of.insert(duration_us.to_string(), uploader);
        let result = edited_result(seed, |records: &mut Vec<Value>| {
            let meta = &mut records[0];
            meta["run"] = "secret-run".into();
            meta["kernel"] = kernel.clone().into();
            meta["conditions"]["campaign"] = campaign.clone().into();
            meta["paths"][0]["name"] = path.clone().into();
            meta["duration_ns"] = (duration_us * 1_000).into();
            meta["started_us"] = (1_790_000_000_000_000_u64 + seed * 30_000_000_000).into();
            let summary = records.last_mut().unwrap();
            summary["verdict"] = "secret verdict about 192.0.2.77".into();
        });
        let host = format!("secret-host-{uploader}");
        ids.push(id_of(&clients[uploader].upload_with(&result, &[("towpath-host", &host)])));
    }
    (ids, uploader_of)
}

fn no_device_can_be_recognised_in_an_anonymous_export(collector: &Collector) {
    let (ids, uploader_of) = fill(collector);
    for devices in 2..=4 {
        let target = TestFolder::create();
        let report = export(collector, target.path(), devices).unwrap();
        assert_eq!(report.runs + report.suppressed, RUNS);
        assert!(report.runs > 0 && report.generalised > 0, "{report:?}");
        let path = target.path().join(FILE);
        let bytes = fs::read(&path).unwrap();
        let contains =
            |word: &str| bytes.windows(word.len()).any(|window| window == word.as_bytes());
        assert!(contains("mptcp"), "the search can find something");
        let words = ["secret", "192.0.2.77", "phone"].into_iter();
        for word in words.chain(ids.iter().map(String::as_str)) {
            assert!(!contains(word), "{word}");
        }
        let mut uploaders: BTreeMap<BTreeMap<String, String>, BTreeSet<usize>> = BTreeMap::new();
        let rows = rows(&path);
        assert_eq!(rows.len() as u64, report.runs);
        for mut row in rows {
            let uploader = uploader_of[&row["duration_us"]];
            row.retain(|column, _| !VALUES.contains(&column.as_str()));
            assert!(row.values().all(|text| !text.contains("secret")), "{row:?}");
            uploaders.entry(row).or_default().insert(uploader);
        }
        for (combination, of) in uploaders {
            assert!(of.len() >= devices, "{combination:?} is of {of:?} only");
        }
        // A repetition replaces the file.
        assert_eq!(export(collector, target.path(), devices).unwrap(), report);
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }
    let target = TestFolder::create();
    let report = export(collector, target.path(), 5).unwrap();
    assert_eq!((report.runs, report.suppressed), (0, RUNS), "there are four uploaders");
    assert!(rows(&target.path().join(FILE)).is_empty());
}

fn a_wrong_anonymous_export_is_refused(collector: &Collector) {
    let site = collector.serve();
    let uploader = site.client(&site.token("lab", Role::Uploader));
    assert_eq!(uploader.upload(&result(1, |_| {})).status, 201);
    let target = TestFolder::create();
    for devices in [0, 1] {
        let error = export(collector, target.path(), devices).unwrap_err();
        assert!(error.to_string().contains("at least 2 devices"), "{error}");
    }
    let error = error_of(&collector.config(), async |store| {
        store.export_anonymously(target.path(), "colour=red", 2).await
    });
    assert!(error.to_string().contains("there is no filter `colour`"), "{error}");
    // The other tables of the folder would have hosts and addresses.
    fs::write(target.path().join("subflows.parquet"), "").unwrap();
    let error = export(collector, target.path(), 2).unwrap_err();
    assert!(error.to_string().contains("subflows.parquet"), "{error}");
    assert_eq!(fs::read_dir(target.path()).unwrap().count(), 1);
}
