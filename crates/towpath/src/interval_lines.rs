//! Converts records to interval lines during a run.

use std::collections::BTreeMap;
use std::time::Duration;

use towpath_report::{LiveInterval, LiveSender, LiveSubflow, live_lines};
use towpath_result::{EventKind, Record, Subflow, SubflowEnd};
use towpath_scenario::{DataDirection, Transport};

/// Default length of an interval line.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);

/// Part of a period by which the sample at its end may be late.
const TOLERANCE_DIVISOR: u64 = 20;

type StreamKey = (u32, u32);
type SubflowKey = (u32, u32, u32);

/// Bytes and state of one subflow since the last line.
#[derive(Debug, Default)]
struct SubflowTotals {
    /// Bytes that the receiver saw, and bytes that the sender knows to have arrived
    /// (acknowledged).
    received: u64,
    acked: u64,
    /// Latest state, from the sender's side if possible; `None` before the first record.
    latest: Option<Box<Subflow>>,
    retransmissions_before: u32,
}

/// Bytes since the last line, with the time in which they were counted.
#[derive(Debug, Clone, Copy, Default)]
struct SampledBytes {
    bytes: u64,
    span_ns: u64,
}

impl SampledBytes {
    fn add(&mut self, bytes: u64, span_ns: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.span_ns = self.span_ns.saturating_add(span_ns);
    }

    fn bps(self) -> f64 {
        self.bytes as f64 * 8e9 / self.span_ns.max(1) as f64
    }
}

/// Time that the samples of one kind cover in the current line, in nanoseconds of the run's time.
#[derive(Debug, Clone, Copy, Default)]
struct SampledTime {
    from_ns: u64,
    to_ns: u64,
}

impl SampledTime {
    fn add(&mut self, t_ns: u64) {
        self.to_ns = self.to_ns.max(t_ns);
    }

    fn span_ns(self) -> u64 {
        self.to_ns.saturating_sub(self.from_ns)
    }

    fn take(&mut self) -> Self {
        std::mem::replace(self, Self { from_ns: self.to_ns, to_ns: self.to_ns })
    }
}

/// Collects records into interval lines.
///
/// A line ends with the sample that is due at the end of its period. The sample may be late; the
/// line then is longer and the next one shorter, so that each rate is that of the line's own time.
#[derive(Debug)]
pub(crate) struct IntervalPrinter {
    transport: Transport,
    period_ns: u64,
    /// Time of the application's bytes. It ends when the receiver stops to read.
    stream_time: SampledTime,
    /// Time of the subflows' bytes. Their sockets may receive longer than the application reads.
    subflow_time: SampledTime,
    /// Received bytes by direction, flow and stream.
    streams: BTreeMap<(DataDirection, StreamKey), SampledBytes>,
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
            period_ns: (period.as_nanos() as u64).max(1),
            stream_time: SampledTime::default(),
            subflow_time: SampledTime::default(),
            streams: BTreeMap::new(),
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
                self.stream_time.add(interval.t_ns);
                let key = (interval.direction, (interval.flow, interval.stream));
                self.streams.entry(key).or_default().add(interval.bytes, interval.span_ns);
            }
            Record::Subflow(subflow) => {
                lines = self.flush_before(subflow.t_ns);
                self.subflow_time.add(subflow.t_ns);
                let key = (subflow.flow, subflow.stream, subflow.subflow);
                self.subflows.entry((subflow.direction, key)).or_default().add(subflow);
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
        self.flush()
    }

    /// Ends the line if a sample at `now_ns` belongs to the next one.
    fn flush_before(&mut self, now_ns: u64) -> Option<String> {
        let tolerance_ns = self.period_ns / TOLERANCE_DIVISOR;
        let times = [self.stream_time, self.subflow_time];
        let from_ns = times.iter().map(|time| time.from_ns).max().unwrap_or(0);
        let sampled_ns = times.iter().map(|time| time.to_ns).max().unwrap_or(0);
        let due_ns = (from_ns.saturating_add(tolerance_ns) / self.period_ns)
            .saturating_add(1)
            .saturating_mul(self.period_ns);
        // A line without a sample at its end continues to the next sample.
        let is_due = now_ns > due_ns.saturating_add(tolerance_ns) && sampled_ns >= due_ns;
        if is_due { self.flush() } else { None }
    }

    fn flush(&mut self) -> Option<String> {
        let (stream_time, subflow_time) = (self.stream_time.take(), self.subflow_time.take());
        // Without a receiver on this host, the sender's samples are the only ones.
        let time = if stream_time.span_ns() > 0 { stream_time } else { subflow_time };
        let mut rates: BTreeMap<DataDirection, f64> = BTreeMap::new();
        for ((direction, _), sampled) in std::mem::take(&mut self.streams) {
            *rates.entry(direction).or_default() += sampled.bps();
        }
        for ((direction, _), totals) in &self.subflows {
            // The receiver is on another host, so the sender's acknowledgements are the best
            // source.
            if totals.received == 0 && totals.acked > 0 {
                let acked = SampledBytes { bytes: totals.acked, span_ns: subflow_time.span_ns() };
                *rates.entry(*direction).or_default() += acked.bps();
            }
        }
        let mut text = String::new();
        for (direction, goodput_bps) in rates {
            let subflows = self
                .subflows
                .iter_mut()
                .filter(|((subflow_direction, _), _)| *subflow_direction == direction)
                .filter_map(|(_, totals)| totals.take_interval(subflow_time.span_ns()))
                .collect();
            let events = std::mem::take(&mut self.events);
            text.push_str(&live_lines(&LiveInterval {
                from_ns: time.from_ns,
                to_ns: time.to_ns,
                transport: self.transport,
                direction,
                goodput_bps,
                subflows,
                events,
            }));
        }
        (!text.is_empty()).then_some(text)
    }
}

