//! One trial: a network, the probes in its hosts, and the measurements of both.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use towpath_emu::Backend;
use towpath_emu::run::RunJob;
use towpath_net::Rate;
use towpath_netlink::{Prefix, RouteSocket, Tbf, VethEnd};
use towpath_os::Namespace;
use towpath_os::sandbox;
use towpath_os::sandbox::EmulatorThread;
use towpath_result::{Link, Record};
use towpath_scenario::{DataDirection, Scenario, Transport, no_files};

use crate::Failure;
use crate::cases::{Case, Network, RATE_BPS, Traffic, User, WaitMethod};
use crate::figures::{Metrics, Usage};
use crate::probe::{self, PORT};

/// User and group of `nobody`.
const NOBODY: u32 = 65_534;
/// Addresses of the two hosts, the same for a plain veth pair and the emulator.
const NEAR: [u8; 4] = [10, 64, 0, 1];
const FAR: [u8; 4] = [10, 64, 0, 2];
/// Queue limit and bucket size of the kernel's `tbf`.
const TBF_LIMIT_BYTES: u32 = 625_000;
const TBF_BURST_BYTES: u32 = 15_000;
/// Time that the sending probe needs before and after the measurement of the rate.
const MARGIN: Duration = Duration::from_millis(1_500);

/// Runs the trial in processes of its own and gathers the measurements that they print.
pub(crate) fn run(case: &Case, length: Duration) -> Result<Metrics, Failure> {
    let initial_usage = Usage::now();
    let mut command = trial_command(case, length)?;
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let mut metrics = Metrics::default();
    for line in stderr.lines() {
        match line.strip_prefix("figure ").and_then(|rest| rest.split_once(' ')) {
            Some((name, value)) => metrics.set(name, value),
            None => writeln!(io::stderr(), "  {line}")?,
        }
    }
    if !output.status.success() {
        return Err(format!("the trial ended with {}", output.status).into());
    }
    metrics.add_usage(&Usage::now().since(&initial_usage));
    Ok(metrics)
}

fn trial_command(case: &Case, length: Duration) -> Result<Command, Failure> {
    let program = std::env::current_exe()?;
    let millis = length.as_millis().to_string();
    if let Network::Rattan { real_time } = case.network {
        let mut command = Command::new("sh");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/rattan.sh");
        let priority = if real_time { "real-time" } else { "ordinary" };
        command.arg(script).arg(program).arg(priority);
        command.args(probes(case, length).map(|words| words.join(" ")));
        return Ok(command);
    }
    let mut command = Command::new(program);
    command.args(["__trial", &case.name(), &millis]);
    let by_nobody = matches!(case.network, Network::Emulated { user: User::Nobody, .. });
    if by_nobody && nix::unistd::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    Ok(command)
}

