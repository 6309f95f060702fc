//! `towpath compare`: many runs of one scenario, or stored results, compared with each other.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use towpath_linux::interrupt;
use towpath_measure::result::{OrderKind, Warning};
use towpath_measure::scenario::{Scenario, Transport, World};
use towpath_report::{Comparison, StoredRun};

use crate::arguments::{BackendChoice, CaptureArguments, CompareArguments, RunArguments};
use crate::error::CliError;
use crate::fallback;
use crate::files::{self, read_all, results_in};
use crate::load::{is_scenario, load_changed};
use crate::run::{CompletedRuns, measure};
use crate::stacks;
use crate::ui::Ui;

/// Default repetitions of each transport. Fewer than six give no confidence interval.
const DEFAULT_REPEAT: u32 = 10;
/// Repetitions of a deterministic scenario: the second run shows that both are equal.
const DETERMINISTIC_REPEAT: u32 = 2;
/// Width of the tables in columns, which fits every terminal.
const COLUMNS: usize = 100;
/// File name of the page, in the folder of the results.
const PAGE_FILE: &str = "comparison.html";

pub(crate) fn compare(arguments: &CompareArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    match arguments.inputs.as_slice() {
        [one] if is_scenario(one) || !Path::new(one).exists() => measured(arguments, one, ui),
        results => stored(arguments, results, ui),
    }
}

/// Runs a scenario over all requested transports.
fn measured(
    arguments: &CompareArguments,
    scenario: &str,
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    let mut loaded = load_changed(scenario, &arguments.how.changes)?;
    stacks::choose(&mut loaded, &arguments.how.stack)?;
    let transport = transports(arguments);
    let backend = arguments.backend.unwrap_or(BackendChoice::Auto);
    let how = fallback::choose_worlds(&arguments.how, backend, &loaded, &transport, ui)?;
    let wanted = RunArguments {
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
    };
    let Some(CompletedRuns { runs, folder, complete }) = measure(&wanted, ui)? else {
        return Ok(ExitCode::from(2));
    };
    let page = |content: &[u8]| folder.write(PAGE_FILE, content);
    let seed = arguments.how.seed.unwrap_or(loaded.run.seed);
    let page = show(&runs, seed, arguments.json, &page, ui)?;
    ui.progress(&format!("results: {}", folder.path.display()));
    ui.progress(&format!("page:    {}", page.display()));
    let whole = complete && runs.iter().all(|run| run.summary.is_some());
    Ok(if interrupt::is_interrupted() {
        ExitCode::from(130)
    } else {
        ExitCode::from(u8::from(!whole))
    })
}

/// Returns the default number of repetitions. Simulated runs differ only by random draws.
fn default_repeat(scenario: &Scenario, worlds: &[World], ui: &mut Ui) -> u32 {
    if scenario.is_random() || worlds.iter().any(|world| *world != World::Sim) {
        return DEFAULT_REPEAT;
    }
    let text = format!(
        "nothing in `{}` is drawn at random, so {DETERMINISTIC_REPEAT} repetitions in place of {DEFAULT_REPEAT}",
        scenario.name
    );
    let hint = "jitter or loss makes them differ: `--set paths.*.loss=0.1%`; or say `--repeat`";
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
fn stored(
    arguments: &CompareArguments,
    results: &[String],
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    if let Some(option) = ignored_option(arguments) {
        if let Some(name) = results.iter().find(|name| is_scenario(name)) {
            return Err(CliError::Unavailable {
                what: format!("`{name}` is a scenario, and only one can be measured at a time"),
                hint: "run each (`towpath run`), then compare the folders of results".to_owned(),
            });
        }
        return Err(CliError::Unavailable {
            what: format!("stored results are compared as they are, so `{option}` is in vain"),
            hint: "leave it out, or name a scenario to measure".to_owned(),
        });
    }
    let mut paths: Vec<PathBuf> = Vec::new();
    for given in results {
        paths.extend(results_in(Path::new(given))?);
    }
    let runs = read_all(&paths)?;
    let beside = paths.first().and_then(|path| path.parent()).unwrap_or(Path::new(""));
    let folder = arguments.out.as_deref().unwrap_or(beside);
    let folder = files::folder(folder)?;
    let page = |content: &[u8]| files::write_in(&folder, PAGE_FILE, content);
    // Equal results give equal intervals.
    let seed = runs.first().map_or(1, |run| run.meta.seed);
    let page = show(&runs, seed, arguments.json, &page, ui)?;
    ui.progress(&format!("page: {}", page.display()));
    Ok(ExitCode::SUCCESS)
}

/// Returns the first option that only affects new runs, which is an error for stored results.
fn ignored_option(arguments: &CompareArguments) -> Option<&'static str> {
    let given = [
        (!arguments.transport.is_empty(), "--transport"),
        (!arguments.how.world.is_empty(), "--world"),
        (arguments.repeat.is_some(), "--repeat"),
        (arguments.how.seed.is_some(), "--seed"),
        (arguments.order.is_some(), "--order"),
        (arguments.how.wait.is_some(), "--wait"),
        (arguments.how.jobs.is_some(), "--jobs"),
        (!arguments.how.stack.is_empty(), "--stack"),
        (arguments.backend.is_some(), "--backend"),
    ];
    let named = given.into_iter().find_map(|(given, name)| given.then_some(name));
    named.or_else(|| arguments.how.changes.first_option())
}

/// Prints the table and passes the page to `keep`.
fn show(
    runs: &[StoredRun],
    seed: u64,
    as_json: bool,
    keep: &dyn Fn(&[u8]) -> Result<PathBuf, CliError>,
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
    keep(comparison.html().as_bytes())
}
