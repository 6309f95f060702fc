//! `towpath run`: the main job.

use std::io::{BufRead, BufReader, Write};
use std::process::{ExitCode, Stdio};

use serde_json::json;
use towpath_linux::{interrupt, sandbox};
use towpath_measure::result::{Record, Summary};
use towpath_measure::scenario::{Scenario, Transport, World};
use towpath_report::{Run, live_header};

use crate::arguments::RunArguments;
use crate::error::CliError;
use crate::files::{self, ResultFile, ResultFolder};
use crate::inner::{Order, Work};
use crate::live::Live;
use crate::load::load;
use crate::report::{print, write_report};
use crate::ui::Ui;

/// What is run, in which order.
struct Plan {
    transports: Vec<Transport>,
    repeat: u32,
}

pub(crate) fn run(arguments: &RunArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    let scenario = load(&arguments.scenario)?;
    let plan = plan(arguments, &scenario, ui)?;
    let folder = ResultFolder::create(arguments.out.as_deref(), &scenario.name)?;
    interrupt::catch();
    let mut runs = Vec::new();
    // One after the other in turn, so that a change of the machine's mood hits all transports.
    'all: for repeat in 1..=plan.repeat {
        for transport in &plan.transports {
            if interrupt::seen() {
                break 'all;
            }
            match one(arguments, &scenario, (*transport, repeat), &folder, ui)? {
                Some(run) => runs.push(run),
                // Without any record the environment is to blame; the next run would say the same.
                None => break 'all,
            }
        }
    }
    if runs.is_empty() {
        folder.remove_if_empty();
        return Ok(ExitCode::from(2));
    }
    print(&runs, arguments.json, ui)?;
    let report = folder.path.join("report.html");
    write_report(&runs, &report)?;
    ui.progress(&format!("results: {}", folder.path.display()));
    ui.progress(&format!("report:  {}", report.display()));
    let complete = runs.len() == plan.transports.len() * plan.repeat as usize;
    Ok(exit_code(&runs, complete))
}

fn plan(arguments: &RunArguments, scenario: &Scenario, ui: &mut Ui) -> Result<Plan, CliError> {
    if scenario.flows.is_empty() {
        return Err(CliError::Unavailable {
            what: format!("`{}` has no flows, so there is nothing to measure", scenario.name),
            hint: "add `[[flows]]`, or open its network with `towpath lab`".to_owned(),
        });
    }
    let asked = |given: &[Transport]| {
        if given.is_empty() { scenario.run.transports.clone() } else { given.to_vec() }
    };
    let (transports, missing): (Vec<_>, Vec<_>) = asked(&arguments.transport)
        .into_iter()
        .partition(|transport| matches!(transport, Transport::Tcp | Transport::Mptcp));
    let worlds = if arguments.world.is_empty() { &scenario.run.worlds } else { &arguments.world };
    let missing = missing
        .iter()
        .map(Transport::to_string)
        .chain(worlds.iter().filter(|world| **world != World::Emu).map(World::to_string));
    let missing: Vec<String> = missing.map(|name| format!("`{name}`")).collect();
    let possible = !transports.is_empty() && worlds.contains(&World::Emu);
    if !missing.is_empty() {
        let what = format!("this version cannot run {} yet", missing.join(", "));
        let hint = "it runs `tcp` and `mptcp` in the world `emu`".to_owned();
        if !possible {
            return Err(CliError::Unavailable { what, hint });
        }
        ui.warn(&towpath_measure::result::Warning {
            text: format!("{what}; they are left out"),
            hint: Some(hint),
        });
    }
    Ok(Plan { transports, repeat: arguments.repeat.unwrap_or(scenario.run.repeat) })
}

/// One run in processes of its own; `None` when it gave no result (it has said why).
fn one(
    arguments: &RunArguments,
    scenario: &Scenario,
    (transport, repeat): (Transport, u32),
    folder: &ResultFolder,
    ui: &mut Ui,
) -> Result<Option<Run>, CliError> {
    let order = Order {
        scenario: arguments.scenario.clone(),
        seed: arguments.seed,
        backend: arguments.backend,
        work: Work::Run { transport, repeat },
    };
    if !arguments.quiet {
        ui.progress(&format!("\n{} over {transport}, run {repeat}", scenario.name));
        ui.progress(&live_header());
    }
    let mut child = sandbox::spawn(&order.arguments()?, Stdio::piped(), Stdio::piped())
        .map_err(CliError::Spawn)?;
    let mut file = None;
    if let Some(pipe) = child.stdout.take() {
        let mut live = Live::new(transport);
        // The run goes on while this is open.
        let mut lifeline = child.stdin.take();
        for line in BufReader::new(pipe).lines() {
            let text = line.map_err(CliError::Spawn)? + "\n";
            if interrupt::seen() {
                drop(lifeline.take());
            }
            let file: &mut ResultFile = match &mut file {
                Some(file) => file,
                none => none.insert(folder.begin(&format!("{transport}-{repeat}"))?),
            };
            file.add(&text)?;
            let record = serde_json::from_str::<Record>(&text).ok();
            let shown = record.and_then(|record| live.take(&record));
            if let Some(shown) = shown.filter(|_| !arguments.quiet) {
                ui.progress(&shown);
            }
        }
    }
    let status = sandbox::wait(&mut child).map_err(CliError::Spawn)?;
    let Some(file) = file else { return Ok(None) };
    let path = file.finish()?;
    let run = files::read(&path)?;
    if !status.success() && run.summary.is_none() {
        ui.progress(&format!("what was measured is in {}", path.display()));
    }
    Ok(Some(run))
}

/// 0 when all that was asked for was run and every expectation held. That plain TCP does not survive
/// the loss of its path is a result, not a failure.
fn exit_code(runs: &[Run], complete: bool) -> ExitCode {
    let good = |summary: &Summary| {
        let expected = summary.expectations.iter().all(|checked| checked.held == Some(true));
        let began = summary.flows.iter().all(|flow| flow.bytes > 0 || flow.completed);
        expected && began
    };
    let all = runs.iter().all(|run| run.summary.as_ref().is_some_and(good));
    if interrupt::seen() {
        ExitCode::from(130)
    } else if all && complete {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    }
}

/// Summaries, one JSON object a line.
pub(crate) fn print_json(runs: &[Run], ui: &mut Ui) -> Result<(), CliError> {
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
