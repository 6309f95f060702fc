//! Tests whose outcome also depends on the kernel, on real time or on a browser.
//!
//! They run like all others. The few that fail run again, alone, up to [`MAX_ATTEMPTS`] times in
//! all. A test that passes then is reported as flaky and does not fail the gate; a test that fails
//! every time does. Other tests never run twice.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde::Serialize;

use crate::{Result, cargo};

/// Maximum number of attempts, the first one included.
const MAX_ATTEMPTS: u32 = 3;

/// More failures than this in one target are a fault of the change, not of the machine: none of
/// them runs again.
const MAX_RETRIED_TESTS: usize = 12;

/// A test that failed at its first attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct RetriedTest {
    /// Name of the integration test target, as `cargo test --test` takes it.
    pub(super) target: String,
    pub(super) test: String,
    /// The attempt that passed; none if every attempt failed.
    pub(super) passed_on: Option<u32>,
    /// First lines of the panic message of each failed attempt.
    pub(super) causes: Vec<String>,
}

/// Runs integration tests of the workspace, one target at a time.
#[derive(Debug)]
pub(super) struct TargetRunner<'a> {
    pub(super) root: &'a Path,
    pub(super) environment: &'a [(OsString, OsString)],
}

/// Run of one target, with its output.
#[derive(Debug)]
pub(super) struct TargetRun {
    target: String,
    output: Output,
}

impl TargetRunner<'_> {
    /// Runs a target with further arguments for its test harness.
    pub(super) fn run(&self, target: &str, harness: &[&str]) -> Result<TargetRun> {
        let mut command = cargo(self.root);
        // The whole workspace: for one package, cargo would compile dependencies again.
        command.args(["test", "--locked", "--workspace", "--features", super::FEATURES]);
        command.args(["--test", target, "--"]).args(harness);
        command.envs(self.environment.iter().cloned()).stdin(Stdio::null());
        let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output()?;
        Ok(TargetRun { target: target.to_owned(), output })
    }

    /// Runs the failed tests of `ran` again, each alone; see [`retry`] for the errors.
    pub(super) fn retry(
        &self,
        target_run: &TargetRun,
        out: &mut dyn Write,
    ) -> Result<Vec<RetriedTest>> {
        retry(target_run, &mut |test| self.run(&target_run.target, &["--exact", test]), out)
    }
}

/// Reruns the failed tests of `ran` with `run`.
fn retry(
    target_run: &TargetRun,
    run_test: &mut dyn FnMut(&str) -> Result<TargetRun>,
    out: &mut dyn Write,
) -> Result<Vec<RetriedTest>> {
    if target_run.output.status.success() {
        return Ok(Vec::new());
    }
    let (target, stdout) = (&target_run.target, text(&target_run.output.stdout));
    let failed_names = failed_tests(&stdout);
    if failed_names.is_empty() {
        let status = target_run.output.status;
        return Err(format!("`{target}` ended with {status} and named no failed test").into());
    }
    if failed_names.len() > MAX_RETRIED_TESTS {
        let count = failed_names.len();
        return Err(format!("{count} tests of `{target}` failed: too many to retry").into());
    }
    let mut retried_tests = Vec::new();
    for test in failed_names {
        let mut causes = vec![cause(&stdout, &test)];
        let mut passed_on = None;
        for attempt in 2..=MAX_ATTEMPTS {
            writeln!(out, "\n{target}: {test} failed; attempt {attempt}, alone")?;
            let attempt_run = run_test(&test)?;
            attempt_run.print(out)?;
            let stdout = text(&attempt_run.output.stdout);
            if attempt_run.output.status.success() && stdout.contains(" 1 passed") {
                passed_on = Some(attempt);
                break;
            }
            causes.push(cause(&stdout, &test));
        }
        retried_tests.push(RetriedTest { target: target.clone(), test, passed_on, causes });
    }
    Ok(retried_tests)
}

impl TargetRun {
    /// Prints the target's output.
    pub(super) fn print(&self, out: &mut dyn Write) -> Result<()> {
        out.write_all(&self.output.stderr)?;
        out.write_all(&self.output.stdout)?;
        Ok(())
    }
}

