//! The link model against the kernel's and Mahimahi's rules, and against netem as measured.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failing test should panic")]

use std::sync::Arc;
use std::time::Duration;

use towpath_net::config::{
    Delay, DirectionConfig, Jitter, JitterDistribution, LinkTrace, Loss, Probability, Queue,
    QueueLimit, Shaper, WhenDown,
};
use towpath_net::{Direction, DropReason, EnqueueOutcome, Instant, Link, Packet, Rate, presets};

/// Number and length in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NumberedPacket(usize, u32);

impl Packet for NumberedPacket {
    fn len_bytes(&self) -> u32 {
        self.1
    }
    fn corrupt(&mut self, _random: u32) {}
}

fn at_micros(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1_000)
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn mbit(mbit: u64) -> Rate {
    Rate::from_bps(mbit * 1_000_000).unwrap()
}

fn drain(
    direction: &mut Direction<NumberedPacket>,
    until: Instant,
) -> Vec<(Instant, NumberedPacket)> {
    std::iter::from_fn(|| direction.pop(until)).collect()
}

/// Departure times in microseconds of `packets` of 1,500 bytes, all offered at 0.
fn burst_departures(config: DirectionConfig, packets: usize) -> Vec<u64> {
    let mut direction = Direction::new(config, 1);
    for number in 0..packets {
        let _ = direction.push(Instant::ZERO, NumberedPacket(number, 1_500));
    }
    drain(&mut direction, Instant::MAX).iter().map(|(at, _)| at.as_nanos() / 1_000).collect()
}

fn accepted_packets(config: DirectionConfig, packets: usize) -> usize {
    let mut direction = Direction::new(config, 1);
    let outcomes =
        (0..packets).map(|number| direction.push(Instant::ZERO, NumberedPacket(number, 1_500)));
    outcomes.filter(|outcome| *outcome == EnqueueOutcome::Queued).count()
}

/// Returns delay metrics of 10,000 packets at `pps`, as a mean over ten seeds. The metrics are p10,
/// p50, p90, p99 and standard deviation in µs, and the number of reordered packets.
fn delay_metrics(delay: Delay, pps: u64) -> [f64; 6] {
    let runs = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10].map(|seed| delay_metrics_of_run(delay, pps, seed));
    std::array::from_fn(|index| runs.iter().map(|run| run[index]).sum::<f64>() / 10.0)
}

fn delay_metrics_of_run(delay: Delay, pps: u64, seed: u64) -> [f64; 6] {
    let config = DirectionConfig { delay, ..DirectionConfig::default() };
    let mut direction = Direction::new(config, seed);
    let sent_at = |number: usize| Instant::from_nanos(number as u64 * 1_000_000_000 / pps);
    for number in 0..10_000 {
        let _ = direction.push(sent_at(number), NumberedPacket(number, 1_000));
    }
    let arrivals = drain(&mut direction, Instant::MAX);
    let (mut latest, mut reordered) = (0, 0.0);
    for (_, NumberedPacket(number, _)) in &arrivals {
        reordered += f64::from(u8::from(*number < latest));
        latest = latest.max(*number);
    }
    let packet_delay = |(arrival, NumberedPacket(number, _)): &(Instant, NumberedPacket)| {
        arrival.saturating_since(sent_at(*number)).as_nanos() as f64 / 1e3
    };
    let mut delays_us: Vec<f64> = arrivals.iter().map(packet_delay).collect();
    delays_us.sort_by(f64::total_cmp);
    let mean = delays_us.iter().sum::<f64>() / delays_us.len() as f64;
    let variance =
        delays_us.iter().map(|d| (d - mean) * (d - mean)).sum::<f64>() / delays_us.len() as f64;
    let percentile = |percent: usize| delays_us[delays_us.len() * percent / 100];
    [percentile(10), percentile(50), percentile(90), percentile(99), variance.sqrt(), reordered]
}

