//! Scripted peer: tests specify its segments, and the segments that they expect from the host.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use towpath_mptcp::connection::{ConnectionConfig, ReceiveBuffer, ReceiveBufferMode, WindowShare};
use towpath_mptcp::stack;
use towpath_mptcp::stack::{
    ConnectionError, InterfaceId, LocalAddress, Stack, StackEvent, StackNotice,
};
use towpath_net::Instant;
use towpath_wire::ConnectionId;
use towpath_wire::keys;
use towpath_wire::{
    DataAck, Dss, DssMapping, Ecn, Flags, MpCapable, MpJoin, MpTcpRst, MptcpOption, Options,
    Packet, Segment,
};

/// MPTCP key of the scripted peer.
pub(crate) const PEER_KEY: u64 = 0x0102_0304_0506_0708;
/// Nonce of the peer in MP_JOIN.
pub(crate) const PEER_NONCE: u32 = 0xa1a2_a3a4;
/// Port of the listening end.
pub(crate) const PORT: u16 = 80;

pub(crate) const ACK: Flags = Flags::ACK;
pub(crate) const SYN: Flags = Flags::SYN;
pub(crate) const RST: Flags = Flags::RST;
pub(crate) const FIN: Flags = Flags::FIN;

/// MP_TCPRST of a Multipath TCP error, and of a middlebox (§3.6).
pub(crate) const MPTCP_ERROR: MpTcpRst = MpTcpRst { transient: false, reason: 1, reserved: 0 };
pub(crate) const MIDDLEBOX: MpTcpRst = MpTcpRst { transient: false, reason: 6, reserved: 0 };

/// Subflow from the peer's side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerSubflow {
    pub(crate) host: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) peer_isn: u32,
    pub(crate) host_isn: u32,
    /// Next sequence number to send.
    pub(crate) seq: u32,
    /// Acknowledgement number: follows the host's data, unless a test sets it back.
    pub(crate) ack: u32,
    /// Window to offer, in units of 128 bytes.
    pub(crate) window: u16,
}

/// Our host and its scripted peer.
pub(crate) struct Script {
    pub(crate) now: Instant,
    pub(crate) stack: Stack,
    pub(crate) id: Option<ConnectionId>,
    pub(crate) subflows: Vec<PeerSubflow>,
    /// MPTCP key of the host under test.
    pub(crate) host_key: u64,
    pub(crate) notices: Vec<StackNotice>,
    /// Set when the connection has ended, with its result.
    pub(crate) closed: Option<Result<(), ConnectionError>>,
    pub(crate) connected: bool,
    /// Nonce of the host, from its last MP_JOIN.
    pub(crate) host_nonce: u32,
    /// Segments of the host that the test has not taken yet, each with the index of its subflow.
    emitted: VecDeque<(usize, Segment)>,
}

pub(crate) fn host_address(path: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, path, 1).into()
}

pub(crate) fn peer_address(path: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, path, 2).into()
}

/// Returns a simple configuration: immediate acknowledgements, single packets, and a fixed buffer.
pub(crate) fn config() -> ConnectionConfig {
    let receive_buffer = ReceiveBuffer {
        mode: ReceiveBufferMode::Fixed,
        initial_bytes: 64_000,
        max_bytes: 64_000,
        window_share: WindowShare::Percent(100),
    };
    ConnectionConfig { receive_buffer, ..ConnectionConfig::ideal() }
}

/// Returns the host's address on a path; its identifier is `path` + 1.
pub(crate) fn local_address(path: u8) -> LocalAddress {
    LocalAddress {
        address_id: path + 1,
        address: host_address(path),
        port: None,
        interface: InterfaceId(u32::from(path)),
        up: true,
        subflow: false,
        signal: false,
        backup: false,
        fullmesh: false,
        laminar: false,
    }
}

impl Script {
    fn new() -> Self {
        let mut stack = Stack::new(stack::StackConfig::default());
        for path in 0..3 {
            stack.add_interface(InterfaceId(path), 1_500);
            stack.set_address(Instant::ZERO, local_address(path as u8));
        }
        Self {
            now: Instant::ZERO,
            stack,
            id: None,
            subflows: Vec::new(),
            host_key: 0,
            notices: Vec::new(),
            closed: None,
            connected: false,
            host_nonce: 0,
            emitted: VecDeque::new(),
        }
    }

