//! Flows over the kernel's sockets and our own stacks: opens connections, moves bytes, counts what arrives.
//!
//! A socket belongs to the namespace in which it was made and can then be used from any thread. All
//! control is within this process, so no lost path can lose a result.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use towpath_measure::metrics::DeliveryLog;
use towpath_measure::result::{DatagramFigures, DatagramRow, Message, Probe};
use towpath_measure::scenario::{DataDirection, Family, Flow, Pattern, Scenario, Transport};
use towpath_measure::traffic::{TransferSender, directions, streams};
use towpath_net::Instant;

use crate::cost::CpuMeters;
use crate::lab::LabPrograms;
use crate::network::{EmulatedNetwork, address, end_of};
use crate::pace::RunClock;
use crate::programs::ProgramEndpoint;
use crate::sample;
use crate::stack::{self, status::StackConnection};

pub(crate) mod end;
pub(crate) mod kernel;
mod own;
pub(crate) mod ping;
pub(crate) mod quic;
pub(crate) mod talk;
pub(crate) mod udp;
pub(crate) mod wire;

use self::quic::QuicFlowListener;
use kernel::{TransferOptions, is_timeout};
use own::StackFlowListener;
use talk::MessageSessions;
use wire::SocketStream;

/// Port of flow 0; flow *n* uses the *n*-th after it.
const FIRST_PORT: u16 = 5_201;
/// A blocked socket call returns after this time, to look at the clock.
pub(crate) const IO_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// One end of a stream.
#[derive(Debug, Clone)]
pub(crate) enum StreamEndpoint {
    /// A socket of the host's kernel.
    Kernel(Arc<Socket>),
    /// A connection of the host's own stack.
    Own(StackConnection),
    /// A stream of a QUIC connection.
    Quic(quic::QuicStreamHandle),
    /// Of a program.
    Program(ProgramEndpoint),
}

impl StreamEndpoint {
    /// What the end says of its connection.
    pub(crate) fn sample(&self, multipath: bool) -> io::Result<sample::ConnectionSample> {
        match self {
            Self::Kernel(socket) => sample::connection(socket, multipath),
            Self::Own(connection) => connection.sample(),
            Self::Quic(end) => end.sample(),
            Self::Program(end) => end.sample(),
        }
    }

    /// The same for the one who keeps what it said last: what a program has closed since it was
    /// asked is told once more.
    pub(crate) fn sample_last(&self, multipath: bool) -> io::Result<sample::ConnectionSample> {
        match self {
            Self::Program(end) => end.sample_last(),
            Self::Kernel(_) | Self::Own(_) | Self::Quic(_) => self.sample(multipath),
        }
    }
}

/// One connection of a flow, both ends, as the sampler sees it.
#[derive(Debug, Clone)]
pub(crate) struct SampledStream {
    pub(crate) flow: u32,
    /// Number within the flow.
    pub(crate) number: u32,
    pub(crate) client: StreamEndpoint,
    pub(crate) server: StreamEndpoint,
    /// For each data direction, the bytes that its receiver has read.
    pub(crate) received: Vec<(DataDirection, Arc<AtomicU64>)>,
}

/// What all flows share.
#[derive(Debug)]
pub(crate) struct TrafficContext {
    pub(crate) network: Arc<EmulatedNetwork>,
    pub(crate) transport: Transport,
    pub(crate) pace: RunClock,
    pub(crate) streams: Mutex<Vec<SampledStream>>,
    /// Bytes of datagrams at a constant rate that arrived, by flow and direction.
    pub(crate) udp_bytes: Mutex<Vec<(u32, DataDirection, Arc<AtomicU64>)>>,
    pub(crate) meters: CpuMeters,
    /// The programs of a lab, whose last one is the only flow.
    pub(crate) lab_programs: Option<Arc<LabPrograms>>,
}

impl TrafficContext {
    pub(crate) fn streams(&self) -> Vec<SampledStream> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Now, counted from the start of the traffic.
    pub(crate) fn now(&self) -> Instant {
        self.pace.now()
    }

    /// What flow number `flow` speaks in this run.
    pub(crate) fn transport_of(&self, flow: u32) -> Transport {
        let flow = self.network.scenario.flows.get(flow as usize);
        flow.map_or(self.transport, |flow| flow.transport_in(self.transport))
    }
}

/// What came out of a flow in one direction.
#[derive(Debug)]
pub(crate) struct DirectionDelivery {
    pub(crate) direction: DataDirection,
    /// One log for each stream.
    pub(crate) logs: Vec<DeliveryLog>,
}

