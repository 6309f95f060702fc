//! One TCP connection, as a state machine that knows nothing of Multipath TCP.
//!
//! It numbers bytes from the start of its own stream: offset 0 is the SYN, the first data byte has
//! offset 1 (the *subflow sequence number*, SSN, of RFC 8684), and the FIN follows the last byte. All
//! offsets are 64 bits wide; only `wire` knows 32-bit numbers. Payload is not stored here: what is
//! sent is remembered as [`Mapping`]s into the connection's send store, what arrives in order is
//! handed out at once.
//!
//! The owner composes packets: [`Subflow::poll_transmit`] says what to send, the owner adds the
//! payload and the Multipath TCP options.

use std::time::Duration;

use towpath_multipath::congestion::Sibling;
use towpath_multipath::path::{PathId, Phase};
use towpath_net::Instant;

use crate::wire::{Ecn, Flags, Options, Payload, Segment};

/// States of RFC 9293 §3.3.2; `Listen` is the stack's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
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

/// Switches and constants. `linux()` is what Linux 6.x does, `ideal()` the RFCs without a host's
/// limits.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name in [`towpath_multipath::congestion::ALL`].
    pub congestion_control: String,
    /// MTU of the interface.
    pub mtu_bytes: u32,
    /// RFC 6928.
    pub initial_window_packets: u32,
    /// Offer timestamps.
    pub timestamps: bool,
    /// Offer SACK.
    pub sack: bool,
    /// Our window scale; `None`: do not offer.
    pub window_scale: Option<u8>,
    /// Offer ECN.
    pub ecn: bool,
    /// Leave slow start early (RFC 9406).
    pub hystart: bool,
    /// Pace at a share of cwnd/srtt.
    pub pacing: bool,
    /// Cap on a super-segment; Linux's TSO autosizing: at least two packets, at most what
    /// `pacing_rate` sends in about 1 ms, never more than 64 KiB.
    pub tso_autosizing: bool,
    /// Longest super-segment in bytes of payload (1 packet when less than the MSS).
    pub super_segment_bytes: u32,
    /// Longest delay of an acknowledgement; zero: none.
    pub delayed_ack: Duration,
    /// Packets at the start that are acknowledged at once (Linux: quickack).
    pub quick_acks: u32,
    /// First retransmission timeout.
    pub rto_initial: Duration,
    /// Bounds of the timeout.
    pub rto_min: Duration,
    /// Bounds of the timeout.
    pub rto_max: Duration,
    /// Timers fire at multiples of it (Linux: jiffies, 4 ms); zero: exactly.
    pub timer_granularity: Duration,
    /// SYNs (or SYN/ACKs) repeated before giving up.
    pub syn_retries: u32,
    /// Retransmission timeouts in a row before giving up (Linux `tcp_retries2`).
    pub retries: u32,
    /// Give up when nothing is acknowledged for so long (RFC 5482), if set.
    pub user_timeout: Option<Duration>,
    /// Probe an idle connection after this time, so often, so many times.
    pub keepalive: Option<(Duration, Duration, u32)>,
    /// How long TIME-WAIT lasts.
    pub time_wait: Duration,
    /// Reduce the window after an idle time of one timeout (RFC 5681 §4.1).
    pub restart_after_idle: bool,
    /// Tail loss probe and RACK (RFC 8985); without it, three duplicate acknowledgements.
    pub rack: bool,
    /// Detect spurious timeouts (RFC 5682) and undo (DSACK, timestamps).
    pub undo: bool,
    /// Find a smaller MTU when full packets vanish (RFC 4821).
    pub black_hole_detection: bool,
}

/// Which data bytes of a subflow are: the unit of retransmission. Never longer than 65535 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// First data sequence number.
    pub dsn: u64,
    /// Bytes.
    pub len: u32,
    /// DSS checksum of the whole mapping, when they are in use.
    pub checksum: Option<u16>,
}

/// A part of what was sent: where it is in the subflow, and the mapping that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// Subflow offset of the first byte.
    pub ssn: u64,
    /// Bytes.
    pub len: u32,
    /// The mapping as it was first sent (RFC 8684 §3.3.1: never another one for the same bytes).
    pub mapping: Mapping,
    /// Subflow offset of the mapping's first byte.
    pub mapping_ssn: u64,
}

