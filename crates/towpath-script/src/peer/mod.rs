//! The peer: its state of each subflow, its packets, and its checks of the host's packets.
//!
//! Numbers are relative, as in the script, to the initial sequence number or data sequence number
//! of the end that sent the byte. Keys, tokens, nonces and HMACs are computed, never written.

mod build;
mod compare;
mod describe;
mod encode;
mod handshake;

use std::net::SocketAddr;
use std::time::Duration;

use towpath_wire::keys;
use towpath_wire::{
    DataAck, Dss, DssMapping, Flags, MpCapable, MpJoin, MptcpOption, Packet, Segment,
};

use crate::script::{self, Script, SubflowRoute};

pub use build::pattern;
pub(crate) use handshake::handshake_packets;

/// Fixed MPTCP key of the peer.
const PEER_KEY: u64 = 0x0102_0304_0506_0708;
/// Nonce of the peer on subflow 0; the others count from here.
const PEER_NONCE: u32 = 0xa1a2_a3a4;
/// First port of subflows that the peer opens.
const FIRST_PORT: u16 = 5_000;
/// Initial value of the peer's timestamp clock, in milliseconds.
const FIRST_TIMESTAMP: u32 = 1_000_000;
/// Limit of subflows per script.
const MAX_SUBFLOWS: usize = 6;

/// The peer of one connection.
#[derive(Debug)]
pub struct Peer {
    subflows: Vec<PeerSubflow>,
    /// Key of the host, learnt from its packets; `None` before.
    host_key: Option<u64>,
    /// Data offset of the next new byte.
    data_next: u64,
    /// Data offset after the last byte that the host has sent.
    data_ack: u64,
    /// Set when mappings have checksums.
    checksums: bool,
    now: Duration,
}

/// One subflow from the peer's perspective.
#[derive(Debug, Clone)]
struct PeerSubflow {
    host: SocketAddr,
    peer: SocketAddr,
    /// Set when the host opens the subflow and its port is not known yet.
    port_unknown: bool,
    path: u8,
    peer_isn: u32,
    host_isn: u32,
    /// Next relative sequence number to send.
    next_seq: u32,
    /// Relative sequence number after the last byte that the host has sent.
    ack: u32,
    /// Receive window to offer, in bytes.
    window: u32,
    /// Window scale that each end has offered in its SYN.
    peer_scale: Option<u8>,
    host_scale: Option<u8>,
    /// Set when each end has offered timestamps.
    peer_timestamps: bool,
    host_timestamps: bool,
    /// Last timestamp value of each end.
    last_host_timestamp: u32,
    last_peer_timestamp: u32,
    peer_nonce: u32,
    host_nonce: u32,
    /// The last mapping sent: subflow and data sequence number of its first byte.
    last_mapping: Option<(u32, u64)>,
    /// The last mapping of the host, in the same form.
    host_last_mapping: Option<(u32, u64)>,
    /// Packet that ICMP errors quote: the host's last one with data, or its first one before data.
    quotable_packet: Option<Vec<u8>>,
}

impl Peer {
    /// Creates the peer at the beginning of a script.
    pub fn new(script: &Script) -> Self {
        let route_of = |number| {
            let route = script.routes.iter().find(|route| route.number == number);
            route.copied().unwrap_or_else(|| SubflowRoute::default_for(number, script.role))
        };
        let setting = |name| script.settings.iter().find(|setting| setting.name == name);
        let isn = setting("peer-isn").and_then(|setting| setting.value.parse().ok());
        let mut subflows: Vec<_> =
            (0..MAX_SUBFLOWS).map(|number| PeerSubflow::new(&route_of(number))).collect();
        if let (Some(subflow), Some(isn)) = (subflows.first_mut(), isn) {
            subflow.peer_isn = isn;
        }
        Self {
            subflows,
            host_key: None,
            data_next: 1,
            data_ack: 1,
            checksums: setting("checksum").is_some_and(|setting| setting.value == "on"),
            now: Duration::ZERO,
        }
    }

    /// Sets the current time.
    pub fn set_now(&mut self, now: Duration) {
        self.now = now;
    }

    fn subflow(&self, number: usize) -> Result<&PeerSubflow, String> {
        self.subflows.get(number).ok_or_else(|| format!("no subflow {number}"))
    }

