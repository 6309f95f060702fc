//! What senders wait for, look by look.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use towpath_measure::account::{IdleCause, WeightedCauses};
use towpath_measure::result::Part;
use towpath_measure::scenario::{DataDirection, Flow, Pattern, Scenario, Transport};
use towpath_measure::traffic::directions;
use towpath_mptcp::connection::{SendLimit as OwnLimit, SubflowLimit};

use crate::limit::{self, Above, Between, Limit, Source};
use crate::network::Network;
use crate::sample::{self, Connection, SubflowSample, TcpInfo};
use crate::traffic::{Stage, Stream, StreamEnd};

/// For each path and direction of it, what each flow says.
pub(super) type Waiting = BTreeMap<(usize, DataDirection), WeightedCauses>;

/// A stream's data in one direction.
type Key = (u32, u32, DataDirection);
/// One of its subflows.
type SubflowKey = (SocketAddr, SocketAddr, u32);

#[derive(Debug)]
struct Known {
    info: TcpInfo,
    path: usize,
    /// What has cut its congestion window, if anything did.
    cut: Option<Part>,
}

/// What was last seen of each sender.
#[derive(Debug, Default)]
pub(super) struct Senders {
    known: BTreeMap<Key, (Duration, BTreeMap<SubflowKey, Known>)>,
    /// Receive windows and send buffers while they held senders back.
    pub(super) window: Full,
    pub(super) buffer: Full,
    /// The longest round trip so far.
    pub(super) longest_rtt: Duration,
}

/// The size of what was full, while it was: the mean over that time. Kernels let windows and buffers
/// grow, so what it came to in the end says nothing of it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Full {
    seconds: f64,
    byte_seconds: f64,
    /// The largest, full or not.
    pub(super) largest: u64,
}

impl Full {
    /// Of so many bytes in that part of a time of `span` in which one of some parts was the reason.
    fn note(&mut self, bytes: u64, reasons: &WeightedCauses, parts: &[Part], span: Duration) {
        let held = reasons.iter().filter(|(why, _)| parts.contains(&why.part));
        let seconds = held.map(|(_, share)| share).sum::<f64>() * span.as_secs_f64();
        self.largest = self.largest.max(bytes);
        if bytes > 0 {
            self.seconds += seconds;
            self.byte_seconds += seconds * bytes as f64;
        }
    }

    pub(super) fn bytes(self) -> Option<u64> {
        (self.seconds > 0.0).then(|| (self.byte_seconds / self.seconds).round() as u64)
    }
}

impl Senders {
    /// Looks at all senders; `drops` says what each path and direction dropped last.
    pub(super) fn look(
        &mut self,
        stage: &Stage,
        at: Duration,
        drops: &BTreeMap<(usize, DataDirection), Part>,
    ) -> Waiting {
        let mut waiting = Waiting::new();
        let scenario = &stage.network.scenario;
        let streams = stage.streams();
        for (number, flow) in scenario.flows.iter().enumerate() {
            if at < flow.start || at > flow.start + flow.pattern.limit() {
                continue;
            }
            let own: Vec<&Stream> =
                streams.iter().filter(|stream| stream.flow as usize == number).collect();
            for direction in directions(&flow.pattern) {
                let said = Said { stage, flow, at, direction: *direction, drops };
                if own.is_empty() {
                    said.unopened(&mut waiting);
                }
                for stream in &own {
                    self.ask(&said, stream, &mut waiting);
                }
            }
        }
        waiting
    }

