//! The body of the fuzz target `scenario`.

use std::io;

use super::Scenario;

/// A scenario of somebody else; what follows a NUL is the text of every file that it names.
pub fn scenario(data: &[u8]) {
    let mut parts = data.splitn(2, |byte| *byte == 0);
    let (text, named) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let load = |_: &str| String::from_utf8(named.to_vec()).map_err(io::Error::other);
    match Scenario::parse_bytes("fuzz.toml", text, &load) {
        // What was read once is read again: a run is made from the text that its result keeps.
        Ok(scenario) => assert!(Scenario::parse("again", &scenario.source, &load).is_ok()),
        Err(errors) => assert!(!errors.to_string().is_empty()),
    }
}
