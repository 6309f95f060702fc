//! Embeds every file of `reproductions/` into the library, so that the program needs none of them.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

fn main() -> std::io::Result<()> {
    let env_path = |name| PathBuf::from(std::env::var_os(name).unwrap_or_default());
    let folder = env_path("CARGO_MANIFEST_DIR").join("../../reproductions");
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut files = Vec::new();
    collect_files(&folder, "", &mut files)?;
    files.sort();
    let mut text = "&[".to_owned();
    for (name, path) in files {
        let path = path.canonicalize()?.display().to_string();
        // Writing to a `String` cannot fail.
        let _ = write!(text, "({name:?}, include_str!({path:?})),");
    }
    text.push(']');
    fs::write(env_path("OUT_DIR").join("reproductions.rs"), text)
}

/// Collects the files below a folder, by name relative to it; a missing folder yields no files.
fn collect_files(
    folder: &Path,
    prefix: &str,
    files: &mut Vec<(String, PathBuf)>,
) -> std::io::Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        // Editors leave temporary files behind.
        if name.starts_with('.') || name.ends_with('~') {
            continue;
        }
        let name = format!("{prefix}{name}");
        if path.is_dir() {
            println!("cargo::rerun-if-changed={}", path.display());
            collect_files(&path, &format!("{name}/"), files)?;
        } else {
            files.push((name, path));
        }
    }
    Ok(())
}
