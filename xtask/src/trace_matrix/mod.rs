//! `cargo xtask trace-matrix`: what `towpath trace` claims about damaged captures, compared with
//! the truth.
//!
//! Random scenarios are simulated with a capture on each host. Each capture is analysed whole and
//! damaged: cut to a snap length, started late, with lost packets, ended early, merged with that of
//! the other host, or with each packet twice. Every answer is right, not decidable (and named so),
//! or wrong. [`capture`] rewrites captures, and [`judge`]
//! compares the answers. With `--tshark`, [`tshark`] compares undamaged captures with Wireshark.

mod capture;
mod judge;
mod tshark;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use self::capture::{CapturedFrames, Damage};
use self::judge::{Answer, QUESTIONS, Truth};
use self::tshark::TsharkComparison;
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
    /// True to compare undamaged captures with `tshark`, instead of the matrix.
    tshark: bool,
}

impl MatrixOptions {
    /// Parses the arguments; `None` if one is unknown.
    pub(crate) fn parse(arguments: &[&str]) -> Option<Self> {
        let mut options = Self {
            scenarios: 13,
            seed: 1,
            emulated: false,
            keep: None,
            towpath: None,
            tshark: false,
        };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match *argument {
                "--random" => options.scenarios = rest.next()?.parse().ok()?,
                "--seed" => options.seed = rest.next()?.parse().ok()?,
                "--emulated" => options.emulated = true,
                "--tshark" => options.tshark = true,
                "--keep" => options.keep = Some(PathBuf::from(rest.next()?)),
                "--towpath" => options.towpath = Some(PathBuf::from(rest.next()?)),
                _ => return None,
            }
        }
        Some(options)
    }
}

/// Answers about all captures so far.
#[derive(Debug, Default)]
struct Matrix {
    /// Number of each answer, by damage and question.
    cells: BTreeMap<(String, usize), BTreeMap<Answer, u32>>,
    captures: u32,
    wrong_claims: Vec<String>,
}

/// Runs the scenarios and prints the matrix. Returns false if a claim was wrong.
pub(crate) fn run(root: &Path, options: &MatrixOptions, out: &mut dyn Write) -> Result<bool> {
    let towpath = match &options.towpath {
        Some(towpath) => towpath.clone(),
        None => validate_vm::build(root)?,
    };
    let temporary = std::env::temp_dir().join(format!("towpath-matrix-{}", std::process::id()));
    let folder = options.keep.as_deref().unwrap_or(&temporary);
    fs::create_dir_all(folder)?;
    let mut matrix = Matrix::default();
    let mut comparison = options.tshark.then(TsharkComparison::new).transpose()?;
    for number in 1..=options.scenarios {
        let work = folder.join(number.to_string());
        fs::create_dir_all(&work)?;
        let file = work.join("scenario.toml");
        fs::write(&file, draw::scenario(options.seed, number))?;
        if let Some(truth) = capture_run(&towpath, &file, &work, options.emulated)? {
            let name = draw::name(options.seed, number);
            match &mut comparison {
                Some(comparison) => compare_run(comparison, &towpath, &work, &name)?,
                None => matrix.add_run(&towpath, &work, (&name, number), &truth)?,
            }
        }
        if options.keep.is_none() {
            fs::remove_dir_all(&work)?;
        }
    }
    if options.keep.is_none() {
        fs::remove_dir_all(folder)?;
    }
    if let Some(comparison) = comparison {
        comparison.print(out)?;
        return Ok(true);
    }
    matrix.print(out)?;
    for claim in &matrix.wrong_claims {
        writeln!(out, "wrong: {claim}")?;
    }
    Ok(matrix.wrong_claims.is_empty())
}

