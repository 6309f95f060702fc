//! Uploads survive kills: eight clients send results while the collector, its database and the
//! clients are killed at random points, and while the collector's disk is full once.
//!
//! Invariant: a queued result is in the collector, once, or in the spool of its client. The kills
//! depend on real time, so an equal seed repeats a failure only with some luck.

mod postgres;
mod site;

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, thread};

use towpath_result::upload::content_hash;

use crate::processes::signal;
use crate::program::{ProgramOutput, Running, TestDir, is_long, is_root, names, skip, wait_for};
use postgres::Postgres;
use site::{DIR, Disk, FULL_DISK_TIMEOUT, Site};

const RESULT: &str = include_str!("../../../towpath-result/tests/fixtures/result-v1.jsonl");
const CLIENTS: usize = 8;
/// Results that the first client sends to a full disk.
const FULL_DISK_RESULTS: usize = 8;
/// Upper bound of the memory that a small result takes on a disk: a page.
const RESULT_PAGE_BYTES: u64 = 4_096;
/// Identifier of a run: the first digits of its content hash.
const ID_DIGITS: usize = 20;

#[test]
fn uploads_survive_kills_of_clients_and_of_a_collector_with_sqlite() {
    let test = TestDir::new();
    uploads_survive_kills(&test, None);
}

#[test]
fn uploads_survive_kills_of_clients_and_of_a_collector_with_postgres() {
    let test = TestDir::new();
    match Postgres::start(&test) {
        Ok(postgres) => uploads_survive_kills(&test, Some(postgres)),
        Err(reason) => {
            skip("uploads_survive_kills_of_clients_and_of_a_collector_with_postgres", &reason);
        }
    }
}

fn uploads_survive_kills(test: &TestDir, postgres: Option<Postgres<'_>>) {
    let rng = Rng::from_environment();
    let database = if postgres.is_some() { "PostgreSQL" } else { "SQLite" };
    report(&format!("uploads with {database}: TOWPATH_SEED={}", rng.seed));
    let disk = if is_root() {
        Disk::mount(&test.work().join(DIR))
    } else {
        Err("mounting needs root".to_owned())
    };
    let site = Site::create(test, postgres.as_ref().map(Postgres::database));
    let mut chaos = Chaos::new(test, rng, site, postgres);
    chaos.run_until(|chaos| chaos.queued_count() * 3 >= chaos.total());
    match &disk {
        Ok(disk) => chaos.fill_disk(disk),
        Err(reason) => skip("a collector whose disk is full", reason),
    }
    chaos.clients.iter_mut().for_each(|client| client.reserve = 0);
    chaos.run_until(Chaos::is_complete);
    chaos.verify_nothing_is_lost();
    chaos.send_rest();
    chaos.verify_everything_is_stored();
    report(&format!("uploads with {database}: {}", chaos.summary()));
}

