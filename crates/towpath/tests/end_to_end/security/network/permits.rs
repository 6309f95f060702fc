//! Permits, slots, threads and memory: taken, held and always released.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use towpath_live::protocol::{ClientMessage, ConnectionKind, ServerMessage, TransferSettings};
use towpath_run::token::TestToken;

use super::client::TlsClient;
use super::{
    ControlClient, ENDLESS_FLOW, assert_healthy, dial, preamble, reset,
    start_server_on_all_addresses, start_test, wait_for_close,
};
use crate::program::{TestDir, binary, is_root, skip, wait_for};
use crate::security::fixture::{AttackedServer, times};
use crate::security::unauthenticated::{ClientRoute, RawClient};

/// Returns the first bytes of slow clients; each then repeats the last byte.
fn partial_messages() -> [Vec<u8>; 4] {
    let control = preamble(ConnectionKind::Control, TestToken::NONE).to_bytes();
    let tls = preamble(ConnectionKind::Tls, TestToken::NONE).to_bytes();
    [
        control[..7].to_vec(),
        // A frame of 60,000 bytes.
        [&control[..], &[0, 0, 0xea, 0x60]].concat(),
        tls[..9].to_vec(),
        // A first TLS record, with a message of 64 kB.
        [&tls[..], &[0x16, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff]].concat(),
    ]
}

/// S2, S3: the handshake timeout of five seconds also holds for clients that send single bytes.
#[test]
fn a_client_sending_byte_by_byte_is_dropped_after_five_seconds() {
    let site = AttackedServer::new(&[]);
    let control = preamble(ConnectionKind::Control, TestToken::NONE).to_bytes();
    thread::scope(|scope| {
        for (number, first_bytes) in (1..).zip(partial_messages()) {
            let route = site.route(number);
            scope.spawn(move || {
                let mut socket = dial(route, number % 2 == 0).unwrap();
                socket.write_all(&first_bytes).unwrap();
                let start = Instant::now();
                let mut remaining_bytes =
                    control[first_bytes.len().min(31)..].iter().chain([&b' '; 100]);
                // The last byte of the preamble never comes.
                let is_preamble_part = first_bytes.len() < 32;
                let max_bytes = if is_preamble_part { 31 - first_bytes.len() } else { 100 };
                let mut sent = 0;
                while wait_for_close(&socket, Duration::from_millis(400)).is_none() {
                    let elapsed = start.elapsed();
                    assert!(
                        elapsed < Duration::from_secs(16),
                        "{number}: still open after {elapsed:?}"
                    );
                    if sent < max_bytes {
                        sent += 1;
                        // The server may have closed it.
                        let _ = socket.write(&[*remaining_bytes.next().unwrap()]);
                    }
                }
            });
        }
    });
    assert_healthy(&site);
    site.wait_until_idle();
}

/// S2: slow clients of fewer sources than permits, each in the middle of a message.
#[test]
fn hundreds_of_slow_clients_block_no_other_client() {
    let site = AttackedServer::new(&[]);
    let sources = times(100, 250) as u16;
    site.run_attack(|attack| {
        let mut slow_sockets: VecDeque<TcpStream> = VecDeque::new();
        let (mut number, mut opened) = (0, 0);
        while attack.is_active() {
            for first_bytes in partial_messages() {
                number = number % sources + 1;
                let Ok(mut socket) = dial(site.route(number), false) else { continue };
                opened += 1;
                let _ = socket.write_all(&first_bytes); // the server may have closed it
                slow_sockets.push_back(socket);
            }
            if slow_sockets.len() > 900 {
                attack.set_active();
                slow_sockets.drain(..4);
            }
            for socket in slow_sockets.iter_mut().step_by(50) {
                let _ = socket.write(b" "); // the server may have closed it
            }
        }
        assert!(opened > 900, "{opened}");
    });
}

/// Advances a test to a step and stops there.
fn advance_to_step(route: ClientRoute, step: usize) -> io::Result<(RawClient, Vec<TcpStream>)> {
    let mut client = RawClient::connect(route)?;
    let mut data = Vec::new();
    if step > 0
        && let Some(reason) =
            client.plan(&[ENDLESS_FLOW, ENDLESS_FLOW], TransferSettings::default())?
    {
        return Err(io::Error::other(reason));
    }
    for flow in 0..2 {
        if step > 1 + usize::from(flow) {
            data.push(client.data(flow, 0)?);
        }
    }
    if step > 3 {
        client.begin()?;
    }
    if step > 4 {
        data[0].write_all(&vec![0; 40_000])?;
    }
    if step > 5 {
        client.send(&ClientMessage::Stop)?;
    }
    if step > 6 {
        client.send(&ClientMessage::Fetch { offset: 0 })?;
    }
    Ok((client, data))
}

