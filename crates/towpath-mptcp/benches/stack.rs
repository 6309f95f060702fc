//! Two hosts in one process, with immediate packet delivery: the cost of the stack alone.
//!
//! `cargo bench -p towpath-mptcp --bench stack`

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a bench fails by panicking")]

use std::hint::black_box;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack;
use towpath_mptcp::stack::{InterfaceId, LocalAddress, Stack, StackEvent};
use towpath_net::Instant;
use towpath_wire::ConnectionId;

const TRANSFER_BYTES: u64 = 20_000_000;
const PORT: u16 = 80;

struct StackPair {
    now: Instant,
    stacks: [Stack; 2],
    client: ConnectionId,
    server: Option<ConnectionId>,
    /// Set to deliver MTU-sized packets, cleared to deliver super-segments.
    split: bool,
    /// Bytes that the server has read.
    read_bytes: u64,
}

impl StackPair {
    fn new(paths: u8, split: bool) -> Self {
        let mut stacks = [0, 1]
            .map(|seed| Stack::new(stack::StackConfig { seed, ..stack::StackConfig::default() }));
        let now = Instant::ZERO;
        for (host, stack) in stacks.iter_mut().enumerate() {
            for path in 0..paths {
                let interface = InterfaceId(u32::from(path));
                stack.add_interface(interface, 1_500);
                let address = LocalAddress {
                    address_id: path + 1,
                    address: [10, 0, path, host as u8 + 1].into(),
                    port: None,
                    interface,
                    up: true,
                    subflow: host == 0,
                    signal: false,
                    backup: false,
                    fullmesh: false,
                    laminar: false,
                };
                stack.set_address(now, address);
            }
        }
        let mut config = ConnectionConfig::ideal();
        config.subflow = towpath_mptcp::subflow::SubflowConfig::linux();
        stacks[1].listen(PORT, config.clone()).unwrap();
        let remote = SocketAddr::from(([10, 0, 0, 2], PORT));
        let client = stacks[0].connect(now, None, remote, config).unwrap();
        Self { now, stacks, client, server: None, split, read_bytes: 0 }
    }

    /// Exchanges packets in both directions until none is left; time advances in each round.
    fn exchange(&mut self) {
        self.now += Duration::from_micros(20);
        for host in 0..2 {
            if self.stacks[host].poll_timeout().is_some_and(|(deadline, _)| deadline <= self.now) {
                self.stacks[host].handle_timeout(self.now);
            }
            for _ in 0..64 {
                let Some((interface, packet)) = self.stacks[host].poll_transmit(self.now) else {
                    break;
                };
                if self.split {
                    for packet in packet.split() {
                        self.stacks[1 - host].handle_packet(self.now, interface, packet);
                    }
                } else {
                    self.stacks[1 - host].handle_packet(self.now, interface, packet);
                }
            }
        }
        while let Some(event) = self.stacks[1].poll_event() {
            if let StackEvent::Accepted { connection, .. } = event {
                self.server = Some(connection);
            }
        }
        while self.stacks[0].poll_event().is_some() {}
        if let Some(server) = self.server {
            while let Some(bytes) = self.stacks[1].read(self.now, server) {
                self.read_bytes += black_box(bytes.len()) as u64;
            }
        }
    }

    fn run(&mut self, data: &Bytes) {
        let target = self.read_bytes + TRANSFER_BYTES;
        let mut unwritten = TRANSFER_BYTES;
        while self.read_bytes < target {
            let mut slice = data.slice(..unwritten.min(data.len() as u64) as usize);
            unwritten -= self.stacks[0].write(self.now, self.client, &mut slice) as u64;
            self.exchange();
        }
    }
}

fn bench_transfer(criterion: &mut Criterion) {
    let data = Bytes::from(vec![7; 1 << 20]);
    let mut group = criterion.benchmark_group("stack");
    group.throughput(Throughput::Bytes(TRANSFER_BYTES)).sample_size(10);
    for (paths, split, name) in [
        (1, false, "1 path, super-segments"),
        (2, false, "2 paths, super-segments"),
        (1, true, "1 path, MTU packets"),
        (2, true, "2 paths, MTU packets"),
    ] {
        let mut pair = StackPair::new(paths, split);
        pair.run(&data); // grows the windows
        group.bench_function(name, |bencher| bencher.iter(|| pair.run(&data)));
    }
    group.finish();
}

criterion_group!(benches, bench_transfer);
criterion_main!(benches);
