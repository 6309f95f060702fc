//! Links, middleboxes and interfaces: everything between the hosts' stacks.

use std::collections::VecDeque;
use std::time::Duration;

use towpath_net::config::{DirectionConfig, QueuePosition, Shaper};
use towpath_net::topology::{RouteError, RouteId};
use towpath_net::{Instant, Topology};
use towpath_result::{Interface as InterfaceTotals, Link};
use towpath_scenario::network::{
    LinkDirections, ReportedDirection, end_of, path_of, split, topology,
};
use towpath_scenario::{
    LinkSide, Scenario, TimelineChange, TimelineEvent, TimelineTarget, Transport,
};
use towpath_wire as wire;
use towpath_wire::Segmenter;

use crate::account::CapacityAccounts;
use crate::error::SimError;
use crate::idle_cause::SimView;
use crate::middlebox::{MiddleboxChain, PathDirection};
use crate::packet::SimPacket;
use crate::pcap::{PacketDirection, PcapWriter, unix_ns};

/// Time that a socket's packets may wait in the host's own queue, at the link's rate. TCP small
/// queues (Linux: `pacing_rate >> 10`).
const TSQ_TIME: Duration = Duration::from_micros(977);
/// Upper bound of the small queue limit (Linux: `tcp_limit_output_bytes`).
const TSQ_MAX_BYTES: u64 = 4 * 1_024 * 1_024;

/// Largest number of address pairs whose path is cached.
const MAX_CACHED_PATHS: usize = 64;

/// Largest number of freed packets that are kept for reuse.
const MAX_FREE_PACKETS: usize = 4_096;

/// Time after the end of the run within which every packet in flight arrives.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(600);

/// One end of a path: an interface of a host.
#[derive(Debug, Default)]
struct PathEnd {
    host: usize,
    /// Number of the interface in the host's capture.
    number: u32,
    totals: InterfaceTotals,
    up: bool,
    /// Set when the route's first queue is in the host, which applies backpressure when it is
    /// full.
    applies_backpressure: bool,
    /// Largest super-segment sent so far, in bytes.
    burst_bytes: u64,
    /// Set while the stack may not send.
    stopped: bool,
}

/// Packet that reaches a host, with the path that carried it.
#[derive(Debug)]
pub(crate) struct DeliveredPacket {
    pub(crate) host: usize,
    pub(crate) path: usize,
    pub(crate) packet: Box<wire::Packet>,
}

/// The network of a scenario: links, middleboxes and interfaces.
#[derive(Debug)]
pub(crate) struct SimNetwork<'a> {
    topology: Topology<SimPacket>,
    links: LinkDirections,
    /// Link directions that the records report.
    reported: Vec<ReportedDirection>,
    /// The two ends of each path.
    interfaces: Vec<[PathEnd; 2]>,
    boxes: Vec<MiddleboxChain>,
    has_boxes: bool,
    any_backpressure: bool,
    /// By path: true if super-segments are split into packets.
    split: Vec<bool>,
    /// MTU of each path.
    mtu_bytes: Vec<u32>,
    /// For each path and direction, the bytes that the link carries in [`TSQ_TIME`].
    small_queue_bytes: Vec<[u64; 2]>,
    /// Captures, one for each host; empty if nothing is captured.
    captures: Vec<PcapWriter<'a>>,
    /// Set when captures keep headers only, so that checksums over the payload are not computed.
    pub(crate) headers_only: bool,
    /// Reused buffer for packets that leave a middlebox chain.
    chain_output: VecDeque<wire::Packet>,
    /// Cached paths of IPv4 address pairs, in the byte order of the header.
    path_cache: Vec<([u8; 8], usize)>,
    /// Freed packets for reuse.
    #[expect(clippy::vec_box, reason = "the boxes are what is kept: they travel as they are")]
    free_packets: Vec<Box<wire::Packet>>,
    arrived: VecDeque<DeliveredPacket>,
    pub(crate) delivered_packets: u64,
    pub(crate) accounts: CapacityAccounts,
}

