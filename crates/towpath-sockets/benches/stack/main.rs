//! Throughput of our own stack with a kernel, compared with alternatives.
//!
//! `cargo bench -p towpath-sockets --bench stack [-- [FILTER…] [--quick] [--rounds N] [--seconds S]]`
//! runs every case whose name contains a filter. It runs them in rounds (first to last, then last
//! to first), so that a busy moment does not affect one case alone. It prints a Markdown table: the
//! median of the rounds, with minimum and maximum.
//!
//! The other end is always a kernel in a network namespace, reached through TUN devices with an MTU
//! of 1,500 bytes: one for each path. There are four stacks under test:
//! - our stack;
//! - `dumb`, a peer that only acknowledges and sends, on super-segments as our stack (the bound);
//! - the crate `mptcp-rs`, packet by packet, as its own TUN client does;
//! - the kernel at both ends of veth pairs.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

mod dumb;
mod kernel;
mod network;
mod other;
mod own;

use std::error::Error;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::{ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use towpath_os::sandbox;

/// Error that the benchmark prints before it ends.
type Failure = Box<dyn Error + Send + Sync>;

/// Time for windows to grow before the measurement.
const WARM_UP: Duration = Duration::from_millis(500);

/// Stack under test, which communicates with the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BenchedStack {
    Towpath,
    Dumb,
    MptcpRs,
    Kernel,
}

/// One row of the table. With `sends`, the stack under test sends and the other end's kernel
/// receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Case {
    stack: BenchedStack,
    paths: u8,
    sends: bool,
}

impl Case {
    fn all_cases() -> Vec<Self> {
        let mut cases = Vec::new();
        for (stack, max_paths) in [
            (BenchedStack::Towpath, 2),
            (BenchedStack::Dumb, 1),
            (BenchedStack::MptcpRs, 2),
            (BenchedStack::Kernel, 2),
        ] {
            for paths in 1..=max_paths {
                for sends in [true, false] {
                    // With a kernel at both ends, one direction is sufficient.
                    if sends || stack != BenchedStack::Kernel {
                        cases.push(Self { stack, paths, sends });
                    }
                }
            }
        }
        cases
    }

    fn name(self) -> String {
        let stack = match self.stack {
            BenchedStack::Towpath => "towpath",
            BenchedStack::Dumb => "dumb",
            BenchedStack::MptcpRs => "mptcp-rs",
            BenchedStack::Kernel => "kernel",
        };
        let paths = if self.paths == 1 { "1 path" } else { "2 paths" };
        let direction = match (self.stack, self.sends) {
            (BenchedStack::Kernel, _) => "both ends",
            (_, true) => "sends",
            (_, false) => "receives",
        };
        format!("{stack}, {paths}, {direction}")
    }
}

/// Counters that a trial's threads share with the measuring thread.
#[derive(Debug, Default)]
struct Shared {
    /// Payload bytes that the receiving application has read.
    bytes: AtomicU64,
    /// Processor time of the stack's thread in nanoseconds.
    cpu_ns: AtomicU64,
    /// Number of subflows that carry data.
    subflows: AtomicU64,
    /// Set at the end of the trial.
    over: AtomicBool,
}

impl Shared {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Stores the processor time; the stack's thread calls it regularly.
    fn store_cpu_time(&self) {
        self.cpu_ns.store(thread_cpu().as_nanos() as u64, Ordering::Relaxed);
    }
}

/// Returns the user and system time of the calling thread.
fn thread_cpu() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_THREAD);
    let micros = usage.map_or(0, |usage| {
        usage.user_time().num_microseconds() + usage.system_time().num_microseconds()
    });
    Duration::from_micros(micros.unsigned_abs())
}

/// Measurements of one trial.
#[derive(Debug, Clone, Copy)]
struct TrialMetrics {
    gbps: f64,
    /// Processor seconds of the stack's thread per gigabyte; `None` if not measured.
    cpu_s_per_gb: Option<f64>,
}

/// Options from the command line.
struct Plan {
    filters: Vec<String>,
    rounds: usize,
    length: Duration,
}

impl Plan {
    fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let mut plan = Self { filters: Vec::new(), rounds: 5, length: Duration::from_secs(2) };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let mut next_number = || -> Result<u32, Failure> {
                let value = arguments.next().ok_or(format!("`{argument}` needs a number"))?;
                Ok(value.parse()?)
            };
            match argument.as_str() {
                "--bench" => {}
                "--quick" => (plan.rounds, plan.length) = (1, Duration::from_secs(1)),
                "--rounds" => plan.rounds = next_number()?.max(1) as usize,
                "--seconds" => {
                    plan.length = Duration::from_secs(next_number()?.clamp(1, 60).into());
                }
                option if option.starts_with('-') => {
                    return Err(format!("unknown option `{option}`").into());
                }
                filter => plan.filters.push(filter.to_owned()),
            }
        }
        Ok(plan)
    }

    fn includes(&self, case: Case) -> bool {
        let name = case.name();
        self.filters.is_empty() || self.filters.iter().any(|filter| name.contains(filter.as_str()))
    }
}

