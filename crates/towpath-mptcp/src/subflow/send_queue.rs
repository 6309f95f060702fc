//! Pushed data that is not acknowledged, as records, with the scoreboard of RFC 2018.
//!
//! A record is one push or, once a part of it was acknowledged, lost or sent alone, a piece of it.
//! A piece never crosses the boundary of its mapping. Records are in order of their offsets. Sent
//! and unsent records are kept apart, so that cutting the front of the unsent ones is cheap. The
//! byte counters always match the records.

use std::collections::{BTreeSet, VecDeque};

use towpath_net::Instant;

use super::delivery::Delivery;
use super::ranges::Ranges;

/// Mapping of a subflow's bytes to connection data: the unit of retransmission. At most 65535 bytes
/// long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataMapping {
    /// First data sequence number.
    pub dsn: u64,
    /// Length in bytes, at most 65535.
    pub len: u32,
    /// DSS checksum of the whole mapping, if checksums are in use.
    pub checksum: Option<u16>,
}

/// Part of the sent data, with its subflow offset and its mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentData {
    /// Subflow offset of the first byte.
    pub ssn: u64,
    /// Length in bytes of this part.
    pub len: u32,
    /// Mapping as it was first sent; RFC 8684 §3.3.1 forbids another one for the same bytes.
    pub mapping: DataMapping,
    /// Subflow offset of the mapping's first byte.
    pub mapping_ssn: u64,
}

/// Part of a push, or the FIN.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not a state")]
pub(super) struct SendRecord {
    pub(super) ssn: u64,
    pub(super) len: u32,
    mapping_ssn: u64,
    mapping: DataMapping,
    /// Payload bytes per packet in the last transmission; the record may be split there.
    packet_bytes: u32,
    pub(super) sent_at: Instant,
    pub(super) first_sent_at: Instant,
    pub(super) transmissions: u8,
    pub(super) psh: bool,
    pub(super) fin: bool,
    sacked: bool,
    lost: bool,
    /// Set when the latest transmission is a retransmission that is not known to be lost.
    retransmitted: bool,
}

impl SendRecord {
    pub(super) fn end(&self) -> u64 {
        self.ssn + u64::from(self.len)
    }

    /// Returns the remainder after the first `len` bytes, which must not be the whole record.
    fn remainder_after(&self, len: u32) -> Self {
        Self { ssn: self.ssn + u64::from(len), len: self.len - len, ..*self }
    }

    pub(super) fn is_sacked(&self) -> bool {
        self.sacked
    }

    /// Returns the part of a mapping, or `None` for the FIN.
    pub(super) fn data(&self) -> Option<SentData> {
        let Self { ssn, len, mapping, mapping_ssn, .. } = *self;
        (!self.fin).then_some(SentData { ssn, len, mapping, mapping_ssn })
    }

    fn bytes(&self) -> u64 {
        u64::from(self.len)
    }
}

/// RACK's limit for losses by time: the newest delivered transmission, and the tolerance for later
/// ones.
#[derive(Debug, Clone, Copy)]
pub(super) struct RackWindow {
    pub(super) newest: (Instant, u64),
    pub(super) wait: std::time::Duration,
}

/// Queue of everything pushed and not acknowledged.
#[derive(Debug, Clone)]
pub(super) struct SendQueue {
    /// Records that have been sent.
    records: VecDeque<SendRecord>,
    /// Records not sent yet, which follow the sent ones.
    unsent: VecDeque<SendRecord>,
    /// Offset after the last byte that was cumulatively acknowledged, sent or pushed.
    acked_until: u64,
    sent_until: u64,
    pushed_until: u64,
    fin_ssn: Option<u64>,
    sacked_bytes: u64,
    lost_bytes: u64,
    retransmitted_bytes: u64,
    sacked: Ranges,
    /// First offsets of records that are lost and not retransmitted.
    lost: BTreeSet<u64>,
    /// Retransmissions in the order of their times: time and range of offsets.
    retransmissions: VecDeque<(Instant, u64, u64)>,
    /// Offset below which loss detection has checked all originals.
    checked_until: u64,
}

impl SendQueue {
    /// Creates an empty queue; offset 0 belongs to the SYN.
    pub(super) fn new() -> Self {
        Self {
            records: VecDeque::new(),
            unsent: VecDeque::new(),
            acked_until: 1,
            sent_until: 1,
            pushed_until: 1,
            fin_ssn: None,
            sacked_bytes: 0,
            lost_bytes: 0,
            retransmitted_bytes: 0,
            sacked: Ranges::default(),
            lost: BTreeSet::new(),
            retransmissions: VecDeque::new(),
            checked_until: 1,
        }
    }

