//! Tracker of the program's sockets in the kernel's socket listings.
//!
//! The supervisor keeps no socket, but knows the inode of each one that it made. Listings show the
//! inode until the program closes the socket, and the connection's token until the connection is
//! gone. Connections that the program accepts are recognised by the port of the listener. Cookies
//! do not identify them: Linux gives an accepted MPTCP socket its listener's cookie (seen with
//! 6.18).

use std::collections::{BTreeMap, BTreeSet};

use towpath_kernel::sample::MptcpInfo;
use towpath_kernel::subflow::canonical_addresses;
use towpath_netlink::{DiagSocket, TcpState};

/// Snapshot of all sockets of the network namespace.
#[derive(Debug, Default)]
pub(super) struct SocketSnapshot {
    pub(super) mptcp: Vec<DiagSocket>,
    pub(super) tcp: Vec<DiagSocket>,
}

/// Side that opened a connection, as seen from the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionRole {
    Opened,
    Accepted,
}

/// State of a socket as far as the snapshots show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SocketOutcome {
    /// In no listing so far: not used yet, or closed too fast.
    Unseen,
    Listening,
    /// Connecting: no reply has been seen.
    Trying,
    Multipath,
    /// Plain TCP: the peer or the path has no Multipath TCP, or the connection fell back later.
    Single,
}

/// A socket of the program.
#[derive(Debug, Clone, Copy)]
pub(super) struct TrackedSocket {
    /// Counts the connections, from 0, in order of appearance.
    pub(super) number: u32,
    pub(super) role: ConnectionRole,
    pub(super) outcome: SocketOutcome,
    /// Maximum number of subflows established at one time.
    pub(super) max_subflows: u32,
    /// Set when the last snapshot showed the socket.
    pub(super) alive: bool,
}

/// Index of a socket of the program.
pub(super) type SocketId = usize;

/// All sockets of the program.
#[derive(Debug, Default)]
pub(super) struct SocketTracker {
    sockets: Vec<TrackedSocket>,
    /// Number of connections seen so far.
    connection_count: u32,
    listener_ports: BTreeSet<u16>,
    inodes: BTreeMap<u32, SocketId>,
    tokens: BTreeMap<u32, SocketId>,
    /// Accepted plain TCP, by cookie.
    plain: BTreeMap<u64, SocketId>,
}

impl SocketTracker {
    /// Adds a socket that was made for the program.
    pub(super) fn on_socket_created(&mut self, inode: u32) {
        let id = self.add(ConnectionRole::Opened, SocketOutcome::Unseen);
        self.inodes.insert(inode, id);
    }

    /// Updates all sockets from a snapshot.
    pub(super) fn update(&mut self, snapshot: &SocketSnapshot) {
        for tracked in &mut self.sockets {
            tracked.alive = false;
        }
        // Accepted sockets are recognised by the ports of listeners, so listeners come first.
        let listens = |socket: &&DiagSocket| socket.state == TcpState::Listen;
        for socket in snapshot.mptcp.iter().filter(listens) {
            self.note_listener(socket);
        }
        for socket in snapshot.mptcp.iter().filter(|socket| !listens(socket)) {
            self.note_mptcp(socket);
        }
        for socket in &snapshot.tcp {
            self.note_tcp(socket, snapshot);
        }
        self.count_subflows(snapshot);
    }

    /// Returns the connection that a TCP socket of a listing belongs to.
    pub(super) fn connection_of(&self, socket: &DiagSocket) -> Option<SocketId> {
        let token = socket.subflow.and_then(|subflow| subflow.token_local);
        let by_token = token.and_then(|token| self.tokens.get(&token));
        let by_inode = || self.inodes.get(&socket.inode);
        by_token.or_else(by_inode).or_else(|| self.plain.get(&socket.cookie)).copied()
    }

    /// Returns the connection of an MPTCP socket of a listing.
    pub(super) fn mptcp_connection_of(&self, socket: &DiagSocket) -> Option<SocketId> {
        let token = MptcpInfo::parse(&socket.info).token;
        self.tokens.get(&token).or_else(|| self.inodes.get(&socket.inode)).copied()
    }

    pub(super) fn get(&self, id: SocketId) -> Option<&TrackedSocket> {
        self.sockets.get(id)
    }

    pub(super) fn sockets(&self) -> impl Iterator<Item = &TrackedSocket> {
        self.sockets.iter()
    }

    /// Returns true if a later snapshot could still show a change.
    pub(super) fn needs_polling(&self) -> bool {
        self.sockets.iter().any(|tracked| tracked.alive || tracked.outcome == SocketOutcome::Unseen)
    }

