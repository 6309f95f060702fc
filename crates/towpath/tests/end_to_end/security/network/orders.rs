//! Control messages in unexpected order, with unexpected numbers and tokens.

use std::io::{Read, Write};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use towpath_live::protocol::{
    ClientMessage, ConnectionKind, ServerMessage, TestPlan, TransferSettings, frame,
};
use towpath_run::token::TestToken;
use towpath_scenario::Transport;

use super::{
    ControlClient, ENDLESS_FLOW, assert_healthy, dial, hello, preamble, receive_until, start_test,
    wait_for_close,
};
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
    let mut all_messages = vec![
        hello(),
        plan(&flow(ENDLESS_FLOW)),
        ClientMessage::Snapshot { port: 0 },
        ClientMessage::Stop,
        ClientMessage::Bye,
    ];
    all_messages.extend(numbers.map(|client_ns| ClientMessage::Probe { client_ns }));
    all_messages.extend(numbers.map(|at_ns| ClientMessage::Begin { at_ns }));
    all_messages.extend(numbers.map(|at_ns| ClientMessage::End { at_ns }));
    all_messages.extend(numbers.map(|offset| ClientMessage::Fetch { offset }));
    all_messages
}

/// S3, S5: any three messages after each step of a test.
///
/// A message out of order ends its own connection and leaves no reserved slot.
#[test]
fn messages_in_any_order_end_only_their_own_connection() {
    let site = AttackedServer::new(&[]);
    let messages = all_messages();
    let mut number = 0_usize;
    let mut sent_messages = 0;
    for step in 0..4 {
        for _ in 0..times(40, 400) {
            // A step size coprime to the number of messages reaches all of them.
            number += 1;
            let route = site.route(1 + (number % 5) as u16);
            let Ok(mut client) = RawClient::connect(route) else { continue };
            let mut data = Vec::new();
            if step > 0 && client.plan(&[DOWN], TransferSettings::default()).ok() != Some(None) {
                continue;
            }
            if step > 1 {
                data.extend(client.data(0, 0));
            }
            if step > 2 {
                let _ = client.begin(); // the server may have closed it
            }
            for place in [number * 7, number * 11 + step, number * 13 + 5] {
                sent_messages +=
                    usize::from(client.send(&messages[place % messages.len()]).is_ok());
            }
            let mut second_connection = ControlClient::open(route, client.token).unwrap();
            let _ = second_connection.send(&messages[number * 3 % messages.len()]); // the server may have closed it
        }
    }
    assert!(sent_messages > times(100, 1_000), "{sent_messages} words");
    site.wait_until_idle();
    assert_healthy(&site);
}

