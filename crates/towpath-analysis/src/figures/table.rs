//! Tables of an analysis: as cells of a page, and as comma-separated values.

use std::fmt::Write as _;

use towpath_report::{PageCell, PageTable};
use towpath_result::format::number::{count, three_digits};
use towpath_result::metrics::clusters::ClusterEstimate;

/// Table with named columns.
#[derive(Debug, Clone, PartialEq)]
pub struct DataTable {
    /// Title of the table.
    pub title: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Rows with as many cells as there are columns.
    pub rows: Vec<Vec<Cell>>,
}

/// Cell of a table.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// Text.
    Text(String),
    /// Number of things.
    Count(u64),
    /// Number with a unit that the column names.
    Number(f64),
    /// Estimate with its interval.
    Estimate(ClusterEstimate),
    /// Share between 0 and 1 with its interval.
    Share(ClusterEstimate),
}

impl DataTable {
    pub(crate) fn new(title: &str, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|name| (*name).to_owned()).collect();
        Self { title: title.to_owned(), columns, rows: Vec::new() }
    }

    /// Returns the table for a page.
    pub(crate) fn page_table(&self) -> PageTable {
        let rows = self.rows.iter().map(|row| row.iter().map(Cell::page_cell).collect());
        PageTable { title: self.title.clone(), columns: self.columns.clone(), rows: rows.collect() }
    }

    /// Returns comma-separated values (RFC 4180). An estimate has three columns: value, and ends of
    /// the interval.
    pub fn csv(&self) -> String {
        let is_estimate = |column: usize| {
            self.rows
                .iter()
                .any(|row| matches!(row.get(column), Some(Cell::Estimate(_) | Cell::Share(_))))
        };
        let mut heads = Vec::new();
        for (number, name) in self.columns.iter().enumerate() {
            heads.push(quoted(name));
            if is_estimate(number) {
                heads.extend(["low", "high"].map(|end| quoted(&format!("{name} {end}"))));
            }
        }
        let mut out = format!("{}\n", heads.join(","));
        for row in &self.rows {
            let cells: Vec<String> = row.iter().map(Cell::csv).collect();
            let _ = writeln!(out, "{}", cells.join(",")); // cannot fail
        }
        out
    }
}

impl Cell {
    /// Returns the text for people.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(number) => count(*number as f64),
            Self::Number(value) => three_digits(*value),
            Self::Estimate(estimate) => with_interval(estimate, three_digits),
            Self::Share(estimate) => {
                let percent = with_interval(estimate, |share| format!("{:.0}", share * 100.0));
                format!("{percent} %")
            }
        }
    }

    fn page_cell(&self) -> PageCell {
        match self {
            Self::Text(text) => PageCell::Text(text.clone()),
            Self::Count(_) | Self::Number(_) | Self::Estimate(_) | Self::Share(_) => {
                PageCell::Number(self.text())
            }
        }
    }

    fn csv(&self) -> String {
        match self {
            Self::Text(text) => quoted(text),
            Self::Count(number) => number.to_string(),
            Self::Number(value) => value.to_string(),
            Self::Estimate(estimate) | Self::Share(estimate) => {
                let ends = estimate.interval.map_or([String::new(), String::new()], |interval| {
                    [interval.low.to_string(), interval.high.to_string()]
                });
                format!("{},{},{}", estimate.value, ends[0], ends[1])
            }
        }
    }
}

fn with_interval(estimate: &ClusterEstimate, text: impl Fn(f64) -> String) -> String {
    let value = text(estimate.value);
    match estimate.interval {
        Some(interval) => {
            let dash = if interval.low < 0.0 { " to " } else { "–" };
            format!("{value} ({}{dash}{})", text(interval.low), text(interval.high))
        }
        None => value,
    }
}

fn quoted(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) {
        return format!("\"{}\"", text.replace('"', "\"\""));
    }
    text.to_owned()
}
