//! Decisions of towpath's own stack: summed up for each sample, and over a run. All worlds describe
//! them in the same words.

use std::collections::BTreeMap;
use std::time::Duration;

use towpath_net::Instant;
use towpath_result::format;
use towpath_result::metrics::handover::REASON_PREFIX;
use towpath_result::{ConnectionState, Event, EventKind, Interval, ReinjectionCause, StackStats};
use towpath_scenario::DataDirection;

/// Minimum duration of a full window that becomes an event. Shorter ones only count in the sums,
/// since a window that moves by whole packets is often full for a moment.
const MIN_REPORTED_BLOCK: Duration = Duration::from_millis(20);

/// Decisions of one end of a connection since the last sample, by subflow number.
#[derive(Debug, Default)]
pub struct DecisionLog {
    switches: BTreeMap<u32, u64>,
    /// Switches away from the scheduler's preferred subflow, by reason.
    departures: BTreeMap<&'static str, u64>,
    /// Bytes sent before the switches, each run on one subflow.
    run_bytes: u64,
    /// Reinjected bytes by cause and subflow.
    reinjected: BTreeMap<(ReinjectionCause, u32), u64>,
    penalised: BTreeMap<u32, u64>,
    /// Time since when the connection-level window is full.
    blocked_since: Option<Instant>,
    switches_total: u64,
}

impl DecisionLog {
    /// Records that new data went to subflow `number`, after `run_bytes` in a row on the previous
    /// one. `reason` is set if it is not the scheduler's preferred subflow.
    pub fn scheduled(&mut self, number: u32, run_bytes: u64, reason: Option<&'static str>) {
        if let Some(reason) = reason {
            *self.departures.entry(reason).or_default() += 1;
        }
        *self.switches.entry(number).or_default() += 1;
        self.run_bytes = self.run_bytes.saturating_add(run_bytes);
        self.switches_total += 1;
    }

    /// Records a reinjection on subflow `number`.
    pub fn reinjected(&mut self, number: u32, bytes: u64, cause: ReinjectionCause) {
        let sum = self.reinjected.entry((cause, number)).or_default();
        *sum = sum.saturating_add(bytes);
    }

    /// Records a penalisation (M2) of subflow `number`.
    pub fn penalised(&mut self, number: u32) {
        *self.penalised.entry(number).or_default() += 1;
    }

    /// Records that the connection-level window is full, or open again. Returns long blocked
    /// periods.
    pub fn window(&mut self, now: Instant, full: bool) -> Option<WindowBlocked> {
        if full {
            self.blocked_since.get_or_insert(now);
            return None;
        }
        let since = self.blocked_since.take()?;
        (now.saturating_since(since) >= MIN_REPORTED_BLOCK)
            .then_some(WindowBlocked { since, until: now })
    }

    /// Returns the number of scheduler switches since the start.
    pub fn switches(&self) -> u64 {
        self.switches_total
    }

    /// Returns events for the decisions since the last call, without time and host. `path_of`
    /// returns the path of a subflow.
    pub fn take(&mut self, path_of: impl Fn(u32) -> Option<String>) -> Vec<Event> {
        let subflow_name =
            |number: &u32| path_of(*number).unwrap_or_else(|| format!("subflow {number}"));
        let mut events = Vec::new();
        let switches = std::mem::take(&mut self.switches);
        let run_bytes = std::mem::take(&mut self.run_bytes);
        let count: u64 = switches.values().sum();
        if let Some(average) = run_bytes.checked_div(count) {
            let text = format!(
                "{count} switch{} between subflows, after {} on average",
                if count == 1 { "" } else { "es" },
                format::bytes(average)
            );
            let mut switch_event =
                event(EventKind::Scheduler, None, text, ("switches", u128::from(count)));
            switch_event.detail.insert("run_bytes".to_owned(), run_bytes.to_string());
            for (number, count) in &switches {
                switch_event
                    .detail
                    .insert(format!("to {}", subflow_name(number)), count.to_string());
            }
            for (reason, count) in std::mem::take(&mut self.departures) {
                switch_event.detail.insert(format!("{REASON_PREFIX}{reason}"), count.to_string());
            }
            events.push(switch_event);
        }
        for ((cause, number), bytes) in std::mem::take(&mut self.reinjected) {
            let text = format!(
                "{} reinjected on {}: {}",
                format::bytes(bytes),
                subflow_name(&number),
                cause.text()
            );
            let amount = ("bytes", u128::from(bytes));
            let mut reinjection_event =
                event(EventKind::Reinjection, path_of(number), text, amount);
            reinjection_event.detail.insert("cause".to_owned(), cause.text().to_owned());
            events.push(reinjection_event);
        }
        for (number, times) in std::mem::take(&mut self.penalised) {
            let text = format!(
                "{} penalised {times} ×: it blocked the receive window (M2)",
                subflow_name(&number)
            );
            let amount = ("times", u128::from(times));
            events.push(event(EventKind::Penalisation, path_of(number), text, amount));
        }
        events
    }
}

/// A period in which the connection-level window was full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowBlocked {
    /// Start of the period.
    pub since: Instant,
    /// End of the period.
    pub until: Instant,
}

impl WindowBlocked {
    /// Returns the event, for traffic that started at `zero`; the caller sets the host.
    pub fn event(self, zero: Instant) -> Event {
        let span = self.until.saturating_since(self.since);
        let start_text = format::seconds(self.since.saturating_since(zero));
        let text =
            format!("the receive window was full for {}, from {start_text} on", format::time(span));
        let mut window_event =
            event(EventKind::Window, None, text, ("blocked_ns", span.as_nanos()));
        window_event.t_ns = self.until.saturating_since(zero).as_nanos() as u64;
        window_event
    }
}

