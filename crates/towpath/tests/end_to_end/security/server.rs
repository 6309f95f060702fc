//! Unauthenticated clients of a server. For any request, other clients are served and memory
//! remains bounded.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use towpath_live::protocol::{ClientMessage, ConnectionKind, TransferSettings};
use towpath_run::token::TestToken;

use super::fixture::{AttackedServer, times};
use super::unauthenticated::{ClientRoute, RawClient};

/// Flow of one minute without a rate limit.
const MINUTE: &str = "pattern = \"iperf\"\nduration = \"60 s\"";

/// Reads until nothing more arrives or the time is over. Returns the number of bytes.
fn drain(mut socket: &TcpStream, deadline: Instant) -> u64 {
    let mut buffer = vec![0; 1 << 16];
    let mut total = 0;
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    while Instant::now() < deadline {
        match socket.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => total += length as u64,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    total
}

/// Finding 1: `bye` during a test released its slot while its threads continued.
#[test]
fn a_leaving_client_holds_its_slot_until_its_threads_end() {
    let site = AttackedServer::new(&["--max-tests", "2"]);
    let mut max_threads = 0;
    for _ in 0..60 {
        let Ok(mut client) = RawClient::connect(site.route(1)) else { continue };
        if client.plan(&[MINUTE], TransferSettings::default()).unwrap().is_none() {
            let _data = client.data(0, 0).unwrap();
            client.begin().unwrap();
            client.send(&ClientMessage::Bye).unwrap();
        }
        max_threads = max_threads.max(site.status("Threads:"));
    }
    assert!(max_threads < 60, "{max_threads} threads with two tests at a time");
    site.assert_serves_five();
    site.wait_until_idle();
}

/// Finding 3: requests within the limits took unlimited memory.
#[test]
fn memory_of_a_test_is_limited_and_the_client_gets_the_reason() {
    let site = AttackedServer::new(&[]);
    // A request each microsecond.
    let mut client = RawClient::connect(site.route(1)).unwrap();
    let frequent_requests =
        "pattern = \"reqres\"\nduration = \"1 s\"\nperiod = \"1 us\"\ndirection = \"down\"";
    let reason =
        client.plan(&[frequent_requests; 16], TransferSettings::default()).unwrap().unwrap();
    assert!(reason.contains("MiB of memory"), "{reason}");
    // Small requests of a few bytes each, which the plan does not contain.
    let mut writer_client = RawClient::connect(site.route(1)).unwrap();
    let small_requests =
        "pattern = \"reqres\"\nduration = \"60 s\"\nperiod = \"1 s\"\ndirection = \"up\"";
    assert_eq!(writer_client.plan(&[small_requests], TransferSettings::default()).unwrap(), None);
    let mut data = writer_client.data(0, 0).unwrap();
    writer_client.begin().unwrap();
    let writer = thread::spawn(move || {
        let requests = requests(64 * 1024);
        let deadline = Instant::now() + Duration::from_secs(40);
        while Instant::now() < deadline && data.write_all(&requests).is_ok() {}
    });
    let report = writer_client.fetch().unwrap();
    assert!(report.contains("--max-memory"), "{}", &report[..report.len().min(400)]);
    writer.join().unwrap();
    site.assert_serves_five();
    site.assert_memory();
}

/// Returns short messages as they are on the wire.
fn requests(bytes: usize) -> Vec<u8> {
    // Length of the remaining bytes, kind, number, length of the reply.
    let request = [0, 0, 0, 9, b'Q', 0, 0, 0, 0, 0, 0, 0, 0];
    request.iter().copied().cycle().take(bytes / request.len() * request.len()).collect()
}

/// Finding 3: large blocks for many streams.
#[test]
fn no_test_gets_more_than_half_of_the_remaining_memory() {
    let site = AttackedServer::new(&[]);
    let mut client = RawClient::connect(site.route(1)).unwrap();
    let wide_flow = "pattern = \"iperf\"\nduration = \"60 s\"\nstreams = 128";
    let settings = TransferSettings { block_bytes: Some(4 << 20), ..TransferSettings::default() };
    let reason = client.plan(&[wide_flow], settings).unwrap().unwrap();
    assert!(reason.contains("MiB of memory"), "{reason}");
    let clients: Vec<_> = (1..=16)
        .filter_map(|n| {
            let mut other_client = RawClient::connect(site.route(n)).ok()?;
            other_client.plan(&[wide_flow], TransferSettings::default()).ok()?;
            Some(other_client)
        })
        .collect();
    site.assert_serves_five();
    drop(clients);
    site.assert_memory();
    site.wait_until_idle();
}

/// Finding 4: 288 one-byte echoes blocked all other clients.
#[test]
fn echo_connections_of_one_source_leave_slots_for_others() {
    let site = AttackedServer::new(&[]);
    let echo =
        |n: u16| site.route(n).connect(ConnectionKind::Echo, TestToken::NONE, (0, 0)).unwrap();
    let connections: Vec<_> = (0..400).map(|_| echo(1)).collect();
    let sources: Vec<_> = (2..300).map(echo).collect();
    site.assert_serves_five();
    drop((connections, sources));
    site.wait_until_idle();
}

/// Finding 4: hellos of unauthenticated clients blocked those with the secret.
#[test]
fn unauthenticated_hellos_block_no_client() {
    let site = AttackedServer::new(&[]);
    let deadline = Instant::now() + Duration::from_secs(8);
    let port = site.port.clone();
    let opener = thread::spawn(move || {
        let mut sockets = std::collections::VecDeque::new();
        while Instant::now() < deadline {
            let Ok(socket) = ClientRoute::number(1, &port).connect(
                ConnectionKind::Control,
                TestToken::NONE,
                (0, 0),
            ) else {
                break;
            };
            sockets.push_back(socket);
            if sockets.len() > 600 {
                sockets.pop_front();
            }
        }
        sockets.len()
    });
    site.assert_serves_five();
    assert!(opener.join().unwrap() > 0);
    site.wait_until_idle();
}

/// Finding 5: absent clients occupied sixteen slots for an hour.
#[test]
fn absent_clients_lose_their_slots() {
    let site = AttackedServer::new(&[]);
    let late_flow = "pattern = \"iperf\"\nduration = \"10 s\"\nstart = \"59 min\"";
    let start_late_test = |n: u16| {
        let mut client = RawClient::connect(site.route(n)).ok()?;
        client.plan(&[late_flow], TransferSettings::default()).ok()?.is_none().then_some(())?;
        let data = client.data(0, 0).ok()?;
        client.begin().ok()?;
        Some((client, data))
    };
    let own_tests: Vec<_> = (0..16).filter_map(|_| start_late_test(1)).collect();
    assert_eq!(own_tests.len(), 8, "the last half is for those who have none");
    let other_tests: Vec<_> = (2..20).filter_map(start_late_test).collect();
    assert_eq!(other_tests.len(), 8);
    // All slots are taken, all clients are connected, and no data moves.
    site.assert_serves_five();
    drop((own_tests, other_tests));
    site.wait_until_idle();
}

/// Finding 6: `--max-rate` limited each flow alone, and no echoes.
#[test]
fn a_rate_limit_applies_to_all_traffic_of_a_client() {
    let site = AttackedServer::new(&["--max-rate", "8M"]);
    let mut client = RawClient::connect(site.route(1)).unwrap();
    let down_flow = "pattern = \"iperf\"\nduration = \"6 s\"\ndirection = \"down\"";
    assert_eq!(client.plan(&[down_flow; 16], TransferSettings::default()).unwrap(), None);
    let data: Vec<_> = (0..16).map(|flow| client.data(flow, 0).unwrap()).collect();
    let mut echo = site.route(1).connect(ConnectionKind::Echo, TestToken::NONE, (0, 0)).unwrap();
    client.begin().unwrap();
    let start = Instant::now();
    let deadline = start + Duration::from_secs(6);
    let readers: Vec<_> =
        data.into_iter().map(|data| thread::spawn(move || drain(&data, deadline))).collect();
    let echo_reader = echo.try_clone().unwrap();
    let echoes = thread::spawn(move || drain(&echo_reader, deadline));
    echo.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    while Instant::now() < deadline {
        let _ = echo.write(&[0; 4_096]);
    } // fails if the buffer is full
    let data_bytes: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
    let echo_bytes = echoes.join().unwrap();
    let rate = (data_bytes + echo_bytes) as f64 * 8.0 / start.elapsed().as_secs_f64();
    assert!(rate <= 8e6 * 1.05, "{rate} bit/s: {data_bytes} bytes of data, {echo_bytes} of echoes");
    assert!(rate >= 8e6 * 0.7, "{rate} bit/s: {data_bytes} bytes of data, {echo_bytes} of echoes");
}

/// Finding 6: replies of unlimited size.
#[test]
fn byte_and_rate_limits_hold_for_replies_and_give_a_reason() {
    let site = AttackedServer::new(&["--max-rate", "8M", "--max-bytes", "2M"]);
    let mut client = RawClient::connect(site.route(1)).unwrap();
    let down_flow = "pattern = \"iperf\"\nduration = \"20 s\"\ndirection = \"down\"";
    assert_eq!(client.plan(&[down_flow; 4], TransferSettings::default()).unwrap(), None);
    let data: Vec<_> = (0..4).map(|flow| client.data(flow, 0).unwrap()).collect();
    client.begin().unwrap();
    let start = Instant::now();
    let deadline = start + Duration::from_secs(15);
    let readers: Vec<_> =
        data.into_iter().map(|data| thread::spawn(move || drain(&data, deadline))).collect();
    let data_bytes: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
    let (max_bytes, elapsed) = (2 << 20, start.elapsed());
    assert!(
        (max_bytes * 9 / 10..=max_bytes * 21 / 20).contains(&data_bytes),
        "{data_bytes} of {max_bytes} bytes"
    );
    assert!(elapsed > Duration::from_millis(1_900), "{elapsed:?} for 2 s at this rate");
    let report = client.fetch().unwrap();
    assert!(report.contains("--max-bytes"), "{}", &report[..report.len().min(400)]);
    drop(client);
    let output = site.measure(2, &["-R", "ping", "--set", "count=3"]);
    assert!(output.code.is_some(), "{output}");
}

/// Findings 4 and 5 at once, while honest clients measure: messages, echoes and tests of one
/// source.
#[test]
fn a_greedy_source_leaves_enough_for_the_others() {
    let site = AttackedServer::new(&[]);
    site.run_attack(|attack| {
        let mut echoes = Vec::new();
        let mut tests = Vec::new();
        while attack.is_active() {
            echoes.extend(site.route(1).connect(ConnectionKind::Echo, TestToken::NONE, (0, 0)));
            if let Ok(mut client) = RawClient::connect(site.route(1))
                && let Ok(None) = client.plan(&[MINUTE], TransferSettings::default())
            {
                tests.push(client);
            }
            if echoes.len() >= times(300, 2_000) {
                attack.set_active();
                echoes.clear();
            }
        }
    });
}
