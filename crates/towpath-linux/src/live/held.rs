//! What held this end's senders back, look by look, for the account of capacity.
//!
//! Ten milliseconds are short enough to see a window that is full for a part of a round trip only,
//! and to see how fast a path is while it is full.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use towpath_measure::result::{Part, SenderActivity};
use towpath_net::Instant;

use super::end::Stream;
use super::line::Line;
use super::series::{Key, key_of};
use crate::limit::{self, Above, Between, Limit, Source};
use crate::sample::{self, Connection, SubflowSample, TcpInfo};

/// Between two looks.
pub(super) const LOOK: Duration = Duration::from_millis(10);
/// A rate is looked for over so long.
const MOMENT: Duration = Duration::from_millis(20);
/// With more connections than this, there are fewer looks.
const MANY: usize = 16;
/// A round trip that is longer than the shortest by so much, and by a quarter of it, was in a queue.
const QUEUED_US: u32 = 5_000;
/// DSS with both numbers and a mapping, padded (RFC 8684 §3.3).
const DSS_BYTES: u64 = 28;

/// Two hosts' addresses: all connections between them share a path.
type Group = (IpAddr, IpAddr);

/// What is known of this end's senders.
#[derive(Debug, Default)]
pub(super) struct Looks {
    multipath: bool,
    count: usize,
    subflows: BTreeMap<Key, Known>,
    /// When, and what had been acknowledged in all, of the latest looks.
    groups: BTreeMap<Group, Rates>,
    looked: BTreeMap<(u32, u32), Instant>,
}

/// A subflow since the last period.
#[derive(Debug)]
struct Known {
    info: TcpInfo,
    overhead: u64,
    is_cut: bool,
    /// At the end of the period before.
    told: TcpInfo,
    spent_ns: BTreeMap<Part, u64>,
    queued_ns: u64,
    shortest_us: u32,
    waits_for: BTreeMap<Key, u64>,
    window_bytes: u64,
    buffer_bytes: u64,
}

#[derive(Debug, Default)]
struct Rates {
    looks: VecDeque<(Instant, u64)>,
    peak_bps: u64,
}

/// What one subflow was held back by, with the subflows that were waited for.
pub(super) type Told = (SenderActivity, BTreeMap<Key, u64>);

impl Looks {
    pub(super) fn new(multipath: bool) -> Self {
        Self { multipath, ..Self::default() }
    }

    /// Looks at all streams that send; `endless` says whose source never runs dry.
    pub(super) fn look(&mut self, streams: &[(&Stream, bool)], at: Instant, closing: bool) {
        self.count += 1;
        if !closing && !self.count.is_multiple_of(streams.len() / MANY + 1) {
            return;
        }
        for (stream, endless) in streams {
            self.ask(stream, *endless, at);
        }
        let mut sums: BTreeMap<Group, u64> = BTreeMap::new();
        for ((_, _, local, remote, _), known) in &self.subflows {
            let sum = sums.entry((local.ip(), remote.ip())).or_default();
            *sum = sum.saturating_add(delivered_bytes(&known.info));
        }
        for (group, bytes) in sums {
            self.groups.entry(group).or_default().take(at, bytes);
        }
    }

    fn ask(&mut self, stream: &Stream, endless: bool, at: Instant) {
        let Ok(connection) = stream.line.sample(self.multipath) else { return };
        let before = self.looked.insert((stream.flow, stream.number), at).unwrap_or(at);
        let span = at.saturating_since(before);
        let (source, buffer_bytes) = source(&stream.line, &connection);
        let (samples, is_multipath) = match connection {
            Connection::Multipath(_, samples) => (samples, true),
            Connection::Single(sample, _) => (vec![sample], false),
        };
        let samples: Vec<(Key, SubflowSample)> = { samples.into_iter() }
            .filter(|sample| !matches!(sample.info.state, TcpInfo::ABANDONED | TcpInfo::CLOSED))
            .filter(|sample| sample.remote.port() != 0 && !sample.local.ip().is_unspecified())
            .map(|sample| (key_of(stream, &sample), sample))
            .collect();
        let mut seen: Vec<(Key, TcpInfo)> = Vec::new();
        for (key, sample) in &samples {
            let overhead = overhead_bytes(sample, is_multipath);
            let known = self.subflows.entry(*key).or_insert_with(|| Known::new(sample.info));
            known.overhead = overhead;
            let now = sample.info;
            let between = Between { before: &known.info, now: &now, backup: false, cut: false };
            known.is_cut |= between.is_cut_now();
            known.window_bytes = known.window_bytes.max(now.snd_wnd_bytes.unwrap_or(0).into());
            known.buffer_bytes = known.buffer_bytes.max(buffer_bytes);
            if known.sees_queue(&now) {
                known.queued_ns += span.as_nanos() as u64;
            }
            seen.push((*key, std::mem::replace(&mut known.info, now)));
        }
        let between: Vec<Between<'_>> = { seen.iter().zip(&samples) }
            .map(|((key, before), (_, sample))| Between {
                before,
                now: &sample.info,
                backup: sample.backup.unwrap_or(false),
                cut: self.subflows.get(key).is_some_and(|known| known.is_cut),
            })
            .collect();
        let shares = limit::of_connection(source, &between, endless, span);
        for (shares, (key, _)) in shares.iter().zip(&seen) {
            let Some(known) = self.subflows.get_mut(key) else { continue };
            for (limit, share) in shares {
                let spent = (span.as_nanos() as f64 * share) as u64;
                let cut = known.is_cut.then_some(Part::AfterLoss);
                *known.spent_ns.entry(limit::part(*limit, cut, endless)).or_default() += spent;
                if let Limit::WindowBehind(other) = limit
                    && let Some((other, _)) = seen.get(*other)
                {
                    *known.waits_for.entry(*other).or_default() += spent;
                }
            }
        }
    }

