//! Refused requests: a status, a reason and a way out, as JSON or as a page.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use towpath_result::upload::ErrorReply;

use crate::campaign::CampaignError;
use crate::error::CollectError;
use crate::pages;

use super::next::{NextPage, login_address};

/// Seconds after which a client may repeat a request that found the server busy or full.
const RETRY_SECONDS: &str = "30";

/// A request that was not carried out.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) error: String,
    pub(crate) hint: Option<String>,
    /// Time after which the client may repeat the request; `None` for the usual time.
    pub(crate) retry_after: Option<Duration>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, error: impl Into<String>) -> Self {
        Self { status, error: error.into(), hint: None, retry_after: None }
    }

    #[must_use]
    pub(crate) fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Returns the refusal of a request beyond a limit, which may be repeated after a time.
    pub(crate) fn too_many(error: impl Into<String>, retry_after: Duration) -> Self {
        let refusal = Self::new(StatusCode::TOO_MANY_REQUESTS, error);
        Self { retry_after: Some(retry_after), ..refusal }
    }

    pub(crate) fn not_found(id: &str) -> Self {
        let id: String = id.chars().take(80).collect();
        Self::new(StatusCode::NOT_FOUND, format!("there is no run `{id}` here"))
    }

    pub(crate) fn unauthenticated() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "the request has no valid token")
            .with_hint("create one on the collector: `towpath collect token create`")
    }

    pub(crate) fn forbidden(needed: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, format!("the token's role may not {needed}"))
    }
}

impl From<CollectError> for Refusal {
    fn from(error: CollectError) -> Self {
        if error.is_full() {
            tracing::error!("{error}");
            return Self::new(StatusCode::INSUFFICIENT_STORAGE, "the collector's disk is full");
        }
        let refusal = match &error {
            CollectError::TokenExists(_)
            | CollectError::InvitationExists(_)
            | CollectError::Campaign(CampaignError::Exists(_) | CampaignError::Ended(_))
            | CollectError::OtherConsent { .. } => {
                Self::new(StatusCode::CONFLICT, error.to_string())
            }
            CollectError::NoToken(_)
            | CollectError::NoDevice(_)
            | CollectError::Campaign(CampaignError::Unknown(_)) => {
                Self::new(StatusCode::NOT_FOUND, error.to_string())
            }
            CollectError::InvalidJoinCode | CollectError::NoConsent => {
                Self::new(StatusCode::FORBIDDEN, error.to_string())
            }
            CollectError::DeviceName
            | CollectError::ConsentText(_)
            | CollectError::Campaign(CampaignError::Mistakes(_) | CampaignError::Text(_)) => {
                Self::new(StatusCode::BAD_REQUEST, error.to_string())
            }
            CollectError::Campaign(CampaignError::TooLarge { .. }) => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string())
            }
            CollectError::Database(_)
            | CollectError::Migration(_)
            | CollectError::DatabaseAddress(_)
            | CollectError::Object(_)
            | CollectError::Bucket(_)
            | CollectError::Folder { .. }
            | CollectError::Listen { .. }
            | CollectError::NeverServed { .. }
            | CollectError::Io(_)
            | CollectError::Damaged { .. }
            | CollectError::Table(_)
            | CollectError::Analysis(_)
            | CollectError::Choice(_)
            | CollectError::Campaign(
                CampaignError::Damaged { .. }
                | CampaignError::Key { .. }
                | CampaignError::NoKey { .. }
                | CampaignError::OtherKey,
            )
            | CollectError::RecordsElsewhere { .. } => {
                // Details of the machine belong into the log only.
                tracing::error!("{error}");
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "the collector cannot reach its data")
            }
        };
        Self { hint: error.hint().filter(|_| refusal.status.is_client_error()), ..refusal }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, retry_after) = (self.status, self.retry_after);
        let reply = Json(ErrorReply { error: self.error, hint: self.hint });
        let mut response = (status, reply).into_response();
        add_headers((status, retry_after), &mut response);
        response
    }
}

fn add_headers((status, retry_after): (StatusCode, Option<Duration>), response: &mut Response) {
    if let Some(time) = retry_after {
        let seconds = time.as_secs().saturating_add(1);
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    } else if status.is_server_error() {
        let headers = response.headers_mut();
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_SECONDS));
    }
    if status == StatusCode::UNAUTHORIZED {
        let headers = response.headers_mut();
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
}

/// A refusal as a page. A browser that is not logged in is sent to the login page.
#[derive(Debug)]
pub(crate) struct PageRefusal {
    refusal: Refusal,
    /// Page to which the browser returns after its login.
    next: Option<NextPage>,
}

impl PageRefusal {
    pub(super) fn new(refusal: Refusal, next: Option<NextPage>) -> Self {
        Self { refusal, next }
    }
}

impl<E: Into<Refusal>> From<E> for PageRefusal {
    fn from(refusal: E) -> Self {
        Self::new(refusal.into(), None)
    }
}

impl IntoResponse for PageRefusal {
    fn into_response(self) -> Response {
        let Self { refusal, next } = self;
        if refusal.status == StatusCode::UNAUTHORIZED {
            return Redirect::to(&login_address(next.as_ref())).into_response();
        }
        let page = Html(pages::refusal(&refusal.error, refusal.hint.as_deref()));
        let mut response = (refusal.status, page).into_response();
        add_headers((refusal.status, refusal.retry_after), &mut response);
        response
    }
}
