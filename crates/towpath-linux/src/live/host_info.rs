//! Host information: interfaces, conditions and counters.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use towpath_measure::live::HostInfo;
use towpath_measure::result::Counter;

use crate::netlink::{MibCounters, RouteSocket};

/// Maximum length of a path name in a scenario.
const MAX_NAME: usize = 12;

/// Interface of this host with one of its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalInterface {
    /// Interface name, from which the path name derives.
    pub name: String,
    /// One address of the interface.
    pub address: IpAddr,
}

/// Returns the interfaces that may reach `target`, without host-local ones. The first is the one
/// that routing chooses or that has the address `source`.
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

/// Returns the addresses under which other hosts may reach this one, IPv4 first.
pub fn addresses_towards_others() -> io::Result<Vec<IpAddr>> {
    let found = interfaces()?.into_iter().map(|one| one.address.to_canonical());
    let mut found: Vec<_> = found.filter(|address| !address.is_loopback()).collect();
    found.sort_by_key(|address| !address.is_ipv4());
    Ok(found)
}

/// Returns all usable addresses, excluding link-local ones, with their interfaces.
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

/// Returns the source address that routing chooses for `target`; sends nothing.
fn local_address_towards(target: IpAddr) -> io::Result<IpAddr> {
    let any: SocketAddr = match target {
        IpAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        IpAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect((target, 9))?;
    Ok(socket.local_addr()?.ip())
}

/// Returns the path name of an interface: its name in the syntax of scenarios.
pub fn path_name(interface: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = interface.chars().take(MAX_NAME).map(letter).collect();
    let name = name.trim_start_matches('-');
    if name.is_empty() { "unnamed".to_owned() } else { name.to_owned() }
}

/// Path names by interface address; unknown addresses cause a new lookup.
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

/// State of this host before the traffic.
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

    /// Returns the counters of the whole host that have increased since.
    pub(super) fn changes(&self) -> Vec<Counter> {
        let Ok(now) = MibCounters::read() else { return Vec::new() };
        let changed = now.iter().filter_map(|(name, after)| {
            let before = self.counters.get(name).unwrap_or(0);
            let host = String::new();
            (after > before).then(|| Counter { host, name: name.to_owned(), before, after })
        });
        changed.collect()
    }

    /// Returns host information, including the process's CPU time since.
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

/// Returns the default TCP congestion control of the system.
pub fn system_congestion_control() -> String {
    read("sys/net/ipv4/tcp_congestion_control")
}
