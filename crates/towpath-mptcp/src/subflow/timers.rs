//! Timers of a subflow, and their handling.

use std::time::Duration;

use towpath_net::Instant;

use super::{CloseReason, Subflow, TcpState, TimeoutOutcome, TransmitReason};

/// Kind of timer that is due next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// Tail loss probe: before the timeout, which it postpones (RFC 8985 §7.2).
    TailProbe,
    /// Retransmission timeout (RFC 6298).
    Retransmission,
    /// RACK's reordering window has passed (RFC 8985).
    Reordering,
    /// Pacing: the next packet may leave.
    Pacing,
    /// Delayed acknowledgement is due.
    DelayedAck,
    /// Zero-window probe (RFC 9293 §3.8.6.1).
    WindowProbe,
    /// Keep-alive probe of an idle connection.
    KeepAlive,
    /// User timeout without an acknowledgement (RFC 5482).
    UserTimeout,
    /// End of TIME-WAIT (or FIN-WAIT-2).
    TimeWait,
}

impl Timer {
    const ALL: [Self; 9] = [
        Self::TailProbe,
        Self::Retransmission,
        Self::Reordering,
        Self::Pacing,
        Self::DelayedAck,
        Self::WindowProbe,
        Self::KeepAlive,
        Self::UserTimeout,
        Self::TimeWait,
    ];
}

/// Deadlines; [`Instant::MAX`] means never.
#[derive(Debug, Clone)]
pub(super) struct Timers {
    deadlines: [Instant; Timer::ALL.len()],
    granularity: Granularity,
}

/// Granularity of deadlines in nanoseconds. Every acknowledgement moves deadlines, so the division
/// is done as a multiplication.
#[derive(Debug, Clone, Copy)]
struct Granularity {
    nanos: u64,
    /// 2⁶⁴ / `nanos`, at most 1 too small; each quotient therefore also is.
    reciprocal: u64,
}

impl Granularity {
    fn new(granularity: Duration) -> Self {
        let nanos = u64::try_from(granularity.as_nanos()).unwrap_or(u64::MAX).max(1);
        Self { nanos, reciprocal: u64::MAX / nanos }
    }

    /// Returns the next multiple; [`Instant::MAX`] means never.
    fn round_up(self, deadline: Instant) -> Instant {
        let deadline_ns = deadline.as_nanos();
        let quotient = ((u128::from(deadline_ns) * u128::from(self.reciprocal)) >> 64) as u64;
        let mut remainder = deadline_ns - quotient * self.nanos;
        if remainder >= self.nanos {
            remainder -= self.nanos;
        }
        let missing = if remainder == 0 { 0 } else { self.nanos - remainder };
        Instant::from_nanos(deadline_ns.saturating_add(missing))
    }
}

impl Timers {
    pub(super) fn new(granularity: Duration) -> Self {
        let granularity = Granularity::new(granularity);
        Self { deadlines: [Instant::MAX; Timer::ALL.len()], granularity }
    }

    pub(super) fn set(&mut self, timer: Timer, at: Instant) {
        self.set_exactly(timer, self.granularity.round_up(at));
    }

    /// Sets a timer without rounding: pacing has its own timers in Linux.
    pub(super) fn set_exactly(&mut self, timer: Timer, at: Instant) {
        if let Some(slot) = self.deadlines.get_mut(timer as usize) {
            *slot = at;
        }
    }

    pub(super) fn clear(&mut self, timer: Timer) {
        self.set_exactly(timer, Instant::MAX);
    }

    pub(super) fn clear_all(&mut self) {
        self.deadlines = [Instant::MAX; Timer::ALL.len()];
    }

    pub(super) fn get(&self, timer: Timer) -> Option<Instant> {
        self.deadlines.get(timer as usize).copied().filter(|at| *at != Instant::MAX)
    }

    pub(super) fn is_set(&self, timer: Timer) -> bool {
        self.get(timer).is_some()
    }

    /// Returns the earliest timer.
    pub(super) fn next(&self) -> Option<(Instant, Timer)> {
        let (at, timer) = self.deadlines.iter().zip(Timer::ALL).min_by_key(|(at, _)| **at)?;
        (*at != Instant::MAX).then_some((*at, timer))
    }

    /// Returns the earliest deadline; [`Instant::MAX`] means never.
    pub(super) fn earliest(&self) -> Instant {
        self.deadlines.iter().fold(Instant::MAX, |earliest, at| earliest.min(*at))
    }

    /// Takes one timer that is due.
    fn take_due(&mut self, now: Instant) -> Option<Timer> {
        let (_, timer) = self.next().filter(|(at, _)| *at <= now)?;
        self.clear(timer);
        Some(timer)
    }
}

impl Subflow {
    /// Runs all timers that are due.
    pub fn on_timeout(&mut self, now: Instant) -> TimeoutOutcome {
        let mut outcome = TimeoutOutcome::default();
        // Each timer that fires moves into the future or stops, so this ends; the bound is for a
        // granularity or a timeout of zero.
        for _ in 0..2 * Timer::ALL.len() {
            let Some(timer) = self.timers.take_due(now) else { break };
            match timer {
                Timer::Retransmission => self.on_retransmission_timeout(now, &mut outcome),
                Timer::TailProbe => self.on_tail_probe(now),
                Timer::Reordering => self.on_reordering_timeout(now),
                Timer::Pacing => {}
                Timer::DelayedAck => self.on_delayed_ack(),
                Timer::WindowProbe => self.on_window_probe(now),
                Timer::KeepAlive => self.on_keep_alive(now),
                Timer::UserTimeout => self.on_user_timeout(now),
                Timer::TimeWait => self.finish(CloseReason::Finished),
            }
        }
        outcome.closed = self.unreported_close.take();
        outcome
    }

