//! Our time and the library's.

use std::time;

use towpath_net::Instant;

/// Turns one kind of time into the other.
///
/// The library wants `std::time::Instant`, which cannot be made of a number: the clock is read once,
/// for an origin that stands for [`Instant::ZERO`]. Only differences matter, so that the origin has
/// no effect on anything.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimeConverter {
    origin: time::Instant,
}

impl TimeConverter {
    pub(crate) fn new() -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "there is no other way to make one; nothing depends on its value"
        )]
        let origin = time::Instant::now();
        Self { origin }
    }

    pub(crate) fn to_std(self, time: Instant) -> time::Instant {
        let since = time.saturating_since(Instant::ZERO);
        // A point that the platform cannot express is later than all others that matter.
        self.origin.checked_add(since).unwrap_or(self.origin)
    }

    pub(crate) fn from_std(self, time: time::Instant) -> Instant {
        Instant::ZERO + time.saturating_duration_since(self.origin)
    }
}
