//! Bytes that receivers got, and the part that arrived twice over different paths.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use towpath_kernel::sample::{ConnectionSample, SubflowSample};
use towpath_result::accounting::ledger::split;
use towpath_scenario::{DataDirection, Transport};

use super::carried::suffix_min;
use crate::network::EmulatedNetwork;
use crate::traffic::{SampledStream, TrafficContext};

/// Index of a path, and a direction on it.
type PathDirection = (usize, DataDirection);

/// Samples of all streams, period by period.
#[derive(Debug, Default)]
pub(super) struct Receivers {
    streams: BTreeMap<(u32, u32, DataDirection), ReceivedStream>,
    periods: usize,
}

/// Received data of one stream in one direction.
#[derive(Debug, Default)]
struct ReceivedStream {
    /// Bytes that each subflow has received so far.
    subflows: BTreeMap<(SocketAddr, SocketAddr, u32), (PathDirection, u64)>,
    /// Received bytes by path and bytes read by the application, at the end of each period.
    totals: Vec<(BTreeMap<PathDirection, u64>, u64)>,
    waiting: WaitingBytes,
}

/// Data that waited for earlier data at the last sample, as the sender knows it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct WaitingBytes {
    /// Bytes delivered by subflows but not acknowledged at the connection level.
    reassembly_bytes: u64,
    /// Bytes behind a gap of their own subflow.
    out_of_order: BTreeMap<PathDirection, u64>,
    /// Bytes that the application had read by then.
    read_bytes: u64,
}

/// Bytes that a path had delivered by the end of a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PathReceived {
    pub(super) received: u64,
    /// Part of `received` that another path had delivered before.
    pub(super) redundant: u64,
    /// Part of `received` that waits for data of other paths at the end.
    pub(super) waiting: u64,
    /// Bytes that wait for a gap on their own subflow; not part of `received`.
    pub(super) out_of_order: u64,
}

impl Receivers {
    /// Samples all receivers at the end of a period.
    pub(super) fn sample(&mut self, context: &TrafficContext) {
        for stream in context.streams() {
            for (direction, read) in &stream.received {
                let key = (stream.flow, stream.number, *direction);
                let received_stream = self.streams.entry(key).or_default();
                let read = read.load(Ordering::Relaxed);
                received_stream.sample(context, &stream, *direction, read);
                received_stream.totals.resize(self.periods, Default::default());
                received_stream.totals.push((received_stream.by_path(), read));
            }
        }
        self.periods += 1;
    }

    /// Returns the bytes of each path at the end of each period.
    pub(super) fn finish(self) -> Vec<BTreeMap<PathDirection, PathReceived>> {
        let mut periods = vec![BTreeMap::new(); self.periods];
        for stream in self.streams.values() {
            let (reassembly_bytes, out_of_order) = stream.waiting.remaining(&stream.totals);
            let (missing, redundant) = (
                redundant_bytes(&stream.totals, 0),
                redundant_bytes(&stream.totals, reassembly_bytes),
            );
            for ((sums, (received, _)), (missing, redundant)) in
                periods.iter_mut().zip(&stream.totals).zip(missing.into_iter().zip(redundant))
            {
                for (direction, bytes) in received {
                    let sum: &mut PathReceived = sums.entry(*direction).or_default();
                    let bytes_of = |by_path: &BTreeMap<PathDirection, u64>| {
                        by_path.get(direction).copied().unwrap_or(0)
                    };
                    sum.received += bytes;
                    sum.redundant += bytes_of(&redundant);
                    sum.waiting += bytes_of(&missing).saturating_sub(bytes_of(&redundant));
                    sum.out_of_order += bytes_of(&out_of_order);
                }
            }
        }
        periods
    }
}

