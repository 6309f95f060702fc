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
//! A provider can add further routers ([`super::access`]). Alternatively, all interfaces are at one
//! switch, in one subnet.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::time::Duration;

use towpath_net::config::{Delay, DirectionConfig, Loss, Probability, Queue, QueueLimit, Shaper};
use towpath_net::topology::RouteId;
use towpath_net::{Rate, Topology, stream_seed};
use towpath_netlink::{NetlinkError, Prefix, RouteSocket, RouteSpec, RuleSpec, Tbf, VethEnd};
use towpath_os::clock::Clock;
use towpath_os::sandbox::EmulatorThread;
use towpath_scenario::LinkSide;
use towpath_sockets::frame::GsoSegment;
use towpath_sockets::port::EmulatorPort;

use super::addresses::{
    client_networks, lan_addresses, octet, prefix, provider_networks, server_addresses, v6,
    wan_addresses, wan_networks,
};
use super::case::{AccessKind, FailurePlan, PathQuality, Routing, SecondHost};
use super::{access, proxy};
use crate::emulator::engine::{EmulatedPath, Emulator, EngineCommand};
use crate::network::build::{
    CarrierControl, choose_backend, create_empty_host, create_interface, write_default_settings,
    write_setting,
};
use crate::network::{HostNamespace, NetworkError};
use crate::router::{EmulatedRouter, RouterRule};

/// Names of the server's interfaces.
pub(crate) const SERVERS: [&str; 2] = ["s1", "s2"];
/// Number of the first policy-routing table, and priority of the first rule.
const FIRST_TABLE: u32 = 100;
/// MTU of every link, in bytes.
pub(super) const MTU: u32 = 1_500;
/// Rate of every link in a switched network, which has no emulated link to limit it.
const SWITCH_RATE_BPS: u64 = 20_000_000;

/// Running hosts of a failure case.
#[derive(Debug)]
pub(crate) struct FailureNetwork {
    pub(crate) client: HostNamespace,
    pub(crate) server: HostNamespace,
    /// Another host with the server's address, if the case has one.
    pub(crate) other_server: Option<HostNamespace>,
    /// Hosts between client and server: routers and switches.
    _between: Vec<HostNamespace>,
    _carriers: Vec<[CarrierControl; 2]>,
    emulator: Emulator,
}

impl FailureNetwork {
    pub(crate) fn build(plan: &FailurePlan, thread: EmulatorThread) -> Result<Self, NetworkError> {
        let client = create_host("client")?;
        let server = create_host("server")?;
        let mut builder = NetworkBuilder {
            route_socket: open_route_socket()?,
            between: Vec::new(),
            other_server: None,
            near_boxes: Vec::new(),
            carriers: Vec::new(),
        };
        let mut boxes = Vec::new();
        if plan.one_subnet {
            builder.build_switched(plan, &client, &server)?;
        } else {
            boxes = builder.build_routed(plan, &client, &server)?;
        }
        let NetworkBuilder { route_socket: _, between, other_server, near_boxes, carriers } =
            builder;
        // The middlebox of path n must have number n - 1.
        boxes.extend(near_boxes);
        let emulator = start_emulator(thread, boxes)?;
        Ok(Self { client, server, other_server, _between: between, _carriers: carriers, emulator })
    }

    /// Replaces the rules of a path's middlebox; paths count from 1.
    pub(crate) fn set_rules(&self, path: usize, rules: &[RouterRule]) {
        self.emulator.send(EngineCommand::Rules(path.saturating_sub(1), rules.to_vec()));
    }
}

/// Middlebox of a path with its ports, before the emulator owns them.
#[derive(Debug)]
pub(super) struct EmulatedBox {
    pub(super) ports: [EmulatorPort; 2],
    pub(super) router: EmulatedRouter,
    pub(super) quality: PathQuality,
}

pub(super) struct NetworkBuilder {
    /// Socket that creates interface pairs between any two namespaces.
    pub(super) route_socket: RouteSocket,
    pub(super) between: Vec<HostNamespace>,
    other_server: Option<HostNamespace>,
    /// Middleboxes in front of the one that each path has.
    pub(super) near_boxes: Vec<EmulatedBox>,
    pub(super) carriers: Vec<[CarrierControl; 2]>,
}

pub(super) fn create_host(name: &str) -> Result<HostNamespace, NetworkError> {
    create_empty_host(name, write_default_settings)
}

