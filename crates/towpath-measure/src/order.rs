//! Execution order of repetitions.

use crate::result::{OrderKind, RunOrder};
use crate::rng::RngStream;

/// Returns the order of repetitions: each repetition runs all of `kinds` once. So drifts of the
/// machine affect all kinds alike, and runs of one repetition are close in time. A random order is
/// drawn anew for each repetition; a fixed one would give every kind the same predecessor, which
/// may affect it.
pub fn run_order<T: Copy>(
    kinds: &[T],
    repeat: u32,
    kind: OrderKind,
    seed: u64,
) -> Vec<(u32, T, RunOrder)> {
    let mut draw = RngStream::new(seed, "order");
    let mut turns = Vec::new();
    for number in 1..=repeat {
        let mut kinds = kinds.to_vec();
        if kind == OrderKind::Random {
            // Fisher–Yates shuffle.
            for last in (1..kinds.len()).rev() {
                kinds.swap(last, draw.below(last + 1));
            }
        }
        turns.extend(kinds.into_iter().map(|kind| (number, kind)));
    }
    let of = turns.len() as u32;
    let places = turns.into_iter().zip(1..);
    places
        .map(|((number, what), position)| (number, what, RunOrder { kind, seed, position, of }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(kind: OrderKind, seed: u64) -> Vec<(u32, char)> {
        run_order(&['a', 'b', 'c'], 40, kind, seed)
            .into_iter()
            .map(|(n, what, _)| (n, what))
            .collect()
    }

    #[test]
    fn a_fixed_order_is_the_order_of_the_names() {
        let turns = run_order(&['a', 'b'], 2, OrderKind::Fixed, 7);
        let seen: Vec<_> =
            turns.iter().map(|(n, what, place)| (*n, *what, place.position)).collect();
        assert_eq!(seen, [(1, 'a', 1), (1, 'b', 2), (2, 'a', 3), (2, 'b', 4)]);
        assert!(turns.iter().all(|(.., place)| place.of == 4));
    }

    #[test]
    fn a_random_order_permutes_each_repetition_by_seed() {
        let one = names(OrderKind::Random, 1);
        assert_eq!(one, names(OrderKind::Random, 1));
        assert_ne!(one, names(OrderKind::Random, 2));
        for repetition in one.chunks(3) {
            let mut names: Vec<_> = repetition.iter().map(|(_, name)| *name).collect();
            names.sort_unstable();
            assert_eq!(names, ['a', 'b', 'c']);
        }
        // Each kind is first in about a third of 40 repetitions.
        for name in ['a', 'b', 'c'] {
            let first = one.chunks(3).filter(|turn| turn[0].1 == name).count();
            assert!((5..=25).contains(&first), "{name} is first {first} times of 40");
        }
    }
}
