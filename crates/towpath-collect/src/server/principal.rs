//! Identification of a request: by a token in its header, or by the session of its cookie.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};

use super::next::NextPage;
use super::refusal::PageRefusal;
use super::{Refusal, Site};
use crate::access::{Role, Token};
use crate::catalogue::Session;
use crate::pages::Reader;
use crate::secret;
use crate::time;

/// Name of the session's cookie.
pub(super) const SESSION_COOKIE: &str = "towpath_session";

/// Sender of a request.
#[derive(Debug)]
pub(crate) enum Principal {
    /// A program with a token.
    Program(Token),
    /// A browser that is logged in.
    Browser(Session),
    /// A client that proves nothing.
    Unauthenticated,
}

impl Principal {
    pub(crate) fn token(&self) -> Option<&Token> {
        match self {
            Self::Program(token) => Some(token),
            Self::Browser(session) => Some(&session.token),
            Self::Unauthenticated => None,
        }
    }

    pub(crate) fn session(&self) -> Option<&Session> {
        match self {
            Self::Browser(session) => Some(session),
            Self::Program(_) | Self::Unauthenticated => None,
        }
    }

    /// Fails unless the principal may read runs.
    pub(super) fn expect_viewer(&self, site: &Site) -> Result<(), Refusal> {
        match self.token() {
            _ if site.public_read => Ok(()),
            Some(token) if token.role.may_view() => Ok(()),
            Some(_) => Err(Refusal::forbidden("read runs")),
            None => Err(Refusal::unauthenticated()),
        }
    }

    /// Returns true if the principal may read what belongs to single devices. The public may not.
    pub(super) fn may_view_devices(&self) -> bool {
        self.token().is_some_and(|token| token.role.may_view())
    }

    /// Returns the token if it allows uploads.
    pub(super) fn expect_uploader(&self) -> Result<&Token, Refusal> {
        // A browser's cookie is sent with requests of other sites as well, so it is not accepted.
        match self {
            Self::Program(token) if token.role.may_upload() => Ok(token),
            Self::Program(_) => Err(Refusal::forbidden("upload runs")),
            Self::Browser(_) | Self::Unauthenticated => Err(Refusal::unauthenticated()),
        }
    }

    /// Returns the session if it is that of an administrator.
    pub(super) fn expect_admin(&self) -> Result<&Session, Refusal> {
        match self {
            Self::Browser(session) if session.token.role == Role::Admin => Ok(session),
            Self::Browser(_) | Self::Program(_) => Err(Refusal::forbidden("manage tokens")),
            Self::Unauthenticated => Err(Refusal::unauthenticated()),
        }
    }
}

/// Fails unless a form comes from a page of the session.
pub(super) fn verify_csrf(session: &Session, sent: &str) -> Result<(), Refusal> {
    if secret::equal(&session.csrf, sent) {
        return Ok(());
    }
    Err(Refusal::new(StatusCode::FORBIDDEN, "the form does not belong to this session")
        .with_hint("load the page again, and repeat the action"))
}

/// Fails if a browser says that a page of another site caused the request.
pub(super) fn verify_same_site(headers: &HeaderMap) -> Result<(), Refusal> {
    match headers.get("sec-fetch-site").map(HeaderValue::as_bytes) {
        None | Some(b"same-origin" | b"none") => Ok(()),
        Some(_) => Err(Refusal::new(StatusCode::FORBIDDEN, "another site sent this form")),
    }
}

/// Returns the value of the session's cookie.
pub(super) fn session_cookie(headers: &HeaderMap) -> Option<&str> {
    headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .find_map(|pair| pair.trim().strip_prefix(SESSION_COOKIE)?.strip_prefix('='))
}

/// Sender of a request for a page.
#[derive(Debug)]
pub(super) struct PageClient {
    principal: Principal,
    /// Requested page; `None` for a form, since a redirect does not send it again.
    page: Option<NextPage>,
}

impl PageClient {
    pub(super) fn session(&self) -> Option<&Session> {
        self.principal.session()
    }

    pub(super) fn reader(&self) -> Reader<'_> {
        self.session().map_or(Reader::Anonymous, Reader::Session)
    }

    /// Fails unless the client may read runs.
    pub(super) fn expect_viewer(&self, site: &Site) -> Result<(), PageRefusal> {
        self.principal.expect_viewer(site).map_err(|refusal| self.refuse(refusal))
    }

    /// Returns the session if it is that of an administrator.
    pub(super) fn expect_admin(&self) -> Result<&Session, PageRefusal> {
        self.principal.expect_admin().map_err(|refusal| self.refuse(refusal))
    }

    /// Returns true if the client may read what belongs to single devices. The public may not.
    pub(super) fn may_view_devices(&self) -> bool {
        self.principal.may_view_devices()
    }

    fn refuse(&self, refusal: Refusal) -> PageRefusal {
        PageRefusal::new(refusal, self.page.clone())
    }
}

impl FromRequestParts<Arc<Site>> for PageClient {
    type Rejection = PageRefusal;

    async fn from_request_parts(
        parts: &mut Parts,
        site: &Arc<Site>,
    ) -> Result<Self, Self::Rejection> {
        let page = match parts.method {
            Method::GET => {
                parts.uri.path_and_query().and_then(|page| NextPage::parse(page.as_str()))
            }
            _ => None,
        };
        match Principal::from_request_parts(parts, site).await {
            Ok(principal) => Ok(Self { principal, page }),
            Err(refusal) => Err(PageRefusal::new(refusal, page)),
        }
    }
}

impl FromRequestParts<Arc<Site>> for Principal {
    type Rejection = Refusal;

    async fn from_request_parts(
        parts: &mut Parts,
        site: &Arc<Site>,
    ) -> Result<Self, Self::Rejection> {
        let catalogue = &site.store.catalogue;
        let now_us = time::now_us();
        if let Some(value) = parts.headers.get(header::AUTHORIZATION) {
            let secret = value.to_str().ok().and_then(|value| value.strip_prefix("Bearer "));
            let Some(secret) = secret else { return Err(Refusal::unauthenticated()) };
            let token = catalogue.token_of(secret.trim(), now_us).await?;
            return token.map(Self::Program).ok_or_else(Refusal::unauthenticated);
        }
        let Some(secret) = session_cookie(&parts.headers) else { return Ok(Self::Unauthenticated) };
        let session = catalogue.session(secret, now_us).await?;
        Ok(session.map_or(Self::Unauthenticated, Self::Browser))
    }
}
