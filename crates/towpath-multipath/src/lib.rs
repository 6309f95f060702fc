//! What Multipath TCP and Multipath QUIC share, without any wire format: which path carries the next
//! bytes, and how fast each path may send.
//!
//! A scheduler, a congestion control or an opportunistic policy is written once and works in both
//! protocols. Everything here is a pure function of its arguments and its own state: time comes from
//! the caller, nothing is sent from here.
//!
//! Reading order: [`path`] (what is known of a path and of a connection), [`scheduler`] (the
//! decision, and the registry of all schedulers), [`opportunistic`] (M1 and M2: what to do when the
//! receive window is full), [`congestion`] (the controls, coupled or not, and their registry),
//! [`settings`] (what is wrong with a text that should set something).

pub mod congestion;
pub mod opportunistic;
pub mod path;
pub mod scheduler;
pub mod settings;

pub use path::{ConnectionView, DataRange, PathId, PathSet, PathView, RecoveryPhase};
pub use settings::SettingError;
