//! The real clock, as nanoseconds since its creation.

use std::time::Duration;

use towpath_net::Instant;

use crate::sys;

/// A monotonic clock. Copies share their origin.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: Duration,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self { origin: sys::monotonic() }
    }

    /// Now.
    pub fn now(self) -> Instant {
        let span = sys::monotonic().saturating_sub(self.origin);
        Instant::from_nanos(span.as_nanos() as u64)
    }

    /// When it was `unix_ns` nanoseconds since 1970, as far as the two clocks have kept step since;
    /// now, if that is still to come.
    pub(crate) fn at_unix_time(self, unix_ns: u64) -> Instant {
        let ago = sys::real_time().saturating_sub(Duration::from_nanos(unix_ns));
        let now = self.now();
        Instant::from_nanos(now.saturating_since(Instant::ZERO + ago).as_nanos() as u64)
    }

    /// Blocks the calling thread until `deadline`.
    pub fn sleep_until(self, deadline: Instant) {
        let span = deadline.saturating_since(self.now());
        if !span.is_zero() {
            std::thread::sleep(span);
        }
    }
}
