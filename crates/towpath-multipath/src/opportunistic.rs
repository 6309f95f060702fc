//! What to do when a slow path's data blocks the connection: opportunistic retransmission (M1) and
//! penalisation (M2), two independent switches (Raiciu et al., NSDI 2012, §4.2).

use std::fmt;

use crate::path::{ConnectionView, DataRange, PathId};

/// When a switch acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Variant {
    /// Never.
    #[default]
    Off,
    /// As in the paper: whenever the window is full.
    Nsdi12,
    /// As in mptcp.org's later versions, with its guards.
    Guarded,
}

/// M1 and M2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Switches {
    /// Opportunistic retransmission.
    pub retransmission: Variant,
    /// Penalisation of the slow path.
    pub penalisation: Variant,
}

/// Why nothing new can be sent although a path has room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocked {
    /// The peer's connection-level window is full.
    Window,
    /// The send buffer is full of sent data and holds nothing new.
    SendBuffer,
}

/// What M1 and M2 ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Actions {
    /// Send this again on this path.
    pub retransmit: Option<(PathId, DataRange)>,
    /// Halve the congestion window of this path.
    pub penalise: Option<PathId>,
}

/// The state of both for one connection.
#[derive(Debug, Clone, Default)]
pub struct Opportunistic {
    switches: Switches,
}

impl Opportunistic {
    /// With these switches.
    pub fn new(switches: Switches) -> Self {
        Self { switches }
    }

    /// Asked when nothing new can be sent because of `why`; `fast` is the path that the scheduler
    /// would use now.
    pub fn on_blocked(&mut self, view: &ConnectionView<'_>, why: Blocked, fast: PathId) -> Actions {
        let _ = (view, why, fast, self.switches);
        Actions::default()
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Nsdi12 => "nsdi12",
            Self::Guarded => "guarded",
        })
    }
}
