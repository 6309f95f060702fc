//! Files on systems other than Linux, by the standard library.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use super::{MAX_TEMP_FILES, ReadAccess, UnsafePath};

/// Folder for files.
#[derive(Debug)]
pub struct Dir {
    path: PathBuf,
}

impl Dir {
    /// Opens the folder at `path`; makes it and its parents if they are missing.
    pub fn make(path: &Path) -> io::Result<Self> {
        fs::create_dir_all(path)?;
        Self::open(path)
    }

    /// Opens the folder at `path`, which must exist.
    pub fn open(path: &Path) -> io::Result<Self> {
        if !fs::metadata(path)?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Self { path: path.to_owned() })
    }

    /// Opens or makes a folder among the user's own files.
    pub fn private(path: &Path, _readers: ReadAccess) -> io::Result<Self> {
        Self::make(path)
    }

    /// Opens a folder among the user's own files, which must exist.
    pub fn existing_private(path: &Path) -> io::Result<Self> {
        Self::open(path)
    }

    /// Returns the path as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a folder in this one, named with the next free number.
    pub fn numbered(&self) -> io::Result<Self> {
        for number in 1..100_000 {
            let path = self.path.join(format!("{number:03}"));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Makes a new, readable file that has its name at once. Replaces any file of this name.
    pub fn create(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        self.create_temp(name, ReadAccess::Umask)?.persist()
    }

    /// Makes a new file that gets its name when it is complete.
    pub fn create_temp(
        &self,
        name: impl AsRef<OsStr>,
        _readers: ReadAccess,
    ) -> io::Result<TempFile<'_>> {
        let name = name.as_ref();
        for number in 0..MAX_TEMP_FILES {
            let mut temp_name = OsString::from(".");
            temp_name.push(name);
            temp_name.push(format!(".{}-{number}.part", std::process::id()));
            let temp_path = self.path.join(temp_name);
            let mut options = OpenOptions::new();
            match options.read(true).write(true).create_new(true).open(&temp_path) {
                Ok(file) => {
                    let path = self.path.join(name);
                    return Ok(TempFile { _folder: self, path, temp_path: Some(temp_path), file });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Writes `bytes` as a whole file, or leaves the old file unchanged.
    pub fn write(&self, name: impl AsRef<OsStr>, bytes: &[u8]) -> io::Result<()> {
        let mut file = self.create_temp(name, ReadAccess::Umask)?;
        file.file().write_all(bytes)?;
        file.persist().map(drop)
    }

    /// Reads a whole file. Refuses files longer than `max_bytes` bytes.
    pub fn read_private(&self, name: impl AsRef<OsStr>, max_bytes: u64) -> io::Result<Vec<u8>> {
        let path = self.path.join(name.as_ref());
        let mut bytes = Vec::new();
        File::open(&path)?.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > max_bytes {
            return Err(UnsafePath::Length { path, max_bytes }.into());
        }
        Ok(bytes)
    }

    /// Removes a file; a missing one is not an error.
    pub fn remove(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        match fs::remove_file(self.path.join(name.as_ref())) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// File under a temporary name, removed on drop unless it is persisted.
#[derive(Debug)]
pub struct TempFile<'a> {
    _folder: &'a Dir,
    path: PathBuf,
    /// Temporary path; `None` once the file has its final name.
    temp_path: Option<PathBuf>,
    file: File,
}

impl TempFile<'_> {
    /// Returns the open file, for writing.
    pub const fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Renames the file to its final name, replacing any file of that name.
    pub fn persist(mut self) -> io::Result<File> {
        let file = self.file.try_clone()?;
        if let Some(temp_path) = &self.temp_path {
            fs::rename(temp_path, &self.path)?;
            self.temp_path = None;
        }
        Ok(file)
    }
}

impl Drop for TempFile<'_> {
    fn drop(&mut self) {
        if let Some(temp_path) = &self.temp_path {
            let _ = fs::remove_file(temp_path); // best effort
        }
    }
}

/// Output file that the user named.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
}

impl OutputFile {
    /// Checks that `path` can name a file; makes no file.
    pub fn find(path: &Path) -> io::Result<Self> {
        if path.is_dir() || path.file_name().is_none() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        Ok(Self { path: path.to_owned() })
    }

    /// Makes an empty file that has its name at once, and opens it for writing.
    pub fn create(self) -> io::Result<File> {
        File::create(self.path)
    }

    /// Writes `bytes` as a whole file, or leaves the old file unchanged.
    pub fn write(self, bytes: &[u8]) -> io::Result<()> {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = Dir::open(parent.unwrap_or(Path::new(".")))?;
        folder.write(self.path.file_name().unwrap_or_default(), bytes)
    }
}

/// Accepts every secret file: other systems protect a user's own files.
pub fn check_secret(path: &Path) -> io::Result<()> {
    fs::metadata(path).map(drop)
}

/// Returns 0: other systems have a folder of temporary files for each user.
pub const fn user_id() -> u32 {
    0
}
