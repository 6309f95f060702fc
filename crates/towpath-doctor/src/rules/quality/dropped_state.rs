//! Devices on a path that drop the state of a connection, while new connections pass.

use super::super::view::{ObservationView, is_working};
use crate::finding::{Cause, Confidence, Finding};
use crate::observation::{ConnectOutcome, ObservedSubflow, PlainTcpCheck, TestConnection};
use crate::text;

/// Minimum silence of the subflow in milliseconds and in round-trip times. A queue that is full for
/// that time also delays the packets of a new connection.
const MIN_SILENT_MS: u32 = 600;
const MIN_SILENT_RTTS: u32 = 8;
/// Minimum of timeouts in a row.
const MIN_TIMEOUTS: u32 = 2;
/// Minimum of connections from other ports, all answered at once, if the server echoes no data.
const MIN_PORTS: u32 = 8;
/// Maximum round-trip time in microseconds; on longer paths, the silence may be a full queue.
const MAX_RTT_US: u32 = 200_000;

/// Reports a subflow that stopped, while a new connection over its path passes.
pub(super) fn find_dropped_state(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    check: &PlainTcpCheck,
    subflow: &ObservedSubflow,
) -> Option<Finding> {
    let tcp = subflow.tcp;
    let rtt_us = tcp.srtt_us.max(check.min_rtt_us);
    let min_silent_ms = MIN_SILENT_MS.max((rtt_us / 1_000).saturating_mul(MIN_SILENT_RTTS));
    let has_stopped =
        tcp.unacked > 0 && tcp.backoff >= MIN_TIMEOUTS && tcp.silent_ms >= min_silent_ms;
    let is_same =
        |other: &ObservedSubflow| (other.local, other.remote) == (subflow.local, subflow.remote);
    let continues = |other: &ObservedSubflow| {
        is_working(other) && other.tcp.backoff == 0 && other.tcp.silent_ms < tcp.silent_ms
    };
    let other_continues = trial.subflows.iter().any(|other| !is_same(other) && continues(other));
    if !has_stopped || !other_continues || !passes_at_once(check, subflow) {
        return None;
    }
    let (local, remote) = (subflow.local.ip(), subflow.remote.ip());
    let link = view.here.link_of(local)?;
    let path = format!("{} ({local}) -> {remote}", link.name);
    let after = view.observation.after.as_ref().and_then(|after| after.link_of(local));
    if after.is_some_and(|link| !link.running) {
        return None;
    }
    let passed = text::bytes(tcp.bytes_acked.max(tcp.bytes_received));
    let sentence = format!(
        "{path} stopped answering after {passed}, but a new connection over the same path passes: \
         something on the path drops the connection's state"
    );
    Some(
        Finding::new(Cause::NatTimeout, sentence)
            .at_location(&path)
            // A short interruption of the path looks the same until the next retransmission.
            .with_confidence(Confidence::Likely)
            .with_evidence(format!(
                "{} not acknowledged, {} in a row, no packet received for {} ms",
                text::count(tcp.unacked.into(), "packet"),
                text::count(tcp.backoff.into(), "timeout"),
                tcp.silent_ms
            ))
            .with_evidence(format!(
                "plain TCP over the same path: connected, {} of {} small packets lost",
                check.resent, check.packets
            ))
            .hint(
                "a firewall, NAT or proxy of that path ends connections by their volume or their \
                 age, or forgets them: ask the operator of that path, or use a tunnel",
            ),
    )
}

/// Returns true if a new connection over the path loses and delays nothing.
fn passes_at_once(check: &PlainTcpCheck, subflow: &ObservedSubflow) -> bool {
    let is_lossless = check.resent == 0
        && check.behind_gap == 0
        && check.ports_answered == check.port_attempts
        && check.ports_answered_late == 0;
    let has_passed_large = subflow.tcp.bytes_acked >= u64::from(subflow.tcp.mss_bytes.max(1));
    let passes_data = match (check.small, check.large) {
        (Some(true), Some(true)) => true,
        // Large packets may be lost without an echo of their own, so the subflow's count.
        (None, None) => has_passed_large && check.port_attempts >= MIN_PORTS,
        (Some(_) | None, Some(_) | None) => false,
    };
    check.outcome == ConnectOutcome::Connected
        && is_lossless
        && passes_data
        && check.min_rtt_us < MAX_RTT_US
}
