//! Safety of written files.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::{PLAN, RESULT, SMALL, ends, study, words};
use crate::program::{TestDir, is_root, names, skip, wait_for};
use crate::security::fixture::times;

/// User ID without an account.
const OTHER: Option<u32> = Some(4_711);

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// R5: "a key or secret that others may write, or everybody may read, is refused".
#[test]
fn a_secret_that_others_may_read_or_write_is_refused() {
    let folder = TestDir::new();
    // Not a sticky folder such as `/tmp`, which the kernel itself protects.
    fs::create_dir(folder.work().join("d")).unwrap();
    mode(&folder.work().join("d"), 0o755);
    let mut wrong = Vec::new();
    for bits in [0o604, 0o620, 0o602, 0o644, 0o666] {
        let name = format!("d/{bits:o}");
        folder.write(&name, "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0\n");
        mode(&folder.work().join(&name), bits);
        let running = folder.start(
            &mut folder.towpath(&words(&format!("server -B 127.0.0.1 -p 0 --secret-file {name}"))),
        );
        let listens = wait_for("an answer", || {
            let said = running.stderr();
            (said.contains("listening") || said.contains("error:"))
                .then(|| said.contains("listening"))
        });
        if listens {
            wrong.push(format!("server: {bits:o}"));
        }
        let line = format!("measure 127.0.0.1 -p 1 -t 1 -q --secret-file {name}");
        let ended = ends(&folder, &words(&line));
        if !ended.err.contains(&name) {
            wrong.push(format!("measure: {bits:o}"));
        }
    }
    assert!(wrong.is_empty(), "taken: {wrong:?}");
}

/// R5: the same for the key of a certificate.
#[test]
fn a_key_that_others_may_read_or_write_is_refused() {
    let folder = TestDir::new();
    let line = "server -B 127.0.0.1 -p 0";
    let made = folder.start(&mut folder.towpath(&words(line)));
    wait_for("a key", || made.stderr().contains("listening").then_some(()));
    drop(made);
    let state = folder.work().join("../state/towpath");
    let mut wrong = Vec::new();
    for bits in [0o604, 0o620, 0o602, 0o644] {
        for name in ["server.crt", "server.key"] {
            fs::copy(state.join(name), folder.work().join(name)).unwrap();
        }
        mode(&folder.work().join("server.key"), bits);
        let line = format!("{line} --cert server.crt --key server.key");
        let running = folder.start(&mut folder.towpath(&words(&line)));
        let listens = wait_for("an answer", || {
            let said = running.stderr();
            let is_there = said.contains("listening") || said.contains("error:");
            is_there.then(|| said.contains("listening"))
        });
        if listens {
            wrong.push(format!("{bits:o}"));
        }
    }
    assert!(wrong.is_empty(), "taken: {wrong:?}");
}

/// R5: the same for a secret of another user, who could change it at any time.
#[test]
fn a_secret_owned_by_another_user_is_refused() {
    let test = "a_secret_owned_by_another_user_is_refused";
    if !is_root() {
        return skip(test, "only root can make files of others");
    }
    let folder = TestDir::new();
    let work = folder.work();
    fs::create_dir(work.join("d")).unwrap();
    mode(&work.join("d"), 0o755);
    for name in ["d/theirs", "d/ours"] {
        folder.write(name, "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0\n");
        mode(&work.join(name), 0o600);
    }
    lchown(work.join("d/theirs"), OTHER, OTHER).unwrap();
    symlink("ours", work.join("d/link")).unwrap();
    lchown(work.join("d/link"), OTHER, OTHER).unwrap();
    for name in ["d/theirs", "d/link"] {
        let line = format!("measure 127.0.0.1 -p 1 -t 1 -q --secret-file {name}");
        let ended = ends(&folder, &words(&line));
        assert!(ended.err.contains(name), "{name} was taken: {ended}");
    }
}

