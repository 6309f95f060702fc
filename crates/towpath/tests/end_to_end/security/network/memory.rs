//! Memory that clients make the server hold.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use towpath_live::protocol::{ClientMessage, TransferSettings};

use super::start_test;
use crate::program::wait_for;
use crate::security::fixture::{AttackedServer, times};
use crate::security::unauthenticated::RawClient;

/// Flow with as many records as a plan allows: 128 for each 10 ms.
const RECORDED_FLOW: &str = "pattern = \"iperf\"\nduration = \"60 s\"\nstreams = 64\n\
                             direction = \"both\"\n[run]\nsample = \"10 ms\"";
/// Memory that the server may retain after its clients have left, in kB.
const MAX_RETAINED_KB: u64 = 32 * 1024;
/// Duration of a wave of tests.
const WAVE: Duration = Duration::from_secs(6);

/// Sends and receives on all connections of a test until `is_over`.
fn exchange(connections: &mut [TcpStream], is_over: &AtomicBool) {
    let mut buffer = vec![0; 16 * 1024];
    for socket in &*connections {
        socket.set_nonblocking(true).unwrap();
    }
    while !is_over.load(Ordering::Acquire) {
        for socket in &mut *connections {
            let _ = socket.write(&buffer); // the server may have closed it
            while socket.read(&mut buffer).is_ok_and(|length| length == buffer.len()) {}
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Runs tests of four sources with many records at once; returns their clients, still connected.
fn run_wave(site: &AttackedServer, wave: u16) -> Vec<RawClient> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let attackers: Vec<_> = (0..4)
            .map(|source| {
                let route = site.route(wave * 4 + source);
                let is_over = &is_over;
                scope.spawn(move || -> io::Result<RawClient> {
                    let (client, mut connections) =
                        start_test(route, &[RECORDED_FLOW], 64, TransferSettings::default())?;
                    exchange(&mut connections, is_over);
                    Ok(client)
                })
            })
            .collect();
        let end = Instant::now() + WAVE;
        while Instant::now() < end {
            thread::sleep(Duration::from_millis(50));
        }
        is_over.store(true, Ordering::Release);
        attackers.into_iter().filter_map(|attacker| attacker.join().unwrap().ok()).collect()
    })
}

/// S1: waves of tests with as many records as possible, whose clients stay connected.
#[test]
fn records_of_many_tests_stay_within_the_memory_limit() {
    let site = AttackedServer::new(&[]);
    site.assert_serves(2);
    let start_kb = site.status("VmRSS:");
    let mut clients = Vec::new();
    for wave in 0..times(3, 16) as u16 {
        clients.extend(run_wave(&site, wave));
        for client in &mut clients {
            // Keeps the connection in use.
            let _ = client.send(&ClientMessage::Probe { client_ns: 1 }); // it may be closed
        }
    }
    assert!(clients.len() >= 8, "{} tests", clients.len());
    site.assert_memory();
    drop(clients);
    site.assert_serves(2);
    let retained_kb = || site.status("VmRSS:").saturating_sub(start_kb);
    let is_freed = || (retained_kb() <= MAX_RETAINED_KB).then_some(());
    wait_for("the memory to be freed", is_freed);
    site.wait_until_idle();
}
