//! Readings of facts about the handshake and the data of the test connection.

use super::programs;
use super::reading::{Reading, needs_connection};
use crate::observation::TestConnection;
use crate::rules::view::ObservationView;
use crate::text;

pub(super) fn tcp_connects(view: &ObservationView<'_>) -> Reading {
    match view.trial {
        Some(trial) => Reading::of(trial.connected(false), "a connection over plain TCP"),
        None => needs_connection(),
    }
}

/// Returns the test connection if this host could request Multipath TCP, else what is missing.
fn requesting<'a>(view: &ObservationView<'a>) -> Result<&'a TestConnection, Reading> {
    let trial = view.trial.ok_or_else(needs_connection)?;
    if view.here.socket_errno == 0 {
        Ok(trial)
    } else {
        Err(Reading::unknown("Multipath TCP enabled on this host"))
    }
}

/// Returns the test connection if its SYN packets requested Multipath TCP.
fn requested<'a>(view: &ObservationView<'a>) -> Result<&'a TestConnection, Reading> {
    let is_requested = |trial: &&TestConnection| trial.counter_delta("MPCapableSYNTXDisabled") == 0;
    let missing = || Reading::unknown("a connection that requests Multipath TCP");
    requesting(view).and_then(|trial| Some(trial).filter(is_requested).ok_or_else(missing))
}

/// Returns the test connection if a SYN with MP_CAPABLE was answered.
fn answered<'a>(view: &ObservationView<'a>) -> Result<&'a TestConnection, Reading> {
    let missing = || Reading::unknown("an answered SYN");
    requested(view)
        .and_then(|trial| Some(trial).filter(|trial| trial.connected(true)).ok_or_else(missing))
}

pub(super) fn option_requested(view: &ObservationView<'_>) -> Reading {
    let read = |trial: &TestConnection| {
        let is_requested = trial.counter_delta("MPCapableSYNTXDisabled") == 0;
        Reading::of(is_requested, "MPCapableSYNTXDisabled during the test")
    };
    requesting(view).map_or_else(|missing| missing, read)
}

pub(super) fn syn_answered(view: &ObservationView<'_>) -> Reading {
    let read = |trial: &TestConnection| {
        Reading::of(trial.connected(true), "a connection over Multipath TCP")
    };
    requested(view).map_or_else(|missing| missing, read)
}

pub(super) fn option_returned(view: &ObservationView<'_>) -> Reading {
    let read =
        |trial: &TestConnection| Reading::of(trial.multipath, "MPTCP_INFO of the test connection");
    answered(view).map_or_else(|missing| missing, read)
}

pub(super) fn server_multipath(view: &ObservationView<'_>) -> Reading {
    if programs::listens_plainly(view) {
        return Reading::Fails("a program of this host listens with plain TCP".to_owned());
    }
    let read = |trial: &TestConnection| match view.peer.and_then(|peer| peer.latest().listener) {
        _ if trial.multipath => Reading::Holds("the server confirmed Multipath TCP".to_owned()),
        Some(listener) => Reading::of(listener.multipath, "the other host's listeners"),
        None => Reading::unknown("`towpath server` there (--peer)"),
    };
    answered(view).map_or_else(|missing| missing, read)
}

pub(super) fn stays_multipath(view: &ObservationView<'_>) -> Reading {
    answered(view).map_or_else(|missing| missing, after_handshake)
}

pub(super) fn data_intact(view: &ObservationView<'_>) -> Reading {
    answered(view).map_or_else(|missing| missing, compared_data)
}

fn after_handshake(trial: &TestConnection) -> Reading {
    if !trial.multipath {
        return Reading::unknown("a connection over Multipath TCP");
    }
    let names = ["MPCapableDataFallback", "DssFallback", "DSSCorruptionFallback", "InfiniteMapRx"];
    if let Some(name) = names.into_iter().find(|name| trial.counter_delta(name) > 0) {
        return Reading::Fails(format!("the kernel counts {name}"));
    }
    if !trial.multipath_at_end && trial.closed_by_peer {
        return Reading::unknown("a server that keeps the connection open");
    }
    Reading::of(trial.multipath_at_end, "MPTCP_INFO at the end of the test")
}

fn compared_data(trial: &TestConnection) -> Reading {
    let names = ["DataCsumErr", "MPFailTx", "MPFailRx"];
    if let Some(name) = names.into_iter().find(|name| trial.counter_delta(name) > 0) {
        return Reading::Fails(format!("the kernel counts {name}"));
    }
    let exchange = trial.exchange.filter(|exchange| exchange.returned > 0);
    let changed_at = exchange.and_then(|exchange| exchange.changed_at).or(trial.plain_changed_at);
    let was_reset = trial.events.iter().flatten().any(|event| event.reset_reason == Some(6));
    match (changed_at, exchange) {
        (Some(offset), _) => Reading::Fails(format!("byte {offset} came back modified")),
        _ if was_reset => Reading::Fails("a subflow was reset with reason 6".to_owned()),
        (None, Some(exchange)) if trial.multipath => {
            Reading::Holds(format!("{} came back unmodified", text::bytes(exchange.returned)))
        }
        (None, _) => Reading::unknown("a server that echoes data (`towpath server`)"),
    }
}
