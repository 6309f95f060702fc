//! Arbitrary segments, and replies to those of the server.

use std::net::SocketAddr;

use bytes::Bytes;
use proptest::prelude::*;
use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack::{self, InterfaceId, Stack, SynFloodProtection};
use towpath_wire::keys;
use towpath_wire::{
    Dss, Flags, MpCapable, MpJoin, MpTcpRst, MptcpOption, Packet, Segment, Timestamps,
};

use crate::flood::local_address;
use crate::network::*;
use crate::repetitions::repeat;

const BACKLOG: usize = 3;
const CLIENT_KEY: u64 = 5;

/// Segment to send, and the time to wait before it.
#[derive(Debug, Clone)]
struct SegmentStep {
    source: u8,
    flags: u8,
    /// Sequence and acknowledgement number.
    numbers: (u32, u32),
    /// Index of the option set.
    options: u8,
    /// Flag that the segment follows the last reply to this source, with its numbers; 0 if not.
    follows: u8,
    wait_ms: u64,
    bytes: usize,
}

fn steps() -> impl Strategy<Value = Vec<SegmentStep>> {
    let wait = prop_oneof![4 => 0_u64..5, 1 => 0_u64..70_000];
    let flags = prop_oneof![Just(2_u8), Just(16), Just(16), any::<u8>()];
    let step = (0_u8..6, flags, any::<(u32, u32)>(), any::<u8>(), 0_u8..4, wait, 0_usize..20);
    let step = step.prop_map(|(source, flags, numbers, options, follows, wait_ms, bytes)| {
        SegmentStep { source, flags, numbers, options, follows, wait_ms, bytes }
    });
    prop::collection::vec(step, 1..150)
}

/// Returns MP_CAPABLE, MP_JOIN and options that end connections, as a response to `last_reply`
/// where possible.
fn options(step: &SegmentStep, last_reply: Option<&Segment>, key: Option<u64>) -> Vec<MptcpOption> {
    let Some(MptcpOption::Capable(offer)) = Some(capable_syn()) else { return Vec::new() };
    let nonce = step.numbers.0;
    let peer_nonce = last_reply.and_then(|last_reply| {
        last_reply.options.mptcp.iter().find_map(|option| match option {
            MptcpOption::Join(MpJoin::SynAck { nonce, .. }) => Some(*nonce),
            _ => None,
        })
    });
    match step.options % 7 {
        0 => vec![MptcpOption::Capable(offer)],
        1 | 2 => {
            let capable = MpCapable { sender_key: Some(CLIENT_KEY), receiver_key: key, ..offer };
            vec![MptcpOption::Capable(capable)]
        }
        3 => {
            let token = key.map_or(nonce, keys::token);
            vec![MptcpOption::Join(MpJoin::Syn { backup: false, address_id: 1, token, nonce: 7 })]
        }
        4 => {
            let hmac = keys::join_hmac(CLIENT_KEY, key.unwrap_or(0), 7, peer_nonce.unwrap_or(0));
            vec![MptcpOption::Join(MpJoin::Ack { hmac: *hmac.first_chunk().unwrap() })]
        }
        5 => vec![
            MptcpOption::FastClose { key: key.unwrap_or(1) },
            MptcpOption::Reset(MpTcpRst { transient: true, reason: 2, reserved: 0 }),
        ],
        _ => Vec::new(),
    }
}

