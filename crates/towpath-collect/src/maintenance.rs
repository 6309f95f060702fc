//! Work of the operator: backup, restore, removal of old runs, and the audit log.
//!
//! A backup is independent of the database: one file in JSON Lines with tokens, devices, campaigns,
//! the audit log and runs, one file for each run's records, and the key of campaigns. So it also
//! moves a collector from SQLite to PostgreSQL. Facts of runs are computed again.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use towpath_campaign::Outcome;
use towpath_result::format;

use crate::access::Token;
use crate::audit::{AuditAction, AuditEntry};
use crate::campaign::{CampaignRow, OutcomeRow};
use crate::device::{Consent, DeviceRow};
use crate::entry::{ID_DIGITS, RunEntry};
use crate::error::CollectError;
use crate::store::{Store, create_private, unusable};
use crate::test_server::TestServerRow;
use crate::time::{self, DAY_US};

/// Name of the file with tokens and rows.
const ROWS_FILE: &str = "catalogue.jsonl";
/// Name of the folder of records in a backup.
const RECORDS_FOLDER: &str = "records";
/// End of the name of a file of records, after the identifier of the run.
pub(crate) const RECORDS_SUFFIX: &str = ".jsonl.zst";
/// Rows that are read from the catalogue at a time.
pub(crate) const BATCH_RUNS: i64 = 500;
/// Outcomes of a backup that are added at a time.
const BATCH_OUTCOMES: usize = 500;

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
    /// A campaign.
    Campaign { campaign: CampaignRow },
    /// A test server with its key, whose token is in a row before.
    Server { server: TestServerRow },
    /// A run with the identifier of the token that uploaded it.
    Run { run: Box<RunEntry>, uploader: String },
    /// An outcome, whose device and campaign are in rows before.
    Outcome { outcome: OutcomeRow },
    /// An entry of the audit log.
    Audit { entry: AuditEntry },
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

impl fmt::Display for MaintenanceReport {
    /// Writes the amounts, such as `3 runs, 1.2 MB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", format::count(self.runs, "run"), format::bytes(self.bytes))
    }
}

impl MaintenanceReport {
    pub(crate) fn count(&mut self, run: &RunEntry) {
        self.runs += 1;
        self.bytes += run.stored_bytes.unsigned_abs();
    }
}

impl Store {
    /// Returns the entries of the audit log, the oldest first; with `since`, those from the start of
    /// a day such as `2026-11-28` (UTC).
    pub async fn audit_log(&self, since: Option<&str>) -> Result<Vec<AuditEntry>, CollectError> {
        let day = |text: &str| {
            let invalid = format!("`{}` is not a day such as 2026-11-28", text.escape_debug());
            time::parse_day(text).ok_or(CollectError::Choice(invalid))
        };
        let since_us = since.map(day).transpose()?.map(|day| day.saturating_mul(DAY_US));
        self.catalogue.audit_entries(since_us.unwrap_or(i64::MIN)).await
    }

    /// Adds an entry about an action that was just completed.
    pub(crate) async fn log(
        &self,
        action: AuditAction,
        object: &str,
        detail: &str,
    ) -> Result<(), CollectError> {
        let entry = AuditEntry::new(time::now_us(), &self.actor, action, object, detail)?;
        self.catalogue.add_audit_entry(&entry).await
    }

    /// Saves everything in a folder. Records that it has already are not written again, and those
    /// of runs that are no longer here are removed.
    ///
    /// The server may run meanwhile. A run that is purged meanwhile is left out.
    pub async fn backup(&self, target: &Path) -> Result<MaintenanceReport, CollectError> {
        create_private(target)?;
        self.back_up_key(target)?;
        let temporary = target.join(format!("{ROWS_FILE}.new"));
        let failed = |source| unusable(&temporary, source);
        let mut rows = BufWriter::new(File::create(&temporary).map_err(failed)?);
        // Read first: the token of each is in a row before.
        let servers = self.catalogue.test_server_rows().await?;
        for (token, secret_hash) in self.catalogue.token_rows().await? {
            write_row(&mut rows, &BackupRow::Token { token, secret_hash }).map_err(failed)?;
        }
        for server in servers {
            write_row(&mut rows, &BackupRow::Server { server }).map_err(failed)?;
        }
        for consent in self.catalogue.consent_rows().await? {
            write_row(&mut rows, &BackupRow::Consent { consent }).map_err(failed)?;
        }
        let mut devices = BTreeSet::new();
        for device in self.catalogue.device_rows().await? {
            devices.insert(device.token.clone());
            write_row(&mut rows, &BackupRow::Device { device }).map_err(failed)?;
        }
        let mut campaigns = BTreeSet::new();
        for campaign in self.catalogue.campaigns(i64::MIN).await? {
            campaigns.insert(campaign.name.clone());
            write_row(&mut rows, &BackupRow::Campaign { campaign }).map_err(failed)?;
        }
        // Devices that join meanwhile are not in the backup, so their outcomes are not either.
        self.visit_outcomes(|outcome| {
            let OutcomeRow { token, outcome: Outcome { campaign, .. } } = &outcome;
            if devices.contains(token) && campaigns.contains(campaign) {
                write_row(&mut rows, &BackupRow::Outcome { outcome }).map_err(failed)?;
            }
            Ok(())
        })
        .await?;
        for entry in self.catalogue.audit_entries(i64::MIN).await? {
            write_row(&mut rows, &BackupRow::Audit { entry }).map_err(failed)?;
        }
        let mut ids = BTreeSet::new();
        let report = self
            .back_up_runs(target, |run, uploader| {
                ids.insert(run.id.clone());
                let row = BackupRow::Run { run: Box::new(run), uploader };
                write_row(&mut rows, &row).map_err(failed)
            })
            .await?;
        let file = rows.into_inner().map_err(|error| failed(error.into_error()))?;
        file.sync_all().map_err(failed)?;
        fs::rename(&temporary, target.join(ROWS_FILE)).map_err(failed)?;
        remove_old_records(target, &ids)?;
        let folder = target.display().to_string();
        self.log(AuditAction::BackupMade, &folder, &report.to_string()).await?;
        Ok(report)
    }

