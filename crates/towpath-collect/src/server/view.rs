//! The site for browsers: pages, and the forms that they send.

use std::sync::Arc;

use axum::extract::{Form, Path, Query, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use serde::Deserialize;

use super::next::NextPage;
use super::openapi::{RunId, RunRefusals};
use super::principal::{
    PageClient, Principal, SESSION_COOKIE, session_cookie, verify_csrf, verify_same_site,
};
use super::refusal::PageRefusal;
use super::{Refusal, Site, api};
use crate::access::{Role, Token};
use crate::audit::Actor;
use crate::filter::RunFilter;
use crate::pages;
use crate::time;

/// Runs that a page can lay over each other.
const MAX_COMPARED: usize = 8;
/// Maximum length of a token's name, in characters.
const MAX_NAME_CHARS: usize = 60;

/// Page, or the reason why there is none.
pub(super) type PageResult = Result<Response, PageRefusal>;

/// The list of runs: `GET /`.
pub(super) async fn runs(
    State(site): State<Arc<Site>>,
    client: PageClient,
    Query(query): Query<Vec<(String, String)>>,
) -> PageResult {
    client.expect_viewer(&site)?;
    let filter = api::filter(&query)?;
    let runs = site.store.catalogue.list(&filter).await?;
    let in_progress = site.live.list(time::now_us());
    let page = pages::list((&filter, &runs), &in_progress, &site.url, client.reader());
    Ok(Html(page).into_response())
}

/// A metric of the matching runs over time: `GET /series`.
pub(super) async fn series(
    State(site): State<Arc<Site>>,
    client: PageClient,
    Query(query): Query<Vec<(String, String)>>,
) -> PageResult {
    client.expect_viewer(&site)?;
    let filter = RunFilter { page: 0, ..api::filter(&query)? };
    let (runs, points) = site.store.catalogue.series(&filter).await?;
    Ok(Html(pages::series(&filter, &runs, &points, client.reader())).into_response())
}

/// The page of a run: `GET /runs/ID`.
pub(super) async fn run(
    State(site): State<Arc<Site>>,
    client: PageClient,
    Path(id): Path<String>,
) -> PageResult {
    client.expect_viewer(&site)?;
    let entry = api::entry(&site, &id).await?;
    let run = api::stored_run(&site, &entry).await?;
    Ok(Html(pages::run(&entry, &run, client.reader())).into_response())
}

/// The badge of a run: `GET /runs/ID/badge.svg`.
#[utoipa::path(
    get,
    path = "/runs/{id}/badge.svg",
    summary = "Draw the goodput of a run",
    params(RunId),
    responses(
        (
            status = 200,
            description = "An image for other pages.",
            body = String,
            content_type = "image/svg+xml"
        ),
        RunRefusals,
    ),
    security(("token" = []))
)]
pub(super) async fn badge(
    State(site): State<Arc<Site>>,
    principal: Principal,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    principal.expect_viewer(&site)?;
    let svg = pages::badge(&api::entry(&site, &id).await?);
    // Other sites show badges.
    let headers = [
        (header::CONTENT_TYPE, "image/svg+xml"),
        (HeaderName::from_static("cross-origin-resource-policy"), "cross-origin"),
    ];
    Ok((headers, svg).into_response())
}

/// The comparison of runs: `GET /compare?run=ID&run=ID`.
pub(super) async fn compare(
    State(site): State<Arc<Site>>,
    client: PageClient,
    Query(query): Query<Vec<(String, String)>>,
) -> PageResult {
    client.expect_viewer(&site)?;
    let mut ids: Vec<&str> = Vec::new();
    for (_, id) in query.iter().filter(|(key, _)| key == "run") {
        if !ids.contains(&id.as_str()) {
            ids.push(id);
        }
    }
    if !(2..=MAX_COMPARED).contains(&ids.len()) {
        let error = format!("a comparison has 2 to {MAX_COMPARED} runs, not {}", ids.len());
        return Err(Refusal::new(StatusCode::BAD_REQUEST, error)
            .with_hint("select them in the first column of the list")
            .into());
    }
    let (mut entries, mut runs) = (Vec::new(), Vec::new());
    for id in ids {
        let entry = api::entry(&site, id).await?;
        runs.push(api::stored_run(&site, &entry).await?);
        entries.push(entry);
    }
    Ok(Html(pages::comparison(&entries, &runs, client.reader())).into_response())
}

/// Query of the login page.
#[derive(Debug, Deserialize)]
pub(super) struct LoginQuery {
    /// Code of a login link.
    code: Option<String>,
    /// Page to return to.
    next: Option<String>,
}

/// The login page: `GET /login`. Opening the link is not enough, since programs may open links.
pub(super) async fn login_form(Query(query): Query<LoginQuery>) -> Html<String> {
    let next = query.next.as_deref().and_then(NextPage::parse);
    Html(pages::login(query.code.as_deref(), next.as_ref().map(NextPage::as_str), None))
}

/// Form of the login page: a code or a token.
#[derive(Debug, Deserialize)]
pub(super) struct LoginForm {
    code: Option<String>,
    token: Option<String>,
    next: Option<String>,
}

