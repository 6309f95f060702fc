//! Packets per second through one direction and through a shared bottleneck.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use towpath_net::config::{
    Delay, DirectionConfig, Jitter, JitterDistribution, Queue, QueueLimit, Shaper,
};
use towpath_net::{Direction, Instant, Packet, Rate, Topology, presets};

/// A small packet handle as in the emulator: length and buffer index.
#[derive(Debug, Clone)]
struct PacketHandle {
    bytes: u32,
    _index: u32,
}

impl Packet for PacketHandle {
    fn len_bytes(&self) -> u32 {
        self.bytes
    }
    fn corrupt(&mut self, _random: u32) {}
}

const PACKET: PacketHandle = PacketHandle { bytes: 1_500, _index: 7 };
/// Packets in one iteration.
const BATCH_PACKETS: u64 = 1_000;
/// Time between two packets, which makes nearly 1 Gbit/s.
const GAP_NANOS: u64 = 12_200;

fn gigabit() -> Rate {
    Rate::from_bps(1_000_000_000).unwrap_or_else(|| unreachable!())
}

fn delay() -> Delay {
    Delay { base: Duration::from_millis(1), ..Delay::default() }
}

/// Pushes a batch and takes out what is due after each push.
fn bench_direction(c: &mut Criterion, name: &str, config: DirectionConfig) {
    let mut group = c.benchmark_group("direction");
    group.throughput(Throughput::Elements(BATCH_PACKETS));
    let mut direction = Direction::new(config, 1);
    let mut now_nanos = 0;
    group.bench_function(name, |b| {
        b.iter(|| {
            for _ in 0..BATCH_PACKETS {
                now_nanos += GAP_NANOS;
                let now = Instant::from_nanos(now_nanos);
                let _ = black_box(direction.push(now, PACKET));
                while let Some(packet) = direction.pop(now) {
                    black_box(packet);
                }
            }
        });
    });
    group.finish();
}

fn bench_directions(c: &mut Criterion) {
    let ideal = DirectionConfig { delay: delay(), ..DirectionConfig::default() };
    let line = DirectionConfig { shaper: Shaper::Line(gigabit()), ..ideal };
    let pareto = Jitter {
        distribution: JitterDistribution::Pareto,
        sd: Duration::from_micros(500),
        reorder: true,
    };
    let jitter = Delay { jitter: Some(pareto), ..delay() };
    let codel = Queue::CoDel {
        target: Duration::from_millis(5),
        interval: Duration::from_millis(100),
        limit: QueueLimit::Packets(1_000),
    };
    bench_direction(c, "unlimited", ideal.clone());
    bench_direction(c, "line", line.clone());
    bench_direction(c, "line_codel", DirectionConfig { queue: codel, ..line });
    bench_direction(c, "jitter", DirectionConfig { delay: jitter, ..ideal });
    bench_direction(c, "tbf", presets::tbf(gigabit(), 15_000, Duration::from_millis(50)));
    bench_direction(c, "htb_netem", presets::htb_netem(gigabit(), delay().base, 1_000));
}

fn bench_shared_bottleneck(c: &mut Criterion) {
    let mut group = c.benchmark_group("topology");
    group.throughput(Throughput::Elements(BATCH_PACKETS));
    let mut topology = Topology::new();
    let config = DirectionConfig {
        shaper: Shaper::Line(gigabit()),
        delay: delay(),
        ..DirectionConfig::default()
    };
    let hops: Vec<_> = (0..3).map(|seed| topology.add_direction(config.clone(), seed)).collect();
    let routes: Vec<_> = hops
        .iter()
        .take(2)
        .filter_map(|access| topology.add_route(&[*access, *hops.last()?]).ok())
        .collect();
    let mut now_nanos = 0;
    group.bench_function("two_hops", |b| {
        b.iter(|| {
            for route in routes.iter().cycle().take(BATCH_PACKETS as usize) {
                now_nanos += GAP_NANOS;
                let now = Instant::from_nanos(now_nanos);
                let _ = black_box(topology.push(now, *route, PACKET));
                while let Some(packet) = topology.pop(now) {
                    black_box(packet);
                }
            }
        });
    });
    group.finish();
}

criterion_group!(benches, bench_directions, bench_shared_bottleneck);
criterion_main!(benches);
