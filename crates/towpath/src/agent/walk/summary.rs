//! Summary of a walk for the volunteer: how long the first network lasted, and how the transports
//! left it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use towpath_campaign::OutcomeState;
use towpath_result::format;
use towpath_result::format::text::clean;
use towpath_result::metrics::handover::Handover;
use towpath_result::store::StoredRun;
use towpath_result::{Event, PathStats, Record, SubflowEnd, Summary};
use towpath_scenario::{DataDirection, Transport};

use crate::agent::round::MeasuredRun;
use crate::ui::wrap;
use crate::upload::UploadState;

/// Reason for the end of a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WalkEnd {
    /// A network was lost, `at_ns` after the start of the traffic.
    NetworkLost { reason: String, at_ns: u64 },
    /// The device uses another network or address, `at_ns` after the start of the traffic.
    NetworkChanged { reason: String, at_ns: u64 },
    /// The user stopped the walk.
    Interrupted,
    /// The longest duration has passed.
    DurationReached,
    /// No run has a result.
    Failed,
}

impl WalkEnd {
    fn of(runs: &[MeasuredRun]) -> Self {
        let results = || runs.iter().filter_map(|run| run.result.as_ref());
        let lost = results().flat_map(|result| &result.records).find_map(loss);
        let is_stopped =
            |result: &StoredRun| result.summary.as_ref().is_some_and(Summary::is_interrupted);
        match lost {
            Some((event, reason)) => {
                let (reason, at_ns) = (reason.to_owned(), event.t_ns);
                let is_change = reason.starts_with("the default route") && reason.contains(" now ");
                if is_change || reason.starts_with("address ") {
                    Self::NetworkChanged { reason, at_ns }
                } else {
                    Self::NetworkLost { reason, at_ns }
                }
            }
            None if results().any(is_stopped) => Self::Interrupted,
            None if results().next().is_some() => Self::DurationReached,
            None => Self::Failed,
        }
    }

    /// Returns the name in JSON.
    const fn name(&self) -> &'static str {
        match self {
            Self::NetworkLost { .. } => "network-lost",
            Self::NetworkChanged { .. } => "network-changed",
            Self::Interrupted => "interrupted",
            Self::DurationReached => "duration-reached",
            Self::Failed => "failed",
        }
    }

    /// Returns reason and time of a loss or change.
    const fn change(&self) -> Option<(&String, u64)> {
        match self {
            Self::NetworkLost { reason, at_ns } | Self::NetworkChanged { reason, at_ns } => {
                Some((reason, *at_ns))
            }
            Self::Interrupted | Self::DurationReached | Self::Failed => None,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::NetworkLost { reason, at_ns } => {
                format!("a network was lost after {}: {reason}", span(*at_ns))
            }
            Self::NetworkChanged { reason, at_ns } => {
                format!("the network changed after {}: {reason}", span(*at_ns))
            }
            Self::Interrupted => "you stopped the walk".to_owned(),
            Self::DurationReached => "the longest duration has passed".to_owned(),
            Self::Failed => "no run has a result".to_owned(),
        }
    }
}

fn loss(record: &Record) -> Option<(&Event, &str)> {
    let Record::Event(event) = record else { return None };
    Some((event, event.network_loss()?))
}

/// Use of another network than the first one by a transport.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OtherNetwork {
    /// Name; `None` if it is not known which of several.
    name: Option<String>,
    /// First data since the start of the traffic.
    first_ns: u64,
    /// Time until the last packet over the first network; negative if that one had ended before.
    both_ns: i64,
}

/// One run of a walk.
#[derive(Debug)]
struct RunSummary {
    transport: Transport,
    /// Use of another network; `None` without.
    other: Option<OtherNetwork>,
    max_up_ns: Option<u64>,
    max_down_ns: Option<u64>,
    state: OutcomeState,
    /// Place of the result; `None` without one.
    upload: Option<UploadState>,
}

/// Summary of a walk.
#[derive(Debug)]
pub(super) struct WalkSummary {
    campaign: String,
    round: u32,
    server: Option<String>,
    end: WalkEnd,
    /// Name of the first network, and the time until its last data. `None` without a result.
    first_network: Option<(String, u64)>,
    /// Datagrams over each network.
    datagrams: Vec<PathStats>,
    runs: Vec<RunSummary>,
}

