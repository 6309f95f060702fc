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
use towpath_measure::live::stamp::{self, DatagramHeader, DatagramKind};
use towpath_measure::live::{DatagramReport, FlowReport, HostInfo, TestToken};
use towpath_measure::metrics::DeliveryLog;
use towpath_measure::scenario::{DataDirection, Flow, Pattern, Scenario, Udp};
use towpath_measure::traffic::directions;
use towpath_measure::traffic::udp::{UdpReceiver, UdpSender};
use towpath_net::Instant;

use super::flow_runner::FlowRunner;
use super::host_info::{PathNames, interfaces, path_name};
use super::probe::ProbeTarget;
use super::random;
use crate::quic::ListenerSocket;
use crate::run_clock::RunClock;
use crate::traffic::sends;
use crate::traffic_budget::TrafficDirection;
use crate::udp_flow::{self, ControlHandler, UdpReceiveTask, UdpSendTask};

/// Interval of a client's subscriptions before and after it received a challenge.
const INITIAL_SUBSCRIBE_INTERVAL: Duration = Duration::from_millis(50);
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
    let of_udp = flows.filter(|(_, flow)| matches!(flow.pattern, Pattern::Udp(_)));
    let each = of_udp.flat_map(|(number, flow)| {
        let direction = directions(&flow.pattern).iter();
        let incoming = direction.filter(move |way| !sends(**way, is_client));
        incoming.map(move |way| (number, *way, Arc::default()))
    });
    each.collect()
}

/// Listening sockets of a server by port and family; true for IPv4.
pub(super) type ListenerSockets = BTreeMap<(u16, bool), ListenerSocket>;

/// UDP flow on a server.
#[derive(Debug)]
pub(super) struct UdpServerFlow {
    /// Key of the flow's challenges.
    challenge_key: [u8; 16],
    state: Mutex<UdpServerFlowState>,
    bytes: Arc<AtomicU64>,
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
        let mut all = BTreeMap::new();
        for (number, flow) in (0_u32..).zip(&scenario.flows) {
            let Pattern::Udp(plan) = &flow.pattern else { continue };
            let start = Instant::ZERO + flow.start;
            let up = directions(&flow.pattern).contains(&DataDirection::Up);
            let hears = up.then(|| {
                let receiver = UdpReceiver::new(plan, start, scenario.run.sample);
                (receiver, DeliveryLog::new(start))
            });
            let state = Mutex::new(UdpServerFlowState { receiver: hears, subscriber: None });
            all.insert(
                number,
                Arc::new(Self { challenge_key: random()?, state, bytes: Arc::default() }),
            );
        }
        Ok(all)
    }

    fn lock(&self) -> MutexGuard<'_, UdpServerFlowState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a datagram of the traffic if the budget permits.
    pub(super) fn receive(&self, pace: &RunClock, stamp: &DatagramHeader, length: usize) {
        if pace.is_interrupted() || !pace.can_consume(TrafficDirection::Inbound) {
            return;
        }
        pace.consume(TrafficDirection::Inbound, length);
        let at = pace.now();
        let mut state = self.lock();
        let Some((receiver, log)) = &mut state.receiver else { return };
        if receiver.on_datagram(at, (stamp.number, stamp.sent_at()), length) {
            let at = log.last().map_or(at, |last| last.max(at));
            log.record(at, length as u64);
            self.bytes.fetch_add(length as u64, Ordering::Relaxed);
        }
    }

    /// Handles a subscription. Returns a challenge unless the client has returned the one for its
    /// address.
    pub(super) fn on_subscribe(
        &self,
        now: Instant,
        stamp: &DatagramHeader,
        (peer, local): (SocketAddr, SocketAddr),
    ) -> Option<DatagramHeader> {
        let challenge = stamp::challenge(&self.challenge_key, peer);
        if stamp.number == challenge {
            self.lock().subscriber = Some((peer, local, now));
            return None;
        }
        Some(DatagramHeader { kind: DatagramKind::Challenge, number: challenge, ..*stamp })
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
        let hears = |own: &UdpServerFlow| own.lock().receiver.is_some();
        let each = self.flows.iter().filter(|(_, own)| hears(own));
        each.map(|(flow, own)| (*flow, DataDirection::Up, Arc::clone(&own.bytes))).collect()
    }
}

