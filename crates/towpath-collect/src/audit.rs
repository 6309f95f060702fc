//! Audit log: actions of administrators, and deletions by the owners of devices.
//!
//! Entries are only added. The one later change removes the name of a device whose owner deletes
//! its data. Exports and other reading are not logged.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;

use serde::{Deserialize, Serialize};

use crate::access::Token;
use crate::error::CollectError;

/// Object of entries about a device whose owner has deleted its data.
pub(crate) const FORGOTTEN_DEVICE: &str = "(forgotten device)";

/// Kind of an [`Actor`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ActorKind {
    /// Administrator on the pages.
    Admin,
    /// User of the collector's host.
    Local,
    /// Owner of a device.
    Device,
}

impl ActorKind {
    const ALL: [Self; 3] = [Self::Admin, Self::Local, Self::Device];

    /// Returns the kind's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Local => "local",
            Self::Device => "device",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Originator of an action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    /// Kind of the originator.
    #[serde(rename = "actor_kind")]
    pub kind: ActorKind,
    /// Name of the administrator's token, or of the user's account; empty for a device.
    #[serde(rename = "actor")]
    pub name: String,
}

impl Actor {
    /// Returns the administrator with a token.
    pub fn admin(token: &Token) -> Self {
        Self { kind: ActorKind::Admin, name: token.name.clone() }
    }

    /// Returns the user who runs this process, or `uid N` if `/etc/passwd` has no such account.
    pub(crate) fn local() -> Self {
        let name = user_name().unwrap_or_else(|_| "unknown".to_owned());
        Self { kind: ActorKind::Local, name }
    }

    pub(crate) fn device() -> Self {
        Self { kind: ActorKind::Device, name: String::new() }
    }
}

impl fmt::Display for Actor {
    /// Writes the kind and the name, such as `local root`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, name } = self;
        let text = format!("{} {name}", kind.name());
        f.pad(text.trim_end())
    }
}

fn user_name() -> io::Result<String> {
    let user = fs::metadata("/proc/self")?.uid();
    let accounts = fs::read_to_string("/etc/passwd").unwrap_or_default();
    Ok(account_name(&accounts, user).unwrap_or_else(|| format!("uid {user}")))
}

/// Finds the name of an account in the text of `/etc/passwd` (passwd(5)).
fn account_name(accounts: &str, user: u32) -> Option<String> {
    accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(user)).then(|| name.to_owned())
    })
}

/// Logged action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuditAction {
    /// A token was created; the detail is its role.
    TokenCreated,
    /// A token was revoked; the detail is its role.
    TokenRevoked,
    /// A link was created that logs a browser in; the object is the browser's token.
    LoginLinkCreated,
    /// A device was invited; the detail is the end of the invitation.
    DeviceInvited,
    /// An invitation was ended before its use.
    InvitationEnded,
    /// The access of a device was ended.
    DeviceRevoked,
    /// The owner of a device deleted its data; the detail has the amounts.
    DeviceForgotten,
    /// The consent text was changed; the object is its new version.
    ConsentChanged,
    /// A campaign was created.
    CampaignCreated,
    /// A campaign was paused.
    CampaignPaused,
    /// A campaign was resumed.
    CampaignResumed,
    /// A campaign was ended.
    CampaignEnded,
    /// Old runs were removed.
    RunsPurged,
    /// A backup was made; the object is its folder.
    BackupMade,
    /// A backup was restored; the object is its folder.
    BackupRestored,
}

impl AuditAction {
    const ALL: [Self; 15] = [
        Self::TokenCreated,
        Self::TokenRevoked,
        Self::LoginLinkCreated,
        Self::DeviceInvited,
        Self::InvitationEnded,
        Self::DeviceRevoked,
        Self::DeviceForgotten,
        Self::ConsentChanged,
        Self::CampaignCreated,
        Self::CampaignPaused,
        Self::CampaignResumed,
        Self::CampaignEnded,
        Self::RunsPurged,
        Self::BackupMade,
        Self::BackupRestored,
    ];
    /// Actions whose object is the name of a device.
    pub(crate) const OF_DEVICES: [Self; 3] =
        [Self::DeviceInvited, Self::InvitationEnded, Self::DeviceRevoked];

    /// Returns the action's name, such as `token-created`.
    pub fn name(self) -> &'static str {
        match self {
            Self::TokenCreated => "token-created",
            Self::TokenRevoked => "token-revoked",
            Self::LoginLinkCreated => "login-link-created",
            Self::DeviceInvited => "device-invited",
            Self::InvitationEnded => "invitation-ended",
            Self::DeviceRevoked => "device-revoked",
            Self::DeviceForgotten => "device-forgotten",
            Self::ConsentChanged => "consent-changed",
            Self::CampaignCreated => "campaign-created",
            Self::CampaignPaused => "campaign-paused",
            Self::CampaignResumed => "campaign-resumed",
            Self::CampaignEnded => "campaign-ended",
            Self::RunsPurged => "runs-purged",
            Self::BackupMade => "backup-made",
            Self::BackupRestored => "backup-restored",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.name() == name)
    }
}

/// Entry of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Random identifier, which a restored entry keeps.
    pub id: String,
    /// Time of the action, in microseconds since 1970.
    pub at_us: i64,
    /// Originator of the action.
    #[serde(flatten)]
    pub actor: Actor,
    /// Kind of the action.
    pub action: AuditAction,
    /// Name of the token, device, campaign or folder; `(forgotten device)` for a device whose owner
    /// has deleted its data.
    pub object: String,
    /// Further facts; may be empty.
    pub detail: String,
}

impl AuditEntry {
    pub(crate) fn new(
        at_us: i64,
        actor: &Actor,
        action: AuditAction,
        object: &str,
        detail: &str,
    ) -> Result<Self, CollectError> {
        let (actor, object, detail) = (actor.clone(), object.to_owned(), detail.to_owned());
        Ok(Self { id: crate::secret::random_id()?, at_us, actor, action, object, detail })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_found_by_its_number() {
        let accounts =
            "root:x:0:0:root:/root:/bin/sh\nbad line\nada:x:1000:1000::/home/ada:/bin/sh\n";
        assert_eq!(account_name(accounts, 0).as_deref(), Some("root"));
        assert_eq!(account_name(accounts, 1_000).as_deref(), Some("ada"));
        assert_eq!(account_name(accounts, 1), None);
        assert_eq!(account_name("", 0), None);
    }

    #[test]
    fn names_of_actions_are_the_same_in_the_database_and_in_json() {
        for action in AuditAction::ALL {
            assert_eq!(serde_json::to_value(action).unwrap(), action.name());
            assert_eq!(AuditAction::parse(action.name()), Some(action));
        }
        for kind in ActorKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
            assert_eq!(ActorKind::parse(kind.name()), Some(kind));
        }
    }
}
