//! The oracle: the same cases over the kernel's own queues, delays and Multipath TCP, in a virtual
//! machine.
//!
//! The machine's clock counts instructions. So it is as exact as a simulation, and independent of
//! the host's load. The same machine runs our emulator, with the kernel's stack and with ours.
//!
//! `docs/lab/validation.md` shows the results. Needs Debian or a derivative: `apt-get download` fetches
//! the kernel, and QEMU interprets it, without KVM.

mod cases;
mod image;
mod machine;
mod package;
mod picture;
mod results;
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{Result, cargo};
use cases::{CASES, Setup};
use machine::Kernel;
pub(crate) use picture::svg;
use results::Results;

/// Command-line options of the oracle.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct VmOptions {
    /// Number of runs of each Multipath TCP case in each combination.
    runs: u32,
    /// Prefix of the names of the cases to run.
    only: String,
    /// Combination to run in the virtual machine; `None` runs all.
    setup: Option<Setup>,
    /// Transport to run in the virtual machine; both when empty.
    transport: String,
    /// Path of an existing towpath binary; `None` builds one.
    towpath: Option<PathBuf>,
    /// Debian packages or version of a kernel; `None` downloads the newest that apt offers.
    kernel: Option<String>,
    /// Debian suite that has the kernel, if apt is not configured for it.
    suite: Option<String>,
    /// Scenario files that run over our emulator in the virtual machine.
    scenarios: Vec<PathBuf>,
    /// Results file of earlier calls, to which this one appends.
    results: Option<PathBuf>,
    /// True if only existing results are printed, and nothing runs in the virtual machine.
    show: bool,
    /// True if all kernels with results are compared, and nothing runs.
    kernels: bool,
    /// Path of the SVG figure; `None` draws none.
    svg: Option<PathBuf>,
}

impl VmOptions {
    /// Parses the arguments; `None` if they are not valid.
    pub(crate) fn parse(arguments: &[&str]) -> Option<Self> {
        let mut options = Self { runs: 6, ..Self::default() };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match *argument {
                "--runs" => options.runs = rest.next()?.parse().ok().filter(|runs| *runs > 0)?,
                "--case" => options.only = rest.next()?.to_string(),
                "--setup" => options.setup = Some(Setup::from_name(rest.next()?)?),
                "--transport" => options.transport = rest.next()?.to_string(),
                "--towpath" => options.towpath = Some(rest.next()?.into()),
                "--kernel" => options.kernel = Some(rest.next()?.to_string()),
                "--suite" => options.suite = Some(rest.next()?.to_string()),
                "--scenario" => options.scenarios.push(rest.next()?.into()),
                "--results" => options.results = Some(rest.next()?.into()),
                "--show" => options.show = true,
                "--kernels" => options.kernels = true,
                "--svg" => options.svg = Some(rest.next()?.into()),
                _ => return None,
            }
        }
        Some(options)
    }
}

