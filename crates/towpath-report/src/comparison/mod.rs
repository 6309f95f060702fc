//! Comparison of repetitions across transports or settings: medians with intervals, ratios, and
//! warnings about unfair conditions.

mod conditions;
mod fairness;
mod json;
mod metric;
mod text;

use std::collections::BTreeMap;

use towpath_measure::metrics::statistics::{
    ConfidenceInterval, Estimate, Ratio, Sample, missing_interval_reason,
};
use towpath_measure::result::Warning;
use towpath_measure::scenario::{Transport, World};
use towpath_net::stream_seed;

use crate::StoredRun;
use crate::group::{RunGroup, groups};
use crate::number;
pub(crate) use conditions::{ComparedCondition, conditions, noise};
pub(crate) use metric::{BetterDirection, METRICS, RunMetric};

/// Comparison of results, by group.
#[derive(Debug)]
pub struct Comparison<'a> {
    pub(crate) runs: &'a [StoredRun],
    pub(crate) groups: Vec<RunGroup<'a>>,
    pub(crate) rows: Vec<ComparedMetric>,
    /// Seed of the bootstrap resampling.
    pub(crate) seed: u64,
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
        let exchange = runs.iter().filter_map(|run| run.summary.as_ref());
        let exchange = exchange.clone().count() > 0
            && exchange.flat_map(|summary| &summary.flows).all(|flow| flow.messages.is_some());
        let shown = METRICS.iter().filter(|figure| !(exchange && figure.of_transfers));
        let rows = shown.filter_map(|figure| compare(figure, &groups, seed)).collect();
        Self { runs, groups, rows, seed }
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
        crate::html::comparison(self)
    }

    /// Returns one sentence about the first metric for each world. Simulated and measured values
    /// are never compared with each other.
    pub(crate) fn headlines(&self) -> Vec<String> {
        let mut ranks: Vec<u8> = self.groups.iter().map(world_rank).collect();
        ranks.dedup(); // groups are sorted by world
        let several = ranks.len() > 1;
        let of = |rank: u8| {
            let own = |at: &usize| self.groups.get(*at).is_some_and(|g| world_rank(g) == rank);
            let order: Vec<usize> = (0..self.groups.len()).filter(own).collect();
            let world = self.groups.get(*order.first()?)?.runs.first()?.meta.world;
            let text = self.headline(order)?;
            Some(if several { format!("In {world}: {text}") } else { text })
        };
        ranks.iter().filter_map(|rank| of(*rank)).collect()
    }

    fn headline(&self, mut order: Vec<usize>) -> Option<String> {
        let row = self.rows.first()?;
        let median = |at: &usize| row.estimates.get(*at)?.as_ref().map(|e| e.median);
        order.retain(|at| median(at).is_some());
        order.sort_by(|a, b| median(a).unwrap_or(0.0).total_cmp(&median(b).unwrap_or(0.0)));
        if row.metric.better == BetterDirection::More {
            order.reverse();
        }
        let [best, second, ..] = order[..] else { return None };
        let mut text = self.versus_text(row, best, second)?;
        // Readers usually want the gain of Multipath TCP over TCP, even if other groups are ahead.
        if let Some([one, other]) = self.tcp_mptcp_pair(&order)
            && [best, second] != [one, other]
        {
            let what = format!("{}: ", row.metric.label);
            let usual = self.versus_text(row, one, other)?;
            text = format!("{text} {}", usual.strip_prefix(&what).unwrap_or(&usual));
        }
        Some(text)
    }

    /// Returns TCP and Multipath TCP if there is one group of each, in this order of groups.
    fn tcp_mptcp_pair(&self, order: &[usize]) -> Option<[usize; 2]> {
        let own = |transport: Transport| {
            let is_it = |at: &&usize| {
                self.groups.get(**at).is_some_and(|group| group.transport == transport)
            };
            let mut all = order.iter().filter(is_it);
            all.next().copied().filter(|_| all.next().is_none())
        };
        let pair = [own(Transport::Tcp)?, own(Transport::Mptcp)?];
        let place = |at: usize| order.iter().position(|other| *other == at);
        Some(if place(pair[0]) < place(pair[1]) { pair } else { [pair[1], pair[0]] })
    }

    /// Compares one group's metric with that of a worse one.
    fn versus_text(&self, row: &ComparedMetric, best: usize, second: usize) -> Option<String> {
        let median = |at: usize| row.estimates.get(at)?.as_ref().map(|e| e.median);
        let name = |at: usize| self.groups.get(at).map_or("", |group| group.label.as_str());
        let value = |at: usize| median(at).map(|v| row.metric.text(v)).unwrap_or_default();
        let what = row.metric.label;
        let told = format!("{what}: {} {}, {} {}", name(best), value(best), name(second), {
            value(second)
        });
        let is_it =
            |p: &&GroupRatio| (p.of, p.to) == (best, second) || (p.of, p.to) == (second, best);
        let ratio = row.ratios.iter().find(is_it)?.ratio;
        let Some(ratio) = ratio else { return Some(format!("{told}.")) };
        if fairness::is_deterministic(self, best) && fairness::is_deterministic(self, second) {
            return Some(format!("{told}, in every repetition: nothing is drawn at random."));
        }
        Some(match missing_interval_reason(ratio.count) {
            Some(few) => format!("{told}. Too few repetitions to say more ({few})."),
            None if is_clear(&ratio) => format!("{told}: more than chance."),
            None => format!("{told}: it may be chance, as the interval of their ratio holds 1."),
        })
    }

    /// Returns the name of a ratio: `mptcp ÷ tcp`.
    pub(crate) fn pair_name(&self, pair: &GroupRatio) -> String {
        let name = |at: usize| self.groups.get(at).map_or("", |group| group.label.as_str());
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
    figure: &'static RunMetric,
    groups: &[RunGroup<'_>],
    seed: u64,
) -> Option<ComparedMetric> {
    let values: Vec<_> = groups.iter().map(|group| values(figure, group)).collect();
    let samples: Vec<Sample> =
        values.iter().map(|values| Sample::of(values.iter().map(|(_, value)| *value))).collect();
    if samples.iter().all(|sample| sample.count() == 0) {
        return None;
    }
    let seed_of = |what: &str| stream_seed(seed, figure.name, what);
    let labels = groups.iter().map(|group| group.label.as_str());
    let estimates =
        samples.iter().zip(labels).map(|(sample, label)| Estimate::of(sample, seed_of(label)));
    let estimates = estimates.collect();
    let mut ratios = Vec::new();
    for (to, denominators) in values.iter().enumerate() {
        for (of, numerators) in values.iter().enumerate().skip(to + 1) {
            let rank = |at: usize| groups.get(at).map(world_rank);
            if rank(of) != rank(to) {
                continue;
            }
            let seed = seed_of(&format!("{of} over {to}"));
            let ratio = match pairs(numerators, denominators) {
                Some(pairs) => Ratio::of_pairs(&pairs, seed),
                None => samples
                    .get(of)
                    .zip(samples.get(to))
                    .and_then(|(a, b)| Ratio::of_groups(a, b, seed)),
            };
            ratios.push(GroupRatio { of, to, ratio });
        }
    }
    Some(ComparedMetric { metric: figure, estimates, samples, ratios })
}

/// Returns the runs of a group that have the metric.
fn values<'a>(figure: &RunMetric, group: &RunGroup<'a>) -> Vec<(&'a StoredRun, f64)> {
    group.runs.iter().filter_map(|run| Some((*run, figure.value(run)?))).collect()
}

