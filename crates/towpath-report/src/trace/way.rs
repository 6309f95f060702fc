//! One direction of a subflow: sequence numbers, what was sent again, what waits, round-trip times.

use super::data::DataWay;
use super::figures::{Flight, Progress, Series};
use super::interval::{Mappings, Pieces, Range};

/// Silence that separates two uses of a subflow.
const PAUSE_NS: u64 = 1_000_000_000;
const MAX_USES: usize = 256;

/// One direction of a subflow.
#[derive(Debug, Clone, Default)]
pub(super) struct Way {
    /// Sequence number of the first byte.
    base: Option<u32>,
    /// Whether `base` is the real beginning: the SYN was seen, or a mapping told it.
    pub(super) has_begun: bool,
    /// Below it the capture had not begun.
    floor: i64,
    /// Everything below was seen.
    next: i64,
    highest: i64,
    acked: i64,
    waiting: Pieces<u64>,
    pub(super) maps: Mappings,
    pub(super) flight: Flight,
    fin: Option<i64>,
    pub(super) packets: u64,
    pub(super) ip_bytes: u64,
    pub(super) data_packets: u64,
    pub(super) payload_bytes: u64,
    /// Seen before on this subflow.
    pub(super) again_bytes: u64,
    pub(super) again_packets: u64,
    /// Seen for the first time behind later data: sent again, or overtaken.
    pub(super) late_bytes: u64,
    pub(super) late_packets: u64,
    /// Carried by another subflow before.
    pub(super) reinjected_bytes: u64,
    /// Carried by itself before, under other numbers.
    pub(super) repeated_bytes: u64,
    /// Sent again although the receiver had said that it has it.
    pub(super) wasted_bytes: u64,
    /// Without a mapping, on a connection that has some.
    pub(super) unmapped_bytes: u64,
    /// Acknowledged, but not in the capture.
    pub(super) unseen_bytes: u64,
    pub(super) acked_bytes: u64,
    pub(super) largest_payload: u32,
    pub(super) progress: Progress,
    pub(super) last_ns: u64,
    pub(super) series: Series,
    /// When data flowed: from, until.
    pub(super) uses: Vec<(u64, u64)>,
    pub(super) mss_bytes: Option<u16>,
    pub(super) outbound: u64,
    pub(super) inbound: u64,
    scratch: Vec<Range>,
}

/// Who sends, when: what all that a packet does needs to know.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    /// Since the beginning of the capture.
    pub(super) now_ns: u64,
    /// Number of the subflow in its connection.
    pub(super) subflow: u16,
}

impl Way {
    /// A SYN: the byte behind it is the first.
    pub(super) fn begin(&mut self, seq: u32) {
        self.base = Some(seq.wrapping_add(1));
        self.has_begun = true;
        self.floor = i64::MIN;
    }

    /// Whether this is the SYN that was seen already, or none was.
    pub(super) fn is_syn(&self, seq: u32) -> bool {
        !self.has_begun || self.base == Some(seq.wrapping_add(1))
    }

    /// A sequence number as position; the first one seen is 0 where the SYN is missing.
    pub(super) fn place(&mut self, seq: u32) -> i64 {
        let base = *self.base.get_or_insert(seq);
        let near = self.highest.max(self.acked);
        let expected = base.wrapping_add(near as u32);
        near.saturating_add(i64::from(seq.wrapping_sub(expected).cast_signed()))
    }

    /// Position of the number behind the SYN + `ssn`, as mappings count; `None` before the first.
    pub(super) fn place_relative(&mut self, ssn: u32) -> Option<i64> {
        let base = self.base.filter(|_| self.has_begun)?;
        Some(self.place(base.wrapping_sub(1).wrapping_add(ssn)))
    }

    /// Learns where the SYN must have been from a packet that is one whole mapping.
    pub(super) fn learn_beginning(&mut self, seq: u32, ssn: u32) {
        if self.has_begun || ssn == 0 {
            return;
        }
        // Positions stay as they are: only the offset between them and `ssn` is new.
        let first = seq.wrapping_sub(ssn).wrapping_add(1);
        let at = self.place(first);
        self.base = Some(first);
        self.has_begun = true;
        for number in [&mut self.next, &mut self.highest, &mut self.acked, &mut self.floor] {
            *number = number.saturating_sub(at);
        }
        // What was before had no mapping, so nobody waits for it.
        self.waiting = Pieces::default();
        self.flight.forget();
        self.fin = None;
    }

    /// Takes a packet's payload.
    pub(super) fn payload(&mut self, data: &mut DataWay, range: Range, at: Moment) {
        let whole = range.len();
        self.data_packets += 1;
        self.payload_bytes += whole;
        self.largest_payload = self.largest_payload.max(whole as u32);
        self.note_use(at.now_ns);
        let mut new = std::mem::take(&mut self.scratch);
        new.clear();
        let mut again = 0;
        let in_order = range.start == self.next && self.waiting.bytes() == 0;
        if in_order {
            new.push(range);
        } else {
            again = self.split(data, range, &mut new);
        }
        let mut fresh = 0;
        let (mut late, mut copies, mut repeats) = (0, 0, 0);
        for part in &new {
            fresh += part.len();
            late += if part.start < self.highest { part.len() } else { 0 };
            let [elsewhere, here] = self.appears(data, *part, at);
            (copies, repeats) = (copies + elsewhere, repeats + here);
            self.flight.sent(part.end, at.now_ns);
        }
        self.late_bytes += late;
        self.reinjected_bytes += copies;
        self.repeated_bytes += repeats;
        self.again_bytes += again;
        self.late_packets += u64::from(late > 0);
        self.again_packets += u64::from(again > 0);
        self.highest = self.highest.max(range.end);
        if let Some(bin) = self.series.at(at.now_ns) {
            bin.sent_bytes += whole;
            bin.bytes += fresh;
            bin.again_packets += u32::from(again > 0 || late > 0);
        }
        self.progress.add(at.now_ns, fresh);
        self.take(data, &new, in_order, at);
        self.scratch = new;
    }

