//! Composition of packets: payload and Multipath TCP options are added to TCP's segments here.

use std::time::Duration;

use towpath_wire::{
    AddAddr, DataAck, DataTag, Dss, DssMapping, Flags, MptcpOption, Options, Packet, Payload,
    Segment,
};

use super::addresses::PendingAddAddr;
use super::subflow_context::SubflowContext;
use super::{Connection, ConnectionMode, HostContext, TxReadiness};
use crate::stack::InterfaceId;
use crate::subflow::{DataMapping, Transmit};

/// DSS with a 64-bit mapping, and checksum or padding (RFC 8684 §3.3.1).
const MAPPING_OPTION_BYTES: u16 = 20;
/// Kind, length and flags of a DSS with a DATA_ACK alone.
const ACK_OPTION_BYTES: u16 = 4;
/// Acknowledgements in a row that may carry only an option, and the pause after them if the peer is
/// silent. More might look like signs of loss to the peer's TCP (RFC 8684 §3).
const MAX_OPTION_ACKS: u8 = 2;
const OPTION_ACK_PAUSE: Duration = Duration::from_millis(200);
/// Space for all options of a segment.
const OPTION_BYTES: usize = 40;

impl Connection {
    /// Returns the next packet for an interface that is ready. An interface that is off looks like
    /// a path that loses everything: TCP's timers run until TCP gives up.
    pub(crate) fn poll_transmit(
        &mut self,
        host: &HostContext<'_>,
        tx_readiness: &dyn Fn(InterfaceId) -> TxReadiness,
        identification: u16,
        packet: &mut Packet,
    ) -> Option<InterfaceId> {
        if self.advertisement.changed {
            self.update_windows();
        }
        if std::mem::take(&mut self.option_acks_held) && self.option_acks_resume_at.is_none() {
            self.option_acks_resume_at = Some(host.now + OPTION_ACK_PAUSE);
        }
        self.feed_probe_data(host);
        loop {
            for index in 0..self.flows.len() {
                let filling = self.scheduling.filling;
                let must_wait = |flow: &&SubflowContext| {
                    flow.tcp.has_nothing_to_send() || filling == Some(flow.path)
                };
                let Some(flow) = self.flows.get(index).filter(|flow| !must_wait(flow)) else {
                    continue;
                };
                let ack_due = flow.tcp.is_ack_due();
                let option_bytes = if ack_due { self.ack_option_bytes(index) } else { 0 };
                let Some(flow) = self.flows.get_mut(index) else { continue };
                let readiness = tx_readiness(flow.interface);
                if readiness == TxReadiness::Blocked {
                    continue;
                }
                while let Some(transmit) = flow.tcp.poll_transmit(host.now, option_bytes) {
                    if readiness == TxReadiness::Down {
                        continue;
                    }
                    let interface = flow.interface;
                    self.compose(index, transmit, identification, packet);
                    return Some(interface);
                }
            }
            let has_progress = self.pull(host, tx_readiness)
                || self.scheduling.filling.take().is_some()
                || self.begin_fin(host.now)
                || self.begin_plain_fin(host.now)
                || self.take_drained_subflows(host);
            if !has_progress {
                return None;
            }
        }
    }

    /// Returns the option space that a packet without data needs; SACK blocks may take the rest.
    fn ack_option_bytes(&self, index: usize) -> u16 {
        let Some(flow) = self.flows.get(index) else { return 0 };
        if self.is_single_stream() {
            return 0;
        }
        if flow.tcp.peer_isn().is_none() || self.mode == ConnectionMode::Offered {
            return 24;
        }
        let capable_bytes = self.capable_ack_option(None).map_or(0, |_| 20);
        let join_bytes = self.join_ack(index).map_or(0, |_| 24);
        let ack_only_bytes = ACK_OPTION_BYTES + self.data_ack_bytes();
        let dss_bytes = if self.fin_due() { self.data_option_bytes() } else { ack_only_bytes };
        dss_bytes.max(capable_bytes).max(join_bytes) + self.address_option_bytes(index)
    }

