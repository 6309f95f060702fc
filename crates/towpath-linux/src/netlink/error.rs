//! What can go wrong in a conversation with the kernel.

use std::fmt;
use std::io;

use super::wire::{Malformed, NetlinkAck};

/// A netlink request or event stream that failed: what was being done, and why it did not work.
#[derive(Debug, thiserror::Error)]
#[error("{action}: {cause}")]
pub struct NetlinkError {
    /// What was being done, such as "add address 10.0.0.1/24 to `wifi`".
    pub action: String,
    /// Why it failed.
    pub cause: NetlinkErrorKind,
}

/// Why a request failed.
#[derive(Debug)]
pub enum NetlinkErrorKind {
    /// The kernel refused.
    Refused {
        /// The error number, positive, such as `libc::EEXIST`.
        errno: i32,
        /// The kernel's own explanation (extended acknowledgement), if it gave one.
        explanation: Option<String>,
    },
    /// The netlink socket itself failed.
    Socket(io::Error),
    /// The kernel's answer could not be understood.
    Malformed(Malformed),
    /// The table that was being listed changed each time it was read.
    Unstable,
    /// The kernel has no such generic netlink family or multicast group.
    Unsupported(&'static str),
}

impl NetlinkError {
    pub(crate) fn new(action: impl fmt::Display, cause: impl Into<NetlinkErrorKind>) -> Self {
        Self { action: action.to_string(), cause: cause.into() }
    }

    /// The kernel's error number, if there is one.
    pub fn errno(&self) -> Option<i32> {
        match &self.cause {
            NetlinkErrorKind::Refused { errno, .. } => Some(*errno),
            NetlinkErrorKind::Socket(error) => error.raw_os_error(),
            NetlinkErrorKind::Malformed(_)
            | NetlinkErrorKind::Unstable
            | NetlinkErrorKind::Unsupported(_) => None,
        }
    }

    /// The kernel's own explanation of its refusal, if it gave one.
    pub fn explanation(&self) -> Option<&str> {
        match &self.cause {
            NetlinkErrorKind::Refused { explanation, .. } => explanation.as_deref(),
            NetlinkErrorKind::Socket(_)
            | NetlinkErrorKind::Malformed(_)
            | NetlinkErrorKind::Unstable
            | NetlinkErrorKind::Unsupported(_) => None,
        }
    }
}

impl fmt::Display for NetlinkErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { errno, explanation } => {
                f.write_str(&os_error_text(&io::Error::from_raw_os_error(*errno)))?;
                match explanation {
                    Some(explanation) => write!(f, " ({explanation})"),
                    None => Ok(()),
                }
            }
            Self::Socket(error) => f.write_str(&os_error_text(error)),
            Self::Malformed(malformed) => write!(f, "malformed answer: {malformed}"),
            Self::Unstable => f.write_str("the table keeps changing while it is read"),
            Self::Unsupported(what) => write!(f, "the kernel has no {what}"),
        }
    }
}

impl From<Malformed> for NetlinkErrorKind {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

impl From<io::Error> for NetlinkErrorKind {
    fn from(error: io::Error) -> Self {
        Self::Socket(error)
    }
}

impl From<NetlinkAck> for NetlinkErrorKind {
    fn from(verdict: NetlinkAck) -> Self {
        Self::Refused { errno: verdict.errno, explanation: verdict.extack }
    }
}

/// The error's text without the number that the standard library appends to it.
fn os_error_text(error: &io::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" (os error ").map_or(text.as_str(), |(text, _)| text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_request_the_reason_and_kernel_message() {
        let cause = NetlinkErrorKind::Refused { errno: libc::EEXIST, explanation: None };
        let error = NetlinkError::new("add address 10.0.0.1/24 to `wifi`", cause);
        assert_eq!(error.to_string(), "add address 10.0.0.1/24 to `wifi`: File exists");
        assert_eq!((error.errno(), error.explanation()), (Some(libc::EEXIST), None));

        let explanation = Some("Unknown device type".to_owned());
        let cause = NetlinkErrorKind::Refused { errno: libc::EOPNOTSUPP, explanation };
        let error = NetlinkError::new("add `a`", cause);
        assert_eq!(error.to_string(), "add `a`: Operation not supported (Unknown device type)");
        assert_eq!(error.explanation(), Some("Unknown device type"));
    }
}
