//! `towpath sweep`: many runs of a plan, stored as Parquet.

mod jobs;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use towpath_os::interrupt;
use towpath_result::Warning;
use towpath_result::format;
use towpath_result::input;
use towpath_scenario::World;
use towpath_scenario::document::nearest;
use towpath_study::plan::{EXAMPLE, Plan};
use towpath_study::row::RunRow;
use towpath_study::runs::RunSelection;
use towpath_study::sweep::{
    CompactReport, DEFAULT_ROWS_PER_FILE, MAX_CHUNK_RUNS, Shard, StoredRows, Sweep, SweepError,
    SweepLocation, SweepProgress, SweepSpec,
};
use towpath_study::{summary, table};

use crate::error::CliError;
use crate::files;
use crate::options::world;
use crate::study_runner::StudyRunner;
use crate::ui::Ui;
use crate::upload::{UploadArguments, Uploader};

use jobs::{CheckedSweep, JobArguments};

/// File name of the summary page, in the folder of the rows.
const PAGE_FILE: &str = "sweep.html";

/// Run every point of a plan with every seed, on all processors, and store the metrics
///
/// The same command resumes an interrupted sweep. Several processes, also on several computers, can
/// share the folder or a part of an S3-compatible object store.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct SweepArguments {
    #[command(subcommand)]
    action: Option<SweepAction>,
    /// Plan, such as `plan.toml`; `towpath schema plan-keys` prints its keys
    #[arg(required = true)]
    plan: Option<PathBuf>,
    /// Folder for the rows, or `s3://BUCKET/PREFIX` [default: towpath-sweeps/PLAN-WORLD]
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// World: sim (virtual time, towpath's stack) or emu (real kernels) [default: the plan's first]
    #[arg(short = 'W', long, value_parser = world)]
    world: Option<World>,
    /// Run only the points and seeds that the plan marks as quick
    #[arg(long)]
    quick: bool,
    /// Number of seeds for each point [default: the plan's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    seeds: Option<u32>,
    /// Number of runs in parallel [default: the number of processors; 1 for emulated runs]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    jobs: Option<u32>,
    /// Run the first, second, … of N shares, such as 2/4; then help with the other shares
    #[arg(long, value_name = "I/N", value_parser = shard)]
    shard: Option<Shard>,
    /// Number of runs per file [default: a fortieth of all, from 10 to 1000; 1 for emulated runs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CHUNK_RUNS)))]
    chunk: Option<u32>,
    #[command(flatten)]
    script: JobArguments,
    #[command(flatten)]
    shown: TableArguments,
    #[command(flatten)]
    upload: UploadArguments,
}

#[derive(Debug, Args)]
struct TableArguments {
    /// Metrics to show in the table, such as goodput,stall.longest
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    metrics: Vec<String>,
    /// Print rows as JSON, one line per run, instead of the table
    #[arg(short = 'J', long)]
    json: bool,
    /// Also write the rows as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum SweepAction {
    /// Print a plan to start from
    Example,
    /// Print the progress of a sweep, and its rows so far
    Status {
        /// Folder of the sweep, or `s3://BUCKET/PREFIX`
        folder: PathBuf,
        #[command(flatten)]
        shown: TableArguments,
    },
    /// Repeat some runs, and check that their rows are the same
    Verify {
        /// Folder of the sweep, or `s3://BUCKET/PREFIX`
        folder: PathBuf,
        /// Number of runs, drawn at random
        #[arg(long, visible_alias = "sample", value_name = "N", default_value_t = 10)]
        runs: usize,
        /// Seed of the draw
        #[arg(long, value_name = "N", default_value_t = 1)]
        seed: u64,
        /// Runs at once [default: the number of processors]
        #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
        jobs: Option<u32>,
    },
    /// Write all rows of a finished sweep into few Parquet files, rows-000000.parquet and so on
    Compact {
        /// Folder of the sweep, or `s3://BUCKET/PREFIX`
        folder: PathBuf,
        /// Maximum number of rows in a file
        #[arg(long, value_name = "N", default_value_t = DEFAULT_ROWS_PER_FILE, value_parser = clap::value_parser!(u32).range(1..))]
        rows_per_file: u32,
    },
}

/// Maximum number of runs of a sweep of which each worker reads all rows at its end. Of a larger
/// sweep, only `status` reads them: a thousand workers would do it a thousand times.
const MAX_WORKER_ROWS: usize = 100_000;

fn shard(text: &str) -> Result<Shard, String> {
    let shard = text.split_once('/').and_then(|(number, count)| {
        Some(Shard { number: number.trim().parse().ok()?, of: count.trim().parse().ok()? })
    });
    let is_valid = |shard: &Shard| (1..=shard.of).contains(&shard.number);
    shard.filter(is_valid).ok_or_else(|| "expected one of several from 1, such as 2/4".to_owned())
}

