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

fn host(last: u8) -> QuicStack {
    let mut host = QuicStack::new_random();
    let address: IpAddr = Ipv4Addr::new(10, 0, 0, last).into();
    let (up, subflow, backup) = (true, true, false);
    let local = LocalAddress { address, interface: 1, up, subflow, backup };
    host.set_address(Instant::ZERO, local);
    host
}

fn identity() -> Identity {
    let pem = PemIdentity::make(&["towpath".to_owned()]).unwrap();
    Identity::from_pem(&pem.certificate, &pem.key).unwrap()
}

/// Returns the sent datagram as the other end sees it.
fn arrived(sent: &Datagram) -> Datagram {
    Datagram { local: sent.remote, remote: sent.local, ..sent.clone() }
}

struct Pair {
    client: QuicStack,
    server: QuicStack,
    connection: ConnectionId,
    events: Vec<QuicEvent>,
    /// UDP payload in both directions; true is the client's.
    passed: Vec<(bool, Datagram)>,
}

impl Pair {
    fn new(server_config: QuicConfig, client_config: QuicConfig) -> Self {
        let (mut client, mut server) = (host(1), host(2));
        server.listen(PORT, server_config).unwrap();
        let remote = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 2).into(), PORT);
        let connection = client.connect(Instant::ZERO, None, remote, client_config).unwrap();
        Self { client, server, connection, events: Vec::new(), passed: Vec::new() }
    }

    /// Forwards everything over a network of 1 ms delay, for `millis` ms.
    fn run(&mut self, millis: u64) {
        for millis in 0..millis {
            let now = Instant::ZERO + Duration::from_millis(millis);
            self.client.handle_timeout(now);
            self.server.handle_timeout(now);
            while let Some(datagram) = self.client.poll_transmit(now) {
                self.server.handle_datagram(now, &arrived(&datagram));
                self.passed.push((true, datagram));
            }
            while let Some(datagram) = self.server.poll_transmit(now) {
                self.client.handle_datagram(now, &arrived(&datagram));
                self.passed.push((false, datagram));
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

fn serving(identity: &Identity) -> QuicConfig {
    QuicConfig { identity: Some(identity.clone()), ..QuicConfig::default() }
}

fn trusting(trust: Trust) -> QuicConfig {
    QuicConfig { trust, ..QuicConfig::default() }
}

#[test]
fn a_server_is_authenticated_by_its_fingerprint() {
    let identity = identity();
    let pins = vec![identity.fingerprint()];
    let mut pair = Pair::new(serving(&identity), trusting(Trust::Pinned(pins)));
    pair.run(50);
    assert!(pair.is_connected(), "{:?}", pair.events);
    let status = pair.client.status(pair.connection).unwrap();
    assert_eq!(status.peer, Some(identity.fingerprint()));
}

#[test]
fn another_servers_certificate_is_refused() {
    let pins: Vec<Fingerprint> = vec![identity().fingerprint()];
    for trust in [Trust::Pinned(pins), Trust::Pinned(Vec::new()), Trust::Fixed] {
        let mut pair = Pair::new(serving(&identity()), trusting(trust.clone()));
        pair.run(50);
        assert!(!pair.is_connected(), "{trust:?}");
        assert!(pair.failure().is_some(), "{trust:?}: {:?}", pair.events);
    }
}

#[test]
fn a_certificate_that_is_not_expected_is_named() {
    let shown = identity();
    let pins = vec![identity().fingerprint()];
    let mut pair = Pair::new(serving(&shown), trusting(Trust::Pinned(pins)));
    pair.run(50);
    let failure = pair.failure().unwrap();
    assert!(failure.contains(&shown.fingerprint().to_string()), "{failure}");
}

#[test]
fn an_accepted_connection_opens_its_window_once_identified() {
    let config = QuicConfig { initial_window_bytes: Some(1_000), ..serving(&identity()) };
    let mut pair = Pair::new(config, trusting(Trust::Any));
    pair.run(50);
    let now = Instant::ZERO + Duration::from_millis(50);
    let stream = pair.client.open_stream(pair.connection).unwrap();
    let mut data = Bytes::from(vec![7; 100_000]);
    pair.client.write(now, pair.connection, stream, &mut data).unwrap();
    pair.run(200);
    let accepted = ConnectionId(0);
    let status = pair.server.status(accepted).unwrap();
    assert!(status.paths[0].received_bytes < 10_000, "{status:?}");
    let wanted = QuicConfig { congestion_control: "reno".to_owned(), ..QuicConfig::default() };
    let unknown = QuicConfig { congestion_control: "dctcp".to_owned(), ..QuicConfig::default() };
    assert!(pair.server.configure(now, accepted, &unknown).is_err());
    pair.server.configure(now, accepted, &wanted).unwrap();
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
    let mut pair = Pair::new(serving(&identity()), trusting(Trust::Any));
    pair.run(50);
    pair.server.drop_silently(ConnectionId(0));
    assert!(pair.server.status(ConnectionId(0)).is_none());
    let now = Instant::ZERO + Duration::from_secs(1);
    assert!(pair.server.poll_transmit(now).is_none());
    assert_eq!(pair.server.poll_timeout(), None);
}

#[test]
fn a_client_without_a_pin_learns_the_servers_fingerprint() {
    let identity = identity();
    let mut pair = Pair::new(serving(&identity), trusting(Trust::Any));
    pair.run(50);
    assert!(pair.is_connected());
    let status = pair.client.status(pair.connection).unwrap();
    assert_eq!(status.peer, Some(identity.fingerprint()));
}

fn guarded(retry_from: usize, most_handshakes: usize) -> QuicConfig {
    let validation =
        AddressValidation { retry_from, max_handshakes: most_handshakes, max_connections: 100 };
    QuicConfig { validation, ..serving(&identity()) }
}

#[test]
fn a_busy_server_asks_for_proof_of_the_address_first() {
    let mut pair = Pair::new(guarded(0, 10), trusting(Trust::Any));
    pair.run(50);
    assert!(pair.is_connected(), "{:?}", pair.events);
    let (_, first) = pair.passed.iter().find(|(to_server, _)| !to_server).unwrap();
    // RFC 9000 §17.2.5: a long header of type 3. An unvalidated address must not receive the
    // certificate.
    assert_eq!(first.payload[0] & 0xf0, 0xf0);
    assert!(first.payload.len() < 200, "{} bytes", first.payload.len());
}

#[test]
fn new_peers_get_no_answer_when_too_many_handshakes_are_unfinished() {
    let mut pair = Pair::new(guarded(0, 0), trusting(Trust::Any));
    pair.run(50);
    assert!(!pair.is_connected());
    assert!(pair.passed.iter().all(|(to_server, _)| *to_server));
}

/// Checks RFC 9000 §8.1 with a peer that is silent after its first datagram.
#[test]
fn an_unvalidated_address_gets_at_most_three_times_its_bytes() {
    for config in [guarded(usize::MAX, 100), guarded(0, 100)] {
        let mut pair = Pair::new(config, trusting(Trust::Any));
        let first = pair.client.poll_transmit(Instant::ZERO).unwrap();
        let sent = first.payload.len();
        pair.server.handle_datagram(Instant::ZERO, &arrived(&first));
        let mut received = 0;
        for millis in 0..20_000 {
            let now = Instant::ZERO + Duration::from_millis(millis);
            pair.server.handle_timeout(now);
            while let Some(datagram) = pair.server.poll_transmit(now) {
                received += datagram.payload.len();
            }
        }
        assert!(received > 0 && received <= 3 * sent, "{received} bytes for {sent}");
    }
}

#[test]
fn a_released_connection_leaves_no_state() {
    let mut pair = Pair::new(serving(&identity()), trusting(Trust::Any));
    pair.run(50);
    assert_eq!(pair.client.ports().count(), 1);
    pair.client.release(Instant::ZERO + Duration::from_millis(50), pair.connection);
    pair.run(2_000);
    assert_eq!(pair.client.ports().count(), 0);
    assert!(pair.client.status(pair.connection).is_none());
}
