//! Random failure cases with a known ground truth.
//!
//! The name `random-SEED-NUMBER` determines the whole case, the same on every machine. The random
//! choices are address family, number of interfaces, server, NAT and quality of each path, and
//! unusual [`features`]. Two of three cases have one or two [`faults`]. Each choice uses its own random stream. [`GroundTruth`]
//! lists the acceptable first findings: the injected causes and, if the server's kind hides them
//! from the client, "undetermined".

mod draft;
mod faults;
mod features;

use towpath_net::stream_seed;

pub use self::draft::GroundTruth;
use self::draft::{CaseDraft, DrawnServer};
use super::case::FailureCase;

/// Prefix of the names of random cases.
const NAME_PREFIX: &str = "random-";

/// Random case and its ground truth.
#[derive(Debug, Clone)]
pub struct RandomCase {
    /// Network of the case, as data.
    pub case: &'static FailureCase,
    /// Injected faults and acceptable findings.
    pub truth: GroundTruth,
}

/// Random number source of one case; each choice has its own stream.
#[derive(Debug, Clone, Copy)]
struct CaseRng {
    seed: u64,
    case_number: u32,
}

impl CaseRng {
    /// Returns a uniform number from 0 to `count - 1`.
    fn below(self, choice: &str, count: usize) -> usize {
        let value = stream_seed(self.seed, &format!("situation/{}", self.case_number), choice);
        // The upper half of the product needs no division; its bias is negligible for such small
        // ranges.
        ((u128::from(value) * count as u128) >> 64) as usize
    }

    /// Returns a uniform number from `min` to `max`, both included.
    fn uniform(self, choice: &str, [min, max]: [u64; 2]) -> u64 {
        min + self.below(choice, (max - min + 1) as usize) as u64
    }

    /// Returns true with a probability of `percent`.
    fn chance(self, choice: &str, percent: usize) -> bool {
        self.below(choice, 100) < percent
    }

    /// Returns an entry with a probability in proportion to its weight.
    fn weighted<T: Copy>(self, choice: &str, entries: &[(usize, T)]) -> Option<T> {
        let mut remaining = self.below(choice, entries.iter().map(|(weight, _)| weight).sum());
        for (weight, value) in entries {
            match remaining.checked_sub(*weight) {
                Some(rest) => remaining = rest,
                None => return Some(*value),
            }
        }
        None
    }
}

/// Returns the random case of that name; `None` for other names.
///
/// Its memory is never freed.
pub fn random_case(name: &str) -> Option<RandomCase> {
    let (seed, number) = name.strip_prefix(NAME_PREFIX)?.split_once('-')?;
    let rng = CaseRng { seed: seed.parse().ok()?, case_number: number.parse().ok()? };
    let canonical_name = format!("{NAME_PREFIX}{}-{}", rng.seed, rng.case_number);
    (canonical_name == name).then(|| draw_case(rng, canonical_name))
}

fn draw_case(rng: CaseRng, name: String) -> RandomCase {
    let mut draft = CaseDraft::new(rng);
    let fault_count =
        rng.weighted("faults", &[(33, 0_usize), (47, 1), (20, 2)]).unwrap_or_default();
    let mut injected_count = 0;
    // Faults that need the same part of the network exclude each other; then another one is drawn.
    for attempt in 0..64 {
        if injected_count == fault_count {
            break;
        }
        if let Some(fault) = rng.weighted(&format!("fault {attempt}"), faults::FAULT_WEIGHTS)
            && faults::inject(fault, rng, &mut draft)
        {
            injected_count += 1;
        }
    }
    if fault_count == 0 {
        features::add_harmless_oddity(rng, &mut draft);
    }
    let truth = draft.truth();
    let first_cause = truth.causes.first().copied();
    let needs_server_report = draft.server == DrawnServer::Towpath;
    let case = FailureCase {
        name: name.leak(),
        title: truth.summary.clone().leak(),
        symptom: "This one was drawn at random.",
        explanation: "Its truth is known by how it was made.",
        cause: first_cause,
        needs_server_report,
        changes: draft.changes().leak(),
    };
    RandomCase { case: Box::leak(Box::new(case)), truth }
}

#[cfg(test)]
mod tests;
