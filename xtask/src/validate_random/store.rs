//! Store of runs: a folder for each scenario, with the whole result and the compared records of
//! each attempt.
//!
//! A run exists when its small file does, which is written last and by renaming. So several
//! processes may add to a store, and an interrupted one leaves no partial run. Existing runs are
//! never repeated.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use ruzstd::decoding::StreamingDecoder;
use serde_json::{Value, json};

use super::random::hash;
use super::scenario::ComparedScenario;
use crate::Result;

/// Attempts of an emulated run until it is reliable.
pub(super) const MAX_ATTEMPTS: u32 = 3;
/// Maximum lateness of the emulator at the 99th percentile, in ns; a run above it is unreliable.
pub(super) const MAX_LATENESS_NS: f64 = 1e6;
/// Maximum lateness at the 99.9th percentile, in ns. A packet lost by the emulator also counts.
pub(super) const MAX_TAIL_LATENESS_NS: f64 = 20e6;

/// Sending stack, and the network below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StackUnderTest {
    /// The kernel's stack over the emulator.
    Kernel,
    /// Our stack over the emulator.
    Towpath,
    /// Our stack in virtual time.
    Simulated,
}

impl StackUnderTest {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Towpath => "towpath",
            Self::Simulated => "sim",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        [Self::Kernel, Self::Towpath, Self::Simulated].into_iter().find(|side| side.name() == name)
    }
}

/// Store of results for one kernel and one binary.
#[derive(Debug, Clone)]
pub(super) struct RunStore {
    folder: PathBuf,
    /// Release of the running kernel.
    kernel: String,
    /// Hash of the command's binary.
    binary: u64,
}

/// State of one run in the store.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum StoredRunState {
    /// Not done yet; the next attempt has this number.
    Missing(u32),
    /// All attempts were unreliable, so the run is left out.
    LeftOut,
    /// Compared records, and the path of the whole result.
    Run(Value, PathBuf),
}

impl RunStore {
    pub(super) fn open(folder: &Path, kernel: &str, towpath: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let mut binary = Vec::new();
        File::open(towpath)?.read_to_end(&mut binary)?;
        Ok(Self {
            folder: folder.to_owned(),
            kernel: kernel.to_owned(),
            binary: hash_of_binary(&binary),
        })
    }

    /// Returns the folder of a scenario.
    pub(super) fn folder(&self, scenario: &ComparedScenario) -> PathBuf {
        self.folder.join(format!("{}-{:016x}", scenario.name, scenario.hash))
    }

    /// Returns a file's name without attempt and extension. Runs of the kernel do not depend on our
    /// binary.
    fn stem(&self, scenario: &ComparedScenario, side: StackUnderTest, run: u32) -> PathBuf {
        let transport = &scenario.transport;
        let stack_key = match side {
            StackUnderTest::Kernel => self.kernel.clone(),
            StackUnderTest::Towpath => {
                let profile = scenario.profile.as_ref();
                let profile = profile.map_or_else(String::new, |profile| format!("-{profile}"));
                format!("towpath-{:016x}{profile}", self.binary)
            }
            StackUnderTest::Simulated => {
                let text = scenario.text_of_run(run);
                let key = hash([&self.binary.to_le_bytes()[..], text.as_bytes()]);
                format!("sim-{key:016x}")
            }
        };
        self.folder(scenario).join(format!("{stack_key}-{transport}-{}", run + 1))
    }

    /// Finds run `run`, counted from 0.
    pub(super) fn find(
        &self,
        scenario: &ComparedScenario,
        side: StackUnderTest,
        run: u32,
    ) -> StoredRunState {
        let stem = self.stem(scenario, side, run);
        for attempt in 1..=MAX_ATTEMPTS {
            let (records_file, result_file) = attempt_files(&stem, attempt);
            let records =
                fs::read(&records_file).ok().and_then(|text| serde_json::from_slice(&text).ok());
            match records {
                None => return StoredRunState::Missing(attempt),
                Some(records) if !is_unreliable(&records) => {
                    return StoredRunState::Run(records, result_file);
                }
                Some(_) => {}
            }
        }
        StoredRunState::LeftOut
    }

    /// Keeps an attempt: moves the result at `result`, or records a failure.
    pub(super) fn add(
        &self,
        scenario: &ComparedScenario,
        side: StackUnderTest,
        (run, attempt): (u32, u32),
        result: Option<&Path>,
    ) -> Result<()> {
        let folder = self.folder(scenario);
        fs::create_dir_all(&folder)?;
        let text = folder.join("scenario.toml");
        if !text.exists() {
            fs::write(text, &scenario.text)?;
        }
        let (records_file, result_file) = attempt_files(&self.stem(scenario, side, run), attempt);
        let records = match result {
            Some(result) => {
                let records = read(result)?;
                fs::rename(result, result_file)?;
                records
            }
            None => json!({"summary": null, "timing": null}),
        };
        let part_file = records_file.with_extension(format!("{}-part", std::process::id()));
        let mut file = BufWriter::new(File::create(&part_file)?);
        serde_json::to_writer(&mut file, &records)?;
        file.flush()?;
        fs::rename(part_file, records_file)?;
        Ok(())
    }

    /// Returns a folder for unfinished runs.
    pub(super) fn temp_folder(&self, number: usize) -> Result<PathBuf> {
        let folder = self.folder.join(format!("running/{}-{number}", std::process::id()));
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }
}