impl ReceivedStream {
    fn sample(
        &mut self,
        context: &TrafficContext,
        stream: &SampledStream,
        direction: DataDirection,
        read: u64,
    ) {
        let Some(flow) = context.network.scenario.flows.get(stream.flow as usize) else { return };
        let transport = context.transport_of(stream.flow);
        let multipath = matches!(transport, Transport::Mptcp | Transport::Mpquic);
        let (receiver, sender, sending_host) = match direction {
            DataDirection::Down => (&stream.client, &stream.server, flow.to),
            DataDirection::Up | DataDirection::Both => (&stream.server, &stream.client, flow.from),
        };
        let path_direction = |sample: &SubflowSample| {
            let path = EmulatedNetwork::path_of(sample.local.ip(), sample.remote.ip())?;
            let first_host = context.network.scenario.paths.get(path).map(|path| path.between[0]);
            let direction = if first_host == Some(sending_host) {
                DataDirection::Up
            } else {
                DataDirection::Down
            };
            Some((path, direction))
        };
        if let Ok(connection) = sender.sample(multipath) {
            self.waiting = WaitingBytes::from_sample(&connection, path_direction, read);
        }
        let samples = match receiver.sample(multipath) {
            Ok(ConnectionSample::Multipath(_, samples)) => samples,
            Ok(ConnectionSample::Single(sample, _)) => vec![sample],
            Err(_) => return,
        };
        for sample in samples {
            let Some(direction) = path_direction(&sample) else { continue };
            let key = (sample.local, sample.remote, sample.number);
            let (_, bytes) = self.subflows.entry(key).or_insert((direction, 0));
            *bytes = sample.info.bytes_received.max(*bytes);
        }
    }

    fn by_path(&self) -> BTreeMap<PathDirection, u64> {
        let mut sums = BTreeMap::new();
        for (direction, bytes) in self.subflows.values() {
            *sums.entry(*direction).or_default() += bytes;
        }
        sums
    }
}

impl WaitingBytes {
    fn from_sample(
        connection: &ConnectionSample,
        path_direction: impl Fn(&SubflowSample) -> Option<PathDirection>,
        read_bytes: u64,
    ) -> Self {
        let (outstanding, samples) = match connection {
            ConnectionSample::Multipath(info, samples) => {
                (info.bytes_sent.saturating_sub(info.bytes_acked), samples.as_slice())
            }
            ConnectionSample::Single(sample, _) => (0, std::slice::from_ref(sample)),
        };
        let (mut in_flight, mut out_of_order) = (0, BTreeMap::new());
        for sample in samples {
            let bytes = |packets: u32| u64::from(packets) * u64::from(sample.info.mss_bytes);
            in_flight += bytes(sample.info.unacked);
            if let Some(path) = path_direction(sample) {
                *out_of_order.entry(path).or_default() += bytes(sample.info.sacked);
            }
        }
        Self { reassembly_bytes: outstanding.saturating_sub(in_flight), out_of_order, read_bytes }
    }

    /// Returns the waiting bytes that were not read after that sample.
    fn remaining(
        &self,
        totals: &[(BTreeMap<PathDirection, u64>, u64)],
    ) -> (u64, BTreeMap<PathDirection, u64>) {
        let read = totals.last().map_or(0, |(_, read)| *read).saturating_sub(self.read_bytes);
        let mut unassigned_read = read.saturating_sub(self.reassembly_bytes);
        let still_waiting = |(direction, bytes): (&PathDirection, &u64)| {
            let read_later = unassigned_read.min(*bytes);
            unassigned_read -= read_later;
            (*direction, bytes - read_later)
        };
        (
            self.reassembly_bytes.saturating_sub(read),
            self.out_of_order.iter().map(still_waiting).collect(),
        )
    }
}

