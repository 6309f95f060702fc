//! Readings of facts about the sockets of programs.

use super::reading::{Reading, needs_connection};
use crate::finding::Cause;
use crate::observation::{ObservedSubflow, SocketProtocol, SocketRole};
use crate::rules::view::ObservationView;
use crate::rules::{programs, sender_stats};

/// Returns the reading of programs without these causes.
fn without(view: &ObservationView<'_>, causes: &[Cause], evidence: &str) -> Reading {
    if view.observation.programs.is_none() {
        return Reading::unknown("readable sockets");
    }
    let mut problems = programs::findings(view).into_iter();
    match problems.find(|finding| causes.contains(&finding.cause)) {
        Some(finding) => Reading::Fails(finding.sentence),
        None => Reading::Holds(evidence.to_owned()),
    }
}

pub(super) fn all_multipath(view: &ObservationView<'_>) -> Reading {
    if !view.observation.asked_for_programs {
        return Reading::unknown("--all or --pid N");
    }
    without(view, &[Cause::ApplicationPlainTcp], "no program has a connection over plain TCP")
}

pub(super) fn subflows_answer(view: &ObservationView<'_>) -> Reading {
    let subflows = view.trial.map(|trial| trial.subflows.as_slice()).unwrap_or_default();
    let waits = |subflow: &&ObservedSubflow| subflow.tcp.unacked > 0 && subflow.tcp.backoff > 1;
    if let Some(subflow) = subflows.iter().find(waits) {
        let local = subflow.local.ip();
        return Reading::Fails(format!("the test's subflow from {local} waits"));
    }
    let causes = [Cause::NatTimeout, Cause::PathSilent, Cause::LinkDown];
    without(view, &causes, "no subflow of a program waits for long")
}

pub(super) fn have_every_path(view: &ObservationView<'_>) -> Reading {
    if view.trial.is_none() {
        return needs_connection();
    }
    without(view, &[Cause::SubflowNotRecreated], "no program lacks a subflow")
}

pub(super) fn senders_unlimited(view: &ObservationView<'_>) -> Reading {
    match sender_stats::findings(view).into_iter().next() {
        Some(finding) => Reading::Fails(finding.sentence),
        None if has_busy_sender(view) => {
            Reading::Holds("no busy connection was limited".to_owned())
        }
        None => Reading::unknown("a program that sends data (--all or --pid N)"),
    }
}

/// Returns true if a listener of this host uses plain TCP, as far as that was requested.
pub(super) fn listens_plainly(view: &ObservationView<'_>) -> bool {
    let programs = view.observation.programs.as_deref().unwrap_or_default();
    view.observation.asked_for_programs
        && programs.iter().any(|program| {
            program.role == SocketRole::Listens && program.speaks == SocketProtocol::Tcp
        })
}

fn has_busy_sender(view: &ObservationView<'_>) -> bool {
    let programs = view.observation.programs.as_deref().unwrap_or_default();
    programs.iter().any(|program| program.sender.is_some())
}
