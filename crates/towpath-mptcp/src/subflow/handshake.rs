//! Opening (RFC 9293 §3.5, §3.10.7.3): SYN, SYN/ACK, simultaneous open, option negotiation.
//!
//! Data in a SYN is ignored: it is not acknowledged and will be retransmitted.

use towpath_net::Instant;
use towpath_wire::{Ecn, Flags, Options, Segment};

use super::transmit::PendingReset;
use super::{
    CloseReason, SegmentOutcome, Subflow, TcpState, TimeoutOutcome, Timer, Transmit, TransmitReason,
};

/// State of our SYN or SYN/ACK.
#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not a state")]
pub(super) struct Handshake {
    /// Times that the SYN or SYN/ACK was sent.
    transmissions: u32,
    /// Time of the last transmission; `None`: a transmission is due.
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
        self.transmissions.saturating_sub(1)
    }
}

/// Maximum doublings of the SYN timeout; no real connection waits that long.
const MAX_BACKOFF_SHIFT: u32 = 20;

impl Subflow {
    /// Applies the options of the peer's SYN (or SYN/ACK).
    pub(super) fn apply_syn_options(&mut self, now: Instant, syn: &Segment) {
        let Options { mss, window_scale, sack_permitted, timestamps, .. } = &syn.options;
        self.peer_isn = Some(syn.seq);
        self.path_mtu.ipv6 = syn.source.is_ipv6();
        let config = &self.config;
        self.handshake.peer_timestamps = timestamps.is_some();
        self.handshake.peer_sack = *sack_permitted;
        self.handshake.peer_window_scale = *window_scale;
        let is_responder = self.state == TcpState::SynReceived;
        let ecn_allowed =
            syn.flags.contains(Flags::ECE) && (config.ecn || (config.accepts_ecn && is_responder));
        // A SYN/ACK accepts with ECE alone, a SYN offers with both flags (RFC 3168 §6.1.1).
        self.handshake.peer_ecn =
            ecn_allowed && syn.flags.contains(Flags::ACK) != syn.flags.contains(Flags::CWR);
        self.ecn.on = self.handshake.peer_ecn;
        self.timestamps.on = config.timestamps && timestamps.is_some();
        self.sack_on = config.sack && *sack_permitted;
        if let (Some(own_scale), Some(peer_scale)) = (config.window_scale, *window_scale) {
            // A value above 14 means 14 (RFC 7323 §2.3).
            (self.receive_window.shift, self.peer_window.shift) =
                (own_scale.min(14), peer_scale.min(14));
        }
        if let Some(option) = timestamps.filter(|_| self.timestamps.on) {
            (self.timestamps.recent, self.timestamps.recent_at) = (option.value, now);
        }
        self.peer_window.apply_syn(syn.window);
        self.path_mtu.negotiate(*mss, self.timestamps.on);
        self.apply_packet_size();
        self.last_received_at = now;
    }

