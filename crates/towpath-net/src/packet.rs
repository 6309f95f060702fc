//! Packets on a link, their outcomes, and traffic counters.

use crate::Instant;

/// A packet that a link carries.
pub trait Packet: Clone {
    /// Returns the length of the IP packet in bytes, without any link header; must not change in
    /// transit.
    fn len_bytes(&self) -> u32;

    /// Returns the number of packets on the wire, more than 1 for a super-segment. Each of them
    /// pays the link's header.
    fn packets(&self) -> u32 {
        1
    }

    /// Records that the packet has passed the server of hop number `hop` of its route, at its
    /// logical time `at`.
    fn on_served(&mut self, hop: usize, at: Instant) {
        let _ = (hop, at);
    }

    /// Flips one bit, chosen by `random`.
    fn corrupt(&mut self, random: u32);
}

/// Result of offering a packet to a link.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnqueueOutcome {
    /// Accepted; may still be dropped later, by a queue further on or when the link goes down.
    Queued,
    /// Dropped on entry, for this reason.
    Dropped(DropReason),
}

/// Reason for a packet drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DropReason {
    /// Random loss of the configured loss model.
    Loss,
    /// The queue was full.
    QueueFull,
    /// Active queue management (`CoDel` or PIE).
    Aqm,
    /// The link was down.
    Down,
    /// Larger than the MTU, or than the bucket of a token bucket, which it could never leave.
    Mtu,
}

/// Packets and their bytes (IP length, without link headers).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrafficCount {
    /// Number of IP packets.
    pub packets: u64,
    /// IP bytes, without link headers.
    pub bytes: u64,
}

impl TrafficCount {
    pub(crate) fn add(&mut self, bytes: u32) {
        self.packets = self.packets.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(u64::from(bytes));
    }
}

/// Counters of all packets of one direction. Always: offered + duplicated = delivered + dropped +
/// backlog.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DirectionCounters {
    /// Offered by the caller.
    pub offered: TrafficCount,
    /// Copies made by duplication.
    pub duplicated: TrafficCount,
    /// Packets with a flipped bit, which are still delivered.
    pub corrupted: TrafficCount,
    /// Delivered to the caller.
    pub delivered: TrafficCount,
    /// Dropped by random loss.
    pub loss: TrafficCount,
    /// Dropped by a full queue.
    pub queue_full: TrafficCount,
    /// Dropped by active queue management.
    pub aqm: TrafficCount,
    /// Dropped because the link was down.
    pub down: TrafficCount,
    /// Dropped because they were too large.
    pub mtu: TrafficCount,
}

impl DirectionCounters {
    /// Returns the sum of all drops, for any reason.
    pub fn dropped(&self) -> TrafficCount {
        let drops = [self.loss, self.queue_full, self.aqm, self.down, self.mtu];
        TrafficCount {
            packets: drops.iter().fold(0, |sum, count| sum + count.packets),
            bytes: drops.iter().fold(0, |sum, count| sum + count.bytes),
        }
    }

    /// Returns the packets inside: waiting, being sent, on the wire, or arrived and not yet
    /// fetched.
    pub fn backlog_packets(&self) -> u64 {
        let entered = self.offered.packets + self.duplicated.packets;
        entered.saturating_sub(self.delivered.packets + self.dropped().packets)
    }

    /// Returns the IP bytes of [`Self::backlog_packets`].
    pub fn backlog_bytes(&self) -> u64 {
        let entered = self.offered.bytes + self.duplicated.bytes;
        entered.saturating_sub(self.delivered.bytes + self.dropped().bytes)
    }

    pub(crate) fn count_drop(&mut self, reason: DropReason, bytes: u32) {
        match reason {
            DropReason::Loss => self.loss.add(bytes),
            DropReason::QueueFull => self.queue_full.add(bytes),
            DropReason::Aqm => self.aqm.add(bytes),
            DropReason::Down => self.down.add(bytes),
            DropReason::Mtu => self.mtu.add(bytes),
        }
    }
}
