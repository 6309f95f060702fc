//! The host under test.

use std::time::Duration;

use crate::script::{Call, FailureReason, HostKind, Setting};

/// A host behind a wire, with one socket (and a listening one).
pub trait HostUnderTest {
    /// Returns the kind of host.
    fn kind(&self) -> HostKind;

    /// Returns the precision with which its times can be compared.
    fn tolerance(&self) -> Tolerance;

    /// Returns the time since the start of the script.
    fn now(&self) -> Duration;

    /// Applies a setting that differs from the default; called before the first step.
    fn set(&mut self, setting: &Setting) -> Result<(), String>;

    /// Passes an IPv4 packet from the wire to the host.
    fn inject(&mut self, packet: &[u8]) -> Result<(), String>;

    /// Returns the next packet that the host sends, with its time; `None` if it sends none before
    /// `until`.
    fn next(&mut self, until: Duration) -> Result<Option<(Duration, Vec<u8>)>, String>;

    /// Makes a socket call without waiting; `data` are the bytes of a write.
    fn call(&mut self, call: Call, data: &[u8]) -> Result<CallResult, String>;
}

/// Permitted deviation of a packet's time from the script's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tolerance {
    /// Permitted time before the scripted one.
    pub early: Duration,
    /// Permitted delay when the script states a time.
    pub late: Duration,
    /// Permitted delay when the script states none, for immediate replies.
    pub at_once: Duration,
}

/// Result of a socket call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallResult {
    /// The call succeeded without data.
    Done,
    /// A write accepted this number of bytes.
    Taken(usize),
    /// A read returned these bytes.
    Data(Vec<u8>),
    /// A read reached the end of the stream.
    End,
    /// The call would block; a retry may succeed.
    Nothing,
    /// The connection failed, for this reason.
    Failed(FailureReason),
}
