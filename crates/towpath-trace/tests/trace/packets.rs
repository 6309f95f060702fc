//! Captures that are built packet by packet.

use std::net::SocketAddr;

use bytes::Bytes;
use towpath_result::CapturedConnection;
use towpath_trace as trace;
use towpath_trace::CaptureAnalysis;
use towpath_wire::keys;
use towpath_wire::{
    DataAck, Dss, DssMapping, Flags, MpCapable, MpJoin, MptcpOption, Options, Packet, Payload,
    Segment,
};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const CLIENT_KEY: u64 = 0x0102_0304_0506_0708;
pub(crate) const SERVER_KEY: u64 = 0xf1f2_f3f4_f5f6_f7f8;

/// The layout of a capture file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) link: u16,
    /// Link-layer header of each IP packet.
    pub(crate) header: &'static [u8],
    pub(crate) nanos: bool,
    /// True if the file is big-endian.
    pub(crate) big: bool,
    /// Snap length in bytes.
    pub(crate) snap: usize,
    pub(crate) pcapng: bool,
}

pub(crate) const RAW: Layout =
    Layout { link: 101, header: &[], nanos: true, big: false, snap: 65_535, pcapng: false };

/// Captured packets with their times in nanoseconds.
#[derive(Debug, Default, Clone)]
pub(crate) struct Capture {
    pub(crate) packets: Vec<(u64, Vec<u8>)>,
}

impl Capture {
    pub(crate) fn add(&mut self, at_ns: u64, segment: &Segment) {
        self.add_with_id(at_ns, segment, 7);
    }

    pub(crate) fn add_with_id(&mut self, at_ns: u64, segment: &Segment, identification: u16) {
        let mut packet = Packet::emit(segment, identification);
        packet.complete_checksum();
        self.packets.push((at_ns, packet.to_vec()));
    }

    pub(crate) fn file(&self, layout: Layout) -> Vec<u8> {
        let mut out = Vec::new();
        let word = |out: &mut Vec<u8>, value: u32| {
            out.extend(if layout.big { value.to_be_bytes() } else { value.to_le_bytes() });
        };
        if layout.pcapng {
            for value in [0x0a0d_0d0a, 28, 0x1a2b_3c4d, if layout.big { 0x1_0000 } else { 1 }] {
                word(&mut out, value);
            }
            out.extend([0xff; 8]);
            word(&mut out, 28);
            let link = u32::from(layout.link);
            let link = if layout.big { link << 16 } else { link };
            // if_tsresol: milliseconds as a power of two would not be exact, so 10^-9.
            for value in [1, 32, link, 0] {
                word(&mut out, value);
            }
            let (code, len) = (9_u16, 1_u16);
            for number in [code, len] {
                out.extend(if layout.big { number.to_be_bytes() } else { number.to_le_bytes() });
            }
            out.extend([9, 0, 0, 0]);
            word(&mut out, 0);
            word(&mut out, 32);
        } else {
            let magic = if layout.nanos { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
            for value in [magic, 0x0002_0004, 0, 0, layout.snap as u32, u32::from(layout.link)] {
                word(&mut out, value);
            }
        }
        for (at_ns, packet) in &self.packets {
            let mut frame = layout.header.to_vec();
            frame.extend(packet);
            let captured = frame.len().min(layout.snap);
            if layout.pcapng {
                let padded = captured.next_multiple_of(4);
                let total = (32 + padded) as u32;
                let (high, low) = ((at_ns >> 32) as u32, *at_ns as u32);
                for value in [6, total, 0, high, low, captured as u32, frame.len() as u32] {
                    word(&mut out, value);
                }
                out.extend(&frame[..captured]);
                out.resize(out.len() + padded - captured, 0);
                word(&mut out, total);
            } else {
                let unit = if layout.nanos { 1 } else { 1_000 };
                let (seconds, fraction) = (at_ns / 1_000_000_000, at_ns % 1_000_000_000 / unit);
                for value in [seconds as u32, fraction as u32, captured as u32, frame.len() as u32]
                {
                    word(&mut out, value);
                }
                out.extend(&frame[..captured]);
            }
        }
        out
    }

    pub(crate) fn trace(&self) -> CaptureAnalysis {
        trace::read(self.file(RAW).as_slice(), None).unwrap()
    }
}

/// One TCP connection between two ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flow {
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
}

pub(crate) const CLIENT_ISN: u32 = 0xffff_ff00;
pub(crate) const SERVER_ISN: u32 = 5_000;

pub(crate) fn flow(number: u8) -> Flow {
    Flow {
        client: ([10, 0, number, 1], 40_000 + u16::from(number)).into(),
        server: ([10, 0, 0, 2], 80).into(),
    }
}

impl Flow {
    /// Returns a segment from the client; `seq` and `ack` are relative to the SYNs.
    pub(crate) fn up(
        self,
        seq: u32,
        ack: u32,
        flags: Flags,
        bytes: usize,
        options: Options,
    ) -> Segment {
        Segment {
            source: self.client,
            destination: self.server,
            seq: CLIENT_ISN.wrapping_add(seq),
            ack: SERVER_ISN.wrapping_add(ack),
            flags,
            options,
            payload: Payload::from(Bytes::from(vec![7; bytes])),
            ..Segment::EMPTY
        }
    }

    pub(crate) fn down(
        self,
        seq: u32,
        ack: u32,
        flags: Flags,
        bytes: usize,
        options: Options,
    ) -> Segment {
        Segment {
            source: self.server,
            destination: self.client,
            seq: SERVER_ISN.wrapping_add(seq),
            ack: CLIENT_ISN.wrapping_add(ack),
            ..self.up(0, 0, flags, bytes, options)
        }
    }
}

