//! Control messages in unexpected order, with unexpected numbers and tokens.

use std::io::{Read, Write};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use towpath_measure::live::{
    ClientMessage, ConnectionKind, ServerMessage, TestPlan, TestToken, TransferSettings, frame,
};
use towpath_measure::scenario::Transport;

use super::{ControlClient, MINUTE, assert_healthy, closes, dial, hello, preamble, running, take};
use crate::program::wait_for;
use crate::security::fixture::{AttackedServer, times};
use crate::security::unauthenticated::RawClient;

const DOWN: &str = "pattern = \"iperf\"\nduration = \"60 s\"\ndirection = \"down\"";

fn plan(flows: &str) -> ClientMessage {
    let scenario = format!(
        "name = \"t\"\n[hosts.client]\n[hosts.server]\n[paths.eth0]\n\
         between = [\"client\", \"server\"]\n{flows}"
    );
    let settings = TransferSettings::default();
    ClientMessage::Plan(Box::new(TestPlan { scenario, transport: Transport::Tcp, settings }))
}

fn flow(keys: &str) -> String {
    format!("[[flows]]\nfrom = \"client\"\nto = \"server\"\n{keys}\n")
}

/// Returns every message, with numbers from both ends of their ranges.
fn all_messages() -> Vec<ClientMessage> {
    let numbers = [0, 1, u64::from(u32::MAX), i64::MAX as u64, u64::MAX];
    let mut all = vec![
        hello(),
        plan(&flow(MINUTE)),
        ClientMessage::Snapshot { port: 0 },
        ClientMessage::Stop,
        ClientMessage::Bye,
    ];
    all.extend(numbers.map(|client_ns| ClientMessage::Probe { client_ns }));
    all.extend(numbers.map(|at_ns| ClientMessage::Begin { at_ns }));
    all.extend(numbers.map(|at_ns| ClientMessage::End { at_ns }));
    all.extend(numbers.map(|offset| ClientMessage::Fetch { offset }));
    all
}

/// S3, S5: any three messages after each step of a test.
///
/// A message out of order ends its own connection and leaves no reserved slot.
#[test]
fn messages_in_any_order_end_only_their_own_connection() {
    let site = AttackedServer::new(&[]);
    let words = all_messages();
    let mut number = 0_usize;
    let mut said = 0;
    for step in 0..4 {
        for _ in 0..times(40, 400) {
            // A step size coprime to the number of messages reaches all of them.
            number += 1;
            let way = site.route(1 + (number % 5) as u16);
            let Ok(mut stranger) = RawClient::connect(way) else { continue };
            let mut data = Vec::new();
            if step > 0 && stranger.plan(&[DOWN], TransferSettings::default()).ok() != Some(None) {
                continue;
            }
            if step > 1 {
                data.extend(stranger.data(0, 0));
            }
            if step > 2 {
                let _ = stranger.begin(); // the server may have closed it
            }
            for place in [number * 7, number * 11 + step, number * 13 + 5] {
                said += usize::from(stranger.send(&words[place % words.len()]).is_ok());
            }
            let mut line = ControlClient::open(way, stranger.token).unwrap();
            let _ = line.send(&words[number * 3 % words.len()]); // the server may have closed it
        }
    }
    assert!(said > times(100, 1_000), "{said} words");
    site.wait_until_idle();
    assert_healthy(&site);
}

/// S3: a test that begins at the end of time, or ended before it began, releases its slot.
#[test]
fn tests_with_impossible_times_release_their_slots() {
    let site = AttackedServer::new(&["--max-tests", "2"]);
    let odd = |n: u16, words: &[ClientMessage]| {
        let mut client = RawClient::connect(site.route(n)).unwrap();
        assert_eq!(client.plan(&[MINUTE], TransferSettings::default()).unwrap(), None);
        let data = client.data(0, 0).unwrap();
        while !matches!(client.recv().unwrap(), ServerMessage::Ready) {}
        for word in words {
            client.send(word).unwrap();
        }
        (client, data)
    };
    let never = odd(1, &[ClientMessage::Begin { at_ns: u64::MAX }]);
    let over =
        odd(2, &[ClientMessage::Begin { at_ns: u64::MAX - 1 }, ClientMessage::End { at_ns: 0 }]);
    // Both slots belong to connected clients; five seconds without a byte release them.
    let began = Instant::now();
    site.assert_serves(2);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    drop((never, over));
    site.wait_until_idle();
    assert_healthy(&site);
}

