//! Export in which no device can be recognised: k-anonymity.
//!
//! One table has a row for each run, with attributes and measured values. It has no identifier of a
//! run, a host, a device or an uploader, no address of a device, and no verdict. A combination of
//! attributes occurs in the runs of at least k devices. Otherwise it is generalised in steps, and
//! the runs that remain are left out. Tokens with one name count as one device.
//!
//! Measured values are rounded to three digits. They are not attributes: the owner of a result
//! can find its row, and a group whose values are all alike discloses them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use towpath_report::{Column, ColumnKind, ParquetWriter};
use towpath_result::Meta;

use crate::entry::{RunEntry, short};
use crate::error::CollectError;
use crate::export::{matches, parse};
use crate::maintenance::BATCH_RUNS;
use crate::records::read_records;
use crate::store::{Store, unusable};
use crate::time::{day, day_text};

/// Name of the file with the table.
const FILE: &str = "anonymous-runs.parquet";
/// Number of attributes.
const ATTRIBUTES: usize = 14;
/// Number of values of a run that are not attributes.
const VALUES: usize = 9;

/// Columns of attributes, by which a device may be recognised.
const ATTRIBUTE_COLUMNS: [&str; ATTRIBUTES] = [
    "started",
    "campaign",
    "scenario",
    "world",
    "transport",
    "stack",
    "congestion_control",
    "patterns",
    "server",
    "family",
    "port",
    "version",
    "kernel",
    "paths",
];
/// Columns of values, in order.
const VALUE_COLUMNS: [(&str, ColumnKind); VALUES] = [
    ("duration_us", ColumnKind::Integer),
    ("goodput_bps", ColumnKind::Number),
    ("delay_p50_us", ColumnKind::Number),
    ("delay_p99_us", ColumnKind::Number),
    ("stall_us", ColumnKind::Number),
    ("recovery_us", ColumnKind::Number),
    ("connect_us", ColumnKind::Number),
    ("retransmissions", ColumnKind::Integer),
    ("warnings", ColumnKind::Integer),
];

/// Replacement of an attribute by a less exact one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Generalisation {
    /// Major and minor version of a kernel.
    MajorMinor,
    /// Kinds of interfaces.
    PathKinds,
    /// Month of a day.
    Month,
    /// Nothing.
    Removal,
}

/// Columns that become less exact, in order. The first steps lose the least. World and transport
/// stay.
const GENERALISATIONS: [(&str, Generalisation); 15] = [
    ("kernel", Generalisation::MajorMinor),
    ("paths", Generalisation::PathKinds),
    ("started", Generalisation::Month),
    ("version", Generalisation::Removal),
    ("kernel", Generalisation::Removal),
    ("server", Generalisation::Removal),
    ("congestion_control", Generalisation::Removal),
    ("stack", Generalisation::Removal),
    ("paths", Generalisation::Removal),
    ("port", Generalisation::Removal),
    ("family", Generalisation::Removal),
    ("started", Generalisation::Removal),
    ("campaign", Generalisation::Removal),
    ("scenario", Generalisation::Removal),
    ("patterns", Generalisation::Removal),
];

impl Generalisation {
    fn apply(self, text: &str) -> String {
        match self {
            Self::MajorMinor => major_minor(text).unwrap_or_default(),
            Self::PathKinds => path_kinds(text),
            Self::Month => text.get(..7).unwrap_or_default().to_owned(),
            Self::Removal => String::new(),
        }
    }
}

/// Returns `6.18` of `6.18.0-12-generic`; `None` if the text does not begin with two numbers.
fn major_minor(kernel: &str) -> Option<String> {
    let mut parts = kernel.splitn(3, '.');
    let mut number = || {
        let part = parts.next()?;
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part.get(..digits).filter(|digits| (1..=3).contains(&digits.len()))
    };
    let (major, minor) = (number()?, number()?);
    Some(format!("{major}.{minor}"))
}

/// Returns the different kinds of interfaces in a list of names, in alphabetical order.
fn path_kinds(names: &str) -> String {
    if names.is_empty() {
        return String::new();
    }
    let kinds: BTreeSet<&str> = names.split(", ").map(path_kind).collect();
    kinds.into_iter().collect::<Vec<_>>().join(", ")
}

/// Returns the kind of an interface by its name, as Linux and systemd.net-naming-scheme(7) give
/// them.
fn path_kind(name: &str) -> &'static str {
    let kinds = [
        ("wifi", &["wl", "wifi", "ath"][..]),
        ("cellular", &["ww", "rmnet", "ppp", "cell", "lte", "5g"]),
        ("ethernet", &["en", "eth"]),
    ];
    let is_of = |prefixes: &&[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    kinds.iter().find(|(_, prefixes)| is_of(prefixes)).map_or("other", |(kind, _)| kind)
}