pub(crate) const SYN_ACK: Flags = Flags::SYN.with(Flags::ACK);

pub(crate) fn mptcp_options(option: MptcpOption) -> Options {
    Options { mptcp: vec![option], ..Options::default() }
}

pub(crate) fn mp_capable(
    version: u8,
    sender_key: Option<u64>,
    receiver_key: Option<u64>,
) -> Options {
    mptcp_options(MptcpOption::Capable(MpCapable {
        version,
        checksum: false,
        extensibility: false,
        no_join_to_source: false,
        hmac_sha256: true,
        sender_key,
        receiver_key,
        data: None,
    }))
}

pub(crate) fn server_dsn() -> u64 {
    keys::initial_dsn(SERVER_KEY).wrapping_add(1)
}

pub(crate) fn client_dsn() -> u64 {
    keys::initial_dsn(CLIENT_KEY).wrapping_add(1)
}

/// Returns a DSS that maps data from byte `offset` on to subflow sequence number `ssn`.
pub(crate) fn map(first_dsn: u64, offset: u64, ssn: u32, len: u16) -> Options {
    let dsn = DataAck::Long(first_dsn.wrapping_add(offset));
    let mapping = Some(DssMapping { dsn, ssn, len, checksum: None });
    Options { dss: Some(Dss { data_fin: false, data_ack: None, mapping }), ..Options::default() }
}

pub(crate) fn data_ack(first_dsn: u64, offset: u64) -> Options {
    let data_ack = Some(DataAck::Long(first_dsn.wrapping_add(offset)));
    Options { dss: Some(Dss { data_fin: false, data_ack, mapping: None }), ..Options::default() }
}

/// Returns the options of SYN, SYN/ACK and ACK of a connection's subflow: the first one's keys, or
/// a join.
pub(crate) fn handshake_options(number: u8) -> [Options; 3] {
    let (client_key, server_key) = (Some(CLIENT_KEY), Some(SERVER_KEY));
    match number {
        0 => [
            mp_capable(1, None, None),
            mp_capable(1, server_key, None),
            mp_capable(1, client_key, server_key),
        ],
        _ => join_options(number, keys::token(SERVER_KEY)).map(mptcp_options),
    }
}

/// Returns a handshake of version 1 on flow 0, 20 ms round trip, captured at the client.
pub(crate) fn handshake_capture() -> Capture {
    let mut capture = Capture::default();
    let flow_0 = flow(0);
    let [syn, reply, ack] = handshake_options(0);
    capture.add(1_000 * MS, &flow_0.up(0, 0, Flags::SYN, 0, syn));
    capture.add(1_020 * MS, &flow_0.down(0, 1, SYN_ACK, 0, reply));
    capture.add(1_020 * MS, &flow_0.up(1, 1, Flags::ACK, 0, ack));
    capture
}

/// Returns the MP_JOIN options of SYN, SYN/ACK and ACK.
pub(crate) fn join_options(address_id: u8, token: u32) -> [MptcpOption; 3] {
    [
        MpJoin::Syn { backup: false, address_id, token, nonce: 1 },
        MpJoin::SynAck { backup: false, address_id: 0, hmac: 2, nonce: 3 },
        MpJoin::Ack { hmac: [9; 20] },
    ]
    .map(MptcpOption::Join)
}

pub(crate) fn join(capture: &mut Capture, number: u8, at_ns: u64, token: u32) -> Flow {
    let joining = flow(number);
    let [syn, reply, ack] = join_options(number, token).map(mptcp_options);
    capture.add(at_ns, &joining.up(0, 0, Flags::SYN, 0, syn));
    let replied_ns = at_ns + 40 * MS;
    capture.add(replied_ns, &joining.down(0, 1, SYN_ACK, 0, reply));
    capture.add(replied_ns, &joining.up(1, 1, Flags::ACK, 0, ack));
    joining
}

pub(crate) fn only_connection(trace: &CaptureAnalysis) -> &CapturedConnection {
    assert_eq!(trace.connections.len(), 1, "{:?}", trace.connections);
    &trace.connections[0]
}

/// Returns 1000 bytes on each of two subflows. The second's bytes are reinjected on the first, and
/// the first's are retransmitted although acknowledged.
pub(crate) fn two_subflow_capture() -> Capture {
    let mut capture = handshake_capture();
    let first = flow(0);
    let second = join(&mut capture, 1, 1_030 * MS, keys::token(SERVER_KEY));
    let dsn = client_dsn();
    capture.add(1_100 * MS, &first.up(1, 1, Flags::ACK, 1_000, map(dsn, 0, 1, 1_000)));
    capture.add(1_101 * MS, &second.up(1, 1, Flags::ACK, 1_000, map(dsn, 1_000, 1, 1_000)));
    capture.add(1_130 * MS, &first.down(1, 1_001, Flags::ACK, 0, data_ack(dsn, 1_000)));
    capture.add(1_300 * MS, &first.up(1_001, 1, Flags::ACK, 1_000, map(dsn, 1_000, 1_001, 1_000)));
    capture.add(1_310 * MS, &first.up(1, 1, Flags::ACK, 1_000, map(dsn, 0, 1, 1_000)));
    capture.add(1_330 * MS, &first.down(1, 2_001, Flags::ACK, 0, data_ack(dsn, 2_000)));
    capture
}
