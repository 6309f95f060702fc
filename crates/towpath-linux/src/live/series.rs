//! What one end's kernel says of its connections, every period.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use towpath_measure::live::{ConnectionHalf, SubflowHalf};
use towpath_measure::result::{Event, EventKind, Interval, Record};
use towpath_measure::scenario::DataDirection;
use towpath_net::Instant;

use super::end::Stream;
use super::host::PathNames;
use crate::sample::{self, Connection, SubflowSample, TcpInfo};
use crate::subflow::{Named, congestion_controls};
use crate::traffic::sends;

/// Flow, stream, own address, the other's.
type Key = (u32, u32, SocketAddr, SocketAddr);

/// A subflow over the whole run.
#[derive(Debug)]
struct Known {
    half: SubflowHalf,
    latest: TcpInfo,
    last_seen: Instant,
}

/// The series of one end.
#[derive(Debug)]
pub(super) struct Series {
    is_client: bool,
    multipath: bool,
    names: PathNames,
    subflows: BTreeMap<Key, Known>,
    connections: BTreeMap<(u32, u32), ConnectionHalf>,
    counted: BTreeMap<(u32, u32, DataDirection), u64>,
    at: Instant,
    /// There are subflows whose congestion control was not read back.
    unasked: bool,
    /// Everything so far.
    records: Vec<Record>,
}

impl Series {
    pub(super) fn new(is_client: bool, multipath: bool) -> Self {
        Self {
            is_client,
            multipath,
            names: PathNames::default(),
            subflows: BTreeMap::new(),
            connections: BTreeMap::new(),
            counted: BTreeMap::new(),
            at: Instant::ZERO,
            unasked: false,
            records: Vec::new(),
        }
    }

    /// Samples at `at`, which ends a period; what is new is the end of [`Self::records`].
    pub(super) fn sample(&mut self, streams: &[Stream], at: Instant, last: bool) {
        let span = at.saturating_since(self.at);
        if span.is_zero() {
            return;
        }
        self.at = at;
        for stream in streams {
            self.count(stream, at, span);
            self.look(stream, at, span);
        }
        // At the end everything closes.
        if !last {
            self.notice_closed(at);
        }
        if self.unasked {
            // Once they are closed, nobody can say it any more.
            self.read_back();
        }
    }

    /// All records so far.
    pub(super) fn records(&self) -> &[Record] {
        &self.records
    }

    /// Bytes that went either way so far.
    pub(super) fn moved_bytes(&self) -> u64 {
        let moved = self
            .subflows
            .values()
            .map(|known| known.latest.bytes_received.saturating_add(known.latest.bytes_acked));
        moved.fold(0, u64::saturating_add)
    }

    /// What is left at the end.
    pub(super) fn finish(self) -> (Vec<ConnectionHalf>, Vec<SubflowHalf>, Vec<Record>) {
        let mut subflows: Vec<_> = self.subflows.into_values().map(|known| known.half).collect();
        subflows.sort_by_key(|half| (half.flow, half.stream, half.subflow));
        (self.connections.into_values().collect(), subflows, self.records)
    }

    fn count(&mut self, stream: &Stream, at: Instant, span: Duration) {
        let incoming =
            stream.received.iter().filter(|(direction, _)| !sends(*direction, self.is_client));
        for (direction, received) in incoming {
            let total = received.load(Ordering::Relaxed);
            let key = (stream.flow, stream.number, *direction);
            let before = self.counted.insert(key, total).unwrap_or(0);
            self.records.push(Record::Interval(Interval {
                t_ns: at.as_nanos(),
                span_ns: span.as_nanos() as u64,
                flow: stream.flow,
                stream: stream.number,
                direction: *direction,
                bytes: total.saturating_sub(before),
                connection: None,
            }));
        }
    }

