//! Analyses for pages and downloads. A large campaign is not read again for each request.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::{Mutex, RwLock};
use towpath_analysis::Analysis;

use super::api::busy;
use super::{Refusal, Site};
use crate::analysis_query::AnalysisQuery;
use crate::error::CollectError;
use crate::time;

/// Lifetime of an analysis, in multiples of the time that it took.
const LIFETIME_FACTOR: i64 = 20;
/// Maximum lifetime of an analysis in microseconds.
const MAX_LIFETIME_US: i64 = 60_000_000;
/// Maximum number of analyses in memory.
const MAX_ANALYSES: usize = 4;
/// Maximum number of planned runs in all analyses in memory, each of about 1 kB. The newest analysis
/// stays even if it has more.
const MAX_CACHED_RUNS: usize = 250_000;
/// Maximum number of planned runs in one analysis.
const MAX_PLANNED_RUNS: usize = 500_000;
/// Results whose facts a request computes. More are computed in the background.
const MAX_FACTS_COMPUTED: u64 = 100;
/// Time after which a request may be repeated that found results without facts.
const FACTS_RETRY: Duration = Duration::from_secs(15);

/// Subject of an analysis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AnalysisKey {
    /// Name of the campaign.
    pub(super) campaign: String,
    pub(super) query: AnalysisQuery,
    /// True if the names of devices are shown.
    pub(super) has_devices: bool,
}

/// Analysis at a time.
#[derive(Debug, Clone)]
pub(super) struct TimedAnalysis {
    pub(super) analysis: Arc<Analysis>,
    /// Time at which the runs were read, in microseconds since 1970.
    pub(super) read_us: i64,
    /// Results that name the campaign and do not count.
    pub(super) left_out: u64,
    /// Planned runs in memory.
    planned_runs: usize,
    /// Time until which the analysis is shown again.
    valid_until_us: i64,
}

/// Latest analyses.
#[derive(Debug, Default)]
pub(super) struct AnalysisCache {
    /// The newest is last.
    analyses: RwLock<Vec<(AnalysisKey, TimedAnalysis)>>,
    /// Locked during a computation, so that simultaneous requests compute once, and memory is
    /// needed for one at a time.
    computing: Mutex<()>,
    /// True while facts are computed in the background.
    computes_facts: AtomicBool,
}

impl AnalysisCache {
    /// Returns an analysis. Fails if there is no such campaign, if it is too large, or while facts
    /// of many results are lacking.
    pub(super) async fn analysis(
        site: &Arc<Site>,
        key: AnalysisKey,
    ) -> Result<TimedAnalysis, Refusal> {
        let cache = &site.analyses;
        // An unknown campaign is refused without a wait.
        site.store.catalogue.campaign(&key.campaign).await?;
        if let Some(found) = cache.find(&key).await {
            return Ok(found);
        }
        let _computing = cache.computing.lock().await;
        if let Some(found) = cache.find(&key).await {
            return Ok(found);
        }
        let computed = compute(site, &key).await?;
        let mut analyses = cache.analyses.write().await;
        analyses.retain(|(other, _)| *other != key);
        analyses.push((key, computed.clone()));
        let removed = remove_oldest(&mut analyses);
        drop(analyses);
        // To free the memory of a large analysis takes a while.
        tokio::task::spawn_blocking(move || drop(removed));
        Ok(computed)
    }

    async fn find(&self, key: &AnalysisKey) -> Option<TimedAnalysis> {
        let now_us = time::now_us();
        let analyses = self.analyses.read().await;
        // A clock that was set back ends the lifetime.
        let is_valid = |analysis: &TimedAnalysis| {
            (analysis.read_us..analysis.valid_until_us).contains(&now_us)
        };
        let found = analyses.iter().find(|(other, _)| other == key);
        found.map(|(_, analysis)| analysis).filter(|analysis| is_valid(analysis)).cloned()
    }

    /// Computes the facts that results of any campaign lack, in a task of its own.
    pub(super) fn compute_facts(site: &Arc<Site>) {
        if site.analyses.computes_facts.swap(true, Ordering::AcqRel) {
            return;
        }
        let site = Arc::clone(site);
        tokio::spawn(async move {
            if let Err(error) = compute_all_facts(&site).await {
                tracing::error!("cannot compute the facts of runs: {error}");
            }
            site.analyses.computes_facts.store(false, Ordering::Release);
        });
    }
}

