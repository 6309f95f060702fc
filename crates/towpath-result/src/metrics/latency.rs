//! Latency under load: reply delays in each phase of `latency`.
//!
//! The round trips per minute are aggregated as in draft-ietf-ippm-responsiveness-08: a
//! single-sided trimmed mean at the 95th percentile. The measurement itself differs from the
//! draft's, see `docs/reference/metrics.md`.

use std::time::Duration;

use towpath_net::Instant;
use towpath_scenario::{DataDirection, LatencyPhases};

use super::messages::delays;
use crate::{DelayStats, LoadPath, LoadPhase, Message, Probe};

/// Fraction of each phase that does not count, as a divisor: loads have to begin, and queues to
/// fill.
const WARM_UP_DIVISOR: u32 = 5;
/// Percentage of delays kept in the trimmed mean; the largest 5 % are discarded.
const KEPT_PERCENT: usize = 95;

/// Returns the phases of a flow that starts at `start`. Requests without a reply count as waiting
/// until `until`.
pub fn phases(
    plan: &LatencyPhases,
    messages: &[Message],
    (start, until): (Instant, Instant),
) -> Vec<LoadPhase> {
    let measured = plan.all().map(|(load, begin)| {
        let begin = start + begin;
        let (measured_from, end) = (begin + plan.duration / WARM_UP_DIVISOR, begin + plan.duration);
        let requests = messages.iter().filter(|message| {
            let due = Instant::from_nanos(message.due_ns);
            message.direction == DataDirection::Up && measured_from <= due && due < end
        });
        let requests: Vec<&Message> = requests.collect();
        let delay_ns = |message: &&Message| {
            let reply_ns = message.answered_ns.unwrap_or(until.as_nanos());
            reply_ns.saturating_sub(message.due_ns)
        };
        LoadPhase {
            load,
            from_ns: measured_from.as_nanos(),
            until_ns: end.as_nanos(),
            count: requests.len() as u64,
            answered: requests.iter().filter(|message| message.answered_ns.is_some()).count()
                as u64,
            delay: delays(requests.iter().map(delay_ns)),
            delay_increase_ns: None,
            round_trips_per_minute: round_trips_per_minute(requests.iter().map(delay_ns).collect()),
            paths: Vec::new(),
        }
    });
    let mut phases = measured.to_vec();
    let idle = phases.first().and_then(|phase| phase.delay);
    for phase in phases.iter_mut().skip(1) {
        phase.delay_increase_ns = delay_increase(phase.delay, idle);
    }
    phases
}

/// Adds the round-trip times of datagrams over each path; `flow` is the number of the datagrams'
/// flow.
pub fn add_paths(phases: &mut [LoadPhase], probes: &[Probe], flow: u32) {
    let mut names: Vec<&str> = Vec::new();
    for probe in probes.iter().filter(|probe| probe.flow == flow) {
        if !names.contains(&probe.path.as_str()) {
            names.push(&probe.path);
        }
    }
    for name in names {
        let mut idle = None;
        for (index, phase) in phases.iter_mut().enumerate() {
            let span = phase.from_ns..phase.until_ns;
            let phase_probes = probes.iter().filter(|probe| {
                probe.flow == flow && probe.path == name && span.contains(&probe.due_ns)
            });
            let round_trips = phase_probes
                .clone()
                .filter_map(|probe| Some(probe.answered_ns?.saturating_sub(probe.sent_ns?)));
            let round_trip = delays(round_trips);
            if index == 0 {
                idle = round_trip;
            }
            phase.paths.push(LoadPath {
                path: name.to_owned(),
                count: phase_probes.clone().count() as u64,
                answered: phase_probes.filter(|probe| probe.answered_ns.is_some()).count() as u64,
                round_trip,
                delay_increase_ns: delay_increase(round_trip, idle).filter(|_| index > 0),
            });
        }
    }
}

fn delay_increase(loaded: Option<DelayStats>, idle: Option<DelayStats>) -> Option<i64> {
    let (loaded, idle) = (loaded?.p50_ns, idle?.p50_ns);
    i64::try_from(i128::from(loaded) - i128::from(idle)).ok()
}

/// Returns 60 s divided by the trimmed mean; `None` without delays.
fn round_trips_per_minute(mut delays_ns: Vec<u64>) -> Option<f64> {
    delays_ns.sort_unstable();
    delays_ns.truncate((delays_ns.len() * KEPT_PERCENT).div_ceil(100));
    let sum: f64 = delays_ns.iter().map(|nanos| *nanos as f64).sum();
    let mean = sum / delays_ns.len() as f64;
    (mean > 0.0).then(|| Duration::from_secs(60).as_nanos() as f64 / mean)
}

