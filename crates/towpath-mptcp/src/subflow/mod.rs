//! One TCP connection, as a state machine that knows nothing of Multipath TCP.
//!
//! It numbers bytes from the start of its own stream: offset 0 is the SYN, the first data byte has
//! offset 1 (the *subflow sequence number*, SSN, of RFC 8684), and the FIN follows the last byte. All
//! offsets are 64 bits wide; only `wire` knows 32-bit numbers. Payload is not stored here: what is
//! sent is remembered as [`DataMapping`]s into the connection's send store, what arrives in order is
//! handed out at once.
//!
//! The owner composes packets: [`Subflow::poll_transmit`] says what to send, the owner adds the
//! payload and the Multipath TCP options.
//!
//! Reading order: `handshake`, `acceptance` (RFC 9293 §3.10.7), `recovery` (phases, PRR, undo), `rack`
//! (loss detection, tail loss probes), `transmit`; below them `send_queue`, `reassembly`, `window`,
//! `rtt`, `pmtu`, `pacing`, `timers`.

use std::time::Duration;

use towpath_multipath::congestion::{self, CongestionConfig, CongestionControl, Sibling};
use towpath_multipath::path::{PathId, PathView, RecoveryPhase};
use towpath_net::Instant;

use crate::wire::Segment;

mod acceptance;
mod acks;
mod config;
mod delivery;
mod events;
mod handshake;
mod held;
mod icmp;
mod nagle;
mod pacing;
mod pmtu;
mod rack;
mod ranges;
mod reassembly;
mod recovery;
mod rtt;
mod send_memory;
mod send_queue;
#[cfg(test)]
mod tests;
mod timers;
mod transmit;
mod window;

pub(crate) use send_memory::FRAGMENT_BYTES;

pub use config::SubflowConfig;
pub use events::{CloseReason, IcmpError, SegmentOutcome, SubflowStats, TcpState, TimeoutOutcome};
pub use held::TcpSendLimit;
pub use send_queue::{DataMapping, SentData};
pub use timers::Timer;
pub use transmit::{Transmit, TransmitReason};

use acks::{AckState, ChallengeAckLimiter, EcnState, TimestampState};
use handshake::Handshake;
use pacing::Pacer;
use pmtu::PathMtu;
use rack::Rack;
use reassembly::Reassembly;
use recovery::LossRecovery;
use rtt::Rtt;
use send_memory::SendBuffer;
use send_queue::SendQueue;
use timers::Timers;
use transmit::PendingReset;
use window::{ReceiveWindow, SendWindow};

const DEFAULT_CONTROL: congestion::CongestionControlEntry = match congestion::ALL {
    [first, ..] => *first,
    [] => panic!("there is no congestion control"),
};

/// One TCP connection.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not a state")]
pub struct Subflow {
    state: TcpState,
    config: SubflowConfig,
    isn: u32,
    peer_isn: Option<u32>,
    handshake: Handshake,
    send: SendQueue,
    memory: SendBuffer,
    receive: Reassembly,
    peer_window: SendWindow,
    own_window: ReceiveWindow,
    rtt: Rtt,
    /// Round-trip time as the receiver of data sees it; 0: not known.
    receiver_rtt_us: u32,
    rack: Rack,
    recovery: LossRecovery,
    acks: AckState,
    timestamps: TimestampState,
    echo: EcnState,
    challenges: ChallengeAckLimiter,
    path_mtu: PathMtu,
    /// What [`PathMtu::packet_bytes`] says, which is asked for often.
    packet_bytes: u32,
    pacer: Pacer,
    timers: Timers,
    congestion: Box<dyn CongestionControl>,
    own: PathId,
    /// What the coupled control was last told: timers have nobody to ask.
    group: Vec<Sibling>,
    reset: Option<PendingReset>,
    probe: Option<TransmitReason>,
    close_reason: Option<CloseReason>,
    unreported_close: Option<CloseReason>,
    sack_on: bool,
    /// The owner has so much more data, as far as it matters: a packet or less.
    waiting_bytes: u32,
    /// A window of less than a packet held data back for a timeout: it is used as it is.
    override_silly_window: bool,
    /// End of the last packet with data that was sent and was not full: the offset's lower half.
    small_until: u32,
    /// Nobody will read what comes.
    orphaned: bool,
    /// The network said that the peer is unreachable, for now.
    unreachable: bool,
    /// Keep-alives without an answer.
    unanswered: u16,
    /// Window probes without an answer, and those since the window was closed.
    unanswered_probes: u16,
    probes: u16,
    last_heard: Instant,
    last_sent: Instant,
    sent_bytes: u64,
    acked_bytes: u64,
    duplicate_bytes: u64,
    retransmissions: u64,
    retransmitted_bytes: u64,
}