/// Removes the oldest analyses, so that the others are within the limits. The newest one stays.
fn remove_oldest(
    analyses: &mut Vec<(AnalysisKey, TimedAnalysis)>,
) -> Vec<(AnalysisKey, TimedAnalysis)> {
    let mut planned_runs = 0;
    let newest_first = analyses.iter().rev().take(MAX_ANALYSES);
    let kept = newest_first.take_while(|(_, analysis)| {
        planned_runs += analysis.planned_runs;
        planned_runs <= MAX_CACHED_RUNS
    });
    let removed = analyses.len() - kept.count().max(1).min(analyses.len());
    analyses.drain(..removed).collect()
}

async fn compute_all_facts(site: &Site) -> Result<(), CollectError> {
    for campaign in site.store.catalogue.campaigns(i64::MIN).await? {
        let mut has_ended = false;
        let on_progress = |_| {
            has_ended = *site.ending.borrow();
            if has_ended { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        site.store.compute_facts(&campaign.name, on_progress).await?;
        if has_ended {
            break;
        }
    }
    Ok(())
}

async fn compute(site: &Arc<Site>, key: &AnalysisKey) -> Result<TimedAnalysis, Refusal> {
    let (store, name) = (&site.store, key.campaign.as_str());
    let read_us = time::now_us();
    let mut runs = store.campaign_runs_within(name, read_us, MAX_PLANNED_RUNS).await?;
    if runs.without_facts > MAX_FACTS_COMPUTED {
        AnalysisCache::compute_facts(site);
        let count = runs.without_facts;
        let error = format!("the collector has not read {count} results of this campaign yet");
        let refusal = Refusal::too_many(error, FACTS_RETRY).with_hint("try again in a minute");
        return Err(Refusal { status: StatusCode::SERVICE_UNAVAILABLE, ..refusal });
    }
    if runs.without_facts > 0 {
        store.compute_facts(name, |_| ControlFlow::Continue(())).await?;
        runs = store.campaign_runs_within(name, read_us, MAX_PLANNED_RUNS).await?;
    }
    let (left_out, planned_runs) = (runs.left_out, runs.planned_runs());
    let AnalysisKey { query: AnalysisQuery { filter, settings }, has_devices, .. } = key.clone();
    let analysed = tokio::task::spawn_blocking(move || {
        if !has_devices {
            runs.hide_devices();
        }
        Analysis::of(runs.data, &filter, settings)
    });
    let analysis = Arc::new(analysed.await.map_err(|_| busy())?);
    let duration_us = time::now_us().saturating_sub(read_us).max(0);
    let lifetime_us = duration_us.saturating_mul(LIFETIME_FACTOR).min(MAX_LIFETIME_US);
    let valid_until_us = read_us.saturating_add(lifetime_us);
    Ok(TimedAnalysis { analysis, read_us, left_out, planned_runs, valid_until_us })
}

#[cfg(test)]
mod tests {
    use towpath_analysis::{AnalysisFilter, AnalysisSettings, CampaignData};

    use super::*;

    fn analysis(campaign: &str, planned_runs: usize) -> (AnalysisKey, TimedAnalysis) {
        let key = AnalysisKey {
            campaign: campaign.to_owned(),
            query: AnalysisQuery::default(),
            has_devices: true,
        };
        let (filter, settings) = (AnalysisFilter::default(), AnalysisSettings::default());
        let analysis = Arc::new(Analysis::of(CampaignData::default(), &filter, settings));
        let (read_us, left_out, valid_until_us) = (0, 0, 1);
        (key, TimedAnalysis { analysis, read_us, left_out, planned_runs, valid_until_us })
    }

    #[test]
    fn the_analyses_in_memory_are_limited_in_number_and_in_runs_and_the_newest_stays() {
        let names = |analyses: &[(AnalysisKey, TimedAnalysis)]| {
            analyses.iter().map(|(key, _)| key.campaign.clone()).collect::<Vec<_>>().concat()
        };
        let mut analyses: Vec<_> = ["a", "b", "c", "d", "e"].map(|name| analysis(name, 1)).into();
        remove_oldest(&mut analyses);
        assert_eq!(names(&analyses), "bcde");
        analyses.push(analysis("f", MAX_CACHED_RUNS - 1));
        remove_oldest(&mut analyses);
        assert_eq!(names(&analyses), "ef");
        analyses.push(analysis("g", MAX_CACHED_RUNS * 2));
        remove_oldest(&mut analyses);
        assert_eq!(names(&analyses), "g");
    }
}
