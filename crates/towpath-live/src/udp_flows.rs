//! UDP flows at a constant rate (pattern `udp`) between two real hosts.
//!
//! A server counts the datagrams that arrive on its port, and sends from that port at the rate of
//! the plan. To prevent reflection attacks, it sends only to an address that returned a challenge
//! within the last [`SUBSCRIPTION_TIMEOUT`].

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use towpath_net::Instant;
use towpath_result::metrics::DeliveryLog;
use towpath_run::stamp;
use towpath_run::stamp::{DatagramHeader, DatagramKind};
use towpath_run::token::TestToken;
use towpath_run::traffic::udp::{UdpReceiver, UdpSender};
use towpath_scenario::flow_plan::directions;
use towpath_scenario::{DataDirection, Flow, Pattern, Scenario, Udp};
use towpath_sockets::quic::ListenerSocket;
use towpath_sockets::run_clock::RunClock;
use towpath_sockets::stream::kernel::SLOT_BYTES;
use towpath_sockets::stream::sends;
use towpath_sockets::traffic_budget::TrafficDirection;
use towpath_sockets::udp_flow;
use towpath_sockets::udp_flow::{ControlHandler, UdpReceiveTask, UdpSendTask};

use super::flow_runner::FlowRunner;
use super::host_info::{PathNames, interfaces, path_name};
use super::probe::ProbeTarget;
use super::random;
use crate::protocol::{DatagramReport, FlowReport, HostInfo};

/// Interval of a client's subscriptions before it has received a challenge.
const INITIAL_SUBSCRIBE_INTERVAL: Duration = Duration::from_millis(50);
/// Interval of a client's subscriptions after it has received a challenge.
const SUBSCRIBE_INTERVAL: Duration = Duration::from_millis(250);
/// Lifetime of a subscription without renewal.
const SUBSCRIPTION_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest sleep of a thread that must notice an interrupt.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Bytes of arrived datagrams by flow and direction.
pub(super) type UdpByteCounters = Vec<(u32, DataDirection, Arc<AtomicU64>)>;

/// Returns the counters of the directions that an endpoint receives, all zero.
pub(super) fn counters(scenario: &Scenario, is_client: bool) -> UdpByteCounters {
    let flows = (0_u32..).zip(&scenario.flows);
    let udp_flows = flows.filter(|(_, flow)| matches!(flow.pattern, Pattern::Udp(_)));
    let counters = udp_flows.flat_map(|(number, flow)| {
        let all_directions = directions(&flow.pattern).iter();
        let incoming = all_directions.filter(move |direction| !sends(**direction, is_client));
        incoming.map(move |direction| (number, *direction, Arc::default()))
    });
    counters.collect()
}

/// Listening sockets of a server by port and family; true for IPv4.
pub(super) type ListenerSockets = BTreeMap<(u16, bool), ListenerSocket>;

/// UDP flow on a server.
#[derive(Debug)]
pub(super) struct UdpServerFlow {
    /// Key of the flow's challenges.
    challenge_key: [u8; 16],
    state: Mutex<UdpServerFlowState>,
    received_bytes: Arc<AtomicU64>,
}

#[derive(Debug)]
struct UdpServerFlowState {
    /// Receiver and deliveries while the traffic runs; `None` if nothing is received.
    receiver: Option<(UdpReceiver, DeliveryLog)>,
    /// Subscriber: its address, the local address it sent to, and the time of its last
    /// subscription.
    subscriber: Option<(SocketAddr, SocketAddr, Instant)>,
}