    /// What a subflow was held back by since this was last asked.
    pub(super) fn tell(&mut self, key: &Key) -> Option<Told> {
        let known = self.subflows.get_mut(key)?;
        let before = std::mem::replace(&mut known.told, known.info);
        let limits_ns = std::mem::take(&mut known.spent_ns);
        let mss = u64::from(known.info.mss_bytes);
        let grown =
            |of: fn(&TcpInfo) -> u32| u64::from(of(&known.info).saturating_sub(of(&before)));
        let delivered = delivered_bytes(&known.info).saturating_sub(delivered_bytes(&before));
        let duplicates = grown(|info| info.duplicates);
        // A library counts no packets.
        let again = grown(|info| info.total_retrans);
        let packets = match grown(|info| info.data_segments_sent) {
            0 => delivered.div_ceil(mss.max(1)),
            packets => packets.saturating_sub(again),
        };
        let peak_bps = self.groups.get(&(key.2.ip(), key.3.ip())).map_or(0, |rates| rates.peak_bps);
        let held = SenderActivity {
            limits_ns: limits_ns.into_iter().filter(|(_, span)| *span > 0).collect(),
            blocked_by_ns: Vec::new(),
            queued_ns: std::mem::take(&mut known.queued_ns),
            delivered_bytes: delivered,
            header_bytes: (packets + duplicates) * known.overhead,
            spurious_bytes: duplicates * mss,
            peak_bps,
            peer_window_max_bytes: known.window_bytes,
            send_buffer_max_bytes: known.buffer_bytes,
        };
        Some((held, std::mem::take(&mut known.waits_for)))
    }

    /// The next period begins.
    pub(super) fn begin_period(&mut self) {
        for rates in self.groups.values_mut() {
            rates.peak_bps = 0;
        }
    }
}

impl Known {
    fn new(info: TcpInfo) -> Self {
        Self {
            info,
            overhead: 0,
            is_cut: false,
            told: info,
            spent_ns: BTreeMap::new(),
            queued_ns: 0,
            shortest_us: u32::MAX,
            waits_for: BTreeMap::new(),
            window_bytes: 0,
            buffer_bytes: 0,
        }
    }
}

impl Known {
    /// Whether packets wait on the way, as their round trips show.
    fn sees_queue(&mut self, now: &TcpInfo) -> bool {
        // A library does not tell the shortest.
        let shortest = if now.min_rtt_us > 0 { now.min_rtt_us } else { now.srtt_us };
        if shortest > 0 {
            self.shortest_us = self.shortest_us.min(shortest);
        }
        let longer = now.srtt_us.saturating_sub(self.shortest_us);
        now.unacked > 0 && longer >= QUEUED_US.max(self.shortest_us / 4)
    }
}

impl Rates {
    fn take(&mut self, at: Instant, bytes: u64) {
        // The latest look that is long enough ago, and those behind it.
        while self.looks.get(1).is_some_and(|(then, _)| at.saturating_since(*then) >= MOMENT) {
            self.looks.pop_front();
        }
        if let Some((then, before)) = self.looks.front()
            && at.saturating_since(*then) >= MOMENT
        {
            let nanos = at.saturating_since(*then).as_nanos();
            let bits = u128::from(bytes.saturating_sub(*before)) * 8_000_000_000;
            let rate = u64::try_from(bits / nanos.max(1)).unwrap_or(u64::MAX);
            self.peak_bps = self.peak_bps.max(rate);
        }
        self.looks.push_back((at, bytes));
    }
}

/// Payload that the peer is known to have, in order or not.
fn delivered_bytes(info: &TcpInfo) -> u64 {
    info.bytes_acked.saturating_add(u64::from(info.sacked) * u64::from(info.mss_bytes))
}

/// Who tells of a connection, and the size of its send buffer.
fn source(line: &Line, connection: &Connection) -> (Source, u64) {
    let Line::Socket(wire) = line else { return (Source::Library, 0) };
    let buffer = sample::send_buffer(wire.socket()).unwrap_or_default();
    let source = match connection {
        Connection::Multipath(info, _) => Source::Multipath(Above::of(info, buffer)),
        Connection::Single(..) => Source::Single(buffer),
    };
    (source, buffer.1)
}

/// What is around a packet's payload: IP, TCP with what options there always are, DSS; or IP and UDP.
fn overhead_bytes(sample: &SubflowSample, is_multipath: bool) -> u64 {
    let ip = if sample.remote.is_ipv4() { 20 } else { 40 };
    if sample.stream_frames.is_some() {
        return ip + 8;
    }
    let timestamps = if sample.info.timestamps { 12 } else { 0 };
    ip + 20 + timestamps + if is_multipath { DSS_BYTES } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_that_of_the_fastest_moment_and_not_of_the_mean() {
        let mut rates = Rates::default();
        let at = |ms: u64| Instant::ZERO + Duration::from_millis(ms);
        // 25 kB in each of three looks, then nothing for 70 ms.
        for (ms, bytes) in [(0, 0), (10, 25_000), (20, 50_000), (30, 75_000), (100, 75_000)] {
            rates.take(at(ms), bytes);
        }
        assert_eq!(rates.peak_bps, 20_000_000);
        // A look that comes late is a longer moment.
        let mut late = Rates::default();
        late.take(at(0), 0);
        late.take(at(50), 50_000);
        assert_eq!(late.peak_bps, 8_000_000);
    }
}
