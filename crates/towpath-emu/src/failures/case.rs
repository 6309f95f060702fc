//! Failure cases as data: symptom, cause, and differences from a healthy network.

use std::net::{Ipv4Addr, SocketAddr};

use towpath_scenario::LinkSide;

use crate::router::{PacketAction, PacketMatch, RouterRule};

/// Public IPv4 addresses of the server's interfaces.
pub(crate) const PUBLIC_SERVERS: [Ipv4Addr; 2] =
    [Ipv4Addr::new(198, 51, 100, 2), Ipv4Addr::new(203, 0, 113, 2)];
/// Addresses of the server's interfaces behind a translation.
pub(crate) const PRIVATE_SERVERS: [Ipv4Addr; 2] =
    [Ipv4Addr::new(172, 20, 1, 2), Ipv4Addr::new(172, 20, 2, 2)];
/// Rules of the translation in front of the server.
const SERVER_MAPS: [RouterRule; 2] = {
    let [first_public, second_public] = PUBLIC_SERVERS;
    let [first_private, second_private] = PRIVATE_SERVERS;
    [map_server(first_public, first_private), map_server(second_public, second_private)]
};

const fn map_server(public: Ipv4Addr, private: Ipv4Addr) -> RouterRule {
    let treatment = PacketAction::MapServer { public, private };
    RouterRule { side: LinkSide::Both, packets: PacketMatch::ALL, treatment }
}

/// Recorded failure of Multipath TCP, or a healthy network.
#[derive(Debug, Clone, Copy)]
pub struct FailureCase {
    /// Name of the case on the command line.
    pub name: &'static str,
    /// One-line summary of the case.
    pub title: &'static str,
    /// Symptom that a user sees.
    pub symptom: &'static str,
    /// Explanation of the cause.
    pub explanation: &'static str,
    /// Cause that a diagnosis must name first; `None` for a healthy network.
    pub cause: Option<&'static str>,
    /// True if the client alone cannot find the cause. The server then runs `towpath server`,
    /// which accepts data and reports its host's state.
    pub needs_server_report: bool,
    /// Differences from the default network, applied in order.
    pub(crate) changes: &'static [NetworkMutation],
}

/// One of the two hosts of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostSide {
    Client,
    Server,
}

