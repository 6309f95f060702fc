//! The program's connections, as the kernel's listings of sockets show them.
//!
//! The supervisor keeps no socket, but knows the number (cookie) of each that it made; listings have
//! the same numbers. Connections that the program accepts are known by the port that it listens at.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::netlink::{DiagSocket, SocketState};
use crate::sample::MptcpInfo;

/// One look at all sockets of the network namespace.
#[derive(Debug, Default)]
pub(super) struct Look {
    pub(super) mptcp: Vec<DiagSocket>,
    pub(super) tcp: Vec<DiagSocket>,
}

/// Who opened a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Opened,
    Accepted,
}

/// What is known of a socket so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// Not seen in a listing: not used yet, or closed again too fast.
    Unseen,
    Listening,
    /// On its way: no answer has been seen.
    Trying,
    Multipath,
    /// Plain TCP: the handshake gave no more, or it fell back later.
    Single,
}

/// A socket of the program.
#[derive(Debug, Clone, Copy)]
pub(super) struct Own {
    /// Counts the connections, from 0, in order of appearance.
    pub(super) number: u32,
    pub(super) role: Role,
    pub(super) fate: Fate,
    /// Most subflows that were established at one time.
    pub(super) most_subflows: u32,
    /// Token of the connection, once it has one.
    token: u32,
    /// Whether the last look showed it.
    pub(super) alive: bool,
}

/// All sockets of the program, by their number.
#[derive(Debug, Default)]
pub(super) struct Connections {
    own: BTreeMap<u64, Own>,
    ports: BTreeSet<u16>,
    tokens: BTreeMap<u32, u64>,
    next: u32,
}

impl Connections {
    /// A socket was made for the program.
    pub(super) fn made(&mut self, cookie: u64) {
        self.own.insert(cookie, self.new(Role::Opened, Fate::Unseen));
    }

    /// Learns from a look at all sockets.
    pub(super) fn note(&mut self, look: &Look) {
        for own in self.own.values_mut() {
            own.alive = false;
        }
        // What they accepted is known by the ports of listeners, so these come first.
        let listens = |socket: &&DiagSocket| socket.state == SocketState::Listen;
        for socket in look.mptcp.iter().filter(listens) {
            self.note_mptcp(socket);
        }
        for socket in look.mptcp.iter().filter(|socket| !listens(socket)) {
            self.note_mptcp(socket);
        }
        for socket in &look.tcp {
            self.note_tcp(socket, look);
        }
        self.count_subflows(look);
    }

    /// Number of the connection that a TCP socket of a listing belongs to.
    pub(super) fn of(&self, socket: &DiagSocket) -> Option<u64> {
        let token = socket.subflow.and_then(|subflow| subflow.token_local);
        let by_token = token.and_then(|token| self.tokens.get(&token)).copied();
        by_token.or_else(|| self.own.contains_key(&socket.cookie).then_some(socket.cookie))
    }

