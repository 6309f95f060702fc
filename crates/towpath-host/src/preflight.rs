//! Preflight checks: the prerequisites of a run that this machine has, and advice on the others.
//!
//! [`Emulation`] is checked in a child process. It enters new namespaces as an emulated run does
//! (see [`towpath_os::sandbox`]), tries each prerequisite, prints the result as JSON and ends.
//! [`Machine`] has the prerequisites of the other commands and is checked in this process. Nothing
//! is changed. The checks take less than a second.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::net::{Ipv6Addr, TcpListener, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};
use towpath_net::Rate;
use towpath_netlink::{RouteSocket, Tbf, VethEnd};
use towpath_os::clock::Clock;
use towpath_os::namespace::Namespace;
use towpath_os::sandbox;
use towpath_os::sandbox::{PARENT, SandboxError, without_number};
use towpath_os::sys;

/// Result of checking one prerequisite.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Check {
    /// The prerequisite is met.
    Available,
    /// The prerequisite is not met.
    Missing(Missing),
    /// Another prerequisite is missing, so this one could not be tried.
    NotTried,
}

/// A prerequisite that is not met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Clause with the missing part and the reason, such as `Multipath TCP is disabled (…)`.
    pub reason: String,
    /// Shell command or advice that provides it, if there is one.
    pub remedy: Option<String>,
}

impl Check {
    /// Returns the missing prerequisite; `None` when the check passed or was not made.
    pub fn missing(&self) -> Option<&Missing> {
        match self {
            Self::Missing(missing) => Some(missing),
            Self::Available | Self::NotTried => None,
        }
    }

    /// Returns true if the prerequisite is met.
    pub fn is_available(&self) -> bool {
        *self == Self::Available
    }

    /// Converts the result of a trial; `subject` begins the reason if it failed.
    fn from_result<T>(result: io::Result<T>, subject: &str, remedy: Option<&str>) -> Self {
        match result {
            Ok(_) => Self::Available,
            Err(error) => Self::Missing(Missing {
                reason: format!("{subject}: {}", without_number(&error)),
                remedy: remedy.map(str::to_owned),
            }),
        }
    }
}

/// Prerequisites of emulated runs and labs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Emulation {
    /// User, mount, network and PID namespaces.
    pub namespaces: Check,
    /// TUN devices; packet sockets replace them where they are missing.
    pub tun: Check,
    /// Packet sockets on veth pairs.
    pub packet_sockets: Check,
    /// Multipath TCP sockets in a new network namespace.
    pub mptcp: Check,
    /// The kernel's token bucket filter (`tc qdisc … tbf`), for queues at a host's egress.
    pub tbf: Check,
}

impl Emulation {
    /// Checks all in a child process: this program, with `argument` as its only argument. It must
    /// then call [`outer`].
    pub fn check(argument: &OsStr) -> Self {
        let child = env::current_exe().and_then(|program| {
            let mut command = Command::new(program);
            command.arg(argument).env(PARENT, std::process::id().to_string());
            command.stdin(Stdio::null()).stderr(Stdio::null()).output()
        });
        let result = child.and_then(|output| Ok(serde_json::from_slice(&output.stdout)?));
        result.unwrap_or_else(|error| {
            Self::without_namespaces(Missing {
                reason: format!("cannot test new namespaces: {}", without_number(&error)),
                remedy: None,
            })
        })
    }

    /// Returns the first missing prerequisite without which no emulated run can start.
    ///
    /// With `mptcp`, Multipath TCP of the kernel is such a prerequisite as well.
    pub fn missing(&self, mptcp: bool) -> Option<&Missing> {
        let devices = self.packet_sockets.missing().filter(|_| !self.tun.is_available());
        let mptcp = self.mptcp.missing().filter(|_| mptcp);
        self.namespaces.missing().or(devices).or(mptcp)
    }

    fn without_namespaces(missing: Missing) -> Self {
        Self {
            namespaces: Check::Missing(missing),
            tun: Check::NotTried,
            packet_sockets: Check::NotTried,
            mptcp: Check::NotTried,
            tbf: Check::NotTried,
        }
    }
}

