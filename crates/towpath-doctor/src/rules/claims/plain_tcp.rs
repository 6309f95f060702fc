//! Readings of facts about plain TCP over each path alone.

use super::paths::every_join_holds;
use super::reading::Reading;
use crate::observation::{ConnectOutcome, PlainTcpCheck, TestConnection};
use crate::rules::view::{ObservationView, is_working};
use crate::text;

fn connects(check: &PlainTcpCheck) -> bool {
    check.outcome == ConnectOutcome::Connected
}

fn outcome_text(check: &PlainTcpCheck) -> String {
    format!("plain TCP from {}: {}", check.local, text::outcome(check.outcome))
}

/// Returns a check of the server's address that connected, and one that failed.
fn to_target(trial: &TestConnection) -> [Option<&PlainTcpCheck>; 2] {
    let checks = || trial.controls.iter().filter(|check| check.remote == trial.target);
    [checks().find(|check| connects(check)), checks().find(|check| !connects(check))]
}

pub(super) fn listener_stays(_: &ObservationView<'_>, trial: &TestConnection) -> Reading {
    match to_target(trial) {
        [Some(check), _] => Reading::Holds(outcome_text(check)),
        [None, Some(check)] => Reading::Fails(outcome_text(check)),
        [None, None] => Reading::unknown("a second path of this host"),
    }
}

pub(super) fn every_path(_: &ObservationView<'_>, trial: &TestConnection) -> Reading {
    match to_target(trial) {
        [_, Some(check)] => Reading::Fails(outcome_text(check)),
        [Some(_), None] => Reading::Holds("plain TCP over each path: connected".to_owned()),
        [None, None] => Reading::unknown("a second path of this host"),
    }
}

pub(super) fn missing_path(view: &ObservationView<'_>, trial: &TestConnection) -> Reading {
    let has_no_subflow = |check: &&PlainTcpCheck| {
        let mut subflows = trial.subflows.iter().filter(|subflow| is_working(subflow));
        !subflows.any(|subflow| subflow.local.ip() == check.local)
    };
    let mut unused = trial.controls.iter().filter(has_no_subflow).peekable();
    match (unused.peek().copied(), unused.find(|check| connects(check))) {
        (_, Some(check)) => Reading::Holds(outcome_text(check)),
        (Some(check), None) => Reading::Fails(outcome_text(check)),
        (None, None) if every_join_holds(view, trial) => {
            Reading::Fails("every path has a subflow".to_owned())
        }
        (None, None) => Reading::unknown("an endpoint for a second path"),
    }
}

pub(super) fn ports_agree(_: &ObservationView<'_>, trial: &TestConnection) -> Reading {
    let tested = || trial.controls.iter().filter(|check| check.port_attempts > 0);
    let answered = |check: &PlainTcpCheck| {
        format!("{} of {} answered", check.ports_answered, check.port_attempts)
    };
    let differs = |check: &&PlainTcpCheck| {
        !(check.ports_answered == 0 || check.ports_answered == check.port_attempts)
    };
    match (tested().find(differs), tested().next()) {
        (Some(check), _) => Reading::Fails(format!("from {}, {}", check.local, answered(check))),
        (None, Some(check)) => Reading::Holds(format!("from {}, {}", check.local, answered(check))),
        (None, None) if trial.controls.is_empty() => Reading::unknown("a second path of this host"),
        (None, None) => Reading::Holds("every connection was answered".to_owned()),
    }
}