/// S3: a test ends 8 s after its client disconnected at any step, with a reset or a close.
#[test]
fn a_client_leaving_at_any_step_releases_its_slot() {
    let site = AttackedServer::new(&["--max-tests", "8"]);
    let mut advanced = 0;
    for step in 0..8 {
        for source in 1..=8 {
            // A slot of an earlier step may still be occupied; another one is fine.
            let Ok((client, data)) = advance_to_step(site.route(source), step) else { continue };
            advanced += 1;
            if source % 2 == 0 {
                data.iter().for_each(reset);
            }
            drop((client, data));
        }
    }
    assert!(advanced > 12, "{advanced}");
    let disconnect_time = Instant::now();
    let mut tests = Vec::new();
    wait_for("all places", || {
        let test = advance_to_step(site.route(100 + tests.len() as u16), 1);
        tests.extend(test.ok());
        (tests.len() == 8).then_some(())
    });
    let elapsed = disconnect_time.elapsed();
    // Eight seconds, and two for a busy machine.
    assert!(elapsed < Duration::from_secs(10), "places were free after {elapsed:?}");
    drop(tests);
    site.wait_until_idle();
    assert_healthy(&site);
}

/// S2, S3: endless disconnects during tests, in sequence, over TCP and Multipath TCP.
#[test]
fn endless_disconnects_block_no_other_client() {
    let site = AttackedServer::new(&[]);
    site.run_attack(|attack| {
        let (mut advanced, mut round) = (0, 0);
        while attack.is_active() {
            round = (round + 1) % 8;
            let route = site.route(1 + round % 4);
            if let Ok((_client, data)) = advance_to_step(route, usize::from(round)) {
                data.iter().for_each(reset);
                advanced += 1;
            }
            if let Ok(mut socket) = dial(route, true) {
                // The server may have closed it.
                let _ = socket
                    .write_all(&preamble(ConnectionKind::Control, TestToken::NONE).to_bytes());
                reset(&socket);
            }
            if advanced > 4 {
                attack.set_active();
            }
        }
        assert!(advanced > 4, "{advanced}");
    });
    assert!(!site.running.stderr().contains("panicked"), "{}", site.running.stderr());
}

/// S2: resets directly after each possible first message, from hundreds of sources.
#[test]
fn floods_of_resets_block_no_client() {
    let site = AttackedServer::new(&[]);
    let sources = times(100, 250) as u16;
    site.run_attack(|attack| {
        let mut sent = 0_u32;
        while attack.is_active() {
            for first_bytes in partial_messages() {
                sent += 1;
                let route = site.route(1 + (sent % u32::from(sources)) as u16);
                let Ok(mut socket) = dial(route, sent.is_multiple_of(3)) else { continue };
                // The server may have closed it.
                let _ = socket.write_all(&first_bytes[..sent as usize % first_bytes.len()]);
                reset(&socket);
            }
            if sent > times(300, 2_000) as u32 {
                attack.set_active();
            }
        }
    });
}

/// S2, S4: simultaneous plans get no more slots than exist.
#[test]
fn simultaneous_plans_get_no_more_slots_than_exist() {
    let site = AttackedServer::new(&["--max-tests", "3"]);
    for _ in 0..times(3, 30) {
        let mut clients: Vec<_> =
            (1..=40).filter_map(|n| RawClient::connect(site.route(n)).ok()).collect();
        assert!(clients.len() >= 30, "{} came in", clients.len());
        let barrier = Barrier::new(clients.len());
        let are_accepted: Vec<_> = thread::scope(|scope| {
            let requests: Vec<_> = clients
                .iter_mut()
                .map(|client| {
                    scope.spawn(|| {
                        barrier.wait();
                        matches!(
                            client.plan(&[ENDLESS_FLOW], TransferSettings::default()),
                            Ok(None)
                        )
                    })
                })
                .collect();
            requests.into_iter().map(|request| request.join().unwrap()).collect()
        });
        let accepted_tests = are_accepted.into_iter().filter(|is_accepted| *is_accepted).count();
        assert!((1..=3).contains(&accepted_tests), "{accepted_tests} places");
        drop(clients);
        wait_for("the places", || advance_to_step(site.route(99), 1).is_ok().then_some(()));
    }
    site.wait_until_idle();
    assert_healthy(&site);
}

/// Keeps a client's connections open while honest clients measure.
fn hold_connections<T: Send>(site: &AttackedServer, connections: T) {
    site.run_attack(|attack| {
        attack.set_active();
        while attack.is_active() {
            thread::sleep(Duration::from_millis(5));
        }
        drop(connections);
    });
}

