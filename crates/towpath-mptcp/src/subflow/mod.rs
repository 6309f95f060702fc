//! One TCP connection, as a state machine that knows nothing of Multipath TCP.
//!
//! A subflow numbers bytes from the start of its own stream: offset 0 is the SYN, the first data
//! byte has offset 1 (the *subflow sequence number*, SSN, of RFC 8684), and the FIN follows the last
//! byte.
//! All offsets are 64 bits wide; only `wire` knows 32-bit numbers. Payload is not stored here: sent
//! data is recorded as [`DataMapping`]s into the connection's send store. Data received in order is
//! passed on immediately.
//!
//! The owner composes packets: [`Subflow::poll_transmit`] selects the next packet, and the owner
//! adds the payload and the Multipath TCP options.
//!
//! Reading order: `handshake`, `acceptance` (RFC 9293 §3.10.7), `recovery` (phases, PRR, undo),
//! `rack` (loss detection, tail loss probes), `transmit`; below them `send_queue`, `reassembly`,
//! `window`, `rtt`, `pmtu`, `pacing`, `timers`.

use std::time::Duration;

use towpath_multipath::congestion::{self, CongestionConfig, CongestionControl, Sibling};
use towpath_multipath::path::{PathId, PathView, RecoveryPhase};
use towpath_net::Instant;
use towpath_wire::Segment;

mod acceptance;
mod acks;
mod config;
mod delivery;
mod events;
mod handshake;
mod icmp;
mod nagle;
mod pacing;
mod pmtu;
mod rack;
mod ranges;
mod reassembly;
mod recovery;
mod rtt;
mod send_buffer;
mod send_limit;
mod send_queue;
#[cfg(test)]
mod tests;
mod timers;
mod transmit;
mod window;

pub(crate) use send_buffer::FRAGMENT_BYTES;

pub use config::SubflowConfig;
pub use events::{CloseReason, IcmpError, SegmentOutcome, SubflowStats, TcpState, TimeoutOutcome};
pub use send_limit::TcpSendLimit;
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
use send_buffer::SendBuffer;
use send_queue::SendQueue;
use timers::Timers;
use transmit::PendingReset;
use window::{ReceiveWindow, SendWindow};

const DEFAULT_CONTROL: congestion::CongestionControlEntry = match congestion::ALL {
    [first, ..] => *first,
    [] => panic!("there is no congestion control"),
};

/// One TCP connection, a subflow of its owner.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not a state")]
pub struct Subflow {
    state: TcpState,
    config: SubflowConfig,
    isn: u32,
    peer_isn: Option<u32>,
    handshake: Handshake,
    send: SendQueue,
    send_buffer: SendBuffer,
    receive: Reassembly,
    peer_window: SendWindow,
    receive_window: ReceiveWindow,
    rtt: Rtt,
    /// Round-trip time measured as the receiver of data; 0: not known.
    receiver_rtt_us: u32,
    rack: Rack,
    recovery: LossRecovery,
    acks: AckState,
    timestamps: TimestampState,
    ecn: EcnState,
    challenge_acks: ChallengeAckLimiter,
    path_mtu: PathMtu,
    /// Cached result of [`PathMtu::packet_bytes`], which is needed often.
    packet_bytes: u32,
    pacer: Pacer,
    timers: Timers,
    congestion: Box<dyn CongestionControl>,
    path_id: PathId,
    /// Latest view of the siblings for the coupled control. Timers cannot query the owner.
    siblings: Vec<Sibling>,
    pending_reset: Option<PendingReset>,
    /// Window probe or keep-alive probe that is due.
    pending_probe: Option<TransmitReason>,
    close_reason: Option<CloseReason>,
    /// Reason for closing until the owner has received it.
    unreported_close: Option<CloseReason>,
    sack_on: bool,
    /// Bytes that the owner has not pushed yet; see [`Subflow::set_waiting_bytes`].
    waiting_bytes: u32,
    /// Set when a window of less than a packet has blocked data for a timeout. The next packet may
    /// then use that window.
    override_silly_window: bool,
    /// End of the last data packet sent that was not full: the lower 32 bits of the offset.
    small_packet_end: u32,
    /// Set when the application reads no more received data.
    orphaned: bool,
    /// Set when ICMP reported the peer as unreachable, perhaps temporarily.
    unreachable: bool,
    /// Keep-alive probes without a reply.
    unacked_keepalives: u16,
    /// Window probes without a reply.
    unacked_window_probes: u16,
    /// Window probes since the window was closed.
    window_probes: u16,
    last_received_at: Instant,
    last_sent_at: Instant,
    sent_bytes: u64,
    acked_bytes: u64,
    duplicate_bytes: u64,
    retransmissions: u64,
    retransmitted_bytes: u64,
}

