//! `towpath run`: runs a scenario over each transport, the main job.

use std::io::{BufRead, BufReader, Write};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use serde_json::json;
use towpath_os::{Clock, interrupt, sandbox};
use towpath_report::live_header;
use towpath_result::store::StoredRun;
use towpath_result::{Record, RunOrder, Summary, Warning};
use towpath_result::{format, order};
use towpath_scenario::{Host, Pattern, Scenario, StackKind, Transport, World};
use towpath_sockets::quic::known_quic_names;

use crate::arguments::RunArguments;
use crate::error::CliError;
use crate::explain::explain;
use crate::fallback;
use crate::files::{self, ResultFile, ResultFolder};
use crate::inner::{CaptureSpec, InnerJob, InnerTask};
use crate::interval_lines::IntervalPrinter;
use crate::load::{load, load_changed};
use crate::report::{print, store_report};
use crate::sequences::DelayedSummary;
use crate::sim;
use crate::stacks;
use crate::ui::{Ui, wrap};

/// Estimated time that an emulated run takes in addition to its traffic.
const EMULATION_OVERHEAD: Duration = Duration::from_secs(1);

/// Transports, worlds and repetitions of a call.
pub(crate) struct RunSchedule {
    pub(crate) transports: Vec<Transport>,
    worlds: Vec<World>,
    pub(crate) repeat: u32,
}

/// Results of a call.
pub(crate) struct CompletedRuns {
    pub(crate) runs: Vec<StoredRun>,
    pub(crate) folder: ResultFolder,
    /// Set when every requested run was made.
    pub(crate) complete: bool,
}

pub(crate) fn run(arguments: &RunArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    let Some(CompletedRuns { runs, folder, complete }) = measure(arguments, ui)? else {
        return Ok(ExitCode::from(2));
    };
    print(&runs, arguments.json, ui)?;
    if arguments.explain {
        let mut scenario = load_changed(&arguments.scenario, &arguments.how.changes)?;
        stacks::choose(&mut scenario, &arguments.how.stack)?;
        explain(&scenario, &runs, sim::threads(arguments), ui)?;
    }
    if let Some(hint) = expectation_note(arguments, &runs)? {
        ui.progress(&wrap("hint: ", &hint));
    }
    let report = store_report(&runs, &folder)?;
    ui.progress(&format!("results: {}", folder.path.display()));
    ui.progress(&format!("report:  {}", report.display()));
    Ok(exit_code(&runs, complete))
}

/// Returns a note if a changed scenario missed expectations that were written for the original.
fn expectation_note(
    arguments: &RunArguments,
    runs: &[StoredRun],
) -> Result<Option<String>, CliError> {
    let expectations =
        runs.iter().flat_map(|run| &run.summary).flat_map(|summary| &summary.expectations);
    let changes = &arguments.how.changes;
    if changes.is_empty()
        || expectations.filter(|expectation| expectation.passed != Some(true)).count() == 0
    {
        return Ok(None);
    }
    let traffic_duration = |scenario: &Scenario| {
        let ends = scenario.flows.iter().map(|flow| flow.start + flow.pattern.duration());
        ends.max().unwrap_or_default()
    };
    let original_duration = traffic_duration(&load(&arguments.scenario)?);
    let changed_duration = traffic_duration(&load_changed(&arguments.scenario, changes)?);
    let name = &arguments.scenario;
    Ok(Some(if original_duration == changed_duration {
        format!("the expectations were written for `{name}` without these changes")
    } else {
        let duration_text = |span| format::time(span).replace(".00 s", " s").replace(".0 s", " s");
        let (original_duration, changed_duration) =
            (duration_text(original_duration), duration_text(changed_duration));
        format!(
            "the expectations of `{name}` were written for {original_duration}, and this ran for {changed_duration}"
        )
    }))
}

