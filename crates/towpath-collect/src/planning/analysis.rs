//! Facts of a campaign for its analysis: those of its runs, and its planned runs without a result.
//!
//! The database is read in batches, and a thread of its own reads the facts. A run counts if its
//! device has uploaded and reported it, and if its result names the same planned run.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use tokio::sync::mpsc;
use towpath_analysis::{AbsentRun as AbsentFacts, CampaignData, RunFacts};

use super::progress::{AbsenceReason, DeviceProgress};
use crate::campaign::{CampaignEntry, CampaignError, OutcomeKind};
use crate::catalogue::{CampaignRunRow, FactsRow, IncompleteRun};
use crate::device::Device;
use crate::error::CollectError;
use crate::records::{facts_row, read_records};
use crate::store::Store;

/// Outcomes that are read from the catalogue at a time.
const BATCH_OUTCOMES: i64 = 5_000;
/// Batches that wait for the thread that reads facts.
const MAX_WAITING_BATCHES: usize = 2;
/// Facts that are stored at a time.
const BATCH_FACTS: i64 = 50;

/// Runs of a campaign, for its analysis.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CampaignRuns {
    /// Runs that count, and planned runs without a result.
    pub data: CampaignData,
    /// Results whose facts have to be computed first ([`Store::compute_facts`]), or cannot be read.
    pub without_facts: u64,
    /// Results that name the campaign, but do not count: no report of their device connects them
    /// with one of its planned runs.
    pub left_out: u64,
}

impl CampaignRuns {
    /// Replaces the names of devices by numbers such as `device 07`, in alphabetical order.
    ///
    /// The order of the devices stays, so the values of an analysis do not change.
    pub(crate) fn hide_devices(&mut self) {
        let CampaignData { campaign: _, runs, absent } = &mut self.data;
        let names: BTreeSet<String> = runs
            .iter()
            .map(|run| &run.device)
            .chain(absent.iter().map(|run| &run.device))
            .cloned()
            .collect();
        let digits = names.len().to_string().len();
        let numbers: BTreeMap<String, String> = (1..)
            .zip(names)
            .map(|(number, name)| (name, format!("device {number:0digits$}")))
            .collect();
        let devices = runs
            .iter_mut()
            .map(|run| &mut run.device)
            .chain(absent.iter_mut().map(|run| &mut run.device));
        for device in devices {
            *device = numbers.get(device).cloned().unwrap_or_default();
        }
    }

    /// Adds the run of a device whose result is here.
    fn add_result(&mut self, campaign: &str, device: &str, row: &CampaignRunRow) {
        let read = row.facts.as_deref().map(serde_json::from_str::<RunFacts>);
        let Some(Ok(facts)) = read else {
            self.without_facts += 1;
            return;
        };
        // The result has to name the planned run that its device reported.
        let place = (facts.round, facts.planned_run);
        if facts.campaign == campaign && place == (row.round, row.run) {
            self.data.runs.push(RunFacts { device: device.to_owned(), ..facts });
        }
    }

    /// Returns the number of planned runs in memory.
    pub(crate) fn planned_runs(&self) -> usize {
        self.data.runs.len() + self.data.absent.len()
    }
}

impl Store {
    /// Reads the facts of a campaign's runs, and compares them with its plan until now.
    pub async fn campaign_runs(
        &self,
        name: &str,
        now_us: i64,
    ) -> Result<CampaignRuns, CollectError> {
        self.campaign_runs_within(name, now_us, usize::MAX).await
    }

    /// Reads the facts of a campaign with a limited number of planned runs. Fails if it has more.
    pub(crate) async fn campaign_runs_within(
        &self,
        name: &str,
        now_us: i64,
        max_runs: usize,
    ) -> Result<CampaignRuns, CollectError> {
        let entry = self.campaign(name, now_us).await?;
        let devices = self.catalogue.devices().await?;
        let (batches, received) = mpsc::channel(MAX_WAITING_BATCHES);
        let reader = tokio::task::spawn_blocking(move || {
            let mut collection = Collection::new(entry, devices, (now_us, max_runs));
            collection.read(received);
            collection
        });
        let mut last: Option<CampaignRunRow> = None;
        loop {
            let rows =
                self.catalogue.campaign_runs_after(name, last.as_ref(), BATCH_OUTCOMES).await?;
            if rows.is_empty() {
                break;
            }
            last = rows.last().cloned();
            if batches.send(rows).await.is_err() {
                break;
            }
        }
        drop(batches);
        let Collection { mut runs, is_cut, .. } = reader.await.map_err(std::io::Error::other)?;
        if is_cut {
            return Err(CampaignError::TooLarge { name: name.to_owned(), max_runs }.into());
        }
        let named = self.catalogue.count_facts(name).await?;
        runs.left_out = named.saturating_sub(runs.data.runs.len() as u64);
        Ok(runs)
    }

