//! What receivers have got, and how much of it came twice over different paths.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use towpath_measure::account::ledger::split;
use towpath_measure::scenario::{DataDirection, Transport};

use super::carried::settled;
use crate::network::Network;
use crate::sample::{Connection, SubflowSample};
use crate::traffic::{Stage, Stream};

/// A path, and the direction of it.
type Way = (usize, DataDirection);

/// All streams, period by period.
#[derive(Debug, Default)]
pub(super) struct Receivers {
    streams: BTreeMap<(u32, u32, DataDirection), Received>,
    periods: usize,
}

/// One stream's data in one direction.
#[derive(Debug, Default)]
struct Received {
    /// What each subflow received so far.
    subflows: BTreeMap<(SocketAddr, SocketAddr, u32), (Way, u64)>,
    /// The same by path, at the end of each period, and what the application had read.
    totals: Vec<(BTreeMap<Way, u64>, u64)>,
    waits: Waits,
}

/// What waits for earlier data at the last look, as the sender knows it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Waits {
    /// Delivered by subflows, and not acknowledged by the connection.
    above_bytes: u64,
    /// Behind a gap of its own subflow.
    behind: BTreeMap<Way, u64>,
    /// What the application had read then.
    read: u64,
}

/// What a path had brought at the end of a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Brought {
    pub(super) received: u64,
    /// Of that, what another path had brought before.
    pub(super) needless: u64,
    /// Of that, what still waits for other paths at the end.
    pub(super) waiting: u64,
    /// Not among that, for it waits on its own subflow.
    pub(super) behind: u64,
}

impl Receivers {
    /// Notes what all receivers have at the end of a period.
    pub(super) fn note(&mut self, stage: &Stage) {
        for stream in stage.streams() {
            for (direction, read) in &stream.received {
                let key = (stream.flow, stream.number, *direction);
                let own = self.streams.entry(key).or_default();
                let read = read.load(Ordering::Relaxed);
                own.look(stage, &stream, *direction, read);
                own.totals.resize(self.periods, Default::default());
                own.totals.push((own.by_path(), read));
            }
        }
        self.periods += 1;
    }

    /// For each period, what each path had brought by its end.
    pub(super) fn finish(self) -> Vec<BTreeMap<Way, Brought>> {
        let mut all = vec![BTreeMap::new(); self.periods];
        for stream in self.streams.values() {
            let (above, behind) = stream.waits.left(&stream.totals);
            let (missing, needless) =
                (needless(&stream.totals, 0), needless(&stream.totals, above));
            for ((sums, (received, _)), (missing, needless)) in
                all.iter_mut().zip(&stream.totals).zip(missing.into_iter().zip(needless))
            {
                for (way, bytes) in received {
                    let sum: &mut Brought = sums.entry(*way).or_default();
                    let of = |all: &BTreeMap<Way, u64>| all.get(way).copied().unwrap_or(0);
                    sum.received += bytes;
                    sum.needless += of(&needless);
                    sum.waiting += of(&missing).saturating_sub(of(&needless));
                    sum.behind += of(&behind);
                }
            }
        }
        all
    }
}

impl Received {
    fn look(&mut self, stage: &Stage, stream: &Stream, direction: DataDirection, read: u64) {
        let Some(flow) = stage.network.scenario.flows.get(stream.flow as usize) else { return };
        let transport = stage.transport_of(stream.flow);
        let multipath = matches!(transport, Transport::Mptcp | Transport::Mpquic);
        let (receiver, sender, from) = match direction {
            DataDirection::Down => (&stream.client, &stream.server, flow.to),
            DataDirection::Up | DataDirection::Both => (&stream.server, &stream.client, flow.from),
        };
        let way = |sample: &SubflowSample| {
            let path = Network::path_of(sample.local.ip(), sample.remote.ip())?;
            let first = stage.network.scenario.paths.get(path).map(|path| path.between[0]);
            let way = if first == Some(from) { DataDirection::Up } else { DataDirection::Down };
            Some((path, way))
        };
        if let Ok(connection) = sender.sample(multipath) {
            self.waits = Waits::of(&connection, way, read);
        }
        let samples = match receiver.sample(multipath) {
            Ok(Connection::Multipath(_, samples)) => samples,
            Ok(Connection::Single(sample, _)) => vec![sample],
            Err(_) => return,
        };
        for sample in samples {
            let Some(way) = way(&sample) else { continue };
            let key = (sample.local, sample.remote, sample.number);
            let (_, bytes) = self.subflows.entry(key).or_insert((way, 0));
            *bytes = sample.info.bytes_received.max(*bytes);
        }
    }

    fn by_path(&self) -> BTreeMap<Way, u64> {
        let mut sums = BTreeMap::new();
        for (way, bytes) in self.subflows.values() {
            *sums.entry(*way).or_default() += bytes;
        }
        sums
    }
}

