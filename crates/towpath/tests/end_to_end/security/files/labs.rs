//! Isolation of the namespaces of `lab` and `run`, and their cleanup.

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use super::{SMALL_SCENARIO, assert_refused, run_as_root, run_to_end, words};
use crate::processes::{Members, interfaces, signal};
use crate::program::{TestDir, acquire_emulator, missing, names, skip, wait_for};
use crate::security::fixture::times;

/// Returns the IPv4 addresses of this machine's interfaces.
fn machine_addresses() -> Vec<String> {
    let out = Command::new("ip").args(["-o", "-4", "addr"]).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let address = |line: &str| Some(line.split_whitespace().nth(3)?.split_once('/')?.0.to_owned());
    text.lines().filter_map(address).collect()
}

/// N2: "no interface of the machine is moved or bridged into them": the lab cannot reach the
/// machine.
#[test]
fn a_program_of_a_lab_reaches_no_listener_of_the_machine() {
    let test = "a_program_of_a_lab_reaches_no_listener_of_the_machine";
    if let Some(reason) = missing("ip").or_else(|| missing("bash")) {
        return skip(test, &reason);
    }
    let Some(_permit) = acquire_emulator() else { return };
    let (folder, interfaces_before) = (TestDir::new(), interfaces());
    let addresses = machine_addresses();
    assert!(!addresses.is_empty());
    // A non-blocking listener on all addresses.
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let datagrams = UdpSocket::bind("0.0.0.0:0").unwrap();
    datagrams.set_nonblocking(true).unwrap();
    let ports = [listener.local_addr().unwrap().port(), datagrams.local_addr().unwrap().port()];
    let script = format!(
        "for host in {}; do
            timeout 0.3 bash -c \"echo x >/dev/tcp/$host/{}\" 2>/dev/null && echo \"reached $host\"
            bash -c \"echo x >/dev/udp/$host/{}\" 2>/dev/null
        done; true",
        addresses.join(" "),
        ports[0],
        ports[1],
    );
    // From outside the listener is reachable, on every address.
    let outside_output = folder.program("bash").args(["-c", &script]).output().unwrap();
    let reached_count = String::from_utf8(outside_output.stdout).unwrap().lines().count();
    assert_eq!(reached_count, addresses.len());
    let accepted_count = || std::iter::from_fn(|| listener.accept().ok()).count();
    let mut buffer = [0; 8];
    wait_for("what came from outside", || (accepted_count() > 0).then_some(()));
    while datagrams.recv(&mut buffer).is_ok() || accepted_count() > 0 {}
    folder.write("lab.toml", SMALL_SCENARIO);
    for backend in ["auto", "packet"] {
        let line = ["lab", "lab.toml", "--backend", backend, "--", "bash", "-c", &script];
        let output = run_to_end(&folder, &line);
        assert_eq!((output.code, output.out.as_str()), (Some(0), ""), "{output}");
        assert_eq!(accepted_count(), 0, "{output}");
        assert!(datagrams.recv(&mut buffer).is_err(), "{output}");
    }
    assert_eq!(interfaces(), interfaces_before);
}

/// N3, N4: a lab's program sees and kills only its own processes; its mounts are its own.
#[test]
fn a_lab_program_kills_and_mounts_nothing_outside() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    folder.write("lab.toml", SMALL_SCENARIO);
    let mut bystander = folder.start(folder.program("sleep").arg("86397"));
    let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts_before = mounts();
    let script = "
        mkdir -p m; mount -t tmpfs none m; touch ns; mount --bind /proc/self/ns/net ns
        ls /proc | grep -c '^[0-9]' >count; readlink /proc/self/ns/net >net
        setsid sh -c 'trap \"\" TERM INT HUP; sleep 86396' & mount -t tmpfs none /tmp
        kill -9 -1; kill -9 1";
    for _ in 0..times(2, 20) {
        let output = run_to_end(&folder, &["lab", "lab.toml", "--", "sh", "-c", script]);
        drop(output);
        assert!(
            bystander.child.try_wait().unwrap().is_none(),
            "a process of the machine was ended"
        );
        assert_eq!(mounts(), mounts_before);
        let count: u32 =
            fs::read_to_string(folder.work().join("count")).unwrap().trim().parse().unwrap();
        assert!(count < 8, "{count} processes");
    }
    let lab_namespace = fs::read_to_string(folder.work().join("net")).unwrap();
    let own_namespace = fs::read_link("/proc/self/ns/net").unwrap();
    assert_ne!(lab_namespace.trim(), own_namespace.to_str().unwrap());
}

/// N3: the same with shared mounts, as systemd sets them, with user namespaces and without.
#[test]
fn no_mount_of_a_lab_spreads_where_mounts_are_shared() {
    let test = "no_mount_of_a_lab_spreads_where_mounts_are_shared";
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    folder.write("lab.toml", SMALL_SCENARIO);
    let script = "
        mount --make-rshared /
        mounts() { cut -d ' ' -f 1,4- /proc/self/mountinfo | sort; }
        mounts >before
        for users in 100 0; do
            echo $users >/proc/sys/user/max_user_namespaces
            rm -f go there
            $TOWPATH lab lab.toml -- sh -c 'mkdir -p m; mount -t tmpfs none m; touch there
                until test -e go; do sleep 0.02; done' >said 2>&1 & lab=$!
            until test -e there; do kill -0 $lab; sleep 0.02; done
            mounts | diff before - || echo \"$users: spread\"
            touch go; wait $lab || cat said
            mounts | diff before - || echo \"$users: left\"
        done";
    let Some(output) = run_as_root(test, &folder, script) else { return };
    assert_eq!((output.code, output.out.as_str()), (Some(0), ""), "{output}");
}

