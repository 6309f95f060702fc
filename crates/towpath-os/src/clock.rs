//! Monotonic clock in nanoseconds since its creation.

use std::time::Duration;

use towpath_net::Instant;

use crate::sys;

/// A monotonic clock. Copies share their origin.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: Duration,
}

impl Clock {
    /// Starts a clock at the current time.
    pub fn start() -> Self {
        Self { origin: sys::monotonic() }
    }

    /// Returns the time since the clock's origin.
    pub fn now(self) -> Instant {
        let span = sys::monotonic().saturating_sub(self.origin);
        Instant::from_nanos(span.as_nanos() as u64)
    }

    /// Converts a wall-clock time, in nanoseconds since 1970; a future time becomes now.
    ///
    /// Accurate as far as the two clocks have run equally since.
    pub fn at_unix_time(self, unix_ns: u64) -> Instant {
        let age = sys::real_time().saturating_sub(Duration::from_nanos(unix_ns));
        let now = self.now();
        Instant::from_nanos(now.saturating_since(Instant::ZERO + age).as_nanos() as u64)
    }

    /// Returns this clock's origin in nanoseconds since 1970, as far as both clocks run equally.
    pub fn epoch_ns(self) -> u64 {
        let span = self.now().saturating_since(Instant::ZERO);
        sys::real_time().saturating_sub(span).as_nanos() as u64
    }

    /// Blocks the calling thread until `deadline`.
    pub fn sleep_until(self, deadline: Instant) {
        let span = deadline.saturating_since(self.now());
        if !span.is_zero() {
            std::thread::sleep(span);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_since_1970_is_found_on_this_clock_and_never_lies_ahead() {
        let clock = Clock::start();
        let before = clock.now();
        let unix_ns = sys::real_time().as_nanos() as u64;
        // The clocks are read one after the other, and either may be adjusted meanwhile.
        let slack = Duration::from_millis(1);
        assert!(clock.at_unix_time(unix_ns) + slack >= before);
        assert!(clock.at_unix_time(unix_ns) <= clock.now());
        assert!(clock.at_unix_time(u64::MAX) <= clock.now());
        assert_eq!(clock.at_unix_time(0), Instant::ZERO);
    }
}