    fn subflow_mut(&mut self, number: usize) -> Result<&mut PeerSubflow, String> {
        self.subflows.get_mut(number).ok_or_else(|| format!("no subflow {number}"))
    }

    /// Returns true if the peer opens this subflow, and its path.
    pub fn route(&self, number: usize) -> Result<(bool, u8), String> {
        let subflow = self.subflow(number)?;
        Ok((subflow.peer.port() >= FIRST_PORT, subflow.path))
    }

    /// Records a packet of the host and returns its subflow. `None` if it is not a TCP packet.
    pub fn observe(&mut self, bytes: &[u8]) -> Result<Option<(usize, Segment)>, String> {
        let bytes = bytes::Bytes::copy_from_slice(bytes);
        let Ok(packet) = Packet::from_bytes(&bytes, false, 0) else { return Ok(None) };
        let segment =
            packet.parse().map_err(|error| format!("the host sent a packet with {error}"))?;
        let number = self.subflow_number_of(&segment)?;
        self.record(number, &segment);
        let subflow = self.subflow_mut(number)?;
        if !segment.payload.is_empty() || subflow.quotable_packet.is_none() {
            subflow.quotable_packet = Some(bytes.to_vec());
        }
        if segment.flags.contains(Flags::SYN) {
            subflow.host_isn = segment.seq;
            subflow.ack = 0;
            subflow.host_scale = segment.options.window_scale;
            subflow.host_timestamps = segment.options.timestamps.is_some();
        }
        if let Some(timestamps) = segment.options.timestamps {
            subflow.last_host_timestamp = timestamps.value;
        }
        let end = segment.seq.wrapping_add(segment.sequence_bytes()).wrapping_sub(subflow.host_isn);
        let is_newer =
            segment.flags.contains(Flags::SYN) || end.wrapping_sub(subflow.ack) < 1 << 30;
        if is_newer && !segment.flags.contains(Flags::RST) {
            subflow.ack = end;
        }
        self.check_payload(number, &segment)?;
        Ok(Some((number, segment)))
    }

    fn subflow_number_of(&mut self, segment: &Segment) -> Result<usize, String> {
        let Segment { source, destination, .. } = *segment;
        let same_addresses =
            |subflow: &PeerSubflow| subflow.peer == destination && subflow.host == source;
        if let Some(number) = self.subflows.iter().position(same_addresses) {
            return Ok(number);
        }
        let is_opening = |subflow: &PeerSubflow| {
            subflow.port_unknown && subflow.peer == destination && subflow.host.ip() == source.ip()
        };
        let opened = self
            .subflows
            .iter()
            .position(is_opening)
            .filter(|_| segment.flags.contains(Flags::SYN));
        let Some(number) = opened else {
            return Err(format!(
                "the host sent a packet from {source} to {destination}, where no subflow is"
            ));
        };
        let subflow = self.subflow_mut(number)?;
        subflow.port_unknown = false;
        subflow.host = source;
        Ok(number)
    }

    /// Records keys, nonces, and the end of the host's data.
    fn record(&mut self, number: usize, segment: &Segment) {
        for option in &segment.options.mptcp {
            match option {
                MptcpOption::Capable(MpCapable { sender_key, data, .. }) => {
                    self.host_key = sender_key.or(self.host_key);
                    if let Some((len, _)) = data {
                        self.data_ack = self.data_ack.max(1 + u64::from(*len));
                    }
                }
                MptcpOption::Join(MpJoin::Syn { nonce, .. } | MpJoin::SynAck { nonce, .. }) => {
                    if let Some(subflow) = self.subflows.get_mut(number) {
                        subflow.host_nonce = *nonce;
                    }
                }
                MptcpOption::Join(MpJoin::Ack { .. })
                | MptcpOption::AddAddress(_)
                | MptcpOption::RemoveAddress(_)
                | MptcpOption::Priority { .. }
                | MptcpOption::Fail { .. }
                | MptcpOption::FastClose { .. }
                | MptcpOption::Reset(_)
                | MptcpOption::Unknown { .. } => {}
            }
        }
        if let Some(Dss { mapping: Some(DssMapping { dsn, len, .. }), .. }) = segment.options.dss {
            let end = self.host_data_offset(dsn).wrapping_add(len.into());
            if len > 0 && end < 1 << 40 {
                self.data_ack = self.data_ack.max(end);
            }
        }
    }

