//! `towpath setup` from outside. Unit tests next to its code cover the changes to a host.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;

use crate::program::{ProgramOutput, TestDir, acquire_emulator, missing, skip};

/// Script with two interfaces in one network, as in a lab with a switch.
const HOST: &str = "
ip link set lo up
for link in eth0 wlan0; do
    ip link add $link type veth peer name far-$link
    ip link set $link up && ip link set far-$link up
done
ip addr add 172.31.0.218/24 dev eth0
ip addr add 172.31.0.237/24 dev wlan0
";

/// Waits for the carrier, since an interface without one is left out.
const UP: &str = "
for link in eth0 wlan0; do
    until ip link show $link | grep -q 'state UP'; do sleep 0.01; done
done
";

/// Runs a script as root of new user and network namespaces, in which `$TOWPATH` is the command.
fn run_on_host(test: &str, folder: &TestDir, script: &str) -> Option<ProgramOutput> {
    if let Some(reason) = missing("ip").or_else(|| missing("unshare")) {
        skip(test, &reason);
        return None;
    }
    let mut command = folder.program("unshare");
    command.args(["-Urn", "sh", "-ec", &format!("{HOST}{UP}{script}")]);
    command.env("TOWPATH", crate::program::binary()).env("XDG_STATE_HOME", folder.temporary());
    Some(folder.start(&mut command).wait())
}

