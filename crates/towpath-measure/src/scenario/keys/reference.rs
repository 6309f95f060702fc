//! The reference of the scenario format, as Markdown.

use std::fmt::Write as _;

use super::tables::ALL;
use super::{Key, Kind, Need, Shape};
use crate::scenario::units::Dimension;

/// The reference of every table and key, for `docs/scenario.md`.
pub fn reference_markdown() -> String {
    let mut out = String::from(
        "# Scenario files\n\nEvery key that a scenario may have, as `towpath schema reference` prints it.\n\n",
    );
    for shape in ALL {
        section(&mut out, shape);
    }
    out
}

/// One table and its keys.
pub(in crate::scenario) fn section(out: &mut String, shape: &Shape) {
    let heading = match shape.heading {
        table if table.starts_with('[') => format!("`{table}`"),
        words => words.to_owned(),
    };
    // Writing to a `String` cannot fail.
    let _ = write!(out, "## {heading}\n\n{}\n\n", shape.doc);
    if shape.groups.is_empty() {
        return;
    }
    out.push_str("| key | value | when missing | meaning |\n|---|---|---|---|\n");
    for Key { name, kind, need, doc } in shape.keys() {
        let (value, missing) = match (kind, need) {
            (Kind::Bound, Need::Else(bound)) => ((*bound).to_owned(), "—"),
            (_, Need::Required) => (value(kind), "**required**"),
            (_, Need::Else(text)) => (value(kind), *text),
        };
        let _ = writeln!(out, "| `{name}` | {value} | {missing} | {doc} |");
    }
    out.push('\n');
}

fn value(kind: &Kind) -> String {
    let example = |dimension: Dimension| format!("`\"{}\"`", dimension.example());
    match kind {
        Kind::Text => "text".to_owned(),
        Kind::Name(longest) => format!("name (≤ {longest})"),
        Kind::Bool => "`true`, `false`".to_owned(),
        Kind::Integer(least, most) if *most > 1 << 32 => format!("integer ≥ {least}"),
        Kind::Integer(least, most) => format!("{least} to {most}"),
        Kind::Rate => example(Dimension::Rate),
        Kind::Duration => example(Dimension::Duration),
        Kind::Size => example(Dimension::Size),
        Kind::Packets => example(Dimension::Packets),
        Kind::Percent => example(Dimension::Share),
        Kind::Words(words) => {
            words.iter().map(|w| format!("`\"{w}\"`")).collect::<Vec<_>>().join(", ")
        }
        Kind::Any(text) => (*text).to_owned(),
        Kind::Bound => "operator and value".to_owned(),
        Kind::List(inner) => format!("list of {}", value(inner)),
        Kind::OneOf(kinds) => kinds.iter().map(value).collect::<Vec<_>>().join(", "),
        Kind::Sides(inner) => format!("{}, `{{ up = …, down = … }}`", value(inner)),
        Kind::Table(shape) => format!("table, see *{}*", shape.heading),
        Kind::Named(shape, _) | Kind::Tables(shape) => format!("see `{}`", shape.heading),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_in_the_documentation_is_this_one() {
        let page = include_str!("../../../../../docs/scenario.md");
        assert!(
            page == reference_markdown(),
            "docs/scenario.md is old: write it again with `towpath schema reference`"
        );
    }

    #[test]
    fn the_reference_names_every_key_in_a_well_formed_table() {
        let text = reference_markdown();
        for key in ALL.iter().flat_map(|shape| shape.keys()) {
            assert!(text.contains(&format!("| `{}` |", key.name)), "{}", key.name);
        }
        for row in text.lines().filter(|line| line.starts_with('|')) {
            assert_eq!(row.matches('|').count(), 5, "{row}");
        }
    }
}
