//! Builds hosts, interfaces, addresses, routes, settings, endpoints, then the emulator.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use towpath_mptcp::stack::{InterfaceId, Stack};
use towpath_netlink::{
    Endpoint, EndpointFlags, MptcpLimits, MptcpPm, NetlinkError, Prefix, RouteSocket, RouteSpec,
    RuleSpec, VethEnd,
};
use towpath_os::clock::Clock;
use towpath_os::namespace::Namespace;
use towpath_os::sandbox::EmulatorThread;
use towpath_os::sys::ring::PacketRing;
use towpath_os::{queue, sys};
use towpath_scenario::network::kernel_endpoints;
use towpath_scenario::{Family, Host, Path, Scenario};
use towpath_sockets::frame::GsoSegment;
use towpath_sockets::port::{EmulatorPort, MAC, VirtioFd};
use towpath_sockets::stack;
use towpath_sockets::stack::StackDevice;
use towpath_sockets::tx_timestamps::TxTimestamps;

use super::address::{address, prefix_bits};
use super::links::{self, LinkDirections};
use super::{Backend, EmulatedNetwork, HostNamespace, NetworkError, end_of};
use crate::emulator::engine::{EmulatedPath, Emulator};
use crate::network::stack_plan as plan;

/// Length of an interface's queue in packets, before the emulator reads them.
const TX_QUEUE_PACKETS: u32 = 5_000;
/// Number of the first policy-routing table, and priority of the first rule.
const FIRST_TABLE: u32 = 100;
/// Maximum number of additional subflows and accepted addresses in the kernel.
const MAX_MPTCP_LIMIT: u8 = 8;

/// Means of switching an interface's carrier.
#[derive(Debug)]
pub(crate) enum CarrierControl {
    /// By the TUN descriptor.
    Tun(OwnedFd),
    /// By the emulator's end of the veth pair.
    Veth(String),
    /// By notifying the host's own stack.
    Stack,
}

/// Builds the network; nothing of it outlives the process.
pub(crate) fn build(
    thread: EmulatorThread,
    scenario: &Arc<Scenario>,
    clock: Clock,
    seed: u64,
    requested: Option<Backend>,
) -> Result<EmulatedNetwork, NetworkError> {
    let mut warnings = Vec::new();
    let mut hosts = scenario
        .hosts
        .iter()
        .map(|host| create_host(scenario, host))
        .collect::<Result<Vec<_>, _>>()?;
    let backend = choose_backend(requested, &hosts)?;
    let mut emulator_route = RouteSocket::open().map_err(NetworkError::kernel("emulator"))?;
    let mut ports = Vec::new();
    let mut carriers = Vec::new();
    let mut devices: Vec<StackDevices> = hosts.iter().map(|_| StackDevices::new()).collect();
    for (index, path) in scenario.paths.iter().enumerate() {
        let [first, second] = path.between.map(|host| hosts.get(host));
        let (Some(first), Some(second)) = (first, second) else { continue };
        let mut make_port = |host: &HostNamespace, end: usize| {
            let number = path.between.get(end).copied().unwrap_or_default();
            if let Some(stack_devices) =
                devices.get_mut(number).filter(|_| plan::is_own(scenario, number))
            {
                return stack_port(stack_devices, index);
            }
            let link = (path.name.as_str(), path.mtu_bytes);
            create_interface(backend, &mut emulator_route, host, link, &format!("{index}-{end}"))
        };
        let (first_port, first_carrier) = make_port(first, 0)?;
        let (second_port, second_carrier) = make_port(second, 1)?;
        carriers.push([first_carrier, second_carrier]);
        ports.push([first_port, second_port]);
    }
    let families = EmulatedNetwork::families(scenario);
    for (index, (host, devices)) in hosts.iter_mut().zip(devices).enumerate() {
        if plan::is_own(scenario, index) {
            warnings.extend(plan::ignored_settings(scenario, index));
            let stack = start_stack(scenario, index, clock, seed, &families, devices);
            let stack = stack.map_err(NetworkError::system("start a host's stack"))?;
            host.stack = Some(Arc::new(stack));
        } else {
            configure_host(scenario, index, host, &families)?;
        }
    }
    let shaped_at_host = shape_at_hosts(scenario, &hosts, &mut warnings);
    let (emulator, links) =
        start_emulator(thread, scenario, clock, seed, ports, shaped_at_host.clone())
            .map_err(NetworkError::system("start the emulator"))?;
    Ok(EmulatedNetwork {
        scenario: Arc::clone(scenario),
        clock,
        seed,
        hosts,
        emulator,
        backend,
        warnings,
        links,
        generations: Mutex::new(vec![[0; 2]; scenario.paths.len()]),
        carriers,
        shaped_at_host,
    })
}

