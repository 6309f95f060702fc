//! Assignment of segments to subflows and connections.

use std::collections::HashMap;

use towpath_measure::result::SequenceKind;
use towpath_mptcp::wire::{Dss, Flags, Options};

use super::connection::{FallbackReason, NoteContext, NoteKind, TracedConnection, TracedSubflow};
use super::data_stream::DataStreamTracker;
use super::direction::{AckInfo, DirectionTracker, SendContext};
use super::layers::{CapturedSegment, SocketKey};
use super::ranges::SeqRange;
use super::sequence::SequenceLog;

/// Maximum number of tracked subflows; later ones are only counted.
const MAX_SUBFLOWS: usize = 1 << 16;
/// Number of recent connections that a subflow without handshake may belong to.
const RECENT_CONNECTIONS: usize = 256;
/// Maximum distance of data numbers that belong to one connection.
const MAX_DSN_DISTANCE: u64 = 1 << 28;
/// Interval at which all subflows of a connection are polled, and their maximum number.
const POLL_INTERVAL_NS: u64 = 5_000_000;
const MAX_POLLED_SUBFLOWS: usize = 64;
/// Number of packets between checks of the pictures' memory,
const CHECK_INTERVAL_PACKETS: u64 = 1 << 16;
/// and the maximum number of marks of all of them.
const MAX_TOTAL_MARKS: usize = 1_500_000;
/// End of an infinite mapping.
pub(super) const INFINITE_MAPPING_END: i64 = i64::MAX / 4;

/// State of everything captured so far.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    /// Subflow by its two ends. Only for lookups, never iterated.
    by_ends: HashMap<(SocketKey, SocketKey), (u32, bool)>,
    /// Connection and end that own a token.
    pub(super) tokens: HashMap<u32, (u32, usize)>,
    pub(super) subflows: Vec<TracedSubflow>,
    pub(super) connections: Vec<TracedConnection>,
    /// Number of segments of subflows beyond the limit.
    pub(super) untracked: u64,
    pub(super) tcp_packets: u64,
    /// Subflow of the previous segment, which is often that of the next.
    latest: Option<((SocketKey, SocketKey), (u32, bool))>,
}