/// S2: tests of one source with the maximum number of connections, all of them busy.
#[test]
fn running_tests_at_full_size_block_no_other_client() {
    let site = AttackedServer::new(&[]);
    let wide_flow = "pattern = \"iperf\"\nduration = \"60 s\"\nstreams = 128";
    let slow_settings = TransferSettings {
        rate_bps: Some(8_000),
        block_bytes: Some(200),
        ..TransferSettings::default()
    };
    let mut connections = 0;
    let tests: Vec<_> = (0..times(4, 8))
        .filter_map(|_| {
            let flows = [wide_flow, wide_flow];
            let (client, mut data) =
                start_test(site.route(1), &flows, 128, slow_settings.clone()).ok()?;
            connections += data.len();
            for socket in &mut data {
                let _ = socket.write(&[0; 200]); // the server may have closed it
            }
            Some((client, data))
        })
        .collect();
    assert!(connections >= 512, "{connections} connections of {} tests", tests.len());
    let threads = site.status("Threads:");
    assert!(threads <= 1_536 + 288 + 64, "{threads} threads");
    hold_connections(&site, tests);
}

/// S2: a client with a running test reconnects to it endlessly and keeps the connections.
#[test]
fn resuming_a_test_blocks_no_other_client() {
    let site = AttackedServer::new(&[]);
    let (client, data) =
        start_test(site.route(1), &[ENDLESS_FLOW], 1, TransferSettings::default()).unwrap();
    let mut connections = Vec::new();
    for number in 0..times(700, 1_500) {
        let Ok(mut connection) = ControlClient::open(site.route(1), client.token) else { continue };
        let sent = connection.send(&ClientMessage::Probe { client_ns: 1 });
        // A reply shows that the server has accepted the connection.
        if sent.is_ok() && number % 100 == 0 {
            assert!(matches!(connection.recv(), Ok(ServerMessage::Clock { .. }) | Err(_)));
        }
        connections.push(connection);
    }
    assert!(connections.len() >= 600, "{}", connections.len());
    hold_connections(&site, (connections, client, data));
}

/// S5: tests with the maximum number of threads, from as many sources as there are slots.
#[test]
fn no_combination_of_tests_has_more_threads_than_are_promised() {
    let site = AttackedServer::new(&[]);
    let slow_settings = TransferSettings {
        rate_bps: Some(8_000),
        block_bytes: Some(200),
        ..TransferSettings::default()
    };
    let two_way_flow =
        "pattern = \"iperf\"\nduration = \"60 s\"\ndirection = \"both\"\nstreams = 4";
    let request_flow = "pattern = \"interactive\"\nduration = \"60 s\"";
    let (mut max_threads, mut tests, mut last_refusal) = (0, Vec::new(), String::new());
    for n in 1..=times(6, 16) as u16 {
        let mut client = RawClient::connect(site.route(n)).unwrap();
        let mut flows = vec![two_way_flow; 12];
        flows.extend([request_flow; 4]);
        let Ok(reason) = client.plan(&flows, slow_settings.clone()) else { continue };
        if let Some(reason) = reason {
            last_refusal = reason;
            continue;
        }
        let streams = (0..16_u16).flat_map(|flow| (0..16).map(move |stream| (flow, stream)));
        let data: Vec<_> =
            streams.filter_map(|(flow, stream)| client.data(flow, stream).ok()).collect();
        assert!(data.len() >= 100, "{} connections", data.len());
        tests.push((client, data));
        max_threads = max_threads.max(site.status("Threads:"));
    }
    assert!(tests.len() >= 4, "{} tests: {last_refusal}", tests.len());
    assert!(max_threads <= 1_536 + 288 + 16, "{max_threads} threads");
    site.assert_memory();
    drop(tests);
    site.wait_until_idle();
    assert_healthy(&site);
}

