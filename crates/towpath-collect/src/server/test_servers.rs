//! The interface for test servers and for the devices that use them.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use serde::Deserialize;
use towpath_campaign::{Heartbeat, HeartbeatReply, ServerList};
use utoipa::{IntoResponses, ToSchema};

use super::devices::{DeviceRefusals, Responses, expect_device, read_json, verify_consent};
use super::openapi::described_refusals;
use super::principal::Principal;
use super::{Refusal, Site};
use crate::access::{Role, Token};
use crate::test_server::verify_heartbeat;
use crate::time;

/// Maximum size of a heartbeat in bytes.
const MAX_REQUEST_BYTES: usize = 16_000;
/// Hint for a token that is not valid, or of another role.
const TOKEN_HINT: &str = "create a token on the collector's host: `towpath collect token create \
                          --name NAME --role server`";

/// Stores the state of the token's test server: `PUT /api/v1/server`.
#[utoipa::path(
    put,
    path = "/api/v1/server",
    summary = "Send the heartbeat of a test server",
    description = "Stores the state of the test server that the token belongs to. The reply has the \
                   key that verifies access grants. `towpath server --register` sends this request.",
    request_body(content = HeartbeatSchema, content_type = "application/json"),
    responses(
        (status = 200, description = "The heartbeat is stored.", body = HeartbeatReplySchema),
        HeartbeatRefusals,
    ),
    security(("token" = []))
)]
pub(super) async fn heartbeat(
    State(site): State<Arc<Site>>,
    principal: Principal,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<HeartbeatReply>, Refusal> {
    let token = expect_server(&principal)?;
    let heartbeat: Heartbeat = read_json(&headers, body, MAX_REQUEST_BYTES).await?;
    verify_heartbeat(&token.name, &heartbeat)
        .map_err(|reason| Refusal::new(StatusCode::BAD_REQUEST, reason))?;
    Ok(Json(site.store.note_heartbeat(token, heartbeat, time::now_us()).await?))
}

/// Query for test servers.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ServersQuery {
    /// Name of the campaign.
    campaign: String,
}

/// Lists the test servers of a campaign: `GET /api/v1/device/servers`.
#[utoipa::path(
    get,
    path = "/api/v1/device/servers",
    summary = "List the test servers of a campaign",
    description = "Returns the test servers that sent a heartbeat within 90 s, with an access grant \
                   for the device that the token belongs to. A grant is valid for ten minutes. \
                   All grants of a day share the bytes of a day. The list of a paused or ended \
                   campaign is empty.",
    params(ServersQuery),
    responses(
        (status = 200, description = "The servers in order of their names.", body = ServerListSchema),
        ServersRefusals,
    ),
    security(("token" = []))
)]
pub(super) async fn servers(
    State(site): State<Arc<Site>>,
    principal: Principal,
    query: Result<Query<ServersQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<ServerList>, Refusal> {
    let token = expect_device(&principal)?;
    verify_consent(&site, token).await?;
    let missing = |_| Refusal::new(StatusCode::BAD_REQUEST, "the query needs `campaign=NAME`");
    let Query(query) = query.map_err(missing)?;
    Ok(Json(site.store.offered_servers(token, &query.campaign, time::now_us()).await?))
}

/// Returns the token if it is that of a test server.
fn expect_server(principal: &Principal) -> Result<&Token, Refusal> {
    match principal {
        Principal::Program(token) if token.role == Role::Server => Ok(token),
        Principal::Program(_) => {
            Err(Refusal::new(StatusCode::FORBIDDEN, "the token is not that of a test server")
                .with_hint(TOKEN_HINT))
        }
        Principal::Browser(_) | Principal::Unauthenticated => {
            Err(Refusal::unauthenticated().with_hint(TOKEN_HINT))
        }
    }
}

/// Refusals of heartbeats.
pub(super) struct HeartbeatRefusals;

impl IntoResponses for HeartbeatRefusals {
    fn responses() -> Responses {
        described_refusals(&[
            (400, "The heartbeat is not valid."),
            (401, "The request has no valid token."),
            (403, "The token is not that of a test server."),
            (413, "The request is too large."),
            (415, "The media type is not `application/json`."),
            (503, "The collector cannot reach its data, or is stopping."),
            (507, "The disk of the collector is full."),
        ])
    }
}

/// Refusals of requests for test servers.
pub(super) struct ServersRefusals;

impl IntoResponses for ServersRefusals {
    fn responses() -> Responses {
        let mut responses = DeviceRefusals::responses();
        responses.extend(described_refusals(&[
            (400, "The query has no campaign."),
            (403, "The token is not that of a device, or its owner has not accepted the text."),
            (404, "There is no such campaign."),
        ]));
        responses
    }
}

/// Schema of [`Heartbeat`], whose crate knows no OpenAPI.
#[derive(Debug, ToSchema)]
#[schema(as = Heartbeat, description = "State of a test server.")]
#[expect(dead_code, reason = "only the schema is used")]
pub(super) struct HeartbeatSchema {
    /// Place for people, such as `Brussels`; may be empty.
    #[schema(max_length = 64)]
    place: String,
    /// Names or addresses by which devices reach the server, without ports.
    #[schema(min_items = 1, max_items = 16)]
    hosts: Vec<String>,
    /// Ports, the preferred one first.
    #[schema(min_items = 1, max_items = 16)]
    ports: Vec<u16>,
    /// Available transports: `tcp`, `mptcp`, `quic` or `mpquic`.
    transports: Vec<String>,
    /// SHA-256 fingerprint of the certificate in hexadecimal digits, if QUIC is available.
    certificate: Option<String>,
    /// Version of towpath.
    version: String,
    /// Running tests.
    tests: u32,
    /// Maximum number of tests at the same time.
    max_tests: u32,
}

/// Schema of [`HeartbeatReply`].
#[derive(Debug, ToSchema)]
#[schema(as = HeartbeatReply, description = "Reply to a heartbeat.")]
#[expect(dead_code, reason = "only the schema is used")]
pub(super) struct HeartbeatReplySchema {
    /// Name of the server, which is that of its token.
    name: String,
    /// Key that verifies access grants, in 64 hexadecimal digits.
    access_key: String,
    /// Time until the next heartbeat in seconds.
    interval_s: u32,
}

/// Schema of [`ServerList`].
#[derive(Debug, ToSchema)]
#[schema(as = ServerList, description = "Test servers that sent a heartbeat recently.")]
#[expect(dead_code, reason = "only the schema is used")]
pub(super) struct ServerListSchema {
    /// Servers in order of their names.
    servers: Vec<ServerOfferSchema>,
}

/// Schema of [`ServerOffer`](towpath_campaign::ServerOffer).
#[derive(Debug, ToSchema)]
#[schema(as = ServerOffer, description = "Test server for a device.")]
#[expect(dead_code, reason = "only the schema is used")]
pub(super) struct ServerOfferSchema {
    /// Name of the server.
    name: String,
    #[schema(inline)]
    #[serde(flatten)]
    heartbeat: HeartbeatSchema,
    /// Access for this device.
    access: AccessSchema,
}

/// Schema of [`Access`](towpath_campaign::Access).
#[derive(Debug, ToSchema)]
#[schema(as = Access, description = "Access of a device to a test server.")]
#[expect(dead_code, reason = "only the schema is used")]
pub(super) struct AccessSchema {
    /// Text of the grant, which the device sends to the server.
    grant: String,
    /// Secret that the device proves to the server, in 64 hexadecimal digits.
    secret: String,
}
