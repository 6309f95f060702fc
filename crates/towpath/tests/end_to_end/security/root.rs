//! Changes made by privileged commands.
//!
//! For any state folder, peer and interface name, `setup` and `doctor --fix` only change a fixed
//! set of things:
//!
//! - endpoints and limits of the path manager,
//! - a few network settings,
//! - routes and rules of tables of their own.
//!
//! All tests run in namespaces of their own.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::Path;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use crate::program::{ProgramOutput, TWO_PATHS, TestDir, binary, is_root, missing, skip};

/// Sets up a host with two interfaces in one network; one name contains shell syntax.
///
/// `look` prints all that must not change, `listed` all that setup and doctor may change.
const HOST: &str = r#"
# Addresses that come by themselves would come in the middle.
echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6
ip link set lo up
for link in eth0 'a;b$(id)#'; do
    ip link add "$link" type veth peer name "far${link%%[;0]*}"
    ip link set "$link" up && ip link set "far${link%%[;0]*}" up
done
ip addr add 172.31.0.218/24 dev eth0
ip addr add 172.31.0.237/24 dev 'a;b$(id)#'
for link in eth0 'a;b$(id)#'; do
    until ip link show "$link" | grep -q 'state UP'; do sleep 0.01; done
done
settings() {
    grep -rs . /proc/sys/net/ipv4 /proc/sys/net/ipv6 /proc/sys/net/mptcp /proc/sys/net/core \
        /proc/sys/kernel /proc/sys/vm /proc/sys/fs |
        grep -Ev '/random/|ns_last_pid|/pty/nr|-state:|/(file|inode|dquot)-nr|/route/flush|nf_conntrack|/ostype|lowmem|base_reachable|kernel/(perf_event_max_sample_rate|sched)|aio-nr|cad_pid' |
        sort
}
ours='/net/mptcp/(enabled|path_manager|pm_type):|/conf/[^/]*/(arp_ignore|arp_announce|rp_filter):'
look() {
    settings | grep -Ev "$ours"
    ip -o link | sed 's/qlen.*//'; ip -o addr | sed 's/valid_lft.*//'
    ip rule | grep -v '^[0-9]*:.*lookup 1[0-9][0-9][0-9]'; ip -6 rule
    ip -4 route show table all | grep -v 'table 1[0-9][0-9][0-9]'; ip -6 route show table all
    (cd sandbox && find . -printf '%p %y %m %U %l\n' | sort && find . -type f -exec sha256sum {} + | sort)
}
listed() {
    settings | grep -E "$ours"; ip mptcp endpoint; ip mptcp limits
    ip rule; ip -4 route show table all
}
"#;

/// Runs a script as root of new user, network and mount namespaces.
///
/// `$TOWPATH` is the command, the state is in `sandbox/state`, and `/var/lib` is empty.
fn run_as_root(test: &str, folder: &TestDir, script: &str) -> Option<ProgramOutput> {
    if let Some(reason) = missing("ip").or_else(|| missing("unshare")) {
        skip(test, &reason);
        return None;
    }
    let _ = fs::create_dir(folder.work().join("sandbox")); // may exist already
    folder.write("host.sh", HOST);
    let mut command = folder.program("unshare");
    command.args([
        "-Urnm",
        "sh",
        "-ec",
        &format!("mount -t tmpfs none /var/lib\n. ./host.sh\n{script}"),
    ]);
    command.env("TOWPATH", binary());
    Some(folder.start(&mut command).wait())
}

#[test]
fn setup_writes_nothing_without_apply() {
    let test = "setup_writes_nothing_without_apply";
    let folder = TestDir::new();
    // Once for root with /var/lib, and once without write access to it.
    let script = "
        before=$(look; listed)
        for state in /var/lib sandbox/state; do
            [ $state = /var/lib ] || mount -o remount,ro /var/lib
            export XDG_STATE_HOME=$PWD/sandbox/state
            $TOWPATH setup --role client >/dev/null
            $TOWPATH setup --role server --json >/dev/null
            $TOWPATH setup --role client --persist script >/dev/null
            $TOWPATH setup --undo >/dev/null
        done
        find /var/lib -mindepth 1
        test \"$(look; listed)\" = \"$before\"";
    let Some(output) = run_as_root(test, &folder, script) else { return };
    assert_eq!((output.code, output.out.as_str()), (Some(0), ""), "{output}");
}

