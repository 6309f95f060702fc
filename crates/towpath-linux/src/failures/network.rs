//! Network of a failure case.
//!
//! ```text
//!           c1 ── gateway ── box ──┐          ┌── s1
//!  client                          ├── core ──┤       server
//!           c2 ── gateway ── box ──┘          └── s2
//! ```
//!
//! Gateways and core are forwarding kernels, each in a namespace; the middleboxes are ours
//! ([`crate::router`]). Every path thus has three routers, and only the second one may misbehave.
//! Alternatively, all interfaces are at one switch, in one subnet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::time::Duration;

use towpath_measure::scenario::LinkSide;
use towpath_net::config::{Delay, DirectionConfig, Loss, Probability, Queue, QueueLimit, Shaper};
use towpath_net::topology::RouteId;
use towpath_net::{Rate, Topology, stream_seed};

use super::case::{FailurePlan, PathQuality, Routing};
use crate::clock::Clock;
use crate::emulator::engine::{EmulatedPath, Emulator, EngineCommand};
use crate::emulator::frame::GsoSegment;
use crate::emulator::port::EmulatorPort;
use crate::netlink::{NetlinkError, Prefix, RouteSocket, RouteSpec, RuleSpec, Tbf, VethEnd};
use crate::network::build::{
    CarrierControl, choose_backend, empty_host, interface, write_default_settings, write_setting,
};
use crate::network::{HostNamespace, NetworkError};
use crate::router::{EmulatedRouter, RouterRule};
use crate::sandbox::EmulatorThread;

/// Names of the server's interfaces.
pub(crate) const SERVERS: [&str; 2] = ["s1", "s2"];
/// First policy-routing table and first rule priority.
const FIRST_TABLE: u32 = 100;
/// MTU of every link, in bytes.
const MTU: u32 = 1_500;
/// Rate of every link in a switched network, which has no emulated link to limit it.
const SWITCH_RATE_BPS: u64 = 20_000_000;

/// Running hosts of a failure case.
#[derive(Debug)]
pub(crate) struct FailureNetwork {
    pub(crate) client: HostNamespace,
    pub(crate) server: HostNamespace,
    /// Another host with the server's address, if the case has one.
    pub(crate) other: Option<HostNamespace>,
    /// Hosts between client and server: routers and switches.
    _between: Vec<HostNamespace>,
    _carriers: Vec<[CarrierControl; 2]>,
    emulator: Emulator,
}

impl FailureNetwork {
    pub(crate) fn build(plan: &FailurePlan, thread: EmulatorThread) -> Result<Self, NetworkError> {
        let client = host("client")?;
        let server = host("server")?;
        let mut builder = NetworkBuilder { middle: middle()?, between: Vec::new(), other: None };
        let mut ports = PendingPorts::default();
        if plan.one_subnet {
            builder.switch(plan, &client, &server)?;
        } else {
            ports = builder.routers(plan, &client, &server)?;
        }
        let PendingPorts { ports_and_boxes: lanes, carriers } = ports;
        let emulator = start(plan, thread, lanes)?;
        let NetworkBuilder { middle: _, between, other } = builder;
        Ok(Self { client, server, other, _between: between, _carriers: carriers, emulator })
    }

    /// Replaces the rules of a path's middlebox; paths count from 1.
    pub(crate) fn set_rules(&self, path: usize, rules: &[RouterRule]) {
        self.emulator.send(EngineCommand::Rules(path.saturating_sub(1), rules.to_vec()));
    }
}

/// Ports and middleboxes that the emulator does not own yet.
#[derive(Debug, Default)]
struct PendingPorts {
    ports_and_boxes: Vec<([EmulatorPort; 2], EmulatedRouter)>,
    carriers: Vec<[CarrierControl; 2]>,
}

struct NetworkBuilder {
    /// Socket that creates interface pairs between any two namespaces.
    middle: RouteSocket,
    between: Vec<HostNamespace>,
    other: Option<HostNamespace>,
}

fn host(name: &str) -> Result<HostNamespace, NetworkError> {
    empty_host(name, write_default_settings)
}

fn router(name: &str) -> Result<HostNamespace, NetworkError> {
    empty_host(name, || {
        write_default_settings()?;
        write_setting("net.ipv4.ip_forward", "1")?;
        write_setting("net.ipv6.conf.all.forwarding", "1")
    })
}