    fn look(&mut self, stream: &Stream, at: Instant, span: Duration) {
        // A socket whose connection is gone has nothing to say any more.
        let Ok(connection) = sample::connection(&stream.socket, self.multipath) else { return };
        let (info, samples) = match connection {
            Connection::Multipath(info, samples) => (Some(info), samples),
            Connection::Single(sample, _) => (None, vec![sample]),
        };
        if self.multipath {
            let one = self.connections.entry((stream.flow, stream.number));
            let one = one.or_insert_with(|| ConnectionHalf {
                flow: stream.flow,
                stream: stream.number,
                multipath: true,
                reinjected_bytes: 0,
                reason: None,
            });
            one.multipath = info.is_some_and(|info| !info.fallback);
            let again = info.map_or(0, |info| info.bytes_retrans);
            one.reinjected_bytes = one.reinjected_bytes.max(again);
        }
        // What is closing has lost one of its addresses already.
        let whole = |sample: &SubflowSample| {
            sample.remote.port() != 0 && !sample.local.ip().is_unspecified()
        };
        for sample in samples.into_iter().filter(whole) {
            self.note(stream, sample, at, span);
        }
    }

    fn note(&mut self, stream: &Stream, sample: SubflowSample, at: Instant, span: Duration) {
        let key = (stream.flow, stream.number, sample.local, sample.remote);
        if !self.subflows.contains_key(&key) {
            self.first_sight(key, at);
        }
        let is_client = self.is_client;
        let Some(known) = self.subflows.get_mut(&key) else { return };
        known.last_seen = at;
        let before = std::mem::replace(&mut known.latest, sample.info);
        let half = &mut known.half;
        half.bytes_acked = sample.info.bytes_acked;
        half.bytes_received = sample.info.bytes_received;
        half.retransmissions = sample.info.total_retrans.into();
        half.srtt_us = sample.info.srtt_us;
        let named = Named {
            flow: half.flow,
            stream: half.stream,
            number: half.subflow,
            path: half.path.as_deref().unwrap_or("unknown"),
            backup: half.backup,
        };
        for (direction, _) in &stream.received {
            let sends = sends(*direction, is_client);
            let record = named.record(*direction, sends, (&before, &sample.info), (at, span));
            self.records.push(Record::Subflow(Box::new(record)));
        }
    }

    fn first_sight(&mut self, key: Key, at: Instant) {
        let (flow, stream, local, remote) = key;
        let same = |other: &&Key| other.0 == flow && other.1 == stream;
        let subflow = self.subflows.keys().filter(same).count() as u32;
        // Only the client's interfaces name paths.
        let path = self.is_client.then(|| self.names.of(local.ip())).flatten();
        let name = path.as_deref().unwrap_or("unknown");
        let text = format!("subflow {subflow} first seen on {name}: {local} → {remote}");
        self.event(at, path.clone(), text);
        self.unasked = true;
        let half = SubflowHalf {
            flow,
            stream,
            subflow,
            path,
            local: local.to_string(),
            remote: remote.to_string(),
            backup: false,
            bytes_acked: 0,
            bytes_received: 0,
            retransmissions: 0,
            srtt_us: 0,
            congestion_control: None,
            first_seen_ns: at.as_nanos(),
            closed_ns: None,
        };
        self.subflows.insert(key, Known { half, latest: TcpInfo::default(), last_seen: at });
    }

    fn notice_closed(&mut self, at: Instant) {
        let mut gone = Vec::new();
        for known in self.subflows.values_mut() {
            if known.half.closed_ns.is_none() && known.last_seen < at {
                known.half.closed_ns = Some(known.last_seen.as_nanos());
                gone.push((known.half.subflow, known.half.path.clone()));
            }
        }
        for (number, path) in gone {
            let name = path.as_deref().unwrap_or("unknown");
            let text = format!("subflow {number} on {name} is gone");
            self.event(at, path.clone(), text);
        }
    }

    fn event(&mut self, at: Instant, path: Option<String>, text: String) {
        self.records.push(Record::Event(Event {
            t_ns: at.as_nanos(),
            kind: EventKind::Subflow,
            host: None,
            path,
            text,
            detail: BTreeMap::new(),
        }));
    }

    fn read_back(&mut self) {
        self.unasked = false;
        let controls = congestion_controls();
        for ((_, _, local, remote), known) in &mut self.subflows {
            let own = controls.iter().find(|control| (control.0, control.1) == (*local, *remote));
            let named = &mut known.half.congestion_control;
            *named = named.take().or(own.map(|(_, _, name)| name.clone()));
        }
    }
}
