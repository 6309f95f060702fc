//! A private PostgreSQL server on loopback that can be killed and started again.

use std::env;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::{Running, TestDir, is_root, wait_for};

/// PostgreSQL server of one test. Ends with the thread that started it.
pub(super) struct Postgres<'a> {
    test: &'a TestDir,
    program: PathBuf,
    folder: PathBuf,
    port: u16,
    process: Option<Running>,
}

impl<'a> Postgres<'a> {
    /// Creates a server with an empty database, and starts it. Fails with the reason if this
    /// machine has no PostgreSQL.
    pub(super) fn start(test: &'a TestDir) -> Result<Self, String> {
        if let Ok(reason) = env::var("TOWPATH_SKIP_POSTGRES") {
            return Err(reason);
        }
        let program =
            find_program().ok_or("`postgres` (Debian package `postgresql`) is missing")?;
        let folder = test.temporary().join("postgres");
        fs::create_dir(&folder).unwrap();
        if is_root() {
            expect_success(Command::new("chown").arg("postgres").arg(&folder));
        }
        let mut initdb = as_owner(test, &program.with_file_name("initdb"));
        initdb.arg("-D").arg(folder.join("data"));
        expect_success(initdb.args(["-U", "towpath", "-A", "trust", "-E", "UTF8"]));
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut postgres = Self { test, program, folder, port, process: None };
        postgres.wait_until_ready();
        postgres.sql("CREATE DATABASE collector").unwrap();
        Ok(postgres)
    }

    /// Returns the address of the collector's database.
    pub(super) fn database(&self) -> String {
        format!("{}/collector", self.address())
    }

    fn address(&self) -> String {
        format!("postgres://towpath@127.0.0.1:{}", self.port)
    }

    /// Kills the first process of the server. The others end when they notice.
    pub(super) fn kill(&mut self) {
        self.process = None;
    }

    /// Starts the server if it does not run. A start fails while processes of a killed server still
    /// use its memory.
    pub(super) fn keep_running(&mut self) {
        let process = self.process.as_mut();
        if process.is_some_and(|process| process.child.try_wait().unwrap().is_none()) {
            return;
        }
        let mut command = as_owner(self.test, &self.program);
        command.arg("-D").arg(self.folder.join("data")).arg("-k").arg(&self.folder);
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-c", "fsync=off"]);
        self.process = Some(self.test.start(&mut command));
    }

    pub(super) fn wait_until_ready(&mut self) {
        wait_for("a PostgreSQL server that answers", || {
            self.keep_running();
            self.sql("SELECT 1").ok()
        });
    }

    /// Executes a statement in the database `postgres`.
    fn sql(&self, statement: &str) -> Result<(), String> {
        let address = format!("{}/postgres", self.address());
        let mut psql = Command::new("psql");
        let output = psql.args([&address, "-v", "ON_ERROR_STOP=1", "-qc", statement]).output();
        let output = output.map_err(|error| error.to_string())?;
        let is_done = output.status.success();
        is_done.then_some(()).ok_or_else(|| String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Returns a command that runs as an ordinary user, since PostgreSQL refuses root, and that ends
/// with this thread.
fn as_owner(test: &TestDir, program: &Path) -> Command {
    let mut command = test.program("setpriv");
    if is_root() {
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
    }
    command.args(["--pdeathsig=KILL", "--"]).arg(program).current_dir("/");
    command
}

fn expect_success(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn find_program() -> Option<PathBuf> {
    if let Some(program) = env::var_os("POSTGRES") {
        return Some(program.into());
    }
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let programs = versions.flatten().map(|version| version.path().join("bin/postgres"));
    programs.filter(|program| program.is_file()).max()
}
