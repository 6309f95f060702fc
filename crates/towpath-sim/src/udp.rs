//! Datagrams at a constant rate over one path (`udp`). Each passes the links like any packet,
//! without stack, processor and IP fragmentation.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use towpath_net::Instant;
use towpath_result::metrics::DeliveryLog;
use towpath_result::{DatagramRow, DatagramStats, Interval};
use towpath_run::stamp::{DatagramHeader, DatagramKind};
use towpath_run::token::TestToken;
use towpath_run::traffic::udp;
use towpath_run::traffic::udp::{UdpReceiver, UdpSender};
use towpath_scenario::flow_plan::directions;
use towpath_scenario::{DataDirection, Family, Flow, Pattern, Scenario, Udp as UdpPlan};
use towpath_wire::udp::UdpDatagram as Udp;
use towpath_wire::{Ecn, Packet};

use crate::host::SimHost;
use crate::network::SimNetwork;
use crate::traffic::port;

/// Bytes of UDP's header.
const UDP_HEADER_BYTES: u32 = 8;

/// Result of one direction of a flow.
type DirectionResult = (DataDirection, DatagramStats, Vec<DatagramRow>);

/// Constant-rate datagrams of one flow.
#[derive(Debug)]
pub(crate) struct ConstantRateFlow {
    flow: usize,
    plan: UdpPlan,
    start: Instant,
    family: Family,
    path: usize,
    /// UDP port at both ends.
    port: u16,
    directions: Vec<UdpDirection>,
    identification: u16,
    pub(crate) failure: Option<String>,
}

/// State of one direction of the flow.
#[derive(Debug)]
struct UdpDirection {
    direction: DataDirection,
    from: usize,
    to: usize,
    sender: UdpSender,
    receiver: UdpReceiver,
    log: DeliveryLog,
    received_bytes: u64,
    /// Part of `received_bytes` in earlier intervals.
    reported_bytes: u64,
}

impl ConstantRateFlow {
    /// Returns the flow's datagrams; `None` if the flow has another pattern.
    pub(crate) fn new(scenario: &Scenario, (index, flow): (usize, &Flow)) -> Option<Self> {
        let Pattern::Udp(plan) = &flow.pattern else { return None };
        let (start, sample) = (Instant::ZERO + flow.start, scenario.run.sample);
        let udp_directions = directions(&flow.pattern).iter().map(|direction| {
            let down = *direction == DataDirection::Down;
            let (from, to) = if down { (flow.to, flow.from) } else { (flow.from, flow.to) };
            UdpDirection {
                direction: *direction,
                from,
                to,
                sender: UdpSender::new(*plan, start, sample),
                receiver: UdpReceiver::new(plan, start, sample),
                log: DeliveryLog::new(start),
                received_bytes: 0,
                reported_bytes: 0,
            }
        });
        let header_bytes = UDP_HEADER_BYTES + if flow.family == Family::V6 { 40 } else { 20 };
        let mtu_bytes = scenario.paths.get(flow.via).map_or(u32::MAX, |path| path.mtu_bytes);
        let failure = (plan.bytes > mtu_bytes.saturating_sub(header_bytes)).then(|| {
            let (payload, max_bytes) = (plan.bytes, mtu_bytes.saturating_sub(header_bytes));
            let key = if plan.call.is_none() { "`length`" } else { "a part of a frame" };
            format!(
                "datagrams of {payload} bytes do not fit into packets of {mtu_bytes}: the simulated \
                 world sends no fragments ({key} can be {max_bytes} here)"
            )
        });
        Some(Self {
            flow: index,
            plan: *plan,
            start,
            family: flow.family,
            path: flow.via,
            port: port(index),
            directions: udp_directions.collect(),
            identification: 0,
            failure,
        })
    }