impl UdpServerFlow {
    /// Creates the UDP flows of a test by flow index.
    pub(super) fn from_scenario(scenario: &Scenario) -> io::Result<BTreeMap<u32, Arc<Self>>> {
        let mut flows = BTreeMap::new();
        for (number, flow) in (0_u32..).zip(&scenario.flows) {
            let Pattern::Udp(plan) = &flow.pattern else { continue };
            let start = Instant::ZERO + flow.start;
            let up = directions(&flow.pattern).contains(&DataDirection::Up);
            let receiver = up.then(|| {
                let receiver = UdpReceiver::new(plan, start, scenario.run.sample);
                (receiver, DeliveryLog::new(start))
            });
            let state = Mutex::new(UdpServerFlowState { receiver, subscriber: None });
            flows.insert(
                number,
                Arc::new(Self { challenge_key: random()?, state, received_bytes: Arc::default() }),
            );
        }
        Ok(flows)
    }

    /// Frees the receiver of a flow that will not run.
    pub(super) fn release(&self) {
        self.lock().receiver = None;
    }

    fn lock(&self) -> MutexGuard<'_, UdpServerFlowState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a datagram of the traffic if the budget permits.
    pub(super) fn receive(&self, run_clock: &RunClock, header: &DatagramHeader, length: usize) {
        if run_clock.is_interrupted() || !run_clock.can_consume(TrafficDirection::Inbound) {
            return;
        }
        run_clock.consume(TrafficDirection::Inbound, length);
        let at = run_clock.now();
        let mut state = self.lock();
        let Some((receiver, log)) = &mut state.receiver else { return };
        if receiver.on_datagram(at, (header.number, header.sent_at()), length) {
            let at = log.last().map_or(at, |last| last.max(at));
            let slots_before = log.slots();
            log.record(at, length as u64);
            if log.slots() > slots_before {
                run_clock.add_memory(SLOT_BYTES);
            }
            self.received_bytes.fetch_add(length as u64, Ordering::Relaxed);
        }
    }

    /// Handles a subscription. Returns a challenge unless the client has returned the one for its
    /// address.
    pub(super) fn on_subscribe(
        &self,
        now: Instant,
        header: &DatagramHeader,
        (peer, local): (SocketAddr, SocketAddr),
    ) -> Option<DatagramHeader> {
        let challenge = stamp::challenge(&self.challenge_key, peer);
        if header.number == challenge {
            self.lock().subscriber = Some((peer, local, now));
            return None;
        }
        Some(DatagramHeader { kind: DatagramKind::Challenge, number: challenge, ..*header })
    }

    /// Returns the subscriber's address and the local one; `None` if the subscription has expired.
    fn subscriber(&self, now: Instant) -> Option<(SocketAddr, SocketAddr)> {
        let (peer, local, at) = self.lock().subscriber?;
        (now.saturating_since(at) < SUBSCRIPTION_TIMEOUT).then_some((peer, local))
    }
}

/// Context of a server's UDP flows.
#[derive(Debug, Clone, Copy)]
pub(super) struct UdpServerContext<'a> {
    pub(super) flows: &'a BTreeMap<u32, Arc<UdpServerFlow>>,
    pub(super) listener_sockets: &'a ListenerSockets,
    pub(super) token: TestToken,
}

impl UdpServerContext<'_> {
    /// Returns the byte counters of the flows that the server receives.
    pub(super) fn counters(&self) -> UdpByteCounters {
        let receives = |flow: &UdpServerFlow| flow.lock().receiver.is_some();
        let receiving_flows = self.flows.iter().filter(|(_, flow)| receives(flow));
        receiving_flows
            .map(|(number, flow)| (*number, DataDirection::Up, Arc::clone(&flow.received_bytes)))
            .collect()
    }
}

