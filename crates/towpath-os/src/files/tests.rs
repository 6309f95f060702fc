#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};
use std::path::{Path, PathBuf};

use super::dir::user_id;
use super::*;

/// Temporary folder, removed at the end of the test.
struct TestDir(PathBuf);

impl TestDir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("towpath-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap()
    }

    fn mode(&self, name: &str) -> u32 {
        fs::metadata(self.0.join(name)).unwrap().permissions().mode() & 0o7777
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // best effort
    }
}

fn refusal(error: &io::Error) -> &UnsafePath {
    UnsafePath::of(error).unwrap_or_else(|| panic!("{error:?}"))
}

#[test]
fn our_own_file_names_replace_symlinks_without_following_them() {
    let dir = TestDir::new("files-link");
    fs::write(dir.0.join("victim"), "precious").unwrap();
    for name in ["report.html", "tcp-1.jsonl"] {
        symlink(dir.0.join("victim"), dir.0.join(name)).unwrap();
    }
    let folder = Dir::make(&dir.0).unwrap();
    folder.write("report.html", b"page").unwrap();
    folder.create("tcp-1.jsonl").unwrap().write_all(b"line").unwrap();
    assert_eq!(dir.read("victim"), "precious");
    assert_eq!((dir.read("report.html"), dir.read("tcp-1.jsonl")), ("page".into(), "line".into()));
    assert!(!dir.0.join("report.html").is_symlink());
    // A dangling link must not cause a file at its target.
    symlink(dir.0.join("nothing"), dir.0.join("dangling")).unwrap();
    folder.write("dangling", b"page").unwrap();
    assert_eq!(dir.names(), ["dangling", "report.html", "tcp-1.jsonl", "victim"]);
}

#[test]
fn a_file_is_written_atomically() {
    let dir = TestDir::new("files-whole");
    let folder = Dir::open(&dir.0).unwrap();
    folder.write("a", b"old").unwrap();
    let mut unfinished = folder.create_temp("a", ReadAccess::Umask).unwrap();
    unfinished.file().write_all(b"ne").unwrap();
    assert_eq!(dir.read("a"), "old");
    drop(unfinished);
    assert_eq!((dir.names(), dir.read("a")), (vec!["a".to_owned()], "old".into()));
}

#[test]
fn a_user_may_name_an_own_symlink_a_pipe_or_an_open_file() {
    let dir = TestDir::new("files-named");
    fs::write(dir.0.join("real"), "long and old").unwrap();
    fs::set_permissions(dir.0.join("real"), Permissions::from_mode(0o640)).unwrap();
    symlink("real", dir.0.join("link")).unwrap();
    OutputFile::find(&dir.0.join("link")).unwrap().write(b"new").unwrap();
    assert_eq!((dir.read("real"), dir.mode("real")), ("new".into(), 0o640));
    assert!(dir.0.join("link").is_symlink());
    OutputFile::find(Path::new("/dev/null")).unwrap().write(b"not read").unwrap();
    let file = File::create(dir.0.join("open")).unwrap();
    let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    symlink(&name, dir.0.join("as-stdout")).unwrap();
    OutputFile::find(&dir.0.join("as-stdout")).unwrap().write(b"said").unwrap();
    assert_eq!(dir.read("open"), "said");
    let folder = OutputFile::find(&dir.0).unwrap_err();
    assert_eq!(folder.raw_os_error(), Some(libc::EISDIR));
}

