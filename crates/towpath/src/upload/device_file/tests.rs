use std::fs;

use proptest::prelude::*;

use super::*;
use crate::upload::fixtures::TestFolder;

fn device(name: &str, ca: Option<&str>) -> JoinedDevice {
    JoinedDevice {
        collector: CollectorUrl::parse("https://example.org/study").unwrap(),
        name: name.to_owned(),
        token: Token::parse("towpath_secret").unwrap(),
        ca: ca.map(PathBuf::from),
        consent: AcceptedConsent {
            version: 2,
            sha256: "0123456789abcdef".repeat(4),
            accepted_us: 1_790_000_000_000_000,
        },
        campaign_key: None,
        limits: OwnerLimits::default(),
    }
}

fn file(folder: &TestFolder) -> DeviceFile {
    DeviceFile::find(Some(&folder.path("state").join("agent.toml"))).unwrap()
}

#[cfg(unix)]
fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

proptest! {
    #[test]
    fn a_device_survives_a_round_trip(name: String, ca: Option<String>) {
        let stored = device(&name, ca.as_deref());
        prop_assert_eq!(JoinedDevice::parse(&stored.to_toml()), Ok(stored));
    }
}

#[test]
fn a_stored_device_is_read_again_and_removed() {
    let folder = TestFolder::new("agent-state");
    let file = file(&folder);
    assert_eq!(file.load().unwrap(), None);
    file.verify_writable().unwrap();
    assert_eq!(file.load().unwrap(), None, "the check stores nothing");
    let first = device("phone", Some("/etc/ca \"x\".pem"));
    file.store(&first).unwrap();
    assert_eq!(file.load().unwrap(), Some(first));
    let second = device("tablet", None);
    file.store(&second).unwrap();
    assert_eq!(file.load_joined().unwrap(), second);
    assert_eq!(fs::read_dir(folder.path("state")).unwrap().count(), 1, "no unfinished file");
    file.remove().unwrap();
    let error = file.load_joined().unwrap_err();
    assert!(error.hint().is_some_and(|hint| hint.contains("agent join URL CODE")), "{error}");
}

#[test]
#[cfg(target_os = "linux")]
fn the_file_and_its_folder_are_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = TestFolder::new("agent-modes");
    let file = file(&folder);
    file.store(&device("phone", None)).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder.path("state")), 0o700);
    assert_eq!(mode(file.path()), 0o600);
    // The user's own folder keeps its mode.
    set_mode(&folder.path("state"), 0o755);
    file.store(&device("phone", None)).unwrap();
    assert_eq!(mode(&folder.path("state")), 0o755);
}

#[test]
#[cfg(target_os = "linux")]
fn a_file_that_other_users_can_access_is_refused_with_a_command() {
    let folder = TestFolder::new("agent-shared");
    let file = file(&folder);
    file.store(&device("phone", None)).unwrap();
    for mode in [0o604, 0o640, 0o666, 0o620, 0o644] {
        set_mode(file.path(), mode);
        let error = file.load().unwrap_err();
        let command = format!("chmod 600 {}", file.path().display());
        assert!(error.hint().is_some_and(|hint| hint.contains(&command)), "{error}");
        assert!(!format!("{error} {error:?}").contains("towpath_secret"), "{error:?}");
    }
    set_mode(file.path(), 0o600);
    assert!(file.load().unwrap().is_some());
    set_mode(&folder.path("state"), 0o777);
    assert!(file.load().unwrap_err().to_string().contains("other users can write"));
}

#[test]
#[cfg(target_os = "linux")]
fn a_link_is_not_a_state() {
    let folder = TestFolder::new("agent-link");
    let file = file(&folder);
    file.store(&device("phone", None)).unwrap();
    let moved = folder.path("moved.toml");
    fs::rename(file.path(), &moved).unwrap();
    std::os::unix::fs::symlink(&moved, file.path()).unwrap();
    assert!(file.load().unwrap_err().to_string().contains("is a symlink"));
}

#[test]
fn a_damaged_file_is_named_with_a_way_out_and_without_its_token() {
    let folder = TestFolder::new("agent-damaged");
    let file = file(&folder);
    let good = device("phone", None).to_toml();
    file.store(&device("phone", None)).unwrap();
    let replaced = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        good.replace(from, to).into_bytes()
    };
    for content in [
        Vec::new(),
        b"\xff\xfe".to_vec(),
        good.as_bytes()[..good.len() / 2].to_vec(),
        replaced("token = ", "tokens = "),
        replaced("token = \"towpath_secret\"", "token = \"towpath_secret"),
        replaced("token = \"towpath_secret\"", "token = towpath_secret"),
        replaced("\"towpath_secret\"", "\"two words\""),
        replaced("consent-version = 2", "consent-version = 0"),
        replaced("consent-version = 2", "consent-version = 4294967296"),
        replaced("consent-version = 2", "consent-version = \"2\""),
        replaced("0123456789abcdef", "x"),
        replaced("https://", "ftp://"),
    ] {
        fs::write(file.path(), &content).unwrap();
        let content = String::from_utf8_lossy(&content);
        let error = file.load().expect_err(&content);
        let text = error.to_string();
        let name = file.path().display().to_string();
        assert!(text.contains(&name) && text.contains("is damaged: "), "{content}: {text}");
        assert!(!text.contains("towpath_secret"), "{text}");
        assert!(error.hint().is_some_and(|hint| hint.contains("forget --local")), "{text}");
    }
    fs::write(file.path(), vec![b'#'; MAX_STATE_BYTES as usize + 1]).unwrap();
    assert!(file.load().is_err());
}

#[test]
fn a_file_without_a_name_is_refused() {
    for path in ["", "/", ".."] {
        let file = DeviceFile::find(Some(Path::new(path))).unwrap();
        let error = file.load().unwrap_err();
        assert!(error.hint().is_some_and(|hint| hint.contains("expects a file")), "{path}");
    }
}
