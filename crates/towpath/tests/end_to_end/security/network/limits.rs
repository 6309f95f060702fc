//! `--max-rate`, `--max-bytes` and `--max-duration`, against the sum of all traffic of a client.

use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;
use towpath_live::protocol::{ClientMessage, ConnectionKind, ServerMessage, TransferSettings};
use towpath_run::datagram::EchoDatagram;
use towpath_run::token::TestToken;

use super::client::{QuicTest, TlsClient};
use super::{
    ControlClient, assert_healthy, preamble, receive_all_until, receive_until, send_all_until,
    send_until, start_test,
};
use crate::security::fixture::{AttackedServer, times};
use crate::security::unauthenticated::{ClientRoute, RawClient};

/// Rate limit of the server, bit/s.
const RATE_LIMIT_BPS: f64 = 16e6;
const DOWN: &str = "pattern = \"iperf\"\nduration = \"60 s\"\ndirection = \"down\"";

/// Returns the duration of a rate measurement.
fn measured_duration() -> Duration {
    Duration::from_millis(times(3_000, 10_000) as u64)
}

/// Writes to many echo connections of one source at full speed. Returns the bytes received.
fn echo_flood(route: ClientRoute, count: usize, deadline: Instant, received_bytes: &AtomicU64) {
    thread::scope(|scope| {
        for _ in 0..count {
            let Ok(echo) = route.connect(ConnectionKind::Echo, TestToken::NONE, (0, 0)) else {
                continue;
            };
            let reader = echo.try_clone().unwrap();
            scope.spawn(move || send_until(&echo, deadline, &AtomicU64::new(0)));
            scope.spawn(move || receive_until(&reader, deadline, received_bytes));
        }
    });
}

/// Sends datagrams of one source at full speed. Returns the bytes received.
fn datagram_flood(route: ClientRoute, deadline: Instant, received_bytes: &AtomicU64) {
    let socket = UdpSocket::bind((route.source, 0)).unwrap();
    socket.connect(route.server).unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut buffer = [0; 2_048];
    for number in 0.. {
        let request = EchoDatagram { token: TestToken::NONE, number, sent_ns: 0 }.to_bytes();
        let _ = socket.send(&request); // fails if the buffer is full
        while let Ok(length) = socket.recv(&mut buffer) {
            received_bytes.fetch_add(length as u64, Ordering::Relaxed);
        }
        if number % 64 == 0 {
            thread::sleep(Duration::from_millis(1));
            if Instant::now() >= deadline {
                return;
            }
        }
    }
}

/// Sends time requests and result requests on one control connection. Returns the bytes received.
fn control_requests(
    route: ClientRoute,
    token: TestToken,
    deadline: Instant,
    received_bytes: &AtomicU64,
) {
    let Ok(client) = ControlClient::open(route, token) else { return };
    let reader = client.stream.try_clone().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut client = client;
            client.stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
            while Instant::now() < deadline {
                let sent = client.send(&ClientMessage::Probe { client_ns: u64::MAX });
                if sent.is_err() {
                    // The last message may be incomplete, so this connection is of no further use.
                    return;
                }
            }
        });
        receive_until(&reader, deadline, received_bytes);
    });
}

/// Sends echoes over one QUIC connection. Returns the bytes received.
fn quic_echoes(route: ClientRoute, deadline: Instant, received_bytes: &AtomicU64) {
    let Some(mut client) = TlsClient::connect(route) else { return };
    let streams: Vec<_> = (0..4).filter_map(|_| client.open()).collect();
    for stream in &streams {
        client.write(*stream, &preamble(ConnectionKind::Echo, TestToken::NONE).to_bytes());
    }
    while Instant::now() < deadline {
        for stream in &streams {
            client.write(*stream, &[0; 16 * 1024]);
            let length = client.read(*stream).map_or(0, |bytes| bytes.len());
            received_bytes.fetch_add(length as u64, Ordering::Relaxed);
        }
        client.poll();
        thread::sleep(Duration::from_micros(500));
    }
    client.close();
}

