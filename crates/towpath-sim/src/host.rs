//! Simulated host: its stack, its addresses and its processor.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use towpath_mptcp::connection;
use towpath_mptcp::path_manager::{InterfaceId, LocalAddress};
use towpath_mptcp::settings::HostSettings;
use towpath_mptcp::stack::{self, ListenerId, Stack};
use towpath_net::{Instant, stream_seed};
use towpath_quic as quic;
use towpath_scenario::flow_plan::request_directions;
use towpath_scenario::network::{address, end_of, endpoints, families, profile_endpoints};
use towpath_scenario::{Endpoint, Family, Flow, Scenario, Transport};
use towpath_wire::Packet;
use towpath_wire::udp;

use crate::error::SimError;
use crate::job::SimJob;
use crate::quic::QuicHost;
use crate::quic_flow::earliest;
use crate::socket::StreamSocket;
use crate::traffic::port;

/// Linux's `tcp_max_syn_backlog` on a host with a few gigabytes of memory.
const SYN_BACKLOG: usize = 4_096;
/// Linux's `tcp_max_tw_buckets` on the same host.
const TIME_WAIT_LIMIT: usize = 65_536;

/// A simulated host with its stack and processor.
#[derive(Debug)]
pub(crate) struct SimHost {
    pub(crate) name: String,
    pub(crate) stack: Stack,
    pub(crate) quic: QuicHost,
    pub(crate) settings: HostSettings,
    /// Stream and side that each socket belongs to.
    pub(crate) ends: BTreeMap<StreamSocket, (usize, usize)>,
    /// Time of the stack's next timer; updated after each call that may change it.
    deadline: Option<Instant>,
    /// Set when the stack got input, so that it may have output.
    pub(crate) may_have_output: bool,
    /// Time until which the processor is busy with earlier packets.
    busy_until: Instant,
    /// Total processor time used.
    pub(crate) busy_time: Duration,
    /// Packets that wait for the processor.
    inbox: VecDeque<(InterfaceId, Box<Packet>)>,
    /// Current local address of each path, by path and whether the family is IPv6.
    addresses: BTreeMap<(usize, bool), IpAddr>,
    /// Next MPTCP address identifier.
    next_address_id: u8,
    /// By path: how often its address has changed.
    generations: BTreeMap<usize, u8>,
}

fn is_v6(family: Family) -> bool {
    family == Family::V6
}

impl SimHost {
    /// Creates host number `index` with its interfaces and addresses.
    pub(crate) fn new(job: &SimJob, index: usize, seed: u64) -> Result<Self, SimError> {
        let scenario = &*job.scenario;
        let host = scenario.hosts.get(index);
        let texts = host.map_or_else(Vec::new, |host| scenario.stack_settings(host));
        let settings_by_name: Vec<_> =
            texts.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let name = host.map_or_else(String::new, |host| host.name.clone());
        let setting_error = |source| SimError::Setting { host: name.clone(), source };
        let mut settings = HostSettings::from_texts(settings_by_name).map_err(setting_error)?;
        job.components.apply_to(&mut settings.connection);
        // Otherwise a client would fail to connect, as over a dead network.
        let name_error = |source| SimError::Name { host: name.clone(), source };
        settings.connection.check().map_err(name_error)?;
        let quic = quic_host(scenario, index, seed)?;
        let config = stack::StackConfig {
            seed: stream_seed(seed, &format!("host/{name}"), "stack"),
            syn_backlog: SYN_BACKLOG,
            time_wait_limit: TIME_WAIT_LIMIT,
            report_decisions: job.trace,
        };
        let mut sim_host = Self {
            name,
            stack: Stack::new(config),
            quic,
            settings,
            ends: BTreeMap::new(),
            deadline: None,
            may_have_output: true,
            busy_until: Instant::ZERO,
            busy_time: Duration::ZERO,
            inbox: VecDeque::new(),
            addresses: BTreeMap::new(),
            next_address_id: 1,
            generations: BTreeMap::new(),
        };
        for (path, data) in scenario.paths.iter().enumerate() {
            if end_of(data, index).is_some() {
                sim_host.stack.add_interface(interface(path), data.mtu_bytes);
                sim_host.assign_addresses(Instant::ZERO, scenario, index, path);
            }
        }
        Ok(sim_host)
    }

    /// Returns the configuration of a flow's connection in a run over `run_transport`.
    pub(crate) fn connection(
        &self,
        flow: &Flow,
        run_transport: Transport,
    ) -> connection::ConnectionConfig {
        let multipath = flow.transport_in(run_transport) == Transport::Mptcp;
        let mut config =
            connection::ConnectionConfig { multipath, ..self.settings.connection.clone() };
        // A message does not wait for the next one (`TCP_NODELAY`).
        config.subflow.nagle &= request_directions(&flow.pattern).is_empty();
        config
    }