    pub(super) fn acked_until(&self) -> u64 {
        self.acked_until
    }

    /// Returns the offset after the last byte (or FIN) sent.
    pub(super) fn sent_until(&self) -> u64 {
        self.sent_until
    }

    /// Returns the offset after the last data byte pushed.
    pub(super) fn pushed_until(&self) -> u64 {
        self.pushed_until
    }

    pub(super) fn fin_ssn(&self) -> Option<u64> {
        self.fin_ssn
    }

    /// Returns true if the FIN is acknowledged.
    pub(super) fn fin_acked(&self) -> bool {
        self.fin_ssn.is_some_and(|ssn| self.acked_until > ssn)
    }

    /// Returns the bytes sent and not cumulatively acknowledged.
    pub(super) fn outstanding(&self) -> u64 {
        self.sent_until - self.acked_until
    }

    /// Returns the bytes sent that are neither acknowledged nor lost (RFC 6675 "pipe");
    /// retransmissions count again.
    pub(super) fn in_flight(&self) -> u64 {
        (self.outstanding() + self.retransmitted_bytes)
            .saturating_sub(self.sacked_bytes + self.lost_bytes)
    }

    pub(super) fn sacked_bytes(&self) -> u64 {
        self.sacked_bytes
    }

    /// Returns the retransmitted bytes that are neither acknowledged nor lost again.
    pub(super) fn retransmitted_bytes(&self) -> u64 {
        self.retransmitted_bytes
    }

    pub(super) fn lost_bytes(&self) -> u64 {
        self.lost_bytes
    }

    /// Returns the data bytes never sent.
    pub(super) fn queued(&self) -> u64 {
        self.pushed_until.saturating_sub(self.sent_until)
    }

    pub(super) fn oldest(&self) -> Option<&SendRecord> {
        self.records.front()
    }

    pub(super) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    pub(super) fn next_unsent(&self) -> Option<&SendRecord> {
        self.unsent.front()
    }

    pub(super) fn next_lost(&self) -> Option<&SendRecord> {
        self.lost.first().and_then(|ssn| self.records.get(self.index(*ssn)))
    }

