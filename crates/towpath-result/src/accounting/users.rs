//! Hosts that send and receive data over a link.

use std::collections::BTreeSet;

use towpath_scenario::flow_plan::{directions, request_directions};
use towpath_scenario::{DataDirection, Scenario};

use super::capacity::AccountedLink;
use crate::LinkAccount;

/// Hosts and buffers of the flows that send data over a link in its direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LinkUsers {
    link: (String, DataDirection),
    pub(super) senders: BTreeSet<String>,
    pub(super) receivers: BTreeSet<String>,
    /// True if all flows are request-reply flows, which need not use all the capacity they get.
    pub(super) is_request_reply: bool,
    /// Largest `receive-buffer` of the receivers and `send-buffer` of the senders; 0 where the
    /// scenario sets none.
    pub(super) receive_buffer_bytes: u64,
    pub(super) send_buffer_bytes: u64,
}

impl LinkUsers {
    pub(super) fn of(scenario: &Scenario, link: &AccountedLink) -> Self {
        let mut users = Self {
            link: (link.name.clone(), link.direction),
            senders: BTreeSet::new(),
            receivers: BTreeSet::new(),
            is_request_reply: true,
            receive_buffer_bytes: 0,
            send_buffer_bytes: 0,
        };
        for flow in &scenario.flows {
            for direction in directions(&flow.pattern) {
                let data_hosts = match direction {
                    DataDirection::Down => [flow.to, flow.from],
                    DataDirection::Up | DataDirection::Both => [flow.from, flow.to],
                };
                let link_hosts = match link.direction {
                    DataDirection::Down => [data_hosts[1], data_hosts[0]],
                    DataDirection::Up | DataDirection::Both => data_hosts,
                };
                let connects_link_hosts = |path: &usize| {
                    scenario.paths.get(*path).is_some_and(|path| path.between == link_hosts)
                };
                if link.paths.iter().any(connects_link_hosts) {
                    users.add(scenario, data_hosts);
                    users.is_request_reply &= !request_directions(&flow.pattern).is_empty();
                }
            }
        }
        users
    }

    pub(super) fn is_of(&self, link: &LinkAccount) -> bool {
        (self.link.0.as_str(), self.link.1) == (link.path.as_str(), link.direction)
    }

    fn add(&mut self, scenario: &Scenario, [sender, receiver]: [usize; 2]) {
        let largest = |buffer: Option<[u64; 3]>| buffer.map_or(0, |[.., largest]| largest);
        if let Some(host) = scenario.hosts.get(sender) {
            self.senders.insert(host.name.clone());
            self.send_buffer_bytes = self.send_buffer_bytes.max(largest(host.send_buffer));
        }
        if let Some(host) = scenario.hosts.get(receiver) {
            self.receivers.insert(host.name.clone());
            self.receive_buffer_bytes = self.receive_buffer_bytes.max(largest(host.receive_buffer));
        }
    }
}