    /// Lets the host open a connection; its SYN is the next segment.
    pub(crate) fn client(config: ConnectionConfig) -> Self {
        let mut script = Self::new();
        let remote = SocketAddr::new(peer_address(0), PORT);
        let id = script.stack.connect(script.now, None, remote, config).unwrap();
        script.id = Some(id);
        script
    }

    /// Creates a listening host, and a peer with one subflow to begin with.
    pub(crate) fn server(config: ConnectionConfig) -> Self {
        let mut script = Self::new();
        script.stack.listen(PORT, config).unwrap();
        script.add_subflow(
            SocketAddr::new(host_address(0), PORT),
            SocketAddr::new(peer_address(0), 5_000),
        );
        script
    }

    /// Returns a host that opened a connection, with Multipath TCP confirmed at both ends.
    pub(crate) fn connected(config: ConnectionConfig) -> Self {
        let mut script = Self::client(config);
        let _ = script.expect();
        script.send(0, SYN.with(ACK), mptcp(capable_syn_ack()), b"");
        let third_packet = script.expect();
        script.host_key = capable_of(&third_packet).unwrap().sender_key.unwrap();
        script.send(0, ACK, script.data_ack(1), b"");
        let _ = script.drain();
        script
    }

    /// Returns a host that accepted a connection, with Multipath TCP confirmed at both ends.
    pub(crate) fn accepted(config: ConnectionConfig) -> Self {
        let mut script = Self::server(config);
        script.send(0, SYN, mptcp(capable_syn()), b"");
        let syn_ack = script.expect();
        script.host_key = capable_of(&syn_ack).unwrap().sender_key.unwrap();
        script.send(0, ACK, mptcp(script.capable_ack()), b"");
        script.send(0, ACK, script.data_ack(1), b"");
        let _ = script.drain();
        script
    }

    /// Opens a subflow from the peer's address on `path` to the host's on the same path.
    pub(crate) fn join(&mut self, path: u8) -> usize {
        let subflow = self.begin_join(path);
        self.send(subflow, ACK, mptcp(self.join_ack()), b"");
        assert!(self.drain().iter().any(|(index, _)| *index == subflow));
        subflow
    }

    /// Opens a subflow as [`Self::join`] does, up to the SYN/ACK.
    pub(crate) fn begin_join(&mut self, path: u8) -> usize {
        let peer = SocketAddr::new(
            peer_address(path),
            6_000 + u16::try_from(self.subflows.len()).unwrap(),
        );
        let subflow = self.add_subflow(SocketAddr::new(host_address(path), PORT), peer);
        self.send(subflow, SYN, mptcp(self.join_syn(path + 1)), b"");
        assert!(
            self.drain()
                .iter()
                .any(|(index, segment)| *index == subflow && segment.flags.contains(SYN))
        );
        subflow
    }

    pub(crate) fn add_subflow(&mut self, host: SocketAddr, peer: SocketAddr) -> usize {
        let peer_isn = 7_000 + 1_000_000 * u32::try_from(self.subflows.len()).unwrap();
        let subflow =
            PeerSubflow { host, peer, peer_isn, host_isn: 0, seq: peer_isn, ack: 0, window: 1_000 };
        self.subflows.push(subflow);
        self.subflows.len() - 1
    }

    /// Sends a segment with the next sequence number of this subflow.
    pub(crate) fn send(&mut self, subflow: usize, flags: Flags, options: Options, data: &[u8]) {
        let seq = self.subflows[subflow].seq;
        let segment = self.segment(subflow, flags, options, data);
        self.subflows[subflow].seq = seq.wrapping_add(segment.sequence_bytes());
        self.inject(&segment);
    }

