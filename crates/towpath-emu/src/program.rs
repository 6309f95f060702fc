//! Programs in a host's namespace: flows with `run = "…"`, and `towpath lab`.

use std::env;
use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use towpath_net::Instant;
use towpath_os::filter;
use towpath_os::namespace::Namespace;
use towpath_os::sys::seccomp;
use towpath_os::{sandbox, sys};
use towpath_scenario::network::families as network_families;
use towpath_scenario::{Family, Flow, Scenario};

use crate::lab::Roles;
use crate::network::{EmulatedNetwork, HostNamespace, address, end_of};
use crate::traffic::{FlowOutcome, TrafficContext};

/// Interval at which a program is polled for its end.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Environment variable with the locations of a lab's namespaces.
pub(crate) const LAB_ENV: &str = "TOWPATH_LAB";

/// Returns the environment of a program on host `own_host`: the host's name, and all addresses.
///
/// docs/explanation/emulator.md has the table.
pub(crate) fn environment(
    scenario: &Scenario,
    own_host: usize,
    roles: Roles,
) -> Vec<(String, String)> {
    let family = match network_families(scenario).as_slice() {
        [Family::V6] => Family::V6,
        _ => Family::V4,
    };
    let mut variables = Vec::new();
    let mut add = |name: &str, value: String| {
        let name = format!("TOWPATH_{name}");
        if !variables.iter().any(|(existing, _)| *existing == name) {
            variables.push((name, value));
        }
    };
    let address_on = |host: usize, path: usize| {
        let end = end_of(scenario.paths.get(path)?, host)?;
        Some(address::address(path, end, family, 0).to_string())
    };
    // Prefers the first path between both hosts; a third host has the address of its first path.
    let preferred_address = |host: usize| {
        let all_paths = 0..scenario.paths.len();
        let shared = |path: &usize| {
            host != own_host
                && scenario.paths.get(*path).is_some_and(|p| p.between.contains(&own_host))
        };
        let paths = all_paths.filter(|path| address_on(host, *path).is_some());
        let mut paths: Vec<_> = paths.collect();
        paths.sort_by_key(|path| !shared(path));
        address_on(host, *paths.first()?)
    };
    if let Some(host) = scenario.hosts.get(own_host) {
        add("HOST", host.name.clone());
    }
    for (host_index, host) in scenario.hosts.iter().enumerate() {
        if let Some(address) = preferred_address(host_index) {
            add(&env_name(&host.name), address);
        }
        for (path_index, path) in scenario.paths.iter().enumerate() {
            if let Some(address) = address_on(host_index, path_index) {
                add(&format!("{}_{}", env_name(&host.name), env_name(&path.name)), address);
            }
        }
    }
    let peer = if own_host == roles.client { roles.server } else { roles.client };
    for (name, host) in [("CLIENT", roles.client), ("SERVER", roles.server), ("TO", peer)] {
        if let Some(address) = preferred_address(host) {
            add(name, address);
        }
    }
    variables
}

/// Converts a name for use in a variable's name.
pub(crate) fn env_name(name: &str) -> String {
    name.to_uppercase().replace('-', "_")
}

/// Returns variables with the namespaces of a lab's hosts, for `towpath on`.
///
/// `PATH` is included if a shell would not find towpath.
pub(crate) fn lab_variables(network: &EmulatedNetwork) -> Vec<(String, String)> {
    let own_pid = fs::read_link("/proc/self").unwrap_or_default();
    let location = |host: &HostNamespace| {
        let fd = host.namespace.as_fd().as_raw_fd();
        format!("{}=/proc/{}/fd/{fd}", host.name, own_pid.display())
    };
    let kernels = network.hosts.iter().filter(|host| host.stack.is_none());
    let locations: Vec<_> = kernels.map(location).collect();
    // Root of the machine may not enter other namespaces from a lab.
    let may_enter = !sandbox::is_real_root();
    let mut variables: Vec<_> =
        may_enter.then(|| (LAB_ENV.to_owned(), locations.join(" "))).into_iter().collect();
    variables.extend(search_path().map(|path| ("PATH".to_owned(), path)));
    variables
}

/// Returns the search path with this program's folder appended; `None` if it leads to a towpath.
fn search_path() -> Option<String> {
    let path = env::var_os("PATH")?;
    let program = env::current_exe().ok()?;
    let name = program.file_name()?;
    let mut folders: Vec<_> = env::split_paths(&path).collect();
    if folders.iter().any(|folder| folder.join(name).is_file()) {
        return None;
    }
    folders.push(program.parent()?.to_owned());
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
                "warning: the program runs as root of this machine, not only of its own namespaces: {error}"
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
    context: &TrafficContext,
    flow: &Flow,
    command: &str,
    limit: Duration,
) -> FlowOutcome {
    context.run_clock.sleep_until(Instant::ZERO + flow.start);
    let deadline = Instant::ZERO + flow.start + limit;
    FlowOutcome {
        failure: run_shell(context, flow, command, deadline).err(),
        ..FlowOutcome::default()
    }
}

fn run_shell(
    context: &TrafficContext,
    flow: &Flow,
    command: &str,
    deadline: Instant,
) -> Result<(), String> {
    let host = context.network.hosts.get(flow.from).ok_or("unknown host")?;
    let scenario = &context.network.scenario;
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
        .env("TOWPATH_TRANSPORT", context.transport.to_string())
        .stdin(Stdio::null())
        // Standard output is reserved for the records.
        .stdout(io::stderr());
    let run_error = |error: io::Error| format!("cannot run `{command}`: {error}");
    let mut child = start(&host.namespace, &mut shell).map_err(run_error)?;
    loop {
        if let Some(status) = child.try_wait().map_err(run_error)? {
            return if status.success() {
                Ok(())
            } else {
                Err(format!("`{command}` ended with {status}"))
            };
        }
        if context.run_clock.is_over(deadline) {
            let _ = child.kill(); // it may have exited
            sandbox::wait(&mut child).map_err(run_error)?;
            return Ok(());
        }
        thread::sleep(POLL_INTERVAL);
    }
}