impl Subflow {
    /// Active open: a SYN is due. `isn` comes from the stack (RFC 6528).
    pub fn connect(config: SubflowConfig, isn: u32, now: Instant) -> Self {
        let mut subflow = Self::new(config, isn, TcpState::SynSent, now);
        subflow.arm_user_timeout(now);
        subflow
    }

    /// Passive open: a SYN/ACK is due.
    pub fn accept(config: SubflowConfig, isn: u32, syn: &Segment, now: Instant) -> Self {
        let mut subflow = Self::new(config, isn, TcpState::SynReceived, now);
        subflow.path_mtu.ipv6 = syn.source.is_ipv6();
        subflow.take_syn(now, syn);
        subflow.arm_user_timeout(now);
        subflow
    }

    fn new(config: SubflowConfig, isn: u32, state: TcpState, now: Instant) -> Self {
        let path_mtu = PathMtu::new(config.mtu_bytes);
        let start = CongestionConfig {
            mss_bytes: path_mtu.packet_bytes(),
            initial_packets: config.initial_window_packets,
            hystart: config.hystart,
        };
        // Names are checked when a configuration is read; an unknown one gets the default.
        let named =
            |entry: &&congestion::CongestionControlEntry| entry.name == config.congestion_control;
        let control = congestion::ALL.iter().find(named).unwrap_or(&DEFAULT_CONTROL);
        Self {
            state,
            isn,
            peer_isn: None,
            handshake: Handshake::default(),
            send: SendQueue::new(),
            memory: SendBuffer::new(&config),
            receive: Reassembly::new(),
            peer_window: SendWindow::new(config.keeps_larger_window),
            own_window: ReceiveWindow::new(),
            rtt: Rtt::new(config.rto_initial, config.rto_min, config.rto_max),
            receiver_rtt_us: 0,
            rack: Rack::default(),
            recovery: LossRecovery::default(),
            acks: AckState::new(config.quick_acks),
            timestamps: TimestampState::new(isn),
            echo: EcnState::default(),
            challenges: ChallengeAckLimiter::default(),
            packet_bytes: path_mtu.packet_bytes(),
            path_mtu,
            pacer: Pacer::default(),
            timers: Timers::new(config.timer_granularity),
            congestion: (control.make)(start),
            own: PathId(0),
            group: Vec::new(),
            reset: None,
            probe: None,
            close_reason: None,
            unreported_close: None,
            sack_on: false,
            waiting_bytes: u32::MAX,
            override_silly_window: false,
            small_until: 0,
            orphaned: false,
            unreachable: false,
            unanswered: 0,
            unanswered_probes: 0,
            probes: 0,
            last_heard: now,
            last_sent: now,
            sent_bytes: 0,
            acked_bytes: 0,
            duplicate_bytes: 0,
            retransmissions: 0,
            retransmitted_bytes: 0,
            config,
        }
    }

    /// Bytes of new data that could be pushed and sent right now: congestion window, the peer's
    /// window in the subflow's own sequence space, pacing, less what is queued. 0 unless data may be
    /// sent. Full packets or 0, but for the rules of RFC 9293 §3.8.6.2.1: all that waits
    /// ([`Subflow::set_waiting_bytes`]) may end within a packet, and so may a window that is small for
    /// good, or has been small for long.
    pub fn room_bytes(&self, now: Instant) -> u64 {
        if !self.may_send_data() || self.send.fin_ssn().is_some() || self.paced(now) {
            return 0;
        }
        let mss = u64::from(self.mss());
        let busy = self.in_flight() + self.send.queued();
        let mut cwnd = self.cwnd();
        if self.idle_for(now).is_some() {
            cwnd = cwnd.min(u64::from(self.config.initial_window_packets) * mss);
        }
        let share = cwnd.saturating_sub(busy) / mss * mss;
        let window = self.peer_window.usable(self.send.pushed_until());
        if window >= mss {
            return share.min(window / mss * mss);
        }
        if share > 0 && self.allows_partial_segment(window, self.waiting_bytes.into()) {
            window
        } else {
            0
        }
    }

