//! Echo test: sends data to a server that returns it, and compares.

use std::io::{self, Read, Write};
use std::time::Duration;

use socket2::Socket;
use towpath_net::Instant;
use towpath_os::clock::Clock;

use super::observation::EchoResult;

/// Bytes read or written at once.
const BLOCK_BYTES: usize = 16 * 1024;

/// An echo test in progress.
#[derive(Debug)]
pub(super) struct EchoTest {
    clock: Clock,
    started: Instant,
    last_received: Instant,
    progress: EchoResult,
    buffer: Vec<u8>,
    ended: bool,
    /// Offset of the next expected byte. Some servers omit data that they cannot send at once.
    next_offset: u64,
}

/// Matching bytes in a row that suffice to find their offset in the sent data.
const MATCH_BYTES: usize = 16;

/// Returns the byte that is sent at an offset (`SplitMix64`). No sequence of bytes repeats, so that
/// omitted data are recognised.
const fn pattern_byte(offset: u64) -> u8 {
    let mixed = offset.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 56) as u8
}

/// Returns the length of the prefix of `received` that equals the sent data from `offset` on.
fn match_len(received: &[u8], offset: u64) -> usize {
    received
        .iter()
        .zip(offset..)
        .take_while(|(value, offset)| **value == pattern_byte(*offset))
        .count()
}

/// Returns the offset of a run of bytes in the sent data.
fn find_offset(run: &[u8], mut offsets: std::ops::Range<u64>) -> Option<u64> {
    offsets.find(|offset| match_len(run, *offset) == run.len())
}

impl EchoTest {
    pub(super) fn new(clock: Clock) -> Self {
        let now = clock.now();
        let (progress, buffer) = (EchoResult::default(), vec![0; BLOCK_BYTES]);
        Self {
            clock,
            started: now,
            last_received: now,
            progress,
            buffer,
            ended: false,
            next_offset: 0,
        }
    }

    /// Reads and writes without waiting, up to `limit` bytes in all.
    pub(super) fn step(&mut self, socket: &Socket, limit: u64) {
        self.write(socket, limit);
        self.read(socket);
    }

    /// Returns true if all sent data were echoed.
    pub(super) fn all_echoed(&self) -> bool {
        self.progress.sent == self.progress.returned
    }

    /// Returns the bytes sent so far.
    pub(super) fn sent(&self) -> u64 {
        self.progress.sent
    }

    /// Returns true if the connection has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    pub(super) fn result(&self) -> EchoResult {
        let now = self.clock.now();
        let pause = now.saturating_since(self.last_received).as_millis() as u64;
        let current_pause = if self.all_echoed() { 0 } else { pause };
        EchoResult {
            took_ms: now.saturating_since(self.started).as_millis() as u64,
            longest_pause_ms: self.progress.longest_pause_ms.max(current_pause),
            ..self.progress
        }
    }

    fn write(&mut self, mut socket: &Socket, limit: u64) {
        while self.progress.sent < limit && !self.ended {
            let length = (limit - self.progress.sent).min(BLOCK_BYTES as u64);
            let start = self.progress.sent;
            let data: Vec<u8> = (0..length).map(|offset| pattern_byte(start + offset)).collect();
            // The idle time before new data does not count as a pause of the server.
            if self.all_echoed() {
                self.last_received = self.clock.now();
            }
            match socket.write(&data) {
                Ok(0) => return,
                Ok(written) => self.progress.sent += written as u64,
                Err(error) => return self.on_error(&error),
            }
        }
    }

    fn read(&mut self, mut socket: &Socket) {
        while !self.ended {
            match socket.read(&mut self.buffer) {
                Ok(0) => self.ended = true,
                Ok(length) => {
                    self.compare(length);
                    self.progress.returned += length as u64;
                    let now = self.clock.now();
                    let pause = now.saturating_since(self.last_received).as_millis() as u64;
                    self.progress.longest_pause_ms = self.progress.longest_pause_ms.max(pause);
                    self.last_received = now;
                }
                Err(error) => return self.on_error(&error),
            }
        }
    }

    /// Compares the received data in the buffer with the sent data.
    fn compare(&mut self, length: usize) {
        let mut received = self.buffer.get(..length).unwrap_or_default();
        loop {
            let matching = match_len(received, self.next_offset);
            self.next_offset += matching as u64;
            received = received.get(matching..).unwrap_or_default();
            let (Some(run), Some(shifted_run)) =
                (received.get(..MATCH_BYTES), received.get(1..=MATCH_BYTES))
            else {
                // Too short to classify; the next data decide.
                self.next_offset += received.len() as u64;
                return;
            };
            if match_len(shifted_run, self.next_offset + 1) == MATCH_BYTES {
                // A single byte was changed.
                self.progress.changed_at.get_or_insert(self.next_offset);
                self.next_offset += 1;
                received = received.get(1..).unwrap_or_default();
            } else if let Some(offset) = find_offset(run, self.next_offset..self.progress.sent) {
                self.next_offset = offset; // the server omitted the data before
            } else {
                self.progress.changed_at.get_or_insert(self.next_offset);
                self.next_offset += received.len() as u64;
                return;
            }
        }
    }

    fn on_error(&mut self, error: &io::Error) {
        self.ended |= !towpath_sockets::stream::kernel::is_timeout(error);
    }
}

/// Sends `length` bytes over a connection; returns true if all were echoed before the timeout.
pub(super) fn await_echo(
    echo_test: &mut EchoTest,
    socket: &Socket,
    length: u64,
    timeout: Duration,
) -> bool {
    let clock = echo_test.clock;
    let deadline = clock.now() + timeout;
    let limit = echo_test.sent() + length;
    loop {
        echo_test.step(socket, limit);
        if echo_test.sent() == limit && echo_test.all_echoed() {
            return true;
        }
        let remaining = deadline.saturating_since(clock.now());
        if echo_test.has_ended() || remaining.is_zero() {
            return false;
        }
        let wants_write = echo_test.sent() < limit;
        let _ = super::attempt::wait_until_ready(socket, wants_write, remaining); // the loop checks again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the offset of the first change in `received`, after 100,000 bytes were sent.
    fn first_change(received: &[u8]) -> Option<u64> {
        let mut echo_test = EchoTest::new(Clock::start());
        echo_test.progress.sent = 100_000;
        for chunk in received.chunks(1_000) {
            echo_test.buffer = chunk.to_vec();
            echo_test.compare(chunk.len());
        }
        echo_test.progress.changed_at
    }

    fn sent_data(range: std::ops::Range<u64>) -> Vec<u8> {
        range.map(pattern_byte).collect()
    }

    #[test]
    fn an_identical_echo_is_unchanged() {
        assert_eq!(first_change(&sent_data(0..100_000)), None);
    }

    #[test]
    fn data_omitted_by_the_server_is_not_reported_as_changed() {
        let received =
            [sent_data(0..30_000), sent_data(44_321..60_500), sent_data(70_000..99_000)].concat();
        assert_eq!(first_change(&received), None);
    }

    #[test]
    fn a_replaced_byte_and_an_insertion_are_detected() {
        let mut received = sent_data(0..50_000);
        received[12_345] ^= 0x20;
        assert_eq!(first_change(&received), Some(12_345));
        let received = [&sent_data(0..5_500)[..], &[7; 40], &sent_data(5_500..9_000)].concat();
        assert_eq!(first_change(&received), Some(5_500));
    }
}
