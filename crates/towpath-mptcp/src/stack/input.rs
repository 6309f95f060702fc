//! Dispatch of received packets: to a subflow, a listener, a connection by its token, or a reset.

use std::net::IpAddr;
use std::sync::Arc;

use towpath_net::{Instant, SourcePrefix};
use towpath_wire::ConnectionId;
use towpath_wire::{
    Flags, IcmpKind, IcmpMessage, MpJoin, MpTcpRst, MptcpOption, Options, Packet, ParseError,
    Payload, Segment, Timestamps,
};

use super::{InterfaceId, Stack, StackEvent};
use crate::connection::{Connection, SubflowParams};
use crate::subflow::IcmpError;

impl Stack {
    /// Processes a received packet (TCP, or ICMP about TCP). Invalid packets are counted and
    /// dropped.
    pub fn handle_packet(&mut self, now: Instant, interface: InterfaceId, mut packet: Packet) {
        self.receive(now, interface, &mut packet);
    }

    /// As [`Stack::handle_packet`], for a caller that reuses the packet's memory; its payload is
    /// taken.
    pub fn receive(&mut self, now: Instant, interface: InterfaceId, packet: &mut Packet) {
        self.counters.received += 1;
        if let Some(syn_flood) = &mut self.syn_flood_state {
            syn_flood.packet_bytes = packet.len();
        }
        let mut segment = self.segment.take().unwrap_or_else(|| Box::new(Segment::EMPTY));
        match packet.parse_into(&mut segment) {
            Ok(()) => self.on_segment(now, interface, &mut segment),
            Err(ParseError::NotTcp(_)) => match IcmpMessage::parse(packet) {
                Ok(message) => self.on_icmp(now, &message),
                Err(_) => self.counters.malformed += 1,
            },
            Err(_) => self.counters.malformed += 1,
        }
        self.segment = Some(segment);
    }

    fn on_segment(&mut self, now: Instant, interface: InterfaceId, segment: &mut Segment) {
        if !self.addresses.iter().any(|local| local.address == segment.destination.ip()) {
            self.counters.unknown += 1;
            return; // not for us: dropped silently
        }
        let tuple = (segment.destination, segment.source);
        if let Some(id) = self.subflows.get(&tuple) {
            let index = self
                .connection(id)
                .and_then(|connection| connection.subflow_index(tuple.0, tuple.1));
            if let Some(index) = index {
                if segment.flags.contains(Flags::SYN)
                    && let Some(used_until) = self.reopen(now, id, index, segment)
                {
                    return self.on_syn(now, interface, segment, Some(used_until));
                }
                self.note_packet_bytes(id, index);
                self.update_connection(now, id, |connection, host| {
                    connection.on_segment(host, index, segment);
                });
                return;
            }
            self.subflows.remove(&tuple);
        }
        if !is_unicast(segment.source.ip()) {
            self.counters.malformed += 1;
            return; // RFC 9293 §3.9.2.3
        }
        let is_initial_syn = segment.flags.contains(Flags::SYN)
            && !segment.flags.contains(Flags::ACK)
            && !segment.flags.contains(Flags::RST);
        let neither_syn_nor_ack =
            !segment.flags.contains(Flags::ACK) && !segment.flags.contains(Flags::SYN);
        if is_initial_syn {
            self.on_syn(now, interface, segment, None);
        } else if neither_syn_nor_ack && self.listeners.contains_key(&segment.destination.port()) {
            self.counters.unknown += 1; // RFC 9293 §3.10.7.2: a listener drops such segments
        } else if !self.try_complete_handshake(now, interface, segment) {
            self.send_reset(interface, segment, None);
        }
    }

    /// Ends a connection in TIME-WAIT in favour of a new one between the same addresses and ports
    /// (RFC 9293 §3.10.7.4, RFC 6191). Returns the sequence number after the last one that it used.
    fn reopen(
        &mut self,
        now: Instant,
        id: ConnectionId,
        index: usize,
        syn: &Segment,
    ) -> Option<u32> {
        if join_option(syn).is_some() || !self.listeners.contains_key(&syn.destination.port()) {
            return None;
        }
        let mut used_until = None;
        self.update_connection(now, id, |connection, host| {
            used_until = connection.reopen(host, index, syn);
        });
        used_until
    }

    /// Processes a SYN. `used_until`: sequence numbers below belong to an earlier connection.
    fn on_syn(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        syn: &Segment,
        used_until: Option<u32>,
    ) {
        if let Some((token, address_id)) = join_option(syn) {
            self.on_join(now, interface, syn, token, address_id);
            return;
        }
        let Some(listener) = self.listeners.get(&syn.destination.port()) else {
            self.send_reset(interface, syn, None);
            return;
        };
        let (listener_id, config) = (listener.id, Arc::clone(&listener.config));
        let is_full = self.half_open.listener_count(listener_id) >= self.config.syn_backlog;
        let source = SourcePrefix::of(syn.source.ip());
        // A source that had a connection here is already verified, and its sequence numbers must
        // continue.
        if used_until.is_none()
            && (is_full || self.source_limit_reached(source))
            && self.syn_flood_state.is_some()
        {
            return self.reply_with_cookie(now, interface, syn);
        }
        if is_full {
            self.counters.backlog_full += 1;
            return; // the peer retransmits its SYN
        }
        let tuple = self.subflow_params(interface, syn, 0, 0);
        let id = self.fresh_id();
        let mut isn = self.secrets.isn(now, tuple.local, tuple.remote);
        if let Some(used_until) = used_until.filter(|end| isn.wrapping_sub(*end) > u32::MAX / 2) {
            // The earlier connection was faster than the clock of RFC 6528.
            isn = used_until.wrapping_add(1 << 16);
        }
        let key = self.fresh_key();
        if let Ok(mut connection) = Connection::accept(id, config, &tuple, syn, isn, key, now) {
            if let Some(syn_flood) = &self.syn_flood_state {
                connection.limit_syn_acks(syn_flood.syn_ack_retries);
            }
            self.insert(id, connection, (tuple.local, tuple.remote));
            self.half_open.insert(id, listener_id, source);
            self.note_packet_bytes(id, 0);
            self.reschedule(now, id);
        }
    }

