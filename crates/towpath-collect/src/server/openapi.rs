//! The description of the interface for programs (OpenAPI 3.1), and the routes that it describes.
//!
//! Routes and document come from one list, [`routes`]: a handler with `#[utoipa::path]` is added
//! there in one line. The document is readable under the rule of the pages.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{Html, IntoResponse as _, Response};
use serde_json::Value;
use towpath_analysis::AnalysisSettings;
use towpath_report::ResultTable;
use towpath_result::upload::{
    FIRST_HEADER, HOST_HEADER, MAX_HOST_BYTES, RESULT_MEDIA_TYPE, SIZE_HEADER, TIME_HEADER,
};
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{Object, ObjectBuilder, Type};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{
    ArrayBuilder, Components, ContentBuilder, OpenApi as Document, PathItem, Ref, RefOr, Required,
    ResponseBuilder, Schema, Server,
};
use utoipa::{IntoParams, IntoResponses, Modify, OpenApi, PartialSchema, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::HASH_DIGITS;
use super::principal::{PageClient, Principal};
use super::refusal::PageRefusal;
use super::{
    Refusal, Site, analysis, api, campaigns, devices, live, metrics, tables, test_servers, view,
};
use crate::analysis_query::{
    AnalysisQuery, FAMILY, MAX_MIN_RUNS, MIN_RUNS, MIN_VERSION, PORT, SERVER,
};
use crate::entry::ID_DIGITS;
use crate::filter::{Facet, MAX_PAGE, MAX_VALUES, PAGE, RunFilter, SINCE, SORT, Sort, UNTIL};
use crate::pages;

/// Returns the routes of the interface for programs, with their descriptions.
pub(super) fn routes() -> OpenApiRouter<Arc<Site>> {
    OpenApiRouter::with_openapi(ApiDocument::openapi())
        .routes(routes!(api::runs))
        .routes(routes!(api::run, api::upload))
        .routes(routes!(api::records))
        .routes(routes!(tables::table))
        .routes(routes!(api::series))
        .routes(routes!(analysis::json))
        .routes(routes!(live::list))
        .routes(routes!(live::records, live::receive))
        .routes(routes!(devices::consent))
        .routes(routes!(devices::join))
        .routes(routes!(devices::device, devices::forget))
        .routes(routes!(devices::runs))
        .routes(routes!(devices::accept))
        .routes(routes!(test_servers::servers))
        .routes(routes!(test_servers::heartbeat))
        .routes(routes!(campaigns::list))
        .routes(routes!(campaigns::report))
        .routes(routes!(openapi))
        .routes(routes!(view::badge))
        .routes(routes!(api::health))
        .routes(routes!(metrics::metrics))
}

/// Parts of the document that do not belong to a route.
#[derive(Debug, OpenApi)]
#[openapi(
    info(
        title = "towpath collector",
        description = "Results of towpath: uploads, lists, series and records.\n\nTimes are \
                       microseconds since 1970. A reply may get further fields in later versions."
    ),
    modifiers(&TokenScheme)
)]
struct ApiDocument;

/// Authentication by a token that `towpath collect token create` printed.
struct TokenScheme;

impl Modify for TokenScheme {
    fn modify(&self, document: &mut Document) {
        let mut http = Http::new(HttpAuthScheme::Bearer);
        http.description = Some("Token that `towpath collect token create` printed.".to_owned());
        let components = document.components.get_or_insert_with(Components::new);
        components.add_security_scheme("token", SecurityScheme::Http(http));
    }
}

/// Returns the document for a site at this address.
fn document(site: &Site) -> Document {
    static DOCUMENT: LazyLock<Document> = LazyLock::new(|| {
        let mut document = routes().into_openapi();
        name_operations(&mut document);
        document
    });
    let mut document = DOCUMENT.clone();
    document.servers = Some(vec![Server::new(&site.url)]);
    document
}

/// Names each operation after its method and path, since handlers of two modules may have one name.
fn name_operations(document: &mut Document) {
    for (path, item) in &mut document.paths.paths {
        let path = path.trim_start_matches("/api/v1/");
        let parts: Vec<&str> = path.split(|c: char| !c.is_alphanumeric()).collect();
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        let PathItem { get, put, post, patch, delete, .. } = item;
        let operations =
            [("get", get), ("put", put), ("post", post), ("patch", patch), ("delete", delete)];
        for (method, operation) in operations {
            if let Some(operation) = operation {
                operation.operation_id = Some(format!("{method}_{}", parts.join("_")));
            }
        }
    }
}

