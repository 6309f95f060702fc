//! Limits of a sender derived from packets, and the data sent meanwhile.
//!
//! At the sender a capture shows outstanding data, the peer's window and retransmissions. At the
//! receiver it shows only arrived data, and the windows that were offered a round trip ago. A
//! congestion window is never visible, so it is inferred when no other limit applies. A packet
//! that is not full shows that data was missing. Packets do not show whether the application or
//! its send buffer lacked it.

use std::collections::VecDeque;

use towpath_measure::result::Part;

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
/// Round trips without a reply, and minimum time, after which a path counts as down.
const DOWN_AFTER_RTTS: u64 = 4;
const DOWN_AFTER_NS: u64 = 400_000_000;
/// Number of packets of a train, and its minimum duration.
const MIN_TRAIN_PACKETS: usize = 9;
const MIN_TRAIN_NS: u64 = 2_000_000;
/// Fixed part by which a round trip may exceed the handshake's; a quarter of that is added.
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
    /// Latest subflow that was waited for.
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
        let sum = self.packets.back().map_or(0, |(_, sum)| *sum) + bytes;
        self.packets.push_back((now_ns, sum));
        let is_long = |then: u64| now_ns.saturating_sub(then) >= MIN_TRAIN_NS;
        while self.packets.len() > MIN_TRAIN_PACKETS
            && self.packets.get(1).is_some_and(|(then, _)| is_long(*then))
        {
            self.packets.pop_front();
        }
        let (then, before) = *self.packets.front()?;
        if self.packets.len() < MIN_TRAIN_PACKETS || !is_long(then) {
            return None;
        }
        let bits = u128::from(sum - before) * 8_000_000_000;
        u64::try_from(bits / u128::from(now_ns - then)).ok()
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
        for (own, next) in [
            (&mut self.at_sender_us, &next.at_sender_us),
            (&mut self.at_receiver_us, &next.at_receiver_us),
        ] {
            for (own, next) in own.iter_mut().zip(next) {
                *own = own.saturating_add(*next);
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

    /// Returns the edge that a sender knew: one offered a full round trip ago. The offer and the
    /// reply take half of a round trip each.
    fn one_rtt_ago(&self, now_ns: u64, round_ns: u64) -> Option<i64> {
        let then = now_ns.saturating_sub(round_ns);
        let known = self.all.partition_point(|(at, _)| *at <= then);
        self.all.get(known.checked_sub(1)?).map(|(_, edge)| *edge)
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
    /// Returns the least window room that gets used: several subflows fill a window in pieces.
    fn min_window_bytes(&self, above: &ConnectionSendState) -> i64 {
        i64::from(self.mss_bytes) * if above.is_multipath { 2 } else { 1 }
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
    /// Maximum of outstanding data, in this round trip and in the one before.
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
        if let Some(slot) = self.series.bin_mut(now_ns) {
            slot.header_bytes += u64::from(segment.ip_bytes.saturating_sub(segment.payload_bytes));
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
        let all = ack.saturating_add_unsigned(self.sacked.bytes());
        let new = SeqRange::new(self.total_acked, all).len();
        self.total_acked = self.total_acked.max(all);
        self.last_ack_ns = self.last_ack_ns.max(now_ns);
        if new == 0 {
            return;
        }
        let rate = self.acked_train.on_packet(new, now_ns).unwrap_or(0);
        if let Some(slot) = self.series.bin_mut(now_ns) {
            slot.acked_bytes += new;
            slot.acked_bps = slot.acked_bps.max(rate);
        }
    }

    /// Records a packet's payload: new bytes, bytes seen again, those of them known to have
    /// arrived, and reinjected ones.
    pub(super) fn on_sent(
        &mut self,
        [new, again, wasted, copied]: [u64; 4],
        is_full: bool,
        now_ns: u64,
    ) {
        if new > 0 {
            self.is_app_limited = !is_full;
        }
        self.had_loss |= again > 0;
        let rate = self.new_train.on_packet(new + again, now_ns).unwrap_or(0);
        if let Some(slot) = self.series.bin_mut(now_ns) {
            slot.new_bps = slot.new_bps.max(rate);
            slot.new_bytes += new;
            slot.retrans_bytes += again;
            slot.spurious_bytes += wasted;
            slot.reinjected_bytes += copied;
        }
    }

    /// Accounts the time since the last call with the state up to now.
    pub(super) fn account_until(
        &mut self,
        own: &SubflowSendState,
        above: &ConnectionSendState,
        data_edges: &WindowEdges,
        now_ns: u64,
    ) {
        let from = self.accounted_until_ns.unwrap_or(now_ns);
        self.accounted_until_ns = Some(now_ns.max(from));
        if now_ns <= from {
            return;
        }
        let state = self.at_sender(own, above, data_edges);
        let down_after_ns = DOWN_AFTER_NS.max(own.srtt_ns.saturating_mul(DOWN_AFTER_RTTS));
        let is_waiting = own.highest > own.acked && own.is_established;
        if self.last_ack_ns >= from {
            self.flush(None);
        }
        self.pending_states.push((from, now_ns, state));
        if !is_waiting {
            self.flush(None);
        } else if now_ns.saturating_sub(self.last_ack_ns) >= down_after_ns {
            self.flush(Some((Part::Down, None)));
        } else if self.pending_states.len() >= MAX_PENDING_STATES {
            self.flush(None);
        }
        let state = self.at_receiver(own, above, data_edges, from);
        self.add_time(from, now_ns, state, false);
        self.update_growth(own, now_ns);
    }

    /// Accounts the pending states at the end.
    pub(super) fn close(&mut self) {
        self.flush(None);
    }

    /// Accounts the pending states; `state` replaces all of them if given.
    fn flush(&mut self, state: Option<SenderState>) {
        for (from, to, own) in std::mem::take(&mut self.pending_states) {
            self.add_time(from, to, state.unwrap_or(own), true);
        }
    }

    /// Returns the state according to the sender's capture.
    fn at_sender(
        &self,
        own: &SubflowSendState,
        above: &ConnectionSendState,
        edges: &WindowEdges,
    ) -> SenderState {
        if !own.is_established {
            return (Part::Handshake, None);
        }
        let packet = own.min_window_bytes(above);
        let (edge, highest) = if above.is_multipath {
            (edges.latest(), above.highest)
        } else {
            (self.window_edges.latest(), own.highest)
        };
        let is_full = edge.is_some_and(|edge| highest.saturating_add(packet) > edge);
        if is_full && above.is_outstanding {
            return match above.next_subflow.filter(|_| above.is_multipath) {
                Some(owner) if owner != own.number => (Part::HeadOfLineBlocking, Some(owner)),
                Some(_) | None => (Part::PeerWindow, None),
            };
        }
        let part = if own.highest <= own.acked {
            match (above.is_outstanding && !above.is_app_limited, own.is_backup) {
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
        own: &SubflowSendState,
        above: &ConnectionSendState,
        edges: &WindowEdges,
        now_ns: u64,
    ) -> SenderState {
        if !own.is_established {
            return (Part::Handshake, None);
        }
        // Queues delay packets a little more than during the handshake.
        let round_ns = own
            .handshake_rtt_ns
            .saturating_add(own.handshake_rtt_ns / 4)
            .saturating_add(RTT_SLACK_NS);
        let (edge, highest) = if above.is_multipath {
            (edges.one_rtt_ago(now_ns, round_ns), above.highest)
        } else {
            (self.window_edges.one_rtt_ago(now_ns, round_ns), own.highest)
        };
        let packet = own.min_window_bytes(above);
        if own.handshake_rtt_ns > 0
            && edge.is_some_and(|edge| highest.saturating_add(packet) > edge)
        {
            let other = above.is_multipath && above.has_gap;
            return if other { (Part::HeadOfLineBlocking, None) } else { (Part::PeerWindow, None) };
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

    fn update_growth(&mut self, own: &SubflowSendState, now_ns: u64) {
        let outstanding = own.highest.saturating_sub(own.acked);
        self.current_round.1 = self.current_round.1.max(outstanding);
        if own.srtt_ns > 0 && now_ns.saturating_sub(self.current_round.0) >= own.srtt_ns {
            self.last_round_outstanding = self.current_round.1;
            self.current_round = (now_ns, outstanding);
        }
    }

    fn add_time(&mut self, from: u64, to: u64, (part, waits_for): SenderState, sends: bool) {
        let place = STATES.iter().position(|state| *state == part).unwrap_or(0);
        let mut at = from;
        while at < to {
            let width = self.series.width_ns().max(1);
            let end = (at / width + 1).saturating_mul(width).min(to);
            let Some(slot) = self.series.bin_mut(at) else { return };
            let states = if sends { &mut slot.at_sender_us } else { &mut slot.at_receiver_us };
            if let Some(spent) = states.get_mut(place) {
                let us = u32::try_from((end - at) / 1_000).unwrap_or(u32::MAX);
                *spent = spent.saturating_add(us);
            }
            slot.blocked_by = waits_for.or(slot.blocked_by);
            at = end;
        }
    }
}

/// Returns true if a packet, or a super-segment, has as much payload as its headers permit.
pub(super) fn is_full(payload_bytes: u32, mss_bytes: u32) -> bool {
    /// Maximum length of TCP options.
    const OPTIONS_BYTES: u32 = 40;
    let least = mss_bytes.saturating_sub(OPTIONS_BYTES).max(1);
    if payload_bytes <= mss_bytes {
        return payload_bytes >= least;
    }
    let count = payload_bytes.div_ceil(mss_bytes.max(1));
    payload_bytes.is_multiple_of(count) && payload_bytes / count >= least
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

    #[test]
    fn a_full_window_is_seen_at_both_ends_and_at_the_receiver_a_round_trip_later() {
        let mut sender = SenderTracker::default();
        sender.window_edges.record(10_000, 0);
        let edges = WindowEdges::default();
        let (state, _) = sender.at_sender(&subflow_state(9_500, 0), &outstanding_state(), &edges);
        assert_eq!(state, Part::PeerWindow);
        let (state, _) = sender.at_sender(&subflow_state(8_000, 0), &outstanding_state(), &edges);
        assert_eq!(state, Part::SlowStart);
        // Everything has arrived, and more is offered, but the sender does not know it yet.
        sender.window_edges.record(20_000, 30 * MS);
        let all = subflow_state(9_500, 9_500);
        let seen = |at_ms| sender.at_receiver(&all, &outstanding_state(), &edges, at_ms * MS).0;
        assert_eq!(seen(50), Part::PeerWindow);
        assert_eq!(seen(58), Part::Unknown);
    }

    #[test]
    fn a_packet_that_is_not_full_is_the_last_that_there_was() {
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
        let above = ConnectionSendState {
            is_multipath: true,
            is_outstanding: true,
            highest: 4_500,
            next_subflow: Some(1),
            ..ConnectionSendState::default()
        };
        let sender = SenderTracker::default();
        assert_eq!(
            sender.at_sender(&subflow_state(100, 100), &above, &edges),
            (Part::HeadOfLineBlocking, Some(1))
        );
        edges.record(50_000, MS);
        assert_eq!(
            sender.at_sender(&subflow_state(100, 100), &above, &edges),
            (Part::Scheduler, None)
        );
        let backup = SubflowSendState { is_backup: true, ..subflow_state(100, 100) };
        assert_eq!(sender.at_sender(&backup, &above, &edges), (Part::Backup, None));
        let done = ConnectionSendState { is_outstanding: false, ..above };
        assert_eq!(
            sender.at_sender(&subflow_state(100, 100), &done, &edges),
            (Part::Application, None)
        );
    }

    #[test]
    fn silence_with_data_outstanding_is_a_path_that_is_down() {
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
        let of = |part: Part| {
            let place = STATES.iter().position(|state| *state == part).unwrap();
            let slots = sender.series.bins(sender.series.width_ns());
            slots.iter().map(|(_, slot)| slot.at_sender_us[place]).sum::<u32>()
        };
        assert_eq!((of(Part::SlowStart), of(Part::Down)), (49_999, 1_000_000));
    }

    #[test]
    fn a_train_of_packets_shows_the_rate_of_the_path() {
        let mut train = PacketTrain::default();
        // 1,500 B each ms are 12 Mbit/s, followed by a pause.
        let rates: Vec<_> = (0..20).map(|at| train.on_packet(1_500, at * MS)).collect();
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
        let slots = sender.series.bins(sender.series.width_ns());
        assert_eq!(slots.iter().map(|(_, slot)| slot.acked_bytes).collect::<Vec<_>>(), [6_000]);
    }
}
