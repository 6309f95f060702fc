//! Results in a folder, without a collector.
//!
//! Each subfolder has the results of one device, at any depth. Results that are directly in the folder belong to a
//! device without a name. The file `absent.jsonl` may list runs without a result.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use towpath_result::frames::FrameReader;
use towpath_result::input::ReadBudget;
use towpath_result::store::{StoreError, StoredRun};
use towpath_result::upload::{MAX_EXPANDED_BYTES, content_hash};

use crate::facts::RunFacts;
use crate::population::{AbsentRun, CampaignData};

/// Name of the file with runs that have no result, one JSON object per line.
pub const ABSENT_FILE: &str = "absent.jsonl";
/// Digits of a content hash that identify a run.
const ID_DIGITS: usize = 20;

/// Reason why a folder cannot be analysed.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// A folder or a file cannot be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Read {
        /// Path of the folder or file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A file is not a result.
    #[error("`{}` is not usable: {source}", path.display())]
    Result {
        /// Path of the file.
        path: PathBuf,
        /// Mistake in the file.
        source: StoreError,
    },
    /// A line is not a run without a result.
    #[error("`{}`, line {line}: {source}", path.display())]
    Absent {
        /// Path of the file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// Mistake in the line.
        source: serde_json::Error,
    },
    /// The folder has results of several campaigns, and none was chosen.
    #[error("`{}` has results of several campaigns: {}", path.display(), campaigns.join(", "))]
    Campaigns {
        /// Path of the folder.
        path: PathBuf,
        /// Names of the campaigns; `(none)` for results without one.
        campaigns: Vec<String>,
    },
    /// No result belongs to the campaign.
    #[error("`{}` has no results{}", path.display(), of_campaign(campaign.as_ref()))]
    Empty {
        /// Path of the folder.
        path: PathBuf,
        /// Name of the campaign, if one was chosen.
        campaign: Option<String>,
    },
}

fn of_campaign(campaign: Option<&String>) -> String {
    campaign.map_or_else(String::new, |name| format!(" of the campaign `{name}`"))
}

/// Reads the results in a folder. With `campaign`, those of other campaigns are left out.
pub fn read(dir: &Path, campaign: Option<&str>) -> Result<CampaignData, FolderError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| FolderError::Read { path, source }
    };
    let mut runs = Vec::new();
    let mut entries: Vec<PathBuf> = fs::read_dir(dir)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .map_err(failed(dir))?;
    entries.sort();
    for path in entries {
        if path.is_dir() {
            let device = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            for file in files_below(&path).map_err(failed(&path))? {
                runs.push(read_facts(&file, &device)?);
            }
        } else if is_result(&path) {
            runs.push(read_facts(&path, "")?);
        }
    }
    let found: BTreeSet<String> = runs.iter().map(|run| run.campaign.clone()).collect();
    let chosen = match (campaign, found.len()) {
        (Some(name), _) => name.to_owned(),
        (None, 0 | 1) => found.first().cloned().unwrap_or_default(),
        (None, _) => {
            let name =
                |name: &String| if name.is_empty() { "(none)".to_owned() } else { name.clone() };
            let campaigns = found.iter().map(name).collect();
            return Err(FolderError::Campaigns { path: dir.to_owned(), campaigns });
        }
    };
    runs.retain(|run| run.campaign == chosen);
    if runs.is_empty() {
        let campaign = campaign.map(str::to_owned);
        return Err(FolderError::Empty { path: dir.to_owned(), campaign });
    }
    let absent = read_absent(&dir.join(ABSENT_FILE))?;
    Ok(CampaignData { campaign: chosen, runs, absent })
}

fn is_result(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    (name.ends_with(".jsonl") || name.ends_with(".jsonl.zst")) && name != ABSENT_FILE
}

