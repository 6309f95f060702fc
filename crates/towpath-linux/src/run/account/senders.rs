//! Reasons why senders did not send, sample by sample.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use towpath_measure::account::{IdleCause, WeightedCauses};
use towpath_measure::result::Part;
use towpath_measure::scenario::{DataDirection, Flow, Pattern, Scenario, Transport};
use towpath_measure::traffic::directions;
use towpath_mptcp::connection::{SendLimit as OwnLimit, SubflowLimit};

use crate::network::EmulatedNetwork;
use crate::sample::{self, ConnectionSample, SubflowSample, TcpInfo};
use crate::send_limit::{self, ConnectionSendState, InfoSource, SendLimit, SubflowDelta};
use crate::traffic::{SampledStream, StreamEndpoint, TrafficContext};

/// Causes by path and direction, from all flows.
pub(super) type PathReasons = BTreeMap<(usize, DataDirection), WeightedCauses>;

/// Flow, stream and direction of the data.
type StreamKey = (u32, u32, DataDirection);
/// Local address, remote address and path number of a subflow.
type SubflowId = (SocketAddr, SocketAddr, u32);

#[derive(Debug)]
struct PathSubflow {
    info: TcpInfo,
    path: usize,
    /// Cause of the last congestion window reduction, if one occurred.
    loss_cause: Option<Part>,
}

/// Last sample of each sender.
#[derive(Debug, Default)]
pub(super) struct Senders {
    streams: BTreeMap<StreamKey, (Duration, BTreeMap<SubflowId, PathSubflow>)>,
    /// Mean receive window and send buffer while they limited senders.
    pub(super) window: MeanFullSize,
    pub(super) buffer: MeanFullSize,
    /// Longest smoothed round-trip time so far.
    pub(super) max_rtt: Duration,
}

/// Mean size of a window or buffer over the time in which it was full.
///
/// Kernels let windows and buffers grow, so the final size is not representative.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct MeanFullSize {
    seconds: f64,
    byte_seconds: f64,
    /// Maximum size in bytes, full or not.
    pub(super) max_bytes: u64,
}

impl MeanFullSize {
    /// Adds a size of `bytes`, weighted by the share of `span` in which one of `parts` was the
    /// reason.
    fn add(&mut self, bytes: u64, reasons: &WeightedCauses, parts: &[Part], span: Duration) {
        let limits = reasons.iter().filter(|(why, _)| parts.contains(&why.part));
        let seconds = limits.map(|(_, share)| share).sum::<f64>() * span.as_secs_f64();
        self.max_bytes = self.max_bytes.max(bytes);
        if bytes > 0 {
            self.seconds += seconds;
            self.byte_seconds += seconds * bytes as f64;
        }
    }

    pub(super) fn mean_bytes(self) -> Option<u64> {
        (self.seconds > 0.0).then(|| (self.byte_seconds / self.seconds).round() as u64)
    }
}

impl Senders {
    /// Samples all senders; `drops` is the last kind of drop by path and direction.
    pub(super) fn sample(
        &mut self,
        stage: &TrafficContext,
        at: Duration,
        drops: &BTreeMap<(usize, DataDirection), Part>,
    ) -> PathReasons {
        let mut waiting = PathReasons::new();
        let scenario = &stage.network.scenario;
        let streams = stage.streams();
        for (number, flow) in scenario.flows.iter().enumerate() {
            if at < flow.start || at > flow.start + flow.pattern.limit() {
                continue;
            }
            let own: Vec<&SampledStream> =
                streams.iter().filter(|stream| stream.flow as usize == number).collect();
            for direction in directions(&flow.pattern) {
                let said = FlowSample { stage, flow, at, direction: *direction, drops };
                if own.is_empty() {
                    said.add_unopened(&mut waiting);
                }
                for stream in &own {
                    self.sample_stream(&said, stream, &mut waiting);
                }
            }
        }
        waiting
    }

