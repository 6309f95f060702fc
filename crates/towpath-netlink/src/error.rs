//! Errors of requests to the kernel.

use std::fmt;
use std::io;

use super::wire::{Malformed, NetlinkAck};

/// Error of a netlink request or event stream: the attempted action and the cause.
#[derive(Debug, thiserror::Error)]
#[error("{action}: {cause}")]
pub struct NetlinkError {
    /// Attempted action, such as "add address 10.0.0.1/24 to `wifi`".
    pub action: String,
    /// Reason for the failure; printed after the action.
    pub cause: NetlinkErrorKind,
}

/// Reason why a request failed.
#[derive(Debug)]
pub enum NetlinkErrorKind {
    /// The kernel refused the request.
    Refused {
        /// Error number, positive, such as `libc::EEXIST`.
        errno: i32,
        /// Extended acknowledgement: the kernel's explanation, if it gave one.
        explanation: Option<String>,
    },
    /// The netlink socket itself failed.
    Socket(io::Error),
    /// The kernel's reply could not be parsed.
    Malformed(Malformed),
    /// The table changed during each attempt to list it.
    Unstable,
    /// The kernel has no such generic netlink family or multicast group.
    Unsupported(&'static str),
}

impl NetlinkError {
    pub(crate) fn new(action: impl fmt::Display, cause: impl Into<NetlinkErrorKind>) -> Self {
        Self { action: action.to_string(), cause: cause.into() }
    }

    /// Returns the kernel's error number; `None` if the kernel gave none.
    pub fn errno(&self) -> Option<i32> {
        match &self.cause {
            NetlinkErrorKind::Refused { errno, .. } => Some(*errno),
            NetlinkErrorKind::Socket(error) => error.raw_os_error(),
            NetlinkErrorKind::Malformed(_)
            | NetlinkErrorKind::Unstable
            | NetlinkErrorKind::Unsupported(_) => None,
        }
    }

    /// Returns the kernel's own explanation of its refusal, if it gave one.
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
            Self::Malformed(malformed) => write!(f, "malformed reply: {malformed}"),
            Self::Unstable => f.write_str("the table keeps changing while it is read"),
            Self::Unsupported(feature) => write!(f, "the kernel does not support {feature}"),
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
    fn from(ack: NetlinkAck) -> Self {
        Self::Refused { errno: ack.errno, explanation: ack.extack }
    }
}

/// Returns the error's text without the number that the standard library appends.
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
