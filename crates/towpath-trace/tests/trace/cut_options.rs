//! Captures whose snap length cuts off TCP options: nothing may be claimed that needs them.

use towpath_result::{CutEvidence, FlowSummary, Record};
use towpath_trace::CaptureAnalysis;
use towpath_wire::keys;
use towpath_wire::{Flags, Options, Timestamps};

use crate::packets::*;

const ETHERNET: &[u8] = &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 8, 0];
const ETHERNET_IPV6: &[u8] = &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x86, 0xdd];

/// Ends of the connections in one address family.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Family {
    Ipv4,
    Ipv6,
}

pub(crate) fn flow_of(family: Family, number: u8) -> Flow {
    match family {
        Family::Ipv4 => flow(number),
        Family::Ipv6 => Flow {
            client: format!("[2001:db8:{number}::1]:{}", 40_000 + u16::from(number))
                .parse()
                .unwrap(),
            server: "[2001:db8::2]:80".parse().unwrap(),
        },
    }
}

pub(crate) fn with_timestamps(options: Options) -> Options {
    Options { timestamps: Some(Timestamps { value: 1, echo: 2 }), ..options }
}

pub(crate) fn syn_options(options: Options) -> Options {
    let options = Options { mss: Some(1_460), window_scale: Some(7), ..options };
    with_timestamps(Options { sack_permitted: true, ..options })
}

/// Returns a transfer of 10 segments of 1000 bytes on each subflow, in the data direction, with
/// acknowledgements. `subflows` is 0 for plain TCP.
pub(crate) fn transfer(family: Family, subflows: u8, down: bool) -> Capture {
    let mut capture = Capture::default();
    let is_multipath = subflows > 0;
    let option = |option: Options| if is_multipath { option } else { Options::default() };
    for number in 0..subflows.max(1) {
        let flow = flow_of(family, number);
        let at = u64::from(number) * 100 * MS;
        let [syn, reply, ack] = handshake_options(number);
        capture.add(at, &flow.up(0, 0, Flags::SYN, 0, syn_options(option(syn))));
        capture.add(at + 20 * MS, &flow.down(0, 1, SYN_ACK, 0, syn_options(option(reply))));
        capture.add(at + 20 * MS, &flow.up(1, 1, Flags::ACK, 0, with_timestamps(option(ack))));
    }
    let dsn = if down { server_dsn() } else { client_dsn() };
    let mut offset = 0;
    for round in 0..10_u32 {
        for number in 0..subflows.max(1) {
            let flow = flow_of(family, number);
            let at = 1_000 * MS + u64::from(round) * 50 * MS + u64::from(number) * MS;
            let ssn = 1 + round * 1_000;
            let data = with_timestamps(option(map(dsn, offset, ssn, 1_000)));
            offset += 1_000;
            let ack = with_timestamps(option(data_ack(dsn, offset)));
            let (data, ack) = if down {
                (
                    flow.down(ssn, 1, Flags::ACK, 1_000, data),
                    flow.up(1, ssn + 1_000, Flags::ACK, 0, ack),
                )
            } else {
                (
                    flow.up(ssn, 1, Flags::ACK, 1_000, data),
                    flow.down(1, ssn + 1_000, Flags::ACK, 0, ack),
                )
            };
            capture.add(at, &data);
            capture.add(at + 20 * MS, &ack);
        }
    }
    capture
}

fn read(capture: &Capture, family: Family, snap: usize) -> CaptureAnalysis {
    let header = match family {
        Family::Ipv4 => ETHERNET,
        Family::Ipv6 => ETHERNET_IPV6,
    };
    let file = capture.file(Layout { link: 1, header, snap, ..RAW });
    towpath_trace::read(file.as_slice(), None).unwrap()
}

