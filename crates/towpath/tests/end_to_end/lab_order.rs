//! `towpath lab` with several programs, in every order: no program waits forever.

use std::os::unix::process::CommandExt;

use crate::processes::{Members, signal};
use crate::program::{
    ProgramOutput, TWO_PATHS, TestDir, acquire_emulator, missing, skip, wait_for,
};

/// Runs programs in the lab of two paths, in the given order.
fn run_in_order(folder: &TestDir, programs: &[(&str, &str)]) -> ProgramOutput {
    folder.write("scenario.toml", TWO_PATHS);
    let program_options = programs.iter().flat_map(|(host, command)| ["--on", host, command]);
    let base_arguments = ["lab", "scenario.toml", "-q", "--out", "results"];
    folder.run(&base_arguments.into_iter().chain(program_options).collect::<Vec<_>>())
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
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    let programs = [("client", "iperf3 -c $TOWPATH_SERVER -t 1"), ("server", "iperf3 -s")];
    let output = run_in_order(&folder, &programs);
    assert_eq!(output.code, Some(1), "{output}");
    // The server may have started before the client was refused.
    assert!(
        output.err.contains("`iperf3 -c $TOWPATH_SERVER -t 1` on phone ended with"),
        "{output}"
    );
    assert!(output.err.contains("servers first"), "{output}");
}

#[test]
fn a_server_started_after_its_client_ends_with_the_client() {
    if lacks_iperf3("a_server_started_after_its_client_ends_with_the_client") {
        return;
    }
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    let client = "until iperf3 -c $TOWPATH_SERVER -n 100K; do sleep 0.1; done";
    for server in ["iperf3 -s", "iperf3 -s -D"] {
        let output = run_in_order(&folder, &[("client", client), ("server", server)]);
        assert_eq!(output.code, Some(0), "{output}");
        assert!(output.out.contains("phone  | iperf Done."), "{output}");
        let reports_waiting =
            output.err.contains("and `iperf3 -s` on server only waits: the lab ends");
        assert_eq!(reports_waiting, server == "iperf3 -s", "{output}");
    }
}

#[test]
fn servers_without_a_client_end_the_lab() {
    if lacks_iperf3("servers_without_a_client_end_the_lab") {
        return;
    }
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    let two_servers = run_in_order(&folder, &[("server", "iperf3 -s"), ("client", "iperf3 -s")]);
    let one_server = run_in_order(&folder, &[("server", "iperf3 -s")]);
    for (output, verb) in [(two_servers, "only wait"), (one_server, "only waits")] {
        assert_eq!(output.code, Some(1), "{output}");
        let text = output.err.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(&format!("{verb} for clients, and there are none")), "{text}");
        assert!(text.contains("hint: add a client with another `--on HOST COMMAND`"), "{text}");
    }
}

#[test]
fn a_daemonizing_server_is_treated_as_a_server() {
    if lacks_iperf3("a_daemonizing_server_is_treated_as_a_server") {
        return;
    }
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    let programs = [("server", "iperf3 -s -D"), ("client", "iperf3 -c $TOWPATH_SERVER -n 100K")];
    let output = run_in_order(&folder, &programs);
    assert_eq!(output.code, Some(0), "{output}");
    assert!(output.out.contains("iperf Done."), "{output}");
}

#[test]
fn a_failed_client_determines_the_exit_code_of_the_lab() {
    if lacks_iperf3("a_failed_client_determines_the_exit_code_of_the_lab") {
        return;
    }
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    let failing_client = "iperf3 -c $TOWPATH_SERVER -n 100K; touch failed; exit 3";
    let last_command = "until test -e failed; do sleep 0.02; done; sleep 0.2";
    let programs = [("server", "iperf3 -s"), ("client", failing_client), ("client", last_command)];
    let output = run_in_order(&folder, &programs);
    assert_eq!(output.code, Some(3), "{output}");
    assert!(output.err.contains("its exit code is the lab's"), "{output}");
    let ignored_failure = format!("({failing_client}) || true");
    let programs =
        [("server", "iperf3 -s"), ("client", &*ignored_failure), ("client", last_command)];
    assert_eq!(run_in_order(&folder, &programs).code, Some(0));
}

#[test]
fn a_server_that_dies_ends_a_lab_whose_last_program_does_not_notice() {
    if lacks_iperf3("a_server_that_dies_ends_a_lab_whose_last_program_does_not_notice") {
        return;
    }
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    let server = "iperf3 -s & until test -e began; do sleep 0.02; done; kill $!; exit 4";
    let programs = [("server", server), ("client", "touch began; sleep 86394")];
    let output = run_in_order(&folder, &programs);
    assert_eq!(output.code, Some(4), "{output}");
    let text = output.err.split_whitespace().collect::<Vec<_>>().join(" ");
    let message = "exit status: 4 while `touch began; sleep 86394` on phone still ran";
    assert!(text.contains(message), "{text}");
}

/// Interrupts a lab in a process group of its own, as a terminal does. With `again`, repeats the
/// signal until the lab ends.
fn interrupt_lab(
    folder: &TestDir,
    programs: &[&str],
    repeatedly: bool,
    program: &str,
) -> ProgramOutput {
    folder.write("scenario.toml", TWO_PATHS);
    let program_options = programs.iter().flat_map(|command| ["--on", "phone", command]);
    let base_arguments = ["lab", "scenario.toml", "-q", "--out", "results"];
    let mut command =
        folder.towpath(&base_arguments.into_iter().chain(program_options).collect::<Vec<_>>());
    let mut running = folder.start(command.process_group(0));
    let members = Members::wait_for(running.id(), program);
    wait_for("the programs", || running.printed().contains("ready").then_some(()));
    signal("INT", -i64::from(running.id()));
    if repeatedly {
        wait_for("the end after further signals", || {
            signal("INT", -i64::from(running.id()));
            running.child.try_wait().unwrap()
        });
    }
    let output = running.wait();
    members.wait_until_gone();
    output
}

#[test]
fn ctrl_c_ends_a_lab_at_every_stage() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    // During the wait for a program without sockets.
    let output =
        interrupt_lab(&folder, &["echo ready; sleep 86393", "echo never"], false, "sleep 86393");
    assert_eq!(output.code, Some(130), "{output}");
    assert!(!output.out.contains("never"), "{output}");
    // While the last program runs.
    let output = interrupt_lab(&folder, &["true", "echo ready; sleep 86392"], false, "sleep 86392");
    assert_eq!(output.code, Some(130), "{output}");
    // While the last program ignores the interrupt: the second one ends everything.
    let ignores_sigint = "trap '' INT; echo ready; sleep 86391";
    let output = interrupt_lab(&folder, &["true", ignores_sigint], true, "sleep 86391");
    assert_eq!(output.code, Some(130), "{output}");
}
