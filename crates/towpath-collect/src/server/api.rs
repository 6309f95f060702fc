//! The interface for programs: uploads, lists and records. Everything that a page shows is here.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use towpath_result::store::StoredRun;
use towpath_result::upload::{
    HOST_HEADER, MAX_COMPRESSED_BYTES, MAX_EXPANDED_BYTES, MAX_HOST_BYTES, RESULT_MEDIA_TYPE,
    SIZE_HEADER, TIME_HEADER, UploadReply,
};
use utoipa::ToSchema;

use super::openapi::{
    CompressedResult, ContentHash, ErrorReplySchema, QueryRefusals, RunId, RunRefusals,
    UploadHeaders, UploadRefusals, UploadReplySchema,
};
use super::principal::Principal;
use super::{Refusal, Site, devices};
use crate::access::Token;
use crate::catalogue::SeriesPoint;
use crate::change;
use crate::entry::{ID_DIGITS, RunEntry};
use crate::error::full_text;
use crate::filter::RunFilter;
use crate::records::read_records;
use crate::time;
use crate::upload::{self, UploadClaim};

/// Number of hexadecimal digits of a content hash.
pub(super) const HASH_DIGITS: usize = 64;

/// Stores a run: `PUT /api/v1/runs/HASH`.
#[utoipa::path(
    put,
    path = "/api/v1/runs/{id}",
    summary = "Store a run",
    description = "A token of an uploader, a device or an admin is necessary. A repeated upload \
                   has no effect. `towpath upload` sends this request.",
    params(ContentHash, UploadHeaders),
    request_body(content = CompressedResult, content_type = "application/zstd"),
    responses(
        (status = 200, description = "The run was there already.", body = UploadReplySchema),
        (status = 201, description = "The run is new.", body = UploadReplySchema),
        UploadRefusals,
    ),
    security(("token" = []))
)]
pub(super) async fn upload(
    State(site): State<Arc<Site>>,
    principal: Principal,
    Path(hash): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    // Nothing of the body is read before its sender is known and has a permit.
    let uploader = principal.expect_uploader()?.clone();
    devices::verify_consent(&site, &uploader).await?;
    let id: String = hash.chars().take(ID_DIGITS).collect();
    let claim = claim(hash, &headers);
    let _permit = site.bodies.acquire().await.map_err(|_| busy())?;
    let body = match &claim {
        Ok(_) => read_body(body).await,
        Err(_) => Ok(Bytes::new()),
    };
    let bytes = body.as_ref().map_or(0, |body| body.len() as u64);
    let stored = match body {
        Ok(body) => store(&site, &uploader, claim, body).await,
        Err(refusal) => Err(refusal),
    };
    site.uploads.count(&stored);
    let created = stored?;
    if created {
        site.uploads.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
    let url = format!("{}/runs/{id}", site.url);
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(UploadReply { id, url, created })).into_response())
}

async fn read_body(body: Body) -> Result<Bytes, Refusal> {
    let max_bytes = MAX_COMPRESSED_BYTES as usize;
    axum::body::to_bytes(body, max_bytes).await.map_err(|error| {
        if full_text(&error).contains("length limit") {
            let text = format!("a compressed result has at most {max_bytes} bytes");
            Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, text)
        } else {
            Refusal::new(StatusCode::BAD_REQUEST, "the upload was interrupted")
        }
    })
}

/// Checks and stores a result; returns false if the collector had it already.
async fn store(
    site: &Site,
    uploader: &Token,
    claim: Result<UploadClaim, Refusal>,
    body: Bytes,
) -> Result<bool, Refusal> {
    let claim = claim?;
    let id: String = claim.content_hash.chars().take(ID_DIGITS).collect();
    if let Some(run) = site.store.catalogue.run(&id).await? {
        return if run.content_hash == claim.content_hash { Ok(false) } else { Err(taken()) };
    }
    let permit = site.readers.acquire().await.map_err(|_| busy())?;
    let now_us = time::now_us();
    let checked = tokio::task::spawn_blocking(move || {
        let run = upload::check(&claim, &body, now_us);
        (run, body)
    });
    let (run, body) = checked.await.map_err(|_| busy())?;
    drop(permit);
    let run =
        run.map_err(|error| Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()))?;
    let created = site.store.add(&run, uploader, body.into()).await?;
    if let Some(live_id) = run.live_id {
        site.live.finish(&live_id, &uploader.id, &run.entry.id, now_us);
    }
    Ok(created)
}

