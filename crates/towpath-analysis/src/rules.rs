//! Document of the rules for handovers and delays, made from the rules themselves.

use std::fmt::Write as _;

use towpath_result::metrics::handover::SwitchReason;

use crate::cause::DelayCause;
use crate::facts::NETWORK_LOST;

/// Returns the rules as Markdown.
pub fn rules_markdown() -> String {
    let mut out = "# Rules for handovers and delays\n\n\
        *Made from the code by `towpath collect analyse --rules`.*\n\n\
        `towpath collect analyse` derives reasons from the state of the subflows, which a result has \
        for both ends\nevery 100 ms. In each table, the first rule that applies gives the reason.\n\n\
        ## Reason for using the second network\n\n\
        A reason that the scheduler or the path policy gives comes before these rules. They look at \
        the device's first\nsubflow, in the sample in which the device sent data on the second \
        network for the first time.\n\n\
        | reason | condition |\n|---|---|\n"
        .to_owned();
    let known = SwitchReason::ALL.into_iter().filter(|reason| *reason != SwitchReason::Other);
    let other = SwitchReason::Other;
    let rows = known.map(|reason| (reason.name(), reason.condition())).chain([
        (NETWORK_LOST, "the device had lost its first network before"),
        (other.name(), other.condition()),
    ]);
    for (name, condition) in rows {
        // Writing to a `String` cannot fail.
        let _ = writeln!(out, "| `{name}` | {condition} |");
    }
    out.push_str(
        "\n## Cause of the longest delay\n\n\
         These rules look at the samples of the host that sent the message, from the due time of the \
         message until its\nreply. They cover each run's longest delay in each direction.\n\n\
         | cause | meaning | condition |\n|---|---|---|\n",
    );
    for rule in DelayCause::RULES {
        let _ =
            writeln!(out, "| `{}` | {} | {} |", rule.cause.name(), rule.meaning, rule.condition);
    }
    out
}
