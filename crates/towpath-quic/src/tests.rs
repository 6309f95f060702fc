//! Whole connections in virtual time, over links that only add delay or temporarily lose
//! everything.

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

fn local(last: u8) -> LocalAddress {
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
    byte: Duration,
    busy_until: [Instant; 2],
    /// Outage: nothing passes between these times.
    outage: (Instant, Instant),
}

impl Link {
    fn new(delay_millis: u64, megabits: u64) -> Self {
        let byte = Duration::from_nanos(8_000 / megabits);
        let outage = (Instant::MAX, Instant::MAX);
        Self { delay: millis(delay_millis), byte, busy_until: [Instant::ZERO; 2], outage }
    }
}

struct TestNetwork {
    now: Instant,
    client: QuicStack,
    server: QuicStack,
    links: BTreeMap<IpAddr, Link>,
    in_flight: BTreeMap<(Instant, u64), (bool, Datagram)>,
    sent: u64,
    connection: ConnectionId,
    accepted: Option<ConnectionId>,
    stream: Option<StreamId>,
    /// Bytes that the client writes and the server reads.
    transfer_bytes: u64,
    written: u64,
    read: u64,
    ended: bool,
    reads: Vec<Instant>,
    /// Notices by end: 0 is the client.
    notices: [Vec<(Instant, PathNotice)>; 2],
    lengths: Vec<(Instant, usize)>,
}

impl TestNetwork {
    fn new(config: &QuicConfig, links: &[(u8, Link)], transfer_bytes: u64) -> Self {
        let (mut client, mut server) = (QuicStack::new(1), QuicStack::new(2));
        for (last, _) in links {
            client.set_address(Instant::ZERO, local(*last));
        }
        server.set_address(Instant::ZERO, local(100));
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
            sent: 0,
            connection,
            accepted: None,
            stream: None,
            transfer_bytes,
            written: 0,
            read: 0,
            ended: false,
            reads: Vec::new(),
            notices: [Vec::new(), Vec::new()],
            lengths: Vec::new(),
        }
    }

    /// Runs until all data has arrived, or for at most `most`.
    fn run(&mut self, most: Duration) {
        let end = self.now + most;
        self.settle();
        let mut still = (self.now, 0);
        while !self.ended {
            let timers = [self.client.poll_timeout(), self.server.poll_timeout()];
            let arrival = self.in_flight.keys().next().map(|(at, _)| *at);
            // `None` when both ends have closed the connection.
            let next = timers.into_iter().flatten().chain(arrival).min();
            let Some(next) = next.filter(|next| *next <= end) else {
                self.now = end;
                return;
            };
            self.now = next.max(self.now);
            still = if still.0 == self.now { (self.now, still.1 + 1) } else { (self.now, 0) };
            assert!(still.1 < 10_000, "time stands still at {:?}", self.now);
            while let Some(entry) = self.in_flight.first_entry().filter(|e| e.key().0 <= self.now) {
                let (to_client, datagram) = entry.remove();
                let host = if to_client { &mut self.client } else { &mut self.server };
                host.handle_datagram(self.now, &datagram);
            }
            self.client.handle_timeout(self.now);
            self.server.handle_timeout(self.now);
            self.settle();
        }
    }

    fn settle(&mut self) {
        loop {
            let mut did = false;
            while let Some(event) = self.client.poll_event() {
                did = true;
                self.on_client(event);
            }
            while let Some(event) = self.server.poll_event() {
                did = true;
                self.on_server(event);
            }
            for to_client in [false, true] {
                while let Some(datagram) = self.transmit(to_client) {
                    did = true;
                    for payload in datagram.split().collect::<Vec<_>>() {
                        self.send(to_client, Datagram { payload, segment_bytes: None, ..datagram });
                    }
                }
            }
            if !did {
                return;
            }
        }
    }

    fn transmit(&mut self, to_client: bool) -> Option<Datagram> {
        let host = if to_client { &mut self.server } else { &mut self.client };
        host.poll_transmit(self.now)
    }

    fn send(&mut self, to_client: bool, datagram: Datagram) {
        self.lengths.push((self.now, datagram.payload.len()));
        let ip = if to_client { datagram.remote.ip() } else { datagram.local.ip() };
        let Some(link) = self.links.get_mut(&ip) else { return };
        if link.outage.0 <= self.now && self.now < link.outage.1 {
            return;
        }
        let way = &mut link.busy_until[usize::from(to_client)];
        let start = (*way).max(self.now);
        if start.saturating_since(self.now) > millis(100) {
            return; // the queue is full
        }
        *way = start + link.byte * u32::try_from(datagram.payload.len() + 28).unwrap();
        let at = *way + link.delay;
        self.sent += 1;
        let turned = Datagram { local: datagram.remote, remote: datagram.local, ..datagram };
        self.in_flight.insert((at, self.sent), (to_client, turned));
    }

    fn on_client(&mut self, event: QuicEvent) {
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
        while self.written < self.transfer_bytes {
            let most = usize::try_from(self.transfer_bytes - self.written).unwrap().min(50_000);
            let mut data = Bytes::from(vec![7; most]);
            let taken = self.client.write(self.now, self.connection, stream, &mut data).unwrap();
            self.written += taken as u64;
            if taken < most {
                return;
            }
        }
        let _ = self.client.finish(self.now, self.connection, stream);
    }

    fn on_server(&mut self, event: QuicEvent) {
        match event {
            QuicEvent::Accepted { connection, .. } => self.accepted = Some(connection),
            QuicEvent::StreamOpened(connection, stream)
            | QuicEvent::Readable(connection, stream) => {
                while let Ok(Some(data)) = self.server.read(self.now, connection, stream) {
                    self.reads.push(self.now);
                    if data.is_empty() {
                        self.ended = true;
                        break;
                    }
                    assert!(data.iter().all(|byte| *byte == 7));
                    self.read += data.len() as u64;
                }
            }
            QuicEvent::Notice { notice, .. } => self.notices[1].push((self.now, notice)),
            QuicEvent::Connected(_)
            | QuicEvent::Writable(..)
            | QuicEvent::Finished(..)
            | QuicEvent::Closed { .. } => {}
        }
    }

    fn longest_gap(&self) -> Duration {
        let gaps = self.reads.windows(2).map(|pair| pair[1].saturating_since(pair[0]));
        gaps.max().unwrap_or_default()
    }

    fn seconds(&self) -> f64 {
        self.now.as_secs_f64()
    }
}

