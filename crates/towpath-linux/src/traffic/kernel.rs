//! Transfers over a socket of the kernel: one loop that sends and one that receives, each in its
//! own thread.

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use towpath_measure::metrics::DeliveryLog;
use towpath_measure::traffic::{SendAllowance, TransferPacer, TransferReceiver, TransferSender};
use towpath_net::{Instant, Rate};

use super::IO_POLL_INTERVAL;
use super::socket_stream::SocketStream;
use crate::run_clock::RunClock;
use crate::traffic_budget::TrafficDirection;

/// Bytes per read or write, as in `iperf3`.
pub(crate) const BLOCK_BYTES: usize = 128 * 1024;
/// Bytes per read or write of a fast stream, to save processor time per byte
/// (docs/performance.md).
///
/// On a slow stream, one call would block too long; on many streams, the buffers would need too
/// much memory.
const FAST_BLOCK_BYTES: usize = 512 * 1024;
/// Minimum bytes and mean rate of a fast stream.
const FAST_BYTES: u64 = 32 * 1024 * 1024;
const FAST_BYTES_PER_S: u64 = 125_000_000;

/// Memory for a millisecond with arrivals in the log, and for its text in the result, in bytes.
pub(crate) const SLOT_BYTES: u64 = 24 + 64;

/// Options of a transfer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TransferOptions {
    /// Bytes per read or write; with `None`, a default that depends on the stream's speed.
    pub(crate) block: Option<usize>,
    /// Maximum rate; unlimited if `None`.
    pub(crate) rate: Option<Rate>,
    /// True if the kernel discards received data after counting it (`MSG_TRUNC`).
    pub(crate) discard: bool,
}

impl TransferOptions {
    pub(crate) fn first_block(&self) -> usize {
        self.block.unwrap_or(BLOCK_BYTES)
    }

    /// Returns the larger block size if a stream that moved `bytes` in `span` is fast; else
    /// `None`.
    fn fast_block(&self, bytes: u64, span: Duration) -> Option<usize> {
        let fast = bytes >= FAST_BYTES
            && u128::from(bytes) * 1_000_000 >= u128::from(FAST_BYTES_PER_S) * span.as_micros();
        (fast && self.block.is_none() && self.rate.is_none()).then_some(FAST_BLOCK_BYTES)
    }
}

/// Returns true if a socket call only timed out or was interrupted, so that the caller checks the
/// clock.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

/// Sends what `sender` allows, then closes the stream; returns the bytes that the socket accepted.
pub(crate) fn send(
    pace: &RunClock,
    wire: &SocketStream,
    mut sender: TransferSender,
    options: TransferOptions,
) -> u64 {
    let began = pace.now();
    let mut data = vec![0x74; options.first_block()];
    let mut pacer = options.rate.map(|rate| TransferPacer::new(rate, began));
    while !pace.is_interrupted() {
        let now = pace.now();
        let SendAllowance::Send(most) = sender.allowance(now) else { break };
        if data.len() < FAST_BLOCK_BYTES
            && let Some(block) =
                options.fast_block(sender.sent_bytes(), now.saturating_since(began))
        {
            data.resize(block, 0x74);
        }
        let length = usize::try_from(most).unwrap_or(data.len()).min(data.len());
        if let Some(due) = pacer.as_ref().map(TransferPacer::due).filter(|due| *due > now) {
            pace.sleep_until(due.min(now + IO_POLL_INTERVAL));
            continue;
        }
        let granted = match pace.reserve(TrafficDirection::Outbound, length) {
            Ok(granted) => granted,
            Err(due) => {
                pace.sleep_until(due.min(now + IO_POLL_INTERVAL));
                continue;
            }
        };
        let sent = wire.send(data.get(..granted).unwrap_or(&data));
        pace.settle(TrafficDirection::Outbound, granted, *sent.as_ref().unwrap_or(&0));
        match sent {
            Ok(sent) => {
                sender.on_sent(now, sent as u64);
                if let Some(pacer) = &mut pacer {
                    pacer.on_sent(now, sent as u64);
                }
            }
            Err(error) if is_timeout(&error) => {}
            // The receiver also sees a reset, and its count is the result.
            Err(_) => break,
        }
    }
    wire.close(pace.clock());
    sender.sent_bytes()
}

/// Reads until the end of the data or `deadline`; the flow began at `start`.
pub(crate) fn receive(
    pace: &RunClock,
    wire: &SocketStream,
    (start, deadline): (Instant, Instant),
    received: &AtomicU64,
    options: TransferOptions,
) -> DeliveryLog {
    let mut meter = TransferReceiver::new(start);
    let began = pace.now();
    let mut buffer = vec![MaybeUninit::new(0); options.first_block()];
    // With MSG_TRUNC, TCP discards data without a copy (tcp(7)); Multipath TCP since Linux 5.15.
    let flags = if options.discard { libc::MSG_TRUNC } else { 0 };
    let mut pacer = options.rate.map(|rate| TransferPacer::new(rate, began));
    let mut now = began;
    while now < deadline && !pace.is_interrupted() {
        if let Some(pacer) = pacer.as_ref().filter(|pacer| pacer.due() > now) {
            pace.sleep_until(pacer.due().min(now + IO_POLL_INTERVAL));
            now = pace.now();
            continue;
        }
        let granted = match pace.reserve(TrafficDirection::Inbound, buffer.len()) {
            Ok(granted) => granted,
            Err(due) => {
                pace.sleep_until(due.min(now + IO_POLL_INTERVAL));
                now = pace.now();
                continue;
            }
        };
        let room = buffer.get_mut(..granted).unwrap_or_default();
        let read = wire.discard(room, flags);
        pace.settle(TrafficDirection::Inbound, granted, *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => {
                meter.on_end(pace.now());
                break;
            }
            Ok(length) => {
                // One clock read per socket read is enough.
                now = pace.now();
                if meter.on_bytes(now, length as u64) {
                    pace.add_memory(SLOT_BYTES);
                }
                let before = received.fetch_add(length as u64, Ordering::Relaxed);
                if buffer.len() < FAST_BLOCK_BYTES
                    && let Some(block) = options.fast_block(before, now.saturating_since(began))
                {
                    buffer.resize(block, MaybeUninit::new(0));
                }
                if let Some(pacer) = &mut pacer {
                    pacer.on_sent(now, length as u64);
                }
            }
            Err(error) if is_timeout(&error) => now = pace.now(),
            Err(_) => {
                meter.on_end(pace.now());
                break;
            }
        }
    }
    meter.finish(pace.now().min(deadline))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_fast_stream_without_orders_gets_larger_blocks() {
        let (much, second) = (FAST_BYTES_PER_S, Duration::from_secs(1));
        let free = TransferOptions::default();
        assert_eq!(free.fast_block(much, second), Some(FAST_BLOCK_BYTES));
        assert_eq!(free.fast_block(much - 1, second), None, "too slow");
        assert_eq!(free.fast_block(FAST_BYTES - 1, Duration::from_millis(1)), None, "too young");
        let ordered = TransferOptions { block: Some(1_000), ..free };
        assert_eq!((ordered.first_block(), ordered.fast_block(much, second)), (1_000, None));
        let slowed = TransferOptions { rate: Rate::from_bps(1_000_000), ..free };
        assert_eq!(slowed.fast_block(much, second), None);
    }
}