/// Describes this interface: `GET /api/v1/openapi.json`.
#[utoipa::path(
    get,
    path = "/api/v1/openapi.json",
    summary = "Describe this interface",
    description = "Returns this description in the format OpenAPI 3.1.",
    responses((status = 200, description = "The description.", body = Value), ReadRefusals),
    security(("token" = []))
)]
pub(super) async fn openapi(
    State(site): State<Arc<Site>>,
    principal: Principal,
) -> Result<Response, Refusal> {
    principal.expect_viewer(&site)?;
    Ok(Json(document(&site)).into_response())
}

/// The same description for people: `GET /api`.
pub(super) async fn page(
    State(site): State<Arc<Site>>,
    client: PageClient,
) -> Result<Response, PageRefusal> {
    client.expect_viewer(&site)?;
    let document = serde_json::to_value(document(&site)).unwrap_or_default();
    Ok(Html(pages::api(&document, &site.url, client.reader())).into_response())
}

fn text(object: ObjectBuilder) -> ObjectBuilder {
    object.schema_type(Type::String)
}

fn query(name: &str, description: &str, schema: impl Into<RefOr<Schema>>) -> Parameter {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Query)
        .required(Required::False)
        .description(Some(description))
        .schema(Some(schema))
        .build()
}

impl IntoParams for RunFilter {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let facet = |facet: Facet| {
            let values =
                ArrayBuilder::new().items(text(Object::builder())).max_items(Some(MAX_VALUES));
            let description = format!(
                "Accepted values of `{}`: repeat the parameter for several. `-` is the empty value.",
                facet.name()
            );
            query(facet.name(), &description, values)
        };
        let day = |name: &str, description: &str| {
            let schema = text(Object::builder()).examples([Value::from("2026-11-28")]);
            query(name, description, schema.pattern(Some(r"^\d{4}-\d{2}-\d{2}$")))
        };
        let orders = Sort::ALL
            .into_iter()
            .flat_map(|sort| [sort.name().to_owned(), format!("+{}", sort.name())]);
        let sort = text(Object::builder())
            .enum_values(Some(orders.map(Value::from)))
            .default(Some(Sort::default().name().into()));
        let page = Object::builder()
            .schema_type(Type::Integer)
            .minimum(Some(1))
            .maximum(Some(MAX_PAGE as f64))
            .default(Some(1.into()));
        let mut parameters: Vec<Parameter> = Facet::ALL.into_iter().map(facet).collect();
        parameters.extend([
            day(SINCE, "First day on which a run started, in UTC."),
            day(UNTIL, "Last day on which a run started, in UTC."),
            query(
                SORT,
                "Order, and metric of a series. With `+`, the smallest or oldest is first.",
                sort,
            ),
            query(PAGE, "Page of the list, from 1.", page),
        ]);
        parameters
    }
}

impl IntoParams for AnalysisQuery {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let families = ["ipv4", "ipv6"].map(Value::from);
        let number = |min: u32, max: usize| integer().minimum(Some(min)).maximum(Some(max as f64));
        vec![
            query(SERVER, "Name of the test server.", text(Object::builder())),
            query(FAMILY, "Address family.", text(Object::builder()).enum_values(Some(families))),
            query(PORT, "Port of the test server.", number(0, 65_535)),
            query(
                MIN_VERSION,
                "Lowest version of towpath on the device, such as 0.3.",
                text(Object::builder()),
            ),
            query(
                MIN_RUNS,
                "Fewest values of a curve. Curves with fewer are left out.",
                number(1, MAX_MIN_RUNS).default(Some(AnalysisSettings::default().min_runs.into())),
            ),
        ]
    }
}

fn path_parameter(name: &str, description: &str, schema: ObjectBuilder) -> Vec<Parameter> {
    let parameter = ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .description(Some(description))
        .schema(Some(schema));
    vec![parameter.build()]
}

fn digits(count: usize) -> ObjectBuilder {
    text(Object::builder()).pattern(Some(format!("^[0-9a-f]{{{count}}}$")))
}

/// Identifier of a run in an address.
pub(super) struct RunId;

impl IntoParams for RunId {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let description = format!("Identifier of the run: {ID_DIGITS} hexadecimal digits.");
        path_parameter("id", &description, digits(ID_DIGITS))
    }
}

