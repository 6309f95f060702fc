//! `towpath lab`: any program in a scenario's network.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::Stdio;

use towpath_measure::result::{Record, Summary};
use towpath_measure::scenario::{DataDirection, Transport};
use towpath_measure::store::RunResult;

use crate::processes::{Members, interfaces, signal};
use crate::program::{ProgramOutput, TWO_PATHS, TestDir, emulator, missing, skip, wait_for};

/// Runs a shell script in the lab of two paths; `None` if this machine cannot emulate.
fn lab(options: &[&str], script: &str) -> Option<ProgramOutput> {
    lab_of(TWO_PATHS, options, script)
}

fn lab_of(scenario: &str, options: &[&str], script: &str) -> Option<ProgramOutput> {
    let _serial = emulator()?;
    let folder = TestDir::new();
    folder.write("scenario.toml", scenario);
    let arguments = [&["lab", "scenario.toml"], options, &["--", "sh", "-c", script]].concat();
    let ended = folder.run(&arguments);
    assert_eq!(folder.names(), ["scenario.toml"], "a lab measures nothing");
    Some(ended)
}

#[test]
fn the_programs_exit_code_is_passed_on() {
    for code in [0, 1, 7, 255] {
        let Some(ended) = lab(&[], &format!("exit {code}")) else { return };
        assert_eq!(ended.code, Some(code), "{ended}");
    }
    let Some(ended) = lab(&[], "kill -s KILL $$") else { return };
    assert_eq!(ended.code, Some(128 + 9), "{ended}");
}

#[test]
fn the_program_sees_the_interfaces_of_its_host() {
    for backend in ["auto", "packet"] {
        let Some(ended) = lab(&["--backend", backend], "cat /proc/net/dev") else { return };
        assert_eq!(ended.code, Some(0), "{ended}");
        let names = ended.out.lines().filter_map(|line| Some(line.split_once(':')?.0.trim()));
        assert_eq!(names.collect::<Vec<_>>(), ["lo", "wifi", "cellular"], "{ended}");
    }
}

#[test]
fn the_program_runs_on_the_requested_host() {
    for (options, host) in [(&[][..], "phone"), (&["--host", "server"], "server")] {
        let Some(ended) =
            lab(options, "echo $TOWPATH_HOST $TOWPATH_SERVER_WIFI $TOWPATH_PHONE_CELLULAR")
        else {
            return;
        };
        assert_eq!(ended.out, format!("{host} 10.64.0.2 10.64.1.1\n"), "{ended}");
        let own = ended.err.lines().find(|line| line.starts_with(host));
        assert!(own.is_some_and(|line| line.ends_with("you are here)")), "{ended}");
    }
}

#[test]
fn the_timeline_starts_with_the_program() {
    let timeline = "[[timeline]]\nat = \"300 ms\"\npath = \"wifi\"\nset = \"down\"\n\
        mode = \"interface\"\nhost = \"phone\"\n";
    // The kernel removes the routes of an interface that is down.
    // On a busy machine, a late check must at least find that the removal was not early.
    let script = r"
        early() {
            began=$(cut -d ' ' -f 22 /proc/$$/stat) # in ticks, of which there are 100 in a second
            read -r now _ </proc/uptime
            test $((${now%.*}${now#*.} - began)) -lt 29
        }
        grep -q '^wifi' /proc/net/route || ! early || echo 'gone too early'
        while grep -q '^wifi' /proc/net/route; do sleep 0.02; done
        ! early || echo 'gone too early'
        grep -q '^cellular' /proc/net/route || echo 'another one is gone'";
    let Some(ended) = lab_of(&format!("{TWO_PATHS}{timeline}"), &[], script) else { return };
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""), "{ended}");
}

#[test]
fn a_background_process_does_not_survive_the_lab() {
    let Some(_serial) = emulator() else { return };
    let (folder, before) = (TestDir::new(), interfaces());
    folder.write("scenario.toml", TWO_PATHS);
    let script = "setsid sleep 86398 & until test -e end; do sleep 0.02; done";
    let mut command = folder.towpath(&["lab", "scenario.toml", "--", "sh", "-c", script]);
    let running = folder.start(&mut command);
    let members = Members::wait_for(running.id(), "sleep 86398");
    folder.write("end", "");
    let ended = running.wait();
    assert_eq!(ended.code, Some(0), "{ended}");
    members.wait_until_gone();
    assert_eq!(interfaces(), before);
}

#[test]
fn a_killed_lab_takes_its_program_with_it() {
    let Some(_serial) = emulator() else { return };
    let (folder, before) = (TestDir::new(), interfaces());
    folder.write("scenario.toml", TWO_PATHS);
    let running = folder.start(&mut folder.towpath(&[
        "lab",
        "scenario.toml",
        "--",
        "setsid",
        "sleep",
        "86397",
    ]));
    let members = Members::wait_for(running.id(), "sleep 86397");
    signal("KILL", running.id().into());
    assert_eq!(running.wait().code, None);
    members.wait_until_gone();
    assert_eq!(interfaces(), before);
}

#[test]
fn standard_input_reaches_the_program() {
    let Some(_serial) = emulator() else { return };
    let folder = TestDir::new();
    folder.write("scenario.toml", TWO_PATHS);
    let mut command = folder.towpath(&["lab", "scenario.toml", "--", "cat"]);
    let mut running = folder.start(command.stdin(Stdio::piped()));
    let mut input = running.child.stdin.take().unwrap();
    input.write_all(b"one line\nand half a").unwrap();
    drop(input);
    let ended = running.wait();
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "one line\nand half a"), "{ended}");
}

