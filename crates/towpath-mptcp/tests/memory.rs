//! Memory used per connection, with many connections in one pair of stacks.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "the figure is what people want to see")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack;
use towpath_mptcp::stack::{InterfaceId, LocalAddress, Stack, StackEvent, SynFloodProtection};
use towpath_net::Instant;
use towpath_wire::ConnectionId;
use towpath_wire::keys;
use towpath_wire::{Ecn, Flags, MpCapable, MpJoin, MptcpOption, Options, Packet, Payload, Segment};

const CONNECTIONS: usize = 10_000;
/// Maximum memory for one end of an idle connection with one subflow.
const MAX_BYTES: usize = 4 * 1_024;
const WIRE: InterfaceId = InterfaceId(1);
const PORT: u16 = 80;

/// Lock for one test at a time, since memory is measured for the whole process.
static MEMORY_LOCK: Mutex<()> = Mutex::new(());

struct StackPair {
    now: Instant,
    stacks: [Stack; 2],
    accepted: Vec<ConnectionId>,
}

impl StackPair {
    fn new() -> Self {
        let now = Instant::ZERO;
        let stacks = [1, 2].map(|host| {
            let config =
                stack::StackConfig { seed: u64::from(host), ..stack::StackConfig::default() };
            let mut stack = Stack::new(config);
            stack.add_interface(WIRE, 1_500);
            let address = LocalAddress {
                address_id: 1,
                address: [10, 0, 0, host].into(),
                port: None,
                interface: WIRE,
                up: true,
                subflow: true,
                signal: false,
                backup: false,
                fullmesh: false,
                laminar: false,
            };
            stack.set_address(now, address);
            stack
        });
        Self { now, stacks, accepted: Vec::new() }
    }

    /// Exchanges packets immediately until none is left; then time advances.
    fn exchange(&mut self) {
        loop {
            let mut progress = false;
            for host in 0..2 {
                while let Some((interface, packet)) = self.stacks[host].poll_transmit(self.now) {
                    self.stacks[1 - host].handle_packet(self.now, interface, packet);
                    progress = true;
                }
            }
            if !progress {
                break;
            }
        }
        self.now += Duration::from_millis(1);
    }

    fn wait(&mut self, span: Duration) {
        self.now += span;
        for stack in &mut self.stacks {
            stack.handle_timeout(self.now);
        }
        self.exchange();
    }

    fn record_accepted(&mut self) {
        while let Some(event) = self.stacks[1].poll_event() {
            if let StackEvent::Accepted { connection, .. } = event {
                self.accepted.push(connection);
            }
        }
        while self.stacks[0].poll_event().is_some() {}
    }

    fn send(&mut self, host: usize, connection: ConnectionId, text: &str) {
        let mut data = Bytes::copy_from_slice(text.as_bytes());
        assert_eq!(self.stacks[host].write(self.now, connection, &mut data), text.len());
    }

    fn read_all(&mut self, host: usize, connection: ConnectionId) -> Vec<u8> {
        let mut data = Vec::new();
        while let Some(bytes) = self.stacks[host].read(self.now, connection) {
            data.extend_from_slice(&bytes);
        }
        data
    }
}

/// Returns the resident memory of this process in bytes.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1_024
}

#[test]
fn ten_thousand_connections_carry_data_and_take_4_kib_each() {
    let _serial = MEMORY_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let mut pair = StackPair::new();
    pair.stacks[1].listen(PORT, ConnectionConfig::linux()).unwrap();
    let (remote, config) =
        (SocketAddr::from(([10, 0, 0, 2], PORT)), Arc::new(ConnectionConfig::linux()));
    let resident_before = resident_bytes();
    let mut clients = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        clients.push(pair.stacks[0].connect(pair.now, None, remote, Arc::clone(&config)).unwrap());
        pair.exchange();
        pair.record_accepted();
    }
    assert_eq!(pair.accepted.len(), CONNECTIONS);
    for (number, (client, server)) in clients.iter().zip(pair.accepted.clone()).enumerate() {
        pair.send(0, *client, &format!("question {number}"));
        pair.exchange();
        assert_eq!(pair.read_all(1, server), format!("question {number}").into_bytes());
        pair.send(1, server, &format!("answer {number}"));
        pair.exchange();
        assert_eq!(pair.read_all(0, *client), format!("answer {number}").into_bytes());
    }
    pair.wait(Duration::from_secs(1));
    for (host, connections) in [&clients, &pair.accepted.clone()].into_iter().enumerate() {
        for connection in connections {
            let status = pair.stacks[host].status(*connection).unwrap();
            assert!(status.multipath && status.subflows.len() == 1, "{status:?}");
        }
    }
    let bytes_per_end = resident_bytes().saturating_sub(resident_before) / (2 * CONNECTIONS);
    println!("{bytes_per_end} bytes for each end of a connection");
    assert!(bytes_per_end <= MAX_BYTES, "{bytes_per_end} bytes for each end of a connection");
}

