//! `towpath lab`: any program in a scenario's network.

use std::io::Write;
use std::process::Stdio;

use crate::processes::{Members, interfaces, signal};
use crate::program::{Ended, Folder, TWO_PATHS, emulator, missing, skip, wait_for};

/// Runs a shell script in the lab of two paths.
fn lab(options: &[&str], script: &str) -> Ended {
    lab_of(TWO_PATHS, options, script)
}

fn lab_of(scenario: &str, options: &[&str], script: &str) -> Ended {
    let _turn = emulator();
    let folder = Folder::new();
    folder.write("scenario.toml", scenario);
    let arguments = [&["lab", "scenario.toml"], options, &["--", "sh", "-c", script]].concat();
    let ended = folder.run(&arguments);
    assert_eq!(folder.names(), ["scenario.toml"], "a lab measures nothing");
    ended
}

#[test]
fn the_programs_exit_code_is_passed_on() {
    for code in [0, 1, 7, 255] {
        let ended = lab(&[], &format!("exit {code}"));
        assert_eq!(ended.code, Some(code), "{ended}");
    }
    let ended = lab(&[], "kill -s KILL $$");
    assert_eq!(ended.code, Some(128 + 9), "{ended}");
}

#[test]
fn the_program_sees_the_interfaces_of_its_host() {
    for backend in ["auto", "packet"] {
        let ended = lab(&["--backend", backend], "cat /proc/net/dev");
        assert_eq!(ended.code, Some(0), "{ended}");
        let names = ended.out.lines().filter_map(|line| Some(line.split_once(':')?.0.trim()));
        assert_eq!(names.collect::<Vec<_>>(), ["lo", "wifi", "cellular"], "{ended}");
    }
}

#[test]
fn the_program_runs_on_the_host_that_was_asked_for() {
    for (options, host) in [(&[][..], "phone"), (&["--host", "server"], "server")] {
        let ended = lab(options, "echo $TOWPATH_HOST $TOWPATH_SERVER_WIFI $TOWPATH_PHONE_CELLULAR");
        assert_eq!(ended.out, format!("{host} 10.64.0.2 10.64.1.1\n"), "{ended}");
        assert!(ended.err.contains(&format!("{host} (you are here)\n")), "{ended}");
    }
}

#[test]
fn the_timeline_starts_with_the_program() {
    let timeline = "[[timeline]]\nat = \"300 ms\"\npath = \"wifi\"\nset = \"down\"\n\
        how = \"interface\"\nhost = \"phone\"\n";
    // The kernel takes the routes from an interface that is switched off. Whoever looks for them only
    // then, on a busy machine, must at least see that it is not earlier than that.
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
    let ended = lab_of(&format!("{TWO_PATHS}{timeline}"), &[], script);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""), "{ended}");
}

#[test]
fn a_background_process_does_not_survive_the_lab() {
    let _turn = emulator();
    let (folder, before) = (Folder::new(), interfaces());
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
    let _turn = emulator();
    let (folder, before) = (Folder::new(), interfaces());
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
    let _turn = emulator();
    let folder = Folder::new();
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
    let _turn = emulator();
    let folder = Folder::new();
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
    let _turn = emulator();
    let folder = Folder::new();
    folder.write("scenario.toml", TWO_PATHS);
    let mut command = folder.program("setsid");
    command.arg("--wait").arg(crate::program::binary());
    command.args(["lab", "scenario.toml", "--", "sh", "-c", "echo there; exit 5"]);
    let ended = folder.start(&mut command).wait();
    assert_eq!((ended.code, ended.out.as_str()), (Some(5), "there\n"), "{ended}");
}

#[test]
fn a_program_that_is_missing_is_said() {
    let _turn = emulator();
    let folder = Folder::new();
    let ended = folder.run(&["lab", "two-links", "--", "no-such-program"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{ended}");
    assert!(ended.err.contains("error: cannot run `no-such-program`: No such file"), "{ended}");
}

#[test]
fn an_interrupt_is_left_to_the_program() {
    use std::os::unix::process::CommandExt;
    let _turn = emulator();
    let folder = Folder::new();
    folder.write("scenario.toml", TWO_PATHS);
    let script = "trap 'echo caught; exit 6' INT; echo ready; while :; do sleep 0.05; done";
    let mut command = folder.towpath(&["lab", "scenario.toml", "--", "sh", "-c", script]);
    let running = folder.start(command.process_group(0));
    wait_for("the trap", || running.printed().contains("ready").then_some(()));
    signal("INT", -i64::from(running.id()));
    let ended = running.wait();
    assert_eq!((ended.code, ended.out.as_str()), (Some(6), "ready\ncaught\n"), "{ended}");
}