/// Returns the result files of a device in its folder and in the folders below, sorted. Symlinks are
/// not followed.
fn files_below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut files, mut dirs) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            if kind.is_dir() {
                dirs.push(path);
            } else if kind.is_file() && is_result(&path) {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

fn read_facts(path: &Path, device: &str) -> Result<RunFacts, FolderError> {
    let failed = |source| FolderError::Read { path: path.to_owned(), source };
    let budget = ReadBudget::of(MAX_EXPANDED_BYTES);
    let run = StoredRun::read(path, &budget, &ReadBudget::of(MAX_EXPANDED_BYTES))
        .map_err(|source| FolderError::Result { path: path.to_owned(), source })?;
    let file = BufReader::new(File::open(path).map_err(failed)?);
    let hash = if path.extension().is_some_and(|ending| ending == "zst") {
        content_hash(FrameReader::new(file).map_err(failed)?)
    } else {
        content_hash(file)
    };
    let (hash, _) = hash.map_err(failed)?;
    let id: String = hash.chars().take(ID_DIGITS).collect();
    Ok(RunFacts::of(&run, &id, device))
}

/// Reads the list of runs without a result; empty if there is no such file.
fn read_absent(path: &Path) -> Result<Vec<AbsentRun>, FolderError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(FolderError::Read { path: path.to_owned(), source }),
    };
    let mut absent = Vec::new();
    for (number, line) in BufReader::new(file).lines().enumerate() {
        let line = line.map_err(|source| FolderError::Read { path: path.to_owned(), source })?;
        if line.trim().is_empty() {
            continue;
        }
        let run = serde_json::from_str(&line).map_err(|source| FolderError::Absent {
            path: path.to_owned(),
            line: number + 1,
            source,
        })?;
        absent.push(run);
    }
    Ok(absent)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULT: &str = include_str!("../../towpath-result/tests/fixtures/result-v1.jsonl");

    /// Folder that is removed at the end of a test.
    struct TestFolder(PathBuf);

    impl TestFolder {
        fn new(name: &str) -> Self {
            let name = format!("towpath-analysis-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&path); // of a test that was killed
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.0.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    impl Drop for TestFolder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0); // best effort
        }
    }

    #[test]
    fn each_subfolder_is_a_device() {
        let folder = TestFolder::new("devices");
        folder.write("d1/day/a.jsonl", RESULT);
        folder.write("b.jsonl", &RESULT.replace("\"seed\":1", "\"seed\":2"));
        folder.write("d1/notes.txt", "not a result");
        folder.write(
            ABSENT_FILE,
            "{\"device\":\"d2\",\"round\":0,\"run\":1,\"pattern\":\"ping\",\
            \"transport\":\"quic\",\"family\":\"ipv4\",\"port\":443,\"reason\":\"missed\"}\n\n",
        );
        let data = read(&folder.0, None).unwrap();
        let devices: Vec<_> = data.runs.iter().map(|run| run.device.as_str()).collect();
        assert_eq!(devices, ["", "d1"]);
        let (hash, _) = content_hash(RESULT.as_bytes()).unwrap();
        assert_eq!(data.runs[1].run, hash[..ID_DIGITS]);
        assert_eq!(data.absent.len(), 1);
    }

    #[test]
    fn errors_name_the_file() {
        let folder = TestFolder::new("errors");
        let error = |campaign| read(&folder.0, campaign).unwrap_err().to_string();
        assert!(error(None).ends_with("has no results"), "{}", error(None));
        assert!(error(Some("x")).ends_with("has no results of the campaign `x`"));
        folder.write("d1/a.jsonl", "{}\n");
        assert!(error(None).contains("a.jsonl` is not usable: line 1"), "{}", error(None));
        folder.write("d1/a.jsonl", RESULT);
        folder.write(ABSENT_FILE, "{\n");
        assert!(error(None).contains("absent.jsonl`, line 1"), "{}", error(None));
        let other = RESULT.replacen("\"conditions\":{", "\"conditions\":{\"campaign\":\"y\",", 1);
        folder.write("d2/b.jsonl", &other);
        assert!(error(None).ends_with("several campaigns: (none), y"), "{}", error(None));
        fs::remove_file(folder.0.join(ABSENT_FILE)).unwrap();
        assert_eq!(read(&folder.0, Some("y")).unwrap().runs.len(), 1);
    }
}
