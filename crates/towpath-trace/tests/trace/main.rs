//! Analysis of captures that these tests build packet by packet.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]
#![expect(clippy::indexing_slicing, reason = "a test fails by panicking")]

mod copies;
mod cut_options;
mod formats;
mod joins;
mod late_mappings;
mod packets;

use std::net::SocketAddr;
use std::path::Path;

use packets::*;
use proptest::prelude::*;
use towpath_result::CapturePoint;
use towpath_trace as trace;
use towpath_trace::{CaptureAnalysis, TakenAt};
use towpath_wire::keys;
use towpath_wire::{DataAck, Dss, DssMapping, Flags, MpTcpRst, MptcpOption, Options};

#[test]
fn a_join_finds_its_connection_by_the_token_of_the_key() {
    let trace = two_subflow_capture().trace();
    let connection = only_connection(&trace);
    assert_eq!(connection.version, Some(1));
    assert_eq!(connection.subflows.len(), 2);
    let [first, second] = connection.subflows.as_slice() else { panic!() };
    assert!(!first.join && second.join && second.address_ids == [Some(1), Some(0)]);
    assert_eq!(first.handshake_ns, Some(20 * MS));
    assert_eq!(second.handshake_ns, Some(40 * MS));
}

#[test]
fn resent_data_is_classified_by_path() {
    let trace = two_subflow_capture().trace();
    let up = &only_connection(&trace).directions[0];
    assert_eq!(up.capture_point, CapturePoint::Sender);
    assert_eq!(up.bytes, 2_000);
    assert_eq!(up.reinjected_bytes, 1_000);
    assert_eq!(up.retransmitted_bytes, 1_000);
    assert_eq!(up.spurious_bytes, 1_000, "it had been acknowledged");
    assert_eq!((up.out_of_order_bytes, up.unseen_bytes, up.unmapped_bytes), (0, 0, 0));
    assert_eq!(up.discarded_bytes, None, "only the receiver knows");
    // 30 ms for the first, 229 ms until DATA_ACK covers the second.
    let rtt = up.rtt.unwrap();
    assert_eq!((rtt.min_ns, rtt.max_ns), (30 * MS, 229 * MS));
    let subflow = &only_connection(&trace).subflows[0].directions[0];
    // The second sample is that of 1001.., sent at 1300 ms.
    assert_eq!(subflow.rtt.unwrap().min_ns, 30 * MS);
    assert!((subflow.share - 2.0 / 3.0).abs() < 1e-9);
}

#[test]
fn the_receiver_reports_discarded_data_and_waiting_times() {
    let mut capture = handshake_capture();
    let first = flow(0);
    let second = join(&mut capture, 1, 1_030 * MS, keys::token(SERVER_KEY));
    let dsn = client_dsn();
    capture.add(1_100 * MS, &second.up(1, 1, Flags::ACK, 500, map(dsn, 1_000, 1, 500)));
    capture.add(1_150 * MS, &first.up(1, 1, Flags::ACK, 1_000, map(dsn, 0, 1, 1_000)));
    capture.add(1_160 * MS, &first.up(1_001, 1, Flags::ACK, 500, map(dsn, 1_000, 1_001, 500)));
    let file = capture.file(RAW);
    let trace = trace::read(file.as_slice(), Some(TakenAt::Acceptor)).unwrap();
    let up = &only_connection(&trace).directions[0];
    assert_eq!(up.capture_point, CapturePoint::Receiver);
    assert_eq!(up.bytes, 1_500);
    assert_eq!(up.reorder_peak_bytes, Some(500));
    assert_eq!(up.head_of_line.unwrap().max_ns, 50 * MS);
    assert_eq!(up.discarded_bytes, Some(500));
}

#[test]
fn version_0_hashes_with_sha_1() {
    // The token of this key, computed with Python's hashlib.
    const TOKEN: u32 = 0xad57_edbd;
    let mut capture = Capture::default();
    let first = flow(0);
    let (client, server) = (Some(CLIENT_KEY), Some(SERVER_KEY));
    capture.add(0, &first.up(0, 0, Flags::SYN, 0, mp_capable(0, client, None)));
    capture.add(20 * MS, &first.down(0, 1, SYN_ACK, 0, mp_capable(0, server, None)));
    capture.add(20 * MS, &first.up(1, 1, Flags::ACK, 0, mp_capable(0, client, server)));
    join(&mut capture, 1, 30 * MS, TOKEN);
    let trace = capture.trace();
    assert_eq!(only_connection(&trace).version, Some(0));
    assert_eq!(only_connection(&trace).subflows.len(), 2);
}

