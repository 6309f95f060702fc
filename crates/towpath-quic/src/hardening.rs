//! Tests of hosts on untrusted networks.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use towpath_net::Instant;

use crate::identity::PemIdentity;
use crate::{
    AddressValidation, ConnectionId, Datagram, Fingerprint, Identity, LocalAddress, QuicConfig,
    QuicEvent, QuicStack, Trust,
};

const PORT: u16 = 5_210;

fn new_host(last_octet: u8) -> QuicStack {
    let mut host = QuicStack::new_random();
    let address: IpAddr = Ipv4Addr::new(10, 0, 0, last_octet).into();
    let (up, subflow, backup) = (true, true, false);
    let local = LocalAddress { address, interface: 1, up, subflow, backup };
    host.set_address(Instant::ZERO, local);
    host
}

fn new_identity() -> Identity {
    let pem = PemIdentity::make(&["towpath".to_owned()]).unwrap();
    Identity::from_pem(&pem.certificate, &pem.key).unwrap()
}

/// Returns the sent datagram as the other end sees it.
fn as_received(sent: &Datagram) -> Datagram {
    Datagram { local: sent.remote, remote: sent.local, ..sent.clone() }
}

struct Pair {
    client: QuicStack,
    server: QuicStack,
    connection: ConnectionId,
    events: Vec<QuicEvent>,
    /// Datagrams in both directions; true if the client sent it.
    forwarded: Vec<(bool, Datagram)>,
}

impl Pair {
    fn new(server_config: QuicConfig, client_config: QuicConfig) -> Self {
        let (mut client, mut server) = (new_host(1), new_host(2));
        server.listen(PORT, server_config).unwrap();
        let remote = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 2).into(), PORT);
        let connection = client.connect(Instant::ZERO, None, remote, client_config).unwrap();
        Self { client, server, connection, events: Vec::new(), forwarded: Vec::new() }
    }

    /// Forwards everything over a network of 1 ms delay, for `millis` ms.
    fn run(&mut self, millis: u64) {
        for millis in 0..millis {
            let now = Instant::ZERO + Duration::from_millis(millis);
            self.client.handle_timeout(now);
            self.server.handle_timeout(now);
            while let Some(datagram) = self.client.poll_transmit(now) {
                self.server.handle_datagram(now, &as_received(&datagram));
                self.forwarded.push((true, datagram));
            }
            while let Some(datagram) = self.server.poll_transmit(now) {
                self.client.handle_datagram(now, &as_received(&datagram));
                self.forwarded.push((false, datagram));
            }
            self.events.extend(std::iter::from_fn(|| self.client.poll_event()));
            while self.server.poll_event().is_some() {}
        }
    }

    fn is_connected(&self) -> bool {
        self.events.contains(&QuicEvent::Connected(self.connection))
    }

    fn failure(&self) -> Option<String> {
        self.events.iter().find_map(|event| {
            let QuicEvent::Closed { error, .. } = event else { return None };
            error.as_ref().map(ToString::to_string)
        })
    }
}

fn server_config(identity: &Identity) -> QuicConfig {
    QuicConfig { identity: Some(identity.clone()), ..QuicConfig::default() }
}

fn client_config(trust: Trust) -> QuicConfig {
    QuicConfig { trust, ..QuicConfig::default() }
}

#[test]
fn a_server_is_authenticated_by_its_fingerprint() {
    let identity = new_identity();
    let pins = vec![identity.fingerprint()];
    let mut pair = Pair::new(server_config(&identity), client_config(Trust::Pinned(pins)));
    pair.run(50);
    assert!(pair.is_connected(), "{:?}", pair.events);
    let status = pair.client.status(pair.connection).unwrap();
    assert_eq!(status.peer, Some(identity.fingerprint()));
}

#[test]
fn another_servers_certificate_is_refused() {
    let pins: Vec<Fingerprint> = vec![new_identity().fingerprint()];
    for trust in [Trust::Pinned(pins), Trust::Pinned(Vec::new()), Trust::Fixed] {
        let mut pair = Pair::new(server_config(&new_identity()), client_config(trust.clone()));
        pair.run(50);
        assert!(!pair.is_connected(), "{trust:?}");
        assert!(pair.failure().is_some(), "{trust:?}: {:?}", pair.events);
    }
}