/// Returns for each period the redundant bytes of each path: received beyond what the application
/// ever reads.
///
/// The last `waiting` bytes are excluded. Redundant bytes count for the earliest period in which
/// they can have arrived, and for the paths that received data then.
fn redundant_bytes(
    totals: &[(BTreeMap<PathDirection, u64>, u64)],
    waiting: u64,
) -> Vec<BTreeMap<PathDirection, u64>> {
    let last = totals.len().saturating_sub(1);
    let gaps = totals.iter().enumerate().map(|(index, (received, read))| {
        let gap = received.values().sum::<u64>().saturating_sub(*read);
        gap.saturating_sub(if index == last { waiting } else { 0 })
    });
    let (mut attributed, mut periods) = (0, Vec::new());
    let mut sums: BTreeMap<PathDirection, u64> = BTreeMap::new();
    let mut previous: BTreeMap<PathDirection, u64> = BTreeMap::new();
    for (gap, (received, _)) in suffix_min(gaps).into_iter().zip(totals) {
        let growth = |direction: &PathDirection| {
            let new = received.get(direction).copied().unwrap_or(0);
            new.saturating_sub(previous.get(direction).copied().unwrap_or(0))
        };
        let weights: Vec<u64> = received.keys().map(growth).collect();
        if weights.iter().any(|weight| *weight > 0) {
            let parts = split(gap.saturating_sub(attributed), &weights);
            for (direction, part) in received.keys().zip(parts) {
                *sums.entry(*direction).or_default() += part;
            }
            attributed = gap.max(attributed);
        }
        previous.clone_from(received);
        periods.push(sums.clone());
    }
    periods
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIFI: PathDirection = (0, DataDirection::Up);
    const UMTS: PathDirection = (1, DataDirection::Up);

    fn total(wifi: u64, umts: u64, read: u64) -> (BTreeMap<PathDirection, u64>, u64) {
        (BTreeMap::from([(WIFI, wifi), (UMTS, umts)]), read)
    }

    #[test]
    fn data_waiting_for_the_slow_path_is_not_redundant() {
        let totals = [total(900, 0, 0), total(900, 100, 1_000), total(1_800, 100, 1_900)];
        let periods = redundant_bytes(&totals, 0);
        assert!(
            periods.iter().flat_map(|sums| sums.values()).all(|bytes| *bytes == 0),
            "{periods:?}"
        );
    }

    #[test]
    fn duplicates_count_once_at_the_earliest_possible_time() {
        let totals = [total(900, 0, 0), total(900, 300, 1_000), total(1_800, 300, 1_900)];
        let periods = redundant_bytes(&totals, 0);
        // 200 of the 1200 bytes were never needed.
        let sums: Vec<u64> = periods.iter().map(|sums| sums.values().sum()).collect();
        assert_eq!(sums, [200, 200, 200]);
    }

    #[test]
    fn data_buffered_at_the_end_is_not_a_duplicate() {
        // 300 bytes were copies; 900 wait for the slow path at the end of the run.
        let totals = [total(900, 300, 900), total(1_800, 300, 900), total(1_800, 300, 900)];
        let waiting =
            WaitingBytes { reassembly_bytes: 900, out_of_order: BTreeMap::new(), read_bytes: 900 };
        let (waiting_bytes, _) = waiting.remaining(&totals);
        let last_sum =
            |sums: Vec<BTreeMap<PathDirection, u64>>| sums.last().unwrap().values().sum::<u64>();
        assert_eq!(last_sum(redundant_bytes(&totals, waiting_bytes)), 300);
        assert_eq!(last_sum(redundant_bytes(&totals, 0)), 1_200);
        // Data read after the sender's last sample waits no more.
        let waiting = WaitingBytes {
            reassembly_bytes: 900,
            out_of_order: BTreeMap::from([(WIFI, 50)]),
            read_bytes: 0,
        };
        assert_eq!(waiting.remaining(&totals), (0, BTreeMap::from([(WIFI, 50)])));
        let waiting = WaitingBytes { reassembly_bytes: 870, ..waiting };
        assert_eq!(waiting.remaining(&totals), (0, BTreeMap::from([(WIFI, 20)])));
    }
}