/// Hashes the binary word by word: byte by byte takes seconds in an unoptimised build.
fn hash_of_binary(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(0xcbf2_9ce4_8422_2325, |hash: u64, chunk| {
        let word = chunk.iter().fold(0, |word: u64, byte| word << 8 | u64::from(*byte));
        (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    })
}

fn attempt_files(stem: &Path, attempt: u32) -> (PathBuf, PathBuf) {
    let with_extension = |extension: &str| {
        let mut name = stem.as_os_str().to_owned();
        name.push(format!(".{attempt}.{extension}"));
        PathBuf::from(name)
    };
    (with_extension("json"), with_extension("jsonl.zst"))
}

/// Reads the compared records of a result.
fn read(path: &Path) -> Result<Value> {
    let file = BufReader::new(File::open(path)?);
    let lines = BufReader::new(StreamingDecoder::new(file).map_err(|error| error.to_string())?);
    let (mut summary, mut timing) = (Value::Null, Value::Null);
    for line in lines.lines() {
        let line = line?;
        if line.starts_with("{\"type\":\"summary\"") {
            summary = serde_json::from_str(&line)?;
        } else if ["timing", "noise"]
            .iter()
            .any(|kind| line.starts_with(&format!("{{\"type\":\"{kind}\"")))
        {
            timing = serde_json::from_str(&line)?;
        }
    }
    Ok(json!({"summary": summary, "timing": timing}))
}

/// Returns true if the emulator itself was late or lost packets.
fn is_unreliable(records: &Value) -> bool {
    // Earlier versions stored the record as `noise`.
    let timing = |field: &str| {
        let stored = ["timing", "noise"].iter().find_map(|record| records.get(record)?.get(field));
        stored.and_then(Value::as_f64)
    };
    timing("lateness_p99_ns").is_some_and(|lateness_ns| lateness_ns > MAX_LATENESS_NS)
        || timing("lateness_p999_ns").is_some_and(|lateness_ns| lateness_ns > MAX_TAIL_LATENESS_NS)
        || timing("lost_packets").is_some_and(|lost_packets| lost_packets > 0.0)
}

#[cfg(test)]
mod tests {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    /// Writes a result whose emulator was this late.
    fn result(folder: &Path, late_ns: u64) -> PathBuf {
        let lines = format!(
            "{{\"type\":\"timing\",\"lateness_p99_ns\":{late_ns},\"lost_packets\":0}}\n\
             {{\"type\":\"summary\",\"ok\":true}}\n"
        );
        let path = folder.join("result");
        fs::write(&path, compress_to_vec(lines.as_bytes(), CompressionLevel::Fastest)).unwrap();
        path
    }

    #[test]
    fn an_unreliable_run_is_tried_three_times_and_a_good_one_once() {
        let folder = std::env::temp_dir().join(format!("towpath-twin-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let binary = folder.join("binary");
        fs::write(&binary, "a program").unwrap();
        let open = || RunStore::open(&folder, "6.18", &binary).unwrap();
        let scenario = &super::super::scenario::drawn(1, 1).unwrap()[0];
        let find = |run| open().find(scenario, StackUnderTest::Kernel, run);
        for attempt in 1..=MAX_ATTEMPTS {
            assert_eq!(find(0), StoredRunState::Missing(attempt));
            let late_result = result(&folder, 2_000_000);
            open().add(scenario, StackUnderTest::Kernel, (0, attempt), Some(&late_result)).unwrap();
        }
        assert_eq!(find(0), StoredRunState::LeftOut);
        assert_eq!(find(1), StoredRunState::Missing(1));
        let good_result = result(&folder, 90_000);
        open().add(scenario, StackUnderTest::Kernel, (1, 1), Some(&good_result)).unwrap();
        let StoredRunState::Run(records, result_file) = find(1) else { panic!("not kept") };
        assert_eq!(records.pointer("/summary/ok"), Some(&Value::Bool(true)));
        assert!(result_file.exists() && !good_result.exists());
        // Another binary needs another simulated run; the kernel's run stays.
        open().add(scenario, StackUnderTest::Simulated, (0, 1), None).unwrap();
        assert!(matches!(
            open().find(scenario, StackUnderTest::Simulated, 0),
            StoredRunState::Run(..)
        ));
        fs::write(&binary, "another program").unwrap();
        assert_eq!(open().find(scenario, StackUnderTest::Simulated, 0), StoredRunState::Missing(1));
        assert!(matches!(find(1), StoredRunState::Run(..)));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_run_is_degraded_by_its_emulator_alone() {
        let noise = |p99: u64, p999: u64, lost: u64| {
            json!({"timing": {
                "lateness_p99_ns": p99, "lateness_p999_ns": p999, "lost_packets": lost,
                "other_cpu_share": 0.9, "unreliable": true
            }})
        };
        assert!(!is_unreliable(&noise(999_999, 4_000_000, 0)));
        assert!(is_unreliable(&noise(1_100_000, 1_200_000, 0)));
        assert!(is_unreliable(&noise(100_000, 21_000_000, 0)));
        assert!(is_unreliable(&noise(100_000, 200_000, 1)));
        assert!(!is_unreliable(&json!({"summary": {}, "timing": null})));
    }
}
