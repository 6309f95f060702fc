//! Published figures that were repeated: one page that shows them all, and the same as Markdown.
//!
//! What stands beside a figure is the source's claim and what ours says to it. Everything is drawn
//! anew from an [`Entry`], which is stored as JSON beside the picture: so a page can show figures that
//! were made one by one.

mod markdown;
mod page;
mod readme;

use serde::{Deserialize, Serialize};

use crate::figure::Figure;

pub use markdown::markdown;
pub use page::page;

/// One figure and what is said of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Short name, from which those of its files are made.
    pub name: String,
    /// One line.
    pub title: String,
    /// Who published it.
    pub source: String,
    /// Where it was run: `sim` or `emu`.
    pub world: String,
    /// Whether only a part of it was run.
    pub thin: bool,
    /// Runs.
    pub runs: usize,
    /// Those without a result.
    pub failed: usize,
    /// Program that made it.
    pub made_by: String,
    /// The figure.
    pub figure: Figure,
    /// What the source claims.
    pub claims: Vec<ClaimEntry>,
    /// All claims together, in one sentence.
    pub verdict: String,
    /// Points that the source gives: what, where on the axis, value, place in the source.
    pub published: Vec<[String; 4]>,
    /// `README.md` of the reproduction.
    pub readme: String,
    /// Files that belong to it, beside the page.
    pub files: Vec<String>,
}

/// A claim and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimEntry {
    /// In words.
    pub text: String,
    /// Where the source says so.
    pub source: String,
    /// Whether it holds; `None` when it was not checked.
    pub holds: Option<bool>,
    /// Whether that was expected.
    pub expected: bool,
    /// What was measured.
    pub measured: String,
    /// Why it fails, and what shows it.
    pub deviation: Option<String>,
}

impl ClaimEntry {
    /// `✓`, `✗` or `–`
    pub fn sign(&self) -> &'static str {
        match self.holds {
            Some(true) => "✓",
            Some(false) => "✗",
            None => "–",
        }
    }
}

impl Entry {
    /// `sim, 45 runs`
    pub fn conditions(&self) -> String {
        let thin = if self.thin { ", only a part of the runs" } else { "" };
        let failed =
            if self.failed > 0 { format!(", {} failed", self.failed) } else { String::new() };
        format!("world `{}`, {} runs{failed}{thin}", self.world, self.runs)
    }
}

#[cfg(test)]
mod tests;