/// N3: "nothing stays behind, also after `kill -9`", at any moment: no process, namespace,
/// interface or temporary file.
#[test]
fn a_lab_killed_at_any_time_leaves_nothing_behind() {
    let Some(_permit) = acquire_emulator() else { return };
    let (folder, interfaces_before) = (TestDir::new(), interfaces());
    let endless_flow = "[[flows]]\nfrom = \"a\"\nto = \"b\"\nrun = \"setsid sleep 86395\"\nduration = \"10 min\"\n";
    folder.write("run.toml", format!("{SMALL_SCENARIO}{endless_flow}"));
    let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts_before = mounts();
    let mut seen_processes = 0;
    for number in 0..times(12, 200) {
        let out = format!("out-{number}");
        let lines = [
            vec!["run", "run.toml", "-T", "mptcp", "-q", "-o", &out],
            vec!["lab", "run.toml", "--", "sh", "-c", "setsid sleep 86394 & sleep 86393"],
        ];
        let mut command = folder.towpath(&lines[number % 2]);
        let mut running = folder.start(command.process_group(0));
        // The number of polls varies the moment more than a sleep would.
        let mut members = Members::descendants_of(running.id());
        for _ in 0..(number * 7) % 23 {
            std::thread::sleep(Duration::from_millis(3));
            members = Members::descendants_of(running.id());
        }
        seen_processes += members.processes.len();
        // Some signals go to the whole group, some to one process.
        let target = i64::from(running.id());
        signal("KILL", if number % 3 == 0 { -target } else { target });
        let _ = running.child.wait().unwrap();
        members.wait_until_gone();
    }
    assert!(seen_processes > 10, "{seen_processes} processes seen");
    assert_eq!(interfaces(), interfaces_before);
    assert_eq!(mounts(), mounts_before);
    assert_eq!(names(&folder.temporary()), [""; 0]);
    let remaining_programs = || -> Vec<String> {
        let ids = names(std::path::Path::new("/proc"))
            .into_iter()
            .filter(|name| name.parse::<u32>().is_ok());
        let line = |id: String| fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let lines = ids.map(line).map(|line| String::from_utf8_lossy(&line).into_owned());
        lines
            .filter(|line| {
                ["86395", "86394", "86393"].iter().any(|n| line.ends_with(&format!("{n}\0")))
            })
            .collect()
    };
    wait_for("the end of all programs", || remaining_programs().is_empty().then_some(()));
}

/// N2: settings and names of a scenario only affect a host's own namespace.
#[test]
fn no_setting_of_a_scenario_reaches_beyond_its_host() {
    let Some(_permit) = acquire_emulator() else { return };
    let (folder, interfaces_before) = (TestDir::new(), interfaces());
    folder.write("victim", "precious");
    let victim = folder.work().join("victim");
    let victim_path =
        format!("{}{}", "../".repeat(8), victim.to_str().unwrap().trim_start_matches('/'));
    for name in [
        format!("net./{victim_path}"),
        format!("net/{victim_path}"),
        format!("net.ipv4.conf./{victim_path}"),
        format!("net.{victim_path}"),
        "net.ipv4.ip_forward/../../../kernel/domainname".to_owned(),
        "net..kernel.domainname".to_owned(),
        "net.ipv4.conf.*.forwarding".to_owned(),
        "net.".to_owned(),
        "net.ipv4.conf.all".to_owned(),
        "net.core.netdev_max_backlog".to_owned(),
        "net.ipv4.tcp_mem".to_owned(),
        "-w".to_owned(),
        "kernel.domainname".to_owned(),
    ] {
        let host = format!("[hosts.a.sysctl]\n\"{name}\" = \"owned\"\n");
        folder.write("s.toml", SMALL_SCENARIO.replace("[hosts.a]\n", &host));
        assert_refused(&folder, &words("run s.toml -T tcp -q -o out"));
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious", "{name}");
    }
    for name in ["lo", "all", "default", ".", "..", "a/b", "-h", "a b", "%d", "eth%d", "a\\nb"] {
        folder.write("s.toml", SMALL_SCENARIO.replace("paths.p]", &format!("paths.\"{name}\"]")));
        assert_refused(&folder, &words("run s.toml -T tcp -q -o out"));
        assert_refused(&folder, &words("lab s.toml -- true"));
    }
    // A host's setting stays in its namespace.
    let ip_forward = || fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap();
    let forward_before = ip_forward();
    let other_value = if forward_before.trim() == "0" { "1" } else { "0" };
    let host = format!("[hosts.a.sysctl]\n\"net.ipv4.ip_forward\" = \"{other_value}\"\n");
    folder.write("s.toml", SMALL_SCENARIO.replace("[hosts.a]\n", &host));
    let output = run_to_end(&folder, &words("lab s.toml -- cat /proc/sys/net/ipv4/ip_forward"));
    assert_eq!((output.out.trim(), ip_forward()), (other_value, forward_before), "{output}");
    assert_eq!(interfaces(), interfaces_before);
}
