//! A stream of QUIC that gives back what comes.

use bytes::Bytes;
use towpath_net::Instant;
use towpath_quic::ConnectionError;

use crate::Pipe;
use crate::quic::End;

/// Gives back what comes, until the other end has said everything or it has taken too long.
pub(super) struct Echo<T> {
    held: Bytes,
    deadline: Instant,
    over: bool,
    /// What goes with it.
    kept: Option<T>,
}

impl<T: Send> Echo<T> {
    /// `kept` is dropped when it has ended.
    pub(super) fn new(deadline: Instant, kept: T) -> Self {
        Self { held: Bytes::new(), deadline, over: false, kept: Some(kept) }
    }
}

impl<T: Send> End for Echo<T> {
    fn progress(&mut self, now: Instant, pipe: &mut dyn Pipe) {
        while !self.over {
            if now >= self.deadline {
                self.over = true;
                self.kept = None;
                return;
            }
            pipe.write(now, &mut self.held);
            if !self.held.is_empty() {
                return;
            }
            let Some(data) = pipe.read(now) else { return };
            if data.is_empty() {
                self.over = true;
                pipe.shutdown(now);
            }
            self.held = data;
        }
    }

    fn finished(&mut self, _now: Instant) {
        self.kept = None;
    }

    fn closed(&mut self, _now: Instant, _error: Option<&ConnectionError>) {
        self.over = true;
        self.kept = None;
    }

    fn deadline(&self) -> Option<Instant> {
        (!self.over).then_some(self.deadline)
    }
}