    /// Returns whole mappings that are not fully acknowledged.
    pub(super) fn unacked(&self) -> impl Iterator<Item = SentData> + '_ {
        let mut last_mapping_ssn = None;
        let records = self.records.iter().chain(&self.unsent);
        records.filter(|record| !record.fin).filter_map(move |record| {
            let (mapping, mapping_ssn) = (record.mapping, record.mapping_ssn);
            let is_new_mapping = last_mapping_ssn.replace(mapping_ssn) != Some(mapping_ssn);
            is_new_mapping.then_some(SentData {
                ssn: mapping_ssn,
                len: mapping.len,
                mapping,
                mapping_ssn,
            })
        })
    }

    pub(super) fn push(&mut self, mapping: DataMapping, psh: bool) -> u64 {
        let ssn = self.pushed_until;
        if mapping.len > 0 && self.fin_ssn.is_none() {
            self.append(mapping, psh, false);
            self.pushed_until += u64::from(mapping.len);
        }
        ssn
    }

    pub(super) fn push_fin(&mut self) {
        if self.fin_ssn.is_none() {
            self.fin_ssn = Some(self.pushed_until);
            self.append(DataMapping { dsn: 0, len: 1, checksum: None }, false, true);
        }
    }

    /// Returns the last push, if none of its bytes was sent: its mapping may still grow.
    pub(super) fn unsent_tail(&self) -> Option<DataMapping> {
        let record = self.unsent.back()?;
        (!record.fin && record.ssn == record.mapping_ssn).then_some(record.mapping)
    }

    /// Lengthens the last unsent record by `bytes`.
    pub(super) fn lengthen_tail(&mut self, bytes: u32, psh: bool) {
        if self.unsent_tail().is_none() {
            return;
        }
        let Some(record) = self.unsent.back_mut() else { return };
        record.len += bytes;
        record.mapping.len += bytes;
        record.packet_bytes = record.len;
        record.psh |= psh;
        self.pushed_until += u64::from(bytes);
    }

    fn append(&mut self, mapping: DataMapping, psh: bool, fin: bool) {
        self.unsent.push_back(SendRecord {
            ssn: self.pushed_until,
            len: mapping.len,
            mapping_ssn: self.pushed_until,
            mapping,
            packet_bytes: mapping.len,
            sent_at: Instant::ZERO,
            first_sent_at: Instant::ZERO,
            transmissions: 0,
            psh,
            fin,
            sacked: false,
            lost: false,
            retransmitted: false,
        });
    }

    /// Marks the first `len` bytes of the first unsent record as sent.
    pub(super) fn send(&mut self, now: Instant, len: u32, packet_bytes: u32) -> Option<SendRecord> {
        let next = self.unsent.front_mut()?;
        let mut record = *next;
        if len > 0 && len < next.len {
            (*next, record.len, record.psh) = (next.remainder_after(len), len, false);
        } else {
            self.unsent.pop_front();
        }
        (record.sent_at, record.first_sent_at) = (now, now);
        (record.transmissions, record.packet_bytes) = (1, packet_bytes.max(1));
        self.sent_until = record.end();
        self.records.push_back(record);
        Some(record)
    }

    /// Marks the first `len` bytes of the first lost record as retransmitted.
    pub(super) fn retransmit_lost(
        &mut self,
        now: Instant,
        len: u32,
        packet_bytes: u32,
    ) -> Option<SendRecord> {
        let index = self.index(*self.lost.first()?);
        self.retransmit(now, index, len, packet_bytes)
    }

    /// Marks the last packet sent as retransmitted (RFC 8985 §7.3), unless it arrived.
    pub(super) fn retransmit_last(
        &mut self,
        now: Instant,
        packet_bytes: u32,
    ) -> Option<SendRecord> {
        let mut index = self.records.len().checked_sub(1)?;
        let record = self.records.get(index)?;
        let preceding_bytes = record.len.saturating_sub(1) / packet_bytes.max(1) * packet_bytes;
        if record.sacked || record.retransmitted {
            return None;
        }
        if preceding_bytes > 0 {
            self.split(index, preceding_bytes);
            index += 1;
        }
        self.retransmit(now, index, u32::MAX, packet_bytes)
    }

    fn retransmit(
        &mut self,
        now: Instant,
        index: usize,
        len: u32,
        packet_bytes: u32,
    ) -> Option<SendRecord> {
        self.split(index, len);
        let record = self.records.get_mut(index)?;
        if !record.retransmitted {
            record.retransmitted = true;
            self.retransmitted_bytes += record.bytes();
        }
        self.lost.remove(&record.ssn);
        (record.sent_at, record.packet_bytes) = (now, packet_bytes.max(1));
        record.transmissions = record.transmissions.saturating_add(1);
        self.retransmissions.push_back((now, record.ssn, record.end()));
        Some(*record)
    }

    /// Acknowledges everything below `ack`, which is not beyond the sent data.
    pub(super) fn acknowledge(&mut self, ack: u64, delivery: &mut Delivery) {
        while let Some(record) = self.records.front_mut()
            && record.ssn < ack
        {
            let awaits_retransmission = record.lost && !record.retransmitted;
            if awaits_retransmission {
                self.lost.remove(&record.ssn);
            }
            let bytes = ack.min(record.end()) - record.ssn;
            delivery.on_acked(record, bytes);
            if record.sacked {
                self.sacked_bytes -= bytes;
            }
            if record.lost {
                self.lost_bytes -= bytes;
            }
            if record.retransmitted {
                self.retransmitted_bytes -= bytes;
            }
            record.ssn += bytes;
            record.len -= u32::try_from(bytes).unwrap_or(record.len);
            if record.len > 0 {
                if awaits_retransmission {
                    self.lost.insert(record.ssn);
                }
                break;
            }
            self.records.pop_front();
        }
        if self.records.is_empty() && self.unsent.is_empty() {
            self.records.shrink_to_fit();
            self.unsent.shrink_to_fit();
        }
        self.acked_until = self.acked_until.max(ack);
        self.checked_until = self.checked_until.max(ack);
        if !self.sacked.is_empty() {
            self.sacked.remove_below(ack);
        }
        while self.retransmissions.front().is_some_and(|(_, _, end)| *end <= ack) {
            self.retransmissions.pop_front();
        }
    }

    /// Records that the peer has `start..end` (RFC 2018), which was sent and is not cumulatively
    /// acknowledged.
    pub(super) fn acknowledge_selectively(
        &mut self,
        start: u64,
        end: u64,
        delivery: &mut Delivery,
    ) {
        let new_parts = self.sacked.insert(start, end);
        let Some(merged) = self.sacked.containing(start).filter(|_| !new_parts.is_empty()) else {
            return;
        };
        for (from, to) in new_parts {
            self.mark_sacked(from, to, merged, delivery);
        }
    }

    /// Marks the records in `from..to` as selectively acknowledged. Records are split only at
    /// packet boundaries, so that a peer acknowledging single bytes cannot create many small
    /// records. `merged` is the merged range, so that a packet reported in pieces also counts.
    fn mark_sacked(&mut self, from: u64, to: u64, merged: (u64, u64), delivery: &mut Delivery) {
        let mut index = self.index(from);
        while let Some(record) = self.records.get(index)
            && record.ssn < to
        {
            let packet_bytes = u64::from(record.packet_bytes);
            let (start, end) = (record.ssn, record.end());
            let skipped = merged.0.saturating_sub(start).next_multiple_of(packet_bytes);
            let covered =
                if merged.1 >= end { end } else { merged.1 - (merged.1 - start) % packet_bytes };
            if !record.sacked && start + skipped < covered {
                if skipped > 0 {
                    self.split(index, u32::try_from(skipped).unwrap_or(u32::MAX));
                    index += 1;
                }
                let len = covered - start - skipped;
                self.split(index, u32::try_from(len).unwrap_or(u32::MAX));
                self.set_sacked(index, delivery);
            }
            index += 1;
        }
    }

    fn set_sacked(&mut self, index: usize, delivery: &mut Delivery) {
        let Some(record) = self.records.get_mut(index) else { return };
        let bytes = record.bytes();
        delivery.on_sacked(record);
        if record.lost {
            self.lost_bytes -= bytes;
            if !record.retransmitted {
                self.lost.remove(&record.ssn);
            }
        }
        if record.retransmitted {
            self.retransmitted_bytes -= bytes;
        }
        (record.lost, record.retransmitted, record.sacked) = (false, false, true);
        self.sacked_bytes += bytes;
    }

    /// Marks originals as lost by their send time relative to the newest delivered one (RFC 8985
    /// §6.2 step 5). Retransmissions whose loss was undone are also checked here. Returns the time
    /// of the next check.
    pub(super) fn detect_rack_losses(
        &mut self,
        now: Instant,
        loss_window: &RackWindow,
    ) -> Option<Instant> {
        let RackWindow { newest, wait } = *loss_window;
        let mut next_check: Option<Instant> = None;
        let mut first_undecided = None;
        let mut index = self.index(self.checked_until);
        while let Some(record) = self.records.get(index) {
            if !record.sacked && !record.lost && !record.retransmitted {
                let is_original = record.transmissions == 1;
                let is_newer = (record.sent_at, record.end()) >= newest;
                let lost_at = record.sent_at + wait;
                if is_newer || lost_at > now {
                    next_check = next_check.into_iter().chain((!is_newer).then_some(lost_at)).min();
                    first_undecided = first_undecided.or(Some(record.ssn));
                    // Originals were sent in the order of their offsets.
                    if is_original {
                        break;
                    }
                } else {
                    self.mark_lost(index);
                }
            }
            index += 1;
        }
        let checked_until = self.records.get(index).map_or(self.sent_until, |record| record.ssn);
        self.checked_until = first_undecided.unwrap_or(checked_until);
        let next_retransmission_check = self.detect_lost_retransmissions(now, loss_window);
        next_check.into_iter().chain(next_retransmission_check).min()
    }

    /// Marks lost retransmissions, which have a list of their own in order of time.
    fn detect_lost_retransmissions(
        &mut self,
        now: Instant,
        loss_window: &RackWindow,
    ) -> Option<Instant> {
        let RackWindow { newest, wait } = *loss_window;
        while let Some((sent_at, start, end)) = self.retransmissions.front().copied() {
            if sent_at > newest.0 {
                return None;
            }
            let (is_overdue, mut undecided) = (sent_at + wait <= now, false);
            let mut index = self.index(start.max(self.acked_until));
            while let Some(record) = self.records.get(index)
                && record.ssn < end
            {
                if record.retransmitted && record.sent_at == sent_at {
                    if (sent_at, record.end()) >= newest {
                        return None;
                    }
                    undecided = true;
                    if is_overdue {
                        self.mark_lost(index);
                    }
                }
                index += 1;
            }
            if undecided && !is_overdue {
                return Some(sent_at + wait);
            }
            self.retransmissions.pop_front();
        }
        None
    }

    /// Marks originals that more than `bytes` of selectively acknowledged data follow (RFC 6675
    /// §4 `IsLost`).
    pub(super) fn detect_sack_losses(&mut self, bytes: u64) {
        let mut sacked_above = 0;
        let boundary = self.sacked.descending().find_map(|(start, end)| {
            sacked_above += end - start;
            (sacked_above > bytes).then(|| start + (sacked_above - bytes))
        });
        let Some(boundary) = boundary else { return };
        let mut index = self.index(self.checked_until);
        while let Some(record) = self.records.get(index)
            && record.ssn < boundary
        {
            if !record.sacked && !record.lost && record.transmissions == 1 {
                if record.end() > boundary {
                    break;
                }
                self.mark_lost(index);
            }
            index += 1;
        }
        self.checked_until = self.records.get(index).map_or(self.sent_until, |record| record.ssn);
    }

    /// Marks the oldest packet as lost (RFC 6582).
    pub(super) fn mark_oldest_lost(&mut self) {
        if let Some(packet) = self.records.front().map(|record| record.packet_bytes) {
            self.split(0, packet);
            self.mark_lost(0);
        }
    }

    /// Marks the oldest packet, and all sent until `until`, as lost (RFC 6298 §5.4, RFC 8985 §6.3).
    pub(super) fn mark_lost_sent_until(&mut self, until: Instant) {
        for index in 0..self.records.len() {
            let counts_as_lost =
                |record: &SendRecord| !record.sacked && (index == 0 || record.sent_at <= until);
            if self.records.get(index).is_some_and(counts_as_lost) {
                self.mark_lost(index);
            }
        }
    }

    fn mark_lost(&mut self, index: usize) {
        let Some(record) = self.records.get_mut(index) else { return };
        if !record.lost {
            record.lost = true;
            self.lost_bytes += record.bytes();
        }
        if record.retransmitted {
            record.retransmitted = false;
            self.retransmitted_bytes -= record.bytes();
        }
        self.lost.insert(record.ssn);
    }

    /// Clears all loss marks, because the losses were spurious (undo).
    pub(super) fn unmark_lost(&mut self) {
        for record in &mut self.records {
            record.lost = false;
        }
        self.lost.clear();
        self.lost_bytes = 0;
        self.checked_until = self.acked_until;
    }

    /// Returns true if the peer has reneged on a selective acknowledgement: the oldest byte is
    /// still missing.
    pub(super) fn reneged(&self) -> bool {
        self.oldest().is_some_and(|record| record.sacked)
    }

    /// Forgets all selective acknowledgements (RFC 2018 §8).
    pub(super) fn forget_sacks(&mut self) {
        for record in &mut self.records {
            record.sacked = false;
        }
        self.sacked.clear();
        self.sacked_bytes = 0;
        self.checked_until = self.acked_until;
    }

    /// Returns the index of the record with `offset`, or of the first after it.
    fn index(&self, offset: u64) -> usize {
        // The first record is nearly always the result, so it is tried first.
        if self.records.front().is_none_or(|record| record.end() > offset) {
            return 0;
        }
        self.records.partition_point(|record| record.end() <= offset)
    }

    /// Cuts a record after `len` bytes; the remainder becomes the next record.
    fn split(&mut self, index: usize, len: u32) {
        let Some(record) = self.records.get_mut(index) else { return };
        if len == 0 || len >= record.len {
            return;
        }
        let rest = record.remainder_after(len);
        (record.len, record.psh) = (len, false);
        if rest.lost && !rest.retransmitted {
            self.lost.insert(rest.ssn);
        }
        self.records.insert(index + 1, rest);
    }

    /// Verifies all counters, for tests.
    #[cfg(test)]
    pub(super) fn verify_counters(&self) {
        let records = || self.records.iter();
        let sum_bytes = |predicate: fn(&SendRecord) -> bool| {
            records().filter(|r| predicate(r)).map(SendRecord::bytes).sum::<u64>()
        };
        assert_eq!(sum_bytes(|_| true), self.outstanding());
        assert_eq!(sum_bytes(|r| r.sacked), self.sacked_bytes);
        assert_eq!(sum_bytes(|r| r.lost), self.lost_bytes);
        assert_eq!(sum_bytes(|r| r.retransmitted), self.retransmitted_bytes);
        let lost_ssns = records().filter(|r| r.lost && !r.retransmitted).map(|r| r.ssn);
        assert!(lost_ssns.eq(self.lost.iter().copied()), "the set of lost records is wrong");
        assert!(records().all(|r| !(r.sacked && (r.lost || r.retransmitted))));
        let mut expected_ssn = self.acked_until;
        for record in self.records.iter().chain(&self.unsent) {
            assert_eq!(record.ssn, expected_ssn);
            expected_ssn = record.end();
        }
    }
}