/// Commands with every option that names an output, where `PLACE` is its path.
const WRITERS: [&str; 11] = [
    "report r.jsonl -o PLACE",
    "compare r.jsonl r.jsonl -o PLACE",
    "run s.toml --world sim -T tcp -q -o PLACE",
    "run s.toml --world sim -T tcp -q -o fine --pcap PLACE",
    "compare s.toml --world sim --repeat 2 -o PLACE",
    "sweep study/plan.toml --out PLACE",
    "sweep status rows --csv PLACE",
    "reproduce ./study -o PLACE",
    "trace c.pcap -o PLACE",
    "exec --report PLACE -- true",
    "measure 127.0.0.1 -p 1 -t 1 -q -o PLACE",
];

fn sources(folder: &TestDir) {
    study(folder);
    folder.write("r.jsonl", RESULT);
    folder.write("s.toml", SMALL);
    let header: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 101];
    folder.write("c.pcap", header.map(u32::to_le_bytes).concat());
}

/// R5: "no file is written through a link of somebody else", for every command and option.
///
/// The link is the file itself or a folder above it.
#[test]
fn no_command_writes_through_a_symlink_of_another_user() {
    let test = "no_command_writes_through_a_symlink_of_another_user";
    if !is_root() {
        return skip(test, "only root can make links of others");
    }
    let folder = TestDir::new();
    sources(&folder);
    let work = folder.work();
    let home = work.join("home");
    fs::create_dir(&home).unwrap();
    mode(&home, 0o755);
    for (number, writer) in WRITERS.into_iter().enumerate() {
        for kind in ["file", "folder", "above", "nothing", "chain"] {
            let target = home.join(format!("target-{number}-{kind}"));
            let link = home.join(format!("link-{number}-{kind}"));
            match kind {
                "file" | "chain" => fs::write(&target, "precious").unwrap(),
                "folder" | "above" => fs::create_dir(&target).unwrap(),
                _ => {}
            }
            symlink(&target, &link).unwrap();
            lchown(&link, OTHER, OTHER).unwrap();
            let place = match kind {
                "above" => link.join("deep/new"),
                // Our link to another user's link.
                "chain" => {
                    let ours = home.join(format!("ours-{number}"));
                    symlink(&link, &ours).unwrap();
                    ours
                }
                _ => link.clone(),
            };
            let command = writer.replace("PLACE", place.to_str().unwrap());
            let ended = ends(&folder, &words(&command));
            assert_ne!(ended.code, Some(0), "{kind}: {ended}");
            match kind {
                "file" | "chain" => {
                    assert_eq!(fs::read_to_string(&target).unwrap(), "precious", "{ended}");
                }
                "folder" | "above" => assert_eq!(names(&target), [""; 0], "{ended}"),
                _ => assert!(!target.exists(), "{ended}"),
            }
            assert!(link.is_symlink(), "{kind}: {ended}");
        }
    }
}

/// R5: "a file is written beside its place and renamed".
///
/// Other hard links keep their content, and open readers continue with the old file.
#[test]
fn existing_files_are_replaced_and_not_overwritten() {
    let folder = TestDir::new();
    sources(&folder);
    let work = folder.work();
    for (number, line) in [
        "report r.jsonl -o out.html",
        "trace c.pcap -o out.html",
        "sweep status rows --csv out.html",
        "exec --report out.html -q -- true",
    ]
    .into_iter()
    .enumerate()
    {
        let (place, other) = (work.join("out.html"), work.join(format!("other-{number}")));
        fs::write(&other, "precious").unwrap();
        let _ = fs::remove_file(&place); // it may not exist
        fs::hard_link(&other, &place).unwrap();
        let ended = ends(&folder, &words(line));
        assert!(ended.code.is_some_and(|code| code < 2), "{ended}");
        assert_eq!(fs::read_to_string(&other).unwrap(), "precious", "{ended}");
        assert_ne!(fs::metadata(&other).unwrap().ino(), fs::metadata(&place).unwrap().ino());
        // No partial file is left next to it.
        let left: Vec<_> = names(&work).into_iter().filter(|name| name.contains(".part")).collect();
        assert_eq!(left, [""; 0]);
    }
}

