//! Runs of a round on one time axis.

use towpath_result::format::number;
use towpath_result::format::text::{clean, cut};
use towpath_result::store::StoredRun;
use towpath_result::{Event, Message, Probe, Record, Subflow, SubflowEnd};
use towpath_scenario::{DataDirection, Transport};

/// Maximum number of runs on a page; a round has one for each transport.
pub(super) const MAX_RUNS: usize = 4;
/// Maximum number of paths on a page.
const MAX_PATHS: usize = 6;
/// Maximum length of a path's name on the page, in characters.
const MAX_PATH_CHARS: usize = 24;
/// Maximum difference between the starts of runs that were made at the same time.
const MAX_START_DIFFERENCE_US: u64 = 10_000_000;
/// Prefix of the condition that names the kind of a path's network.
const NETWORK_PREFIX: &str = "network of ";

/// Concurrent runs of one host that moves, on one time axis.
#[derive(Debug)]
pub(super) struct MobileRound<'a> {
    pub(super) runs: Vec<RoundRun<'a>>,
    /// Paths of the records; the one on which the connections start is first.
    pub(super) paths: Vec<&'a str>,
    /// End of the axis in nanoseconds; never 0.
    pub(super) end_ns: u64,
    /// True if the runs started together. Otherwise each counts from its own start.
    pub(super) is_concurrent: bool,
}

/// One run of a round.
#[derive(Debug)]
pub(super) struct RoundRun<'a> {
    pub(super) run: &'a StoredRun,
    /// Name of the transport: `Multipath TCP`.
    pub(super) name: String,
    /// Classes of the style sheet for colour and dash.
    pub(super) class: &'static str,
    /// Start of the run after that of the earliest one.
    offset_ns: u64,
    /// End of the run on the shared axis.
    pub(super) end_ns: u64,
}

impl<'a> MobileRound<'a> {
    pub(super) fn of(runs: &'a [StoredRun]) -> Self {
        let shown = runs.get(..MAX_RUNS).unwrap_or(runs);
        let starts = || shown.iter().filter_map(|run| run.meta.started_us);
        let first_start_us = starts().min().unwrap_or(0);
        let last_start_us = starts().max().unwrap_or(0);
        let is_concurrent = last_start_us - first_start_us <= MAX_START_DIFFERENCE_US;
        let mut views: Vec<RoundRun<'a>> = Vec::new();
        for run in shown {
            let start_us = run.meta.started_us.filter(|_| is_concurrent);
            let offset_ns =
                start_us.map_or(0, |start_us| (start_us - first_start_us).saturating_mul(1_000));
            let (name, class) = transport_style(run.meta.transport);
            let same_name = views.iter().filter(|view| view.class == class).count();
            let name =
                if same_name > 0 { format!("{name} {}", same_name + 1) } else { name.to_owned() };
            let end_ns = end_of(run).saturating_add(offset_ns);
            views.push(RoundRun { run, name, class, offset_ns, end_ns });
        }
        let end_ns = views.iter().map(|view| view.end_ns).max().unwrap_or(0).max(1);
        Self { paths: paths(shown), runs: views, end_ns, is_concurrent }
    }

    /// Returns the path on which the connections start; `None` without any path.
    pub(super) fn first_path(&self) -> Option<&'a str> {
        self.paths.first().copied()
    }

    /// Returns a path's name with the kind of its network: `wlan0 (Wi-Fi)`.
    pub(super) fn path_text(&self, path: &str) -> String {
        let key = format!("{NETWORK_PREFIX}{path}");
        let kind = self.runs.iter().find_map(|view| view.run.meta.conditions.get(&key));
        let name = path_name(path);
        match kind.map(String::as_str) {
            Some("wifi") => format!("{name} (Wi-Fi)"),
            Some("cellular") => format!("{name} (cellular)"),
            Some("ethernet") => format!("{name} (Ethernet)"),
            Some(_) | None => name,
        }
    }

    /// Returns the horizontal position of a time, in ten thousandths of the width; `None` after
    /// the end of the axis.
    pub(super) fn x(&self, at_ns: u64) -> Option<u32> {
        let position = at_ns as f64 / self.end_ns as f64 * f64::from(super::plot::WIDTH);
        (at_ns <= self.end_ns).then_some(position.round() as u32)
    }
}

impl<'a> RoundRun<'a> {
    /// Converts a time of the run to one of the shared axis.
    pub(super) fn at(&self, t_ns: u64) -> u64 {
        t_ns.saturating_add(self.offset_ns)
    }

