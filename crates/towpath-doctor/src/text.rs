//! Numbers of the system as text.

use std::io;

use super::observation::ConnectOutcome;

/// Describes the result of an attempt.
pub(super) fn outcome(outcome: ConnectOutcome) -> String {
    match outcome {
        ConnectOutcome::Connected => "connected".to_owned(),
        ConnectOutcome::Refused => "refused".to_owned(),
        ConnectOutcome::Silent => "no answer".to_owned(),
        ConnectOutcome::Failed(errno) => error(errno),
    }
}

/// Describes an error number, in lower case and without the number.
pub(super) fn error(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

/// Formats a count: `1 subflow`, `2 subflows`.
pub(super) fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// Formats bytes with a decimal unit.
pub(super) fn bytes(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{} kB", bytes / 1_000),
        _ => format!("{}.{} MB", bytes / 1_000_000, bytes / 100_000 % 10),
    }
}