fn multipath(policy: PathPolicy) -> QuicConfig {
    QuicConfig { multipath: true, policy, ..QuicConfig::default() }
}

fn wifi_and_cellular() -> [(u8, Link); 2] {
    [(1, Link::new(10, 20)), (2, Link::new(30, 20))]
}

#[test]
fn a_single_path_delivers_everything() {
    let mut world = TestNetwork::new(&QuicConfig::default(), &[(1, Link::new(10, 20))], 3_000_000);
    world.run(millis(10_000));
    assert_eq!((world.read, world.ended), (3_000_000, true));
    let status = world.client.status(world.connection).unwrap();
    assert!(status.established && !status.multipath && status.paths.len() == 1, "{status:?}");
}

#[test]
fn two_paths_are_opened_and_both_carry_data() {
    let mut world =
        TestNetwork::new(&multipath(PathPolicy::Aggregate), &wifi_and_cellular(), 8_000_000);
    world.run(millis(20_000));
    assert!(world.ended);
    let status = world.client.status(world.connection).unwrap();
    assert!(status.multipath);
    let sent: Vec<_> = status.paths.iter().map(|path| path.sent_bytes).collect();
    assert!(sent.len() == 2 && sent.iter().all(|bytes| *bytes > 1_000_000), "{sent:?}");
    assert!(world.seconds() < 8.0 * 8.0 / 40.0 / 0.8, "{}", world.seconds());
}

