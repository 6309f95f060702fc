//! A server over QUIC: its identity, and malicious clients.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;

use towpath_live::protocol::FrameDecoder;
use towpath_os::Clock;
use towpath_quic::{LocalAddress, QuicConfig, Trust, identity::PemIdentity};
use towpath_sockets::quic::{
    BlockingConnection, BlockingStream, HostConfig, InterfacePolicy, QuicHandle,
};

use super::*;

fn start_client() -> Arc<QuicHandle> {
    let (name, clock, seed) = ("client".to_owned(), Clock::start(), None);
    let (namespace, interfaces) = (None, InterfacePolicy::all());
    Arc::new(QuicHandle::start(HostConfig { name, clock, seed, namespace, interfaces }).unwrap())
}

fn dial(host: &Arc<QuicHandle>, server: SocketAddr) -> io::Result<BlockingConnection> {
    let config = QuicConfig { trust: Trust::Any, ..QuicConfig::default() };
    host.connect(None, server, config, HANG_TIMEOUT)
}

/// Opens a stream and sends its preamble.
fn open_with_preamble(
    connection: &BlockingConnection,
    kind: ConnectionKind,
    token: TestToken,
) -> BlockingStream {
    let stream = connection.open_stream().unwrap();
    let preamble = Preamble { kind, flow: 0, stream: 0, token };
    stream.write(&preamble.to_bytes(), HANG_TIMEOUT).unwrap();
    stream
}

fn send(stream: &BlockingStream, message: &ClientMessage) -> io::Result<()> {
    stream.write(&frame::to_bytes(message).unwrap(), HANG_TIMEOUT)
}

/// Runs a short honest test over QUIC; returns its duration.
fn run_honest_test(server: SocketAddr, transport: Transport) -> Duration {
    let start = Instant::now();
    let records = measure(&measure_request(server, transport, SMALL_FLOW), &mut |_| {}).unwrap();
    assert!(summary(&records).ok, "{:?}", summary(&records));
    start.elapsed()
}

#[test]
fn a_server_is_authenticated_by_its_certificate_or_its_fingerprint_is_reported() {
    let pem = PemIdentity::make(&["here".to_owned()]).unwrap();
    let identity = towpath_quic::Identity::from_pem(&pem.certificate, &pem.key).unwrap();
    let (fingerprint, wrong_fingerprint) =
        (identity.fingerprint(), "ab".repeat(32).parse().unwrap());
    let server = serve_with_identity(Some(identity), None, ServerLimits::default());
    let mut request = measure_request(server, Transport::Quic, SMALL_FLOW);
    for expected in [None, Some(fingerprint)] {
        request.server = expected;
        let records = measure(&request, &mut |_| {}).unwrap();
        let Some(Record::Meta(meta)) = records.first() else { panic!("no conditions") };
        let certificate_text = &meta.conditions["server certificate"];
        assert!(certificate_text.contains(&fingerprint.to_string()), "{certificate_text}");
        assert_eq!(
            certificate_text.contains("not checked"),
            expected.is_none(),
            "{certificate_text}"
        );
    }
    request.server = Some(wrong_fingerprint);
    let error = measure(&request, &mut |_| {}).unwrap_err();
    assert!(matches!(error, LiveError::Untrusted { .. }), "{error}");
    assert!(error.to_string().contains(&fingerprint.to_string()), "{error}");
    assert!(error.hint().unwrap().contains("--server-cert"));
}

#[test]
fn rates_and_limits_hold_over_quic() {
    let limits = ServerLimits { bytes: Some(2_000_000), ..ServerLimits::default() };
    let server = serve(None, limits);
    for direction in ["up", "down"] {
        let flow = format!("pattern = \"iperf\"\nduration = \"1 s\"\ndirection = \"{direction}\"");
        let mut request = measure_request(server, Transport::Mpquic, &flow);
        request.plan.settings.rate_bps = Some(8_000_000);
        request.plan.settings.congestion_control = Some("lia".into());
        let records = measure(&request, &mut |_| {}).unwrap();
        let flow = summary(&records).flows.first().unwrap();
        assert!((700_000..=1_300_000).contains(&flow.bytes), "{direction}: {flow:?}");
        assert_eq!(flow.congestion_control, ["lia"], "{direction}");
        request.plan.settings.rate_bps = Some(100_000_000);
        let records = measure(&request, &mut |_| {}).unwrap();
        let bytes = summary(&records).flows.first().unwrap().bytes;
        assert!(bytes < 9_000_000, "{direction}: {bytes} of 12.5 MB, and the limit is 2 MB");
    }
}