/// Content of a planted state file, and the place where it could be planted.
#[derive(Debug)]
struct PlantedState {
    changes: Value,
    place: &'static str,
}

/// Returns paths of settings that escape from `/proc/sys` or are not in the list.
fn hostile_path() -> impl Strategy<Value = String> {
    let target = "net/../../../$SANDBOX/victim";
    prop_oneof![
        Just(target.to_owned()),
        Just("net/../../../../../../../../$SANDBOX/victim".to_owned()),
        Just("../../$SANDBOX/victim".to_owned()),
        Just("/$SANDBOX/victim".to_owned()),
        Just("net/ipv4/ip_forward".to_owned()),
        Just("net/ipv4/conf/all/forwarding".to_owned()),
        Just("net/ipv4/conf/eth0/../all/accept_redirects".to_owned()),
        Just("net/core/somaxconn".to_owned()),
        "net/ipv4/[a-z_./]{1,16}",
    ]
}

/// Returns changes of a state file, most of them forbidden.
fn hostile_change() -> impl Strategy<Value = Value> {
    let text = prop_oneof![Just("0".to_owned()), Just("1".to_owned()), "[ -~]{0,12}"];
    let link = prop_oneof![
        Just("eth0".to_owned()),
        Just("lo".to_owned()),
        Just("../lo".to_owned()),
        "[ -~]{0,20}",
    ];
    let table = prop_oneof![Just(0_u32), Just(253), Just(254), Just(255), 0..1_000_u32];
    // Undoing a change requires that its value is still the one that was set.
    let current = prop_oneof![
        Just("precious".to_owned()),
        Just("0".to_owned()),
        Just("4096".to_owned()),
        text.clone()
    ];
    let set = (hostile_path(), text, current);
    prop_oneof![
        4 => set.prop_map(|(sysctl, old, new)| json!({"do": "sysctl", "sysctl": sysctl, "from": old, "to": new})),
        1 => (link.clone(), table.clone(), any::<bool>()).prop_map(|(link, table, add)| json!({
            "do": if add { "add_route" } else { "delete_route" },
            "to": "172.31.0.0/24", "link": link, "gateway": null, "table": table,
        })),
        1 => (table, 0..40_000_u32, any::<bool>()).prop_map(|(table, priority, add)| json!({
            "do": if add { "add_rule" } else { "delete_rule" },
            "from": "172.31.0.218", "table": table, "priority": priority,
        })),
        1 => link.prop_map(|link| json!({"do": "forget_neighbours", "link": link + "/"})),
        1 => "[ -~]{0,12}".prop_map(|name| json!({"do": name})),
    ]
}

/// Returns planted state files with one to three changes.
fn planted_states() -> impl Strategy<Value = PlantedState> {
    let changes = proptest::collection::vec(hostile_change(), 1..4);
    let place = proptest::sample::select(vec![
        "ours",
        "ours",
        "ours",
        "ours",
        "link",
        "theirs",
        "writable",
        "folder-link",
        "folder-theirs",
        "folder-writable",
    ]);
    (changes, place)
        .prop_map(|(changes, place)| PlantedState { changes: Value::Array(changes), place })
}

/// Puts the state of case `$1` where `setup` searches for it. The state is of this boot and
/// namespace. From `link` on, its place or owner is wrong.
const PLANT: &str = r"
export XDG_STATE_HOME=$PWD/sandbox
mount -o remount,ro /var/lib
$TOWPATH setup --role client --apply >/dev/null 2>&1
name=$(basename sandbox/towpath/setup-*.json)
$TOWPATH setup --undo >/dev/null 2>&1
plant() {
    rm -rf sandbox/towpath sandbox/elsewhere
    mkdir sandbox/elsewhere
    case $2 in
        folder-link) ln -s elsewhere sandbox/towpath;;
        folder-theirs) mv $1.folder sandbox/towpath; mv sandbox/towpath/state sandbox/towpath/$name; return;;
        *) mkdir sandbox/towpath;;
    esac
    mv $1 sandbox/towpath/$name
    case $2 in
        link) mv sandbox/towpath/$name sandbox/elsewhere; ln -s ../elsewhere/$name sandbox/towpath;;
        writable) chmod 666 sandbox/towpath/$name;;
        folder-writable) chmod 777 sandbox/towpath;;
    esac
}
";