    fn address_option_bytes(&self, index: usize) -> u16 {
        let Some(flow) = self.flows.get(index) else { return 0 };
        let addresses_due = !self.pending_echoes.is_empty() || !self.pending_withdrawals.is_empty();
        let option_due = flow.priority_due
            || flow.fail_due.is_some()
            || addresses_due
            || self.announcements.iter().any(PendingAddAddr::is_due);
        // `compose` selects the option; SACK blocks can wait for the next acknowledgement.
        if option_due { 28 } else { 0 }
    }

    fn compose(
        &mut self,
        index: usize,
        mut transmit: Transmit,
        identification: u16,
        packet: &mut Packet,
    ) {
        self.note_composed(index, transmit.flags);
        let mut options = std::mem::take(&mut transmit.options);
        let payload = match (&transmit.data, self.flows.get(index)) {
            (Some(sent), Some(flow)) => flow.payload_of(sent),
            _ => Payload::EMPTY,
        };
        self.add_options(index, &transmit, &mut options);
        if let Some(flow) = self.flows.get(index) {
            self.advertisement.advertised_bytes = flow.tcp.advertised_window_bytes();
        }
        let (source, destination) = match self.flows.get(index) {
            Some(flow) => (flow.local, flow.remote),
            None => (([0, 0, 0, 0], 0).into(), ([0, 0, 0, 0], 0).into()),
        };
        let segment = Segment {
            source,
            destination,
            seq: transmit.seq,
            ack: transmit.ack,
            flags: transmit.flags,
            window: transmit.window,
            ecn: transmit.ecn,
            options,
            payload: Payload::EMPTY,
            segment_bytes: transmit.segment_bytes,
        };
        packet.write(&segment, payload, identification);
        packet.data_tag = transmit.data.map(|sent| DataTag {
            connection: self.id,
            start: sent.mapping.dsn + (sent.ssn - sent.mapping_ssn),
            retransmitted: transmit.retransmission,
            redundant: self.scheduler.duplicates_data(),
        });
    }

    fn add_options(&mut self, index: usize, transmit: &Transmit, options: &mut Options) {
        if transmit.flags.contains(Flags::RST) {
            self.add_reset_options(index, options);
            return;
        }
        if transmit.flags.contains(Flags::SYN) {
            options.mptcp.extend(self.syn_option(index));
            return;
        }
        match self.mode {
            ConnectionMode::Plain | ConnectionMode::Offered => {}
            ConnectionMode::Infinite => self.add_infinite_options(index, transmit, options),
            ConnectionMode::Multipath { .. } => {
                if let Some(option) = self.join_ack(index) {
                    options.mptcp.push(option);
                    return;
                }
                match &transmit.data {
                    Some(sent) => self.add_data_options(sent.mapping, sent.mapping_ssn, options),
                    None => self.add_ack_options(index, options),
                }
            }
        }
    }

    fn add_data_options(&self, mapping: DataMapping, ssn: u64, options: &mut Options) {
        let len = u16::try_from(mapping.len).unwrap_or(u16::MAX);
        // The first data carries the keys until the peer has shown that it knows them (§3.1).
        if ssn == 1
            && let Some(option) = self.capable_ack_option(Some((len, mapping.checksum)))
        {
            options.mptcp.push(option);
            return;
        }
        options.dss = Some(Dss {
            data_fin: false,
            data_ack: Some(self.data_ack()),
            mapping: Some(DssMapping {
                dsn: DataAck::Long(self.local_idsn.wrapping_add(mapping.dsn)),
                ssn: ssn as u32,
                len,
                checksum: mapping.checksum,
            }),
        });
    }

