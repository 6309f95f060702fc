//! Limits of a sender derived from packets, and the data sent meanwhile.
//!
//! At the sender a capture shows outstanding data, the peer's window and retransmissions. At the
//! receiver it shows only arrived data, and the windows that were offered a round trip ago. A
//! congestion window is never visible, so it is inferred when no other limit applies. A packet
//! that is not full shows that data was missing. Packets do not show whether the application or
//! its send buffer lacked it.

use std::collections::VecDeque;

use towpath_result::Part;

use super::layers::CapturedSegment;
use super::ranges::{SeqRange, TaggedRanges};
use super::stats::{BinnedSeries, Merge};

/// State of a sender, and the subflow that it waits for.
type SenderState = (Part, Option<u16>);

/// States that a capture can show.
pub(super) const STATES: [Part; 11] = [
    Part::Unknown,
    Part::Handshake,
    Part::Application,
    Part::PeerWindow,
    Part::HeadOfLineBlocking,
    Part::SlowStart,
    Part::AfterLoss,
    Part::CongestionAvoidance,
    Part::Backup,
    Part::Scheduler,
    Part::Down,
];
/// A path counts as down after this many round trips and this many nanoseconds without a reply.
const DOWN_AFTER_RTTS: u64 = 4;
const DOWN_AFTER_NS: u64 = 400_000_000;
/// Minimum number of packets and minimum duration of a packet train.
const MIN_TRAIN_PACKETS: usize = 9;
const MIN_TRAIN_NS: u64 = 2_000_000;
/// Fixed part of the time by which a round trip may exceed the handshake's. The other part is a
/// quarter of the handshake's round trip.
const RTT_SLACK_NS: u64 = 2_000_000;
/// Maximum number of states that wait until the peer's silence is confirmed or refuted.
const MAX_PENDING_STATES: usize = 4_096;
/// Maximum number of remembered offered windows.
const MAX_EDGES: usize = 1 << 12;

/// Data of a subflow in one direction, over a short period.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SenderBin {
    /// Payload newly acknowledged, selectively or not.
    pub(super) acked_bytes: u64,
    /// Payload seen for the first time.
    pub(super) new_bytes: u64,
    /// IP packet bytes other than payload.
    pub(super) header_bytes: u64,
    /// Payload that another subflow had carried before.
    pub(super) reinjected_bytes: u64,
    /// Payload seen again, and the part of it that the receiver was known to have.
    pub(super) retrans_bytes: u64,
    pub(super) spurious_bytes: u64,
    /// Microseconds in each of [`STATES`]: according to the sender's capture, and the receiver's.
    pub(super) at_sender_us: [u32; STATES.len()],
    pub(super) at_receiver_us: [u32; STATES.len()],
    /// Latest subflow whose data blocked the window.
    pub(super) blocked_by: Option<u16>,
    /// Rate of the fastest packet trains, in bits per second: of acknowledged and of new data.
    pub(super) acked_bps: u64,
    pub(super) new_bps: u64,
}

/// Latest packets, for the rate at which they follow each other.
#[derive(Debug, Clone, Default)]
struct PacketTrain {
    /// Time of each packet, and the byte total up to it.
    packets: VecDeque<(u64, u64)>,
}

impl PacketTrain {
    /// Returns the rate of the latest packets; `None` if they are too few or too close together.
    /// The first packet's bytes arrived before the period, so they do not count.
    fn on_packet(&mut self, bytes: u64, now_ns: u64) -> Option<u64> {
        let total_bytes = self.packets.back().map_or(0, |(_, total)| *total) + bytes;
        self.packets.push_back((now_ns, total_bytes));
        let is_long_enough = |then_ns: u64| now_ns.saturating_sub(then_ns) >= MIN_TRAIN_NS;
        while self.packets.len() > MIN_TRAIN_PACKETS
            && self.packets.get(1).is_some_and(|(then_ns, _)| is_long_enough(*then_ns))
        {
            self.packets.pop_front();
        }
        let (then_ns, bytes_before) = *self.packets.front()?;
        if self.packets.len() < MIN_TRAIN_PACKETS || !is_long_enough(then_ns) {
            return None;
        }
        let bits = u128::from(total_bytes - bytes_before) * 8_000_000_000;
        u64::try_from(bits / u128::from(now_ns - then_ns)).ok()
    }
}

