//! `towpath run --world sim`: the same runs in virtual time, in this process.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use towpath_net::Instant;
use towpath_os::batch;
use towpath_os::{Clock, interrupt};
use towpath_result::Record;
use towpath_result::format;
use towpath_result::store::StoredRun;
use towpath_result::store::write_record;
use towpath_scenario::{Host, Scenario, Transport};
use towpath_sim::{CaptureOutputs, Components, SimError, SimJob, SimReport, Unsupported};
use towpath_trace::{CaptureAnalysis, CaptureFeed};

use crate::error::CliError;
use crate::files::{self, ResultFolder};
use crate::options::CaptureArguments;
use crate::sequences::{self, CaptureSink};
use crate::stacks::StackChoice;
use crate::ui::Ui;

/// Result of a run that a thread returns.
struct SimResult {
    lines: Vec<u8>,
    report: SimReport,
    /// Real time that the run took.
    took: Duration,
}

/// Rejects runs that cannot be simulated, before any file is written.
pub(crate) fn check(
    scenario: &Scenario,
    transports: &[Transport],
    stacks: &[StackChoice],
) -> Result<(), CliError> {
    if let Some(choice) = stacks.iter().find(|choice| !choice.own) {
        return Err(CliError::Unavailable {
            what: format!("`--stack {choice}` cannot be used with `--world sim`"),
            hint: "omit it, or use `--world emu`".to_owned(),
        });
    }
    towpath_sim::check(scenario, transports, &Components::default()).map_err(|error| {
        CliError::Unavailable {
            hint: match &error {
                Unsupported::Command { .. } => {
                    "use `--world emu`, or give the flow a `pattern`".to_owned()
                }
                Unsupported::Requests { .. }
                | Unsupported::Unused { .. }
                | Unsupported::Name { .. } => error.hint(),
            },
            what: error.to_string(),
        }
    })
}

/// Simulated runs of one call.
#[derive(Debug)]
pub(crate) struct SimBatch<'a> {
    pub(crate) scenario: &'a Scenario,
    /// Seed that replaces the scenario's.
    pub(crate) seed: Option<u64>,
    pub(crate) transports: &'a [Transport],
    pub(crate) repeat: u32,
    /// Number of runs that execute at once.
    pub(crate) threads: usize,
    pub(crate) capture: &'a CaptureArguments,
    pub(crate) quiet: bool,
}

