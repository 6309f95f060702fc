//! Samples what limited this endpoint's senders, for the capacity account.
//!
//! An interval of 10 ms resolves a window that is full for only part of a round trip. It also shows
//! the throughput of a path while it is saturated.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use towpath_kernel::sample;
use towpath_kernel::sample::{ConnectionSample, SubflowSample, TcpInfo};
use towpath_kernel::send_limit;
use towpath_kernel::send_limit::{ConnectionSendState, InfoSource, SendLimit, SubflowDelta};
use towpath_net::Instant;
use towpath_result::{Part, SenderActivity};

use super::data_stream::DataStream;
use super::flow_runner::FlowStream;
use super::series::{HostSubflowKey, key_of};

/// Interval between two samples.
pub(super) const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);
/// Time window of the peak rate.
const RATE_WINDOW: Duration = Duration::from_millis(20);
/// Number of streams above which samples become less frequent.
const MAX_FULL_RATE_STREAMS: usize = 16;
/// Minimum queueing delay in microseconds; it must also be at least a quarter of the shortest round
/// trip.
const MIN_QUEUE_DELAY_US: u32 = 5_000;
/// DSS option with DSN, data ACK and mapping, padded (RFC 8684 §3.3).
const DSS_BYTES: u64 = 28;

/// Local and remote host; all connections between them share a path.
type HostPair = (IpAddr, IpAddr);

/// Sampler of this endpoint's senders.
#[derive(Debug, Default)]
pub(super) struct SenderSampler {
    multipath: bool,
    sample_count: usize,
    subflows: BTreeMap<HostSubflowKey, SenderSubflow>,
    /// Recent samples of the acknowledged bytes of each host pair, with the time.
    peak_rates: BTreeMap<HostPair, PeakRate>,
    last_sampled: BTreeMap<(u32, u32), Instant>,
}

/// State of a subflow since the last period.
#[derive(Debug)]
struct SenderSubflow {
    info: TcpInfo,
    /// Header bytes of each packet.
    overhead_bytes: u64,
    /// Set when a loss has reduced the congestion window.
    cwnd_reduced: bool,
    /// Sample at the end of the previous period.
    period_start: TcpInfo,
    limits_ns: BTreeMap<Part, u64>,
    queued_ns: u64,
    min_rtt_us: u32,
    /// Time in which other subflows blocked this one, in nanoseconds.
    blocked_by_ns: BTreeMap<HostSubflowKey, u64>,
    max_peer_window_bytes: u64,
    max_buffer_bytes: u64,
}

#[derive(Debug, Default)]
struct PeakRate {
    samples: VecDeque<(Instant, u64)>,
    peak_bps: u64,
}

/// Limits of one subflow, with the subflows that blocked it through head-of-line blocking.
pub(super) type SubflowLimits = (SenderActivity, BTreeMap<HostSubflowKey, u64>);

impl SenderSampler {
    pub(super) fn new(multipath: bool) -> Self {
        Self { multipath, ..Self::default() }
    }

    /// Samples all sending streams; the flag is true if the application never limits the stream.
    pub(super) fn sample(&mut self, streams: &[(&FlowStream, bool)], at: Instant, closing: bool) {
        self.sample_count += 1;
        if !closing && !self.sample_count.is_multiple_of(streams.len() / MAX_FULL_RATE_STREAMS + 1)
        {
            return;
        }
        for (stream, endless) in streams {
            self.sample_stream(stream, *endless, at);
        }
        let mut sums: BTreeMap<HostPair, u64> = BTreeMap::new();
        for ((_, _, local, remote, _), subflow) in &self.subflows {
            let sum = sums.entry((local.ip(), remote.ip())).or_default();
            *sum = sum.saturating_add(delivered_bytes(&subflow.info));
        }
        for (hosts, bytes) in sums {
            self.peak_rates.entry(hosts).or_default().add_sample(at, bytes);
        }
    }