fn build_segment(step: &SegmentStep, last_reply: Option<&Segment>, key: Option<u64>) -> Segment {
    let source =
        SocketAddr::from(([198, 51, 100, step.source % 3], 4_000 + u16::from(step.source)));
    let mut built = segment(source, Flags(step.flags), step.numbers.0, step.numbers.1);
    if let Some(last_reply) = last_reply.filter(|_| step.follows > 0) {
        (built.seq, built.ack) = (last_reply.ack, last_reply.seq.wrapping_add(1));
    }
    built.options.mptcp = options(step, last_reply, key);
    let echo = last_reply
        .and_then(|reply| reply.options.timestamps)
        .map_or(0, |timestamps| timestamps.value);
    if step.options & 8 == 0 {
        built.options.timestamps = Some(Timestamps { value: step.numbers.0, echo });
    }
    built.options.mss = (step.options & 16 == 0).then_some(step.numbers.1 as u16);
    built.options.window_scale = (step.options & 32 == 0).then_some(step.options % 20);
    if step.options & 64 == 0 && built.options.mptcp.is_empty() {
        built.options.dss = Some(Dss::default());
    }
    built.payload = Bytes::from(vec![1; step.bytes]).into();
    built
}

/// Feeds the steps to a server and waits. Returns the half-open connections and joins that remain.
fn remaining_after(steps: &[SegmentStep], backlog: usize) -> (usize, usize) {
    let config = stack::StackConfig {
        syn_backlog: backlog,
        time_wait_limit: 2,
        ..stack::StackConfig::default()
    };
    let mut server = Stack::with_syn_flood_protection(config, &SynFloodProtection::new([3; 16]));
    server.add_interface(InterfaceId(1), 1_500);
    server.set_address(at_ms(0), local_address(server_address()));
    server.listen(PORT, ConnectionConfig::linux()).unwrap();
    let mut now = at_ms(1);
    let mut last_replies: Vec<Option<Segment>> = vec![None; 6];
    let mut key = None;
    for step in steps {
        now += std::time::Duration::from_millis(step.wait_ms);
        server.handle_timeout(now);
        let segment = build_segment(step, last_replies[usize::from(step.source)].as_ref(), key);
        server.handle_packet(now, InterfaceId(1), Packet::emit(&segment, 0));
        while let Some((_, packet)) = server.poll_transmit(now) {
            for reply in packet.split().map(|packet| packet.parse().unwrap()) {
                key = capable_of(&reply).and_then(|option| option.sender_key).or(key);
                let source = reply.destination.port().wrapping_sub(4_000);
                last_replies[usize::from(source)] = Some(reply);
            }
        }
        let cookies = server.counters().cookies_accepted as usize;
        assert!(server.half_open_connections() <= backlog + cookies);
        assert!(server.half_open_joins(now) <= 8 * 3);
        while let Some(event) = server.poll_event() {
            if let stack::StackEvent::Closed { connection, .. } = event {
                server.release(now, connection);
            }
        }
    }
    let end = now + std::time::Duration::from_secs(130);
    while let Some(deadline) = server.next_deadline().filter(|deadline| *deadline <= end) {
        now = now.max(deadline);
        server.handle_timeout(now);
        while server.poll_transmit(now).is_some() {}
    }
    (server.half_open_connections(), server.half_open_joins(end))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(repeat([100, 500, 20_000])))]
    #[test]
    fn arbitrary_packets_cause_no_panic_and_leave_no_state(steps in steps(), backlog in 0..=BACKLOG) {
        prop_assert_eq!(remaining_after(&steps, backlog), (0, 0));
    }
}

/// Regression: a subflow joined a connection whose own handshake never ended, so it was half-open
/// permanently.
#[test]
fn regression_a_half_open_connection_accepts_no_join() {
    let step = |source, flags, number, options, follows| SegmentStep {
        source,
        flags,
        numbers: (number, 0),
        options,
        follows,
        wait_ms: 0,
        bytes: 0,
    };
    let steps = [
        step(0, 2, 0, 0, 0),
        step(0, 16, 0, 0, 1),
        step(2, 2, 1_804_298_474, 35, 0),
        step(2, 16, 0, 36, 1),
        step(3, 2, 0, 36, 0),
        step(5, 2, 0, 94, 0),
        step(5, 16, 0, 207, 1),
        step(0, 2, 0, 0, 0),
        step(0, 2, 0, 0, 0),
    ];
    assert_eq!(remaining_after(&steps, 1), (0, 0));
}
