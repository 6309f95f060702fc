use std::collections::BTreeMap;

use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::Field;
use rand_core::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64;
use towpath_result::Record;

use super::*;
use crate::entry::RunGroup;

/// A result of the first format version.
const RESULT: &str = include_str!("../../../towpath-result/tests/fixtures/result-v1.jsonl");

fn meta() -> Meta {
    let line = RESULT.lines().next().unwrap();
    let Record::Meta(meta) = serde_json::from_str(line).unwrap() else { panic!("{line}") };
    *meta
}

/// A run of a random catalogue, with what an export may say of it.
struct SourceRun {
    uploader: String,
    entry: RunEntry,
    meta: Meta,
}

impl SourceRun {
    /// Draws a run. Its goodput is its number, by which the test finds it again.
    fn draw(number: u32, rng: &mut Pcg64) -> Self {
        let uploader = format!("secret-device-{}", rng.next_u32() % 5);
        // Mostly the first choice, so that some combinations are common.
        let mut pick = |choices: &[&str]| {
            let draw = rng.next_u32() as usize;
            let index = if draw.is_multiple_of(8) { draw / 8 % choices.len() } else { 0 };
            choices[index].to_owned()
        };
        let own = format!("secret-text-of-{uploader}");
        let mut meta = meta();
        meta.conditions.insert("campaign".to_owned(), pick(&["stable", "mobile", &own]));
        meta.conditions.insert("port".to_owned(), pick(&["443", "6121"]));
        meta.paths.truncate(1);
        meta.paths[0].name = pick(&["wlan0", "wlp3s0", "wwan0", "eth0", &own]);
        let group = RunGroup {
            scenario: pick(&["bulk", "ping", "bulk", &own]),
            world: "live".to_owned(),
            transport: pick(&["tcp", "mptcp"]),
            host: format!("secret-host-of-{uploader}"),
            server: pick(&["eu-1", "eu-1", "192.0.2.77"]),
            family: pick(&["ipv4", "ipv6"]),
            version: pick(&["0.1.0", "0.1.0", "0.2.0"]),
            outcome: pick(&["ok", "failed"]),
        };
        let day = if pick(&["a", "b"]) == "a" { 1 } else { 40 };
        let entry = RunEntry {
            id: format!("secret-id-{number}"),
            content_hash: format!("secret-hash-{number}"),
            group,
            received_us: 0,
            started_us: 1_790_000_000_000_000 + day * crate::time::DAY_US,
            name: "secret-name".to_owned(),
            stack: "kernel".to_owned(),
            congestion_control: pick(&["cubic", "bbr"]),
            patterns: pick(&["bulk", "ping"]),
            kernel: pick(&["6.18.0", "6.18.7-lab", "6.12.1", "", &own]),
            seed: "secret-seed".to_owned(),
            repetition: 1,
            scenario_hash: "secret-hash".to_owned(),
            verdict: "secret verdict about 192.0.2.77".to_owned(),
            multipath: "used".to_owned(),
            duration_us: 1_234_567,
            goodput_bps: Some(f64::from(number)),
            delay_p50_us: None,
            delay_p99_us: Some(12_345.678),
            stall_us: None,
            recovery_us: None,
            connect_us: None,
            retransmissions: 3,
            warnings: 0,
            records: 77_777,
            stored_bytes: 77_777,
            expanded_bytes: 77_777,
        };
        Self { uploader, entry, meta }
    }

    /// Returns the texts that a column may contain for this run.
    fn permitted(&self, column: &str) -> Vec<String> {
        let (entry, group) = (&self.entry, &self.entry.group);
        let day = day_text(day(entry.started_us));
        let kernel = &entry.kernel;
        let short_kernel = kernel.get(..4).filter(|_| kernel.starts_with("6.")).unwrap_or_default();
        let path = &self.meta.paths[0].name;
        let kind = match path.as_bytes() {
            [b'w', b'l', ..] => "wifi",
            [b'w', b'w', ..] => "cellular",
            [b'e', ..] => "ethernet",
            _ => "other",
        };
        let values = match column {
            "started" => vec![&day[..], &day[..7]],
            "campaign" => vec![&self.meta.conditions["campaign"][..]],
            "scenario" => vec![&group.scenario[..]],
            "world" => vec![&group.world[..]],
            "transport" => vec![&group.transport[..]],
            "stack" => vec![&entry.stack[..]],
            "congestion_control" => vec![&entry.congestion_control[..]],
            "patterns" => vec![&entry.patterns[..]],
            "server" => vec![&group.server[..]],
            "family" => vec![&group.family[..]],
            "port" => vec![&self.meta.conditions["port"][..]],
            "version" => vec![&group.version[..]],
            "kernel" => vec![&kernel[..], short_kernel],
            "paths" => vec![&path[..], kind],
            _ => panic!("`{column}` is not an attribute"),
        };
        values.into_iter().map(str::to_owned).collect()
    }
}

