//! The interface for devices of volunteers: joining, their own state and runs, and leaving.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::de::DeserializeOwned;
use towpath_result::device::{
    ConsentChange, ConsentText, DeviceRun, DeviceState, ForgetReply, JoinReply, JoinRequest,
};
use utoipa::openapi::RefOr;
use utoipa::{IntoResponses, ToSchema};

use super::openapi::{ErrorReplySchema, described_refusals};
use super::principal::Principal;
use super::{Refusal, Site};
use crate::access::{Role, Token};
use crate::error::CollectError;
use crate::time;

/// Maximum size of a request in bytes.
const MAX_REQUEST_BYTES: usize = 16_000;
/// Maximum number of runs in a reply.
const MAX_RUNS: i64 = 100;
/// Hint for a device whose token is not valid, or is of another role.
const JOIN_HINT: &str = "ask the operator for a new code: `towpath agent join URL CODE`";

/// Reads the JSON of a request of at most `max_bytes`.
pub(super) async fn read_json<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
    max_bytes: usize,
) -> Result<T, Refusal> {
    let media_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let is_json = media_type.is_some_and(|media_type| {
        media_type.split(';').next().unwrap_or_default().trim() == "application/json"
    });
    if !is_json {
        let error = "the media type must be application/json";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, error));
    }
    let body = axum::body::to_bytes(body, max_bytes).await.map_err(|_| {
        let error = format!("a request has at most {max_bytes} bytes");
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, error)
    })?;
    serde_json::from_slice(&body).map_err(|error| {
        Refusal::new(StatusCode::BAD_REQUEST, format!("the request is not valid: {error}"))
    })
}

/// Fails for a device whose owner has not accepted the current consent text.
pub(super) async fn verify_consent(site: &Site, token: &Token) -> Result<(), Refusal> {
    if token.role == Role::Device && !site.store.catalogue.has_consented(&token.id).await? {
        return Err(CollectError::NoConsent.into());
    }
    Ok(())
}

/// Returns the consent text: `GET /api/v1/consent`.
#[utoipa::path(
    get,
    path = "/api/v1/consent",
    summary = "Return the consent text for owners of devices",
    responses(
        (status = 200, description = "The current text.", body = ConsentTextSchema),
        (status = 503, description = "The database does not answer.", body = ErrorReplySchema),
    )
)]
pub(super) async fn consent(State(site): State<Arc<Site>>) -> Result<Json<ConsentText>, Refusal> {
    Ok(Json(site.store.consent().await?))
}

/// Adds a device: `POST /api/v1/devices`.
#[utoipa::path(
    post,
    path = "/api/v1/devices",
    summary = "Join as a device",
    description = "Uses up a code of `towpath collect device invite`. After a refusal, the code is \
                   unused. `towpath agent join` sends this request.",
    request_body(content = JoinRequestSchema, content_type = "application/json"),
    responses(
        (status = 201, description = "The device has joined.", body = JoinReplySchema),
        JoinRefusals,
    )
)]
pub(super) async fn join(
    State(site): State<Arc<Site>>,
    ConnectInfo(client): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let request: JoinRequest = read_json(&headers, body, MAX_REQUEST_BYTES).await?;
    let too_many = |wait| {
        Refusal::too_many("too many attempts to join failed", wait)
            .with_hint("wait for 10 minutes, and check the code")
    };
    let attempt = site.joins.begin(client.ip(), time::now_us()).map_err(too_many)?;
    let joined = site.store.join(&request).await;
    if !matches!(joined, Err(CollectError::InvalidJoinCode)) {
        site.joins.withdraw(attempt);
    }
    let reply: JoinReply = joined?;
    Ok((StatusCode::CREATED, Json(reply)).into_response())
}

/// Returns the state of the token's device: `GET /api/v1/device`.
#[utoipa::path(
    get,
    path = "/api/v1/device",
    summary = "Return the state of the device",
    description = "Returns the state of the device that the token belongs to.",
    responses(
        (status = 200, description = "The state.", body = DeviceStateSchema),
        DeviceRefusals,
    ),
    security(("token" = []))
)]
pub(super) async fn device(
    State(site): State<Arc<Site>>,
    principal: Principal,
) -> Result<Json<DeviceState>, Refusal> {
    let token = expect_device(&principal)?;
    let device = site.store.catalogue.device(&token.id).await?.ok_or_else(no_device)?;
    let current_consent = site.store.consent().await?.version;
    Ok(Json(DeviceState {
        name: device.token.name,
        consent: device.consent,
        current_consent,
        joined_us: device.joined_us,
        runs: device.runs,
        bytes: device.bytes,
    }))
}

