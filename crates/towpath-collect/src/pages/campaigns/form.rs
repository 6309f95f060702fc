//! The form that creates a campaign.

use maud::{Markup, html};
use serde::Deserialize;
use towpath_campaign::{EXAMPLE_MOBILE, EXAMPLE_STABLE, MAX_CAMPAIGN_BYTES};
use towpath_scenario::{Problem, ScenarioErrors};

use crate::campaign::CampaignError;
use crate::catalogue::Session;

/// Keys of a campaign, in the order of the help.
const CAMPAIGN_KEYS: [&str; 15] = [
    "name",
    "description",
    "mode",
    "start",
    "end",
    "every",
    "jitter",
    "rounds",
    "transports",
    "families",
    "ports",
    "servers",
    "bytes-per-day",
    "addresses",
    "patterns",
];
/// Keys of a pattern, in the order of the help.
const PATTERN_KEYS: [&str; 5] = ["pattern", "transports", "families", "ports", "max-bytes"];

/// Example to start from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Example {
    Stable,
    Mobile,
}

/// Content of the form.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CampaignDraft<'a> {
    /// An example; `None` until the reader chooses one.
    Example(Option<Example>),
    /// A refused text with the reason.
    Refused {
        /// Text of the administrator.
        text: &'a str,
        /// Reason.
        error: &'a CampaignError,
    },
}

impl<'a> CampaignDraft<'a> {
    fn text(self) -> &'a str {
        match self {
            Self::Example(None | Some(Example::Stable)) => EXAMPLE_STABLE,
            Self::Example(Some(Example::Mobile)) => EXAMPLE_MOBILE,
            Self::Refused { text, .. } => text,
        }
    }

    fn error(self) -> Option<&'a CampaignError> {
        match self {
            Self::Example(_) => None,
            Self::Refused { error, .. } => Some(error),
        }
    }
}

/// Writes the form; it is folded until it is used.
pub(super) fn form(draft: CampaignDraft<'_>, session: &Session) -> Markup {
    let is_open = !matches!(draft, CampaignDraft::Example(None));
    html! {
        details.new #new open[is_open] {
            summary { h2 { "New campaign" } }
            @if let Some(error) = draft.error() { (refusal(error)) }
            form method="post" action="/campaigns" {
                input type="hidden" name="csrf" value=(session.csrf);
                label for="text" { "Campaign file (TOML)" }
                // A browser removes the first line break of a text area.
                textarea id="text" name="text" rows="24" required spellcheck="false"
                    autocapitalize="off" maxlength=(MAX_CAMPAIGN_BYTES) { "\n" (draft.text()) }
                button { "Create" }
            }
            p.about {
                "Examples: " a href="/campaigns?example=stable#new" { "stable mode" } ", "
                a href="/campaigns?example=mobile#new" { "mobile mode" } "."
            }
            p.about { "Keys of a campaign: " (keys(&CAMPAIGN_KEYS)) "." }
            p.about {
                "Keys of a pattern: " (keys(&PATTERN_KEYS)) ", and those of a scenario's flow, such as "
                code { "size" } ", " code { "duration" } " or " code { "preset" } "."
            }
            p.about {
                "The collector signs the file. Devices take part from their next request on. "
                "A campaign can be paused and ended, but not changed."
            }
        }
    }
}

fn keys(names: &[&str]) -> Markup {
    html! {
        @for (index, name) in names.iter().enumerate() {
            @if index > 0 { ", " }
            code { (name) }
        }
    }
}

/// Writes the reason why a text was refused.
fn refusal(error: &CampaignError) -> Markup {
    html! {
        div.bad role="alert" {
            @if let CampaignError::Mistakes(errors) = error {
                (mistakes(errors))
            } @else {
                p { (super::super::capital(&error.to_string())) "." }
                @if let Some(hint) = error.hint() { p { (super::super::capital(hint)) "." } }
            }
        }
    }
}

fn mistakes(errors: &ScenarioErrors) -> Markup {
    let hidden = errors.count() - errors.problems().len();
    html! {
        p {
            "The campaign was not created. It has "
            @if errors.count() == 1 { "a mistake" } @else { (errors.count()) " mistakes" } ":"
        }
        ul {
            @for Problem { position, message, expected, hint, .. } in errors.problems() {
                li {
                    @if let Some((line, column)) = position {
                        "Line " (line) ", column " (column) ": "
                    }
                    (message)
                    @if !expected.is_empty() { "; " (expected) }
                    @if let Some(hint) = hint { " (hint: " (hint) ")" }
                }
            }
            @if hidden > 0 { li { (hidden) " more" } }
        }
    }
}

#[cfg(test)]
mod tests {
    use towpath_campaign::{Campaign, reference_markdown};

    use super::*;

    #[test]
    fn the_help_names_the_keys_of_the_reference() {
        let reference = reference_markdown();
        let rows = reference.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let rows: Vec<&str> = rows.collect();
        let help: Vec<&str> = CAMPAIGN_KEYS.into_iter().chain(PATTERN_KEYS).collect();
        assert_eq!(rows, help, "{reference}");
    }

    #[test]
    fn both_examples_are_campaigns() {
        for example in [Example::Stable, Example::Mobile] {
            let text = CampaignDraft::Example(Some(example)).text();
            assert!(Campaign::parse("example", text, 0).is_ok(), "{example:?}");
        }
    }
}
