//! JSON output of a comparison. A value that is infinite (never) is `null`.

use serde_json::{Value, json};
use towpath_result::metrics::statistics::{ConfidenceInterval, Estimate, Pairing};

use super::{BetterDirection, ComparedMetric, Comparison, GroupRatio};

pub(super) fn json(comparison: &Comparison<'_>) -> Value {
    let groups = comparison.groups.iter().map(|group| {
        let meta = group.runs.first().map(|run| &run.meta);
        json!({
            "label": group.label,
            "transport": group.transport,
            "world": meta.map(|meta| meta.world),
            "stack": meta.map(|meta| &meta.stack),
            "scenario": meta.map(|meta| &meta.scenario),
            "runs": group.runs.len(),
            "completed": group.summaries().filter(|s| s.flows.iter().all(|f| f.completed)).count(),
            "order": group.runs.iter().map(|run| run.meta.order).collect::<Vec<_>>(),
        })
    });
    json!({
        "groups": groups.collect::<Vec<_>>(),
        "metrics": comparison.rows.iter().map(|row| metric_json(comparison, row)).collect::<Vec<_>>(),
        "warnings": comparison.warnings(),
        "resampling_seed": comparison.seed,
    })
}

fn metric_json(comparison: &Comparison<'_>, row: &ComparedMetric) -> Value {
    let groups = row.estimates.iter().zip(&row.samples).zip(&comparison.groups);
    let groups = groups.map(|((estimate, sample), group)| {
        let value_of = |pick: fn(&Estimate) -> f64| estimate.as_ref().map(pick);
        json!({
            "label": group.label,
            "n": sample.count(),
            "median": value_of(|e| e.median),
            "q1": value_of(|e| e.quartiles[0]),
            "q3": value_of(|e| e.quartiles[1]),
            "mean": value_of(|e| e.mean),
            "interval95": interval(estimate.as_ref().and_then(|e| e.interval)),
            "values": sample.values(),
        })
    });
    let ratios = row.ratios.iter().map(|pair| ratio(comparison, pair));
    json!({
        "name": row.metric.name,
        "label": row.metric.label,
        "better": match row.metric.better { BetterDirection::More => "more", BetterDirection::Less => "less" },
        "groups": groups.collect::<Vec<_>>(),
        "ratios": ratios.collect::<Vec<_>>(),
    })
}

fn ratio(comparison: &Comparison<'_>, pair: &GroupRatio) -> Value {
    let label = |index: usize| comparison.groups.get(index).map(|group| group.label.as_str());
    json!({
        "of": label(pair.of),
        "to": label(pair.to),
        "ratio": pair.ratio.map(|ratio| ratio.value),
        "interval95": interval(pair.ratio.and_then(|ratio| ratio.interval)),
        "paired": pair.ratio.map(|ratio| ratio.pairing == Pairing::Paired),
        "n": pair.ratio.map(|ratio| ratio.count),
    })
}

fn interval(interval: Option<ConfidenceInterval>) -> Value {
    interval.map_or(Value::Null, |ConfidenceInterval { low, high }| json!([low, high]))
}
