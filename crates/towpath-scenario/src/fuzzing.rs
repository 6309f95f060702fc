//! Body of the fuzz target `scenario`.

use std::io;

use super::Scenario;

/// Parses an untrusted scenario; bytes after a NUL are the text of every file that it references.
pub fn scenario(data: &[u8]) {
    let mut parts = data.splitn(2, |byte| *byte == 0);
    let (text, referenced_text) =
        (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let load = |_: &str| String::from_utf8(referenced_text.to_vec()).map_err(io::Error::other);
    match Scenario::parse_bytes("fuzz.toml", text, &load) {
        // A result keeps the scenario's text, so the text must parse again.
        Ok(scenario) => assert!(Scenario::parse("again", &scenario.source, &load).is_ok()),
        Err(errors) => assert!(!errors.to_string().is_empty()),
    }
}
