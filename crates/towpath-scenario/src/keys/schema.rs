//! JSON Schema of the scenario format, for editors.

use serde_json::{Map, Value, json};

use super::expectation::{EXPECT, METRICS, MetricKind};
use super::tables::{SCENARIO, SYSCTL};
use super::{KeyPresence, TableSchema, ValueKind};
use crate::units::Dimension;

/// Returns the JSON Schema (draft 2020-12) of scenario files, for completion and checks in an
/// editor.
///
/// The schema covers keys, words and units. Only the reader checks what needs the whole file:
/// references to names, limits of values, and keys that exclude each other.
pub fn json_schema() -> Value {
    let mut schema = table_schema(&SCENARIO);
    if let Some(map) = schema.as_object_mut() {
        map.insert("$schema".into(), "https://json-schema.org/draft/2020-12/schema".into());
        map.insert("title".into(), "towpath scenario".into());
    }
    schema
}

fn table_schema(schema: &TableSchema) -> Value {
    if std::ptr::eq(schema, &raw const SYSCTL) {
        return json!({
            "type": "object",
            "description": schema.doc,
            "propertyNames": { "pattern": "^net\\." },
            "additionalProperties": { "type": ["string", "integer"] },
        });
    }
    if std::ptr::eq(schema, &raw const EXPECT) {
        return expectations_schema(schema);
    }
    let mut properties = Map::new();
    for key in schema.keys() {
        let mut property = value_schema(&key.kind);
        if let Some(map) = property.as_object_mut() {
            let text = match key.presence {
                KeyPresence::Required => key.doc.to_owned(),
                KeyPresence::Optional(default) => {
                    format!("{} (when missing: {default})", key.doc)
                }
            };
            map.insert("description".into(), text.into());
        }
        properties.insert(key.name.to_owned(), property);
    }
    let required: Vec<_> =
        schema.keys().filter(|k| k.presence == KeyPresence::Required).map(|k| k.name).collect();
    json!({
        "type": "object",
        "description": schema.doc,
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn value_schema(kind: &ValueKind) -> Value {
    match kind {
        ValueKind::Text => json!({ "type": "string" }),
        ValueKind::Name(max_chars) => json!({
            "type": "string",
            "pattern": "^[a-z0-9][a-z0-9-]*$",
            "maxLength": max_chars,
        }),
        ValueKind::Bool => json!({ "type": "boolean" }),
        ValueKind::Integer(min, max) => {
            json!({ "type": "integer", "minimum": min, "maximum": max })
        }
        ValueKind::Rate => quantity_schema(Dimension::Rate),
        ValueKind::Duration => quantity_schema(Dimension::Duration),
        ValueKind::Size => quantity_schema(Dimension::Size),
        ValueKind::Packets => quantity_schema(Dimension::Packets),
        ValueKind::Percent => quantity_schema(Dimension::Share),
        ValueKind::Words(words) => json!({ "enum": words }),
        ValueKind::Any(text) => json!({ "description": text }),
        ValueKind::Bound => json!({ "type": "string" }),
        ValueKind::List(inner) => json!({ "type": "array", "items": value_schema(inner) }),
        ValueKind::OneOf(kinds) => {
            json!({ "anyOf": kinds.iter().map(value_schema).collect::<Vec<_>>() })
        }
        ValueKind::Sides(inner) => {
            let side = value_schema(inner);
            let per_direction = json!({
                "type": "object",
                "properties": { "up": side, "down": side },
                "required": ["up", "down"],
                "additionalProperties": false,
            });
            json!({ "anyOf": [side, per_direction] })
        }
        ValueKind::Table(schema) => table_schema(schema),
        ValueKind::Named(schema, max_chars) => json!({
            "type": "object",
            "propertyNames": value_schema(&ValueKind::Name(*max_chars)),
            "additionalProperties": table_schema(schema),
        }),
        ValueKind::Tables(schema) => json!({ "type": "array", "items": table_schema(schema) }),
    }
}

/// Returns the schema of a text with a number and one of the units.
fn quantity_schema(dimension: Dimension) -> Value {
    let units: Vec<_> = dimension.units().collect();
    json!({
        "type": "string",
        "pattern": format!(r"^\s*[0-9]+(\.[0-9]+)?\s*({})\s*$", units.join("|")),
        "examples": [dimension.example()],
    })
}

fn expectations_schema(schema: &TableSchema) -> Value {
    let mut patterns = Map::new();
    for (name, metric) in &METRICS {
        let name = name.replace('.', r"\.").replace("PATH", "[a-z0-9][a-z0-9-]*");
        let bound = match metric {
            MetricKind::Truth => json!({ "anyOf": [
                { "type": "boolean" },
                { "type": "string", "pattern": r"^\s*==\s*(true|false)\s*$" },
            ] }),
            MetricKind::Quantity(dimension) => {
                let units: Vec<_> = dimension.units().collect();
                let units = units.join("|");
                json!({
                    "type": "string",
                    "pattern":
                        format!(r"^\s*(<|<=|==|>=|>)\s*[0-9]+(\.[0-9]+)?\s*({units})\s*$"),
                    "examples": [format!(">= {}", dimension.example())],
                })
            }
        };
        patterns.insert(format!(r"^((tcp|mptcp|quic|mpquic)\.)?{name}$"), bound);
    }
    json!({
        "type": "object",
        "description": schema.doc,
        "patternProperties": patterns,
        // Unquoted keys such as `mptcp.goodput = …` are nested tables.
        "additionalProperties": { "type": "object" },
    })
}
