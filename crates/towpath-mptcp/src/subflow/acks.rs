//! Timing of acknowledgements, and their contents: timestamps (RFC 7323), ECN's echo (RFC 3168).

use std::time::Duration;

use towpath_net::Instant;
use towpath_wire::{Flags, Segment, Timestamps};

use super::delivery::milliseconds;
use super::{Subflow, TcpState, Timer};

/// State of pending acknowledgements.
#[derive(Debug, Clone)]
pub(super) struct AckState {
    /// Set when an acknowledgement is due now.
    pub(super) due: bool,
    /// Bytes received since the last acknowledgement.
    pending_bytes: u32,
    /// Largest packet of the peer so far.
    packet_bytes: u32,
    /// Time when data last arrived; zero: never.
    last_data_at: Instant,
    /// Packets that are still acknowledged immediately.
    quickack: u16,
    /// Delay in milliseconds, if it is adaptive; zero: no data came yet.
    delay_ms: u16,
    /// Pending packets that came with PSH, or are smaller than others.
    pushed_packets: u8,
    /// Request-reply exchange: acknowledgements wait for the next reply.
    pingpong: bool,
}

/// Maximum delay of an acknowledgement (Linux `TCP_DELACK_MAX`; RFC 9293 §3.8.6.3 allows half a
/// second).
const DELACK_MAX: Duration = Duration::from_millis(200);

impl AckState {
    pub(super) fn new(quickack: u16) -> Self {
        Self {
            due: false,
            pending_bytes: 0,
            packet_bytes: 536,
            last_data_at: Instant::ZERO,
            quickack,
            delay_ms: 0,
            pushed_packets: 0,
            pingpong: false,
        }
    }

    /// Limits the expected packet size: the peer's packets are hardly larger than ours can be
    /// (Linux `tcp_initialize_rcv_mss`).
    pub(super) fn expect_packets(&mut self, bytes: u32) {
        self.packet_bytes = self.packet_bytes.min(bytes);
    }
}

/// Converts a byte count of one packet; larger counts become the maximum.
fn saturating_u32(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// State of the timestamps option (RFC 7323).
#[derive(Debug, Clone)]
pub(super) struct TimestampState {
    /// Set when both sides use timestamps.
    pub(super) on: bool,
    offset: u32,
    /// `TS.Recent`, and the time of its update.
    pub(super) recent: u32,
    pub(super) recent_at: Instant,
    /// `Last.ACK.sent` of RFC 7323, as an offset.
    last_ack_sent: u64,
    /// Last echo measured by [`Subflow::measure_as_receiver`].
    measured_echo: u32,
}

impl TimestampState {
    /// Creates a clock with an offset for each connection, so that it does not reveal the host's
    /// uptime.
    pub(super) fn new(isn: u32) -> Self {
        let offset = isn.wrapping_mul(0x9e37_79b1).rotate_left(16);
        Self {
            on: false,
            offset,
            recent: 0,
            recent_at: Instant::ZERO,
            last_ack_sent: 0,
            measured_echo: 0,
        }
    }

    pub(super) fn option(&self, now: Instant) -> Timestamps {
        let value = self.offset.wrapping_add(milliseconds(now) as u32);
        Timestamps { value, echo: self.recent }
    }

    /// Returns the time when the echoed segment was sent: milliseconds on our clock.
    pub(super) fn echo_ms(&self, now: Instant, option: Option<Timestamps>) -> Option<u64> {
        let option = option.filter(|option| self.on && option.echo != 0)?;
        let age = self.option(now).value.wrapping_sub(option.echo);
        milliseconds(now).checked_sub(u64::from(age))
    }

    /// Updates `TS.Recent` if the segment covers the last acknowledgement (§4.3).
    pub(super) fn update(&mut self, now: Instant, start: u64, option: Option<Timestamps>) {
        let Some(Timestamps { value, .. }) = option.filter(|_| self.on) else { return };
        if start <= self.last_ack_sent && value.wrapping_sub(self.recent).cast_signed() >= 0 {
            (self.recent, self.recent_at) = (value, now);
        }
    }

    /// Returns the age of a timestamp relative to the latest, if the peer's clock counts
    /// milliseconds.
    pub(super) fn age_of(&self, option: Option<Timestamps>) -> Duration {
        let ms = option.map_or(0, |option| self.recent.wrapping_sub(option.value));
        Duration::from_millis(ms.into())
    }

    /// Returns true if PAWS rejects the segment as old (§5). After 24 days without traffic the
    /// peer's clock may have wrapped (§5.5).
    pub(super) fn is_old(&self, now: Instant, option: Option<Timestamps>) -> bool {
        const PAWS_EXPIRY: Duration = Duration::from_secs(24 * 24 * 3600);
        let is_recent = now.saturating_since(self.recent_at) <= PAWS_EXPIRY;
        let Some(Timestamps { value, .. }) = option.filter(|_| self.on && is_recent) else {
            return false;
        };
        value.wrapping_sub(self.recent).cast_signed() < 0
    }
}

/// State of ECN (RFC 3168 §6.1).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct EcnState {
    /// Set when both sides use ECN.
    pub(super) on: bool,
    /// Set when a mark arrived and the peer has not confirmed its reaction.
    pub(super) marked: bool,
    /// Set when we reduced the window and must report it with the next data.
    pub(super) reduced: bool,
}

