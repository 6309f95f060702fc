//! Selection of the next packet to send.

use towpath_net::Instant;
use towpath_wire::{Ecn, Flags, Options, SackBlocks, Timestamps};

use super::pmtu::TIMESTAMP_BYTES;
use super::send_queue::{SendRecord, SentData};
use super::{Subflow, TcpState};

/// Header fields and data of the next packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit {
    /// Sequence number on the wire.
    pub seq: u32,
    /// Acknowledgement number on the wire, if [`Flags::ACK`].
    pub ack: u32,
    /// Control bits of the TCP header.
    pub flags: Flags,
    /// Window on the wire, scaled.
    pub window: u16,
    /// ECN field of the IP header.
    pub ecn: Ecn,
    /// TCP's own options (not those of Multipath TCP). SACK blocks are limited to the space that
    /// `option_bytes` of [`Subflow::poll_transmit`] leaves.
    pub options: Options,
    /// Data of the packet, or `None` without payload.
    pub data: Option<SentData>,
    /// Payload bytes of each packet if `data` is a super-segment, otherwise 0.
    pub segment_bytes: u16,
    /// True if the data was sent before.
    pub retransmission: bool,
    /// Reason why the packet is sent.
    pub reason: TransmitReason,
}

/// Reason why a packet is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TransmitReason {
    /// SYN or SYN/ACK, first or retransmitted.
    Handshake,
    /// New data that was never sent.
    Data,
    /// Retransmission of data detected as lost.
    Retransmit,
    /// Tail loss probe (RFC 8985 §7).
    TailProbe,
    /// Retransmission after a retransmission timeout.
    Timeout,
    /// Probe of the peer's closed window.
    WindowProbe,
    /// Keep-alive probe of an idle connection.
    KeepAlive,
    /// Acknowledgement without data or FIN.
    Ack,
    /// Reply to an unacceptable segment (RFC 5961).
    ChallengeAck,
    /// FIN that ends our data.
    Fin,
    /// Reset of the connection (RST).
    Reset,
}

/// A RST that is due.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingReset {
    pub(super) seq: u32,
    /// Acknowledgement number; `None`: no ACK flag.
    pub(super) ack: Option<u32>,
}

impl Subflow {
    /// Returns the next packet, in this order: reset, handshake, retransmissions, pushed data, FIN,
    /// acknowledgement. `option_bytes` is the space for the owner's options on a packet without
    /// data; it limits the number of SACK blocks.
    pub fn poll_transmit(&mut self, now: Instant, option_bytes: u16) -> Option<Transmit> {
        if let Some(reset) = self.pending_reset.take() {
            // RFC 7323 §3.2 and §5.2.
            let timestamps = self.timestamps.on.then(|| self.timestamps.option(now));
            return Some(compose_reset(reset, timestamps));
        }
        if matches!(self.state, TcpState::SynSent | TcpState::SynReceived) {
            return self.next_handshake_segment(now);
        }
        if self.state == TcpState::Closed {
            return None;
        }
        if let Some(transmit) = self.next_tail_probe(now) {
            return Some(transmit);
        }
        if let Some(transmit) = self.next_retransmission(now) {
            return Some(transmit);
        }
        if let Some(transmit) = self.next_new_packet(now) {
            return Some(transmit);
        }
        if let Some(reason) = self.pending_probe.take() {
            // An old number, which requires an acknowledgement (RFC 9293 §3.8.4).
            let seq = self.send.acked_until().saturating_sub(1);
            return Some(self.compose_ack(now, seq, option_bytes, reason));
        }
        if !self.acks.due && !self.challenge_acks.due {
            return None;
        }
        let reason = if self.acks.due { TransmitReason::Ack } else { TransmitReason::ChallengeAck };
        Some(self.compose_ack(now, self.acceptable_offset(), option_bytes, reason))
    }

    /// Returns true if [`Subflow::poll_transmit`] has nothing, regardless of time and windows.
    /// Checked first, because this holds for most received packets.
    #[inline]
    pub fn has_nothing_to_send(&self) -> bool {
        let handshake_done = !matches!(self.state, TcpState::SynSent | TcpState::SynReceived);
        let no_ack_due = !self.is_ack_due();
        let no_data = self.send.next_unsent().is_none() && !self.send.has_lost();
        let no_reset_or_probe = self.pending_reset.is_none() && self.tail_probe_reason().is_none();
        handshake_done && no_ack_due && no_data && no_reset_or_probe
    }

    /// Returns true if [`Subflow::poll_transmit`] may produce a packet without data. It then needs
    /// the length of that packet's options.
    #[inline]
    pub fn is_ack_due(&self) -> bool {
        self.acks.due || self.challenge_acks.due || self.pending_probe.is_some()
    }

    /// Returns a tail loss probe that retransmits data; a probe with new data is sent as new data.
    fn next_tail_probe(&mut self, now: Instant) -> Option<Transmit> {
        let reason = self.tail_probe_reason()?;
        let window = self.peer_window.usable(self.send.sent_until());
        if self.send.next_unsent().is_some_and(|record| record.fin || window > 0) {
            return None;
        }
        let mss = self.mss();
        let record = self.send.retransmit_last(now, mss);
        self.rack.record_probe(self.send.sent_until(), true);
        self.rearm_retransmission(now);
        Some(self.compose_retransmission(now, &record?, reason))
    }