    /// Parts of `range` that are new go to `new`; the bytes that are not.
    fn split(&mut self, data: &DataWay, range: Range, new: &mut Vec<Range>) -> u64 {
        // What was before the capture's beginning is not known to have been sent before.
        let range = range.and(Range::new(self.floor, i64::MAX));
        let passed = range.and(Range::new(i64::MIN, self.next));
        let behind = range.and(Range::new(self.next, i64::MAX));
        let mut known: Vec<Range> = Vec::new();
        if !passed.is_empty() {
            known.push(passed);
        }
        if !behind.is_empty() {
            self.waiting.compare(behind, |part, _| known.push(part), |part| new.push(part));
        }
        let mut again = 0;
        for part in known {
            again += part.len();
            self.flight.again(part);
            let mut had = 0;
            self.maps.each(part, |_, numbers| had += data.had(numbers));
            self.wasted_bytes += had;
        }
        again
    }

    /// Tells the connection what is carried; bytes that another subflow had carried before, and that
    /// this one had.
    fn appears(&mut self, data: &mut DataWay, part: Range, at: Moment) -> [u64; 2] {
        let [mut copies, mut repeats] = [0, 0];
        self.unmapped_bytes += self.maps.each(part, |_, numbers| {
            let [elsewhere, here] = data.appears(numbers, at.subflow, at.now_ns);
            (copies, repeats) = (copies + elsewhere, repeats + here);
        });
        [copies, repeats]
    }

    /// Hands on what is in order now.
    fn take(&mut self, data: &mut DataWay, new: &[Range], in_order: bool, at: Moment) {
        let before = self.waiting.bytes();
        for part in new {
            if part.start == self.next {
                self.next = part.end;
                self.hand_on(data, *part, at.now_ns, at.now_ns);
            } else {
                self.waiting.insert(*part, at.now_ns);
            }
        }
        if !in_order {
            self.drain(data, at.now_ns);
            if self.waiting.is_full()
                && let Some(first) = self.waiting.first()
            {
                self.skip_to(data, first.start, at.now_ns);
            }
            data.below_bytes = (data.below_bytes + self.waiting.bytes()).saturating_sub(before);
        }
        data.note_waiting(at.now_ns);
    }

    fn hand_on(&self, data: &mut DataWay, part: Range, at_ns: u64, now_ns: u64) {
        self.maps.each(part, |_, numbers| data.arrives(numbers, at_ns, now_ns));
    }

    fn drain(&mut self, data: &mut DataWay, now_ns: u64) {
        while let Some(piece) = self.waiting.pop_reached(self.next) {
            let rest = piece.range.and(Range::new(self.next, i64::MAX));
            if !rest.is_empty() {
                self.next = rest.end;
                self.hand_on(data, rest, piece.about, now_ns);
            }
        }
    }

    /// Gives up gaps below `target`.
    fn skip_to(&mut self, data: &mut DataWay, target: i64, now_ns: u64) {
        while self.next < target {
            let gap_end = self.waiting.first().map_or(target, |first| first.start.min(target));
            self.unseen_bytes += Range::new(self.next, gap_end).len();
            self.next = self.next.max(gap_end);
            self.drain(data, now_ns);
        }
    }

    /// Takes an acknowledgement of this direction's data.
    pub(super) fn acknowledge(&mut self, data: &mut DataWay, ack: u32, now_ns: u64) {
        let first = self.base.is_none();
        let ack = self.place(ack);
        let ack = match self.fin {
            Some(fin) => ack.min(fin),
            None => ack,
        };
        if first || ack <= self.acked {
            return;
        }
        let new = Range::new(self.acked, ack);
        self.acked = ack;
        self.acked_bytes += new.len();
        self.flight.acked(ack, now_ns);
        let srtt_us = self.flight.srtt_us();
        if let Some(bin) = self.series.at(now_ns) {
            bin.acked_bytes += new.len();
            bin.srtt_us = srtt_us;
        }
        self.maps.each(new, |_, numbers| data.delivered(numbers));
        if ack > self.next {
            let before = self.waiting.bytes();
            self.skip_to(data, ack, now_ns);
            data.below_bytes = (data.below_bytes + self.waiting.bytes()).saturating_sub(before);
        }
    }

    /// The data that is acknowledged on this subflow ends with this number.
    pub(super) fn acked_data(&self) -> Option<i64> {
        let mut end = None;
        let last = Range::new(self.acked.saturating_sub(1), self.acked);
        self.maps.each(last, |_, numbers| end = Some(numbers.end));
        end
    }

    /// Whether it is a keep-alive: one byte again that was acknowledged (RFC 1122 §4.2.3.6).
    pub(super) fn is_keep_alive(&self, start: i64, end: i64) -> bool {
        end.saturating_sub(start) == 1 && end == self.next && end == self.acked
    }

    /// A FIN stands behind the byte before `at`.
    pub(super) fn finish(&mut self, at: i64) {
        self.fin = Some(at);
    }

    fn note_use(&mut self, now_ns: u64) {
        let room = self.uses.len() < MAX_USES;
        match self.uses.last_mut() {
            Some((_, until)) if !room || now_ns.saturating_sub(*until) < PAUSE_NS => {
                *until = now_ns.max(*until);
            }
            _ => self.uses.push((now_ns, now_ns)),
        }
    }
}
