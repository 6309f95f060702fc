//! `towpath collect analyse`: figures and tables of a campaign, from a collector or from a folder of
//! results.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use towpath_analysis::folder::{self, FolderError};
use towpath_analysis::output::{self, OutputError};
use towpath_analysis::{
    Analysis, AnalysisFigure, AnalysisFilter, AnalysisSettings, CampaignData, Cell, DataTable,
    rules_markdown,
};
use towpath_result::format;
use towpath_result::format::text::{cut, pad, wrap};

use super::StoreArguments;
use crate::error::CliError;
use crate::ui::Ui;

/// Width of the summary, in characters.
const WIDTH: usize = 100;
/// Spaces between columns.
const GAP: usize = 2;
/// Maximum width of one column, in characters. Two labels and one value fit into a line.
const MAX_COLUMN: usize = 30;

/// Analyse the results of a campaign: figures, tables, intervals
///
/// Prints the main tables. `--out` writes pictures (SVG, PNG), tables (CSV, Parquet) and one page.
/// The same results give the same bytes, from any database and from a folder.
#[derive(Debug, Args)]
pub(super) struct AnalyseArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Name of the campaign
    #[arg(value_name = "CAMPAIGN", required_unless_present_any = ["folder", "rules"])]
    campaign: Option<String>,
    /// Read results from a folder instead of a collector, with one subfolder for each device, as
    /// `towpath collect export --results` writes them
    #[arg(long, value_name = "DIR", conflicts_with_all = ["dir", "database", "objects"])]
    folder: Option<PathBuf>,
    /// Folder for the files of the analysis [default: none are written]
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Only runs towards this test server
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    /// Only runs over this address family
    #[arg(long, value_enum)]
    family: Option<FamilyChoice>,
    /// Only runs towards this port of the test server
    #[arg(long, value_name = "N")]
    port: Option<u16>,
    /// Only runs of this version of towpath and later ones, such as `0.3`
    #[arg(long, value_name = "V", value_parser = version)]
    min_version: Option<String>,
    /// Fewest values of a curve or a share; those with fewer are left out
    #[arg(
        long,
        value_name = "N",
        default_value_t = AnalysisSettings::default().min_runs as u64,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    min_runs: u64,
    /// Seed of the bootstrap, which gives the intervals
    #[arg(long, value_name = "N", default_value_t = AnalysisSettings::default().seed)]
    seed: u64,
    /// Print JSON instead of the summary
    #[arg(short = 'J', long)]
    json: bool,
    /// Print the rules for reasons of handovers and causes of delays, as Markdown
    #[arg(long)]
    rules: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FamilyChoice {
    Ipv4,
    Ipv6,
}

impl FamilyChoice {
    fn name(self) -> &'static str {
        match self {
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
        }
    }
}

/// Reads a version, which begins with a number.
fn version(text: &str) -> Result<String, String> {
    let is_version = text.starts_with(|c: char| c.is_ascii_digit());
    is_version.then(|| text.to_owned()).ok_or_else(|| "expected a version such as `0.3`".to_owned())
}

impl AnalyseArguments {
    fn filter(&self) -> AnalysisFilter {
        AnalysisFilter {
            server: self.server.clone(),
            family: self.family.map(|family| family.name().to_owned()),
            port: self.port.map(u32::from),
            min_version: self.min_version.clone(),
        }
    }

    fn settings(&self) -> AnalysisSettings {
        let min_runs = usize::try_from(self.min_runs).unwrap_or(usize::MAX);
        AnalysisSettings { min_runs, seed: self.seed }
    }
}

/// Analyses results in a folder, or prints the rules. Returns false if the arguments name no folder.
pub(super) fn analyse_folder(arguments: &AnalyseArguments, ui: &mut Ui) -> Result<bool, CliError> {
    if arguments.rules {
        for line in rules_markdown().lines() {
            writeln!(ui.out, "{line}")?;
        }
        ui.out.flush()?;
        return Ok(true);
    }
    let Some(folder) = &arguments.folder else { return Ok(false) };
    let data = folder::read(folder, arguments.campaign.as_deref()).map_err(unreadable)?;
    write_analysis(data, arguments, ui)?;
    Ok(true)
}

fn unreadable(error: FolderError) -> CliError {
    let hint = match &error {
        FolderError::Read { .. } => None,
        FolderError::Result { .. } => Some("remove the file, or repeat the export"),
        FolderError::Absent { .. } => Some("remove the file, or repeat the export"),
        FolderError::Campaigns { .. } => Some("name one: `towpath collect analyse CAMPAIGN`"),
        FolderError::Empty { .. } => Some(
            "results are files named *.jsonl.zst, in one subfolder for each device: \
             `towpath collect export --results DIR --campaign NAME` writes them",
        ),
    };
    CliError::failed(error, hint.map(str::to_owned))
}