    /// Saves the records of all runs, and calls a function with each run and its uploader.
    async fn back_up_runs(
        &self,
        target: &Path,
        mut visit: impl FnMut(RunEntry, String) -> Result<(), CollectError>,
    ) -> Result<MaintenanceReport, CollectError> {
        let (mut report, mut last_id) = (MaintenanceReport::default(), String::new());
        loop {
            let runs = self.catalogue.runs_after(&last_id, BATCH_RUNS).await?;
            let Some((last, _)) = runs.last() else { return Ok(report) };
            last_id.clone_from(&last.id);
            for (run, uploader) in runs {
                if self.save_records(target, &run).await? {
                    report.count(&run);
                    visit(run, uploader)?;
                }
            }
        }
    }

    /// Calls a function with each outcome.
    async fn visit_outcomes(
        &self,
        mut visit: impl FnMut(OutcomeRow) -> Result<(), CollectError>,
    ) -> Result<(), CollectError> {
        let mut last = None;
        loop {
            let outcomes = self.catalogue.outcomes_after(last.as_ref(), BATCH_RUNS).await?;
            if outcomes.is_empty() {
                return Ok(());
            }
            last = outcomes.last().cloned();
            for outcome in outcomes {
                visit(outcome)?;
            }
        }
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
        self.restore_key(source).await?;
        let mut report = MaintenanceReport::default();
        let (mut outcomes, mut others) = (Vec::new(), BTreeSet::new());
        for line in rows.lines() {
            let line = line.map_err(failed)?;
            let row = serde_json::from_str(&line).map_err(|error| failed(error.into()))?;
            match row {
                BackupRow::Token { token, secret_hash } => {
                    self.catalogue.insert_token(&token, &secret_hash).await?;
                }
                BackupRow::Consent { consent } => self.catalogue.add_consent(consent).await?,
                BackupRow::Audit { entry } => self.catalogue.add_audit_entry(&entry).await?,
                BackupRow::Device { device } => self.catalogue.add_device(&device).await?,
                BackupRow::Server { server } => self.catalogue.add_test_server(&server).await?,
                BackupRow::Campaign { campaign } => {
                    // Outcomes of another campaign with the same name do not belong here.
                    if !self.catalogue.insert_campaign(&campaign).await?
                        && self.catalogue.campaign(&campaign.name).await?.signature
                            != campaign.signature
                    {
                        others.insert(campaign.name);
                    }
                }
                BackupRow::Outcome { outcome } if others.contains(&outcome.outcome.campaign) => {}
                BackupRow::Outcome { outcome } => {
                    outcomes.push(outcome);
                    if outcomes.len() >= BATCH_OUTCOMES {
                        self.catalogue.restore_outcomes(&outcomes).await?;
                        outcomes.clear();
                    }
                }
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
                    self.catalogue.insert_run(&run, (&uploader, None), None).await?;
                    report.count(&run);
                }
            }
        }
        self.catalogue.restore_outcomes(&outcomes).await?;
        let folder = source.display().to_string();
        self.log(AuditAction::BackupRestored, &folder, &report.to_string()).await?;
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
        let mut report = MaintenanceReport::default();
        let purged = self.purge_runs(before_us, dry_run, &mut report).await;
        // A purge that failed has removed some runs as well.
        if !dry_run && report.runs > 0 {
            let object = format!("runs before {}", time::text(before_us));
            self.log(AuditAction::RunsPurged, &object, &report.to_string()).await?;
        }
        purged.map(|()| report)
    }

    async fn purge_runs(
        &self,
        before_us: i64,
        dry_run: bool,
        report: &mut MaintenanceReport,
    ) -> Result<(), CollectError> {
        let mut last_id = String::new();
        loop {
            let runs = self.catalogue.runs_after(&last_id, BATCH_RUNS).await?;
            let Some((last, _)) = runs.last() else { return Ok(()) };
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
    folder.join(RECORDS_FOLDER).join(start).join(format!("{id}{RECORDS_SUFFIX}"))
}

/// Removes the records of runs that are not in a backup. Other files stay, and links are not
/// followed.
fn remove_old_records(target: &Path, ids: &BTreeSet<String>) -> Result<(), CollectError> {
    let records = target.join(RECORDS_FOLDER);
    for start in entries(&records)? {
        for path in entries(&start)? {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let Some(id) = name.strip_suffix(RECORDS_SUFFIX) else { continue };
            if is_id(id) && records_path(target, id) == path && !ids.contains(id) {
                fs::remove_file(&path).map_err(|source| unusable(&path, source))?;
            }
        }
    }
    Ok(())
}

/// Lists a folder; empty for other files, links and names without a file.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, CollectError> {
    if !fs::symlink_metadata(folder).is_ok_and(|metadata| metadata.is_dir()) {
        return Ok(Vec::new());
    }
    let failed = |source| unusable(folder, source);
    let entries = fs::read_dir(folder).map_err(failed)?;
    entries.map(|entry| Ok(entry.map_err(failed)?.path())).collect()
}

/// Returns true for the identifier of a run.
fn is_id(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == ID_DIGITS && text.bytes().all(is_digit)
}