/// Pairs values of the same repetition: neighbours in time, or the same random draws.
fn pairs(a: &[(&StoredRun, f64)], b: &[(&StoredRun, f64)]) -> Option<Vec<(f64, f64)>> {
    let by_number = |runs: &[(&'_ StoredRun, f64)]| {
        let all: BTreeMap<u32, usize> =
            runs.iter().enumerate().map(|(at, (run, _))| (run.meta.repeat, at)).collect();
        // Results of two calls combined contain each number twice, and their runs are unrelated.
        (all.len() == runs.len()).then_some(all)
    };
    let (of_a, of_b) = (by_number(a)?, by_number(b)?);
    let mut pairs = Vec::new();
    for (number, at) in of_a {
        let Some(other) = of_b.get(&number) else { continue };
        let ((one, own), (two, others)) = (a.get(at)?, b.get(*other)?);
        if !comparable(one, two) {
            return None;
        }
        pairs.push((*own, *others));
    }
    (!pairs.is_empty()).then_some(pairs)
}

fn comparable(a: &StoredRun, b: &StoredRun) -> bool {
    match (a.meta.world, b.meta.world) {
        (World::Sim, World::Sim) => a.meta.seed == b.meta.seed,
        (one, other) if one == other => match (a.meta.order, b.meta.order) {
            (Some(a), Some(b)) => (a.kind, a.seed, a.of) == (b.kind, b.seed, b.of),
            _ => false,
        },
        _ => false,
    }
}