    fn sample_stream(
        &mut self,
        said: &FlowSample<'_>,
        stream: &SampledStream,
        waiting: &mut PathReasons,
    ) {
        let sender =
            if said.direction == DataDirection::Down { &stream.server } else { &stream.client };
        if let StreamEndpoint::Own(connection) = sender {
            if let Some((limits, idle)) = connection.send_limits() {
                said.add_stack_limits(&limits, idle, waiting);
            }
            return;
        }
        let transport = said.stage.transport_of(stream.flow);
        let multipath = matches!(transport, Transport::Mptcp | Transport::Mpquic);
        // A closed socket has nothing to send; only one stream of a QUIC connection reports.
        let Ok(connection) = sender.sample(multipath) else { return };
        let mut buffer_bytes = 0;
        let source = match sender {
            StreamEndpoint::Kernel(socket) => {
                let buffer = sample::send_buffer(socket).unwrap_or_default();
                buffer_bytes = buffer.1;
                match &connection {
                    ConnectionSample::Multipath(info, _) => {
                        InfoSource::Multipath(ConnectionSendState::of(info, buffer))
                    }
                    ConnectionSample::Single(..) => InfoSource::Single(buffer),
                }
            }
            // Send buffers of programs are not sampled.
            StreamEndpoint::Own(_) | StreamEndpoint::Quic(_) | StreamEndpoint::Program(_) => {
                InfoSource::Library
            }
        };
        let samples = match connection {
            ConnectionSample::Multipath(_, samples) => samples,
            ConnectionSample::Single(sample, _) => vec![sample],
        };
        let key = (stream.flow, stream.number, said.direction);
        let (since, known) = self.streams.remove(&key).unwrap_or((said.at, BTreeMap::new()));
        let span = said.at.saturating_sub(since);
        let seen = self.update(said, samples, known);
        let window_bytes = send_limit::connection_window(&deltas(&seen)).unwrap_or(0).into();
        let reasons = said.reasons(&seen, source, span);
        for (path, reasons) in reasons {
            self.window.add(
                window_bytes,
                &reasons,
                &[Part::PeerWindow, Part::HeadOfLineBlocking],
                span,
            );
            self.buffer.add(buffer_bytes, &reasons, &[Part::SendBuffer], span);
            let Some(way) = said.path_direction(path) else { continue };
            waiting.entry((path, way)).or_default().extend(reasons);
        }
        let known = seen.into_iter().map(|(key, (_, _, known))| (key, known)).collect();
        self.streams.insert(key, (said.at, known));
    }

    /// Stores the samples; returns each with the one before.
    fn update(
        &mut self,
        said: &FlowSample<'_>,
        samples: Vec<SubflowSample>,
        mut known: BTreeMap<SubflowId, PathSubflow>,
    ) -> SubflowSamples {
        let mut seen = SubflowSamples::new();
        for sample in samples {
            let key = (sample.local, sample.remote, sample.number);
            let Some(path) = EmulatedNetwork::path_of(sample.local.ip(), sample.remote.ip()) else {
                continue;
            };
            let now = sample.info;
            if matches!(now.state, TcpInfo::QUIC_ABANDONED | TcpInfo::CLOSED) {
                continue;
            }
            let rtt = Duration::from_micros(now.srtt_us.into());
            self.max_rtt = self.max_rtt.max(rtt);
            let old = known.remove(&key);
            let before = old.as_ref().map_or(now, |old| old.info);
            let mut cut = old.and_then(|old| old.loss_cause);
            let between = SubflowDelta {
                before: &before,
                now: &now,
                backup: false,
                cwnd_reduced: cut.is_some(),
            };
            if between.is_cwnd_reduced() {
                let direction = said.path_direction(path).unwrap_or(DataDirection::Up);
                let cause = said.drops.get(&(path, direction)).copied();
                cut = Some(cause.unwrap_or(Part::AfterLoss));
            }
            let backup = sample.backup.unwrap_or_else(|| said.is_backup(path));
            seen.push((key, (before, backup, PathSubflow { info: now, path, loss_cause: cut })));
        }
        seen
    }
}

