//! JSON Schema of the scenario format, for editors.

use serde_json::{Map, Value, json};

use super::tables::{EXPECT, METRICS, MetricKind, SCENARIO, SYSCTL};
use super::{KeyPresence, TableSchema, ValueKind};
use crate::scenario::units::Dimension;

/// Returns the JSON Schema (draft 2020-12) of scenario files, for completion and checks in an
/// editor.
///
/// The schema covers keys, words and units. Only the reader checks what needs the whole file:
/// references to names, limits of values, and keys that exclude each other.
pub fn json_schema() -> Value {
    let mut schema = object(&SCENARIO);
    if let Some(map) = schema.as_object_mut() {
        map.insert("$schema".into(), "https://json-schema.org/draft/2020-12/schema".into());
        map.insert("title".into(), "towpath scenario".into());
    }
    schema
}

fn object(shape: &TableSchema) -> Value {
    if std::ptr::eq(shape, &raw const SYSCTL) {
        return json!({
            "type": "object",
            "description": shape.doc,
            "propertyNames": { "pattern": "^net\\." },
            "additionalProperties": { "type": ["string", "integer"] },
        });
    }
    if std::ptr::eq(shape, &raw const EXPECT) {
        return expectations(shape);
    }
    let mut properties = Map::new();
    for key in shape.keys() {
        let mut property = value(&key.kind);
        if let Some(map) = property.as_object_mut() {
            let text = match key.presence {
                KeyPresence::Required => key.doc.to_owned(),
                KeyPresence::Optional(otherwise) => {
                    format!("{} (when missing: {otherwise})", key.doc)
                }
            };
            map.insert("description".into(), text.into());
        }
        properties.insert(key.name.to_owned(), property);
    }
    let required: Vec<_> =
        shape.keys().filter(|k| k.presence == KeyPresence::Required).map(|k| k.name).collect();
    json!({
        "type": "object",
        "description": shape.doc,
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn value(kind: &ValueKind) -> Value {
    match kind {
        ValueKind::Text => json!({ "type": "string" }),
        ValueKind::Name(longest) => json!({
            "type": "string",
            "pattern": "^[a-z0-9][a-z0-9-]*$",
            "maxLength": longest,
        }),
        ValueKind::Bool => json!({ "type": "boolean" }),
        ValueKind::Integer(least, most) => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        ValueKind::Rate => quantity(Dimension::Rate),
        ValueKind::Duration => quantity(Dimension::Duration),
        ValueKind::Size => quantity(Dimension::Size),
        ValueKind::Packets => quantity(Dimension::Packets),
        ValueKind::Percent => quantity(Dimension::Share),
        ValueKind::Words(words) => json!({ "enum": words }),
        ValueKind::Any(text) => json!({ "description": text }),
        ValueKind::Bound => json!({ "type": "string" }),
        ValueKind::List(inner) => json!({ "type": "array", "items": value(inner) }),
        ValueKind::OneOf(kinds) => json!({ "anyOf": kinds.iter().map(value).collect::<Vec<_>>() }),
        ValueKind::Sides(inner) => {
            let side = value(inner);
            let both = json!({
                "type": "object",
                "properties": { "up": side, "down": side },
                "required": ["up", "down"],
                "additionalProperties": false,
            });
            json!({ "anyOf": [side, both] })
        }
        ValueKind::Table(shape) => object(shape),
        ValueKind::Named(shape, longest) => json!({
            "type": "object",
            "propertyNames": value(&ValueKind::Name(*longest)),
            "additionalProperties": object(shape),
        }),
        ValueKind::Tables(shape) => json!({ "type": "array", "items": object(shape) }),
    }
}

/// Returns the schema of a text with a number and one of the units.
fn quantity(dimension: Dimension) -> Value {
    let units: Vec<_> = dimension.units().collect();
    json!({
        "type": "string",
        "pattern": format!(r"^\s*[0-9]+(\.[0-9]+)?\s*({})\s*$", units.join("|")),
        "examples": [dimension.example()],
    })
}

fn expectations(shape: &TableSchema) -> Value {
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
        "description": shape.doc,
        "patternProperties": patterns,
        // Unquoted keys such as `mptcp.goodput = …` are nested tables.
        "additionalProperties": { "type": "object" },
    })
}
