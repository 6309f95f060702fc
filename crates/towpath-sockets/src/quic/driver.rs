//! Driver thread that owns one host's QUIC stack, its sockets and the stream handlers.
//!
//! Applications run inside the thread as [`StreamHandler`]s, which are called when their stream is
//! ready. Other threads send work with [`QuicHandle::call`] or block on a
//! [`super::BlockingStream`].

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use towpath_net::Instant;
use towpath_os::Namespace;
use towpath_os::clock::Clock;
use towpath_os::queue;
use towpath_os::queue::{QueueReceiver, QueueSender};
use towpath_os::sys;
use towpath_quic::{
    ConnectionError, ConnectionId, ListenerId, OutgoingDatagrams, PathNotice, QuicConfig,
    QuicEvent, StreamId,
};

use super::addresses::{AddressTracker, InterfacePolicy};
use super::non_quic::{self, NonQuicReply};
use super::sockets::{self, ListenerSocket, SendOutcome, SocketSet};
use crate::byte_stream::ByteStream;

/// Reads of one socket, of many datagrams each, before packets are sent.
const READ_BATCH: usize = 2;
/// Transmissions, of many datagrams each, before sockets are read again.
const WRITE_BATCH: usize = 32;
/// Maximum events of one turn; more means that the library emits events without end.
const EVENT_BATCH: usize = 4_096;
/// Retry interval of a socket with a full send buffer.
const BLOCKED_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Byte stream of a QUIC connection.
struct QuicByteStream<'a> {
    host: &'a mut towpath_quic::QuicStack,
    connection: ConnectionId,
    stream: StreamId,
}

impl ByteStream for QuicByteStream<'_> {
    fn read(&mut self, now: Instant) -> Option<Bytes> {
        // A reset stream has no more data; its handler is notified separately.
        self.host.read(now, self.connection, self.stream).unwrap_or(None)
    }

    fn write(&mut self, now: Instant, data: &mut Bytes) -> usize {
        // A closed stream accepts no data; an event reports the close.
        self.host.write(now, self.connection, self.stream, data).unwrap_or(0)
    }

    fn shutdown(&mut self, now: Instant) {
        // A closed stream needs no FIN.
        let _ = self.host.finish(now, self.connection, self.stream);
    }
}

/// Handler of a stream: the application.
pub trait StreamHandler: Send {
    /// Reads and writes as much as possible; called when the stream has data or space, or at the
    /// deadline.
    fn progress(&mut self, now: Instant, stream: &mut dyn ByteStream);

    /// Called after the peer acknowledged all data and the FIN.
    fn finished(&mut self, _now: Instant) {}

    /// Called after the connection has closed; `error` is `None` if this host closed it.
    fn closed(&mut self, now: Instant, error: Option<&ConnectionError>);

    /// Returns when [`StreamHandler::progress`] must be called at the latest, even without an
    /// event.
    fn deadline(&self) -> Option<Instant> {
        None
    }
}

/// Event of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// The handshake is complete.
    Connected,
    /// The peer opened a stream.
    StreamOpened(StreamId),
    /// A stream without an [`StreamHandler`] has data.
    Readable(StreamId),
    /// The connection has closed; its status can be read for the last time.
    Closed(Option<ConnectionError>),
    /// Path event for the records.
    Notice(PathNotice),
}

type QuicAcceptFn = Box<dyn FnMut(&mut DriverContext<'_>, ConnectionId) + Send>;
type EventFn = Box<dyn FnMut(&mut DriverContext<'_>, ConnectionId, &ConnectionEvent) + Send>;
type QuicTask = Box<dyn FnOnce(&mut DriverContext<'_>) + Send>;
type ConnectionStream = (ConnectionId, StreamId);

/// Handlers of streams, listeners and events.
#[derive(Default)]
struct QuicHandlers {
    streams: BTreeMap<ConnectionStream, Box<dyn StreamHandler>>,
    listeners: BTreeMap<ListenerId, (u16, QuicAcceptFn)>,
    event_handlers: BTreeMap<ConnectionId, EventFn>,
    /// Reply functions for datagrams other than QUIC, by port.
    non_quic_replies: BTreeMap<u16, NonQuicReply>,
    stop_requested: bool,
}

/// Context of work inside the driver thread.
pub struct DriverContext<'a> {
    /// Start time of this turn, on the host's clock.
    pub now: Instant,
    /// QUIC stack of the host.
    pub host: &'a mut towpath_quic::QuicStack,
    net: &'a mut NetIo,
    handlers: &'a mut QuicHandlers,
}

impl fmt::Debug for DriverContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverContext").field("now", &self.now).finish_non_exhaustive()
    }
}

