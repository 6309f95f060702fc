//! Replies to clients that send invalid data.

use std::io::{Read, Write};
use std::net::{Shutdown, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use towpath_live::protocol::{ConnectionKind, frame};
use towpath_quic::Trust;
use towpath_quic::tls::TlsSession;
use towpath_run::datagram::EchoDatagram;
use towpath_run::token::TestToken;

use super::client::TlsClient;
use super::{assert_healthy, dial, hello, preamble};
use crate::security::clients::hostile::TestConnection;
use crate::security::fixture::{AttackedServer, times};

/// Returns nearly valid control preambles, and the first bytes of other protocols.
fn invalid_preambles() -> Vec<Vec<u8>> {
    let good = preamble(ConnectionKind::Control, TestToken::NONE).to_bytes();
    let flipped_preambles = (0..12 * 8).filter(|bit| *bit != 8 * 8 + 1).map(|bit| {
        let mut bytes = good.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        bytes
    });
    let other_bytes = [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        b"SSH-2.0-OpenSSH_9.6\r\n".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".repeat(40),
        b"TOWPATH".iter().chain(&good[7..]).copied().collect(),
        [&b"\0"[..], &good].concat(),
        [&b"\r\n"[..], &good].concat(),
        vec![0; 4_096],
        vec![0xff; 4_096],
        good[..31].to_vec(),
        preamble(ConnectionKind::Control, TestToken([1; 16])).to_bytes().to_vec(),
        preamble(ConnectionKind::Data, TestToken::NONE).to_bytes().to_vec(),
        preamble(ConnectionKind::Data, TestToken([1; 16])).to_bytes().to_vec(),
        preamble(ConnectionKind::Echo, TestToken([1; 16])).to_bytes().to_vec(),
    ];
    flipped_preambles.chain(other_bytes).collect()
}

/// S6: an invalid preamble gets no reply, even with a single wrong bit.
///
/// Over TCP, Multipath TCP and within TLS.
#[test]
fn an_invalid_preamble_gets_no_reply() {
    let site = AttackedServer::new(&[]);
    let message = frame::to_bytes(&hello()).unwrap();
    for (number, first_bytes) in invalid_preambles().into_iter().enumerate() {
        let mut socket = dial(site.route(1), number % 2 == 1).unwrap();
        socket.write_all(&[&first_bytes[..], &message].concat()).unwrap();
        let _ = socket.shutdown(Shutdown::Write); // the server may have closed it
        let mut reply = Vec::new();
        let _ = socket.read_to_end(&mut reply); // the server may reset it
        let reply_text = String::from_utf8_lossy(&reply);
        // An echo connection without a test returns the client's own bytes at most.
        let is_echo = first_bytes[8] == 3 && reply.len() <= message.len();
        assert!(reply.is_empty() || is_echo, "{number}: {first_bytes:?} heard {reply_text:?}");
    }
    for first_bytes in invalid_preambles().into_iter().step_by(times(9, 1)) {
        let socket = site.route(2).connect(ConnectionKind::Tls, TestToken::NONE, (0, 0)).unwrap();
        let session = TlsSession::client(&Trust::Any).unwrap();
        let mut connection = TestConnection::secure(socket, session).unwrap();
        connection.send_raw(&[&first_bytes[..], &message].concat()).unwrap();
        if first_bytes.len() < 32 {
            continue;
        }
        let reply_bytes = connection.read(&mut [0; 1_024]).unwrap_or(0);
        let is_echo = first_bytes[8] == 3 && reply_bytes <= message.len();
        assert!(
            reply_bytes == 0 || is_echo,
            "{first_bytes:?} heard {reply_bytes} bytes within TLS"
        );
    }
    assert_healthy(&site);
}

/// Returns the number of bytes received so far on a socket.
fn received_reply_bytes(socket: &UdpSocket) -> u64 {
    socket.set_nonblocking(true).unwrap();
    let mut buffer = [0; 2_048];
    std::iter::from_fn(|| socket.recv(&mut buffer).ok()).map(|length| length as u64).sum()
}

/// Returns the number of bytes received until a socket is silent for a while.
fn received_bytes(socket: &UdpSocket, silence: Duration) -> u64 {
    socket.set_read_timeout(Some(silence)).unwrap();
    let mut buffer = vec![0; 1 << 16];
    let mut total = 0;
    while let Ok(length) = socket.recv(&mut buffer) {
        total += length as u64;
    }
    total
}

/// Returns datagrams of many lengths that begin like QUIC, like a Towpath datagram, or neither.
fn strange_datagrams() -> Vec<Vec<u8>> {
    let mut datagrams = Vec::new();
    for first_byte in [0x00, 0x01, 0x02, 0x3f, 0x40, 0x43, 0x80, 0xc0, 0xc3, 0xd0, 0xe0, 0xf0, 0xff]
    {
        for version in [[0, 0, 0, 0], [0, 0, 0, 1], [0x1a, 0x2a, 0x3a, 0x4a], [b't', b'p', 1, 0]] {
            // Two connection IDs of eight bytes or none, no token.
            let long_ids = [8, 1, 2, 3, 4, 5, 6, 7, 8, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0];
            for connection_ids in [&long_ids[..], &[0, 0, 0]] {
                for length in [1, 7, 8, 16, 23, 31, 32, 33, 60, 120, 600, 1_199, 1_200, 1_472] {
                    let mut bytes = [&[first_byte], &version[..], connection_ids].concat();
                    bytes.resize(length, 0x5a);
                    datagrams.push(bytes);
                }
            }
        }
    }
    datagrams
}

/// S6: an unvalidated address gets at most three times the bytes it sent (RFC 9000 §8.1).
///
/// A datagram of 32 bytes gets one of 32 bytes.
#[test]
fn no_datagram_brings_more_than_three_times_its_bytes() {
    let site = AttackedServer::new(&[]);
    let datagrams = strange_datagrams();
    let sockets: Vec<_> = (1..)
        .zip(&datagrams)
        .map(|(n, bytes)| {
            let route = site.route(n);
            let socket = UdpSocket::bind((route.source, 0)).unwrap();
            socket.connect(route.server).unwrap();
            socket.send(bytes).unwrap();
            socket
        })
        .collect();
    // The last socket first: its reply arrives last.
    let last_reply_bytes = received_bytes(sockets.last().unwrap(), Duration::from_millis(500));
    for (socket, bytes) in sockets.iter().zip(&datagrams).rev().skip(1) {
        let reply_bytes = received_reply_bytes(socket);
        let first_bytes = &bytes[..bytes.len().min(8)];
        assert!(
            reply_bytes <= 3 * bytes.len() as u64,
            "{reply_bytes} for {}: {first_bytes:x?}",
            bytes.len()
        );
    }
    assert!(last_reply_bytes <= 3 * datagrams.last().unwrap().len() as u64);
    let echo_datagram = EchoDatagram { token: TestToken::NONE, number: 7, sent_ns: 9 }.to_bytes();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(site.route(1).server).unwrap();
    socket.send(&echo_datagram).unwrap();
    assert_eq!(received_bytes(&socket, Duration::from_millis(500)), 32);
    assert_healthy(&site);
}

/// S6: unfinished QUIC handshakes get three times their bytes, including retransmissions.
///
/// The limit covers all handshakes of an address.
#[test]
fn unanswered_handshakes_get_no_more_than_three_times_their_bytes() {
    let site = AttackedServer::new(&[]);
    let mut clients: Vec<_> =
        (0..times(40, 150)).map(|_| TlsClient::start(site.route(1))).collect();
    let mut sent = 0;
    for client in &mut clients {
        sent += client.write_all();
    }
    assert!(sent >= 1_200 * clients.len() as u64);
    let start = Instant::now();
    let mut reply_bytes = 0;
    while start.elapsed() < Duration::from_secs(times(2, 8) as u64) {
        for client in &clients {
            reply_bytes += received_reply_bytes(&client.socket);
        }
        thread::sleep(Duration::from_millis(20));
    }
    assert!(reply_bytes > 0, "no client was answered");
    assert!(reply_bytes <= 3 * sent, "{reply_bytes} bytes for {sent}");
    assert_healthy(&site);
}

/// S2, S6: a flood of datagrams of all kinds from hundreds of sources blocks no client.
#[test]
fn floods_of_datagrams_from_many_sources_block_no_client() {
    let site = AttackedServer::new(&[]);
    let sockets: Vec<_> = (1..=times(60, 250) as u16)
        .map(|n| {
            let route = site.route(n);
            let socket = UdpSocket::bind((route.source, 0)).unwrap();
            socket.connect(route.server).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        })
        .collect();
    let datagrams = strange_datagrams();
    site.run_attack(|attack| {
        let (mut sent, mut round) = (0_u64, 0);
        while attack.is_active() {
            round += 1;
            for (number, socket) in sockets.iter().enumerate() {
                if (number + round) % 8 == 0 {
                    let mut client = TlsClient::start_from(socket, site.route(1).server);
                    sent += u64::from(client.write_all() > 0);
                }
                for bytes in datagrams.iter().skip((number + round) % 31).step_by(97) {
                    sent += u64::from(socket.send(bytes).is_ok());
                }
            }
            attack.set_active();
            thread::sleep(Duration::from_millis(5));
        }
        assert!(sent > 1_000, "{sent} datagrams");
    });
}