    /// Returns the time at which [`Self::send`] must be called.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        if self.failure.is_some() {
            return Some(self.start);
        }
        self.directions.iter().filter_map(|direction| direction.sender.next_due()).min()
    }

    /// Returns true if all datagrams are sent and received, or the flow has failed.
    pub(crate) fn is_over(&self) -> bool {
        let is_done = |direction: &UdpDirection| {
            direction.sender.next_due().is_none()
                && direction.receiver.received() == direction.sender.sent()
        };
        self.failure.is_some() || self.directions.iter().all(is_done)
    }

    /// Sends the datagrams that are due.
    pub(crate) fn send(&mut self, now: Instant, hosts: &[SimHost], network: &mut SimNetwork<'_>) {
        if self.failure.is_some() {
            return;
        }
        for direction in &mut self.directions {
            while let Some(number) = direction.sender.poll(now) {
                let address = |host: usize| {
                    let ip = hosts.get(host)?.address_on(self.path, self.family)?;
                    Some(SocketAddr::new(ip, self.port))
                };
                let ends = address(direction.from).zip(address(direction.to));
                let Some((source, destination)) =
                    ends.filter(|_| network.is_up(self.path, direction.from))
                else {
                    direction.sender.on_refused();
                    continue;
                };
                self.identification = self.identification.wrapping_add(1);
                let (kind, flow) = (DatagramKind::Data, self.flow as u32);
                let sent_ns = now.as_nanos();
                let stamp = DatagramHeader { kind, token: TestToken::NONE, flow, number, sent_ns };
                let mut payload = stamp.to_bytes().to_vec();
                payload.resize(self.plan.bytes as usize, 0);
                let payload = Bytes::from(payload);
                let udp = Udp { source, destination, ecn: Ecn::NotCapable, payload };
                network.send(now, direction.from, Box::new(udp.emit(self.identification)));
                direction.sender.on_sent(now);
            }
        }
    }

    /// Takes a packet that has reached a host; returns true if it belongs to this flow.
    pub(crate) fn on_packet(
        &mut self,
        now: Instant,
        (host, path): (usize, usize),
        packet: &Packet,
    ) -> bool {
        if path != self.path || !Udp::is_in(packet) {
            return false;
        }
        // A damaged packet goes to the stack, which discards it.
        let Ok(udp) = Udp::parse(packet) else { return false };
        let stamp =
            DatagramHeader::parse(&udp.payload).filter(|_| udp.destination.port() == self.port);
        let Some(stamp) = stamp.filter(|stamp| stamp.flow as usize == self.flow) else {
            return false;
        };
        let Some(direction) = self.directions.iter_mut().find(|d| d.to == host) else {
            return false;
        };
        let bytes = udp.payload.len();
        if direction.receiver.on_datagram(now, (stamp.number, stamp.sent_at()), bytes) {
            direction.log.record(now, bytes as u64);
            direction.received_bytes += bytes as u64;
        }
        true
    }

    /// Returns the bytes received since the previous call, for each direction.
    pub(crate) fn intervals(&mut self, (at, span): (Instant, Duration)) -> Vec<Interval> {
        let flow = self.flow as u32;
        let intervals = self.directions.iter_mut().map(|direction| {
            let reported_before =
                std::mem::replace(&mut direction.reported_bytes, direction.received_bytes);
            Interval {
                t_ns: at.as_nanos(),
                span_ns: span.as_nanos() as u64,
                flow,
                stream: 0,
                direction: direction.direction,
                bytes: direction.received_bytes - reported_before,
                connection: None,
            }
        });
        intervals.collect()
    }

    /// Returns the deliveries at a direction's receiver until `until`.
    pub(crate) fn log(&self, direction: DataDirection, until: Instant) -> Option<DeliveryLog> {
        let udp_direction =
            self.directions.iter().find(|udp_direction| udp_direction.direction == direction)?;
        let mut log = udp_direction.log.clone();
        log.watch_until(until);
        Some(log)
    }

    /// Returns the results of every direction.
    pub(crate) fn finish(self, flow: usize, scenario: &Scenario) -> Vec<DirectionResult> {
        let path = scenario.paths.get(self.path).map_or("?", |path| path.name.as_str());
        let (plan, start, sample) = (self.plan, self.start, scenario.run.sample);
        let failed = self.failure.is_some();
        let results = self.directions.into_iter().filter(|_| !failed).filter_map(|udp_direction| {
            let (sent, received) =
                (udp_direction.sender.finish(), udp_direction.receiver.finish(true));
            let ends = (Some(&sent), Some(&received));
            let flow_times = (flow as u32, start, sample);
            let (stats, rows) =
                udp::merge_reports(&plan, flow_times, (udp_direction.direction, path), ends)?;
            Some((udp_direction.direction, stats, rows))
        });
        results.collect()
    }
}
