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

use towpath_net::config::{Delay, DirectionConfig, Loss, Probability, Queue, QueueLimit, Shaper};
use towpath_net::topology::RouteId;
use towpath_net::{Rate, Topology, stream_seed};
use towpath_netlink::{NetlinkError, Prefix, RouteSocket, RouteSpec, RuleSpec, Tbf, VethEnd};
use towpath_os::clock::Clock;
use towpath_os::sandbox::EmulatorThread;
use towpath_scenario::LinkSide;
use towpath_sockets::frame::GsoSegment;
use towpath_sockets::port::EmulatorPort;

use super::case::{FailurePlan, PathQuality, Routing};
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
const MTU: u32 = 1_500;
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
        };
        let mut ports = PendingPorts::default();
        if plan.one_subnet {
            builder.build_switched(plan, &client, &server)?;
        } else {
            ports = builder.build_routed(plan, &client, &server)?;
        }
        let PendingPorts { ports_and_boxes, carriers } = ports;
        let emulator = start_emulator(plan, thread, ports_and_boxes)?;
        let NetworkBuilder { route_socket: _, between, other_server } = builder;
        Ok(Self { client, server, other_server, _between: between, _carriers: carriers, emulator })
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
    route_socket: RouteSocket,
    between: Vec<HostNamespace>,
    other_server: Option<HostNamespace>,
}

fn create_host(name: &str) -> Result<HostNamespace, NetworkError> {
    create_empty_host(name, write_default_settings)
}

