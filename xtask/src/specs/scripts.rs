//! Packet scripts: their number, and the differences between the two hosts that they run on.
//!
//! A step for only one host names the difference, and `specs/scripts/differences.toml` describes
//! it. The tests prove that a difference exists: each host must perform its own step.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde::Deserialize;

use crate::finding::LintFinding;
use crate::repository::Repository;

/// Folder of the packet scripts.
pub(super) const SCRIPT_DIR: &str = "specs/scripts/";
/// Table of the known differences.
const DIFFERENCES_FILE: &str = "specs/scripts/differences.toml";
/// File name extension of a script.
pub(super) const ENDING: &str = ".script";

/// Side that a difference is attributed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum DifferenceKind {
    /// Our stack violates the document.
    #[serde(rename = "to-mend")]
    OurBug,
    /// The kernel violates the document, and our stack does not.
    Kernel,
    /// The document allows both.
    Legal,
    /// Our stack lacks a feature that it does not claim.
    Absent,
}

impl DifferenceKind {
    const ALL: [Self; 4] = [Self::OurBug, Self::Kernel, Self::Legal, Self::Absent];

    fn text(self) -> &'static str {
        match self {
            Self::OurBug => "our stack is to be mended",
            Self::Kernel => "the kernel leaves the document",
            Self::Legal => "the document allows both",
            Self::Absent => "our stack leaves it out",
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DifferenceTable {
    #[serde(default)]
    difference: Vec<Difference>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Difference {
    name: String,
    kind: DifferenceKind,
    section: String,
    text: String,
}

/// Summary of all scripts and their differences.
#[derive(Debug, Default)]
pub(super) struct Scripts {
    table: Vec<Difference>,
    /// Names of the differences of each script, by path.
    found: BTreeMap<String, BTreeSet<String>>,
    pub(super) findings: Vec<LintFinding>,
}

impl Scripts {
    pub(super) fn read(repository: &Repository) -> Self {
        let mut all = Self::default();
        let mut texts = repository.paths().filter(|path| path.starts_with(SCRIPT_DIR)).peekable();
        if texts.peek().is_none() {
            return all;
        }
        match toml::from_str::<DifferenceTable>(
            repository.text(DIFFERENCES_FILE).unwrap_or_default(),
        ) {
            Ok(table) => all.table = table.difference,
            Err(error) => {
                all.findings.push(LintFinding::error(DIFFERENCES_FILE, 1, error.message()));
            }
        }
        for path in texts.filter(|path| path.ends_with(ENDING)) {
            let differences = all.differences(path, repository.text(path).unwrap_or_default());
            all.found.insert(path.to_owned(), differences);
        }
        all.check_table();
        all
    }

    /// Returns the differences that a script names; unknown ones are added to the findings.
    fn differences(&mut self, path: &str, text: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for (index, line) in text.lines().enumerate() {
            let Some((tag, _)) = line.strip_prefix('[').and_then(|rest| rest.split_once(']'))
            else {
                continue;
            };
            let name = tag.split_once(':').map_or("", |(_, name)| name.trim());
            if !self.table.iter().any(|known| known.name == name) {
                let text = format!("difference `{name}` is not in `{DIFFERENCES_FILE}`");
                self.findings.push(LintFinding::error(path, index + 1, text));
            }
            found.insert(name.to_owned());
        }
        found
    }

    fn check_table(&mut self) {
        for known in &self.table {
            let mut broken = |text: &str| {
                let text = format!("`{}` {text}", known.name);
                self.findings.push(LintFinding::error(DIFFERENCES_FILE, 1, text));
            };
            if !self.found.values().any(|names| names.contains(&known.name)) {
                broken("is in no script, expected it to be deleted with its last step");
            }
            if known.section.trim().is_empty() || known.text.trim().is_empty() {
                broken("has no section or no text");
            }
        }
    }

    /// Returns the counts, and the differences with their counts.
    pub(super) fn table(&self) -> String {
        let mut text = String::new();
        if self.found.is_empty() {
            return text;
        }
        let of = |kind: &str| {
            let folder = format!("{SCRIPT_DIR}{kind}/");
            self.found.keys().filter(|path| path.starts_with(&folder)).count()
        };
        let alike = self.found.values().filter(|names| names.is_empty()).count();
        let _ = writeln!(
            text,
            "\n{} scripts ({} TCP, {} MPTCP), each on our stack and on the kernel: {alike} alike, {} differ",
            self.found.len(),
            of("tcp"),
            of("mptcp"),
            self.found.len() - alike,
        );
        for kind in DifferenceKind::ALL {
            let own: Vec<_> = self.table.iter().filter(|known| known.kind == kind).collect();
            let named = |names: &&BTreeSet<String>| own.iter().any(|one| names.contains(&one.name));
            let count = self.found.values().filter(named).count();
            let _ = writeln!(text, "{count:>4} {}", kind.text());
            for Difference { name, section, text: what, .. } in own {
                let scripts = self.found.values().filter(|names| names.contains(name)).count();
                let _ = writeln!(text, "{scripts:>8} {name} ({section}): {what}");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &str = "[[difference]]\nname = \"quiet\"\nkind = \"legal\"\nsection = \"rfc1 2\"\n\
                         text = \"says nothing\"\n";

    fn with(table: &str, script: &str) -> Scripts {
        Scripts::read(&Repository::of(&[
            ("specs/scripts/differences.toml", table),
            ("specs/scripts/tcp/a.script", script),
            ("specs/scripts/mptcp/b.script", "title: x\n"),
        ]))
    }

    #[test]
    fn scripts_are_counted_by_their_differences() {
        let scripts =
            with(KNOWN, "title: x\n\n[linux: quiet] silence 1s\n[towpath: quiet] > ACK\n");
        assert!(scripts.findings.is_empty(), "{:?}", scripts.findings);
        let text = scripts.table();
        assert!(text.contains("2 scripts (1 TCP, 1 MPTCP)"), "{text}");
        assert!(text.contains("1 alike, 1 differ"), "{text}");
        assert!(text.contains("   1 quiet (rfc1 2): says nothing"), "{text}");
    }

    #[test]
    fn a_difference_is_in_the_table_and_in_a_script() {
        for (table, script, expected) in [
            (KNOWN, "[linux: loud] > ACK", "a.script:1: difference `loud` is not in"),
            (KNOWN, "> ACK", "`quiet` is in no script"),
            ("difference = 3", "> ACK", "differences.toml:1"),
        ] {
            let said: Vec<_> =
                with(table, script).findings.iter().map(ToString::to_string).collect();
            assert!(said.iter().any(|said| said.contains(expected)), "{said:?}");
        }
    }
}