impl Merge for SenderBin {
    fn merge(&mut self, next: &Self) {
        self.acked_bytes += next.acked_bytes;
        self.new_bytes += next.new_bytes;
        self.header_bytes += next.header_bytes;
        self.reinjected_bytes += next.reinjected_bytes;
        self.retrans_bytes += next.retrans_bytes;
        self.spurious_bytes += next.spurious_bytes;
        for (sum, next) in [
            (&mut self.at_sender_us, &next.at_sender_us),
            (&mut self.at_receiver_us, &next.at_receiver_us),
        ] {
            for (sum, next) in sum.iter_mut().zip(next) {
                *sum = sum.saturating_add(*next);
            }
        }
        self.blocked_by = next.blocked_by.or(self.blocked_by);
        self.acked_bps = self.acked_bps.max(next.acked_bps);
        self.new_bps = self.new_bps.max(next.new_bps);
    }
}

/// Right edges of a window, as they were offered.
#[derive(Debug, Clone, Default)]
pub(super) struct WindowEdges {
    all: VecDeque<(u64, i64)>,
}

impl WindowEdges {
    /// Records a window up to `edge`, which may be lower than before.
    pub(super) fn record(&mut self, edge: i64, now_ns: u64) {
        if self.latest() == Some(edge) {
            return;
        }
        if self.all.len() >= MAX_EDGES {
            self.all.pop_front();
        }
        self.all.push_back((now_ns, edge));
    }

    /// Returns the edge that was offered last.
    pub(super) fn latest(&self) -> Option<i64> {
        self.all.back().map(|(_, edge)| *edge)
    }

    /// Returns the edge that the sender knew when it sent the data that arrives now. It was offered
    /// a round trip ago: the offer and the data take half of a round trip each.
    fn edge_one_rtt_ago(&self, now_ns: u64, rtt_ns: u64) -> Option<i64> {
        let sent_ns = now_ns.saturating_sub(rtt_ns);
        let offered = self.all.partition_point(|(time_ns, _)| *time_ns <= sent_ns);
        self.all.get(offered.checked_sub(1)?).map(|(_, edge)| *edge)
    }
}

/// Connection-level state that subflows need.
#[derive(Debug, Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct ConnectionSendState {
    /// True if data sequence numbers exist.
    pub(super) is_multipath: bool,
    /// True if sent data is unacknowledged.
    pub(super) is_outstanding: bool,
    /// True if its last packet was not full.
    pub(super) is_app_limited: bool,
    /// True if data is missing before some that has arrived.
    pub(super) has_gap: bool,
    /// Highest data number, and the subflow of the next unacknowledged data.
    pub(super) highest: i64,
    pub(super) next_subflow: Option<u16>,
}

/// State of a subflow's sender.
#[derive(Debug, Clone, Copy)]
pub(super) struct SubflowSendState {
    pub(super) number: u16,
    pub(super) is_backup: bool,
    pub(super) is_established: bool,
    /// Time from its SYN to the end of the handshake.
    pub(super) handshake_rtt_ns: u64,
    pub(super) srtt_ns: u64,
    pub(super) highest: i64,
    pub(super) acked: i64,
    /// Payload of a full packet.
    pub(super) mss_bytes: u32,
}

impl SubflowSendState {
    /// Returns the window room below which a sender counts as limited by the window. Several
    /// subflows leave more of the window unused than one.
    fn min_window_bytes(&self, connection: &ConnectionSendState) -> i64 {
        i64::from(self.mss_bytes) * if connection.is_multipath { 2 } else { 1 }
    }
}

