//! Tests over real sockets on the loopback interface.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use towpath_os::Clock;
use towpath_quic::QuicConfig;

use super::{BlockingConnection, BlockingStream, HostConfig, InterfacePolicy, QuicHandle};

const HANG_TIMEOUT: Duration = Duration::from_secs(20);

fn start_host(name: &str) -> Arc<QuicHandle> {
    let interfaces = InterfacePolicy::all();
    let (name, clock, seed) = (name.to_owned(), Clock::start(), None);
    Arc::new(
        QuicHandle::start(HostConfig { name, clock, seed, namespace: None, interfaces }).unwrap(),
    )
}

/// Echoes all data in a thread of its own.
fn spawn_echo(connection: BlockingConnection) -> thread::JoinHandle<usize> {
    thread::spawn(move || {
        let stream = connection.accept_stream(HANG_TIMEOUT).unwrap();
        let mut buffer = vec![0; 10_000];
        let mut echoed = 0;
        loop {
            let length = stream.read(&mut buffer, HANG_TIMEOUT).unwrap();
            if length == 0 {
                stream.finish(HANG_TIMEOUT).unwrap();
                return echoed;
            }
            stream.write(&buffer[..length], HANG_TIMEOUT).unwrap();
            echoed += length;
        }
    })
}

fn check_echo(target: IpAddr) {
    const BYTES: usize = 3_000_000;
    let (client, server) = (start_host("client"), start_host("server"));
    let listener = server.listen(0, QuicConfig::default()).unwrap();
    let remote = SocketAddr::new(target, listener.port());
    let connection = client.connect(None, remote, QuicConfig::default(), HANG_TIMEOUT).unwrap();
    let echo_thread = spawn_echo(listener.accept(HANG_TIMEOUT).unwrap());
    let stream = connection.open_stream().unwrap();
    let sent: Vec<u8> = (0..BYTES).map(|n| (n % 251) as u8).collect();
    let writer: BlockingStream = stream.clone();
    let data = sent.clone();
    let writer_thread = thread::spawn(move || {
        writer.write(&data, HANG_TIMEOUT).unwrap();
        writer.finish(HANG_TIMEOUT).unwrap();
    });
    let mut received = Vec::new();
    let mut buffer = vec![0; 7_777];
    loop {
        let length = stream.read(&mut buffer, HANG_TIMEOUT).unwrap();
        if length == 0 {
            break;
        }
        received.extend_from_slice(&buffer[..length]);
    }
    writer_thread.join().unwrap();
    assert_eq!(echo_thread.join().unwrap(), BYTES);
    assert!(received == sent, "{} of {BYTES} bytes came back", received.len());
    let status = connection.status().unwrap();
    assert_eq!(status.remote, remote);
    assert!(status.paths[0].sent_bytes > BYTES as u64, "{status:?}");
    connection.close();
    // The connection is closed, so no stream can be opened.
    assert!(connection.open_stream().is_err());
}

#[test]
fn bytes_come_back_over_real_sockets_of_both_families() {
    check_echo(Ipv4Addr::LOCALHOST.into());
    if std::net::UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
        check_echo(Ipv6Addr::LOCALHOST.into());
    }
}

#[test]
fn an_unreachable_peer_is_an_error_after_the_callers_timeout() {
    let client = start_host("client");
    let unused_address = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let timeout = Duration::from_millis(300);
    let error = client.connect(None, unused_address, QuicConfig::default(), timeout).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
}

#[test]
fn a_close_by_the_peer_is_reported() {
    let (client, server) = (start_host("client"), start_host("server"));
    let listener = server.listen(0, QuicConfig::default()).unwrap();
    let remote = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), listener.port());
    let connection = client.connect(None, remote, QuicConfig::default(), HANG_TIMEOUT).unwrap();
    let accepted = listener.accept(HANG_TIMEOUT).unwrap();
    let stream = connection.open_stream().unwrap();
    stream.write(b"hello", HANG_TIMEOUT).unwrap();
    let accepted_stream = accepted.accept_stream(HANG_TIMEOUT).unwrap();
    let mut buffer = [0; 16];
    assert_eq!(accepted_stream.read(&mut buffer, HANG_TIMEOUT).unwrap(), 5);
    connection.close();
    let error = accepted_stream.read(&mut buffer, HANG_TIMEOUT).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionAborted, "{error}");
    assert!(accepted.failure().is_some());
    assert!(accepted.status().unwrap().error.is_some());
}