    /// Returns the segment that [`Self::send`] would send.
    pub(crate) fn segment(
        &self,
        subflow: usize,
        flags: Flags,
        mut options: Options,
        data: &[u8],
    ) -> Segment {
        let PeerSubflow { host, peer, seq, ack, window, .. } = self.subflows[subflow];
        if flags.contains(SYN) {
            options.mss = Some(1_460);
            options.window_scale = Some(7);
        }
        Segment {
            source: peer,
            destination: host,
            seq,
            ack: if flags.contains(ACK) { ack } else { 0 },
            flags,
            window,
            ecn: Ecn::NotCapable,
            options,
            payload: Bytes::copy_from_slice(data).into(),
            segment_bytes: 0,
        }
    }

    /// Delivers a segment to the host on the interface of its destination.
    pub(crate) fn inject(&mut self, segment: &Segment) {
        let interface = match segment.destination.ip() {
            IpAddr::V4(ip) => InterfaceId(u32::from(ip.octets()[2])),
            IpAddr::V6(_) => InterfaceId(0),
        };
        self.stack.handle_packet(self.now, interface, Packet::emit(segment, 0));
        self.collect_output();
    }

    /// Collects the segments that the host sends now.
    pub(crate) fn collect_output(&mut self) {
        while let Some((_, packet)) = self.stack.poll_transmit(self.now) {
            for packet in packet.split() {
                let segment = packet.parse().unwrap();
                let subflow = self.subflow_index_of(&segment);
                self.emitted.push_back((subflow, segment));
            }
        }
        while let Some(event) = self.stack.poll_event() {
            match event {
                StackEvent::Accepted { connection, .. } => self.id = Some(connection),
                StackEvent::Connected(_) => self.connected = true,
                StackEvent::Closed { error, .. } => self.closed = Some(error.map_or(Ok(()), Err)),
                StackEvent::Notice { notice, .. } => self.notices.push(notice),
                StackEvent::Readable(_) | StackEvent::Writable(_) | StackEvent::Trace { .. } => {}
            }
        }
    }

    /// Returns the index of the segment's subflow, and updates the subflow's numbers.
    fn subflow_index_of(&mut self, segment: &Segment) -> usize {
        let same_addresses = |subflow: &PeerSubflow| {
            (subflow.host, subflow.peer) == (segment.source, segment.destination)
        };
        let subflow = self.subflows.iter().position(same_addresses);
        let subflow =
            subflow.unwrap_or_else(|| self.add_subflow(segment.source, segment.destination));
        let state = &mut self.subflows[subflow];
        if segment.flags.contains(SYN) {
            state.host_isn = segment.seq;
            state.ack = segment.seq;
            match join_of(segment) {
                Some(MpJoin::Syn { nonce, .. } | MpJoin::SynAck { nonce, .. }) => {
                    self.host_nonce = nonce;
                }
                Some(MpJoin::Ack { .. }) | None => {}
            }
        }
        let end = segment.seq.wrapping_add(segment.sequence_bytes());
        if end.wrapping_sub(state.ack).cast_signed() > 0 {
            state.ack = end;
        }
        subflow
    }

    /// Returns the next segment of the host, with the index of its subflow.
    pub(crate) fn next(&mut self) -> Option<(usize, Segment)> {
        self.collect_output();
        self.emitted.pop_front()
    }

    /// Returns the next segment of the host, on any subflow.
    pub(crate) fn expect(&mut self) -> Segment {
        self.next().expect("the host sends something").1
    }

    /// Returns the next segment of the host, which must be on this subflow.
    pub(crate) fn expect_on(&mut self, subflow: usize) -> Segment {
        let (index, segment) = self.next().expect("the host sends something");
        assert_eq!(index, subflow, "{segment:?}");
        segment
    }

    /// Returns all segments that the host has sent, each with the index of its subflow.
    pub(crate) fn drain(&mut self) -> Vec<(usize, Segment)> {
        self.collect_output();
        self.emitted.drain(..).collect()
    }

    /// Asserts that the host has nothing to send.
    pub(crate) fn expect_silence(&mut self) {
        let segments = self.drain();
        assert!(segments.is_empty(), "{segments:?}");
    }

