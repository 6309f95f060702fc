//! Tables and series of a result as CSV (RFC 4180), by name. Each record is a line, and columns
//! are named after the result's fields.
//!
//! Records are written as they are stored, so a new field of a record becomes a column.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;
use towpath_result::Record;
use towpath_result::format::text::clean;
use towpath_result::store::StoredRun;

use crate::compare::shares;
use crate::group::groups;
use crate::html::sequence_lines;

/// Name of a table that can be written as CSV.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CsvTable {
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

impl CsvTable {
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
}

/// Columns that identify the run of a line.
const RUN_COLUMNS: [&str; 5] = ["file", "world", "transport", "repeat", "seed"];
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

/// Returns a table of all runs; only its header if no run has a row of it.
pub fn csv(runs: &[StoredRun], table: CsvTable) -> String {
    let mut names: BTreeSet<String> = BTreeSet::new();
    for_each_row(runs, table, &mut |_, fields| {
        names.extend(fields.iter().map(|(name, _)| name.clone()));
    });
    let leading_columns =
        LEADING_COLUMNS.iter().filter(|name| names.contains(**name)).map(|&name| name.to_owned());
    let mut columns: Vec<String> = leading_columns.collect();
    columns.extend(names.into_iter().filter(|name| !LEADING_COLUMNS.contains(&name.as_str())));
    let mut out = RUN_COLUMNS.join(",");
    for column in &columns {
        let _ = write!(out, ",{}", text(column));
    }
    out.push('\n');
    for_each_row(runs, table, &mut |run, fields| {
        let file = run.file.as_deref().unwrap_or_default();
        let meta = &run.meta;
        let (world, transport) = (meta.world, meta.transport);
        let _ = write!(out, "{},{world},{transport},{},{}", text(file), meta.repeat, meta.seed);
        for column in &columns {
            let value = fields.iter().find(|(name, _)| name == column).map(|(_, value)| value);
            let _ = write!(out, ",{}", value.map(cell).unwrap_or_default());
        }
        out.push('\n');
    });
    out
}

type Fields = Vec<(String, Value)>;

/// Calls `on_row` with the fields of every row.
fn for_each_row(runs: &[StoredRun], table: CsvTable, on_row: &mut dyn FnMut(&StoredRun, &Fields)) {
    for run in runs {
        for value in lines(run, table) {
            let mut fields = Fields::new();
            flatten(String::new(), value, &mut fields);
            fields.iter_mut().for_each(blank_infinity);
            on_row(run, &fields);
        }
    }
}

fn lines(run: &StoredRun, table: CsvTable) -> Vec<Value> {
    let summary = run.summary.iter();
    match table {
        CsvTable::Flows => to_values(summary.flat_map(|s| &s.flows)),
        CsvTable::SubflowTotals => to_values(summary.flat_map(|s| &s.subflows)),
        CsvTable::Paths => to_values(summary.flat_map(|s| &s.paths)),
        CsvTable::Expectations => to_values(summary.flat_map(|s| &s.expectations)),
        CsvTable::Recoveries => {
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
        CsvTable::Latency => {
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
        CsvTable::Shares => shares::share_values(&groups(std::slice::from_ref(run))),
        CsvTable::Sequence => sequence_lines(run),
        CsvTable::Intervals
        | CsvTable::Subflows
        | CsvTable::Links
        | CsvTable::Events
        | CsvTable::Messages
        | CsvTable::Probes
        | CsvTable::Datagrams
        | CsvTable::Counters
        | CsvTable::Interfaces => {
            run.records.iter().filter_map(|record| record_value(record, table)).collect()
        }
    }
}

fn record_value(record: &Record, table: CsvTable) -> Option<Value> {
    let value = match (record, table) {
        (Record::Interval(r), CsvTable::Intervals) => serde_json::to_value(r),
        (Record::Subflow(r), CsvTable::Subflows) => serde_json::to_value(r),
        (Record::Link(r), CsvTable::Links) => serde_json::to_value(r),
        (Record::Event(r), CsvTable::Events) => serde_json::to_value(r),
        (Record::Message(r), CsvTable::Messages) => serde_json::to_value(r),
        (Record::Probe(r), CsvTable::Probes) => serde_json::to_value(r),
        (Record::Datagrams(r), CsvTable::Datagrams) => serde_json::to_value(r),
        (Record::Counter(r), CsvTable::Counters) => serde_json::to_value(r),
        (Record::Interface(r), CsvTable::Interfaces) => serde_json::to_value(r),
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

/// Blanks an unset slow-start threshold, which is stored as the largest number (31 bits in Linux).
fn blank_infinity((name, value): &mut (String, Value)) {
    if name == "ssthresh_packets" && value.as_u64().is_some_and(|n| n >= i32::MAX as u64) {
        *value = Value::Null;
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(raw) => text(raw),
        Value::Array(values) => {
            let element_text =
                |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            text(&values.iter().map(element_text).collect::<Vec<_>>().join(" "))
        }
        Value::Object(_) => String::new(), // was flattened
    }
}

/// Quotes text that contains commas or quotes. Defuses a leading `=`, `+`, `-` or `@`, which a
/// spreadsheet would take for a formula.
fn text(raw: &str) -> String {
    let mut value = clean(raw);
    if value.starts_with(['=', '+', '-', '@']) {
        value.insert(0, '\'');
    }
    if value.contains([',', '"']) { format!("\"{}\"", value.replace('"', "\"\"")) } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_and_are_no_formulas() {
        assert_eq!(text("a, \"b\"\nc"), "\"a, \"\"b\"\" c\"");
        assert_eq!(text("=HYPERLINK(1)"), "'=HYPERLINK(1)");
        assert_eq!(text("wifi"), "wifi");
    }

    #[test]
    fn nested_fields_are_columns_and_lists_of_texts_are_cells() {
        let value = serde_json::json!({"a": {"b": 1, "c": null}, "d": ["x", "y"], "e": [{"f": 1}]});
        let mut fields = Fields::new();
        flatten(String::new(), value, &mut fields);
        let columns: Vec<_> =
            fields.iter().map(|(name, value)| (name.as_str(), cell(value))).collect();
        assert_eq!(columns, [("a.b", "1".into()), ("a.c", String::new()), ("d", "x y".into())]);
    }

    #[test]
    fn a_threshold_that_is_not_set_is_an_empty_cell() {
        let row_of = |packets: u64| {
            let mut field = ("ssthresh_packets".to_owned(), Value::from(packets));
            blank_infinity(&mut field);
            cell(&field.1)
        };
        assert_eq!([row_of(20), row_of(2_147_483_647), row_of(4_294_967_295)], ["20", "", ""]);
    }

    #[test]
    fn every_table_has_a_unique_name() {
        assert!(
            CsvTable::ALL.iter().all(|table| CsvTable::from_name(table.name()) == Some(*table))
        );
        assert_eq!(CsvTable::from_name("seconds"), None);
    }
}