pub(super) fn create_router(name: &str) -> Result<HostNamespace, NetworkError> {
    create_empty_host(name, || {
        write_default_settings()?;
        write_setting("net.ipv4.ip_forward", "1")?;
        write_setting("net.ipv6.conf.all.forwarding", "1")
    })
}

fn open_route_socket() -> Result<RouteSocket, NetworkError> {
    RouteSocket::open().map_err(NetworkError::kernel("emulator"))
}

impl NetworkBuilder {
    /// Connects two hosts by a veth pair with the given interface names.
    pub(super) fn connect(
        &mut self,
        (left_host, left_name): (&HostNamespace, &str),
        (right_host, right_name): (&HostNamespace, &str),
    ) -> Result<(), NetworkError> {
        let left_namespace = Some(left_host.namespace.as_fd());
        let left = VethEnd { name: left_name, namespace: left_namespace, ..VethEnd::default() };
        let right_namespace = Some(right_host.namespace.as_fd());
        let right = VethEnd { name: right_name, namespace: right_namespace, ..VethEnd::default() };
        self.route_socket.add_veth(&left, &right).map_err(NetworkError::kernel(&left_host.name))?;
        left_host.route().set_up(left_name).map_err(NetworkError::kernel(&left_host.name))?;
        right_host.route().set_up(right_name).map_err(NetworkError::kernel(&right_host.name))
    }

    /// Builds the paths; returns the middlebox of each.
    fn build_routed(
        &mut self,
        plan: &FailurePlan,
        client: &HostNamespace,
        server: &HostNamespace,
    ) -> Result<Vec<EmulatedBox>, NetworkError> {
        let core = create_router("core")?;
        let mut boxes = Vec::new();
        for index in 0..plan.clients.len() {
            boxes.push(self.add_path(plan, index, client, &core)?);
        }
        for (name, address) in &plan.idle_interfaces {
            self.add_idle_interface(client, name, *address)?;
        }
        for (index, name) in SERVERS.iter().enumerate() {
            let lan = format!("lan{}", index + 1);
            self.connect((&core, &lan), (server, name))?;
            let kernel_error = NetworkError::kernel(&server.name);
            configure_server(&mut server.route(), plan, index, plan.server_routing)
                .map_err(kernel_error)?;
            let kernel_error = NetworkError::kernel(&core.name);
            configure_core_lan(&mut core.route(), plan, &lan, index).map_err(kernel_error)?;
        }
        if let Some(kind) = plan.second_host {
            self.other_server = Some(self.add_other_server(plan, kind, &core)?);
        }
        self.between.push(core);
        Ok(boxes)
    }

    /// Adds the path of an interface of the client, as far as the core.
    fn add_path(
        &mut self,
        plan: &FailurePlan,
        index: usize,
        client: &HostNamespace,
        core: &HostNamespace,
    ) -> Result<EmulatedBox, NetworkError> {
        let number = index + 1;
        let name = plan.clients.get(index).copied().unwrap_or_default();
        let gateway = create_router(&format!("gateway{number}"))?;
        self.connect_client(plan, (number, name), (client, &gateway, core))?;
        let provider = self.add_provider(plan, number, &gateway)?;
        let last_router = provider.as_ref().unwrap_or(&gateway);
        let core_link = format!("wan{number}");
        let ports =
            self.add_box_ports((last_router, "wan"), (core, &core_link), &number.to_string())?;
        let kernel_error = NetworkError::kernel(&last_router.name);
        configure_wan(&mut last_router.route(), number).map_err(kernel_error)?;
        let kernel_error = NetworkError::kernel(&client.name);
        configure_client(&mut client.route(), plan, index).map_err(kernel_error)?;
        let kernel_error = NetworkError::kernel(&gateway.name);
        configure_gateway(&mut gateway.route(), plan, number).map_err(kernel_error)?;
        let kernel_error = NetworkError::kernel(&core.name);
        configure_core_wan(&mut core.route(), number).map_err(kernel_error)?;
        if plan.proxies.contains(&number) {
            let servers = [0, 1].map(|server| server_addresses(false, server, 2));
            let servers: Vec<_> = servers
                .into_iter()
                .flatten()
                .map(|server| Prefix::host(server.address()))
                .collect();
            proxy::start(&gateway, client_networks(number), &servers)?;
        }
        let inside = [
            lan_addresses(plan.identical_modems, number, 0).map(Prefix::network),
            wan_networks(number),
            provider_networks(number),
        ];
        let [v4, v6] = wan_addresses(number, 2).map(Prefix::address);
        let router = EmulatedRouter::at(v4, v6, inside.concat(), &plan.rules(number));
        let router =
            if plan.late_boxes.contains(&number) { router.with_late_rules() } else { router };
        self.between.extend([Some(gateway), provider].into_iter().flatten());
        Ok(EmulatedBox { ports, router, quality: plan.quality(number) })
    }

