//! Opening (RFC 9293 §3.5, §3.10.7.3): SYN, SYN/ACK, simultaneous open, option negotiation.
//!
//! Data in a SYN is ignored: it is not acknowledged and will be retransmitted.

use towpath_net::Instant;

use super::transmit::PendingReset;
use super::{
    CloseReason, SegmentOutcome, Subflow, TcpState, TimeoutOutcome, Timer, Transmit, TransmitReason,
};
use crate::wire::{Ecn, Flags, Options, Segment};

/// State of our SYN or SYN/ACK.
#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not a state")]
pub(super) struct Handshake {
    sent: u32,
    /// Time of the last transmission; `None`: it is due.
    sent_at: Option<Instant>,
    peer_window_scale: Option<u8>,
    peer_timestamps: bool,
    peer_sack: bool,
    peer_ecn: bool,
    /// Set when both sides sent a SYN.
    simultaneous: bool,
}

impl Handshake {
    pub(super) fn retransmissions(&self) -> u32 {
        self.sent.saturating_sub(1)
    }
}

/// Maximum doublings of the SYN timeout; no real connection waits that long.
const MAX_BACKOFF_SHIFT: u32 = 20;

impl Subflow {
    /// Applies the options of the peer's SYN (or SYN/ACK).
    pub(super) fn take_syn(&mut self, now: Instant, syn: &Segment) {
        let Options { mss, window_scale, sack_permitted, timestamps, .. } = &syn.options;
        self.peer_isn = Some(syn.seq);
        self.path_mtu.ipv6 = syn.source.is_ipv6();
        let config = &self.config;
        self.handshake.peer_timestamps = timestamps.is_some();
        self.handshake.peer_sack = *sack_permitted;
        self.handshake.peer_window_scale = *window_scale;
        let answers = self.state == TcpState::SynReceived;
        let echo =
            syn.flags.contains(Flags::ECE) && (config.ecn || (config.accepts_ecn && answers));
        // A SYN/ACK accepts with ECE alone, a SYN offers with both flags (RFC 3168 §6.1.1).
        self.handshake.peer_ecn =
            echo && syn.flags.contains(Flags::ACK) != syn.flags.contains(Flags::CWR);
        self.echo.on = self.handshake.peer_ecn;
        self.timestamps.on = config.timestamps && timestamps.is_some();
        self.sack_on = config.sack && *sack_permitted;
        if let (Some(ours), Some(theirs)) = (config.window_scale, *window_scale) {
            // A value above 14 means 14 (RFC 7323 §2.3).
            (self.own_window.shift, self.peer_window.shift) = (ours.min(14), theirs.min(14));
        }
        if let Some(option) = timestamps.filter(|_| self.timestamps.on) {
            (self.timestamps.recent, self.timestamps.recent_at) = (option.value, now);
        }
        self.peer_window.begin(syn.window);
        self.path_mtu.negotiate(*mss, self.timestamps.on);
        self.on_packet_size();
        self.last_received_at = now;
    }

    /// Processes a segment in SYN-SENT (RFC 9293 §3.10.7.3).
    pub(super) fn on_segment_in_syn_sent(
        &mut self,
        now: Instant,
        segment: &Segment,
        received: &mut SegmentOutcome,
    ) {
        let flags = segment.flags;
        let accepts = self.handshake.sent > 0 && segment.ack == self.wire_seq(1);
        if flags.contains(Flags::ACK) && !accepts {
            if !flags.contains(Flags::RST) {
                self.reset = Some(PendingReset { seq: segment.ack, ack: None });
            }
            return;
        }
        if flags.contains(Flags::RST) {
            if flags.contains(Flags::ACK) {
                self.finish(CloseReason::Refused);
            }
            return;
        }
        if !flags.contains(Flags::SYN) {
            return;
        }
        self.take_syn(now, segment);
        received.acceptable = true;
        if flags.contains(Flags::ACK) {
            self.establish(now, segment, received);
            self.acks.due = true;
        } else {
            // Simultaneous open: our SYN is retransmitted, now with an acknowledgement.
            self.state = TcpState::SynReceived;
            (self.handshake.simultaneous, self.handshake.sent_at) = (true, None);
        }
    }

    /// Establishes the connection after our SYN is acknowledged.
    pub(super) fn establish(
        &mut self,
        now: Instant,
        segment: &Segment,
        received: &mut SegmentOutcome,
    ) {
        self.state = if self.fin_queued() { TcpState::FinWait1 } else { TcpState::Established };
        self.timers.clear(Timer::Retransmission);
        self.recovery.forget_timeouts();
        self.recovery.backed_off = 0;
        received.established = true;
        let echo = self.timestamps.echo_ms(now, segment.options.timestamps);
        let rtt = match (self.handshake.sent_at, echo) {
            (Some(at), _) if self.handshake.sent <= 1 => Some(now.saturating_since(at)),
            (_, Some(ms)) => Some(now.saturating_since(Instant::from_nanos(ms * 1_000_000))),
            (_, None) => None,
        };
        if let Some(rtt) = rtt {
            self.sample_rtt(rtt);
            self.rtt.sample_min(now, rtt);
        } else {
            self.rtt.without_handshake_sample();
        }
        self.size_send_buffer();
        self.acks.expect_packets(self.mss());
        self.last_sent_at = now;
        self.arm_user_timeout(now);
        self.arm_keep_alive(now);
        self.arm_window_probe(now);
    }