    /// Converts a data sequence number of the host to a relative one.
    fn host_data_offset(&self, number: DataAck) -> u64 {
        relative(number, keys::initial_dsn(self.host_key.unwrap_or_default()))
    }

    /// Converts a data sequence number of the peer to a relative one.
    fn peer_data_offset(number: DataAck) -> u64 {
        relative(number, keys::initial_dsn(PEER_KEY))
    }

    /// Checks that the host's payload is what its application wrote.
    fn check_payload(&mut self, number: usize, segment: &Segment) -> Result<(), String> {
        let payload = segment.payload.to_bytes();
        let mapping = match segment.options.dss {
            Some(Dss { mapping: Some(DssMapping { dsn, ssn, .. }), .. }) if !payload.is_empty() => {
                Some((ssn, self.host_data_offset(dsn)))
            }
            Some(_) | None => None,
        };
        let subflow = self.subflow_mut(number)?;
        let has_keys = |option: &MptcpOption| {
            matches!(option, MptcpOption::Capable(MpCapable { data: Some(_), .. }))
        };
        if segment.options.mptcp.iter().any(has_keys) {
            subflow.host_last_mapping = Some((1, 1));
        }
        subflow.host_last_mapping = mapping.or(subflow.host_last_mapping);
        let seq = segment.seq.wrapping_sub(subflow.host_isn);
        let (ssn, dsn) = subflow.host_last_mapping.unwrap_or((1, 1));
        let offset = dsn.wrapping_add(u64::from(seq.wrapping_sub(ssn))).wrapping_sub(1);
        let mismatch =
            payload.iter().zip(offset..).position(|(byte, offset)| *byte != pattern(offset));
        // A keep-alive may repeat a previous byte (RFC 9293 §3.8.4).
        match mismatch {
            Some(offset) if segment.seq != subflow.host_isn => {
                Err(format!("byte {offset} of the payload is not what was written"))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the host's last packet with data on a subflow, for ICMP errors.
    pub(crate) fn quotable_packet(&self, number: usize) -> Result<&[u8], String> {
        self.subflow(number)?
            .quotable_packet
            .as_deref()
            .ok_or_else(|| "nothing to quote yet".to_owned())
    }

    /// Converts a relative sequence number of the host to the one on the wire.
    pub(crate) fn host_seq(&self, number: usize, relative: u32) -> Result<u32, String> {
        Ok(self.subflow(number)?.host_isn.wrapping_add(relative))
    }
}

/// Subtracts the initial data sequence number.
fn relative(number: DataAck, initial: u64) -> u64 {
    match number {
        DataAck::Long(number) => number.wrapping_sub(initial),
        DataAck::Short(number) => number.wrapping_sub(initial as u32).into(),
    }
}

impl PeerSubflow {
    fn new(route: &SubflowRoute) -> Self {
        let number = u32::try_from(route.number).unwrap_or_default();
        let (host, peer) = (script::host_address(route.host), script::peer_address(route.peer));
        let new_port = FIRST_PORT.wrapping_add(number as u16);
        let (host_port, peer_port) =
            if route.by_peer { (route.port, new_port) } else { (0, route.port) };
        Self {
            host: SocketAddr::new(host, host_port),
            peer: SocketAddr::new(peer, peer_port),
            port_unknown: !route.by_peer,
            path: route.peer,
            peer_isn: 7_000 + 1_000_000 * number,
            host_isn: 0,
            next_seq: 0,
            ack: 0,
            window: 65_535,
            peer_scale: None,
            host_scale: None,
            peer_timestamps: false,
            host_timestamps: false,
            last_host_timestamp: 0,
            last_peer_timestamp: 0,
            peer_nonce: PEER_NONCE.wrapping_add(number),
            host_nonce: 0,
            last_mapping: None,
            host_last_mapping: None,
            quotable_packet: None,
        }
    }

    /// Returns the window scale shifts of the peer and of the host; both 0 unless both ends offered
    /// one.
    fn scales(&self) -> (u8, u8) {
        match (self.peer_scale, self.host_scale) {
            (Some(peer), Some(host)) => (peer, host),
            _ => (0, 0),
        }
    }
}
