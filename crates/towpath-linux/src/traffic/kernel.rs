//! Transfers over a socket of the kernel: one loop that sends and one that receives, in a thread
//! each.

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

use socket2::Socket;
use towpath_measure::metrics::DeliveryLog;
use towpath_measure::traffic::{Allowance, Pacer, Receiver, Sender};
use towpath_net::{Instant, Rate};

use super::PATIENCE;
use crate::pace::Pace;

/// Bytes written or read at once: what `iperf3` uses.
pub(crate) const BLOCK: usize = 128 * 1024;

/// How bytes are moved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manner {
    /// Bytes written or read at once.
    pub(crate) block: usize,
    /// No faster than this.
    pub(crate) rate: Option<Rate>,
    /// What arrives is counted by the kernel and not copied.
    pub(crate) discard: bool,
}

impl Default for Manner {
    fn default() -> Self {
        Self { block: BLOCK, rate: None, discard: false }
    }
}

/// Whether a call has only waited too long, so that it is time to look at the clock.
pub(crate) fn is_impatient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

/// Writes what `sender` allows, then ends the data; returns how many bytes the socket took.
pub(crate) fn send(pace: &Pace, socket: &Socket, mut sender: Sender, manner: Manner) -> u64 {
    let data = vec![0x74; manner.block];
    let mut pacer = manner.rate.map(|rate| Pacer::new(rate, pace.now()));
    while !pace.is_interrupted() {
        let now = pace.now();
        let Allowance::Send(most) = sender.allowance(now) else { break };
        let length = usize::try_from(most).unwrap_or(manner.block).min(manner.block);
        if let Some(due) = pacer.as_ref().map(Pacer::due).filter(|due| *due > now) {
            pace.sleep_until(due.min(now + PATIENCE));
            continue;
        }
        match socket.send(data.get(..length).unwrap_or(&data)) {
            Ok(sent) => {
                sender.on_sent(now, sent as u64);
                if let Some(pacer) = &mut pacer {
                    pacer.moved(now, sent as u64);
                }
            }
            Err(error) if is_impatient(&error) => {}
            // A reset shows at the receiver, whose count is the result.
            Err(_) => break,
        }
    }
    let _already_closed = socket.shutdown(std::net::Shutdown::Write);
    sender.sent_bytes()
}

/// Reads until the end of the data or `deadline`; a flow that began at `start`.
pub(crate) fn receive(
    pace: &Pace,
    socket: &Socket,
    (start, deadline): (Instant, Instant),
    received: &AtomicU64,
    manner: Manner,
) -> DeliveryLog {
    let mut meter = Receiver::new(start);
    let mut buffer = vec![MaybeUninit::new(0); manner.block];
    // TCP drops what is asked for and copies nothing (tcp(7)), Multipath TCP since Linux 5.15.
    let flags = if manner.discard { libc::MSG_TRUNC } else { 0 };
    let mut pacer = manner.rate.map(|rate| Pacer::new(rate, pace.now()));
    let mut now = pace.now();
    while now < deadline && !pace.is_interrupted() {
        if let Some(pacer) = pacer.as_ref().filter(|pacer| pacer.due() > now) {
            pace.sleep_until(pacer.due().min(now + PATIENCE));
            now = pace.now();
            continue;
        }
        match socket.recv_with_flags(&mut buffer, flags) {
            Ok(0) => {
                meter.on_end(pace.now());
                break;
            }
            Ok(length) => {
                // The only look at the clock for each read.
                now = pace.now();
                meter.on_bytes(now, length as u64);
                received.fetch_add(length as u64, Ordering::Relaxed);
                if let Some(pacer) = &mut pacer {
                    pacer.moved(now, length as u64);
                }
            }
            Err(error) if is_impatient(&error) => now = pace.now(),
            Err(_) => {
                meter.on_end(pace.now());
                break;
            }
        }
    }
    meter.finish(pace.now().min(deadline))
}
