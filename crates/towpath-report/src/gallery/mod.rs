//! Published figures that were repeated: one page that shows them all, and the same as Markdown.
//!
//! Each figure comes with the source's claims and the verdict of our runs. Everything is drawn
//! anew from a [`GalleryEntry`], which is stored as JSON next to the picture. So a page can show
//! figures that were made one by one.

mod markdown;
mod page;
mod readme;

use serde::{Deserialize, Serialize};
use towpath_result::format;

use crate::figure::Figure;

pub use markdown::markdown;
pub use page::page;

/// One reproduced figure with its claims and verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GalleryEntry {
    /// Short name, from which file names are made.
    pub name: String,
    /// Title in one line.
    pub title: String,
    /// Publication that the figure is from.
    pub source: String,
    /// Worlds of the runs: `sim`, `emu`, or both.
    pub worlds: Vec<String>,
    /// True if only a part of the runs was made.
    #[serde(alias = "thin")]
    pub quick: bool,
    /// Number of runs with and without a result.
    pub runs: usize,
    /// Number of runs without a result.
    pub failed: usize,
    /// Number of emulated runs that were too late or too noisy to be trusted.
    #[serde(default)]
    #[serde(alias = "degraded")]
    pub unreliable: usize,
    /// Name and version of the program that made it.
    pub made_by: String,
    /// Plot of our results with the published points.
    pub figure: Figure,
    /// Claims of the source with their checks.
    pub claims: Vec<ClaimEntry>,
    /// All claims together, in one sentence.
    pub verdict: String,
    /// Published points: panel (empty for all), what, place on the axis, value, place in the
    /// source.
    pub published: Vec<[String; 5]>,
    /// Text of the reproduction's `README.md`.
    pub readme: String,
    /// Files that belong to it, in the page's folder.
    pub files: Vec<String>,
}

/// A claim and its check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimEntry {
    /// Claim in plain words.
    pub text: String,
    /// Place of the claim in the source.
    pub source: String,
    /// World of the check, if the figure has several worlds.
    pub world: Option<String>,
    /// True if the claim holds; `None` when it was not checked.
    pub holds: Option<bool>,
    /// True if the outcome was expected.
    pub expected: bool,
    /// Measured values as text.
    pub measured: String,
    /// Reason for a failed claim, with its evidence.
    pub deviation: Option<String>,
}

impl ClaimEntry {
    /// Returns the claim's place in the source, and the world of its check if there are several.
    pub fn place(&self) -> String {
        let world = self.world.as_ref().map(|world| format!("; in `{world}`"));
        format!("{}{}", self.source, world.unwrap_or_default())
    }

    /// Returns a sign for the outcome: `✓`, `✗` or `–`.
    pub fn sign(&self) -> &'static str {
        match self.holds {
            Some(true) => "✓",
            Some(false) => "✗",
            None => "–",
        }
    }
}

impl GalleryEntry {
    /// Returns the base name of the entry's files; includes the worlds, so that another world does
    /// not replace them.
    pub fn stem(&self) -> String {
        stem(&self.name, &self.worlds)
    }

    /// Returns the conditions as text: ``world `sim`, 45 runs``.
    pub fn conditions(&self) -> String {
        let thin_note = if self.quick { ", only a part of the runs" } else { "" };
        let count_text = |count: usize, label: &str| {
            if count > 0 { format!(", {count} {label}") } else { String::new() }
        };
        let (failed, unreliable) =
            (count_text(self.failed, "failed"), count_text(self.unreliable, "unreliable"));
        let worlds: Vec<_> = self.worlds.iter().map(|world| format!("`{world}`")).collect();
        let plural = if worlds.len() == 1 { "" } else { "s" };
        format!(
            "world{plural} {}, {}{failed}{unreliable}{thin_note}",
            worlds.join(" and "),
            format::count(self.runs as u64, "run")
        )
    }
}

/// Returns a name with its worlds; the simulated world alone is not appended.
pub fn stem(name: &str, worlds: &[String]) -> String {
    match worlds {
        [one] if one == "sim" => name.to_owned(),
        worlds => format!("{name}-{}", worlds.join("-")),
    }
}

#[cfg(test)]
mod tests;
