//! Limits of the senders of connections that have data to send.

use super::programs::program_label;
use super::view::ObservationView;
use crate::finding::{Cause, Confidence, Finding};
use crate::observation::{ProgramSocket, SenderStats};
use crate::text;

/// Minimum of busy time and acknowledged bytes for a finding.
const MIN_BUSY_MS: u64 = 400;
const MIN_ACKED_BYTES: u64 = 50_000;
/// Share of the busy time, in per cent, from which a limit is reported.
const MIN_LIMITED_PERCENT: u64 = 50;
/// A window below this counts as closed: the reader does not keep up.
const CLOSED_WINDOW_BYTES: u64 = 3_000;
/// A window needs about twice as much buffer. Doubling the window shows if it was the limit.
const BUFFER_PER_WINDOW: u64 = 4;

pub(super) fn findings(view: &ObservationView<'_>) -> Vec<Finding> {
    let programs = view.observation.programs.as_deref().unwrap_or_default();
    let senders = programs.iter().filter_map(|program| Some((program, program.sender?)));
    senders.filter_map(|(program, stats)| find_limit(view, program, &stats)).collect()
}

fn find_limit(
    view: &ObservationView<'_>,
    program: &ProgramSocket,
    stats: &SenderStats,
) -> Option<Finding> {
    if stats.busy_ms < MIN_BUSY_MS || stats.acked_bytes < MIN_ACKED_BYTES {
        return None;
    }
    let percent = |ms: u64| ms * 100 / stats.busy_ms.max(1);
    let (window_percent, buffer_percent) =
        (percent(stats.receive_window_ms), percent(stats.send_buffer_ms));
    if window_percent.max(buffer_percent) < MIN_LIMITED_PERCENT {
        return None;
    }
    let connection = format!("{} -> {}", program.local, program.remote);
    let (cause, sentence, evidence, hint) = if buffer_percent > window_percent {
        report_send_buffer(view, program, stats, buffer_percent)
    } else if stats.min_window_bytes < CLOSED_WINDOW_BYTES {
        report_slow_reader(program, stats, window_percent)
    } else {
        report_receive_window(program, stats, window_percent)
    };
    let seconds = stats.span_ms as f64 / 1e3;
    let finding = Finding::new(cause, sentence)
        .at_location(connection)
        .with_confidence(Confidence::Likely)
        .with_evidence(evidence)
        .with_evidence(format!(
            "in {seconds:.1} s {} were acknowledged, with a round trip of {:.1} ms",
            text::bytes(stats.acked_bytes),
            f64::from(stats.max_srtt_us) / 1e3
        ));
    Some(finding.hint(hint))
}

/// Cause, sentence, evidence and hint of a finding.
type FindingParts = (Cause, String, String, String);

fn report_send_buffer(
    view: &ObservationView<'_>,
    program: &ProgramSocket,
    stats: &SenderStats,
    percent: u64,
) -> FindingParts {
    let size = text::bytes(stats.buffer_bytes);
    let suggested = suggested_bytes(stats.buffer_bytes);
    let configured_max = view
        .here
        .settings
        .get("ipv4.tcp_wmem")
        .and_then(|value| value.split_whitespace().last()?.parse::<u64>().ok());
    let hint = match configured_max {
        Some(configured_max) if configured_max >= suggested => format!(
            "the program requested this small buffer (SO_SNDBUF): net.ipv4.tcp_wmem allows \
             {configured_max}"
        ),
        Some(_) | None => format!("raise net.ipv4.tcp_wmem's maximum to {suggested} on this host"),
    };
    (
        Cause::SendBufferFull,
        format!(
            "a connection of {} spent {percent} % of its busy time limited by its send buffer \
             ({size})",
            program_label(program)
        ),
        format!("the send buffer of {size} was full of data that was sent and not acknowledged"),
        hint,
    )
}

