//! Runs in the emulated world: what it supports, and each run in processes of its own.

#[cfg(target_os = "linux")]
use std::io::{BufRead, BufReader, Write};
use std::process::ExitStatus;
#[cfg(target_os = "linux")]
use std::process::Stdio;

use serde::{Deserialize, Serialize};
#[cfg(target_os = "linux")]
use towpath_os::{interrupt, sandbox};
use towpath_result::{RunOrder, Warning};
use towpath_scenario::{Host, Pattern, Scenario, StackKind, Transport};

use crate::error::CliError;
use crate::load::ScenarioText;
use crate::options::{BackendChoice, CaptureSpec};
#[cfg(target_os = "linux")]
use crate::process::{self, InnerJob};
use crate::ui::Ui;

/// One run, as the inner process gets it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct EmulatedRun {
    pub(crate) scenario: ScenarioText,
    pub(crate) transport: Transport,
    pub(crate) repeat: u32,
    pub(crate) order: Option<RunOrder>,
    pub(crate) backend: BackendChoice,
    pub(crate) pcap: Option<CaptureSpec>,
}

/// Reason why this machine cannot emulate.
#[derive(Debug, Clone)]
pub(crate) struct Obstacle {
    pub(crate) reason: String,
    pub(crate) remedy: Option<String>,
}

/// Makes a run and passes each line of its output to `on_line`.
///
/// An interrupt of this process ends the run early; it still has a result. An error of `on_line`
/// ends it at once.
#[cfg(target_os = "linux")]
pub(crate) fn run(
    run: &EmulatedRun,
    on_line: &mut dyn FnMut(String) -> Result<(), CliError>,
) -> Result<ExitStatus, CliError> {
    let text = serde_json::to_string(run).map_err(|error| CliError::Internal(error.to_string()))?;
    let mut child = process::spawn(&InnerJob::Run, Stdio::piped(), Stdio::piped())?;
    // Closing this pipe stops the run.
    let mut stop_pipe = child.stdin.take();
    if let Some(pipe) = &mut stop_pipe {
        // Fails if the child could not enter the namespaces, which it has reported itself.
        let _ = writeln!(pipe, "{text}");
    }
    if let Some(pipe) = child.stdout.take() {
        for line in BufReader::new(pipe).lines() {
            let line = line.map_err(CliError::Spawn)?;
            if interrupt::is_interrupted() {
                drop(stop_pipe.take());
            }
            on_line(line)?;
        }
    }
    sandbox::wait(&mut child).map_err(CliError::Spawn)
}

/// Refuses the run.
#[cfg(not(target_os = "linux"))]
pub(crate) fn run(
    _run: &EmulatedRun,
    _on_line: &mut dyn FnMut(String) -> Result<(), CliError>,
) -> Result<ExitStatus, CliError> {
    Err(CliError::Unavailable { what: NO_LINUX.to_owned(), hint: "use `--world sim`".to_owned() })
}

/// Returns why this machine cannot emulate, if so; with `needs_mptcp`, also without Multipath TCP.
#[cfg(target_os = "linux")]
pub(crate) fn obstacle(needs_mptcp: bool) -> Option<Obstacle> {
    let emulation = process::preflight();
    let missing = emulation.missing(needs_mptcp)?.clone();
    Some(Obstacle { reason: missing.reason, remedy: missing.remedy })
}

/// Returns why this machine cannot emulate.
#[cfg(not(target_os = "linux"))]
#[expect(clippy::unnecessary_wraps, reason = "as on Linux")]
pub(crate) fn obstacle(_needs_mptcp: bool) -> Option<Obstacle> {
    Some(Obstacle { reason: NO_LINUX.to_owned(), remedy: None })
}

#[cfg(not(target_os = "linux"))]
const NO_LINUX: &str = "emulated networks need Linux";

/// Rejects runs that the emulated world does not support, before any file is written.
pub(crate) fn check(scenario: &Scenario, transports: &[Transport]) -> Result<(), CliError> {
    check_commands(scenario)?;
    check_quic(scenario, transports)
}

/// Rejects flows that run a command on a host with towpath's stack.
///
/// Commands use the kernel's sockets, so their traffic would not cross that stack.
fn check_commands(scenario: &Scenario) -> Result<(), CliError> {
    let command_flows =
        scenario.flows.iter().filter(|flow| matches!(flow.pattern, Pattern::Run { .. }));
    let hosts = command_flows.flat_map(|flow| [flow.from, flow.to]);
    let mut command_hosts = hosts.filter_map(|host| scenario.hosts.get(host));
    match command_hosts.find(|host| host.stack.stack == StackKind::Towpath) {
        Some(host) => Err(CliError::Unavailable {
            what: format!("a flow runs a command, which cannot use the stack of `{}`", host.name),
            hint: "set `stack = \"kernel\"` for both of its hosts".to_owned(),
        }),
        None => Ok(()),
    }
}

/// Rejects congestion controls that QUIC does not have.
fn check_quic(scenario: &Scenario, transports: &[Transport]) -> Result<(), CliError> {
    if !transports.iter().any(|transport| matches!(transport, Transport::Quic | Transport::Mpquic))
    {
        return Ok(());
    }
    let known_controls =
        towpath_quic::congestion::names().map(|(name, _)| name).collect::<Vec<_>>();
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
pub(crate) fn warn_kernel_stack(scenario: &Scenario, ui: &mut Ui) {
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
            format!("host `{}` has the kernel's stack, which does not support {}", host.name, {
                keys.join(", ")
            });
        warn(text, "set `stack = \"towpath\"`, or simulate it with `--world sim`");
    }
    if !scenario.middleboxes.is_empty() {
        let text = "middleboxes exist in the simulated world only";
        warn(text.to_owned(), "simulate it with `--world sim`");
    }
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