impl Subflow {
    /// Creates a subflow for an active open: a SYN is due. `isn` comes from the stack (RFC 6528).
    pub fn connect(config: SubflowConfig, isn: u32, now: Instant) -> Self {
        let mut subflow = Self::new(config, isn, TcpState::SynSent, now);
        subflow.arm_user_timeout(now);
        subflow
    }

    /// Creates a subflow for a passive open: a SYN/ACK is due.
    pub fn accept(config: SubflowConfig, isn: u32, syn: &Segment, now: Instant) -> Self {
        let mut subflow = Self::new(config, isn, TcpState::SynReceived, now);
        subflow.path_mtu.ipv6 = syn.source.is_ipv6();
        subflow.apply_syn_options(now, syn);
        subflow.arm_user_timeout(now);
        subflow
    }

    fn new(config: SubflowConfig, isn: u32, state: TcpState, now: Instant) -> Self {
        let path_mtu = PathMtu::new(config.mtu_bytes);
        let congestion_config = CongestionConfig {
            mss_bytes: path_mtu.packet_bytes(),
            initial_packets: config.initial_window_packets,
            hystart: config.hystart,
        };
        // Names are checked when a configuration is read; an unknown one gets the default.
        let is_configured =
            |entry: &&congestion::CongestionControlEntry| entry.name == config.congestion_control;
        let control = congestion::ALL.iter().find(is_configured).unwrap_or(&DEFAULT_CONTROL);
        Self {
            state,
            isn,
            peer_isn: None,
            handshake: Handshake::default(),
            send: SendQueue::new(),
            send_buffer: SendBuffer::new(&config),
            receive: Reassembly::new(),
            peer_window: SendWindow::new(config.keeps_larger_window),
            receive_window: ReceiveWindow::new(),
            rtt: Rtt::new(config.rto_initial, config.rto_min, config.rto_max),
            receiver_rtt_us: 0,
            rack: Rack::default(),
            recovery: LossRecovery::default(),
            acks: AckState::new(config.quick_acks),
            timestamps: TimestampState::new(isn),
            ecn: EcnState::default(),
            challenge_acks: ChallengeAckLimiter::default(),
            packet_bytes: path_mtu.packet_bytes(),
            path_mtu,
            pacer: Pacer::default(),
            timers: Timers::new(config.timer_granularity),
            congestion: (control.make)(congestion_config),
            path_id: PathId(0),
            siblings: Vec::new(),
            pending_reset: None,
            pending_probe: None,
            close_reason: None,
            unreported_close: None,
            sack_on: false,
            waiting_bytes: u32::MAX,
            override_silly_window: false,
            small_packet_end: 0,
            orphaned: false,
            unreachable: false,
            unacked_keepalives: 0,
            unacked_window_probes: 0,
            window_probes: 0,
            last_received_at: now,
            last_sent_at: now,
            sent_bytes: 0,
            acked_bytes: 0,
            duplicate_bytes: 0,
            retransmissions: 0,
            retransmitted_bytes: 0,
            config,
        }
    }

    /// Returns the bytes of new data that could be pushed and sent now. The limits are the
    /// congestion window, the peer's window in the subflow's own sequence space, and pacing, minus
    /// queued data. Returns 0 unless data may be sent.
    ///
    /// The result is a multiple of full packets, except under the rules of RFC 9293 §3.8.6.2.1. All
    /// waiting data ([`Subflow::set_waiting_bytes`]) may end within a packet. So may a window that
    /// is permanently small, or has been small for long.
    pub fn room_bytes(&self, now: Instant) -> u64 {
        if !self.may_send_data() || self.send.fin_ssn().is_some() || self.pacing_delays(now) {
            return 0;
        }
        let mss = u64::from(self.mss());
        let pending = self.in_flight() + self.send.queued();
        let mut cwnd = self.cwnd();
        if self.restart_idle_time(now).is_some() {
            cwnd = cwnd.min(u64::from(self.config.initial_window_packets) * mss);
        }
        let cwnd_room = cwnd.saturating_sub(pending) / mss * mss;
        let window = self.peer_window.usable(self.send.pushed_until());
        if window >= mss {
            return cwnd_room.min(window / mss * mss);
        }
        if cwnd_room > 0 && self.allows_partial_segment(window, self.waiting_bytes.into()) {
            window
        } else {
            0
        }
    }

