//! Growth of the receive buffer: none, as in Linux, or after Barré et al. 2011.

use std::time::Duration;

use towpath_net::Instant;

use super::{ReceiveBuffer, ReceiveBufferMode, WindowShare};

/// RFC 6928's initial window of ten packets, in bytes and in packets.
const INITIAL_SPACE_BYTES: u64 = 14_600;
const INITIAL_PACKETS: u64 = 10;

/// Denominator of the shares, as in Linux (`TCP_RMEM_TO_WIN_SCALE`).
const SHARE_DENOMINATOR: u64 = 256;
/// Packet size that Linux expects at first; it adapts to larger ones only (`TCP_MSS_DEFAULT`).
const DEFAULT_MSS_BYTES: u64 = 536;
/// Headers of a packet: IPv4, TCP, timestamps, a mapping.
const HEADERS_BYTES: u64 = 80;
/// Memory reserved in front of a packet (`NET_SKB_PAD`), and behind it (`struct skb_shared_info`).
const SKB_PADDING_BYTES: (u64, u64) = (64, 320);
/// Metadata of a packet (`struct sk_buff`), and of one that lies in pages, with its header.
const SKB_OVERHEAD_BYTES: (u64, u64) = (256, 832);
const PAGE_BYTES: u64 = 4_096;

/// Returns the payload share of a packet's memory in Linux, in 256ths. Up to a page the memory is a
/// power of two, beyond that whole pages.
fn linux_share(payload_bytes: u64) -> u64 {
    if payload_bytes <= DEFAULT_MSS_BYTES {
        return SHARE_DENOMINATOR / 2;
    }
    let packet_bytes = payload_bytes + HEADERS_BYTES;
    let memory_bytes = if packet_bytes + SKB_PADDING_BYTES.0 < PAGE_BYTES {
        (packet_bytes + SKB_PADDING_BYTES.0 + SKB_PADDING_BYTES.1).next_power_of_two()
            + SKB_OVERHEAD_BYTES.0
    } else {
        packet_bytes.next_multiple_of(PAGE_BYTES) + SKB_OVERHEAD_BYTES.1
    };
    payload_bytes * SHARE_DENOMINATOR / memory_bytes
}

/// Receive buffer of one connection and the measurements that size it.
#[derive(Debug)]
pub(super) struct ReceiveBufferTuner {
    config: ReceiveBuffer,
    /// Memory in bytes; the window is the fraction `share` of it.
    buffer_bytes: u64,
    share: (u64, u64),
    /// Payload of the largest packet so far.
    payload_bytes: u64,
    /// Start of the round trip being measured.
    round_start: Instant,
    /// Bytes that the application had read at `round_start`; `arrived_bytes` likewise.
    read_bytes: u64,
    arrived_bytes: u64,
    /// Window offered at the start, in bytes.
    initial_window_bytes: u64,
    /// Bytes read in the largest round trip so far; `None` before one has ended.
    max_round_bytes: Option<u64>,
}

impl ReceiveBufferTuner {
    pub(super) fn new(config: ReceiveBuffer, now: Instant) -> Self {
        let buffer_bytes = config.initial_bytes.min(config.max_bytes).max(1);
        let share = match config.window_share {
            WindowShare::Percent(percent) => (u64::from(percent), 100),
            WindowShare::LinuxPackets => (linux_share(0), SHARE_DENOMINATOR),
        };
        let initial_window_bytes = buffer_bytes.saturating_mul(share.0) / share.1;
        Self {
            config,
            buffer_bytes,
            share,
            payload_bytes: 0,
            initial_window_bytes,
            round_start: now,
            read_bytes: 0,
            arrived_bytes: 0,
            max_round_bytes: None,
        }
    }

    pub(super) fn buffer_bytes(&self) -> u64 {
        self.buffer_bytes
    }

    /// Returns the bytes of the buffer that may be offered as window.
    pub(super) fn offered_bytes(&self) -> u64 {
        self.buffer_bytes.saturating_mul(self.share.0) / self.share.1
    }

    /// Returns the window to offer for `free_bytes`, in a `unit` of the window field. In Linux it
    /// is at most `limit_bytes`.
    pub(super) fn window_bytes(&self, free_bytes: u64, limit_bytes: u64, unit: u64) -> u64 {
        let rounded_down = free_bytes / unit * unit;
        if self.config.window_share != WindowShare::LinuxPackets {
            return rounded_down;
        }
        // `__tcp_select_window`: if less than half is free, at most the free bytes, and 0 if these
        // are few.
        let full_window = self.offered_bytes();
        let min_window = (full_window / 16).max(self.payload_bytes);
        if free_bytes >= full_window / 2 {
            free_bytes.min(limit_bytes).next_multiple_of(unit)
        } else if rounded_down < min_window {
            0
        } else {
            rounded_down.min(limit_bytes.next_multiple_of(unit))
        }
    }

