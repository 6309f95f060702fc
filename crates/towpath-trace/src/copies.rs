//! Second copies of packets: captures of both ends merged into one file, a router captured on all
//! its interfaces, or a network that duplicates packets.
//!
//! A copy has the header of an earlier packet, including its IPv4 identification and timestamps
//! (RFC 7323 §3), which a retransmission renews. The TTL is left out, because routers change it.
//! Recent packets are in a table of fixed size, so memory does not grow with the capture.
//!
//! Two ways lead to one view of each subflow. Where the file names the interfaces, only one of
//! them counts. Otherwise each packet counts where it was seen first.

use std::hash::{DefaultHasher, Hash, Hasher};

use towpath_wire::{Flags, Options};

use super::layers::CapturedSegment;

/// Number of sets, and of packets in each: one cache line. Packets of a full set leave in order.
const SETS: usize = 1 << 16;
const WAYS: usize = 4;
/// Maximum time between two copies: the longest delay of a path with its queue.
const MAX_COPY_DELAY_MS: u32 = 30_000;
/// The same for SYNs, below their first timeout (RFC 6298 §2.1).
const MAX_SYN_COPY_DELAY_MS: u32 = 900;
/// Delay of a copy above which two places saw the packet.
const MAX_LOCAL_DELAY_MS: u32 = 1;
/// Share of a subflow's packets, one in this number, above which the file has copies on purpose.
const MIN_MERGED_SHARE: u64 = 5;
/// Silence of the counted interface after which another one counts.
const MAX_SILENCE_NS: u64 = 1_000_000_000;

/// Packet in the table.
#[derive(Debug, Clone, Copy, Default)]
struct RecentPacket {
    tag: u64,
    at_ms: u32,
    interface: u16,
    hop_limit: u8,
}

/// Earlier packet with the same header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EarlierPacket {
    delay_ms: u32,
    /// True if a retransmission would differ, so the packet is a copy.
    is_certain: bool,
    /// True if another interface of the capture saw it.
    on_other_interface: bool,
}

/// Table of recent packets.
#[derive(Debug, Default)]
pub(super) struct RecentPackets {
    sets: Vec<[RecentPacket; WAYS]>,
}

impl RecentPackets {
    /// Returns the earlier packet of which this may be a copy, and the key for
    /// [`RecentPackets::add`].
    pub(super) fn find(
        &mut self,
        segment: &CapturedSegment<'_>,
        options: &Options,
        now_ns: u64,
    ) -> (Option<EarlierPacket>, PacketKey) {
        if self.sets.is_empty() {
            self.sets = vec![[RecentPacket::default(); WAYS]; SETS];
        }
        let at_ms = (now_ns / 1_000_000) as u32;
        let (interface, hop_limit) = (segment.interface as u16, segment.hop_limit);
        let tag = tag(segment, options).max(1);
        let key = PacketKey(RecentPacket { tag, at_ms, interface, hop_limit });
        let is_syn = segment.flags.contains(Flags::SYN);
        let limit_ms = if is_syn { MAX_SYN_COPY_DELAY_MS } else { MAX_COPY_DELAY_MS };
        let set = self.sets.get(tag as usize % SETS);
        // Clocks of two hosts differ, so a copy may be older than its original.
        let earlier = set
            .into_iter()
            .flatten()
            .find(|packet| packet.tag == tag && at_ms.abs_diff(packet.at_ms) <= limit_ms);
        let earlier = earlier.map(|earlier| {
            let on_other_interface = earlier.interface != interface;
            let is_certain = is_syn
                || on_other_interface
                || earlier.hop_limit != hop_limit
                || segment.identification.is_some()
                || options.timestamps.is_some();
            let delay_ms = at_ms.abs_diff(earlier.at_ms);
            EarlierPacket { delay_ms, is_certain, on_other_interface }
        });
        (earlier, key)
    }

    /// Remembers a packet that counts, before earlier ones of the same tag.
    pub(super) fn add(&mut self, PacketKey(packet): PacketKey) {
        if let Some(set) = self.sets.get_mut(packet.tag as usize % SETS) {
            let [first, second, third, _] = *set;
            *set = [packet, first, second, third];
        }
    }
}

/// Entry of a packet for the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct PacketKey(RecentPacket);