fn report_receive_window(
    program: &ProgramSocket,
    stats: &SenderStats,
    percent: u64,
) -> FindingParts {
    let size = text::bytes(stats.max_window_bytes);
    let suggested = suggested_bytes(stats.max_window_bytes * BUFFER_PER_WINDOW / 2);
    (
        Cause::ReceiveWindowFull,
        format!(
            "a connection of {} spent {percent} % of its busy time limited by the receiver's window \
             ({size})",
            program_label(program)
        ),
        format!(
            "the receiver offered {} to {size}, and the sender used all of it",
            text::bytes(stats.min_window_bytes)
        ),
        format!(
            "at the receiver, raise net.ipv4.tcp_rmem's maximum to {suggested}, or remove its program's smaller buffer (SO_RCVBUF)"
        ),
    )
}

fn report_slow_reader(program: &ProgramSocket, stats: &SenderStats, percent: u64) -> FindingParts {
    (
        Cause::SlowReader,
        format!(
            "a connection of {} spent {percent} % of its busy time waiting for the receiver's \
             program to read",
            program_label(program)
        ),
        format!(
            "the receiver's window shrank to {}",
            text::bytes(stats.min_window_bytes)
        ),
        "the receiving program reads more slowly than data arrives: a larger buffer does not help for long"
            .to_owned(),
    )
}

/// Returns the next power of two that is at least twice as much.
fn suggested_bytes(bytes: u64) -> u64 {
    bytes.saturating_mul(2).checked_next_power_of_two().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{Observation, SocketProtocol, SocketRole};

    fn finding_for(stats: SenderStats) -> Option<Finding> {
        let program = ProgramSocket {
            id: Some(7),
            name: "curl".to_owned(),
            role: SocketRole::Connected,
            local: "10.0.1.1:4000".parse().unwrap(),
            remote: "10.9.0.1:443".parse().unwrap(),
            speaks: SocketProtocol::Multipath,
            subflows: vec![],
            sender: Some(stats),
        };
        let mut observation =
            Observation { programs: Some(vec![program]), ..Observation::default() };
        observation.here.settings.insert("ipv4.tcp_wmem".into(), "4096 16384 100000".into());
        findings(&ObservationView::new(&observation)).into_iter().next()
    }

    fn busy() -> SenderStats {
        SenderStats {
            span_ms: 1_000,
            busy_ms: 900,
            max_window_bytes: 64_000,
            min_window_bytes: 60_000,
            buffer_bytes: 90_000,
            acked_bytes: 1_200_000,
            max_srtt_us: 50_000,
            ..SenderStats::default()
        }
    }

    #[test]
    fn a_small_window_is_reported_with_a_larger_value() {
        let finding = finding_for(SenderStats { receive_window_ms: 720, ..busy() }).unwrap();
        assert_eq!(finding.cause, Cause::ReceiveWindowFull);
        let sentence = "a connection of curl (7) spent 80 % of its busy time limited by the \
                        receiver's window (64 kB)";
        assert_eq!(finding.sentence, sentence);
        assert!(finding.hint.unwrap().contains("tcp_rmem's maximum to 262144"));
        assert_eq!(finding.evidence.len(), 2);
    }

    #[test]
    fn a_slow_reader_and_a_small_send_buffer_are_distinguished() {
        let slow = SenderStats { receive_window_ms: 720, min_window_bytes: 0, ..busy() };
        assert_eq!(finding_for(slow).unwrap().cause, Cause::SlowReader);
        let buffer = finding_for(SenderStats { send_buffer_ms: 800, ..busy() }).unwrap();
        assert_eq!(buffer.cause, Cause::SendBufferFull);
        assert!(buffer.hint.unwrap().contains("tcp_wmem's maximum to 262144"));
    }

    #[test]
    fn nothing_is_reported_without_enough_data() {
        let limited = SenderStats { receive_window_ms: 200, ..busy() };
        assert_eq!(finding_for(SenderStats { busy_ms: 200, ..limited }), None, "short");
        let idle = SenderStats { acked_bytes: 1_000, receive_window_ms: 800, ..busy() };
        assert_eq!(finding_for(idle), None, "nearly idle");
        assert_eq!(finding_for(limited), None, "mostly something else");
    }
}
