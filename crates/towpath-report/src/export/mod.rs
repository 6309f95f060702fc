//! Tables of a result for other programs, as CSV (RFC 4180) or Apache Parquet.
//!
//! Records are written as they are stored, so a new field of a record becomes a column. Columns
//! are named after the result's fields.

mod columns;
mod csv;
mod parquet;

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value;
use towpath_result::Record;
use towpath_result::store::StoredRun;

use crate::compare::shares;
use crate::group::groups;
use crate::html::sequence_lines;

pub use columns::{CellValue, Column, ColumnKind, columns_of};
pub use csv::csv;
pub use parquet::{ParquetTable, ParquetWriter, TableError};

/// Table of a result, by the records or totals that it contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultTable {
    /// Metrics of each flow and direction.
    Flows,
    /// Totals of each subflow.
    SubflowTotals,
    /// Recovery of each flow after each event.
    Recoveries,
    /// Probe datagrams outside the transport: metrics of each path.
    Paths,
    /// The phases of latency under load.
    Latency,
    /// Expectations with their measured values.
    Expectations,
    /// Shares of competing transfers, with Jain's index.
    Shares,
    /// Goodput of each stream in each period.
    Intervals,
    /// State of each subflow at the end of each period.
    Subflows,
    /// State of each link's direction at the end of each period.
    Links,
    /// All events of the run.
    Events,
    /// Requests with their replies.
    Messages,
    /// Probe datagrams with their outcome.
    Probes,
    /// Time–sequence pictures: each mark.
    Sequence,
    /// Datagrams at a constant rate, in each period.
    Datagrams,
    /// Kernel counters that changed.
    Counters,
    /// Totals of each interface.
    Interfaces,
}

impl ResultTable {
    /// All tables, in the order of the documentation.
    pub const ALL: [Self; 17] = [
        Self::Flows,
        Self::SubflowTotals,
        Self::Recoveries,
        Self::Paths,
        Self::Latency,
        Self::Expectations,
        Self::Shares,
        Self::Intervals,
        Self::Subflows,
        Self::Links,
        Self::Events,
        Self::Messages,
        Self::Probes,
        Self::Sequence,
        Self::Datagrams,
        Self::Counters,
        Self::Interfaces,
    ];

    /// Returns the name as given on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flows => "flows",
            Self::SubflowTotals => "subflow-totals",
            Self::Recoveries => "recoveries",
            Self::Paths => "paths",
            Self::Latency => "latency",
            Self::Expectations => "expectations",
            Self::Shares => "shares",
            Self::Intervals => "intervals",
            Self::Subflows => "subflows",
            Self::Links => "links",
            Self::Events => "events",
            Self::Messages => "messages",
            Self::Probes => "probes",
            Self::Sequence => "sequence",
            Self::Datagrams => "datagrams",
            Self::Counters => "counters",
            Self::Interfaces => "interfaces",
        }
    }

    /// Returns the table of a name, `None` if unknown.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.name() == name)
    }

    /// Returns true if the table's columns are the same for all runs, so that it can be written as
    /// Parquet.
    pub fn has_fixed_columns(self) -> bool {
        !matches!(self, Self::Shares | Self::Sequence)
    }

    /// Returns true if the table has a row in a result.
    pub fn is_in(self, run: &StoredRun) -> bool {
        let summary = run.summary.as_ref();
        match self {
            Self::Flows => summary.is_some_and(|summary| !summary.flows.is_empty()),
            Self::SubflowTotals => summary.is_some_and(|summary| !summary.subflows.is_empty()),
            Self::Paths => summary.is_some_and(|summary| !summary.paths.is_empty()),
            Self::Recoveries
            | Self::Latency
            | Self::Expectations
            | Self::Shares
            | Self::Sequence => !lines(run, self).is_empty(),
            Self::Intervals
            | Self::Subflows
            | Self::Links
            | Self::Events
            | Self::Messages
            | Self::Probes
            | Self::Datagrams
            | Self::Counters
            | Self::Interfaces => {
                run.records.iter().any(|record| record_value(record, self).is_some())
            }
        }
    }
}

/// Columns that come first where there are any; the others follow by name.
const LEADING_COLUMNS: [&str; 14] = [
    "t_ns",
    "due_ns",
    "event_ns",
    "event",
    "span_ns",
    "flow",
    "stream",
    "direction",
    "subflow",
    "path",
    "side",
    "host",
    "kind",
    "text",
];

/// Sorts the names of columns: those that identify a row first.
fn in_reading_order(names: BTreeSet<String>) -> Vec<String> {
    let is_leading = |name: &str| LEADING_COLUMNS.contains(&name);
    let leading = LEADING_COLUMNS.iter().filter(|name| names.contains(**name));
    let mut columns: Vec<String> = leading.map(|&name| name.to_owned()).collect();
    columns.extend(names.into_iter().filter(|name| !is_leading(name)));
    columns
}

/// Names and values of one row.
type Fields = Vec<(String, Value)>;