/// Identifier of a run in progress, in an address.
pub(super) struct LiveId;

impl IntoParams for LiveId {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let description = "Identifier of the run, which its host computes from the conditions.";
        path_parameter("id", description, digits(ID_DIGITS))
    }
}

/// Content hash of a run in an address.
pub(super) struct ContentHash;

impl IntoParams for ContentHash {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let description =
            format!("SHA-256 of the uncompressed result: {HASH_DIGITS} hexadecimal digits.");
        path_parameter("id", &description, digits(HASH_DIGITS))
    }
}

/// Name of a campaign in an address.
pub(super) struct CampaignName;

impl IntoParams for CampaignName {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        path_parameter("campaign", "Name of the campaign.", text(Object::builder()))
    }
}

/// Name of a table's file in an address.
pub(super) struct TableFile;

impl IntoParams for TableFile {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let files = ResultTable::ALL.into_iter().flat_map(|table| {
            let extensions =
                if table.has_fixed_columns() { &["csv", "parquet"][..] } else { &["csv"] };
            extensions.iter().map(move |extension| format!("{}.{extension}", table.name()))
        });
        let schema = text(Object::builder()).enum_values(Some(files.map(Value::from)));
        path_parameter("file", "Name of the table, with the format.", schema)
    }
}

fn header_parameter(
    name: &str,
    required: Required,
    description: &str,
    schema: ObjectBuilder,
) -> Parameter {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Header)
        .required(required)
        .description(Some(description))
        .schema(Some(schema))
        .build()
}

fn integer() -> ObjectBuilder {
    Object::builder().schema_type(Type::Integer)
}

fn host_header() -> Parameter {
    let schema = text(Object::builder()).max_length(Some(MAX_HOST_BYTES));
    header_parameter(HOST_HEADER, Required::False, "Name of the host that made the run.", schema)
}

/// Headers of an upload.
pub(super) struct UploadHeaders;

impl IntoParams for UploadHeaders {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![
            header_parameter(
                SIZE_HEADER,
                Required::True,
                "Number of bytes of the uncompressed result.",
                integer().minimum(Some(0)),
            ),
            host_header(),
            header_parameter(
                TIME_HEADER,
                Required::False,
                "Start of a run whose result does not contain it, in microseconds since 1970.",
                integer(),
            ),
        ]
    }
}

/// Headers of the records of a run in progress.
pub(super) struct LiveHeaders;

impl IntoParams for LiveHeaders {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![
            header_parameter(
                FIRST_HEADER,
                Required::True,
                "Number of records that were sent before, without the conditions.",
                integer().minimum(Some(0)),
            ),
            host_header(),
        ]
    }
}

/// A result as a client uploads it: JSON Lines, compressed with zstd.
pub(super) struct CompressedResult;

impl PartialSchema for CompressedResult {
    fn schema() -> RefOr<Schema> {
        text(Object::builder())
            .content_media_type(RESULT_MEDIA_TYPE)
            .description(Some("A result file of towpath (JSON Lines), compressed with zstd."))
            .into()
    }
}

impl ToSchema for CompressedResult {}

/// Schema of [`UploadReply`](towpath_result::upload::UploadReply), whose crate knows no OpenAPI.
#[derive(Debug, ToSchema)]
#[schema(as = UploadReply, description = "Reply to an upload.")]
#[expect(dead_code, reason = "only the schema is used")]
pub(super) struct UploadReplySchema {
    /// Identifier of the run: the first 20 digits of its content hash.
    id: String,
    /// Permanent address of the run's page.
    url: String,
    /// True if the run is new.
    created: bool,
}

/// Schema of [`ErrorReply`](towpath_result::upload::ErrorReply), whose crate knows no OpenAPI.
#[derive(Debug, ToSchema)]
#[schema(as = ErrorReply, description = "Reply to a refused request.")]
#[expect(dead_code, reason = "only the schema is used")]
pub(super) struct ErrorReplySchema {
    /// Reason of the refusal, for people.
    error: String,
    /// Suggested action, if any.
    #[schema(nullable = false)]
    hint: Option<String>,
}

