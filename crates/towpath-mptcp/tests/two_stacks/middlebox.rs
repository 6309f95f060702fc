//! Middleboxes with the effects of real ones.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use towpath_net::Packet as _;
use towpath_wire::{Flags, MptcpOption, Packet, Payload, Segment};

use crate::network::Middlebox;

/// Change that a middlebox makes to packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mangle {
    Nothing,
    /// Strips all options of Multipath TCP.
    StripAll,
    StripDss,
    StripJoin,
    StripAddAddress,
    /// Splits segments in two; both parts get the options, as with offload engines.
    Split,
    /// Joins segments; the second one's options are lost.
    Coalesce,
    /// Changes data and fixes the checksum, as application level gateways do.
    ChangePayload,
    Duplicate,
    /// Flips a bit in every tenth packet.
    Corrupt,
}

impl Mangle {
    pub(crate) fn middlebox(self) -> Option<Middlebox> {
        if self == Self::Nothing {
            return None;
        }
        let mut state = State { mangle: self, packets: 0, pending_segments: BTreeMap::new() };
        Some(Box::new(move |packet| state.on_packet(packet)))
    }
}

struct State {
    mangle: Mangle,
    packets: u32,
    pending_segments: BTreeMap<(SocketAddr, SocketAddr), Segment>,
}

impl State {
    fn on_packet(&mut self, mut packet: Packet) -> Vec<Packet> {
        self.packets += 1;
        match self.mangle {
            Mangle::Nothing => return vec![packet],
            Mangle::Duplicate => return vec![packet.clone(), packet],
            Mangle::Corrupt => {
                if self.packets.is_multiple_of(10) {
                    packet.corrupt(self.packets.wrapping_mul(2_654_435_761));
                }
                return vec![packet];
            }
            Mangle::StripAll | Mangle::StripDss | Mangle::StripJoin => {}
            Mangle::StripAddAddress | Mangle::Split | Mangle::Coalesce => {}
            Mangle::ChangePayload => {}
        }
        let Ok(segment) = packet.parse() else { return vec![packet] };
        self.on_segment(segment).iter().map(|segment| Packet::emit(segment, 0)).collect()
    }

    fn on_segment(&mut self, mut segment: Segment) -> Vec<Segment> {
        let options = &mut segment.options;
        match self.mangle {
            Mangle::StripAll => {
                options.dss = None;
                options.mptcp.clear();
            }
            Mangle::StripDss => options.dss = None,
            Mangle::StripJoin => {
                options.mptcp.retain(|option| !matches!(option, MptcpOption::Join(_)));
            }
            Mangle::StripAddAddress => {
                options.mptcp.retain(|option| !matches!(option, MptcpOption::AddAddress(_)));
            }
            Mangle::ChangePayload => {
                let mut bytes = segment.payload.to_bytes().to_vec();
                if let Some(last) = bytes.last_mut() {
                    // Always in the same direction, or changes might cancel out in a sum.
                    *last = last.wrapping_add(1);
                }
                segment.payload = Payload::from(bytes::Bytes::from(bytes));
            }
            Mangle::Split => return split_in_two(segment),
            Mangle::Coalesce => return self.coalesce(segment),
            Mangle::Nothing | Mangle::Duplicate | Mangle::Corrupt => {}
        }
        vec![segment]
    }

    fn coalesce(&mut self, segment: Segment) -> Vec<Segment> {
        let key = (segment.source, segment.destination);
        let is_plain_data =
            segment.flags.without(Flags::PSH) == Flags::ACK && !segment.payload.is_empty();
        let Some(mut held) = self.pending_segments.remove(&key) else {
            if is_plain_data {
                self.pending_segments.insert(key, segment);
                return Vec::new();
            }
            return vec![segment];
        };
        let next_seq = held.seq.wrapping_add(held.payload.len() as u32);
        if !is_plain_data
            || segment.seq != next_seq
            || held.payload.len() + segment.payload.len() > 60_000
        {
            return vec![held, segment];
        }
        for chunk in segment.payload.chunks() {
            held.payload.push(chunk.clone());
        }
        held.ack = segment.ack;
        held.window = segment.window;
        vec![held]
    }
}

fn split_in_two(segment: Segment) -> Vec<Segment> {
    let len = segment.payload.len();
    if len < 2 || segment.flags.contains(Flags::SYN) {
        return vec![segment];
    }
    let mut first = segment.clone();
    first.payload = segment.payload.slice(0, len / 2);
    first.flags = first.flags.without(Flags::FIN);
    let mut second = segment;
    second.seq = second.seq.wrapping_add((len / 2) as u32);
    second.payload.advance(len / 2);
    vec![first, second]
}
