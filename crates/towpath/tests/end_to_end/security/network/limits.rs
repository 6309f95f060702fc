//! `--max-rate`, `--max-bytes` and `--max-duration`, against the sum of all traffic of a client.

use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;
use towpath_measure::live::datagram::EchoDatagram;
use towpath_measure::live::{
    ClientMessage, ConnectionKind, ServerMessage, TestToken, TransferSettings,
};

use super::client::{QuicTest, TlsClient};
use super::{ControlClient, assert_healthy, give, give_all, preamble, running, take, take_all};
use crate::security::fixture::{AttackedServer, times};
use crate::security::unauthenticated::{ClientRoute, RawClient};

/// Rate limit of the server, bit/s.
const RATE_LIMIT_BPS: f64 = 16e6;
const DOWN: &str = "pattern = \"iperf\"\nduration = \"60 s\"\ndirection = \"down\"";

/// Returns the time over which a rate is measured.
fn span() -> Duration {
    Duration::from_millis(times(3_000, 10_000) as u64)
}

/// Writes to many echo connections of one source at full speed. Returns the bytes received.
fn echoes(route: ClientRoute, count: usize, until: Instant, back: &AtomicU64) {
    thread::scope(|scope| {
        for _ in 0..count {
            let Ok(echo) = route.connect(ConnectionKind::Echo, TestToken::NONE, (0, 0)) else {
                continue;
            };
            let other = echo.try_clone().unwrap();
            scope.spawn(move || give(&echo, until, &AtomicU64::new(0)));
            scope.spawn(move || take(&other, until, back));
        }
    });
}

/// Sends datagrams of one source at full speed. Returns the bytes received.
fn datagrams(route: ClientRoute, until: Instant, back: &AtomicU64) {
    let socket = UdpSocket::bind((route.from, 0)).unwrap();
    socket.connect(route.server).unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut room = [0; 2_048];
    for number in 0.. {
        let ours = EchoDatagram { token: TestToken::NONE, number, sent_ns: 0 }.to_bytes();
        let _ = socket.send(&ours); // fails if the buffer is full
        while let Ok(length) = socket.recv(&mut room) {
            back.fetch_add(length as u64, Ordering::Relaxed);
        }
        if number % 64 == 0 {
            thread::sleep(Duration::from_millis(1));
            if Instant::now() >= until {
                return;
            }
        }
    }
}

/// Sends time requests and result requests on one control connection. Returns the bytes received.
fn control_requests(route: ClientRoute, token: TestToken, until: Instant, back: &AtomicU64) {
    let Ok(line) = ControlClient::open(route, token) else { return };
    let reader = line.stream.try_clone().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut line = line;
            line.stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
            while Instant::now() < until {
                let asked = line.send(&ClientMessage::Probe { client_ns: u64::MAX });
                if asked.is_err() {
                    // The last message may be incomplete, so this connection is of no further use.
                    return;
                }
            }
        });
        take(&reader, until, back);
    });
}

/// Sends echoes over one QUIC connection. Returns the bytes received.
fn quic_echoes(route: ClientRoute, until: Instant, back: &AtomicU64) {
    let Some(mut client) = TlsClient::connect(route) else { return };
    let streams: Vec<_> = (0..4).filter_map(|_| client.open()).collect();
    for stream in &streams {
        client.write(*stream, &preamble(ConnectionKind::Echo, TestToken::NONE).to_bytes());
    }
    while Instant::now() < until {
        for stream in &streams {
            client.write(*stream, &[0; 16 * 1024]);
            let got = client.read(*stream).map_or(0, |bytes| bytes.len());
            back.fetch_add(got as u64, Ordering::Relaxed);
        }
        client.turn();
        thread::sleep(Duration::from_micros(500));
    }
    client.close();
}

fn assert_within_limit(moved: u64, rate: f64, took: Duration, what: &str) {
    let seen = moved as f64 * 8.0 / took.as_secs_f64();
    assert!(seen <= rate * 1.05, "{what}: {seen:.0} of {rate} bit/s in {took:?}");
    assert!(seen >= rate * 0.3, "the attack did not happen: {what}: {seen:.0} bit/s");
}

