use std::time::Duration;

use proptest::prelude::*;
use towpath_scenario::{MessageExchange, Schedule, Web};

use super::*;

fn at_ms(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

fn exchange(direction: DataDirection, count: u32, sizes: (u32, u32, bool)) -> Pattern {
    let (request_bytes, reply_bytes, ack) = sizes;
    let period = Duration::from_millis(100);
    let schedule = Schedule::Every { period, count, request_bytes, reply_bytes, ack };
    Pattern::Exchange(MessageExchange {
        name: "interactive",
        direction,
        schedule,
        warm_up: 0,
        duration: period * count,
        reply_timeout: Duration::from_secs(3),
        phases: None,
    })
}

/// Both ends, and a simulated wire between them.
struct SessionPair {
    ends: [MessageSession; 2],
    closed: Vec<[bool; 2]>,
    /// Bytes in flight, by stream and receiving end.
    wires: Vec<[Vec<u8>; 2]>,
}

impl SessionPair {
    fn new(pattern: &Pattern) -> Self {
        let session = |role| MessageSession::new(pattern, role, at_ms(0)).unwrap();
        let mut ends = [session(FlowRole::Client), session(FlowRole::Server)];
        let count = streams(pattern);
        for stream in 0..count {
            for end in &mut ends {
                end.on_open(at_ms(0), stream);
            }
        }
        let stream_numbers = 0..count;
        Self {
            ends,
            closed: stream_numbers.clone().map(|_| [false; 2]).collect(),
            wires: stream_numbers.map(|_| [Vec::new(), Vec::new()]).collect(),
        }
    }

    /// Lets each end write its pending output, at most `max_bytes` bytes at once.
    fn write(&mut self, now: Instant, max_bytes: usize) {
        for (stream, (wires, closed)) in (0..).zip(self.wires.iter_mut().zip(&mut self.closed)) {
            for side in 0..2 {
                loop {
                    match self.ends[side].poll_output(now, stream) {
                        StreamAction::Write(data) => {
                            let written = data.len().min(max_bytes);
                            wires[1 - side].extend_from_slice(&data[..written]);
                            self.ends[side].on_written(now, stream, written);
                        }
                        StreamAction::Close => closed[side] = true,
                        StreamAction::Nothing => break,
                    }
                }
            }
        }
    }

    /// Delivers the bytes in flight, in pieces of `piece_bytes` bytes.
    fn deliver(&mut self, now: Instant, piece_bytes: usize) {
        for (stream, (wires, closed)) in (0..).zip(self.wires.iter_mut().zip(&self.closed)) {
            for side in 0..2 {
                for bytes in std::mem::take(&mut wires[side]).chunks(piece_bytes) {
                    self.ends[side].on_bytes(now, stream, bytes);
                }
                if closed[1 - side] {
                    self.ends[side].on_end(stream);
                }
            }
        }
    }

    fn messages(&self) -> Vec<Message> {
        messages(0, &self.ends[0], &self.ends[1])
    }

    fn is_closed(&self) -> bool {
        self.closed.iter().flatten().all(|closed| *closed)
    }
}

proptest! {
    #[test]
    fn any_segmentation_delivers_every_message_once(
        direction in prop_oneof![
            Just(DataDirection::Up), Just(DataDirection::Down), Just(DataDirection::Both)
        ],
        count in 1_u32..20,
        sizes in (0_u32..5_000, 9_u32..90_000, any::<bool>()),
        (max_write, piece_bytes) in (1_usize..4_000, 1_usize..4_000),
    ) {
        let mut pair = SessionPair::new(&exchange(direction, count, sizes));
        for step in 0..u64::from(count) * 2 + 6 {
            pair.write(at_ms(step * 50), max_write);
            pair.deliver(at_ms(step * 50 + 20), piece_bytes);
        }
        prop_assert!(pair.is_closed());
        let messages = pair.messages();
        let direction_count = request_directions(&exchange(direction, count, sizes)).len();
        prop_assert_eq!(messages.len(), count as usize * direction_count);
        for message in messages {
            let due_ns = at_ms(u64::from(message.number) * 100).as_nanos();
            prop_assert_eq!(message.due_ns, due_ns);
            prop_assert_eq!(message.sent_ns, Some(due_ns));
            prop_assert_eq!(message.delivered_ns, Some(due_ns + 20_000_000));
            // The reply goes with the next step and takes as long.
            prop_assert_eq!(message.answered_ns, Some(due_ns + 70_000_000));
            prop_assert_eq!(message.replied_ns.is_some(), sizes.2);
        }
    }

    #[test]
    fn garbage_from_the_peer_ends_the_stream_and_never_panics(
        garbage in proptest::collection::vec(any::<u8>(), 1..400)
    ) {
        let mut pair = SessionPair::new(&exchange(DataDirection::Both, 3, (100, 10, true)));
        pair.write(at_ms(0), usize::MAX);
        for stream in 0..2 {
            for end in &mut pair.ends {
                end.on_bytes(at_ms(1), stream, &garbage);
            }
        }
        pair.write(at_ms(5_000), usize::MAX);
        prop_assert!(pair.is_closed());
    }
}

#[test]
fn a_stall_delays_every_request_that_is_due_during_it() {
    let mut pair = SessionPair::new(&exchange(DataDirection::Up, 80, (2_000, 750, true)));
    for step in 0..8_000 {
        pair.write(at_ms(step), usize::MAX);
        // Nothing is delivered for three seconds.
        if !(3_000..6_000).contains(&step) {
            pair.deliver(at_ms(step), usize::MAX);
        }
    }
    let delay_ns = |m: &Message| m.answered_ns.unwrap() - m.due_ns;
    let messages = pair.messages();
    let stats = towpath_result::metrics::messages::delays(messages.iter().map(delay_ns)).unwrap();
    assert!(stats.p90_ns > 2_000_000_000, "{stats:?}");
    let slow_count = messages.iter().filter(|m| delay_ns(m) > 100_000_000).count();
    assert_eq!(slow_count, 30);
}

#[test]
fn requests_without_a_timely_reply_are_abandoned_and_counted() {
    let mut pair = SessionPair::new(&exchange(DataDirection::Up, 2, (100, 10, false)));
    pair.write(at_ms(200), usize::MAX);
    assert_eq!(pair.ends[0].next_due(0), Some(at_ms(3_200)));
    assert_eq!(pair.ends[0].limit(), at_ms(3_200));
    pair.write(at_ms(3_200), usize::MAX);
    assert!(pair.is_closed());
    let messages = pair.messages();
    assert!(messages.len() == 2 && messages.iter().all(|m| m.sent_ns.is_some()));
    assert!(messages.iter().all(|m| m.delivered_ns.is_none() && m.answered_ns.is_none()));
}

#[test]
fn a_page_is_loaded_over_all_its_connections() {
    let web = Web {
        page_bytes: 30_000,
        objects: 10,
        object_bytes: 100_000,
        request_bytes: 400,
        connections: 3,
        duration: Duration::from_secs(30),
    };
    let mut pair = SessionPair::new(&Pattern::Web(web));
    for step in 0..40 {
        pair.write(at_ms(step * 10), 1_000);
        pair.deliver(at_ms(step * 10 + 5), 1_448);
    }
    assert!(pair.is_closed());
    let messages = pair.messages();
    assert_eq!(messages.len(), 11);
    assert!(messages.iter().all(|m| m.answered_ns.is_some()));
    for stream in 0..3 {
        assert!(messages.iter().filter(|m| m.stream == stream).count() >= 3, "{stream}");
    }
}

#[test]
fn an_early_end_skips_later_requests_and_answers_earlier_ones() {
    let pattern = exchange(DataDirection::Both, 50, (100, 50, true));
    let mut pair = SessionPair::new(&pattern);
    let step = Duration::from_millis(50);
    let mut now = at_ms(0);
    while now < at_ms(3_000) && pair.closed.iter().flatten().any(|closed| !closed) {
        if now == at_ms(1_000) {
            for end in &mut pair.ends {
                end.end_at(at_ms(1_120));
            }
        }
        pair.write(now, 1_000);
        pair.deliver(now + step, 1_000);
        now += step;
    }
    // The last request was due at 1.1 s; the session does not wait for the planned end.
    assert!(now < at_ms(1_400), "{now:?}");
    let [client, server] = &pair.ends;
    let messages = messages(0, client, server);
    assert_eq!(messages.len(), 2 * 12);
    assert!(messages.iter().all(|message| message.answered_ns.is_some()));
    assert_eq!(messages.iter().map(|message| message.due_ns).max(), Some(1_100_000_000));
}

#[test]
fn the_peer_ends_a_side_that_missed_an_early_end() {
    let pattern = exchange(DataDirection::Both, 50, (100, 50, false));
    let mut pair = SessionPair::new(&pattern);
    let mut now = at_ms(0);
    while now < at_ms(8_000) && pair.closed.iter().flatten().any(|closed| !closed) {
        if now == at_ms(1_000) {
            pair.ends[0].end_at(now);
        }
        pair.write(now, 1_000);
        pair.deliver(now, 1_000);
        now += Duration::from_millis(50);
    }
    // The reply timeout is three seconds.
    assert!((at_ms(4_000)..at_ms(4_200)).contains(&now), "{now:?}");
}