fn jitter(distribution: JitterDistribution, base_us: u64, sd_us: u64) -> Delay {
    let sd = Duration::from_micros(sd_us);
    Delay {
        base: Duration::from_micros(base_us),
        jitter: Some(Jitter { distribution, sd, reorder: true }),
        rate: None,
    }
}

fn assert_near(measured: &[f64], expected: &[f64], tolerance: f64) {
    for (measured, expected) in measured.iter().zip(expected) {
        assert!(
            (measured - expected).abs() <= tolerance * expected,
            "{measured} instead of {expected}"
        );
    }
}

#[test]
fn pareto_delays_and_reordering_match_netem_as_measured() {
    let metrics = delay_metrics(jitter(JitterDistribution::Pareto, 75_000, 37_500), 167);
    assert_near(&metrics, &[51_819.0, 63_089.0, 107_432.0, 225_004.0, 30_502.0, 4_555.0], 0.015);
    let metrics = delay_metrics(jitter(JitterDistribution::Pareto, 75_000, 7_500), 167);
    assert_near(&metrics[..4], &[70_386.0, 72_667.0, 81_764.0, 105_008.0], 0.005);
    assert_near(&metrics[5..], &[1_544.0], 0.04);
    let metrics = delay_metrics(jitter(JitterDistribution::Pareto, 10_000, 2_500), 667);
    assert_near(&metrics[..4], &[8_454.0, 9_187.0, 12_224.0, 20_008.0], 0.01);
    assert_near(&metrics[5..], &[1_981.0], 0.04);
}

#[test]
fn the_other_distributions_have_the_spread_of_their_tables() {
    // Normal as measured from netem; Pareto-normal's table has 0.834 of its nominal spread; a
    // uniform one of half width s has s/√3.
    for (distribution, sd) in [
        (JitterDistribution::Normal, 7_476.0),
        (JitterDistribution::ParetoNormal, 7_500.0 * 0.834),
        (JitterDistribution::Uniform, 7_500.0 / 3.0_f64.sqrt()),
    ] {
        let metrics = delay_metrics(jitter(distribution, 75_000, 7_500), 167);
        assert_near(&metrics[4..5], &[sd], 0.02);
    }
}

#[test]
fn a_rate_inside_netem_keeps_the_order_in_spite_of_jitter() {
    let delay = Delay { rate: Some(mbit(2)), ..jitter(JitterDistribution::Pareto, 75_000, 37_500) };
    assert_near(&delay_metrics(delay, 167)[5..], &[0.0], 0.0);
}

#[test]
fn jitter_keeps_the_order_unless_reordering_is_enabled() {
    let mut delay = jitter(JitterDistribution::Pareto, 75_000, 37_500);
    delay.jitter = delay.jitter.map(|jitter| Jitter { reorder: false, ..jitter });
    assert_near(&delay_metrics(delay, 167)[5..], &[0.0], 0.0);
}

#[test]
fn an_idle_token_bucket_passes_its_burst_at_once() {
    // 15,000 bytes are nine packets of 1,514 bytes; the tenth waits for its missing 140 bytes,
    // each 1 µs at 8 Mbit/s.
    let config = presets::tbf(mbit(8), 15_000, ms(100));
    let times = burst_departures(config.clone(), 12);
    assert_eq!(times, [0, 0, 0, 0, 0, 0, 0, 0, 0, 140, 1_654, 3_168]);
    // Without the Ethernet header it is ten.
    let times = burst_departures(DirectionConfig { overhead_bytes: 0, ..config }, 11);
    assert_eq!(times, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1_500]);
}

#[test]
fn tbf_queues_rate_times_latency_plus_burst() {
    // 8 Mbit/s for 100 ms and 15,000 bytes are 115,000 bytes: 75 packets wait, nine have left.
    let config = presets::tbf(mbit(8), 15_000, ms(100));
    assert_eq!(accepted_packets(config.clone(), 200), 75 + 9);
    let mut direction = Direction::new(config, 1);
    let outcome = direction.push(Instant::ZERO, NumberedPacket(0, 15_000));
    assert_eq!(outcome, EnqueueOutcome::Dropped(DropReason::Mtu), "larger than the bucket");
}

