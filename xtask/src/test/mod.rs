//! `cargo xtask test`: everything that CI does, at a desk.

mod tools;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{Result, cargo, tidy};

/// Name of the command, and of its crate.
const BINARY: &str = "towpath";

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
    steps.run("cargo build --locked --release -p towpath", |_| {
        environment.push(("TOWPATH_BIN".into(), build(root)?));
        Ok(())
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

/// Builds the command; gives its absolute path.
fn build(root: &Path) -> Result<OsString> {
    let output = cargo(root)
        .args(["build", "--locked", "--release", "-p", BINARY])
        .arg("--message-format=json-render-diagnostics")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    expect_success(output.status)?;
    let found = executable(&String::from_utf8_lossy(&output.stdout), BINARY);
    Ok(found.ok_or("cargo named no executable")?.into())
}

/// The path of an executable in cargo's messages.
fn executable(messages: &str, name: &str) -> Option<String> {
    let is_it =
        |message: &Value| message.pointer("/target/name").and_then(Value::as_str) == Some(name);
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(is_it)
        .find_map(|message| Some(message.get("executable")?.as_str()?.to_owned()))
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
    fn the_executable_is_the_one_that_cargo_names() {
        let artifact = |name: &str, path: &str| {
            format!("{{\"target\":{{\"name\":\"{name}\"}},\"executable\":{path}}}\n")
        };
        let messages = "not json\n".to_owned()
            + &artifact("x", "\"/x\"")
            + &artifact("towpath", "null")
            + &artifact("towpath", "\"/t\"");
        assert_eq!(executable(&messages, "towpath").as_deref(), Some("/t"));
        assert_eq!(executable(&messages, "gone"), None);
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