impl WalkSummary {
    /// Returns the summary of a round's runs, each with the place of its result.
    pub(super) fn new(
        (campaign, round): (&str, u32),
        runs: Vec<MeasuredRun>,
        uploads: Vec<Option<UploadState>>,
    ) -> Self {
        let results: Vec<_> = runs.iter().filter_map(|run| run.result.as_ref()).collect();
        let first_network = results.first().and_then(|result| {
            let name = &result.meta.paths.first()?.name;
            let ends = results.iter().filter_map(|result| last_data_ns(result, name));
            Some((name.clone(), ends.max().unwrap_or_default()))
        });
        let server =
            results.first().and_then(|result| result.meta.conditions.get("server").cloned());
        let paths = results.iter().filter_map(|result| result.summary.as_ref());
        let datagrams = paths.flat_map(|summary| summary.paths.iter().cloned()).collect();
        let end = WalkEnd::of(&runs);
        let runs = runs.into_iter().zip(uploads).map(|(run, upload)| RunSummary::new(run, upload));
        let (campaign, runs) = (campaign.to_owned(), runs.collect());
        Self { campaign, round, server, end, first_network, datagrams, runs }
    }

    /// Returns true if each run has a valid result.
    pub(super) fn is_complete(&self) -> bool {
        self.runs.iter().all(|run| matches!(run.state, OutcomeState::Stored { .. }))
    }

    /// Returns true if the user stopped the walk.
    pub(super) fn is_interrupted(&self) -> bool {
        self.end == WalkEnd::Interrupted
    }

    /// Returns the lines for people.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut rows = vec![("end", self.end.text())];
        if let Some((name, carried_ns)) = &self.first_network {
            rows.push(("network", format!("{name} carried data for {}", span(*carried_ns))));
        }
        let mut names: Vec<String> = Vec::new();
        for run in &self.runs {
            names.push(run.transport.to_string());
        }
        let of_runs = names.iter().zip(&self.runs);
        let texts = of_runs.clone().filter_map(|(name, run)| Some((name.as_str(), run.text()?)));
        rows.extend(texts);
        let lost = self.datagrams.iter();
        let lost = lost.map(|path| format!("{} of {} over {}", path.lost(), path.count, path.path));
        let lost: Vec<_> = lost.collect();
        if !lost.is_empty() {
            rows.push(("datagrams", format!("lost {}", lost.join(", "))));
        }
        rows.extend(of_runs.map(|(name, run)| ("result", format!("{name}: {}", run.place()))));
        let server = self.server.as_ref().map(|server| format!(" with {server}"));
        let head = format!("{}, round {}{}", self.campaign, self.round, server.unwrap_or_default());
        let rows = rows.iter().flat_map(|(label, text)| wrap(&format!("  {label:9}  "), text));
        [head].into_iter().chain(rows).map(|line| clean(&line)).collect()
    }

    /// Returns the same as one JSON object.
    pub(super) fn to_json(&self) -> Value {
        let (reason, end_ns) = self.end.change().unzip();
        let datagrams = self.datagrams.iter();
        let datagrams = datagrams.map(
            |path| json!({ "interface": path.path, "count": path.count, "lost": path.lost() }),
        );
        let first = self.first_network.as_ref();
        json!({
            "campaign": self.campaign,
            "round": self.round,
            "server": self.server,
            "end": self.end.name(),
            "reason": reason,
            "end_ns": end_ns,
            "first_network": first.map(|(name, _)| name),
            "carried_ns": first.map(|(_, carried_ns)| carried_ns),
            "datagrams": datagrams.collect::<Vec<_>>(),
            "runs": self.runs.iter().map(RunSummary::to_json).collect::<Vec<_>>(),
        })
    }
}

impl RunSummary {
    fn new(run: MeasuredRun, upload: Option<UploadState>) -> Self {
        let MeasuredRun { transport, state, result } = run;
        let max_ns = |direction| result.as_ref().and_then(|result| max_delay(result, direction));
        let (max_up_ns, max_down_ns) = (max_ns(DataDirection::Up), max_ns(DataDirection::Down));
        let other = result.as_ref().and_then(other_network);
        Self { transport, other, max_up_ns, max_down_ns, state, upload }
    }

    /// Returns how the run left the first network; `None` without a result.
    fn text(&self) -> Option<String> {
        match self.state {
            OutcomeState::Missing { .. } => return None,
            OutcomeState::Stored { .. } | OutcomeState::Invalid { .. } => {}
        }
        let delay = |ns: Option<u64>| {
            ns.map_or("unknown".to_owned(), |ns| format::time(Duration::from_nanos(ns)))
        };
        let (up, down) = (delay(self.max_up_ns), delay(self.max_down_ns));
        let other = match &self.other {
            None => "no data over another network".to_owned(),
            Some(OtherNetwork { name, first_ns, both_ns }) => {
                let name = name.as_deref().unwrap_or("another network");
                let both = match u64::try_from(*both_ns) {
                    Ok(both_ns) => format!("both networks for {}", span(both_ns)),
                    Err(_) => format!("after a gap of {}", span(both_ns.unsigned_abs())),
                };
                format!("{name} carried data from {} on, {both}", span(*first_ns))
            }
        };
        Some(format!("{other}; longest delay {up} up, {down} down"))
    }