fn create_router(name: &str) -> Result<HostNamespace, NetworkError> {
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
    fn connect(
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

    fn build_routed(
        &mut self,
        plan: &FailurePlan,
        client: &HostNamespace,
        server: &HostNamespace,
    ) -> Result<PendingPorts, NetworkError> {
        let core = create_router("core")?;
        let mut pending = PendingPorts::default();
        for (index, name) in plan.clients.iter().enumerate() {
            let number = index + 1;
            let gateway = create_router(&format!("gateway{number}"))?;
            self.connect((client, name), (&gateway, "lan"))?;
            let has_provider = plan.far_boxes.contains(&number);
            let provider = has_provider.then(|| self.add_provider(&gateway, number)).transpose()?;
            let last_router = provider.as_ref().unwrap_or(&gateway);
            let (ports, carriers) = self.add_box_ports(last_router, &core, number)?;
            let kernel_error = NetworkError::kernel(&last_router.name);
            configure_wan(&mut last_router.route(), number).map_err(kernel_error)?;
            let kernel_error = NetworkError::kernel(&client.name);
            configure_client(&mut client.route(), plan, index).map_err(kernel_error)?;
            let kernel_error = NetworkError::kernel(&gateway.name);
            configure_gateway(&mut gateway.route(), number).map_err(kernel_error)?;
            let kernel_error = NetworkError::kernel(&core.name);
            configure_core_wan(&mut core.route(), number).map_err(kernel_error)?;
            let middlebox = EmulatedRouter::new(
                Ipv4Addr::new(100, 64, octet(number), 2),
                v6([0x2001, 0xdb8, 0xff, number as u16, 0, 0, 0, 2]),
                [client_networks(number), wan_networks(number), provider_networks(number)].concat(),
                &plan.rules(number),
            );
            let middlebox = if plan.late_boxes.contains(&number) {
                middlebox.with_late_rules()
            } else {
                middlebox
            };
            pending.ports_and_boxes.push((ports, middlebox));
            pending.carriers.push(carriers);
            self.between.extend([Some(gateway), provider].into_iter().flatten());
        }
        for (index, name) in SERVERS.iter().enumerate() {
            let lan = format!("lan{}", index + 1);
            self.connect((&core, &lan), (server, name))?;
            let kernel_error = NetworkError::kernel(&server.name);
            configure_server(&mut server.route(), index, plan.server_routing)
                .map_err(kernel_error)?;
            let kernel_error = NetworkError::kernel(&core.name);
            configure_core_lan(&mut core.route(), &lan, index).map_err(kernel_error)?;
        }
        if plan.other_server {
            self.other_server = Some(self.add_other_server(&core)?);
        }
        self.between.push(core);
        Ok(pending)
    }

    /// Adds a router between a gateway and its middlebox.
    fn add_provider(
        &mut self,
        gateway: &HostNamespace,
        number: usize,
    ) -> Result<HostNamespace, NetworkError> {
        let provider = create_router(&format!("provider{number}"))?;
        self.connect((gateway, "up"), (&provider, "lan"))?;
        let configure_link =
            |host: &HostNamespace, link, own_octet, next_octet, targets: [Prefix; 2]| {
                let mut route = host.route();
                let own_addresses = provider_addresses(number, own_octet);
                let next_hops = provider_addresses(number, next_octet);
                for ((own, next), to) in own_addresses.into_iter().zip(next_hops).zip(targets) {
                    route.add_address(link, own)?;
                    let (gateway, source) = (Some(next.address()), None);
                    let (table, metric) = (None, None);
                    route.add_route(&RouteSpec { to, link, gateway, source, table, metric })?;
                }
                Ok(())
            };
        configure_link(gateway, "up", 1, 2, [Prefix::ALL_V4, Prefix::ALL_V6])
            .map_err(NetworkError::kernel(&gateway.name))?;
        configure_link(&provider, "lan", 2, 1, client_networks(number))
            .map_err(NetworkError::kernel(&provider.name))?;
        Ok(provider)
    }

    /// Adds a second host with the server's first address; path 2 leads there.
    fn add_other_server(&mut self, core: &HostNamespace) -> Result<HostNamespace, NetworkError> {
        let other_server = create_host("other")?;
        self.connect((core, "lan3"), (&other_server, "s1"))?;
        let kernel_error = NetworkError::kernel(&other_server.name);
        configure_server(&mut other_server.route(), 0, Routing::BySource).map_err(kernel_error)?;
        let mut route = core.route();
        let mut route_second_path = || {
            let address_pairs = server_addresses(0, 1).into_iter().zip(server_addresses(0, 2));
            for (from, (core_address, server_address)) in
                client_networks(2).into_iter().zip(address_pairs)
            {
                route.add_address("lan3", Prefix::host(core_address.address()))?;
                let (table, priority) = (FIRST_TABLE, Some(FIRST_TABLE));
                route.add_rule(&RuleSpec { from, to: None, table, priority })?;
                let (to, table) = (Prefix::host(server_address.address()), Some(table));
                let (link, gateway, source, metric) = ("lan3", None, None, None);
                route.add_route(&RouteSpec { to, link, gateway, source, table, metric })?;
            }
            Ok(())
        };
        route_second_path().map_err(NetworkError::kernel(&core.name))?;
        Ok(other_server)
    }

    /// Creates two interfaces whose other ends are ports of the emulator.
    fn add_box_ports(
        &mut self,
        gateway: &HostNamespace,
        core: &HostNamespace,
        number: usize,
    ) -> Result<([EmulatorPort; 2], [CarrierControl; 2]), NetworkError> {
        let backend = choose_backend(None, std::slice::from_ref(gateway))?;
        let core_interface = format!("wan{number}");
        let (near_port_name, far_port_name) = (format!("{number}-0"), format!("{number}-1"));
        let (near_port, near_carrier) = create_interface(
            backend,
            &mut self.route_socket,
            gateway,
            ("wan", MTU),
            &near_port_name,
        )?;
        let (far_port, far_carrier) = create_interface(
            backend,
            &mut self.route_socket,
            core,
            (&core_interface, MTU),
            &far_port_name,
        )?;
        for (host, name) in [(gateway, "wan"), (core, core_interface.as_str())] {
            host.route().set_up(name).map_err(NetworkError::kernel(&host.name))?;
        }
        Ok(([near_port, far_port], [near_carrier, far_carrier]))
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
    let address_pairs = client_addresses(number, 2).into_iter().zip(client_addresses(number, 1));
    for ((own_address, gateway_address), to) in address_pairs.zip(destinations) {
        route.add_address(link, own_address)?;
        let gateway = Some(gateway_address.address());
        let default = RouteSpec { to, link, gateway, source: None, table: None, metric: None };
        match plan.routing {
            Routing::BySource => {
                add_source_route(route, own_address.address(), link, (to, gateway), index)?;
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

fn configure_gateway(route: &mut RouteSocket, number: usize) -> Result<(), NetlinkError> {
    client_addresses(number, 1)
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
    link: &str,
    index: usize,
) -> Result<(), NetlinkError> {
    server_addresses(index, 1).into_iter().try_for_each(|address| route.add_address(link, address))
}

fn configure_server(
    route: &mut RouteSocket,
    index: usize,
    routing: Routing,
) -> Result<(), NetlinkError> {
    let Some(link) = SERVERS.get(index) else { return Ok(()) };
    let destinations = [Prefix::ALL_V4, Prefix::ALL_V6];
    let address_pairs = server_addresses(index, 2).into_iter().zip(server_addresses(index, 1));
    for ((own_address, gateway_address), to) in address_pairs.zip(destinations) {
        route.add_address(link, own_address)?;
        let gateway = Some(gateway_address.address());
        if routing == Routing::BySource {
            add_source_route(route, own_address.address(), link, (to, gateway), index)?;
        }
        if index == 0 {
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

/// Returns the IPv4 and IPv6 address of a host in the network of the client's interface `number`.
fn client_addresses(number: usize, host_octet: u8) -> [Prefix; 2] {
    [
        prefix(Ipv4Addr::new(10, 1, octet(number), host_octet).into(), 24),
        prefix(v6([0x2001, 0xdb8, 1, number as u16, 0, 0, 0, host_octet.into()]).into(), 64),
    ]
}

fn client_networks(number: usize) -> [Prefix; 2] {
    client_addresses(number, 0).map(Prefix::network)
}

/// Returns addresses of the network of gateway (1), middlebox (2) and core (3).
fn wan_addresses(number: usize, host_octet: u8) -> [Prefix; 2] {
    [
        prefix(Ipv4Addr::new(100, 64, octet(number), host_octet).into(), 24),
        prefix(v6([0x2001, 0xdb8, 0xff, number as u16, 0, 0, 0, host_octet.into()]).into(), 64),
    ]
}

fn wan_networks(number: usize) -> [Prefix; 2] {
    wan_addresses(number, 0).map(Prefix::network)
}

/// Returns addresses of the network of gateway (1) and provider (2), if there is a provider.
fn provider_addresses(number: usize, host_octet: u8) -> [Prefix; 2] {
    [
        prefix(Ipv4Addr::new(100, 65, octet(number), host_octet).into(), 24),
        prefix(v6([0x2001, 0xdb8, 0xfe, number as u16, 0, 0, 0, host_octet.into()]).into(), 64),
    ]
}

fn provider_networks(number: usize) -> [Prefix; 2] {
    provider_addresses(number, 0).map(Prefix::network)
}

/// Returns addresses of the network of core (1) and server (2); they look public.
fn server_addresses(index: usize, host_octet: u8) -> [Prefix; 2] {
    let v4_address = match index {
        0 => Ipv4Addr::new(198, 51, 100, host_octet),
        _ => Ipv4Addr::new(203, 0, 113, host_octet),
    };
    let v6_address = v6([0x2001, 0xdb8, 2, index as u16 + 1, 0, 0, 0, host_octet.into()]);
    [prefix(v4_address.into(), 24), prefix(v6_address.into(), 64)]
}

fn prefix(address: IpAddr, bits: u8) -> Prefix {
    Prefix::new(address, bits).unwrap_or(Prefix::host(address))
}

fn v6(words: [u16; 8]) -> Ipv6Addr {
    words.into()
}

fn octet(number: usize) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

fn start_emulator(
    plan: &FailurePlan,
    thread: EmulatorThread,
    ports_and_boxes: Vec<([EmulatorPort; 2], EmulatedRouter)>,
) -> Result<Emulator, NetworkError> {
    let qualities: Vec<PathQuality> =
        (1..=ports_and_boxes.len()).map(|path| plan.quality(path)).collect();
    let (_, routes) = build_topology(&qualities);
    let paths = ports_and_boxes.into_iter().zip(routes).map(|((ports, middlebox), routes)| {
        EmulatedPath { ports, routes, split: true, router: Some(middlebox) }
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
