//! Runs the command with a deadline, in a folder of its own.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ruzstd::decoding::StreamingDecoder;
use serde_json::Value;
use towpath_result::store::{RunResult, read_run};
use towpath_result::{EventKind, Record};

/// Timeout, far longer than any program here takes on a busy machine.
pub(crate) const HANG_TIMEOUT: Duration = Duration::from_secs(90);

/// Scenario of two paths, fast enough for a short test and slow enough for an event in its middle.
pub(crate) const TWO_PATHS: &str = r#"name = "two-paths"
[hosts.phone]
[hosts.server]
[paths.wifi]
between = ["phone", "server"]
rate = "40 Mbit/s"
delay = "5 ms"
[paths.cellular]
between = ["phone", "server"]
rate = "40 Mbit/s"
delay = "10 ms"
"#;

/// Bulk flow of a fixed size over [`TWO_PATHS`], or any other network of these hosts.
pub(crate) const SIZED: &str = r#"
[[flows]]
from = "phone"
to = "server"
pattern = "bulk"
size = "1 MB"
"#;

/// Upper bound of emulated networks at the same time; they mostly wait.
const MAX_EMULATORS: u32 = 6;
/// Permits that a test with time measurements takes.
const TIMED_TEST_PERMITS: u32 = 3;

static QUEUE: Mutex<EmulatorQueue> =
    Mutex::new(EmulatorQueue { occupied: 0, next_ticket: 0, serving: 0 });
static QUEUE_CHANGED: Condvar = Condvar::new();

/// Queue of tests that use emulated networks, in the order of their requests.
struct EmulatorQueue {
    /// Permits in use.
    occupied: u32,
    /// Ticket for the next test that arrives.
    next_ticket: u64,
    /// Ticket of the test that may take permits next.
    serving: u64,
}

/// Permits of one test to emulate a network, released on drop.
pub(crate) struct EmulatorPermit {
    count: u32,
}

impl EmulatorPermit {
    fn acquire(count: u32) -> Self {
        let mut queue = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
        let ticket = queue.next_ticket;
        queue.next_ticket += 1;
        while queue.serving != ticket || queue.occupied + count > MAX_EMULATORS {
            queue = QUEUE_CHANGED.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.serving += 1;
        queue.occupied += count;
        QUEUE_CHANGED.notify_all();
        Self { count }
    }
}

impl Drop for EmulatorPermit {
    fn drop(&mut self) {
        QUEUE.lock().unwrap_or_else(PoisonError::into_inner).occupied -= self.count;
        QUEUE_CHANGED.notify_all();
    }
}

/// Waits for a permit to emulate a network, for a test that measures no times. Up to
/// [`MAX_EMULATORS`] such tests run at the same time.
///
/// Returns `None`, with a `SKIPPED` line, if this machine cannot emulate.
pub(crate) fn acquire_emulator() -> Option<EmulatorPermit> {
    can_emulate().then(|| EmulatorPermit::acquire(1))
}

/// Waits for a permit to emulate a network, for a test that measures times. Such a test takes
/// several permits, because many networks at the same time would disturb it.
///
/// Returns `None`, with a `SKIPPED` line, if this machine cannot emulate.
pub(crate) fn acquire_emulator_for_timing() -> Option<EmulatorPermit> {
    can_emulate().then(|| EmulatorPermit::acquire(TIMED_TEST_PERMITS))
}

/// Returns true if this machine can emulate. Otherwise it prints that the calling test is skipped.
fn can_emulate() -> bool {
    static REFUSAL_REASON: OnceLock<Option<String>> = OnceLock::new();
    let obstacle = REFUSAL_REASON.get_or_init(|| {
        let output = Command::new(binary()).args(["doctor", "--self", "--json"]).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let namespaces = &report["emulation"]["namespaces"];
        Some(namespaces["reason"].as_str()?.to_owned())
    });
    if let Some(reason) = obstacle {
        let thread = thread::current();
        skip(thread.name().unwrap_or("a test"), reason);
    }
    obstacle.is_none()
}

/// Prints that a test is skipped. Fails where all tests must run.
pub(crate) fn skip(test: &str, reason: &str) {
    assert!(!is_ci(), "{test} cannot run: {reason}");
    // Not `eprintln!`, which is hidden when a test passes.
    io::stderr().write_all(format!("SKIPPED {test}: {reason}\n").as_bytes()).unwrap();
}

fn is_ci() -> bool {
    env::var("CI").is_ok_and(|value| matches!(value.as_str(), "true" | "1"))
}

/// Returns true if tests repeat as often as in CI: `cargo xtask test --all`.
pub(crate) fn is_long() -> bool {
    env::var("TOWPATH_REPEAT").is_ok_and(|value| value == "long")
}

/// Returns the reason if a tool cannot be used. `cargo xtask test` may give it in a variable.
pub(crate) fn missing(tool: &str) -> Option<String> {
    if let Ok(reason) = env::var(format!("TOWPATH_SKIP_{}", tool.to_uppercase())) {
        return Some(reason);
    }
    let mut command = Command::new(tool);
    let status = command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let run_error = status.err().map(|error| format!("cannot run `{tool}`: {error}"));
    run_error.or_else(|| (tool == "unshare").then(namespace_refusal).flatten())
}

/// Returns the reason if `unshare` cannot create user namespaces.
fn namespace_refusal() -> Option<String> {
    let output = Command::new("unshare").args(["-Urn", "true"]).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    (!output.status.success()).then(|| format!("no user namespaces here: {}", message.trim()))
}

/// Returns the path of the command under test.
pub(crate) fn binary() -> PathBuf {
    env::var_os("TOWPATH_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_towpath").into()).into()
}

