//! Handshakes with unauthenticated clients: SYN cookies, and subflows without state until the peer
//! is authenticated (see [`super::syn_flood`]).

use std::sync::Arc;

use towpath_net::{Instant, SourcePrefix};
use towpath_wire::ConnectionId;
use towpath_wire::keys;
use towpath_wire::{Flags, MpCapable, MpJoin, MpTcpRst, MptcpOption, Packet, Segment};

use super::pending_joins::PendingJoin;
use super::syn_options::SynOptions;
use super::{InterfaceId, Stack, cookies};
use crate::connection::{Connection, SubflowParams, capable, join_syn};

/// Maximum number of queued replies that belong to no connection.
const MAX_STRAY_REPLIES: usize = 1_024;
/// MP_TCPRST for a peer that fails to authenticate a subflow (RFC 8684 §3.2, §3.6).
const MPTCP_ERROR: MpTcpRst = MpTcpRst { transient: false, reason: 1, reserved: 0 };

impl Stack {
    /// Returns the number of accepted connections that are not established yet.
    pub fn half_open_connections(&self) -> usize {
        self.half_open.len()
    }

    /// Returns the subflows whose SYN was accepted and whose peers are not authenticated yet.
    /// Always 0 without SYN flood protection.
    pub fn half_open_joins(&self, now: Instant) -> usize {
        self.syn_flood_state.as_ref().map_or(0, |syn_flood| syn_flood.joins.len(now))
    }

    /// Returns true if a source may have no more half-open connections.
    pub(super) fn source_limit_reached(&self, source: SourcePrefix) -> bool {
        let limit = self.syn_flood_state.as_ref().map(|syn_flood| syn_flood.half_open_per_source);
        limit.is_some_and(|limit| self.half_open.source_count(source) >= limit)
    }

    /// Replies to a SYN with a cookie and keeps no state. Options that the cookie cannot encode are
    /// not accepted, so that the later connection matches this reply. Drops a SYN whose MSS is
    /// below the smallest that a cookie can encode.
    pub(super) fn reply_with_cookie(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        syn: &Segment,
    ) {
        let Some(listener) = self.listeners.get_mut(&syn.destination.port()) else { return };
        let config = Arc::clone(&listener.config);
        let timestamps_enabled = config.subflow.timestamps;
        let Some(offer) =
            SynOptions::of(syn).cookie_subset(timestamps_enabled, syn.source.is_ipv6())
        else {
            // No cookie can encode the peer's MSS: the SYN is dropped, as it is if cookies are off.
            self.counters.backlog_full += 1;
            return;
        };
        listener.cookies_until = now + cookies::COOKIE_LIFETIME;
        let addresses = (syn.destination, syn.source);
        let cookie = cookies::build(&self.secrets, now, addresses, syn.seq, &offer);
        let key = cookies::key(&self.secrets, addresses, syn.seq, cookie);
        // RFC 8684 §3.1: a key whose token is in use cannot be ours, and no other key can be
        // derived.
        let option = capable(syn).filter(|_| !self.tokens.contains_key(&keys::token(key)));
        let encodable_syn = offer.syn(syn, syn.seq, option.copied().map(MptcpOption::Capable));
        let tuple = self.subflow_params(interface, syn, 0, 0);
        let placeholder_id = ConnectionId(self.next_id);
        let connection =
            Connection::accept(placeholder_id, config, &tuple, &encodable_syn, cookie, key, now);
        let Some(mut syn_ack) = connection.ok().and_then(|connection| connection.into_syn_ack(now))
        else {
            return;
        };
        if let Some(timestamps) = &mut syn_ack.options.timestamps {
            timestamps.value = cookies::stamp(timestamps.value, &offer);
        }
        self.counters.cookies_sent += 1;
        self.send_stray_reply(interface, &syn_ack);
    }

    /// Tries to complete a handshake of which little or no state was kept. Returns false if the
    /// acknowledgement completes none, and must get a RST.
    pub(super) fn try_complete_handshake(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        segment: &mut Segment,
    ) -> bool {
        let Some(syn_flood) = &self.syn_flood_state else { return false };
        let is_third_packet = segment.flags.contains(Flags::ACK)
            && !segment.flags.contains(Flags::SYN)
            && !segment.flags.contains(Flags::RST);
        if !is_third_packet {
            return false;
        }
        let addresses = (segment.destination, segment.source);
        let hash = self.secrets.source_hash(SourcePrefix::of(segment.source.ip()));
        match syn_flood.joins.get(hash, addresses, now) {
            Some(pending) => {
                self.complete_join(now, interface, segment, (hash, pending));
                true
            }
            None => self.complete_by_cookie(now, interface, segment),
        }
    }

