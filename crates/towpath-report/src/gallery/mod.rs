//! Published figures that were repeated: one page that shows them all, and the same as Markdown.
//!
//! What stands beside a figure is the source's claim and what ours says to it. Everything is drawn
//! anew from an [`GalleryEntry`], which is stored as JSON beside the picture: so a page can show figures that
//! were made one by one.

mod markdown;
mod page;
mod readme;

use serde::{Deserialize, Serialize};
use towpath_measure::format;

use crate::figure::Figure;

pub use markdown::markdown;
pub use page::page;

/// One figure and what is said of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GalleryEntry {
    /// Short name, from which those of its files are made.
    pub name: String,
    /// One line.
    pub title: String,
    /// Who published it.
    pub source: String,
    /// Where it was run: `sim`, `emu`, or both.
    pub worlds: Vec<String>,
    /// Whether only a part of it was run.
    #[serde(rename = "thin")]
    pub quick: bool,
    /// Runs.
    pub runs: usize,
    /// Those without a result.
    pub failed: usize,
    /// Emulated ones that were too late or too noisy to be trusted.
    #[serde(default)]
    pub degraded: usize,
    /// Program that made it.
    pub made_by: String,
    /// The figure.
    pub figure: Figure,
    /// What the source claims.
    pub claims: Vec<ClaimEntry>,
    /// All claims together, in one sentence.
    pub verdict: String,
    /// Points that the source gives: panel (empty for all), what, where on the axis, value, place in
    /// the source.
    pub published: Vec<[String; 5]>,
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
    /// Where it was checked, if the figure has several worlds.
    pub world: Option<String>,
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
    /// Where the source says so, and where it was checked, if that must be said.
    pub fn place(&self) -> String {
        let world = self.world.as_ref().map(|world| format!("; in `{world}`"));
        format!("{}{}", self.source, world.unwrap_or_default())
    }

    /// `✓`, `✗` or `–`
    pub fn sign(&self) -> &'static str {
        match self.holds {
            Some(true) => "✓",
            Some(false) => "✗",
            None => "–",
        }
    }
}

impl GalleryEntry {
    /// The name from which those of its files are made: another world does not replace them.
    pub fn stem(&self) -> String {
        stem(&self.name, &self.worlds)
    }

    /// ``world `sim`, 45 runs``
    pub fn conditions(&self) -> String {
        let thin = if self.quick { ", only a part of the runs" } else { "" };
        let some = |count: usize, what: &str| {
            if count > 0 { format!(", {count} {what}") } else { String::new() }
        };
        let (failed, degraded) = (some(self.failed, "failed"), some(self.degraded, "degraded"));
        let worlds: Vec<_> = self.worlds.iter().map(|world| format!("`{world}`")).collect();
        let plural = if worlds.len() == 1 { "" } else { "s" };
        format!(
            "world{plural} {}, {}{failed}{degraded}{thin}",
            worlds.join(" and "),
            format::count(self.runs as u64, "run")
        )
    }
}

/// A name with the worlds that it is about; the simulated one is not said.
pub fn stem(name: &str, worlds: &[String]) -> String {
    match worlds {
        [one] if one == "sim" => name.to_owned(),
        worlds => format!("{name}-{}", worlds.join("-")),
    }
}

#[cfg(test)]
mod tests;