#[test]
fn a_shell_without_a_terminal_ends_with_its_input() {
    let Some(_serial) = emulator() else { return };
    let folder = TestDir::new();
    folder.write("scenario.toml", TWO_PATHS);
    let mut command = folder.towpath(&["lab", "scenario.toml"]);
    let mut running = folder.start(command.env("SHELL", "/bin/sh").stdin(Stdio::piped()));
    running.child.stdin.take().unwrap().write_all(b"echo here\nexit 4\n").unwrap();
    let ended = running.wait();
    assert_eq!((ended.code, ended.out.as_str()), (Some(4), "here\n"), "{ended}");
}

#[test]
fn no_controlling_terminal_is_needed() {
    if let Some(reason) = missing("setsid") {
        return skip("no_controlling_terminal_is_needed", &reason);
    }
    let Some(_serial) = emulator() else { return };
    let folder = TestDir::new();
    folder.write("scenario.toml", TWO_PATHS);
    let mut command = folder.program("setsid");
    command.arg("--wait").arg(crate::program::binary());
    command.args(["lab", "scenario.toml", "--", "sh", "-c", "echo there; exit 5"]);
    let ended = folder.start(&mut command).wait();
    assert_eq!((ended.code, ended.out.as_str()), (Some(5), "there\n"), "{ended}");
}

