//! The interface for devices that take part in campaigns: offers, and outcomes of planned runs.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use towpath_campaign::{CampaignList, MAX_OUTCOMES, OutcomeReply, OutcomeReport};
use utoipa::{IntoResponses, ToSchema};

use super::devices::{DeviceRefusals, Responses, expect_device, read_json, verify_consent};
use super::openapi::described_refusals;
use super::principal::Principal;
use super::{Refusal, Site};
use crate::time;

/// Maximum size of a report in bytes.
const MAX_REPORT_BYTES: usize = 2_000_000;

/// Lists the campaigns for the token's device: `GET /api/v1/device/campaigns`.
#[utoipa::path(
    get,
    path = "/api/v1/device/campaigns",
    summary = "List the campaigns for the device",
    description = "Returns the signed campaigns that have not ended, or have ended within the last \
                   day.",
    responses(
        (status = 200, description = "The campaigns.", body = CampaignListSchema),
        CampaignRefusals,
    ),
    security(("token" = []))
)]
pub(super) async fn list(
    State(site): State<Arc<Site>>,
    principal: Principal,
) -> Result<Json<CampaignList>, Refusal> {
    let token = expect_device(&principal)?;
    verify_consent(&site, token).await?;
    let campaigns = site.store.offered_campaigns(time::now_us()).await?;
    let poll_s = u32::try_from(site.poll_interval.as_secs()).unwrap_or(u32::MAX).max(1);
    Ok(Json(CampaignList { campaigns, poll_s }))
}

/// Stores outcomes of the token's device: `POST /api/v1/device/outcomes`.
#[utoipa::path(
    post,
    path = "/api/v1/device/outcomes",
    summary = "Report the outcomes of planned runs",
    description = "Stores outcomes of the device that the token belongs to. A repetition has no \
                   effect. A run that has a result keeps it.",
    request_body(content = OutcomeReportSchema, content_type = "application/json"),
    responses(
        (status = 200, description = "The outcomes are stored.", body = OutcomeReplySchema),
        OutcomeRefusals,
    ),
    security(("token" = []))
)]
pub(super) async fn report(
    State(site): State<Arc<Site>>,
    principal: Principal,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<OutcomeReply>, Refusal> {
    let token = expect_device(&principal)?;
    verify_consent(&site, token).await?;
    let report: OutcomeReport = read_json(&headers, body, MAX_REPORT_BYTES).await?;
    if report.outcomes.len() > MAX_OUTCOMES {
        let error = format!("a report has at most {MAX_OUTCOMES} outcomes");
        return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, error));
    }
    let device = (token.id.as_str(), token.name.as_str());
    let accepted = site.store.report_outcomes(device, report.outcomes, time::now_us()).await?;
    Ok(Json(OutcomeReply { accepted }))
}

/// Refusals of requests for campaigns.
pub(super) struct CampaignRefusals;

impl IntoResponses for CampaignRefusals {
    fn responses() -> Responses {
        let mut responses = DeviceRefusals::responses();
        let forbidden = "The token is not that of a device, or its owner has not accepted the \
                         current consent text.";
        responses.extend(described_refusals(&[(403, forbidden)]));
        responses
    }
}

/// Refusals of reports.
pub(super) struct OutcomeRefusals;

impl IntoResponses for OutcomeRefusals {
    fn responses() -> Responses {
        let mut responses = CampaignRefusals::responses();
        responses.extend(described_refusals(&[
            (400, "The report is not valid."),
            (413, "The report is too large."),
            (415, "The media type is not `application/json`."),
        ]));
        responses
    }
}

/// Schema of [`CampaignList`], whose crate knows no OpenAPI.
#[derive(Debug, ToSchema)]
#[schema(as = CampaignList, description = "Campaigns for a device.")]
#[expect(dead_code, reason = "only the schema is used")]
pub(super) struct CampaignListSchema {
    /// Campaigns in order of creation.
    campaigns: Vec<CampaignOfferSchema>,
    /// Time until the device should ask again, in seconds.
    poll_s: u32,
}

/// Schema of [`towpath_campaign::CampaignOffer`].
#[derive(Debug, ToSchema)]
#[schema(as = CampaignOffer, description = "Signed campaign.")]
#[expect(dead_code, reason = "only the schema is used")]
pub(super) struct CampaignOfferSchema {
    /// File of the operator, as TOML.
    text: String,
    /// Time of creation, in microseconds since 1970.
    created_us: u64,
    /// Ed25519 signature (RFC 8032) of the time and the text, in hexadecimal digits.
    signature: String,
    /// State: `active`, `paused` or `ended`. It is not signed: it can only stop a campaign.
    state: String,
}

/// Schema of [`OutcomeReport`].
#[derive(Debug, ToSchema)]
#[schema(as = OutcomeReport, description = "Outcomes of planned runs.")]
#[expect(dead_code, reason = "only the schema is used")]
pub(super) struct OutcomeReportSchema {
    /// At most 1000 outcomes.
    outcomes: Vec<OutcomeSchema>,
}

/// Schema of [`towpath_campaign::Outcome`].
#[derive(Debug, ToSchema)]
#[schema(as = Outcome, description = "Outcome of one planned run.")]
#[expect(dead_code, reason = "only the schema is used")]
pub(super) struct OutcomeSchema {
    /// Name of the campaign.
    campaign: String,
    /// Round of the schedule, from 0.
    round: u32,
    /// Index of the run in the round, from 0.
    run: u32,
    /// `stored` for a valid result, `invalid` for one that must not be compared with others, or
    /// `missing` for none.
    state: String,
    /// Identifier of the result, if it is stored or invalid: the first 20 digits of its content
    /// hash.
    #[schema(nullable = false)]
    result: Option<String>,
    /// Reason, if the result is missing: `owner-limit`, `campaign-limit`, `no-address`,
    /// `no-server`, `unreachable`, `refused`, `interrupted`, `missed`, `stopped` or `failed`.
    #[schema(nullable = false)]
    reason: Option<String>,
    /// Detail for people, if the result is missing or invalid; may be empty.
    #[schema(nullable = false)]
    detail: Option<String>,
    /// Time of the outcome on the device, in microseconds since 1970.
    at_us: u64,
}

/// Schema of [`OutcomeReply`].
#[derive(Debug, ToSchema)]
#[schema(as = OutcomeReply, description = "Reply to reported outcomes.")]
#[expect(dead_code, reason = "only the schema is used")]
pub(super) struct OutcomeReplySchema {
    /// Outcomes that belong to a planned run, and are stored now or were before.
    accepted: u32,
}
