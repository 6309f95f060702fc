//! Command line of towpath: reads arguments, calls the crates that do the work, prints.
//!
//! Data goes to standard output; progress, `warning:` and `hint:` to standard error. Exit code 0:
//! success; 1: the check, comparison or expectation failed; 2: wrong usage or environment.
//!
//! Reading order:
//!
//! - the command line: [`cli`], [`options`] (what several verbs share),
//! - the main job: [`run`], [`sim`] (in virtual time), [`emulated`] (in [`process`]es of its own,
//!   which do what [`inner`] says), [`fallback`] (chooses between the two),
//! - more runs: [`compare`], [`sweep`](mod@sweep), [`reproduce`](mod@reproduce), [`lab`],
//! - two real hosts: [`server`], [`measure`], [`check`],
//! - this host: [`setup`], [`exec`], [`doctor`](mod@doctor), [`monitor`], [`trace`](mod@trace),
//! - output: [`report`], [`ui`], [`upload`](mod@upload) (to a collector), [`agent`](mod@agent) (as
//!   a device of a study),
//! - before all that: [`defaults`] (the configuration file) and [`suggestions`] (wrong command
//!   lines).

#![cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, reason = "some functions serve verbs that exist on Linux only")
)]

mod agent;
mod amounts;
mod changes;
mod cli;
mod commands;
mod compare;
mod defaults;
mod emulated;
mod error;
mod explain;
mod fallback;
mod files;
mod generate;
mod interval_lines;
mod load;
mod options;
mod report;
mod reproduce;
mod run;
mod scenarios;
mod sequences;
mod sim;
mod stacks;
mod study_runner;
mod suggestions;
mod sweep;
mod trace;
mod ui;
mod upload;

#[cfg(target_os = "linux")]
mod check;
#[cfg(target_os = "linux")]
mod collect;
#[cfg(target_os = "linux")]
mod doctor;
#[cfg(target_os = "linux")]
mod exec;
#[cfg(target_os = "linux")]
mod failure;
#[cfg(target_os = "linux")]
mod inner;
#[cfg(target_os = "linux")]
mod lab;
#[cfg(target_os = "linux")]
mod live_hosts;
#[cfg(target_os = "linux")]
mod measure;
#[cfg(target_os = "linux")]
mod monitor;
#[cfg(target_os = "linux")]
mod process;
#[cfg(target_os = "linux")]
mod self_check;
#[cfg(target_os = "linux")]
mod server;
#[cfg(target_os = "linux")]
mod setup;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};
use towpath_result::format::text::escape;

use crate::cli::{Arguments, Command};
use crate::error::CliError;
use crate::ui::Ui;

fn main() -> ExitCode {
    let mut ui = Ui::from_environment();
    let outcome = match internal_job(&mut ui) {
        Some(outcome) => outcome,
        None => match arguments(&mut ui) {
            Ok(Some(arguments)) => dispatch(arguments, &mut ui),
            Ok(None) => return ExitCode::from(2),
            Err(error) => Err(error),
        },
    };
    outcome.unwrap_or_else(|error| {
        ui.error(&error);
        error.exit_code()
    })
}

/// Does the job of a process that this program has started; `None` for a command of the user.
///
/// The processes of a run are this program again. Users do not call them, so the help omits them.
#[cfg(target_os = "linux")]
fn internal_job(ui: &mut Ui) -> Option<Result<ExitCode, CliError>> {
    let mut arguments = std::env::args_os().skip(1);
    let first_argument = arguments.next()?;
    if let Some(stage) = process::ProcessStage::parse(&first_argument) {
        return Some(inner::run_stage(stage, arguments.next(), ui));
    }
    (first_argument == exec::SUPERVISE).then(|| exec::supervise(arguments))
}

/// Returns `None`: only Linux has emulated runs and supervised programs.
#[cfg(not(target_os = "linux"))]
fn internal_job(_ui: &mut Ui) -> Option<Result<ExitCode, CliError>> {
    None
}

