//! Runs in progress: records from their hosts, and events for pages that show them.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, IntoResponse, Redirect, Response};
use futures_util::Stream;
use futures_util::stream::unfold;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{sleep, timeout};
use towpath_result::upload::{FIRST_HEADER, LIVE_MEDIA_TYPE, MAX_LIVE_BYTES, live_id};
use utoipa::ToSchema;

use super::openapi::{LiveHeaders, LiveId, LiveRefusals, ReadRefusals, RunRefusals};
use super::principal::{PageClient, Principal};
use super::refusal::PageRefusal;
use super::{Refusal, Site, api, devices};
use crate::live::{self, LiveError, LiveFacts, LiveState, LiveView};
use crate::pages;
use crate::time::{self, DAY_US};

/// Minimum time between two events of a page.
const EVENT_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which a page without news checks that the run still exists.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Receives records of a run in progress: `POST /api/v1/live/ID`.
#[utoipa::path(
    post,
    path = "/api/v1/live/{id}",
    summary = "Show records of a run in progress",
    description = "A token of an uploader, a device or an admin is necessary. The collector shows \
                   the records for up to a minute after the last request, and stores none of them. \
                   `towpath run --to` and `towpath measure --to` send this request.",
    params(LiveId, LiveHeaders),
    request_body(
        content = String,
        content_type = "application/jsonl",
        description = "The conditions (`meta`) in the first line, then the newest records."
    ),
    responses((status = 204, description = "The records are on the run's page."), LiveRefusals),
    security(("token" = []))
)]
pub(super) async fn receive(
    State(site): State<Arc<Site>>,
    principal: Principal,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, Refusal> {
    let uploader = principal.expect_uploader()?;
    devices::verify_consent(&site, uploader).await?;
    let uploader = uploader.id.clone();
    let bad = |text: &str| Refusal::new(StatusCode::BAD_REQUEST, text);
    let media_type = headers.get(header::CONTENT_TYPE).map(header::HeaderValue::as_bytes);
    if media_type != Some(LIVE_MEDIA_TYPE.as_bytes()) {
        let error = format!("the media type must be {LIVE_MEDIA_TYPE}");
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, error));
    }
    let host = api::host(&headers)?;
    let first = headers.get(FIRST_HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
    let first = first.ok_or_else(|| {
        bad("the header `towpath-first` must have the number of records sent before")
    })?;
    let _permit = site.bodies.acquire().await.map_err(|_| api::busy())?;
    let body = axum::body::to_bytes(body, MAX_LIVE_BYTES).await.map_err(|_| {
        let error = format!("a request has at most {MAX_LIVE_BYTES} bytes of records");
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, error)
    })?;
    let text = String::from_utf8(body.into()).map_err(|_| bad("the records are not UTF-8"))?;
    let now_us = time::now_us();
    let receiver = Arc::clone(&site);
    let added = tokio::task::spawn_blocking(move || {
        let run = live::read(&text)?;
        let facts = LiveFacts::of(&id, &host, &run.meta);
        let is_now = (facts.started_us - now_us).abs() < DAY_US;
        if !is_now || live_id(&run.meta, &host).as_deref() != Some(id.as_str()) {
            return Ok(false);
        }
        receiver.live.add(facts, (&uploader, first), &text, now_us).map(|()| true)
    });
    if added.await.map_err(|_| api::busy())?? {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(bad("the address does not end with the identifier of this run, or its time is not now"))
}

impl From<LiveError> for Refusal {
    fn from(error: LiveError) -> Self {
        let status = match &error {
            LiveError::Records(_) | LiveError::LongMeta => StatusCode::UNPROCESSABLE_ENTITY,
            LiveError::OtherToken => StatusCode::FORBIDDEN,
            LiveError::Stored => StatusCode::CONFLICT,
            LiveError::Full => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, error.to_string())
    }
}

/// Runs in progress.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LiveList {
    /// The runs, the oldest first.
    runs: Vec<LiveFacts>,
}

/// Lists the runs in progress: `GET /api/v1/live`.
#[utoipa::path(
    get,
    path = "/api/v1/live",
    summary = "List the runs in progress",
    description = "Returns the runs whose hosts sent records within the last minute.",
    responses((status = 200, description = "The runs.", body = LiveList), ReadRefusals),
    security(("token" = []))
)]
pub(super) async fn list(
    State(site): State<Arc<Site>>,
    principal: Principal,
) -> Result<Json<LiveList>, Refusal> {
    principal.expect_viewer(&site)?;
    Ok(Json(LiveList { runs: site.live.list(time::now_us()) }))
}