/// S8: a client without a test's token cannot end the test or read its result.
///
/// It tries the test's name, similar tokens, and tokens of other tests.
#[test]
fn only_its_own_token_stops_a_test_or_reads_its_result() {
    let site = AttackedServer::new(&[]);
    let (mut owner, data) =
        running(site.route(1), &[DOWN], 1, TransferSettings::default()).unwrap();
    let (other, _data) = running(site.route(2), &[DOWN], 1, TransferSettings::default()).unwrap();
    let mut tokens = vec![
        owner.token.public_id(),
        owner.token.public_id().public_id(),
        other.token,
        TestToken::NONE,
    ];
    tokens.extend((0..128).step_by(times(9, 1)).map(|bit| {
        let mut near = owner.token.0;
        near[bit / 8] ^= 1 << (bit % 8);
        TestToken(near)
    }));
    let words = [
        ClientMessage::Stop,
        ClientMessage::End { at_ns: 0 },
        ClientMessage::Fetch { offset: 0 },
        ClientMessage::Bye,
    ];
    for token in tokens {
        if token == other.token {
            continue;
        }
        for word in &words {
            let mut line = ControlClient::open(site.route(3), token).unwrap();
            let _ = line.send(word); // the server may have closed it
            let heard = line.recv();
            assert!(heard.is_err(), "{heard:?} to {word:?} with {token}");
        }
    }
    // A token of another test only controls that test.
    let mut line = ControlClient::open(site.route(3), other.token).unwrap();
    for word in &words {
        line.send(word).unwrap();
    }
    let moved = AtomicU64::new(0);
    take(&data[0], Instant::now() + Duration::from_millis(300), &moved);
    assert!(moved.into_inner() > 100_000, "the test has ended");
    owner.send(&ClientMessage::Stop).unwrap();
    let reading = std::thread::spawn(move || {
        take(&data[0], Instant::now() + Duration::from_secs(20), &AtomicU64::new(0));
    });
    assert!(owner.fetch().unwrap().contains("host"));
    reading.join().unwrap();
    assert_healthy(&site);
}

/// S8: a test's public name opens at most data slots.
///
/// It opens no second connection of one number and no number outside the plan, and the test
/// continues.
#[test]
fn a_test_id_does_not_open_a_taken_or_missing_data_slot() {
    let site = AttackedServer::new(&[]);
    let (mut owner, data) =
        running(site.route(1), &[DOWN, DOWN], 1, TransferSettings::default()).unwrap();
    let name = owner.token.public_id();
    let wrong = [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (15, 127), (u16::MAX, u16::MAX)];
    for place in wrong.into_iter().cycle().take(times(70, 700)) {
        let mut socket = site.route(2).connect(ConnectionKind::Data, name, place).unwrap();
        let _ = socket.write_all(&[0; 1_000]); // the server may have closed it
        let heard = socket.read(&mut [0; 1_000]).unwrap_or(0);
        assert_eq!(heard, 0, "{place:?} got data");
    }
    for one in &data {
        let moved = AtomicU64::new(0);
        take(one, Instant::now() + Duration::from_millis(200), &moved);
        assert!(moved.into_inner() > 10_000, "the test has ended");
    }
    owner.send(&ClientMessage::Probe { client_ns: 5 }).unwrap();
    assert!(matches!(owner.recv(), Ok(ServerMessage::Clock { client_ns: 5, .. })));
    assert_healthy(&site);
}

