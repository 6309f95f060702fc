//! `cargo xtask test`: everything that CI does, at a desk.

mod tools;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{Result, cargo, tidy};

/// Runs all steps; stops at the first that fails.
pub(crate) fn run(root: &Path, out: &mut dyn Write) -> Result<bool> {
    let start = now();
    let mut environment = Vec::new();
    let mut steps = Steps { out, failed: false };
    steps.run("tools: what the tests need beside Rust", |out| {
        environment = tools::prepare(out)?;
        Ok(())
    })?;
    steps.cargo(root, &["fmt", "--all", "--check"])?;
    steps.cargo(
        root,
        &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"],
    )?;
    steps.run("cargo xtask tidy", |out| {
        if tidy::run(root, out)? { Ok(()) } else { Err("the repository broke a rule".into()) }
    })?;
    steps.cargo(root, &["test", "--locked", "--workspace", "--no-run"])?;
    // No other crate has examples (`tidy` sees to it), and looking for them takes minutes. Before
    // the long step, whose failure would hide theirs.
    steps.cargo(root, &["test", "--locked", "--package", "towpath-mptcp", "--doc"])?;
    let lanes = Lanes::of(root)?;
    steps.run("tests, those of the whole command beside all others", |out| {
        lanes.run(root, &environment, out)
    })?;
    let (verdict, took) =
        (if steps.failed { "failed" } else { "passed" }, seconds(start.elapsed()));
    writeln!(out, "\n== xtask test {verdict} in {took}")?;
    Ok(verdict == "passed")
}

/// The tests of the whole command wait more than they work, and all others take as long: they run at
/// the same time.
struct Lanes {
    /// Names of all other integration tests.
    others: Vec<String>,
}

/// The integration tests of the whole command.
const WHOLE: &str = "end_to_end";

impl Lanes {
    fn of(root: &Path) -> Result<Self> {
        Ok(Self { others: integration_tests(&tidy::metadata(root)?) })
    }

    fn run(
        &self,
        root: &Path,
        environment: &[(OsString, OsString)],
        out: &mut dyn Write,
    ) -> Result<()> {
        let test = || {
            let mut command = cargo(root);
            command.args(["test", "--locked", "--workspace"]).stdin(Stdio::null());
            command.envs(environment.iter().cloned());
            command
        };
        let mut whole = test();
        whole.args(["--test", WHOLE]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut others = test();
        others.args(["--lib", "--bins"]);
        others.args(self.others.iter().flat_map(|name| ["--test", name]));
        // Both to their ends, whatever becomes of the first.
        let (others, whole) = thread::scope(|scope| {
            let whole = scope.spawn(|| whole.output());
            (others.status(), whole.join())
        });
        let whole = whole.map_err(|_| "a thread panicked")??;
        out.write_all(&whole.stderr)?;
        out.write_all(&whole.stdout)?;
        expect_success(others?)?;
        expect_success(whole.status)
    }
}

/// What cargo's metadata names as integration tests, but for those of the whole command.
fn integration_tests(metadata: &Value) -> Vec<String> {
    let list = |value: &Value, key: &str| {
        value.get(key).and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let packages = list(metadata, "packages");
    let targets = packages.iter().flat_map(|package| list(package, "targets"));
    let tests = targets.filter(|target| list(target, "kind").iter().any(|kind| kind == "test"));
    let names = tests.filter_map(|target| Some(target.get("name")?.as_str()?.to_owned()));
    let names: BTreeSet<String> = names.filter(|name| name != WHOLE).collect();
    names.into_iter().collect()
}

/// Runs steps until one fails, and says how long each took.
struct Steps<'a> {
    out: &'a mut dyn Write,
    failed: bool,
}

impl Steps<'_> {
    fn run(
        &mut self,
        name: &str,
        work: impl FnOnce(&mut dyn Write) -> Result<()>,
    ) -> io::Result<()> {
        if self.failed {
            return Ok(());
        }
        writeln!(self.out, "\n== {name}")?;
        let start = now();
        let done = work(self.out);
        let took = seconds(start.elapsed());
        match done {
            Ok(()) => writeln!(self.out, "== passed in {took}"),
            Err(error) => {
                self.failed = true;
                writeln!(self.out, "== failed after {took}: {name}: {error}")
            }
        }
    }

    fn cargo(&mut self, root: &Path, arguments: &[&str]) -> io::Result<()> {
        self.run(&format!("cargo {}", arguments.join(" ")), |_| {
            expect_success(cargo(root).args(arguments).stdin(Stdio::null()).status()?)
        })
    }
}

fn expect_success(status: ExitStatus) -> Result<()> {
    if status.success() { Ok(()) } else { Err(status.to_string().into()) }
}

/// Runs a command; gives what it said if it failed.
fn quietly(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    Err(format!("{}\n{}\n{}", output.status, said(&output.stdout), said(&output.stderr)).into())
}

#[expect(clippy::disallowed_methods, reason = "how long a chore took is real time")]
fn now() -> Instant {
    Instant::now()
}

fn seconds(span: Duration) -> String {
    match span.as_secs() {
        whole @ 60.. => format!("{} min {} s", whole / 60, whole % 60),
        0..60 => format!("{:.1} s", span.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_failed_step_no_other_runs() {
        let mut out = Vec::new();
        let mut steps = Steps { out: &mut out, failed: false };
        let mut ran = Vec::new();
        for (name, result) in [("a", Ok(())), ("b", Err("broken")), ("c", Ok(()))] {
            let work = |_: &mut dyn Write| {
                ran.push(name);
                result.map_err(Into::into)
            };
            steps.run(name, work).unwrap();
        }
        assert!(steps.failed);
        assert_eq!(ran, ["a", "b"]);
        let said = String::from_utf8(out).unwrap();
        assert!(said.contains("== passed in 0.0 s"), "{said}");
        assert!(said.contains("== failed after 0.0 s: b: broken"), "{said}");
    }

    #[test]
    fn every_integration_test_has_its_lane() {
        let target = |kind: &str, name: &str| serde_json::json!({"kind": [kind], "name": name});
        let one = [target("lib", "x"), target("test", "peer"), target("test", WHOLE)];
        let metadata = serde_json::json!({"packages": [
            {"targets": one}, {"targets": [target("test", "live"), target("bench", "speed")]},
        ]});
        assert_eq!(integration_tests(&metadata), ["live", "peer"]);
    }

    #[test]
    fn a_quiet_command_speaks_only_when_it_fails() {
        let shell = |script: &str| quietly(Command::new("sh").args(["-c", script]));
        assert!(shell("echo fine").is_ok());
        let said = shell("echo out; echo err >&2; exit 3").unwrap_err().to_string();
        assert!(said.contains("3\nout\nerr"), "{said}");
    }

    #[test]
    fn long_times_are_in_minutes() {
        assert_eq!(seconds(Duration::from_millis(1_250)), "1.2 s");
        assert_eq!(seconds(Duration::from_secs(125)), "2 min 5 s");
    }
}
