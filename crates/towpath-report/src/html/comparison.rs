//! The page of a comparison.

use std::fmt::Write as _;

use towpath_result::format::number;
use towpath_result::format::text::clean;
use towpath_result::metrics::statistics::{ConfidenceInterval, Estimate, missing_interval_reason};

use super::panel::{self, swatch, transport_class};
use super::summary::warning_box;
use super::{HtmlPage, delay};
use crate::chart::SeriesStyle;
use crate::chart::values::{DistributionCurve, ValueAxis, ValueRow, distribution, rows};
use crate::comparison::{ComparedMetric, Comparison, conditions, ratio_text, timing};
use crate::page::SiteFrame;
use crate::text::esc;

/// Maximum length of a list of runs that is open at first.
const FOLD_AFTER: usize = 12;
/// Metrics whose distribution over the runs is drawn: those that tend to be bimodal.
const DISTRIBUTION_METRICS: [&str; 5] =
    ["goodput", "stall.longest", "stall.total", "recovery", "delay.max"];

/// Returns the page as one self-contained file.
pub(crate) fn comparison(compared: &Comparison<'_>, site: Option<SiteFrame<'_>>) -> String {
    let mut page = HtmlPage::new(compared.runs, site);
    page.head(compared.runs);
    page.out.push_str("<main>");
    summary(&mut page.out, compared);
    metric_boxes(&mut page.out, compared);
    distributions(&mut page.out, compared);
    if let Some(panel) = panel::comparison(&compared.groups_over_time(), &page.style) {
        page.out.push_str(
            "<section id=\"series\"><h2>Over time</h2><p class=\"about\">By subflow, all on the \
             same axes.</p>",
        );
        super::write_event_legend(&mut page.out, &panel);
        page.panel(&panel);
        page.out.push_str("</section>");
    }
    same_conditions(&mut page.out, compared);
    runs(&mut page.out, compared);
    page.out.push_str("</main>");
    page.foot(compared.runs);
    page.out
}

fn summary(out: &mut String, compared: &Comparison<'_>) {
    out.push_str("<section id=\"summary\">");
    for text in compared.headlines() {
        let _ = write!(out, "<p class=\"headline\">{}</p>", esc(&text));
    }
    warning_box(out, "Is this comparison fair?", &compared.warnings());
    if compared.groups.is_empty() {
        out.push_str("<p class=\"none\">There is nothing to compare.</p></section>");
        return;
    }
    let many = if compared.groups.len() > 2 { " many" } else { "" };
    let _ =
        write!(out, "<div class=\"scroll\"><table class=\"compare{many}\"><thead><tr><td></td>");
    for group in &compared.groups {
        let _ = write!(
            out,
            "<th scope=\"col\">{} <small>× {}</small></th>",
            esc(&group.label),
            group.runs.len()
        );
    }
    out.push_str("</tr></thead><tbody>");
    completed(out, compared);
    for row in &compared.rows {
        let _ = write!(
            out,
            "<tr><th scope=\"row\" title=\"{}\">{}</th>",
            esc(row.metric.about),
            esc(row.metric.label)
        );
        for estimate in &row.estimates {
            cell(out, row, estimate.as_ref());
        }
        out.push_str("</tr>");
    }
    out.push_str(
        "</tbody><caption>Medians, quartiles in brackets, and the 95 % confidence interval of the \
         median (percentile bootstrap), where they differ from it. Each interval holds for itself: of twenty, one misses.\
         </caption></table></div></section>",
    );
}

fn completed(out: &mut String, compared: &Comparison<'_>) {
    out.push_str(
        "<tr><th scope=\"row\" title=\"runs whose flows all ended as planned\">Completed</th>",
    );
    for group in &compared.groups {
        let total = group.runs.len();
        let done = group.summaries().filter(|s| s.flows.iter().all(|f| f.completed)).count();
        let class = if done == total { "good" } else { "bad" };
        let _ = write!(out, "<td class=\"{class}\">{done} of {total}</td>");
    }
    out.push_str("</tr>");
}

fn cell(out: &mut String, row: &ComparedMetric, estimate: Option<&Estimate>) {
    let Some(estimate) = estimate else {
        out.push_str("<td>–</td>");
        return;
    };
    let format_value = |value: f64| row.metric.text(value);
    // A spread that repeats the median is left out.
    let format_range = |[low, high]: [f64; 2]| match (format_value(low), format_value(high)) {
        (low, high) if low == high => None,
        (low, high) => Some(number::spread(&low, &high)),
    };
    let quartiles = format_range(estimate.quartiles).map(|range| format!("[{range}]"));
    let interval = match estimate.interval {
        Some(ConfidenceInterval { low, high }) => {
            format_range([low, high]).map(|range| format!("95 %: {range}"))
        }
        None => missing_interval_reason(estimate.count),
    };
    let _ = write!(out, "<td>{}", esc(&format_value(estimate.median)));
    for text in [quartiles, interval].into_iter().flatten() {
        let _ = write!(out, " <small>{}</small>", esc(&text));
    }
    out.push_str("</td>");
}