/// Returns the arguments with the configuration file's defaults; `None` after clap printed an
/// error.
fn arguments(ui: &mut Ui) -> Result<Option<Arguments>, CliError> {
    let command = Arguments::command();
    let mut argv: Vec<_> = std::env::args_os().collect();
    // Clap prints the name of the program in a help text, without escapes.
    if let Some(name) = argv.first_mut() {
        *name = escape(&name.to_string_lossy()).into_owned().into();
    }
    let matches = match command.clone().try_get_matches_from(&argv) {
        Ok(matches) => matches,
        Err(error) if error.kind() == ErrorKind::DisplayHelp => error.exit(),
        Err(error) if error.kind() == ErrorKind::DisplayVersion => error.exit(),
        Err(error) => {
            ui.progress_lines(suggestions::explain(error, command, &argv));
            return Ok(None);
        }
    };
    let read = |matches: &clap::ArgMatches| {
        Arguments::from_arg_matches(matches).map_err(|error| CliError::Internal(error.to_string()))
    };
    let typed_arguments = read(&matches)?;
    if typed_arguments.no_config {
        return Ok(Some(typed_arguments));
    }
    let defaults = defaults::read(&command, &matches)?;
    if defaults.arguments.is_empty() {
        return Ok(Some(typed_arguments));
    }
    // Defaults go right after the command, before the options that were typed.
    let verb = matches.subcommand_name().unwrap_or_default();
    let insert_at = argv.iter().skip(1).position(|word| word == verb);
    let insert_at = insert_at.map_or(argv.len(), |at| at + 2);
    let mut with_defaults = argv;
    drop(with_defaults.splice(insert_at..insert_at, defaults.arguments.iter().map(Into::into)));
    match command.try_get_matches_from(&with_defaults) {
        Ok(matches) => {
            let mut arguments = read(&matches)?;
            arguments.configure(defaults.shown);
            Ok(Some(arguments))
        }
        Err(error) => {
            let text = error.to_string();
            let first_line = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
            Err(CliError::Unavailable {
                what: format!(
                    "`{}` does not match this command: {first_line}",
                    defaults.path.display()
                ),
                hint: "change the file, or ignore it with `--no-config`".to_owned(),
            })
        }
    }
}

fn dispatch(arguments: Arguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    match arguments.verb {
        Command::Run(arguments) => run::run(&arguments, ui),
        Command::Compare(arguments) => compare::compare(&arguments, ui),
        Command::Sweep(arguments) => sweep::sweep(&arguments, ui),
        Command::Reproduce(arguments) => reproduce::reproduce(&arguments, ui),
        #[cfg(target_os = "linux")]
        Command::Lab(arguments) => lab::lab(&arguments, ui),
        #[cfg(target_os = "linux")]
        Command::On(arguments) => lab::on(&arguments),
        #[cfg(target_os = "linux")]
        Command::Setup(arguments) => setup::setup(&arguments, ui),
        #[cfg(target_os = "linux")]
        Command::Exec(arguments) => exec::exec(&arguments, ui),
        #[cfg(target_os = "linux")]
        Command::Server(arguments) => server::server(&arguments, ui),
        #[cfg(target_os = "linux")]
        Command::Doctor(arguments) => doctor::doctor(&arguments, ui),
        #[cfg(target_os = "linux")]
        Command::Check(arguments) => check::check(&arguments, ui),
        #[cfg(target_os = "linux")]
        Command::Measure(arguments) => measure::measure(&arguments, ui),
        #[cfg(target_os = "linux")]
        Command::Monitor(arguments) => monitor::monitor(&arguments, ui),
        #[cfg(target_os = "linux")]
        Command::Collect(arguments) => collect::collect(&arguments, ui),
        Command::Upload(arguments) => upload::upload(&arguments, ui),
        Command::Agent(arguments) => agent::agent(&arguments, ui),
        Command::Report(arguments) => report::report(&arguments, ui),
        Command::Trace(arguments) => trace::trace(&arguments, ui),
        Command::Scenarios(arguments) => scenarios::scenarios(&arguments, ui),
        Command::Schema(arguments) => scenarios::schema(&arguments, Arguments::command(), ui),
        Command::Completions(arguments) => {
            generate::completions(&arguments, Arguments::command(), ui)
        }
        Command::Man(arguments) => generate::man(&arguments, Arguments::command(), ui),
    }
}
