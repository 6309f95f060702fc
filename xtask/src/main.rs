//! Repository chores: `cargo xtask tidy`, `cargo xtask specs`, `cargo xtask test`,
//! `cargo xtask attack-tests`, `cargo xtask fingerprint`, `cargo xtask graph`,
//! `cargo xtask validate-vm`, `cargo xtask validate-random`, `cargo xtask failures`,
//! `cargo xtask trace-matrix`, `cargo xtask study`, `cargo xtask wheel` and `cargo xtask python`.

mod attack_tests;
mod failures;
mod finding;
mod fingerprint;
mod graph;
mod python;
mod repository;
mod specs;
mod study;
mod test;
mod tidy;
mod trace_matrix;
mod validate_random;
mod validate_vm;

use std::env;
use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Result with an error for users; no code here depends on its kind.
type Result<T> = std::result::Result<T, Box<dyn Error>>;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  tidy   check the rules of the repository that the compiler does not know
  specs  count the requirements of the documents that our stack implements:
         --open           list requirements that are still to do
         --strict rfc8684 fail while a requirement of that document is to do
  test   fmt, clippy, tidy, build, test; installs the tools that tests need:
         --quick          only tests without kernel and long repetition
         --all            with long repetitions, for nights and releases
  attack-tests
         run all attacks that SECURITY.md names, longer than CI does
  fingerprint
         print SHA-256 of the simulator's results, to compare two builds:
         --jobs 2         simulations in parallel
         --towpath FILE   this program instead of a release build
         --renamed FILE   lines of OLD NEW: keys that this build renamed
         --only PREFIX    only scenarios and reproductions with this prefix
  wheel  build the Python package with the program (target/wheels):
         --debug          not optimized, for this machine only
  python test the Python package, in an environment of its own
  graph  draw which crate uses which (docs/images/crates.svg)
  validate-vm
         compare our worlds with a kernel in a virtual machine:
         --runs 6         runs of each Multipath TCP case in each setup
         --case NAME      only cases with this prefix
         --setup NAME     only kernel, kernel-emulated or ours-emulated
         --transport NAME only tcp or mptcp
         --towpath FILE   this program instead of a release build
         --kernel 6.12    this version, or these Debian packages (A.deb,B.deb),
                          instead of the one that apt offers
         --suite NAME     Debian suite that has it, such as trixie-backports
         --scenario FILE  this scenario over our emulator (repeatable)
         --kernels        only show a comparison of all kernels
         --results FILE   earlier runs, which are not repeated
                          (target/oracle/results.jsonl)
         --show           only show stored results, run nothing
         --svg FILE       draw a plot
  validate-random
         compare our stack with the kernel's on random scenarios:
         --random N       the first N scenarios of the seed
         --seed S         another seed than 1; several as 1,2,3
         --file SCENARIO  this scenario as well (repeatable)
         --cases          the cases in xtask/src/validate_random/cases as well
         --runs 2         runs of each scenario over the kernel
         --ours 3         runs of each on our side
         --max-runs 5     runs where those differ by more than 5 %
         --jobs 1         emulated runs in parallel, where their rates allow it
         --stack towpath  our stack over the emulator instead of simulated
         --profile NAME   our stack's, as linux-6.18, where a scenario has none
         --only SIDE      only do the runs of kernel, sim or towpath
         --towpath FILE   this program instead of a release build
         --store DIR   earlier runs, which are not repeated (target/twin)
         --list           only list the scenarios
         --show           only show stored results, run nothing
         --json           print a line of JSON for each scenario
         --svg FILE       draw a plot
  failures
         test the doctor on random failures:
         --random N       the first N failures of the seed
         --seed S         another seed than 1; several as 1,2,3
         --healthy        only situations without a failure, or
         --faulty         only failures: the first N of that kind
         --jobs 4         failures in parallel
         --unprivileged   as a user without rights over the client's network
         --fix            apply the printed commands and run the doctor again
         --towpath FILE   this program instead of a release build
         --json           print a line of JSON for each failure
  trace-matrix
         compare what `towpath trace` claims of damaged captures with the truth:
         --random 13      random scenarios, 27 damaged captures of each
         --seed S         another seed than 1
         --emulated       over the kernel instead of simulated
         --tshark         compare undamaged captures with tshark instead
         --keep DIR       folder in which scenarios and captures are kept
         --towpath FILE   this program instead of a release build
  study  run campaigns on devices in an emulated network, and check the account:
         --devices 20     number of devices, from 12
         --keep DIR       folder for all files, which must not exist (target/study)
         --check DIR      only check the files of an earlier study
         --towpath FILE   this program, with the collector, instead of a release
                          build";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (mut out, mut err) = (io::stdout().lock(), io::stderr());
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["tidy"] => root().and_then(|root| tidy::run(&root, &mut out)),
        ["specs", arguments @ ..] => match specs::SpecOptions::parse(arguments) {
            Some(options) => root().and_then(|root| specs::run(&root, &options, &mut out)),
            None => return print_usage(&mut err),
        },
        ["test", arguments @ ..] => match test::TestScope::parse(arguments) {
            Some(scope) => root().and_then(|root| test::run(&root, scope, &mut out)),
            None => return print_usage(&mut err),
        },
        ["attack-tests"] => root().and_then(|root| attack_tests::run(&root, &mut out)),
        ["fingerprint", arguments @ ..] => match fingerprint::Options::parse(arguments) {
            Some(options) => root().and_then(|root| fingerprint::run(&root, &options, &mut out)),
            None => return print_usage(&mut err),
        },
        ["validate-vm", arguments @ ..] => match validate_vm::VmOptions::parse(arguments) {
            Some(options) => root().and_then(|root| validate_vm::run(&root, &options, &mut out)),
            None => return print_usage(&mut err),
        },
        ["validate-random", arguments @ ..] => {
            match validate_random::RandomOptions::parse(arguments) {
                Some(options) => {
                    root().and_then(|root| validate_random::run(&root, &options, &mut out))
                }
                None => return print_usage(&mut err),
            }
        }
        ["failures", arguments @ ..] => match failures::FailureOptions::parse(arguments) {
            Some(options) => root().and_then(|root| failures::run(&root, &options, &mut out)),
            None => return print_usage(&mut err),
        },
        ["trace-matrix", arguments @ ..] => match trace_matrix::MatrixOptions::parse(arguments) {
            Some(options) => root().and_then(|root| trace_matrix::run(&root, &options, &mut out)),
            None => return print_usage(&mut err),
        },
        ["wheel", arguments @ ..] => match python::WheelOptions::parse(arguments) {
            Some(options) => root().and_then(|root| python::wheel(&root, &options, &mut out)),
            None => return print_usage(&mut err),
        },
        ["python"] => root().and_then(|root| python::test(&root, &mut out)).map(|()| true),
        ["study", arguments @ ..] => match study::StudyOptions::parse(arguments) {
            Some(options) => root().and_then(|root| study::run(&root, &options, &mut out)),
            None => return print_usage(&mut err),
        },
        ["graph"] => root().and_then(|root| {
            let picture = graph::draw(&tidy::metadata(&root)?);
            std::fs::write(root.join(graph::PATH), picture)?;
            Ok(true)
        }),
        ["help" | "--help" | "-h"] => writeln!(out, "{USAGE}").map(|()| true).map_err(Into::into),
        _ => return print_usage(&mut err),
    };
    conclude(result, &mut err)
}

/// Returns the exit code of a command, and prints its error.
fn conclude(result: Result<bool>, err: &mut dyn Write) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(err, "error: {error}"); // stderr may be closed
            ExitCode::FAILURE
        }
    }
}

fn print_usage(err: &mut dyn Write) -> ExitCode {
    let _ = writeln!(err, "{USAGE}"); // stderr may be closed
    ExitCode::from(2)
}

/// Returns the root of the repository: above this package if cargo runs us, else the current
/// folder.
fn root() -> Result<PathBuf> {
    let package = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    match package.as_deref().and_then(Path::parent) {
        Some(root) => Ok(root.to_owned()),
        None => Ok(env::current_dir()?),
    }
}

/// Returns a command for the cargo that runs us, so that all steps use one toolchain.
fn cargo(root: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}