#[test]
fn htb_sends_until_the_smaller_bucket_is_in_debt() {
    // cburst 1,600: after one packet 86 bytes are left, which suffices for a second one. Then
    // 1,428 bytes are owed, at 1 µs each, and each further packet owes its own time.
    let times = burst_departures(presets::htb_netem(mbit(8), Duration::ZERO, 1_000), 5);
    assert_eq!(times, [0, 0, 1_428, 2_942, 4_456]);
}

#[test]
fn netem_counts_delayed_and_waiting_packets_against_one_limit() {
    assert_eq!(accepted_packets(presets::netem(ms(10), None, Loss::None, 1_000), 2_000), 1_000);
    assert_eq!(accepted_packets(presets::mininet(mbit(8), ms(10), None, false), 2_000), 1_000);
    assert_eq!(accepted_packets(presets::mininet(mbit(8), ms(10), Some(50), true), 2_000), 50);
    // Without delay, packets that leave at once are not counted: two through HTB's buckets.
    assert_eq!(accepted_packets(presets::htb_netem(mbit(8), Duration::ZERO, 50), 2_000), 52);
}

#[test]
fn the_limit_of_netem_does_not_count_packets_that_have_left_and_were_not_fetched() {
    let mut direction = Direction::new(presets::netem(ms(10), None, Loss::None, 2), 1);
    let mut push = |time_us| direction.push(at_micros(time_us), NumberedPacket(0, 100));
    let outcomes = [push(0), push(1), push(2), push(10_000), push(10_000)];
    let dropped = EnqueueOutcome::Dropped(DropReason::QueueFull);
    assert_eq!(
        outcomes,
        [EnqueueOutcome::Queued, EnqueueOutcome::Queued, dropped, EnqueueOutcome::Queued, dropped]
    );
}

#[test]
fn a_saturated_link_carries_exactly_its_rate() {
    for (bps, bytes) in [(100_000_000, 1_486), (99_999_989, 1_500), (3_333_333, 60)] {
        let config = DirectionConfig {
            shaper: Shaper::Line(Rate::from_bps(bps).unwrap()),
            queue: Queue::DropTail(QueueLimit::Packets(1_000)),
            ..DirectionConfig::default()
        };
        let mut direction = Direction::new(config, 1);
        let mut delivered = 0;
        let end = Instant::from_nanos(10_000_000_000);
        let mut now = Instant::ZERO;
        while now <= end {
            while direction.has_room(bytes) {
                let _ = direction.push(now, NumberedPacket(0, bytes));
            }
            now = direction.next_due().unwrap();
            while direction.pop(now.min(end)).is_some() {
                delivered += 1;
            }
        }
        let expected = bps * 10 / (u64::from(bytes + 14) * 8);
        assert_eq!(delivered, expected, "{bps} bit/s");
    }
}

#[test]
fn a_change_of_rate_replans_the_packet_being_sent() {
    let config = DirectionConfig {
        shaper: Shaper::Line(mbit(8)),
        overhead_bytes: 0,
        ..DirectionConfig::default()
    };
    let mut direction = Direction::new(config, 1);
    let _ = direction.push(Instant::ZERO, NumberedPacket(0, 1_000));
    let _ = direction.push(Instant::ZERO, NumberedPacket(1, 1_000));
    // A quarter is sent; the rest takes twice as long.
    direction.set_shaper(at_micros(250), Shaper::Line(mbit(4)));
    assert_eq!(direction.next_due(), Some(at_micros(1_750)));
    let times: Vec<_> = drain(&mut direction, Instant::MAX).into_iter().map(|d| d.0).collect();
    assert_eq!(times, [at_micros(1_750), at_micros(3_750)]);
}

