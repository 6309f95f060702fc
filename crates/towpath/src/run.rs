//! `towpath run`: runs a scenario over each transport, the main job.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use towpath_os::{Clock, interrupt};
use towpath_report::live_header;
use towpath_result::store::StoredRun;
use towpath_result::{OrderKind, Record, RunOrder, Summary, Warning};
use towpath_result::{format, limits, order};
use towpath_scenario::{Scenario, Transport, World};

use crate::emulated;
use crate::emulated::EmulatedRun;
use crate::error::CliError;
use crate::explain::explain;
use crate::fallback;
use crate::files::{self, ResultFile, ResultFolder};
use crate::interval_lines::IntervalPrinter;
use crate::load::{ScenarioText, load, load_changed, load_with_files};
use crate::options::{BackendChoice, CaptureArguments, CaptureSpec, RunOptions, order, transport};
use crate::report::{print, store_report};
use crate::sequences::DelayedSummary;
use crate::sim;
use crate::sim::SimBatch;
use crate::stacks;
use crate::ui::{Ui, wrap};
use crate::upload::{UploadArguments, Uploader};

/// Estimated time that an emulated run takes in addition to its traffic.
const EMULATION_OVERHEAD: Duration = Duration::from_secs(1);

/// Run a scenario over each transport, and compare the results
#[derive(Debug, Clone, Args)]
pub(crate) struct RunArguments {
    /// Scenario file, or the name of a built-in one (see `towpath scenarios`)
    pub(crate) scenario: String,
    /// Transports: tcp, mptcp, quic, mpquic [default: the scenario's]
    #[arg(short = 'T', long, value_delimiter = ',', value_name = "LIST", value_parser = transport)]
    pub(crate) transport: Vec<Transport>,
    #[command(flatten)]
    pub(crate) how: RunOptions,
    /// Repetitions of each transport [default: the scenario's]
    #[arg(short = 'r', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeat: Option<u32>,
    /// Order of the transports in each repetition: random (from the seed) or fixed [default:
    /// fixed]; not for simulated runs
    #[arg(long, value_name = "ORDER", value_parser = order)]
    pub(crate) order: Option<OrderKind>,
    #[command(flatten)]
    pub(crate) capture: CaptureArguments,
    /// Folder for results and report [default: towpath-results/SCENARIO/NUMBER]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Interface between the emulator and the kernel
    #[arg(long, value_enum, default_value_t = BackendChoice::Auto)]
    pub(crate) backend: BackendChoice,
    /// Print summaries as JSON, one line per run, instead of the table
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
    /// Print no interval lines
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) upload: UploadArguments,
    /// Simulate each run again with one limit removed at a time, and print the effect
    #[arg(long, conflicts_with = "json")]
    pub(crate) explain: bool,
}

/// Transports, worlds and repetitions of a call.
pub(crate) struct RunSchedule {
    pub(crate) transports: Vec<Transport>,
    worlds: Vec<World>,
    pub(crate) repeat: u32,
}

/// Results of a call.
pub(crate) struct CompletedRuns {
    /// Scenario with the changes of the command line.
    scenario: Scenario,
    pub(crate) runs: Vec<StoredRun>,
    pub(crate) folder: ResultFolder,
    /// Set when every requested run was made.
    pub(crate) complete: bool,
}