    /// Records the largest payload of a packet so far. In plain TCP (`single`), the share follows
    /// immediately (`tcp_measure_rcv_mss`).
    pub(super) fn note_packets(&mut self, payload_bytes: u64, single: bool) {
        if self.config.window_share == WindowShare::LinuxPackets {
            self.payload_bytes = payload_bytes;
            if single {
                self.share = (linux_share(payload_bytes), SHARE_DENOMINATOR);
            }
        }
    }

    /// Records the largest payload of a packet on each subflow, 0 before any data. The smallest
    /// share applies to the connection (Linux `mptcp_rcv_space_adjust`). A subflow without data
    /// therefore reduces the window.
    pub(super) fn note_subflows(&mut self, payload_bytes: impl Iterator<Item = u64>) {
        if let Some(min_share) = payload_bytes.map(linux_share).min() {
            self.share = (min_share, SHARE_DENOMINATOR);
        }
    }

    /// Returns true if the measured round trip has ended. `rtt_max` is the longest round-trip time
    /// of all subflows.
    pub(super) fn is_due(&self, now: Instant, rtt_max: Duration) -> bool {
        now.saturating_since(self.round_start) >= rtt_max && !rtt_max.is_zero()
    }

    /// Updates the buffer at the end of a round trip, with totals so far and the largest packet's
    /// payload.
    pub(super) fn update(
        &mut self,
        now: Instant,
        read_bytes: u64,
        arrived_bytes: u64,
        mss_bytes: u32,
    ) {
        let read_in_round = read_bytes - self.read_bytes;
        let arrived_in_round = arrived_bytes.saturating_sub(self.arrived_bytes);
        let target = match self.config.mode {
            ReceiveBufferMode::Fixed => 0,
            ReceiveBufferMode::Linux => self.linux_target_bytes(read_in_round, mss_bytes),
            // Barré et al. 2011: 2 · Σ bandwidth · longest round-trip time. The bytes that arrive
            // on all subflows in the longest round trip are that sum times that time.
            ReceiveBufferMode::Barre2011 => arrived_in_round.saturating_mul(2),
        };
        self.grow_to(target);
        self.round_start = now;
        self.read_bytes = read_bytes;
        self.arrived_bytes = arrived_bytes;
    }

    /// Linux's dynamic right-sizing: twice the bytes read in a round trip, plus the growth since
    /// the last one.
    fn linux_target_bytes(&mut self, read_in_round: u64, mss_bytes: u32) -> u64 {
        // Data of an initial window does not count as growth yet. Counted from the whole window, a
        // window used up in each round trip would never be detected.
        let (initial_bytes, reserve) = match self.config.window_share {
            WindowShare::LinuxPackets => (INITIAL_PACKETS * u64::from(mss_bytes), 0),
            WindowShare::Percent(_) => (INITIAL_SPACE_BYTES, 16 * u64::from(mss_bytes)),
        };
        let previous =
            self.max_round_bytes.unwrap_or(initial_bytes.min(self.initial_window_bytes)).max(1);
        if read_in_round <= previous {
            return 0;
        }
        let window = read_in_round.saturating_mul(2).saturating_add(reserve);
        let growth =
            u128::from(window) * u128::from(read_in_round - previous) / u128::from(previous);
        self.max_round_bytes = Some(read_in_round);
        window.saturating_add(u64::try_from(growth.saturating_mul(2)).unwrap_or(u64::MAX))
    }

    /// Grows the buffer for out-of-order data that ends `span_bytes` behind a gap in TCP's own
    /// sequence. The buffer must hold it in addition to the data read in a round trip. Linux calls
    /// `tcp_rcvbuf_grow` for each packet out of order.
    pub(super) fn on_ofo_span(&mut self, span_bytes: u64) {
        if span_bytes > 0 && self.config.mode == ReceiveBufferMode::Linux {
            let initial_bytes = self.initial_window_bytes.min(INITIAL_SPACE_BYTES);
            let round_bytes = self.max_round_bytes.unwrap_or(initial_bytes);
            self.grow_to(round_bytes.saturating_mul(2).saturating_add(span_bytes));
        }
    }

