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
    Inactive,
    /// The first acknowledgement after the timeout decides (step 2).
    AwaitFirstAck,
    /// New data was sent instead of retransmissions (step 2b); the next acknowledgement decides
    /// (step 3).
    AwaitSecondAck,
}

impl LossRecovery {
    /// Returns true if retransmissions wait until the timeout is classified (RFC 5682 §2.1 step
    /// 2b).
    pub(in crate::subflow) fn prefers_new_data(&self) -> bool {
        self.spurious_timeout == SpuriousTimeout::AwaitSecondAck
    }

    /// Stops the detection: no new data is available to classify the timeout.
    pub(in crate::subflow) fn stop_spurious_detection(&mut self) {
        self.spurious_timeout = SpuriousTimeout::Inactive;
    }
}

impl Subflow {
    /// Records that the peer received `start..end` twice: retransmitting it was needless (RFC 3708
    /// §3).
    pub(super) fn on_dsack(&mut self, start: u64, end: u64) {
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
        let is_informative = progress.advanced || progress.sacked || progress.is_duplicate;
        if self.recovery.spurious_timeout == SpuriousTimeout::Inactive || !is_informative {
            return;
        }
        // Data arrived that was sent before the timeout and not retransmitted.
        let original_arrived = delivery.original_end.is_some_and(|end| end <= self.recovery.end);
        let is_first_ack = self.recovery.spurious_timeout == SpuriousTimeout::AwaitFirstAck;
        if original_arrived && (!is_first_ack || !progress.advanced || !delivery.ambiguous) {
            self.undo(now);
        } else if is_first_ack && progress.advanced && progress.ack < self.recovery.end {
            self.recovery.spurious_timeout = SpuriousTimeout::AwaitSecondAck;
        } else {
            self.recovery.spurious_timeout = SpuriousTimeout::Inactive;
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
        let retransmitted_at = recovery.retransmitted_at;
        if retransmitted_at == Instant::ZERO || recovery.undo_from.is_none() || !self.config.undo {
            return;
        }
        let all_reported_duplicate = recovery.retransmitted_bytes == 0;
        // The first retransmission of the episode decides. An acknowledgement that covers several
        // echoes only the first, so the others would look needless.
        let original_caused_ack =
            delivery.retransmission_arrived_whole && delivery.echoes_before(retransmitted_at);
        // In recovery, other retransmissions may still turn out to be needed.
        let is_final = match recovery.phase {
            RecoveryPhase::Open => false,
            RecoveryPhase::Recovery => {
                progress.ack >= recovery.end || self.send.retransmitted_bytes() == 0
            }
            RecoveryPhase::Loss => true,
        };
        if all_reported_duplicate || (original_caused_ack && progress.advanced && is_final) {
            self.undo(now);
        }
    }

    fn undo(&mut self, now: Instant) {
        self.congestion.undo(now);
        self.send.unmark_lost();
        self.recovery.undo_from = None;
        self.recovery.undo_count += 1;
        self.recovery.phase = RecoveryPhase::Open;
        self.recovery.spurious_timeout = SpuriousTimeout::Inactive;
        self.recovery.may_exceed_cwnd = false;
        self.recovery.dup_acks = 0;
    }
}
