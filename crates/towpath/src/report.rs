//! `towpath report`, and the output that `towpath run` prints at the end.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use towpath_report::{ResultTable, account_table, csv, html, table, warnings};
use towpath_result::Record;
use towpath_result::store::StoredRun;
use towpath_scenario::{DataDirection, Transport, World};

use crate::error::CliError;
use crate::files::{ResultFolder, folder, read_all, results_in, write_in, write_named};
use crate::ui::Ui;

/// Name of the report in a result folder.
const REPORT_FILE: &str = "report.html";
const SECOND_NS: u64 = 1_000_000_000;
/// Upper bound of columns in `--csv`: the seconds of a week.
const MAX_SECONDS: u64 = 7 * 24 * 3_600;
/// Width of the terminal table in columns, which fits every terminal.
const COLUMNS: usize = 100;

/// Write an HTML report of stored results
#[derive(Debug, Args)]
pub(crate) struct ReportArguments {
    /// Result files (`*.jsonl.zst`, `*.jsonl`), or folders of them; at most 256 MB uncompressed,
    /// unless the environment sets another limit (`TOWPATH_MAX_INPUT=2GB`)
    #[arg(required_unless_present = "csv", value_name = "RESULT")]
    pub(crate) results: Vec<PathBuf>,
    /// File for the report [default: report.html next to the first result]
    #[arg(short, long, alias = "output", value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Print summaries as JSON, one line per run, instead of the table
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
    /// Print CSV instead of the table: seconds (goodput in each, one line per run and direction),
    /// flows, subflow-totals, recoveries, paths, expectations, shares, intervals, subflows, links,
    /// events, messages, probes, sequence, datagrams, latency, counters or interfaces [default:
    /// seconds]
    #[arg(long, conflicts_with = "json", value_name = "TABLE", num_args = 0..=1)]
    #[arg(default_missing_value = "seconds")]
    pub(crate) csv: Option<String>,
    /// Print the capacity account of each link instead of the table
    #[arg(long, conflicts_with_all = ["json", "csv"])]
    pub(crate) account: bool,
}

pub(crate) fn report(arguments: &ReportArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    let (table, extra_input) = csv_table(arguments)?;
    let (mut paths, mut folders) = (Vec::new(), Vec::new());
    for input in extra_input.iter().chain(&arguments.results) {
        let first_index = paths.len();
        paths.extend(results_in(input)?);
        folders.extend(input.is_dir().then_some(first_index..paths.len()));
    }
    if paths.is_empty() {
        return Err(CliError::Unavailable {
            what: "no result was given".to_owned(),
            hint: "give result files or a folder of them: `towpath report RESULTS --csv subflows`"
                .to_owned(),
        });
    }
    let mut runs = read_all(&paths)?;
    // Files keep the order of the command line. Files of a folder are sorted by name, so their runs
    // get the usual order.
    for folder_runs in folders {
        if let Some(folder_runs) = runs.get_mut(folder_runs) {
            folder_runs.sort_by_key(column_order);
        }
    }
    match table {
        None if arguments.account => {
            ui.out.write_all(account_table(&runs, COLUMNS).as_bytes())?;
            ui.out.flush()?;
        }
        None => print(&runs, arguments.json, ui)?,
        Some(CsvSelection::Seconds) => print_goodput_per_second(&runs, ui)?,
        Some(CsvSelection::Named(table)) => ui.out.write_all(csv(&runs, table).as_bytes())?,
    }
    let results_folder = paths.first().and_then(|path| path.parent()).unwrap_or(Path::new(""));
    let output = match &arguments.out {
        Some(output) => {
            write_report(&runs, output)?;
            output.clone()
        }
        None => write_in(&folder(results_folder)?, REPORT_FILE, html(&runs).as_bytes())?,
    };
    ui.progress(&format!("report: {}", output.display()));
    Ok(ExitCode::SUCCESS)
}

/// Returns the order of columns, the same for every world: that of `towpath run`.
fn column_order(run: &StoredRun) -> (u8, Transport, u32) {
    let world = match run.meta.world {
        World::Live => 0,
        World::Emu => 1,
        World::Sim => 2,
    };
    (world, run.meta.transport, run.meta.repeat)
}

/// Table that `--csv` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CsvSelection {
    Seconds,
    Named(ResultTable),
}

