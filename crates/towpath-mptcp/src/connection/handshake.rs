//! MP_CAPABLE and MP_JOIN handshakes of a connection, in both roles (RFC 8684 §3.1, §3.2).

use std::sync::Arc;

use towpath_multipath::PathId;
use towpath_multipath::scheduler::SchedulerEvent;
use towpath_net::Instant;
use towpath_wire::ConnectionId;
use towpath_wire::keys;
use towpath_wire::{Flags, MpCapable, MpJoin as JoinOption, MpTcpRst, MptcpOption, Segment};

use super::join::{self, JoinHandshake, JoinState};
use super::{Connection, ConnectionConfig, ConnectionMode, HostContext, SubflowParams};
use crate::path_manager;
use crate::stack::{ConfigError, FallbackReason, StackEvent, StackNotice};
use crate::subflow::{Subflow, TcpState};

/// Protocol version that we support.
const VERSION: u8 = 1;

/// MP_TCPRST with the reason "MPTCP-specific error" (RFC 8684 §3.6).
pub(super) const MPTCP_ERROR: MpTcpRst = MpTcpRst { transient: false, reason: 1, reserved: 0 };

impl Connection {
    /// Opens a connection: a SYN is due.
    pub(crate) fn connect(
        id: ConnectionId,
        config: Arc<ConnectionConfig>,
        params: &SubflowParams,
        isn: u32,
        local_key: u64,
        now: Instant,
    ) -> Result<Self, ConfigError> {
        let mut connection = Self::new(id, config, true, local_key, now)?;
        let tcp = Subflow::connect(connection.subflow_config(params), isn, now);
        connection.add_first_subflow(params, tcp, now);
        Ok(connection)
    }

    /// Accepts a SYN, after which a SYN/ACK is due.
    pub(crate) fn accept(
        id: ConnectionId,
        config: Arc<ConnectionConfig>,
        params: &SubflowParams,
        syn: &Segment,
        isn: u32,
        local_key: u64,
        now: Instant,
    ) -> Result<Self, ConfigError> {
        let mut connection = Self::new(id, config, false, local_key, now)?;
        let tcp = Subflow::accept(connection.subflow_config(params), isn, syn, now);
        match capable(syn) {
            Some(option)
                if connection.mode == ConnectionMode::Offered && can_accept_capable(option) =>
            {
                connection.checksum |= option.checksum;
                connection.no_join_to_initial = option.no_join_to_source;
            }
            // A peer that does not offer Multipath TCP gets TCP; that does not count as a fallback.
            Some(_) | None => connection.fall_back_to_tcp(None),
        }
        connection.add_first_subflow(params, tcp, now);
        Ok(connection)
    }

    /// Adds the first subflow.
    fn add_first_subflow(&mut self, params: &SubflowParams, tcp: Subflow, now: Instant) {
        self.initial_addresses = Some((params.local, params.remote));
        self.remote_addresses
            .push(path_manager::RemoteAddress { address_id: 0, address: params.remote });
        let index = self.new_subflow(params, tcp, None, now);
        if self.is_single_stream()
            && let Some(flow) = self.flows.get_mut(index)
        {
            flow.mappings.set_infinite(1, 0);
        }
    }

    /// Falls back to TCP: from now on, data is the first subflow's own stream.
    pub(super) fn fall_back_to_tcp(&mut self, reason: Option<FallbackReason>) {
        self.mode = ConnectionMode::Plain;
        self.fallback = reason;
        if let Some(flow) = self.flows.first_mut() {
            flow.mappings.forget_all();
        }
        self.update_data_options();
        self.advertisement.changed = true;
        if let Some(reason) = reason {
            self.push_notice(StackNotice::Fallback(reason));
        }
    }

    /// Returns the MPTCP option of a subflow's SYN (or SYN/ACK).
    pub(super) fn syn_option(&self, index: usize) -> Option<MptcpOption> {
        let flow = self.flows.get(index)?;
        if let Some(join) = &flow.join {
            return self.join_option(index, *join);
        }
        if self.mode == ConnectionMode::Plain {
            return None;
        }
        let capable_syns_lost =
            self.client && flow.tcp.syn_retransmissions() > self.config.syn_retries_with_multipath;
        if capable_syns_lost {
            return None;
        }
        let sender_key = (!self.client).then_some(self.local_key);
        Some(MptcpOption::Capable(MpCapable { sender_key, ..self.capable_flags() }))
    }