    /// Processes a SYN with MP_JOIN for an existing connection (RFC 8684 §3.2).
    fn on_join(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        syn: &Segment,
        token: u32,
        remote_id: u8,
    ) {
        let connection_id = self.tokens.get(&token).copied();
        // A half-open connection has no first subflow yet. If joined now, it would live without one,
        // and never reach its listener.
        let Some(id) = connection_id.filter(|id| !self.half_open.contains(*id)) else {
            self.counters.unknown_token += 1;
            let reason = MpTcpRst { transient: false, reason: 1, reserved: 0 };
            self.send_reset(interface, syn, Some(reason));
            return;
        };
        let join_permitted =
            self.connection(id).map_or(Err(MpTcpRst::default()), Connection::accepts_join);
        if let Err(reason) = join_permitted {
            self.counters.refused_joins += 1;
            self.send_reset(interface, syn, Some(reason));
            return;
        }
        let local_address =
            self.addresses.iter().find(|candidate| candidate.address == syn.destination.ip());
        let local_id =
            self.connection(id).and_then(|connection| connection.local_id_of(syn.destination.ip()));
        let local_id = local_id.or(local_address.map(|local| local.address_id)).unwrap_or(0);
        let tuple = self.subflow_params(interface, syn, local_id, remote_id);
        if self.syn_flood_state.is_some() {
            return self.reply_to_join(now, id, &tuple, syn);
        }
        let isn = self.secrets.isn(now, tuple.local, tuple.remote);
        let nonce = self.secrets.next() as u32;
        if let Some(connection) = self.connection_mut(id) {
            connection.accept_join(&tuple, syn, isn, nonce, now);
            self.subflows.insert((tuple.local, tuple.remote), id);
        }
        self.reschedule(now, id);
    }

    /// Returns the parameters of the subflow that a peer's segment belongs to.
    pub(super) fn subflow_params(
        &self,
        interface: InterfaceId,
        segment: &Segment,
        local_id: u8,
        remote_id: u8,
    ) -> SubflowParams {
        SubflowParams {
            interface,
            mtu_bytes: self.mtu_bytes(interface),
            local: segment.destination,
            remote: segment.source,
            local_id,
            remote_id,
            backup: false,
        }
    }

    /// Reports an accepted connection to its listener when its handshake is complete.
    pub(super) fn report_established(&mut self, id: ConnectionId) {
        if let Some(listener) = self.half_open.remove(id) {
            self.events.push_back(StackEvent::Accepted { listener, connection: id });
        }
    }

    fn on_icmp(&mut self, now: Instant, message: &IcmpMessage) {
        let tuple = (message.local, message.remote);
        let Some(id) = self.subflows.get(&tuple) else { return };
        let seq = message.seq;
        let error = match message.kind {
            IcmpKind::TooBig { mtu } => IcmpError::TooBig { mtu_bytes: mtu, seq },
            IcmpKind::Unreachable { hard } => IcmpError::Unreachable { seq, hard },
        };
        let index =
            self.connection(id).and_then(|connection| connection.subflow_index(tuple.0, tuple.1));
        if let Some(index) = index {
            self.update_connection(now, id, |connection, host| {
                connection.on_icmp(host, index, error);
            });
        }
    }

    /// Sends RST in reply to an unexpected segment (RFC 9293 §3.10.7.1).
    pub(super) fn send_reset(
        &mut self,
        interface: InterfaceId,
        segment: &Segment,
        reason: Option<MpTcpRst>,
    ) {
        self.counters.unknown += 1;
        if segment.flags.contains(Flags::RST) {
            return;
        }
        let (seq, ack, flags) = if segment.flags.contains(Flags::ACK) {
            (segment.ack, 0, Flags::RST)
        } else {
            let ack = segment.seq.wrapping_add(segment.sequence_bytes());
            (0, ack, Flags::RST.with(Flags::ACK))
        };
        // RFC 7323 §5.2: included if the peer's segment has them, with the value 0.
        let timestamps = segment.options.timestamps;
        let timestamps = timestamps.map(|received| Timestamps { value: 0, echo: received.value });
        let mut options = Options { timestamps, ..Options::default() };
        options.mptcp.extend(reason.map(MptcpOption::Reset));
        let reset = Segment {
            source: segment.destination,
            destination: segment.source,
            seq,
            ack,
            flags,
            window: 0,
            ecn: towpath_wire::Ecn::NotCapable,
            options,
            payload: Payload::EMPTY,
            segment_bytes: 0,
        };
        self.send_stray_reply(interface, &reset);
    }
}

/// Returns true if the address is a unicast address, with which a connection is possible.
pub(super) fn is_unicast(address: IpAddr) -> bool {
    let broadcast = match address {
        IpAddr::V4(address) => address.is_broadcast(),
        IpAddr::V6(_) => false,
    };
    !broadcast && !address.is_multicast() && !address.is_unspecified()
}

/// Returns token and address identifier of MP_JOIN in a SYN.
fn join_option(syn: &Segment) -> Option<(u32, u8)> {
    syn.options.mptcp.iter().find_map(|option| {
        if let MptcpOption::Join(MpJoin::Syn { token, address_id, .. }) = option {
            Some((*token, *address_id))
        } else {
            None
        }
    })
}
