//! Only the first subflow: announces no address and opens no other subflow.

use super::{PathManager, PathManagerAction, PathManagerEvent, PathManagerView};

/// Path manager `single`, see the module.
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
