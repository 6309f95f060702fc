//! The kernel's own test program, `mptcp_connect`, as the peer: other system calls (`poll`, `mmap`,
//! `sendfile`), another rhythm, and its own checks.
//!
//! Its source is not part of this repository. It comes from Debian's package `linux-source-6.12`,
//! which this test downloads into the target folder, and is compiled there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use towpath_os::Namespace;
use towpath_scenario::Family;

use crate::case::{Case, Condition, PORT, Role};
use crate::ends::{InteropEnd, TestData};
use crate::{SERIAL, can_create_namespaces, skip};

const PACKAGE: &str = "linux-source-6.12";
const FOLDER: &str = "tools/testing/selftests/net/mptcp";
const PROGRAM: &str = "mptcp_connect";
const HANG_TIMEOUT: Duration = Duration::from_secs(120);

#[test]
fn mptcp_connect_and_a_kernel_socket_pass_this_test() {
    run_modes(&[Role::Kernels]);
}

#[test]
fn mptcp_connect_and_our_stack_give_each_other_every_byte() {
    run_modes(&[Role::Client, Role::Server]);
}

fn run_modes(roles: &[Role]) {
    if !can_create_namespaces("mptcp_connect") {
        return;
    }
    let result = {
        let _serial = SERIAL.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        build_program()
    };
    let program = match result {
        Ok(program) => program,
        Err(reason) => {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "no {PROGRAM}: {reason}");
            return skip("mptcp_connect", &reason);
        }
    };
    let mut failures = Vec::new();
    for role in roles {
        for mode in ["poll", "mmap", "sendfile"] {
            for (paths, family, checksum) in
                [(1, Family::V4, false), (2, Family::V4, true), (3, Family::V6, false)]
            {
                let role = *role;
                let case = Case { role, condition: Condition::Clean, paths, family, checksum };
                let _serial = SERIAL.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                if let Err(reason) = run_connection(&program, case, mode) {
                    failures.push(format!("{case}, {mode}: {reason}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Runs one connection; the program reads standard input from one file and writes to another.
fn run_connection(program: &Path, case: Case, mode: &str) -> Result<(), String> {
    let lab = case.start_lab()?;
    let (near_data, far_data) = (TestData::new(1), TestData::new(2));
    let folder = program.parent().ok_or("no folder")?;
    let (program_input, expected_output) = match case.role {
        Role::Client => (&far_data, &near_data),
        Role::Server | Role::Kernels | Role::Both => (&near_data, &far_data),
    };
    let (input, output) = (folder.join("input"), folder.join("output"));
    fs::write(&input, &program_input.data).map_err(|error| error.to_string())?;
    let start_program = |namespace: &Namespace, arguments: &[&str]| -> Result<Child, String> {
        let mut command = Command::new(program);
        let port = PORT.to_string();
        command.args(["-t", "60", "-m", mode, "-p", &port, "-s", "MPTCP"]).args(arguments);
        if case.family == Family::V6 {
            command.arg("-6");
        }
        command
            .stdin(fs::File::open(&input).map_err(|error| error.to_string())?)
            .stdout(fs::File::create(&output).map_err(|error| error.to_string())?)
            .stderr(Stdio::inherit());
        let child = namespace.run(|| command.spawn()).and_then(|child| child);
        child.map_err(|error| error.to_string())
    };
    let target = case.target(&lab).ip().to_string();
    let (own_end, mut child) = if case.role == Role::Client {
        let any_address = if case.family == Family::V4 { "0.0.0.0" } else { "::" };
        let child = start_program(lab.namespace(1).ok_or("no host")?, &["-l", any_address])?;
        wait_for_listener(lab.namespace(1).ok_or("no host")?)?;
        (InteropEnd::connect(&case, &lab, &near_data, 0)?, child)
    } else {
        let own_end = InteropEnd::listen(&case, &lab, &far_data, 0)?;
        (own_end, start_program(lab.namespace(0).ok_or("no host")?, &[&target])?)
    };
    let result = own_end.wait(Instant::now() + HANG_TIMEOUT);
    if result.is_err() {
        let _ = child.kill(); // it may have exited
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    let own_output = result?;
    if !status.success() {
        return Err(format!("{PROGRAM} ended with {status}"));
    }
    let received = fs::read(&output).map_err(|error| error.to_string())?;
    if received != expected_output.data || own_output.digest != program_input.digest {
        return Err(format!("what arrived is not what was sent ({} bytes)", received.len()));
    }
    Ok(())
}

fn wait_for_listener(namespace: &Namespace) -> Result<(), String> {
    let port = format!(":{PORT:04X} ");
    let deadline = Instant::now() + HANG_TIMEOUT;
    while Instant::now() < deadline {
        let is_listening = namespace.run(|| {
            ["tcp", "tcp6"].iter().any(|table| {
                let path = format!("/proc/thread-self/net/{table}");
                fs::read_to_string(path).is_ok_and(|text| text.contains(&port))
            })
        });
        if is_listening.map_err(|error| error.to_string())? {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Err(format!("{PROGRAM} does not listen"))
}

/// Downloads, unpacks and compiles the program, once for each target folder.
fn build_program() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mptcp-selftest");
    let program = folder.join(PROGRAM);
    if program.exists() {
        return Ok(program);
    }
    fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let run_shell = |script: &str| -> Result<(), String> {
        let output = Command::new("sh").args(["-ec", script]).current_dir(&folder).output();
        let output = output.map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(());
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        Err(stderr.lines().last().unwrap_or("no reason given").to_owned())
    };
    run_shell(&format!("apt-get download {PACKAGE}"))
        .map_err(|reason| format!("cannot download {PACKAGE}: {reason}"))?;
    run_shell(&format!(
        "dpkg-deb --fsys-tarfile {PACKAGE}_*.deb | tar -xO ./usr/src/{PACKAGE}.tar.xz \
         | tar -xJ --strip-components=6 {PACKAGE}/{FOLDER}/{PROGRAM}.c; rm {PACKAGE}_*.deb"
    ))
    .map_err(|reason| format!("cannot unpack {PACKAGE}: {reason}"))?;
    run_shell(&format!("cc -O2 -o {PROGRAM} {PROGRAM}.c"))
        .map_err(|reason| format!("cannot compile {PROGRAM}: {reason}"))?;
    Ok(program)
}