fn assert_within_limit(moved_bytes: u64, rate: f64, elapsed: Duration, case: &str) {
    let measured_bps = moved_bytes as f64 * 8.0 / elapsed.as_secs_f64();
    assert!(
        measured_bps <= rate * 1.05,
        "{case}: {measured_bps:.0} of {rate} bit/s in {elapsed:?}"
    );
    assert!(
        measured_bps >= rate * 0.3,
        "the attack did not happen: {case}: {measured_bps:.0} bit/s"
    );
}

/// S4: a source's rate limits the sum of two tests, echoes, datagrams, requests and QUIC echoes.
#[test]
fn a_rate_limit_applies_to_all_traffic_together() {
    let site = AttackedServer::new(&["--max-rate", "16M"]);
    let route = site.route(1);
    // Bytes that arrive before the first read are read at once afterwards.
    let start = Instant::now();
    let tests: Vec<_> = (0..2)
        .map(|_| start_test(route, &[DOWN; 8], 1, TransferSettings::default()).unwrap())
        .collect();
    let bytes_by_kind: [AtomicU64; 5] = Default::default();
    let deadline = Instant::now() + measured_duration();
    thread::scope(|scope| {
        for data in tests.iter().flat_map(|(_, data)| data) {
            scope.spawn(|| receive_until(data, deadline, &bytes_by_kind[0]));
        }
        scope.spawn(|| echo_flood(route, 4, deadline, &bytes_by_kind[1]));
        scope.spawn(|| datagram_flood(route, deadline, &bytes_by_kind[2]));
        scope.spawn(|| control_requests(route, tests[0].0.token, deadline, &bytes_by_kind[3]));
        scope.spawn(|| quic_echoes(route, deadline, &bytes_by_kind[4]));
    });
    let elapsed = start.elapsed();
    let bytes_by_kind = bytes_by_kind.map(AtomicU64::into_inner);
    assert_within_limit(
        bytes_by_kind.iter().sum(),
        RATE_LIMIT_BPS,
        elapsed,
        &format!("data, echo, UDP, words, QUIC {bytes_by_kind:?}"),
    );
    drop(tests);
    assert_healthy(&site);
    site.wait_until_idle();
}

/// Type of a function that sends one kind of traffic and returns the bytes received.
type TrafficFn = fn(ClientRoute, Instant, &AtomicU64);

/// S4: each kind of traffic that sends bytes back, alone.
#[test]
fn a_rate_limit_applies_to_each_direction_separately() {
    let site = AttackedServer::new(&["--max-rate", "2M"]);
    let routes: [(&str, TrafficFn); 3] = [
        ("echoes", |route, deadline, back| echo_flood(route, 8, deadline, back)),
        ("datagrams", datagram_flood),
        ("QUIC", quic_echoes),
    ];
    thread::scope(|scope| {
        for (number, (case, attack)) in (1..).zip(routes) {
            let route = site.route(number);
            scope.spawn(move || {
                let (start, back) = (Instant::now(), AtomicU64::new(0));
                attack(route, start + measured_duration(), &back);
                assert_within_limit(back.into_inner(), 2e6, start.elapsed(), case);
            });
        }
    });
    assert!(!site.running.stderr().contains("panicked"));
}

/// S4: a client that reconnects constantly gets no new initial credit.
#[test]
fn a_rate_limit_applies_across_consecutive_connections() {
    let site = AttackedServer::new(&["--max-rate", "8M"]);
    let route = site.route(1);
    let (start, received_bytes) = (Instant::now(), AtomicU64::new(0));
    let deadline = start + measured_duration();
    let mut rounds = 0;
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while Instant::now() < deadline {
                    let echo_deadline = Instant::now() + Duration::from_millis(150);
                    let Ok(echo) = route.connect(ConnectionKind::Echo, TestToken::NONE, (0, 0))
                    else {
                        continue;
                    };
                    echo.set_nonblocking(true).unwrap();
                    let _ = (&echo).write(&vec![0; 1 << 17]); // a partial write is enough
                    echo.set_nonblocking(false).unwrap();
                    receive_until(&echo, echo_deadline, &received_bytes);
                }
            });
        }
        while Instant::now() < deadline {
            let Ok((client, data)) = start_test(route, &[DOWN], 1, TransferSettings::default())
            else {
                continue;
            };
            rounds += 1;
            receive_until(&data[0], Instant::now() + Duration::from_millis(100), &received_bytes);
            drop((client, data));
        }
    });
    assert!(rounds > 3, "{rounds} tests");
    let moved = received_bytes.into_inner();
    assert_within_limit(moved, 8e6, start.elapsed(), "tests and echoes one after the other");
    assert_healthy(&site);
}

