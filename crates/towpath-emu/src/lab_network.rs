//! A scenario's network for other programs: tests, benches, experiments.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use towpath_mptcp::connection;
use towpath_mptcp::settings::SettingError;
use towpath_os::clock::Clock;
use towpath_os::namespace::Namespace;
use towpath_os::sandbox::EmulatorThread;
use towpath_scenario::{Family, Scenario, Transport};
use towpath_sockets::stack::StackHandle;

use crate::emulator::engine::EmulatorReport;
use crate::network;
use crate::network::address::address;
use crate::network::stack_plan as plan;
use crate::network::{Backend, EmulatedNetwork, NetworkError};

/// Hosts and links of a scenario, without its flows.
///
/// The timeline does not run. Dropping it ends everything.
#[derive(Debug)]
pub struct LabNetwork {
    network: EmulatedNetwork,
}

impl LabNetwork {
    /// Makes the network. Needs permission to make network namespaces; see [`towpath_os::sandbox`].
    pub fn start(
        scenario: &Arc<Scenario>,
        thread: EmulatorThread,
        seed: u64,
        backend: Option<Backend>,
    ) -> Result<Self, NetworkError> {
        let network = network::build(thread, scenario, Clock::start(), seed, backend)?;
        Ok(Self { network })
    }

    /// Returns the clock of emulator and stacks.
    pub fn clock(&self) -> Clock {
        self.network.clock
    }

    /// Returns a host's network namespace, which is empty for a host with our own stack.
    pub fn namespace(&self, host: usize) -> Option<&Namespace> {
        self.network.hosts.get(host).map(|host| &host.namespace)
    }

    /// Returns a host's own stack; `None` for a host with the kernel's.
    pub fn stack(&self, host: usize) -> Option<&Arc<StackHandle>> {
        self.network.hosts.get(host)?.stack.as_ref()
    }

    /// Returns the configuration of a host's own stack for connections of `transport`.
    pub fn connection_config(
        &self,
        host: usize,
        transport: Transport,
    ) -> Result<connection::ConnectionConfig, SettingError> {
        plan::connection(&self.network.scenario, host, transport)
    }

    /// Returns the address of one end (0 or 1) of a path.
    pub fn address(&self, path: usize, end: usize, family: Family) -> IpAddr {
        address(path, end, family, 0)
    }

    /// Ends the emulator; returns the packets that it lost before they were on a link.
    pub fn finish(self) -> io::Result<u64> {
        let EmulatorReport { lost_packets, .. } = self.network.emulator.finish()?;
        Ok(lost_packets)
    }
}
