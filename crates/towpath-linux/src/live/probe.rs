//! A client's datagrams over each of its interfaces.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use towpath_measure::live::TestToken;
use towpath_measure::scenario::{Scenario, Udping};
use towpath_measure::traffic::Pinger;
use towpath_net::Instant;

use super::host::{interfaces, path_name};
use super::session::{Shared, lock};
use super::socket::Source;
use crate::ping::{self, Path, Way};

/// Whom a client asks.
#[derive(Debug, Clone)]
pub(super) struct Aim {
    pub(super) target: SocketAddr,
    /// Of the test: where a secret is needed, nobody else gets an answer.
    pub(super) token: TestToken,
    /// Where connections start.
    pub(super) source: Source,
    /// Who wants to know that a path works.
    pub(super) departure: Option<Shared>,
}

/// A path: an interface of this host.
#[derive(Debug)]
pub(super) struct Over {
    /// Name of the path; the interface's may be longer.
    path: String,
    target: SocketAddr,
    departure: Option<Shared>,
}

impl Aim {
    /// The paths of a scenario, each with what is asked over it from `start` on.
    pub(super) fn ways(
        &self,
        scenario: &Scenario,
        plan: &Udping,
        start: Instant,
    ) -> Vec<Way<Over>> {
        let names = scenario.paths.iter().map(|path| path.name.clone());
        let way = |name: String| {
            let departure = self.departure.clone();
            let over = Over { path: name.clone(), target: self.target, departure };
            Way::new(name, over, Pinger::new(*plan, start), self.token)
        };
        names.map(way).collect()
    }
}

impl Path for Over {
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
            lock(departure).on_answer(at, &self.path);
        }
    }
}
