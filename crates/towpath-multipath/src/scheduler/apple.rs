//! Two of Apple's modes (seen from outside by De Coninck and Bonaventure, `MultipathTester`, TMA
//! 2019, §II-B): one path is the primary (Wi-Fi), others carry data only when it does badly.
//!
//! The primary is the first regular path that was established, as long as it exists.

use std::time::Duration;

use super::eligible::fastest;
use super::{Decision, Scheduler};
use crate::path::{ConnectionView, PathId, PathView};

/// Longest smoothed round-trip time of a primary that is left in peace.
const SLOW_SRTT: Duration = Duration::from_millis(600);
/// Longest retransmission timeout of one.
const SLOW_RTO: Duration = Duration::from_millis(1_500);
/// Timeouts in a row after which a primary has failed. One alone may be a lost packet.
const FAILED_TIMEOUTS: u32 = 2;

/// The primary of a connection.
#[derive(Debug, Clone, Copy, Default)]
struct Primary(Option<PathId>);

impl Primary {
    fn of<'a>(&mut self, view: &ConnectionView<'a>) -> Option<&'a PathView> {
        let kept = self.0.and_then(|id| view.paths.iter().find(|path| path.id == id));
        let regular = || view.paths.iter().find(|path| !path.backup);
        let primary = kept.or_else(regular).or_else(|| view.paths.first());
        self.0 = primary.map(|path| path.id);
        primary
    }
}

/// The primary, unless another path that `better` admits has room.
fn choose(
    view: &ConnectionView<'_>,
    primary: &PathView,
    better: impl Fn(&PathView) -> bool,
) -> Decision {
    let others = view.paths.iter().filter(|path| path.id != primary.id && better(path));
    let with_room = |path: &&PathView| path.room_bytes > 0;
    let other = fastest(others.filter(with_room));
    Decision::send_or_idle(other.or(Some(primary).filter(with_room)))
}

/// `interactive`: the primary, unless its srtt is above 600 ms and another path's is not, or its
/// timeout above 1500 ms and another's is not, or its timer has fired and nothing came since.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Interactive {
    primary: Primary,
}

impl Scheduler for Interactive {
    fn next(&mut self, view: &ConnectionView<'_>) -> Decision {
        let Some(primary) = self.primary.of(view) else { return Decision::Idle };
        choose(view, primary, |other| {
            let slow = primary.srtt > SLOW_SRTT && other.srtt <= SLOW_SRTT;
            let late = primary.rto > SLOW_RTO && other.rto <= SLOW_RTO;
            let silent = primary.stale || primary.timeouts > 0;
            let usable = !other.stale && other.timeouts == 0;
            usable && (slow || late || silent)
        })
    }
}

/// `handover`: only the primary, until it fails; the primary again when it answers.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Handover {
    primary: Primary,
}

impl Scheduler for Handover {
    fn next(&mut self, view: &ConnectionView<'_>) -> Decision {
        let Some(primary) = self.primary.of(view) else { return Decision::Idle };
        let failed = |path: &PathView| path.stale || path.timeouts >= FAILED_TIMEOUTS;
        choose(view, primary, |other| failed(primary) && !failed(other))
    }
}
