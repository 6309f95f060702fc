//! Whole connections in virtual time, over links with delay, a rate and temporary outages.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use towpath_net::Instant;

use crate::{
    AbandonReason, ConnectionId, Datagram, LocalAddress, PathNotice, PathPolicy, PathState,
    QuicConfig, QuicEvent, QuicStack, StreamId, SwitchReason,
};

const PORT: u16 = 4_433;

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn address(last: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, last).into()
}

fn local_address(last: u8) -> LocalAddress {
    LocalAddress {
        address: address(last),
        interface: u32::from(last),
        up: true,
        subflow: true,
        backup: false,
    }
}

/// One link, identified by the client's address.
#[derive(Debug, Clone, Copy)]
struct Link {
    delay: Duration,
    /// Transmission time of a byte.
    byte_time: Duration,
    /// End of the last transmission, to the server and to the client.
    busy_until: [Instant; 2],
    /// Outage: nothing passes between these times.
    outage: (Instant, Instant),
}

impl Link {
    fn new(delay_millis: u64, megabits: u64) -> Self {
        let byte_time = Duration::from_nanos(8_000 / megabits);
        let outage = (Instant::MAX, Instant::MAX);
        Self { delay: millis(delay_millis), byte_time, busy_until: [Instant::ZERO; 2], outage }
    }
}

struct TestNetwork {
    now: Instant,
    client: QuicStack,
    server: QuicStack,
    links: BTreeMap<IpAddr, Link>,
    /// Datagrams by arrival time and number; true if the client receives it.
    in_flight: BTreeMap<(Instant, u64), (bool, Datagram)>,
    sent_datagrams: u64,
    connection: ConnectionId,
    accepted: Option<ConnectionId>,
    stream: Option<StreamId>,
    /// Bytes that the client writes and the server reads.
    transfer_bytes: u64,
    written_bytes: u64,
    read_bytes: u64,
    stream_ended: bool,
    reads: Vec<Instant>,
    /// Notices by end: 0 is the client.
    notices: [Vec<(Instant, PathNotice)>; 2],
    sent_lengths: Vec<(Instant, usize)>,
}

impl TestNetwork {
    fn new(config: &QuicConfig, links: &[(u8, Link)], transfer_bytes: u64) -> Self {
        let (mut client, mut server) = (QuicStack::new(1), QuicStack::new(2));
        for (last, _) in links {
            client.set_address(Instant::ZERO, local_address(*last));
        }
        server.set_address(Instant::ZERO, local_address(100));
        server.listen(PORT, config.clone()).unwrap();
        let first = address(links[0].0);
        let remote = SocketAddr::new(address(100), PORT);
        let connection =
            client.connect(Instant::ZERO, Some(first), remote, config.clone()).unwrap();
        Self {
            now: Instant::ZERO,
            client,
            server,
            links: links.iter().map(|(last, link)| (address(*last), *link)).collect(),
            in_flight: BTreeMap::new(),
            sent_datagrams: 0,
            connection,
            accepted: None,
            stream: None,
            transfer_bytes,
            written_bytes: 0,
            read_bytes: 0,
            stream_ended: false,
            reads: Vec::new(),
            notices: [Vec::new(), Vec::new()],
            sent_lengths: Vec::new(),
        }
    }

    /// Runs until all data has arrived, or for at most `max_duration`.
    fn run(&mut self, max_duration: Duration) {
        let end = self.now + max_duration;
        self.exchange_until_idle();
        let mut repeats = (self.now, 0);
        while !self.stream_ended {
            let timers = [self.client.poll_timeout(), self.server.poll_timeout()];
            let arrival = self.in_flight.keys().next().map(|(time, _)| *time);
            // `None` when both ends have closed the connection.
            let next_event = timers.into_iter().flatten().chain(arrival).min();
            let Some(next_event) = next_event.filter(|next_event| *next_event <= end) else {
                self.now = end;
                return;
            };
            self.now = next_event.max(self.now);
            repeats = if repeats.0 == self.now { (self.now, repeats.1 + 1) } else { (self.now, 0) };
            assert!(repeats.1 < 10_000, "time does not advance at {:?}", self.now);
            while let Some(entry) = self.in_flight.first_entry().filter(|e| e.key().0 <= self.now) {
                let (to_client, datagram) = entry.remove();
                let host = if to_client { &mut self.client } else { &mut self.server };
                host.handle_datagram(self.now, &datagram);
            }
            self.client.handle_timeout(self.now);
            self.server.handle_timeout(self.now);
            self.exchange_until_idle();
        }
    }