impl DriverContext<'_> {
    /// Starts a connection, from `local` if given.
    pub fn connect(
        &mut self,
        local: Option<IpAddr>,
        remote: SocketAddr,
        config: QuicConfig,
    ) -> io::Result<ConnectionId> {
        let local = local.map_or_else(|| sockets::source_for(remote), Ok)?;
        let port = self.net.open_sockets(local, remote.ip())?;
        let local = SocketAddr::new(local, port);
        let result = self.host.connect_from(self.now, local, remote, config);
        self.net.close_unused(self.host);
        result.map_err(io::Error::other)
    }

    /// Accepts connections on a port; 0 chooses a free one. `accept` is called for each of them.
    pub fn listen(
        &mut self,
        port: u16,
        config: QuicConfig,
        accept: impl FnMut(&mut DriverContext<'_>, ConnectionId) + Send + 'static,
    ) -> io::Result<(ListenerId, u16)> {
        self.listen_at(None, port, config, accept)
    }

    /// Accepts connections on a port of one address, or of all if `address` is `None`.
    pub fn listen_at(
        &mut self,
        address: Option<IpAddr>,
        port: u16,
        config: QuicConfig,
        accept: impl FnMut(&mut DriverContext<'_>, ConnectionId) + Send + 'static,
    ) -> io::Result<(ListenerId, u16)> {
        let port = match address {
            Some(address) => self.net.sockets.open_at(address, port)?,
            None => self.net.sockets.open_on_all_addresses(port)?,
        };
        let result = self.host.listen(port, config);
        self.net.close_unused(self.host);
        let id = result.map_err(io::Error::other)?;
        self.handlers.listeners.insert(id, (port, Box::new(accept)));
        Ok((id, port))
    }

    /// Stops accepting connections; accepted ones continue.
    pub fn stop_listening(&mut self, listener: ListenerId) {
        self.handlers.listeners.remove(&listener);
        self.host.stop_listening(listener);
        self.net.close_unused(self.host);
    }

    /// Registers `reply` for datagrams on a listener's port that are not QUIC packets. QUIC
    /// packets have bit 0x40 of the first byte set (RFC 9000 §17.2, §17.3). `reply` receives the
    /// peer's address and the local one.
    pub fn on_non_quic_datagram(
        &mut self,
        port: u16,
        reply: impl Fn(&[u8], (SocketAddr, SocketAddr)) -> Option<Bytes> + Send + 'static,
    ) {
        self.handlers.non_quic_replies.insert(port, Box::new(reply));
    }

    /// Returns the listening sockets, for sending datagrams outside QUIC.
    pub fn listener_sockets(&self) -> Vec<ListenerSocket> {
        self.net.sockets.listener_sockets()
    }

    /// Registers `handler` for the events of a connection.
    pub fn on_event(
        &mut self,
        connection: ConnectionId,
        handler: impl FnMut(&mut DriverContext<'_>, ConnectionId, &ConnectionEvent) + Send + 'static,
    ) {
        self.handlers.event_handlers.insert(connection, Box::new(handler));
    }

    /// Attaches the handler of a stream and starts it.
    pub fn attach(
        &mut self,
        connection: ConnectionId,
        stream: StreamId,
        mut handler: Box<dyn StreamHandler>,
    ) {
        let host = &mut *self.host;
        handler.progress(self.now, &mut QuicByteStream { host, connection, stream });
        self.handlers.streams.insert((connection, stream), handler);
    }

    /// Calls the handler of a stream.
    pub fn progress(&mut self, connection: ConnectionId, stream: StreamId) {
        if let Some(handler) = self.handlers.streams.get_mut(&(connection, stream)) {
            handler.progress(
                self.now,
                &mut QuicByteStream { host: &mut *self.host, connection, stream },
            );
        }
    }

    /// Drops a connection immediately, without notifying the peer.
    pub fn abandon(&mut self, connection: ConnectionId) {
        self.close_streams(connection, None);
        self.handlers.event_handlers.remove(&connection);
        self.host.drop_silently(connection);
    }

    /// Closes a connection immediately, discarding unacknowledged data.
    pub fn close(&mut self, connection: ConnectionId) {
        self.host.release(self.now, connection);
        self.close_streams(connection, None);
        self.handlers.event_handlers.remove(&connection);
    }

    fn close_streams(&mut self, connection: ConnectionId, error: Option<&ConnectionError>) {
        let stream_range = (connection, StreamId(0))..=(connection, StreamId(u64::MAX));
        let streams: Vec<ConnectionStream> =
            self.handlers.streams.range(stream_range).map(|(key, _)| *key).collect();
        for key in streams {
            if let Some(mut handler) = self.handlers.streams.remove(&key) {
                let host = &mut *self.host;
                // Data that arrived before can still be read.
                handler.progress(self.now, &mut QuicByteStream { host, connection, stream: key.1 });
                handler.closed(self.now, error);
            }
        }
    }

    fn emit(&mut self, connection: ConnectionId, event: &ConnectionEvent) {
        let Some(mut handler) = self.handlers.event_handlers.remove(&connection) else { return };
        handler(self, connection, event);
        self.handlers.event_handlers.entry(connection).or_insert(handler);
    }

    fn dispatch_event(&mut self, event: QuicEvent) {
        match event {
            QuicEvent::Accepted { listener, connection } => {
                match self.handlers.listeners.remove(&listener) {
                    Some((port, mut accept)) => {
                        accept(self, connection);
                        self.handlers.listeners.entry(listener).or_insert((port, accept));
                    }
                    None => self.close(connection),
                }
            }
            QuicEvent::Connected(connection) => self.emit(connection, &ConnectionEvent::Connected),
            QuicEvent::StreamOpened(connection, stream) => {
                self.emit(connection, &ConnectionEvent::StreamOpened(stream));
            }
            QuicEvent::Readable(connection, stream) => {
                if self.handlers.streams.contains_key(&(connection, stream)) {
                    self.progress(connection, stream);
                } else {
                    self.emit(connection, &ConnectionEvent::Readable(stream));
                }
            }
            QuicEvent::Writable(connection, stream) => self.progress(connection, stream),
            QuicEvent::Finished(connection, stream) => {
                if let Some(handler) = self.handlers.streams.get_mut(&(connection, stream)) {
                    handler.finished(self.now);
                }
            }
            QuicEvent::Closed { connection, error } => {
                self.emit(connection, &ConnectionEvent::Closed(error.clone()));
                self.close_streams(connection, error.as_ref());
                // A server would accumulate closed connections.
                self.close(connection);
            }
            QuicEvent::Notice { connection, notice } => {
                self.emit(connection, &ConnectionEvent::Notice(notice));
            }
        }
    }
}

/// Configuration of a QUIC host.
#[derive(Debug)]
pub struct HostConfig {
    /// Name of the host in messages and thread names.
    pub name: String,
    /// Clock of the program, shared by all hosts.
    pub clock: Clock,
    /// Seed of identifiers and keys. `None` where others can inject packets, so that they cannot be
    /// predicted.
    pub seed: Option<u64>,
    /// Network namespace of the sockets; `None` is the caller's.
    pub namespace: Option<Namespace>,
    /// Permitted use of the interfaces.
    pub interfaces: InterfacePolicy,
}

/// Handle of a running host. Dropping it ends the thread, and its connections silently.
pub struct QuicHandle {
    name: String,
    clock: Clock,
    tasks: QueueSender<QuicTask>,
    thread: Option<JoinHandle<io::Result<Duration>>>,
}

impl fmt::Debug for QuicHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuicHandle").field("name", &self.name).finish_non_exhaustive()
    }
}

