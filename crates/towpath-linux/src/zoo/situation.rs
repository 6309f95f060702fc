//! What a situation is, as data: what one sees and why, and how it differs from a network in which
//! all is well.

use std::net::{Ipv4Addr, SocketAddr};

use towpath_measure::scenario::LinkSide;

use crate::hop::RouterRule;

/// A recorded failure of Multipath TCP, or a healthy network.
#[derive(Debug, Clone, Copy)]
pub struct FailureCase {
    /// As people type it.
    pub name: &'static str,
    /// One line.
    pub title: &'static str,
    /// What somebody sees who does not know.
    pub seen: &'static str,
    /// What is behind it.
    pub why: &'static str,
    /// What a diagnosis must name first; nothing if all is well.
    pub cause: Option<&'static str>,
    /// Whether the client's end alone cannot tell: `towpath server` is at the server, which takes
    /// data and says how its host looks.
    pub two_ends: bool,
    /// How it differs from the usual network.
    pub(crate) changes: &'static [NetworkMutation],
}

/// Which of the two hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostSide {
    Client,
    Server,
}

/// One difference. Interfaces and paths count from 1, as their names do.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NetworkMutation {
    /// Names of the client's interfaces, and so their number.
    Clients(&'static [&'static str]),
    /// All interfaces of both hosts are in one subnet, at one switch.
    OneSubnet,
    /// The client's kernel knows no Multipath TCP.
    OldKernel,
    /// How the client finds its way.
    Routing(Routing),
    /// How the server finds its way: by source, or not.
    ServerRouting(Routing),
    /// `NAME = VALUE`, when all else is configured.
    Sysctl(HostSide, &'static str, &'static str),
    /// Subflows, and addresses accepted from the peer.
    Limits(HostSide, u32, u32),
    /// In place of the usual ones, as `ip mptcp endpoint add` takes them.
    Endpoints(HostSide, &'static [&'static str]),
    /// One more address, as `ADDRESS/LENGTH`, of an interface.
    Address(HostSide, usize, &'static str),
    /// An address is taken away, after endpoints were made of it.
    NoAddress(HostSide, usize, &'static str),
    /// An interface is switched off.
    Down(HostSide, usize),
    /// An interface was switched off and on again, which took its routes.
    BouncedLink(HostSide, usize),
    /// A box on a path, two hops behind the client's interface.
    Box(usize, &'static [RouterRule]),
    /// The box of a path counts the time to live before it does anything else.
    LateBox(usize),
    /// There is one more router before the box of a path.
    FarBox(usize),
    /// The quality of a path.
    Quality(usize, PathQuality),
    /// What waits for connections.
    Listener(ServerBehaviour),
    /// Something happens while the connection is there.
    Event(FailureEvent),
    /// A box that has done its harm before, and is gone.
    FormerBox(usize, &'static [RouterRule]),
    /// The server's address on path 2 is another host's.
    OtherServer,
    /// An application of the client's holds a connection.
    Application(AppSocket),
    /// A box on a path until the applications have begun.
    InitialBox(usize, &'static [RouterRule]),
    /// A box on a path until the applications have lost a subflow to it.
    TemporaryBox(usize, &'static [RouterRule]),
    /// The client's endpoint with this address is deleted and added again, over and over.
    FlapEndpoint(&'static str),
    /// Another address to connect to.
    Connect(&'static str),
}

/// The client's routing tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Routing {
    /// A table for each interface's addresses, as it should be.
    BySource,
    /// A default route through each interface, the first with the best metric.
    ByMetric,
    /// One default route, through the first interface.
    FirstOnly,
    /// None but to the neighbours.
    Nowhere,
}

/// What a path does to every packet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PathQuality {
    pub(crate) delay_ms: u64,
    pub(crate) rate_kbps: u64,
    /// In each direction.
    pub(crate) loss_percent: u32,
    /// Larger packets vanish, and nobody says so.
    pub(crate) mtu_bytes: u32,
    /// Which direction the loss and the lower MTU are in.
    pub(crate) side: LinkSide,
}

impl PathQuality {
    /// A path as most are.
    pub(crate) const DEFAULT: Self = Self {
        delay_ms: 5,
        rate_kbps: 20_000,
        loss_percent: 0,
        mtu_bytes: u32::MAX,
        side: LinkSide::Both,
    };
}

/// What waits at the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerBehaviour {
    Multipath,
    Plain,
    /// Takes one connection of Multipath TCP, and no longer listens.
    Once,
    Nothing,
    /// Answers requests over HTTP/1.1, and hangs up on all else.
    Web,
    /// Answers a client's hello over TLS, and hangs up on all else.
    Tls,
    /// Says its banner, and hangs up on who does not say one.
    Ssh,
    /// Hangs up with the first bytes.
    ClosesOnData,
}

/// A kind of socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AppSocket {
    Plain,
    Multipath,
    /// Multipath TCP, and much is sent at once with long pauses.
    Bursts,
}

/// What happens while the connection is there.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FailureEvent {
    /// An interface of the client's is switched off.
    Down(usize),
    /// A box on a path begins its work.
    Box(usize, &'static [RouterRule]),
}

/// All of a situation: the usual network with every change made.
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
    /// With whether it is on again.
    pub(crate) down: Vec<(HostSide, usize, bool)>,
    pub(crate) boxes: Vec<(usize, &'static [RouterRule])>,
    pub(crate) late_boxes: Vec<usize>,
    pub(crate) far_boxes: Vec<usize>,
    pub(crate) former_boxes: Vec<(usize, &'static [RouterRule])>,
    pub(crate) qualities: Vec<(usize, PathQuality)>,
    pub(crate) listener: ServerBehaviour,
    pub(crate) happenings: Vec<FailureEvent>,
    pub(crate) other_server: bool,
    pub(crate) applications: Vec<AppSocket>,
    pub(crate) first_boxes: Vec<(usize, &'static [RouterRule])>,
    pub(crate) passing_boxes: Vec<(usize, &'static [RouterRule])>,
    pub(crate) fights: Vec<&'static str>,
    pub(crate) connect: &'static str,
}

impl FailureCase {
    /// Where the client connects to.
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
            former_boxes: Vec::new(),
            qualities: Vec::new(),
            listener: ServerBehaviour::Multipath,
            happenings: Vec::new(),
            other_server: false,
            applications: Vec::new(),
            first_boxes: Vec::new(),
            passing_boxes: Vec::new(),
            fights: Vec::new(),
            connect: "198.51.100.2",
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
            NetworkMutation::Limits(HostSide::Client, subflows, accepted) => {
                let [client, _] = &mut self.limits;
                *client = (subflows, accepted);
            }
            NetworkMutation::Limits(HostSide::Server, subflows, accepted) => {
                let [_, server] = &mut self.limits;
                *server = (subflows, accepted);
            }
            NetworkMutation::Endpoints(HostSide::Client, endpoints) => {
                let [client, _] = &mut self.endpoints;
                *client = endpoints.to_vec();
            }
            NetworkMutation::Endpoints(HostSide::Server, endpoints) => {
                let [_, server] = &mut self.endpoints;
                *server = endpoints.to_vec();
            }
            NetworkMutation::Address(host, link, address) => {
                self.addresses.push((host, link, address))
            }
            NetworkMutation::NoAddress(host, link, address) => {
                self.lost_addresses.push((host, link, address));
            }
            NetworkMutation::Down(host, link) => self.down.push((host, link, false)),
            NetworkMutation::BouncedLink(host, link) => self.down.push((host, link, true)),
            NetworkMutation::Box(path, rules) => self.boxes.push((path, rules)),
            NetworkMutation::LateBox(path) => self.late_boxes.push(path),
            NetworkMutation::FarBox(path) => self.far_boxes.push(path),
            NetworkMutation::FormerBox(path, rules) => self.former_boxes.push((path, rules)),
            NetworkMutation::Quality(path, quality) => self.qualities.push((path, quality)),
            NetworkMutation::Listener(listener) => self.listener = listener,
            NetworkMutation::Event(happening) => self.happenings.push(happening),
            NetworkMutation::OtherServer => self.other_server = true,
            NetworkMutation::Application(socket) => self.applications.push(socket),
            NetworkMutation::InitialBox(path, rules) => self.first_boxes.push((path, rules)),
            NetworkMutation::TemporaryBox(path, rules) => self.passing_boxes.push((path, rules)),
            NetworkMutation::FlapEndpoint(address) => self.fights.push(address),
            NetworkMutation::Connect(address) => self.connect = address,
        }
    }

    /// What the box of a path does.
    pub(crate) fn rules(&self, path: usize) -> Vec<RouterRule> {
        let own = self.boxes.iter().filter(|(at, _)| *at == path);
        own.flat_map(|(_, rules)| rules.iter().copied()).collect()
    }

    /// What a path does to every packet.
    pub(crate) fn quality(&self, path: usize) -> PathQuality {
        let own = self.qualities.iter().rev().find(|(at, _)| *at == path);
        own.map_or(PathQuality::DEFAULT, |(_, quality)| *quality)
    }
}