impl FlowRunner<'_> {
    /// Runs a UDP flow at this endpoint.
    pub(super) fn run_udp(
        &self,
        (number, flow): (u32, &Flow),
        plan: &Udp,
        counted: &UdpByteCounters,
    ) -> FlowReport {
        let mut report = FlowReport { flow: number, ..FlowReport::default() };
        let done = match (&self.probe_target, &self.udp_server) {
            (Some(aim), _) => {
                self.run_udp_client(aim, (number, flow), plan, (counted, &mut report))
            }
            (None, Some(served)) => {
                self.run_udp_server(*served, (number, flow), plan, &mut report);
                Ok(())
            }
            (None, None) => Err(io::ErrorKind::NotConnected.into()),
        };
        report.failure =
            done.err().map(|error| format!("its datagrams could not be sent: {error}"));
        report
    }

    fn udp_times(&self, flow: &Flow) -> (Instant, Instant, Duration) {
        let start = Instant::ZERO + flow.start;
        (start, start + flow.pattern.limit(), self.scenario.run.sample)
    }

    fn run_udp_client(
        &self,
        aim: &ProbeTarget,
        (number, flow): (u32, &Flow),
        plan: &Udp,
        (counted, half): (&UdpByteCounters, &mut FlowReport),
    ) -> io::Result<()> {
        let (start, deadline, sample) = self.udp_times(flow);
        let socket = open_socket(aim, self.scenario, flow, plan)?;
        let local = socket.local_addr()?.as_socket().map(|local| local.ip());
        let path = local.and_then(|ip| PathNames::default().of(ip.to_canonical()));
        let incoming = counted.iter().find(|(flow, ..)| *flow == number);
        let has_outgoing = directions(&flow.pattern).iter().any(|way| sends(*way, true));
        let length = plan.bytes as usize;
        let (token, flow) = (aim.token, number);
        let outgoing = has_outgoing.then(|| {
            let sender = UdpSender::new(*plan, start, sample);
            UdpSendTask { sender, token, flow, datagram_bytes: length }
        });
        let (sent, heard) = thread::scope(|scope| {
            let socket = &socket;
            let sending = outgoing.map(|outgoing| {
                scope.spawn(move || {
                    self.pace.wait_until(start);
                    let mut out = |datagram: &[u8]| socket.send(datagram).map(|_| ());
                    outgoing.run(self.pace, start + plan.duration, &mut out).finish()
                })
            });
            let heard = incoming.map(|(_, direction, bytes)| {
                let incoming = UdpReceiveTask {
                    receiver: UdpReceiver::new(plan, start, sample),
                    log: DeliveryLog::new(start),
                    bytes,
                    token,
                    flow,
                };
                let mut wants =
                    UdpSubscription { socket, token, flow, challenge: 0, next_due: Instant::ZERO };
                let (receiver, log) = incoming.run(self.pace, socket, deadline, &mut wants);
                (*direction, receiver.finish(false), log)
            });
            (sending.and_then(|sending| sending.join().ok()), heard)
        });
        if let Some(sent) = sent {
            let direction = DataDirection::Up;
            let path = path.clone();
            half.datagrams.push(DatagramReport {
                direction,
                path,
                sent: Some(sent),
                received: None,
            });
        }
        if let Some((direction, received, log)) = heard {
            let received = Some(received);
            half.delivered.push((direction, log));
            half.datagrams.push(DatagramReport { direction, path, sent: None, received });
        }
        let dropped = udp_flow::socket_drops(&socket);
        half.notes.extend(udp_flow::drop_warning("client", dropped));
        Ok(())
    }

    fn run_udp_server(
        &self,
        served: UdpServerContext<'_>,
        (number, flow): (u32, &Flow),
        plan: &Udp,
        report: &mut FlowReport,
    ) {
        let (start, deadline, sample) = self.udp_times(flow);
        let Some(own) = served.flows.get(&number) else { return };
        if directions(&flow.pattern).contains(&DataDirection::Down) {
            let direction = DataDirection::Down;
            let sender = UdpSender::new(*plan, start, sample);
            let (token, length) = (served.token, plan.bytes as usize);
            let outgoing = UdpSendTask { sender, token, flow: number, datagram_bytes: length };
            let end = start + plan.duration;
            let sent = self
                .send_to_subscriber(own, served.listener_sockets, outgoing, (start, end))
                .finish();
            let sent = Some(sent);
            report.datagrams.push(DatagramReport { direction, path: None, sent, received: None });
        }
        while !self.pace.is_over(deadline) {
            self.pace.sleep_until((self.pace.now() + POLL_INTERVAL).min(deadline));
        }
        if let Some((receiver, mut log)) = own.lock().receiver.take() {
            log.watch_until(self.pace.now().min(deadline));
            let (direction, received) = (DataDirection::Up, Some(receiver.finish(false)));
            report.delivered.push((direction, log));
            report.datagrams.push(DatagramReport { direction, path: None, sent: None, received });
        }
    }

    /// Sends while the subscription lasts.
    fn send_to_subscriber(
        &self,
        own: &UdpServerFlow,
        outlets: &ListenerSockets,
        mut outgoing: UdpSendTask,
        (start, end): (Instant, Instant),
    ) -> UdpSender {
        let pace = self.pace;
        pace.wait_until(start);
        while own.subscriber(pace.clock().now()).is_none() && !pace.is_over(end) {
            pace.sleep_until(pace.now() + Duration::from_millis(1));
        }
        // Datagrams before the first subscription were not due.
        outgoing.sender.begin_at(pace.now());
        outgoing.run(pace, end, &mut |datagram| {
            let wanted = own.subscriber(pace.clock().now());
            let (peer, local) = wanted.ok_or(io::ErrorKind::NotConnected)?;
            let outlet = outlets.get(&(local.port(), peer.is_ipv4()));
            outlet.ok_or(io::ErrorKind::NotConnected)?.send(local.ip(), peer, datagram)
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
            let stamp = DatagramHeader { kind, token, flow, number, sent_ns };
            let _ = self.socket.send(&stamp.to_bytes()); // repeated soon
            self.next_due = now
                + if self.challenge == 0 { INITIAL_SUBSCRIBE_INTERVAL } else { SUBSCRIBE_INTERVAL };
        }
        Some(self.next_due)
    }

    fn on_control(&mut self, stamp: &DatagramHeader) {
        if stamp.kind == DatagramKind::Challenge && stamp.number != self.challenge {
            self.challenge = stamp.number;
            self.next_due = Instant::ZERO;
        }
    }

    fn is_over(&self, _received: u64) -> bool {
        false
    }
}

