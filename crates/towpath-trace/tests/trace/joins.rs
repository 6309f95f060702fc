//! Joins without their connection, stray packets, and contradictions between packets.

use towpath_trace::CaptureAnalysis;
use towpath_wire::{AddAddr, Flags, MpTcpRst, MptcpOption, Options};

use crate::cut_options::{Family, flow_of};
use crate::packets::*;

/// Returns the texts of all notes, as the table prints them.
fn table(trace: &CaptureAnalysis) -> String {
    trace.table(&[], 400, 20)
}

fn announcement(address_id: u8, address: &str) -> Options {
    mptcp_options(MptcpOption::AddAddress(AddAddr {
        address_id,
        address: address.parse().unwrap(),
        port: None,
        hmac: Some(7),
    }))
}

#[test]
fn lone_joins_are_grouped_by_token_and_not_counted_as_connections() {
    let mut capture = Capture::default();
    for (index, token) in [7, 7, 9, 7].into_iter().enumerate() {
        let [syn, ..] = join_options(1, token).map(mptcp_options);
        let at = index as u64 * 10 * MS;
        capture.add(at, &flow(index as u8).up(0, 0, Flags::SYN, 0, syn));
    }
    let trace = capture.trace();
    let mut subflows: Vec<_> = trace.connections.iter().map(|c| c.subflows.len()).collect();
    subflows.sort_unstable();
    assert_eq!(subflows, [1, 3]);
    let text = table(&trace);
    assert!(text.contains("0 connections, 0 over Multipath TCP"), "{text}");
    assert!(text.contains("4 SYNs without an answer, 4 of them with MP_JOIN"), "{text}");
    assert!(!text.contains("flood"), "{text}");
}

#[test]
fn many_unanswered_joins_of_many_sources_are_named_as_a_flood() {
    for joins in [true, false] {
        let mut capture = Capture::default();
        for index in 0..300_u32 {
            let mut flow = flow(1);
            flow.client = ([10, 9, (index / 250) as u8, (index % 250) as u8], 40_000).into();
            let [syn, ..] = join_options(1, index).map(mptcp_options);
            let options = if joins { syn } else { mp_capable(1, None, None) };
            capture.add(u64::from(index) * MS, &flow.up(0, 0, Flags::SYN, 0, options));
        }
        let text = table(&capture.trace());
        assert!(text.contains("300 SYNs without an answer"), "{text}");
        assert!(text.contains("a SYN flood, or a scan"), "{text}");
        assert!(text.contains("0 connections, 0 over Multipath TCP"), "{text}");
    }
}

/// A packet of an older connection between the same ends, in each direction and kind, before the
/// SYN of a join; also with a client's port below the server's.
#[test]
fn a_stray_packet_does_not_hide_the_join_that_follows() {
    for (client_port, flags, down) in [
        (40_001, Flags::RST, true),
        (40_001, Flags::ACK, true),
        (40_001, Flags::FIN.with(Flags::ACK), false),
        (50, Flags::ACK, true),
        (50, Flags::RST.with(Flags::ACK), false),
        (50, Flags::ACK, false),
    ] {
        let mut capture = handshake_capture();
        let mut joining = flow(1);
        joining.client.set_port(client_port);
        let stray = if down {
            joining.down(77_000, 99_000, flags, 0, Options::default())
        } else {
            joining.up(77_000, 99_000, flags, 0, Options::default())
        };
        capture.add(1_025 * MS, &stray);
        let token = towpath_wire::keys::token(SERVER_KEY);
        let [syn, reply, ack] = join_options(1, token).map(mptcp_options);
        capture.add(1_030 * MS, &joining.up(0, 0, Flags::SYN, 0, syn));
        capture.add(1_070 * MS, &joining.down(0, 1, SYN_ACK, 0, reply));
        capture.add(1_070 * MS, &joining.up(1, 1, Flags::ACK, 0, ack));
        let data = map(client_dsn(), 0, 1, 500);
        capture.add(1_100 * MS, &joining.up(1, 1, Flags::ACK, 500, data));
        let trace = capture.trace();
        let connection = trace.connections.iter().find(|connection| connection.subflows.len() == 2);
        let connection = connection.unwrap_or_else(|| panic!("{flags:?} {down} {client_port}"));
        let second = &connection.subflows[1];
        assert!(second.join && second.state == "established", "{second:?}");
        assert_eq!(second.local, joining.client.to_string());
        assert_eq!(second.handshake_ns, Some(40 * MS));
        assert_eq!(second.directions[0].payload_bytes, 500);
    }
}