    /// Returns the identifier of the result and its place, or the reason why there is none.
    fn place(&self) -> String {
        let place = match &self.upload {
            Some(UploadState::Sent) => "is on the collector".to_owned(),
            Some(UploadState::Waiting) | None => "waits in the queue".to_owned(),
            Some(UploadState::Refused(reason)) => format!("was refused: {reason}"),
        };
        match &self.state {
            OutcomeState::Stored { result } => format!("{result} {place}"),
            OutcomeState::Invalid { result, detail } => {
                format!("{result} {place}, but is invalid: {detail}")
            }
            OutcomeState::Missing { detail, .. } => format!("no result: {detail}"),
        }
    }

    fn to_json(&self) -> Value {
        let upload = match &self.upload {
            Some(UploadState::Sent) => Some("sent"),
            Some(UploadState::Waiting) => Some("waiting"),
            Some(UploadState::Refused(_)) => Some("refused"),
            None => None,
        };
        let (state, result, detail) = match &self.state {
            OutcomeState::Stored { result } => ("stored", Some(result), None),
            OutcomeState::Invalid { result, detail } => ("invalid", Some(result), Some(detail)),
            OutcomeState::Missing { detail, .. } => ("missing", None, Some(detail)),
        };
        let other = self.other.as_ref();
        json!({
            "transport": self.transport,
            "other_network": other.and_then(|other| other.name.as_ref()),
            "other_first_ns": other.map(|other| other.first_ns),
            "both_ns": other.map(|other| other.both_ns),
            "max_delay_up_ns": self.max_up_ns,
            "max_delay_down_ns": self.max_down_ns,
            "state": state,
            "detail": detail,
            "result": result,
            "upload": upload,
        })
    }
}

/// Returns the time of the last data or datagram that came over a network.
fn last_data_ns(result: &StoredRun, network: &str) -> Option<u64> {
    let time = |record: &Record| match record {
        Record::Subflow(subflow) => {
            (subflow.path == network && subflow.bytes > 0).then_some(subflow.t_ns)
        }
        Record::Probe(probe) => probe.answered_ns.filter(|_| probe.path == network),
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
        | Record::Interface(_)
        | Record::Timing(_)
        | Record::Summary(_) => None,
    };
    result.records.iter().filter_map(time).max()
}

/// Returns the first use of another network than the first one.
fn other_network(result: &StoredRun) -> Option<OtherNetwork> {
    let first = &result.meta.paths.first()?.name;
    let lost_ns = result.records.iter().find_map(loss).map(|(event, _)| event.t_ns);
    let (first_ns, end_ns) = match Handover::after_setup(&result.meta, &result.records, lost_ns) {
        Some(Handover::Used(times)) => (times.start_ns, times.last_received_ns),
        Some(Handover::Unused) if result.meta.transport == Transport::Mpquic => {
            (majority_ns(result, first)?, last_data_ns(result, first))
        }
        Some(Handover::Unused) | None => return None,
    };
    let name = match result.meta.paths.as_slice() {
        [_, second] => Some(second.name.clone()),
        _ => None,
    };
    let end_ns = i64::try_from(end_ns.unwrap_or_default()).ok()?;
    let both_ns = end_ns.checked_sub(i64::try_from(first_ns).ok()?)?;
    Some(OtherNetwork { name, first_ns, both_ns })
}

/// Returns the time from which another network carried more than the first one.
///
/// Pings of Multipath QUIC use every network, so that not each byte is data. The first sample does
/// not count, since it has the handshakes.
fn majority_ns(result: &StoredRun, first: &str) -> Option<u64> {
    let mut samples: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for record in &result.records {
        if let Record::Subflow(subflow) = record
            && (subflow.side, subflow.direction) == (SubflowEnd::Sender, DataDirection::Up)
        {
            let (of_first, of_others) = samples.entry(subflow.t_ns).or_default();
            let sum = if subflow.path == first { of_first } else { of_others };
            *sum = sum.saturating_add(subflow.bytes);
        }
    }
    let mut samples = samples.into_iter().skip(1);
    let majority = samples.find(|(_, (of_first, of_others))| of_others > of_first);
    majority.map(|(t_ns, _)| t_ns)
}

/// Returns the longest delay of a request in one direction; `None` without requests.
fn max_delay(result: &StoredRun, direction: DataDirection) -> Option<u64> {
    let flows = result.summary.iter().flat_map(|summary| &summary.flows);
    let messages = flows.filter(|flow| flow.direction == direction).filter_map(|flow| {
        let messages = flow.messages.as_ref()?;
        (messages.count > 0).then_some(messages.delay.max_ns)
    });
    messages.max()
}

/// Formats a time for people: `4.2 s`, `14 s`, `2 min 14 s`.
pub(super) fn span(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    match seconds {
        0..10 => format!("{:.1} s", ns as f64 / 1e9),
        10..60 => format!("{seconds} s"),
        60.. if seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
        60.. => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests;
