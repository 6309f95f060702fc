//! Execution order of repetitions.

use crate::rng::RngStream;
use crate::{OrderKind, RunOrder};

/// Returns the order of repetitions: each repetition runs all of `items` once. Drifts of
/// the machine then affect all items equally, and runs of one repetition are close in time. Each
/// repetition has a new random order, since a fixed predecessor may affect an item.
pub fn run_order<T: Copy>(
    items: &[T],
    repeat: u32,
    kind: OrderKind,
    seed: u64,
) -> Vec<(u32, T, RunOrder)> {
    let mut rng = RngStream::new(seed, "order");
    let mut entries = Vec::new();
    for repetition in 1..=repeat {
        let mut ordered = items.to_vec();
        if kind == OrderKind::Random {
            // Fisher–Yates shuffle.
            for last in (1..ordered.len()).rev() {
                ordered.swap(last, rng.below(last + 1));
            }
        }
        entries.extend(ordered.into_iter().map(|item| (repetition, item)));
    }
    let of = entries.len() as u32;
    let positioned = entries.into_iter().zip(1..);
    positioned
        .map(|((repetition, item), position)| {
            (repetition, item, RunOrder { kind, seed, position, of })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(kind: OrderKind, seed: u64) -> Vec<(u32, char)> {
        run_order(&['a', 'b', 'c'], 40, kind, seed)
            .into_iter()
            .map(|(repetition, name, _)| (repetition, name))
            .collect()
    }

    #[test]
    fn a_fixed_order_is_the_order_of_the_names() {
        let turns = run_order(&['a', 'b'], 2, OrderKind::Fixed, 7);
        let positions: Vec<_> = turns
            .iter()
            .map(|(repetition, name, order)| (*repetition, *name, order.position))
            .collect();
        assert_eq!(positions, [(1, 'a', 1), (1, 'b', 2), (2, 'a', 3), (2, 'b', 4)]);
        assert!(turns.iter().all(|(.., order)| order.of == 4));
    }

    #[test]
    fn a_random_order_permutes_each_repetition_by_seed() {
        let turns = names(OrderKind::Random, 1);
        assert_eq!(turns, names(OrderKind::Random, 1));
        assert_ne!(turns, names(OrderKind::Random, 2));
        for repetition in turns.chunks(3) {
            let mut names: Vec<_> = repetition.iter().map(|(_, name)| *name).collect();
            names.sort_unstable();
            assert_eq!(names, ['a', 'b', 'c']);
        }
        // Each name is first in about a third of 40 repetitions.
        for name in ['a', 'b', 'c'] {
            let first = turns.chunks(3).filter(|turn| turn[0].1 == name).count();
            assert!((5..=25).contains(&first), "{name} is first {first} times of 40");
        }
    }
}
