//! One ledger: the requirements of a document, and their state.

use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use toml::Spanned;

use super::{LEDGER_DIR, proof};
use crate::finding::LintFinding;
use crate::repository::Repository;

/// A document and its requirements.
#[derive(Debug)]
pub(super) struct Ledger {
    /// Path of the ledger file.
    pub(super) path: String,
    /// Identifier of the document, such as `rfc8684`.
    pub(super) document: String,
    pub(super) title: String,
    pub(super) requirements: Vec<Requirement>,
}

/// One requirement of a document.
#[derive(Debug)]
pub(super) struct Requirement {
    /// Line number in the ledger.
    pub(super) line: usize,
    id: String,
    section: String,
    pub(super) level: Level,
    summary: String,
    pub(super) status: RequirementStatus,
    tests: Vec<String>,
    reason: Option<String>,
}

/// Keyword of the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) enum Level {
    #[serde(rename = "MUST")]
    Must,
    #[serde(rename = "MUST NOT")]
    MustNot,
    #[serde(rename = "REQUIRED")]
    Required,
    #[serde(rename = "SHALL")]
    Shall,
    #[serde(rename = "SHALL NOT")]
    ShallNot,
    #[serde(rename = "SHOULD")]
    Should,
    #[serde(rename = "SHOULD NOT")]
    ShouldNot,
    #[serde(rename = "RECOMMENDED")]
    Recommended,
    #[serde(rename = "NOT RECOMMENDED")]
    NotRecommended,
    #[serde(rename = "MAY")]
    May,
    #[serde(rename = "OPTIONAL")]
    Optional,
    /// Requirement that the text states without a keyword.
    #[serde(rename = "PROSE")]
    Prose,
}

/// Strength of a level (RFC 2119 §1 to §5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strength {
    Must,
    Should,
    May,
    Prose,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RequirementStatus {
    /// Implemented, and shown by tests.
    Done,
    /// Left out deliberately, with a reason.
    Exception,
    /// Neither shown by tests nor an exception.
    Todo,
}

impl Level {
    pub(super) fn strength(self) -> Strength {
        match self {
            Self::Must | Self::MustNot | Self::Required | Self::Shall | Self::ShallNot => {
                Strength::Must
            }
            Self::Should | Self::ShouldNot | Self::Recommended | Self::NotRecommended => {
                Strength::Should
            }
            Self::May | Self::Optional => Strength::May,
            Self::Prose => Strength::Prose,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Must => "MUST",
            Self::MustNot => "MUST NOT",
            Self::Required => "REQUIRED",
            Self::Shall => "SHALL",
            Self::ShallNot => "SHALL NOT",
            Self::Should => "SHOULD",
            Self::ShouldNot => "SHOULD NOT",
            Self::Recommended => "RECOMMENDED",
            Self::NotRecommended => "NOT RECOMMENDED",
            Self::May => "MAY",
            Self::Optional => "OPTIONAL",
            Self::Prose => "PROSE",
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.id, self.level.word(), self.summary)
    }
}

