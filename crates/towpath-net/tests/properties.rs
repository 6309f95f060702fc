//! Invariants for every configuration and every sequence of calls.
#![expect(clippy::unwrap_used, reason = "a failing test should panic")]

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use towpath_net::config::{
    Delay, DirectionConfig, Jitter, JitterDistribution, LinkTrace, Loss, PipelineOrder,
    Probability, Queue, QueueLimit, QueuePosition, Shaper, WhenDown,
};
use towpath_net::{Direction, DropReason, EnqueueOutcome, Instant, Packet, Rate, Topology};

#[derive(Debug, Clone, PartialEq, Eq)]
struct Numbered {
    number: u64,
    bytes: u32,
    flipped: Option<u32>,
}

impl Packet for Numbered {
    fn len_bytes(&self) -> u32 {
        self.bytes
    }
    fn corrupt(&mut self, random: u32) {
        self.flipped = Some(random);
    }
}

#[derive(Debug, Clone)]
enum Op {
    Push { after: u64, bytes: u32 },
    Up { after: u64, up: bool },
    Shaper { after: u64, shaper: Shaper },
    Delay { after: u64, delay: Delay },
    Loss { after: u64, loss: Loss },
}

impl Op {
    fn after(&self) -> u64 {
        match self {
            Self::Push { after, .. }
            | Self::Up { after, .. }
            | Self::Shaper { after, .. }
            | Self::Delay { after, .. }
            | Self::Loss { after, .. } => *after,
        }
    }
}

type Departure = (Instant, Numbered);

/// Times at which the caller fetches packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fetch {
    /// At every time that `next_due` returns.
    WhenDue,
    /// Only after all operations.
    AtTheEnd,
}

const END: Instant = Instant::from_nanos(u64::MAX / 2);

fn apply(direction: &mut Direction<Numbered>, now: Instant, number: u64, op: &Op) {
    match op {
        Op::Push { bytes, .. } => {
            let _ = direction.push(now, Numbered { number, bytes: *bytes, flipped: None });
        }
        Op::Up { up, .. } => direction.set_up(now, *up),
        Op::Shaper { shaper, .. } => direction.set_shaper(now, shaper.clone()),
        Op::Delay { delay, .. } => direction.set_delay(now, *delay),
        Op::Loss { loss, .. } => direction.set_loss(*loss),
    }
}

fn assert_conserved(direction: &Direction<Numbered>) {
    let counters = direction.counters();
    let entered = counters.offered.packets + counters.duplicated.packets;
    let left = counters.delivered.packets + counters.dropped().packets;
    assert!(left + direction.queue_packets() <= entered, "{counters:?}");
    assert_eq!(entered, left + counters.backlog_packets(), "{counters:?}");
    let entered = counters.offered.bytes + counters.duplicated.bytes;
    let left = counters.delivered.bytes + counters.dropped().bytes;
    assert_eq!(entered, left + counters.backlog_bytes(), "{counters:?}");
}

/// Runs `ops` and returns all departures; at the end the link is up and drained.
fn run(
    config: &DirectionConfig,
    seed: u64,
    ops: &[Op],
    fetch: Fetch,
) -> (Vec<Departure>, Direction<Numbered>) {
    let mut direction = Direction::new(config.clone(), seed);
    let (mut now, mut departures) = (0, Vec::new());
    for (number, op) in (0..).zip(ops) {
        now += op.after();
        let at = Instant::from_nanos(now);
        if fetch == Fetch::WhenDue {
            fetch_until(&mut direction, at, &mut departures);
        }
        apply(&mut direction, at, number, op);
        assert_conserved(&direction);
    }
    direction.set_up(Instant::from_nanos(now), true);
    if fetch == Fetch::WhenDue {
        fetch_until(&mut direction, END, &mut departures);
        assert_eq!(direction.counters().backlog_packets(), 0, "next_due forgot packets");
    }
    while let Some(departure) = direction.pop(END) {
        departures.push(departure);
    }
    assert_conserved(&direction);
    (departures, direction)
}