/// Makes all runs. Returns `None` if there is no result, after printing the reason.
pub(crate) fn measure(
    arguments: &RunArguments,
    ui: &mut Ui,
) -> Result<Option<CompletedRuns>, CliError> {
    let mut scenario = load_changed(&arguments.scenario, &arguments.how.changes)?;
    stacks::choose(&mut scenario, &arguments.how.stack)?;
    require_flows(&scenario)?;
    if !arguments.how.world.is_empty() {
        check_explain(arguments, &arguments.how.world)?;
    }
    let transports = transports(&arguments.transport, &scenario);
    let how =
        fallback::choose_worlds(&arguments.how, arguments.backend, &scenario, &transports, ui)?;
    fallback::record_fallback(&how, &mut scenario);
    let arguments = &RunArguments { how, ..arguments.clone() };
    let plan = plan(arguments, &scenario, transports, ui)?;
    let folder = ResultFolder::create(arguments.out.as_deref(), &scenario.name)?;
    interrupt::catch();
    announce(arguments, &scenario, &plan, ui);
    let mut runs = Vec::new();
    for world in &plan.worlds {
        match world {
            World::Sim => sim::run_all(arguments, &scenario, &plan, &folder, &mut runs, ui)?,
            World::Emu | World::Live => {
                emulate(arguments, &scenario, &plan, &folder, &mut runs, ui)?;
            }
        }
    }
    if runs.is_empty() {
        folder.remove_if_empty();
        return Ok(None);
    }
    let planned_runs = plan.worlds.len() * plan.transports.len() * plan.repeat as usize;
    let complete = runs.len() == planned_runs;
    // Runs are shown in the order of the command line, not in the order of execution.
    let transport_index = |run: &StoredRun| {
        plan.transports.iter().position(|transport| *transport == run.meta.transport)
    };
    let world_index =
        |run: &StoredRun| plan.worlds.iter().position(|world| *world == run.meta.world);
    runs.sort_by_key(|run| (world_index(run), run.meta.repeat, transport_index(run)));
    Ok(Some(CompletedRuns { runs, folder, complete }))
}

/// Prints an estimate of the time that several runs will take.
fn announce(arguments: &RunArguments, scenario: &Scenario, plan: &RunSchedule, ui: &mut Ui) {
    let run_count = plan.transports.len() * plan.repeat as usize;
    let ends = scenario.flows.iter().map(|flow| flow.start + flow.pattern.duration());
    let run_duration = ends.max().unwrap_or_default();
    for world in &plan.worlds {
        if run_count < 2 {
            continue;
        }
        let runs = format!("{run_count} runs of at most {}", format::time(run_duration));
        let text = match world {
            World::Sim => format!("{runs} of virtual time, on {}", sim::processors(arguments)),
            World::Emu | World::Live => {
                let wait = arguments.how.wait.unwrap_or_default();
                let total = run_duration * run_count as u32
                    + (wait + EMULATION_OVERHEAD) * run_count as u32;
                format!("{runs} in real time, at most {}", format::time(total))
            }
        };
        ui.progress(&format!("{}: {text}", scenario.name));
    }
}

/// Runs everything in the emulated world, one run at a time.
///
/// Transports alternate, so that changing load of the machine affects all of them.
fn emulate(
    arguments: &RunArguments,
    scenario: &Scenario,
    plan: &RunSchedule,
    folder: &ResultFolder,
    runs: &mut Vec<StoredRun>,
    ui: &mut Ui,
) -> Result<(), CliError> {
    let seed = arguments.how.seed.unwrap_or(scenario.run.seed);
    let order_kind = arguments.order.unwrap_or_default();
    for (repeat, transport, run_order) in
        order::run_order(&plan.transports, plan.repeat, order_kind, seed)
    {
        if run_order.position > 1 {
            pause(arguments.how.wait.unwrap_or_default());
        }
        if interrupt::is_interrupted() {
            return Ok(());
        }
        match run_once(arguments, scenario, (transport, repeat, run_order), folder, ui)? {
            Some(run) => runs.push(run),
            // Without any record the environment is to blame, and the next run would fail as well.
            None => return Ok(()),
        }
    }
    Ok(())
}

/// Waits between two runs, until an interrupt at most.
fn pause(span: Duration) {
    const POLL_INTERVAL: Duration = Duration::from_millis(50);
    let clock = Clock::start();
    let end = clock.now() + span;
    while clock.now() < end && !interrupt::is_interrupted() {
        clock.sleep_until(end.min(clock.now() + POLL_INTERVAL));
    }
}

fn require_flows(scenario: &Scenario) -> Result<(), CliError> {
    if !scenario.flows.is_empty() {
        return Ok(());
    }
    Err(CliError::Unavailable {
        what: format!("`{}` has no flows, so there is nothing to measure", scenario.name),
        hint: "add `[[flows]]`, or open its network with `towpath lab`".to_owned(),
    })
}

