//! Two hosts that exchange packets, over a path that the input controls.

use std::time::Duration;

use bytes::Bytes;
use towpath_multipath::PathId;
use towpath_net::Instant;
use towpath_wire::ConnectionId;
use towpath_wire::{
    AddAddr, DataAck, Dss, DssMapping, Flags, IcmpKind, MpTcpRst, MptcpOption, Packet, Payload,
    Segment,
};

use crate::connection::{self, ReceiveBuffer, ReceiveBufferMode, WindowShare};
use crate::path_manager::{InterfaceId, LocalAddress};
use crate::stack::{Stack, StackConfig, StackEvent, SubflowStatus};
use crate::subflow::TcpState;

const PORT: u16 = 5_001;
/// Maximum number of packets in flight, and of delivered packets kept for duplication.
const MAX_IN_FLIGHT: usize = 64;
const BUFFER_BYTES: u64 = 40_000;
const SUBFLOW_LIMIT: u8 = 3;
/// Maximum number of MPTCP options, other than DSS, in a changed segment.
const MAX_MPTCP_OPTIONS: usize = 3;

/// Interprets `data` as actions of applications and a path, two bytes each. Real packets are
/// delivered unchanged, late, twice, changed in one field, or lost. No host may panic or exceed its
/// memory limits.
///
/// # Panics
///
/// Panics if a host violates this.
pub fn stack_pair(data: &[u8]) {
    let mut rest = data;
    let mut network = FuzzNetwork::new();
    while let Some((&[operation, value], tail)) = rest.split_first_chunk() {
        rest = tail;
        network.apply_operation(operation, value);
        network.run_hosts();
        network.assert_limits();
    }
    // At the end the path is lossless, and only timers run: deadlines must move on.
    for _ in 0..200 {
        while network.deliver(0) {}
        let next_deadline = network
            .hosts
            .iter()
            .filter_map(Stack::poll_timeout)
            .map(|(deadline, _)| deadline)
            .min();
        let Some(next_deadline) = next_deadline else { break };
        network.now = network.now.max(next_deadline);
        network.run_hosts();
        network.assert_limits();
    }
}

struct FuzzNetwork {
    now: Instant,
    hosts: [Stack; 2],
    connections: [Option<ConnectionId>; 2],
    /// Packets sent and not delivered yet, each with its sender and interface.
    in_flight: Vec<(usize, InterfaceId, Packet)>,
    /// Delivered packets, for duplication.
    delivered: Vec<(usize, InterfaceId, Packet)>,
}

impl FuzzNetwork {
    fn new() -> Self {
        let now = Instant::ZERO;
        let hosts = [0, 1].map(|host: u8| {
            let seed = u64::from(host) + 1;
            let mut stack = Stack::new(StackConfig {
                seed,
                syn_backlog: 4,
                time_wait_limit: 4,
                report_decisions: true,
            });
            for path in 0..2 {
                stack.add_interface(InterfaceId(u32::from(path)), 1_500);
                stack.set_address(now, local_address(host, path));
            }
            stack
        });
        let mut network = Self {
            now,
            hosts,
            connections: [None; 2],
            in_flight: Vec::new(),
            delivered: Vec::new(),
        };
        let [client, server] = &mut network.hosts;
        let _ = server.listen(PORT, configuration(true));
        let remote = (address(1, 0), PORT).into();
        network.connections[0] = client.connect(now, None, remote, configuration(false)).ok();
        network.run_hosts();
        network
    }

    fn apply_operation(&mut self, operation: u8, value: u8) {
        let host = usize::from(operation >> 7);
        let position = usize::from(value) % self.in_flight.len().max(1);
        match operation & 0x0f {
            0 | 1 => {
                for _ in 0..=value % 32 {
                    if !self.deliver(0) {
                        break;
                    }
                }
            }
            2 => drop(self.deliver(position)),
            3 => {
                if position < self.in_flight.len() {
                    self.in_flight.remove(position);
                }
            }
            4 => {
                let duplicate =
                    self.delivered.get(usize::from(value) % self.delivered.len().max(1)).cloned();
                self.in_flight.extend(duplicate);
            }
            5..=7 => self.change_field(operation >> 4 & 7, value),
            8 => self.now += Duration::from_micros(u64::from(value) * u64::from(value) * 500),
            9 => self.write(host, usize::from(value) * 64 + 1),
            10 => self.add_option(operation >> 4 & 7, value),
            11 => self.send_icmp_error(value),
            12 => self.change_interface(host, value),
            13 => self.change_address(host, value),
            14 => {
                if let Some(id) = self.connections.get(host).copied().flatten() {
                    self.end_connection(host, id, value);
                }
            }
            _ => self.now += Duration::from_millis(u64::from(value) * 50),
        }
    }

    fn write(&mut self, host: usize, bytes: usize) {
        let Some(id) = self.connections.get(host).copied().flatten() else { return };
        if let Some(stack) = self.hosts.get_mut(host) {
            stack.write(self.now, id, &mut Bytes::from(vec![7; bytes]));
        }
    }