impl QuicHandle {
    /// Starts the driver thread and waits until it knows the addresses.
    pub fn start(config: HostConfig) -> io::Result<Self> {
        let (tasks, inbox) = queue::queue()?;
        let (start_sender, start_receiver) = mpsc::sync_channel(1);
        let (name, clock) = (config.name.clone(), config.clock);
        let thread = thread::Builder::new().name(format!("quic {name}"));
        let thread = thread.spawn(move || match QuicDriver::open(config, inbox) {
            Ok(driver) => {
                let _ = start_sender.send(Ok(())); // the receiver may be gone
                driver.run()
            }
            Err(error) => {
                let _ = start_sender.send(Err(error)); // the receiver may be gone
                Ok(Duration::ZERO)
            }
        })?;
        let host = Self { name, clock, tasks, thread: Some(thread) };
        start_receiver.recv().unwrap_or_else(|_| Err(ended_error()))?;
        Ok(host)
    }

    /// Returns the name of the host.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the clock of the host.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Runs `work` inside the driver thread and waits for its result.
    pub fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut DriverContext<'_>) -> T + Send + 'static,
    ) -> io::Result<T> {
        let (result_sender, result) = mpsc::sync_channel(1);
        self.post(move |context| {
            let _ = result_sender.send(work(context)); // the receiver may be gone
        });
        result.recv().map_err(|_| ended_error())
    }

    /// Runs `work` inside the driver thread without waiting.
    pub fn post(&self, work: impl FnOnce(&mut DriverContext<'_>) + Send + 'static) {
        let _ = self.tasks.send(Box::new(work)); // false once the thread has ended
    }

    /// Ends the thread and returns its CPU time.
    pub fn finish(mut self) -> io::Result<Duration> {
        self.stop().unwrap_or_else(|| Err(ended_error()))
    }

    fn stop(&mut self) -> Option<io::Result<Duration>> {
        let thread = self.thread.take()?;
        self.post(|context| context.handlers.stop_requested = true);
        if thread.thread().id() == thread::current().id() {
            // The last handle was dropped in the thread itself, which cannot join itself.
            return None;
        }
        Some(thread.join().unwrap_or_else(|_| Err(io::Error::other("the QUIC thread panicked"))))
    }
}

