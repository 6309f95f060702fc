//! Interoperability with another implementation, quinn, over a link of 10 ms, with a single path.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig,
    Event as Theirs, ServerConfig, StreamId as TheirId,
};
use towpath_net::Instant;

use crate::time::TimeConverter;
use crate::{
    ConnectionId, Datagram, LocalAddress, QuicConfig, QuicEvent, QuicStack, StreamId, certificate,
};

const DELAY: Duration = Duration::from_millis(10);
const BYTES: usize = 300_000;

fn ours() -> SocketAddr {
    SocketAddr::new(Ipv4Addr::new(10, 0, 0, 1).into(), 4_433)
}

fn theirs() -> SocketAddr {
    SocketAddr::new(Ipv4Addr::new(10, 0, 0, 2).into(), 4_434)
}

/// One connection of the other implementation, which echoes or sends.
struct Peer {
    clock: TimeConverter,
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    /// Data yet to be sent on its stream, once the stream is known.
    out: Bytes,
    stream: Option<TheirId>,
    finished: bool,
    read: Vec<u8>,
    ended: bool,
}

impl Peer {
    fn new(server: bool) -> Self {
        let tls = certificate::server_tls().unwrap();
        let crypto = QuicServerConfig::try_from(tls).unwrap();
        let config = server.then(|| Arc::new(ServerConfig::with_crypto(Arc::new(crypto))));
        let endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), config, true, None);
        Self {
            clock: TimeConverter::new(),
            endpoint,
            connection: None,
            out: Bytes::from(vec![9; BYTES]),
            stream: None,
            finished: false,
            read: Vec::new(),
            ended: false,
        }
    }

    fn connect(&mut self, now: Instant) {
        let crypto = QuicClientConfig::try_from(certificate::client_tls().unwrap()).unwrap();
        let config = ClientConfig::new(Arc::new(crypto));
        let now = self.clock.to_std(now);
        let name = certificate::SERVER_NAME;
        self.connection = Some(self.endpoint.connect(now, config, ours(), name).unwrap());
    }

    fn receive(&mut self, now: Instant, payload: &Bytes) {
        let at = self.clock.to_std(now);
        let (data, mut buffer) = (BytesMut::from(&payload[..]), Vec::new());
        match self.endpoint.handle(at, ours(), None, None, data, &mut buffer) {
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                self.connection.as_mut().unwrap().1.handle_event(event);
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                self.connection =
                    Some(self.endpoint.accept(incoming, at, &mut buffer, None).unwrap());
            }
            Some(DatagramEvent::Response(_)) | None => {}
        }
        self.work();
    }

    fn work(&mut self) {
        let Some((handle, connection)) = &mut self.connection else { return };
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(answer) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(answer);
            }
        }
        while let Some(event) = connection.poll() {
            if matches!(event, Theirs::Connected) && connection.side().is_client() {
                self.stream = connection.streams().open(Dir::Bi);
            }
        }
        self.stream = self.stream.or_else(|| connection.streams().accept(Dir::Bi));
        let Some(stream) = self.stream else { return };
        while !self.out.is_empty() {
            let Ok(taken) = connection.send_stream(stream).write(&self.out) else { break };
            self.out = self.out.slice(taken..);
        }
        if self.out.is_empty() && !self.finished {
            self.finished = true;
            connection.send_stream(stream).finish().unwrap();
        }
        let mut receiver = connection.recv_stream(stream);
        let Ok(mut chunks) = receiver.read(true) else { return };
        loop {
            match chunks.next(65_536) {
                Ok(Some(chunk)) => self.read.extend_from_slice(&chunk.bytes),
                Ok(None) => {
                    self.ended = true;
                    break;
                }
                Err(_) => break,
            }
        }
        let _ = chunks.finalize();
    }

    fn transmit(&mut self, now: Instant) -> Option<Bytes> {
        let at = self.clock.to_std(now);
        let mut buffer = Vec::new();
        let (_, connection) = self.connection.as_mut()?;
        let _ = connection.poll_transmit(at, 1, &mut buffer)?;
        Some(buffer.into())
    }

    fn due(&mut self) -> Option<Instant> {
        let at = self.connection.as_mut()?.1.poll_timeout()?;
        Some(self.clock.to_virtual(at))
    }

    fn wake(&mut self, now: Instant) {
        let at = self.clock.to_std(now);
        if let Some((_, connection)) = &mut self.connection {
            connection.handle_timeout(at);
        }
        self.work();
    }
}

