//! `cargo xtask test`: everything that CI does, at a desk.

mod tools;

use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

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
    steps.run("cargo test --locked --workspace", |_| {
        let mut command = cargo(root);
        command.args(["test", "--locked", "--workspace"]).envs(environment);
        expect_success(command.stdin(Stdio::null()).status()?)
    })?;
    let (verdict, took) =
        (if steps.failed { "failed" } else { "passed" }, seconds(start.elapsed()));
    writeln!(out, "\n== xtask test {verdict} in {took}")?;
    Ok(verdict == "passed")
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
