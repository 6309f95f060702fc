//! `towpath run --world sim`: the same runs in virtual time, in this process.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use towpath_linux::{Clock, interrupt};
use towpath_measure::batch;
use towpath_measure::format;
use towpath_measure::scenario::{Host, Pattern, Scenario, Transport};
use towpath_measure::store::write_record;
use towpath_report::Run;
use towpath_sim::{Job, Report, SimError, known_names, known_quic_names};

use crate::arguments::RunArguments;
use crate::error::CliError;
use crate::files::{self, ResultFolder};
use crate::run::Plan;
use crate::stacks::StackChoice;
use crate::ui::Ui;

/// What a thread hands over.
struct Ended {
    lines: Vec<u8>,
    report: Report,
    took: Duration,
}

/// Refuses what cannot be simulated, before anything is written.
pub(crate) fn check(
    scenario: &Scenario,
    transports: &[Transport],
    stacks: &[StackChoice],
) -> Result<(), CliError> {
    if let Some(choice) = stacks.iter().find(|choice| !choice.own) {
        return Err(CliError::Unavailable {
            what: format!("no kernel in the simulated world, so `--stack {choice}` is in vain"),
            hint: "leave it out, or run it with `--world emu`".to_owned(),
        });
    }
    let commands = |pattern: &Pattern| matches!(pattern, Pattern::Run { .. });
    if let Some(number) = scenario.flows.iter().position(|flow| commands(&flow.pattern)) {
        return Err(CliError::Unavailable {
            what: format!("flow {number} runs a command, which needs real hosts"),
            hint: "run it with `--world emu`, or give the flow a `pattern`".to_owned(),
        });
    }
    let [schedulers, managers, controls] = known_names();
    for host in &scenario.hosts {
        let scheduler = host.stack.scheduler.as_deref();
        check_name(host, "scheduler", scheduler, &schedulers)?;
        check_name(host, "path manager", host.stack.path_manager.as_deref(), &managers)?;
        let control = scenario.congestion_control_of(host);
        check_name(host, "congestion control", Some(control), &controls)?;
    }
    let quic = |transport| matches!(transport, Transport::Quic | Transport::Mpquic);
    if transports.iter().copied().any(quic) {
        let known = known_quic_names();
        for host in &scenario.hosts {
            let control = host.stack.quic_congestion_control.as_deref();
            check_name(host, "deterministic congestion control of QUIC", control, &known)?;
        }
    }
    Ok(())
}

fn check_name(host: &Host, noun: &str, name: Option<&str>, known: &[&str]) -> Result<(), CliError> {
    let Some(name) = name.filter(|name| !known.contains(name)) else { return Ok(()) };
    let all: Vec<_> = known.iter().map(|name| format!("`{name}`")).collect();
    Err(CliError::Unavailable {
        what: format!("host `{}`: towpath's stack has no {noun} `{name}`", host.name),
        hint: format!("there are {}", all.join(", ")),
    })
}

/// Runs everything, several runs at once; results come in order, whatever their number.
pub(crate) fn run_all(
    arguments: &RunArguments,
    scenario: &Scenario,
    plan: &Plan,
    folder: &ResultFolder,
    runs: &mut Vec<Run>,
    ui: &mut Ui,
) -> Result<(), CliError> {
    if let Some(folder) = &arguments.pcap {
        // Before anything is run.
        files::folder(folder)?;
    }
    let mut scenario = scenario.clone();
    scenario.run.seed = arguments.how.seed.unwrap_or(scenario.run.seed);
    let scenario = Arc::new(scenario);
    let jobs: Vec<Job> = (1..=plan.repeat)
        .flat_map(|repeat| {
            plan.transports.iter().copied().map(move |transport| (repeat, transport))
        })
        .map(|(repeat, transport)| Job {
            scenario: Arc::clone(&scenario),
            transport,
            repeat,
            trace: true,
        })
        .collect();
    let processors = || thread::available_parallelism().map_or(1, usize::from);
    let threads = arguments.how.jobs.map_or_else(processors, |jobs| jobs as usize);
    let mut failed = None;
    ui.bar(0, jobs.len());
    batch::in_order(
        jobs.len(),
        threads,
        |index| jobs.get(index).map(|job| simulate(job, arguments.pcap.as_deref())),
        |index, ended| {
            let (Some(job), Some(ended)) = (jobs.get(index), ended) else { return false };
            match ended.and_then(|ended| keep(&ended, job, folder, arguments.quiet, ui)) {
                Ok(run) => runs.push(run),
                Err(error) => failed = Some(error),
            }
            ui.bar(index + 1, jobs.len());
            failed.is_none() && !interrupt::seen()
        },
    );
    match failed {
        // What was done before is worth a report.
        Some(_) if interrupt::seen() => Ok(()),
        Some(error) => Err(error),
        None => Ok(()),
    }
}

fn name(transport: Transport, repeat: u32) -> String {
    format!("sim-{transport}-{repeat}")
}

/// One run, on whichever thread.
fn simulate(job: &Job, captures: Option<&Path>) -> Result<Ended, CliError> {
    let clock = Clock::start();
    let began = clock.now();
    let mut lines = Vec::new();
    let mut captures = match captures {
        Some(folder) => begin_captures(folder, job)?,
        None => Vec::new(),
    };
    let outs = captures.iter_mut().map(|capture| &mut capture.out as &mut (dyn Write + Send));
    let report = towpath_sim::run(job, outs.collect(), &mut |record| {
        if interrupt::seen() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        write_record(&mut lines, record)
    });
    let report = report.map_err(|error| match error {
        SimError::Capture { host, source } => {
            let capture = captures.iter().find(|capture| capture.host == host);
            unwritable(capture.map_or(Path::new(""), |capture| &capture.path), source)
        }
        error @ (SimError::Network(_)
        | SimError::Setting { .. }
        | SimError::QuicSetting { .. }
        | SimError::Quic { .. }
        | SimError::Name { .. }
        | SimError::Write(_)) => CliError::Sim(error.to_string()),
    })?;
    Ok(Ended { lines, report, took: clock.now().saturating_since(began) })
}

/// What one host sees of a run.
struct HostCapture {
    host: String,
    path: PathBuf,
    out: BufWriter<File>,
}

fn begin_captures(folder: &Path, job: &Job) -> Result<Vec<HostCapture>, CliError> {
    let folder = files::folder(folder)?;
    let begin = |host: &Host| {
        let name = format!("{}-{}.pcapng", name(job.transport, job.repeat), host.name);
        let path = folder.path().join(&name);
        let file = folder.create(&name).map_err(|source| unwritable(&path, source))?;
        Ok(HostCapture { host: host.name.clone(), path, out: BufWriter::new(file) })
    };
    job.scenario.hosts.iter().map(begin).collect()
}

fn unwritable(path: &Path, source: io::Error) -> CliError {
    CliError::unwritable(path, source, None)
}

/// Writes the result and says how long it took.
fn keep(
    ended: &Ended,
    job: &Job,
    folder: &ResultFolder,
    quiet: bool,
    ui: &mut Ui,
) -> Result<Run, CliError> {
    let mut file = folder.begin(&name(job.transport, job.repeat))?;
    file.add(&String::from_utf8_lossy(&ended.lines))?;
    let run = files::read_back(&file.finish()?)?;
    if !quiet {
        ui.progress(&format!(
            "{} over {}, simulated run {}: {} of virtual time in {}",
            job.scenario.name,
            job.transport,
            job.repeat,
            format::time(ended.report.virtual_time),
            format::time(ended.took),
        ));
    }
    Ok(run)
}