    fn capable_flags(&self) -> MpCapable {
        MpCapable {
            version: VERSION,
            checksum: self.checksum,
            extensibility: false,
            no_join_to_source: self.config.no_join_to_initial,
            hmac_sha256: true,
            sender_key: None,
            receiver_key: None,
            data: None,
        }
    }

    /// Returns MP_CAPABLE with both keys for the third packet and the first data, until the peer
    /// confirms. `data` is the length and checksum of that data.
    pub(super) fn capable_ack_option(
        &self,
        data: Option<(u16, Option<u16>)>,
    ) -> Option<MptcpOption> {
        if !self.client || self.mode != (ConnectionMode::Multipath { confirmed: false }) {
            return None;
        }
        Some(MptcpOption::Capable(MpCapable {
            sender_key: Some(self.local_key),
            receiver_key: self.remote_key,
            data,
            ..self.capable_flags()
        }))
    }

    fn join_option(&self, index: usize, join: JoinHandshake) -> Option<MptcpOption> {
        let flow = self.flows.get(index)?;
        let backup = flow.local_backup;
        let address_id = flow.local_id;
        let remote_key = self.remote_key?;
        let nonce = join.local_nonce;
        let option = match join.state {
            JoinState::SynSent => {
                JoinOption::Syn { backup, address_id, token: keys::token(remote_key), nonce }
            }
            JoinState::SynReceived => {
                let hmac = join::leftmost_64(&join.local_hmac(self.local_key, remote_key));
                JoinOption::SynAck { backup, address_id, hmac, nonce }
            }
            JoinState::PreEstablished { .. } | JoinState::Established => return None,
        };
        Some(MptcpOption::Join(option))
    }

    /// Returns MP_JOIN of the third packet.
    pub(super) fn join_ack(&self, index: usize) -> Option<MptcpOption> {
        let join = self.flows.get(index)?.join?;
        if !matches!(join.state, JoinState::PreEstablished { .. }) {
            return None;
        }
        let hmac = join::leftmost_160(&join.local_hmac(self.local_key, self.remote_key?));
        Some(MptcpOption::Join(JoinOption::Ack { hmac }))
    }

    /// Processes a SYN/ACK on the first subflow, which TCP has accepted.
    pub(super) fn on_syn_ack(&mut self, segment: &Segment) {
        if self.mode != ConnectionMode::Offered {
            return;
        }
        let syn_without_capable = self.syn_option(0).is_none();
        match capable(segment).filter(|option| is_supported(option)) {
            Some(MpCapable { sender_key: Some(key), checksum, no_join_to_source, .. })
                if !syn_without_capable =>
            {
                self.checksum |= checksum;
                self.no_join_to_initial = *no_join_to_source;
                self.set_remote_key(*key);
                self.mode = ConnectionMode::Multipath { confirmed: false };
            }
            Some(_) | None => self.fall_back_to_tcp(Some(if syn_without_capable {
                FallbackReason::SynLost
            } else {
                FallbackReason::NoCapableInSynAck
            })),
        }
    }

    fn set_remote_key(&mut self, key: u64) {
        self.remote_key = Some(key);
        self.remote_idsn = keys::initial_dsn(key);
    }

    /// Processes the reply to our SYN/ACK on the first subflow. Returns false if the segment must
    /// be dropped: it is unusable before the one that carries the keys.
    pub(super) fn on_third_packet(&mut self, segment: &Segment) -> bool {
        if self.mode != ConnectionMode::Offered || !segment.flags.contains(Flags::ACK) {
            return true;
        }
        if segment.flags.contains(Flags::RST) || segment.flags.contains(Flags::SYN) {
            return true;
        }
        if !self.flows.first().is_some_and(|flow| flow.tcp.would_accept(segment)) {
            return true; // TCP replies; the options are invalid (RFC 8684 §3)
        }
        if let Some(MpCapable { sender_key: Some(sender), receiver_key: Some(receiver), .. }) =
            capable(segment)
        {
            if *receiver == self.local_key && capable(segment).is_some_and(is_supported) {
                self.set_remote_key(*sender);
                self.mode = ConnectionMode::Multipath { confirmed: false };
            } else {
                // A middlebox has changed the option, or it differs from the agreement (RFC 8684
                // §3.1).
                self.fall_back_to_tcp(Some(FallbackReason::NoCapableInAck));
            }
            return true;
        }
        let flow = self.flows.first();
        let in_order = flow.is_some_and(|flow| flow.tcp.offset_of(segment.seq) <= 1);
        // Later data overtook the packet with the keys (RFC 8684 §3.1): it is retransmitted.
        if !in_order || segment.options.dss.is_some() {
            return false;
        }
        self.fall_back_to_tcp(Some(FallbackReason::NoCapableInAck));
        true
    }

