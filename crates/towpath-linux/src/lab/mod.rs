//! `towpath lab`: any programs in a scenario's network.

mod activity;
mod outcome;
mod output;
mod programs;
mod ready;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use thiserror::Error;
use towpath_measure::result::Record;
use towpath_measure::scenario::{Family, Flow, Host, Pattern, Scenario, Transport};

use crate::clock::Clock;
use crate::namespace::Namespace;
use crate::network::address::address;
use crate::network::{self, Backend, EmulatedNetwork, NetworkError, end_of};
use crate::program::environment;
use crate::run::{PcapOptions, RunError, RunJob};
use crate::run_clock::RunClock;
use crate::sandbox::{self, EmulatorThread};
use crate::stack::plan;
use crate::traffic::TrafficContext;
use crate::{interrupt, program, run};

pub(crate) use programs::LabPrograms;

/// Maximum duration of a lab, which lasts as long as its last program.
const MAX_LAB_DURATION: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Programs of a lab and their network.
#[derive(Debug, Clone)]
pub struct LabJob {
    /// Scenario that defines the network and its timeline.
    pub scenario: Arc<Scenario>,
    /// Programs, in the order of their start; if empty, a shell on the first host.
    pub programs: Vec<Program>,
    /// Back-end of the emulator; with `None`, the best that works.
    pub backend: Option<Backend>,
    /// Options of the packet capture; `None` for no capture.
    pub pcap: Option<PcapOptions>,
}

/// Program of a lab, and its host.
#[derive(Debug, Clone)]
pub struct Program {
    /// Index of the host in whose namespace it runs.
    pub host: usize,
    /// Program and arguments; the user's shell when empty.
    pub command: Vec<OsString>,
}

/// Hosts that `client` and `server` refer to if no host has that name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roles {
    /// Index of the host that opens connections.
    pub client: usize,
    /// Index of the host that accepts them.
    pub server: usize,
}

impl Roles {
    /// Returns the hosts of the first flow, otherwise those of the first path.
    pub fn of(scenario: &Scenario) -> Self {
        let flow = scenario.flows.first().map(|flow| [flow.from, flow.to]);
        let path = || scenario.paths.first().map(|path| path.between);
        let [client, server] = flow.or_else(path).unwrap_or([0, 1]);
        Self { client, server }
    }

    /// Returns the index of the host with this name or in this role.
    pub fn find(self, scenario: &Scenario, name: &str) -> Option<usize> {
        let named = scenario.hosts.iter().position(|host| host.name == name);
        named.or(match name {
            "client" => Some(self.client),
            "server" => Some(self.server),
            _ => None,
        })
    }
}

impl Program {
    fn argv(&self) -> (OsString, &[OsString]) {
        let shell = || std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
        match self.command.split_first() {
            Some((name, arguments)) => (name.clone(), arguments),
            None => (shell(), &[]),
        }
    }

    /// Returns the command line as it was typed.
    fn command_line(&self) -> String {
        let words: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
        match words.as_slice() {
            [] => "the shell".to_owned(),
            [sh, c, command] if sh == "sh" && c == "-c" => command.to_string(),
            words => words.join(" "),
        }
    }

    fn io_error(&self) -> impl Fn(io::Error) -> LabError + use<> {
        let program = self.argv().0.to_string_lossy().into_owned();
        move |source| LabError::Program { program: program.clone(), source }
    }
}

/// Message of a lab before or after its programs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabMessage<'a> {
    /// Description of the network, several lines.
    Map(&'a str),
    /// Progress note, one line.
    Note(&'a str),
    /// Problem that can invalidate the program's results.
    Warning(&'a str),
    /// Remedy for the previous message.
    Hint(&'a str),
}

/// Reason why the program did not run.
#[derive(Debug, Error)]
pub enum LabError {
    /// The network could not be created.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The program could not be started.
    #[error("cannot run `{program}`: {source}")]
    Program {
        /// Name of the program.
        program: String,
        /// Error of the system call.
        source: io::Error,
    },
    /// No program can use the host's stack.
    #[error(
        "host `{0}` has towpath's own stack, which programs cannot use; write `stack = \"kernel\"` \
         for it, or choose another host"
    )]
    OwnStack(String),
    /// The result could not be recorded.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The process is not in a lab, or cannot enter other hosts.
    #[error("this is not in a lab, or towpath may not enter its hosts")]
    NoLab,
    /// The lab has no host of that name.
    #[error("the lab has no host `{name}`")]
    UnknownHost {
        /// Name that was requested.
        name: String,
        /// Names of the lab's hosts.
        known: Vec<String>,
    },
    /// The host's namespace cannot be entered.
    #[error("cannot enter host `{name}`: {source}")]
    Enter {
        /// Name of the host.
        name: String,
        /// Error of the system call.
        source: io::Error,
    },
    /// The scenario has no host.
    #[error("the scenario has no such host")]
    Host,
}

impl LabError {
    /// Returns a hint about a remedy, if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoLab | Self::Enter { .. } => Some(
                "open one: `towpath lab two-links`; or `towpath lab … --on HOST COMMAND`".into(),
            ),
            Self::UnknownHost { known, .. } => Some(format!("its hosts are: {}", known.join(", "))),
            Self::Network(_)
            | Self::Program { .. }
            | Self::OwnStack(_)
            | Self::Run(_)
            | Self::Host => None,
        }
    }
}

