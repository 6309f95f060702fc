//! Flows over the kernel's sockets and our own stacks: opens connections, transfers bytes, counts
//! arrivals.
//!
//! A socket belongs to the namespace in which it was created; any thread can use it afterwards.
//! All control stays within this process, so a failed path cannot lose a result.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use towpath_kernel::sample;
use towpath_net::Instant;
use towpath_result::metrics::DeliveryLog;
use towpath_result::{DatagramRow, DatagramStats, Message, Probe};
use towpath_run::traffic::TransferSender;
use towpath_scenario::flow_plan::{directions, streams};
use towpath_scenario::{DataDirection, Family, Flow, Pattern, Scenario, Transport};
use towpath_sockets::run_clock::RunClock;
use towpath_sockets::stack;
use towpath_sockets::stack::status::StackConnection;
use towpath_sockets::stream::app;
use towpath_sockets::stream::app::EventReceiver;
use towpath_sockets::stream::kernel::{TransferOptions, is_timeout};
use towpath_sockets::stream::socket_stream::SocketStream;
use towpath_sockets::stream::{IO_POLL_INTERVAL, explain, sends};

use crate::cpu_time::CpuMeters;
use crate::lab::LabPrograms;
use crate::network::{EmulatedNetwork, address, end_of};
use crate::program_connections::ProgramEndpoint;

mod message_sessions;
mod own_stack;
pub(crate) mod ping;
pub(crate) mod quic;
pub(crate) mod udp;

use self::quic::QuicFlowListener;

use message_sessions::MessageSessions;
use own_stack::StackFlowListener;

/// Port of flow 0; flow *n* uses `FIRST_PORT` + *n*.
const FIRST_PORT: u16 = 5_201;

/// Source of samples at one end of a stream.
#[derive(Debug, Clone)]
pub(crate) enum StreamEndpoint {
    /// A socket of the host's kernel.
    Kernel(Arc<Socket>),
    /// A connection of the host's own stack.
    Own(StackConnection),
    /// A stream of a QUIC connection.
    Quic(towpath_sockets::stream::quic::QuicStreamHandle),
    /// A connection of a program.
    Program(ProgramEndpoint),
}

impl StreamEndpoint {
    /// Samples the end's view of its connection.
    pub(crate) fn sample(&self, multipath: bool) -> io::Result<sample::ConnectionSample> {
        match self {
            Self::Kernel(socket) => sample::connection(socket, multipath),
            Self::Own(connection) => connection.sample(),
            Self::Quic(end) => end.sample(),
            Self::Program(end) => end.sample(),
        }
    }

    /// Samples the connection for the final record; also returns samples of what a program has
    /// closed since.
    pub(crate) fn sample_last(&self, multipath: bool) -> io::Result<sample::ConnectionSample> {
        match self {
            Self::Program(end) => end.sample_last(),
            Self::Kernel(_) | Self::Own(_) | Self::Quic(_) => self.sample(multipath),
        }
    }
}

/// One connection of a flow with both ends, for the sampler.
#[derive(Debug, Clone)]
pub(crate) struct SampledStream {
    pub(crate) flow: u32,
    /// Number within the flow.
    pub(crate) number: u32,
    pub(crate) client: StreamEndpoint,
    pub(crate) server: StreamEndpoint,
    /// Bytes that the receiver has read, for each data direction.
    pub(crate) received: Vec<(DataDirection, Arc<AtomicU64>)>,
}

/// State that all flows share.
#[derive(Debug)]
pub(crate) struct TrafficContext {
    pub(crate) network: Arc<EmulatedNetwork>,
    pub(crate) transport: Transport,
    pub(crate) run_clock: RunClock,
    pub(crate) streams: Mutex<Vec<SampledStream>>,
    /// Received bytes of constant-rate UDP flows, by flow and direction.
    pub(crate) udp_bytes: Mutex<Vec<(u32, DataDirection, Arc<AtomicU64>)>>,
    pub(crate) meters: CpuMeters,
    /// Programs of a lab; the last one is the only flow.
    pub(crate) lab_programs: Option<Arc<LabPrograms>>,
}

