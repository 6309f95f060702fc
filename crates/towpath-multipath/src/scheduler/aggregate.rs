//! The lowest srtt among all paths with room, including backups (Apple's `aggregate`): maximum
//! throughput regardless of cost.

use super::eligible::{fastest, is_alive};
use super::{Decision, Scheduler};
use crate::path::{ConnectionView, PathView};

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Aggregate;

impl Scheduler for Aggregate {
    fn next(&mut self, view: &ConnectionView<'_>) -> Decision {
        let any_alive = view.paths.iter().any(is_alive);
        let usable = |path: &&PathView| is_alive(path) || !any_alive;
        let with_room = view.paths.iter().filter(|path| path.room_bytes > 0);
        Decision::send_or_idle(fastest(with_room.filter(usable)))
    }
}
