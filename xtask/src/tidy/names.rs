//! Names without information about their content.

use super::LintFinding;

/// Names that a file or module must not have, alone or as the suffix `something_…`.
const VAGUE_NAMES: [&str; 6] = ["util", "utils", "common", "helpers", "manager", "managers"];

/// Returns true for a name without information. A path manager is RFC 8684's term and therefore
/// allowed.
pub(super) fn is_vague(name: &str) -> bool {
    let last_word = name.rsplit(['_', '-']).next().unwrap_or(name);
    !matches!(name, "path_manager" | "path-manager") && VAGUE_NAMES.contains(&last_word)
}

/// Checks the names of a file and its folders.
pub(super) fn check(path: &str) -> Option<LintFinding> {
    // `tests/common/` is the only way in cargo to share code between integration tests.
    let checked_path = path.replacen("/tests/common/", "/tests/", 1);
    let name = checked_path.split('/').map(stem).find(|name| is_vague(name))?;
    Some(LintFinding::error(
        path,
        1,
        format!("called `{name}`, expected a name that says what it does"),
    ))
}

fn stem(name: &str) -> &str {
    name.split_once('.').map_or(name, |(stem, _)| stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_folders_must_be_named_after_what_they_do() {
        for path in ["crates/x/src/utils.rs", "crates/x-common/src/lib.rs", "src/link_manager/a.rs"]
        {
            let finding = check(path).unwrap();
            assert!(finding.text.contains("expected a name"), "{finding}");
        }
    }

    #[test]
    fn path_managers_and_shared_test_modules_keep_their_names() {
        for path in ["src/path_manager.rs", "src/path_manager/announce.rs", "src/utility.rs"] {
            assert_eq!(check(path), None);
        }
        assert_eq!(check("crates/x/tests/common/mod.rs"), None);
        assert!(check("crates/x/src/common/mod.rs").is_some());
    }
}
