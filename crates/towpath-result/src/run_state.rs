//! States of a run that its warnings and events express as text, for writers and readers.

use crate::{Event, EventKind, Summary};

/// Beginning of the warning of a run that must not be compared with others. The reason follows.
pub const INVALID_PREFIX: &str = "invalid: ";
/// Warning of a run whose traffic was ended early by its user.
pub const INTERRUPTED_WARNING: &str = "the run was interrupted";
/// Beginning of the event of a moving host that has lost its first network. The reason follows.
pub const NETWORK_LOSS_PREFIX: &str = "the first network was lost: ";

impl Summary {
    /// Returns the reason why the run must not be compared with others; `None` if it may.
    pub fn invalid_reason(&self) -> Option<&str> {
        self.warnings.iter().find_map(|warning| warning.text.strip_prefix(INVALID_PREFIX))
    }

    /// Returns true if the user ended the traffic early.
    pub fn is_interrupted(&self) -> bool {
        self.warnings.iter().any(|warning| warning.text == INTERRUPTED_WARNING)
    }
}

impl Event {
    /// Returns the reason for the loss of the first network; `None` for other events.
    pub fn network_loss(&self) -> Option<&str> {
        let is_link = self.kind == EventKind::Link;
        self.text.strip_prefix(NETWORK_LOSS_PREFIX).filter(|_| is_link)
    }
}
