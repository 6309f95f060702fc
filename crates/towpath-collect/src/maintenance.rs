//! Work of the operator: backup, restore, and removal of old runs.
//!
//! A backup is independent of the database: one file in JSON Lines with tokens, devices and runs, and
//! one file for each run's records. So it also moves a collector from SQLite to PostgreSQL.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::access::Token;
use crate::device::{Consent, DeviceRow};
use crate::entry::RunEntry;
use crate::error::CollectError;
use crate::store::{Store, create_private, unusable};

/// Name of the file with tokens and rows.
const ROWS_FILE: &str = "catalogue.jsonl";
/// Rows that are read from the catalogue at a time.
pub(crate) const BATCH_RUNS: i64 = 500;

/// One line of a backup.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum BackupRow {
    /// A token with the hash of its secret.
    Token { token: Token, secret_hash: String },
    /// A version of the consent text.
    Consent { consent: Consent },
    /// A device, whose token is in a row before.
    Device { device: DeviceRow },
    /// A run with the identifier of the token that uploaded it.
    Run { run: Box<RunEntry>, uploader: String },
}

/// Amounts that a maintenance command handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MaintenanceReport {
    /// Runs that were saved, added or removed.
    pub runs: u64,
    /// Bytes of their compressed records.
    pub bytes: u64,
    /// Runs that were there already.
    pub skipped: u64,
    /// Runs that were left out, since the owners of their devices have deleted them here.
    pub withdrawn: u64,
}

impl MaintenanceReport {
    pub(crate) fn count(&mut self, run: &RunEntry) {
        self.runs += 1;
        self.bytes += run.stored_bytes.unsigned_abs();
    }
}

impl Store {
    /// Saves everything in a folder. Records that it has already are not written again.
    ///
    /// The server may run meanwhile. A run that is purged meanwhile is left out.
    pub async fn backup(&self, target: &Path) -> Result<MaintenanceReport, CollectError> {
        create_private(target)?;
        let temporary = target.join(format!("{ROWS_FILE}.new"));
        let failed = |source| unusable(&temporary, source);
        let mut rows = BufWriter::new(File::create(&temporary).map_err(failed)?);
        for (token, secret_hash) in self.catalogue.token_rows().await? {
            write_row(&mut rows, &BackupRow::Token { token, secret_hash }).map_err(failed)?;
        }
        for consent in self.catalogue.consent_rows().await? {
            write_row(&mut rows, &BackupRow::Consent { consent }).map_err(failed)?;
        }
        for device in self.catalogue.device_rows().await? {
            write_row(&mut rows, &BackupRow::Device { device }).map_err(failed)?;
        }
        let (mut report, mut last_id) = (MaintenanceReport::default(), String::new());
        loop {
            let runs = self.catalogue.runs_after(&last_id, BATCH_RUNS).await?;
            let Some((last, _)) = runs.last() else { break };
            last_id.clone_from(&last.id);
            for (run, uploader) in runs {
                if !self.save_records(target, &run).await? {
                    continue;
                }
                report.count(&run);
                let row = BackupRow::Run { run: Box::new(run), uploader };
                write_row(&mut rows, &row).map_err(failed)?;
            }
        }
        let file = rows.into_inner().map_err(|error| failed(error.into_error()))?;
        file.sync_all().map_err(failed)?;
        fs::rename(&temporary, target.join(ROWS_FILE)).map_err(failed)?;
        Ok(report)
    }

    /// Saves the records of a run; returns false if it was purged meanwhile.
    async fn save_records(&self, target: &Path, run: &RunEntry) -> Result<bool, CollectError> {
        let path = records_path(target, &run.id);
        let is_saved = fs::metadata(&path)
            .is_ok_and(|metadata| metadata.len() == run.stored_bytes.unsigned_abs());
        if is_saved {
            return Ok(true);
        }
        let bytes = match self.objects.get(&run.id).await {
            Ok(bytes) => bytes,
            Err(error) if self.catalogue.run(&run.id).await?.is_some() => return Err(error),
            Err(_) => return Ok(false),
        };
        if let Some(folder) = path.parent() {
            create_private(folder)?;
        }
        let temporary = path.with_extension("new");
        let write = || {
            let mut file = File::create(&temporary)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&temporary, &path)
        };
        write().map_err(|source| unusable(&path, source))?;
        Ok(true)
    }

    /// Adds everything from a backup. Runs and tokens that are here already are left as they are.
    /// Runs of devices whose owners have withdrawn their consent here are left out.
    pub async fn restore(&self, source: &Path) -> Result<MaintenanceReport, CollectError> {
        let path = source.join(ROWS_FILE);
        let failed = |error| unusable(&path, error);
        let rows = BufReader::new(File::open(&path).map_err(failed)?);
        let mut report = MaintenanceReport::default();
        for line in rows.lines() {
            let line = line.map_err(failed)?;
            let row = serde_json::from_str(&line).map_err(|error| failed(error.into()))?;
            match row {
                BackupRow::Token { token, secret_hash } => {
                    self.catalogue.insert_token(&token, &secret_hash).await?;
                }
                BackupRow::Consent { consent } => self.catalogue.add_consent(consent).await?,
                BackupRow::Device { device } => self.catalogue.add_device(&device).await?,
                BackupRow::Run { run: _, uploader }
                    if self.catalogue.has_withdrawn(&uploader).await? =>
                {
                    report.withdrawn += 1;
                }
                BackupRow::Run { run, uploader } => {
                    let path = records_path(source, &run.id);
                    let bytes = fs::read(&path).map_err(|error| unusable(&path, error))?;
                    if self.catalogue.run(&run.id).await?.is_some() {
                        report.skipped += 1;
                        continue;
                    }
                    self.objects.put(&run.id, bytes).await?;
                    self.catalogue.insert_run(&run, (&uploader, None)).await?;
                    report.count(&run);
                }
            }
        }
        Ok(report)
    }

    /// Removes runs that started before a time; with `dry_run`, only counts them.
    ///
    /// The row is removed first, so a row never lacks its records.
    pub async fn purge(
        &self,
        before_us: i64,
        dry_run: bool,
    ) -> Result<MaintenanceReport, CollectError> {
        let (mut report, mut last_id) = (MaintenanceReport::default(), String::new());
        loop {
            let runs = self.catalogue.runs_after(&last_id, BATCH_RUNS).await?;
            let Some((last, _)) = runs.last() else { return Ok(report) };
            last_id.clone_from(&last.id);
            for (run, _) in runs.iter().filter(|(run, _)| run.started_us < before_us) {
                if !dry_run {
                    self.catalogue.delete_run(run).await?;
                    self.objects.delete(&run.id).await?;
                }
                report.count(run);
            }
        }
    }
}

fn write_row(rows: &mut impl std::io::Write, row: &BackupRow) -> std::io::Result<()> {
    serde_json::to_writer(&mut *rows, row)?;
    rows.write_all(b"\n")
}

/// Returns the place of a run's records in a backup.
fn records_path(folder: &Path, id: &str) -> PathBuf {
    let start: String = id.chars().take(2).collect();
    folder.join("records").join(start).join(format!("{id}.jsonl.zst"))
}
