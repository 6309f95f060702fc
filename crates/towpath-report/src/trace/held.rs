//! What held a sender back, as far as packets tell, and what it moved meanwhile.
//!
//! At the sender a capture shows what is outstanding, which window the peer offers, and what is sent
//! again; at the receiver only what has arrived, and the windows that were offered a round trip ago.
//! A congestion window is never seen: it is what is left when everything else has room. That data is
//! missing shows in a packet that is not full; whether the application or its send buffer lacked it,
//! packets do not tell.

use std::collections::VecDeque;

use towpath_measure::result::Part;

use super::figures::{BinnedSeries, Merge};
use super::interval::{SeqRange, TaggedRanges};
use super::layers::CapturedSegment;

/// A state, and the subflow that is waited for.
type SenderState = (Part, Option<u16>);

/// What can be told.
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
/// Without an answer for so many round trips, and at least for so long, a path is taken to be down.
const DOWN_AFTER_RTTS: u64 = 4;
const DOWN_AFTER_NS: u64 = 400_000_000;
/// Packets of a train, and how long it takes at least.
const MIN_TRAIN_PACKETS: usize = 9;
const MIN_TRAIN_NS: u64 = 2_000_000;
/// A round trip may be so much longer than the handshake's, beside a quarter of it.
const RTT_SLACK_NS: u64 = 2_000_000;
/// States that are held back until it is known whether the peer is silent.
const MAX_PENDING_STATES: usize = 4_096;
/// Offered windows that are remembered.
const MAX_EDGES: usize = 1 << 12;

/// A subflow's data in one direction, over a short while.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SenderBin {
    /// Payload that was newly acknowledged, selectively or not.
    pub(super) acked_bytes: u64,
    /// Payload that was seen for the first time.
    pub(super) new_bytes: u64,
    /// Everything around payload.
    pub(super) header_bytes: u64,
    /// Payload that another subflow had carried before.
    pub(super) reinjected_bytes: u64,
    /// Payload that was seen again, and of that what the receiver was known to have.
    pub(super) retrans_bytes: u64,
    pub(super) spurious_bytes: u64,
    /// Microseconds in each of [`STATES`]: as the sender's capture shows them, and the receiver's.
    pub(super) at_sender_us: [u32; STATES.len()],
    pub(super) at_receiver_us: [u32; STATES.len()],
    /// The subflow that was waited for last.
    pub(super) blocked_by: Option<u16>,
    /// The fastest trains of packets, in bits per second: of what was acknowledged, and of what was
    /// new.
    pub(super) acked_bps: u64,
    pub(super) new_bps: u64,
}

/// The latest packets, to see how fast they follow each other.
#[derive(Debug, Clone, Default)]
struct PacketTrain {
    /// When, and how many bytes there had been by then.
    packets: VecDeque<(u64, u64)>,
}

impl PacketTrain {
    /// The rate of the latest packets, which are so many and take so long at least. What the first of
    /// them brought came before that time.
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
    /// A window up to `edge` is offered; it may be less than before.
    pub(super) fn record(&mut self, edge: i64, now_ns: u64) {
        if self.latest() == Some(edge) {
            return;
        }
        if self.all.len() >= MAX_EDGES {
            self.all.pop_front();
        }
        self.all.push_back((now_ns, edge));
    }

    /// The latest one.
    pub(super) fn latest(&self) -> Option<i64> {
        self.all.back().map(|(_, edge)| *edge)
    }

    /// The one that was known to somebody who hears of it after half of a round trip, and whose answer
    /// takes the other half.
    fn one_rtt_ago(&self, now_ns: u64, round_ns: u64) -> Option<i64> {
        let then = now_ns.saturating_sub(round_ns);
        let known = self.all.partition_point(|(at, _)| *at <= then);
        self.all.get(known.checked_sub(1)?).map(|(_, edge)| *edge)
    }
}

/// What is known above a subflow: of its whole connection.
#[derive(Debug, Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct ConnectionSendState {
    /// Data numbers mean something.
    pub(super) is_multipath: bool,
    /// Data that was sent and is not acknowledged.
    pub(super) is_outstanding: bool,
    /// Its last packet was not full.
    pub(super) is_app_limited: bool,
    /// Data is missing in front of some that is there.
    pub(super) has_gap: bool,
    /// Highest data number, and the subflow whose data comes next.
    pub(super) highest: i64,
    pub(super) next_subflow: Option<u16>,
}