impl TrafficContext {
    pub(crate) fn streams(&self) -> Vec<SampledStream> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the time since the start of the traffic.
    pub(crate) fn now(&self) -> Instant {
        self.run_clock.now()
    }

    /// Returns the transport that flow number `flow` uses in this run.
    pub(crate) fn transport_of(&self, flow: u32) -> Transport {
        let flow = self.network.scenario.flows.get(flow as usize);
        flow.map_or(self.transport, |flow| flow.transport_in(self.transport))
    }
}

/// Delivered data of a flow in one direction.
#[derive(Debug)]
pub(crate) struct DirectionDelivery {
    pub(crate) direction: DataDirection,
    /// Delivery log of each stream.
    pub(crate) logs: Vec<DeliveryLog>,
}

/// Results of a constant-rate UDP flow in one direction.
#[derive(Debug, Clone)]
pub(crate) struct UdpFlowResult {
    pub(crate) direction: DataDirection,
    pub(crate) stats: DatagramStats,
    pub(crate) rows: Vec<DatagramRow>,
}

/// Results of a flow.
#[derive(Debug, Default)]
pub(crate) struct FlowOutcome {
    pub(crate) delivered: Vec<DirectionDelivery>,
    /// Time from the start of the flow until its first connection was open.
    pub(crate) connect: Option<Duration>,
    pub(crate) failure: Option<String>,
    /// Results of the requests, if the flow exchanges messages.
    pub(crate) messages: Vec<Message>,
    /// Results of datagrams of a ping flow.
    pub(crate) probes: Vec<Probe>,
    /// Results of a constant-rate UDP flow, by direction.
    pub(crate) datagrams: Vec<UdpFlowResult>,
    /// Reason why a part of the flow failed, if one did.
    pub(crate) warning: Option<String>,
}

/// Acceptor of a flow's connections, created before the traffic starts.
#[derive(Debug)]
pub(crate) struct FlowListener {
    kind: FlowListenerKind,
    port: u16,
}

#[derive(Debug)]
enum FlowListenerKind {
    Kernel(Socket),
    Own(StackFlowListener),
    Quic(QuicFlowListener),
}

/// End that a protocol's thread drives, and its events.
#[derive(Debug)]
struct DrivenEndpoint {
    end: StreamEndpoint,
    events: EventReceiver,
}

impl DrivenEndpoint {
    /// Waits for the end of the data or of the flow, and takes the log.
    fn receive(&self, run_clock: &RunClock, start: Instant, deadline: Instant) -> DeliveryLog {
        self.events.receive(run_clock, (start, deadline), (true, false), &|| {})
    }
}

/// One end of a connection, as its flow's threads use it.
#[derive(Debug)]
enum OpenEndpoint {
    Kernel(Arc<Socket>),
    /// Bytes are moved in the thread of our own stack or of QUIC.
    Driven(DrivenEndpoint),
}

impl OpenEndpoint {
    fn endpoint(&self) -> StreamEndpoint {
        match self {
            Self::Kernel(socket) => StreamEndpoint::Kernel(Arc::clone(socket)),
            Self::Driven(endpoint) => endpoint.end.clone(),
        }
    }
}

fn new_socket(context: &TrafficContext, flow: &Flow, host: usize) -> io::Result<Socket> {
    let domain = match flow.family {
        Family::V4 => Domain::IPV4,
        Family::V6 => Domain::IPV6,
    };
    let protocol = if flow.transport_in(context.transport) == Transport::Mptcp {
        Protocol::MPTCP
    } else {
        Protocol::TCP
    };
    let namespace = context.network.hosts.get(host).ok_or(io::ErrorKind::NotFound)?;
    let socket =
        namespace.namespace.run(|| Socket::new(domain, Type::STREAM, Some(protocol)))??;
    let scenario = &context.network.scenario;
    if let Some(host) = scenario.hosts.get(host) {
        // The actual congestion control is read back later; an error is only a warning.
        let algorithm = scenario.congestion_control_of(host);
        let _ = sample::set_congestion_control(socket.as_fd(), algorithm);
    }
    Ok(socket)
}

