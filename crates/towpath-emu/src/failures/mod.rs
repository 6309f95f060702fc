//! Failure cases of Multipath TCP, each as a network of its own.
//!
//! A [`FailureCase`] is data: symptom, cause, and the difference from a healthy network
//! ([`case`]). [`RunningCase`] is that network, running in namespaces. Reading order: `case`,
//! `network`, `listener`, then the cases themselves.

mod access;
mod addresses;
mod applications;
mod case;
mod endpoint;
mod list;
mod listener;
mod network;
mod proxy;
mod random;
mod servers;
mod tunnel;

use std::ffi::OsString;
use std::io::{self, BufRead};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

pub use case::FailureCase;
pub use list::{cases, find, variations};
pub use random::{GroundTruth, RandomCase, random_case};

use towpath_netlink::{Endpoint, MptcpLimits, MptcpPm, NetlinkError, Prefix};
use towpath_os::filter;
use towpath_os::sandbox::EmulatorThread;
use towpath_os::sys::seccomp;
use towpath_os::{interrupt, sandbox};

use self::case::{FailureEvent, FailurePlan, HostSide};
use self::network::{FailureNetwork, SERVERS};
use crate::lab::LabError;
use crate::network::build::write_setting;
use crate::network::{HostNamespace, NetworkError};
use crate::program;

/// TCP port on which the server listens.
pub const PORT: u16 = 4_000;
/// Bytes that the server receives before a scheduled event is applied.
const EVENT_AFTER_BYTES: u64 = 100_000;

/// Running network of a case; it ends with the process.
#[derive(Debug)]
pub struct RunningCase {
    network: Arc<FailureNetwork>,
    target: SocketAddr,
    server: Option<Child>,
    old_kernel: bool,
}

impl RunningCase {
    /// Creates the network and its listeners, and replays the case's history.
    pub fn open(case: &FailureCase, thread: EmulatorThread) -> Result<Self, NetworkError> {
        let plan = FailurePlan::new(case.changes);
        let network = Arc::new(FailureNetwork::build(&plan, thread)?);
        configure(&plan, &network, HostSide::Client)?;
        configure(&plan, &network, HostSide::Server)?;
        let target = case.target();
        let server = if case.needs_server_report {
            Some(start_server(&network.server).map_err(NetworkError::system("start the server"))?)
        } else {
            listener::serve(&network.server.namespace, PORT, plan.listener)
                .map_err(NetworkError::system("listen at the server"))?;
            None
        };
        if let Some(other_server) = &network.other_server {
            listener::serve(&other_server.namespace, PORT, plan.listener)
                .map_err(NetworkError::system("listen at the other server"))?;
        }
        for (path, rules) in &plan.former_boxes {
            network.set_rules(*path, &[rules.to_vec(), plan.rules(*path)].concat());
            trigger_blackhole_fallback(&network, target)
                .map_err(NetworkError::system("connect through the box"))?;
            network.set_rules(*path, &plan.rules(*path));
        }
        for (side, link, up_again) in &plan.down {
            let host = host_namespace(&network, *side);
            let Some(name) = link_name(&plan, *side, *link) else { continue };
            let kernel_error = NetworkError::kernel(&host.name);
            host.route().set_down(name).map_err(&kernel_error)?;
            if *up_again {
                host.route().set_up(name).map_err(&kernel_error)?;
            }
        }
        applications::start(&plan, &network, target)?;
        for address in plan.flapping_endpoints.iter().copied() {
            let namespace = network.client.namespace.clone();
            thread::spawn(move || namespace.run(|| flap_endpoint(address)));
        }
        if !plan.events.is_empty() {
            let (network_handle, events) = (Arc::clone(&network), plan.events.clone());
            thread::spawn(move || apply_events(&network_handle, &events, plan.clients));
        }
        Ok(Self { network, target, server, old_kernel: plan.old_kernel })
    }

    /// Runs a program on the client and waits for it; an empty `command` means a shell.
    pub fn run(&self, command: &[OsString]) -> Result<ExitStatus, LabError> {
        interrupt::ignore();
        let shell = std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
        let (name, arguments) = match command.split_first() {
            Some((name, arguments)) => (name.clone(), arguments),
            None => (shell, &[][..]),
        };
        let mut program = Command::new(&name);
        program.args(arguments).env("TOWPATH_CONNECT", self.target.to_string());
        if let Some(filter) = filter::without_multipath().filter(|_| self.old_kernel) {
            seccomp::limit_on_start(&mut program, filter);
        }
        let program_error =
            |source| LabError::Program { program: name.to_string_lossy().into(), source };
        let mut child =
            program::start(&self.network.client.namespace, &mut program).map_err(program_error)?;
        sandbox::wait(&mut child).map_err(program_error)
    }
}

impl Drop for RunningCase {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            let _ = server.kill(); // it may have exited
            let _ = server.wait();
        }
    }
}

fn host_namespace(network: &FailureNetwork, side: HostSide) -> &HostNamespace {
    match side {
        HostSide::Client => &network.client,
        HostSide::Server => &network.server,
    }
}

/// Returns the name of an interface, counted from 1.
fn link_name(plan: &FailurePlan, side: HostSide, link: usize) -> Option<&'static str> {
    let names = match side {
        HostSide::Client => plan.clients,
        HostSide::Server => &SERVERS,
    };
    names.get(link.checked_sub(1)?).copied()
}

