//! Arbitrary segments, and replies to those of the server.

use std::net::SocketAddr;

use bytes::Bytes;
use proptest::prelude::*;
use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::keys;
use towpath_mptcp::stack::{self, InterfaceId, Stack, SynFloodProtection};
use towpath_mptcp::wire::{
    Dss, Flags, MpCapable, MpJoin, MpTcpRst, MptcpOption, Packet, Segment, Timestamps,
};

use crate::flood::address;
use crate::network::*;
use crate::repetitions::repeat;

const BACKLOG: usize = 3;
const KEY: u64 = 5;

#[derive(Debug, Clone)]
struct Step {
    source: u8,
    flags: u8,
    numbers: (u32, u32),
    /// Index of the option set.
    options: u8,
    /// Parts of the last reply to this source that the step follows: numbers, options, both.
    follows: u8,
    wait_ms: u64,
    bytes: usize,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let wait = prop_oneof![4 => 0_u64..5, 1 => 0_u64..70_000];
    let flags = prop_oneof![Just(2_u8), Just(16), Just(16), any::<u8>()];
    let step = (0_u8..6, flags, any::<(u32, u32)>(), any::<u8>(), 0_u8..4, wait, 0_usize..20);
    let step = step.prop_map(|(source, flags, numbers, options, follows, wait_ms, bytes)| Step {
        source,
        flags,
        numbers,
        options,
        follows,
        wait_ms,
        bytes,
    });
    prop::collection::vec(step, 1..150)
}

/// Returns MP_CAPABLE, MP_JOIN and options that end connections, as a reply to `last` where
/// possible.
fn options(step: &Step, last: Option<&Segment>, key: Option<u64>) -> Vec<MptcpOption> {
    let Some(MptcpOption::Capable(offer)) = Some(offer()) else { return Vec::new() };
    let nonce = step.numbers.0;
    let joined = last.and_then(|last| {
        last.options.mptcp.iter().find_map(|option| match option {
            MptcpOption::Join(MpJoin::SynAck { nonce, .. }) => Some(*nonce),
            _ => None,
        })
    });
    match step.options % 7 {
        0 => vec![MptcpOption::Capable(offer)],
        1 | 2 => {
            let both = MpCapable { sender_key: Some(KEY), receiver_key: key, ..offer };
            vec![MptcpOption::Capable(both)]
        }
        3 => {
            let token = key.map_or(nonce, keys::token);
            vec![MptcpOption::Join(MpJoin::Syn { backup: false, address_id: 1, token, nonce: 7 })]
        }
        4 => {
            let hmac = keys::join_hmac(KEY, key.unwrap_or(0), 7, joined.unwrap_or(0));
            vec![MptcpOption::Join(MpJoin::Ack { hmac: *hmac.first_chunk().unwrap() })]
        }
        5 => vec![
            MptcpOption::FastClose { key: key.unwrap_or(1) },
            MptcpOption::Reset(MpTcpRst { transient: true, reason: 2, reserved: 0 }),
        ],
        _ => Vec::new(),
    }
}

fn made(step: &Step, last: Option<&Segment>, key: Option<u64>) -> Segment {
    let source =
        SocketAddr::from(([198, 51, 100, step.source % 3], 4_000 + u16::from(step.source)));
    let mut made = segment(source, Flags(step.flags), step.numbers.0, step.numbers.1);
    if let Some(last) = last.filter(|_| step.follows > 0) {
        (made.seq, made.ack) = (last.ack, last.seq.wrapping_add(1));
    }
    made.options.mptcp = options(step, last, key);
    let echo = last.and_then(|last| last.options.timestamps).map_or(0, |stamps| stamps.value);
    if step.options & 8 == 0 {
        made.options.timestamps = Some(Timestamps { value: step.numbers.0, echo });
    }
    made.options.mss = (step.options & 16 == 0).then_some(step.numbers.1 as u16);
    made.options.window_scale = (step.options & 32 == 0).then_some(step.options % 20);
    if step.options & 64 == 0 && made.options.mptcp.is_empty() {
        made.options.dss = Some(Dss::default());
    }
    made.payload = Bytes::from(vec![1; step.bytes]).into();
    made
}

/// Feeds the steps to a server and waits. Returns the half-open connections and joins that are
/// left.
fn remaining_after(steps: &[Step], backlog: usize) -> (usize, usize) {
    let config = stack::StackConfig {
        syn_backlog: backlog,
        time_wait_limit: 2,
        ..stack::StackConfig::default()
    };
    let mut server = Stack::with_syn_flood_protection(config, &SynFloodProtection::new([3; 16]));
    server.add_interface(InterfaceId(1), 1_500);
    server.set_address(at(0), address(server_address()));
    server.listen(PORT, ConnectionConfig::linux()).unwrap();
    let mut now = at(1);
    let mut answers: Vec<Option<Segment>> = vec![None; 6];
    let mut key = None;
    for step in steps {
        now += std::time::Duration::from_millis(step.wait_ms);
        server.handle_timeout(now);
        let made = made(step, answers[usize::from(step.source)].as_ref(), key);
        server.handle_packet(now, InterfaceId(1), Packet::emit(&made, 0));
        while let Some((_, packet)) = server.poll_transmit(now) {
            for sent in packet.split().map(|packet| packet.parse().unwrap()) {
                key = capable(&sent).and_then(|option| option.sender_key).or(key);
                let source = sent.destination.port().wrapping_sub(4_000);
                answers[usize::from(source)] = Some(sent);
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
    let over = now + std::time::Duration::from_secs(130);
    while let Some(next) = server.next_deadline().filter(|next| *next <= over) {
        now = now.max(next);
        server.handle_timeout(now);
        while server.poll_transmit(now).is_some() {}
    }
    (server.half_open_connections(), server.half_open_joins(over))
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
    let step = |source, flags, number, options, follows| Step {
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
