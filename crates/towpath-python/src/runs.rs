//! Results of runs, with their tables and pages.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use towpath_report::{CellValue, Column, ColumnKind, Comparison, ResultTable};
use towpath_result::Record;
use towpath_result::frames::FrameReader;
use towpath_result::input::{self, DEFAULT_RESULT_LIMIT, ReadBudget};
use towpath_result::store::{StoredRun, read_run_within, result_files};
use towpath_scenario::Scenario;
use towpath_study::row::run_metrics;

use crate::error::ErrorClass;
use crate::table::{Table, TableBuilder};

/// Name of the table with a row for each run.
const RUNS_TABLE: &str = "runs";
/// First bytes of a zstd frame (RFC 8878 §3.1.1).
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Content that replaces every trace of a link: metrics do not depend on it.
const ANY_TRACE: &str = "1\n";

/// Results of some runs, in order.
#[pyclass(frozen, module = "towpath._native")]
#[derive(Debug)]
pub(crate) struct Runs {
    runs: Arc<Vec<StoredRun>>,
}

impl Runs {
    pub(crate) fn new(runs: Vec<StoredRun>) -> Self {
        Self { runs: Arc::new(runs) }
    }

    fn get(&self, index: usize) -> PyResult<&StoredRun> {
        self.runs.get(index).ok_or_else(|| PyIndexError::new_err("there is no run of this number"))
    }

    /// Returns the table with a row for each run: what identifies it, and its metrics.
    fn runs_table(&self) -> PyResult<Table> {
        let metrics: Vec<_> = self.runs.iter().map(metrics).collect();
        let names: BTreeSet<&String> = metrics.iter().flat_map(|metrics| metrics.keys()).collect();
        let column = |name: &str, kind| Column { name: name.to_owned(), kind };
        let mut columns: Vec<Column> = ["run", "scenario", "world", "transport"]
            .map(|name| column(name, ColumnKind::Text))
            .into();
        columns.extend(["repeat", "seed"].map(|name| column(name, ColumnKind::Integer)));
        columns.extend(names.into_iter().map(|name| column(name, ColumnKind::Number)));
        let mut table = TableBuilder::new(columns);
        for (run, metrics) in self.runs.iter().zip(&metrics) {
            let meta = &run.meta;
            table.add_cells(|name| match name {
                "run" => Some(CellValue::Text(meta.run.clone())),
                "scenario" => Some(CellValue::Text(meta.scenario.clone())),
                "world" => Some(CellValue::Text(meta.world.to_string())),
                "transport" => Some(CellValue::Text(meta.transport.to_string())),
                "repeat" => Some(CellValue::Integer(meta.repeat.into())),
                // Seeds above the range of the column are absent.
                "seed" => i64::try_from(meta.seed).ok().map(CellValue::Integer),
                metric => metrics.get(metric).copied().map(CellValue::Number),
            });
        }
        table.finish(RUNS_TABLE)
    }
}

/// Returns the metrics of a run by name, in base units.
fn metrics(run: &StoredRun) -> BTreeMap<String, f64> {
    let load = |_: &str| Ok(ANY_TRACE.to_owned());
    let Some(summary) = &run.summary else { return BTreeMap::default() };
    let Ok(scenario) = Scenario::parse("the scenario", &run.meta.scenario_toml, &load) else {
        return BTreeMap::default();
    };
    let mut records = run.records.clone();
    records.push(Record::Summary(Box::new(summary.clone())));
    run_metrics(&records, &scenario, None)
}

#[pymethods]
impl Runs {
    /// Reads result files, and the result files of folders.
    #[staticmethod]
    fn read(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<Self> {
        py.detach(|| read_all(&paths)).map(Self::new)
    }

    /// Reads results from memory: names and contents, compressed or not.
    #[staticmethod]
    fn from_lines(py: Python<'_>, lines: Vec<(String, Vec<u8>)>) -> PyResult<Self> {
        let read = |(name, bytes): &(String, Vec<u8>)| {
            let fail = |reason: String| unreadable(Path::new(name), reason);
            let budget = budget(Path::new(name))?;
            let run = if bytes.starts_with(&ZSTD_MAGIC) {
                let frames = FrameReader::new(bytes.as_slice());
                let frames = frames.map_err(|error| fail(error.to_string()))?;
                read_run_within(BufReader::new(frames), &budget)
            } else {
                read_run_within(bytes.as_slice(), &budget)
            };
            let run = run.map_err(|error| fail(error.to_string()))?;
            Ok(StoredRun::new(run, Some(name.clone())))
        };
        let runs = py.detach(|| lines.iter().map(read).collect::<PyResult<Vec<_>>>())?;
        Ok(Self::new(runs))
    }

    /// Names of the runs, such as `two-links-sim-mptcp-1`.
    #[getter]
    fn labels(&self) -> Vec<&str> {
        self.runs.iter().map(|run| run.meta.run.as_str()).collect()
    }

    /// Names of all tables.
    #[staticmethod]
    fn table_names() -> Vec<&'static str> {
        let tables = ResultTable::ALL.into_iter().filter(|table| table.has_fixed_columns());
        [RUNS_TABLE].into_iter().chain(tables.map(ResultTable::name)).collect()
    }

