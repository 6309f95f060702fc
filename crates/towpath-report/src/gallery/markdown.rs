//! The gallery as a Markdown page of the documentation, with links to its pictures.

use std::fmt::Write as _;

use towpath_result::format::text::capital;

use super::GalleryEntry;
use super::page::join_lines;

/// Returns the document; `images` is the pictures' folder as used in links.
pub fn markdown(entries: &[GalleryEntry], images: &str) -> String {
    let thin_option = if entries.iter().any(|entry| entry.quick) { " --quick" } else { "" };
    let worlds = entries.first().map(|entry| entry.worlds.join(",")).unwrap_or_default();
    let has_two_worlds = worlds.contains(',');
    let (option, title, ring_note) = if has_two_worlds {
        (
            format!(" --world {worlds}"),
            "in both worlds",
            ". Markers with a dot, and pale bars, are runs\nover the real kernel",
        )
    } else {
        (String::new(), "reproduced", "")
    };
    let mut out = format!(
        "# Published figures, {title}\n\n\
        *For readers who want to check a published result. Assumes [reading results](../reading-results.md). See also \
        [reproduce](../guides/reproduce.md).*\n\n\
        Made by `towpath reproduce all{option}{thin_option} --docs docs/reference`; do not edit. Each figure is shown with the \
        claims of its\nsource and the result of our runs. Filled markers are our runs; hollow markers are points from the text \
        of the source, or from\nthe person named in the legend{ring_note}.\n\n| figure | claims | verdict |\n|---|---|---|\n"
    );
    for entry in entries {
        let count = |holds| entry.claims.iter().filter(|claim| claim.holds == holds).count();
        let (held, unchecked) = (count(Some(true)), count(None));
        let unchecked = match unchecked {
            0 => String::new(),
            _ if entry.quick => format!(", {unchecked} not checked with these few runs"),
            _ => format!(", {unchecked} not checked"),
        };
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            out,
            "| [`{0}`](#{0}) {1} | {held} of {2} hold{unchecked} | {3} |",
            entry.name,
            cell(&entry.title),
            entry.claims.len(),
            cell(&capital(&entry.verdict))
        );
    }
    for entry in entries {
        section(&mut out, entry, images);
    }
    out
}

fn section(out: &mut String, entry: &GalleryEntry, images: &str) {
    let _ = write!(
        out,
        "\n## {0}\n\n**{1}**\n\n![{1}]({images}/{4}.svg)\n\nSource: {2}.\\\nOurs: {3}.\n\n\
         | | the source says | ours |\n|---|---|---|\n",
        entry.name,
        plain(&entry.title),
        plain(entry.source.trim_end_matches('.')),
        entry.conditions(),
        entry.stem()
    );
    for claim in &entry.claims {
        let deviation = claim.deviation.as_deref().filter(|_| claim.holds == Some(false));
        let deviation =
            deviation.map_or_else(String::new, |text| format!(" *{}*", cell(&join_lines(text))));
        let _ = writeln!(
            out,
            "| {} | {} ({}) | {}{deviation} |",
            claim.sign(),
            cell(&claim.text),
            cell(&claim.place()),
            cell(&capital(&claim.measured))
        );
    }
    let _ = writeln!(out, "\nVerdict: {}.", plain(entry.verdict.trim_end_matches('.')));
}

/// Escapes a table cell, on one line.
fn cell(text: &str) -> String {
    plain(text).replace('|', "\\|")
}

/// Joins lines, and escapes everything that Markdown takes for a tag.
fn plain(text: &str) -> String {
    join_lines(text).replace('<', "&lt;").replace('>', "&gt;")
}