/// Opens the flow's listening socket on its accepting host.
pub(crate) fn listen(
    context: &TrafficContext,
    index: usize,
    flow: &Flow,
) -> io::Result<FlowListener> {
    let port = FIRST_PORT + index as u16;
    if flow.transport_in(context.transport).is_quic() {
        let kind = FlowListenerKind::Quic(quic::listen(context, flow, port)?);
        return Ok(FlowListener { kind, port });
    }
    if let Some(stack) = own_stack(context, flow.to) {
        let kind = FlowListenerKind::Own(own_stack::listen(context, flow, stack, port)?);
        return Ok(FlowListener { kind, port });
    }
    let socket = new_socket(context, flow, flow.to)?;
    let unspecified: IpAddr = match flow.family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    };
    socket.set_reuse_address(true)?;
    socket.bind(&SockAddr::from(SocketAddr::new(unspecified, port)))?;
    socket.listen(128)?;
    socket.set_read_timeout(Some(IO_POLL_INTERVAL))?;
    Ok(FlowListener { kind: FlowListenerKind::Kernel(socket), port })
}

/// Returns the ports at which this process listens for a scenario's flows.
pub(crate) fn flow_ports(scenario: &Scenario) -> BTreeSet<u16> {
    let uses_listener = |flow: &Flow| {
        !matches!(flow.pattern, Pattern::Run { .. } | Pattern::Udping(_) | Pattern::Udp(_))
    };
    let flows = scenario.flows.iter().enumerate().filter(|(_, flow)| uses_listener(flow));
    flows.map(|(index, _)| FIRST_PORT + index as u16).collect()
}

fn own_stack(context: &TrafficContext, host: usize) -> Option<&Arc<stack::StackHandle>> {
    context.network.hosts.get(host)?.stack.as_ref()
}

/// Runs one flow to its end. Blocks.
pub(crate) fn run(
    context: &TrafficContext,
    index: usize,
    flow: &Flow,
    listener: &FlowListener,
) -> FlowOutcome {
    let start = Instant::ZERO + flow.start;
    context.run_clock.sleep_until(start);
    let deadline = start + flow.pattern.limit();
    let mut message_sessions = MessageSessions::new(flow);
    let mut outcome = FlowOutcome::default();
    for direction in directions(&flow.pattern) {
        outcome.delivered.push(DirectionDelivery { direction: *direction, logs: Vec::new() });
    }
    let logs = thread::scope(|scope| {
        let mut workers = Vec::new();
        for number in 0..streams(&flow.pattern) {
            let received = new_counters(flow);
            let stream_context = (number, received.as_slice(), message_sessions.as_ref());
            let opened = match open(context, flow, listener, deadline, stream_context) {
                Ok(opened) => opened,
                Err(reason) => {
                    outcome.failure = Some(reason);
                    break;
                }
            };
            outcome.connect.get_or_insert(opened.connected_at.saturating_since(start));
            let stream = SampledStream {
                flow: index as u32,
                number,
                client: opened.client.endpoint(),
                server: opened.server.endpoint(),
                received,
            };
            context.streams.lock().unwrap_or_else(PoisonError::into_inner).push(stream.clone());
            for (end, is_client) in [(opened.client, true), (opened.server, false)] {
                let stream = stream.clone();
                if let (OpenEndpoint::Kernel(socket), Some(message_sessions)) =
                    (&end, &mut message_sessions)
                {
                    message_sessions.add_stream(&stream, socket, is_client);
                    continue;
                }
                let work = move || run_end(context, flow, &end, is_client, &stream, deadline);
                workers.push(scope.spawn(move || work().into_iter().collect::<Vec<_>>()));
            }
        }
        // The message schedule begins when all connections are open.
        for end in message_sessions.iter_mut().flat_map(MessageSessions::kernel_ends) {
            workers.push(scope.spawn(move || {
                let _meter = context.meters.thread(end.is_client());
                end.run(&context.run_clock, flow, deadline)
            }));
        }
        workers.into_iter().filter_map(|worker| worker.join().ok()).flatten().collect::<Vec<_>>()
    });
    for (direction, log) in logs {
        let delivery =
            outcome.delivered.iter_mut().find(|delivery| delivery.direction == direction);
        if let Some(delivery) = delivery {
            delivery.logs.push(log);
        }
    }
    if let Some(message_sessions) = &message_sessions {
        message_sessions.finish(index as u32, &mut outcome);
    }
    outcome
}