/// Runs the first process of the check, which enters the namespaces.
///
/// Starts this program again with `argument` as its only argument, which must call [`inner`].
/// Returns results only if that process could not start.
pub fn outer(argument: &OsStr) -> Option<Emulation> {
    let missing = match sandbox::outer(&[argument.to_owned()]) {
        Ok(status) if status.success() => return None,
        Ok(status) => Missing {
            reason: format!("the process in new namespaces ended: {status}"),
            remedy: None,
        },
        Err(SandboxError::UserNamespace(source)) => {
            let (reason, remedy) = sandbox::namespaces_refused(&source);
            Missing { reason, remedy: Some(remedy) }
        }
        Err(error) => Missing { reason: error.to_string(), remedy: None },
    };
    Some(Emulation::without_namespaces(missing))
}

/// Runs the second process of the check, inside the namespaces.
///
/// # Errors
/// When the process cannot prepare itself as the inner process of a run does.
pub fn inner() -> Result<Emulation, SandboxError> {
    sandbox::inner()?;
    let host = match Namespace::create() {
        Ok(host) => host,
        Err(error) => {
            let reason = format!("a network namespace was refused: {}", without_number(&error));
            return Ok(Emulation::without_namespaces(Missing { reason, remedy: None }));
        }
    };
    let run_inside = |check: fn() -> io::Result<()>| host.run(check).and_then(|result| result);
    let tun = run_inside(|| sys::open_tun("check").map(drop));
    Ok(Emulation {
        namespaces: Check::Available,
        tun: Check::from_result(tun, "/dev/net/tun", Some("chmod 666 /dev/net/tun")),
        packet_sockets: Check::from_result(
            run_inside(packet_socket),
            "packet sockets on a veth pair",
            None,
        ),
        mptcp: host.run(mptcp).unwrap_or(Check::NotTried),
        tbf: Check::from_result(run_inside(token_bucket), "tc qdisc tbf", Some("modprobe sch_tbf")),
    })
}

fn packet_socket() -> io::Result<()> {
    let mut route = RouteSocket::open().map_err(io::Error::other)?;
    let veth_end = |name| VethEnd { name, ..VethEnd::default() };
    route.add_veth(&veth_end("near"), &veth_end("far")).map_err(io::Error::other)?;
    let index = route.link("near").map_err(io::Error::other)?.index;
    sys::open_packet_socket(index).map(drop)
}

fn token_bucket() -> io::Result<()> {
    let mut route = RouteSocket::open().map_err(io::Error::other)?;
    let rate = Rate::from_bps(1_000_000).ok_or(io::ErrorKind::InvalidInput)?;
    let tbf = Tbf { rate, burst_bytes: 1_600, limit_bytes: 30_000 };
    route.set_tbf("lo", &tbf).map_err(io::Error::other)
}

/// Opens a Multipath TCP socket in the calling thread's network namespace.
fn mptcp() -> Check {
    let Err(error) = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)) else {
        return Check::Available;
    };
    let (reason, remedy) = match error.raw_os_error() {
        Some(libc::ENOPROTOOPT) => (
            "Multipath TCP is disabled (net.mptcp.enabled is 0)".to_owned(),
            Some("sysctl net.mptcp.enabled=1"),
        ),
        Some(libc::EPROTONOSUPPORT | libc::EINVAL) => (
            "this kernel does not support Multipath TCP".to_owned(),
            Some("boot Linux 5.16 or later with CONFIG_MPTCP=y"),
        ),
        _ => (format!("Multipath TCP sockets are refused: {}", without_number(&error)), None),
    };
    Check::Missing(Missing { reason, remedy: remedy.map(str::to_owned) })
}

/// Prerequisites of commands that use the host itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// Kernel release, such as `6.18.44`.
    pub kernel: String,
    /// Processors that this process may use.
    pub processors: usize,
    /// Median lateness of 20 sleeps of 1 ms.
    pub timer_lateness_us: u64,
    /// Multipath TCP sockets on this host; Linux has version 1 only (RFC 8684).
    pub mptcp: Check,
    /// `CAP_NET_ADMIN`, needed to change this host's network.
    pub net_admin: Check,
    /// `CAP_NET_RAW`, needed to capture on this host.
    pub net_raw: Check,
    /// Seccomp user notification, for `towpath exec`.
    pub seccomp_notify: Check,
    /// The server's TCP port.
    pub tcp_port: Check,
    /// The server's UDP port for QUIC.
    pub quic_port: Check,
}

