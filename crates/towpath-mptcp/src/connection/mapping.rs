//! Mappings from subflow bytes to connection data, received in DSS options (RFC 8684 §3.3.1).

use std::collections::VecDeque;

use towpath_wire::Payload;
use towpath_wire::keys;

/// Maximum unmapped bytes kept until their mapping arrives. With more, the subflow is broken.
const MAX_UNMAPPED_BYTES: u64 = 256 * 1024;
/// Mappings that a peer may announce ahead of the data.
const MAX_PENDING_MAPPINGS: usize = 4_096;

/// Mapping whose bytes have not all arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PendingMapping {
    ssn: u64,
    len: u64,
    /// Data offset of the first byte.
    start: u64,
    checksum: Option<Box<PendingChecksum>>,
}

/// Mapping with a checksum to be verified: it is delivered as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PendingChecksum {
    /// Checksum as on the wire.
    sum: u16,
    /// Length in the option, which includes DATA_FIN.
    len: u16,
    dsn: u64,
    wire_ssn: u32,
    collected: Payload,
}

/// Mapping from the wire, with absolute numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AbsoluteMapping {
    /// Subflow offset of the first byte.
    pub(super) ssn: u64,
    /// Bytes of data, without DATA_FIN.
    pub(super) len: u64,
    /// Data offset of the first byte.
    pub(super) start: u64,
    /// Checksum, with the other fields that it covers: length and numbers of the option.
    pub(super) checksum: Option<(u16, u16, u64, u32)>,
}

/// Action for bytes that are in order in the subflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MappingOutcome {
    /// Data of the connection.
    Data(u64, Payload),
    /// The checksum of the mapping that begins at this data offset is wrong.
    BadChecksum(u64),
    /// Too many bytes have no mapping.
    Unmapped,
}

/// Mappings of one subflow's received data.
#[derive(Debug, Default)]
pub(super) struct ReceiveMappings {
    announced: VecDeque<PendingMapping>,
    /// Bytes in order in the subflow that have no mapping yet.
    unmapped: Vec<(u64, Payload)>,
    /// From this subflow offset on, the data offset is the subflow offset plus the second value
    /// (infinite mapping, plain TCP).
    infinite: Option<(u64, u64)>,
    /// Subflow offset after the last taken byte: a mapping that ends before it is too late.
    taken_until: u64,
}

impl ReceiveMappings {
    /// Maps everything one to one: data offset = subflow offset + `shift` (wrapping).
    pub(super) fn set_infinite(&mut self, from_ssn: u64, shift: u64) {
        match &mut self.infinite {
            None => self.infinite = Some((from_ssn, shift)),
            // The packet with the start of the infinite mapping was overtaken by the next.
            Some((infinite_from, current_shift)) if *current_shift == shift => {
                *infinite_from = from_ssn.min(*infinite_from);
            }
            Some(_) => {}
        }
    }

    /// Treats the subflow's stream as the connection's data from the first byte on, and ignores all
    /// mappings.
    pub(super) fn forget_all(&mut self) {
        self.infinite = Some((1, 0));
        // Bytes collected for a mapping with a checksum were not delivered yet.
        for mapping in self.announced.drain(..).rev() {
            if let Some(check) = mapping.checksum.filter(|check| !check.collected.is_empty()) {
                self.unmapped.insert(0, (mapping.ssn, check.collected));
            }
        }
    }

    /// Returns the bytes that wait until their mapping is complete for its checksum.
    pub(super) fn unchecked_bytes(&self) -> u64 {
        let check = self.announced.front().and_then(|mapping| mapping.checksum.as_ref());
        check.map_or(0, |check| check.collected.len() as u64)
    }

    /// Returns true if this subflow offset has a mapping.
    pub(super) fn covers(&self, ssn: u64) -> bool {
        self.infinite.is_some_and(|(infinite_from, _)| ssn >= infinite_from)
            || self
                .announced
                .iter()
                .any(|mapping| ssn >= mapping.ssn && ssn < mapping.ssn + mapping.len)
    }

    pub(super) fn unmapped_bytes(&self) -> u64 {
        self.unmapped.iter().map(|(_, payload)| payload.len() as u64).sum()
    }

