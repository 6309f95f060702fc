//! Hostile servers. For any behaviour of a server, a client ends within a stated time, and on an
//! interrupt at once.

pub(crate) mod hostile;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use hostile::{ALL_TRICKS, Hostile, Misbehaviour, Phase, Trick};

use crate::processes::signal;
use crate::program::{ProgramOutput, Running, TestDir, wait_for};

/// Timeout for a client. A reply may take ten seconds, a result here four; the rest is for a busy
/// machine.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(45);
/// Timeout after an interrupt, which ends everything within a second; the rest is for a busy
/// machine.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(4);

/// Phases before the traffic that a server can disturb.
const PHASES_BEFORE_TRAFFIC: [Phase; 5] =
    [Phase::Connection, Phase::Hello, Phase::Plan, Phase::Ready, Phase::Probe];

fn hostile_server(phase: Phase, trick: Trick) -> Hostile {
    Hostile::start(Misbehaviour::Trick(phase, trick))
}

/// Starts a short measurement, which by default waits two seconds for a result.
fn measure(folder: &TestDir, server: &Hostile, options: &[&str]) -> Running {
    let (port, fingerprint) = (server.port.to_string(), server.fingerprint.to_string());
    let out = format!("results-{port}");
    let base_arguments = ["measure", "127.0.0.1", "-p", &port, "-t", "0.2", "-q", "-o", &out];
    let mut arguments = [&base_arguments[..], options].concat();
    if !options.contains(&"--result-timeout") {
        arguments.extend(["--result-timeout", "2"]);
    }
    if options.contains(&"--tls") {
        arguments.extend(["--server-cert", &fingerprint]);
    }
    folder.start(&mut folder.towpath(&arguments))
}

/// Checks that a client of a hostile server has printed a clear error.
fn assert_clear_error(output: &ProgramOutput, case: &str) {
    assert!(matches!(output.code, Some(1 | 2)), "{case}: {output}");
    let has_message = output.err.contains("error: ") || output.err.contains("warning: ");
    assert!(has_message, "{case}: {output}");
    let is_terminal_control = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
    assert!(
        !output.err.contains(is_terminal_control) && !output.out.contains(is_terminal_control),
        "{case}: {:?}",
        output.err
    );
}

/// Runs many cases at the same time, as most of them only wait.
fn run_in_parallel<T: Sync>(cases: &[T], case: impl Fn(&T) + Sync) {
    thread::scope(|scope| {
        for input in cases {
            scope.spawn(|| case(input));
        }
    });
}

#[test]
fn a_measurement_survives_any_server_behaviour_before_traffic() {
    let folder = &TestDir::new();
    for phase in PHASES_BEFORE_TRAFFIC {
        run_in_parallel(&ALL_TRICKS, |trick| {
            let server = hostile_server(phase, *trick);
            let case = format!("{phase:?}, {trick:?}");
            let output =
                measure(folder, &server, &["--transport", "tcp"]).wait_at_most(CLIENT_TIMEOUT);
            // For any message of the server, nothing was measured.
            assert_eq!(output.code, Some(2), "{case}: {output}");
            assert_clear_error(&output, &case);
        });
    }
}

#[test]
fn a_measurement_terminates_for_any_server_report() {
    let folder = &TestDir::new();
    for options in [&["--transport", "tcp"][..], &["--transport", "tcp", "--tls"]] {
        run_in_parallel(&ALL_TRICKS, |trick| {
            let server = hostile_server(Phase::Fetch, *trick);
            let case = format!("{options:?}, {trick:?}");
            let output = measure(folder, &server, options).wait_at_most(CLIENT_TIMEOUT);
            // The client's own measurements are kept.
            assert_eq!(output.code, Some(1), "{case}: {output}");
            assert!(output.err.contains("the server's results are missing"), "{output}");
            assert_clear_error(&output, &case);
        });
    }
}

#[test]
fn an_interrupt_ends_a_measurement_wherever_it_waits() {
    let folder = &TestDir::new();
    let tricks =
        [Trick::Silence, Trick::Trickle, Trick::Ready, Trick::EmptyParts, Trick::SlowParts];
    let without_tls = &["--transport", "tcp"][..];
    let with_tls = &["--transport", "tcp", "--tls"][..];
    for phase in [&PHASES_BEFORE_TRAFFIC[..], &[Phase::Fetch]].concat() {
        let cases: Vec<_> =
            tricks.iter().flat_map(|trick| [(*trick, without_tls), (*trick, with_tls)]).collect();
        run_in_parallel(&cases, |(trick, options)| {
            let server = hostile_server(phase, *trick);
            // Long enough for the interrupt to come first.
            let patient_options = [*options, &["--result-timeout", "60"]].concat();
            let mut client = measure(folder, &server, &patient_options);
            wait_for("the trick", || {
                let over = client.child.try_wait().unwrap().is_some();
                (over || server.has_begun()).then_some(())
            });
            if client.child.try_wait().unwrap().is_some() {
                // The client has already detected the trick.
                return;
            }
            signal("INT", client.id().into());
            let start = Instant::now();
            let output = client.wait_at_most(CLIENT_TIMEOUT);
            let elapsed = start.elapsed();
            let case = format!("{phase:?}, {trick:?}, {options:?}");
            assert!(elapsed < INTERRUPT_TIMEOUT, "{case}: {elapsed:?}: {output}");
            // Some clients have already given up when the interrupt comes.
            assert!(matches!(output.code, Some(130 | 1 | 2)), "{case}: {output}");
            // Invalid TLS is detected at its first bytes.
            let is_detected_early = phase == Phase::Connection && *options == with_tls;
            if *trick == Trick::Silence || (*trick == Trick::Trickle && !is_detected_early) {
                assert_eq!(output.code, Some(130), "{case}: {output}");
            }
        });
    }
}