/// A subflow as it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct SubflowSendState {
    pub(super) number: u16,
    pub(super) is_backup: bool,
    pub(super) is_established: bool,
    /// From its SYN to the end of the handshake.
    pub(super) handshake_rtt_ns: u64,
    pub(super) srtt_ns: u64,
    pub(super) highest: i64,
    pub(super) acked: i64,
    /// A full packet.
    pub(super) mss_bytes: u32,
}

impl SubflowSendState {
    /// With less room than that in a window, nothing is sent: several subflows fill it in pieces.
    fn min_window_bytes(&self, above: &ConnectionSendState) -> i64 {
        i64::from(self.mss_bytes) * if above.is_multipath { 2 } else { 1 }
    }
}

/// One direction of a subflow, as far as its sender is concerned.
#[derive(Debug, Clone, Default)]
pub(super) struct SenderTracker {
    /// Shift of the windows that its peer offers; unknown without its SYN.
    pub(super) window_scale: Option<u8>,
    pub(super) window_edges: WindowEdges,
    /// What the peer has beyond what it acknowledges.
    sacked: TaggedRanges<()>,
    /// Acknowledged in all, selectively or not.
    total_acked: i64,
    /// Its last packet with new data was not full.
    pub(super) is_app_limited: bool,
    /// Something was sent again.
    pub(super) had_loss: bool,
    /// The most that was outstanding, in this round trip and in the one before.
    current_round: (u64, i64),
    last_round_outstanding: i64,
    /// When the peer was last heard.
    pub(super) last_ack_ns: u64,
    acked_train: PacketTrain,
    new_train: PacketTrain,
    /// Until when states are noted.
    accounted_until_ns: Option<u64>,
    /// States since the peer was last heard: if it stays silent, the path was down all the time.
    pending_states: Vec<(u64, u64, SenderState)>,
    pub(super) series: BinnedSeries<SenderBin>,
}

impl SenderTracker {
    /// Counts what a packet has beside its payload.
    pub(super) fn count_headers(&mut self, segment: &CapturedSegment<'_>, now_ns: u64) {
        if let Some(slot) = self.series.bin_mut(now_ns) {
            slot.header_bytes += u64::from(segment.ip_bytes.saturating_sub(segment.payload_bytes));
        }
    }

    /// Notes selective acknowledgements; `ack` is the other one.
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

    /// Notes a packet's payload: new, seen again, of that known to have arrived, and copied.
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

    /// Notes the time since the last note as it was until now.
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
        let patience = DOWN_AFTER_NS.max(own.srtt_ns.saturating_mul(DOWN_AFTER_RTTS));
        let is_waiting = own.highest > own.acked && own.is_established;
        if self.last_ack_ns >= from {
            self.flush(None);
        }
        self.pending_states.push((from, now_ns, state));
        if !is_waiting {
            self.flush(None);
        } else if now_ns.saturating_sub(self.last_ack_ns) >= patience {
            self.flush(Some((Part::Down, None)));
        } else if self.pending_states.len() >= MAX_PENDING_STATES {
            self.flush(None);
        }
        let state = self.at_receiver(own, above, data_edges, from);
        self.add_time(from, now_ns, state, false);
        self.update_growth(own, now_ns);
    }

    /// Notes what is left at the end.
    pub(super) fn close(&mut self) {
        self.flush(None);
    }

    /// Notes the states since the peer was last heard, or what they all are now.
    fn flush(&mut self, state: Option<SenderState>) {
        for (from, to, own) in std::mem::take(&mut self.pending_states) {
            self.add_time(from, to, state.unwrap_or(own), true);
        }
    }

    /// As the sender's capture shows it.
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

    /// As the receiver's capture shows it.
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
        // Packets wait a little on the way, beyond what the handshake did.
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

    /// Whether more was outstanding in this round trip than in the one before.
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

/// Whether a packet, or a super-segment, has as much payload as its headers leave room for.
pub(super) fn is_full(payload_bytes: u32, mss_bytes: u32) -> bool {
    /// Options of TCP, at most.
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
        // Everything has arrived, and more is offered: the sender does not know it yet.
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
        // 1,500 B each ms are 12 Mbit/s; then there is a pause.
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
