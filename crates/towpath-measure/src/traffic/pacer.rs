//! A limit on a transfer's rate, for transports that cannot be told one.

use std::time::Duration;

use towpath_net::{Instant, Rate};

/// What was not sent in time may be sent later, but no more than of so long: a path that was away
/// is not followed by a flood.
const MAX_CATCH_UP: Duration = Duration::from_millis(100);

/// Says when the next bytes may move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferPacer {
    rate: Rate,
    due: Instant,
}

impl TransferPacer {
    /// Nothing is faster than `rate`, from `now` on.
    pub fn new(rate: Rate, now: Instant) -> Self {
        Self { rate, due: now }
    }

    /// When the next bytes may move.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Notes that `bytes` moved.
    pub fn on_sent(&mut self, now: Instant, bytes: u64) {
        self.due = self.due.max(now - MAX_CATCH_UP) + self.rate.time_for(bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_pacer_allows_the_rate_plus_the_missed_share(
            steps in proptest::collection::vec((0_u64..50_000_000, 1_u64..200_000), 1..200),
        ) {
            let rate = Rate::from_bps(10_000_000).unwrap();
            let mut pacer = TransferPacer::new(rate, Instant::ZERO);
            let (mut now, mut moved, mut last) = (Instant::ZERO, 0, 0);
            for (wait, bytes) in steps {
                now = now.max(pacer.due()) + Duration::from_nanos(wait);
                pacer.on_sent(now, bytes);
                moved += bytes;
                last = bytes;
            }
            let most = rate.bytes_in(now.saturating_since(Instant::ZERO) + MAX_CATCH_UP) + last + 200;
            prop_assert!(moved <= most, "{moved} of {most}");
        }
    }

    #[test]
    fn a_transfer_that_never_waits_reaches_its_rate() {
        let mut pacer = TransferPacer::new(Rate::from_bps(8_000).unwrap(), Instant::ZERO);
        for second in 0..10 {
            assert_eq!(pacer.due(), Instant::ZERO + Duration::from_secs(second));
            pacer.on_sent(pacer.due(), 1_000);
        }
    }
}
