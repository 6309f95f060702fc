use std::net::SocketAddr;

use towpath_wire::{Ecn, MpCapable, MpJoin, MptcpOption, Options, Packet, Segment};

use super::*;

const CLIENT: &str = "10.1.1.2:4000";
const SERVER: &str = "198.51.100.2:80";

fn segment(flags: Flags, mptcp: &[MptcpOption], payload: &'static [u8]) -> Segment {
    Segment {
        source: CLIENT.parse().unwrap(),
        destination: SERVER.parse().unwrap(),
        seq: 1_000,
        ack: if flags.contains(Flags::ACK) { 7 } else { 0 },
        flags,
        window: 100,
        ecn: Ecn::NotCapable,
        options: Options { mptcp: mptcp.to_vec(), ..Options::default() },
        payload: bytes::Bytes::from_static(payload).into(),
        segment_bytes: 0,
    }
}

fn packet_bytes(segment: &Segment) -> Vec<u8> {
    Packet::emit(segment, 1).to_vec()
}

/// Parses a packet and checks all of its checksums.
fn parse_checked(bytes: &[u8]) -> Segment {
    Packet::from_bytes(&bytes.to_vec().into(), false, 0).unwrap().parse().unwrap()
}

fn router(rules: &[RouterRule]) -> EmulatedRouter {
    let inside = "10.1.1.0/24".parse().unwrap();
    EmulatedRouter::new(Ipv4Addr::new(100, 64, 1, 2), Ipv6Addr::LOCALHOST, vec![inside], rules)
}

fn capable() -> MptcpOption {
    MptcpOption::Capable(MpCapable {
        version: 1,
        checksum: false,
        extensibility: false,
        no_join_to_source: false,
        hmac_sha256: true,
        sender_key: None,
        receiver_key: None,
        data: None,
    })
}

fn join() -> MptcpOption {
    MptcpOption::Join(MpJoin::Syn { backup: false, address_id: 2, token: 3, nonce: 4 })
}

fn rule(packets: PacketMatch, treatment: PacketAction) -> RouterRule {
    RouterRule { side: LinkSide::Both, packets, treatment }
}

#[test]
fn forwarding_changes_only_the_time_to_live() {
    let sent = segment(Flags::SYN, &[capable()], b"");
    let packet = packet_bytes(&sent);
    let (direction, forwarded) = router(&[]).forward(true, packet.clone()).unwrap();
    assert_eq!((direction, parse_checked(&forwarded)), (ForwardDecision::Forward, sent));
    assert_eq!(forwarded[8] + 1, packet[8], "time to live");
}

#[test]
fn an_expired_packet_is_quoted_with_all_its_options() {
    let mut packet = packet_bytes(&segment(Flags::SYN, &[capable()], b""));
    packet[8] = 1;
    towpath_sockets::headers::update_ipv4_checksum(&mut packet);
    let (direction, answer) = router(&[]).forward(true, packet.clone()).unwrap();
    assert_eq!(direction, ForwardDecision::Reply);
    assert_eq!((answer[9], answer[20], answer[21]), (1, 11, 0), "ICMP, time exceeded");
    assert_eq!(answer[28..], packet);
    let (source, destination) = packet::addresses(&answer).unwrap();
    assert_eq!(
        (source.to_string(), destination.to_string()),
        ("100.64.1.2".into(), "10.1.1.2".into())
    );
    let mut aged = answer;
    aged[8] = 1;
    assert_eq!(router(&[]).forward(false, aged), None, "no message about a message");
}

#[test]
fn a_distant_middlebox_quotes_the_option_it_would_strip() {
    let strip =
        [rule(PacketMatch::of(ConnectionPhase::Syn), PacketAction::Strip(MptcpOptionKind::Every))];
    let mut packet = packet_bytes(&segment(Flags::SYN, &[capable()], b""));
    packet[8] = 1;
    towpath_sockets::headers::update_ipv4_checksum(&mut packet);
    let (_, answer) = router(&strip).with_late_rules().forward(true, packet.clone()).unwrap();
    assert_eq!(answer[28..], packet);
    let (_, answer) = router(&strip).forward(true, packet.clone()).unwrap();
    assert_ne!(answer[28..], packet);
}

#[test]
fn foreign_addresses_from_the_inside_are_not_forwarded() {
    let packet = packet_bytes(&Segment {
        source: "10.1.2.2:1".parse().unwrap(),
        ..segment(Flags::SYN, &[], b"")
    });
    assert_eq!(router(&[]).forward(true, packet.clone()), None);
    assert!(router(&[]).forward(false, packet).is_some());
}