    /// Adds a second host with the server's first address. Path 2 leads there, or a part of the
    /// flows.
    fn add_other_server(
        &mut self,
        plan: &FailurePlan,
        kind: SecondHost,
        core: &HostNamespace,
    ) -> Result<HostNamespace, NetworkError> {
        let other_server = create_host("other")?;
        self.connect((core, "lan3"), (&other_server, "s1"))?;
        let kernel_error = NetworkError::kernel(&other_server.name);
        configure_server(&mut other_server.route(), plan, 0, Routing::BySource)
            .map_err(kernel_error)?;
        let server_addresses = |octet| server_addresses(plan.is_server_private(), 0, octet);
        if kind == SecondHost::Balanced {
            access::hash_flows(&core.namespace)?;
            let [core_address, _] = server_addresses(1);
            let [server_address, _] = server_addresses(2);
            let mut route = core.route();
            route
                .add_address("lan3", Prefix::host(core_address.address()))
                .and_then(|()| {
                    let to = Prefix::host(server_address.address());
                    route.add_multipath_route(to, &[("lan1", None, 1), ("lan3", None, 1)])
                })
                .map_err(NetworkError::kernel(&core.name))?;
            return Ok(other_server);
        }
        let mut route = core.route();
        let mut route_second_path = || {
            let address_pairs = server_addresses(1).into_iter().zip(server_addresses(2));
            // The path may translate addresses to the middlebox's own.
            let sources = client_networks(2).into_iter().zip(wan_networks(2));
            for (sources, (core_address, server_address)) in sources.zip(address_pairs) {
                route.add_address("lan3", Prefix::host(core_address.address()))?;
                let (table, priority) = (FIRST_TABLE, Some(FIRST_TABLE));
                for from in [sources.0, sources.1] {
                    route.add_rule(&RuleSpec { from, to: None, table, priority })?;
                }
                let (to, table) = (Prefix::host(server_address.address()), Some(table));
                let (link, gateway, source, metric) = ("lan3", None, None, None);
                route.add_route(&RouteSpec { to, link, gateway, source, table, metric })?;
            }
            Ok(())
        };
        route_second_path().map_err(NetworkError::kernel(&core.name))?;
        Ok(other_server)
    }

    /// Creates an interface of each host whose other end is a port of the emulator.
    pub(super) fn add_box_ports(
        &mut self,
        near: (&HostNamespace, &str),
        far: (&HostNamespace, &str),
        port_prefix: &str,
    ) -> Result<[EmulatorPort; 2], NetworkError> {
        let backend = choose_backend(None, std::slice::from_ref(near.0))?;
        let mut add_port = |(host, name): (&HostNamespace, &str), index| {
            let (interface, port_name) = ((name, MTU), format!("{port_prefix}-{index}"));
            let (port, carrier) =
                create_interface(backend, &mut self.route_socket, host, interface, &port_name)?;
            host.route().set_up(name).map_err(NetworkError::kernel(&host.name))?;
            Ok::<_, NetworkError>((port, carrier))
        };
        let (near_port, near_carrier) = add_port(near, 0)?;
        let (far_port, far_carrier) = add_port(far, 1)?;
        self.carriers.push([near_carrier, far_carrier]);
        Ok([near_port, far_port])
    }