impl Drop for QuicHandle {
    fn drop(&mut self) {
        let _ = self.stop(); // drop cannot report an error
    }
}

fn ended_error() -> io::Error {
    io::Error::other("the QUIC thread has ended")
}

/// Addresses and sockets of the host.
struct NetIo {
    addresses: AddressTracker,
    sockets: SocketSet,
}

impl NetIo {
    /// Opens the sockets of an outgoing connection; returns their port.
    fn open_sockets(&mut self, local: IpAddr, remote: IpAddr) -> io::Result<u16> {
        // Traffic to the host itself uses the loopback interface.
        let is_own_address = remote.is_loopback() || self.addresses.interface_of(remote).is_some();
        if is_own_address {
            return self.sockets.open_on_all_addresses(0);
        }
        self.sockets.open_by_interface(&self.addresses, local)
    }

    fn close_unused(&mut self, host: &towpath_quic::QuicStack) {
        self.sockets.retain_ports(|port| host.ports().any(|used| used == port));
    }
}

struct QuicDriver {
    clock: Clock,
    host: towpath_quic::QuicStack,
    net: NetIo,
    inbox: QueueReceiver<QuicTask>,
    handlers: QuicHandlers,
    /// Datagrams for which the socket had no space.
    pending: Option<OutgoingDatagrams>,
    payload: Vec<u8>,
    /// Replies to datagrams other than QUIC.
    non_quic_datagrams: Vec<(OutgoingDatagrams, Bytes)>,
    stopped: bool,
}

impl QuicDriver {
    fn open(config: HostConfig, inbox: QueueReceiver<QuicTask>) -> io::Result<Self> {
        if let Some(namespace) = &config.namespace {
            namespace.enter()?;
        }
        sys::set_minimal_timer_slack();
        let mut host = config
            .seed
            .map_or_else(towpath_quic::QuicStack::new_random, towpath_quic::QuicStack::new);
        let mut addresses = AddressTracker::open(config.interfaces).map_err(io::Error::other)?;
        addresses.update(config.clock.now(), &mut host).map_err(io::Error::other)?;
        let net = NetIo { addresses, sockets: SocketSet::new() };
        let (handlers, payload, non_quic_datagrams) =
            (QuicHandlers::default(), Vec::new(), Vec::new());
        let clock = config.clock;
        Ok(Self {
            clock,
            host,
            net,
            inbox,
            handlers,
            pending: None,
            payload,
            non_quic_datagrams,
            stopped: false,
        })
    }

    fn run(mut self) -> io::Result<Duration> {
        let mut fds = Vec::new();
        let mut generation = None;
        let mut busy = true;
        while !self.stopped {
            let current = Some(self.net.sockets.generation);
            if current != generation || self.pending.is_some() {
                generation = if self.pending.is_some() { None } else { current };
                fds = self.descriptors();
            }
            let timeout = if busy { Some(Duration::ZERO) } else { self.timeout() };
            sys::poll(&mut fds, timeout)?;
            busy = self.run_once(&fds);
        }
        Ok(sys::thread_cpu_time())
    }

