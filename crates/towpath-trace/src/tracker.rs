//! Assignment of segments to subflows and connections.

use std::collections::HashMap;
use std::net::IpAddr;

use towpath_result::SequenceKind;
use towpath_wire::{Flags, Options};

use super::connection::{
    FallbackReason, INFINITE_MAPPING_END, NoteContext, NoteKind, TracedConnection, TracedSubflow,
};
use super::copies::RecentPackets;
use super::data_stream::{DataStreamTracker, SendContext};
use super::direction::{AckInfo, DirectionTracker};
use super::layers::{CapturedSegment, CutOptions, SocketKey};
use super::ranges::SeqRange;
use super::sequence::SequenceLog;

/// Maximum number of tracked subflows; later ones are only counted.
const MAX_SUBFLOWS: usize = 1 << 16;
/// Interval at which the subflows of a connection are polled, and the maximum number of them.
const POLL_INTERVAL_NS: u64 = 5_000_000;
const MAX_POLLED_SUBFLOWS: usize = 64;
/// Number of packets between checks of the memory for pictures.
const CHECK_INTERVAL_PACKETS: u64 = 1 << 16;
/// Maximum number of marks of all pictures.
const MAX_TOTAL_MARKS: usize = 1_500_000;

/// State of everything captured so far.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    /// Subflow by its two ends. Only for lookups, never iterated.
    by_ends: HashMap<(SocketKey, SocketKey), (u32, bool)>,
    /// Connection and end that own a token.
    pub(super) tokens: HashMap<u32, (u32, usize)>,
    /// Number of subflows of a connection with an address. Only for lookups, never iterated.
    pub(super) address_counts: HashMap<(u32, IpAddr), u32>,
    pub(super) subflows: Vec<TracedSubflow>,
    pub(super) connections: Vec<TracedConnection>,
    /// Number of segments of subflows beyond the limit.
    pub(super) untracked: u64,
    pub(super) tcp_packets: u64,
    /// Number of segments whose options were not all captured.
    pub(super) cut_packets: u64,
    /// Subflow of the previous segment, which is often that of the next.
    latest: Option<((SocketKey, SocketKey), (u32, bool))>,
    recent: RecentPackets,
}

/// A segment with its subflow.
#[derive(Debug, Clone, Copy)]
pub(super) struct LocatedSegment<'a> {
    pub(super) segment: &'a CapturedSegment<'a>,
    pub(super) options: &'a Options,
    /// Options that were not captured.
    pub(super) cut: Option<CutOptions>,
    pub(super) now_ns: u64,
    pub(super) subflow: usize,
    /// Index of the sending end, 0 or 1.
    pub(super) side: usize,
}

impl Tracker {
    /// Processes the next segment.
    pub(super) fn on_segment(
        &mut self,
        segment: &CapturedSegment<'_>,
        interface: u32,
        now_ns: u64,
    ) {
        self.tcp_packets += 1;
        if self.tcp_packets.is_multiple_of(CHECK_INTERVAL_PACKETS) {
            self.bound_sequences();
        }
        let options = Options::parse(segment.options);
        let (earlier, key) = self.recent.find(segment, &options, now_ns);
        let Some((subflow, side)) = self.find(segment, &options, now_ns) else {
            self.untracked += 1;
            return;
        };
        let cut = segment.cut_options();
        let located = LocatedSegment { segment, options: &options, cut, now_ns, subflow, side };
        if let Some(tracked) = self.subflows.get_mut(subflow)
            && let Some(direction) = tracked.directions.get_mut(side)
        {
            tracked.several_interfaces |= *tracked.interface.get_or_insert(interface) != interface;
            let copies = &mut tracked.copies;
            let is_counted = copies.is_counted(segment, earlier, (side, now_ns));
            // A copy within the same capture shows that it was taken in transit.
            if is_counted || tracked.interface == Some(interface) {
                match segment.outbound {
                    Some(true) => direction.outbound += 1,
                    Some(false) => direction.inbound += 1,
                    None => {}
                }
            }
            if !is_counted {
                direction.copied_bytes += u64::from(segment.payload_bytes);
                return;
            }
            self.recent.add(key);
            direction.packets += 1;
            direction.ip_bytes += u64::from(segment.ip_bytes);
            direction.last_ns = now_ns;
        }
        let is_syn_or_rst = segment.flags.0 & (Flags::SYN.0 | Flags::RST.0) != 0;
        if is_syn_or_rst || !options.mptcp.is_empty() || self.is_fresh(subflow) {
            self.on_handshake_options(&located);
        }
        // The handshake may have swapped the subflow's ends.
        let Some(side) = self.side(subflow, segment.source) else { return };
        let located = LocatedSegment { side, ..located };
        self.on_cut_options(&located);
        if self.bind(&located).is_some() {
            self.data(&located);
        }
    }