/// What became of a flow's datagrams in one direction.
#[derive(Debug, Clone)]
pub(crate) struct UdpFlowResult {
    pub(crate) direction: DataDirection,
    pub(crate) stats: DatagramFigures,
    pub(crate) rows: Vec<DatagramRow>,
}

/// What came out of a flow.
#[derive(Debug, Default)]
pub(crate) struct FlowOutcome {
    pub(crate) delivered: Vec<DirectionDelivery>,
    /// From the start of the flow until its first connection was open.
    pub(crate) connect: Option<Duration>,
    pub(crate) failure: Option<String>,
    /// What became of the requests, where messages are exchanged.
    pub(crate) messages: Vec<Message>,
    /// What became of datagrams, where they are sent by themselves.
    pub(crate) probes: Vec<Probe>,
    /// The same, where a constant rate of them is sent.
    pub(crate) datagrams: Vec<UdpFlowResult>,
    /// What could not be done of it.
    pub(crate) warning: Option<String>,
}

/// Who accepts a flow's connections, made before the traffic starts.
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

/// One end as its flow's threads see it.
#[derive(Debug)]
enum OpenEndpoint {
    Kernel(Arc<Socket>),
    /// Its bytes are moved in a protocol's own thread.
    Inside(end::DrivenEndpoint),
}

impl OpenEndpoint {
    fn end(&self) -> StreamEndpoint {
        match self {
            Self::Kernel(socket) => StreamEndpoint::Kernel(Arc::clone(socket)),
            Self::Inside(opened) => opened.end.clone(),
        }
    }
}

/// Why a flow cannot even start.
pub(crate) fn explain(error: &io::Error, transport: Transport, host: &str) -> String {
    match error.raw_os_error() {
        Some(libc::ENOPROTOOPT) if transport == Transport::Mptcp => {
            format!("Multipath TCP is switched off on `{host}` (net.mptcp.enabled = 0)")
        }
        Some(libc::EPROTONOSUPPORT | libc::EINVAL) if transport == Transport::Mptcp => {
            "this kernel has no Multipath TCP (it needs Linux 5.16 with CONFIG_MPTCP)".to_owned()
        }
        _ => error.to_string(),
    }
}

fn new_socket(stage: &TrafficContext, flow: &Flow, host: usize) -> io::Result<Socket> {
    let domain = match flow.family {
        Family::V4 => Domain::IPV4,
        Family::V6 => Domain::IPV6,
    };
    let protocol = if flow.transport_in(stage.transport) == Transport::Mptcp {
        Protocol::MPTCP
    } else {
        Protocol::TCP
    };
    let space = stage.network.hosts.get(host).ok_or(io::ErrorKind::NotFound)?;
    let socket = space.namespace.run(|| Socket::new(domain, Type::STREAM, Some(protocol)))??;
    let scenario = &stage.network.scenario;
    if let Some(host) = scenario.hosts.get(host) {
        // What the kernel made of it is read back later; refusal is a warning, not a failure.
        let wanted = scenario.congestion_control_of(host);
        let _ = sample::set_congestion_control(socket.as_fd(), wanted);
    }
    Ok(socket)
}

/// Opens the flow's listening socket on its accepting host.
pub(crate) fn listen(
    stage: &TrafficContext,
    index: usize,
    flow: &Flow,
) -> io::Result<FlowListener> {
    let port = FIRST_PORT + index as u16;
    if is_quic(flow.transport_in(stage.transport)) {
        let kind = FlowListenerKind::Quic(quic::listen(stage, flow, port)?);
        return Ok(FlowListener { kind, port });
    }
    if let Some(stack) = own_stack(stage, flow.to) {
        let kind = FlowListenerKind::Own(own::listen(stage, flow, stack, port)?);
        return Ok(FlowListener { kind, port });
    }
    let socket = new_socket(stage, flow, flow.to)?;
    let any: IpAddr = match flow.family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    };
    socket.set_reuse_address(true)?;
    socket.bind(&SockAddr::from(SocketAddr::new(any, port)))?;
    socket.listen(128)?;
    socket.set_read_timeout(Some(IO_POLL_INTERVAL))?;
    Ok(FlowListener { kind: FlowListenerKind::Kernel(socket), port })
}

/// The ports at which this process listens for a scenario's flows.
pub(crate) fn flow_ports(scenario: &Scenario) -> BTreeSet<u16> {
    let ours = |flow: &Flow| {
        !matches!(flow.pattern, Pattern::Run { .. } | Pattern::Udping(_) | Pattern::Udp(_))
    };
    let flows = scenario.flows.iter().enumerate().filter(|(_, flow)| ours(flow));
    flows.map(|(index, _)| FIRST_PORT + index as u16).collect()
}