impl FlowRunner<'_> {
    /// Runs a UDP flow at this endpoint.
    pub(super) fn run_udp(
        &self,
        (number, flow): (u32, &Flow),
        plan: &Udp,
        udp_counters: &UdpByteCounters,
    ) -> FlowReport {
        let mut report = FlowReport { flow: number, ..FlowReport::default() };
        let result = match (&self.probe_target, &self.udp_server) {
            (Some(target), _) => {
                self.run_udp_client(target, (number, flow), plan, (udp_counters, &mut report))
            }
            (None, Some(context)) => {
                self.run_udp_server(*context, (number, flow), plan, &mut report);
                Ok(())
            }
            (None, None) => Err(io::ErrorKind::NotConnected.into()),
        };
        report.failure =
            result.err().map(|error| format!("its datagrams could not be sent: {error}"));
        report
    }

    fn udp_times(&self, flow: &Flow) -> (Instant, Instant, Duration) {
        let start = Instant::ZERO + flow.start;
        (start, start + flow.pattern.limit(), self.scenario.run.sample)
    }

    fn run_udp_client(
        &self,
        target: &ProbeTarget,
        (number, flow): (u32, &Flow),
        plan: &Udp,
        (udp_counters, report): (&UdpByteCounters, &mut FlowReport),
    ) -> io::Result<()> {
        let (start, deadline, sample) = self.udp_times(flow);
        let socket = open_socket(target, self.scenario, flow, plan)?;
        let local = socket.local_addr()?.as_socket().map(|local| local.ip());
        let path = local.and_then(|ip| PathNames::default().lookup(ip.to_canonical()));
        let incoming = udp_counters.iter().find(|(flow, ..)| *flow == number);
        let has_outgoing =
            directions(&flow.pattern).iter().any(|direction| sends(*direction, true));
        let length = plan.bytes as usize;
        let (token, flow) = (target.token, number);
        let outgoing = has_outgoing.then(|| {
            let sender = UdpSender::new(*plan, start, sample);
            UdpSendTask { sender, token, flow, datagram_bytes: length }
        });
        let (sent, received) = thread::scope(|scope| {
            let socket = &socket;
            let sender_thread = outgoing.map(|outgoing| {
                scope.spawn(move || {
                    self.run_clock.wait_until(start);
                    let mut out = |datagram: &[u8]| socket.send(datagram).map(|_| ());
                    outgoing.run(self.run_clock, start + plan.duration, &mut out).finish()
                })
            });
            let received = incoming.map(|(_, direction, bytes)| {
                let incoming = UdpReceiveTask {
                    receiver: UdpReceiver::new(plan, start, sample),
                    log: DeliveryLog::new(start),
                    bytes,
                    token,
                    flow,
                };
                let mut subscription =
                    UdpSubscription { socket, token, flow, challenge: 0, next_due: Instant::ZERO };
                let (receiver, log) =
                    incoming.run(self.run_clock, socket, deadline, &mut subscription);
                (*direction, receiver.finish(false), log)
            });
            (sender_thread.and_then(|sender_thread| sender_thread.join().ok()), received)
        });
        if let Some(sent) = sent {
            let direction = DataDirection::Up;
            let path = path.clone();
            report.datagrams.push(DatagramReport {
                direction,
                path,
                sent: Some(sent),
                received: None,
            });
        }
        if let Some((direction, received, log)) = received {
            let received = Some(received);
            report.delivered.push((direction, log));
            report.datagrams.push(DatagramReport { direction, path, sent: None, received });
        }
        let dropped = udp_flow::socket_drops(&socket);
        report.notes.extend(udp_flow::drop_warning("client", dropped));
        Ok(())
    }

    fn run_udp_server(
        &self,
        context: UdpServerContext<'_>,
        (number, flow): (u32, &Flow),
        plan: &Udp,
        report: &mut FlowReport,
    ) {
        let (start, deadline, sample) = self.udp_times(flow);
        let Some(server_flow) = context.flows.get(&number) else { return };
        if directions(&flow.pattern).contains(&DataDirection::Down) {
            let direction = DataDirection::Down;
            let sender = UdpSender::new(*plan, start, sample);
            let (token, length) = (context.token, plan.bytes as usize);
            let outgoing = UdpSendTask { sender, token, flow: number, datagram_bytes: length };
            let end = start + plan.duration;
            let sent = self
                .send_to_subscriber(server_flow, context.listener_sockets, outgoing, (start, end))
                .finish();
            let sent = Some(sent);
            report.datagrams.push(DatagramReport { direction, path: None, sent, received: None });
        }
        while !self.run_clock.is_over(deadline) {
            self.run_clock.sleep_until((self.run_clock.now() + POLL_INTERVAL).min(deadline));
        }
        if let Some((receiver, mut log)) = server_flow.lock().receiver.take() {
            log.watch_until(self.run_clock.now().min(deadline));
            let (direction, received) = (DataDirection::Up, Some(receiver.finish(false)));
            report.delivered.push((direction, log));
            report.datagrams.push(DatagramReport { direction, path: None, sent: None, received });
        }
    }

    /// Sends while the subscription lasts.
    fn send_to_subscriber(
        &self,
        server_flow: &UdpServerFlow,
        listener_sockets: &ListenerSockets,
        mut outgoing: UdpSendTask,
        (start, end): (Instant, Instant),
    ) -> UdpSender {
        let run_clock = self.run_clock;
        run_clock.wait_until(start);
        while server_flow.subscriber(run_clock.clock().now()).is_none() && !run_clock.is_over(end) {
            run_clock.sleep_until(run_clock.now() + Duration::from_millis(1));
        }
        // Datagrams before the first subscription were not due.
        outgoing.sender.begin_at(run_clock.now());
        outgoing.run(run_clock, end, &mut |datagram| {
            let subscriber = server_flow.subscriber(run_clock.clock().now());
            let (peer, local) = subscriber.ok_or(io::ErrorKind::NotConnected)?;
            let socket = listener_sockets.get(&(local.port(), peer.is_ipv4()));
            socket.ok_or(io::ErrorKind::NotConnected)?.send(local.ip(), peer, datagram)
        })
    }
}

