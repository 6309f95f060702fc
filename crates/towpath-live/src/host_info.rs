//! Host information: interfaces, conditions and counters.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;

use towpath_netlink::{Link, MibCounters, RouteSocket};
use towpath_result::Counter;

use crate::protocol::HostInfo;

/// Maximum length of a path name in a scenario.
const MAX_PATH_NAME_CHARS: usize = 12;
/// Name of a path whose interface is not known.
const UNKNOWN_PATH: &str = "unknown";

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
    let preferred = match source {
        Some(address) => Some(address),
        None => local_address_towards(target).ok(),
    };
    let mut candidates = interfaces()?;
    candidates.retain(|interface| interface.address.is_ipv4() == target.is_ipv4());
    // Without another address, the system names a loopback address for any target.
    let is_meant = source.is_some() || target.is_loopback();
    let on_loopback = is_meant && preferred.is_some_and(|address| address.is_loopback());
    candidates.retain(|interface| interface.address.is_loopback() == on_loopback);
    candidates.sort_by_key(|interface| Some(interface.address) != preferred);
    let mut names: Vec<String> = Vec::new();
    candidates.retain(|interface| {
        let is_new = !names.contains(&interface.name);
        names.push(interface.name.clone());
        is_new
    });
    Ok(candidates)
}

/// Returns the addresses under which other hosts may reach this one, IPv4 first.
pub fn addresses_towards_others() -> io::Result<Vec<IpAddr>> {
    let addresses = interfaces()?.into_iter().map(|interface| interface.address.to_canonical());
    let mut addresses: Vec<_> = addresses.filter(|address| !address.is_loopback()).collect();
    addresses.sort_by_key(|address| !address.is_ipv4());
    Ok(addresses)
}

/// Returns all usable addresses, excluding link-local ones, with their interfaces.
pub(super) fn interfaces() -> io::Result<Vec<LocalInterface>> {
    interfaces_that(Link::is_up)
}

/// Returns the addresses, excluding link-local ones, of the interfaces that `is_chosen` selects.
fn interfaces_that(is_chosen: fn(&Link) -> bool) -> io::Result<Vec<LocalInterface>> {
    let mut route = RouteSocket::open().map_err(io::Error::other)?;
    let links = route.links().map_err(io::Error::other)?;
    let addresses = route.addresses().map_err(io::Error::other)?;
    let usable_interfaces = addresses.into_iter().filter_map(|address| {
        let link = links.iter().find(|link| link.index == address.link_index)?;
        let ip = address.local.address();
        let link_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let is_usable = is_chosen(link) && !link_local;
        is_usable.then(|| LocalInterface { name: link.name.clone(), address: ip })
    });
    Ok(usable_interfaces.collect())
}

/// Returns the source address that routing chooses for `target`; sends nothing.
pub(super) fn local_address_towards(target: IpAddr) -> io::Result<IpAddr> {
    let unspecified: SocketAddr = match target {
        IpAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        IpAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(unspecified)?;
    socket.connect((target, 9))?;
    Ok(socket.local_addr()?.ip())
}

/// Returns the path name of an interface: its name in the syntax of scenarios.
pub fn path_name(interface: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = interface.chars().take(MAX_PATH_NAME_CHARS).map(letter).collect();
    let name = name.trim_start_matches('-');
    if name.is_empty() { "unnamed".to_owned() } else { name.to_owned() }
}

/// Kind of a network, as far as its interface shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NetworkKind {
    /// Wireless LAN (IEEE 802.11).
    Wifi,
    /// Mobile network, which is usually metered.
    Cellular,
    /// Wired Ethernet, or a device that is named like one.
    Ethernet,
    /// Any other network, such as a tunnel.
    Other,
}

/// Kinds by the beginning of an interface's name, which decides if the kernel names no kind.
const KINDS_BY_NAME: [(&str, NetworkKind); 9] = [
    ("wl", NetworkKind::Wifi),
    ("wifi", NetworkKind::Wifi),
    ("wwan", NetworkKind::Cellular),
    ("rmnet", NetworkKind::Cellular),
    ("ppp", NetworkKind::Cellular),
    ("cell", NetworkKind::Cellular),
    ("lte", NetworkKind::Cellular),
    ("eth", NetworkKind::Ethernet),
    ("en", NetworkKind::Ethernet),
];

impl NetworkKind {
    /// Returns the value of a condition.
    fn name(self) -> &'static str {
        match self {
            Self::Wifi => "wifi",
            Self::Cellular => "cellular",
            Self::Ethernet => "ethernet",
            Self::Other => "other",
        }
    }
}

/// Returns the kind of the network of interface `name`. `uevent` is the text of the kernel's file
/// `/sys/class/net/NAME/uevent`; it may be empty.
pub(super) fn network_kind(name: &str, uevent: &str) -> NetworkKind {
    let device_type = uevent.lines().find_map(|line| line.trim().strip_prefix("DEVTYPE="));
    match device_type {
        Some("wlan") => NetworkKind::Wifi,
        Some("wwan") => NetworkKind::Cellular,
        Some(_) | None => KINDS_BY_NAME
            .iter()
            .find(|(prefix, _)| name.starts_with(prefix))
            .map_or(NetworkKind::Other, |(_, kind)| *kind),
    }
}

