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
pub(super) const SCRIPT_SUFFIX: &str = ".script";

/// Side that a difference is attributed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum DifferenceKind {
    /// Our stack violates the document.
    #[serde(rename = "to-fix")]
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
            Self::OurBug => "our stack needs a fix",
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
    differences_by_script: BTreeMap<String, BTreeSet<String>>,
    pub(super) findings: Vec<LintFinding>,
}

impl Scripts {
    pub(super) fn read(repository: &Repository) -> Self {
        let mut scripts = Self::default();
        let mut paths = repository.paths().filter(|path| path.starts_with(SCRIPT_DIR)).peekable();
        if paths.peek().is_none() {
            return scripts;
        }
        match toml::from_str::<DifferenceTable>(
            repository.text(DIFFERENCES_FILE).unwrap_or_default(),
        ) {
            Ok(table) => scripts.table = table.difference,
            Err(error) => {
                scripts.findings.push(LintFinding::error(DIFFERENCES_FILE, 1, error.message()));
            }
        }
        for path in paths.filter(|path| path.ends_with(SCRIPT_SUFFIX)) {
            let differences = scripts.differences(path, repository.text(path).unwrap_or_default());
            scripts.differences_by_script.insert(path.to_owned(), differences);
        }
        scripts.check_table();
        scripts
    }

    /// Returns the differences that a script names; unknown ones are added to the findings.
    fn differences(&mut self, path: &str, text: &str) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for (index, line) in text.lines().enumerate() {
            let Some((tag, _)) = line.strip_prefix('[').and_then(|rest| rest.split_once(']'))
            else {
                continue;
            };
            let name = tag.split_once(':').map_or("", |(_, name)| name.trim());
            if !self.table.iter().any(|difference| difference.name == name) {
                let text = format!("difference `{name}` is not in `{DIFFERENCES_FILE}`");
                self.findings.push(LintFinding::error(path, index + 1, text));
            }
            names.insert(name.to_owned());
        }
        names
    }

    fn check_table(&mut self) {
        for difference in &self.table {
            let mut report_error = |text: &str| {
                let text = format!("`{}` {text}", difference.name);
                self.findings.push(LintFinding::error(DIFFERENCES_FILE, 1, text));
            };
            if !self.differences_by_script.values().any(|names| names.contains(&difference.name)) {
                report_error("is in no script, expected it to be deleted with its last step");
            }
            if difference.section.trim().is_empty() || difference.text.trim().is_empty() {
                report_error("has no section or no text");
            }
        }
    }

    /// Returns the counts, and the differences with their counts.
    pub(super) fn table(&self) -> String {
        let mut text = String::new();
        if self.differences_by_script.is_empty() {
            return text;
        }
        let script_count = |kind: &str| {
            let folder = format!("{SCRIPT_DIR}{kind}/");
            self.differences_by_script.keys().filter(|path| path.starts_with(&folder)).count()
        };
        let alike_count =
            self.differences_by_script.values().filter(|names| names.is_empty()).count();
        let _ = writeln!(
            text,
            "\n{} scripts ({} TCP, {} MPTCP), each on our stack and on the kernel: {alike_count} alike, {} differ",
            self.differences_by_script.len(),
            script_count("tcp"),
            script_count("mptcp"),
            self.differences_by_script.len() - alike_count,
        );
        for kind in DifferenceKind::ALL {
            let differences: Vec<_> =
                self.table.iter().filter(|difference| difference.kind == kind).collect();
            let has_difference = |names: &&BTreeSet<String>| {
                differences.iter().any(|difference| names.contains(&difference.name))
            };
            let count = self.differences_by_script.values().filter(has_difference).count();
            let _ = writeln!(text, "{count:>4} {}", kind.text());
            for Difference { name, section, text: description, .. } in differences {
                let scripts = self
                    .differences_by_script
                    .values()
                    .filter(|names| names.contains(name))
                    .count();
                let _ = writeln!(text, "{scripts:>8} {name} ({section}): {description}");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET_DIFFERENCE: &str = "[[difference]]\nname = \"quiet\"\nkind = \"legal\"\nsection = \"rfc1 2\"\n\
                         text = \"says nothing\"\n";

    fn read_scripts(table: &str, script: &str) -> Scripts {
        Scripts::read(&Repository::of(&[
            ("specs/scripts/differences.toml", table),
            ("specs/scripts/tcp/a.script", script),
            ("specs/scripts/mptcp/b.script", "title: x\n"),
        ]))
    }

    #[test]
    fn scripts_are_counted_by_their_differences() {
        let scripts = read_scripts(
            QUIET_DIFFERENCE,
            "title: x\n\n[linux: quiet] silence 1s\n[towpath: quiet] > ACK\n",
        );
        assert!(scripts.findings.is_empty(), "{:?}", scripts.findings);
        let text = scripts.table();
        assert!(text.contains("2 scripts (1 TCP, 1 MPTCP)"), "{text}");
        assert!(text.contains("1 alike, 1 differ"), "{text}");
        assert!(text.contains("   1 quiet (rfc1 2): says nothing"), "{text}");
    }

    #[test]
    fn a_difference_is_in_the_table_and_in_a_script() {
        for (table, script, expected) in [
            (QUIET_DIFFERENCE, "[linux: loud] > ACK", "a.script:1: difference `loud` is not in"),
            (QUIET_DIFFERENCE, "> ACK", "`quiet` is in no script"),
            ("difference = 3", "> ACK", "differences.toml:1"),
        ] {
            let findings: Vec<_> =
                read_scripts(table, script).findings.iter().map(ToString::to_string).collect();
            assert!(findings.iter().any(|finding| finding.contains(expected)), "{findings:?}");
        }
    }
}
