//! Identification of the kind of server, and a first message that keeps its connection open.
//!
//! Further subflows are opened after data flowed in both directions. A server that closes at once
//! shows none of them. Each kind stays open if it receives a message of its own protocol.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use socket2::Socket;
use towpath_os::clock::Clock;

use super::attempt::{self, ConnectOptions};
use super::observation::ServerKind;

/// Timeout of a connection and of a reply.
const IO_TIMEOUT: Duration = Duration::from_millis(400);
/// Bytes of a reply that identify the server.
const HEAD_BYTES: usize = 256;
/// Padding of a request's header. Web servers accept headers of 8 KiB (RFC 9110 §5.4 leaves the
/// limit to them); this sends less than half.
const PADDING_BYTES: usize = 3_500;
/// Requests for each subflow. Linux gives a subflow up to 64 KB before it chooses another one
/// (`MPTCP_SEND_BURST_SIZE`); these are 70 KB.
const REQUESTS_PER_SUBFLOW: usize = 20;
/// Maximum number of requests; Apache accepts 100 on a connection (`MaxKeepAliveRequests`).
const MAX_REQUESTS: usize = 80;

impl ServerKind {
    /// Returns a description for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "this server",
            Self::Towpath => "a towpath server",
            Self::Echo => "an echo server",
            Self::Web => "a web server",
            Self::Tls => "a TLS server",
            Self::Ssh => "an SSH server",
            Self::Mail => "a mail or file server",
            Self::ClosesOnData => "a server that accepts no test data",
        }
    }

    /// Recognises the kind by its first bytes.
    fn from_first_bytes(received: &[u8]) -> Option<Self> {
        match received {
            [b'S', b'S', b'H', b'-', ..] => Some(Self::Ssh),
            [b'H', b'T', b'T', b'P', b'/', ..] => Some(Self::Web),
            // A record with a handshake or an alert (RFC 8446 §5.1).
            [21 | 22, 3, ..] => Some(Self::Tls),
            [b'2', b'2', b'0', b' ' | b'-', ..] => Some(Self::Mail),
            _ => None,
        }
    }

    /// Returns the first message that this kind expects.
    pub(super) fn hello(self, host: &str) -> Vec<u8> {
        match self {
            Self::Web => http_request(host, 0),
            Self::Tls => client_hello(host),
            Self::Ssh => format!("SSH-2.0-towpath_{}\r\n", env!("CARGO_PKG_VERSION")).into_bytes(),
            Self::Mail => b"NOOP\r\n".to_vec(),
            Self::Echo | Self::Towpath | Self::Unknown | Self::ClosesOnData => {
                super::server_session::hello_preamble().to_vec()
            }
        }
    }

    /// Returns enough data for each of `subflows` to send some; empty if the kind does not accept
    /// it unauthenticated.
    pub(super) fn burst(self, host: &str, subflows: usize) -> Vec<u8> {
        if self == Self::Web {
            let requests = REQUESTS_PER_SUBFLOW.saturating_mul(subflows).min(MAX_REQUESTS);
            http_request(host, PADDING_BYTES).repeat(requests)
        } else {
            Vec::new()
        }
    }
}

/// Builds a HEAD request, which has no body and changes nothing.
fn http_request(host: &str, padding: usize) -> Vec<u8> {
    let padding = "x".repeat(padding);
    let agent = concat!("towpath-doctor/", env!("CARGO_PKG_VERSION"));
    let padding = if padding.is_empty() { padding } else { format!("X-Padding: {padding}\r\n") };
    format!("HEAD / HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {agent}\r\n{padding}\r\n").into_bytes()
}

/// Builds a `ClientHello` that every TLS server of the last fifteen years accepts (RFC 8446
/// §4.1.2). Its key share is random-looking filler, as no session is to follow.
fn client_hello(host: &str) -> Vec<u8> {
    let length_prefixed = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let extension =
        |kind: u16, body: &[u8]| [&kind.to_be_bytes()[..], &length_prefixed(body)].concat();
    let filler: Vec<u8> =
        (0..32_u8).map(|index| index.wrapping_mul(151).wrapping_add(43)).collect();
    let name = [&[0][..], &length_prefixed(host.as_bytes())].concat();
    let has_name = host.parse::<std::net::IpAddr>().is_err() && !host.is_empty();
    let key_share = [&[0, 0x1d][..], &length_prefixed(&filler)].concat();
    let extensions = [
        if has_name { extension(0, &length_prefixed(&name)) } else { Vec::new() },
        // Groups x25519 and P-256; points as they are.
        extension(10, &length_prefixed(&[0, 0x1d, 0, 0x17])),
        extension(11, &[1, 0]),
        // Signatures by ECDSA, RSA-PSS and RSA with SHA-256 and -384.
        extension(13, &length_prefixed(&[4, 3, 8, 4, 4, 1, 5, 3, 8, 5, 5, 1])),
        // Versions 1.3 and 1.2.
        extension(43, &[4, 3, 4, 3, 3]),
        extension(51, &length_prefixed(&key_share)),
    ]
    .concat();
    // AES-GCM and ChaCha20 of 1.3, and of 1.2 with ECDHE.
    let suites = [0x13, 1, 0x13, 2, 0x13, 3, 0xc0, 0x2b, 0xc0, 0x2f, 0xc0, 0x30, 0xcc, 0xa8];
    let body = [
        &[3, 3][..],
        &filler,
        &[0],
        &length_prefixed(&suites),
        &[1, 0],
        &length_prefixed(&extensions),
    ]
    .concat();
    let [_, high, middle, low] = (body.len() as u32).to_be_bytes();
    let message = [&[1, high, middle, low][..], &body].concat();
    [&[22, 3, 1][..], &length_prefixed(&message)].concat()
}

