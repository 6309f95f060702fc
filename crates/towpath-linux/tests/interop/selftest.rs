//! The kernel's own test program, `mptcp_connect`, as the peer: other system calls (`poll`, `mmap`,
//! `sendfile`), another rhythm, and its own checks.
//!
//! Its source is not part of this repository. It comes from Debian's package `linux-source-6.12`,
//! which this test downloads into the target folder, and is compiled there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use towpath_linux::Namespace;
use towpath_measure::scenario::Family;

use crate::case::{Case, Condition, PORT, Role};
use crate::ends::{Expected, InteropEnd};
use crate::{ALONE, permitted, skip};

const PACKAGE: &str = "linux-source-6.12";
const FOLDER: &str = "tools/testing/selftests/net/mptcp";
const PROGRAM: &str = "mptcp_connect";
const HANG_TIMEOUT: Duration = Duration::from_secs(120);

#[test]
fn mptcp_connect_and_a_socket_of_ours_prove_this_test() {
    all(&[Role::Kernels]);
}

#[test]
fn mptcp_connect_and_our_stack_give_each_other_every_byte() {
    all(&[Role::Client, Role::Server]);
}

fn all(roles: &[Role]) {
    if !permitted("mptcp_connect") {
        return;
    }
    let built = {
        let _serial = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        program()
    };
    let program = match built {
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
                let _serial = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                if let Err(reason) = against(&program, case, mode) {
                    failures.push(format!("{case}, {mode}: {reason}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Runs one connection; the program reads standard input from one file and writes to another.
fn against(program: &Path, case: Case, mode: &str) -> Result<(), String> {
    let world = case.world()?;
    let (near, far) = (Expected::new(1), Expected::new(2));
    let folder = program.parent().ok_or("no folder")?;
    let (sends, gets) = match case.role {
        Role::Client => (&far, &near),
        Role::Server | Role::Kernels | Role::Both => (&near, &far),
    };
    let (input, output) = (folder.join("input"), folder.join("output"));
    fs::write(&input, &sends.data).map_err(|error| error.to_string())?;
    let run = |namespace: &Namespace, arguments: &[&str]| -> Result<Child, String> {
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
        let started = namespace.run(|| command.spawn()).and_then(|started| started);
        started.map_err(|error| error.to_string())
    };
    let target = case.target(&world).ip().to_string();
    let (own, mut child) = if case.role == Role::Client {
        let any = if case.family == Family::V4 { "0.0.0.0" } else { "::" };
        let child = run(world.namespace(1).ok_or("no host")?, &["-l", any])?;
        wait_for_listener(world.namespace(1).ok_or("no host")?)?;
        (InteropEnd::connect(&case, &world, &near, 0)?, child)
    } else {
        let own = InteropEnd::listen(&case, &world, &far, 0)?;
        (own, run(world.namespace(0).ok_or("no host")?, &[&target])?)
    };
    let ended = own.wait(Instant::now() + HANG_TIMEOUT);
    if ended.is_err() {
        let _ = child.kill(); // it may have exited
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    let ended = ended?;
    if !status.success() {
        return Err(format!("{PROGRAM} ended with {status}"));
    }
    let got = fs::read(&output).map_err(|error| error.to_string())?;
    if got != gets.data || ended.digest != sends.digest {
        return Err(format!("what arrived is not what was sent ({} bytes)", got.len()));
    }
    Ok(())
}

fn wait_for_listener(namespace: &Namespace) -> Result<(), String> {
    let port = format!(":{PORT:04X} ");
    let deadline = Instant::now() + HANG_TIMEOUT;
    while Instant::now() < deadline {
        let listens = namespace.run(|| {
            ["tcp", "tcp6"].iter().any(|table| {
                let path = format!("/proc/thread-self/net/{table}");
                fs::read_to_string(path).is_ok_and(|text| text.contains(&port))
            })
        });
        if listens.map_err(|error| error.to_string())? {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Err(format!("{PROGRAM} does not listen"))
}

/// Downloads, unpacks and compiles the program, once for each target folder.
fn program() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mptcp-selftest");
    let program = folder.join(PROGRAM);
    if program.exists() {
        return Ok(program);
    }
    fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let shell = |script: &str| -> Result<(), String> {
        let output = Command::new("sh").args(["-ec", script]).current_dir(&folder).output();
        let output = output.map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(said.lines().last().unwrap_or("no reason given").to_owned())
    };
    shell(&format!("apt-get download {PACKAGE}"))
        .map_err(|reason| format!("cannot download {PACKAGE}: {reason}"))?;
    shell(&format!(
        "dpkg-deb --fsys-tarfile {PACKAGE}_*.deb | tar -xO ./usr/src/{PACKAGE}.tar.xz \
         | tar -xJ --strip-components=6 {PACKAGE}/{FOLDER}/{PROGRAM}.c; rm {PACKAGE}_*.deb"
    ))
    .map_err(|reason| format!("cannot unpack {PACKAGE}: {reason}"))?;
    shell(&format!("cc -O2 -o {PROGRAM} {PROGRAM}.c"))
        .map_err(|reason| format!("cannot compile {PROGRAM}: {reason}"))?;
    Ok(program)
}
