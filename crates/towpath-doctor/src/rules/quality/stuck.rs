//! Established subflows on which data are not acknowledged, and their causes.

use super::super::parallel_links::find_silent_link;
use super::super::view::{ObservationView, is_closing};
use super::dropped_state::find_dropped_state;
use super::{SILENT_AFTER_MS, is_lossy, passes_only_small, report_mtu_black_hole};
use crate::finding::{Cause, Confidence, Finding};
use crate::observation::{ConnectOutcome, ObservedSubflow, PlainTcpCheck};
use crate::text;

/// Silence in round-trip times that a growing queue explains.
const QUEUE_RTTS: u32 = 4;
/// Minimum silence in milliseconds on a path without new connections: after a shorter one, the path
/// has just answered, and new connections wait in its queue.
const MIN_SILENT_MS: u32 = 250;
/// Values of `small` and `large` in a check in which packets of both sizes were echoed.
const BOTH_ECHOED: (Option<bool>, Option<bool>) = (Some(true), Some(true));

/// Reports an established subflow on which data are not acknowledged.
pub(super) fn find_stuck(view: &ObservationView<'_>, subflow: &ObservedSubflow) -> Option<Finding> {
    let tcp = subflow.tcp;
    let (local, remote) = (subflow.local.ip(), subflow.remote.ip());
    let check = view.plain_tcp_check(Some(local), remote);
    // A path that answered within a few round-trip times has a long queue.
    let silent_after_ms = SILENT_AFTER_MS.max((tcp.srtt_us / 1_000).saturating_mul(QUEUE_RTTS));
    let has_long_queue = silent_after_ms > SILENT_AFTER_MS && tcp.silent_ms < silent_after_ms;
    // New connections get no answer either, so the first timeout need not be over.
    let is_silent = check.is_some_and(|check| check.outcome == ConnectOutcome::Silent);
    let is_silent = is_silent && !has_long_queue && tcp.silent_ms >= MIN_SILENT_MS;
    let awaits_ack = tcp.unacked > 0 && (tcp.backoff > 0 || tcp.retransmissions > 0 || is_silent);
    let (small, large) = check.map_or((None, None), |check| (check.small, check.large));
    // Without a timeout, packets that arrived just now belong to a queue.
    let is_waiting = tcp.backoff == 0 && tcp.silent_ms < SILENT_AFTER_MS;
    let only_small = check.is_some_and(passes_only_small) && !is_waiting;
    // If only large packets are lost, the opposite direction still works.
    let is_recent = tcp.silent_ms < silent_after_ms && !only_small && !is_silent;
    if !awaits_ack || is_closing(subflow) || is_recent {
        return None;
    }
    let parallel_link =
        view.trial.and_then(|trial| find_silent_link(view, trial, (Some(local), remote)));
    if parallel_link.is_some() {
        return parallel_link;
    }
    let dropped_state = view
        .trial
        .zip(check)
        .and_then(|(trial, check)| find_dropped_state(view, trial, check, subflow));
    if dropped_state.is_some() {
        return dropped_state;
    }
    // Losses are a finding of their own. If new packets pass, the path is not dead.
    let large_retry_passed = check.is_some_and(|check| check.large_retry == Some(true));
    if check.is_some_and(|check| is_lossy(check, subflow))
        || large_retry_passed
        || (small, large) == BOTH_ECHOED
        || (small == Some(true) && !only_small)
    {
        return None;
    }
    explain_stuck(view, subflow, check, only_small)
}

/// Finds the cause of a subflow without acknowledgements, on a path that neither loses single
/// packets nor passes all of them.
fn explain_stuck(
    view: &ObservationView<'_>,
    subflow: &ObservedSubflow,
    check: Option<&PlainTcpCheck>,
    only_small: bool,
) -> Option<Finding> {
    let tcp = subflow.tcp;
    let (local, remote) = (subflow.local.ip(), subflow.remote.ip());
    let name = view.here.link_of(local).map_or_else(|| local.to_string(), |link| link.name.clone());
    let path = format!("{name} ({local}) -> {remote}");
    let evidence = format!(
        "{} not acknowledged, {} in a row, no packet received for {} ms",
        text::count(tcp.unacked.into(), "packet"),
        text::count(tcp.backoff.into(), "timeout"),
        tcp.silent_ms
    );
    let after = view.observation.after.as_ref().and_then(|after| after.link_of(local));
    if after.is_some_and(|link| !link.running) {
        return Some(
            Finding::new(Cause::LinkDown, format!("the link of {name} is down"))
                .at_location(name)
                .with_evidence(evidence)
                .hint("the kernel sends no path manager event for this"),
        );
    }
    if only_small {
        return Some(report_mtu_black_hole(&name, &path, subflow, evidence));
    }
    // New connections pass, so the path is not silent. Without an echo, only the subflow's own data
    // show that large packets are lost.
    let connects =
        |check: &PlainTcpCheck| check.outcome == ConnectOutcome::Connected && check.small.is_none();
    if check.is_some_and(connects) {
        let has_acked_large = tcp.bytes_acked >= u64::from(tcp.mss_bytes);
        let is_slow = check.is_some_and(|check| check.ports_answered_late > 0);
        return (!has_acked_large && !is_slow).then(|| {
            report_mtu_black_hole(&name, &path, subflow, evidence)
                .with_confidence(Confidence::Likely)
        });
    }
    Some(report_silence(&path, check, evidence))
}

/// Reports an established subflow whose path gets no answer any more.
fn report_silence(path: &str, check: Option<&PlainTcpCheck>, evidence: String) -> Finding {
    let sentence = format!("{path} was established and now gets no answer");
    let finding =
        Finding::new(Cause::PathSilent, sentence).at_location(path).with_evidence(evidence);
    let finding = match check {
        Some(check) => finding.with_evidence(format!(
            "plain TCP over the same path: {}",
            text::outcome(check.outcome)
        )),
        None => finding.with_confidence(Confidence::Likely),
    };
    finding.hint("the kernel sends no event for this and still counts the subflow")
}
