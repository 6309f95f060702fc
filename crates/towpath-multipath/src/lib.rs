//! Scheduling and congestion control shared by Multipath TCP and Multipath QUIC, without any wire
//! format.
//!
//! A scheduler, a congestion control or an opportunistic policy is written once and works in both
//! protocols. Everything here is a pure function of its arguments and its own state: time comes
//! from the caller, and nothing is sent from here.
//!
//! Reading order: [`path`] (views of paths and connections), [`scheduler`] (the decision, and the
//! registry of all schedulers) and [`opportunistic`] (M1 and M2: reactions to a full receive
//! window). Then [`congestion`] (the controls, coupled or not, and their registry) and [`settings`]
//! (errors of settings given as text).

pub mod congestion;
pub mod opportunistic;
pub mod path;
pub mod scheduler;
pub mod settings;

pub use path::{ConnectionView, DataRange, PathId, PathSet, PathView, RecoveryPhase};
pub use settings::SettingError;
