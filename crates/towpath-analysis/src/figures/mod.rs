//! Figures and tables of an analysis. Each is a function from the selected runs.

mod connectivity;
mod delays;
mod handovers;
mod ratios;
mod table;
mod usage;

use std::panic::resume_unwind;
use std::thread;

use towpath_report::figure::{Axis, Curve, CurveKind, CurvePoint, Figure, Panel, ScaleKind};
use towpath_result::format;
use towpath_result::metrics::clusters::{ClusterEstimate, ClusteredSample};

use crate::population::Population;
use crate::settings::AnalysisSettings;

pub use table::{Cell, DataTable};

/// Paper that published the figures for the first time.
const SOURCE: &str = "De Coninck and Bonaventure, MultipathTester (TMA 2019)";
/// Maximum number of steps of a distribution function. The table of values has all of them.
const MAX_STEPS: usize = 400;
/// Smallest ratio of the ends of a logarithmic scale.
const MIN_LOG_SPAN: f64 = 20.0;
/// Quantiles in tables of distributions.
const QUANTILES: [f64; 5] = [0.1, 0.25, 0.5, 0.75, 0.9];

/// A figure or a table of an analysis.
#[derive(Debug, Clone, PartialEq)]
pub struct AnalysisFigure {
    /// Identifier in names of files and addresses.
    pub id: &'static str,
    /// Title of the figure.
    pub title: String,
    /// Published figure that it corresponds to, and how far both are comparable.
    pub comparable: String,
    /// Figure; `None` for tables, or if no curve has enough runs.
    pub figure: Option<Figure>,
    /// Tables of the figure.
    pub tables: Vec<DataTable>,
    /// Sentence that says which runs are shown.
    pub sentence: String,
    /// Curves that are missing, and other remarks.
    pub notes: Vec<String>,
    /// Query for `DuckDB` that gives the values, from `runs.parquet` and `absent.parquet`.
    pub query: String,
}

/// Figure as a function of the selected runs.
type FigureBuilder = fn(&Population, AnalysisSettings) -> AnalysisFigure;

/// All figures in order.
const FIGURES: [FigureBuilder; 11] = [
    |population, _| usage::usage(population),
    connectivity::connectivity,
    ratios::families,
    ratios::transports,
    handovers::reasons,
    handovers::durations,
    delays::maximum,
    delays::by_second_network,
    delays::ratio,
    delays::pairs,
    delays::causes,
];

/// Returns the figures that have values, in order. Each is computed in a thread of its own, because
/// the intervals of many runs take long.
pub(crate) fn all(population: &Population, settings: AnalysisSettings) -> Vec<AnalysisFigure> {
    let mut figures: Vec<AnalysisFigure> = thread::scope(|scope| {
        let build = |builder: FigureBuilder| scope.spawn(move || builder(population, settings));
        let threads = FIGURES.map(build);
        // A panic of a thread is one of this function.
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    });
    for figure in &mut figures {
        figure.tables.retain(|table| !table.rows.is_empty());
    }
    figures.retain(|figure| figure.figure.is_some() || !figure.tables.is_empty());
    figures
}

/// One curve of a distribution, before it is known to have enough values.
#[derive(Debug, Clone)]
struct Distribution {
    panel: String,
    name: String,
    /// Number of its colour and dash.
    style: usize,
    sample: ClusteredSample,
}

/// Distributions of a figure, with what they have in common.
#[derive(Debug)]
struct Distributions<'a> {
    title: &'a str,
    /// Label of the horizontal axis.
    label: &'a str,
    /// True if a panel whose values differ much has a logarithmic scale.
    may_be_log: bool,
    /// Name of one value: `run` or `pair`.
    noun: &'a str,
    /// Bound below which a share is given, with the name of its column.
    threshold: Option<(f64, &'a str)>,
    curves: Vec<Distribution>,
}

/// Figure, table and remarks of distributions.
#[derive(Debug)]
struct DrawnDistributions {
    figure: Option<Figure>,
    table: DataTable,
    notes: Vec<String>,
}