/// S4: a source's rate limits the sum of two tests, echoes, datagrams, requests and QUIC echoes.
#[test]
fn a_rate_limit_applies_to_all_traffic_together() {
    let site = AttackedServer::new(&["--max-rate", "16M"]);
    let way = site.route(1);
    // Bytes that arrive before the first read are read at once afterwards.
    let began = Instant::now();
    let tests: Vec<_> =
        (0..2).map(|_| running(way, &[DOWN; 8], 1, TransferSettings::default()).unwrap()).collect();
    let parts: [AtomicU64; 5] = Default::default();
    let until = Instant::now() + span();
    thread::scope(|scope| {
        for data in tests.iter().flat_map(|(_, data)| data) {
            scope.spawn(|| take(data, until, &parts[0]));
        }
        scope.spawn(|| echoes(way, 4, until, &parts[1]));
        scope.spawn(|| datagrams(way, until, &parts[2]));
        scope.spawn(|| control_requests(way, tests[0].0.token, until, &parts[3]));
        scope.spawn(|| quic_echoes(way, until, &parts[4]));
    });
    let took = began.elapsed();
    let parts = parts.map(AtomicU64::into_inner);
    assert_within_limit(
        parts.iter().sum(),
        RATE_LIMIT_BPS,
        took,
        &format!("data, echo, UDP, words, QUIC {parts:?}"),
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
        ("echoes", |way, until, back| echoes(way, 8, until, back)),
        ("datagrams", datagrams),
        ("QUIC", quic_echoes),
    ];
    thread::scope(|scope| {
        for (number, (what, attack)) in (1..).zip(routes) {
            let way = site.route(number);
            scope.spawn(move || {
                let (began, back) = (Instant::now(), AtomicU64::new(0));
                attack(way, began + span(), &back);
                assert_within_limit(back.into_inner(), 2e6, began.elapsed(), what);
            });
        }
    });
    assert!(!site.running.stderr().contains("panicked"));
}

/// S4: a client that reconnects constantly gets no new initial credit.
#[test]
fn a_rate_limit_applies_across_consecutive_connections() {
    let site = AttackedServer::new(&["--max-rate", "8M"]);
    let way = site.route(1);
    let (began, back) = (Instant::now(), AtomicU64::new(0));
    let until = began + span();
    let mut rounds = 0;
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while Instant::now() < until {
                    let soon = Instant::now() + Duration::from_millis(150);
                    let Ok(echo) = way.connect(ConnectionKind::Echo, TestToken::NONE, (0, 0))
                    else {
                        continue;
                    };
                    echo.set_nonblocking(true).unwrap();
                    let _ = (&echo).write(&vec![0; 1 << 17]); // a partial write is enough
                    echo.set_nonblocking(false).unwrap();
                    take(&echo, soon, &back);
                }
            });
        }
        while Instant::now() < until {
            let Ok((client, data)) = running(way, &[DOWN], 1, TransferSettings::default()) else {
                continue;
            };
            rounds += 1;
            take(&data[0], Instant::now() + Duration::from_millis(100), &back);
            drop((client, data));
        }
    });
    assert!(rounds > 3, "{rounds} tests");
    let moved = back.into_inner();
    assert_within_limit(moved, 8e6, began.elapsed(), "tests and echoes one after the other");
    assert_healthy(&site);
}

/// S4: the rate also limits uploads, of tests and echoes together. Bytes in buffers do not count.
#[test]
fn a_rate_limit_applies_to_data_sent_to_the_server() {
    let site = AttackedServer::new(&["--max-rate", "40M"]);
    let way = site.route(1);
    let up = "pattern = \"iperf\"\nduration = \"60 s\"\nstreams = 2";
    let narrow = TransferSettings { window_bytes: Some(64 << 10), ..TransferSettings::default() };
    let tests: Vec<_> = (0..2).map(|_| running(way, &[up], 2, narrow.clone()).unwrap()).collect();
    let data: Vec<&TcpStream> = tests.iter().flat_map(|(_, data)| data).collect();
    for one in &data {
        SockRef::from(*one).set_send_buffer_size(32 << 10).unwrap();
    }
    // The buffers fill first.
    let full = Instant::now() + Duration::from_millis(700);
    give_all(data.iter().copied(), full);
    let began = Instant::now();
    let until = began + span();
    let given = give_all(data.iter().copied(), until);
    // The four receive buffers may have been less full at the start than at the end.
    let buffers = 4 * (128 << 10);
    let moved = given.saturating_sub(buffers);
    assert_within_limit(moved, 40e6, began.elapsed(), "four uploads");
    drop(tests);
    assert_healthy(&site);
}

/// S4: each source has a rate limit of its own.
#[test]
fn a_source_at_its_rate_limit_takes_no_rate_from_another() {
    let site = AttackedServer::new(&["--max-rate", "10M"]);
    site.run_attack(|attack| {
        let until = Instant::now() + Duration::from_secs(20);
        let back = AtomicU64::new(0);
        let (_client, data) =
            running(site.route(1), &[DOWN; 16], 1, TransferSettings::default()).unwrap();
        thread::scope(|scope| {
            for one in &data {
                let back = &back;
                scope.spawn(move || {
                    while attack.is_active() && Instant::now() < until {
                        take(one, Instant::now() + Duration::from_millis(200), back);
                    }
                });
            }
            attack.set_active();
        });
        assert!(back.into_inner() > 100_000);
    });
}