/// Configures addresses, limits, endpoints and sysctls, in this order.
fn configure(
    plan: &FailurePlan,
    network: &FailureNetwork,
    side: HostSide,
) -> Result<(), NetworkError> {
    let host = host_namespace(network, side);
    let kernel_error = NetworkError::kernel(&host.name);
    change_addresses(plan, host, side, true).map_err(&kernel_error)?;
    let configured = host.namespace.run(|| {
        configure_mptcp(plan, host, side).map_err(NetworkError::kernel(&host.name))?;
        plan.sysctls
            .iter()
            .filter(|(change_side, _, _)| *change_side == side)
            .try_for_each(|(_, name, value)| write_setting(name, value))
    });
    configured.map_err(NetworkError::system("enter a host"))??;
    change_addresses(plan, host, side, false).map_err(&kernel_error)
}

fn change_addresses(
    plan: &FailurePlan,
    host: &HostNamespace,
    side: HostSide,
    add: bool,
) -> Result<(), NetlinkError> {
    let addresses = if add { &plan.addresses } else { &plan.lost_addresses };
    for (_, link, text) in addresses.iter().filter(|(change_side, _, _)| *change_side == side) {
        let (Some(name), Ok(prefix)) = (link_name(plan, side, *link), text.parse::<Prefix>())
        else {
            continue;
        };
        if add {
            host.route().add_address(name, prefix)?;
        } else {
            host.route().delete_address(name, prefix)?;
        }
    }
    Ok(())
}

/// Configures MPTCP; runs inside the host's namespace.
fn configure_mptcp(
    plan: &FailurePlan,
    host: &HostNamespace,
    side: HostSide,
) -> Result<(), NetlinkError> {
    let mut mptcp = MptcpPm::open()?;
    let [client, server] = plan.limits;
    let (subflows, add_addr_accepted) = if side == HostSide::Client { client } else { server };
    mptcp.set_limits(MptcpLimits { subflows, add_addr_accepted })?;
    let [client, server] = &plan.endpoints;
    for text in if side == HostSide::Client { client } else { server } {
        let endpoint = endpoint::parse(text, &mut host.route());
        if let Some(endpoint) = endpoint {
            mptcp.add_endpoint(&endpoint)?;
        }
    }
    Ok(())
}

/// Connects once through a middlebox that drops every SYN with MP_CAPABLE.
///
/// The kernel then wrongly assumes a blackhole. With the sysctl at 0, one lost SYN is enough; the
/// default would take 3 s.
fn trigger_blackhole_fallback(network: &FailureNetwork, target: SocketAddr) -> io::Result<()> {
    const SYN_RETRANS_SYSCTL: &str = "net.mptcp.syn_retrans_before_tcp_fallback";
    let set_syn_retrans =
        |value: &str| write_setting(SYN_RETRANS_SYSCTL, value).map_err(io::Error::other);
    network.client.namespace.run(|| {
        set_syn_retrans("0")?;
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(target),
            socket2::Type::STREAM,
            Some(socket2::Protocol::MPTCP),
        )?;
        socket.connect(&socket2::SockAddr::from(target))?;
        set_syn_retrans("2")
    })?
}

/// Starts `towpath server` at the server and waits until it listens.
fn start_server(server: &HostNamespace) -> io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["server", "--json", "--public-diagnostics", "--port", &PORT.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = program::start(&server.namespace, &mut command)?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        let mut out = io::BufReader::new(out);
        out.read_line(&mut line)?;
        // Drain later output, so that the server does not block on a full pipe.
        thread::spawn(move || io::copy(&mut out, &mut io::sink()));
    }
    Ok(child)
}

/// Waits until a connection has transferred data, then applies the events.
fn apply_events(network: &FailureNetwork, events: &[FailureEvent], clients: &[&str]) {
    /// Interval between two polls of the server's interfaces.
    const POLL_INTERVAL: Duration = Duration::from_millis(5);
    let received_bytes = || -> u64 {
        let mut route = network.server.route();
        let stats = SERVERS.iter().filter_map(|name| route.link(name).ok());
        stats.map(|link| link.stats.rx_bytes).sum()
    };
    let initial_bytes = received_bytes();
    while received_bytes().saturating_sub(initial_bytes) < EVENT_AFTER_BYTES {
        thread::sleep(POLL_INTERVAL);
    }
    for event in events {
        match *event {
            FailureEvent::Down(link) => {
                let name = link.checked_sub(1).and_then(|index| clients.get(index));
                // An error cannot be reported from here; the network then stays healthy.
                let _ = name.map(|name| network.client.route().set_down(name));
            }
            FailureEvent::Box(path, rules) => network.set_rules(path, rules),
        }
    }
}

/// Deletes the endpoint with an address and adds it back, until the process ends.
fn flap_endpoint(address: &str) -> Result<(), NetlinkError> {
    /// Time between two changes of the endpoint.
    const PERIOD: Duration = Duration::from_millis(150);
    let mut mptcp = MptcpPm::open()?;
    loop {
        let endpoints = mptcp.endpoints()?;
        let has_address = |endpoint: &&Endpoint| endpoint.address.to_string() == address;
        let Some(endpoint) = endpoints.iter().find(has_address) else { return Ok(()) };
        mptcp.delete_endpoint(endpoint.id.unwrap_or_default())?;
        thread::sleep(PERIOD);
        mptcp.add_endpoint(&Endpoint { id: None, ..*endpoint })?;
        thread::sleep(PERIOD);
    }
}