/// Runs one process of a trial: `__trial` starts the sandbox, whose processes are `__outer` and
/// `__inner`.
pub(crate) fn run_stage(stage: &str, case: &Case, length: Duration) -> Result<ExitCode, Failure> {
    let case_arguments = [case.name(), length.as_millis().to_string()];
    let arguments_of = |stage: &str| -> Vec<OsString> {
        [stage.to_owned()].into_iter().chain(case_arguments.clone()).map(OsString::from).collect()
    };
    let status: ExitStatus = match stage {
        "__trial" => {
            let mut child =
                sandbox::spawn(&arguments_of("__outer"), Stdio::null(), io::stderr().into())?;
            sandbox::wait(&mut child)?
        }
        "__outer" => sandbox::outer(&arguments_of("__inner"))?,
        _ => {
            let thread = sandbox::inner()?;
            match case.network {
                Network::Emulated { backend, segments, .. } => {
                    run_emulated(case, backend, segments, thread, length)?;
                }
                Network::Bare { wait_method } => run_bare(case, wait_method, thread, length)?,
                Network::Veth | Network::Rattan { .. } => run_veth(case, length)?,
            }
            return Ok(ExitCode::SUCCESS);
        }
    };
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the arguments of the receiving and of the sending probe.
fn probes(case: &Case, length: Duration) -> [Vec<String>; 2] {
    let millis = |span: Duration| span.as_millis().to_string();
    let target = match case.network {
        // `rattan.sh` runs the probes in a shell that has the address in this variable.
        Network::Rattan { .. } => format!("$RATTAN_BASE:{PORT}"),
        Network::Veth | Network::Emulated { .. } | Network::Bare { .. } => {
            format!("10.64.0.2:{PORT}")
        }
    };
    let arguments: [Vec<String>; 2] = match case.traffic {
        Traffic::Tcp => {
            [vec!["tcp-receive".into()], vec!["tcp-send".into(), target, millis(length)]]
        }
        Traffic::Paced { per_second } => [
            vec!["udp-receive".into(), case.delay_millis().to_string()],
            vec!["udp-send".into(), target, per_second.to_string(), millis(length)],
        ],
        Traffic::Overload => [
            vec!["wire".into(), millis(length)],
            vec!["overload".into(), target, millis(length + MARGIN)],
        ],
    };
    arguments.map(|arguments| [vec!["__probe".to_owned()], arguments].concat())
}

/// Runs the emulated network as `towpath run` would.
fn run_emulated(
    case: &Case,
    backend: Backend,
    segments: &str,
    thread: EmulatorThread,
    length: Duration,
) -> Result<(), Failure> {
    let text = scenario(case, segments, length)?;
    let scenario = Arc::new(Scenario::parse("bench.toml", &text, &no_files)?);
    let job = RunJob {
        scenario,
        transport: Transport::Tcp,
        repeat: 1,
        backend: Some(backend),
        order: None,
        pcap: None,
    };
    let mut delivered: Vec<(f64, f64)> = Vec::new();
    towpath_emu::run::run(&job, thread, &mut |record| {
        match record {
            Record::Meta(meta) => {
                let priority = meta.conditions.get("emulator priority");
                print_metric("priority", priority.map_or("unknown", String::as_str));
            }
            Record::Link(link) if link.direction == DataDirection::Up => {
                delivered.push(wire_bytes(link));
            }
            Record::Timing(timing) => {
                print_metric("emulator_cpu", timing.emulator_cpu_s);
                let percent_of_trial = |seconds: f64| 100.0 * seconds / length.as_secs_f64();
                print_metric("emulator_cpu_percent", percent_of_trial(timing.emulator_cpu_s));
                print_metric(
                    "busy_poll_percent",
                    percent_of_trial(timing.waiting.map_or(0.0, |waiting| waiting.awake_s)),
                );
                print_metric("late_p50", timing.lateness_p50_ns as f64 / 1e3);
                print_metric("late_p99", timing.lateness_p99_ns as f64 / 1e3);
                print_metric("lost", timing.lost_packets);
            }
            Record::Summary(summary) => {
                for failure in summary.flows.iter().filter_map(|flow| flow.failure.as_ref()) {
                    let _ = writeln!(io::stderr(), "{failure}"); // stderr may be closed
                }
            }
            Record::Link(_)
            | Record::Interval(_)
            | Record::Subflow(_)
            | Record::Event(_)
            | Record::Message(_)
            | Record::Account(_)
            | Record::Probe(_)
            | Record::Datagrams(_)
            | Record::Capture(_)
            | Record::Sequence(_)
            | Record::Counter(_)
            | Record::Interface(_) => {}
        }
        Ok(())
    })?;
    if let Some(mbps) = steady_rate(&delivered, length) {
        print_metric("link_mbps", mbps);
    }
    Ok(())
}

/// Returns a scenario with one link, and the probes as its flows.
fn scenario(case: &Case, segments: &str, length: Duration) -> Result<String, Failure> {
    let program = std::env::current_exe()?;
    let [receiver, sender] = probes(case, length)
        .map(|words| format!("exec '{}' {}", program.display(), words.join(" ")));
    Ok(format!(
        r#"
name = "bench"
[hosts.near]
[hosts.far]
[paths.link]
between = ["near", "far"]
segmentation = "{segments}"
{link}
[[flows]]
from = "far"
to = "near"
run = "{receiver}"
[[flows]]
from = "near"
to = "far"
run = "{sender}"
[run]
sample = "100 ms"
"#,
        link = case.link()
    ))
}

fn print_metric(name: &str, value: impl std::fmt::Display) {
    // Stderr may be closed.
    let _ = io::stderr().write_all(format!("figure {name} {value}\n").as_bytes());
}

/// Returns the time in seconds, and the bytes that left the link with 14 bytes of Ethernet per
/// packet.
fn wire_bytes(link: &Link) -> (f64, f64) {
    (link.t_ns as f64 / 1e9, (link.delivered_bytes + 14 * link.delivered_packets) as f64)
}

/// Returns the rate in Mbit/s over `length`, from a second after the first delivery on.
fn steady_rate(delivered: &[(f64, f64)], length: Duration) -> Option<f64> {
    let (first_delivery, _) = delivered.iter().find(|(_, bytes)| *bytes > 10_000.0)?;
    let (window_start, window_end) =
        (first_delivery + 1.0, first_delivery + 1.0 + length.as_secs_f64());
    let mut window =
        delivered.iter().filter(|(time, _)| (window_start..=window_end).contains(time));
    let ((start, start_bytes), (end, end_bytes)) = (window.next()?, window.next_back()?);
    Some((end_bytes - start_bytes) * 8.0 / 1e6 / (end - start))
}

/// Measures how late a thread with the emulator's priority wakes, without an emulator.
fn run_bare(
    case: &Case,
    wait_method: WaitMethod,
    thread: EmulatorThread,
    length: Duration,
) -> Result<(), Failure> {
    let Traffic::Paced { per_second } = case.traffic else { return Err("no pace".into()) };
    let (delay_sender, delay_receiver) = mpsc::channel();
    thread.run(move || {
        let delays = probe::deadline_delays(per_second, wait_method == WaitMethod::Spin, length);
        let _ = delay_sender.send(delays); // the receiver may be gone
    });
    probe::print_percentiles(delay_receiver.recv()?)
}

/// Runs the probes in two namespaces with a veth pair between them and no emulator.
fn run_veth(case: &Case, length: Duration) -> Result<(), Failure> {
    let (near, far) = (Namespace::create()?, Namespace::create()?);
    let mut near_route = near.run(RouteSocket::open)??;
    let mut far_route = far.run(RouteSocket::open)??;
    let veth_end = |name, namespace| VethEnd { name, namespace, ..VethEnd::default() };
    near_route.add_veth(&veth_end("link", None), &veth_end("link", Some(far.as_fd())))?;
    for (route, address) in [(&mut near_route, NEAR), (&mut far_route, FAR)] {
        route.set_up("link")?;
        route.add_address("link", Prefix::new(address.into(), 24)?)?;
    }
    if case.traffic == Traffic::Overload {
        let rate = Rate::from_bps(RATE_BPS).ok_or("no rate")?;
        let (burst_bytes, limit_bytes) = (TBF_BURST_BYTES, TBF_LIMIT_BYTES);
        near_route.set_tbf("link", &Tbf { rate, burst_bytes, limit_bytes })?;
    }
    let start_probe = |namespace: &Namespace, words: &[String]| -> Result<_, Failure> {
        let program = std::env::current_exe()?;
        Ok(namespace.run(|| Command::new(program).args(words).spawn())??)
    };
    let [receiver, sender] = probes(case, length);
    let mut children = [start_probe(&far, &receiver)?, start_probe(&near, &sender)?];
    for child in &mut children {
        if !sandbox::wait(child)?.success() {
            return Err("a probe failed".into());
        }
    }
    Ok(())
}

/// Returns the text of a file without surrounding white space; empty if it cannot be read.
pub(crate) fn read_trimmed(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}
