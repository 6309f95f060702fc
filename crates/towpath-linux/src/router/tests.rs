use towpath_mptcp::wire::{Ecn, MpCapable, MpJoin, MptcpOption, Options, Packet, Segment};

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

fn bytes(segment: &Segment) -> Vec<u8> {
    Packet::emit(segment, 1).to_vec()
}

/// Parses a packet and checks all of its checksums.
fn parsed(bytes: &[u8]) -> Segment {
    Packet::from_bytes(&bytes.to_vec().into(), false, 0).unwrap().parse().unwrap()
}

fn hop(rules: &[RouterRule]) -> EmulatedRouter {
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
fn a_packet_that_is_forwarded_only_ages() {
    let sent = segment(Flags::SYN, &[capable()], b"");
    let packet = bytes(&sent);
    let (direction, passed) = hop(&[]).forward(true, packet.clone()).unwrap();
    assert_eq!((direction, parsed(&passed)), (ForwardDecision::Forward, sent));
    assert_eq!(passed[8] + 1, packet[8], "time to live");
}

#[test]
fn an_expired_packet_is_quoted_with_all_its_options() {
    let mut packet = bytes(&segment(Flags::SYN, &[capable()], b""));
    packet[8] = 1;
    crate::emulator::headers::update_ipv4_checksum(&mut packet);
    let (direction, answer) = hop(&[]).forward(true, packet.clone()).unwrap();
    assert_eq!(direction, ForwardDecision::Reply);
    assert_eq!((answer[9], answer[20], answer[21]), (1, 11, 0), "ICMP, time exceeded");
    assert_eq!(answer[28..], packet);
    let (from, to) = packet::addresses(&answer).unwrap();
    assert_eq!((from.to_string(), to.to_string()), ("100.64.1.2".into(), "10.1.1.2".into()));
    let mut aged = answer;
    aged[8] = 1;
    assert_eq!(hop(&[]).forward(false, aged), None, "no message about a message");
}

#[test]
fn a_distant_middlebox_quotes_the_option_it_would_strip() {
    let strip =
        [rule(PacketMatch::of(ConnectionPhase::Syn), PacketAction::Strip(MptcpOptionKind::Every))];
    let mut packet = bytes(&segment(Flags::SYN, &[capable()], b""));
    packet[8] = 1;
    crate::emulator::headers::update_ipv4_checksum(&mut packet);
    let (_, answer) = hop(&strip).with_late_rules().forward(true, packet.clone()).unwrap();
    assert_eq!(answer[28..], packet);
    let (_, answer) = hop(&strip).forward(true, packet.clone()).unwrap();
    assert_ne!(answer[28..], packet);
}

#[test]
fn foreign_addresses_from_the_inside_are_not_forwarded() {
    let packet =
        bytes(&Segment { source: "10.1.2.2:1".parse().unwrap(), ..segment(Flags::SYN, &[], b"") });
    assert_eq!(hop(&[]).forward(true, packet.clone()), None);
    assert!(hop(&[]).forward(false, packet).is_some());
}

#[test]
fn only_the_option_that_is_meant_is_stripped() {
    let strip = [rule(
        PacketMatch::of(ConnectionPhase::Syn),
        PacketAction::Strip(MptcpOptionKind::Capable),
    )];
    for (option, left) in [(capable(), 0), (join(), 1)] {
        let sent = bytes(&segment(Flags::SYN, &[option], b""));
        let (_, passed) = hop(&strip).forward(true, sent.clone()).unwrap();
        assert_eq!(parsed(&passed).options.mptcp.len(), left);
        assert_eq!(passed.len(), sent.len());
    }
}

#[test]
fn a_rule_is_for_its_direction_and_packets_only() {
    let drop = RouterRule {
        side: LinkSide::Up,
        packets: PacketMatch::of(ConnectionPhase::Syn).with(MptcpOptionKind::Join),
        treatment: PacketAction::Drop,
    };
    let passes = |up, segment: &Segment| hop(&[drop]).forward(up, bytes(segment)).is_some();
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
            hop(&reset).forward(true, bytes(&segment(flags, &[], payload))).unwrap();
        assert_eq!(direction, ForwardDecision::Reply);
        parsed(&answer)
    };
    let refused = answer(Flags::SYN, b"");
    assert_eq!((refused.flags, refused.ack), (Flags::RST.with(Flags::ACK), 1_001));
    assert_eq!(refused.source.to_string(), SERVER);
    let cut = answer(Flags::ACK, b"data");
    assert_eq!((cut.flags, cut.seq), (Flags::RST, 7));
    assert_eq!(hop(&reset).forward(true, bytes(&segment(Flags::RST, &[], b""))), None);
}

