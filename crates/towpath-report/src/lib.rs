//! Renders a result: the terminal summary, live interval lines and a self-contained HTML report.
//!
//! Everything here is a pure function from records to text. `compare` makes the table that the
//! terminal and the page share, and `comparison` compares repetitions. `series` brings records
//! onto one time axis, `chart` draws them, and `html` and `terminal` lay out. `export` writes
//! tables for other programs. [`figure`] draws plots for print. Only `text` escapes text from
//! files. Every page begins in `page`, whose content security policy allows nothing but the page
//! itself.

mod account;
mod chart;
mod compare;
mod comparison;
mod export;
pub mod figure;
mod figures_page;
#[doc(hidden)]
pub mod fuzzing;
pub mod gallery;
mod group;
mod html;
mod live;
mod mobile;
mod page;
mod repetitions;
mod series;
mod sweep;
mod terminal;
mod text;

pub use account::account_table;
pub use comparison::Comparison;
pub use export::{
    CellValue, Column, ColumnKind, ParquetTable, ParquetWriter, ResultTable, TableError,
    columns_of, csv,
};
pub use figures_page::{FigureSection, FiguresPage, PageCell, PageTable, figures_page};
pub use html::{html, html_in, site_page, unfinished_run};
pub use live::{LiveInterval, LiveSender, LiveSubflow, live_header, live_lines};
pub use mobile::mobile_round;
pub use page::{LivePage, SiteFrame};
pub use sweep::{SweepMetric, SweepPage, SweepPoint, sweep_page};
pub use terminal::{table, warnings};