/// Makes all runs, several at once. Results keep their order for any number of threads.
pub(crate) fn run_all(
    sim_batch: &SimBatch<'_>,
    folder: &ResultFolder,
    runs: &mut Vec<StoredRun>,
    ui: &mut Ui,
) -> Result<(), CliError> {
    if let Some(folder) = &sim_batch.capture.pcap {
        // Created before the runs, so that an error costs no time.
        files::folder(folder)?;
    }
    let mut scenario = sim_batch.scenario.clone();
    scenario.run.seed = sim_batch.seed.unwrap_or(scenario.run.seed);
    let scenario = Arc::new(scenario);
    let jobs: Vec<SimJob> = (1..=sim_batch.repeat)
        .flat_map(|repeat| {
            sim_batch.transports.iter().copied().map(move |transport| (repeat, transport))
        })
        .map(|(repeat, transport)| SimJob {
            scenario: Arc::clone(&scenario),
            transport,
            repeat,
            trace: true,
            components: Components::default(),
        })
        .collect();
    let mut first_error = None;
    let clock = Clock::start();
    ui.bar(0, jobs.len());
    batch::in_order(
        jobs.len(),
        sim_batch.threads,
        |index| jobs.get(index).map(|job| simulate(job, sim_batch.capture)),
        |index, result| {
            let (Some(job), Some(result)) = (jobs.get(index), result) else { return false };
            match result.and_then(|result| store_result(&result, job, folder, sim_batch.quiet, ui))
            {
                Ok(run) => runs.push(run),
                Err(error) => first_error = Some(error),
            }
            let (done, total) = (index + 1, jobs.len());
            let time_per_run = clock.now().saturating_since(Instant::ZERO) / done as u32;
            ui.bar_with_time(done, total, time_per_run * (total - done) as u32);
            first_error.is_none() && !interrupt::is_interrupted()
        },
    );
    match first_error {
        // The earlier runs still deserve a report.
        Some(_) if interrupt::is_interrupted() => Ok(()),
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Returns the number of runs that execute at once.
pub(crate) fn threads(jobs: Option<u32>) -> usize {
    let processors = || thread::available_parallelism().map_or(1, usize::from);
    jobs.map_or_else(processors, |jobs| jobs as usize)
}

/// Returns the number of runs at once as text, such as `4 processors`.
pub(crate) fn processors(jobs: Option<u32>) -> String {
    match threads(jobs) {
        1 => "one processor".to_owned(),
        count => format!("{count} processors"),
    }
}

fn run_name(transport: Transport, repeat: u32) -> String {
    format!("sim-{transport}-{repeat}")
}

/// Simulates one run on the calling thread.
fn simulate(job: &SimJob, options: &CaptureArguments) -> Result<SimResult, CliError> {
    let clock = Clock::start();
    let start = clock.now();
    let mut lines = Vec::new();
    let with_plots = options.pictures && job.repeat == 1 && sequences::is_readable(job.transport);
    let mut captures = begin_captures(options.pcap.as_deref(), with_plots, job)?;
    let writers = captures.iter_mut().map(|capture| &mut capture.out as &mut (dyn Write + Send));
    let headers_only = options.pcap.is_none();
    let writers =
        CaptureOutputs { writers: writers.collect(), snap_bytes: options.snap, headers_only };
    let mut summary = None;
    let report = towpath_sim::run_captured(job, writers, &mut |record| {
        if interrupt::is_interrupted() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if let Record::Summary(received) = record {
            // The plots precede the summary and depend on it.
            summary = Some(received.clone());
            return Ok(());
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
    if let Some(summary) = summary {
        let feeds = captures.into_iter().filter_map(|capture| capture.out.feed);
        let traces: Vec<CaptureAnalysis> = feeds.filter_map(CaptureFeed::finish).collect();
        let zero_ns = towpath_sim::CAPTURE_EPOCH.as_nanos() as u64;
        let plots = sequences::sequence_records(&traces, zero_ns, &summary).into_iter();
        for record in plots.chain([Record::Summary(summary)]) {
            // Writes into memory, which does not fail.
            write_record(&mut lines, &record).map_err(|error| CliError::Sim(error.to_string()))?;
        }
    }
    Ok(SimResult { lines, report, took: clock.now().saturating_since(start) })
}

/// Capture of one host's packets in a run.
struct HostCapture {
    host: String,
    path: PathBuf,
    out: CaptureSink,
}

/// Starts a capture for each host if one is requested: stored in `folder`, plotted, or both.
fn begin_captures(
    folder: Option<&Path>,
    with_plots: bool,
    job: &SimJob,
) -> Result<Vec<HostCapture>, CliError> {
    if folder.is_none() && !with_plots {
        return Ok(Vec::new());
    }
    let folder = folder.map(files::folder).transpose()?;
    let begin_capture = |host: &Host| {
        let name = format!("{}-{}.pcapng", run_name(job.transport, job.repeat), host.name);
        let path = folder.as_ref().map_or(PathBuf::new(), |folder| folder.path().join(&name));
        let file = folder.as_ref().map(|folder| folder.create(&name)).transpose();
        let file = file.map_err(|source| unwritable(&path, source))?.map(BufWriter::new);
        let out = CaptureSink { file, feed: with_plots.then(CaptureFeed::default) };
        Ok(HostCapture { host: host.name.clone(), path, out })
    };
    job.scenario.hosts.iter().map(begin_capture).collect()
}

fn unwritable(path: &Path, source: io::Error) -> CliError {
    CliError::unwritable(path, source, None)
}

/// Writes the result and prints how long the run took.
fn store_result(
    result: &SimResult,
    job: &SimJob,
    folder: &ResultFolder,
    quiet: bool,
    ui: &mut Ui,
) -> Result<StoredRun, CliError> {
    let mut file = folder.begin(&run_name(job.transport, job.repeat))?;
    file.add(&String::from_utf8_lossy(&result.lines))?;
    let run = files::read_back(&file.finish()?)?;
    if !quiet {
        ui.progress(&format!(
            "{} over {}, simulated run {}: {} of virtual time in {}",
            job.scenario.name,
            job.transport,
            job.repeat,
            format::time(result.report.virtual_time),
            format::time(result.took),
        ));
    }
    Ok(run)
}
