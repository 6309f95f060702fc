//! Attacks that use a server to send packets to third parties (RFC 9000 §8 and §9.3).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use towpath_net::Instant;

use crate::identity::PemIdentity;
use crate::{
    AddressValidation, ConnectionId, Datagram, Identity, LocalAddress, QuicConfig, QuicStack,
    StreamId, Trust,
};

const PORT: u16 = 5_210;
/// Interfaces of the client. Replies to the first two arrive, others are addresses of victims.
const CLIENT_ADDRESSES: u8 = 6;
const HONEST_ADDRESSES: u8 = 2;

fn address(last: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, last).into()
}

fn local(last: u8, up: bool) -> LocalAddress {
    LocalAddress {
        address: address(last),
        interface: u32::from(last),
        up,
        subflow: true,
        backup: false,
    }
}

/// One step of the attacker, who controls a client of our own.
#[derive(Debug, Clone, Copy)]
enum AttackStep {
    /// Time passes, in milliseconds.
    Wait(u16),
    /// The client writes so many bytes.
    Write(u16),
    /// The client's datagrams get this source address from now on; 0 keeps their own.
    Forge { last: u8, port: u16 },
    /// An interface goes up or down, so that the client opens or abandons a path.
    SetUp { last: u8, up: bool },
    /// Old datagrams of the client arrive once more, from the forged address.
    Replay(u8),
    /// The server writes so many bytes.
    Reply(u16),
}

fn step() -> impl Strategy<Value = AttackStep> {
    prop_oneof![
        4 => (1_u16..400).prop_map(AttackStep::Wait),
        3 => (1_u16..4_000).prop_map(AttackStep::Write),
        3 => (0_u8..12, 1_000_u16..1_003).prop_map(|(last, port)| AttackStep::Forge { last, port }),
        2 => (2..=CLIENT_ADDRESSES, any::<bool>()).prop_map(|(last, up)| AttackStep::SetUp { last, up }),
        1 => (1_u8..20).prop_map(AttackStep::Replay),
        2 => (1_u16..20_000).prop_map(AttackStep::Reply),
    ]
}

struct Attack {
    now: Instant,
    client: QuicStack,
    server: QuicStack,
    connection: ConnectionId,
    stream: Option<StreamId>,
    /// Source address of the client's datagrams, if forged.
    forged: Option<SocketAddr>,
    /// Datagrams that the client has sent.
    sent: Vec<Datagram>,
    /// Bytes that the server has received from each address and sent to it.
    bytes: BTreeMap<SocketAddr, (u64, u64)>,
}

impl Attack {
    fn new(multipath: bool) -> Self {
        let (mut client, mut server) = (QuicStack::new(1), QuicStack::new_random());
        client.set_address(Instant::ZERO, local(1, true));
        server.set_address(Instant::ZERO, local(100, true));
        let pem = PemIdentity::make(&["towpath".to_owned()]).unwrap();
        let validation = AddressValidation {
            retry_from: 10,
            max_handshakes: 100,
            max_connections: 100,
            migration: false,
        };
        let server_config = QuicConfig {
            multipath: true,
            identity: Some(Identity::from_pem(&pem.certificate, &pem.key).unwrap()),
            validation,
            ..QuicConfig::default()
        };
        server.listen(PORT, server_config).unwrap();
        let remote = SocketAddr::new(address(100), PORT);
        let config = QuicConfig { multipath, trust: Trust::Any, ..QuicConfig::default() };
        let connection = client.connect(Instant::ZERO, None, remote, config).unwrap();
        let mut attack = Self {
            now: Instant::ZERO,
            client,
            server,
            connection,
            stream: None,
            forged: None,
            sent: Vec::new(),
            bytes: BTreeMap::new(),
        };
        attack.wait(100);
        attack.stream = attack.client.open_stream(connection);
        attack
    }

    fn step(&mut self, step: AttackStep) {
        match step {
            AttackStep::Wait(millis) => self.wait(millis),
            AttackStep::Write(bytes) => self.write(bytes),
            AttackStep::Forge { last, port } => {
                self.forged = (last > 0).then(|| SocketAddr::new(address(last), port));
            }
            AttackStep::SetUp { last, up } => self.client.set_address(self.now, local(last, up)),
            AttackStep::Replay(count) => {
                let from = self.sent.len().saturating_sub(count.into());
                for datagram in self.sent.split_off(from) {
                    self.deliver_to_server(datagram);
                }
            }
            AttackStep::Reply(bytes) => {
                if let Some(stream) = self.stream {
                    let mut data = Bytes::from(vec![1; bytes.into()]);
                    let _ = self.server.write(self.now, ConnectionId(0), stream, &mut data); // may be full
                }
            }
        }
        self.exchange();
    }

    fn write(&mut self, bytes: u16) {
        if let Some(stream) = self.stream {
            let mut data = Bytes::from(vec![7; bytes.into()]);
            let _ = self.client.write(self.now, self.connection, stream, &mut data); // may be full
        }
    }

