//! Replies to clients that send invalid data.

use std::io::{Read, Write};
use std::net::{Shutdown, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use towpath_measure::live::datagram::EchoDatagram;
use towpath_measure::live::{ConnectionKind, TestToken, frame};
use towpath_quic::Trust;
use towpath_quic::tls::TlsSession;

use super::client::TlsClient;
use super::{assert_healthy, dial, hello, preamble};
use crate::security::clients::hostile::TestConnection;
use crate::security::fixture::{AttackedServer, times};

/// Returns nearly valid control preambles, and the first bytes of other protocols.
fn invalid_preambles() -> Vec<Vec<u8>> {
    let good = preamble(ConnectionKind::Control, TestToken::NONE).to_bytes();
    let flipped = (0..12 * 8).filter(|bit| *bit != 8 * 8 + 1).map(|bit| {
        let mut bytes = good.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        bytes
    });
    let strange = [
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
    flipped.chain(strange).collect()
}

/// S6: an invalid preamble gets no reply, even with a single wrong bit.
///
/// Over TCP, Multipath TCP and within TLS.
#[test]
fn an_invalid_preamble_gets_no_reply() {
    let site = AttackedServer::new(&[]);
    let word = frame::to_bytes(&hello()).unwrap();
    for (number, first) in invalid_preambles().into_iter().enumerate() {
        let mut socket = dial(site.route(1), number % 2 == 1).unwrap();
        socket.write_all(&[&first[..], &word].concat()).unwrap();
        let _ = socket.shutdown(Shutdown::Write); // the server may have closed it
        let mut said = Vec::new();
        let _ = socket.read_to_end(&mut said); // the server may reset it
        let shown = String::from_utf8_lossy(&said);
        // An echo connection without a test returns the client's own bytes at most.
        let echo = first[8] == 3 && said.len() <= word.len();
        assert!(said.is_empty() || echo, "{number}: {first:?} heard {shown:?}");
    }
    for first in invalid_preambles().into_iter().step_by(times(9, 1)) {
        let socket = site.route(2).connect(ConnectionKind::Tls, TestToken::NONE, (0, 0)).unwrap();
        let session = TlsSession::client(&Trust::Any).unwrap();
        let mut wire = TestConnection::secure(socket, session).unwrap();
        wire.send_raw(&[&first[..], &word].concat()).unwrap();
        if first.len() < 32 {
            continue;
        }
        let heard = wire.read(&mut [0; 1_024]).unwrap_or(0);
        let echo = first[8] == 3 && heard <= word.len();
        assert!(heard == 0 || echo, "{first:?} heard {heard} bytes within TLS");
    }
    assert_healthy(&site);
}

/// Returns the number of bytes received so far on a socket.
fn received_reply_bytes(socket: &UdpSocket) -> u64 {
    socket.set_nonblocking(true).unwrap();
    let mut room = [0; 2_048];
    std::iter::from_fn(|| socket.recv(&mut room).ok()).map(|length| length as u64).sum()
}

/// Returns the number of bytes received until a socket is silent for a while.
fn received_bytes(socket: &UdpSocket, quiet: Duration) -> u64 {
    socket.set_read_timeout(Some(quiet)).unwrap();
    let mut room = vec![0; 1 << 16];
    let mut all = 0;
    while let Ok(length) = socket.recv(&mut room) {
        all += length as u64;
    }
    all
}

/// Returns datagrams of many lengths that begin like QUIC, like ours, or like neither.
fn strange_datagrams() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for first in [0x00, 0x01, 0x02, 0x3f, 0x40, 0x43, 0x80, 0xc0, 0xc3, 0xd0, 0xe0, 0xf0, 0xff] {
        for version in [[0, 0, 0, 0], [0, 0, 0, 1], [0x1a, 0x2a, 0x3a, 0x4a], [b't', b'p', 1, 0]] {
            // Two connection IDs of eight bytes or none, no token.
            let long = [8, 1, 2, 3, 4, 5, 6, 7, 8, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0];
            for names in [&long[..], &[0, 0, 0]] {
                for length in [1, 7, 8, 16, 23, 31, 32, 33, 60, 120, 600, 1_199, 1_200, 1_472] {
                    let mut bytes = [&[first], &version[..], names].concat();
                    bytes.resize(length, 0x5a);
                    all.push(bytes);
                }
            }
        }
    }
    all
}

/// S6: an unvalidated address gets at most three times the bytes it sent (RFC 9000 §8.1).
///
/// A datagram of 32 bytes gets one of 32 bytes.
#[test]
fn no_datagram_brings_more_than_three_times_its_bytes() {
    let site = AttackedServer::new(&[]);
    let all = strange_datagrams();
    let sockets: Vec<_> = (1..)
        .zip(&all)
        .map(|(n, bytes)| {
            let way = site.route(n);
            let socket = UdpSocket::bind((way.from, 0)).unwrap();
            socket.connect(way.server).unwrap();
            socket.send(bytes).unwrap();
            socket
        })
        .collect();
    // The last one first: its reply comes last.
    let first = received_bytes(sockets.last().unwrap(), Duration::from_millis(500));
    for (socket, bytes) in sockets.iter().zip(&all).rev().skip(1) {
        let back = received_reply_bytes(socket);
        let begins = &bytes[..bytes.len().min(8)];
        assert!(back <= 3 * bytes.len() as u64, "{back} for {}: {begins:x?}", bytes.len());
    }
    assert!(first <= 3 * all.last().unwrap().len() as u64);
    let ours = EchoDatagram { token: TestToken::NONE, number: 7, sent_ns: 9 }.to_bytes();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(site.route(1).server).unwrap();
    socket.send(&ours).unwrap();
    assert_eq!(received_bytes(&socket, Duration::from_millis(500)), 32);
    assert_healthy(&site);
}

/// S6: unfinished QUIC handshakes get three times their bytes, including retransmissions.
///
/// The limit covers all handshakes of an address.
#[test]
fn unanswered_handshakes_get_no_more_than_three_times_their_bytes() {
    let site = AttackedServer::new(&[]);
    let mut mute: Vec<_> = (0..times(40, 150)).map(|_| TlsClient::start(site.route(1))).collect();
    let mut sent = 0;
    for client in &mut mute {
        sent += client.write_all();
    }
    assert!(sent >= 1_200 * mute.len() as u64);
    let began = Instant::now();
    let mut back = 0;
    while began.elapsed() < Duration::from_secs(times(2, 8) as u64) {
        for visitor in &mute {
            back += received_reply_bytes(&visitor.socket);
        }
        thread::sleep(Duration::from_millis(20));
    }
    assert!(back > 0, "nobody was answered");
    assert!(back <= 3 * sent, "{back} bytes for {sent}");
    assert_healthy(&site);
}

/// S2, S6: a flood of datagrams of all kinds from hundreds of sources blocks no client.
#[test]
fn floods_of_datagrams_from_many_sources_block_no_client() {
    let site = AttackedServer::new(&[]);
    let sockets: Vec<_> = (1..=times(60, 250) as u16)
        .map(|n| {
            let way = site.route(n);
            let socket = UdpSocket::bind((way.from, 0)).unwrap();
            socket.connect(way.server).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        })
        .collect();
    let all = strange_datagrams();
    site.run_attack(|attack| {
        let (mut sent, mut round) = (0_u64, 0);
        while attack.is_active() {
            round += 1;
            for (number, socket) in sockets.iter().enumerate() {
                if (number + round) % 8 == 0 {
                    let mut knock = TlsClient::start_from(socket, site.route(1).server);
                    sent += u64::from(knock.write_all() > 0);
                }
                for bytes in all.iter().skip((number + round) % 31).step_by(97) {
                    sent += u64::from(socket.send(bytes).is_ok());
                }
            }
            attack.set_active();
            thread::sleep(Duration::from_millis(5));
        }
        assert!(sent > 1_000, "{sent} datagrams");
    });
}
