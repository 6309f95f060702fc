//! Speed and accuracy of the emulator: throughput, added delay, rate.
//!
//! `cargo bench -p towpath-emu --bench emulator [-- [FILTER…] [--quick] [--rounds N] [--seconds
//! S]]` runs every case whose name contains a filter. It runs them in rounds (first to last, then
//! last to first, and so on), so that a busy moment does not affect one case alone. It prints
//! Markdown tables: the median of the rounds, with minimum and maximum.
//!
//! Each trial is a process of its own that enters the sandbox, makes a network and starts this
//! program again in both hosts as a *probe*, the same for every network. Probes print measurements
//! on standard error, as `figure NAME VALUE`.
//!
//! For comparison there are plain veth pairs, with and without the kernel's `tbf`, and a bare
//! thread that only sleeps or only polls the clock. `rattan` (another user-space emulator; needs
//! root) is measured if the environment variable `RATTAN` has its path.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

mod cases;
mod figures;
mod probe;
mod tables;
mod trial;

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use cases::Case;
use figures::Series;

/// Error that the benchmark prints before it ends.
type Failure = Box<dyn Error + Send + Sync>;

/// Options from the command line.
struct Plan {
    filters: Vec<String>,
    rounds: usize,
    /// Length of a trial for each kind of traffic.
    throughput_length: Duration,
    delay_length: Duration,
    rate_length: Duration,
}

impl Plan {
    fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let seconds = Duration::from_secs;
        let mut plan = Self {
            filters: Vec::new(),
            rounds: 7,
            throughput_length: seconds(3),
            delay_length: seconds(5),
            rate_length: seconds(10),
        };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let mut next_number = || -> Result<u32, Failure> {
                let value = arguments.next().ok_or(format!("`{argument}` needs a number"))?;
                Ok(value.parse()?)
            };
            match argument.as_str() {
                "--bench" => {}
                "--quick" => {
                    plan.rounds = 1;
                    (plan.throughput_length, plan.delay_length, plan.rate_length) =
                        (seconds(1), seconds(1), seconds(2));
                }
                "--rounds" => plan.rounds = next_number()?.max(1) as usize,
                "--seconds" => {
                    let length = seconds(next_number()?.clamp(1, 60).into());
                    (plan.throughput_length, plan.delay_length, plan.rate_length) =
                        (length, length, length);
                }
                option if option.starts_with('-') => {
                    return Err(format!("unknown option `{option}`").into());
                }
                filter => plan.filters.push(filter.to_owned()),
            }
        }
        Ok(plan)
    }

    fn includes(&self, case: &Case) -> bool {
        let name = case.name();
        self.filters.is_empty() || self.filters.iter().any(|filter| name.contains(filter.as_str()))
    }

    fn length(&self, case: &Case) -> Duration {
        match case.traffic {
            cases::Traffic::Tcp => self.throughput_length,
            cases::Traffic::Paced { .. } => self.delay_length,
            cases::Traffic::Overload => self.rate_length,
        }
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
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["__probe", kind, rest @ ..] => probe::run(kind, rest).map(|()| ExitCode::SUCCESS),
        [stage @ ("__trial" | "__outer" | "__inner"), name, millis] => {
            let case = Case::by_name(name).ok_or("unknown case")?;
            trial::run_stage(stage, &case, Duration::from_millis(millis.parse()?))
        }
        // `cargo test --all-targets` runs benchmarks without this argument, to check that they
        // work.
        words if !words.contains(&"--bench") => {
            writeln!(io::stderr(), "to measure, run `cargo bench --bench emulator`")?;
            Ok(ExitCode::SUCCESS)
        }
        _ => measure(&Plan::parse(&arguments)?).map(|()| ExitCode::SUCCESS),
    }
}

fn measure(plan: &Plan) -> Result<(), Failure> {
    let included = cases::all_cases().into_iter().filter(|case| plan.includes(case));
    let mut results: Vec<(Case, Series)> = included.map(|case| (case, Series::default())).collect();
    let load_before = figures::load();
    for round in 0..plan.rounds {
        let mut order: Vec<_> = results.iter_mut().collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for (case, series) in order {
            writeln!(io::stderr(), "round {} of {}: {}", round + 1, plan.rounds, case.name())?;
            match trial::run(case, plan.length(case)) {
                Ok(metrics) => series.add(metrics),
                Err(error) => series.fail(&error),
            }
        }
    }
    let mut out = io::stdout().lock();
    write!(out, "{}{}", tables::header(plan, &load_before), tables::all_tables(&results))?;
    Ok(())
}