/// What to put into the next packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit {
    /// Sequence number on the wire.
    pub seq: u32,
    /// Acknowledgement number on the wire, if [`Flags::ACK`].
    pub ack: u32,
    /// Control bits.
    pub flags: Flags,
    /// Window on the wire, scaled.
    pub window: u16,
    /// ECN field.
    pub ecn: Ecn,
    /// TCP's own options (never Multipath TCP's). SACK blocks are limited to what `option_bytes` of
    /// [`Subflow::poll_transmit`] leaves.
    pub options: Options,
    /// Data, if any.
    pub data: Option<Sent>,
    /// Payload bytes of each packet when `data` is a super-segment, else 0.
    pub segment_bytes: u16,
    /// Whether the data was sent before.
    pub retransmission: bool,
    /// Why it is sent.
    pub reason: Reason,
}

/// Why something is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// SYN or SYN/ACK, first or repeated.
    Handshake,
    /// New data.
    Data,
    /// Detected as lost.
    Retransmit,
    /// Tail loss probe (RFC 8985 §7).
    TailProbe,
    /// Retransmission timeout.
    Timeout,
    /// The peer's window is closed.
    WindowProbe,
    /// Keep-alive probe.
    KeepAlive,
    /// Acknowledgement without data.
    Ack,
    /// Answer to something unacceptable (RFC 5961).
    ChallengeAck,
    /// FIN.
    Fin,
    /// Reset.
    Reset,
}

/// What a segment changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Received {
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

/// Which timer is due next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// Retransmission timeout.
    Retransmission,
    /// Tail loss probe.
    TailProbe,
    /// RACK's reordering window.
    Reordering,
    /// Pacing: the next packet may leave.
    Pacing,
    /// Delayed acknowledgement.
    DelayedAck,
    /// Zero-window probe.
    WindowProbe,
    /// Keep-alive.
    KeepAlive,
    /// User timeout.
    UserTimeout,
    /// End of TIME-WAIT (or FIN-WAIT-2).
    TimeWait,
}

/// What a timeout did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimedOut {
    /// A retransmission timeout fired (a scheduler event; a reason to reinject).
    pub retransmission: bool,
    /// The connection is gone.
    pub closed: Option<CloseReason>,
}

/// Figures for results and schedulers.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Statistics {
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
    pub phase: Phase,
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

/// One TCP connection.
#[derive(Debug)]
pub struct Subflow {
    state: State,
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

impl Subflow {
    /// Active open: a SYN is due. `isn` comes from the stack (RFC 6528).
    pub fn connect(config: Config, isn: u32, now: Instant) -> Self {
        let _ = (config, isn, now);
        todo!()
    }

    /// Passive open: a SYN/ACK is due.
    pub fn accept(config: Config, isn: u32, syn: &Segment, now: Instant) -> Self {
        let _ = (config, isn, syn, now);
        todo!()
    }

    /// Handles one (super-)segment and takes the payload out of it. `own` and `group` are for coupled
    /// congestion control; `group` is empty unless [`Subflow::is_coupled`].
    pub fn on_segment(
        &mut self,
        now: Instant,
        segment: &mut Segment,
        own: PathId,
        group: &[Sibling],
    ) -> Received {
        let _ = (now, segment, own, group);
        todo!()
    }

    /// Runs all timers that are due.
    pub fn on_timeout(&mut self, now: Instant) -> TimedOut {
        let _ = now;
        todo!()
    }

    /// The earliest timer.
    pub fn poll_timeout(&self) -> Option<(Instant, Timer)> {
        todo!()
    }

    /// What to send now, in this order: reset, handshake, retransmissions, pushed data, FIN,
    /// acknowledgement. `option_bytes` is what the owner needs for its options on a packet without
    /// data: it limits the number of SACK blocks.
    pub fn poll_transmit(&mut self, now: Instant, option_bytes: u16) -> Option<Transmit> {
        let _ = (now, option_bytes);
        todo!()
    }

    /// Bytes of new data that could be pushed and sent right now: congestion window, the peer's
    /// window in the subflow's own sequence space, pacing, less what is queued. 0 unless data may be
    /// sent. Never a sliver: a full packet or 0, unless the peer's window is smaller for good
    /// (RFC 9293 §3.8.6.2.1).
    pub fn room_bytes(&self, now: Instant) -> u64 {
        let _ = now;
        todo!()
    }

