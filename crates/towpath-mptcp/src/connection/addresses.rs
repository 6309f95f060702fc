//! Addresses and priorities: ADD_ADDR, REMOVE_ADDR, MP_PRIO (RFC 8684 §3.3.8, §3.4), and their path
//! manager.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use towpath_multipath::PathId;
use towpath_net::Instant;
use towpath_wire::keys;
use towpath_wire::{AddAddr, MptcpOption};

use super::handshake::MPTCP_ERROR;
use super::{Connection, ConnectionOutput, HostContext};
use crate::path_manager::{
    PathManagerAction, PathManagerEvent, PathManagerView, RemoteAddress, SubflowView,
};
use crate::stack::StackNotice;
use crate::subflow::CloseReason;

/// Retransmissions of an ADD_ADDR without an echo (Linux `ADD_ADDR_RETRANS_MAX`).
const ADD_ADDR_RETRANS_MAX: u32 = 3;
/// Maximum number of remembered addresses of a peer.
pub(super) const MAX_REMOTE_ADDRESSES: usize = 32;

/// Address that is announced to the peer, until the peer echoes it.
#[derive(Debug)]
pub(super) struct PendingAddAddr {
    address_id: u8,
    address: IpAddr,
    port: Option<u16>,
    /// Set when the option must go out at the next opportunity.
    due: bool,
    /// Retransmissions so far.
    tries: u32,
    retransmit_at: Option<Instant>,
}

impl PendingAddAddr {
    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// Returns the option, which then counts as sent.
    pub(super) fn option(&mut self, local_key: u64, remote_key: u64) -> AddAddr {
        self.due = false;
        let Self { address_id, address, port, .. } = *self;
        let hmac = keys::add_address_hmac(local_key, remote_key, address_id, address, port);
        AddAddr { address_id, address, port, hmac: Some(hmac) }
    }
}

impl Connection {
    /// Returns true if subflows may be opened or closed. After MP_FAIL they may not: the only
    /// subflow must carry the reply.
    pub(super) fn path_manager_active(&self) -> bool {
        let is_open = !self.finishing && self.closed.is_none();
        self.is_confirmed() && is_open && !self.fallback_state.awaiting_infinite
    }

    /// Passes an event to the path manager and carries out the actions that it returns.
    pub(super) fn notify_path_manager(&mut self, host: &HostContext<'_>, event: PathManagerEvent) {
        if !self.path_manager_active() {
            return;
        }
        let subflows: Vec<SubflowView> = self
            .flows
            .iter()
            .filter(|flow| flow.closed.is_none() && !flow.closed_locally)
            .map(super::SubflowContext::path_manager_view)
            .collect();
        let view = PathManagerView {
            now: host.now,
            client: self.client,
            local: host.local,
            remote: &self.remote_addresses,
            no_join_to_initial: self.no_join_to_initial,
            subflows: &subflows,
            subflow_limit: self.config.subflow_limit,
            accept_limit: self.config.accept_limit,
        };
        let mut actions = Vec::new();
        self.path_manager.on_event(event, &view, &mut actions);
        for action in actions {
            self.apply_action(host, action);
        }
    }

    fn apply_action(&mut self, host: &HostContext<'_>, action: PathManagerAction) {
        match action {
            PathManagerAction::Open { .. } => self.out.push(ConnectionOutput::Open(action)),
            PathManagerAction::Announce { address_id, address, port } => {
                self.announcements.retain(|entry| entry.address_id != address_id);
                self.announcements.push(PendingAddAddr {
                    address_id,
                    address,
                    port,
                    due: true,
                    tries: 0,
                    retransmit_at: Some(host.now + self.config.add_address_timeout),
                });
                self.set_ack_due_on_any();
            }
            PathManagerAction::Withdraw { address_id } => {
                self.announcements.retain(|entry| entry.address_id != address_id);
                self.withdraw(address_id);
                self.set_ack_due_on_any();
            }
            PathManagerAction::Close(path) => self.close_subflow(host, path),
            PathManagerAction::SetBackup { subflow, backup } => self.set_backup(subflow, backup),
        }
    }

