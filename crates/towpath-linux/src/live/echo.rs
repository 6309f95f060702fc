//! QUIC stream that echoes its data.

use std::sync::Arc;

use bytes::Bytes;
use towpath_net::Instant;
use towpath_quic::ConnectionError;

use super::admission::SourceQuota;
use crate::ByteStream;
use crate::quic::StreamHandler;
use crate::traffic_budget::TrafficDirection;

/// Echoes data until the peer finishes the stream or the deadline passes.
pub(super) struct EchoStream<T> {
    unsent: Bytes,
    deadline: Instant,
    /// Quota of the source; `paid_until` is when it permits more data.
    quota: Arc<SourceQuota>,
    next_allowed: Instant,
    /// Time when a throttled stream continues.
    resumes: Option<Instant>,
    over: bool,
    /// Guard that is dropped at the end of the stream.
    guard: Option<T>,
}

impl<T: Send> EchoStream<T> {
    /// Creates an echo stream; `kept` is dropped when it ends.
    pub(super) fn new(deadline: Instant, quota: Arc<SourceQuota>, kept: T) -> Self {
        let (unsent, next_allowed) = (Bytes::new(), Instant::ZERO);
        Self {
            unsent,
            deadline,
            quota,
            next_allowed,
            resumes: None,
            over: false,
            guard: Some(kept),
        }
    }
}

impl<T: Send> StreamHandler for EchoStream<T> {
    fn progress(&mut self, now: Instant, pipe: &mut dyn ByteStream) {
        while !self.over {
            if now >= self.deadline {
                self.over = true;
                self.guard = None;
                return;
            }
            pipe.write(now, &mut self.unsent);
            self.resumes = (self.next_allowed > now).then_some(self.next_allowed);
            if !self.unsent.is_empty() || self.resumes.is_some() {
                return;
            }
            let Some(data) = pipe.read(now) else { return };
            if data.is_empty() {
                self.over = true;
                pipe.shutdown(now);
            }
            let bytes = data.len() as u64;
            let both = [TrafficDirection::Inbound, TrafficDirection::Outbound]
                .map(|way| self.quota.consume(now, way, bytes));
            self.next_allowed = both.into_iter().fold(now, Instant::max);
            self.unsent = data;
        }
    }

    fn finished(&mut self, _now: Instant) {
        self.guard = None;
    }

    fn closed(&mut self, _now: Instant, _error: Option<&ConnectionError>) {
        self.over = true;
        self.guard = None;
    }

    fn deadline(&self) -> Option<Instant> {
        (!self.over).then(|| self.resumes.map_or(self.deadline, |due| due.min(self.deadline)))
    }
}
