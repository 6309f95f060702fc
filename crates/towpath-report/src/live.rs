//! Interval lines of a running measurement: one line for the transport, one for each path below
//! it.

use std::fmt::Write as _;

use towpath_result::format::number;
use towpath_result::format::text::{clean, cut, pad};
use towpath_scenario::{DataDirection, Transport};

use crate::compare::direction;

/// Width of the path column, in characters.
const MAX_NAME_WIDTH: usize = 18;

/// One period of a running measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveInterval {
    /// Begin, in nanoseconds since the start of the traffic.
    pub from_ns: u64,
    /// End, in nanoseconds since the start of the traffic.
    pub to_ns: u64,
    /// Transport of the measured flows.
    pub transport: Transport,
    /// Direction of the data.
    pub direction: DataDirection,
    /// Bytes read by the receiving application, in bit/s, all streams together.
    pub goodput_bps: f64,
    /// Subflows that exist, in order of appearance.
    pub subflows: Vec<LiveSubflow>,
    /// Events of the period, one line each.
    pub events: Vec<String>,
}

/// A subflow in one period.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveSubflow {
    /// Name of the subflow's path.
    pub path: String,
    /// Data that arrived on the subflow, in bit/s.
    pub goodput_bps: f64,
    /// State of the sender; `None` while it is known only to the other host.
    pub sender: Option<LiveSender>,
    /// TCP state; printed only if it is not `established`.
    pub state: String,
    /// True if it is a backup subflow.
    pub backup: bool,
}

/// Sender of a subflow in one period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveSender {
    /// Smoothed round-trip time in microseconds; 0 before it was measured.
    pub srtt_us: u32,
    /// Congestion window in packets.
    pub cwnd_packets: u32,
    /// Packets retransmitted in this period.
    pub retransmissions_delta: u32,
}

/// Returns the titles of the columns that [`live_lines`] writes.
pub fn live_header() -> String {
    format!(
        "{}{:>13}{:>11}{:>9}{:>7}\n",
        pad("      interval", 22 + MAX_NAME_WIDTH),
        "goodput",
        "srtt",
        "cwnd",
        "retr"
    )
}

/// Formats one period, at most 100 columns wide. Parallel subflows of a path share a line, with
/// the largest round-trip time and the sums of window and retransmissions. A dash stands for values
/// of a sender on the other host.
pub fn live_lines(interval: &LiveInterval) -> String {
    let mut out = String::new();
    let seconds = |ns: u64| ns as f64 / 1e9;
    let span = format!("[{:>6.1} –{:>6.1} s]", seconds(interval.from_ns), seconds(interval.to_ns));
    let label = format!("{} {}", interval.transport, direction(interval.direction));
    let _ = writeln!(
        out,
        "{}{}{:>13}",
        pad(&span, 20),
        pad(&label, MAX_NAME_WIDTH + 2),
        number::rate(interval.goodput_bps)
    );
    for row in path_rows(&interval.subflows) {
        let _ = writeln!(out, "{}", row.line());
    }
    for event in &interval.events {
        let _ = writeln!(out, "{}! {}", " ".repeat(18), cut(&clean(event), 78));
    }
    out
}

/// The subflows of one path.
struct PathRow<'a> {
    path: &'a str,
    subflows: Vec<&'a LiveSubflow>,
}

fn path_rows(subflows: &[LiveSubflow]) -> Vec<PathRow<'_>> {
    let mut rows: Vec<PathRow<'_>> = Vec::new();
    for subflow in subflows {
        match rows.iter_mut().find(|row| row.path == subflow.path) {
            Some(row) => row.subflows.push(subflow),
            None => rows.push(PathRow { path: &subflow.path, subflows: vec![subflow] }),
        }
    }
    rows
}

impl PathRow<'_> {
    fn line(&self) -> String {
        let senders = || self.subflows.iter().filter_map(|subflow| subflow.sender);
        let sum = |count: fn(LiveSender) -> u32| -> String {
            match senders().next() {
                Some(_) => {
                    senders().map(|sender| u64::from(count(sender))).sum::<u64>().to_string()
                }
                None => "–".to_owned(),
            }
        };
        let goodput: f64 = self.subflows.iter().map(|s| s.goodput_bps).sum();
        let srtt = senders().map(|sender| sender.srtt_us).max().unwrap_or(0);
        let cwnd = sum(|sender| sender.cwnd_packets);
        let retransmissions = sum(|sender| sender.retransmissions_delta);
        let count = self.subflows.len();
        let path = clean(self.path);
        let name = if count > 1 {
            let count = format!(" × {count}");
            format!("{}{count}", cut(&path, MAX_NAME_WIDTH - count.chars().count()))
        } else {
            cut(&path, MAX_NAME_WIDTH)
        };
        let srtt = if srtt == 0 { "–".to_owned() } else { number::time(f64::from(srtt) * 1e3) };
        let mut line = format!(
            "{}{}{:>13}{srtt:>11}{cwnd:>9}{retransmissions:>7}",
            " ".repeat(22),
            pad(&name, MAX_NAME_WIDTH),
            number::rate(goodput),
        );
        let mut states: Vec<&str> = self.subflows.iter().map(|s| s.state.as_str()).collect();
        states.retain(|state| !state.is_empty() && *state != "established");
        states.dedup();
        if self.subflows.iter().all(|subflow| subflow.backup) {
            states.push("backup");
        }
        if !states.is_empty() {
            let _ = write!(line, "  {}", cut(&clean(&states.join(", ")), 18));
        }
        line
    }
}