/// Writes the values of each metric as boxes with single runs, and the ratios.
fn metric_boxes(out: &mut String, compared: &Comparison<'_>) {
    if compared.rows.is_empty() {
        return;
    }
    out.push_str(
        "<section id=\"figures\"><h2>Metric by metric</h2><p class=\"about\">Left: a dot for each \
         run, a box from quartile to quartile, a line at the median, below it the 95 % interval. \
         Right: how many times as large the figure of one is as the other\u{2019}s, with 95 % \
         interval; the dashed line is \u{201c}equal\u{201d}.</p>",
    );
    for row in &compared.rows {
        let _ = write!(
            out,
            "<div class=\"panel\"><div class=\"part\"><h3>{}</h3><p class=\"about\">{}; {}</p></div>",
            esc(row.metric.label),
            esc(row.metric.about),
            row.metric.better.text()
        );
        boxes(out, compared, row);
        ratios(out, compared, row);
        out.push_str("</div>");
    }
    out.push_str("</section>");
}

/// Returns an axis for all values and intervals of a metric.
fn axis(row: &ComparedMetric) -> ValueAxis {
    let values = row.samples.iter().flat_map(|sample| sample.values().iter().copied());
    ValueAxis::of(row.metric.unit(), values)
}

fn boxes(out: &mut String, compared: &Comparison<'_>, row: &ComparedMetric) {
    let value_rows = compared.groups.iter().zip(&row.samples).zip(&row.estimates);
    let value_rows = value_rows.map(|((group, sample), estimate)| {
        let never_count = sample.values().iter().filter(|value| value.is_infinite()).count();
        let note = match (estimate, never_count) {
            (None, _) => "not measured".to_owned(),
            (Some(estimate), 0) => row.metric.text(estimate.median),
            (Some(_), never_count) => format!("never in {never_count} of {}", sample.count()),
        };
        ValueRow {
            name: group.label.clone(),
            note,
            class: transport_class(&compared.groups, group),
            dots: sample.values().to_vec(),
            quartiles: estimate.as_ref().map(|e| e.quartiles),
            median: estimate.as_ref().map(|e| e.median),
            confidence_interval: estimate
                .as_ref()
                .and_then(|e| e.interval)
                .map(|i| [i.low, i.high]),
        }
    });
    let value_rows: Vec<ValueRow> = value_rows.collect();
    let plot = rows(row.metric.label, row.metric.label, &axis(row), &value_rows, None);
    let _ =
        write!(out, "<figure><figcaption class=\"about\">single runs</figcaption>{plot}</figure>");
}

fn ratios(out: &mut String, compared: &Comparison<'_>, row: &ComparedMetric) {
    let defined = row.ratios.iter().filter_map(|pair| Some((pair, pair.ratio?)));
    let value_rows: Vec<ValueRow> = defined
        .clone()
        .map(|(pair, ratio)| ValueRow {
            name: compared.pair_name(pair),
            note: match ratio.interval {
                Some(ConfidenceInterval { low, high }) => {
                    let [value, low, high] = [ratio.value, low, high].map(ratio_text);
                    format!("{value} [{low}–{high}]")
                }
                None => format!("{} (n = {})", ratio_text(ratio.value), ratio.count),
            },
            class: match compared.groups.get(pair.of) {
                Some(group) => transport_class(&compared.groups, group),
                None => String::new(),
            },
            median: Some(ratio.value),
            confidence_interval: ratio.interval.map(|i| [i.low, i.high]),
            ..ValueRow::default()
        })
        .collect();
    if value_rows.is_empty() {
        let reason = if compared.groups.len() < 2 {
            "nothing to compare with"
        } else {
            "no ratios: a value is zero, was never reached, or was not measured"
        };
        let _ = write!(out, "<figure><figcaption class=\"about\">{reason}</figcaption></figure>");
        return;
    }
    let axis_values = defined.flat_map(|(_, ratio)| {
        let interval = ratio.interval.map_or([ratio.value; 2], |i| [i.low, i.high]);
        interval.into_iter().chain([ratio.value])
    });
    let axis = ValueAxis::of_ratios(axis_values);
    let title = format!("{}: ratios", row.metric.label);
    let plot = rows(&title, "ratio", &axis, &value_rows, Some(1.0));
    let _ = write!(out, "<figure><figcaption class=\"about\">ratios</figcaption>{plot}</figure>");
}

