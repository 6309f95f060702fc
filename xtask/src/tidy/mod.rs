//! The rules of the repository that the compiler does not know.
//!
//! Every rule is a pure function from texts to [`Finding`]s. `source` knows Rust files, `scan`
//! tells their code from their comments, `markdown` knows documents, `manifest` the crates and what
//! they may use, `names` what nothing may be called.

mod manifest;
mod markdown;
mod names;
mod repository;
mod scan;
mod source;

use std::fmt;
use std::io::Write;
use std::path::Path;

use crate::Result;
use repository::Repository;

/// Something to mend: `path:line: what, what was expected`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    line: usize,
    severity: Severity,
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Severity {
    /// Fails the check.
    Error,
    /// Only said.
    Warning,
}

impl Finding {
    fn error(path: &str, line: usize, text: impl Into<String>) -> Self {
        Self { path: path.into(), line, severity: Severity::Error, text: text.into() }
    }

    fn warning(path: &str, line: usize, text: impl Into<String>) -> Self {
        Self { path: path.into(), line, severity: Severity::Warning, text: text.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, severity, text } = self;
        match severity {
            Severity::Error => write!(f, "{path}:{line}: {text}"),
            Severity::Warning => write!(f, "{path}:{line}: warning: {text}"),
        }
    }
}

/// Checks the repository at `root`; false if it broke a rule.
pub(crate) fn run(root: &Path, out: &mut dyn Write) -> Result<bool> {
    let repository = Repository::read(root)?;
    let mut findings = check(&repository);
    findings.extend(manifest::check(&manifest::metadata(root)?, &repository));
    findings.sort();
    for finding in &findings {
        writeln!(out, "{finding}")?;
    }
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error).count();
    let warnings = findings.len() - errors;
    writeln!(out, "tidy: {} files, {errors} errors, {warnings} warnings", repository.len())?;
    Ok(errors == 0)
}

/// All rules that need nothing but the files.
fn check(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for path in repository.paths() {
        findings.extend(names::check(path));
        let Some(text) = repository.text(path) else { continue };
        match path.rsplit_once('.') {
            Some((_, "rs")) => findings.extend(source::check(path, text)),
            Some((_, "md")) => findings.extend(markdown::check(path, text, repository)),
            Some(_) | None => {}
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_can_be_clicked() {
        let finding = Finding::error("a/b.rs", 7, "`unsafe` here, expected it elsewhere");
        assert_eq!(finding.to_string(), "a/b.rs:7: `unsafe` here, expected it elsewhere");
        let finding = Finding::warning("a/b.rs", 1, "long");
        assert_eq!(finding.to_string(), "a/b.rs:1: warning: long");
    }

    #[test]
    fn each_file_is_checked_by_the_rules_of_its_kind() {
        let repository = Repository::of(&[
            ("crates/x/src/lib.rs", "fn f() { todo!() }\n"),
            ("docs/x.md", "[gone](gone.md)\n"),
            ("docs/x.txt", "[gone](gone.md) todo!()\n"),
            ("crates/x/src/utils.rs", ""),
        ]);
        let findings = check(&repository);
        let paths: Vec<_> = findings.iter().map(|finding| finding.path.as_str()).collect();
        assert_eq!(paths, ["crates/x/src/lib.rs", "crates/x/src/utils.rs", "docs/x.md"]);
    }
}