/// Prints a line also if the test passes, unlike `eprintln!`.
fn report(line: &str) {
    io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Random numbers (xorshift64*), enough to choose what is killed.
struct Rng {
    seed: u64,
    state: u64,
}

impl Rng {
    /// Takes the seed from `TOWPATH_SEED`, or a new one.
    fn from_environment() -> Self {
        let seed = env::var("TOWPATH_SEED").map(|seed| seed.parse().unwrap());
        let seed = seed.unwrap_or_else(|_| RandomState::new().build_hasher().finish() >> 32);
        Self { seed, state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 }
    }

    /// Returns a number from 0, smaller than `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        (self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % end
    }

    fn is_chosen(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// A result, as its client and the collector name it.
struct ResultFile {
    /// Name in the working directory.
    name: String,
    hash: String,
}

impl ResultFile {
    fn write(test: &TestDir, seed: usize) -> Self {
        let result = RESULT.replacen("\"seed\":1,", &format!("\"seed\":{seed},"), 1);
        let name = format!("{seed}.jsonl");
        test.write(&name, &result);
        Self { name, hash: content_hash(result.as_bytes()).unwrap().0 }
    }

    fn id(&self) -> String {
        self.hash[..ID_DIGITS].to_owned()
    }
}

/// Client with a spool of its own, to which its results come over time.
struct Client {
    spool: PathBuf,
    files: Vec<ResultFile>,
    /// Number of files of which it is certain that they were queued.
    queued: usize,
    /// Number of files that were given to the running process or an earlier one.
    given: usize,
    /// Number of files that are kept for the full disk.
    reserve: usize,
    process: Option<Running>,
}

impl Client {
    /// Starts a process that queues up to `count` further files, and sends what waits.
    fn start(&mut self, test: &TestDir, url: &str, count: usize) {
        self.given = (self.queued + count).min(self.files.len() - self.reserve).max(self.queued);
        let mut command = test.towpath(&["upload", "--to", url, "--token-file", "uploader.token"]);
        command.env("HOME", test.temporary()).arg("--spool").arg(&self.spool);
        command.args(self.files[self.queued..self.given].iter().map(|file| &file.name));
        self.process = Some(test.start(&mut command));
    }

    /// Kills the process. Its files are certainly queued if it has sent one.
    fn kill(&mut self) {
        if let Some(process) = self.process.take()
            && !process.printed().is_empty()
        {
            self.queued = self.given;
        }
    }

    /// Waits for the end of the process.
    fn wait(&mut self) -> ProgramOutput {
        let output = self.process.take().unwrap().wait_at_most(FULL_DISK_TIMEOUT);
        self.queued = self.given;
        output
    }

    /// Returns the end of the process if it has ended by itself.
    fn ended(&mut self) -> Option<ProgramOutput> {
        self.process.as_mut()?.child.try_wait().unwrap()?;
        Some(self.wait())
    }

    /// Returns the content hashes of all results in the spool.
    fn waiting(&self) -> BTreeSet<String> {
        let names = folders_in(&self.spool).into_iter().flat_map(|queue| names(&queue));
        names.filter_map(|name| Some(name.strip_suffix(".jsonl.zst")?.to_owned())).collect()
    }

    fn is_complete(&self) -> bool {
        self.queued == self.files.len() && self.waiting().is_empty()
    }

    fn verify_nothing_is_refused(&self) {
        for queue in folders_in(&self.spool) {
            let refused = queue.join("refused");
            assert!(!refused.exists() || names(&refused).is_empty(), "{}", refused.display());
        }
    }
}

/// Returns the paths in a folder; none if it is missing.
fn folders_in(path: &Path) -> Vec<PathBuf> {
    if !path.exists() {
        return Vec::new();
    }
    names(path).into_iter().map(|name| path.join(name)).collect()
}

/// Numbers of kills.
#[derive(Debug, Default)]
struct Kills {
    collector: usize,
    database: usize,
    client: usize,
}

/// All processes, which are killed at random points.
struct Chaos<'a> {
    test: &'a TestDir,
    rng: Rng,
    site: Site<'a>,
    postgres: Option<Postgres<'a>>,
    clients: Vec<Client>,
    kills: Kills,
    /// Runs that a client was told are stored, while there were kills.
    stored_during_kills: usize,
}

impl<'a> Chaos<'a> {
    fn new(test: &'a TestDir, rng: Rng, site: Site<'a>, postgres: Option<Postgres<'a>>) -> Self {
        let count = if is_long() { 1_000 } else { 80 };
        let mut seeds = 1..=count;
        let clients = (0..CLIENTS).map(|number| Client {
            spool: test.work().join(format!("spool-{number}")),
            files: seeds
                .by_ref()
                .take(count / CLIENTS)
                .map(|n| ResultFile::write(test, n))
                .collect(),
            queued: 0,
            given: 0,
            reserve: if number == 0 { FULL_DISK_RESULTS } else { 0 },
            process: None,
        });
        let clients = clients.collect();
        Self { test, rng, site, postgres, clients, kills: Kills::default(), stored_during_kills: 0 }
    }

    fn files(&self) -> impl Iterator<Item = &ResultFile> {
        self.clients.iter().flat_map(|client| &client.files)
    }

    fn total(&self) -> usize {
        self.files().count()
    }

    fn queued_count(&self) -> usize {
        self.clients.iter().map(|client| client.queued).sum()
    }

    fn is_complete(&self) -> bool {
        self.clients.iter().all(Client::is_complete)
    }

    /// Kills and starts processes until a condition holds, but not forever: then the rest is sent
    /// without kills.
    fn run_until(&mut self, is_done: impl Fn(&Self) -> bool) {
        let max_rounds = if is_long() { 600 } else { 50 };
        for _ in 0..max_rounds {
            self.start_missing();
            let pause = Duration::from_millis(20 + self.rng.below(480));
            thread::sleep(pause);
            self.kill_one();
            if is_done(self) {
                break;
            }
        }
    }

    /// Starts most of the processes that do not run.
    fn start_missing(&mut self) {
        if let Some(postgres) = &mut self.postgres
            && self.rng.is_chosen(70)
        {
            postgres.keep_running();
        }
        if self.site.is_running() || self.rng.is_chosen(70) {
            self.site.keep_running();
        }
        let (url, max_batch) = (self.site.url(), if is_long() { 20 } else { 4 });
        for client in &mut self.clients {
            if let Some(output) = client.ended() {
                // Exit code 1: results still wait. Any other failure would be a wrong one.
                assert!(matches!(output.code, Some(0 | 1)), "{output}");
            }
            client.verify_nothing_is_refused();
            if client.process.is_none() && !client.is_complete() && self.rng.is_chosen(70) {
                client.start(self.test, &url, self.rng.below(max_batch + 1) as usize);
            }
        }
    }

    fn kill_one(&mut self) {
        match (self.rng.below(10), &mut self.postgres) {
            (0..=3, _) => {
                self.site.kill();
                self.kills.collector += 1;
            }
            (4..=5, Some(postgres)) => {
                postgres.kill();
                self.kills.database += 1;
            }
            _ => {
                let number = self.rng.below(CLIENTS as u64) as usize;
                self.clients[number].kill();
                self.kills.client += 1;
            }
        }
    }

    /// Ends all clients, and starts whatever they need.
    fn calm_down(&mut self) {
        self.clients.iter_mut().for_each(Client::kill);
        if let Some(postgres) = &mut self.postgres {
            postgres.wait_until_ready();
        }
        self.site.wait_until_ready();
    }

    /// Leaves the collector almost no space, has the first client send its results, and then gives
    /// the space back.
    fn fill_disk(&mut self, disk: &Disk) {
        self.calm_down();
        disk.shrink_to_free(self.rng.below(4) * RESULT_PAGE_BYTES);
        if self.rng.is_chosen(50) {
            self.site.kill();
            self.site.wait_until_ready();
        }
        let url = self.site.url();
        let client = &mut self.clients[0];
        client.reserve = 0;
        client.start(self.test, &url, client.files.len());
        let process = client.process.as_ref().unwrap();
        wait_for("a client that finds the disk full", || {
            process.stderr().contains("disk is full").then_some(())
        });
        if !is_long() {
            // The client would wait for as long as the collector asks.
            signal("INT", i64::from(process.id()));
        }
        let output = client.wait();
        assert_eq!(output.code, Some(if is_long() { 1 } else { 130 }), "{output}");
        assert!(output.err.contains("to be uploaded"), "{output}");
        let waiting = client.waiting();
        assert!(!waiting.is_empty(), "{output}");
        self.verify_nothing_is_lost();
        // The same process has to accept runs again.
        disk.grow();
        self.send(0);
    }

    /// Has a client send all its results, which must succeed.
    fn send(&mut self, number: usize) {
        let (url, client) = (self.site.url(), &mut self.clients[number]);
        client.start(self.test, &url, client.files.len());
        let output = client.wait();
        assert_eq!(output.code, Some(0), "{output}\n--- collector\n{}", self.site.log());
        assert!(client.is_complete(), "{output}");
    }

    /// Checks that each queued result is stored or waits.
    fn verify_nothing_is_lost(&mut self) {
        self.calm_down();
        let stored = self.site.runs();
        self.stored_during_kills = stored.len();
        for client in &self.clients {
            let waiting = client.waiting();
            for file in &client.files[..client.queued] {
                let is_safe = stored.contains(&file.id()) || waiting.contains(&file.hash);
                assert!(is_safe, "{} is neither stored nor in a spool", file.name);
            }
        }
    }

    fn send_rest(&mut self) {
        for number in 0..CLIENTS {
            self.send(number);
        }
    }

    fn verify_everything_is_stored(&self) {
        let stored = self.site.runs();
        let expected: BTreeSet<String> = self.files().map(ResultFile::id).collect();
        assert_eq!(expected.len(), self.total());
        assert_eq!(stored, expected);
        for file in self.files() {
            assert_eq!(self.site.records_hash(&file.id()), file.hash, "{}", file.name);
        }
        assert_eq!(self.records().count(), self.total());
        self.clients.iter().for_each(Client::verify_nothing_is_refused);
    }

    /// Returns the names of the collector's files of records, without unfinished ones.
    fn records(&self) -> impl Iterator<Item = String> {
        let folders = folders_in(&self.test.work().join(DIR).join("records/runs"));
        let names = folders.into_iter().flat_map(|folder| names(&folder));
        names.filter(|name| name.ends_with(".jsonl.zst"))
    }

    fn summary(&self) -> String {
        let Kills { collector, database, client } = self.kills;
        format!(
            "{} of {} runs were stored while {collector} collectors, {database} databases and \
             {client} clients were killed",
            self.stored_during_kills,
            self.total()
        )
    }
}
