//! `towpath lab`: any program in a scenario's network.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::Stdio;

use towpath_result::store::RunResult;
use towpath_result::{Record, Summary};
use towpath_scenario::{DataDirection, Transport};

use crate::processes::{Members, interfaces, signal};
use crate::program::{
    ProgramOutput, TWO_PATHS, TestDir, acquire_emulator, missing, skip, wait_for,
};

/// Runs a shell script in the lab of two paths; `None` if this machine cannot emulate.
fn lab(options: &[&str], script: &str) -> Option<ProgramOutput> {
    lab_in(TWO_PATHS, options, script)
}

fn lab_in(scenario: &str, options: &[&str], script: &str) -> Option<ProgramOutput> {
    let _permit = acquire_emulator()?;
    let folder = TestDir::new();
    folder.write("scenario.toml", scenario);
    let arguments = [&["lab", "scenario.toml"], options, &["--", "sh", "-c", script]].concat();
    let output = folder.run(&arguments);
    assert_eq!(folder.names(), ["scenario.toml"], "a lab measures nothing");
    Some(output)
}

#[test]
fn the_programs_exit_code_is_passed_on() {
    for code in [0, 1, 7, 255] {
        let Some(output) = lab(&[], &format!("exit {code}")) else { return };
        assert_eq!(output.code, Some(code), "{output}");
    }
    let Some(output) = lab(&[], "kill -s KILL $$") else { return };
    assert_eq!(output.code, Some(128 + 9), "{output}");
}

#[test]
fn the_program_sees_the_interfaces_of_its_host() {
    for backend in ["auto", "packet"] {
        let Some(output) = lab(&["--backend", backend], "cat /proc/net/dev") else { return };
        assert_eq!(output.code, Some(0), "{output}");
        let names = output.out.lines().filter_map(|line| Some(line.split_once(':')?.0.trim()));
        assert_eq!(names.collect::<Vec<_>>(), ["lo", "wifi", "cellular"], "{output}");
    }
}

#[test]
fn the_program_runs_on_the_requested_host() {
    for (options, host) in [(&[][..], "phone"), (&["--host", "server"], "server")] {
        let Some(output) =
            lab(options, "echo $TOWPATH_HOST $TOWPATH_SERVER_WIFI $TOWPATH_PHONE_CELLULAR")
        else {
            return;
        };
        assert_eq!(output.out, format!("{host} 10.64.0.2 10.64.1.1\n"), "{output}");
        let host_line = output.err.lines().find(|line| line.starts_with(host));
        assert!(host_line.is_some_and(|line| line.ends_with("you are here)")), "{output}");
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
    let Some(output) = lab_in(&format!("{TWO_PATHS}{timeline}"), &[], script) else { return };
    assert_eq!((output.code, output.out.as_str()), (Some(0), ""), "{output}");
}

#[test]
fn a_background_process_does_not_survive_the_lab() {
    let Some(_permit) = acquire_emulator() else { return };
    let (folder, interfaces_before) = (TestDir::new(), interfaces());
    folder.write("scenario.toml", TWO_PATHS);
    let script = "setsid sleep 86398 & until test -e end; do sleep 0.02; done";
    let mut command = folder.towpath(&["lab", "scenario.toml", "--", "sh", "-c", script]);
    let running = folder.start(&mut command);
    let members = Members::wait_for(running.id(), "sleep 86398");
    folder.write("end", "");
    let output = running.wait();
    assert_eq!(output.code, Some(0), "{output}");
    members.wait_until_gone();
    assert_eq!(interfaces(), interfaces_before);
}

#[test]
fn a_killed_lab_takes_its_program_with_it() {
    let Some(_permit) = acquire_emulator() else { return };
    let (folder, interfaces_before) = (TestDir::new(), interfaces());
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
    assert_eq!(interfaces(), interfaces_before);
}

#[test]
fn standard_input_reaches_the_program() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    folder.write("scenario.toml", TWO_PATHS);
    let mut command = folder.towpath(&["lab", "scenario.toml", "--", "cat"]);
    let mut running = folder.start(command.stdin(Stdio::piped()));
    let mut input = running.child.stdin.take().unwrap();
    input.write_all(b"one line\nand half a").unwrap();
    drop(input);
    let output = running.wait();
    assert_eq!((output.code, output.out.as_str()), (Some(0), "one line\nand half a"), "{output}");
}