#[test]
fn no_transport_is_claimed_without_the_options() {
    for (subflows, down) in [(0, false), (1, true), (2, false), (3, true), (4, false)] {
        let capture = transfer(Family::Ipv4, subflows, down);
        let trace = read(&capture, Family::Ipv4, 54);
        assert_eq!(trace.connections.len(), usize::from(subflows.max(1)));
        for connection in &trace.connections {
            assert_eq!(connection.cut_options, Some(CutEvidence::Unknown), "{connection:?}");
            assert_eq!(connection.fallback, None);
            // The subflow's own values need no options.
            let direction = &connection.subflows[0].directions[usize::from(down)];
            assert_eq!((direction.payload_bytes, direction.acked_bytes), (10_000, 10_000));
            assert_eq!(direction.retransmitted_bytes, 0);
        }
        let text = trace.table(&[], 100, 10);
        assert!(text.contains("TCP or MPTCP, 10.0.0.1:40000"), "{text}");
        assert!(!text.contains("over Multipath TCP"), "{text}");
        assert!(!text.contains("fell back"), "{text}");
        let warnings = trace.warnings();
        let cut = warnings.iter().filter(|warning| warning.text.contains("snap length"));
        assert_eq!(cut.count(), 1, "{warnings:?}");
        let summary = trace.run("cut", 10).summary.unwrap();
        assert!(!summary.multipath.used && summary.multipath.fallback.is_none());
        let bytes: u64 = summary.flows.iter().map(|flow: &FlowSummary| flow.bytes).sum();
        assert_eq!(bytes, 10_000 * u64::from(subflows.max(1)));
    }
}

#[test]
fn the_beginning_of_an_option_is_enough_to_know_the_transport() {
    for (family, snap) in [(Family::Ipv4, 68), (Family::Ipv6, 96)] {
        for (subflows, down) in [(1, false), (2, true), (3, false)] {
            let trace = read(&transfer(family, subflows, down), family, snap);
            assert_eq!(trace.connections.len(), usize::from(subflows));
            for connection in &trace.connections {
                assert_eq!(connection.cut_options, Some(CutEvidence::Multipath));
                assert!(connection.multipath && connection.subflows.len() == 1);
                let bytes = connection.subflows[0].directions[usize::from(down)].acked_bytes;
                assert_eq!(bytes, 10_000);
                assert_eq!(connection.directions[usize::from(down)].reinjected_bytes, 0);
            }
            let text = trace.table(&[], 100, 10);
            assert!(text.contains("subflow of MPTCP"), "{text}");
            assert!(trace.run("cut", 10).summary.unwrap().multipath.used);
        }
        // Plain TCP: the options of its data are complete, over IPv6 also those of its SYNs.
        let trace = read(&transfer(family, 0, false), family, snap);
        let connection = only_connection(&trace);
        let expected = matches!(family, Family::Ipv4).then_some(CutEvidence::Tcp);
        assert_eq!(connection.cut_options, expected);
        assert!(!connection.multipath);
    }
}

#[test]
fn enough_bytes_give_the_whole_result() {
    for (family, snap) in [(Family::Ipv4, 96), (Family::Ipv6, 128), (Family::Ipv4, 192)] {
        for (subflows, down) in [(0, false), (2, true), (4, false)] {
            let capture = transfer(family, subflows, down);
            let (cut, whole) = (read(&capture, family, snap), read(&capture, family, 65_535));
            assert_eq!(cut.connections, whole.connections);
            assert_eq!(only_connection(&cut).subflows.len(), usize::from(subflows.max(1)));
            assert!(cut.warnings().iter().all(|warning| !warning.text.contains("snap length")));
        }
    }
}

#[test]
fn a_frame_that_ends_before_the_tcp_header_is_counted_with_a_hint() {
    let trace = read(&transfer(Family::Ipv6, 2, false), Family::Ipv6, 68);
    assert!(trace.connections.is_empty());
    let warnings = trace.warnings();
    let text = warnings.iter().map(|warning| warning.text.as_str()).collect::<Vec<_>>();
    assert_eq!(text, ["the snap length cut off headers of 46 packets"]);
}