/// S4: the rate also limits uploads, of tests and echoes together. Bytes in buffers do not count.
#[test]
fn a_rate_limit_applies_to_data_sent_to_the_server() {
    let site = AttackedServer::new(&["--max-rate", "40M"]);
    let route = site.route(1);
    let upload = "pattern = \"iperf\"\nduration = \"60 s\"\nstreams = 2";
    let small_window =
        TransferSettings { window_bytes: Some(64 << 10), ..TransferSettings::default() };
    let tests: Vec<_> =
        (0..2).map(|_| start_test(route, &[upload], 2, small_window.clone()).unwrap()).collect();
    let data: Vec<&TcpStream> = tests.iter().flat_map(|(_, data)| data).collect();
    for socket in &data {
        SockRef::from(*socket).set_send_buffer_size(32 << 10).unwrap();
    }
    // The buffers fill first.
    let fill_deadline = Instant::now() + Duration::from_millis(700);
    send_all_until(data.iter().copied(), fill_deadline);
    let start = Instant::now();
    let deadline = start + measured_duration();
    let sent_bytes = send_all_until(data.iter().copied(), deadline);
    // The four receive buffers may have been less full at the start than at the end.
    let buffers = 4 * (128 << 10);
    let moved = sent_bytes.saturating_sub(buffers);
    assert_within_limit(moved, 40e6, start.elapsed(), "four uploads");
    drop(tests);
    assert_healthy(&site);
}

/// S4: each source has a rate limit of its own.
#[test]
fn a_source_at_its_rate_limit_takes_no_rate_from_another() {
    let site = AttackedServer::new(&["--max-rate", "10M"]);
    site.run_attack(|attack| {
        let deadline = Instant::now() + Duration::from_secs(20);
        let received_bytes = AtomicU64::new(0);
        let (_client, data) =
            start_test(site.route(1), &[DOWN; 16], 1, TransferSettings::default()).unwrap();
        thread::scope(|scope| {
            for socket in &data {
                let received_bytes = &received_bytes;
                scope.spawn(move || {
                    while attack.is_active() && Instant::now() < deadline {
                        receive_until(
                            socket,
                            Instant::now() + Duration::from_millis(200),
                            received_bytes,
                        );
                    }
                });
            }
            attack.set_active();
        });
        assert!(received_bytes.into_inner() > 100_000);
    });
}

/// S4: no more bytes than allowed, at the full speed of loopback, by many flows at once.
#[test]
fn the_byte_limit_holds_at_full_speed_in_each_direction() {
    const MAX_BYTES: u64 = 40 << 20;
    let site = AttackedServer::new(&["--max-bytes", "40M"]);
    let up = "pattern = \"iperf\"\nduration = \"60 s\"";
    let small_window =
        TransferSettings { window_bytes: Some(64 << 10), ..TransferSettings::default() };
    let deadline = Instant::now() + Duration::from_secs(20);
    let (mut client, data) =
        start_test(site.route(1), &[DOWN; 8], 1, TransferSettings::default()).unwrap();
    let down = receive_all_until(&data, deadline);
    let report = client.fetch().unwrap();
    assert!(report.contains("--max-bytes"), "{}", &report[..report.len().min(400)]);
    drop((client, data));
    let (_client, data) = start_test(site.route(2), &[up, up], 1, small_window).unwrap();
    for socket in &data {
        SockRef::from(socket).set_send_buffer_size(32 << 10).unwrap();
    }
    let up = send_all_until(&data, deadline).saturating_sub(2 * (256 << 10));
    for (case, moved) in [("down", down), ("up", up)] {
        let share = moved as f64 / MAX_BYTES as f64;
        assert!(share <= 1.05, "{case}: {moved} of {MAX_BYTES} bytes");
        assert!(share >= 0.5, "the attack did not happen: {case}: {moved} of {MAX_BYTES} bytes");
    }
    assert_healthy(&site);
}

