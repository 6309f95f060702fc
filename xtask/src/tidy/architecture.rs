//! Rules of ARCHITECTURE.md: it names each crate once, and what it points to exists.

use super::LintFinding;
use super::crates::{CRATES, CrateRule};
use super::scan::scan;
use crate::repository::Repository;

const PAGE: &str = "ARCHITECTURE.md";
/// Keywords before the name of an item.
const KEYWORDS: [&str; 7] = ["fn", "struct", "enum", "trait", "mod", "const", "type"];

/// Checks the page; a repository without it is not checked.
pub(super) fn check(repository: &Repository) -> Vec<LintFinding> {
    let Some(text) = repository.text(PAGE) else { return Vec::new() };
    let mut findings: Vec<_> = CRATES.iter().filter_map(|rule| check_crate(text, rule)).collect();
    findings.extend(check_names(text, repository));
    findings
}

/// Checks that one paragraph is about the crate, with the topics that it must not know.
fn check_crate(text: &str, rule: &CrateRule) -> Option<LintFinding> {
    let start = format!("**`{}`**:", rule.name);
    let paragraphs = text.split("\n\n").filter(|paragraph| paragraph.starts_with(&start));
    let paragraphs: Vec<String> = paragraphs
        .map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let expected = format!("*Must not know:* {}. *Start at* ", rule.must_not_know);
    let is_right = matches!(paragraphs.as_slice(), [only] if only.contains(&expected));
    (!is_right).then(|| {
        let text = format!("expected one paragraph that begins with {start} and has `{expected}`");
        LintFinding::error(PAGE, 1, text)
    })
}

/// Checks each "`name` in [file](path.rs)": the file must define the name.
fn check_names(text: &str, repository: &Repository) -> Vec<LintFinding> {
    let mut findings = Vec::new();
    for (position, _) in text.match_indices(".rs)") {
        let (before, _) = text.split_at(position + 3);
        let Some((before, path)) = before.rsplit_once("](") else { continue };
        let line = before.matches('\n').count() + 1;
        // `name` in \[file, possibly on two lines, or the name of its trait in between.
        let words: Vec<&str> =
            before.rsplit_once('[').map_or("", |(before, _)| before).split_whitespace().collect();
        let [.., name, "in"] = words.as_slice() else { continue };
        let Some(name) = name.strip_prefix('`').and_then(|name| name.strip_suffix('`')) else {
            continue;
        };
        let defines = |text: &str| scan(text).code.lines().any(|line| defines(line, name));
        if !repository.text(path).is_some_and(defines) {
            let text = format!("`{name}` in {path}, which does not define it");
            findings.push(LintFinding::error(PAGE, line, text));
        }
    }
    findings
}

/// Returns true if a line of code defines an item of this name.
fn defines(line: &str, name: &str) -> bool {
    let words: Vec<&str> = line.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
    words
        .windows(2)
        .any(|pair| matches!(pair, [keyword, word] if *word == name && KEYWORDS.contains(keyword)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_must_be_defined_in_its_file() {
        let files = |page: &'static str| {
            [(PAGE, page), ("crates/a/src/x.rs", "pub(crate) fn run(a: u8) {}\n// fn walk()\n")]
        };
        let texts = |page: &'static str| {
            let repository = Repository::of(&files(page));
            let findings = check_names(page, &repository);
            findings.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(texts("x calls `run` in\n[x.rs](crates/a/src/x.rs)").is_empty());
        assert!(texts("see [x.rs](crates/a/src/x.rs)").is_empty());
        assert_eq!(
            texts("a\n`walk` in [x.rs](crates/a/src/x.rs)"),
            ["ARCHITECTURE.md:2: `walk` in crates/a/src/x.rs, which does not define it"]
        );
        assert_eq!(texts("`run` in [y.rs](crates/a/src/y.rs)").len(), 1);
    }

    #[test]
    fn each_crate_has_one_paragraph_with_what_it_must_not_know() {
        let rule = &CRATES[0];
        let paragraph = format!(
            "**`{}`**: x. *Must not\nknow:* {}. *Start at* `f`.\n",
            rule.name, rule.must_not_know
        );
        assert!(check_crate(&paragraph, rule).is_none());
        assert!(check_crate(&format!("{paragraph}\n{paragraph}"), rule).is_some());
        assert!(check_crate("", rule).is_some());
    }
}
