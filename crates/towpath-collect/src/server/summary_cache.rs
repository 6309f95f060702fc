//! Progress of campaigns for pages. To count it again has to cost little.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Mutex;

use crate::campaign::CampaignEntry;
use crate::error::CollectError;
use crate::planning::CampaignSummary;
use crate::store::Store;
use crate::time;

/// Lifetime of a summary, in multiples of the time that its counting took.
const LIFETIME_FACTOR: i64 = 20;
/// Maximum lifetime of a summary in microseconds.
const MAX_LIFETIME_US: i64 = 60_000_000;

/// Amounts of a campaign at a time.
#[derive(Debug, Clone)]
pub(super) struct CountedSummary {
    pub(super) summary: Arc<CampaignSummary>,
    /// Time of the counting, in microseconds since 1970.
    pub(super) counted_us: i64,
    /// End of the campaign at that time.
    end_us: u64,
    /// Time until which the amounts are shown again.
    valid_until_us: i64,
}

impl CountedSummary {
    /// Returns true if the amounts can be shown. A clock that was set back ends their lifetime.
    fn is_valid(&self, entry: &CampaignEntry, now_us: i64) -> bool {
        self.end_us == entry.end_us && (self.counted_us..self.valid_until_us).contains(&now_us)
    }
}

/// Latest amounts of each campaign.
///
/// A small collector counts for each page. With many runs, pages show amounts of the last minute,
/// so that the pages need at most a twentieth of the time of the database.
#[derive(Debug, Default)]
pub(super) struct SummaryCache {
    /// Locked while a campaign is counted, so that simultaneous requests count once.
    summaries: Mutex<BTreeMap<String, CountedSummary>>,
}

impl SummaryCache {
    /// Returns the amounts of a campaign.
    pub(super) async fn summary(
        &self,
        store: &Store,
        entry: &CampaignEntry,
    ) -> Result<CountedSummary, CollectError> {
        let mut summaries = self.summaries.lock().await;
        let begun_us = time::now_us();
        if let Some(counted) = summaries.get(&entry.campaign.name)
            && counted.is_valid(entry, begun_us)
        {
            return Ok(counted.clone());
        }
        let summary = Arc::new(store.campaign_summary(entry, begun_us).await?);
        let duration_us = time::now_us().saturating_sub(begun_us).max(0);
        let lifetime_us = duration_us.saturating_mul(LIFETIME_FACTOR).min(MAX_LIFETIME_US);
        let counted = CountedSummary {
            summary,
            counted_us: begun_us,
            end_us: entry.end_us,
            valid_until_us: begun_us.saturating_add(lifetime_us),
        };
        summaries.insert(entry.campaign.name.clone(), counted.clone());
        Ok(counted)
    }
}