/// Analyses a campaign of a collector.
#[cfg(feature = "collect")]
pub(super) fn analyse(arguments: &AnalyseArguments, ui: &mut Ui) -> Result<(), CliError> {
    use towpath_collect::{Store, run_to_end};
    use towpath_result::Warning;

    let name = arguments.campaign.as_deref().unwrap_or_default();
    let runs = run_to_end(async {
        let store = Store::open(&super::server::store_config(&arguments.store)).await?;
        complete_runs(&store, name, ui).await
    })?;
    if runs.without_facts > 0 {
        ui.warn(&Warning {
            text: format!(
                "{} cannot be read, and do not count",
                format::count(runs.without_facts, "result")
            ),
            hint: None,
        });
    }
    if runs.left_out > 0 {
        ui.warn(&Warning {
            text: format!(
                "{} named the campaign and do not count: no report of their device connects them \
                 with one of its planned runs",
                format::count(runs.left_out, "result")
            ),
            hint: None,
        });
    }
    write_analysis(runs.data, arguments, ui)
}

/// Reads the runs of a campaign, after the facts that results lack are computed.
#[cfg(feature = "collect")]
pub(super) async fn complete_runs(
    store: &towpath_collect::Store,
    name: &str,
    ui: &mut Ui,
) -> Result<towpath_collect::CampaignRuns, towpath_collect::CollectError> {
    use std::ops::ControlFlow;

    let now_us = i64::try_from(towpath_os::clock::unix_us()).unwrap_or(i64::MAX);
    let runs = store.campaign_runs(name, now_us).await?;
    if runs.without_facts == 0 {
        return Ok(runs);
    }
    let total = usize::try_from(runs.without_facts).unwrap_or(usize::MAX);
    drop(runs);
    ui.progress(&format!("reading {}", format::count(total as u64, "result")));
    let on_progress = |done: u64| {
        ui.bar(usize::try_from(done).unwrap_or(usize::MAX), total);
        ControlFlow::Continue(())
    };
    store.compute_facts(name, on_progress).await?;
    store.campaign_runs(name, now_us).await
}

/// Analyses runs, writes the files, and prints the summary.
fn write_analysis(
    data: CampaignData,
    arguments: &AnalyseArguments,
    ui: &mut Ui,
) -> Result<(), CliError> {
    let analysis = Analysis::of(data, &arguments.filter(), arguments.settings());
    if !analysis.runs().iter().any(|run| run.valid) {
        return Err(no_valid_run(&analysis, arguments));
    }
    if let Some(dir) = &arguments.out {
        write_files(&analysis, dir, ui)?;
    }
    if arguments.json {
        let Some(file) = output::file(&analysis, "analysis.json") else { return Ok(()) };
        return Ok(ui.out.write_all(&file.map_err(unwritable)?.bytes)?);
    }
    for line in summary(&analysis) {
        writeln!(ui.out, "{line}")?;
    }
    Ok(())
}

fn no_valid_run(analysis: &Analysis, arguments: &AnalyseArguments) -> CliError {
    let is_filtered = arguments.filter() != AnalysisFilter::default();
    let subject = match analysis.campaign.as_str() {
        "" => "the folder".to_owned(),
        name => format!("the campaign `{name}`"),
    };
    let invalid = analysis.runs().len();
    let what = match (is_filtered, invalid) {
        (true, 0) => format!("no run of {subject} meets the conditions"),
        (false, 0) => format!("{subject} has no runs with a result"),
        _ => format!("{subject} has no valid runs, and {invalid} invalid ones"),
    };
    let hint = if is_filtered {
        "leave out conditions such as `--family`".to_owned()
    } else if arguments.folder.is_some() {
        "the page of a run says why it is not valid: `towpath report RESULT`".to_owned()
    } else {
        format!("`towpath collect campaign show {}` counts the planned runs", analysis.campaign)
    };
    CliError::Unavailable { what, hint }
}

fn write_files(analysis: &Analysis, dir: &Path, ui: &mut Ui) -> Result<(), CliError> {
    let paths = output::write(analysis, dir).map_err(unwritable)?;
    let count = format::count(paths.len() as u64, "file");
    let page = dir.join("index.html");
    ui.progress(&format!("wrote {count}; the page is {}", page.display()));
    Ok(())
}

fn unwritable(error: OutputError) -> CliError {
    match error {
        OutputError::Write { path, source } => CliError::unwritable(&path, source, None),
        error @ (OutputError::Table(_) | OutputError::Row(_) | OutputError::Picture(_)) => {
            CliError::failed(error, None)
        }
    }
}

/// Returns the summary: each figure with its sentence and its main table.
fn summary(analysis: &Analysis) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for figure in &analysis.figures {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        add_figure(figure, &mut lines);
    }
    lines
}

fn add_figure(figure: &AnalysisFigure, lines: &mut Vec<String>) {
    lines.extend(wrap(&figure.title, WIDTH));
    lines.extend(wrap(&figure.sentence, WIDTH));
    if let Some(table) = figure.tables.first().filter(|table| !table.rows.is_empty()) {
        add_table(table, lines);
    }
    for note in &figure.notes {
        lines.extend(wrap(&note.replace('`', ""), WIDTH));
    }
    if lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
}

