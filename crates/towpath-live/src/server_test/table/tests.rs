use std::net::IpAddr;
use std::sync::Weak;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use towpath_os::clock::Clock;
use towpath_scenario::Transport;
use towpath_sockets::run_clock::RunClock;

use super::*;
use crate::protocol::{HostInfo, HostReport, TransferSettings};
use crate::report_text::ReportWriter;
use crate::server_test::ClientGuard;

/// Memory limit of the server in these tests.
const LIMIT_BYTES: u64 = 8 << 20;
/// Most that one step adds to a running test.
const MAX_GROWTH_BYTES: u64 = 1 << 20;

/// One step of clients and of the server; numbers choose a test.
#[derive(Debug, Clone, Copy)]
enum Step {
    Admit { source: u8, streams: u8 },
    Begin(usize),
    Record(usize, u64),
    EndTraffic(usize, usize),
    Connect(usize),
    Disconnect(usize),
    HoldResult(usize),
    DropResult(usize),
    Forget(usize),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let number = || 0_usize..12;
    prop_oneof![
        (0_u8..6, 1_u8..16).prop_map(|(source, streams)| Step::Admit { source, streams }),
        number().prop_map(Step::Begin),
        (number(), 0..MAX_GROWTH_BYTES).prop_map(|(test, bytes)| Step::Record(test, bytes)),
        (number(), 0_usize..2_000_000).prop_map(|(test, bytes)| Step::EndTraffic(test, bytes)),
        number().prop_map(Step::Connect),
        number().prop_map(Step::Disconnect),
        number().prop_map(Step::HoldResult),
        number().prop_map(Step::DropResult),
        number().prop_map(Step::Forget),
        (0_u64..20_000).prop_map(Step::Wait),
    ]
}

/// Client of a test.
struct Client {
    token: TestToken,
    test: Weak<ServerTest>,
    control_connections: Vec<ClientGuard>,
    /// Results that are being sent to it.
    results: Vec<Arc<ReportText>>,
}

/// Table of tests, and all objects that hold memory.
struct Site {
    limits: ServerLimits,
    table: TestTable,
    clock: Clock,
    now: Instant,
    next_token: u64,
    clients: Vec<Client>,
    /// Tests whose traffic runs.
    running: Vec<Arc<ServerTest>>,
    /// Every result that was ever made.
    results: Vec<Weak<ReportText>>,
}

impl Site {
    fn new() -> Self {
        let limits = ServerLimits { memory: LIMIT_BYTES, tests: 8, ..ServerLimits::default() };
        Self {
            table: TestTable::new(&limits),
            limits,
            clock: Clock::start(),
            now: Instant::ZERO,
            next_token: 1,
            clients: Vec::new(),
            running: Vec::new(),
            results: Vec::new(),
        }
    }

    fn client(&mut self, number: usize) -> Option<&mut Client> {
        let count = self.clients.len().max(1);
        self.clients.get_mut(number % count)
    }

    fn test(&mut self, number: usize) -> Option<Arc<ServerTest>> {
        self.client(number)?.test.upgrade()
    }

    fn admit(&mut self, source: u8, streams: u8) {
        let scenario = format!(
            "name = \"t\"\n[hosts.client]\n[hosts.server]\n[paths.eth0]\n\
             between = [\"client\", \"server\"]\n[[flows]]\nfrom = \"client\"\nto = \"server\"\n\
             pattern = \"iperf\"\nduration = \"1 s\"\nstreams = {streams}\n"
        );
        let settings = TransferSettings::default();
        let plan = TestPlan { scenario, transport: Transport::Tcp, settings };
        let scenario = self.limits.admit(&plan).unwrap();
        let token = TestToken(u128::from(self.next_token).to_be_bytes());
        self.next_token += 1;
        let owner = (SourcePrefix::of(IpAddr::from([10, 0, 0, source])), None);
        let admitted = self.table.admit(token, (plan, scenario), owner, (&self.limits, self.now));
        if let Ok(Some(test)) = admitted {
            let (control_connection, _) = test.attach_control(self.clock);
            self.clients.push(Client {
                token,
                test: Arc::downgrade(&test),
                control_connections: vec![control_connection],
                results: Vec::new(),
            });
        }
    }

    fn begin(&mut self, number: usize) {
        let Some(test) = self.test(number) else { return };
        let run_clock = RunClock::new(self.clock, Instant::ZERO);
        let run_clock = Arc::new(run_clock.with_budget(Arc::clone(&test.budget)));
        if test.start(&run_clock).is_some() {
            self.running.push(test);
        }
    }

