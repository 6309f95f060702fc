//! Grouping of runs that differ only in their repetition: one column of every table.

use towpath_result::format::text::{clean, cut};
use towpath_result::store::StoredRun;
use towpath_result::{FlowSummary, Meta, Summary};
use towpath_scenario::{DataDirection, Transport};

/// The repetitions of one measurement.
#[derive(Debug, Clone)]
pub(crate) struct RunGroup<'a> {
    /// Column title: the transport, and the conditions that differ between groups.
    pub(crate) label: String,
    pub(crate) transport: Transport,
    /// Runs of the group; never empty.
    pub(crate) runs: Vec<&'a StoredRun>,
}

impl<'a> RunGroup<'a> {
    pub(crate) fn summaries(&self) -> impl Iterator<Item = &'a Summary> {
        self.runs.iter().filter_map(|run| run.summary.as_ref())
    }

    /// Returns the summaries of one flow in one direction, one for each repetition that has it.
    pub(crate) fn flows(&self, key: FlowKey) -> Vec<&'a FlowSummary> {
        let of_flow = |flow: &&FlowSummary| FlowKey::of(flow) == key;
        self.summaries().filter_map(|summary| summary.flows.iter().find(of_flow)).collect()
    }
}

/// A flow in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlowKey {
    pub(crate) flow: u32,
    pub(crate) direction: DataDirection,
}

impl FlowKey {
    pub(crate) fn of(flow: &FlowSummary) -> Self {
        Self { flow: flow.flow, direction: flow.direction }
    }
}

/// Returns every flow and direction that any run summarises, in order of appearance.
pub(crate) fn flow_keys(groups: &[RunGroup<'_>]) -> Vec<FlowKey> {
    let mut keys = Vec::new();
    for summary in groups.iter().flat_map(RunGroup::summaries) {
        for key in summary.flows.iter().map(FlowKey::of) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
    }
    keys
}

/// Groups runs in order of appearance.
pub(crate) fn groups(runs: &[StoredRun]) -> Vec<RunGroup<'_>> {
    let mut groups: Vec<RunGroup<'_>> = Vec::new();
    for run in runs {
        let is_same_measurement = |group: &&mut RunGroup<'_>| {
            group.runs.first().is_some_and(|first| is_repetition(&first.meta, &run.meta))
        };
        match groups.iter_mut().find(is_same_measurement) {
            Some(group) => group.runs.push(run),
            None => groups.push(RunGroup {
                label: String::new(),
                transport: run.meta.transport,
                runs: vec![run],
            }),
        }
    }
    label_groups(&mut groups, runs);
    groups
}

/// Returns true if two runs measured the same thing. The scenario's text counts: two scenarios may
/// share a name, and taking their runs for repetitions would invent a spread.
fn is_repetition(a: &Meta, b: &Meta) -> bool {
    (a.transport, a.world, &a.stack, &a.congestion_control, &a.scenario, &a.scenario_toml)
        == (b.transport, b.world, &b.stack, &b.congestion_control, &b.scenario, &b.scenario_toml)
}

/// Returns the TCP stack of a run. QUIC always comes from a library, so it has none.
fn stack(meta: &Meta) -> String {
    match meta.transport {
        Transport::Tcp | Transport::Mptcp => meta.stack.clone(),
        Transport::Quic | Transport::Mpquic => String::new(),
    }
}

/// Returns true if a pattern of this name sends datagrams at a constant rate.
fn sends_datagrams(pattern: &str) -> bool {
    matches!(pattern, "udp" | "call" | "call-video")
}

/// Returns true if all runs sent only datagrams and have the same transport. That transport is
/// then not what was measured.
fn are_datagram_runs(runs: &[StoredRun]) -> bool {
    let has_only_datagrams = |run: &StoredRun| {
        let flows = &run.meta.flows;
        !flows.is_empty() && flows.iter().all(|flow| sends_datagrams(&flow.pattern))
    };
    let first = runs.first().map(|run| run.meta.transport);
    runs.iter().all(|run| has_only_datagrams(run) && Some(run.meta.transport) == first)
}

fn label_groups(groups: &mut [RunGroup<'_>], runs: &[StoredRun]) {
    let transport_of: fn(&Meta) -> String = if are_datagram_runs(runs) {
        |_| "udp".to_owned()
    } else {
        |meta| meta.transport.to_string()
    };
    let label_parts: [fn(&Meta) -> String; 5] = [
        transport_of,
        |meta| meta.world.to_string(),
        stack,
        |meta| meta.congestion_control.clone(),
        |meta| meta.scenario.clone(),
    ];
    let differs = |part: &fn(&Meta) -> String| {
        let values = runs.iter().map(|run| part(&run.meta));
        let mut values = values.filter(|value| !value.is_empty());
        values.next().is_some_and(|first| values.any(|value| value != first))
    };
    let mut shown_parts: Vec<_> = label_parts.into_iter().enumerate().collect();
    shown_parts.retain(|(index, part)| *index == 0 || differs(part));
    let mut labels: Vec<String> = Vec::new();
    for group in groups {
        let Some(first) = group.runs.first() else { continue };
        let mut texts: Vec<_> =
            shown_parts.iter().map(|(_, part)| cut(&clean(&part(&first.meta)), 40)).collect();
        texts.retain(|word| !word.is_empty());
        let label = texts.join(" ");
        let uses = labels.iter().filter(|l| **l == label).count();
        group.label = if uses == 0 { label.clone() } else { format!("{label} ({})", uses + 1) };
        labels.push(label);
    }
}

/// Returns a run's verdict without the transport's name in front, which the page shows anyway.
pub(crate) fn verdict(run: &StoredRun) -> Option<String> {
    let sentence = clean(&run.summary.as_ref()?.verdict);
    let name = run.meta.transport.to_string();
    let without_name = sentence.strip_prefix(&name);
    let without_name =
        without_name.and_then(|rest| rest.strip_prefix(": ").or(rest.strip_prefix(' ')));
    Some(without_name.map_or(sentence.clone(), str::to_owned))
}

/// Median and range of a metric over repetitions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct MedianRange {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) count: usize,
}

impl MedianRange {
    /// Returns the median and range of the finite values; `None` without any.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let (low, high) = (sorted.get((sorted.len() - 1) / 2)?, sorted.get(sorted.len() / 2)?);
        Some(Self { median: f64::midpoint(*low, *high), min, max, count: sorted.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        let spread = MedianRange::of([4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max, spread.count), (2.5, 1.0, 4.0, 4));
        assert_eq!(MedianRange::of([]), None);
    }
}