/// Returns a hash of everything that is equal in copies and differs between other packets.
fn tag(segment: &CapturedSegment<'_>, options: &Options) -> u64 {
    let CapturedSegment { source, destination, seq, ack, window, flags, .. } = *segment;
    let mix =
        |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let identification = segment.identification.map_or(0, u64::from);
    let timestamps = options.timestamps.map_or(0, |t| u64::from(t.value) << 32 | u64::from(t.echo));
    let mut hash = mix(source.hash_word(), destination.hash_word());
    hash = mix(hash, u64::from(seq) << 32 | u64::from(ack));
    let lengths = u64::from(segment.payload_bytes) << 24 | u64::from(flags.0);
    hash = mix(hash, lengths ^ u64::from(window) << 8);
    hash = mix(hash, timestamps);
    hash = mix(hash, identification);
    if segment.identification.is_none() && segment.payload_bytes == 0 {
        // Acknowledgements of one tick differ in their blocks and mappings only.
        let mut hasher = DefaultHasher::new();
        segment.options.hash(&mut hasher);
        hash = mix(hash, hasher.finish());
    }
    hash ^ hash >> 32
}

/// Identifications of the packets from one end.
#[derive(Debug, Clone, Copy, Default)]
struct IdentificationHistory {
    latest: Option<u16>,
    /// True if two packets had the same one, so it does not tell packets apart.
    is_constant: bool,
}

/// Copies among the packets of one subflow.
#[derive(Debug, Clone, Default)]
pub(super) struct SubflowCopies {
    /// Packets that are copies of earlier ones.
    pub(super) packets: u64,
    /// Packets that were counted.
    counted: u64,
    /// Packets with payload that are copies or retransmissions, which nothing tells apart.
    uncertain: u64,
    /// True if copies were seen on the same interface, and the longest delay of such a copy.
    on_same_interface: bool,
    max_delay_ms: u32,
    /// True once copies on other interfaces were seen, so that one interface counts.
    on_other_interface: bool,
    /// The interface that counts, at first the one that saw the subflow first, and the time of its
    /// last packet.
    counted_interface: Option<u32>,
    counted_interface_ns: u64,
    histories: [IdentificationHistory; 2],
}

impl SubflowCopies {
    /// Returns true if the packet counts, false for a copy. `earlier` counted.
    pub(super) fn is_counted(
        &mut self,
        segment: &CapturedSegment<'_>,
        earlier: Option<EarlierPacket>,
        (side, now_ns): (usize, u64),
    ) -> bool {
        let is_on_counted =
            segment.interface == *self.counted_interface.get_or_insert(segment.interface);
        if is_on_counted {
            self.counted_interface_ns = now_ns;
        }
        if let Some(earlier) = earlier {
            let tells_nothing = self.has_constant_identification(side)
                && !earlier.on_other_interface
                && !segment.has_timestamps();
            if !earlier.is_certain || tells_nothing {
                self.uncertain += u64::from(segment.payload_bytes > 0);
                self.counted += 1;
                return true;
            }
            if earlier.on_other_interface {
                self.on_other_interface = true;
            } else {
                self.on_same_interface = true;
                self.max_delay_ms = self.max_delay_ms.max(earlier.delay_ms);
            }
            self.packets += 1;
            return false;
        }
        if self.on_other_interface && !is_on_counted {
            if now_ns < self.counted_interface_ns.saturating_add(MAX_SILENCE_NS) {
                self.packets += 1;
                return false;
            }
            // One of two captures ended, or the route changed.
            (self.counted_interface, self.counted_interface_ns) = (Some(segment.interface), now_ns);
        }
        if let Some(history) = self.histories.get_mut(side)
            && segment.identification.is_some()
        {
            history.is_constant |= history.latest == segment.identification;
            history.latest = segment.identification;
        }
        self.counted += 1;
        true
    }

    /// Returns true if the sender gives several packets the same identification.
    fn has_constant_identification(&self, side: usize) -> bool {
        self.histories.get(side).is_some_and(|history| history.is_constant)
    }

    /// Returns true if the file holds the packets twice, false for a few duplicates.
    pub(super) fn is_merged(&self) -> bool {
        self.packets * MIN_MERGED_SHARE >= self.packets + self.counted && self.packets > 0
    }

    /// Returns true if each packet counts where it was seen first, not on one interface.
    pub(super) fn counts_first_sights(&self) -> bool {
        self.is_merged() && self.on_same_interface
    }

    /// Returns true if packets count where they were seen first, at two different places.
    pub(super) fn has_two_places(&self) -> bool {
        self.counts_first_sights() && self.max_delay_ms > MAX_LOCAL_DELAY_MS
    }

    /// Returns true if retransmissions may be copies, or copies retransmissions.
    pub(super) fn hides_retransmissions(&self) -> bool {
        self.uncertain > 0 && self.uncertain * MIN_MERGED_SHARE >= self.counted
    }
}
