//! QUIC stream that echoes its data.

use std::sync::Arc;

use bytes::Bytes;
use towpath_net::Instant;
use towpath_quic::ConnectionError;
use towpath_sockets::ByteStream;
use towpath_sockets::quic::StreamHandler;
use towpath_sockets::traffic_budget::TrafficDirection;

use super::admission::SourceQuota;

/// Echoes data until the peer finishes the stream or the deadline passes.
pub(super) struct EchoStream<T> {
    unsent: Bytes,
    deadline: Instant,
    /// Quota of the source.
    quota: Arc<SourceQuota>,
    /// Time from which the quota permits more data.
    next_allowed: Instant,
    /// Time when a throttled stream continues.
    resume_at: Option<Instant>,
    /// True once no more data is read.
    finished: bool,
    /// Guard that is dropped at the end of the stream.
    guard: Option<T>,
}

impl<T: Send> EchoStream<T> {
    /// Creates an echo stream; `guard` is dropped when it ends.
    pub(super) fn new(deadline: Instant, quota: Arc<SourceQuota>, guard: T) -> Self {
        let (unsent, next_allowed) = (Bytes::new(), Instant::ZERO);
        Self {
            unsent,
            deadline,
            quota,
            next_allowed,
            resume_at: None,
            finished: false,
            guard: Some(guard),
        }
    }
}

impl<T: Send> StreamHandler for EchoStream<T> {
    fn progress(&mut self, now: Instant, stream: &mut dyn ByteStream) {
        while !self.finished {
            if now >= self.deadline {
                self.finished = true;
                self.guard = None;
                return;
            }
            stream.write(now, &mut self.unsent);
            self.resume_at = (self.next_allowed > now).then_some(self.next_allowed);
            if !self.unsent.is_empty() || self.resume_at.is_some() {
                return;
            }
            let Some(data) = stream.read(now) else { return };
            if data.is_empty() {
                self.finished = true;
                stream.shutdown(now);
            }
            let bytes = data.len() as u64;
            let due_times = [TrafficDirection::Inbound, TrafficDirection::Outbound]
                .map(|direction| self.quota.consume(now, direction, bytes));
            self.next_allowed = due_times.into_iter().fold(now, Instant::max);
            self.unsent = data;
        }
    }

    fn finished(&mut self, _now: Instant) {
        self.guard = None;
    }

    fn closed(&mut self, _now: Instant, _error: Option<&ConnectionError>) {
        self.finished = true;
        self.guard = None;
    }

    fn deadline(&self) -> Option<Instant> {
        (!self.finished)
            .then(|| self.resume_at.map_or(self.deadline, |resume_at| resume_at.min(self.deadline)))
    }
}
