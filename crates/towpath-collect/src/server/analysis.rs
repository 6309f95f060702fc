//! Analyses of campaigns: pages, files, and the interface for programs.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::{Html, IntoResponse, Response};
use towpath_analysis::output;
use towpath_campaign::CampaignMode;
use towpath_result::store::StoredRun;

use super::analysis_cache::{AnalysisCache, AnalysisKey, TimedAnalysis};
use super::openapi::{AnalysisRefusals, CampaignName};
use super::principal::{PageClient, Principal};
use super::view::PageResult;
use super::{Refusal, Site, api};
use crate::analysis_query::AnalysisQuery;
use crate::error::CollectError;
use crate::pages::{self, AnalysisView};
use crate::time;

/// Maximum number of runs on the page of a round.
const MAX_ROUND_RUNS: usize = 4;
/// Maximum number of runs of a round that are looked up.
const MAX_RUNS_FOUND: i64 = 200;

type Pairs = Vec<(String, String)>;

fn parse(pairs: &[(String, String)]) -> Result<AnalysisQuery, Refusal> {
    AnalysisQuery::parse(pairs).map_err(|text| Refusal::new(StatusCode::BAD_REQUEST, text))
}

/// The analysis of a campaign: `GET /campaigns/NAME/analysis?family=ipv6`.
pub(super) async fn page(
    State(site): State<Arc<Site>>,
    client: PageClient,
    Path(campaign): Path<String>,
    Query(pairs): Query<Pairs>,
) -> PageResult {
    client.expect_viewer(&site)?;
    let query = parse(&pairs)?;
    let entry = site.store.campaign(&campaign, time::now_us()).await?;
    let servers = site.store.test_servers().await?;
    let key =
        AnalysisKey { campaign, query: query.clone(), has_devices: client.may_view_devices() };
    let TimedAnalysis { analysis, read_us, left_out, .. } =
        AnalysisCache::analysis(&site, key).await?;
    let written = tokio::task::spawn_blocking(move || {
        let view = AnalysisView {
            entry: &entry,
            analysis: &analysis,
            query: &query,
            servers: &servers,
            read_us,
            left_out,
        };
        pages::analysis(&view, client.reader())
    });
    Ok(Html(written.await.map_err(|_| api::busy())?).into_response())
}

/// A file of an analysis: `GET /campaigns/NAME/analysis/max-delay.svg`.
pub(super) async fn file(
    State(site): State<Arc<Site>>,
    client: PageClient,
    Path((campaign, name)): Path<(String, String)>,
    Query(pairs): Query<Pairs>,
) -> PageResult {
    client.expect_viewer(&site)?;
    let (query, has_devices) = (parse(&pairs)?, client.may_view_devices());
    Ok(send(&site, AnalysisKey { campaign, query, has_devices }, name).await?)
}

/// A file of an analysis with conditions, whose links on a page are relative to them:
/// `GET /campaigns/NAME/analysis/family%3Dipv6/max-delay.svg`.
pub(super) async fn file_of_selection(
    State(site): State<Arc<Site>>,
    client: PageClient,
    Path((campaign, conditions, name)): Path<(String, String, String)>,
) -> PageResult {
    client.expect_viewer(&site)?;
    let invalid = || Refusal::new(StatusCode::BAD_REQUEST, "the conditions are not a query");
    let address: Uri = format!("/?{conditions}").parse().map_err(|_| invalid())?;
    let pairs = Query::<Pairs>::try_from_uri(&address).map_err(|_| invalid())?;
    let (query, has_devices) = (parse(&pairs)?, client.may_view_devices());
    Ok(send(&site, AnalysisKey { campaign, query, has_devices }, name).await?)
}