    /// Requests an acknowledgement with an option on any subflow.
    pub(super) fn set_ack_due_on_any(&mut self) {
        let usable = self.flows.iter_mut().filter(|flow| flow.usable() && !flow.stale);
        let best = usable.min_by_key(|flow| (flow.backup(), flow.tcp.srtt(), flow.path));
        if let Some(flow) = best {
            flow.tcp.set_ack_due();
        }
    }

    fn close_subflow(&mut self, host: &HostContext<'_>, path: PathId) {
        let Some(flow) = self.flows.iter_mut().find(|flow| flow.path == path) else { return };
        flow.close(host.now);
        self.reinject_all(path, crate::stack::ReinjectionCause::Closed);
    }

    fn set_backup(&mut self, path: PathId, backup: bool) {
        let Some(flow) = self.flows.iter_mut().find(|flow| flow.path == path) else { return };
        if flow.local_backup != backup {
            flow.local_backup = backup;
            flow.priority_due = true;
            flow.tcp.set_ack_due();
        }
    }

    /// Processes one Multipath TCP option. DSS and the handshake options are processed elsewhere.
    pub(super) fn on_option(&mut self, host: &HostContext<'_>, index: usize, option: &MptcpOption) {
        match option {
            MptcpOption::AddAddress(option) => self.on_add_address(host, index, option),
            MptcpOption::RemoveAddress(ids) => {
                for id in ids {
                    self.on_remove_address(host, *id);
                }
            }
            MptcpOption::Priority { backup } => {
                if let Some(flow) = self.flows.get_mut(index) {
                    flow.remote_backup = *backup;
                    let number = flow.number;
                    self.push_notice(StackNotice::Priority { number, backup: *backup });
                }
            }
            MptcpOption::Fail { dsn } => {
                let offset = dsn.wrapping_sub(self.local_idsn);
                self.on_fail(host, index, offset);
            }
            MptcpOption::FastClose { key } => self.on_fast_close(host, *key),
            MptcpOption::Capable(_)
            | MptcpOption::Join(_)
            | MptcpOption::Reset(_)
            | MptcpOption::Unknown { .. } => {}
        }
    }

    fn on_add_address(&mut self, host: &HostContext<'_>, index: usize, option: &AddAddr) {
        let Some(remote_key) = self.remote_key else { return };
        let AddAddr { address_id, address, port, hmac } = *option;
        let Some(hmac) = hmac else {
            // An echo: the peer has received our ADD_ADDR (§3.4.1).
            self.announcements.retain(|entry| {
                (entry.address_id, entry.address, entry.port) != (address_id, address, port)
            });
            return;
        };
        let local_key = self.local_key;
        if !keys::verify_add_addr_hmac(remote_key, local_key, address_id, address, port, hmac) {
            return; // §3.4.1: silently ignored
        }
        if let Some(limit) = &mut self.amplification {
            limit.credit_packet();
        }
        // The peer retransmits an ADD_ADDR without an echo.
        if self.pending_echoes.len() < MAX_REMOTE_ADDRESSES {
            self.pending_echoes.push(*option);
        }
        if let Some(flow) = self.flows.get_mut(index) {
            flow.tcp.set_ack_due();
        }
        let subflow_port = self.flows.get(index).map(|flow| flow.remote.port());
        let address = SocketAddr::new(address, port.or(subflow_port).unwrap_or(0));
        if self.add_remote_address(RemoteAddress { address_id, address }) {
            self.notify_path_manager(
                host,
                PathManagerEvent::Announced(RemoteAddress { address_id, address }),
            );
        }
    }

    /// Returns true if a subflow may be tried, perhaps again, to an address that was announced.
    fn add_remote_address(&mut self, remote: RemoteAddress) -> bool {
        let RemoteAddress { address_id, address } = remote;
        let is_full = self.remote_addresses.len() >= MAX_REMOTE_ADDRESSES;
        let has_same_id = |entry: &&mut RemoteAddress| entry.address_id == address_id;
        match self.remote_addresses.iter_mut().find(has_same_id) {
            // An identifier belongs to one address until it is withdrawn. Another announcement
            // requests a new attempt, perhaps with a new port (§3.4.1).
            Some(entry) if entry.address == address => return address_id != 0,
            Some(entry) if address_id != 0 && entry.address.ip() == address.ip() => {
                entry.address = address;
            }
            Some(_) => return false,
            None if address_id == 0 || is_full => return false,
            None => self.remote_addresses.push(remote),
        }
        self.push_notice(StackNotice::AddressAnnounced { address_id, address });
        true
    }

