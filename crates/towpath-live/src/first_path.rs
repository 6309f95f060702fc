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

use super::host_info::{LocalInterface, interfaces_towards, local_address_towards};
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
        let Self { first, interface, .. } = self;
        format!(
            "give the route over {interface} a lower metric than that over {first}, or bind the program to the interface {interface}, as `towpath measure -B %{interface}` does"
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
    let first_address = local_address_towards(target.ip()).ok()?; // without a route, none is first
    let interfaces = interfaces_towards(target.ip(), Some(first_address)).ok()?;
    let (first, others) = interfaces.split_first()?;
    if first.address != first_address || first_address.is_loopback() || others.is_empty() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_a_path_lead_to_tests_of_others() {
        use io::ErrorKind::{
            AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut,
        };
        let kinds =
            [TimedOut, HostUnreachable, NetworkUnreachable, ConnectionRefused, AddrNotAvailable];
        let failures = kinds.map(|kind| is_path_failure(&kind.into()));
        assert_eq!(failures, [true, true, true, false, false]);
    }

    #[test]
    fn a_server_on_this_host_has_no_other_path() {
        for target in ["127.0.0.1:9", "[::1]:9"] {
            assert_eq!(find_unusable_first_path(target.parse().unwrap()), None, "{target}");
        }
    }

    #[test]
    fn both_paths_are_named_with_the_option_that_chooses_the_other() {
        for address in ["10.0.2.2", "fd00:2::2"] {
            let (first, interface) = ("c1".to_owned(), "c2".to_owned());
            let path = UnusableFirstPath { first, interface, address: address.parse().unwrap() };
            let text = path.describe("server");
            assert!(text.starts_with(&format!("server answers from {address} on c2")), "{text}");
            assert!(text.contains("first route (c1)"), "{text}");
            assert!(path.hint().contains("-B %c2"), "{}", path.hint());
        }
    }
}