/// R5, against a race: a folder that alternates quickly with an attacker's link.
#[test]
fn a_directory_swapped_for_a_symlink_is_not_followed() {
    let test = "a_directory_swapped_for_a_symlink_is_not_followed";
    if !is_root() {
        return skip(test, "only root can make links of others");
    }
    let folder = TestDir::new();
    sources(&folder);
    let work = folder.work();
    let home = work.join("home");
    for part in ["", "victim", "real"] {
        fs::create_dir_all(home.join(part)).unwrap();
    }
    mode(&home, 0o755);
    let (place, link, real) = (home.join("out"), home.join("link"), home.join("real"));
    symlink("victim", &link).unwrap();
    lchown(&link, OTHER, OTHER).unwrap();
    let over = AtomicBool::new(false);
    let (flips, written) = thread::scope(|scope| {
        let flips = scope.spawn(|| {
            let mut flips = 0_u32;
            while !over.load(Ordering::Acquire) {
                fs::rename(&real, &place).unwrap();
                fs::rename(&place, &real).unwrap();
                fs::rename(&link, &place).unwrap();
                fs::rename(&place, &link).unwrap();
                flips += 1;
            }
            flips
        });
        let mut written = 0;
        for number in 0..times(40, 400) {
            let command = format!("report r.jsonl -o home/out/{number}.html");
            let ended = ends(&folder, &words(&command));
            written += usize::from(ended.code == Some(0));
        }
        over.store(true, Ordering::Release);
        (flips.join().unwrap(), written)
    });
    assert!(flips > 100, "{flips}");
    assert_eq!(names(&home.join("victim")), [""; 0], "written {written} of {flips}");
}

/// R5: private files stay private and owned by the user, with any umask.
#[test]
fn keys_are_private_with_any_umask() {
    let folder = TestDir::new();
    let mut command = folder.program("sh");
    command.args(["-c", "umask 0; XDG_STATE_HOME=$PWD/state exec \"$0\" server -B 127.0.0.1 -p 0"]);
    let running = folder.start(command.arg(crate::program::binary()));
    wait_for("the server", || running.stderr().contains("listening").then_some(()));
    let state = folder.work().join("state/towpath");
    let bits = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(bits(&state), 0o700);
    assert_eq!(bits(&state.join("server.key")), 0o600);
}

/// R5: no part of a plan, a scenario or a result names an output path.
#[test]
fn no_name_in_a_file_leads_out_of_the_folder_for_results() {
    let folder = TestDir::new();
    fs::create_dir(folder.work().join("deep")).unwrap();
    let before = || {
        let all = [folder.work(), folder.temporary(), folder.work().join("..")];
        all.map(|path| {
            names(&path)
                .into_iter()
                .filter(|name| !name.contains(".out") && !name.contains(".err"))
                .collect::<Vec<_>>()
        })
    };
    folder.write("deep/s.toml", "");
    folder.write("deep/p.toml", "");
    folder.write("deep/scenario.toml", SMALL);
    let first = before();
    for name in ["../escaped", "/tmp/escaped", "..", ".", "a/b", "\\u0000", "x\\n", "~", "C:\\\\x"]
    {
        folder.write("deep/s.toml", SMALL.replace("\"small\"", &format!("\"{name}\"")));
        folder.write("deep/p.toml", PLAN.replace("\"small\"", &format!("\"{name}\"")));
        let hosts = SMALL
            .replace("[hosts.a]", &format!("[hosts.\"{name}\"]"))
            .replace("\"a\"", &format!("\"{name}\""));
        folder.write("deep/h.toml", hosts);
        for line in [
            "run deep/s.toml --world sim -T tcp -q",
            "run deep/h.toml --world sim -T tcp -q -o deep/out --pcap deep/captures",
            "sweep deep/p.toml",
        ] {
            let ended = ends(&folder, &words(line));
            assert_eq!(ended.code, Some(2), "{ended}");
            assert_eq!(before(), first, "{ended}");
        }
    }
}
