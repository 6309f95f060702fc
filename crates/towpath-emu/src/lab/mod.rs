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
use towpath_os::clock::Clock;
use towpath_os::interrupt;
use towpath_os::namespace::Namespace;
use towpath_os::sandbox;
use towpath_os::sandbox::EmulatorThread;
use towpath_result::Record;
use towpath_scenario::{Family, Flow, Host, Pattern, Scenario, Transport};
use towpath_sockets::run_clock::RunClock;

use crate::network;
use crate::network::address::address;
use crate::network::stack_plan as plan;
use crate::network::{Backend, EmulatedNetwork, NetworkError, end_of};
use crate::program::environment;
use crate::run::{PcapOptions, RunError, RunJob};
use crate::traffic::TrafficContext;
use crate::{program, run};

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
        "host `{0}` has towpath's own stack, which programs cannot use; set `stack = \"kernel\"` for it, or choose another host"
    )]
    OwnStack(String),
    /// The result could not be recorded.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The process is not in a lab, or cannot enter other hosts.
    #[error("this shell is not in a lab, or towpath has no permission to enter its hosts")]
    NoLab,
    /// The lab has no host of that name.
    #[error("the lab has no host `{name}`")]
    UnknownHost {
        /// Name that was requested.
        name: String,
        /// Names of the lab's hosts.
        hosts: Vec<String>,
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
                "open a lab: `towpath lab two-links`, or `towpath lab … --on HOST COMMAND`".into(),
            ),
            Self::UnknownHost { hosts, .. } => Some(format!("its hosts are: {}", hosts.join(", "))),
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
    let hosts: Vec<_> = namespaces.split(' ').filter_map(|entry| entry.split_once('=')).collect();
    let entry = hosts.iter().find(|(name, _)| *name == host);
    let Some((name, netns_path)) = entry else {
        let hosts = hosts.iter().map(|(name, _)| (*name).to_owned()).collect();
        return Err(LabError::UnknownHost { name: host.to_owned(), hosts });
    };
    let enter_error = |source| LabError::Enter { name: (*name).to_owned(), source };
    let namespace = Namespace::open(netns_path.as_ref()).map_err(enter_error)?;
    let requested = Program { host: 0, command: command.to_vec() };
    let (executable, arguments) = requested.argv();
    let mut command = Command::new(executable);
    command.args(arguments).env("TOWPATH_HOST", host);
    // This host is the peer of the child, so `TOWPATH_TO` is this host's address.
    let this_host = std::env::var("TOWPATH_HOST").unwrap_or_default();
    let this_address = std::env::var(format!("TOWPATH_{}", program::env_name(&this_host)));
    command.env("TOWPATH_TO", this_address.unwrap_or_default());
    interrupt::ignore();
    let mut child = program::start(&namespace, &mut command).map_err(|source| {
        // EPERM comes from the namespace; other errors come from the program.
        match source.raw_os_error() {
            Some(libc::EPERM) => LabError::Enter { name: host.to_owned(), source },
            _ => requested.io_error()(source),
        }
    })?;
    sandbox::wait(&mut child).map_err(requested.io_error())
}

/// Receiver of the records of a lab.
pub type RecordWriter<'a> = &'a mut dyn FnMut(&Record) -> io::Result<()>;

/// Creates the network, describes it through `emit`, runs the programs and waits for the last one.
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
    let lab_env = program::lab_variables(&network);
    let is_shell = lab.programs.last().is_some_and(|program| program.command.is_empty());
    let lab_programs = Arc::new(LabPrograms::new(lab.programs, &network.scenario, roles, lab_env));
    if let Some(status) = lab_programs.start_others(&network, emit)? {
        return Ok(status);
    }
    if is_shell {
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
    let mut discard = |_: &Record| Ok(());
    let write = write.unwrap_or(&mut discard);
    run::run_in_network(&job, network, Some(Arc::clone(&lab_programs)), write)?;
    lab_programs.report_outcome(emit)
}