#[test]
fn every_congestion_control_moves_data_over_two_paths() {
    for (name, _) in crate::congestion::names() {
        let config =
            QuicConfig { congestion_control: name.to_owned(), ..multipath(PathPolicy::Aggregate) };
        let mut world = TestNetwork::new(&config, &wifi_and_cellular(), 4_000_000);
        world.run(millis(20_000));
        assert!(world.ended, "{name}: {} of 4000000 bytes", world.read);
    }
}

#[test]
fn a_backup_carries_nothing_while_the_primary_works() {
    let mut world =
        TestNetwork::new(&multipath(PathPolicy::Backup), &wifi_and_cellular(), 4_000_000);
    world.run(millis(20_000));
    let status = world.client.status(world.connection).unwrap();
    assert!(world.ended && status.paths[1].backup);
    assert!(status.paths[1].sent_bytes < 40_000, "{status:?}");
}

#[test]
fn a_path_that_goes_silent_is_given_up_and_comes_back() {
    for policy in [PathPolicy::Aggregate, PathPolicy::Backup, PathPolicy::Ios] {
        for dark in [1, 2] {
            let mut links = wifi_and_cellular();
            let link = links.iter_mut().find(|(last, _)| *last == dark).unwrap();
            link.1.outage = (Instant::ZERO + millis(1_000), Instant::ZERO + millis(5_000));
            let mut world = TestNetwork::new(&multipath(policy), &links, 30_000_000);
            world.run(millis(60_000));
            let about = format!("{policy:?}, {dark} dark: {} bytes", world.read);
            assert!(world.ended, "{about}");
            let status = world.client.status(world.connection).unwrap();
            let number = u32::from(dark) - 1;
            let ended = status.paths.iter().find(|path| path.number == number).unwrap();
            assert!(matches!(ended.state, PathState::Abandoned { .. }), "{about} {status:?}");
            let again = status.paths.iter().find(|path| {
                path.local.ip() == address(dark) && path.state == PathState::Established
            });
            assert!(again.is_some(), "{about} {:?}", status.paths);
            assert!(world.longest_gap() < millis(3_000), "{about}: {:?}", world.longest_gap());
        }
    }
}

#[test]
fn ios_uses_the_backup_before_the_primary_is_given_up() {
    let mut links = wifi_and_cellular();
    links[0].1.outage = (Instant::ZERO + millis(1_000), Instant::MAX);
    let mut world = TestNetwork::new(&multipath(PathPolicy::Ios), &links, 6_000_000);
    world.run(millis(30_000));
    assert!(world.ended);
    let of_the_first = |notice: &PathNotice| match notice {
        PathNotice::Switched { path: 0, backup: true, reason: why } => Some((None, Some(*why))),
        PathNotice::Abandoned { path: 0, reason: why } => Some((Some(*why), None)),
        PathNotice::SinglePath
        | PathNotice::Established { .. }
        | PathNotice::Abandoned { .. }
        | PathNotice::Switched { .. }
        | PathNotice::Migrated { .. } => None,
    };
    let seen: Vec<_> = world.notices[0].iter().filter_map(|(_, n)| of_the_first(n)).collect();
    assert_eq!(seen[0], (None, Some(SwitchReason::Timeout)), "{seen:?}");
    assert!(
        seen.iter()
            .any(|(why, _)| matches!(why, Some(AbandonReason::Silent(_) | AbandonReason::Peer)))
    );
}

#[test]
fn an_address_that_changes_does_not_end_a_single_path() {
    let mut world = TestNetwork::new(&QuicConfig::default(), &[(1, Link::new(10, 20))], 5_000_000);
    world.links.insert(address(11), Link::new(10, 20));
    world.run(millis(500));
    world.client.remove_address(world.now, address(1));
    world.client.set_address(world.now, LocalAddress { interface: 1, ..local(11) });
    world.run(millis(10_000));
    assert!(world.ended, "{} bytes", world.read);
    let new = SocketAddr::new(address(11), 49_152);
    assert_eq!(world.notices[0].last().unwrap().1, PathNotice::Migrated { local: new });
}