    /// Records a mapping. A mapping is final: a second one for the same bytes is ignored, even if
    /// it is equal (RFC 8684 §3.3.1).
    ///
    /// TCP has already received the packet with the mapping, and may have the mapped bytes in
    /// order. Only bytes that were taken count as mapped.
    pub(super) fn record(&mut self, mapping: &AbsoluteMapping) {
        let end = mapping.ssn.saturating_add(mapping.len);
        let first_untaken = self.unmapped.first().map_or(self.taken_until, |(ssn, _)| *ssn);
        if end <= first_untaken || mapping.len == 0 {
            return;
        }
        let index =
            self.announced.partition_point(|pending| pending.ssn + pending.len <= mapping.ssn);
        if self.announced.get(index).is_some_and(|pending| pending.ssn < end) {
            return;
        }
        if self.announced.len() >= MAX_PENDING_MAPPINGS {
            return;
        }
        let checksum = mapping.checksum.map(|(sum, len, dsn, wire_ssn)| {
            Box::new(PendingChecksum { sum, len, dsn, wire_ssn, collected: Payload::EMPTY })
        });
        let pending =
            PendingMapping { ssn: mapping.ssn, len: mapping.len, start: mapping.start, checksum };
        self.announced.insert(index, pending);
    }

    /// Takes bytes that are in order in the subflow and returns those that are mapped. Call it with
    /// an empty payload after [`Self::record`] to get the bytes that waited for the mapping.
    pub(super) fn take(&mut self, ssn: u64, payload: Payload, out: &mut Vec<MappingOutcome>) {
        if !self.unmapped.is_empty() {
            let unmapped = std::mem::take(&mut self.unmapped);
            for (unmapped_ssn, payload) in unmapped {
                self.resolve(unmapped_ssn, payload, out);
            }
        }
        self.taken_until = self.taken_until.max(ssn.saturating_add(payload.len() as u64));
        self.resolve(ssn, payload, out);
        if self.unmapped_bytes() > MAX_UNMAPPED_BYTES {
            self.unmapped.clear();
            out.push(MappingOutcome::Unmapped);
        }
    }

    fn resolve(&mut self, mut ssn: u64, mut payload: Payload, out: &mut Vec<MappingOutcome>) {
        while !payload.is_empty() {
            if let Some((infinite_from, shift)) =
                self.infinite.filter(|(infinite_from, _)| ssn >= *infinite_from)
            {
                let _ = infinite_from;
                out.push(MappingOutcome::Data(ssn.wrapping_add(shift), payload));
                return;
            }
            // Mappings before these bytes are no longer needed.
            while self.announced.front().is_some_and(|mapping| mapping.ssn + mapping.len <= ssn) {
                self.announced.pop_front();
            }
            let gap_end = match self.announced.front() {
                Some(mapping) if mapping.ssn <= ssn => None,
                Some(mapping) => Some(mapping.ssn),
                None => Some(self.infinite.map_or(u64::MAX, |(infinite_from, _)| infinite_from)),
            };
            if let Some(end) = gap_end {
                let count = (end - ssn).min(payload.len() as u64);
                self.unmapped.push((ssn, payload.slice(0, count as usize)));
                payload.advance(count as usize);
                ssn += count;
                continue;
            }
            let Some(mapping) = self.announced.front_mut() else { return };
            let count = (mapping.ssn + mapping.len - ssn).min(payload.len() as u64);
            let rest = payload.split_off(count as usize);
            let start = mapping.start + (ssn - mapping.ssn);
            match &mut mapping.checksum {
                None => out.push(MappingOutcome::Data(start, payload)),
                Some(check) => check.collect(payload, mapping.start, mapping.len, out),
            }
            payload = rest;
            ssn += count;
        }
    }
}

