//! Unauthenticated client over QUIC.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use towpath_measure::live::{
    ClientMessage, ConnectionKind, FrameDecoder, Preamble, ServerMessage, TestPlan, TestToken,
    TransferSettings, frame,
};
use towpath_measure::scenario::Transport;
use towpath_quic::{
    ConnectionId, Datagram, LocalAddress, QuicConfig, QuicEvent, QuicStack, StreamId, Trust,
};

use crate::security::unauthenticated::ClientRoute;

/// Timeout, far longer than a handshake takes on a busy machine.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// QUIC connection with its socket.
pub(super) struct TlsClient {
    pub(super) socket: UdpSocket,
    host: QuicStack,
    id: ConnectionId,
    started: Instant,
    local: SocketAddr,
    server: SocketAddr,
    pub(super) connected: bool,
    pub(super) closed: bool,
    /// UDP payload received, in bytes.
    pub(super) received_bytes: u64,
}

impl TlsClient {
    /// Creates a connection without sending anything yet.
    pub(super) fn start(route: ClientRoute) -> Self {
        let socket = UdpSocket::bind((route.from, 0)).unwrap();
        socket.connect(route.server).unwrap();
        Self::over(socket, route.server)
    }

    /// Creates another connection on an existing socket.
    pub(super) fn start_from(socket: &UdpSocket, server: SocketAddr) -> Self {
        Self::over(socket.try_clone().unwrap(), server)
    }

    fn over(socket: UdpSocket, server: SocketAddr) -> Self {
        socket.set_nonblocking(true).unwrap();
        let local = socket.local_addr().unwrap();
        let mut host = QuicStack::new_random();
        let now = towpath_net::Instant::ZERO;
        let (address, interface) = (local.ip(), 1);
        let (up, subflow, backup) = (true, false, false);
        host.set_address(now, LocalAddress { address, interface, up, subflow, backup });
        let config = QuicConfig { trust: Trust::Any, segments: 1, ..QuicConfig::default() };
        let id = host.connect_from(now, local, server, config).unwrap();
        let (started, connected, closed, received_bytes) = (Instant::now(), false, false, 0);
        Self { socket, host, id, started, local, server, connected, closed, received_bytes }
    }

    /// Connects; `None` if the handshake failed or timed out.
    pub(super) fn connect(route: ClientRoute) -> Option<Self> {
        let mut visitor = Self::start(route);
        visitor.until(HANDSHAKE_TIMEOUT, |visitor| visitor.connected || visitor.closed);
        visitor.connected.then_some(visitor)
    }

    fn now(&self) -> towpath_net::Instant {
        towpath_net::Instant::ZERO + self.started.elapsed()
    }

    /// Sends all pending datagrams. Returns their bytes.
    pub(super) fn write_all(&mut self) -> u64 {
        let socket = self.socket.try_clone().unwrap();
        self.send_over(&socket)
    }

    pub(super) fn send_over(&mut self, socket: &UdpSocket) -> u64 {
        let now = self.now();
        let mut sent = 0;
        while let Some(datagram) = self.host.poll_transmit(now) {
            for bytes in datagram.split() {
                sent += socket.send(&bytes).map_or(0, |length| length as u64);
            }
        }
        sent
    }

    /// Handles received datagrams and sends pending ones.
    pub(super) fn turn(&mut self) {
        let mut room = vec![0; 1 << 16];
        while let Ok(length) = self.socket.recv(&mut room) {
            self.received_bytes += length as u64;
            let datagram = Datagram {
                local: self.local,
                remote: self.server,
                ecn: 0,
                payload: room[..length].to_vec().into(),
                segment_bytes: None,
            };
            let now = self.now();
            self.host.handle_datagram(now, &datagram);
        }
        let now = self.now();
        if self.host.poll_timeout().is_some_and(|at| at <= now) {
            self.host.handle_timeout(now);
        }
        while let Some(event) = self.host.poll_event() {
            self.connected |= matches!(event, QuicEvent::Connected(_));
            self.closed |= matches!(event, QuicEvent::Closed { .. });
        }
        self.write_all();
    }