#[test]
fn a_removed_address_ends_its_path_at_once() {
    let mut world =
        TestNetwork::new(&multipath(PathPolicy::Backup), &wifi_and_cellular(), 6_000_000);
    world.run(millis(1_000));
    world.client.set_up(world.now, 1, false);
    let notice = PathNotice::Abandoned { path: 0, reason: AbandonReason::AddressGone };
    world.run(millis(20_000));
    assert!(world.ended && world.notices[0].iter().any(|(_, seen)| *seen == notice));
}

#[test]
fn a_peer_without_multipath_gives_a_single_path() {
    let mut world =
        TestNetwork::new(&multipath(PathPolicy::Aggregate), &wifi_and_cellular(), 500_000);
    world.server = QuicStack::new(2);
    world.server.set_address(Instant::ZERO, local(100));
    world.server.listen(PORT, QuicConfig::default()).unwrap();
    world.run(millis(10_000));
    assert!(world.ended && !world.client.status(world.connection).unwrap().multipath);
    assert_eq!(world.notices[0][0].1, PathNotice::SinglePath);
}

#[test]
fn a_version_negotiation_is_not_longer_than_its_trigger() {
    let mut server = QuicStack::new(2);
    server.set_address(Instant::ZERO, local(2));
    server.listen(PORT, QuicConfig::default()).unwrap();
    for length in [7, 8, 39, 1_199, 1_200] {
        // A long header of an unknown version, with empty connection identifiers.
        let mut asked = vec![0xc0, 0x1a, 0x2a, 0x3a, 0x5a, 0, 0];
        asked.resize(length, 0);
        let (here, there) = (SocketAddr::new(address(2), PORT), SocketAddr::new(address(1), 1));
        let (ecn, payload, segment_bytes) = (0, Bytes::from(asked), None);
        let datagram = Datagram { local: here, remote: there, ecn, payload, segment_bytes };
        server.handle_datagram(Instant::ZERO, &datagram);
        let answer = server.poll_transmit(Instant::ZERO);
        assert_eq!(answer.is_some(), length == 1_200, "{answer:?} to {length} bytes");
    }
}

#[test]
fn equal_seeds_give_datagrams_of_equal_lengths_at_equal_times() {
    let run = || {
        let mut links = wifi_and_cellular();
        links[0].1.outage = (Instant::ZERO + millis(600), Instant::ZERO + millis(2_500));
        let mut world = TestNetwork::new(&multipath(PathPolicy::Aggregate), &links, 8_000_000);
        world.run(millis(30_000));
        assert!(world.ended);
        world.lengths
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
        let mut world = TestNetwork::new(&multipath(PathPolicy::Aggregate), &wifi_and_cellular(), 300_000);
        world.run(millis(60));
        for (to_client, bytes, ecn) in garbage {
            let (here, there) = if to_client { (1, 100) } else { (100, 1) };
            let ports = if to_client { (49_152, PORT) } else { (PORT, 49_152) };
            let datagram = Datagram {
                local: SocketAddr::new(address(here), ports.0),
                remote: SocketAddr::new(address(there), ports.1),
                ecn,
                payload: bytes.into(),
                segment_bytes: None,
            };
            let host = if to_client { &mut world.client } else { &mut world.server };
            host.handle_datagram(world.now, &datagram);
        }
        world.run(millis(10_000));
        prop_assert!(world.ended);
    }

    #[test]
    fn a_damaged_datagram_never_panics(flips in proptest::collection::vec(any::<usize>(), 1..40)) {
        let mut world = TestNetwork::new(&multipath(PathPolicy::Aggregate), &wifi_and_cellular(), 300_000);
        for flip in flips {
            world.run(millis(3));
            let Some((key, (_, datagram))) = world.in_flight.iter().next() else { continue };
            let (key, mut bytes) = (*key, datagram.payload.to_vec());
            let at = flip % (bytes.len() * 8).max(1);
            if let Some(byte) = bytes.get_mut(at / 8) {
                *byte ^= 1 << (at % 8);
            }
            if let Some((_, datagram)) = world.in_flight.get_mut(&key) {
                datagram.payload = bytes.into();
            }
        }
        world.run(millis(10_000));
    }
}
