//! Interoperability with another implementation, quinn, over a link of 10 ms, with a single path.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig,
    Event as QuinnEvent, ServerConfig, StreamId as QuinnStreamId,
};
use towpath_net::Instant;

use crate::time::TimeConverter;
use crate::{
    ConnectionId, Datagram, LocalAddress, QuicConfig, QuicEvent, QuicStack, StreamId, certificate,
};

const LINK_DELAY: Duration = Duration::from_millis(10);
const TRANSFER_BYTES: usize = 300_000;

fn own_address() -> SocketAddr {
    SocketAddr::new(Ipv4Addr::new(10, 0, 0, 1).into(), 4_433)
}

fn quinn_address() -> SocketAddr {
    SocketAddr::new(Ipv4Addr::new(10, 0, 0, 2).into(), 4_434)
}

/// Quinn's end of the connection.
struct QuinnEnd {
    clock: TimeConverter,
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    /// Data not yet written to the stream.
    unsent: Bytes,
    stream: Option<QuinnStreamId>,
    finished: bool,
    read_data: Vec<u8>,
    stream_ended: bool,
}

impl QuinnEnd {
    fn new(server: bool) -> Self {
        let tls = certificate::fixed_server_config().unwrap();
        let crypto = QuicServerConfig::try_from(tls).unwrap();
        let config = server.then(|| Arc::new(ServerConfig::with_crypto(Arc::new(crypto))));
        let endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), config, true, None);
        Self {
            clock: TimeConverter::new(),
            endpoint,
            connection: None,
            unsent: Bytes::from(vec![9; TRANSFER_BYTES]),
            stream: None,
            finished: false,
            read_data: Vec::new(),
            stream_ended: false,
        }
    }

    fn connect(&mut self, now: Instant) {
        let crypto =
            QuicClientConfig::try_from(certificate::fixed_client_config().unwrap()).unwrap();
        let config = ClientConfig::new(Arc::new(crypto));
        let now = self.clock.to_std(now);
        let name = certificate::SERVER_NAME;
        self.connection = Some(self.endpoint.connect(now, config, own_address(), name).unwrap());
    }

    fn receive(&mut self, now: Instant, payload: &Bytes) {
        let std_now = self.clock.to_std(now);
        let (data, mut buffer) = (BytesMut::from(&payload[..]), Vec::new());
        match self.endpoint.handle(std_now, own_address(), None, None, data, &mut buffer) {
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                self.connection.as_mut().unwrap().1.handle_event(event);
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                self.connection =
                    Some(self.endpoint.accept(incoming, std_now, &mut buffer, None).unwrap());
            }
            Some(DatagramEvent::Response(_)) | None => {}
        }
        self.process_events();
    }

    fn process_events(&mut self) {
        let Some((handle, connection)) = &mut self.connection else { return };
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(reply) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(reply);
            }
        }
        while let Some(event) = connection.poll() {
            if matches!(event, QuinnEvent::Connected) && connection.side().is_client() {
                self.stream = connection.streams().open(Dir::Bi);
            }
        }
        self.stream = self.stream.or_else(|| connection.streams().accept(Dir::Bi));
        let Some(stream) = self.stream else { return };
        while !self.unsent.is_empty() {
            let Ok(accepted_bytes) = connection.send_stream(stream).write(&self.unsent) else {
                break;
            };
            self.unsent = self.unsent.slice(accepted_bytes..);
        }
        if self.unsent.is_empty() && !self.finished {
            self.finished = true;
            connection.send_stream(stream).finish().unwrap();
        }
        let mut receiver = connection.recv_stream(stream);
        let Ok(mut chunks) = receiver.read(true) else { return };
        loop {
            match chunks.next(65_536) {
                Ok(Some(chunk)) => self.read_data.extend_from_slice(&chunk.bytes),
                Ok(None) => {
                    self.stream_ended = true;
                    break;
                }
                Err(_) => break,
            }
        }
        let _ = chunks.finalize();
    }

    fn transmit(&mut self, now: Instant) -> Option<Bytes> {
        let std_now = self.clock.to_std(now);
        let mut buffer = Vec::new();
        let (_, connection) = self.connection.as_mut()?;
        let _ = connection.poll_transmit(std_now, 1, &mut buffer)?;
        Some(buffer.into())
    }

    fn next_due(&mut self) -> Option<Instant> {
        let due = self.connection.as_mut()?.1.poll_timeout()?;
        Some(self.clock.to_virtual(due))
    }

    fn wake(&mut self, now: Instant) {
        let std_now = self.clock.to_std(now);
        if let Some((_, connection)) = &mut self.connection {
            connection.handle_timeout(std_now);
        }
        self.process_events();
    }
}