    /// Processes a segment in SYN-SENT (RFC 9293 §3.10.7.3).
    pub(super) fn on_segment_in_syn_sent(
        &mut self,
        now: Instant,
        segment: &Segment,
        outcome: &mut SegmentOutcome,
    ) {
        let flags = segment.flags;
        let acks_our_syn = self.handshake.transmissions > 0 && segment.ack == self.wire_seq(1);
        if flags.contains(Flags::ACK) && !acks_our_syn {
            if !flags.contains(Flags::RST) {
                self.pending_reset = Some(PendingReset { seq: segment.ack, ack: None });
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
        self.apply_syn_options(now, segment);
        outcome.acceptable = true;
        if flags.contains(Flags::ACK) {
            self.establish(now, segment, outcome);
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
        outcome: &mut SegmentOutcome,
    ) {
        self.state = if self.fin_queued() { TcpState::FinWait1 } else { TcpState::Established };
        self.timers.clear(Timer::Retransmission);
        self.recovery.forget_timeouts();
        self.recovery.backoff_count = 0;
        outcome.established = true;
        let echo = self.timestamps.echo_ms(now, segment.options.timestamps);
        let rtt = match (self.handshake.sent_at, echo) {
            (Some(at), _) if self.handshake.transmissions <= 1 => Some(now.saturating_since(at)),
            (_, Some(ms)) => Some(now.saturating_since(Instant::from_nanos(ms * 1_000_000))),
            (_, None) => None,
        };
        if let Some(rtt) = rtt {
            self.sample_rtt(rtt);
            self.rtt.sample_min(now, rtt);
        } else {
            self.rtt.on_unmeasured_handshake();
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

    /// Records that the SYN/ACK was sent before this state was created. `sent_at` is `None` if the
    /// time is not known or the SYN/ACK was sent more than once.
    pub fn note_syn_ack_sent(&mut self, now: Instant, sent_at: Option<Instant>) {
        let _ = self.next_handshake_segment(now);
        match sent_at {
            Some(sent_at) => self.handshake.sent_at = Some(sent_at),
            // A round-trip time measured with the SYN/ACK would be ambiguous (RFC 6298 §3).
            None => self.handshake.transmissions = self.handshake.transmissions.max(2),
        }
    }

    /// Limits the SYN/ACK retransmissions to `retries`.
    pub fn limit_syn_acks(&mut self, retries: u32) {
        self.config.syn_retries = self.config.syn_retries.min(retries);
    }

    pub(super) fn syn_never_sent(&self) -> bool {
        self.handshake.transmissions == 0
    }

    /// Returns true if both sides opened simultaneously.
    pub(super) fn is_simultaneous_open(&self) -> bool {
        self.handshake.simultaneous
    }

    /// Returns the SYN or SYN/ACK, if due.
    pub(super) fn next_handshake_segment(&mut self, now: Instant) -> Option<Transmit> {
        let in_handshake = matches!(self.state, TcpState::SynSent | TcpState::SynReceived);
        if !in_handshake || self.handshake.sent_at.is_some() {
            return None;
        }
        let config = &self.config;
        // Options that the peer did not offer are not accepted (RFC 7323 §1.3, RFC 2018 §2).
        let may_send = |peer_offered: bool| self.state == TcpState::SynSent || peer_offered;
        let handshake = &self.handshake;
        let scale = config.window_scale.filter(|_| may_send(handshake.peer_window_scale.is_some()));
        let timestamps = config.timestamps && may_send(handshake.peer_timestamps);
        let options = Options {
            mss: Some(self.path_mtu.advertised()),
            window_scale: scale.map(|scale| scale.min(14)),
            sack_permitted: config.sack && may_send(handshake.peer_sack),
            timestamps: timestamps.then(|| self.timestamps.option(now)),
            ..Options::default()
        };
        let mut flags = Flags::SYN;
        if self.state == TcpState::SynReceived {
            flags = flags.with(Flags::ACK);
            if handshake.peer_ecn {
                flags = flags.with(Flags::ECE);
            }
        } else if config.ecn && handshake.transmissions == 0 {
            // A retransmitted SYN has no ECN bits: a middlebox may drop them (RFC 3168 §6.1.1.1).
            flags = flags.with(Flags::ECE).with(Flags::CWR);
        }
        let is_syn_ack = self.state == TcpState::SynReceived;
        let retransmission = handshake.transmissions > 0;
        self.handshake.transmissions += 1;
        self.handshake.sent_at = Some(now);
        if is_syn_ack {
            self.note_ack_sent(true);
        }
        if !self.timers.is_set(Timer::Retransmission) {
            let timeouts = self.recovery.timeouts().saturating_sub(self.linear_syns());
            let backed_off = self.rtt.backed_off_timeout(timeouts);
            self.timers.set(Timer::Retransmission, now + backed_off);
        }
        Some(Transmit {
            seq: self.isn,
            ack: if is_syn_ack { self.wire_ack() } else { 0 },
            flags,
            window: self.receive_window.advertise_in_syn(),
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

    /// Returns the number of timeouts before giving up. Together they take as long as
    /// [`super::SubflowConfig::syn_retries`] retransmissions with doubled timeouts.
    fn syn_timeouts(&self) -> u32 {
        let total = (2_u64 << self.config.syn_retries.min(MAX_BACKOFF_SHIFT)) - 1;
        let (mut elapsed, mut count) = (0, 0);
        while elapsed < total {
            let shift = u32::saturating_sub(count, self.linear_syns());
            elapsed += 1_u64 << shift.min(MAX_BACKOFF_SHIFT);
            count += 1;
        }
        count
    }

    /// Handles the timeout of a SYN or SYN/ACK.
    pub(super) fn on_handshake_timeout(&mut self, outcome: &mut TimeoutOutcome) {
        outcome.retransmission = true;
        if self.recovery.count_timeout() >= self.syn_timeouts() {
            let unreachable = self.unreachable;
            let reason = if unreachable { CloseReason::Unreachable } else { CloseReason::TimedOut };
            return self.finish(reason);
        }
        self.handshake.sent_at = None;
    }
}
