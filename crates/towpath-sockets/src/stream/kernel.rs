//! Transfers over a socket of the kernel: one loop that sends and one that receives, each in its
//! own thread.

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use towpath_net::{Instant, Rate};
use towpath_result::metrics::DeliveryLog;
use towpath_run::traffic::{SendAllowance, TransferPacer, TransferReceiver, TransferSender};

use super::IO_POLL_INTERVAL;
use super::socket_stream::SocketStream;
use crate::run_clock::RunClock;
use crate::traffic_budget::TrafficDirection;

/// Bytes per read or write, as in `iperf3`.
pub const BLOCK_BYTES: usize = 128 * 1024;
/// Bytes per read or write of a fast stream, to save processor time per byte
/// (docs/lab/performance.md).
///
/// On a slow stream, one call would block too long; on many streams, the buffers would need too
/// much memory.
const FAST_BLOCK_BYTES: usize = 512 * 1024;
/// Minimum bytes and mean rate of a fast stream.
const FAST_BYTES: u64 = 32 * 1024 * 1024;
const FAST_BYTES_PER_S: u64 = 125_000_000;

/// Memory for a millisecond with arrivals, in bytes: twice its entry in the log, which grows by
/// doubling, and its text in the result.
pub const SLOT_BYTES: u64 = 2 * 24 + 72;

/// Options of a transfer.
#[derive(Debug, Clone, Copy, Default)]
pub struct TransferOptions {
    /// Bytes per read or write; with `None`, a default that depends on the stream's speed.
    pub block: Option<usize>,
    /// Maximum rate; unlimited if `None`.
    pub rate: Option<Rate>,
    /// True if the kernel discards received data after counting it (`MSG_TRUNC`).
    pub discard: bool,
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
pub fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

/// Sends what `sender` allows, then closes the stream; returns the bytes that the socket accepted.
pub fn send(
    run_clock: &RunClock,
    stream: &SocketStream,
    mut sender: TransferSender,
    options: TransferOptions,
) -> u64 {
    let start_time = run_clock.now();
    let mut data = vec![0x74; options.first_block()];
    let mut pacer = options.rate.map(|rate| TransferPacer::new(rate, start_time));
    while !run_clock.is_interrupted() {
        let now = run_clock.now();
        let SendAllowance::Send(max_bytes) = sender.allowance(now) else { break };
        if data.len() < FAST_BLOCK_BYTES
            && let Some(block) =
                options.fast_block(sender.sent_bytes(), now.saturating_since(start_time))
            && run_clock.try_add_buffer(block - data.len())
        {
            data.resize(block, 0x74);
        }
        let length = usize::try_from(max_bytes).unwrap_or(data.len()).min(data.len());
        if let Some(due) = pacer.as_ref().map(TransferPacer::due).filter(|due| *due > now) {
            run_clock.sleep_until(due.min(now + IO_POLL_INTERVAL));
            continue;
        }
        let granted = match run_clock.reserve(TrafficDirection::Outbound, length) {
            Ok(granted) => granted,
            Err(due) => {
                run_clock.sleep_until(due.min(now + IO_POLL_INTERVAL));
                continue;
            }
        };
        let sent = stream.send(data.get(..granted).unwrap_or(&data));
        run_clock.settle(TrafficDirection::Outbound, granted, *sent.as_ref().unwrap_or(&0));
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
    stream.close(run_clock.clock());
    sender.sent_bytes()
}

/// Reads until the end of the data or `deadline`; the flow began at `start`.
pub fn receive(
    run_clock: &RunClock,
    stream: &SocketStream,
    (start, deadline): (Instant, Instant),
    received: &AtomicU64,
    options: TransferOptions,
) -> DeliveryLog {
    let mut meter = TransferReceiver::new(start);
    let start_time = run_clock.now();
    let mut buffer = vec![MaybeUninit::new(0); options.first_block()];
    // With MSG_TRUNC, TCP discards data without a copy (tcp(7)); Multipath TCP since Linux 5.15.
    let flags = if options.discard { libc::MSG_TRUNC } else { 0 };
    let mut pacer = options.rate.map(|rate| TransferPacer::new(rate, start_time));
    let mut now = start_time;
    while now < deadline && !run_clock.is_interrupted() {
        if let Some(pacer) = pacer.as_ref().filter(|pacer| pacer.due() > now) {
            run_clock.sleep_until(pacer.due().min(now + IO_POLL_INTERVAL));
            now = run_clock.now();
            continue;
        }
        let granted = match run_clock.reserve(TrafficDirection::Inbound, buffer.len()) {
            Ok(granted) => granted,
            Err(due) => {
                run_clock.sleep_until(due.min(now + IO_POLL_INTERVAL));
                now = run_clock.now();
                continue;
            }
        };
        let target = buffer.get_mut(..granted).unwrap_or_default();
        let read = stream.discard(target, flags);
        run_clock.settle(TrafficDirection::Inbound, granted, *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => {
                meter.on_end(run_clock.now());
                break;
            }
            Ok(length) => {
                // One clock read per socket read is enough.
                now = run_clock.now();
                if meter.on_bytes(now, length as u64) {
                    run_clock.add_memory(SLOT_BYTES);
                }
                let previous_total = received.fetch_add(length as u64, Ordering::Relaxed);
                if buffer.len() < FAST_BLOCK_BYTES
                    && let Some(block) =
                        options.fast_block(previous_total, now.saturating_since(start_time))
                    && run_clock.try_add_buffer(block - buffer.len())
                {
                    buffer.resize(block, MaybeUninit::new(0));
                }
                if let Some(pacer) = &mut pacer {
                    pacer.on_sent(now, length as u64);
                }
            }
            Err(error) if is_timeout(&error) => now = run_clock.now(),
            Err(_) => {
                meter.on_end(run_clock.now());
                break;
            }
        }
    }
    meter.finish(run_clock.now().min(deadline))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_fast_stream_with_default_options_gets_larger_blocks() {
        let (fast_bytes, second) = (FAST_BYTES_PER_S, Duration::from_secs(1));
        let default_options = TransferOptions::default();
        assert_eq!(default_options.fast_block(fast_bytes, second), Some(FAST_BLOCK_BYTES));
        assert_eq!(default_options.fast_block(fast_bytes - 1, second), None, "too slow");
        assert_eq!(
            default_options.fast_block(FAST_BYTES - 1, Duration::from_millis(1)),
            None,
            "too young"
        );
        let fixed_block = TransferOptions { block: Some(1_000), ..default_options };
        assert_eq!(
            (fixed_block.first_block(), fixed_block.fast_block(fast_bytes, second)),
            (1_000, None)
        );
        let rate_limited = TransferOptions { rate: Rate::from_bps(1_000_000), ..default_options };
        assert_eq!(rate_limited.fast_block(fast_bytes, second), None);
    }
}
