//! Hostile servers. For any behaviour of a server, a client ends within a stated time, and on an
//! interrupt at once.

pub(crate) mod hostile;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use hostile::{ALL, Hostile, Misbehaviour, Phase, Trick};

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

fn hostile(phase: Phase, trick: Trick) -> Hostile {
    Hostile::start(Misbehaviour::Trick(phase, trick))
}

/// Starts a short measurement, which by default waits two seconds for a result.
fn measure(folder: &TestDir, server: &Hostile, options: &[&str]) -> Running {
    let (port, print) = (server.port.to_string(), server.fingerprint.to_string());
    let out = format!("results-{port}");
    let ours = ["measure", "127.0.0.1", "-p", &port, "-t", "0.2", "-q", "-o", &out];
    let mut all = [&ours[..], options].concat();
    if !options.contains(&"--result-timeout") {
        all.extend(["--result-timeout", "2"]);
    }
    if options.contains(&"--tls") {
        all.extend(["--server-cert", &print]);
    }
    folder.start(&mut folder.towpath(&all))
}

/// Checks that a client of a hostile server has printed a clear error.
fn assert_clear_error(ended: &ProgramOutput, what: &str) {
    assert!(matches!(ended.code, Some(1 | 2)), "{what}: {ended}");
    let told = ended.err.contains("error: ") || ended.err.contains("warning: ");
    assert!(told, "{what}: {ended}");
    let steers = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
    assert!(!ended.err.contains(steers) && !ended.out.contains(steers), "{what}: {:?}", ended.err);
}

/// Runs many cases at the same time, as most of them only wait.
fn at_once<T: Sync>(cases: &[T], case: impl Fn(&T) + Sync) {
    thread::scope(|scope| {
        for one in cases {
            scope.spawn(|| case(one));
        }
    });
}

#[test]
fn a_measurement_survives_any_server_behaviour_before_traffic() {
    let folder = &TestDir::new();
    for phase in PHASES_BEFORE_TRAFFIC {
        at_once(&ALL, |trick| {
            let server = hostile(phase, *trick);
            let what = format!("{phase:?}, {trick:?}");
            let ended =
                measure(folder, &server, &["--transport", "tcp"]).wait_at_most(CLIENT_TIMEOUT);
            // For any message of the server, nothing was measured.
            assert_eq!(ended.code, Some(2), "{what}: {ended}");
            assert_clear_error(&ended, &what);
        });
    }
}

#[test]
fn a_measurement_terminates_for_any_server_report() {
    let folder = &TestDir::new();
    for options in [&["--transport", "tcp"][..], &["--transport", "tcp", "--tls"]] {
        at_once(&ALL, |trick| {
            let server = hostile(Phase::Fetch, *trick);
            let what = format!("{options:?}, {trick:?}");
            let ended = measure(folder, &server, options).wait_at_most(CLIENT_TIMEOUT);
            // The client's own measurements are kept.
            assert_eq!(ended.code, Some(1), "{what}: {ended}");
            assert!(ended.err.contains("the server's half of the result is missing"), "{ended}");
            assert_clear_error(&ended, &what);
        });
    }
}