#[test]
fn a_rewritten_packet_has_a_right_checksum() {
    let rewrite =
        [rule(PacketMatch::of(ConnectionPhase::Later).carrying(1), PacketAction::Rewrite)];
    let (_, passed) =
        hop(&rewrite).forward(true, bytes(&segment(Flags::ACK, &[], b"data"))).unwrap();
    assert_eq!(parsed(&passed).payload.to_bytes(), &b"daua"[..]);
}

#[test]
fn oversized_packets_get_an_icmp_error_with_the_mtu() {
    let rules =
        [rule(PacketMatch::of(ConnectionPhase::Later).carrying(3), PacketAction::TooBig(1_300))];
    let sent = bytes(&segment(Flags::ACK, &[], b"data"));
    let (direction, answer) = hop(&rules).forward(true, sent).unwrap();
    assert_eq!(
        (direction, &answer[20..22], &answer[26..28]),
        (ForwardDecision::Reply, &[3, 4][..], &[5, 20][..])
    );
}

#[test]
fn replies_to_a_translated_connection_reach_the_inside_host() {
    let mut hop = hop(&[rule(PacketMatch::ALL, PacketAction::Translate)]);
    let sent = segment(Flags::SYN, &[capable()], b"");
    let (_, outside) = hop.forward(true, bytes(&sent)).unwrap();
    let shown = parsed(&outside).source;
    assert_eq!(shown.ip().to_string(), "100.64.1.2");
    let answer = Segment { source: sent.destination, destination: shown, ..sent.clone() };
    let (_, back) = hop.forward(false, bytes(&answer)).unwrap();
    assert_eq!(parsed(&back).destination, sent.source);
    let unknown = Segment { destination: "100.64.1.2:9".parse().unwrap(), ..answer };
    assert_eq!(hop.forward(false, bytes(&unknown)), None);
}

#[test]
fn a_message_about_a_translated_packet_quotes_what_was_sent() {
    let mut hop = hop(&[rule(PacketMatch::ALL, PacketAction::Translate)]);
    let sent = bytes(&segment(Flags::SYN, &[capable()], b""));
    let (_, outside) = hop.forward(true, sent.clone()).unwrap();
    let router = "198.51.100.1".parse().unwrap();
    let translator = "100.64.1.2".parse().unwrap();
    let head = [11, 0, 0, 0, 0, 0, 0, 0];
    let message = icmp::router_error(router, translator, head, &outside).unwrap().to_vec();
    let (direction, back) = hop.forward(false, message).unwrap();
    assert_eq!(direction, ForwardDecision::Forward);
    assert_eq!(packet::addresses(&back).unwrap().1.to_string(), "10.1.1.2");
    assert_eq!(back[28 + 12..28 + 24], sent[12..24], "addresses and ports as they were sent");
}

#[test]
fn an_expired_nat_entry_needs_a_new_syn() {
    let mut hop = hop(&[rule(PacketMatch::ALL, PacketAction::TranslateFor(800))]);
    let second = |ms| Instant::default() + Duration::from_millis(ms);
    let first = bytes(&segment(Flags::SYN, &[], b""));
    let later = bytes(&segment(Flags::ACK, &[], b"data"));
    assert!(hop.forward(true, first.clone()).is_some());
    hop.set_time(second(700));
    assert!(hop.forward(true, later.clone()).is_some());
    hop.set_time(second(1_600));
    assert!(hop.forward(true, later.clone()).is_none(), "silent for 900 ms");
    assert!(hop.forward(true, first).is_some());
    assert!(hop.forward(true, later).is_some());
}

#[test]
fn a_box_makes_a_backup_a_regular_subflow() {
    let clear = [rule(
        PacketMatch::of(ConnectionPhase::Syn).with(MptcpOptionKind::Join),
        PacketAction::ClearBackup,
    )];
    let syn = MpJoin::Syn { backup: true, address_id: 2, token: 3, nonce: 4 };
    let sent = bytes(&segment(Flags::SYN, &[MptcpOption::Join(syn)], b""));
    let (_, passed) = hop(&clear).forward(true, sent).unwrap();
    assert_eq!(parsed(&passed).options.mptcp, [join()]);
}

proptest::proptest! {
    #[test]
    fn no_packet_makes_a_router_panic(packet: Vec<u8>, up: bool, first in 0_u8..3) {
        let treatments = [
            PacketAction::Strip(MptcpOptionKind::Every),
            PacketAction::Rewrite,
            PacketAction::ClearBackup,
            PacketAction::Translate,
        ];
        let rules = treatments.map(|treatment| rule(PacketMatch::ALL, treatment));
        let mut packet = packet;
        if let Some(byte) = packet.first_mut() {
            *byte = [0x45, 0x60, *byte][usize::from(first)];
        }
        let _ = hop(&rules).forward(up, packet);
}
} // must not panic