/// Runs a program on another host of this process's lab; an empty `command` means a shell.
pub fn run_on_host(host: &str, command: &[OsString]) -> Result<ExitStatus, LabError> {
    let namespaces = std::env::var(program::LAB_ENV).map_err(|_| LabError::NoLab)?;
    let places: Vec<_> = namespaces.split(' ').filter_map(|place| place.split_once('=')).collect();
    let place = places.iter().find(|(name, _)| *name == host);
    let Some((name, place)) = place else {
        let known = places.iter().map(|(name, _)| (*name).to_owned()).collect();
        return Err(LabError::UnknownHost { name: host.to_owned(), known });
    };
    let enter = |source| LabError::Enter { name: (*name).to_owned(), source };
    let namespace = Namespace::open(place.as_ref()).map_err(enter)?;
    let own = Program { host: 0, command: command.to_vec() };
    let (words, arguments) = own.argv();
    let mut command = Command::new(words);
    command.args(arguments).env("TOWPATH_HOST", host);
    // For the child, this host is the other one: it gets this host's address as `TOWPATH_TO`.
    let here = std::env::var("TOWPATH_HOST").unwrap_or_default();
    let other = std::env::var(format!("TOWPATH_{}", program::env_name(&here)));
    command.env("TOWPATH_TO", other.unwrap_or_default());
    interrupt::ignore();
    let mut child = program::start(&namespace, &mut command).map_err(|source| {
        // EPERM comes from the namespace; other errors come from the program.
        match source.raw_os_error() {
            Some(libc::EPERM) => LabError::Enter { name: host.to_owned(), source },
            _ => own.io_error()(source),
        }
    })?;
    sandbox::wait(&mut child).map_err(own.io_error())
}

/// Receiver of the records of a lab.
pub type RecordWriter<'a> = &'a mut dyn FnMut(&Record) -> io::Result<()>;

