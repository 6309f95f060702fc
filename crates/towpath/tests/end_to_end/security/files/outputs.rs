//! Safety of written files.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::{PLAN, RESULT, SMALL_SCENARIO, create_study, run_to_end, words};
use crate::program::{TestDir, is_root, names, skip, wait_for};
use crate::security::fixture::times;

/// User ID without an account.
const OTHER_USER: Option<u32> = Some(4_711);

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// R7: refuses a key or secret that is writable by others or readable by all users.
#[test]
fn a_secret_that_others_may_read_or_write_is_refused() {
    let folder = TestDir::new();
    // Not a sticky folder such as `/tmp`, which the kernel itself protects.
    fs::create_dir(folder.work().join("d")).unwrap();
    set_mode(&folder.work().join("d"), 0o755);
    let mut accepted_modes = Vec::new();
    for bits in [0o604, 0o620, 0o602, 0o644, 0o666] {
        let name = format!("d/{bits:o}");
        folder.write(&name, "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0\n");
        set_mode(&folder.work().join(&name), bits);
        let running = folder.start(
            &mut folder.towpath(&words(&format!("server -B 127.0.0.1 -p 0 --secret-file {name}"))),
        );
        let listens = wait_for("an answer", || {
            let said = running.stderr();
            (said.contains("listening") || said.contains("error:"))
                .then(|| said.contains("listening"))
        });
        if listens {
            accepted_modes.push(format!("server: {bits:o}"));
        }
        let line = format!("measure 127.0.0.1 -p 1 -t 1 -q --secret-file {name}");
        let output = run_to_end(&folder, &words(&line));
        if !output.err.contains(&name) {
            accepted_modes.push(format!("measure: {bits:o}"));
        }
    }
    assert!(accepted_modes.is_empty(), "taken: {accepted_modes:?}");
}

/// R7: the same for the key of a certificate.
#[test]
fn a_key_that_others_may_read_or_write_is_refused() {
    let folder = TestDir::new();
    let line = "server -B 127.0.0.1 -p 0";
    let first_server = folder.start(&mut folder.towpath(&words(line)));
    wait_for("a key", || first_server.stderr().contains("listening").then_some(()));
    drop(first_server);
    let state = folder.work().join("../state/towpath");
    let mut accepted_modes = Vec::new();
    for bits in [0o604, 0o620, 0o602, 0o644] {
        for name in ["server.crt", "server.key"] {
            fs::copy(state.join(name), folder.work().join(name)).unwrap();
        }
        set_mode(&folder.work().join("server.key"), bits);
        let line = format!("{line} --cert server.crt --key server.key");
        let running = folder.start(&mut folder.towpath(&words(&line)));
        let listens = wait_for("an answer", || {
            let said = running.stderr();
            let has_answered = said.contains("listening") || said.contains("error:");
            has_answered.then(|| said.contains("listening"))
        });
        if listens {
            accepted_modes.push(format!("{bits:o}"));
        }
    }
    assert!(accepted_modes.is_empty(), "taken: {accepted_modes:?}");
}

/// R7: the same for a secret of another user, who could change it at any time.
#[test]
fn a_secret_owned_by_another_user_is_refused() {
    let test = "a_secret_owned_by_another_user_is_refused";
    if !is_root() {
        return skip(test, "only root can make files of others");
    }
    let folder = TestDir::new();
    let work = folder.work();
    fs::create_dir(work.join("d")).unwrap();
    set_mode(&work.join("d"), 0o755);
    for name in ["d/theirs", "d/ours"] {
        folder.write(name, "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0\n");
        set_mode(&work.join(name), 0o600);
    }
    lchown(work.join("d/theirs"), OTHER_USER, OTHER_USER).unwrap();
    symlink("ours", work.join("d/link")).unwrap();
    lchown(work.join("d/link"), OTHER_USER, OTHER_USER).unwrap();
    for name in ["d/theirs", "d/link"] {
        let line = format!("measure 127.0.0.1 -p 1 -t 1 -q --secret-file {name}");
        let output = run_to_end(&folder, &words(&line));
        assert!(output.err.contains(name), "{name} was taken: {output}");
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

fn write_sources(folder: &TestDir) {
    create_study(folder);
    folder.write("r.jsonl", RESULT);
    folder.write("s.toml", SMALL_SCENARIO);
    let header: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 101];
    folder.write("c.pcap", header.map(u32::to_le_bytes).concat());
}

/// R5: does not write through another user's symlink, for every command and option.
///
/// The link is the file itself or a folder above it.
#[test]
fn no_command_writes_through_a_symlink_of_another_user() {
    let test = "no_command_writes_through_a_symlink_of_another_user";
    if !is_root() {
        return skip(test, "only root can make links of others");
    }
    let folder = TestDir::new();
    write_sources(&folder);
    let work = folder.work();
    let home = work.join("home");
    fs::create_dir(&home).unwrap();
    set_mode(&home, 0o755);
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
            lchown(&link, OTHER_USER, OTHER_USER).unwrap();
            let output_path = match kind {
                "above" => link.join("deep/new"),
                // Our link to another user's link.
                "chain" => {
                    let own_link = home.join(format!("ours-{number}"));
                    symlink(&link, &own_link).unwrap();
                    own_link
                }
                _ => link.clone(),
            };
            let command = writer.replace("PLACE", output_path.to_str().unwrap());
            let output = run_to_end(&folder, &words(&command));
            assert_ne!(output.code, Some(0), "{kind}: {output}");
            match kind {
                "file" | "chain" => {
                    assert_eq!(fs::read_to_string(&target).unwrap(), "precious", "{output}");
                }
                "folder" | "above" => assert_eq!(names(&target), [""; 0], "{output}"),
                _ => assert!(!target.exists(), "{output}"),
            }
            assert!(link.is_symlink(), "{kind}: {output}");
        }
    }
}

