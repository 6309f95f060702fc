//! The top of the page: verdicts, warnings, the table, expectations.

use std::fmt::Write as _;

use towpath_result::Warning;
use towpath_result::format::text::capital;
use towpath_result::store::StoredRun;

use super::run::fold;
use crate::compare::{Cell, TableBlock, Tone, expectation_rows, headlines, split_main_rows, table};
use crate::group::RunGroup;
use crate::repetitions::group_verdict;
use crate::terminal::warnings;
use crate::text::{esc, prose};

pub(super) fn write(out: &mut String, runs: &[StoredRun], groups: &[RunGroup<'_>]) {
    out.push_str("<section id=\"summary\">");
    verdicts(out, groups);
    warning_box(out, "Check before you trust this", &warnings(runs));
    if groups.is_empty() {
        out.push_str("<p class=\"none\">There is nothing to report.</p>");
    } else {
        let (main_blocks, detail_blocks) = split_main_rows(table(groups));
        comparison(out, groups, &main_blocks);
        let rows = detail_blocks.iter().map(|block| block.rows.len()).sum::<usize>();
        if rows > 0 {
            fold(out, &format!("{rows} more metrics"), false);
            comparison(out, groups, &detail_blocks);
            out.push_str("</details>");
        }
    }
    expectations(out, groups);
    out.push_str("</section>");
}

fn verdicts(out: &mut String, groups: &[RunGroup<'_>]) {
    for text in headlines(groups) {
        let _ = write!(out, "<p class=\"headline\">{}</p>", esc(&text));
    }
    out.push_str("<ul class=\"verdicts\">");
    for group in groups {
        let summaries: Vec<_> = group.summaries().collect();
        let ok_count = summaries.iter().filter(|summary| summary.ok).count();
        let (class, sign, outcome) = if summaries.is_empty() {
            ("open", "?", "unknown")
        } else if ok_count == group.runs.len() {
            ("good", "✓", "passed")
        } else {
            ("bad", "✗", "failed")
        };
        let count = if group.runs.len() > 1 {
            format!(" <small>{ok_count} of {} runs as planned</small>", group.runs.len())
        } else {
            String::new()
        };
        let _ = write!(
            out,
            "<li class=\"{class}\"><span class=\"sign\" role=\"img\" aria-label=\"{outcome}\">{sign}</span>\
             <div><b>{}</b>{count}",
            esc(&group.label)
        );
        if let Some(text) = group_verdict(group) {
            let _ = write!(out, "<p>{}</p>", prose(&capital(&text)));
        }
        if summaries.len() < group.runs.len() {
            let _ = write!(
                out,
                "<p>{} of {} results have no summary: the run ended early or the file is cut \
                 off.</p>",
                group.runs.len() - summaries.len(),
                group.runs.len()
            );
        }
        out.push_str("</div></li>");
    }
    out.push_str("</ul>");
}

/// Writes a box of warnings with their hints under a heading; writes nothing without any.
pub(super) fn warning_box(out: &mut String, heading: &str, warnings: &[Warning]) {
    if warnings.is_empty() {
        return;
    }
    let _ = write!(out, "<aside class=\"warnings\"><h2>{heading}</h2><ul>");
    for warning in warnings {
        let _ = write!(out, "<li>{}", prose(&warning.text));
        if let Some(hint) = &warning.hint {
            let _ = write!(out, " <span class=\"hint\">{}</span>", prose(hint));
        }
        out.push_str("</li>");
    }
    out.push_str("</ul></aside>");
}

fn comparison(out: &mut String, groups: &[RunGroup<'_>], blocks: &[TableBlock]) {
    let repeated = groups.iter().any(|group| group.runs.len() > 1);
    let many = if groups.len() > 2 { " many" } else { "" };
    let _ = write!(out, "<div class=\"scroll\"><table class=\"compare{many}\">");
    if repeated {
        out.push_str("<caption>Medians; below them the smallest and largest value.</caption>");
    }
    out.push_str("<thead><tr><td></td>");
    for group in groups {
        let count = if group.runs.len() > 1 {
            format!(" <small>× {}</small>", group.runs.len())
        } else {
            String::new()
        };
        let _ = write!(out, "<th scope=\"col\">{}{count}</th>", esc(&group.label));
    }
    out.push_str("</tr></thead>");
    for block in blocks {
        out.push_str("<tbody>");
        if !block.title.is_empty() {
            let _ = write!(
                out,
                "<tr class=\"block\"><th colspan=\"{}\" scope=\"colgroup\">{}</th></tr>",
                groups.len() + 1,
                esc(&block.title)
            );
        }
        for row in &block.rows {
            let _ = write!(
                out,
                "<tr><th scope=\"row\" title=\"{}\">{}</th>",
                esc(row.meaning),
                esc(&row.label)
            );
            row.cells.iter().for_each(|content| cell(out, content));
            out.push_str("</tr>");
        }
        out.push_str("</tbody>");
    }
    out.push_str("</table></div>");
}

fn cell(out: &mut String, cell: &Cell) {
    let class = match cell.tone {
        Tone::Plain => "",
        Tone::Good => " class=\"good\"",
        Tone::Bad => " class=\"bad\"",
    };
    let _ = write!(out, "<td{class}>{}", esc(&cell.text));
    if !cell.note.is_empty() {
        let _ = write!(out, " <small>{}</small>", esc(&cell.note));
    }
    if let Some(bar) = cell.bar {
        // The width is an attribute of the SVG, because the page's policy allows no inline style.
        let width = bar * 100.0;
        let _ = write!(out, "<i class=\"bar\"><svg width=\"{width:.1}%\"></svg></i>");
    }
    out.push_str("</td>");
}

fn expectations(out: &mut String, groups: &[RunGroup<'_>]) {
    let rows = expectation_rows(groups);
    if rows.is_empty() {
        return;
    }
    out.push_str(
        "<h3>Expectations</h3><div class=\"scroll\"><table class=\"list\"><thead><tr>\
         <th scope=\"col\">transport</th><th scope=\"col\">expected</th>\
         <th scope=\"col\">measured</th><th scope=\"col\">passed</th></tr></thead><tbody>",
    );
    for row in rows {
        let (class, sign) = match row.tone {
            Tone::Good => ("good", "✓ "),
            Tone::Bad => ("bad", "✗ "),
            Tone::Plain => ("", ""),
        };
        let _ = write!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"{class}\">{sign}{}</td></tr>",
            esc(&row.label),
            esc(&row.text),
            esc(&row.measured),
            esc(&row.outcome)
        );
    }
    out.push_str("</tbody></table></div>");
}
