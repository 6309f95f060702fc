//! Only the first subflow; nothing is announced, nothing is answered.

use super::{Action, Event, PathManager, View};

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(super) struct Single;

impl PathManager for Single {
    fn on_event(&mut self, _: Event, _: &View<'_>, _: &mut Vec<Action>) {}
}