    /// Advances the time; timers fire when they are due.
    pub(crate) fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        self.collect_output();
        while let Some((deadline, _)) =
            self.stack.poll_timeout().filter(|(deadline, _)| *deadline <= end)
        {
            self.now = self.now.max(deadline);
            self.stack.handle_timeout(self.now);
            self.collect_output();
        }
        self.now = end;
    }

    pub(crate) fn write(&mut self, data: &[u8]) {
        let len = data.len();
        let mut data = Bytes::copy_from_slice(data);
        assert_eq!(self.stack.write(self.now, self.id.unwrap(), &mut data), len);
        self.collect_output();
    }

    pub(crate) fn shutdown(&mut self) {
        self.stack.shutdown(self.now, self.id.unwrap());
        self.collect_output();
    }

    pub(crate) fn abort(&mut self) {
        self.stack.abort(self.now, self.id.unwrap());
        self.collect_output();
    }

    /// Reads all available data of the application.
    pub(crate) fn read(&mut self) -> Vec<u8> {
        let mut data = Vec::new();
        while let Some(bytes) = self.stack.read(self.now, self.id.unwrap()) {
            if bytes.is_empty() {
                break;
            }
            data.extend_from_slice(&bytes);
        }
        self.collect_output();
        data
    }

    pub(crate) fn status(&self) -> stack::ConnectionStatus {
        self.stack.status(self.id.unwrap()).unwrap()
    }

    /// Returns the host's data sequence number of a data offset, on the wire.
    pub(crate) fn host_dsn(&self, offset: u64) -> u64 {
        keys::initial_dsn(self.host_key).wrapping_add(offset)
    }

    /// Returns a DSS that acknowledges everything before this offset of the host's data.
    pub(crate) fn data_ack(&self, offset: u64) -> Options {
        dss(Dss { data_ack: Some(DataAck::Long(self.host_dsn(offset))), ..Dss::default() })
    }

    /// Returns a DSS that maps this subflow's next `len` bytes to an offset in the peer's data.
    pub(crate) fn dss_mapping(&self, subflow: usize, offset: u64, len: u16) -> Options {
        let PeerSubflow { seq, peer_isn, .. } = self.subflows[subflow];
        self.dss_mapping_at(seq.wrapping_sub(peer_isn), offset, len)
    }

    /// Returns a DSS that maps `len` bytes from this subflow sequence number on to an offset in the
    /// peer's data.
    pub(crate) fn dss_mapping_at(&self, ssn: u32, offset: u64, len: u16) -> Options {
        let dsn = DataAck::Long(peer_dsn(offset));
        let mapping = DssMapping { dsn, ssn, len, checksum: None };
        let data_ack = Some(DataAck::Long(self.host_dsn(1)));
        dss(Dss { data_fin: false, data_ack, mapping: Some(mapping) })
    }

    /// Sends the peer's data with its mapping.
    pub(crate) fn send_data(&mut self, subflow: usize, offset: u64, data: &[u8]) {
        let mapping = self.dss_mapping(subflow, offset, u16::try_from(data.len()).unwrap());
        self.send(subflow, ACK, mapping, data);
    }

    /// Returns a DATA_FIN without data that acknowledges the host's data before `ack_offset`.
    pub(crate) fn data_fin(&self, offset: u64, ack_offset: u64) -> Options {
        let dsn = DataAck::Long(peer_dsn(offset));
        let mapping = Some(DssMapping { dsn, ssn: 0, len: 1, checksum: None });
        let data_ack = Some(DataAck::Long(self.host_dsn(ack_offset)));
        dss(Dss { data_fin: true, data_ack, mapping })
    }

    /// Returns MP_CAPABLE of the third packet, when the peer opened the connection.
    pub(crate) fn capable_ack(&self) -> MptcpOption {
        let capable = MpCapable { receiver_key: Some(self.host_key), ..mp_capable_with_key() };
        MptcpOption::Capable(capable)
    }

    /// Returns MP_JOIN of a SYN from the peer.
    pub(crate) fn join_syn(&self, address_id: u8) -> MptcpOption {
        let token = keys::token(self.host_key);
        MptcpOption::Join(MpJoin::Syn { backup: false, address_id, token, nonce: PEER_NONCE })
    }

    /// Returns the peer's 160-bit HMAC for a subflow that it opened, after the host's SYN/ACK.
    pub(crate) fn join_ack(&self) -> MptcpOption {
        let hmac = keys::join_hmac(PEER_KEY, self.host_key, PEER_NONCE, self.host_nonce);
        MptcpOption::Join(MpJoin::Ack { hmac: *hmac.first_chunk().unwrap() })
    }

    /// Returns the peer's SYN/ACK option for a subflow that the host opened.
    pub(crate) fn join_syn_ack(&self, address_id: u8) -> MptcpOption {
        let hmac = keys::join_hmac(PEER_KEY, self.host_key, PEER_NONCE, self.host_nonce);
        let hmac = u64::from_be_bytes(*hmac.first_chunk().unwrap());
        MptcpOption::Join(MpJoin::SynAck { backup: false, address_id, hmac, nonce: PEER_NONCE })
    }

    /// Returns the HMAC that the host must send.
    pub(crate) fn host_hmac(&self) -> [u8; 32] {
        keys::join_hmac(self.host_key, PEER_KEY, self.host_nonce, PEER_NONCE)
    }
}