fn create_host(scenario: &Scenario, host: &Host) -> Result<HostNamespace, NetworkError> {
    create_empty_host(&host.name, || {
        write_host_settings(host)?;
        // Default for programs, refused when an administrator restricts it. Our own flows set
        // theirs per socket, and the result is read back.
        let algorithm = scenario.congestion_control_of(host);
        let _ = write_setting("net.ipv4.tcp_congestion_control", algorithm); // may be refused
        Ok(())
    })
}

/// Makes a host without interfaces; `write_settings` runs inside it first.
pub(crate) fn create_empty_host(
    name: &str,
    write_settings: impl FnOnce() -> Result<(), NetworkError> + Send,
) -> Result<HostNamespace, NetworkError> {
    let system_error = |action: &str| NetworkError::system(format!("{action} host `{name}`"));
    let namespace = Namespace::create().map_err(system_error("create a network namespace for"))?;
    let route = namespace.run(|| {
        write_settings()?;
        let mut route = RouteSocket::open().map_err(NetworkError::kernel(name))?;
        route.set_up("lo").map_err(NetworkError::kernel(name))?;
        Ok(route)
    });
    let route = route.map_err(system_error("enter"))??;
    Ok(HostNamespace {
        name: name.to_owned(),
        namespace,
        route: Mutex::new(route),
        stack: None,
        quic: None,
    })
}

/// Ports of a host as its own stack sees them.
type StackDevices = Vec<(InterfaceId, StackDevice)>;

/// Makes a port that leads to a host's own stack.
fn stack_port(
    devices: &mut StackDevices,
    path: usize,
) -> Result<(EmulatorPort, CarrierControl), NetworkError> {
    let queues = || Ok((queue::queue()?, queue::queue()?));
    let ((to_stack, from_emulator), (to_emulator, from_stack)) =
        queues().map_err(NetworkError::system("make a queue"))?;
    devices.push((plan::interface(path), StackDevice::emulator(from_emulator, to_emulator)));
    Ok((EmulatorPort::Stack { inbox: from_stack, outbox: to_stack }, CarrierControl::Stack))
}

fn start_stack(
    scenario: &Scenario,
    index: usize,
    clock: Clock,
    seed: u64,
    families: &[Family],
    devices: StackDevices,
) -> io::Result<stack::StackHandle> {
    let name = scenario.hosts.get(index).map_or("", |host| host.name.as_str());
    let mut stack = Stack::new(towpath_mptcp::stack::StackConfig {
        seed: towpath_net::stream_seed(seed, &format!("host/{name}"), "stack"),
        syn_backlog: 128,
        time_wait_limit: 4_096,
        report_decisions: true,
    });
    for (number, path) in scenario.paths.iter().enumerate() {
        if end_of(path, index).is_some() {
            stack.add_interface(plan::interface(number), path.mtu_bytes);
        }
    }
    for address in plan::addresses(scenario, index, families) {
        stack.set_address(clock.now(), address);
    }
    stack::StackHandle::start(name, clock, stack, devices)
}