    fn next_retransmission(&mut self, now: Instant) -> Option<Transmit> {
        let len = self.send.next_lost()?.len;
        if self.recovery.prefers_new_data() {
            if self.send.next_unsent().is_some() {
                return None;
            }
            self.recovery.stop_spurious_detection();
        }
        let mss = self.mss();
        let mut cwnd_room = self.cwnd().saturating_sub(self.in_flight());
        if self.recovery.may_exceed_cwnd {
            cwnd_room = cwnd_room.max(u64::from(mss));
        } else if self.pacing_delays(now) {
            return None;
        }
        let len = self.sendable_bytes(len, cwnd_room)?;
        let record = self.send.retransmit_lost(now, len, mss)?;
        if self.config.recovers_as_linux && record.ssn == self.send.acked_until() {
            // `tcp_xmit_retransmit_queue`: the timer restarts for the oldest packet.
            self.rearm_retransmission(now);
        }
        let after_timeout = std::mem::take(&mut self.recovery.after_timeout);
        let reason =
            if after_timeout { TransmitReason::Timeout } else { TransmitReason::Retransmit };
        self.arm_retransmission(now);
        Some(self.compose_retransmission(now, &record, reason))
    }

    /// Returns how many of `len` bytes fit into `room`: all of them, or whole packets.
    fn sendable_bytes(&self, len: u32, room: u64) -> Option<u32> {
        let mss = self.mss();
        if room < u64::from(mss.min(len)) {
            return None;
        }
        let max_bytes = self.quantum_bytes();
        let allowed = u32::try_from(room).unwrap_or(u32::MAX).min(max_bytes);
        let sendable = if len <= allowed { len } else { allowed / mss * mss };
        (sendable > 0).then_some(sendable)
    }

    fn next_new_packet(&mut self, now: Instant) -> Option<Transmit> {
        let unsent = self.send.next_unsent()?;
        let (fin, len) = (unsent.fin, unsent.len);
        let mss = self.mss();
        let probe = self.tail_probe_reason();
        let mut cwnd_room = self.cwnd().saturating_sub(self.in_flight());
        if probe.is_some() {
            cwnd_room = cwnd_room.max(u64::from(mss));
        } else if self.pacing_delays(now) {
            return None;
        }
        let len = if fin {
            1
        } else {
            let window = u32::try_from(self.usable_window(len)).unwrap_or(u32::MAX);
            if window >= mss.min(len) {
                self.sendable_bytes(len, cwnd_room.min(u64::from(window)))?
            } else if cwnd_room >= u64::from(window) && window > 0 {
                window
            } else {
                return None;
            }
        };
        let len = if probe.is_some() { len } else { self.nagle_allowed_bytes(len)? };
        self.override_silly_window = false;
        if self.sent_bytes > 0 && self.in_flight() == 0 {
            self.congestion.on_start(now.saturating_since(self.last_sent_at));
        }
        let record = self.send.send(now, len, mss)?;
        self.track_small_packet(&record);
        if probe.is_some() {
            self.rack.record_probe(self.send.sent_until(), false);
        }
        let bytes = u64::from(record.len);
        let fills_cwnd = self.in_flight() + u64::from(mss) > self.cwnd();
        self.recovery.note_sent(bytes, self.send.sent_until(), fills_cwnd);
        let (outstanding, acked) = (self.send.outstanding(), self.send.acked_until());
        self.recovery.note_outstanding(outstanding, acked, self.send.sent_until());
        self.last_sent_at = now;
        self.arm_retransmission(now);
        self.arm_tail_probe_after_send(now);
        if !self.timers.is_set(super::Timer::UserTimeout) {
            self.arm_user_timeout(now);
        }
        let default_reason = if record.fin { TransmitReason::Fin } else { TransmitReason::Data };
        let mut transmit = self.compose_record(now, &record, probe.unwrap_or(default_reason));
        if self.ecn.on && !record.fin {
            transmit.ecn = Ecn::Capable0;
            if std::mem::take(&mut self.ecn.reduced) {
                transmit.flags = transmit.flags.with(Flags::CWR);
            }
        }
        Some(transmit)
    }

    /// Returns the bytes of the peer's window usable for a record of `len` bytes; small pieces wait
    /// (RFC 9293 §3.8.6.2.1).
    fn usable_window(&self, len: u32) -> u64 {
        let usable = self.peer_window.usable(self.send.sent_until());
        let mss = u64::from(self.mss());
        if usable >= mss || self.allows_partial_segment(usable, len.into()) { usable } else { 0 }
    }

