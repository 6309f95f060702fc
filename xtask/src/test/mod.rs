//! `cargo xtask test`: the checks that CI runs, a quick part of them, or a longer variant.

mod retry;
mod tools;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use self::retry::{RetriedTest, TargetRunner};
use crate::{Result, cargo, python, tidy};

/// Extent of a test run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TestScope {
    /// Tests that need neither kernel features nor long repetition: for use during development.
    Quick,
    /// Every test, each with as few repetitions as can still find its errors.
    Usual,
    /// Every test, with long repetitions, for nights and releases.
    All,
}

impl TestScope {
    /// Parses the arguments; `None` if they are not valid.
    pub(crate) fn parse(arguments: &[&str]) -> Option<Self> {
        match arguments {
            [] => Some(Self::Usual),
            ["--quick"] => Some(Self::Quick),
            ["--all"] => Some(Self::All),
            _ => None,
        }
    }

    /// Returns the command-line options that select this extent.
    fn options(self) -> &'static str {
        match self {
            Self::Quick => " --quick",
            Self::Usual => "",
            Self::All => " --all",
        }
    }

    /// Returns the environment variable that tests read to set their number of repetitions.
    fn environment(self) -> Option<(OsString, OsString)> {
        match self {
            Self::Quick => Some((REPEAT_VARIABLE.into(), "quick".into())),
            Self::Usual => None,
            Self::All => Some((REPEAT_VARIABLE.into(), "long".into())),
        }
    }
}

/// Environment variable with the tests' number of repetitions: `quick`, `long`, or as usual.
///
/// The tests read it in one place of their crate. Their own variables for more (`PROPTEST_CASES`,
/// `PEER_SEEDS`) take precedence.
const REPEAT_VARIABLE: &str = "TOWPATH_REPEAT";

/// Features that released programs have and plain builds lack: tests always cover them.
const FEATURES: &str = "towpath/collect";

/// Crates whose integration tests need a kernel, with namespaces and privileges.
const KERNEL_CRATES: [&str; 5] =
    ["towpath", "towpath-netlink", "towpath-host", "towpath-emu", "towpath-live"];

/// Other slow integration tests: hours of virtual time, twenty seeds of QUIC.
const SLOW_TESTS: [&str; 2] = ["fairness", "quic"];

/// Runs all steps; stops at the first that fails.
pub(crate) fn run(root: &Path, scope: TestScope, out: &mut dyn Write) -> Result<bool> {
    let start = now();
    let mut steps = Steps { out, failed: false };
    let retried_tests = match scope {
        TestScope::Quick => quick(root, &mut steps).map(|()| Vec::new())?,
        TestScope::Usual | TestScope::All => run_all(root, scope, &mut steps)?,
    };
    let (verdict, duration) =
        (if steps.failed { "failed" } else { "passed" }, seconds(start.elapsed()));
    writeln!(out, "\n== xtask test{} {verdict} in {duration}", scope.options())?;
    for test in retried_tests.iter().filter(|test| test.passed_on.is_some()) {
        writeln!(out, "{}", retry::describe(test))?;
    }
    Ok(verdict == "passed")
}

/// Runs checks that need neither installation nor a second compilation, as clippy would.
///
/// The whole workspace is built, because cargo would compile dependencies again for a part of it.
fn quick(root: &Path, steps: &mut Steps<'_>) -> Result<()> {
    steps.cargo(root, &["fmt", "--all", "--check"])?;
    steps.tidy(root)?;
    let needs_no_kernel = |name: &str| !KERNEL_CRATES.contains(&name);
    let mut names = integration_tests(&tidy::metadata(root)?, needs_no_kernel);
    names.retain(|name| !SLOW_TESTS.contains(&name.as_str()));
    let mut test = cargo(root);
    test.args(["test", "--locked", "--workspace", "--features", FEATURES, "--lib", "--bins"]);
    test.args(names.iter().flat_map(|name| ["--test", name]));
    test.envs(TestScope::Quick.environment()).stdin(Stdio::null());
    steps.run("tests that need no kernel", |_| expect_success(test.status()?))?;
    Ok(())
}

/// Runs all tests; returns those that passed only when they ran again.
fn run_all(root: &Path, scope: TestScope, steps: &mut Steps<'_>) -> Result<Vec<RetriedTest>> {
    let mut environment: Vec<_> = scope.environment().into_iter().collect();
    steps.run("tools: other programs that the tests need", |out| {
        environment.extend(tools::prepare(out)?);
        Ok(())
    })?;
    steps.cargo(root, &["fmt", "--all", "--check"])?;
    steps.tidy(root)?;
    steps.cargo(
        root,
        &[
            "clippy",
            "--workspace",
            "--features",
            FEATURES,
            "--all-targets",
            "--locked",
            "--",
            "-D",
            "warnings",
        ],
    )?;
    steps.cargo(root, &["test", "--locked", "--workspace", "--features", FEATURES, "--no-run"])?;
    // No other crate has examples (`tidy` checks that), and searching for them takes minutes. They
    // run before the long step, whose failure would hide theirs. For a single crate, cargo compiles
    // some dependencies again.
    if scope == TestScope::All {
        steps.cargo(root, &["test", "--locked", "--package", "towpath-mptcp", "--doc"])?;
    }
    let tests = ParallelTests::of(root)?;
    let mut retried = Vec::new();
    steps.run("tests: pure ones, those of the kernel and end_to_end at the same time", |out| {
        let runner = TargetRunner { root, environment: &environment };
        tests.run(&runner, scope, &mut retried, out)
    })?;
    steps.run("tests of the Python package", |out| python::test(root, out))?;
    Ok(retried)
}