    /// Runs until a condition holds, at most `most`. Returns true if it holds.
    pub(super) fn until(&mut self, most: Duration, is_so: impl Fn(&Self) -> bool) -> bool {
        let began = Instant::now();
        while !is_so(self) {
            if began.elapsed() > most {
                return false;
            }
            self.turn();
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    pub(super) fn open(&mut self) -> Option<StreamId> {
        self.host.open_stream(self.id)
    }

    /// Writes as much as fits. Returns the number of bytes.
    pub(super) fn write(&mut self, stream: StreamId, bytes: &[u8]) -> usize {
        let now = self.now();
        self.host.write(now, self.id, stream, &mut bytes.to_vec().into()).unwrap_or(0)
    }

    /// Returns the available bytes; `None` at the end of the stream or after an error.
    pub(super) fn read(&mut self, stream: StreamId) -> Option<Vec<u8>> {
        let now = self.now();
        match self.host.read(now, self.id, stream) {
            Ok(Some(bytes)) if bytes.is_empty() => None,
            Ok(Some(bytes)) => Some(bytes.to_vec()),
            Ok(None) => Some(Vec::new()),
            Err(_) => None,
        }
    }

    /// Closes the connection with a `CONNECTION_CLOSE` frame.
    pub(super) fn close(mut self) {
        let now = self.now();
        self.host.close(now, self.id);
        self.write_all();
    }
}

/// Test over QUIC: a control connection and a data connection.
pub(super) struct QuicTest {
    control: TlsClient,
    control_stream: StreamId,
    frames: FrameDecoder,
    pub(super) token: TestToken,
    pub(super) data: TlsClient,
    pub(super) stream: StreamId,
}

impl QuicTest {
    /// Starts a test of one flow. Its traffic runs on return.
    pub(super) fn begin(route: ClientRoute, keys: &str) -> Option<Self> {
        let (mut control, data) = (TlsClient::connect(route)?, TlsClient::connect(route)?);
        let words = control.open()?;
        let first =
            Preamble { kind: ConnectionKind::Control, flow: 0, stream: 0, token: TestToken::NONE };
        control.write(words, &first.to_bytes());
        let (frames, token, stream) = (FrameDecoder::default(), TestToken::NONE, words);
        let mut test = Self { control, control_stream: words, frames, token, data, stream };
        test.send(&ClientMessage::Hello { towpath: "0".to_owned() });
        test.recv_until(|word| matches!(word, ServerMessage::Welcome { .. }))?;
        let scenario = format!(
            "name = \"t\"\n[hosts.client]\n[hosts.server]\n[paths.eth0]\n\
             between = [\"client\", \"server\"]\n[[flows]]\nfrom = \"client\"\nto = \"server\"\n{keys}\n"
        );
        let (transport, settings) = (Transport::Quic, TransferSettings::default());
        test.send(&ClientMessage::Plan(Box::new(TestPlan { scenario, transport, settings })));
        let ServerMessage::Accepted { token } =
            test.recv_until(|word| !matches!(word, ServerMessage::Welcome { .. }))?
        else {
            return None;
        };
        test.token = token;
        test.stream = test.data.open()?;
        let place =
            Preamble { kind: ConnectionKind::Data, flow: 0, stream: 0, token: token.public_id() };
        test.data.write(test.stream, &place.to_bytes());
        test.data.turn();
        test.recv_until(|word| matches!(word, ServerMessage::Ready))?;
        test.send(&ClientMessage::Begin { at_ns: 0 });
        Some(test)
    }

    pub(super) fn send(&mut self, word: &ClientMessage) {
        self.control.write(self.control_stream, &frame::to_bytes(word).unwrap());
        self.control.turn();
    }

    /// Waits for the next message of a kind, while data and control continue.
    fn recv_until(&mut self, is_it: impl Fn(&ServerMessage) -> bool) -> Option<ServerMessage> {
        let began = Instant::now();
        while began.elapsed() < HANDSHAKE_TIMEOUT {
            if let Some(word) = self.frames.take().ok()? {
                if is_it(&word) {
                    return Some(word);
                }
                continue;
            }
            self.turn();
            self.frames.push(&self.control.read(self.control_stream)?);
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }

    pub(super) fn turn(&mut self) {
        self.control.turn();
        self.data.turn();
    }

    /// Returns the server's report as text; repeats the request until it is ready.
    pub(super) fn fetch(&mut self) -> Option<String> {
        let mut whole = String::new();
        loop {
            self.send(&ClientMessage::Fetch { offset: whole.len() as u64 });
            loop {
                let is_it = |word: &ServerMessage| {
                    matches!(word, ServerMessage::Part { .. } | ServerMessage::Pending)
                };
                let ServerMessage::Part { total, text, .. } = self.recv_until(is_it)? else {
                    break;
                };
                whole.push_str(&text);
                if whole.len() as u64 >= total {
                    return Some(whole);
                }
            }
        }
    }

    /// Moves data until the deadline or the end of the stream. Returns the bytes received or sent.
    pub(super) fn transfer(&mut self, down: bool, until: Instant) -> u64 {
        let mut moved = 0;
        while Instant::now() < until && !self.data.closed {
            let before = moved;
            if down {
                loop {
                    let Some(bytes) = self.data.read(self.stream) else { return moved };
                    moved += bytes.len() as u64;
                    if bytes.is_empty() {
                        break;
                    }
                }
            } else {
                moved += self.data.write(self.stream, &vec![0; 64 * 1024]) as u64;
            }
            self.turn();
            if moved == before {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        moved
    }
}
