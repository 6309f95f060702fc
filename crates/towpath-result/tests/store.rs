//! Stored results stay readable, and no input causes a panic.

use proptest::prelude::*;
use towpath_result::input::ReadBudget;
use towpath_result::store::{
    RunResult, StoreError, read_records, read_run, read_run_within, result_schema, write_record,
};
use towpath_result::{Counter, EmulatorTiming, Event, EventKind, Interval, Record, SCHEMA_VERSION};
use towpath_scenario::DataDirection;

const V1: &str = include_str!("fixtures/result-v1.jsonl");
/// Records with the keys and values that were renamed before the first release.
const FORMER_NAMES: &str = include_str!("fixtures/result-v1-former-names.jsonl");
/// The same records as they are written today.
const PRESENT_NAMES: &str = include_str!("fixtures/result-v1-present-names.jsonl");

fn read_text(text: &str) -> Result<RunResult, StoreError> {
    read_run(text.as_bytes())
}

fn error_of(text: &str) -> String {
    read_text(text).map_or_else(|error| error.to_string(), |run| format!("no error: {run:?}"))
}

#[test]
fn a_version_1_result_stays_readable() {
    let run = read_text(V1).unwrap();
    assert_eq!((run.meta.schema, run.truncated, run.skipped), (1, false, 0));
    assert_eq!(run.meta.paths[1].up_rate_bps, Some(20_000_000));
    assert_eq!(run.records.len() + 2, V1.lines().count());
    let bytes = run
        .records
        .iter()
        .map(|record| if let Record::Interval(interval) = record { interval.bytes } else { 0 });
    let summary = run.summary.as_ref().unwrap();
    assert_eq!(bytes.sum::<u64>(), summary.flows[0].bytes);
    assert_eq!(summary.flows[0].recoveries[0].t90_ns, Some(310_000_000));
    assert_eq!(summary.multipath.paths_used, ["wifi", "cellular"]);
}

#[test]
fn a_result_charges_its_records_memory_to_the_budget() {
    let meta = V1.split_inclusive('\n').next().unwrap();
    let read_within = |text: &str, bytes: u64| {
        let result = read_run_within(format!("{meta}{text}").as_bytes(), &ReadBudget::of(bytes));
        result.map_or_else(|error| error.to_string(), |run| run.records.len().to_string())
    };
    // Short, empty and unknown lines: a thousand lines of less than fifty bytes.
    let short = "{\"type\":\"event\",\"t_ns\":0,\"kind\":\"flow\",\"text\":\"\"}\n".repeat(1_000);
    let unknown = "{\"type\":\"later\"}\n".repeat(1_000);
    for (text, expected) in [(&short, "1000"), (&"\n".repeat(1_000), "0"), (&unknown, "0")] {
        assert!(
            read_within(text, 200_000).contains("more than 200 kB"),
            "{}",
            read_within(text, 200_000)
        );
        assert_eq!(read_within(text, 400_000), expected);
    }
    // A record with many fields.
    let fields: Vec<_> = (0..200).map(|number| format!("\"{number}\":\"\"")).collect();
    let event = format!(
        "{{\"type\":\"event\",\"t_ns\":0,\"kind\":\"flow\",\"text\":\"\",\"detail\":{{{}}}}}\n",
        fields.join(",")
    );
    assert!(read_within(&event.repeat(50), 200_000).contains("more than"));
    assert!(event.len() * 50 < 100_000 && read_within(&event.repeat(50), 500_000) == "50");
    let too_many_fields: Vec<_> = (0..300).map(|number| format!("\"{number}\":\"\"")).collect();
    let event = event.replace(&fields.join(","), &too_many_fields.join(","));
    assert!(read_within(&event, 500_000).contains("line 2: more than 256 fields"));
    // One line without an end.
    assert!(read_within(&" ".repeat(100_000), 200_000).contains("the line has more than 64.0 kB"));
}

#[test]
fn a_stored_result_survives_a_round_trip() {
    let records = read_records(V1.as_bytes()).unwrap();
    let mut written = Vec::new();
    for record in &records {
        write_record(&mut written, record).unwrap();
    }
    assert_eq!(written.split_inclusive(|byte| *byte == b'\n').count(), records.len());
    assert_eq!(read_records(written.as_slice()).unwrap(), records);
}

#[test]
fn former_names_are_read_and_present_names_are_written() {
    let records = read_records(FORMER_NAMES.as_bytes()).unwrap();
    let mut written = Vec::new();
    for record in &records {
        write_record(&mut written, record).unwrap();
    }
    for (line, present) in String::from_utf8(written).unwrap().lines().zip(PRESENT_NAMES.lines()) {
        assert_eq!(line, present);
    }
    assert_eq!(records.len(), PRESENT_NAMES.lines().count());
    assert_eq!(read_records(PRESENT_NAMES.as_bytes()).unwrap(), records);
}

#[test]
fn a_truncated_result_is_read_up_to_its_last_whole_line() {
    let truncated_text = &V1[..V1.len() - 100];
    let run = read_text(truncated_text).unwrap();
    assert!(run.truncated && run.summary.is_none());
    assert_eq!(run.records.len() + 2, V1.lines().count());
    let first_lines: String = V1.split_inclusive('\n').take(5).collect();
    let run = read_text(&first_lines).unwrap();
    assert!(run.truncated && run.records.len() == 4);
}