    /// Returns a table of all runs.
    fn table(&self, py: Python<'_>, name: &str) -> PyResult<Table> {
        if name == RUNS_TABLE {
            return py.detach(|| self.runs_table());
        }
        let table = ResultTable::from_name(name);
        let Some((table, columns)) = table.and_then(|table| Some((table, table.columns()?))) else {
            let names = Self::table_names().join(", ");
            let hint = Some(format!("there are {names}"));
            return Err(
                ErrorClass::Unavailable.exception(format!("there is no table `{name}`"), hint)
            );
        };
        py.detach(|| {
            let mut builder = TableBuilder::new(columns);
            for run in self.runs.iter() {
                table.rows(&run.meta.run, run).iter().for_each(|row| builder.add(row));
            }
            builder.finish(name)
        })
    }

    /// Returns the conditions of a run as JSON.
    fn meta(&self, index: usize) -> PyResult<String> {
        json(&self.get(index)?.meta)
    }

    /// Returns the summary of a run as JSON; `None` if the run was interrupted.
    fn summary(&self, index: usize) -> PyResult<Option<String>> {
        self.get(index)?.summary.as_ref().map(json).transpose()
    }

    /// Returns the stored form of a run, line by line.
    fn lines(&self, index: usize) -> PyResult<Vec<String>> {
        Ok(self.get(index)?.lines().collect())
    }

    /// Returns the summary of all runs for a terminal.
    #[pyo3(signature = (width = 100))]
    fn text(&self, width: usize) -> String {
        towpath_report::table(&self.runs, width, false)
    }

    /// Returns the report of all runs as one page.
    fn html(&self, py: Python<'_>) -> String {
        py.detach(|| towpath_report::html(&self.runs))
    }

    /// Returns reasons to doubt the results, with hints.
    fn warnings(&self) -> Vec<(String, Option<String>)> {
        let warnings = towpath_report::warnings(&self.runs).into_iter();
        warnings.map(|warning| (warning.text, warning.hint)).collect()
    }

    /// Returns the comparison of the transports as JSON.
    #[pyo3(signature = (seed = 1))]
    fn comparison_json(&self, py: Python<'_>, seed: u64) -> String {
        py.detach(|| Comparison::of(&self.runs, seed).json().to_string())
    }

    /// Returns the comparison of the transports for a terminal.
    #[pyo3(signature = (seed = 1, width = 100))]
    fn comparison_text(&self, py: Python<'_>, seed: u64, width: usize) -> String {
        py.detach(|| Comparison::of(&self.runs, seed).table(width, false))
    }

    /// Returns the comparison of the transports as one page.
    #[pyo3(signature = (seed = 1))]
    fn comparison_html(&self, py: Python<'_>, seed: u64) -> String {
        py.detach(|| Comparison::of(&self.runs, seed).html())
    }

    /// Returns the runs of these numbers.
    fn select(&self, indices: Vec<usize>) -> PyResult<Self> {
        let runs = indices.into_iter().map(|index| self.get(index).cloned());
        runs.collect::<PyResult<Vec<_>>>().map(Self::new)
    }

    /// Returns the runs of both.
    fn joined(&self, other: PyRef<'_, Self>) -> Self {
        Self::new(self.runs.iter().chain(other.runs.iter()).cloned().collect())
    }

    fn __len__(&self) -> usize {
        self.runs.len()
    }
}

fn json(value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| ErrorClass::Read.exception(error, None))
}

fn unreadable(path: &Path, reason: String) -> PyErr {
    ErrorClass::Read.exception(format!("cannot read `{}`: {reason}", path.display()), None)
}

fn io_error(path: &Path, error: &io::Error) -> PyErr {
    unreadable(path, towpath_scenario::unreadable(error))
}

fn budget(path: &Path) -> PyResult<ReadBudget> {
    ReadBudget::new(DEFAULT_RESULT_LIMIT).map_err(|error| io_error(path, &error))
}

fn read_all(paths: &[PathBuf]) -> PyResult<Vec<StoredRun>> {
    let first = paths.first().map_or(Path::new(""), PathBuf::as_path);
    let (input_budget, memory_budget) = (budget(first)?, budget(first)?);
    let mut runs = Vec::new();
    for path in paths {
        let files = if path.is_dir() {
            let files = result_files(path).map_err(|error| io_error(path, &error))?;
            if files.is_empty() {
                return Err(unreadable(path, "the folder has no result".to_owned()));
            }
            files
        } else {
            vec![path.clone()]
        };
        for file in files {
            let run = StoredRun::read(&file, &input_budget, &memory_budget);
            runs.push(run.map_err(|error| unreadable(&file, error.to_string()))?);
        }
    }
    Ok(runs)
}

/// Analyses a capture, with a capture of the other host if there is one. `top` is the number of
/// connections, largest first.
#[pyfunction]
#[pyo3(signature = (path, other, top))]
pub(crate) fn analyse_capture(
    py: Python<'_>,
    path: PathBuf,
    other: Option<PathBuf>,
    top: usize,
) -> PyResult<Runs> {
    let open = |path: &Path| input::open(path).map_err(|error| io_error(path, &error));
    py.detach(|| {
        let mut capture = towpath_trace::read(open(&path)?, None)
            .map_err(|error| unreadable(&path, error.to_string()))?;
        if let Some(other) = &other {
            let clocks = capture.add_delays(open(&path)?, open(other)?);
            let clocks = clocks.map_err(|error| unreadable(other, error.to_string()))?;
            if clocks.is_none() {
                let what = "the two captures do not have the same packets in both directions";
                let hint =
                    "both hosts must be captured at the same time, without translated addresses";
                return Err(ErrorClass::Unavailable.exception(what, Some(hint.to_owned())));
            }
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Runs::new(vec![capture.run(&name, top)]))
    })
}