#[test]
fn a_plan_is_a_script_that_does_what_apply_does() {
    let test = "a_plan_is_a_script_that_does_what_apply_does";
    let folder = TestDir::new();
    // An endpoint with the other host's address, as in a widely copied guide.
    let script = "
        ip mptcp endpoint add 172.31.0.133 dev eth0 subflow
        show() { ip mptcp endpoint; ip mptcp limits; ip rule; ip -4 route show table all; }
        before=$(show)
        $TOWPATH setup --role server >plan; cat plan
        test \"$(show)\" = \"$before\"
        $TOWPATH setup --role server --apply >/dev/null
        applied=$(show)
        test \"$applied\" != \"$before\"
        $TOWPATH setup --role server | grep 'nothing to do: the setup is complete for 172.31.0.218 (eth0)'
        $TOWPATH setup --undo >/dev/null
        test \"$(show)\" = \"$before\"
        $TOWPATH setup --undo | grep 'nothing to undo'
        sh -e plan >/dev/null
        # The kernel counts the numbers of endpoints on.
        unnumbered() { echo \"$1\" | sed 's/ id [0-9]*//'; }
        test \"$(unnumbered \"$(show)\")\" = \"$(unnumbered \"$applied\")\"";
    let Some(output) = run_on_host(test, &folder, script) else { return };
    assert_eq!(output.code, Some(0), "{output}");
    let expected = "# 172.31.0.133 is not an address of this host\nip mptcp endpoint delete id 1\n";
    assert!(output.out.contains(expected), "{output}");
    assert!(
        output.out.contains("ip mptcp endpoint add 172.31.0.237 dev wlan0 signal\n"),
        "{output}"
    );
    assert!(output.err.contains("changes made; `towpath setup --undo` reverts them"), "{output}");
}

#[test]
fn without_privileges_there_is_a_plan_but_nothing_is_changed() {
    let test = "without_privileges_there_is_a_plan_but_nothing_is_changed";
    let folder = TestDir::new();
    // Root of a user namespace inside the first does not own its network.
    let script = "exec unshare -Ur sh -c '$TOWPATH setup --role client && \
                  $TOWPATH setup --role client --apply'";
    let Some(output) = run_on_host(test, &folder, script) else { return };
    assert_eq!(output.code, Some(2), "{output}");
    assert!(output.out.contains("ip mptcp endpoint add 172.31.0.218 dev eth0 subflow"), "{output}");
    let error = "error: set MPTCP limits to 4 subflows and 2 accepted addresses: Operation not";
    assert!(output.err.contains(error), "{output}");
    assert!(output.err.contains("hint: this needs root (CAP_NET_ADMIN)"), "{output}");
}

#[test]
fn invalid_requests_are_reported() {
    let test = "invalid_requests_are_reported";
    for (arguments, complaint) in [
        ("--role client --dev eth1", "no interface `eth1`, expected one of: lo, "),
        ("--role client --dev lo", "interface `lo` has no usable address"),
        ("--role client --gateway eth0", "expected an interface and an address"),
        ("--apply", "--role <ROLE>"),
        ("--role client --apply --print", "cannot be used with"),
    ] {
        let folder = TestDir::new();
        let script = format!("exec $TOWPATH setup {arguments}");
        let Some(output) = run_on_host(test, &folder, &script) else { return };
        assert_eq!((output.code, output.out.as_str()), (Some(2), ""), "{output}");
        assert!(output.err.contains(complaint), "{output}");
    }
}

#[test]
fn files_for_the_next_start_are_written_where_they_are_wanted() {
    let test = "files_for_the_next_start_are_written_where_they_are_wanted";
    let folder = TestDir::new();
    let script = "
        $TOWPATH setup --role server --apply >/dev/null 2>&1
        $TOWPATH setup --role server --persist systemd --out files
        sh -n files/towpath-mptcp
        test -x files/towpath-mptcp
        cat files/towpath-mptcp
        $TOWPATH setup --role server --persist networkmanager --json";
    let Some(output) = run_on_host(test, &folder, script) else { return };
    assert_eq!(output.code, Some(0), "{output}");
    assert!(
        output.out.starts_with("files/towpath-mptcp\nfiles/towpath-mptcp.service\n"),
        "{output}"
    );
    // Changes that are already applied are also in the files.
    assert!(output.out.contains("\nsysctl -w net.ipv4.conf.eth0.arp_ignore=1\n"), "{output}");
    assert!(output.out.contains("\nip mptcp endpoint add 172.31.0.218 dev eth0 id"), "{output}");
    assert!(output.out.contains("connection.mptcp-flags enabled,"), "{output}");
}

/// Runs the stored files on a host that has just booted: a new network namespace.
#[test]
fn stored_scripts_set_a_host_up_as_apply_did_when_it_starts_again() {
    let test = "stored_scripts_set_a_host_up_as_apply_did_when_it_starts_again";
    let folder = TestDir::new();
    let show = "
        show() {
            ip mptcp endpoint; ip mptcp limits; ip rule; ip -6 rule; ip -4 route show table all
            for name in arp_ignore arp_announce rp_filter; do
                cat /proc/sys/net/ipv4/conf/eth0/$name /proc/sys/net/ipv4/conf/wlan0/$name
            done
            cat /proc/sys/net/mptcp/enabled
        }
    ";
    // Arguments when an interface is up, and when one is down.
    // NetworkManager calls the dispatcher's script like this, without other programs here.
    let boot_script = format!(
        "{HOST}{UP}{show}
        before=$(show)
        mkdir -p bin; printf '#!/bin/sh\necho \"$@\" >>nmcli.log\n' >bin/nmcli; chmod +x bin/nmcli
        case $1 in
            networkmanager)
                PATH=$PWD/bin:$PATH sh -e files/towpath-mptcp-connections
                files/50-towpath-mptcp eth0 down
                test \"$(show)\" = \"$before\"
                run='files/50-towpath-mptcp eth0 up';;
            *) run=files/towpath-mptcp;;
        esac
        $run >log 2>&1
        show >again
        $run >log 2>&1
        show >twice
        cmp again twice && cmp $2 again"
    );
    folder.write("again.sh", boot_script);
    let script = format!(
        "{show}
        for role in server 'client --peer 172.31.0.1,172.31.0.2'; do
            $TOWPATH setup --role $role --apply >/dev/null 2>&1
            show >applied
            for form in script systemd networkmanager; do
                rm -rf files
                $TOWPATH setup --role $role --persist $form --out files
                # NetworkManager makes the server's endpoints, and is not here to do so.
                sed \"$([ \"$form $role\" = 'networkmanager server' ] && echo /signal/d)\" \
                    applied >expected
                # An older `ip` calls the flag of 32 so, and cannot set it.
                ip mptcp endpoint help 2>&1 | grep -q laminar || sed -i 's/rawflags 20/subflow/' expected
                unshare -n sh -e again.sh $form expected
            done
            $TOWPATH setup --undo >/dev/null 2>&1
        done
        cat nmcli.log"
    );
    let Some(output) = run_on_host(test, &folder, &script) else { return };
    assert_eq!(output.code, Some(0), "{output}");
    let flags = "connection.mptcp-flags enabled,also-without-default-route,signal\n";
    assert!(output.out.contains(flags), "{output}");
    // The client's endpoints are laminar, so NetworkManager only has to be kept from making others.
    assert!(output.out.contains("connection.mptcp-flags disabled\n"), "{output}");
}

/// Sections and keys of a unit with their allowed values; from systemd.unit(5), systemd.service(5)
/// and systemd.special(7).
const UNIT: [(&str, &str, &[&str]); 7] = [
    ("[Unit]", "Description", &[]),
    ("[Unit]", "Wants", &["network-online.target"]),
    ("[Unit]", "After", &["network-online.target"]),
    ("[Service]", "Type", &["oneshot"]),
    ("[Service]", "RemainAfterExit", &["yes"]),
    ("[Service]", "ExecStart", &["/usr/local/sbin/towpath-mptcp"]),
    ("[Install]", "WantedBy", &["multi-user.target"]),
];

