//! Untrusted input to `setup`, `doctor` and `exec` as root.

use std::fmt::Write as _;
use std::fs;

use serde_json::{Value, json};

use super::run_as_root;
use crate::program::{TestDir, binary};
use crate::security::fixture::times;

/// Sets up two interfaces in one network with foreign rules and routes, and prints their state.
const SETUP_HOST: &str = r"
echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6
for link in eth0 wlan0; do
    ip link add $link type veth peer name far-$link
    ip link set $link up; ip link set far-$link up
done
ip addr add 172.31.0.218/24 dev eth0; ip addr add 172.31.0.237/24 dev wlan0
for link in eth0 wlan0; do
    until ip link show $link | grep -q 'state UP'; do sleep 0.01; done
done
ip rule add from 172.31.0.218 table 99 priority 2000
ip route add 198.51.100.0/24 dev eth0 table 99
ip route add 203.0.113.0/24 dev wlan0
settings() { grep -rs . /proc/sys/net/ipv4/conf /proc/sys/net/ipv4/ip_forward /proc/sys/net/mptcp | sort; }
ours='/net/mptcp/(enabled|path_manager|pm_type):|/conf/[^/]*/(arp_ignore|arp_announce|rp_filter):'
others() {
    settings | grep -Ev $ours; ip -o link | sed 's/qlen.*//'; ip -o addr | sed 's/valid_lft.*//'
    ip rule | grep -v 'lookup 1[0-9][0-9][0-9]'
    ip -4 route show table all | grep -v 'table 1[0-9][0-9][0-9]'
}
all() { settings; ip mptcp endpoint; ip mptcp limits; ip rule; ip -4 route show table all; ip -o link | sed 's/qlen.*//'; }
";

