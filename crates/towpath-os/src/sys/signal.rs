//! Waiting for signals, and the states of a child.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

use super::check;

/// Previous signal mask of a thread.
#[derive(Clone, Copy)]
pub struct SignalMask(libc::sigset_t);

impl std::fmt::Debug for SignalMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SignalMask")
    }
}

impl SignalMask {
    /// Restores the mask in the calling thread; may be called between fork and exec.
    pub(crate) fn restore(&self) -> io::Result<()> {
        // SAFETY: the set lives through the call; the previous one is not requested.
        check(unsafe {
            libc::sigprocmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
        })
        .map(drop)
    }
}

/// A signal that was received by waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal {
    /// Number of the signal.
    pub number: libc::c_int,
    /// PID of the sender; `None` for the kernel.
    ///
    /// The kernel sends terminal signals to the whole process group.
    pub sender: Option<i32>,
}

/// State of a child process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildState {
    /// The process runs.
    Running,
    /// A signal stopped the process.
    Stopped,
    /// Ended, with its wait status as `ExitStatus` takes it.
    Ended(libc::c_int),
}

fn signal_set(signals: &[libc::c_int]) -> libc::sigset_t {
    // SAFETY: sigemptyset makes a valid set of the zeroed one; wrong numbers are refused.
    unsafe {
        let mut set: libc::sigset_t = MaybeUninit::zeroed().assume_init();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        set
    }
}

/// Blocks signals in the calling thread; returns the previous mask.
pub fn block_signals(signals: &[libc::c_int]) -> io::Result<SignalMask> {
    let set = signal_set(signals);
    let mut previous = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: both sets live through the call, which fills the second.
    check(unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, previous.as_mut_ptr()) })?;
    // SAFETY: the kernel has filled it.
    Ok(SignalMask(unsafe { previous.assume_init() }))
}

/// Waits for one of `signals`, which are blocked; `None` after `timeout`.
pub fn wait_for_signal(signals: &[libc::c_int], timeout: Duration) -> io::Result<Option<Signal>> {
    let set = signal_set(signals);
    let time = libc::timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX) as libc::time_t,
        tv_nsec: i64::from(timeout.subsec_nanos()) as libc::c_long,
    };
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: all three live through the call, which fills the second.
    let number = unsafe { libc::sigtimedwait(&raw const set, info.as_mut_ptr(), &raw const time) };
    match check(number) {
        Ok(number) => {
            // SAFETY: the kernel has filled it. The sender is valid for signals from a process, as
            // the code shows.
            let sender = unsafe {
                let info = info.assume_init();
                (info.si_code <= 0).then(|| info.si_pid())
            };
            Ok(Some(Signal { number, sender }))
        }
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the state of a child without waiting. Must not be called after it has ended.
pub fn child_state(id: u32) -> io::Result<ChildState> {
    let id = i32::try_from(id).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut status = 0;
    let options = libc::WNOHANG | libc::WUNTRACED;
    // SAFETY: the kernel fills the number, which lives through the call.
    let pid = check(unsafe { libc::waitpid(id, &raw mut status, options) })?;
    Ok(match pid {
        0 => ChildState::Running,
        _ if libc::WIFSTOPPED(status) => ChildState::Stopped,
        _ => ChildState::Ended(status),
    })
}

/// Sends a signal to one process.
pub fn send_signal(id: u32, signal: libc::c_int) -> io::Result<()> {
    let id = i32::try_from(id).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: takes numbers only.
    check(unsafe { libc::kill(id, signal) }).map(drop)
}

/// Sends a signal to every process of a group.
pub fn signal_group(leader: u32, signal: libc::c_int) -> io::Result<()> {
    let group = i32::try_from(leader).map_err(|_| io::ErrorKind::InvalidInput)?;
    if group <= 1 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: takes numbers only.
    check(unsafe { libc::kill(-group, signal) }).map(drop)
}
