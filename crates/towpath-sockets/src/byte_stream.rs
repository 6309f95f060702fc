//! A byte stream of a protocol that runs in one of our own threads.

use bytes::Bytes;
use towpath_net::Instant;

/// Byte stream, as an application inside a thread sees it.
pub trait ByteStream {
    /// Returns the next bytes: empty at the end, `None` when nothing has arrived.
    fn read(&mut self, now: Instant) -> Option<Bytes>;

    /// Takes as much of `data` as fits; returns the number of bytes.
    fn write(&mut self, now: Instant, data: &mut Bytes) -> usize;

    /// Ends the sending direction.
    fn shutdown(&mut self, now: Instant);
}