    fn exchange_until_idle(&mut self) {
        loop {
            let mut active = false;
            while let Some(event) = self.client.poll_event() {
                active = true;
                self.on_client_event(event);
            }
            while let Some(event) = self.server.poll_event() {
                active = true;
                self.on_server_event(event);
            }
            for to_client in [false, true] {
                while let Some(datagram) = self.transmit(to_client) {
                    active = true;
                    for payload in datagram.split().collect::<Vec<_>>() {
                        self.send(to_client, Datagram { payload, segment_bytes: None, ..datagram });
                    }
                }
            }
            if !active {
                return;
            }
        }
    }

    fn transmit(&mut self, to_client: bool) -> Option<Datagram> {
        let host = if to_client { &mut self.server } else { &mut self.client };
        host.poll_transmit(self.now)
    }

    fn send(&mut self, to_client: bool, datagram: Datagram) {
        self.sent_lengths.push((self.now, datagram.payload.len()));
        let ip = if to_client { datagram.remote.ip() } else { datagram.local.ip() };
        let Some(link) = self.links.get_mut(&ip) else { return };
        if link.outage.0 <= self.now && self.now < link.outage.1 {
            return;
        }
        let busy_until = &mut link.busy_until[usize::from(to_client)];
        let start = (*busy_until).max(self.now);
        if start.saturating_since(self.now) > millis(100) {
            return; // the queue is full
        }
        *busy_until = start + link.byte_time * u32::try_from(datagram.payload.len() + 28).unwrap();
        let arrival = *busy_until + link.delay;
        self.sent_datagrams += 1;
        let received = Datagram { local: datagram.remote, remote: datagram.local, ..datagram };
        self.in_flight.insert((arrival, self.sent_datagrams), (to_client, received));
    }

    fn on_client_event(&mut self, event: QuicEvent) {
        match event {
            QuicEvent::Connected(_) => {
                self.stream = self.client.open_stream(self.connection);
                self.write();
            }
            QuicEvent::Writable(..) => self.write(),
            QuicEvent::Notice { notice, .. } => self.notices[0].push((self.now, notice)),
            QuicEvent::Accepted { .. }
            | QuicEvent::StreamOpened(..)
            | QuicEvent::Readable(..)
            | QuicEvent::Finished(..)
            | QuicEvent::Closed { .. } => {}
        }
    }

    fn write(&mut self) {
        let Some(stream) = self.stream else { return };
        while self.written_bytes < self.transfer_bytes {
            let chunk_bytes =
                usize::try_from(self.transfer_bytes - self.written_bytes).unwrap().min(50_000);
            let mut data = Bytes::from(vec![7; chunk_bytes]);
            let accepted_bytes =
                self.client.write(self.now, self.connection, stream, &mut data).unwrap();
            self.written_bytes += accepted_bytes as u64;
            if accepted_bytes < chunk_bytes {
                return;
            }
        }
        let _ = self.client.finish(self.now, self.connection, stream);
    }

    fn on_server_event(&mut self, event: QuicEvent) {
        match event {
            QuicEvent::Accepted { connection, .. } => self.accepted = Some(connection),
            QuicEvent::StreamOpened(connection, stream)
            | QuicEvent::Readable(connection, stream) => {
                while let Ok(Some(data)) = self.server.read(self.now, connection, stream) {
                    self.reads.push(self.now);
                    if data.is_empty() {
                        self.stream_ended = true;
                        break;
                    }
                    assert!(data.iter().all(|byte| *byte == 7));
                    self.read_bytes += data.len() as u64;
                }
            }
            QuicEvent::Notice { notice, .. } => self.notices[1].push((self.now, notice)),
            QuicEvent::Connected(_)
            | QuicEvent::Writable(..)
            | QuicEvent::Finished(..)
            | QuicEvent::Closed { .. } => {}
        }
    }