    /// Bounds the pictures' memory: all get coarser, then the smallest are given up.
    fn bound_sequences(&mut self) {
        let mark_counts = |tracker: &mut Self| {
            tracker.sequences().map(|log| log.marks().len()).collect::<Vec<_>>()
        };
        let counts = mark_counts(self);
        if counts.iter().sum::<usize>() <= MAX_TOTAL_MARKS {
            return;
        }
        let limit = counts.iter().copied().max().unwrap_or(0) / 2;
        self.sequences().for_each(|log| log.set_limit(limit.max(2_000)));
        let mut counts = mark_counts(self);
        counts.sort_unstable();
        let mut total: usize = counts.iter().sum();
        let mut min_marks = 0;
        for count in counts.into_iter().take_while(|count| *count < 2_000) {
            if total <= MAX_TOTAL_MARKS {
                break;
            }
            (total, min_marks) = (total - count, count + 1);
        }
        self.sequences()
            .filter(|log| log.marks().len() < min_marks)
            .for_each(|log| log.set_limit(0));
    }

    fn sequences(&mut self) -> impl Iterator<Item = &mut SequenceLog> {
        let of_subflows =
            self.subflows.iter_mut().flat_map(|s| &mut s.directions).map(|w| &mut w.sequence);
        let of_connections =
            self.connections.iter_mut().flat_map(|c| &mut c.data).map(|d| &mut d.sequence);
        of_subflows.chain(of_connections)
    }

    /// Returns true if the handshake, or the packets just after it, are not complete.
    fn is_fresh(&self, subflow: usize) -> bool {
        self.subflows.get(subflow).is_none_or(|s| s.established_ns.is_none() || s.is_v0)
    }

    pub(super) fn side(&self, subflow: usize, source: SocketKey) -> Option<usize> {
        let [first, _] = self.subflows.get(subflow)?.ends;
        Some(usize::from(first != source))
    }

    /// Returns the subflow of a segment and the sending end; creates one for a new pair of ends.
    fn find(
        &mut self,
        segment: &CapturedSegment<'_>,
        options: &Options,
        now_ns: u64,
    ) -> Option<(usize, usize)> {
        let is_swapped = segment.destination < segment.source;
        let key = if is_swapped {
            (segment.destination, segment.source)
        } else {
            (segment.source, segment.destination)
        };
        let existing = match self.latest {
            Some((latest, entry)) if latest == key => Some(entry),
            _ => self.by_ends.get(&key).copied(),
        };
        if let Some((index, _)) = existing {
            let side = self.side(index as usize, segment.source)?;
            let is_syn = segment.flags.contains(Flags::SYN) && !segment.flags.contains(Flags::ACK);
            if !is_syn || !self.is_reused(index as usize, side, segment.seq) {
                self.latest = existing.map(|entry| (key, entry));
                return Some((index as usize, side));
            }
        }
        if self.subflows.len() >= MAX_SUBFLOWS {
            return None;
        }
        let index = self.subflows.len();
        let opener = opener(segment, options);
        let ends = match opener {
            0 => [segment.source, segment.destination],
            _ => [segment.destination, segment.source],
        };
        let mut subflow = TracedSubflow::new(ends, segment.flags.contains(Flags::SYN), now_ns);
        subflow.first_packet = (!subflow.saw_syn).then_some((opener, segment.seq));
        self.subflows.push(subflow);
        let entry = (u32::try_from(index).ok()?, is_swapped);
        self.by_ends.insert(key, entry);
        self.latest = Some((key, entry));
        Some((index, opener))
    }

    /// Returns true if a SYN begins another connection between the same ends.
    fn is_reused(&self, subflow: usize, side: usize, seq: u32) -> bool {
        let Some(subflow) = self.subflows.get(subflow) else { return false };
        subflow
            .directions
            .get(side)
            .is_some_and(|direction| direction.packets > 0 && !direction.is_syn(seq))
            || subflow.is_before_syn(side, seq)
    }