/// Limits challenge ACKs (RFC 5961 §7): ten in five seconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ChallengeAckLimiter {
    /// Set when a challenge ACK is due.
    pub(super) due: bool,
    /// Start of the current five seconds, and the challenge ACKs in them.
    window_start: Instant,
    count: u32,
}

impl ChallengeAckLimiter {
    const CHALLENGE_ACK_LIMIT: u32 = 10;
    const CHALLENGE_ACK_WINDOW: Duration = Duration::from_secs(5);

    pub(super) fn request(&mut self, now: Instant) {
        if now.saturating_since(self.window_start) >= Self::CHALLENGE_ACK_WINDOW {
            (self.window_start, self.count) = (now, 0);
        }
        if self.count < Self::CHALLENGE_ACK_LIMIT {
            self.count += 1;
            self.due = true;
        }
    }
}

impl Subflow {
    /// Measures the round-trip time as a receiver, as in Linux's `tcp_rcv_rtt_measure_ts`. Samples
    /// are the age of the echo on full data packets, each once. A smaller sample applies
    /// immediately, a larger one by an eighth.
    pub(super) fn measure_as_receiver(&mut self, now: Instant, segment: &Segment) {
        let option = segment
            .options
            .timestamps
            .filter(|option| option.echo != self.timestamps.measured_echo);
        let Some(echo_ms) = self.timestamps.echo_ms(now, option) else { return };
        self.timestamps.measured_echo = option.map_or(0, |option| option.echo);
        let age_us = milliseconds(now).saturating_sub(echo_ms).saturating_mul(1_000);
        let age_us = u32::try_from(age_us).unwrap_or(u32::MAX);
        if segment.payload.len() < self.acks.packet_bytes as usize || age_us == 0 {
            return;
        }
        let previous_us = self.receiver_rtt_us;
        let replaces_previous = previous_us == 0 || age_us < previous_us;
        self.receiver_rtt_us =
            if replaces_previous { age_us } else { previous_us - previous_us / 8 + age_us / 8 };
    }

    /// Returns the payload of the largest packet received; `None` before any data.
    pub fn received_packet_bytes(&self) -> Option<u32> {
        (self.acks.last_data_at != Instant::ZERO).then_some(self.acks.packet_bytes)
    }

    /// Returns true if a read by the application sends a delayed acknowledgement. It does so for
    /// more than a packet, or for pushed data when no data is left to read (Linux
    /// `tcp_cleanup_rbuf`).
    pub fn acknowledges_when_read(&self, drained: bool) -> bool {
        let acks = &self.acks;
        let ack_delayed = self.timers.is_set(Timer::DelayedAck);
        let has_pushed = acks.pushed_packets > u8::from(acks.pingpong);
        ack_delayed && (acks.pending_bytes > acks.packet_bytes || (drained && has_pushed))
    }

    /// Makes an acknowledgement due after a read by the application, if a delayed one may be sent.
    /// Does so too if `window` (of at most `clamp`) is at least twice the rest of the advertised
    /// window.
    pub fn on_read(&mut self, drained: bool, window: u64, clamp: u64) {
        let remaining = self.receive_window.remaining(self.receive.next());
        let expects_data =
            !matches!(self.state, TcpState::SynSent | TcpState::SynReceived | TcpState::Closed)
                && !self.receive.fin_in_order();
        let window_doubled = window > 0 && 2 * remaining <= clamp && window >= 2 * remaining;
        if self.acknowledges_when_read(drained) || (expects_data && window_doubled) {
            self.acks.due = true;
        }
    }

    /// Decides when received data is acknowledged (RFC 5681 §4.2, RFC 9293 §3.8.6.3). The data came
    /// in packets of `packet_bytes`; `at_once` forbids a delay.
    pub(super) fn schedule_ack(
        &mut self,
        now: Instant,
        bytes: u64,
        packet_bytes: u64,
        psh: bool,
        at_once: bool,
    ) {
        self.adapt_ack_delay(now);
        let acks = &mut self.acks;
        acks.last_data_at = now;
        let is_pushed = psh || saturating_u32(packet_bytes) < acks.packet_bytes;
        acks.pushed_packets = acks.pushed_packets.saturating_add(is_pushed.into());
        acks.pending_bytes = acks.pending_bytes.saturating_add(saturating_u32(bytes));
        acks.packet_bytes = acks.packet_bytes.max(saturating_u32(packet_bytes));
        let quick = acks.quickack > 0 && !acks.pingpong;
        let packets = bytes.div_ceil(packet_bytes.max(1));
        acks.quickack = acks.quickack.saturating_sub(u16::try_from(packets).unwrap_or(u16::MAX));
        // More than one full packet's bytes: at least every second packet is acknowledged.
        if at_once
            || quick
            || self.config.delayed_ack.is_zero()
            || acks.pending_bytes > acks.packet_bytes
        {
            acks.due = true;
        } else if !acks.due {
            self.delay_ack(now);
        }
    }