/// Writes the settings of every host, independent of the machine's own.
///
/// Runs inside the host's namespace, before it has interfaces.
pub(crate) fn write_default_settings() -> Result<(), NetworkError> {
    // Kernels without IPv6 lack the latter; assigning an IPv6 address fails later.
    let defaults = [
        // Metrics of a destination from one run must not affect the next one.
        ("net.ipv4.tcp_no_metrics_save", "1", true),
        // Packets may arrive on another path than their address's: not spoofing.
        ("net.ipv4.conf.all.rp_filter", "0", true),
        ("net.ipv4.conf.default.rp_filter", "0", true),
        ("net.ipv6.conf.default.accept_dad", "0", false),
        ("net.ipv6.conf.default.accept_ra", "0", false),
        ("net.ipv6.conf.default.router_solicitations", "0", false),
        // IPv4 keeps its addresses when an interface goes down; so must IPv6.
        ("net.ipv6.conf.all.keep_addr_on_down", "1", false),
        ("net.ipv6.conf.default.keep_addr_on_down", "1", false),
    ];
    for (name, value, required) in defaults {
        let result = write_setting(name, value);
        if required {
            result?;
        }
    }
    Ok(())
}

/// Writes the host's settings; runs inside its namespace, before it has interfaces.
fn write_host_settings(host: &Host) -> Result<(), NetworkError> {
    write_default_settings()?;
    let buffers =
        [("net.ipv4.tcp_rmem", host.receive_buffer), ("net.ipv4.tcp_wmem", host.send_buffer)];
    for (name, sizes) in buffers {
        if let Some([min, default, max]) = sizes {
            write_setting(name, &format!("{min} {default} {max}"))?;
        }
    }
    host.sysctls.iter().try_for_each(|(name, value)| write_setting(name, value))
}

pub(crate) fn write_setting(name: &str, value: &str) -> Result<(), NetworkError> {
    // As sysctl does: with slashes, the name of an interface may contain dots.
    let name = if name.contains('/') { name.to_owned() } else { name.replace('.', "/") };
    let path = format!("/proc/sys/{name}");
    fs::write(path, value).map_err(NetworkError::system(format!("set `{name}` to `{value}`")))
}

pub(crate) fn choose_backend(
    requested: Option<Backend>,
    hosts: &[HostNamespace],
) -> Result<Backend, NetworkError> {
    let Some(host) = hosts.first() else { return Ok(Backend::Packet) };
    if requested == Some(Backend::Packet) {
        return Ok(Backend::Packet);
    }
    let probe = host.namespace.run(|| sys::open_tun("probe")).and_then(|result| result);
    match (probe, requested) {
        (Ok(_), _) => Ok(Backend::Tun),
        (Err(error), Some(Backend::Tun)) => {
            Err(NetworkError::system("open /dev/net/tun (try `--backend packet`)")(error))
        }
        (Err(_), _) => Ok(Backend::Packet),
    }
}

/// Makes an interface of `host` whose other end is a port of the emulator.
///
/// `emulator_end` is the interface's name there, if it needs one.
pub(crate) fn create_interface(
    backend: Backend,
    emulator_route: &mut RouteSocket,
    host: &HostNamespace,
    (name, mtu_bytes): (&str, u32),
    emulator_end: &str,
) -> Result<(EmulatorPort, CarrierControl), NetworkError> {
    let system_error =
        || NetworkError::system(format!("make interface `{name}` on `{}`", host.name));
    let kernel_error = NetworkError::kernel(&host.name);
    match backend {
        Backend::Tun => {
            let result = host.namespace.run(|| sys::open_tun(name)).and_then(|fd| fd);
            let fd = result.map_err(system_error())?;
            let carrier = fd.try_clone().map_err(system_error())?;
            let mut route = host.route();
            route.set_mtu(name, mtu_bytes).map_err(&kernel_error)?;
            route.set_tx_queue_len(name, TX_QUEUE_PACKETS).map_err(&kernel_error)?;
            // Without the ring, packets count from the moment when they are read.
            let number = route.link(name).map_err(&kernel_error)?.index;
            let ring = host.namespace.run(|| PacketRing::open(number)).and_then(|ring| ring).ok();
            let port = EmulatorPort::Kernel {
                device: VirtioFd::Tun(fd),
                tx_timestamps: ring.map(TxTimestamps::new),
            };
            Ok((port, CarrierControl::Tun(carrier)))
        }
        Backend::Packet => {
            let veth_end = |name, namespace| VethEnd {
                name,
                mac: Some(MAC),
                mtu: Some(mtu_bytes),
                tx_queue_len: Some(TX_QUEUE_PACKETS),
                namespace,
            };
            let pair = (veth_end(name, Some(host.namespace.as_fd())), veth_end(emulator_end, None));
            emulator_route.add_veth(&pair.0, &pair.1).map_err(&kernel_error)?;
            host.route().set_arp(name, false).map_err(&kernel_error)?;
            emulator_route.set_arp(emulator_end, false).map_err(&kernel_error)?;
            emulator_route.set_up(emulator_end).map_err(&kernel_error)?;
            let number = emulator_route.link(emulator_end).map_err(&kernel_error)?.index;
            let fd = sys::open_packet_socket(number).map_err(system_error())?;
            let port = EmulatorPort::Kernel { device: VirtioFd::Packet(fd), tx_timestamps: None };
            Ok((port, CarrierControl::Veth(emulator_end.to_owned())))
        }
    }
}

