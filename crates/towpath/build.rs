//! Sets `VERSION_WITH_COMMIT`, the program's version. It includes the commit if the source is a
//! checkout or a package that cargo made of one.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let crate_dir = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap_or_default());
    let commit = package_commit(&crate_dir).or_else(|| checkout_commit(&crate_dir));
    let commit = commit
        .filter(|commit| commit.len() >= 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let text = match commit.as_deref().and_then(|commit| commit.get(..12)) {
        Some(short) => format!("{version} (commit {short})"),
        None => version,
    };
    println!("cargo::rustc-env=VERSION_WITH_COMMIT={text}");
}

/// Returns the commit that `cargo package` recorded in the package.
fn package_commit(crate_dir: &Path) -> Option<String> {
    let text = fs::read_to_string(crate_dir.join(".cargo_vcs_info.json")).ok()?;
    let (_, after_key) = text.split_once("\"sha1\"")?;
    after_key.split('"').nth(1).map(str::to_owned)
}

/// Returns the commit of the workspace's own checkout, not that of a repository around it.
fn checkout_commit(crate_dir: &Path) -> Option<String> {
    let dot_git = crate_dir.parent()?.parent()?.join(".git");
    // In a worktree, `.git` is a file with the path of the git folder.
    let git_dir = match fs::read_to_string(&dot_git) {
        Ok(text) => dot_git.parent()?.join(text.strip_prefix("gitdir:")?.trim()),
        Err(_) => dot_git,
    };
    let common_dir = match fs::read_to_string(git_dir.join("commondir")) {
        Ok(text) => git_dir.join(text.trim()),
        Err(_) => git_dir.clone(),
    };
    let head = read_and_watch(&git_dir.join("HEAD"))?;
    let Some(reference) = head.trim().strip_prefix("ref:") else {
        return Some(head.trim().to_owned());
    };
    let reference = reference.trim();
    if let Some(commit) = read_and_watch(&common_dir.join(reference)) {
        return Some(commit.trim().to_owned());
    }
    // The branch has no file yet, but the next commit creates one.
    println!("cargo::rerun-if-changed={}", common_dir.join("refs/heads").display());
    let packed = read_and_watch(&common_dir.join("packed-refs"))?;
    let line = packed.lines().find(|line| line.ends_with(&format!(" {reference}")))?;
    line.split(' ').next().map(str::to_owned)
}

/// Returns a file's text, and lets cargo run this script again when the file changes.
fn read_and_watch(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    println!("cargo::rerun-if-changed={}", path.display());
    Some(text)
}
