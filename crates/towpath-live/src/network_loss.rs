//! Detects when a moving host has lost a network that it had at first.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use towpath_net::Instant;

use super::host_info::path_name;
use super::network_watch::NetworkChange;

/// Shortest absence that counts as a loss.
const LOSS_CONFIRM_AFTER: Duration = Duration::from_secs(2);
/// Longest silence of a path that works.
const PATH_TIMEOUT: Duration = Duration::from_secs(3);

/// Part of a network that can disappear.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum NetworkPart {
    Link(String),
    /// All addresses of one family on an interface; true for IPv6.
    Addresses(String, bool),
    /// Best default route; true for IPv6.
    DefaultRoute(bool),
}

/// Detector of the loss of networks that existed at the start.
#[derive(Debug)]
pub(super) struct NetworkLossDetector {
    /// Names of the monitored paths.
    paths: Vec<String>,
    addresses: BTreeMap<(String, bool), BTreeSet<IpAddr>>,
    /// Interfaces of the initial default routes of IPv4 and IPv6.
    defaults: [Option<String>; 2],
    /// Missing parts, with the time and text of the change.
    missing: BTreeMap<NetworkPart, (Instant, String)>,
    /// Links that came up later; their loss does not count.
    later: BTreeSet<NetworkPart>,
    /// Time of the last reply over each path.
    last_reply: BTreeMap<String, Instant>,
}

impl NetworkLossDetector {
    /// Creates a detector for `paths` from the current addresses and default routes.
    pub(super) fn new(
        paths: Vec<String>,
        addresses: impl IntoIterator<Item = (String, IpAddr)>,
        defaults: [Option<String>; 2],
    ) -> Self {
        let mut addresses_by_family: BTreeMap<_, BTreeSet<IpAddr>> = BTreeMap::new();
        for (interface, address) in addresses {
            addresses_by_family.entry((interface, address.is_ipv6())).or_default().insert(address);
        }
        let (missing, later, last_reply) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Self { paths, addresses: addresses_by_family, defaults, missing, later, last_reply }
    }

    /// Updates the state after a change of the network.
    pub(super) fn on_change(&mut self, at: Instant, change: &NetworkChange) {
        let is_monitored = |interface: &str| self.paths.contains(&path_name(interface));
        let (part, is_present) = match change {
            NetworkChange::Link { interface, .. }
            | NetworkChange::Removed { interface }
            | NetworkChange::Address { interface, .. }
                if !is_monitored(interface) =>
            {
                return;
            }
            NetworkChange::Link { interface, running } => {
                (NetworkPart::Link(interface.clone()), *running)
            }
            NetworkChange::Removed { interface } => (NetworkPart::Link(interface.clone()), false),
            NetworkChange::Address { interface, address, present } => {
                let key = (interface.clone(), address.is_ipv6());
                let addresses = self.addresses.entry(key).or_default();
                if *present {
                    addresses.insert(*address);
                } else {
                    addresses.remove(address);
                }
                // Replacing an address does not lose the network.
                (
                    NetworkPart::Addresses(interface.clone(), address.is_ipv6()),
                    !addresses.is_empty(),
                )
            }
            NetworkChange::DefaultRoute { v6, now } => {
                let initial = self.defaults.get(usize::from(*v6)).cloned().flatten();
                let Some(initial) = initial else { return };
                let is_initial = now.as_ref().is_some_and(|(interface, _)| *interface == initial);
                (NetworkPart::DefaultRoute(*v6), is_initial)
            }
        };
        if !is_present {
            if !self.later.contains(&part) {
                self.missing.entry(part).or_insert_with(|| (at, change.to_string()));
            }
        } else if self.missing.remove(&part).is_none() && matches!(part, NetworkPart::Link(_)) {
            self.later.insert(part);
        }
    }

    /// Records a reply over a path.
    pub(super) fn on_reply(&mut self, at: Instant, path: &str) {
        self.last_reply.insert(path.to_owned(), at);
    }