    fn wait(&mut self, millis: u16) {
        for _ in 0..millis {
            self.now += Duration::from_millis(1);
            self.client.handle_timeout(self.now);
            self.server.handle_timeout(self.now);
            self.exchange();
        }
    }

    fn deliver_to_server(&mut self, datagram: Datagram) {
        let remote = self.forged.unwrap_or(datagram.local);
        self.bytes.entry(remote).or_default().0 += datagram.payload.len() as u64;
        let received = Datagram { local: datagram.remote, remote, ..datagram.clone() };
        self.server.handle_datagram(self.now, &received);
        self.sent.push(datagram);
    }

    fn exchange(&mut self) {
        while let Some(datagram) = self.client.poll_transmit(self.now) {
            self.deliver_to_server(datagram);
        }
        while let Some(datagram) = self.server.poll_transmit(self.now) {
            let remote = datagram.remote;
            self.bytes.entry(remote).or_default().1 += datagram.payload.len() as u64;
            self.check(remote);
            if is_honest(remote) {
                let received = Datagram { local: remote, remote: datagram.local, ..datagram };
                self.client.handle_datagram(self.now, &received);
            }
        }
        while self.server.poll_event().is_some() || self.client.poll_event().is_some() {}
    }

    /// Checks the bytes sent to an address whose owner has never answered.
    fn check(&self, remote: SocketAddr) {
        let (received, sent) = self.bytes.get(&remote).copied().unwrap_or_default();
        assert!(
            is_honest(remote) || sent <= 3 * received,
            "{sent} bytes for {received} of {remote}"
        );
    }

    fn sent_to_victims(&self) -> u64 {
        self.bytes
            .iter()
            .filter(|(remote, _)| !is_honest(**remote))
            .map(|(_, (_, sent))| sent)
            .sum()
    }
}

/// Returns true if the client receives what is sent to this address. Its own ports are high.
fn is_honest(remote: SocketAddr) -> bool {
    let is_own = (1..=HONEST_ADDRESSES).any(|last| remote.ip() == address(last));
    is_own && remote.port() > 40_000
}

#[test]
fn a_small_packet_from_a_victims_address_brings_no_large_one() {
    for multipath in [false, true] {
        let mut attack = Attack::new(multipath);
        for round in 0..1_000_u16 {
            let port = 1_000 + round % 7;
            attack.step(AttackStep::Forge { last: 200 + (round % 3) as u8, port });
            attack.step(AttackStep::Write(1));
            attack.step(AttackStep::Wait(3));
        }
        assert!(attack.bytes.len() > 20, "the client sent from forged addresses");
    }
}

#[test]
fn a_new_path_from_a_victims_address_gets_three_times_its_bytes() {
    let mut attack = Attack::new(true);
    for last in HONEST_ADDRESSES + 1..=CLIENT_ADDRESSES {
        attack.step(AttackStep::SetUp { last, up: true });
        attack.step(AttackStep::Wait(3_000));
        attack.step(AttackStep::SetUp { last, up: false });
    }
    assert!(attack.sent_to_victims() > 1_000, "the server has answered the challenges");
}

#[test]
fn an_honest_second_path_is_used() {
    let mut attack = Attack::new(true);
    attack.step(AttackStep::SetUp { last: 2, up: true });
    attack.step(AttackStep::Wait(300));
    for _ in 0..50 {
        attack.step(AttackStep::Write(4_000));
        attack.step(AttackStep::Reply(20_000));
        attack.step(AttackStep::Wait(20));
    }
    let status = attack.server.status(ConnectionId(0)).unwrap();
    assert_eq!(status.paths.len(), 2);
    for path in &status.paths {
        assert!(path.sent_bytes > 100_000, "{:?}", status.paths);
    }
}

#[test]
fn a_client_that_opens_paths_without_end_takes_bounded_memory() {
    let mut attack = Attack::new(true);
    for _ in 0..400 {
        attack.step(AttackStep::SetUp { last: 2, up: true });
        attack.step(AttackStep::Wait(600));
        attack.step(AttackStep::SetUp { last: 2, up: false });
        attack.step(AttackStep::Wait(10));
    }
    let status = attack.server.status(ConnectionId(0)).unwrap();
    assert!((100..=256).contains(&status.paths.len()), "{} paths", status.paths.len());
    assert!(status.paths.iter().any(|path| path.number > 300), "{:?}", status.paths.last());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(case_count()))]

    #[test]
    fn no_sequence_of_packets_is_amplified(
        multipath in any::<bool>(),
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        let mut attack = Attack::new(multipath);
        for step in steps {
            attack.step(step);
        }
    }
}

/// Number of random sequences: the attack tests run many.
fn case_count() -> u32 {
    match std::env::var("TOWPATH_ATTACKS").as_deref() {
        Ok("whole") => 10_000,
        _ => 32,
    }
}
