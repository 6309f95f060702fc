//! Gives the command its version: with the commit, where it is built from a checkout or from a
//! package that cargo made of one.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap_or_default());
    let commit = package_commit(&here).or_else(|| checked_out(&here));
    let commit = commit
        .filter(|commit| commit.len() >= 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let text = match commit.as_deref().and_then(|commit| commit.get(..12)) {
        Some(short) => format!("{version} (commit {short})"),
        None => version,
    };
    println!("cargo::rustc-env=VERSION_WITH_COMMIT={text}");
}

/// A package says in a file of its own from which commit it was made.
fn package_commit(here: &Path) -> Option<String> {
    let text = fs::read_to_string(here.join(".cargo_vcs_info.json")).ok()?;
    let (_, after) = text.split_once("\"sha1\"")?;
    after.split('"').nth(1).map(str::to_owned)
}

/// The commit of the workspace's own checkout; a checkout around it is another program's.
fn checked_out(here: &Path) -> Option<String> {
    let dot_git = here.parent()?.parent()?.join(".git");
    // A worktree has a file that says where its own folder is.
    let own = match fs::read_to_string(&dot_git) {
        Ok(text) => dot_git.parent()?.join(text.strip_prefix("gitdir:")?.trim()),
        Err(_) => dot_git,
    };
    let shared = match fs::read_to_string(own.join("commondir")) {
        Ok(text) => own.join(text.trim()),
        Err(_) => own.clone(),
    };
    let head = watched(&own.join("HEAD"))?;
    let Some(reference) = head.trim().strip_prefix("ref:") else {
        return Some(head.trim().to_owned());
    };
    let reference = reference.trim();
    if let Some(commit) = watched(&shared.join(reference)) {
        return Some(commit.trim().to_owned());
    }
    // The next commit will make that file.
    println!("cargo::rerun-if-changed={}", shared.join("refs/heads").display());
    let packed = watched(&shared.join("packed-refs"))?;
    let line = packed.lines().find(|line| line.ends_with(&format!(" {reference}")))?;
    line.split(' ').next().map(str::to_owned)
}

/// A file's text. When it changes, this is run again.
fn watched(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    println!("cargo::rerun-if-changed={}", path.display());
    Some(text)
}