/// Creates the network, describes it by `say`, runs the programs and waits for the last one.
///
/// With a command, the timeline starts with the last program; a shell gets an unchanging network.
/// Records of connections and links go to `write`, if given.
pub fn run_lab(
    lab: &LabJob,
    thread: EmulatorThread,
    emit: &mut dyn FnMut(LabMessage<'_>),
    write: Option<RecordWriter<'_>>,
) -> Result<ExitStatus, LabError> {
    let roles = Roles::of(&lab.scenario);
    let mut lab = lab.clone();
    if lab.programs.is_empty() {
        lab.programs.push(Program { host: 0, command: Vec::new() });
    }
    for program in &lab.programs {
        check_stack(&lab.scenario, program.host)?;
    }
    match lab.programs.as_slice() {
        // Ctrl-C belongs to the program; the lab cleans up after its exit.
        [_] => interrupt::ignore(),
        _ => interrupt::catch(),
    }
    let clock = Clock::start();
    let seed = lab.scenario.run.seed;
    let mut network = network::build(thread, &lab.scenario, clock, seed, lab.backend)?;
    announce(&lab, roles, &network, emit);
    if write.is_none() && lab.pcap.is_none() && lab.programs.len() == 1 {
        return run_single(&lab, roles, network, emit);
    }
    network.scenario = Arc::new(lab_scenario(&lab, roles));
    let more = program::lab_variables(&network);
    let shell = lab.programs.last().is_some_and(|program| program.command.is_empty());
    let lab_programs = Arc::new(LabPrograms::new(lab.programs, &network.scenario, roles, more));
    if let Some(status) = lab_programs.start_others(&network, emit)? {
        return Ok(status);
    }
    if shell {
        // Ctrl-C at the prompt belongs to the shell.
        interrupt::ignore();
    }
    let job = RunJob {
        scenario: Arc::clone(&network.scenario),
        transport: Transport::Tcp,
        repeat: 1,
        backend: lab.backend,
        order: None,
        pcap: lab.pcap,
    };
    let mut nobody = |_: &Record| Ok(());
    let write = write.unwrap_or(&mut nobody);
    run::run_in_network(&job, network, Some(Arc::clone(&lab_programs)), write)?;
    lab_programs.report_outcome(emit)
}

/// Returns the scenario with the lab's last program as its only flow.
fn lab_scenario(lab: &LabJob, roles: Roles) -> Scenario {
    let Roles { client, server } = roles;
    let mut scenario = Scenario::clone(&lab.scenario);
    let shell = lab.programs.last().is_some_and(|program| program.command.is_empty());
    if shell {
        scenario.timeline.clear();
    }
    let joins = |path: &towpath_measure::scenario::Path| {
        [[client, server], [server, client]].contains(&path.between)
    };
    let commands: Vec<_> = lab.programs.iter().map(Program::command_line).collect();
    scenario.flows = vec![Flow {
        from: client,
        to: server,
        pattern: Pattern::Run { command: commands.join("; "), duration: MAX_LAB_DURATION },
        via: scenario.paths.iter().position(joins).unwrap_or_default(),
        start: Duration::ZERO,
        family: scenario.flows.first().map_or(Family::V4, |flow| flow.family),
        transport: None,
    }];
    if !scenario.run.names_congestion_control {
        // The programs did not request one.
        scenario.run.congestion_control.clear();
    }
    // Expectations refer to the scenario's own traffic.
    scenario.expect.clear();
    scenario
}

/// Runs a single program without records.
fn run_single(
    lab: &LabJob,
    roles: Roles,
    network: EmulatedNetwork,
    emit: &mut dyn FnMut(LabMessage<'_>),
) -> Result<ExitStatus, LabError> {
    let own = lab.programs.first().ok_or(LabError::Host)?;
    let space = network.hosts.get(own.host).ok_or(LabError::Host)?;
    let (name, arguments) = own.argv();
    let mut command = Command::new(name);
    command.args(arguments).envs(environment(&network.scenario, own.host, roles));
    command.envs(program::lab_variables(&network));
    let mut child = program::start(&space.namespace, &mut command).map_err(own.io_error())?;
    if own.command.is_empty() {
        return sandbox::wait(&mut child).map_err(own.io_error());
    }
    let network = Arc::new(network);
    let stage = TrafficContext {
        pace: RunClock::new(network.clock, network.clock.now()),
        network: Arc::clone(&network),
        transport: Transport::Tcp,
        streams: Mutex::default(),
        udp_bytes: Mutex::default(),
        meters: crate::cpu_time::CpuMeters::default(),
        lab_programs: None,
    };
    network.schedule_link_changes(stage.pace.zero());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (told, _receiver) = std::sync::mpsc::channel();
        let (stage, done) = (&stage, &done);
        let timeline = scope.spawn(move || run::play_timeline(stage, &told, done));
        let status = sandbox::wait(&mut child).map_err(own.io_error());
        done.store(true, Ordering::Release);
        for warning in timeline.join().unwrap_or_default() {
            emit(LabMessage::Warning(&warning));
        }
        status
    })
}