/// Whether it is QUIC, with one path or several.
pub(crate) fn is_quic(transport: Transport) -> bool {
    match transport {
        Transport::Quic | Transport::Mpquic => true,
        Transport::Tcp | Transport::Mptcp => false,
    }
}

fn own_stack(stage: &TrafficContext, host: usize) -> Option<&Arc<stack::StackHandle>> {
    stage.network.hosts.get(host)?.stack.as_ref()
}

/// Runs one flow to its end. Blocks.
pub(crate) fn run(
    stage: &TrafficContext,
    index: usize,
    flow: &Flow,
    listener: &FlowListener,
) -> FlowOutcome {
    let start = Instant::ZERO + flow.start;
    stage.pace.sleep_until(start);
    let deadline = start + flow.pattern.limit();
    let mut talks = MessageSessions::new(flow);
    let mut outcome = FlowOutcome::default();
    for direction in directions(&flow.pattern) {
        outcome.delivered.push(DirectionDelivery { direction: *direction, logs: Vec::new() });
    }
    let logs = thread::scope(|scope| {
        let mut workers = Vec::new();
        for number in 0..streams(&flow.pattern) {
            let received = counters(flow);
            let part = (number, received.as_slice(), talks.as_ref());
            let (client, server) = match open(stage, flow, listener, deadline, part) {
                Ok(ends) => ends,
                Err(reason) => {
                    outcome.failure = Some(reason);
                    break;
                }
            };
            outcome.connect.get_or_insert_with(|| stage.now().saturating_since(start));
            let stream = SampledStream {
                flow: index as u32,
                number,
                client: client.end(),
                server: server.end(),
                received,
            };
            stage.streams.lock().unwrap_or_else(PoisonError::into_inner).push(stream.clone());
            for (end, is_client) in [(client, true), (server, false)] {
                let stream = stream.clone();
                if let (OpenEndpoint::Kernel(socket), Some(talks)) = (&end, &mut talks) {
                    talks.add_stream(&stream, socket, is_client);
                    continue;
                }
                let work = move || run_end(stage, flow, &end, is_client, &stream, deadline);
                workers.push(scope.spawn(move || work().into_iter().collect::<Vec<_>>()));
            }
        }
        // The schedule of messages begins when all connections are open.
        for part in talks.iter_mut().flat_map(MessageSessions::parts) {
            workers.push(scope.spawn(move || {
                let _meter = stage.meters.thread(part.is_client());
                part.run(&stage.pace, flow, deadline)
            }));
        }
        workers.into_iter().filter_map(|worker| worker.join().ok()).flatten().collect::<Vec<_>>()
    });
    for (direction, log) in logs {
        let side = outcome.delivered.iter_mut().find(|side| side.direction == direction);
        if let Some(side) = side {
            side.logs.push(log);
        }
    }
    if let Some(talks) = &talks {
        talks.finish(index as u32, &mut outcome);
    }
    outcome
}

fn counters(flow: &Flow) -> Vec<(DataDirection, Arc<AtomicU64>)> {
    directions(&flow.pattern).iter().map(|direction| (*direction, Arc::default())).collect()
}

/// Whether data of `direction` is sent by this end; else it is received by it.
pub(crate) fn sends(direction: DataDirection, is_client: bool) -> bool {
    (direction != DataDirection::Down) == is_client
}

/// Sends and receives at one end; the log of what was received there.
fn run_end(
    stage: &TrafficContext,
    flow: &Flow,
    end: &OpenEndpoint,
    is_client: bool,
    stream: &SampledStream,
    deadline: Instant,
) -> Option<(DataDirection, DeliveryLog)> {
    let start = Instant::ZERO + flow.start;
    let incoming = stream.received.iter().find(|(direction, _)| !sends(*direction, is_client));
    let sending = stream.received.iter().any(|(direction, _)| sends(*direction, is_client));
    match end {
        OpenEndpoint::Inside(opened) => {
            let (direction, _) = incoming?;
            Some((*direction, end::receive(&stage.pace, opened, start, deadline)))
        }
        OpenEndpoint::Kernel(socket) => {
            let wire = &SocketStream::Plain(Arc::clone(socket));
            thread::scope(|scope| {
                if let Some(sender) = TransferSender::new(&flow.pattern, start).filter(|_| sending)
                {
                    scope.spawn(move || {
                        let _meter = stage.meters.thread(is_client);
                        kernel::send(&stage.pace, wire, sender, TransferOptions::default());
                    });
                }
                let (direction, received) = incoming?;
                let _meter = stage.meters.thread(is_client);
                let manner = TransferOptions::default();
                let log = kernel::receive(&stage.pace, wire, (start, deadline), received, manner);
                Some((*direction, log))
            })
        }
    }
}