    fn sample_stream(&mut self, stream: &FlowStream, endless: bool, at: Instant) {
        let Ok(connection) = stream.stream.sample(self.multipath) else { return };
        let before = self.last_sampled.insert((stream.flow, stream.number), at).unwrap_or(at);
        let span = at.saturating_since(before);
        let (source, buffer_bytes) = info_source(&stream.stream, &connection);
        let (samples, is_multipath) = match connection {
            ConnectionSample::Multipath(_, samples) => (samples, true),
            ConnectionSample::Single(sample, _) => (vec![sample], false),
        };
        let samples: Vec<(HostSubflowKey, SubflowSample)> = { samples.into_iter() }
            .filter(|sample| {
                !matches!(sample.info.state, TcpInfo::QUIC_ABANDONED | TcpInfo::CLOSED)
            })
            .filter(|sample| sample.remote.port() != 0 && !sample.local.ip().is_unspecified())
            .map(|sample| (key_of(stream, &sample), sample))
            .collect();
        let mut previous: Vec<(HostSubflowKey, TcpInfo)> = Vec::new();
        for (key, sample) in &samples {
            let packet_overhead = overhead_bytes(sample, is_multipath);
            let subflow =
                self.subflows.entry(*key).or_insert_with(|| SenderSubflow::new(sample.info));
            subflow.overhead_bytes = packet_overhead;
            let now = sample.info;
            let (backup, cwnd_reduced) = (false, false);
            let delta = SubflowDelta { before: &subflow.info, now: &now, backup, cwnd_reduced };
            subflow.cwnd_reduced |= delta.is_cwnd_reduced();
            subflow.max_peer_window_bytes =
                subflow.max_peer_window_bytes.max(now.snd_wnd_bytes.unwrap_or(0).into());
            subflow.max_buffer_bytes = subflow.max_buffer_bytes.max(buffer_bytes);
            if subflow.is_queueing(&now) {
                subflow.queued_ns += span.as_nanos() as u64;
            }
            previous.push((*key, std::mem::replace(&mut subflow.info, now)));
        }
        let deltas: Vec<SubflowDelta<'_>> = { previous.iter().zip(&samples) }
            .map(|((key, before), (_, sample))| SubflowDelta {
                before,
                now: &sample.info,
                backup: sample.backup.unwrap_or(false),
                cwnd_reduced: self.subflows.get(key).is_some_and(|subflow| subflow.cwnd_reduced),
            })
            .collect();
        let shares = send_limit::connection_limits(source, &deltas, endless, span);
        for (shares, (key, _)) in shares.iter().zip(&previous) {
            let Some(subflow) = self.subflows.get_mut(key) else { continue };
            for (limit, share) in shares {
                let share_ns = (span.as_nanos() as f64 * share) as u64;
                let after_loss = subflow.cwnd_reduced.then_some(Part::AfterLoss);
                *subflow
                    .limits_ns
                    .entry(send_limit::account_part(*limit, after_loss, endless))
                    .or_default() += share_ns;
                if let SendLimit::HolBlocked(blocker) = limit
                    && let Some((blocker, _)) = previous.get(*blocker)
                {
                    *subflow.blocked_by_ns.entry(*blocker).or_default() += share_ns;
                }
            }
        }
    }

    /// Returns the limits of a subflow since the last call; `None` if it is unknown.
    pub(super) fn take_limits(&mut self, key: &HostSubflowKey) -> Option<SubflowLimits> {
        let subflow = self.subflows.get_mut(key)?;
        let before = std::mem::replace(&mut subflow.period_start, subflow.info);
        let limits_ns = std::mem::take(&mut subflow.limits_ns);
        let mss = u64::from(subflow.info.mss_bytes);
        let increase = |counter: fn(&TcpInfo) -> u32| {
            u64::from(counter(&subflow.info).saturating_sub(counter(&before)))
        };
        let delivered = delivered_bytes(&subflow.info).saturating_sub(delivered_bytes(&before));
        let duplicates = increase(|info| info.dsack_dups);
        // The QUIC library does not count packets.
        let retransmitted = increase(|info| info.total_retrans);
        let packets = match increase(|info| info.data_segs_out) {
            0 => delivered.div_ceil(mss.max(1)),
            packets => packets.saturating_sub(retransmitted),
        };
        let peak_bps =
            self.peak_rates.get(&(key.2.ip(), key.3.ip())).map_or(0, |rates| rates.peak_bps);
        let activity = SenderActivity {
            limits_ns: limits_ns.into_iter().filter(|(_, span)| *span > 0).collect(),
            blocked_by_ns: Vec::new(),
            queued_ns: std::mem::take(&mut subflow.queued_ns),
            delivered_bytes: delivered,
            header_bytes: (packets + duplicates) * subflow.overhead_bytes,
            spurious_bytes: duplicates * mss,
            peak_bps,
            peer_window_max_bytes: subflow.max_peer_window_bytes,
            send_buffer_max_bytes: subflow.max_buffer_bytes,
        };
        Some((activity, std::mem::take(&mut subflow.blocked_by_ns)))
    }

