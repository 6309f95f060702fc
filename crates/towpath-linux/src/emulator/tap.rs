//! When a TUN device's packets were sent.
//!
//! A TUN device does not say how long a packet has waited in it. So a second socket notes every
//! packet of the interface as its host sends it ([`PacketRing`]), and whoever reads a packet from the
//! device looks it up here. Both see packets in the same order, but either may miss some: the device
//! when its queue is full, the ring when nobody reads. A packet that is not found counts from when it
//! is read.

use crate::sys::ring::{HEAD_BYTES, PacketRing, RING_SLOTS, TxStamp};

/// How many places are searched for a packet. More than that are missing only when the device has
/// lost packets, or the ring.
const MAX_SEARCH: usize = 64;
/// So many packets in a row that are not found: what is noted is too old.
const MAX_MISSES: usize = 2 * RING_SLOTS;

/// What was noted.
#[derive(Debug)]
pub(crate) struct TxTimestamps<N = PacketRing> {
    notes: N,
    /// The first place that was not given back.
    next: usize,
    not_found: usize,
}

/// Places in which packets are noted.
pub(crate) trait TimestampRing {
    fn get(&self, place: usize) -> Option<TxStamp>;
    fn release(&self, place: usize);
}

impl TimestampRing for PacketRing {
    fn get(&self, place: usize) -> Option<TxStamp> {
        Self::get(self, place)
    }

    fn release(&self, place: usize) {
        Self::release(self, place);
    }
}

impl<N: TimestampRing> TxTimestamps<N> {
    pub(crate) fn new(notes: N) -> Self {
        Self { notes, next: 0, not_found: 0 }
    }

    /// When the packet that was just read was sent, in nanoseconds since 1970.
    pub(crate) fn sent(&mut self, packet: &[u8]) -> Option<u64> {
        let head = packet.get(..packet.len().min(HEAD_BYTES))?;
        let is_it = |sent: &TxStamp| {
            sent.length == packet.len() && sent.head.get(..head.len()) == Some(head)
        };
        for place in self.next..self.next + MAX_SEARCH {
            let Some(sent) = self.notes.get(place) else { break };
            if is_it(&sent) {
                self.forget_until(place + 1);
                return Some(sent.unix_ns);
            }
        }
        self.not_found += 1;
        if self.not_found > MAX_MISSES {
            let noted =
                (self.next..self.next + RING_SLOTS).take_while(|p| self.notes.get(*p).is_some());
            self.forget_until(self.next + noted.count());
        }
        None
    }

    /// What was noted before has been read, or never will be.
    fn forget_until(&mut self, end: usize) {
        (self.next..end).for_each(|place| self.notes.release(place));
        self.next = end;
        self.not_found = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use super::*;

    /// Places without a limit, and what was written to how many of them.
    #[derive(Debug, Default)]
    struct Paper(RefCell<(BTreeMap<usize, TxStamp>, usize)>);

    impl Paper {
        /// Notes packet `number`, sent that many nanoseconds after 1970.
        fn note(&self, number: u64) {
            let (places, written) = &mut *self.0.borrow_mut();
            let packet = packet(number);
            let head = *packet.first_chunk().unwrap();
            let sent = TxStamp { unix_ns: number, length: packet.len(), head };
            assert_eq!(places.insert(*written, sent), None);
            *written += 1;
        }
    }

    impl TimestampRing for &Paper {
        fn get(&self, place: usize) -> Option<TxStamp> {
            self.0.borrow().0.get(&place).copied()
        }

        fn release(&self, place: usize) {
            assert!(self.0.borrow_mut().0.remove(&place).is_some(), "{place} was given back twice");
        }
    }

    fn packet(number: u64) -> Vec<u8> {
        let mut packet = vec![7; 100];
        packet[..8].copy_from_slice(&number.to_be_bytes());
        packet
    }

    #[test]
    fn every_packet_is_found_in_order() {
        let paper = Paper::default();
        let mut tap = TxTimestamps::new(&paper);
        assert_eq!(tap.sent(&packet(0)), None);
        (1..=300).for_each(|number| paper.note(number));
        for number in 1..=300 {
            assert_eq!(tap.sent(&packet(number)), Some(number));
        }
        assert!(paper.0.borrow().0.is_empty());
    }

    #[test]
    fn packets_lost_by_the_device_are_skipped() {
        let paper = Paper::default();
        let mut tap = TxTimestamps::new(&paper);
        (0..40).for_each(|number| paper.note(number));
        assert_eq!(tap.sent(&packet(30)), Some(30));
        assert_eq!(tap.sent(&packet(31)), Some(31));
    }

    #[test]
    fn packets_missed_by_the_ring_are_not_confused_with_others() {
        let paper = Paper::default();
        let mut tap = TxTimestamps::new(&paper);
        (10..20).for_each(|number| paper.note(number));
        assert_eq!(tap.sent(&packet(3)), None);
        assert_eq!(tap.sent(&packet(10)), Some(10));
    }

    #[test]
    fn too_many_losses_restart_the_search() {
        let paper = Paper::default();
        let mut tap = TxTimestamps::new(&paper);
        (0..1_000).for_each(|number| paper.note(number));
        for number in 5_000..=5_000 + MAX_MISSES as u64 {
            assert_eq!(tap.sent(&packet(number)), None);
        }
        assert!(paper.0.borrow().0.is_empty());
        paper.note(9_000);
        assert_eq!(tap.sent(&packet(9_000)), Some(9_000));
    }

    #[test]
    fn a_short_packet_is_compared_up_to_its_length() {
        let paper = Paper::default();
        let short = [9; 20];
        let mut head = [0; HEAD_BYTES];
        head[..20].copy_from_slice(&short);
        paper.0.borrow_mut().0.insert(0, TxStamp { unix_ns: 5, length: 20, head });
        let mut tap = TxTimestamps::new(&paper);
        assert_eq!(tap.sent(&[9; 21]), None);
        assert_eq!(tap.sent(&short), Some(5));
    }
}