#[test]
fn the_unit_is_one_that_systemd_understands() {
    let (test, folder) = ("the_unit_is_one_that_systemd_understands", TestDir::new());
    let verify = "unshare -m sh -ec '
        mount -t tmpfs none /usr/local/sbin
        cp files/towpath-mptcp /usr/local/sbin
        exec systemd-analyze verify --man=no ./files/towpath-mptcp.service'";
    let is_installed = missing("systemd-analyze").is_none();
    let verify = if is_installed { verify } else { "" };
    let script =
        format!("$TOWPATH setup --role server --persist systemd --out files 2>said\n{verify}");
    let Some(output) = run_on_host(test, &folder, &script) else { return };
    // systemd-analyze only warns of unknown keys, and succeeds.
    assert!(output.code == Some(0) && output.err.is_empty(), "{output}");
    let unit = fs::read_to_string(folder.work().join("files/towpath-mptcp.service")).unwrap();
    let mut section = "";
    let mut found_keys = Vec::new();
    for line in unit.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if line.starts_with('[') {
            section = line;
            continue;
        }
        let (key, value) = line.split_once('=').unwrap();
        let allowed =
            UNIT.iter().find(|(known_section, name, _)| (*known_section, *name) == (section, key));
        let (_, _, values) = allowed.unwrap_or_else(|| panic!("{section} {line}"));
        assert!(values.is_empty() || values.contains(&value), "{section} {line}");
        found_keys.push(key);
    }
    assert_eq!(found_keys.len(), UNIT.len(), "{unit}");
}

/// Script with two hosts, each in a network namespace that `$one` and `$two` name.
const TWO_HOSTS: &str = r#"
own=$(readlink /proc/self/ns/net)
unshare -n sleep 300 & one=$!
unshare -n sleep 300 & two=$!
for host in $one $two; do
    until [ "$(readlink /proc/$host/ns/net)" != "$own" ]; do sleep 0.01; done
    nsenter -t $host -n ip link set lo up
done
on() { pid=$1; shift; nsenter -t $pid -n sh -c "$*"; }
up() { until on $1 ip link show $2 | grep -q 'state UP'; do sleep 0.01; done; }
# Slow enough that a second subflow is seen before all is sent.
slow="root tbf rate 40mbit burst 32k latency 50ms"
"#;

/// Script with `eth0` and `wlan0` of both hosts at one switch, 172.31.0.0/24.
const ONE_SWITCH: &str = r#"
ip link add switch type bridge && ip link set switch up
plug() {
    ip link add $1-$3 type veth peer name $3 netns $2
    ip link set $1-$3 master switch up
    on $2 "ip addr add $4/24 dev $3 && ip link set $3 up && tc qdisc add dev $3 $slow"
}
plug c $one eth0 172.31.0.133
plug c $one wlan0 172.31.0.173
plug s $two eth0 172.31.0.218
plug s $two wlan0 172.31.0.237
for host in $one $two; do up $host eth0; up $host wlan0; done
"#;

/// Script with `eno1` and `eno2` of both hosts, each pair connected by a cable.
const TWO_CABLES: &str = r#"
cable() {
    nsenter -t $one -n ip link add $1 type veth peer name $1 netns $two
    on $one "ip addr add $2.1/24 dev $1 && ip link set $1 up"
    on $two "ip addr add $2.2/24 dev $1 && ip link set $1 up && tc qdisc add dev $1 $slow"
}
cable eno1 10.0.0
cable eno2 192.168.0
for host in $one $two; do up $host eno1; up $host eno2; done
"#;

/// Commands at two hosts at one switch, as `HOST# COMMAND`: from a wrong setup to the undo.
const SWITCH_COMMANDS: &str = "\
server# ip mptcp endpoint add 172.31.0.133 dev eth0 subflow
server# ip mptcp endpoint add 172.31.0.173 dev wlan0 subflow
server# ip mptcp limits set subflows 2 add_addr_accepted 4
server# towpath setup --role server --peer 172.31.0.133,172.31.0.173 --apply
client# towpath setup --role client --peer 172.31.0.218,172.31.0.237 --apply
client# towpath setup --role client --peer 172.31.0.218,172.31.0.237
server# towpath setup --role server
server# towpath exec --quiet -- python3 -m http.server 8000 &
client# towpath exec -- curl -so big http://172.31.0.218:8000/big
client# towpath setup --undo
client# ip mptcp endpoint
";

/// Commands at two hosts with two cables, as `HOST# COMMAND`.
const CABLE_COMMANDS: &str = "\
one# towpath setup --role client --peer 10.0.0.2 --apply
two# towpath setup --role server --peer 10.0.0.1 --apply
two# towpath exec --quiet -- python3 -m http.server 8000 &
one# towpath exec -- curl -so big http://10.0.0.2:8000/big
";

