//! The supervisor: makes a Multipath TCP socket for each TCP socket that the program requests.
//!
//! It keeps no copy of a socket, because that would delay the end of the connection.

use std::fs;
use std::io::{self, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use socket2::{Domain, Protocol, Socket, Type};
use towpath_os::filter::SocketRequest;
use towpath_os::sys;
use towpath_os::sys::seccomp;

use super::ExecError;
use super::observe::Observer;
use super::record::ExecRecorder;
use super::summary::{SocketSummary, UpgradeRefusal};

/// Result file, and the command that it describes.
#[derive(Debug)]
pub struct RecordTarget<'a> {
    /// Absolute path of the result file.
    pub path: PathBuf,
    /// Command line, as shown to users.
    pub command: &'a str,
}

/// Replies to the seccomp notifications of a program until its last process has ended.
///
/// When the program's first process has ended, or all have, `describe` formats the summary of the
/// counts.
///
/// Standard input must be the listener, and standard output the control channel: see
/// [`launch`](super::launch()).
pub fn supervise(
    record: Option<RecordTarget<'_>>,
    describe: &dyn Fn(&SocketSummary) -> String,
) -> Result<(), ExecError> {
    sys::close_from(3);
    let duplicate = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map_err(ExecError::System);
    let listener = duplicate(io::stdin().as_fd())?;
    let control = UnixStream::from(duplicate(io::stdout().as_fd())?);
    // A folder in use cannot be unmounted.
    let _ = std::env::set_current_dir("/"); // best effort
    seccomp::switch_directly(listener.as_fd());
    let home_namespace = namespace_of("self").map_err(ExecError::System)?;
    let begin = |record: RecordTarget<'_>| {
        ExecRecorder::begin(record.path, record.command, sys::monotonic())
    };
    let recorder = record.map(begin).transpose().map_err(ExecError::System)?;
    let mut supervisor = Supervisor {
        listener,
        home_namespace,
        summary: SocketSummary::default(),
        observer: Observer::open(recorder),
    };
    let mut control = Some(control);
    loop {
        let mut fds = vec![sys::input_pollfd(&supervisor.listener)];
        fds.extend(control.as_ref().map(sys::input_pollfd));
        // After the summary, the sockets need no more polling.
        let timeout =
            control.as_ref().and_then(|_| supervisor.observer.next_poll(sys::monotonic()));
        sys::poll(&mut fds, timeout).map_err(ExecError::System)?;
        let events = |index: usize| fds.get(index).map_or(0, |fd| fd.revents);
        let (listener_events, first_process_ended) = (events(0), events(1) != 0);
        if listener_events & libc::POLLIN != 0 {
            supervisor.handle_notification().map_err(ExecError::System)?;
        }
        if control.is_some() {
            supervisor.observer.poll_if_due(&sys::monotonic);
        }
        let all_ended = listener_events & libc::POLLHUP != 0;
        let is_complete = all_ended || (first_process_ended && listener_events & libc::POLLIN == 0);
        if let Some(mut control) = control.take_if(|_| is_complete) {
            supervisor.observer.poll(&sys::monotonic);
            let summary = supervisor.observer.conclude(&supervisor.summary, sys::monotonic());
            let _ = control.write_all(describe(&summary).as_bytes()); // the peer may be gone
            let _ = control.shutdown(Shutdown::Both);
        }
        if all_ended {
            return Ok(());
        }
    }
}

struct Supervisor {
    listener: OwnedFd,
    /// Network namespace in which the supervisor makes sockets, by inode.
    home_namespace: u64,
    summary: SocketSummary,
    observer: Observer,
}

impl Supervisor {
    fn handle_notification(&mut self) -> io::Result<()> {
        let listener = self.listener.as_fd();
        let Some(notification) = seccomp::receive_notification(listener)? else { return Ok(()) };
        let request = SocketRequest::parse(notification.arguments);
        // The process may have moved to another namespace, where a socket from here is useless.
        let namespace = namespace_of(&notification.thread.to_string());
        if !seccomp::is_valid(listener, notification.id) {
            return Ok(());
        }
        let socket = match namespace {
            Ok(namespace) if namespace == self.home_namespace => multipath_socket(request),
            Ok(_) => Err(UpgradeRefusal::OtherNamespace),
            Err(_) => Err(UpgradeRefusal::Unreadable),
        };
        let id = notification.id;
        let reply = socket.and_then(|socket| {
            let fd = socket.as_fd();
            let inode = sys::inode(fd).map_err(|error| refusal_after(&error))?;
            let given = seccomp::respond_with_fd(listener, id, fd, request.close_on_exec);
            let delivered = given.map_err(|error| refusal_after(&error))?;
            Ok(delivered.then_some(inode))
        });
        match reply {
            Ok(Some(inode)) => {
                self.summary.upgraded += 1;
                self.observer.on_socket_created(inode, sys::monotonic());
            }
            // The call was cancelled.
            Ok(None) => {}
            // The unchanged call gives plain TCP, or the kernel's own error.
            Err(refusal) => {
                if seccomp::continue_syscall(listener, id)? {
                    self.summary.refuse(refusal);
                }
            }
        }
        Ok(())
    }
}

/// Returns the reason for a socket that could not be given to the program, such as EMFILE at its
/// limit of descriptors. The error concerns this socket only.
fn refusal_after(error: &io::Error) -> UpgradeRefusal {
    UpgradeRefusal::Other(error.raw_os_error().unwrap_or(0))
}

fn multipath_socket(request: SocketRequest) -> Result<Socket, UpgradeRefusal> {
    let kind = Type::STREAM.cloexec();
    let kind = if request.nonblocking { kind.nonblocking() } else { kind };
    let socket = Socket::new_raw(Domain::from(request.family), kind, Some(Protocol::MPTCP));
    socket.map_err(|error| UpgradeRefusal::from_kernel(&error))
}

/// Returns the inode of a thread's network namespace; `self` for our own.
fn namespace_of(thread: &str) -> io::Result<u64> {
    fs::metadata(format!("/proc/{thread}/ns/net")).map(|namespace| namespace.ino())
}