/// Other clients may send data in the packet that completes the preamble.
#[test]
fn data_right_behind_the_preamble_is_served() {
    let server = serve(None, ServerLimits::default());
    let host = start_client();
    let preamble =
        Preamble { kind: ConnectionKind::Echo, flow: 0, stream: 0, token: TestToken::NONE };
    for length in [1, 1_000, 50_000] {
        let connection = dial(&host, server).unwrap();
        let stream = connection.open_stream().unwrap();
        let data = vec![b'x'; length];
        stream.write(&[&preamble.to_bytes()[..], &data].concat(), HANG_TIMEOUT).unwrap();
        let (mut echoed, mut buffer) = (Vec::new(), [0; 10_000]);
        while echoed.len() < length {
            let read_len = stream.read(&mut buffer, HANG_TIMEOUT).unwrap();
            assert!(read_len > 0, "closed after {} bytes", echoed.len());
            echoed.extend_from_slice(&buffer[..read_len]);
        }
        assert!(echoed == data);
    }
    let connection = dial(&host, server).unwrap();
    let control = connection.open_stream().unwrap();
    let preamble = Preamble { kind: ConnectionKind::Control, ..preamble };
    let hello = frame::to_bytes(&ClientMessage::Hello { towpath: "0".to_owned() }).unwrap();
    control.write(&[&preamble.to_bytes()[..], &hello].concat(), HANG_TIMEOUT).unwrap();
    let mut buffer = [0; 1_000];
    let length = control.read(&mut buffer, HANG_TIMEOUT).unwrap();
    assert!(String::from_utf8_lossy(&buffer[..length]).contains("welcome"));
}

#[test]
fn echo_streams_echo_and_unknown_streams_are_closed() {
    let server = serve(None, ServerLimits::default());
    let host = start_client();
    let connection = dial(&host, server).unwrap();
    let stream = open_with_preamble(&connection, ConnectionKind::Echo, TestToken::NONE);
    let data: Vec<u8> = (0..500_000_u32).map(|n| (n % 251) as u8).collect();
    let (mut echoed, mut buffer) = (Vec::new(), [0; 10_000]);
    thread::scope(|scope| {
        scope.spawn(|| {
            stream.write(&data, HANG_TIMEOUT).unwrap();
            stream.shutdown();
        });
        loop {
            let length = stream.read(&mut buffer, HANG_TIMEOUT).unwrap();
            if length == 0 {
                break;
            }
            echoed.extend_from_slice(&buffer[..length]);
        }
    });
    assert!(echoed == data, "{} of {} bytes came back", echoed.len(), data.len());
    let unknown =
        Preamble { kind: ConnectionKind::Data, flow: 0, stream: 0, token: TestToken([9; 16]) };
    for wrong_start in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n......"[..], &unknown.to_bytes()] {
        let connection = dial(&host, server).unwrap();
        let stream = connection.open_stream().unwrap();
        stream.write(wrong_start, HANG_TIMEOUT).unwrap();
        let error = stream.read(&mut buffer, HANG_TIMEOUT).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted, "{error}");
    }
}

/// Sends first packets of connections that never continue, from a few addresses.
fn send_initials(server: SocketAddr, count: usize) {
    let mut host = towpath_quic::QuicStack::new_random();
    let now = towpath_net::Instant::ZERO;
    let address = Ipv4Addr::LOCALHOST.into();
    let (interface, up, subflow, backup) = (1, true, false, false);
    host.set_address(now, LocalAddress { address, interface, up, subflow, backup });
    let sockets: Vec<_> =
        (0..8).map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
    for number in 0..count {
        let config = QuicConfig { trust: Trust::Any, ..QuicConfig::default() };
        let id = host.connect(now, None, server, config).unwrap();
        let initial = host.poll_transmit(now).unwrap();
        assert!(initial.payload.len() >= 1_200);
        // Fails if the buffer is full.
        let _ = sockets[number % sockets.len()].send_to(&initial.payload, server);
        host.drop_silently(id);
    }
}

/// Sends random datagrams of any length, many of which look like QUIC or like ours.
fn send_garbage(server: SocketAddr, count: u32) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    for number in 0..count {
        let length = (number.wrapping_mul(7_919) % 1_400 + 1) as usize;
        let byte = |index: usize| (number.wrapping_mul(index as u32 * 2 + 77) >> 3) as u8;
        let mut bytes: Vec<u8> = (0..length).map(byte).collect();
        match number % 4 {
            0 => bytes[0] |= 0xc0,
            1 => bytes[0] |= 0x40,
            2 if length > 4 => bytes[..4].copy_from_slice(b"\x01tp\x01"),
            _ => {}
        }
        let _ = socket.send_to(&bytes, server); // fails if the buffer is full
    }
}