    pub(super) fn get(&self, cookie: u64) -> Option<&Own> {
        self.own.get(&cookie)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Own> {
        self.own.values()
    }

    /// Whether something can still happen that a look would show.
    pub(super) fn worth_a_look(&self) -> bool {
        self.own.values().any(|own| own.alive || own.fate == Fate::Unseen)
    }

    fn new(&self, role: Role, fate: Fate) -> Own {
        Own { number: self.next, role, fate, most_subflows: 0, token: 0, alive: false }
    }

    fn note_mptcp(&mut self, socket: &DiagSocket) {
        let known = self.own.contains_key(&socket.cookie);
        let accepted = self.ports.contains(&socket.local.port());
        if !known && (!accepted || socket.state == SocketState::Listen) {
            return;
        }
        let mut own = match self.own.get(&socket.cookie) {
            Some(own) => *own,
            None => self.new(Role::Accepted, Fate::Unseen),
        };
        own.alive = true;
        if matches!(own.fate, Fate::Unseen) && socket.state != SocketState::Listen {
            own.number = self.next;
            self.next += 1;
        }
        own.fate = fate(own.fate, socket);
        if own.fate == Fate::Listening {
            self.ports.insert(socket.local.port());
        }
        let token = MptcpInfo::parse(&socket.info).token;
        if token != 0 {
            own.token = token;
            self.tokens.insert(token, socket.cookie);
        }
        self.own.insert(socket.cookie, own);
    }

    /// A connection accepted from a peer without Multipath TCP is an ordinary TCP socket.
    fn note_tcp(&mut self, socket: &DiagSocket, look: &Look) {
        if let Some(own) = self.own.get_mut(&socket.cookie) {
            own.alive = true;
            return;
        }
        let connected = matches!(
            socket.state,
            SocketState::Established | SocketState::CloseWait | SocketState::FinWait1
        );
        let ours = self.ports.contains(&socket.local.port());
        // Kernels that tell only administrators of subflows still show what they are a part of.
        let part = socket.subflow.is_some()
            || look.mptcp.iter().any(|whole| {
                whole.state != SocketState::Listen
                    && (whole.inode == socket.inode && whole.inode != 0
                        || ends(whole) == ends(socket))
            });
        if connected && ours && !part {
            let own = Own { alive: true, ..self.new(Role::Accepted, Fate::Single) };
            self.next += 1;
            self.own.insert(socket.cookie, own);
        }
    }

    fn count_subflows(&mut self, look: &Look) {
        let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
        let open = |socket: &&DiagSocket| socket.state == SocketState::Established;
        for socket in look.tcp.iter().filter(open) {
            if let Some(cookie) = self.of(socket) {
                *counts.entry(cookie).or_default() += 1;
            }
        }
        for (cookie, count) in counts {
            if let Some(own) = self.own.get_mut(&cookie) {
                own.most_subflows = own.most_subflows.max(count);
            }
        }
    }
}

/// Both ends, with IPv4 as IPv4.
pub(super) fn ends(socket: &DiagSocket) -> (SocketAddr, SocketAddr) {
    let plain = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
    (plain(socket.local), plain(socket.remote))
}

/// What one more look says of a socket. A connection that has fallen back never returns.
fn fate(before: Fate, socket: &DiagSocket) -> Fate {
    let info = MptcpInfo::parse(&socket.info);
    let Some(said) = (!socket.info.is_empty()).then_some((info.fallback, info.remote_key)) else {
        return before;
    };
    match (before, socket.state, said) {
        (_, SocketState::Listen, _) => Fate::Listening,
        (Fate::Single, ..) | (_, _, (true, _)) => Fate::Single,
        (Fate::Multipath, ..) | (_, _, (_, true)) => Fate::Multipath,
        (Fate::Unseen | Fate::Listening | Fate::Trying, ..) => Fate::Trying,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::SubflowInfo;

    fn socket(cookie: u64, state: SocketState, local: &str, remote: &str) -> DiagSocket {
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
            subflow: None,
        }
    }

    /// An MPTCP socket that says `flags` (1: fallback, 2: the peer's key is known).
    fn whole(cookie: u64, state: SocketState, local: &str, flags: u32, token: u32) -> DiagSocket {
        let mut info = vec![0; 96];
        info[8..12].copy_from_slice(&flags.to_ne_bytes());
        info[12..16].copy_from_slice(&token.to_ne_bytes());
        DiagSocket { info, ..socket(cookie, state, local, "10.0.0.2:80") }
    }

    fn subflow(cookie: u64, local: &str, token: u32) -> DiagSocket {
        let subflow = SubflowInfo { token_local: Some(token), ..SubflowInfo::default() };
        let socket = socket(cookie, SocketState::Established, local, "10.0.0.2:80");
        DiagSocket { subflow: Some(subflow), ..socket }
    }

    #[test]
    fn a_connection_is_followed_from_its_making_to_its_second_subflow() {
        let mut all = Connections::default();
        all.made(7);
        assert_eq!((all.own[&7].fate, all.worth_a_look()), (Fate::Unseen, true));
        let mptcp = vec![whole(7, SocketState::SynSent, "10.0.0.1:5", 0, 9)];
        all.note(&Look { mptcp, tcp: vec![] });
        assert_eq!(all.own[&7].fate, Fate::Trying);
        let mptcp = vec![
            whole(7, SocketState::Established, "10.0.0.1:5", 2, 9),
            whole(8, SocketState::Established, "10.0.0.1:6", 2, 10),
        ];
        let tcp = vec![subflow(70, "10.0.0.1:5", 9), subflow(71, "10.1.0.1:6", 9)];
        all.note(&Look { mptcp, tcp });
        let own = all.own[&7];
        assert_eq!((own.fate, own.role, own.most_subflows), (Fate::Multipath, Role::Opened, 2));
        assert_eq!(all.own.len(), 1, "the other one is somebody else's");
        all.note(&Look::default());
        assert!(!all.worth_a_look());
        assert_eq!(all.own[&7].fate, Fate::Multipath, "what was seen stays true");
    }

    #[test]
    fn a_fallback_is_final() {
        let mut all = Connections::default();
        all.made(7);
        for flags in [2, 3, 2] {
            let mptcp = vec![whole(7, SocketState::Established, "10.0.0.1:5", flags, 9)];
            all.note(&Look { mptcp, tcp: vec![] });
        }
        assert_eq!(all.own[&7].fate, Fate::Single);
    }

    #[test]
    fn accepted_connections_are_known_by_the_port_whether_the_peer_speaks_it_or_not() {
        let mut all = Connections::default();
        all.made(1);
        let listener = whole(1, SocketState::Listen, "0.0.0.0:80", 0, 0);
        let plain = socket(3, SocketState::Established, "10.0.0.1:80", "10.0.0.9:7");
        let join = subflow(4, "10.1.0.1:80", 99);
        let old_kernel = socket(5, SocketState::Established, "10.0.0.1:80", "10.0.0.2:80");
        let foreign = socket(6, SocketState::Established, "10.0.0.1:81", "10.0.0.9:7");
        let mptcp = vec![whole(2, SocketState::Established, "10.0.0.1:80", 2, 99), listener];
        all.note(&Look { mptcp, tcp: vec![plain, join, old_kernel, foreign] });
        let fates: Vec<_> = all.own.iter().map(|(cookie, own)| (*cookie, own.fate)).collect();
        let expected = [(1, Fate::Listening), (2, Fate::Multipath), (3, Fate::Single)];
        assert_eq!(fates, expected);
        assert_eq!(all.own[&2].role, Role::Accepted);
        assert_eq!((all.own[&2].number, all.own[&3].number), (0, 1));
    }
}
