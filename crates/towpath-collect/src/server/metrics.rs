//! Counters of the server for Prometheus (text format 0.0.4).

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::openapi::ReadRefusals;
use super::principal::Principal;
use super::{Refusal, Site};

/// Uploads since the server started, by outcome.
#[derive(Debug, Default)]
pub(super) struct UploadCounters {
    pub(super) created: AtomicU64,
    pub(super) repeated: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) failed: AtomicU64,
    /// Compressed bytes of new runs.
    pub(super) bytes: AtomicU64,
}

impl UploadCounters {
    /// Counts a reply to an upload.
    pub(super) fn count(&self, reply: &Result<bool, Refusal>) {
        let counter = match reply {
            Ok(true) => &self.created,
            Ok(false) => &self.repeated,
            Err(refusal) if refusal.status.is_client_error() => &self.refused,
            Err(_) => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Reports the counters: `GET /metrics`.
#[utoipa::path(
    get,
    path = "/metrics",
    summary = "Return counters for Prometheus",
    description = "Returns the number of runs, and of uploads since the server started.",
    responses(
        (
            status = 200,
            description = "Counters in the text format 0.0.4.",
            body = String,
            content_type = "text/plain"
        ),
        ReadRefusals,
    ),
    security(("token" = []))
)]
pub(super) async fn metrics(
    State(site): State<Arc<Site>>,
    principal: Principal,
) -> Result<Response, Refusal> {
    principal.expect_viewer(&site)?;
    let runs = site.store.catalogue.count().await?;
    let mut out = String::new();
    let mut add = |name: &str, kind: &str, help: &str, values: &[(&str, u64)]| {
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n"); // cannot fail
        for (labels, value) in values {
            let _ = writeln!(out, "{name}{labels} {value}");
        }
    };
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let uploads = &site.uploads;
    add("towpath_collector_runs", "gauge", "Runs in the catalogue.", &[("", runs.unsigned_abs())]);
    add(
        "towpath_collector_uploads_total",
        "counter",
        "Uploads by outcome.",
        &[
            ("{outcome=\"created\"}", load(&uploads.created)),
            ("{outcome=\"repeated\"}", load(&uploads.repeated)),
            ("{outcome=\"refused\"}", load(&uploads.refused)),
            ("{outcome=\"failed\"}", load(&uploads.failed)),
        ],
    );
    add(
        "towpath_collector_stored_bytes_total",
        "counter",
        "Compressed bytes of new runs.",
        &[("", load(&uploads.bytes))],
    );
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], out).into_response())
}