/// One difference from the default network. Interfaces and paths count from 1, as in their names.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NetworkMutation {
    /// Names of the client's interfaces, and thereby their number.
    Clients(&'static [&'static str]),
    /// Puts all interfaces of both hosts in one subnet, at one switch.
    OneSubnet,
    /// Gives the client a kernel without Multipath TCP.
    OldKernel,
    /// Routing tables of the client.
    Routing(Routing),
    /// Routing tables of the server: by source address or not.
    ServerRouting(Routing),
    /// Sets `NAME = VALUE` after all other configuration.
    Sysctl(HostSide, &'static str, &'static str),
    /// Limits of a host: subflows, and addresses accepted from the peer.
    Limits(HostSide, u32, u32),
    /// Endpoints of a host instead of the default, in the syntax of `ip mptcp endpoint add`.
    Endpoints(HostSide, &'static [&'static str]),
    /// Adds an address, as `ADDRESS/LENGTH`, to an interface.
    Address(HostSide, usize, &'static str),
    /// Removes an address after endpoints were created for it.
    NoAddress(HostSide, usize, &'static str),
    /// Sets an interface down.
    Down(HostSide, usize),
    /// Sets an interface down and up again, which removes its routes.
    BouncedLink(HostSide, usize),
    /// Adds a middlebox to a path, two hops behind the client's interface.
    Box(usize, &'static [RouterRule]),
    /// Makes a path's middlebox decrement the time to live before it does anything else.
    LateBox(usize),
    /// Adds one more router in front of a path's middlebox.
    FarBox(usize),
    /// Adds one more router and, in front of it, a second middlebox.
    NearBox(usize, &'static [RouterRule]),
    /// Adds one more router, which two links connect to the gateway. Each flow uses one of them by
    /// the hash of its addresses and ports; the second adds this delay, in milliseconds.
    ParallelLinks(usize, u64),
    /// Makes the second of a path's parallel links drop packets of the client.
    SilentParallelLink(usize),
    /// Kind of a client's interface.
    Access(usize, AccessKind),
    /// Makes a path's gateway accept TCP connections to the server, and open plain ones for them.
    Proxy(usize),
    /// Gives an interface of the client addresses of one family only: IPv4 if true.
    OneFamily(usize, bool),
    /// Adds an interface of the client that is up and leads nowhere, with an address or without.
    IdleInterface(&'static str, Option<&'static str>),
    /// Puts the server behind an address translation: its IPv4 addresses are private.
    PrivateServer,
    /// Quality of a path: delay, rate, loss, MTU.
    Quality(usize, PathQuality),
    /// Behaviour of the server's listener.
    Listener(ServerBehaviour),
    /// Event while the connection is open.
    Event(FailureEvent),
    /// Middlebox that has acted on an earlier connection and is gone.
    FormerBox(usize, &'static [RouterRule]),
    /// Gives the server's address on path 2 to another host.
    OtherServer,
    /// Distributes flows to the server's address over two hosts, by addresses and ports.
    BalancedServers,
    /// Application of the client that holds a connection.
    Application(AppSocket),
    /// Middlebox on a path until the applications have started.
    InitialBox(usize, &'static [RouterRule]),
    /// Middlebox on a path until the applications have lost a subflow because of it.
    TemporaryBox(usize, &'static [RouterRule]),
    /// Deletes the client's endpoint with this address and adds it back, repeatedly.
    FlapEndpoint(&'static str),
    /// Different destination address for the client.
    Connect(&'static str),
    /// Gives all of the client's interfaces the same IPv4 address and gateway, as identical modems
    /// do. Each path then needs a NAT.
    IdenticalModems,
    /// Second port on which the server listens with Multipath TCP, and to which an application of
    /// the client is connected.
    SecondPort(u16),
}

/// Packets that reach another host with the server's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SecondHost {
    /// All packets of the client's second path.
    OnSecondPath,
    /// A part of the flows, by the hash of addresses and ports.
    Balanced,
}

/// Kind of a client's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AccessKind {
    /// Bridge that has the address; its port is connected to the gateway.
    Bridge,
    /// Tunnel over another path, whose packets it carries in UDP datagrams over IPv6.
    Tunnel {
        /// Path that carries the tunnel.
        over: usize,
        /// True if the tunnel has a subnet with a gateway; otherwise it is point-to-point.
        gateway: bool,
    },
}

/// Policy of a host's routing tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Routing {
    /// One table for each source address: the correct setup.
    BySource,
    /// Default route through each interface; the first has the lowest metric.
    ByMetric,
    /// One default route, through the first interface.
    FirstOnly,
    /// Routes to the neighbours only.
    LinkLocalOnly,
    /// As `FirstOnly`, and the second interface is the route to the other host's second network.
    Paired,
}

/// Effects of a path on every packet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PathQuality {
    pub(crate) delay_ms: u64,
    pub(crate) rate_kbps: u64,
    /// Packet loss in each affected direction, in percent.
    pub(crate) loss_percent: u32,
    /// Maximum packet size; larger packets are dropped without an ICMP message.
    pub(crate) mtu_bytes: u32,
    /// Directions that the loss and the lower MTU affect.
    pub(crate) side: LinkSide,
}

impl PathQuality {
    /// Quality of a typical path.
    pub(crate) const DEFAULT: Self = Self {
        delay_ms: 5,
        rate_kbps: 20_000,
        loss_percent: 0,
        mtu_bytes: u32::MAX,
        side: LinkSide::Both,
    };
}

/// Behaviour of the server's listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerBehaviour {
    Multipath,
    Plain,
    /// Accepts one Multipath TCP connection, then stops listening.
    Once,
    Nothing,
    /// Replies to requests over HTTP/1.1; closes the connection on other data.
    Web,
    /// Replies to a `ClientHello`; closes the connection on other data.
    Tls,
    /// Sends an SSH banner; closes the connection if the client sends none.
    Ssh,
    /// Closes the connection at the first bytes.
    ClosesOnData,
    /// Reads all data and never replies.
    Idle,
}

/// Kind of an application's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AppSocket {
    Plain,
    Multipath,
    /// Multipath TCP with bursts of data and long pauses between them.
    Bursts,
}

/// Event while the connection is open.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FailureEvent {
    /// Sets an interface of the client down.
    Down(usize),
    /// Activates a middlebox on a path.
    Box(usize, &'static [RouterRule]),
}

/// Complete description of a case: the default network with every change applied.
#[derive(Debug, Clone)]
pub(crate) struct FailurePlan {
    pub(crate) clients: &'static [&'static str],
    pub(crate) one_subnet: bool,
    pub(crate) old_kernel: bool,
    pub(crate) routing: Routing,
    pub(crate) server_routing: Routing,
    pub(crate) sysctls: Vec<(HostSide, &'static str, &'static str)>,
    pub(crate) limits: [(u32, u32); 2],
    pub(crate) endpoints: [Vec<&'static str>; 2],
    pub(crate) addresses: Vec<(HostSide, usize, &'static str)>,
    pub(crate) lost_addresses: Vec<(HostSide, usize, &'static str)>,
    /// Interfaces that were set down; true if they are up again.
    pub(crate) down: Vec<(HostSide, usize, bool)>,
    pub(crate) boxes: Vec<(usize, &'static [RouterRule])>,
    pub(crate) late_boxes: Vec<usize>,
    pub(crate) far_boxes: Vec<usize>,
    pub(crate) near_boxes: Vec<(usize, &'static [RouterRule])>,
    /// Paths with parallel links, and the additional delay of the second link in milliseconds.
    pub(crate) parallel_links: Vec<(usize, u64)>,
    pub(crate) silent_parallel_links: Vec<usize>,
    pub(crate) access: Vec<(usize, AccessKind)>,
    pub(crate) proxies: Vec<usize>,
    pub(crate) one_family: Vec<(usize, bool)>,
    pub(crate) idle_interfaces: Vec<(&'static str, Option<&'static str>)>,
    /// Rules of the translation in front of the server, if there is one.
    pub(crate) server_nat: Option<[RouterRule; 2]>,
    pub(crate) former_boxes: Vec<(usize, &'static [RouterRule])>,
    pub(crate) qualities: Vec<(usize, PathQuality)>,
    pub(crate) listener: ServerBehaviour,
    pub(crate) events: Vec<FailureEvent>,
    pub(crate) second_host: Option<SecondHost>,
    pub(crate) applications: Vec<AppSocket>,
    pub(crate) initial_boxes: Vec<(usize, &'static [RouterRule])>,
    pub(crate) temporary_boxes: Vec<(usize, &'static [RouterRule])>,
    pub(crate) flapping_endpoints: Vec<&'static str>,
    pub(crate) connect: &'static str,
    pub(crate) identical_modems: bool,
    pub(crate) second_port: Option<u16>,
}

impl HostSide {
    /// Returns the value of this host, of those of client and server.
    const fn select<T>(self, [client, server]: &mut [T; 2]) -> &mut T {
        match self {
            Self::Client => client,
            Self::Server => server,
        }
    }
}

impl FailureCase {
    /// Returns the address to which the client connects.
    pub fn target(&self) -> SocketAddr {
        let address = FailurePlan::new(self.changes).connect.parse();
        SocketAddr::new(address.unwrap_or(Ipv4Addr::LOCALHOST.into()), super::PORT)
    }
}

impl FailurePlan {
    pub(crate) fn new(changes: &[NetworkMutation]) -> Self {
        let mut plan = Self {
            clients: &["c1", "c2"],
            one_subnet: false,
            old_kernel: false,
            routing: Routing::BySource,
            server_routing: Routing::BySource,
            sysctls: Vec::new(),
            limits: [(8, 8); 2],
            endpoints: [vec!["10.1.2.2 dev c2 subflow", "2001:db8:1:2::2 dev c2 subflow"], vec![]],
            addresses: Vec::new(),
            lost_addresses: Vec::new(),
            down: Vec::new(),
            boxes: Vec::new(),
            late_boxes: Vec::new(),
            far_boxes: Vec::new(),
            near_boxes: Vec::new(),
            parallel_links: Vec::new(),
            silent_parallel_links: Vec::new(),
            access: Vec::new(),
            proxies: Vec::new(),
            one_family: Vec::new(),
            idle_interfaces: Vec::new(),
            server_nat: None,
            former_boxes: Vec::new(),
            qualities: Vec::new(),
            listener: ServerBehaviour::Multipath,
            events: Vec::new(),
            second_host: None,
            applications: Vec::new(),
            initial_boxes: Vec::new(),
            temporary_boxes: Vec::new(),
            flapping_endpoints: Vec::new(),
            connect: "198.51.100.2",
            identical_modems: false,
            second_port: None,
        };
        for change in changes {
            plan.apply(*change);
        }
        plan
    }

    fn apply(&mut self, change: NetworkMutation) {
        match change {
            NetworkMutation::Clients(names) => self.clients = names,
            NetworkMutation::OneSubnet => {
                self.one_subnet = true;
                self.connect = "192.0.2.21";
            }
            NetworkMutation::OldKernel => self.old_kernel = true,
            NetworkMutation::Routing(routing) => self.routing = routing,
            NetworkMutation::ServerRouting(routing) => self.server_routing = routing,
            NetworkMutation::Sysctl(host, name, value) => self.sysctls.push((host, name, value)),
            NetworkMutation::Limits(host, subflows, accepted) => {
                *host.select(&mut self.limits) = (subflows, accepted);
            }
            NetworkMutation::Endpoints(host, endpoints) => {
                *host.select(&mut self.endpoints) = endpoints.to_vec();
            }
            NetworkMutation::Address(host, link, address) => {
                self.addresses.push((host, link, address));
            }
            NetworkMutation::NoAddress(host, link, address) => {
                self.lost_addresses.push((host, link, address));
            }
            NetworkMutation::Down(host, link) => self.down.push((host, link, false)),
            NetworkMutation::BouncedLink(host, link) => self.down.push((host, link, true)),
            NetworkMutation::Box(path, rules) => self.boxes.push((path, rules)),
            NetworkMutation::LateBox(path) => self.late_boxes.push(path),
            NetworkMutation::FarBox(path) => self.far_boxes.push(path),
            NetworkMutation::NearBox(path, rules) => self.near_boxes.push((path, rules)),
            NetworkMutation::ParallelLinks(path, delay_ms) => {
                self.parallel_links.push((path, delay_ms));
            }
            NetworkMutation::SilentParallelLink(path) => self.silent_parallel_links.push(path),
            NetworkMutation::Access(path, kind) => self.access.push((path, kind)),
            NetworkMutation::Proxy(path) => self.proxies.push(path),
            NetworkMutation::OneFamily(path, v4) => self.one_family.push((path, v4)),
            NetworkMutation::IdleInterface(name, address) => {
                self.idle_interfaces.push((name, address));
            }
            NetworkMutation::PrivateServer => self.server_nat = Some(SERVER_MAPS),
            NetworkMutation::FormerBox(path, rules) => self.former_boxes.push((path, rules)),
            NetworkMutation::Quality(path, quality) => self.qualities.push((path, quality)),
            NetworkMutation::Listener(listener) => self.listener = listener,
            NetworkMutation::Event(event) => self.events.push(event),
            NetworkMutation::OtherServer => self.second_host = Some(SecondHost::OnSecondPath),
            NetworkMutation::BalancedServers => self.second_host = Some(SecondHost::Balanced),
            NetworkMutation::Application(socket) => self.applications.push(socket),
            NetworkMutation::InitialBox(path, rules) => self.initial_boxes.push((path, rules)),
            NetworkMutation::TemporaryBox(path, rules) => self.temporary_boxes.push((path, rules)),
            NetworkMutation::FlapEndpoint(address) => self.flapping_endpoints.push(address),
            NetworkMutation::Connect(address) => self.connect = address,
            NetworkMutation::IdenticalModems => self.identical_modems = true,
            NetworkMutation::SecondPort(port) => self.second_port = Some(port),
        }
    }

    /// Returns the rules of a path's middlebox.
    pub(crate) fn rules(&self, path: usize) -> Vec<RouterRule> {
        let boxes = self.boxes.iter().filter(|(box_path, _)| *box_path == path);
        let rules = boxes.flat_map(|(_, rules)| rules.iter().copied());
        // The server's translation is behind everything else on the path.
        rules.chain(self.server_nat.into_iter().flatten()).collect()
    }

    /// Returns true if the server has private IPv4 addresses.
    pub(crate) fn is_server_private(&self) -> bool {
        self.server_nat.is_some()
    }

    /// Returns the kind of an interface of the client; `None` for an ordinary one.
    pub(crate) fn access(&self, path: usize) -> Option<AccessKind> {
        let access = self.access.iter().find(|(access_path, _)| *access_path == path);
        access.map(|(_, kind)| *kind)
    }

    /// Returns the index of the client's first interface with addresses of the family.
    pub(crate) fn first_interface(&self, v4: bool) -> usize {
        (1..=self.clients.len()).position(|path| self.has_family(path, v4)).unwrap_or_default()
    }

    /// Returns true if an interface of the client may have an address of the family.
    pub(crate) fn has_family(&self, path: usize, v4: bool) -> bool {
        !self.one_family.contains(&(path, !v4))
    }

    /// Returns the quality of a path.
    pub(crate) fn quality(&self, path: usize) -> PathQuality {
        let quality = self.qualities.iter().rev().find(|(quality_path, _)| *quality_path == path);
        quality.map_or(PathQuality::DEFAULT, |(_, quality)| *quality)
    }
}
