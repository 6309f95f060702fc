//! Checks of open transports, with correct servers and with faulty ones.

use std::net::{TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use towpath_linux::Clock;
use towpath_linux::live::{ProbeKind, ProbeOutcome, check};
use towpath_linux::quic::{HostConfig, InterfacePolicy, QuicHandle};
use towpath_measure::live::datagram;
use towpath_quic::QuicConfig;

use super::*;

/// Returns the finding of each probe.
fn found(target: SocketAddr) -> Vec<(ProbeKind, ProbeOutcome)> {
    check(&[target]).into_iter().map(|tried| (tried.probe, tried.finding)).collect()
}

fn welcome(quic: bool) -> Vec<u8> {
    let towpath = "0".to_owned();
    let (challenge, seen, datagrams) = (None, None, quic);
    frame::to_bytes(&ServerMessage::Welcome { towpath, challenge, observed: seen, datagrams, quic })
        .unwrap()
}

/// Welcomes every TCP client, on a port that is not bound for UDP.
fn over_tcp(quic: bool) -> SocketAddr {
    let listeners = std::iter::repeat_with(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let mut free = listeners.filter_map(|listener| {
        let address = listener.local_addr().unwrap();
        UdpSocket::bind(address).ok().map(|_| (listener, address))
    });
    let (listener, address) = free.next().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut room = [0; 1_024];
                let _ = stream.read(&mut room); // the peer may be gone
                let _ = stream.write_all(&welcome(quic));
                while stream.read(&mut room).is_ok_and(|length| length > 0) {}
            });
        }
    });
    address
}

/// Returns the findings over UDP, QUIC and Multipath QUIC for a server from [`over_tcp`].
fn over_udp(target: SocketAddr) -> [ProbeOutcome; 3] {
    let all = found(target);
    assert_eq!(all[0], (ProbeKind::Tcp, ProbeOutcome::Works));
    let [udp, quic, mpquic] = [2, 3, 4].map(|at| all[at].clone());
    assert_eq!((udp.0, quic.0, mpquic.0), (ProbeKind::Udp, ProbeKind::Quic, ProbeKind::Mpquic));
    [udp.1, quic.1, mpquic.1]
}

#[test]
fn every_transport_reaches_a_server_with_and_without_a_secret() {
    for secret in [None, Some("words that both know")] {
        let all = found(serve(secret, ServerLimits::default()));
        assert_eq!(all.len(), 5);
        for (probe, finding) in all {
            if probe != ProbeKind::Mptcp || has_mptcp() {
                assert_eq!(finding, ProbeOutcome::Works, "{probe:?}, {secret:?}");
            }
        }
    }
}

#[test]
fn blocked_udp_and_a_server_without_quic_are_distinguished() {
    // The socket accepts datagrams, and sends no reply.
    let silent = over_tcp(true);
    let _socket = UdpSocket::bind(silent).unwrap();
    assert_eq!(
        over_udp(silent),
        [ProbeOutcome::Blocked, ProbeOutcome::Blocked, ProbeOutcome::Blocked]
    );
    // No socket is bound to the UDP port, and the server announces that over TCP.
    let without = over_tcp(false);
    assert_eq!(
        over_udp(without),
        [ProbeOutcome::Refused, ProbeOutcome::NoQuic, ProbeOutcome::NoQuic]
    );
    // The server announces QUIC, but the host replies that the port is closed.
    let gone = over_tcp(true);
    assert_eq!(
        over_udp(gone),
        [ProbeOutcome::Refused, ProbeOutcome::Refused, ProbeOutcome::Refused]
    );
}

#[test]
fn a_quic_filter_and_another_version_are_distinguished() {
    for (version, finding) in
        [(false, ProbeOutcome::Filtered), (true, ProbeOutcome::VersionMismatch)]
    {
        let target = over_tcp(true);
        let socket = UdpSocket::bind(target).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut room = [0; 2_000];
                while !done.load(Ordering::Acquire) {
                    let Ok((length, from)) = socket.recv_from(&mut room) else { continue };
                    let answer = datagram::reply(&room[..length], |_| true).map(Vec::from);
                    let other = || version.then(|| other_version(&room[..length]));
                    let Some(answer) = answer.or_else(other) else { continue };
                    socket.send_to(&answer, from).unwrap();
                }
            });
            let found = over_udp(target);
            done.store(true, Ordering::Release);
            assert_eq!(found, [ProbeOutcome::Works, finding.clone(), finding]);
        });
    }
}

/// Builds a Version Negotiation packet (RFC 9000 §17.2.1) as the reply to a first packet.
fn other_version(initial: &[u8]) -> Vec<u8> {
    let to = 6 + initial[5] as usize;
    let from = to + 1 + initial[to] as usize;
    let mut answer = vec![0xc0, 0, 0, 0, 0];
    answer.extend_from_slice(&initial[to..from]);
    answer.extend_from_slice(&initial[5..to]);
    answer.extend_from_slice(&0x6b33_43cf_u32.to_be_bytes());
    answer
}

#[test]
fn a_server_with_one_path_is_found() {
    let target = over_tcp(true);
    let (name, clock, seed) = ("single".to_owned(), Clock::start(), None);
    let (namespace, interfaces) = (None, InterfacePolicy::all());
    let host = HostConfig { name, clock, seed, namespace, interfaces };
    let host = Arc::new(QuicHandle::start(host).unwrap());
    let listener = host.listen(target.port(), QuicConfig::default()).unwrap();
    thread::spawn(move || {
        let mut kept = Vec::new();
        while let Ok(connection) = listener.accept(HANG_TIMEOUT) {
            let stream = connection.accept_stream(HANG_TIMEOUT).unwrap();
            stream.read(&mut [0; 1_024], HANG_TIMEOUT).unwrap();
            stream.write(&welcome(true), HANG_TIMEOUT).unwrap();
            kept.push((connection, stream));
        }
    });
    assert_eq!(
        over_udp(target),
        [ProbeOutcome::Works, ProbeOutcome::Works, ProbeOutcome::SinglePath]
    );
}
