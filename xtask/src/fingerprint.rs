//! `cargo xtask fingerprint`: SHA-256 of all that the simulator produces.
//!
//! A change that must not alter behaviour, such as a rename, is checked by comparing the output of
//! this command before and after. It simulates every built-in scenario over four transports with
//! three seeds, then every reproduction. The seeds and virtual time determine each result, so the
//! same code prints the same lines on any machine and with any number of jobs.
//!
//! Hashes cover the values of a result, not its layout: records are parsed, the conditions of the
//! machine are removed, and keys are sorted.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ruzstd::decoding::StreamingDecoder;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::Result;

const TRANSPORTS: &str = "tcp,mptcp,quic,mpquic";
const SEEDS: [&str; 3] = ["1", "2", "3"];
/// Keys whose values describe the machine, the program or durations.
const MACHINE_KEYS: [&str; 6] = ["towpath", "kernel", "started", "command", "cpu", "wall_ns"];

/// Arguments of the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    /// Simulations that run in parallel.
    jobs: u32,
    /// Path of the towpath binary; `None` builds a release.
    towpath: Option<PathBuf>,
    /// File of renames: a key or value NEW of this build counts as OLD (see [`Renames`]).
    renamed: Option<PathBuf>,
    /// Prefix of the scenarios' and reproductions' names.
    only: String,
}

impl Options {
    /// Returns `None` for arguments that the usage text does not allow.
    pub(crate) fn parse(arguments: &[&str]) -> Option<Self> {
        let mut options = Self { jobs: 2, towpath: None, renamed: None, only: String::new() };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match *argument {
                "--jobs" => options.jobs = rest.next()?.parse().ok().filter(|jobs| *jobs > 0)?,
                "--towpath" => options.towpath = Some(rest.next()?.into()),
                "--renamed" => options.renamed = Some(rest.next()?.into()),
                "--only" => options.only = String::from(*rest.next()?),
                _ => return None,
            }
        }
        Some(options)
    }
}

/// Renames between two builds, each from the name in this build to the name that is hashed.
#[derive(Debug, Default)]
struct Renames {
    /// Keys, and values that are a name: lines `OLD NEW`.
    names: BTreeMap<String, String>,
    /// Parts of any text, such as of a scenario: lines with a tab between OLD and NEW.
    parts: Vec<(String, String)>,
}

impl Renames {
    /// Returns the name that is hashed for a key or value.
    fn former(&self, name: &str) -> String {
        let whole = self.names.get(name).map_or(name, String::as_str).to_owned();
        self.parts.iter().fold(whole, |text, (new, old)| text.replace(new, old))
    }
}

/// Prints `HASH  NAME` for each file of results, then the hash of these lines.
pub(crate) fn run(root: &Path, options: &Options, out: &mut dyn Write) -> Result<bool> {
    let towpath = match &options.towpath {
        Some(towpath) => towpath.clone(),
        None => crate::validate_vm::build(root)?,
    };
    let renames = match &options.renamed {
        Some(file) => renames(&fs::read_to_string(file)?),
        None => Renames::default(),
    };
    let folder = root.join("target").join("fingerprint");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let call = TowpathCommand { towpath: &towpath, jobs: options.jobs.to_string() };
    let mut total = Sha256::new();
    let mut print = |name: &str, hash: &str| {
        let line = format!("{hash}  {name}\n");
        total.update(&line);
        out.write_all(line.as_bytes())
    };
    for scenario in call.names(&["scenarios", "--json"], &options.only)? {
        for seed in SEEDS {
            let results = folder.join(&scenario).join(seed);
            call.simulate(&scenario, seed, &results)?;
            for file in files(&results)?.iter().filter(|file| extension(file) == Some("zst")) {
                let hash = hash_records(&read_zst(file)?, &renames)?;
                print(&format!("{scenario} seed {seed} {}", stem(file)), &hash)?;
            }
        }
    }
    for name in call.names(&["reproduce", "--json"], &options.only)? {
        let results = folder.join("reproduce").join(&name);
        call.reproduce(&name, &results)?;
        for file in files(&results)?.iter().filter(|file| extension(file) == Some("csv")) {
            print(&format!("reproduce {}", stem(file)), &hex(&Sha256::digest(fs::read(file)?)))?;
        }
    }
    let total = hex(&total.finalize());
    writeln!(out, "{total}  all of the above")?;
    Ok(true)
}

/// Parses the lines of `--renamed`.
fn renames(text: &str) -> Renames {
    let mut renames = Renames::default();
    for line in text.lines() {
        if let Some((old, new)) = line.split_once('\t') {
            renames.parts.push((new.to_owned(), old.to_owned()));
        } else if let Some((old, new)) = line.split_once(' ') {
            renames.names.insert(new.trim().to_owned(), old.to_owned());
        }
    }
    renames
}

/// Invocation of the towpath binary.
struct TowpathCommand<'a> {
    towpath: &'a Path,
    jobs: String,
}

