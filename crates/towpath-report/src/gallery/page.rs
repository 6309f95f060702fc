//! All figures of a folder as one self-contained page.

use std::fmt::Write as _;

use towpath_result::format::text::capital;

use super::readme::render_markdown;
use super::{ClaimEntry, GalleryEntry};
use crate::figure;
use crate::page::head;
use crate::text::{esc, prose};

/// Width of a legend's line: that of a panel.
const LEGEND: f64 = 430.0;
const STYLE: &str = concat!(include_str!("../style.css"), include_str!("gallery.css"));

/// Returns the page; links lead to files in the same folder.
pub fn page(entries: &[GalleryEntry]) -> String {
    let mut out = head("Published figures, reproduced", STYLE, None);
    out.push_str(
        "<header><h1>Published figures, reproduced</h1><p class=\"lead\">Each figure with the \
         claims of its source and the result of our runs. Filled markers are our simulated runs. \
         Markers with a dot, and pale bars, are runs over real kernels. Hollow markers are points \
         from the source, or from the model named in the legend.</p></header><main>",
    );
    summary(&mut out, entries);
    for entry in entries {
        section(&mut out, entry);
    }
    let version = entries.first().map_or("towpath", |entry| entry.made_by.as_str());
    // Writing to a `String` cannot fail.
    let _ = writeln!(out, "</main><footer>Made by {}.</footer></body></html>", esc(version));
    out
}

fn summary(out: &mut String, entries: &[GalleryEntry]) {
    out.push_str("<section id=\"summary\"><ul class=\"verdicts\">");
    for entry in entries {
        let (class, sign) = if entry.claims.iter().any(|claim| !claim.expected) {
            ("bad", "!")
        } else if entry.claims.iter().any(|claim| claim.holds == Some(false)) {
            ("", "✗")
        } else {
            ("good", "✓")
        };
        let _ = write!(
            out,
            "<li class=\"{class}\"><span class=\"sign\">{sign}</span><div><a href=\"#{}\">{}</a>\
             <p>{}</p></div></li>",
            id(entry),
            esc(&entry.title),
            prose(&capital(&entry.verdict))
        );
    }
    out.push_str("</ul></section>");
}

fn id(entry: &GalleryEntry) -> String {
    format!("{}-{}", esc(&entry.name), esc(&entry.worlds.join("-")))
}

fn section(out: &mut String, entry: &GalleryEntry) {
    let _ = write!(
        out,
        "<section class=\"study\" id=\"{}\"><h2>{}</h2><p class=\"facts\">{} · {} · {}</p>\
         <div class=\"paper\"><div class=\"key\">{}</div><div class=\"plots\">",
        id(entry),
        esc(&entry.title),
        esc(&entry.name),
        prose(&entry.source),
        prose(&entry.conditions()),
        figure::legend(&entry.figure, LEGEND)
    );
    for panel in figure::panels(&entry.figure) {
        out.push_str(&panel);
    }
    out.push_str("</div></div>");
    let links: Vec<_> =
        entry.files.iter().map(|file| format!("<a href=\"{0}\">{0}</a>", esc(file))).collect();
    let _ = write!(
        out,
        "<p class=\"headline\">{}.</p>",
        prose(&capital(entry.verdict.trim_end_matches('.')))
    );
    claims(out, &entry.claims);
    points(out, entry);
    if !entry.readme.is_empty() {
        let _ = write!(
            out,
            "<details class=\"fold\"><summary>Set-up, differences and assumptions</summary>\
             <div class=\"readme\">{}</div></details>",
            render_markdown(&entry.readme)
        );
    }
    let _ = write!(out, "<p class=\"facts\">Data: {}</p></section>", links.join(" · "));
}

fn claims(out: &mut String, claims: &[ClaimEntry]) {
    if claims.is_empty() {
        return;
    }
    out.push_str(
        "<table class=\"claims\"><thead><tr><th></th><th>The source says</th><th>Ours</th></tr>\
         </thead><tbody>",
    );
    for claim in claims {
        let class = match claim.holds {
            Some(true) => "good",
            Some(false) => "bad",
            None => "",
        };
        let surprise =
            if claim.expected { "" } else { "<b>This was expected to come out otherwise.</b> " };
        let deviation = claim.deviation.as_deref().filter(|_| claim.holds == Some(false));
        let deviation = deviation.map_or_else(String::new, |text| {
            format!("<p class=\"why\">{}</p>", prose(&join_lines(text)))
        });
        let _ = write!(
            out,
            "<tr><td class=\"sign {class}\">{}</td><td>{}<small>{}</small></td>\
             <td>{surprise}{}{deviation}</td></tr>",
            claim.sign(),
            prose(&claim.text),
            prose(&claim.place()),
            prose(&capital(&claim.measured))
        );
    }
    out.push_str("</tbody></table>");
}

/// Joins the lines of a text.
pub(super) fn join_lines(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn points(out: &mut String, entry: &GalleryEntry) {
    if entry.published.is_empty() {
        return;
    }
    // A figure of one panel has no panel column.
    let first_column = usize::from(entry.published.iter().all(|[panel, ..]| panel.is_empty()));
    out.push_str(
        "<details class=\"fold\"><summary>Points that the source gives</summary>\
         <div class=\"scroll\"><table class=\"list\"><tr>",
    );
    for head in ["Panel", "Curve", "At", "Value", "Where it says so"].iter().skip(first_column) {
        let _ = write!(out, "<th>{head}</th>");
    }
    out.push_str("</tr>");
    for row in &entry.published {
        out.push_str("<tr>");
        for cell in row.iter().skip(first_column) {
            let _ = write!(out, "<td>{}</td>", esc(cell));
        }
        out.push_str("</tr>");
    }
    out.push_str("</table></div></details>");
}