    /// Returns the host that opens the connections.
    pub(super) fn client(&self) -> &'a str {
        let flow = self.run.meta.flows.first().map(|flow| flow.from.as_str());
        flow.or(self.run.meta.hosts.first().map(String::as_str)).unwrap_or_default()
    }

    /// Returns the host that accepts the connections.
    pub(super) fn server(&self) -> &'a str {
        let flow = self.run.meta.flows.first().map(|flow| flow.to.as_str());
        flow.or(self.run.meta.hosts.get(1).map(String::as_str)).unwrap_or_default()
    }

    /// Returns the requests of a direction in order of their due times.
    pub(super) fn messages(&self, direction: DataDirection) -> Vec<&'a Message> {
        let is_down = direction == DataDirection::Down;
        let mut messages: Vec<&Message> = self
            .run
            .records
            .iter()
            .filter_map(|record| if let Record::Message(m) = record { Some(m) } else { None })
            .filter(|message| (message.direction == DataDirection::Down) == is_down)
            .collect();
        messages.sort_by_key(|message| (message.due_ns, message.number));
        messages
    }

    pub(super) fn subflows(&self) -> impl Iterator<Item = &'a Subflow> + use<'a> {
        self.run.records.iter().filter_map(|record| {
            if let Record::Subflow(subflow) = record { Some(&**subflow) } else { None }
        })
    }

    pub(super) fn events(&self) -> impl Iterator<Item = &'a Event> + use<'a> {
        self.run
            .records
            .iter()
            .filter_map(|record| if let Record::Event(event) = record { Some(event) } else { None })
    }

    pub(super) fn probes(&self) -> impl Iterator<Item = &'a Probe> + use<'a> {
        self.run
            .records
            .iter()
            .filter_map(|record| if let Record::Probe(probe) = record { Some(probe) } else { None })
    }
}

/// Returns true if the host that opens the connections made the sample.
pub(super) fn is_sampled_by_client(sample: &Subflow) -> bool {
    (sample.side == SubflowEnd::Sender) == (sample.direction != DataDirection::Down)
}

/// Returns a path's name for the page.
pub(super) fn path_name(path: &str) -> String {
    cut(&clean(path), MAX_PATH_CHARS)
}

/// Formats a duration in nanoseconds that stays on one line.
pub(super) fn time_text(ns: u64) -> String {
    number::time(ns as f64).replace(' ', "\u{a0}")
}

fn transport_style(transport: Transport) -> (&'static str, &'static str) {
    match transport {
        Transport::Tcp => ("TCP", "tcp d2"),
        Transport::Mptcp => ("Multipath TCP", "mptcp"),
        Transport::Quic => ("QUIC", "quic d3"),
        Transport::Mpquic => ("Multipath QUIC", "mpquic d1"),
    }
}

/// Returns the end of a run: the planned one, or without a summary the last record.
fn end_of(run: &StoredRun) -> u64 {
    if run.summary.is_some() && run.meta.duration_ns > 0 {
        return run.meta.duration_ns;
    }
    let times = run.records.iter().filter_map(|record| match record {
        Record::Subflow(subflow) => Some(subflow.t_ns),
        Record::Event(event) => Some(event.t_ns),
        Record::Message(message) => Some(message.due_ns),
        Record::Probe(probe) => Some(probe.due_ns),
        Record::Meta(_)
        | Record::Interval(_)
        | Record::Link(_)
        | Record::Account(_)
        | Record::Datagrams(_)
        | Record::Capture(_)
        | Record::Sequence(_)
        | Record::Counter(_)
        | Record::Interface(_)
        | Record::Timing(_)
        | Record::Summary(_) => None,
    });
    let last_ns = times.max().unwrap_or(0);
    if run.meta.duration_ns > 0 { last_ns.min(run.meta.duration_ns) } else { last_ns }
}

/// Returns the paths of subflows and probes: the first one of the connections, then in the order of
/// the conditions and of their appearance.
fn paths(runs: &[StoredRun]) -> Vec<&str> {
    let mut seen: Vec<&str> = Vec::new();
    for record in runs.iter().flat_map(|run| &run.records) {
        let path = match record {
            Record::Subflow(subflow) => subflow.path.as_str(),
            Record::Probe(probe) => probe.path.as_str(),
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
            | Record::Summary(_) => continue,
        };
        if !seen.contains(&path) && seen.len() < MAX_PATHS {
            seen.push(path);
        }
    }
    let planned = || runs.iter().flat_map(|run| &run.meta.paths).map(|path| path.name.as_str());
    let first = runs.first().and_then(|run| run.meta.flows.first()).map(|flow| flow.via.as_str());
    let order = |path: &&str| planned().position(|name| name == *path).unwrap_or(usize::MAX);
    seen.sort_by_key(|path| (Some(*path) != first, order(path)));
    seen
}