impl TowpathCommand<'_> {
    /// Runs one scenario over all transports. A scenario that rejects a transport leaves no result.
    fn simulate(&self, scenario: &str, seed: &str, results: &Path) -> Result<()> {
        let mut command = Command::new(self.towpath);
        command.args(["run", "-q", "--json", "--world", "sim", "--transport", TRANSPORTS]);
        command.args(["--seed", seed, "--jobs", &self.jobs, scenario, "-o"]).arg(results);
        // Exit code 1 is a missed expectation: that is a result as well.
        Self::finish(command, 1)
    }

    /// Runs the quick part of one reproduction.
    fn reproduce(&self, name: &str, results: &Path) -> Result<()> {
        let mut command = Command::new(self.towpath);
        command.args(["reproduce", "--quick", "--world", "sim", "--jobs", &self.jobs, name, "-o"]);
        command.arg(results);
        Self::finish(command, 1)
    }

    /// Fails if the command's exit code is above `max_code`.
    fn finish(mut command: Command, max_code: i32) -> Result<()> {
        let output = command.stdout(Stdio::null()).stderr(Stdio::piped()).output()?;
        match output.status.code() {
            Some(code) if code <= max_code => Ok(()),
            _ => {
                let text = String::from_utf8_lossy(&output.stderr);
                Err(format!("{command:?} ended with {}: {}", output.status, text.trim()).into())
            }
        }
    }

    /// Reads names from a list that towpath prints as JSON: one array, or one object per line.
    ///
    /// Leaves out scenarios that cannot be simulated.
    fn names(&self, arguments: &[&str], prefix: &str) -> Result<Vec<String>> {
        let output = Command::new(self.towpath).args(arguments).output()?;
        let mut names = Vec::new();
        for value in serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>() {
            match value? {
                Value::Array(entries) => names.extend(entries.iter().filter_map(name_of)),
                entry @ (Value::Null
                | Value::Bool(_)
                | Value::Number(_)
                | Value::String(_)
                | Value::Object(_)) => names.extend(name_of(&entry)),
            }
        }
        if names.is_empty() {
            return Err(format!("{} {arguments:?} lists no names", self.towpath.display()).into());
        }
        names.retain(|name| name.starts_with(prefix));
        Ok(names)
    }
}

fn name_of(entry: &Value) -> Option<String> {
    let worlds = entry.get("worlds").and_then(Value::as_array);
    let can_be_simulated = worlds.is_none_or(|worlds| worlds.iter().any(|world| world == "sim"));
    entry.get("name").and_then(Value::as_str).filter(|_| can_be_simulated).map(String::from)
}

/// Returns the files of a folder, sorted by name.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        files.push(entry?.path());
    }
    files.retain(|path| path.is_file());
    files.sort();
    Ok(files)
}

fn extension(file: &Path) -> Option<&str> {
    file.extension()?.to_str()
}

/// Returns the file name without its extensions.
fn stem(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// Parses the lines of a compressed result.
fn read_zst(file: &Path) -> Result<Vec<Value>> {
    let lines = BufReader::new(StreamingDecoder::new(File::open(file)?)?).lines();
    lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}

/// Hashes records as compact JSON lines with sorted keys.
fn hash_records(records: &[Value], renames: &Renames) -> Result<String> {
    let mut hash = Sha256::new();
    for record in records {
        hash.update(serde_json::to_vec(&canonical(record, renames))?);
        hash.update(b"\n");
    }
    Ok(hex(&hash.finalize()))
}

/// Removes conditions of the machine and restores the old names of keys.
fn canonical(value: &Value, renames: &Renames) -> Value {
    match value {
        Value::Object(fields) => {
            let fields_to_hash =
                fields.iter().filter(|(key, _)| !MACHINE_KEYS.contains(&key.as_str()));
            let entries =
                fields_to_hash.map(|(key, value)| (renames.former(key), canonical(value, renames)));
            // Sorted here: features of other crates decide whether a map of serde_json is.
            Value::Object(entries.collect::<BTreeMap<_, _>>().into_iter().collect())
        }
        Value::Array(values) => {
            Value::Array(values.iter().map(|value| canonical(value, renames)).collect())
        }
        Value::String(text) => Value::String(renames.former(text)),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renamed_key_and_another_machine_keep_the_hash() {
        let before: Value = serde_json::from_str(r#"{"b": [{"old": 1}], "a": 2}"#).unwrap();
        let after: Value =
            serde_json::from_str(r#"{"a": 2, "b": [{"new": 1}], "kernel": "7.0"}"#).unwrap();
        let hash = |value: &Value, text| {
            hash_records(std::slice::from_ref(value), &renames(text)).unwrap()
        };
        assert_eq!(hash(&before, ""), hash(&after, "old new\n"));
        assert_ne!(hash(&before, ""), hash(&after, ""));
        let texts = ["how = 1\nx", "mode = 1\nx"].map(Value::from);
        assert_eq!(hash(&texts[0], ""), hash(&texts[1], "how =\tmode =\n"));
        let values = ["late", "out-of-order"].map(Value::from);
        assert_eq!(hash(&values[0], ""), hash(&values[1], "late out-of-order\n"));
    }

    #[test]
    fn another_value_or_order_of_records_changes_the_hash() {
        let records: Vec<Value> = (1..=3).map(Value::from).collect();
        let hash = |records: &[Value]| hash_records(records, &Renames::default()).unwrap();
        let mut reordered = records.clone();
        reordered.swap(0, 1);
        assert_ne!(hash(&records), hash(&reordered));
        assert_ne!(hash(&records), hash(&records[..2]));
    }

    #[test]
    fn reproductions_without_a_simulated_world_are_left_out() {
        let name = |text: &str| name_of(&serde_json::from_str(text).unwrap());
        assert_eq!(name(r#"{"name": "a"}"#), Some("a".to_owned()));
        assert_eq!(name(r#"{"name": "b", "worlds": ["emu", "sim"]}"#), Some("b".to_owned()));
        assert_eq!(name(r#"{"name": "c", "worlds": ["emu"]}"#), None);
    }
}
