//! Data per second of processor time over QUIC: ours compared with a plain loop of `quinn`.
//!
//! `cargo bench -p towpath-sockets --bench quic [-- [--rounds N] [--seconds S]]` runs the cases in
//! rounds (first to last, then last to first), so that a busy moment does not affect one case
//! alone. It prints a Markdown table: quartiles of the rounds.
//!
//! Client and server are two threads of this process and use the loopback interface, with datagrams
//! of at most 1,472 bytes, CUBIC, and a window of 1.25 MB. The server writes one stream as fast as
//! it can, and the client reads it. The benchmark counts the bytes that the client has read, and
//! the processor time of the whole process.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

mod other;
mod own;

use std::error::Error;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// Error that the benchmark prints before it ends.
type Failure = Box<dyn Error + Send + Sync>;

/// Time for windows to grow before the measurement.
const WARM_UP: Duration = Duration::from_millis(300);
/// Bytes per write call.
const CHUNK_BYTES: usize = 128 * 1024;
/// Maximum UDP payload, as on an Ethernet.
const MAX_DATAGRAM: u16 = 1_472;
/// Flow-control window in bytes.
const WINDOW_BYTES: u32 = 1_250_000;

/// QUIC implementation under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BenchedStack {
    Towpath { multipath: bool },
    Quinn,
}

impl BenchedStack {
    const ALL: [Self; 3] =
        [Self::Towpath { multipath: false }, Self::Quinn, Self::Towpath { multipath: true }];

    fn name(self) -> &'static str {
        match self {
            Self::Towpath { multipath: false } => "towpath, quic",
            Self::Towpath { multipath: true } => "towpath, mpquic with one path",
            Self::Quinn => "quinn, with tokio",
        }
    }
}

/// Counters that a trial's threads share with the measuring thread.
#[derive(Debug, Default)]
struct Shared {
    /// Bytes that the client has read.
    bytes: AtomicU64,
    /// Set at the end of the trial.
    over: AtomicBool,
}

impl Shared {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn add_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

fn any_port() -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)
}

/// Returns the user and system time of the process.
fn processor_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF);
    let micros = usage.map_or(0, |usage| {
        usage.user_time().num_microseconds() + usage.system_time().num_microseconds()
    });
    Duration::from_micros(micros.unsigned_abs())
}

/// Measurements of one trial.
#[derive(Debug, Clone, Copy)]
struct TrialMetrics {
    /// Goodput in Gbit/s of wall time.
    rate: f64,
    /// Gigabits per second of processor time.
    rate_per_cpu: f64,
}

fn trial(stack: BenchedStack, length: Duration) -> Result<TrialMetrics, Failure> {
    let shared = Arc::new(Shared::default());
    let measuring_thread = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            thread::sleep(WARM_UP);
            let (start, cpu) = (Instant::now(), processor_time());
            let start_bytes = shared.bytes.load(Ordering::Relaxed);
            thread::sleep(length);
            let bytes = shared.bytes.load(Ordering::Relaxed) - start_bytes;
            let (elapsed, cpu) = (start.elapsed(), processor_time().saturating_sub(cpu));
            shared.over.store(true, Ordering::Relaxed);
            let gigabits = bytes as f64 * 8e-9;
            TrialMetrics {
                rate: gigabits / elapsed.as_secs_f64(),
                rate_per_cpu: gigabits / cpu.as_secs_f64(),
            }
        })
    };
    match stack {
        BenchedStack::Towpath { multipath } => own::run(&shared, multipath)?,
        BenchedStack::Quinn => other::run(&shared)?,
    }
    measuring_thread.join().map_err(|_| "the measuring thread panicked".into())
}

fn number_option(arguments: &[String], name: &str, default: u32) -> Result<u32, Failure> {
    let index = arguments.iter().position(|argument| argument == name);
    let Some(index) = index else { return Ok(default) };
    let value = arguments.get(index + 1).ok_or(format!("`{name}` needs a number"))?;
    Ok(value.parse::<u32>()?.max(1))
}

fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error}"); // stderr may be closed
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --all-targets` runs benchmarks without this argument, to check that they work.
    if !arguments.iter().any(|argument| argument == "--bench") {
        writeln!(io::stderr(), "to measure, run `cargo bench --bench quic`")?;
        return Ok(());
    }
    let rounds = number_option(&arguments, "--rounds", 10)?;
    let length = Duration::from_secs(number_option(&arguments, "--seconds", 1)?.into());
    let mut results: Vec<(BenchedStack, Vec<TrialMetrics>)> =
        BenchedStack::ALL.iter().map(|stack| (*stack, Vec::new())).collect();
    for round in 0..rounds {
        let mut order: Vec<_> = results.iter_mut().collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for (stack, trials) in order {
            trials.push(trial(*stack, length)?);
        }
    }
    print_table(&results)
}

/// Returns the three quartiles.
fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    [1, 2, 3].map(|part| values.get(last * part / 4).copied().unwrap_or(f64::NAN))
}

fn print_table(results: &[(BenchedStack, Vec<TrialMetrics>)]) -> Result<(), Failure> {
    let mut out = io::stdout();
    let reference = results.iter().find(|(stack, _)| *stack == BenchedStack::Quinn);
    let reference: Vec<f64> = reference
        .into_iter()
        .flat_map(|(_, trials)| trials)
        .map(|trial| trial.rate_per_cpu)
        .collect();
    writeln!(out, "| | Gbit/s | Gbit a processor second | … of quinn's in the same round |")?;
    writeln!(out, "|---|---|---|---|")?;
    for (stack, trials) in results {
        let quartiles_of =
            |value: fn(&TrialMetrics) -> f64| quartiles(trials.iter().map(value).collect());
        let ratios = trials
            .iter()
            .zip(&reference)
            .map(|(trial, quinn_rate)| trial.rate_per_cpu / quinn_rate);
        let text = |[low, middle, high]: [f64; 3]| format!("{middle:.2} ({low:.2}–{high:.2})");
        writeln!(
            out,
            "| {} | {} | {} | {} |",
            stack.name(),
            text(quartiles_of(|trial| trial.rate)),
            text(quartiles_of(|trial| trial.rate_per_cpu)),
            text(quartiles(ratios.collect())),
        )?;
    }
    Ok(())
}
