//! Claims: for each cause, if the observation shows it, contradicts it, or cannot judge it.
//!
//! A [`Fact`](fact::Fact) is a statement that a check confirms or refutes. A
//! [`Hypothesis`](hypotheses::Hypothesis) is a cause with the facts that it predicts and forbids.
//! The rules propose causes; a proposal that a fact contradicts becomes merely possible.

mod connection;
mod fact;
mod host;
mod hypotheses;
mod paths;
mod plain_tcp;
mod programs;
mod reading;

use std::fmt::Write;

use self::fact::{Fact, FactDescription};
use self::hypotheses::{HYPOTHESES, Hypothesis};
use self::reading::Reading;
use super::view::ObservationView;
use crate::finding::{Claim, ClaimState, Confidence, Finding};

/// Beginning of `docs/reference/causes.md`.
const INTRODUCTION: &str = "\
# Causes and their evidence

*For people who want to check how the doctor concludes. Assumes [Diagnose Multipath TCP](../guides/diagnose.md).*

`towpath doctor` treats every cause as a hypothesis. A hypothesis predicts some facts and forbids others. Each fact is established by
a check, and each check has situations that it cannot detect. `towpath doctor --causes` prints this page.

```sh
towpath doctor --causes
towpath doctor --claims
```

`--claims` lists every cause with one of three states:

| state | meaning |
|---|---|
| shown | a rule found the cause, and no fact contradicts it |
| contradicted | a fact that the cause predicts does not hold, or one that it forbids does |
| not judged | no fact contradicts the cause, and nothing shows it; the line names what would judge it |

Facts describe this host and its test connection. With several paths, a cause can affect only some of them. Therefore a fact about paths holds
only if it holds on every path. A finding that a fact contradicts is reported as \"perhaps\", after all others.
";

/// Returns the claim about every cause, in the order of [`Cause::ALL`].
pub(super) fn claims(view: &ObservationView<'_>, findings: &[Finding]) -> Vec<Claim> {
    HYPOTHESES.iter().map(|hypothesis| claim(view, findings, hypothesis)).collect()
}

fn claim(view: &ObservationView<'_>, findings: &[Finding], hypothesis: &Hypothesis) -> Claim {
    let cause = hypothesis.cause;
    let is_shown = |finding: &&Finding| finding.confidence > Confidence::Possible;
    let claim = |state, reason: String| Claim { cause, state, reason };
    let mut proposed = findings.iter().filter(|finding| finding.cause == cause);
    if let Some(finding) = proposed.clone().find(is_shown) {
        return claim(ClaimState::Shown, finding.sentence.clone());
    }
    if let Some(evidence) = contradiction(view, hypothesis) {
        return claim(ClaimState::Contradicted, evidence);
    }
    if let Some(finding) = proposed.next() {
        let reason = format!("other causes explain the same evidence: {}", finding.sentence);
        return claim(ClaimState::NotJudged, reason);
    }
    let facts = || hypothesis.predicts.iter().chain(hypothesis.forbids);
    let requirement = facts().find_map(|fact| match fact.read(view) {
        Reading::Unknown(requirement) => Some(format!("needs {requirement}")),
        Reading::Holds(_) | Reading::Fails(_) => None,
    });
    let reason = requirement.unwrap_or_else(|| match findings.iter().find(is_shown) {
        Some(finding) => {
            format!("consistent with the observations, which {} explains", finding.cause)
        }
        None => "consistent with the observations, but no rule found it".to_owned(),
    });
    claim(ClaimState::NotJudged, reason)
}

/// Returns the fact against a hypothesis and its evidence, if there is one.
fn contradiction(view: &ObservationView<'_>, hypothesis: &Hypothesis) -> Option<String> {
    let refuted = hypothesis.predicts.iter().find_map(|fact| match fact.read(view) {
        Reading::Fails(evidence) => Some(format!("not {}: {evidence}", fact.description().id)),
        Reading::Holds(_) | Reading::Unknown(_) => None,
    });
    let confirmed = || {
        hypothesis.forbids.iter().find_map(|fact| match fact.read(view) {
            Reading::Holds(evidence) => Some(format!("{}: {evidence}", fact.description().id)),
            Reading::Fails(_) | Reading::Unknown(_) => None,
        })
    };
    refuted.or_else(confirmed)
}

/// Lowers the confidence of findings about this host that a fact contradicts.
///
/// The facts describe this host and its connection. A finding about the other host is left alone.
pub(super) fn weigh(view: &ObservationView<'_>, findings: &mut [Finding]) {
    let is_here = |finding: &Finding| {
        !finding.location.as_deref().is_some_and(|location| location.starts_with("other host"))
    };
    for finding in findings.iter_mut().filter(|finding| is_here(finding)) {
        let hypothesis = hypotheses::hypothesis(finding.cause);
        if let Some(evidence) = hypothesis.and_then(|hypothesis| contradiction(view, hypothesis)) {
            finding.confidence = Confidence::Possible;
            finding.evidence.push(format!("against this: {evidence}"));
        }
    }
}

/// Returns the text of `docs/reference/causes.md`: the causes with their predictions, and the facts
/// with their methods.
pub fn causes_page() -> String {
    let mut page = INTRODUCTION.to_owned();
    let names = |facts: &[Fact]| {
        let names: Vec<_> =
            facts.iter().map(|fact| format!("`{}`", fact.description().id)).collect();
        names.join(", ")
    };
    page.push_str(
        "\n## Causes\n\n| cause | layer | meaning | predicts | forbids |\n|---|---|---|---|---|\n",
    );
    for Hypothesis { cause, meaning, predicts, forbids } in HYPOTHESES {
        let layer = format!("{:?}", cause.layer()).to_lowercase();
        let (predicts, forbids) = (names(predicts), names(forbids));
        // Writing to a string cannot fail.
        let _ = writeln!(page, "| `{cause}` | {layer} | {meaning} | {predicts} | {forbids} |");
    }
    page.push_str(
        "\n## Facts\n\n| fact | statement | method | not detected |\n|---|---|---|---|\n",
    );
    for fact in Fact::ALL {
        let FactDescription { id, statement, method, blind_spot } = fact.description();
        let statement = statement.trim_end_matches('.');
        // Writing to a string cannot fail.
        let _ = writeln!(page, "| `{id}` | {statement} | {method} | {blind_spot} |");
    }
    page
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::finding::Cause;

    #[test]
    fn every_cause_has_one_hypothesis_with_a_consequence() {
        let causes: Vec<_> = HYPOTHESES.iter().map(|hypothesis| hypothesis.cause).collect();
        assert_eq!(causes, Cause::ALL);
        for hypothesis in HYPOTHESES {
            let consequences = hypothesis.predicts.len() + hypothesis.forbids.len();
            assert!(consequences > 0, "{}", hypothesis.cause);
        }
    }

    #[test]
    fn every_fact_is_used_and_has_its_own_name() {
        let ids: BTreeSet<_> = Fact::ALL.iter().map(|fact| fact.description().id).collect();
        assert_eq!(ids.len(), Fact::ALL.len());
        for fact in Fact::ALL {
            let is_used = HYPOTHESES.iter().any(|hypothesis| {
                hypothesis.predicts.contains(fact) || hypothesis.forbids.contains(fact)
            });
            assert!(is_used, "{fact:?}");
        }
    }
}
