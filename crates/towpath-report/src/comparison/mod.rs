//! Comparison of repetitions across transports or settings: medians with intervals, ratios, and
//! warnings about unfair conditions.

mod conditions;
mod fairness;
mod json;
mod metric;
mod text;

use std::collections::BTreeMap;

use towpath_net::stream_seed;
use towpath_result::Warning;
use towpath_result::metrics::statistics::{
    ConfidenceInterval, Estimate, Ratio, Sample, missing_interval_reason,
};
use towpath_scenario::{Transport, World};

use crate::group::{RunGroup, groups};
use crate::page::SiteFrame;
pub(crate) use conditions::{ComparedCondition, conditions, timing};
pub(crate) use metric::{BetterDirection, METRICS, RunMetric};
use towpath_result::format::number;
use towpath_result::store::StoredRun;

/// Comparison of results, by group.
#[derive(Debug)]
pub struct Comparison<'a> {
    pub(crate) runs: &'a [StoredRun],
    pub(crate) groups: Vec<RunGroup<'a>>,
    pub(crate) rows: Vec<ComparedMetric>,
    /// Seed of the bootstrap resampling.
    pub(crate) seed: u64,
    /// Label of each run, in the order of `runs`. Without labels, the charts over time show groups.
    pub(crate) run_labels: Vec<String>,
}

/// One metric of all groups.
#[derive(Debug)]
pub(crate) struct ComparedMetric {
    pub(crate) metric: &'static RunMetric,
    /// Estimate of each group; `None` where it was not measured.
    pub(crate) estimates: Vec<Option<Estimate>>,
    /// The single values of each group.
    pub(crate) samples: Vec<Sample>,
    /// Ratios of every two groups, the later one over the earlier one.
    pub(crate) ratios: Vec<GroupRatio>,
}

/// Ratio of a metric of group `of` to that of group `to`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct GroupRatio {
    pub(crate) of: usize,
    pub(crate) to: usize,
    /// `None` if the ratio is undefined: a value is zero, infinite or missing.
    pub(crate) ratio: Option<Ratio>,
}

impl<'a> Comparison<'a> {
    /// Compares runs. Equal runs and seed give an equal comparison.
    pub fn of(runs: &'a [StoredRun], seed: u64) -> Self {
        let mut groups = groups(runs);
        groups.sort_by_key(|group| (world_rank(group), transport_rank(group.transport)));
        let summaries = runs.iter().filter_map(|run| run.summary.as_ref());
        let has_only_messages = summaries.clone().count() > 0
            && summaries.flat_map(|summary| &summary.flows).all(|flow| flow.messages.is_some());
        let metrics = METRICS.iter().filter(|metric| !(has_only_messages && metric.of_transfers));
        let rows = metrics.filter_map(|metric| compare(metric, &groups, seed)).collect();
        Self { runs, groups, rows, seed, run_labels: Vec::new() }
    }

    /// Shows each run by itself in the charts over time, with its own label.
    #[must_use]
    pub fn with_run_labels(self, labels: Vec<String>) -> Self {
        Self { run_labels: labels, ..self }
    }

