//! `cargo xtask trace-matrix`: what `towpath trace` claims about damaged captures, compared with
//! the truth.
//!
//! Random scenarios are simulated with a capture on each host. Each capture is analysed whole and
//! damaged: cut to a snap length, started late, with lost packets, or ended early. Every answer is
//! right, not decidable (and named so), or wrong. [`capture`] rewrites captures, and [`judge`]
//! compares the answers.

mod capture;
mod judge;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use self::capture::{CapturedFrames, Damage};
use self::judge::{Answer, QUESTIONS, Truth};
use crate::Result;
use crate::validate_random::draw;
use crate::validate_vm;

/// Options of `cargo xtask trace-matrix`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MatrixOptions {
    /// Number of random scenarios.
    scenarios: u32,
    seed: u64,
    /// True for emulated runs over the kernel, instead of simulated ones.
    emulated: bool,
    /// Folder in which scenarios and captures are kept.
    keep: Option<PathBuf>,
    towpath: Option<PathBuf>,
}

impl MatrixOptions {
    /// Parses the arguments; `None` if one is unknown.
    pub(crate) fn parse(arguments: &[&str]) -> Option<Self> {
        let mut options =
            Self { scenarios: 13, seed: 1, emulated: false, keep: None, towpath: None };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match *argument {
                "--random" => options.scenarios = rest.next()?.parse().ok()?,
                "--seed" => options.seed = rest.next()?.parse().ok()?,
                "--emulated" => options.emulated = true,
                "--keep" => options.keep = Some(PathBuf::from(rest.next()?)),
                "--towpath" => options.towpath = Some(PathBuf::from(rest.next()?)),
                _ => return None,
            }
        }
        Some(options)
    }
}

/// Number of each answer, by damage and question.
type Matrix = BTreeMap<(String, usize), BTreeMap<Answer, u32>>;

/// Runs the scenarios and prints the matrix. Returns false if a claim was wrong.
pub(crate) fn run(root: &Path, options: &MatrixOptions, out: &mut dyn Write) -> Result<bool> {
    let towpath = match &options.towpath {
        Some(towpath) => towpath.clone(),
        None => validate_vm::build(root)?,
    };
    let temporary = std::env::temp_dir().join(format!("towpath-matrix-{}", std::process::id()));
    let folder = options.keep.as_deref().unwrap_or(&temporary);
    fs::create_dir_all(folder)?;
    let mut matrix = Matrix::new();
    let mut wrong_claims = Vec::new();
    let mut captures = 0;
    for number in 1..=options.scenarios {
        let work = folder.join(number.to_string());
        fs::create_dir_all(&work)?;
        let file = work.join("scenario.toml");
        fs::write(&file, draw::scenario(options.seed, number))?;
        let Some(truth) = capture_run(&towpath, &file, &work, options.emulated)? else { continue };
        for entry in fs::read_dir(work.join("pcap"))? {
            let path = entry?.path();
            let is_client = path.to_string_lossy().contains("client");
            let frames = CapturedFrames::read(&fs::read(&path)?)?;
            for damage in Damage::all() {
                let damaged = work.join("damaged.pcap");
                fs::write(&damaged, frames.pcap(damage, u64::from(number)))?;
                captures += 1;
                let records = analyse(&towpath, &damaged, is_client)?;
                let answers = judge::answers(&truth, damage, &records);
                for (question, (answer, claim)) in answers.into_iter().enumerate() {
                    let cell = matrix.entry((damage.to_string(), question)).or_default();
                    *cell.entry(answer).or_default() += 1;
                    if answer == Answer::Wrong {
                        let name = draw::name(options.seed, number);
                        let file = path.file_name().unwrap_or_default().to_string_lossy();
                        wrong_claims.push(format!("{name}, {file}, {damage}: {claim}"));
                    }
                }
            }
        }
        if options.keep.is_none() {
            fs::remove_dir_all(&work)?;
        }
    }
    if options.keep.is_none() {
        fs::remove_dir_all(folder)?;
    }
    print_matrix(&matrix, captures, out)?;
    for claim in &wrong_claims {
        writeln!(out, "wrong: {claim}")?;
    }
    Ok(wrong_claims.is_empty())
}

/// Runs a scenario with captures in `work/pcap`. Returns the truth; `None` if the run failed.
fn capture_run(towpath: &Path, file: &Path, work: &Path, emulated: bool) -> Result<Option<Truth>> {
    let output = Command::new(towpath)
        .arg("run")
        .arg(file)
        .args(["--world", if emulated { "emu" } else { "sim" }, "--json", "--quiet"])
        .arg("--pcap")
        .arg(work.join("pcap"))
        .arg("--out")
        .arg(work.join("out"))
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let Some(line) = text.lines().next() else { return Ok(None) };
    let run: Value = serde_json::from_str(line)?;
    Ok(Truth::of(&run))
}

/// Returns the records of `towpath trace --json`.
fn analyse(towpath: &Path, capture: &Path, is_client: bool) -> Result<Vec<Value>> {
    let output = Command::new(towpath)
        .args(["trace", "--json", "--capture-point"])
        .arg(if is_client { "opener" } else { "acceptor" })
        .arg(capture)
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).map_err(Into::into)).collect()
}

fn print_matrix(matrix: &Matrix, captures: u32, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "{captures} captures; each cell: right / not decidable / wrong\n")?;
    write!(out, "| damage |")?;
    for question in QUESTIONS {
        write!(out, " {question} |")?;
    }
    writeln!(out, "\n|---|{}", "---|".repeat(QUESTIONS.len()))?;
    for damage in Damage::all() {
        write!(out, "| {damage} |")?;
        for question in 0..QUESTIONS.len() {
            let count = |answer: Answer| {
                let cell = matrix.get(&(damage.to_string(), question));
                cell.and_then(|cell| cell.get(&answer)).copied().unwrap_or(0)
            };
            let [right, open, wrong] =
                [Answer::Right, Answer::NotDecidable, Answer::Wrong].map(count);
            write!(out, " {right} / {open} / {wrong} |")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_understood_or_refused() {
        let options = MatrixOptions::parse(&["--random", "3", "--seed", "7", "--emulated"]);
        let options = options.unwrap();
        assert_eq!((options.scenarios, options.seed, options.emulated), (3, 7, true));
        assert_eq!(MatrixOptions::parse(&["--random"]), None);
        assert_eq!(MatrixOptions::parse(&["--unknown"]), None);
    }
}