/// Returns the scenario with the lab's last program as its only flow.
fn lab_scenario(lab: &LabJob, roles: Roles) -> Scenario {
    let Roles { client, server } = roles;
    let mut scenario = Scenario::clone(&lab.scenario);
    let is_shell = lab.programs.last().is_some_and(|program| program.command.is_empty());
    if is_shell {
        scenario.timeline.clear();
    }
    let connects_roles = |path: &towpath_scenario::Path| {
        [[client, server], [server, client]].contains(&path.between)
    };
    let commands: Vec<_> = lab.programs.iter().map(Program::command_line).collect();
    scenario.flows = vec![Flow {
        from: client,
        to: server,
        pattern: Pattern::Run { command: commands.join("; "), duration: MAX_LAB_DURATION },
        via: scenario.paths.iter().position(connects_roles).unwrap_or_default(),
        start: Duration::ZERO,
        family: scenario.flows.first().map_or(Family::V4, |flow| flow.family),
        transport: None,
    }];
    if !scenario.run.names_congestion_control {
        // The scenario names none, so programs keep the kernel's default.
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
    let program = lab.programs.first().ok_or(LabError::Host)?;
    let host = network.hosts.get(program.host).ok_or(LabError::Host)?;
    let (name, arguments) = program.argv();
    let mut command = Command::new(name);
    command.args(arguments).envs(environment(&network.scenario, program.host, roles));
    command.envs(program::lab_variables(&network));
    let mut child = program::start(&host.namespace, &mut command).map_err(program.io_error())?;
    if program.command.is_empty() {
        return sandbox::wait(&mut child).map_err(program.io_error());
    }
    let network = Arc::new(network);
    let context = TrafficContext {
        run_clock: RunClock::new(network.clock, network.clock.now()),
        network: Arc::clone(&network),
        transport: Transport::Tcp,
        streams: Mutex::default(),
        udp_bytes: Mutex::default(),
        meters: crate::cpu_time::CpuMeters::default(),
        lab_programs: None,
    };
    network.schedule_link_changes(context.run_clock.start_time());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (records, _receiver) = std::sync::mpsc::channel();
        let (context, done) = (&context, &done);
        let timeline = scope.spawn(move || run::play_timeline(context, &records, done));
        let status = sandbox::wait(&mut child).map_err(program.io_error());
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
    let single_host = match lab.programs.as_slice() {
        [program] => Some(program.host),
        _ => None,
    };
    emit(LabMessage::Map(&describe_network(network, single_host, roles)));
    let scenario = &lab.scenario;
    let mut hosts: Vec<_> = lab.programs.iter().map(|program| program.host).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let mut emitted = Vec::new();
    for host in hosts {
        let names_its_own = |host: &&Host| scenario.names_congestion_control_of(host);
        let requested = scenario.hosts.get(host).filter(names_its_own);
        let requested = requested.map(|host| scenario.congestion_control_of(host));
        let actual = network.hosts.get(host).map(|host| host.namespace.run(congestion_control));
        if let (Some(requested), Some(Ok(actual))) = (requested, actual)
            && requested != actual
        {
            let text = format!(
                "programs that do not select a congestion control use `{actual}`, not `{requested}`: ordinary users may select only those in net.ipv4.tcp_allowed_congestion_control"
            );
            if !emitted.contains(&text) {
                emit(LabMessage::Warning(&text));
                emitted.push(text);
            }
        }
    }
    for warning in user_namespace_warning()
        .iter()
        .chain(&own_stack_warnings(scenario))
        .chain(&network.warnings)
    {
        emit(LabMessage::Warning(warning));
    }
    let is_shell = lab.programs.last().is_some_and(|program| program.command.is_empty());
    let others = scenario.hosts.iter().enumerate().filter(|(index, _)| Some(*index) != single_host);
    let names: Vec<_> = others.map(|(_, host)| host.name.as_str()).collect();
    if let (true, Some(other_host)) = (is_shell && !sandbox::is_real_root(), names.first()) {
        emit(LabMessage::Note(&format!(
            "on another host: `towpath on {other_host} COMMAND`; addresses: `env | grep TOWPATH_`"
        )));
    }
}

/// Rejects a host whose namespace is empty because it uses our own stack.
fn check_stack(scenario: &Scenario, host: usize) -> Result<(), LabError> {
    let name = &scenario.hosts.get(host).ok_or(LabError::Host)?.name;
    if plan::is_own(scenario, host) { Err(LabError::OwnStack(name.clone())) } else { Ok(()) }
}

/// Returns a warning if the kernel provides no user namespaces.
fn user_namespace_warning() -> Option<String> {
    sandbox::is_real_root().then(|| {
        "user namespaces are not available here: the program runs as root of this machine, with only the capabilities for network and files"
            .to_owned()
    })
}

/// Returns a warning for each other host with our own stack: no kernel there replies to programs.
fn own_stack_warnings(scenario: &Scenario) -> Vec<String> {
    let hosts =
        scenario.hosts.iter().enumerate().filter(|(index, _)| plan::is_own(scenario, *index));
    let text = "has towpath's own stack, in which nothing listens here";
    hosts.map(|(_, host)| format!("host `{}` {text}", host.name)).collect()
}

/// Returns the default congestion control of the calling thread's namespace.
fn congestion_control() -> String {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    text.unwrap_or_default().trim().to_owned()
}

/// Returns one line for each interface; marks the host of a single program.
fn describe_network(network: &EmulatedNetwork, single_host: Option<usize>, roles: Roles) -> String {
    let mut text = String::new();
    let families = EmulatedNetwork::families(&network.scenario);
    for (index, host) in network.hosts.iter().enumerate() {
        let role = |role: &'static str, host_index: usize| {
            (host_index == index && host.name != role).then(|| role.to_owned())
        };
        let marks = [
            role("client", roles.client),
            role("server", roles.server),
            (Some(index) == single_host).then(|| "you are here".to_owned()),
        ];
        let marks: Vec<_> = marks.into_iter().flatten().collect();
        let mark =
            if marks.is_empty() { String::new() } else { format!(" ({})", marks.join("; ")) };
        let _ = writeln!(text, "{}{mark}", host.name);
        for (path_index, path) in network.scenario.paths.iter().enumerate() {
            let Some(end) = end_of(path, index) else { continue };
            let peer = path.between.iter().find(|peer| **peer != index);
            let peer = peer.and_then(|peer| network.hosts.get(*peer));
            let address_text = |family| {
                let configured = families.contains(&family);
                let text = || address(path_index, end, family, 0).to_string();
                if configured { text() } else { "-".to_owned() }
            };
            let _ = writeln!(
                text,
                "  {:<12} {:<15} {:<22} to {}",
                path.name,
                address_text(Family::V4),
                address_text(Family::V6),
                peer.map_or("?", |peer| peer.name.as_str()),
            );
        }
    }
    text.pop();
    text
}

#[cfg(test)]
mod tests {
    use towpath_scenario::no_files;

    use super::*;

    #[test]
    fn programs_cannot_run_on_hosts_with_our_own_stack() {
        let text = "name = \"t\"\n[hosts.near]\n[hosts.far]\nstack = \"towpath\"\n[paths.p]\n\
                    between = [\"near\", \"far\"]\nrate = \"1 Mbit/s\"\ndelay = \"1 ms\"\n";
        let scenario = Scenario::parse("t.toml", text, &no_files).unwrap();
        assert!(check_stack(&scenario, 0).is_ok());
        let refused = check_stack(&scenario, 1).unwrap_err().to_string();
        assert!(refused.contains("host `far` has towpath's own stack"), "{refused}");
        assert!(matches!(check_stack(&scenario, 2), Err(LabError::Host)));
        assert!(own_stack_warnings(&scenario)[0].contains("`far`"));
    }
}
