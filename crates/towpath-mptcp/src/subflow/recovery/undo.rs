//! Undo of spurious recovery: needless timeouts (RFC 5682), and retransmissions of data that had
//! arrived (RFC 3522, RFC 3708).

use towpath_multipath::path::RecoveryPhase;
use towpath_net::Instant;

use super::{AckProgress, LossRecovery};
use crate::subflow::Subflow;
use crate::subflow::delivery::Delivery;

/// Forward RTO recovery (RFC 5682 §2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum SpuriousTimeout {
    /// No timeout is being checked.
    #[default]
    Off,
    /// The first acknowledgement after the timeout decides (step 2).
    First,
    /// New data was sent instead of retransmissions (step 2b); the next acknowledgement decides
    /// (step 3).
    Second,
}

impl LossRecovery {
    /// Returns true if retransmissions wait until the timeout is classified (RFC 5682 §2.1 step
    /// 2b).
    pub(in crate::subflow) fn prefers_new_data(&self) -> bool {
        self.spurious == SpuriousTimeout::Second
    }

    /// No new data is available to classify the timeout.
    pub(in crate::subflow) fn stop_watching(&mut self) {
        self.spurious = SpuriousTimeout::Off;
    }
}

impl Subflow {
    /// Records that the peer received `start..end` twice: retransmitting it was needless (RFC 3708
    /// §3).
    pub(super) fn on_duplicate(&mut self, start: u64, end: u64) {
        let (acked, sent) = (self.send.acked_until(), self.send.sent_until());
        if end > sent {
            return;
        }
        self.rack.widen_reo_wnd(acked, sent);
        if self.recovery.undo_from.is_some_and(|from| start >= from.get()) {
            let bytes = end - start;
            self.recovery.retransmitted_bytes =
                self.recovery.retransmitted_bytes.saturating_sub(bytes);
        }
    }

    /// Checks if the timeout was spurious (RFC 5682 §2.1; §3 with SACK).
    pub(super) fn check_spurious_timeout(
        &mut self,
        now: Instant,
        progress: &AckProgress,
        delivery: &Delivery,
    ) {
        // An acknowledgement that is neither new nor a duplicate decides nothing.
        let tells = progress.advanced || progress.sacked || progress.is_duplicate;
        if self.recovery.spurious == SpuriousTimeout::Off || !tells {
            return;
        }
        // Data arrived that was sent before the timeout and not retransmitted.
        let original = delivery.original_end.is_some_and(|end| end <= self.recovery.end);
        let first = self.recovery.spurious == SpuriousTimeout::First;
        if original && (!first || !progress.advanced || !delivery.ambiguous) {
            self.undo(now);
        } else if first && progress.advanced && progress.ack < self.recovery.end {
            self.recovery.spurious = SpuriousTimeout::Second;
        } else {
            self.recovery.spurious = SpuriousTimeout::Off;
        }
    }

    /// Undoes a reduction when all retransmitted data had arrived before (RFC 3708), or when the
    /// original caused the acknowledgement (RFC 3522 §3.2).
    pub(super) fn undo_if_spurious(
        &mut self,
        now: Instant,
        progress: &AckProgress,
        delivery: &Delivery,
    ) {
        let recovery = &self.recovery;
        let repeated_at = recovery.retransmitted_at;
        if repeated_at == Instant::ZERO || recovery.undo_from.is_none() || !self.config.undo {
            return;
        }
        let reported = recovery.retransmitted_bytes == 0;
        // The first retransmission of the episode decides. An acknowledgement that covers several
        // echoes only the first, so the others would look needless.
        let by_original = delivery.repeated_whole && delivery.echoes_before(repeated_at);
        // In recovery, other retransmissions may still turn out to be needed.
        let settled = match recovery.phase {
            RecoveryPhase::Open => false,
            RecoveryPhase::Recovery => {
                progress.ack >= recovery.end || self.send.retransmitted_bytes() == 0
            }
            RecoveryPhase::Loss => true,
        };
        if reported || (by_original && progress.advanced && settled) {
            self.undo(now);
        }
    }

    fn undo(&mut self, now: Instant) {
        self.congestion.undo(now);
        self.send.unmark_lost();
        self.recovery.undo_from = None;
        self.recovery.undone += 1;
        self.recovery.phase = RecoveryPhase::Open;
        self.recovery.spurious = SpuriousTimeout::Off;
        self.recovery.forced = false;
        self.recovery.duplicates = 0;
    }
}
