//! Figures of the handover of one run, as its client saw it.

use std::collections::BTreeMap;

use towpath_result::Subflow;
use towpath_result::format;
use towpath_result::metrics::handover::{SETUP_NS, from_start_ns};
use towpath_scenario::{DataDirection, Transport};

use super::delays::message_delay_ns;
use super::round::{MobileRound, RoundRun, is_sampled_by_client, path_name, time_text};

/// Number of sampling periods before the first use of another path that may show its reason.
const REASON_PERIODS: u64 = 3;

/// First use of another path than the first one.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FirstUse {
    /// Time on the shared axis.
    at_ns: u64,
    path: String,
    /// Largest smoothed RTT in µs and back-off on the first path shortly before.
    state: Option<(u32, u32)>,
}

/// Figures of a run's handover; times are on the shared axis.
#[derive(Debug, Default, PartialEq, Eq)]
struct HandoverFigures {
    first_use: Option<FirstUse>,
    last_receipt_ns: Option<u64>,
    /// Longest delay of an answered message, up and down.
    longest_ns: [Option<u64>; 2],
    unanswered: usize,
}

impl HandoverFigures {
    fn of(round: &MobileRound<'_>, view: &RoundRun<'_>) -> Self {
        let mut figures = Self::default();
        let [up, down] = &mut figures.longest_ns;
        for (longest, direction) in [(up, DataDirection::Up), (down, DataDirection::Down)] {
            for message in view.messages(direction).into_iter().filter(|m| !m.warm_up) {
                let delay_ns = message_delay_ns(message);
                figures.unanswered += usize::from(delay_ns.is_none());
                *longest = (*longest).max(delay_ns);
            }
        }
        let Some(first_path) = round.first_path() else { return figures };
        let mut latest: BTreeMap<(u32, u32, u32, bool), &Subflow> = BTreeMap::new();
        let mut states: Vec<(u64, u32, u32)> = Vec::new();
        for sample in view.subflows().filter(|sample| is_sampled_by_client(sample)) {
            let is_down = sample.direction == DataDirection::Down;
            let key = (sample.flow, sample.stream, sample.subflow, is_down);
            let previous = latest.insert(key, sample);
            let has_grown =
                |counter: fn(&Subflow) -> u64| counter(sample) > previous.map_or(0, counter);
            if sample.path == first_path {
                let received = has_grown(|s| s.bytes_received) || has_grown(|s| s.bytes_acked);
                if received && view.at(sample.t_ns) <= view.end_ns {
                    figures.last_receipt_ns =
                        figures.last_receipt_ns.max(Some(view.at(sample.t_ns)));
                }
                states.push((sample.t_ns, sample.srtt_us, sample.backoff));
            } else if figures.first_use.is_none()
                && is_use(view, sample, has_grown(|s| s.bytes_sent))
            {
                let (at_ns, path) = (view.at(sample.t_ns), sample.path.clone());
                let period_ns = view.run.meta.sample_ns.saturating_mul(REASON_PERIODS);
                let before = states.iter().rev();
                let recent =
                    before.take_while(|(t_ns, ..)| t_ns.saturating_add(period_ns) >= sample.t_ns);
                let state =
                    recent.fold(None, |largest: Option<(u32, u32)>, (_, srtt_us, backoff)| {
                        let (max_srtt_us, max_backoff) = largest.unwrap_or_default();
                        Some((max_srtt_us.max(*srtt_us), max_backoff.max(*backoff)))
                    });
                figures.first_use = Some(FirstUse { at_ns, path, state });
            }
        }
        figures
    }
}

/// Returns true if a sample of another path shows data. Pings keep idle paths of Multipath QUIC
/// alive, so bytes on a backup show nothing there.
fn is_use(view: &RoundRun<'_>, sample: &Subflow, has_sent: bool) -> bool {
    has_sent
        && sample.t_ns > SETUP_NS
        && !(view.run.meta.transport == Transport::Mpquic && sample.backup)
}

/// Returns the sentence about a run's handover.
pub(super) fn sentence(round: &MobileRound<'_>, view: &RoundRun<'_>) -> String {
    let figures = HandoverFigures::of(round, view);
    let moment = |ns: u64| format!("{:.1}\u{a0}s", ns as f64 / 1e9);
    let first_path = round.first_path().map(path_name).unwrap_or_default();
    let start_ns = view.at(from_start_ns(&view.run.meta));
    let mut parts = Vec::new();
    match &figures.first_use {
        Some(first_use) if first_use.at_ns <= start_ns => {
            parts.push(format!("used {} from the start", path_name(&first_use.path)));
        }
        Some(FirstUse { at_ns, path, state }) => {
            let state = match state {
                Some((_, backoff)) if *backoff > 0 => {
                    format!(", during an RTO back-off of {backoff} on {first_path}")
                }
                Some((srtt_us, _)) => {
                    let srtt = time_text(u64::from(*srtt_us) * 1_000);
                    format!(", at a smoothed RTT of {srtt} on {first_path}")
                }
                None => String::new(),
            };
            parts.push(format!("first used {} at {}{state}", path_name(path), moment(*at_ns)));
        }
        None if figures.last_receipt_ns.is_some() => {
            parts.push(format!("used {first_path} alone"));
        }
        None => {}
    }
    if let Some(at_ns) = figures.last_receipt_ns {
        parts.push(format!("last received a packet on {first_path} at {}", moment(at_ns)));
    }
    let [up, down] = figures.longest_ns.map(|ns| ns.map(time_text));
    let longest = match (up, down) {
        (Some(up), Some(down)) => Some(format!("{up} up and {down} down")),
        (Some(up), None) => Some(format!("{up} up")),
        (None, Some(down)) => Some(format!("{down} down")),
        (None, None) => None,
    };
    parts.extend(longest.map(|longest| format!("had a longest delay of {longest}")));
    if figures.unanswered > 0 {
        let messages = format::count(figures.unanswered as u64, "message");
        parts.push(format!("left {messages} without a reply"));
    }
    if parts.is_empty() {
        return format!("{} has no samples and no messages.", view.name);
    }
    format!("{} {}.", view.name, format::list(&parts))
}
