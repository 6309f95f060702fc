//! `towpath lab`: any program in a scenario's network.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use thiserror::Error;
use towpath_measure::scenario::{Family, Scenario, Transport};

use crate::clock::Clock;
use crate::network::address::address;
use crate::network::{self, Backend, Network, NetworkError, end_of};
use crate::pace::Pace;
use crate::sandbox::{self, EmulatorThread};
use crate::stack::plan;
use crate::traffic::Stage;
use crate::{interrupt, program, run};

/// What to run, and where.
#[derive(Debug, Clone)]
pub struct Lab {
    /// The scenario.
    pub scenario: Arc<Scenario>,
    /// Index of the host in whose namespace the program runs.
    pub host: usize,
    /// Program and arguments; the user's shell when empty.
    pub command: Vec<OsString>,
    /// Back-end; the best that works when `None`.
    pub backend: Option<Backend>,
}

/// What a lab has to tell before its program runs, and after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said<'a> {
    /// What is where, several lines.
    Map(&'a str),
    /// Something to check before what the program shows is trusted.
    Warning(&'a str),
}

/// Why the program did not run.
#[derive(Debug, Error)]
pub enum LabError {
    /// The network could not be made.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The program could not be started.
    #[error("cannot run `{program}`: {source}")]
    Program {
        /// Its name.
        program: String,
        /// The system's reason.
        source: io::Error,
    },
    /// No program can use the host's stack.
    #[error(
        "host `{0}` has towpath's own stack, which programs cannot use; write `stack = \"kernel\"` \
         for it, or choose another host"
    )]
    OwnStack(String),
    /// The scenario has no host.
    #[error("the scenario has no such host")]
    Host,
}

/// Makes the network, says what is where by `say`, runs the program and waits for it. With a
/// command, the timeline starts with it; a shell gets a network that stays as it is.
pub fn lab(
    lab: &Lab,
    thread: EmulatorThread,
    say: &mut dyn FnMut(Said<'_>),
) -> Result<ExitStatus, LabError> {
    check_stack(&lab.scenario, lab.host)?;
    // Ctrl-C is for the program; what it leaves is cleaned up when it has ended.
    interrupt::leave_to_children();
    let seed = lab.scenario.run.seed;
    let clock = Clock::start();
    let network = Arc::new(network::build(thread, &lab.scenario, clock, seed, lab.backend)?);
    say(Said::Map(&map(&network, lab.host)));
    let scenario = &lab.scenario;
    let wanted = scenario.hosts.get(lab.host).map(|host| scenario.congestion_control_of(host));
    let used = network.hosts.get(lab.host).map(|host| host.namespace.run(congestion_control));
    if let (Some(wanted), Some(Ok(used))) = (wanted, used)
        && wanted != used
    {
        say(Said::Warning(&format!(
            "programs that do not ask for a congestion control use `{used}`, not `{wanted}`: \
             an administrator allows only some (net.ipv4.tcp_allowed_congestion_control)"
        )));
    }
    for warning in
        without_user_namespace().iter().chain(&deaf_hosts(scenario)).chain(&network.warnings)
    {
        say(Said::Warning(warning));
    }
    let space = network.hosts.get(lab.host).ok_or(LabError::Host)?;
    let shell = std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
    let (name, arguments) = match lab.command.split_first() {
        Some((name, arguments)) => (name.clone(), arguments),
        None => (shell, &[][..]),
    };
    let mut command = Command::new(&name);
    command.args(arguments).env("TOWPATH_HOST", &space.name);
    for (variable, value) in addresses(&network) {
        command.env(variable, value);
    }
    let failed = |source| LabError::Program { program: name.to_string_lossy().into(), source };
    let mut child = program::start(&space.namespace, &mut command).map_err(failed)?;
    if lab.command.is_empty() {
        return sandbox::wait(&mut child).map_err(failed);
    }
    let stage = Stage {
        pace: Pace::new(network.clock, network.clock.now()),
        network: Arc::clone(&network),
        transport: Transport::Tcp,
        streams: Mutex::default(),
        meters: crate::cost::Meters::default(),
    };
    network.schedule_link_changes(stage.pace.zero());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (told, _heard) = std::sync::mpsc::channel();
        let (stage, done) = (&stage, &done);
        let timeline = scope.spawn(move || run::play_timeline(stage, &told, done));
        let status = sandbox::wait(&mut child).map_err(failed);
        done.store(true, Ordering::Release);
        for warning in timeline.join().unwrap_or_default() {
            say(Said::Warning(&warning));
        }
        status
    })
}