fn configure_host(
    scenario: &Scenario,
    index: usize,
    host: &HostNamespace,
    families: &[Family],
) -> Result<(), NetworkError> {
    for (path_index, path) in scenario.paths.iter().enumerate() {
        let Some(end) = end_of(path, index) else { continue };
        let result = configure_interface(&mut host.route(), path, path_index, end, 0);
        result.map_err(NetworkError::kernel(&host.name))?;
    }
    let result = host.namespace.run(|| configure_mptcp(scenario, index, host, families));
    let result = result.map_err(NetworkError::system(format!("enter host `{}`", host.name)))?;
    match result {
        // A kernel without Multipath TCP still carries TCP. A run that needs Multipath TCP fails
        // later, with a message.
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(()),
        other => other.map_err(NetworkError::kernel(&host.name)),
    }
}

/// Brings an interface up with its addresses, and (on a path's first host) routes by source.
pub(super) fn configure_interface(
    route: &mut RouteSocket,
    path: &Path,
    path_index: usize,
    end: usize,
    generation: u8,
) -> Result<(), NetlinkError> {
    route.set_up(&path.name)?;
    for family in [Family::V4, Family::V6] {
        let local = address(path_index, end, family, generation);
        // IPv6 needs an MTU of at least 1,280 bytes.
        if family == Family::V6 && path.mtu_bytes < 1_280 {
            continue;
        }
        route.add_address(&path.name, prefix(local, prefix_bits(family)))?;
        if end == 0 {
            route_by_source(route, path, path_index, local)?;
        }
    }
    Ok(())
}

fn route_by_source(
    route: &mut RouteSocket,
    path: &Path,
    path_index: usize,
    local: std::net::IpAddr,
) -> Result<(), NetlinkError> {
    let table = FIRST_TABLE + path_index as u32;
    route.add_rule(&RuleSpec {
        from: Prefix::host(local),
        to: None,
        table,
        priority: Some(table),
    })?;
    add_default_route(route, path, path_index, local.is_ipv4())
}

/// Adds the default route of a path's table, which vanishes whenever the interface goes down.
pub(super) fn add_default_route(
    route: &mut RouteSocket,
    path: &Path,
    path_index: usize,
    v4: bool,
) -> Result<(), NetlinkError> {
    let result = route.add_route(&RouteSpec {
        to: if v4 { Prefix::ALL_V4 } else { Prefix::ALL_V6 },
        link: &path.name,
        gateway: None,
        source: None,
        table: Some(FIRST_TABLE + path_index as u32),
        metric: None,
    });
    match result {
        Err(error) if error.errno() == Some(libc::EEXIST) => Ok(()),
        other => other,
    }
}

pub(super) fn prefix(address: std::net::IpAddr, bits: u8) -> Prefix {
    Prefix::new(address, bits).unwrap_or(Prefix::host(address))
}