#[test]
fn a_change_of_rate_keeps_the_bytes_a_token_bucket_has_saved() {
    let mut direction = Direction::new(presets::tbf(mbit(8), 15_000, ms(100)), 1);
    for number in 0..9 {
        let _ = direction.push(Instant::ZERO, NumberedPacket(number, 1_500));
    }
    // 1,374 bytes are left; at half the rate the missing 140 take 280 µs.
    let slower = Shaper::TokenBucket { rate: mbit(4), burst_bytes: 15_000 };
    direction.set_shaper(Instant::ZERO, slower);
    let _ = direction.push(Instant::ZERO, NumberedPacket(9, 1_500));
    assert_eq!(drain(&mut direction, Instant::MAX).last().unwrap().0, at_micros(280));
}

#[test]
fn a_link_that_goes_down_with_drop_keeps_only_arrived_packets() {
    let config = DirectionConfig {
        shaper: Shaper::Line(mbit(8)),
        overhead_bytes: 0,
        delay: Delay { base: ms(10), ..Delay::default() },
        ..DirectionConfig::default()
    };
    let mut link: Link<NumberedPacket> = Link::new(config.clone(), config, 1);
    for number in 0..20 {
        let _ = link.forward.push(Instant::ZERO, NumberedPacket(number, 1_000));
    }
    // Sent at 1, 2, 3 … ms and 10 ms on the wire: three have arrived, unfetched.
    link.set_up(at_micros(13_000), false);
    assert!(!link.is_up());
    let outcome = link.backward.push(at_micros(14_000), NumberedPacket(0, 1_000));
    assert_eq!(outcome, EnqueueOutcome::Dropped(DropReason::Down));
    link.set_up(at_micros(15_000), true);
    assert_eq!(drain(&mut link.forward, Instant::MAX).len(), 3);
    assert_eq!(link.forward.counters().down.packets, 17);
    assert_eq!(link.next_due(), None);
}

#[test]
fn a_link_that_goes_down_with_hold_resumes_where_it_stopped() {
    let config = DirectionConfig {
        shaper: Shaper::Line(mbit(8)),
        overhead_bytes: 0,
        delay: Delay { base: ms(10), ..Delay::default() },
        when_down: WhenDown::Hold,
        ..DirectionConfig::default()
    };
    let mut direction = Direction::new(config, 1);
    for number in 0..2 {
        let _ = direction.push(Instant::ZERO, NumberedPacket(number, 1_000));
    }
    direction.set_up(at_micros(1_400), false);
    let _ = direction.push(at_micros(5_000), NumberedPacket(2, 1_000));
    direction.set_up(at_micros(20_000), true);
    let times: Vec<_> = drain(&mut direction, Instant::MAX).into_iter().map(|d| d.0).collect();
    assert_eq!(times, [at_micros(11_000), at_micros(30_600), at_micros(31_600)]);
}

fn trace(text: &str) -> Arc<LinkTrace> {
    Arc::new(LinkTrace::parse(text).unwrap())
}

#[test]
fn a_trace_sends_at_its_opportunities_and_repeats() {
    let queue = Queue::DropTail(QueueLimit::Unlimited);
    let config = presets::mahimahi(trace("2\n2\n5\n10"), ms(1), queue);
    let times = burst_departures(config, 7);
    assert_eq!(times, [3_000, 3_000, 6_000, 11_000, 13_000, 13_000, 16_000]);
}

#[test]
fn small_packets_share_an_opportunity_and_large_ones_take_several() {
    let queue = Queue::DropTail(QueueLimit::Unlimited);
    let config = presets::mahimahi(trace("1\n2\n3\n4"), Duration::ZERO, queue);
    let mut direction = Direction::new(config, 1);
    // With the TUN header 1,000, 1,000, 2,504 and 1,504 bytes.
    for (number, bytes) in [996, 996, 2_500, 1_500].into_iter().enumerate() {
        let _ = direction.push(Instant::ZERO, NumberedPacket(number, bytes));
    }
    let times: Vec<_> = drain(&mut direction, Instant::MAX).into_iter().map(|d| d.0).collect();
    assert_eq!(times, [at_micros(1_000), at_micros(2_000), at_micros(3_000), at_micros(4_000)]);
}

