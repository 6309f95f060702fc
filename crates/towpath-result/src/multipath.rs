//! Evidence that a multipath transport was used, for the run and for each of its flows.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use towpath_scenario::flow_plan::FlowGoal;
use towpath_scenario::{Scenario, Transport};

use crate::format;

/// Evidence that several paths were used, or the reason why not.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct MultipathUse {
    /// True if the transport is a multipath transport.
    pub requested: bool,
    /// True if every opened connection used the multipath transport to the end (no fallback).
    pub used: bool,
    /// Reason for the fallback to a single path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<String>,
    /// Paths on which payload arrived at the receiver.
    pub paths_used: Vec<String>,
    /// Observations that support the conclusion, line by line.
    pub evidence: Vec<String>,
    /// Use by each flow over the run's multipath transport. Empty in results of earlier builds, of
    /// programs and of captures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<FlowMultipathUse>,
}

/// Use of the multipath transport by the connections of one flow.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct FlowMultipathUse {
    /// Number of the flow, from 0.
    pub flow: u32,
    /// Number of connections that were opened.
    pub connections: u64,
    /// True if a connection was opened, and all of them used the transport to the end.
    pub used: bool,
    /// Reason for the lack of multipath; absent if it was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<String>,
    /// Paths on which payload of the flow arrived at the receiver.
    pub paths_used: Vec<String>,
}

/// Observation about one opened connection: input of [`MultipathUse::set_flows`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionUse {
    /// Number of the flow, from 0.
    pub flow: u32,
    /// True if both hosts used the multipath transport to the end.
    pub multipath: bool,
    /// Reason for a fallback, if an end reported one.
    pub reason: Option<String>,
}

/// Flows that did not use the multipath transport for the same reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnusedFlows<'a> {
    /// Numbers of the flows, in ascending order.
    pub flows: Vec<u32>,
    /// Reason for the lack of multipath.
    pub reason: &'a str,
    /// True if a connection was opened, so that the flows have figures.
    pub connected: bool,
}

impl MultipathUse {
    /// Sets the use by each flow from its opened connections. A connection without a reason gets
    /// that of the run.
    #[must_use]
    pub fn set_flows(
        mut self,
        scenario: &Scenario,
        transport: Transport,
        connections: &[ConnectionUse],
    ) -> Self {
        if !self.requested {
            return self;
        }
        let run_reason = self.fallback.as_deref().unwrap_or("for an unknown reason");
        let flows = (0_u32..).zip(&scenario.flows).filter_map(|(number, flow)| {
            let own: Vec<_> = connections.iter().filter(|c| c.flow == number).collect();
            let needs_connection = match FlowGoal::from(&flow.pattern) {
                FlowGoal::Sized { .. } | FlowGoal::Timed(_) | FlowGoal::Messages(_) => true,
                FlowGoal::Probes(_) | FlowGoal::ConstantRate(_) => false,
                // A command may need no connection, and may choose plain TCP.
                FlowGoal::Command(_) => !own.is_empty(),
            };
            let is_expected = flow.transport_in(transport) == transport && needs_connection;
            is_expected.then(|| FlowMultipathUse::of_connections(number, &own, run_reason))
        });
        self.flows = flows.collect();
        self
    }

    /// Returns true if some flows used the multipath transport and others did not.
    pub fn is_partly_used(&self) -> bool {
        self.flows.iter().any(|flow| flow.used) && self.flows.iter().any(|flow| !flow.used)
    }

    /// Returns the flows that did not use the multipath transport, grouped by reason.
    pub fn unused_flows(&self) -> Vec<UnusedFlows<'_>> {
        let mut groups: Vec<UnusedFlows<'_>> = Vec::new();
        for flow in self.flows.iter().filter(|flow| !flow.used) {
            let reason = flow.fallback.as_deref().unwrap_or("for an unknown reason");
            let connected = flow.connections > 0;
            let is_equal = |group: &&mut UnusedFlows<'_>| {
                (group.reason, group.connected) == (reason, connected)
            };
            match groups.iter_mut().find(is_equal) {
                Some(group) => group.flows.push(flow.flow),
                None => groups.push(UnusedFlows { flows: vec![flow.flow], reason, connected }),
            }
        }
        groups
    }
}

impl FlowMultipathUse {
    fn of_connections(flow: u32, connections: &[&ConnectionUse], run_reason: &str) -> Self {
        let total = connections.len();
        let single: Vec<_> = connections.iter().filter(|c| !c.multipath).collect();
        let reason = || {
            let known = single.iter().find_map(|connection| connection.reason.as_deref());
            let reason = known.unwrap_or(run_reason);
            match (single.len(), total) {
                (_, 0) => "no connection was opened".to_owned(),
                (count, total) if count < total => {
                    format!("{count} of {total} connections: {reason}")
                }
                _ => reason.to_owned(),
            }
        };
        let used = total > 0 && single.is_empty();
        Self {
            flow,
            connections: total as u64,
            used,
            fallback: (!used).then(reason),
            paths_used: Vec::new(),
        }
    }
}

impl UnusedFlows<'_> {
    /// Returns the numbers of the flows as text, such as `flows 1 and 2`.
    pub fn names(&self) -> String {
        let numbers: Vec<_> = self.flows.iter().map(u32::to_string).collect();
        let plural = if numbers.len() == 1 { "" } else { "s" };
        format!("flow{plural} {}", format::list(&numbers))
    }
}