/// Returns a file of an analysis as a download.
async fn send(site: &Arc<Site>, key: AnalysisKey, name: String) -> Result<Response, Refusal> {
    let analysis = AnalysisCache::analysis(site, key).await?.analysis;
    let asked = name.clone();
    let written = tokio::task::spawn_blocking(move || output::file(&analysis, &name));
    let Some(file) = written.await.map_err(|_| api::busy())? else {
        let asked: String = asked.chars().take(80).collect();
        let error = format!("the analysis has no file `{}`", asked.escape_debug());
        return Err(Refusal::new(StatusCode::NOT_FOUND, error)
            .with_hint("its page links to all files. A figure without enough runs has none"));
    };
    let file = file.map_err(CollectError::from)?;
    // The names of files are known, so they are fit for a header.
    let disposition = format!("attachment; filename=\"{}\"", file.name);
    let headers = [
        (header::CONTENT_TYPE, file.media_type.to_owned()),
        (header::CONTENT_DISPOSITION, disposition),
    ];
    Ok((headers, file.bytes).into_response())
}

/// Returns the figures of a campaign: `GET /api/v1/campaigns/NAME/analysis?family=ipv6`.
#[utoipa::path(
    get,
    path = "/api/v1/campaigns/{campaign}/analysis",
    summary = "Return the figures of a campaign",
    description = "Returns the tables of all figures with 95 % intervals, and the mobile rounds. \
                   Names of devices need a token of a viewer or an admin.",
    params(CampaignName, AnalysisQuery),
    responses(
        (status = 200, description = "The analysis.", body = serde_json::Value),
        AnalysisRefusals,
    ),
    security(("token" = []))
)]
pub(super) async fn json(
    State(site): State<Arc<Site>>,
    principal: Principal,
    Path(campaign): Path<String>,
    Query(pairs): Query<Pairs>,
) -> Result<Response, Refusal> {
    principal.expect_viewer(&site)?;
    let (query, has_devices) = (parse(&pairs)?, principal.may_view_devices());
    let key = AnalysisKey { campaign, query, has_devices };
    send(&site, key, "analysis.json".to_owned()).await
}

/// The round of a mobile run: `GET /runs/ID/round`.
pub(super) async fn round(
    State(site): State<Arc<Site>>,
    client: PageClient,
    Path(id): Path<String>,
) -> PageResult {
    client.expect_viewer(&site)?;
    let entry = api::entry(&site, &id).await?;
    let (campaign, ids) = runs_of_round(&site, &entry.id).await?;
    let mut runs: Vec<StoredRun> = Vec::new();
    for id in ids {
        let entry = api::entry(&site, &id).await?;
        runs.push(api::stored_run(&site, &entry).await?);
    }
    let written =
        tokio::task::spawn_blocking(move || pages::mobile_round(&campaign, &runs, client.reader()));
    Ok(Html(written.await.map_err(|_| api::busy())?).into_response())
}

/// Returns the campaign of a mobile run, and the runs of its round with the same address family and
/// port.
async fn runs_of_round(site: &Site, id: &str) -> Result<(String, Vec<String>), Refusal> {
    let no_round = || {
        let error = format!("the run `{id}` does not belong to a round of a mobile campaign");
        Refusal::new(StatusCode::NOT_FOUND, error)
    };
    let catalogue = &site.store.catalogue;
    let round = catalogue.runs_of_round(id, MAX_RUNS_FOUND).await?.ok_or_else(no_round)?;
    let campaign = site.store.campaign(&round.campaign, time::now_us()).await?.campaign;
    if campaign.mode != CampaignMode::Mobile {
        return Err(no_round());
    }
    let planned = campaign.runs(&round.device, round.round);
    let place = |id: &str| {
        let (_, index) = round.runs.iter().find(|(other, _)| other == id)?;
        let run = planned.iter().find(|run| run.index == *index)?;
        Some((run.pattern, run.family, run.port))
    };
    let own = place(id);
    let ids = round.runs.iter().map(|(id, _)| id.clone()).filter(|id| place(id) == own);
    Ok((campaign.name, ids.take(MAX_ROUND_RUNS).collect()))
}