pub(crate) fn sweep(arguments: &SweepArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    match (&arguments.action, &arguments.plan) {
        (Some(SweepAction::Example), _) => {
            ui.out.write_all(EXAMPLE.as_bytes())?;
            Ok(ExitCode::SUCCESS)
        }
        (Some(SweepAction::Status { folder, shown }), _) => status(folder, shown, ui),
        (Some(SweepAction::Verify { folder, runs, seed, jobs }), _) => {
            verify(folder, (*runs, *seed), *jobs, ui)
        }
        (Some(SweepAction::Compact { folder, rows_per_file }), _) => {
            compact(folder, *rows_per_file as usize, ui)
        }
        (None, Some(plan)) => run(arguments, plan, ui),
        // Unreachable: without an action, clap requires the plan.
        (None, None) => Ok(ExitCode::from(2)),
    }
}

fn run(arguments: &SweepArguments, path: &Path, ui: &mut Ui) -> Result<ExitCode, CliError> {
    let uploader = Uploader::prepare(&arguments.upload, ui)?;
    let unreadable = |source| CliError::Read { path: path.to_owned(), source };
    let text = input::read_text(path).map_err(unreadable)?;
    let load = input::sibling_files(path.parent().unwrap_or(Path::new("")));
    let name = path.to_string_lossy();
    let plan = Plan::parse(&name, &text, &load)?;
    let world = choose_world(&plan, arguments.world)?;
    let selection = RunSelection { world, quick: arguments.quick, seeds: arguments.seeds };
    let spec = SweepSpec::new((&name, &text), selection, arguments.chunk, &load)?;
    let folder = arguments.out.clone().unwrap_or_else(|| default_folder(&plan.name, selection));
    if let Some(system) = arguments.script.print {
        let (text, folder, plan) = (text.as_str(), folder.as_path(), plan.name.as_str());
        let checked = CheckedSweep { path, text, plan, spec: &spec, selection, folder };
        return jobs::print(system, arguments, checked, ui);
    }
    let location = SweepLocation::parse(&folder);
    if let SweepLocation::Folder(folder) = &location {
        // The sweep creates its own files without following links; this checks the folder's path.
        files::folder(folder)?;
    }
    let sweep = Sweep::begin(location, spec)?;
    interrupt::catch();
    let runner = StudyRunner::new(sweep.traces()).with_uploader(uploader.as_ref(), &plan.name);
    let threads = StudyRunner::threads(world, arguments.jobs);
    let shard = arguments.shard.unwrap_or(Shard::WHOLE);
    let report = sweep.work(shard, threads, &|run| runner.execute(run), &mut |done, total| {
        if runner.is_stopped() {
            return false;
        }
        ui.bar(done, total);
        true
    })?;
    sweep.remove_leftovers();
    for path in &report.replaced {
        let text = format!("`{}` was damaged, and its runs were repeated", path.display());
        ui.warn(&Warning { text, hint: None });
    }
    let is_successful = show_end(&sweep, arguments, &folder, ui)?;
    runner.send_queued(ui);
    if runner.is_stopped() && !is_successful {
        let status = sweep.progress()?;
        ui.progress(&format!("{} of {} runs are done", status.done, status.runs));
    }
    Ok(if interrupt::is_interrupted() {
        ui.warn(&Warning {
            text: "the sweep was stopped".to_owned(),
            hint: Some("repeat the command to run the missing ones".to_owned()),
        });
        ExitCode::from(130)
    } else if runner.has_failed() {
        ExitCode::from(2)
    } else {
        ExitCode::from(u8::from(!is_successful))
    })
}

/// Shows the rows, and returns true if the command is successful.
fn show_end(
    sweep: &Sweep,
    arguments: &SweepArguments,
    folder: &Path,
    ui: &mut Ui,
) -> Result<bool, CliError> {
    let is_worker = arguments.shard.is_some();
    if is_worker && sweep.run_count() > MAX_WORKER_ROWS {
        let status = sweep.progress()?;
        ui.progress(&format!("rows of {} of {} runs are stored", status.done, status.runs));
        return Ok(status.done == status.runs);
    }
    let Some(stored) = read_rows(sweep, ui)? else {
        let status = sweep.progress()?;
        return Ok(status.done == status.runs);
    };
    let all_done = print_rows(sweep, &stored, &arguments.shown, ui)?;
    let page = write_page(sweep, &stored.rows, folder, &arguments.shown.metrics)?;
    ui.progress(&format!("rows: {}", folder.display()));
    ui.progress(&format!("page: {}", page.display()));
    // One failed run must not fail every worker. `status` reports it.
    Ok(all_done || (is_worker && stored.rows.len() == sweep.run_count()))
}