/// R5, R4: with any umask, only the owner can write the state of `setup`, so that it can be undone.
#[test]
fn stored_setup_state_can_be_undone_with_any_umask() {
    let test = "stored_setup_state_can_be_undone_with_any_umask";
    let folder = TestDir::new();
    let script = format!(
        "{SETUP_HOST}
        all >before
        for mask in 077 022 002 000; do rm -rf /var/lib/towpath
            umask $mask
            $TOWPATH setup --role both --apply >said 2>&1
            find /var/lib/towpath -perm /002 | sed \"s/^/umask $mask: others may write to /\"
            $TOWPATH setup --undo >undone 2>&1 || {{ echo \"umask $mask:\"; cat undone; }}
            all | diff before - || echo \"umask $mask: not undone\"
            rm -rf /var/lib/towpath
            $TOWPATH setup --role both --persist systemd --out files-$mask >/dev/null 2>&1
            find files-$mask -type f -perm /002 | sed \"s/^/umask $mask: others may write to /\"
        done"
    );
    let Some(output) = run_as_root(test, &folder, &script) else { return };
    assert_eq!((output.code, output.out.as_str()), (Some(0), ""), "{output}");
}

/// Returns values that no real plan has, for each field of a change.
fn hostile_values(field: &str) -> Vec<Value> {
    let texts = |texts: &[&str]| texts.iter().map(|text| json!(text)).collect::<Vec<_>>();
    match field {
        "sysctl" => texts(&[
            "net/ipv4/ip_forward",
            "net/ipv4/conf/eth0/forwarding",
            "net/ipv4/conf/../ip_forward",
            "net/ipv4/conf/eth0/../all/forwarding",
            "net/ipv4/conf/eth0/arp_ignore/../forwarding",
            "net/ipv4/conf/./forwarding/rp_filter",
            "../sys/net/ipv4/ip_forward",
            "/proc/sys/net/ipv4/ip_forward",
            "net//ipv4/conf/all/forwarding",
            "net/mptcp/checksum_enabled",
            "net/ipv4/conf/eth0\n/forwarding",
            "",
        ]),
        "link" => {
            texts(&["../x", "-h", "all", "default", "lo", "far-eth0 ", "a b", "a\nb", "", "\u{0}"])
        }
        "table" => {
            [0_u64, 99, 253, 254, 255, 999, u64::from(u32::MAX), 1 << 32].map(|n| json!(n)).to_vec()
        }
        "priority" => [0_u64, 1_001, 2_000, 32_766, 32_767, u64::from(u32::MAX), 1 << 32]
            .map(|n| json!(n))
            .to_vec(),
        "to" | "from" => vec![
            json!("1\n2"),
            json!("0.0.0.0/0"),
            json!("203.0.113.0/24"),
            json!("$(id)"),
            json!({"subflows": 1_000_000, "add_addr_accepted": -1}),
            json!([]),
        ],
        "gateway" | "address" => texts(&["0.0.0.0", "255.255.255.255", "::", "x", "172.31.0.1/24"]),
        "id" => [0_i64, -1, 256, 1 << 40].map(|n| json!(n)).to_vec(),
        "port" => [json!(-1), json!(65_536), json!("22")].to_vec(),
        "flags" => [json!(u32::MAX), json!(-1), json!(1 << 20)].to_vec(),
        "do" => texts(&["exec", "sysctl ", "delete_link", "SYSCTL", ""]),
        _ => vec![json!(null), json!({"a": []})],
    }
}

/// Plants each of the [`hostile_values`] in each field of each change of a stored state.
fn hostile_states(stored: &Value) -> Vec<(String, Value)> {
    let mut states = Vec::new();
    for (index, change) in stored["changes"].as_array().unwrap().iter().enumerate() {
        for field in change.as_object().unwrap().keys() {
            for value in hostile_values(field) {
                let mut state = stored.clone();
                state["changes"][index][field] = value.clone();
                states.push((format!("{}.{field} = {value}", change["do"]), state));
            }
        }
    }
    for (field, value) in [
        ("version", json!(2)),
        ("version", json!("1")),
        ("boot", json!("")),
        ("boot", json!("../x")),
        ("changes", json!({})),
        ("changes", json!(null)),
    ] {
        let mut state = stored.clone();
        state[field] = value.clone();
        states.push((format!("{field} = {value}"), state));
    }
    states
}

/// R2, R4: "every change in it is one that `setup` can have made", and nothing else ever changes.
#[test]
fn no_field_of_a_stored_state_affects_foreign_settings() {
    let test = "no_field_of_a_stored_state_affects_foreign_settings";
    let folder = TestDir::new();
    let apply = "$TOWPATH setup --role both --gateway eth0=172.31.0.1 --gateway wlan0=172.31.0.2 --peer 198.18.0.9 --apply";
    let script =
        format!("{SETUP_HOST}\n{apply} >/dev/null 2>&1; cat /var/lib/towpath/setup-*.json");
    let Some(output) = run_as_root(test, &folder, &script) else { return };
    let stored: Value = serde_json::from_str(&output.out).unwrap();
    let states = hostile_states(&stored);
    assert!(states.len() > 150, "{}", states.len());
    let step = states.len().div_ceil(times(30, 1_000));
    let mut script = format!("{SETUP_HOST}\nothers >before\n");
    for (number, (description, state)) in states.iter().enumerate().step_by(step | 1) {
        folder.write(&format!("{number}.json"), state.to_string());
        folder.write(&format!("{number}.what"), description);
        let _ = write!(
            script,
            "{apply} >/dev/null 2>&1
            name=$(echo /var/lib/towpath/setup-*.json); cp $name right; cp {number}.json $name
            $TOWPATH setup --undo >said 2>&1 && code=0 || code=$?; echo $code >>codes
            others | diff before - || {{ cat {number}.what said; }}
            test $code -le 2 || {{ echo code $code; cat {number}.what said; }}
            grep panicked said && cat {number}.what said
            if test -e $name; then cp right $name; $TOWPATH setup --undo >/dev/null 2>&1 || true; fi
            rm -rf /var/lib/towpath; ip mptcp endpoint flush\n"
        );
    }
    script.push_str("grep -q 2 codes\n");
    // Too long for an argument.
    folder.write("cases.sh", script);
    let Some(output) = run_as_root(test, &folder, ". ./cases.sh") else { return };
    assert_eq!((output.code, output.out.as_str()), (Some(0), ""), "{output}");
}

/// R3, R6: no program is searched in a place where others could have put one.
#[test]
fn no_program_of_the_current_folder_or_the_path_is_run_as_root() {
    let test = "no_program_of_the_current_folder_or_the_path_is_run_as_root";
    let folder = TestDir::new();
    fs::create_dir(folder.work().join("evil")).unwrap();
    let programs = [
        "ip",
        "sysctl",
        "ss",
        "tc",
        "nft",
        "iptables",
        "nmcli",
        "systemctl",
        "mptcpd",
        "sh",
        "bash",
        "ping",
        "uname",
        "modprobe",
        "ethtool",
        "id",
        "newuidmap",
        "newgidmap",
        "unshare",
        "nsenter",
        "mount",
        "ld.so",
        "zstd",
    ];
    for program in programs {
        let name = format!("evil/{program}");
        let script = format!("#!/bin/sh\necho {program} \"$@\" >>\"$WITNESS\"\n");
        folder.write_program(&name, &script);
    }
    folder.write("evil/lan.toml", super::SMALL_SCENARIO);
    // The host has a problem to fix, so that `--fix` runs its commands.
    let script = format!(
        "{SETUP_HOST}
        export WITNESS=$PWD/witness; cd evil
        echo 0 >/proc/sys/net/mptcp/enabled
        ip mptcp limits set subflows 0 add_addr_accepted 0
        old=$PATH; PATH=.:$PWD
        for line in 'doctor' 'doctor --fix' 'doctor --all' 'setup --role both' 'setup --role both --apply' \
            'setup --undo' 'setup --role both --persist script' 'monitor --json --count 1' 'exec -q -- /bin/true' \
            'check 127.0.0.1 -p 1' 'doctor --connect 127.0.0.1:1 --fix' 'lab lan.toml -- /bin/true' \
            'run lan.toml -T tcp -q -o ../out'; do
            $TOWPATH $line >../said 2>&1 || true
            test ! -e ../witness || {{ echo \"$line:\"; while read -r l; do echo \"$l\"; done <../witness; }}
            test ! -e ../witness || break
        done
        PATH=$old; cat /proc/sys/net/mptcp/enabled
        # The test would see it.
        PATH=.:$PATH ip link; test -s ../witness"
    );
    let Some(output) = run_as_root(test, &folder, &script) else { return };
    assert_eq!((output.code, output.out.as_str()), (Some(0), "1\n"), "{output}");
}

/// R1: "`doctor` writes nothing": no setting and no file, for any problem and any user.
#[test]
fn doctor_without_fix_writes_nothing() {
    let test = "doctor_without_fix_writes_nothing";
    let folder = TestDir::new();
    let script = format!(
        "{SETUP_HOST}
        echo 0 >/proc/sys/net/mptcp/enabled
        ip mptcp limits set subflows 0 add_addr_accepted 0
        ip mptcp endpoint add 172.31.0.133 dev eth0 subflow
        echo 1 >/proc/sys/net/ipv4/conf/eth0/rp_filter
        $TOWPATH server -B 127.0.0.1 --public-diagnostics >server 2>&1 & server=$!
        until grep -q listening server; do sleep 0.02; done
        files() {{ find . /var/lib -printf '%p %m %s %T@\n' | grep -Ev '^([.]|./(said|first|second)) |/server' | sort; }}
        all >first.all; echo >first; echo >second; echo >said; files >first
        for options in '' --all --json '--connect 127.0.0.1:5210' '--peer 127.0.0.1:5210 --connect 127.0.0.1:5210 --all'; do
            for enabled in 0 1; do
                echo $enabled >/proc/sys/net/mptcp/enabled; all >first.all; files >first
                $TOWPATH doctor $options >said 2>&1 || test $? = 1
                files >second; diff first second || true
                all | diff first.all - || true
            done
        done
        kill $server; wait || true"
    );
    let Some(output) = run_as_root(test, &folder, &script) else { return };
    let changed_lines: Vec<_> =
        output.out.lines().filter(|line| !line.contains("./second ")).collect();
    assert_eq!((output.code, changed_lines), (Some(0), Vec::new()), "{output}");
}

/// R6: names of programs and variables are data, also for `exec`.
#[test]
fn exec_hands_on_names_and_variables_as_they_are() {
    let folder = TestDir::new();
    let name = "-h a;touch owned;$(touch owned)\n`x`";
    let path = folder.write_program(
        name,
        "#!/bin/sh\nprintf '<%s>' \"$@\"; printf '[%s]' \"$ODD\"; env | grep -c LD_PRELOAD\n",
    );
    let arguments = ["", " ", "a b", "$(touch owned)", "\n", "--", "-q", "\u{1b}[2J"];
    let mut command = folder.towpath(&["exec", "--report", "r.jsonl", "--"]);
    command.arg(&path).args(arguments).env("ODD", "$(touch owned);\n`x`").env("LD_PRELOAD", "");
    command.env("a b;$(touch owned)", "x").env("BASH_ENV", "owned").env("ENV", "$(touch owned)");
    let output = folder.start(&mut command).wait();
    let expected = format!("<{}>", arguments.join("><"));
    assert_eq!(output.out, format!("{expected}[$(touch owned);\n`x`]1\n"), "{output}");
    assert!(!output.err.contains('\u{1b}'), "{output}");
    assert!(!folder.work().join("owned").exists());
    // A missing program is named unchanged, and no shell searches for it.
    let missing = "no\u{1b}[2J;touch owned";
    let output = folder.run(&["exec", "--", missing]);
    assert!(output.code != Some(0) && !output.err.contains('\u{1b}'), "{output}");
    assert!(!folder.work().join("owned").exists() && binary().exists());
}
