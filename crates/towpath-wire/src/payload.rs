//! Payload by reference: slices of buffers that several packets may share.

use bytes::{Buf, Bytes, BytesMut};

/// Data of a packet: one slice, rarely several. Cloning and slicing copy no data.
#[derive(Debug, Clone, Default)]
pub struct Payload {
    /// First slice; empty only if `more` is.
    first: Bytes,
    /// Slices after the first; none is empty.
    more: Vec<Bytes>,
    len: usize,
}

impl Payload {
    /// Payload without any bytes.
    pub const EMPTY: Self = Self { first: Bytes::new(), more: Vec::new(), len: 0 };

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the payload has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the slices, in order; none is empty.
    pub fn chunks(&self) -> impl Iterator<Item = &Bytes> {
        std::iter::once(&self.first).chain(&self.more).filter(|chunk| !chunk.is_empty())
    }

    /// Returns the slices as [`Payload::chunks`] does, without counting new references to them.
    pub fn into_chunks(self) -> impl Iterator<Item = Bytes> {
        std::iter::once(self.first).chain(self.more).filter(|chunk| !chunk.is_empty())
    }

    /// Appends a slice without copying.
    pub fn push(&mut self, chunk: Bytes) {
        self.len += chunk.len();
        if self.first.is_empty() {
            self.first = chunk;
        } else if !chunk.is_empty() {
            self.more.push(chunk);
        }
    }

    /// Drops the first `count` bytes (all, if there are fewer).
    pub fn advance(&mut self, count: usize) {
        if self.more.is_empty() {
            self.first.advance(count.min(self.len));
            self.len = self.first.len();
        } else {
            *self = self.slice(count, self.len);
        }
    }

    /// Splits the payload, and returns the part after the first `count` bytes.
    #[must_use]
    pub fn split_off(&mut self, count: usize) -> Self {
        if count >= self.len {
            return Self::EMPTY;
        }
        let rest = self.slice(count, self.len);
        self.truncate(count);
        rest
    }

    /// Keeps the first `count` bytes.
    pub fn truncate(&mut self, count: usize) {
        if self.more.is_empty() {
            self.first.truncate(count);
            self.len = self.first.len();
        } else {
            *self = self.slice(0, count);
        }
    }

    /// Returns the bytes from `start` to before `end`, as far as they exist.
    #[must_use]
    pub fn slice(&self, start: usize, end: usize) -> Self {
        if self.more.is_empty() {
            let end = end.min(self.len);
            return self.first.slice(start.min(end)..end).into();
        }
        let mut out = Self::EMPTY;
        let mut chunk_offset = 0;
        for chunk in self.chunks() {
            let chunk_start = start.saturating_sub(chunk_offset).min(chunk.len());
            let chunk_end = end.saturating_sub(chunk_offset).min(chunk.len());
            if chunk_start < chunk_end {
                out.push(chunk.slice(chunk_start..chunk_end));
            }
            chunk_offset += chunk.len();
        }
        out
    }

    /// Returns all bytes in one piece (copied only if there are several slices).
    pub fn to_bytes(&self) -> Bytes {
        if self.more.is_empty() {
            return self.first.clone();
        }
        self.chunks()
            .fold(Vec::with_capacity(self.len), |mut joined, chunk| {
                joined.extend_from_slice(chunk);
                joined
            })
            .into()
    }

    /// Inverts the bits of `mask` in the byte at `offset`, in an own copy of its slice.
    pub(crate) fn flip(&mut self, offset: usize, mask: u8) {
        let mut offset = offset;
        for chunk in std::iter::once(&mut self.first).chain(&mut self.more) {
            if offset < chunk.len() {
                let mut copy = BytesMut::from(&**chunk);
                if let Some(byte) = copy.get_mut(offset) {
                    *byte ^= mask;
                }
                *chunk = copy.freeze();
                return;
            }
            offset -= chunk.len();
        }
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self { len: bytes.len(), first: bytes, more: Vec::new() }
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        if self.more.is_empty() && other.more.is_empty() {
            return self.first == other.first;
        }
        self.len == other.len
            && self.chunks().flat_map(|c| c.iter()).eq(other.chunks().flat_map(|c| c.iter()))
    }
}

impl Eq for Payload {}
