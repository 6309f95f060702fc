//! `towpath compare`: many runs of one scenario, or stored results, compared with each other.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use towpath_os::interrupt;
use towpath_report::Comparison;
use towpath_result::store::StoredRun;
use towpath_result::{OrderKind, Warning};
use towpath_scenario::{Scenario, Transport, World};

use crate::error::CliError;
use crate::fallback;
use crate::files::{self, read_all, results_in};
use crate::load::{is_scenario, load_changed};
use crate::options::{BackendChoice, CaptureArguments, RunOptions, order, transport};
use crate::run::{CompletedRuns, RunArguments, measure};
use crate::stacks;
use crate::ui::Ui;
use crate::upload::{UploadArguments, Uploader};

/// Default repetitions of each transport. Fewer than six give no confidence interval.
const DEFAULT_REPEAT: u32 = 10;
/// Repetitions of a deterministic scenario: the second run shows that both are equal.
const DETERMINISTIC_REPEAT: u32 = 2;
/// Width of the tables in columns, which fits every terminal.
const COLUMNS: usize = 100;
/// File name of the page, in the folder of the results.
const PAGE_FILE: &str = "comparison.html";

/// Compare transports by repeated runs of a scenario, or by stored results
///
/// Prints medians with quartiles and 95 % confidence intervals, then the ratio of each metric
/// for each pair of transports. Also writes this comparison as an HTML page.
#[derive(Debug, Args)]
pub(crate) struct CompareArguments {
    /// Scenario (file or name), or result files (`*.jsonl.zst`, `*.jsonl`) or folders of them
    #[arg(required = true, value_name = "SCENARIO|RESULT")]
    pub(crate) inputs: Vec<String>,
    /// Transports [default: all that the world supports]
    #[arg(short = 'T', long, value_delimiter = ',', value_name = "LIST", value_parser = transport)]
    pub(crate) transport: Vec<Transport>,
    #[command(flatten)]
    pub(crate) how: RunOptions,
    /// Repetitions of each transport [default: 10]
    #[arg(short = 'r', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeat: Option<u32>,
    /// Order of the transports in each repetition: random (from the seed) or fixed [default:
    /// random]; not for simulated runs
    #[arg(long, value_name = "ORDER", value_parser = order)]
    pub(crate) order: Option<OrderKind>,
    /// Folder for results and page [default: towpath-results/SCENARIO/NUMBER; for stored results,
    /// the folder of the first]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Interface between the emulator and the kernel [default: auto]
    #[arg(long, value_enum)]
    pub(crate) backend: Option<BackendChoice>,
    /// Print the comparison as JSON instead of the tables
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
    /// Print no interval lines
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) upload: UploadArguments,
}

pub(crate) fn compare(arguments: &CompareArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    match arguments.inputs.as_slice() {
        [input] if is_scenario(input) || !Path::new(input).exists() => {
            compare_scenario(arguments, input, ui)
        }
        results => compare_results(arguments, results, ui),
    }
}

/// Runs a scenario over all requested transports.
fn compare_scenario(
    arguments: &CompareArguments,
    scenario: &str,
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    let uploader = Uploader::prepare(&arguments.upload, ui)?;
    let mut loaded = load_changed(scenario, &arguments.how.changes)?;
    stacks::choose(&mut loaded, &arguments.how.stack)?;
    let transport = transports(arguments);
    let backend = arguments.backend.unwrap_or(BackendChoice::Auto);
    let how = fallback::choose_worlds(&arguments.how, backend, &loaded, &transport, ui)?;
    let run_arguments = RunArguments {
        scenario: scenario.to_owned(),
        transport,
        repeat: Some(arguments.repeat.unwrap_or_else(|| default_repeat(&loaded, &how.world, ui))),
        how,
        order: Some(arguments.order.unwrap_or(OrderKind::Random)),
        capture: CaptureArguments { pcap: None, snap: None, pictures: false },
        out: arguments.out.clone(),
        backend,
        json: arguments.json,
        quiet: arguments.quiet,
        explain: false,
        upload: UploadArguments::default(),
    };
    let Some(CompletedRuns { runs, folder, complete, .. }) =
        measure(&run_arguments, uploader.as_ref(), ui)?
    else {
        return Ok(ExitCode::from(2));
    };
    let write_page = |content: &[u8]| folder.write(PAGE_FILE, content);
    let seed = arguments.how.seed.unwrap_or(loaded.run.seed);
    let page = show(&runs, seed, arguments.json, &write_page, ui)?;
    ui.progress(&format!("results: {}", folder.path.display()));
    ui.progress(&format!("page:    {}", page.display()));
    if let Some(uploader) = uploader {
        uploader.upload_runs(&runs, &folder, ui);
    }
    let all_complete = complete && runs.iter().all(|run| run.summary.is_some());
    Ok(if interrupt::is_interrupted() {
        ExitCode::from(130)
    } else {
        ExitCode::from(u8::from(!all_complete))
    })
}