fn check_explain(arguments: &RunArguments, worlds: &[World]) -> Result<(), CliError> {
    if !arguments.explain || worlds.contains(&World::Sim) {
        return Ok(());
    }
    Err(CliError::Unavailable {
        what: "`--explain` tries changes in the simulator, and nothing is simulated".to_owned(),
        hint: "add `--world sim`".to_owned(),
    })
}

/// Returns the transports of the command line, or the scenario's if none were given.
fn transports(requested: &[Transport], scenario: &Scenario) -> Vec<Transport> {
    if requested.is_empty() { scenario.run.transports.clone() } else { requested.to_vec() }
}

fn plan(
    arguments: &RunArguments,
    scenario: &Scenario,
    transports: Vec<Transport>,
    ui: &mut Ui,
) -> Result<RunSchedule, CliError> {
    let (worlds, live_worlds): (Vec<_>, Vec<_>) = arguments
        .how
        .world
        .iter()
        .copied()
        .partition(|world| matches!(world, World::Sim | World::Emu));
    let is_simulated = worlds.contains(&World::Sim);
    if !live_worlds.is_empty() {
        let text = "a scenario is not run in the world `live`: its hosts are real".to_owned();
        let hint = "start `towpath server` on one of them and `towpath measure` on the other";
        if worlds.is_empty() {
            return Err(CliError::Unavailable { what: text, hint: hint.to_owned() });
        }
        ui.warn(&Warning { text, hint: Some(hint.to_owned()) });
    }
    check_explain(arguments, &worlds)?;
    if is_simulated {
        sim::check(scenario, &transports, &arguments.how.stack)?;
    }
    if worlds.contains(&World::Emu) {
        check_commands(scenario)?;
        check_quic(scenario, &transports)?;
        warn_kernel_stack(scenario, ui);
    }
    let repeat = arguments.repeat.unwrap_or(scenario.run.repeat);
    Ok(RunSchedule { transports, worlds, repeat })
}

/// Rejects flows that run a command on a host with towpath's stack.
///
/// Commands use the kernel's sockets, so their traffic would not cross that stack.
pub(crate) fn check_commands(scenario: &Scenario) -> Result<(), CliError> {
    let command_flows =
        scenario.flows.iter().filter(|flow| matches!(flow.pattern, Pattern::Run { .. }));
    let hosts = command_flows.flat_map(|flow| [flow.from, flow.to]);
    let mut command_hosts = hosts.filter_map(|host| scenario.hosts.get(host));
    match command_hosts.find(|host| host.stack.stack == StackKind::Towpath) {
        Some(host) => Err(CliError::Unavailable {
            what: format!("a flow runs a command, which cannot use the stack of `{}`", host.name),
            hint: "write `stack = \"kernel\"` for both of its hosts".to_owned(),
        }),
        None => Ok(()),
    }
}

/// Rejects congestion controls that QUIC does not have.
pub(crate) fn check_quic(scenario: &Scenario, transports: &[Transport]) -> Result<(), CliError> {
    if !transports.iter().any(|transport| matches!(transport, Transport::Quic | Transport::Mpquic))
    {
        return Ok(());
    }
    let known_controls = known_quic_names();
    let configured_control = |host: &Host| host.stack.quic_congestion_control.clone();
    match scenario
        .hosts
        .iter()
        .filter_map(configured_control)
        .find(|name| !known_controls.contains(&name.as_str()))
    {
        None => Ok(()),
        Some(name) => Err(CliError::Unavailable {
            what: format!("QUIC has no congestion control `{name}`"),
            hint: format!("there are {}", known_controls.join(", ")),
        }),
    }
}

/// Warns about settings that have no effect with the kernel's stack.
fn warn_kernel_stack(scenario: &Scenario, ui: &mut Ui) {
    let mut warn = |text: String, hint: &str| {
        ui.warn(&Warning { text, hint: Some(hint.to_owned()) });
    };
    let has_kernel_stack = |host: &&Host| host.stack.stack == StackKind::Kernel;
    for host in scenario.hosts.iter().filter(has_kernel_stack) {
        if host.stack.given.is_empty() {
            continue;
        }
        let keys: Vec<_> = host.stack.given.iter().map(|key| format!("`{key}`")).collect();
        let text =
            format!("host `{}` has the kernel's stack, which does not know {}", host.name, {
                keys.join(", ")
            });
        warn(text, "write `stack = \"towpath\"`, or simulate it with `--world sim`");
    }
    if !scenario.middleboxes.is_empty() {
        let text = "middleboxes stand in the simulated world only; here there are none";
        warn(text.to_owned(), "simulate it with `--world sim`");
    }
}

