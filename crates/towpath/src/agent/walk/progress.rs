//! Progress of a walk: one line for each second, from the live records of all runs.

use std::collections::BTreeMap;
use std::time::Duration;

use towpath_result::format;
use towpath_result::format::text::{clean, cut};
use towpath_result::{Record, Subflow, SubflowEnd};
use towpath_scenario::DataDirection;

/// Maximum width of a line in columns.
const COLUMNS: usize = 100;
const SECOND_NS: u64 = 1_000_000_000;

/// Subflow of a run: index of the run, flow, stream, direction and number.
type RunSubflow = (usize, u32, u32, DataDirection, u32);

/// State of all runs so far.
#[derive(Debug, Default)]
pub(super) struct WalkProgress {
    /// Names of the networks, the first one first.
    networks: Vec<String>,
    /// Network and total bytes of each subflow.
    carried: BTreeMap<RunSubflow, (String, u64)>,
    /// Latest smoothed round-trip time over the first network.
    srtt_us: Option<u32>,
    /// Time of the latest data over the first network since the start of the traffic.
    last_data_ns: u64,
    now_ns: u64,
    /// Time from which the next line is due.
    due_ns: u64,
}

impl WalkProgress {
    /// Adds a record of one run. Returns a line when a second has passed since the last one.
    pub(super) fn push(&mut self, run: usize, record: &Record) -> Option<String> {
        match record {
            Record::Meta(meta) if self.networks.is_empty() => {
                self.networks = meta.paths.iter().map(|path| path.name.clone()).collect();
                self.due_ns = SECOND_NS;
                None
            }
            Record::Subflow(subflow) => {
                let line = self.line_before(subflow.t_ns);
                self.add(run, subflow);
                line
            }
            Record::Interval(interval) => self.line_before(interval.t_ns),
            Record::Meta(_)
            | Record::Link(_)
            | Record::Account(_)
            | Record::Event(_)
            | Record::Message(_)
            | Record::Probe(_)
            | Record::Datagrams(_)
            | Record::Capture(_)
            | Record::Sequence(_)
            | Record::Counter(_)
            | Record::Interface(_)
            | Record::Timing(_)
            | Record::Summary(_) => None,
        }
    }

    fn add(&mut self, run: usize, subflow: &Subflow) {
        let Subflow { flow, stream, direction, subflow: number, path, .. } = subflow;
        let total_bytes = match subflow.side {
            SubflowEnd::Sender => subflow.bytes_sent,
            SubflowEnd::Receiver => subflow.bytes_received,
        };
        let carried = self.carried.entry((run, *flow, *stream, *direction, *number));
        let (network, bytes) = carried.or_default();
        network.clone_from(path);
        *bytes = total_bytes.max(*bytes);
        if self.networks.first() != Some(path) {
            return;
        }
        if subflow.bytes > 0 {
            self.last_data_ns = subflow.t_ns.max(self.last_data_ns);
        }
        if subflow.side == SubflowEnd::Sender && subflow.srtt_us > 0 {
            self.srtt_us = Some(subflow.srtt_us);
        }
    }

    /// Returns a line if a record at `now_ns` is the first one of a new second.
    fn line_before(&mut self, now_ns: u64) -> Option<String> {
        self.now_ns = now_ns.max(self.now_ns);
        if self.now_ns < self.due_ns {
            return None;
        }
        self.due_ns = (self.now_ns / SECOND_NS + 1) * SECOND_NS;
        Some(self.line())
    }

    fn line(&self) -> String {
        let seconds = self.now_ns / SECOND_NS;
        let silence_s = self.now_ns.saturating_sub(self.last_data_ns) / SECOND_NS;
        let state = match self.srtt_us {
            _ if silence_s > 0 => format!("no data for {silence_s} s"),
            Some(srtt_us) => {
                let delay = Duration::from_micros(srtt_us.into());
                format!("round trip {}", format::time(delay))
            }
            None => "round trip unknown".to_owned(),
        };
        let first = self.networks.first().map(|name| clean(name)).unwrap_or_default();
        let carried = self.networks.iter().map(|network| {
            let of_network = self.carried.values().filter(|(name, _)| name == network);
            let bytes = of_network.map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
            format!("{} {}", clean(network), format::bytes(bytes))
        });
        let carried = carried.collect::<Vec<_>>().join(", ");
        let (minutes, seconds) = (seconds / 60, seconds % 60);
        cut(&format!("{minutes:>3}:{seconds:02}  {first}: {state}; carried: {carried}"), COLUMNS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::walk::fixtures::{meta, subflow};

    const MS: u64 = 1_000_000;

    #[test]
    fn each_second_has_one_line_with_the_state_of_the_first_network() {
        let mut progress = WalkProgress::default();
        assert_eq!(progress.push(0, &meta(&["wlan0", "wwan0"])), None);
        let mut lines = Vec::new();
        for step in 1..=60 {
            let t_ns = step * 100 * MS;
            // Two runs; the first network carries nothing any more after 2.5 s.
            for run in 0..2 {
                let bytes = if t_ns <= 2_500 * MS { 1_000 } else { 0 };
                let total = 1_000 * step.min(25);
                lines.extend(progress.push(run, &subflow("wlan0", 0, t_ns, (bytes, total))));
                lines.extend(progress.push(run, &subflow("wwan0", 1, t_ns, (10, 10 * step))));
            }
        }
        assert_eq!(lines.len(), 6, "{lines:?}");
        assert!(lines[0].starts_with("  0:01  wlan0: round trip 24 ms; carried: "), "{lines:?}");
        assert!(lines[1].contains("wlan0: round trip"), "{lines:?}");
        assert!(lines[4].contains("wlan0: no data for 2 s"), "{lines:?}");
        assert!(lines[5].contains("wlan0 50.0 kB, wwan0 1.18 kB"), "{lines:?}");
    }

    #[test]
    fn a_late_record_does_not_repeat_a_line_and_names_cannot_command_the_terminal() {
        let mut progress = WalkProgress::default();
        progress.push(0, &meta(&["w\u{1b}[2J"]));
        assert!(progress.push(0, &subflow("x", 0, 1_100 * MS, (0, 0))).is_some());
        assert_eq!(progress.push(1, &subflow("x", 0, 1_000 * MS, (0, 0))), None);
        let line = progress.push(1, &subflow("x", 0, 2_000 * MS, (0, 0))).unwrap();
        assert!(line.contains("no data for 2 s") && !line.contains('\u{1b}'), "{line}");
    }
}