/// Lists the runs of the token's device: `GET /api/v1/device/runs`.
#[utoipa::path(
    get,
    path = "/api/v1/device/runs",
    summary = "List the runs of the device",
    description = "Returns the newest 100 runs of the device that the token belongs to.",
    responses(
        (status = 200, description = "The runs, the newest first.", body = [DeviceRunSchema]),
        DeviceRefusals,
    ),
    security(("token" = []))
)]
pub(super) async fn runs(
    State(site): State<Arc<Site>>,
    principal: Principal,
) -> Result<Json<Vec<DeviceRun>>, Refusal> {
    let token = expect_device(&principal)?;
    let runs = site.store.catalogue.runs_of(&token.id, MAX_RUNS).await?;
    let runs = runs.into_iter().map(|run| DeviceRun {
        url: format!("{}/runs/{}", site.url, run.id),
        id: run.id,
        started_us: run.started_us,
        scenario: run.group.scenario,
        transport: run.group.transport,
        goodput_bps: run.goodput_bps,
    });
    Ok(Json(runs.collect()))
}

/// Accepts a newer consent text: `PUT /api/v1/device/consent`.
#[utoipa::path(
    put,
    path = "/api/v1/device/consent",
    summary = "Accept the consent text",
    description = "Notes that the owner of the device has accepted the current text. Until then, \
                   results of the device are refused.",
    request_body(content = ConsentChangeSchema, content_type = "application/json"),
    responses((status = 204, description = "The text is accepted."), ConsentRefusals),
    security(("token" = []))
)]
pub(super) async fn accept(
    State(site): State<Arc<Site>>,
    principal: Principal,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, Refusal> {
    let token = expect_device(&principal)?;
    let change: ConsentChange = read_json(&headers, body, MAX_REQUEST_BYTES).await?;
    site.store.catalogue.accept_consent(&token.id, change.consent, time::now_us()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Deletes everything that the token's device sent: `DELETE /api/v1/device`.
#[utoipa::path(
    delete,
    path = "/api/v1/device",
    summary = "Delete everything that the device sent",
    description = "Deletes the runs of the device and their records, counts what remains, and then \
                   ends the access of the device. After a failure, a repetition deletes the rest. \
                   `towpath agent forget` sends this request.",
    responses(
        (status = 200, description = "The amounts.", body = ForgetReplySchema),
        ForgetRefusals,
    ),
    security(("token" = []))
)]
pub(super) async fn forget(
    State(site): State<Arc<Site>>,
    principal: Principal,
) -> Result<Json<ForgetReply>, Refusal> {
    let token = expect_device(&principal)?;
    let reply = site.store.forget_device(token).await?;
    site.live.forget(&token.id);
    Ok(Json(reply))
}

/// Returns the token if it is that of a device.
pub(super) fn expect_device(principal: &Principal) -> Result<&Token, Refusal> {
    match principal {
        Principal::Program(token) if token.role == Role::Device => Ok(token),
        Principal::Program(_) => {
            Err(Refusal::new(StatusCode::FORBIDDEN, "the token is not that of a device")
                .with_hint(JOIN_HINT))
        }
        Principal::Browser(_) | Principal::Unauthenticated => {
            Err(Refusal::unauthenticated().with_hint(JOIN_HINT))
        }
    }
}

fn no_device() -> Refusal {
    Refusal::new(StatusCode::FORBIDDEN, "the device is unknown").with_hint(JOIN_HINT)
}

pub(super) type Responses = BTreeMap<String, RefOr<utoipa::openapi::Response>>;

/// Refusals of requests to join.
pub(super) struct JoinRefusals;

impl IntoResponses for JoinRefusals {
    fn responses() -> Responses {
        described_refusals(&[
            (400, "The request is not valid."),
            (403, "The code is unknown, used or expired."),
            (409, "The accepted consent text is not the current one, or the name is used."),
            (413, "The request is too large."),
            (415, "The media type is not `application/json`."),
            (429, "Too many attempts failed. `Retry-After` has the time until the next one."),
            (503, "The collector cannot reach its data, or is stopping."),
            (507, "The disk of the collector is full."),
        ])
    }
}

/// Refusals of requests of a device.
pub(super) struct DeviceRefusals;

impl IntoResponses for DeviceRefusals {
    fn responses() -> Responses {
        described_refusals(&[
            (401, "The request has no valid token."),
            (403, "The token is not that of a device."),
            (503, "The collector cannot reach its data, or is stopping."),
            (507, "The disk of the collector is full."),
        ])
    }
}

/// Refusals of deletions.
pub(super) struct ForgetRefusals;

impl IntoResponses for ForgetRefusals {
    fn responses() -> Responses {
        let mut responses = DeviceRefusals::responses();
        let timeout = "The deletion took longer than 120 s. Repeat the request: it continues.";
        responses.extend(described_refusals(&[(408, timeout)]));
        responses
    }
}

/// Refusals of requests to accept a consent text.
pub(super) struct ConsentRefusals;

impl IntoResponses for ConsentRefusals {
    fn responses() -> Responses {
        let mut responses = DeviceRefusals::responses();
        responses.extend(described_refusals(&[
            (400, "The request is not valid."),
            (409, "The accepted consent text is not the current one."),
            (413, "The request is too large."),
            (415, "The media type is not `application/json`."),
        ]));
        responses
    }
}

/// Schema of [`ConsentText`], whose crate knows no OpenAPI.
#[derive(Debug, ToSchema)]
#[schema(as = ConsentText, description = "Text that the owner of a device accepts.")]
#[expect(dead_code, reason = "only the schema is used")]
pub(super) struct ConsentTextSchema {
    /// Version, from 1. A change of the text increases it.
    version: u32,
    /// Text for people, with an empty line between paragraphs.
    text: String,
}

/// Schema of [`JoinRequest`].
#[derive(Debug, ToSchema)]
#[schema(as = JoinRequest, description = "Request to join.")]
#[expect(dead_code, reason = "only the schema is used")]
pub(super) struct JoinRequestSchema {
    /// Code of the operator, such as `7K3M-9QPX-VB2D`.
    code: String,
    /// Version of the consent text that the owner has accepted.
    consent: u32,
    /// Version of the program.
    version: String,
    /// Operating system and processor, such as `linux x86_64`.
    platform: String,
}

/// Schema of [`JoinReply`].
#[derive(Debug, ToSchema)]
#[schema(as = JoinReply, description = "Reply to a device that has joined.")]
#[expect(dead_code, reason = "only the schema is used")]
pub(super) struct JoinReplySchema {
    /// Name that the operator gave to the device.
    name: String,
    /// Token of the device, which the collector does not store.
    token: String,
    /// Ed25519 key that verifies campaigns, in 64 hexadecimal digits.
    campaign_key: String,
}

/// Schema of [`ConsentChange`].
#[derive(Debug, ToSchema)]
#[schema(as = ConsentChange, description = "Acceptance of a consent text.")]
#[expect(dead_code, reason = "only the schema is used")]
pub(super) struct ConsentChangeSchema {
    /// Version of the consent text that the owner has accepted.
    consent: u32,
}

/// Schema of [`DeviceState`].
#[derive(Debug, ToSchema)]
#[schema(as = DeviceState, description = "State of a device on the collector.")]
#[expect(dead_code, reason = "only the schema is used")]
pub(super) struct DeviceStateSchema {
    /// Name of the device.
    name: String,
    /// Version of the accepted consent text; 0 once the consent is withdrawn.
    consent: u32,
    /// Current version of the consent text.
    current_consent: u32,
    /// Time of joining, in microseconds since 1970.
    joined_us: i64,
    /// Stored runs of the device.
    runs: u64,
    /// Bytes of these runs, compressed.
    bytes: u64,
}

/// Schema of [`DeviceRun`].
#[derive(Debug, ToSchema)]
#[schema(as = DeviceRun, description = "Stored run of a device.")]
#[expect(dead_code, reason = "only the schema is used")]
pub(super) struct DeviceRunSchema {
    /// Identifier of the run.
    id: String,
    /// Address of the run's page.
    url: String,
    /// Start of the run, in microseconds since 1970.
    started_us: i64,
    /// Name of the scenario or measurement.
    scenario: String,
    /// Transport, such as `mptcp`.
    transport: String,
    /// Goodput in bit/s, if measured.
    #[schema(required)]
    goodput_bps: Option<f64>,
}

/// Schema of [`ForgetReply`].
#[derive(Debug, ToSchema)]
#[schema(as = ForgetReply, description = "Reply to the deletion of a device's data.")]
#[expect(dead_code, reason = "only the schema is used")]
pub(super) struct ForgetReplySchema {
    /// Runs that were deleted.
    runs: u64,
    /// Bytes of these runs, compressed.
    bytes: u64,
    /// Runs of the device that are still stored, counted after the deletion.
    remaining_runs: u64,
    /// Objects of these runs that are still stored, looked up after the deletion.
    remaining_objects: u64,
}
