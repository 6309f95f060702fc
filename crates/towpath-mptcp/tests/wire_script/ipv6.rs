//! Path MTU discovery for IPv6 (RFC 8201): two of our hosts, and a router with a small link between
//! them.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use bytes::Bytes;
use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack;
use towpath_mptcp::stack::{InterfaceId, LocalAddress, Stack, StackEvent};
use towpath_net::Instant;
use towpath_wire::ConnectionId;
use towpath_wire::{IcmpKind, Packet, Segment};

use crate::script::*;

const INTERFACE: InterfaceId = InterfaceId(0);

fn address(host: u16) -> IpAddr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host).into()
}

fn ipv6_host(number: u16, mtu_bytes: u32) -> Stack {
    let mut stack = Stack::new(stack::StackConfig::default());
    stack.add_interface(INTERFACE, mtu_bytes);
    stack.set_address(Instant::ZERO, LocalAddress { address: address(number), ..local_address(0) });
    stack
}

struct RoutedPair {
    now: Instant,
    sender: Stack,
    receiver: Stack,
    id: ConnectionId,
    accepted: Option<ConnectionId>,
    /// MTU of the router's link.
    link_mtu_bytes: usize,
    /// Forged Packet Too Big for the next packet that passes: its MTU, and an offset added to the
    /// sequence number.
    forged_error: Option<(u32, u32)>,
    /// Number of packets that were too big for the link.
    too_big_count: usize,
    /// Length of the longest packet that passed.
    max_passed_bytes: usize,
}

impl RoutedPair {
    fn connected(receiver_mtu_bytes: u32) -> Self {
        let config = || ConnectionConfig { multipath: false, ..ConnectionConfig::linux_6_18() };
        let (mut sender, mut receiver) = (ipv6_host(1, 1_500), ipv6_host(2, receiver_mtu_bytes));
        receiver.listen(PORT, config()).unwrap();
        let remote = SocketAddr::new(address(2), PORT);
        let id = sender.connect(Instant::ZERO, None, remote, config()).unwrap();
        let mut pair = Self {
            now: Instant::ZERO,
            sender,
            receiver,
            id,
            accepted: None,
            link_mtu_bytes: 1_400,
            forged_error: None,
            too_big_count: 0,
            max_passed_bytes: 0,
        };
        pair.run();
        pair
    }

    fn run(&mut self) {
        loop {
            let packets: Vec<Packet> = std::iter::from_fn(|| self.sender.poll_transmit(self.now))
                .flat_map(|(_, packet)| packet.split().collect::<Vec<_>>())
                .collect();
            let replies: Vec<Packet> = std::iter::from_fn(|| self.receiver.poll_transmit(self.now))
                .map(|(_, packet)| packet)
                .collect();
            if packets.is_empty() && replies.is_empty() {
                return;
            }
            for packet in packets {
                self.forward(packet);
            }
            for packet in replies {
                self.sender.handle_packet(self.now, INTERFACE, packet);
            }
            while let Some(event) = self.receiver.poll_event() {
                if let StackEvent::Accepted { connection, .. } = event {
                    self.accepted = Some(connection);
                }
            }
        }
    }

    fn forward(&mut self, packet: Packet) {
        if packet.len() > self.link_mtu_bytes {
            self.too_big_count += 1;
            return self.send_packet_too_big(self.link_mtu_bytes as u32, &packet);
        }
        self.max_passed_bytes = self.max_passed_bytes.max(packet.len());
        if let Some((mtu, seq_offset)) = self.forged_error.take() {
            let segment = packet.parse().unwrap();
            let seq = segment.seq.wrapping_add(seq_offset);
            self.send_packet_too_big(mtu, &Packet::emit(&Segment { seq, ..segment }, 0));
        }
        self.receiver.handle_packet(self.now, INTERFACE, packet);
    }

    /// Sends a Packet Too Big message about this packet.
    fn send_packet_too_big(&mut self, mtu: u32, packet: &Packet) {
        let error = IcmpKind::TooBig { mtu }.emit(address(254), packet).unwrap();
        self.sender.handle_packet(self.now, INTERFACE, error);
    }