/// S4: repeated downloads of a result also count.
#[test]
fn the_byte_limit_holds_for_repeated_result_downloads() {
    const MAX_BYTES: u64 = 2 << 20;
    let site = AttackedServer::new(&["--max-bytes", "2M"]);
    let short_flow = "pattern = \"iperf\"\nduration = \"500 ms\"\ndirection = \"down\"";
    let low_rate = TransferSettings { rate_bps: Some(80_000), ..TransferSettings::default() };
    let (mut client, data) = start_test(site.route(1), &[short_flow; 8], 1, low_rate).unwrap();
    let mut total_bytes = receive_all_until(&data, Instant::now() + Duration::from_secs(5));
    let first_report = client.fetch().unwrap();
    total_bytes += first_report.len() as u64;
    let start = Instant::now();
    while total_bytes <= 2 * MAX_BYTES && start.elapsed() < Duration::from_secs(10) {
        let Ok(mut client) = ControlClient::open(site.route(1), client.token) else { break };
        let mut length = 0;
        if client.send(&ClientMessage::Fetch { offset: 0 }).is_err() {
            break;
        }
        while let Ok(ServerMessage::Part { total, text, .. }) = client.recv() {
            length += text.len() as u64;
            if length >= total {
                break;
            }
        }
        if length == 0 {
            break;
        }
        total_bytes += length;
    }
    assert!(total_bytes as f64 <= MAX_BYTES as f64 * 1.05, "{total_bytes} of {MAX_BYTES} bytes");
    assert_healthy(&site);
}

/// S4: no plan makes a test longer than allowed.
#[test]
fn no_plan_is_longer_than_allowed() {
    let site = AttackedServer::new(&["--max-duration", "2 s"]);
    let long_flows = [
        "pattern = \"iperf\"\nduration = \"2.2 s\"",
        "pattern = \"iperf\"\nduration = \"1 s\"\nstart = \"1.5 s\"",
        "pattern = \"iperf\"\nstart = \"584 y\"",
        "pattern = \"iperf\"\nstart = \"18446744073 s\"\nduration = \"18446744073 s\"",
        "pattern = \"iperf\"\nduration = \"1e300 s\"",
        "pattern = \"ping\"\ncount = 1000000",
        "pattern = \"ping\"\ncount = 1\nwarm-up = 1000",
        "pattern = \"ping\"\ncount = 5\nperiod = \"18446744073 s\"",
        "pattern = \"reqres\"\nduration = \"100 ms\"\nreply-timeout = \"1 h\"",
        "pattern = \"reqres\"\nduration = \"100 ms\"\nreply-timeout = \"18446744073 s\"",
        "pattern = \"interactive\"\nduration = \"1 s\"\nreply-timeout = \"1100 ms\"\nload = \"both\"",
        "pattern = \"trace\"\nmessages = [\"9 s up 100 B 100 B\"]\nreply-timeout = \"100 ms\"",
        "pattern = \"video\"\nduration = \"1 s\"\nreply-timeout = \"2 s\"",
        "pattern = \"web\"\nduration = \"3 s\"",
        "pattern = \"bulk\"\nsize = \"1 GB\"",
        "pattern = \"bulk\"\nsize = \"1 KB\"\nduration = \"3 s\"",
        "pattern = \"udping\"\nduration = \"1 s\"\nreply-timeout = \"5 s\"",
        "pattern = \"onoff\"\non = \"10 s\"\noff = \"10 s\"\nduration = \"3 s\"",
    ];
    for flow in long_flows {
        let mut client = RawClient::connect(site.route(1)).unwrap();
        let reason = client.plan(&[flow], TransferSettings::default()).unwrap();
        assert!(reason.is_some(), "{flow} was accepted");
    }
    assert_healthy(&site);
    site.wait_until_idle();
}

