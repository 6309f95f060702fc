//! Parallel runs on several threads, with results in order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Runs `work(0)` to `work(count - 1)` on `threads` threads and passes the results to `done` in
/// order. Each is passed as soon as it and all before it are ready. `done` returns false to stop.
/// Work must not depend on its thread or on other work, so that the outcome is deterministic.
pub fn in_order<T: Send>(
    count: usize,
    threads: usize,
    work: impl Fn(usize) -> T + Sync,
    mut done: impl FnMut(usize, T) -> bool,
) {
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let (sender, results) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..threads.clamp(1, count.max(1)) {
            let (sender, next, stop, work) = (sender.clone(), &next, &stop, &work);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count || stop.load(Ordering::Relaxed) {
                        return;
                    }
                    // The receiver may have stopped early.
                    let _ = sender.send((index, work(index)));
                }
            });
        }
        drop(sender);
        let (mut waiting, mut expected) = (BTreeMap::new(), 0);
        for (index, result) in results {
            waiting.insert(index, result);
            while let Some(result) = waiting.remove(&expected) {
                if !done(expected, result) {
                    stop.store(true, Ordering::Relaxed);
                    return;
                }
                expected += 1;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_arrive_in_order_for_any_number_of_threads() {
        for threads in [0, 1, 2, 7, 100] {
            let mut seen = Vec::new();
            in_order(
                20,
                threads,
                |index| (0..(20 - index) * 10_000).fold(index, |sum, n| sum ^ n) ^ index,
                |index, _| {
                    seen.push(index);
                    true
                },
            );
            assert_eq!(seen, (0..20).collect::<Vec<_>>(), "{threads} threads");
        }
    }

    #[test]
    fn no_result_arrives_after_done_stops_the_batch() {
        let mut seen = Vec::new();
        in_order(
            20,
            3,
            |index| index,
            |index, _| {
                seen.push(index);
                index < 4
            },
        );
        assert_eq!(seen, [0, 1, 2, 3, 4]);
    }
}