#[test]
fn strip_removes_only_the_selected_option() {
    let strip = [rule(
        PacketMatch::of(ConnectionPhase::Syn),
        PacketAction::Strip(MptcpOptionKind::Capable),
    )];
    for (option, remaining) in [(capable(), 0), (join(), 1)] {
        let sent = packet_bytes(&segment(Flags::SYN, &[option], b""));
        let (_, forwarded) = router(&strip).forward(true, sent.clone()).unwrap();
        assert_eq!(parse_checked(&forwarded).options.mptcp.len(), remaining);
        assert_eq!(forwarded.len(), sent.len());
    }
}

#[test]
fn a_rule_is_for_its_direction_and_packets_only() {
    let drop = RouterRule {
        side: LinkSide::Up,
        packets: PacketMatch::of(ConnectionPhase::Syn).with(MptcpOptionKind::Join),
        treatment: PacketAction::Drop,
    };
    let passes =
        |up, segment: &Segment| router(&[drop]).forward(up, packet_bytes(segment)).is_some();
    assert!(!passes(true, &segment(Flags::SYN, &[join()], b"")));
    assert!(passes(false, &segment(Flags::SYN, &[join()], b"")));
    assert!(passes(true, &segment(Flags::SYN, &[capable()], b"")));
    assert!(passes(true, &segment(Flags::SYN.with(Flags::ACK), &[], b"")));
}

#[test]
fn an_injected_reset_is_acceptable_to_the_sender() {
    let reset = [rule(PacketMatch::of(ConnectionPhase::Tcp), PacketAction::Reset)];
    let answer = |flags, payload| {
        let (direction, answer) =
            router(&reset).forward(true, packet_bytes(&segment(flags, &[], payload))).unwrap();
        assert_eq!(direction, ForwardDecision::Reply);
        parse_checked(&answer)
    };
    let reply_to_syn = answer(Flags::SYN, b"");
    assert_eq!((reply_to_syn.flags, reply_to_syn.ack), (Flags::RST.with(Flags::ACK), 1_001));
    assert_eq!(reply_to_syn.source.to_string(), SERVER);
    let reply_to_data = answer(Flags::ACK, b"data");
    assert_eq!((reply_to_data.flags, reply_to_data.seq), (Flags::RST, 7));
    assert_eq!(router(&reset).forward(true, packet_bytes(&segment(Flags::RST, &[], b""))), None);
}

#[test]
fn a_rewritten_packet_has_a_right_checksum() {
    let rewrite =
        [rule(PacketMatch::of(ConnectionPhase::Later).carrying(1), PacketAction::Rewrite)];
    let (_, forwarded) =
        router(&rewrite).forward(true, packet_bytes(&segment(Flags::ACK, &[], b"data"))).unwrap();
    assert_eq!(parse_checked(&forwarded).payload.to_bytes(), &b"daua"[..]);
}

#[test]
fn oversized_packets_get_an_icmp_error_with_the_mtu() {
    let rules =
        [rule(PacketMatch::of(ConnectionPhase::Later).carrying(3), PacketAction::TooBig(1_300))];
    let sent = packet_bytes(&segment(Flags::ACK, &[], b"data"));
    let (direction, answer) = router(&rules).forward(true, sent).unwrap();
    assert_eq!(
        (direction, &answer[20..22], &answer[26..28]),
        (ForwardDecision::Reply, &[3, 4][..], &[5, 20][..])
    );
}

#[test]
fn replies_to_a_translated_connection_reach_the_inside_host() {
    let mut router = router(&[rule(PacketMatch::ALL, PacketAction::Translate)]);
    let sent = segment(Flags::SYN, &[capable()], b"");
    let (_, outside) = router.forward(true, packet_bytes(&sent)).unwrap();
    let outside_address = parse_checked(&outside).source;
    assert_eq!(outside_address.ip().to_string(), "100.64.1.2");
    let answer = Segment { source: sent.destination, destination: outside_address, ..sent.clone() };
    let (_, translated) = router.forward(false, packet_bytes(&answer)).unwrap();
    assert_eq!(parse_checked(&translated).destination, sent.source);
    let unknown = Segment { destination: "100.64.1.2:9".parse().unwrap(), ..answer };
    assert_eq!(router.forward(false, packet_bytes(&unknown)), None);
}

#[test]
fn a_message_about_a_translated_packet_quotes_what_was_sent() {
    let mut router = router(&[rule(PacketMatch::ALL, PacketAction::Translate)]);
    let sent = packet_bytes(&segment(Flags::SYN, &[capable()], b""));
    let (_, outside) = router.forward(true, sent.clone()).unwrap();
    let distant_router = "198.51.100.1".parse().unwrap();
    let translator = "100.64.1.2".parse().unwrap();
    let head = [11, 0, 0, 0, 0, 0, 0, 0];
    let message = icmp::router_error(distant_router, translator, head, &outside).unwrap().to_vec();
    let (direction, translated) = router.forward(false, message).unwrap();
    assert_eq!(direction, ForwardDecision::Forward);
    assert_eq!(packet::addresses(&translated).unwrap().1.to_string(), "10.1.1.2");
    assert_eq!(translated[28 + 12..28 + 24], sent[12..24], "addresses and ports as they were sent");
}