    fn longest_read_gap(&self) -> Duration {
        let gaps = self.reads.windows(2).map(|pair| pair[1].saturating_since(pair[0]));
        gaps.max().unwrap_or_default()
    }

    fn elapsed_secs(&self) -> f64 {
        self.now.as_secs_f64()
    }
}

fn multipath_config(policy: PathPolicy) -> QuicConfig {
    QuicConfig { multipath: true, policy, ..QuicConfig::default() }
}

fn wifi_and_cellular() -> [(u8, Link); 2] {
    [(1, Link::new(10, 20)), (2, Link::new(30, 20))]
}

#[test]
fn a_single_path_delivers_everything() {
    let mut network =
        TestNetwork::new(&QuicConfig::default(), &[(1, Link::new(10, 20))], 3_000_000);
    network.run(millis(10_000));
    assert_eq!((network.read_bytes, network.stream_ended), (3_000_000, true));
    let status = network.client.status(network.connection).unwrap();
    assert!(status.established && !status.multipath && status.paths.len() == 1, "{status:?}");
}

#[test]
fn two_paths_are_opened_and_both_carry_data() {
    let mut network =
        TestNetwork::new(&multipath_config(PathPolicy::Aggregate), &wifi_and_cellular(), 8_000_000);
    network.run(millis(20_000));
    assert!(network.stream_ended);
    let status = network.client.status(network.connection).unwrap();
    assert!(status.multipath);
    let sent_bytes: Vec<_> = status.paths.iter().map(|path| path.sent_bytes).collect();
    assert!(
        sent_bytes.len() == 2 && sent_bytes.iter().all(|bytes| *bytes > 1_000_000),
        "{sent_bytes:?}"
    );
    assert!(network.elapsed_secs() < 8.0 * 8.0 / 40.0 / 0.8, "{}", network.elapsed_secs());
}

#[test]
fn every_congestion_control_moves_data_over_two_paths() {
    for (name, _) in crate::congestion::names() {
        let config = QuicConfig {
            congestion_control: name.to_owned(),
            ..multipath_config(PathPolicy::Aggregate)
        };
        let mut network = TestNetwork::new(&config, &wifi_and_cellular(), 4_000_000);
        network.run(millis(20_000));
        assert!(network.stream_ended, "{name}: {} of 4000000 bytes", network.read_bytes);
    }
}

#[test]
fn a_backup_carries_nothing_while_the_primary_works() {
    let mut network =
        TestNetwork::new(&multipath_config(PathPolicy::Backup), &wifi_and_cellular(), 4_000_000);
    network.run(millis(20_000));
    let status = network.client.status(network.connection).unwrap();
    assert!(network.stream_ended && status.paths[1].backup);
    assert!(status.paths[1].sent_bytes < 40_000, "{status:?}");
}

#[test]
fn a_path_that_goes_silent_is_given_up_and_comes_back() {
    for policy in [PathPolicy::Aggregate, PathPolicy::Backup, PathPolicy::Ios] {
        for silent in [1, 2] {
            let mut links = wifi_and_cellular();
            let link = links.iter_mut().find(|(last, _)| *last == silent).unwrap();
            link.1.outage = (Instant::ZERO + millis(1_000), Instant::ZERO + millis(5_000));
            let mut network = TestNetwork::new(&multipath_config(policy), &links, 30_000_000);
            network.run(millis(60_000));
            let case = format!("{policy:?}, {silent} dark: {} bytes", network.read_bytes);
            assert!(network.stream_ended, "{case}");
            let status = network.client.status(network.connection).unwrap();
            let number = u32::from(silent) - 1;
            let abandoned = status.paths.iter().find(|path| path.number == number).unwrap();
            assert!(matches!(abandoned.state, PathState::Abandoned { .. }), "{case} {status:?}");
            let reopened = status.paths.iter().find(|path| {
                path.local.ip() == address(silent) && path.state == PathState::Established
            });
            assert!(reopened.is_some(), "{case} {:?}", status.paths);
            assert!(
                network.longest_read_gap() < millis(3_000),
                "{case}: {:?}",
                network.longest_read_gap()
            );
        }
    }
}

