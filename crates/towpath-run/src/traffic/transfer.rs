//! Bulk transfers: open-ended data without meaning, sent as fast as possible.
//!
//! Each stream and data direction has one [`TransferSender`] and one [`TransferReceiver`].

use towpath_net::Instant;
use towpath_result::metrics::DeliveryLog;
use towpath_scenario::Pattern;
use towpath_scenario::flow_plan::FlowGoal;

/// Permission of a sender at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendAllowance {
    /// Write at most this number of bytes; `u64::MAX` when only time is limited.
    Send(u64),
    /// Write nothing more and end the data.
    Finished(FinishReason),
}

/// Reason why a sender has finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// All bytes of a sized transfer are written.
    AllSent,
    /// The planned time is over.
    TimeUp,
}

/// Sending end of one stream.
///
/// `Sending` ─all bytes written▶ `Finished(AllSent)`; ─deadline▶ `Finished(TimeUp)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferSender {
    state: SenderState,
    deadline: Instant,
    sent_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SenderState {
    /// `remaining_bytes` is `None` when only time is limited.
    Sending {
        remaining_bytes: Option<u64>,
    },
    Finished(FinishReason),
}

impl TransferSender {
    /// Creates a sender of `pattern` that starts at `start`. `None` for a command, which sends on
    /// its own, for messages, which use a [`MessageSession`](super::MessageSession), and for
    /// datagrams.
    pub fn new(pattern: &Pattern, start: Instant) -> Option<Self> {
        let remaining_bytes = match FlowGoal::from(pattern) {
            FlowGoal::Sized { bytes, limit: _ } => Some(bytes),
            FlowGoal::Timed(_) => None,
            FlowGoal::Messages(_)
            | FlowGoal::Probes(_)
            | FlowGoal::ConstantRate(_)
            | FlowGoal::Command(_) => {
                return None;
            }
        };
        let state = match remaining_bytes {
            Some(0) => SenderState::Finished(FinishReason::AllSent),
            Some(_) | None => SenderState::Sending { remaining_bytes },
        };
        Some(Self { state, deadline: start + pattern.duration(), sent_bytes: 0 })
    }

    /// Returns the number of bytes to write now, or the reason to finish.
    pub fn allowance(&mut self, now: Instant) -> SendAllowance {
        match self.state {
            SenderState::Sending { .. } if now >= self.deadline => {
                self.state = SenderState::Finished(FinishReason::TimeUp);
                SendAllowance::Finished(FinishReason::TimeUp)
            }
            SenderState::Sending { remaining_bytes } => {
                SendAllowance::Send(remaining_bytes.unwrap_or(u64::MAX))
            }
            SenderState::Finished(reason) => SendAllowance::Finished(reason),
        }
    }

    /// Records that the stream took `bytes`.
    pub fn on_sent(&mut self, now: Instant, bytes: u64) {
        self.sent_bytes = self.sent_bytes.saturating_add(bytes);
        self.state = match self.state {
            SenderState::Sending { remaining_bytes: Some(remaining) } if bytes >= remaining => {
                SenderState::Finished(FinishReason::AllSent)
            }
            SenderState::Sending { .. } if now >= self.deadline => {
                SenderState::Finished(FinishReason::TimeUp)
            }
            SenderState::Sending { remaining_bytes } => SenderState::Sending {
                remaining_bytes: remaining_bytes.map(|remaining| remaining - bytes),
            },
            SenderState::Finished(reason) => SenderState::Finished(reason),
        };
    }

    /// Returns the latest time for the next call, even if the stream takes nothing; `None` when
    /// finished.
    pub fn deadline(&self) -> Option<Instant> {
        match self.state {
            SenderState::Sending { .. } => Some(self.deadline),
            SenderState::Finished(_) => None,
        }
    }

    /// Returns the bytes that the stream took so far. Delivery is not implied: goodput is measured
    /// at the receiver.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }
}

/// Receiving end of one stream, or of several that are read in order of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferReceiver {
    log: DeliveryLog,
}

impl TransferReceiver {
    /// Creates a receiver of a flow that starts at `start`.
    pub fn new(start: Instant) -> Self {
        Self { log: DeliveryLog::new(start) }
    }

    /// Records that `bytes` were read. Returns true if they are the first in this millisecond, so
    /// that the log has grown.
    pub fn on_bytes(&mut self, now: Instant, bytes: u64) -> bool {
        let slots_before = self.log.slots();
        self.log.record(now, bytes);
        self.log.slots() > slots_before
    }

    /// Records that the end of the data was read.
    pub fn on_end(&mut self, now: Instant) {
        self.log.record_eof(now);
    }

    /// Returns the log so far.
    pub fn log(&self) -> &DeliveryLog {
        &self.log
    }

    /// Stops listening at `now` and returns the log. An open gap lasts until then.
    #[must_use]
    pub fn finish(mut self, now: Instant) -> DeliveryLog {
        self.log.watch_until(now);
        self.log
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use towpath_scenario::DataDirection;
    use towpath_scenario::flow_plan::{directions, streams};

    use super::*;

    fn bulk(size_bytes: Option<u64>, seconds: u64) -> Pattern {
        let duration = Duration::from_secs(seconds);
        Pattern::Bulk { size_bytes, duration, direction: DataDirection::Up }
    }

    fn at_secs(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_timed_transfer_ends_when_its_time_is_over() {
        let mut sender = TransferSender::new(&bulk(None, 10), at_secs(1)).unwrap();
        assert_eq!(sender.allowance(at_secs(1)), SendAllowance::Send(u64::MAX));
        sender.on_sent(at_secs(2), 1_000);
        assert_eq!(sender.deadline(), Some(at_secs(11)));
        assert_eq!(sender.allowance(at_secs(11)), SendAllowance::Finished(FinishReason::TimeUp));
        assert_eq!((sender.deadline(), sender.sent_bytes()), (None, 1_000));
    }

    #[test]
    fn a_sized_transfer_that_takes_too_long_is_cut_off() {
        let mut sender = TransferSender::new(&bulk(Some(1_000), 10), at_secs(0)).unwrap();
        sender.on_sent(at_secs(10), 10);
        assert_eq!(sender.allowance(at_secs(10)), SendAllowance::Finished(FinishReason::TimeUp));
    }

    #[test]
    fn a_command_starts_sending_on_its_own() {
        let pattern = Pattern::Run { command: "true".into(), duration: Duration::from_secs(1) };
        assert_eq!(TransferSender::new(&pattern, at_secs(0)), None);
        assert_eq!((directions(&pattern).len(), streams(&pattern)), (0, 0));
    }

    #[test]
    fn a_receiver_without_new_data_sees_a_gap_until_it_stops() {
        let mut receiver = TransferReceiver::new(at_secs(0));
        receiver.on_bytes(at_secs(3), 1);
        let log = receiver.finish(at_secs(10));
        let gap = log.gaps(log.watched_until()).last().unwrap();
        assert_eq!((gap.start, gap.end), (at_secs(3), at_secs(10)));
    }

    proptest! {
        #[test]
        fn a_sized_transfer_sends_exactly_its_size(size in 0_u64..1_000_000, chunk in 1_u64..70_000) {
            let mut sender = TransferSender::new(&bulk(Some(size), 10), at_secs(0)).unwrap();
            while let SendAllowance::Send(allowed) = sender.allowance(at_secs(1)) {
                sender.on_sent(at_secs(1), allowed.min(chunk));
            }
            prop_assert_eq!(sender.sent_bytes(), size);
            prop_assert_eq!(sender.allowance(at_secs(99)), SendAllowance::Finished(FinishReason::AllSent));
        }
    }
}