/// Returns the host and the command of each line.
fn parse_commands(lines: &str) -> Vec<(String, String)> {
    let prompts = lines.lines().filter_map(|line| line.split_once("# "));
    prompts.map(|(host, command)| (host.to_owned(), command.to_owned())).collect()
}

/// Runs commands on two hosts; each command's output is in `NUMBER.out` and `NUMBER.err`.
fn run_commands(
    test: &str,
    lines: &str,
    network: &str,
) -> Option<(TestDir, Vec<(String, String)>)> {
    // `tc` has no such option, but it starts.
    let tools = ["ip", "tc", "unshare", "nsenter", "curl", "python3"];
    if let Some(reason) = tools.iter().find_map(|tool| missing(tool)) {
        skip(test, &reason);
        return None;
    }
    let folder = TestDir::new();
    fs::write(folder.work().join("big"), vec![7; 8_000_000]).unwrap();
    let commands = parse_commands(lines);
    let mut script = format!("{TWO_HOSTS}{network}");
    for (number, (host, command)) in commands.iter().enumerate() {
        let host = if ["client", "one"].contains(&host.as_str()) { "$one" } else { "$two" };
        let files = format!(">{number}.out 2>{number}.err");
        let line = match command.strip_suffix(" &") {
            // A server: the next command waits until it listens.
            Some(server) => format!(
                "on {host} 'exec {server}' {files} & python=$!\n\
                 until on {host} 'cat /proc/net/tcp' | grep -q ':1F40 0*:0000 0A'; do sleep 0.02; done"
            ),
            None => format!("on {host} '{}' {files}", command.replace("-so big", "-so got")),
        };
        let _ = writeln!(script, "{line}");
    }
    script.push_str("cmp big got\nkill $python $one $two; wait; true\n");
    folder.write("script.sh", script);
    let link = folder.temporary().join("towpath");
    symlink(fs::canonicalize(crate::program::binary()).unwrap(), link).unwrap();
    let search_path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<_> =
        [folder.temporary()].into_iter().chain(env::split_paths(&search_path)).collect();
    let mut command = folder.program("unshare");
    command.args(["-Urnpf", "--mount-proc", "--kill-child", "sh", "-e", "script.sh"]);
    command.env("PATH", env::join_paths(folders).unwrap());
    command.env("XDG_STATE_HOME", folder.temporary());
    let _permit = acquire_emulator()?;
    let output = folder.start(&mut command).wait();
    assert_eq!(output.code, Some(0), "{output}");
    Some((folder, commands))
}

/// Returns the output of a command: the file `NUMBER.ENDING`.
fn read_output(folder: &TestDir, number: usize, ending: &str) -> String {
    fs::read_to_string(folder.work().join(format!("{number}.{ending}"))).unwrap()
}

/// Checks that the last curl used both paths.
fn assert_both_paths(folder: &TestDir, commands: &[(String, String)]) {
    let curl = commands.iter().position(|(_, command)| command.contains("curl")).unwrap();
    let line = read_output(folder, curl, "err");
    assert!(line.contains("1 was Multipath TCP (1 over several paths)"), "{line}");
}

#[test]
fn the_hosts_at_one_switch_use_both_interfaces() {
    let test = "the_hosts_at_one_switch_use_both_interfaces";
    let Some((folder, commands)) = run_commands(test, SWITCH_COMMANDS, ONE_SWITCH) else {
        return;
    };
    assert_both_paths(&folder, &commands);
    let server = read_output(&folder, 3, "out");
    // Removes the wrong block, and announces the server's own addresses.
    assert!(server.contains("# 172.31.0.133 is not an address of this host\n"), "{server}");
    assert!(server.contains("\nsysctl -w net.ipv4.conf.wlan0.arp_ignore=1\n"), "{server}");
    assert!(server.contains("\nip rule add from 172.31.0.237 lookup "), "{server}");
    assert!(server.contains("\nip mptcp endpoint add 172.31.0.237 dev wlan0 signal\n"), "{server}");
    for number in [5, 6] {
        let plan = read_output(&folder, number, "out");
        assert!(plan.starts_with("# nothing to do: the setup is complete for 172.31.0."), "{plan}");
    }
    let last = commands.len() - 1;
    assert_eq!(read_output(&folder, last, "out"), "", "no endpoint is left");
}

#[test]
fn the_hosts_with_two_cables_use_both() {
    let test = "the_hosts_with_two_cables_use_both";
    let Some((folder, commands)) = run_commands(test, CABLE_COMMANDS, TWO_CABLES) else {
        return;
    };
    assert_both_paths(&folder, &commands);
    let client = read_output(&folder, 0, "out");
    assert!(client.contains("\nip mptcp endpoint add 192.168.0.1 dev eno2 laminar\n"), "{client}");
    assert!(!client.contains("ip rule"), "{client}");
}
