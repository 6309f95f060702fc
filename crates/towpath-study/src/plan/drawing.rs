//! `[[figures]]`: the panels that draw the rows of a plan.

use std::collections::BTreeMap;

use KeyPresence::{Optional, Required};
use ValueKind::{Any, List, OneOf, Tables, Text, Words};
use towpath_scenario::document::{
    KeyPresence, Section, SpannedProblem, TableSchema, Value, ValueKind, alternatives, key,
    nearest, quote,
};
use towpath_scenario::units;
use towpath_scenario::units::Dimension;

/// One panel of the plan's figure.
#[derive(Debug, Clone, PartialEq)]
pub struct PanelSpec {
    /// Kind of plot, such as lines or bars.
    pub kind: PlotKind,
    /// Title above it; may be empty.
    pub title: String,
    /// Horizontal axis: an axis, `variant`, or (with [`PlotKind::Cdf`] and [`PlotKind::Scatter`])
    /// a metric of the rows.
    pub x: String,
    /// Metrics of the rows; empty with [`PlotKind::Cdf`].
    pub y: Vec<String>,
    /// Axis labels without unit; empty for the name of the drawn value.
    pub labels: [String; 2],
    /// Units of the axes, such as `Mbit/s`.
    pub units: [Option<AxisUnit>; 2],
    /// True for a logarithmic axis.
    pub log: [bool; 2],
    /// Ends of each axis, in base units; `None` derives them from the values.
    pub ranges: [Option<[f64; 2]>; 2],
    /// Variants to draw, in this order; all if empty.
    pub variants: Vec<String>,
    /// Filter of the points: accepted parameter texts, by name of the axis.
    pub only: BTreeMap<String, Vec<String>>,
    /// Names in the legend, by metric.
    pub names: BTreeMap<String, String>,
    /// Statistic for the runs of a point.
    pub statistic: CentralValue,
    /// Error bars for the runs of a point.
    pub spread: ErrorBars,
    /// Horizontal lines: value in base units, and meaning.
    pub lines: Vec<(f64, String)>,
}

/// Unit of an axis.
#[derive(Debug, Clone, PartialEq)]
pub struct AxisUnit {
    /// Name of the unit: `Mbit/s`.
    pub name: String,
    /// Value of one unit in base units.
    pub size: f64,
}

/// Kind of plot of a panel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlotKind {
    /// A curve over an axis.
    Lines,
    /// Bars next to each other.
    Bars,
    /// Bars on top of each other.
    StackedBars,
    /// Distribution function over all runs.
    Cdf,
    /// A point for each run.
    Scatter,
    /// Curve over the seconds of the run.
    Series,
}

/// Statistic for the runs of a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CentralValue {
    /// Median of the runs.
    Median,
    /// Arithmetic mean of the runs.
    Mean,
}

/// Kind of error bars for the runs of a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorBars {
    /// 95 % confidence interval of the statistic; the range if there are too few runs.
    Interval,
    /// Range from quartile to quartile.
    Quartiles,
    /// Range from the smallest to the largest.
    Range,
    /// No error bars are drawn.
    None,
}

const KINDS: [(&str, PlotKind); 6] = [
    ("lines", PlotKind::Lines),
    ("bars", PlotKind::Bars),
    ("stacked-bars", PlotKind::StackedBars),
    ("cdf", PlotKind::Cdf),
    ("scatter", PlotKind::Scatter),
    ("series", PlotKind::Series),
];

pub(super) static FIGURE: TableSchema = TableSchema {
    noun: "a figure",
    heading: "[[figures]]",
    doc: "Panels of the figure, side by side.",
    key_groups: &[&[
        key(
            "kind",
            Words(&["lines", "bars", "stacked-bars", "cdf", "scatter", "series"]),
            Required,
            "Kind of panel; `series` is over the seconds of the run",
        ),
        key("title", Text, Optional("empty"), "Title above the panel"),
        key("x", Text, Optional("time"), "An axis or `variant`; with `cdf` and `scatter` a metric"),
        key("y", OneOf(&[Text, List(&Text)]), Optional("none"), "Metrics of the rows"),
        key("x-label", Text, Optional("the name of `x`"), "Axis label without the unit"),
        key("y-label", Text, Optional("the name of `y`"), "Axis label without the unit"),
        key("x-unit", Text, Optional("base units"), "Unit of the axis, such as `KB`"),
        key("y-unit", Text, Optional("base units"), "Unit of the axis, such as `Mbit/s`"),
        key("x-scale", Words(&["linear", "log"]), Optional("`linear`"), "Scale of the axis"),
        key("y-scale", Words(&["linear", "log"]), Optional("`linear`"), "Scale of the axis"),
        key("x-range", List(&Text), Optional("from the values"), "Both ends of the axis"),
        key(
            "y-range",
            List(&Text),
            Optional("from the values"),
            "Both ends of the axis, such as `[\"0\", \"10 Mbit/s\"]`",
        ),
        key("variants", List(&Text), Optional("all"), "Variants to draw, in this order"),
        key(
            "where",
            Any("a table of axes and their values"),
            Optional("all"),
            "Only the points with these values",
        ),
        key("names", Any("a table of metrics and names"), Optional("none"), "Names in the legend"),
        key(
            "statistic",
            Words(&["median", "mean"]),
            Optional("`median`"),
            "Value drawn for the seeds of a point",
        )
        .formerly("middle"),
        key(
            "spread",
            Words(&["ci95", "quartiles", "range", "none"]),
            Optional("`ci95`"),
            "Representation of the spread over the seeds",
        ),
        key("lines", Tables(&LINE), Optional("none"), "Horizontal lines"),
    ]],
};