/// Fetches packets at the times of `next_due` only.
fn fetch_until(direction: &mut Direction<Numbered>, end: Instant, departures: &mut Vec<Departure>) {
    while let Some(due) = direction.next_due().filter(|due| *due <= end) {
        while let Some((departure, packet)) = direction.pop(due) {
            // Nothing may have been poppable before it was due.
            assert!(departure >= due, "{departure} was announced for {due}");
            departures.push((departure, packet));
        }
        assert!(direction.next_due().is_none_or(|next| next > due), "stuck at {due}");
    }
}

fn rate() -> impl Strategy<Value = Rate> {
    (10_000_u64..10_000_000_000).prop_map(|bps| Rate::from_bps(bps).unwrap())
}

fn shaper() -> impl Strategy<Value = Shaper> {
    prop_oneof![
        Just(Shaper::Unlimited),
        rate().prop_map(Shaper::Line),
        (rate(), 0_u64..40_000)
            .prop_map(|(rate, burst_bytes)| Shaper::TokenBucket { rate, burst_bytes }),
        (rate(), 0_u64..40_000, 0_u64..4_000).prop_map(|(rate, burst_bytes, cburst_bytes)| {
            Shaper::Htb { rate, burst_bytes, cburst_bytes }
        }),
        prop::collection::vec(0_u64..40, 1..8).prop_map(|mut opportunities_ms| {
            opportunities_ms.sort_unstable();
            opportunities_ms.push(40);
            Shaper::Trace(Arc::new(LinkTrace { opportunities_ms }))
        }),
    ]
}

fn millis(range: std::ops::Range<u64>) -> impl Strategy<Value = Duration> {
    range.prop_map(|tenths| Duration::from_micros(tenths * 100))
}

fn delay() -> impl Strategy<Value = Delay> {
    let shape = prop_oneof![
        Just(JitterDistribution::Uniform),
        Just(JitterDistribution::Normal),
        Just(JitterDistribution::Pareto),
        Just(JitterDistribution::ParetoNormal),
    ];
    let jitter = (shape, millis(0..500), any::<bool>())
        .prop_map(|(distribution, sd, reorder)| Jitter { distribution, sd, reorder });
    (millis(0..1_000), prop::option::of(jitter), prop::option::of(rate()))
        .prop_map(|(base, jitter, rate)| Delay { base, jitter, rate })
}

fn chance() -> impl Strategy<Value = Probability> {
    prop_oneof![
        Just(Probability::NEVER),
        (0_u32..300_000).prop_map(Probability::from_millionths),
        Just(Probability::ALWAYS),
    ]
}

fn loss() -> impl Strategy<Value = Loss> {
    prop_oneof![
        2 => Just(Loss::None),
        1 => chance().prop_map(Loss::Random),
        1 => (chance(), chance(), chance(), chance()).prop_map(
            |(to_bad, to_good, loss_in_bad, loss_in_good)| Loss::GilbertElliott {
                to_bad, to_good, loss_in_bad, loss_in_good,
            }
        ),
        1 => (chance(), 0_u32..5)
            .prop_map(|(start, length_packets)| Loss::Burst { start, length_packets }),
    ]
}

fn queue() -> impl Strategy<Value = Queue> {
    let limit = prop_oneof![
        Just(QueueLimit::Unlimited),
        (0_u64..100_000).prop_map(QueueLimit::Bytes),
        (0_u64..50).prop_map(QueueLimit::Packets),
        millis(0..1_000).prop_map(QueueLimit::Time),
    ];
    (limit, 0..3, millis(0..200), millis(0..1_000)).prop_map(|(limit, kind, target, interval)| {
        match kind {
            0 => Queue::DropTail(limit),
            1 => Queue::CoDel { target, interval, limit },
            _ => Queue::Pie { target, update: interval, limit },
        }
    })
}

