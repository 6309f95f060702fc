//! One packet on each path in turn, as far as windows allow (mptcp.org's `roundrobin`). For tests
//! and as a bad example, since the slowest path sets the pace.

use super::eligible::eligible;
use super::{Decision, Scheduler, SchedulerEvent};
use crate::path::{ConnectionView, PathId};

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RoundRobin {
    last_path: Option<PathId>,
}

impl Scheduler for RoundRobin {
    fn next(&mut self, view: &ConnectionView<'_>) -> Decision {
        let with_room = || eligible(view).filter(|path| path.room_bytes > 0);
        let next_path =
            with_room().find(|path| self.last_path.is_none_or(|last_path| path.id > last_path));
        match next_path.or_else(|| with_room().next()) {
            Some(path) => {
                let packet_bytes = u64::from(path.mss_bytes).max(1);
                Decision::Send { path: path.id, max_bytes: packet_bytes.min(path.room_bytes) }
            }
            None => Decision::Idle,
        }
    }

    fn on_event(&mut self, event: SchedulerEvent) {
        if let SchedulerEvent::Sent { path, .. } = event {
            self.last_path = Some(path);
        }
    }
}
