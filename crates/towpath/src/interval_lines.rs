//! Converts records to interval lines during a run.

use std::collections::BTreeMap;
use std::time::Duration;

use towpath_report::{LiveInterval, LiveSubflow, live_lines};
use towpath_result::{EventKind, Record, Subflow, SubflowEnd};
use towpath_scenario::{DataDirection, Transport};

/// Default length of an interval line.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);

type SubflowKey = (u32, u32, u32);

/// Bytes and state of one subflow since the last line.
#[derive(Debug, Default)]
struct SubflowTotals {
    received: u64,
    /// Bytes that the sender knows to have arrived (acknowledged).
    acked: u64,
    /// Latest state, from the sender's side if possible; `None` before the first record.
    latest: Option<Box<Subflow>>,
    retransmissions_before: u32,
}

/// Collects records into interval lines.
#[derive(Debug)]
pub(crate) struct IntervalPrinter {
    transport: Transport,
    period_ns: u64,
    /// Start of the current interval, in nanoseconds of the run's time.
    from_ns: u64,
    /// Time in nanoseconds up to which lines were printed.
    printed_until_ns: u64,
    bytes: BTreeMap<DataDirection, u64>,
    subflows: BTreeMap<(DataDirection, SubflowKey), SubflowTotals>,
    events: Vec<String>,
}

impl IntervalPrinter {
    pub(crate) fn new(transport: Transport) -> Self {
        Self::every(DEFAULT_INTERVAL, transport)
    }

    /// Sets the length of an interval.
    pub(crate) fn every(period: Duration, transport: Transport) -> Self {
        Self {
            transport,
            period_ns: period.as_nanos() as u64,
            from_ns: 0,
            printed_until_ns: 0,
            bytes: BTreeMap::new(),
            subflows: BTreeMap::new(),
            events: Vec::new(),
        }
    }

    /// Adds a record. Returns lines when it begins a new interval.
    pub(crate) fn push(&mut self, record: &Record) -> Option<String> {
        let mut lines = None;
        match record {
            Record::Interval(interval) => {
                lines = self.flush_before(interval.t_ns);
                self.printed_until_ns = self.printed_until_ns.max(interval.t_ns);
                *self.bytes.entry(interval.direction).or_default() += interval.bytes;
            }
            Record::Subflow(subflow) => {
                lines = self.flush_before(subflow.t_ns);
                self.printed_until_ns = self.printed_until_ns.max(subflow.t_ns);
                let key = (subflow.flow, subflow.stream, subflow.subflow);
                let totals = self.subflows.entry((subflow.direction, key)).or_default();
                match subflow.side {
                    SubflowEnd::Receiver => {
                        totals.received += subflow.bytes;
                        let is_from_sender = |s: &Subflow| s.side == SubflowEnd::Sender;
                        if !totals.latest.as_deref().is_some_and(is_from_sender) {
                            totals.latest = Some(subflow.clone());
                        }
                    }
                    SubflowEnd::Sender => {
                        totals.acked += subflow.bytes;
                        totals.latest = Some(subflow.clone());
                    }
                }
            }
            // Decisions of a stack are too frequent for lines; only the report has them.
            Record::Event(event) if event.kind != EventKind::Flow && !event.kind.is_decision() => {
                let host = event.host.as_ref().map(|host| format!(" ({host})")).unwrap_or_default();
                let seconds = event.t_ns as f64 / 1e9;
                self.events.push(format!("{seconds:.2} s  {}{host}", event.text));
            }
            Record::Summary(_) => lines = self.flush_rest(),
            Record::Event(_)
            | Record::Meta(_)
            | Record::Link(_)
            | Record::Account(_)
            | Record::Message(_)
            | Record::Probe(_)
            | Record::Datagrams(_)
            | Record::Capture(_)
            | Record::Sequence(_)
            | Record::Counter(_)
            | Record::Interface(_)
            | Record::Timing(_) => {}
        }
        lines
    }

    /// Returns lines for the records since the last lines.
    pub(crate) fn flush_rest(&mut self) -> Option<String> {
        let interval_end_ns = self.from_ns + self.period_ns;
        self.flush(if self.printed_until_ns > self.from_ns {
            self.printed_until_ns.min(interval_end_ns)
        } else {
            interval_end_ns
        })
    }

    fn flush_before(&mut self, now_ns: u64) -> Option<String> {
        let to_ns = self.from_ns + self.period_ns;
        if now_ns > to_ns { self.flush(to_ns) } else { None }
    }

    fn flush(&mut self, to_ns: u64) -> Option<String> {
        let from_ns = std::mem::replace(&mut self.from_ns, to_ns);
        let seconds = (to_ns - from_ns) as f64 / 1e9;
        let mut text = String::new();
        for ((direction, _), totals) in &self.subflows {
            // The receiver is on another host, so the sender's acknowledgements are the best
            // source.
            if totals.received == 0 && totals.acked > 0 {
                *self.bytes.entry(*direction).or_default() += totals.acked;
            }
        }
        for (direction, bytes) in std::mem::take(&mut self.bytes) {
            let subflows = self
                .subflows
                .iter_mut()
                .filter(|((subflow_direction, _), _)| *subflow_direction == direction)
                .filter_map(|(_, totals)| totals.take_interval(seconds))
                .collect();
            let events = std::mem::take(&mut self.events);
            text.push_str(&live_lines(&LiveInterval {
                from_ns,
                to_ns,
                transport: self.transport,
                direction,
                goodput_bps: bytes as f64 * 8.0 / seconds,
                subflows,
                events,
            }));
        }
        (!text.is_empty()).then_some(text)
    }
}

impl SubflowTotals {
    /// Returns the line's values and resets the byte counts; `None` once the subflow is gone.
    fn take_interval(&mut self, seconds: f64) -> Option<LiveSubflow> {
        let latest = self.latest.take()?;
        let (received, acked) = (self.received, self.acked);
        (self.received, self.acked) = (0, 0);
        let received = if received == 0 { acked } else { received };
        let delta = latest.retransmissions.saturating_sub(self.retransmissions_before);
        self.retransmissions_before = latest.retransmissions;
        Some(LiveSubflow {
            path: latest.path,
            goodput_bps: received as f64 * 8.0 / seconds,
            srtt_us: latest.srtt_us,
            cwnd_packets: latest.cwnd_packets,
            retransmissions_delta: delta,
            state: latest.state,
            backup: latest.backup,
        })
    }
}

#[cfg(test)]
mod tests {
    use towpath_result::Interval;

    use super::*;

    fn interval_record(t_ms: u64, bytes: u64) -> Record {
        Record::Interval(Interval {
            t_ns: t_ms * 1_000_000,
            span_ns: 100_000_000,
            flow: 0,
            stream: 0,
            direction: DataDirection::Up,
            bytes,
            connection: None,
        })
    }

    #[test]
    fn a_partial_last_second_is_shown_with_its_length() {
        let mut live = IntervalPrinter::new(Transport::Tcp);
        assert_eq!(live.push(&interval_record(1_000, 125_000)), None);
        let first = live.push(&interval_record(1_100, 12_500)).unwrap();
        assert!(first.contains("[   0.0 –   1.0 s]") && first.contains("1.00 Mbit/s"), "{first}");
        let rest = live.flush_rest().unwrap();
        assert!(rest.contains("[   1.0 –   1.1 s]") && rest.contains("1.00 Mbit/s"), "{rest}");
    }
}
