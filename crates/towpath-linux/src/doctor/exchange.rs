//! Sends some data to a server that gives it back, and compares.

use std::io::{self, Read, Write};
use std::time::Duration;

use socket2::Socket;
use towpath_net::Instant;

use super::observation::Exchange;
use crate::clock::Clock;

/// Bytes read or written at once.
const BLOCK: usize = 16 * 1024;

/// An exchange that goes on.
#[derive(Debug)]
pub(super) struct Exchanging {
    clock: Clock,
    began: Instant,
    heard: Instant,
    done: Exchange,
    room: Vec<u8>,
    ended: bool,
}

/// The byte at a place: no short piece repeats itself, so that what is moved shows as well.
const fn byte(place: u64) -> u8 {
    (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

impl Exchanging {
    pub(super) fn new(clock: Clock) -> Self {
        let now = clock.now();
        let (done, room) = (Exchange::default(), vec![0; BLOCK]);
        Self { clock, began: now, heard: now, done, room, ended: false }
    }

    /// Moves what can be moved without waiting, up to `limit` bytes in all.
    pub(super) fn step(&mut self, socket: &Socket, limit: u64) {
        self.write(socket, limit);
        self.read(socket);
    }

    /// Whether everything that was sent came back.
    pub(super) fn is_even(&self) -> bool {
        self.done.sent == self.done.returned
    }

    /// Bytes that were sent.
    pub(super) fn sent(&self) -> u64 {
        self.done.sent
    }

    /// Whether the connection has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    pub(super) fn result(&self) -> Exchange {
        let now = self.clock.now();
        let pause = now.saturating_since(self.heard).as_millis() as u64;
        let waiting = if self.is_even() { 0 } else { pause };
        Exchange {
            took_ms: now.saturating_since(self.began).as_millis() as u64,
            longest_pause_ms: self.done.longest_pause_ms.max(waiting),
            ..self.done
        }
    }

    fn write(&mut self, mut socket: &Socket, limit: u64) {
        while self.done.sent < limit && !self.ended {
            let length = (limit - self.done.sent).min(BLOCK as u64);
            let place = self.done.sent;
            let data: Vec<u8> = (0..length).map(|offset| byte(place + offset)).collect();
            if self.is_even() {
                self.heard = self.clock.now();
            }
            match socket.write(&data) {
                Ok(0) => return,
                Ok(written) => self.done.sent += written as u64,
                Err(error) => return self.note(&error),
            }
        }
    }

    fn read(&mut self, mut socket: &Socket) {
        while !self.ended {
            match socket.read(&mut self.room) {
                Ok(0) => self.ended = true,
                Ok(length) => {
                    let place = self.done.returned;
                    let came = self.room.get(..length).unwrap_or_default();
                    let expected = (place..).map(byte);
                    let wrong = came.iter().zip(expected).position(|(came, sent)| *came != sent);
                    if let Some(wrong) = wrong {
                        self.done.changed_at.get_or_insert(place + wrong as u64);
                    }
                    self.done.returned += length as u64;
                    let now = self.clock.now();
                    let pause = now.saturating_since(self.heard).as_millis() as u64;
                    self.done.longest_pause_ms = self.done.longest_pause_ms.max(pause);
                    self.heard = now;
                }
                Err(error) => return self.note(&error),
            }
        }
    }

    fn note(&mut self, error: &io::Error) {
        self.ended |= !crate::traffic::kernel::is_impatient(error);
    }
}

/// Sends `length` bytes over a connection of its own and waits until they are back.
pub(super) fn comes_back(
    exchanging: &mut Exchanging,
    socket: &Socket,
    length: u64,
    patience: Duration,
) -> bool {
    let clock = exchanging.clock;
    let deadline = clock.now() + patience;
    let limit = exchanging.sent() + length;
    loop {
        exchanging.step(socket, limit);
        if exchanging.sent() == limit && exchanging.is_even() {
            return true;
        }
        let left = deadline.saturating_since(clock.now());
        if exchanging.has_ended() || left.is_zero() {
            return false;
        }
        let writing = exchanging.sent() < limit;
        let _looked_at_again = super::attempt::wait(socket, writing, left);
    }
}