/// Lanes of tests that run concurrently.
///
/// Pure tests occupy the processors; the others mostly wait for real time. The lanes are pure
/// tests, the tests that need a kernel, and the tests of the whole command.
struct ParallelTests {
    /// Integration tests that depend on nothing but their input: a failure is never retried.
    pure: Vec<String>,
    /// Integration tests that need a kernel, one target after the other.
    kernel: Vec<String>,
    /// Target folder of cargo.
    folder: PathBuf,
}

/// Integration test target of the whole command.
const END_TO_END: &str = "end_to_end";

/// Attacks beyond one for each known mistake, which take four minutes.
const FURTHER_ATTACKS: [&str; 3] = ["security::adversity", "security::files", "security::network"];

impl ParallelTests {
    fn of(root: &Path) -> Result<Self> {
        let metadata = tidy::metadata(root)?;
        let needs_kernel = |name: &str| KERNEL_CRATES.contains(&name);
        let mut kernel = integration_tests(&metadata, needs_kernel);
        kernel.retain(|name| name != END_TO_END);
        let mut pure = integration_tests(&metadata, |name| !needs_kernel(name));
        pure.retain(|name| !kernel.contains(name));
        let folder = metadata.get("target_directory").and_then(Value::as_str);
        Ok(Self { pure, kernel, folder: folder.unwrap_or("target").into() })
    }

    /// Runs all tests; adds those that ran again to `retried`, also after a final failure.
    fn run(
        &self,
        runner: &TargetRunner<'_>,
        scope: TestScope,
        retried: &mut Vec<RetriedTest>,
        out: &mut dyn Write,
    ) -> Result<()> {
        let threads = format!("--test-threads={}", waiting_threads());
        let mut harness = vec![threads.as_str()];
        if scope != TestScope::All {
            writeln!(out, "without attacks of {}: see --all", FURTHER_ATTACKS.join(", "))?;
            harness.extend(FURTHER_ATTACKS.iter().flat_map(|module| ["--skip", module]));
        }
        // All lanes run to their ends, even if one fails early. Errors cross threads as text.
        let run_target = |target: &str, harness: &[&str]| {
            runner.run(target, harness).map_err(|error| error.to_string())
        };
        let (pure, kernel, end_to_end) = thread::scope(|scope| {
            let end_to_end = scope.spawn(|| run_target(END_TO_END, &harness));
            let kernel = scope.spawn(|| {
                let targets = self.kernel.iter();
                targets.map(|target| run_target(target, &[threads.as_str()])).collect::<Vec<_>>()
            });
            (self.run_pure(runner), kernel.join(), end_to_end.join())
        });
        let pure = pure?;
        let mut target_runs = kernel.map_err(|_| "a thread panicked")?;
        target_runs.push(end_to_end.map_err(|_| "a thread panicked")?);
        let target_runs =
            target_runs.into_iter().collect::<std::result::Result<Vec<_>, String>>()?;
        for target_run in &target_runs {
            target_run.print(out)?;
        }
        let mut errors = Vec::new();
        for target_run in &target_runs {
            match runner.retry(target_run, out) {
                Ok(retried_tests) => retried.extend(retried_tests),
                Err(error) => errors.push(error.to_string()),
            }
        }
        retry::write(retried, &self.folder)?;
        retry::report_skipped(&target_runs, out)?;
        errors.extend(expect_success(pure).err().map(|error| format!("pure tests: {error}")));
        let failed_tests = retried.iter().filter(|test| test.passed_on.is_none());
        errors.extend(failed_tests.map(retry::describe));
        if errors.is_empty() { Ok(()) } else { Err(errors.join("; ").into()) }
    }

    fn run_pure(&self, runner: &TargetRunner<'_>) -> Result<ExitStatus> {
        let mut pure = cargo(runner.root);
        pure.args(["test", "--locked", "--workspace", "--features", FEATURES]);
        pure.args(["--no-fail-fast", "--lib", "--bins"]);
        pure.args(self.pure.iter().flat_map(|name| ["--test", name]));
        pure.envs(runner.environment.iter().cloned()).stdin(Stdio::null());
        Ok(pure.status()?)
    }
}

/// Returns the number of threads for tests of the kernel and of the whole command.
///
/// They wait for real time most of the time, so there are more threads than processors. Tests that
/// need emulated networks wait for each other.
fn waiting_threads() -> usize {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    (3 * processors).clamp(4, 12)
}

