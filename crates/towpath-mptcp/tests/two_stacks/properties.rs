//! Properties that hold on any network: no spurious retransmissions, and bounded memory for waiting
//! data. Packets of any size fill a link, and a second path does no harm.

use std::time::Duration;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use towpath_mptcp::connection::ConnectionConfig;

use crate::network::{PathDirection, TestNetwork, pattern};
use crate::repetitions::repeat;

const MBIT: u64 = 1_000_000;

fn config(multipath: bool, congestion_control: &str) -> ConnectionConfig {
    let mut config = ConnectionConfig { multipath, ..ConnectionConfig::linux_6_18() };
    congestion_control.clone_into(&mut config.subflow.congestion_control);
    config
}

/// Returns both directions of a path without random loss; its queue may still be full.
fn path(rate: u64, delay: Duration, queue: Duration) -> [PathDirection; 2] {
    [PathDirection { delay, byte_nanos: 8_000_000_000 / rate, queue, ..PathDirection::default() };
        2]
}

fn millis(count: u32) -> Duration {
    Duration::from_millis(count.into())
}

/// Returns a generator that depends only on the property and the round.
fn draws(property: u64, round: u64) -> Pcg32 {
    Pcg32::seed_from_u64(property << 32 | round)
}

/// Returns a number of this range, both ends included.
fn draw(random: &mut Pcg32, from: u32, to: u32) -> u32 {
    from + random.next_u32() % (to - from + 1)
}

/// Sends `bytes` in one direction and returns the time until the last byte.
fn time(world: &mut TestNetwork, bytes: usize, what: &str) -> Duration {
    world.deliver([bytes, 0], Duration::from_secs(600), what);
    world.ended_at[1].saturating_since(towpath_net::Instant::ZERO)
}

/// Each retransmission follows a drop, or a duplicate that imitated one. Reordering by jitter costs
/// at most a hundredth of the packets, until its extent is known.
#[test]
fn only_lost_data_is_retransmitted() {
    for round in 0..repeat([4, 16, 200]) {
        let mut random = draws(1, round);
        let multipath = round % 2 == 0;
        let control = if round % 4 < 2 { "cubic" } else { "reno" };
        let rate = u64::from(draw(&mut random, 2, 40)) * MBIT;
        let delay = draw(&mut random, 2, 60);
        let mut line = path(rate, millis(delay), millis(draw(&mut random, 50, 400)));
        let jitter = millis(draw(&mut random, 0, delay.min(6)));
        let duplication = if round % 3 == 0 { draw(&mut random, 0, 20) } else { 0 };
        for direction in &mut line {
            (direction.jitter, direction.duplication) = (jitter, duplication);
        }
        let configs = [config(multipath, control), config(multipath, control)];
        let paths = if multipath { 2 } else { 1 };
        let mut world = TestNetwork::new(round, vec![line; paths], configs);
        let what = format!("{round}: {control}, {rate} bit/s, {delay} ms, jitter {jitter:?}");
        time(&mut world, 4_000_000, &what);
        let repeated: u64 =
            world.status(0).subflows.iter().map(|flow| flow.tcp.retransmissions).sum();
        let explained = 2 * (world.dropped + world.duplicated) + world.packets / 100;
        assert!(repeated <= explained, "{what}: {repeated}, {explained} explained");
    }
}

/// Neither out-of-order data nor unacknowledged data grows beyond its buffer.
#[test]
fn queued_data_takes_bounded_memory() {
    for round in 0..repeat([4, 12, 150]) {
        let mut random = draws(2, round);
        let buffer = u64::from(draw(&mut random, 10, 400)) * 1_000;
        let settings = || {
            let mut settings = config(round % 4 > 0, "cubic");
            settings.receive_buffer.max_bytes = buffer;
            settings.send_buffer_bytes = buffer;
            settings.send_buffer_grows = false;
            settings
        };
        let lines = (0..2).map(|_| {
            let rate = u64::from(draw(&mut random, 1, 50)) * MBIT;
            let mut line = path(rate, millis(draw(&mut random, 1, 150)), millis(100));
            line[0].loss = draw(&mut random, 0, 20);
            line
        });
        let mut world = TestNetwork::new(round, lines.collect(), [settings(), settings()]);
        world.ends[0].send(pattern(2_000_000, 1));
        world.ends[1].finish();
        let mut most = 0;
        world.run(Duration::from_secs(600), |world| {
            if world.packets % 64 == 0 && world.ends[0].closed.is_none() {
                let status = world.status(0);
                most = most.max(status.written_bytes - status.acked_bytes);
            }
            world.finished()
        });
        assert!(world.finished(), "{round}: {:?}", world.status(0));
        let waited = world.status(1).reorder_peak_bytes;
        assert!(most <= buffer, "{round}: {most} of {buffer} bytes at the sender");
        // The advertised window is rounded to the unit of its field, on every subflow.
        let promised = buffer + 2 * 1_024;
        assert!(waited <= promised, "{round}: {waited} of {promised} bytes at the receiver");
    }
}