    /// Connects all interfaces to one switch.
    fn build_switched(
        &mut self,
        plan: &FailurePlan,
        client: &HostNamespace,
        server: &HostNamespace,
    ) -> Result<(), NetworkError> {
        let switch = create_host("switch")?;
        let kernel_error = NetworkError::kernel("switch");
        switch.route().add_bridge("switch").map_err(&kernel_error)?;
        switch.route().set_up("switch").map_err(&kernel_error)?;
        let interfaces = plan.clients.iter().map(|name| (client, *name, 10));
        let interfaces = interfaces.chain(SERVERS.iter().map(|name| (server, *name, 20)));
        for (index, (host, name, first_octet)) in interfaces.enumerate() {
            let switch_port = format!("port{}", index + 1);
            self.connect((host, name), (&switch, &switch_port))?;
            switch.route().set_bridge(&switch_port, "switch").map_err(&kernel_error)?;
            let number = if first_octet == 10 { index + 1 } else { index + 1 - plan.clients.len() };
            let host_octet = octet(number + first_octet);
            let mut route = host.route();
            let mut configure = || {
                let v4_address = Ipv4Addr::new(192, 0, 2, host_octet);
                let v6_address = v6([0x2001, 0xdb8, 5, 0, 0, 0, 0, u16::from(host_octet)]);
                route.add_address(name, prefix(v4_address.into(), 24))?;
                route.add_address(name, prefix(v6_address.into(), 64))?;
                if let Some(rate) = Rate::from_bps(SWITCH_RATE_BPS) {
                    let tbf = Tbf { rate, burst_bytes: 16_000, limit_bytes: 250_000 };
                    route.set_tbf(name, &tbf)?;
                }
                if plan.routing != Routing::BySource {
                    return Ok(());
                }
                for (from, to) in [
                    (IpAddr::V4(v4_address), prefix(Ipv4Addr::new(192, 0, 2, 0).into(), 24)),
                    (
                        IpAddr::V6(v6_address),
                        prefix(v6([0x2001, 0xdb8, 5, 0, 0, 0, 0, 0]).into(), 64),
                    ),
                ] {
                    add_source_route(&mut route, from, name, (to, None), index)?;
                }
                Ok(())
            };
            configure().map_err(NetworkError::kernel(&host.name))?;
        }
        self.between.push(switch);
        Ok(())
    }
}