impl SubflowTotals {
    fn add(&mut self, subflow: &Subflow) {
        let is_from_sender = |s: &Subflow| s.side == SubflowEnd::Sender;
        let sum = if is_from_sender(subflow) { &mut self.acked } else { &mut self.received };
        *sum = sum.saturating_add(subflow.bytes);
        if is_from_sender(subflow) || !self.latest.as_deref().is_some_and(is_from_sender) {
            self.latest = Some(Box::new(subflow.clone()));
        }
    }

    /// Returns the line's values and resets the byte counts; `None` once the subflow is gone.
    fn take_interval(&mut self, span_ns: u64) -> Option<LiveSubflow> {
        let latest = self.latest.take()?;
        let (received, acked) =
            (std::mem::take(&mut self.received), std::mem::take(&mut self.acked));
        let bytes = if received == 0 { acked } else { received };
        // The receiver's own socket sends next to nothing: its values say nothing about the
        // transfer.
        let sender = (latest.side == SubflowEnd::Sender).then(|| {
            let before =
                std::mem::replace(&mut self.retransmissions_before, latest.retransmissions);
            LiveSender {
                srtt_us: latest.srtt_us,
                cwnd_packets: latest.cwnd_packets,
                retransmissions_delta: latest.retransmissions.saturating_sub(before),
            }
        });
        Some(LiveSubflow {
            path: latest.path,
            goodput_bps: SampledBytes { bytes, span_ns }.bps(),
            sender,
            state: latest.state,
            backup: latest.backup,
        })
    }
}

#[cfg(test)]
mod tests {
    use towpath_result::Interval;

    use super::*;

    /// Record of a sample at `t_us` that follows the one at `before_us`.
    fn interval_record(before_us: u64, t_us: u64, bytes: u64) -> Record {
        Record::Interval(Interval {
            t_ns: t_us * 1_000,
            span_ns: (t_us - before_us) * 1_000,
            flow: 0,
            stream: 0,
            direction: DataDirection::Down,
            bytes,
            connection: None,
        })
    }