#[test]
fn a_shell_without_a_terminal_ends_with_its_input() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    folder.write("scenario.toml", TWO_PATHS);
    let mut command = folder.towpath(&["lab", "scenario.toml"]);
    let mut running = folder.start(command.env("SHELL", "/bin/sh").stdin(Stdio::piped()));
    running.child.stdin.take().unwrap().write_all(b"echo here\nexit 4\n").unwrap();
    let output = running.wait();
    assert_eq!((output.code, output.out.as_str()), (Some(4), "here\n"), "{output}");
}

#[test]
fn no_controlling_terminal_is_needed() {
    if let Some(reason) = missing("setsid") {
        return skip("no_controlling_terminal_is_needed", &reason);
    }
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    folder.write("scenario.toml", TWO_PATHS);
    let mut command = folder.program("setsid");
    command.arg("--wait").arg(crate::program::binary());
    command.args(["lab", "scenario.toml", "--", "sh", "-c", "echo there; exit 5"]);
    let output = folder.start(&mut command).wait();
    assert_eq!((output.code, output.out.as_str()), (Some(5), "there\n"), "{output}");
}

#[test]
fn a_missing_program_is_reported() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    let output = folder.run(&["lab", "two-links", "--", "no-such-program"]);
    assert_eq!((output.code, output.out.as_str()), (Some(2), ""), "{output}");
    assert!(output.err.contains("error: cannot run `no-such-program`: no such file"), "{output}");
}

#[test]
fn an_interrupt_is_left_to_the_program() {
    use std::os::unix::process::CommandExt;
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    folder.write("scenario.toml", TWO_PATHS);
    let script = "trap 'echo caught; exit 6' INT; echo ready; while :; do sleep 0.05; done";
    let mut command = folder.towpath(&["lab", "scenario.toml", "--", "sh", "-c", script]);
    let running = folder.start(command.process_group(0));
    wait_for("the trap", || running.printed().contains("ready").then_some(()));
    signal("INT", -i64::from(running.id()));
    let output = running.wait();
    assert_eq!((output.code, output.out.as_str()), (Some(6), "ready\ncaught\n"), "{output}");
}

/// Runs several programs in the lab of two paths; the result is in `results`.
fn run_programs(folder: &TestDir, options: &[&str], programs: &[(&str, &str)]) -> ProgramOutput {
    folder.write("scenario.toml", TWO_PATHS);
    let program_options = programs.iter().flat_map(|(host, command)| ["--on", host, command]);
    let base_arguments = ["lab", "scenario.toml", "--out", "results"];
    let arguments: Vec<_> =
        base_arguments.into_iter().chain(options.iter().copied()).chain(program_options).collect();
    folder.run(&arguments)
}

fn summary_of(result: &RunResult) -> &Summary {
    result.summary.as_ref().unwrap()
}

/// Returns the bytes of one direction.
fn bytes(summary: &Summary, direction: DataDirection) -> u64 {
    let flows = summary.flows.iter().filter(|flow| flow.direction == direction);
    flows.map(|flow| flow.bytes).sum()
}

/// Returns the bytes that the receiver's interfaces counted.
fn interface_bytes(result: &RunResult, host: &str) -> u64 {
    let received = result.records.iter().filter_map(|record| {
        let Record::Interface(interface) = record else { return None };
        (interface.host == host).then_some(interface.rx_bytes)
    });
    received.sum()
}