    fn ask(&mut self, said: &Said<'_>, stream: &Stream, waiting: &mut Waiting) {
        let sender =
            if said.direction == DataDirection::Down { &stream.server } else { &stream.client };
        if let StreamEnd::Own(connection) = sender {
            if let Some((held, idle)) = connection.held_back() {
                said.own_stack(&held, idle, waiting);
            }
            return;
        }
        let transport = said.stage.transport_of(stream.flow);
        let multipath = matches!(transport, Transport::Mptcp | Transport::Mpquic);
        // A socket whose connection is gone has nothing to send; of a connection of QUIC one
        // stream speaks.
        let Ok(connection) = sender.sample(multipath) else { return };
        let mut buffer_bytes = 0;
        let source = match sender {
            StreamEnd::Kernel(socket) => {
                let buffer = sample::send_buffer(socket).unwrap_or_default();
                buffer_bytes = buffer.1;
                match &connection {
                    Connection::Multipath(info, _) => Source::Multipath(Above::of(info, buffer)),
                    Connection::Single(..) => Source::Single(buffer),
                }
            }
            // What a program has in its send buffer is not looked at.
            StreamEnd::Own(_) | StreamEnd::Quic(_) | StreamEnd::Program(_) => Source::Library,
        };
        let samples = match connection {
            Connection::Multipath(_, samples) => samples,
            Connection::Single(sample, _) => vec![sample],
        };
        let key = (stream.flow, stream.number, said.direction);
        let (since, known) = self.known.remove(&key).unwrap_or((said.at, BTreeMap::new()));
        let span = said.at.saturating_sub(since);
        let seen = self.note(said, samples, known);
        let window_bytes = limit::window(&between(&seen)).unwrap_or(0).into();
        let reasons = said.reasons(&seen, source, span);
        for (path, reasons) in reasons {
            self.window.note(
                window_bytes,
                &reasons,
                &[Part::PeerWindow, Part::HeadOfLineBlocking],
                span,
            );
            self.buffer.note(buffer_bytes, &reasons, &[Part::SendBuffer], span);
            let Some(way) = said.way(path) else { continue };
            waiting.entry((path, way)).or_default().extend(reasons);
        }
        let known = seen.into_iter().map(|(key, (_, _, known))| (key, known)).collect();
        self.known.insert(key, (said.at, known));
    }

    /// Takes the samples over; returns each with the one before.
    fn note(
        &mut self,
        said: &Said<'_>,
        samples: Vec<SubflowSample>,
        mut known: BTreeMap<SubflowKey, Known>,
    ) -> Seen {
        let mut seen = Seen::new();
        for sample in samples {
            let key = (sample.local, sample.remote, sample.number);
            let Some(path) = Network::path_of(sample.local.ip(), sample.remote.ip()) else {
                continue;
            };
            let now = sample.info;
            if matches!(now.state, TcpInfo::ABANDONED | TcpInfo::CLOSED) {
                continue;
            }
            let rtt = Duration::from_micros(now.srtt_us.into());
            self.longest_rtt = self.longest_rtt.max(rtt);
            let old = known.remove(&key);
            let before = old.as_ref().map_or(now, |old| old.info);
            let mut cut = old.and_then(|old| old.cut);
            let between = Between { before: &before, now: &now, backup: false, cut: cut.is_some() };
            if between.is_cut_now() {
                let way = said.way(path).unwrap_or(DataDirection::Up);
                let cause = said.drops.get(&(path, way)).copied();
                cut = Some(cause.unwrap_or(Part::AfterLoss));
            }
            let backup = sample.backup.unwrap_or_else(|| said.is_backup(path));
            seen.push((key, (before, backup, Known { info: now, path, cut })));
        }
        seen
    }
}

/// The samples of one look: the subflow, what it was before, whether it is a backup, and what it is.
type Seen = Vec<(SubflowKey, (TcpInfo, bool, Known))>;

fn between(seen: &Seen) -> Vec<Between<'_>> {
    { seen.iter() }
        .map(|(_, (before, backup, known))| Between {
            before,
            now: &known.info,
            backup: *backup,
            cut: known.cut.is_some(),
        })
        .collect()
}

/// One look at a flow in one direction of its data.
struct Said<'a> {
    stage: &'a Stage,
    flow: &'a Flow,
    at: Duration,
    direction: DataDirection,
    drops: &'a BTreeMap<(usize, DataDirection), Part>,
}