    /// Returns time and reason of the first network loss; `None` if all networks are present.
    pub(super) fn lost_since(&self, now: Instant) -> Option<(Instant, String)> {
        let missing = self.missing.values().filter(|(since, _)| *since + LOSS_CONFIRM_AFTER <= now);
        let silent =
            self.last_reply.iter().filter(|(_, last_reply)| **last_reply + PATH_TIMEOUT <= now);
        let silent =
            silent.map(|(path, last_reply)| (*last_reply, format!("no reply over {path}")));
        missing.cloned().chain(silent).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time_ms(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn create_detector() -> NetworkLossDetector {
        let addresses = [("wlan0", "10.0.0.1"), ("wwan0", "10.1.0.1")];
        let addresses = addresses.map(|(name, text)| (name.to_owned(), address(text)));
        let paths = vec!["wlan0".to_owned(), "wwan0".to_owned()];
        NetworkLossDetector::new(paths, addresses, [Some("wlan0".to_owned()), None])
    }

    fn link(interface: &str, running: bool) -> NetworkChange {
        NetworkChange::Link { interface: interface.to_owned(), running }
    }

    #[test]
    fn a_short_link_outage_is_not_a_loss_of_the_network() {
        let mut detector = create_detector();
        detector.on_change(time_ms(1_000), &link("wlan0", false));
        assert_eq!(detector.lost_since(time_ms(2_900)), None);
        detector.on_change(time_ms(2_900), &link("wlan0", true));
        assert_eq!(detector.lost_since(time_ms(9_000)), None);
        detector
            .on_change(time_ms(9_000), &NetworkChange::Removed { interface: "wlan0".to_owned() });
        let (since, reason) = detector.lost_since(time_ms(11_000)).unwrap();
        assert!(since == time_ms(9_000) && reason.contains("wlan0"), "{reason}");
    }

    #[test]
    fn non_path_and_later_interfaces_may_disappear() {
        let mut detector = create_detector();
        detector.on_change(time_ms(0), &link("docker0", false));
        // A third network that did not exist at the start.
        detector.on_change(time_ms(0), &link("wwan0", true));
        detector.on_change(time_ms(1_000), &link("wwan0", false));
        let v6 = NetworkChange::DefaultRoute { v6: true, now: None };
        detector.on_change(time_ms(1_000), &v6);
        assert_eq!(detector.lost_since(time_ms(9_000)), None);
    }

    #[test]
    fn a_lost_address_counts_if_its_interface_has_no_other() {
        let mut detector = create_detector();
        let change = |text: &str, present| NetworkChange::Address {
            interface: "wlan0".to_owned(),
            address: address(text),
            present,
        };
        detector.on_change(time_ms(0), &change("10.0.0.9", true));
        detector.on_change(time_ms(0), &change("10.0.0.1", false));
        assert_eq!(detector.lost_since(time_ms(9_000)), None);
        detector.on_change(time_ms(9_000), &change("10.0.0.9", false));
        assert_eq!(
            detector.lost_since(time_ms(11_000)).map(|(since, _)| since),
            Some(time_ms(9_000))
        );
    }

    #[test]
    fn a_default_route_over_another_interface_is_a_loss() {
        let mut detector = create_detector();
        let default_over =
            |name: &str| NetworkChange::DefaultRoute { v6: false, now: Some((name.into(), None)) };
        detector.on_change(time_ms(0), &default_over("wwan0"));
        detector.on_change(time_ms(500), &default_over("wlan0"));
        assert_eq!(detector.lost_since(time_ms(9_000)), None);
        detector.on_change(time_ms(9_000), &default_over("wwan0"));
        assert!(detector.lost_since(time_ms(11_000)).is_some());
    }

    #[test]
    fn only_a_path_that_has_replied_can_be_silent() {
        let mut detector = create_detector();
        for step in 0..50 {
            detector.on_reply(time_ms(step * 100), "wwan0");
            assert_eq!(detector.lost_since(time_ms(step * 100)), None);
        }
        assert_eq!(detector.lost_since(time_ms(7_899)), None);
        let (since, reason) = detector.lost_since(time_ms(7_900)).unwrap();
        assert_eq!((since, reason.as_str()), (time_ms(4_900), "no reply over wwan0"));
    }
}