    /// Returns the groups that the charts over time show: single runs if these have labels.
    pub(crate) fn groups_over_time(&self) -> Vec<RunGroup<'a>> {
        if self.run_labels.is_empty() {
            return self.groups.clone();
        }
        let labels = self.run_labels.iter().cloned();
        let single_run = |(run, label): (&'a StoredRun, String)| RunGroup {
            label,
            transport: run.meta.transport,
            runs: vec![run],
        };
        self.runs.iter().zip(labels).map(single_run).collect()
    }

    /// Returns the tables for a terminal of `width` columns.
    pub fn table(&self, width: usize, colour: bool) -> String {
        text::table(self, width, colour)
    }

    /// Returns everything as one JSON object.
    pub fn json(&self) -> serde_json::Value {
        json::json(self)
    }

    /// Returns reasons to doubt the comparison, most important first.
    pub fn warnings(&self) -> Vec<Warning> {
        fairness::warnings(self)
    }

    /// Returns the comparison as a self-contained HTML page.
    pub fn html(&self) -> String {
        crate::html::comparison(self, None)
    }

    /// Returns the page in the frame of a site.
    pub fn html_in(&self, site: SiteFrame<'_>) -> String {
        crate::html::comparison(self, Some(site))
    }

    /// Returns one sentence about the first metric for each world. Simulated and measured values
    /// are never compared with each other.
    pub(crate) fn headlines(&self) -> Vec<String> {
        let mut ranks: Vec<u8> = self.groups.iter().map(world_rank).collect();
        ranks.dedup(); // groups are sorted by world
        let several = ranks.len() > 1;
        let headline_of = |rank: u8| {
            let has_rank =
                |index: &usize| self.groups.get(*index).is_some_and(|g| world_rank(g) == rank);
            let order: Vec<usize> = (0..self.groups.len()).filter(has_rank).collect();
            let world = self.groups.get(*order.first()?)?.runs.first()?.meta.world;
            let text = self.headline(order)?;
            Some(if several { format!("In {world}: {text}") } else { text })
        };
        ranks.iter().filter_map(|rank| headline_of(*rank)).collect()
    }

    fn headline(&self, mut order: Vec<usize>) -> Option<String> {
        let row = self.rows.first()?;
        let median = |index: &usize| row.estimates.get(*index)?.as_ref().map(|e| e.median);
        order.retain(|index| median(index).is_some());
        order.sort_by(|a, b| median(a).unwrap_or(0.0).total_cmp(&median(b).unwrap_or(0.0)));
        if row.metric.better == BetterDirection::More {
            order.reverse();
        }
        let [best, second, ..] = order[..] else { return None };
        let mut text = self.versus_text(row, best, second)?;
        // Readers usually want the gain of Multipath TCP over TCP, even if other groups are ahead.
        if let Some([worse, better]) = self.tcp_mptcp_pair(&order)
            && [best, second] != [worse, better]
        {
            let prefix = format!("{}: ", row.metric.label);
            let gain_text = self.versus_text(row, worse, better)?;
            text = format!("{text} {}", gain_text.strip_prefix(&prefix).unwrap_or(&gain_text));
        }
        Some(text)
    }

    /// Returns the groups of TCP and Multipath TCP, in the given order, if there is one of each.
    fn tcp_mptcp_pair(&self, order: &[usize]) -> Option<[usize; 2]> {
        let only_group_of = |transport: Transport| {
            let has_transport = |index: &&usize| {
                self.groups.get(**index).is_some_and(|group| group.transport == transport)
            };
            let mut matching = order.iter().filter(has_transport);
            matching.next().copied().filter(|_| matching.next().is_none())
        };
        let pair = [only_group_of(Transport::Tcp)?, only_group_of(Transport::Mptcp)?];
        let rank = |index: usize| order.iter().position(|i| *i == index);
        Some(if rank(pair[0]) < rank(pair[1]) { pair } else { [pair[1], pair[0]] })
    }

    /// Compares one group's metric with that of a worse one.
    fn versus_text(&self, row: &ComparedMetric, best: usize, second: usize) -> Option<String> {
        let median = |index: usize| row.estimates.get(index)?.as_ref().map(|e| e.median);
        let name = |index: usize| self.groups.get(index).map_or("", |group| group.label.as_str());
        let value = |index: usize| median(index).map(|v| row.metric.text(v)).unwrap_or_default();
        let label = row.metric.label;
        let text = format!("{label}: {} {}, {} {}", name(best), value(best), name(second), {
            value(second)
        });
        let is_pair =
            |p: &&GroupRatio| (p.of, p.to) == (best, second) || (p.of, p.to) == (second, best);
        let ratio = row.ratios.iter().find(is_pair)?.ratio;
        let Some(ratio) = ratio else { return Some(format!("{text}.")) };
        if fairness::is_deterministic(self, best) && fairness::is_deterministic(self, second) {
            return Some(format!("{text}, in every repetition: nothing is drawn at random."));
        }
        Some(match missing_interval_reason(ratio.count) {
            Some(few) => format!("{text}. Too few repetitions to say more ({few})."),
            None if is_clear(&ratio) => format!("{text}: a significant difference (95 %)."),
            None => format!(
                "{text}: no significant difference, as the interval of their ratio contains 1."
            ),
        })
    }

    /// Returns the name of a ratio: `mptcp ÷ tcp`.
    pub(crate) fn pair_name(&self, pair: &GroupRatio) -> String {
        let name = |index: usize| self.groups.get(index).map_or("", |group| group.label.as_str());
        format!("{} ÷ {}", name(pair.of), name(pair.to))
    }
}

/// Returns true if a ratio's interval excludes 1, and the displayed digits show it.
pub(crate) fn is_clear(ratio: &Ratio) -> bool {
    let shown = |interval: ConfidenceInterval| {
        ratio_text(interval.low) != "1.00" && ratio_text(interval.high) != "1.00"
    };
    ratio.is_clear() && ratio.interval.is_some_and(shown)
}