/// Lays out a table. Columns that do not fit continue below, with the first columns repeated.
fn add_table(table: &DataTable, lines: &mut Vec<String>) {
    let columns: Vec<TextColumn> = (0..table.columns.len())
        .map(|number| TextColumn::new(table, number))
        .filter(|column| !column.is_empty())
        .collect();
    let labels = columns.iter().take_while(|column| column.is_text).take(2).count();
    let (labels, values) = columns.split_at(labels);
    // Each line is indented like the gap between columns.
    let label_width = GAP + labels.iter().map(|column| column.width + GAP).sum::<usize>();
    let mut rest = values;
    loop {
        lines.push(String::new());
        let mut width = label_width;
        let fitting = rest.iter().take_while(|column| {
            width += column.width;
            let fits = width <= WIDTH;
            width += GAP;
            fits
        });
        // One column is always shown; its width is limited.
        let (block, further) = rest.split_at(fitting.count().max(1).min(rest.len()));
        let shown: Vec<&TextColumn> = labels.iter().chain(block).collect();
        for row in 0..=table.rows.len() {
            let cells = shown.iter().map(|column| column.cell(row));
            let line = cells.collect::<Vec<_>>().join(&" ".repeat(GAP));
            lines.push(format!("{}{}", " ".repeat(GAP), line.trim_end()));
        }
        if further.is_empty() {
            break;
        }
        rest = further;
    }
    lines.push(String::new());
}

/// Column of a table as text.
#[derive(Debug)]
struct TextColumn {
    /// Head, then one cell for each row.
    cells: Vec<String>,
    width: usize,
    /// True if it has texts, which are aligned to the left.
    is_text: bool,
}

impl TextColumn {
    fn new(table: &DataTable, number: usize) -> Self {
        let cell = |row: &Vec<Cell>| row.get(number).map(Cell::text).unwrap_or_default();
        let head = table.columns.get(number).cloned().unwrap_or_default();
        let cells = [head].into_iter().chain(table.rows.iter().map(cell));
        let cells: Vec<String> = cells.map(|cell| cut(&cell, MAX_COLUMN)).collect();
        let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or_default();
        let is_text =
            table.rows.iter().all(|row| matches!(row.get(number), Some(Cell::Text(_)) | None));
        Self { cells, width, is_text }
    }

    /// Returns true for a column whose cells are all empty, such as panels without titles.
    fn is_empty(&self) -> bool {
        self.cells.iter().skip(1).all(String::is_empty)
    }

    fn cell(&self, row: usize) -> String {
        let cell = self.cells.get(row).map_or("", String::as_str);
        if self.is_text {
            return pad(cell, self.width);
        }
        let missing = self.width.saturating_sub(cell.chars().count());
        format!("{}{cell}", " ".repeat(missing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> DataTable {
        let columns: Vec<String> =
            ["panel", "curve", "runs", "first quartile", "median", "third quartile"]
                .map(str::to_owned)
                .into();
        let row = |curve: &str| {
            let mut row = vec![Cell::Text(String::new()), Cell::Text(curve.to_owned())];
            row.push(Cell::Count(12_345));
            row.extend([0.5, 1.25, 2.5].map(Cell::Number));
            row
        };
        DataTable { title: String::new(), columns, rows: vec![row("TCP"), row(&"x".repeat(90))] }
    }

    #[test]
    fn a_table_has_at_most_100_columns_and_continues_below_with_its_labels() {
        let mut lines = Vec::new();
        add_table(&table(), &mut lines);
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH), "{lines:#?}");
        assert!(!lines[1].contains("panel"), "an empty column is left out");
        assert!(lines[1].contains("curve") && lines[3].contains('…'), "{lines:#?}");
        let mut wide = table();
        for row in &mut wide.rows {
            row[2] = Cell::Text("y".repeat(30));
            row[3] = Cell::Text("z".repeat(35));
        }
        let mut lines = Vec::new();
        add_table(&wide, &mut lines);
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH), "{lines:#?}");
        assert_eq!(lines.len(), 9, "{lines:#?}");
        assert!(lines[5].contains("curve") && lines[5].contains("median"), "{lines:#?}");
    }

    #[test]
    fn a_version_begins_with_a_number() {
        assert!(version("0.3").is_ok() && version("1").is_ok());
        assert!(version("new").unwrap_err().contains("such as `0.3`"));
    }

    #[test]
    fn a_summary_of_nothing_names_every_figure() {
        let (filter, settings) = (AnalysisFilter::default(), AnalysisSettings::default());
        let analysis = Analysis::of(CampaignData::default(), &filter, settings);
        let lines = summary(&analysis);
        for figure in &analysis.figures {
            assert!(lines.contains(&figure.title), "{}: {lines:#?}", figure.title);
        }
    }
}