fn middle() -> Result<RouteSocket, NetworkError> {
    RouteSocket::open().map_err(NetworkError::kernel("emulator"))
}

impl NetworkBuilder {
    /// Connects two hosts by a veth pair with the given interface names.
    fn cable(
        &mut self,
        (one, one_name): (&HostNamespace, &str),
        (two, two_name): (&HostNamespace, &str),
    ) -> Result<(), NetworkError> {
        let near = Some(one.namespace.as_fd());
        let left = VethEnd { name: one_name, namespace: near, ..VethEnd::default() };
        let far = Some(two.namespace.as_fd());
        let right = VethEnd { name: two_name, namespace: far, ..VethEnd::default() };
        self.middle.add_veth(&left, &right).map_err(NetworkError::kernel(&one.name))?;
        one.route().set_up(one_name).map_err(NetworkError::kernel(&one.name))?;
        two.route().set_up(two_name).map_err(NetworkError::kernel(&two.name))
    }

    fn routers(
        &mut self,
        plan: &FailurePlan,
        client: &HostNamespace,
        server: &HostNamespace,
    ) -> Result<PendingPorts, NetworkError> {
        let core = router("core")?;
        let mut wires = PendingPorts::default();
        for (index, name) in plan.clients.iter().enumerate() {
            let number = index + 1;
            let gateway = router(&format!("gateway{number}"))?;
            self.cable((client, name), (&gateway, "lan"))?;
            let farther = plan.far_boxes.contains(&number);
            let provider = farther.then(|| self.provider(&gateway, number)).transpose()?;
            let last = provider.as_ref().unwrap_or(&gateway);
            let (ports, carriers) = self.box_between(last, &core, number)?;
            let at = NetworkError::kernel(&last.name);
            address_wan(&mut last.route(), number).map_err(at)?;
            let at = NetworkError::kernel(&client.name);
            address_client(&mut client.route(), plan, index).map_err(at)?;
            let at = NetworkError::kernel(&gateway.name);
            address_gateway(&mut gateway.route(), number).map_err(at)?;
            let at = NetworkError::kernel(&core.name);
            address_core_wan(&mut core.route(), number).map_err(at)?;
            let hop = EmulatedRouter::new(
                Ipv4Addr::new(100, 64, octet(number), 2),
                v6([0x2001, 0xdb8, 0xff, number as u16, 0, 0, 0, 2]),
                [client_net(number), wan_net(number), provider_net(number)].concat(),
                &plan.rules(number),
            );
            let hop = if plan.late_boxes.contains(&number) { hop.with_late_rules() } else { hop };
            wires.ports_and_boxes.push((ports, hop));
            wires.carriers.push(carriers);
            self.between.extend([Some(gateway), provider].into_iter().flatten());
        }
        for (index, name) in SERVERS.iter().enumerate() {
            let lan = format!("lan{}", index + 1);
            self.cable((&core, &lan), (server, name))?;
            let at = NetworkError::kernel(&server.name);
            address_server(&mut server.route(), index, plan.server_routing).map_err(at)?;
            let at = NetworkError::kernel(&core.name);
            address_core_lan(&mut core.route(), &lan, index).map_err(at)?;
        }
        if plan.other_server {
            self.other = Some(self.other_server(&core)?);
        }
        self.between.push(core);
        Ok(wires)
    }

    /// Adds a router between a gateway and its middlebox.
    fn provider(
        &mut self,
        gateway: &HostNamespace,
        number: usize,
    ) -> Result<HostNamespace, NetworkError> {
        let provider = router(&format!("provider{number}"))?;
        self.cable((gateway, "up"), (&provider, "lan"))?;
        let lead = |host: &HostNamespace, link, own, next, targets: [Prefix; 2]| {
            let mut route = host.route();
            let ends = provider_host(number, own).into_iter().zip(provider_host(number, next));
            for ((own, next), to) in ends.zip(targets) {
                route.add_address(link, own)?;
                let (gateway, source) = (Some(next.address()), None);
                let (table, metric) = (None, None);
                route.add_route(&RouteSpec { to, link, gateway, source, table, metric })?;
            }
            Ok(())
        };
        lead(gateway, "up", 1, 2, [Prefix::ALL_V4, Prefix::ALL_V6])
            .map_err(NetworkError::kernel(&gateway.name))?;
        lead(&provider, "lan", 2, 1, client_net(number))
            .map_err(NetworkError::kernel(&provider.name))?;
        Ok(provider)
    }

