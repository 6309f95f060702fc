//! Export of all runs as Parquet files: one with the catalogue, and one for each table of records.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use axum::extract::Query;
use axum::http::Uri;
use towpath_report::{ParquetTable, ParquetWriter, ResultTable, columns_of};
use towpath_result::store::StoredRun;

use crate::catalogue::facet_value;
use crate::entry::RunEntry;
use crate::error::CollectError;
use crate::filter::{Facet, RunFilter};
use crate::maintenance::{BATCH_RUNS, MaintenanceReport};
use crate::records::read_records;
use crate::store::{Store, unusable};
use crate::time::day;

/// Name of the table with the rows of the catalogue.
const RUNS_TABLE: &str = "runs";

/// Files of an export that are being written. They get their names when all are complete.
struct Files {
    target: PathBuf,
    runs: Option<ParquetWriter<File>>,
    tables: Vec<(ResultTable, ParquetTable<File>)>,
}

impl Store {
    /// Writes one Parquet file for each table into a folder, with the runs that match a query.
    ///
    /// `query` has the form of a page's address, such as `transport=mptcp&since=2026-11-01`.
    /// Without names, all tables are written.
    pub async fn export(
        &self,
        target: &Path,
        query: &str,
        tables: &[String],
    ) -> Result<MaintenanceReport, CollectError> {
        let filter = parse(query)?;
        let mut files = Files::create(target, tables)?;
        let (mut report, mut last_id) = (MaintenanceReport::default(), String::new());
        loop {
            let runs = self.catalogue.runs_after(&last_id, BATCH_RUNS).await?;
            let Some((last, _)) = runs.last() else { break };
            last_id.clone_from(&last.id);
            for (run, _) in runs.iter().filter(|(run, _)| matches(&filter, run)) {
                let records = match self.records_for(run, &files).await {
                    Ok(records) => records,
                    // The run was purged meanwhile.
                    Err(_) if self.catalogue.run(&run.id).await?.is_none() => continue,
                    Err(error) => return Err(error),
                };
                files.add(run, records.as_ref())?;
                report.count(run);
            }
        }
        files.finish()?;
        Ok(report)
    }

    /// Reads the records of a run, if any file needs them.
    async fn records_for(
        &self,
        run: &RunEntry,
        files: &Files,
    ) -> Result<Option<StoredRun>, CollectError> {
        if files.tables.is_empty() {
            return Ok(None);
        }
        read_records(&run.id, &self.objects.get(&run.id).await?).map(Some)
    }
}

/// Reads a query: that of an address, or the address of a page.
pub(crate) fn parse(query: &str) -> Result<RunFilter, CollectError> {
    let query = query.split_once('?').map_or(query, |(_, query)| query);
    let invalid = || CollectError::Choice(format!("`{}` is not a query", query.escape_debug()));
    let address: Uri = format!("/?{query}").parse().map_err(|_| invalid())?;
    let pairs = Query::<Vec<(String, String)>>::try_from_uri(&address).map_err(|_| invalid())?;
    RunFilter::parse(&pairs).map_err(CollectError::Choice)
}

/// Returns true if a run passes all conditions of a filter.
pub(crate) fn matches(filter: &RunFilter, run: &RunEntry) -> bool {
    let day = day(run.started_us);
    let is_accepted = |facet: Facet| filter.accepts(facet, facet_value(&run.group, facet));
    Facet::ALL.into_iter().all(is_accepted)
        && filter.since.is_none_or(|since| day >= since)
        && filter.until.is_none_or(|until| day <= until)
}

impl Files {
    fn create(target: &Path, names: &[String]) -> Result<Self, CollectError> {
        let known = || ResultTable::ALL.into_iter().filter(|table| table.has_fixed_columns());
        let is_known = |name: &str| name == RUNS_TABLE || known().any(|table| table.name() == name);
        if let Some(name) = names.iter().find(|name| !is_known(name)) {
            let all: Vec<&str> =
                [RUNS_TABLE].into_iter().chain(known().map(ResultTable::name)).collect();
            return Err(CollectError::Choice(format!(
                "there is no table `{}`; there are {}",
                name.escape_debug(),
                all.join(", ")
            )));
        }
        let is_wanted = |name: &str| names.is_empty() || names.iter().any(|other| other == name);
        fs::create_dir_all(target).map_err(|source| unusable(target, source))?;
        let mut files = Self { target: target.to_owned(), runs: None, tables: Vec::new() };
        if is_wanted(RUNS_TABLE) {
            let file = files.begin(RUNS_TABLE)?;
            let columns = columns_of::<RunEntry>();
            files.runs = Some(ParquetWriter::new(file, columns)?);
        }
        for table in known().filter(|table| is_wanted(table.name())) {
            let file = files.begin(table.name())?;
            files.tables.extend(ParquetTable::new(file, table)?.map(|file| (table, file)));
        }
        Ok(files)
    }

    /// Creates a file under a temporary name.
    fn begin(&self, name: &str) -> Result<File, CollectError> {
        let path = self.target.join(format!("{name}.parquet.new"));
        File::create(&path).map_err(|source| unusable(&path, source))
    }

    fn add(&mut self, run: &RunEntry, records: Option<&StoredRun>) -> Result<(), CollectError> {
        if let Some(file) = &mut self.runs {
            let row = serde_json::to_value(run).map_err(std::io::Error::from)?;
            file.add(&row)?;
        }
        if let Some(records) = records {
            for (_, file) in &mut self.tables {
                file.add(&run.id, records)?;
            }
        }
        Ok(())
    }

    /// Writes the ends of all files, and gives them their names.
    fn finish(self) -> Result<(), CollectError> {
        let mut names = Vec::new();
        if let Some(file) = self.runs {
            names.push(RUNS_TABLE);
            file.finish()?;
        }
        for (table, file) in self.tables {
            names.push(table.name());
            file.finish()?;
        }
        for name in names {
            let path = self.target.join(format!("{name}.parquet"));
            let temporary = self.target.join(format!("{name}.parquet.new"));
            fs::rename(&temporary, &path).map_err(|source| unusable(&path, source))?;
        }
        Ok(())
    }
}