#[test]
fn a_capture_that_starts_late_binds_subflows_by_their_data_numbers() {
    let complete = two_subflow_capture();
    // Without any handshake: starts at the first data.
    let mut late = Capture { packets: complete.packets[6..].to_vec() };
    let dsn = client_dsn();
    let second = flow(1);
    late.add(1_340 * MS, &second.up(1_001, 1, Flags::ACK, 700, map(dsn, 2_000, 1_001, 700)));
    let trace = late.trace();
    let connection = only_connection(&trace);
    assert!(connection.truncated_start && connection.multipath);
    assert_eq!(connection.subflows.len(), 2);
    assert_eq!(connection.directions[0].reinjected_bytes, 1_000);
    assert!(connection.subflows[0].local.ends_with(":40000"), "the higher port is the opener's");
}

#[test]
fn a_join_to_an_unknown_token_waits_for_data_that_fits() {
    let complete = two_subflow_capture();
    let late = Capture { packets: complete.packets[6..7].to_vec() };
    let mut late = late;
    let second = join(&mut late, 1, 1_105 * MS, keys::token(SERVER_KEY));
    let data = map(client_dsn(), 1_000, 1, 1_000);
    late.add(1_150 * MS, &second.up(1, 1, Flags::ACK, 1_000, data));
    let trace = late.trace();
    assert_eq!(only_connection(&trace).subflows.len(), 2);
    assert!(only_connection(&trace).subflows[1].join);
}

#[test]
fn fallback_has_a_reason() {
    let first = flow(0);
    let reason = |capture: &Capture| only_connection(&capture.trace()).fallback.clone().unwrap();
    let mut without_mp_capable = Capture::default();
    without_mp_capable.add(0, &first.up(0, 0, Flags::SYN, 0, mp_capable(1, None, None)));
    without_mp_capable.add(20 * MS, &first.down(0, 1, SYN_ACK, 0, Options::default()));
    assert!(reason(&without_mp_capable).starts_with("the SYN/ACK has no MP_CAPABLE"));
    let mut syns_dropped = Capture::default();
    syns_dropped.add(0, &first.up(0, 0, Flags::SYN, 0, mp_capable(1, None, None)));
    syns_dropped.add(1_000 * MS, &first.up(0, 0, Flags::SYN, 0, Options::default()));
    assert!(reason(&syns_dropped).starts_with("SYNs with MP_CAPABLE got no reply"));
    let mut options_stripped = handshake_capture();
    options_stripped.add(1_030 * MS, &first.up(1, 1, Flags::ACK, 400, Options::default()));
    options_stripped.add(1_050 * MS, &first.down(1, 401, Flags::ACK, 0, Options::default()));
    assert!(reason(&options_stripped).starts_with("data without Multipath TCP options"));
    let trace = options_stripped.trace();
    assert_eq!(only_connection(&trace).directions[0].bytes, 400, "its bytes still count");
    let mut infinite_mapping = handshake_capture();
    infinite_mapping.add(1_030 * MS, &first.up(1, 1, Flags::ACK, 400, map(client_dsn(), 0, 1, 0)));
    infinite_mapping.add(1_050 * MS, &first.down(1, 401, Flags::ACK, 0, Options::default()));
    assert!(reason(&infinite_mapping).starts_with("an infinite mapping"));
    assert_eq!(only_connection(&infinite_mapping.trace()).directions[0].bytes, 400);
}

#[test]
fn a_reset_is_reported_with_its_reason() {
    let mut capture = handshake_capture();
    let reset = MptcpOption::Reset(MpTcpRst { transient: false, reason: 6, reserved: 0 });
    capture
        .add(1_030 * MS, &flow(0).down(1, 1, Flags::RST.with(Flags::ACK), 0, mptcp_options(reset)));
    let trace = capture.trace();
    let subflow = &only_connection(&trace).subflows[0];
    assert_eq!(subflow.state, "reset");
    assert_eq!(subflow.reset.as_deref(), Some("middlebox interference"));
}

