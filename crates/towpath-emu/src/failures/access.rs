//! First hops of a path: the client's interface, its gateway, and a provider behind it.

use towpath_netlink::{Prefix, RouteSpec};
use towpath_os::namespace::Namespace;

use super::addresses::{
    ProviderLink, client_addresses, client_networks, provider_addresses, tunnel_server_address,
};
use super::case::{AccessKind, FailurePlan, PathQuality};
use super::list::path::all_packets;
use super::network::{EmulatedBox, NetworkBuilder, create_host, create_router};
use super::tunnel::{self, TunnelEnd};
use crate::network::build::{choose_backend, create_interface, write_setting};
use crate::network::{HostNamespace, NetworkError};
use crate::router::{EmulatedRouter, PacketAction, RouterRule};

/// MTU of a tunnel, in bytes: the MTU of a link without the headers of IPv6 and UDP, rounded down.
const TUNNEL_MTU: u32 = 1_400;
/// Fields that select a parallel link: addresses, protocol and ports
/// (`FIB_MULTIPATH_HASH_FIELD_*`).
const HASHED_FIELDS: u32 = 0b11_0111;
/// Delay of the second middlebox, in milliseconds.
const NEAR_DELAY_MS: u64 = 1;

/// Rule of a parallel link that drops all packets of the client.
const DROP_UPWARD: RouterRule = all_packets(PacketAction::Drop);

impl NetworkBuilder {
    /// Connects the client's interface `number` to its gateway.
    pub(super) fn connect_client(
        &mut self,
        plan: &FailurePlan,
        (number, name): (usize, &str),
        (client, gateway, core): (&HostNamespace, &HostNamespace, &HostNamespace),
    ) -> Result<(), NetworkError> {
        match plan.access(number) {
            None => self.connect((client, name), (gateway, "lan")),
            Some(AccessKind::Bridge) => {
                let port = format!("port{number}");
                self.connect((client, &port), (gateway, "lan"))?;
                let mut route = client.route();
                route
                    .add_bridge(name)
                    .and_then(|()| route.set_bridge(&port, name))
                    .and_then(|()| route.set_up(name))
                    .map_err(NetworkError::kernel(&client.name))
            }
            Some(AccessKind::Tunnel { over, gateway: _ }) => {
                self.add_tunnel((number, name, over), (client, gateway, core))
            }
        }
    }

    /// Adds an interface whose other end is a host without an address.
    pub(super) fn add_idle_interface(
        &mut self,
        client: &HostNamespace,
        name: &str,
        address: Option<&str>,
    ) -> Result<(), NetworkError> {
        let other = create_host("idle")?;
        self.connect((client, name), (&other, "idle"))?;
        if let Some(address) = address.and_then(|text| text.parse().ok()) {
            client
                .route()
                .add_address(name, address)
                .map_err(NetworkError::kernel(&client.name))?;
        }
        self.between.push(other);
        Ok(())
    }

    /// Adds a tunnel between client and gateway; the gateway has an address in the core for it.
    fn add_tunnel(
        &mut self,
        (number, name, over): (usize, &str, usize),
        (client, gateway, core): (&HostNamespace, &HostNamespace, &HostNamespace),
    ) -> Result<(), NetworkError> {
        let backend = choose_backend(None, std::slice::from_ref(gateway))?;
        let mut add_end = |host: &HostNamespace, name: &str, emulator_end: String| {
            let interface = (name, TUNNEL_MTU);
            let (port, carrier) =
                create_interface(backend, &mut self.route_socket, host, interface, &emulator_end)?;
            host.route().set_up(name).map_err(NetworkError::kernel(&host.name))?;
            Ok::<_, NetworkError>((port, carrier))
        };
        let (client_port, client_carrier) = add_end(client, name, format!("tunnel{number}-0"))?;
        let (gateway_port, gateway_carrier) = add_end(gateway, "lan", format!("tunnel{number}-1"))?;
        let core_link = format!("tunnel{number}");
        self.connect((core, &core_link), (gateway, "outer"))?;
        let [_, outer_client] = client_addresses(over, 2);
        let (outer_core, outer_gateway) =
            (tunnel_server_address(number, 1), tunnel_server_address(number, 2));
        core.route()
            .add_address(&core_link, outer_core)
            .map_err(NetworkError::kernel(&core.name))?;
        let mut route = gateway.route();
        route
            .add_address("outer", outer_gateway)
            .and_then(|()| {
                let (to, gateway) =
                    (Prefix::host(outer_client.address()), Some(outer_core.address()));
                let (source, table, metric) = (None, None, None);
                route.add_route(&RouteSpec { to, link: "outer", gateway, source, table, metric })
            })
            .map_err(NetworkError::kernel(&gateway.name))?;
        let (near, far) = (outer_client.address(), outer_gateway.address());
        let start = |host: &HostNamespace, port, local, remote| {
            let end = TunnelEnd { port, local, remote };
            tunnel::start(&host.namespace, end).map_err(NetworkError::system("start a tunnel"))
        };
        start(client, client_port, near, far)?;
        start(gateway, gateway_port, far, near)?;
        self.carriers.push([client_carrier, gateway_carrier]);
        Ok(())
    }