/// Adds a rule and a table for packets with source address `from`.
fn add_source_route(
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

fn configure_client(
    route: &mut RouteSocket,
    plan: &FailurePlan,
    index: usize,
) -> Result<(), NetlinkError> {
    let number = index + 1;
    let Some(link) = plan.clients.get(index) else { return Ok(()) };
    let destinations = [Prefix::ALL_V4, Prefix::ALL_V6];
    let is_point_to_point =
        matches!(plan.access(number), Some(AccessKind::Tunnel { gateway: false, .. }));
    let lan_addresses = |octet| lan_addresses(plan.identical_modems, number, octet);
    let address_pairs = lan_addresses(2).into_iter().zip(lan_addresses(1));
    for ((own_address, gateway_address), to) in address_pairs.zip(destinations) {
        if !plan.has_family(number, own_address.address().is_ipv4()) {
            continue;
        }
        let (own_address, gateway) = if is_point_to_point {
            (Prefix::host(own_address.address()), None)
        } else {
            (own_address, Some(gateway_address.address()))
        };
        route.add_address(link, own_address)?;
        let default = RouteSpec { to, link, gateway, source: None, table: None, metric: None };
        match plan.routing {
            Routing::BySource => {
                add_source_route(route, own_address.address(), link, (to, gateway), index)?;
                if index == plan.first_interface(to.address().is_ipv4()) {
                    route.add_route(&default)?;
                }
            }
            Routing::ByMetric => {
                let metric = Some(100 * number as u32);
                route.add_route(&RouteSpec { metric, ..default })?;
            }
            Routing::FirstOnly | Routing::Paired
                if index == plan.first_interface(to.address().is_ipv4()) =>
            {
                route.add_route(&default)?;
            }
            Routing::FirstOnly | Routing::Paired | Routing::LinkLocalOnly => {}
        }
    }
    Ok(())
}

fn configure_gateway(
    route: &mut RouteSocket,
    plan: &FailurePlan,
    number: usize,
) -> Result<(), NetlinkError> {
    lan_addresses(plan.identical_modems, number, 1)
        .into_iter()
        .try_for_each(|address| route.add_address("lan", address))
}

/// Assigns the addresses of the last router before the middlebox.
fn configure_wan(route: &mut RouteSocket, number: usize) -> Result<(), NetlinkError> {
    for address in wan_addresses(number, 1) {
        route.add_address("wan", address)?;
    }
    [Prefix::ALL_V4, Prefix::ALL_V6]
        .into_iter()
        .try_for_each(|to| add_plain_route(route, to, "wan"))
}

fn configure_core_wan(route: &mut RouteSocket, number: usize) -> Result<(), NetlinkError> {
    let link = format!("wan{number}");
    for address in wan_addresses(number, 3) {
        route.add_address(&link, address)?;
    }
    for to in client_networks(number) {
        add_plain_route(route, to, &link)?;
    }
    Ok(())
}

fn configure_core_lan(
    route: &mut RouteSocket,
    plan: &FailurePlan,
    link: &str,
    index: usize,
) -> Result<(), NetlinkError> {
    let addresses = server_addresses(plan.is_server_private(), index, 1);
    addresses.into_iter().try_for_each(|address| route.add_address(link, address))
}

fn configure_server(
    route: &mut RouteSocket,
    plan: &FailurePlan,
    index: usize,
    routing: Routing,
) -> Result<(), NetlinkError> {
    let Some(link) = SERVERS.get(index) else { return Ok(()) };
    let destinations = [Prefix::ALL_V4, Prefix::ALL_V6];
    let server_addresses = |octet| server_addresses(plan.is_server_private(), index, octet);
    let address_pairs = server_addresses(2).into_iter().zip(server_addresses(1));
    for ((own_address, gateway_address), to) in address_pairs.zip(destinations) {
        route.add_address(link, own_address)?;
        let gateway = Some(gateway_address.address());
        if routing == Routing::BySource {
            add_source_route(route, own_address.address(), link, (to, gateway), index)?;
        }
        let to = match (index, routing, client_networks(index + 1)) {
            (0, _, _) => Some(to),
            (_, Routing::Paired, [v4, v6]) => Some(if to.address().is_ipv4() { v4 } else { v6 }),
            (
                _,
                Routing::BySource | Routing::ByMetric | Routing::FirstOnly | Routing::LinkLocalOnly,
                _,
            ) => None,
        };
        if let Some(to) = to {
            let (source, table, metric) = (None, None, None);
            route.add_route(&RouteSpec { to, link, gateway, source, table, metric })?;
        }
    }
    Ok(())
}

fn add_plain_route(route: &mut RouteSocket, to: Prefix, link: &str) -> Result<(), NetlinkError> {
    let (gateway, source, table, metric) = (None, None, None, None);
    route.add_route(&RouteSpec { to, link, gateway, source, table, metric })
}

fn start_emulator(
    thread: EmulatorThread,
    boxes: Vec<EmulatedBox>,
) -> Result<Emulator, NetworkError> {
    let qualities: Vec<PathQuality> = boxes.iter().map(|emulated| emulated.quality).collect();
    let (_, routes) = build_topology(&qualities);
    let paths = boxes.into_iter().zip(routes).map(|(EmulatedBox { ports, router, .. }, routes)| {
        EmulatedPath { ports, routes, split: true, router: Some(router) }
    });
    let emulated_paths = paths.collect();
    let topology = move || Ok(build_topology(&qualities).0);
    Emulator::start(thread, Clock::start(), topology, emulated_paths, Vec::new())
        .map_err(NetworkError::system("start the emulator"))
}

/// Builds both directions of each path; route numbers are the same each time.
fn build_topology(qualities: &[PathQuality]) -> (Topology<GsoSegment>, Vec<[RouteId; 2]>) {
    let mut topology = Topology::new();
    let mut routes = Vec::new();
    for (index, quality) in qualities.iter().enumerate() {
        let [up, down] = [(LinkSide::Up, "up"), (LinkSide::Down, "down")].map(|(side, name)| {
            let seed = stream_seed(1, &format!("path/{index}"), name);
            let direction = topology.add_direction(direction_config(*quality, side), seed);
            topology.add_route(&[direction])
        });
        // A route through a direction that was just added is always accepted.
        if let (Ok(up), Ok(down)) = (up, down) {
            routes.push([up, down]);
        }
    }
    (topology, routes)
}

fn direction_config(quality: PathQuality, side: LinkSide) -> DirectionConfig {
    let PathQuality { delay_ms, rate_kbps, loss_percent, mtu_bytes, side: affected_side } = quality;
    let is_affected = affected_side == LinkSide::Both || affected_side == side;
    let loss = Loss::Random(Probability::from_millionths(loss_percent * 10_000));
    DirectionConfig {
        delay: Delay { base: Duration::from_millis(delay_ms), ..Delay::default() },
        shaper: Rate::from_bps(rate_kbps * 1_000).map_or(Shaper::Unlimited, Shaper::Line),
        queue: Queue::DropTail(QueueLimit::Time(Duration::from_millis(100))),
        loss: if is_affected && loss_percent > 0 { loss } else { Loss::None },
        mtu_bytes: if is_affected { mtu_bytes } else { u32::MAX },
        ..DirectionConfig::default()
    }
}