fn main() -> ExitCode {
    match run_stage() {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error}"); // stderr may be closed
            ExitCode::FAILURE
        }
    }
}

/// Runs the process that the first argument selects.
fn run_stage() -> Result<ExitCode, Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let stage_arguments = |stage: &str, rest: &[String]| -> Vec<OsString> {
        [stage.to_owned()].into_iter().chain(rest.iter().cloned()).map(OsString::from).collect()
    };
    let status = match arguments.split_first() {
        Some((stage, rest)) if stage == "__outer" => {
            sandbox::outer(&stage_arguments("__inner", rest))?
        }
        Some((stage, rest)) if stage == "__inner" => {
            // No emulator runs here, but `inner` also gives the calling thread ordinary priority.
            let _thread = sandbox::inner()?;
            measure(&Plan::parse(rest)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        // `cargo test --all-targets` runs benchmarks without this argument, to check that they
        // work.
        _ if !arguments.iter().any(|argument| argument == "--bench") => {
            writeln!(io::stderr(), "to measure, run `cargo bench --bench stack`")?;
            return Ok(ExitCode::SUCCESS);
        }
        _ => {
            Plan::parse(&arguments)?;
            let outer = stage_arguments("__outer", &arguments);
            let mut child = sandbox::spawn(&outer, Stdio::null(), Stdio::inherit())?;
            sandbox::wait(&mut child)?
        }
    };
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn measure(plan: &Plan) -> Result<(), Failure> {
    let mut results: Vec<(Case, Vec<Result<TrialMetrics, String>>)> = Case::all_cases()
        .into_iter()
        .filter(|case| plan.includes(*case))
        .map(|case| (case, Vec::new()))
        .collect();
    for round in 0..plan.rounds {
        let mut order: Vec<_> = results.iter_mut().collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for (case, trials) in order {
            writeln!(io::stderr(), "round {} of {}: {}", round + 1, plan.rounds, case.name())?;
            trials.push(trial(*case, plan.length).map_err(|error| error.to_string()));
        }
    }
    io::stdout().write_all(table(&results).as_bytes())?;
    Ok(())
}

fn trial(case: Case, length: Duration) -> Result<TrialMetrics, Failure> {
    match case.stack {
        BenchedStack::Towpath => own::trial(case, length),
        BenchedStack::Dumb => dumb::trial(case, length),
        BenchedStack::MptcpRs => other::trial(case, length),
        BenchedStack::Kernel => kernel::trial(case, length),
    }
}

/// Waits for the subflows and for windows to grow, then measures the rates for `length`.
fn observe(case: Case, length: Duration, shared: &Shared) -> Result<TrialMetrics, Failure> {
    let start = Instant::now();
    while shared.subflows.load(Ordering::Relaxed) < u64::from(case.paths)
        || shared.bytes.load(Ordering::Relaxed) == 0
    {
        if start.elapsed() > Duration::from_secs(5) {
            let subflows = shared.subflows.load(Ordering::Relaxed);
            return Err(format!("{subflows} of {} subflows after 5 s", case.paths).into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(WARM_UP);
    let poll = || {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        (read(&shared.bytes), read(&shared.cpu_ns), Instant::now())
    };
    let (start_bytes, start_cpu_ns, poll_time) = poll();
    std::thread::sleep(length);
    let (end_bytes, end_cpu_ns, end) = poll();
    let (bytes, cpu_ns) = (end_bytes - start_bytes, end_cpu_ns - start_cpu_ns);
    let seconds = end.duration_since(poll_time).as_secs_f64();
    Ok(TrialMetrics {
        gbps: bytes * 8.0 / 1e9 / seconds,
        // Nanoseconds per byte are seconds per gigabyte.
        cpu_s_per_gb: (cpu_ns > 0.0).then_some(cpu_ns / bytes),
    })
}

fn table(results: &[(Case, Vec<Result<TrialMetrics, String>>)]) -> String {
    let mut text = "| case | Gbit/s | CPU s/GB of its thread |\n|---|---|---|\n".to_owned();
    for (case, trials) in results {
        let metrics: Vec<TrialMetrics> = trials.iter().flatten().copied().collect();
        let spread = |mut values: Vec<f64>, digits: usize| {
            values.sort_by(f64::total_cmp);
            let median = values.get(values.len() / 2).copied();
            match (values.first(), median, values.last()) {
                (Some(min), Some(median), Some(max)) if values.len() > 1 => {
                    format!("{median:.digits$} ({min:.digits$}–{max:.digits$})")
                }
                (_, Some(median), _) => format!("{median:.digits$}"),
                _ => "–".to_owned(),
            }
        };
        let gbps = spread(metrics.iter().map(|m| m.gbps).collect(), 2);
        let cpu_s_per_gb = spread(metrics.iter().filter_map(|m| m.cpu_s_per_gb).collect(), 2);
        let _ = writeln!(text, "| {} | {gbps} | {cpu_s_per_gb} |", case.name());
        for error in trials.iter().filter_map(|result| result.as_ref().err()) {
            let _ = writeln!(text, "| | failed: {error} | |");
        }
    }
    text
}