    /// Adds a second host with the server's first address; path 2 leads there.
    fn other_server(&mut self, core: &HostNamespace) -> Result<HostNamespace, NetworkError> {
        let other = host("other")?;
        self.cable((core, "lan3"), (&other, "s1"))?;
        let at = NetworkError::kernel(&other.name);
        address_server(&mut other.route(), 0, Routing::BySource).map_err(at)?;
        let mut route = core.route();
        let mut lead = || {
            let ends = server_net(0, 1).into_iter().zip(server_net(0, 2));
            for (from, (own, target)) in client_net(2).into_iter().zip(ends) {
                route.add_address("lan3", Prefix::host(own.address()))?;
                let (table, priority) = (FIRST_TABLE, Some(FIRST_TABLE));
                route.add_rule(&RuleSpec { from, to: None, table, priority })?;
                let (to, table) = (Prefix::host(target.address()), Some(table));
                let (link, gateway, source, metric) = ("lan3", None, None, None);
                route.add_route(&RouteSpec { to, link, gateway, source, table, metric })?;
            }
            Ok(())
        };
        lead().map_err(NetworkError::kernel(&core.name))?;
        Ok(other)
    }

    /// Creates two interfaces whose other ends are ports of the emulator.
    fn box_between(
        &mut self,
        gateway: &HostNamespace,
        core: &HostNamespace,
        number: usize,
    ) -> Result<([EmulatorPort; 2], [CarrierControl; 2]), NetworkError> {
        let backend = choose_backend(None, std::slice::from_ref(gateway))?;
        let far = format!("wan{number}");
        let (near_name, far_name) = (format!("{number}-0"), format!("{number}-1"));
        let (near, near_carrier) =
            interface(backend, &mut self.middle, gateway, ("wan", MTU), &near_name)?;
        let (far_port, far_carrier) =
            interface(backend, &mut self.middle, core, (&far, MTU), &far_name)?;
        for (host, name) in [(gateway, "wan"), (core, far.as_str())] {
            host.route().set_up(name).map_err(NetworkError::kernel(&host.name))?;
        }
        Ok(([near, far_port], [near_carrier, far_carrier]))
    }

    /// Connects all interfaces to one switch.
    fn switch(
        &mut self,
        plan: &FailurePlan,
        client: &HostNamespace,
        server: &HostNamespace,
    ) -> Result<(), NetworkError> {
        let switch = host("switch")?;
        let at = NetworkError::kernel("switch");
        switch.route().add_bridge("switch").map_err(&at)?;
        switch.route().set_up("switch").map_err(&at)?;
        let ends = plan.clients.iter().map(|name| (client, *name, 10));
        let ends = ends.chain(SERVERS.iter().map(|name| (server, *name, 20)));
        for (index, (host, name, base)) in ends.enumerate() {
            let port = format!("port{}", index + 1);
            self.cable((host, name), (&switch, &port))?;
            switch.route().set_bridge(&port, "switch").map_err(&at)?;
            let number = if base == 10 { index + 1 } else { index + 1 - plan.clients.len() };
            let own = octet(number + base);
            let mut route = host.route();
            let mut address = || {
                let v4 = Ipv4Addr::new(192, 0, 2, own);
                let six = v6([0x2001, 0xdb8, 5, 0, 0, 0, 0, u16::from(own)]);
                route.add_address(name, net(v4.into(), 24))?;
                route.add_address(name, net(six.into(), 64))?;
                if let Some(rate) = Rate::from_bps(SWITCH_RATE_BPS) {
                    let tbf = Tbf { rate, burst_bytes: 16_000, limit_bytes: 250_000 };
                    route.set_tbf(name, &tbf)?;
                }
                if plan.routing != Routing::BySource {
                    return Ok(());
                }
                for (from, to) in [
                    (IpAddr::V4(v4), net(Ipv4Addr::new(192, 0, 2, 0).into(), 24)),
                    (IpAddr::V6(six), net(v6([0x2001, 0xdb8, 5, 0, 0, 0, 0, 0]).into(), 64)),
                ] {
                    by_source(&mut route, from, name, (to, None), index)?;
                }
                Ok(())
            };
            address().map_err(NetworkError::kernel(&host.name))?;
        }
        self.between.push(switch);
        Ok(())
    }
}