#[test]
fn a_result_of_a_newer_version_is_refused_with_a_reason() {
    let future = V1.replacen("\"schema\":1", "\"schema\":2", 1);
    let reason = "line 1: result format 2 was written by a newer towpath; this one reads up to 1";
    assert_eq!(error_of(&future), reason);
    // The version error comes first, even if the conditions have another format.
    assert_eq!(error_of("{\"type\":\"meta\",\"schema\":2,\"hosts\":7}\n"), reason);
    assert_eq!(SCHEMA_VERSION, 1, "keep a stored result of every version");
}

#[test]
fn an_unknown_record_is_counted_and_skipped() {
    let text = V1.replacen('\n', "\n{\"type\":\"weather\",\"rain\":true}\n\n", 1);
    let run = read_text(&text).unwrap();
    assert_eq!((run.skipped, run.truncated), (1, false));
    assert_eq!(run.records, read_text(V1).unwrap().records);
}

#[test]
fn a_broken_line_is_named_by_its_number() {
    let broken =
        V1.replacen("\"type\":\"interval\",\"t_ns\":", "\"type\":\"interval\",\"t_ns\":x", 1);
    assert!(error_of(&broken).starts_with("line 2: expected value"), "{}", error_of(&broken));
    let missing_field = V1.replacen("\"span_ns\":1000000000,", "", 1);
    assert!(
        error_of(&missing_field).starts_with("line 2: missing field `span_ns`"),
        "{}",
        error_of(&missing_field)
    );
}

#[test]
fn a_broken_record_of_any_known_type_is_an_error() {
    let schema = result_schema();
    let variants = schema["oneOf"].as_array().unwrap();
    assert!(variants.len() >= 15, "{schema}");
    for variant in variants {
        let kind = variant["properties"]["type"]["const"].as_str().unwrap();
        let broken = format!("\n{{\"type\":\"{kind}\",\"schema\":true}}\n");
        let text = V1.replacen('\n', &broken, 1);
        assert!(error_of(&text).starts_with("line 2: "), "{kind}: {}", error_of(&text));
    }
}

#[test]
fn other_files_are_refused_as_results() {
    let not_a_result = "line 1: expected a `meta` record first; this is not a result of towpath";
    assert_eq!(error_of(""), not_a_result);
    assert_eq!(error_of("{\"type\":\"weather\"}\n"), not_a_result);
    assert!(error_of("hello\n").starts_with("line 1: "));
    let second_line = V1.lines().count() + 1;
    let expected =
        format!("line {second_line}: a second result begins here; keep one result in a file");
    assert_eq!(error_of(&format!("{V1}{V1}")), expected);
}

#[test]
fn the_schema_names_every_record_type() {
    let schema = result_schema().to_string();
    for line in V1.lines() {
        let stored = line.split('"').nth(3).unwrap();
        let kind = if stored == "noise" { "timing" } else { stored };
        assert!(schema.contains(&format!("\"const\":\"{kind}\"")), "{kind}");
    }
    assert!(schema.contains("Goodput of one stream in one sampling period"));
}

fn record() -> impl Strategy<Value = Record> {
    let interval = (any::<u64>(), any::<u32>()).prop_map(|(bytes, stream)| {
        let direction = DataDirection::Down;
        Record::Interval(Interval {
            t_ns: 1,
            span_ns: 1,
            flow: 0,
            stream,
            direction,
            bytes,
            connection: None,
        })
    });
    let event =
        (any::<String>(), any::<Option<String>>(), any::<u64>()).prop_map(|(text, host, t_ns)| {
            let detail = [(text.clone(), text.clone())].into();
            Record::Event(Event {
                t_ns,
                kind: EventKind::PathManager,
                host,
                path: None,
                text,
                detail,
            })
        });
    let counter = (any::<String>(), any::<u64>()).prop_map(|(name, after)| {
        Record::Counter(Counter { host: "a".into(), name, before: 0, after })
    });
    let noise = (proptest::num::f64::NORMAL, any::<bool>()).prop_map(|(load, unreliable)| {
        Record::Timing(EmulatorTiming { load, unreliable, ..EmulatorTiming::default() })
    });
    prop_oneof![interval, event, counter, noise]
}

proptest! {
    #[test]
    fn records_survive_a_round_trip(records in proptest::collection::vec(record(), 0..20)) {
        let mut bytes = V1.lines().next().unwrap_or_default().as_bytes().to_vec();
        bytes.push(b'\n');
        for record in &records {
            write_record(&mut bytes, record).unwrap();
        }
        prop_assert_eq!(read_run(bytes.as_slice()).unwrap().records, records);
    }

    #[test]
    fn arbitrary_bytes_never_panic_the_reader(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        after_meta: bool,
    ) {
        let meta = V1.split_inclusive('\n').take(usize::from(after_meta)).collect::<String>();
        let _ = read_run([meta.as_bytes(), &bytes].concat().as_slice());
    }

    #[test]
    fn a_result_cut_anywhere_after_its_first_line_is_readable(cut in 0_usize..20_000) {
        let first = V1.find('\n').unwrap_or_default() + 1;
        let end = (first + cut).min(V1.len());
        let run = read_run(&V1.as_bytes()[..end]).unwrap();
        prop_assert_eq!(run.truncated, end + 1 < V1.len());
    }
}