    /// Creates a connection with this subflow as its first.
    pub(super) fn connect(&mut self, subflow: usize, now_ns: u64) -> usize {
        let index = self.connections.len();
        self.connections.push(TracedConnection::new(now_ns));
        self.attach(subflow, index, false);
        index
    }

    /// Adds a subflow to a connection; `is_swapped` swaps its ends to match the connection's order.
    pub(super) fn attach(&mut self, subflow: usize, connection: usize, is_swapped: bool) {
        let (Some(subflow_state), Some(connection_state)) =
            (self.subflows.get_mut(subflow), self.connections.get_mut(connection))
        else {
            return;
        };
        if is_swapped {
            subflow_state.ends.reverse();
            subflow_state.directions.reverse();
            subflow_state.opened_by = 1 - subflow_state.opened_by;
        }
        subflow_state.connection = Some(connection as u32);
        subflow_state.number = connection_state.subflows.len().min(usize::from(u16::MAX)) as u16;
        connection_state.subflows.push(subflow as u32);
        for end in subflow_state.ends {
            *self.address_counts.entry((connection as u32, end.ip())).or_default() += 1;
        }
        for (note, text) in std::mem::take(&mut subflow_state.early_notes) {
            let side = if is_swapped { 1 - note.side.min(1) } else { note.side };
            let note = NoteContext { side, subflow: subflow_state.number, ..note };
            connection_state.add_note(note, text);
        }
        for (name, count) in std::mem::take(&mut subflow_state.early_options) {
            *connection_state.options.entry(name).or_default() += count;
        }
        if connection_state.infinite {
            subflow_state.map_all();
        }
    }

    /// Processes mapping, payload and acknowledgements.
    fn data(&mut self, located: &LocatedSegment<'_>) {
        let LocatedSegment { segment, options, now_ns, side, .. } = *located;
        self.account_senders(located.subflow, now_ns);
        self.dss(located);
        if segment.payload_bytes > 0 && options.dss.is_none() && !segment.options_cut {
            self.on_unmapped_payload(located);
        }
        let Some((subflow, connection)) = self.subflow_and_connection(located.subflow) else {
            return;
        };
        let context = SendContext { now_ns, subflow: subflow.number };
        let [sender, receiver] = sender_and_receiver(&mut subflow.directions, side);
        let [sender_data, receiver_data] = sender_and_receiver(&mut connection.data, side);
        // The SYN occupies one number, and data may follow it (RFC 7413).
        let is_syn = segment.flags.contains(Flags::SYN);
        let seq = if is_syn { segment.seq.wrapping_add(1) } else { segment.seq };
        let start = sender.position_of(seq);
        let end = start.saturating_add(i64::from(segment.payload_bytes));
        if is_syn {
            sender.mark_flag(SequenceKind::Syn, context, start.saturating_sub(1));
        }
        if segment.payload_bytes > 0 && !sender.is_keep_alive(start, end) {
            sender.payload(sender_data, SeqRange::new(start, end), context);
            connection.last_data_ns = now_ns;
        }
        if segment.flags.contains(Flags::FIN) {
            sender.set_fin(end);
            sender.mark_flag(SequenceKind::Fin, context, end);
            subflow.fin_ns = subflow.fin_ns.or(Some(now_ns));
        }
        if segment.flags.contains(Flags::RST) {
            sender.mark_flag(SequenceKind::Rst, context, end);
        }
        if segment.flags.contains(Flags::ACK) && !segment.flags.contains(Flags::RST) {
            let has_shared_window = connection.multipath && !connection.infinite;
            let window = window_bytes(segment, sender, receiver).filter(|_| !has_shared_window);
            let info = AckInfo {
                context,
                ack: segment.ack,
                window,
                zero_window: segment.window == 0,
                pure_ack: segment.payload_bytes == 0
                    && !is_syn
                    && !segment.flags.contains(Flags::FIN),
                sack: &options.sack,
                multipath: has_shared_window,
            };
            receiver.mark_ack(receiver_data, &info);
            receiver.acknowledge(receiver_data, segment.ack, now_ns);
            if connection.infinite
                && let Some(number) = receiver.acked_data()
            {
                receiver_data.acknowledge(number, now_ns);
            }
            receiver_data.skip_missing(now_ns);
            on_ack(receiver, receiver_data, located);
        }
        if sender_data.has_begun() {
            sender.sender.count_headers(segment, now_ns);
        }
    }