/// Identifies a server by its reply to a towpath preamble, or else by the messages of other
/// protocols on separate connections.
pub(super) fn identify(
    received: &[u8],
    target: SocketAddr,
    host: &str,
    clock: Clock,
) -> ServerKind {
    match ServerKind::from_first_bytes(received) {
        Some(ServerKind::Web) | None => {}
        Some(kind) => return kind,
    }
    let mut has_reply = false;
    for kind in [ServerKind::Web, ServerKind::Tls] {
        let Some(reply) = probe(target, &kind.hello(host), clock) else { continue };
        match (kind, ServerKind::from_first_bytes(&reply)) {
            // A TLS server rejects plain HTTP in plain HTTP.
            (ServerKind::Web, Some(ServerKind::Web)) if is_bad_request(&reply) => has_reply = true,
            (_, Some(kind)) => return kind,
            (_, None) => has_reply |= !reply.is_empty(),
        }
    }
    if ServerKind::from_first_bytes(received) == Some(ServerKind::Web) {
        ServerKind::Web
    } else if has_reply || !received.is_empty() {
        ServerKind::Unknown
    } else {
        ServerKind::ClosesOnData
    }
}

/// Returns true if a web server rejects the request with status 400.
fn is_bad_request(reply: &[u8]) -> bool {
    reply.get(9..12) == Some(b"400")
}

/// Returns the beginning of the reply; empty after a close, `None` after a timeout.
fn probe(target: SocketAddr, message: &[u8], clock: Clock) -> Option<Vec<u8>> {
    let options = ConnectOptions { timeout: IO_TIMEOUT, ..ConnectOptions::tcp() };
    let (_, socket) = attempt::connect(target, &options, clock);
    let mut socket = socket?;
    send_and_read(&mut socket, message).ok()
}

fn send_and_read(socket: &mut Socket, message: &[u8]) -> io::Result<Vec<u8>> {
    socket.set_read_timeout(Some(IO_TIMEOUT))?;
    socket.write_all(message)?;
    let mut reply = vec![0; HEAD_BYTES];
    match socket.read(&mut reply) {
        Ok(length) => reply.truncate(length),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => reply.clear(),
        Err(error) => return Err(error),
    }
    Ok(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_identified_by_its_first_bytes() {
        let cases: [(&[u8], Option<ServerKind>); 6] = [
            (b"SSH-2.0-OpenSSH_9.2p1\r\n", Some(ServerKind::Ssh)),
            (b"HTTP/1.1 400 Bad Request\r\n", Some(ServerKind::Web)),
            (&[21, 3, 3, 0, 2, 2, 10], Some(ServerKind::Tls)),
            (b"220 mail.example.org ESMTP\r\n", Some(ServerKind::Mail)),
            (b"hello", None),
            (b"", None),
        ];
        for (received, expected) in cases {
            assert_eq!(ServerKind::from_first_bytes(received), expected, "{received:?}");
        }
    }

    #[test]
    fn lengths_in_a_hello_add_up() {
        for host in ["", "192.0.2.1", "example.org"] {
            let hello = client_hello(host);
            let u16_at =
                |offset: usize| usize::from(u16::from_be_bytes([hello[offset], hello[offset + 1]]));
            assert_eq!(u16_at(3), hello.len() - 5);
            assert_eq!(u16_at(7), hello.len() - 9);
            let suites = 5 + 4 + 2 + 32 + 1;
            let extensions = suites + 2 + u16_at(suites) + 2;
            assert_eq!(u16_at(extensions), hello.len() - extensions - 2, "{host}");
            let has_name = hello.windows(11).any(|window| window == b"example.org");
            assert_eq!(has_name, host == "example.org");
        }
    }

    #[test]
    fn a_burst_suffices_for_all_subflows_and_each_head_is_small() {
        let burst = ServerKind::Web.burst("example.org", 2);
        assert!(burst.len() > 65_536 * 2);
        assert!(ServerKind::Web.burst("example.org", 16).len() < 4_096 * 100);
        assert!(http_request("example.org", PADDING_BYTES).len() < 4_096);
        assert!(ServerKind::Tls.burst("example.org", 2).is_empty());
    }
}