    fn end_connection(&mut self, host: usize, id: ConnectionId, value: u8) {
        let Some(stack) = self.hosts.get_mut(host) else { return };
        match value & 3 {
            0 => stack.abort(self.now, id),
            1 => stack.release(self.now, id),
            _ => stack.shutdown(self.now, id),
        }
    }

    fn change_interface(&mut self, host: usize, value: u8) {
        let Some(stack) = self.hosts.get_mut(host) else { return };
        let interface = InterfaceId(u32::from(value >> 1 & 1));
        if value & 4 == 0 {
            stack.set_up(self.now, interface, value & 1 == 1);
        } else {
            stack.set_tx_ready(self.now, interface, value & 1 == 1);
        }
    }

    fn change_address(&mut self, host: usize, value: u8) {
        let Some(stack) = self.hosts.get_mut(host) else { return };
        let path = value & 1;
        if value & 2 == 0 {
            stack.remove_address(self.now, address(host as u8, path));
            return;
        }
        let local_address = LocalAddress {
            subflow: value & 4 != 0,
            signal: value & 8 != 0,
            backup: value & 16 != 0,
            fullmesh: value & 32 != 0,
            ..local_address(host as u8, path)
        };
        stack.set_address(self.now, local_address);
    }

    /// Changes a field of the next packet.
    fn change_field(&mut self, field: u8, value: u8) {
        self.edit_next_packet(|segment| {
            let offset = u32::from(value).wrapping_sub(128).wrapping_mul(if value & 1 == 0 {
                1
            } else {
                700
            });
            match field {
                0 => segment.seq = segment.seq.wrapping_add(offset),
                1 => segment.ack = segment.ack.wrapping_add(offset),
                2 => segment.flags = Flags(segment.flags.0 ^ value),
                3 => segment.window = u16::from(value) << (value & 7),
                4 => segment.payload.truncate(usize::from(value) * 4),
                5 => {
                    segment.payload =
                        Payload::from(Bytes::from(vec![value; usize::from(value) * 5]));
                }
                6 => change_dss(segment.options.dss.as_mut(), value),
                _ => match value & 7 {
                    0 => segment.options.dss = None,
                    1 => segment.options.mptcp.clear(),
                    2 => segment.options.timestamps = None,
                    3 => segment.options.sack.clear(),
                    4 => segment.source.set_port(segment.source.port() ^ u16::from(value)),
                    5 => segment.options.sack.extend(
                        [(segment.ack, segment.ack.wrapping_add(offset))]
                            .into_iter()
                            .take(4 - segment.options.sack.len().min(4)),
                    ),
                    6 => segment.options.mss = Some(u16::from(value)),
                    _ => segment.options.window_scale = Some(value),
                },
            }
        });
    }

    /// Adds an option to the next packet.
    fn add_option(&mut self, kind: u8, value: u8) {
        self.edit_next_packet(|segment| {
            let option = match kind {
                0 => MptcpOption::Priority { backup: value & 1 == 1 },
                1 => MptcpOption::Fail { dsn: dsn(segment).wrapping_add(u64::from(value)) },
                2 => MptcpOption::RemoveAddress([value & 7].into_iter().collect()),
                3 => MptcpOption::Reset(MpTcpRst {
                    transient: value & 1 == 1,
                    reason: value >> 1,
                    reserved: 0,
                }),
                4 => MptcpOption::FastClose { key: u64::from(value) },
                5 => MptcpOption::AddAddress(AddAddr {
                    address_id: value,
                    address: address(value & 1, value >> 1 & 3),
                    port: None,
                    hmac: (value & 8 == 0).then_some(u64::from(value)),
                }),
                _ => {
                    let mapping = DssMapping {
                        dsn: DataAck::Long(dsn(segment)),
                        ssn: u32::from(value),
                        len: u16::from(value & 7),
                        checksum: None,
                    };
                    segment.options.dss = Some(Dss {
                        data_fin: value & 8 != 0,
                        data_ack: None,
                        mapping: Some(mapping),
                    });
                    return;
                }
            };
            if segment.options.mptcp.len() < MAX_MPTCP_OPTIONS {
                segment.options.mptcp.push(option);
            }
        });
    }

    fn edit_next_packet(&mut self, edit: impl FnOnce(&mut Segment)) {
        let Some((_, _, packet)) = self.in_flight.first_mut() else { return };
        let Ok(mut segment) = packet.parse() else { return };
        edit(&mut segment);
        if segment.options.encoded_len() > 40 {
            segment.options.timestamps = None;
            segment.options.sack.clear();
        }
        if segment.options.encoded_len() <= 40 {
            *packet = Packet::emit(&segment, 0);
        }
    }