/// Returns the data sequence number of an offset in the peer's data.
pub(crate) fn peer_dsn(offset: u64) -> u64 {
    keys::initial_dsn(PEER_KEY).wrapping_add(offset)
}

/// Returns options that consist of this DSS.
pub(crate) fn dss(dss: Dss) -> Options {
    Options { dss: Some(dss), ..Options::default() }
}

/// Returns options that consist of this Multipath TCP option.
pub(crate) fn mptcp(option: MptcpOption) -> Options {
    Options { mptcp: [option].into_iter().collect(), ..Options::default() }
}

/// Returns MP_CAPABLE of a SYN, with correct flags and no key.
pub(crate) fn mp_capable_without_key() -> MpCapable {
    MpCapable {
        version: 1,
        checksum: false,
        extensibility: false,
        no_join_to_source: false,
        hmac_sha256: true,
        sender_key: None,
        receiver_key: None,
        data: None,
    }
}

/// Returns MP_CAPABLE of a SYN/ACK, with the peer's key.
pub(crate) fn mp_capable_with_key() -> MpCapable {
    MpCapable { sender_key: Some(PEER_KEY), ..mp_capable_without_key() }
}

/// Returns the option MP_CAPABLE of a SYN.
pub(crate) fn capable_syn() -> MptcpOption {
    MptcpOption::Capable(mp_capable_without_key())
}

/// Returns the option MP_CAPABLE of a SYN/ACK.
pub(crate) fn capable_syn_ack() -> MptcpOption {
    MptcpOption::Capable(mp_capable_with_key())
}

pub(crate) fn capable_of(segment: &Segment) -> Option<MpCapable> {
    segment.options.mptcp.iter().find_map(|option| match option {
        MptcpOption::Capable(capable) => Some(*capable),
        _ => None,
    })
}

pub(crate) fn join_of(segment: &Segment) -> Option<MpJoin> {
    segment.options.mptcp.iter().find_map(|option| match option {
        MptcpOption::Join(join) => Some(*join),
        _ => None,
    })
}

/// Returns the MP_TCPRST of a RST; panics for any other segment.
pub(crate) fn reset_of(segment: &Segment) -> Option<MpTcpRst> {
    assert!(segment.flags.contains(RST), "{segment:?}");
    segment.options.mptcp.iter().find_map(|option| match option {
        MptcpOption::Reset(reset) => Some(*reset),
        _ => None,
    })
}

/// Returns the offset in the peer's data that a segment of the host acknowledges.
pub(crate) fn data_acked(segment: &Segment) -> Option<u64> {
    match segment.options.dss?.data_ack? {
        DataAck::Long(number) => Some(number.wrapping_sub(keys::initial_dsn(PEER_KEY))),
        DataAck::Short(_) => panic!("32 bits"),
    }
}

pub(crate) fn payload(segment: &Segment) -> Vec<u8> {
    segment.payload.to_bytes().to_vec()
}

pub(crate) fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

pub(crate) fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}