/// Adds a rule and a table for packets with source address `from`.
fn by_source(
    route: &mut RouteSocket,
    from: IpAddr,
    link: &str,
    (to, gateway): (Prefix, Option<IpAddr>),
    index: usize,
) -> Result<(), NetlinkError> {
    let table = FIRST_TABLE + index as u32;
    let priority = Some(table);
    route.add_rule(&RuleSpec { from: Prefix::host(from), to: None, table, priority })?;
    let table = Some(table);
    route.add_route(&RouteSpec { to, link, gateway, source: None, table, metric: None })
}

fn address_client(
    route: &mut RouteSocket,
    plan: &FailurePlan,
    index: usize,
) -> Result<(), NetlinkError> {
    let number = index + 1;
    let Some(link) = plan.clients.get(index) else { return Ok(()) };
    let all = [Prefix::ALL_V4, Prefix::ALL_V6];
    let ends = client_host(number, 2).into_iter().zip(client_host(number, 1));
    for ((own, gateway), to) in ends.zip(all) {
        route.add_address(link, own)?;
        let gateway = Some(gateway.address());
        let default = RouteSpec { to, link, gateway, source: None, table: None, metric: None };
        match plan.routing {
            Routing::BySource => {
                by_source(route, own.address(), link, (to, gateway), index)?;
                if index == 0 {
                    route.add_route(&default)?;
                }
            }
            Routing::ByMetric => {
                let metric = Some(100 * number as u32);
                route.add_route(&RouteSpec { metric, ..default })?;
            }
            Routing::FirstOnly if index == 0 => route.add_route(&default)?,
            Routing::FirstOnly | Routing::LinkLocalOnly => {}
        }
    }
    Ok(())
}

fn address_gateway(route: &mut RouteSocket, number: usize) -> Result<(), NetlinkError> {
    client_host(number, 1).into_iter().try_for_each(|own| route.add_address("lan", own))
}

/// Assigns the addresses of the last router before the middlebox.
fn address_wan(route: &mut RouteSocket, number: usize) -> Result<(), NetlinkError> {
    for own in wan_host(number, 1) {
        route.add_address("wan", own)?;
    }
    [Prefix::ALL_V4, Prefix::ALL_V6].into_iter().try_for_each(|to| plain_route(route, to, "wan"))
}

fn address_core_wan(route: &mut RouteSocket, number: usize) -> Result<(), NetlinkError> {
    let link = format!("wan{number}");
    for own in wan_host(number, 3) {
        route.add_address(&link, own)?;
    }
    for to in client_net(number) {
        plain_route(route, to, &link)?;
    }
    Ok(())
}

fn address_core_lan(route: &mut RouteSocket, link: &str, index: usize) -> Result<(), NetlinkError> {
    server_net(index, 1).into_iter().try_for_each(|own| route.add_address(link, own))
}

fn address_server(
    route: &mut RouteSocket,
    index: usize,
    routing: Routing,
) -> Result<(), NetlinkError> {
    let Some(link) = SERVERS.get(index) else { return Ok(()) };
    let all = [Prefix::ALL_V4, Prefix::ALL_V6];
    let ends = server_net(index, 2).into_iter().zip(server_net(index, 1));
    for ((own, gateway), to) in ends.zip(all) {
        route.add_address(link, own)?;
        let gateway = Some(gateway.address());
        if routing == Routing::BySource {
            by_source(route, own.address(), link, (to, gateway), index)?;
        }
        if index == 0 {
            let (source, table, metric) = (None, None, None);
            route.add_route(&RouteSpec { to, link, gateway, source, table, metric })?;
        }
    }
    Ok(())
}

fn plain_route(route: &mut RouteSocket, to: Prefix, link: &str) -> Result<(), NetlinkError> {
    let (gateway, source, table, metric) = (None, None, None, None);
    route.add_route(&RouteSpec { to, link, gateway, source, table, metric })
}

/// Returns the addresses of host `last` in the network of the client's interface `number`.
fn client_host(number: usize, last: u8) -> [Prefix; 2] {
    [
        net(Ipv4Addr::new(10, 1, octet(number), last).into(), 24),
        net(v6([0x2001, 0xdb8, 1, number as u16, 0, 0, 0, last.into()]).into(), 64),
    ]
}

