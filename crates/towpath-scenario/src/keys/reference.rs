//! Reference of the scenario format, as Markdown.

use std::fmt::Write as _;

use super::tables::ALL;
use super::{KeyPresence, KeySchema, TableSchema, ValueKind};
use crate::units::Dimension;

/// Returns the reference of every table and key, for `docs/reference/scenario.md`.
pub fn reference_markdown() -> String {
    let mut out = String::from(
        "# Scenario files\n\n*For writers of scenarios. Assumes the [tutorial](../tutorial.md), which builds one step by step. See also [metrics](metrics.md).*\n\nAll keys of a scenario file (TOML), as printed by `towpath schema scenario-keys`. `towpath scenarios show two-links` prints an annotated example.\n\n",
    );
    for schema in ALL {
        section(&mut out, schema);
    }
    out
}

/// Writes the reference of one table and its keys.
pub(crate) fn section(out: &mut String, schema: &TableSchema) {
    let heading = match schema.heading {
        table if table.starts_with('[') => format!("`{table}`"),
        words => words.to_owned(),
    };
    // Writing to a `String` cannot fail.
    let _ = write!(out, "## {heading}\n\n{}\n\n", schema.doc);
    if schema.key_groups.is_empty() {
        return;
    }
    out.push_str("| key | value | when missing | meaning |\n|---|---|---|---|\n");
    for KeySchema { name, kind, presence, doc, former_name: _ } in schema.keys() {
        let (value, missing) = match (kind, presence) {
            (ValueKind::Bound, KeyPresence::Optional(bound)) => ((*bound).to_owned(), "—"),
            (_, KeyPresence::Required) => (value(kind), "**required**"),
            (_, KeyPresence::Optional(text)) => (value(kind), *text),
        };
        let _ = writeln!(out, "| `{name}` | {value} | {missing} | {doc} |");
    }
    out.push('\n');
}

fn value(kind: &ValueKind) -> String {
    let example = |dimension: Dimension| format!("`\"{}\"`", dimension.example());
    match kind {
        ValueKind::Text => "text".to_owned(),
        ValueKind::Name(max_chars) => format!("name (≤ {max_chars})"),
        ValueKind::Bool => "`true`, `false`".to_owned(),
        ValueKind::Integer(min, max) if *max > 1 << 32 => format!("integer ≥ {min}"),
        ValueKind::Integer(min, max) => format!("{min} to {max}"),
        ValueKind::Rate => example(Dimension::Rate),
        ValueKind::Duration => example(Dimension::Duration),
        ValueKind::Size => example(Dimension::Size),
        ValueKind::Packets => example(Dimension::Packets),
        ValueKind::Percent => example(Dimension::Share),
        ValueKind::Words(words) => {
            words.iter().map(|w| format!("`\"{w}\"`")).collect::<Vec<_>>().join(", ")
        }
        ValueKind::Any(text) => (*text).to_owned(),
        ValueKind::Bound => "operator and value".to_owned(),
        ValueKind::List(inner) => format!("list of {}", value(inner)),
        ValueKind::OneOf(kinds) => kinds.iter().map(value).collect::<Vec<_>>().join(", "),
        ValueKind::Sides(inner) => format!("{}, `{{ up = …, down = … }}`", value(inner)),
        ValueKind::Table(schema) => format!("table, see *{}*", schema.heading),
        ValueKind::Named(schema, _) | ValueKind::Tables(schema) => {
            format!("see `{}`", schema.heading)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_page_is_up_to_date() {
        let page = include_str!("../../../../docs/reference/scenario.md");
        assert!(
            page == reference_markdown(),
            "docs/reference/scenario.md is old: write it again with `towpath schema scenario-keys`"
        );
    }

    #[test]
    fn the_reference_names_every_key_in_a_well_formed_table() {
        let text = reference_markdown();
        for key in ALL.iter().flat_map(|schema| schema.keys()) {
            assert!(text.contains(&format!("| `{}` |", key.name)), "{}", key.name);
        }
        for row in text.lines().filter(|line| line.starts_with('|')) {
            assert_eq!(row.matches('|').count(), 5, "{row}");
        }
    }
}
