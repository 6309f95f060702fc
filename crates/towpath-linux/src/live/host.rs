//! What a host says of itself: interfaces, conditions, counters.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use towpath_measure::live::HostInfo;
use towpath_measure::result::Counter;

use crate::netlink::{MibCounters, RouteSocket};

/// Longest name of a path in a scenario.
const MAX_NAME: usize = 12;

/// An interface with an address of the right family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalInterface {
    /// Its name, which names the path.
    pub name: String,
    /// The address.
    pub address: IpAddr,
}

/// The interfaces from which `target` may be reached, first the one that the routes choose (or that
/// `source` names); what belongs to the host alone is left out.
pub fn interfaces_towards(
    target: IpAddr,
    source: Option<IpAddr>,
) -> io::Result<Vec<LocalInterface>> {
    let chosen = match source {
        Some(address) => Some(address),
        None => local_address_towards(target).ok(),
    };
    let mut found = interfaces()?;
    found.retain(|one| one.address.is_ipv4() == target.is_ipv4());
    let on_loopback = chosen.is_some_and(|address| address.is_loopback());
    found.retain(|one| one.address.is_loopback() == on_loopback);
    found.sort_by_key(|one| Some(one.address) != chosen);
    let mut names: Vec<String> = Vec::new();
    found.retain(|one| {
        let new = !names.contains(&one.name);
        names.push(one.name.clone());
        new
    });
    Ok(found)
}

/// Addresses of this host that others may reach, those of IPv4 first.
pub fn addresses_towards_others() -> io::Result<Vec<IpAddr>> {
    let found = interfaces()?.into_iter().map(|one| one.address.to_canonical());
    let mut found: Vec<_> = found.filter(|address| !address.is_loopback()).collect();
    found.sort_by_key(|address| !address.is_ipv4());
    Ok(found)
}

/// All addresses that others can see, and the interfaces that have them.
pub(super) fn interfaces() -> io::Result<Vec<LocalInterface>> {
    let mut route = RouteSocket::open().map_err(io::Error::other)?;
    let links = route.links().map_err(io::Error::other)?;
    let addresses = route.addresses().map_err(io::Error::other)?;
    let named = addresses.into_iter().filter_map(|address| {
        let link = links.iter().find(|link| link.index == address.link_index)?;
        let ip = address.local.address();
        let link_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let usable = link.is_up() && !link_local;
        usable.then(|| LocalInterface { name: link.name.clone(), address: ip })
    });
    Ok(named.collect())
}

/// The address from which the system would speak; nothing is sent.
fn local_address_towards(target: IpAddr) -> io::Result<IpAddr> {
    let any: SocketAddr = match target {
        IpAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        IpAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect((target, 9))?;
    Ok(socket.local_addr()?.ip())
}

/// What a path is called that leaves by an interface: its name, as scenarios write names.
pub fn path_name(interface: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = interface.chars().take(MAX_NAME).map(letter).collect();
    let name = name.trim_start_matches('-');
    if name.is_empty() { "unnamed".to_owned() } else { name.to_owned() }
}

/// Names of paths by the addresses of their interfaces, looked up again when one is new.
#[derive(Debug, Default)]
pub(super) struct PathNames {
    known: BTreeMap<IpAddr, String>,
}

impl PathNames {
    pub(super) fn of(&mut self, address: IpAddr) -> Option<String> {
        if !self.known.contains_key(&address) {
            let found = interfaces().unwrap_or_default();
            let named = found.into_iter().map(|one| (one.address, path_name(&one.name)));
            self.known.extend(named);
        }
        self.known.get(&address).cloned()
    }
}

/// What was true before the traffic.
#[derive(Debug)]
pub(super) struct HostBaseline {
    counters: MibCounters,
    cpu: std::time::Duration,
    load: String,
}

impl HostBaseline {
    pub(super) fn read() -> Self {
        let counters = MibCounters::read().unwrap_or_else(|_| MibCounters::parse(""));
        Self { counters, cpu: crate::sys::process_cpu_time(), load: read("loadavg") }
    }

    /// Counters that have changed since; they are of the whole host.
    pub(super) fn changes(&self) -> Vec<Counter> {
        let Ok(now) = MibCounters::read() else { return Vec::new() };
        let changed = now.iter().filter_map(|(name, after)| {
            let before = self.counters.get(name).unwrap_or(0);
            let host = String::new();
            (after > before).then(|| Counter { host, name: name.to_owned(), before, after })
        });
        changed.collect()
    }

    /// The host as it was, and what the process has used since.
    pub(super) fn host(&self) -> HostInfo {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let mut conditions = BTreeMap::from([
            ("processors".to_owned(), processors.to_string()),
            ("load before".to_owned(), self.load.clone()),
            ("load after".to_owned(), read("loadavg")),
        ]);
        for name in [
            "ipv4.tcp_rmem",
            "ipv4.tcp_wmem",
            "ipv4.tcp_congestion_control",
            "mptcp.enabled",
            "mptcp.scheduler",
        ] {
            let value = read(&format!("sys/net/{}", name.replace('.', "/")));
            conditions.insert(format!("net.{name}"), value);
        }
        let cpu = crate::sys::process_cpu_time().saturating_sub(self.cpu);
        HostInfo {
            towpath: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: read("sys/kernel/osrelease"),
            conditions,
            warnings: Vec::new(),
            cpu_s: cpu.as_secs_f64(),
        }
    }
}

fn read(name: &str) -> String {
    match fs::read_to_string(format!("/proc/{name}")) {
        Ok(text) => text.split_whitespace().collect::<Vec<_>>().join(" "),
        Err(_) => "not available".to_owned(),
    }
}

/// The system's congestion control.
pub fn system_congestion_control() -> String {
    read("sys/net/ipv4/tcp_congestion_control")
}
