//! Scheduling when data is written, not when it can be sent (the first of the two designs that Barré et
//! al., Networking 2011, §3, tell of; the one they kept is [`MinRtt`](super::min_rtt::MinRtt)).
//!
//! Each subflow has a send buffer of its own, and data goes at once into that of the path with the
//! lowest srtt that has room in it. What waits there stays there: when paths change, the choice of long
//! ago may be a bad one, and when a path fails, all of its buffer must be moved.

use super::eligible::{eligible, fastest};
use super::{Decision, Scheduler};
use crate::path::ConnectionView;

/// See the module.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pushing;

impl Scheduler for Pushing {
    fn next(&mut self, view: &ConnectionView<'_>) -> Decision {
        Decision::send_or_idle(fastest(eligible(view).filter(|path| path.room_bytes > 0)))
    }

    fn needs_room(&self) -> bool {
        true
    }

    fn fills_subflow_queues(&self) -> bool {
        true
    }
}