/// Sender of one direction of a subflow.
#[derive(Debug, Clone, Default)]
pub(super) struct SenderTracker {
    /// Shift of the windows that its peer offers; `None` without its SYN.
    pub(super) window_scale: Option<u8>,
    pub(super) window_edges: WindowEdges,
    /// Data that the peer has beyond its cumulative acknowledgement.
    sacked: TaggedRanges<()>,
    /// Total of acknowledged data, selectively or not.
    total_acked: i64,
    /// True if its last packet with new data was not full.
    pub(super) is_app_limited: bool,
    /// True after a retransmission.
    pub(super) had_loss: bool,
    /// Start of this round trip and its maximum of outstanding data; then the maximum of the last.
    current_round: (u64, i64),
    last_round_outstanding: i64,
    /// Time of the peer's latest acknowledgement.
    pub(super) last_ack_ns: u64,
    acked_train: PacketTrain,
    new_train: PacketTrain,
    /// Time up to which states are recorded.
    accounted_until_ns: Option<u64>,
    /// States since the peer's latest acknowledgement: if it stays silent, the path was down all
    /// the time.
    pending_states: Vec<(u64, u64, SenderState)>,
    pub(super) series: BinnedSeries<SenderBin>,
}

impl SenderTracker {
    /// Counts a packet's bytes other than payload.
    pub(super) fn count_headers(&mut self, segment: &CapturedSegment<'_>, now_ns: u64) {
        if let Some(bin) = self.series.bin_mut(now_ns) {
            bin.header_bytes += u64::from(segment.ip_bytes.saturating_sub(segment.payload_bytes));
        }
    }

    /// Records selective acknowledgements; `ack` is the cumulative one.
    pub(super) fn on_ack(&mut self, ack: i64, blocks: &[SeqRange], now_ns: u64) {
        self.sacked.forget_below(ack);
        for block in blocks {
            let block = block.and(SeqRange::new(ack, i64::MAX));
            if block.is_empty() || self.sacked.is_full() {
                continue;
            }
            let mut new = Vec::new();
            self.sacked.compare(block, |_, ()| {}, |part| new.push(part));
            for part in new {
                self.sacked.insert(part, ());
            }
        }
        let total = ack.saturating_add_unsigned(self.sacked.bytes());
        let new = SeqRange::new(self.total_acked, total).len();
        self.total_acked = self.total_acked.max(total);
        self.last_ack_ns = self.last_ack_ns.max(now_ns);
        if new == 0 {
            return;
        }
        let rate = self.acked_train.on_packet(new, now_ns).unwrap_or(0);
        if let Some(bin) = self.series.bin_mut(now_ns) {
            bin.acked_bytes += new;
            bin.acked_bps = bin.acked_bps.max(rate);
        }
    }

    /// Records a packet's payload: new bytes, bytes seen again, those of them known to have
    /// arrived, and reinjected ones.
    pub(super) fn on_sent(
        &mut self,
        [new, retransmitted, spurious, reinjected]: [u64; 4],
        is_full: bool,
        now_ns: u64,
    ) {
        if new > 0 {
            self.is_app_limited = !is_full;
        }
        self.had_loss |= retransmitted > 0;
        let rate = self.new_train.on_packet(new + retransmitted, now_ns).unwrap_or(0);
        if let Some(bin) = self.series.bin_mut(now_ns) {
            bin.new_bps = bin.new_bps.max(rate);
            bin.new_bytes += new;
            bin.retrans_bytes += retransmitted;
            bin.spurious_bytes += spurious;
            bin.reinjected_bytes += reinjected;
        }
    }

    /// Accounts the time since the last call with the state up to now.
    pub(super) fn account_until(
        &mut self,
        subflow: &SubflowSendState,
        connection: &ConnectionSendState,
        data_edges: &WindowEdges,
        now_ns: u64,
    ) {
        let from_ns = self.accounted_until_ns.unwrap_or(now_ns);
        self.accounted_until_ns = Some(now_ns.max(from_ns));
        if now_ns <= from_ns {
            return;
        }
        let state = self.at_sender(subflow, connection, data_edges);
        let down_after_ns = DOWN_AFTER_NS.max(subflow.srtt_ns.saturating_mul(DOWN_AFTER_RTTS));
        let is_waiting = subflow.highest > subflow.acked && subflow.is_established;
        if self.last_ack_ns >= from_ns {
            self.flush(None);
        }
        self.pending_states.push((from_ns, now_ns, state));
        if !is_waiting {
            self.flush(None);
        } else if now_ns.saturating_sub(self.last_ack_ns) >= down_after_ns {
            self.flush(Some((Part::Down, None)));
        } else if self.pending_states.len() >= MAX_PENDING_STATES {
            self.flush(None);
        }
        let state = self.at_receiver(subflow, connection, data_edges, from_ns);
        self.add_time(from_ns, now_ns, state, false);
        self.update_growth(subflow, now_ns);
    }

