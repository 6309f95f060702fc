//! Network namespaces; each is one host of a scenario.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use crate::sys;

/// Network namespace that lives as long as one of its handles.
#[derive(Debug, Clone)]
pub struct Namespace {
    handle: Arc<OwnedFd>,
}

impl Namespace {
    /// Makes a new, empty network namespace.
    pub fn create() -> io::Result<Self> {
        on_own_thread(|| {
            sys::unshare(libc::CLONE_NEWNET)?;
            Self::current()
        })
    }

    /// Returns the calling thread's network namespace.
    pub fn current() -> io::Result<Self> {
        let file = File::open("/proc/thread-self/ns/net")?;
        Ok(Self { handle: Arc::new(file.into()) })
    }

    /// Opens the network namespace behind a file of `/proc`.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { handle: Arc::new(File::open(path)?.into()) })
    }

    /// Runs `work` on a thread inside the namespace and waits for it.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        on_own_thread(|| {
            self.enter()?;
            Ok(work())
        })
    }

    /// Moves the calling thread into the namespace permanently.
    pub fn enter(&self) -> io::Result<()> {
        sys::enter_network_namespace(self.handle.as_fd())
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

/// Runs `work` on a new thread, because a namespace change affects one thread.
fn on_own_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        scope.spawn(work).join().unwrap_or_else(|_| Err(io::Error::other("a worker panicked")))
    })
}
