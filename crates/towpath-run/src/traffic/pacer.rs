//! Rate limit of a transfer, for transports that cannot limit the rate themselves.

use std::time::Duration;

use towpath_net::{Instant, Rate};

/// Largest backlog that is caught up, as time at the rate. It prevents a burst after a path outage.
const MAX_CATCH_UP: Duration = Duration::from_millis(100);

/// Pacer that limits a transfer to a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferPacer {
    rate: Rate,
    due: Instant,
}

impl TransferPacer {
    /// Creates a pacer that limits the rate from `now` on.
    pub fn new(rate: Rate, now: Instant) -> Self {
        Self { rate, due: now }
    }

    /// Returns the time at which the next bytes may be sent.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Records that `bytes` were sent.
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
        fn the_pacer_allows_at_most_the_rate_plus_the_catch_up(
            steps in proptest::collection::vec((0_u64..50_000_000, 1_u64..200_000), 1..200),
        ) {
            let rate = Rate::from_bps(10_000_000).unwrap();
            let mut pacer = TransferPacer::new(rate, Instant::ZERO);
            let (mut now, mut sent, mut last_bytes) = (Instant::ZERO, 0, 0);
            for (wait, bytes) in steps {
                now = now.max(pacer.due()) + Duration::from_nanos(wait);
                pacer.on_sent(now, bytes);
                sent += bytes;
                last_bytes = bytes;
            }
            let max_bytes = rate.bytes_in(now.saturating_since(Instant::ZERO) + MAX_CATCH_UP) + last_bytes + 200;
            prop_assert!(sent <= max_bytes, "{sent} of {max_bytes}");
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
