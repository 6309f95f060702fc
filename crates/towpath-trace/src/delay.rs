//! One-way delays from two captures of the same packets, taken at both hosts.
//!
//! The two clocks differ by an unknown offset. But no delay is negative: packets from the first
//! host bound the offset from above, those from the second from below. The middle is the estimate,
//! and half of the distance its largest error: half of the smallest round trip.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;

use towpath_wire::{Flags, Options};

use super::CaptureAnalysis;
use super::file::{CaptureError, CaptureReader};
use super::layers::{self, CapturedSegment, SocketKey};
use super::stats::DelayHistogram;
use super::summary::DIRECTIONS;

/// Maximum number of packets in memory. Beyond that, every second, fourth, … one is sampled:
/// chosen by content, so that both files yield the same sample.
const MAX_PACKETS: usize = 1 << 20;
/// Marks packets whose keys are equal.
const AMBIGUOUS: u64 = u64::MAX;

/// Offset between the clocks of two captures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CaptureClockOffset {
    /// Nanoseconds by which the second capture's clock is ahead of the first's.
    pub offset_ns: i64,
    /// Largest error of the offset in nanoseconds, if the clocks run equally fast.
    pub error_ns: u64,
    /// Number of packets found in both captures.
    pub packets: u64,
}

/// Packet found in both captures.
#[derive(Debug, Clone, Copy)]
struct MatchedPacket {
    ends: (SocketKey, SocketKey),
    /// Time in the second capture minus time in the first.
    delta_ns: i64,
}

impl CaptureAnalysis {
    /// Matches the packets of both captures and adds one-way delays. `first` is the file of this
    /// analysis, read again. `None` without packets of both directions in both.
    pub fn add_delays(
        &mut self,
        first: impl Read,
        second: impl Read,
    ) -> Result<Option<CaptureClockOffset>, CaptureError> {
        let matches = matches(first, second)?;
        let Some((bounds, packets)) = bounds(&matches) else { return Ok(None) };
        let (low, high) = bounds;
        let offset_ns = low.midpoint(high);
        let mut delays: HashMap<(SocketKey, SocketKey), DelayHistogram> = HashMap::new();
        for packet in &matches {
            let one_way_ns = packet.delta_ns.saturating_sub(offset_ns).unsigned_abs();
            delays.entry(packet.ends).or_default().record(one_way_ns);
        }
        for captured in &mut self.connections {
            let Some(connection) = self.tracker.connections.get(captured.flow as usize) else {
                continue;
            };
            for (subflow, captured_subflow) in
                self.tracker.subflows_of(connection).zip(&mut captured.subflows)
            {
                let [opener, other] = subflow.ends;
                let ends = [(opener, other), (other, opener)];
                for (captured_direction, (ends, direction)) in
                    captured_subflow.directions.iter_mut().zip(ends.iter().zip(DIRECTIONS))
                {
                    debug_assert_eq!(
                        captured_direction.direction, direction,
                        "both are in the same order"
                    );
                    captured_direction.one_way = delays.get(ends).and_then(DelayHistogram::delays);
                }
            }
        }
        let error_ns = (high.saturating_sub(low) / 2).unsigned_abs();
        Ok(Some(CaptureClockOffset { offset_ns, error_ns, packets }))
    }
}

/// Returns the bounds of the offset, and the number of matched packets; `None` if a bound is
/// missing.
fn bounds(matches: &[MatchedPacket]) -> Option<((i64, i64), u64)> {
    // Smallest and largest difference in each direction.
    let mut ranges: HashMap<(SocketKey, SocketKey), (i64, i64)> = HashMap::new();
    let mut order = Vec::new();
    for packet in matches {
        let range = ranges.entry(packet.ends).or_insert_with(|| {
            order.push(packet.ends);
            (i64::MAX, i64::MIN)
        });
        *range = (range.0.min(packet.delta_ns), range.1.max(packet.delta_ns));
    }
    let (mut low, mut high) = (None, None);
    for (from, to) in order {
        let (Some(&outward), Some(&backward)) = (ranges.get(&(from, to)), ranges.get(&(to, from)))
        else {
            continue;
        };
        // Differences towards the second host exceed those of the other direction by a round trip.
        if outward.0 > backward.1 || (outward.0 >= backward.0 && outward.1 > backward.1) {
            high = Some(high.map_or(outward.0, |bound: i64| bound.min(outward.0)));
            low = Some(low.map_or(backward.1, |bound: i64| bound.max(backward.1)));
        }
    }
    Some(((low?, high?), matches.len() as u64))
}

fn matches(first: impl Read, second: impl Read) -> Result<Vec<MatchedPacket>, CaptureError> {
    let mut at_ns_by_key: HashMap<u64, u64> = HashMap::new();
    let mut mask = 0;
    for_each_segment(first, |segment, at_ns| {
        let key = key(segment);
        if key & mask != 0 {
            return;
        }
        at_ns_by_key.entry(key).and_modify(|known_ns| *known_ns = AMBIGUOUS).or_insert(at_ns);
        if at_ns_by_key.len() > MAX_PACKETS {
            mask = (mask << 1) | 1;
            at_ns_by_key.retain(|key, _| key & mask == 0);
        }
    })?;
    let mut matched = Vec::new();
    for_each_segment(second, |segment, at_ns| {
        let key = key(segment);
        // Each packet matches once: a second one is a retransmission, or was segmented
        // differently.
        if let Some(known_ns) = at_ns_by_key.get_mut(&key)
            && *known_ns != AMBIGUOUS
        {
            let delta_ns = at_ns.cast_signed().saturating_sub(known_ns.cast_signed());
            *known_ns = AMBIGUOUS;
            matched.push(MatchedPacket { ends: (segment.source, segment.destination), delta_ns });
        }
    })?;
    Ok(matched)
}

fn for_each_segment(
    input: impl Read,
    mut on_segment: impl FnMut(&CapturedSegment<'_>, u64),
) -> Result<(), CaptureError> {
    let mut reader = CaptureReader::open(input)?;
    while let Some(frame) = reader.next_frame()? {
        if let (Some(at_ns), Ok(segment)) = (frame.at_ns, layers::segment(&frame)) {
            on_segment(&segment, at_ns);
        }
    }
    Ok(())
}

/// Returns a hash that is equal at both hosts. The length is left out, because offloading may
/// split or join packets.
fn key(segment: &CapturedSegment<'_>) -> u64 {
    let CapturedSegment { source, destination, seq, ack, flags, .. } = *segment;
    let timestamps = Options::parse(segment.options).timestamps.map(|t| (t.value, t.echo));
    let has_payload = segment.payload_bytes > 0;
    let control = flags.0 & (Flags::SYN.0 | Flags::FIN.0 | Flags::RST.0);
    // A fixed hasher, because the sample must be the same in both files.
    let mut hasher = DefaultHasher::new();
    (source, destination, seq, ack, control, has_payload, timestamps).hash(&mut hasher);
    hasher.finish()
}
