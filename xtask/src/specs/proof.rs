//! Existence checks for the tests that a ledger names.

use super::scripts;
use crate::repository::Repository;

/// Finds `PATH::TEST` or a script, all of which run; returns the problem otherwise.
pub(super) fn find(repository: &Repository, test: &str) -> Result<(), &'static str> {
    if test.starts_with(scripts::SCRIPT_DIR) && test.ends_with(scripts::SCRIPT_SUFFIX) {
        return repository.text(test).map(drop).ok_or("no such file");
    }
    let (path, name) = test.rsplit_once("::").ok_or("expected `PATH::TEST`")?;
    let code = repository.text(path).ok_or("no such file")?;
    let mut problem = "no test of this name in the file";
    for (number, line) in code.lines().enumerate() {
        if !declares(line, name) {
            continue;
        }
        let attribute_lines: Vec<&str> = attributes(code, number);
        if !attribute_lines.iter().any(|line| line.contains("#[test]")) {
            problem = "the function is not a test, expected `#[test]`";
        } else if attribute_lines.iter().any(|line| line.contains("#[ignore")) {
            problem = "the test is ignored, expected one that runs";
        } else {
            return Ok(());
        }
    }
    Err(problem)
}

/// Returns true if a line begins the function; inside `proptest!` it looks the same.
fn declares(line: &str, name: &str) -> bool {
    let after_name = line.trim_start().strip_prefix("fn ").and_then(|rest| rest.strip_prefix(name));
    after_name.is_some_and(|rest| rest.starts_with('('))
}

/// Returns the lines between the previous item and line `number`: comments and attributes.
fn attributes(code: &str, number: usize) -> Vec<&str> {
    let mut lines: Vec<_> = code.lines().take(number).map(str::trim).collect();
    let ends_item = |line: &&str| !line.starts_with("//") && line.ends_with(['{', '}', ';']);
    let first_attribute = lines.iter().rposition(ends_item).map_or(0, |item_end| item_end + 1);
    lines.drain(..first_attribute);
    lines.retain(|line| !line.starts_with("//"));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "\
#[test]
fn first() {}

fn helper() {}

/// Says; more.
#[test]
#[expect(
    clippy::unwrap_used,
    reason = \"x\"
)]
fn decorated() { helper(); }

proptest! {
    #[test]
    fn property(a: u8) {
        assert!(a < 3);
    }

    #[test]
    #[ignore = \"slow\"]
    fn ignored() {}

    // #[test]
    fn was_one() {}
}
";

    fn fault(test: &str) -> Option<&'static str> {
        find(&Repository::of(&[("crates/x/src/lib.rs", CODE)]), test).err()
    }

    #[test]
    fn tests_and_properties_are_found() {
        for name in ["first", "decorated", "property"] {
            assert_eq!(fault(&format!("crates/x/src/lib.rs::{name}")), None, "{name}");
        }
    }

    #[test]
    fn a_script_is_a_test() {
        let path = "specs/scripts/tcp/x.script";
        let repository = Repository::of(&[(path, "title: x")]);
        assert_eq!(find(&repository, path), Ok(()));
        assert_eq!(find(&repository, "specs/scripts/tcp/y.script"), Err("no such file"));
    }

    #[test]
    fn functions_that_do_not_run_as_tests_prove_nothing() {
        for (test, expected) in [
            ("first", "PATH::TEST"),
            ("crates/x/src/gone.rs::first", "no such file"),
            ("crates/x/src/lib.rs::firs", "no test of this name"),
            ("crates/x/src/lib.rs::helper", "expected `#[test]`"),
            ("crates/x/src/lib.rs::was_one", "expected `#[test]`"),
            ("crates/x/src/lib.rs::ignored", "ignored"),
        ] {
            let problem = fault(test).unwrap();
            assert!(problem.contains(expected), "{test}: {problem}");
        }
    }
}
