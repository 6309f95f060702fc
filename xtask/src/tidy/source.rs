//! Rules of Rust files.

use super::LintFinding;
use super::names;
use super::scan::{ScannedSource, has_word, scan};

/// Lines of a file that cause a warning, and lines that are an error; tests are not counted.
const WARN_LINES: usize = 600;
const MAX_LINES: usize = 1_000;
/// Maximum lines of a crate's documentation: an overview, not a manual.
const MAX_CRATE_DOC_LINES: usize = 40;
/// The only crate that may make system calls directly.
const UNSAFE_CRATE: &str = "crates/towpath-os/";
/// The only crate whose documentation has examples that `cargo xtask test` runs.
const EXAMPLES_CRATE: &str = "crates/towpath-mptcp/";

/// Macros and words that mark unfinished code.
const UNFINISHED_CODE: [&str; 3] = ["todo!(", "unimplemented!(", "dbg!("];
const UNFINISHED_COMMENTS: [&str; 2] = ["FIXME", "XXX"];
const ALLOW_ATTRIBUTES: [&str; 2] = ["#[allow(", "#![allow("];

/// Checks one source file.
pub(super) fn check(path: &str, text: &str) -> Vec<LintFinding> {
    let scanned = scan(text);
    let mut findings = Vec::new();
    findings.extend(check_size(path, text));
    findings.extend(check_crate_docs(path, text));
    for (number, line) in (1..).zip(scanned.code.lines()) {
        findings.extend(check_code_line(path, number, line));
    }
    findings.extend(check_ignored_tests(path, text, &scanned));
    findings.extend(check_comments(path, &scanned));
    findings.extend(check_doc_examples(path, text));
    findings
}

/// Finds examples in documentation of other crates, where CI does not run them.
fn check_doc_examples(path: &str, text: &str) -> Vec<LintFinding> {
    if path.starts_with(EXAMPLES_CRATE) {
        return Vec::new();
    }
    let mut is_in_example = false;
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start();
        let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        let Some(language) = doc.and_then(|doc| doc.trim().strip_prefix("```")) else { continue };
        is_in_example = !is_in_example;
        if is_in_example && (language.is_empty() || language.starts_with("rust")) {
            let text = format!("an example in Rust, expected a test, or it in {EXAMPLES_CRATE}");
            findings.push(LintFinding::error(path, number, text));
        }
    }
    findings
}

fn check_code_line(path: &str, number: usize, line: &str) -> Vec<LintFinding> {
    let mut findings = Vec::new();
    if has_word(line, "unsafe") && !path.starts_with(UNSAFE_CRATE) {
        let text = format!("`unsafe` here, expected it in {UNSAFE_CRATE} only");
        findings.push(LintFinding::error(path, number, text));
    }
    for mark in UNFINISHED_CODE.iter().filter(|mark| line.contains(**mark)) {
        findings.push(LintFinding::error(
            path,
            number,
            format!("`{mark}` left, expected finished code"),
        ));
    }
    // Also clippy's `too_many_lines`: a function over 60 lines must say why.
    for mark in ALLOW_ATTRIBUTES.iter().filter(|mark| line.contains(**mark)) {
        let text = format!("`{mark}` here, expected `expect(…, reason = \"…\")`");
        findings.push(LintFinding::error(path, number, text));
    }
    if let Some(name) = inline_module(line).filter(|name| names::is_vague(name)) {
        let text = format!("module `{name}`, expected a name that says what it does");
        findings.push(LintFinding::error(path, number, text));
    }
    findings
}

/// Returns the name in `mod name {`; a module in its own file is checked by the file's name.
fn inline_module(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip_while(|word| *word != "mod").skip(1);
    let name = words.next()?;
    line.contains('{').then_some(name.trim_end_matches('{'))
}

/// Finds tests that never run. A test that another one runs, such as in a namespace, names it.
fn check_ignored_tests(path: &str, text: &str, scanned: &ScannedSource) -> Vec<LintFinding> {
    let lines = (1..).zip(text.lines().zip(scanned.code.lines()));
    lines
        .filter(|(_, (_, code))| code.contains("#[ignore"))
        .filter(|(_, (line, _))| {
            !running_test(line).is_some_and(|name| is_function(name, &scanned.code))
        })
        .map(|(number, _)| {
            let expected = "expected it to run, or `#[ignore = \"run by `other_test`\"]`";
            LintFinding::error(path, number, format!("an ignored test, {expected}"))
        })
        .collect()
}

/// Returns true if `code` has a function of this name.
fn is_function(name: &str, code: &str) -> bool {
    code.contains(&format!("fn {name}("))
}

/// Returns the test in `#[ignore = "run by `test`…"]`.
fn running_test(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("#[ignore = \"run by `")?;
    Some(rest.split_once('`')?.0)
}

fn check_comments(path: &str, scanned: &ScannedSource) -> Vec<LintFinding> {
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(scanned.comments.lines()) {
        for mark in UNFINISHED_COMMENTS.iter().filter(|mark| has_word(line, mark)) {
            let text = format!("`{mark}` left, expected it done or written down as an issue");
            findings.push(LintFinding::error(path, number, text));
        }
    }
    findings
}

fn check_size(path: &str, text: &str) -> Option<LintFinding> {
    if is_test(path) {
        return None;
    }
    let lines = lines_before_tests(text);
    let measured_size = format!("{lines} lines without tests");
    if lines > MAX_LINES {
        let text = format!("{measured_size}, expected at most {MAX_LINES}, better {WARN_LINES}");
        return Some(LintFinding::error(path, lines, text));
    }
    (lines > WARN_LINES).then(|| {
        LintFinding::warning(path, lines, format!("{measured_size}, expected {WARN_LINES}"))
    })
}

