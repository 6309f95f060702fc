//! Output of the claims: one line for each cause, or one line for all.

use std::io::Write;

use towpath_doctor::{Claim, ClaimState, Diagnosis};

use crate::error::CliError;
use crate::ui::write_wrapped;

/// Prints the number of causes in each state.
pub(super) fn print_summary(report: &Diagnosis, out: &mut impl Write) -> Result<(), CliError> {
    let count = |state| report.claims.iter().filter(|claim| claim.state == state).count();
    let text = format!(
        "{} shown, {} contradicted, {} not judged (--claims lists them)",
        count(ClaimState::Shown),
        count(ClaimState::Contradicted),
        count(ClaimState::NotJudged)
    );
    Ok(write_wrapped(out, "causes: ", &text)?)
}

/// Prints every claim, those of one state after the other.
pub(super) fn print_all(report: &Diagnosis, out: &mut impl Write) -> Result<(), CliError> {
    let states = [
        (ClaimState::Shown, "shown: "),
        (ClaimState::NotJudged, "not judged: "),
        (ClaimState::Contradicted, "contradicted: "),
    ];
    for (state, label) in states {
        for claim in report.claims.iter().filter(|claim| claim.state == state) {
            let Claim { cause, state: _, reason } = claim;
            write_wrapped(out, label, &format!("{cause}: {reason}"))?;
        }
    }
    Ok(())
}