    /// Handles the completed handshake of the first subflow.
    pub(super) fn on_first_established(&mut self) {
        if self.established {
            return;
        }
        self.established = true;
        if self.client {
            self.push_event(StackEvent::Connected(self.id));
        } else {
            self.out.push(super::ConnectionOutput::Accepted);
        }
    }

    /// Confirms that options have passed in both directions: subflows may be opened.
    pub(super) fn confirm(&mut self, host: &HostContext<'_>) {
        if self.mode != (ConnectionMode::Multipath { confirmed: false }) {
            return;
        }
        self.mode = ConnectionMode::Multipath { confirmed: true };
        self.notify_path_manager(host, path_manager::PathManagerEvent::Established);
    }

    /// Reports that a subflow may now carry data.
    pub(super) fn announce_subflow(&mut self, index: usize, host: &HostContext<'_>) {
        let Some(flow) = self.flows.get_mut(index) else { return };
        if flow.announced || !flow.usable() {
            return;
        }
        flow.announced = true;
        let (path, number) = (flow.path, flow.number);
        self.close_deadline = None;
        if self.retransmit_at.is_some() && self.backoff > 0 {
            // The subflow may carry data that has waited with a growing back-off.
            self.backoff = 0;
            self.arm_retransmission(host.now);
        }
        self.push_notice(StackNotice::SubflowEstablished { path, number });
        self.update_data_options();
        self.scheduler.on_event(SchedulerEvent::Opened { path });
        if self.is_confirmed() {
            self.notify_path_manager(
                host,
                path_manager::PathManagerEvent::SubflowEstablished(path),
            );
        }
    }

    /// Opens another subflow (MP_JOIN); returns false if the connection has since fallen back or
    /// ended.
    pub(crate) fn open(
        &mut self,
        params: &SubflowParams,
        isn: u32,
        nonce: u32,
        now: Instant,
    ) -> bool {
        // The peer may have opened subflows in the meantime.
        let open_subflows =
            self.flows.iter().filter(|flow| !flow.closed_locally && flow.closed.is_none());
        let has_slot = open_subflows.count() <= usize::from(self.config.subflow_limit)
            && self.flows.len() < usize::from(PathId::SLOTS);
        if !has_slot || !self.path_manager_active() {
            return false;
        }
        let tcp = Subflow::connect(self.subflow_config(params), isn, now);
        self.new_subflow(params, tcp, Some(JoinHandshake::initiator(nonce)), now);
        true
    }

    /// Checks if a SYN with MP_JOIN may be accepted (RFC 8684 §3.2).
    pub(crate) fn accepts_join(&self) -> Result<(), MpTcpRst> {
        let prohibited = MpTcpRst { transient: false, reason: 3, reserved: 0 };
        let too_many = MpTcpRst { transient: true, reason: 2, reserved: 0 };
        let keys_known = self.remote_key.is_some() && self.is_multipath();
        if !keys_known
            || self.closed.is_some()
            || self.finishing
            || self.fallback_state.awaiting_infinite
        {
            return Err(MPTCP_ERROR);
        }
        if !self.config.accept_joins {
            return Err(prohibited);
        }
        let limit = usize::from(self.config.subflow_limit) + 1;
        if self.flows.len() >= limit { Err(too_many) } else { Ok(()) }
    }

    /// Accepts a SYN with MP_JOIN, see [`Self::accepts_join`].
    pub(crate) fn accept_join(
        &mut self,
        params: &SubflowParams,
        syn: &Segment,
        isn: u32,
        nonce: u32,
        now: Instant,
    ) {
        let Some((remote_nonce, remote_backup)) = join_syn(syn) else { return };
        let tcp = Subflow::accept(self.subflow_config(params), isn, syn, now);
        let join = JoinHandshake::responder(nonce, remote_nonce);
        let index = self.new_subflow(params, tcp, Some(join), now);
        if let Some(flow) = self.flows.get_mut(index) {
            flow.remote_backup = remote_backup;
        }
    }