/// Formats a ratio with three digits: `1.93`, `0.052`.
pub(crate) fn ratio_text(ratio: f64) -> String {
    match ratio.abs() {
        small if small < 0.0995 => format!("{ratio:.3}"),
        _ => number::three_digits(ratio),
    }
}

fn transport_rank(transport: Transport) -> u8 {
    match transport {
        Transport::Tcp => 0,
        Transport::Mptcp => 1,
        Transport::Quic => 2,
        Transport::Mpquic => 3,
    }
}

fn world_rank(group: &RunGroup<'_>) -> u8 {
    match group.runs.first().map(|run| run.meta.world) {
        Some(World::Live) => 0,
        Some(World::Emu) => 1,
        Some(World::Sim) | None => 2,
    }
}

/// Compares a metric across all groups; `None` when no run has it.
fn compare(
    metric: &'static RunMetric,
    groups: &[RunGroup<'_>],
    seed: u64,
) -> Option<ComparedMetric> {
    let values: Vec<_> = groups.iter().map(|group| values(metric, group)).collect();
    let samples: Vec<Sample> =
        values.iter().map(|values| Sample::of(values.iter().map(|(_, value)| *value))).collect();
    if samples.iter().all(|sample| sample.count() == 0) {
        return None;
    }
    let seed_of = |label: &str| stream_seed(seed, metric.name, label);
    let labels = groups.iter().map(|group| group.label.as_str());
    let estimates =
        samples.iter().zip(labels).map(|(sample, label)| Estimate::of(sample, seed_of(label)));
    let estimates = estimates.collect();
    let mut ratios = Vec::new();
    for (denominator, denominator_values) in values.iter().enumerate() {
        for (numerator, numerator_values) in values.iter().enumerate().skip(denominator + 1) {
            let rank = |index: usize| groups.get(index).map(world_rank);
            if rank(numerator) != rank(denominator) {
                continue;
            }
            let seed = seed_of(&format!("{numerator} over {denominator}"));
            let ratio = match pairs(numerator_values, denominator_values) {
                Some(pairs) => Ratio::of_pairs(&pairs, seed),
                None => samples
                    .get(numerator)
                    .zip(samples.get(denominator))
                    .and_then(|(a, b)| Ratio::of_groups(a, b, seed)),
            };
            ratios.push(GroupRatio { of: numerator, to: denominator, ratio });
        }
    }
    Some(ComparedMetric { metric, estimates, samples, ratios })
}

/// Returns the runs of a group that have the metric.
fn values<'a>(metric: &RunMetric, group: &RunGroup<'a>) -> Vec<(&'a StoredRun, f64)> {
    group.runs.iter().filter_map(|run| Some((*run, metric.value(run)?))).collect()
}

/// Pairs values of the same repetition, measured one after the other or with the same random draws.
///
/// `None` if the runs are not comparable one by one.
fn pairs(a: &[(&StoredRun, f64)], b: &[(&StoredRun, f64)]) -> Option<Vec<(f64, f64)>> {
    let by_repetition = |runs: &[(&'_ StoredRun, f64)]| {
        let indices: BTreeMap<u32, usize> =
            runs.iter().enumerate().map(|(index, (run, _))| (run.meta.repeat, index)).collect();
        // A number occurs twice if results of two commands were combined; their runs are unrelated.
        (indices.len() == runs.len()).then_some(indices)
    };
    let (indices_a, indices_b) = (by_repetition(a)?, by_repetition(b)?);
    let mut pairs = Vec::new();
    for (repeat, index_a) in indices_a {
        let Some(index_b) = indices_b.get(&repeat) else { continue };
        let ((run_a, value_a), (run_b, value_b)) = (a.get(index_a)?, b.get(*index_b)?);
        if !is_comparable(run_a, run_b) {
            return None;
        }
        pairs.push((*value_a, *value_b));
    }
    (!pairs.is_empty()).then_some(pairs)
}

fn is_comparable(a: &StoredRun, b: &StoredRun) -> bool {
    match (a.meta.world, b.meta.world) {
        (World::Sim, World::Sim) => a.meta.seed == b.meta.seed,
        (world_a, world_b) if world_a == world_b => match (a.meta.order, b.meta.order) {
            (Some(a), Some(b)) => (a.kind, a.seed, a.of) == (b.kind, b.seed, b.of),
            _ => false,
        },
        _ => false,
    }
}