#[test]
fn options_of_the_first_packet_count() {
    for family in [Family::Ipv4, Family::Ipv6] {
        let flow = flow_of(family, 0);
        let mut capture = Capture::default();
        let add = announcement(2, "203.0.113.9");
        capture.add(0, &flow.down(500, 500, Flags::ACK, 0, add));
        capture.add(10 * MS, &flow.up(500, 500, Flags::ACK, 100, map(client_dsn(), 0, 500, 100)));
        let trace = capture.trace();
        let connection = only_connection(&trace);
        assert_eq!(connection.options.get("ADD_ADDR"), Some(&1), "{connection:?}");
        assert!(table(&trace).contains("ADD_ADDR 2: 203.0.113.9"));
        // A reset alone: its connection used Multipath TCP, and the option gives the reason.
        let mut capture = Capture::default();
        let reset = MptcpOption::Reset(MpTcpRst { transient: true, reason: 2, reserved: 0 });
        let flags = Flags::RST.with(Flags::ACK);
        capture.add(0, &flow.down(500, 500, flags, 0, mptcp_options(reset)));
        let trace = capture.trace();
        let connection = only_connection(&trace);
        assert!(connection.multipath);
        let reason = connection.subflows[0].reset.as_deref();
        assert_eq!(reason, Some("lack of resources (transient)"));
        assert_eq!(connection.options.get("MP_TCPRST"), Some(&1));
    }
}

#[test]
fn a_key_that_changes_is_noted() {
    let mut capture = Capture::default();
    let first = flow(0);
    let (client, server) = (Some(CLIENT_KEY), Some(SERVER_KEY));
    capture.add(0, &first.up(0, 0, Flags::SYN, 0, mp_capable(1, None, None)));
    capture.add(20 * MS, &first.down(0, 1, SYN_ACK, 0, mp_capable(1, server, None)));
    let changed = mp_capable(1, client, Some(SERVER_KEY ^ 1));
    capture.add(20 * MS, &first.up(1, 1, Flags::ACK, 0, changed));
    assert!(table(&capture.trace()).contains("the key of the other end has changed"));
    assert!(!table(&handshake_capture().trace()).contains("has changed"));
}

#[test]
fn two_addresses_with_one_identifier_are_noted() {
    let announce = |second: &str, removed: bool| {
        let mut capture = handshake_capture();
        let first = flow(0);
        capture.add(1_030 * MS, &first.down(1, 1, Flags::ACK, 0, announcement(2, "192.0.2.7")));
        if removed {
            let remove = MptcpOption::RemoveAddress([2].into_iter().collect());
            capture.add(1_040 * MS, &first.down(1, 1, Flags::ACK, 0, mptcp_options(remove)));
        }
        capture.add(1_050 * MS, &first.down(1, 1, Flags::ACK, 0, announcement(2, second)));
        table(&capture.trace())
    };
    assert!(announce("192.0.2.8", false).contains("identifier 2 has two addresses: 192.0.2.7"));
    assert!(!announce("192.0.2.7", false).contains("two addresses"), "the same address again");
    assert!(!announce("192.0.2.8", true).contains("two addresses"), "removed in between");
    // Joins: two sources under one identifier.
    let mut capture = handshake_capture();
    let token = towpath_wire::keys::token(SERVER_KEY);
    for number in [1, 2] {
        let [syn, ..] = join_options(5, token).map(mptcp_options);
        capture.add(1_030 * MS, &flow(number).up(0, 0, Flags::SYN, 0, syn));
    }
    assert!(table(&capture.trace()).contains("identifier 5 has two addresses: 10.0.1.1"));
}

#[test]
fn an_announced_private_address_without_answers_is_named() {
    for (address, answered, named) in [
        ("192.168.7.7", false, true),
        ("192.168.7.7", true, false),
        ("203.0.113.7", false, false),
        ("fd00::7", false, true),
    ] {
        let mut capture = handshake_capture();
        capture.add(1_030 * MS, &flow(0).down(1, 1, Flags::ACK, 0, announcement(2, address)));
        let mut joining = flow(1);
        joining.server = (address.parse::<std::net::IpAddr>().unwrap(), 80).into();
        if joining.server.is_ipv6() {
            joining.client = "[fd00::1]:40001".parse().unwrap();
        }
        let token = towpath_wire::keys::token(SERVER_KEY);
        let [syn, reply, _] = join_options(1, token).map(mptcp_options);
        for second in [2, 3] {
            capture.add(second * 1_000 * MS, &joining.up(0, 0, Flags::SYN, 0, syn.clone()));
        }
        if answered {
            capture.add(3_050 * MS, &joining.down(0, 1, SYN_ACK, 0, reply));
        }
        let text = table(&capture.trace());
        let note = format!("announces the private address {address}: no answer to 2 SYNs");
        assert_eq!(text.contains(&note), named, "{text}");
        assert_eq!(text.contains("2 SYNs without an answer"), !answered, "{text}");
    }
}

