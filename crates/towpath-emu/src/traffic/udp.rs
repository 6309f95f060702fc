//! UDP at a constant rate over one path of an emulated network.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread;

use socket2::{SockAddr, Socket};
use towpath_net::Instant;
use towpath_result::metrics::DeliveryLog;
use towpath_run::token::TestToken;
use towpath_run::traffic::udp::{UdpReceiver, UdpSender, merge_reports};
use towpath_scenario::flow_plan::directions;
use towpath_scenario::{DataDirection, Family, Flow, Udp};
use towpath_sockets::path_ping;
use towpath_sockets::udp_flow;
use towpath_sockets::udp_flow::{ControlHandler, UdpReceiveTask, UdpSendTask};

use super::{DirectionDelivery, FIRST_PORT, FlowOutcome, TrafficContext, UdpFlowResult};

/// Sockets of a flow: the first host's and the second's.
struct UdpSocketPair<'a> {
    context: &'a TrafficContext,
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
    context: &TrafficContext,
    (index, flow): (usize, &Flow),
    plan: &Udp,
) -> FlowOutcome {
    let port = FIRST_PORT + index as u16;
    let failure_outcome = |error: io::Error| {
        let hosts = [flow.from, flow.to].map(|host| context.network.hosts.get(host));
        let stack_host = hosts.into_iter().flatten().find(|host| host.stack.is_some());
        let failure = stack_host.map_or_else(
            || error.to_string(),
            |host| format!("`{}` has towpath's own stack, which has no UDP sockets", host.name),
        );
        FlowOutcome { failure: Some(failure), ..FlowOutcome::default() }
    };
    let sockets = match (
        open_socket(context, flow, flow.from, port),
        open_socket(context, flow, flow.to, port),
    ) {
        (Ok(first), Ok(second)) => [first, second],
        (Err(error), _) | (_, Err(error)) => return failure_outcome(error),
    };
    let socket_pair = UdpSocketPair { context, flow, port, sockets };
    let mut outcome = FlowOutcome::default();
    let results = thread::scope(|scope| {
        let socket_pair = &socket_pair;
        let run = |direction| {
            scope.spawn(move || socket_pair.run_direction(index as u32, plan, direction))
        };
        let threads: Vec<_> =
            directions(&flow.pattern).iter().map(|direction| run(*direction)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<_>>()
    });
    for (datagrams, log) in results {
        let direction = datagrams.as_ref().map(|result| result.direction);
        outcome
            .delivered
            .extend(direction.map(|direction| DirectionDelivery { direction, logs: vec![log] }));
        outcome.datagrams.extend(datagrams);
    }
    let names = [flow.from, flow.to]
        .map(|host| context.network.hosts.get(host).map_or("?", |host| host.name.as_str()));
    let named_sockets = names.iter().zip(&socket_pair.sockets);
    outcome.warning = { named_sockets }
        .find_map(|(name, socket)| udp_flow::drop_warning(name, udp_flow::socket_drops(socket)));
    outcome
}

fn open_socket(
    context: &TrafficContext,
    flow: &Flow,
    host: usize,
    port: u16,
) -> io::Result<Socket> {
    let network = &context.network;
    let namespace = network.hosts.get(host).ok_or(io::ErrorKind::NotFound)?;
    let path = network.scenario.paths.get(flow.via).ok_or(io::ErrorKind::NotFound)?;
    let unspecified: IpAddr = match flow.family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    };
    let bind = || path_ping::bind(&path.name, SocketAddr::new(unspecified, port));
    if namespace.stack.is_some() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let socket = Socket::from(namespace.namespace.run(bind)??);
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
        let run_clock = &self.context.run_clock;
        let scenario = &self.context.network.scenario;
        let (start, sample) = (Instant::ZERO + self.flow.start, scenario.run.sample);
        let deadline = start + self.flow.pattern.limit();
        let [first, second] = &self.sockets;
        let is_down = direction == DataDirection::Down;
        let (send_socket, receive_socket) = if is_down { (second, first) } else { (first, second) };
        let receiver_host = if is_down { self.flow.from } else { self.flow.to };
        let bytes = Arc::new(AtomicU64::new(0));
        let mut udp_bytes = self.context.udp_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        udp_bytes.push((flow, direction, Arc::clone(&bytes)));
        drop(udp_bytes);
        let (token, datagram_bytes) = (TestToken::NONE, plan.bytes as usize);
        let send_task = UdpSendTask {
            sender: UdpSender::new(*plan, start, sample),
            token,
            flow,
            datagram_bytes,
        };
        let receive_task = UdpReceiveTask {
            receiver: UdpReceiver::new(plan, start, sample),
            log: DeliveryLog::new(start),
            bytes: &bytes,
            token,
            flow,
        };
        let (sent, done) = (AtomicU64::new(0), AtomicBool::new(false));
        run_clock.sleep_until(start);
        let (sender, (receiver, log)) = thread::scope(|scope| {
            let sender_thread = scope.spawn(|| {
                let sender = send_task.run(run_clock, start + plan.duration, &mut |datagram| {
                    let target = self.target(receiver_host)?;
                    send_socket.send_to(datagram, &target)?;
                    Ok(())
                });
                sent.store(sender.sent(), Ordering::Release);
                done.store(true, Ordering::Release);
                sender
            });
            let mut sender_progress = SenderProgress { sent: &sent, done: &done };
            let received_data =
                receive_task.run(run_clock, receive_socket, deadline, &mut sender_progress);
            (sender_thread.join().ok(), received_data)
        });
        let path = scenario.paths.get(self.flow.via).map_or("?", |path| path.name.as_str());
        let sent = sender.map(UdpSender::finish);
        let report = receiver.finish(true);
        let ends = (sent.as_ref(), Some(&report));
        let merged = merge_reports(plan, (flow, start, sample), (direction, path), ends);
        (merged.map(|(stats, rows)| UdpFlowResult { direction, stats, rows }), log)
    }

    /// Returns the receiver's current address, which may change during the flow.
    fn target(&self, host: usize) -> io::Result<SockAddr> {
        let network = &self.context.network;
        let address = network.address(self.flow.via, host, self.flow.family);
        let address = address.ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(SocketAddr::new(address, self.port).into())
    }
}