/// Amounts of an anonymous export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AnonymousReport {
    /// Rows that were written.
    pub runs: u64,
    /// Rows of these that have less exact attributes than their runs.
    pub generalised: u64,
    /// Runs that were left out, since too few devices have such runs.
    pub suppressed: u64,
}

/// Texts by number. Equal texts have the same number.
#[derive(Debug, Default)]
struct Texts {
    numbers: BTreeMap<String, u32>,
    texts: Vec<String>,
}

impl Texts {
    fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        self.numbers.insert(text.to_owned(), number);
        self.texts.push(text.to_owned());
        number
    }

    /// Returns the place of each text in alphabetical order.
    fn ranks(&self) -> Vec<u32> {
        let mut ranks = vec![0; self.texts.len()];
        for (rank, number) in (0..).zip(self.numbers.values()) {
            if let Some(place) = ranks.get_mut(*number as usize) {
                *place = rank;
            }
        }
        ranks
    }

    fn text(&self, number: u32) -> &str {
        self.texts.get(number as usize).map_or("", String::as_str)
    }
}

/// Numbers of the texts of a row's attributes.
type Combination = [u32; ATTRIBUTES];

#[derive(Debug)]
struct AnonymousRow {
    attributes: Combination,
    uploader: u32,
    outcome: &'static str,
    multipath: &'static str,
    values: [Option<f64>; VALUES],
}

/// Rows of an anonymous export. They have to be complete before the first one can be written.
#[derive(Debug, Default)]
struct AnonymousTable {
    texts: Texts,
    rows: Vec<AnonymousRow>,
}

impl AnonymousTable {
    /// Adds a run with the conditions of its result.
    fn add(&mut self, run: &RunEntry, meta: &Meta, uploader: &str) {
        let mut paths: Vec<&str> = meta.paths.iter().map(|path| path.name.as_str()).collect();
        paths.sort_unstable();
        paths.dedup();
        let condition = |name: &str| meta.conditions.get(name).map(|value| short(value));
        let campaign = condition("campaign").unwrap_or_default();
        let port = condition("port").unwrap_or_default();
        let (started, paths) = (day_text(day(run.started_us)), short(&paths.join(", ")));
        let group = &run.group;
        let attributes = [
            &started,
            &campaign,
            &group.scenario,
            &group.world,
            &group.transport,
            &run.stack,
            &run.congestion_control,
            &run.patterns,
            &group.server,
            &group.family,
            &port,
            &group.version,
            &run.kernel,
            &paths,
        ];
        let attributes = attributes.map(|text| self.texts.number(text));
        let values = [
            Some(run.duration_us as f64),
            run.goodput_bps,
            run.delay_p50_us,
            run.delay_p99_us,
            run.stall_us,
            run.recovery_us,
            run.connect_us,
            Some(run.retransmissions as f64),
            Some(run.warnings as f64),
        ];
        self.rows.push(AnonymousRow {
            attributes,
            uploader: self.texts.number(uploader),
            outcome: known(&group.outcome, &["ok", "failed", "incomplete"]),
            multipath: known(&run.multipath, &["used", "fallback", "not requested"]),
            values: values.map(|value| value.map(round)),
        });
    }

    /// Generalises rows until each combination belongs to at least `devices` uploaders, and drops
    /// the others. The order of the rows no longer depends on the runs.
    fn anonymise(&mut self, devices: usize) -> AnonymousReport {
        let mut pending = std::mem::take(&mut self.rows);
        let mut report = AnonymousReport::default();
        for step in [None].into_iter().chain(GENERALISATIONS.map(Some)) {
            if let Some((column, generalisation)) = step {
                self.generalise(&mut pending, column, generalisation);
            }
            let mut uploaders: BTreeMap<Combination, BTreeSet<u32>> = BTreeMap::new();
            for row in &pending {
                uploaders.entry(row.attributes).or_default().insert(row.uploader);
            }
            let is_common = |row: &mut AnonymousRow| {
                uploaders.get(&row.attributes).is_some_and(|of| of.len() >= devices)
            };
            let accepted: Vec<_> = pending.extract_if(.., is_common).collect();
            if step.is_some() {
                report.generalised += accepted.len() as u64;
            }
            self.rows.extend(accepted);
        }
        report.runs = self.rows.len() as u64;
        report.suppressed = pending.len() as u64;
        let ranks = self.texts.ranks();
        self.rows.sort_by_cached_key(|row| {
            let attributes = row.attributes.map(|number| ranks.get(number as usize).copied());
            (attributes, row.outcome, row.multipath, row.values.map(|v| v.map(f64::to_bits)))
        });
        report
    }

