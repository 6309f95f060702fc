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
use towpath_emu::LabNetwork;
use towpath_mptcp::stack::{ConnectionError, ConnectionStatus, Stack, SubflowStatus};
use towpath_net::Instant as Time;
use towpath_scenario::{Family, Transport};
use towpath_sockets::stack::{ConnectionHandler as Application, StackHandle};
use towpath_wire::ConnectionId;

use crate::case::{BYTES, Case, PORT};
use crate::joins::Joins;

/// Bytes per write call.
const CHUNK_BYTES: usize = 128 * 1024;
/// Timeout of one system call.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Data that one end sends, with the digest that the other end must compute.
#[derive(Debug, Clone)]
pub(crate) struct TestData {
    pub(crate) data: Bytes,
    pub(crate) digest: [u8; 32],
}

impl TestData {
    /// Returns the data for a seed of 1 or 2, the same in every case.
    pub(crate) fn new(seed: u64) -> Self {
        static GENERATED: OnceLock<[TestData; 2]> = OnceLock::new();
        let [first, second] = GENERATED.get_or_init(|| [1, 2].map(Self::generate));
        if seed == 1 { first.clone() } else { second.clone() }
    }

    fn generate(seed: u64) -> Self {
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
    /// Reason for a fallback to plain TCP; at a kernel's end, only its counters show one.
    pub(crate) fallback_reason: Option<String>,
    /// Number of subflows that carried data to their end, if this end knows it.
    pub(crate) paths: Option<usize>,
}

/// An end that is running.
#[derive(Debug)]
pub(crate) struct InteropEnd {
    result: mpsc::Receiver<Result<EndpointOutput, String>>,
    /// Our own stack, queried for its state when a transfer does not end.
    stack: Option<Arc<StackHandle>>,
    _thread: Option<JoinHandle<()>>,
}

impl InteropEnd {
    /// Starts the listening end. Neither end finishes before `joins` additional subflows exist.
    pub(crate) fn listen(
        case: &Case,
        lab: &LabNetwork,
        test_data: &TestData,
        joins: usize,
    ) -> Result<Self, String> {
        let (result_sender, result) = mpsc::channel();
        if let Some(stack) = lab.stack(1) {
            let config = lab.connection_config(1, Transport::Mptcp);
            let config = config.map_err(|error| error.to_string())?;
            let data = test_data.data.clone();
            let paths = 1 + joins;
            let listening = stack.call(move |driver| {
                let listener = driver.stack.listen(PORT, config)?;
                driver.on_accept(listener, move |_| {
                    let transfer = Transfer::new(data.clone(), true, false, result_sender.clone());
                    Some(Box::new(transfer.with_tail(paths)) as Box<_>)
                });
                Ok::<_, towpath_mptcp::stack::ConfigError>(())
            });
            listening.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
            return Ok(Self { result, stack: Some(Arc::clone(stack)), _thread: None });
        }
        let listener = kernel_listener(case, lab)?;
        let joins = watch_joins(lab, 1, joins)?;
        let data = test_data.data.clone();
        let thread = thread::spawn(move || {
            let accepted = listener.accept().map_err(|error| format!("accept: {error}"));
            let output = accepted.and_then(|(socket, _)| exchange(&socket, &data, false, joins));
            let _ = result_sender.send(output); // the receiver may be gone
        });
        Ok(Self { result, stack: None, _thread: Some(thread) })
    }

    pub(crate) fn connect(
        case: &Case,
        lab: &LabNetwork,
        test_data: &TestData,
        joins: usize,
    ) -> Result<Self, String> {
        let (result_sender, result) = mpsc::channel();
        let (target, data) = (case.target(lab), test_data.data.clone());
        if let Some(stack) = lab.stack(0) {
            let config = lab.connection_config(0, Transport::Mptcp);
            let config = config.map_err(|error| error.to_string())?;
            let local = Some(lab.address(0, 0, case.family));
            let reads_first = case.client_reads_first();
            let connecting = stack.call(move |driver| {
                let connection = driver.stack.connect(driver.now, local, target, config)?;
                driver.attach(
                    connection,
                    Box::new(Transfer::new(data, false, reads_first, result_sender)),
                );
                Ok::<_, towpath_mptcp::stack::ConnectError>(())
            });
            connecting.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
            return Ok(Self { result, stack: Some(Arc::clone(stack)), _thread: None });
        }
        let socket = kernel_socket(case, lab, 0)?;
        let joins = watch_joins(lab, 0, joins)?;
        let reads_first = case.client_reads_first();
        let thread = thread::spawn(move || {
            let result = socket.connect_timeout(&SockAddr::from(target), CALL_TIMEOUT);
            let result = result.map_err(|error| format!("connect: {error}"));
            // The receiver may be gone.
            let _ = result_sender
                .send(result.and_then(|()| exchange(&socket, &data, reads_first, joins)));
        });
        Ok(Self { result, stack: None, _thread: Some(thread) })
    }