prop_compose! {
    fn config()(
        loss in loss(),
        duplicate in chance(),
        corrupt in chance(),
        shaper in shaper(),
        queue in queue(),
        delay in delay(),
        limit_packets in prop::option::of(0_usize..40),
        mtu_bytes in prop_oneof![Just(u32::MAX), Just(1_000)],
        flags in any::<[bool; 3]>(),
    ) -> DirectionConfig {
        DirectionConfig {
            order: if flags[0] { PipelineOrder::ServerThenDelay } else { PipelineOrder::DelayThenServer },
            position: if flags[1] { QueuePosition::Network } else { QueuePosition::Host },
            when_down: if flags[2] { WhenDown::Drop } else { WhenDown::Hold },
            overhead_bytes: 14,
            loss, duplicate, corrupt, shaper, queue, delay, limit_packets, mtu_bytes,
        }
    }
}

fn op() -> impl Strategy<Value = Op> {
    let after = prop_oneof![Just(0), 0_u64..5_000_000, 0_u64..50_000_000];
    prop_oneof![
        12 => (after.clone(), 0_u32..9_000).prop_map(|(after, bytes)| Op::Push { after, bytes }),
        1 => (after.clone(), any::<bool>()).prop_map(|(after, up)| Op::Up { after, up }),
        1 => (after.clone(), shaper()).prop_map(|(after, shaper)| Op::Shaper { after, shaper }),
        1 => (after.clone(), delay()).prop_map(|(after, delay)| Op::Delay { after, delay }),
        1 => (after, loss()).prop_map(|(after, loss)| Op::Loss { after, loss }),
    ]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(), 0..200)
}

fn can_reorder(config: &DirectionConfig, ops: &[Op]) -> bool {
    let delays = ops.iter().filter_map(|op| match op {
        Op::Delay { delay, .. } => Some(delay),
        Op::Push { .. } | Op::Up { .. } | Op::Shaper { .. } | Op::Loss { .. } => None,
    });
    delays.chain([&config.delay]).any(|delay| delay.jitter.is_some_and(|jitter| jitter.reorder))
}