/// Requests data and a result, and reads neither.
fn run_slow_reader(host: &Arc<QuicHandle>, server: SocketAddr) -> Vec<BlockingStream> {
    let flow = "pattern = \"iperf\"\ndirection = \"down\"\nduration = \"2 s\"";
    let plan = measure_request(server, Transport::Quic, flow).plan;
    let connection = dial(host, server).unwrap();
    let control = open_with_preamble(&connection, ConnectionKind::Control, TestToken::NONE);
    send(&control, &ClientMessage::Hello { towpath: String::new() }).unwrap();
    send(&control, &ClientMessage::Plan(Box::new(plan))).unwrap();
    let (mut decoder, mut buffer) = (FrameDecoder::default(), [0; 1_024]);
    let token = loop {
        let length = control.read(&mut buffer, HANG_TIMEOUT).unwrap();
        assert!(length > 0, "the server has closed");
        decoder.push(&buffer[..length]);
        let messages = std::iter::from_fn(|| decoder.take::<ServerMessage>().unwrap());
        let mut tokens = messages.filter_map(|message| {
            let ServerMessage::Accepted { token } = message else { return None };
            Some(token)
        });
        if let Some(token) = tokens.next() {
            break token;
        }
    };
    let data =
        open_with_preamble(&dial(host, server).unwrap(), ConnectionKind::Data, token.public_id());
    send(&control, &ClientMessage::Begin { at_ns: 0 }).unwrap();
    for _ in 0..500 {
        if send(&control, &ClientMessage::Fetch { offset: 0 }).is_err() {
            break;
        }
    }
    vec![control, data]
}

#[test]
fn initials_garbage_silent_and_slow_connections_block_no_client() {
    let name = "initials_garbage_silent_and_slow_connections_block_no_client";
    run_alone(&format!("quic::{name}"), run_malicious_clients);
}

fn run_malicious_clients() {
    let limits = ServerLimits {
        max_pending: 48,
        preamble_timeout: Duration::from_secs(2),
        ..ServerLimits::default()
    };
    let server = serve(None, limits);
    run_honest_test(server, Transport::Quic);
    let initial_bytes = resident_bytes();
    let host = start_client();
    thread::scope(|scope| {
        scope.spawn(|| send_initials(server, 3_000));
        scope.spawn(|| send_garbage(server, 20_000));
        // Twice the maximum of pending connections, all of them silent.
        scope.spawn(|| {
            for _ in 0..100 {
                // The server drops excess connections silently, so this may fail.
                let _ = dial(&host, server);
            }
        });
        let slow_readers: Vec<_> =
            (0..3).map(|_| scope.spawn(|| run_slow_reader(&host, server))).collect();
        scope.spawn(|| {
            for transport in [Transport::Quic, Transport::Tcp, Transport::Mpquic] {
                run_honest_test(server, transport);
            }
        });
        let _streams: Vec<_> =
            slow_readers.into_iter().map(|thread| thread.join().unwrap()).collect();
    });
    let duration = run_honest_test(server, Transport::Mpquic);
    assert!(duration < HANG_TIMEOUT, "{duration:?}");
    let growth_bytes = resident_bytes().saturating_sub(initial_bytes);
    assert!(growth_bytes < 200 << 20, "{growth_bytes} bytes");
}

#[test]
fn many_clients_at_once_are_served_over_quic() {
    let server = serve(None, ServerLimits { tests: 128, ..ServerLimits::default() });
    thread::scope(|scope| {
        for number in 0..40 {
            let transport = if number % 2 == 0 { Transport::Quic } else { Transport::Mpquic };
            scope.spawn(move || run_honest_test(server, transport));
        }
    });
}

#[test]
fn datagrams_and_quic_share_their_port() {
    use towpath_run::datagram::EchoDatagram;
    let server = serve(None, ServerLimits::default());
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_read_timeout(Some(HANG_TIMEOUT)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| run_honest_test(server, Transport::Quic));
        for number in 0..200 {
            let request = EchoDatagram { token: TestToken::NONE, number, sent_ns: 7 };
            socket.send_to(&request.to_bytes(), server).unwrap();
            let mut buffer = [0; 100];
            let (length, sender) = socket.recv_from(&mut buffer).unwrap();
            assert_eq!(sender, server);
            assert_eq!(EchoDatagram::parse_reply(&buffer[..length]), Some(request));
        }
    });
}

/// Regression: a connection without a test could have 256 streams open. With gaps in the data of
/// each, 100 connections made the server hold 494 MiB.
#[test]
fn a_connection_without_a_test_has_two_streams() {
    let server = serve(None, ServerLimits::default());
    let host = start_client();
    let connection = dial(&host, server).unwrap();
    let _echoes =
        [(); 2].map(|()| open_with_preamble(&connection, ConnectionKind::Echo, TestToken::NONE));
    assert!(connection.open_stream().is_err());
    // A test gets as many as its flow has.
    let flow = "pattern = \"iperf\"\nduration = \"500 ms\"\nstreams = 40";
    let records = measure(&measure_request(server, Transport::Quic, flow), &mut |_| {}).unwrap();
    assert!(summary(&records).ok, "{:?}", summary(&records));
}
