//! Waits for the subflows that a case looks for, so that no end says before that it has sent all.
//!
//! The kernel's path manager opens subflows in a worker thread, which a busy machine may let run only
//! when a short transfer has ended. And who was told of the end of the data neither opens nor admits
//! any more: only what is established on both sides does (`mptcp_is_fully_established`).

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout};
use towpath_linux::Namespace;
use towpath_linux::netlink::{MptcpEventKind, MptcpEvents};

/// The subflows beside the first that a kernel has yet to tell of.
#[derive(Debug)]
pub(crate) struct Joins {
    events: MptcpEvents,
    missing: usize,
}

impl Joins {
    /// Listens from now on to what the kernel of a host tells.
    pub(crate) fn watch(namespace: &Namespace, missing: usize) -> Result<Self, String> {
        let events = namespace.run(MptcpEvents::open).map_err(|error| error.to_string())?;
        Ok(Self { events: events.map_err(|error| error.to_string())?, missing })
    }

    /// Returns when all are there.
    pub(crate) fn wait(&mut self, patience: Duration) -> Result<(), String> {
        let deadline = Instant::now() + patience;
        loop {
            let received = self.events.drain().map_err(|error| error.to_string())?;
            let kind = MptcpEventKind::SubflowEstablished;
            let new = received.events.iter().filter(|event| event.kind == kind).count();
            self.missing = self.missing.saturating_sub(new);
            let left = deadline.saturating_duration_since(Instant::now());
            if self.missing == 0 {
                return Ok(());
            }
            if left.is_zero() {
                return Err(format!("{} subflows did not join in {patience:?}", self.missing));
            }
            let left = PollTimeout::try_from(left).map_err(|error| error.to_string())?;
            let mut fds = [PollFd::new(self.events.as_fd(), PollFlags::POLLIN)];
            let _ = nix::poll::poll(&mut fds, left).map_err(|error| error.to_string())?;
        }
    }
}