    /// Updates the limits of a subflow's senders. Now and then it updates all subflows of the
    /// connection, since they affect each other.
    fn account_senders(&mut self, subflow: usize, now_ns: u64) {
        self.account_sender(subflow, now_ns);
        let Some((_, connection)) = self.subflow_and_connection(subflow) else { return };
        if connection.subflows.len() < 2
            || now_ns < connection.last_poll_ns.saturating_add(POLL_INTERVAL_NS)
        {
            return;
        }
        connection.last_poll_ns = now_ns;
        let others: Vec<u32> =
            connection.subflows.iter().take(MAX_POLLED_SUBFLOWS).copied().collect();
        for other in others {
            self.account_sender(other as usize, now_ns);
        }
    }

    fn account_sender(&mut self, subflow: usize, now_ns: u64) {
        let Some((subflow, connection)) = self.subflow_and_connection(subflow) else { return };
        let is_multipath = connection.is_multipath();
        if subflow.reset_ns.is_some() || subflow.fin_ns.is_some() {
            return;
        }
        for side in [0, 1] {
            let Some(data) = connection.data.get(side).filter(|data| data.has_begun()) else {
                continue;
            };
            let (connection_state, Some(subflow_state)) =
                (data.send_state(is_multipath), subflow.send_state(side))
            else {
                continue;
            };
            if let Some(direction) = subflow.directions.get_mut(side) {
                direction.sender.account_until(
                    &subflow_state,
                    &connection_state,
                    &data.window_edges,
                    now_ns,
                );
            }
        }
    }

    pub(super) fn subflow_and_connection(
        &mut self,
        subflow: usize,
    ) -> Option<(&mut TracedSubflow, &mut TracedConnection)> {
        let subflow = self.subflows.get_mut(subflow)?;
        let connection = self.connections.get_mut(subflow.connection? as usize)?;
        Some((subflow, connection))
    }

    /// Processes mapping and DATA_ACK, unless other such options of the connection were cut.
    fn dss(&mut self, located: &LocatedSegment<'_>) {
        let LocatedSegment { segment, now_ns, side, .. } = *located;
        let Some(dss) = &located.options.dss else { return };
        if self.has_cut_options(located.subflow) {
            return;
        }
        let Some((subflow, connection)) = self.subflow_and_connection(located.subflow) else {
            return;
        };
        connection.multipath = true;
        let ([sender, receiver], [sender_data, receiver_data]) = (
            sender_and_receiver(&mut subflow.directions, side),
            sender_and_receiver(&mut connection.data, side),
        );
        (sender_data.is_plotted, receiver_data.is_plotted) = (true, true);
        let context = SendContext { now_ns, subflow: subflow.number };
        if let Some(ack) = dss.data_ack
            && let Some(ack) = receiver_data.position_of(ack)
        {
            receiver_data.mark_ack(
                ack,
                window_bytes(segment, sender, receiver),
                segment.window,
                context,
            );
            receiver_data.acknowledge(ack, now_ns);
        }
        let Some(mapping) = dss.mapping else { return };
        let Some(data_start) = sender_data.position_of(mapping.dsn) else { return };
        if mapping.len == 0 {
            let position = sender
                .position_of_ssn(mapping.ssn)
                .unwrap_or_else(|| sender.position_of(segment.seq));
            sender.maps.add(SeqRange::new(position, INFINITE_MAPPING_END), data_start);
            if !connection.infinite {
                connection.infinite = true;
                let reason = connection.failed.unwrap_or(FallbackReason::InfiniteMapping);
                self.fall_back_subflow(located.subflow, reason, now_ns);
            }
            return;
        }
        // DATA_FIN occupies the last number of the mapping (RFC 8684 §3.3.3).
        let len = i64::from(mapping.len) - i64::from(dss.data_fin);
        if dss.data_fin {
            let fin = data_start.saturating_add(len);
            sender_data.set_fin(fin);
            sender_data.mark(SequenceKind::Fin, context, SeqRange::new(fin, fin), 1);
        }
        if let Ok(spare) = u32::try_from(len - i64::from(segment.payload_bytes))
            && segment.payload_bytes > 0
        {
            sender.infer_isn(segment.seq, mapping.ssn, spare);
        }
        if len > 0
            && let Some(start) = sender.position_of_ssn(mapping.ssn)
        {
            sender.maps.add(SeqRange::new(start, start.saturating_add(len)), data_start);
            sender.map_earlier_payload(sender_data, context);
        }
    }

