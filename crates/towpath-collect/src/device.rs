//! Devices of volunteers, invitations and the consent text: their data, and what is valid.

use serde::{Deserialize, Serialize};
use towpath_result::device::{MAX_CONSENT_BYTES, MAX_DEVICE_NAME_BYTES};
use towpath_result::format::text::deceives;

use crate::access::Token;
use crate::error::CollectError;

/// Consent text of a collector whose operator has written none.
pub(crate) const DEFAULT_CONSENT: &str = include_str!("consent.txt");
/// Version of that text.
pub(crate) const DEFAULT_CONSENT_VERSION: u32 = 1;

/// A device as listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Token of the device, with its name, its last use and its revocation.
    pub token: Token,
    /// Version of the accepted consent text; 0 once the owner has withdrawn the consent.
    pub consent: u32,
    /// Version of the program that joined; empty after the deletion of the device's data.
    pub version: String,
    /// Operating system and processor; empty after the deletion of the device's data.
    pub platform: String,
    /// Time of joining, in microseconds since 1970.
    pub joined_us: i64,
    /// Time at which the owner withdrew the consent, in microseconds since 1970; `None` before.
    pub withdrawn_us: Option<i64>,
    /// Stored runs of the device.
    pub runs: u64,
    /// Bytes of these runs, compressed.
    pub bytes: u64,
}

/// Row of a device in a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeviceRow {
    /// Identifier of the device's token.
    pub(crate) token: String,
    pub(crate) consent: u32,
    pub(crate) version: String,
    pub(crate) platform: String,
    pub(crate) joined_us: i64,
    #[serde(default)]
    pub(crate) withdrawn_us: Option<i64>,
}

/// Version of the consent text in a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Consent {
    pub(crate) version: u32,
    pub(crate) text: String,
    pub(crate) created_us: i64,
}

/// Invitation of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invitation {
    /// Code for joining once, such as `7K3M-9QPX-VB2D`.
    pub code: String,
    /// Address of the site; `None` if the collector was never served.
    pub url: Option<String>,
}

/// Invitation that no device has used yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenInvitation {
    /// Name of the invited device.
    pub name: String,
    /// Time at which the code expires, in microseconds since 1970.
    pub expires_us: i64,
}

/// Returns a consent text in its stored form, or the reason why it cannot be one.
pub(crate) fn consent_text(bytes: &[u8]) -> Result<String, String> {
    if bytes.len() > MAX_CONSENT_BYTES {
        return Err(format!("it has more than {MAX_CONSENT_BYTES} bytes"));
    }
    let text = str::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
    let text = text.replace("\r\n", "\n");
    if text.trim().is_empty() {
        return Err("it is empty".to_owned());
    }
    let control = text.chars().find(|c| *c != '\n' && deceives(*c));
    match control {
        Some(c) => Err(format!("it contains the control character U+{:04X}", u32::from(c))),
        None => Ok(format!("{}\n", text.trim_end())),
    }
}

/// Fails unless the name is one short line of text.
pub(crate) fn verify_name(name: &str) -> Result<(), CollectError> {
    let is_name = !name.is_empty() && name.len() <= MAX_DEVICE_NAME_BYTES && name.trim() == name;
    if is_name && !name.contains(deceives) { Ok(()) } else { Err(CollectError::DeviceName) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_consent_text_is_a_consent_text() {
        assert_eq!(consent_text(DEFAULT_CONSENT.as_bytes()).unwrap(), DEFAULT_CONSENT);
    }

    #[test]
    fn unreadable_consent_texts_are_refused_with_a_reason() {
        assert_eq!(consent_text(b"One.\r\n\r\nTwo.\r\n\r\n").unwrap(), "One.\n\nTwo.\n");
        for (text, reason) in [
            (&b""[..], "empty"),
            (b" \n\n", "empty"),
            (b"a\x1b[2J", "U+001B"),
            (b"a\rb", "U+000D"),
            ("a\u{202e}b".as_bytes(), "U+202E"),
            (b"\xff", "not UTF-8"),
            (&[b'x'; MAX_CONSENT_BYTES + 1], "more than 16000 bytes"),
        ] {
            let error = consent_text(text).unwrap_err();
            assert!(error.contains(reason), "{error}: {reason}");
        }
    }

    #[test]
    fn a_name_of_a_device_is_one_short_line() {
        let long = "x".repeat(MAX_DEVICE_NAME_BYTES);
        for name in ["ada", "Ada's laptop", "übung", &long] {
            assert!(verify_name(name).is_ok(), "{name}");
        }
        for name in ["", " ", " ada", "a\nb", "a\u{202e}b", &format!("{long}x")] {
            assert!(verify_name(name).is_err(), "{name:?}");
        }
    }
}