fn event(kind: EventKind, path: Option<String>, text: String, amount: (&str, u128)) -> Event {
    let detail = BTreeMap::from([(amount.0.to_owned(), amount.1.to_string())]);
    Event { t_ns: 0, kind, host: None, path, text, detail }
}

/// Last state of every connection and direction, and the time its window was full.
#[derive(Debug, Clone, Default)]
pub struct StackTotals {
    connections: BTreeMap<(u32, u32, DataDirection), (ConnectionState, u64)>,
}

impl StackTotals {
    /// Records an interval of its connection.
    pub fn record(&mut self, interval: &Interval) {
        let Some(state) = &interval.connection else { return };
        let key = (interval.flow, interval.stream, interval.direction);
        let previous_ns = self.connections.get(&key).map_or(0, |(_, blocked_ns)| *blocked_ns);
        let blocked_ns = previous_ns.saturating_add(state.window_blocked_ns.unwrap_or(0));
        self.connections.insert(key, (state.clone(), blocked_ns));
    }

    /// Returns a flow's statistics in one direction; `None` if its stack reported none.
    pub fn stats(&self, flow: u32, direction: DataDirection) -> Option<StackStats> {
        let mut sum: Option<StackStats> = None;
        for ((key_flow, _, key_direction), (state, blocked_ns)) in &self.connections {
            if (*key_flow, *key_direction) != (flow, direction) {
                continue;
            }
            let sum = sum.get_or_insert_default();
            let add = |a: u64, b: u64| a.saturating_add(b);
            merge(&mut sum.reinjected_bytes, state.reinjected_bytes, add);
            merge(&mut sum.discarded_bytes, state.discarded_bytes, add);
            merge(&mut sum.reorder_peak_bytes, state.reorder_peak_bytes, u64::max);
            merge(
                &mut sum.window_blocked_ns,
                state.window_blocked_ns.and(Some(*blocked_ns)),
                u64::max,
            );
            merge(&mut sum.penalisations, state.penalisations, add);
            merge(&mut sum.switches, state.switches, add);
        }
        sum
    }
}

fn merge(sum: &mut Option<u64>, value: Option<u64>, combine: impl Fn(u64, u64) -> u64) {
    *sum = match (*sum, value) {
        (Some(a), Some(b)) => Some(combine(a, b)),
        (a, b) => a.or(b),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_ms(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn decisions_are_reported_once_and_name_the_paths() {
        let mut decisions = DecisionLog::default();
        decisions.scheduled(0, 3_000, None);
        decisions.scheduled(1, 1_000, Some("rto"));
        decisions.reinjected(1, 1_400, ReinjectionCause::Opportunistic);
        decisions.reinjected(1, 1_400, ReinjectionCause::Opportunistic);
        decisions.penalised(0);
        let names = |number| ["wifi", "cellular"].get(number as usize).map(|n| (*n).to_owned());
        let events = decisions.take(names);
        let texts: Vec<&str> = events.iter().map(|event| event.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "2 switches between subflows, after 2.00 kB on average",
                "2.80 kB reinjected on cellular: it blocked the window (M1)",
                "wifi penalised 1 ×: it blocked the receive window (M2)",
            ]
        );
        assert_eq!(events[0].detail["because rto"], "1");
        assert_eq!(events[1].path.as_deref(), Some("cellular"));
        assert_eq!(decisions.take(names), []);
        assert_eq!(decisions.switches(), 2);
    }

    #[test]
    fn only_a_window_that_was_full_for_long_is_an_event() {
        let mut decisions = DecisionLog::default();
        assert_eq!(decisions.window(at_ms(5), false), None);
        decisions.window(at_ms(10), true);
        assert_eq!(decisions.window(at_ms(29), false), None);
        decisions.window(at_ms(40), true);
        decisions.window(at_ms(50), true);
        let blocked = decisions.window(at_ms(100), false).expect("60 ms");
        let event = blocked.event(at_ms(10));
        assert_eq!((event.t_ns, event.kind), (90_000_000, EventKind::Window));
        assert_eq!(event.detail["blocked_ns"], "60000000");
    }

    #[test]
    fn a_flow_sums_its_connections_and_takes_the_worst_times() {
        let mut log = StackTotals::default();
        let connection_state = ConnectionState {
            reorder_bytes: Some(0),
            receive_buffer_bytes: Some(100),
            reorder_peak_bytes: Some(70),
            reinjected_bytes: Some(5),
            reinjected_by_cause: BTreeMap::new(),
            discarded_bytes: Some(2),
            window_blocked_ns: Some(10),
            penalisations: Some(1),
            switches: Some(3),
        };
        for (stream, connection) in [
            (0, Some(connection_state.clone())),
            (0, Some(connection_state.clone())),
            (1, Some(connection_state)),
            (2, None),
        ] {
            log.record(&Interval {
                t_ns: 1,
                span_ns: 1,
                flow: 0,
                stream,
                direction: DataDirection::Up,
                bytes: 0,
                connection,
            });
        }
        let stats = log.stats(0, DataDirection::Up).expect("told");
        assert_eq!((stats.reinjected_bytes, stats.switches), (Some(10), Some(6)));
        assert_eq!((stats.window_blocked_ns, stats.reorder_peak_bytes), (Some(20), Some(70)));
        assert_eq!(log.stats(0, DataDirection::Down), None);
    }
}
