//! Work with campaigns: the operator creates them, devices get them and report outcomes, and both
//! are compared.

mod analysis;
mod key;
mod progress;
mod summary;

use std::collections::BTreeMap;
use std::path::Path;

use towpath_campaign::{
    Campaign, CampaignOffer, CampaignState, MAX_CAMPAIGN_BYTES, OfferError, Outcome, PublicKey,
};

pub use analysis::CampaignRuns;
pub use progress::{AbsenceReason, AbsentRun, CampaignProgress, DeviceProgress, RunCounts};
pub(crate) use summary::{CampaignSummary, DeviceSummary};

use crate::audit::{AuditAction, AuditEntry};
use crate::campaign::{CampaignEntry, CampaignError, CampaignRow, OutcomeRow, accepted_state};
use crate::error::CollectError;
use crate::store::Store;
use crate::time::DAY_US;

use self::key::KeyFile;

/// Time for which devices are told that a campaign has ended.
const ENDED_US: i64 = DAY_US;
/// Time by which the clock of a device may be fast: outcomes of later rounds are not accepted.
const MAX_CLOCK_ERROR_US: i64 = DAY_US;
/// Outcomes of a device that are read at a time.
const MAX_OUTCOMES_READ: u32 = 10_000;

impl Store {
    /// Reads a campaign, signs it, and offers it to devices from now on. `file_name` is only for
    /// messages.
    pub async fn create_campaign(
        &self,
        file_name: &str,
        bytes: &[u8],
        now_us: i64,
    ) -> Result<CampaignEntry, CollectError> {
        let unusable = |reason: &str| CampaignError::Text(reason.to_owned());
        if bytes.len() > MAX_CAMPAIGN_BYTES {
            return Err(unusable(&format!("it has more than {MAX_CAMPAIGN_BYTES} bytes")).into());
        }
        let text = str::from_utf8(bytes).map_err(|_| unusable("it is not UTF-8"))?;
        let created_us = now_us.unsigned_abs();
        let campaign =
            Campaign::parse(file_name, text, created_us).map_err(CampaignError::Mistakes)?;
        let offer = self.signing_key().await?.key.sign(text.to_owned(), created_us);
        let row = CampaignRow {
            name: campaign.name.clone(),
            text: offer.text,
            created_us: now_us,
            signature: offer.signature,
            state: offer.state,
            end_us: i64::try_from(campaign.end_us).unwrap_or(i64::MAX),
        };
        if !self.catalogue.insert_campaign(&row).await? {
            return Err(CampaignError::Exists(row.name).into());
        }
        let action = AuditAction::CampaignCreated;
        let entry = AuditEntry::new(now_us, &self.actor, action, &row.name, "")?;
        self.catalogue.add_audit_entry(&entry).await?;
        Ok(row.entry(now_us)?)
    }

    /// Returns all campaigns in order of creation.
    pub async fn campaigns(&self, now_us: i64) -> Result<Vec<CampaignEntry>, CollectError> {
        let rows = self.catalogue.campaigns(i64::MIN).await?;
        rows.iter().map(|row| Ok(row.entry(now_us)?)).collect()
    }

    /// Returns the campaign with this name; fails if there is none.
    pub async fn campaign(&self, name: &str, now_us: i64) -> Result<CampaignEntry, CollectError> {
        Ok(self.catalogue.campaign(name).await?.entry(now_us)?)
    }

    /// Pauses, resumes or ends a campaign. One that has ended stays so.
    pub async fn change_campaign(
        &self,
        name: &str,
        state: CampaignState,
        now_us: i64,
    ) -> Result<(), CollectError> {
        let action = match state {
            CampaignState::Active => AuditAction::CampaignResumed,
            CampaignState::Paused => AuditAction::CampaignPaused,
            CampaignState::Ended => AuditAction::CampaignEnded,
        };
        let entry = AuditEntry::new(now_us, &self.actor, action, name, "")?;
        self.catalogue.change_campaign(name, state, &entry).await
    }

    /// Compares the plan of a campaign with what its devices have reported and uploaded until now.
    ///
    /// Calls `on_absent` for each planned run without a result here, in order of devices and times.
    pub async fn campaign_progress(
        &self,
        name: &str,
        now_us: i64,
        mut on_absent: impl FnMut(AbsentRun),
    ) -> Result<CampaignProgress, CollectError> {
        let entry = self.campaign(name, now_us).await?;
        // At most about this number of outcomes are in memory.
        let batch = MAX_OUTCOMES_READ.checked_div(entry.campaign.runs_per_round()).unwrap_or(1);
        let batch = batch.max(1) as usize;
        let mut devices = Vec::new();
        for device in self.catalogue.devices().await?.into_iter().rev() {
            let mut progress = DeviceProgress::new(&entry, &device, now_us);
            if progress.from_us >= progress.until_us {
                continue;
            }
            let rounds = progress.planned_rounds(&entry.campaign);
            for rounds in rounds.chunks(batch) {
                let (Some(first), Some(last)) = (rounds.first(), rounds.last()) else { continue };
                let range = first.round..=last.round;
                let outcomes = self.catalogue.outcomes_of(name, &device.token.id, range).await?;
                progress.count(&entry.campaign, rounds, outcomes, &mut on_absent);
            }
            devices.push(progress);
        }
        Ok(CampaignProgress { entry, devices })
    }

