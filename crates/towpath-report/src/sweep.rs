//! The page of a sweep: each metric at every point of its plan, with the spread over the seeds.

use std::fmt::Write as _;

use towpath_result::expect::MetricUnit;
use towpath_result::format::number;
use towpath_result::format::text::cut;
use towpath_result::metrics::statistics::{
    ConfidenceInterval, Estimate, Sample, missing_interval_reason,
};

use crate::chart::values::{ValueAxis, ValueRow, rows};
use crate::page::head;
use crate::text::esc;

const STYLE: &str = include_str!("style.css");
/// Maximum number of points in a plot; the table has all of them.
const MAX_POINTS: usize = 60;
/// Seed of the bootstrap resampling: equal rows give an equal page.
const RESAMPLING_SEED: u64 = 1;

/// Content of a sweep's page.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SweepPage {
    /// Name of the plan.
    pub name: String,
    /// Subject of the sweep in one sentence; may be empty.
    pub about: String,
    /// Facts below the title: world, runs, failures.
    pub facts: Vec<String>,
    /// Names of the parameters that identify a point.
    pub axes: Vec<String>,
    /// Metrics in order of importance.
    pub metrics: Vec<SweepMetric>,
}

/// A metric at every point.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepMetric {
    /// Name as in the rows: `goodput`.
    pub name: String,
    /// Unit of the metric; `None` for a plain number.
    pub unit: Option<MetricUnit>,
    /// Every variant at every point, in the plan's order.
    pub points: Vec<SweepPoint>,
}

/// The runs of one variant at one point.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepPoint {
    /// Name of the variant.
    pub variant: String,
    /// Number of the variant, for its colour.
    pub style: usize,
    /// Values of the parameters, as many as the page's `axes`.
    pub parameters: Vec<String>,
    /// One value for each seed that has the metric.
    pub values: Vec<f64>,
}

impl SweepMetric {
    fn text(&self, value: f64) -> String {
        self.unit.map_or_else(|| number::three_digits(value), |unit| unit.text(value))
    }
}

/// Returns the page as one self-contained file.
pub fn sweep_page(page: &SweepPage) -> String {
    let mut out = head(&page.name, STYLE, None);
    let _ = write!(out, "<header><h1>{}</h1>", esc(&page.name));
    if !page.about.is_empty() {
        let _ = write!(out, "<p class=\"lead\">{}</p>", esc(&page.about));
    }
    let _ = write!(out, "<p class=\"facts\">{}</p></header><main>", esc(&page.facts.join(" · ")));
    if page.metrics.is_empty() {
        out.push_str("<p class=\"none\">There are no metrics yet.</p>");
    }
    for (number, metric) in page.metrics.iter().enumerate() {
        section(&mut out, page, metric, number == 0);
    }
    out.push_str(
        "</main><footer><p>A dot for each run, a box from quartile to quartile, a thick line at the \
         median, and below it the 95 % confidence interval of the median (percentile bootstrap), \
         where there are enough seeds for one.</p></footer></body></html>\n",
    );
    out
}

fn section(out: &mut String, page: &SweepPage, metric: &SweepMetric, open: bool) {
    let estimates: Vec<(&SweepPoint, Sample, Option<Estimate>)> = metric
        .points
        .iter()
        .map(|point| {
            let sample = Sample::of(point.values.iter().copied());
            let estimate = Estimate::of(&sample, RESAMPLING_SEED);
            (point, sample, estimate)
        })
        .collect();
    let open = if open { " open=\"open\"" } else { "" };
    let _ = write!(
        out,
        "<section class=\"run\"><details{open}><summary><h2>{}</h2></summary>",
        esc(&metric.name)
    );
    plot(out, metric, &estimates);
    table(out, page, metric, &estimates);
    out.push_str("</details></section>");
}

type Estimates<'a> = [(&'a SweepPoint, Sample, Option<Estimate>)];

