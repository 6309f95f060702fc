//! Programs in a host's namespace: flows with `run = "…"`, and `towpath lab`.

use std::io::{self, Write as _};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use towpath_measure::scenario::Flow;
use towpath_net::Instant;

use crate::namespace::Namespace;
use crate::network::{address, end_of};
use crate::traffic::{Outcome, Stage};
use crate::{sandbox, sys};

/// How often a program is asked whether it has ended.
const PATIENCE: Duration = Duration::from_millis(20);

/// Starts `command` in `namespace`; a child belongs to the namespace of the thread that makes it.
pub(crate) fn start(namespace: &Namespace, command: &mut Command) -> io::Result<Child> {
    namespace.run(|| {
        // `/sys/class/net` shows the namespace in which it was mounted. Refused where a container
        // masks parts of /sys; the program then sees the host's.
        let _refused = sys::unshare(libc::CLONE_NEWNS).and_then(|()| sys::mount_sys());
        if let Err(error) = sandbox::limit_program(command) {
            let _nobody_reads = writeln!(
                io::stderr(),
                "warning: the program is root of this machine, not of its own namespaces alone: {error}"
            );
        }
        command.spawn()
    })?
}

/// Runs a flow's command until it ends or its time is over. It finds the other host's address in
/// `TOWPATH_TO`.
pub(crate) fn run_flow(stage: &Stage, flow: &Flow, command: &str, limit: Duration) -> Outcome {
    stage.pace.sleep_until(Instant::ZERO + flow.start);
    let deadline = Instant::ZERO + flow.start + limit;
    Outcome { failure: shell(stage, flow, command, deadline).err(), ..Outcome::default() }
}

fn shell(stage: &Stage, flow: &Flow, command: &str, deadline: Instant) -> Result<(), String> {
    let space = stage.network.hosts.get(flow.from).ok_or("unknown host")?;
    let path = stage.network.scenario.paths.get(flow.via);
    let target = path
        .and_then(|path| end_of(path, flow.to))
        .map(|end| address::address(flow.via, end, flow.family, 0).to_string());
    let mut shell = Command::new("sh");
    shell
        .args(["-c", command])
        .env("TOWPATH_TO", target.unwrap_or_default())
        .stdin(Stdio::null())
        // Standard output carries the records.
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
            let _already_gone = child.kill();
            sandbox::wait(&mut child).map_err(failed)?;
            return Ok(());
        }
        thread::sleep(PATIENCE);
    }
}