/// S8: a hijacked data connection cannot do more than data. Its client can still end the test, and
/// everything is released.
#[test]
fn a_hijacked_data_slot_gives_no_control_of_the_test() {
    let site = AttackedServer::new(&[]);
    let mut owner = RawClient::connect(site.route(1)).unwrap();
    assert_eq!(owner.plan(&[DOWN, DOWN], TransferSettings::default()).unwrap(), None);
    let thief =
        site.route(2).connect(ConnectionKind::Data, owner.token.public_id(), (0, 0)).unwrap();
    let late = owner.data(0, 0).unwrap();
    let rest = owner.data(1, 0).unwrap();
    assert!(closes(&late, Duration::from_secs(5)).is_some(), "a place is taken twice");
    owner.begin().unwrap();
    drop(thief);
    owner.send(&ClientMessage::Stop).unwrap();
    let report = owner.fetch().unwrap();
    assert!(report.contains("host"), "{report}");
    drop((owner, rest));
    site.wait_until_idle();
    assert_healthy(&site);
}

/// S9: a plan runs no command and names no file, in any form.
#[test]
fn no_plan_runs_a_command_or_reads_a_file() {
    let site = AttackedServer::new(&[]);
    let marker = site.folder.work().join("ran");
    let secret = site.folder.work().join("file.txt");
    std::fs::write(&secret, "1 s up 100 B 100 B\nsecret-content\n").unwrap();
    let run = format!("run = \"touch {}\"", marker.display());
    let (file, base) = (secret.display(), "pattern = \"trace\"\nmessages");
    let path = |keys: &str| format!("[paths.eth1]\nbetween = [\"client\", \"server\"]\n{keys}\n");
    let plans = [
        flow(&run),
        flow(&format!("pattern = \"iperf\"\n{run}")),
        flow(&format!("preset = \"paper\"\n{run}")),
        format!("{}{}", flow(MINUTE), flow(&run)),
        flow(&format!("{base} = \"{file}\"")),
        flow(&format!("{base} = \"/etc/passwd\"")),
        flow(&format!("{base} = \"/dev/zero\"")),
        flow(&format!("{base} = [\"{file}\"]")),
        flow(&format!("{base} = \"../../../../../../etc/passwd\"")),
        format!("{}{}", path(&format!("rate = {{ trace = \"{file}\" }}")), flow(MINUTE)),
        format!("{}{}", path("rate = { trace = \"/dev/zero\" }"), flow(MINUTE)),
        format!("{}[run]\nqlog = \"/tmp\"\n", flow(MINUTE)),
        format!("extends = \"{file}\"\n{}", flow(MINUTE)),
        format!("include = [\"{file}\"]\n{}", flow(MINUTE)),
    ];
    for flows in plans {
        let mut client = RawClient::connect(site.route(1)).unwrap();
        client.send(&plan(&flows)).unwrap();
        let said = client.recv().unwrap();
        let ServerMessage::Refused { reason: why, .. } = &said else {
            panic!("{said:?} to {flows}")
        };
        assert!(!why.contains("secret-content") && !why.contains("root:"), "{why}");
    }
    assert!(!marker.exists());
    assert_healthy(&site);
    site.wait_until_idle();
}

