//! A server and its clients on the loopback interface: ordinary and malicious ones.

#![expect(clippy::indexing_slicing, reason = "a test fails by panicking")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "these tests wait for real sockets")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use towpath_live::protocol::secret::{AuthProof, Challenge};
use towpath_live::protocol::{
    ClientMessage, ConnectionKind, Preamble, Secret, ServerLimits, ServerMessage, TestPlan,
    TransferSettings, frame,
};
use towpath_live::{LiveError, LocalBind, MeasureRequest, Server, ServerConfig, measure};
use towpath_result::{Record, Summary};
use towpath_run::token::TestToken;
use towpath_scenario::{Scenario, Transport, no_files};

#[path = "live/access.rs"]
mod access;
#[path = "live/check.rs"]
mod check;
#[path = "live/quic.rs"]
mod quic;

/// Timeout above any expected wait, even on a busy machine.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs `body` in a process of its own, by running the test `name` once more.
///
/// Such a test measures the memory of its whole process.
fn run_alone(name: &str, body: fn()) {
    const ALONE_ENV: &str = "TOWPATH_TEST_ALONE";
    if env::var_os(ALONE_ENV).is_some() {
        return body();
    }
    let mut command = Command::new("timeout");
    command.args(["--foreground", "--kill-after=5", "300"]).arg(env::current_exe().unwrap());
    let output =
        command.args(["--exact", name, "--nocapture"]).env(ALONE_ENV, "1").output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    assert!(stdout.contains("1 passed"), "no test is called {name}:\n{stdout}");
}

fn parse_secret(text: &str) -> Secret {
    Secret::from_text(text.as_bytes()).unwrap()
}

/// Starts a server that lives as long as the test's process.
fn serve(secret: Option<&str>, limits: ServerLimits) -> SocketAddr {
    serve_with_identity(None, secret, limits)
}

fn serve_with_identity(
    identity: Option<towpath_live::Identity>,
    secret: Option<&str>,
    limits: ServerLimits,
) -> SocketAddr {
    let config = ServerConfig {
        ports: vec![0],
        bind: Some(Ipv4Addr::LOCALHOST.into()),
        secret: secret.map(parse_secret),
        limits,
        once: false,
        public_diagnostics: false,
        quic_migration: false,
        identity,
        access: None,
    };
    let server = Server::open(config).unwrap();
    let address = *server.addresses().first().unwrap();
    thread::spawn(move || server.run(|_| {}).unwrap());
    address
}

fn measure_request(target: SocketAddr, transport: Transport, flow: &str) -> MeasureRequest {
    let text = format!(
        "name = \"t\"\n[hosts.client]\n[hosts.server]\n[paths.lo]\nbetween = [\"client\", \
         \"server\"]\n[[flows]]\nfrom = \"client\"\nto = \"server\"\n{flow}\n[run]\n\
         sample = \"50 ms\"\n"
    );
    let scenario = Scenario::parse("t", &text, &no_files).unwrap();
    let plan = TestPlan { scenario: text, transport, settings: TransferSettings::default() };
    MeasureRequest {
        name: target.ip().to_string(),
        targets: vec![target],
        choice: None,
        session: None,
        source: LocalBind::default(),
        plan,
        scenario,
        secret: None,
        grant: None,
        server: None,
        qlog: None,
        repeat: 1,
        run_order: None,
        seed: 1,
        result_timeout: HANG_TIMEOUT,
        // Other tests of this machine may make and remove interfaces.
        mobile: true,
    }
}

fn summary(records: &[Record]) -> &Summary {
    let Some(Record::Summary(summary)) = records.last() else { panic!("no summary") };
    summary
}

fn has_mptcp() -> bool {
    fs::read_to_string("/proc/sys/net/mptcp/enabled").is_ok_and(|text| text.trim() == "1")
}

