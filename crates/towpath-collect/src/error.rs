//! Errors of the collector as a whole. What a client did wrong is a
//! [`Refusal`](crate::server::Refusal).

use std::io;
use std::path::PathBuf;

use crate::bucket::{BucketError, BucketFailure};
use crate::campaign::CampaignError;

use towpath_analysis::output::OutputError;
use towpath_report::TableError;
use towpath_result::device::MAX_DEVICE_NAME_BYTES;

/// Reason why the collector cannot do its work.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// The catalogue returned an error.
    #[error("the catalogue failed: {0}")]
    Database(#[from] sqlx::Error),
    /// The catalogue's tables could not be brought up to date.
    #[error("cannot prepare the catalogue: {0}")]
    Migration(#[from] sqlx::migrate::MigrateError),
    /// The address of the database is not usable.
    #[error("`{0}` is not the address of a database")]
    DatabaseAddress(String),
    /// The store of records returned an error.
    #[error("cannot access the records: {0}")]
    Object(#[from] object_store::Error),
    /// The bucket of records is not usable.
    #[error(transparent)]
    Bucket(#[from] BucketFailure),
    /// A file or folder of the collector is not usable.
    #[error("cannot use `{}`: {source}", path.display())]
    Folder {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The server cannot listen.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Address and port.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// The collector's address is unknown, since it was never served.
    #[error("this collector was never started: cannot read `{}`: {source}", path.display())]
    NeverServed {
        /// File with the address.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The system returned another error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A stored result can no longer be read.
    #[error("the records of run {id} are damaged: {reason}")]
    Damaged {
        /// Identifier of the run.
        id: String,
        /// Description of the damage.
        reason: String,
    },
    /// A table could not be written.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A file of an analysis could not be made.
    #[error(transparent)]
    Analysis(#[from] OutputError),
    /// A command's choice of runs or tables is not valid.
    #[error("{0}")]
    Choice(String),
    /// The records of earlier runs are in another place.
    #[error("the records of this collector are in {}", .bucket.as_deref().unwrap_or("its folder"))]
    RecordsElsewhere {
        /// Address of the bucket; `None` for the collector's folder.
        bucket: Option<String>,
    },
    /// A token's name is used already.
    #[error("there is a token named `{0}` already")]
    TokenExists(String),
    /// No token has the name or identifier.
    #[error("no valid token is named `{0}`")]
    NoToken(String),
    /// An open invitation has the name.
    #[error("there is an open invitation for `{0}` already")]
    InvitationExists(String),
    /// A name is not usable for a device.
    #[error("a device's name is one line of 1 to {MAX_DEVICE_NAME_BYTES} bytes")]
    DeviceName,
    /// No device has the name or identifier.
    #[error("neither a valid device nor an open invitation is named `{0}`")]
    NoDevice(String),
    /// A join code is unknown, used or expired.
    #[error("the code is not valid: it is unknown, used or expired")]
    InvalidJoinCode,
    /// The owner of a device has accepted another version of the consent text.
    #[error("the current version of the consent text is {current}")]
    OtherConsent {
        /// Version of the current text.
        current: u32,
    },
    /// The owner of a device has not accepted the current consent text.
    #[error("the owner of this device has not accepted the current consent text")]
    NoConsent,
    /// A file is not usable as the consent text.
    #[error("the consent text is not usable: {0}")]
    ConsentText(String),
    /// A campaign or its key is not usable.
    #[error(transparent)]
    Campaign(#[from] CampaignError),
}

impl CollectError {
    /// Returns a suggested action, if one is known.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::DatabaseAddress(_) => {
                "give an address such as `postgres://user@localhost/towpath`, or leave it out for \
                 SQLite"
            }
            Self::Bucket(failure) => return failure.reason.hint().map(str::to_owned),
            Self::Campaign(error) => return error.hint().map(str::to_owned),
            Self::Folder { .. } => "choose a writable folder with `--dir DIR`",
            Self::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse => {
                "another program uses the port: choose one with `--listen 127.0.0.1:PORT`"
            }
            Self::RecordsElsewhere { bucket } => {
                let option = match bucket {
                    Some(bucket) => format!("use `--objects {bucket}`"),
                    None => "leave `--objects` out".to_owned(),
                };
                return Some(format!(
                    "{option}; `backup`, and `restore` with another `--dir`, move the records"
                ));
            }
            Self::NeverServed { .. } => "start it with `towpath collect serve`",
            Self::TokenExists(_) => "choose another name, or revoke that token first",
            Self::NoToken(_) => "`towpath collect token list` shows all tokens",
            Self::InvitationExists(_) => {
                "choose another name, or end the invitation: `towpath collect device revoke NAME`"
            }
            Self::DeviceName => "use a name such as `ada-laptop`",
            Self::NoDevice(_) => "`towpath collect device list` shows all devices",
            Self::InvalidJoinCode => "ask the operator of the collector for a new code",
            Self::OtherConsent { .. } => {
                "read the current text and accept it: `towpath agent join` or `towpath agent consent`"
            }
            Self::NoConsent => {
                "read the current text and accept it with `towpath agent consent`, or join again with \
                 `towpath agent join`"
            }
            Self::ConsentText(_) => {
                "use plain text in UTF-8, of at most 16,000 bytes, with an empty line between \
                 paragraphs"
            }
            Self::Database(_)
            | Self::Migration(_)
            | Self::Object(_)
            | Self::Listen { .. }
            | Self::Io(_)
            | Self::Damaged { .. }
            | Self::Table(_)
            | Self::Analysis(_)
            | Self::Choice(_) => return None,
        };
        Some(hint.to_owned())
    }

    /// Returns true if the disk or the database is full.
    pub(crate) fn is_full(&self) -> bool {
        let text = match self {
            Self::Database(error) => error.to_string(),
            Self::Object(error) => full_text(error),
            Self::Io(error) | Self::Folder { source: error, .. } => {
                return error.kind() == io::ErrorKind::StorageFull;
            }
            Self::Bucket(failure) => return failure.reason == BucketError::Full,
            Self::Migration(_)
            | Self::DatabaseAddress(_)
            | Self::Listen { .. }
            | Self::NeverServed { .. }
            | Self::Damaged { .. }
            | Self::Table(_)
            | Self::Analysis(_)
            | Self::Choice(_)
            | Self::RecordsElsewhere { .. }
            | Self::TokenExists(_)
            | Self::NoToken(_)
            | Self::InvitationExists(_)
            | Self::DeviceName
            | Self::NoDevice(_)
            | Self::InvalidJoinCode
            | Self::OtherConsent { .. }
            | Self::NoConsent
            | Self::ConsentText(_)
            | Self::Campaign(_) => return false,
        };
        ["is full", "No space left", "disk full"].iter().any(|words| text.contains(words))
    }
}

/// Returns the texts of an error and all its sources.
pub(crate) fn full_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}