impl Said<'_> {
    fn scenario(&self) -> &Scenario {
        &self.stage.network.scenario
    }

    fn transport(&self) -> Transport {
        self.flow.transport_in(self.stage.transport)
    }

    fn ends(&self) -> [usize; 2] {
        match self.direction {
            DataDirection::Down => [self.flow.to, self.flow.from],
            DataDirection::Up | DataDirection::Both => [self.flow.from, self.flow.to],
        }
    }

    /// The direction of the path in which its data go; none if it leads elsewhere.
    fn way(&self, path: usize) -> Option<DataDirection> {
        let [from, to] = self.ends();
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
        (0..self.scenario().paths.len()).filter_map(|path| Some((path, self.way(path)?)))
    }

    fn is_single(&self) -> bool {
        matches!(self.transport(), Transport::Tcp | Transport::Quic)
    }

    /// A path on which there is no subflow.
    fn absent(&self, path: usize) -> Part {
        if self.is_single() && path != self.flow.via { Part::SinglePath } else { Part::NoSubflow }
    }

    /// A flow without a connection that could be asked.
    fn unopened(&self, waiting: &mut Waiting) {
        if matches!(self.flow.pattern, Pattern::Udping(_) | Pattern::Udp(_)) {
            return;
        }
        let program = matches!(self.flow.pattern, Pattern::Run { .. });
        for (path, way) in self.paths() {
            let part = match path == self.flow.via {
                _ if program => Part::Unknown,
                true => Part::Handshake,
                false => self.absent(path),
            };
            waiting.entry((path, way)).or_default().push((part.into(), 1.0));
        }
    }

    /// Our own stack says itself what it waits for.
    fn own_stack(&self, held: &[SubflowLimit], idle: bool, waiting: &mut Waiting) {
        let on = |(one, other)| Network::path_of(one, other);
        for (path, way) in self.paths() {
            let reasons = waiting.entry((path, way)).or_default();
            let before = reasons.len();
            for own in held.iter().filter(|own| on(own.addresses) == Some(path)) {
                let mut part = part_of(own.limit);
                if part == Part::AfterLoss {
                    // It is the link that knows what kind of loss it was.
                    part = self.drops.get(&(path, way)).copied().unwrap_or(part);
                }
                reasons.push((IdleCause { part, waits_for: own.waits_for.and_then(on) }, 1.0));
            }
            if reasons.len() == before {
                let part = if idle { Part::Application } else { self.absent(path) };
                reasons.push((part.into(), 1.0));
            }
        }
    }

    /// For each path what this connection waited for.
    fn reasons(&self, seen: &Seen, source: Source, span: Duration) -> Vec<(usize, WeightedCauses)> {
        let shares = limit::of_connection(source, &between(seen), self.is_endless(), span);
        let mut all: Vec<(usize, WeightedCauses)> = Vec::new();
        let mut idle = 0.0;
        for (at, own) in shares.iter().enumerate() {
            let Some((_, (_, _, known))) = seen.get(at) else { continue };
            let nothing = own.iter().filter(|(limit, _)| *limit == Limit::Application);
            idle = f64::max(idle, nothing.map(|(_, share)| share).sum());
            let reasons = own.iter().map(|(limit, share)| (self.why(*limit, known, seen), *share));
            all.push((known.path, reasons.collect()));
        }
        for (path, _) in self.paths() {
            if all.iter().all(|(known, _)| *known != path) {
                let nothing = (IdleCause::from(self.nothing_to_send()), idle);
                all.push((path, vec![nothing, (self.absent(path).into(), 1.0 - idle)]));
            }
        }
        all
    }

    /// Whether its source never runs dry.
    fn is_endless(&self) -> bool {
        limit::is_endless(&self.flow.pattern)
    }

    /// A source that never runs dry was only not there in time.
    fn nothing_to_send(&self) -> Part {
        if self.is_endless() { Part::SenderCpu } else { Part::Application }
    }

    fn why(&self, limit: Limit, own: &Known, seen: &Seen) -> IdleCause {
        let part = limit::part(limit, own.cut, self.is_endless());
        let waits_for = if let Limit::WindowBehind(other) = limit {
            seen.get(other).map(|(_, (_, _, known))| known.path)
        } else {
            None
        };
        IdleCause { part, waits_for }
    }
}

/// What our own stack calls it.
fn part_of(limit: OwnLimit) -> Part {
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
        let mut window = Full::default();
        let full = vec![(IdleCause { part: Part::HeadOfLineBlocking, waits_for: Some(1) }, 1.0)];
        let parts = [Part::PeerWindow, Part::HeadOfLineBlocking];
        let look = Duration::from_millis(10);
        assert_eq!(window.bytes(), None);
        for _ in 0..10 {
            window.note(400_000, &full, &parts, look);
            window.note(600_000, &full, &parts, look);
        }
        // It grows, and nobody waits for it any more.
        let slow_start = vec![(Part::SlowStart.into(), 1.0)];
        window.note(17_400_000, &slow_start, &parts, look * 1_000);
        assert_eq!((window.bytes(), window.largest), (Some(500_000), 17_400_000));
    }
}