#[test]
fn an_expired_nat_entry_needs_a_new_syn() {
    let mut router = router(&[rule(PacketMatch::ALL, PacketAction::TranslateFor(800))]);
    let at_ms = |ms| Instant::default() + Duration::from_millis(ms);
    let syn = packet_bytes(&segment(Flags::SYN, &[], b""));
    let data = packet_bytes(&segment(Flags::ACK, &[], b"data"));
    assert!(router.forward(true, syn.clone()).is_some());
    router.set_time(at_ms(700));
    assert!(router.forward(true, data.clone()).is_some());
    router.set_time(at_ms(1_600));
    assert!(router.forward(true, data.clone()).is_none(), "silent for 900 ms");
    assert!(router.forward(true, syn).is_some());
    assert!(router.forward(true, data).is_some());
}

#[test]
fn clear_backup_makes_a_backup_a_regular_subflow() {
    let clear = [rule(
        PacketMatch::of(ConnectionPhase::Syn).with(MptcpOptionKind::Join),
        PacketAction::ClearBackup,
    )];
    let syn = MpJoin::Syn { backup: true, address_id: 2, token: 3, nonce: 4 };
    let sent = packet_bytes(&segment(Flags::SYN, &[MptcpOption::Join(syn)], b""));
    let (_, forwarded) = router(&clear).forward(true, sent).unwrap();
    assert_eq!(parse_checked(&forwarded).options.mptcp, [join()]);
}

proptest::proptest! {
    #[test]
    fn no_packet_makes_a_router_panic(packet: Vec<u8>, up: bool, version in 0_u8..3) {
        let treatments = [
            PacketAction::Strip(MptcpOptionKind::Every),
            PacketAction::Rewrite,
            PacketAction::ClearBackup,
            PacketAction::Translate,
        ];
        let rules = treatments.map(|treatment| rule(PacketMatch::ALL, treatment));
        let mut packet = packet;
        if let Some(byte) = packet.first_mut() {
            *byte = [0x45, 0x60, *byte][usize::from(version)];
        }
        let _ = router(&rules).forward(up, packet); // must not panic
    }
}

#[test]
fn a_rule_for_one_port_leaves_other_ports_alone() {
    let sent = segment(Flags::SYN, &[capable()], b"");
    let mptcp_options = |port| {
        let packets = PacketMatch::of(ConnectionPhase::Tcp).on_port(port);
        let rules = [rule(packets, PacketAction::Strip(MptcpOptionKind::Every))];
        let (_, forwarded) = router(&rules).forward(true, packet_bytes(&sent)).unwrap();
        parse_checked(&forwarded).options.mptcp.len()
    };
    // The server's port, the client's, and another one.
    assert_eq!([80, 4_000, 443].map(mptcp_options), [0, 0, 1]);
}

#[test]
fn the_servers_addresses_are_mapped_in_both_directions_and_in_quotes() {
    let (public, private) = (Ipv4Addr::new(198, 51, 100, 2), Ipv4Addr::new(172, 20, 1, 2));
    let map = [rule(PacketMatch::ALL, PacketAction::MapServer { public, private })];
    let sent = segment(Flags::SYN, &[capable()], b"");
    let (_, forwarded) = router(&map).forward(true, packet_bytes(&sent)).unwrap();
    let inside = parse_checked(&forwarded);
    assert_eq!(inside.destination, SocketAddr::from((private, 80)));
    let answer = Segment {
        source: inside.destination,
        destination: inside.source,
        ..segment(Flags::SYN.with(Flags::ACK), &[], b"")
    };
    let (_, returned) = router(&map).forward(false, packet_bytes(&answer)).unwrap();
    assert_eq!(parse_checked(&returned).source, sent.destination);
    // A router behind the translation quotes the private address.
    let quote = router(&[]).icmp_error(&forwarded, packet::TIME_EXCEEDED).unwrap();
    let (_, quote) = router(&map).forward(false, quote).unwrap();
    let (_, quoted_destination) = packet::addresses(&quote[28..]).unwrap();
    assert_eq!(quoted_destination, IpAddr::from(public));
    let direct = Segment { destination: inside.destination, ..sent };
    assert_eq!(router(&map).forward(true, packet_bytes(&direct)), None, "not routed outside");
}