#[test]
fn plain_tcp_has_the_same_metrics() {
    let mut capture = Capture::default();
    let first = flow(0);
    let no_options = Options::default;
    capture.add(0, &first.up(0, 0, Flags::SYN, 0, no_options()));
    capture.add(20 * MS, &first.down(0, 1, SYN_ACK, 0, no_options()));
    capture.add(20 * MS, &first.up(1, 1, Flags::ACK, 0, no_options()));
    for (ms, seq) in [(30, 1), (31, 101), (232, 1)] {
        capture.add(ms * MS, &first.up(seq, 1, Flags::ACK, 100, no_options()));
    }
    capture.add(260 * MS, &first.down(1, 201, Flags::ACK, 0, no_options()));
    let trace = capture.trace();
    let connection = only_connection(&trace);
    assert!(!connection.multipath && connection.fallback.is_none());
    assert_eq!(
        (connection.directions[0].bytes, connection.directions[0].retransmitted_bytes),
        (200, 100)
    );
    assert_eq!(connection.subflows[0].directions[0].acked_bytes, 200);
}

/// Returns the facts that must not depend on the file format around the packets.
fn comparable_text(trace: &CaptureAnalysis) -> String {
    let connections: Vec<_> = trace
        .connections
        .iter()
        .map(|connection| {
            let mut connection = connection.clone();
            connection
                .directions
                .iter_mut()
                .for_each(|direction| direction.capture_point = CapturePoint::Unknown);
            connection
        })
        .collect();
    format!("{} {connections:#?}", trace.frames)
}

#[test]
fn every_file_format_and_link_layer_gives_the_same_result() {
    const ETHERNET: &[u8] = &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 8, 0];
    const TAGGED: &[u8] = &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x81, 0, 0, 5, 8, 0];
    const SLL: &[u8] = &[0, 0, 0, 1, 0, 6, 1, 2, 3, 4, 5, 6, 0, 0, 8, 0];
    const SLL2: &[u8] = &[8, 0, 0, 0, 0, 0, 0, 2, 0, 1, 0, 6, 1, 2, 3, 4, 5, 6, 0, 0];
    let capture = two_subflow_capture();
    let expected = comparable_text(&capture.trace());
    let layouts = [(101, &[][..]), (1, ETHERNET), (1, TAGGED), (276, SLL2), (113, SLL)];
    for (link, header) in layouts {
        for (nanos, big, pcapng, snap) in [
            (true, false, false, 65_535),
            (false, false, false, 65_535),
            (true, true, false, 65_535),
            (false, true, false, 110),
            (true, false, true, 65_535),
            (true, true, true, 110),
        ] {
            let layout = Layout { link, header, nanos, big, snap, pcapng };
            let taken_at = Some(TakenAt::Opener);
            let trace = trace::read(capture.file(layout).as_slice(), taken_at).unwrap();
            assert_eq!(comparable_text(&trace), expected, "{layout:?}");
        }
    }
}

#[test]
fn a_super_segment_without_a_length_has_that_of_its_frame() {
    let mut capture = handshake_capture();
    let big = 60_000;
    capture.add(1_100 * MS, &flow(0).up(1, 1, Flags::ACK, big, map(client_dsn(), 0, 1, 60_000)));
    let (_, packet) = capture.packets.last_mut().unwrap();
    packet[2..4].copy_from_slice(&[0, 0]);
    let trace = capture.trace();
    assert_eq!(only_connection(&trace).subflows[0].directions[0].payload_bytes, big as u64);
}

#[test]
fn fragments_and_other_protocols_are_counted_and_skipped() {
    let mut capture = handshake_capture();
    let (at_ns, packet) = capture.packets[0].clone();
    let mut fragment = packet.clone();
    fragment[6] |= 0x20;
    let mut udp = packet;
    udp[9] = 17;
    capture.packets.extend([(at_ns, fragment), (at_ns, udp), (at_ns, vec![0x45, 0])]);
    let trace = capture.trace();
    let table = trace.table(&[], 100, 10);
    for text in ["1 fragments", "1 UDP", "1 truncated in a header"] {
        assert!(table.contains(text), "{table}");
    }
    assert_eq!(only_connection(&trace).subflows.len(), 1);
}

