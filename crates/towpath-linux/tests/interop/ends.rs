//! The two ends of a case: sockets of a kernel, or connections of our own stack.

use std::io::Read;
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sha2::{Digest, Sha256};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use towpath_linux::LabNetwork;
use towpath_linux::stack::{ConnectionHandler as Application, StackHandle};
use towpath_measure::scenario::{Family, Transport};
use towpath_mptcp::stack::{ConnectionError, ConnectionId, ConnectionStatus, Stack, SubflowStatus};
use towpath_net::Instant as Time;

use crate::case::{BYTES, Case, PORT};
use crate::joins::Joins;

/// Bytes per write call.
const CHUNK_BYTES: usize = 128 * 1024;
/// Timeout of one system call.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Data that one end sends, with the digest that the other must compute.
#[derive(Debug, Clone)]
pub(crate) struct Expected {
    pub(crate) data: Bytes,
    pub(crate) digest: [u8; 32],
}

impl Expected {
    /// Makes the same data for every case with this seed.
    pub(crate) fn new(seed: u64) -> Self {
        static MADE: OnceLock<[Expected; 2]> = OnceLock::new();
        let [first, second] = MADE.get_or_init(|| [1, 2].map(Self::make));
        if seed == 1 { first.clone() } else { second.clone() }
    }

    fn make(seed: u64) -> Self {
        let mut state = seed;
        let mut data = Vec::with_capacity(BYTES + 8);
        while data.len() < BYTES {
            // xorshift64*: no part of the data repeats.
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            data.extend(state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_be_bytes());
        }
        data.truncate(BYTES);
        let digest = Sha256::digest(&data).into();
        Self { data: data.into(), digest }
    }
}

/// Result of an end.
#[derive(Debug, Clone)]
pub(crate) struct EndpointOutput {
    pub(crate) digest: [u8; 32],
    /// Reason for not being Multipath TCP to the end; a kernel's end shows that in its counters.
    pub(crate) plain: Option<String>,
    /// Number of subflows that carried data to their end, if this end knows it.
    pub(crate) paths: Option<usize>,
}

/// An end that is running.
#[derive(Debug)]
pub(crate) struct InteropEnd {
    result: mpsc::Receiver<Result<EndpointOutput, String>>,
    /// Our own stack, queried for its state when a transfer does not end.
    own: Option<Arc<StackHandle>>,
    _thread: Option<JoinHandle<()>>,
}

impl InteropEnd {
    /// Starts the listening end. Neither end finishes before `joins` additional subflows exist.
    pub(crate) fn listen(
        case: &Case,
        world: &LabNetwork,
        sends: &Expected,
        joins: usize,
    ) -> Result<Self, String> {
        let (done, result) = mpsc::channel();
        if let Some(host) = world.stack(1) {
            let config = world.connection_config(1, Transport::Mptcp);
            let config = config.map_err(|error| error.to_string())?;
            let data = sends.data.clone();
            let paths = 1 + joins;
            let listening = host.call(move |turn| {
                let listener = turn.stack.listen(PORT, config)?;
                turn.on_accept(listener, move |_| {
                    let transfer = Transfer::new(data.clone(), true, false, done.clone());
                    Some(Box::new(transfer.with_last(paths)) as Box<_>)
                });
                Ok::<_, towpath_mptcp::stack::ConfigError>(())
            });
            listening.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
            return Ok(Self { result, own: Some(Arc::clone(host)), _thread: None });
        }
        let listener = kernel_listener(case, world)?;
        let joins = watch(world, 1, joins)?;
        let data = sends.data.clone();
        let thread = thread::spawn(move || {
            let accepted = listener.accept().map_err(|error| format!("accept: {error}"));
            let ended = accepted.and_then(|(socket, _)| exchange(&socket, &data, false, joins));
            let _ = done.send(ended); // the receiver may be gone
        });
        Ok(Self { result, own: None, _thread: Some(thread) })
    }