fn taken() -> Refusal {
    Refusal::new(StatusCode::CONFLICT, "another run has this identifier")
}

pub(super) fn busy() -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the collector is stopping")
}

/// Reads what a client says about its upload.
fn claim(hash: String, headers: &HeaderMap) -> Result<UploadClaim, Refusal> {
    let bad = |text: String| Refusal::new(StatusCode::BAD_REQUEST, text);
    let is_hash = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if hash.len() != HASH_DIGITS || !hash.bytes().all(is_hash) {
        return Err(bad(
            "the address must end with the SHA-256 of the result, in lower case".into()
        ));
    }
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    if text(header::CONTENT_TYPE.as_str()).is_none_or(|kind| kind != RESULT_MEDIA_TYPE) {
        return Err(Refusal::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            format!("the media type must be {RESULT_MEDIA_TYPE}: a result, compressed with zstd"),
        ));
    }
    let size = text(SIZE_HEADER).and_then(|size| size.parse().ok());
    let expanded_bytes =
        size.ok_or_else(|| bad(format!("the header `{SIZE_HEADER}` must have the result's size")))?;
    if expanded_bytes > MAX_EXPANDED_BYTES {
        return Err(Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("a result has at most {MAX_EXPANDED_BYTES} bytes"),
        ));
    }
    let host = host(headers)?;
    let started_us = match text(TIME_HEADER) {
        Some(time) => Some(time.parse().map_err(|_| {
            bad(format!("`{TIME_HEADER}` must be a time in microseconds since 1970"))
        })?),
        None => None,
    };
    Ok(UploadClaim { content_hash: hash, expanded_bytes, host, started_us })
}

/// Reads the name of the host that makes the run; empty without one.
pub(super) fn host(headers: &HeaderMap) -> Result<String, Refusal> {
    let host = match headers.get(HOST_HEADER) {
        Some(value) => std::str::from_utf8(value.as_bytes()).unwrap_or_default(),
        None => "",
    };
    if host.len() > MAX_HOST_BYTES {
        let error = format!("`{HOST_HEADER}` has at most {MAX_HOST_BYTES} bytes");
        return Err(Refusal::new(StatusCode::BAD_REQUEST, error));
    }
    Ok(host.to_owned())
}

/// Page of the list as JSON.
#[derive(Debug, Serialize, ToSchema)]
struct RunList {
    /// Runs of this page.
    runs: Vec<RunEntry>,
    /// Number of runs that match, on all pages.
    matching: i64,
    /// Page, from 1.
    page: i64,
    /// Number of the last page.
    pages: i64,
}

/// Lists runs: `GET /api/v1/runs?transport=mptcp`.
#[utoipa::path(
    get,
    path = "/api/v1/runs",
    summary = "List runs",
    description = "Returns 50 runs of the list, with the conditions of its page.",
    params(RunFilter),
    responses(
        (status = 200, description = "Page of the list.", body = RunList),
        QueryRefusals,
    ),
    security(("token" = []))
)]
pub(super) async fn runs(
    State(site): State<Arc<Site>>,
    principal: Principal,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    principal.expect_viewer(&site)?;
    let filter = filter(&query)?;
    let page = site.store.catalogue.list(&filter).await?;
    let pages = page.last_page() + 1;
    let list = RunList { runs: page.runs, matching: page.matching, page: filter.page + 1, pages };
    Ok(Json(list).into_response())
}

/// Series of a metric as JSON.
#[derive(Debug, Serialize, ToSchema)]
struct Series {
    /// Runs that have the metric, the oldest first.
    points: Vec<SeriesPoint>,
    /// Significant change of the median, if there is one.
    change: Option<SeriesChange>,
}

/// Change of the median in a series.
#[derive(Debug, Serialize, ToSchema)]
struct SeriesChange {
    /// Start of the first run after the change.
    since_us: i64,
    /// Median of the metric before the change.
    median_before: f64,
    /// Median of the metric after the change.
    median_after: f64,
    /// Probability of such a statistic in a series without a change.
    p_value: f64,
}