impl Machine {
    /// Checks all prerequisites, those of a server at `server_port`; takes about 25 ms, most of it
    /// for the timer.
    pub fn check(server_port: u16) -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let any_address = Ipv6Addr::UNSPECIFIED;
        let port_check = |result| {
            Check::from_result(
                result,
                &format!("port {server_port}"),
                Some("towpath server -p PORT"),
            )
        };
        Self {
            kernel: read_trimmed("/proc/sys/kernel/osrelease").unwrap_or_default(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            timer_lateness_us: timer_lateness_us(),
            mptcp: mptcp(),
            net_admin: capability(&status, "CAP_NET_ADMIN", 12),
            net_raw: capability(&status, "CAP_NET_RAW", 13),
            seccomp_notify: seccomp_notify(),
            tcp_port: port_check(TcpListener::bind((any_address, server_port)).map(drop)),
            quic_port: port_check(UdpSocket::bind((any_address, server_port)).map(drop)),
        }
    }
}

/// Reads one bit of `CapEff` in the text of `/proc/self/status` (`linux/capability.h`).
fn capability(status: &str, name: &str, bit: u32) -> Check {
    let bits = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = bits.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
    if bits >> bit & 1 == 1 {
        return Check::Available;
    }
    Check::Missing(Missing {
        reason: format!("this process does not have {name}"),
        remedy: Some("run the command as root".to_owned()),
    })
}

fn seccomp_notify() -> Check {
    let actions = read_trimmed("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    if actions.split_whitespace().any(|action| action == "user_notif") {
        return Check::Available;
    }
    Check::Missing(Missing {
        reason: "this kernel has no seccomp user notification (Linux 5.14)".to_owned(),
        remedy: Some("for a Go program: towpath exec --method godebug".to_owned()),
    })
}

fn timer_lateness_us() -> u64 {
    const SLEEP: Duration = Duration::from_millis(1);
    let clock = Clock::start();
    let mut lateness: Vec<Duration> = (0..20)
        .map(|_| {
            let due = clock.now() + SLEEP;
            clock.sleep_until(due);
            clock.now().saturating_since(due)
        })
        .collect();
    lateness.sort();
    lateness.get(lateness.len() / 2).map_or(0, |span| span.as_micros() as u64)
}

fn read_trimmed(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(reason: &str) -> Check {
        Check::Missing(Missing { reason: reason.to_owned(), remedy: None })
    }

    fn complete() -> Emulation {
        Emulation {
            namespaces: Check::Available,
            tun: Check::Available,
            packet_sockets: Check::Available,
            mptcp: Check::Available,
            tbf: Check::Available,
        }
    }

    #[test]
    fn either_kind_of_device_is_enough() {
        assert_eq!(complete().missing(true), None);
        let mut emulation = Emulation { tun: missing("tun"), ..complete() };
        assert_eq!(emulation.missing(true), None);
        emulation.packet_sockets = missing("packet sockets");
        assert_eq!(emulation.missing(true).unwrap().reason, "packet sockets");
        let no_packet_sockets =
            Emulation { packet_sockets: missing("packet sockets"), ..complete() };
        assert_eq!(no_packet_sockets.missing(true), None);
    }

    #[test]
    fn multipath_tcp_is_checked_only_where_it_is_used() {
        let no_mptcp = Emulation { mptcp: missing("mptcp"), ..complete() };
        assert_eq!(no_mptcp.missing(false), None);
        assert_eq!(no_mptcp.missing(true).unwrap().reason, "mptcp");
    }

    #[test]
    fn capabilities_are_bits_of_the_effective_set() {
        let status = "CapPrm:\tffffffffffffffff\nCapEff:\t0000000000001000\n";
        assert!(capability(status, "CAP_NET_ADMIN", 12).is_available());
        assert!(!capability(status, "CAP_NET_RAW", 13).is_available());
        assert!(!capability("", "CAP_NET_RAW", 13).is_available());
    }

    #[test]
    fn checks_survive_their_json() {
        let emulation = Emulation { tun: missing("no device"), tbf: Check::NotTried, ..complete() };
        let text = serde_json::to_string(&emulation).unwrap();
        assert!(text.contains(r#""tun":{"state":"missing","reason":"no device""#), "{text}");
        assert_eq!(serde_json::from_str::<Emulation>(&text).unwrap(), emulation);
    }
}
