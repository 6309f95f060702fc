//! Permits, slots, threads and memory: taken, held, and released in every way.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use towpath_measure::live::{
    ClientMessage, ConnectionKind, ServerMessage, TestToken, TransferSettings,
};

use super::client::TlsClient;
use super::{
    ControlClient, MINUTE, assert_healthy, closes, dial, everywhere, preamble, reset, running,
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
        for (number, first) in (1..).zip(partial_messages()) {
            let way = site.route(number);
            scope.spawn(move || {
                let mut socket = dial(way, number % 2 == 0).unwrap();
                socket.write_all(&first).unwrap();
                let began = Instant::now();
                let mut rest = control[first.len().min(31)..].iter().chain([&b' '; 100]);
                // The last byte of the preamble never comes.
                let whole = first.len() < 32;
                let most = if whole { 31 - first.len() } else { 100 };
                let mut said = 0;
                while closes(&socket, Duration::from_millis(400)).is_none() {
                    let took = began.elapsed();
                    assert!(took < Duration::from_secs(16), "{number}: still open after {took:?}");
                    if said < most {
                        said += 1;
                        // The server may have closed it.
                        let _ = socket.write(&[*rest.next().unwrap()]);
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
        let mut slow: VecDeque<TcpStream> = VecDeque::new();
        let (mut number, mut opened) = (0, 0);
        while attack.is_active() {
            for first in partial_messages() {
                number = number % sources + 1;
                let Ok(mut socket) = dial(site.route(number), false) else { continue };
                opened += 1;
                let _ = socket.write_all(&first); // the server may have closed it
                slow.push_back(socket);
            }
            if slow.len() > 900 {
                attack.set_active();
                slow.drain(..4);
            }
            for socket in slow.iter_mut().step_by(50) {
                let _ = socket.write(b" "); // the server may have closed it
            }
        }
        assert!(opened > 900, "{opened}");
    });
}

/// Advances a test to a step and stops there.
fn advance_to_step(route: ClientRoute, step: usize) -> io::Result<(RawClient, Vec<TcpStream>)> {
    let mut stranger = RawClient::connect(route)?;
    let mut data = Vec::new();
    if step > 0
        && let Some(why) = stranger.plan(&[MINUTE, MINUTE], TransferSettings::default())?
    {
        return Err(io::Error::other(why));
    }
    for flow in 0..2 {
        if step > 1 + usize::from(flow) {
            data.push(stranger.data(flow, 0)?);
        }
    }
    if step > 3 {
        stranger.begin()?;
    }
    if step > 4 {
        data[0].write_all(&vec![0; 40_000])?;
    }
    if step > 5 {
        stranger.send(&ClientMessage::Stop)?;
    }
    if step > 6 {
        stranger.send(&ClientMessage::Fetch { offset: 0 })?;
    }
    Ok((stranger, data))
}

/// S3: a test ends 8 s after its client disconnected, at any step, by reset or without a goodbye.
#[test]
fn a_client_leaving_at_any_step_releases_its_slot() {
    let site = AttackedServer::new(&["--max-tests", "8"]);
    let mut went = 0;
    for step in 0..8 {
        for way in 1..=8 {
            // A slot of an earlier step may still be occupied; another one is fine.
            let Ok((client, data)) = advance_to_step(site.route(way), step) else { continue };
            went += 1;
            if way % 2 == 0 {
                data.iter().for_each(reset);
            }
            drop((client, data));
        }
    }
    assert!(went > 12, "{went}");
    let left = Instant::now();
    let mut held = Vec::new();
    wait_for("all places", || {
        let place = advance_to_step(site.route(100 + held.len() as u16), 1);
        held.extend(place.ok());
        (held.len() == 8).then_some(())
    });
    let took = left.elapsed();
    // Eight seconds, and two for a busy machine.
    assert!(took < Duration::from_secs(10), "places were free after {took:?}");
    drop(held);
    site.wait_until_idle();
    assert_healthy(&site);
}

/// S2, S3: endless disconnects during tests, in sequence, over TCP and Multipath TCP.
#[test]
fn endless_disconnects_block_no_other_client() {
    let site = AttackedServer::new(&[]);
    site.run_attack(|attack| {
        let (mut went, mut round) = (0, 0);
        while attack.is_active() {
            round = (round + 1) % 8;
            let way = site.route(1 + round % 4);
            if let Ok((_client, data)) = advance_to_step(way, usize::from(round)) {
                data.iter().for_each(reset);
                went += 1;
            }
            if let Ok(mut socket) = dial(way, true) {
                // The server may have closed it.
                let _ = socket
                    .write_all(&preamble(ConnectionKind::Control, TestToken::NONE).to_bytes());
                reset(&socket);
            }
            if went > 4 {
                attack.set_active();
            }
        }
        assert!(went > 4, "{went}");
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
            for first in partial_messages() {
                sent += 1;
                let way = site.route(1 + (sent % u32::from(sources)) as u16);
                let Ok(mut socket) = dial(way, sent.is_multiple_of(3)) else { continue };
                // The server may have closed it.
                let _ = socket.write_all(&first[..sent as usize % first.len()]);
                reset(&socket);
            }
            if sent > times(300, 2_000) as u32 {
                attack.set_active();
            }
        }
    });
}

/// S2, S4: simultaneous plans get no more slots than there are.
#[test]
fn simultaneous_plans_get_no_more_slots_than_exist() {
    let site = AttackedServer::new(&["--max-tests", "3"]);
    for _ in 0..times(3, 30) {
        let mut crowd: Vec<_> =
            (1..=40).filter_map(|n| RawClient::connect(site.route(n)).ok()).collect();
        assert!(crowd.len() >= 30, "{} came in", crowd.len());
        let together = Barrier::new(crowd.len());
        let accepted: Vec<_> = thread::scope(|scope| {
            let asking: Vec<_> = crowd
                .iter_mut()
                .map(|client| {
                    scope.spawn(|| {
                        together.wait();
                        matches!(client.plan(&[MINUTE], TransferSettings::default()), Ok(None))
                    })
                })
                .collect();
            asking.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let places = accepted.into_iter().filter(|yes| *yes).count();
        assert!((1..=3).contains(&places), "{places} places");
        drop(crowd);
        wait_for("the places", || advance_to_step(site.route(99), 1).is_ok().then_some(()));
    }
    site.wait_until_idle();
    assert_healthy(&site);
}

/// Keeps a client's connections open while honest clients measure.
fn hold_connections<T: Send>(site: &AttackedServer, taken: T) {
    site.run_attack(|attack| {
        attack.set_active();
        while attack.is_active() {
            thread::sleep(Duration::from_millis(5));
        }
        drop(taken);
    });
}

/// S2: tests of one source with the maximum number of connections, all of them busy.
#[test]
fn running_tests_at_full_size_block_no_other_client() {
    let site = AttackedServer::new(&[]);
    let wide = "pattern = \"iperf\"\nduration = \"60 s\"\nstreams = 128";
    let slow = TransferSettings {
        rate_bps: Some(8_000),
        block_bytes: Some(200),
        ..TransferSettings::default()
    };
    let mut connections = 0;
    let tests: Vec<_> = (0..times(4, 8))
        .filter_map(|_| {
            let flows = [wide, wide];
            let (client, mut data) = running(site.route(1), &flows, 128, slow.clone()).ok()?;
            connections += data.len();
            for one in &mut data {
                let _ = one.write(&[0; 200]); // the server may have closed it
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
    let (client, data) = running(site.route(1), &[MINUTE], 1, TransferSettings::default()).unwrap();
    let mut back = Vec::new();
    for number in 0..times(700, 1_500) {
        let Ok(mut line) = ControlClient::open(site.route(1), client.token) else { continue };
        let sent = line.send(&ClientMessage::Probe { client_ns: 1 });
        // A reply shows that the server has accepted the connection.
        if sent.is_ok() && number % 100 == 0 {
            assert!(matches!(line.recv(), Ok(ServerMessage::Clock { .. }) | Err(_)));
        }
        back.push(line);
    }
    assert!(back.len() >= 600, "{}", back.len());
    hold_connections(&site, (back, client, data));
}

/// S5: tests with the maximum number of threads, from as many sources as slots.
#[test]
fn no_combination_of_tests_has_more_threads_than_are_promised() {
    let site = AttackedServer::new(&[]);
    let slow = TransferSettings {
        rate_bps: Some(8_000),
        block_bytes: Some(200),
        ..TransferSettings::default()
    };
    let both = "pattern = \"iperf\"\nduration = \"60 s\"\ndirection = \"both\"\nstreams = 4";
    let asks = "pattern = \"interactive\"\nduration = \"60 s\"";
    let (mut most, mut tests, mut last) = (0, Vec::new(), String::new());
    for n in 1..=times(6, 16) as u16 {
        let mut client = RawClient::connect(site.route(n)).unwrap();
        let mut flows = vec![both; 12];
        flows.extend([asks; 4]);
        let Ok(why) = client.plan(&flows, slow.clone()) else { continue };
        if let Some(why) = why {
            last = why;
            continue;
        }
        let places = (0..16_u16).flat_map(|flow| (0..16).map(move |one| (flow, one)));
        let data: Vec<_> = places.filter_map(|(flow, one)| client.data(flow, one).ok()).collect();
        assert!(data.len() >= 100, "{} connections", data.len());
        tests.push((client, data));
        most = most.max(site.status("Threads:"));
    }
    assert!(tests.len() >= 4, "{} tests: {last}", tests.len());
    assert!(most <= 1_536 + 288 + 16, "{most} threads");
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
    let ended =
        std::process::Command::new("prlimit").args(["--pid", &id, "--nofile=48:48"]).status();
    if !ended.is_ok_and(|status| status.success()) {
        skip("without_descriptors", "no `prlimit`");
        return;
    }
    let mut crowd: Vec<_> =
        (1..=120).filter_map(|n| dial(site.route(n), n % 2 == 0).ok()).collect();
    assert!(crowd.len() > 60);
    for socket in &mut crowd {
        // The server may have closed it.
        let _ = socket.write_all(&preamble(ConnectionKind::Echo, TestToken::NONE).to_bytes());
    }
    let busy = cpu_seconds(&site);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(1) {
        let _ = RawClient::connect(site.route(200)).is_err_and(|_| false); // may be refused
        thread::sleep(Duration::from_millis(50));
        if began.elapsed() > Duration::from_millis(500) && crowd.len() > 100 {
            crowd.truncate(100);
        }
    }
    let used = cpu_seconds(&site) - busy;
    assert!(used < 0.8 * began.elapsed().as_secs_f64(), "it spins: {used} s of processor time");
    drop(crowd);
    assert_healthy(&site);
    site.wait_until_idle();
}

/// Returns the processor time that the server has used.
fn cpu_seconds(site: &AttackedServer) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", site.running.id())).unwrap();
    let (_, rest) = stat.rsplit_once(')').unwrap();
    let ticks =
        |field: usize| -> f64 { rest.split_whitespace().nth(field).unwrap().parse().unwrap() };
    (ticks(11) + ticks(12)) / 100.0
}

/// S1: unfetched results, test after test, of many sources.
#[test]
fn unfetched_results_take_no_more_than_their_share() {
    let site = AttackedServer::new(&[]);
    let short = "pattern = \"reqres\"\nduration = \"300 ms\"\nperiod = \"20 us\"\nreply-timeout = \"100 ms\"";
    let mut done = 0;
    for n in 0..times(24, 200) as u16 {
        let Ok((mut client, data)) =
            running(site.route(n), &[short; 8], 1, TransferSettings::default())
        else {
            continue;
        };
        done += 1;
        // The next test starts while this one runs.
        let _ = client.send(&ClientMessage::Probe { client_ns: 1 });
        drop((client, data));
    }
    assert!(done >= 8, "{done} tests");
    site.assert_memory();
    assert_healthy(&site);
    site.assert_memory();
}

/// S1, S2: a result is requested hundreds of times at once, and never read.
#[test]
fn slow_readers_of_results_do_not_affect_others() {
    let site = AttackedServer::new(&[]);
    let short = "pattern = \"reqres\"\nduration = \"300 ms\"\nperiod = \"100 us\"\nreply-timeout = \"100 ms\"";
    let (mut client, data) =
        running(site.route(1), &[short; 8], 1, TransferSettings::default()).unwrap();
    for one in &data {
        one.set_nonblocking(true).unwrap();
    }
    let report = client.fetch().unwrap();
    assert!(report.len() > 1_000, "{} bytes", report.len());
    let token = client.token;
    site.run_attack(|attack| {
        let mut deaf = VecDeque::new();
        let mut asked = 0_u32;
        while attack.is_active() {
            if let Ok(mut line) = ControlClient::open(site.route(1), token) {
                line.stream.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
                for _ in 0..200 {
                    if line.send(&ClientMessage::Fetch { offset: 0 }).is_err() {
                        break;
                    }
                }
                asked += 1;
                deaf.push_back(line);
            }
            if deaf.len() > times(40, 200) {
                attack.set_active();
                deaf.pop_front();
            }
        }
        assert!(asked > 30, "{asked}");
    });
}

/// S1: data and echoes to clients that do not read.
#[test]
fn slow_readers_of_data_do_not_affect_others() {
    let site = AttackedServer::new(&[]);
    let down = "pattern = \"iperf\"\nduration = \"60 s\"\ndirection = \"down\"\nstreams = 32";
    let reply = "pattern = \"reqres\"\nduration = \"60 s\"\ndirection = \"down\"\nreply = \"1 GB\"";
    let large = TransferSettings { window_bytes: Some(256 << 20), ..TransferSettings::default() };
    let mut deaf = Vec::new();
    for n in 1..=4 {
        deaf.extend(running(site.route(n), &[down], 32, large.clone()));
        deaf.extend(running(site.route(n), &[reply], 1, large.clone()));
    }
    assert!(deaf.len() >= 4, "{}", deaf.len());
    let mut echoes: Vec<_> = (0..times(40, 150) as u16)
        .map(|n| site.route(n).connect(ConnectionKind::Echo, TestToken::NONE, (0, 0)).unwrap())
        .collect();
    for echo in &mut echoes {
        echo.set_nonblocking(true).unwrap();
        while echo.write(&vec![0; 1 << 16]).is_ok() {}
    }
    hold_connections(&site, (deaf, echoes));
}

/// S1, S2: QUIC connections with hundreds of streams each.
///
/// They send nothing, a part of a preamble, or more than is read.
#[test]
fn crowds_over_quic_block_no_other_client() {
    let site = AttackedServer::new(&[]);
    let connections = times(24, 120) as u16;
    site.run_attack(|attack| {
        let mut crowd: VecDeque<TlsClient> = VecDeque::new();
        let (mut entered, mut streams, mut number) = (0, 0, 0);
        while attack.is_active() {
            number += 1;
            if let Some(mut client) = TlsClient::connect(site.route(1 + number % connections)) {
                entered += 1;
                while let Some(stream) = client.open() {
                    let echo = preamble(ConnectionKind::Echo, TestToken::NONE).to_bytes();
                    let part = [32, 1, 31, 0][streams % 4];
                    client.write(stream, &echo[..part]);
                    client.write(stream, &vec![0; if part == 32 { 1 << 16 } else { 0 }]);
                    streams += 1;
                    if streams % 200 == 0 {
                        break;
                    }
                }
                client.turn();
                crowd.push_back(client);
            }
            if crowd.len() > usize::from(connections) / 2 {
                attack.set_active();
                match number % 3 {
                    0 => crowd.pop_front().unwrap().close(),
                    _ => drop(crowd.pop_front()),
                }
            }
            crowd.iter_mut().step_by(3).for_each(TlsClient::turn);
        }
        assert!(entered > 5 && streams > 500, "{entered} connections, {streams} streams");
    });
}

/// S2: a dual-stack server distinguishes IPv4 sources as an IPv4 server does.
#[test]
fn a_dual_stack_server_distinguishes_sources() {
    let site = everywhere(&["--max-tests", "4", "--max-rate", "16M"]);
    let first: Vec<_> = (0..4).filter_map(|_| advance_to_step(site.route(1), 1).ok()).collect();
    assert_eq!(first.len(), 2, "the last half is for those who have none");
    let others: Vec<_> = (2..4).filter_map(|n| advance_to_step(site.route(n), 1).ok()).collect();
    assert_eq!(others.len(), 2, "the places of others");
    drop((first, others));
    site.wait_until_idle();
    assert_healthy(&site);
}

/// Starts a server with a thread limit; `None` if this machine cannot.
fn short_of_threads(most: u32) -> Option<AttackedServer> {
    let folder = TestDir::new();
    let user = if is_root() {
        &["setpriv", "--reuid", "61234", "--regid", "61234", "--clear-groups"][..]
    } else {
        &["unshare", "--user"][..]
    };
    let limit = format!("--nproc={most}:{most}");
    let mut command = folder.program(user[0]);
    command.args(&user[1..]).args(["prlimit", &limit]).arg(binary());
    command
        .args(["server", "-B", "127.0.0.1", "-p", "0"])
        .env("XDG_STATE_HOME", folder.temporary());
    let mut running = folder.start(&mut command);
    let port = wait_for("the server", || {
        let said = running.stderr();
        if let Some((_, rest)) = said.split_once("listening on 127.0.0.1:") {
            return Some(rest.split_once(' ').map(|(port, _)| port.to_owned()));
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
    let Some(site) = short_of_threads(40) else { return };
    let mut held = Vec::new();
    let mut refused = 0;
    for n in 1..=times(60, 300) as u16 {
        match advance_to_step(site.route(n % 20 + 1), usize::from(n % 6)) {
            Ok(place) => held.push(place),
            Err(_) => refused += 1,
        }
        held.truncate(50);
    }
    for n in 1..=60 {
        let echo = site.route(n).connect(ConnectionKind::Echo, TestToken::NONE, (0, 0));
        let heard = echo.and_then(|mut echo| {
            echo.set_read_timeout(Some(Duration::from_millis(100)))?;
            echo.write_all(b"x")?;
            echo.read(&mut [0])
        });
        refused += usize::from(!matches!(heard, Ok(1)));
    }
    assert!(refused > 0, "there were threads for all");
    assert!(site.status("Threads:") <= 40);
    drop(held);
    site.wait_until_idle();
    assert_healthy(&site);
}