/// Sets limits and endpoints; runs inside the host's namespace.
fn configure_mptcp(
    scenario: &Scenario,
    index: usize,
    host: &HostNamespace,
    families: &[Family],
) -> Result<(), NetlinkError> {
    let mut mptcp = MptcpPm::open()?;
    let config = scenario.hosts.get(index).map(|host| host.mptcp.clone()).unwrap_or_default();
    mptcp.set_limits(MptcpLimits {
        subflows: u32::from(config.subflows.unwrap_or(MAX_MPTCP_LIMIT)),
        add_addr_accepted: u32::from(config.add_addr_accepted.unwrap_or(MAX_MPTCP_LIMIT)),
    })?;
    // Plain TCP runs on any number of paths, so endpoints beyond the limit are left out.
    for endpoint in kernel_endpoints(scenario, index) {
        let Some(path) = scenario.paths.get(endpoint.path) else { continue };
        let Some(end) = end_of(path, index) else { continue };
        let link_index = host.route().link(&path.name)?.index;
        for family in families {
            mptcp.add_endpoint(&Endpoint {
                address: address(endpoint.path, end, *family, 0),
                port: None,
                id: None,
                link_index: Some(link_index),
                flags: endpoint_flags(endpoint),
            })?;
        }
    }
    Ok(())
}

pub(super) fn endpoint_flags(endpoint: towpath_scenario::Endpoint) -> EndpointFlags {
    [
        (endpoint.subflow, EndpointFlags::SUBFLOW),
        (endpoint.signal, EndpointFlags::SIGNAL),
        (endpoint.backup, EndpointFlags::BACKUP),
        (endpoint.fullmesh, EndpointFlags::FULLMESH),
        (endpoint.laminar, EndpointFlags::LAMINAR),
    ]
    .into_iter()
    .filter(|(is_set, _)| *is_set)
    .fold(EndpointFlags::default(), |flags, (_, flag)| flags | flag)
}

/// Shapes directions whose queue is at the sending host with that host's kernel.
///
/// Only there does a full queue push back on the sockets.
fn shape_at_hosts(
    scenario: &Scenario,
    hosts: &[HostNamespace],
    warnings: &mut Vec<String>,
) -> Vec<[bool; 2]> {
    let mut shaped_directions = Vec::new();
    for path in &scenario.paths {
        let directions = [(&path.up, path.between[0]), (&path.down, path.between[1])];
        shaped_directions.push(directions.map(|(config, sender)| {
            if config.position != towpath_net::config::QueuePosition::Host {
                return false;
            }
            let host = hosts.get(sender);
            let kernel_host = host.filter(|host| host.stack.is_none());
            let result = kernel_host
                .ok_or_else(|| "hosts with towpath's own stack have no kernel queue".to_owned())
                .and_then(|host| {
                    let tbf = links::host_shaper(config, path.mtu_bytes);
                    let tbf = tbf.ok_or_else(|| "the kernel has no equal shaper".to_owned());
                    Ok((tbf?, host))
                })
                .and_then(|(tbf, host)| {
                    host.route().set_tbf(&path.name, &tbf).map_err(|error| error.to_string())
                });
            if let Err(reason) = &result {
                warnings.push(format!(
                    "the queue of `{}` is emulated in the network, not at the host: {reason}",
                    path.name
                ));
            }
            result.is_ok()
        }));
    }
    shaped_directions
}

fn start_emulator(
    thread: EmulatorThread,
    scenario: &Arc<Scenario>,
    clock: Clock,
    seed: u64,
    ports: Vec<[EmulatorPort; 2]>,
    shaped_at_host: Vec<[bool; 2]>,
) -> io::Result<(Emulator, LinkDirections)> {
    // Frames belong to one thread, so the topology is built there. Its IDs are the same here.
    let (_, directions) =
        links::topology::<GsoSegment>(scenario, seed, &shaped_at_host).map_err(io::Error::other)?;
    let paths = ports
        .into_iter()
        .zip(&directions.routes)
        .enumerate()
        .map(|(index, (ports, routes))| EmulatedPath {
            ports,
            routes: *routes,
            split: links::split(index, scenario),
            router: None,
        })
        .collect();
    let reported = directions.reported(scenario);
    let scenario_for_thread = Arc::clone(scenario);
    let emulator = Emulator::start(
        thread,
        clock,
        move || {
            links::topology(&scenario_for_thread, seed, &shaped_at_host)
                .map(|(topology, _)| topology)
        },
        paths,
        reported,
    )?;
    Ok((emulator, directions))
}