impl Distributions<'_> {
    /// Draws those with enough values, and names the others.
    fn draw(self, settings: AnalysisSettings) -> DrawnDistributions {
        let nouns = format!("{}s", self.noun);
        let mut columns = vec!["curve", &nouns, "devices"];
        if self.has_panels() {
            columns.insert(0, "panel");
        }
        columns.extend(["10 %", "25 %", "median", "75 %", "90 %"]);
        columns.extend(self.threshold.map(|(_, name)| name));
        let mut table = DataTable::new("Quantiles with 95 % intervals", &columns);
        let (mut panels, mut notes): (Vec<Panel>, Vec<String>) = (Vec::new(), Vec::new());
        for distribution in &self.curves {
            let Distribution { panel, name, style, sample } = distribution;
            if sample.count() < settings.min_runs {
                if sample.count() > 0 {
                    let label = if panel.is_empty() { "" } else { ", " };
                    notes.push(format!(
                        "Not shown: {name}{label}{panel}, with {}; a curve needs {}.",
                        format::count(sample.count() as u64, self.noun),
                        settings.min_runs
                    ));
                }
                continue;
            }
            table.rows.push(self.row(distribution, settings));
            if panels.last().is_none_or(|last| last.title != *panel) {
                panels.push(self.panel(panel));
            }
            if let Some(last) = panels.last_mut() {
                last.curves.push(curve(name, *style, sample));
            }
        }
        let title = self.title.to_owned();
        let figure = (!panels.is_empty()).then_some(Figure { title, panels, source: None });
        DrawnDistributions { figure, table, notes }
    }

    /// Returns true if the panels have titles.
    fn has_panels(&self) -> bool {
        self.curves.iter().any(|distribution| !distribution.panel.is_empty())
    }

    fn panel(&self, title: &str) -> Panel {
        Panel {
            title: title.to_owned(),
            kind: CurveKind::Cdf,
            x: Axis { label: self.label.to_owned(), scale: self.scale(title), range: None },
            y: Axis {
                label: format!("share of {}s", self.noun),
                scale: ScaleKind::Linear,
                range: Some([0.0, 1.0]),
            },
            curves: Vec::new(),
            references: Vec::new(),
            lines: Vec::new(),
            diagonal: None,
        }
    }

    /// Returns the scale of a panel.
    fn scale(&self, panel: &str) -> ScaleKind {
        let samples = self.curves.iter().filter(|other| other.panel == panel);
        let values = || samples.clone().flat_map(|distribution| distribution.sample.values());
        let (min, max) = (values().reduce(f64::min), values().reduce(f64::max));
        let is_wide = min.zip(max).is_some_and(|(min, max)| min > 0.0 && max / min >= MIN_LOG_SPAN);
        if self.may_be_log && is_wide { ScaleKind::Log } else { ScaleKind::Linear }
    }

    fn row(&self, distribution: &Distribution, settings: AnalysisSettings) -> Vec<Cell> {
        let Distribution { panel, name, style: _, sample } = distribution;
        let mut row: Vec<Cell> =
            self.has_panels().then(|| Cell::Text(panel.clone())).into_iter().collect();
        row.extend([
            Cell::Text(name.clone()),
            Cell::Count(sample.count() as u64),
            Cell::Count(sample.clusters() as u64),
        ]);
        let quantiles = sample.quantiles(&QUANTILES, settings.seed);
        row.extend(quantiles.into_iter().map(Cell::Estimate));
        if let Some((bound, _)) = self.threshold {
            let share = sample.share(|value| value < bound, settings.seed);
            row.extend(share.map(Cell::Share));
        }
        row
    }
}

/// Returns the empirical distribution function, at most [`MAX_STEPS`] steps.
fn curve(name: &str, style: usize, sample: &ClusteredSample) -> Curve {
    let count = sample.count();
    let every = count.div_ceil(MAX_STEPS).max(1);
    let mut points: Vec<CurvePoint> = Vec::new();
    for (index, x) in sample.values().enumerate() {
        let share = (index + 1) as f64 / count as f64;
        // The last of some values has the exact share.
        if (index + 1) % every == 0 || index + 1 == count {
            if let Some(last) = points.last_mut()
                && last.x.total_cmp(&x).is_eq()
            {
                (last.middle, last.spread) = (share, [share; 2]);
            } else {
                points.push(CurvePoint { x, middle: share, spread: [share; 2], runs: count });
            }
        }
    }
    Curve { name: name.to_owned(), style, group: style, emulated: false, given: false, points }
}

/// Returns a bar with its interval.
fn bar(x: usize, estimate: ClusterEstimate, runs: usize) -> CurvePoint {
    let ClusterEstimate { value, interval } = estimate;
    let spread = interval.map_or([value; 2], |interval| [interval.low, interval.high]);
    CurvePoint { x: x as f64, middle: value, spread, runs }
}

/// Returns a panel of bars, with shares on the vertical axis.
fn share_panel(names: &[String], label: &str, curves: Vec<Curve>) -> Panel {
    // A name without hyphens is broken between its words.
    let names = names.iter().map(|name| name.replace('-', " ")).collect();
    Panel {
        title: String::new(),
        kind: CurveKind::Bars,
        x: Axis { label: String::new(), scale: ScaleKind::Names(names), range: None },
        y: Axis { label: label.to_owned(), scale: ScaleKind::Linear, range: Some([0.0, 1.0]) },
        curves,
        references: Vec::new(),
        lines: Vec::new(),
        diagonal: None,
    }
}

/// Returns the name of a transport for people.
fn transport_name(transport: &str) -> &str {
    match transport {
        "tcp" => "TCP",
        "mptcp" => "Multipath TCP",
        "quic" => "QUIC",
        "mpquic" => "Multipath QUIC",
        other => other,
    }
}

/// Transports that use several networks.
const MULTIPATH: [&str; 2] = ["mptcp", "mpquic"];
