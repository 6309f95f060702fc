use std::fs;

use towpath_result::device::{ConsentText, JoinReply};

use super::*;
use crate::upload::fixtures::{TestFolder, TestServer, response};

const NOW_US: u64 = 1_790_000_000_000_000;

/// Returns a collector with one consent text, which accepts every device and deletes its runs. The
/// deletion leaves this number of objects.
fn collector(remaining_objects: u64) -> TestServer {
    TestServer::start(move |_, request| match request.target.as_str() {
        "GET /api/v1/consent" => json(&ConsentText { version: 2, text: "We store.".to_owned() }),
        "POST /api/v1/devices" => json(&JoinReply {
            name: "phone".to_owned(),
            token: "towpath_secret".to_owned(),
            campaign_key: None,
        }),
        "DELETE /api/v1/device" => {
            json(&ForgetReply { runs: 12, bytes: 3_100_000, remaining_runs: 0, remaining_objects })
        }
        other => response("404 Not Found", "", other),
    })
}

fn json(content: &impl serde::Serialize) -> Vec<u8> {
    response("200 OK", "", &serde_json::to_string(content).unwrap())
}

fn file(folder: &TestFolder) -> DeviceFile {
    DeviceFile::find(Some(&folder.path("state").join("agent.toml"))).unwrap()
}

/// Joins with an answer at a terminal, or with `--accept`.
fn join_with(
    url: &str,
    file: &DeviceFile,
    answer: Option<&str>,
    accept: Option<u32>,
) -> Result<ExitCode, CliError> {
    let code = "7K3M-9QPX-VB2D".to_owned();
    let arguments = JoinArguments { url: url.to_owned(), code, ca: None, accept };
    let mut answer = answer.map(str::as_bytes);
    let terminal = answer.as_mut().map(|answer| answer as &mut dyn BufRead);
    join(&arguments, file, (terminal, NOW_US), &mut Ui::from_environment())
}

fn targets(server: &TestServer) -> Vec<String> {
    server.requests().into_iter().map(|request| request.target).collect()
}

#[test]
fn nothing_is_sent_before_the_text_is_accepted() {
    let folder = TestFolder::new("agent-decline");
    let (server, file) = (collector(0), file(&folder));
    assert_eq!(join_with(&server.url, &file, Some("no\n"), None).unwrap(), ExitCode::from(1));
    assert!(join_with(&server.url, &file, None, None).is_err());
    assert!(join_with(&server.url, &file, None, Some(1)).is_err());
    assert_eq!(targets(&server), ["GET /api/v1/consent"; 3]);
    for request in server.requests() {
        assert_eq!(request.header("authorization"), None);
        assert!(request.body.is_empty());
    }
    assert!(!folder.path("state").exists());
}

#[test]
fn a_device_that_joins_stores_the_text_that_its_owner_has_accepted() {
    let folder = TestFolder::new("agent-join");
    let (server, file) = (collector(0), file(&folder));
    assert_eq!(join_with(&server.url, &file, Some("yes\n"), None).unwrap(), ExitCode::SUCCESS);
    let request: JoinRequest = serde_json::from_slice(&server.requests()[1].body).unwrap();
    assert_eq!((request.code.as_str(), request.consent), ("7K3M-9QPX-VB2D", 2));
    let device = file.load_joined().unwrap();
    assert_eq!((device.name.as_str(), device.token.expose()), ("phone", "towpath_secret"));
    assert_eq!(device.collector.as_str(), server.url);
    let text = ConsentText { version: 2, text: "We store.".to_owned() };
    assert_eq!(device.consent, AcceptedConsent::new(&text, NOW_US));
    let error = join_with(&server.url, &file, None, Some(2)).unwrap_err();
    assert!(error.hint().is_some_and(|hint| hint.contains("agent forget")), "{error}");
    assert_eq!(server.requests().len(), 2, "a second device asks for nothing");
}

