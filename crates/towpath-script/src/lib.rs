//! Scripts of packets and socket calls: the behaviour required of a TCP or Multipath TCP host,
//! packet by packet.
//!
//! One file of `specs/scripts/` is one script. The script plays the peer. The host implements
//! [`HostUnderTest`]: our own stack in virtual time ([`OwnStack`]), or a kernel in real time, which
//! `towpath-emu` drives in its tests. [docs/guides/packet-scripts.md] explains the language.
//!
//! Reading order: [`script`] (a script as data), [`parse`](mod@parse) (from text to data) and
//! [`peer`] (state, packets and comparisons of the peer). Then [`host`] (the host under test),
//! [`run`](mod@run) (step by step) and [`library`] (all files).
//!
//! [docs/guides/packet-scripts.md]: https://github.com/towpath/towpath/blob/main/docs/guides/packet-scripts.md

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "patterns and packets are looked through for one option among many"
)]

pub mod host;
pub mod library;
pub mod own_stack;
pub mod parse;
pub mod peer;
pub mod run;
pub mod script;

pub use host::{CallResult, HostUnderTest, Tolerance};
pub use own_stack::OwnStack;
pub use parse::parse;
pub use run::{Failure, run};
pub use script::{HostKind, Script};
