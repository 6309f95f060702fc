//! Authentication of server and client: pins, secrets, and the data that unauthenticated clients
//! get.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use towpath_host::snapshot::HostSnapshot;
use towpath_live::protocol::secret::{AuthRole, AuthTranscript, Challenge, ChannelBinding};
use towpath_live::protocol::{
    ClientMessage, ConnectionKind, FrameDecoder, Preamble, Secret, ServerMessage,
};
use towpath_run::token::TestToken;

use super::clients::hostile::{Hostile, Misbehaviour, Phase, Trick, connect};
use crate::program::{ProgramOutput, Running, TestDir, wait_for};

const SECRET: &str = "a secret of both hosts\n";

/// Starts a server on loopback. Returns it with its port and its certificate's fingerprint.
fn start_server(folder: &TestDir, options: &[&str]) -> (Running, u16, String) {
    let arguments = [&["server", "-B", "127.0.0.1", "-p", "0"], options].concat();
    let running = folder.start(&mut folder.towpath(&arguments));
    let stderr_part = |prefix: &'static str, suffix: char| {
        wait_for(prefix, || {
            let stderr_part = running.stderr();
            let (_, rest) = stderr_part.split_once(prefix)?;
            Some(rest.split_once(suffix)?.0.to_owned())
        })
    };
    let port = stderr_part("listening on 127.0.0.1:", ' ').parse().unwrap();
    let fingerprint = stderr_part("certificate sha256:", '\n');
    (running, port, fingerprint)
}

fn measure(folder: &TestDir, port: u16, options: &[&str]) -> ProgramOutput {
    let port = port.to_string();
    let base_arguments = ["measure", "127.0.0.1", "-p", &port, "-q", "-o", "results"];
    folder.run(&[&base_arguments[..], options].concat())
}

/// Preamble of a control connection for a new test.
const CONTROL: Preamble =
    Preamble { kind: ConnectionKind::Control, flow: 0, stream: 0, token: TestToken::NONE };

fn hello() -> ClientMessage {
    ClientMessage::Hello { towpath: String::new() }
}

/// Proxy that stores everything the client sent.
struct RecordingProxy {
    port: u16,
    received: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl RecordingProxy {
    fn start_before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let received: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let thread_received = Arc::clone(&received);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                let number = {
                    let mut thread_received = thread_received.lock().unwrap();
                    thread_received.push(Vec::new());
                    thread_received.len() - 1
                };
                let (server_reader, client_writer) =
                    (server.try_clone().unwrap(), client.try_clone().unwrap());
                thread::spawn(move || relay(server_reader, client_writer, |_| {}));
                let thread_received = Arc::clone(&thread_received);
                thread::spawn(move || {
                    relay(client, server, |bytes| {
                        let recorded = &mut thread_received.lock().unwrap()[number];
                        // The identifying bytes are at the beginning.
                        let free_bytes = 8_192_usize.saturating_sub(recorded.len());
                        recorded.extend(bytes.iter().take(free_bytes));
                    });
                });
            }
        });
        Self { port, received }
    }

    fn received(&self) -> Vec<Vec<u8>> {
        self.received.lock().unwrap().clone()
    }
}