    fn add(&mut self, role: ConnectionRole, outcome: SocketOutcome) -> SocketId {
        self.sockets.push(TrackedSocket {
            number: 0,
            role,
            outcome,
            max_subflows: 0,
            alive: false,
        });
        self.sockets.len() - 1
    }

    fn add_accepted(&mut self, outcome: SocketOutcome) -> SocketId {
        let id = self.add(ConnectionRole::Accepted, outcome);
        self.assign_number(id);
        id
    }

    fn assign_number(&mut self, id: SocketId) {
        if let Some(tracked) = self.sockets.get_mut(id) {
            tracked.number = self.connection_count;
            tracked.alive = true;
            self.connection_count += 1;
        }
    }

    fn note_listener(&mut self, socket: &DiagSocket) {
        let id = self.inodes.get(&socket.inode).copied();
        if let Some(tracked) = id.and_then(|id| self.sockets.get_mut(id)) {
            tracked.outcome = SocketOutcome::Listening;
            tracked.alive = true;
            self.listener_ports.insert(socket.local.port());
        }
    }

    fn note_mptcp(&mut self, socket: &DiagSocket) {
        let id = match self.mptcp_connection_of(socket) {
            Some(id) => id,
            None if self.listener_ports.contains(&socket.local.port()) => {
                self.add_accepted(SocketOutcome::Trying)
            }
            None => return,
        };
        if self.get(id).is_some_and(|tracked| tracked.outcome == SocketOutcome::Unseen) {
            self.assign_number(id);
        }
        if let Some(tracked) = self.sockets.get_mut(id) {
            tracked.alive = true;
            tracked.outcome = next_outcome(tracked.outcome, socket);
        }
        let token = MptcpInfo::parse(&socket.info).token;
        if token != 0 {
            self.tokens.insert(token, id);
        }
    }

    /// Notes a TCP socket: a connection accepted from a peer without Multipath TCP.
    fn note_tcp(&mut self, socket: &DiagSocket, snapshot: &SocketSnapshot) {
        let id = self.plain.get(&socket.cookie).copied();
        if let Some(tracked) = id.and_then(|id| self.sockets.get_mut(id)) {
            tracked.alive = true;
            return;
        }
        let connected = matches!(
            socket.state,
            TcpState::Established | TcpState::CloseWait | TcpState::FinWait1
        );
        let on_listener_port = self.listener_ports.contains(&socket.local.port());
        // Some kernels report subflows only to administrators, but still show the parent
        // connection.
        let is_subflow = socket.subflow.is_some()
            || snapshot.mptcp.iter().any(|mptcp_socket| {
                mptcp_socket.state != TcpState::Listen
                    && (mptcp_socket.inode == socket.inode && mptcp_socket.inode != 0
                        || canonical_addresses(mptcp_socket) == canonical_addresses(socket))
            });
        if connected && on_listener_port && !is_subflow {
            let id = self.add_accepted(SocketOutcome::Single);
            self.plain.insert(socket.cookie, id);
        }
    }

    fn count_subflows(&mut self, snapshot: &SocketSnapshot) {
        let mut counts: BTreeMap<SocketId, u32> = BTreeMap::new();
        let is_established = |socket: &&DiagSocket| socket.state == TcpState::Established;
        for socket in snapshot.tcp.iter().filter(is_established) {
            if let Some(id) = self.connection_of(socket) {
                *counts.entry(id).or_default() += 1;
            }
        }
        for (id, count) in counts {
            if let Some(tracked) = self.sockets.get_mut(id) {
                tracked.max_subflows = tracked.max_subflows.max(count);
            }
        }
    }
}

/// Returns a socket's state after one more snapshot. A connection that has fallen back stays so.
fn next_outcome(before: SocketOutcome, socket: &DiagSocket) -> SocketOutcome {
    let info = MptcpInfo::parse(&socket.info);
    let Some(flags) = (!socket.info.is_empty()).then_some((info.fallback, info.remote_key)) else {
        return before;
    };
    match (before, flags) {
        (SocketOutcome::Single, _) | (_, (true, _)) => SocketOutcome::Single,
        (SocketOutcome::Multipath, _) | (_, (_, true)) => SocketOutcome::Multipath,
        (SocketOutcome::Unseen | SocketOutcome::Listening | SocketOutcome::Trying, _) => {
            SocketOutcome::Trying
        }
    }
}

#[cfg(test)]
mod tests {
    use towpath_netlink::SubflowInfo;

    use super::*;

    fn socket(cookie: u64, state: TcpState, local: &str, remote: &str) -> DiagSocket {
        DiagSocket {
            state,
            local: local.parse().unwrap(),
            remote: remote.parse().unwrap(),
            link_index: None,
            cookie,
            inode: u32::try_from(cookie).unwrap(),
            uid: 0,
            receive_queue: 0,
            send_queue: 0,
            info: Vec::new(),
            congestion: None,
            send_buffer: (0, 0),
            subflow: None,
        }
    }

