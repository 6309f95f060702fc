//! QUIC of the hosts, over the UDP sockets of their kernels.

use std::sync::Arc;

use towpath_net::stream_seed;
use towpath_scenario::network::endpoints;
use towpath_scenario::{Scenario, StackKind, Transport};
use towpath_sockets::quic::{HostConfig, InterfacePolicy, InterfaceUse, QuicHandle};

use super::{EmulatedNetwork, NetworkError};
use crate::network::stack_plan as plan;

/// Adapts the scenario to a run over `transport`.
///
/// If all flows use QUIC, all hosts need a kernel's UDP, and none needs a TCP stack of ours.
pub(crate) fn adapt_to_transport(scenario: &Arc<Scenario>, transport: Transport) -> Arc<Scenario> {
    let mut flows = scenario.flows.iter();
    let all_quic = flows.all(|flow| flow.transport_in(transport).is_quic());
    let any_own_stack = (0..scenario.hosts.len()).any(|host| plan::is_own(scenario, host));
    if !all_quic || !any_own_stack {
        return Arc::clone(scenario);
    }
    let mut scenario = Scenario::clone(scenario);
    for host in &mut scenario.hosts {
        host.stack.stack = StackKind::Kernel;
    }
    Arc::new(scenario)
}

impl EmulatedNetwork {
    /// Starts QUIC on all hosts with a kernel, if a flow uses it.
    pub(crate) fn start_quic(
        &mut self,
        transport: Transport,
        seed: u64,
    ) -> Result<(), NetworkError> {
        let mut flows = self.scenario.flows.iter();
        if !flows.any(|flow| flow.transport_in(transport).is_quic()) {
            return Ok(());
        }
        for (index, host) in self.hosts.iter_mut().enumerate() {
            if host.stack.is_some() {
                continue;
            }
            let config = HostConfig {
                name: host.name.clone(),
                clock: self.clock,
                seed: Some(stream_seed(seed, &format!("host/{}", host.name), "quic")),
                namespace: Some(host.namespace.clone()),
                interfaces: interfaces(&self.scenario, index),
            };
            let system_error = NetworkError::system(format!("start QUIC on host `{}`", host.name));
            host.quic = Some(Arc::new(QuicHandle::start(config).map_err(system_error)?));
        }
        Ok(())
    }
}

/// Returns the usage of a host's interfaces, which are named after their paths, by its endpoints.
fn interfaces(scenario: &Scenario, host: usize) -> InterfacePolicy {
    let named = endpoints(scenario, host).into_iter().filter_map(|endpoint| {
        let path = scenario.paths.get(endpoint.path)?;
        let usage = InterfaceUse { subflow: endpoint.subflow, backup: endpoint.backup };
        Some((path.name.clone(), usage))
    });
    InterfacePolicy {
        named: named.collect(),
        others: InterfaceUse { subflow: false, backup: false },
    }
}
