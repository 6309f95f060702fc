//! The process that the user started: it starts the program and its supervisor, forwards signals
//! and waits.
//!
//! It stays in the program's process group. Signals from the terminal reach the program directly;
//! those sent to this process alone are forwarded. When the program stops, this process stops too,
//! so that the shell notices.

use std::ffi::OsString;
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use towpath_os::filter;
use towpath_os::sys::{seccomp, signal};

use super::ExecError;

/// Signals from other processes that are forwarded to the program.
const FORWARDED_SIGNALS: [libc::c_int; 12] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGCONT,
    libc::SIGWINCH,
];
/// Interval at which the program's state is polled, as a stop may precede the wait for its signal.
const SIGNAL_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Timeout for the supervisor's summary after the program has ended.
const SUMMARY_TIMEOUT: Duration = Duration::from_secs(5);

/// A program to run over Multipath TCP.
#[derive(Debug)]
pub struct Launch<'a> {
    /// Program and its arguments; the first is the program.
    pub command: &'a [OsString],
    /// Arguments that make this executable call [`supervise`](super::supervise()).
    pub supervisor: &'a [OsString],
}

/// Exit of the program and the supervisor's summary.
#[derive(Debug)]
pub struct ProgramExit {
    /// Exit status of the program.
    pub status: ExitStatus,
    /// Summary of the supervisor; `None` when it is gone or sent nothing in time.
    pub summary: Option<String>,
}

/// Runs the program until it ends. Processes that it leaves behind stay supervised.
pub fn launch(launch: &Launch<'_>) -> Result<ProgramExit, ExecError> {
    let filter = filter::notify_on_tcp_socket().ok_or(ExecError::Machine)?;
    seccomp::check_sizes().map_err(ExecError::Kernel)?;
    let (name, arguments) = launch.command.split_first().ok_or(ExecError::Empty)?;
    let mut signals = FORWARDED_SIGNALS.to_vec();
    signals.push(libc::SIGCHLD);
    let mask = signal::block_signals(&signals).map_err(ExecError::System)?;
    let (our_end, child_end) = UnixStream::pair().map_err(ExecError::System)?;
    let mut command = Command::new(name);
    command.args(arguments);
    seccomp::filter_on_start(&mut command, filter, child_end, mask);
    let spawned = command.spawn();
    // Dropping the command closes the other end of the channel, unless a process holds it.
    drop(command);
    let listener = seccomp::receive_descriptor(our_end.as_fd()).map_err(ExecError::System)?;
    let child = match (spawned, &listener) {
        (Ok(child), _) => child,
        (Err(source), Some(_)) => {
            return Err(ExecError::Program { program: name.to_string_lossy().into(), source });
        }
        (Err(source), None) if source.raw_os_error() == Some(libc::EBUSY) => {
            return Err(ExecError::Nested);
        }
        (Err(source), None) => return Err(ExecError::Kernel(source)),
    };
    let listener = listener.ok_or(ExecError::System(io::ErrorKind::UnexpectedEof.into()))?;
    let supervisor = start_supervisor(launch.supervisor, listener);
    let (supervisor, control) = supervisor.map_err(ExecError::System)?;
    let status = wait_for_exit(&child, &signals).map_err(ExecError::System)?;
    Ok(ProgramExit { status, summary: read_summary(supervisor, control) })
}

/// Replaces this process by the program, with `variable` in its environment.
///
/// Returns only on failure.
pub fn exec(command: &[OsString], variable: (&str, OsString)) -> ExecError {
    let Some((name, arguments)) = command.split_first() else { return ExecError::Empty };
    let source = Command::new(name).args(arguments).env(variable.0, variable.1).exec();
    ExecError::Program { program: name.to_string_lossy().into(), source }
}

/// Starts the supervisor with the listener as standard input and the control channel as output.
///
/// In a process group of its own, signals from the terminal do not stop it: other processes of the
/// program may continue. It inherits the blocked signals, and so ends with the program, not before.
fn start_supervisor(arguments: &[OsString], listener: OwnedFd) -> io::Result<(Child, UnixStream)> {
    let (our_end, supervisor_end) = UnixStream::pair()?;
    let child = Command::new("/proc/self/exe")
        .args(arguments)
        .stdin(Stdio::from(listener))
        .stdout(Stdio::from(OwnedFd::from(supervisor_end)))
        // A reader of our standard error must not wait for processes that the program leaves.
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    Ok((child, our_end))
}

fn wait_for_exit(child: &Child, signals: &[libc::c_int]) -> io::Result<ExitStatus> {
    loop {
        match signal::child_state(child.id())? {
            signal::ChildState::Ended(status) => return Ok(ExitStatus::from_raw(status)),
            signal::ChildState::Stopped => {
                signal::send_signal(std::process::id(), libc::SIGSTOP)?;
            }
            signal::ChildState::Running => {}
        }
        let Some(signal) = signal::wait_for_signal(signals, SIGNAL_POLL_INTERVAL)? else {
            continue;
        };
        // Signals from the kernel, or from the program to its group, have reached it already.
        let is_from_others =
            signal.sender.is_some_and(|sender| u32::try_from(sender) != Ok(child.id()));
        if is_from_others && signal.number != libc::SIGCHLD {
            let _ = signal::send_signal(child.id(), signal.number); // it may just have exited
        }
    }
}

/// Notifies the supervisor that the program has ended, and returns its summary.
fn read_summary(mut supervisor: Child, mut control: UnixStream) -> Option<String> {
    control.shutdown(Shutdown::Write).ok()?;
    control.set_read_timeout(Some(SUMMARY_TIMEOUT)).ok()?;
    let mut summary = String::new();
    let read = control.read_to_string(&mut summary);
    let _ = supervisor.try_wait(); // reaps it if it has exited
    read.ok().filter(|_| !summary.is_empty()).map(|_| summary)
}