/// Returns all rows of a table in one run.
fn rows(run: &StoredRun, table: ResultTable) -> impl Iterator<Item = Fields> {
    lines(run, table).into_iter().map(|value| {
        let mut fields = Fields::new();
        flatten(String::new(), value, &mut fields);
        fields.iter_mut().for_each(blank_infinity);
        fields
    })
}

fn lines(run: &StoredRun, table: ResultTable) -> Vec<Value> {
    let summary = run.summary.iter();
    match table {
        ResultTable::Flows => to_values(summary.flat_map(|s| &s.flows)),
        ResultTable::SubflowTotals => to_values(summary.flat_map(|s| &s.subflows)),
        ResultTable::Paths => to_values(summary.flat_map(|s| &s.paths)),
        ResultTable::Expectations => to_values(summary.flat_map(|s| &s.expectations)),
        ResultTable::Recoveries => {
            let flows = summary.flat_map(|s| &s.flows);
            let rows =
                flows.flat_map(|flow| flow.recoveries.iter().map(move |recovery| (flow, recovery)));
            let values = rows.filter_map(|(flow, recovery)| {
                let mut value = serde_json::to_value(recovery).ok()?;
                value.as_object_mut()?.insert("flow".to_owned(), flow.flow.into());
                let direction = serde_json::to_value(flow.direction).ok()?;
                value.as_object_mut()?.insert("direction".to_owned(), direction);
                Some(value)
            });
            values.collect()
        }
        ResultTable::Latency => {
            let flows = summary.flat_map(|s| &s.flows);
            let phases = flows.filter_map(|flow| Some((flow.flow, flow.messages.as_ref()?)));
            let rows =
                phases.flat_map(|(flow, messages)| messages.phases.iter().map(move |p| (flow, p)));
            let values = rows.filter_map(|(flow, phase)| {
                let mut value = serde_json::to_value(phase).ok()?;
                value.as_object_mut()?.insert("flow".to_owned(), flow.into());
                Some(value)
            });
            values.collect()
        }
        ResultTable::Shares => shares::share_values(&groups(std::slice::from_ref(run))),
        ResultTable::Sequence => sequence_lines(run),
        ResultTable::Intervals
        | ResultTable::Subflows
        | ResultTable::Links
        | ResultTable::Events
        | ResultTable::Messages
        | ResultTable::Probes
        | ResultTable::Datagrams
        | ResultTable::Counters
        | ResultTable::Interfaces => {
            run.records.iter().filter_map(|record| record_value(record, table)).collect()
        }
    }
}

fn record_value(record: &Record, table: ResultTable) -> Option<Value> {
    let value = match (record, table) {
        (Record::Interval(r), ResultTable::Intervals) => serde_json::to_value(r),
        (Record::Subflow(r), ResultTable::Subflows) => serde_json::to_value(r),
        (Record::Link(r), ResultTable::Links) => serde_json::to_value(r),
        (Record::Event(r), ResultTable::Events) => serde_json::to_value(r),
        (Record::Message(r), ResultTable::Messages) => serde_json::to_value(r),
        (Record::Probe(r), ResultTable::Probes) => serde_json::to_value(r),
        (Record::Datagrams(r), ResultTable::Datagrams) => serde_json::to_value(r),
        (Record::Counter(r), ResultTable::Counters) => serde_json::to_value(r),
        (Record::Interface(r), ResultTable::Interfaces) => serde_json::to_value(r),
        _ => return None,
    };
    value.ok()
}

fn to_values<'a, T: Serialize + 'a>(records: impl Iterator<Item = &'a T>) -> Vec<Value> {
    records.filter_map(|record| serde_json::to_value(record).ok()).collect()
}

/// Flattens nested objects: `{"stall": {"count": 1}}` becomes column `stall.count`; a list becomes
/// one cell.
fn flatten(name: String, value: Value, fields: &mut Fields) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let name = if name.is_empty() { key } else { format!("{name}.{key}") };
                flatten(name, value, fields);
            }
        }
        Value::Array(values) if values.iter().any(Value::is_object) => {} // has a table of its own
        other @ (Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)) => {
            fields.push((name, other));
        }
    }
}

/// Returns a list's elements as one text.
fn list_text(values: &[Value]) -> String {
    let element_text =
        |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    values.iter().map(element_text).collect::<Vec<_>>().join(" ")
}

/// Blanks an unset slow-start threshold, which is stored as the largest number (31 bits in Linux).
fn blank_infinity((name, value): &mut (String, Value)) {
    if name == "ssthresh_packets" && value.as_u64().is_some_and(|n| n >= i32::MAX as u64) {
        *value = Value::Null;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_that_is_not_set_is_an_empty_cell() {
        let row_of = |packets: u64| {
            let mut field = ("ssthresh_packets".to_owned(), Value::from(packets));
            blank_infinity(&mut field);
            field.1
        };
        assert_eq!(row_of(20), 20);
        assert_eq!([row_of(2_147_483_647), row_of(4_294_967_295)], [Value::Null, Value::Null]);
    }

    #[test]
    fn every_table_has_a_unique_name() {
        assert!(
            ResultTable::ALL
                .iter()
                .all(|table| ResultTable::from_name(table.name()) == Some(*table))
        );
        assert_eq!(ResultTable::from_name("seconds"), None);
    }
}
