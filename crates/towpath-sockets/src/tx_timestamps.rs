//! Transmit times of a TUN device's packets.
//!
//! A TUN device does not report how long a packet has waited in it. A second socket therefore
//! records every packet as the host sends it ([`TimestampRing`]), and the reader of the device
//! looks the packet up here. Both see packets in the same order, but each may miss some: the device
//! if its queue is full, the ring if it is not read. A packet that is not found counts from the
//! time of its read.

use towpath_os::sys::ring::{HEAD_BYTES, PacketRing, RING_SLOTS, TxStamp};

/// Maximum number of entries searched for a packet. Larger gaps occur only if the device or the
/// ring has lost packets.
const MAX_SEARCH: usize = 64;
/// Maximum consecutive misses, after which the recorded entries are considered stale.
const MAX_MISSES: usize = 2 * RING_SLOTS;

/// Lookup of transmit times in recorded packets.
#[derive(Debug)]
pub struct TxTimestamps<R = PacketRing> {
    ring: R,
    /// First entry that was not released.
    next: usize,
    not_found: usize,
}

/// Ring of recorded packets.
pub trait TimestampRing {
    /// Returns the packet in a slot; `None` if the slot is empty.
    fn get(&self, index: usize) -> Option<TxStamp>;
    /// Returns a slot to the kernel.
    fn release(&self, index: usize);
}

impl TimestampRing for PacketRing {
    fn get(&self, index: usize) -> Option<TxStamp> {
        Self::get(self, index)
    }

    fn release(&self, index: usize) {
        Self::release(self, index);
    }
}

impl<R: TimestampRing> TxTimestamps<R> {
    /// Creates an empty table of the timestamps in `ring`.
    pub fn new(ring: R) -> Self {
        Self { ring, next: 0, not_found: 0 }
    }

    /// Returns the transmit time of the packet just read, in nanoseconds since 1970.
    pub(crate) fn find(&mut self, packet: &[u8]) -> Option<u64> {
        let head = packet.get(..packet.len().min(HEAD_BYTES))?;
        let matches = |stamp: &TxStamp| {
            stamp.length == packet.len() && stamp.head.get(..head.len()) == Some(head)
        };
        for index in self.next..self.next + MAX_SEARCH {
            let Some(stamp) = self.ring.get(index) else { break };
            if matches(&stamp) {
                self.release_until(index + 1);
                return Some(stamp.unix_ns);
            }
        }
        self.not_found += 1;
        if self.not_found > MAX_MISSES {
            let recorded =
                (self.next..self.next + RING_SLOTS).take_while(|p| self.ring.get(*p).is_some());
            self.release_until(self.next + recorded.count());
        }
        None
    }

    /// Releases the entries before `end`: their packets were read or are lost.
    fn release_until(&mut self, end: usize) {
        (self.next..end).for_each(|index| self.ring.release(index));
        self.next = end;
        self.not_found = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use super::*;

    /// Unbounded ring: its entries, and the number of entries written.
    #[derive(Debug, Default)]
    struct FakeRing(RefCell<(BTreeMap<usize, TxStamp>, usize)>);

    impl FakeRing {
        /// Records packet `number`, sent that many nanoseconds after 1970.
        fn record(&self, number: u64) {
            let (entries, written) = &mut *self.0.borrow_mut();
            let packet = packet(number);
            let head = *packet.first_chunk().unwrap();
            let stamp = TxStamp { unix_ns: number, length: packet.len(), head };
            assert_eq!(entries.insert(*written, stamp), None);
            *written += 1;
        }
    }

    impl TimestampRing for &FakeRing {
        fn get(&self, index: usize) -> Option<TxStamp> {
            self.0.borrow().0.get(&index).copied()
        }

        fn release(&self, index: usize) {
            assert!(self.0.borrow_mut().0.remove(&index).is_some(), "{index} was given back twice");
        }
    }

    fn packet(number: u64) -> Vec<u8> {
        let mut packet = vec![7; 100];
        packet[..8].copy_from_slice(&number.to_be_bytes());
        packet
    }

    #[test]
    fn every_packet_is_found_in_order() {
        let ring = FakeRing::default();
        let mut timestamps = TxTimestamps::new(&ring);
        assert_eq!(timestamps.find(&packet(0)), None);
        (1..=300).for_each(|number| ring.record(number));
        for number in 1..=300 {
            assert_eq!(timestamps.find(&packet(number)), Some(number));
        }
        assert!(ring.0.borrow().0.is_empty());
    }

    #[test]
    fn packets_lost_by_the_device_are_skipped() {
        let ring = FakeRing::default();
        let mut timestamps = TxTimestamps::new(&ring);
        (0..40).for_each(|number| ring.record(number));
        assert_eq!(timestamps.find(&packet(30)), Some(30));
        assert_eq!(timestamps.find(&packet(31)), Some(31));
    }

    #[test]
    fn packets_missed_by_the_ring_are_not_confused_with_others() {
        let ring = FakeRing::default();
        let mut timestamps = TxTimestamps::new(&ring);
        (10..20).for_each(|number| ring.record(number));
        assert_eq!(timestamps.find(&packet(3)), None);
        assert_eq!(timestamps.find(&packet(10)), Some(10));
    }

    #[test]
    fn too_many_losses_restart_the_search() {
        let ring = FakeRing::default();
        let mut timestamps = TxTimestamps::new(&ring);
        (0..1_000).for_each(|number| ring.record(number));
        for number in 5_000..=5_000 + MAX_MISSES as u64 {
            assert_eq!(timestamps.find(&packet(number)), None);
        }
        assert!(ring.0.borrow().0.is_empty());
        ring.record(9_000);
        assert_eq!(timestamps.find(&packet(9_000)), Some(9_000));
    }

    #[test]
    fn a_short_packet_is_compared_up_to_its_length() {
        let ring = FakeRing::default();
        let short = [9; 20];
        let mut head = [0; HEAD_BYTES];
        head[..20].copy_from_slice(&short);
        ring.0.borrow_mut().0.insert(0, TxStamp { unix_ns: 5, length: 20, head });
        let mut timestamps = TxTimestamps::new(&ring);
        assert_eq!(timestamps.find(&[9; 21]), None);
        assert_eq!(timestamps.find(&short), Some(5));
    }
}
