//! Traffic of one test on a server; its test slot is released however the test ends.

use std::net::SocketAddr;
use std::sync::Arc;

use towpath_result::Record;
use towpath_sockets::run_clock::RunClock;

use super::{ServerEvent, ServerState};
use crate::flow_runner::{FlowRunner, FlowStream};
use crate::host_info::HostBaseline;
use crate::protocol::{HostInfo, HostReport};
use crate::report_text::ReportWriter;
use crate::server_test::ServerTest;

/// Warning to the client of a test that ended without a result.
const FAILED_MESSAGE: &str = "the server could not run the test (no threads left, or a bug); its \
                      results are missing";

/// Run of one test's traffic; stores its result on drop.
pub(super) struct TestRun {
    state: Arc<ServerState>,
    test: Arc<ServerTest>,
    client: Option<SocketAddr>,
    report: ReportWriter,
    /// Set once the report is complete.
    is_complete: bool,
}

impl TestRun {
    pub(super) fn new(
        state: &Arc<ServerState>,
        test: Arc<ServerTest>,
        client: Option<SocketAddr>,
    ) -> Self {
        let (state, report) = (Arc::clone(state), ReportWriter::default());
        Self { state, test, client, report, is_complete: false }
    }

    pub(super) fn run(mut self, run_clock: &RunClock, streams: Vec<FlowStream>) {
        let test = &self.test;
        let runner = FlowRunner {
            run_clock,
            scenario: &test.scenario,
            transport: test.plan.transport,
            settings: &test.plan.settings,
            is_client: false,
            probe_target: None,
            udp_server: Some(self.state.udp_context(test)),
        };
        let baseline = HostBaseline::read();
        let (writer, budget) = (&mut self.report, &test.budget);
        let mut on_record = |record: &Record| budget.add_memory(writer.append_record(record));
        let mut report = runner.run(&streams, &baseline, &mut on_record);
        drop(streams);
        if let Some(reason) = test.budget.end_reason() {
            report.host.warnings.push(format!("the server has ended the test: {reason}"));
        }
        self.report.append_report(report);
        self.is_complete = true;
    }
}

impl Drop for TestRun {
    fn drop(&mut self) {
        let mut report = std::mem::take(&mut self.report);
        if !self.is_complete {
            let warnings = vec![FAILED_MESSAGE.to_owned()];
            report.append_report(HostReport {
                host: HostInfo { warnings, ..HostInfo::default() },
                ..HostReport::default()
            });
        }
        // The report holds all that remains of the traffic.
        self.test.budget.release_memory();
        let report = report.finish(self.state.tests.memory().charge(0));
        let (now, limits) = (self.state.clock.now(), &self.state.config.limits);
        self.state.tests.end(&self.test, report, now, limits);
        self.state.emit(ServerEvent::Ended { client: self.client });
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use towpath_net::{Instant, SourcePrefix};
    use towpath_run::token::TestToken;
    use towpath_scenario::Transport;

    use super::*;
    use crate::protocol::{ServerLimits, TestPlan, TransferSettings};
    use crate::server::{Server, ServerConfig};

    fn server_state() -> Arc<ServerState> {
        let config = ServerConfig {
            ports: vec![0],
            bind: Some(Ipv4Addr::LOCALHOST.into()),
            secret: None,
            limits: ServerLimits { tests: 1, ..ServerLimits::default() },
            once: false,
            public_diagnostics: false,
            quic_migration: false,
            identity: None,
            access: None,
        };
        Arc::clone(&Server::open(config).unwrap().state)
    }

    /// Starts a test without connections; returns `None` if all slots are in use.
    fn start_test(state: &Arc<ServerState>, token: u8) -> Option<Arc<ServerTest>> {
        let scenario = "name = \"t\"\n[hosts.client]\n[hosts.server]\n[paths.eth0]\n\
                        between = [\"client\", \"server\"]\n[[flows]]\nfrom = \"client\"\n\
                        to = \"server\"\npattern = \"iperf\"\nduration = \"1 s\"\n";
        let settings = TransferSettings::default();
        let plan = TestPlan { scenario: scenario.to_owned(), transport: Transport::Tcp, settings };
        let scenario = state.config.limits.admit(&plan).unwrap();
        let (limits, now) = (&state.config.limits, state.clock.now());
        let owner = (SourcePrefix::default(), None);
        let tests = &state.tests;
        let test =
            tests.admit(TestToken([token; 16]), (plan, scenario), owner, (limits, now)).ok()??;
        test.start(&Arc::new(RunClock::new(state.clock, Instant::ZERO)))?;
        Some(test)
    }

    /// Regression: if a second control connection ended before its first message, and after the
    /// first connection had left, the client counted as lost for a minute.
    #[test]
    fn an_abruptly_closed_connection_is_cleaned_up_normally() {
        let state = server_state();
        let test = start_test(&state, 1).unwrap();
        let later = state.clock.now() + Duration::from_secs(9);
        let is_ended_after = |lost: bool| {
            let (mut client_guard, _) = test.attach_control(state.clock);
            if lost {
                client_guard.mark_lost();
            }
            drop(client_guard);
            state.tests.expire(later, &state.config.limits);
            test.budget.end_reason().is_some()
        };
        assert!(!is_ended_after(true), "a path that is gone may come back");
        assert!(is_ended_after(false));
    }

    /// Regression: a test whose thread panicked or never started kept its slot forever.
    #[test]
    fn a_slot_is_released_however_the_traffic_ends() {
        let state = server_state();
        let test = start_test(&state, 1).unwrap();
        assert!(start_test(&state, 2).is_none(), "there is one place");
        let test_run = TestRun::new(&state, Arc::clone(&test), None);
        std::thread::spawn(move || {
            let _guard = test_run;
            panic!("a defect");
        })
        .join()
        .unwrap_err();
        let result_contains_failure = |test: &ServerTest| {
            let report = test.result(Duration::ZERO).unwrap();
            report.part(0, 100_000).unwrap().contains(FAILED_MESSAGE)
        };
        assert!(result_contains_failure(&test));
        let next_test = start_test(&state, 3).unwrap();
        drop(TestRun::new(&state, Arc::clone(&next_test), None));
        assert!(result_contains_failure(&next_test));
    }
}