/// Makes one run in processes of its own. Returns `None` without a result, after printing the
/// reason.
fn run_once(
    arguments: &RunArguments,
    scenario: &Scenario,
    (transport, repeat, run_order): (Transport, u32, RunOrder),
    folder: &ResultFolder,
    ui: &mut Ui,
) -> Result<Option<StoredRun>, CliError> {
    let job = InnerJob {
        scenario: arguments.scenario.clone(),
        seed: arguments.how.seed,
        stacks: arguments.how.stack.clone(),
        changes: arguments.how.changes.clone(),
        backend: arguments.backend,
        pcap: CaptureSpec::of(&arguments.capture, format!("emu-{transport}-{repeat}")),
        task: InnerTask::Run {
            transport,
            repeat,
            order: Some(run_order).filter(|run_order| run_order.of > 1),
        },
    };
    if !arguments.quiet {
        ui.progress(&format!("\n{} over {transport}, run {repeat}", scenario.name));
        ui.progress(&live_header());
    }
    let mut child = sandbox::spawn(&job.arguments()?, Stdio::piped(), Stdio::piped())
        .map_err(CliError::Spawn)?;
    let mut file = None;
    let mut delayed_summary = DelayedSummary::of(job.pcap);
    if let Some(pipe) = child.stdout.take() {
        let mut live = IntervalPrinter::new(transport);
        // Closing this pipe stops the run.
        let mut stop_pipe = child.stdin.take();
        for line in BufReader::new(pipe).lines() {
            let text = line.map_err(CliError::Spawn)? + "\n";
            if interrupt::is_interrupted() {
                drop(stop_pipe.take());
            }
            let file: &mut ResultFile<'_> = match &mut file {
                Some(file) => file,
                none => none.insert(folder.begin(&format!("{transport}-{repeat}"))?),
            };
            let record = serde_json::from_str::<Record>(&text).ok();
            if !delayed_summary.intercept(record.as_ref(), &text) {
                file.add(&text)?;
            }
            let lines = record.and_then(|record| live.push(&record));
            if let Some(lines) = lines.filter(|_| !arguments.quiet) {
                ui.progress(&lines);
            }
        }
    }
    let status = sandbox::wait(&mut child).map_err(CliError::Spawn)?;
    let Some(mut file) = file else { return Ok(None) };
    for line in delayed_summary.finish()? {
        file.add(&line)?;
    }
    let path = file.finish()?;
    let run = files::read_back(&path)?;
    if !status.success() && run.summary.is_none() {
        ui.progress(&format!("what was measured is in {}", path.display()));
    }
    Ok(Some(run))
}

/// Returns 0 when every requested run was made and every expectation passed.
///
/// Plain TCP that does not survive the loss of its path is a result, not a failure.
fn exit_code(runs: &[StoredRun], complete: bool) -> ExitCode {
    let passed = |summary: &Summary| {
        let meets_expectations =
            summary.expectations.iter().all(|expectation| expectation.passed == Some(true));
        let has_traffic = summary.flows.iter().all(|flow| flow.bytes > 0 || flow.completed);
        meets_expectations && has_traffic
    };
    let all_passed = runs.iter().all(|run| run.summary.as_ref().is_some_and(passed));
    if interrupt::is_interrupted() {
        ExitCode::from(130)
    } else if all_passed && complete {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    }
}

/// Prints the summaries as JSON, one object a line.
pub(crate) fn print_json(runs: &[StoredRun], ui: &mut Ui) -> Result<(), CliError> {
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

#[cfg(test)]
mod tests {
    use towpath_scenario::no_files;

    use super::*;

    #[test]
    fn a_command_is_refused_on_a_host_without_a_kernel_stack() {
        let scenario = |stack: &str| {
            let text = format!(
                "name = \"t\"\n[hosts.a]\n[hosts.b]\nstack = \"{stack}\"\n[paths.p]\n\
                 between = [\"a\", \"b\"]\nrate = \"1 Mbit/s\"\ndelay = \"1 ms\"\n[[flows]]\n\
                 from = \"a\"\nto = \"b\"\nrun = \"true\"\nduration = \"1 s\"\n"
            );
            Scenario::parse("t.toml", &text, &no_files).unwrap()
        };
        assert!(check_commands(&scenario("kernel")).is_ok());
        let refused = check_commands(&scenario("towpath")).unwrap_err().to_string();
        assert!(refused.contains("the stack of `b`"), "{refused}");
    }
}
