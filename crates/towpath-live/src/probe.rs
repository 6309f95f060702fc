//! Client probes over each of its interfaces.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use towpath_net::Instant;
use towpath_run::token::TestToken;
use towpath_run::traffic::Pinger;
use towpath_scenario::{Scenario, Udping};
use towpath_sockets::path_ping;
use towpath_sockets::path_ping::{PathPinger, PingPath};

use super::host_info::{interfaces, path_name};
use super::mobile::{SharedDetector, lock};
use super::socket::LocalBind;

/// Target of a client's probes.
#[derive(Debug, Clone)]
pub(super) struct ProbeTarget {
    pub(super) target: SocketAddr,
    /// Token of the test; a server with a secret ignores other datagrams.
    pub(super) token: TestToken,
    /// Local address and interface of connections.
    pub(super) source: LocalBind,
    /// Detector that is notified of replies; `None` if not needed.
    pub(super) loss_detector: Option<SharedDetector>,
}

/// Path over one interface of this host.
#[derive(Debug)]
pub(super) struct InterfacePath {
    /// Path name; the interface name may be longer.
    path: String,
    target: SocketAddr,
    loss_detector: Option<SharedDetector>,
}

impl ProbeTarget {
    /// Returns the paths of a scenario, each with its probes from `start` on.
    pub(super) fn paths(
        &self,
        scenario: &Scenario,
        plan: &Udping,
        start: Instant,
    ) -> Vec<PathPinger<InterfacePath>> {
        let names = scenario.paths.iter().map(|path| path.name.clone());
        let probe = |name: String| {
            let loss_detector = self.loss_detector.clone();
            let interface_path =
                InterfacePath { path: name.clone(), target: self.target, loss_detector };
            PathPinger::new(name, interface_path, Pinger::new(*plan, start), self.token)
        };
        names.map(probe).collect()
    }
}

impl PingPath for InterfacePath {
    /// Binds to the current address of the interface, since source routing may depend on it.
    fn open(&self) -> io::Result<UdpSocket> {
        let interface = interfaces()?.into_iter().find(|interface| {
            path_name(&interface.name) == self.path
                && interface.address.is_ipv4() == self.target.is_ipv4()
        });
        let interface = interface.ok_or(io::ErrorKind::AddrNotAvailable)?;
        path_ping::bind(&interface.name, SocketAddr::new(interface.address, 0))
    }

    fn target(&self) -> io::Result<SocketAddr> {
        Ok(self.target)
    }

    fn on_answer(&self, at: Instant) {
        if let Some(loss_detector) = &self.loss_detector {
            lock(loss_detector).on_reply(at, &self.path);
        }
    }
}
