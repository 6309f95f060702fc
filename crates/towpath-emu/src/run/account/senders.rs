//! Reasons why senders did not send, sample by sample.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use towpath_kernel::sample;
use towpath_kernel::sample::{ConnectionSample, SubflowSample, TcpInfo};
use towpath_kernel::send_limit;
use towpath_kernel::send_limit::{ConnectionSendState, InfoSource, SendLimit, SubflowDelta};
use towpath_mptcp::connection::{SendLimit as OwnLimit, SubflowLimit};
use towpath_result::Part;
use towpath_result::accounting::{IdleCause, WeightedCauses};
use towpath_scenario::flow_plan::directions;
use towpath_scenario::{DataDirection, Flow, Pattern, Scenario, Transport};

use crate::network::EmulatedNetwork;
use crate::traffic::{SampledStream, StreamEndpoint, TrafficContext};

/// Causes by path and direction, from all flows.
pub(super) type PathReasons = BTreeMap<(usize, DataDirection), WeightedCauses>;

/// Flow, stream and direction of the data.
type StreamKey = (u32, u32, DataDirection);
/// Local address, remote address and path number of a subflow.
type SubflowId = (SocketAddr, SocketAddr, u32);

/// Last sample of a subflow.
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
        let limits = reasons.iter().filter(|(cause, _)| parts.contains(&cause.part));
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
        context: &TrafficContext,
        now: Duration,
        drops: &BTreeMap<(usize, DataDirection), Part>,
    ) -> PathReasons {
        let mut path_causes = PathReasons::new();
        let scenario = &context.network.scenario;
        let streams = context.streams();
        for (flow_index, flow) in scenario.flows.iter().enumerate() {
            if now < flow.start || now > flow.start + flow.pattern.limit() {
                continue;
            }
            let flow_streams: Vec<&SampledStream> =
                streams.iter().filter(|stream| stream.flow as usize == flow_index).collect();
            for direction in directions(&flow.pattern) {
                let flow_sample = FlowSample { context, flow, now, direction: *direction, drops };
                if flow_streams.is_empty() {
                    flow_sample.add_unopened(&mut path_causes);
                }
                for stream in &flow_streams {
                    self.sample_stream(&flow_sample, stream, &mut path_causes);
                }
            }
        }
        path_causes
    }

    fn sample_stream(
        &mut self,
        flow_sample: &FlowSample<'_>,
        stream: &SampledStream,
        path_causes: &mut PathReasons,
    ) {
        let sender = if flow_sample.direction == DataDirection::Down {
            &stream.server
        } else {
            &stream.client
        };
        if let StreamEndpoint::Own(connection) = sender {
            if let Some((limits, idle)) = connection.send_limits() {
                flow_sample.add_stack_limits(&limits, idle, path_causes);
            }
            return;
        }
        let transport = flow_sample.context.transport_of(stream.flow);
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
                        InfoSource::Multipath(ConnectionSendState::from_kernel(info, buffer))
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
        let key = (stream.flow, stream.number, flow_sample.direction);
        let (last_time, last_subflows) =
            self.streams.remove(&key).unwrap_or((flow_sample.now, BTreeMap::new()));
        let span = flow_sample.now.saturating_sub(last_time);
        let samples_with_previous = self.update(flow_sample, samples, last_subflows);
        let window_bytes =
            send_limit::connection_window(&deltas(&samples_with_previous)).unwrap_or(0).into();
        let causes = flow_sample.causes(&samples_with_previous, source, span);
        for (path, causes) in causes {
            self.window.add(
                window_bytes,
                &causes,
                &[Part::PeerWindow, Part::HeadOfLineBlocking],
                span,
            );
            self.buffer.add(buffer_bytes, &causes, &[Part::SendBuffer], span);
            let Some(direction) = flow_sample.path_direction(path) else { continue };
            path_causes.entry((path, direction)).or_default().extend(causes);
        }
        let last_subflows = samples_with_previous
            .into_iter()
            .map(|(key, (_, _, subflow))| (key, subflow))
            .collect();
        self.streams.insert(key, (flow_sample.now, last_subflows));
    }

    /// Stores the samples; returns each with the one before.
    fn update(
        &mut self,
        flow_sample: &FlowSample<'_>,
        samples: Vec<SubflowSample>,
        mut last_subflows: BTreeMap<SubflowId, PathSubflow>,
    ) -> SubflowSamples {
        let mut samples_with_previous = SubflowSamples::new();
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
            let last = last_subflows.remove(&key);
            let previous = last.as_ref().map_or(now, |last| last.info);
            let mut loss_cause = last.and_then(|last| last.loss_cause);
            let delta = SubflowDelta {
                before: &previous,
                now: &now,
                backup: false,
                cwnd_reduced: loss_cause.is_some(),
            };
            if delta.is_cwnd_reduced() {
                let direction = flow_sample.path_direction(path).unwrap_or(DataDirection::Up);
                let cause = flow_sample.drops.get(&(path, direction)).copied();
                loss_cause = Some(cause.unwrap_or(Part::AfterLoss));
            }
            let backup = sample.backup.unwrap_or_else(|| flow_sample.is_backup(path));
            samples_with_previous
                .push((key, (previous, backup, PathSubflow { info: now, path, loss_cause })));
        }
        samples_with_previous
    }
}

/// Samples taken together: for each subflow the previous values, the backup flag and the current
/// values.
type SubflowSamples = Vec<(SubflowId, (TcpInfo, bool, PathSubflow))>;

