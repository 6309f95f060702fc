//! Waits for the expected subflows, so that no end finishes sending before they exist.
//!
//! The kernel's path manager opens subflows in a worker thread, which a busy machine may schedule
//! only after the end of a short transfer. A kernel that has received the end of the data neither
//! opens nor accepts subflows. It does so only while the connection is established on both sides
//! (`mptcp_is_fully_established`).

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout};
use towpath_netlink::{MptcpEventKind, MptcpEvents};
use towpath_os::Namespace;

/// Waits until a kernel has reported the expected additional subflows.
#[derive(Debug)]
pub(crate) struct Joins {
    events: MptcpEvents,
    missing: usize,
}

impl Joins {
    /// Subscribes to the events of a host's kernel.
    pub(crate) fn watch(namespace: &Namespace, missing: usize) -> Result<Self, String> {
        let events = namespace.run(MptcpEvents::open).map_err(|error| error.to_string())?;
        Ok(Self { events: events.map_err(|error| error.to_string())?, missing })
    }

    /// Returns when all subflows exist.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Result<(), String> {
        let deadline = Instant::now() + timeout;
        loop {
            let received = self.events.drain().map_err(|error| error.to_string())?;
            let kind = MptcpEventKind::SubflowEstablished;
            let established = received.events.iter().filter(|event| event.kind == kind).count();
            self.missing = self.missing.saturating_sub(established);
            let remaining = deadline.saturating_duration_since(Instant::now());
            if self.missing == 0 {
                return Ok(());
            }
            if remaining.is_zero() {
                return Err(format!("{} subflows did not join in {timeout:?}", self.missing));
            }
            let remaining = PollTimeout::try_from(remaining).map_err(|error| error.to_string())?;
            let mut fds = [PollFd::new(self.events.as_fd(), PollFlags::POLLIN)];
            let _ = nix::poll::poll(&mut fds, remaining).map_err(|error| error.to_string())?;
        }
    }
}