/// Returns a metric of the matching runs over time: `GET /api/v1/series?sort=goodput`.
#[utoipa::path(
    get,
    path = "/api/v1/series",
    summary = "Return a metric over time",
    description = "Returns a metric of the newest 1000 runs that match, in order of time. `sort` \
                   is the metric; without it, the goodput.",
    params(RunFilter),
    responses(
        (status = 200, description = "The series.", body = Series),
        QueryRefusals,
    ),
    security(("token" = []))
)]
pub(super) async fn series(
    State(site): State<Arc<Site>>,
    principal: Principal,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    principal.expect_viewer(&site)?;
    let (_, points) = site.store.catalogue.series(&filter(&query)?).await?;
    let values: Vec<f64> = points.iter().map(|point| point.value).collect();
    let change = change::find(&values).and_then(|change| {
        Some(SeriesChange {
            since_us: points.get(change.index)?.started_us,
            median_before: change.median_before,
            median_after: change.median_after,
            p_value: change.p_value,
        })
    });
    Ok(Json(Series { points, change }).into_response())
}

/// Reads the query of an address.
pub(super) fn filter(query: &[(String, String)]) -> Result<RunFilter, Refusal> {
    RunFilter::parse(query).map_err(|text| Refusal::new(StatusCode::BAD_REQUEST, text))
}

/// Returns the catalogue's row of a run: `GET /api/v1/runs/ID`.
#[utoipa::path(
    get,
    path = "/api/v1/runs/{id}",
    summary = "Return the summary of a run",
    params(RunId),
    responses(
        (status = 200, description = "The summary.", body = RunEntry),
        RunRefusals,
    ),
    security(("token" = []))
)]
pub(super) async fn run(
    State(site): State<Arc<Site>>,
    principal: Principal,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    principal.expect_viewer(&site)?;
    Ok(Json(entry(&site, &id).await?).into_response())
}

/// Returns the row of a run.
pub(super) async fn entry(site: &Site, id: &str) -> Result<RunEntry, Refusal> {
    // No other text is an identifier, and the store of records never sees any other.
    let is_id = id.len() == ID_DIGITS && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let run = if is_id { site.store.catalogue.run(id).await? } else { None };
    run.ok_or_else(|| Refusal::not_found(id))
}

/// Returns the result as it was uploaded: `GET /api/v1/runs/ID/records`.
#[utoipa::path(
    get,
    path = "/api/v1/runs/{id}/records",
    summary = "Return the result as it was uploaded",
    params(RunId),
    responses(
        (
            status = 200,
            description = "The result.",
            body = CompressedResult,
            content_type = "application/zstd"
        ),
        RunRefusals,
    ),
    security(("token" = []))
)]
pub(super) async fn records(
    State(site): State<Arc<Site>>,
    principal: Principal,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    principal.expect_viewer(&site)?;
    let run = entry(&site, &id).await?;
    let bytes = site.store.objects.get(&run.id).await?;
    let name = format!("attachment; filename=\"{}.jsonl.zst\"", run.id);
    let headers =
        [(header::CONTENT_TYPE, RESULT_MEDIA_TYPE.to_owned()), (header::CONTENT_DISPOSITION, name)];
    Ok((headers, bytes).into_response())
}

/// Reads the records of a run.
pub(super) async fn stored_run(site: &Site, run: &RunEntry) -> Result<StoredRun, Refusal> {
    let bytes = site.store.objects.get(&run.id).await?;
    let _permit = site.readers.acquire().await.map_err(|_| busy())?;
    let id = run.id.clone();
    let read = tokio::task::spawn_blocking(move || read_records(&id, &bytes));
    Ok(read.await.map_err(|_| busy())??)
}

/// Confirms that the server and its database answer: `GET /healthz`.
#[utoipa::path(
    get,
    path = "/healthz",
    summary = "Confirm that the server and its database work",
    responses(
        (
            status = 200,
            description = "Both work: the text `ok`.",
            body = String,
            content_type = "text/plain"
        ),
        (status = 503, description = "The database does not answer.", body = ErrorReplySchema),
    )
)]
pub(super) async fn health(State(site): State<Arc<Site>>) -> Result<&'static str, Refusal> {
    site.store.catalogue.ping().await?;
    Ok("ok\n")
}
