//! `cargo xtask failures`: runs the doctor in randomly drawn fault situations, and counts how often
//! it is right.
//!
//! The name of a situation is sufficient: `towpath lab failure random-SEED-NUMBER` makes its network.
//! With `--json` it prints the faults that were injected. Like all of xtask, this uses none of our
//! crates.

mod judge;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use serde_json::Value;

use self::judge::{DoctorRun, JudgedCase};
use crate::Result;

/// Command-line options of `cargo xtask failures`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FailureOptions {
    /// Number of situations of each seed.
    random: u32,
    seeds: Vec<u64>,
    /// Kind of the situations; others are skipped.
    kind: SituationKind,
    /// Number of concurrent doctor runs, which mostly wait.
    jobs: usize,
    /// Set to run the doctor as a user without privileges over the client's network.
    unprivileged: bool,
    /// Set to run the commands that the doctor prints, and then the doctor a second time.
    fix: bool,
    json: bool,
    towpath: Option<PathBuf>,
}

/// Kind of the situations to diagnose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SituationKind {
    All,
    /// Situations without a fault.
    Healthy,
    Faulty,
}

/// Shell script for the client's namespaces; prints the doctor's report and its duration.
const DOCTOR_SCRIPT: &str = r#"
begin=$(date +%s%3N)
$BECOME "$0" doctor --connect "$TOWPATH_CONNECT" --json
echo "took $(($(date +%s%3N) - begin))"
"#;

impl FailureOptions {
    /// Parses the arguments; `None` if they are not valid.
    pub(crate) fn parse(arguments: &[&str]) -> Option<Self> {
        let mut options = Self {
            random: 0,
            seeds: vec![1],
            kind: SituationKind::All,
            jobs: 4,
            unprivileged: false,
            fix: false,
            json: false,
            towpath: None,
        };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match *argument {
                "--random" => options.random = rest.next()?.parse().ok().filter(|n| *n > 0)?,
                "--jobs" => options.jobs = rest.next()?.parse().ok().filter(|n| *n > 0)?,
                "--seed" => {
                    let seeds = rest.next()?.split(',').map(|seed| seed.parse().ok());
                    options.seeds = seeds.collect::<Option<_>>()?;
                }
                "--healthy" => options.kind = SituationKind::Healthy,
                "--faulty" => options.kind = SituationKind::Faulty,
                "--unprivileged" => options.unprivileged = true,
                "--fix" => options.fix = true,
                "--json" => options.json = true,
                "--towpath" => options.towpath = Some(rest.next()?.into()),
                _ => return None,
            }
        }
        (options.random > 0).then_some(options)
    }
}

/// Runs the doctor in all situations and prints the results; returns false if one was wrong.
pub(crate) fn run(root: &Path, options: &FailureOptions, out: &mut dyn Write) -> Result<bool> {
    let towpath = match &options.towpath {
        Some(towpath) => towpath.clone(),
        None => crate::validate_vm::build(root)?,
    };
    let mut situations = Vec::new();
    for seed in &options.seeds {
        situations.extend(draw_situations(&towpath, *seed, options)?);
    }
    let queue = Mutex::new(situations.iter());
    let judged_by_name = Mutex::new(BTreeMap::new());
    let first_error = Mutex::new(None);
    thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().ok().and_then(|mut queue| queue.next());
                    let Some((name, truth)) = next else { return };
                    match diagnose(&towpath, name, truth, options) {
                        Ok(judged) => {
                            // Poisoned only after a panic.
                            let _ = judged_by_name.lock().map(|mut judged_by_name| {
                                judged_by_name.insert(name.clone(), judged)
                            });
                        }
                        Err(error) => {
                            let text = format!("{name}: {error}");
                            // Poisoned only after a panic.
                            let _ = first_error
                                .lock()
                                .map(|mut first_error| first_error.get_or_insert(text).clone());
                        }
                    }
                }
            });
        }
    });
    let judged_by_name = judged_by_name.into_inner()?;
    // In the order of drawing, not of the names.
    let judged: Vec<_> =
        situations.iter().filter_map(|(name, _)| judged_by_name.get(name)).collect();
    if options.json {
        for case in &judged {
            writeln!(out, "{}", case.json())?;
        }
    } else {
        judge::print(&judged, options.fix, out)?;
    }
    if let Some(error) = first_error.into_inner()? {
        return Err(error.into());
    }
    Ok(judged.iter().all(|case| case.is_correct()))
}

/// Returns names and truths of the first situations of a seed that have the requested kind.
fn draw_situations(
    towpath: &Path,
    seed: u64,
    options: &FailureOptions,
) -> Result<Vec<(String, Value)>> {
    let mut situations = Vec::new();
    let mut number = 0;
    while situations.len() < options.random as usize {
        let name = format!("random-{seed}-{number}");
        let output = Command::new(towpath).args(["lab", "failure", &name, "--json"]).output()?;
        let truth: Value = serde_json::from_slice(&output.stdout)?;
        let is_requested = match options.kind {
            SituationKind::All => true,
            SituationKind::Healthy => judge::is_healthy(&truth),
            SituationKind::Faulty => !judge::is_healthy(&truth),
        };
        if is_requested {
            situations.push((name, truth));
        }
        number += 1;
    }
    Ok(situations)
}

/// Makes one network and runs the doctor in it.
fn diagnose(
    towpath: &Path,
    name: &str,
    truth: &Value,
    options: &FailureOptions,
) -> Result<JudgedCase> {
    let truth = truth.clone();
    let before_fix = run_doctor(towpath, name, DOCTOR_SCRIPT, options.unprivileged)?;
    let after_fix = if options.fix && !before_fix.own_commands().is_empty() {
        let commands = before_fix.own_commands().join("\n");
        Some(run_doctor(
            towpath,
            name,
            &format!("{{\n{commands}\n}} >&2\n{DOCTOR_SCRIPT}"),
            options.unprivileged,
        )?)
    } else {
        None
    };
    Ok(JudgedCase { name: name.to_owned(), truth, before_fix, after_fix })
}

fn run_doctor(
    towpath: &Path,
    name: &str,
    script: &str,
    is_unprivileged: bool,
) -> Result<DoctorRun> {
    let mut command = Command::new(towpath);
    command.args(["lab", "failure", name, "--", "sh", "-c", script]).arg(towpath);
    command.env("BECOME", if is_unprivileged { "unshare --user" } else { "" }).stdin(Stdio::null());
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let (json, took_ms_text) = text.rsplit_once("took ").ok_or_else(|| {
        format!("the doctor said nothing: {}", String::from_utf8_lossy(&output.stderr))
    })?;
    Ok(DoctorRun { report: serde_json::from_str(json)?, took_ms: took_ms_text.trim().parse()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_understood_or_refused() {
        let options = FailureOptions::parse(&["--random", "3", "--seed", "4,5", "--fix"]).unwrap();
        assert_eq!((options.random, options.seeds, options.fix), (3, vec![4, 5], true));
        assert_eq!(options.kind, SituationKind::All);
        let options = FailureOptions::parse(&["--random", "3", "--healthy"]).unwrap();
        assert_eq!(options.kind, SituationKind::Healthy);
        for invalid in [&["--random", "0"][..], &["--seed", "1"], &["--random", "3", "--seed", "x"]]
        {
            assert_eq!(FailureOptions::parse(invalid), None, "{invalid:?}");
        }
    }
}
