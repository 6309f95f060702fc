//! Export of the results of a campaign as a folder, which can be analysed without the collector.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use towpath_analysis::folder::ABSENT_FILE;
use towpath_analysis::{CampaignData, RunFacts};

use crate::error::CollectError;
use crate::maintenance::{MaintenanceReport, RECORDS_SUFFIX};
use crate::store::{Store, create_private, unusable};

impl Store {
    /// Writes the results of a campaign as `DEVICE/ID.jsonl.zst`, and its planned runs without one
    /// as `absent.jsonl`. Only this user can read the folder.
    ///
    /// Fails if the folder exists and is not empty. It gets its name when it is complete.
    pub async fn export_results(
        &self,
        target: &Path,
        mut data: CampaignData,
    ) -> Result<MaintenanceReport, CollectError> {
        if fs::read_dir(target).is_ok_and(|mut entries| entries.next().is_some()) {
            let text = format!("`{}` is not empty: choose a new folder", target.display());
            return Err(CollectError::Choice(text));
        }
        rename_devices(&mut data)?;
        let unfinished = unfinished_path(target)?;
        let written = self.write_results(&unfinished, data).await;
        let written = written.and_then(|report| {
            fs::rename(&unfinished, target).map_err(|source| unusable(target, source))?;
            Ok(report)
        });
        if written.is_err() {
            let _ = fs::remove_dir_all(&unfinished); // best effort
        }
        written
    }

    async fn write_results(
        &self,
        folder: &Path,
        data: CampaignData,
    ) -> Result<MaintenanceReport, CollectError> {
        let CampaignData { campaign: _, runs, mut absent } = data;
        create_private(folder)?;
        let mut report = MaintenanceReport::default();
        for RunFacts { run, device, .. } in runs {
            let bytes = match self.objects.get(&run).await {
                Ok(bytes) => bytes,
                // The run was purged meanwhile.
                Err(_) if self.catalogue.run(&run).await?.is_none() => continue,
                Err(error) => return Err(error),
            };
            let of_device = folder.join(&device);
            create_private(&of_device)?;
            let path = of_device.join(format!("{run}{RECORDS_SUFFIX}"));
            fs::write(&path, &bytes).map_err(|source| unusable(&path, source))?;
            report.runs += 1;
            report.bytes += bytes.len() as u64;
        }
        absent.sort();
        let path = folder.join(ABSENT_FILE);
        let write = || {
            let mut file = BufWriter::new(File::create(&path)?);
            for run in &absent {
                serde_json::to_writer(&mut file, run)?;
                file.write_all(b"\n")?;
            }
            file.flush()
        };
        write().map_err(|source| unusable(&path, source))?;
        Ok(report)
    }
}

/// Returns the place of a folder that is being written, next to its target.
fn unfinished_path(target: &Path) -> Result<PathBuf, CollectError> {
    let Some(name) = target.file_name() else {
        let text = format!("`{}` cannot be a new folder", target.display());
        return Err(CollectError::Choice(text));
    };
    let name = name.to_string_lossy();
    Ok(target.with_file_name(format!(".{name}.{}.new", crate::secret::random_id()?)))
}

/// Gives each device a name that can be that of a folder. Fails if two devices would share one.
fn rename_devices(data: &mut CampaignData) -> Result<(), CollectError> {
    let mut folders: BTreeMap<String, String> = BTreeMap::new();
    let CampaignData { campaign: _, runs, absent } = data;
    let of_runs = runs.iter_mut().map(|run| &mut run.device);
    for device in of_runs.chain(absent.iter_mut().map(|run| &mut run.device)) {
        let folder = folder_name(device);
        let owner = folders.entry(folder.clone()).or_insert_with(|| device.clone());
        if owner != device {
            return Err(CollectError::Choice(format!(
                "the devices `{owner}` and `{device}` would have one folder"
            )));
        }
        *device = folder;
    }
    Ok(())
}

/// Replaces what the name of a folder cannot have.
fn folder_name(device: &str) -> String {
    match device {
        "" | "." | ".." => "_".to_owned(),
        device => device.replace(['/', '\0'], "_"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(devices: &[&str]) -> CampaignData {
        let run = |device: &&str| RunFacts { device: (*device).to_owned(), ..RunFacts::default() };
        CampaignData { runs: devices.iter().map(run).collect(), ..CampaignData::default() }
    }

    #[test]
    fn a_name_of_a_device_cannot_leave_the_folder() {
        let mut renamed = data(&["ada", "../eve", "..", "ada"]);
        rename_devices(&mut renamed).unwrap();
        let names: Vec<_> = renamed.runs.iter().map(|run| run.device.as_str()).collect();
        assert_eq!(names, ["ada", ".._eve", "_", "ada"]);
        let error = rename_devices(&mut data(&["a/b", "a_b"])).unwrap_err().to_string();
        assert!(error.contains("`a/b` and `a_b`"), "{error}");
    }

    #[test]
    fn a_folder_without_a_name_is_refused() {
        for path in ["..", "/"] {
            assert!(matches!(unfinished_path(Path::new(path)), Err(CollectError::Choice(_))));
        }
        let path = unfinished_path(Path::new("a/b")).unwrap();
        assert!(path.starts_with("a") && path.to_string_lossy().ends_with(".new"));
    }
}
