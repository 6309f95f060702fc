//! The scripts of the repository.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::parse::{ScriptParseError, parse};
use crate::script::Script;

/// Where they are.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../specs/scripts")
}

/// Why there are none.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// A folder or file cannot be read.
    #[error("cannot read `{path}`: {source}")]
    Io {
        /// Which.
        path: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A script makes no sense.
    #[error("`{name}`, {source}")]
    Parse {
        /// Which.
        name: String,
        /// Where and why.
        source: ScriptParseError,
    },
}

/// All scripts, in order of their names.
pub fn all() -> Result<Vec<Script>, LibraryError> {
    let mut scripts = Vec::new();
    for kind in ["mptcp", "tcp"] {
        let path = folder().join(kind);
        let failed = |path: &Path| {
            let path = path.display().to_string();
            move |source| LibraryError::Io { path, source }
        };
        let mut files = Vec::new();
        for entry in fs::read_dir(&path).map_err(failed(&path))? {
            files.push(entry.map_err(failed(&path))?.path());
        }
        files.sort();
        for file in files {
            let Some(stem) = file.file_stem().and_then(|stem| stem.to_str()) else { continue };
            let name = format!("{kind}/{stem}");
            let text = fs::read_to_string(&file).map_err(failed(&file))?;
            let script = parse(&name, &text);
            scripts.push(script.map_err(|source| LibraryError::Parse { name, source })?);
        }
    }
    Ok(scripts)
}