fn choose_world(plan: &Plan, requested: Option<World>) -> Result<World, CliError> {
    let default_world = plan.worlds.first().copied().unwrap_or(World::Sim);
    let world = requested.unwrap_or(default_world);
    if plan.worlds.contains(&world) {
        return Ok(world);
    }
    let names: Vec<_> = plan.worlds.iter().map(|world| format!("`{world}`")).collect();
    Err(CliError::Unavailable {
        what: format!("the plan `{}` is not run in the world `{world}`", plan.name),
        hint: format!("its `worlds` are {}", names.join(", ")),
    })
}

/// Returns the default folder.
///
/// The same selection gives the same folder, so that a repeated command continues its sweep.
fn default_folder(plan: &str, RunSelection { world, quick, seeds }: RunSelection) -> PathBuf {
    let quick = if quick { "-quick" } else { "" };
    let seeds = seeds.map_or(String::new(), |seeds| format!("-{seeds}-seeds"));
    Path::new("towpath-sweeps").join(format!("{plan}-{world}{quick}{seeds}"))
}

/// Prints the stored rows. Returns true if all runs are done and none failed.
fn print_rows(
    sweep: &Sweep,
    StoredRows { rows, damaged }: &StoredRows,
    shown: &TableArguments,
    ui: &mut Ui,
) -> Result<bool, CliError> {
    if let Some(path) = &shown.csv {
        files::write_named(path, table::csv(rows).as_bytes())?;
    }
    if shown.json {
        for row in rows {
            let line = serde_json::to_string(row).map_err(|e| CliError::Internal(e.to_string()))?;
            writeln!(ui.out, "{line}")?;
        }
    } else {
        ui.out.write_all(summary::table(rows, sweep.plan(), &shown.metrics).as_bytes())?;
    }
    ui.out.flush()?;
    for path in damaged {
        ui.warn(&Warning {
            text: format!("`{}` is damaged, and its runs count as missing", path.display()),
            hint: Some("repeat `towpath sweep PLAN` with the same `--out`".to_owned()),
        });
    }
    warn_missing_metrics(rows, &shown.metrics, ui);
    let failed_runs: Vec<&RunRow> = rows.iter().filter(|row| row.error.is_some()).collect();
    if let [first_failed, ..] = failed_runs.as_slice() {
        let reason = first_failed.error.as_deref().unwrap_or_default();
        ui.warn(&Warning {
            text: format!(
                "{} of {} runs failed; the first, `{}` with seed {}: {reason}",
                failed_runs.len(),
                rows.len(),
                first_failed.variant,
                first_failed.seed
            ),
            hint: Some("`--json` prints the `error` of each".to_owned()),
        });
    }
    Ok(failed_runs.is_empty() && rows.len() == sweep.run_count())
}

/// Reads all rows. Prints a warning and returns `None` if they need too much memory.
fn read_rows(sweep: &Sweep, ui: &mut Ui) -> Result<Option<StoredRows>, CliError> {
    let read = sweep.read();
    if let Err(error @ SweepError::TooMuch(..)) = &read {
        ui.warn(&Warning { text: error.to_string(), hint: error.hint() });
        return Ok(None);
    }
    Ok(Some(read?))
}

/// Writes the summary page next to the rows.
fn write_page(
    sweep: &Sweep,
    rows: &[RunRow],
    place: &Path,
    metrics: &[String],
) -> Result<PathBuf, CliError> {
    let page = summary::page(rows, sweep.plan(), sweep.world(), metrics);
    match SweepLocation::parse(place) {
        SweepLocation::Folder(folder) => {
            files::write_in(&files::folder(&folder)?, PAGE_FILE, page.as_bytes())
        }
        SweepLocation::Objects(_) => {
            sweep.write_file(PAGE_FILE, page.as_bytes())?;
            Ok(place.join(PAGE_FILE))
        }
    }
}

fn status(folder: &Path, shown: &TableArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    let sweep = Sweep::open(SweepLocation::parse(folder))?;
    let listed = sweep.progress()?;
    let (progress, all_done, page) = if let Some(stored) = read_rows(&sweep, ui)? {
        let all_done = print_rows(&sweep, &stored, shown, ui)?;
        // A user with read access only still gets the progress of the sweep.
        let page = write_page(&sweep, &stored.rows, folder, &shown.metrics).ok();
        // A listing does not show every damage.
        let progress = SweepProgress {
            done: listed.done.min(stored.rows.len()),
            chunks_done: listed.chunks_done.min(listed.chunks - stored.damaged.len()),
            ..listed
        };
        (progress, all_done, page)
    } else {
        (listed, listed.done == listed.runs, None)
    };
    let plan = &sweep.plan().name;
    ui.progress(&format!(
        "{plan} in {}: {} of {} runs are done, in {} of {} files",
        sweep.world(),
        progress.done,
        progress.runs,
        progress.chunks_done,
        progress.chunks
    ));
    if let Some(estimate) = describe_estimate(&progress) {
        ui.progress(&estimate);
    }
    if let Some(page) = page {
        ui.progress(&format!("page: {}", page.display()));
    }
    Ok(ExitCode::from(u8::from(!all_done)))
}