fn client_net(number: usize) -> [Prefix; 2] {
    client_host(number, 0).map(Prefix::network)
}

/// Returns addresses of the network of gateway (1), middlebox (2) and core (3).
fn wan_host(number: usize, last: u8) -> [Prefix; 2] {
    [
        net(Ipv4Addr::new(100, 64, octet(number), last).into(), 24),
        net(v6([0x2001, 0xdb8, 0xff, number as u16, 0, 0, 0, last.into()]).into(), 64),
    ]
}

fn wan_net(number: usize) -> [Prefix; 2] {
    wan_host(number, 0).map(Prefix::network)
}

/// Returns addresses of the network of gateway (1) and provider (2), if there is a provider.
fn provider_host(number: usize, last: u8) -> [Prefix; 2] {
    [
        net(Ipv4Addr::new(100, 65, octet(number), last).into(), 24),
        net(v6([0x2001, 0xdb8, 0xfe, number as u16, 0, 0, 0, last.into()]).into(), 64),
    ]
}

fn provider_net(number: usize) -> [Prefix; 2] {
    provider_host(number, 0).map(Prefix::network)
}

/// Returns addresses of the network of core (1) and server (2); they look public.
fn server_net(index: usize, last: u8) -> [Prefix; 2] {
    let v4 = match index {
        0 => Ipv4Addr::new(198, 51, 100, last),
        _ => Ipv4Addr::new(203, 0, 113, last),
    };
    let six = v6([0x2001, 0xdb8, 2, index as u16 + 1, 0, 0, 0, last.into()]);
    [net(v4.into(), 24), net(six.into(), 64)]
}

fn net(address: IpAddr, bits: u8) -> Prefix {
    Prefix::new(address, bits).unwrap_or(Prefix::host(address))
}

fn v6(words: [u16; 8]) -> Ipv6Addr {
    words.into()
}

fn octet(number: usize) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

fn start(
    plan: &FailurePlan,
    thread: EmulatorThread,
    wires: Vec<([EmulatorPort; 2], EmulatedRouter)>,
) -> Result<Emulator, NetworkError> {
    let qualities: Vec<PathQuality> = (1..=wires.len()).map(|path| plan.quality(path)).collect();
    let (_, routes) = topology(&qualities);
    let paths = wires.into_iter().zip(routes).map(|((ports, hop), routes)| EmulatedPath {
        ports,
        routes,
        split: true,
        hop: Some(hop),
    });
    let lanes = paths.collect();
    let build = move || Ok(topology(&qualities).0);
    Emulator::start(thread, Clock::start(), build, lanes, Vec::new())
        .map_err(NetworkError::system("start the emulator"))
}

/// Builds both directions of each path; route numbers are the same each time.
fn topology(qualities: &[PathQuality]) -> (Topology<GsoSegment>, Vec<[RouteId; 2]>) {
    let mut topology = Topology::new();
    let mut routes = Vec::new();
    for (index, quality) in qualities.iter().enumerate() {
        let [up, down] = [(LinkSide::Up, "up"), (LinkSide::Down, "down")].map(|(side, name)| {
            let seed = stream_seed(1, &format!("path/{index}"), name);
            let direction = topology.add_direction(direction(*quality, side), seed);
            topology.add_route(&[direction])
        });
        // A route through a direction that was just added is always accepted.
        if let (Ok(up), Ok(down)) = (up, down) {
            routes.push([up, down]);
        }
    }
    (topology, routes)
}

fn direction(quality: PathQuality, side: LinkSide) -> DirectionConfig {
    let PathQuality { delay_ms, rate_kbps, loss_percent, mtu_bytes, side: worse } = quality;
    let is_worse = worse == LinkSide::Both || worse == side;
    let loss = Loss::Random(Probability::from_millionths(loss_percent * 10_000));
    DirectionConfig {
        delay: Delay { base: Duration::from_millis(delay_ms), ..Delay::default() },
        shaper: Rate::from_bps(rate_kbps * 1_000).map_or(Shaper::Unlimited, Shaper::Line),
        queue: Queue::DropTail(QueueLimit::Time(Duration::from_millis(100))),
        loss: if is_worse && loss_percent > 0 { loss } else { Loss::None },
        mtu_bytes: if is_worse { mtu_bytes } else { u32::MAX },
        ..DirectionConfig::default()
    }
}