/// Runs the jobs without results, and prints the table.
pub(crate) fn run(root: &Path, options: &VmOptions, out: &mut dyn Write) -> Result<bool> {
    let folder = root.join("target/oracle");
    fs::create_dir_all(&folder)?;
    let results_file = options.results.clone().unwrap_or_else(|| folder.join("results.jsonl"));
    if options.kernels {
        return table::kernels(&Results::of_all(&results_file)?, &options.only, out).map(|()| true);
    }
    let towpath = match &options.towpath {
        Some(towpath) => towpath.clone(),
        None => build(root)?,
    };
    let packages = package::fetch(&folder, options.kernel.as_deref(), options.suite.as_deref())?;
    let kernel = Kernel::unpack(&folder, &packages)?;
    let file_cases = options.scenarios.iter().map(|file| cases::VmCase::of_file(file));
    let file_cases = file_cases.collect::<Result<Vec<_>>>()?;
    // Scenario files replace the fixed cases; a name with them adds those cases.
    let built_in_cases = CASES.iter().filter(|_| file_cases.is_empty() || !options.only.is_empty());
    let cases: Vec<_> = built_in_cases
        .filter(|case| case.name.starts_with(&options.only))
        .chain(&file_cases)
        .collect();
    let mut results = Results::open(&results_file, &kernel.version)?;
    let mut jobs = results.missing(cases::jobs(&cases, options.runs));
    jobs.retain(|job| {
        let is_transport = options.transport.is_empty() || options.transport == job.transport;
        let is_setup = options
            .setup
            .map_or(Setup::COMPARED_SETUPS.contains(&job.setup), |setup| setup == job.setup);
        is_transport && is_setup
    });
    if !jobs.is_empty() && !options.show {
        let image = image::make(&folder, &kernel, &towpath, &cases, &jobs)?;
        machine::boot(&kernel, &image, &jobs, &mut results, out)?;
    }
    let mut goodput = results.goodput(&cases);
    for case in &cases {
        for transport in ["tcp", "mptcp"] {
            let runs = simulate(&towpath, &folder, case, transport, options.runs)?;
            goodput.insert((case.name, transport, Setup::Simulated), runs);
        }
    }
    table::write(&cases, &goodput, out)?;
    if let Some(file) = &options.svg {
        fs::write(file, svg(root, &picture::figure(&cases, &goodput))?)?;
    }
    Ok(table::agrees(&cases, &goodput))
}

/// Goodput of each run in Mbit/s, by case, transport and combination.
type Goodput = BTreeMap<(&'static str, &'static str, Setup), Vec<f64>>;

/// Builds towpath, optimised; returns its path.
pub(crate) fn build(root: &Path) -> Result<PathBuf> {
    let mut command = cargo(root);
    command.args(["build", "--release", "--package", "towpath", "--message-format", "json"]);
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("cargo build ended with {}", output.status).into());
    }
    let executable = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter_map(|message| message.get("executable")?.as_str().map(PathBuf::from))
        .next_back();
    executable.ok_or_else(|| "cargo does not say where it put the program".into())
}

fn expect_success(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().map_err(|error| format!("{program}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{program} ended with {status}").into()) }
}

/// Returns the goodput in a result that `--json` printed.
fn goodput_mbps(result: &Value) -> Option<f64> {
    Some(result.pointer("/summary/flows/0/goodput_bps")?.as_f64()? / 1e6)
}

/// Returns the longest stall in a result that `--json` printed.
fn longest_stall_ms(result: &Value) -> Option<f64> {
    Some(result.pointer("/summary/flows/0/stall/longest_ns")?.as_f64()? / 1e6)
}

/// Runs the same case in virtual time, with our stack.
fn simulate(
    towpath: &Path,
    folder: &Path,
    case: &cases::VmCase,
    transport: &str,
    runs: u32,
) -> Result<Vec<f64>> {
    let scenario = folder.join(format!("{}.toml", case.name));
    let mut goodputs = Vec::new();
    for run in 0..runs {
        fs::write(&scenario, case.scenario_of_run(run))?;
        let output = Command::new(towpath)
            .args(["run", "--world", "sim", "--json", "-q", "--transport", transport, "-o"])
            .arg(folder.join("simulated"))
            .arg(&scenario)
            .stderr(Stdio::inherit())
            .output()?;
        let result = serde_json::from_slice(&output.stdout).ok();
        goodputs.extend(result.as_ref().and_then(goodput_mbps));
    }
    Ok(goodputs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_understood_or_refused() {
        let options = VmOptions::parse(&["--runs", "3", "--case", "two"]).unwrap();
        assert_eq!((options.runs, options.only.as_str()), (3, "two"));
        let options = VmOptions::parse(&["--kernel", "6.18", "--scenario", "drawn.toml"]).unwrap();
        assert_eq!((options.kernel.as_deref(), options.scenarios.len()), (Some("6.18"), 1));
        assert_eq!(VmOptions::parse(&["--runs", "0"]), None);
        assert_eq!(VmOptions::parse(&["--walk"]), None);
    }
}