    /// Returns true if a window of less than a packet may be used for `waiting_bytes` of data
    /// (rules 2 to 4 of RFC 9293 §3.8.6.2.1). With a window shared by several subflows, the
    /// remainder for one does not reflect the peer's buffer. As in Linux, an idle subflow then uses
    /// the partial window.
    fn allows_partial_segment(&self, window: u64, waiting_bytes: u64) -> bool {
        let sufficient = waiting_bytes.min(self.peer_window.largest / 2);
        let shared_and_idle = self.receive_window.shared && self.send.outstanding() == 0;
        window > 0 && (window >= sufficient || shared_and_idle || self.override_silly_window)
    }

    /// Appends new data and returns its subflow offset. The owner keeps the bytes until they are
    /// acknowledged here ([`Subflow::unacked`]). `psh` sets PSH on the last packet.
    pub fn push(&mut self, now: Instant, mapping: DataMapping, psh: bool) -> u64 {
        if let Some(idle) = self.restart_idle_time(now) {
            self.congestion.on_idle(now, idle, self.rtt.timeout());
            self.last_sent_at = now;
        }
        let ssn = self.send.push(mapping, psh);
        if !self.timers.is_set(Timer::UserTimeout) {
            self.arm_user_timeout(now);
        }
        self.arm_window_probe(now);
        ssn
    }

    /// Returns the mapping pushed last, if none of it was sent: [`Subflow::lengthen`] may extend
    /// it.
    pub fn unsent_tail(&self) -> Option<DataMapping> {
        self.send.unsent_tail()
    }

    /// Appends new data to the mapping pushed last, see [`Subflow::unsent_tail`].
    pub fn lengthen(&mut self, bytes: u32, psh: bool) {
        self.send.lengthen_tail(bytes, psh);
    }

    /// Returns the idle time of the sender if it requires a restart from the initial window (RFC
    /// 5681 §4.1).
    fn restart_idle_time(&self, now: Instant) -> Option<Duration> {
        if self.send.outstanding() > 0 || self.send.next_unsent().is_some() {
            return None;
        }
        let idle = now.saturating_since(self.last_sent_at);
        let exceeds_timeout = self.sent_bytes > 0 && idle > self.rtt.timeout();
        (self.config.restart_after_idle && exceeds_timeout).then_some(idle)
    }

