//! Middleboxes that change TCP packets: their options, lengths, addresses and payload.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use towpath_net::Instant;
use towpath_scenario::{LinkSide, Middlebox, MiddleboxAction};
use towpath_wire::{Flags, MptcpOption, Packet, Segment};

/// Longest time that a coalescing box holds a segment for the next one.
const COALESCE_TIMEOUT: Duration = Duration::from_micros(500);
/// Largest payload of a coalesced segment: two full packets.
const MAX_COALESCED_BYTES: usize = 2_960;
/// One in this number of packets with data is rewritten.
const REWRITE_INTERVAL_PACKETS: u64 = 50;
/// Offset that the `shift-sequence` box adds to sequence numbers.
const SEQUENCE_OFFSET: u32 = 0x1234_5678;
/// First port that an address translator assigns.
const FIRST_PORT: u16 = 40_000;

/// Direction on a path: up from its first host, down towards it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PathDirection {
    Up,
    Down,
}

/// All middleboxes of one path, in the order that a packet from the first host passes.
#[derive(Debug, Default)]
pub(crate) struct MiddleboxChain {
    boxes: Vec<MiddleboxState>,
    /// Last IPv4 identification used: emitted packets of the path get their own numbers.
    identification: u16,
}

#[derive(Debug)]
struct MiddleboxState {
    side: LinkSide,
    action: MiddleboxAction,
    /// Address translations: inside, outside.
    translations: Vec<(SocketAddr, SocketAddr)>,
    /// Packets with data seen so far.
    data_packets: u64,
    /// Segment held for coalescing, by direction, with the time of its release.
    held: [Option<(Instant, Segment)>; 2],
}

impl MiddleboxChain {
    pub(crate) fn new(middleboxes: &[Middlebox], path: usize) -> Self {
        let on_path = middleboxes.iter().filter(|middlebox| middlebox.path == path);
        let new_state = |middlebox: &Middlebox| MiddleboxState {
            side: middlebox.side,
            action: middlebox.action,
            translations: Vec::new(),
            data_packets: 0,
            held: [None, None],
        };
        Self { boxes: on_path.map(new_state).collect(), identification: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.boxes.is_empty()
    }

    /// Returns the earliest time at which [`Self::release_expired`] releases a segment.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let held_segments = self.boxes.iter().flat_map(|state| state.held.iter().flatten());
        held_segments.map(|(until, _)| *until).min()
    }

    /// Passes a packet through all boxes and appends the resulting packets to `out`.
    pub(crate) fn pass(
        &mut self,
        now: Instant,
        direction: PathDirection,
        packet: Packet,
        out: &mut VecDeque<Packet>,
    ) {
        let Ok(segment) = packet.parse() else {
            out.push_back(packet); // damaged in transit: boxes forward it unchanged
            return;
        };
        self.pass_segment(now, direction, 0, segment, out);
    }

    /// Releases segments that boxes have held until `now`.
    pub(crate) fn release_expired(
        &mut self,
        now: Instant,
        direction: PathDirection,
        out: &mut VecDeque<Packet>,
    ) {
        let count = self.boxes.len();
        for position in 0..count {
            let index =
                if direction == PathDirection::Up { position } else { count - 1 - position };
            let released =
                self.boxes.get_mut(index).and_then(|state| state.take_expired(now, direction));
            if let Some(segment) = released {
                self.pass_segment(now, direction, position + 1, segment, out);
            }
        }
    }

    /// Returns the inside address that the boxes translate to `outside`.
    pub(crate) fn untranslated_address(&self, outside: SocketAddr) -> SocketAddr {
        self.boxes.iter().rev().fold(outside, |address, state| {
            let translation = state.translations.iter().find(|(_, outside)| *outside == address);
            translation.map_or(address, |(inside, _)| *inside)
        })
    }

    /// Passes a segment through the boxes from the one at `position` on, counted in its direction.
    fn pass_segment(
        &mut self,
        now: Instant,
        direction: PathDirection,
        position: usize,
        segment: Segment,
        out: &mut VecDeque<Packet>,
    ) {
        let mut segments = vec![segment];
        let count = self.boxes.len();
        for position in position..count {
            let index =
                if direction == PathDirection::Up { position } else { count - 1 - position };
            let Some(state) = self.boxes.get_mut(index) else { continue };
            let mut changed = Vec::new();
            for segment in segments {
                state.process(now, direction, segment, &mut changed);
            }
            segments = changed;
        }
        for segment in segments {
            self.identification = self.identification.wrapping_add(1);
            out.push_back(Packet::emit(&segment, self.identification));
        }
    }
}

impl MiddleboxState {
    fn take_expired(&mut self, now: Instant, direction: PathDirection) -> Option<Segment> {
        let held_segment = self.held.get_mut(direction as usize)?;
        held_segment.take_if(|(until, _)| *until <= now).map(|(_, segment)| segment)
    }

    fn handles(&self, direction: PathDirection) -> bool {
        match self.side {
            LinkSide::Both => true,
            LinkSide::Up => direction == PathDirection::Up,
            LinkSide::Down => direction == PathDirection::Down,
        }
    }