    pub(crate) fn wait(&self, deadline: Instant) -> Result<EndpointOutput, String> {
        let timeout = deadline.saturating_duration_since(Instant::now());
        self.result.recv_timeout(timeout).unwrap_or_else(|_| {
            let status = self.stack.as_ref().map(|stack| {
                stack.call(|driver| driver.stack.status(ConnectionId(0))).map_err(|e| e.to_string())
            });
            Err(format!("has not ended in time: {status:?}"))
        })
    }
}

fn kernel_socket(case: &Case, lab: &LabNetwork, host: usize) -> Result<Socket, String> {
    let domain = if case.family == Family::V4 { Domain::IPV4 } else { Domain::IPV6 };
    let namespace = lab.namespace(host).ok_or("no host")?;
    let socket = namespace.run(|| Socket::new(domain, Type::STREAM, Some(Protocol::MPTCP)));
    let socket = socket.and_then(|socket| socket).map_err(|error| format!("socket: {error}"))?;
    socket.set_tcp_congestion(b"cubic").map_err(|error| format!("cubic: {error}"))?;
    socket.set_read_timeout(Some(CALL_TIMEOUT)).map_err(|error| error.to_string())?;
    socket.set_write_timeout(Some(CALL_TIMEOUT)).map_err(|error| error.to_string())?;
    Ok(socket)
}

fn kernel_listener(case: &Case, lab: &LabNetwork) -> Result<Socket, String> {
    let socket = kernel_socket(case, lab, 1)?;
    let unspecified = match case.family {
        Family::V4 => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), PORT),
        Family::V6 => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), PORT),
    };
    socket.bind(&SockAddr::from(unspecified)).map_err(|error| format!("bind: {error}"))?;
    socket.listen(8).map_err(|error| format!("listen: {error}"))?;
    Ok(socket)
}

/// Watches a kernel's joins, for which its end waits before it sends its last chunk.
fn watch_joins(lab: &LabNetwork, host: usize, joins: usize) -> Result<Option<Joins>, String> {
    let namespace = lab.namespace(host).ok_or("no host")?;
    (joins > 0).then(|| Joins::watch(namespace, joins)).transpose()
}

/// Sends all data and reads to the end concurrently; with `reads_first`, sends only after the first
/// read.
fn exchange(
    socket: &Socket,
    data: &Bytes,
    reads_first: bool,
    mut joins: Option<Joins>,
) -> Result<EndpointOutput, String> {
    thread::scope(|scope| {
        let mut hash = Sha256::new();
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut reader = socket;
        if reads_first {
            let length = reader.read(&mut buffer).map_err(|error| format!("read: {error}"))?;
            hash.update(&buffer[..length]);
        }
        let writer = scope.spawn(|| -> Result<(), String> {
            let mut unsent = &data[..];
            while !unsent.is_empty() {
                if let Some(mut joins) = joins.take_if(|_| unsent.len() <= CHUNK_BYTES) {
                    joins.wait(CALL_TIMEOUT)?;
                }
                let sent = socket.send(&unsent[..unsent.len().min(CHUNK_BYTES)]);
                unsent = &unsent[sent.map_err(|error| format!("send: {error}"))?..];
            }
            socket.shutdown(Shutdown::Write).map_err(|error| format!("shutdown: {error}"))
        });
        loop {
            match reader.read(&mut buffer).map_err(|error| format!("read: {error}"))? {
                0 => break,
                length => hash.update(&buffer[..length]),
            }
        }
        writer.join().map_err(|_| "the writer panicked")??;
        Ok(EndpointOutput { digest: hash.finalize().into(), fallback_reason: None, paths: None })
    })
}

/// Transfer like [`exchange`], by an application of our own stack.
struct Transfer {
    data: Bytes,
    open: bool,
    /// Set when nothing is sent before the first read.
    reads_first: bool,
    /// Last chunk, held until there are `paths` subflows.
    tail: Bytes,
    paths: usize,
    is_shut_down: bool,
    hash: Sha256,
    done: Option<mpsc::Sender<Result<EndpointOutput, String>>>,
}

impl Transfer {
    fn new(
        data: Bytes,
        open: bool,
        reads_first: bool,
        done: mpsc::Sender<Result<EndpointOutput, String>>,
    ) -> Self {
        Self {
            data,
            open,
            reads_first,
            tail: Bytes::new(),
            paths: 1,
            is_shut_down: false,
            hash: Sha256::new(),
            done: Some(done),
        }
    }

    /// Holds the last chunk until there are `paths` subflows.
    fn with_tail(mut self, paths: usize) -> Self {
        self.paths = paths;
        self.tail = self.data.split_off(self.data.len() - CHUNK_BYTES);
        self
    }

    fn output(&self, status: Option<ConnectionStatus>) -> Result<EndpointOutput, String> {
        let status = status.ok_or("no status at the end")?;
        let carried_data =
            |subflow: &&SubflowStatus| subflow.tcp.acked_bytes + subflow.tcp.received_bytes > 0;
        let reason =
            || status.fallback.map_or_else(|| "unknown".to_owned(), |reason| reason.to_string());
        Ok(EndpointOutput {
            digest: self.hash.clone().finalize().into(),
            fallback_reason: (!status.multipath).then(reason),
            paths: Some(status.subflows.iter().filter(carried_data).count()),
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
                self.send_result(|transfer| transfer.output(status));
                break;
            }
            self.reads_first = false;
            self.hash.update(&data);
        }
        if self.open && !self.reads_first && !self.is_shut_down {
            stack.write(now, connection, &mut self.data);
            let has_all_subflows = |status: ConnectionStatus| status.subflows.len() >= self.paths;
            if self.data.is_empty() && stack.status(connection).is_some_and(has_all_subflows) {
                self.data = std::mem::take(&mut self.tail);
                stack.write(now, connection, &mut self.data);
            }
            if self.data.is_empty() && self.tail.is_empty() {
                stack.shutdown(now, connection);
                self.is_shut_down = true;
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
