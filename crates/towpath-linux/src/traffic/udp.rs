//! UDP at a constant rate over one path of an emulated network.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread;

use socket2::{SockAddr, Socket};
use towpath_measure::live::TestToken;
use towpath_measure::metrics::DeliveryLog;
use towpath_measure::scenario::{DataDirection, Family, Flow, Udp};
use towpath_measure::traffic::directions;
use towpath_measure::traffic::udp::{UdpReceiver, UdpSender, merge_reports};
use towpath_net::Instant;

use super::{DirectionDelivery, FIRST_PORT, FlowOutcome, TrafficContext, UdpFlowResult};
use crate::path_ping;
use crate::udp_flow::{self, ControlHandler, UdpReceiveTask, UdpSendTask};

/// Sockets of a flow: the first host's and the second's.
struct UdpSocketPair<'a> {
    stage: &'a TrafficContext,
    flow: &'a Flow,
    port: u16,
    sockets: [Socket; 2],
}

/// Progress of the sender, which runs in the same process.
struct SenderProgress<'a> {
    sent: &'a AtomicU64,
    done: &'a AtomicBool,
}

impl ControlHandler for SenderProgress<'_> {
    fn is_over(&self, received: u64) -> bool {
        self.done.load(Ordering::Acquire) && received >= self.sent.load(Ordering::Acquire)
    }
}

/// Runs both ends of a flow.
pub(crate) fn run(
    stage: &TrafficContext,
    (index, flow): (usize, &Flow),
    plan: &Udp,
) -> FlowOutcome {
    let port = FIRST_PORT + index as u16;
    let failed = |error: io::Error| {
        let hosts = [flow.from, flow.to].map(|host| stage.network.hosts.get(host));
        let own = hosts.into_iter().flatten().find(|host| host.stack.is_some());
        let failure = own.map_or_else(
            || error.to_string(),
            |host| format!("`{}` has a stack of its own, and no UDP sockets", host.name),
        );
        FlowOutcome { failure: Some(failure), ..FlowOutcome::default() }
    };
    let sockets = match (
        open_socket(stage, flow, flow.from, port),
        open_socket(stage, flow, flow.to, port),
    ) {
        (Ok(from), Ok(to)) => [from, to],
        (Err(error), _) | (_, Err(error)) => return failed(error),
    };
    let ends = UdpSocketPair { stage, flow, port, sockets };
    let mut outcome = FlowOutcome::default();
    let each = thread::scope(|scope| {
        let ends = &ends;
        let run =
            |direction| scope.spawn(move || ends.run_direction(index as u32, plan, direction));
        let all: Vec<_> = directions(&flow.pattern).iter().map(|way| run(*way)).collect();
        all.into_iter().filter_map(|way| way.join().ok()).collect::<Vec<_>>()
    });
    for (datagrams, log) in each {
        let direction = datagrams.as_ref().map(|one| one.direction);
        outcome
            .delivered
            .extend(direction.map(|direction| DirectionDelivery { direction, logs: vec![log] }));
        outcome.datagrams.extend(datagrams);
    }
    let names = [flow.from, flow.to]
        .map(|host| stage.network.hosts.get(host).map_or("?", |host| host.name.as_str()));
    let dropped = names.iter().zip(&ends.sockets);
    outcome.warning = { dropped }
        .find_map(|(name, socket)| udp_flow::drop_warning(name, udp_flow::socket_drops(socket)));
    outcome
}

fn open_socket(stage: &TrafficContext, flow: &Flow, host: usize, port: u16) -> io::Result<Socket> {
    let network = &stage.network;
    let space = network.hosts.get(host).ok_or(io::ErrorKind::NotFound)?;
    let path = network.scenario.paths.get(flow.via).ok_or(io::ErrorKind::NotFound)?;
    let any: IpAddr = match flow.family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    };
    let bound = || path_ping::bind(&path.name, SocketAddr::new(any, port));
    if space.stack.is_some() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let socket = Socket::from(space.namespace.run(bound)??);
    udp_flow::configure_socket(&socket)?;
    Ok(socket)
}

impl UdpSocketPair<'_> {
    /// Runs sender and receiver of one direction.
    fn run_direction(
        &self,
        flow: u32,
        plan: &Udp,
        direction: DataDirection,
    ) -> (Option<UdpFlowResult>, DeliveryLog) {
        let pace = &self.stage.pace;
        let scenario = &self.stage.network.scenario;
        let (start, sample) = (Instant::ZERO + self.flow.start, scenario.run.sample);
        let deadline = start + self.flow.pattern.limit();
        let [first, second] = &self.sockets;
        let down = direction == DataDirection::Down;
        let (own, other) = if down { (second, first) } else { (first, second) };
        let receiver_host = if down { self.flow.from } else { self.flow.to };
        let bytes = Arc::new(AtomicU64::new(0));
        let mut all = self.stage.udp_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        all.push((flow, direction, Arc::clone(&bytes)));
        drop(all);
        let (token, length) = (TestToken::NONE, plan.bytes as usize);
        let outgoing = UdpSendTask {
            sender: UdpSender::new(*plan, start, sample),
            token,
            flow,
            datagram_bytes: length,
        };
        let incoming = UdpReceiveTask {
            receiver: UdpReceiver::new(plan, start, sample),
            log: DeliveryLog::new(start),
            bytes: &bytes,
            token,
            flow,
        };
        let (sent, done) = (AtomicU64::new(0), AtomicBool::new(false));
        pace.sleep_until(start);
        let (sender, (counted, log)) = thread::scope(|scope| {
            let sending = scope.spawn(|| {
                let sender = outgoing.run(pace, start + plan.duration, &mut |datagram| {
                    let target = self.target(receiver_host)?;
                    own.send_to(datagram, &target)?;
                    Ok(())
                });
                sent.store(sender.sent(), Ordering::Release);
                done.store(true, Ordering::Release);
                sender
            });
            let mut known = SenderProgress { sent: &sent, done: &done };
            let heard = incoming.run(pace, other, deadline, &mut known);
            (sending.join().ok(), heard)
        });
        let path = scenario.paths.get(self.flow.via).map_or("?", |path| path.name.as_str());
        let sent = sender.map(UdpSender::finish);
        let received = counted.finish(true);
        let ends = (sent.as_ref(), Some(&received));
        let joined = merge_reports(plan, (flow, start, sample), (direction, path), ends);
        (joined.map(|(figures, rows)| UdpFlowResult { direction, stats: figures, rows }), log)
    }

    /// Returns the receiver's current address, which may change during the flow.
    fn target(&self, host: usize) -> io::Result<SockAddr> {
        let network = &self.stage.network;
        let address = network.address(self.flow.via, host, self.flow.family);
        let address = address.ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(SocketAddr::new(address, self.port).into())
    }
}