    fn generalise(
        &mut self,
        rows: &mut [AnonymousRow],
        column: &str,
        generalisation: Generalisation,
    ) {
        let mut known: BTreeMap<u32, u32> = BTreeMap::new();
        for row in rows {
            let mut attributes = ATTRIBUTE_COLUMNS.into_iter().zip(&mut row.attributes);
            let Some((_, number)) = attributes.find(|(name, _)| *name == column) else { return };
            *number = *known.entry(*number).or_insert_with(|| {
                let text = generalisation.apply(self.texts.text(*number));
                self.texts.number(&text)
            });
        }
    }

    /// Writes all rows in the format Parquet; returns the output. An empty attribute is absent.
    fn write<W: Write + Send>(&self, output: W) -> Result<W, CollectError> {
        let text = |name: &str| (name.to_owned(), ColumnKind::Text);
        let results = ["outcome", "multipath"];
        let columns = ATTRIBUTE_COLUMNS.into_iter().chain(results).map(text);
        let columns = columns.chain(VALUE_COLUMNS.map(|(name, kind)| (name.to_owned(), kind)));
        let columns = columns.map(|(name, kind)| Column { name, kind }).collect();
        let mut writer = ParquetWriter::new(output, columns)?;
        for row in &self.rows {
            writer.add(&self.json(row))?;
        }
        Ok(writer.finish()?)
    }

    fn json(&self, row: &AnonymousRow) -> Value {
        let attributes = row.attributes.map(|number| self.texts.text(number));
        let texts = ATTRIBUTE_COLUMNS.into_iter().zip(attributes);
        let texts = texts.chain([("outcome", row.outcome), ("multipath", row.multipath)]);
        let texts = texts.filter(|(_, text)| !text.is_empty());
        let mut object: Map<String, Value> =
            texts.map(|(name, text)| (name.to_owned(), text.into())).collect();
        for ((name, kind), value) in VALUE_COLUMNS.into_iter().zip(row.values) {
            let Some(value) = value else { continue };
            let value = match kind {
                ColumnKind::Integer => Value::from(value as i64),
                ColumnKind::Number | ColumnKind::Boolean | ColumnKind::Text => Value::from(value),
            };
            object.insert(name.to_owned(), value);
        }
        Value::Object(object)
    }
}

/// Returns the text if it is one of the known ones; empty otherwise.
fn known(text: &str, all: &[&'static str]) -> &'static str {
    all.iter().find(|known| **known == text).copied().unwrap_or_default()
}

/// Rounds to three significant digits.
fn round(value: f64) -> f64 {
    format!("{value:.2e}").parse().unwrap_or(value)
}

impl Store {
    /// Writes one Parquet file with the runs that match a query, in which each combination of
    /// attributes belongs to at least `devices` devices.
    ///
    /// `query` has the form of a page's address. Fails for a folder with other files, since they
    /// are not anonymous.
    pub async fn export_anonymously(
        &self,
        target: &Path,
        query: &str,
        devices: usize,
    ) -> Result<AnonymousReport, CollectError> {
        if devices < 2 {
            let error = "an anonymous export needs at least 2 devices for each row";
            return Err(CollectError::Choice(error.to_owned()));
        }
        let filter = parse(query)?;
        let path = prepare(target)?;
        let tokens = self.catalogue.tokens().await?;
        let names: BTreeMap<String, String> =
            tokens.into_iter().map(|token| (token.id, token.name)).collect();
        let (mut table, mut last_id) = (AnonymousTable::default(), String::new());
        loop {
            let runs = self.catalogue.runs_after(&last_id, BATCH_RUNS).await?;
            let Some((last, _)) = runs.last() else { break };
            last_id.clone_from(&last.id);
            for (run, uploader) in runs.iter().filter(|(run, _)| matches(&filter, run)) {
                let records = match self.objects.get(&run.id).await {
                    Ok(bytes) => read_records(&run.id, &bytes)?,
                    // The run was purged meanwhile.
                    Err(_) if self.catalogue.run(&run.id).await?.is_none() => continue,
                    Err(error) => return Err(error),
                };
                table.add(run, &records.meta, names.get(uploader).unwrap_or(uploader));
            }
        }
        let report = table.anonymise(devices);
        let temporary = path.with_extension("parquet.new");
        let failed = |source| unusable(&temporary, source);
        let file = table.write(File::create(&temporary).map_err(failed)?)?;
        file.sync_all().map_err(failed)?;
        fs::rename(&temporary, &path).map_err(failed)?;
        Ok(report)
    }
}

/// Creates the folder; returns the path of the table in it. Fails if there are other files.
fn prepare(target: &Path) -> Result<PathBuf, CollectError> {
    let failed = |source| unusable(target, source);
    fs::create_dir_all(target).map_err(failed)?;
    for entry in fs::read_dir(target).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if name != FILE && name != format!("{FILE}.new").as_str() {
            return Err(CollectError::Choice(format!(
                "the folder has other files, such as `{}`: an anonymous export needs its own",
                name.to_string_lossy().escape_debug()
            )));
        }
    }
    Ok(target.join(FILE))
}

#[cfg(test)]
mod tests;
