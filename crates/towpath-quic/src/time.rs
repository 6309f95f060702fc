//! Conversion between towpath's time and the library's.

use std::time;

use towpath_net::Instant;

/// Converts between both kinds of time.
///
/// The library needs `std::time::Instant`, which cannot be made from a number. The clock is
/// therefore read once, for the origin that represents [`Instant::ZERO`]. Only differences matter,
/// so the origin has no effect.
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
        let since_start = time.saturating_since(Instant::ZERO);
        // A time that the platform cannot express is later than all relevant ones.
        self.origin.checked_add(since_start).unwrap_or(self.origin)
    }

    pub(crate) fn to_virtual(self, time: time::Instant) -> Instant {
        Instant::ZERO + time.saturating_duration_since(self.origin)
    }
}
