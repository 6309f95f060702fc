//! Readiness of a program: it has opened a socket on its host.
//!
//! A server opens a listening port; other programs a datagram socket, a raw or packet socket
//! (capture, ping) or, as a client, a connection. Connections that a program accepts do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use towpath_os::namespace::Namespace;

/// Tables of sockets in `/proc/PID/net`, with the column that has the socket's inode.
const SOCKET_TABLES: [(&str, usize); 10] = [
    ("tcp", 9),
    ("tcp6", 9),
    ("udp", 9),
    ("udp6", 9),
    ("udplite", 9),
    ("raw", 9),
    ("raw6", 9),
    ("icmp", 9),
    ("icmp6", 9),
    ("packet", 8),
];
const TCP_LISTEN_STATE: &str = "0A";
/// State of a datagram socket without a peer.
const UDP_UNCONNECTED_STATE: &str = "07";

/// Purpose of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SocketUse {
    /// Socket that listens for connections.
    Listens,
    /// Unconnected socket that receives datagrams of any sender, or all packets.
    Receives,
    /// Socket that has a peer, or a raw socket that sends packets.
    Active,
}

/// Sockets that programs of a host have opened, by table and inode.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct OpenSockets(BTreeMap<(String, String), SocketUse>);

impl OpenSockets {
    pub(super) fn read(namespace: &Namespace) -> Self {
        let read = || {
            let table = |name: &str| fs::read_to_string(format!("/proc/thread-self/net/{name}"));
            SOCKET_TABLES.map(|(name, column)| (name, column, table(name).unwrap_or_default()))
        };
        let tables = namespace.run(read).unwrap_or_default();
        Self::parse(tables.iter().map(|(name, column, text)| (*name, *column, text.as_str())))
    }

    /// Returns true if a socket exists that is not in `before`.
    pub(super) fn has_new_since(&self, before: &Self) -> bool {
        self.0.keys().any(|socket| !before.0.contains_key(socket))
    }

    /// Returns true if a listening socket exists that is not in `before`.
    pub(super) fn has_new_listener_since(&self, before: &Self) -> bool {
        let listens = |(socket, socket_use): (_, &SocketUse)| {
            *socket_use == SocketUse::Listens && !before.0.contains_key(socket)
        };
        self.0.iter().any(listens)
    }

    /// Returns the union of two hosts' sockets.
    pub(super) fn union(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    #[cfg(test)]
    pub(super) fn from_uses<const N: usize>(sockets: [(&str, SocketUse); N]) -> Self {
        Self(
            sockets
                .map(|(inode, socket_use)| (("tcp".to_owned(), inode.to_owned()), socket_use))
                .into(),
        )
    }

    /// Returns the inode and the purpose of each socket.
    pub(super) fn uses(&self) -> impl Iterator<Item = (&str, SocketUse)> {
        self.0.iter().map(|((_, inode), socket_use)| (inode.as_str(), *socket_use))
    }

    fn parse<'a>(tables: impl IntoIterator<Item = (&'a str, usize, &'a str)>) -> Self {
        let mut sockets = Self::default();
        for (name, column, text) in tables {
            let rows: Vec<Vec<&str>> =
                text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
            let listens = |row: &[&str]| row.get(3).copied() == Some(TCP_LISTEN_STATE);
            let local_port = |row: &[&str]| {
                row.get(1).and_then(|local| local.rsplit_once(':')).map(|(_, port)| port.to_owned())
            };
            let listening_ports: BTreeSet<_> =
                rows.iter().filter(|row| listens(row)).filter_map(|row| local_port(row)).collect();
            for row in rows {
                // A peer has opened this connection to a listening port.
                let accepted = name.starts_with("tcp")
                    && !listens(&row)
                    && local_port(&row).is_some_and(|port| listening_ports.contains(&port));
                let inode = row.get(column).copied().unwrap_or("0");
                if !accepted && inode != "0" {
                    let socket_use = match (name, row.get(3).copied()) {
                        ("tcp" | "tcp6", Some(TCP_LISTEN_STATE)) => SocketUse::Listens,
                        ("udp" | "udp6" | "udplite", Some(UDP_UNCONNECTED_STATE))
                        | ("packet", _) => SocketUse::Receives,
                        _ => SocketUse::Active,
                    };
                    sockets.0.insert((name.to_owned(), inode.to_owned()), socket_use);
                }
            }
        }
        sockets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE_HEADER: &str =
        "  sl  local_address rem_address   st tx rx tr tm retrnsmt uid timeout inode";

    fn tcp_sockets(rows: &[(&str, &str, &str)]) -> OpenSockets {
        let rows = rows.iter().map(|(local, state, inode)| {
            format!("   0: {local} 00000000:0000 {state} 0:0 00:0 00000000 0 0 {inode} 1 0")
        });
        let text = [TABLE_HEADER.to_owned()].into_iter().chain(rows).collect::<Vec<_>>().join("\n");
        OpenSockets::parse([("tcp", 9, text.as_str())])
    }

    #[test]
    fn listening_or_connecting_sockets_show_readiness() {
        let empty = tcp_sockets(&[]);
        let listener = tcp_sockets(&[("00000000:1451", "0A", "77")]);
        let with_accepted =
            tcp_sockets(&[("00000000:1451", "0A", "77"), ("0100400A:1451", "01", "78")]);
        let client = tcp_sockets(&[("0100400A:9C40", "02", "79")]);
        assert!(listener.has_new_since(&empty) && client.has_new_since(&empty));
        assert!(!empty.has_new_since(&empty) && !with_accepted.has_new_since(&listener));
    }

    #[test]
    fn listening_and_receiving_sockets_do_not_count_as_active() {
        let uses = |sockets: &OpenSockets| {
            sockets.uses().map(|(_, socket_use)| socket_use).collect::<Vec<_>>()
        };
        assert_eq!(uses(&tcp_sockets(&[("00000000:1451", "0A", "77")])), [SocketUse::Listens]);
        assert_eq!(uses(&tcp_sockets(&[("0100400A:9C40", "02", "79")])), [SocketUse::Active]);
        let udp_sockets = |state: &str| {
            let row = format!("   0: 00000000:1451 00000000:0000 {state} 0:0 00:0 0 0 0 7 1 0");
            OpenSockets::parse([("udp", 9, format!("{TABLE_HEADER}\n{row}").as_str())])
        };
        assert_eq!(uses(&udp_sockets("07")), [SocketUse::Receives]);
        assert_eq!(uses(&udp_sockets("01")), [SocketUse::Active]);
    }

    #[test]
    fn a_capture_is_ready_once_its_packet_socket_is_open() {
        let text = "sk       RefCnt Type Proto  Iface R Rmem   User   Inode\n\
                    0000 3      3    0003   2     1 0      0      4242\n";
        let capture = OpenSockets::parse([("packet", 8, text)]);
        assert!(capture.has_new_since(&OpenSockets::default()));
    }
}