/// R5: writes a temporary file next to the target and renames it.
///
/// Other hard links keep their content, and open readers continue with the old file.
#[test]
fn existing_files_are_replaced_and_not_overwritten() {
    let folder = TestDir::new();
    write_sources(&folder);
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
        let (output_path, other_link) =
            (work.join("out.html"), work.join(format!("other-{number}")));
        fs::write(&other_link, "precious").unwrap();
        let _ = fs::remove_file(&output_path); // it may not exist
        fs::hard_link(&other_link, &output_path).unwrap();
        let output = run_to_end(&folder, &words(line));
        assert!(output.code.is_some_and(|code| code < 2), "{output}");
        assert_eq!(fs::read_to_string(&other_link).unwrap(), "precious", "{output}");
        assert_ne!(
            fs::metadata(&other_link).unwrap().ino(),
            fs::metadata(&output_path).unwrap().ino()
        );
        // No partial file is left next to it.
        let partial_files: Vec<_> =
            names(&work).into_iter().filter(|name| name.contains(".part")).collect();
        assert_eq!(partial_files, [""; 0]);
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
    write_sources(&folder);
    let work = folder.work();
    let home = work.join("home");
    for folder_name in ["", "victim", "real"] {
        fs::create_dir_all(home.join(folder_name)).unwrap();
    }
    set_mode(&home, 0o755);
    let (output_path, link, real) = (home.join("out"), home.join("link"), home.join("real"));
    symlink("victim", &link).unwrap();
    lchown(&link, OTHER_USER, OTHER_USER).unwrap();
    let is_over = AtomicBool::new(false);
    let (flips, written_reports) = thread::scope(|scope| {
        let flips = scope.spawn(|| {
            let mut flips = 0_u32;
            while !is_over.load(Ordering::Acquire) {
                fs::rename(&real, &output_path).unwrap();
                fs::rename(&output_path, &real).unwrap();
                fs::rename(&link, &output_path).unwrap();
                fs::rename(&output_path, &link).unwrap();
                flips += 1;
            }
            flips
        });
        let mut written_reports = 0;
        for number in 0..times(40, 400) {
            let command = format!("report r.jsonl -o home/out/{number}.html");
            let output = run_to_end(&folder, &words(&command));
            written_reports += usize::from(output.code == Some(0));
        }
        is_over.store(true, Ordering::Release);
        (flips.join().unwrap(), written_reports)
    });
    assert!(flips > 100, "{flips}");
    assert_eq!(names(&home.join("victim")), [""; 0], "written {written_reports} of {flips}");
}

/// R7: private files stay private and owned by the user, with any umask.
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
    let list_files = || {
        let folders = [folder.work(), folder.temporary(), folder.work().join("..")];
        folders.map(|path| {
            names(&path)
                .into_iter()
                .filter(|name| !name.contains(".out") && !name.contains(".err"))
                .collect::<Vec<_>>()
        })
    };
    folder.write("deep/s.toml", "");
    folder.write("deep/p.toml", "");
    folder.write("deep/scenario.toml", SMALL_SCENARIO);
    let files_before = list_files();
    for name in ["../escaped", "/tmp/escaped", "..", ".", "a/b", "\\u0000", "x\\n", "~", "C:\\\\x"]
    {
        folder.write("deep/s.toml", SMALL_SCENARIO.replace("\"small\"", &format!("\"{name}\"")));
        folder.write("deep/p.toml", PLAN.replace("\"small\"", &format!("\"{name}\"")));
        let hosts = SMALL_SCENARIO
            .replace("[hosts.a]", &format!("[hosts.\"{name}\"]"))
            .replace("\"a\"", &format!("\"{name}\""));
        folder.write("deep/h.toml", hosts);
        for line in [
            "run deep/s.toml --world sim -T tcp -q",
            "run deep/h.toml --world sim -T tcp -q -o deep/out --pcap deep/captures",
            "sweep deep/p.toml",
        ] {
            let output = run_to_end(&folder, &words(line));
            assert_eq!(output.code, Some(2), "{output}");
            assert_eq!(list_files(), files_before, "{output}");
        }
    }
}
