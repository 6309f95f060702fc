//! Rules of the repository that the compiler does not check.
//!
//! Every rule is a pure function from texts to [`LintFinding`]s. `source` checks Rust files, `scan`
//! separates their code from comments, and `markdown` checks documents. `manifest` checks the
//! crates against the table in `crates`, and `names` the names of files and modules. `circles` finds
//! modules that use each other.

mod architecture;
mod circles;
mod crates;
mod foreign_systems;
mod identifiers;
mod manifest;
mod markdown;
mod names;
mod scan;
mod sentences;
mod source;
mod wording;

use std::fs;
use std::io::Write;
use std::path::Path;

use serde_json::Value;

use crate::Result;
use crate::finding::{LintFinding, Severity};
use crate::graph;
use crate::repository::Repository;
use crate::specs;

pub(crate) use crates::Platform;
pub(crate) use manifest::metadata;

/// Checks the repository at `root`; returns false if it violates a rule.
pub(crate) fn run(root: &Path, out: &mut dyn Write) -> Result<bool> {
    let repository = Repository::read(root)?;
    let mut findings = check(&repository);
    let metadata = metadata(root)?;
    findings.extend(manifest::check(&metadata, &repository));
    findings.extend(foreign_systems::check(root)?);
    findings.extend(check_graph(root, &metadata));
    findings.extend(sentences::check(&repository));
    findings.sort();
    for finding in &findings {
        writeln!(out, "{finding}")?;
    }
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error).count();
    let warnings = findings.len() - errors;
    writeln!(out, "tidy: {} files, {errors} errors, {warnings} warnings", repository.len())?;
    Ok(errors == 0)
}

/// Returns the systems that a crate builds on; those without a rule count as portable.
pub(crate) fn crate_platform(name: &str) -> Platform {
    crates::rule(name).map_or(Platform::Any, |rule| rule.platform)
}

/// Finds a picture of the crates that is not up to date.
fn check_graph(root: &Path, metadata: &Value) -> Option<LintFinding> {
    let stored = fs::read_to_string(root.join(graph::PATH)).unwrap_or_default();
    (stored != graph::draw(metadata)).then(|| {
        let text = "another picture of the crates, expected that of `cargo xtask graph`".to_owned();
        LintFinding::error(graph::PATH, 1, text)
    })
}

/// Checks all rules that need only the files.
fn check(repository: &Repository) -> Vec<LintFinding> {
    let mut findings = Vec::new();
    for path in repository.paths() {
        findings.extend(names::check(path));
        findings.extend(identifiers::check_path(path));
        let Some(text) = repository.text(path) else { continue };
        match path.rsplit_once('.') {
            Some((_, "rs")) => {
                findings.extend(source::check(path, text));
                findings.extend(identifiers::check(path, text));
                findings.extend(wording::check(path, text));
            }
            Some((_, "md")) => {
                findings.extend(markdown::check(path, text, repository));
                findings.extend(wording::check(path, text));
            }
            Some((_, "toml")) => findings.extend(wording::check(path, text)),
            Some(_) | None => {}
        }
    }
    let sources = repository
        .paths()
        .filter(|path| path.rsplit_once('.').is_some_and(|(_, extension)| extension == "rs"));
    let sources = sources.filter_map(|path| Some((path, repository.text(path)?)));
    findings.extend(identifiers::repeated_types(sources));
    findings.extend(architecture::check(repository));
    findings.extend(circles::check(repository));
    findings.extend(specs::check(repository));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

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