fn plot(out: &mut String, metric: &SweepMetric, estimates: &Estimates<'_>) {
    let measured: Vec<_> = estimates.iter().filter(|(.., estimate)| estimate.is_some()).collect();
    if measured.is_empty() {
        return;
    }
    if measured.len() > MAX_POINTS {
        let _ = write!(
            out,
            "<p class=\"about\">The first {MAX_POINTS} of {} points.</p>",
            measured.len()
        );
    }
    let drawn = measured.iter().take(MAX_POINTS);
    let row = |(point, sample, estimate): &&&(&SweepPoint, Sample, Option<Estimate>)| ValueRow {
        name: cut(&point_name(point), 22),
        note: match estimate {
            Some(estimate) => metric.text(estimate.median),
            None => String::new(),
        },
        class: format!("g{}", point.style % 8),
        dots: sample.values().to_vec(),
        quartiles: estimate.as_ref().map(|e| e.quartiles),
        median: estimate.as_ref().map(|e| e.median),
        confidence_interval: estimate.as_ref().and_then(|e| e.interval).map(|i| [i.low, i.high]),
    };
    let rows_of_points: Vec<ValueRow> = drawn.clone().map(|point| row(&point)).collect();
    let values = drawn.flat_map(|(_, sample, _)| sample.values().iter().copied());
    let axis = ValueAxis::of(metric.unit.unwrap_or(MetricUnit::Count), values);
    let plot = rows(&metric.name, &metric.name, &axis, &rows_of_points, None);
    let _ = write!(out, "<figure>{plot}</figure>");
}

/// Returns a point's name: `MPTCP, 50 KB`.
fn point_name(point: &SweepPoint) -> String {
    let parameters = point.parameters.iter().map(String::as_str).filter(|text| !text.is_empty());
    [point.variant.as_str()].into_iter().chain(parameters).collect::<Vec<_>>().join(", ")
}

fn table(out: &mut String, page: &SweepPage, metric: &SweepMetric, estimates: &Estimates<'_>) {
    out.push_str(
        "<div class=\"scroll\"><table class=\"list\"><thead><tr><th scope=\"col\">variant</th>",
    );
    let statistics =
        ["runs", "median", "quartiles", "95 % interval of the median", "smallest to largest"];
    for column in page.axes.iter().map(String::as_str).chain(statistics) {
        let _ = write!(out, "<th scope=\"col\">{}</th>", esc(column));
    }
    out.push_str("</tr></thead><tbody>");
    for (point, sample, estimate) in estimates {
        let _ = write!(
            out,
            "<tr><td><span class=\"path\"><i class=\"dot g{}\"></i>{}</span></td>",
            point.style % 8,
            esc(&point.variant)
        );
        for parameter in &point.parameters {
            let _ = write!(out, "<td>{}</td>", esc(parameter));
        }
        let _ = write!(out, "<td class=\"n\">{}</td>", sample.count());
        for cell in cells(metric, sample, estimate.as_ref()) {
            let _ = write!(out, "<td class=\"n\">{}</td>", esc(&cell));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
}

fn cells(metric: &SweepMetric, sample: &Sample, estimate: Option<&Estimate>) -> [String; 4] {
    let Some(estimate) = estimate else { return ["–", "", "", ""].map(str::to_owned) };
    let format_value = |value: f64| metric.text(value);
    let format_range =
        |low: f64, high: f64| number::spread(&format_value(low), &format_value(high));
    let [low, high] = estimate.quartiles;
    let values = sample.values().iter().copied();
    let (min, max) =
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, m), v| (l.min(v), m.max(v)));
    let interval = match estimate.interval {
        Some(ConfidenceInterval { low, high }) => format_range(low, high),
        None => missing_interval_reason(estimate.count).unwrap_or_default(),
    };
    [format_value(estimate.median), format_range(low, high), interval, format_range(min, max)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_shows_every_point_with_its_spread_and_escapes_its_names() {
        let point = |variant: &str, style, values: Vec<f64>| SweepPoint {
            variant: variant.to_owned(),
            style,
            parameters: vec!["50 <KB>".to_owned()],
            values,
        };
        let page = SweepPage {
            name: "buffers".to_owned(),
            axes: vec!["receive buffer".to_owned()],
            metrics: vec![SweepMetric {
                name: "goodput".to_owned(),
                unit: Some(MetricUnit::Rate),
                points: vec![
                    point("MPTCP", 0, (1..=9).map(|n| f64::from(n) * 1e6).collect()),
                    point("TCP", 1, vec![]),
                ],
            }],
            ..SweepPage::default()
        };
        let text = sweep_page(&page);
        assert!(text.contains("<td class=\"n\">5.00 Mbit/s</td>"), "{text}");
        assert!(text.contains("1.00–9.00 Mbit/s") && text.contains("50 &lt;KB&gt;"), "{text}");
        assert_eq!(text.matches("<circle cx").count(), 9);
        assert!(text.contains("default-src 'none'") && !text.contains("<script"));
        assert!(sweep_page(&SweepPage::default()).contains("There are no metrics yet."));
    }
}
