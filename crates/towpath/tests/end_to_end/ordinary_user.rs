//! Everything works without root, and what a machine forbids is said with the way out.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::program::{Ended, Folder, binary, emulator, is_root, missing, skip};

/// A user and group that own nothing.
const NOBODY: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];

const HANDOVER: &str = r#"name = "handover"
[hosts.phone]
[hosts.server]
[paths.wifi]
between = ["phone", "server"]
rate = "20 Mbit/s"
delay = "5 ms"
[paths.cellular]
between = ["phone", "server"]
rate = "20 Mbit/s"
delay = "10 ms"
[[timeline]]
at = "500 ms"
path = "wifi"
set = "down"
[[flows]]
from = "phone"
to = "server"
pattern = "bulk"
duration = "2 s"
"#;

/// Runs a script as an ordinary user, or says why it cannot: `setup`, as root of its own mount
/// namespace, and then `script`, in which `$TOWPATH` is the command.
fn as_nobody(folder: &Folder, test: &str, setup: &str, script: &str) -> Option<Ended> {
    if !is_root() {
        skip(test, "only root can become another user");
        return None;
    }
    if let Some(reason) = missing("setpriv").or_else(|| missing("unshare")) {
        skip(test, &reason);
        return None;
    }
    folder.write("handover.toml", HANDOVER);
    let mut command = folder.program("unshare");
    command.args(["--mount", "sh", "-ec"]);
    command.arg(format!("{setup}\nexec setpriv {} sh -c \"$0\"", NOBODY.join(" "))).arg(script);
    command.env("TOWPATH", readable_binary(folder));
    Some(folder.start(&mut command).wait())
}

/// The command where everybody may read it.
fn readable_binary(folder: &Folder) -> PathBuf {
    let copy = folder.temporary().join("towpath");
    fs::copy(binary(), &copy).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    copy
}

fn back_end(folder: &Folder) -> String {
    let result = folder.stored("results/mptcp-1.jsonl.zst");
    assert!(result.summary.unwrap().multipath.used);
    result.meta.conditions["emulator back-end"].clone()
}

#[test]
fn an_ordinary_user_can_run_a_handover() {
    let _turn = emulator();
    let folder = Folder::new();
    let script = "if (: <>/dev/net/tun) 2>/dev/null; then echo open; else echo closed; fi >tun
        \"$TOWPATH\" run handover.toml --json --out results";
    let name = "an_ordinary_user_can_run_a_handover";
    let Some(ended) = as_nobody(&folder, name, ":", script) else { return };
    assert_eq!(ended.code, Some(0), "{ended}");
    let [_, mptcp] = ended.json().try_into().unwrap();
    let paths = &mptcp["summary"]["multipath"]["paths_used"];
    assert_eq!(*paths, serde_json::json!(["wifi", "cellular"]), "{ended}");
    assert!(folder.work().join("results/report.html").is_file());
    let tun = fs::read_to_string(folder.work().join("tun")).unwrap();
    assert_eq!(back_end(&folder).contains("packet"), tun == "closed\n", "{tun}");
}

#[test]
fn without_a_tun_device_packet_sockets_serve() {
    let _turn = emulator();
    let folder = Folder::new();
    let script = "exec \"$TOWPATH\" run handover.toml -q -t mptcp -o results";
    let setup = "mount -t tmpfs none /dev/net";
    let name = "without_a_tun_device_packet_sockets_serve";
    let Some(ended) = as_nobody(&folder, name, setup, script) else { return };
    assert_eq!(ended.code, Some(0), "{ended}");
    assert!(back_end(&folder).contains("packet"), "{}", back_end(&folder));
}

#[test]
fn asked_for_a_tun_device_that_is_missing_the_way_out_is_said() {
    let _turn = emulator();
    let folder = Folder::new();
    let script = "exec \"$TOWPATH\" run handover.toml -q -t tcp --backend tun";
    let setup = "mount -t tmpfs none /dev/net";
    let name = "asked_for_a_tun_device_that_is_missing_the_way_out_is_said";
    let Some(ended) = as_nobody(&folder, name, setup, script) else { return };
    assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{ended}");
    assert!(ended.err.contains("error: cannot open /dev/net/tun"), "{ended}");
    assert!(ended.err.contains("--backend packet"), "{ended}");
}

#[test]
fn where_user_namespaces_are_forbidden_the_switch_is_named() {
    let _turn = emulator();
    let folder = Folder::new();
    // Root of a user namespace may forbid further ones in it; without capabilities it is as
    // ordinary as any user.
    let forbid = "echo 0 >/proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all";
    let name = "where_user_namespaces_are_forbidden_the_switch_is_named";
    for verb in ["run handover.toml -q -t tcp", "lab handover.toml -- true"] {
        let script = format!("exec unshare -Ur sh -c '{forbid} \"$TOWPATH\" {verb}'");
        let Some(ended) = as_nobody(&folder, name, ":", &script) else { return };
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{ended}");
        assert!(ended.err.contains("does not allow user namespaces"), "{ended}");
        assert!(ended.err.contains("`sysctl user.max_user_namespaces` is 0"), "{ended}");
    }
}

#[test]
fn where_nothing_can_be_written_results_go_among_the_temporary_files() {
    let _turn = emulator();
    let folder = Folder::new();
    let script = "mkdir locked && chmod 500 locked && cd locked &&
        exec \"$TOWPATH\" run ../handover.toml -q -t tcp";
    let name = "where_nothing_can_be_written_results_go_among_the_temporary_files";
    let Some(ended) = as_nobody(&folder, name, ":", script) else { return };
    assert_eq!(ended.code, Some(0), "{ended}");
    let place = folder.temporary().join("towpath-results-65534/handover/001");
    assert!(ended.err.contains(&format!("results: {}", place.display())), "{ended}");
    assert!(place.join("report.html").is_file());
}