    /// Retransmits our SYN/ACK after a repeated SYN: it was lost.
    pub(super) fn retransmit_syn_ack(&mut self) {
        self.handshake.sent_at = None;
    }

    /// Records that the SYN/ACK was sent before this state was created. `at` is the time, if it is
    /// known and it was sent once.
    pub fn note_syn_ack_sent(&mut self, now: Instant, at: Option<Instant>) {
        let _ = self.next_handshake(now);
        match at {
            Some(at) => self.handshake.sent_at = Some(at),
            // A measurement from it would then be ambiguous (RFC 6298 §3).
            None => self.handshake.sent = self.handshake.sent.max(2),
        }
    }

    /// Limits the SYN/ACK retransmissions to `retries`.
    pub fn limit_syn_acks(&mut self, retries: u32) {
        self.config.syn_retries = self.config.syn_retries.min(retries);
    }

    pub(super) fn syn_never_sent(&self) -> bool {
        self.handshake.sent == 0
    }

    /// Returns true if both sides opened simultaneously.
    pub(super) fn opened_actively(&self) -> bool {
        self.handshake.simultaneous
    }

    /// Returns the SYN or SYN/ACK, if due.
    pub(super) fn next_handshake(&mut self, now: Instant) -> Option<Transmit> {
        let opening = matches!(self.state, TcpState::SynSent | TcpState::SynReceived);
        if !opening || self.handshake.sent_at.is_some() {
            return None;
        }
        let config = &self.config;
        // Options that the peer did not offer are not accepted (RFC 7323 §1.3, RFC 2018 §2).
        let offered = |peer: bool| self.state == TcpState::SynSent || peer;
        let handshake = &self.handshake;
        let scale = config.window_scale.filter(|_| offered(handshake.peer_window_scale.is_some()));
        let timestamps = config.timestamps && offered(handshake.peer_timestamps);
        let options = Options {
            mss: Some(self.path_mtu.advertised()),
            window_scale: scale.map(|scale| scale.min(14)),
            sack_permitted: config.sack && offered(handshake.peer_sack),
            timestamps: timestamps.then(|| self.timestamps.option(now)),
            ..Options::default()
        };
        let mut flags = Flags::SYN;
        if self.state == TcpState::SynReceived {
            flags = flags.with(Flags::ACK);
            if handshake.peer_ecn {
                flags = flags.with(Flags::ECE);
            }
        } else if config.ecn && handshake.sent == 0 {
            // A retransmitted SYN has no ECN bits: a middlebox may drop them (RFC 3168 §6.1.1.1).
            flags = flags.with(Flags::ECE).with(Flags::CWR);
        }
        let acknowledges = self.state == TcpState::SynReceived;
        let retransmission = handshake.sent > 0;
        self.handshake.sent += 1;
        self.handshake.sent_at = Some(now);
        if acknowledges {
            self.note_ack_sent(true);
        }
        if !self.timers.is_set(Timer::Retransmission) {
            let timeouts = self.recovery.timeouts().saturating_sub(self.linear_syns());
            let backed_off = self.rtt.backed_off(timeouts);
            self.timers.set(Timer::Retransmission, now + backed_off);
        }
        Some(Transmit {
            seq: self.isn,
            ack: if acknowledges { self.wire_ack() } else { 0 },
            flags,
            window: self.own_window.syn_field(),
            ecn: Ecn::NotCapable,
            options,
            data: None,
            segment_bytes: 0,
            retransmission,
            reason: TransmitReason::Handshake,
        })
    }

    /// Returns the number of SYN retransmissions that do not double the timeout.
    fn linear_syns(&self) -> u32 {
        if self.state == TcpState::SynSent { u32::from(self.config.linear_syns) } else { 0 }
    }

    /// Returns the number of timeouts before giving up. They take as long as the same
    /// retransmissions with doubling.
    fn syn_timeouts(&self) -> u32 {
        let all = (2_u64 << self.config.syn_retries.min(MAX_BACKOFF_SHIFT)) - 1;
        let (mut passed, mut count) = (0, 0);
        while passed < all {
            let shift = u32::saturating_sub(count, self.linear_syns());
            passed += 1_u64 << shift.min(MAX_BACKOFF_SHIFT);
            count += 1;
        }
        count
    }

    /// Handles the timeout of a SYN or SYN/ACK.
    pub(super) fn on_handshake_timeout(&mut self, done: &mut TimeoutOutcome) {
        done.retransmission = true;
        if self.recovery.count_timeout() >= self.syn_timeouts() {
            let unreachable = self.unreachable;
            let reason = if unreachable { CloseReason::Unreachable } else { CloseReason::TimedOut };
            return self.finish(reason);
        }
        self.handshake.sent_at = None;
    }
}