/// Returns the share of the rate that the packets of the second half take, headers included.
/// Measured until the best moment of the last tenth. Data behind a gap arrived earlier than it
/// counts. The loss of the very last packet costs a timeout (a probe for a single packet waits as
/// long).
fn share(multipath: bool, control: &str, mtu: u32, line: [PathDirection; 2], bytes: usize) -> f64 {
    let configs = [config(multipath, control), config(multipath, control)];
    let mut world = TestNetwork::with_mtus(false, 1, vec![line], &[mtu], configs);
    let sent = [pattern(bytes, 1), pattern(0, 2)];
    world.ends[0].send(sent[0].clone());
    world.ends[1].finish();
    // Time when half had arrived, and each time after nine tenths.
    let (mut half, mut ends) = (None, Vec::new());
    world.run(Duration::from_secs(600), |world| {
        let now = (world.now, world.ends[1].received.len());
        if half.is_none() && now.1 >= bytes / 2 {
            half = Some(now);
        }
        if now.1 >= bytes / 10 * 9 && ends.last().is_none_or(|(_, received)| *received < now.1) {
            ends.push(now);
        }
        world.finished()
    });
    world.check(&sent, &format!("{control}, MTU {mtu}, Multipath TCP: {multipath}, {line:?}"));
    let (since, before) = half.unwrap();
    let payload = f64::from(world.status(0).subflows[0].tcp.mss_bytes);
    let shares = ends.into_iter().map(|(until, received)| {
        let wire_bytes = (received - before) as f64 * f64::from(mtu) / payload;
        let took = until.saturating_since(since).as_secs_f64();
        wire_bytes * line[0].byte_nanos as f64 / 1e9 / took
    });
    shares.fold(0.0, f64::max).min(1.0)
}

/// With the rate as the limit and slow start over, goodput follows from the headers of a packet.
/// Corrected for them it is the same, within 3 %, for any MTU.
#[test]
fn packets_of_any_size_fill_a_link() {
    const MTUS: [u32; 7] = [576, 1_280, 1_500, 2_304, 4_000, 8_900, 9_000];
    for round in 0..repeat([2, 4, 40]) {
        let mut random = draws(3, round);
        let multipath = round % 2 == 0;
        let control = ["cubic", "reno"][usize::from(round % 4 > 1)];
        let rate = u64::from(draw(&mut random, 5, 40)) * MBIT;
        let delay = draw(&mut random, 2, 25);
        // At least ten packets of the largest kind, and the product of rate and delay.
        let largest = (90_000 * 8_000 / rate) as u32;
        let line = path(rate, millis(delay), millis(largest.max(2 * delay)));
        let bytes = (rate / 8 * 2) as usize;
        let shares = MTUS.map(|mtu| share(multipath, control, mtu, line, bytes));
        let best = shares.iter().copied().fold(0.0, f64::max);
        let worst = shares.iter().copied().fold(f64::MAX, f64::min);
        assert!(worst >= 0.97 * best, "{round}: {control}, {multipath}, {line:?}: {shares:.3?}");
        assert!(worst >= 0.95, "{round}: {control}, {multipath}, {line:?}: {shares:.3?}");
    }
}

#[test]
fn a_second_path_of_equal_quality_does_no_harm() {
    for round in 0..repeat([3, 12, 150]) {
        let mut random = draws(4, round);
        let control = ["cubic", "reno", "lia"][(round % 3) as usize];
        let rate = u64::from(draw(&mut random, 2, 50)) * MBIT;
        let line = path(rate, millis(draw(&mut random, 2, 80)), millis(draw(&mut random, 40, 300)));
        let [one, two] = [1, 2].map(|paths| {
            // Nagle's rule, as in Linux, costs time at the end of a transfer: round 119 takes 3.8
            // instead of 3.0 s when the last small packet waits for another one.
            let mut config = config(true, control);
            config.subflow.nagle = false;
            let configs = [config.clone(), config];
            let mut world = TestNetwork::new(round, vec![line; paths], configs);
            time(&mut world, 5_000_000, &format!("{round}: {paths} of {line:?}"))
        });
        assert!(two <= one.mul_f64(1.05), "{round}: {control}, {rate}: {two:?} after {one:?}");
    }
}
