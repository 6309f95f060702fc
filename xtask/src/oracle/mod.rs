//! The oracle: the same cases over the kernel's own queues, delays and Multipath TCP, in a virtual
//! machine whose clock counts instructions, so that it is as exact as a simulation and does not depend on
//! what else the machine does. The same machine runs our emulator, with the kernel's stack and with ours.
//!
//! `docs/validation.md` shows what came out. Needs Debian or its like: `apt-get download` fetches the
//! kernel, and QEMU interprets it, without KVM.

mod cases;
mod image;
mod table;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{Result, cargo};
use cases::{CASES, How, Job};

/// Debian's kernel for virtual machines: it has netem, which many smaller kernels lack.
const KERNEL: &str = "linux-image-cloud-amd64";

/// What a developer may choose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    /// Runs of each Multipath TCP case in each way.
    runs: u32,
    /// Only cases whose name starts so.
    only: String,
    /// A program that was built before; else one is built.
    towpath: Option<PathBuf>,
    /// A kernel's Debian package; else what apt offers is fetched.
    kernel: Option<PathBuf>,
}

impl Options {
    /// `None` when it is not understood.
    pub(crate) fn parse(arguments: &[&str]) -> Option<Self> {
        let mut options = Self { runs: 6, only: String::new(), towpath: None, kernel: None };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match *argument {
                "--runs" => options.runs = rest.next()?.parse().ok().filter(|runs| *runs > 0)?,
                "--case" => options.only = rest.next()?.to_string(),
                "--towpath" => options.towpath = Some(rest.next()?.into()),
                "--kernel" => options.kernel = Some(rest.next()?.into()),
                _ => return None,
            }
        }
        Some(options)
    }
}

/// Runs everything and prints the table.
pub(crate) fn run(root: &Path, options: &Options, out: &mut dyn Write) -> Result<bool> {
    let folder = root.join("target/oracle");
    fs::create_dir_all(&folder)?;
    let towpath = match &options.towpath {
        Some(towpath) => towpath.clone(),
        None => build(root)?,
    };
    let kernel = unpack(&folder, options.kernel.as_deref())?;
    let cases: Vec<_> = CASES.iter().filter(|case| case.name.starts_with(&options.only)).collect();
    let jobs = cases::jobs(&cases, options.runs);
    let image = image::make(&folder, &kernel, &towpath, &cases, &jobs)?;
    let mut goodput = boot(&kernel.image, &image, &jobs, out)?;
    for case in &cases {
        for transport in ["tcp", "mptcp"] {
            let runs = simulate(&towpath, &folder, case, transport, options.runs)?;
            goodput.insert((case.name, transport, How::Simulated), runs);
        }
    }
    table::write(&cases, &goodput, out)?;
    Ok(table::agrees(&cases, &goodput))
}

/// Goodput of each run in Mbit/s, by case, transport and way.
type Goodput = BTreeMap<(&'static str, &'static str, How), Vec<f64>>;

/// Our own program, optimised.
fn build(root: &Path) -> Result<PathBuf> {
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

/// A kernel that was fetched.
struct Kernel {
    /// What QEMU loads.
    image: PathBuf,
    /// Folder of its modules.
    modules: PathBuf,
}

/// The kernel of a package, or of the one that Debian's archive has now.
fn unpack(folder: &Path, package: Option<&Path>) -> Result<Kernel> {
    let files = folder.join("kernel");
    let package = match package {
        Some(package) => package.to_owned(),
        None => download(folder)?,
    };
    if files.exists() {
        fs::remove_dir_all(&files)?;
    }
    succeed(Command::new("dpkg").arg("-x").arg(package).arg(&files))?;
    let boot = fs::read_dir(files.join("boot"))?.filter_map(|entry| Some(entry.ok()?.path()));
    let image = boot
        .filter(|path| path.to_string_lossy().contains("vmlinuz-"))
        .max()
        .ok_or("the package has no kernel")?;
    let name = image.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let version = name.trim_start_matches("vmlinuz-");
    let modules = [files.join("lib"), files.join("usr/lib")]
        .map(|lib| lib.join(format!("modules/{version}/kernel")))
        .into_iter()
        .find(|modules| modules.exists());
    let modules = modules.ok_or("the package has no modules")?;
    Ok(Kernel { image, modules })
}

/// Fetches the package that stands behind Debian's name for its newest one.
fn download(folder: &Path) -> Result<PathBuf> {
    let output = Command::new("apt-cache").args(["depends", KERNEL]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let name = text.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    let name = name.ok_or_else(|| format!("apt knows no {KERNEL}"))?;
    succeed(Command::new("apt-get").args(["download", name]).current_dir(folder))?;
    let packages = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    let wanted = |path: &PathBuf| path.to_string_lossy().contains(name);
    packages.filter(wanted).max().ok_or_else(|| "apt-get left no package".into())
}

fn succeed(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().map_err(|error| format!("{program}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{program} ended with {status}").into()) }
}

/// Starts the virtual machine and reads what its jobs print.
fn boot(kernel: &Path, image: &Path, jobs: &[Job], out: &mut dyn Write) -> Result<Goodput> {
    // One virtual nanosecond for each instruction; time jumps where everybody sleeps.
    let fixed = "-accel tcg -icount shift=0,sleep=off,align=off -rtc clock=vm -cpu max,-rdrand,-rdseed \
                 -m 1024 -smp 1 -nographic -no-reboot -nic none";
    let words = "console=ttyS0 panic=-1 quiet mitigations=off nokaslr tsc=reliable rdinit=/init";
    let mut machine = Command::new("qemu-system-x86_64")
        .args(fixed.split_whitespace())
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(image)
        .args(["-append", words])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("qemu-system-x86_64: {error} (package qemu-system-x86)"))?;
    let console = machine.stdout.take().ok_or("no console")?;
    let log = image.with_file_name("console.log");
    let read = listen(console, &log, jobs, out);
    machine.wait()?;
    let (goodput, ended) = read?;
    if !ended {
        writeln!(out, "the virtual machine ended before its jobs: see {}", log.display())?;
    }
    Ok(goodput)
}