/// Returns true if these tests run as root and can switch to other users.
///
/// Root of a small user namespace cannot.
pub(crate) fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
    let map = fs::read_to_string("/proc/self/uid_map").unwrap();
    let sizes = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    users.split_whitespace().nth(1) == Some("0") && sizes.sum::<u64>() >= 65_535
}

/// Polls until a value is available.
pub(crate) fn wait_for<T>(description: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + HANG_TIMEOUT;
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(Instant::now() < deadline, "timed out waiting for {description}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Folder of one test, removed on drop. Its subfolders have separate roles, so that a test can list
/// the files that a program left.
pub(crate) struct TestDir {
    path: PathBuf,
    /// Number of the next program's output files.
    outputs: AtomicU32,
}

impl TestDir {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let path = wait_for("a folder that an earlier process of this number has not left", || {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!("towpath-end-to-end-{}-{number}", std::process::id());
            let path = env::temp_dir().join(name);
            fs::create_dir(&path).ok().map(|()| path)
        });
        let folder = Self { path, outputs: AtomicU32::new(0) };
        for part in [folder.work(), folder.temporary()] {
            fs::create_dir_all(&part).unwrap();
            // World-writable, like temporary folders: some programs run as another user.
            fs::set_permissions(&part, fs::Permissions::from_mode(0o1777)).unwrap();
        }
        folder
    }

    /// Returns the working directory of all programs, with the input and output files of the test.
    pub(crate) fn work(&self) -> PathBuf {
        self.path.join("work")
    }

    /// Returns the `TMPDIR` of all programs. Tests also put helper files there that must not be in
    /// [`TestDir::work`], such as a link to the command.
    pub(crate) fn temporary(&self) -> PathBuf {
        self.path.join("temporary")
    }

    /// Returns the folder of the user's configuration files.
    pub(crate) fn config(&self) -> PathBuf {
        self.path.join("config")
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.work().join(name), content).unwrap();
    }

    /// Writes a file that only its owner can read.
    pub(crate) fn write_secret(&self, name: &str, content: impl AsRef<[u8]>) {
        self.write(name, content);
        fs::set_permissions(self.work().join(name), fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// Writes an executable file, from another process.
    ///
    /// A process that another test starts inherits a descriptor that is open for writing here.
    /// Until its exec, the file could not be run ("text file busy").
    pub(crate) fn write_program(&self, name: &str, content: &str) -> PathBuf {
        let path = self.work().join(name);
        let mut install = Command::new("install");
        install.args(["-m", "755", "/dev/stdin"]).arg(&path).stdin(Stdio::piped());
        let mut install = install.spawn().unwrap();
        install.stdin.take().unwrap().write_all(content.as_bytes()).unwrap();
        assert!(install.wait().unwrap().success(), "{} is not written", path.display());
        path
    }

    /// Copies the command to a place where every user can run it, also from another process.
    pub(crate) fn readable_binary(&self) -> PathBuf {
        let copy = self.temporary().join("towpath");
        let install = Command::new("install").args(["-m", "755"]).arg(binary()).arg(&copy).status();
        assert!(install.unwrap().success(), "{} is not written", copy.display());
        copy
    }

    /// Returns the names in the working directory.
    pub(crate) fn names(&self) -> Vec<String> {
        names(&self.work())
    }

    /// Prepares any program to run in this folder, with empty standard input.
    pub(crate) fn program(&self, name: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(name);
        command.current_dir(self.work()).env("TMPDIR", self.temporary()).stdin(Stdio::null());
        command.env_remove("TOWPATH_PARENT").env("XDG_STATE_HOME", self.path.join("state"));
        command.env("XDG_CONFIG_HOME", self.config());
        command
    }

    pub(crate) fn towpath(&self, arguments: &[&str]) -> Command {
        let mut command = self.program(binary());
        command.args(arguments);
        command
    }

    /// Runs the command to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> ProgramOutput {
        self.start(&mut self.towpath(arguments)).wait()
    }

    /// Starts a program whose output can be read while it runs.
    pub(crate) fn start(&self, command: &mut Command) -> Running {
        let number = self.outputs.fetch_add(1, Ordering::Relaxed);
        let [out, err] = ["out", "err"].map(|ending| self.path.join(format!("{number}.{ending}")));
        command.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Running { child, description: format!("{command:?}"), out, err }
    }

    /// Runs a scenario over one transport, expects success, and reads the result.
    pub(crate) fn result(&self, scenario: &str, transport: &str) -> RunResult {
        self.write("scenario.toml", scenario);
        let output = self.run(&["run", "scenario.toml", "-q", "-T", transport, "-o", "results"]);
        assert_eq!(output.code, Some(0), "{output}");
        self.stored(&format!("results/{transport}-1.jsonl.zst"))
    }

    /// Reads a compressed result.
    pub(crate) fn stored(&self, name: &str) -> RunResult {
        let file = File::open(self.work().join(name)).unwrap();
        let decoder = StreamingDecoder::new(BufReader::new(file)).unwrap();
        let result = read_run(BufReader::new(decoder)).unwrap();
        assert!(!result.truncated, "the end of {name} is missing");
        result
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path); // best effort
    }
}

