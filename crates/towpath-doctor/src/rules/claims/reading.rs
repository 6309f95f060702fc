//! Readings: outcomes of the checks that establish facts.

use crate::observation::TestConnection;
use crate::rules::view::ObservationView;

/// Outcome of a check, with its evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reading {
    /// The fact holds; the text says how that was seen.
    Holds(String),
    /// The fact does not hold; the text says how that was seen.
    Fails(String),
    /// The fact was not observed; the text names what would show it.
    Unknown(String),
}

impl Reading {
    /// Creates a reading that holds or fails with the same evidence.
    pub(super) fn of(holds: bool, evidence: impl Into<String>) -> Self {
        if holds { Self::Holds(evidence.into()) } else { Self::Fails(evidence.into()) }
    }

    pub(super) fn unknown(requirement: impl Into<String>) -> Self {
        Self::Unknown(requirement.into())
    }
}

/// Returns the reading of a fact that needs a test connection.
pub(super) fn needs_connection() -> Reading {
    Reading::unknown("--connect HOST:PORT")
}

/// Reads a fact from the test connection.
pub(super) fn with_trial(
    view: &ObservationView<'_>,
    read: impl FnOnce(&ObservationView<'_>, &TestConnection) -> Reading,
) -> Reading {
    view.trial.map_or_else(needs_connection, |trial| read(view, trial))
}

/// Reads a fact from the subflows of a test connection over Multipath TCP.
pub(super) fn with_multipath(
    view: &ObservationView<'_>,
    read: impl FnOnce(&ObservationView<'_>, &TestConnection) -> Reading,
) -> Reading {
    with_trial(view, |view, trial| {
        if trial.multipath {
            read(view, trial)
        } else {
            Reading::unknown("a connection over Multipath TCP")
        }
    })
}
