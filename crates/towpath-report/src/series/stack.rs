//! Series of our own stack's connection-level state and decisions.

use std::collections::BTreeMap;

use towpath_result::store::StoredRun;
use towpath_result::{ConnectionState, Event, EventKind, Interval, Record, ReinjectionCause};
use towpath_scenario::DataDirection;

use super::{Grid, Values, fill_single_gaps, merge};

/// Connection-level series of the stack in one direction, all connections together.
#[derive(Debug)]
pub(crate) struct StackSeries {
    /// Bytes that wait for earlier data.
    pub(crate) waiting_bytes: Values,
    pub(crate) buffer_bytes: Values,
    /// Share of each period with a full window, 0 to 1, of the connection where it was largest.
    pub(crate) blocked: Values,
    /// Bytes reinjected in each period, by cause; `None` where the result has no cause.
    pub(crate) reinjected_bytes: Vec<(Option<ReinjectionCause>, Values)>,
    /// Penalisations of each path by M2.
    pub(crate) penalisations: Vec<(String, Values)>,
    /// True if the sender's end reported anything.
    pub(crate) has_sender_report: bool,
    /// Scheduler switches between subflows in the whole run.
    pub(crate) switches: u64,
}

impl StackSeries {
    /// Returns the series; `None` if the stack reported nothing, as the kernel's does.
    pub(crate) fn of(run: &StoredRun, grid: &Grid, direction: DataDirection) -> Option<Self> {
        let mut connections: BTreeMap<(u32, u32), Vec<(&Interval, &ConnectionState)>> =
            BTreeMap::new();
        for record in &run.records {
            if let Record::Interval(interval) = record
                && interval.direction == direction
                && let Some(state) = &interval.connection
            {
                let key = (interval.flow, interval.stream);
                connections.entry(key).or_default().push((interval, state));
            }
        }
        let mut sum: Option<Self> = None;
        for records in connections.values() {
            let connection = connection_series(records, grid);
            match &mut sum {
                Some(sum) => sum.add(connection),
                None => sum = Some(connection),
            }
        }
        let mut sum = sum?;
        sum.penalisations = penalisations(run, grid);
        Some(sum)
    }

    fn add(&mut self, other: Self) {
        let plus = |a: f64, b: f64| a + b;
        merge(&mut self.waiting_bytes, &other.waiting_bytes, plus);
        merge(&mut self.buffer_bytes, &other.buffer_bytes, plus);
        merge(&mut self.blocked, &other.blocked, f64::max);
        for (cause, values) in other.reinjected_bytes {
            match self.reinjected_bytes.iter_mut().find(|(existing, _)| *existing == cause) {
                Some((_, sum)) => merge(sum, &values, plus),
                None => self.reinjected_bytes.push((cause, values)),
            }
        }
        self.has_sender_report |= other.has_sender_report;
        self.switches = self.switches.saturating_add(other.switches);
    }
}

fn connection_series(records: &[(&Interval, &ConnectionState)], grid: &Grid) -> StackSeries {
    let [mut waiting, mut buffer, mut blocked] = [grid.empty(), grid.empty(), grid.empty()];
    let causes = ReinjectionCause::ALL.into_iter().map(Some).chain([None]);
    let mut by_cause: Vec<(Option<ReinjectionCause>, Values, u64)> =
        causes.map(|cause| (cause, grid.empty(), 0)).collect();
    for (interval, state) in records {
        let (t_ns, span_ns) = (interval.t_ns, interval.span_ns);
        if let Some(bytes) = state.reorder_bytes {
            grid.store_max(&mut waiting, t_ns, bytes as f64);
        }
        if let Some(bytes) = state.receive_buffer_bytes {
            grid.store_max(&mut buffer, t_ns, bytes as f64);
        }
        if let Some(ns) = state.window_blocked_ns {
            grid.spread(&mut blocked, t_ns, span_ns, ns as f64);
        }
        let attributed = state.reinjected_by_cause.values().copied().fold(0, u64::saturating_add);
        for (cause, values, total_before) in &mut by_cause {
            let total = match cause {
                Some(cause) => state.reinjected_by_cause.get(cause).copied().unwrap_or(0),
                None => state.reinjected_bytes.unwrap_or(0).saturating_sub(attributed),
            };
            if let Some(value) = values.get_mut(grid.index(t_ns)) {
                *value = Some(value.unwrap_or(0.0) + total.saturating_sub(*total_before) as f64);
            }
            *total_before = total;
        }
    }
    let share = |ns: f64| (ns / grid.step_ns as f64).min(1.0);
    StackSeries {
        waiting_bytes: fill_single_gaps(waiting),
        buffer_bytes: fill_single_gaps(buffer),
        blocked: fill_single_gaps(blocked.into_iter().map(|ns| ns.map(share)).collect()),
        reinjected_bytes: by_cause
            .into_iter()
            .filter(|(.., total)| *total > 0)
            .map(|(c, v, _)| (c, v))
            .collect(),
        penalisations: Vec::new(),
        has_sender_report: records.iter().any(|(_, state)| state.reinjected_bytes.is_some()),
        switches: records.last().and_then(|(_, state)| state.switches).unwrap_or(0),
    }
}

fn penalisations(run: &StoredRun, grid: &Grid) -> Vec<(String, Values)> {
    let mut by_path: Vec<(String, Values)> = Vec::new();
    for record in &run.records {
        let Record::Event(event) = record else { continue };
        if event.kind != EventKind::Penalisation {
            continue;
        }
        let path = event.path.as_deref().unwrap_or("a path");
        if !by_path.iter().any(|(p, _)| p == path) {
            by_path.push((path.to_owned(), grid.empty()));
        }
        let Some((_, values)) = by_path.iter_mut().find(|(p, _)| p == path) else { continue };
        if let Some(value) = values.get_mut(grid.index(event.t_ns)) {
            *value = Some(value.unwrap_or(0.0) + detail_number(event, "times").unwrap_or(1) as f64);
        }
    }
    by_path
}

/// Parses a number from an event's details.
pub(crate) fn detail_number(event: &Event, name: &str) -> Option<u64> {
    event.detail.get(name)?.parse().ok()
}