/// S1, S5: frames and plans with the largest possible numbers, many at once.
#[test]
fn huge_frames_and_numbers_are_refused_at_no_cost() {
    let site = AttackedServer::new(&[]);
    let huge = [
        "pattern = \"web\"\nobjects = 10000\nobject = \"9 EB\"",
        "pattern = \"web\"\nobjects = 10000\nobject = \"18446744073709551615 B\"\nstreams = 128",
        "pattern = \"iperf\"\nstreams = 4294967295",
        "pattern = \"ping\"\ncount = 1000000\nperiod = \"1 ns\"\nwarm-up = 1000",
        "pattern = \"reqres\"\nrequest = \"18446744073709551615 B\"",
        "pattern = \"reqres\"\nrequest = \"4 GB\"\nreply = \"4 GB\"\ndirection = \"both\"",
        "pattern = \"reqres\"\nperiod = \"1 ns\"\nduration = \"59 min\"",
        "pattern = \"video\"\nbitrate = \"18446744073 Gbit/s\"\nsegment = \"1 ns\"",
        "pattern = \"onoff\"\non = \"1 ns\"\noff = \"1 ns\"\nperiod = \"1 ns\"",
        "pattern = \"udping\"\nperiod = \"1 ns\"\nduration = \"59 min\"",
        "pattern = \"bulk\"\nsize = \"18446744073709551615 B\"",
    ];
    let odd = [0, 1, u32::MAX].map(|n| TransferSettings {
        block_bytes: Some(n),
        window_bytes: Some(n),
        rate_bps: Some(u64::from(n) << 32 | u64::from(n)),
        congestion_control: Some("x".repeat(30_000)),
        ..TransferSettings::default()
    });
    let deep = ["[".repeat(60_000), "{\"say\":".repeat(9_000), "\"\\u0000".repeat(9_000)];
    let first = preamble(ConnectionKind::Control, TestToken::NONE).to_bytes();
    site.run_attack(|attack| {
        let mut n = 0;
        while attack.is_active() {
            for flow in huge {
                n = n % 50 + 1;
                let Ok(mut stranger) = RawClient::connect(site.route(n)) else { continue };
                let settings =
                    TransferSettings { rate_bps: Some(u64::MAX), ..TransferSettings::default() };
                let _ = stranger.plan(&[flow; 16], settings); // the server may have closed it
            }
            for settings in &odd {
                let Ok(mut stranger) = RawClient::connect(site.route(60)) else { continue };
                let why = stranger.plan(&[MINUTE], settings.clone());
                assert!(!matches!(why, Ok(None)), "{settings:?} was accepted");
            }
            for text in &deep {
                let Ok(mut socket) = dial(site.route(61), false) else { continue };
                let length = (text.len() as u32).to_be_bytes();
                // The server may have closed it.
                let _ = socket.write_all(&[&first, &length[..], text.as_bytes()].concat());
            }
            for length in [65_537, 1 << 31, u32::MAX] {
                let Ok(mut socket) = dial(site.route(62), false) else { continue };
                // The server may have closed it.
                let _ = socket.write_all(&[&first, &u32::to_be_bytes(length)[..]].concat());
                assert!(closes(&socket, Duration::from_secs(8)).is_some(), "{length} bytes");
            }
            attack.set_active();
        }
    });
    let said = site.running.stderr();
    assert!(!said.contains("panicked"), "{said}");
}

/// S3: an early bye, a second plan, a second begin.
///
/// The first test ends or continues, and no second one is reserved.
#[test]
fn repeated_messages_reserve_nothing_twice() {
    let site = AttackedServer::new(&[]);
    for round in 0..times(8, 32) {
        let mut client = wait_for("a place", || {
            let mut stranger = RawClient::connect(site.route(1 + round as u16)).ok()?;
            let answer = stranger.plan(&[DOWN], TransferSettings::default());
            matches!(answer, Ok(None)).then_some(stranger)
        });
        let _data = client.data(0, 0).unwrap();
        let twice =
            [plan(&flow(DOWN)), hello(), ClientMessage::Bye, ClientMessage::Begin { at_ns: 0 }];
        let word = frame::to_bytes(&twice[round % twice.len()]).unwrap();
        let mut line = ControlClient::open(site.route(1), client.token).unwrap();
        let _ = line.stream.write_all(&word.repeat(50)); // the server may have closed it
        if matches!(twice[round % twice.len()], ClientMessage::Bye) {
            // The server does not announce readiness any more.
            let _ = client.send(&ClientMessage::Begin { at_ns: 0 });
        } else {
            let _ = client.begin(); // the server may have closed it
        }
        let _ = line.send(&ClientMessage::Bye); // the server may have closed it
        let _ = client.send(&ClientMessage::Begin { at_ns: 0 });
    }
    site.wait_until_idle();
    assert_healthy(&site);
}