/// Returns the descriptions of refusals with these statuses.
fn refusals(statuses: &[u16]) -> BTreeMap<String, RefOr<utoipa::openapi::Response>> {
    let described = statuses.iter().map(|status| {
        let description = match status {
            400 => "The query or a header is not valid.",
            401 => "The request has no valid token.",
            403 => {
                "The role of the token, or the consent of a device's owner, does not allow this."
            }
            404 => "There is no such run or table.",
            408 => "The request took longer than 120 s. The reply has no body.",
            409 => "Another run has this identifier, or the run is stored already.",
            413 => "The request or the uncompressed result is too large.",
            415 => "The media type is another one than the collector expects.",
            422 => "The result is damaged, or its format, hash, size or time is not accepted.",
            507 => "The disk of the collector is full.",
            _ => "The collector cannot reach its data, or is stopping.",
        };
        (*status, description)
    });
    described_refusals(&described.collect::<Vec<_>>())
}

/// Returns refusals with these statuses and descriptions.
pub(super) fn described_refusals(
    statuses: &[(u16, &str)],
) -> BTreeMap<String, RefOr<utoipa::openapi::Response>> {
    let refusal = |(status, description): &(u16, &str)| {
        let mut response = ResponseBuilder::new().description(*description);
        if *status != 408 {
            let reply = Ref::from_schema_name("ErrorReply");
            let content = ContentBuilder::new().schema(Some(reply)).build();
            response = response.content("application/json", content);
        }
        let header = |name: header::HeaderName, description: &str| {
            let header = HeaderBuilder::new()
                .schema(Some(text(Object::builder())))
                .description(Some(description));
            (name.to_string(), header.build())
        };
        if *status == 401 {
            let (name, header) = header(header::WWW_AUTHENTICATE, "`Bearer`");
            response = response.header(name, header);
        }
        if *status == 429 || *status >= 500 {
            let (name, header) = header(header::RETRY_AFTER, "Seconds until the next attempt.");
            response = response.header(name, header);
        }
        (status.to_string(), RefOr::T(response.build()))
    };
    statuses.iter().map(refusal).collect()
}

/// Refusals of requests that read without a query.
pub(super) struct ReadRefusals;

impl IntoResponses for ReadRefusals {
    fn responses() -> BTreeMap<String, RefOr<utoipa::openapi::Response>> {
        refusals(&[401, 403, 503])
    }
}

/// Refusals of requests with a query.
pub(super) struct QueryRefusals;

impl IntoResponses for QueryRefusals {
    fn responses() -> BTreeMap<String, RefOr<utoipa::openapi::Response>> {
        refusals(&[400, 401, 403, 503])
    }
}

/// Refusals of requests for one run.
pub(super) struct RunRefusals;

impl IntoResponses for RunRefusals {
    fn responses() -> BTreeMap<String, RefOr<utoipa::openapi::Response>> {
        refusals(&[401, 403, 404, 503])
    }
}

/// Refusals of requests for an analysis.
pub(super) struct AnalysisRefusals;

impl IntoResponses for AnalysisRefusals {
    fn responses() -> BTreeMap<String, RefOr<utoipa::openapi::Response>> {
        let mut responses = refusals(&[400, 401, 403]);
        responses.extend(described_refusals(&[
            (404, "There is no such campaign."),
            (422, "The campaign has too many planned runs."),
            (503, "The collector cannot reach its data, or has not read all results yet."),
        ]));
        responses
    }
}

/// Refusals of uploads.
pub(super) struct UploadRefusals;

impl IntoResponses for UploadRefusals {
    fn responses() -> BTreeMap<String, RefOr<utoipa::openapi::Response>> {
        refusals(&[400, 401, 403, 408, 409, 413, 415, 422, 503, 507])
    }
}

/// Refusals of records of a run in progress.
pub(super) struct LiveRefusals;

impl IntoResponses for LiveRefusals {
    fn responses() -> BTreeMap<String, RefOr<utoipa::openapi::Response>> {
        refusals(&[400, 401, 403, 408, 409, 413, 415, 422, 503])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_document_has_every_route_below_the_interface() {
        // A router does not list its routes, but its `Debug` shows the paths.
        let text = format!("{:?}", super::super::routes());
        let routed: BTreeSet<&str> =
            text.split('"').filter(|text| text.starts_with("/api/")).collect();
        let document = routes().into_openapi();
        let described: BTreeSet<&str> = document
            .paths
            .paths
            .keys()
            .map(String::as_str)
            .filter(|path| path.starts_with("/api/"))
            .collect();
        assert!(routed.contains("/api/v1/runs"), "{text}");
        assert_eq!(routed, described);
    }
}