#[test]
fn data_without_options_after_a_cut_handshake_is_a_fallback() {
    let first = flow(0);
    let mut capture = Capture::default();
    let offer = syn_options(mp_capable(1, None, None));
    capture.add(0, &first.up(0, 0, Flags::SYN, 0, offer));
    capture.add(20 * MS, &first.down(0, 1, SYN_ACK, 0, syn_options(Options::default())));
    for number in 0..5_u32 {
        let at = (30 + u64::from(number)) * MS;
        let data = with_timestamps(Options::default());
        capture.add(at, &first.up(1 + number * 100, 1, Flags::ACK, 100, data));
    }
    // The SYN has 24 bytes of options: 22 show the kind of its last option, 23 the subtype.
    for (option_bytes, reason) in
        [(22, "data without Multipath TCP options"), (23, "the SYN/ACK has no MP_CAPABLE")]
    {
        let trace = read(&capture, Family::Ipv4, 54 + option_bytes);
        let connection = only_connection(&trace);
        assert!(connection.multipath);
        let fallback = connection.fallback.as_deref().unwrap();
        assert!(fallback.starts_with(reason), "{fallback}");
    }
    // The SYN/ACK has 20 bytes of options: with 19 it is unknown what they were.
    let trace = read(&capture, Family::Ipv4, 54 + 19);
    assert_eq!(only_connection(&trace).cut_options, Some(CutEvidence::Tcp));
}

/// Keys and joins are captured, and only the mappings are cut: every subflow is a connection.
#[test]
fn subflows_with_cut_mappings_leave_their_connection_one_by_one() {
    let mut capture = Capture::default();
    for number in 0..4 {
        let (flow, at) = (flow(number), u64::from(number) * 100 * MS);
        let [syn, reply, ack] = handshake_options(number);
        capture.add(at, &flow.up(0, 0, Flags::SYN, 0, syn));
        capture.add(at + 20 * MS, &flow.down(0, 1, SYN_ACK, 0, reply));
        capture.add(at + 20 * MS, &flow.up(1, 1, Flags::ACK, 0, ack));
    }
    // In an order in which the numbers of the remaining subflows change.
    for (index, number) in [1, 0, 3, 2].into_iter().enumerate() {
        let data = map(client_dsn(), index as u64 * 500, 1, 500);
        capture.add(1_000 * MS + index as u64 * MS, &flow(number).up(1, 1, Flags::ACK, 500, data));
    }
    for option_bytes in [12, 16, 19] {
        let trace = read(&capture, Family::Ipv4, 54 + option_bytes);
        assert_eq!(trace.connections.len(), 4, "{option_bytes}");
        for connection in &trace.connections {
            let [subflow] = connection.subflows.as_slice() else { panic!("{connection:?}") };
            assert_eq!((subflow.subflow, subflow.directions[0].payload_bytes), (0, 500));
            assert!(connection.multipath && connection.cut_options.is_some());
        }
    }
}

#[test]
fn a_subflow_without_options_leaves_no_gap_in_the_numbers_of_the_others() {
    let mut capture = handshake_capture();
    for number in 1..=3 {
        join(&mut capture, number, (1_100 + u64::from(number) * 100) * MS, keys::token(SERVER_KEY));
    }
    let mut file = capture.file(Layout { snap: 96, ..RAW });
    // Data of the second subflow, without its options.
    let mut data = Capture::default();
    data.add(2_000 * MS, &flow(1).up(1, 1, Flags::ACK, 100, map(client_dsn(), 0, 1, 100)));
    let file_header_bytes = Capture::default().file(RAW).len();
    file.extend(&data.file(Layout { snap: 40, ..RAW })[file_header_bytes..]);
    let reset = flow(3).down(1, 1, Flags::RST.with(Flags::ACK), 0, Options::default());
    let mut end = Capture::default();
    end.add(3_000 * MS, &reset);
    file.extend(&end.file(RAW)[file_header_bytes..]);
    let trace = towpath_trace::read(file.as_slice(), None).unwrap();
    let connection = trace.connections.iter().find(|c| c.subflows.len() > 1).unwrap();
    let numbers: Vec<_> = connection.subflows.iter().map(|s| (s.subflow, &s.local[..6])).collect();
    assert_eq!(numbers, [(0, "10.0.0"), (1, "10.0.2"), (2, "10.0.3")]);
    let run = trace.run("cut", 10);
    let events = run.records.iter().filter_map(|record| {
        let Record::Event(event) = record else { return None };
        Some((event.text.as_str(), event.path.as_deref()))
    });
    let reset_path = events.filter(|(text, _)| *text == "RST").map(|(_, path)| path.unwrap());
    assert_eq!(reset_path.collect::<Vec<_>>(), ["10.0.3.1 – 10.0.0.2"]);
}