    /// Closes the subflows that use a removed address (§3.4.2); an unknown identifier is ignored.
    fn on_remove_address(&mut self, host: &HostContext<'_>, address_id: u8) {
        let used = self.flows.iter().any(|flow| flow.remote_id == address_id);
        if !used && !self.remote_addresses.iter().any(|entry| entry.address_id == address_id) {
            return;
        }
        self.remote_addresses.retain(|entry| entry.address_id != address_id);
        self.push_notice(StackNotice::AddressWithdrawn { address_id });
        let affected: Vec<PathId> = self
            .flows
            .iter()
            .filter(|flow| flow.remote_id == address_id)
            .map(|flow| flow.path)
            .collect();
        for path in affected {
            self.abort_subflow(host, path, MPTCP_ERROR);
        }
        self.notify_path_manager(host, PathManagerEvent::Withdrawn(address_id));
    }

    /// Resets one subflow with the reason for MP_TCPRST.
    pub(super) fn abort_subflow(
        &mut self,
        host: &HostContext<'_>,
        path: PathId,
        reason: towpath_wire::MpTcpRst,
    ) {
        if let Some(index) = self.flows.iter().position(|flow| flow.path == path) {
            self.reset_subflow(host, index, reason);
        }
    }

    /// Handles the removal of a local address. Its subflows cannot be reset, as nothing can be sent
    /// from that address.
    pub(crate) fn on_local_address_removed(
        &mut self,
        host: &HostContext<'_>,
        address: IpAddr,
        address_id: u8,
    ) {
        let mut any_affected = false;
        for flow in &mut self.flows {
            if flow.local.ip() == address && flow.closed.is_none() {
                flow.closed = Some(CloseReason::Aborted);
                flow.closed_locally = true;
                any_affected = true;
            }
        }
        if any_affected && self.is_single_stream() {
            // Plain TCP does not end with its address: keep trying until a timeout, as Linux does.
            for flow in &mut self.flows {
                flow.closed = None;
                flow.closed_locally = false;
            }
            return;
        }
        // The first subflow's address has the identifier 0 on the wire (§3.4.2).
        let announced_id = if self.local_id_of(address) == Some(0) { 0 } else { address_id };
        if any_affected {
            self.withdraw(announced_id);
            self.set_ack_due_on_any();
        }
        self.notify_path_manager(host, PathManagerEvent::LocalGone { address_id });
        self.remove_closed(host);
    }

    /// Handles a change of the host's addresses or interfaces.
    pub(crate) fn on_local_changed(&mut self, host: &HostContext<'_>) {
        self.notify_path_manager(host, PathManagerEvent::LocalChanged);
    }

    fn withdraw(&mut self, address_id: u8) {
        if !self.pending_withdrawals.contains(&address_id) {
            self.pending_withdrawals.push(address_id);
        }
    }

    /// Retransmits each ADD_ADDR that was not echoed in time.
    pub(super) fn retransmit_add_addr(&mut self, now: Instant) {
        let timeout = self.config.add_address_timeout;
        let mut any_due = false;
        for entry in &mut self.announcements {
            if entry.retransmit_at.is_none_or(|at| at > now) {
                continue;
            }
            entry.tries += 1;
            entry.due = entry.tries <= ADD_ADDR_RETRANS_MAX;
            entry.retransmit_at = entry.due.then(|| now + backed_off_timeout(timeout, entry.tries));
            any_due |= entry.due;
        }
        if any_due {
            for flow in &mut self.flows {
                flow.option_acks = 0; // the earlier ones were sent long ago
            }
            self.set_ack_due_on_any();
        }
    }

    pub(super) fn announcement_timeout(&self) -> Option<Instant> {
        self.announcements.iter().filter_map(|entry| entry.retransmit_at).min()
    }
}

fn backed_off_timeout(timeout: Duration, tries: u32) -> Duration {
    timeout.saturating_mul(2_u32.saturating_pow(tries.min(16)))
}