fn new_counters(flow: &Flow) -> Vec<(DataDirection, Arc<AtomicU64>)> {
    directions(&flow.pattern).iter().map(|direction| (*direction, Arc::default())).collect()
}

/// Sends and receives at one end; returns the log of received data.
fn run_end(
    context: &TrafficContext,
    flow: &Flow,
    end: &OpenEndpoint,
    is_client: bool,
    stream: &SampledStream,
    deadline: Instant,
) -> Option<(DataDirection, DeliveryLog)> {
    let start = Instant::ZERO + flow.start;
    let incoming = stream.received.iter().find(|(direction, _)| !sends(*direction, is_client));
    let is_sender = stream.received.iter().any(|(direction, _)| sends(*direction, is_client));
    match end {
        OpenEndpoint::Driven(endpoint) => {
            let (direction, _) = incoming?;
            Some((*direction, endpoint.receive(&context.run_clock, start, deadline)))
        }
        OpenEndpoint::Kernel(socket) => {
            let stream_socket = &SocketStream::Plain(Arc::clone(socket));
            thread::scope(|scope| {
                if let Some(sender) =
                    TransferSender::new(&flow.pattern, start).filter(|_| is_sender)
                {
                    scope.spawn(move || {
                        let _meter = context.meters.thread(is_client);
                        towpath_sockets::stream::kernel::send(
                            &context.run_clock,
                            stream_socket,
                            sender,
                            TransferOptions::default(),
                        );
                    });
                }
                let (direction, received) = incoming?;
                let _meter = context.meters.thread(is_client);
                let options = TransferOptions::default();
                let log = towpath_sockets::stream::kernel::receive(
                    &context.run_clock,
                    stream_socket,
                    (start, deadline),
                    received,
                    options,
                );
                Some((*direction, log))
            })
        }
    }
}

/// Context of a stream: its number, counters of received bytes, and the message sessions of both
/// ends.
type StreamContext<'a> = (u32, &'a [(DataDirection, Arc<AtomicU64>)], Option<&'a MessageSessions>);

/// Configures the application of an end that uses our own stack.
fn app_config(
    flow: &Flow,
    is_client: bool,
    (number, received, message_sessions): StreamContext<'_>,
) -> app::StreamAppConfig {
    let start = Instant::ZERO + flow.start;
    let is_sender = received.iter().any(|(direction, _)| sends(*direction, is_client));
    let incoming = received.iter().find(|(direction, _)| !sends(*direction, is_client));
    app::StreamAppConfig {
        sender: TransferSender::new(&flow.pattern, start).filter(|_| is_sender),
        receiver: incoming.map(|(_, received)| (start, Arc::clone(received))),
        session: message_sessions
            .map(|message_sessions| (message_sessions.session(is_client), number)),
        options: TransferOptions::default(),
        budget: None,
    }
}

/// Connection of a flow, open at both ends.
struct OpenedConnection {
    client: OpenEndpoint,
    server: OpenEndpoint,
    /// Time at which the client's connection was open.
    connected_at: Instant,
}