    fn compose_retransmission(
        &mut self,
        now: Instant,
        record: &SendRecord,
        reason: TransmitReason,
    ) -> Transmit {
        let bytes = u64::from(record.len);
        let fills_cwnd =
            !self.config.counts_memory && self.in_flight() + u64::from(self.mss()) > self.cwnd();
        self.recovery.on_retransmitted(now, bytes, self.send.sent_until(), fills_cwnd);
        self.last_sent_at = now;
        self.retransmissions += bytes.div_ceil(u64::from(self.mss()));
        self.retransmitted_bytes += if record.fin { 0 } else { bytes };
        let mut transmit = self.compose_record(now, record, reason);
        transmit.retransmission = true;
        transmit
    }

    fn compose_record(
        &mut self,
        now: Instant,
        record: &SendRecord,
        reason: TransmitReason,
    ) -> Transmit {
        let mss = self.mss();
        let data = record.data();
        let bytes = data.map_or(0, |sent| sent.len);
        self.sent_bytes += u64::from(bytes);
        self.advance_pacer(now, u64::from(bytes));
        if bytes > 0 {
            self.detect_pingpong(now);
        }
        // SACK blocks are included only if they cost no payload; otherwise an acknowledgement
        // follows.
        let spare = mss.saturating_sub(bytes).min(40);
        let mptcp_bytes = u32::from(self.path_mtu.data_option_bytes());
        let timestamps = if self.timestamps.on { TIMESTAMP_BYTES } else { 0 };
        let blocks = self
            .take_fitting_sack_blocks(mptcp_bytes.max(40_u32.saturating_sub(timestamps + spare)));
        let sack_reported = !blocks.is_empty() || !self.receive.has_blocks();
        let mut flags = Flags::ACK;
        if record.psh {
            flags = flags.with(Flags::PSH);
        }
        if record.fin {
            flags = flags.with(Flags::FIN);
        }
        let segment_bytes = if bytes > mss { u16::try_from(mss).unwrap_or(u16::MAX) } else { 0 };
        let mut transmit = self.compose(now, record.ssn, flags, blocks, sack_reported, reason);
        (transmit.data, transmit.segment_bytes) = (data, segment_bytes);
        transmit
    }

    /// Returns the offset of a packet without data: the next one, unless the peer's window has
    /// shrunk to before it. A window of several subflows shrinks by data on others. The peer would
    /// ignore a packet outside the window, and never learn what we acknowledge (Linux
    /// `tcp_acceptable_seq`).
    fn acceptable_offset(&self) -> u64 {
        let (sent, acked) = (self.send.sent_until(), self.send.acked_until());
        sent.min(self.peer_window.edge().max(acked))
    }

    fn compose_ack(
        &mut self,
        now: Instant,
        seq: u64,
        option_bytes: u16,
        reason: TransmitReason,
    ) -> Transmit {
        let blocks = self.take_fitting_sack_blocks(u32::from(option_bytes));
        self.compose(now, seq, Flags::ACK, blocks, true, reason)
    }

    /// Takes the SACK blocks that fit next to `option_bytes` of other options. Kind, length and
    /// padding take four bytes, each block eight (RFC 2018 §3).
    fn take_fitting_sack_blocks(&mut self, option_bytes: u32) -> SackBlocks {
        if !self.sack_on || !self.receive.has_blocks() {
            return SackBlocks::new();
        }
        let timestamps = if self.timestamps.on { TIMESTAMP_BYTES } else { 0 };
        let count = 40_u32.saturating_sub(timestamps + option_bytes + 4) / 8;
        let blocks = self.receive.take_sack_blocks(usize::try_from(count.min(4)).unwrap_or(0));
        let isn = self.peer_isn.unwrap_or(0);
        let wire_seq = |offset: u64| isn.wrapping_add(offset as u32);
        blocks.iter().map(|(start, end)| (wire_seq(*start), wire_seq(*end))).collect()
    }

    fn compose(
        &mut self,
        now: Instant,
        offset: u64,
        flags: Flags,
        sack: SackBlocks,
        sack_reported: bool,
        reason: TransmitReason,
    ) -> Transmit {
        let mss = u64::from(self.mss());
        let next = self.receive.next();
        let flags = if self.ecn.marked { flags.with(Flags::ECE) } else { flags };
        self.note_ack_sent(sack_reported);
        Transmit {
            seq: self.wire_seq(offset),
            ack: self.wire_ack(),
            flags,
            window: self.receive_window.advertise(next, mss),
            ecn: Ecn::NotCapable,
            options: Options {
                timestamps: self.timestamps.on.then(|| self.timestamps.option(now)),
                sack,
                ..Options::default()
            },
            data: None,
            segment_bytes: 0,
            retransmission: false,
            reason,
        }
    }
}

fn compose_reset(reset: PendingReset, timestamps: Option<Timestamps>) -> Transmit {
    let PendingReset { seq, ack } = reset;
    let flags = if ack.is_some() { Flags::RST.with(Flags::ACK) } else { Flags::RST };
    Transmit {
        seq,
        ack: ack.unwrap_or(0),
        flags,
        window: 0,
        ecn: Ecn::NotCapable,
        options: Options { timestamps, ..Options::default() },
        data: None,
        segment_bytes: 0,
        retransmission: false,
        reason: TransmitReason::Reset,
    }
}