/// A segment with its subflow.
#[derive(Debug, Clone, Copy)]
pub(super) struct LocatedSegment<'a> {
    pub(super) segment: &'a CapturedSegment<'a>,
    pub(super) options: &'a Options,
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
        let Some((subflow, side)) = self.find(segment, &options, now_ns) else {
            self.untracked += 1;
            return;
        };
        let placed = LocatedSegment { segment, options: &options, now_ns, subflow, side };
        if let Some(found) = self.subflows.get_mut(subflow)
            && let Some(way) = found.directions.get_mut(side)
        {
            found.several_interfaces |= *found.interface.get_or_insert(interface) != interface;
            way.packets += 1;
            way.ip_bytes += u64::from(segment.ip_bytes);
            way.last_ns = now_ns;
            match segment.outbound {
                Some(true) => way.outbound += 1,
                Some(false) => way.inbound += 1,
                None => {}
            }
        }
        let rare = segment.flags.0 & (Flags::SYN.0 | Flags::RST.0) != 0;
        if rare || !options.mptcp.is_empty() || self.is_fresh(subflow) {
            self.handshake(&placed);
        }
        // The handshake may have swapped the subflow's ends.
        let Some(side) = self.side(subflow, segment.source) else { return };
        let placed = LocatedSegment { side, ..placed };
        if self.bind(&placed).is_some() {
            self.data(&placed);
        }
    }

    /// Bounds the pictures' memory: all get coarser, then the smallest are given up.
    fn bound_sequences(&mut self) {
        let marks = |tracker: &mut Self| {
            tracker.sequences().map(|log| log.marks().len()).collect::<Vec<_>>()
        };
        let all = marks(self);
        if all.iter().sum::<usize>() <= MAX_TOTAL_MARKS {
            return;
        }
        let each = all.iter().copied().max().unwrap_or(0) / 2;
        self.sequences().for_each(|log| log.set_limit(each.max(2_000)));
        let mut all = marks(self);
        all.sort_unstable();
        let mut left: usize = all.iter().sum();
        let mut smallest = 0;
        for count in all.into_iter().take_while(|count| *count < 2_000) {
            if left <= MAX_TOTAL_MARKS {
                break;
            }
            (left, smallest) = (left - count, count + 1);
        }
        self.sequences()
            .filter(|log| log.marks().len() < smallest)
            .for_each(|log| log.set_limit(0));
    }

    fn sequences(&mut self) -> impl Iterator<Item = &mut SequenceLog> {
        let below =
            self.subflows.iter_mut().flat_map(|s| &mut s.directions).map(|w| &mut w.sequence);
        let above = self.connections.iter_mut().flat_map(|c| &mut c.data).map(|d| &mut d.sequence);
        below.chain(above)
    }

    /// Returns true if the handshake, or the packets just after it, are not complete.
    fn is_fresh(&self, subflow: usize) -> bool {
        self.subflows.get(subflow).is_none_or(|s| s.established_ns.is_none() || s.v0)
    }

    fn side(&self, subflow: usize, source: SocketKey) -> Option<usize> {
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
        let known = match self.latest {
            Some((latest, found)) if latest == key => Some(found),
            _ => self.by_ends.get(&key).copied(),
        };
        if let Some((index, _)) = known {
            let side = self.side(index as usize, segment.source)?;
            let syn = segment.flags.contains(Flags::SYN) && !segment.flags.contains(Flags::ACK);
            if !syn || !self.is_reused(index as usize, side, segment.seq) {
                self.latest = known.map(|found| (key, found));
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
        self.subflows.push(TracedSubflow::new(ends, segment.flags.contains(Flags::SYN), now_ns));
        let found = (u32::try_from(index).ok()?, is_swapped);
        self.by_ends.insert(key, found);
        self.latest = Some((key, found));
        Some((index, opener))
    }

    /// Returns true if a SYN begins another connection between the same ends.
    fn is_reused(&self, subflow: usize, side: usize, seq: u32) -> bool {
        let Some(subflow) = self.subflows.get(subflow) else { return false };
        subflow
            .directions
            .get(side)
            .is_some_and(|direction| direction.packets > 0 && !direction.is_syn(seq))
            || (!subflow.saw_syn && subflow.directions.iter().any(|way| way.payload_bytes > 0))
    }

    /// Assigns the subflow to a connection if enough is known; returns its index.
    fn bind(&mut self, placed: &LocatedSegment<'_>) -> Option<usize> {
        let subflow = self.subflows.get(placed.subflow)?;
        if let Some(connection) = subflow.connection {
            return Some(connection as usize);
        }
        match &placed.options.dss {
            Some(dss) => self.bind_by_numbers(placed, dss),
            None if placed.segment.payload_bytes > 0 && subflow.token.is_none() => {
                let connection = self.connect(placed.subflow, placed.now_ns);
                self.fall_back(connection, placed.subflow, None, placed.now_ns);
                Some(connection)
            }
            None => None,
        }
    }

    /// Assigns a subflow whose handshake was not captured. Data numbers that continue another's
    /// belong to the same connection.
    fn bind_by_numbers(&mut self, placed: &LocatedSegment<'_>, dss: &Dss) -> Option<usize> {
        let side = placed.side;
        let near = |connection: &TracedConnection, turned: bool| {
            let own = if turned { 1 - side } else { side };
            let [one, other] = [own, 1 - own].map(|way| connection.data.get(way));
            let sent = dss.mapping.and_then(|mapping| one?.distance(mapping.dsn));
            let acked = dss.data_ack.and_then(|ack| other?.distance(ack));
            let all_near = [sent, acked].into_iter().flatten().all(|far| far < MAX_DSN_DISTANCE);
            (sent.is_some() || acked.is_some()) && all_near
        };
        let recent = self.connections.len().saturating_sub(RECENT_CONNECTIONS);
        let candidates = self.connections.iter().enumerate().skip(recent).rev();
        let found = candidates.filter(|(_, c)| c.is_multipath()).find_map(|(index, connection)| {
            [false, true]
                .into_iter()
                .find(|is_swapped| near(connection, *is_swapped))
                .map(|t| (index, t))
        });
        let token = self.subflows.get(placed.subflow)?.token;
        let (connection, end) = if let Some((connection, turned)) = found {
            self.attach(placed.subflow, connection, turned);
            let opener = self.subflows.get(placed.subflow)?.opened_by;
            (connection, 1 - opener)
        } else {
            let connection = self.connect(placed.subflow, placed.now_ns);
            let found = self.connections.get_mut(connection)?;
            (found.late, found.multipath) = (true, true);
            (connection, 1)
        };
        if let Some(token) = token {
            self.tokens.entry(token).or_insert((connection as u32, end));
        }
        Some(connection)
    }

    /// Creates a connection with this subflow as its first.
    pub(super) fn connect(&mut self, subflow: usize, now_ns: u64) -> usize {
        let index = self.connections.len();
        self.connections.push(TracedConnection::new(now_ns));
        self.attach(subflow, index, false);
        index
    }

    /// Adds a subflow to a connection; `turned` swaps its ends to match the connection's order.
    pub(super) fn attach(&mut self, subflow: usize, connection: usize, turned: bool) {
        let (Some(found), Some(to)) =
            (self.subflows.get_mut(subflow), self.connections.get_mut(connection))
        else {
            return;
        };
        if turned {
            found.ends.reverse();
            found.directions.reverse();
            found.opened_by = 1 - found.opened_by;
        }
        found.connection = Some(connection as u32);
        found.number = to.subflows.len().min(usize::from(u16::MAX)) as u16;
        to.subflows.push(subflow as u32);
        if to.infinite {
            found.map_all();
        }
    }

    /// Processes mapping, payload and acknowledgements.
    fn data(&mut self, placed: &LocatedSegment<'_>) {
        let LocatedSegment { segment, options, now_ns, side, .. } = *placed;
        self.account_senders(placed.subflow, now_ns);
        if let Some(dss) = &options.dss {
            self.dss(placed, dss);
        }
        let bare = segment.payload_bytes > 0 && options.dss.is_none() && !segment.options_cut;
        if bare {
            self.on_unmapped_payload(placed);
        }
        let Some((subflow, connection)) = self.pair(placed.subflow) else { return };
        let moment = SendContext { now_ns, subflow: subflow.number };
        let ([from, to], [data_from, data_to]) = (
            sender_and_receiver(&mut subflow.directions, side),
            sender_and_receiver(&mut connection.data, side),
        );
        // The SYN occupies one number, and data may follow it (RFC 7413).
        let syn = segment.flags.contains(Flags::SYN);
        let seq = if syn { segment.seq.wrapping_add(1) } else { segment.seq };
        let start = from.place(seq);
        let end = start.saturating_add(i64::from(segment.payload_bytes));
        if syn {
            from.mark_flag(SequenceKind::Syn, moment, start.saturating_sub(1));
        }
        if segment.payload_bytes > 0 && !from.is_keep_alive(start, end) {
            from.payload(data_from, SeqRange::new(start, end), moment);
            connection.last_data_ns = now_ns;
        }
        if segment.flags.contains(Flags::FIN) {
            from.set_fin(end);
            from.mark_flag(SequenceKind::Fin, moment, end);
            subflow.fin_ns = subflow.fin_ns.or(Some(now_ns));
        }
        if segment.flags.contains(Flags::RST) {
            from.mark_flag(SequenceKind::Rst, moment, end);
        }
        if segment.flags.contains(Flags::ACK) && !segment.flags.contains(Flags::RST) {
            let shared = connection.multipath && !connection.infinite;
            let window = window_bytes(segment, from, to).filter(|_| !shared);
            let answer = AckInfo {
                at: moment,
                ack: segment.ack,
                window,
                zero_window: segment.window == 0,
                pure_ack: segment.payload_bytes == 0 && !syn && !segment.flags.contains(Flags::FIN),
                sack: &options.sack,
                multipath: shared,
            };
            to.mark_ack(data_to, &answer);
            to.acknowledge(data_to, segment.ack, now_ns);
            if connection.infinite
                && let Some(number) = to.acked_data()
            {
                data_to.acknowledge(number, now_ns);
            }
            data_to.skip_missing(now_ns);
            on_ack(to, data_to, placed);
        }
        if data_from.has_begun() {
            from.sender.count_headers(segment, now_ns);
        }
    }

    /// Updates the limits of a subflow's senders. Now and then it updates all subflows of the
    /// connection, since they affect each other.
    fn account_senders(&mut self, subflow: usize, now_ns: u64) {
        self.account_sender(subflow, now_ns);
        let Some((_, connection)) = self.pair(subflow) else { return };
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
        let Some((subflow, connection)) = self.pair(subflow) else { return };
        let is_multipath = connection.is_multipath();
        if subflow.reset_ns.is_some() || subflow.fin_ns.is_some() {
            return;
        }
        for side in [0, 1] {
            let Some(data) = connection.data.get(side).filter(|data| data.has_begun()) else {
                continue;
            };
            let (above, Some(own)) = (data.send_state(is_multipath), subflow.send_state(side))
            else {
                continue;
            };
            if let Some(direction) = subflow.directions.get_mut(side) {
                direction.sender.account_until(&own, &above, &data.window_edges, now_ns);
            }
        }
    }

    pub(super) fn pair(
        &mut self,
        subflow: usize,
    ) -> Option<(&mut TracedSubflow, &mut TracedConnection)> {
        let subflow = self.subflows.get_mut(subflow)?;
        let connection = self.connections.get_mut(subflow.connection? as usize)?;
        Some((subflow, connection))
    }

    fn dss(&mut self, placed: &LocatedSegment<'_>, dss: &Dss) {
        let LocatedSegment { segment, now_ns, side, .. } = *placed;
        let Some((subflow, connection)) = self.pair(placed.subflow) else { return };
        connection.multipath = true;
        let ([from, to], [data_from, data_to]) = (
            sender_and_receiver(&mut subflow.directions, side),
            sender_and_receiver(&mut connection.data, side),
        );
        (data_from.is_plotted, data_to.is_plotted) = (true, true);
        let moment = SendContext { now_ns, subflow: subflow.number };
        if let Some(ack) = dss.data_ack
            && let Some(ack) = data_to.place(ack)
        {
            data_to.mark_ack(ack, window_bytes(segment, from, to), segment.window, moment);
            data_to.acknowledge(ack, now_ns);
        }
        let Some(mapping) = dss.mapping else { return };
        let Some(number) = data_from.place(mapping.dsn) else { return };
        if mapping.len == 0 {
            let at = from.place_relative(mapping.ssn).unwrap_or_else(|| from.place(segment.seq));
            from.maps.add(SeqRange::new(at, INFINITE_MAPPING_END), number);
            if !connection.infinite {
                connection.infinite = true;
                let reason = connection.failed.unwrap_or(FallbackReason::InfiniteMapping);
                self.fall_back_with(placed.subflow, reason, now_ns);
            }
            return;
        }
        // DATA_FIN occupies the last number of the mapping (RFC 8684 §3.3.3).
        let len = i64::from(mapping.len) - i64::from(dss.data_fin);
        if dss.data_fin {
            let fin = number.saturating_add(len);
            data_from.set_fin(fin);
            data_from.mark(SequenceKind::Fin, moment, SeqRange::new(fin, fin), 1);
        }
        if len == i64::from(segment.payload_bytes) {
            from.infer_isn(segment.seq, mapping.ssn);
        }
        if len > 0
            && let Some(start) = from.place_relative(mapping.ssn)
        {
            from.maps.add(SeqRange::new(start, start.saturating_add(len)), number);
        }
    }

    /// Processes payload without DSS: the rest of a mapping, or a fallback to plain TCP.
    fn on_unmapped_payload(&mut self, placed: &LocatedSegment<'_>) {
        let LocatedSegment { now_ns, side, .. } = *placed;
        let Some((subflow, connection)) = self.pair(placed.subflow) else { return };
        let mapped = subflow.directions.get(side).is_some_and(|way| !way.maps.is_empty());
        if mapped || connection.infinite || subflow.number > 0 {
            return;
        }
        if connection.multipath && !connection.late {
            self.fall_back_with(placed.subflow, FallbackReason::OptionsGone, now_ns);
        } else if let Some(connection) = subflow.connection {
            self.fall_back(connection as usize, placed.subflow, None, now_ns);
        }
    }

    pub(super) fn fall_back_with(&mut self, subflow: usize, reason: FallbackReason, now_ns: u64) {
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
        let (Some(found), Some(to)) =
            (self.subflows.get_mut(subflow), self.connections.get_mut(connection))
        else {
            return;
        };
        to.infinite = true;
        found.map_all();
        if let Some(reason) = reason
            && to.fallback.is_none()
        {
            to.fallback = Some(reason);
            let note =
                NoteContext { now_ns, subflow: found.number, side: 0, kind: NoteKind::Fallback };
            to.add_note(note, reason.text().to_owned());
        }
    }
}

/// Processes acknowledgement and window, which determine the sender's room.
fn on_ack(to: &mut DirectionTracker, data_to: &mut DataStreamTracker, placed: &LocatedSegment<'_>) {
    let LocatedSegment { segment, options, now_ns, .. } = *placed;
    let syn = segment.flags.contains(Flags::SYN);
    to.on_sack(segment.ack, &options.sack, (!syn).then_some(segment.window), now_ns);
    if let Some(ack) = options.dss.as_ref().and_then(|dss| dss.data_ack)
        && let Some(scale) = to.sender.window_scale.filter(|_| !syn)
    {
        data_to.on_window(ack, (segment.window, scale), now_ns);
    }
}

/// Returns the window of a segment from `from`, in bytes; a SYN's is not scaled (RFC 7323 §2.2).
fn window_bytes(
    segment: &CapturedSegment<'_>,
    from: &DirectionTracker,
    to: &DirectionTracker,
) -> Option<i64> {
    if segment.flags.contains(Flags::SYN) {
        return Some(i64::from(segment.window));
    }
    from.window_scale.window(to.window_scale, segment.window)
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
pub(super) fn sender_and_receiver<T>(both: &mut [T; 2], side: usize) -> [&mut T; 2] {
    let [first, second] = both;
    if side == 0 { [first, second] } else { [second, first] }
}
