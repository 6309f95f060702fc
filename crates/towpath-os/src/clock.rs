//! Monotonic clock in nanoseconds since its creation.

use std::time::Duration;

use towpath_net::Instant;

#[cfg(target_os = "linux")]
use crate::sys::{monotonic, real_time};

/// Returns the wall-clock time in microseconds since 1970 (Unix time).
pub fn unix_us() -> u64 {
    real_time().as_micros() as u64
}

/// A monotonic clock. Copies share their origin.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: Duration,
}

impl Clock {
    /// Starts a clock at the current time.
    pub fn start() -> Self {
        Self { origin: monotonic() }
    }

    /// Returns the time since the clock's origin.
    pub fn now(self) -> Instant {
        let span = monotonic().saturating_sub(self.origin);
        Instant::from_nanos(span.as_nanos() as u64)
    }

    /// Converts a wall-clock time, in nanoseconds since 1970; a future time becomes now.
    ///
    /// Accurate as far as the two clocks have run equally since.
    pub fn at_unix_time(self, unix_ns: u64) -> Instant {
        let age = real_time().saturating_sub(Duration::from_nanos(unix_ns));
        let now = self.now();
        Instant::from_nanos(now.saturating_since(Instant::ZERO + age).as_nanos() as u64)
    }

    /// Returns this clock's origin in nanoseconds since 1970, as far as both clocks run equally.
    pub fn epoch_ns(self) -> u64 {
        let span = self.now().saturating_since(Instant::ZERO);
        real_time().saturating_sub(span).as_nanos() as u64
    }

    /// Blocks the calling thread until `deadline`.
    pub fn sleep_until(self, deadline: Instant) {
        let span = deadline.saturating_since(self.now());
        if !span.is_zero() {
            std::thread::sleep(span);
        }
    }
}

/// Returns the time since the first call in this process.
#[cfg(not(target_os = "linux"))]
fn monotonic() -> Duration {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed()
}

/// Returns the time since 1970.
#[cfg(not(target_os = "linux"))]
fn real_time() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_since_1970_is_found_on_this_clock_and_never_lies_ahead() {
        let clock = Clock::start();
        let before = clock.now();
        let unix_ns = real_time().as_nanos() as u64;
        // The clocks are read one after the other, and either may be adjusted meanwhile.
        let slack = Duration::from_millis(1);
        assert!(clock.at_unix_time(unix_ns) + slack >= before);
        assert!(clock.at_unix_time(unix_ns) <= clock.now());
        assert!(clock.at_unix_time(u64::MAX) <= clock.now());
        assert_eq!(clock.at_unix_time(0), Instant::ZERO);
    }
}