fn deltas(samples: &SubflowSamples) -> Vec<SubflowDelta<'_>> {
    { samples.iter() }
        .map(|(_, (before, backup, subflow))| SubflowDelta {
            before,
            now: &subflow.info,
            backup: *backup,
            cwnd_reduced: subflow.loss_cause.is_some(),
        })
        .collect()
}

/// One sample of a flow in one direction of its data.
struct FlowSample<'a> {
    context: &'a TrafficContext,
    flow: &'a Flow,
    /// Time since the start of the traffic.
    now: Duration,
    direction: DataDirection,
    drops: &'a BTreeMap<(usize, DataDirection), Part>,
}

impl FlowSample<'_> {
    fn scenario(&self) -> &Scenario {
        &self.context.network.scenario
    }

    fn transport(&self) -> Transport {
        self.flow.transport_in(self.context.transport)
    }

    fn sender_and_receiver(&self) -> [usize; 2] {
        match self.direction {
            DataDirection::Down => [self.flow.to, self.flow.from],
            DataDirection::Up | DataDirection::Both => [self.flow.from, self.flow.to],
        }
    }

    /// Returns the direction of the path that the data uses; `None` if it connects other hosts.
    fn path_direction(&self, path: usize) -> Option<DataDirection> {
        let [sender, receiver] = self.sender_and_receiver();
        let path = self.scenario().paths.get(path)?;
        if path.between == [sender, receiver] {
            Some(DataDirection::Up)
        } else if path.between == [receiver, sender] {
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

    fn is_single_path(&self) -> bool {
        matches!(self.transport(), Transport::Tcp | Transport::Quic)
    }

    /// Returns the cause for a path without a subflow.
    fn absent_part(&self, path: usize) -> Part {
        if self.is_single_path() && path != self.flow.via {
            Part::SinglePath
        } else {
            Part::NoSubflow
        }
    }

    /// Adds the cause for a flow that has no connection yet.
    fn add_unopened(&self, path_causes: &mut PathReasons) {
        if matches!(self.flow.pattern, Pattern::Udping(_) | Pattern::Udp(_)) {
            return;
        }
        let is_program = matches!(self.flow.pattern, Pattern::Run { .. });
        for (path, direction) in self.paths() {
            let part = match path == self.flow.via {
                _ if is_program => Part::Unknown,
                true => Part::Handshake,
                false => self.absent_part(path),
            };
            path_causes.entry((path, direction)).or_default().push((part.into(), 1.0));
        }
    }

    /// Adds the causes that our own stack reports.
    fn add_stack_limits(&self, limits: &[SubflowLimit], idle: bool, path_causes: &mut PathReasons) {
        let path_of = |(local, remote)| EmulatedNetwork::path_of(local, remote);
        for (path, direction) in self.paths() {
            let causes = path_causes.entry((path, direction)).or_default();
            let previous_count = causes.len();
            for subflow_limit in
                limits.iter().filter(|limit| path_of(limit.addresses) == Some(path))
            {
                let mut part = stack_part(subflow_limit.limit);
                if part == Part::AfterLoss {
                    // Only the link knows the kind of loss.
                    part = self.drops.get(&(path, direction)).copied().unwrap_or(part);
                }
                causes.push((
                    IdleCause { part, waits_for: subflow_limit.waits_for.and_then(path_of) },
                    1.0,
                ));
            }
            if causes.len() == previous_count {
                let part = if idle { Part::Application } else { self.absent_part(path) };
                causes.push((part.into(), 1.0));
            }
        }
    }

    /// Returns for each path the causes that limited this connection.
    fn causes(
        &self,
        samples: &SubflowSamples,
        source: InfoSource,
        span: Duration,
    ) -> Vec<(usize, WeightedCauses)> {
        let shares =
            send_limit::connection_limits(source, &deltas(samples), self.is_endless(), span);
        let mut path_causes: Vec<(usize, WeightedCauses)> = Vec::new();
        let mut idle = 0.0;
        for (index, limits) in shares.iter().enumerate() {
            let Some((_, (_, _, subflow))) = samples.get(index) else { continue };
            let idle_limits = limits.iter().filter(|(limit, _)| *limit == SendLimit::Application);
            idle = f64::max(idle, idle_limits.map(|(_, share)| share).sum());
            let causes =
                limits.iter().map(|(limit, share)| (self.cause(*limit, subflow, samples), *share));
            path_causes.push((subflow.path, causes.collect()));
        }
        for (path, _) in self.paths() {
            if path_causes.iter().all(|(known, _)| *known != path) {
                let idle_cause = (IdleCause::from(self.idle_part()), idle);
                path_causes
                    .push((path, vec![idle_cause, (self.absent_part(path).into(), 1.0 - idle)]));
            }
        }
        path_causes
    }

    /// Returns true if the flow's source always has data.
    fn is_endless(&self) -> bool {
        send_limit::is_endless(&self.flow.pattern)
    }

    /// Returns the cause of an empty send buffer; an endless source was only too slow.
    fn idle_part(&self) -> Part {
        if self.is_endless() { Part::SenderCpu } else { Part::Application }
    }

    fn cause(
        &self,
        limit: SendLimit,
        subflow: &PathSubflow,
        samples: &SubflowSamples,
    ) -> IdleCause {
        let part = send_limit::account_part(limit, subflow.loss_cause, self.is_endless());
        let waits_for = if let SendLimit::HolBlocked(blocker) = limit {
            samples.get(blocker).map(|(_, (_, _, subflow))| subflow.path)
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