/// Returns the rows of a file: the texts of all columns, and the numbers.
fn read(bytes: Vec<u8>) -> Vec<(BTreeMap<String, String>, BTreeMap<String, f64>)> {
    let reader = SerializedFileReader::new(axum::body::Bytes::from(bytes)).unwrap();
    let rows = reader.get_row_iter(None).unwrap();
    let row = |row: Result<parquet::record::Row, _>| {
        let (mut texts, mut numbers) = (BTreeMap::new(), BTreeMap::new());
        for (name, field) in row.unwrap().get_column_iter() {
            if let Field::Str(text) = field {
                texts.insert(name.clone(), text.clone());
            } else if *field != Field::Null {
                numbers.insert(name.clone(), field.to_string().parse().unwrap());
            }
        }
        (texts, numbers)
    };
    rows.map(row).collect()
}

#[test]
fn each_combination_of_attributes_belongs_to_enough_uploaders() {
    let (mut generalised, mut suppressed, mut written) = (0, 0, 0);
    for seed in 0..100 {
        let mut rng = Pcg64::seed_from_u64(seed);
        let devices = 2 + rng.next_u32() as usize % 3;
        let count = 1 + rng.next_u32() % 120;
        let source: Vec<_> = (1..=count).map(|number| SourceRun::draw(number, &mut rng)).collect();
        let mut table = AnonymousTable::default();
        for run in &source {
            table.add(&run.entry, &run.meta, &run.uploader);
        }
        let report = table.anonymise(devices);
        let bytes = table.write(Vec::new()).unwrap();
        for word in [&b"secret"[..], b"77777"] {
            assert!(!bytes.windows(word.len()).any(|window| window == word), "seed {seed}");
        }
        let rows = read(bytes);
        assert_eq!(
            (report.runs, report.runs + report.suppressed),
            (rows.len() as u64, count.into())
        );
        let mut uploaders: BTreeMap<BTreeMap<String, String>, BTreeSet<&str>> = BTreeMap::new();
        for (mut texts, numbers) in rows {
            let run = &source[numbers["goodput_bps"] as usize - 1];
            assert_eq!(texts.remove("outcome").unwrap(), run.entry.group.outcome);
            assert_eq!(texts.remove("multipath").unwrap(), "used");
            for (column, text) in &texts {
                assert!(!text.contains("secret"), "seed {seed}: {column} is {text}");
                let permitted = run.permitted(column);
                assert!(permitted.contains(text), "seed {seed}: {column} is {text}");
            }
            assert!(texts.contains_key("world") && texts.contains_key("transport"));
            uploaders.entry(texts).or_default().insert(&run.uploader);
        }
        for (combination, of) in uploaders {
            assert!(of.len() >= devices, "seed {seed}: {combination:?} is of {of:?}");
        }
        generalised += report.generalised;
        suppressed += report.suppressed;
        written += report.runs;
    }
    // Every case occurs.
    assert!(
        generalised > 100 && written > generalised + 100 && suppressed > 10,
        "{written} written, {generalised} generalised, {suppressed} suppressed"
    );
}

#[test]
fn the_order_of_rows_does_not_depend_on_the_order_of_runs() {
    let mut rng = Pcg64::seed_from_u64(7);
    let mut source: Vec<_> = (1..=60).map(|number| SourceRun::draw(number, &mut rng)).collect();
    let export = |source: &[SourceRun]| {
        let mut table = AnonymousTable::default();
        for run in source {
            table.add(&run.entry, &run.meta, &run.uploader);
        }
        assert!(table.anonymise(2).runs > 0);
        table.write(Vec::new()).unwrap()
    };
    let first = export(&source);
    source.reverse();
    assert_eq!(export(&source), first);
}

#[test]
fn values_have_three_digits() {
    assert_eq!(round(123_456.0).to_bits(), 123_000_f64.to_bits());
    assert_eq!(round(0.001_999_9).to_bits(), 0.002_f64.to_bits());
    assert_eq!(round(0.0).to_bits(), 0_f64.to_bits());
    assert_eq!(round(7.0).to_bits(), 7_f64.to_bits());
}

#[test]
fn kernels_and_interfaces_are_generalised_by_their_names() {
    assert_eq!(major_minor("6.18.0-12-generic").as_deref(), Some("6.18"));
    assert_eq!(major_minor("6.1-secret").as_deref(), Some("6.1"));
    for text in ["", "6", "6.", "Darwin 25.1", "secret.6.18", "99999999999.1", "6.secret"] {
        assert_eq!(major_minor(text), None, "{text}");
    }
    for (names, kinds) in [
        ("wlan0", "wifi"),
        ("wlp2s0, wwan0", "cellular, wifi"),
        ("enp3s0, eth1", "ethernet"),
        ("rmnet_data0", "cellular"),
        ("secret", "other"),
        ("", ""),
    ] {
        assert_eq!(path_kinds(names), kinds, "{names}");
    }
}

#[test]
fn every_attribute_has_its_column_and_its_steps() {
    assert!(GENERALISATIONS.iter().all(|(column, _)| ATTRIBUTE_COLUMNS.contains(column)));
    let removed: BTreeSet<&str> = GENERALISATIONS
        .iter()
        .filter(|(_, step)| *step == Generalisation::Removal)
        .map(|(column, _)| *column)
        .collect();
    assert_eq!(removed.len(), ATTRIBUTES - 2, "all but world and transport");
}