impl<'a> SimNetwork<'a> {
    pub(crate) fn new(
        scenario: &Scenario,
        transport: Transport,
        seed: u64,
        captures: Vec<PcapWriter<'a>>,
    ) -> Result<Self, RouteError> {
        let (topology, links) = topology::<SimPacket>(scenario, seed, &[])?;
        let interface = |index: usize, path: &towpath_scenario::Path, end: usize| {
            let host = path.between.get(end).copied().unwrap_or_default();
            let interfaces_before = scenario.paths.iter().take(index);
            let interfaces_before =
                interfaces_before.filter(|path| end_of(path, host).is_some()).count();
            let config = if end == 0 { &path.up } else { &path.down };
            let name = scenario.hosts.get(host).map_or_else(String::new, |h| h.name.clone());
            PathEnd {
                host,
                number: u32::try_from(interfaces_before).unwrap_or(u32::MAX),
                totals: totals(name, path.name.clone()),
                up: true,
                // On the reverse direction, a bottleneck would come first.
                applies_backpressure: config.position == QueuePosition::Host
                    && (end == 0 || path.through.is_empty()),
                ..PathEnd::default()
            }
        };
        let paths = &scenario.paths;
        let ends = paths.iter().enumerate();
        let interfaces: Vec<_> =
            ends.map(|(index, path)| [0, 1].map(|end| interface(index, path, end))).collect();
        let boxes: Vec<_> =
            (0..paths.len()).map(|path| MiddleboxChain::new(&scenario.middleboxes, path)).collect();
        let has_no_boxes = |index: usize| boxes.get(index).is_none_or(MiddleboxChain::is_empty);
        Ok(Self {
            topology,
            accounts: CapacityAccounts::new(scenario, transport, &links),
            reported: links.reported(scenario),
            links,
            any_backpressure: interfaces
                .iter()
                .flatten()
                .any(|interface| interface.applies_backpressure),
            interfaces,
            has_boxes: boxes.iter().any(|boxes| !boxes.is_empty()),
            // A middlebox must see single packets, as they are on the wire.
            split: (0..paths.len())
                .map(|path| split(path, scenario) || !has_no_boxes(path))
                .collect(),
            boxes,
            mtu_bytes: paths.iter().map(|path| path.mtu_bytes).collect(),
            small_queue_bytes: paths
                .iter()
                .map(|path| [&path.up, &path.down].map(small_queue_bytes))
                .collect(),
            captures,
            headers_only: false,
            chain_output: VecDeque::new(),
            path_cache: Vec::new(),
            free_packets: Vec::new(),
            arrived: VecDeque::new(),
            delivered_packets: 0,
        })
    }