/// Prints one line for each target and reason for which tests were skipped.
pub(super) fn report_skipped(target_runs: &[TargetRun], out: &mut dyn Write) -> Result<()> {
    let mut groups: BTreeMap<(String, String), usize> = BTreeMap::new();
    for target_run in target_runs {
        for reason in skip_reasons(&text(&target_run.output.stderr)) {
            *groups.entry((target_run.target.clone(), reason)).or_default() += 1;
        }
    }
    for ((target, reason), count) in groups {
        let tests = if count == 1 { "test" } else { "tests" };
        writeln!(out, "skipped: {count} {tests} of {target}: {reason}")?;
    }
    Ok(())
}

/// Writes `flaky.json` into cargo's target folder.
pub(super) fn write(retried: &[RetriedTest], folder: &Path) -> Result<PathBuf> {
    let path = folder.join("flaky.json");
    fs::create_dir_all(folder)?;
    fs::write(&path, serde_json::to_string_pretty(retried)? + "\n")?;
    Ok(path)
}

/// Returns one line for a test that ran again.
pub(super) fn describe(retried: &RetriedTest) -> String {
    let RetriedTest { target, test, passed_on, causes } = retried;
    let first_cause = causes.first().map_or("", String::as_str);
    match passed_on {
        Some(attempt) => {
            format!("flaky: {target}::{test}, passed on attempt {attempt} ({first_cause})")
        }
        None => {
            format!("failed: {target}::{test}, on each of {MAX_ATTEMPTS} attempts ({first_cause})")
        }
    }
}

/// Returns the names in the last list of failures that libtest printed.
fn failed_tests(stdout: &str) -> Vec<String> {
    let Some((_, list)) = stdout.rsplit_once("\nfailures:\n") else { return Vec::new() };
    let names = list.lines().map_while(|line| line.strip_prefix("    "));
    names.map(str::to_owned).collect()
}

/// Returns the panic message of a test, in one line of at most 200 characters.
fn cause(stdout: &str, test: &str) -> String {
    let section = stdout.split_once(&format!("\n---- {test} stdout ----\n")).map(|(_, rest)| rest);
    let section = section.map(|rest| rest.split("\n---- ").next().unwrap_or(rest));
    let panic_text =
        section.and_then(|text| text.split_once(" panicked at ")).map(|(_, rest)| rest);
    let Some(panic_text) = panic_text else { return "no panic message".to_owned() };
    let ends_message =
        |line: &str| line.starts_with("stack backtrace:") || line.starts_with("note: ");
    let lines = panic_text.lines().map(str::trim).take_while(|line| !ends_message(line));
    let line = lines.filter(|line| !line.is_empty()).take(3).collect::<Vec<_>>().join(" ");
    line.chars().take(200).collect()
}