#[test]
fn a_server_and_its_client_are_measured_path_by_path() {
    let test = "a_server_and_its_client_are_measured_path_by_path";
    if let Some(reason) = missing("iperf3") {
        return skip(test, &reason);
    }
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    let programs = [("server", "iperf3 -s -1"), ("client", "iperf3 -c $TOWPATH_SERVER -n 2M")];
    let output = run_programs(&folder, &[], &programs);
    assert_eq!(output.code, Some(0), "{output}");
    // The server listened before the client connected, and could print its last lines.
    for line in ["server | Server listening on 5201", "phone  | Connecting to host 10.64.0.2"] {
        assert!(output.out.contains(line), "{output}");
    }
    let receiver_lines = output.out.lines().filter(|line| line.ends_with("receiver")).count();
    assert_eq!(receiver_lines, 2, "{output}");
    assert!(output.err.contains("tcp: moved ") && output.err.contains(" up at "), "{output}");
    assert!(output.err.contains("over wifi"), "{output}");

    let result = folder.stored("results/lab-1.jsonl.zst");
    let summary = summary_of(&result);
    assert_eq!(result.meta.transport, Transport::Tcp);
    let up = bytes(summary, DataDirection::Up);
    // The program exits after its last write, so its last bytes may not arrive.
    assert!((1_000_000..2_200_000).contains(&up), "{up}");
    let interface_total = interface_bytes(&result, "server");
    assert!(up < interface_total && interface_total - up < up / 5, "{up} of {interface_total}");
    let main_subflow = summary.subflows.iter().max_by_key(|subflow| subflow.bytes).unwrap();
    assert_eq!((main_subflow.path.as_str(), main_subflow.direction), ("wifi", DataDirection::Up));
    assert!(main_subflow.share > 0.99, "{main_subflow:?}");
    let page = fs::read_to_string(folder.work().join("results/report.html")).unwrap();
    assert!(page.contains("Moved ") || page.contains("moved "), "no such sentence");
}

#[test]
fn programs_over_multipath_tcp_show_both_paths() {
    let test = "programs_over_multipath_tcp_show_both_paths";
    if let Some(reason) = missing("iperf3") {
        return skip(test, &reason);
    }
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    let programs = [
        ("server", "towpath exec --quiet -- iperf3 -s -1"),
        ("phone", "towpath exec --quiet -- iperf3 -c $TOWPATH_TO -n 8M"),
    ];
    let output = run_programs(&folder, &[], &programs);
    assert_eq!(output.code, Some(0), "{output}");
    let result = folder.stored("results/lab-1.jsonl.zst");
    let summary = summary_of(&result);
    assert_eq!(result.meta.transport, Transport::Mptcp);
    assert!(summary.multipath.used, "{:?}", summary.multipath);
    assert_eq!(summary.multipath.paths_used, ["wifi", "cellular"]);
    let up = bytes(summary, DataDirection::Up);
    assert!((4_000_000..8_600_000).contains(&up), "{up}");
    let path_bytes = |path: &str| {
        let path_subflows = summary.subflows.iter().filter(|subflow| subflow.path == path);
        path_subflows.filter(|s| s.direction == DataDirection::Up).map(|s| s.bytes).sum::<u64>()
    };
    // Reinjections count on each subflow, so their sum is at least the total.
    // iperf3 closes while data still waits for the slower path; that data is not part of the flow.
    let (wifi, cellular) = (path_bytes("wifi"), path_bytes("cellular"));
    assert!(wifi.min(cellular) > up / 10, "{wifi} and {cellular} of {up}");
    let max_bytes = 8 * 1_048_576 * 11 / 10;
    assert!((up - up / 100..max_bytes).contains(&(wifi + cellular)), "{wifi}, {cellular}, {up}");
    assert!(output.err.contains("over wifi and cellular"), "{output}");
}

