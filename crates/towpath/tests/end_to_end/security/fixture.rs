//! A server under attack, and the honest clients next to it.

use std::env;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::unauthenticated::ClientRoute;
use crate::program::{ProgramOutput, Running, TestDir, binary, wait_for};

/// Upper bound of a server's memory for any request (SECURITY.md, S1).
const MAX_MEMORY_KB: u64 = 256 * 1024;
/// Time after an attack until all permits are free (S3).
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(10);
/// Upper bound of an attack's duration.
const MAX_ATTACK_TIME: Duration = Duration::from_secs(60);
/// Rate offered by an honest client, bit/s.
const OFFERED_BPS: f64 = 8e6;

/// Returns true if attacks run in full, as with `cargo xtask attack-tests`.
pub(super) fn is_full_scope() -> bool {
    env::var_os("TOWPATH_ATTACKS").is_some_and(|scope| scope == "whole")
}

/// Returns the number of repetitions: `reduced` unless the full suite runs.
pub(super) fn times(reduced: usize, full: usize) -> usize {
    if is_full_scope() { full } else { reduced }
}

/// Attack that runs while honest clients measure.
pub(super) struct Attack {
    ends: Instant,
    began: AtomicBool,
    over: AtomicBool,
}

impl Attack {
    /// Signals that the attack is fully active, so that honest clients may start.
    pub(super) fn set_active(&self) {
        self.began.store(true, Ordering::Release);
    }

    pub(super) fn is_active(&self) -> bool {
        !self.over.load(Ordering::Acquire) && Instant::now() < self.ends
    }
}

/// Guard that ends the attack, also after a failed assertion.
struct AttackGuard<'a>(&'a Attack);

impl Drop for AttackGuard<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Release);
    }
}

pub(super) struct AttackedServer {
    pub(super) folder: TestDir,
    pub(super) running: Running,
    pub(super) port: String,
}

impl AttackedServer {
    pub(super) fn new(options: &[&str]) -> Self {
        let folder = TestDir::new();
        // `nohup` starts all tests with SIGHUP ignored.
        let mut command = folder.program("env");
        command.arg("--default-signal=HUP").arg(binary());
        command.args(["server", "-B", "127.0.0.1", "-p", "0"]).args(options);
        let running = folder.start(&mut command);
        let port = wait_for("the server", || {
            let said = running.stderr();
            let (_, rest) = said.split_once("listening on 127.0.0.1:")?;
            Some(rest.split_once(' ')?.0.to_owned())
        });
        Self { folder, running, port }
    }

    pub(super) fn route(&self, n: u16) -> ClientRoute {
        ClientRoute::number(n, &self.port)
    }

    /// Returns a value of the server's `/proc/PID/status`.
    pub(super) fn status(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.running.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Starts an honest client from an address of its own.
    pub(super) fn measure(&self, last_octet: u8, options: &[&str]) -> ProgramOutput {
        let (source, out) = (format!("127.0.0.{last_octet}"), format!("results-{last_octet}"));
        let base_arguments =
            ["measure", "127.0.0.1", "-p", &self.port, "-B", &source, "-o", &out, "-q"];
        // Small blocks, since one late large block is a tenth of the rate.
        let traffic_options = ["--transport", "tcp", "-t", "1", "-b", "8M", "-l", "16K"];
        self.folder.run(&[&base_arguments[..], &traffic_options, options].concat())
    }

    /// Runs an attack next to five simultaneous honest clients.
    ///
    /// All must be served at their offered rate, and the server must stay small and recover soon.
    ///
    /// The attack has to call [`Attack::set_active`], and to return once it no longer [is
    /// active](Attack::is_active).
    pub(super) fn run_attack(&self, attack: impl FnOnce(&Attack) + Send) {
        let (start, over) = (AtomicBool::new(false), AtomicBool::new(false));
        let state = Attack { ends: Instant::now() + MAX_ATTACK_TIME, began: start, over };
        thread::scope(|scope| {
            let ends = AttackGuard(&state);
            let attack_thread = scope.spawn(|| attack(&state));
            wait_for("the attack", || {
                (state.began.load(Ordering::Acquire) || attack_thread.is_finished()).then_some(())
            });
            let clients: Vec<_> = (2..7)
                .map(|last_octet| scope.spawn(move || self.assert_serves(last_octet)))
                .collect();
            let results: Vec<_> = clients.into_iter().map(thread::ScopedJoinHandle::join).collect();
            drop(ends);
            attack_thread.join().unwrap();
            assert!(results.iter().all(Result::is_ok), "not all honest clients were served");
        });
        self.assert_memory();
        self.wait_until_idle();
    }

    /// Checks that an honest client is served at its rate. A client refused as busy tries again.
    pub(super) fn assert_serves(&self, last_octet: u8) {
        let output = wait_for("an honest client's turn", || {
            let output = self.measure(last_octet, &[]);
            (!output.err.contains("busy")).then_some(output)
        });
        assert_eq!(output.code, Some(0), "{output}");
        let stored = self.folder.stored(&format!("results-{last_octet}/live-tcp-1.jsonl.zst"));
        let goodput = stored.summary.unwrap().flows[0].goodput_bps;
        assert!(goodput > 0.8 * OFFERED_BPS, "{goodput} of {OFFERED_BPS} bit/s");
    }

    /// Checks five honest clients in sequence, at their offered rate.
    pub(super) fn assert_serves_five(&self) {
        (2..7).for_each(|last_octet| self.assert_serves(last_octet));
    }

    /// Waits until no trace of a test or connection is left.
    pub(super) fn wait_until_idle(&self) {
        let start = Instant::now();
        wait_for("the end of all threads", || (self.status("Threads:") <= 4).then_some(()));
        let elapsed = start.elapsed();
        assert!(elapsed < RECOVERY_TIMEOUT, "seats were free after {elapsed:?}");
    }

    pub(super) fn assert_memory(&self) {
        let peak = self.status("VmHWM:");
        assert!(peak <= MAX_MEMORY_KB, "{peak} kB");
    }
}
