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
struct NumberedPacket {
    number: u64,
    bytes: u32,
    flipped: Option<u32>,
}

impl Packet for NumberedPacket {
    fn len_bytes(&self) -> u32 {
        self.bytes
    }
    fn corrupt(&mut self, random: u32) {
        self.flipped = Some(random);
    }
}

#[derive(Debug, Clone)]
enum Operation {
    Push { after_nanos: u64, bytes: u32 },
    Up { after_nanos: u64, up: bool },
    Shaper { after_nanos: u64, shaper: Shaper },
    Delay { after_nanos: u64, delay: Delay },
    Loss { after_nanos: u64, loss: Loss },
}

impl Operation {
    fn after_nanos(&self) -> u64 {
        match self {
            Self::Push { after_nanos, .. }
            | Self::Up { after_nanos, .. }
            | Self::Shaper { after_nanos, .. }
            | Self::Delay { after_nanos, .. }
            | Self::Loss { after_nanos, .. } => *after_nanos,
        }
    }
}

type Departure = (Instant, NumberedPacket);

/// Times at which the caller fetches packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fetch {
    /// At every time that `next_due` returns.
    WhenDue,
    /// Only after all operations.
    AtTheEnd,
}

const END: Instant = Instant::from_nanos(u64::MAX / 2);

fn apply(direction: &mut Direction<NumberedPacket>, now: Instant, number: u64, op: &Operation) {
    match op {
        Operation::Push { bytes, .. } => {
            let _ = direction.push(now, NumberedPacket { number, bytes: *bytes, flipped: None });
        }
        Operation::Up { up, .. } => direction.set_up(now, *up),
        Operation::Shaper { shaper, .. } => direction.set_shaper(now, shaper.clone()),
        Operation::Delay { delay, .. } => direction.set_delay(now, *delay),
        Operation::Loss { loss, .. } => direction.set_loss(*loss),
    }
}

fn assert_conserved(direction: &Direction<NumberedPacket>) {
    let counters = direction.counters();
    let entered_packets = counters.offered.packets + counters.duplicated.packets;
    let left_packets = counters.delivered.packets + counters.dropped().packets;
    assert!(left_packets + direction.queue_packets() <= entered_packets, "{counters:?}");
    assert_eq!(entered_packets, left_packets + counters.backlog_packets(), "{counters:?}");
    let entered_bytes = counters.offered.bytes + counters.duplicated.bytes;
    let left_bytes = counters.delivered.bytes + counters.dropped().bytes;
    assert_eq!(entered_bytes, left_bytes + counters.backlog_bytes(), "{counters:?}");
}