    /// Adds the infinite mapping after MP_FAIL to the data that follows, until it is acknowledged
    /// (§3.7).
    fn add_infinite_options(&mut self, index: usize, transmit: &Transmit, options: &mut Options) {
        let Some(flow) = self.flows.get_mut(index) else { return };
        if let (None, Some(dsn)) = (&transmit.data, flow.fail_due.take()) {
            let dsn = self.remote_idsn.wrapping_add(dsn);
            options.mptcp.push(MptcpOption::Fail { dsn });
            return;
        }
        let (Some((from_ssn, shift)), Some(sent)) = (self.infinite_shift, transmit.data) else {
            return;
        };
        if flow.tcp.acked_until() > from_ssn {
            return;
        }
        if sent.ssn < from_ssn {
            // Data with a mapping keeps it: the peer may have lost it with the data (§3.3.1).
            self.add_data_options(sent.mapping, sent.mapping_ssn, options);
            if let Some(dss) = &mut options.dss {
                dss.data_ack = None;
            }
            return;
        }
        let dsn = self.local_idsn.wrapping_add(sent.ssn.wrapping_add(shift));
        let checksum = self.checksum.then_some(0);
        let mapping =
            DssMapping { dsn: DataAck::Long(dsn), ssn: sent.ssn as u32, len: 0, checksum };
        options.dss = Some(Dss { data_fin: false, data_ack: None, mapping: Some(mapping) });
    }

    fn data_ack(&self) -> DataAck {
        let number = self.remote_idsn.wrapping_add(self.receive.next());
        if self.uses_long_data_acks() {
            DataAck::Long(number)
        } else {
            DataAck::Short(number as u32)
        }
    }

    fn uses_long_data_acks(&self) -> bool {
        self.advertisement.peer_maps_long || !self.config.short_data_acks
    }

    fn data_ack_bytes(&self) -> u16 {
        if self.uses_long_data_acks() { 8 } else { 4 }
    }

    /// Returns the option bytes of a packet with data.
    pub(super) fn data_option_bytes(&self) -> u16 {
        MAPPING_OPTION_BYTES + self.data_ack_bytes()
    }

    /// Records the size of the numbers in the peer's mappings: 8 octets if `long`, otherwise 4.
    pub(super) fn note_mapping_octets(&mut self, long: bool) {
        let used_long = self.uses_long_data_acks();
        self.advertisement.peer_maps_long = long;
        if self.uses_long_data_acks() != used_long {
            self.update_data_options();
        }
    }

    fn add_ack_options(&mut self, index: usize, options: &mut Options) {
        let fin_due = self.fin_due();
        // A peer without data does not acknowledge the keys. DATA_FIN therefore follows them
        // immediately, in a packet of its own.
        let keys_just_sent = self.fin_after_keys;
        self.fin_after_keys = fin_due && !keys_just_sent;
        if let Some(option) = self.capable_ack_option(None).filter(|_| !(fin_due && keys_just_sent))
        {
            options.mptcp.push(option);
            self.request_fin_packet(index, fin_due);
            return;
        }
        let mapping = fin_due.then(|| self.fin_mapping());
        let ack_only = Dss { data_fin: false, data_ack: Some(self.data_ack()), mapping: None };
        options.dss = Some(Dss { data_fin: mapping.is_some(), mapping, ..ack_only });
        if let Some(option) = self.next_address_option(index) {
            options.mptcp.push(option);
            if options.encoded_len() > OPTION_BYTES && fin_due {
                options.dss = Some(ack_only);
                self.request_fin_packet(index, fin_due);
            }
            drop_excess_options(options);
            // The DATA_ACK may acknowledge data: without another packet the peer would wait for it.
            self.request_fin_packet(index, options.dss.is_none());
        }
    }

    /// Requests another packet for a DATA_FIN that did not fit into this one.
    fn request_fin_packet(&mut self, index: usize, fin: bool) {
        if let Some(flow) = self.flows.get_mut(index).filter(|_| fin) {
            flow.tcp.set_ack_due();
        }
    }