static LINE: TableSchema = TableSchema {
    noun: "a line",
    heading: "[[figures.lines]]",
    doc: "Horizontal line, such as a claimed value or the capacity of the links.",
    key_groups: &[&[
        key("at", Text, Required, "Position, such as `10 Mbit/s`"),
        key("text", Text, Required, "Label of the line"),
    ]],
};

pub(super) static SCHEMAS: [&TableSchema; 2] = [&FIGURE, &LINE];

/// Names that a panel may refer to.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownNames<'a> {
    pub(super) variants: &'a [&'a str],
    /// Names of axes and draws.
    pub(super) axes: &'a [&'a str],
}

pub(super) fn read_panel(value: &Value<'_>, names: KnownNames<'_>) -> Option<PanelSpec> {
    let mut section = value.section(&FIGURE, "a figure", "expected a table")?;
    let kind = section.require("kind", "kind = \"lines\"").and_then(|value| value.word(&KINDS));
    let kind = kind.unwrap_or(PlotKind::Lines);
    let text = |section: &mut Section<'_>, key| {
        section.take(key).and_then(|value| value.text()).unwrap_or_default().to_owned()
    };
    let title = text(&mut section, "title");
    let x = if kind == PlotKind::Series {
        "time".to_owned()
    } else {
        let value = section.require("x", "x = \"the name of an axis\"");
        value.and_then(|value| x_quantity(&value, kind, names)).unwrap_or_default()
    };
    let y = if kind == PlotKind::Cdf { None } else { section.require("y", "y = \"goodput\"") };
    let statistics = [("median", CentralValue::Median), ("mean", CentralValue::Mean)];
    let spreads = [
        ("ci95", ErrorBars::Interval),
        ("quartiles", ErrorBars::Quartiles),
        ("range", ErrorBars::Range),
        ("none", ErrorBars::None),
    ];
    let spec = PanelSpec {
        kind,
        title,
        x,
        y: y.map(|value| read_texts(&value)).unwrap_or_default(),
        labels: ["x-label", "y-label"].map(|key| text(&mut section, key)),
        units: ["x-unit", "y-unit"]
            .map(|key| section.take(key).and_then(|value| read_unit(&value))),
        log: ["x-scale", "y-scale"].map(|key| {
            let value = section.take(key);
            value.and_then(|v| v.word(&[("linear", false), ("log", true)])).unwrap_or(false)
        }),
        ranges: ["x-range", "y-range"].map(|key| section.take(key).and_then(|v| read_range(&v))),
        variants: section.take("variants").map(|v| read_variants(&v, names)).unwrap_or_default(),
        only: section
            .take("where")
            .map(|value| read_point_filter(&value, names))
            .unwrap_or_default(),
        names: section.take("names").map(|value| read_legend_names(&value)).unwrap_or_default(),
        statistic: section
            .take("statistic")
            .and_then(|v| v.word(&statistics))
            .unwrap_or(CentralValue::Median),
        spread: section
            .take("spread")
            .and_then(|v| v.word(&spreads))
            .unwrap_or(ErrorBars::Interval),
        lines: section.take("lines").map(|value| read_lines(&value)).unwrap_or_default(),
    };
    section.finish();
    Some(spec)
}

/// Reads the quantity of the horizontal axis.
fn x_quantity(value: &Value<'_>, kind: PlotKind, names: KnownNames<'_>) -> Option<String> {
    let text = value.text()?;
    let is_metric = matches!(kind, PlotKind::Cdf | PlotKind::Scatter);
    if !is_metric && text != "variant" {
        require_name(value, text, names.axes, "no axis")?;
    }
    Some(text.to_owned())
}