    /// Whether a window of less than a packet is used when so many bytes wait for it (rules 2 to 4 of
    /// RFC 9293 §3.8.6.2.1). Of a window that belongs to several subflows, what is left for one says
    /// nothing of the peer's buffer: as in Linux an idle one takes it.
    fn allows_partial_segment(&self, window: u64, wanted: u64) -> bool {
        let enough = wanted.min(self.peer_window.largest / 2);
        let rest = self.own_window.shared && self.send.outstanding() == 0;
        window > 0 && (window >= enough || rest || self.override_silly_window)
    }

    /// Appends new data and returns its subflow offset. The owner keeps the bytes until they are
    /// acknowledged here ([`Subflow::unacked`]). `psh` sets PSH on the last packet.
    pub fn push(&mut self, now: Instant, mapping: DataMapping, psh: bool) -> u64 {
        if let Some(idle) = self.idle_for(now) {
            self.congestion.on_idle(now, idle, self.rtt.timeout());
            self.last_sent = now;
        }
        let ssn = self.send.push(mapping, psh);
        if !self.timers.is_set(Timer::UserTimeout) {
            self.arm_user_timeout(now);
        }
        self.arm_window_probe(now);
        ssn
    }

    /// The mapping pushed last, if it waits as a whole: [`Subflow::lengthen`] may make it longer.
    pub fn unsent_tail(&self) -> Option<DataMapping> {
        self.send.unsent_tail()
    }

    /// Appends new data to the mapping pushed last, see [`Subflow::unsent_tail`].
    pub fn lengthen(&mut self, bytes: u32, psh: bool) {
        self.send.lengthen_tail(bytes, psh);
    }

    /// How long nothing was sent, if that is long enough to restart slowly (RFC 5681 §4.1).
    fn idle_for(&self, now: Instant) -> Option<Duration> {
        if self.send.outstanding() > 0 || self.send.next_unsent().is_some() {
            return None;
        }
        let idle = now.saturating_since(self.last_sent);
        let long = self.sent_bytes > 0 && idle > self.rtt.timeout();
        (self.config.restart_after_idle && long).then_some(idle)
    }