/// S3: a test that begins at the end of time, or ended before it began, releases its slot.
#[test]
fn tests_with_impossible_times_release_their_slots() {
    let site = AttackedServer::new(&["--max-tests", "2"]);
    let start_with = |n: u16, messages: &[ClientMessage]| {
        let mut client = RawClient::connect(site.route(n)).unwrap();
        assert_eq!(client.plan(&[ENDLESS_FLOW], TransferSettings::default()).unwrap(), None);
        let data = client.data(0, 0).unwrap();
        while !matches!(client.recv().unwrap(), ServerMessage::Ready) {}
        for message in messages {
            client.send(message).unwrap();
        }
        (client, data)
    };
    let never_begins = start_with(1, &[ClientMessage::Begin { at_ns: u64::MAX }]);
    let ends_before_it_begins = start_with(
        2,
        &[ClientMessage::Begin { at_ns: u64::MAX - 1 }, ClientMessage::End { at_ns: 0 }],
    );
    // Both slots belong to connected clients; five seconds without a byte release them.
    let start = Instant::now();
    site.assert_serves(2);
    let elapsed = start.elapsed();
    assert!(elapsed < Duration::from_secs(20), "{elapsed:?}");
    drop((never_begins, ends_before_it_begins));
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
        start_test(site.route(1), &[DOWN], 1, TransferSettings::default()).unwrap();
    let (other_client, _data) =
        start_test(site.route(2), &[DOWN], 1, TransferSettings::default()).unwrap();
    let mut tokens = vec![
        owner.token.public_id(),
        owner.token.public_id().public_id(),
        other_client.token,
        TestToken::NONE,
    ];
    tokens.extend((0..128).step_by(times(9, 1)).map(|bit| {
        let mut similar_token = owner.token.0;
        similar_token[bit / 8] ^= 1 << (bit % 8);
        TestToken(similar_token)
    }));
    let messages = [
        ClientMessage::Stop,
        ClientMessage::End { at_ns: 0 },
        ClientMessage::Fetch { offset: 0 },
        ClientMessage::Bye,
    ];
    for token in tokens {
        if token == other_client.token {
            continue;
        }
        for message in &messages {
            let mut connection = ControlClient::open(site.route(3), token).unwrap();
            let _ = connection.send(message); // the server may have closed it
            let reply = connection.recv();
            assert!(reply.is_err(), "{reply:?} to {message:?} with {token}");
        }
    }
    // A token of another test only controls that test.
    let mut connection = ControlClient::open(site.route(3), other_client.token).unwrap();
    for message in &messages {
        connection.send(message).unwrap();
    }
    let moved = AtomicU64::new(0);
    receive_until(&data[0], Instant::now() + Duration::from_millis(300), &moved);
    assert!(moved.into_inner() > 100_000, "the test has ended");
    owner.send(&ClientMessage::Stop).unwrap();
    let reader = std::thread::spawn(move || {
        receive_until(&data[0], Instant::now() + Duration::from_secs(20), &AtomicU64::new(0));
    });
    assert!(owner.fetch().unwrap().contains("host"));
    reader.join().unwrap();
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
        start_test(site.route(1), &[DOWN, DOWN], 1, TransferSettings::default()).unwrap();
    let name = owner.token.public_id();
    let slots = [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (15, 127), (u16::MAX, u16::MAX)];
    for place in slots.into_iter().cycle().take(times(70, 700)) {
        let mut socket = site.route(2).connect(ConnectionKind::Data, name, place).unwrap();
        let _ = socket.write_all(&[0; 1_000]); // the server may have closed it
        let length = socket.read(&mut [0; 1_000]).unwrap_or(0);
        assert_eq!(length, 0, "{place:?} got data");
    }
    for socket in &data {
        let moved = AtomicU64::new(0);
        receive_until(socket, Instant::now() + Duration::from_millis(200), &moved);
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
    let hijacker =
        site.route(2).connect(ConnectionKind::Data, owner.token.public_id(), (0, 0)).unwrap();
    let owners_attempt = owner.data(0, 0).unwrap();
    let other_slot = owner.data(1, 0).unwrap();
    assert!(
        wait_for_close(&owners_attempt, Duration::from_secs(5)).is_some(),
        "a place is taken twice"
    );
    owner.begin().unwrap();
    drop(hijacker);
    owner.send(&ClientMessage::Stop).unwrap();
    let report = owner.fetch().unwrap();
    assert!(report.contains("host"), "{report}");
    drop((owner, other_slot));
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
    let (trace_path, trace_key) = (secret.display(), "pattern = \"trace\"\nmessages");
    let path = |keys: &str| format!("[paths.eth1]\nbetween = [\"client\", \"server\"]\n{keys}\n");
    let plans = [
        flow(&run),
        flow(&format!("pattern = \"iperf\"\n{run}")),
        flow(&format!("preset = \"paper\"\n{run}")),
        format!("{}{}", flow(ENDLESS_FLOW), flow(&run)),
        flow(&format!("{trace_key} = \"{trace_path}\"")),
        flow(&format!("{trace_key} = \"/etc/passwd\"")),
        flow(&format!("{trace_key} = \"/dev/zero\"")),
        flow(&format!("{trace_key} = [\"{trace_path}\"]")),
        flow(&format!("{trace_key} = \"../../../../../../etc/passwd\"")),
        format!(
            "{}{}",
            path(&format!("rate = {{ trace = \"{trace_path}\" }}")),
            flow(ENDLESS_FLOW)
        ),
        format!("{}{}", path("rate = { trace = \"/dev/zero\" }"), flow(ENDLESS_FLOW)),
        format!("{}[run]\nqlog = \"/tmp\"\n", flow(ENDLESS_FLOW)),
        format!("extends = \"{trace_path}\"\n{}", flow(ENDLESS_FLOW)),
        format!("include = [\"{trace_path}\"]\n{}", flow(ENDLESS_FLOW)),
    ];
    for flows in plans {
        let mut client = RawClient::connect(site.route(1)).unwrap();
        client.send(&plan(&flows)).unwrap();
        let said = client.recv().unwrap();
        let ServerMessage::Refused { reason, .. } = &said else { panic!("{said:?} to {flows}") };
        assert!(!reason.contains("secret-content") && !reason.contains("root:"), "{reason}");
    }
    assert!(!marker.exists());
    assert_healthy(&site);
    site.wait_until_idle();
}

/// S1, S5: frames and plans with the largest possible numbers, many at once.
#[test]
fn huge_frames_and_numbers_are_refused_at_no_cost() {
    let site = AttackedServer::new(&[]);
    let huge_flows = [
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
    let extreme_settings = [0, 1, u32::MAX].map(|n| TransferSettings {
        block_bytes: Some(n),
        window_bytes: Some(n),
        rate_bps: Some(u64::from(n) << 32 | u64::from(n)),
        congestion_control: Some("x".repeat(30_000)),
        ..TransferSettings::default()
    });
    let nested_texts = ["[".repeat(60_000), "{\"type\":".repeat(9_000), "\"\\u0000".repeat(9_000)];
    let preamble_bytes = preamble(ConnectionKind::Control, TestToken::NONE).to_bytes();
    site.run_attack(|attack| {
        let mut n = 0;
        while attack.is_active() {
            for flow in huge_flows {
                n = n % 50 + 1;
                let Ok(mut client) = RawClient::connect(site.route(n)) else { continue };
                let settings =
                    TransferSettings { rate_bps: Some(u64::MAX), ..TransferSettings::default() };
                let _ = client.plan(&[flow; 16], settings); // the server may have closed it
            }
            for settings in &extreme_settings {
                let Ok(mut client) = RawClient::connect(site.route(60)) else { continue };
                let reason = client.plan(&[ENDLESS_FLOW], settings.clone());
                assert!(!matches!(reason, Ok(None)), "{settings:?} was accepted");
            }
            for text in &nested_texts {
                let Ok(mut socket) = dial(site.route(61), false) else { continue };
                let length = (text.len() as u32).to_be_bytes();
                // The server may have closed it.
                let _ = socket.write_all(&[&preamble_bytes, &length[..], text.as_bytes()].concat());
            }
            for length in [65_537, 1 << 31, u32::MAX] {
                let Ok(mut socket) = dial(site.route(62), false) else { continue };
                // The server may have closed it.
                let _ =
                    socket.write_all(&[&preamble_bytes, &u32::to_be_bytes(length)[..]].concat());
                assert!(
                    wait_for_close(&socket, Duration::from_secs(8)).is_some(),
                    "{length} bytes"
                );
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
            let mut client = RawClient::connect(site.route(1 + round as u16)).ok()?;
            let reply = client.plan(&[DOWN], TransferSettings::default());
            matches!(reply, Ok(None)).then_some(client)
        });
        let _data = client.data(0, 0).unwrap();
        let repeated_messages =
            [plan(&flow(DOWN)), hello(), ClientMessage::Bye, ClientMessage::Begin { at_ns: 0 }];
        let message = frame::to_bytes(&repeated_messages[round % repeated_messages.len()]).unwrap();
        let mut second_connection = ControlClient::open(site.route(1), client.token).unwrap();
        let _ = second_connection.stream.write_all(&message.repeat(50)); // the server may have closed it
        if matches!(repeated_messages[round % repeated_messages.len()], ClientMessage::Bye) {
            // The server does not announce readiness any more.
            let _ = client.send(&ClientMessage::Begin { at_ns: 0 });
        } else {
            let _ = client.begin(); // the server may have closed it
        }
        let _ = second_connection.send(&ClientMessage::Bye); // the server may have closed it
        let _ = client.send(&ClientMessage::Begin { at_ns: 0 });
    }
    site.wait_until_idle();
    assert_healthy(&site);
}