    /// Returns an MPTCP socket with `flags` (1: fallback, 2: the peer's key is known).
    fn mptcp_socket(
        cookie: u64,
        state: TcpState,
        local: &str,
        flags: u32,
        token: u32,
    ) -> DiagSocket {
        let mut info = vec![0; 96];
        info[8..12].copy_from_slice(&flags.to_ne_bytes());
        info[12..16].copy_from_slice(&token.to_ne_bytes());
        DiagSocket { info, ..socket(cookie, state, local, "10.0.0.2:80") }
    }

    fn subflow(cookie: u64, local: &str, token: u32) -> DiagSocket {
        let subflow = SubflowInfo { token_local: Some(token), ..SubflowInfo::default() };
        let socket = socket(cookie, TcpState::Established, local, "10.0.0.2:80");
        DiagSocket { subflow: Some(subflow), ..socket }
    }

    #[test]
    fn a_connection_is_tracked_from_creation_to_its_second_subflow() {
        let mut tracker = SocketTracker::default();
        tracker.on_socket_created(7);
        assert_eq!(
            (tracker.sockets[0].outcome, tracker.needs_polling()),
            (SocketOutcome::Unseen, true)
        );
        let mptcp = vec![mptcp_socket(7, TcpState::SynSent, "10.0.0.1:5", 0, 9)];
        tracker.update(&SocketSnapshot { mptcp, tcp: vec![] });
        assert_eq!(tracker.sockets[0].outcome, SocketOutcome::Trying);
        let mptcp = vec![
            mptcp_socket(7, TcpState::Established, "10.0.0.1:5", 2, 9),
            mptcp_socket(8, TcpState::Established, "10.0.0.1:6", 2, 10),
        ];
        let tcp = vec![subflow(70, "10.0.0.1:5", 9), subflow(71, "10.1.0.1:6", 9)];
        tracker.update(&SocketSnapshot { mptcp, tcp });
        let socket = tracker.sockets[0];
        assert_eq!(
            (socket.outcome, socket.role, socket.max_subflows),
            (SocketOutcome::Multipath, ConnectionRole::Opened, 2)
        );
        assert_eq!(tracker.sockets.len(), 1, "the other one is not ours");
        tracker.update(&SocketSnapshot::default());
        assert!(!tracker.needs_polling());
        assert_eq!(
            tracker.sockets[0].outcome,
            SocketOutcome::Multipath,
            "what was seen stays true"
        );
    }

    #[test]
    fn a_fallback_is_final() {
        let mut tracker = SocketTracker::default();
        tracker.on_socket_created(7);
        for flags in [2, 3, 2] {
            let mptcp = vec![mptcp_socket(7, TcpState::Established, "10.0.0.1:5", flags, 9)];
            tracker.update(&SocketSnapshot { mptcp, tcp: vec![] });
        }
        assert_eq!(tracker.sockets[0].outcome, SocketOutcome::Single);
    }

    #[test]
    fn accepted_connections_are_identified_by_port_with_any_peer() {
        let mut tracker = SocketTracker::default();
        tracker.on_socket_created(1);
        let listener = mptcp_socket(1, TcpState::Listen, "0.0.0.0:80", 0, 0);
        let plain_tcp = socket(3, TcpState::Established, "10.0.0.1:80", "10.0.0.9:7");
        let join_subflow = subflow(4, "10.1.0.1:80", 99);
        let old_kernel = socket(5, TcpState::Established, "10.0.0.1:80", "10.0.0.2:80");
        let foreign = socket(6, TcpState::Established, "10.0.0.1:81", "10.0.0.9:7");
        let accepted = mptcp_socket(2, TcpState::Established, "10.0.0.1:80", 2, 99);
        // The kernel gives an accepted socket the listener's cookie.
        let mptcp = vec![DiagSocket { cookie: 1, ..accepted }, listener];
        tracker.update(&SocketSnapshot {
            mptcp,
            tcp: vec![plain_tcp, join_subflow, old_kernel, foreign],
        });
        let outcomes: Vec<_> = tracker
            .sockets
            .iter()
            .map(|tracked| (tracked.role, tracked.outcome, tracked.number))
            .collect();
        let expected = [
            (ConnectionRole::Opened, SocketOutcome::Listening, 0),
            (ConnectionRole::Accepted, SocketOutcome::Multipath, 0),
            (ConnectionRole::Accepted, SocketOutcome::Single, 1),
        ];
        assert_eq!(outcomes, expected);
    }
}