/// What a stream needs to know of its flow: its number, where received bytes are counted, and both
/// ends' talks.
type StreamContext<'a> = (u32, &'a [(DataDirection, Arc<AtomicU64>)], Option<&'a MessageSessions>);

/// What an end with our own stack does by itself.
fn app_config(
    flow: &Flow,
    is_client: bool,
    (number, received, talks): StreamContext<'_>,
) -> end::StreamAppConfig {
    let start = Instant::ZERO + flow.start;
    let sending = received.iter().any(|(direction, _)| sends(*direction, is_client));
    let incoming = received.iter().find(|(direction, _)| !sends(*direction, is_client));
    end::StreamAppConfig {
        sender: TransferSender::new(&flow.pattern, start).filter(|_| sending),
        receiver: incoming.map(|(_, received)| (start, Arc::clone(received))),
        session: talks.map(|talks| (talks.end(is_client), number)),
        manner: TransferOptions::default(),
        budget: None,
    }
}

/// Connects and accepts one stream.
fn open(
    stage: &TrafficContext,
    flow: &Flow,
    listener: &FlowListener,
    deadline: Instant,
    part: StreamContext<'_>,
) -> Result<(OpenEndpoint, OpenEndpoint), String> {
    let hosts = &stage.network.scenario.hosts;
    let name = |host: usize| hosts.get(host).map_or("?", |host| host.name.as_str());
    let target = address_on(stage, flow, flow.to).ok_or("the flow's path is unknown")?;
    let target = SocketAddr::new(target, listener.port);
    let patience = deadline.saturating_since(stage.now()).max(IO_POLL_INTERVAL);
    let refused = |error: io::Error| {
        format!("`{}` cannot connect to `{}`: {error}", name(flow.from), name(flow.to))
    };
    if let FlowListenerKind::Quic(quic) = &listener.kind {
        let ends = (address_on(stage, flow, flow.from), target);
        let halves = [true, false].map(|is_client| app_config(flow, is_client, part));
        let opened = quic.open(stage, (flow, part.0), ends, halves, patience).map_err(refused)?;
        let [client, server] = opened.map(OpenEndpoint::Inside);
        return Ok((client, server));
    }
    let client = if let Some(stack) = own_stack(stage, flow.from) {
        let ends = (address_on(stage, flow, flow.from), target);
        let halves = app_config(flow, true, part);
        own::connect(stage, (flow, stack), ends, halves, patience)
            .map(OpenEndpoint::Inside)
            .map_err(refused)?
    } else {
        let client = new_socket(stage, flow, flow.from).map_err(|error| {
            explain(&error, flow.transport_in(stage.transport), name(flow.from))
        })?;
        client.connect_timeout(&SockAddr::from(target), patience).map_err(refused)?;
        OpenEndpoint::Kernel(Arc::new(client))
    };
    let server = match &listener.kind {
        FlowListenerKind::Own(own) => {
            own.accept(stage, app_config(flow, false, part), deadline).map(OpenEndpoint::Inside)
        }
        // Done above.
        FlowListenerKind::Quic(_) => Err(io::ErrorKind::Unsupported.into()),
        FlowListenerKind::Kernel(socket) => {
            accept(stage, socket, deadline).map(|socket| OpenEndpoint::Kernel(Arc::new(socket)))
        }
    };
    let server = server.map_err(|error| format!("`{}` does not accept: {error}", name(flow.to)))?;
    for end in [&client, &server] {
        let OpenEndpoint::Kernel(socket) = end else { continue };
        let set = if part.2.is_some() {
            // A message does not wait for the next one.
            socket.set_tcp_nodelay(true).and_then(|()| socket.set_nonblocking(true))
        } else {
            socket
                .set_read_timeout(Some(IO_POLL_INTERVAL))
                .and_then(|()| socket.set_write_timeout(Some(IO_POLL_INTERVAL)))
        };
        set.map_err(|error| error.to_string())?;
    }
    Ok((client, server))
}

/// The address of `host` on the path where the flow starts.
fn address_on(stage: &TrafficContext, flow: &Flow, host: usize) -> Option<IpAddr> {
    let path = stage.network.scenario.paths.get(flow.via)?;
    Some(address::address(flow.via, end_of(path, host)?, flow.family, 0))
}

fn accept(stage: &TrafficContext, listener: &Socket, deadline: Instant) -> io::Result<Socket> {
    loop {
        match listener.accept() {
            Ok((socket, _)) => return Ok(socket),
            Err(error) if is_timeout(&error) && !stage.pace.is_over(deadline) => {}
            Err(error) => return Err(error),
        }
    }
}