#[test]
fn a_connection_that_is_over_leaves_nothing_behind() {
    let _serial = MEMORY_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let mut pair = StackPair::new();
    pair.stacks[1].listen(PORT, ConnectionConfig::linux()).unwrap();
    let remote = SocketAddr::from(([10, 0, 0, 2], PORT));
    let mut resident = Vec::new();
    for _ in 0..6 {
        for _ in 0..5_000 {
            let client =
                pair.stacks[0].connect(pair.now, None, remote, ConnectionConfig::linux()).unwrap();
            pair.exchange();
            pair.record_accepted();
            let server = pair.accepted.pop().unwrap();
            pair.stacks[0].abort(pair.now, client);
            pair.stacks[0].release(pair.now, client);
            pair.exchange();
            pair.stacks[1].release(pair.now, server);
            pair.exchange();
            assert!(pair.stacks[0].status(client).is_none());
            assert!(pair.stacks[1].status(server).is_none());
            pair.record_accepted();
        }
        assert!(pair.stacks.iter().all(Stack::is_idle));
        resident.push(resident_bytes());
    }
    let growth_bytes = resident[5].saturating_sub(resident[0]);
    assert!(growth_bytes <= 64 * 1_024, "25,000 connections later: {growth_bytes} bytes more");
}

/// Maximum memory for floods of handshakes. Includes half a mebibyte for a backlog of 128, less
/// than one for unauthenticated subflows, and memory that the allocator keeps.
const MAX_FLOOD_BYTES: usize = 2 * 1_024 * 1_024;
const FLOOD: u32 = 100_000;

fn forged_syn(number: u32, option: MptcpOption) -> Segment {
    Segment {
        source: SocketAddr::from((Ipv4Addr::from(0x5500_0000 | number), 4_000)),
        destination: ([10, 0, 0, 2], PORT).into(),
        seq: number,
        ack: 0,
        flags: Flags::SYN,
        window: 60_000,
        ecn: Ecn::NotCapable,
        options: Options { mss: Some(1_460), mptcp: vec![option], ..Options::default() },
        payload: Payload::EMPTY,
        segment_bytes: 0,
    }
}

#[test]
fn floods_of_handshakes_take_2_mib_and_no_more() {
    let _serial = MEMORY_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let mut pair = StackPair::new();
    let config = stack::StackConfig::default();
    let mut server = Stack::with_syn_flood_protection(config, &SynFloodProtection::new([7; 16]));
    server.add_interface(WIRE, 1_500);
    let server_address = ([10, 0, 0, 2].into(), WIRE);
    let address = LocalAddress {
        address_id: 1,
        address: server_address.0,
        port: None,
        interface: server_address.1,
        up: true,
        subflow: false,
        signal: false,
        backup: false,
        fullmesh: false,
        laminar: false,
    };
    server.set_address(pair.now, address);
    server.listen(PORT, ConnectionConfig::linux()).unwrap();
    // An honest connection whose token is known.
    let remote = SocketAddr::from(([10, 0, 0, 2], PORT));
    pair.stacks[0].connect(pair.now, None, remote, ConnectionConfig::linux()).unwrap();
    let syn = pair.stacks[0].poll_transmit(pair.now).unwrap().1;
    server.handle_packet(pair.now, WIRE, syn);
    let syn_ack = server.poll_transmit(pair.now).unwrap().1;
    let option = syn_ack.parse().unwrap().options.mptcp.remove(0);
    let MptcpOption::Capable(offer @ MpCapable { sender_key: Some(key), .. }) = option else {
        unreachable!("{option:?}")
    };
    pair.stacks[0].handle_packet(pair.now, WIRE, syn_ack);
    pair.stacks[1] = server;
    pair.exchange();
    let resident_before = resident_bytes();
    for number in 0..FLOOD {
        let capable = MptcpOption::Capable(MpCapable { sender_key: None, ..offer });
        let (token, nonce) = (keys::token(key), number);
        let join = MptcpOption::Join(MpJoin::Syn { backup: false, address_id: 9, token, nonce });
        for option in [capable, join] {
            let syn = forged_syn(number, option);
            pair.stacks[1].handle_packet(pair.now, WIRE, Packet::emit(&syn, 0));
        }
        while pair.stacks[1].poll_transmit(pair.now).is_some() {}
    }
    let (half_open, joins) =
        (pair.stacks[1].half_open_connections(), pair.stacks[1].half_open_joins(pair.now));
    assert_eq!((half_open, joins), (128, 4_096));
    let growth_bytes = resident_bytes().saturating_sub(resident_before);
    println!("{growth_bytes} bytes for {half_open} half-open connections and {joins} subflows");
    assert!(growth_bytes <= MAX_FLOOD_BYTES, "{growth_bytes} bytes more");
}