#[test]
fn an_interrupt_ends_a_measurement_wherever_it_waits() {
    let folder = &TestDir::new();
    let waits = [Trick::Silence, Trick::Trickle, Trick::Ready, Trick::EmptyParts, Trick::SlowParts];
    let plain = &["--transport", "tcp"][..];
    let secured = &["--transport", "tcp", "--tls"][..];
    for phase in [&PHASES_BEFORE_TRAFFIC[..], &[Phase::Fetch]].concat() {
        let cases: Vec<_> =
            waits.iter().flat_map(|trick| [(*trick, plain), (*trick, secured)]).collect();
        at_once(&cases, |(trick, options)| {
            let server = hostile(phase, *trick);
            // Long enough for the interrupt to come first.
            let patient = [*options, &["--result-timeout", "60"]].concat();
            let mut client = measure(folder, &server, &patient);
            wait_for("the trick", || {
                let over = client.child.try_wait().unwrap().is_some();
                (over || server.has_begun()).then_some(())
            });
            if client.child.try_wait().unwrap().is_some() {
                // The client has already detected the trick.
                return;
            }
            signal("INT", client.id().into());
            let began = Instant::now();
            let ended = client.wait_at_most(CLIENT_TIMEOUT);
            let took = began.elapsed();
            let what = format!("{phase:?}, {trick:?}, {options:?}");
            assert!(took < INTERRUPT_TIMEOUT, "{what}: {took:?}: {ended}");
            // Some clients have already given up when the interrupt comes.
            assert!(matches!(ended.code, Some(130 | 1 | 2)), "{what}: {ended}");
            // Invalid TLS is detected at its first bytes.
            let seen = phase == Phase::Connection && *options == secured;
            if *trick == Trick::Silence || (*trick == Trick::Trickle && !seen) {
                assert_eq!(ended.code, Some(130), "{what}: {ended}");
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
    let long = ["measure", "127.0.0.1", "-p", &port, "-t", "60", "-b", "8M", "-i", "0.2"];
    for transport in ["tcp", "quic"] {
        let out = format!("results-{transport}");
        let options = ["--transport", transport, "-o", &out];
        let client = folder.start(&mut folder.towpath(&[&long[..], &options].concat()));
        wait_for("an interval", || client.stderr().contains(" up ").then_some(()));
        signal("INT", client.id().into());
        let began = Instant::now();
        let ended = client.wait_at_most(CLIENT_TIMEOUT);
        assert!(began.elapsed() < INTERRUPT_TIMEOUT, "{:?}: {ended}", began.elapsed());
        assert_eq!(ended.code, Some(130), "{ended}");
        assert!(ended.err.contains("results:"), "{ended}");
        let result = folder.stored(&format!("{out}/live-{transport}-1.jsonl.zst"));
        assert!(result.meta.conditions.contains_key("kernel on client"), "{ended}");
    }
}

#[test]
fn check_doctor_and_nearest_terminate_for_any_server_behaviour() {
    let folder = &TestDir::new();
    for phase in [Phase::Connection, Phase::Hello] {
        at_once(&ALL, |trick| {
            let what = format!("{phase:?}, {trick:?}");
            let server = hostile(phase, *trick);
            let address = format!("127.0.0.1:{}", server.port);
            let port = server.port.to_string();
            let list = format!("servers-{port}.txt");
            folder.write(&list, format!("{address}\n"));
            let auto = ["measure", "--server", "auto", "--servers", &list, "-t", "0.2", "-q"];
            let auto = [&auto[..], &["--transport", "tcp", "--result-timeout", "2"]].concat();
            let commands: [&[&str]; 4] = [
                &["check", "127.0.0.1", "-p", &port],
                &["doctor", "--connect", &address],
                &["doctor", "--peer", &address],
                &auto,
            ];
            let started: Vec<_> =
                commands.iter().map(|command| folder.start(&mut folder.towpath(command))).collect();
            for client in started {
                let ended = client.wait_at_most(CLIENT_TIMEOUT);
                // The standard output of `doctor` describes this host, so it may differ.
                assert!(matches!(ended.code, Some(0..=2)), "{what}: {ended}");
                let steers = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
                assert!(!ended.err.contains(steers), "{what}: {:?}", ended.err);
                assert!(!ended.out.contains(steers), "{what}: {:?}", ended.out);
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
    let most = 16 << 20;
    let counter = r#"{"record":{"type":"counter","host":"","name":"","before":0,"after":1}}"#;
    let connection =
        r#"{"connection":{"flow":0,"stream":0,"multipath":true,"reinjected_bytes":0}}"#;
    for line in [counter, connection, "{}", "[", "\"\""] {
        let report = format!("{line}\n").repeat(most / (line.len() + 1));
        let server = Hostile::start(Misbehaviour::Report(Arc::from(report)));
        let mut client =
            measure(folder, &server, &["--transport", "tcp", "--result-timeout", "20"]);
        let mut peak = 0;
        wait_for("the client's end", || {
            peak = peak.max(peak_bytes(client.id()).unwrap_or(0));
            client.child.try_wait().unwrap().map(|_| ())
        });
        let ended = client.wait_at_most(CLIENT_TIMEOUT);
        assert!(matches!(ended.code, Some(0..=2)), "{line}: {ended}");
        assert!(peak > 0 && peak < 256 << 20, "{line}: {peak} bytes");
    }
    let larger = "x".repeat(most * 4);
    let server = Hostile::start(Misbehaviour::Report(Arc::from(larger)));
    let ended = measure(folder, &server, &["--transport", "tcp"]).wait_at_most(CLIENT_TIMEOUT);
    assert_eq!(ended.code, Some(1), "{ended}");
    assert!(ended.err.contains("none is larger"), "{ended}");
}
