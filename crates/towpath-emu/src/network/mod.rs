//! A scenario's network, made of namespaces, interfaces and the emulator.
//!
//! Every path is one interface on each of its two hosts, both named after it, in a subnet of its
//! own ([`address`]). The path's first host routes by source address; the second routes by
//! destination address (see [`address`]). All of it uses netlink; no program is run.

mod accounted_links;
pub(crate) mod address;
pub(crate) mod build;
mod links;
mod quic_hosts;
pub(crate) mod stack_plan;
pub(crate) mod timeline;

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;
use towpath_netlink::{NetlinkError, RouteSocket};
use towpath_os::clock::Clock;
use towpath_os::namespace::Namespace;
use towpath_scenario::{Family, Scenario};
use towpath_sockets::{quic, stack};

use crate::emulator::engine::Emulator;

pub(crate) use build::build;
pub(crate) use quic_hosts::adapt_to_transport;

/// Means by which the emulator exchanges packets with the hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// TUN devices: fewer copies, but the user must have access to `/dev/net/tun`.
    Tun,
    /// Packet sockets on veth pairs: works wherever user namespaces do.
    Packet,
}

impl Backend {
    /// Returns the name for results and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tun => "tun",
            Self::Packet => "packet",
        }
    }
}

/// Errors of setting up the network.
#[derive(Debug, Error)]
pub enum NetworkError {
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    System {
        /// Description of the failed action.
        action: String,
        /// Error of the system call.
        source: io::Error,
    },
    /// The kernel refused a configuration.
    #[error("on host `{host}`: {source}")]
    Kernel {
        /// Name of the host.
        host: String,
        /// Netlink error from the kernel.
        source: NetlinkError,
    },
}

impl NetworkError {
    pub(crate) fn system(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::System { action, source }
    }

    pub(crate) fn kernel(host: &str) -> impl Fn(NetlinkError) -> Self + '_ {
        move |source| Self::Kernel { host: host.to_owned(), source }
    }
}

/// A host of the scenario, with its network namespace.
#[derive(Debug)]
pub(crate) struct HostNamespace {
    pub(crate) name: String,
    pub(crate) namespace: Namespace,
    /// Route socket opened in the namespace, usable from any thread.
    route: Mutex<RouteSocket>,
    /// Stack of the host's own, if it has one: then its namespace stays empty.
    pub(crate) stack: Option<Arc<stack::StackHandle>>,
    /// QUIC of the host, in a run with QUIC flows.
    pub(crate) quic: Option<Arc<quic::QuicHandle>>,
}

impl HostNamespace {
    /// Returns the host's locked route socket.
    pub(crate) fn route(&self) -> MutexGuard<'_, RouteSocket> {
        self.route.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A scenario's network, up and running.
#[derive(Debug)]
pub(crate) struct EmulatedNetwork {
    pub(crate) scenario: Arc<Scenario>,
    pub(crate) clock: Clock,
    /// Seed of all random draws in the network.
    pub(crate) seed: u64,
    pub(crate) hosts: Vec<HostNamespace>,
    pub(crate) emulator: Emulator,
    pub(crate) backend: Backend,
    /// Warnings for the user about settings that are not available.
    pub(crate) warnings: Vec<String>,
    /// For each path, the directions of its access link: up, down.
    links: links::LinkDirections,
    /// For each path and end, how often the address has changed.
    generations: Mutex<Vec<[u8; 2]>>,
    carriers: Vec<[build::CarrierControl; 2]>,
    /// For each path, true if its up and down directions are shaped by the sending host's kernel.
    shaped_at_host: Vec<[bool; 2]>,
}

impl EmulatedNetwork {
    /// Returns the path of a subflow between two addresses: that of its first host's address.
    pub(crate) fn path_of(a: IpAddr, b: IpAddr) -> Option<usize> {
        address::path_of(a, b)
    }

    /// Returns the current address of `host` on a path.
    pub(crate) fn address(&self, path: usize, host: usize, family: Family) -> Option<IpAddr> {
        let end = end_of(self.scenario.paths.get(path)?, host)?;
        let generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = *generations.get(path)?.get(end)?;
        Some(address::address(path, end, family, generation))
    }

    /// Returns the address families that flows use; both for a scenario without flows.
    pub(crate) fn families(scenario: &Scenario) -> Vec<Family> {
        towpath_scenario::network::families(scenario)
    }
}

pub(crate) use towpath_scenario::network::end_of;
