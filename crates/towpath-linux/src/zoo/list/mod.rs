//! The situations, by layer.

pub(super) mod application;
mod configuration;
pub(super) mod connection;
mod healthy;
mod mixtures;
pub(super) mod path;
pub(super) mod variations;

use super::situation::Situation;

/// All situations: failures by layer, then the healthy networks.
pub fn situations() -> impl Iterator<Item = &'static Situation> + Send {
    let all = [
        application::SITUATIONS,
        configuration::SITUATIONS,
        connection::SITUATIONS,
        path::SITUATIONS,
        healthy::SITUATIONS,
    ];
    all.into_iter().flatten()
}

/// Variations of situations that no list shows.
pub fn variations() -> impl Iterator<Item = &'static Situation> + Send {
    variations::VARIATIONS.iter().chain(mixtures::MIXTURES)
}

/// The situation or variation of that name, or the one that is drawn for it.
pub fn find(name: &str) -> Option<&'static Situation> {
    let listed = situations().chain(variations()).find(|situation| situation.name == name);
    listed.or_else(|| super::random::drawn(name).map(|drawn| drawn.situation))
}

/// The usual endpoints of the client, and those of the server that announces its second address.
const SECOND: &[&str] = &["10.1.2.2 dev c2 subflow"];
const ANNOUNCED: &[&str] = &["203.0.113.2 signal"];
const NONE: &[&str] = &[];