    /// Returns the configuration of a QUIC connection over `transport`.
    pub(crate) fn quic_connection(&self, transport: Transport) -> quic::QuicConfig {
        quic::QuicConfig { multipath: transport == Transport::Mpquic, ..self.quic.config.clone() }
    }

    /// Listens for the connections of a flow, over its transport.
    pub(crate) fn listen(
        &mut self,
        (index, flow): (usize, &Flow),
        run_transport: Transport,
    ) -> Result<Option<ListenerId>, SimError> {
        let transport = flow.transport_in(run_transport);
        let name = || self.name.clone();
        if transport.is_quic() {
            let result = self.quic.host.listen(port(index), self.quic_connection(transport));
            let id = result.map_err(|source| SimError::Quic { host: name(), source })?;
            self.quic.listeners.insert(id, index);
            return Ok(None);
        }
        let result = self.stack.listen(port(index), self.connection(flow, run_transport));
        result.map(Some).map_err(|source| SimError::Name { host: name(), source })
    }

    fn assign_addresses(&mut self, now: Instant, scenario: &Scenario, index: usize, path: usize) {
        let Some(end) = scenario.paths.get(path).and_then(|data| end_of(data, index)) else {
            return;
        };
        let on_path = |endpoints: Vec<Endpoint>| endpoints.into_iter().find(|e| e.path == path);
        // The profile's limit concerns Multipath TCP only.
        let endpoint = on_path(profile_endpoints(scenario, index));
        let quic_endpoint = on_path(endpoints(scenario, index));
        let generation = self.generations.get(&path).copied().unwrap_or_default();
        for family in families(scenario) {
            let address = address(path, end, family, generation);
            let address_id = self.next_address_id;
            self.next_address_id = self.next_address_id.checked_add(1).unwrap_or(1);
            self.addresses.insert((path, is_v6(family)), address);
            self.stack.set_address(
                now,
                LocalAddress {
                    address_id,
                    address,
                    port: None,
                    interface: interface(path),
                    up: true,
                    subflow: endpoint.is_some_and(|e| e.subflow),
                    signal: endpoint.is_some_and(|e| e.signal),
                    backup: endpoint.is_some_and(|e| e.backup),
                    fullmesh: endpoint.is_some_and(|e| e.fullmesh),
                    laminar: endpoint.is_some_and(|e| e.laminar),
                },
            );
            self.quic.host.set_address(
                now,
                quic::LocalAddress {
                    address,
                    interface: interface(path).0,
                    up: true,
                    subflow: quic_endpoint.is_some_and(|e| e.subflow),
                    backup: quic_endpoint.is_some_and(|e| e.backup),
                },
            );
        }
        self.may_have_output = true;
    }

    /// Replaces the address on a path by the next one of the subnet; returns the texts of the
    /// events.
    pub(crate) fn change_address(
        &mut self,
        now: Instant,
        scenario: &Scenario,
        index: usize,
        path: usize,
    ) -> Vec<String> {
        let mut events = Vec::new();
        for family in families(scenario) {
            if let Some(old_address) = self.addresses.remove(&(path, is_v6(family))) {
                self.stack.remove_address(now, old_address);
                self.quic.host.remove_address(now, old_address);
                events.push(format!("address {old_address} removed"));
            }
        }
        let generation = self.generations.entry(path).or_default();
        *generation = generation.wrapping_add(1);
        self.assign_addresses(now, scenario, index, path);
        for family in families(scenario) {
            if let Some(new_address) = self.addresses.get(&(path, is_v6(family))) {
                events.push(format!("address {new_address} added"));
            }
        }
        events
    }

    /// Returns the host's current address on a path.
    pub(crate) fn address_on(&self, path: usize, family: Family) -> Option<IpAddr> {
        self.addresses.get(&(path, is_v6(family))).copied()
    }

