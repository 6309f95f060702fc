//! Rules of documents: links must resolve, and no path of a developer's machine may appear.

use std::collections::BTreeMap;
use std::path::Path;

use super::LintFinding;
use crate::repository::Repository;

/// Prefixes of paths on a developer's machine.
const MACHINE_PATHS: [&str; 3] = ["/work/", "/root/", "/home/"];

/// Folder of the attack tests.
const ATTACK_TEST_DIR: &str = "crates/towpath/tests/end_to_end/security";

/// Checks one document and returns its violations.
pub(super) fn check(path: &str, text: &str, repository: &Repository) -> Vec<LintFinding> {
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.ends_with([' ', '\t']) {
            findings.push(LintFinding::error(
                path,
                number,
                "space at the end of the line, expected none",
            ));
        }
        for folder in MACHINE_PATHS.iter().filter(|folder| has_path(line, folder)) {
            let text =
                format!("`{folder}` of a developer's machine, expected a path in the repository");
            findings.push(LintFinding::error(path, number, text));
        }
    }
    for (number, line) in prose(text) {
        for attack_test in attack_tests(line).filter(|attack_test| !exists(attack_test, repository))
        {
            let text = format!(
                "`{attack_test}` is not a test, expected one of those in `{ATTACK_TEST_DIR}`"
            );
            findings.push(LintFinding::error(path, number, text));
        }
        for target in links(&without_code(line)) {
            if let Some(problem) = link_problem(path, text, &target, repository) {
                findings.push(LintFinding::error(path, number, problem));
            }
        }
    }
    findings
}

/// Returns the attack tests that a line names, as `security::MODULE::TEST` or
/// `security::MODULE::SUBMODULE::TEST`.
fn attack_tests(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split('`').skip(1).step_by(2);
    code.filter(|name| name.starts_with("security::") && name.matches("::").count() > 1)
}

fn exists(attack: &str, repository: &Repository) -> bool {
    let Some((module, test_name)) = attack.trim_start_matches("security::").rsplit_once("::")
    else {
        return false;
    };
    let module = repository.text(&format!("{ATTACK_TEST_DIR}/{}.rs", module.replace("::", "/")));
    module.is_some_and(|module| module.contains(&format!("\nfn {test_name}() {{")))
}

/// Returns true if the line has a path that begins with `folder`; `https://host/work/` does not
/// count.
fn has_path(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(index, _)| {
        let before = line.get(..index).and_then(|before| before.chars().next_back());
        !before.is_some_and(|c| c.is_alphanumeric() || "./-_*}>~".contains(c))
    })
}

/// Returns the lines outside code blocks, with their numbers.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut lines = Vec::new();
    let mut fence = None;
    for (number, line) in (1..).zip(text.lines()) {
        let mark = ["```", "~~~"].into_iter().find(|mark| line.trim_start().starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(opening_fence), Some(mark)) if opening_fence == mark => fence = None,
            (Some(_), _) => {}
            (None, None) => lines.push((number, line)),
        }
    }
    lines
}

/// Removes code: every second part between backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// Returns the targets of `[text](target)`, `[name]: target`, `href="target"` and `src="target"`.
fn links(line: &str) -> Vec<String> {
    let mut targets = Vec::new();
    for (opening, closing) in [("](", ')'), ("href=\"", '"'), ("src=\"", '"')] {
        for (_, rest) in line.match_indices(opening).map(|(index, _)| line.split_at(index)) {
            let target = rest.get(opening.len()..).and_then(|rest| rest.split(closing).next());
            targets.extend(target.and_then(|target| target.split_whitespace().next()));
        }
    }
    if line.starts_with('[')
        && let Some((_, target)) = line.split_once("]: ")
    {
        targets.extend(target.split_whitespace().next());
    }
    targets.iter().map(|target| target.trim_matches(['<', '>']).to_owned()).collect()
}