    /// Everything pushed and not yet cumulatively acknowledged, whole mappings, oldest first.
    pub fn unacked(&self) -> impl Iterator<Item = SentData> + '_ {
        self.send.unacked()
    }

    /// FIN after everything that was pushed.
    pub fn close(&mut self, now: Instant) {
        match self.state {
            TcpState::SynSent => self.finish(CloseReason::Finished),
            TcpState::SynReceived => self.send.push_fin(),
            TcpState::Established => {
                self.send.push_fin();
                self.state = TcpState::FinWait1;
            }
            TcpState::CloseWait => {
                self.send.push_fin();
                self.state = TcpState::LastAck;
            }
            TcpState::FinWait1
            | TcpState::FinWait2
            | TcpState::Closing
            | TcpState::LastAck
            | TcpState::TimeWait
            | TcpState::Closed => {}
        }
        self.arm_user_timeout(now);
    }

    /// A RST is due, the state is `Closed`.
    pub fn abort(&mut self, now: Instant) {
        let _ = now;
        let told = matches!(self.state, TcpState::SynSent | TcpState::TimeWait | TcpState::Closed);
        if !told {
            self.reset = Some(PendingReset {
                seq: self.wire_seq(self.send.sent_until()),
                ack: Some(self.wire_ack()),
            });
        }
        if self.state != TcpState::Closed {
            self.close_as(CloseReason::Aborted);
            // The owner asked for it and need not be told.
            self.unreported_close = None;
        }
    }

    /// When the peer was last heard on it.
    pub fn last_received_at(&self) -> Instant {
        self.last_heard
    }

    /// When it will next look at its own losses, if it has data under way.
    pub fn next_retransmission_at(&self) -> Option<Instant> {
        let timers = [Timer::TailProbe, Timer::Retransmission, Timer::Reordering];
        timers.into_iter().filter_map(|timer| self.timers.get(timer)).min()
    }

    /// Whether a RST waits to be sent.
    pub fn reset_due(&self) -> bool {
        self.reset.is_some()
    }

    /// The state is `Closed`, and the owner is told by the next call that can say so.
    fn finish(&mut self, reason: CloseReason) {
        if self.state != TcpState::Closed {
            self.close_as(reason);
        }
    }

    fn close_as(&mut self, reason: CloseReason) {
        self.state = TcpState::Closed;
        (self.close_reason, self.unreported_close) = (Some(reason), Some(reason));
        self.timers.clear_all();
    }

    /// An acknowledgement is due at once, because the owner has an option to send.
    pub fn want_ack(&mut self) {
        self.acks.due = true;
    }

    /// The receive window in bytes for the packets to come. Unless `shared` (Multipath TCP, whose
    /// window belongs to the connection), the right edge never moves back (RFC 9293 §3.8.6.2.2).
    pub fn set_receive_window(&mut self, bytes: u64, shared: bool) {
        self.own_window.set(bytes, shared);
    }

    /// So many bytes may wait here for earlier ones; what would be more is not kept.
    pub fn set_max_out_of_order_bytes(&mut self, bytes: u64) {
        self.own_window.max_out_of_order_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    }

    /// The connection's window admits so many bytes from the next one to be pushed on, whatever was
    /// said of it here.
    pub fn raise_peer_window(&mut self, bytes: u64) {
        self.peer_window.raise(bytes);
    }

    /// The connection's window is closed, and nothing under way would open it: the peer is probed here,
    /// too.
    pub fn close_peer_window(&mut self, now: Instant) {
        self.peer_window.end_at(self.send.pushed_until());
        self.arm_window_probe(now);
    }

    /// See [`Subflow::set_receive_window`].
    pub fn receive_window_bytes(&self) -> u64 {
        self.own_window.bytes()
    }

    /// The window that the peer was last told here.
    pub fn advertised_window_bytes(&self) -> u64 {
        self.own_window.advertised()
    }

    /// Round-trip time as the receiver of data knows it: by timestamps, once they have told one, queues on
    /// the way included; else that of the handshake.
    pub fn receiver_rtt(&self) -> Duration {
        match self.receiver_rtt_us {
            0 => self.srtt(),
            known => Duration::from_micros(known.into()),
        }
    }

    /// Whether the window has grown so much over what the peer knows that an update is due: two
    /// packets or half the buffer, or anything after zero.
    pub fn window_update_due(&self) -> bool {
        let open =
            !matches!(self.state, TcpState::SynSent | TcpState::SynReceived | TcpState::Closed);
        let more = !self.receive.fin_in_order();
        open && more && self.own_window.update_due(self.receive.next(), u64::from(self.mss()))
    }

    /// Bytes of options that the owner adds to packets with data; they reduce what a packet carries.
    pub fn set_data_option_bytes(&mut self, bytes: u16) {
        self.path_mtu.set_data_option_bytes(bytes);
        self.on_packet_size();
    }

    /// An upper bound of the payload of a packet: the smallest of all subflows (seed 003's mode).
    pub fn set_mss_cap(&mut self, bytes: Option<u32>) {
        self.path_mtu.set_cap(bytes);
        self.on_packet_size();
    }

    /// The packets are IPv6, whose header is longer. Only needed before the first SYN; later the
    /// peer's segments tell.
    pub fn set_ipv6(&mut self, ipv6: bool) {
        self.path_mtu.ipv6 = ipv6;
        self.on_packet_size();
    }

    /// How many bytes the owner would push if there were room: while there are any, a closed window
    /// is probed even when nothing is queued here. Any number of them at first.
    pub fn set_waiting_bytes(&mut self, now: Instant, bytes: u64) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let before = std::mem::replace(&mut self.waiting_bytes, bytes);
        // More may not fit any more into a window that was enough for what waited when it was told.
        let idle = before != bytes && self.send.outstanding() == 0;
        if (before > 0) != (bytes > 0) || idle {
            self.arm_window_probe(now);
        }
    }

    /// Nobody will read what comes: FIN-WAIT-2 lasts [`Config::time_wait`] and no longer.
    pub fn set_orphaned(&mut self, now: Instant) {
        self.orphaned = true;
        if self.state == TcpState::FinWait2 {
            self.arm_fin_wait(now);
        }
    }

    fn on_packet_size(&mut self) {
        self.packet_bytes = self.path_mtu.packet_bytes();
        self.congestion.set_mss(self.packet_bytes);
    }

    /// State.
    pub fn state(&self) -> TcpState {
        self.state
    }

    /// Why the state is `Closed`.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.close_reason
    }

    /// Name of the congestion control in use.
    pub fn congestion_control(&self) -> &'static str {
        self.congestion.name()
    }

    /// Figures.
    pub fn statistics(&self) -> SubflowStats {
        SubflowStats {
            srtt: self.rtt.smoothed().unwrap_or_default(),
            rttvar: self.rtt.deviation(),
            min_rtt: self.rtt.min().unwrap_or_default(),
            rto: self.rtt.timeout(),
            timeouts: self.recovery.timeouts(),
            cwnd_bytes: self.cwnd(),
            ssthresh_bytes: self.congestion.ssthresh_bytes(),
            in_flight_bytes: self.send.in_flight(),
            queued_bytes: self.send.queued(),
            mss_bytes: self.mss(),
            pacing_rate: self.pacing_rate(),
            phase: self.phase(),
            sent_bytes: self.sent_bytes,
            acked_bytes: self.acked_bytes,
            received_bytes: self.receive.data_until() - 1,
            duplicate_bytes: self.duplicate_bytes,
            retransmissions: self.retransmissions,
            retransmitted_bytes: self.retransmitted_bytes,
            timeouts_total: self.recovery.timeouts_total(),
            undone: self.recovery.undone(),
            reorder_bytes: self.receive.out_of_order_bytes(),
        }
    }

    /// Sent and not acknowledged.
    pub fn outstanding_bytes(&self) -> u64 {
        self.send.outstanding()
    }

    /// Pushed and not yet sent.
    pub fn queued_bytes(&self) -> u64 {
        self.send.queued()
    }

    /// Smoothed round-trip time; zero before one was measured.
    pub fn srtt(&self) -> Duration {
        self.rtt.smoothed().unwrap_or_default()
    }

    /// Payload bytes of a full packet with today's options.
    pub fn mss_bytes(&self) -> u32 {
        self.mss()
    }

    /// Bytes that wait here for earlier ones.
    pub fn reorder_bytes(&self) -> u64 {
        self.receive.out_of_order_bytes()
    }

    /// How far behind the next one expected they end; 0 if there are none.
    pub fn reorder_span_bytes(&self) -> u64 {
        self.receive.out_of_order_span()
    }

    /// Whether no data has passed on it in either direction.
    pub fn is_unused(&self) -> bool {
        self.acked_bytes == 0 && self.receive.data_until() == 1
    }

    /// What a scheduler sees of it; `id`, priority and room are the owner's.
    pub fn path_view(&self) -> PathView {
        let cwnd_bytes = self.cwnd();
        PathView {
            id: self.own,
            backup: false,
            stale: false,
            silent_rounds: 0,
            phase: self.phase(),
            slow_start: cwnd_bytes < self.congestion.ssthresh_bytes(),
            srtt: self.srtt(),
            rttvar: self.rtt.deviation(),
            min_rtt: self.rtt.min().unwrap_or_default(),
            rto: self.rtt.timeout(),
            timeouts: self.recovery.timeouts(),
            mss_bytes: self.mss(),
            cwnd_bytes,
            in_flight_bytes: self.send.in_flight(),
            queued_bytes: self.send.queued(),
            memory_bytes: if self.config.counts_memory { self.send_memory_bytes() } else { 0 },
            pacing_rate: self.pacing_rate(),
            room_bytes: 0,
        }
    }

    /// Its view for the coupled controls of its siblings.
    pub fn sibling(&self, id: PathId) -> Sibling {
        Sibling {
            id,
            cwnd_bytes: self.cwnd(),
            srtt: self.rtt.smoothed().unwrap_or(self.config.rto_initial),
            between_losses: self.congestion.between_losses(),
            mss_bytes: self.mss(),
            slow_start: self.congestion.cwnd_bytes() < self.congestion.ssthresh_bytes(),
        }
    }

    /// Whether its congestion control looks at its siblings.
    pub fn is_coupled(&self) -> bool {
        self.congestion.is_coupled()
    }

    /// Whether the congestion window limited what was sent in the last round trip.
    pub fn is_cwnd_limited(&self) -> bool {
        let window = self.congestion.cwnd_bytes();
        self.recovery.cwnd_limited(window < self.congestion.ssthresh_bytes(), window)
    }

    /// M2 (see [`towpath_multipath::opportunistic`]).
    pub fn penalise(&mut self, now: Instant, ends_slow_start: bool) {
        self.congestion.penalise(now, ends_slow_start);
    }

    /// Loss recovery.
    pub fn phase(&self) -> RecoveryPhase {
        self.recovery.phase()
    }

    /// Offset behind the last data byte that arrived in order.
    pub fn received_until(&self) -> u64 {
        self.receive.data_until()
    }

    /// Offset behind the last byte that the peer has acknowledged.
    pub fn acked_until(&self) -> u64 {
        self.send.acked_until() - u64::from(self.send.fin_acked())
    }

    /// Offset behind the last byte pushed: the offset of the next push.
    pub fn pushed_until(&self) -> u64 {
        self.send.pushed_until()
    }

    /// Whether a FIN follows what was pushed.
    pub fn fin_queued(&self) -> bool {
        self.send.fin_ssn().is_some()
    }

    /// When the oldest unacknowledged data was first sent.
    pub fn oldest_unacked_sent_at(&self) -> Option<Instant> {
        self.send.oldest().map(|record| record.first_sent_at)
    }

    /// How often the SYN or SYN/ACK was sent again.
    pub fn syn_retransmissions(&self) -> u32 {
        self.handshake.retransmissions()
    }

    /// Whether both sides use timestamps (12 bytes of options on every packet).
    pub fn timestamps_on(&self) -> bool {
        self.timestamps.on
    }

    /// The peer's window as last advertised here, unscaled to bytes: Multipath TCP reads it as the
    /// connection's.
    pub fn peer_window_bytes(&self) -> u64 {
        self.peer_window.bytes
    }

    /// The largest window that the peer ever offered here.
    pub fn max_peer_window_bytes(&self) -> u64 {
        self.peer_window.largest
    }

    /// The window that a field of the peer's says, bytes.
    pub fn unscale_window(&self, field: u16) -> u64 {
        u64::from(field) << self.peer_window.shift
    }

    /// Our initial sequence number.
    pub fn isn(&self) -> u32 {
        self.isn
    }

    /// The peer's initial sequence number, once known: relative numbers of DSS count from it.
    pub fn peer_isn(&self) -> Option<u32> {
        self.peer_isn
    }

    /// Offset of a sequence number on the wire that the peer sent, near what was received so far.
    pub fn offset_of(&self, seq: u32) -> u64 {
        u64::try_from(self.signed_offset_of(seq)).unwrap_or(0)
    }

    /// As [`Subflow::offset_of`]; negative before the peer's SYN.
    fn signed_offset_of(&self, seq: u32) -> i64 {
        let distance = seq.wrapping_sub(self.wire_ack()).cast_signed();
        self.receive.next().cast_signed().saturating_add(i64::from(distance))
    }

    fn wire_seq(&self, offset: u64) -> u32 {
        self.isn.wrapping_add(offset as u32)
    }

    fn wire_ack(&self) -> u32 {
        self.peer_isn.unwrap_or(0).wrapping_add(self.receive.next() as u32)
    }

    fn mss(&self) -> u32 {
        self.packet_bytes
    }

    fn may_send_data(&self) -> bool {
        matches!(self.state, TcpState::Established | TcpState::CloseWait)
    }
}