    pub(crate) fn connect(
        case: &Case,
        world: &LabNetwork,
        sends: &Expected,
        joins: usize,
    ) -> Result<Self, String> {
        let (done, result) = mpsc::channel();
        let (target, data) = (case.target(world), sends.data.clone());
        if let Some(host) = world.stack(0) {
            let config = world.connection_config(0, Transport::Mptcp);
            let config = config.map_err(|error| error.to_string())?;
            let local = Some(world.address(0, 0, case.family));
            let waits = case.client_waits();
            let connecting = host.call(move |turn| {
                let connection = turn.stack.connect(turn.now, local, target, config)?;
                turn.attach(connection, Box::new(Transfer::new(data, false, waits, done)));
                Ok::<_, towpath_mptcp::stack::ConnectError>(())
            });
            connecting.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
            return Ok(Self { result, own: Some(Arc::clone(host)), _thread: None });
        }
        let socket = kernel_socket(case, world, 0)?;
        let joins = watch(world, 0, joins)?;
        let waits = case.client_waits();
        let thread = thread::spawn(move || {
            let connected = socket.connect_timeout(&SockAddr::from(target), CALL_TIMEOUT);
            let connected = connected.map_err(|error| format!("connect: {error}"));
            // The receiver may be gone.
            let _ = done.send(connected.and_then(|()| exchange(&socket, &data, waits, joins)));
        });
        Ok(Self { result, own: None, _thread: Some(thread) })
    }

    pub(crate) fn wait(&self, deadline: Instant) -> Result<EndpointOutput, String> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.result.recv_timeout(left).unwrap_or_else(|_| {
            let status = self.own.as_ref().map(|host| {
                host.call(|turn| turn.stack.status(ConnectionId(0))).map_err(|e| e.to_string())
            });
            Err(format!("has not ended in time: {status:?}"))
        })
    }
}

fn kernel_socket(case: &Case, world: &LabNetwork, host: usize) -> Result<Socket, String> {
    let domain = if case.family == Family::V4 { Domain::IPV4 } else { Domain::IPV6 };
    let namespace = world.namespace(host).ok_or("no host")?;
    let made = namespace.run(|| Socket::new(domain, Type::STREAM, Some(Protocol::MPTCP)));
    let socket = made.and_then(|made| made).map_err(|error| format!("socket: {error}"))?;
    socket.set_tcp_congestion(b"cubic").map_err(|error| format!("cubic: {error}"))?;
    socket.set_read_timeout(Some(CALL_TIMEOUT)).map_err(|error| error.to_string())?;
    socket.set_write_timeout(Some(CALL_TIMEOUT)).map_err(|error| error.to_string())?;
    Ok(socket)
}

fn kernel_listener(case: &Case, world: &LabNetwork) -> Result<Socket, String> {
    let socket = kernel_socket(case, world, 1)?;
    let any = match case.family {
        Family::V4 => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), PORT),
        Family::V6 => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), PORT),
    };
    socket.bind(&SockAddr::from(any)).map_err(|error| format!("bind: {error}"))?;
    socket.listen(8).map_err(|error| format!("listen: {error}"))?;
    Ok(socket)
}

/// Watches a kernel's joins, for which its end waits before it sends the last of its data.
fn watch(world: &LabNetwork, host: usize, joins: usize) -> Result<Option<Joins>, String> {
    let namespace = world.namespace(host).ok_or("no host")?;
    (joins > 0).then(|| Joins::watch(namespace, joins)).transpose()
}