/// Announces the network and its differences from the scenario.
fn announce(
    lab: &LabJob,
    roles: Roles,
    network: &EmulatedNetwork,
    emit: &mut dyn FnMut(LabMessage<'_>),
) {
    let here = match lab.programs.as_slice() {
        [only] => Some(only.host),
        _ => None,
    };
    emit(LabMessage::Map(&describe_network(network, here, roles)));
    let scenario = &lab.scenario;
    let mut hosts: Vec<_> = lab.programs.iter().map(|program| program.host).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let mut told = Vec::new();
    for host in hosts {
        let named = |host: &&Host| scenario.names_congestion_control_of(host);
        let wanted = scenario.hosts.get(host).filter(named);
        let wanted = wanted.map(|host| scenario.congestion_control_of(host));
        let used = network.hosts.get(host).map(|host| host.namespace.run(congestion_control));
        if let (Some(wanted), Some(Ok(used))) = (wanted, used)
            && wanted != used
        {
            let text = format!(
                "programs that do not ask for a congestion control use `{used}`, not `{wanted}`: \
                 an administrator allows only some (net.ipv4.tcp_allowed_congestion_control)"
            );
            if !told.contains(&text) {
                emit(LabMessage::Warning(&text));
                told.push(text);
            }
        }
    }
    for warning in without_user_namespace()
        .iter()
        .chain(&hosts_without_kernel_stack(scenario))
        .chain(&network.warnings)
    {
        emit(LabMessage::Warning(warning));
    }
    let shell = lab.programs.last().is_some_and(|program| program.command.is_empty());
    let others = scenario.hosts.iter().enumerate().filter(|(index, _)| Some(*index) != here);
    let names: Vec<_> = others.map(|(_, host)| host.name.as_str()).collect();
    if let (true, Some(first)) = (shell && !sandbox::is_real_root(), names.first()) {
        emit(LabMessage::Note(&format!(
            "on another host: `towpath on {first} COMMAND`; addresses: `env | grep TOWPATH_`"
        )));
    }
}

/// Rejects a host whose namespace is empty because it uses our own stack.
fn check_stack(scenario: &Scenario, host: usize) -> Result<(), LabError> {
    let name = &scenario.hosts.get(host).ok_or(LabError::Host)?.name;
    if plan::is_own(scenario, host) { Err(LabError::OwnStack(name.clone())) } else { Ok(()) }
}

/// Returns a warning if the kernel provides no user namespaces.
fn without_user_namespace() -> Option<String> {
    sandbox::is_real_root().then(|| {
        "there are no user namespaces here: the program is root of this machine, with the \
         capabilities alone that a network and files take"
            .to_owned()
    })
}

/// Returns a warning for each other host with our own stack: no kernel there replies to programs.
fn hosts_without_kernel_stack(scenario: &Scenario) -> Vec<String> {
    let program =
        scenario.hosts.iter().enumerate().filter(|(index, _)| plan::is_own(scenario, *index));
    let text = "has towpath's own stack, in which nothing listens here";
    program.map(|(_, host)| format!("host `{}` {text}", host.name)).collect()
}

/// Returns the default congestion control of the calling thread's namespace.
fn congestion_control() -> String {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    text.unwrap_or_default().trim().to_owned()
}

/// Returns one line for each interface; marks the host of a single program.
fn describe_network(network: &EmulatedNetwork, here: Option<usize>, roles: Roles) -> String {
    let mut text = String::new();
    let families = EmulatedNetwork::families(&network.scenario);
    for (index, host) in network.hosts.iter().enumerate() {
        let role = |role: &'static str, of: usize| {
            (of == index && host.name != role).then(|| role.to_owned())
        };
        let marks = [
            role("client", roles.client),
            role("server", roles.server),
            (Some(index) == here).then(|| "you are here".to_owned()),
        ];
        let marks: Vec<_> = marks.into_iter().flatten().collect();
        let mark =
            if marks.is_empty() { String::new() } else { format!(" ({})", marks.join("; ")) };
        let _ = writeln!(text, "{}{mark}", host.name);
        for (number, path) in network.scenario.paths.iter().enumerate() {
            let Some(end) = end_of(path, index) else { continue };
            let other = path.between.iter().find(|other| **other != index);
            let other = other.and_then(|other| network.hosts.get(*other));
            let program = |family| {
                let configured = families.contains(&family);
                let text = || address(number, end, family, 0).to_string();
                if configured { text() } else { "-".to_owned() }
            };
            let _ = writeln!(
                text,
                "  {:<12} {:<15} {:<22} to {}",
                path.name,
                program(Family::V4),
                program(Family::V6),
                other.map_or("?", |other| other.name.as_str()),
            );
        }
    }
    text.pop();
    text
}

#[cfg(test)]
mod tests {
    use towpath_measure::scenario::no_files;

    use super::*;

    #[test]
    fn a_host_with_our_stack_is_refused_and_a_peer_with_it_warned() {
        let text = "name = \"t\"\n[hosts.near]\n[hosts.far]\nstack = \"towpath\"\n[paths.p]\n\
                    between = [\"near\", \"far\"]\nrate = \"1 Mbit/s\"\ndelay = \"1 ms\"\n";
        let scenario = Scenario::parse("t.toml", text, &no_files).unwrap();
        assert!(check_stack(&scenario, 0).is_ok());
        let refused = check_stack(&scenario, 1).unwrap_err().to_string();
        assert!(refused.contains("host `far` has towpath's own stack"), "{refused}");
        assert!(matches!(check_stack(&scenario, 2), Err(LabError::Host)));
        assert!(hosts_without_kernel_stack(&scenario)[0].contains("`far`"));
    }
}