    /// Returns the time at which [`Self::wake`] must be called.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let processor_done = (!self.inbox.is_empty()).then_some(self.busy_until);
        [self.deadline, processor_done].into_iter().flatten().min()
    }

    /// Receives a packet; returns its memory for reuse, `None` while it waits for the processor.
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        path: usize,
        mut packet: Box<Packet>,
    ) -> Option<Box<Packet>> {
        let cost = self.settings.cpu_per_packet;
        if cost.is_zero() {
            self.deliver(now, interface(path), &mut packet);
            Some(packet)
        } else {
            if self.inbox.is_empty() {
                self.busy_until = self.busy_until.max(now) + cost;
            }
            self.inbox.push_back((interface(path), packet));
            None
        }
    }

    fn deliver(&mut self, now: Instant, interface: InterfaceId, packet: &mut Packet) {
        // Without QUIC connections, skip the inspection of each packet.
        if self.quic.is_used() && udp::UdpDatagram::is_in(packet) {
            self.quic.receive(now, packet);
        } else {
            self.stack.receive(now, interface, packet);
        }
        self.may_have_output = true;
    }

    /// Switches an interface on or off.
    pub(crate) fn set_up(&mut self, now: Instant, path: usize, up: bool) {
        self.stack.set_up(now, interface(path), up);
        self.quic.host.set_up(now, interface(path).0, up);
        self.may_have_output = true;
    }

    /// Sets whether the host's own queue in front of a path has room.
    pub(crate) fn set_tx_ready(&mut self, now: Instant, path: usize, ready: bool) {
        self.stack.set_tx_ready(now, interface(path), ready);
        self.quic.set_tx_ready(path, ready);
        self.may_have_output = true;
    }

    /// Returns true if packets wait for the processor.
    pub(crate) fn has_cpu_backlog(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// Returns true if the busy processor prevents sending.
    pub(crate) fn is_cpu_busy(&self, now: Instant) -> bool {
        !self.settings.cpu_per_packet.is_zero() && self.busy_until > now
    }

    /// Processes packets whose processor time has passed, then the timers that are due.
    pub(crate) fn wake(&mut self, now: Instant) {
        while self.busy_until <= now {
            let Some((interface, mut packet)) = self.inbox.pop_front() else { break };
            self.busy_time += self.settings.cpu_per_packet;
            self.deliver(now, interface, &mut packet);
            if !self.inbox.is_empty() {
                self.busy_until += self.settings.cpu_per_packet;
            }
        }
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.stack.handle_timeout(now);
            self.quic.host.handle_timeout(now);
            self.may_have_output = true;
        }
    }

    /// Writes the next packet to send into `packet`; false if it has to wait.
    pub(crate) fn transmit(&mut self, now: Instant, packet: &mut Packet) -> bool {
        let cost = self.settings.cpu_per_packet;
        if !cost.is_zero() && self.busy_until > now {
            self.deadline = Some(self.deadline.map_or(self.busy_until, |d| d.min(self.busy_until)));
            return false;
        }
        let sent = self.stack.transmit(now, packet).is_some()
            || self.quic.transmit(now).is_some_and(|datagram| {
                *packet = datagram;
                true
            });
        if sent && !cost.is_zero() {
            let offload = self.settings.segmentation_offload;
            let packets = if offload { 1 } else { packets_of(packet) };
            let cost = cost.saturating_mul(packets);
            self.busy_until = now + cost;
            self.busy_time += cost;
        }
        sent
    }

    /// Schedules the next call after all output is sent. A deadline in the past becomes the next
    /// nanosecond, so that time advances.
    pub(crate) fn schedule_next(&mut self, now: Instant) {
        let next_nanosecond = now + Duration::from_nanos(1);
        let next = earliest(self.stack.next_deadline(), self.quic.host.poll_timeout());
        let busy_until = Some(self.busy_until).filter(|until| *until > now);
        // Work that is due now needs the processor, so no call is useful before it is free.
        let stack_due = next.map(|at| {
            at.max(if at <= now { busy_until.unwrap_or(next_nanosecond) } else { next_nanosecond })
        });
        self.deadline = match (stack_due, busy_until) {
            (Some(stack_due), Some(busy_until)) => Some(stack_due.min(busy_until)),
            (stack_due, busy_until) => stack_due.or(busy_until),
        };
        self.may_have_output = false;
    }
}

/// Creates the QUIC endpoint of host number `index`.
fn quic_host(scenario: &Scenario, index: usize, seed: u64) -> Result<QuicHost, SimError> {
    let host = scenario.hosts.get(index);
    let name = host.map_or_else(String::new, |host| host.name.clone());
    let texts = host.map_or_else(Vec::new, |host| scenario.quic_settings(host));
    let pairs = texts.iter().map(|(name, value)| (*name, value.as_str()));
    let config = quic::QuicConfig::from_texts(pairs)
        .map_err(|source| SimError::QuicSetting { host: name.clone(), source })?;
    let mtu_bytes = scenario.paths.iter().map(|path| path.mtu_bytes).max().unwrap_or(1_500);
    // Headers of IP and UDP; path MTU discovery then finds what each path carries.
    let header_bytes = if families(scenario).contains(&Family::V4) { 28 } else { 48 };
    let max_datagram_bytes = u16::try_from(mtu_bytes - header_bytes).unwrap_or(u16::MAX);
    // One datagram per packet: pacing spreads them, not segmentation offload.
    let config = quic::QuicConfig { max_datagram_bytes, segments: 1, ..config };
    Ok(QuicHost::new(stream_seed(seed, &format!("host/{name}"), "quic"), config))
}

/// Returns the interface of a path.
pub(crate) fn interface(path: usize) -> InterfaceId {
    InterfaceId(u32::try_from(path).unwrap_or(u32::MAX))
}

/// Returns the number of packets on the wire that a (super-)segment contains.
fn packets_of(packet: &Packet) -> u32 {
    let size = usize::from(packet.segment_bytes);
    let count = if size == 0 { 1 } else { packet.payload.len().div_ceil(size).max(1) };
    u32::try_from(count).unwrap_or(u32::MAX)
}