    /// Starts the next period.
    pub(super) fn begin_period(&mut self) {
        for rates in self.peak_rates.values_mut() {
            rates.peak_bps = 0;
        }
    }
}

impl SenderSubflow {
    fn new(info: TcpInfo) -> Self {
        Self {
            info,
            overhead_bytes: 0,
            cwnd_reduced: false,
            period_start: info,
            limits_ns: BTreeMap::new(),
            queued_ns: 0,
            min_rtt_us: u32::MAX,
            blocked_by_ns: BTreeMap::new(),
            max_peer_window_bytes: 0,
            max_buffer_bytes: 0,
        }
    }
}

impl SenderSubflow {
    /// Returns true if the round-trip time shows queueing on the path.
    fn is_queueing(&mut self, now: &TcpInfo) -> bool {
        // The QUIC library does not report the minimum.
        let min_rtt_us = if now.min_rtt_us > 0 { now.min_rtt_us } else { now.srtt_us };
        if min_rtt_us > 0 {
            self.min_rtt_us = self.min_rtt_us.min(min_rtt_us);
        }
        let queue_delay_us = now.srtt_us.saturating_sub(self.min_rtt_us);
        now.unacked > 0 && queue_delay_us >= MIN_QUEUE_DELAY_US.max(self.min_rtt_us / 4)
    }
}

impl PeakRate {
    fn add_sample(&mut self, at: Instant, bytes: u64) {
        // Keeps the latest sample that is at least `RATE_WINDOW` old, and all later ones.
        while self.samples.get(1).is_some_and(|(time, _)| at.saturating_since(*time) >= RATE_WINDOW)
        {
            self.samples.pop_front();
        }
        if let Some((time, before)) = self.samples.front()
            && at.saturating_since(*time) >= RATE_WINDOW
        {
            let nanos = at.saturating_since(*time).as_nanos();
            let bits = u128::from(bytes.saturating_sub(*before)) * 8_000_000_000;
            let rate = u64::try_from(bits / nanos.max(1)).unwrap_or(u64::MAX);
            self.peak_bps = self.peak_bps.max(rate);
        }
        self.samples.push_back((at, bytes));
    }
}

/// Returns the payload bytes that the peer has acknowledged, in order or selectively.
fn delivered_bytes(info: &TcpInfo) -> u64 {
    info.bytes_acked.saturating_add(u64::from(info.sacked) * u64::from(info.mss_bytes))
}

/// Returns the source of a connection's limits, and the size of its send buffer.
fn info_source(stream: &DataStream, connection: &ConnectionSample) -> (InfoSource, u64) {
    let DataStream::Socket(socket_stream) = stream else { return (InfoSource::Library, 0) };
    let buffer = sample::send_buffer(socket_stream.socket()).unwrap_or_default();
    let source = match connection {
        ConnectionSample::Multipath(info, _) => {
            InfoSource::Multipath(ConnectionSendState::from_kernel(info, buffer))
        }
        ConnectionSample::Single(..) => InfoSource::Single(buffer),
    };
    (source, buffer.1)
}

/// Returns the header bytes of a packet: IP, TCP with its usual options and DSS, or IP and UDP.
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
    fn the_peak_rate_is_the_maximum_over_windows_and_not_the_mean() {
        let mut rates = PeakRate::default();
        let at = |ms: u64| Instant::ZERO + Duration::from_millis(ms);
        // 25 kB in each of three samples, then nothing for 70 ms.
        for (ms, bytes) in [(0, 0), (10, 25_000), (20, 50_000), (30, 75_000), (100, 75_000)] {
            rates.add_sample(at(ms), bytes);
        }
        assert_eq!(rates.peak_bps, 20_000_000);
        // A delayed sample spans a longer window.
        let mut late = PeakRate::default();
        late.add_sample(at(0), 0);
        late.add_sample(at(50), 50_000);
        assert_eq!(late.peak_bps, 8_000_000);
    }
}