/// Opens a socket to the server, bound to the named path or to the client's source.
fn open_socket(
    aim: &ProbeTarget,
    scenario: &Scenario,
    flow: &Flow,
    plan: &Udp,
) -> io::Result<Socket> {
    let target = aim.target;
    let domain = Domain::for_address(target);
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    let named = scenario.paths.get(flow.via).filter(|_| plan.is_bound);
    let interface = match named {
        Some(path) => {
            let all = interfaces()?.into_iter().map(|one| one.name);
            let found = { all }.find(|name| path_name(name) == path.name);
            Some(found.ok_or(io::ErrorKind::AddrNotAvailable)?)
        }
        None => aim.source.interface.clone(),
    };
    if let Some(interface) = interface {
        socket.bind_device(Some(interface.as_bytes()))?;
    }
    let own: Option<IpAddr> = aim.source.address.filter(|_| named.is_none());
    if let Some(address) = own {
        socket.bind(&SockAddr::from(SocketAddr::new(address, 0)))?;
    }
    socket.connect(&SockAddr::from(target))?;
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
    use towpath_measure::scenario::no_files;

    use super::*;

    const PLAN: &str = "name = \"t\"\n[hosts.client]\n[hosts.server]\n[paths.eth0]\n\
        between = [\"client\", \"server\"]\n[[flows]]\nfrom = \"client\"\nto = \"server\"\n\
        pattern = \"udp\"\ndirection = \"both\"\n";

    fn test_flow() -> Arc<UdpServerFlow> {
        let scenario = Scenario::parse("the test", PLAN, &no_files).unwrap();
        Arc::clone(&UdpServerFlow::from_scenario(&scenario).unwrap()[&0])
    }

    fn subscribe_stamp(number: u64) -> DatagramHeader {
        let token = TestToken([7; 16]);
        DatagramHeader { kind: DatagramKind::Subscribe, token, flow: 0, number, sent_ns: 1 }
    }

    /// A client that subscribes for another address does not receive the challenge.
    #[test]
    fn nothing_is_sent_to_an_unvalidated_address() {
        let own = test_flow();
        let now = Instant::from_nanos(1);
        let local: SocketAddr = "192.0.2.1:5210".parse().unwrap();
        let (peer, victim) = ("192.0.2.2:4000".parse().unwrap(), "192.0.2.3:4000".parse().unwrap());
        let challenge = own.on_subscribe(now, &subscribe_stamp(0), (peer, local)).unwrap();
        assert_eq!(own.subscriber(now), None);
        assert_eq!(challenge.to_bytes().len(), subscribe_stamp(0).to_bytes().len());
        // A challenge is invalid for another address and in another test.
        assert!(
            own.on_subscribe(now, &subscribe_stamp(challenge.number), (victim, local)).is_some()
        );
        assert!(
            test_flow()
                .on_subscribe(now, &subscribe_stamp(challenge.number), (peer, local))
                .is_some()
        );
        assert_eq!(own.subscriber(now), None);
        assert_eq!(own.on_subscribe(now, &subscribe_stamp(challenge.number), (peer, local)), None);
        assert_eq!(own.subscriber(now), Some((peer, local)));
    }

    #[test]
    fn sending_stops_without_renewed_requests_from_the_receiver() {
        let own = test_flow();
        let (peer, local) = ("192.0.2.2:4000".parse().unwrap(), "192.0.2.1:1".parse().unwrap());
        let now = Instant::from_nanos(1);
        let challenge = own.on_subscribe(now, &subscribe_stamp(0), (peer, local)).unwrap().number;
        own.on_subscribe(now, &subscribe_stamp(challenge), (peer, local));
        let later = now + SUBSCRIPTION_TIMEOUT;
        assert_eq!((own.subscriber(later).is_some(), own.subscriber(now).is_some()), (false, true));
        own.on_subscribe(later, &subscribe_stamp(challenge), (peer, local));
        assert!(own.subscriber(later).is_some());
    }

    #[test]
    fn only_incoming_datagrams_are_counted() {
        let scenario = Scenario::parse("the test", PLAN, &no_files).unwrap();
        let ways = |is_client| {
            let all = counters(&scenario, is_client).into_iter();
            all.map(|(flow, way, _)| (flow, way)).collect::<Vec<_>>()
        };
        assert_eq!(ways(true), [(0, DataDirection::Down)]);
        assert_eq!(ways(false), [(0, DataDirection::Up)]);
    }
}
