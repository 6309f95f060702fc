//! Several programs on several hosts: each starts when the one before is ready.
//!
//! The timeline starts with the last program, and when that ends, the others are stopped. Only the
//! last one has the terminal. The others run in their own process groups: Ctrl-C reaches only the
//! last one, and each can be stopped with all its children.
//!
//! No wait is unbounded. A lab ends if all its processes only wait for peers, or if its server has
//! failed.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use towpath_net::Instant;
use towpath_os::clock::Clock;
use towpath_os::interrupt;
use towpath_os::namespace::Namespace;
use towpath_os::sys::signal::{send_signal, signal_group};
use towpath_scenario::Scenario;

use super::activity::{self, Processes};
use super::outcome::{LabOutcome, ProgramOutcome};
use super::output::Printers;
use super::ready::OpenSockets;
use super::{LabError, LabMessage, Program, Roles, environment};
use crate::network::{EmulatedNetwork, HostNamespace};
use crate::program;
use crate::traffic::FlowOutcome;

/// Interval between two polls of the programs' state.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Interval between two checks for activity.
const ACTIVITY_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Time after which a program without a socket is no longer waited for.
const READY_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without activity after which the lab ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Idle timeout after a program has failed.
const FAILED_IDLE_TIMEOUT: Duration = Duration::from_millis(500);
/// Time, plus one round trip, for programs to exit by themselves after the last one.
const EXIT_GRACE: Duration = Duration::from_millis(300);
/// Time between SIGTERM and SIGKILL.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time to print output that is still pending at the end.
const OUTPUT_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Programs of a lab and their state.
#[derive(Debug)]
pub(crate) struct LabPrograms {
    programs: Vec<Program>,
    /// Prefixes of the programs' output lines, in the order of `programs`.
    line_prefixes: Vec<String>,
    roles: Roles,
    /// Additional variables for the environment of every program.
    extra_env: Vec<(String, String)>,
    state: Mutex<LabState>,
    exit_grace: Duration,
}

#[derive(Debug)]
struct LabState {
    printers: Printers,
    /// Programs that were started before the last one.
    others: Vec<BackgroundProgram>,
    /// Result of the lab, once it has ended.
    outcome: Option<Result<LabOutcome, LabError>>,
}

/// Program that runs in parallel with the last one.
#[derive(Debug)]
struct BackgroundProgram {
    /// Child process; `None` for a program that has gone into the background.
    child: Option<Child>,
    outcome: ProgramOutcome,
}

impl LabPrograms {
    pub(super) fn new(
        programs: Vec<Program>,
        scenario: &Scenario,
        roles: Roles,
        extra_env: Vec<(String, String)>,
    ) -> Self {
        let round_trips = scenario.paths.iter().map(|p| p.up.delay.base + p.down.delay.base);
        let state = LabState { printers: Printers::new(), others: Vec::new(), outcome: None };
        Self {
            line_prefixes: line_prefixes(&programs, scenario),
            programs,
            roles,
            extra_env,
            state: Mutex::new(state),
            exit_grace: round_trips.max().unwrap_or_default() + EXIT_GRACE,
        }
    }