/// The results that come over the console, and whether all jobs were played.
fn listen(
    console: impl std::io::Read,
    log: &Path,
    jobs: &[Job],
    out: &mut dyn Write,
) -> Result<(Goodput, bool)> {
    let mut log = File::create(log)?;
    let mut goodput = Goodput::new();
    for line in BufReader::new(console).lines() {
        let line = line?;
        writeln!(log, "{line}")?;
        // The firmware's last words may stand before the first result.
        let Some((_, said)) = line.trim().split_once("@@ ") else { continue };
        if said == "end" {
            return Ok((goodput, true));
        }
        let (number, result) = said.split_once(' ').ok_or("a result without a number")?;
        let job = jobs.get(number.parse::<usize>()?).ok_or("a result of no job")?;
        let Some(mbps) = serde_json::from_str(result).ok().as_ref().and_then(goodput_mbps) else {
            writeln!(out, "{job}: no result: {result}")?;
            continue;
        };
        writeln!(out, "{job}: {mbps:.2} Mbit/s")?;
        goodput.entry((job.case, job.transport, job.how)).or_default().push(mbps);
    }
    Ok((goodput, false))
}

/// The goodput in a result that `--json` printed.
fn goodput_mbps(result: &Value) -> Option<f64> {
    Some(result.pointer("/summary/flows/0/goodput_bps")?.as_f64()? / 1e6)
}

/// The same case in virtual time, with our stack.
fn simulate(
    towpath: &Path,
    folder: &Path,
    case: &cases::Case,
    transport: &str,
    runs: u32,
) -> Result<Vec<f64>> {
    let scenario = folder.join(format!("{}.toml", case.name));
    fs::write(&scenario, case.scenario())?;
    let output = Command::new(towpath)
        .args(["run", "--world", "sim", "--json", "-q", "--transport", transport, "--repeat"])
        .arg(runs.to_string())
        .arg("-o")
        .arg(folder.join("simulated"))
        .arg(&scenario)
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let results = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(results.filter_map(|result| goodput_mbps(&result)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_found_between_what_a_kernel_prints() {
        let jobs = cases::jobs(&CASES.iter().collect::<Vec<_>>(), 1);
        let result = r#"{"summary":{"flows":[{"goodput_bps":7650000.0}]}}"#;
        let console = format!("booting @@ 0 {result}\r\nnoise\n@@ 1 error: no route\n@@ end\nmore");
        let log = std::env::temp_dir().join(format!("towpath-oracle-{}", std::process::id()));
        let mut out = Vec::new();
        let (goodput, ended) = listen(console.as_bytes(), &log, &jobs, &mut out).unwrap();
        fs::remove_file(log).unwrap();
        assert!(ended);
        let first = jobs.first().unwrap();
        assert_eq!(goodput.get(&(first.case, first.transport, first.how)), Some(&vec![7.65]));
        assert_eq!(goodput.len(), 1);
        let told = String::from_utf8(out).unwrap();
        assert!(told.contains("no result: error: no route"), "{told}");
    }

    #[test]
    fn options_are_understood_or_refused() {
        let options = Options::parse(&["--runs", "3", "--case", "two"]).unwrap();
        assert_eq!((options.runs, options.only.as_str()), (3, "two"));
        assert_eq!(Options::parse(&["--runs", "0"]), None);
        assert_eq!(Options::parse(&["--walk"]), None);
    }
}
