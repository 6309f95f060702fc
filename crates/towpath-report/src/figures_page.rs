//! A page of figures and tables, each with the sentence that says which runs it shows.

use std::fmt::Write as _;

use crate::figure::{self, Figure};
use crate::page::{SiteFrame, head_in};
use crate::text::{esc, prose};

/// Width of a legend's line: that of a panel.
const LEGEND: f64 = 430.0;
const STYLE: &str = concat!(
    include_str!("style.css"),
    include_str!("gallery/gallery.css"),
    include_str!("figures_page.css")
);

/// Content of the page.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FiguresPage {
    /// Title of the page.
    pub title: String,
    /// Subject of the page in one sentence; may be empty.
    pub lead: String,
    /// Facts below the title.
    pub facts: Vec<String>,
    /// Figures and tables in order.
    pub sections: Vec<FigureSection>,
}

/// A figure or a table with its explanation. Backticks mark names in the texts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FigureSection {
    /// Identifier in addresses, of letters, digits and hyphens.
    pub id: String,
    /// Title of the section.
    pub title: String,
    /// Published figure that it corresponds to; may be empty.
    pub source: String,
    /// Figure; `None` for a section of tables.
    pub figure: Option<Figure>,
    /// Sentence below the figure: runs, devices, conditions.
    pub sentence: String,
    /// Remarks for readers.
    pub notes: Vec<String>,
    /// Tables below the figure.
    pub tables: Vec<PageTable>,
    /// Query that gives the values; may be empty.
    pub query: String,
    /// Names and addresses of files.
    pub files: Vec<(String, String)>,
}

/// Table of a section.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PageTable {
    /// Title of the table; may be empty.
    pub title: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Rows with as many cells as there are columns.
    pub rows: Vec<Vec<PageCell>>,
}

/// Cell of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PageCell {
    /// Text, aligned to the left.
    Text(String),
    /// Number, aligned to the right.
    Number(String),
    /// Text with an address of the same site.
    Link(String, String),
}

/// Returns the page as one self-contained file, or in the frame of a site.
pub fn figures_page(page: &FiguresPage, site: Option<&SiteFrame<'_>>) -> String {
    let mut out = head_in(&page.title, STYLE, None, site);
    // Writing to a `String` cannot fail.
    let _ = write!(out, "<header><h1>{}</h1>", esc(&page.title));
    if !page.lead.is_empty() {
        let _ = write!(out, "<p class=\"lead\">{}</p>", prose(&page.lead));
    }
    let _ = write!(out, "<p class=\"facts\">{}</p></header><main>", esc(&page.facts.join(" · ")));
    if page.sections.len() > 1 {
        out.push_str("<nav class=\"contents\" aria-label=\"Figures\"><ul>");
        for section in &page.sections {
            let (id, title) = (esc(&section.id), esc(&section.title));
            let _ = write!(out, "<li><a href=\"#{id}\">{title}</a></li>");
        }
        out.push_str("</ul></nav>");
    }
    page.sections.iter().for_each(|section| write_section(&mut out, section));
    out.push_str("</main></body></html>\n");
    out
}

fn write_section(out: &mut String, section: &FigureSection) {
    let (id, title) = (esc(&section.id), esc(&section.title));
    let _ = write!(out, "<section class=\"study\" id=\"{id}\"><h2>{title}</h2>");
    if !section.source.is_empty() {
        let _ = write!(out, "<p class=\"facts\">{}</p>", prose(&section.source));
    }
    if let Some(figure) = &section.figure {
        let legend = figure::legend(figure, LEGEND);
        let _ = write!(
            out,
            "<div class=\"paper\"><div class=\"key\">{legend}</div><div class=\"plots\">"
        );
        out.extend(figure::panels(figure));
        out.push_str("</div></div>");
    }
    let _ = write!(out, "<p class=\"headline\">{}</p>", prose(&section.sentence));
    section.tables.iter().for_each(|table| write_table(out, table));
    for note in &section.notes {
        let _ = write!(out, "<p class=\"note\">{}</p>", prose(note));
    }
    if !section.query.is_empty() {
        let _ = write!(
            out,
            "<details class=\"fold\"><summary>Query (DuckDB)</summary><pre><code>{}</code></pre>\
             </details>",
            esc(&section.query)
        );
    }
    if !section.files.is_empty() {
        let link = |(name, address): &(String, String)| {
            format!("<a href=\"{}\" download>{}</a>", esc(address), esc(name))
        };
        let links: Vec<_> = section.files.iter().map(link).collect();
        let _ = write!(out, "<p class=\"facts\">Data: {}</p>", links.join(" · "));
    }
    out.push_str("</section>");
}

fn write_table(out: &mut String, table: &PageTable) {
    if !table.title.is_empty() {
        let _ = write!(out, "<h3>{}</h3>", esc(&table.title));
    }
    out.push_str("<div class=\"scroll\"><table class=\"list\"><thead><tr>");
    // A column of numbers has its head on the right.
    let is_number = |column: usize| {
        let cells = table.rows.iter().filter_map(|row| row.get(column));
        cells.into_iter().any(|cell| matches!(cell, PageCell::Number(_)))
    };
    for (number, column) in table.columns.iter().enumerate() {
        let class = if is_number(number) { " class=\"n\"" } else { "" };
        let _ = write!(out, "<th scope=\"col\"{class}>{}</th>", esc(column));
    }
    out.push_str("</tr></thead><tbody>");
    for row in &table.rows {
        out.push_str("<tr>");
        for cell in row {
            let _ = match cell {
                PageCell::Text(text) => write!(out, "<td>{}</td>", esc(text)),
                PageCell::Number(text) => write!(out, "<td class=\"n\">{}</td>", esc(text)),
                PageCell::Link(text, address) => {
                    write!(out, "<td><a href=\"{}\">{}</a></td>", esc(address), esc(text))
                }
            };
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_escapes_everything_and_has_no_script() {
        let section = FigureSection {
            id: "max-delay".to_owned(),
            title: "<b>".to_owned(),
            sentence: "3 runs of `<i>`".to_owned(),
            tables: vec![PageTable {
                title: String::new(),
                columns: vec!["name".to_owned(), "n".to_owned()],
                rows: vec![vec![
                    PageCell::Link("<u>".to_owned(), "/x?\"<".to_owned()),
                    PageCell::Number("5".to_owned()),
                ]],
            }],
            query: "SELECT 1 < 2".to_owned(),
            files: vec![("CSV".to_owned(), "a.csv".to_owned())],
            ..FigureSection::default()
        };
        let page = FiguresPage { sections: vec![section], ..FiguresPage::default() };
        let text = figures_page(&page, None);
        for markup in ["<b>", "<i>", "<u>", "1 < 2", "<script"] {
            assert!(!text.contains(markup), "{markup}: {text}");
        }
        assert!(
            text.contains("<code>&lt;i&gt;</code>")
                && text.contains("<th scope=\"col\" class=\"n\">n")
        );
        assert!(text.contains("href=\"/x?&quot;&lt;\"") && text.contains("default-src 'none'"));
    }
}