    /// Returns the mapping of a DATA_FIN without data: subflow number 0, length 1 (RFC 8684
    /// §3.3.3).
    fn fin_mapping(&self) -> DssMapping {
        let dsn = self.local_idsn.wrapping_add(self.send.end());
        let checksum = || towpath_wire::keys::dss_checksum(dsn, 0, 1, &Payload::EMPTY);
        DssMapping {
            dsn: DataAck::Long(dsn),
            ssn: 0,
            len: 1,
            checksum: self.checksum.then(checksum),
        }
    }

    fn add_reset_options(&self, index: usize, options: &mut Options) {
        let Some(flow) = self.flows.get(index) else { return };
        if self.is_single_stream() || self.mode == ConnectionMode::Offered {
            return;
        }
        if let (true, Some(key)) = (flow.fast_close, self.remote_key) {
            options.mptcp.push(MptcpOption::FastClose { key });
            return;
        }
        if let Some(dsn) = flow.fail_due {
            let dsn = self.remote_idsn.wrapping_add(dsn);
            options.mptcp.push(MptcpOption::Fail { dsn });
        }
        if let Some(reset) = flow.reset_reason {
            options.mptcp.push(MptcpOption::Reset(reset));
        }
    }

    /// Returns the next of MP_FAIL, MP_PRIO, ADD_ADDR and REMOVE_ADDR for this subflow.
    fn next_address_option(&mut self, index: usize) -> Option<MptcpOption> {
        let flow = self.flows.get_mut(index)?;
        if let Some(dsn) = flow.fail_due.take() {
            let dsn = self.remote_idsn.wrapping_add(dsn);
            return Some(MptcpOption::Fail { dsn });
        }
        if flow.option_acks >= MAX_OPTION_ACKS {
            self.option_acks_held |= self.address_option_bytes(index) > 0;
            return None; // the option waits, the acknowledgement is sent
        }
        let option = self.next_signal(index)?;
        if let Some(flow) = self.flows.get_mut(index) {
            flow.option_acks += 1;
        }
        self.request_packet(index);
        Some(option)
    }

    fn next_signal(&mut self, index: usize) -> Option<MptcpOption> {
        let flow = self.flows.get_mut(index)?;
        if std::mem::take(&mut flow.priority_due) {
            return Some(MptcpOption::Priority { backup: flow.local_backup });
        }
        if let Some(echo) = self.pending_echoes.pop() {
            return Some(MptcpOption::AddAddress(AddAddr { hmac: None, ..echo }));
        }
        if !self.pending_withdrawals.is_empty() {
            let ids =
                self.pending_withdrawals.drain(..self.pending_withdrawals.len().min(8)).collect();
            return Some(MptcpOption::RemoveAddress(ids));
        }
        let remote_key = self.remote_key?;
        let announcement = self.announcements.iter_mut().find(|entry| entry.is_due())?;
        Some(MptcpOption::AddAddress(announcement.option(self.local_key, remote_key)))
    }

    /// Allows options in acknowledgements again, after a packet from the peer or the pause.
    pub(super) fn resume_option_acks(&mut self, index: usize) {
        let Some(flow) = self.flows.get_mut(index) else { return };
        if std::mem::take(&mut flow.option_acks) >= MAX_OPTION_ACKS && flow.usable() {
            self.request_packet(index);
        }
    }

    /// Requests another packet if another option is due, and not too many were sent in a row.
    fn request_packet(&mut self, index: usize) {
        let option_due = self.address_option_bytes(index) > 0;
        let Some(flow) = self.flows.get_mut(index).filter(|_| option_due) else { return };
        if flow.option_acks < MAX_OPTION_ACKS {
            flow.tcp.set_ack_due();
        } else {
            self.option_acks_held = true;
        }
    }
}

/// Shrinks the options to fit. SACK blocks are removed first, then DSS (the next packet has it),
/// then timestamps.
fn drop_excess_options(options: &mut Options) {
    if options.encoded_len() > OPTION_BYTES {
        options.sack.clear();
    }
    if options.encoded_len() > OPTION_BYTES {
        options.dss = None;
    }
    if options.encoded_len() > OPTION_BYTES {
        options.timestamps = None;
    }
}
