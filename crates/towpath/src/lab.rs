//! `towpath lab` and `towpath on`: programs in an emulated network.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use towpath_emu::lab::Roles;
use towpath_report::{table, warnings};
use towpath_result::FlowSummary;
use towpath_scenario::{Scenario, Transport};

use crate::error::CliError;
use crate::failure;
use crate::failure::FailureArguments;
use crate::fallback;
use crate::files::{self, ResultFolder};
use crate::load::load;
use crate::options::{BackendChoice, CaptureArguments, CaptureSpec};
use crate::process::{InnerJob, LabTask, passed_on, run_attached, texts};
use crate::report::store_report;
use crate::ui::Ui;

/// Name of a lab's result.
const RESULT_NAME: &str = "lab-1";
/// Width of the table in columns.
const COLUMNS: usize = 100;

/// Run any programs in a scenario's network
///
/// Programs start in the order of the command line. Each starts as soon as the previous one listens
/// on a socket or has opened a socket of another kind. The scenario's timeline starts with the
/// program that is given last. When that program ends, the others are terminated, and the lab exits
/// with its exit code. Without a program, a shell is opened, and the timeline does not run.
/// `client` and `server` name the hosts of the first flow, unless hosts have these names. Variables
/// hold the addresses: `TOWPATH_SERVER`, or `TOWPATH_SERVER_WIFI` for one path.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true,
    subcommand_negates_reqs = true,
    override_usage = "towpath lab [OPTIONS] <SCENARIO> --on <HOST> <COMMAND> --on <HOST> <COMMAND>...\n       \
                      towpath lab [OPTIONS] <SCENARIO> [-- <COMMAND>...]\n       \
                      towpath lab failure [NAME] [-- <COMMAND>...]"
)]
pub(crate) struct LabArguments {
    #[command(subcommand)]
    pub(crate) action: Option<LabAction>,
    /// Scenario file, or the name of a built-in one (see `towpath scenarios`)
    #[arg(required = true)]
    pub(crate) scenario: Option<String>,
    /// Run a command with `sh -c` on a host; repeatable; its traffic is measured
    #[arg(long, num_args = 2, value_names = ["HOST", "COMMAND"], action = clap::ArgAction::Append)]
    pub(crate) on: Vec<OsString>,
    /// Host of the program after `--`, or of the shell [default: the first host]
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Option<String>,
    /// Measure the programs' traffic: folder for result and report [default with --on:
    /// towpath-results/SCENARIO/NUMBER; otherwise none]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) capture: CaptureArguments,
    /// Print no table at the end
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Interface between the emulator and the kernel
    #[arg(long, value_enum, default_value_t = BackendChoice::Auto)]
    pub(crate) backend: BackendChoice,
    /// Program and its arguments, started after those of `--on` [default: your shell]
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Run a command on another host of this shell's lab
#[derive(Debug, Args)]
pub(crate) struct OnArguments {
    /// Host, as `towpath lab` has named it
    pub(crate) host: String,
    /// Program and its arguments; your shell when left out
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabAction {
    Failure(FailureArguments),
}

pub(crate) fn lab(arguments: &LabArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    if let Some(LabAction::Failure(arguments)) = &arguments.action {
        return failure::run(arguments, ui);
    }
    let name = arguments.scenario.clone().unwrap_or_default();
    let scenario = load(&name)?;
    let programs = programs(arguments, &scenario)?;
    fallback::require_emulation()?;
    let is_measured = !arguments.on.is_empty() || arguments.out.is_some();
    let folder = || ResultFolder::create(arguments.out.as_deref(), &scenario.name);
    let folder = is_measured.then(folder).transpose()?;
    let raw_name = format!("{RESULT_NAME}.jsonl");
    let exit_code = run_attached(&InnerJob::Lab(LabTask {
        scenario: name,
        programs,
        result: folder.as_ref().map(|folder| (folder.path.clone(), raw_name.clone())),
        backend: arguments.backend,
        pcap: CaptureSpec::of(&arguments.capture, RESULT_NAME.to_owned()),
    }));
    if let Some(folder) = &folder {
        let path = folder.path.join(&raw_name);
        if fs::metadata(&path).is_ok_and(|file| file.len() > 0) {
            conclude(folder, &raw_name, arguments.quiet, ui)?;
        } else {
            // Interrupted before the last program began.
            let _ = fs::remove_file(&path); // the file may not exist
            folder.remove_if_empty();
        }
    }
    exit_code
}

/// Completes the result, prints it and writes a report.
fn conclude(
    folder: &ResultFolder,
    raw_name: &str,
    quiet: bool,
    ui: &mut Ui,
) -> Result<(), CliError> {
    let mut run = files::read_back(&folder.path.join(raw_name))?;
    if let Some(summary) = &run.summary {
        // The transport and the duration are known only after the programs have ended.
        let multipath = summary.multipath.requested;
        run.meta.transport = if multipath { Transport::Mptcp } else { Transport::Tcp };
        let duration = |flow: &FlowSummary| flow.duration_ns;
        run.meta.duration_ns = summary.flows.iter().map(duration).max().unwrap_or_default();
    }
    run.meta.run = format!("{}-{RESULT_NAME}", run.meta.scenario);
    let mut file = folder.begin(RESULT_NAME)?;
    for line in run.lines() {
        file.add(&format!("{line}\n"))?;
    }
    let run = files::read_back(&file.finish()?)?;
    let runs = [run];
    let report = store_report(&runs, folder)?;
    if !quiet {
        ui.progress("");
        ui.progress_lines(table(&runs, COLUMNS, false).trim_end_matches('\n').lines());
        for warning in warnings(&runs) {
            ui.warn(&warning);
        }
        ui.progress(&format!("results: {}", folder.path.display()));
        ui.progress(&format!("report:  {}", report.display()));
    }
    Ok(())
}

/// Returns the programs of the command line, in its order.
fn programs(
    arguments: &LabArguments,
    scenario: &Scenario,
) -> Result<Vec<(usize, Vec<String>)>, CliError> {
    let roles = Roles::of(scenario);
    let find_host = |name: &str| {
        roles.find(scenario, name).ok_or_else(|| {
            let names: Vec<_> = scenario.hosts.iter().map(|host| host.name.as_str()).collect();
            CliError::Unavailable {
                what: format!("`{}` has no host `{name}`", scenario.name),
                hint: format!("its hosts are: {}", names.join(", ")),
            }
        })
    };
    let mut programs = Vec::new();
    for pair in texts(&arguments.on)?.chunks_exact(2) {
        if let [host, command] = pair {
            let words = ["sh", "-c", command].map(str::to_owned);
            programs.push((find_host(host)?, words.to_vec()));
        }
    }
    let host = arguments.host.as_deref().map(find_host).transpose()?.unwrap_or(0);
    if !arguments.command.is_empty() || programs.is_empty() {
        programs.push((host, texts(&arguments.command)?));
    }
    Ok(programs)
}

/// `towpath on`: runs a command in another host's namespace, from within a lab.
pub(crate) fn on(arguments: &OnArguments) -> Result<ExitCode, CliError> {
    let status = towpath_emu::lab::run_on_host(&arguments.host, &arguments.command);
    Ok(passed_on(status.map_err(CliError::from)?))
}
