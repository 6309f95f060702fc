//! The process in which a run happens, and how it gets its privileges.
//!
//! There are three processes, so that nothing can stay behind:
//! 1. the command (`towpath run`): the user's own process, unchanged;
//! 2. the *outer* process: enters new user, mount, network and PID namespaces, starts 3, waits;
//! 3. the *inner* process: process 1 of the new PID namespace, root of the new user namespace. It
//!    makes the hosts, runs the emulator and the traffic, and starts every further program.
//!
//! The kernel kills 2 and 3 when their parent dies. When 3 dies, the kernel kills everything in its
//! PID namespace. The network namespaces, TUN devices and veth pairs are held by its descriptors
//! only, so they go as well. All of this also holds after `kill -9`.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Sender};
use std::thread;

use thiserror::Error;

use crate::sys;

/// Real-time priority that the emulator requests.
pub const EMULATOR_PRIORITY: i32 = 40;

type SandboxTask = Box<dyn FnOnce() + Send>;

/// Thread that got its priority before the process dropped the privilege to grant it.
///
/// Root of a user namespace may not set real-time priority, but a thread keeps what it has.
#[derive(Debug)]
pub struct EmulatorThread {
    tasks: Sender<SandboxTask>,
}

impl EmulatorThread {
    /// Reserves a thread with the calling thread's priority, then gives the calling thread ordinary
    /// priority.
    ///
    /// Threads and processes started later inherit the ordinary priority.
    fn reserve() -> io::Result<Self> {
        let (tasks, task_receiver) = mpsc::channel::<SandboxTask>();
        thread::Builder::new().name("emulator".into()).spawn(move || {
            if let Ok(task) = task_receiver.recv() {
                task();
            }
        })?;
        sys::set_ordinary_priority()?;
        Ok(Self { tasks })
    }

    /// Starts a thread without real-time priority, for processes that need no sandbox.
    pub fn ordinary() -> io::Result<Self> {
        Self::reserve()
    }

    /// Runs `task` on the thread.
    pub fn run(self, task: impl FnOnce() + Send + 'static) {
        // The thread waits for exactly this message.
        let _ = self.tasks.send(Box::new(task)); // the thread may have ended
    }
}

/// Environment variable that the outer process sets if it runs without a user namespace.
///
/// Then root inside is root of the machine.
const REAL_ROOT: &str = "TOWPATH_REAL_ROOT";

/// Capabilities of programs that run as root of the machine: those for a network and own files.
///
/// All others reach beyond the namespaces: other network namespaces (`CAP_SYS_ADMIN`), the kernel's
/// modules and memory, other processes, the clock, devices.
const KEPT_CAPABILITIES: [libc::c_ulong; 11] = [
    0,  // CAP_CHOWN
    1,  // CAP_DAC_OVERRIDE
    3,  // CAP_FOWNER
    4,  // CAP_FSETID
    5,  // CAP_KILL, in a PID namespace of their own
    6,  // CAP_SETGID
    7,  // CAP_SETUID
    10, // CAP_NET_BIND_SERVICE
    11, // CAP_NET_BROADCAST
    12, // CAP_NET_ADMIN, over the namespace that they are in
    13, // CAP_NET_RAW
];

/// Environment variable with the PID of a process's parent; the process must end with it.
pub const PARENT: &str = "TOWPATH_PARENT";

/// Errors of setting up the sandbox.
#[derive(Debug, Error)]
pub enum SandboxError {
    /// The kernel or an administrator forbids user namespaces.
    #[error("{}", namespaces_refused(.0).0)]
    UserNamespace(#[source] io::Error),
    /// Another step of setting the namespaces up failed.
    #[error("cannot {action}: {source}")]
    Step {
        /// Description of the failed step.
        action: &'static str,
        /// Error of the system call.
        source: io::Error,
    },
    /// The process that requested the run has ended.
    #[error("the process that requested this run has ended")]
    Orphaned,
}

impl SandboxError {
    /// Returns advice on how to resolve the error, for users.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::UserNamespace(source) => Some(namespaces_refused(source).1),
            Self::Step { .. } | Self::Orphaned => None,
        }
    }
}

/// Returns the reason and the remedy when a process may not enter new user namespaces.
pub fn namespaces_refused(source: &io::Error) -> (String, String) {
    let (cause, remedy) = userns_restriction().unwrap_or_else(|| {
        let cause = format!("`unshare`: {}", without_number(source));
        (cause, "in a container, allow the `unshare` system call (seccomp)".to_owned())
    });
    let reason = format!("user namespaces are not available here ({cause})");
    (reason, format!("{remedy}, or run towpath as root"))
}

/// Formats an error in lower case and without its number, to follow a colon.
pub fn without_number(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    letters.next().into_iter().flat_map(char::to_lowercase).chain(letters).collect()
}