    /// Adapts the acknowledgement delay to the peer's silence before this data (Linux
    /// `tcp_event_data_recv`).
    fn adapt_ack_delay(&mut self, now: Instant) {
        let is_first_data = self.acks.last_data_at == Instant::ZERO;
        let pause = now.saturating_since(self.acks.last_data_at);
        let timeout = self.rtt.timeout();
        // After a pause the peer begins with a small window, and needs each acknowledgement.
        if self.config.counts_memory && !is_first_data && pause > timeout {
            self.acks.quickack = self.acks.quickack.max(self.config.quick_acks);
        }
        let min_delay = self.config.delayed_ack;
        let delay = Duration::from_millis(self.acks.delay_ms.into());
        self.set_ack_delay(if is_first_data {
            min_delay
        } else if pause <= min_delay / 2 {
            delay / 2 + min_delay / 2
        } else if pause < delay {
            (delay / 2 + pause).min(timeout)
        } else {
            delay
        });
    }

    fn set_ack_delay(&mut self, delay: Duration) {
        self.acks.delay_ms = u16::try_from(delay.as_millis()).unwrap_or(u16::MAX);
    }

    /// Delays an acknowledgement (Linux `tcp_send_delayed_ack`).
    fn delay_ack(&mut self, now: Instant) {
        let deadline = self.timers.get(Timer::DelayedAck);
        let min_delay = self.config.delayed_ack;
        if !self.config.adapts_ack_delay {
            if deadline.is_none() {
                self.timers.set(Timer::DelayedAck, now + min_delay);
            }
            return;
        }
        let round_trip = self.rtt.smoothed().unwrap_or(DELACK_MAX).max(min_delay);
        let max_delay = round_trip.min(DELACK_MAX).max(min_delay);
        let delay = Duration::from_millis(self.acks.delay_ms.into()).min(max_delay);
        match deadline {
            Some(at) if at <= now + delay / 4 => self.acks.due = true,
            Some(at) if at <= now + delay => {}
            Some(_) | None => self.timers.set(Timer::DelayedAck, now + delay),
        }
    }

    /// Sends a delayed acknowledgement: no data came to carry it.
    pub(super) fn on_delayed_ack(&mut self) {
        self.acks.due = true;
        let min_delay = self.config.delayed_ack;
        let doubled = Duration::from_millis(2 * u64::from(self.acks.delay_ms));
        let was_pingpong = std::mem::take(&mut self.acks.pingpong);
        self.set_ack_delay(if was_pingpong { min_delay } else { doubled.min(self.rtt.timeout()) });
    }

    /// Detects a request-reply exchange: we send data shortly after receiving some.
    pub(super) fn detect_pingpong(&mut self, now: Instant) {
        let pause = now.saturating_since(self.acks.last_data_at);
        let delay = Duration::from_millis(self.acks.delay_ms.into());
        self.acks.pingpong |= self.config.adapts_ack_delay && pause < delay;
    }

    /// Acknowledges every packet immediately: the peer retransmits data that has arrived, so it
    /// misses acknowledgements.
    pub(super) fn enter_quickack(&mut self) {
        self.acks.due = true;
        if self.config.adapts_ack_delay {
            self.acks.quickack = self.acks.quickack.max(self.config.quick_acks);
            self.acks.pingpong = false;
            self.set_ack_delay(self.config.delayed_ack);
        }
    }

    /// Records that an acknowledgement was sent. `sack_reported` is false if the packet had no room
    /// for SACK blocks.
    pub(super) fn note_ack_sent(&mut self, sack_reported: bool) {
        self.timestamps.last_ack_sent = self.receive.next();
        (self.acks.pending_bytes, self.acks.pushed_packets) = (0, 0);
        if sack_reported {
            self.acks.due = false;
            self.challenge_acks.due = false;
        }
        self.timers.clear(Timer::DelayedAck);
    }

    /// Processes the ECN bits of an acceptable segment (RFC 3168 §6.1.3). A mark is echoed until
    /// the peer confirms its reaction with CWR.
    pub(super) fn on_ecn_bits(&mut self, flags: Flags, marked: bool) {
        if !self.ecn.on {
            return;
        }
        if flags.contains(Flags::CWR) {
            self.ecn.marked = false;
        }
        if marked {
            self.ecn.marked = true;
            self.acks.due = true;
        }
    }
}
