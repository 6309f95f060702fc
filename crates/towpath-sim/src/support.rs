//! Check that the simulator can run a scenario, before any run starts.

use thiserror::Error;
use towpath_mptcp::path_manager;
use towpath_multipath::{congestion, scheduler};
use towpath_scenario::{Host, Pattern, Scenario, Transport};

use crate::components::Components;

/// Part of a scenario that the simulator cannot run.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unsupported {
    /// A flow that runs a command.
    #[error("flow {flow} runs a command, which needs real hosts")]
    Command {
        /// Number of the flow, from 0.
        flow: usize,
    },
    /// A flow whose requests the caller schedules, but whose pattern has none.
    #[error("flow {flow} has the pattern `{pattern}`, which has no schedule of requests")]
    Requests {
        /// Number of the flow, from 0.
        flow: usize,
        /// Name of the pattern, or `none` if there is no such flow.
        pattern: &'static str,
    },
    /// A component of the caller that no host uses.
    #[error("no host uses the {noun} `{name}`")]
    Unused {
        /// Kind of component, such as `scheduler`.
        noun: &'static str,
        /// Name of the component.
        name: String,
    },
    /// A name of a component that our stack lacks.
    #[error("host `{host}`: towpath's stack has no {noun} `{name}`")]
    Name {
        /// Name of the host.
        host: String,
        /// Kind of component, such as `scheduler`.
        noun: &'static str,
        /// Unknown name.
        name: String,
        /// Names that exist.
        known_names: Vec<String>,
    },
}

impl Unsupported {
    /// Returns a hint to the user.
    pub fn hint(&self) -> String {
        match self {
            Self::Command { .. } => {
                "use the emulated world, or give the flow a `pattern`".to_owned()
            }
            Self::Requests { .. } => "use `ping`, `reqres`, `interactive` or `onoff`".to_owned(),
            Self::Unused { noun, name } => {
                format!("set `run.{}` or that of a host to \"{name}\"", noun.replace(' ', "-"))
            }
            Self::Name { known_names, .. } => {
                let quoted_names: Vec<_> =
                    known_names.iter().map(|name| format!("`{name}`")).collect();
                format!("there are {}", quoted_names.join(", "))
            }
        }
    }
}

/// Returns the names of schedulers, path managers and congestion controls, in this order.
pub fn known_names() -> [Vec<&'static str>; 3] {
    [
        scheduler::ALL.iter().map(|entry| entry.name).collect(),
        path_manager::ALL.iter().map(|entry| entry.name).collect(),
        congestion::ALL.iter().map(|entry| entry.name).collect(),
    ]
}

/// Returns the names of QUIC congestion controls that are deterministic, so that a scenario may
/// use them.
pub fn known_quic_names() -> Vec<&'static str> {
    let names = towpath_quic::congestion::names().map(|(name, _)| name);
    names.filter(|name| towpath_quic::congestion::is_deterministic(name)).collect()
}

/// Rejects a scenario that cannot be simulated over these transports with these components.
pub fn check(
    scenario: &Scenario,
    transports: &[Transport],
    components: &Components,
) -> Result<(), Unsupported> {
    let runs_command = |pattern: &Pattern| matches!(pattern, Pattern::Run { .. });
    if let Some(flow) = scenario.flows.iter().position(|flow| runs_command(&flow.pattern)) {
        return Err(Unsupported::Command { flow });
    }
    for &flow in components.requests.keys() {
        let pattern = scenario.flows.get(flow).map(|flow| &flow.pattern);
        if !matches!(pattern, Some(Pattern::Exchange(_))) {
            let pattern = pattern.map_or("none", Pattern::name);
            return Err(Unsupported::Requests { flow, pattern });
        }
    }
    check_use(scenario, components)?;
    let [mut schedulers, managers, mut controls] = known_names();
    schedulers.extend(components.schedulers.keys().map(String::as_str));
    controls.extend(components.congestion_controls.keys().map(String::as_str));
    for host in &scenario.hosts {
        let scheduler = host.stack.scheduler.as_deref();
        check_name(host, "scheduler", scheduler, &schedulers)?;
        check_name(host, "path manager", host.stack.path_manager.as_deref(), &managers)?;
        let control = scenario.congestion_control_of(host);
        check_name(host, "congestion control", Some(control), &controls)?;
    }
    let is_quic = |transport| matches!(transport, Transport::Quic | Transport::Mpquic);
    if transports.iter().copied().any(is_quic) {
        let known_controls = known_quic_names();
        for host in &scenario.hosts {
            let control = host.stack.quic_congestion_control.as_deref();
            check_name(host, "deterministic congestion control of QUIC", control, &known_controls)?;
        }
    }
    Ok(())
}

/// Rejects components that no host names: they would have no effect.
fn check_use(scenario: &Scenario, components: &Components) -> Result<(), Unsupported> {
    let hosts = &scenario.hosts;
    for name in components.schedulers.keys() {
        if !hosts.iter().any(|host| host.stack.scheduler.as_ref() == Some(name)) {
            return Err(Unsupported::Unused { noun: "scheduler", name: name.clone() });
        }
    }
    for name in components.congestion_controls.keys() {
        if !hosts.iter().any(|host| scenario.congestion_control_of(host) == name) {
            return Err(Unsupported::Unused { noun: "congestion control", name: name.clone() });
        }
    }
    Ok(())
}

fn check_name(
    host: &Host,
    noun: &'static str,
    name: Option<&str>,
    known_names: &[&str],
) -> Result<(), Unsupported> {
    let Some(name) = name.filter(|name| !known_names.contains(name)) else { return Ok(()) };
    Err(Unsupported::Name {
        host: host.name.clone(),
        noun,
        name: name.to_owned(),
        known_names: known_names.iter().map(|&name| name.to_owned()).collect(),
    })
}
