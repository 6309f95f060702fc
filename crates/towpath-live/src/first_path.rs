//! Local addresses from which a server answers, if new connections to it fail.
//!
//! New connections start on the first route. If that path is dead, the server seems to be down,
//! although it answers over another interface.

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use serde::Serialize;
use towpath_scenario::Transport;

use super::host_info::{LocalInterface, interfaces_towards};
use super::socket::{self, LocalBind};
use crate::protocol::TransferSettings;

/// Timeout of each attempt: three SYN packets, at 0, 1 and 3 s.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(3_500);
/// Maximum number of other interfaces that are tried.
const MAX_INTERFACES: usize = 8;

/// Interfaces of this host to a server that answers on the other one only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnusableFirstPath {
    /// Interface of the first route, on which new connections start.
    pub first: String,
    /// Interface on which the server answers.
    pub interface: String,
    /// Address of that interface from which it answers.
    pub address: std::net::IpAddr,
}

impl UnusableFirstPath {
    /// Describes the problem as a clause about `target`.
    pub fn describe(&self, target: &str) -> String {
        let Self { first, interface, address } = self;
        format!(
            "{target} answers from {address} on {interface}, but new connections start on the first route ({first}), which gets no answer"
        )
    }

    /// Returns the ways to use the other path.
    pub fn hint(&self) -> String {
        let Self { first, interface, address } = self;
        format!(
            "give the route over {interface} a lower metric than that over {first}, bind the program to {address}, or measure with `towpath measure -B %{interface}`"
        )
    }
}

/// Returns true if an error leaves open that the server is reachable over another interface.
pub(super) fn is_path_failure(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::TimedOut
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
    )
}

/// Finds another interface over which `target` accepts plain TCP, although it does not over the
/// first route. Takes as long as an attempt to connect.
pub(super) fn find_unusable_first_path(target: SocketAddr) -> Option<UnusableFirstPath> {
    let interfaces = interfaces_towards(target.ip(), None).ok()?;
    let (first, others) = interfaces.split_first()?;
    if first.address.is_loopback() || others.is_empty() {
        return None;
    }
    let connects = |source: LocalBind| {
        let settings = TransferSettings::default();
        socket::connect(Transport::Tcp, &source, target, &settings, CONNECT_TIMEOUT).is_ok()
    };
    let bound = |interface: &LocalInterface| LocalBind {
        address: Some(interface.address),
        interface: Some(interface.name.clone()),
    };
    let answering = thread::scope(|scope| {
        let first_attempt = scope.spawn(|| connects(LocalBind::default()));
        let attempts: Vec<_> = others
            .iter()
            .take(MAX_INTERFACES)
            .map(|other| (other, scope.spawn(|| connects(bound(other)))))
            .collect();
        let connected: Vec<_> = attempts
            .into_iter()
            .filter_map(|(other, attempt)| attempt.join().is_ok_and(|ok| ok).then_some(other))
            .collect();
        // The server may have started meanwhile.
        let first_connects = first_attempt.join().is_ok_and(|ok| ok);
        connected.first().copied().filter(|_| !first_connects)
    })?;
    Some(UnusableFirstPath {
        first: first.name.clone(),
        interface: answering.name.clone(),
        address: answering.address,
    })
}
