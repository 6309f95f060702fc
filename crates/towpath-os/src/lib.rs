//! Clock, files, signals and threads; on Linux also system calls, namespaces and the sandbox.
//!
//! - [`clock`], [`interrupt`], [`batch`]: time, Ctrl-C, threads
//! - [`files`]: every file that is kept
//!
//! The others exist on Linux only:
//!
//! - `sandbox` and `namespace`: how a run's process gets its privileges, and one host
//! - `sysctl`: kernel settings; `filter`: the seccomp filter of `towpath exec`
//! - `queue`: a queue that `poll` can wait for
//!
//! `sys` holds the only `unsafe` of the project.

#![expect(clippy::disallowed_methods, reason = "this crate reads the real clock")]

pub mod batch;
pub mod clock;
pub mod files;
#[cfg(target_os = "linux")]
pub mod filter;
pub mod interrupt;
#[cfg(target_os = "linux")]
pub mod namespace;
#[cfg(target_os = "linux")]
pub mod queue;
#[cfg(target_os = "linux")]
pub mod sandbox;
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "system calls that no safe crate covers")]
pub mod sys;
#[cfg(target_os = "linux")]
pub mod sysctl;

pub use clock::Clock;
#[cfg(target_os = "linux")]
pub use namespace::Namespace;

/// Environment variable with the token of a collector, a secret that programs of a scenario must
/// not read.
pub const COLLECTOR_TOKEN: &str = "TOWPATH_TOKEN";