/// Starts a session: `POST /login`.
pub(super) async fn login(
    State(site): State<Arc<Site>>,
    headers: HeaderMap,
    Form(form): Form<LoginForm>,
) -> PageResult {
    verify_same_site(&headers)?;
    let (catalogue, now_us) = (&site.store.catalogue, time::now_us());
    let token = match (&form.code, &form.token) {
        (Some(code), _) => catalogue.consume_login_code(code, now_us).await?,
        (None, Some(token)) => catalogue.token_of(token.trim(), now_us).await?,
        (None, None) => None,
    };
    let error = match &token {
        Some(token) if token.role.may_view() => None,
        Some(_) => {
            Some("This token is for uploads, and cannot read pages. Use a viewer's or an admin's.")
        }
        None if form.code.is_some() => {
            Some("This link was used already, or is older than ten minutes.")
        }
        None => Some("This token is not valid."),
    };
    let next = form.next.as_deref().and_then(NextPage::parse);
    let next = next.as_ref().map(NextPage::as_str);
    if let (Some(token), None) = (&token, error) {
        return start_session(&site, token, next.unwrap_or("/")).await;
    }
    Ok((StatusCode::FORBIDDEN, Html(pages::login(None, next, error))).into_response())
}

async fn start_session(site: &Site, token: &Token, next: &str) -> PageResult {
    let secret = site.store.catalogue.create_session(token, time::now_us()).await?;
    let mut response = Redirect::to(next).into_response();
    set_cookie(site, &mut response, &secret, "")?;
    Ok(response)
}

fn set_cookie(
    site: &Site,
    response: &mut Response,
    value: &str,
    lifetime: &str,
) -> Result<(), PageRefusal> {
    let secure = if site.is_https() { "; Secure" } else { "" };
    let cookie =
        format!("{SESSION_COOKIE}={value}; Path=/; HttpOnly; SameSite=Lax{secure}{lifetime}");
    let cookie = HeaderValue::from_str(&cookie)
        .map_err(|_| Refusal::new(StatusCode::BAD_REQUEST, "the cookie is not valid"))?;
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    Ok(())
}

/// Form with nothing but proof of the session.
#[derive(Debug, Deserialize)]
pub(super) struct SessionForm {
    csrf: String,
}

/// Ends the session: `POST /logout`.
pub(super) async fn logout(
    State(site): State<Arc<Site>>,
    client: PageClient,
    headers: HeaderMap,
    Form(form): Form<SessionForm>,
) -> PageResult {
    if let Some(session) = client.session() {
        verify_csrf(session, &form.csrf)?;
        if let Some(secret) = session_cookie(&headers) {
            site.store.catalogue.end_session(secret).await?;
        }
    }
    let mut response = Redirect::to("/login").into_response();
    set_cookie(&site, &mut response, "", "; Max-Age=0")?;
    Ok(response)
}

/// The page of tokens: `GET /tokens`.
pub(super) async fn tokens(State(site): State<Arc<Site>>, client: PageClient) -> PageResult {
    let session = client.expect_admin()?;
    let tokens = site.store.catalogue.tokens().await?;
    Ok(Html(pages::tokens(&tokens, session, None)).into_response())
}

/// Form of a new token.
#[derive(Debug, Deserialize)]
pub(super) struct TokenForm {
    csrf: String,
    name: String,
    role: String,
}

/// Creates a token and shows its secret once: `POST /tokens`.
pub(super) async fn create_token(
    State(site): State<Arc<Site>>,
    client: PageClient,
    Form(form): Form<TokenForm>,
) -> PageResult {
    let session = client.expect_admin()?;
    verify_csrf(session, &form.csrf)?;
    let bad = |text: String| Refusal::new(StatusCode::BAD_REQUEST, text);
    let role: Role = form.role.parse().map_err(bad)?;
    if !Role::GRANTED.contains(&role) {
        return Err(bad("a device gets its token when it joins".to_owned())
            .with_hint("`towpath collect device invite NAME` prints a code for it")
            .into());
    }
    let name = form.name.trim();
    if name.is_empty() || name.chars().count() > MAX_NAME_CHARS {
        return Err(bad(format!("a token's name has 1 to {MAX_NAME_CHARS} characters")).into());
    }
    let store = site.store.acting_as(Actor::admin(&session.token));
    let secret = store.create_token(name, role).await?;
    let tokens = store.tokens().await?;
    Ok(Html(pages::tokens(&tokens, session, Some((name, &secret)))).into_response())
}

/// Form that revokes a token.
#[derive(Debug, Deserialize)]
pub(super) struct RevokeForm {
    csrf: String,
    token: String,
}

/// Revokes a token: `POST /tokens/revoke`.
pub(super) async fn revoke_token(
    State(site): State<Arc<Site>>,
    client: PageClient,
    Form(form): Form<RevokeForm>,
) -> PageResult {
    let session = client.expect_admin()?;
    verify_csrf(session, &form.csrf)?;
    let store = site.store.acting_as(Actor::admin(&session.token));
    store.revoke_token(&form.token).await?;
    Ok(Redirect::to("/tokens").into_response())
}

/// Answer to every other address.
pub(super) async fn not_found() -> PageRefusal {
    Refusal::new(StatusCode::NOT_FOUND, "there is no such page").into()
}
