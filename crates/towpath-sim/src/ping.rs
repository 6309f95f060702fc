//! Request-reply datagrams over single paths (`udping`). Each passes the links like any packet,
//! and the other host replies at once, without its stack and processor.

use std::net::SocketAddr;

use bytes::Bytes;
use towpath_net::Instant;
use towpath_result::Probe;
use towpath_run::datagram;
use towpath_run::datagram::EchoDatagram;
use towpath_run::token::TestToken;
use towpath_run::traffic::Pinger;
use towpath_scenario::network::joined_by;
use towpath_scenario::{Family, Flow, Pattern, Scenario};
use towpath_wire::udp::UdpDatagram as Udp;
use towpath_wire::{Ecn, Packet};

use crate::host::SimHost;
use crate::network::SimNetwork;
use crate::traffic::port;

/// Request-reply datagrams of one flow.
#[derive(Debug)]
pub(crate) struct FlowPinger {
    from: usize,
    to: usize,
    family: Family,
    /// UDP port at both ends.
    port: u16,
    paths: Vec<(usize, Pinger)>,
    identification: u16,
}

impl FlowPinger {
    /// Returns the flow's pinger, `None` if its pattern is another one.
    pub(crate) fn new(scenario: &Scenario, (index, flow): (usize, &Flow)) -> Option<Self> {
        let Pattern::Udping(plan) = &flow.pattern else { return None };
        let pinger = Pinger::new(*plan, Instant::ZERO + flow.start);
        Some(Self {
            from: flow.from,
            to: flow.to,
            family: flow.family,
            port: port(index),
            paths: joined_by(scenario, flow).map(|path| (path, pinger.clone())).collect(),
            identification: 0,
        })
    }

    /// Returns the time at which [`Self::send_due`] must be called; `None` if nothing is pending.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.paths.iter().filter_map(|(_, pinger)| pinger.next_due()).min()
    }

    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.paths.iter().all(|(_, pinger)| pinger.is_over(now))
    }

    /// Sends the requests that are due.
    pub(crate) fn send_due(
        &mut self,
        now: Instant,
        hosts: &[SimHost],
        network: &mut SimNetwork<'_>,
    ) {
        for (path, pinger) in &mut self.paths {
            while let Some(number) = pinger.poll(now) {
                let address = |host: usize| {
                    let ip = hosts.get(host)?.address_on(*path, self.family)?;
                    Some(SocketAddr::new(ip, self.port))
                };
                let ends = address(self.from).zip(address(self.to));
                let Some((source, destination)) = ends.filter(|_| network.is_up(*path, self.from))
                else {
                    continue;
                };
                self.identification = self.identification.wrapping_add(1);
                let request =
                    EchoDatagram { token: TestToken::NONE, number, sent_ns: now.as_nanos() };
                let payload = Bytes::copy_from_slice(&request.to_bytes());
                let udp = Udp { source, destination, ecn: Ecn::NotCapable, payload };
                network.send(now, self.from, Box::new(udp.emit(self.identification)));
                pinger.on_sent(now, number);
            }
        }
    }

    /// Processes a packet that has reached a host, and sends the other end's reply at once. Returns
    /// true if the packet belongs to this flow.
    pub(crate) fn on_packet(
        &mut self,
        now: Instant,
        (host, path): (usize, usize),
        packet: &Packet,
        network: &mut SimNetwork<'_>,
    ) -> bool {
        if !Udp::is_in(packet) {
            return false;
        }
        // A damaged packet goes to the stack, which discards it.
        let Ok(udp) = Udp::parse(packet) else { return false };
        if udp.destination.port() != self.port {
            return false;
        }
        if host == self.from {
            let pinger = self.paths.iter_mut().find(|(pinger_path, _)| *pinger_path == path);
            if let (Some((_, pinger)), Some(reply)) =
                (pinger, EchoDatagram::parse_reply(&udp.payload))
            {
                pinger.on_reply(now, reply.number);
            }
            return true;
        }
        if host == self.to
            && let Some(reply) = datagram::reply(&udp.payload, |_| true)
        {
            self.identification = self.identification.wrapping_add(1);
            let payload = Bytes::copy_from_slice(&reply);
            let (source, destination) = (udp.destination, udp.source);
            let udp = Udp { source, destination, ecn: Ecn::NotCapable, payload };
            network.send(now, host, Box::new(udp.emit(self.identification)));
        }
        host == self.to
    }

    /// Returns the result of every request.
    pub(crate) fn finish(&self, now: Instant, flow: usize, scenario: &Scenario) -> Vec<Probe> {
        let probes = self.paths.iter().flat_map(|(path, pinger)| {
            let name = scenario.paths.get(*path).map_or("?", |path| path.name.as_str());
            pinger.finish(now, flow as u32, name)
        });
        probes.collect()
    }
}
