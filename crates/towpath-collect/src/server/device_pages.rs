//! Pages of an administrator for devices of volunteers, and their forms.

use std::sync::Arc;

use axum::extract::{Form, Query, State};
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Redirect};
use serde::Deserialize;

use super::principal::{PageClient, verify_csrf};
use super::view::PageResult;
use super::{Refusal, Site};
use crate::audit::Actor;
use crate::catalogue::Session;
use crate::error::CollectError;
use crate::pages::{self, DeviceList, MAX_INVITATION_DAYS, NewInvitation};
use crate::time;

/// The list of devices: `GET /devices`.
pub(super) async fn list(State(site): State<Arc<Site>>, client: PageClient) -> PageResult {
    let session = client.expect_admin()?;
    Ok(Html(list_page(&site, session, None).await?).into_response())
}

async fn list_page(
    site: &Site,
    session: &Session,
    created: Option<NewInvitation<'_>>,
) -> Result<String, CollectError> {
    let list = DeviceList {
        devices: &site.store.devices().await?,
        invitations: &site.store.open_invitations(time::now_us()).await?,
        consent: site.store.consent().await?.version,
    };
    Ok(pages::devices(list, created, &site.url, session))
}

/// Form of a new invitation.
#[derive(Debug, Deserialize)]
pub(super) struct InvitationForm {
    csrf: String,
    name: String,
    days: u32,
}

/// Invites a device and shows the code once: `POST /devices`.
pub(super) async fn invite(
    State(site): State<Arc<Site>>,
    client: PageClient,
    Form(form): Form<InvitationForm>,
) -> PageResult {
    let session = client.expect_admin()?;
    verify_csrf(session, &form.csrf)?;
    if !(1..=MAX_INVITATION_DAYS).contains(&form.days) {
        let error = format!("an invitation expires after 1 to {MAX_INVITATION_DAYS} days");
        return Err(Refusal::new(StatusCode::BAD_REQUEST, error).into());
    }
    let name = form.name.trim();
    let expires_us = time::now_us().saturating_add(i64::from(form.days) * time::DAY_US);
    let store = site.store.acting_as(Actor::admin(&session.token));
    let invitation = store.invite_device(name, expires_us).await?;
    let created = NewInvitation { name, code: &invitation.code, expires_us };
    Ok(Html(list_page(&site, session, Some(created)).await?).into_response())
}

/// Form that ends an invitation.
#[derive(Debug, Deserialize)]
pub(super) struct EndForm {
    csrf: String,
    name: String,
}

/// Ends an invitation: `POST /devices/invitations/end`.
///
/// A device that has joined meanwhile keeps its access.
pub(super) async fn end_invitation(
    State(site): State<Arc<Site>>,
    client: PageClient,
    Form(form): Form<EndForm>,
) -> PageResult {
    let session = client.expect_admin()?;
    verify_csrf(session, &form.csrf)?;
    let actor = Actor::admin(&session.token);
    site.store.catalogue.end_invitation(&form.name, &actor, time::now_us()).await?;
    Ok(Redirect::to("/devices").into_response())
}

/// Query of the question before a revocation.
#[derive(Debug, Deserialize)]
pub(super) struct RevocationQuery {
    /// Identifier of the device's token.
    device: String,
}

/// The question before a device is revoked: `GET /devices/revoke?device=ID`.
pub(super) async fn confirm_revocation(
    State(site): State<Arc<Site>>,
    client: PageClient,
    Query(query): Query<RevocationQuery>,
) -> PageResult {
    let session = client.expect_admin()?;
    let device = site.store.catalogue.device(&query.device).await?;
    let device = device.filter(|device| device.token.revoked_us.is_none());
    let device = device.ok_or(CollectError::NoDevice(query.device))?;
    Ok(Html(pages::revocation(&device, session)).into_response())
}

/// Form that revokes a device.
#[derive(Debug, Deserialize)]
pub(super) struct RevocationForm {
    csrf: String,
    /// Identifier of the device's token.
    device: String,
}

/// Revokes a device: `POST /devices/revoke`.
pub(super) async fn revoke(
    State(site): State<Arc<Site>>,
    client: PageClient,
    Form(form): Form<RevocationForm>,
) -> PageResult {
    let session = client.expect_admin()?;
    verify_csrf(session, &form.csrf)?;
    let store = site.store.acting_as(Actor::admin(&session.token));
    store.revoke_device(&form.device).await?;
    Ok(Redirect::to("/devices").into_response())
}
