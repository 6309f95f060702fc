//! The files of the repository.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

/// Names of folders without files of ours, in any place.
const SKIPPED_DIRS: [&str; 3] = [".git", "target", "node_modules"];

/// All files by path from the root, each with its text if a rule reads it.
#[derive(Debug, Default)]
pub(crate) struct Repository {
    files: BTreeMap<String, Option<String>>,
}

impl Repository {
    /// Reads the files that git would commit; without git, all files.
    pub(crate) fn read(root: &Path) -> io::Result<Self> {
        let paths = match tracked_files(root) {
            Some(paths) => paths,
            None => walk_files(root, "")?,
        };
        let mut files = BTreeMap::new();
        for path in paths {
            let full_path = root.join(&path);
            // Git still lists files that were deleted without a commit.
            if !full_path.is_file() {
                continue;
            }
            let text = if is_read(&path) { Some(fs::read_to_string(full_path)?) } else { None };
            files.insert(path, text);
        }
        Ok(Self { files })
    }

    /// Returns the number of files.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// Iterates over all paths in order.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Returns a file's text; `None` if it does not exist or no rule reads its kind.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.as_deref()
    }

    /// Returns true if a file or folder exists; the empty path is the root.
    pub(crate) fn contains(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        path.is_empty()
            || self.files.contains_key(path)
            || self.paths().any(|file| file.starts_with(&folder))
    }

    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let to_owned_entry =
            |(path, text): &(&str, &str)| (String::from(*path), Some(String::from(*text)));
        Self { files: files.iter().map(to_owned_entry).collect() }
    }
}

fn is_read(path: &str) -> bool {
    let extension = Path::new(path).extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("rs" | "md"))
        || path.ends_with("Cargo.toml")
        || path.starts_with("specs/")
}

/// Returns the files that git tracks, and new ones that it does not ignore.
fn tracked_files(root: &Path) -> Option<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .ok()?;
    let names = String::from_utf8(output.stdout).ok()?;
    let paths: Vec<_> = names.split_terminator('\0').map(String::from).collect();
    (output.status.success() && !paths.is_empty()).then_some(paths)
}

fn walk_files(root: &Path, folder: &str) -> io::Result<Vec<String>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        if !entry.file_type()?.is_dir() {
            paths.push(path);
        } else if !SKIPPED_DIRS.contains(&name.as_str()) {
            paths.extend(walk_files(root, &path)?);
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_count_as_there_but_prefixes_of_names_do_not() {
        let repository = Repository::of(&[("docs/guide/start.md", "")]);
        let existing = ["", "docs", "docs/guide", "docs/guide/start.md"];
        assert!(existing.iter().all(|path| repository.contains(path)));
        assert!(!repository.contains("docs/gui"));
    }

    #[test]
    fn without_git_the_walk_finds_this_file_and_skips_build_output() {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let paths = walk_files(package, "").unwrap();
        assert!(paths.contains(&"src/repository.rs".to_owned()));
        assert!(!paths.iter().any(|path| path.starts_with("target/")));
    }
}