#[test]
fn every_pattern_runs_between_two_hosts() {
    let server = serve(None, ServerLimits::default());
    let duration = "duration = \"700 ms\"";
    let flows = [
        format!("pattern = \"iperf\"\nstreams = 2\n{duration}"),
        format!("pattern = \"iperf\"\ndirection = \"down\"\n{duration}"),
        format!("pattern = \"iperf\"\ndirection = \"both\"\n{duration}"),
        "pattern = \"bulk\"\nsize = \"3 MB\"\ndirection = \"down\"".to_owned(),
        "pattern = \"bulk\"\nsize = \"3 MB\"".to_owned(),
        "pattern = \"ping\"\nperiod = \"20 ms\"".to_owned(),
        format!("pattern = \"reqres\"\nperiod = \"50 ms\"\n{duration}"),
        format!("pattern = \"interactive\"\n{duration}"),
        format!("pattern = \"interactive\"\nload = \"down\"\n{duration}"),
        format!("pattern = \"onoff\"\n{duration}"),
        format!(
            "pattern = \"video\"\nsegment = \"200 ms\"\nbuffer = \"1 s\"\nstartup = \"200 ms\"\n{duration}"
        ),
        "pattern = \"web\"".to_owned(),
        "pattern = \"trace\"\nmessages = [\"0 s up 2000 B 750 B\", \"50 ms down 90 B 40 B\"]"
            .to_owned(),
    ];
    for transport in [Transport::Tcp, Transport::Mptcp, Transport::Quic, Transport::Mpquic] {
        if transport == Transport::Mptcp && !has_mptcp() {
            assert!(env::var_os("CI").is_none(), "nothing is skipped in CI");
            continue;
        }
        for flow in &flows {
            let mut updates = 0;
            let records =
                measure(&measure_request(server, transport, flow), &mut |_| updates += 1).unwrap();
            let summary = summary(&records);
            assert!(summary.ok, "{transport} {flow}: {summary:?}");
            assert!(updates > 0, "{flow}: nothing was told while it ran");
            let multipath = matches!(transport, Transport::Mptcp | Transport::Mpquic);
            assert_eq!(
                summary.multipath.used, multipath,
                "{transport} {flow} {:?}",
                summary.multipath
            );
            for flow_summary in &summary.flows {
                let messages = flow_summary.messages.as_ref();
                assert!(
                    flow_summary.bytes > 0 && flow_summary.connect_ns.is_some(),
                    "{flow}: {flow_summary:?}"
                );
                assert_eq!(
                    messages.map_or(0, towpath_result::MessageStats::unanswered),
                    0,
                    "{flow}"
                );
            }
        }
    }
}

#[test]
fn a_rate_is_respected_and_a_byte_limit_ends_a_test() {
    let limits = ServerLimits { bytes: Some(2_000_000), ..ServerLimits::default() };
    let server = serve(None, limits);
    let flow = "pattern = \"iperf\"\nduration = \"1 s\"";
    let mut request = measure_request(server, Transport::Tcp, flow);
    request.plan.settings.rate_bps = Some(8_000_000);
    let records = measure(&request, &mut |_| {}).unwrap();
    let bytes = summary(&records).flows.first().unwrap().bytes;
    assert!((700_000..=1_300_000).contains(&bytes), "{bytes}");
    request.plan.settings.rate_bps = Some(100_000_000);
    let records = measure(&request, &mut |_| {}).unwrap();
    let bytes = summary(&records).flows.first().unwrap().bytes;
    assert!(bytes < 9_000_000, "{bytes} of 12.5 MB, and the limit is 2 MB");
    let has_limit_warning =
        |summary: &Summary| summary.warnings.iter().any(|w| w.text.contains("--max-bytes"));
    assert!(has_limit_warning(summary(&records)), "{:?}", summary(&records).warnings);
}

#[test]
fn a_refusal_names_the_reason_and_a_hint() {
    let limits = ServerLimits { duration: Duration::from_secs(5), ..ServerLimits::default() };
    let server = serve(Some("the secret of both"), limits);
    let mut request =
        measure_request(server, Transport::Tcp, "pattern = \"iperf\"\nduration = \"9 s\"");
    let refusal = |request: &MeasureRequest| {
        let error = measure(request, &mut |_| {}).unwrap_err();
        assert!(matches!(error, LiveError::Refused(_)), "{error}");
        (error.to_string(), error.hint().unwrap())
    };
    let (reason, hint) = refusal(&request);
    assert!(
        reason.contains("requires a secret") && hint.contains("--secret-file"),
        "{reason}: {hint}"
    );
    request.secret = Some(parse_secret("another one, not that"));
    let (reason, _) = refusal(&request);
    assert!(reason.contains("the secret is wrong"), "{reason}");
    request.secret = Some(parse_secret("the secret of both"));
    let (reason, hint) = refusal(&request);
    assert!(
        reason.contains("9.00 s") && reason.contains("5.00 s") && hint.contains("-t"),
        "{reason}: {hint}"
    );
    let closed_port = SocketAddr::new(server.ip(), 1);
    let error =
        measure(&measure_request(closed_port, Transport::Tcp, "pattern = \"ping\""), &mut |_| {});
    let error = error.unwrap_err();
    assert!(error.to_string().contains("connection refused"), "{error}");
    assert!(error.hint().unwrap().contains("towpath server"));
}