    /// Returns everything pushed and not yet cumulatively acknowledged, as whole mappings, oldest
    /// first.
    pub fn unacked(&self) -> impl Iterator<Item = SentData> + '_ {
        self.send.unacked()
    }

    /// Closes our direction: a FIN follows everything that was pushed.
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

    /// Aborts: a RST is due, and the state is `Closed`.
    pub fn abort(&mut self, now: Instant) {
        let _ = now;
        let peer_needs_no_reset =
            matches!(self.state, TcpState::SynSent | TcpState::TimeWait | TcpState::Closed);
        if !peer_needs_no_reset {
            self.pending_reset = Some(PendingReset {
                seq: self.wire_seq(self.send.sent_until()),
                ack: Some(self.wire_ack()),
            });
        }
        if self.state != TcpState::Closed {
            self.enter_closed(CloseReason::Aborted);
            // The owner requested the abort and needs no report.
            self.unreported_close = None;
        }
    }

    /// Returns the time of the last segment received from the peer.
    pub fn last_received_at(&self) -> Instant {
        self.last_received_at
    }

    /// Returns the time of the next loss check, if data is in flight.
    pub fn next_retransmission_at(&self) -> Option<Instant> {
        let timers = [Timer::TailProbe, Timer::Retransmission, Timer::Reordering];
        timers.into_iter().filter_map(|timer| self.timers.get(timer)).min()
    }

    /// Returns true if a RST is waiting to be sent.
    pub fn reset_due(&self) -> bool {
        self.pending_reset.is_some()
    }

    /// Enters `Closed`; the next call with a result reports it to the owner.
    fn finish(&mut self, reason: CloseReason) {
        if self.state != TcpState::Closed {
            self.enter_closed(reason);
        }
    }

    fn enter_closed(&mut self, reason: CloseReason) {
        self.state = TcpState::Closed;
        (self.close_reason, self.unreported_close) = (Some(reason), Some(reason));
        self.timers.clear_all();
    }

    /// Makes an acknowledgement due immediately, because the owner has an option to send.
    pub fn set_ack_due(&mut self) {
        self.acks.due = true;
    }

    /// Sets the receive window in bytes for the next packets. Unless `shared` (Multipath TCP, whose
    /// window belongs to the connection), the right edge never moves back (RFC 9293 §3.8.6.2.2).
    pub fn set_receive_window(&mut self, bytes: u64, shared: bool) {
        self.receive_window.set(bytes, shared);
    }

    /// Limits the out-of-order bytes held here; data beyond the limit is dropped.
    pub fn set_max_out_of_order_bytes(&mut self, bytes: u64) {
        self.receive_window.max_out_of_order_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    }

    /// Raises the peer's window here to at least `bytes`, the connection's window from the next
    /// byte to push. The window last received here does not limit it.
    pub fn raise_peer_window(&mut self, bytes: u64) {
        self.peer_window.raise(bytes);
    }

    /// Closes the peer's window because the connection's window is closed. If nothing in flight
    /// would open it, the peer is also probed here.
    pub fn close_peer_window(&mut self, now: Instant) {
        self.peer_window.end_at(self.send.pushed_until());
        self.arm_window_probe(now);
    }

    /// Returns the receive window; see [`Subflow::set_receive_window`].
    pub fn receive_window_bytes(&self) -> u64 {
        self.receive_window.bytes()
    }

    /// Returns the window that was last advertised here.
    pub fn advertised_window_bytes(&self) -> u64 {
        self.receive_window.advertised()
    }

    /// Returns the round-trip time measured as the receiver of data. It comes from timestamps,
    /// including queues on the path, or else from the handshake.
    pub fn receiver_rtt(&self) -> Duration {
        match self.receiver_rtt_us {
            0 => self.srtt(),
            rtt_us => Duration::from_micros(rtt_us.into()),
        }
    }

    /// Returns true if a window update is due. The window must exceed the advertised one by two
    /// packets or half the buffer, or by anything after zero.
    pub fn window_update_due(&self) -> bool {
        let is_open =
            !matches!(self.state, TcpState::SynSent | TcpState::SynReceived | TcpState::Closed);
        let expects_data = !self.receive.fin_in_order();
        is_open
            && expects_data
            && self.receive_window.update_due(self.receive.next(), u64::from(self.mss()))
    }

    /// Sets the bytes of options that the owner adds to data packets; they reduce the payload of a
    /// packet.
    pub fn set_data_option_bytes(&mut self, bytes: u16) {
        self.path_mtu.set_data_option_bytes(bytes);
        self.apply_packet_size();
    }

    /// Sets an upper bound for the payload of a packet: the smallest MSS of all subflows (as
    /// in the Multipath TCP of Barré et al. 2011).
    pub fn set_mss_cap(&mut self, bytes: Option<u32>) {
        self.path_mtu.set_mss_cap(bytes);
        self.apply_packet_size();
    }

    /// Selects IPv6, whose header is longer. Only needed before the first SYN; later the peer's
    /// segments show it.
    pub fn set_ipv6(&mut self, ipv6: bool) {
        self.path_mtu.ipv6 = ipv6;
        self.apply_packet_size();
    }

    /// Sets the bytes that the owner would push if there were room; initially unlimited. Unless 0,
    /// a closed window is probed even when nothing is queued here.
    pub fn set_waiting_bytes(&mut self, now: Instant, bytes: u64) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let previous = std::mem::replace(&mut self.waiting_bytes, bytes);
        // A window that was sufficient for the earlier data may be too small for more.
        let changed_while_idle = previous != bytes && self.send.outstanding() == 0;
        if (previous > 0) != (bytes > 0) || changed_while_idle {
            self.arm_window_probe(now);
        }
    }

    /// Marks the subflow as orphaned: the application reads no more data. FIN-WAIT-2 lasts at most
    /// [`SubflowConfig::time_wait`].
    pub fn set_orphaned(&mut self, now: Instant) {
        self.orphaned = true;
        if self.state == TcpState::FinWait2 {
            self.arm_fin_wait(now);
        }
    }

    fn apply_packet_size(&mut self) {
        self.packet_bytes = self.path_mtu.packet_bytes();
        self.congestion.set_mss(self.packet_bytes);
    }

    /// Returns the TCP state.
    pub fn state(&self) -> TcpState {
        self.state
    }

    /// Returns the reason why the state is `Closed`.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.close_reason
    }

    /// Replaces the congestion control of a subflow that has not sent data yet.
    pub(crate) fn set_congestion_control(
        &mut self,
        factory: &congestion::CongestionControlFactory,
    ) {
        self.congestion = factory.make(CongestionConfig {
            mss_bytes: self.packet_bytes,
            initial_packets: self.config.initial_window_packets,
            hystart: self.config.hystart,
        });
    }

    /// Returns the name of the congestion control in use.
    pub fn congestion_control(&self) -> &'static str {
        self.congestion.name()
    }

    /// Returns the statistics of the subflow.
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

    /// Returns the bytes sent and not acknowledged.
    pub fn outstanding_bytes(&self) -> u64 {
        self.send.outstanding()
    }

    /// Returns the bytes pushed and not yet sent.
    pub fn queued_bytes(&self) -> u64 {
        self.send.queued()
    }

    /// Returns the smoothed round-trip time; zero before the first measurement.
    pub fn srtt(&self) -> Duration {
        self.rtt.smoothed().unwrap_or_default()
    }

    /// Returns the payload bytes of a full packet with the current options.
    pub fn mss_bytes(&self) -> u32 {
        self.mss()
    }

    /// Returns the bytes that wait here for earlier ones.
    pub fn reorder_bytes(&self) -> u64 {
        self.receive.out_of_order_bytes()
    }

    /// Returns the distance in bytes from the next expected byte to the end of out-of-order data; 0
    /// without such data.
    pub fn reorder_span_bytes(&self) -> u64 {
        self.receive.out_of_order_span()
    }

    /// Returns true if no data has passed in either direction.
    pub fn is_unused(&self) -> bool {
        self.acked_bytes == 0 && self.receive.data_until() == 1
    }

    /// Returns the scheduler's view of the subflow; the owner sets `id`, priority and room.
    pub fn path_view(&self) -> PathView {
        let cwnd_bytes = self.cwnd();
        PathView {
            id: self.path_id,
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

    /// Returns the subflow's view for the coupled controls of its siblings.
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

    /// Returns true if the congestion control depends on the sibling subflows.
    pub fn is_coupled(&self) -> bool {
        self.congestion.is_coupled()
    }

    /// Returns true if the congestion window was the limit in the last round trip.
    pub fn is_cwnd_limited(&self) -> bool {
        let window = self.congestion.cwnd_bytes();
        self.recovery.cwnd_limited(window < self.congestion.ssthresh_bytes(), window)
    }

    /// Halves the window: penalisation, M2 in [`towpath_multipath::opportunistic`].
    pub fn penalise(&mut self, now: Instant, ends_slow_start: bool) {
        self.congestion.penalise(now, ends_slow_start);
    }

    /// Returns the phase of loss recovery.
    pub fn phase(&self) -> RecoveryPhase {
        self.recovery.phase()
    }

    /// Returns the offset after the last data byte in order.
    pub fn received_until(&self) -> u64 {
        self.receive.data_until()
    }

    /// Returns the offset after the last byte that the peer has acknowledged.
    pub fn acked_until(&self) -> u64 {
        self.send.acked_until() - u64::from(self.send.fin_acked())
    }

    /// Returns the offset after the last byte pushed, which is the offset of the next push.
    pub fn pushed_until(&self) -> u64 {
        self.send.pushed_until()
    }

    /// Returns true if a FIN follows the pushed data.
    pub fn fin_queued(&self) -> bool {
        self.send.fin_ssn().is_some()
    }

    /// Returns the time when the oldest unacknowledged data was first sent.
    pub fn oldest_unacked_sent_at(&self) -> Option<Instant> {
        self.send.oldest().map(|record| record.first_sent_at)
    }

    /// Returns the number of retransmissions of the SYN or SYN/ACK.
    pub fn syn_retransmissions(&self) -> u32 {
        self.handshake.retransmissions()
    }

    /// Returns true if both sides use timestamps (12 bytes of options on every packet).
    pub fn timestamps_on(&self) -> bool {
        self.timestamps.on
    }

    /// Returns the peer's window as last advertised here, in bytes: Multipath TCP reads it as the
    /// connection's.
    pub fn peer_window_bytes(&self) -> u64 {
        self.peer_window.bytes
    }

    /// Returns the largest window that the peer ever offered here.
    pub fn max_peer_window_bytes(&self) -> u64 {
        self.peer_window.largest
    }

    /// Returns the window in bytes for a window field of the peer.
    pub fn unscale_window(&self, field: u16) -> u64 {
        u64::from(field) << self.peer_window.shift
    }

    /// Returns our initial sequence number.
    pub fn isn(&self) -> u32 {
        self.isn
    }

    /// Returns the peer's initial sequence number, once known: relative numbers of DSS count from
    /// it.
    pub fn peer_isn(&self) -> Option<u32> {
        self.peer_isn
    }

    /// Returns the offset of a sequence number of the peer, near the bytes received so far.
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
