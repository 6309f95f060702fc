//! `towpath lab` with several programs, in every order: no program waits forever.

use std::os::unix::process::CommandExt;

use crate::processes::{Members, signal};
use crate::program::{ProgramOutput, TWO_PATHS, TestDir, emulator, missing, skip, wait_for};

/// Runs programs in the lab of two paths, in the given order.
fn run_in_order(folder: &TestDir, programs: &[(&str, &str)]) -> ProgramOutput {
    folder.write("scenario.toml", TWO_PATHS);
    let on = programs.iter().flat_map(|(host, command)| ["--on", host, command]);
    let start = ["lab", "scenario.toml", "-q", "--out", "results"];
    folder.run(&start.into_iter().chain(on).collect::<Vec<_>>())
}

/// Returns true if iperf3 is missing, after printing that the test is skipped.
fn lacks_iperf3(test: &str) -> bool {
    missing("iperf3").inspect(|reason| skip(test, reason)).is_some()
}

#[test]
fn a_client_that_comes_before_its_server_ends_the_lab_with_its_code() {
    if lacks_iperf3("a_client_that_comes_before_its_server_ends_the_lab_with_its_code") {
        return;
    }
    let Some(_serial) = emulator() else { return };
    let folder = TestDir::new();
    let programs = [("client", "iperf3 -c $TOWPATH_SERVER -t 1"), ("server", "iperf3 -s")];
    let ended = run_in_order(&folder, &programs);
    assert_eq!(ended.code, Some(1), "{ended}");
    // The server may have started before the client was refused.
    assert!(ended.err.contains("`iperf3 -c $TOWPATH_SERVER -t 1` on phone ended with"), "{ended}");
    assert!(ended.err.contains("servers first"), "{ended}");
}

#[test]
fn a_server_started_after_its_client_ends_with_the_client() {
    if lacks_iperf3("a_server_started_after_its_client_ends_with_the_client") {
        return;
    }
    let Some(_serial) = emulator() else { return };
    let folder = TestDir::new();
    let client = "until iperf3 -c $TOWPATH_SERVER -n 100K; do sleep 0.1; done";
    for server in ["iperf3 -s", "iperf3 -s -D"] {
        let ended = run_in_order(&folder, &[("client", client), ("server", server)]);
        assert_eq!(ended.code, Some(0), "{ended}");
        assert!(ended.out.contains("phone  | iperf Done."), "{ended}");
        let told = ended.err.contains("and `iperf3 -s` on server only waits: the lab ends");
        assert_eq!(told, server == "iperf3 -s", "{ended}");
    }
}

#[test]
fn servers_without_a_client_end_the_lab() {
    if lacks_iperf3("servers_without_a_client_end_the_lab") {
        return;
    }
    let Some(_serial) = emulator() else { return };
    let folder = TestDir::new();
    let two = run_in_order(&folder, &[("server", "iperf3 -s"), ("client", "iperf3 -s")]);
    let one = run_in_order(&folder, &[("server", "iperf3 -s")]);
    for (ended, verb) in [(two, "only wait"), (one, "only waits")] {
        assert_eq!(ended.code, Some(1), "{ended}");
        let text = ended.err.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(&format!("{verb} for others to come, and there are none")), "{text}");
        assert!(text.contains("hint: add a client: a further `--on HOST COMMAND`"), "{text}");
    }
}

#[test]
fn a_daemonizing_server_is_treated_as_a_server() {
    if lacks_iperf3("a_daemonizing_server_is_treated_as_a_server") {
        return;
    }
    let Some(_serial) = emulator() else { return };
    let folder = TestDir::new();
    let programs = [("server", "iperf3 -s -D"), ("client", "iperf3 -c $TOWPATH_SERVER -n 100K")];
    let ended = run_in_order(&folder, &programs);
    assert_eq!(ended.code, Some(0), "{ended}");
    assert!(ended.out.contains("iperf Done."), "{ended}");
}

#[test]
fn a_failed_client_determines_the_exit_code_of_the_lab() {
    if lacks_iperf3("a_failed_client_determines_the_exit_code_of_the_lab") {
        return;
    }
    let Some(_serial) = emulator() else { return };
    let folder = TestDir::new();
    let failing = "iperf3 -c $TOWPATH_SERVER -n 100K; touch failed; exit 3";
    let last = "until test -e failed; do sleep 0.02; done; sleep 0.2";
    let programs = [("server", "iperf3 -s"), ("client", failing), ("client", last)];
    let ended = run_in_order(&folder, &programs);
    assert_eq!(ended.code, Some(3), "{ended}");
    assert!(ended.err.contains("its exit code is the lab's"), "{ended}");
    let forgiven = format!("({failing}) || true");
    let programs = [("server", "iperf3 -s"), ("client", &*forgiven), ("client", last)];
    assert_eq!(run_in_order(&folder, &programs).code, Some(0));
}

#[test]
fn a_server_that_dies_ends_a_lab_whose_last_program_does_not_notice() {
    if lacks_iperf3("a_server_that_dies_ends_a_lab_whose_last_program_does_not_notice") {
        return;
    }
    let Some(_serial) = emulator() else { return };
    let folder = TestDir::new();
    let server = "iperf3 -s & until test -e began; do sleep 0.02; done; kill $!; exit 4";
    let programs = [("server", server), ("client", "touch began; sleep 86394")];
    let ended = run_in_order(&folder, &programs);
    assert_eq!(ended.code, Some(4), "{ended}");
    let text = ended.err.split_whitespace().collect::<Vec<_>>().join(" ");
    let last = "exit status: 4 while `touch began; sleep 86394` on phone still ran";
    assert!(text.contains(last), "{text}");
}

/// Starts a lab in a process group of its own, as a terminal does.
fn interrupt_lab(folder: &TestDir, programs: &[&str], again: bool, program: &str) -> ProgramOutput {
    folder.write("scenario.toml", TWO_PATHS);
    let on = programs.iter().flat_map(|command| ["--on", "phone", command]);
    let start = ["lab", "scenario.toml", "-q", "--out", "results"];
    let mut command = folder.towpath(&start.into_iter().chain(on).collect::<Vec<_>>());
    let mut running = folder.start(command.process_group(0));
    let members = Members::wait_for(running.id(), program);
    wait_for("the programs", || running.printed().contains("ready").then_some(()));
    signal("INT", -i64::from(running.id()));
    if again {
        wait_for("the end after further signals", || {
            signal("INT", -i64::from(running.id()));
            running.child.try_wait().unwrap()
        });
    }
    let ended = running.wait();
    members.wait_until_gone();
    ended
}

#[test]
fn ctrl_c_ends_a_lab_at_every_stage() {
    let Some(_serial) = emulator() else { return };
    let folder = TestDir::new();
    // During the wait for a program without sockets.
    let ended =
        interrupt_lab(&folder, &["echo ready; sleep 86393", "echo never"], false, "sleep 86393");
    assert_eq!(ended.code, Some(130), "{ended}");
    assert!(!ended.out.contains("never"), "{ended}");
    // While the last program runs.
    let ended = interrupt_lab(&folder, &["true", "echo ready; sleep 86392"], false, "sleep 86392");
    assert_eq!(ended.code, Some(130), "{ended}");
    // While the last program ignores the interrupt: the second one ends everything.
    let deaf = "trap '' INT; echo ready; sleep 86391";
    let ended = interrupt_lab(&folder, &["true", deaf], true, "sleep 86391");
    assert_eq!(ended.code, Some(130), "{ended}");
}
