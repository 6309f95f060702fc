//! Situations drawn at random, whose truth is known by how they are made.
//!
//! `random-SEED-NUMBER` is one: family, number of interfaces, server, NAT and quality of each path,
//! and, in two of three, one or two [`faults`]. It depends on seed and number alone, on every
//! machine; each question is drawn from a stream of its own. What a diagnosis may name first is the
//! [`GroundTruth`]: the causes that were put in, and, where a server of that kind lets nobody at the client
//! decide, that it was not judged.

mod draft;
mod faults;

use towpath_net::stream_seed;

pub use self::draft::GroundTruth;
use self::draft::{CaseDraft, DrawnServer};
use super::situation::FailureCase;

/// How such a situation is called.
const NAME_PREFIX: &str = "random-";

/// A drawn situation and what is true of it.
#[derive(Debug, Clone)]
pub struct RandomCase {
    /// Its network.
    pub case: &'static FailureCase,
    /// What was put in.
    pub truth: GroundTruth,
}

/// One question about one situation.
#[derive(Debug, Clone, Copy)]
struct CaseRng {
    seed: u64,
    case_number: u32,
}

impl CaseRng {
    /// Evenly from 0 to `count - 1`.
    fn below(self, question: &str, count: usize) -> usize {
        let drawn = stream_seed(self.seed, &format!("situation/{}", self.case_number), question);
        // The high half of the product: no division, and no bias that matters for such small numbers.
        ((u128::from(drawn) * count as u128) >> 64) as usize
    }

    /// Evenly from `from` to `to`, both included.
    fn uniform(self, question: &str, [from, to]: [u64; 2]) -> u64 {
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
pub fn random_case(name: &str) -> Option<RandomCase> {
    let (seed, number) = name.strip_prefix(NAME_PREFIX)?.split_once('-')?;
    let draw = CaseRng { seed: seed.parse().ok()?, case_number: number.parse().ok()? };
    let exact = format!("{NAME_PREFIX}{}-{}", draw.seed, draw.case_number);
    (exact == name).then(|| draw_case(draw, exact))
}

fn draw_case(draw: CaseRng, name: String) -> RandomCase {
    let mut draft = CaseDraft::new(draw);
    let wanted = draw.weighted("faults", &[(33, 0_usize), (47, 1), (20, 2)]).unwrap_or_default();
    let mut put_in = 0;
    // Faults that need the same part of the network do not go together: another one is drawn.
    for attempt in 0..64 {
        if put_in == wanted {
            break;
        }
        if let Some(fault) = draw.weighted(&format!("fault {attempt}"), faults::FAULT_WEIGHTS)
            && faults::inject(fault, draw, &mut draft)
        {
            put_in += 1;
        }
    }
    if wanted == 0 {
        faults::add_harmless_oddity(draw, &mut draft);
    }
    let truth = draft.truth();
    let cause = truth.causes.first().copied();
    let two_ends = draft.server == DrawnServer::Towpath;
    let situation = FailureCase {
        name: name.leak(),
        title: truth.summary.clone().leak(),
        seen: "This one was drawn at random.",
        why: "Its truth is known by how it was made.",
        cause,
        two_ends,
        changes: draft.changes().leak(),
    };
    RandomCase { case: Box::leak(Box::new(situation)), truth }
}

#[cfg(test)]
mod tests;
