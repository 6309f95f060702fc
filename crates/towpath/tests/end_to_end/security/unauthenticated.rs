//! Hostile client that speaks the protocol of the live world.

#![expect(clippy::wildcard_enum_match_arm, reason = "every other answer is the same mistake")]

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use towpath_live::protocol::{
    ClientMessage, ConnectionKind, FrameDecoder, Preamble, ServerMessage, TestPlan,
    TransferSettings, frame,
};
use towpath_run::token::TestToken;
use towpath_scenario::Transport;

/// Timeout for a reply, far longer than a server takes on a busy machine.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

/// Source address of a client, and the server it connects to.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientRoute {
    pub(super) source: IpAddr,
    pub(super) server: SocketAddr,
}

impl ClientRoute {
    /// Returns the route from the `n`-th of many loopback addresses.
    pub(super) fn number(n: u16, port: &str) -> Self {
        let [high, low] = n.to_be_bytes();
        let server = ([127, 0, 0, 1], port.parse().unwrap()).into();
        Self { source: [127, 1, high, low].into(), server }
    }

    /// Opens a connection and sends its preamble.
    pub(super) fn connect(
        self,
        kind: ConnectionKind,
        token: TestToken,
        (flow, stream): (u16, u16),
    ) -> io::Result<TcpStream> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((self.source, 0)).into())?;
        socket.connect_timeout(&self.server.into(), REPLY_TIMEOUT)?;
        let mut socket = TcpStream::from(socket);
        socket.set_read_timeout(Some(REPLY_TIMEOUT))?;
        socket.set_write_timeout(Some(REPLY_TIMEOUT))?;
        socket.write_all(&Preamble { kind, flow, stream, token }.to_bytes())?;
        Ok(socket)
    }
}

/// Client with one control connection.
#[derive(Debug)]
pub(super) struct RawClient {
    pub(super) route: ClientRoute,
    control: TcpStream,
    frames: FrameDecoder,
    pub(super) token: TestToken,
}

impl RawClient {
    /// Connects and waits for the welcome.
    pub(super) fn connect(route: ClientRoute) -> io::Result<Self> {
        let control = route.connect(ConnectionKind::Control, TestToken::NONE, (0, 0))?;
        let (frames, token) = (FrameDecoder::default(), TestToken::NONE);
        let mut client = Self { route, control, frames, token };
        client.send(&ClientMessage::Hello { towpath: "0".to_owned() })?;
        match client.recv()? {
            ServerMessage::Welcome { .. } => Ok(client),
            other => Err(io::Error::other(format!("no welcome: {other:?}"))),
        }
    }

    pub(super) fn send(&mut self, message: &ClientMessage) -> io::Result<()> {
        self.control.write_all(&frame::to_bytes(message).unwrap())
    }

    pub(super) fn recv(&mut self) -> io::Result<ServerMessage> {
        let mut buffer = [0; 16 * 1024];
        loop {
            if let Some(message) = self.frames.take().map_err(io::Error::other)? {
                return Ok(message);
            }
            match self.control.read(&mut buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => self.frames.push(&buffer[..length]),
            }
        }
    }

    /// Requests a test. Returns the reason of a refusal; `None` if it was accepted.
    pub(super) fn plan(
        &mut self,
        flows: &[&str],
        settings: TransferSettings,
    ) -> io::Result<Option<String>> {
        let flow = |text: &&str| format!("[[flows]]\nfrom = \"client\"\nto = \"server\"\n{text}\n");
        let flows: String = flows.iter().map(flow).collect();
        let scenario = format!(
            "name = \"t\"\n[hosts.client]\n[hosts.server]\n[paths.eth0]\n\
             between = [\"client\", \"server\"]\n{flows}"
        );
        let plan = TestPlan { scenario, transport: Transport::Tcp, settings };
        self.send(&ClientMessage::Plan(Box::new(plan)))?;
        match self.recv()? {
            ServerMessage::Accepted { token } => {
                self.token = token;
                Ok(None)
            }
            ServerMessage::Refused { reason, .. } => Ok(Some(reason)),
            other => Err(io::Error::other(format!("neither accepted nor refused: {other:?}"))),
        }
    }

    /// Opens one of the test's data connections.
    pub(super) fn data(&self, flow: u16, stream: u16) -> io::Result<TcpStream> {
        self.route.connect(ConnectionKind::Data, self.token.public_id(), (flow, stream))
    }

    /// Waits until the server has all connections, and starts the traffic.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        while !matches!(self.recv()?, ServerMessage::Ready) {}
        self.send(&ClientMessage::Begin { at_ns: 0 })
    }

    /// Returns the server's report as text; repeats the request until it is ready.
    pub(super) fn fetch(&mut self) -> io::Result<String> {
        let mut report = String::new();
        loop {
            self.send(&ClientMessage::Fetch { offset: report.len() as u64 })?;
            loop {
                match self.recv()? {
                    ServerMessage::Part { total, text, .. } => {
                        report.push_str(&text);
                        if report.len() as u64 >= total {
                            return Ok(report);
                        }
                    }
                    ServerMessage::Pending => break,
                    ServerMessage::Ready | ServerMessage::Clock { .. } => {}
                    other => return Err(io::Error::other(format!("no part: {other:?}"))),
                }
            }
        }
    }
}