#[test]
fn a_directory_in_a_shared_location_is_private_or_refused() {
    let dir = TestDir::new("files-shared");
    let path = |name: &str| dir.0.join(name);
    let private = Dir::private(&path("new"), ReadAccess::OwnerOnly).unwrap();
    assert_eq!((private.path(), dir.mode("new")), (path("new").as_path(), 0o700));
    assert!(Dir::private(&path("new"), ReadAccess::OwnerOnly).is_ok(), "an earlier one of ours");
    fs::create_dir(path("open")).unwrap();
    fs::set_permissions(path("open"), Permissions::from_mode(0o777)).unwrap();
    let open = Dir::private(&path("open"), ReadAccess::OwnerOnly).unwrap_err();
    assert_eq!(refusal(&open), &UnsafePath::Mode { path: path("open"), mode: 0o777 });
    symlink(path("new"), path("link")).unwrap();
    let link = Dir::private(&path("link"), ReadAccess::OwnerOnly).unwrap_err();
    assert_eq!(refusal(&link), &UnsafePath::AnyLink { path: path("link") });
    // A user with write access to the parent could replace the folder.
    let below = Dir::private(&path("open/below"), ReadAccess::OwnerOnly).unwrap_err();
    assert_eq!(refusal(&below), &UnsafePath::Mode { path: path("open"), mode: 0o777 });
    fs::set_permissions(path("open"), Permissions::from_mode(0o1777)).unwrap();
    assert!(Dir::private(&path("open/below"), ReadAccess::OwnerOnly).is_ok(), "as in /tmp");
}

#[test]
fn a_private_file_is_a_regular_file_writable_only_by_its_owner() {
    let dir = TestDir::new("files-private");
    let folder = Dir::private(&dir.0, ReadAccess::OwnerOnly).unwrap();
    folder.write_durably("state", b"kept", ReadAccess::OwnerOnly).unwrap();
    assert_eq!(
        (folder.read_private("state", 4).unwrap(), dir.mode("state")),
        (b"kept".into(), 0o600)
    );
    let long = folder.read_private("state", 3).unwrap_err();
    assert!(matches!(refusal(&long), UnsafePath::Length { max_bytes: 3, .. }));
    symlink("state", dir.0.join("link")).unwrap();
    let link = folder.read_private("link", 4).unwrap_err();
    assert!(matches!(refusal(&link), UnsafePath::AnyLink { .. }));
    fs::set_permissions(dir.0.join("state"), Permissions::from_mode(0o666)).unwrap();
    let open = folder.read_private("state", 4).unwrap_err();
    assert!(matches!(refusal(&open), UnsafePath::Mode { mode: 0o666, .. }));
    assert!(matches!(
        refusal(&check_secret(&dir.0.join("state")).unwrap_err()),
        UnsafePath::Mode { .. }
    ));
    let folder = folder.read_private(".", 4).unwrap_err();
    assert!(matches!(refusal(&folder), UnsafePath::Kind { .. }));
}

/// Other users' links and folders, which only root can prepare.
#[test]
fn files_of_another_user_are_neither_followed_nor_used() {
    if user_id() != 0 {
        return;
    }
    let dir = TestDir::new("files-owner");
    let path = |name: &str| dir.0.join(name);
    fs::create_dir(path("theirs")).unwrap();
    fs::write(path("victim"), "precious").unwrap();
    symlink("victim", path("out.html")).unwrap();
    symlink("theirs", path("folder")).unwrap();
    for name in ["theirs", "out.html", "folder"] {
        match lchown(path(name), Some(4_711), Some(4_711)) {
            // Root of a user namespace that does not map this user.
            Err(error) if error.kind() == ErrorKind::InvalidInput => return,
            result => result.unwrap(),
        }
    }
    let link = OutputFile::find(&path("out.html")).unwrap_err();
    assert_eq!(refusal(&link), &UnsafePath::Link { path: path("out.html"), owner: 4_711 });
    let through = Dir::make(&path("folder")).unwrap_err();
    assert_eq!(refusal(&through), &UnsafePath::Link { path: path("folder"), owner: 4_711 });
    let owner = Dir::private(&path("theirs"), ReadAccess::OwnerOnly).unwrap_err();
    assert_eq!(refusal(&owner), &UnsafePath::Owner { path: path("theirs"), owner: 4_711 });
    assert_eq!(dir.read("victim"), "precious");
}
