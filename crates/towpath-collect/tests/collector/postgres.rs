//! A PostgreSQL server on loopback, shared by all tests of the process and ended with it.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// Number of attempts to reach a server that is starting.
const MAX_ATTEMPTS: u32 = 300;

/// Name of a server's folder (325 MB), followed by the number of the process that tests it.
const FOLDER_PREFIX: &str = "towpath-postgres-";

/// Address of the running server, or the reason why there is none.
static SERVER: OnceLock<Result<String, String>> = OnceLock::new();

/// Returns the address of a new, empty database, or the reason why there is none.
pub(crate) fn database() -> Result<String, String> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let server = SERVER.get_or_init(start).clone()?;
    let name = format!("test{}", COUNT.fetch_add(1, Ordering::Relaxed));
    sql(&server, &format!("CREATE DATABASE {name}"))?;
    Ok(format!("{server}/{name}"))
}

fn start() -> Result<String, String> {
    if let Ok(reason) = std::env::var("TOWPATH_SKIP_POSTGRES") {
        return Err(reason);
    }
    let postgres = program().ok_or("`postgres` (Debian package `postgresql`) is missing")?;
    let folder = std::env::temp_dir().join(format!("{FOLDER_PREFIX}{}", std::process::id()));
    remove_folders_of_ended_processes();
    std::fs::create_dir(&folder).unwrap();
    let data = folder.join("data");
    if is_root() {
        run(Command::new("chown").arg("postgres").arg(&folder));
    }
    let mut initdb = as_owner(&postgres.with_file_name("initdb"));
    run(initdb.arg("-D").arg(&data).args(["-U", "towpath", "-A", "trust", "-E", "UTF8"]));
    // The port is free again before the server takes it; no other test listens on it meanwhile.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (started, server) = mpsc::channel();
    // The kernel ends the server when the thread that started it ends, so that one never does.
    std::thread::spawn(move || {
        let mut command = as_owner(&postgres);
        command.arg("-D").arg(&data).args(["-h", "127.0.0.1", "-p", &port.to_string()]);
        command.arg("-k").arg(&folder).args(["-c", "fsync=off"]);
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        started.send(child.map(drop)).unwrap();
        loop {
            std::thread::park();
        }
    });
    server.recv().unwrap().map_err(|error| error.to_string())?;
    let address = format!("postgres://towpath@127.0.0.1:{port}");
    for attempt in 0.. {
        match sql(&address, "SELECT 1") {
            Ok(()) => break,
            Err(error) if attempt >= MAX_ATTEMPTS => return Err(error),
            Err(_) => wait_for_server(),
        }
    }
    Ok(address)
}

/// Removes what earlier tests left: a process cannot remove the folder of the server that ends
/// with it.
fn remove_folders_of_ended_processes() {
    let entries = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    for folder in entries.map(|entry| entry.path()) {
        let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(process) = name.strip_prefix(FOLDER_PREFIX) else { continue };
        let is_own = process == std::process::id().to_string();
        if is_own || !Path::new("/proc").join(process).exists() {
            let _ = std::fs::remove_dir_all(&folder); // another test may remove it as well
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a starting server cannot be waited for")]
fn wait_for_server() {
    std::thread::sleep(Duration::from_millis(100));
}

/// Executes a statement in the database `postgres`.
fn sql(server: &str, statement: &str) -> Result<(), String> {
    let psql = Command::new("psql")
        .args([&format!("{server}/postgres"), "-v", "ON_ERROR_STOP=1", "-qc", statement])
        .output()
        .map_err(|error| error.to_string())?;
    if psql.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&psql.stderr).into_owned())
}

/// Returns a command that runs as an ordinary user, since PostgreSQL refuses root, and that ends
/// with this process.
fn as_owner(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    if is_root() {
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
    }
    command.args(["--pdeathsig=KILL", "--"]).arg(program).current_dir("/");
    command
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn is_root() -> bool {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0
}

fn program() -> Option<PathBuf> {
    if let Some(program) = std::env::var_os("POSTGRES") {
        return Some(program.into());
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let programs = versions.flatten().map(|version| version.path().join("bin/postgres"));
    programs.filter(|program| program.is_file()).max()
}
