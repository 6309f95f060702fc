//! Echo test: sends data to a server that returns it, and compares.

use std::io::{self, Read, Write};
use std::time::Duration;

use socket2::Socket;
use towpath_net::Instant;

use super::observation::EchoResult;
use crate::clock::Clock;

/// Bytes read or written at once.
const BLOCK_BYTES: usize = 16 * 1024;

/// An echo test in progress.
#[derive(Debug)]
pub(super) struct EchoTest {
    clock: Clock,
    began: Instant,
    last_received: Instant,
    done: EchoResult,
    buffer: Vec<u8>,
    ended: bool,
    /// Offset of the next expected byte. Some servers omit data that they cannot send at once.
    place: u64,
}

/// Matching bytes in a row that identify their offset.
const MATCH_BYTES: usize = 16;

/// Returns the byte at an offset (`SplitMix64`). No run repeats, so that omitted data are
/// recognised.
const fn byte(place: u64) -> u8 {
    let mixed = place.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 56) as u8
}

/// Returns the length of the prefix of `came` that matches the data from `place` on.
fn agreement(came: &[u8], place: u64) -> usize {
    came.iter().zip(place..).take_while(|(came, place)| **came == byte(*place)).count()
}

/// Returns the offset of a run of bytes in the sent data.
fn find(run: &[u8], mut places: std::ops::Range<u64>) -> Option<u64> {
    places.find(|place| agreement(run, *place) == run.len())
}

impl EchoTest {
    pub(super) fn new(clock: Clock) -> Self {
        let now = clock.now();
        let (done, buffer) = (EchoResult::default(), vec![0; BLOCK_BYTES]);
        Self { clock, began: now, last_received: now, done, buffer, ended: false, place: 0 }
    }

    /// Reads and writes without waiting, up to `limit` bytes in all.
    pub(super) fn step(&mut self, socket: &Socket, limit: u64) {
        self.write(socket, limit);
        self.read(socket);
    }

    /// Returns true if all sent data were echoed.
    pub(super) fn all_echoed(&self) -> bool {
        self.done.sent == self.done.returned
    }

    /// Returns the bytes sent so far.
    pub(super) fn sent(&self) -> u64 {
        self.done.sent
    }

    /// Returns true if the connection has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    pub(super) fn result(&self) -> EchoResult {
        let now = self.clock.now();
        let pause = now.saturating_since(self.last_received).as_millis() as u64;
        let waiting = if self.all_echoed() { 0 } else { pause };
        EchoResult {
            took_ms: now.saturating_since(self.began).as_millis() as u64,
            longest_pause_ms: self.done.longest_pause_ms.max(waiting),
            ..self.done
        }
    }

    fn write(&mut self, mut socket: &Socket, limit: u64) {
        while self.done.sent < limit && !self.ended {
            let length = (limit - self.done.sent).min(BLOCK_BYTES as u64);
            let place = self.done.sent;
            let data: Vec<u8> = (0..length).map(|offset| byte(place + offset)).collect();
            if self.all_echoed() {
                self.last_received = self.clock.now();
            }
            match socket.write(&data) {
                Ok(0) => return,
                Ok(written) => self.done.sent += written as u64,
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
                    self.done.returned += length as u64;
                    let now = self.clock.now();
                    let pause = now.saturating_since(self.last_received).as_millis() as u64;
                    self.done.longest_pause_ms = self.done.longest_pause_ms.max(pause);
                    self.last_received = now;
                }
                Err(error) => return self.on_error(&error),
            }
        }
    }

    /// Compares the received data in the buffer with the sent data.
    fn compare(&mut self, length: usize) {
        let mut came = self.buffer.get(..length).unwrap_or_default();
        loop {
            let same = agreement(came, self.place);
            self.place += same as u64;
            came = came.get(same..).unwrap_or_default();
            let (Some(run), Some(after)) = (came.get(..MATCH_BYTES), came.get(1..=MATCH_BYTES))
            else {
                // Too short to classify; the next data decide.
                self.place += came.len() as u64;
                return;
            };
            if agreement(after, self.place + 1) == MATCH_BYTES {
                self.done.changed_at.get_or_insert(self.place);
                self.place += 1;
                came = came.get(1..).unwrap_or_default();
            } else if let Some(place) = find(run, self.place..self.done.sent) {
                self.place = place;
            } else {
                self.done.changed_at.get_or_insert(self.place);
                self.place += came.len() as u64;
                return;
            }
        }
    }

    fn on_error(&mut self, error: &io::Error) {
        self.ended |= !crate::traffic::kernel::is_timeout(error);
    }
}

/// Sends `length` bytes over a connection and waits for their echo.
pub(super) fn await_echo(
    exchanging: &mut EchoTest,
    socket: &Socket,
    length: u64,
    timeout: Duration,
) -> bool {
    let clock = exchanging.clock;
    let deadline = clock.now() + timeout;
    let limit = exchanging.sent() + length;
    loop {
        exchanging.step(socket, limit);
        if exchanging.sent() == limit && exchanging.all_echoed() {
            return true;
        }
        let left = deadline.saturating_since(clock.now());
        if exchanging.has_ended() || left.is_zero() {
            return false;
        }
        let writing = exchanging.sent() < limit;
        let _ = super::attempt::wait(socket, writing, left); // the loop checks again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result for `came`, after 100,000 bytes were sent.
    fn changed(came: &[u8]) -> Option<u64> {
        let mut exchanging = EchoTest::new(Clock::start());
        exchanging.done.sent = 100_000;
        for piece in came.chunks(1_000) {
            exchanging.buffer = piece.to_vec();
            exchanging.compare(piece.len());
        }
        exchanging.done.changed_at
    }

    fn sent(places: std::ops::Range<u64>) -> Vec<u8> {
        places.map(byte).collect()
    }

    #[test]
    fn an_identical_echo_is_unchanged() {
        assert_eq!(changed(&sent(0..100_000)), None);
    }

    #[test]
    fn data_omitted_by_the_server_is_not_reported_as_changed() {
        let came = [sent(0..30_000), sent(44_321..60_500), sent(70_000..99_000)].concat();
        assert_eq!(changed(&came), None);
    }

    #[test]
    fn a_replaced_byte_and_an_insertion_are_detected() {
        let mut came = sent(0..50_000);
        came[12_345] ^= 0x20;
        assert_eq!(changed(&came), Some(12_345));
        let came = [&sent(0..5_500)[..], &[7; 40], &sent(5_500..9_000)].concat();
        assert_eq!(changed(&came), Some(5_500));
    }
}
