//! Unauthenticated client over QUIC.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use towpath_live::protocol::{
    ClientMessage, ConnectionKind, FrameDecoder, Preamble, ServerMessage, TestPlan,
    TransferSettings, frame,
};
use towpath_quic::{
    ConnectionId, Datagram, LocalAddress, QuicConfig, QuicEvent, QuicStack, StreamId, Trust,
};
use towpath_run::token::TestToken;
use towpath_scenario::Transport;

use crate::security::unauthenticated::ClientRoute;

/// Timeout, far longer than a handshake takes on a busy machine.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// QUIC connection with its socket.
pub(super) struct TlsClient {
    pub(super) socket: UdpSocket,
    stack: QuicStack,
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
        let socket = UdpSocket::bind((route.source, 0)).unwrap();
        socket.connect(route.server).unwrap();
        Self::new_on_socket(socket, route.server)
    }

    /// Creates another connection on an existing socket.
    pub(super) fn start_from(socket: &UdpSocket, server: SocketAddr) -> Self {
        Self::new_on_socket(socket.try_clone().unwrap(), server)
    }

    fn new_on_socket(socket: UdpSocket, server: SocketAddr) -> Self {
        socket.set_nonblocking(true).unwrap();
        let local = socket.local_addr().unwrap();
        let mut stack = QuicStack::new_random();
        let now = towpath_net::Instant::ZERO;
        let (address, interface) = (local.ip(), 1);
        let (up, subflow, backup) = (true, false, false);
        stack.set_address(now, LocalAddress { address, interface, up, subflow, backup });
        let config = QuicConfig { trust: Trust::Any, segments: 1, ..QuicConfig::default() };
        let id = stack.connect_from(now, local, server, config).unwrap();
        let (started, connected, closed, received_bytes) = (Instant::now(), false, false, 0);
        Self { socket, stack, id, started, local, server, connected, closed, received_bytes }
    }

    /// Connects; `None` if the handshake failed or timed out.
    pub(super) fn connect(route: ClientRoute) -> Option<Self> {
        let mut client = Self::start(route);
        client.run_until(HANDSHAKE_TIMEOUT, |client| client.connected || client.closed);
        client.connected.then_some(client)
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
        let mut sent_bytes = 0;
        while let Some(datagram) = self.stack.poll_transmit(now) {
            for bytes in datagram.split() {
                sent_bytes += socket.send(&bytes).map_or(0, |length| length as u64);
            }
        }
        sent_bytes
    }

    /// Handles received datagrams and sends pending ones.
    pub(super) fn poll(&mut self) {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(length) = self.socket.recv(&mut buffer) {
            self.received_bytes += length as u64;
            let datagram = Datagram {
                local: self.local,
                remote: self.server,
                ecn: 0,
                payload: buffer[..length].to_vec().into(),
                segment_bytes: None,
            };
            let now = self.now();
            self.stack.handle_datagram(now, &datagram);
        }
        let now = self.now();
        if self.stack.poll_timeout().is_some_and(|at| at <= now) {
            self.stack.handle_timeout(now);
        }
        while let Some(event) = self.stack.poll_event() {
            self.connected |= matches!(event, QuicEvent::Connected(_));
            self.closed |= matches!(event, QuicEvent::Closed { .. });
        }
        self.write_all();
    }

    /// Runs until a condition holds, at most `most`. Returns true if it holds.
    pub(super) fn run_until(
        &mut self,
        timeout: Duration,
        condition: impl Fn(&Self) -> bool,
    ) -> bool {
        let start = Instant::now();
        while !condition(self) {
            if start.elapsed() > timeout {
                return false;
            }
            self.poll();
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    pub(super) fn open(&mut self) -> Option<StreamId> {
        self.stack.open_stream(self.id)
    }

    /// Writes as much as fits. Returns the number of bytes.
    pub(super) fn write(&mut self, stream: StreamId, bytes: &[u8]) -> usize {
        let now = self.now();
        self.stack.write(now, self.id, stream, &mut bytes.to_vec().into()).unwrap_or(0)
    }

    /// Returns the available bytes; `None` at the end of the stream or after an error.
    pub(super) fn read(&mut self, stream: StreamId) -> Option<Vec<u8>> {
        let now = self.now();
        match self.stack.read(now, self.id, stream) {
            Ok(Some(bytes)) if bytes.is_empty() => None,
            Ok(Some(bytes)) => Some(bytes.to_vec()),
            Ok(None) => Some(Vec::new()),
            Err(_) => None,
        }
    }

    /// Closes the connection with a `CONNECTION_CLOSE` frame.
    pub(super) fn close(mut self) {
        let now = self.now();
        self.stack.close(now, self.id);
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
        let control_stream = control.open()?;
        let preamble =
            Preamble { kind: ConnectionKind::Control, flow: 0, stream: 0, token: TestToken::NONE };
        control.write(control_stream, &preamble.to_bytes());
        let (frames, token, stream) = (FrameDecoder::default(), TestToken::NONE, control_stream);
        let mut test = Self { control, control_stream, frames, token, data, stream };
        test.send(&ClientMessage::Hello { towpath: "0".to_owned() });
        test.recv_until(|message| matches!(message, ServerMessage::Welcome { .. }))?;
        let scenario = format!(
            "name = \"t\"\n[hosts.client]\n[hosts.server]\n[paths.eth0]\n\
             between = [\"client\", \"server\"]\n[[flows]]\nfrom = \"client\"\nto = \"server\"\n{keys}\n"
        );
        let (transport, settings) = (Transport::Quic, TransferSettings::default());
        test.send(&ClientMessage::Plan(Box::new(TestPlan { scenario, transport, settings })));
        let ServerMessage::Accepted { token } =
            test.recv_until(|message| !matches!(message, ServerMessage::Welcome { .. }))?
        else {
            return None;
        };
        test.token = token;
        test.stream = test.data.open()?;
        let data_preamble =
            Preamble { kind: ConnectionKind::Data, flow: 0, stream: 0, token: token.public_id() };
        test.data.write(test.stream, &data_preamble.to_bytes());
        test.data.poll();
        test.recv_until(|message| matches!(message, ServerMessage::Ready))?;
        test.send(&ClientMessage::Begin { at_ns: 0 });
        Some(test)
    }

    pub(super) fn send(&mut self, message: &ClientMessage) {
        self.control.write(self.control_stream, &frame::to_bytes(message).unwrap());
        self.control.poll();
    }

    /// Waits for the next message of a kind, while data and control continue.
    fn recv_until(
        &mut self,
        is_expected: impl Fn(&ServerMessage) -> bool,
    ) -> Option<ServerMessage> {
        let start = Instant::now();
        while start.elapsed() < HANDSHAKE_TIMEOUT {
            if let Some(message) = self.frames.take().ok()? {
                if is_expected(&message) {
                    return Some(message);
                }
                continue;
            }
            self.poll();
            self.frames.push(&self.control.read(self.control_stream)?);
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }

    pub(super) fn poll(&mut self) {
        self.control.poll();
        self.data.poll();
    }

    /// Returns the server's report as text; repeats the request until it is ready.
    pub(super) fn fetch(&mut self) -> Option<String> {
        let mut report = String::new();
        loop {
            self.send(&ClientMessage::Fetch { offset: report.len() as u64 });
            loop {
                let is_reply = |message: &ServerMessage| {
                    matches!(message, ServerMessage::Part { .. } | ServerMessage::Pending)
                };
                let ServerMessage::Part { total, text, .. } = self.recv_until(is_reply)? else {
                    break;
                };
                report.push_str(&text);
                if report.len() as u64 >= total {
                    return Some(report);
                }
            }
        }
    }

    /// Moves data until the deadline or the end of the stream. Returns the bytes received or sent.
    pub(super) fn transfer(&mut self, down: bool, deadline: Instant) -> u64 {
        let mut moved_bytes = 0;
        while Instant::now() < deadline && !self.data.closed {
            let before = moved_bytes;
            if down {
                loop {
                    let Some(bytes) = self.data.read(self.stream) else { return moved_bytes };
                    moved_bytes += bytes.len() as u64;
                    if bytes.is_empty() {
                        break;
                    }
                }
            } else {
                moved_bytes += self.data.write(self.stream, &vec![0; 64 * 1024]) as u64;
            }
            self.poll();
            if moved_bytes == before {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        moved_bytes
    }
}
