//! Honest hosts with SYN flood protection on a lossy network: the limit for addresses that have not
//! answered prevents no connection and no subflow.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Duration;

use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack::{
    InterfaceId, LocalAddress, Stack, StackConfig, StackEvent, SubflowStatus, SynFloodProtection,
};
use towpath_mptcp::subflow::TcpState;
use towpath_net::Instant;
use towpath_wire::{ConnectionId, MpJoin, MptcpOption, Packet, Segment};

use crate::flood::local_address;
use crate::network::*;

const WIRE: InterfaceId = InterfaceId(1);
const CLIENT: usize = 0;
const SERVER: usize = 1;

/// Function that returns true if a packet from this host is lost.
type Loss = Box<dyn FnMut(usize, &Segment) -> bool>;

/// Client and server, whose packets arrive at once or never.
struct LossyPair {
    now: Instant,
    stacks: [Stack; 2],
    is_lost: Loss,
    client: ConnectionId,
    accepted_at: Option<Instant>,
}

fn announced_address() -> IpAddr {
    Ipv4Addr::new(10, 3, 0, 1).into()
}

impl LossyPair {
    fn new(path_manager: &str, is_lost: Loss) -> Self {
        let mut stacks = [1, 2].map(|number| {
            let protection = SynFloodProtection::new([number; 16]);
            let mut stack = Stack::with_syn_flood_protection(StackConfig::default(), &protection);
            stack.add_interface(WIRE, 1_500);
            stack
        });
        let now = at_ms(1);
        stacks[CLIENT].set_address(now, local_address(client_address(0, 0)));
        stacks[SERVER].set_address(now, local_address(server_address()));
        let second =
            LocalAddress { address_id: 2, signal: true, ..local_address(announced_address()) };
        stacks[SERVER].set_address(now, second);
        let path_manager = path_manager.to_owned();
        let config = ConnectionConfig { path_manager, ..ConnectionConfig::linux() };
        stacks[SERVER].listen(PORT, config.clone()).unwrap();
        let client = stacks[CLIENT].connect(now, None, server(), config).unwrap();
        Self { now, stacks, is_lost, client, accepted_at: None }
    }

    fn run(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            self.exchange();
            let next = self.stacks.iter().filter_map(Stack::next_deadline).min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            for stack in &mut self.stacks {
                stack.handle_timeout(self.now);
            }
        }
        self.now = end;
    }

    fn exchange(&mut self) {
        let mut progress = true;
        while std::mem::take(&mut progress) {
            for host in [CLIENT, SERVER] {
                while let Some((_, packet)) = self.stacks[host].poll_transmit(self.now) {
                    progress = true;
                    if !(self.is_lost)(host, &packet.parse().unwrap()) {
                        self.stacks[1 - host].handle_packet(self.now, WIRE, packet);
                    }
                }
            }
        }
        while let Some(event) = self.stacks[SERVER].poll_event() {
            if matches!(event, StackEvent::Accepted { .. }) {
                self.accepted_at.get_or_insert(self.now);
            }
        }
    }

    fn subflows(&self) -> usize {
        let status = self.stacks[CLIENT].status(self.client).unwrap();
        let is_open = |subflow: &&SubflowStatus| subflow.state == TcpState::Established;
        status.subflows.iter().filter(is_open).count()
    }

    /// Sends a byte from the client, which confirms Multipath TCP.
    fn send(&mut self) {
        for host in [CLIENT, SERVER, CLIENT] {
            let mut data = bytes::Bytes::from_static(b"?");
            self.stacks[host].write(self.now, self.client, &mut data);
            self.exchange();
        }
    }
}

/// Returns true for the first `count` calls.
fn first(mut count: usize) -> impl FnMut() -> bool {
    move || {
        let is_one = count > 0;
        count = count.saturating_sub(1);
        is_one
    }
}

fn is_join_syn(segment: &Segment) -> bool {
    let is_join = |option: &_| matches!(option, MptcpOption::Join(MpJoin::Syn { .. }));
    segment.options.mptcp.iter().any(is_join)
}

#[test]
fn a_client_connects_after_three_lost_syn_acks() {
    let mut lost = first(3);
    let is_lost: Loss =
        Box::new(move |host, segment| host == SERVER && segment.flags.contains(SYN) && lost());
    let mut pair = LossyPair::new("default", is_lost);
    pair.run(Duration::from_secs(5));
    assert!(pair.accepted_at.is_some());
}

#[test]
fn a_silent_client_is_accepted_after_a_lost_third_packet() {
    let mut lost = first(1);
    let is_lost: Loss =
        Box::new(move |host, segment| host == CLIENT && !segment.flags.contains(SYN) && lost());
    let mut pair = LossyPair::new("default", is_lost);
    pair.run(Duration::from_secs(5));
    assert_eq!(pair.accepted_at, Some(at_ms(1_004)));
}

#[test]
fn an_announced_address_is_joined_after_two_lost_syns() {
    let mut lost = first(2);
    let is_lost: Loss = Box::new(move |_, segment| is_join_syn(segment) && lost());
    let mut pair = LossyPair::new("default", is_lost);
    pair.run(Duration::from_secs(1));
    pair.send();
    assert_eq!(pair.subflows(), 1);
    pair.run(Duration::from_secs(5));
    assert_eq!(pair.subflows(), 2);
}

#[test]
fn an_address_that_answered_is_joined_again_after_a_long_outage() {
    let last = Rc::new(RefCell::new(None));
    let recorded = Rc::clone(&last);
    let is_lost: Loss = Box::new(move |_, segment| {
        if segment.source.ip() == announced_address() {
            recorded.replace(Some(segment.clone()));
        }
        false
    });
    let mut pair = LossyPair::new("rejoin", is_lost);
    pair.run(Duration::from_secs(1));
    pair.send();
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.subflows(), 2);
    pair.is_lost = Box::new(|_, segment| {
        [segment.source.ip(), segment.destination.ip()].contains(&announced_address())
    });
    let reset = Segment { flags: RST, ..last.take().unwrap() };
    pair.stacks[CLIENT].handle_packet(pair.now, WIRE, Packet::emit(&reset, 0));
    pair.run(Duration::from_secs(1_800));
    assert_eq!(pair.subflows(), 1);
    pair.is_lost = Box::new(|_, _| false);
    pair.run(Duration::from_secs(600));
    assert_eq!(pair.subflows(), 2);
}
