//! The scripts of the repository.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::parse::{ScriptParseError, parse};
use crate::script::Script;

/// Returns the folder of the scripts in this repository.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../specs/scripts")
}

/// Reason why the scripts cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// A folder or file cannot be read.
    #[error("cannot read `{path}`: {source}")]
    Io {
        /// Path of the folder or file.
        path: String,
        /// Error returned by the system.
        source: io::Error,
    },
    /// A script has a syntax error.
    #[error("`{name}`, {source}")]
    Parse {
        /// Name of the script.
        name: String,
        /// Line and text of the error.
        source: ScriptParseError,
    },
}

/// Loads all scripts, sorted by name.
pub fn all() -> Result<Vec<Script>, LibraryError> {
    let mut scripts = Vec::new();
    for kind in ["mptcp", "tcp"] {
        let path = folder().join(kind);
        let io_error = |path: &Path| {
            let path = path.display().to_string();
            move |source| LibraryError::Io { path, source }
        };
        let mut files = Vec::new();
        for entry in fs::read_dir(&path).map_err(io_error(&path))? {
            files.push(entry.map_err(io_error(&path))?.path());
        }
        files.sort();
        for file in files {
            let Some(stem) = file.file_stem().and_then(|stem| stem.to_str()) else { continue };
            let name = format!("{kind}/{stem}");
            let text = fs::read_to_string(&file).map_err(io_error(&file))?;
            let script = parse(&name, &text);
            scripts.push(script.map_err(|source| LibraryError::Parse { name, source })?);
        }
    }
    Ok(scripts)
}
