//! Unauthenticated clients against the promises of SECURITY.md (S1 to S9), with message orders and
//! amounts that no honest client uses.

mod client;
mod crowd;
mod limits;
mod memory;
mod orders;
mod permits;
mod secrets;
mod silence;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use towpath_live::protocol::{
    ClientMessage, ConnectionKind, FrameDecoder, Preamble, ServerMessage, TransferSettings, frame,
};
use towpath_run::token::TestToken;

use super::fixture::AttackedServer;
use super::unauthenticated::{ClientRoute, RawClient};
use crate::program::{TestDir, wait_for};

/// Flow of one minute without a rate limit.
const ENDLESS_FLOW: &str = "pattern = \"iperf\"\nduration = \"60 s\"";
/// Linux's number of Multipath TCP, `IPPROTO_MPTCP`.
const IPPROTO_MPTCP: i32 = 262;

/// Opens a connection without sending anything.
fn dial(route: ClientRoute, multipath: bool) -> io::Result<TcpStream> {
    let protocol = multipath.then(|| Protocol::from(IPPROTO_MPTCP));
    let socket = Socket::new(Domain::IPV4, Type::STREAM, protocol)?;
    socket.bind(&SocketAddr::from((route.source, 0)).into())?;
    socket.connect_timeout(&route.server.into(), Duration::from_secs(20))?;
    let socket = TcpStream::from(socket);
    socket.set_read_timeout(Some(Duration::from_secs(20)))?;
    socket.set_write_timeout(Some(Duration::from_secs(20)))?;
    Ok(socket)
}

/// Closes a connection by a reset.
fn reset(socket: &TcpStream) {
    let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO)); // best effort
}

fn preamble(kind: ConnectionKind, token: TestToken) -> Preamble {
    Preamble { kind, flow: 0, stream: 0, token }
}

fn hello() -> ClientMessage {
    ClientMessage::Hello { towpath: "0".to_owned() }
}

/// Control client over plain TCP, for any test token.
struct ControlClient {
    stream: TcpStream,
    frames: FrameDecoder,
}

impl ControlClient {
    fn open(route: ClientRoute, token: TestToken) -> io::Result<Self> {
        let stream = route.connect(ConnectionKind::Control, token, (0, 0))?;
        Ok(Self { stream, frames: FrameDecoder::default() })
    }

    fn send(&mut self, message: &ClientMessage) -> io::Result<()> {
        self.stream.write_all(&frame::to_bytes(message).unwrap())
    }

    fn recv(&mut self) -> io::Result<ServerMessage> {
        let mut buffer = [0; 16 * 1024];
        loop {
            if let Some(message) = self.frames.take().map_err(io::Error::other)? {
                return Ok(message);
            }
            match self.stream.read(&mut buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => self.frames.push(&buffer[..length]),
            }
        }
    }
}

/// Receives until the deadline or until the peer has closed, and counts the bytes.
fn receive_until(mut socket: &TcpStream, deadline: Instant, received_bytes: &AtomicU64) {
    let mut buffer = vec![0; 1 << 16];
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    while Instant::now() < deadline {
        match socket.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => _ = received_bytes.fetch_add(length as u64, Ordering::Relaxed),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
}

/// Sends until the deadline or until the peer has closed, and counts the bytes.
fn send_until(mut socket: &TcpStream, deadline: Instant, sent_bytes: &AtomicU64) {
    socket.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    while Instant::now() < deadline {
        match socket.write(&[0; 16 * 1024]) {
            Ok(0) => break,
            Ok(length) => _ = sent_bytes.fetch_add(length as u64, Ordering::Relaxed),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
}

/// Receives on many connections at once until the deadline. Returns the number of bytes.
fn receive_all_until<'a>(
    sockets: impl IntoIterator<Item = &'a TcpStream>,
    deadline: Instant,
) -> u64 {
    let received_bytes = AtomicU64::new(0);
    thread::scope(|scope| {
        for socket in sockets {
            scope.spawn(|| receive_until(socket, deadline, &received_bytes));
        }
    });
    received_bytes.into_inner()
}
/// Sends on many connections at once until the deadline. Returns the number of bytes.
fn send_all_until<'a>(sockets: impl IntoIterator<Item = &'a TcpStream>, deadline: Instant) -> u64 {
    let sent_bytes = AtomicU64::new(0);
    thread::scope(|scope| {
        for socket in sockets {
            scope.spawn(|| send_until(socket, deadline, &sent_bytes));
        }
    });
    sent_bytes.into_inner()
}

/// Waits until the peer has closed. Returns the time that took; `None` if it did not close.
fn wait_for_close(mut socket: &TcpStream, within: Duration) -> Option<Duration> {
    let start = Instant::now();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    while start.elapsed() < within {
        match socket.read(&mut [0; 4_096]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(0) | Err(_) => return Some(start.elapsed()),
            Ok(_) => {}
        }
    }
    None
}

/// Starts a test with all its connections. Its traffic runs on return.
fn start_test(
    route: ClientRoute,
    flows: &[&str],
    streams: u16,
    settings: TransferSettings,
) -> io::Result<(RawClient, Vec<TcpStream>)> {
    let mut client = RawClient::connect(route)?;
    if let Some(reason) = client.plan(flows, settings)? {
        return Err(io::Error::other(reason));
    }
    let slots =
        (0..flows.len() as u16).flat_map(|flow| (0..streams).map(move |stream| (flow, stream)));
    let data: io::Result<Vec<_>> = slots.map(|(flow, stream)| client.data(flow, stream)).collect();
    let data = data?;
    client.begin()?;
    Ok((client, data))
}

/// Checks that the server has not panicked and serves a new client.
fn assert_healthy(site: &AttackedServer) {
    site.assert_serves(2);
    let said = site.running.stderr();
    assert!(!said.contains("panicked"), "{said}");
}

/// Starts a server that listens on all addresses, as without `-B`.
fn start_server_on_all_addresses(options: &[&str]) -> AttackedServer {
    let folder = TestDir::new();
    let running = folder.start(&mut folder.towpath(&[&["server", "-p", "0"], options].concat()));
    let port = wait_for("the server", || {
        let said = running.stderr();
        let (_, rest) = said.split_once("listening on ")?;
        let (address, _) = rest.split_once(' ')?;
        Some(address.rsplit_once(':')?.1.to_owned())
    });
    AttackedServer { folder, running, port }
}
