//! The HTTP server: routes, limits and security headers.

mod analysis;
mod analysis_cache;
mod api;
mod campaign_pages;
mod campaigns;
mod device_pages;
mod devices;
mod live;
mod metrics;
mod next;
mod openapi;
mod principal;
mod refusal;
mod summary_cache;
mod tables;
mod test_servers;
mod view;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::IntoResponse as _;
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::timeout::TimeoutLayer;
use towpath_campaign::MAX_CAMPAIGN_BYTES;

use crate::error::CollectError;
use crate::join_limit::JoinLimit;
use crate::live::LiveRuns;
use crate::store::Store;
use crate::time;

use self::analysis_cache::AnalysisCache;
use self::metrics::UploadCounters;
use self::summary_cache::SummaryCache;
pub(crate) use refusal::Refusal;

/// Results that are read at the same time. Each may take a few hundred megabytes.
const MAX_RESULTS_READ: usize = 2;
/// Uploads whose bodies are in memory at the same time, each up to the maximum size.
const MAX_BODIES: usize = 8;
/// Pages that wait for news of runs at the same time.
const MAX_STREAMS: usize = 100;
/// Maximum size of a form in bytes.
const MAX_FORM_BYTES: usize = 16_000;
/// Maximum size of the form of a campaign: each byte of its file may be sent as three.
const MAX_CAMPAIGN_FORM_BYTES: usize = 3 * MAX_CAMPAIGN_BYTES + MAX_FORM_BYTES;
/// Time for one request, which includes the upload of its body.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// Time for requests that are running when the server ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// Settings of the server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Address and port to listen on.
    pub listen: SocketAddr,
    /// Address by which browsers reach the collector, without a slash at the end; `None` for that of
    /// `listen`.
    pub public_url: Option<String>,
    /// True if clients without a token may read all runs.
    pub public_read: bool,
    /// Time after which devices ask for campaigns again, in whole seconds.
    pub poll_interval: Duration,
}

/// Shared state of all requests.
#[derive(Debug)]
pub(crate) struct Site {
    store: Store,
    /// Address of the site, without a slash at the end.
    url: String,
    public_read: bool,
    poll_interval: Duration,
    uploads: UploadCounters,
    /// Amounts of campaigns, for pages.
    summaries: SummaryCache,
    /// Analyses of campaigns, for pages and downloads.
    analyses: AnalysisCache,
    /// Permits to hold the body of an upload.
    bodies: Semaphore,
    /// Permits to read a result, which takes memory and a processor.
    readers: Semaphore,
    /// Failed attempts to join.
    joins: JoinLimit,
    /// Runs in progress.
    live: LiveRuns,
    /// Permits for pages that wait for news of such runs.
    streams: Arc<Semaphore>,
    /// Becomes true when the server ends.
    ending: watch::Sender<bool>,
}

impl Site {
    /// True if browsers reach the site over TLS.
    fn is_https(&self) -> bool {
        self.url.starts_with("https://")
    }
}