#[test]
fn a_missing_program_is_reported() {
    let Some(_serial) = emulator() else { return };
    let folder = TestDir::new();
    let ended = folder.run(&["lab", "two-links", "--", "no-such-program"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{ended}");
    assert!(ended.err.contains("error: cannot run `no-such-program`: no such file"), "{ended}");
}

#[test]
fn an_interrupt_is_left_to_the_program() {
    use std::os::unix::process::CommandExt;
    let Some(_serial) = emulator() else { return };
    let folder = TestDir::new();
    folder.write("scenario.toml", TWO_PATHS);
    let script = "trap 'echo caught; exit 6' INT; echo ready; while :; do sleep 0.05; done";
    let mut command = folder.towpath(&["lab", "scenario.toml", "--", "sh", "-c", script]);
    let running = folder.start(command.process_group(0));
    wait_for("the trap", || running.printed().contains("ready").then_some(()));
    signal("INT", -i64::from(running.id()));
    let ended = running.wait();
    assert_eq!((ended.code, ended.out.as_str()), (Some(6), "ready\ncaught\n"), "{ended}");
}

/// Runs several programs in the lab of two paths; the result is in `results`.
fn run_programs(folder: &TestDir, more: &[&str], programs: &[(&str, &str)]) -> ProgramOutput {
    folder.write("scenario.toml", TWO_PATHS);
    let on = programs.iter().flat_map(|(host, command)| ["--on", host, command]);
    let start = ["lab", "scenario.toml", "--out", "results"];
    let arguments: Vec<_> = start.into_iter().chain(more.iter().copied()).chain(on).collect();
    folder.run(&arguments)
}

fn summary(result: &RunResult) -> &Summary {
    result.summary.as_ref().unwrap()
}

/// Returns the bytes of one direction.
fn bytes(summary: &Summary, direction: DataDirection) -> u64 {
    let own = summary.flows.iter().filter(|flow| flow.direction == direction);
    own.map(|flow| flow.bytes).sum()
}

/// Returns the bytes that the receiver's interfaces counted.
fn interface_bytes(result: &RunResult, host: &str) -> u64 {
    let own = result.records.iter().filter_map(|record| {
        let Record::Interface(interface) = record else { return None };
        (interface.host == host).then_some(interface.rx_bytes)
    });
    own.sum()
}

#[test]
fn a_server_and_its_client_are_measured_path_by_path() {
    let test = "a_server_and_its_client_are_measured_path_by_path";
    if let Some(reason) = missing("iperf3") {
        return skip(test, &reason);
    }
    let Some(_serial) = emulator() else { return };
    let folder = TestDir::new();
    let programs = [("server", "iperf3 -s -1"), ("client", "iperf3 -c $TOWPATH_SERVER -n 2M")];
    let ended = run_programs(&folder, &[], &programs);
    assert_eq!(ended.code, Some(0), "{ended}");
    // The server listened before the client connected, and could print its last lines.
    for line in ["server | Server listening on 5201", "phone  | Connecting to host 10.64.0.2"] {
        assert!(ended.out.contains(line), "{ended}");
    }
    let sums = ended.out.lines().filter(|line| line.ends_with("receiver")).count();
    assert_eq!(sums, 2, "{ended}");
    assert!(ended.err.contains("tcp: moved ") && ended.err.contains(" up at "), "{ended}");
    assert!(ended.err.contains("over wifi"), "{ended}");

    let result = folder.stored("results/lab-1.jsonl.zst");
    let summary = summary(&result);
    assert_eq!(result.meta.transport, Transport::Tcp);
    let up = bytes(summary, DataDirection::Up);
    // The program exits after its last write, so its last bytes may not arrive.
    assert!((1_000_000..2_200_000).contains(&up), "{up}");
    let counted = interface_bytes(&result, "server");
    assert!(up < counted && counted - up < up / 5, "{up} of {counted}");
    let main = summary.subflows.iter().max_by_key(|subflow| subflow.bytes).unwrap();
    assert_eq!((main.path.as_str(), main.direction), ("wifi", DataDirection::Up));
    assert!(main.share > 0.99, "{main:?}");
    let page = fs::read_to_string(folder.work().join("results/report.html")).unwrap();
    assert!(page.contains("Moved ") || page.contains("moved "), "no such sentence");
}

#[test]
fn programs_over_multipath_tcp_show_both_paths() {
    let test = "programs_over_multipath_tcp_show_both_paths";
    if let Some(reason) = missing("iperf3") {
        return skip(test, &reason);
    }
    let Some(_serial) = emulator() else { return };
    let folder = TestDir::new();
    let programs = [
        ("server", "towpath exec --quiet -- iperf3 -s -1"),
        ("phone", "towpath exec --quiet -- iperf3 -c $TOWPATH_TO -n 8M"),
    ];
    let ended = run_programs(&folder, &[], &programs);
    assert_eq!(ended.code, Some(0), "{ended}");
    let result = folder.stored("results/lab-1.jsonl.zst");
    let summary = summary(&result);
    assert_eq!(result.meta.transport, Transport::Mptcp);
    assert!(summary.multipath.used, "{:?}", summary.multipath);
    assert_eq!(summary.multipath.paths_used, ["wifi", "cellular"]);
    let up = bytes(summary, DataDirection::Up);
    assert!((4_000_000..8_600_000).contains(&up), "{up}");
    let of = |path: &str| {
        let own = summary.subflows.iter().filter(|subflow| subflow.path == path);
        own.filter(|s| s.direction == DataDirection::Up).map(|s| s.bytes).sum::<u64>()
    };
    // Reinjections count on each subflow, so their sum is at least the total.
    // iperf3 closes while data still waits for the slower path; that data is not part of the flow.
    let (wifi, cellular) = (of("wifi"), of("cellular"));
    assert!(wifi.min(cellular) > up / 10, "{wifi} and {cellular} of {up}");
    let most = 8 * 1_048_576 * 11 / 10;
    assert!((up - up / 100..most).contains(&(wifi + cellular)), "{wifi}, {cellular}, {up}");
    assert!(ended.err.contains("over wifi and cellular"), "{ended}");
}

#[test]
fn a_page_that_is_over_at_once_is_counted_whole() {
    let test = "a_page_that_is_over_at_once_is_counted_whole";
    for tool in ["nginx", "curl"] {
        if let Some(reason) = missing(tool) {
            return skip(test, &reason);
        }
    }
    let Some(_serial) = emulator() else { return };
    let folder = TestDir::new();
    folder.write("page", vec![7; 5_000]);
    let place = folder.work().display().to_string();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {place}/{kind};"));
    folder.write(
        "nginx.conf",
        format!(
            "daemon off; pid {place}/nginx.pid; error_log {place}/error.log;\n\
             events {{}}\nhttp {{ access_log off; {}\n\
             server {{ listen 8080; root {place}; }} }}\n",
            temporary.join(" ")
        ),
    );
    let server = format!("nginx -c {place}/nginx.conf");
    let curl = "for i in 1 2 3; do curl -so got http://$TOWPATH_SERVER:8080/page || exit; done";
    let ended = run_programs(&folder, &[], &[("server", &server), ("client", curl)]);
    assert_eq!(ended.code, Some(0), "{ended}");
    let result = folder.stored("results/lab-1.jsonl.zst");
    let summary = summary(&result);
    let down = bytes(summary, DataDirection::Down);
    assert!((15_000..17_000).contains(&down), "{down}: {ended}");
    let connections: BTreeSet<_> = summary.subflows.iter().map(|s| s.stream).collect();
    assert_eq!(connections.len(), 3, "{:?}", summary.subflows);
    assert!(ended.err.contains(" and 15.") && ended.err.contains(" down at "), "{ended}");
    let page = fs::read_to_string(folder.work().join("results/report.html")).unwrap();
    let chart = |direction: &str| page.find(&format!("Goodput by subflow, {direction}")).unwrap();
    assert!(chart("down") < chart("up"), "what was asked for stands before the requests");
}

#[test]
fn a_program_that_fails_before_the_next_could_start_ends_the_lab() {
    let Some(_serial) = emulator() else { return };
    let folder = TestDir::new();
    let programs = [("phone", "true"), ("server", "exit 3"), ("client", "echo never")];
    let ended = run_programs(&folder, &[], &programs);
    assert_eq!((ended.code, ended.out.as_str()), (Some(3), ""), "{ended}");
    assert!(ended.err.contains("`exit 3` on server ended with exit status: 3"), "{ended}");
    assert_eq!(folder.names(), ["scenario.toml"], "nothing was measured");
}

#[test]
fn a_program_without_sockets_is_not_awaited() {
    let Some(_serial) = emulator() else { return };
    let (folder, before) = (TestDir::new(), interfaces());
    folder.write("scenario.toml", TWO_PATHS);
    let stubborn = "trap '' TERM; sleep 86396";
    let last = "until test -e end; do sleep 0.02; done; exit 9";
    let mut command = folder.towpath(&[
        "lab",
        "scenario.toml",
        "-q",
        "-o",
        "results",
        "--on",
        "phone",
        stubborn,
        "--on",
        "phone",
        last,
    ]);
    let running = folder.start(&mut command);
    let members = Members::wait_for(running.id(), "sleep 86396");
    folder.write("end", "");
    let ended = running.wait();
    assert_eq!(ended.code, Some(9), "{ended}");
    assert!(ended.err.contains("has opened no socket for 5s; the next one starts"), "{ended}");
    members.wait_until_gone();
    assert_eq!(interfaces(), before);
}

#[test]
fn a_host_that_the_lab_does_not_have_is_refused() {
    let ended = run_programs(&TestDir::new(), &[], &[("tablet", "true")]);
    assert_eq!(ended.code, Some(2), "{ended}");
    assert!(ended.err.contains("`two-paths` has no host `tablet`"), "{ended}");
    assert!(ended.err.contains("hint: its hosts are: phone, server"), "{ended}");
}

/// Returns the lines of `env` that towpath sets.
fn variables(text: &str) -> BTreeSet<String> {
    let all = text.lines().map(|line| line.rsplit_once("| ").map_or(line, |(_, line)| line));
    let ours = all.filter(|line| {
        let name = line.split('=').next().and_then(|name| name.strip_prefix("TOWPATH_"));
        let part = name.and_then(|name| name.split('_').next());
        part.is_some_and(|part| ["CLIENT", "HOST", "PHONE", "SERVER", "TO"].contains(&part))
    });
    ours.map(str::to_owned).collect()
}

#[test]
fn a_flow_command_gets_the_variables_of_a_lab_program() {
    let Some(_serial) = emulator() else { return };
    let folder = TestDir::new();
    let flow = "[[flows]]\nfrom = \"phone\"\nto = \"server\"\nrun = \"env >flow.txt\"\n";
    folder.write("scenario.toml", format!("{TWO_PATHS}{flow}"));
    let arguments = ["run", "scenario.toml", "-q", "-T", "mptcp", "-o", "results"];
    let ended = folder.run(&arguments);
    assert_eq!(ended.code, Some(0), "{ended}");
    let text = fs::read_to_string(folder.work().join("flow.txt")).unwrap();
    assert!(text.contains("TOWPATH_TRANSPORT=mptcp\n"), "{text}");
    let ended = folder.run(&["lab", "scenario.toml", "--", "env"]);
    assert_eq!(variables(&ended.out), variables(&text));
    let expected = [
        "TOWPATH_CLIENT=10.64.0.1",
        "TOWPATH_HOST=phone",
        "TOWPATH_PHONE=10.64.0.1",
        "TOWPATH_PHONE_CELLULAR=10.64.1.1",
        "TOWPATH_PHONE_WIFI=10.64.0.1",
        "TOWPATH_SERVER=10.64.0.2",
        "TOWPATH_SERVER_CELLULAR=10.64.1.2",
        "TOWPATH_SERVER_WIFI=10.64.0.2",
        "TOWPATH_TO=10.64.0.2",
    ];
    assert_eq!(variables(&text), expected.into_iter().map(str::to_owned).collect());
}

#[test]
fn traffic_of_a_flow_command_is_in_the_result() {
    if let Some(reason) = missing("iperf3") {
        return skip("traffic_of_a_flow_command_is_in_the_result", &reason);
    }
    let Some(_serial) = emulator() else { return };
    let folder = TestDir::new();
    let flows = r#"
        [[flows]]
        from = "server"
        to = "phone"
        run = "iperf3 -s -1"
        [[flows]]
        from = "phone"
        to = "server"
        run = "until iperf3 -c $TOWPATH_TO -R -n 2M; do sleep 0.05; done"
    "#;
    let result = folder.result(&format!("{TWO_PATHS}{flows}"), "tcp");
    let summary = summary(&result);
    let moved = summary.flows.iter().find(|flow| flow.direction == DataDirection::Down).unwrap();
    assert_eq!(moved.flow, 1, "{:?}", summary.flows);
    assert!((2 * 1024 * 1024..2_300_000).contains(&moved.bytes), "{moved:?}");
    assert_eq!(moved.congestion_control.len(), 1, "{moved:?}");
}

#[test]
fn a_shell_of_a_lab_reaches_the_other_host() {
    if fs::read_to_string("/proc/sys/user/max_user_namespaces").is_ok_and(|max| max == "0\n") {
        return skip("a_shell_of_a_lab_reaches_the_other_host", "there are no user namespaces");
    }
    let Some(_serial) = emulator() else { return };
    let folder = TestDir::new();
    folder.write("scenario.toml", TWO_PATHS);
    let mut command = folder.towpath(&["lab", "scenario.toml"]);
    let mut running = folder.start(command.env("SHELL", "/bin/sh").stdin(Stdio::piped()));
    let script = "towpath on server sh -c 'echo $TOWPATH_HOST $TOWPATH_TO; cat /proc/net/dev'\n\
                  towpath on tablet true\nexit $?\n";
    running.child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let ended = running.wait();
    assert_eq!(ended.code, Some(2), "{ended}");
    assert!(ended.out.starts_with("server 10.64.0.1\n") && ended.out.contains("wifi:"), "{ended}");
    assert!(ended.err.contains("on another host: `towpath on server COMMAND`"), "{ended}");
    assert!(ended.err.contains("error: the lab has no host `tablet`"), "{ended}");
    let outside = folder.run(&["on", "server", "true"]);
    assert_eq!(outside.code, Some(2), "{outside}");
    assert!(outside.err.contains("error: this is not in a lab"), "{outside}");
}

#[test]
fn a_capture_of_tcpdump_is_ready_before_the_next_program_starts() {
    if let Some(reason) = missing("tcpdump").or_else(|| missing("curl")) {
        return skip("a_capture_of_tcpdump_is_ready_before_the_next_program_starts", &reason);
    }
    let Some(_serial) = emulator() else { return };
    let folder = TestDir::new();
    let programs = [
        ("server", "tcpdump --immediate-mode -i wifi -n -c 1 tcp port 80"),
        ("client", "curl -s http://$TOWPATH_SERVER/; sleep 0.3"),
    ];
    let ended = run_programs(&folder, &["-q"], &programs);
    assert!(ended.out.contains("10.64.0.2.80: Flags [S]"), "{ended}");
}
