use towpath_result::{Meta, SenderActivity};
use towpath_scenario::{Scenario, Transport, World, no_files};

use super::*;

const MS: u64 = 1_000_000;

fn meta() -> Meta {
    let text = "name = \"x\"\n[hosts.client]\n[hosts.server]\n\
        [paths.wifi]\nbetween = [\"client\", \"server\"]\n\
        [paths.lte]\nbetween = [\"client\", \"server\"]\n\
        [[flows]]\nfrom = \"client\"\nto = \"server\"\npattern = \"interactive\"\n";
    let scenario = Scenario::parse("x", text, &no_files).unwrap();
    Meta::of(&scenario, World::Live, (Transport::Mptcp, 1), 1)
}

fn run(records: Vec<Record>) -> StoredRun {
    StoredRun { file: None, meta: meta(), records, summary: None, truncated: false, skipped: 0 }
}

/// Returns an upload that was due at 1 s, with its reply after `ms`.
fn message(ms: Option<u64>) -> Record {
    Record::Message(Message {
        flow: 0,
        stream: 0,
        direction: DataDirection::Up,
        number: 0,
        warm_up: false,
        request_bytes: 2_000,
        reply_bytes: 750,
        due_ns: 1_000 * MS,
        sent_ns: Some(1_000 * MS),
        delivered_ns: None,
        answered_ns: ms.map(|ms| (1_000 + ms) * MS),
        replied_ns: None,
    })
}

/// Returns a sample of the device's end of a subflow, for the 100 ms until `ms`.
fn sample(ms: u64, path: &str) -> Subflow {
    Subflow {
        t_ns: ms * MS,
        span_ns: 100 * MS,
        flow: 0,
        stream: 0,
        direction: DataDirection::Up,
        side: SubflowEnd::Sender,
        subflow: u32::from(path != "wifi"),
        path: path.to_owned(),
        state: "established".to_owned(),
        backup: false,
        bytes: 0,
        bytes_sent: 1_000,
        bytes_acked: 0,
        bytes_received: 0,
        srtt_us: 20_000,
        rttvar_us: 1_000,
        rto_us: 220_000,
        backoff: 0,
        cwnd_packets: 10,
        ssthresh_packets: 10,
        in_flight_packets: 2,
        retransmissions: 0,
        mss_bytes: 1_420,
        sender_activity: None,
    }
}

/// Returns the cause of a delay of 1 s, with samples that `change` sets for each time and path.
fn cause(change: impl Fn(u64, &mut Subflow) -> bool) -> DelayCause {
    let mut records = vec![message(Some(1_000))];
    for ms in (100..=2_500).step_by(100) {
        for path in ["wifi", "lte"] {
            let mut sample = sample(ms, path);
            if change(ms, &mut sample) {
                records.push(Record::Subflow(Box::new(sample)));
            }
        }
    }
    longest_delay(&run(records), DataDirection::Up).unwrap().cause
}

#[test]
fn each_rule_gives_its_cause() {
    let found = [
        cause(|_, subflow| subflow.path == "wifi"),
        cause(|ms, subflow| subflow.path == "wifi" || ms > 1_700),
        cause(|ms, subflow| {
            subflow.backoff = u32::from(ms == 1_500 && subflow.path == "wifi");
            true
        }),
        cause(|_, subflow| {
            let limits_ns = BTreeMap::from([(Part::PeerWindow, 60 * MS)]);
            subflow.sender_activity =
                Some(Box::new(SenderActivity { limits_ns, ..SenderActivity::default() }));
            subflow.bytes_acked = subflow.t_ns;
            true
        }),
        cause(|ms, subflow| {
            subflow.srtt_us = if ms == 1_300 { 500_000 } else { 20_000 };
            subflow.bytes_acked = subflow.t_ns;
            true
        }),
        cause(|_, _| true),
        cause(|_, subflow| {
            subflow.bytes_acked = subflow.t_ns;
            true
        }),
        cause(|_, subflow| {
            subflow.in_flight_packets = 0;
            true
        }),
        cause(|_, _| false),
    ];
    assert_eq!(found, DelayCause::RULES.map(|rule| rule.cause));
}

#[test]
fn states_outside_the_delay_do_not_count() {
    let before_and_after = cause(|ms, subflow| {
        subflow.backoff = u32::from(ms <= 1_000 || ms > 2_100);
        subflow.in_flight_packets = 0;
        true
    });
    assert_eq!(before_and_after, DelayCause::Application);
}

#[test]
fn a_message_without_a_reply_waits_until_the_end() {
    let mut late = message(None);
    if let Record::Message(message) = &mut late {
        message.number = 1;
        message.due_ns = 1_400 * MS;
    }
    let records = vec![message(None), late];
    let delay = longest_delay(&run(records), DataDirection::Up).unwrap();
    assert_eq!((delay.due_ns, delay.delay_ns()), (1_000 * MS, 400 * MS));
    assert_eq!(longest_delay(&run(vec![message(None)]), DataDirection::Down), None);
}