/// Subscription of a client to a UDP flow.
struct UdpSubscription<'a> {
    socket: &'a Socket,
    token: TestToken,
    flow: u32,
    challenge: u64,
    next_due: Instant,
}

impl ControlHandler for UdpSubscription<'_> {
    fn send_due(&mut self, now: Instant) -> Option<Instant> {
        if now >= self.next_due {
            let (token, flow, number) = (self.token, self.flow, self.challenge);
            let (kind, sent_ns) = (DatagramKind::Subscribe, now.as_nanos());
            let header = DatagramHeader { kind, token, flow, number, sent_ns };
            let _ = self.socket.send(&header.to_bytes()); // repeated soon
            self.next_due = now
                + if self.challenge == 0 { INITIAL_SUBSCRIBE_INTERVAL } else { SUBSCRIBE_INTERVAL };
        }
        Some(self.next_due)
    }

    fn on_control(&mut self, header: &DatagramHeader) {
        if header.kind == DatagramKind::Challenge && header.number != self.challenge {
            self.challenge = header.number;
            self.next_due = Instant::ZERO;
        }
    }

    fn is_over(&self, _received: u64) -> bool {
        false
    }
}

/// Opens a socket to the server, bound to the named path or to the client's source.
fn open_socket(
    target: &ProbeTarget,
    scenario: &Scenario,
    flow: &Flow,
    plan: &Udp,
) -> io::Result<Socket> {
    let address = target.target;
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    let bound_path = scenario.paths.get(flow.via).filter(|_| plan.is_bound);
    let interface = match bound_path {
        Some(path) => {
            let names = interfaces()?.into_iter().map(|interface| interface.name);
            let name = { names }.find(|name| path_name(name) == path.name);
            Some(name.ok_or(io::ErrorKind::AddrNotAvailable)?)
        }
        None => target.source.interface.clone(),
    };
    if let Some(interface) = interface {
        socket.bind_device(Some(interface.as_bytes()))?;
    }
    let source_address: Option<IpAddr> = target.source.address.filter(|_| bound_path.is_none());
    if let Some(address) = source_address {
        socket.bind(&SockAddr::from(SocketAddr::new(address, 0)))?;
    }
    socket.connect(&SockAddr::from(address))?;
    udp_flow::configure_socket(&socket)?;
    Ok(socket)
}

