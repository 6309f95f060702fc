//! `towpath agent`: the volunteer's side of a collector's devices.
//!
//! A device joins a collector once, after its owner has read and accepted a consent text
//! ([`consent`]). Its token is in a file of the owner ([`DeviceFile`]). The owner can see what the
//! collector has ([`view`]), and delete it ([`membership`]).
//!
//! On Linux, a device makes the runs of the collector's campaigns ([`run`]). Its owner can start a
//! mobile round ([`walk`]). The next step follows from the journal, the verified campaigns
//! ([`offers`]) and the time alone ([`schedule`]).

mod consent;
#[cfg(target_os = "linux")]
mod journal;
#[cfg(target_os = "linux")]
mod limits;
mod membership;
#[cfg(target_os = "linux")]
mod offers;
#[cfg(target_os = "linux")]
mod plan;
#[cfg(target_os = "linux")]
mod reporting;
#[cfg(target_os = "linux")]
mod round;
#[cfg(target_os = "linux")]
mod run;
#[cfg(target_os = "linux")]
mod run_result;
#[cfg(target_os = "linux")]
mod schedule;
#[cfg(target_os = "linux")]
mod servers;
mod view;
#[cfg(target_os = "linux")]
mod walk;

use std::io::{self, IsTerminal as _, StdinLock};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use towpath_os::clock::unix_us;

use crate::error::CliError;
use crate::ui::Ui;
use crate::upload::DeviceFile;

use consent::ConsentArguments;
#[cfg(target_os = "linux")]
use limits::LimitsArguments;
use membership::{ForgetArguments, JoinArguments};
#[cfg(target_os = "linux")]
use plan::PlanArguments;
#[cfg(target_os = "linux")]
use run::AgentRunArguments;
use view::{ResultsArguments, StatusArguments};
#[cfg(target_os = "linux")]
use walk::WalkArguments;

/// Take part in a collector's study, with the consent of this device's owner
///
/// The operator of a collector gives out codes. A device joins with a code, after its owner has
/// accepted the collector's consent text. Its owner can see all stored runs of the device, and
/// delete them at any time. `towpath upload` and the option `--to` then need no `--token-file`. On
/// Linux, `towpath agent run` makes the runs of the collector's campaigns, and `towpath agent walk`
/// makes a mobile round at once.
#[derive(Debug, Args)]
pub(crate) struct AgentArguments {
    #[command(subcommand)]
    command: AgentCommand,
    /// File with the state of the device [default: ~/.config/towpath/agent.toml]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum AgentCommand {
    Join(JoinArguments),
    Status(StatusArguments),
    Consent(ConsentArguments),
    Results(ResultsArguments),
    #[cfg(target_os = "linux")]
    Limits(LimitsArguments),
    #[cfg(target_os = "linux")]
    Plan(PlanArguments),
    #[cfg(target_os = "linux")]
    Run(AgentRunArguments),
    #[cfg(target_os = "linux")]
    Walk(WalkArguments),
    Forget(ForgetArguments),
}

pub(crate) fn agent(arguments: &AgentArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    let file = DeviceFile::find(arguments.config.as_deref())?;
    let mut stdin = terminal();
    let terminal = stdin.as_mut().map(|stdin| stdin as &mut dyn io::BufRead);
    match &arguments.command {
        AgentCommand::Join(arguments) => {
            membership::join(arguments, &file, (terminal, unix_us()), ui)
        }
        AgentCommand::Status(arguments) => view::status(arguments, &file, ui),
        AgentCommand::Consent(arguments) => {
            consent::renew(arguments, &file, (terminal, unix_us()), ui)
        }
        AgentCommand::Results(arguments) => view::results(arguments, &file, ui),
        #[cfg(target_os = "linux")]
        AgentCommand::Limits(arguments) => limits::limits(arguments, &file, ui),
        #[cfg(target_os = "linux")]
        AgentCommand::Plan(arguments) => plan::plan(arguments, &file, ui),
        #[cfg(target_os = "linux")]
        AgentCommand::Run(arguments) => run::run(arguments, &file, ui),
        #[cfg(target_os = "linux")]
        AgentCommand::Walk(arguments) => walk::walk(arguments, &file, terminal, ui),
        AgentCommand::Forget(arguments) => membership::forget(arguments, &file, terminal, ui),
    }
}

/// Returns standard input if it is a terminal, at which a person can answer.
fn terminal() -> Option<StdinLock<'static>> {
    let stdin = io::stdin();
    stdin.is_terminal().then(|| stdin.lock())
}
