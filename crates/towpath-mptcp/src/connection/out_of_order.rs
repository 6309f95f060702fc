//! Queue of out-of-order data, by data offset.

use std::collections::VecDeque;

use crate::wire::Payload;

/// Pieces of data that do not overlap, as runs without gaps.
///
/// Each subflow delivers its data in order, so nearly every piece extends a run. There is about one
/// run for each time the scheduler switched paths.
#[derive(Debug, Default)]
pub(super) struct OutOfOrderQueue {
    /// Runs in order; two may touch.
    runs: VecDeque<ContiguousRun>,
    bytes: u64,
}

#[derive(Debug)]
struct ContiguousRun {
    start: u64,
    end: u64,
    /// Pieces in order and without gaps; never empty.
    pieces: VecDeque<Payload>,
}

impl OutOfOrderQueue {
    /// Returns the bytes that wait out of order.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Keeps the new parts of `payload`, and returns their number of bytes.
    pub(super) fn hold(&mut self, start: u64, payload: Payload) -> u64 {
        let before = self.bytes;
        let end = start + payload.len() as u64;
        let mut index = self.runs.partition_point(|run| run.end <= start);
        if self.runs.get(index).is_none_or(|run| run.start >= end) {
            self.insert(index, start, payload);
            return self.bytes - before;
        }
        let mut at = start;
        while let Some((from, to)) = self.runs.get(index).map(|run| (run.start, run.end))
            && from < end
        {
            if at < from {
                let runs = self.runs.len();
                self.insert(
                    index,
                    at,
                    payload.slice((at - start) as usize, (from - start) as usize),
                );
                index += self.runs.len() - runs;
            }
            at = to;
            index += 1;
        }
        if at < end {
            self.insert(index, at, payload.slice((at - start) as usize, payload.len()));
        }
        self.bytes - before
    }

    /// Inserts a piece before the run at `index`; none of it is present yet.
    fn insert(&mut self, index: usize, start: u64, piece: Payload) {
        let end = start + piece.len() as u64;
        self.bytes += end - start;
        let before = index.checked_sub(1).and_then(|before| self.runs.get_mut(before));
        if let Some(run) = before.filter(|run| run.end == start) {
            run.pieces.push_back(piece);
            run.end = end;
            return;
        }
        self.runs.insert(index, ContiguousRun { start, end, pieces: VecDeque::from([piece]) });
    }

    /// Returns the first piece, if it begins at `next` or before.
    pub(super) fn take_until(&mut self, next: u64) -> Option<(u64, Payload)> {
        let run = self.runs.front_mut().filter(|run| run.start <= next)?;
        let (start, piece) = (run.start, run.pieces.pop_front()?);
        run.start += piece.len() as u64;
        self.bytes -= piece.len() as u64;
        if run.pieces.is_empty() {
            self.runs.pop_front();
        }
        Some((start, piece))
    }

    /// Drops everything from `offset` on, and returns the number of bytes.
    pub(super) fn discard_from(&mut self, offset: u64) -> u64 {
        let before = self.bytes;
        while let Some(run) = self.runs.back_mut().filter(|run| run.end > offset) {
            let Some(mut last) = run.pieces.pop_back() else { break };
            let (end, start) = (run.end, run.end - last.len() as u64);
            let keep = offset.max(start);
            last.truncate((keep - start) as usize);
            self.bytes -= end - keep;
            run.end = keep;
            if !last.is_empty() {
                run.pieces.push_back(last);
            }
            if run.pieces.is_empty() {
                self.runs.pop_back();
            }
        }
        before - self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_queue_agrees_with_a_map_of_bytes(
            steps in prop::collection::vec((0_u8..8, 0_u64..300, 1_u64..60), 1..80),
        ) {
            let (mut waiting, mut model, mut next) = (OutOfOrderQueue::default(), BTreeMap::new(), 0);
            for (number, (what, start, len)) in steps.into_iter().enumerate() {
                if what == 0 {
                    let gone = model.split_off(&start);
                    prop_assert_eq!(waiting.discard_from(start), gone.len() as u64);
                } else if what == 1 {
                    next += len / 4;
                    while let Some((at, piece)) = waiting.take_until(next) {
                        for (at, byte) in (at..).zip(piece.to_bytes()) {
                            prop_assert_eq!(model.remove(&at), Some(byte));
                        }
                    }
                    let first = model.first_key_value().map(|(at, _)| *at);
                    prop_assert!(first.is_none_or(|first| first > next));
                } else {
                    let data = vec![number as u8; len as usize];
                    let before = model.len();
                    for at in start..start + len {
                        model.entry(at).or_insert(number as u8);
                    }
                    let kept = waiting.hold(start, Bytes::from(data).into());
                    prop_assert_eq!(kept, (model.len() - before) as u64);
                }
                prop_assert_eq!(waiting.bytes(), model.len() as u64);
            }
        }
    }
}