    /// Adds a router between a gateway and its middlebox, if the plan has one.
    pub(super) fn add_provider(
        &mut self,
        plan: &FailurePlan,
        number: usize,
        gateway: &HostNamespace,
    ) -> Result<Option<HostNamespace>, NetworkError> {
        let near_box = plan.near_boxes.iter().find(|(path, _)| *path == number);
        let parallel = plan.parallel_links.iter().find(|(path, _)| *path == number);
        if !plan.far_boxes.contains(&number) && near_box.is_none() && parallel.is_none() {
            return Ok(None);
        }
        let provider = create_router(&format!("provider{number}"))?;
        let hosts = (gateway, &provider);
        if let Some((_, rules)) = near_box {
            self.add_near_box(number, hosts, (ProviderLink::First, NEAR_DELAY_MS), rules)?;
        } else if let Some((_, delay_ms)) = parallel {
            let delay_ms = NEAR_DELAY_MS + delay_ms;
            self.add_near_box(number, hosts, (ProviderLink::First, NEAR_DELAY_MS), &[])?;
            let is_silent = plan.silent_parallel_links.contains(&number);
            let rules = if is_silent { &[DROP_UPWARD][..] } else { &[] };
            self.add_near_box(number, hosts, (ProviderLink::Second, delay_ms), rules)?;
        } else {
            let (up, lan) = ProviderLink::First.interfaces();
            self.connect((gateway, up), (&provider, lan))?;
        }
        // Most connections use a silent link, so that a test can hardly miss it.
        let second_weight = if plan.silent_parallel_links.contains(&number) { 3 } else { 1 };
        let mut links = vec![(ProviderLink::First, 1)];
        links.extend(parallel.map(|_| (ProviderLink::Second, second_weight)));
        route_over(gateway, &links, [Prefix::ALL_V4, Prefix::ALL_V6], |link| {
            let (up, _) = link.interfaces();
            (up, provider_addresses(number, link, 1), provider_addresses(number, link, 2))
        })?;
        route_over(&provider, &links, client_networks(number), |link| {
            let (_, lan) = link.interfaces();
            (lan, provider_addresses(number, link, 2), provider_addresses(number, link, 1))
        })?;
        Ok(Some(provider))
    }

    /// Connects a gateway and its provider through a middlebox of its own.
    fn add_near_box(
        &mut self,
        number: usize,
        (gateway, provider): (&HostNamespace, &HostNamespace),
        (link, delay_ms): (ProviderLink, u64),
        rules: &[RouterRule],
    ) -> Result<(), NetworkError> {
        let (up, lan) = link.interfaces();
        let ports =
            self.add_box_ports((gateway, up), (provider, lan), &format!("{number}-{up}"))?;
        let [v4, v6] = provider_addresses(number, link, 3).map(Prefix::address);
        let inside =
            [client_networks(number), provider_addresses(number, link, 0).map(Prefix::network)];
        let router = EmulatedRouter::at(v4, v6, inside.concat(), rules);
        let quality = PathQuality { delay_ms, rate_kbps: 0, ..PathQuality::DEFAULT };
        self.near_boxes.push(EmulatedBox { ports, router, quality });
        Ok(())
    }
}

impl ProviderLink {
    /// Returns the names of the interfaces at the gateway and at the provider.
    const fn interfaces(self) -> (&'static str, &'static str) {
        match self {
            Self::First => ("up", "lan"),
            Self::Second => ("up2", "lan2"),
        }
    }
}

/// Assigns a host's addresses on links to its neighbour, and routes destinations over all of them,
/// in proportion to their weights.
fn route_over(
    host: &HostNamespace,
    links: &[(ProviderLink, u8)],
    destinations: [Prefix; 2],
    describe: impl Fn(ProviderLink) -> (&'static str, [Prefix; 2], [Prefix; 2]),
) -> Result<(), NetworkError> {
    let kernel_error = NetworkError::kernel(&host.name);
    let mut route = host.route();
    let mut next_hops = [Vec::new(), Vec::new()];
    for (link, weight) in links {
        let (name, own_addresses, neighbours) = describe(*link);
        for own in own_addresses {
            route.add_address(name, own).map_err(&kernel_error)?;
        }
        for (hops, neighbour) in next_hops.iter_mut().zip(neighbours) {
            hops.push((name, Some(neighbour.address()), *weight));
        }
    }
    for (to, hops) in destinations.into_iter().zip(next_hops) {
        if let [(link, gateway, _)] = *hops.as_slice() {
            let (source, table, metric) = (None, None, None);
            let spec = RouteSpec { to, link, gateway, source, table, metric };
            route.add_route(&spec).map_err(&kernel_error)?;
        } else {
            hash_flows(&host.namespace)?;
            route.add_multipath_route(to, &hops).map_err(&kernel_error)?;
        }
    }
    Ok(())
}

/// Makes the next hop of a multipath route depend on protocol, addresses and ports.
///
/// Policy 1 would use the hash that the sending kernel attached to the packet. On a veth interface,
/// it survives, and it changes with each retransmitted SYN.
pub(super) fn hash_flows(namespace: &Namespace) -> Result<(), NetworkError> {
    let set = || {
        for family in ["ipv4", "ipv6"] {
            let fields = format!("net.{family}.fib_multipath_hash_fields");
            write_setting(&fields, &HASHED_FIELDS.to_string())?;
            write_setting(&format!("net.{family}.fib_multipath_hash_policy"), "3")?;
        }
        Ok(())
    };
    namespace.run(set).map_err(NetworkError::system("enter a router"))?
}
