//! Pages of campaigns and test servers, and the forms of an administrator.

use std::sync::Arc;

use axum::extract::{Form, Path, Query, State};
use axum::response::{Html, IntoResponse, Redirect};
use serde::Deserialize;
use towpath_campaign::CampaignState;

use super::principal::{PageClient, verify_csrf};
use super::view::PageResult;
use super::{Refusal, Site};
use crate::audit::Actor;
use crate::error::CollectError;
use crate::pages::{self, CampaignDraft, CampaignView, Example};
use crate::time;

/// Query of the list.
#[derive(Debug, Deserialize)]
pub(super) struct ListQuery {
    /// Example for the form.
    example: Option<Example>,
}

/// The list of campaigns: `GET /campaigns`.
pub(super) async fn list(
    State(site): State<Arc<Site>>,
    client: PageClient,
    Query(query): Query<ListQuery>,
) -> PageResult {
    client.expect_viewer(&site)?;
    let page = list_page(&site, &client, CampaignDraft::Example(query.example)).await?;
    Ok(Html(page).into_response())
}

async fn list_page(
    site: &Site,
    client: &PageClient,
    draft: CampaignDraft<'_>,
) -> Result<String, CollectError> {
    let mut campaigns = Vec::new();
    for entry in site.store.campaigns(time::now_us()).await? {
        let counts = site.summaries.summary(&site.store, &entry).await?.summary.counts();
        campaigns.push((entry, counts));
    }
    Ok(pages::campaigns(&campaigns, draft, client.reader()))
}

/// Form of a new campaign.
#[derive(Debug, Deserialize)]
pub(super) struct CampaignForm {
    csrf: String,
    text: String,
}

/// Creates a campaign: `POST /campaigns`. A refused text stays in the form.
pub(super) async fn create(
    State(site): State<Arc<Site>>,
    client: PageClient,
    Form(form): Form<CampaignForm>,
) -> PageResult {
    let session = client.expect_admin()?;
    verify_csrf(session, &form.csrf)?;
    // A form is sent with the line ends of HTTP.
    let text = form.text.replace("\r\n", "\n");
    let store = site.store.acting_as(Actor::admin(&session.token));
    let created = store.create_campaign("campaign", text.as_bytes(), time::now_us()).await;
    match created {
        Ok(entry) => Ok(Redirect::to(&campaign_address(&entry.campaign.name)).into_response()),
        Err(CollectError::Campaign(error)) => {
            let draft = CampaignDraft::Refused { text: &text, error: &error };
            let page = list_page(&site, &client, draft).await?;
            let refusal = Refusal::from(CollectError::Campaign(error));
            if refusal.status.is_server_error() {
                return Err(refusal.into());
            }
            Ok((refusal.status, Html(page)).into_response())
        }
        Err(error) => Err(error.into()),
    }
}

fn campaign_address(name: &str) -> String {
    format!("/campaigns/{name}")
}

/// The page of a campaign: `GET /campaigns/NAME`.
pub(super) async fn page(
    State(site): State<Arc<Site>>,
    client: PageClient,
    Path(name): Path<String>,
) -> PageResult {
    client.expect_viewer(&site)?;
    let now_us = time::now_us();
    let entry = site.store.campaign(&name, now_us).await?;
    let counted = site.summaries.summary(&site.store, &entry).await?;
    let view = CampaignView {
        entry: &entry,
        summary: &counted.summary,
        counted_us: counted.counted_us,
        servers: &site.store.test_servers().await?,
        now_us,
        has_devices: client.may_view_devices(),
    };
    Ok(Html(pages::campaign(&view, client.reader())).into_response())
}

/// The question before a campaign ends: `GET /campaigns/NAME/end`.
pub(super) async fn confirm_end(
    State(site): State<Arc<Site>>,
    client: PageClient,
    Path(name): Path<String>,
) -> PageResult {
    let session = client.expect_admin()?;
    let entry = site.store.campaign(&name, time::now_us()).await?;
    if entry.state == CampaignState::Ended {
        return Ok(Redirect::to(&campaign_address(&entry.campaign.name)).into_response());
    }
    Ok(Html(pages::end_of_campaign(&entry, session)).into_response())
}

/// Form of a new state.
#[derive(Debug, Deserialize)]
pub(super) struct StateForm {
    csrf: String,
    state: CampaignState,
}

/// Pauses, resumes or ends a campaign: `POST /campaigns/NAME/state`.
pub(super) async fn change(
    State(site): State<Arc<Site>>,
    client: PageClient,
    Path(name): Path<String>,
    Form(form): Form<StateForm>,
) -> PageResult {
    let session = client.expect_admin()?;
    verify_csrf(session, &form.csrf)?;
    let store = site.store.acting_as(Actor::admin(&session.token));
    store.change_campaign(&name, form.state, time::now_us()).await?;
    // A campaign has this name, so the name is fit for an address.
    Ok(Redirect::to(&campaign_address(&name)).into_response())
}

/// The list of test servers: `GET /servers`.
pub(super) async fn servers(State(site): State<Arc<Site>>, client: PageClient) -> PageResult {
    client.expect_viewer(&site)?;
    let servers = site.store.test_servers().await?;
    let page = pages::servers(&servers, time::now_us(), &site.url, client.reader());
    Ok(Html(page).into_response())
}