    fn complete_by_cookie(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        segment: &mut Segment,
    ) -> bool {
        let listener = self.listeners.get(&segment.destination.port());
        let Some(listener) = listener.filter(|listener| now < listener.cookies_until) else {
            return false;
        };
        let (listener_id, config) = (listener.id, Arc::clone(&listener.config));
        let addresses = (segment.destination, segment.source);
        // The initial sequence numbers of the peer and of us: the latter is the cookie.
        let isns = (segment.seq.wrapping_sub(1), segment.ack.wrapping_sub(1));
        let timestamps = segment.options.timestamps.filter(|_| config.subflow.timestamps);
        let timestamps = timestamps.map(|timestamps| (timestamps.value, timestamps.echo));
        let window = segment.window;
        let offer = cookies::read(&self.secrets, now, addresses, isns, timestamps, window);
        let Some(offer) = offer else {
            self.counters.cookies_refused += 1;
            // Data may have overtaken the packet with the cookie, and will be retransmitted.
            return segment.sequence_bytes() > 0;
        };
        let option = capable(segment).map(syn_capable);
        if option.is_none() && segment.options.dss.is_some() {
            return true; // as above: the packet with the keys (RFC 8684 §3.1) may have been overtaken
        }
        let (peer_isn, cookie) = isns;
        let key = match option {
            Some(_) => cookies::key(&self.secrets, addresses, peer_isn, cookie),
            None => self.fresh_key(),
        };
        if self.tokens.contains_key(&keys::token(key)) {
            return false; // another connection took the token since the SYN arrived
        }
        let syn = offer.syn(segment, peer_isn, option.map(MptcpOption::Capable));
        let tuple = self.subflow_params(interface, segment, 0, 0);
        let id = self.fresh_id();
        let connection = Connection::accept(id, config, &tuple, &syn, cookie, key, now);
        let Ok(mut connection) = connection else { return false };
        connection.on_syn_ack_sent(now, None);
        if let Some(syn_flood) = &self.syn_flood_state {
            connection.limit_syn_acks(syn_flood.syn_ack_retries);
        }
        self.counters.cookies_accepted += 1;
        self.insert(id, connection, addresses);
        self.half_open.insert(id, listener_id, SourcePrefix::of(segment.source.ip()));
        self.update_connection(now, id, |connection, host| connection.on_segment(host, 0, segment));
        true
    }

    /// Replies to a SYN with MP_JOIN that its connection would accept. The connection learns of it
    /// once the peer is authenticated.
    pub(super) fn reply_to_join(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        tuple: &SubflowParams,
        syn: &Segment,
    ) {
        let Some((remote_nonce, backup)) = join_syn(syn) else { return };
        let addresses = (tuple.local, tuple.remote);
        let hash = self.secrets.source_hash(SourcePrefix::of(tuple.remote.ip()));
        let pending = self
            .syn_flood_state
            .as_ref()
            .and_then(|syn_flood| syn_flood.joins.get(hash, addresses, now));
        let is_retransmission = |pending: &PendingJoin| {
            (pending.connection, pending.peer_isn, pending.nonces.1)
                == (connection, syn.seq, remote_nonce)
        };
        let pending = pending.filter(is_retransmission);
        let (isn, nonce) = match pending {
            Some(pending) => (pending.isn, pending.nonces.0),
            None => (self.secrets.isn(now, tuple.local, tuple.remote), self.secrets.next() as u32),
        };
        let join = PendingJoin {
            tuple: addresses,
            connection,
            peer_isn: syn.seq,
            isn,
            nonces: (nonce, remote_nonce),
            address_ids: (tuple.local_id, tuple.remote_id),
            backup,
            offer: SynOptions::of(syn),
            syn_ack_sent_at: now,
            syn_repeated: pending.is_some(),
        };
        let syn_ack = self.connection(connection);
        let syn_ack = syn_ack
            .and_then(|connection| connection.join_syn_ack(tuple, syn, isn, join.nonces, now));
        let (Some(syn_ack), Some(syn_flood)) = (syn_ack, &mut self.syn_flood_state) else { return };
        syn_flood.joins.insert(hash, join, now);
        self.send_stray_reply(tuple.interface, &syn_ack);
    }

