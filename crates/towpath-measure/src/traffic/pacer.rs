//! A limit on a transfer's rate, for transports that cannot be told one.

use std::time::Duration;

use towpath_net::{Instant, Rate};

/// What was not sent in time may be sent later, but no more than of so long: a path that was away
/// is not followed by a flood.
const MEMORY: Duration = Duration::from_millis(100);

/// Says when the next bytes may move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pacer {
    rate: Rate,
    due: Instant,
}

impl Pacer {
    /// Nothing is faster than `rate`, from `now` on.
    pub fn new(rate: Rate, now: Instant) -> Self {
        Self { rate, due: now }
    }

    /// When the next bytes may move.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Notes that `bytes` moved.
    pub fn moved(&mut self, now: Instant, bytes: u64) {
        self.due = self.due.max(now - MEMORY) + self.rate.time_for(bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_more_passes_than_the_rate_and_what_was_missed(
            steps in proptest::collection::vec((0_u64..50_000_000, 1_u64..200_000), 1..200),
        ) {
            let rate = Rate::from_bps(10_000_000).unwrap();
            let mut pacer = Pacer::new(rate, Instant::ZERO);
            let (mut now, mut moved, mut last) = (Instant::ZERO, 0, 0);
            for (wait, bytes) in steps {
                now = now.max(pacer.due()) + Duration::from_nanos(wait);
                pacer.moved(now, bytes);
                moved += bytes;
                last = bytes;
            }
            let most = rate.bytes_in(now.saturating_since(Instant::ZERO) + MEMORY) + last + 200;
            prop_assert!(moved <= most, "{moved} of {most}");
        }
    }

    #[test]
    fn a_transfer_that_never_waits_reaches_its_rate() {
        let mut pacer = Pacer::new(Rate::from_bps(8_000).unwrap(), Instant::ZERO);
        for second in 0..10 {
            assert_eq!(pacer.due(), Instant::ZERO + Duration::from_secs(second));
            pacer.moved(pacer.due(), 1_000);
        }
    }
}
