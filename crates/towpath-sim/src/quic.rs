//! QUIC of a simulated host: its sockets, the packets of its datagrams, and its paths in the terms
//! that results use for subflows.

use std::collections::{BTreeMap, VecDeque};

use towpath_mptcp::path_manager::InterfaceId;
use towpath_mptcp::stack::{ConnectionStatus, SubflowStatus};
use towpath_mptcp::subflow::{SubflowStats, TcpState};
use towpath_multipath::PathId;
use towpath_net::Instant;
use towpath_quic as quic;
use towpath_scenario::network::path_of;
use towpath_wire::udp::UdpDatagram as Udp;
use towpath_wire::{Ecn, Packet};

/// QUIC endpoint of a host, with its connections and listeners.
#[derive(Debug)]
pub(crate) struct QuicHost {
    pub(crate) host: quic::QuicStack,
    pub(crate) config: quic::QuicConfig,
    /// Flow that each connection belongs to.
    pub(crate) flows: BTreeMap<quic::ConnectionId, usize>,
    /// Flow that each listener belongs to.
    pub(crate) listeners: BTreeMap<quic::ListenerId, usize>,
    /// Last polled status of each connection.
    pub(crate) last_status: BTreeMap<quic::ConnectionId, quic::ConnectionStatus>,
    /// Packets that are ready but not sent yet.
    outgoing: VecDeque<Packet>,
    /// Paths whose first queue, in this host, is full.
    full_paths: Vec<usize>,
    identification: u16,
}

impl QuicHost {
    pub(crate) fn new(seed: u64, config: quic::QuicConfig) -> Self {
        Self {
            host: quic::QuicStack::new(seed),
            config,
            flows: BTreeMap::new(),
            listeners: BTreeMap::new(),
            last_status: BTreeMap::new(),
            outgoing: VecDeque::new(),
            full_paths: Vec::new(),
            identification: 0,
        }
    }

    /// Returns true if any flow uses QUIC.
    pub(crate) fn is_used(&self) -> bool {
        !self.listeners.is_empty() || !self.flows.is_empty()
    }

    /// Receives a UDP packet; a damaged one is discarded.
    pub(crate) fn receive(&mut self, now: Instant, packet: &Packet) {
        let Ok(udp) = Udp::parse(packet) else { return };
        let datagram = quic::Datagram {
            local: udp.destination,
            remote: udp.source,
            ecn: match udp.ecn {
                Ecn::NotCapable => 0,
                Ecn::Capable1 => 1,
                Ecn::Capable0 => 2,
                Ecn::Marked => 3,
            },
            payload: udp.payload,
            segment_bytes: None,
        };
        self.host.handle_datagram(now, &datagram);
    }

    /// Sets whether the queue in this host at the start of a path has room.
    pub(crate) fn set_tx_ready(&mut self, path: usize, ready: bool) {
        self.full_paths.retain(|full_path| *full_path != path);
        if !ready {
            self.full_paths.push(path);
        }
    }

    /// Returns the next packet. A packet without room blocks the whole socket.
    pub(crate) fn transmit(&mut self, now: Instant) -> Option<Packet> {
        if self.outgoing.is_empty() {
            let datagram = self.host.poll_transmit(now)?;
            for payload in datagram.split() {
                self.identification = self.identification.wrapping_add(1);
                let udp = Udp {
                    source: datagram.local,
                    destination: datagram.remote,
                    ecn: match datagram.ecn & 3 {
                        0 => Ecn::NotCapable,
                        1 => Ecn::Capable1,
                        2 => Ecn::Capable0,
                        _ => Ecn::Marked,
                    },
                    payload,
                };
                self.outgoing.push_back(udp.emit(self.identification));
            }
        }
        let next_packet = self.outgoing.front()?;
        let path = next_packet
            .source()
            .zip(next_packet.destination())
            .and_then(|(source, destination)| path_of(source, destination));
        if path.is_some_and(|path| self.full_paths.contains(&path)) {
            return None;
        }
        self.outgoing.pop_front()
    }

    /// Polls the status of all connections.
    pub(crate) fn poll_status(&mut self) {
        for connection in self.flows.keys() {
            if let Some(status) = self.host.status(*connection) {
                self.last_status.insert(*connection, status);
            }
        }
    }
}

/// Converts the paths of a QUIC connection to subflows. Bytes are UDP payload: the library does
/// not count stream data per path.
pub(crate) fn as_subflows(status: &quic::ConnectionStatus) -> ConnectionStatus {
    ConnectionStatus {
        local: status.local,
        remote: status.remote,
        established: status.established,
        multipath: status.multipath,
        fallback: None,
        checksum: false,
        subflows: status.paths.iter().map(as_subflow).collect(),
        written_bytes: 0,
        acked_bytes: 0,
        received_bytes: 0,
        reorder_bytes: 0,
        reorder_peak_bytes: 0,
        receive_buffer_bytes: 0,
        reinjected_bytes: [0; 5],
        discarded_bytes: 0,
        penalisations: 0,
        window_blocked: std::time::Duration::ZERO,
    }
}

fn as_subflow(path: &quic::PathStatus) -> SubflowStatus {
    SubflowStatus {
        number: path.number,
        path: PathId(u8::try_from(path.number).unwrap_or(u8::MAX)),
        interface: InterfaceId(0),
        local: path.local,
        remote: path.remote,
        address_ids: (0, 0),
        state: match path.state {
            quic::PathState::Validating => TcpState::SynSent,
            quic::PathState::Established => TcpState::Established,
            quic::PathState::Abandoned { .. } => TcpState::Closed,
        },
        backup: path.backup,
        stale: false,
        congestion_control: "",
        tcp: SubflowStats {
            srtt: path.srtt,
            rttvar: path.rttvar,
            min_rtt: path.min_rtt,
            rto: path.pto,
            cwnd_bytes: path.cwnd_bytes,
            ssthresh_bytes: path.ssthresh_bytes.unwrap_or(u64::MAX),
            in_flight_bytes: path.in_flight_bytes,
            mss_bytes: u32::from(path.mtu_bytes),
            sent_bytes: path.sent_bytes,
            acked_bytes: path.acked_bytes,
            received_bytes: path.received_bytes,
            retransmissions: path.lost_packets,
            ..SubflowStats::default()
        },
    }
}
