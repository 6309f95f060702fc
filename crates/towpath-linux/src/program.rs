//! Programs in a host's namespace: flows with `run = "…"`, and `towpath lab`.

use std::env;
use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use towpath_measure::network::families as network_families;
use towpath_measure::scenario::{Family, Flow, Scenario};
use towpath_net::Instant;

use crate::exec::filter;
use crate::lab::Roles;
use crate::namespace::Namespace;
use crate::network::{EmulatedNetwork, HostNamespace, address, end_of};
use crate::sys::seccomp;
use crate::traffic::{FlowOutcome, TrafficContext};
use crate::{sandbox, sys};

/// Interval at which a program is polled for its end.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Environment variable with the locations of a lab's namespaces.
pub(crate) const LAB_ENV: &str = "TOWPATH_LAB";

/// Returns the environment of a program on host `here`: its host's name, and all addresses.
///
/// docs/emulator.md has the table.
pub(crate) fn environment(scenario: &Scenario, here: usize, roles: Roles) -> Vec<(String, String)> {
    let family = match network_families(scenario).as_slice() {
        [Family::V6] => Family::V6,
        _ => Family::V4,
    };
    let mut all = Vec::new();
    let mut set = |name: &str, value: String| {
        let name = format!("TOWPATH_{name}");
        if !all.iter().any(|(known, _)| *known == name) {
            all.push((name, value));
        }
    };
    let on = |host: usize, path: usize| {
        let end = end_of(scenario.paths.get(path)?, host)?;
        Some(address::address(path, end, family, 0).to_string())
    };
    // Prefers the first path between both hosts; a third host has the address of its first path.
    let best = |host: usize| {
        let paths = 0..scenario.paths.len();
        let shared = |path: &usize| {
            host != here && scenario.paths.get(*path).is_some_and(|p| p.between.contains(&here))
        };
        let own = paths.filter(|path| on(host, *path).is_some());
        let mut own: Vec<_> = own.collect();
        own.sort_by_key(|path| !shared(path));
        on(host, *own.first()?)
    };
    if let Some(host) = scenario.hosts.get(here) {
        set("HOST", host.name.clone());
    }
    for (index, host) in scenario.hosts.iter().enumerate() {
        if let Some(address) = best(index) {
            set(&env_name(&host.name), address);
        }
        for (number, path) in scenario.paths.iter().enumerate() {
            if let Some(address) = on(index, number) {
                set(&format!("{}_{}", env_name(&host.name), env_name(&path.name)), address);
            }
        }
    }
    let other = if here == roles.client { roles.server } else { roles.client };
    for (name, host) in [("CLIENT", roles.client), ("SERVER", roles.server), ("TO", other)] {
        if let Some(address) = best(host) {
            set(name, address);
        }
    }
    all
}

/// Converts a name for use in a variable's name.
pub(crate) fn env_name(name: &str) -> String {
    name.to_uppercase().replace('-', "_")
}

/// Returns variables with the namespaces of a lab's hosts, for `towpath on`.
///
/// `PATH` is added if a shell would not find towpath.
pub(crate) fn lab_variables(network: &EmulatedNetwork) -> Vec<(String, String)> {
    let own = fs::read_link("/proc/self").unwrap_or_default();
    let place = |host: &HostNamespace| {
        let fd = host.namespace.as_fd().as_raw_fd();
        format!("{}=/proc/{}/fd/{fd}", host.name, own.display())
    };
    let kernels = network.hosts.iter().filter(|host| host.stack.is_none());
    let places: Vec<_> = kernels.map(place).collect();
    // Root of the machine may not enter other namespaces from a lab.
    let may = !sandbox::is_real_root();
    let mut all: Vec<_> = may.then(|| (LAB_ENV.to_owned(), places.join(" "))).into_iter().collect();
    all.extend(search_path().map(|path| ("PATH".to_owned(), path)));
    all
}

/// Returns the search path with this program's folder appended; `None` if it leads to a towpath.
fn search_path() -> Option<String> {
    let path = env::var_os("PATH")?;
    let own = env::current_exe().ok()?;
    let name = own.file_name()?;
    let mut folders: Vec<_> = env::split_paths(&path).collect();
    if folders.iter().any(|folder| folder.join(name).is_file()) {
        return None;
    }
    folders.push(own.parent()?.to_owned());
    env::join_paths(folders).ok()?.into_string().ok()
}

/// Starts `command` in `namespace`, on a thread inside it: a child inherits its thread's namespace.
pub(crate) fn start(namespace: &Namespace, command: &mut Command) -> io::Result<Child> {
    namespace.run(|| {
        // `/sys/class/net` shows the namespace in which it was mounted. Refused where a container
        // masks parts of /sys; then the program sees the host's.
        let _ = sys::unshare(libc::CLONE_NEWNS).and_then(|()| sys::mount_sys());
        if let Err(error) = sandbox::limit_program(command) {
            // Stderr may be closed.
            let _ = writeln!(
                io::stderr(),
                "warning: the program is root of this machine, not of its own namespaces alone: {error}"
            );
        }
        if let Some(filter) = filter::fake_identity_syscalls().filter(|_| !sandbox::is_real_root()) {
            seccomp::limit_on_start(command, filter);
        }
        command.spawn()
    })?
}

/// Runs a flow's command until it ends or its time is over.
pub(crate) fn run_flow(
    stage: &TrafficContext,
    flow: &Flow,
    command: &str,
    limit: Duration,
) -> FlowOutcome {
    stage.pace.sleep_until(Instant::ZERO + flow.start);
    let deadline = Instant::ZERO + flow.start + limit;
    FlowOutcome { failure: shell(stage, flow, command, deadline).err(), ..FlowOutcome::default() }
}

fn shell(
    stage: &TrafficContext,
    flow: &Flow,
    command: &str,
    deadline: Instant,
) -> Result<(), String> {
    let space = stage.network.hosts.get(flow.from).ok_or("unknown host")?;
    let scenario = &stage.network.scenario;
    let path = scenario.paths.get(flow.via);
    let target = path
        .and_then(|path| end_of(path, flow.to))
        .map(|end| address::address(flow.via, end, flow.family, 0).to_string());
    let roles = Roles { client: flow.from, server: flow.to };
    let mut shell = Command::new("sh");
    shell
        .args(["-c", command])
        .envs(environment(scenario, flow.from, roles))
        .envs(search_path().map(|path| ("PATH", path)))
        .env("TOWPATH_TO", target.unwrap_or_default())
        .env("TOWPATH_TRANSPORT", stage.transport.to_string())
        .stdin(Stdio::null())
        // Standard output is reserved for the records.
        .stdout(io::stderr());
    let failed = |error: io::Error| format!("cannot run `{command}`: {error}");
    let mut child = start(&space.namespace, &mut shell).map_err(failed)?;
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return if status.success() {
                Ok(())
            } else {
                Err(format!("`{command}` ended with {status}"))
            };
        }
        if stage.pace.is_over(deadline) {
            let _ = child.kill(); // it may have exited
            sandbox::wait(&mut child).map_err(failed)?;
            return Ok(());
        }
        thread::sleep(POLL_INTERVAL);
    }
}
