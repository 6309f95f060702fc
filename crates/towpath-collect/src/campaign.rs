//! Campaigns of the operator and outcomes of their runs: rows, what is valid, and errors.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use towpath_campaign::{
    Campaign, CampaignOffer, CampaignState, KeyError, MAX_REASON_BYTES, MissingReason, Outcome,
    OutcomeState,
};
use towpath_result::format::text::clean;
use towpath_scenario::ScenarioErrors;

use crate::entry::ID_DIGITS;

/// Row of a campaign.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CampaignRow {
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) created_us: i64,
    pub(crate) signature: String,
    pub(crate) state: CampaignState,
    /// End of the text, or the time when the operator ended the campaign.
    pub(crate) end_us: i64,
}

/// Row of an outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OutcomeRow {
    /// Identifier of the device's token.
    pub(crate) token: String,
    pub(crate) outcome: Outcome,
}

/// Outcome in the catalogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredOutcome {
    pub(crate) outcome: Outcome,
    /// True if the device has uploaded the result, and the collector still has it.
    pub(crate) is_uploaded: bool,
}

/// Number of outcomes of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutcomeCount {
    pub(crate) kind: OutcomeKind,
    pub(crate) outcomes: u64,
}

/// Kind of an outcome, as it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutcomeKind {
    /// A valid result is here.
    Stored,
    /// A result is here that must not be compared with others.
    Invalid,
    /// The result is not here.
    NotUploaded,
    /// The device reports that it has no result.
    Missing(MissingReason),
}

/// A campaign as listed.
#[derive(Debug, Clone, PartialEq)]
pub struct CampaignEntry {
    /// The operator's file.
    pub campaign: Campaign,
    /// Time of creation, in microseconds since 1970.
    pub created_us: u64,
    /// State; `Ended` as well after the end of the file.
    pub state: CampaignState,
    /// Time at which no further run is planned, in microseconds since 1970: the end of the file, or
    /// the time when the operator ended the campaign.
    pub end_us: u64,
}

impl CampaignRow {
    /// Returns the campaign as devices get it.
    pub(crate) fn offer(&self) -> CampaignOffer {
        let Self { name: _, text, created_us, signature, state, end_us: _ } = self.clone();
        CampaignOffer { text, created_us: created_us.unsigned_abs(), signature, state }
    }

    /// Reads the stored text. It was valid when it was stored.
    pub(crate) fn campaign(&self) -> Result<Campaign, CampaignError> {
        let parsed = Campaign::parse(&self.name, &self.text, self.created_us.unsigned_abs());
        parsed.map_err(|errors| {
            let (name, reason) = (self.name.clone(), errors.to_string());
            CampaignError::Damaged { name, reason }
        })
    }

    /// Returns the campaign as it is listed at a time.
    pub(crate) fn entry(&self, now_us: i64) -> Result<CampaignEntry, CampaignError> {
        Ok(CampaignEntry {
            campaign: self.campaign()?,
            created_us: self.created_us.unsigned_abs(),
            state: if self.end_us <= now_us { CampaignState::Ended } else { self.state },
            end_us: self.end_us.unsigned_abs(),
        })
    }
}