/// Writes the state of a case, as the user who could have planted it.
fn write_state(folder: &TestDir, number: usize, case: &PlantedState) {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let content = json!({"version": 1, "boot": boot.trim(), "changes": case.changes}).to_string();
    let sandbox = folder.work().join("sandbox");
    let content = content.replace("/$SANDBOX", sandbox.to_str().unwrap());
    let give_to_other_user = |path: &Path| lchown(path, Some(4_711), Some(4_711)).unwrap();
    let name = folder.work().join(format!("case-{number}"));
    fs::write(&name, &content).unwrap();
    if case.place == "theirs" {
        give_to_other_user(&name);
    } else if case.place == "folder-theirs" {
        let state_folder = name.with_extension("folder");
        fs::create_dir(&state_folder).unwrap();
        fs::write(state_folder.join("state"), content).unwrap();
        // The content may be ours, as with a link to it.
        fs::set_permissions(&state_folder, fs::Permissions::from_mode(0o777)).unwrap();
        give_to_other_user(&state_folder);
    }
}

#[test]
fn no_state_directory_makes_setup_change_unlisted_settings() {
    let test = "no_state_directory_makes_setup_change_unlisted_settings";
    let folder = TestDir::new();
    let mut runner = TestRunner::deterministic();
    let mut cases: Vec<PlantedState> =
        (0..24).map(|_| planted_states().new_tree(&mut runner).unwrap().current()).collect();
    // Right place and right user: without the check, a file outside of /proc/sys would be written.
    let escape = "net/../../../$SANDBOX/victim";
    let escape = json!([{"do": "sysctl", "sysctl": escape, "from": "spoilt", "to": "precious"}]);
    cases.insert(0, PlantedState { changes: escape, place: "ours" });
    let mut script = format!(
        "{PLANT}\necho precious >sandbox/victim\nchmod 644 sandbox/victim\nlisted >first
        same() {{ cmp -s $1 $2 || {{ echo \"$3\"; diff $1 $2 || true; }}; }}\n"
    );
    for (number, case) in cases.iter().enumerate() {
        if case.place.contains("theirs") && !is_root() {
            skip(test, "only root can make files of others");
            continue;
        }
        write_state(&folder, number, case);
        let place = case.place;
        let _ = write!(
            script,
            "plant case-{number} {place}; look >before
            for verb in --undo '--role client --apply'; do
                $TOWPATH setup $verb >said 2>&1 && code=0 || code=$?
                look >after; listed >second
                same before after 'case {number} changed'
                same first second 'case {number} applied'
                [ $code = 2 ] || {{ echo 'case {number}: code' $code; cat said; }}
            done\n"
        );
    }
    let Some(output) = run_as_root(test, &folder, &script) else { return };
    assert_eq!((output.code, output.out.as_str()), (Some(0), ""), "{cases:#?}\n{output}");
}

#[test]
fn hostile_interface_names_change_no_unlisted_settings() {
    let test = "hostile_interface_names_change_no_unlisted_settings";
    let folder = TestDir::new();
    let script = "
        export XDG_STATE_HOME=$PWD/sandbox/state
        look >before; listed >first
        for role in client server both; do
            $TOWPATH setup --role $role --apply >said
            look | grep -v '^[.]/state' >after
            # The plan can be pasted: its words are quoted.
            grep -q \"'a;b\\$(id)#'\" said
            $TOWPATH setup --role $role --persist script --out files >/dev/null; sh -n files/towpath-mptcp
            diff before after
            $TOWPATH setup --undo >/dev/null 2>&1
            listed >second; diff first second
        done
        $TOWPATH doctor --fix >said 2>&1 || test $? = 1
        look | grep -v '^[.]/state' >after; diff before after";
    let Some(output) = run_as_root(test, &folder, script) else { return };
    // The state folder is new, so its time differs.
    let changed_lines: Vec<_> =
        output.out.lines().filter(|line| !line.contains("./state")).collect();
    assert_eq!((output.code, changed_lines), (Some(0), Vec::new()), "{output}");
}

/// Script that starts a server whose snapshot truthfully reports a small receive buffer.
const PEER: &str = r#"
head -c 24 /dev/urandom | base64 >secret; chmod 600 secret
unshare -n sleep 300 & there=$!
own=$(readlink /proc/self/ns/net)
until [ "$(readlink /proc/$there/ns/net)" != "$own" ]; do sleep 0.01; done
ip link add up0 type veth peer name up0 netns $there
ip addr add 10.77.0.1/24 dev up0 && ip link set up0 up
on() { nsenter -t $there -n sh -c "$1"; }
on 'ip link set lo up; ip addr add 10.77.0.2/24 dev up0; ip link set up0 up
    echo "4096 8192 16384" >/proc/sys/net/ipv4/tcp_rmem'
XDG_STATE_HOME=$PWD/sandbox/state nsenter -t $there -n "$TOWPATH" server --secret-file secret \
    >server.out 2>server.err & server=$!
until on 'cat /proc/net/tcp /proc/net/tcp6' | grep -q ':145A 0*:0000 0A'; do
    kill -0 $server; sleep 0.02
done
"#;

#[test]
fn findings_reported_by_a_peer_are_never_fixed_here() {
    let test = "findings_reported_by_a_peer_are_never_fixed_here";
    if let Some(reason) = missing("nsenter") {
        return skip(test, &reason);
    }
    let folder = TestDir::new();
    let script = format!(
        "{PEER}
        settings >before
        $TOWPATH doctor --connect 10.77.0.2:5210 --peer 10.77.0.2:5210 --secret-file secret --fix \
            >said 2>fixed && code=0 || code=$?
        settings >after
        kill $server $there; wait || true
        cat said fixed; grep tcp_rmem before after >rmem
        diff before after
        exit $code"
    );
    let Some(output) = run_as_root(test, &folder, &script) else { return };
    assert_eq!(output.code, Some(1), "{output}");
    assert!(output.out.contains("[receive-buffer-too-small]"), "{output}");
    let warning =
        "   note: reported by the other host only, which may be wrong: --fix ignores it\n";
    assert!(output.out.contains(warning), "{output}");
    assert!(!output.out.contains("fixing: sysctl -w net.ipv4.tcp_rmem"), "{output}");
}

/// Creates results of a simulated run, which needs no privileges.
fn run_simulation(folder: &TestDir, arguments: &[&str]) -> ProgramOutput {
    folder.write("scenario.toml", format!("{TWO_PATHS}{}", crate::program::SIZED));
    let fixed_arguments = ["run", "scenario.toml", "--world", "sim", "-T", "tcp", "-q"];
    folder.run(&[&fixed_arguments[..], arguments].concat())
}

fn read_text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn no_file_is_written_through_a_link_under_a_name_of_ours() {
    let folder = TestDir::new();
    let work = folder.work();
    let victim = work.join("victim");
    folder.write("victim", "precious");
    for name in ["results", "captures"] {
        fs::create_dir(work.join(name)).unwrap();
    }
    let names = [
        "results/report.html",
        "results/sim-tcp-1.jsonl",
        "results/sim-tcp-1.jsonl.zst",
        "captures/sim-tcp-1-phone.pcapng",
        "captures/sim-tcp-1-server.pcapng",
    ];
    for name in names {
        symlink(&victim, work.join(name)).unwrap();
    }
    let output = run_simulation(&folder, &["--out", "results", "--pcap", "captures"]);
    assert_eq!(output.code, Some(0), "{output}");
    assert_eq!(read_text(&victim), "precious");
    for name in names.iter().filter(|name| !name.ends_with("jsonl")) {
        assert!(!work.join(name).is_symlink(), "{name}");
    }
    for name in ["results/report.html", "results/compare.html"] {
        let _ = fs::remove_file(work.join(name)); // it may not exist
        symlink(&victim, work.join(name)).unwrap();
    }
    for verb in ["report", "compare"] {
        let output = folder.run(&[verb, "results/sim-tcp-1.jsonl.zst"]);
        assert!(output.code.is_some_and(|code| code < 2), "{output}");
    }
    assert_eq!(read_text(&victim), "precious");
}

#[test]
fn a_user_output_may_be_a_file_an_own_symlink_or_stdout() {
    let folder = TestDir::new();
    let report = run_simulation(&folder, &["--out", "results"]);
    assert_eq!(report.code, Some(0), "{report}");
    let work = folder.work();
    folder.write("old.html", "old");
    symlink("old.html", work.join("mine.html")).unwrap();
    let result = "results/sim-tcp-1.jsonl.zst";
    for output in ["new.html", "mine.html", "/dev/stdout"] {
        let report = folder.run(&["report", result, "--output", output]);
        assert_eq!(report.code, Some(0), "{report}");
        let page = if output == "/dev/stdout" { report.out } else { read_text(&work.join(output)) };
        assert!(page.contains("</html>"), "{output}");
    }
    assert!(
        work.join("mine.html").is_symlink()
            && read_text(&work.join("old.html")).contains("</html>")
    );
    if !is_root() {
        return skip("links of other users", "only root can make them");
    }
    folder.write("victim", "precious");
    symlink("victim", work.join("theirs.html")).unwrap();
    lchown(work.join("theirs.html"), Some(4_711), Some(4_711)).unwrap();
    let report = folder.run(&["report", result, "--output", "theirs.html"]);
    assert_eq!(report.code, Some(2), "{report}");
    let message = report.err.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(message.contains("`theirs.html` is a symlink of another user (4711)"), "{message}");
    assert!(message.contains("hint: use the real path"), "{message}");
    assert_eq!(read_text(&work.join("victim")), "precious");
}

#[test]
fn no_directory_of_another_user_is_used_for_temporary_files() {
    let test = "no_directory_of_another_user_is_used_for_temporary_files";
    let folder = TestDir::new();
    let prepare = |kind: &str| {
        format!(
            "user=$(id -u); place=$TMPDIR/towpath-results-$user
            rm -rf $place $TMPDIR/elsewhere; mkdir $TMPDIR/elsewhere
            {kind}
            mkdir -p locked; mount --bind locked locked; mount -o remount,ro,bind locked; cd locked
            $TOWPATH run ../scenario.toml --world sim -T tcp -q >/dev/null && code=0 || code=$?
            cd ..; umount locked; ls -A $TMPDIR/elsewhere; stat -c %a $place; exit $code"
        )
    };
    folder.write("scenario.toml", format!("{TWO_PATHS}{}", crate::program::SIZED));
    for (kind, refusal) in [
        (":", None),
        ("mkdir -m 755 $place", None),
        ("ln -s $TMPDIR/elsewhere $place", Some("is a symlink, expected a folder")),
        ("mkdir $place; chmod 777 $place", Some("other users can write to")),
        ("mv theirs $place", Some("belongs to another user")),
    ] {
        if kind.contains("theirs") {
            if !is_root() {
                skip(test, "only root can make folders of others");
                continue;
            }
            let other_folder = folder.work().join("theirs");
            fs::create_dir(&other_folder).unwrap();
            // Renaming a folder requires write access to it.
            fs::set_permissions(&other_folder, fs::Permissions::from_mode(0o777)).unwrap();
            lchown(&other_folder, Some(4_711), Some(4_711)).unwrap();
        }
        let Some(output) = run_as_root(test, &folder, &prepare(kind)) else { return };
        let message = output.err.split_whitespace().collect::<Vec<_>>().join(" ");
        match refusal {
            None => assert_eq!((output.code, output.out.as_str()), (Some(0), "700\n"), "{output}"),
            Some(reason) => {
                assert_eq!(output.code, Some(2), "{output}");
                assert!(message.contains(reason) && message.contains("hint: "), "{output}");
                assert!(
                    !output.out.contains("handover") && !output.out.contains("two-paths"),
                    "{output}"
                );
            }
        }
    }
}

#[test]
fn without_user_namespaces_a_lab_program_has_no_host_privileges() {
    let test = "without_user_namespaces_a_lab_program_has_no_host_privileges";
    let Some(_permit) = crate::program::acquire_emulator() else { return };
    let folder = TestDir::new();
    folder.write("lab.toml", TWO_PATHS);
    let lab_script = "grep CapEff /proc/self/status; ip link set wifi mtu 1400; nsenter -t 1 -n true && echo left";
    // Root of a user namespace can forbid nested ones, as an administrator can.
    let script = format!(
        "echo 0 >/proc/sys/user/max_user_namespaces
        $TOWPATH lab lab.toml -- sh -c '{lab_script}; unshare -n true && echo new; true'"
    );
    let Some(output) = run_as_root(test, &folder, &script) else { return };
    assert_eq!(output.code, Some(0), "{output}");
    // CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, and the network capabilities.
    assert_eq!(output.out, "CapEff:\t0000000000003cfb\n", "{output}");
    let message = output.err.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        message.contains("the program runs as root of this machine, with only the capabilities"),
        "{output}"
    );
    // A user namespace has no privilege to drop.
    let output = folder.run(&["lab", "lab.toml", "--", "unshare", "-n", "true"]);
    assert_eq!(output.code, Some(0), "{output}");
}
