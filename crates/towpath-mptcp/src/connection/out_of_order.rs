//! Queue of out-of-order data, by data offset.

use std::collections::VecDeque;

use towpath_wire::Payload;

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

    /// Inserts the new parts of `payload`, and returns their number of bytes.
    pub(super) fn insert_new(&mut self, start: u64, payload: Payload) -> u64 {
        let bytes_before = self.bytes;
        let end = start + payload.len() as u64;
        let mut index = self.runs.partition_point(|run| run.end <= start);
        if self.runs.get(index).is_none_or(|run| run.start >= end) {
            self.insert(index, start, payload);
            return self.bytes - bytes_before;
        }
        let mut uncovered_from = start;
        while let Some((run_start, run_end)) = self.runs.get(index).map(|run| (run.start, run.end))
            && run_start < end
        {
            if uncovered_from < run_start {
                let runs = self.runs.len();
                self.insert(
                    index,
                    uncovered_from,
                    payload.slice((uncovered_from - start) as usize, (run_start - start) as usize),
                );
                index += self.runs.len() - runs;
            }
            uncovered_from = run_end;
            index += 1;
        }
        if uncovered_from < end {
            self.insert(
                index,
                uncovered_from,
                payload.slice((uncovered_from - start) as usize, payload.len()),
            );
        }
        self.bytes - bytes_before
    }

    /// Inserts a piece before the run at `index`; none of it is present yet.
    fn insert(&mut self, index: usize, start: u64, piece: Payload) {
        let end = start + piece.len() as u64;
        self.bytes += end - start;
        let previous_run = index.checked_sub(1).and_then(|previous| self.runs.get_mut(previous));
        if let Some(run) = previous_run.filter(|run| run.end == start) {
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
        let bytes_before = self.bytes;
        while let Some(run) = self.runs.back_mut().filter(|run| run.end > offset) {
            let Some(mut last_piece) = run.pieces.pop_back() else { break };
            let (end, start) = (run.end, run.end - last_piece.len() as u64);
            let new_end = offset.max(start);
            last_piece.truncate((new_end - start) as usize);
            self.bytes -= end - new_end;
            run.end = new_end;
            if !last_piece.is_empty() {
                run.pieces.push_back(last_piece);
            }
            if run.pieces.is_empty() {
                self.runs.pop_back();
            }
        }
        bytes_before - self.bytes
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
            let (mut queue, mut model, mut next) = (OutOfOrderQueue::default(), BTreeMap::new(), 0);
            for (step, (operation, start, len)) in steps.into_iter().enumerate() {
                if operation == 0 {
                    let discarded = model.split_off(&start);
                    prop_assert_eq!(queue.discard_from(start), discarded.len() as u64);
                } else if operation == 1 {
                    next += len / 4;
                    while let Some((at, piece)) = queue.take_until(next) {
                        for (at, byte) in (at..).zip(piece.to_bytes()) {
                            prop_assert_eq!(model.remove(&at), Some(byte));
                        }
                    }
                    let first = model.first_key_value().map(|(at, _)| *at);
                    prop_assert!(first.is_none_or(|first| first > next));
                } else {
                    let data = vec![step as u8; len as usize];
                    let model_before = model.len();
                    for at in start..start + len {
                        model.entry(at).or_insert(step as u8);
                    }
                    let new_bytes = queue.insert_new(start, Bytes::from(data).into());
                    prop_assert_eq!(new_bytes, (model.len() - model_before) as u64);
                }
                prop_assert_eq!(queue.bytes(), model.len() as u64);
            }
        }
    }
}