#[test]
fn ios_uses_the_backup_before_the_primary_is_given_up() {
    let mut links = wifi_and_cellular();
    links[0].1.outage = (Instant::ZERO + millis(1_000), Instant::MAX);
    let mut network = TestNetwork::new(&multipath_config(PathPolicy::Ios), &links, 6_000_000);
    network.run(millis(30_000));
    assert!(network.stream_ended);
    let reasons_of_path_0 = |notice: &PathNotice| match notice {
        PathNotice::Switched { path: 0, backup: true, reason } => Some((None, Some(*reason))),
        PathNotice::Abandoned { path: 0, reason } => Some((Some(*reason), None)),
        PathNotice::SinglePath
        | PathNotice::Established { .. }
        | PathNotice::Abandoned { .. }
        | PathNotice::Switched { .. }
        | PathNotice::Migrated { .. } => None,
    };
    let reasons: Vec<_> =
        network.notices[0].iter().filter_map(|(_, n)| reasons_of_path_0(n)).collect();
    assert_eq!(reasons[0], (None, Some(SwitchReason::Timeout)), "{reasons:?}");
    assert!(
        reasons.iter().any(|(reason, _)| matches!(
            reason,
            Some(AbandonReason::Silent(_) | AbandonReason::Peer)
        ))
    );
}

#[test]
fn an_address_that_changes_does_not_end_a_single_path() {
    let mut network =
        TestNetwork::new(&QuicConfig::default(), &[(1, Link::new(10, 20))], 5_000_000);
    network.links.insert(address(11), Link::new(10, 20));
    network.run(millis(500));
    network.links.get_mut(&address(1)).unwrap().outage.0 = network.now;
    network.client.remove_address(network.now, address(1));
    network.client.set_address(network.now, LocalAddress { interface: 1, ..local_address(11) });
    network.run(millis(10_000));
    assert!(network.stream_ended, "{} bytes", network.read_bytes);
    let new_local = SocketAddr::new(address(11), 49_152);
    assert_eq!(network.notices[0].last().unwrap().1, PathNotice::Migrated { local: new_local });
}

#[test]
fn a_server_on_an_untrusted_network_refuses_migration_unless_it_is_permitted() {
    for migration in [false, true] {
        let validation = crate::AddressValidation {
            retry_from: 10,
            max_handshakes: 100,
            max_connections: 100,
            migration,
        };
        let config = QuicConfig { validation, ..QuicConfig::default() };
        let mut network = TestNetwork::new(&config, &[(1, Link::new(10, 20))], 5_000_000);
        network.links.insert(address(11), Link::new(10, 20));
        network.run(millis(500));
        network.links.get_mut(&address(1)).unwrap().outage.0 = network.now;
        network.client.remove_address(network.now, address(1));
        network.client.set_address(network.now, LocalAddress { interface: 1, ..local_address(11) });
        network.run(millis(10_000));
        assert_eq!(network.stream_ended, migration, "{} bytes", network.read_bytes);
    }
}

#[test]
fn a_removed_address_ends_its_path_at_once() {
    let mut network =
        TestNetwork::new(&multipath_config(PathPolicy::Backup), &wifi_and_cellular(), 6_000_000);
    network.run(millis(1_000));
    network.client.set_up(network.now, 1, false);
    let notice = PathNotice::Abandoned { path: 0, reason: AbandonReason::AddressGone };
    network.run(millis(20_000));
    assert!(network.stream_ended && network.notices[0].iter().any(|(_, n)| *n == notice));
}

