//! States, results and statistics that a subflow reports to its owner.

use std::time::Duration;

use towpath_multipath::path::RecoveryPhase;
use towpath_wire::Payload;

/// TCP states of RFC 9293 §3.3.2; `Listen` belongs to the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TcpState {
    /// We sent a SYN and await the reply.
    SynSent,
    /// A SYN was received, a SYN/ACK sent.
    SynReceived,
    /// Connection is open in both directions.
    Established,
    /// We closed; our FIN is not acknowledged.
    FinWait1,
    /// We closed; our FIN is acknowledged.
    FinWait2,
    /// The peer sent a FIN; we may still send.
    CloseWait,
    /// Both sides closed simultaneously; our FIN is not acknowledged.
    Closing,
    /// The peer closed, then we closed; our FIN is not acknowledged.
    LastAck,
    /// Both FINs are acknowledged; late packets are still acknowledged.
    TimeWait,
    /// No connection; the subflow can be removed.
    Closed,
}

/// Effect of a received segment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not a state")]
pub struct SegmentOutcome {
    /// Set when the segment completed the handshake.
    pub established: bool,
    /// Bytes cumulatively acknowledged by the segment (SYN and FIN not counted).
    pub acked_bytes: u64,
    /// Set when all checks of sequence and acknowledgement numbers passed: the Multipath TCP
    /// options are trustworthy.
    pub acceptable: bool,
    /// Data that is now in order: subflow offset and bytes, in order, without gaps between them.
    pub data: Vec<(u64, Payload)>,
    /// Set when the peer's FIN became in order.
    pub fin: bool,
    /// Reason, if the segment closed the connection.
    pub closed: Option<CloseReason>,
    /// Set when new loss was detected.
    pub lost: bool,
}

/// Reason why a subflow is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CloseReason {
    /// Both sides closed regularly with a FIN.
    Finished,
    /// The peer sent a valid RST.
    Reset,
    /// The peer refused the SYN.
    Refused,
    /// Data was not acknowledged before the timeout.
    TimedOut,
    /// We reset the subflow with RST.
    Aborted,
    /// The network reported the peer as unreachable.
    Unreachable,
}

/// Effect of a timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeoutOutcome {
    /// Set when a retransmission timeout fired (a scheduler event; a reason to reinject).
    pub retransmission: bool,
    /// Reason, if the timeout closed the connection.
    pub closed: Option<CloseReason>,
}

/// Statistics for results and schedulers.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SubflowStats {
    /// Smoothed round-trip time; initially that of the handshake.
    pub srtt: Duration,
    /// Mean deviation of the round-trip time.
    pub rttvar: Duration,
    /// Smallest round-trip time measured.
    pub min_rtt: Duration,
    /// Retransmission timeout, without back-off.
    pub rto: Duration,
    /// Consecutive timeouts without an acknowledgement.
    pub timeouts: u32,
    /// Congestion window in bytes.
    pub cwnd_bytes: u64,
    /// Slow start threshold in bytes.
    pub ssthresh_bytes: u64,
    /// Bytes sent that are neither acknowledged nor lost.
    pub in_flight_bytes: u64,
    /// Bytes pushed and never sent.
    pub queued_bytes: u64,
    /// Payload bytes of a full packet with the current options.
    pub mss_bytes: u32,
    /// Pacing rate in bytes per second.
    pub pacing_rate: u64,
    /// Phase of loss recovery.
    pub phase: RecoveryPhase,
    /// Payload bytes sent, including retransmissions.
    pub sent_bytes: u64,
    /// Payload bytes cumulatively acknowledged by the peer.
    pub acked_bytes: u64,
    /// Payload bytes received in order.
    pub received_bytes: u64,
    /// Payload bytes received more than once.
    pub duplicate_bytes: u64,
    /// Packets retransmitted so far.
    pub retransmissions: u64,
    /// Payload bytes retransmitted so far.
    pub retransmitted_bytes: u64,
    /// Number of retransmission timeouts so far.
    pub timeouts_total: u64,
    /// Number of window reductions that were undone.
    pub undone: u64,
    /// Out-of-order bytes of this subflow.
    pub reorder_bytes: u64,
}

/// Error reported by an ICMP message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IcmpError {
    /// The packet with this sequence number exceeded the MTU of a link (RFC 1191, RFC 8201).
    TooBig {
        /// MTU of the link in bytes.
        mtu_bytes: u32,
        /// Sequence number of the packet that did not fit.
        seq: u32,
    },
    /// Network, host or port is unreachable.
    Unreachable {
        /// Sequence number of the packet that caused the error.
        seq: u32,
        /// True if the error is permanent (port or protocol unreachable).
        hard: bool,
    },
}