/// Returns the kernel setting that forbids user namespaces, and the command that allows them.
///
/// `None` if no known setting forbids them.
pub(crate) fn userns_restriction() -> Option<(String, String)> {
    let switches = [
        ("user.max_user_namespaces", "0", "10000"),
        ("kernel.unprivileged_userns_clone", "0", "1"),
        ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ];
    switches.into_iter().find_map(|(name, forbids, allows)| {
        let value = fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/"))).ok()?;
        (value.trim() == forbids).then(|| {
            (format!("{name} is {forbids}"), format!("run `sysctl {name}={allows}` as root"))
        })
    })
}

/// Starts this program as the outer process, with `arguments`.
///
/// Standard input and output are `stdin` and `stdout`; standard error is inherited.
pub fn spawn(arguments: &[OsString], stdin: Stdio, stdout: Stdio) -> io::Result<Child> {
    Command::new(env::current_exe()?)
        .args(arguments)
        .env(PARENT, std::process::id().to_string())
        .env_remove(crate::COLLECTOR_TOKEN)
        .stdin(stdin)
        .stdout(stdout)
        .spawn()
}

/// Runs the outer process: enters the namespaces and waits for the inner process.
///
/// The inner process is this program with `arguments`. Must be called while the process has one
/// thread.
pub fn outer(arguments: &[OsString]) -> Result<ExitStatus, SandboxError> {
    let step_error = |action| move |source| SandboxError::Step { action, source };
    // The inner process inherits the priority, but only the emulator's thread keeps it.
    let _ = sys::set_real_time_priority(EMULATOR_PRIORITY); // may be refused
    let is_real_root = enter_namespaces()?;
    die_with_parent(env::var(PARENT).ok())?;
    let mut inner = Command::new("/proc/self/exe")
        .args(arguments)
        // The parent is outside the PID namespace, so its PID is 0 there.
        .env(PARENT, "0")
        .env(REAL_ROOT, if is_real_root { "1" } else { "0" })
        .spawn()
        .map_err(step_error("start the emulator process"))?;
    sys::set_ordinary_priority().map_err(step_error("return to ordinary priority"))?;
    wait(&mut inner).map_err(step_error("wait for the emulator process"))
}

/// Waits for a process, also when a signal interrupts the wait.
pub fn wait(child: &mut Child) -> io::Result<ExitStatus> {
    loop {
        match child.wait() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Prepares the inner process; must be called first in it.
pub fn inner() -> Result<EmulatorThread, SandboxError> {
    die_with_parent(env::var(PARENT).ok())?;
    let step_error = |action| move |source| SandboxError::Step { action, source };
    sys::make_mounts_private().map_err(step_error("make mounts private"))?;
    // Refused where a container masks parts of /proc; then the old one stays, with foreign PIDs.
    let _ = sys::mount_proc();
    EmulatorThread::reserve().map_err(step_error("start the emulator's thread"))
}

/// Returns true if root inside is root of the machine, for lack of a user namespace.
pub fn is_real_root() -> bool {
    env::var_os(REAL_ROOT).is_some_and(|value| value == "1")
}

/// Prepares the calling thread to start a program of the user's with minimal privileges.
pub fn limit_program(command: &mut Command) -> io::Result<()> {
    command.env_remove(PARENT).env_remove(REAL_ROOT);
    // Root of a user namespace has no privileges outside it.
    if is_real_root() { sys::capability::limit_programs(&KEPT_CAPABILITIES) } else { Ok(()) }
}

fn die_with_parent(parent: Option<String>) -> Result<(), SandboxError> {
    sys::die_with_parent()
        .map_err(|source| SandboxError::Step { action: "tie the process to its parent", source })?;
    // The parent may have died before the call above.
    match parent.and_then(|text| text.parse::<i32>().ok()) {
        Some(id) if id == sys::parent_pid() => Ok(()),
        Some(_) | None => Err(SandboxError::Orphaned),
    }
}

/// Enters new namespaces; returns true if it did without a user namespace.
fn enter_namespaces() -> Result<bool, SandboxError> {
    let (user, group) = sys::user_and_group();
    let namespaces = libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWPID;
    match sys::unshare(libc::CLONE_NEWUSER | namespaces) {
        Ok(()) => map_to_root(user, group).map(|()| false),
        // Real root needs no user namespace.
        Err(_) if user == 0 && sys::unshare(namespaces).is_ok() => Ok(true),
        Err(error) => Err(SandboxError::UserNamespace(error)),
    }
}

fn map_to_root(user: u32, group: u32) -> Result<(), SandboxError> {
    let write =
        |path: &str, text: String| fs::write(path, text).map_err(SandboxError::UserNamespace);
    write("/proc/self/setgroups", "deny".into())?;
    write("/proc/self/uid_map", format!("0 {user} 1"))?;
    write("/proc/self/gid_map", format!("0 {group} 1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_that_forbids_namespaces_is_the_reason() {
        let error = io::Error::from_raw_os_error(libc::EPERM);
        let (reason, remedy) = namespaces_refused(&error);
        assert!(reason.starts_with("user namespaces are not available here ("), "{reason}");
        assert!(remedy.ends_with(", or run towpath as root"));
    }
}
