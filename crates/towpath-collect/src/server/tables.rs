//! Tables of one run for other programs: CSV or Parquet.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use towpath_report::{ParquetTable, ResultTable, TableError, csv};
use towpath_result::store::StoredRun;

use super::openapi::{RunId, RunRefusals, TableFile};
use super::principal::Principal;
use super::{Refusal, Site, api};
use crate::error::CollectError;

/// Format of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TableFormat {
    Csv,
    Parquet,
}

impl TableFormat {
    fn media_type(self) -> &'static str {
        match self {
            Self::Csv => "text/csv; charset=utf-8",
            Self::Parquet => "application/vnd.apache.parquet",
        }
    }
}

/// Returns a table of a run: `GET /api/v1/runs/ID/tables/subflows.csv`.
#[utoipa::path(
    get,
    path = "/api/v1/runs/{id}/tables/{file}",
    summary = "Return a table of a run",
    description = "Returns one table of the result as CSV or Parquet.",
    params(RunId, TableFile),
    responses(
        (
            status = 200,
            description = "The table.",
            content((String = "text/csv"), (String = "application/vnd.apache.parquet"))
        ),
        RunRefusals,
    ),
    security(("token" = []))
)]
pub(super) async fn table(
    State(site): State<Arc<Site>>,
    principal: Principal,
    Path((id, file)): Path<(String, String)>,
) -> Result<Response, Refusal> {
    principal.expect_viewer(&site)?;
    let (table, format) = parse(&file)?;
    let run = api::entry(&site, &id).await?;
    let stored = api::stored_run(&site, &run).await?;
    let _permit = site.readers.acquire().await.map_err(|_| api::busy())?;
    let id = run.id.clone();
    let written = tokio::task::spawn_blocking(move || write(&id, &stored, table, format));
    let bytes = written.await.map_err(|_| api::busy())?.map_err(CollectError::from)?;
    let name = format!("attachment; filename=\"{}-{file}\"", run.id);
    let headers = [
        (header::CONTENT_TYPE, format.media_type().to_owned()),
        (header::CONTENT_DISPOSITION, name),
    ];
    Ok((headers, bytes).into_response())
}

/// Reads the name of a file, such as `subflows.parquet`.
fn parse(file: &str) -> Result<(ResultTable, TableFormat), Refusal> {
    let (name, extension) = file.rsplit_once('.').unwrap_or((file, ""));
    let format = match extension {
        "csv" => Some(TableFormat::Csv),
        "parquet" => Some(TableFormat::Parquet),
        _ => None,
    };
    match (ResultTable::from_name(name), format) {
        (Some(table), Some(TableFormat::Parquet)) if !table.has_fixed_columns() => {
            let error = format!("the table `{name}` exists as CSV only");
            Err(Refusal::new(StatusCode::NOT_FOUND, error))
        }
        (Some(table), Some(format)) => Ok((table, format)),
        _ => {
            let names: Vec<&str> = ResultTable::ALL.into_iter().map(ResultTable::name).collect();
            let hint = format!("there are {}; each as .csv or .parquet", names.join(", "));
            Err(Refusal::new(StatusCode::NOT_FOUND, "there is no such table").with_hint(hint))
        }
    }
}

fn write(
    id: &str,
    run: &StoredRun,
    table: ResultTable,
    format: TableFormat,
) -> Result<Vec<u8>, TableError> {
    if format == TableFormat::Csv {
        return Ok(csv(std::slice::from_ref(run), table).into_bytes());
    }
    let Some(mut file) = ParquetTable::new(Vec::new(), table)? else { return Ok(Vec::new()) };
    file.add(id, run)?;
    file.finish()
}