    /// Accounts the pending states at the end.
    pub(super) fn close(&mut self) {
        self.flush(None);
    }

    /// Accounts the pending states; if `state` is given, all of them are accounted as this state.
    fn flush(&mut self, state: Option<SenderState>) {
        for (from_ns, to_ns, recorded) in std::mem::take(&mut self.pending_states) {
            self.add_time(from_ns, to_ns, state.unwrap_or(recorded), true);
        }
    }

    /// Returns the state according to the sender's capture.
    fn at_sender(
        &self,
        subflow: &SubflowSendState,
        connection: &ConnectionSendState,
        edges: &WindowEdges,
    ) -> SenderState {
        if !subflow.is_established {
            return (Part::Handshake, None);
        }
        let min_room = subflow.min_window_bytes(connection);
        let (edge, highest) = if connection.is_multipath {
            (edges.latest(), connection.highest)
        } else {
            (self.window_edges.latest(), subflow.highest)
        };
        let is_full = edge.is_some_and(|edge| highest.saturating_add(min_room) > edge);
        if is_full && connection.is_outstanding {
            return match connection.next_subflow.filter(|_| connection.is_multipath) {
                Some(owner) if owner != subflow.number => (Part::HeadOfLineBlocking, Some(owner)),
                Some(_) | None => (Part::PeerWindow, None),
            };
        }
        let part = if subflow.highest <= subflow.acked {
            match (connection.is_outstanding && !connection.is_app_limited, subflow.is_backup) {
                (false, _) => Part::Application,
                (true, true) => Part::Backup,
                (true, false) => Part::Scheduler,
            }
        } else if self.is_app_limited {
            Part::Application
        } else if self.had_loss {
            Part::AfterLoss
        } else if self.is_growing() {
            Part::SlowStart
        } else {
            Part::CongestionAvoidance
        };
        (part, None)
    }

    /// Returns the state according to the receiver's capture.
    fn at_receiver(
        &self,
        subflow: &SubflowSendState,
        connection: &ConnectionSendState,
        edges: &WindowEdges,
        now_ns: u64,
    ) -> SenderState {
        if !subflow.is_established {
            return (Part::Handshake, None);
        }
        // Queues delay packets a little more than during the handshake.
        let rtt_ns = subflow
            .handshake_rtt_ns
            .saturating_add(subflow.handshake_rtt_ns / 4)
            .saturating_add(RTT_SLACK_NS);
        let (edge, highest) = if connection.is_multipath {
            (edges.edge_one_rtt_ago(now_ns, rtt_ns), connection.highest)
        } else {
            (self.window_edges.edge_one_rtt_ago(now_ns, rtt_ns), subflow.highest)
        };
        let min_room = subflow.min_window_bytes(connection);
        if subflow.handshake_rtt_ns > 0
            && edge.is_some_and(|edge| highest.saturating_add(min_room) > edge)
        {
            let has_data_elsewhere = connection.is_multipath && connection.has_gap;
            return if has_data_elsewhere {
                (Part::HeadOfLineBlocking, None)
            } else {
                (Part::PeerWindow, None)
            };
        }
        let part = match (self.is_app_limited, self.had_loss) {
            (true, _) => Part::Application,
            (false, true) => Part::AfterLoss,
            (false, false) => Part::Unknown,
        };
        (part, None)
    }

    /// Returns true if more was outstanding in this round trip than in the one before.
    fn is_growing(&self) -> bool {
        self.last_round_outstanding == 0
            || self.current_round.1.saturating_mul(10)
                > self.last_round_outstanding.saturating_mul(11)
    }

    fn update_growth(&mut self, subflow: &SubflowSendState, now_ns: u64) {
        let outstanding = subflow.highest.saturating_sub(subflow.acked);
        self.current_round.1 = self.current_round.1.max(outstanding);
        if subflow.srtt_ns > 0 && now_ns.saturating_sub(self.current_round.0) >= subflow.srtt_ns {
            self.last_round_outstanding = self.current_round.1;
            self.current_round = (now_ns, outstanding);
        }
    }

