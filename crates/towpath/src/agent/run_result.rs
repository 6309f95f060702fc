//! Outcome of a run from its result or its error: the state, and the bytes that it needed.

use std::collections::BTreeMap;
use std::time::Duration;

use towpath_campaign::{
    MissingReason, OutcomeState, RUN_OVERHEAD_BYTES, UDPING_ROUND_TRIP_BYTES, with_overhead,
};
use towpath_live::LiveError;
use towpath_os::interrupt;
use towpath_result::store::StoredRun;
use towpath_result::{Record, SubflowEnd, Summary};

use super::journal::short;
use crate::error::CliError;

/// Part of [`RUN_OVERHEAD_BYTES`] for handshakes.
const HANDSHAKE_BYTES: u64 = 50_000;
/// Bytes of a retransmitted packet, at most.
const PACKET_BYTES: u64 = 1_500;
/// Longest time that a server may have a device wait before the only repetition.
const MAX_REFUSAL_WAIT: Duration = Duration::from_mins(1);

/// Returns the outcome of a run whose result is queued.
pub(super) fn stored_state(result: String, summary: Option<&Summary>) -> OutcomeState {
    match (summary.and_then(Summary::invalid_reason), summary) {
        (Some(detail), _) => OutcomeState::Invalid { result, detail: short(detail) },
        (None, Some(_)) => OutcomeState::Stored { result },
        (None, None) => {
            OutcomeState::Invalid { result, detail: "the result has no summary".to_owned() }
        }
    }
}

/// Returns true if the traffic of a run reached its planned end, although an interrupt followed.
pub(super) fn is_complete(summary: &Summary) -> bool {
    !summary.is_interrupted() && summary.flows.iter().all(|flow| flow.completed)
}

/// Returns the reason of a failed run, and the bytes that count: all reserved ones unless the
/// traffic cannot have begun.
pub(super) fn classify(error: &CliError, reserved: u64) -> (MissingReason, u64) {
    if interrupt::is_interrupted() {
        return (MissingReason::Interrupted, reserved);
    }
    let before_traffic = RUN_OVERHEAD_BYTES.min(reserved);
    match live_error(error) {
        Some(LiveError::Connect { .. } | LiveError::FirstPath { .. }) => {
            (MissingReason::Unreachable, before_traffic)
        }
        Some(LiveError::Refused(_)) => (MissingReason::Refused, before_traffic),
        Some(
            LiveError::Untrusted { .. }
            | LiveError::Unprotected { .. }
            | LiveError::Exhausted { .. }
            | LiveError::Listen { .. },
        ) => (MissingReason::Failed, before_traffic),
        Some(LiveError::Protocol(_) | LiveError::System { .. }) | None => {
            (MissingReason::Failed, reserved)
        }
    }
}

fn live_error(error: &CliError) -> Option<&LiveError> {
    let CliError::Failed { source, .. } = error else { return None };
    source.downcast_ref()
}

/// Returns the time after which a refused run may be repeated, if the server names one.
pub(super) fn refusal_wait(error: &CliError) -> Option<Duration> {
    let Some(LiveError::Refused(refusal)) = live_error(error) else { return None };
    let wait = Duration::from_secs(refusal.retry_after_s?.into());
    (wait <= MAX_REFUSAL_WAIT).then_some(wait)
}

/// Returns the bytes that a run needed: payload, headers, retransmissions, and the control
/// connection.
pub(super) fn used_bytes(run: &StoredRun) -> u64 {
    let mut sent = BTreeMap::new();
    let (mut probes, mut interface_bytes) = (0_u64, 0_u64);
    for record in &run.records {
        match record {
            Record::Subflow(subflow) => {
                let key = (subflow.flow, subflow.stream, subflow.direction, subflow.subflow);
                let bytes = match subflow.side {
                    SubflowEnd::Sender => subflow.bytes_sent,
                    SubflowEnd::Receiver => subflow.bytes_received,
                };
                let max = sent.entry(key).or_insert(0_u64);
                *max = bytes.max(*max);
            }
            Record::Probe(_) => probes += 1,
            Record::Interface(interface) => {
                interface_bytes = interface_bytes
                    .saturating_add(interface.rx_bytes)
                    .saturating_add(interface.tx_bytes);
            }
            Record::Meta(_)
            | Record::Interval(_)
            | Record::Link(_)
            | Record::Account(_)
            | Record::Event(_)
            | Record::Message(_)
            | Record::Datagrams(_)
            | Record::Capture(_)
            | Record::Sequence(_)
            | Record::Counter(_)
            | Record::Timing(_)
            | Record::Summary(_) => {}
        }
    }
    let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.fold(0, u64::saturating_add);
    let (mut carried, mut payload) = (sum(&mut sent.into_values()), 0);
    if let Some(summary) = &run.summary {
        let retransmitted = summary.subflows.iter().map(|flow| flow.retransmissions * PACKET_BYTES);
        let arrived = summary.subflows.iter().map(|subflow| subflow.bytes);
        carried = carried.max(sum(&mut arrived.chain(retransmitted)));
        payload = sum(&mut summary.flows.iter().map(|flow| flow.bytes));
    }
    // Those of paths contain retransmissions. With QUIC, they also contain the handshake, and all
    // but the headers of IP and UDP.
    let transferred = with_overhead(payload).max(
        carried.saturating_add(carried / 16).saturating_add(RUN_OVERHEAD_BYTES - HANDSHAKE_BYTES),
    );
    transferred.saturating_add(probes.saturating_mul(UDPING_ROUND_TRIP_BYTES)).max(interface_bytes)
}