/// S4: a test ends at its time limit for any messages and data of its client.
#[test]
fn a_test_ends_in_time_for_any_messages_and_data() {
    let site = AttackedServer::new(&["--max-duration", "2 s"]);
    let upload = "pattern = \"iperf\"\nduration = \"2 s\"";
    let measure_end = |n: u16, flow: &str| {
        let (mut client, data) =
            start_test(site.route(n), &[flow], 1, TransferSettings::default()).unwrap();
        let (start, moved) = (Instant::now(), AtomicU64::new(0));
        let _ = client.send(&ClientMessage::End { at_ns: u64::MAX }); // the server may have closed it
        let _ = client.send(&ClientMessage::Begin { at_ns: u64::MAX });
        let deadline = start + Duration::from_secs(15);
        if flow.contains("down") {
            receive_until(&data[0], deadline, &moved);
        } else {
            send_until(&data[0], deadline, &moved);
        }
        assert!(moved.into_inner() > 0, "nothing moved");
        start.elapsed()
    };
    let download = format!("{upload}\ndirection = \"down\"");
    thread::scope(|scope| {
        for (n, flow) in [(1, upload), (2, &download)] {
            scope.spawn(move || {
                let elapsed = measure_end(n, flow);
                // Two seconds, plus the time that a busy machine takes to close.
                assert!(elapsed < Duration::from_secs(5), "{flow}: {elapsed:?}");
            });
        }
    });
    assert_healthy(&site);
    site.wait_until_idle();
}

/// S4: a source's rate also limits tests over QUIC, next to one over TCP.
#[test]
fn a_rate_limit_applies_to_quic_and_tcp_tests_together() {
    let site = AttackedServer::new(&["--max-rate", "16M"]);
    let route = site.route(1);
    // Bytes that arrive before the first read are read at once afterwards.
    let start = Instant::now();
    let mut quic_tests: Vec<_> = (0..3).map(|_| QuicTest::begin(route, DOWN).unwrap()).collect();
    let (_client, data) = start_test(route, &[DOWN; 2], 1, TransferSettings::default()).unwrap();
    let deadline = Instant::now() + measured_duration();
    let (quic, tcp): (u64, u64) = thread::scope(|scope| {
        let transfers: Vec<_> = quic_tests
            .iter_mut()
            .map(|test| scope.spawn(move || test.transfer(true, deadline)))
            .collect();
        let tcp = receive_all_until(&data, deadline);
        (transfers.into_iter().map(|thread| thread.join().unwrap()).sum(), tcp)
    });
    assert!(quic > 100_000, "{quic} bytes over QUIC");
    assert_within_limit(
        quic + tcp,
        RATE_LIMIT_BPS,
        start.elapsed(),
        &format!("QUIC {quic} bytes, TCP {tcp}"),
    );
    assert_healthy(&site);
}

/// S4: no more bytes than allowed over QUIC, at full speed; its client gets the reason.
#[test]
fn the_byte_limit_holds_over_quic_at_full_speed() {
    const MAX_BYTES: u64 = 8 << 20;
    let site = AttackedServer::new(&["--max-bytes", "8M"]);
    let mut test = QuicTest::begin(site.route(1), DOWN).unwrap();
    let moved = test.transfer(true, Instant::now() + Duration::from_secs(times(2, 6) as u64));
    let share = moved as f64 / MAX_BYTES as f64;
    assert!((0.5..=1.05).contains(&share), "{moved} of {MAX_BYTES} bytes");
    let report = test.fetch().unwrap();
    assert!(report.contains("--max-bytes"), "{}", &report[..report.len().min(400)]);
    assert!(!site.running.stderr().contains("panicked"));
}
