//! `towpath setup` from outside; what it does to a host is tested where it is written.

use crate::program::{Ended, Folder, missing, skip};

/// Two interfaces in one network, as in a lab with a switch.
const HOST: &str = "
ip link set lo up
for link in eth0 wlan0; do
    ip link add $link type veth peer name far-$link
    ip link set $link up && ip link set far-$link up
done
ip addr add 172.31.0.218/24 dev eth0
ip addr add 172.31.0.237/24 dev wlan0
";

/// Runs a script as root of new user and network namespaces, in which `$TOWPATH` is the command.
fn on_a_host(test: &str, folder: &Folder, script: &str) -> Option<Ended> {
    if let Some(reason) = missing("ip").or_else(|| missing("unshare")) {
        skip(test, &reason);
        return None;
    }
    let mut command = folder.program("unshare");
    command.args(["-Urn", "sh", "-ec", &format!("{HOST}{script}")]);
    command.env("TOWPATH", crate::program::binary()).env("XDG_STATE_HOME", folder.temporary());
    Some(folder.start(&mut command).wait())
}

#[test]
fn a_plan_is_a_script_that_does_what_apply_does() {
    let test = "a_plan_is_a_script_that_does_what_apply_does";
    let folder = Folder::new();
    // An endpoint of the other host, as in a description that many have copied.
    let script = "
        ip mptcp endpoint add 172.31.0.133 dev eth0 subflow
        show() { ip mptcp endpoint; ip mptcp limits; ip rule; ip -4 route show table all; }
        before=$(show)
        $TOWPATH setup --role server >plan; cat plan
        test \"$(show)\" = \"$before\"
        $TOWPATH setup --role server --apply >/dev/null
        applied=$(show)
        test \"$applied\" != \"$before\"
        $TOWPATH setup --role server | grep 'nothing to do: all is right for 172.31.0.218 (eth0)'
        $TOWPATH setup --undo >/dev/null
        test \"$(show)\" = \"$before\"
        $TOWPATH setup --undo | grep 'nothing to undo'
        sh -e plan >/dev/null
        # The kernel counts the numbers of endpoints on.
        unnumbered() { echo \"$1\" | sed 's/ id [0-9]*//'; }
        test \"$(unnumbered \"$(show)\")\" = \"$(unnumbered \"$applied\")\"";
    let Some(ended) = on_a_host(test, &folder, script) else { return };
    assert_eq!(ended.code, Some(0), "{ended}");
    let right = "# 172.31.0.133 is no address of this host\nip mptcp endpoint delete id 1\n";
    assert!(ended.out.contains(right), "{ended}");
    assert!(ended.out.contains("ip mptcp endpoint add 172.31.0.237 dev wlan0 signal\n"), "{ended}");
    assert!(ended.err.contains("changes made; `towpath setup --undo` takes all back"), "{ended}");
}

#[test]
fn without_privileges_there_is_a_plan_but_nothing_is_changed() {
    let test = "without_privileges_there_is_a_plan_but_nothing_is_changed";
    let folder = Folder::new();
    // A user namespace inside the first owns no network namespace.
    let script = "exec unshare -U sh -c '$TOWPATH setup --role client && \
                  $TOWPATH setup --role client --apply'";
    let Some(ended) = on_a_host(test, &folder, script) else { return };
    assert_eq!(ended.code, Some(2), "{ended}");
    assert!(ended.out.contains("ip mptcp endpoint add 172.31.0.218 dev eth0 subflow"), "{ended}");
    let refused = "error: set MPTCP limits to 4 subflows and 2 accepted addresses: Operation not";
    assert!(ended.err.contains(refused), "{ended}");
    assert!(ended.err.contains("hint: it takes root (CAP_NET_ADMIN)"), "{ended}");
}

#[test]
fn what_is_asked_for_wrongly_is_said() {
    let test = "what_is_asked_for_wrongly_is_said";
    for (arguments, complaint) in [
        ("--role client --dev eth1", "no interface `eth1`, expected one of: lo, "),
        ("--role client --dev lo", "interface `lo` has no address that can be used"),
        ("--role client --gateway eth0", "expected an interface and an address"),
        ("--apply", "--role <ROLE>"),
        ("--role client --apply --print", "cannot be used with"),
    ] {
        let folder = Folder::new();
        let script = format!("exec $TOWPATH setup {arguments}");
        let Some(ended) = on_a_host(test, &folder, &script) else { return };
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{ended}");
        assert!(ended.err.contains(complaint), "{ended}");
    }
}

#[test]
fn files_for_the_next_start_are_written_where_they_are_wanted() {
    let test = "files_for_the_next_start_are_written_where_they_are_wanted";
    let folder = Folder::new();
    let script = "
        $TOWPATH setup --role server --apply >/dev/null 2>&1
        $TOWPATH setup --role server --persist systemd --out files
        sh -n files/towpath-mptcp
        test -x files/towpath-mptcp
        cat files/towpath-mptcp
        $TOWPATH setup --role server --persist networkmanager --json";
    let Some(ended) = on_a_host(test, &folder, script) else { return };
    assert_eq!(ended.code, Some(0), "{ended}");
    assert!(ended.out.starts_with("files/towpath-mptcp\nfiles/towpath-mptcp.service\n"), "{ended}");
    // What was applied already is in the files as well.
    assert!(ended.out.contains("\nsysctl -w net.ipv4.conf.eth0.arp_ignore=1\n"), "{ended}");
    assert!(ended.out.contains("\nip mptcp endpoint add 172.31.0.218 dev eth0 id"), "{ended}");
    assert!(ended.out.contains("connection.mptcp-flags enabled,"), "{ended}");
}