/// Returns the reasons in lines of the form `SKIPPED test: reason`.
fn skip_reasons(stderr: &str) -> Vec<String> {
    let lines = stderr.lines().filter_map(|line| line.split_once("SKIPPED ").map(|(_, rest)| rest));
    lines.filter_map(|line| Some(line.split_once(": ")?.1.to_owned())).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    const LIBTEST_OUTPUT: &str = "
running 3 tests
test a::fine ... ok
test a::broken ... FAILED
test late ... FAILED

failures:

---- a::broken stdout ----

thread 'a::broken' (7) panicked at crates/x/tests/y.rs:10:5:
assertion failed: it was 3
stack backtrace:
   0: begin

---- late stdout ----
failures:
    not a test


failures:
    a::broken
    late

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s
";

    #[test]
    fn failed_tests_are_read_from_the_last_list() {
        assert_eq!(failed_tests(LIBTEST_OUTPUT), ["a::broken", "late"]);
        assert!(failed_tests("test a ... ok\n\ntest result: ok. 1 passed").is_empty());
        assert!(failed_tests("").is_empty());
    }

    #[test]
    fn the_cause_is_the_panic_message_of_that_test() {
        let expected = "crates/x/tests/y.rs:10:5: assertion failed: it was 3";
        assert_eq!(cause(LIBTEST_OUTPUT, "a::broken"), expected);
        assert_eq!(cause(LIBTEST_OUTPUT, "late"), "no panic message");
        assert_eq!(cause(LIBTEST_OUTPUT, "unknown"), "no panic message");
    }

    fn target_run(code: i32, stdout_text: &str) -> TargetRun {
        let (stdout, stderr) = (stdout_text.as_bytes().to_vec(), Vec::new());
        let output = Output { status: ExitStatus::from_raw(code << 8), stdout, stderr };
        TargetRun { target: "live".to_owned(), output }
    }

    const PASSED: &str = "test late ... ok\n\ntest result: ok. 1 passed; 0 failed;";
    const NONE_RAN: &str = "test result: ok. 0 passed; 0 failed;";

    #[test]
    fn a_failed_test_runs_again_until_it_passes_at_most_twice() {
        let mut attempts = Vec::new();
        let mut run_again = |test: &str| {
            attempts.push(test.to_owned());
            Ok(if test == "late" && attempts.len() > 3 {
                target_run(0, PASSED)
            } else {
                target_run(101, LIBTEST_OUTPUT)
            })
        };
        let retried_tests =
            retry(&target_run(101, LIBTEST_OUTPUT), &mut run_again, &mut Vec::new()).unwrap();
        assert_eq!(attempts, ["a::broken", "a::broken", "late", "late"]);
        let outcomes: Vec<_> =
            retried_tests.iter().map(|test| (test.test.as_str(), test.passed_on)).collect();
        assert_eq!(outcomes, [("a::broken", None), ("late", Some(3))]);
        assert_eq!((retried_tests[0].causes.len(), retried_tests[1].causes.len()), (3, 2));
    }

    #[test]
    fn a_retry_that_ran_no_test_has_not_passed() {
        let mut run_again = |_: &str| Ok(target_run(0, NONE_RAN));
        let retried_tests =
            retry(&target_run(101, LIBTEST_OUTPUT), &mut run_again, &mut Vec::new()).unwrap();
        assert!(retried_tests.iter().all(|test| test.passed_on.is_none()), "{retried_tests:?}");
    }

    #[test]
    fn crashes_and_many_failures_are_not_retried() {
        let mut run_again = |test: &str| panic!("{test} ran again");
        let mut retry_run =
            |first_run: TargetRun| retry(&first_run, &mut run_again, &mut Vec::new());
        assert!(retry_run(target_run(0, PASSED)).unwrap().is_empty());
        let crash = retry_run(target_run(139, "test a ... ")).unwrap_err().to_string();
        assert!(crash.contains("named no failed test"), "{crash}");
        let names: Vec<_> =
            (0..=MAX_RETRIED_TESTS).map(|number| format!("    t{number}")).collect();
        let list = format!("\nfailures:\n{}\n", names.join("\n"));
        let too_many = retry_run(target_run(101, &list)).unwrap_err().to_string();
        assert!(too_many.contains("13 tests of `live` failed"), "{too_many}");
    }

    #[test]
    fn a_retried_test_is_one_line() {
        let mut retried_test = RetriedTest {
            target: "live".into(),
            test: "quic::many".into(),
            passed_on: Some(2),
            causes: vec!["it timed out".into()],
        };
        assert_eq!(
            describe(&retried_test),
            "flaky: live::quic::many, passed on attempt 2 (it timed out)"
        );
        retried_test.passed_on = None;
        assert_eq!(
            describe(&retried_test),
            "failed: live::quic::many, on each of 3 attempts (it timed out)"
        );
    }

    #[test]
    fn skipped_tests_have_a_reason() {
        let stderr = "x\nSKIPPED lab::shell: no user namespaces: EPERM\ntest a ... SKIPPED b: c\n";
        assert_eq!(skip_reasons(stderr), ["no user namespaces: EPERM", "c"]);
    }
}