#[test]
fn ipv6_and_its_extension_headers_are_read() {
    let client: SocketAddr = "[2001:db8::1]:40000".parse().unwrap();
    let server: SocketAddr = "[2001:db8::2]:80".parse().unwrap();
    let flow = Flow { client, server };
    let mut capture = Capture::default();
    capture.add(0, &flow.up(0, 0, Flags::SYN, 0, Options::default()));
    let (_, packet) = &mut capture.packets[0];
    // A hop-by-hop header of 8 bytes in front of TCP.
    packet[6] = 0;
    let length = u16::from_be_bytes([packet[4], packet[5]]) + 8;
    packet[4..6].copy_from_slice(&length.to_be_bytes());
    packet.splice(40..40, [6, 0, 1, 4, 0, 0, 0, 0]);
    let trace = capture.trace();
    assert_eq!(only_connection(&trace).subflows[0].local, "[2001:db8::1]:40000");
}

#[test]
fn a_file_that_ends_in_a_packet_is_read_up_to_there() {
    let file = two_subflow_capture().file(RAW);
    let cut = &file[..file.len() - 10];
    let trace = trace::read(cut, None).unwrap();
    assert!(trace.truncated);
    assert_eq!(trace.frames, 11);
    assert!(trace.warnings().iter().any(|warning| warning.text.contains("ends in the middle")));
    assert!(trace::read(&b"GIF89a, no capture"[..], None).is_err());
    assert!(trace::read(&[][..], None).is_err());
}

#[test]
fn a_trace_is_a_result_that_can_be_stored_and_read() {
    let trace = two_subflow_capture().trace();
    let run = trace.run("two.pcap", 5);
    let text = run.lines().collect::<Vec<_>>().join("\n") + "\n";
    let reread = towpath_result::store::read_run(text.as_bytes()).unwrap();
    assert_eq!(reread.records, run.records);
    assert_eq!(reread.skipped, 0);
}

#[test]
fn stored_captures_do_no_harm() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/trace");
    let mut inputs = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        trace::fuzz(&std::fs::read(entry.unwrap().path()).unwrap());
        inputs += 1;
    }
    assert!(inputs > 0, "{} is empty", folder.display());
}

