//! Schedulers, congestion controls and traffic that a caller adds to those of the stack.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use towpath_mptcp::connection::ConnectionConfig;
use towpath_multipath::congestion::CongestionControlFactory;
use towpath_multipath::scheduler::SchedulerFactory;
use towpath_run::traffic::{FlowRole, RequestGenerator};

/// Components of a caller, in addition to those of the stack.
#[derive(Debug, Clone, Default)]
pub struct Components {
    /// Schedulers by the name that hosts of the scenario use.
    pub schedulers: BTreeMap<String, SchedulerFactory>,
    /// Congestion controls of TCP by the name that hosts of the scenario use.
    pub congestion_controls: BTreeMap<String, CongestionControlFactory>,
    /// Requests of flows, by number of the flow. They replace the schedule of the flow's pattern.
    pub requests: BTreeMap<usize, RequestsFactory>,
}

impl Components {
    /// Returns true without any component.
    pub fn is_empty(&self) -> bool {
        self.schedulers.is_empty()
            && self.congestion_controls.is_empty()
            && self.requests.is_empty()
    }

    /// Sets the components that a host's configuration names.
    pub(crate) fn apply_to(&self, connection: &mut ConnectionConfig) {
        connection.custom_scheduler = self.schedulers.get(&connection.scheduler).cloned();
        let control = self.congestion_controls.get(&connection.subflow.congestion_control);
        connection.custom_congestion_control = control.cloned();
    }

    /// Returns conditions of a result: all components by kind.
    pub(crate) fn conditions(&self) -> impl Iterator<Item = (String, String)> {
        let listed = |names: Vec<&String>| {
            names.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ")
        };
        let named = [
            ("added schedulers", listed(self.schedulers.keys().collect())),
            ("added congestion controls", listed(self.congestion_controls.keys().collect())),
        ];
        let named = named.into_iter().filter(|(_, names)| !names.is_empty());
        let requests = self.requests.iter();
        let requests = requests
            .map(|(flow, factory)| (format!("requests of flow {flow}"), factory.name.clone()));
        named.map(|(kind, names)| (kind.to_owned(), names)).chain(requests)
    }
}

/// Constructor of a flow's requests.
#[derive(Clone)]
pub struct RequestsFactory {
    name: String,
    make: Arc<dyn Fn(FlowRole) -> Box<dyn RequestGenerator> + Send + Sync>,
}

impl RequestsFactory {
    /// Creates a factory that calls `make` for each end of the flow that sends requests. Results
    /// contain `name`.
    pub fn new(
        name: String,
        make: impl Fn(FlowRole) -> Box<dyn RequestGenerator> + Send + Sync + 'static,
    ) -> Self {
        Self { name, make: Arc::new(make) }
    }

    /// Creates the requests of one end.
    pub(crate) fn make(&self, role: FlowRole) -> Box<dyn RequestGenerator> {
        (self.make)(role)
    }
}

impl fmt::Debug for RequestsFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestsFactory").field("name", &self.name).finish_non_exhaustive()
    }
}