impl Waits {
    fn of(connection: &Connection, way: impl Fn(&SubflowSample) -> Option<Way>, read: u64) -> Self {
        let (outstanding, samples) = match connection {
            Connection::Multipath(info, samples) => {
                (info.bytes_sent.saturating_sub(info.bytes_acked), samples.as_slice())
            }
            Connection::Single(sample, _) => (0, std::slice::from_ref(sample)),
        };
        let (mut under_way, mut behind) = (0, BTreeMap::new());
        for sample in samples {
            let bytes = |packets: u32| u64::from(packets) * u64::from(sample.info.mss_bytes);
            under_way += bytes(sample.info.unacked);
            if let Some(way) = way(sample) {
                *behind.entry(way).or_default() += bytes(sample.info.sacked);
            }
        }
        Self { above_bytes: outstanding.saturating_sub(under_way), behind, read }
    }

    /// What of it was not read after that look.
    fn left(&self, totals: &[(BTreeMap<Way, u64>, u64)]) -> (u64, BTreeMap<Way, u64>) {
        let read = totals.last().map_or(0, |(_, read)| *read).saturating_sub(self.read);
        let mut later = read.saturating_sub(self.above_bytes);
        let left = |(way, bytes): (&Way, &u64)| {
            let gone = later.min(*bytes);
            later -= gone;
            (*way, bytes - gone)
        };
        (self.above_bytes.saturating_sub(read), self.behind.iter().map(left).collect())
    }
}

/// For each period what each path had brought in vain, except for the `waiting` bytes of the end: more than the application has read, or will
/// ever read. It is put down to the earliest period in which it may have come, and to the paths that
/// brought something then.
fn needless(totals: &[(BTreeMap<Way, u64>, u64)], waiting: u64) -> Vec<BTreeMap<Way, u64>> {
    let last = totals.len().saturating_sub(1);
    let gaps = totals.iter().enumerate().map(|(index, (received, read))| {
        let gap = received.values().sum::<u64>().saturating_sub(*read);
        gap.saturating_sub(if index == last { waiting } else { 0 })
    });
    let (mut old, mut all) = (0, Vec::new());
    let mut sums: BTreeMap<Way, u64> = BTreeMap::new();
    let mut before: BTreeMap<Way, u64> = BTreeMap::new();
    for (gap, (received, _)) in settled(gaps).into_iter().zip(totals) {
        let grown = |way: &Way| {
            let new = received.get(way).copied().unwrap_or(0);
            new.saturating_sub(before.get(way).copied().unwrap_or(0))
        };
        let weights: Vec<u64> = received.keys().map(grown).collect();
        if weights.iter().any(|weight| *weight > 0) {
            let parts = split(gap.saturating_sub(old), &weights);
            for (way, part) in received.keys().zip(parts) {
                *sums.entry(*way).or_default() += part;
            }
            old = gap.max(old);
        }
        before.clone_from(received);
        all.push(sums.clone());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIFI: Way = (0, DataDirection::Up);
    const UMTS: Way = (1, DataDirection::Up);

    fn total(wifi: u64, umts: u64, read: u64) -> (BTreeMap<Way, u64>, u64) {
        (BTreeMap::from([(WIFI, wifi), (UMTS, umts)]), read)
    }

    #[test]
    fn data_waiting_for_the_slow_path_is_not_needless() {
        let totals = [total(900, 0, 0), total(900, 100, 1_000), total(1_800, 100, 1_900)];
        let all = needless(&totals, 0);
        assert!(all.iter().flat_map(|sums| sums.values()).all(|bytes| *bytes == 0), "{all:?}");
    }

    #[test]
    fn duplicates_count_once_at_the_earliest_possible_time() {
        let totals = [total(900, 0, 0), total(900, 300, 1_000), total(1_800, 300, 1_900)];
        let all = needless(&totals, 0);
        // 200 of the 1200 bytes were never needed.
        let sums: Vec<u64> = all.iter().map(|sums| sums.values().sum()).collect();
        assert_eq!(sums, [200, 200, 200]);
    }

    #[test]
    fn data_buffered_at_the_end_is_not_a_duplicate() {
        // 300 bytes were copies; 900 wait for the slow path when the run ends.
        let totals = [total(900, 300, 900), total(1_800, 300, 900), total(1_800, 300, 900)];
        let waits = Waits { above_bytes: 900, behind: BTreeMap::new(), read: 900 };
        let (above, _) = waits.left(&totals);
        let last = |sums: Vec<BTreeMap<Way, u64>>| sums.last().unwrap().values().sum::<u64>();
        assert_eq!(last(needless(&totals, above)), 300);
        assert_eq!(last(needless(&totals, 0)), 1_200);
        // What was read after the last look at the sender waits no more.
        let waits = Waits { above_bytes: 900, behind: BTreeMap::from([(WIFI, 50)]), read: 0 };
        assert_eq!(waits.left(&totals), (0, BTreeMap::from([(WIFI, 50)])));
        let waits = Waits { above_bytes: 870, ..waits };
        assert_eq!(waits.left(&totals), (0, BTreeMap::from([(WIFI, 20)])));
    }
}