/// The fuzz target's corpus must contain whole captures, or it only ever tries headers.
#[test]
fn the_first_stored_captures_are_whole_ones() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/trace");
    let capture = two_subflow_capture();
    let pcapng = Layout { pcapng: true, big: true, snap: 110, ..RAW };
    let ethernet = Layout { link: 1, header: &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0], ..RAW };
    let late = Capture { packets: capture.packets[6..].to_vec() };
    let files = [
        ("pcap", capture.file(RAW)),
        ("pcapng", capture.file(pcapng)),
        ("late", late.file(ethernet)),
    ];
    for (name, expected) in files {
        assert!(
            std::fs::read(folder.join(name)).unwrap() == expected,
            "`{name}` is another capture"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_are_read_without_harm(data in proptest::collection::vec(any::<u8>(), 0..400)) {
        trace::fuzz(&data);
        let mut file = Capture::default().file(RAW);
        file.extend(data);
        trace::fuzz(&file);
    }

    #[test]
    fn damaged_captures_do_no_harm(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        end in any::<prop::sample::Index>(), pcapng: bool, big: bool,
    ) {
        let mut file = two_subflow_capture().file(Layout { big, pcapng, ..RAW });
        for (position, value) in damage {
            let position = position.index(file.len());
            file[position] = value;
        }
        file.truncate(end.index(file.len()) + 1);
        trace::fuzz(&file);
    }

    /// Checks arbitrary sequence numbers in well-formed packets.
    #[test]
    fn hostile_numbers_do_no_harm(
        packets in proptest::collection::vec(
            (any::<(u32, u32, u8, u64, u32, u16, bool)>(), 0..1_500_usize, any::<u32>()), 1..60),
    ) {
        let mut capture = handshake_capture();
        for ((seq, ack, flags, dsn, ssn, len, down), bytes, ms) in packets {
            let mapping = DssMapping { dsn: DataAck::Long(dsn), ssn, len, checksum: None };
            let data_ack = Some(DataAck::Long(dsn.rotate_left(7)));
            let dss = Dss { data_fin: flags & 1 == 1, data_ack, mapping: Some(mapping) };
            let options = Options { dss: Some(dss), ..Options::default() };
            let flow = flow(flags >> 6);
            let at_ns = u64::from(ms) * 1_000_003;
            let segment = if down {
                flow.down(seq, ack, Flags(flags), bytes, options)
            } else {
                flow.up(seq, ack, Flags(flags), bytes, options)
            };
            capture.add(at_ns, &segment);
        }
        trace::fuzz(&capture.file(RAW));
    }
}

/// Captures the same packets at both ends: 10 ms up, 30 ms down, the server's clock 5 s ahead.
#[test]
fn two_captures_bound_the_one_way_delays_to_half_a_round_trip() {
    let (mut client_capture, mut server_capture) = (Capture::default(), Capture::default());
    let clock_offset_ns = 5_000 * MS;
    for number in 0..20_u32 {
        let (sent_ns, seq) = (u64::from(number) * 100 * MS, 1 + number * 10);
        let jitter = u64::from(number % 4) * MS;
        let data = flow(0).up(seq, 1, Flags::ACK, 10, Options::default());
        let ack = flow(0).down(1, seq + 10, Flags::ACK, 0, Options::default());
        client_capture.add(sent_ns, &data);
        server_capture.add(sent_ns + 10 * MS + jitter + clock_offset_ns, &data);
        server_capture.add(sent_ns + 20 * MS + clock_offset_ns, &ack);
        client_capture.add(sent_ns + 50 * MS, &ack);
    }
    let (client_file, server_file) = (client_capture.file(RAW), server_capture.file(RAW));
    let mut trace = trace::read(client_file.as_slice(), None).unwrap();
    let clocks = trace.add_delays(client_file.as_slice(), server_file.as_slice()).unwrap().unwrap();
    assert_eq!(clocks.packets, 40);
    // Asymmetric delays look like an offset: the estimate is 20 ms each.
    assert_eq!(clocks.offset_ns, (clock_offset_ns - 10 * MS).cast_signed());
    assert_eq!(clocks.error_ns, 20 * MS);
    let directions = &only_connection(&trace).subflows[0].directions;
    let [up, down] = [0, 1].map(|direction| directions[direction].one_way.unwrap());
    assert_eq!((up.min_ns, up.max_ns), (20 * MS, 23 * MS));
    assert_eq!((down.min_ns, down.max_ns), (20 * MS, 20 * MS));
    let unmatched =
        trace.add_delays(client_file.as_slice(), Capture::default().file(RAW).as_slice());
    assert_eq!(unmatched.unwrap(), None);
}

#[test]
fn a_handover_is_reported_with_the_overlap_of_the_subflows() {
    let mut capture = handshake_capture();
    let first = flow(0);
    let second = join(&mut capture, 1, 1_030 * MS, keys::token(SERVER_KEY));
    let (dsn, mut data_offset) = (client_dsn(), 0);
    for number in 0..40_u32 {
        let now = (1_100 + 100 * u64::from(number)) * MS;
        if number < 20 {
            let options = map(dsn, data_offset, 1 + number * 100, 100);
            capture.add(now, &first.up(1 + number * 100, 1, Flags::ACK, 100, options));
            data_offset += 100;
        }
        if number >= 15 {
            let ssn = 1 + (number - 15) * 100;
            capture.add(
                now + MS,
                &second.up(ssn, 1, Flags::ACK, 100, map(dsn, data_offset, ssn, 100)),
            );
            data_offset += 100;
        }
    }
    let trace = capture.trace();
    let [handover] = only_connection(&trace).directions[0].handovers.as_slice() else { panic!() };
    assert_eq!((handover.from, handover.to), (0, 1));
    // From 1.5 s + 1 ms to 1.9 s of the loop.
    assert_eq!(handover.overlap_ns, 399 * MS.cast_signed());
}