    fn state(&self) -> MutexGuard<'_, LabState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts all but the last program, one after the other.
    ///
    /// Returns the exit status of a program that failed before the next could start, or of an
    /// interrupt.
    pub(super) fn start_others(
        &self,
        network: &EmulatedNetwork,
        emit: &mut dyn FnMut(LabMessage<'_>),
    ) -> Result<Option<ExitStatus>, LabError> {
        let other_count = self.programs.len().saturating_sub(1);
        for (program, line_prefix) in
            self.programs.iter().zip(&self.line_prefixes).take(other_count)
        {
            let host = network.hosts.get(program.host).ok_or(LabError::Host)?;
            let baseline = ReadinessBaseline::of(host);
            let mut child = self.spawn(network, program, line_prefix, false)?;
            let readiness =
                wait_until_ready(&mut child, host, &baseline).map_err(program.io_error())?;
            let display_label = program_label(program, network);
            let add_background = |child, listens, status| {
                let outcome = ProgramOutcome { label: display_label.clone(), listens, status };
                self.state().others.push(BackgroundProgram { child, outcome });
            };
            match readiness {
                Readiness::Ready { listens } => add_background(Some(child), listens, None),
                Readiness::TimedOut => {
                    emit(LabMessage::Note(&format!(
                        "{display_label} has opened no socket for {READY_TIMEOUT:?}; the next one starts"
                    )));
                    add_background(Some(child), false, None);
                }
                Readiness::Background { listens } => add_background(None, listens, None),
                Readiness::Ended(status) if status.success() => {
                    add_background(None, false, Some(status));
                }
                Readiness::Ended(status) => {
                    emit(LabMessage::Note(&format!(
                        "{display_label} ended with {status} before the next one could start"
                    )));
                    emit(LabMessage::Hint(
                        "programs start in the order of the command line, servers first; append `|| true` to a command whose failure does not matter",
                    ));
                    self.stop_others();
                    return Ok(Some(status));
                }
                Readiness::Interrupted => {
                    add_background(Some(child), false, None);
                    self.stop_others();
                    return Ok(Some(ExitStatus::from_raw(libc::SIGINT)));
                }
            }
        }
        Ok(None)
    }

    /// Runs the last program to its end, then stops the others. Blocks.
    pub(crate) fn run_to_end(&self, network: &EmulatedNetwork) -> FlowOutcome {
        let result = self.run_last(network);
        let failure = match &result {
            Ok(outcome) => outcome.failure.clone(),
            Err(error) => Some(error.to_string()),
        };
        self.state().outcome = Some(result);
        self.stop_others();
        FlowOutcome { failure, ..FlowOutcome::default() }
    }

    fn run_last(&self, network: &EmulatedNetwork) -> Result<LabOutcome, LabError> {
        let (Some(last), Some(line_prefix)) = (self.programs.last(), self.line_prefixes.last())
        else {
            return Err(LabError::Host);
        };
        if interrupt::is_interrupted() {
            return Ok(LabOutcome::interrupted());
        }
        let host = network.hosts.get(last.host).ok_or(LabError::Host)?;
        let sockets_before = OpenSockets::read(&host.namespace);
        let display_label = program_label(last, network);
        let mut child = self.spawn(network, last, line_prefix, true)?;
        let mut monitor = ActivityMonitor::start(network);
        let mut exit_status = None;
        loop {
            if exit_status.is_none() {
                exit_status = child.try_wait().map_err(last.io_error())?;
            }
            let others = self.poll_others();
            if let Some(status) = exit_status {
                // Continue if the last program left a listener in the background and others can
                // still connect to it.
                let daemonized = status.success()
                    && others.iter().any(|other| !other.listens && other.status.is_none())
                    && OpenSockets::read(&host.namespace).has_new_listener_since(&sockets_before);
                if !daemonized || interrupt::is_interrupted() {
                    return Ok(LabOutcome::after_last_program(&display_label, status, &others));
                }
            }
            let is_shell = last.command.is_empty();
            if let Some(outcome) = monitor.detect_end(&display_label, &others).filter(|_| !is_shell)
            {
                terminate_all(&mut child, &monitor.namespaces);
                return Ok(outcome);
            }
            thread::sleep(if exit_status.is_some() {
                ACTIVITY_POLL_INTERVAL
            } else {
                POLL_INTERVAL
            });
        }
    }

    /// Returns the current outcome of the other programs.
    fn poll_others(&self) -> Vec<ProgramOutcome> {
        let mut state = self.state();
        let poll = |other: &mut BackgroundProgram| {
            let child = other.child.as_mut().filter(|_| other.outcome.status.is_none());
            let ended = child.and_then(|child| child.try_wait().ok().flatten());
            other.outcome.status = other.outcome.status.or(ended);
            other.outcome.clone()
        };
        state.others.iter_mut().map(poll).collect()
    }

    /// Returns the lab's exit status and emits its warning and hint.
    pub(super) fn report_outcome(
        &self,
        emit: &mut dyn FnMut(LabMessage<'_>),
    ) -> Result<ExitStatus, LabError> {
        let outcome = self.state().outcome.take().unwrap_or(Err(LabError::Host))?;
        if let Some((text, hint)) = &outcome.warning {
            emit(LabMessage::Warning(text));
            emit(LabMessage::Hint(hint));
        }
        Ok(outcome.status)
    }

    /// Waits briefly for programs to exit, sends SIGTERM, then SIGKILL.
    fn stop_others(&self) {
        let mut state = self.state();
        let others = std::mem::take(&mut state.others);
        let mut others: Vec<_> = others.into_iter().filter_map(|other| other.child).collect();
        wait_for_exit(&mut others, self.exit_grace);
        for (signal, timeout) in
            [(libc::SIGTERM, TERMINATE_TIMEOUT), (libc::SIGKILL, TERMINATE_TIMEOUT)]
        {
            for child in &others {
                let _ = signal_group(child.id(), signal); // it may have exited
            }
            wait_for_exit(&mut others, timeout);
        }
        state.printers.finish(OUTPUT_DRAIN_TIMEOUT);
    }

    fn spawn(
        &self,
        network: &EmulatedNetwork,
        program: &Program,
        line_prefix: &str,
        is_last: bool,
    ) -> Result<Child, LabError> {
        let host = network.hosts.get(program.host).ok_or(LabError::Host)?;
        let (name, arguments) = program.argv();
        let mut command = Command::new(name);
        command.args(arguments);
        command.envs(environment(&network.scenario, program.host, self.roles));
        command.envs(self.extra_env.iter().map(|(name, value)| (name, value)));
        if !is_last {
            command.stdin(Stdio::null()).process_group(0);
        }
        let has_prefix = self.programs.len() > 1;
        if has_prefix {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let mut child =
            program::start(&host.namespace, &mut command).map_err(program.io_error())?;
        let state = self.state();
        let printers = [
            child.stdout.take().map(|out| {
                let open_output = || Box::new(io::stdout()) as Box<dyn Write>;
                state.printers.add(line_prefix.to_owned(), out, open_output)
            }),
            child.stderr.take().map(|err| {
                let open_output = || Box::new(io::stderr()) as Box<dyn Write>;
                state.printers.add(line_prefix.to_owned(), err, open_output)
            }),
        ];
        printers.into_iter().flatten().collect::<io::Result<()>>().map_err(program.io_error())?;
        Ok(child)
    }
}

/// Monitor of the activity in a lab.
struct ActivityMonitor<'a> {
    clock: Clock,
    namespaces: Vec<&'a Namespace>,
    next_check: Instant,
    sent_packets: u64,
    /// Time since which no host has sent a packet.
    quiet_since: Instant,
    /// Time at which a failed server was found.
    server_failed_at: Option<Instant>,
}

impl<'a> ActivityMonitor<'a> {
    fn start(network: &'a EmulatedNetwork) -> Self {
        let clock = Clock::start();
        let namespaces = network.hosts.iter().map(|host| &host.namespace).collect();
        Self {
            clock,
            namespaces,
            next_check: clock.now(),
            sent_packets: 0,
            quiet_since: clock.now(),
            server_failed_at: None,
        }
    }

    /// Returns the outcome if nothing more can happen in the lab.
    fn detect_end(&mut self, last_label: &str, others: &[ProgramOutcome]) -> Option<LabOutcome> {
        let now = self.clock.now();
        if now < self.next_check {
            return None;
        }
        self.next_check = now + ACTIVITY_POLL_INTERVAL;
        if others.iter().any(ProgramOutcome::is_failed_server) {
            let failed_at = *self.server_failed_at.get_or_insert(now);
            if now >= failed_at + TERMINATE_TIMEOUT {
                return LabOutcome::server_failed(last_label, others);
            }
        }
        let sent_packets = activity::sent_packets(&self.namespaces);
        if sent_packets != self.sent_packets {
            (self.sent_packets, self.quiet_since) = (sent_packets, now);
        }
        let failed =
            others.iter().any(|other| other.status.is_some_and(|status| !status.success()));
        let timeout = if failed { FAILED_IDLE_TIMEOUT } else { IDLE_TIMEOUT };
        let idle =
            now >= self.quiet_since + timeout && activity::all_processes_wait(&self.namespaces);
        idle.then(|| LabOutcome::idle(last_label, others))
    }
}

/// Stops a program and all other processes on the hosts.
fn terminate_all(child: &mut Child, namespaces: &[&Namespace]) {
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        let processes = Processes::on_hosts(namespaces.iter().copied());
        // If /proc belongs to another PID namespace, so do its process IDs.
        let self_link = std::fs::read_link("/proc/self").ok();
        let is_same_pid_namespace = self_link.is_some_and(|self_link| {
            self_link.as_os_str() == std::process::id().to_string().as_str()
        });
        let ids = processes
            .pids()
            .into_iter()
            .filter_map(|id| id.parse().ok())
            .filter(|_| is_same_pid_namespace);
        for id in ids.chain([child.id()]) {
            let _ = send_signal(id, signal); // it may have exited
        }
        let clock = Clock::start();
        let deadline = clock.now() + TERMINATE_TIMEOUT;
        while clock.now() < deadline {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Returns a display label of a program and its host.
fn program_label(program: &Program, network: &EmulatedNetwork) -> String {
    let host = network.hosts.get(program.host).map_or("?", |host| host.name.as_str());
    format!("`{}` on {host}", program.command_line())
}

/// Progress of a program's start.
enum Readiness {
    Ready {
        listens: bool,
    },
    /// The program opened no socket before the timeout.
    TimedOut,
    /// The program exited and left background processes.
    Background {
        listens: bool,
    },
    Ended(ExitStatus),
    Interrupted,
}

/// Sockets and processes on a host before a program started.
struct ReadinessBaseline {
    sockets: OpenSockets,
    processes: BTreeSet<String>,
}

impl ReadinessBaseline {
    fn of(host: &HostNamespace) -> Self {
        let processes = Processes::on_host(&host.namespace).pids();
        Self { sockets: OpenSockets::read(&host.namespace), processes }
    }
}

fn wait_until_ready(
    child: &mut Child,
    host: &HostNamespace,
    baseline: &ReadinessBaseline,
) -> io::Result<Readiness> {
    let clock = Clock::start();
    let deadline = clock.now() + READY_TIMEOUT;
    loop {
        // The order matters: a program that ends now has opened its socket before.
        let exit_status = child.try_wait()?;
        let sockets = OpenSockets::read(&host.namespace);
        let has_socket = sockets.has_new_since(&baseline.sockets);
        let listens = sockets.has_new_listener_since(&baseline.sockets);
        match exit_status {
            None if has_socket => return Ok(Readiness::Ready { listens }),
            Some(status) if !status.success() => return Ok(Readiness::Ended(status)),
            Some(_) if listens => return Ok(Readiness::Background { listens }),
            Some(status) => {
                // A daemon's parent may end before the daemon listens.
                let remaining = Processes::on_host(&host.namespace).pids();
                if remaining.is_subset(&baseline.processes) {
                    return Ok(Readiness::Ended(status));
                }
            }
            None => {}
        }
        if interrupt::is_interrupted() {
            return Ok(Readiness::Interrupted);
        }
        if clock.now() >= deadline {
            let background = Readiness::Background { listens };
            return Ok(if exit_status.is_some() { background } else { Readiness::TimedOut });
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Waits up to `timeout` for the children to exit; removes those that have exited.
fn wait_for_exit(children: &mut Vec<Child>, timeout: Duration) {
    let clock = Clock::start();
    let deadline = clock.now() + timeout;
    loop {
        // A child that cannot be waited for does not exist.
        children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        if children.is_empty() || clock.now() >= deadline {
            return;
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Returns prefixes such as `server | ` of equal width, numbered where a host has several programs.
fn line_prefixes(programs: &[Program], scenario: &Scenario) -> Vec<String> {
    let mut names = Vec::new();
    for (index, program) in programs.iter().enumerate() {
        let name = scenario.hosts.get(program.host).map_or("?", |host| host.name.as_str());
        let on_same_host = |other: &&Program| other.host == program.host;
        let number = programs.iter().take(index + 1).filter(on_same_host).count();
        let several = programs.iter().filter(on_same_host).count() > 1;
        names.push(if several { format!("{name} {number}") } else { name.to_owned() });
    }
    let width = names.iter().map(String::len).max().unwrap_or_default();
    names.iter().map(|name| format!("{name:<width$} | ")).collect()
}