    fn subflow_record(side: SubflowEnd, bytes: u64) -> Record {
        let side = if side == SubflowEnd::Sender { "sender" } else { "receiver" };
        let text = format!(
            r#"{{"t_ns":1000000000,"span_ns":1000000000,"flow":0,"stream":0,"direction":"down",
            "side":"{side}","subflow":0,"path":"eth0","state":"established","backup":false,
            "bytes":{bytes},"bytes_sent":0,"bytes_acked":0,"bytes_received":0,"srtt_us":14,
            "rttvar_us":0,"rto_us":0,"backoff":0,"cwnd_packets":77,"ssthresh_packets":0,
            "in_flight_packets":0,"retransmissions":5,"mss_bytes":1448}}"#
        );
        Record::Subflow(Box::new(serde_json::from_str(&text).unwrap()))
    }

    /// Pushes samples of a line that delivers one byte in each microsecond.
    fn lines_of(live: &mut IntervalPrinter, times_us: &[u64]) -> Vec<String> {
        let before = [0].into_iter().chain(times_us.iter().copied());
        let mut lines: Vec<String> = before
            .zip(times_us)
            .filter_map(|(before, t)| live.push(&interval_record(before, *t, t - before)))
            .collect();
        lines.extend(live.flush_rest());
        lines
    }

    #[test]
    fn a_partial_last_second_is_shown_with_its_length() {
        let mut live = IntervalPrinter::new(Transport::Tcp);
        let lines = lines_of(&mut live, &[1_000_000, 1_100_000]);
        let [first, rest] = &lines[..] else { panic!("{lines:?}") };
        assert!(first.contains("[   0.0 –   1.0 s]") && first.contains("8.00 Mbit/s"), "{first}");
        assert!(rest.contains("[   1.0 –   1.1 s]") && rest.contains("8.00 Mbit/s"), "{rest}");
        assert_eq!(live.flush_rest(), None);
    }

    /// Regression: bytes of a late sample were divided by the length of a whole second.
    #[test]
    fn late_samples_do_not_change_the_rate_of_a_line() {
        // One is 0.4 ms late, one a quarter of a second; the last second has a short rest.
        let times = [500_000, 1_000_400, 1_900_000, 2_250_000, 3_000_000, 4_000_000, 4_000_123];
        let lines = lines_of(&mut IntervalPrinter::new(Transport::Tcp), &times);
        let spans = ["[   0.0 –   1.0 s]", "[   1.0 –   2.2 s]", "[   2.2 –   3.0 s]"];
        assert_eq!(lines.len(), 4, "{lines:?}");
        for (line, span) in lines.iter().zip(spans.into_iter().chain(["[   3.0 –   4.0 s]"])) {
            assert!(line.contains(span) && line.contains("8.00 Mbit/s"), "{span}: {lines:?}");
        }
    }

    /// Regression: with `-R`, the lines showed the window of the idle socket of the receiver.
    #[test]
    fn a_receiver_does_not_show_its_own_window_as_that_of_the_sender() {
        let line = |sides: &[SubflowEnd]| {
            let mut live = IntervalPrinter::new(Transport::Tcp);
            live.push(&interval_record(0, 1_000_000, 125_000));
            for side in sides {
                live.push(&subflow_record(*side, 125_000));
            }
            live.flush_rest().unwrap()
        };
        let received = line(&[SubflowEnd::Receiver]);
        let path_line = received.lines().find(|line| line.contains("eth0")).unwrap();
        let columns: Vec<_> = path_line.split_whitespace().collect();
        assert_eq!(columns, ["eth0", "1.00", "Mbit/s", "–", "–", "–"], "{received}");
        for sides in
            [[SubflowEnd::Sender, SubflowEnd::Receiver], [SubflowEnd::Receiver, SubflowEnd::Sender]]
        {
            let both = line(&sides);
            let path_line = both.lines().find(|line| line.contains("eth0")).unwrap();
            let columns: Vec<_> = path_line.split_whitespace().collect();
            assert_eq!(columns, ["eth0", "1.00", "Mbit/s", "14", "µs", "77", "5"], "{both}");
        }
    }
}