impl Matrix {
    /// Damages the captures of both hosts, analyses and judges them.
    fn add_run(
        &mut self,
        towpath: &Path,
        work: &Path,
        (name, number): (&str, u32),
        truth: &Truth,
    ) -> Result<()> {
        let [client, server] = captures_of(work)?;
        let [client_frames, server_frames] =
            [&client, &server].map(|path| CapturedFrames::read(&fs::read(path)?));
        let (client_frames, server_frames) = (client_frames?, server_frames?);
        for (path, frames, other, is_client) in [
            (&client, &client_frames, &server_frames, true),
            (&server, &server_frames, &client_frames, false),
        ] {
            // Merged captures are the same for both hosts.
            for damage in Damage::all().filter(|damage| is_client || !damage.is_merged()) {
                let damaged = work.join("damaged.pcap");
                fs::write(&damaged, frames.damaged(other, damage, (is_client, u64::from(number))))?;
                self.captures += 1;
                let taken_at = if is_client { "opener" } else { "acceptor" };
                let taken_at = Some(taken_at).filter(|_| damage.is_of_one_host());
                let records = analyse(towpath, &damaged, taken_at)?;
                let answers = judge::answers(truth, damage, &records);
                for (question, (answer, claim)) in answers.into_iter().enumerate() {
                    let cell = self.cells.entry((damage.to_string(), question)).or_default();
                    *cell.entry(answer).or_default() += 1;
                    if answer == Answer::Wrong {
                        let file = path.file_name().unwrap_or_default().to_string_lossy();
                        self.wrong_claims.push(format!("{name}, {file}, {damage}: {claim}"));
                    }
                }
            }
        }
        Ok(())
    }

    fn print(&self, out: &mut dyn Write) -> Result<()> {
        writeln!(out, "{} captures; each cell: right / not decidable / wrong\n", self.captures)?;
        write!(out, "| damage |")?;
        for question in QUESTIONS {
            write!(out, " {question} |")?;
        }
        writeln!(out, "\n|---|{}", "---|".repeat(QUESTIONS.len()))?;
        for damage in Damage::all() {
            write!(out, "| {damage} |")?;
            for question in 0..QUESTIONS.len() {
                let count = |answer: Answer| {
                    let cell = self.cells.get(&(damage.to_string(), question));
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
}

/// Compares the captures of both hosts, undamaged, with `tshark`.
fn compare_run(
    comparison: &mut TsharkComparison,
    towpath: &Path,
    work: &Path,
    name: &str,
) -> Result<()> {
    for (path, host, taken_at) in captures_of(work)?
        .iter()
        .zip(["client", "server"])
        .zip(["opener", "acceptor"])
        .map(|((path, host), taken_at)| (path, host, taken_at))
    {
        let frames = CapturedFrames::read(&fs::read(path)?)?.first(tshark::MAX_PACKETS);
        let file = work.join("compared.pcap");
        fs::write(&file, frames.damaged(&frames, Damage::None, (true, 0)))?;
        let records = analyse(towpath, &file, Some(taken_at))?;
        comparison.add(&format!("{name} {host}"), &file, &records)?;
    }
    Ok(())
}

/// Returns the captures of the client and of the server.
fn captures_of(work: &Path) -> Result<[PathBuf; 2]> {
    let mut files = Vec::new();
    for entry in fs::read_dir(work.join("pcap"))? {
        files.push(entry?.path());
    }
    let find = |host: &str| {
        let file = files.iter().find(|path| path.to_string_lossy().ends_with(host));
        file.cloned().ok_or_else(|| format!("no capture ends with `{host}`"))
    };
    Ok([find("client.pcapng")?, find("server.pcapng")?])
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
fn analyse(towpath: &Path, capture: &Path, taken_at: Option<&str>) -> Result<Vec<Value>> {
    let mut command = Command::new(towpath);
    command.args(["trace", "--json"]);
    if let Some(taken_at) = taken_at {
        command.args(["--capture-point", taken_at]);
    }
    let output = command.arg(capture).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).map_err(Into::into)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_understood_or_refused() {
        let options =
            MatrixOptions::parse(&["--random", "3", "--seed", "7", "--emulated", "--tshark"]);
        let options = options.unwrap();
        assert_eq!((options.scenarios, options.seed, options.emulated), (3, 7, true));
        assert!(options.tshark && options.keep.is_none());
        assert_eq!(MatrixOptions::parse(&["--random"]), None);
        assert_eq!(MatrixOptions::parse(&["--unknown"]), None);
    }
}