#[cfg(test)]
mod tests {
    use towpath_result::input::ReadBudget;
    use towpath_result::store::read_run_within;
    use towpath_result::{INTERRUPTED_WARNING, Warning};
    use towpath_scenario::Transport;

    use super::*;

    fn stored_run() -> StoredRun {
        let text = include_str!("../../../towpath-result/tests/fixtures/result-v1.jsonl");
        StoredRun::new(read_run_within(text.as_bytes(), &ReadBudget::of(u64::MAX)).unwrap(), None)
    }

    #[test]
    fn a_network_change_makes_a_result_invalid_and_a_failed_flow_does_not() {
        let mut summary = stored_run().summary.unwrap();
        summary.ok = false;
        let stored = OutcomeState::Stored { result: "ab".to_owned() };
        assert_eq!(stored_state("ab".to_owned(), Some(&summary)), stored);
        let text = format!("invalid: at 1.2 s, {}", "wlan0 lost its carrier ".repeat(20));
        summary.warnings.push(Warning { text, hint: None });
        let OutcomeState::Invalid { detail, .. } = stored_state("ab".to_owned(), Some(&summary))
        else {
            panic!()
        };
        assert!(detail.starts_with("at 1.2 s, wlan0") && detail.len() <= 200, "{detail}");
        let without = stored_state("ab".to_owned(), None);
        assert!(matches!(without, OutcomeState::Invalid { .. }));
    }

    #[test]
    fn an_interrupt_after_the_regular_end_leaves_a_complete_result() {
        let mut summary = stored_run().summary.unwrap();
        summary.flows.iter_mut().for_each(|flow| flow.completed = true);
        assert!(is_complete(&summary));
        let text = INTERRUPTED_WARNING.to_owned();
        summary.warnings.push(Warning { text, hint: None });
        assert!(!is_complete(&summary));
        summary.warnings.pop();
        summary.flows.iter_mut().for_each(|flow| flow.completed = false);
        assert!(!is_complete(&summary));
    }

    #[test]
    fn bytes_of_a_run_have_headers_and_the_control_connection() {
        let run = stored_run();
        let payload: u64 =
            run.summary.iter().flat_map(|all| &all.flows).map(|flow| flow.bytes).sum();
        let used = used_bytes(&run);
        assert!(used >= payload + payload / 8 + RUN_OVERHEAD_BYTES, "{used} {payload}");
        let empty = StoredRun { summary: None, records: Vec::new(), ..run };
        assert_eq!(used_bytes(&empty), RUN_OVERHEAD_BYTES);
    }

    #[test]
    fn only_failures_before_the_traffic_return_their_bytes() {
        let failed = |error: LiveError| classify(&CliError::failed(error, None), 9_000_000);
        let connect = LiveError::Connect {
            target: "eu-1".to_owned(),
            transport: Transport::Tcp,
            reason: "no answer".to_owned(),
        };
        assert_eq!(failed(connect), (MissingReason::Unreachable, RUN_OVERHEAD_BYTES));
        let lost = LiveError::Protocol("the connection ended".to_owned());
        assert_eq!(failed(lost), (MissingReason::Failed, 9_000_000));
        let internal = CliError::Internal("x".to_owned());
        assert_eq!(classify(&internal, 100), (MissingReason::Failed, 100));
        assert_eq!(refusal_wait(&internal), None);
    }
}