#[test]
fn an_interrupt_keeps_the_report_of_an_honest_server() {
    let folder = TestDir::new();
    let server = folder.start(&mut folder.towpath(&["server", "-B", "127.0.0.1", "-p", "0"]));
    let port = wait_for("the server", || {
        let said = server.stderr();
        let (_, rest) = said.split_once("listening on 127.0.0.1:")?;
        Some(rest.split_once(' ')?.0.to_owned())
    });
    let base_arguments = ["measure", "127.0.0.1", "-p", &port, "-t", "60", "-b", "8M", "-i", "0.2"];
    for transport in ["tcp", "quic"] {
        let out = format!("results-{transport}");
        let options = ["--transport", transport, "-o", &out];
        let client = folder.start(&mut folder.towpath(&[&base_arguments[..], &options].concat()));
        wait_for("an interval", || client.stderr().contains(" up ").then_some(()));
        signal("INT", client.id().into());
        let start = Instant::now();
        let output = client.wait_at_most(CLIENT_TIMEOUT);
        assert!(start.elapsed() < INTERRUPT_TIMEOUT, "{:?}: {output}", start.elapsed());
        assert_eq!(output.code, Some(130), "{output}");
        assert!(output.err.contains("results:"), "{output}");
        let result = folder.stored(&format!("{out}/live-{transport}-1.jsonl.zst"));
        assert!(result.meta.conditions.contains_key("kernel on client"), "{output}");
    }
}

#[test]
fn check_doctor_and_nearest_terminate_for_any_server_behaviour() {
    let folder = &TestDir::new();
    for phase in [Phase::Connection, Phase::Hello] {
        run_in_parallel(&ALL_TRICKS, |trick| {
            let case = format!("{phase:?}, {trick:?}");
            let server = hostile_server(phase, *trick);
            let address = format!("127.0.0.1:{}", server.port);
            let port = server.port.to_string();
            let server_list = format!("servers-{port}.txt");
            folder.write(&server_list, format!("{address}\n"));
            let auto =
                ["measure", "--server", "auto", "--servers", &server_list, "-t", "0.2", "-q"];
            let auto = [&auto[..], &["--transport", "tcp", "--result-timeout", "2"]].concat();
            let commands: [&[&str]; 4] = [
                &["check", "127.0.0.1", "-p", &port],
                &["doctor", "--connect", &address],
                &["doctor", "--peer", &address],
                &auto,
            ];
            let clients: Vec<_> =
                commands.iter().map(|command| folder.start(&mut folder.towpath(command))).collect();
            for client in clients {
                let output = client.wait_at_most(CLIENT_TIMEOUT);
                // The standard output of `doctor` describes this host, so it may differ.
                assert!(matches!(output.code, Some(0..=2)), "{case}: {output}");
                let is_terminal_control =
                    |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
                assert!(!output.err.contains(is_terminal_control), "{case}: {:?}", output.err);
                assert!(!output.out.contains(is_terminal_control), "{case}: {:?}", output.out);
            }
        });
    }
}

/// Returns the peak memory of a program.
fn peak_bytes(id: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

#[test]
fn no_server_report_fills_the_clients_memory() {
    let folder = &TestDir::new();
    // The largest report accepted for a short test, and one byte more.
    let max_report_bytes = 16 << 20;
    let counter = r#"{"record":{"type":"counter","host":"","name":"","before":0,"after":1}}"#;
    let connection =
        r#"{"connection":{"flow":0,"stream":0,"multipath":true,"reinjected_bytes":0}}"#;
    for line in [counter, connection, "{}", "[", "\"\""] {
        let report = format!("{line}\n").repeat(max_report_bytes / (line.len() + 1));
        let server = Hostile::start(Misbehaviour::Report(Arc::from(report)));
        let mut client =
            measure(folder, &server, &["--transport", "tcp", "--result-timeout", "20"]);
        let mut peak = 0;
        wait_for("the client's end", || {
            peak = peak.max(peak_bytes(client.id()).unwrap_or(0));
            client.child.try_wait().unwrap().map(|_| ())
        });
        let output = client.wait_at_most(CLIENT_TIMEOUT);
        assert!(matches!(output.code, Some(0..=2)), "{line}: {output}");
        assert!(peak > 0 && peak < 256 << 20, "{line}: {peak} bytes");
    }
    let oversized = "x".repeat(max_report_bytes * 4);
    let server = Hostile::start(Misbehaviour::Report(Arc::from(oversized)));
    let output = measure(folder, &server, &["--transport", "tcp"]).wait_at_most(CLIENT_TIMEOUT);
    assert_eq!(output.code, Some(1), "{output}");
    assert!(output.err.contains("exceeds the limit"), "{output}");
}