/// Refuses a host whose namespace is empty because its stack is ours.
fn check_stack(scenario: &Scenario, host: usize) -> Result<(), LabError> {
    let name = &scenario.hosts.get(host).ok_or(LabError::Host)?.name;
    if plan::is_own(scenario, host) { Err(LabError::OwnStack(name.clone())) } else { Ok(()) }
}

/// What to know where the kernel gave no user namespace.
fn without_user_namespace() -> Option<String> {
    sandbox::is_real_root().then(|| {
        "there are no user namespaces here: the program is root of this machine, with the \
         capabilities alone that a network and files take"
            .to_owned()
    })
}

/// A warning for each other host that has our stack: no program runs there that could answer.
fn deaf_hosts(scenario: &Scenario) -> Vec<String> {
    let own = scenario.hosts.iter().enumerate().filter(|(index, _)| plan::is_own(scenario, *index));
    let text = "has towpath's own stack, in which nothing listens here";
    own.map(|(_, host)| format!("host `{}` {text}", host.name)).collect()
}

/// The default of the calling thread's namespace.
fn congestion_control() -> String {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    text.unwrap_or_default().trim().to_owned()
}

/// One line for each interface, with the host in which the program runs marked.
fn map(network: &Network, here: usize) -> String {
    let mut text = String::new();
    for (index, host) in network.hosts.iter().enumerate() {
        let mark = if index == here { " (you are here)" } else { "" };
        let _infallible = writeln!(text, "{}{mark}", host.name);
        for (number, path) in network.scenario.paths.iter().enumerate() {
            let Some(end) = end_of(path, index) else { continue };
            let other = path.between.iter().find(|other| **other != index);
            let other = other.and_then(|other| network.hosts.get(*other));
            let _infallible = writeln!(
                text,
                "  {:<12} {:<15} {:<22} to {}",
                path.name,
                address(number, end, Family::V4, 0),
                address(number, end, Family::V6, 0),
                other.map_or("?", |other| other.name.as_str()),
            );
        }
    }
    text.pop();
    text
}

/// `TOWPATH_SERVER_WIFI=10.64.0.2` for every interface.
fn addresses(network: &Network) -> Vec<(String, String)> {
    let shout = |text: &str| text.to_uppercase().replace('-', "_");
    let mut all = Vec::new();
    for (number, path) in network.scenario.paths.iter().enumerate() {
        for (end, host) in path.between.iter().enumerate() {
            let Some(host) = network.hosts.get(*host) else { continue };
            let variable = format!("TOWPATH_{}_{}", shout(&host.name), shout(&path.name));
            all.push((variable, address(number, end, Family::V4, 0).to_string()));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use towpath_measure::scenario::no_files;

    use super::*;

    #[test]
    fn a_host_with_our_own_stack_is_refused_and_another_warned_of() {
        let text = "name = \"t\"\n[hosts.near]\n[hosts.far]\nstack = \"towpath\"\n[paths.p]\n\
                    between = [\"near\", \"far\"]\nrate = \"1 Mbit/s\"\ndelay = \"1 ms\"\n";
        let scenario = Scenario::parse("t.toml", text, &no_files).unwrap();
        assert!(check_stack(&scenario, 0).is_ok());
        let refused = check_stack(&scenario, 1).unwrap_err().to_string();
        assert!(refused.contains("host `far` has towpath's own stack"), "{refused}");
        assert!(matches!(check_stack(&scenario, 2), Err(LabError::Host)));
        assert!(deaf_hosts(&scenario)[0].contains("`far`"));
    }
}