/// Returns the problem with a link, if it has one.
fn link_problem(path: &str, text: &str, target: &str, repository: &Repository) -> Option<String> {
    let is_elsewhere = target.contains("://") || target.starts_with("mailto:");
    if is_elsewhere {
        return None;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let (file, text) = if file.is_empty() {
        (path.to_owned(), Some(text))
    } else {
        let Some(file) = resolve(path, file) else {
            return Some(format!("link to `{target}`, expected a path inside the repository"));
        };
        if !repository.contains(&file) {
            return Some(format!("link to `{target}`, expected it to exist"));
        }
        let text = repository.text(&file);
        (file, text)
    };
    let is_document = Path::new(&file).extension().is_some_and(|extension| extension == "md");
    if anchor.is_empty() || !is_document || anchors(text?).iter().any(|existing| existing == anchor)
    {
        return None;
    }
    Some(format!("link to `#{anchor}`, expected such a heading in {file}"))
}

/// Returns the target's path from the root; `None` if it leads out of the repository.
fn resolve(path: &str, target: &str) -> Option<String> {
    if target.starts_with('/') {
        return None;
    }
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in target.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Returns the anchors of a document: those of its headings, as forges generate them, and its own.
fn anchors(text: &str) -> Vec<String> {
    let mut counts_by_slug: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = Vec::new();
    for (_, line) in prose(text) {
        let level = line.len() - line.trim_start_matches('#').len();
        if (1..=6).contains(&level) && line.get(level..).is_some_and(|text| text.starts_with(' ')) {
            let slug = slug(line.trim_matches(['#', ' ']));
            let count = counts_by_slug.entry(slug.clone()).or_default();
            anchors.push(if *count == 0 { slug } else { format!("{slug}-{count}") });
            *count += 1;
        }
        for attribute in ["id=\"", "name=\""] {
            let explicit_anchor =
                line.split_once(attribute).and_then(|(_, rest)| rest.split('"').next());
            anchors.extend(explicit_anchor.map(String::from));
        }
    }
    anchors
}

fn slug(heading: &str) -> String {
    let mut slug = String::new();
    let mut rest = heading;
    while let Some(c) = rest.chars().next() {
        // Only the text of a link counts.
        let skipped_bytes = match rest.strip_prefix("](").and_then(|link| link.find(')')) {
            Some(end) => end + 3,
            None => c.len_utf8(),
        };
        match c {
            ' ' => slug.push('-'),
            '-' | '_' => slug.push(c),
            c if c.is_alphanumeric() => slug.extend(c.to_lowercase()),
            _ => {}
        }
        rest = rest.get(skipped_bytes..).unwrap_or_default();
    }
    slug
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository() -> Repository {
        Repository::of(&[
            ("README.md", "# towpath\n\n## Install & run\n\n## Twice\n\n## Twice\n"),
            ("docs/metrics.md", "# Metrics\n"),
            ("scenarios/a.toml", ""),
        ])
    }

    fn findings(text: &str) -> Vec<String> {
        check("docs/x.md", text, &repository()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn links_to_existing_targets_are_accepted() {
        for text in [
            "[a](metrics.md), [b](../README.md#install--run) and [c](../README.md#twice-1)",
            "[`a`](../scenarios/a.toml#L3), [b](../scenarios/), [c](https://example.org/x.md)",
            "# A heading\n[a](#a-heading) <a id=\"own\"></a> [b](#own)",
            "[a]: metrics.md \"title\"\n<img src=\"metrics.md\">",
            "`[a](gone.md)`\n```\n[a](gone.md)\n```\n",
        ] {
            assert_eq!(findings(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn links_to_missing_targets_are_found() {
        for text in [
            "[a](gone.md)",
            "[a](../../README.md)",
            "[a](/README.md)",
            "[a](../README.md#gone)",
            "[a](#gone)",
            "[a]: gone.md",
            "<img src=\"gone.svg\">",
        ] {
            assert_eq!(findings(text).len(), 1, "{text}");
        }
    }

    #[test]
    fn attacks_that_a_document_names_exist() {
        let module_path = format!("{ATTACK_TEST_DIR}/server.rs");
        let repository = Repository::of(&[(&module_path, "#[test]\nfn holds() {}\n")]);
        let count_findings = |text: &str| check("SECURITY.md", text, &repository).len();
        assert_eq!(
            count_findings("| S1 | `security::server::holds`, `cargo xtask attack-tests` |\n"),
            0
        );
        assert_eq!(
            count_findings("| S1 | `security::server::hold`, `security::servers::holds` |\n"),
            2
        );
    }

    #[test]
    fn paths_of_a_personal_machine_are_found() {
        assert_eq!(findings("see\n`/home/x/y`").len(), 1);
        assert_eq!(
            findings("/root/x"),
            ["docs/x.md:1: `/root/` of a developer's machine, expected a \
                                          path in the repository"]
        );
        assert_eq!(findings("https://example.org/work/x and ./home/x"), [""; 0]);
    }

    #[test]
    fn spaces_at_the_end_of_a_line_are_found() {
        assert_eq!(findings("a\nb \n").len(), 1);
        assert_eq!(findings("a\n\nb\n"), [""; 0]);
    }

    #[test]
    fn a_heading_gets_the_anchor_that_forges_give_it() {
        assert_eq!(slug("Life of a packet"), "life-of-a-packet");
        assert_eq!(slug("`run = \"…\"` (emu) & [more](x.md)"), "run---emu--more");
    }
}