    /// Returns the campaigns for devices in order of creation, those included that ended within the
    /// last day.
    pub(crate) async fn offered_campaigns(
        &self,
        now_us: i64,
    ) -> Result<Vec<CampaignOffer>, CollectError> {
        let rows = self.catalogue.campaigns(now_us.saturating_sub(ENDED_US)).await?;
        Ok(rows.iter().map(CampaignRow::offer).collect())
    }

    /// Stores outcomes that a device reports; returns the number of those that belong to a planned
    /// run.
    pub(crate) async fn report_outcomes(
        &self,
        (token, device): (&str, &str),
        outcomes: Vec<Outcome>,
        now_us: i64,
    ) -> Result<u32, CollectError> {
        let latest_us = now_us.saturating_add(MAX_CLOCK_ERROR_US).unsigned_abs();
        let mut campaigns: BTreeMap<String, Option<Campaign>> = BTreeMap::new();
        let mut rows = Vec::new();
        for outcome in outcomes {
            if !campaigns.contains_key(&outcome.campaign) {
                let campaign = self.known_campaign(&outcome.campaign).await?;
                campaigns.insert(outcome.campaign.clone(), campaign);
            }
            let campaign = campaigns.get(&outcome.campaign).and_then(Option::as_ref);
            let is_planned = campaign.is_some_and(|campaign| {
                let at_us = progress::planned_us(campaign, device, outcome.round);
                outcome.run < campaign.runs_per_round()
                    && at_us.is_some_and(|at_us| at_us < latest_us)
            });
            if let Some(state) = is_planned.then(|| accepted_state(outcome.state)).flatten() {
                rows.push(OutcomeRow {
                    token: token.to_owned(),
                    outcome: Outcome { state, ..outcome },
                });
            }
        }
        self.catalogue.report_outcomes(token, &rows).await?;
        Ok(u32::try_from(rows.len()).unwrap_or(u32::MAX))
    }

    /// Returns a campaign that a device names; `None` if there is none that this version can read.
    async fn known_campaign(&self, name: &str) -> Result<Option<Campaign>, CollectError> {
        match self.catalogue.campaign(name).await.and_then(|row| Ok(row.campaign()?)) {
            Ok(campaign) => Ok(Some(campaign)),
            Err(CollectError::Campaign(CampaignError::Unknown(_))) => Ok(None),
            Err(error @ CollectError::Campaign(CampaignError::Damaged { .. })) => {
                tracing::error!("{error}");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the key that verifies campaigns, and creates it at the first call.
    pub(crate) async fn campaign_key(&self) -> Result<PublicKey, CollectError> {
        Ok(self.signing_key().await?.key.public())
    }

    /// Returns the collector's key. Fails if it is lost while devices expect its campaigns.
    async fn signing_key(&self) -> Result<KeyFile, CollectError> {
        if let Some(file) = KeyFile::read(&self.dir)? {
            return Ok(file);
        }
        let campaigns = self.catalogue.campaigns(i64::MIN).await?;
        if campaigns.iter().any(|campaign| campaign.state != CampaignState::Ended) {
            return Err(CampaignError::NoKey { folder: self.dir.clone() }.into());
        }
        KeyFile::create(&self.dir)
    }

    /// Saves the key in the folder of a backup, which may have an older one.
    pub(crate) fn back_up_key(&self, target: &Path) -> Result<(), CollectError> {
        match KeyFile::read(&self.dir)? {
            Some(file) => file.write(target),
            None => KeyFile::remove(target),
        }
    }

    /// Takes the key from a backup, if it has one. Fails if it does not verify the campaigns that
    /// are here.
    pub(crate) async fn restore_key(&self, source: &Path) -> Result<(), CollectError> {
        let Some(file) = KeyFile::read(source)? else { return Ok(()) };
        let public = file.key.public();
        let is_equal = |own: KeyFile| own.key.public() == public;
        if KeyFile::read(&self.dir)?.is_some_and(is_equal) {
            return Ok(());
        }
        for campaign in self.catalogue.campaigns(i64::MIN).await? {
            if matches!(campaign.offer().open(&public), Err(OfferError::Signature)) {
                return Err(CampaignError::OtherKey.into());
            }
        }
        file.write(&self.dir)
    }
}