/// Bytes with overhead that left in any window may not exceed the rate by more than `burst`.
fn assert_rate_kept(departures: &[Departure], rate: Rate, burst: u64) {
    let mut credit = u128::from(burst) * 8_000_000_000;
    let full = credit;
    let mut last = Instant::ZERO;
    for (departure, packet) in departures {
        let gone = departure.saturating_since(last).as_nanos();
        credit = full.min(credit + gone * u128::from(rate.as_bps()));
        last = *departure;
        let work = u128::from(packet.bytes + 14) * 8_000_000_000;
        assert!(credit >= work, "too much at {departure}");
        credit -= work;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_packet_is_accounted_for_and_lateness_changes_nothing(
        config in config(), seed: u64, ops in ops(),
    ) {
        let (prompt, direction) = run(&config, seed, &ops, Fetch::WhenDue);
        let (late, late_direction) = run(&config, seed, &ops, Fetch::AtTheEnd);
        prop_assert_eq!(&prompt, &late);
        prop_assert_eq!(direction.counters(), late_direction.counters());
        let delivered = direction.counters().delivered;
        prop_assert_eq!(delivered.packets, prompt.len() as u64);
        prop_assert_eq!(delivered.bytes, prompt.iter().map(|(_, p)| u64::from(p.bytes)).sum::<u64>());
        prop_assert_eq!(direction.counters().backlog_packets(), 0);
        prop_assert!(prompt.is_sorted_by_key(|(departure, _)| *departure));
        if !can_reorder(&config, &ops) {
            prop_assert!(prompt.is_sorted_by_key(|(_, packet)| packet.number));
        }
    }

    #[test]
    fn announced_queue_space_is_available(config in config(), ops in ops()) {
        let config = DirectionConfig {
            loss: Loss::None,
            duplicate: Probability::NEVER,
            order: PipelineOrder::ServerThenDelay,
            ..config
        };
        let mut direction = Direction::new(config, 1);
        let mut now = 0;
        for (number, op) in (0..).zip(&ops) {
            now += op.after();
            let at = Instant::from_nanos(now);
            while direction.pop(at).is_some() {}
            if let Op::Push { bytes, .. } = op {
                let room = direction.has_room(*bytes);
                let packet = Numbered { number, bytes: *bytes, flipped: None };
                match direction.push(at, packet) {
                    EnqueueOutcome::Queued => prop_assert!(room),
                    EnqueueOutcome::Dropped(DropReason::QueueFull) => prop_assert!(!room),
                    EnqueueOutcome::Dropped(_) => {}
                }
            }
        }
    }

    #[test]
    fn two_runs_with_one_seed_are_equal(config in config(), seed: u64, ops in ops()) {
        let first = run(&config, seed, &ops, Fetch::WhenDue).0;
        prop_assert_eq!(first, run(&config, seed, &ops, Fetch::WhenDue).0);
    }

    #[test]
    fn the_rate_is_never_exceeded(rate in rate(), burst in 9_014_u64..40_000, ops in ops()) {
        let ops: Vec<Op> = ops.into_iter().filter(|op| matches!(op, Op::Push { .. })).collect();
        let largest = 9_014;
        for (shaper, allowance) in [
            (Shaper::Line(rate), largest),
            (Shaper::TokenBucket { rate, burst_bytes: burst }, burst),
            (Shaper::Htb { rate, burst_bytes: burst, cburst_bytes: 1_600 }, 1_600 + largest),
        ] {
            let config = DirectionConfig { shaper, ..DirectionConfig::default() };
            let departures = run(&config, 1, &ops, Fetch::AtTheEnd).0;
            // The kernel rounds the cost of each packet, and tc a bucket's ticks, in our favour.
            let slack = rate.bytes_in(Duration::from_nanos(64 + departures.len() as u64)) + 1;
            assert_rate_kept(&departures, rate, allowance + slack);
        }
    }

    #[test]
    fn a_topology_delivers_the_packets_its_directions_pass(
        access in config(), shared in config(), seed: u64, ops in ops(),
    ) {
        let run = |late: bool| {
            let mut topology = Topology::new();
            let hops = [access.clone(), access.clone(), shared.clone()];
            let hops = hops.map(|config| topology.add_direction(config, seed));
            let routes = [0, 1].map(|host| topology.add_route(&[hops[host], hops[2]]).unwrap());
            let (mut now, mut arrivals) = (0, Vec::new());
            for (number, op) in (0..).zip(&ops) {
                now += op.after();
                let at = Instant::from_nanos(now);
                if !late {
                    while let Some(due) = topology.next_due().filter(|due| *due <= at) {
                        arrivals.extend(topology.pop(due));
                    }
                }
                match op {
                    Op::Push { bytes, .. } => {
                        let packet = Numbered { number, bytes: *bytes, flipped: None };
                        let _ = topology.push(at, routes[*bytes as usize % 2], packet);
                    }
                    Op::Up { up, .. } => topology.set_up(at, hops[2], *up),
                    Op::Shaper { shaper, .. } => topology.set_shaper(at, hops[0], shaper.clone()),
                    Op::Delay { delay, .. } => topology.set_delay(at, hops[1], *delay),
                    Op::Loss { loss, .. } => topology.set_loss(at, hops[2], *loss),
                }
            }
            topology.set_up(Instant::from_nanos(now), hops[2], true);
            while let Some(due) = topology.next_due() {
                arrivals.extend(topology.pop(due));
            }
            let counters = hops.map(|hop| *topology.counters(hop).unwrap());
            (arrivals, counters)
        };
        let (arrivals, counters) = run(false);
        prop_assert!(arrivals.is_sorted_by_key(|(time, _, _)| *time));
        prop_assert_eq!(counters[2].delivered.packets, arrivals.len() as u64);
        prop_assert_eq!(
            counters[2].offered.packets,
            counters[0].delivered.packets + counters[1].delivered.packets
        );
        prop_assert_eq!(run(true), (arrivals, counters));
    }
}