/// Runs `ops` and returns all departures; at the end the link is up and drained.
fn run(
    config: &DirectionConfig,
    seed: u64,
    ops: &[Operation],
    fetch: Fetch,
) -> (Vec<Departure>, Direction<NumberedPacket>) {
    let mut direction = Direction::new(config.clone(), seed);
    let (mut now, mut departures) = (0, Vec::new());
    for (number, op) in (0..).zip(ops) {
        now += op.after_nanos();
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
fn fetch_until(
    direction: &mut Direction<NumberedPacket>,
    end: Instant,
    departures: &mut Vec<Departure>,
) {
    while let Some(due) = direction.next_due().filter(|due| *due <= end) {
        while let Some((departure, packet)) = direction.pop(due) {
            // Nothing may have been poppable before it was due.
            assert!(departure >= due, "{departure} was announced for {due}");
            departures.push((departure, packet));
        }
        assert!(direction.next_due().is_none_or(|next| next > due), "stuck at {due}");
    }
}

fn any_rate() -> impl Strategy<Value = Rate> {
    (10_000_u64..10_000_000_000).prop_map(|bps| Rate::from_bps(bps).unwrap())
}

fn any_shaper() -> impl Strategy<Value = Shaper> {
    prop_oneof![
        Just(Shaper::Unlimited),
        any_rate().prop_map(Shaper::Line),
        (any_rate(), 0_u64..40_000)
            .prop_map(|(rate, burst_bytes)| Shaper::TokenBucket { rate, burst_bytes }),
        (any_rate(), 0_u64..40_000, 0_u64..4_000).prop_map(|(rate, burst_bytes, cburst_bytes)| {
            Shaper::Htb { rate, burst_bytes, cburst_bytes }
        }),
        prop::collection::vec(0_u64..40, 1..8).prop_map(|mut opportunities_ms| {
            opportunities_ms.sort_unstable();
            opportunities_ms.push(40);
            Shaper::Trace(Arc::new(LinkTrace { opportunities_ms }))
        }),
    ]
}

fn any_duration(range: std::ops::Range<u64>) -> impl Strategy<Value = Duration> {
    range.prop_map(|tenths| Duration::from_micros(tenths * 100))
}

fn any_delay() -> impl Strategy<Value = Delay> {
    let shape = prop_oneof![
        Just(JitterDistribution::Uniform),
        Just(JitterDistribution::Normal),
        Just(JitterDistribution::Pareto),
        Just(JitterDistribution::ParetoNormal),
    ];
    let jitter = (shape, any_duration(0..500), any::<bool>())
        .prop_map(|(distribution, sd, reorder)| Jitter { distribution, sd, reorder });
    (any_duration(0..1_000), prop::option::of(jitter), prop::option::of(any_rate()))
        .prop_map(|(base, jitter, rate)| Delay { base, jitter, rate })
}

fn any_probability() -> impl Strategy<Value = Probability> {
    prop_oneof![
        Just(Probability::NEVER),
        (0_u32..300_000).prop_map(Probability::from_millionths),
        Just(Probability::ALWAYS),
    ]
}

fn any_loss() -> impl Strategy<Value = Loss> {
    prop_oneof![
        2 => Just(Loss::None),
        1 => any_probability().prop_map(Loss::Random),
        1 => (any_probability(), any_probability(), any_probability(), any_probability()).prop_map(
            |(to_bad, to_good, loss_in_bad, loss_in_good)| Loss::GilbertElliott {
                to_bad, to_good, loss_in_bad, loss_in_good,
            }
        ),
        1 => (any_probability(), 0_u32..5)
            .prop_map(|(start, length_packets)| Loss::Burst { start, length_packets }),
    ]
}

fn any_queue() -> impl Strategy<Value = Queue> {
    let limit = prop_oneof![
        Just(QueueLimit::Unlimited),
        (0_u64..100_000).prop_map(QueueLimit::Bytes),
        (0_u64..50).prop_map(QueueLimit::Packets),
        any_duration(0..1_000).prop_map(QueueLimit::Time),
    ];
    (limit, 0..3, any_duration(0..200), any_duration(0..1_000)).prop_map(
        |(limit, kind, target, interval)| match kind {
            0 => Queue::DropTail(limit),
            1 => Queue::CoDel { target, interval, limit },
            _ => Queue::Pie { target, update: interval, limit },
        },
    )
}

prop_compose! {
    fn any_config()(
        loss in any_loss(),
        duplicate in any_probability(),
        corrupt in any_probability(),
        shaper in any_shaper(),
        queue in any_queue(),
        delay in any_delay(),
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

fn any_operation() -> impl Strategy<Value = Operation> {
    let after_nanos = prop_oneof![Just(0), 0_u64..5_000_000, 0_u64..50_000_000];
    prop_oneof![
        12 => (after_nanos.clone(), 0_u32..9_000).prop_map(|(after_nanos, bytes)| Operation::Push { after_nanos, bytes }),
        1 => (after_nanos.clone(), any::<bool>()).prop_map(|(after_nanos, up)| Operation::Up { after_nanos, up }),
        1 => (after_nanos.clone(), any_shaper()).prop_map(|(after_nanos, shaper)| Operation::Shaper { after_nanos, shaper }),
        1 => (after_nanos.clone(), any_delay()).prop_map(|(after_nanos, delay)| Operation::Delay { after_nanos, delay }),
        1 => (after_nanos, any_loss()).prop_map(|(after_nanos, loss)| Operation::Loss { after_nanos, loss }),
    ]
}

fn any_operations() -> impl Strategy<Value = Vec<Operation>> {
    prop::collection::vec(any_operation(), 0..200)
}

fn can_reorder(config: &DirectionConfig, ops: &[Operation]) -> bool {
    let delays = ops.iter().filter_map(|op| match op {
        Operation::Delay { delay, .. } => Some(delay),
        Operation::Push { .. }
        | Operation::Up { .. }
        | Operation::Shaper { .. }
        | Operation::Loss { .. } => None,
    });
    delays.chain([&config.delay]).any(|delay| delay.jitter.is_some_and(|jitter| jitter.reorder))
}

/// Bytes with overhead that left in any window may not exceed the rate by more than `burst_bytes`.
fn assert_within_rate(departures: &[Departure], rate: Rate, burst_bytes: u64) {
    let mut credit = u128::from(burst_bytes) * 8_000_000_000;
    let max_credit = credit;
    let mut last_departure = Instant::ZERO;
    for (departure, packet) in departures {
        let elapsed_nanos = departure.saturating_since(last_departure).as_nanos();
        credit = max_credit.min(credit + elapsed_nanos * u128::from(rate.as_bps()));
        last_departure = *departure;
        let work = u128::from(packet.bytes + 14) * 8_000_000_000;
        assert!(credit >= work, "too much at {departure}");
        credit -= work;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_packet_is_accounted_for_and_lateness_changes_nothing(
        config in any_config(), seed: u64, ops in any_operations(),
    ) {
        let (departures, direction) = run(&config, seed, &ops, Fetch::WhenDue);
        let (late_departures, late_direction) = run(&config, seed, &ops, Fetch::AtTheEnd);
        prop_assert_eq!(&departures, &late_departures);
        prop_assert_eq!(direction.counters(), late_direction.counters());
        let delivered = direction.counters().delivered;
        prop_assert_eq!(delivered.packets, departures.len() as u64);
        prop_assert_eq!(delivered.bytes, departures.iter().map(|(_, p)| u64::from(p.bytes)).sum::<u64>());
        prop_assert_eq!(direction.counters().backlog_packets(), 0);
        prop_assert!(departures.is_sorted_by_key(|(departure, _)| *departure));
        if !can_reorder(&config, &ops) {
            prop_assert!(departures.is_sorted_by_key(|(_, packet)| packet.number));
        }
    }

    #[test]
    fn announced_queue_space_is_available(config in any_config(), ops in any_operations()) {
        let config = DirectionConfig {
            loss: Loss::None,
            duplicate: Probability::NEVER,
            order: PipelineOrder::ServerThenDelay,
            ..config
        };
        let mut direction = Direction::new(config, 1);
        let mut now = 0;
        for (number, op) in (0..).zip(&ops) {
            now += op.after_nanos();
            let at = Instant::from_nanos(now);
            while direction.pop(at).is_some() {}
            if let Operation::Push { bytes, .. } = op {
                let has_room = direction.has_room(*bytes);
                let packet = NumberedPacket { number, bytes: *bytes, flipped: None };
                match direction.push(at, packet) {
                    EnqueueOutcome::Queued => prop_assert!(has_room),
                    EnqueueOutcome::Dropped(DropReason::QueueFull) => prop_assert!(!has_room),
                    EnqueueOutcome::Dropped(_) => {}
                }
            }
        }
    }

    #[test]
    fn two_runs_with_one_seed_are_equal(config in any_config(), seed: u64, ops in any_operations()) {
        let first = run(&config, seed, &ops, Fetch::WhenDue).0;
        prop_assert_eq!(first, run(&config, seed, &ops, Fetch::WhenDue).0);
    }

    #[test]
    fn the_rate_is_never_exceeded(rate in any_rate(), burst_bytes in 9_014_u64..40_000, ops in any_operations()) {
        let ops: Vec<Operation> = ops.into_iter().filter(|op| matches!(op, Operation::Push { .. })).collect();
        let max_packet_bytes = 9_014;
        for (shaper, allowance) in [
            (Shaper::Line(rate), max_packet_bytes),
            (Shaper::TokenBucket { rate, burst_bytes }, burst_bytes),
            (Shaper::Htb { rate, burst_bytes, cburst_bytes: 1_600 }, 1_600 + max_packet_bytes),
        ] {
            let config = DirectionConfig { shaper, ..DirectionConfig::default() };
            let departures = run(&config, 1, &ops, Fetch::AtTheEnd).0;
            // The kernel rounds the cost of each packet, and tc a bucket's ticks, in our favour.
            let slack = rate.bytes_in(Duration::from_nanos(64 + departures.len() as u64)) + 1;
            assert_within_rate(&departures, rate, allowance + slack);
        }
    }

    #[test]
    fn a_topology_delivers_the_packets_its_directions_pass(
        access in any_config(), shared in any_config(), seed: u64, ops in any_operations(),
    ) {
        let run = |late: bool| {
            let mut topology = Topology::new();
            let hops = [access.clone(), access.clone(), shared.clone()];
            let hops = hops.map(|config| topology.add_direction(config, seed));
            let routes = [0, 1].map(|host| topology.add_route(&[hops[host], hops[2]]).unwrap());
            let (mut now, mut arrivals) = (0, Vec::new());
            for (number, op) in (0..).zip(&ops) {
                now += op.after_nanos();
                let at = Instant::from_nanos(now);
                if !late {
                    while let Some(due) = topology.next_due().filter(|due| *due <= at) {
                        arrivals.extend(topology.pop(due));
                    }
                }
                match op {
                    Operation::Push { bytes, .. } => {
                        let packet = NumberedPacket { number, bytes: *bytes, flipped: None };
                        let _ = topology.push(at, routes[*bytes as usize % 2], packet);
                    }
                    Operation::Up { up, .. } => topology.set_up(at, hops[2], *up),
                    Operation::Shaper { shaper, .. } => topology.set_shaper(at, hops[0], shaper.clone()),
                    Operation::Delay { delay, .. } => topology.set_delay(at, hops[1], *delay),
                    Operation::Loss { loss, .. } => topology.set_loss(at, hops[2], *loss),
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