/// Returns the integration tests of some packages, from cargo's metadata.
fn integration_tests(metadata: &Value, is_included: impl Fn(&str) -> bool) -> Vec<String> {
    let list = |value: &Value, key: &str| {
        value.get(key).and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let mut packages = list(metadata, "packages");
    packages
        .retain(|package| package.get("name").and_then(Value::as_str).is_some_and(&is_included));
    let targets = packages.iter().flat_map(|package| list(package, "targets"));
    let tests = targets.filter(|target| list(target, "kind").iter().any(|kind| kind == "test"));
    let names = tests.filter_map(|target| Some(target.get("name")?.as_str()?.to_owned()));
    let names: BTreeSet<String> = names.collect();
    names.into_iter().collect()
}

/// Runs steps until one fails, and prints the duration of each.
struct Steps<'a> {
    out: &'a mut dyn Write,
    failed: bool,
}

impl Steps<'_> {
    fn run(
        &mut self,
        name: &str,
        run_step: impl FnOnce(&mut dyn Write) -> Result<()>,
    ) -> io::Result<()> {
        if self.failed {
            return Ok(());
        }
        writeln!(self.out, "\n== {name}")?;
        let start = now();
        let outcome = run_step(self.out);
        let duration = seconds(start.elapsed());
        match outcome {
            Ok(()) => writeln!(self.out, "== passed in {duration}"),
            Err(error) => {
                self.failed = true;
                writeln!(self.out, "== failed after {duration}: {name}: {error}")
            }
        }
    }

    fn tidy(&mut self, root: &Path) -> io::Result<()> {
        self.run("cargo xtask tidy", |out| {
            if tidy::run(root, out)? { Ok(()) } else { Err("the repository broke a rule".into()) }
        })
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

/// Runs a command; returns its output as the error if it failed.
fn run_captured(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let text_of = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    Err(format!("{}\n{}\n{}", output.status, text_of(&output.stdout), text_of(&output.stderr))
        .into())
}

#[expect(clippy::disallowed_methods, reason = "how long a chore took is real time")]
fn now() -> Instant {
    Instant::now()
}

fn seconds(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 60.. => format!("{} min {} s", seconds / 60, seconds % 60),
        0..60 => format!("{:.1} s", duration.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_failed_step_no_other_runs() {
        let mut out = Vec::new();
        let mut steps = Steps { out: &mut out, failed: false };
        let mut steps_run = Vec::new();
        for (name, result) in [("a", Ok(())), ("b", Err("broken")), ("c", Ok(()))] {
            let work = |_: &mut dyn Write| {
                steps_run.push(name);
                result.map_err(Into::into)
            };
            steps.run(name, work).unwrap();
        }
        assert!(steps.failed);
        assert_eq!(steps_run, ["a", "b"]);
        let output_text = String::from_utf8(out).unwrap();
        assert!(output_text.contains("== passed in 0.0 s"), "{output_text}");
        assert!(output_text.contains("== failed after 0.0 s: b: broken"), "{output_text}");
    }

    #[test]
    fn the_extent_is_parsed_and_other_words_are_refused() {
        assert_eq!(TestScope::parse(&[]), Some(TestScope::Usual));
        for extent in [TestScope::Quick, TestScope::All] {
            assert_eq!(TestScope::parse(&[extent.options().trim()]), Some(extent));
        }
        for invalid in [&["--quickly"][..], &["--all", "--quick"], &["all"], &[""]] {
            assert_eq!(TestScope::parse(invalid), None, "{invalid:?}");
        }
    }

    #[test]
    fn every_integration_test_has_its_lane() {
        let target = |kind: &str, name: &str| serde_json::json!({"kind": [kind], "name": name});
        let targets = [target("lib", "x"), target("test", "peer"), target("test", END_TO_END)];
        let metadata = serde_json::json!({"packages": [
            {"name": "towpath-x", "targets": targets},
            {"name": "towpath", "targets": [target("test", "live"), target("bench", "speed")]},
        ]});
        assert_eq!(integration_tests(&metadata, |_| true), [END_TO_END, "live", "peer"]);
        let pure = integration_tests(&metadata, |name| !KERNEL_CRATES.contains(&name));
        assert_eq!(pure, [END_TO_END, "peer"]);
    }

    #[test]
    fn a_quiet_command_prints_only_on_failure() {
        let shell = |script: &str| run_captured(Command::new("sh").args(["-c", script]));
        assert!(shell("echo fine").is_ok());
        let message = shell("echo out; echo err >&2; exit 3").unwrap_err().to_string();
        assert!(message.contains("3\nout\nerr"), "{message}");
    }

    #[test]
    fn long_times_are_in_minutes() {
        assert_eq!(seconds(Duration::from_millis(1_250)), "1.2 s");
        assert_eq!(seconds(Duration::from_secs(125)), "2 min 5 s");
    }
}
