//! Failure cases, by layer.

pub(super) mod application;
mod configuration;
pub(super) mod connection;
mod healthy;
mod mixed;
pub(super) mod path;
mod reports;
pub(super) mod variations;

use super::case::FailureCase;

/// Returns all cases: failures by layer, then the healthy networks.
pub fn cases() -> impl Iterator<Item = &'static FailureCase> + Send {
    let lists = [
        application::CASES,
        configuration::CASES,
        connection::CASES,
        path::CASES,
        reports::CASES,
        healthy::CASES,
    ];
    lists.into_iter().flatten()
}

/// Returns variations of the cases, which no listing shows.
pub fn variations() -> impl Iterator<Item = &'static FailureCase> + Send {
    variations::VARIATION_CASES.iter().chain(mixed::MIXED_CASES)
}

/// Returns the case or variation of that name, or generates it for a name of a random case.
pub fn find(name: &str) -> Option<&'static FailureCase> {
    let listed = cases().chain(variations()).find(|case| case.name == name);
    listed.or_else(|| super::random::random_case(name).map(|random| random.case))
}

/// Usual endpoint of the client.
const CLIENT_ENDPOINT: &[&str] = &["10.1.2.2 dev c2 subflow"];
/// Endpoint of a server that announces its second address.
const SERVER_SIGNAL_ENDPOINT: &[&str] = &["203.0.113.2 signal"];
const NO_ENDPOINTS: &[&str] = &[];