fn is_test(path: &str) -> bool {
    let mut parts = path.split('/');
    path.ends_with("/tests.rs") || parts.any(|part| matches!(part, "tests" | "benches"))
}

fn lines_before_tests(text: &str) -> usize {
    let lines: Vec<_> = text.lines().collect();
    let tests = lines.windows(2).position(|pair| match pair {
        [attribute, module] => *attribute == "#[cfg(test)]" && module.starts_with("mod tests"),
        _ => false,
    });
    tests.unwrap_or(lines.len())
}

fn check_crate_docs(path: &str, text: &str) -> Option<LintFinding> {
    if !path.starts_with("crates/") || !path.ends_with("/src/lib.rs") {
        return None;
    }
    let lines = text.lines().take_while(|line| line.starts_with("//!")).count();
    (lines > MAX_CRATE_DOC_LINES).then(|| {
        let text = format!("{lines} lines of crate documentation, expected at most 40");
        LintFinding::error(path, lines, text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::Severity;

    const PATH: &str = "crates/towpath-net/src/link.rs";

    fn finding_texts(path: &str, text: &str) -> Vec<String> {
        check(path, text).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_long_file_is_warned_about_and_a_very_long_one_is_an_error() {
        assert_eq!(check_size(PATH, &"a\n".repeat(600)), None);
        assert_eq!(check_size(PATH, &"a\n".repeat(601)).unwrap().severity, Severity::Warning);
        assert_eq!(check_size(PATH, &"a\n".repeat(1_000)).unwrap().severity, Severity::Warning);
        assert_eq!(check_size(PATH, &"a\n".repeat(1_001)).unwrap().severity, Severity::Error);
    }

    #[test]
    fn tests_do_not_count_as_length() {
        let tests = "#[cfg(test)]\nmod tests {\n".to_owned() + &"a\n".repeat(2_000);
        assert_eq!(check_size(PATH, &tests), None);
        assert_eq!(check_size("crates/x/tests/all.rs", &"a\n".repeat(2_000)), None);
        assert_eq!(check_size("crates/x/src/y/tests.rs", &"a\n".repeat(2_000)), None);
        // A helper for tests does not begin the tests.
        let helper_before_code = "#[cfg(test)]\nfn f() {}\n".to_owned() + &"a\n".repeat(2_000);
        assert!(check_size(PATH, &helper_before_code).is_some());
    }

    #[test]
    fn examples_are_allowed_only_where_they_are_run() {
        let example = "/// ```\n/// f();\n/// ```\nfn f() {}\n";
        assert_eq!(finding_texts(PATH, example).len(), 1);
        assert!(finding_texts("crates/towpath-mptcp/src/stack.rs", example).is_empty());
        assert!(finding_texts(PATH, "/// ```text\n/// a - b\n/// ```\nfn f() {}\n").is_empty());
    }

    #[test]
    fn unsafe_code_stays_in_its_crate() {
        let text = "fn f() { unsafe { g() } }\n";
        let expected = "`unsafe` here, expected it in crates/towpath-os/ only";
        assert_eq!(finding_texts(PATH, text), [format!("{PATH}:1: {expected}")]);
        assert!(finding_texts("crates/towpath-os/src/sys.rs", text).is_empty());
        assert!(finding_texts(PATH, "//! The only `unsafe`.\n#![deny(unsafe_code)]\n").is_empty());
    }

    #[test]
    fn unfinished_code_is_found() {
        for mark in ["todo!()", "unimplemented!()", "dbg!(x)", "// FIXME: x", "// XXX"] {
            assert_eq!(finding_texts(PATH, &format!("\n{mark}\n")).len(), 1, "{mark}");
        }
    }

    #[test]
    fn mentions_of_unfinished_code_are_not_reported() {
        let text = "// A todo!( or dbg!( is an error.\nlet s = \"#[ignore] todo!( FIXME XXX\";\n";
        assert!(finding_texts(PATH, text).is_empty());
        assert!(finding_texts(PATH, "// XXXL is a size\n").is_empty());
    }

    #[test]
    fn a_test_may_be_ignored_only_if_another_one_runs_it() {
        let ignored = "#[ignore = \"run by `outer`, as another user\"]\nfn inner() {}\n";
        assert_eq!(finding_texts(PATH, ignored).len(), 1);
        assert!(finding_texts(PATH, &format!("fn outer() {{}}\n{ignored}")).is_empty());
        assert_eq!(finding_texts(PATH, "#[ignore]\n#[ignore = \"slow\"]\n").len(), 2);
    }

    #[test]
    fn a_lint_is_expected_with_a_reason_and_never_allowed() {
        assert_eq!(finding_texts(PATH, "#[allow(clippy::too_many_lines)]\n").len(), 1);
        assert_eq!(finding_texts(PATH, "#![allow(dead_code)]\n").len(), 1);
        assert!(
            finding_texts(PATH, "#[expect(clippy::too_many_lines, reason = \"a table\")]\n")
                .is_empty()
        );
    }

    #[test]
    fn inline_modules_must_be_named_after_what_they_do() {
        assert_eq!(finding_texts(PATH, "pub(crate) mod helpers {\n}\n").len(), 1);
        assert!(
            finding_texts(PATH, "mod tests {\n}\nmod path_manager {}\nmod utils;\n").is_empty()
        );
    }

    #[test]
    fn crate_documentation_is_a_map_and_not_a_manual() {
        let path = "crates/towpath-net/src/lib.rs";
        assert!(finding_texts(path, &"//! a\n".repeat(40)).is_empty());
        assert_eq!(finding_texts(path, &"//! a\n".repeat(41)).len(), 1);
        assert!(finding_texts(PATH, &"//! a\n".repeat(41)).is_empty());
    }
}