#[test]
fn an_opportunity_without_a_packet_is_lost() {
    let queue = Queue::DropTail(QueueLimit::Unlimited);
    let config = presets::mahimahi(trace("1\n2\n2\n10"), Duration::ZERO, queue);
    let mut direction = Direction::new(config, 1);
    let mut push = |time_us| {
        let _ = direction.push(at_micros(time_us), NumberedPacket(0, 100));
    };
    // At 2 ms sharp the opportunities of 2 ms are over.
    push(2_000);
    push(12_500);
    let times: Vec<_> = drain(&mut direction, Instant::MAX).into_iter().map(|d| d.0).collect();
    assert_eq!(times, [at_micros(10_000), at_micros(20_000)]);
}

#[test]
fn a_trace_that_cannot_be_repeated_blocks_instead_of_failing() {
    for opportunities_ms in [vec![], vec![0]] {
        let trace = Arc::new(LinkTrace { opportunities_ms });
        let queue = Queue::DropTail(QueueLimit::Time(ms(10)));
        assert_eq!(burst_departures(presets::mahimahi(trace, ms(1), queue), 3), [0; 0]);
    }
}

/// Returns the mean queueing delay in ms and the share of drops in the last 20 of 30 s. The link
/// has 10 Mbit/s; an unresponsive source offers `percent` of that.
fn overload_metrics(queue: Queue, percent: u64) -> (f64, f64) {
    let config = DirectionConfig {
        shaper: Shaper::Line(mbit(10)),
        queue,
        overhead_bytes: 0,
        ..DirectionConfig::default()
    };
    let mut direction = Direction::new(config, 7);
    let gap_nanos = 1_200_000 * 100 / percent;
    let sent_at = |number: usize| Instant::from_nanos(number as u64 * gap_nanos);
    let packets = (30_000_000_000 / gap_nanos) as usize;
    let mut delays_ms = Vec::new();
    for number in 0..packets {
        let _ = direction.push(sent_at(number), NumberedPacket(number, 1_500));
        while let Some((arrival, NumberedPacket(number, _))) = direction.pop(sent_at(number)) {
            if number > packets / 3 {
                delays_ms.push(arrival.saturating_since(sent_at(number)).as_secs_f64() * 1e3 - 1.2);
            }
        }
    }
    let counters = direction.counters();
    let mean = delays_ms.iter().sum::<f64>() / delays_ms.len() as f64;
    (mean, counters.aqm.packets as f64 / counters.offered.packets as f64)
}

#[test]
fn codel_and_pie_keep_the_delay_near_their_target_under_overload() {
    let limit = QueueLimit::Packets(1_000);
    let (mean, _) = overload_metrics(Queue::DropTail(limit), 110);
    assert!(mean > 1_000.0, "a plain queue stands: {mean} ms");
    let (mean, drops) =
        overload_metrics(Queue::CoDel { target: ms(5), interval: ms(100), limit }, 110);
    assert!(mean < 50.0, "CoDel: {mean} ms");
    assert!((0.07..0.12).contains(&drops), "CoDel: {drops}");
    let (mean, drops) = overload_metrics(Queue::Pie { target: ms(15), update: ms(15), limit }, 110);
    assert!((5.0..30.0).contains(&mean), "PIE: {mean} ms");
    assert!((0.07..0.12).contains(&drops), "PIE: {drops}");
    for queue in [
        Queue::CoDel { target: ms(5), interval: ms(100), limit },
        Queue::Pie { target: ms(15), update: ms(15), limit },
    ] {
        assert!(overload_metrics(queue, 90).1 < 1e-9, "no drop without overload");
    }
}

