//! Streams of a connection: bidirectional ones, opened by the end that opened the connection.

use bytes::Bytes;
use noq_proto::{Dir, FinishError, ReadError, ReadableError, Side, WriteError};
use towpath_net::Instant;

use crate::connection::Connection;
use crate::error::StreamError;
use crate::status::StreamId;

/// Largest chunk that one call reads.
const MAX_READ_BYTES: usize = 64 * 1_024;

impl Connection {
    /// Opens a stream; `None` when the peer's limit is reached.
    pub(crate) fn open_stream(&mut self) -> Option<StreamId> {
        self.inner.streams().open(Dir::Bi).map(|id| StreamId(id.index()))
    }

    /// Returns the next stream that the peer opened.
    pub(crate) fn accept_stream(&mut self) -> Option<StreamId> {
        self.inner.streams().accept(Dir::Bi).map(|id| StreamId(id.index()))
    }

    /// Writes as much of `data` as fits; returns its length.
    pub(crate) fn write(
        &mut self,
        now: Instant,
        stream: StreamId,
        data: &mut Bytes,
    ) -> Result<usize, StreamError> {
        if self.is_closed() {
            return Err(StreamError::NoConnection);
        }
        let mut accepted_bytes = 0;
        // Continue until blocked: the library reports new room only after a failed write.
        while !data.is_empty() {
            let mut chunks = [std::mem::take(data)];
            let mut rest = chunks.as_mut_slice();
            let result = self.inner.send_stream(library_id(stream)).write_chunks(&mut rest);
            let [remaining] = chunks;
            *data = remaining;
            match result {
                Ok(bytes) => accepted_bytes += bytes,
                Err(WriteError::Blocked) => break,
                Err(WriteError::Stopped(_)) => return Err(StreamError::Stopped),
                Err(WriteError::ClosedStream) => return Err(StreamError::Closed),
            }
        }
        if accepted_bytes > 0 {
            self.last_writer = stream.0;
            self.record_activity(now);
        }
        Ok(accepted_bytes)
    }

    /// Ends the stream: no more data will be written.
    pub(crate) fn finish(&mut self, now: Instant, stream: StreamId) -> Result<(), StreamError> {
        let result = self.inner.send_stream(library_id(stream)).finish();
        self.record_activity(now);
        result.map_err(|error| match error {
            FinishError::Stopped(_) => StreamError::Stopped,
            FinishError::ClosedStream => StreamError::Closed,
        })
    }

    /// Returns the next bytes, at most `max_bytes`; empty at the end of the data, `None` when
    /// nothing is readable now.
    pub(crate) fn read(
        &mut self,
        now: Instant,
        stream: StreamId,
        max_bytes: usize,
    ) -> Result<Option<Bytes>, StreamError> {
        let mut receiver = self.inner.recv_stream(library_id(stream));
        let mut chunks = receiver.read(true).map_err(|error| match error {
            ReadableError::ClosedStream | ReadableError::IllegalOrderedRead => StreamError::Closed,
        })?;
        let next_chunk = chunks.next(max_bytes.min(MAX_READ_BYTES));
        // Polling the connection, which follows anyway, sends any flow-control credit.
        let _ = chunks.finalize();
        match next_chunk {
            Ok(Some(chunk)) => {
                self.record_activity(now);
                Ok(Some(chunk.bytes))
            }
            Ok(None) => Ok(Some(Bytes::new())),
            Err(ReadError::Blocked) => Ok(None),
            Err(ReadError::Reset(_)) => Err(StreamError::Reset),
        }
    }

    /// Records application activity, which starts the monitoring of the paths.
    fn record_activity(&mut self, now: Instant) {
        self.last_activity_at = now;
        if self.next_path_check.is_none()
            && self.established
            && self.inner.is_multipath_negotiated()
        {
            self.next_path_check = Some(now);
        }
    }
}

fn library_id(stream: StreamId) -> noq_proto::StreamId {
    noq_proto::StreamId::new(Side::Client, Dir::Bi, stream.0)
}