    /// Processes the third packet of MP_JOIN: only the correct HMAC creates the subflow (RFC 8684
    /// §3.2).
    fn complete_join(
        &mut self,
        now: Instant,
        interface: InterfaceId,
        segment: &mut Segment,
        (hash, pending): (u64, PendingJoin),
    ) {
        let expected = (pending.peer_isn.wrapping_add(1), pending.isn.wrapping_add(1));
        if (segment.seq, segment.ack) != expected {
            return; // forged: must not end the handshake
        }
        if let Some(syn_flood) = &mut self.syn_flood_state {
            syn_flood.joins.remove(hash, pending.tuple);
        }
        let hmac = segment.options.mptcp.iter().find_map(|option| {
            if let MptcpOption::Join(MpJoin::Ack { hmac }) = option { Some(*hmac) } else { None }
        });
        let connection = self.connection(pending.connection);
        let authenticated = connection
            .zip(hmac)
            .filter(|(connection, hmac)| connection.proves_join(pending.nonces, hmac));
        let accepted =
            authenticated.map_or(Err(MPTCP_ERROR), |(connection, _)| connection.accepts_join());
        if let Err(reason) = accepted {
            self.counters.refused_joins += 1;
            return self.send_reset(interface, segment, Some(reason));
        }
        let (local_id, remote_id) = pending.address_ids;
        let tuple = self.subflow_params(interface, segment, local_id, remote_id);
        let (nonce, remote_nonce) = pending.nonces;
        let (backup, token) = (pending.backup, 0);
        let option = MpJoin::Syn { backup, address_id: remote_id, token, nonce: remote_nonce };
        let syn = pending.offer.syn(segment, pending.peer_isn, Some(MptcpOption::Join(option)));
        if let Some(connection) = self.connection_mut(pending.connection) {
            connection.accept_join(&tuple, &syn, pending.isn, nonce, now);
            connection
                .on_syn_ack_sent(now, (!pending.syn_repeated).then_some(pending.syn_ack_sent_at));
            self.subflows.insert(pending.tuple, pending.connection);
        }
        self.update_connection(now, pending.connection, |connection, host| {
            if let Some(index) = connection.subflow_index(tuple.local, tuple.remote) {
                connection.on_segment(host, index, segment);
            }
        });
    }

    /// Tracks a connection that may have entered TIME-WAIT: if there are too many, the oldest one
    /// ends. RFC 9293 §3.4.2 requires it to last, but a peer that opens and closes thousands would
    /// fill the memory.
    pub(super) fn track_time_wait(&mut self, now: Instant, id: ConnectionId) {
        let Some(syn_flood) = &mut self.syn_flood_state else { return };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if !connection.enters_time_wait() {
            return;
        }
        syn_flood.waiting.push_back(id);
        // Most connections leave TIME-WAIT in the order in which they entered it.
        while let Some(oldest) = syn_flood.waiting.front().copied() {
            if !self.connections.contains_key(&oldest) {
                syn_flood.waiting.pop_front();
                continue;
            }
            if syn_flood.waiting.len() <= self.config.time_wait_limit {
                return;
            }
            syn_flood.waiting.pop_front();
            return self.update_connection(now, oldest, Connection::end_time_wait);
        }
    }

    /// Passes the length of the packet being processed to the connection of its subflow.
    pub(super) fn note_packet_bytes(&mut self, id: ConnectionId, index: usize) {
        let Some(syn_flood) = &self.syn_flood_state else { return };
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.note_packet_bytes(index, syn_flood.packet_bytes);
        }
    }

    /// Returns true if a connection's packet may leave, which then counts. It may not if its
    /// destination has not answered and has got too much (see [`crate::connection`]).
    pub(super) fn may_transmit(&mut self, now: Instant, id: ConnectionId, bytes: usize) -> bool {
        let Some(syn_flood) = &mut self.syn_flood_state else { return true };
        let Some(connection) = self.connections.get_mut(&id) else { return true };
        let Some(packet) = connection.charged_packet() else { return true };
        let permitted = connection.may_charge(bytes)
            && (!packet.is_join || syn_flood.join_syns.consume(now, packet.destination));
        if permitted {
            connection.charge(bytes);
        } else {
            self.counters.unanswered_dropped += 1;
        }
        permitted
    }

    /// Queues a reply that belongs to no connection.
    pub(super) fn send_stray_reply(&mut self, interface: InterfaceId, reply: &Segment) {
        if self.syn_flood_state.is_some() && self.stray_packets.len() >= MAX_STRAY_REPLIES {
            self.counters.replies_dropped += 1;
            return;
        }
        self.stray_packets.push_back((interface, Packet::emit(reply, 0)));
    }
}

/// Reconstructs the MP_CAPABLE of the SYN, which had no keys, from that of the third packet, which
/// repeats it with both keys.
fn syn_capable(third_packet: &MpCapable) -> MpCapable {
    MpCapable {
        sender_key: None,
        receiver_key: None,
        data: None,
        // The values of our SYN/ACK. If those of the third packet differ,
        // `Connection::on_third_packet` falls back to plain TCP.
        extensibility: false,
        hmac_sha256: true,
        version: 1,
        ..*third_packet
    }
}