/// A second of silence, then data on the other subflow: a handover if data was outstanding, and
/// a pause of the application if all was acknowledged.
#[test]
fn a_pause_of_the_application_is_not_a_handover() {
    for (acked, handovers) in [(true, 0), (false, 1)] {
        let mut capture = handshake_capture();
        let token = towpath_wire::keys::token(SERVER_KEY);
        let second = join(&mut capture, 1, 1_030 * MS, token);
        let dsn = client_dsn();
        capture.add(2_000 * MS, &flow(0).up(1, 1, Flags::ACK, 500, map(dsn, 0, 1, 500)));
        if acked {
            capture.add(2_020 * MS, &flow(0).down(1, 501, Flags::ACK, 0, data_ack(dsn, 500)));
        }
        for step in 0..30_u32 {
            let at = (5_000 + 100 * u64::from(step)) * MS;
            let offset = 500 + u64::from(step) * 100;
            let data = map(dsn, offset, 1 + step * 100, 100);
            capture.add(at, &second.up(1 + step * 100, 1, Flags::ACK, 100, data));
        }
        let trace = capture.trace();
        let up = &only_connection(&trace).directions[0];
        assert_eq!(up.handovers.len(), handovers, "{:?}", up.handovers);
    }
}

#[test]
fn the_table_has_the_handshake_the_unanswered_syns_and_the_reset() {
    let mut capture = handshake_capture();
    let token = towpath_wire::keys::token(SERVER_KEY);
    let second = flow(1);
    let [syn, reply, _] = join_options(1, token).map(mptcp_options);
    for ms in [1_030, 2_030] {
        capture.add(ms * MS, &second.up(0, 0, Flags::SYN, 0, syn.clone()));
    }
    capture.add(2_050 * MS, &second.down(0, 1, SYN_ACK, 0, reply));
    let reset = MptcpOption::Reset(MpTcpRst { transient: false, reason: 5, reserved: 0 });
    capture.add(2_060 * MS, &second.up(1, 1, Flags::RST, 0, mptcp_options(reset)));
    let text = table(&capture.trace());
    for expected in [
        "10.0.0.1:40000 → 10.0.0.2:80, handshake 20 ms",
        "10.0.1.1:40001 → 10.0.0.2:80, 1 SYN without an answer, reset: unacceptable performance",
    ] {
        assert!(text.contains(expected), "{text}");
    }
}

/// Without any handshake, 32 bits of DATA_ACK on one subflow belong to 64-bit mappings of another,
/// but only between the same hosts.
#[test]
fn short_acknowledgements_find_the_connection_of_long_mappings() {
    use towpath_wire::{DataAck, Dss};
    let dsn = client_dsn();
    let short = |offset: u64| {
        let data_ack = Some(DataAck::Short(dsn.wrapping_add(offset) as u32));
        let dss = Dss { data_fin: false, data_ack, mapping: None };
        Options { dss: Some(dss), ..Options::default() }
    };
    for (server, connections) in [("10.0.0.2:80", 1), ("192.0.2.1:80", 2)] {
        let mut capture = Capture::default();
        let first = flow(0);
        let mut second = flow(1);
        second.server = server.parse().unwrap();
        if connections == 2 {
            second.client.set_ip("192.0.2.9".parse().unwrap());
        }
        capture.add(0, &first.up(1, 1, Flags::ACK, 1_000, map(dsn, 0, 1, 1_000)));
        // The second subflow shows an acknowledgement first, then data.
        capture.add(10 * MS, &second.down(1, 1, Flags::ACK, 0, short(1_000)));
        let offset = if connections == 1 { 1_000 } else { 1 << 40 };
        capture.add(20 * MS, &second.up(1, 1, Flags::ACK, 500, map(dsn, offset, 1, 500)));
        capture.add(30 * MS, &first.up(1_001, 1, Flags::ACK, 500, map(dsn, 1_500, 1_001, 500)));
        let trace = capture.trace();
        assert_eq!(trace.connections.len(), connections, "{}", table(&trace));
        assert!(trace.connections.iter().all(|connection| connection.multipath));
    }
}

/// A capture that begins late may begin with the data of the faster subflow.
#[test]
fn data_from_before_the_first_captured_data_is_no_copy() {
    let mut capture = Capture::default();
    let (first, second) = (flow(0), flow(1));
    let dsn = client_dsn();
    capture.add(1_000 * MS, &first.up(1, 1, Flags::ACK, 1_000, map(dsn, 9_000, 1, 1_000)));
    for index in 0..4 {
        let options = map(dsn, u64::from(index) * 1_000, 1 + index * 1_000, 1_000);
        let segment = second.up(1 + index * 1_000, 1, Flags::ACK, 1_000, options);
        capture.add((1_001 + u64::from(index)) * MS, &segment);
    }
    let file = capture.file(RAW);
    let trace = towpath_trace::read(file.as_slice(), Some(towpath_trace::TakenAt::Acceptor));
    let trace = trace.unwrap();
    let up = &only_connection(&trace).directions[0];
    assert_eq!((up.reinjected_bytes, up.remapped_bytes), (0, 0), "{up:?}");
    assert_eq!(up.discarded_bytes, Some(0), "{up:?}");
}