/// Moves the notes of flows to the warnings of the host.
pub(super) fn move_notes(flows: &mut [FlowReport], host: &mut HostInfo) {
    let notes = flows.iter_mut().flat_map(|flow| std::mem::take(&mut flow.notes));
    host.warnings.extend(notes);
}

#[cfg(test)]
mod tests {
    use towpath_scenario::no_files;

    use super::*;

    const PLAN: &str = "name = \"t\"\n[hosts.client]\n[hosts.server]\n[paths.eth0]\n\
        between = [\"client\", \"server\"]\n[[flows]]\nfrom = \"client\"\nto = \"server\"\n\
        pattern = \"udp\"\ndirection = \"both\"\n";

    fn test_flow() -> Arc<UdpServerFlow> {
        let scenario = Scenario::parse("the test", PLAN, &no_files).unwrap();
        Arc::clone(&UdpServerFlow::from_scenario(&scenario).unwrap()[&0])
    }

    fn subscribe_header(number: u64) -> DatagramHeader {
        let token = TestToken([7; 16]);
        DatagramHeader { kind: DatagramKind::Subscribe, token, flow: 0, number, sent_ns: 1 }
    }

    /// A client that subscribes for another address does not receive the challenge.
    #[test]
    fn nothing_is_sent_to_an_unvalidated_address() {
        let flow = test_flow();
        let now = Instant::from_nanos(1);
        let local: SocketAddr = "192.0.2.1:5210".parse().unwrap();
        let (peer, victim) = ("192.0.2.2:4000".parse().unwrap(), "192.0.2.3:4000".parse().unwrap());
        let challenge = flow.on_subscribe(now, &subscribe_header(0), (peer, local)).unwrap();
        assert_eq!(flow.subscriber(now), None);
        assert_eq!(challenge.to_bytes().len(), subscribe_header(0).to_bytes().len());
        // A challenge is invalid for another address and in another test.
        assert!(
            flow.on_subscribe(now, &subscribe_header(challenge.number), (victim, local)).is_some()
        );
        assert!(
            test_flow()
                .on_subscribe(now, &subscribe_header(challenge.number), (peer, local))
                .is_some()
        );
        assert_eq!(flow.subscriber(now), None);
        assert_eq!(
            flow.on_subscribe(now, &subscribe_header(challenge.number), (peer, local)),
            None
        );
        assert_eq!(flow.subscriber(now), Some((peer, local)));
    }

    #[test]
    fn sending_stops_without_renewed_requests_from_the_receiver() {
        let flow = test_flow();
        let (peer, local) = ("192.0.2.2:4000".parse().unwrap(), "192.0.2.1:1".parse().unwrap());
        let now = Instant::from_nanos(1);
        let challenge = flow.on_subscribe(now, &subscribe_header(0), (peer, local)).unwrap().number;
        flow.on_subscribe(now, &subscribe_header(challenge), (peer, local));
        let later = now + SUBSCRIPTION_TIMEOUT;
        assert_eq!(
            (flow.subscriber(later).is_some(), flow.subscriber(now).is_some()),
            (false, true)
        );
        flow.on_subscribe(later, &subscribe_header(challenge), (peer, local));
        assert!(flow.subscriber(later).is_some());
    }

    #[test]
    fn only_incoming_datagrams_are_counted() {
        let scenario = Scenario::parse("the test", PLAN, &no_files).unwrap();
        let received_directions = |is_client| {
            let received = counters(&scenario, is_client).into_iter();
            received.map(|(flow, direction, _)| (flow, direction)).collect::<Vec<_>>()
        };
        assert_eq!(received_directions(true), [(0, DataDirection::Down)]);
        assert_eq!(received_directions(false), [(0, DataDirection::Up)]);
    }
}