/// Ledger as it is in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLedger {
    title: String,
    requirement: Vec<RawRequirement>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRequirement {
    id: Spanned<String>,
    section: String,
    level: Level,
    summary: String,
    status: RequirementStatus,
    test: Option<OneOrMore>,
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a test or a list of tests")]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl Ledger {
    /// Parses a ledger; its content is not checked yet.
    pub(super) fn parse(path: &str, text: &str) -> Result<Self, LintFinding> {
        let name = path.strip_prefix(LEDGER_DIR).and_then(|name| name.strip_suffix(".toml"));
        let Some(document) = name.filter(|name| is_document(name)) else {
            let text = "not called after a document, expected `rfcNNNN.toml`";
            return Err(LintFinding::error(path, 1, text));
        };
        let raw: RawLedger = toml::from_str(text).map_err(|error| {
            let line = line_of(text, error.span().map_or(0, |span| span.start));
            LintFinding::error(path, line, error.message())
        })?;
        let requirements = raw.requirement.into_iter().map(|raw| Requirement::from(raw, text));
        Ok(Self {
            path: path.into(),
            document: document.into(),
            title: raw.title,
            requirements: requirements.collect(),
        })
    }

    /// Iterates over the open requirements of this strength.
    pub(super) fn open(&self, strength: Strength) -> impl Iterator<Item = &Requirement> {
        self.requirements.iter().filter(move |requirement| {
            requirement.status == RequirementStatus::Todo
                && requirement.level.strength() == strength
        })
    }

    /// Finds violations of the ledger's rules.
    pub(super) fn check(&self, repository: &Repository) -> Vec<LintFinding> {
        let mut findings = Vec::new();
        let mut ids = BTreeSet::new();
        for requirement in &self.requirements {
            let mut report_error = |text: String| {
                let text = format!("`{}` {text}", requirement.id);
                findings.push(LintFinding::error(&self.path, requirement.line, text));
            };
            if !ids.insert(&requirement.id) {
                report_error("is there twice, expected one entry for each requirement".into());
            }
            requirement.check(repository, &mut report_error);
        }
        findings
    }
}

impl Requirement {
    fn from(raw: RawRequirement, text: &str) -> Self {
        let line = line_of(text, raw.id.span().start);
        let tests = match raw.test {
            None => Vec::new(),
            Some(OneOrMore::One(name)) => vec![name],
            Some(OneOrMore::More(names)) => names,
        };
        Self {
            line,
            id: raw.id.into_inner(),
            section: raw.section,
            level: raw.level,
            summary: raw.summary,
            status: raw.status,
            tests,
            reason: raw.reason,
        }
    }

    fn check(&self, repository: &Repository, report_error: &mut dyn FnMut(String)) {
        // The number counts within the section, unless the document numbers its requirements
        // itself.
        let number = self.id.strip_prefix(&self.section).and_then(|rest| rest.strip_prefix('-'));
        let has_number = number.is_some_and(|number| number.parse::<u16>().is_ok());
        if !has_number && !self.id.starts_with(|letter: char| letter.is_ascii_uppercase()) {
            report_error(format!(
                "is not of section {0}, expected `{0}-` and a number",
                self.section
            ));
        }
        if self.summary.trim().is_empty() {
            report_error("has an empty summary, expected what is to be done".into());
        }
        match self.status {
            RequirementStatus::Done if self.tests.is_empty() => {
                report_error("is done but names no test, expected `PATH::TEST`".into());
            }
            RequirementStatus::Todo if !self.tests.is_empty() => {
                report_error("names a test but is to do, expected the status `done`".into());
            }
            RequirementStatus::Done | RequirementStatus::Exception | RequirementStatus::Todo => {}
        }
        let has_reason = self.reason.as_deref().is_some_and(|reason| !reason.trim().is_empty());
        match self.status {
            RequirementStatus::Exception if !has_reason => {
                report_error("is an exception, expected a `reason`".into());
            }
            RequirementStatus::Done | RequirementStatus::Todo if self.reason.is_some() => {
                report_error("has a reason, expected it only with the status `exception`".into());
            }
            RequirementStatus::Done | RequirementStatus::Exception | RequirementStatus::Todo => {}
        }
        for test in &self.tests {
            if let Err(problem) = proof::find(repository, test) {
                report_error(format!("names `{test}`: {problem}"));
            }
        }
    }
}

fn is_document(name: &str) -> bool {
    let number = name.strip_prefix("rfc").unwrap_or_default();
    !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())
}

fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|&byte| byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST: &str = "crates/x/src/lib.rs::it_holds";

    fn entry(id: &str, status_lines: &str) -> String {
        format!(
            "[[requirement]]\nid = \"{id}\"\nsection = \"3.1\"\nlevel = \"MUST\"\n\
             summary = \"do it\"\n{status_lines}\n"
        )
    }

    /// Returns the violations in a ledger of these entries.
    fn fault_texts(entries: &[String]) -> Vec<String> {
        let text = format!("title = \"A document\"\n{}", entries.concat());
        let code = "#[test]\nfn it_holds() {}\n";
        let repository = Repository::of(&[("crates/x/src/lib.rs", code)]);
        let ledger = Ledger::parse("specs/rfc1.toml", &text).unwrap();
        ledger.check(&repository).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_status_requires_its_evidence() {
        let tests = [
            ("status = \"todo\"".to_owned(), ""),
            ("status = \"exception\"\nreason = \"no\"".into(), ""),
            (format!("status = \"done\"\ntest = \"{TEST}\""), ""),
            (format!("status = \"done\"\ntest = [\"{TEST}\"]"), ""),
            (format!("status = \"exception\"\nreason = \"no\"\ntest = \"{TEST}\""), ""),
            ("status = \"done\"".into(), "names no test"),
            ("status = \"done\"\ntest = []".into(), "names no test"),
            ("status = \"exception\"".into(), "expected a `reason`"),
            ("status = \"exception\"\nreason = \" \"".into(), "expected a `reason`"),
            ("status = \"todo\"\nreason = \"later\"".into(), "has a reason"),
            (format!("status = \"todo\"\ntest = \"{TEST}\""), "names a test but is to do"),
            ("status = \"done\"\ntest = \"crates/x/src/lib.rs::gone\"".into(), "no test"),
        ];
        for (status_lines, expected) in tests {
            let faults = fault_texts(&[entry("3.1-1", &status_lines)]);
            if expected.is_empty() {
                assert!(faults.is_empty(), "{status_lines}: {faults:?}");
            } else {
                assert_eq!(faults.len(), 1, "{status_lines}: {faults:?}");
                assert!(faults[0].contains(expected), "{status_lines}: {faults:?}");
            }
        }
    }

    #[test]
    fn an_id_is_of_its_section_or_of_the_document_and_there_once() {
        let todo = "status = \"todo\"";
        let ids = ["3.1-1", "MUST-7", "3.2-1", "3.1-x", "3.11-1", "3.1-1"];
        let entries: Vec<_> = ids.iter().map(|id| entry(id, todo)).collect();
        let faults = fault_texts(&entries);
        let ids: Vec<_> = faults.iter().filter_map(|fault| fault.split('`').nth(1)).collect();
        assert_eq!(ids, ["3.2-1", "3.1-x", "3.11-1", "3.1-1"]);
        assert!(faults[3].starts_with("specs/rfc1.toml:33: "), "{faults:?}");
        assert!(faults[3].contains("twice"), "{faults:?}");
    }

    #[test]
    fn invalid_ledger_entries_are_reported_with_their_line() {
        let entry = |key: &str| entry("3.1-1", &format!("status = \"todo\"\n{key}"));
        for (key, line) in [("note = \"x\"", 8), ("status = \"todo\"", 8), ("test = 3", 8)] {
            let text = format!("title = \"A document\"\n{}", entry(key));
            let finding = Ledger::parse("specs/rfc1.toml", &text).unwrap_err();
            assert_eq!(finding.line, line, "{key}: {finding}");
        }
        let text = format!("title = \"A document\"\n{}", entry("")).replace("MUST", "must");
        let finding = Ledger::parse("specs/rfc1.toml", &text).unwrap_err();
        assert_eq!(finding.line, 5, "{finding}");
    }

    #[test]
    fn a_ledger_is_called_after_its_document() {
        for path in ["specs/rfc.toml", "specs/8684.toml", "specs/rfc86x4.toml", "specs/notes.md"] {
            let finding = Ledger::parse(path, "").unwrap_err();
            assert!(finding.text.contains("expected `rfcNNNN.toml`"), "{finding}");
        }
    }
}
