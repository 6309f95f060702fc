//! A client's datagrams over each of its interfaces.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use towpath_measure::live::TestToken;
use towpath_measure::scenario::{Scenario, Udping};
use towpath_measure::traffic::Pinger;
use towpath_net::Instant;

use super::host::{interfaces, path_name};
use super::session::{SharedDetector, lock};
use super::socket::LocalBind;
use crate::ping::{self, PathPinger, PingPath};

/// Whom a client asks.
#[derive(Debug, Clone)]
pub(super) struct ProbeTarget {
    pub(super) target: SocketAddr,
    /// Of the test: where a secret is needed, nobody else gets an answer.
    pub(super) token: TestToken,
    /// Where connections start.
    pub(super) source: LocalBind,
    /// Who wants to know that a path works.
    pub(super) departure: Option<SharedDetector>,
}

/// A path: an interface of this host.
#[derive(Debug)]
pub(super) struct InterfacePath {
    /// Name of the path; the interface's may be longer.
    path: String,
    target: SocketAddr,
    departure: Option<SharedDetector>,
}

impl ProbeTarget {
    /// The paths of a scenario, each with what is asked over it from `start` on.
    pub(super) fn paths(
        &self,
        scenario: &Scenario,
        plan: &Udping,
        start: Instant,
    ) -> Vec<PathPinger<InterfacePath>> {
        let names = scenario.paths.iter().map(|path| path.name.clone());
        let way = |name: String| {
            let departure = self.departure.clone();
            let over = InterfacePath { path: name.clone(), target: self.target, departure };
            PathPinger::new(name, over, Pinger::new(*plan, start), self.token)
        };
        names.map(way).collect()
    }
}

impl PingPath for InterfacePath {
    /// From the address that the interface has now: routes may depend on it.
    fn open(&self) -> io::Result<UdpSocket> {
        let own = interfaces()?.into_iter().find(|one| {
            path_name(&one.name) == self.path && one.address.is_ipv4() == self.target.is_ipv4()
        });
        let own = own.ok_or(io::ErrorKind::AddrNotAvailable)?;
        ping::bind(&own.name, SocketAddr::new(own.address, 0))
    }

    fn target(&self) -> io::Result<SocketAddr> {
        Ok(self.target)
    }

    fn on_answer(&self, at: Instant) {
        if let Some(departure) = &self.departure {
            lock(departure).on_reply(at, &self.path);
        }
    }
}