/// Serves until `shutdown` ends, and then finishes the running requests.
///
/// Calls `on_ready` with the address of the site once it accepts connections.
pub async fn serve(
    store: Store,
    config: ServerConfig,
    on_ready: impl FnOnce(&str),
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), CollectError> {
    store.objects.prepare(time::now_us()).await?;
    let failed = |source| CollectError::Listen { address: config.listen.to_string(), source };
    let listener = TcpListener::bind(config.listen).await.map_err(failed)?;
    let address = listener.local_addr()?;
    let url = config.public_url.clone().unwrap_or_else(|| format!("http://{address}"));
    let site = Arc::new(Site {
        store,
        url: url.trim_end_matches('/').to_owned(),
        public_read: config.public_read,
        poll_interval: config.poll_interval,
        uploads: UploadCounters::default(),
        summaries: SummaryCache::default(),
        analyses: AnalysisCache::default(),
        bodies: Semaphore::new(MAX_BODIES),
        readers: Semaphore::new(MAX_RESULTS_READ),
        joins: JoinLimit::default(),
        live: LiveRuns::default(),
        streams: Arc::new(Semaphore::new(MAX_STREAMS)),
        ending: watch::Sender::new(false),
    });
    site.store.note_address(&site.url)?;
    on_ready(&site.url);
    AnalysisCache::compute_facts(&site);
    let (ending, mut ended) = tokio::sync::oneshot::channel();
    let service = router(Arc::clone(&site)).into_make_service_with_connect_info::<SocketAddr>();
    let waiting = Arc::clone(&site);
    let server = axum::serve(listener, service).with_graceful_shutdown(async move {
        shutdown.await;
        waiting.ending.send_replace(true);
        let _ = ending.send(()); // the server may have failed
    });
    let deadline = async {
        if (&mut ended).await.is_ok() {
            tokio::time::sleep(SHUTDOWN_TIMEOUT).await;
        } else {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        outcome = server.into_future() => outcome?,
        () = deadline => {}
    }
    site.store.close().await;
    Ok(())
}

/// Returns all routes. Those for programs come from [`openapi::routes`].
fn routes() -> Router<Arc<Site>> {
    let forms = Router::new()
        .route("/login", get(view::login_form).post(view::login))
        .route("/logout", post(view::logout))
        .route("/tokens", get(view::tokens).post(view::create_token))
        .route("/tokens/revoke", post(view::revoke_token))
        .route("/campaigns/{name}/end", get(campaign_pages::confirm_end))
        .route("/campaigns/{name}/state", post(campaign_pages::change))
        .route("/devices", get(device_pages::list).post(device_pages::invite))
        .route("/devices/invitations/end", post(device_pages::end_invitation))
        .route("/devices/revoke", get(device_pages::confirm_revocation).post(device_pages::revoke))
        .layer(DefaultBodyLimit::max(MAX_FORM_BYTES));
    let campaigns = Router::new()
        .route("/campaigns", get(campaign_pages::list).post(campaign_pages::create))
        .layer(DefaultBodyLimit::max(MAX_CAMPAIGN_FORM_BYTES));
    Router::new()
        .route("/", get(view::runs))
        .route("/runs/{id}", get(view::run))
        .route("/runs/{id}/round", get(analysis::round))
        .route("/compare", get(view::compare))
        .route("/series", get(view::series))
        .route("/campaigns/{name}", get(campaign_pages::page))
        .route("/campaigns/{name}/analysis", get(analysis::page))
        .route("/campaigns/{name}/analysis/{file}", get(analysis::file))
        .route("/campaigns/{name}/analysis/{selection}/{file}", get(analysis::file_of_selection))
        .route("/servers", get(campaign_pages::servers))
        .route("/live/{id}", get(live::page))
        .route("/live/{id}/events", get(live::events))
        .route("/api", get(openapi::page))
        .merge(Router::from(openapi::routes()))
        .merge(forms)
        .merge(campaigns)
        .fallback(view::not_found)
}

fn router(site: Arc<Site>) -> Router {
    routes()
        .with_state(Arc::clone(&site))
        .layer(CatchPanicLayer::new())
        .layer(TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, REQUEST_TIMEOUT))
        .layer(middleware::from_fn_with_state(site, security_headers))
}

/// Adds headers that limit what a page may do, and who may embed or store it.
async fn security_headers(
    axum::extract::State(site): axum::extract::State<Arc<Site>>,
    request: Request<axum::body::Body>,
    next: Next,
) -> Response<axum::body::Body> {
    // In a task of its own, a request runs to its end even if the client disconnects. Otherwise a
    // transaction could stay open in the pool, and its locks would stop all others.
    let task = tokio::spawn(next.run(request));
    let mut response = match task.await {
        Ok(response) => response,
        Err(_) => {
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the request failed").into_response()
        }
    };
    let is_page = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"));
    // A page's own policy, in its head, is stricter; only a header can forbid frames.
    let policy = if is_page {
        "frame-ancestors 'none'"
    } else {
        "default-src 'none'; frame-ancestors 'none'; sandbox"
    };
    let headers = [
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (header::CACHE_CONTROL, "private, no-store"),
    ];
    for (name, value) in headers {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    if site.is_https() {
        response.headers_mut().insert(
            header::STRICT_TRANSPORT_SECURITY,
            HeaderValue::from_static("max-age=31536000"),
        );
    }
    response
}
