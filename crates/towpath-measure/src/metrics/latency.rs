//! Latency under load: reply delays in each phase of `latency`.
//!
//! The round trips per minute are aggregated as in draft-ietf-ippm-responsiveness-08: a
//! single-sided trimmed mean at the 95th percentile. The measurement itself differs from the
//! draft's, see `docs/metrics.md`.

use std::time::Duration;

use towpath_net::Instant;

use super::messages::delays;
use crate::result::{DelayStats, LoadPath, LoadPhase, Message, Probe};
use crate::scenario::{DataDirection, LatencyPhases};

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
    let each = plan.all().map(|(load, begin)| {
        let begin = start + begin;
        let (from, end) = (begin + plan.duration / WARM_UP_DIVISOR, begin + plan.duration);
        let own = messages.iter().filter(|message| {
            let due = Instant::from_nanos(message.due_ns);
            message.direction == DataDirection::Up && from <= due && due < end
        });
        let own: Vec<&Message> = own.collect();
        let late = |message: &&Message| {
            let known = message.answered_ns.unwrap_or(until.as_nanos());
            known.saturating_sub(message.due_ns)
        };
        LoadPhase {
            load,
            from_ns: from.as_nanos(),
            until_ns: end.as_nanos(),
            count: own.len() as u64,
            answered: own.iter().filter(|message| message.answered_ns.is_some()).count() as u64,
            delay: delays(own.iter().map(late)),
            delay_increase_ns: None,
            round_trips_per_minute: round_trips_per_minute(own.iter().map(late).collect()),
            paths: Vec::new(),
        }
    });
    let mut all = each.to_vec();
    let idle = all.first().and_then(|phase| phase.delay);
    for phase in all.iter_mut().skip(1) {
        phase.delay_increase_ns = delay_increase(phase.delay, idle);
    }
    all
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
        for (at, phase) in phases.iter_mut().enumerate() {
            let span = phase.from_ns..phase.until_ns;
            let own = probes.iter().filter(|probe| {
                probe.flow == flow && probe.path == name && span.contains(&probe.due_ns)
            });
            let times = own
                .clone()
                .filter_map(|probe| Some(probe.answered_ns?.saturating_sub(probe.sent_ns?)));
            let round_trip = delays(times);
            if at == 0 {
                idle = round_trip;
            }
            phase.paths.push(LoadPath {
                path: name.to_owned(),
                count: own.clone().count() as u64,
                answered: own.filter(|probe| probe.answered_ns.is_some()).count() as u64,
                round_trip,
                delay_increase_ns: delay_increase(round_trip, idle).filter(|_| at > 0),
            });
        }
    }
}

fn delay_increase(loaded: Option<DelayStats>, idle: Option<DelayStats>) -> Option<i64> {
    let (loaded, idle) = (loaded?.p50_ns, idle?.p50_ns);
    i64::try_from(i128::from(loaded) - i128::from(idle)).ok()
}

/// Returns 60 s divided by the trimmed mean; `None` without delays.
fn round_trips_per_minute(mut late: Vec<u64>) -> Option<f64> {
    late.sort_unstable();
    late.truncate((late.len() * KEPT_PERCENT).div_ceil(100));
    let sum: f64 = late.iter().map(|nanos| *nanos as f64).sum();
    let mean = sum / late.len() as f64;
    (mean > 0.0).then(|| Duration::from_secs(60).as_nanos() as f64 / mean)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Load;

    const MILLI: u64 = 1_000_000;

    fn plan() -> LatencyPhases {
        let seconds = Duration::from_secs;
        LatencyPhases { duration: seconds(5), pause: seconds(1), streams: 1 }
    }

    fn message(at: u64, late_ms: Option<u64>) -> Message {
        let due_ns = at * MILLI;
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
            answered_ns: late_ms.map(|late| due_ns + late * MILLI),
            replied_ns: None,
        }
    }

    #[test]
    fn each_phase_contains_its_requests_without_the_warm_up() {
        assert_eq!(plan().total(), Duration::from_secs(23));
        // One request per 100 ms with a delay of 40 ms, and of 140, 240, 340 ms under load.
        let all = (0..230).map(|n| {
            let due = n * 100;
            let late = 40 + 100 * (due / 6_000);
            message(2_000 + due, Some(late))
        });
        let all: Vec<_> = all.collect();
        let start = Instant::from_nanos(2_000 * MILLI);
        let phases = phases(&plan(), &all, (start, Instant::from_nanos(30_000 * MILLI)));
        let loads: Vec<_> = phases.iter().map(|phase| phase.load).collect();
        assert_eq!(loads, [Load::Idle, Load::Down, Load::Up, Load::Both]);
        assert!(phases.iter().all(|phase| (phase.count, phase.answered) == (40, 40)), "{phases:?}");
        assert_eq!((phases[1].from_ns, phases[1].until_ns), (9_000 * MILLI, 13_000 * MILLI));
        let rises: Vec<_> = phases.iter().map(|phase| phase.delay_increase_ns).collect();
        assert_eq!(rises[0], None);
        for (rise, wanted) in rises.iter().skip(1).zip([100, 200, 300_i64]) {
            // Percentiles are within 1 %.
            assert!((rise.unwrap() - wanted * 1_000_000).abs() < 5_000_000, "{rises:?}");
        }
        assert_eq!(phases[0].round_trips_per_minute, Some(1_500.0));
    }

    #[test]
    fn round_trips_a_minute_leave_out_the_slowest_twentieth() {
        let late = (0..100).map(|n| if n < 95 { 100 * MILLI } else { 9_000 * MILLI });
        assert_eq!(round_trips_per_minute(late.collect()), Some(600.0));
        assert_eq!(round_trips_per_minute(vec![50 * MILLI]), Some(1_200.0));
        assert_eq!(
            (round_trips_per_minute(Vec::new()), round_trips_per_minute(vec![0])),
            (None, None)
        );
    }

    #[test]
    fn unanswered_requests_count_with_their_waiting_time() {
        let all = [message(1_500, Some(40)), message(2_000, None)];
        let until = Instant::from_nanos(10_000 * MILLI);
        let phases = phases(&plan(), &all, (Instant::ZERO, until));
        assert_eq!((phases[0].count, phases[0].answered), (2, 1));
        assert_eq!(phases[0].delay.unwrap().max_ns, 8_000 * MILLI);
        assert_eq!((phases[3].count, phases[3].delay), (0, None));
    }

    #[test]
    fn a_path_is_compared_with_itself() {
        let mut all = phases(&plan(), &[], (Instant::ZERO, Instant::ZERO));
        let probe = |path: &str, at: u64, round_ms: Option<u64>| Probe {
            flow: 1,
            path: path.into(),
            number: 0,
            due_ns: at * MILLI,
            sent_ns: Some(at * MILLI),
            answered_ns: round_ms.map(|round| (at + round) * MILLI),
        };
        let probes = [
            probe("wifi", 2_000, Some(20)),
            probe("wifi", 8_000, Some(220)),
            probe("lte", 8_000, None),
        ];
        add_paths(&mut all, &probes, 1);
        let down = &all[1].paths;
        assert_eq!((down[0].path.as_str(), down[0].count, down[0].answered), ("wifi", 1, 1));
        assert!((down[0].delay_increase_ns.unwrap() - 200_000_000).abs() < 3_000_000, "{down:?}");
        assert_eq!((down[1].count, down[1].answered, down[1].delay_increase_ns), (1, 0, None));
    }
}