/// S5: when the system refuses more descriptors, the server refuses clients and keeps running.
#[test]
fn a_server_out_of_descriptors_resumes_once_some_are_free() {
    let site = AttackedServer::new(&[]);
    let id = site.running.id().to_string();
    let limit_result =
        std::process::Command::new("prlimit").args(["--pid", &id, "--nofile=48:48"]).status();
    if !limit_result.is_ok_and(|status| status.success()) {
        skip("without_descriptors", "no `prlimit`");
        return;
    }
    let mut sockets: Vec<_> =
        (1..=120).filter_map(|n| dial(site.route(n), n % 2 == 0).ok()).collect();
    assert!(sockets.len() > 60);
    for socket in &mut sockets {
        // The server may have closed it.
        let _ = socket.write_all(&preamble(ConnectionKind::Echo, TestToken::NONE).to_bytes());
    }
    let busy_before = cpu_seconds(&site);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        let _ = RawClient::connect(site.route(200)).is_err_and(|_| false); // may be refused
        thread::sleep(Duration::from_millis(50));
        if start.elapsed() > Duration::from_millis(500) && sockets.len() > 100 {
            sockets.truncate(100);
        }
    }
    let used_seconds = cpu_seconds(&site) - busy_before;
    assert!(
        used_seconds < 0.8 * start.elapsed().as_secs_f64(),
        "it spins: {used_seconds} s of processor time"
    );
    drop(sockets);
    assert_healthy(&site);
    site.wait_until_idle();
}

/// Returns the processor time that the server has used.
fn cpu_seconds(site: &AttackedServer) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", site.running.id())).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks =
        |field: usize| -> f64 { fields.split_whitespace().nth(field).unwrap().parse().unwrap() };
    (ticks(11) + ticks(12)) / 100.0
}

/// S1: unfetched results, test after test, of many sources.
#[test]
fn unfetched_results_take_no_more_than_their_share() {
    let site = AttackedServer::new(&[]);
    let short_flow = "pattern = \"reqres\"\nduration = \"300 ms\"\nperiod = \"20 us\"\nreply-timeout = \"100 ms\"";
    let mut started_tests = 0;
    for n in 0..times(24, 200) as u16 {
        let Ok((mut client, data)) =
            start_test(site.route(n), &[short_flow; 8], 1, TransferSettings::default())
        else {
            continue;
        };
        started_tests += 1;
        // The next test starts while this one runs.
        let _ = client.send(&ClientMessage::Probe { client_ns: 1 });
        drop((client, data));
    }
    assert!(started_tests >= 8, "{started_tests} tests");
    site.assert_memory();
    assert_healthy(&site);
    site.assert_memory();
}

/// S1, S2: a result is requested hundreds of times at once, and never read.
#[test]
fn slow_readers_of_results_do_not_affect_others() {
    let site = AttackedServer::new(&[]);
    let short_flow = "pattern = \"reqres\"\nduration = \"300 ms\"\nperiod = \"100 us\"\nreply-timeout = \"100 ms\"";
    let (mut client, data) =
        start_test(site.route(1), &[short_flow; 8], 1, TransferSettings::default()).unwrap();
    for socket in &data {
        socket.set_nonblocking(true).unwrap();
    }
    let report = client.fetch().unwrap();
    assert!(report.len() > 1_000, "{} bytes", report.len());
    let token = client.token;
    site.run_attack(|attack| {
        let mut connections = VecDeque::new();
        let mut requests = 0_u32;
        while attack.is_active() {
            if let Ok(mut connection) = ControlClient::open(site.route(1), token) {
                connection.stream.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
                for _ in 0..200 {
                    if connection.send(&ClientMessage::Fetch { offset: 0 }).is_err() {
                        break;
                    }
                }
                requests += 1;
                connections.push_back(connection);
            }
            if connections.len() > times(40, 200) {
                attack.set_active();
                connections.pop_front();
            }
        }
        assert!(requests > 30, "{requests}");
    });
}

/// S1: data and echoes to clients that do not read.
#[test]
fn slow_readers_of_data_do_not_affect_others() {
    let site = AttackedServer::new(&[]);
    let down_flow = "pattern = \"iperf\"\nduration = \"60 s\"\ndirection = \"down\"\nstreams = 32";
    let reply_flow =
        "pattern = \"reqres\"\nduration = \"60 s\"\ndirection = \"down\"\nreply = \"1 GB\"";
    let large_settings =
        TransferSettings { window_bytes: Some(256 << 20), ..TransferSettings::default() };
    let mut tests = Vec::new();
    for n in 1..=4 {
        tests.extend(start_test(site.route(n), &[down_flow], 32, large_settings.clone()));
        tests.extend(start_test(site.route(n), &[reply_flow], 1, large_settings.clone()));
    }
    assert!(tests.len() >= 4, "{}", tests.len());
    let mut echoes: Vec<_> = (0..times(40, 150) as u16)
        .map(|n| site.route(n).connect(ConnectionKind::Echo, TestToken::NONE, (0, 0)).unwrap())
        .collect();
    for echo in &mut echoes {
        echo.set_nonblocking(true).unwrap();
        while echo.write(&vec![0; 1 << 16]).is_ok() {}
    }
    hold_connections(&site, (tests, echoes));
}