#[test]
fn a_page_that_loads_at_once_is_counted_in_full() {
    let test = "a_page_that_loads_at_once_is_counted_in_full";
    for tool in ["nginx", "curl"] {
        if let Some(reason) = missing(tool) {
            return skip(test, &reason);
        }
    }
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    folder.write("page", vec![7; 5_000]);
    let folder_path = folder.work().display().to_string();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {folder_path}/{kind};"));
    folder.write(
        "nginx.conf",
        format!(
            "daemon off; pid {folder_path}/nginx.pid; error_log {folder_path}/error.log;\n\
             events {{}}\nhttp {{ access_log off; {}\n\
             server {{ listen 8080; root {folder_path}; }} }}\n",
            temporary.join(" ")
        ),
    );
    let server = format!("nginx -c {folder_path}/nginx.conf");
    let curl = "for i in 1 2 3; do curl -so got http://$TOWPATH_SERVER:8080/page || exit; done";
    let output = run_programs(&folder, &[], &[("server", &server), ("client", curl)]);
    assert_eq!(output.code, Some(0), "{output}");
    let result = folder.stored("results/lab-1.jsonl.zst");
    let summary = summary_of(&result);
    let down = bytes(summary, DataDirection::Down);
    assert!((15_000..17_000).contains(&down), "{down}: {output}");
    let connections: BTreeSet<_> = summary.subflows.iter().map(|s| s.stream).collect();
    assert_eq!(connections.len(), 3, "{:?}", summary.subflows);
    assert!(output.err.contains(" and 15.") && output.err.contains(" down at "), "{output}");
    let page = fs::read_to_string(folder.work().join("results/report.html")).unwrap();
    let chart_position =
        |direction: &str| page.find(&format!("Goodput by subflow, {direction}")).unwrap();
    assert!(
        chart_position("down") < chart_position("up"),
        "the response precedes the next requests"
    );
}

#[test]
fn a_program_that_fails_before_the_next_could_start_ends_the_lab() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    let programs = [("phone", "true"), ("server", "exit 3"), ("client", "echo never")];
    let output = run_programs(&folder, &[], &programs);
    assert_eq!((output.code, output.out.as_str()), (Some(3), ""), "{output}");
    assert!(output.err.contains("`exit 3` on server ended with exit status: 3"), "{output}");
    assert_eq!(folder.names(), ["scenario.toml"], "nothing was measured");
}

#[test]
fn a_program_without_sockets_is_not_awaited() {
    let Some(_permit) = acquire_emulator() else { return };
    let (folder, interfaces_before) = (TestDir::new(), interfaces());
    folder.write("scenario.toml", TWO_PATHS);
    let ignores_sigterm = "trap '' TERM; sleep 86396";
    let last_command = "until test -e end; do sleep 0.02; done; exit 9";
    let mut command = folder.towpath(&[
        "lab",
        "scenario.toml",
        "-q",
        "-o",
        "results",
        "--on",
        "phone",
        ignores_sigterm,
        "--on",
        "phone",
        last_command,
    ]);
    let running = folder.start(&mut command);
    let members = Members::wait_for(running.id(), "sleep 86396");
    folder.write("end", "");
    let output = running.wait();
    assert_eq!(output.code, Some(9), "{output}");
    assert!(output.err.contains("has opened no socket for 5s; the next one starts"), "{output}");
    members.wait_until_gone();
    assert_eq!(interfaces(), interfaces_before);
}

#[test]
fn a_host_that_the_lab_does_not_have_is_refused() {
    let output = run_programs(&TestDir::new(), &[], &[("tablet", "true")]);
    assert_eq!(output.code, Some(2), "{output}");
    assert!(output.err.contains("`two-paths` has no host `tablet`"), "{output}");
    assert!(output.err.contains("hint: its hosts are: phone, server"), "{output}");
}

/// Returns the lines of `env` that towpath sets.
fn lab_variables(text: &str) -> BTreeSet<String> {
    let lines = text.lines().map(|line| line.rsplit_once("| ").map_or(line, |(_, line)| line));
    let own_lines = lines.filter(|line| {
        let name = line.split('=').next().and_then(|name| name.strip_prefix("TOWPATH_"));
        let first_word = name.and_then(|name| name.split('_').next());
        first_word.is_some_and(|first_word| {
            ["CLIENT", "HOST", "PHONE", "SERVER", "TO"].contains(&first_word)
        })
    });
    own_lines.map(str::to_owned).collect()
}