#[test]
#[cfg(target_os = "linux")]
fn a_code_is_not_used_up_if_the_state_cannot_be_stored() {
    let folder = TestFolder::new("agent-full");
    let server = collector(0);
    fs::write(folder.path("state"), "a file").unwrap();
    assert!(join_with(&server.url, &file(&folder), None, Some(2)).is_err());
    assert!(!targets(&server).contains(&"POST /api/v1/devices".to_owned()));
}

#[test]
fn wrong_addresses_and_codes_are_refused_before_any_request() {
    let folder = TestFolder::new("agent-typo");
    let error = join_with("example.org", &file(&folder), None, Some(1)).unwrap_err();
    assert!(error.hint().is_some_and(|hint| !hint.contains("--to")), "{error}");
    assert_eq!(code(" 7k3m-9qpx ").unwrap(), "7k3m-9qpx");
    for typed in ["", " ", "two words", "a\nb", "\u{1b}[2J", &"x".repeat(65)] {
        assert!(code(typed).is_err(), "{typed}");
    }
}

fn forget_with(
    file: &DeviceFile,
    answer: Option<&str>,
    (yes, local): (bool, bool),
) -> Result<ExitCode, CliError> {
    let mut answer = answer.map(str::as_bytes);
    let terminal = answer.as_mut().map(|answer| answer as &mut dyn BufRead);
    let spool = Some(file.path().with_file_name("spool"));
    let arguments = ForgetArguments { yes, local, spool };
    forget(&arguments, file, terminal, &mut Ui::from_environment())
}

#[test]
fn a_device_is_forgotten_once_its_owner_confirms_and_nothing_remains() {
    let folder = TestFolder::new("agent-forget");
    let (server, file) = (collector(0), file(&folder));
    join_with(&server.url, &file, None, Some(2)).unwrap();
    assert!(forget_with(&file, None, (false, false)).is_err());
    assert_eq!(forget_with(&file, Some("y\n"), (false, false)).unwrap(), ExitCode::from(1));
    assert_eq!(server.requests().len(), 2);
    assert_eq!(forget_with(&file, Some("yes\n"), (false, false)).unwrap(), ExitCode::SUCCESS);
    let request = server.requests().remove(2);
    assert_eq!(request.header("authorization"), Some("Bearer towpath_secret"));
    assert_eq!(file.load().unwrap(), None);
}

#[test]
fn the_state_stays_while_the_collector_still_has_something() {
    let folder = TestFolder::new("agent-remains");
    let (server, file) = (collector(1), file(&folder));
    join_with(&server.url, &file, None, Some(2)).unwrap();
    assert_eq!(forget_with(&file, None, (true, false)).unwrap(), ExitCode::from(1));
    assert!(file.load().unwrap().is_some());
}

#[test]
fn an_unknown_device_is_removed_only_locally_and_a_damaged_state_as_well() {
    let folder = TestFolder::new("agent-unknown");
    let (server, file) = (collector(0), file(&folder));
    join_with(&server.url, &file, None, Some(2)).unwrap();
    let refusing = TestServer::start(|_, _| response("401 A", "", "{\"error\":\"no\"}"));
    let mut device = file.load_joined().unwrap();
    device.collector = CollectorUrl::parse(&refusing.url).unwrap();
    file.store(&device).unwrap();
    let error = forget_with(&file, None, (true, false)).unwrap_err();
    assert!(error.to_string().contains("was revoked"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("forget --local")), "{error}");
    fs::write(file.path(), "damaged").unwrap();
    assert_eq!(forget_with(&file, Some("no\n"), (false, true)).unwrap(), ExitCode::from(1));
    assert!(file.path().exists());
    assert_eq!(forget_with(&file, Some("yes\n"), (false, true)).unwrap(), ExitCode::SUCCESS);
    assert!(!file.path().exists());
    assert_eq!(forget_with(&file, None, (true, true)).unwrap(), ExitCode::SUCCESS);
}
