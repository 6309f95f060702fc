//! Checks of open transports, with correct servers and with faulty ones.

use std::net::{TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use towpath_live::{ProbeKind, ProbeOutcome, check};
use towpath_os::Clock;
use towpath_quic::QuicConfig;
use towpath_run::datagram;
use towpath_sockets::quic::{HostConfig, InterfacePolicy, QuicHandle};

use super::*;

/// Returns the finding of each probe.
fn probe_outcomes(target: SocketAddr) -> Vec<(ProbeKind, ProbeOutcome)> {
    check(&[target]).into_iter().map(|attempt| (attempt.probe, attempt.finding)).collect()
}

fn welcome_message(quic: bool) -> Vec<u8> {
    let towpath = "0".to_owned();
    let (challenge, grant_challenge, observed, datagrams) = (None, None, None, quic);
    frame::to_bytes(&ServerMessage::Welcome {
        towpath,
        challenge,
        grant_challenge,
        observed,
        datagrams,
        quic,
    })
    .unwrap()
}

/// Welcomes every TCP client, on a port that is not bound for UDP.
fn serve_welcome(quic: bool) -> SocketAddr {
    let listeners = std::iter::repeat_with(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let mut free_ports = listeners.filter_map(|listener| {
        let address = listener.local_addr().unwrap();
        UdpSocket::bind(address).ok().map(|_| (listener, address))
    });
    let (listener, address) = free_ports.next().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut buffer = [0; 1_024];
                let _ = stream.read(&mut buffer); // the peer may be gone
                let _ = stream.write_all(&welcome_message(quic));
                while stream.read(&mut buffer).is_ok_and(|length| length > 0) {}
            });
        }
    });
    address
}

/// Returns the findings over UDP, QUIC and Multipath QUIC for a server from [`serve_welcome`].
fn udp_outcomes(target: SocketAddr) -> [ProbeOutcome; 3] {
    let outcomes = probe_outcomes(target);
    assert_eq!(outcomes[0], (ProbeKind::Tcp, ProbeOutcome::Works));
    let [udp, quic, mpquic] = [2, 3, 4].map(|index| outcomes[index].clone());
    assert_eq!((udp.0, quic.0, mpquic.0), (ProbeKind::Udp, ProbeKind::Quic, ProbeKind::Mpquic));
    [udp.1, quic.1, mpquic.1]
}

#[test]
fn every_transport_reaches_a_server_with_and_without_a_secret() {
    for secret in [None, Some("words that both know")] {
        let outcomes = probe_outcomes(serve(secret, ServerLimits::default()));
        assert_eq!(outcomes.len(), 5);
        for (probe, finding) in outcomes {
            if probe != ProbeKind::Mptcp || has_mptcp() {
                assert_eq!(finding, ProbeOutcome::Works, "{probe:?}, {secret:?}");
            }
        }
    }
}

#[test]
fn blocked_udp_and_a_server_without_quic_are_distinguished() {
    // The socket accepts datagrams, and sends no reply.
    let silent = serve_welcome(true);
    let _socket = UdpSocket::bind(silent).unwrap();
    assert_eq!(
        udp_outcomes(silent),
        [ProbeOutcome::Blocked, ProbeOutcome::Blocked, ProbeOutcome::Blocked]
    );
    // No socket is bound to the UDP port, and the server announces that over TCP.
    let no_quic = serve_welcome(false);
    assert_eq!(
        udp_outcomes(no_quic),
        [ProbeOutcome::Refused, ProbeOutcome::NoQuic, ProbeOutcome::NoQuic]
    );
    // The server announces QUIC, but the host replies that the port is closed.
    let closed_udp = serve_welcome(true);
    assert_eq!(
        udp_outcomes(closed_udp),
        [ProbeOutcome::Refused, ProbeOutcome::Refused, ProbeOutcome::Refused]
    );
}

#[test]
fn a_quic_filter_and_another_version_are_distinguished() {
    for (negotiates, finding) in
        [(false, ProbeOutcome::Filtered), (true, ProbeOutcome::VersionMismatch)]
    {
        let target = serve_welcome(true);
        let socket = UdpSocket::bind(target).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut buffer = [0; 2_000];
                while !done.load(Ordering::Acquire) {
                    let Ok((length, sender)) = socket.recv_from(&mut buffer) else { continue };
                    let reply = datagram::reply(&buffer[..length], |_| true).map(Vec::from);
                    let negotiation = || negotiates.then(|| version_negotiation(&buffer[..length]));
                    let Some(reply) = reply.or_else(negotiation) else { continue };
                    socket.send_to(&reply, sender).unwrap();
                }
            });
            let outcomes = udp_outcomes(target);
            done.store(true, Ordering::Release);
            assert_eq!(outcomes, [ProbeOutcome::Works, finding.clone(), finding]);
        });
    }
}

/// Builds a Version Negotiation packet (RFC 9000 §17.2.1) as the reply to a first packet.
fn version_negotiation(initial: &[u8]) -> Vec<u8> {
    let dcid_end = 6 + initial[5] as usize;
    let scid_end = dcid_end + 1 + initial[dcid_end] as usize;
    let mut packet = vec![0xc0, 0, 0, 0, 0];
    packet.extend_from_slice(&initial[dcid_end..scid_end]);
    packet.extend_from_slice(&initial[5..dcid_end]);
    packet.extend_from_slice(&0x6b33_43cf_u32.to_be_bytes());
    packet
}

#[test]
fn a_server_with_one_path_is_found() {
    let target = serve_welcome(true);
    let (name, clock, seed) = ("single".to_owned(), Clock::start(), None);
    let (namespace, interfaces) = (None, InterfacePolicy::all());
    let host = HostConfig { name, clock, seed, namespace, interfaces };
    let host = Arc::new(QuicHandle::start(host).unwrap());
    let listener = host.listen(target.port(), QuicConfig::default()).unwrap();
    thread::spawn(move || {
        let mut open_connections = Vec::new();
        while let Ok(connection) = listener.accept(HANG_TIMEOUT) {
            let stream = connection.accept_stream(HANG_TIMEOUT).unwrap();
            stream.read(&mut [0; 1_024], HANG_TIMEOUT).unwrap();
            stream.write(&welcome_message(true), HANG_TIMEOUT).unwrap();
            open_connections.push((connection, stream));
        }
    });
    assert_eq!(
        udp_outcomes(target),
        [ProbeOutcome::Works, ProbeOutcome::Works, ProbeOutcome::SinglePath]
    );
}