/// Sends everything and reads to the end concurrently; with `waits`, sends after the first read.
fn exchange(
    socket: &Socket,
    data: &Bytes,
    waits: bool,
    mut joins: Option<Joins>,
) -> Result<EndpointOutput, String> {
    thread::scope(|scope| {
        let mut hash = Sha256::new();
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut plain = socket;
        if waits {
            let length = plain.read(&mut buffer).map_err(|error| format!("read: {error}"))?;
            hash.update(&buffer[..length]);
        }
        let writer = scope.spawn(|| -> Result<(), String> {
            let mut left = &data[..];
            while !left.is_empty() {
                if let Some(mut joins) = joins.take_if(|_| left.len() <= CHUNK_BYTES) {
                    joins.wait(CALL_TIMEOUT)?;
                }
                let sent = socket.send(&left[..left.len().min(CHUNK_BYTES)]);
                left = &left[sent.map_err(|error| format!("send: {error}"))?..];
            }
            socket.shutdown(Shutdown::Write).map_err(|error| format!("shutdown: {error}"))
        });
        loop {
            match plain.read(&mut buffer).map_err(|error| format!("read: {error}"))? {
                0 => break,
                length => hash.update(&buffer[..length]),
            }
        }
        writer.join().map_err(|_| "the writer panicked")??;
        Ok(EndpointOutput { digest: hash.finalize().into(), plain: None, paths: None })
    })
}

/// Transfer as [`exchange`], by an application of our own stack.
struct Transfer {
    data: Bytes,
    open: bool,
    /// Set when nothing is sent before the first read.
    waits: bool,
    /// Data held until there are enough subflows.
    last: Bytes,
    paths: usize,
    shut: bool,
    hash: Sha256,
    done: Option<mpsc::Sender<Result<EndpointOutput, String>>>,
}

impl Transfer {
    fn new(
        data: Bytes,
        open: bool,
        waits: bool,
        done: mpsc::Sender<Result<EndpointOutput, String>>,
    ) -> Self {
        Self {
            data,
            open,
            waits,
            last: Bytes::new(),
            paths: 1,
            shut: false,
            hash: Sha256::new(),
            done: Some(done),
        }
    }

    /// Holds the last of the data until there are `paths` subflows.
    fn with_last(mut self, paths: usize) -> Self {
        self.paths = paths;
        self.last = self.data.split_off(self.data.len() - CHUNK_BYTES);
        self
    }

    fn ended(&self, status: Option<ConnectionStatus>) -> Result<EndpointOutput, String> {
        let status = status.ok_or("no status at the end")?;
        let used =
            |subflow: &&SubflowStatus| subflow.tcp.acked_bytes + subflow.tcp.received_bytes > 0;
        let reason =
            || status.fallback.map_or_else(|| "unknown".to_owned(), |reason| reason.to_string());
        Ok(EndpointOutput {
            digest: self.hash.clone().finalize().into(),
            plain: (!status.multipath).then(reason),
            paths: Some(status.subflows.iter().filter(used).count()),
        })
    }

    fn send_result(&mut self, result: impl FnOnce(&mut Self) -> Result<EndpointOutput, String>) {
        if let Some(done) = self.done.take() {
            let _ = done.send(result(self)); // the receiver may be gone
        }
    }
}

impl Application for Transfer {
    fn connected(&mut self, now: Time, stack: &mut Stack, connection: ConnectionId) {
        self.open = true;
        self.progress(now, stack, connection);
    }

    fn progress(&mut self, now: Time, stack: &mut Stack, connection: ConnectionId) {
        while let Some(data) = stack.read(now, connection) {
            if data.is_empty() {
                let status = stack.status(connection);
                self.send_result(|transfer| transfer.ended(status));
                break;
            }
            self.waits = false;
            self.hash.update(&data);
        }
        if self.open && !self.waits && !self.shut {
            stack.write(now, connection, &mut self.data);
            let joined = |status: ConnectionStatus| status.subflows.len() >= self.paths;
            if self.data.is_empty() && stack.status(connection).is_some_and(joined) {
                self.data = std::mem::take(&mut self.last);
                stack.write(now, connection, &mut self.data);
            }
            if self.data.is_empty() && self.last.is_empty() {
                stack.shutdown(now, connection);
                self.shut = true;
            }
        }
    }

    fn closed(
        &mut self,
        _: Time,
        stack: &Stack,
        connection: ConnectionId,
        error: Option<ConnectionError>,
    ) {
        let status = stack.status(connection);
        self.send_result(|_| Err(format!("closed early ({error:?}): {status:?}")));
    }
}
