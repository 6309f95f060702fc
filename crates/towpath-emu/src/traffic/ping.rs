//! UDP pings over the paths of an emulated network.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use towpath_net::Instant;
use towpath_result::Probe;
use towpath_run::token::TestToken;
use towpath_run::traffic::Pinger;
use towpath_scenario::network::joined_by;
use towpath_scenario::{Family, Flow, Udping};
use towpath_sockets::path_ping;
use towpath_sockets::path_ping::{PathPinger, PingPath};

use super::{FIRST_PORT, TrafficContext};

/// One emulated path of a flow.
#[derive(Debug, Clone, Copy)]
struct EmulatedPingPath<'a> {
    context: &'a TrafficContext,
    flow: &'a Flow,
    path: usize,
    port: u16,
}

impl EmulatedPingPath<'_> {
    fn address(&self, host: usize) -> io::Result<IpAddr> {
        let address = self.context.network.address(self.path, host, self.flow.family);
        address.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// Opens a socket of one of the flow's hosts, bound to this path's interface.
    fn bind(&self, host: usize, address: SocketAddr) -> io::Result<UdpSocket> {
        let network = &self.context.network;
        let namespace = network.hosts.get(host).ok_or(io::ErrorKind::NotFound)?;
        let interface = self.name();
        namespace.namespace.run(|| path_ping::bind(interface, address))?
    }

    /// Returns the name of the path and of the interfaces at its ends.
    fn name(&self) -> &str {
        self.context.network.scenario.paths.get(self.path).map_or("?", |path| path.name.as_str())
    }
}

impl PingPath for EmulatedPingPath<'_> {
    fn open(&self) -> io::Result<UdpSocket> {
        self.bind(self.flow.from, SocketAddr::new(self.address(self.flow.from)?, 0))
    }

    fn target(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::new(self.address(self.flow.to)?, self.port))
    }
}

/// Runs both ends of a ping flow; returns its probes, and a failure if one occurred.
pub(crate) fn run(
    context: &TrafficContext,
    (index, flow): (usize, &Flow),
    plan: &Udping,
) -> (Vec<Probe>, Option<String>) {
    let start = Instant::ZERO + flow.start;
    let deadline = start + plan.duration + plan.reply_timeout;
    let port = FIRST_PORT + index as u16;
    let paths = joined_by(&context.network.scenario, flow);
    let paths: Vec<_> = paths.map(|path| EmulatedPingPath { context, flow, path, port }).collect();
    let unspecified: IpAddr = match flow.family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    };
    // The interface selects the source address of replies.
    let reply_sockets =
        paths.iter().map(|path| path.bind(flow.to, SocketAddr::new(unspecified, port)));
    let (sockets, failure) = match reply_sockets.collect::<io::Result<Vec<_>>>() {
        Ok(sockets) => (sockets, None),
        Err(error) => (Vec::new(), Some(port_error(context, (index, flow), &error))),
    };
    context.run_clock.sleep_until(start);
    let pingers: Vec<_> = paths
        .into_iter()
        .map(|path| {
            let pinger = Pinger::new(*plan, start);
            PathPinger::new(path.name().to_owned(), path, pinger, TestToken::NONE)
        })
        .collect();
    let done = AtomicBool::new(false);
    let probes = thread::scope(|scope| {
        scope.spawn(|| path_ping::echo_loop(&sockets, &done));
        let probes = path_ping::run(&context.run_clock, index as u32, pingers, deadline, &|| false);
        done.store(true, Ordering::Release);
        probes
    });
    (probes, failure)
}

fn port_error(
    context: &TrafficContext,
    (index, flow): (usize, &Flow),
    error: &io::Error,
) -> String {
    let hosts = &context.network.hosts;
    let stack_host = [flow.from, flow.to].into_iter().filter_map(|host| hosts.get(host));
    let stack_host = { stack_host }.find(|host| host.stack.is_some());
    let reason = stack_host.map_or_else(
        || error.to_string(),
        |host| format!("`{}` has towpath's own stack, which has no UDP sockets", host.name),
    );
    format!("the datagrams of flow {index} get no reply: {reason}")
}