#[test]
fn a_flow_command_gets_the_variables_of_a_lab_program() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    let flow = "[[flows]]\nfrom = \"phone\"\nto = \"server\"\nrun = \"env >flow.txt\"\n";
    folder.write("scenario.toml", format!("{TWO_PATHS}{flow}"));
    let arguments = ["run", "scenario.toml", "-q", "-T", "mptcp", "-o", "results"];
    let output = folder.run(&arguments);
    assert_eq!(output.code, Some(0), "{output}");
    let text = fs::read_to_string(folder.work().join("flow.txt")).unwrap();
    assert!(text.contains("TOWPATH_TRANSPORT=mptcp\n"), "{text}");
    let output = folder.run(&["lab", "scenario.toml", "--", "env"]);
    assert_eq!(lab_variables(&output.out), lab_variables(&text));
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
    assert_eq!(lab_variables(&text), expected.into_iter().map(str::to_owned).collect());
}

#[test]
fn traffic_of_a_flow_command_is_in_the_result() {
    if let Some(reason) = missing("iperf3") {
        return skip("traffic_of_a_flow_command_is_in_the_result", &reason);
    }
    let Some(_permit) = acquire_emulator() else { return };
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
    let summary = summary_of(&result);
    let down_flow =
        summary.flows.iter().find(|flow| flow.direction == DataDirection::Down).unwrap();
    assert_eq!(down_flow.flow, 1, "{:?}", summary.flows);
    assert!((2 * 1024 * 1024..2_300_000).contains(&down_flow.bytes), "{down_flow:?}");
    assert_eq!(down_flow.congestion_control.len(), 1, "{down_flow:?}");
}

#[test]
fn a_shell_of_a_lab_reaches_the_other_host() {
    if fs::read_to_string("/proc/sys/user/max_user_namespaces").is_ok_and(|max| max == "0\n") {
        return skip("a_shell_of_a_lab_reaches_the_other_host", "there are no user namespaces");
    }
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    folder.write("scenario.toml", TWO_PATHS);
    let mut command = folder.towpath(&["lab", "scenario.toml"]);
    let mut running = folder.start(command.env("SHELL", "/bin/sh").stdin(Stdio::piped()));
    let script = "towpath on server sh -c 'echo $TOWPATH_HOST $TOWPATH_TO; cat /proc/net/dev'\n\
                  towpath on tablet true\nexit $?\n";
    running.child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let output = running.wait();
    assert_eq!(output.code, Some(2), "{output}");
    assert!(
        output.out.starts_with("server 10.64.0.1\n") && output.out.contains("wifi:"),
        "{output}"
    );
    assert!(output.err.contains("on another host: `towpath on server COMMAND`"), "{output}");
    assert!(output.err.contains("error: the lab has no host `tablet`"), "{output}");
    let outside = folder.run(&["on", "server", "true"]);
    assert_eq!(outside.code, Some(2), "{outside}");
    assert!(outside.err.contains("error: this shell is not in a lab"), "{outside}");
}

#[test]
fn a_capture_of_tcpdump_is_ready_before_the_next_program_starts() {
    if let Some(reason) = missing("tcpdump").or_else(|| missing("curl")) {
        return skip("a_capture_of_tcpdump_is_ready_before_the_next_program_starts", &reason);
    }
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    let programs = [
        ("server", "tcpdump --immediate-mode -i wifi -n -c 1 tcp port 80"),
        ("client", "curl -s http://$TOWPATH_SERVER/; sleep 0.3"),
    ];
    let output = run_programs(&folder, &["-q"], &programs);
    assert!(output.out.contains("10.64.0.2.80: Flags [S]"), "{output}");
}