pub(crate) fn run(arguments: &RunArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    let uploader = Uploader::prepare(&arguments.upload, ui)?;
    let Some(CompletedRuns { scenario, runs, folder, complete }) =
        measure(arguments, uploader.as_ref(), ui)?
    else {
        return Ok(ExitCode::from(2));
    };
    print(&runs, arguments.json, ui)?;
    if arguments.explain {
        explain(&scenario, &runs, sim::threads(arguments.how.jobs), ui)?;
    }
    if let Some(hint) = expectation_note(arguments, &runs)? {
        ui.progress_lines(wrap("hint: ", &hint));
    }
    let report = store_report(&runs, &folder)?;
    ui.progress(&format!("results: {}", folder.path.display()));
    ui.progress(&format!("report:  {}", report.display()));
    if let Some(uploader) = uploader {
        uploader.upload_runs(&runs, &folder, ui);
    }
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
///
/// With an uploader, the collector can show emulated runs in progress.
pub(crate) fn measure(
    arguments: &RunArguments,
    uploader: Option<&Uploader>,
    ui: &mut Ui,
) -> Result<Option<CompletedRuns>, CliError> {
    let (mut scenario, files) = load_with_files(&arguments.scenario, &arguments.how.changes)?;
    let text = ScenarioText {
        text: scenario.source.clone(),
        files,
        seed: arguments.how.seed,
        stacks: arguments.how.stack.clone(),
        remarks: scenario.remarks.clone(),
    };
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
            World::Sim => {
                let sim_batch = SimBatch {
                    scenario: &scenario,
                    seed: arguments.how.seed,
                    transports: &plan.transports,
                    repeat: plan.repeat,
                    threads: sim::threads(arguments.how.jobs),
                    capture: &arguments.capture,
                    quiet: arguments.quiet,
                };
                sim::run_all(&sim_batch, &folder, &mut runs, ui)?;
            }
            World::Emu | World::Live => {
                emulate(arguments, (&scenario, &text), &plan, (&folder, uploader), &mut runs, ui)?;
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
    Ok(Some(CompletedRuns { scenario, runs, folder, complete }))
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
            World::Sim => {
                format!("{runs} of virtual time, on {}", sim::processors(arguments.how.jobs))
            }
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
    (scenario, text): (&Scenario, &ScenarioText),
    plan: &RunSchedule,
    (folder, uploader): (&ResultFolder, Option<&Uploader>),
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
        let schedule = (transport, repeat, run_order);
        match run_once(arguments, (scenario, text), schedule, (folder, uploader), ui)? {
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
        what: "`--explain` needs a simulated run".to_owned(),
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
        let text = "a scenario cannot be run in the world `live`, whose hosts are real".to_owned();
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
        emulated::check(scenario, &transports)?;
        emulated::warn_kernel_stack(scenario, ui);
    }
    for warning in limits::warnings(scenario, &transports, &worlds) {
        ui.warn(&warning);
    }
    let repeat = arguments.repeat.unwrap_or(scenario.run.repeat);
    Ok(RunSchedule { transports, worlds, repeat })
}

/// Makes one run in processes of its own. Returns `None` without a result, after printing the
/// reason.
fn run_once(
    arguments: &RunArguments,
    (scenario, text): (&Scenario, &ScenarioText),
    (transport, repeat, run_order): (Transport, u32, RunOrder),
    (folder, uploader): (&ResultFolder, Option<&Uploader>),
    ui: &mut Ui,
) -> Result<Option<StoredRun>, CliError> {
    let run = EmulatedRun {
        scenario: text.clone(),
        transport,
        repeat,
        order: Some(run_order).filter(|run_order| run_order.of > 1),
        backend: arguments.backend,
        pcap: CaptureSpec::of(&arguments.capture, format!("emu-{transport}-{repeat}")),
    };
    if !arguments.quiet {
        ui.progress("");
        ui.progress(&format!("{} over {transport}, run {repeat}", scenario.name));
        ui.progress_lines(live_header().lines());
    }
    let mut file: Option<ResultFile<'_>> = None;
    let mut delayed_summary = DelayedSummary::of(run.pcap.clone());
    let mut interval_lines = IntervalPrinter::new(transport);
    let mut live_feed = uploader.map(Uploader::live_feed);
    let status = emulated::run(&run, &mut |line| {
        let line = line + "\n";
        let file = match &mut file {
            Some(file) => file,
            none => none.insert(folder.begin(&format!("{transport}-{repeat}"))?),
        };
        let record = serde_json::from_str::<Record>(&line).ok();
        if !delayed_summary.intercept(record.as_ref(), &line) {
            file.add(&line)?;
        }
        let page = record.as_ref().zip(live_feed.as_mut()).and_then(|(r, feed)| feed.push(r));
        ui.progress_lines(page.map(|page| format!("live: {page}")));
        let lines = record.and_then(|record| interval_lines.push(&record));
        if let Some(lines) = lines.filter(|_| !arguments.quiet) {
            ui.progress_lines(lines.lines());
        }
        Ok(())
    })?;
    let Some(mut file) = file else { return Ok(None) };
    for line in delayed_summary.finish()? {
        file.add(&line)?;
    }
    let path = file.finish()?;
    let run = files::read_back(&path)?;
    if !status.success() && run.summary.is_none() {
        ui.progress(&format!("the measured data is in {}", path.display()));
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