/// Adds the condition `network of PATH` for each path: the kind of its network. A path that has
/// the condition keeps it, because its interface may have been removed since.
pub(super) fn add_network_kinds(
    conditions: &mut BTreeMap<String, String>,
    paths: impl IntoIterator<Item = String>,
) {
    let local_interfaces = interfaces().unwrap_or_default();
    for path in paths.into_iter().filter(|path| path != UNKNOWN_PATH) {
        let interface = local_interfaces.iter().find(|known| path_name(&known.name) == path);
        let name = interface.map_or(&path, |interface| &interface.name);
        conditions.entry(format!("network of {path}")).or_insert_with(|| {
            let file = Path::new("/sys/class/net").join(name).join("uevent");
            let uevent = fs::read_to_string(file).unwrap_or_default();
            network_kind(name, &uevent).name().to_owned()
        });
    }
}

/// Path names by interface address; unknown addresses cause a new lookup.
#[derive(Debug, Default)]
pub(super) struct PathNames {
    names: BTreeMap<IpAddr, String>,
}

impl PathNames {
    pub(super) fn lookup(&mut self, address: IpAddr) -> Option<String> {
        if !self.names.contains_key(&address) {
            // An interface that is down keeps its addresses.
            let local_interfaces = interfaces_that(|_| true).unwrap_or_default();
            let named = local_interfaces
                .into_iter()
                .map(|interface| (interface.address, path_name(&interface.name)));
            self.names.extend(named);
        }
        self.names.get(&address).cloned()
    }
}

/// State of this host before the traffic.
#[derive(Debug)]
pub(super) struct HostBaseline {
    counters: MibCounters,
    cpu_time: std::time::Duration,
    load_average: String,
}

impl HostBaseline {
    pub(super) fn read() -> Self {
        let counters = MibCounters::read().unwrap_or_else(|_| MibCounters::parse(""));
        Self {
            counters,
            cpu_time: towpath_os::sys::process_cpu_time(),
            load_average: read_proc("loadavg"),
        }
    }

    /// Returns the counters of the whole host that have increased since the baseline.
    pub(super) fn changes(&self) -> Vec<Counter> {
        let Ok(counters) = MibCounters::read() else { return Vec::new() };
        let changed = counters.iter().filter_map(|(name, after)| {
            let before = self.counters.get(name).unwrap_or(0);
            let host = String::new();
            (after > before).then(|| Counter { host, name: name.to_owned(), before, after })
        });
        changed.collect()
    }

    /// Returns host information, including the process's CPU time since the baseline.
    pub(super) fn host(&self) -> HostInfo {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let mut conditions = BTreeMap::from([
            ("processors".to_owned(), processors.to_string()),
            ("load before".to_owned(), self.load_average.clone()),
            ("load after".to_owned(), read_proc("loadavg")),
        ]);
        for name in [
            "ipv4.tcp_rmem",
            "ipv4.tcp_wmem",
            "ipv4.tcp_congestion_control",
            "mptcp.enabled",
            "mptcp.scheduler",
        ] {
            let value = read_proc(&format!("sys/net/{}", name.replace('.', "/")));
            conditions.insert(format!("net.{name}"), value);
        }
        let cpu = towpath_os::sys::process_cpu_time().saturating_sub(self.cpu_time);
        HostInfo {
            towpath: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: read_proc("sys/kernel/osrelease"),
            conditions,
            warnings: Vec::new(),
            cpu_s: cpu.as_secs_f64(),
        }
    }
}

fn read_proc(name: &str) -> String {
    match fs::read_to_string(format!("/proc/{name}")) {
        Ok(text) => text.split_whitespace().collect::<Vec<_>>().join(" "),
        Err(_) => "not available".to_owned(),
    }
}

/// Returns the default TCP congestion control of the system.
pub fn system_congestion_control() -> String {
    read_proc("sys/net/ipv4/tcp_congestion_control")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_decides_on_the_kind_of_a_network_before_its_name() {
        let (wireless, mobile) = ("INTERFACE=x\nDEVTYPE=wlan\n", "DEVTYPE=wwan\nIFINDEX=3\n");
        for (name, uevent, kind) in [
            ("eth0", wireless, "wifi"),
            ("wlan0", mobile, "cellular"),
            ("wwp0s20", mobile, "cellular"),
            ("enx0", "DEVTYPE=bridge\n", "ethernet"),
            ("wlan0", "", "wifi"),
            ("wlp3s0", "", "wifi"),
            ("wifi", "", "wifi"),
            ("wwan0", "", "cellular"),
            ("rmnet_data0", "", "cellular"),
            ("ppp0", "", "cellular"),
            ("cellular", "", "cellular"),
            ("lte", "", "cellular"),
            ("eth0", "", "ethernet"),
            ("eno1", "", "ethernet"),
            ("tun0", "", "other"),
            ("lo", "", "other"),
            ("", "", "other"),
        ] {
            assert_eq!(network_kind(name, uevent).name(), kind, "{name} {uevent}");
        }
    }

    #[test]
    fn a_path_keeps_the_kind_of_its_network_and_an_unknown_path_has_none() {
        let mut conditions = BTreeMap::new();
        conditions.insert("network of wlan9".to_owned(), "cellular".to_owned());
        let paths = ["wlan9", "rmnet9", "unknown"].map(str::to_owned);
        add_network_kinds(&mut conditions, paths);
        let texts: Vec<_> = conditions.into_iter().map(|(name, kind)| name + "=" + &kind).collect();
        assert_eq!(texts, ["network of rmnet9=cellular", "network of wlan9=cellular"]);
    }
}
