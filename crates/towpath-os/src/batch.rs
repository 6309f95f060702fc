//! Parallel runs on several threads, with results in order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Runs `work(0)` to `work(count - 1)` on `threads` threads and passes the results in order to
/// `on_result`, which returns false to stop. Each is passed when it and all before it are ready.
/// Work must not depend on its thread or on other work, so that the outcome is deterministic.
pub fn in_order<T: Send>(
    count: usize,
    threads: usize,
    work: impl Fn(usize) -> T + Sync,
    mut on_result: impl FnMut(usize, T) -> bool,
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
        let (mut pending, mut expected) = (BTreeMap::new(), 0);
        for (index, result) in results {
            pending.insert(index, result);
            while let Some(result) = pending.remove(&expected) {
                if !on_result(expected, result) {
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
            let mut indices = Vec::new();
            in_order(
                20,
                threads,
                |index| (0..(20 - index) * 10_000).fold(index, |sum, n| sum ^ n) ^ index,
                |index, _| {
                    indices.push(index);
                    true
                },
            );
            assert_eq!(indices, (0..20).collect::<Vec<_>>(), "{threads} threads");
        }
    }

    #[test]
    fn no_result_arrives_after_the_callback_stops_the_batch() {
        let mut indices = Vec::new();
        in_order(
            20,
            3,
            |index| index,
            |index, _| {
                indices.push(index);
                index < 4
            },
        );
        assert_eq!(indices, [0, 1, 2, 3, 4]);
    }
}