/// Towpath's end of the connection, which sends as much as it reads.
struct TowpathEnd {
    host: QuicStack,
    connection: Option<ConnectionId>,
    stream: Option<StreamId>,
    unsent: Bytes,
    finished: bool,
    read_data: Vec<u8>,
    stream_ended: bool,
}

impl TowpathEnd {
    fn process_events(&mut self, now: Instant) {
        while let Some(event) = self.host.poll_event() {
            match event {
                QuicEvent::Accepted { connection, .. } => self.connection = Some(connection),
                QuicEvent::Connected(connection) => self.stream = self.host.open_stream(connection),
                QuicEvent::StreamOpened(_, stream) => self.stream = Some(stream),
                QuicEvent::Readable(..)
                | QuicEvent::Writable(..)
                | QuicEvent::Finished(..)
                | QuicEvent::Closed { .. }
                | QuicEvent::Notice { .. } => {}
            }
        }
        let (Some(connection), Some(stream)) = (self.connection, self.stream) else { return };
        let _ = self.host.write(now, connection, stream, &mut self.unsent);
        if self.unsent.is_empty() && !self.finished {
            self.finished = true;
            self.host.finish(now, connection, stream).unwrap();
        }
        while let Ok(Some(data)) = self.host.read(now, connection, stream) {
            if data.is_empty() {
                self.stream_ended = true;
                break;
            }
            self.read_data.extend_from_slice(&data);
        }
    }
}

/// Runs a connection until both ends have read everything.
fn run_exchange(towpath_connects: bool) -> (TowpathEnd, QuinnEnd) {
    let mut quinn = QuinnEnd::new(towpath_connects);
    let mut host = QuicStack::new(1);
    let address = LocalAddress {
        address: own_address().ip(),
        interface: 0,
        up: true,
        subflow: true,
        backup: false,
    };
    host.set_address(Instant::ZERO, address);
    let config = QuicConfig { multipath: true, ..QuicConfig::default() };
    let mut connection = None;
    if towpath_connects {
        connection = Some(host.connect(Instant::ZERO, None, quinn_address(), config).unwrap());
    } else {
        host.listen(own_address().port(), config).unwrap();
        quinn.connect(Instant::ZERO);
    }
    let unsent = Bytes::from(vec![7; TRANSFER_BYTES]);
    let (stream, finished, read_data, stream_ended) = (None, false, Vec::new(), false);
    let mut towpath =
        TowpathEnd { host, connection, stream, unsent, finished, read_data, stream_ended };
    let mut in_flight: BTreeMap<(Instant, u64), (bool, Datagram)> = BTreeMap::new();
    let (mut now, mut datagrams) = (Instant::ZERO, 0);
    while !(towpath.stream_ended && quinn.stream_ended) {
        towpath.process_events(now);
        while let Some(datagram) = towpath.host.poll_transmit(now) {
            for payload in datagram.split().collect::<Vec<_>>() {
                datagrams += 1;
                let single = Datagram { payload, segment_bytes: None, ..datagram };
                in_flight.insert((now + LINK_DELAY, datagrams), (false, single));
            }
            towpath.process_events(now);
        }
        while let Some(payload) = quinn.transmit(now) {
            datagrams += 1;
            let port = if towpath_connects { 49_152 } else { own_address().port() };
            let local = SocketAddr::new(own_address().ip(), port);
            let (remote, ecn, segment_bytes) = (quinn_address(), 0, None);
            let single = Datagram { local, remote, ecn, payload, segment_bytes };
            in_flight.insert((now + LINK_DELAY, datagrams), (true, single));
        }
        let arrival = in_flight.keys().next().map(|(time, _)| *time);
        let timers = [towpath.host.poll_timeout(), quinn.next_due(), arrival];
        now = timers.into_iter().flatten().min().unwrap().max(now);
        assert!(now < Instant::ZERO + Duration::from_secs(20), "{} bytes", towpath.read_data.len());
        while let Some(entry) = in_flight.first_entry().filter(|entry| entry.key().0 <= now) {
            let (to_towpath, datagram) = entry.remove();
            if to_towpath {
                towpath.host.handle_datagram(now, &datagram);
            } else {
                quinn.receive(now, &datagram.payload);
            }
        }
        towpath.host.handle_timeout(now);
        quinn.wake(now);
    }
    (towpath, quinn)
}

#[test]
fn quinn_interoperates_as_client_and_as_server() {
    for towpath_connects in [true, false] {
        let (mut towpath, quinn) = run_exchange(towpath_connects);
        let (expected, sent) = (vec![9; TRANSFER_BYTES], vec![7; TRANSFER_BYTES]);
        assert!(
            towpath.read_data == expected && quinn.read_data == sent,
            "we connect: {towpath_connects}"
        );
        let status = towpath.host.status(towpath.connection.unwrap()).unwrap();
        assert!(status.established && !status.multipath, "{status:?}");
    }
}