fn relay(mut source: TcpStream, mut target: TcpStream, mut on_bytes: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 65_536];
    while let Ok(length @ 1..) = source.read(&mut buffer) {
        on_bytes(&buffer[..length]);
        if target.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = target.shutdown(std::net::Shutdown::Write); // the peer may be gone
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn with_a_pin_everything_over_tcp_goes_through_tls() {
    let folder = TestDir::new();
    let (_server, port, fingerprint) = start_server(&folder, &[]);
    let proxy = RecordingProxy::start_before(port);
    let pinned_options = ["-t", "0.3", "--transport", "tcp", "--server-cert", &fingerprint];
    let output = measure(&folder, proxy.port, &pinned_options);
    assert_eq!(output.code, Some(0), "{output}");
    assert!(output.err.contains("--server-cert uses TLS for tcp"), "{output}");
    let conditions = folder.stored("results/live-tcp-1.jsonl.zst").meta.conditions;
    assert!(conditions.contains_key("tls") && conditions.contains_key("tls of control"));
    assert!(conditions["server certificate"].contains("as expected"), "{conditions:?}");
    let connections_seen = proxy.received();
    assert!(connections_seen.len() >= 2, "control and data");
    for connection in connections_seen {
        let preamble = Preamble::read(&connection).unwrap().unwrap();
        assert!(
            matches!(preamble.kind, ConnectionKind::Tls | ConnectionKind::Data),
            "{preamble:?}"
        );
        // A record of the handshake follows.
        assert_eq!(connection[Preamble::BYTES..][..2], [0x16, 0x03], "{preamble:?}");
        assert!(!contains(&connection, b"\"type\""), "a word can be read");
        // An eavesdropper cannot reuse the token.
        if preamble.kind == ConnectionKind::Data {
            let mut client =
                connect(port, Preamble { kind: ConnectionKind::Control, ..preamble }, false)
                    .unwrap();
            let _ = client.send(&ClientMessage::Fetch { offset: 0 }); // the server may have closed it
            let reply = client.recv::<ServerMessage>(&mut FrameDecoder::default());
            assert!(!matches!(reply, Ok(Some(_))), "{reply:?}");
        }
    }
    let with_skip_copy = [&pinned_options[..], &["--skip-rx-copy"]].concat();
    let output = measure(&folder, proxy.port, &with_skip_copy);
    assert_eq!(output.code, Some(2), "{output}");
    assert!(
        output.err.contains("excludes --skip-rx-copy") && output.err.contains("hint:"),
        "{output}"
    );
}

#[test]
fn a_server_without_the_pinned_certificate_receives_nothing() {
    let folder = TestDir::new();
    let forger = Hostile::start(Misbehaviour::Report(Arc::from("{}")));
    let wrong_pin = "ab".repeat(32);
    for transport in ["tcp", "mptcp"] {
        let pinned_options = ["-t", "0.2", "--transport", transport, "--server-cert", &wrong_pin];
        let output = measure(&folder, forger.port, &pinned_options);
        assert_eq!(output.code, Some(2), "{output}");
        assert!(output.err.contains("is not the expected server"), "{output}");
    }
    // Not a TLS server: it accepts the first bytes and sends a server's messages.
    let plain_server = Hostile::start(Misbehaviour::Trick(Phase::Connection, Trick::Welcome));
    let output = measure(
        &folder,
        plain_server.port,
        &["-t", "0.2", "--transport", "tcp", "--server-cert", &wrong_pin],
    );
    assert_eq!(output.code, Some(2), "{output}");
    let received = forger.received();
    assert!(received.iter().all(|message| message == "tls"), "{received:?}");
}

/// Relays datagrams until a number of bytes has passed in both directions.
fn relay_datagrams(server: u16, max_bytes: u64) -> UdpSocket {
    let relay_socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let client_socket = relay_socket.try_clone().unwrap();
    thread::spawn(move || {
        let relayed_bytes = Arc::new(AtomicU64::new(0));
        let mut routes: Vec<(SocketAddr, UdpSocket)> = Vec::new();
        let mut buffer = vec![0; 65_536];
        while let Ok((length, client_address)) = client_socket.recv_from(&mut buffer) {
            if relayed_bytes.fetch_add(length as u64, Ordering::Relaxed) > max_bytes {
                continue;
            }
            let route_index = routes.iter().position(|(client, _)| *client == client_address);
            let route_index = route_index.unwrap_or_else(|| {
                let server_socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                server_socket.connect(("127.0.0.1", server)).unwrap();
                let (server_reader, client_writer) =
                    (server_socket.try_clone().unwrap(), client_socket.try_clone().unwrap());
                let relayed_bytes = Arc::clone(&relayed_bytes);
                thread::spawn(move || {
                    let mut buffer = vec![0; 65_536];
                    while let Ok(length) = server_reader.recv(&mut buffer) {
                        if relayed_bytes.fetch_add(length as u64, Ordering::Relaxed) <= max_bytes {
                            let _ = client_writer.send_to(&buffer[..length], client_address); // the peer may be gone
                        }
                    }
                });
                routes.push((client_address, server_socket));
                routes.len() - 1
            });
            let _ = routes[route_index].1.send(&buffer[..length]); // the peer may be gone
        }
    });
    relay_socket
}

#[test]
fn a_forged_server_report_is_refused_after_quic_is_cut_off() {
    let folder = TestDir::new();
    let (_server, port, fingerprint) = start_server(&folder, &[]);
    // An attacker on the path has a port for both, cuts QUIC off and replies over TCP.
    let (relay_socket, listener) = wait_for("a port", || {
        let relay_socket = relay_datagrams(port, 150_000);
        let address = relay_socket.local_addr().unwrap();
        TcpListener::bind(address).ok().map(|listener| (relay_socket, listener))
    });
    let line = r#"{"record":{"type":"counter","host":"forged","name":"","before":0,"after":1}}"#;
    let forger = Hostile::start_on(listener, Misbehaviour::Report(Arc::from(format!("{line}\n"))));
    let relay_port = relay_socket.local_addr().unwrap().port();
    let test_options = ["-t", "1", "-b", "4M", "--transport", "quic", "--result-timeout", "6"];
    let pinned_options = [&test_options[..], &["--server-cert", &fingerprint]].concat();
    let output = measure(&folder, relay_port, &pinned_options);
    assert_eq!(output.code, Some(1), "{output}");
    assert!(output.err.contains("the server's results are missing"), "{output}");
    let received = forger.received();
    assert!(received.contains(&"tls".to_owned()), "it was never asked: {received:?}");
    assert!(received.iter().all(|message| message == "tls"), "{received:?}");
}

#[test]
fn a_secret_that_can_be_guessed_is_refused_by_both() {
    let folder = TestDir::new();
    for text in ["x\n", "", "fifteen bytes..\n"] {
        folder.write_secret("short.txt", text);
        for command in [
            &["server", "-p", "0", "--secret-file", "short.txt"][..],
            &["measure", "127.0.0.1", "-p", "1", "--secret-file", "short.txt"],
            &["doctor", "--peer", "127.0.0.1:1", "--secret-file", "short.txt"],
        ] {
            let output = folder.run(command);
            assert_eq!(output.code, Some(2), "{output}");
            assert!(output.err.contains("does not contain a valid secret"), "{output}");
            assert!(output.err.contains("head -c 24 /dev/urandom | base64"), "{output}");
        }
    }
    let output = folder.run(&["server", "-p", "0", "--secret-file", "/dev/zero"]);
    assert_eq!(output.code, Some(2), "{output}");
}

#[test]
fn a_server_without_the_secret_receives_no_plan() {
    let folder = TestDir::new();
    folder.write_secret("secret.txt", SECRET);
    let secret_options = ["-t", "0.2", "--transport", "tcp", "--secret-file", "secret.txt"];
    let server_without_secret = Hostile::start(Misbehaviour::Report(Arc::from("{}")));
    let output = measure(&folder, server_without_secret.port, &secret_options);
    assert_eq!(output.code, Some(2), "{output}");
    assert!(output.err.contains("does not request the secret"), "{output}");
    let received = server_without_secret.received();
    assert!(!received.contains(&"Plan".to_owned()), "{received:?}");
    let liar = Hostile::start(Misbehaviour::Liar);
    let output = measure(&folder, liar.port, &secret_options);
    assert_eq!(output.code, Some(2), "{output}");
    assert!(output.err.contains("it does not know the secret"), "{output}");
    assert!(!liar.received().contains(&"Plan".to_owned()), "{:?}", liar.received());
    let doctor = ["doctor", "--secret-file", "secret.txt", "--json", "--peer"];
    let output = folder.run(&[&doctor[..], &[&format!("127.0.0.1:{}", liar.port)]].concat());
    assert!(output.out.contains("it does not know the secret"), "{output}");
    folder.write_secret("other.txt", "the secret of another user\n");
    let (_server, port, _) = start_server(&folder, &["--secret-file", "other.txt"]);
    let output = measure(&folder, port, &secret_options);
    assert_eq!(output.code, Some(2), "{output}");
    assert!(output.err.contains("the secret is wrong"), "{output}");
}

#[test]
fn with_a_secret_control_is_encrypted_and_replay_is_useless() {
    let folder = TestDir::new();
    folder.write_secret("secret.txt", SECRET);
    let (_server, port, _) = start_server(&folder, &["--secret-file", "secret.txt"]);
    let proxy = RecordingProxy::start_before(port);
    for transport in ["tcp", "mptcp"] {
        let secret_options = ["-t", "0.3", "--transport", transport, "--secret-file", "secret.txt"];
        let output = measure(&folder, proxy.port, &secret_options);
        assert_eq!(output.code, Some(0), "{output}");
        let name = format!("results/live-{transport}-1.jsonl.zst");
        let certificate_note = &folder.stored(&name).meta.conditions["server certificate"];
        assert!(certificate_note.contains("verified with the secret"), "{certificate_note}");
    }
    for connection in proxy.received() {
        let preamble = Preamble::read(&connection).unwrap().unwrap();
        assert!(!contains(&connection, b"\"type\""), "a word can be read");
        assert!(
            matches!(preamble.kind, ConnectionKind::Tls | ConnectionKind::Data),
            "{preamble:?}"
        );
        assert_eq!(
            preamble.kind == ConnectionKind::Tls,
            preamble.token == TestToken::NONE,
            "{preamble:?}"
        );
    }
}

/// Claims to know a secret. Returns the server's reply.
fn prove(port: u16, secret: &str, tls: bool) -> io::Result<Option<ServerMessage>> {
    let mut connection = connect(port, CONTROL, tls)?;
    let mut frames = FrameDecoder::default();
    connection.send(&hello())?;
    let Some(ServerMessage::Welcome { challenge: Some(server), .. }) =
        connection.recv(&mut frames)?
    else {
        return Err(io::Error::other("no challenge"));
    };
    let binding = ChannelBinding(if tls { connection.binding() } else { [0; 32] });
    let transcript = AuthTranscript { binding, server, client: Challenge([5; 32]) };
    let secret = Secret::from_text(secret.as_bytes()).unwrap();
    let proof = secret.prove(AuthRole::Client, &transcript).unwrap();
    connection.send(&ClientMessage::Proof { proof, challenge: transcript.client, grant: None })?;
    connection.recv(&mut frames)
}

fn refusal_reason(result: io::Result<Option<ServerMessage>>) -> String {
    match result.unwrap() {
        Some(ServerMessage::Refused { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn wrong_secrets_are_logged_and_get_slower() {
    let folder = TestDir::new();
    folder.write_secret("secret.txt", SECRET);
    let (server, port, _) = start_server(&folder, &["--secret-file", "secret.txt"]);
    assert!(matches!(prove(port, SECRET, true), Ok(Some(ServerMessage::Proved { .. }))));
    let without_tls = refusal_reason(prove(port, SECRET, false));
    assert!(without_tls.contains("requires an encrypted connection"), "{without_tls}");
    let guess = "a guess of a secret of both";
    let replies: Vec<_> = (0..60).map(|_| refusal_reason(prove(port, guess, true))).collect();
    let checked = replies.iter().filter(|reason| reason.contains("is wrong")).count();
    // On a busy machine the guesses take a while, during which the server checks some more.
    assert!((3..=12).contains(&checked), "{replies:?}");
    let refused_count =
        replies.iter().filter(|reason| reason.contains("too many wrong secrets")).count();
    assert_eq!(checked + refused_count, replies.len(), "{replies:?}");
    let lines = server.stderr().lines().filter(|line| line.contains("not know the secret")).count();
    assert!((1..=20).contains(&lines), "{}", server.stderr());
    // Soon the right secret is accepted again.
    wait_for("the right secret", || {
        matches!(prove(port, SECRET, true), Ok(Some(ServerMessage::Proved { .. }))).then_some(())
    });
}

/// Returns a server's snapshot of its host.
fn snapshot(port: u16, requested_port: u16) -> HostSnapshot {
    let (mut connection, mut frames) =
        (connect(port, CONTROL, false).unwrap(), FrameDecoder::default());
    connection.send(&hello()).unwrap();
    connection.send(&ClientMessage::Snapshot { port: requested_port }).unwrap();
    loop {
        match connection.recv(&mut frames).unwrap() {
            Some(ServerMessage::Snapshot(host_snapshot)) => return *host_snapshot,
            Some(ServerMessage::Welcome { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn unauthenticated_clients_learn_only_what_a_port_scan_shows() {
    let folder = TestDir::new();
    let other_listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let other_port = other_listener.local_addr().unwrap().port();
    let (_server, port, _) = start_server(&folder, &[]);
    let host_snapshot = snapshot(port, port);
    let expected = HostSnapshot { partial: true, ..HostSnapshot::default() };
    let HostSnapshot { listener, connections, .. } = host_snapshot.clone();
    assert_eq!(host_snapshot, HostSnapshot { listener, connections, ..expected.clone() });
    assert!(listener.is_some_and(|listener| listener.multipath || listener.plain));
    assert_eq!(snapshot(port, other_port), expected, "nothing of other ports");
    let (_server, port, _) = start_server(&folder, &["--public-diagnostics"]);
    let host_snapshot = snapshot(port, other_port);
    assert!(
        !host_snapshot.partial
            && !host_snapshot.addresses.is_empty()
            && !host_snapshot.kernel.is_empty()
    );
    assert!(host_snapshot.listener.is_some_and(|listener| listener.plain));
}

#[test]
fn doctor_queries_a_server_only_if_it_knows_the_secret() {
    let folder = TestDir::new();
    folder.write_secret("secret.txt", SECRET);
    let (_server, open_port, _) = start_server(&folder, &[]);
    let (_server, secret_port, _) = start_server(&folder, &["--secret-file", "secret.txt"]);
    let diagnose = |port: u16, options: &[&str]| {
        let address = format!("127.0.0.1:{port}");
        let output = folder.run(&[&["doctor", "--connect", &address, "--json"], options].concat());
        assert!(matches!(output.code, Some(0 | 1)), "{output}");
        output.json().remove(0)
    };
    let full_check = "the other host, as";
    let report = diagnose(open_port, &[]);
    assert!(!report["checked"].to_string().contains(full_check), "{report}");
    let skipped_checks = report["not_checked"].to_string();
    assert!(
        skipped_checks.contains("does not describe its host to unauthenticated clients"),
        "{report}"
    );
    let report = diagnose(secret_port, &["--secret-file", "secret.txt"]);
    assert!(report["checked"].to_string().contains(full_check), "{report}");
    let report = diagnose(secret_port, &[]);
    assert!(report["not_checked"].to_string().contains("it requires a secret"), "{report}");
}

#[test]
fn the_line_that_a_server_prints_can_be_pasted() {
    let folder = TestDir::new();
    folder.write_secret("secret.txt", SECRET);
    for options in [&[][..], &["--secret-file", "secret.txt"]] {
        let (server, _, fingerprint) = start_server(&folder, options);
        let line = wait_for("the line", || {
            let stderr = server.stderr();
            let line = stderr.lines().find_map(|line| line.split_once("another host: "))?;
            stderr.ends_with('\n').then(|| line.1.to_owned())
        });
        assert!(line.contains(&fingerprint), "{line}");
        assert!(!server.stderr().contains(SECRET.trim()), "{}", server.stderr());
        let line = line.replace("FILE", "secret.txt");
        let mut messages: Vec<_> = line.split_whitespace().skip(1).collect();
        messages.extend(["-t", "0.2", "-q", "--transport", "tcp,quic", "-o", "results"]);
        let output = folder.run(&messages);
        assert_eq!(output.code, Some(0), "{output}");
    }
}

/// The server drops silent handshakes after a few seconds, so that no thread stays behind.
#[test]
fn an_unfinished_handshake_times_out() {
    let folder = TestDir::new();
    let (_server, port, _) = start_server(&folder, &[]);
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let preamble =
        Preamble { kind: ConnectionKind::Tls, flow: 0, stream: 0, token: TestToken::NONE };
    stream.write_all(&preamble.to_bytes()).unwrap();
    assert_eq!(stream.read(&mut [0; 16]).unwrap_or(0), 0, "it is closed");
}