/// Describes the remaining time of a sweep. `None` if nothing remains, or if the files say nothing.
fn describe_estimate(progress: &SweepProgress) -> Option<String> {
    let runs_left = progress.runs.checked_sub(progress.done).filter(|left| *left > 0)?;
    let time_left = progress.time_left().filter(|left| *left > Duration::ZERO)?;
    Some(format!(
        "estimate: {} for the remaining {}, at {} per file as before",
        describe_long(time_left),
        format::count(runs_left as u64, "run"),
        describe_long(progress.time_per_chunk?)
    ))
}

/// Describes a time that may be hours.
fn describe_long(span: Duration) -> String {
    match span.as_secs() / 60 {
        0..=1 => format::time(span),
        minutes @ 2..=119 => format!("{minutes} min"),
        minutes => format!("{} h", minutes / 60),
    }
}

fn compact(folder: &Path, rows_per_file: usize, ui: &mut Ui) -> Result<ExitCode, CliError> {
    let sweep = Sweep::open(SweepLocation::parse(folder))?;
    let CompactReport { files, rows } = sweep.compact(rows_per_file)?;
    for path in &files {
        writeln!(ui.out, "{}", path.display())?;
    }
    ui.progress(&format!(
        "{} in {}",
        format::count(rows as u64, "row"),
        format::count(files.len() as u64, "file")
    ));
    Ok(ExitCode::SUCCESS)
}

fn verify(
    folder: &Path,
    (runs, seed): (usize, u64),
    jobs: Option<u32>,
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    let sweep = Sweep::open(SweepLocation::parse(folder))?;
    if sweep.world() != World::Sim {
        return Err(CliError::Unavailable {
            what: "emulated runs vary, so their rows cannot be repeated exactly".to_owned(),
            hint: "compare medians: `towpath sweep status DIR`".to_owned(),
        });
    }
    interrupt::catch();
    let runner = StudyRunner::new(sweep.traces());
    let threads = StudyRunner::threads(World::Sim, jobs);
    let mut checked_runs = 0;
    let execute = |run: &_| runner.execute(run);
    let differences = sweep.verify((runs, seed), threads, &execute, &mut |done, total| {
        checked_runs = done;
        ui.bar(done, total);
        !runner.is_stopped()
    })?;
    if interrupt::is_interrupted() {
        return Ok(ExitCode::from(130));
    }
    for (old, new) in &differences {
        writeln!(
            ui.out,
            "{} `{}` with seed {}: {}",
            old.key,
            old.variant,
            old.seed,
            describe_change(old, new)
        )?;
    }
    writeln!(
        ui.out,
        "{} of {checked_runs} runs gave the same row again",
        checked_runs - differences.len()
    )?;
    Ok(ExitCode::from(u8::from(!differences.is_empty())))
}

/// Describes the first difference between two rows of one run.
fn describe_change(old: &RunRow, new: &RunRow) -> String {
    if old.error != new.error {
        let text = |row: &RunRow| row.error.clone().unwrap_or_else(|| "no error".to_owned());
        return format!("{} was {}", text(new), text(old));
    }
    let mut names: Vec<_> = old.metrics.keys().chain(new.metrics.keys()).collect();
    names.sort();
    names.dedup();
    names.retain(|name| old.metrics.get(*name) != new.metrics.get(*name));
    match names.as_slice() {
        [] => "parameters differ".to_owned(),
        [name, ..] => {
            let value = |row: &RunRow| {
                row.metrics.get(*name).map_or_else(|| "nothing".to_owned(), ToString::to_string)
            };
            format!("`{name}` is {}, was {} ({} metrics)", value(new), value(old), names.len())
        }
    }
}
/// Warns about metrics that no row has.
fn warn_missing_metrics(rows: &[RunRow], requested: &[String], ui: &mut Ui) {
    let known_metrics: BTreeSet<&str> =
        rows.iter().flat_map(|row| row.metrics.keys().map(String::as_str)).collect();
    if known_metrics.is_empty() {
        return;
    }
    for figure in requested.iter().filter(|figure| !known_metrics.contains(figure.as_str())) {
        let hint = match nearest(figure, known_metrics.iter().copied()) {
            Some(suggestion) => format!("did you mean `{suggestion}`?"),
            None => format!(
                "they have {}",
                known_metrics.iter().copied().collect::<Vec<_>>().join(", ")
            ),
        };
        let text = format!("no row has a metric `{figure}`");
        ui.warn(&Warning { text, hint: Some(hint) });
    }
}
