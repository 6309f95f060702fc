//! Ledgers of requirements: `specs/rfcNNNN.toml`, one for each document that our stack implements.
//!
//! `ledger` reads and checks one, `proof` finds the tests that it names, `table` counts, and
//! `scripts` counts the packet scripts in `specs/scripts/`. An open requirement is not an error,
//! unless its document was requested to be complete.

mod ledger;
mod proof;
mod scripts;
mod table;

use std::io::Write;
use std::path::Path;

use crate::Result;
use crate::finding::LintFinding;
use crate::repository::Repository;
use ledger::{Ledger, Strength};
use scripts::Scripts;

/// Folder of the ledgers.
const LEDGER_DIR: &str = "specs/";

/// Command-line options of `cargo xtask specs`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SpecOptions {
    /// Set to list the open requirements of strength MUST.
    open: bool,
    /// Documents without open requirements of strength MUST, such as `rfc8684`.
    strict: Vec<String>,
}

impl SpecOptions {
    /// Parses the arguments after `specs`; `None` if they are not valid.
    pub(crate) fn parse(arguments: &[&str]) -> Option<Self> {
        let mut options = Self::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match *argument {
                "--open" => options.open = true,
                "--strict" => options.strict.push((*arguments.next()?).into()),
                _ => return None,
            }
        }
        Some(options)
    }
}

/// Prints the table; returns false if a ledger is invalid or less complete than requested.
pub(crate) fn run(root: &Path, options: &SpecOptions, out: &mut dyn Write) -> Result<bool> {
    let repository = Repository::read(root)?;
    let (ledgers, mut findings) = read(&repository);
    write!(out, "{}", table::status_table(&ledgers))?;
    let scripts = Scripts::read(&repository);
    write!(out, "{}", scripts.table())?;
    findings.extend(scripts.findings);
    if options.open {
        for ledger in &ledgers {
            for requirement in ledger.open(Strength::Must) {
                writeln!(out, "open: {} {requirement}", ledger.document)?;
            }
        }
    }
    findings.extend(open_in_strict_documents(&ledgers, &options.strict));
    findings.sort();
    for finding in &findings {
        writeln!(out, "{finding}")?;
    }
    Ok(findings.is_empty())
}

/// Checks all ledgers, as `cargo xtask tidy` does.
pub(crate) fn check(repository: &Repository) -> Vec<LintFinding> {
    let mut findings = read(repository).1;
    findings.extend(Scripts::read(repository).findings);
    findings
}

/// Returns the valid ledgers, and the violations of all.
fn read(repository: &Repository) -> (Vec<Ledger>, Vec<LintFinding>) {
    let (mut ledgers, mut findings) = (Vec::new(), Vec::new());
    let is_ledger =
        |path: &&str| path.starts_with(LEDGER_DIR) && !path.starts_with(scripts::SCRIPT_DIR);
    for path in repository.paths().filter(is_ledger) {
        let Some(text) = repository.text(path) else { continue };
        match Ledger::parse(path, text) {
            Ok(ledger) => {
                findings.extend(ledger.check(repository));
                ledgers.push(ledger);
            }
            Err(finding) => findings.push(finding),
        }
    }
    (ledgers, findings)
}

/// Finds open requirements in documents that were requested to be complete.
fn open_in_strict_documents(ledgers: &[Ledger], documents: &[String]) -> Vec<LintFinding> {
    let mut findings = Vec::new();
    for document in documents {
        let Some(ledger) = ledgers.iter().find(|ledger| ledger.document == *document) else {
            let path = format!("{LEDGER_DIR}{document}.toml");
            findings.push(LintFinding::error(
                &path,
                1,
                "no such ledger, expected it to be complete",
            ));
            continue;
        };
        for requirement in ledger.open(Strength::Must) {
            let text = format!("still to do: {requirement}");
            findings.push(LintFinding::error(&ledger.path, requirement.line, text));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(level: &str, rest: &str) -> String {
        format!(
            "title = \"A document\"\n\n[[requirement]]\nid = \"2-1\"\nsection = \"2\"\n\
             level = \"{level}\"\nsummary = \"do it\"\n{rest}\n"
        )
    }

    fn read_ledgers(files: &[(&str, &str)]) -> (Vec<Ledger>, Vec<LintFinding>) {
        read(&Repository::of(files))
    }

    #[test]
    fn arguments_are_two_and_nothing_else() {
        let strict = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let parse = SpecOptions::parse;
        assert_eq!(parse(&[]), Some(SpecOptions::default()));
        let expected = SpecOptions { open: true, strict: strict(&["rfc1", "rfc2"]) };
        assert_eq!(parse(&["--strict", "rfc1", "--open", "--strict", "rfc2"]), Some(expected));
        assert_eq!(parse(&["--strict"]), None);
        assert_eq!(parse(&["--closed"]), None);
    }

    #[test]
    fn todo_is_allowed_until_the_document_must_be_complete() {
        let text = ledger("MUST NOT", "status = \"todo\"");
        let (ledgers, findings) = read_ledgers(&[("specs/rfc1.toml", &text)]);
        assert_eq!(findings, []);
        assert_eq!(open_in_strict_documents(&ledgers, &[]), []);
        let findings = open_in_strict_documents(&ledgers, &["rfc1".into()]);
        let texts: Vec<_> = findings.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["specs/rfc1.toml:4: still to do: 2-1 MUST NOT: do it"]);
        assert_eq!(open_in_strict_documents(&ledgers, &["rfc2".into()]).len(), 1);
    }

    #[test]
    fn a_complete_document_may_omit_should_requirements() {
        let text = ledger("SHOULD", "status = \"todo\"");
        let (ledgers, findings) = read_ledgers(&[("specs/rfc1.toml", &text)]);
        assert_eq!(findings, []);
        assert_eq!(open_in_strict_documents(&ledgers, &["rfc1".into()]), []);
    }

    #[test]
    fn a_broken_ledger_does_not_hide_the_others() {
        let good = ledger("MUST", "status = \"todo\"");
        let files = [("specs/rfc1.toml", "title = 3\n"), ("specs/rfc2.toml", good.as_str())];
        let (ledgers, findings) = read_ledgers(&files);
        assert_eq!(ledgers.len(), 1);
        assert_eq!(findings.len(), 1);
    }

    #[test]
    fn tidy_reads_the_ledgers_and_nothing_else() {
        let findings = check(&Repository::of(&[
            ("scenarios/rfc1.toml", "nonsense"),
            ("specs/rfc1.toml", "nonsense"),
        ]));
        let paths: Vec<_> = findings.iter().map(|finding| finding.path.as_str()).collect();
        assert_eq!(paths, ["specs/rfc1.toml"]);
    }
}
