//! Situations drawn at random, whose truth is known by how they are made.
//!
//! `random-SEED-NUMBER` is one: family, number of interfaces, server, NAT and quality of each path,
//! and, in two of three, one or two [`faults`]. It depends on seed and number alone, on every
//! machine; each question is drawn from a stream of its own. What a diagnosis may name first is the
//! [`Truth`]: the causes that were put in, and, where a server of that kind lets nobody at the client
//! decide, that it was not judged.

mod draft;
mod faults;

use towpath_net::stream_seed;

pub use self::draft::Truth;
use self::draft::{Draft, Server};
use super::situation::Situation;

/// How such a situation is called.
const PREFIX: &str = "random-";

/// A drawn situation and what is true of it.
#[derive(Debug, Clone)]
pub struct Drawn {
    /// Its network.
    pub situation: &'static Situation,
    /// What was put in.
    pub truth: Truth,
}

/// One question about one situation.
#[derive(Debug, Clone, Copy)]
struct Draw {
    seed: u64,
    number: u32,
}

impl Draw {
    /// Evenly from 0 to `count - 1`.
    fn below(self, question: &str, count: usize) -> usize {
        let drawn = stream_seed(self.seed, &format!("situation/{}", self.number), question);
        // The high half of the product: no division, and no bias that matters for such small numbers.
        ((u128::from(drawn) * count as u128) >> 64) as usize
    }

    /// Evenly from `from` to `to`, both included.
    fn even(self, question: &str, [from, to]: [u64; 2]) -> u64 {
        from + self.below(question, (to - from + 1) as usize) as u64
    }

    /// True in `percent` of all cases.
    fn chance(self, question: &str, percent: usize) -> bool {
        self.below(question, 100) < percent
    }

    /// One of the entries, by its weight.
    fn weighted<T: Copy>(self, question: &str, entries: &[(usize, T)]) -> Option<T> {
        let mut left = self.below(question, entries.iter().map(|(weight, _)| weight).sum());
        for (weight, value) in entries {
            match left.checked_sub(*weight) {
                Some(less) => left = less,
                None => return Some(*value),
            }
        }
        None
    }
}

/// The situation of that name; none if it is no drawn one. It stays for as long as the process does.
pub fn drawn(name: &str) -> Option<Drawn> {
    let (seed, number) = name.strip_prefix(PREFIX)?.split_once('-')?;
    let draw = Draw { seed: seed.parse().ok()?, number: number.parse().ok()? };
    let exact = format!("{PREFIX}{}-{}", draw.seed, draw.number);
    (exact == name).then(|| situation(draw, exact))
}

fn situation(draw: Draw, name: String) -> Drawn {
    let mut draft = Draft::new(draw);
    let wanted = draw.weighted("faults", &[(33, 0_usize), (47, 1), (20, 2)]).unwrap_or_default();
    let mut put_in = 0;
    // Faults that need the same part of the network do not go together: another one is drawn.
    for attempt in 0..64 {
        if put_in == wanted {
            break;
        }
        if let Some(fault) = draw.weighted(&format!("fault {attempt}"), faults::FAULTS)
            && faults::put_in(fault, draw, &mut draft)
        {
            put_in += 1;
        }
    }
    if wanted == 0 {
        faults::healthy(draw, &mut draft);
    }
    let truth = draft.truth();
    let cause = truth.causes.first().copied();
    let two_ends = draft.server == Server::Towpath;
    let situation = Situation {
        name: name.leak(),
        title: truth.drawn.clone().leak(),
        seen: "This one was drawn at random.",
        why: "Its truth is known by how it was made.",
        cause,
        two_ends,
        changes: draft.changes().leak(),
    };
    Drawn { situation: Box::leak(Box::new(situation)), truth }
}

#[cfg(test)]
mod tests;