    /// Ends the traffic of a running test with a result of at least `bytes` bytes.
    fn end_traffic(&mut self, number: usize, bytes: usize) {
        if self.running.is_empty() {
            return;
        }
        let test = self.running.swap_remove(number % self.running.len());
        let mut writer = ReportWriter::default();
        let host = HostInfo { warnings: vec!["w".repeat(bytes)], ..HostInfo::default() };
        writer.append_report(HostReport { host, ..HostReport::default() });
        let result = writer.finish(self.table.memory().charge(0));
        self.table.end(&test, result, self.now, &self.limits);
        self.results.extend(test.result(Duration::ZERO).map(|result| Arc::downgrade(&result)));
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Admit { source, streams } => self.admit(source, streams),
            Step::Begin(number) => self.begin(number),
            Step::Record(number, bytes) => {
                let running = self.running.get(number % self.running.len().max(1));
                // The threads of a test that was ended stop.
                if let Some(test) = running.filter(|test| test.budget.end_reason().is_none()) {
                    test.budget.add_memory(bytes);
                }
            }
            Step::EndTraffic(number, bytes) => self.end_traffic(number, bytes),
            Step::Connect(number) => {
                let clock = self.clock;
                if let Some(test) = self.test(number)
                    && let Some(client) = self.client(number)
                {
                    client.control_connections.push(test.attach_control(clock).0);
                }
            }
            Step::Disconnect(number) => {
                drop(self.client(number).map(|client| client.control_connections.pop()));
            }
            Step::HoldResult(number) => {
                let result = self.test(number).and_then(|test| test.result(Duration::ZERO));
                if let Some(client) = self.client(number) {
                    client.results.extend(result);
                }
            }
            Step::DropResult(number) => {
                drop(self.client(number).map(|client| client.results.pop()));
            }
            Step::Forget(number) => {
                if let Some(token) = self.client(number).map(|client| client.token) {
                    self.table.forget(token);
                }
            }
            Step::Wait(ms) => {
                self.now += Duration::from_millis(ms);
                self.table.expire(self.now, &self.limits);
            }
        }
    }

    /// Returns the memory of all objects that exist, counted one by one.
    fn existing_bytes(&self) -> u64 {
        let tests = self.clients.iter().filter_map(|client| client.test.upgrade());
        let test_bytes = tests.map(|test| {
            let is_ended = matches!(&*test.lock(), TestState::Ended { .. });
            plan_bytes(&test.plan) + if is_ended { 0 } else { test.bytes() }
        });
        let results = self.results.iter().filter_map(Weak::upgrade);
        test_bytes.sum::<u64>() + results.map(|result| result.len()).sum::<u64>()
    }

    /// Checks the account after a step.
    fn check(&self) -> Result<(), TestCaseError> {
        let held_bytes = self.table.memory().held_bytes();
        prop_assert_eq!(held_bytes, self.existing_bytes());
        // Results that are being sent are neither removed nor a reason to end a test.
        let sent = self.clients.iter().flat_map(|client| &client.results);
        let sent_bytes: u64 = sent.map(|result| result.len()).sum();
        let max_bytes = LIMIT_BYTES + LIMIT_BYTES / 8 + MAX_GROWTH_BYTES + 2_100_000 + sent_bytes;
        prop_assert!(held_bytes <= max_bytes, "{} of {}", held_bytes, max_bytes);
        Ok(())
    }
}

/// For any steps of clients, the account is the memory that exists, it is bounded, and nothing
/// remains after all clients have left. `TOWPATH_ATTACKS=whole` runs 10,000 sequences.
#[test]
fn the_account_is_the_memory_that_exists() {
    let is_full = std::env::var("TOWPATH_ATTACKS").is_ok_and(|scope| scope == "whole");
    let config = Config { cases: if is_full { 10_000 } else { 40 }, ..Config::default() };
    let steps = proptest::collection::vec(step(), 1..80);
    let attack = |steps: Vec<Step>| {
        let mut site = Site::new();
        for step in steps {
            site.take(step);
            site.check()?;
        }
        site.clients.iter_mut().for_each(|client| {
            client.control_connections.clear();
            client.results.clear();
        });
        // Their threads notice the end of the tests.
        site.now += Duration::from_secs(61);
        site.table.expire(site.now, &site.limits);
        while !site.running.is_empty() {
            site.end_traffic(0, 100_000);
        }
        site.now += Duration::from_secs(61);
        site.table.expire(site.now, &site.limits);
        let retained_bytes = site.table.memory().held_bytes();
        prop_assert!(
            retained_bytes <= LIMIT_BYTES / ABSENT_SHARE + 100 * 17_000,
            "{}",
            retained_bytes
        );
        site.now += site.limits.result_retention;
        site.table.expire(site.now, &site.limits);
        prop_assert_eq!(site.table.memory().held_bytes(), 0);
        Ok(())
    };
    TestRunner::new(config).run(&steps, attack).unwrap();
}
