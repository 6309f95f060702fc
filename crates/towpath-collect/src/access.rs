//! Roles, and the tokens that carry them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Set of permitted actions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// May read all pages and data.
    Viewer,
    /// May upload runs, and read nothing: a measuring host needs no more.
    Uploader,
    /// May do everything, which includes tokens.
    Admin,
    /// Device of a volunteer: may upload runs, and read its own state and runs.
    Device,
    /// Test server: may send heartbeats, and do nothing else.
    Server,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 5] =
        [Self::Viewer, Self::Uploader, Self::Admin, Self::Device, Self::Server];
    /// Roles that an operator may give to a token. A device gets its token when it joins.
    pub const GRANTED: [Self; 4] = [Self::Uploader, Self::Viewer, Self::Server, Self::Admin];

    /// Returns the role's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Uploader => "uploader",
            Self::Admin => "admin",
            Self::Device => "device",
            Self::Server => "server",
        }
    }

    /// Returns true if the role may read runs.
    pub(crate) fn may_view(self) -> bool {
        matches!(self, Self::Viewer | Self::Admin)
    }

    /// Returns true if the role may add runs.
    pub(crate) fn may_upload(self) -> bool {
        matches!(self, Self::Uploader | Self::Admin | Self::Device)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let role = Self::ALL.into_iter().find(|role| role.name() == text);
        role.ok_or_else(|| "a role is viewer, uploader, server or admin".to_owned())
    }
}

/// A token as listed: everything but its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Identifier of the token.
    pub id: String,
    /// Name that the operator chose.
    pub name: String,
    /// Permitted actions.
    pub role: Role,
    /// Creation time in microseconds since 1970.
    pub created_us: i64,
    /// Time of the last use, accurate to a minute.
    pub used_us: Option<i64>,
    /// Time of the revocation; `None` while the token is valid.
    pub revoked_us: Option<i64>,
}