/// S4: no more bytes than allowed, at the full speed of loopback, by many flows at once.
#[test]
fn the_byte_limit_holds_at_full_speed_in_each_direction() {
    const MAX_BYTES: u64 = 40 << 20;
    let site = AttackedServer::new(&["--max-bytes", "40M"]);
    let up = "pattern = \"iperf\"\nduration = \"60 s\"";
    let narrow = TransferSettings { window_bytes: Some(64 << 10), ..TransferSettings::default() };
    let until = Instant::now() + Duration::from_secs(20);
    let (mut client, data) =
        running(site.route(1), &[DOWN; 8], 1, TransferSettings::default()).unwrap();
    let down = take_all(&data, until);
    let report = client.fetch().unwrap();
    assert!(report.contains("--max-bytes"), "{}", &report[..report.len().min(400)]);
    drop((client, data));
    let (_client, data) = running(site.route(2), &[up, up], 1, narrow).unwrap();
    for one in &data {
        SockRef::from(one).set_send_buffer_size(32 << 10).unwrap();
    }
    let up = give_all(&data, until).saturating_sub(2 * (256 << 10));
    for (what, moved) in [("down", down), ("up", up)] {
        let share = moved as f64 / MAX_BYTES as f64;
        assert!(share <= 1.05, "{what}: {moved} of {MAX_BYTES} bytes");
        assert!(share >= 0.5, "the attack did not happen: {what}: {moved} of {MAX_BYTES} bytes");
    }
    assert_healthy(&site);
}

/// S4: repeated downloads of a result also count.
#[test]
fn the_byte_limit_holds_for_repeated_result_downloads() {
    const MAX_BYTES: u64 = 2 << 20;
    let site = AttackedServer::new(&["--max-bytes", "2M"]);
    let short = "pattern = \"iperf\"\nduration = \"500 ms\"\ndirection = \"down\"";
    let slow = TransferSettings { rate_bps: Some(80_000), ..TransferSettings::default() };
    let (mut client, data) = running(site.route(1), &[short; 8], 1, slow).unwrap();
    let mut all = take_all(&data, Instant::now() + Duration::from_secs(5));
    let first = client.fetch().unwrap();
    all += first.len() as u64;
    let began = Instant::now();
    while all <= 2 * MAX_BYTES && began.elapsed() < Duration::from_secs(10) {
        let Ok(mut line) = ControlClient::open(site.route(1), client.token) else { break };
        let mut length = 0;
        if line.send(&ClientMessage::Fetch { offset: 0 }).is_err() {
            break;
        }
        while let Ok(ServerMessage::Part { total, text, .. }) = line.recv() {
            length += text.len() as u64;
            if length >= total {
                break;
            }
        }
        if length == 0 {
            break;
        }
        all += length;
    }
    assert!(all as f64 <= MAX_BYTES as f64 * 1.05, "{all} of {MAX_BYTES} bytes");
    assert_healthy(&site);
}

/// S4: no plan makes a test longer than allowed.
#[test]
fn no_plan_is_longer_than_allowed() {
    let site = AttackedServer::new(&["--max-duration", "2 s"]);
    let long = [
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
    for flow in long {
        let mut client = RawClient::connect(site.route(1)).unwrap();
        let why = client.plan(&[flow], TransferSettings::default()).unwrap();
        assert!(why.is_some(), "{flow} was accepted");
    }
    assert_healthy(&site);
    site.wait_until_idle();
}

/// S4: a test ends at its time limit for any messages and data of its client.
#[test]
fn a_test_ends_in_time_for_any_messages_and_data() {
    let site = AttackedServer::new(&["--max-duration", "2 s"]);
    let up = "pattern = \"iperf\"\nduration = \"2 s\"";
    let ends = |n: u16, flow: &str| {
        let (mut client, data) =
            running(site.route(n), &[flow], 1, TransferSettings::default()).unwrap();
        let (began, moved) = (Instant::now(), AtomicU64::new(0));
        let _ = client.send(&ClientMessage::End { at_ns: u64::MAX }); // the server may have closed it
        let _ = client.send(&ClientMessage::Begin { at_ns: u64::MAX });
        let until = began + Duration::from_secs(15);
        if flow.contains("down") {
            take(&data[0], until, &moved);
        } else {
            give(&data[0], until, &moved);
        }
        assert!(moved.into_inner() > 0, "nothing moved");
        began.elapsed()
    };
    let down = format!("{up}\ndirection = \"down\"");
    thread::scope(|scope| {
        for (n, flow) in [(1, up), (2, &down)] {
            scope.spawn(move || {
                let took = ends(n, flow);
                // Two seconds, plus the time that a busy machine takes to close.
                assert!(took < Duration::from_secs(5), "{flow}: {took:?}");
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
    let way = site.route(1);
    // Bytes that arrive before the first read are read at once afterwards.
    let began = Instant::now();
    let mut over_quic: Vec<_> = (0..3).map(|_| QuicTest::begin(way, DOWN).unwrap()).collect();
    let (_client, data) = running(way, &[DOWN; 2], 1, TransferSettings::default()).unwrap();
    let until = Instant::now() + span();
    let (quic, tcp): (u64, u64) = thread::scope(|scope| {
        let moving: Vec<_> = over_quic
            .iter_mut()
            .map(|test| scope.spawn(move || test.transfer(true, until)))
            .collect();
        let tcp = take_all(&data, until);
        (moving.into_iter().map(|one| one.join().unwrap()).sum(), tcp)
    });
    assert!(quic > 100_000, "{quic} bytes over QUIC");
    assert_within_limit(
        quic + tcp,
        RATE_LIMIT_BPS,
        began.elapsed(),
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
