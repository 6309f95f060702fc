//! The page of the interface for programs, written from its OpenAPI document.

use maud::{Markup, html};
use serde_json::Value;

use super::{Reader, page};

/// Methods of operations, in the order of the page.
const METHODS: [&str; 5] = ["get", "put", "post", "patch", "delete"];

/// One operation of the document.
#[derive(Debug, Clone, Copy)]
struct ApiOperation<'a> {
    method: &'a str,
    path: &'a str,
    value: &'a Value,
}

impl<'a> ApiOperation<'a> {
    /// Returns all operations of a document.
    fn all(document: &'a Value) -> Vec<Self> {
        let paths = document["paths"].as_object().into_iter().flatten();
        let operations = paths.flat_map(|(path, item)| {
            METHODS
                .into_iter()
                .filter_map(move |method| Some(Self { method, path, value: item.get(method)? }))
        });
        operations.collect()
    }

    fn id(self) -> String {
        string(&self.value["operationId"]).to_owned()
    }

    fn parameters(self) -> impl Iterator<Item = &'a Value> {
        list(&self.value["parameters"]).iter()
    }

    /// Returns the media types of the reply to a successful request.
    fn media_types(self) -> impl Iterator<Item = &'a String> {
        let content = object(self.value, "/responses/200/content");
        content.into_iter().flat_map(serde_json::Map::keys)
    }

    /// Writes a command for a shell that carries the operation out.
    fn command(self, url: &str) -> String {
        let mut words = vec!["curl --fail-with-body".to_owned()];
        if self.method != "get" {
            words.push(format!("--request {}", self.method.to_uppercase()));
        }
        if !list(&self.value["security"]).is_empty() {
            words.push("--header \"Authorization: Bearer $TOWPATH_TOKEN\"".to_owned());
        }
        for parameter in self.parameters() {
            if parameter["in"] == "header" && parameter["required"] == true {
                let name = string(&parameter["name"]);
                words.push(format!("--header \"{name}: ${}\"", variable(name)));
            }
        }
        if let Some(content) = object(self.value, "/requestBody/content") {
            for media_type in content.keys().take(1) {
                words.push(format!("--header 'content-type: {media_type}'"));
                words.push("--data-binary \"@$BODY\"".to_owned());
            }
        }
        let is_text = |kind: &String| {
            ["text/", "image/svg", "application/json"].iter().any(|start| kind.starts_with(start))
        };
        if self.method == "get" && !self.media_types().all(is_text) {
            words.push("--remote-name --remote-header-name".to_owned());
        }
        let parts = self.path.split('/').map(|part| {
            let name = part.strip_prefix('{').and_then(|part| part.strip_suffix('}'));
            name.map_or_else(|| part.to_owned(), |name| format!("${}", variable(name)))
        });
        let parts: Vec<_> = parts.collect();
        let required = self
            .parameters()
            .filter(|parameter| parameter["in"] == "query" && parameter["required"] == true)
            .map(|parameter| string(&parameter["name"]))
            .map(|name| format!("{name}=${}", variable(name)));
        let query: Vec<_> = required.collect();
        let query = if query.is_empty() { query.concat() } else { format!("?{}", query.join("&")) };
        words.push(format!("\"{url}{}{query}\"", parts.join("/")));
        words.join(" \\\n")
    }
}

/// Returns the shell's variable for a parameter: `SIZE` for `towpath-size`.
fn variable(name: &str) -> String {
    let name = name.strip_prefix("towpath-").unwrap_or(name);
    name.to_uppercase().replace('-', "_")
}

fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns the object to which a JSON pointer leads (RFC 6901).
fn object<'a>(value: &'a Value, pointer: &str) -> Option<&'a serde_json::Map<String, Value>> {
    value.pointer(pointer).and_then(Value::as_object)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Writes the page; `url` is the address of the site.
pub(crate) fn api(document: &Value, url: &str, reader: Reader<'_>) -> String {
    let operations = ApiOperation::all(document);
    let info = |name: &str| document.get("info").map_or("", |info| string(&info[name]));
    let schemas = object(document, "/components/schemas");
    let main = html! {
        h1 { "Interface for programs" }
        (paragraphs(info("description")))
        p {
            "Version " (info("version")) " · "
            a href="/api/v1/openapi.json" { "openapi.json" } " (OpenAPI "
            (string(&document["openapi"])) ")"
        }
        p {
            "The commands read the token from " code { "TOWPATH_TOKEN" } ", parameters from variables "
            "with their names in capitals, and the name of a file to send from " code { "BODY" } "."
        }
        ul.operations {
            @for operation in &operations {
                li {
                    a href={ "#" (operation.id()) } {
                        code { (operation.method.to_uppercase()) " " (operation.path) }
                    }
                    " " (string(&operation.value["summary"]))
                }
            }
        }
        @for operation in &operations { (section(*operation, url)) }
        section {
            h2 { "Schemas" }
            @for (name, schema) in schemas.into_iter().flatten() {
                h3 id={ "schema-" (name) } { code { (name) } }
                (paragraphs(string(&schema["description"])))
                dl.fields { (fields(schema)) }
            }
        }
    };
    page("Interface for programs", reader, &main)
}