#[test]
fn an_unexpected_certificate_is_named_by_its_fingerprint() {
    let server_identity = new_identity();
    let pins = vec![new_identity().fingerprint()];
    let mut pair = Pair::new(server_config(&server_identity), client_config(Trust::Pinned(pins)));
    pair.run(50);
    let failure = pair.failure().unwrap();
    assert!(failure.contains(&server_identity.fingerprint().to_string()), "{failure}");
}

#[test]
fn an_accepted_connection_opens_its_window_once_identified() {
    let config = QuicConfig { initial_window_bytes: Some(1_000), ..server_config(&new_identity()) };
    let mut pair = Pair::new(config, client_config(Trust::Any));
    pair.run(50);
    let now = Instant::ZERO + Duration::from_millis(50);
    let stream = pair.client.open_stream(pair.connection).unwrap();
    let mut data = Bytes::from(vec![7; 100_000]);
    pair.client.write(now, pair.connection, stream, &mut data).unwrap();
    pair.run(200);
    let accepted = ConnectionId(0);
    let status = pair.server.status(accepted).unwrap();
    assert!(status.paths[0].received_bytes < 10_000, "{status:?}");
    let reno = QuicConfig { congestion_control: "reno".to_owned(), ..QuicConfig::default() };
    let unknown = QuicConfig { congestion_control: "dctcp".to_owned(), ..QuicConfig::default() };
    assert!(pair.server.configure(now, accepted, &unknown).is_err());
    pair.server.configure(now, accepted, &reno).unwrap();
    pair.run(300);
    pair.client.write(now, pair.connection, stream, &mut data).unwrap();
    assert!(data.is_empty(), "there is no room for {} bytes", data.len());
    pair.run(400);
    let status = pair.server.status(accepted).unwrap();
    assert!(status.paths[0].received_bytes > 100_000, "{status:?}");
    assert_eq!(status.congestion_control, "reno");
}

#[test]
fn an_abandoned_connection_costs_nothing_and_sends_nothing() {
    let mut pair = Pair::new(server_config(&new_identity()), client_config(Trust::Any));
    pair.run(50);
    pair.server.drop_silently(ConnectionId(0));
    assert!(pair.server.status(ConnectionId(0)).is_none());
    let now = Instant::ZERO + Duration::from_secs(1);
    assert!(pair.server.poll_transmit(now).is_none());
    assert_eq!(pair.server.poll_timeout(), None);
}

#[test]
fn a_client_without_a_pin_learns_the_servers_fingerprint() {
    let identity = new_identity();
    let mut pair = Pair::new(server_config(&identity), client_config(Trust::Any));
    pair.run(50);
    assert!(pair.is_connected());
    let status = pair.client.status(pair.connection).unwrap();
    assert_eq!(status.peer, Some(identity.fingerprint()));
}

fn guarded_config(retry_from: usize, max_handshakes: usize) -> QuicConfig {
    let validation =
        AddressValidation { retry_from, max_handshakes, max_connections: 100, migration: false };
    QuicConfig { validation, ..server_config(&new_identity()) }
}

#[test]
fn a_busy_server_asks_for_proof_of_the_address_first() {
    let mut pair = Pair::new(guarded_config(0, 10), client_config(Trust::Any));
    pair.run(50);
    assert!(pair.is_connected(), "{:?}", pair.events);
    let (_, first_reply) = pair.forwarded.iter().find(|(from_client, _)| !from_client).unwrap();
    // RFC 9000 §17.2.5: a long header of type 3. An unvalidated address must not receive the
    // certificate.
    assert_eq!(first_reply.payload[0] & 0xf0, 0xf0);
    assert!(first_reply.payload.len() < 200, "{} bytes", first_reply.payload.len());
}

#[test]
fn new_peers_get_no_answer_when_too_many_handshakes_are_unfinished() {
    let mut pair = Pair::new(guarded_config(0, 0), client_config(Trust::Any));
    pair.run(50);
    assert!(!pair.is_connected());
    assert!(pair.forwarded.iter().all(|(from_client, _)| *from_client));
}