#[test]
fn duplication_and_loss_cancel_as_in_netem() {
    let config = DirectionConfig {
        loss: Loss::Random(Probability::ALWAYS),
        duplicate: Probability::ALWAYS,
        ..DirectionConfig::default()
    };
    let mut direction = Direction::new(config, 1);
    assert_eq!(direction.push(Instant::ZERO, NumberedPacket(0, 100)), EnqueueOutcome::Queued);
    assert_eq!(drain(&mut direction, Instant::MAX).len(), 1);
    let counters = direction.counters();
    assert_eq!((counters.duplicated.packets, counters.loss.packets), (1, 1));
}

#[test]
fn switching_one_impairment_on_does_not_shift_the_draws_of_another() {
    let accepted = |config: DirectionConfig| {
        let loss = Loss::Random(Probability::from_millionths(100_000));
        let mut direction = Direction::new(DirectionConfig { loss, ..config }, 1);
        let queued = (0..1_000).map(|number| {
            direction.push(Instant::ZERO, NumberedPacket(number, 100)) == EnqueueOutcome::Queued
        });
        queued.collect::<Vec<bool>>()
    };
    let without_impairments = accepted(DirectionConfig::default());
    let corrupt = Probability::from_millionths(500_000);
    let delay = jitter(JitterDistribution::Normal, 10_000, 1_000);
    assert_eq!(
        without_impairments,
        accepted(DirectionConfig { corrupt, delay, ..DirectionConfig::default() })
    );
}

#[test]
fn a_packet_above_the_mtu_vanishes() {
    let mut direction =
        Direction::new(DirectionConfig { mtu_bytes: 1_400, ..DirectionConfig::default() }, 1);
    let outcome = direction.push(Instant::ZERO, NumberedPacket(0, 1_401));
    assert_eq!(outcome, EnqueueOutcome::Dropped(DropReason::Mtu));
    assert_eq!(direction.push(Instant::ZERO, NumberedPacket(0, 1_400)), EnqueueOutcome::Queued);
}

#[test]
fn absurd_settings_do_not_panic() {
    let slow = Rate::from_bps(1).unwrap();
    let fast = Rate::from_bps(u64::MAX).unwrap();
    let shapers = |rate| {
        [
            Shaper::Unlimited,
            Shaper::Line(rate),
            Shaper::TokenBucket { rate, burst_bytes: u64::MAX },
            Shaper::Htb { rate, burst_bytes: u64::MAX, cburst_bytes: 0 },
            Shaper::Trace(Arc::new(LinkTrace { opportunities_ms: vec![u64::MAX, 3] })),
            Shaper::Trace(Arc::new(LinkTrace { opportunities_ms: vec![0, u64::MAX] })),
        ]
    };
    let limit = QueueLimit::Time(Duration::MAX);
    for shaper in [slow, fast].into_iter().flat_map(shapers) {
        for target in [Duration::ZERO, Duration::MAX] {
            for queue in [
                Queue::DropTail(limit),
                Queue::CoDel { target, interval: target, limit },
                Queue::Pie { target, update: target, limit },
            ] {
                let config = DirectionConfig {
                    shaper: shaper.clone(),
                    queue,
                    delay: Delay { base: target, rate: Some(slow), ..Delay::default() },
                    overhead_bytes: u32::MAX,
                    ..DirectionConfig::default()
                };
                let mut direction = Direction::new(config, 1);
                for at in [0, 1, u64::MAX - 1, u64::MAX, 5] {
                    let at = Instant::from_nanos(at);
                    let _ = direction.push(at, NumberedPacket(0, u32::MAX));
                    let _ = direction.push(at, NumberedPacket(0, 0));
                    direction.set_shaper(at, Shaper::Line(fast));
                    direction.set_shaper(at, shaper.clone());
                    let _ = direction.pop(at);
                }
                drain(&mut direction, Instant::MAX);
            }
        }
    }
}