/// Reports a name that the plan does not have.
fn require_name(value: &Value<'_>, text: &str, names: &[&str], subject: &str) -> Option<()> {
    if names.contains(&text) {
        return Some(());
    }
    let hint = match nearest(text, names.iter().copied()) {
        Some(suggestion) => format!("did you mean {}?", quote(suggestion)),
        None if names.is_empty() => "this plan has none".to_owned(),
        None => format!("there are {}", alternatives(names.iter().copied().take(10))),
    };
    let message = format!("{subject} is called {}", quote(text));
    let finding = SpannedProblem::new(value.span(), message, "expected a name of this plan");
    value.push(finding.hint(hint));
    None
}

fn read_texts(value: &Value<'_>) -> Vec<String> {
    if let Some(text) = value.as_str() {
        return vec![text.to_owned()];
    }
    let list = value.list("expected a text or a list of texts").unwrap_or_default();
    list.iter().filter_map(|value| Some(value.text()?.to_owned())).collect()
}

fn read_unit(value: &Value<'_>) -> Option<AxisUnit> {
    let name = value.text()?;
    match units::quantity(&format!("1 {name}")) {
        Ok(quantity) => Some(AxisUnit { name: name.to_owned(), size: quantity.as_f64() }),
        Err(error) => {
            value.unit_error(&error, Dimension::Rate, "expected a unit such as `Mbit/s`".into());
            None
        }
    }
}

fn read_number(value: &Value<'_>) -> Option<f64> {
    let number = value.as_number();
    let Some(text) = value.as_str().or(number.as_deref()) else {
        value.wrong_type("expected a number with its unit");
        return None;
    };
    let report_error =
        |error| value.unit_error(&error, Dimension::Rate, "expected a number".to_owned());
    units::quantity(text).map(units::Quantity::as_f64).map_err(report_error).ok()
}

fn read_range(value: &Value<'_>) -> Option<[f64; 2]> {
    let list = value.list("expected both ends")?;
    let [low, high] = list.as_slice() else {
        value.fail("a range has two ends", "expected `[\"0\", \"10 Mbit/s\"]`");
        return None;
    };
    let [low, high] = [read_number(low)?, read_number(high)?];
    if low >= high {
        value.fail("the range ends before it begins", "expected the lower end first");
        return None;
    }
    Some([low, high])
}

fn read_variants(value: &Value<'_>, names: KnownNames<'_>) -> Vec<String> {
    let list = value.list("expected a list of variants").unwrap_or_default();
    let known_variant = |value: &Value<'_>| {
        let text = value.text()?;
        require_name(value, text, names.variants, "no variant").map(|()| text.to_owned())
    };
    list.iter().filter_map(known_variant).collect()
}

/// Reads values as texts, in any notation.
fn read_point_filter(value: &Value<'_>, names: KnownNames<'_>) -> BTreeMap<String, Vec<String>> {
    let Some(table) = value.as_table() else {
        value.wrong_type("expected a table such as `{ queue = \"100 packets\" }`");
        return BTreeMap::new();
    };
    let filters = table.iter().filter_map(|(name, entry)| {
        let entry = value.nested(name.get_ref(), name.span(), entry);
        require_name(&entry, name.get_ref(), names.axes, "no axis")?;
        let list = match (entry.as_str(), entry.as_number()) {
            (None, None) => entry.list("expected a value or a list of values")?,
            _ => vec![entry],
        };
        let text = |value: &Value<'_>| value.as_str().map(str::to_owned).or(value.as_number());
        Some((name.get_ref().to_string(), list.iter().filter_map(text).collect()))
    });
    filters.collect()
}

fn read_legend_names(value: &Value<'_>) -> BTreeMap<String, String> {
    let Some(table) = value.as_table() else {
        value.wrong_type("expected a table such as `{ \"path.a.goodput\" = \"link A\" }`");
        return BTreeMap::new();
    };
    let names = table.iter().filter_map(|(name, entry)| {
        let entry = value.nested(name.get_ref(), name.span(), entry);
        Some((name.get_ref().to_string(), entry.text()?.to_owned()))
    });
    names.collect()
}

fn read_lines(value: &Value<'_>) -> Vec<(f64, String)> {
    let list = value.list("expected a list of lines").unwrap_or_default();
    let line = |value: &Value<'_>| {
        let mut section = value.section(&LINE, "a line", "expected `{ at = …, text = … }`")?;
        let value_at_line =
            section.require("at", "at = \"10 Mbit/s\"").and_then(|value| read_number(&value));
        let text = section.require("text", "text = \"both links\"").and_then(|value| value.text());
        section.finish();
        Some((value_at_line?, text?.to_owned()))
    };
    list.iter().filter_map(line).collect()
}