#[cfg(test)]
mod tests {
    use towpath_scenario::Load;

    use super::*;

    const MILLI: u64 = 1_000_000;

    fn plan() -> LatencyPhases {
        let seconds = Duration::from_secs;
        LatencyPhases { duration: seconds(5), pause: seconds(1), streams: 1 }
    }

    fn message(planned_ms: u64, delay_ms: Option<u64>) -> Message {
        let due_ns = planned_ms * MILLI;
        Message {
            flow: 0,
            direction: DataDirection::Up,
            number: 0,
            stream: 0,
            warm_up: false,
            request_bytes: 100,
            reply_bytes: 100,
            due_ns,
            sent_ns: Some(due_ns),
            delivered_ns: None,
            answered_ns: delay_ms.map(|delay| due_ns + delay * MILLI),
            replied_ns: None,
        }
    }

    #[test]
    fn each_phase_contains_its_requests_without_the_warm_up() {
        assert_eq!(plan().total(), Duration::from_secs(23));
        // One request per 100 ms with a delay of 40 ms, and of 140, 240, 340 ms under load.
        let messages = (0..230).map(|n| {
            let due_ms = n * 100;
            let delay_ms = 40 + 100 * (due_ms / 6_000);
            message(2_000 + due_ms, Some(delay_ms))
        });
        let messages: Vec<_> = messages.collect();
        let start = Instant::from_nanos(2_000 * MILLI);
        let phases = phases(&plan(), &messages, (start, Instant::from_nanos(30_000 * MILLI)));
        let loads: Vec<_> = phases.iter().map(|phase| phase.load).collect();
        assert_eq!(loads, [Load::Idle, Load::Down, Load::Up, Load::Both]);
        assert!(phases.iter().all(|phase| (phase.count, phase.answered) == (40, 40)), "{phases:?}");
        assert_eq!((phases[1].from_ns, phases[1].until_ns), (9_000 * MILLI, 13_000 * MILLI));
        let increases: Vec<_> = phases.iter().map(|phase| phase.delay_increase_ns).collect();
        assert_eq!(increases[0], None);
        for (increase, expected_ms) in increases.iter().skip(1).zip([100, 200, 300_i64]) {
            // Percentiles are within 1 %.
            assert!(
                (increase.unwrap() - expected_ms * 1_000_000).abs() < 5_000_000,
                "{increases:?}"
            );
        }
        assert_eq!(phases[0].round_trips_per_minute, Some(1_500.0));
    }

    #[test]
    fn round_trips_a_minute_leave_out_the_slowest_twentieth() {
        let delays_ns = (0..100).map(|n| if n < 95 { 100 * MILLI } else { 9_000 * MILLI });
        assert_eq!(round_trips_per_minute(delays_ns.collect()), Some(600.0));
        assert_eq!(round_trips_per_minute(vec![50 * MILLI]), Some(1_200.0));
        assert_eq!(
            (round_trips_per_minute(Vec::new()), round_trips_per_minute(vec![0])),
            (None, None)
        );
    }

    #[test]
    fn unanswered_requests_count_with_their_waiting_time() {
        let messages = [message(1_500, Some(40)), message(2_000, None)];
        let until = Instant::from_nanos(10_000 * MILLI);
        let phases = phases(&plan(), &messages, (Instant::ZERO, until));
        assert_eq!((phases[0].count, phases[0].answered), (2, 1));
        assert_eq!(phases[0].delay.unwrap().max_ns, 8_000 * MILLI);
        assert_eq!((phases[3].count, phases[3].delay), (0, None));
    }

    #[test]
    fn a_path_is_compared_with_its_own_idle_delay() {
        let mut phases = phases(&plan(), &[], (Instant::ZERO, Instant::ZERO));
        let probe = |path: &str, due_ms: u64, rtt_ms: Option<u64>| Probe {
            flow: 1,
            path: path.into(),
            number: 0,
            due_ns: due_ms * MILLI,
            sent_ns: Some(due_ms * MILLI),
            answered_ns: rtt_ms.map(|rtt| (due_ms + rtt) * MILLI),
        };
        let probes = [
            probe("wifi", 2_000, Some(20)),
            probe("wifi", 8_000, Some(220)),
            probe("lte", 8_000, None),
        ];
        add_paths(&mut phases, &probes, 1);
        let down = &phases[1].paths;
        assert_eq!((down[0].path.as_str(), down[0].count, down[0].answered), ("wifi", 1, 1));
        assert!((down[0].delay_increase_ns.unwrap() - 200_000_000).abs() < 3_000_000, "{down:?}");
        assert_eq!((down[1].count, down[1].answered, down[1].delay_increase_ns), (1, 0, None));
    }
}