    /// Returns the time at which [`Self::arrival`] must be called next.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let links = self.topology.next_due();
        if !self.has_boxes {
            return links;
        }
        let box_releases = self.boxes.iter().filter_map(MiddleboxChain::next_due);
        box_releases.chain(links).min()
    }

    /// Sends a packet of `host`. The first host's address decides the path, regardless of the
    /// interface that the stack chose.
    pub(crate) fn send(&mut self, now: Instant, host: usize, packet: Box<wire::Packet>) {
        let Some(path) = self.path_of(&packet) else { return };
        let Some(ends) = self.interfaces.get_mut(path) else { return };
        let Some(end) = ends.iter().position(|interface| interface.host == host) else { return };
        let Some(interface) = ends.get_mut(end) else { return };
        let len = packet.len() as u64;
        interface.burst_bytes = interface.burst_bytes.max(len);
        if !interface.up {
            interface.totals.tx_dropped += 1;
            return;
        }
        interface.totals.tx_packets += 1;
        interface.totals.tx_bytes += len;
        let goes_unsplit =
            packet.segment_bytes == 0 || !self.split.get(path).copied().unwrap_or(true);
        if goes_unsplit {
            return self.send_single(now, path, end, packet);
        }
        let Some(mut segmenter) = Segmenter::new(&packet) else {
            let mut packet = packet;
            packet.segment_bytes = 0;
            return self.send_single(now, path, end, packet);
        };
        loop {
            let mut segment = self.empty_packet();
            if !segmenter.next(&packet, &mut segment) {
                self.recycle(segment);
                break;
            }
            self.send_single(now, path, end, segment);
        }
        self.recycle(packet);
    }

    fn path_of(&mut self, packet: &wire::Packet) -> Option<usize> {
        let is_v4 = packet.header.first().is_some_and(|first_byte| first_byte >> 4 == 4);
        let address_bytes = packet.header.get(12..).and_then(<[u8]>::first_chunk).filter(|_| is_v4);
        if let Some(address_bytes) = address_bytes
            && let Some((_, path)) =
                self.path_cache.iter().find(|(cached, _)| cached == address_bytes)
        {
            return Some(*path);
        }
        let path =
            packet.addresses().and_then(|(source, destination)| path_of(source, destination))?;
        if let Some(address_bytes) =
            address_bytes.filter(|_| self.path_cache.len() < MAX_CACHED_PATHS)
        {
            self.path_cache.push((*address_bytes, path));
        }
        Some(path)
    }

    /// Returns an empty packet, from reused memory if possible.
    pub(crate) fn empty_packet(&mut self) -> Box<wire::Packet> {
        self.free_packets.pop().unwrap_or_default()
    }

    /// Keeps the memory of a packet for reuse.
    pub(crate) fn recycle(&mut self, mut packet: Box<wire::Packet>) {
        if self.free_packets.len() < MAX_FREE_PACKETS {
            packet.payload = wire::Payload::EMPTY;
            self.free_packets.push(packet);
        }
    }

    fn send_single(&mut self, now: Instant, path: usize, end: usize, packet: Box<wire::Packet>) {
        self.capture_packet(now, path, end, PacketDirection::Outbound, &packet);
        let no_boxes = self.boxes.get(path).is_none_or(MiddleboxChain::is_empty);
        if end == 1 || no_boxes {
            self.push(now, path, end, packet);
            return;
        }
        let mut outgoing = std::mem::take(&mut self.chain_output);
        if let Some(boxes) = self.boxes.get_mut(path) {
            boxes.pass(now, PathDirection::Up, *packet, &mut outgoing);
        }
        for packet in outgoing.drain(..) {
            self.push(now, path, end, Box::new(packet));
        }
        self.chain_output = outgoing;
    }

    fn push(&mut self, now: Instant, path: usize, end: usize, packet: Box<wire::Packet>) {
        let route = self.links.routes.get(path).and_then(|routes| routes.get(end));
        if let Some(route) = route {
            // A drop shows in the link's counters; TCP detects it as on a real link.
            let hop = self.accounts.hop(path, end);
            let packet = SimPacket { inner: packet, hop, served_at: None };
            let _ = self.topology.push(now, *route, packet);
        }
    }

    /// Returns the next packet that has reached a host by `now`.
    pub(crate) fn arrival(&mut self, now: Instant) -> Option<DeliveredPacket> {
        if self.has_boxes {
            self.release_held(now);
        }
        loop {
            if let Some(arrival) = self.arrived.pop_front() {
                return Some(arrival);
            }
            let (time, route, packet) = self.topology.pop(now)?;
            let Some((path, end)) = self.locate_route(route).map(|(path, side)| (path, 1 - side))
            else {
                continue;
            };
            self.record_arrival(path, end, &packet);
            let packet = packet.inner;
            let no_boxes = self.boxes.get(path).is_none_or(MiddleboxChain::is_empty);
            if end == 1 || no_boxes {
                let arrival = self.arrive(time, path, end, packet);
                if arrival.is_some() {
                    return arrival;
                }
                continue;
            }
            let mut outgoing = std::mem::take(&mut self.chain_output);
            if let Some(boxes) = self.boxes.get_mut(path) {
                boxes.pass(time, PathDirection::Down, *packet, &mut outgoing);
            }
            for packet in outgoing.drain(..) {
                let arrival = self.arrive(time, path, end, Box::new(packet));
                self.arrived.extend(arrival);
            }
            self.chain_output = outgoing;
        }
    }

    /// Delivers a packet to the host at this end of a path; `None` if the interface is down.
    fn arrive(
        &mut self,
        now: Instant,
        path: usize,
        end: usize,
        packet: Box<wire::Packet>,
    ) -> Option<DeliveredPacket> {
        let interface = self.interfaces.get_mut(path).and_then(|ends| ends.get_mut(end))?;
        if !interface.up {
            interface.totals.rx_dropped += 1;
            return None;
        }
        interface.totals.rx_packets += 1;
        interface.totals.rx_bytes += packet.len() as u64;
        let host = interface.host;
        self.delivered_packets += 1;
        self.capture_packet(now, path, end, PacketDirection::Inbound, &packet);
        Some(DeliveredPacket { host, path, packet })
    }

    fn capture_packet(
        &mut self,
        now: Instant,
        path: usize,
        end: usize,
        direction: PacketDirection,
        packet: &wire::Packet,
    ) {
        if self.captures.is_empty() {
            return;
        }
        let interface = self.interfaces.get(path).and_then(|ends| ends.get(end));
        let Some(PathEnd { host, number, .. }) = interface else { return };
        if let Some(capture) = self.captures.get_mut(*host) {
            let interface_and_direction = (*number, direction);
            if self.headers_only {
                capture.packet(
                    unix_ns(now),
                    interface_and_direction,
                    packet.headers(),
                    packet.len(),
                );
            } else {
                let data = packet.to_vec();
                capture.packet(unix_ns(now), interface_and_direction, &data, data.len());
            }
        }
    }

    fn release_held(&mut self, now: Instant) {
        for path in 0..self.boxes.len() {
            if self.boxes.get(path).and_then(MiddleboxChain::next_due).is_none_or(|due| due > now) {
                continue;
            }
            for direction in [PathDirection::Up, PathDirection::Down] {
                let mut released = std::mem::take(&mut self.chain_output);
                if let Some(boxes) = self.boxes.get_mut(path) {
                    boxes.release_expired(now, direction, &mut released);
                }
                for packet in released.drain(..) {
                    let packet = Box::new(packet);
                    match direction {
                        PathDirection::Up => self.push(now, path, 0, packet),
                        PathDirection::Down => {
                            let arrival = self.arrive(now, path, 0, packet);
                            self.arrived.extend(arrival);
                        }
                    }
                }
                self.chain_output = released;
            }
        }
    }

    /// Calls `notify` with host, path and readiness for each interface whose readiness to transmit
    /// has changed. `small_queues` marks hosts that use TCP small queues.
    pub(crate) fn tx_ready_changes(
        &mut self,
        small_queues: &[bool],
        mut notify: impl FnMut(usize, usize, bool),
    ) {
        if !self.any_backpressure {
            return;
        }
        for path in 0..self.interfaces.len() {
            for end in 0..2 {
                let ends = self.interfaces.get(path);
                let Some(interface) = ends.and_then(|ends| ends.get(end)) else { continue };
                if !interface.applies_backpressure {
                    continue;
                }
                let has_small_queues = small_queues.get(interface.host).copied().unwrap_or(false);
                let ready = self.is_tx_ready(path, end, interface, has_small_queues);
                let (host, stopped) = (interface.host, interface.stopped);
                if ready == stopped {
                    notify(host, path, ready);
                    let ends = self.interfaces.get_mut(path);
                    if let Some(interface) = ends.and_then(|ends| ends.get_mut(end)) {
                        interface.stopped = !ready;
                    }
                }
            }
        }
    }

    fn is_tx_ready(
        &self,
        path: usize,
        end: usize,
        interface: &PathEnd,
        has_small_queues: bool,
    ) -> bool {
        let route = self.links.routes.get(path).and_then(|routes| routes.get(end));
        let mtu_bytes = self.mtu_bytes.get(path).copied().unwrap_or(1_500);
        if !route.is_some_and(|route| self.topology.has_room(*route, mtu_bytes)) {
            return false;
        }
        let first_direction = self.links.paths.get(path).and_then(|directions| directions.get(end));
        let queued_bytes =
            first_direction.and_then(|id| self.topology.queue_length(*id)).map_or(0, |(_, b)| b);
        let rate_limit = self.small_queue_bytes.get(path).and_then(|ends| ends.get(end)).copied();
        let limit_bytes = rate_limit.unwrap_or(0).max(2 * interface.burst_bytes).min(TSQ_MAX_BYTES);
        !has_small_queues || queued_bytes < limit_bytes.max(u64::from(mtu_bytes))
    }

    /// Returns the first host's real address, before any address translation.
    pub(crate) fn untranslated_address(
        &self,
        path: usize,
        address: std::net::SocketAddr,
    ) -> std::net::SocketAddr {
        self.boxes.get(path).map_or(address, |boxes| boxes.untranslated_address(address))
    }

    /// Applies a timeline event to links and interfaces.
    pub(crate) fn apply(&mut self, now: Instant, event: &TimelineEvent) {
        let side = match &event.change {
            TimelineChange::Rate(side, _)
            | TimelineChange::Delay(side, _)
            | TimelineChange::Loss(side, _) => *side,
            TimelineChange::Down(_) | TimelineChange::Up => LinkSide::Both,
            TimelineChange::Address { .. } => return,
        };
        for id in self.links.of(event.target, side) {
            match &event.change {
                TimelineChange::Down(_) => self.topology.set_up(now, id, false),
                TimelineChange::Up => self.topology.set_up(now, id, true),
                TimelineChange::Rate(_, rate) => {
                    self.topology.set_shaper(now, id, Shaper::Line(*rate));
                }
                TimelineChange::Delay(_, delay) => self.topology.set_delay(now, id, *delay),
                TimelineChange::Loss(_, loss) => self.topology.set_loss(now, id, *loss),
                TimelineChange::Address { .. } => {}
            }
        }
        if let (TimelineTarget::Path(path), TimelineChange::Rate(side, rate)) =
            (event.target, &event.change)
        {
            let sides = self.small_queue_bytes.get_mut(path).into_iter().flatten();
            for (end, bytes) in sides.enumerate() {
                let end_side = if end == 0 { LinkSide::Up } else { LinkSide::Down };
                if *side == LinkSide::Both || *side == end_side {
                    *bytes = rate.bytes_in(TSQ_TIME);
                }
            }
        }
    }

    /// Returns true if a host's interface on a path is up.
    pub(crate) fn is_up(&self, path: usize, host: usize) -> bool {
        let mut ends = self.interfaces.get(path).into_iter().flatten();
        ends.any(|interface| interface.host == host && interface.up)
    }

    /// Switches an interface on or off.
    pub(crate) fn set_interface(&mut self, path: usize, host: usize, up: bool) {
        let ends = self.interfaces.get_mut(path).into_iter().flatten();
        for interface in ends.filter(|interface| interface.host == host) {
            interface.up = up;
        }
    }

    /// Books a packet that has left the network at this end of a path. If the interface is down,
    /// the packet is lost.
    fn record_arrival(&mut self, path: usize, end: usize, packet: &SimPacket) {
        let Some(ends) = self.interfaces.get(path) else { return };
        let [Some(receiver), Some(sender)] = [end, 1 - end].map(|end| ends.get(end)) else {
            return;
        };
        if receiver.up {
            self.accounts.on_arrival((path, 1 - end, sender.host), packet);
        }
    }

    /// Updates the idle causes for the time until the next event.
    pub(crate) fn update_causes(&mut self, view: &SimView<'_>, until: Instant) {
        self.accounts.update_causes(&mut self.topology, view, until);
    }

    /// Closes a period of the capacity account.
    pub(crate) fn close_accounts(&mut self, now: Instant) {
        self.accounts.close_period(now, &mut self.topology);
    }

    /// Returns the state of every link.
    pub(crate) fn link_records(&self, now: Instant) -> impl Iterator<Item = Link> {
        let t_ns = now.as_nanos();
        self.reported.iter().filter_map(move |link| Link::sample(link, t_ns, &self.topology))
    }

    /// Books all packets in flight by letting them arrive.
    fn drain_in_flight(&mut self, now: Instant) {
        while let Some((_, route, packet)) = self.topology.pop(now + DRAIN_TIMEOUT) {
            if let Some((path, side)) = self.locate_route(route) {
                self.accounts.on_in_flight((path, side), &packet);
            }
        }
    }

    /// Returns the path of a route and the end at which it begins.
    fn locate_route(&self, route: RouteId) -> Option<(usize, usize)> {
        self.links.routes.iter().enumerate().find_map(|(path, routes)| {
            routes.iter().position(|id| *id == route).map(|side| (path, side))
        })
    }

    /// Finishes the captures; returns the interface totals and the capacity accounts.
    pub(crate) fn finish(
        mut self,
        now: Instant,
        scenario: &Scenario,
    ) -> Result<(Vec<InterfaceTotals>, CapacityAccounts), SimError> {
        self.drain_in_flight(now);
        for (capture, host) in self.captures.into_iter().zip(&scenario.hosts) {
            let host = || host.name.clone();
            capture.finish().map_err(|source| SimError::Capture { host: host(), source })?;
        }
        let totals = self.interfaces.into_iter().flatten().map(|interface| interface.totals);
        Ok((totals.collect(), self.accounts))
    }
}

fn totals(host: String, interface: String) -> InterfaceTotals {
    InterfaceTotals { host, interface, ..InterfaceTotals::default() }
}

fn small_queue_bytes(config: &DirectionConfig) -> u64 {
    match config.shaper {
        Shaper::Line(rate) | Shaper::TokenBucket { rate, .. } | Shaper::Htb { rate, .. } => {
            rate.bytes_in(TSQ_TIME)
        }
        Shaper::Unlimited | Shaper::Trace(_) => 0,
    }
}
