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
use std::thread;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use towpath_os::filter::SocketRequest;
use towpath_os::sys;
use towpath_os::sys::seccomp::{self, SeccompNotification};

use super::ExecError;
use super::observe::Observer;
use super::record::ExecRecorder;
use super::summary::{SocketSummary, UpgradeRefusal};

/// Wait before a failed system call is repeated.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// Number of failed polls in a row after which the supervisor gives up: 10 s.
const MAX_FAILED_POLLS: u32 = 1_000;

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
        listener: KernelListener(listener),
        home_namespace,
        summary: SocketSummary::default(),
        observer: Observer::open(recorder),
    };
    let mut failed_polls = 0;
    let mut control = Some(control);
    loop {
        let mut fds = vec![sys::input_pollfd(&supervisor.listener.0)];
        fds.extend(control.as_ref().map(sys::input_pollfd));
        // After the summary, the sockets need no more polling.
        let timeout =
            control.as_ref().and_then(|_| supervisor.observer.next_poll(sys::monotonic()));
        match sys::poll(&mut fds, timeout) {
            Ok(_) => failed_polls = 0,
            Err(error) if failed_polls == MAX_FAILED_POLLS => return Err(ExecError::System(error)),
            Err(_) => {
                failed_polls += 1;
                thread::sleep(RETRY_INTERVAL);
                continue;
            }
        }
        let events = |index: usize| fds.get(index).map_or(0, |fd| fd.revents);
        let (listener_events, first_process_ended) = (events(0), events(1) != 0);
        if listener_events & libc::POLLIN != 0 {
            supervisor.handle_notification(&mut || thread::sleep(RETRY_INTERVAL));
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

/// Seccomp notifications of a program.
trait NotificationListener {
    /// Returns a notification that waits; `None` if it was cancelled.
    fn receive(&self) -> io::Result<Option<SeccompNotification>>;

    /// Returns true if a call still waits.
    fn is_valid(&self, id: u64) -> bool;

    /// Continues a call unchanged; `Ok(false)` if it was cancelled.
    fn resume(&self, id: u64) -> io::Result<bool>;

    /// Ends a call with a copy of `fd`; `Ok(false)` if it was cancelled.
    fn give(&self, id: u64, fd: BorrowedFd<'_>, close_on_exec: bool) -> io::Result<bool>;
}

struct KernelListener(OwnedFd);

impl NotificationListener for KernelListener {
    fn receive(&self) -> io::Result<Option<SeccompNotification>> {
        seccomp::receive_notification(self.0.as_fd())
    }

    fn is_valid(&self, id: u64) -> bool {
        seccomp::is_valid(self.0.as_fd(), id)
    }

    fn resume(&self, id: u64) -> io::Result<bool> {
        seccomp::continue_syscall(self.0.as_fd(), id)
    }

    fn give(&self, id: u64, fd: BorrowedFd<'_>, close_on_exec: bool) -> io::Result<bool> {
        seccomp::respond_with_fd(self.0.as_fd(), id, fd, close_on_exec)
    }
}

struct Supervisor<L> {
    listener: L,
    /// Network namespace in which the supervisor makes sockets, by inode.
    home_namespace: u64,
    summary: SocketSummary,
    observer: Observer,
}

impl<L: NotificationListener> Supervisor<L> {
    /// Answers a notification. No error ends the supervisor, because every call of the program
    /// would then fail. `pause` waits before an attempt is repeated.
    fn handle_notification(&mut self, pause: &mut dyn FnMut()) {
        let notification = match self.listener.receive() {
            Ok(Some(notification)) => notification,
            Ok(None) => return,
            // The notification still waits, and the next poll reports it again.
            Err(_) => return pause(),
        };
        let request = SocketRequest::parse(notification.arguments);
        // The process may have moved to another namespace, where a socket from here is useless.
        let namespace = namespace_of(&notification.thread.to_string());
        let id = notification.id;
        if !self.listener.is_valid(id) {
            return;
        }
        let socket = match namespace {
            Ok(namespace) if namespace == self.home_namespace => multipath_socket(request),
            Ok(_) => Err(UpgradeRefusal::OtherNamespace),
            Err(_) => Err(UpgradeRefusal::Unreadable),
        };
        let reply = socket.and_then(|socket| {
            let fd = socket.as_fd();
            let inode = sys::inode(fd).map_err(|error| refusal_after(&error))?;
            let give = || self.listener.give(id, fd, request.close_on_exec);
            let delivered = retry_interrupted(give).map_err(|error| refusal_after(&error))?;
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
                if self.resume(id, pause) {
                    self.summary.refuse(refusal);
                }
            }
        }
    }

    /// Continues a call unchanged; returns false if it was cancelled.
    fn resume(&self, id: u64, pause: &mut dyn FnMut()) -> bool {
        loop {
            match retry_interrupted(|| self.listener.resume(id)) {
                Ok(is_delivered) => return is_delivered,
                // Without an answer, the call would never return.
                Err(_) if self.listener.is_valid(id) => pause(),
                Err(_) => return false,
            }
        }
    }
}

/// Repeats an operation that a signal has interrupted.
fn retry_interrupted(mut operation: impl FnMut() -> io::Result<bool>) -> io::Result<bool> {
    loop {
        match operation() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
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

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;

    use super::*;

    /// Operations of the listener in which errors are injected.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Operation {
        Receive,
        Give,
        Resume,
    }

    /// End of a call of the program.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Answer {
        Given,
        Resumed,
    }

    /// Listener on which one operation fails a number of times.
    struct FailingListener {
        failing: Operation,
        errno: i32,
        failures_left: Cell<u32>,
        pending: Cell<u64>,
        answers: RefCell<BTreeMap<u64, Answer>>,
    }

    impl FailingListener {
        fn fail(&self, operation: Operation) -> io::Result<()> {
            let failures_left = self.failures_left.get();
            if operation != self.failing || failures_left == 0 {
                return Ok(());
            }
            self.failures_left.set(failures_left - 1);
            Err(io::Error::from_raw_os_error(self.errno))
        }

        fn answer(&self, id: u64, answer: Answer) -> bool {
            assert_eq!(self.answers.borrow_mut().insert(id, answer), None, "answered twice");
            self.pending.set(id + 1);
            true
        }
    }

    impl NotificationListener for FailingListener {
        fn receive(&self) -> io::Result<Option<SeccompNotification>> {
            self.fail(Operation::Receive)?;
            let arguments = [libc::AF_INET as u64, libc::SOCK_STREAM as u64, 0, 0, 0, 0];
            let (id, thread) = (self.pending.get(), std::process::id());
            Ok(Some(SeccompNotification { id, thread, arguments }))
        }

        fn is_valid(&self, id: u64) -> bool {
            !self.answers.borrow().contains_key(&id)
        }

        fn resume(&self, id: u64) -> io::Result<bool> {
            self.fail(Operation::Resume).map(|()| self.answer(id, Answer::Resumed))
        }

        fn give(&self, id: u64, _fd: BorrowedFd<'_>, _close_on_exec: bool) -> io::Result<bool> {
            self.fail(Operation::Give).map(|()| self.answer(id, Answer::Given))
        }
    }

    /// Regression: EMFILE ended the supervisor, and every later `socket()` of the program returned
    /// ENOSYS.
    #[test]
    fn every_call_is_answered_once_whatever_fails() {
        let has_mptcp = multipath_socket(SocketRequest::parse([
            libc::AF_INET as u64,
            libc::SOCK_STREAM as u64,
            0,
            0,
            0,
            0,
        ]))
        .is_ok();
        let errors =
            [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EINTR, libc::ESRCH, libc::EAGAIN];
        for failing in [Operation::Receive, Operation::Give, Operation::Resume] {
            for errno in errors {
                let listener = FailingListener {
                    failing,
                    errno,
                    failures_left: Cell::new(3),
                    pending: Cell::new(0),
                    answers: RefCell::default(),
                };
                // Another namespace makes the supervisor resume every call.
                let own_namespace = namespace_of("self").unwrap();
                let home_namespace = own_namespace + u64::from(failing == Operation::Resume);
                let observer = Observer::open(None);
                let summary = SocketSummary::default();
                let mut supervisor = Supervisor { listener, home_namespace, summary, observer };
                let (mut pauses, mut notifications) = (0, 0);
                while supervisor.listener.pending.get() < 10 {
                    supervisor.handle_notification(&mut || pauses += 1);
                    notifications += 1;
                    assert!(notifications < 20 && pauses <= 3, "{failing:?} {errno}");
                }
                let answers: Vec<_> = supervisor.listener.answers.take().into_values().collect();
                let given = answers.iter().filter(|answer| **answer == Answer::Given).count();
                let expected = match failing {
                    Operation::Resume => 0,
                    _ if !has_mptcp => 0,
                    Operation::Give if errno != libc::EINTR => 7,
                    Operation::Give | Operation::Receive => 10,
                };
                assert_eq!((answers.len(), given), (10, expected), "{failing:?} {errno}");
                assert_eq!(supervisor.summary.upgraded, given as u64);
            }
        }
    }
}
