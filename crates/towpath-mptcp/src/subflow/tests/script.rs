//! Scripted tests of one subflow: segments in at given times, exact packets out.

use towpath_multipath::congestion::HyStartRule;
use towpath_multipath::path::PathId;
use towpath_net::Instant;
use towpath_wire::{Ecn, Flags, Options, Payload, Segment, Timestamps};

use super::link::{address, at_ms, payload};
use crate::subflow::{
    DataMapping, SegmentOutcome, Subflow, SubflowConfig, TimeoutOutcome, Transmit, TransmitReason,
};

/// Initial sequence numbers of the subflow under test and of its peer.
pub(super) const ISN: u32 = 0xffff_ff00;
pub(super) const PEER_ISN: u32 = 5000;
/// Payload of a full packet when timestamps are off.
pub(super) const MSS: u64 = 1460;

/// Returns a configuration without timestamps, super-segments and timer granularity, with Reno.
pub(super) fn plain_config() -> SubflowConfig {
    SubflowConfig {
        timestamps: false,
        super_segment_bytes: 0,
        tso_autosizing: false,
        timer_granularity: std::time::Duration::ZERO,
        congestion_control: "reno".to_owned(),
        hystart: HyStartRule::Off,
        ..SubflowConfig::linux()
    }
}

/// Subflow under test, driven by the segments of a scripted peer.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) subflow: Subflow,
    pub(super) now: Instant,
}

impl Script {
    /// Opens a connection at 1 s, whose handshake took 100 ms; the peer's window is 1 MiB.
    pub(super) fn open(config: SubflowConfig) -> Self {
        Self::open_with(config, |_| {})
    }

    /// Opens a connection as `open` does, with a modified SYN/ACK of the peer.
    pub(super) fn open_with(config: SubflowConfig, change: impl FnOnce(&mut Segment)) -> Self {
        let subflow = Subflow::connect(config, ISN, at_ms(900));
        let mut script = Self { subflow, now: at_ms(900) };
        assert_eq!(script.emit(), ["syn"]);
        script.now = at_ms(1000);
        let mut syn_ack = script.peer_segment(Flags::SYN.with(Flags::ACK), 0, 1);
        syn_ack.window = 65_535;
        syn_ack.options = Options {
            mss: Some(1460),
            window_scale: Some(4),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 77, echo: 0 }),
            ..Options::default()
        };
        change(&mut syn_ack);
        assert!(script.recv(syn_ack).established);
        assert_eq!(script.emit(), ["ack 1"]);
        script
    }

    /// Returns a segment from the peer, with offsets as sequence and acknowledgement numbers.
    #[expect(clippy::unused_self, reason = "reads better at the call")]
    pub(super) fn peer_segment(&self, flags: Flags, seq: u64, ack: u64) -> Segment {
        Segment {
            source: address(2),
            destination: address(1),
            seq: PEER_ISN.wrapping_add(seq as u32),
            ack: ISN.wrapping_add(ack as u32),
            flags,
            window: 65_535,
            ecn: Ecn::NotCapable,
            options: Options::default(),
            payload: Payload::EMPTY,
            segment_bytes: 0,
        }
    }

    pub(super) fn recv(&mut self, mut segment: Segment) -> SegmentOutcome {
        let outcome = self.subflow.on_segment(self.now, &mut segment, PathId(0), &[]);
        self.subflow.send.verify_counters();
        outcome
    }

    /// Receives an acknowledgement of everything before `ack`, with SACK blocks of offsets.
    pub(super) fn recv_ack(&mut self, ms: u64, ack: u64, blocks: &[(u64, u64)]) -> SegmentOutcome {
        self.now = at_ms(ms);
        let mut segment = self.peer_segment(Flags::ACK, self.subflow.receive.next(), ack);
        let wire = |offset: u64| ISN.wrapping_add(offset as u32);
        segment.options.sack = blocks.iter().map(|(s, e)| (wire(*s), wire(*e))).collect();
        self.recv(segment)
    }

    /// Receives data of the peer.
    pub(super) fn recv_data(&mut self, ms: u64, seq: u64, len: u32) -> SegmentOutcome {
        self.now = at_ms(ms);
        let mut segment = self.peer_segment(Flags::ACK, seq, self.subflow.send.acked_until());
        segment.payload = payload(2, seq, len);
        self.recv(segment)
    }

    /// Pushes `packets` full packets, each on its own.
    pub(super) fn push(&mut self, ms: u64, packets: usize) {
        self.now = at_ms(ms);
        for _ in 0..packets {
            let len = self.subflow.statistics().mss_bytes;
            let dsn = self.subflow.pushed_until();
            self.subflow.push(self.now, DataMapping { dsn, len, checksum: None }, false);
        }
    }

    /// Runs the timers that are due at this time in milliseconds.
    pub(super) fn run_timers_at(&mut self, ms: u64) -> TimeoutOutcome {
        self.now = at_ms(ms);
        self.subflow.on_timeout(self.now)
    }

    /// Sends everything that is due.
    pub(super) fn emit_transmits(&mut self) -> Vec<Transmit> {
        std::iter::from_fn(|| self.subflow.poll_transmit(self.now, 0)).collect()
    }

    /// Sends everything that is due and returns the packets as text. Data is numbered in packets of
    /// [`MSS`], acknowledgements by offset.
    pub(super) fn emit(&mut self) -> Vec<String> {
        self.emit_transmits().iter().map(describe).collect()
    }
}

/// Returns the subflow offset (SSN) after `packets` full packets.
pub(super) fn ssn_after(packets: u64) -> u64 {
    1 + packets * MSS
}

fn describe(transmit: &Transmit) -> String {
    let acked = transmit.ack.wrapping_sub(PEER_ISN);
    let offset = u64::from(transmit.seq.wrapping_sub(ISN));
    let packets = || {
        let packet = (offset - 1) / MSS + 1;
        let bytes = transmit.data.map_or(0, |sent| u64::from(sent.len));
        match (bytes / MSS, bytes % MSS) {
            (0 | 1, _) => format!("{packet}"),
            (count, _) => format!("{packet}-{}", packet + count - 1),
        }
    };
    let blocks = transmit.options.sack.iter();
    let blocks =
        blocks.map(|(s, e)| format!(" {}-{}", s.wrapping_sub(PEER_ISN), e.wrapping_sub(PEER_ISN)));
    match transmit.reason {
        TransmitReason::Handshake if transmit.flags.contains(Flags::ACK) => "syn ack".to_owned(),
        TransmitReason::Handshake => "syn".to_owned(),
        TransmitReason::Data => format!("data {}", packets()),
        TransmitReason::Retransmit => format!("again {}", packets()),
        TransmitReason::TailProbe => format!("probe {}", packets()),
        TransmitReason::Timeout => format!("timeout {}", packets()),
        TransmitReason::WindowProbe => "window probe".to_owned(),
        TransmitReason::KeepAlive => "keep alive".to_owned(),
        TransmitReason::Ack => format!("ack {acked}{}", blocks.collect::<String>()),
        TransmitReason::ChallengeAck => format!("challenge {acked}"),
        TransmitReason::Fin => "fin".to_owned(),
        TransmitReason::Reset => "reset".to_owned(),
    }
}
