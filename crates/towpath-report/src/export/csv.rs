//! Tables as CSV (RFC 4180).

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;
use towpath_result::format::text::clean;
use towpath_result::store::StoredRun;

use super::{Fields, ResultTable, in_reading_order, list_text, rows};

/// Columns that identify the run of a line.
const RUN_COLUMNS: [&str; 5] = ["file", "world", "transport", "repeat", "seed"];
/// Returns a table of all runs; only its header if no run has a row of it.
pub fn csv(runs: &[StoredRun], table: ResultTable) -> String {
    let mut names: BTreeSet<String> = BTreeSet::new();
    for_each_row(runs, table, &mut |_, fields| {
        names.extend(fields.iter().map(|(name, _)| name.clone()));
    });
    let columns = in_reading_order(names);
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

/// Calls `on_row` with the fields of every row.
fn for_each_row(
    runs: &[StoredRun],
    table: ResultTable,
    on_row: &mut dyn FnMut(&StoredRun, &Fields),
) {
    for run in runs {
        for fields in rows(run, table) {
            on_row(run, &fields);
        }
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(raw) => text(raw),
        Value::Array(values) => text(&list_text(values)),
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
    use super::super::flatten;
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
}