/// Samples taken together: for each subflow the previous values, the backup flag and the current
/// values.
type SubflowSamples = Vec<(SubflowId, (TcpInfo, bool, PathSubflow))>;

fn deltas(seen: &SubflowSamples) -> Vec<SubflowDelta<'_>> {
    { seen.iter() }
        .map(|(_, (before, backup, known))| SubflowDelta {
            before,
            now: &known.info,
            backup: *backup,
            cwnd_reduced: known.loss_cause.is_some(),
        })
        .collect()
}

/// One sample of a flow in one direction of its data.
struct FlowSample<'a> {
    stage: &'a TrafficContext,
    flow: &'a Flow,
    at: Duration,
    direction: DataDirection,
    drops: &'a BTreeMap<(usize, DataDirection), Part>,
}

impl FlowSample<'_> {
    fn scenario(&self) -> &Scenario {
        &self.stage.network.scenario
    }

    fn transport(&self) -> Transport {
        self.flow.transport_in(self.stage.transport)
    }

    fn sender_and_receiver(&self) -> [usize; 2] {
        match self.direction {
            DataDirection::Down => [self.flow.to, self.flow.from],
            DataDirection::Up | DataDirection::Both => [self.flow.from, self.flow.to],
        }
    }

    /// Returns the direction of the path that the data uses; `None` if it connects other hosts.
    fn path_direction(&self, path: usize) -> Option<DataDirection> {
        let [from, to] = self.sender_and_receiver();
        let path = self.scenario().paths.get(path)?;
        if path.between == [from, to] {
            Some(DataDirection::Up)
        } else if path.between == [to, from] {
            Some(DataDirection::Down)
        } else {
            None
        }
    }

    fn is_backup(&self, path: usize) -> bool {
        self.scenario().paths.get(path).is_some_and(|path| path.backup)
    }

    fn paths(&self) -> impl Iterator<Item = (usize, DataDirection)> + '_ {
        (0..self.scenario().paths.len()).filter_map(|path| Some((path, self.path_direction(path)?)))
    }

    fn is_single(&self) -> bool {
        matches!(self.transport(), Transport::Tcp | Transport::Quic)
    }

    /// Returns the cause for a path without a subflow.
    fn absent_part(&self, path: usize) -> Part {
        if self.is_single() && path != self.flow.via { Part::SinglePath } else { Part::NoSubflow }
    }

    /// Adds the cause for a flow that has no connection yet.
    fn add_unopened(&self, waiting: &mut PathReasons) {
        if matches!(self.flow.pattern, Pattern::Udping(_) | Pattern::Udp(_)) {
            return;
        }
        let program = matches!(self.flow.pattern, Pattern::Run { .. });
        for (path, way) in self.paths() {
            let part = match path == self.flow.via {
                _ if program => Part::Unknown,
                true => Part::Handshake,
                false => self.absent_part(path),
            };
            waiting.entry((path, way)).or_default().push((part.into(), 1.0));
        }
    }

    /// Adds the causes that our own stack reports.
    fn add_stack_limits(&self, held: &[SubflowLimit], idle: bool, waiting: &mut PathReasons) {
        let on = |(one, other)| EmulatedNetwork::path_of(one, other);
        for (path, way) in self.paths() {
            let reasons = waiting.entry((path, way)).or_default();
            let before = reasons.len();
            for stream in held.iter().filter(|own| on(own.addresses) == Some(path)) {
                let mut part = stack_part(stream.limit);
                if part == Part::AfterLoss {
                    // Only the link knows the kind of loss.
                    part = self.drops.get(&(path, way)).copied().unwrap_or(part);
                }
                reasons.push((IdleCause { part, waits_for: stream.waits_for.and_then(on) }, 1.0));
            }
            if reasons.len() == before {
                let part = if idle { Part::Application } else { self.absent_part(path) };
                reasons.push((part.into(), 1.0));
            }
        }
    }

    /// Returns for each path the causes that limited this connection.
    fn reasons(
        &self,
        samples: &SubflowSamples,
        source: InfoSource,
        span: Duration,
    ) -> Vec<(usize, WeightedCauses)> {
        let shares =
            send_limit::connection_limits(source, &deltas(samples), self.is_endless(), span);
        let mut all: Vec<(usize, WeightedCauses)> = Vec::new();
        let mut idle = 0.0;
        for (at, stream) in shares.iter().enumerate() {
            let Some((_, (_, _, known))) = samples.get(at) else { continue };
            let nothing = stream.iter().filter(|(limit, _)| *limit == SendLimit::Application);
            idle = f64::max(idle, nothing.map(|(_, share)| share).sum());
            let reasons =
                stream.iter().map(|(limit, share)| (self.reason(*limit, known, samples), *share));
            all.push((known.path, reasons.collect()));
        }
        for (path, _) in self.paths() {
            if all.iter().all(|(known, _)| *known != path) {
                let nothing = (IdleCause::from(self.idle_part()), idle);
                all.push((path, vec![nothing, (self.absent_part(path).into(), 1.0 - idle)]));
            }
        }
        all
    }

    /// Returns true if the flow's source always has data.
    fn is_endless(&self) -> bool {
        send_limit::is_endless(&self.flow.pattern)
    }

    /// Returns the cause of an empty send buffer; an endless source was only too slow.
    fn idle_part(&self) -> Part {
        if self.is_endless() { Part::SenderCpu } else { Part::Application }
    }

    fn reason(&self, limit: SendLimit, own: &PathSubflow, samples: &SubflowSamples) -> IdleCause {
        let part = send_limit::account_part(limit, own.loss_cause, self.is_endless());
        let waits_for = if let SendLimit::HolBlocked(other) = limit {
            samples.get(other).map(|(_, (_, _, known))| known.path)
        } else {
            None
        };
        IdleCause { part, waits_for }
    }
}

