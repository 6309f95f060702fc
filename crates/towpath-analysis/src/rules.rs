//! Document of the rules for handovers and delays, made from the rules themselves.

use std::fmt::Write as _;

use towpath_result::metrics::handover::SwitchReason;

use crate::cause::DelayCause;
use crate::facts::NETWORK_LOST;

/// Beginning of `docs/reference/analysis-rules.md`.
const INTRODUCTION: &str = "\
# Rules for handovers and delays

*For people who read the figures of a campaign. Assumes [Analyse a campaign](../guides/analyse-campaigns.md).*

An analysis derives reasons from the state of the subflows, which a result has for both ends every 100 ms. In each table, the first rule that
applies gives the reason. `towpath collect analyse --rules` prints this page.

```sh
towpath collect analyse --rules
```

## Reason for using the second network

A reason that the scheduler or the path policy gives comes before these rules. They look at the first subflow of the device, in the sample in
which the device sent data on the second network for the first time.

| reason | condition |
|---|---|
";

/// Returns the text of `docs/reference/analysis-rules.md`.
pub fn rules_markdown() -> String {
    let mut out = INTRODUCTION.to_owned();
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
         message until its reply. They\ncover the longest delay of each run in each direction.\n\n\
         | cause | meaning | condition |\n|---|---|---|\n",
    );
    for rule in DelayCause::RULES {
        let _ =
            writeln!(out, "| `{}` | {} | {} |", rule.cause.name(), rule.meaning, rule.condition);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_in_the_documentation_is_that_of_the_code() {
        let page = include_str!("../../../docs/reference/analysis-rules.md");
        let hint = "run `towpath collect analyse --rules > docs/reference/analysis-rules.md`";
        assert_eq!(page, rules_markdown(), "{hint}");
    }
}
