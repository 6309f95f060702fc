//! QUIC stream that echoes its data.

use std::sync::Arc;

use bytes::Bytes;
use towpath_net::Instant;
use towpath_quic::ConnectionError;

use super::budget::SourceQuota;
use crate::ByteStream;
use crate::purse::TrafficDirection;
use crate::quic::StreamHandler;

/// Echoes data until the peer finishes the stream or the deadline passes.
pub(super) struct EchoStream<T> {
    held: Bytes,
    deadline: Instant,
    /// Quota of the source; `paid_until` is when it permits more data.
    allowed: Arc<SourceQuota>,
    paid_until: Instant,
    /// Time when a throttled stream continues.
    resumes: Option<Instant>,
    over: bool,
    /// Guard that is dropped at the end of the stream.
    kept: Option<T>,
}

impl<T: Send> EchoStream<T> {
    /// Creates an echo stream; `kept` is dropped when it ends.
    pub(super) fn new(deadline: Instant, allowed: Arc<SourceQuota>, kept: T) -> Self {
        let (held, paid_until) = (Bytes::new(), Instant::ZERO);
        Self { held, deadline, allowed, paid_until, resumes: None, over: false, kept: Some(kept) }
    }
}

impl<T: Send> StreamHandler for EchoStream<T> {
    fn progress(&mut self, now: Instant, pipe: &mut dyn ByteStream) {
        while !self.over {
            if now >= self.deadline {
                self.over = true;
                self.kept = None;
                return;
            }
            pipe.write(now, &mut self.held);
            self.resumes = (self.paid_until > now).then_some(self.paid_until);
            if !self.held.is_empty() || self.resumes.is_some() {
                return;
            }
            let Some(data) = pipe.read(now) else { return };
            if data.is_empty() {
                self.over = true;
                pipe.shutdown(now);
            }
            let bytes = data.len() as u64;
            let both = [TrafficDirection::Inbound, TrafficDirection::Outbound]
                .map(|way| self.allowed.consume(now, way, bytes));
            self.paid_until = both.into_iter().fold(now, Instant::max);
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
        (!self.over).then(|| self.resumes.map_or(self.deadline, |due| due.min(self.deadline)))
    }
}
