//! Progress of a campaign in amounts only. The database counts, so that no outcome is read.

use crate::campaign::{CampaignEntry, OutcomeCount, OutcomeKind};
use crate::error::CollectError;
use crate::store::Store;

use super::progress::{DeviceProgress, RunCounts};

/// Maximum number of reasons of invalid runs that are listed.
const MAX_INVALID_REASONS: i64 = 10;

/// Amounts of a campaign.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct CampaignSummary {
    /// Devices that take part, or did, in order of joining.
    pub(crate) devices: Vec<DeviceSummary>,
    /// Most frequent reasons of invalid runs with their numbers.
    pub(crate) invalid: Vec<(String, u64)>,
}

impl CampaignSummary {
    /// Returns the amounts of all devices.
    pub(crate) fn counts(&self) -> RunCounts {
        let mut sum = RunCounts::default();
        for device in &self.devices {
            sum.add(&device.progress.counts);
        }
        sum
    }
}

/// Amounts of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeviceSummary {
    pub(crate) progress: DeviceProgress,
    /// Version of the program that joined; empty after the deletion of the device's data.
    pub(crate) version: String,
    /// Operating system and processor; empty after the deletion of the device's data.
    pub(crate) platform: String,
    /// Time of the last request, accurate to a minute.
    pub(crate) used_us: Option<i64>,
}

impl Store {
    /// Counts the planned runs of a campaign, and what its devices have reported and uploaded.
    ///
    /// The amounts equal those of [`Store::campaign_progress`].
    pub(crate) async fn campaign_summary(
        &self,
        entry: &CampaignEntry,
        now_us: i64,
    ) -> Result<CampaignSummary, CollectError> {
        let campaign = &entry.campaign;
        let runs_per_round = u64::from(campaign.runs_per_round());
        let mut devices = Vec::new();
        for device in self.catalogue.devices().await?.into_iter().rev() {
            let mut progress = DeviceProgress::new(entry, &device, now_us);
            if progress.from_us >= progress.until_us {
                continue;
            }
            let (first, last, rounds) = {
                let mut rounds =
                    campaign.planned_rounds(&progress.name, progress.from_us, progress.until_us);
                let first = rounds.next();
                // The jitter is at most a period, so no round is between these that is not planned.
                rounds
                    .fold((first, first, u64::from(first.is_some())), |(first, _, count), round| {
                        (first, Some(round), count + 1)
                    })
            };
            if let (Some(first), Some(last)) = (first, last) {
                let range = first.round..=last.round;
                let counts =
                    self.catalogue.count_outcomes(&campaign.name, &progress.id, range).await?;
                progress.counts = RunCounts::of(&counts, rounds * runs_per_round);
            }
            let (version, platform) = (device.version, device.platform);
            devices.push(DeviceSummary {
                progress,
                version,
                platform,
                used_us: device.token.used_us,
            });
        }
        let invalid = self.catalogue.invalid_reasons(&campaign.name, MAX_INVALID_REASONS).await?;
        Ok(CampaignSummary { devices, invalid })
    }
}

impl RunCounts {
    /// Returns the amounts of some planned runs; those without an outcome are not reported.
    fn of(counts: &[OutcomeCount], planned: u64) -> Self {
        let mut sum = Self { planned, not_reported: planned, ..Self::default() };
        for OutcomeCount { kind, outcomes } in counts {
            sum.not_reported = sum.not_reported.saturating_sub(*outcomes);
            *match kind {
                OutcomeKind::Stored => &mut sum.stored,
                OutcomeKind::Invalid => &mut sum.invalid,
                OutcomeKind::NotUploaded => &mut sum.not_uploaded,
                OutcomeKind::Missing(reason) => sum.missing.entry(*reason).or_default(),
            } += outcomes;
        }
        sum
    }
}