    /// Computes the facts of a campaign's results that lack them, and stores them. Results that
    /// cannot be read are left out.
    ///
    /// Results lack facts if they come from a backup or from an earlier version of the program.
    /// Calls `on_progress` with the number of facts after each batch. It may end the work.
    pub async fn compute_facts(
        &self,
        campaign: &str,
        mut on_progress: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(), CollectError> {
        let (mut last, mut computed): (Option<IncompleteRun>, u64) = (None, 0);
        loop {
            let catalogue = &self.catalogue;
            let rows =
                catalogue.incomplete_runs_after(campaign, last.as_ref(), BATCH_FACTS).await?;
            if rows.is_empty() {
                return Ok(());
            }
            let mut facts = Vec::new();
            for IncompleteRun { id, .. } in &rows {
                facts.extend(self.read_facts(id).await?);
            }
            last = rows.last().cloned();
            computed += facts.len() as u64;
            catalogue.store_facts(&facts).await?;
            if on_progress(computed).is_break() {
                return Ok(());
            }
        }
    }

    /// Computes the facts of one run; `None` if its records are not there or cannot be read.
    async fn read_facts(&self, id: &str) -> Result<Option<FactsRow>, CollectError> {
        let bytes = match self.objects.get(id).await {
            Ok(bytes) => bytes,
            Err(error) if self.objects.exists(id).await? => return Err(error),
            Err(error) => {
                // Without its row, the run was purged meanwhile.
                if self.catalogue.run(id).await?.is_some() {
                    tracing::error!("{error}");
                }
                return Ok(None);
            }
        };
        let owned_id = id.to_owned();
        let computed = tokio::task::spawn_blocking(move || {
            read_records(&owned_id, &bytes).map(|run| facts_row(&run, &owned_id))
        });
        match computed.await {
            Ok(Ok(facts)) => Ok(facts),
            Ok(Err(error)) => {
                tracing::error!("{error}");
                Ok(None)
            }
            Err(error) => {
                tracing::error!("cannot compute the facts of run {id}: {error}");
                Ok(None)
            }
        }
    }
}

/// Facts that are being read, device by device.
struct Collection {
    entry: CampaignEntry,
    /// Devices whose outcomes were not read yet, by their tokens.
    devices: BTreeMap<String, Device>,
    now_us: i64,
    max_runs: usize,
    /// Set when the campaign has more planned runs. The rest is not read.
    is_cut: bool,
    runs: CampaignRuns,
}

impl Collection {
    fn new(entry: CampaignEntry, devices: Vec<Device>, (now_us, max_runs): (i64, usize)) -> Self {
        let campaign = entry.campaign.name.clone();
        let data = CampaignData { campaign, ..CampaignData::default() };
        let devices = devices.into_iter().map(|device| (device.token.id.clone(), device)).collect();
        let runs = CampaignRuns { data, ..CampaignRuns::default() };
        Self { entry, devices, now_us, max_runs, is_cut: false, runs }
    }

    /// Reads all batches. Rows of a device follow each other.
    fn read(&mut self, mut batches: mpsc::Receiver<Vec<CampaignRunRow>>) {
        let mut of_device: Vec<CampaignRunRow> = Vec::new();
        while let Some(rows) = batches.blocking_recv() {
            for row in rows {
                if of_device.first().is_some_and(|first| first.token != row.token) {
                    self.add(std::mem::take(&mut of_device));
                }
                of_device.push(row);
            }
        }
        self.add(of_device);
        for device in std::mem::take(&mut self.devices).into_values() {
            self.add_device(&device, Vec::new());
        }
    }

    fn add(&mut self, rows: Vec<CampaignRunRow>) {
        let device = rows.first().and_then(|row| self.devices.remove(&row.token));
        if let Some(device) = device {
            self.add_device(&device, rows);
        }
    }

    /// Adds the planned runs of a device; `rows` are all outcomes that it reported.
    fn add_device(&mut self, device: &Device, rows: Vec<CampaignRunRow>) {
        let Self { entry, now_us, max_runs, is_cut, runs, .. } = self;
        let progress = DeviceProgress::new(entry, device, *now_us);
        let rounds = progress.planned_rounds(&entry.campaign);
        let planned_runs = rounds.len().saturating_mul(entry.campaign.runs_per_round() as usize);
        *is_cut |= runs.planned_runs().saturating_add(planned_runs) > *max_runs;
        if *is_cut {
            return;
        }
        let name = &device.token.name;
        let mut outcomes: BTreeMap<_, _> =
            rows.into_iter().map(|row| ((row.round, row.run), row)).collect();
        // Indices do not depend on the round; the order of execution does.
        let mut planned = entry.campaign.runs(name, 0);
        planned.sort_by_key(|run| run.index);
        for round in rounds {
            for run in &planned {
                let row = outcomes.remove(&(round.round, run.index));
                let reason = match &row {
                    Some(row) => match row.kind {
                        OutcomeKind::Stored | OutcomeKind::Invalid => {
                            runs.add_result(&entry.campaign.name, name, row);
                            continue;
                        }
                        OutcomeKind::NotUploaded => AbsenceReason::NotUploaded,
                        OutcomeKind::Missing(reason) => AbsenceReason::Missing(reason),
                    },
                    None => AbsenceReason::NotReported,
                };
                let pattern = entry.campaign.patterns.get(run.pattern);
                runs.data.absent.push(AbsentFacts {
                    device: name.clone(),
                    round: round.round,
                    run: run.index,
                    pattern: pattern.map(|pattern| pattern.name.clone()).unwrap_or_default(),
                    transport: run.transport.to_string(),
                    family: run.family.name().to_owned(),
                    port: run.port.into(),
                    reason: reason.name().to_owned(),
                });
            }
        }
    }
}
