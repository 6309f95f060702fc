//! A byte stream of a protocol that runs in one of our own threads.

use bytes::Bytes;
use towpath_net::Instant;

/// A byte stream, as an application inside a thread sees it.
pub trait ByteStream {
    /// The next bytes; empty at the end, `None` when there is nothing now.
    fn read(&mut self, now: Instant) -> Option<Bytes>;

    /// Takes as much of `data` as fits; returns how much.
    fn write(&mut self, now: Instant, data: &mut Bytes) -> usize;

    /// Nothing more is written.
    fn shutdown(&mut self, now: Instant);
}