    fn process(
        &mut self,
        now: Instant,
        direction: PathDirection,
        mut segment: Segment,
        out: &mut Vec<Segment>,
    ) {
        if !self.handles(direction) {
            out.push(segment);
            return;
        }
        let options = &mut segment.options;
        match self.action {
            MiddleboxAction::StripMptcp => {
                options.mptcp.clear();
                options.dss = None;
            }
            MiddleboxAction::StripMptcpSyn if segment.flags.contains(Flags::SYN) => {
                options.mptcp.clear();
            }
            MiddleboxAction::StripMptcpSyn => {}
            MiddleboxAction::StripDss => options.dss = None,
            MiddleboxAction::StripAddAddr => {
                options.mptcp.retain(|option| !matches!(option, MptcpOption::AddAddress(_)));
            }
            MiddleboxAction::Split => return split(segment, out),
            MiddleboxAction::Coalesce => return self.coalesce(now, direction, segment, out),
            MiddleboxAction::Nat => self.translate(direction, &mut segment),
            MiddleboxAction::ShiftSequence => shift_sequence(direction, &mut segment),
            MiddleboxAction::RewritePayload => self.rewrite(&mut segment),
        }
        out.push(segment);
    }

    /// Joins contiguous segments. Only the first segment's options remain, as with receive offload
    /// in a box that does not know Multipath TCP.
    fn coalesce(
        &mut self,
        now: Instant,
        direction: PathDirection,
        segment: Segment,
        out: &mut Vec<Segment>,
    ) {
        let Some(held_segment) = self.held.get_mut(direction as usize) else {
            out.push(segment);
            return;
        };
        let is_plain_data =
            segment.flags.without(Flags::PSH) == Flags::ACK && !segment.payload.is_empty();
        match held_segment.take() {
            Some((_, mut first)) if is_plain_data && follows(&first, &segment) => {
                for chunk in segment.payload.chunks() {
                    first.payload.push(chunk.clone());
                }
                first.flags = first.flags.with(segment.flags);
                first.ack = segment.ack;
                first.window = segment.window;
                out.push(first);
            }
            not_joined => {
                out.extend(not_joined.map(|(_, first)| first));
                if is_plain_data {
                    *held_segment = Some((now + COALESCE_TIMEOUT, segment));
                } else {
                    out.push(segment);
                }
            }
        }
    }

    fn translate(&mut self, direction: PathDirection, segment: &mut Segment) {
        if direction == PathDirection::Down {
            let outside = segment.destination;
            let translation =
                self.translations.iter().find(|(_, known_outside)| *known_outside == outside);
            segment.destination = translation.map_or(outside, |(inside, _)| *inside);
            return;
        }
        let inside = segment.source;
        let translation = self
            .translations
            .iter()
            .find(|(known_inside, _)| *known_inside == inside)
            .map(|(_, outside)| *outside);
        segment.source = translation.unwrap_or_else(|| {
            let number = u16::try_from(self.translations.len()).unwrap_or(u16::MAX);
            let outside =
                SocketAddr::new(translator_address(inside.ip()), FIRST_PORT.wrapping_add(number));
            self.translations.push((inside, outside));
            outside
        });
    }

    /// Changes one byte of some packets and keeps their length, as an application-level gateway.
    fn rewrite(&mut self, segment: &mut Segment) {
        if segment.payload.is_empty() {
            return;
        }
        self.data_packets += 1;
        if !self.data_packets.is_multiple_of(REWRITE_INTERVAL_PACKETS) {
            return;
        }
        let mut data = segment.payload.to_bytes().to_vec();
        if let Some(byte) = data.first_mut() {
            *byte = byte.wrapping_add(1);
        }
        segment.payload = Bytes::from(data).into();
    }
}

/// Returns the translator's own address: `.251` in the path's subnet, on the first host's side.
fn translator_address(inside: IpAddr) -> IpAddr {
    match inside {
        IpAddr::V4(address) => Ipv4Addr::from((u32::from(address) & !0xff) | 0xfb).into(),
        IpAddr::V6(address) => Ipv6Addr::from((u128::from(address) & !0xffff) | 0xfb).into(),
    }
}

fn follows(first: &Segment, next: &Segment) -> bool {
    let end = first.seq.wrapping_add(u32::try_from(first.payload.len()).unwrap_or(0));
    first.source == next.source
        && first.destination == next.destination
        && end == next.seq
        && first.payload.len() + next.payload.len() <= MAX_COALESCED_BYTES
}

/// Splits a segment with data in two; both parts keep all options.
fn split(segment: Segment, out: &mut Vec<Segment>) {
    let len = segment.payload.len();
    if len < 2 {
        out.push(segment);
        return;
    }
    let (middle, last_only_flags) = (len / 2, Flags::FIN.with(Flags::PSH));
    let mut first = segment.clone();
    first.payload = segment.payload.slice(0, middle);
    first.flags = first.flags.without(last_only_flags);
    let mut second = segment;
    second.payload = second.payload.slice(middle, len);
    second.seq = second.seq.wrapping_add(u32::try_from(middle).unwrap_or(0));
    out.extend([first, second]);
}

/// Shifts the first host's sequence numbers, as firewalls do that distrust its random numbers. The
/// peer's SACK blocks are shifted back, otherwise TCP itself breaks.
fn shift_sequence(direction: PathDirection, segment: &mut Segment) {
    match direction {
        PathDirection::Up => segment.seq = segment.seq.wrapping_add(SEQUENCE_OFFSET),
        PathDirection::Down => {
            segment.ack = segment.ack.wrapping_sub(SEQUENCE_OFFSET);
            for (start, end) in &mut segment.options.sack {
                *start = start.wrapping_sub(SEQUENCE_OFFSET);
                *end = end.wrapping_sub(SEQUENCE_OFFSET);
            }
        }
    }
}