    /// Returns the descriptors to poll: inbox, addresses, and each socket.
    fn descriptors(&self) -> Vec<libc::pollfd> {
        let mut fds = vec![sys::input_pollfd(&self.inbox), sys::input_pollfd(&self.net.addresses)];
        fds.extend(self.net.sockets.descriptors().map(|(fd, blocked)| {
            // With nothing to send, a writable socket would wake the loop forever.
            let wants_space = blocked && self.pending.is_some();
            let events = if wants_space { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
            libc::pollfd { fd: fd.as_fd().as_raw_fd(), events, revents: 0 }
        }));
        fds
    }

    fn timeout(&self) -> Option<Duration> {
        let now = self.clock.now();
        let stream_deadline =
            self.handlers.streams.values().filter_map(|handler| handler.deadline()).min();
        let blocked = self.pending.is_some().then(|| now + BLOCKED_RETRY_INTERVAL);
        let next = [self.host.poll_timeout(), stream_deadline, blocked].into_iter().flatten().min();
        next.map(|time| time.saturating_since(now))
    }

    /// Does all pending work in bounded batches; returns true if there may be more.
    fn run_once(&mut self, fds: &[libc::pollfd]) -> bool {
        if let [inbox, addresses, sockets @ ..] = fds {
            // Address changes come first, so that nothing more is sent over a removed interface.
            if addresses.revents != 0 {
                self.update_addresses();
            }
            self.read_sockets(sockets);
            if inbox.revents != 0 {
                self.run_tasks();
            }
        }
        let now = self.clock.now();
        if self.host.poll_timeout().is_some_and(|deadline| deadline <= now) {
            self.host.handle_timeout(now);
        }
        self.run_timers(now);
        self.deliver_events();
        // Sending can also produce events.
        let more = self.write() | self.host.has_events();
        // A connection's sockets stay open until the library has sent its last packet.
        if !more && self.net.sockets.ports() != self.host.ports().count() {
            self.net.close_unused(&self.host);
        }
        more
    }

    fn update_addresses(&mut self) {
        // A failed listing is repeated at the next event.
        let _ = self.net.addresses.update(self.clock.now(), &mut self.host);
        self.net.sockets.update_interfaces(&self.net.addresses);
    }

    fn context_at(&mut self, now: Instant) -> DriverContext<'_> {
        DriverContext {
            now,
            host: &mut self.host,
            net: &mut self.net,
            handlers: &mut self.handlers,
        }
    }

    fn run_tasks(&mut self) {
        while let Some(work) = self.inbox.receive() {
            let now = self.clock.now();
            work(&mut self.context_at(now));
        }
        self.stopped |= self.handlers.stop_requested;
    }

    /// Reads from ready sockets; `poll` reports the remaining data again.
    fn read_sockets(&mut self, sockets: &[libc::pollfd]) {
        for (index, fd) in sockets.iter().enumerate() {
            if fd.revents & !libc::POLLOUT == 0 {
                continue;
            }
            for _ in 0..READ_BATCH {
                let now = self.clock.now();
                let Self { host, net, handlers, non_quic_datagrams: replies, .. } = self;
                let NetIo { addresses, sockets } = net;
                let more = sockets.receive(index, |incoming, payload| {
                    let reply_fn = handlers.non_quic_replies.get(&incoming.local.port());
                    match reply_fn.filter(|_| non_quic::is_non_quic(&payload)) {
                        Some(reply) => {
                            non_quic::handle_non_quic(
                                now,
                                host,
                                (incoming, payload),
                                reply,
                                replies,
                            );
                        }
                        None => host.receive(now, incoming, payload),
                    }
                });
                for (outgoing, payload) in replies.drain(..) {
                    // A datagram that the socket rejects is lost, as on a network.
                    sockets.send(now, addresses, &outgoing, &payload);
                }
                if !more {
                    break;
                }
            }
        }
    }

    /// Calls the stream handlers whose deadline has passed.
    fn run_timers(&mut self, now: Instant) {
        for ((connection, stream), handler) in &mut self.handlers.streams {
            if handler.deadline().is_some_and(|deadline| deadline <= now) {
                let (connection, stream) = (*connection, *stream);
                handler.progress(
                    now,
                    &mut QuicByteStream { host: &mut self.host, connection, stream },
                );
            }
        }
    }

    fn deliver_events(&mut self) {
        let now = self.clock.now();
        for _ in 0..EVENT_BATCH {
            let Some(event) = self.host.poll_event() else { return };
            self.context_at(now).dispatch_event(event);
        }
    }

    /// Sends pending datagrams; returns true if there may be more.
    fn write(&mut self) -> bool {
        for _ in 0..WRITE_BATCH {
            let now = self.clock.now();
            let next = self.pending.take();
            let next = next.or_else(|| self.host.poll_transmit_into(now, &mut self.payload));
            let Some(outgoing) = next else { return false };
            let NetIo { addresses, sockets } = &mut self.net;
            match sockets.send(now, addresses, &outgoing, &self.payload) {
                SendOutcome::Sent => {}
                SendOutcome::Full => {
                    self.pending = Some(outgoing);
                    return false;
                }
            }
        }
        true
    }
}