    fn grow_to(&mut self, window_bytes: u64) {
        let memory_bytes = window_bytes.saturating_mul(self.share.1) / self.share.0.max(1);
        self.buffer_bytes = self.buffer_bytes.max(memory_bytes.min(self.config.max_bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn half_window_tuner(mode: ReceiveBufferMode) -> ReceiveBufferTuner {
        let config = ReceiveBuffer {
            mode,
            initial_bytes: 100_000,
            max_bytes: 1_000_000,
            window_share: WindowShare::Percent(50),
        };
        ReceiveBufferTuner::new(config, Instant::ZERO)
    }

    fn buffer_after_round(
        tuner: &mut ReceiveBufferTuner,
        millis: u64,
        read_bytes: u64,
        arrived_bytes: u64,
    ) -> u64 {
        let now = Instant::ZERO + Duration::from_millis(millis);
        if tuner.is_due(now, Duration::from_millis(100)) {
            tuner.update(now, read_bytes, arrived_bytes, 1_000);
        }
        tuner.buffer_bytes()
    }

    #[test]
    fn a_fixed_buffer_stays() {
        assert_eq!(
            buffer_after_round(
                &mut half_window_tuner(ReceiveBufferMode::Fixed),
                100,
                90_000,
                90_000
            ),
            100_000
        );
    }

    #[test]
    fn barre2011_requests_twice_the_bytes_of_the_longest_rtt() {
        let mut tuner = half_window_tuner(ReceiveBufferMode::Barre2011);
        assert_eq!(
            buffer_after_round(&mut tuner, 99, 0, 200_000),
            100_000,
            "the round trip is not over"
        );
        assert_eq!(buffer_after_round(&mut tuner, 100, 0, 200_000), 800_000);
        assert_eq!(buffer_after_round(&mut tuner, 200, 0, 250_000), 800_000, "it never shrinks");
    }

    #[test]
    fn linux_grows_when_the_application_reads_more_than_before_up_to_the_limit() {
        let mut tuner = half_window_tuner(ReceiveBufferMode::Linux);
        assert_eq!(buffer_after_round(&mut tuner, 100, 14_600, 0), 100_000, "the initial window");
        assert_eq!(
            buffer_after_round(&mut tuner, 200, 30_660, 0),
            115_488,
            "2 · (48,120 + 2 · 48,120 · 1,460 / 14,600)"
        );
        assert_eq!(buffer_after_round(&mut tuner, 300, 400_000, 0), 1_000_000);
    }

    #[test]
    fn linux_adds_space_for_queued_and_read_data() {
        let mut tuner = half_window_tuner(ReceiveBufferMode::Linux);
        tuner.on_ofo_span(0);
        assert_eq!(tuner.buffer_bytes(), 100_000);
        tuner.on_ofo_span(60_000);
        assert_eq!(tuner.buffer_bytes(), 2 * (2 * 14_600 + 60_000));
        tuner.on_ofo_span(10_000_000);
        assert_eq!(tuner.buffer_bytes(), 1_000_000);
    }

    #[test]
    fn linux_rounds_the_window_up_and_avoids_silly_windows() {
        let mut tuner = half_window_tuner(ReceiveBufferMode::Fixed);
        assert_eq!(tuner.window_bytes(1_000, 0, 128), 896, "others round down");
        tuner.config.window_share = WindowShare::LinuxPackets;
        tuner.note_packets(1_448, true);
        let full_window = tuner.offered_bytes();
        assert_eq!(
            (full_window, tuner.window_bytes(full_window, full_window, 128)),
            (62_500, 62_592)
        );
        assert_eq!(tuner.window_bytes(full_window / 2 - 1, full_window, 128), 31_232);
        assert_eq!(tuner.window_bytes(full_window / 8, full_window, 128), 7_808);
        assert_eq!(tuner.window_bytes(full_window / 16, full_window, 128), 0);
        assert_eq!(tuner.window_bytes(full_window, 14_480, 128), 14_592, "so much at first");
    }

    /// Windows measured in packets, with a buffer of 400 KB behind a TUN device (Linux 6.18, TCP).
    #[test]
    fn the_window_matches_linux_for_each_packet_size() {
        let measured = [
            (524, 381),
            (1_228, 173),
            (1_348, 172),
            (1_448, 172),
            (1_648, 92),
            (1_948, 92),
            (2_948, 90),
            (3_948, 48),
            (4_948, 44),
            (8_948, 30),
        ];
        for (payload, packets) in measured {
            let window = 400_000 * linux_share(payload) / SHARE_DENOMINATOR / payload;
            assert!(window.abs_diff(packets) <= 1, "{payload}: {window} and {packets}");
        }
    }

    #[test]
    fn a_subflow_without_data_lowers_the_overall_share() {
        let mut tuner = half_window_tuner(ReceiveBufferMode::Fixed);
        tuner.config.window_share = WindowShare::LinuxPackets;
        let mut window_percent = |payloads: &[u64]| {
            tuner.note_packets(payloads.iter().copied().max().unwrap_or(0), false);
            tuner.note_subflows(payloads.iter().copied());
            tuner.offered_bytes() / 1_000
        };
        assert_eq!(window_percent(&[0]), 50);
        assert_eq!(window_percent(&[1_448]), 62);
        assert_eq!(window_percent(&[1_448, 0]), 50);
        assert_eq!(window_percent(&[1_448, 1_948]), 44);
        assert_eq!(window_percent(&[]), 44, "what was known stays");
    }

    /// First window of Linux 6.18 with Multipath TCP over an MTU of 4,141 and `tcp_rmem` of
    /// 109,000: payload of 4,069 in packets of two pages.
    #[test]
    fn packets_of_two_pages_cost_their_pages_and_metadata() {
        let mut tuner = half_window_tuner(ReceiveBufferMode::Fixed);
        tuner.config.window_share = WindowShare::LinuxPackets;
        tuner.buffer_bytes = 109_000;
        tuner.note_packets(4_069, true);
        let full_window = tuner.offered_bytes();
        assert_eq!(tuner.window_bytes(full_window, full_window, 128), 49_024);
    }
}