    /// Returns the deadline of the earliest timer; [`Instant::MAX`] means never.
    pub fn next_deadline(&self) -> Instant {
        if self.unreported_close.is_some() { Instant::ZERO } else { self.timers.earliest() }
    }

    /// Returns the deadline of the earliest timer.
    pub fn poll_timeout(&self) -> Option<(Instant, Timer)> {
        if self.unreported_close.is_some() {
            return Some((Instant::ZERO, Timer::TimeWait));
        }
        self.timers.next()
    }

    /// Sends a zero-window probe (RFC 9293 §3.8.6.1), or overrides silly window avoidance
    /// (§3.8.6.2.1): after a while, the sender uses a small window. If the owner has not used it by
    /// the next timeout, the data took another path, and the peer is still probed.
    fn on_window_probe(&mut self, now: Instant) {
        if !self.window_blocked() {
            return;
        }
        if u32::from(self.unacked_window_probes) > self.config.retries {
            return self.finish(CloseReason::TimedOut);
        }
        self.unacked_window_probes = self.unacked_window_probes.saturating_add(1);
        self.window_probes = self.window_probes.saturating_add(1);
        let usable = self.peer_window.usable(self.send.sent_until());
        if usable > 0 && !self.override_silly_window {
            self.override_silly_window = true;
        } else {
            self.pending_probe = Some(TransmitReason::WindowProbe);
        }
        self.timers
            .set(Timer::WindowProbe, now + self.rtt.backed_off_timeout(self.window_probes.into()));
    }

    fn on_keep_alive(&mut self, now: Instant) {
        let Some((idle, interval, count)) = self.config.keepalive else { return };
        let idle_until = self.last_received_at + idle;
        if self.send.outstanding() > 0 || (self.unacked_keepalives == 0 && idle_until > now) {
            self.timers.set(Timer::KeepAlive, idle_until.max(now + interval.min(idle)));
            return;
        }
        if u32::from(self.unacked_keepalives) >= count.min(u16::MAX.into()) {
            self.abort(now);
            return self.enter_closed(CloseReason::TimedOut);
        }
        self.unacked_keepalives = self.unacked_keepalives.saturating_add(1);
        self.pending_probe = Some(TransmitReason::KeepAlive);
        self.timers.set(Timer::KeepAlive, now + interval);
    }

    fn on_user_timeout(&mut self, now: Instant) {
        if self.send.outstanding() > 0 || self.send.next_unsent().is_some() || self.is_opening() {
            self.abort(now);
            self.enter_closed(CloseReason::TimedOut);
        }
    }

    /// Arms the user timeout while data is unacknowledged (RFC 5482 §3).
    pub(super) fn arm_user_timeout(&mut self, now: Instant) {
        let Some(limit) = self.config.user_timeout else { return };
        let data_pending = self.send.outstanding() > 0 || self.send.next_unsent().is_some();
        if data_pending || self.is_opening() {
            self.timers.set(Timer::UserTimeout, now + limit);
        } else {
            self.timers.clear(Timer::UserTimeout);
        }
    }

    pub(super) fn arm_keep_alive(&mut self, now: Instant) {
        if let Some((idle, _, _)) = self.config.keepalive {
            self.timers.set(Timer::KeepAlive, now + idle);
        }
    }

    /// Arms window probes while the peer's window blocks data and nothing in flight would trigger
    /// an acknowledgement.
    pub(super) fn arm_window_probe(&mut self, now: Instant) {
        if !self.window_blocked() {
            self.window_probes = 0;
            self.timers.clear(Timer::WindowProbe);
        } else if !self.timers.is_set(Timer::WindowProbe) {
            self.timers.set(
                Timer::WindowProbe,
                now + self.rtt.backed_off_timeout(self.window_probes.into()),
            );
        }
    }

    fn window_blocked(&self) -> bool {
        let may_send = matches!(
            self.state,
            TcpState::Established
                | TcpState::CloseWait
                | TcpState::FinWait1
                | TcpState::Closing
                | TcpState::LastAck
        );
        let pending_bytes = match self.send.next_unsent() {
            Some(record) if record.fin => 0,
            Some(record) => record.len,
            None if self.send.fin_ssn().is_some() => 0,
            None => self.waiting_bytes,
        };
        let usable = self.peer_window.usable(self.send.sent_until());
        let sufficient =
            u64::from(self.mss().min(pending_bytes)).min((self.peer_window.largest / 2).max(1));
        may_send && pending_bytes > 0 && self.send.outstanding() == 0 && usable < sufficient
    }

    fn is_opening(&self) -> bool {
        matches!(self.state, TcpState::SynSent | TcpState::SynReceived)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn deadlines_are_rounded_up_to_the_next_multiple(
            at in prop_oneof![any::<u64>(), 0..100_000_000_000_u64, (u64::MAX - 9)..=u64::MAX],
            granularity in prop_oneof![any::<u64>(), 1..10_u64, Just(4_000_000), Just(0)],
        ) {
            let rounded = Granularity::new(Duration::from_nanos(granularity));
            let expected = at.checked_next_multiple_of(granularity.max(1)).unwrap_or(u64::MAX);
            prop_assert_eq!(rounded.round_up(Instant::from_nanos(at)).as_nanos(), expected);
        }
    }
}