    fn add_time(
        &mut self,
        from_ns: u64,
        to_ns: u64,
        (part, waits_for): SenderState,
        at_sender: bool,
    ) {
        let state_index = STATES.iter().position(|state| *state == part).unwrap_or(0);
        let mut time_ns = from_ns;
        while time_ns < to_ns {
            let width = self.series.width_ns().max(1);
            let bin_end = (time_ns / width + 1).saturating_mul(width);
            // All times before the first bin count in it.
            let end = bin_end.max(self.series.begin_ns()).min(to_ns);
            let Some(bin) = self.series.bin_mut(time_ns) else { return };
            let states = if at_sender { &mut bin.at_sender_us } else { &mut bin.at_receiver_us };
            if let Some(state_us) = states.get_mut(state_index) {
                let us = u32::try_from((end - time_ns) / 1_000).unwrap_or(u32::MAX);
                *state_us = state_us.saturating_add(us);
            }
            bin.blocked_by = waits_for.or(bin.blocked_by);
            time_ns = end;
        }
    }
}

/// Returns true if a packet, or a super-segment, has as much payload as its headers permit.
pub(super) fn is_full(payload_bytes: u32, mss_bytes: u32) -> bool {
    /// Maximum length of TCP options.
    const OPTIONS_BYTES: u32 = 40;
    let min_payload = mss_bytes.saturating_sub(OPTIONS_BYTES).max(1);
    if payload_bytes <= mss_bytes {
        return payload_bytes >= min_payload;
    }
    let count = payload_bytes.div_ceil(mss_bytes.max(1));
    payload_bytes.is_multiple_of(count) && payload_bytes / count >= min_payload
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn subflow_state(highest: i64, acked: i64) -> SubflowSendState {
        SubflowSendState {
            number: 0,
            is_backup: false,
            is_established: true,
            handshake_rtt_ns: 20 * MS,
            srtt_ns: 20 * MS,
            highest,
            acked,
            mss_bytes: 1_000,
        }
    }

    fn outstanding_state() -> ConnectionSendState {
        ConnectionSendState { is_outstanding: true, ..ConnectionSendState::default() }
    }

    /// Regression: when the time of a packet was far before the first bin, time was added in steps
    /// of one bin. Two packets 4,000,000,000 s apart then kept `trace` busy without end.
    #[test]
    fn time_before_the_first_bin_is_added_at_once() {
        let mut sender = SenderTracker::default();
        let late_ns = 4_000_000_000_000 * MS;
        for (from_ns, to_ns) in [(late_ns, late_ns + MS), (0, late_ns), (0, late_ns + 9 * MS)] {
            sender.add_time(from_ns, to_ns, (Part::SlowStart, None), true);
        }
        let bins = sender.series.bins(sender.series.width_ns());
        let total_us: u64 =
            { bins.iter() }.flat_map(|(_, bin)| bin.at_sender_us).map(u64::from).sum();
        assert!(total_us >= u64::from(u32::MAX), "{total_us}");
    }

    #[test]
    fn a_full_window_is_detected_at_the_sender_and_one_rtt_later_at_the_receiver() {
        let mut sender = SenderTracker::default();
        sender.window_edges.record(10_000, 0);
        let edges = WindowEdges::default();
        let (state, _) = sender.at_sender(&subflow_state(9_500, 0), &outstanding_state(), &edges);
        assert_eq!(state, Part::PeerWindow);
        let (state, _) = sender.at_sender(&subflow_state(8_000, 0), &outstanding_state(), &edges);
        assert_eq!(state, Part::SlowStart);
        // Everything has arrived, and more is offered, but the sender does not know it yet.
        sender.window_edges.record(20_000, 30 * MS);
        let all_arrived = subflow_state(9_500, 9_500);
        let state_at =
            |at_ms| sender.at_receiver(&all_arrived, &outstanding_state(), &edges, at_ms * MS).0;
        assert_eq!(state_at(50), Part::PeerWindow);
        assert_eq!(state_at(58), Part::Unknown);
    }

    #[test]
    fn a_packet_that_is_not_full_means_that_no_more_data_was_available() {
        let mut sender = SenderTracker::default();
        assert!(is_full(1_448, 1_460) && is_full(14_480, 1_460) && is_full(27_132, 1_460));
        assert!(!is_full(1_400, 1_460) && !is_full(14_481, 1_460) && !is_full(2_500, 1_460));
        sender.on_sent([500, 0, 0, 0], false, 0);
        let edges = WindowEdges::default();
        assert_eq!(
            sender.at_sender(&subflow_state(500, 0), &outstanding_state(), &edges).0,
            Part::Application
        );
        sender.on_sent([1_000, 0, 0, 0], true, MS);
        sender.on_sent([0, 1_000, 0, 0], true, MS);
        assert_eq!(
            sender.at_sender(&subflow_state(1_500, 0), &outstanding_state(), &edges).0,
            Part::AfterLoss
        );
    }

    #[test]
    fn blocking_paths_and_unused_paths_are_reported() {
        let mut edges = WindowEdges::default();
        edges.record(5_000, 0);
        let connection = ConnectionSendState {
            is_multipath: true,
            is_outstanding: true,
            highest: 4_500,
            next_subflow: Some(1),
            ..ConnectionSendState::default()
        };
        let sender = SenderTracker::default();
        assert_eq!(
            sender.at_sender(&subflow_state(100, 100), &connection, &edges),
            (Part::HeadOfLineBlocking, Some(1))
        );
        edges.record(50_000, MS);
        assert_eq!(
            sender.at_sender(&subflow_state(100, 100), &connection, &edges),
            (Part::Scheduler, None)
        );
        let backup = SubflowSendState { is_backup: true, ..subflow_state(100, 100) };
        assert_eq!(sender.at_sender(&backup, &connection, &edges), (Part::Backup, None));
        let nothing_outstanding = ConnectionSendState { is_outstanding: false, ..connection };
        assert_eq!(
            sender.at_sender(&subflow_state(100, 100), &nothing_outstanding, &edges),
            (Part::Application, None)
        );
    }

    #[test]
    fn a_path_without_acknowledgements_of_outstanding_data_is_down() {
        let mut sender = SenderTracker { last_ack_ns: 0, ..SenderTracker::default() };
        let edges = WindowEdges::default();
        sender.account_until(&subflow_state(1_000, 0), &outstanding_state(), &edges, 1);
        sender.last_ack_ns = 50 * MS;
        for at_ms in [50, 150, 250, 1_050] {
            sender.account_until(
                &subflow_state(1_000, 0),
                &outstanding_state(),
                &edges,
                at_ms * MS,
            );
        }
        let time_us = |part: Part| {
            let state_index = STATES.iter().position(|state| *state == part).unwrap();
            let bins = sender.series.bins(sender.series.width_ns());
            bins.iter().map(|(_, bin)| bin.at_sender_us[state_index]).sum::<u32>()
        };
        assert_eq!((time_us(Part::SlowStart), time_us(Part::Down)), (49_999, 1_000_000));
    }

    #[test]
    fn a_train_of_packets_shows_the_rate_of_the_path() {
        let mut train = PacketTrain::default();
        // 1,500 B each ms are 12 Mbit/s, followed by a pause.
        let rates: Vec<_> = (0..20).map(|ms| train.on_packet(1_500, ms * MS)).collect();
        assert!(
            rates[..8].iter().all(Option::is_none)
                && rates[8..].iter().all(|r| *r == Some(12_000_000)),
            "{rates:?}"
        );
        assert!(train.on_packet(1_500, 119 * MS).unwrap() < 2_000_000);
    }

    #[test]
    fn selectively_acknowledged_data_counts_once() {
        let mut sender = SenderTracker::default();
        sender.on_ack(0, &[SeqRange::new(2_000, 4_000)], MS);
        sender.on_ack(0, &[SeqRange::new(2_000, 5_000)], 2 * MS);
        sender.on_ack(6_000, &[], 3 * MS);
        let bins = sender.series.bins(sender.series.width_ns());
        assert_eq!(bins.iter().map(|(_, bin)| bin.acked_bytes).collect::<Vec<_>>(), [6_000]);
    }
}