/// S1, S2: QUIC connections with hundreds of streams each.
///
/// The streams carry nothing, a part of a preamble, or more data than the server reads.
#[test]
fn crowds_over_quic_block_no_other_client() {
    let site = AttackedServer::new(&[]);
    let sources = times(24, 120) as u16;
    site.run_attack(|attack| {
        let mut clients: VecDeque<TlsClient> = VecDeque::new();
        let (mut connections, mut streams, mut number) = (0, 0, 0);
        while attack.is_active() {
            number += 1;
            if let Some(mut client) = TlsClient::connect(site.route(1 + number % sources)) {
                connections += 1;
                while let Some(stream) = client.open() {
                    let echo = preamble(ConnectionKind::Echo, TestToken::NONE).to_bytes();
                    let sent_bytes = [32, 1, 31, 0][streams % 4];
                    client.write(stream, &echo[..sent_bytes]);
                    client.write(stream, &vec![0; if sent_bytes == 32 { 1 << 16 } else { 0 }]);
                    streams += 1;
                    if streams % 200 == 0 {
                        break;
                    }
                }
                client.poll();
                clients.push_back(client);
            }
            if clients.len() > usize::from(sources) / 2 {
                attack.set_active();
                match number % 3 {
                    0 => clients.pop_front().unwrap().close(),
                    _ => drop(clients.pop_front()),
                }
            }
            clients.iter_mut().step_by(3).for_each(TlsClient::poll);
        }
        assert!(connections > 5 && streams > 500, "{connections} connections, {streams} streams");
    });
}

/// S2: a dual-stack server distinguishes IPv4 sources as an IPv4 server does.
#[test]
fn a_dual_stack_server_distinguishes_sources() {
    let site = start_server_on_all_addresses(&["--max-tests", "4", "--max-rate", "16M"]);
    let first_tests: Vec<_> =
        (0..4).filter_map(|_| advance_to_step(site.route(1), 1).ok()).collect();
    assert_eq!(first_tests.len(), 2, "the last half is for those who have none");
    let other_tests: Vec<_> =
        (2..4).filter_map(|n| advance_to_step(site.route(n), 1).ok()).collect();
    assert_eq!(other_tests.len(), 2, "the places of others");
    drop((first_tests, other_tests));
    site.wait_until_idle();
    assert_healthy(&site);
}

/// Starts a server with a thread limit; `None` if this machine cannot.
fn start_server_with_threads(max_threads: u32) -> Option<AttackedServer> {
    let folder = TestDir::new();
    let user_command = if is_root() {
        &["setpriv", "--reuid", "61234", "--regid", "61234", "--clear-groups"][..]
    } else {
        &["unshare", "--user"][..]
    };
    let limit = format!("--nproc={max_threads}:{max_threads}");
    let mut command = folder.program(user_command[0]);
    command.args(&user_command[1..]).args(["prlimit", &limit]).arg(binary());
    command
        .args(["server", "-B", "127.0.0.1", "-p", "0"])
        .env("XDG_STATE_HOME", folder.temporary());
    let mut running = folder.start(&mut command);
    let port = wait_for("the server", || {
        let stderr = running.stderr();
        if let Some((_, after_address)) = stderr.split_once("listening on 127.0.0.1:") {
            return Some(after_address.split_once(' ').map(|(port, _)| port.to_owned()));
        }
        running.child.try_wait().unwrap().map(|_| None)
    });
    let Some(port) = port else {
        skip("without_threads", &running.stderr());
        return None;
    };
    Some(AttackedServer { folder, running, port })
}

/// S5: when the system refuses more threads, the server refuses clients and keeps running.
#[test]
fn a_server_out_of_threads_refuses_and_keeps_running() {
    let Some(site) = start_server_with_threads(40) else { return };
    let mut tests = Vec::new();
    let mut refused = 0;
    for n in 1..=times(60, 300) as u16 {
        match advance_to_step(site.route(n % 20 + 1), usize::from(n % 6)) {
            Ok(test) => tests.push(test),
            Err(_) => refused += 1,
        }
        tests.truncate(50);
    }
    for n in 1..=60 {
        let echo = site.route(n).connect(ConnectionKind::Echo, TestToken::NONE, (0, 0));
        let received = echo.and_then(|mut echo| {
            echo.set_read_timeout(Some(Duration::from_millis(100)))?;
            echo.write_all(b"x")?;
            echo.read(&mut [0])
        });
        refused += usize::from(!matches!(received, Ok(1)));
    }
    assert!(refused > 0, "there were threads for all");
    assert!(site.status("Threads:") <= 40);
    drop(tests);
    site.wait_until_idle();
    assert_healthy(&site);
}