/// Our end of the exchange, which sends as much as it reads.
struct Own {
    host: QuicStack,
    connection: Option<ConnectionId>,
    stream: Option<StreamId>,
    out: Bytes,
    finished: bool,
    read: Vec<u8>,
    ended: bool,
}

impl Own {
    fn work(&mut self, now: Instant) {
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
        let _ = self.host.write(now, connection, stream, &mut self.out);
        if self.out.is_empty() && !self.finished {
            self.finished = true;
            self.host.finish(now, connection, stream).unwrap();
        }
        while let Ok(Some(data)) = self.host.read(now, connection, stream) {
            if data.is_empty() {
                self.ended = true;
                break;
            }
            self.read.extend_from_slice(&data);
        }
    }
}

/// Runs until both have read everything.
fn exchange(we_connect: bool) -> (Own, Peer) {
    let mut peer = Peer::new(we_connect);
    let mut host = QuicStack::new(1);
    let address =
        LocalAddress { address: ours().ip(), interface: 0, up: true, subflow: true, backup: false };
    host.set_address(Instant::ZERO, address);
    let config = QuicConfig { multipath: true, ..QuicConfig::default() };
    let mut connection = None;
    if we_connect {
        connection = Some(host.connect(Instant::ZERO, None, theirs(), config).unwrap());
    } else {
        host.listen(ours().port(), config).unwrap();
        peer.connect(Instant::ZERO);
    }
    let out = Bytes::from(vec![7; BYTES]);
    let (stream, finished, read, ended) = (None, false, Vec::new(), false);
    let mut own = Own { host, connection, stream, out, finished, read, ended };
    let mut in_flight: BTreeMap<(Instant, u64), (bool, Datagram)> = BTreeMap::new();
    let (mut now, mut count) = (Instant::ZERO, 0);
    while !(own.ended && peer.ended) {
        own.work(now);
        while let Some(datagram) = own.host.poll_transmit(now) {
            for payload in datagram.split().collect::<Vec<_>>() {
                count += 1;
                let one = Datagram { payload, segment_bytes: None, ..datagram };
                in_flight.insert((now + DELAY, count), (false, one));
            }
            own.work(now);
        }
        while let Some(payload) = peer.transmit(now) {
            count += 1;
            let port = if we_connect { 49_152 } else { ours().port() };
            let local = SocketAddr::new(ours().ip(), port);
            let (remote, ecn, segment_bytes) = (theirs(), 0, None);
            let one = Datagram { local, remote, ecn, payload, segment_bytes };
            in_flight.insert((now + DELAY, count), (true, one));
        }
        let arrival = in_flight.keys().next().map(|(at, _)| *at);
        let timers = [own.host.poll_timeout(), peer.due(), arrival];
        now = timers.into_iter().flatten().min().unwrap().max(now);
        assert!(now < Instant::ZERO + Duration::from_secs(20), "{} bytes", own.read.len());
        while let Some(entry) = in_flight.first_entry().filter(|entry| entry.key().0 <= now) {
            let (to_us, datagram) = entry.remove();
            if to_us {
                own.host.handle_datagram(now, &datagram);
            } else {
                peer.receive(now, &datagram.payload);
            }
        }
        own.host.handle_timeout(now);
        peer.wake(now);
    }
    (own, peer)
}

#[test]
fn both_ends_of_a_connection_can_be_another_implementation_s() {
    for we_connect in [true, false] {
        let (mut own, peer) = exchange(we_connect);
        let (expected, sent) = (vec![9; BYTES], vec![7; BYTES]);
        assert!(own.read == expected && peer.read == sent, "we connect: {we_connect}");
        let status = own.host.status(own.connection.unwrap()).unwrap();
        assert!(status.established && !status.multipath, "{status:?}");
    }
}
