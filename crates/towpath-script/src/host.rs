//! Who is tested.

use std::time::Duration;

use crate::script::{Call, FailureReason, HostKind, Setting};

/// A host behind a wire, with one socket (and a listening one).
pub trait HostUnderTest {
    /// Which kind of host.
    fn world(&self) -> HostKind;

    /// How exactly its times can be compared.
    fn tolerance(&self) -> Tolerance;

    /// Time since the start of the script.
    fn now(&self) -> Duration;

    /// Before the first step: what is not as by default.
    fn set(&mut self, setting: &Setting) -> Result<(), String>;

    /// Hands over an IPv4 packet from the wire.
    fn inject(&mut self, packet: &[u8]) -> Result<(), String>;

    /// The next packet that the host sends, with its time, or nothing once `until` has come.
    fn next(&mut self, until: Duration) -> Result<Option<(Duration, Vec<u8>)>, String>;

    /// The application does something; `data` is what it writes. Never waits.
    fn call(&mut self, call: Call, data: &[u8]) -> Result<CallResult, String>;
}

/// How far a packet's time may be from that of the script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tolerance {
    /// Too early.
    pub early: Duration,
    /// Too late, when the script states a time.
    pub late: Duration,
    /// Too late, when it states none: what is answered at once.
    pub at_once: Duration,
}

/// What becomes of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallResult {
    /// Done.
    Done,
    /// Of a write, so many bytes were taken.
    Taken(usize),
    /// Of a read, this was there.
    Data(Vec<u8>),
    /// Of a read: the end of the stream.
    End,
    /// Nothing now; it may come.
    Nothing,
    /// The connection failed.
    Failed(FailureReason),
}