    /// Checks MP_JOIN in a SYN/ACK or third packet. Returns false if the subflow must be reset.
    pub(super) fn check_join(&mut self, index: usize, segment: &Segment, now: Instant) -> bool {
        let Some(flow) = self.flows.get_mut(index) else { return false };
        let Some(join) = &flow.join else { return true };
        let Some(remote_key) = self.remote_key else { return false };
        if join.state == JoinState::Established && segment.options.mptcp.is_empty() {
            return true;
        }
        let mut join = *join;
        let option = segment.options.mptcp.iter().find_map(|option| {
            if let MptcpOption::Join(join) = option { Some(join) } else { None }
        });
        if !flow.tcp.would_accept(segment) {
            return true; // TCP replies; the options are invalid (RFC 8684 §3)
        }
        let syn_ack = segment.flags.contains(Flags::SYN) && segment.flags.contains(Flags::ACK);
        match (join.state, option) {
            (JoinState::SynSent, _) if !syn_ack => return true,
            (JoinState::SynSent, Some(JoinOption::SynAck { backup, address_id, hmac, nonce })) => {
                join.on_syn_ack(*nonce, now);
                if !join.verify_hmac(self.local_key, remote_key, &hmac.to_be_bytes()) {
                    return false;
                }
                flow.remote_backup = *backup;
                flow.remote_id = *address_id;
            }
            (JoinState::SynSent, _) => return false,
            // Repeated SYN/ACK: our HMAC was lost. TCP acknowledges it, and that packet carries the
            // HMAC.
            (JoinState::PreEstablished { .. }, _) if syn_ack => return true,
            // The fourth packet confirms that ours arrived (RFC 8684 §3.2).
            (JoinState::PreEstablished { .. }, _) => {
                if segment.flags.contains(Flags::ACK) && !segment.flags.contains(Flags::RST) {
                    join.state = JoinState::Established;
                }
            }
            (JoinState::SynReceived, Some(JoinOption::Ack { hmac })) => {
                if !join.verify_hmac(self.local_key, remote_key, hmac) {
                    return false;
                }
                join.state = JoinState::Established;
                flow.tcp.set_ack_due();
            }
            // Without the HMAC no data may pass; TCP handles a retransmitted SYN.
            (JoinState::SynReceived, _) => {
                return segment.flags.contains(Flags::SYN) || segment.flags.contains(Flags::RST);
            }
            // Our fourth packet was lost.
            (JoinState::Established, Some(JoinOption::Ack { .. })) => flow.tcp.set_ack_due(),
            (JoinState::Established, _) => {}
        }
        flow.join = Some(join);
        true
    }

    /// Returns true if the first subflow is still in its handshake and we are the server.
    pub(super) fn awaits_third_packet(&self, index: usize) -> bool {
        let flow = self.flows.get(index);
        flow.is_some_and(|flow| flow.join.is_none() && flow.tcp.state() == TcpState::SynReceived)
    }
}

/// Returns MP_CAPABLE of a segment.
pub(crate) fn capable(segment: &Segment) -> Option<&MpCapable> {
    segment.options.mptcp.iter().find_map(|option| {
        if let MptcpOption::Capable(capable) = option { Some(capable) } else { None }
    })
}

/// Returns nonce and backup flag of MP_JOIN in a SYN.
pub(crate) fn join_syn(segment: &Segment) -> Option<(u32, bool)> {
    segment.options.mptcp.iter().find_map(|option| {
        if let MptcpOption::Join(JoinOption::Syn { backup, nonce, .. }) = option {
            Some((*nonce, *backup))
        } else {
            None
        }
    })
}

/// Returns true if a SYN's MP_CAPABLE can be accepted. Version 1 has no key in the SYN, and ours
/// may be the reply to a later version (RFC 8684 §3.1).
fn can_accept_capable(option: &MpCapable) -> bool {
    let supported_version = MpCapable { version: option.version.min(VERSION), ..*option };
    option.sender_key.is_none() && is_supported(&supported_version)
}

/// Returns true if we support version, algorithm and flags (RFC 8684 §3.1: an unknown flag B means
/// fallback).
pub(super) fn is_supported(option: &MpCapable) -> bool {
    option.version == VERSION && option.hmac_sha256 && !option.extensibility
}