pub(crate) fn names(folder: &Path) -> Vec<String> {
    let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(name).collect();
    names.sort();
    names
}

/// Program that may still run; killed on drop.
pub(crate) struct Running {
    pub(crate) child: Child,
    description: String,
    out: PathBuf,
    err: PathBuf,
}

impl Running {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns its standard output so far.
    pub(crate) fn printed(&self) -> String {
        text(&self.out)
    }

    /// Returns its standard error so far.
    pub(crate) fn stderr(&self) -> String {
        text(&self.err)
    }

    pub(crate) fn wait(self) -> ProgramOutput {
        self.wait_at_most(HANG_TIMEOUT)
    }

    pub(crate) fn wait_at_most(mut self, limit: Duration) -> ProgramOutput {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return self.output(status);
            }
            if Instant::now() >= deadline {
                let (out, err) = (text(&self.out), text(&self.err));
                panic!("no end after {limit:?}: {}\n{out}{err}", self.description);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn output(&self, status: ExitStatus) -> ProgramOutput {
        let description = format!("{status}: {}", self.description);
        ProgramOutput {
            code: status.code(),
            description,
            out: text(&self.out),
            err: text(&self.err),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have exited
        let _ = self.child.wait();
    }
}

fn text(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned()
}

/// Exit code and output of a program.
#[derive(Debug)]
pub(crate) struct ProgramOutput {
    /// Exit code; `None` if a signal ended the program.
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
    description: String,
}

impl ProgramOutput {
    /// Parses standard output as JSON, one value a line.
    pub(crate) fn json(&self) -> Vec<Value> {
        let parse_line =
            |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {self}"));
        self.out.lines().map(parse_line).collect()
    }
}

impl std::fmt::Display for ProgramOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { code: _, out, err, description } = self;
        write!(f, "{description}\n--- stdout\n{out}--- stderr\n{err}")
    }
}

/// Returns the reason if the machine was too busy for a run's timing metrics, as the run reports.
///
/// Expectations of times only hold for the other runs; all others hold for every run.
pub(crate) fn busy(result: &RunResult) -> Option<&str> {
    result.records.iter().find_map(|record| {
        let Record::Timing(timing) = record else { return None };
        timing.unreliable.then(|| timing.reason.as_deref().unwrap_or("unreliable"))
    })
}

/// Returns the texts of the timeline's events that happened in a run.
pub(crate) fn timeline_events<'a>(result: &'a RunResult) -> Vec<&'a str> {
    let timeline_text = |record: &'a Record| {
        let Record::Event(event) = record else { return None };
        (event.kind == EventKind::Timeline).then_some(event.text.as_str())
    };
    result.records.iter().filter_map(timeline_text).collect()
}
