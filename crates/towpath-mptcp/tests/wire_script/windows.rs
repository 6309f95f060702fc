//! Peer's window, down to one byte (RFC 9293 §3.8.6): a whole host against a peer without silly
//! window avoidance.

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use towpath_mptcp::connection::ConnectionConfig;
use towpath_wire::Options;

use crate::script::*;

/// Returns a configuration with full packets of 1,460 bytes in plain TCP, and window fields in
/// bytes.
fn settings(multipath: bool) -> ConnectionConfig {
    let mut config = ConnectionConfig { multipath, ..config() };
    config.subflow.timestamps = false;
    config.subflow.window_scale = None;
    config
}

/// Opens a connection whose peer has a window of `window` bytes.
fn open_connection(multipath: bool, window: u16) -> Script {
    if multipath {
        let mut script = Script::connected(settings(true));
        script.subflows[0].window = window;
        script.send(0, ACK, script.data_ack(1), b"");
        return script;
    }
    let mut script = Script::client(settings(false));
    let _ = script.expect();
    script.subflows[0].window = window;
    script.send(0, SYN.with(ACK), Options::default(), b"");
    let _ = script.drain();
    script
}

/// Returns the payload lengths of the segments that the host sends now.
fn sent_payload_lengths(script: &mut Script) -> Vec<usize> {
    let segments = script.drain();
    segments.iter().map(|(_, segment)| segment.payload.len()).filter(|bytes| *bytes > 0).collect()
}

#[test]
fn the_last_queued_data_fills_a_window_below_one_packet() {
    let mut script = open_connection(false, 10_000);
    script.write(&[1; 10_000]);
    assert_eq!(
        sent_payload_lengths(&mut script),
        [1_460, 1_460, 1_460, 1_460, 1_460, 1_460, 1_240]
    );
}

#[test]
fn a_leftover_window_takes_the_last_data() {
    let mut script = open_connection(false, 8_760);
    script.write(&[1; 10_000]);
    assert_eq!(sent_payload_lengths(&mut script).len(), 6);
    script.subflows[0].window = 1_240;
    script.send(0, ACK, Options::default(), b"");
    assert_eq!(sent_payload_lengths(&mut script), [1_240]);
}

#[test]
fn a_small_window_is_used_after_a_while_although_more_waits() {
    let mut script = open_connection(false, 10_000);
    script.write(&vec![1; 20_000]);
    assert_eq!(
        sent_payload_lengths(&mut script).len(),
        6,
        "1,240 bytes of the window are no packet"
    );
    script.subflows[0].window = 896;
    script.send(0, ACK, Options::default(), b"");
    script.expect_silence();
    script.wait(millis(2_000));
    assert_eq!(sent_payload_lengths(&mut script).first(), Some(&896), "the override (4)");
}

/// A small segment without acknowledgement is retransmitted, and neither a closed nor a small
/// window ends this.
#[test]
fn a_window_that_stays_small_gets_everything_in_time() {
    for (multipath, window) in [(false, 1_u16), (false, 100), (true, 1), (true, 7)] {
        let mut script = open_connection(multipath, window);
        deliver_all(&mut script, multipath, 3_000, |_| window);
    }
}

/// Any window after any acknowledgement, including closed ones.
#[test]
fn all_data_arrives_with_any_window_and_a_timer_is_always_set() {
    for seed in 0..200 {
        let mut random = Pcg32::seed_from_u64(seed);
        let multipath = seed % 2 == 1;
        let mut script = open_connection(multipath, 3_000);
        let max_window = 1 + random.next_u32() % 4_000;
        deliver_all(&mut script, multipath, 20_000, |round| {
            let closed = round % 3 == 0;
            if closed { 0 } else { u16::try_from(random.next_u32() % (max_window + 1)).unwrap() }
        });
    }
}

/// Delivers all data. The peer acknowledges everything immediately, each time with the next window;
/// a probe opens a closed window.
fn deliver_all(
    script: &mut Script,
    multipath: bool,
    bytes: usize,
    mut window: impl FnMut(u32) -> u16,
) {
    script.write(&vec![7; bytes]);
    let (mut delivered, mut rounds) = (0, 0);
    while delivered < bytes {
        rounds += 1;
        assert!(rounds < 100_000, "{delivered} of {bytes}");
        let segments = script.drain();
        if segments.is_empty() {
            let (deadline, _) =
                script.stack.poll_timeout().expect("data waits, so there is a deadline");
            script.now = script.now.max(deadline);
            script.stack.handle_timeout(script.now);
            continue;
        }
        let new_bytes: usize = segments.iter().map(|(_, segment)| segment.payload.len()).sum();
        delivered += new_bytes;
        script.subflows[0].window = window(rounds).max(u16::from(rounds % 50 == 0));
        let options =
            if multipath { script.data_ack(1 + delivered as u64) } else { Options::default() };
        script.now += millis(1);
        script.send(0, ACK, options, b"");
    }
    assert_eq!(delivered, bytes);
}
