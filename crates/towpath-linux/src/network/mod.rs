//! A scenario's network, made of namespaces, interfaces and the emulator.
//!
//! Every path is one interface on each of its two hosts, both named after it, in a subnet of its
//! own ([`address`]). The path's first host routes by source address; the second answers towards
//! the destination address (see [`Path`]). No program is run for any of this: netlink only.

pub(crate) mod address;
pub(crate) mod build;
mod counted;
mod links;
mod quic_hosts;
pub(crate) mod timeline;

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;
use towpath_measure::scenario::{Family, Scenario};

use crate::clock::Clock;
use crate::emulator::engine::Emulator;
use crate::namespace::Namespace;
use crate::netlink::{NetlinkError, RouteSocket};
use crate::{quic, stack};

pub(crate) use build::build;
pub(crate) use quic_hosts::for_transport;

/// How the emulator exchanges packets with the hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// TUN devices: fewer copies, but `/dev/net/tun` must be open to the user.
    Tun,
    /// Packet sockets on veth pairs: works wherever user namespaces do.
    Packet,
}

impl Backend {
    /// Name for results and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tun => "tun",
            Self::Packet => "packet",
        }
    }
}

/// Why the network could not be made.
#[derive(Debug, Error)]
pub enum NetworkError {
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The kernel refused a configuration.
    #[error("on host `{host}`: {source}")]
    Kernel {
        /// On which host.
        host: String,
        /// The kernel's reason.
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

/// One host.
#[derive(Debug)]
pub(crate) struct HostNamespace {
    pub(crate) name: String,
    pub(crate) namespace: Namespace,
    /// Opened in the namespace, usable from any thread.
    route: Mutex<RouteSocket>,
    /// The host's own stack, if it has one: then its namespace stays empty.
    pub(crate) stack: Option<Arc<stack::StackHandle>>,
    /// The host's QUIC, in a run whose flows speak it.
    pub(crate) quic: Option<Arc<quic::QuicHandle>>,
}

impl HostNamespace {
    /// The host's route socket.
    pub(crate) fn route(&self) -> MutexGuard<'_, RouteSocket> {
        self.route.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A scenario's network, up and running.
#[derive(Debug)]
pub(crate) struct EmulatedNetwork {
    pub(crate) scenario: Arc<Scenario>,
    pub(crate) clock: Clock,
    /// Of all that is random in it.
    pub(crate) seed: u64,
    pub(crate) hosts: Vec<HostNamespace>,
    pub(crate) emulator: Emulator,
    pub(crate) backend: Backend,
    /// What could not be had, for people.
    pub(crate) warnings: Vec<String>,
    /// For each path, the directions of its access link: up, down.
    links: links::LinkDirections,
    /// For each path and end, how often the address has changed.
    generations: Mutex<Vec<[u8; 2]>>,
    carriers: Vec<[build::CarrierControl; 2]>,
    /// For each path, whether its up and down directions are shaped by the sending host's kernel.
    at_host: Vec<[bool; 2]>,
}

impl EmulatedNetwork {
    /// The path of a subflow between two addresses: the one of its first host's address.
    pub(crate) fn path_of(one: IpAddr, other: IpAddr) -> Option<usize> {
        address::path_of(one, other)
    }

    /// The address that `host` has on a path today.
    pub(crate) fn address(&self, path: usize, host: usize, family: Family) -> Option<IpAddr> {
        let end = end_of(self.scenario.paths.get(path)?, host)?;
        let all = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = *all.get(path)?.get(end)?;
        Some(address::address(path, end, family, generation))
    }

    /// The address families that flows use; both when there are no flows.
    pub(crate) fn families(scenario: &Scenario) -> Vec<Family> {
        towpath_measure::network::families(scenario)
    }
}

pub(crate) use towpath_measure::network::end_of;