/// Returns the default number of repetitions. Simulated runs differ only by random draws.
fn default_repeat(scenario: &Scenario, worlds: &[World], ui: &mut Ui) -> u32 {
    if scenario.is_random() || worlds.iter().any(|world| *world != World::Sim) {
        return DEFAULT_REPEAT;
    }
    let text = format!(
        "nothing in `{}` is random, so {DETERMINISTIC_REPEAT} repetitions instead of {DEFAULT_REPEAT}",
        scenario.name
    );
    let hint = "add jitter or loss to vary them (`--set paths.*.loss=0.1%`), or use `--repeat`";
    ui.warn(&Warning { text, hint: Some(hint.to_owned()) });
    DETERMINISTIC_REPEAT
}

/// Returns the requested transports, or all four.
fn transports(arguments: &CompareArguments) -> Vec<Transport> {
    if !arguments.transport.is_empty() {
        return arguments.transport.clone();
    }
    vec![Transport::Tcp, Transport::Mptcp, Transport::Quic, Transport::Mpquic]
}

/// Compares results that earlier calls have stored.
fn compare_results(
    arguments: &CompareArguments,
    results: &[String],
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    if let Some(option) = ignored_option(arguments) {
        if let Some(name) = results.iter().find(|name| is_scenario(name)) {
            return Err(CliError::Unavailable {
                what: format!(
                    "`{name}` is a second scenario, but only one can be measured at a time"
                ),
                hint: "run each one (`towpath run`), then compare the result folders".to_owned(),
            });
        }
        return Err(CliError::Unavailable {
            what: format!(
                "stored results are compared as they are, so `{option}` cannot be used with them"
            ),
            hint: "omit it, or name a scenario to measure".to_owned(),
        });
    }
    let mut paths: Vec<PathBuf> = Vec::new();
    for input in results {
        paths.extend(results_in(Path::new(input))?);
    }
    let runs = read_all(&paths)?;
    let results_folder = paths.first().and_then(|path| path.parent()).unwrap_or(Path::new(""));
    let folder = arguments.out.as_deref().unwrap_or(results_folder);
    let folder = files::folder(folder)?;
    let write_page = |content: &[u8]| files::write_in(&folder, PAGE_FILE, content);
    // Equal results give equal intervals.
    let seed = runs.first().map_or(1, |run| run.meta.seed);
    let page = show(&runs, seed, arguments.json, &write_page, ui)?;
    ui.progress(&format!("page: {}", page.display()));
    Ok(ExitCode::SUCCESS)
}

/// Returns the first option that only affects new runs, which is an error for stored results.
fn ignored_option(arguments: &CompareArguments) -> Option<&'static str> {
    let options = [
        (!arguments.transport.is_empty(), "--transport"),
        (!arguments.how.world.is_empty(), "--world"),
        (arguments.repeat.is_some(), "--repeat"),
        (arguments.how.seed.is_some(), "--seed"),
        (arguments.order.is_some(), "--order"),
        (arguments.how.wait.is_some(), "--wait"),
        (arguments.how.jobs.is_some(), "--jobs"),
        (!arguments.how.stack.is_empty(), "--stack"),
        (arguments.backend.is_some(), "--backend"),
        (arguments.upload.to.is_some(), "--to"),
    ];
    let option = options.into_iter().find_map(|(is_given, name)| is_given.then_some(name));
    option.or_else(|| arguments.how.changes.first_option())
}

/// Prints the comparison and passes the HTML page to `write_page`.
fn show(
    runs: &[StoredRun],
    seed: u64,
    as_json: bool,
    write_page: &dyn Fn(&[u8]) -> Result<PathBuf, CliError>,
    ui: &mut Ui,
) -> Result<PathBuf, CliError> {
    let comparison = Comparison::of(runs, seed);
    if as_json {
        writeln!(ui.out, "{}", comparison.json())?;
    } else {
        let text = comparison.table(COLUMNS, ui.colour);
        ui.out.write_all(text.as_bytes())?;
    }
    ui.out.flush()?;
    for warning in comparison.warnings() {
        ui.warn(&warning);
    }
    write_page(comparison.html().as_bytes())
}
