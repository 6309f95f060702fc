//! What a subflow tells its owner.

use std::time::Duration;

use towpath_multipath::path::RecoveryPhase;

use crate::wire::Payload;

/// States of RFC 9293 §3.3.2; `Listen` is the stack's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TcpState {
    /// A SYN was sent.
    SynSent,
    /// A SYN was received, a SYN/ACK sent.
    SynReceived,
    /// Open.
    Established,
    /// We closed; the FIN is not acknowledged.
    FinWait1,
    /// We closed; the FIN is acknowledged.
    FinWait2,
    /// The peer closed.
    CloseWait,
    /// Both closed at once.
    Closing,
    /// The peer closed, then we.
    LastAck,
    /// Done; late packets are answered.
    TimeWait,
    /// Gone.
    Closed,
}

/// What a segment changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not a state")]
pub struct SegmentOutcome {
    /// The handshake was completed by it.
    pub established: bool,
    /// Bytes that were acknowledged cumulatively by it (SYN and FIN not counted).
    pub acked_bytes: u64,
    /// The segment passed all checks of sequence and acknowledgement numbers: its Multipath TCP
    /// options may be believed.
    pub acceptable: bool,
    /// Data that is now in order: subflow offset and bytes, in order, without gaps between them.
    pub data: Vec<(u64, Payload)>,
    /// The peer's FIN is now in order.
    pub fin: bool,
    /// The connection is gone, and why.
    pub closed: Option<CloseReason>,
    /// New loss was detected.
    pub lost: bool,
}

/// Why a subflow is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CloseReason {
    /// Both sides closed.
    Finished,
    /// The peer sent a valid RST.
    Reset,
    /// The peer refused the SYN.
    Refused,
    /// Nothing was acknowledged for too long.
    TimedOut,
    /// We reset it.
    Aborted,
    /// The network said that the peer cannot be reached.
    Unreachable,
}

/// What a timeout did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeoutOutcome {
    /// A retransmission timeout fired (a scheduler event; a reason to reinject).
    pub retransmission: bool,
    /// The connection is gone.
    pub closed: Option<CloseReason>,
}

/// Figures for results and schedulers.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SubflowStats {
    /// Smoothed round-trip time; the handshake's at first.
    pub srtt: Duration,
    /// Mean deviation.
    pub rttvar: Duration,
    /// Smallest.
    pub min_rtt: Duration,
    /// Timeout without back-off.
    pub rto: Duration,
    /// Timeouts in a row.
    pub timeouts: u32,
    /// Congestion window.
    pub cwnd_bytes: u64,
    /// Slow start threshold.
    pub ssthresh_bytes: u64,
    /// Sent, neither acknowledged nor lost.
    pub in_flight_bytes: u64,
    /// Pushed and never sent.
    pub queued_bytes: u64,
    /// Payload bytes of a full packet with today's options.
    pub mss_bytes: u32,
    /// Bytes a second.
    pub pacing_rate: u64,
    /// Loss recovery.
    pub phase: RecoveryPhase,
    /// Payload bytes sent, repeated ones too.
    pub sent_bytes: u64,
    /// Payload bytes cumulatively acknowledged by the peer.
    pub acked_bytes: u64,
    /// Payload bytes received in order.
    pub received_bytes: u64,
    /// Payload bytes received twice.
    pub duplicate_bytes: u64,
    /// Packets sent again.
    pub retransmissions: u64,
    /// Payload bytes sent again.
    pub retransmitted_bytes: u64,
    /// Retransmission timeouts.
    pub timeouts_total: u64,
    /// Undone reductions.
    pub undone: u64,
    /// Bytes in the reassembly of this subflow.
    pub reorder_bytes: u64,
}

/// What an ICMP message says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IcmpError {
    /// The packet with this sequence number was too big for a link of this MTU (RFC 1191, RFC 8201).
    TooBig {
        /// MTU.
        mtu_bytes: u32,
        /// Sequence number of the packet that did not fit.
        seq: u32,
    },
    /// Network, host or port cannot be reached.
    Unreachable {
        /// Sequence number of the packet that caused it.
        seq: u32,
        /// Whether it will not get better (port or protocol unreachable).
        hard: bool,
    },
}