    /// Processes payload without DSS: the rest of a mapping, or a fallback to plain TCP.
    fn on_unmapped_payload(&mut self, located: &LocatedSegment<'_>) {
        let LocatedSegment { segment, now_ns, side, .. } = *located;
        let Some((subflow, connection)) = self.subflow_and_connection(located.subflow) else {
            return;
        };
        let Some(direction) = subflow.directions.get_mut(side) else { return };
        // A lost packet may have carried the mapping of this payload.
        let position = direction.position_of(segment.seq);
        if connection.multipath && !connection.late && direction.has_gap_before(position) {
            return;
        }
        let is_mapped = !direction.maps.is_empty();
        if is_mapped || connection.infinite || subflow.number > 0 {
            return;
        }
        if connection.multipath && !connection.late {
            self.fall_back_subflow(located.subflow, FallbackReason::OptionsGone, now_ns);
        } else if let Some(connection) = subflow.connection {
            self.fall_back(connection as usize, located.subflow, None, now_ns);
        }
    }

    pub(super) fn fall_back_subflow(
        &mut self,
        subflow: usize,
        reason: FallbackReason,
        now_ns: u64,
    ) {
        let connection = self.subflows.get(subflow).and_then(|s| s.connection);
        if let Some(connection) = connection {
            self.fall_back(connection as usize, subflow, Some(reason), now_ns);
        }
    }

    /// Makes the subflow's bytes the data from now on. Without a reason, the connection never was
    /// Multipath TCP.
    pub(super) fn fall_back(
        &mut self,
        connection: usize,
        subflow: usize,
        reason: Option<FallbackReason>,
        now_ns: u64,
    ) {
        let (Some(subflow_state), Some(connection_state)) =
            (self.subflows.get_mut(subflow), self.connections.get_mut(connection))
        else {
            return;
        };
        connection_state.infinite = true;
        subflow_state.map_all();
        let context = SendContext { now_ns, subflow: subflow_state.number };
        for (direction, data) in subflow_state.directions.iter_mut().zip(&mut connection_state.data)
        {
            direction.map_earlier_payload(data, context);
        }
        if let Some(reason) = reason
            && connection_state.fallback.is_none()
        {
            connection_state.fallback = Some(reason);
            let note = NoteContext {
                now_ns,
                subflow: subflow_state.number,
                side: 0,
                kind: NoteKind::Fallback,
            };
            connection_state.add_note(note, reason.text().to_owned());
        }
    }
}

/// Processes acknowledgement and window, which determine the sender's room.
fn on_ack(
    receiver: &mut DirectionTracker,
    receiver_data: &mut DataStreamTracker,
    located: &LocatedSegment<'_>,
) {
    let LocatedSegment { segment, options, now_ns, .. } = *located;
    let is_syn = segment.flags.contains(Flags::SYN);
    receiver.on_sack(segment.ack, &options.sack, (!is_syn).then_some(segment.window), now_ns);
    if let Some(ack) = options.dss.as_ref().and_then(|dss| dss.data_ack)
        && let Some(scale) = receiver.sender.window_scale.filter(|_| !is_syn)
    {
        receiver_data.on_window(ack, (segment.window, scale), now_ns);
    }
}

/// Returns the window of a segment of `sender`, in bytes; a SYN's is not scaled (RFC 7323 §2.2).
fn window_bytes(
    segment: &CapturedSegment<'_>,
    sender: &DirectionTracker,
    receiver: &DirectionTracker,
) -> Option<i64> {
    if segment.flags.contains(Flags::SYN) {
        return Some(i64::from(segment.window));
    }
    sender.window_scale.window(receiver.window_scale, segment.window)
}

/// Returns the opener of a subflow from its first segment: 0 for the sender, 1 for the receiver.
fn opener(segment: &CapturedSegment<'_>, _options: &Options) -> usize {
    match (segment.flags.contains(Flags::SYN), segment.flags.contains(Flags::ACK)) {
        (true, false) => 0,
        (true, true) => 1,
        // Unknown without a SYN; servers usually have the lower port.
        (false, _) => usize::from(segment.source.port() < segment.destination.port()),
    }
}

/// Returns the sending end, and the other one.
pub(super) fn sender_and_receiver<T>(ends: &mut [T; 2], side: usize) -> [&mut T; 2] {
    let [first, second] = ends;
    if side == 0 { [first, second] } else { [second, first] }
}