fn distributions(out: &mut String, compared: &Comparison<'_>) {
    out.push_str("<section id=\"distributions\"><h2>Distributions</h2>");
    delay::distributions(out, &compared.groups);
    let is_drawn = |row: &&ComparedMetric| DISTRIBUTION_METRICS.contains(&row.metric.name);
    out.push_str("<div class=\"panel\">");
    for row in compared.rows.iter().filter(is_drawn) {
        let curve = |(group, sample): (&crate::group::RunGroup<'_>, _)| -> DistributionCurve {
            let class = format!("{} line", transport_class(&compared.groups, group));
            let sample: &towpath_result::metrics::statistics::Sample = sample;
            (group.label.clone(), class, sample.steps())
        };
        let curves: Vec<DistributionCurve> =
            compared.groups.iter().zip(&row.samples).map(curve).collect();
        let title = format!("{} of each run", row.metric.label);
        let _ = write!(
            out,
            "<figure><figcaption><strong>{}</strong> <span class=\"about\">share of the runs in \
             which it was at most so large</span></figcaption><ul class=\"legend\">",
            esc(&title)
        );
        for (name, class, _) in &curves {
            let _ = write!(
                out,
                "<li class=\"{class}\"><svg class=\"swatch\" width=\"22\" height=\"12\" \
                 aria-hidden=\"true\">{}</svg><span>{}</span></li>",
                swatch(SeriesStyle::Steps),
                esc(name)
            );
        }
        let plot = distribution(&title, row.metric.label, &axis(row), &curves);
        let _ = write!(out, "</ul>{plot}</figure>");
    }
    out.push_str("</div></section>");
}

fn same_conditions(out: &mut String, compared: &Comparison<'_>) {
    out.push_str(
        "<section id=\"conditions\"><h2>Conditions compared</h2><div class=\"scroll\">\
         <table class=\"list same\"><thead><tr><th scope=\"col\"></th>",
    );
    for group in &compared.groups {
        let _ = write!(out, "<th scope=\"col\">{}</th>", esc(&group.label));
    }
    out.push_str("</tr></thead><tbody>");
    for condition in conditions(compared) {
        let differs = condition.differs();
        let (class, sign) = if differs { (" class=\"differs\"", "≠\u{a0}") } else { ("", "") };
        let _ = write!(
            out,
            "<tr{class}><th scope=\"row\">{sign}{}</th>",
            esc(&clean(&condition.label))
        );
        for value in &condition.values {
            let _ = write!(out, "<td>{}</td>", esc(value));
        }
        out.push_str("</tr>");
    }
    out.push_str(
        "</tbody></table></div><p class=\"about\">≠: the groups differ in what should be the \
         same.</p></section>",
    );
}

/// Lists every run in the order in which it was made.
fn runs(out: &mut String, compared: &Comparison<'_>) {
    let mut runs: Vec<_> = compared
        .groups
        .iter()
        .flat_map(|group| group.runs.iter().map(move |run| (group, *run)))
        .collect();
    runs.sort_by_key(|(_, run)| (run.meta.order.map(|o| o.position), run.meta.repeat));
    let open = if runs.len() <= FOLD_AFTER { " open=\"open\"" } else { "" };
    let _ = write!(
        out,
        "<section id=\"runs\"><h2>Runs</h2><details class=\"fold\"{open}><summary>{} runs, in the \
         order in which they were made</summary><div class=\"scroll\"><table class=\"list\">\
         <thead><tr>",
        runs.len()
    );
    let first_metric = compared.rows.first().map(|row| row.metric);
    let metric_label = first_metric.map_or("", |metric| metric.label);
    for column in ["place", "transport", "repetition", "seed", metric_label, "late, 99 %", "result"]
    {
        let _ = write!(out, "<th scope=\"col\">{}</th>", esc(column));
    }
    out.push_str("</tr></thead><tbody>");
    for (group, run) in runs {
        let position = match run.meta.order {
            Some(order) => format!("{} of {}", order.position, order.of),
            None => "–".to_owned(),
        };
        let value = first_metric.and_then(|metric| Some(metric.text(metric.value(run)?)));
        let lateness = timing(run).map(|timing| number::time(timing.lateness_p99_ns as f64));
        let _ = write!(
            out,
            "<tr><td class=\"n\">{position}</td><td>{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"code\">{}</td></tr>",
            esc(&group.label),
            run.meta.repeat,
            run.meta.seed,
            esc(value.as_deref().unwrap_or("–")),
            lateness.as_deref().unwrap_or("–"),
            esc(&clean(run.file.as_deref().unwrap_or("–")))
        );
    }
    out.push_str("</tbody></table></div></details></section>");
}