    /// Most bytes that one push should have now (TSO autosizing, [`Config::super_segment_bytes`]); a
    /// multiple of the MSS.
    pub fn quantum_bytes(&self) -> u32 {
        todo!()
    }

    /// Appends new data and returns its subflow offset. The owner keeps the bytes until they are
    /// acknowledged here ([`Subflow::unacked`]). `psh` sets PSH on the last packet.
    pub fn push(&mut self, now: Instant, mapping: Mapping, psh: bool) -> u64 {
        let _ = (now, mapping, psh);
        todo!()
    }

    /// Everything pushed and not yet cumulatively acknowledged, whole mappings, oldest first.
    pub fn unacked(&self) -> impl Iterator<Item = Sent> + '_ {
        std::iter::empty()
    }

    /// FIN after everything that was pushed.
    pub fn close(&mut self, now: Instant) {
        let _ = now;
        todo!()
    }

    /// A RST is due, the state is `Closed`.
    pub fn abort(&mut self, now: Instant) {
        let _ = now;
        todo!()
    }

    /// An acknowledgement is due at once, because the owner has an option to send.
    pub fn want_ack(&mut self) {
        todo!()
    }

    /// The receive window in bytes for the packets to come. Unless `shared` (Multipath TCP, whose
    /// window belongs to the connection), the right edge never moves back (RFC 9293 §3.8.6.2.2).
    pub fn set_receive_window(&mut self, bytes: u64, shared: bool) {
        let _ = (bytes, shared);
        todo!()
    }

    /// Whether the window has grown so much over what the peer knows that an update is due: two
    /// packets or half the buffer, or anything after zero.
    pub fn window_update_due(&self) -> bool {
        todo!()
    }

    /// Bytes of options that the owner adds to packets with data; they reduce what a packet carries.
    pub fn set_data_option_bytes(&mut self, bytes: u16) {
        let _ = bytes;
        todo!()
    }

    /// An upper bound of the payload of a packet: the smallest of all subflows (seed 003's mode).
    pub fn set_mss_cap(&mut self, bytes: Option<u32>) {
        let _ = bytes;
        todo!()
    }

    /// The interface has a new MTU.
    pub fn on_icmp(&mut self, now: Instant, error: IcmpError) {
        let _ = (now, error);
        todo!()
    }

    /// State.
    pub fn state(&self) -> State {
        self.state
    }

    /// Figures.
    pub fn statistics(&self) -> Statistics {
        todo!()
    }

    /// Its view for the coupled controls of its siblings.
    pub fn sibling(&self, id: PathId) -> Sibling {
        let _ = id;
        todo!()
    }

    /// Whether its congestion control looks at its siblings.
    pub fn is_coupled(&self) -> bool {
        todo!()
    }

    /// M2 (see [`towpath_multipath::opportunistic`]).
    pub fn penalise(&mut self, now: Instant) {
        let _ = now;
        todo!()
    }

    /// Offset behind the last data byte that arrived in order.
    pub fn received_until(&self) -> u64 {
        todo!()
    }

    /// Offset behind the last byte that the peer has acknowledged.
    pub fn acked_until(&self) -> u64 {
        todo!()
    }

    /// Offset behind the last byte pushed.
    pub fn pushed_until(&self) -> u64 {
        todo!()
    }

    /// Whether both sides use timestamps (12 bytes of options on every packet).
    pub fn timestamps_on(&self) -> bool {
        todo!()
    }

    /// The peer's window as last advertised here, unscaled to bytes: Multipath TCP reads it as the
    /// connection's.
    pub fn peer_window_bytes(&self) -> u64 {
        todo!()
    }

    /// Our initial sequence number.
    pub fn isn(&self) -> u32 {
        todo!()
    }

    /// The peer's initial sequence number, once known: relative numbers of DSS count from it.
    pub fn peer_isn(&self) -> Option<u32> {
        todo!()
    }

    /// Offset of a sequence number on the wire that the peer sent, near what was received so far.
    pub fn offset_of(&self, seq: u32) -> u64 {
        let _ = seq;
        todo!()
    }
}
