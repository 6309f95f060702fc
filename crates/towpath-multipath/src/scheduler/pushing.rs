//! Scheduling when data is written, not when it can be sent. This is the first of the two designs
//! of Barré et al., Networking 2011, §3; they kept the other, [`MinRtt`](super::min_rtt::MinRtt).
//!
//! Each subflow has its own send buffer. Data goes at once into the buffer of the path with the
//! lowest srtt that has room, and stays there. When paths change, an early choice may prove bad;
//! when a path fails, its whole buffer must be moved.

use super::eligible::{eligible, fastest};
use super::{Decision, Scheduler};
use crate::path::ConnectionView;

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pushing;

impl Scheduler for Pushing {
    fn next(&mut self, view: &ConnectionView<'_>) -> Decision {
        Decision::send_or_idle(fastest(eligible(view).filter(|path| path.room_bytes > 0)))
    }

    fn needs_room(&self) -> bool {
        true // the connection need not call `next` while all send buffers are full
    }

    fn fills_subflow_queues(&self) -> bool {
        true
    }
}