/// Returns the records of a run in progress: `GET /api/v1/live/ID`.
#[utoipa::path(
    get,
    path = "/api/v1/live/{id}",
    summary = "Return the records of a run in progress",
    description = "Returns the conditions and the newest records as JSON Lines.",
    params(LiveId),
    responses(
        (
            status = 200,
            description = "The records so far.",
            body = String,
            content_type = "application/jsonl"
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
    let view = view(&site, &id)?;
    Ok(([(header::CONTENT_TYPE, LIVE_MEDIA_TYPE)], view.text).into_response())
}

fn view(site: &Site, id: &str) -> Result<LiveView, Refusal> {
    site.live.run(id, time::now_us()).ok_or_else(|| {
        Refusal::new(StatusCode::NOT_FOUND, "this run is no longer in progress")
            .with_hint("its result is in the list of runs, once its host has sent it")
    })
}

/// The page of a run in progress: `GET /live/ID`. Leads to the result once that is stored.
pub(super) async fn page(
    State(site): State<Arc<Site>>,
    client: PageClient,
    Path(id): Path<String>,
) -> Result<Response, PageRefusal> {
    client.expect_viewer(&site)?;
    let view = view(&site, &id)?;
    let stored = view.state.borrow().stored.clone();
    if let Some(run) = stored {
        return Ok(Redirect::to(&format!("/runs/{run}")).into_response());
    }
    let facts = view.facts.clone();
    let markup = draw(view).await?;
    Ok(Html(pages::live(&facts, &markup, client.reader())).into_response())
}

async fn draw(view: LiveView) -> Result<String, Refusal> {
    let drawn = tokio::task::spawn_blocking(move || view.draw());
    Ok(drawn.await.map_err(|_| api::busy())??)
}

/// Sends the charts of a run whenever records arrive: `GET /live/ID/events`.
pub(super) async fn events(
    State(site): State<Arc<Site>>,
    principal: Principal,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    principal.expect_viewer(&site)?;
    let view = view(&site, &id)?;
    let permit = Arc::clone(&site.streams).try_acquire_owned().map_err(|_| {
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "too many pages show runs in progress")
    })?;
    let subscription = Subscription {
        token: principal.token().map(|token| token.id.clone()),
        id,
        state: view.state,
        ending: site.ending.subscribe(),
        site,
        is_first: true,
        _permit: permit,
    };
    let events = Sse::new(stream(subscription)).keep_alive(KeepAlive::default());
    // nginx would collect the events otherwise.
    Ok(([("x-accel-buffering", "no")], events).into_response())
}

/// An open page.
struct Subscription {
    site: Arc<Site>,
    id: String,
    /// Identifier of the reader's token; `None` for a reader of a public site.
    token: Option<String>,
    state: watch::Receiver<LiveState>,
    /// Becomes true when the server ends.
    ending: watch::Receiver<bool>,
    is_first: bool,
    _permit: OwnedSemaphorePermit,
}

fn stream(subscription: Subscription) -> impl Stream<Item = Result<Event, Infallible>> {
    unfold(Some(subscription), async |subscription| {
        let mut subscription = subscription?;
        let mut ending = subscription.ending.clone();
        let event = tokio::select! {
            event = subscription.next_event() => event?,
            _ = ending.wait_for(|is_ending| *is_ending) => return None,
        };
        match event {
            PageEvent::Charts(markup) => {
                // A line break would end the field of the event.
                let event = Event::default().data(markup.replace(['\r', '\n'], " "));
                Some((Ok(event), Some(subscription)))
            }
            PageEvent::Stored(run) => Some((Ok(Event::default().event("stored").data(run)), None)),
        }
    })
}

/// Change that a page shows.
enum PageEvent {
    /// Markup of the newest charts.
    Charts(String),
    /// Identifier of the stored result.
    Stored(String),
}

impl Subscription {
    /// Returns false once the reader's token is revoked.
    async fn may_read(&self) -> bool {
        let Some(id) = &self.token else { return true };
        let tokens = self.site.store.catalogue.tokens().await.unwrap_or_default();
        tokens.iter().any(|token| token.id == *id && token.revoked_us.is_none())
    }

    /// Waits for a change; `None` if the run has ended without a result, or the reader may no longer
    /// read it.
    async fn next_event(&mut self) -> Option<PageEvent> {
        if !self.is_first {
            sleep(EVENT_INTERVAL).await;
        }
        loop {
            let is_news = self.is_first
                || matches!(timeout(CHECK_INTERVAL, self.state.changed()).await, Ok(Ok(())));
            let view = view(&self.site, &self.id).ok()?;
            if !is_news {
                continue;
            }
            self.is_first = false;
            if !self.may_read().await {
                return None;
            }
            let stored = self.state.borrow_and_update().stored.clone();
            return match stored {
                Some(run) => Some(PageEvent::Stored(run)),
                None => Some(PageEvent::Charts(draw(view).await.ok()?)),
            };
        }
    }
}