    /// Sends `bytes` bytes and returns the bytes that the receiver could read.
    fn transfer(&mut self, bytes: usize) -> usize {
        let mut data = Bytes::from(vec![7; bytes]);
        assert_eq!(self.sender.write(self.now, self.id, &mut data), bytes);
        let end = self.now + seconds(1);
        loop {
            self.run();
            let deadlines = [&self.sender, &self.receiver].map(Stack::poll_timeout);
            let deadlines = deadlines.into_iter().flatten().map(|(deadline, _)| deadline).min();
            let Some(deadline) = deadlines.filter(|deadline| *deadline <= end) else { break };
            self.wait_until(deadline);
        }
        self.wait_until(end);
        let id = self.accepted.unwrap();
        let is_data = |bytes: &Bytes| !bytes.is_empty();
        let read = || self.receiver.read(self.now, id).filter(is_data);
        std::iter::from_fn(read).map(|bytes| bytes.len()).sum()
    }

    fn wait_until(&mut self, time: Instant) {
        self.now = self.now.max(time);
        self.sender.handle_timeout(self.now);
        self.receiver.handle_timeout(self.now);
        self.run();
    }
}

#[test]
fn packet_too_big_reduces_the_size_and_retransmits() {
    let mut pair = RoutedPair::connected(1_500);
    assert_eq!(pair.transfer(14_000), 14_000);
    let packet_too_big = pair.too_big_count;
    assert!((1..=10).contains(&packet_too_big), "{packet_too_big}");
    assert_eq!(pair.max_passed_bytes, 1_400);
    // For five minutes, no larger packet is tried (RFC 8201 §4).
    for _ in 0..5 {
        pair.wait_until(pair.now + seconds(58));
        assert_eq!(pair.transfer(30_000), 30_000);
    }
    assert_eq!((pair.too_big_count, pair.max_passed_bytes), (packet_too_big, 1_400));
}

#[test]
fn only_messages_that_can_be_right_make_packets_of_ipv6_smaller() {
    let mut pair = RoutedPair::connected(1_500);
    pair.link_mtu_bytes = 1_500;
    assert_eq!(pair.transfer(14_000), 14_000);
    let mut len_after_forged_error = |mtu, seq_offset| {
        pair.forged_error = Some((mtu, seq_offset));
        assert_eq!(pair.transfer(14_000), 14_000);
        pair.max_passed_bytes = 0;
        assert_eq!(pair.transfer(14_000), 14_000);
        pair.max_passed_bytes
    };
    assert_eq!(len_after_forged_error(1_300, 1_000_000), 1_500, "a number that was never sent");
    assert_eq!(len_after_forged_error(1_000, 0), 1_500, "smaller than any link of IPv6");
    assert_eq!(len_after_forged_error(9_000, 0), 1_500, "larger than before");
    pair.forged_error = Some((1_300, 0));
    assert_eq!(pair.transfer(14_000), 14_000);
    pair.max_passed_bytes = 0;
    assert_eq!(pair.transfer(14_000), 14_000);
    assert_eq!(pair.max_passed_bytes, 1_300, "what can be right is believed");
}

#[test]
fn no_ipv6_packet_exceeds_the_mss_of_the_peer() {
    let mut pair = RoutedPair::connected(1_300);
    pair.link_mtu_bytes = 1_500;
    assert_eq!(pair.transfer(40_000), 40_000);
    assert_eq!(pair.max_passed_bytes, 1_300);
    // The path MTU does not change the advertised MSS either.
    let mut pair = RoutedPair::connected(1_500);
    assert_eq!(pair.transfer(14_000), 14_000);
    assert!(pair.too_big_count > 0);
    let config = ConnectionConfig { multipath: false, ..ConnectionConfig::linux_6_18() };
    let remote = SocketAddr::new(address(2), PORT);
    let _ = pair.sender.connect(pair.now, None, remote, config).unwrap();
    let syn = pair.sender.poll_transmit(pair.now).unwrap().1.parse().unwrap();
    assert_eq!(syn.options.mss, Some(1_440));
}
