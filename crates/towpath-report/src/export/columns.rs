//! Columns of a table with their types, from the JSON schema of its rows.
//!
//! A file of many results needs its columns before its first row, and the same ones each time.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde_json::Value;
use towpath_result::store::StoredRun;
use towpath_result::{
    Counter, DatagramRow, Event, Interface, Interval, Link, LoadPhase, Message, PathStats, Probe,
    Recovery, Subflow,
};
use towpath_result::{ExpectationResult, FlowSummary, SubflowSummary};

use super::{ResultTable, in_reading_order, lines, list_text};

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

/// Value of a column in one row.
#[derive(Debug, Clone, PartialEq)]
pub enum CellValue {
    /// Value of an integer column.
    Integer(i64),
    /// Value of a column of numbers.
    Number(f64),
    /// Value of a column of booleans.
    Boolean(bool),
    /// Value of a text column.
    Text(String),
}

impl Column {
    /// Returns the value in a row; `None` if it is absent or of another type.
    pub fn cell(&self, row: &Value) -> Option<CellValue> {
        let value = self.name.split('.').try_fold(row, |value, key| value.get(key))?;
        // An unset slow-start threshold is the largest number of 31 bits in Linux.
        if self.name == "ssthresh_packets" && value.as_u64() >= Some(i32::MAX as u64) {
            return None;
        }
        Some(match self.kind {
            ColumnKind::Integer => CellValue::Integer(value.as_i64()?),
            ColumnKind::Number => CellValue::Number(value.as_f64()?),
            ColumnKind::Boolean => CellValue::Boolean(value.as_bool()?),
            ColumnKind::Text => CellValue::Text(text(value)?),
        })
    }
}

/// Returns a value as text: lists with spaces between their elements, maps as JSON.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Array(values) => Some(list_text(values)),
        Value::Object(map) if map.is_empty() => None,
        other @ (Value::Bool(_) | Value::Number(_) | Value::Object(_)) => Some(other.to_string()),
    }
}

/// Columns that identify the run of a row.
const RUN_COLUMNS: [(&str, ColumnKind); 5] = [
    ("run", ColumnKind::Text),
    ("scenario", ColumnKind::Text),
    ("world", ColumnKind::Text),
    ("transport", ColumnKind::Text),
    ("repeat", ColumnKind::Integer),
];

impl ResultTable {
    /// Returns the columns of a table of many runs; `None` if they depend on the run (see
    /// [`Self::has_fixed_columns`]). The first columns identify the run.
    pub fn columns(self) -> Option<Vec<Column>> {
        let own = |(name, kind): (&str, ColumnKind)| Column { name: name.to_owned(), kind };
        let mut columns: Vec<Column> = RUN_COLUMNS.into_iter().map(own).collect();
        columns.extend(self.record_columns()?);
        Some(columns)
    }

    /// Returns the rows of a run as JSON objects; `id` becomes the column `run`.
    pub fn rows(self, id: &str, run: &StoredRun) -> Vec<Value> {
        let meta = &run.meta;
        let (world, transport) = (meta.world.to_string(), meta.transport.to_string());
        let mut rows = lines(run, self);
        for row in rows.iter_mut().filter_map(Value::as_object_mut) {
            row.insert("run".to_owned(), id.into());
            row.insert("scenario".to_owned(), meta.scenario.as_str().into());
            row.insert("world".to_owned(), world.as_str().into());
            row.insert("transport".to_owned(), transport.as_str().into());
            row.insert("repeat".to_owned(), meta.repeat.into());
        }
        rows
    }

    fn record_columns(self) -> Option<Vec<Column>> {
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
        assert_eq!(names[..5], ["run", "scenario", "world", "transport", "repeat"]);
        assert_eq!(names[5..10], ["t_ns", "span_ns", "flow", "stream", "direction"]);
    }
}
