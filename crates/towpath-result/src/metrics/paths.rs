//! Delay and loss of single paths, measured with datagrams (`udping`).

use towpath_scenario::Udping;

use super::messages::delays;
use crate::{PathStats, Probe};

/// Returns the metrics of every path of a flow, in order of first appearance.
pub fn all_path_stats(probes: &[Probe], flow: u32, plan: &Udping) -> Vec<PathStats> {
    let mut paths: Vec<&str> = Vec::new();
    for probe in probes.iter().filter(|probe| probe.flow == flow) {
        if !paths.contains(&probe.path.as_str()) {
            paths.push(&probe.path);
        }
    }
    let stats_of = |path: &str| -> Option<PathStats> {
        let mut path_probes: Vec<&Probe> =
            probes.iter().filter(|probe| probe.flow == flow && probe.path == path).collect();
        path_probes.sort_by_key(|probe| probe.due_ns);
        path_stats(&path_probes, plan)
    };
    paths.into_iter().filter_map(stats_of).collect()
}

fn path_stats(probes: &[&Probe], plan: &Udping) -> Option<PathStats> {
    let (first, last) = (probes.first()?, probes.last()?);
    let timeout_ns = plan.reply_timeout.as_nanos() as u64;
    let delay = probes
        .iter()
        .map(|p| p.answered_ns.map_or(timeout_ns, |reply_ns| reply_ns - reply_ns.min(p.due_ns)));
    let round_trip = probes.iter().filter_map(|p| p.answered_ns?.checked_sub(p.sent_ns?));
    let mut reply_times: Vec<u64> = probes.iter().filter_map(|probe| probe.answered_ns).collect();
    reply_times.sort_unstable();
    let end = last.due_ns.saturating_add(plan.period.as_nanos() as u64);
    let (silence_at_ns, silence_ns) = longest_gap(first.due_ns, &reply_times, end);
    Some(PathStats {
        flow: first.flow,
        path: first.path.clone(),
        count: probes.len() as u64,
        sent: probes.iter().filter(|probe| probe.sent_ns.is_some()).count() as u64,
        answered: reply_times.len() as u64,
        delay: delays(delay)?,
        round_trip: delays(round_trip),
        silence_ns,
        silence_at_ns,
    })
}

/// Returns start and length of the longest time without a reply, from the first due time to the end
/// of the schedule.
fn longest_gap(first_due: u64, reply_times: &[u64], end: u64) -> (u64, u64) {
    let begins = [first_due].into_iter().chain(reply_times.iter().copied());
    let ends = reply_times.iter().copied().chain([end]);
    let gaps = begins.zip(ends).map(|(begin, end)| (begin, end.saturating_sub(begin)));
    // The first of two equal gaps wins.
    gaps.fold((first_due, 0), |longest, gap| if gap.1 > longest.1 { gap } else { longest })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MILLI: u64 = 1_000_000;

    fn probe(path: &str, number: u64, round_trip: Option<u64>) -> Probe {
        let due_ns = number * 100 * MILLI;
        let sent = due_ns + MILLI;
        Probe {
            flow: 1,
            path: path.into(),
            number: number as u32,
            due_ns,
            sent_ns: Some(sent),
            answered_ns: round_trip.map(|rtt_ms| sent + rtt_ms * MILLI),
        }
    }

    fn plan() -> Udping {
        let millis = Duration::from_millis;
        Udping { period: millis(100), duration: millis(1_000), reply_timeout: millis(3_000) }
    }

    #[test]
    fn a_lost_reply_counts_as_the_timeout_in_the_longest_silence() {
        let is_answered = |number| !(3..7).contains(&number);
        let wifi = (0..10).map(|n| probe("wifi", n, is_answered(n).then_some(20)));
        let mut probes: Vec<_> =
            wifi.chain((0..10).map(|n| probe("cellular", n, Some(50)))).collect();
        probes.push(Probe { flow: 0, ..probe("wifi", 11, None) });
        let stats = all_path_stats(&probes, 1, &plan());
        let [wifi, cellular] = stats.as_slice() else { panic!("{stats:?}") };
        assert_eq!((wifi.count, wifi.sent, wifi.answered, wifi.lost()), (10, 10, 6, 4));
        assert_eq!((wifi.delay.min_ns, wifi.delay.max_ns), (21 * MILLI, 3_000 * MILLI));
        assert!(wifi.delay.p50_ns.abs_diff(21 * MILLI) < MILLI, "{:?}", wifi.delay);
        assert!(wifi.delay.p90_ns > 2_970 * MILLI, "{:?}", wifi.delay);
        assert_eq!(wifi.round_trip.map(|delays| delays.max_ns), Some(20 * MILLI));
        assert_eq!((wifi.silence_at_ns, wifi.silence_ns), (221 * MILLI, 500 * MILLI));
        assert_eq!((cellular.path.as_str(), cellular.lost()), ("cellular", 0));
        assert_eq!(cellular.silence_ns, 100 * MILLI);
    }

    #[test]
    fn a_path_that_never_answers_is_silent_from_first_to_last() {
        let probes: Vec<_> =
            (0..10).map(|n| Probe { sent_ns: None, ..probe("wifi", n, None) }).collect();
        let stats = all_path_stats(&probes, 1, &plan());
        let [wifi] = stats.as_slice() else { panic!("{stats:?}") };
        assert_eq!((wifi.sent, wifi.answered, wifi.round_trip), (0, 0, None));
        assert_eq!((wifi.silence_at_ns, wifi.silence_ns), (0, 1_000 * MILLI));
        assert_eq!(wifi.delay.p50_ns, 3_000 * MILLI);
    }
}