#[test]
fn a_peer_without_multipath_gives_a_single_path() {
    let mut network =
        TestNetwork::new(&multipath_config(PathPolicy::Aggregate), &wifi_and_cellular(), 500_000);
    network.server = QuicStack::new(2);
    network.server.set_address(Instant::ZERO, local_address(100));
    network.server.listen(PORT, QuicConfig::default()).unwrap();
    network.run(millis(10_000));
    assert!(network.stream_ended && !network.client.status(network.connection).unwrap().multipath);
    assert_eq!(network.notices[0][0].1, PathNotice::SinglePath);
}

#[test]
fn a_version_negotiation_is_not_longer_than_its_trigger() {
    let mut server = QuicStack::new(2);
    server.set_address(Instant::ZERO, local_address(2));
    server.listen(PORT, QuicConfig::default()).unwrap();
    for length in [7, 8, 39, 1_199, 1_200] {
        // A long header of an unknown version, with empty connection identifiers.
        let mut packet = vec![0xc0, 0x1a, 0x2a, 0x3a, 0x5a, 0, 0];
        packet.resize(length, 0);
        let (local, remote) = (SocketAddr::new(address(2), PORT), SocketAddr::new(address(1), 1));
        let (ecn, payload, segment_bytes) = (0, Bytes::from(packet), None);
        let datagram = Datagram { local, remote, ecn, payload, segment_bytes };
        server.handle_datagram(Instant::ZERO, &datagram);
        let reply = server.poll_transmit(Instant::ZERO);
        assert_eq!(reply.is_some(), length == 1_200, "{reply:?} to {length} bytes");
    }
}

#[test]
fn equal_seeds_give_datagrams_of_equal_lengths_at_equal_times() {
    let run = || {
        let mut links = wifi_and_cellular();
        links[0].1.outage = (Instant::ZERO + millis(600), Instant::ZERO + millis(2_500));
        let mut network =
            TestNetwork::new(&multipath_config(PathPolicy::Aggregate), &links, 8_000_000);
        network.run(millis(30_000));
        assert!(network.stream_ended);
        network.sent_lengths
    };
    assert_eq!(run(), run());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn garbage_never_panics_nor_ends_a_connection(
        garbage in proptest::collection::vec(
            (any::<bool>(), proptest::collection::vec(any::<u8>(), 0..1_500), any::<u8>()), 1..20),
    ) {
        let mut network = TestNetwork::new(&multipath_config(PathPolicy::Aggregate), &wifi_and_cellular(), 300_000);
        network.run(millis(60));
        for (to_client, bytes, ecn) in garbage {
            let (receiver, sender) = if to_client { (1, 100) } else { (100, 1) };
            let ports = if to_client { (49_152, PORT) } else { (PORT, 49_152) };
            let datagram = Datagram {
                local: SocketAddr::new(address(receiver), ports.0),
                remote: SocketAddr::new(address(sender), ports.1),
                ecn,
                payload: bytes.into(),
                segment_bytes: None,
            };
            let host = if to_client { &mut network.client } else { &mut network.server };
            host.handle_datagram(network.now, &datagram);
        }
        network.run(millis(10_000));
        prop_assert!(network.stream_ended);
    }

    #[test]
    fn a_damaged_datagram_never_panics(bit_indexes in proptest::collection::vec(any::<usize>(), 1..40)) {
        let mut network = TestNetwork::new(&multipath_config(PathPolicy::Aggregate), &wifi_and_cellular(), 300_000);
        for bit_index in bit_indexes {
            network.run(millis(3));
            let Some((key, (_, datagram))) = network.in_flight.iter().next() else { continue };
            let (key, mut bytes) = (*key, datagram.payload.to_vec());
            let bit = bit_index % (bytes.len() * 8).max(1);
            if let Some(byte) = bytes.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
            if let Some((_, datagram)) = network.in_flight.get_mut(&key) {
                datagram.payload = bytes.into();
            }
        }
        network.run(millis(10_000));
    }
}
