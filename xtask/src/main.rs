//! Repository chores: `cargo xtask tidy`, `cargo xtask specs`, `cargo xtask test`,
//! `cargo xtask abuse`, `cargo xtask fingerprint`, `cargo xtask oracle`, `cargo xtask twin` and
//! `cargo xtask zoo`.

mod abuse;
mod finding;
mod fingerprint;
mod oracle;
mod repository;
mod specs;
mod test;
mod tidy;
mod twin;
mod zoo;

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
  specs  count what is done of the documents that our stack builds on:
         --open           list what they demand and is still to do
         --strict rfc8684 fail while anything of that list is left
  test   fmt, clippy, tidy, build, test; installs the tools that tests need:
         --quick          only what needs no kernel and no long repetition
         --all            with long repetitions, for nights and releases
  abuse  attack all that SECURITY.md promises, longer than CI does
  fingerprint
         print SHA-256 of what the simulator produces, to compare two builds:
         --jobs 2         simulations in parallel
         --towpath FILE   this program instead of a release build
         --renamed FILE   lines of OLD NEW: keys that this build renamed
         --only PREFIX    scenarios and reproductions whose names begin so
  oracle hold our worlds against a kernel in a virtual machine:
         --runs 6         runs of each Multipath TCP case in each way
         --case NAME      only cases whose name starts so
         --way NAME       only kernel, kernel-emulated or ours-emulated
         --transport NAME only tcp or mptcp
         --towpath FILE   this program, in place of one that is built
         --kernel 6.12    this version, or these Debian packages (A.deb,B.deb),
                          in place of what apt offers
         --suite NAME     Debian's suite that has it, such as trixie-backports
         --scenario FILE  this scenario over our emulator (again for more)
         --kernels        only show all kernels beside each other
         --results FILE   earlier runs, which are not run again
                          (target/oracle/results.jsonl)
         --show           only show what is there, run nothing in the machine
         --svg FILE       draw it
  twin   hold our stack against the kernel's on scenarios drawn at random:
         --random N       the first N scenarios of the seed
         --seed S         another seed than 1; several as 1,2,3
         --file SCENARIO  this scenario, too (again for more of them)
         --cases          those in xtask/src/twin/cases, too
         --runs 2         runs of each scenario over the kernel
         --ours 3         runs of each on our side
         --most 5         runs where those differ by more than 5 %
         --jobs 1         emulated runs at once, where their rates allow it
         --stack towpath  our stack over the emulator, in place of simulated
         --profile NAME   our stack's, as linux-6.18, where a scenario names none
         --only SIDE      only do the runs of kernel, sim or towpath
         --towpath FILE   this program, in place of one that is built
         --keep FOLDER    earlier runs, which are not run again (target/twin)
         --list           only say how they are drawn, and what they are
         --show           only show what is there, run nothing
         --json           a line of JSON for each scenario
         --svg FILE       draw it
  zoo    ask the doctor about situations drawn at random:
         --random N       the first N situations of the seed
         --seed S         another seed than 1; several as 1,2,3
         --jobs 4         situations at once
         --ordinary       as somebody without rights over the client's network
         --fix            carry out what it prints, and ask again
         --towpath FILE   this program, in place of one that is built
         --json           a line of JSON for each situation";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (mut out, mut err) = (io::stdout().lock(), io::stderr());
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["tidy"] => root().and_then(|root| tidy::run(&root, &mut out)),
        ["specs", arguments @ ..] => match specs::SpecOptions::parse(arguments) {
            Some(options) => root().and_then(|root| specs::run(&root, &options, &mut out)),
            None => return misused(&mut err),
        },
        ["test", arguments @ ..] => match test::TestScope::parse(arguments) {
            Some(extent) => root().and_then(|root| test::run(&root, extent, &mut out)),
            None => return misused(&mut err),
        },
        ["abuse"] => root().and_then(|root| abuse::run(&root, &mut out)),
        ["fingerprint", arguments @ ..] => match fingerprint::Options::parse(arguments) {
            Some(options) => root().and_then(|root| fingerprint::run(&root, &options, &mut out)),
            None => return misused(&mut err),
        },
        ["oracle", arguments @ ..] => match oracle::VmOptions::parse(arguments) {
            Some(options) => root().and_then(|root| oracle::run(&root, &options, &mut out)),
            None => return misused(&mut err),
        },
        ["twin", arguments @ ..] => match twin::RandomOptions::parse(arguments) {
            Some(options) => root().and_then(|root| twin::run(&root, &options, &mut out)),
            None => return misused(&mut err),
        },
        ["zoo", arguments @ ..] => match zoo::FailureOptions::parse(arguments) {
            Some(options) => root().and_then(|root| zoo::run(&root, &options, &mut out)),
            None => return misused(&mut err),
        },
        ["help" | "--help" | "-h"] => writeln!(out, "{USAGE}").map(|()| true).map_err(Into::into),
        _ => return misused(&mut err),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(err, "error: {error}"); // stderr may be closed
            ExitCode::FAILURE
        }
    }
}

fn misused(err: &mut dyn Write) -> ExitCode {
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
