//! Files of an analysis: pictures, tables, the rows behind them, and one page.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use towpath_report::figure::{self, PngError};
use towpath_report::{ParquetWriter, TableError, columns_of};

use crate::analysis::Analysis;
use crate::facts::RunFacts;
use crate::figures::{AnalysisFigure, Cell, DataTable};
use crate::page::PageAddresses;
use crate::population::AbsentRun;

/// Maximum number of mobile rounds in `analysis.json`. `runs.parquet` has all of them.
const MAX_ROUNDS: usize = 500;

/// Reason why a file was not written.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The system refuses to write the file.
    #[error("cannot write `{}`: {source}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A table cannot be written.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A row cannot be written as JSON.
    #[error("cannot write a row: {0}")]
    Row(#[from] serde_json::Error),
    /// A picture cannot be drawn.
    #[error(transparent)]
    Picture(#[from] PngError),
}

/// File of an analysis in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnalysisFile {
    /// Name without a folder, such as `max-delay.svg`.
    pub name: String,
    /// Media type.
    pub media_type: &'static str,
    /// Content.
    pub bytes: Vec<u8>,
}

/// Returns the names of all files.
pub fn file_names(analysis: &Analysis) -> Vec<String> {
    let mut names: Vec<String> =
        ["index.html", "analysis.json", "runs.parquet", "absent.parquet"].map(str::to_owned).into();
    for figure in &analysis.figures {
        let name = |ending: &str| format!("{}.{ending}", figure.id);
        if figure.figure.is_some() {
            names.extend([name("svg"), name("png"), name("points.csv")]);
        }
        if !figure.tables.is_empty() {
            names.push(name("csv"));
        }
    }
    names
}

/// Writes all files into a folder, which is created. Returns their paths.
pub fn write(analysis: &Analysis, dir: &Path) -> Result<Vec<PathBuf>, OutputError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| OutputError::Write { path, source }
    };
    fs::create_dir_all(dir).map_err(failed(dir))?;
    let mut paths = Vec::new();
    for name in file_names(analysis) {
        let Some(file) = file(analysis, &name) else { continue };
        let path = dir.join(&name);
        fs::write(&path, file?.bytes).map_err(failed(&path))?;
        paths.push(path);
    }
    Ok(paths)
}

/// Returns the file with a name; `None` if there is none.
pub fn file(analysis: &Analysis, name: &str) -> Option<Result<AnalysisFile, OutputError>> {
    let content = match name {
        "index.html" => {
            let addresses = PageAddresses { files: "", round: None };
            Ok(("text/html", analysis.page(addresses, None).into_bytes()))
        }
        "analysis.json" => json_text(analysis).map(|bytes| ("application/json", bytes)),
        "runs.parquet" => parquet::<RunFacts>(analysis.runs()),
        "absent.parquet" => parquet::<AbsentRun>(&analysis.population.absent),
        _ => {
            let (id, ending) = name.split_once('.')?;
            figure_file(analysis.figure(id)?, ending)?
        }
    };
    let name = name.to_owned();
    Some(content.map(|(media_type, bytes)| AnalysisFile { name, media_type, bytes }))
}

type Content = Result<(&'static str, Vec<u8>), OutputError>;

fn figure_file(figure: &AnalysisFigure, ending: &str) -> Option<Content> {
    let drawn = figure.figure.as_ref();
    Some(match ending {
        "svg" => Ok(("image/svg+xml", figure::svg(drawn?).into_bytes())),
        "png" => figure::png(drawn?).map(|bytes| ("image/png", bytes)).map_err(Into::into),
        "points.csv" => Ok(("text/csv", figure::csv(drawn?).into_bytes())),
        "csv" if !figure.tables.is_empty() => {
            let tables: Vec<String> = figure.tables.iter().map(DataTable::csv).collect();
            // Tables of one file are separated by an empty line.
            Ok(("text/csv", tables.join("\n").into_bytes()))
        }
        _ => return None,
    })
}

fn parquet<T: Serialize + JsonSchema>(rows: &[T]) -> Content {
    let mut writer = ParquetWriter::new(Vec::new(), columns_of::<T>())?;
    for row in rows {
        writer.add(&serde_json::to_value(row)?)?;
    }
    Ok(("application/vnd.apache.parquet", writer.finish()?))
}

/// Returns figures with their tables as JSON, for programs.
fn json_text(analysis: &Analysis) -> Result<Vec<u8>, OutputError> {
    let figures: Vec<Value> = analysis.figures.iter().map(figure_json).collect();
    let by_id: BTreeMap<&str, &RunFacts> =
        analysis.runs().iter().map(|run| (run.run.as_str(), run)).collect();
    let rounds = analysis.rounds.iter().take(MAX_ROUNDS).map(|round| {
        let runs = round.runs.iter().filter_map(|id| by_id.get(id.as_str()));
        json!({
            "device": round.device,
            "round": round.round,
            "network_lost_s": round.network_lost_s,
            "runs": runs.collect::<Vec<_>>(),
        })
    });
    let value = json!({
        "campaign": analysis.campaign,
        "runs": analysis.runs().len(),
        "min_runs": analysis.settings.min_runs,
        "seed": analysis.settings.seed,
        "figures": figures,
        "rounds": rounds.collect::<Vec<_>>(),
    });
    let mut text = serde_json::to_vec_pretty(&value)?;
    text.push(b'\n');
    Ok(text)
}

fn figure_json(figure: &AnalysisFigure) -> Value {
    let tables = figure.tables.iter().map(|table| {
        let row = |row: &Vec<Cell>| {
            let cells = table.columns.iter().zip(row);
            cells
                .map(|(name, cell)| (name.clone(), cell_json(cell)))
                .collect::<serde_json::Map<_, _>>()
        };
        json!({ "title": table.title, "rows": table.rows.iter().map(row).collect::<Vec<_>>() })
    });
    json!({
        "id": figure.id,
        "title": figure.title,
        "is_drawn": figure.figure.is_some(),
        "comparable": figure.comparable,
        "sentence": figure.sentence,
        "notes": figure.notes,
        "tables": tables.collect::<Vec<_>>(),
        "query": figure.query,
    })
}

fn cell_json(cell: &Cell) -> Value {
    match cell {
        Cell::Text(text) => json!(text),
        Cell::Count(number) => json!(number),
        Cell::Number(value) => json!(value),
        Cell::Estimate(estimate) | Cell::Share(estimate) => {
            let interval = estimate.interval.map(|interval| [interval.low, interval.high]);
            json!({ "value": estimate.value, "interval": interval })
        }
    }
}