/// Checks RFC 9000 §8.1 with a peer that is silent after its first datagram.
#[test]
fn an_unvalidated_address_gets_at_most_three_times_its_bytes() {
    for config in [guarded_config(usize::MAX, 100), guarded_config(0, 100)] {
        let mut pair = Pair::new(config, client_config(Trust::Any));
        let first = pair.client.poll_transmit(Instant::ZERO).unwrap();
        let sent_bytes = first.payload.len();
        pair.server.handle_datagram(Instant::ZERO, &as_received(&first));
        let mut received_bytes = 0;
        for millis in 0..20_000 {
            let now = Instant::ZERO + Duration::from_millis(millis);
            pair.server.handle_timeout(now);
            while let Some(datagram) = pair.server.poll_transmit(now) {
                received_bytes += datagram.payload.len();
            }
        }
        assert!(
            received_bytes > 0 && received_bytes <= 3 * sent_bytes,
            "{received_bytes} bytes for {sent_bytes}"
        );
    }
}

#[test]
fn a_released_connection_leaves_no_state() {
    let mut pair = Pair::new(server_config(&new_identity()), client_config(Trust::Any));
    pair.run(50);
    assert_eq!(pair.client.ports().count(), 1);
    pair.client.release(Instant::ZERO + Duration::from_millis(50), pair.connection);
    pair.run(2_000);
    assert_eq!(pair.client.ports().count(), 0);
    assert!(pair.client.status(pair.connection).is_none());
}

/// Checks that the limit of unvalidated addresses does not slow down a handshake whose certificate
/// takes several datagrams.
#[test]
fn a_large_certificate_arrives_without_a_timeout() {
    for (names, retry_from) in [(1, 100), (150, 100), (150, 0), (300, 100), (300, 0)] {
        let names: Vec<String> = (0..names).map(|n| format!("host-{n}.example.net")).collect();
        let pem = PemIdentity::make(&names).unwrap();
        let identity = Identity::from_pem(&pem.certificate, &pem.key).unwrap();
        let certificate_bytes = pem.certificate.len() * 3 / 4;
        let validation = AddressValidation {
            retry_from,
            max_handshakes: 100,
            max_connections: 100,
            migration: false,
        };
        let config = QuicConfig { validation, ..server_config(&identity) };
        let mut pair = Pair::new(config, client_config(Trust::Any));
        pair.run(100);
        assert!(pair.is_connected(), "{certificate_bytes} bytes, retry from {retry_from}");
    }
}

/// Checks that forged Handshake packets, which cannot be encrypted without the server's reply, do not
/// validate an address. They even have the server's connection identifier.
#[test]
fn forged_handshake_packets_validate_no_address() {
    let mut pair = Pair::new(guarded_config(usize::MAX, 100), client_config(Trust::Any));
    let first = pair.client.poll_transmit(Instant::ZERO).unwrap();
    pair.server.handle_datagram(Instant::ZERO, &as_received(&first));
    let (mut sent_bytes, mut received_bytes) = (first.payload.len(), 0);
    let mut forged = None;
    for millis in 0..60_000_u64 {
        let now = Instant::ZERO + Duration::from_millis(millis);
        pair.server.handle_timeout(now);
        while let Some(reply) = pair.server.poll_transmit(now) {
            received_bytes += reply.payload.len();
            assert!(received_bytes <= 3 * sent_bytes, "{received_bytes} for {sent_bytes}");
            forged.get_or_insert_with(|| {
                let (_, source) = reply.payload[5..].split_at(usize::from(reply.payload[5]) + 1);
                let identifier = &source[..=usize::from(source[0])];
                let payload = [&[0xe0, 0, 0, 0, 1], identifier, &[0, 0x20], &[7; 32]].concat();
                Datagram { payload: payload.into(), ..first.clone() }
            });
        }
        if let Some(forged) = forged.as_ref().filter(|_| millis % 1_000 == 999) {
            sent_bytes += forged.payload.len();
            pair.server.handle_datagram(now, &as_received(forged));
        }
    }
    assert!(received_bytes > 0);
}