/// Connects and accepts one stream; returns the client's and the server's end.
fn open(
    context: &TrafficContext,
    flow: &Flow,
    listener: &FlowListener,
    deadline: Instant,
    stream_context: StreamContext<'_>,
) -> Result<OpenedConnection, String> {
    let hosts = &context.network.scenario.hosts;
    let name = |host: usize| hosts.get(host).map_or("?", |host| host.name.as_str());
    let target = address_on(context, flow, flow.to).ok_or("the flow's path is unknown")?;
    let target = SocketAddr::new(target, listener.port);
    let timeout = deadline.saturating_since(context.now()).max(IO_POLL_INTERVAL);
    let connect_error = |error: io::Error| {
        format!("`{}` cannot connect to `{}`: {error}", name(flow.from), name(flow.to))
    };
    if let FlowListenerKind::Quic(quic) = &listener.kind {
        let ends = (address_on(context, flow, flow.from), target);
        let app_configs =
            [true, false].map(|is_client| app_config(flow, is_client, stream_context));
        let opened = quic
            .open(context, (flow, stream_context.0), ends, app_configs, timeout)
            .map_err(connect_error)?;
        let [client, server] = opened.map(OpenEndpoint::Driven);
        return Ok(OpenedConnection { client, server, connected_at: context.now() });
    }
    let client = if let Some(stack) = own_stack(context, flow.from) {
        let ends = (address_on(context, flow, flow.from), target);
        let app_config = app_config(flow, true, stream_context);
        own_stack::connect(context, (flow, stack), ends, app_config, timeout)
            .map(OpenEndpoint::Driven)
            .map_err(connect_error)?
    } else {
        let client = new_socket(context, flow, flow.from).map_err(|error| {
            explain(&error, flow.transport_in(context.transport), name(flow.from))
        })?;
        client.connect_timeout(&SockAddr::from(target), timeout).map_err(connect_error)?;
        OpenEndpoint::Kernel(Arc::new(client))
    };
    // The server accepts half a round-trip time later.
    let connected_at = context.now();
    let server = match &listener.kind {
        FlowListenerKind::Own(listener) => listener
            .accept(context, app_config(flow, false, stream_context), deadline)
            .map(OpenEndpoint::Driven),
        // Handled before this match.
        FlowListenerKind::Quic(_) => Err(io::ErrorKind::Unsupported.into()),
        FlowListenerKind::Kernel(socket) => {
            accept(context, socket, deadline).map(|socket| OpenEndpoint::Kernel(Arc::new(socket)))
        }
    };
    let server = server.map_err(|error| format!("`{}` does not accept: {error}", name(flow.to)))?;
    for end in [&client, &server] {
        let OpenEndpoint::Kernel(socket) = end else { continue };
        let result = if stream_context.2.is_some() {
            // Without TCP_NODELAY, a message would wait for the acknowledgement of the previous
            // one.
            socket.set_tcp_nodelay(true).and_then(|()| socket.set_nonblocking(true))
        } else {
            socket
                .set_read_timeout(Some(IO_POLL_INTERVAL))
                .and_then(|()| socket.set_write_timeout(Some(IO_POLL_INTERVAL)))
        };
        result.map_err(|error| error.to_string())?;
    }
    Ok(OpenedConnection { client, server, connected_at })
}

/// Returns the address of `host` on the path where the flow starts.
fn address_on(context: &TrafficContext, flow: &Flow, host: usize) -> Option<IpAddr> {
    let path = context.network.scenario.paths.get(flow.via)?;
    Some(address::address(flow.via, end_of(path, host)?, flow.family, 0))
}

fn accept(context: &TrafficContext, listener: &Socket, deadline: Instant) -> io::Result<Socket> {
    loop {
        match listener.accept() {
            Ok((socket, _)) => return Ok(socket),
            Err(error) if is_timeout(&error) && !context.run_clock.is_over(deadline) => {}
            Err(error) => return Err(error),
        }
    }
}