/// Interprets the argument of `--csv`: a table, or the first result, as in `--csv results`.
fn csv_table(
    arguments: &ReportArguments,
) -> Result<(Option<CsvSelection>, Option<PathBuf>), CliError> {
    let Some(name) = &arguments.csv else { return Ok((None, None)) };
    if name == "seconds" {
        return Ok((Some(CsvSelection::Seconds), None));
    }
    if let Some(table) = ResultTable::from_name(name) {
        return Ok((Some(CsvSelection::Named(table)), None));
    }
    let path = PathBuf::from(name);
    if path.exists() {
        return Ok((Some(CsvSelection::Seconds), Some(path)));
    }
    Err(unknown_table(name, &["seconds"]))
}

/// Returns the error for an unknown table, which lists `extra_names` and the tables of [`ResultTable`].
pub(crate) fn unknown_table(name: &str, extra_names: &[&'static str]) -> CliError {
    let table_names = ResultTable::ALL.into_iter().map(ResultTable::name);
    let names: Vec<&str> = extra_names.iter().copied().chain(table_names).collect();
    CliError::Unavailable {
        what: format!("`--csv` has no table `{name}`"),
        hint: format!("there are {}", names.join(", ")),
    }
}

/// Prints the table (or JSON) on standard output, warnings on standard error.
pub(crate) fn print(runs: &[StoredRun], as_json: bool, ui: &mut Ui) -> Result<(), CliError> {
    if as_json {
        print_json(runs, ui)?;
    } else {
        let text = table(runs, COLUMNS, ui.colour);
        ui.out.write_all(text.as_bytes())?;
    }
    ui.out.flush()?;
    for warning in warnings(runs) {
        ui.warn(&warning);
    }
    Ok(())
}

/// Prints the summaries as JSON, one object a line.
fn print_json(runs: &[StoredRun], ui: &mut Ui) -> Result<(), CliError> {
    for run in runs {
        let line = json!({
            "run": run.meta.run,
            "file": run.file,
            "transport": run.meta.transport,
            "repeat": run.meta.repeat,
            "summary": run.summary,
        });
        writeln!(ui.out, "{line}")?;
    }
    Ok(())
}

/// Prints a line for each run and direction: the bytes that receivers read each second, in Mbit/s.
fn print_goodput_per_second(runs: &[StoredRun], ui: &mut Ui) -> Result<(), CliError> {
    let mut lines = Vec::new();
    for run in runs {
        // A result may contain any times, so only seconds in which something was read are stored.
        let mut sums: BTreeMap<DataDirection, BTreeMap<u64, u64>> = BTreeMap::new();
        for record in &run.records {
            let Record::Interval(interval) = record else { continue };
            // A period counts for the second in which it began.
            let second = interval.t_ns.saturating_sub(interval.span_ns) / SECOND_NS;
            let sum = sums.entry(interval.direction).or_default().entry(second).or_default();
            *sum = sum.saturating_add(interval.bytes);
        }
        lines.extend(sums.into_iter().map(|(direction, seconds)| (run, direction, seconds)));
    }
    let second_count = |seconds: &BTreeMap<u64, u64>| {
        seconds.last_key_value().map_or(0, |(last_second, _)| last_second.saturating_add(1))
    };
    let columns = lines.iter().map(|(_, _, seconds)| second_count(seconds)).max().unwrap_or(0);
    if columns > MAX_SECONDS {
        return Err(CliError::Unavailable {
            what: format!(
                "a result contains data of second {columns}, but `--csv` prints at most {MAX_SECONDS} columns"
            ),
            hint: "check the times (`t_ns`) in the file: is it a result of towpath?".to_owned(),
        });
    }
    let header: Vec<_> = (0..columns).map(|second| format!("{second}-{} s", second + 1)).collect();
    writeln!(ui.out, "transport,repeat,direction,{}", header.join(","))?;
    for (run, direction, seconds) in lines {
        let direction = if direction == DataDirection::Down { "down" } else { "up" };
        let bytes =
            (0..second_count(&seconds)).map(|second| seconds.get(&second).copied().unwrap_or(0));
        let rates = bytes.map(|bytes| format!("{:.1}", bytes as f64 * 8.0 / 1e6));
        let rates = rates.collect::<Vec<_>>().join(",");
        writeln!(ui.out, "{},{},{direction},{rates}", run.meta.transport, run.meta.repeat)?;
    }
    Ok(())
}

/// Writes the report into the folder of the results.
pub(crate) fn store_report(runs: &[StoredRun], folder: &ResultFolder) -> Result<PathBuf, CliError> {
    folder.write(REPORT_FILE, html(runs).as_bytes())
}

/// Writes the report to the path that the user gave.
pub(crate) fn write_report(runs: &[StoredRun], path: &Path) -> Result<(), CliError> {
    write_named(path, html(runs).as_bytes())
}