impl PendingChecksum {
    fn collect(&mut self, piece: Payload, start: u64, len: u64, out: &mut Vec<MappingOutcome>) {
        for chunk in piece.into_chunks() {
            self.collected.push(chunk);
        }
        if (self.collected.len() as u64) < len {
            return;
        }
        let payload = std::mem::take(&mut self.collected);
        if keys::verify_dss_checksum(self.dsn, self.wire_ssn, self.len, &payload, self.sum) {
            out.push(MappingOutcome::Data(start, payload));
        } else {
            out.push(MappingOutcome::BadChecksum(start));
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn payload(len: usize) -> Payload {
        Bytes::from(vec![7; len]).into()
    }

    fn mapping(ssn: u64, len: u64, start: u64) -> AbsoluteMapping {
        AbsoluteMapping { ssn, len, start, checksum: None }
    }

    fn take_bytes(mappings: &mut ReceiveMappings, ssn: u64, len: usize) -> Vec<(u64, usize)> {
        let mut out = Vec::new();
        mappings.take(ssn, payload(len), &mut out);
        out.into_iter()
            .map(|mapped| match mapped {
                MappingOutcome::Data(start, payload) => (start, payload.len()),
                MappingOutcome::BadChecksum(start) => (start, usize::MAX),
                MappingOutcome::Unmapped => (0, usize::MAX),
            })
            .collect()
    }

    #[test]
    fn bytes_wait_for_a_mapping_that_comes_later() {
        let mut mappings = ReceiveMappings::default();
        assert_eq!(take_bytes(&mut mappings, 1, 100), []);
        mappings.record(&mapping(1, 60, 1_001));
        assert_eq!(take_bytes(&mut mappings, 101, 0), [(1_001, 60)]);
        mappings.record(&mapping(61, 90, 5_000));
        assert_eq!(take_bytes(&mut mappings, 101, 50), [(5_000, 40), (5_040, 50)]);
    }

    #[test]
    fn a_mapping_of_one_packet_already_in_order_is_used() {
        let mut mappings = ReceiveMappings::default();
        for (ssn, start) in [(1, 1), (101, 101)] {
            mappings.record(&mapping(ssn, 100, start));
            assert_eq!(take_bytes(&mut mappings, ssn, 100), [(start, 100)]);
        }
        mappings.record(&mapping(1, 100, 777));
        assert_eq!(take_bytes(&mut mappings, 201, 0), [], "too late");
    }

    #[test]
    fn a_mapping_of_bytes_that_have_passed_is_ignored() {
        let mut mappings = ReceiveMappings::default();
        mappings.record(&mapping(1, 60, 1));
        assert_eq!(take_bytes(&mut mappings, 1, 70), [(1, 60)]);
        mappings.record(&mapping(1, 60, 777));
        assert_eq!(mappings.announced, [], "it would never be removed");
    }

    #[test]
    fn a_second_mapping_for_the_same_bytes_is_ignored() {
        let mut mappings = ReceiveMappings::default();
        mappings.record(&mapping(1, 100, 1));
        mappings.record(&mapping(1, 100, 777));
        mappings.record(&mapping(50, 100, 777));
        assert_eq!(take_bytes(&mut mappings, 1, 100), [(1, 100)]);
    }

    #[test]
    fn too_many_bytes_without_a_mapping_break_the_subflow() {
        let mut mappings = ReceiveMappings::default();
        assert_eq!(take_bytes(&mut mappings, 1, 200_000), []);
        assert_eq!(take_bytes(&mut mappings, 200_001, 200_000), [(0, usize::MAX)]);
    }

    #[test]
    fn an_infinite_mapping_ends_all_others() {
        let mut mappings = ReceiveMappings::default();
        mappings.record(&mapping(1, 10, 1));
        mappings.set_infinite(11, 100_u64.wrapping_sub(11));
        assert_eq!(take_bytes(&mut mappings, 1, 30), [(1, 10), (100, 20)]);
    }

    #[test]
    fn checksummed_data_is_delivered_whole_or_not_at_all() {
        for (sum_error, expected) in [(0, (1, 40)), (1, (1, usize::MAX))] {
            let mut mappings = ReceiveMappings::default();
            let sum = keys::dss_checksum(9_000, 1, 40, &payload(40)) ^ sum_error;
            let with_checksum =
                AbsoluteMapping { checksum: Some((sum, 40, 9_000, 1)), ..mapping(1, 40, 1) };
            mappings.record(&with_checksum);
            assert_eq!(take_bytes(&mut mappings, 1, 15), []);
            assert_eq!(take_bytes(&mut mappings, 16, 25), [expected]);
        }
    }
}
