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

    /// Blocks the calling thread until `deadline`.
    pub fn sleep_until(self, deadline: Instant) {
        let span = deadline.saturating_since(self.now());
        if !span.is_zero() {
            std::thread::sleep(span);
        }
    }
}