fn section(operation: ApiOperation<'_>, url: &str) -> Markup {
    let value = operation.value;
    let body = object(value, "/requestBody/content");
    html! {
        section.operation id=(operation.id()) {
            h2 { code { (operation.method.to_uppercase()) " " (operation.path) } }
            p.lead { (string(&value["summary"])) "." }
            (paragraphs(string(&value["description"])))
            pre { code { (operation.command(url)) } }
            @if operation.parameters().next().is_some() || body.is_some() {
                h3 { "Request" }
                dl.fields {
                    @for parameter in operation.parameters() { (parameter_entry(parameter)) }
                    @for (media_type, content) in body.into_iter().flatten() {
                        div {
                            dt { "body " small { (media_type) } }
                            dd { (schema_text(&content["schema"])) }
                        }
                    }
                }
            }
            h3 { "Replies" }
            dl.fields {
                @for (status, reply) in value["responses"].as_object().into_iter().flatten() {
                    (reply_entry(status, reply))
                }
            }
        }
    }
}

fn parameter_entry(parameter: &Value) -> Markup {
    let is_required = parameter["required"] == true;
    html! {
        div {
            dt {
                code { (string(&parameter["name"])) } " "
                small {
                    (string(&parameter["in"])) @if is_required { ", required" } @else { ", optional" }
                }
            }
            dd {
                (inline(string(&parameter["description"]))) " "
                small { (schema_text(&parameter["schema"])) }
            }
        }
    }
}

fn reply_entry(status: &str, reply: &Value) -> Markup {
    let headers = reply["headers"].as_object();
    html! {
        div {
            dt { code { (status) } }
            dd {
                (inline(string(&reply["description"])))
                @for (media_type, content) in reply["content"].as_object().into_iter().flatten() {
                    " " small { (media_type) ": " (schema_text(&content["schema"])) }
                }
                @for (name, header) in headers.into_iter().flatten() {
                    " " small { code { (name) } ": " (inline(string(&header["description"]))) }
                }
            }
        }
    }
}

/// Lists the fields of a schema, those of its parts included.
fn fields(schema: &Value) -> Markup {
    let required = list(&schema["required"]);
    html! {
        @for part in list(&schema["allOf"]) {
            @if part.get("$ref").is_some() {
                div { dt { "all fields of" } dd { (schema_text(part)) } }
            } @else { (fields(part)) }
        }
        @for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            div {
                dt {
                    code { (name) }
                    @if !required.iter().any(|required| required == name) {
                        " " small { "optional" }
                    }
                }
                dd {
                    (inline(string(&field["description"]))) " " small { (schema_text(field)) }
                }
            }
        }
    }
}

/// Writes the type of a value: `number or null`, `list of RunEntry`.
fn schema_text(schema: &Value) -> Markup {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap_or(reference);
        return html! { a href={ "#schema-" (name) } { (name) } };
    }
    let choices = ["oneOf", "anyOf"].into_iter().find_map(|key| schema[key].as_array());
    if let Some(choices) = choices {
        return html! {
            @for (index, choice) in choices.iter().enumerate() {
                @if index > 0 { " or " }
                (schema_text(choice))
            }
        };
    }
    if schema["type"] == "array" {
        return html! { "list of " (schema_text(&schema["items"])) };
    }
    let kind = match &schema["type"] {
        Value::String(kind) => kind.clone(),
        Value::Array(kinds) => kinds.iter().map(string).collect::<Vec<_>>().join(" or "),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            "any value".to_owned()
        }
    };
    let values = list(&schema["enum"]);
    html! {
        (kind)
        @if !values.is_empty() {
            ": " @for (index, value) in values.iter().enumerate() {
                @if index > 0 { ", " }
                code { (string(value)) }
            }
        }
    }
}

fn paragraphs(text: &str) -> Markup {
    html! { @for paragraph in text.split("\n\n").filter(|text| !text.is_empty()) { p { (inline(paragraph)) } } }
}

/// Writes a text whose code is between backticks.
fn inline(text: &str) -> Markup {
    html! {
        @for (index, part) in text.split('`').enumerate() {
            @if index % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}