    /// Sends a router's error about a packet that was delivered.
    fn send_icmp_error(&mut self, value: u8) {
        let Some((sender, interface, packet)) = self.delivered.last().cloned() else { return };
        let kind = match value & 3 {
            0 => IcmpKind::Unreachable { hard: false },
            1 => IcmpKind::Unreachable { hard: true },
            _ => IcmpKind::TooBig { mtu: u32::from(value) * 8 },
        };
        if let Some(icmp_error) = kind.emit(address(9, 9), &packet) {
            self.in_flight.push((1 - sender, interface, icmp_error));
        }
    }

    /// Delivers the packet at this position of `in_flight`; returns false if there is none.
    fn deliver(&mut self, position: usize) -> bool {
        if position >= self.in_flight.len() {
            return false;
        }
        let (sender, interface, packet) = self.in_flight.remove(position);
        if let Some(stack) = self.hosts.get_mut(1 - sender) {
            stack.handle_packet(self.now, interface, packet.clone());
        }
        if self.delivered.len() >= MAX_IN_FLIGHT {
            self.delivered.remove(0);
        }
        self.delivered.push((sender, interface, packet));
        self.run_hosts();
        true
    }

    fn run_hosts(&mut self) {
        for (host, stack) in self.hosts.iter_mut().enumerate() {
            stack.handle_timeout(self.now);
            while let Some((interface, packet)) = stack.poll_transmit(self.now) {
                let room = MAX_IN_FLIGHT.saturating_sub(self.in_flight.len());
                self.in_flight
                    .extend(packet.split().take(room).map(|part| (host, interface, part)));
            }
            while let Some(event) = stack.poll_event() {
                if let (StackEvent::Accepted { connection, .. }, Some(accepted)) =
                    (event, self.connections.get_mut(host))
                {
                    *accepted = Some(accepted.unwrap_or(connection));
                }
            }
            let Some(id) = self.connections.get(host).copied().flatten() else { continue };
            while stack.read(self.now, id).is_some_and(|bytes| !bytes.is_empty()) {}
        }
    }

    fn assert_limits(&self) {
        for (stack, id) in self.hosts.iter().zip(self.connections) {
            let Some(status) = id.and_then(|id| stack.status(id)) else { continue };
            // Limits at both levels, each within the offered window.
            assert!(
                status.reorder_bytes <= BUFFER_BYTES * (2 + u64::from(SUBFLOW_LIMIT)),
                "{status:?}"
            );
            assert!(status.receive_buffer_bytes <= BUFFER_BYTES, "{status:?}");
            let is_open = |flow: &&SubflowStatus| flow.state != TcpState::Closed;
            let open = status.subflows.iter().filter(is_open).count();
            assert!(open <= usize::from(PathId::SLOTS), "{status:?}");
            assert!(status.subflows.len() <= 300, "{status:?}");
        }
    }
}

fn change_dss(dss: Option<&mut Dss>, value: u8) {
    let Some(dss) = dss else { return };
    let offset = u64::from(value >> 3).wrapping_sub(16).wrapping_mul(100);
    match (value & 7, &mut dss.mapping, &mut dss.data_ack) {
        (0, Some(mapping), _) => mapping.ssn = mapping.ssn.wrapping_add(offset as u32),
        (1, Some(mapping), _) => mapping.len = mapping.len.wrapping_add(offset as u16),
        (2, Some(DssMapping { dsn: DataAck::Long(dsn), .. }), _)
        | (3, _, Some(DataAck::Long(dsn))) => *dsn = dsn.wrapping_add(offset),
        (4, Some(mapping), _) => mapping.checksum = Some(u16::from(value)),
        (5, Some(mapping), _) => mapping.len = 0,
        _ => dss.data_fin = !dss.data_fin,
    }
}

/// Returns the data sequence number of the segment's mapping, or 0 without one.
fn dsn(segment: &Segment) -> u64 {
    let mapping = segment.options.dss.and_then(|dss| dss.mapping);
    match mapping.map(|mapping| mapping.dsn) {
        Some(DataAck::Long(dsn)) => dsn,
        Some(DataAck::Short(_)) | None => 0,
    }
}

fn address(host: u8, path: u8) -> std::net::IpAddr {
    [10, 64, path, host.saturating_add(1)].into()
}

fn local_address(host: u8, path: u8) -> LocalAddress {
    LocalAddress {
        address_id: path + 1,
        address: address(host, path),
        port: None,
        interface: InterfaceId(u32::from(path)),
        up: true,
        subflow: host == 0,
        signal: host == 1 && path == 1,
        backup: false,
        fullmesh: false,
        laminar: false,
    }
}

fn configuration(checksum: bool) -> connection::ConnectionConfig {
    connection::ConnectionConfig {
        checksum,
        subflow_limit: SUBFLOW_LIMIT,
        send_buffer_bytes: BUFFER_BYTES,
        receive_buffer: ReceiveBuffer {
            mode: ReceiveBufferMode::Linux,
            initial_bytes: BUFFER_BYTES / 4,
            max_bytes: BUFFER_BYTES,
            window_share: WindowShare::Percent(50),
        },
        ..connection::ConnectionConfig::linux()
    }
}
