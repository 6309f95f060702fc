//! Clock, files, signals and threads; on Linux also system calls, namespaces and the sandbox.
//!
//! - [`clock`], [`interrupt`], [`batch`], [`queue`]: time, Ctrl-C, threads
//! - [`files`]: every file that is kept
//! - [`sandbox`] and [`namespace`]: how a run's process gets its privileges, and one host
//! - [`sysctl`]: kernel settings; [`filter`]: the seccomp filter of `towpath exec`
//!
//! `sys` holds the only `unsafe` of the project.

#![expect(clippy::disallowed_methods, reason = "this crate reads the real clock")]

pub mod batch;
pub mod clock;
pub mod files;
pub mod filter;
pub mod interrupt;
pub mod namespace;
pub mod queue;
pub mod sandbox;
#[expect(unsafe_code, reason = "system calls that no safe crate covers")]
pub mod sys;
pub mod sysctl;

pub use clock::Clock;
pub use namespace::Namespace;
