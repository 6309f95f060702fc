//! Only the first subflow; nothing is announced, nothing is answered.

use super::{PathManager, PathManagerAction, PathManagerEvent, PathManagerView};

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(super) struct Single;

impl PathManager for Single {
    fn on_event(
        &mut self,
        _: PathManagerEvent,
        _: &PathManagerView<'_>,
        _: &mut Vec<PathManagerAction>,
    ) {
    }
}