#[test]
fn an_echo_connection_returns_its_input() {
    let server = serve(None, ServerLimits::default());
    let mut stream = connect(server, ConnectionKind::Echo, TestToken::NONE);
    stream.write_all(b"twelve bytes").unwrap();
    let mut echoed = [0; 12];
    stream.read_exact(&mut echoed).unwrap();
    assert_eq!(&echoed, b"twelve bytes");
}

fn connect(server: SocketAddr, kind: ConnectionKind, token: TestToken) -> TcpStream {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(HANG_TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(HANG_TIMEOUT)).unwrap();
    let preamble = Preamble { kind, flow: 0, stream: 0, token };
    stream.write_all(&preamble.to_bytes()).unwrap();
    stream
}

fn send(stream: &mut TcpStream, message: &ClientMessage) -> std::io::Result<()> {
    stream.write_all(&frame::to_bytes(message).unwrap())
}

/// Reads to the end; returns true if the other end closed or reset the connection.
fn is_closed(stream: &mut TcpStream) -> bool {
    let mut buffer = [0; 1_024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

fn resident_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<usize>().unwrap() * 1_024
}

/// Runs a short honest test; returns its duration.
fn run_honest_test(server: SocketAddr, secret: Option<&str>, flow: &str) -> Duration {
    let start = Instant::now();
    let mut request = measure_request(server, Transport::Tcp, flow);
    request.secret = secret.map(parse_secret);
    let records = measure(&request, &mut |_| {}).unwrap();
    assert!(summary(&records).ok, "{:?}", summary(&records));
    start.elapsed()
}

const SMALL_FLOW: &str = "pattern = \"bulk\"\nsize = \"200 KB\"\nduration = \"30 s\"";

#[test]
fn two_hundred_clients_at_once_are_served() {
    run_alone("two_hundred_clients_at_once_are_served", run_two_hundred_clients);
}

fn run_two_hundred_clients() {
    let server = serve(None, ServerLimits { tests: 512, ..ServerLimits::default() });
    let initial_bytes = resident_bytes();
    thread::scope(|scope| {
        for _ in 0..200 {
            scope.spawn(|| run_honest_test(server, None, SMALL_FLOW));
        }
    });
    let growth_bytes = resident_bytes().saturating_sub(initial_bytes);
    assert!(growth_bytes < 300 << 20, "{growth_bytes} bytes for clients and server");
}

#[test]
fn thousands_of_wrong_secrets_and_tokens_leave_the_server_as_it_was() {
    run_alone(
        "thousands_of_wrong_secrets_and_tokens_leave_the_server_as_it_was",
        send_wrong_secrets,
    );
}

fn send_wrong_secrets() {
    const SECRET: Option<&str> = Some("the key of this server");
    let server = serve(SECRET, ServerLimits::default());
    run_honest_test(server, SECRET, SMALL_FLOW);
    let initial_bytes = resident_bytes();
    let attempt = |number: u16| {
        let mut bytes = [7; 16];
        bytes[..2].copy_from_slice(&number.to_be_bytes());
        let mut stream = connect(
            server,
            if number.is_multiple_of(2) { ConnectionKind::Control } else { ConnectionKind::Data },
            TestToken(bytes),
        );
        assert!(is_closed(&mut stream), "a wrong token");
        let mut stream = connect(server, ConnectionKind::Control, TestToken::NONE);
        let (proof, challenge) = (AuthProof([number as u8; 32]), Challenge([9; 32]));
        // The server may close before the proof is sent.
        let _ = send(&mut stream, &ClientMessage::Hello { towpath: String::new() });
        let _ = send(&mut stream, &ClientMessage::Proof { proof, challenge, grant: None });
        assert!(is_closed(&mut stream), "a wrong secret");
    };
    let attempt = &attempt;
    thread::scope(|scope| {
        for part in 0..4 {
            scope.spawn(move || (part * 1_250..(part + 1) * 1_250).for_each(attempt));
        }
        scope.spawn(|| (0..5).for_each(|_| _ = run_honest_test(server, SECRET, SMALL_FLOW)));
    });
    let growth_bytes = resident_bytes().saturating_sub(initial_bytes);
    assert!(growth_bytes < 100 << 20, "{growth_bytes} bytes");
}

#[test]
fn half_open_connections_and_slow_readers_block_no_client() {
    run_alone("half_open_connections_and_slow_readers_block_no_client", open_half_connections);
}

fn open_half_connections() {
    let limits = ServerLimits {
        max_pending: 64,
        preamble_timeout: Duration::from_secs(2),
        ..ServerLimits::default()
    };
    let server = serve(None, limits);
    let initial_bytes = resident_bytes();
    let held_streams = Mutex::new(Vec::new());
    thread::scope(|scope| {
        // Many more than the maximum of pending connections, silent or with a partial preamble.
        scope.spawn(|| {
            for number in 0..400_u32 {
                let mut stream = TcpStream::connect(server).unwrap();
                if number.is_multiple_of(2) {
                    let _ = stream.write_all(b"towpath"); // the server may have closed it
                }
                held_streams.lock().unwrap().push(stream);
            }
        });
        scope.spawn(|| {
            for number in 0..400_u32 {
                let mut stream = TcpStream::connect(server).unwrap();
                let garbage: Vec<u8> = (0..5_000_u32)
                    .map(|index| (index.wrapping_mul(number * 2 + 77) >> 3) as u8)
                    .collect();
                let _ = stream.write_all(&garbage); // the server may have closed it
            }
        });
        scope.spawn(|| {
            for number in 0..100_u32 {
                let mut stream = connect(server, ConnectionKind::Control, TestToken::NONE);
                // Frames with a length of 4 GiB or almost zero, and text that is not a message.
                let length = if number.is_multiple_of(2) { u32::MAX } else { number };
                let _ = stream.write_all(&length.to_be_bytes()); // the server may have closed it
                let _ = stream.write_all(&[b'{'; 2_000]);
            }
        });
        // Clients that read neither their tests' data nor their results.
        for _ in 0..3 {
            scope.spawn(|| run_slow_reader(server, &held_streams));
        }
        scope.spawn(|| (0..8).for_each(|_| _ = run_honest_test(server, None, SMALL_FLOW)));
    });
    let duration = run_honest_test(server, None, SMALL_FLOW);
    assert!(duration < HANG_TIMEOUT, "{duration:?}");
    let growth_bytes = resident_bytes().saturating_sub(initial_bytes);
    assert!(growth_bytes < 200 << 20, "{growth_bytes} bytes");
}

/// Requests data and a result, and reads neither.
fn run_slow_reader(server: SocketAddr, held_streams: &Mutex<Vec<TcpStream>>) {
    let flow = "pattern = \"iperf\"\ndirection = \"down\"\nduration = \"2 s\"";
    let plan = measure_request(server, Transport::Tcp, flow).plan;
    let mut control = connect(server, ConnectionKind::Control, TestToken::NONE);
    send(&mut control, &ClientMessage::Hello { towpath: String::new() }).unwrap();
    send(&mut control, &ClientMessage::Plan(Box::new(plan))).unwrap();
    let mut decoder = towpath_live::protocol::FrameDecoder::default();
    let mut buffer = [0; 1_024];
    let token = loop {
        let length = control.read(&mut buffer).unwrap();
        assert!(length > 0, "the server has closed");
        decoder.push(&buffer[..length]);
        let mut token = None;
        while let Some(message) = decoder.take::<ServerMessage>().unwrap() {
            if let ServerMessage::Accepted { token: received_token } = message {
                token = Some(received_token);
            }
        }
        if let Some(token) = token {
            break token;
        }
    };
    let data = connect(server, ConnectionKind::Data, token.public_id());
    send(&mut control, &ClientMessage::Begin { at_ns: 0 }).unwrap();
    for _ in 0..2_000 {
        if send(&mut control, &ClientMessage::Fetch { offset: 0 }).is_err() {
            break;
        }
    }
    held_streams.lock().unwrap().extend([control, data]);
}

#[test]
fn unauthenticated_clients_get_no_details() {
    let server = serve(None, ServerLimits::default());
    let mut stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(HANG_TIMEOUT)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply); // the server may reset it
    assert!(reply.is_empty());
}
