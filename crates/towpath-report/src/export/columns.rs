//! Columns of a table with their types, from the JSON schema of its rows.
//!
//! A file of many results needs its columns before its first row, and the same ones each time.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde_json::Value;
use towpath_result::{
    Counter, DatagramRow, Event, Interface, Interval, Link, LoadPhase, Message, PathStats, Probe,
    Recovery, Subflow,
};
use towpath_result::{ExpectationResult, FlowSummary, SubflowSummary};

use super::{ResultTable, in_reading_order};

/// Maximum depth of nested objects, which also ends recursive types.
const MAX_DEPTH: usize = 8;

/// Type of a column's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnKind {
    /// Signed integer of 64 bits. A larger value is absent.
    Integer,
    /// Floating-point number of 64 bits.
    Number,
    /// True or false.
    Boolean,
    /// Text in UTF-8. Lists are texts with a space between their elements, maps are JSON.
    Text,
}

/// Column of a table. Every value may be absent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Name of the field; a point separates the names of nested fields.
    pub name: String,
    /// Type of the values.
    pub kind: ColumnKind,
}

impl ResultTable {
    /// Returns the columns, for tables whose columns do not depend on the run.
    pub(super) fn columns(self) -> Option<Vec<Column>> {
        let with = |name: &str, kind: ColumnKind, columns: Vec<Column>| {
            let mut all = vec![Column { name: name.to_owned(), kind }];
            all.extend(columns);
            all
        };
        Some(match self {
            Self::Flows => columns_of::<FlowSummary>(),
            Self::SubflowTotals => columns_of::<SubflowSummary>(),
            Self::Recoveries => {
                let columns = with("direction", ColumnKind::Text, columns_of::<Recovery>());
                with("flow", ColumnKind::Integer, columns)
            }
            Self::Paths => columns_of::<PathStats>(),
            Self::Latency => with("flow", ColumnKind::Integer, columns_of::<LoadPhase>()),
            Self::Expectations => columns_of::<ExpectationResult>(),
            Self::Intervals => columns_of::<Interval>(),
            Self::Subflows => columns_of::<Subflow>(),
            Self::Links => columns_of::<Link>(),
            Self::Events => columns_of::<Event>(),
            Self::Messages => columns_of::<Message>(),
            Self::Probes => columns_of::<Probe>(),
            Self::Datagrams => columns_of::<DatagramRow>(),
            Self::Counters => columns_of::<Counter>(),
            Self::Interfaces => columns_of::<Interface>(),
            Self::Shares | Self::Sequence => return None,
        })
    }
}

/// Returns the columns of a type's rows. Lists of objects have none: they are tables of their own.
pub fn columns_of<T: JsonSchema>() -> Vec<Column> {
    let schema = schemars::schema_for!(T).to_value();
    let mut kinds = BTreeMap::new();
    collect(&schema, &schema, (String::new(), 0), &mut kinds);
    let names: BTreeSet<String> = kinds.keys().cloned().collect();
    let column = |name: String| Some(Column { kind: *kinds.get(&name)?, name });
    in_reading_order(names).into_iter().filter_map(column).collect()
}

fn collect(
    root: &Value,
    schema: &Value,
    (name, depth): (String, usize),
    kinds: &mut BTreeMap<String, ColumnKind>,
) {
    let schema = resolve(root, schema);
    if depth > MAX_DEPTH {
        return;
    }
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        for (key, property) in properties {
            let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
            collect(root, property, (name, depth + 1), kinds);
        }
    } else if let Some(kind) = kind(root, schema) {
        kinds.insert(name, kind);
    }
}

/// Follows references, and takes the other choice of an optional value.
fn resolve<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let mut schema = schema;
    for _ in 0..MAX_DEPTH {
        let target = schema.get("$ref").and_then(Value::as_str);
        let choices = schema.get("anyOf").and_then(Value::as_array);
        let next = if let Some(target) = target {
            target.strip_prefix('#').and_then(|pointer| root.pointer(pointer))
        } else if let Some(choices) = choices {
            choices.iter().find(|choice| choice.get("type").is_none_or(|kind| kind != "null"))
        } else {
            None
        };
        let Some(next) = next else { break };
        schema = next;
    }
    schema
}

/// Returns the type of a value that is not an object with fields; `None` for a list of objects.
fn kind(root: &Value, schema: &Value) -> Option<ColumnKind> {
    let names: Vec<&str> = match schema.get("type") {
        Some(Value::String(name)) => vec![name],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    match names.iter().find(|name| **name != "null").copied() {
        Some("integer") => Some(ColumnKind::Integer),
        Some("number") => Some(ColumnKind::Number),
        Some("boolean") => Some(ColumnKind::Boolean),
        Some("array") => {
            let element = schema.get("items").map(|items| resolve(root, items));
            let is_object = element.is_some_and(|element| element.get("properties").is_some());
            (!is_object).then_some(ColumnKind::Text)
        }
        _ => Some(ColumnKind::Text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_of(table: ResultTable, name: &str) -> Option<ColumnKind> {
        let columns = table.columns()?;
        columns.into_iter().find(|column| column.name == name).map(|column| column.kind)
    }

    #[test]
    fn columns_have_the_types_of_their_fields() {
        use ColumnKind::{Boolean, Integer, Number, Text};
        let subflows = ResultTable::Subflows;
        assert_eq!(kind_of(subflows, "t_ns"), Some(Integer));
        assert_eq!(kind_of(subflows, "srtt_us"), Some(Integer));
        assert_eq!(kind_of(subflows, "backup"), Some(Boolean));
        assert_eq!(kind_of(subflows, "side"), Some(Text));
        assert_eq!(kind_of(ResultTable::Events, "detail"), Some(Text));
        assert_eq!(kind_of(ResultTable::Recoveries, "flow"), Some(Integer));
        assert_eq!(kind_of(ResultTable::Expectations, "passed"), Some(Boolean));
        assert_eq!(kind_of(ResultTable::Flows, "goodput_bps"), Some(Number));
        assert_eq!(kind_of(ResultTable::Flows, "recoveries"), None);
        assert!(ResultTable::Shares.columns().is_none());
    }

    #[test]
    fn rows_are_identified_by_their_first_columns() {
        let columns = ResultTable::Intervals.columns().unwrap();
        let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        assert_eq!(names[..5], ["t_ns", "span_ns", "flow", "stream", "direction"]);
    }
}