/// Reason why a campaign or its key is not usable.
#[derive(Debug, thiserror::Error)]
pub enum CampaignError {
    /// The file has mistakes.
    #[error("{0}")]
    Mistakes(ScenarioErrors),
    /// A file cannot be a campaign.
    #[error("the campaign is not usable: {0}")]
    Text(String),
    /// The name is used already.
    #[error("there is a campaign named `{0}` already")]
    Exists(String),
    /// No campaign has the name.
    #[error("no campaign is named `{0}`")]
    Unknown(String),
    /// A page cannot analyse the campaign.
    #[error("the campaign `{name}` has more than {max_runs} planned runs, too many for a page")]
    TooLarge {
        /// Name of the campaign.
        name: String,
        /// Maximum number of planned runs.
        max_runs: usize,
    },
    /// A campaign that has ended cannot be paused or resumed.
    #[error("the campaign `{0}` has ended")]
    Ended(String),
    /// A stored campaign cannot be read, for instance by an earlier version of the program.
    #[error("cannot read the stored campaign `{name}`: {reason}")]
    Damaged {
        /// Name of the campaign.
        name: String,
        /// Mistakes in the text.
        reason: String,
    },
    /// The file of the key is damaged.
    #[error("cannot use the key in `{}`: {reason}", path.display())]
    Key {
        /// File of the key.
        path: PathBuf,
        /// Reason.
        reason: KeyError,
    },
    /// The key that signed the campaigns is lost.
    #[error("`{}` lacks the file `campaign.key`, which signed its campaigns", folder.display())]
    NoKey {
        /// The collector's folder.
        folder: PathBuf,
    },
    /// The campaigns of the collector were signed with another key than that of a backup.
    #[error("the campaigns of this collector were signed with another key than that of the backup")]
    OtherKey,
}

impl CampaignError {
    /// Returns a suggested action, if one is known.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Text(_) => {
                Some("`towpath collect campaign example` prints a campaign to start from")
            }
            Self::Exists(_) => Some("choose another `name` in the file"),
            Self::Unknown(_) => Some("`towpath collect campaign list` shows all campaigns"),
            Self::TooLarge { .. } => Some("`towpath collect analyse` has no such limit"),
            Self::Ended(_) => Some("create a campaign with another name"),
            Self::Key { .. } => Some("copy `campaign.key` from a backup"),
            Self::NoKey { .. } => Some(
                "copy it from a backup, or end all campaigns. For campaigns with a new key, devices \
                 have to join again",
            ),
            Self::OtherKey => Some("restore the backup into another folder with `--dir DIR`"),
            Self::Mistakes(_) | Self::Damaged { .. } => None,
        }
    }
}

/// Returns an outcome whose texts are fit for a list; `None` if its result has no valid identifier.
pub(crate) fn accepted_state(state: OutcomeState) -> Option<OutcomeState> {
    let is_id = |id: &String| {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        id.len() == ID_DIGITS && id.bytes().all(is_digit)
    };
    Some(match state {
        OutcomeState::Stored { result } => {
            OutcomeState::Stored { result: Some(result).filter(is_id)? }
        }
        OutcomeState::Invalid { result, detail } => {
            OutcomeState::Invalid { result: Some(result).filter(is_id)?, detail: line(&detail) }
        }
        OutcomeState::Missing { reason, detail } => {
            OutcomeState::Missing { reason, detail: line(&detail) }
        }
    })
}

/// Returns one line without control characters, of at most [`MAX_REASON_BYTES`] bytes.
fn line(text: &str) -> String {
    let mut line = clean(text);
    line.truncate(line.floor_char_boundary(MAX_REASON_BYTES));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_are_one_line_of_limited_length() {
        let detail = format!("a\u{1b}[31m\nb{}", "ü".repeat(MAX_REASON_BYTES));
        let state = OutcomeState::Missing { reason: MissingReason::Failed, detail };
        let Some(OutcomeState::Missing { detail, .. }) = accepted_state(state) else {
            panic!("a missing run has no identifier")
        };
        assert!(detail.starts_with("a\u{fffd}[31m bü") && detail.len() <= MAX_REASON_BYTES);
    }

    #[test]
    fn an_identifier_of_a_result_has_20_digits_in_lower_case() {
        let is_accepted =
            |id: &str| accepted_state(OutcomeState::Stored { result: id.to_owned() }).is_some();
        assert!(is_accepted("0123456789abcdef0123"));
        for id in ["", "0123456789abcdef012", "0123456789ABCDEF0123", "0123456789abcdef012g"] {
            assert!(!is_accepted(id), "{id}");
        }
    }
}
