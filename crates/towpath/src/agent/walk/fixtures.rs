//! Records and results for tests.

use towpath_result::input::ReadBudget;
use towpath_result::store::{StoredRun, read_run_within};
use towpath_result::{Event, EventKind, MetaPath, NETWORK_LOSS_PREFIX, Record, Subflow};

/// Returns a stored result without records, whose paths have these names.
pub(super) fn result(paths: &[&str]) -> StoredRun {
    let text = include_str!("../../../../towpath-result/tests/fixtures/result-v1.jsonl");
    let run = read_run_within(text.as_bytes(), &ReadBudget::of(u64::MAX)).unwrap();
    let mut run = StoredRun::new(run, None);
    let path = run.meta.paths[0].clone();
    let named = |name: &&str| MetaPath { name: (*name).to_owned(), ..path.clone() };
    run.meta.paths = paths.iter().map(named).collect();
    for flow in &mut run.meta.flows {
        flow.from = "client".to_owned();
        flow.via = paths[0].to_owned();
    }
    run.records.clear();
    run
}

/// Returns the conditions of a run over these paths.
pub(super) fn meta(paths: &[&str]) -> Record {
    Record::Meta(Box::new(result(paths).meta))
}

/// Returns a sample of a subflow's sender, with its bytes in the period and in total.
pub(super) fn subflow(
    path: &str,
    number: u32,
    t_ns: u64,
    (bytes, bytes_sent): (u64, u64),
) -> Record {
    let text = format!(
        r#"{{"t_ns":{t_ns},"span_ns":100000000,"flow":0,"stream":0,"direction":"up",
        "side":"sender","subflow":{number},"path":"","state":"established","backup":false,
        "bytes":{bytes},"bytes_sent":{bytes_sent},"bytes_acked":{bytes_sent},"bytes_received":0,
        "srtt_us":24000,"rttvar_us":0,"rto_us":0,"backoff":0,"cwnd_packets":10,
        "ssthresh_packets":0,"in_flight_packets":0,"retransmissions":0,"mss_bytes":1448}}"#
    );
    let subflow: Subflow = serde_json::from_str(&text).unwrap();
    Record::Subflow(Box::new(Subflow { path: path.to_owned(), ..subflow }))
}

/// Returns the event of the client that its first network was lost.
pub(super) fn loss(t_ns: u64, reason: &str) -> Record {
    Record::Event(Event {
        t_ns,
        kind: EventKind::Link,
        host: Some("client".to_owned()),
        path: None,
        text: format!("{NETWORK_LOSS_PREFIX}{reason}"),
        detail: std::collections::BTreeMap::new(),
    })
}