/// Maps the limits of our own stack.
fn stack_part(limit: OwnLimit) -> Part {
    match limit {
        OwnLimit::Application => Part::Application,
        OwnLimit::Handshake => Part::Handshake,
        OwnLimit::HostQueue => Part::Unknown,
        OwnLimit::Pacing => Part::Pacing,
        OwnLimit::SlowStart => Part::SlowStart,
        OwnLimit::AfterLoss => Part::AfterLoss,
        OwnLimit::CongestionAvoidance => Part::CongestionAvoidance,
        OwnLimit::Backup => Part::Backup,
        OwnLimit::Stale => Part::Stale,
        OwnLimit::HeadOfLineBlocking => Part::HeadOfLineBlocking,
        OwnLimit::PeerWindow => Part::PeerWindow,
        OwnLimit::SendBuffer => Part::SendBuffer,
        OwnLimit::Scheduler => Part::Scheduler,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_window_has_the_size_that_it_had_while_it_was_full() {
        let mut window = MeanFullSize::default();
        let full = vec![(IdleCause { part: Part::HeadOfLineBlocking, waits_for: Some(1) }, 1.0)];
        let parts = [Part::PeerWindow, Part::HeadOfLineBlocking];
        let snapshot = Duration::from_millis(10);
        assert_eq!(window.mean_bytes(), None);
        for _ in 0..10 {
            window.add(400_000, &full, &parts, snapshot);
            window.add(600_000, &full, &parts, snapshot);
        }
        // The window still grows but is no longer the limit.
        let slow_start = vec![(Part::SlowStart.into(), 1.0)];
        window.add(17_400_000, &slow_start, &parts, snapshot * 1_000);
        assert_eq!((window.mean_bytes(), window.max_bytes), (Some(500_000), 17_400_000));
    }
}
