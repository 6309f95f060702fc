//! Authentication of server and client: pins, secrets, and the data that unauthenticated clients
//! get.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use towpath_measure::live::secret::{AuthRole, AuthTranscript, Challenge, ChannelBinding};
use towpath_measure::live::{
    ClientMessage, ConnectionKind, FrameDecoder, HostSnapshot, Preamble, Secret, ServerMessage,
    TestToken,
};

use super::clients::hostile::{Hostile, Misbehaviour, Phase, Trick, connect};
use crate::program::{ProgramOutput, Running, TestDir, wait_for};

const SECRET: &str = "a secret of both hosts\n";

/// Starts a server on loopback. Returns it with its port and its certificate's fingerprint.
fn server(folder: &TestDir, options: &[&str]) -> (Running, u16, String) {
    let arguments = [&["server", "-B", "127.0.0.1", "-p", "0"], options].concat();
    let running = folder.start(&mut folder.towpath(&arguments));
    let said = |before: &'static str, after: char| {
        wait_for(before, || {
            let said = running.stderr();
            let (_, rest) = said.split_once(before)?;
            Some(rest.split_once(after)?.0.to_owned())
        })
    };
    let port = said("listening on 127.0.0.1:", ' ').parse().unwrap();
    let print = said("certificate sha256:", '\n');
    (running, port, print)
}

fn measure(folder: &TestDir, port: u16, options: &[&str]) -> ProgramOutput {
    let port = port.to_string();
    let ours = ["measure", "127.0.0.1", "-p", &port, "-q", "-o", "results"];
    folder.run(&[&ours[..], options].concat())
}

/// Preamble of a control connection for a new test.
const CONTROL: Preamble =
    Preamble { kind: ConnectionKind::Control, flow: 0, stream: 0, token: TestToken::NONE };

fn hello() -> ClientMessage {
    ClientMessage::Hello { towpath: String::new() }
}

/// Proxy that stores everything the client sent.
struct Tap {
    port: u16,
    received: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Tap {
    fn before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let received: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let all = Arc::clone(&received);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                let number = {
                    let mut all = all.lock().unwrap();
                    all.push(Vec::new());
                    all.len() - 1
                };
                let (back, front) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                thread::spawn(move || pass(back, front, |_| {}));
                let all = Arc::clone(&all);
                thread::spawn(move || {
                    pass(client, server, |bytes| {
                        let kept = &mut all.lock().unwrap()[number];
                        // The identifying bytes are at the beginning.
                        let room = 8_192_usize.saturating_sub(kept.len());
                        kept.extend(bytes.iter().take(room));
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

fn pass(mut from: TcpStream, mut to: TcpStream, mut note: impl FnMut(&[u8])) {
    let mut room = vec![0; 65_536];
    while let Ok(length @ 1..) = from.read(&mut room) {
        note(&room[..length]);
        if to.write_all(&room[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write); // the peer may be gone
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn with_a_pin_everything_over_tcp_goes_through_tls() {
    let folder = TestDir::new();
    let (_server, port, print) = server(&folder, &[]);
    let tap = Tap::before(port);
    let pinned = ["-t", "0.3", "--transport", "tcp", "--server-cert", &print];
    let ended = measure(&folder, tap.port, &pinned);
    assert_eq!(ended.code, Some(0), "{ended}");
    assert!(ended.err.contains("--server-cert puts TLS around tcp"), "{ended}");
    let conditions = folder.stored("results/live-tcp-1.jsonl.zst").meta.conditions;
    assert!(conditions.contains_key("tls") && conditions.contains_key("tls of control"));
    assert!(conditions["server certificate"].contains("as expected"), "{conditions:?}");
    let heard = tap.received();
    assert!(heard.len() >= 2, "control and data");
    for connection in heard {
        let preamble = Preamble::read(&connection).unwrap().unwrap();
        assert!(
            matches!(preamble.kind, ConnectionKind::Tls | ConnectionKind::Data),
            "{preamble:?}"
        );
        // A record of the handshake follows.
        assert_eq!(connection[Preamble::BYTES..][..2], [0x16, 0x03], "{preamble:?}");
        assert!(!contains(&connection, b"\"say\""), "a word can be read");
        // An eavesdropper cannot reuse the token.
        if preamble.kind == ConnectionKind::Data {
            let mut client =
                connect(port, Preamble { kind: ConnectionKind::Control, ..preamble }, false)
                    .unwrap();
            let _ = client.send(&ClientMessage::Fetch { offset: 0 }); // the server may have closed it
            let answer = client.recv::<ServerMessage>(&mut FrameDecoder::default());
            assert!(!matches!(answer, Ok(Some(_))), "{answer:?}");
        }
    }
    let skips = [&pinned[..], &["--skip-rx-copy"]].concat();
    let ended = measure(&folder, tap.port, &skips);
    assert_eq!(ended.code, Some(2), "{ended}");
    assert!(ended.err.contains("cannot go through TLS") && ended.err.contains("hint:"), "{ended}");
}

#[test]
fn a_server_without_the_pinned_certificate_receives_nothing() {
    let folder = TestDir::new();
    let forger = Hostile::start(Misbehaviour::Report(Arc::from("{}")));
    let pin = "ab".repeat(32);
    for transport in ["tcp", "mptcp"] {
        let pinned = ["-t", "0.2", "--transport", transport, "--server-cert", &pin];
        let ended = measure(&folder, forger.port, &pinned);
        assert_eq!(ended.code, Some(2), "{ended}");
        assert!(ended.err.contains("is not the server that is expected"), "{ended}");
    }
    // Not a TLS server: it accepts the first bytes and sends a server's messages.
    let plain = Hostile::start(Misbehaviour::Trick(Phase::Connection, Trick::Welcome));
    let ended =
        measure(&folder, plain.port, &["-t", "0.2", "--transport", "tcp", "--server-cert", &pin]);
    assert_eq!(ended.code, Some(2), "{ended}");
    let heard = forger.received();
    assert!(heard.iter().all(|word| word == "tls"), "{heard:?}");
}

/// Relays datagrams until a number of bytes has passed in both directions.
fn pass_datagrams(server: u16, most: u64) -> UdpSocket {
    let outer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let listening = outer.try_clone().unwrap();
    thread::spawn(move || {
        let passed = Arc::new(AtomicU64::new(0));
        let mut routes: Vec<(SocketAddr, UdpSocket)> = Vec::new();
        let mut room = vec![0; 65_536];
        while let Ok((length, from)) = listening.recv_from(&mut room) {
            if passed.fetch_add(length as u64, Ordering::Relaxed) > most {
                continue;
            }
            let known = routes.iter().position(|(client, _)| *client == from);
            let known = known.unwrap_or_else(|| {
                let inner = UdpSocket::bind("127.0.0.1:0").unwrap();
                inner.connect(("127.0.0.1", server)).unwrap();
                let (back, front) = (inner.try_clone().unwrap(), listening.try_clone().unwrap());
                let passed = Arc::clone(&passed);
                thread::spawn(move || {
                    let mut room = vec![0; 65_536];
                    while let Ok(length) = back.recv(&mut room) {
                        if passed.fetch_add(length as u64, Ordering::Relaxed) <= most {
                            let _ = front.send_to(&room[..length], from); // the peer may be gone
                        }
                    }
                });
                routes.push((from, inner));
                routes.len() - 1
            });
            let _ = routes[known].1.send(&room[..length]); // the peer may be gone
        }
    });
    outer
}

#[test]
fn a_forged_server_report_is_refused_after_quic_is_cut_off() {
    let folder = TestDir::new();
    let (_server, port, print) = server(&folder, &[]);
    // An attacker on the path has a port for both, cuts QUIC off and replies over TCP.
    let (between, listener) = wait_for("a port", || {
        let between = pass_datagrams(port, 150_000);
        let address = between.local_addr().unwrap();
        TcpListener::bind(address).ok().map(|listener| (between, listener))
    });
    let line = r#"{"record":{"type":"counter","host":"forged","name":"","before":0,"after":1}}"#;
    let forger = Hostile::at(listener, Misbehaviour::Report(Arc::from(format!("{line}\n"))));
    let at = between.local_addr().unwrap().port();
    let short = ["-t", "1", "-b", "4M", "--transport", "quic", "--result-timeout", "6"];
    let pinned = [&short[..], &["--server-cert", &print]].concat();
    let ended = measure(&folder, at, &pinned);
    assert_eq!(ended.code, Some(1), "{ended}");
    assert!(ended.err.contains("the server's half of the result is missing"), "{ended}");
    let heard = forger.received();
    assert!(heard.contains(&"tls".to_owned()), "it was never asked: {heard:?}");
    assert!(heard.iter().all(|word| word == "tls"), "{heard:?}");
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
            let ended = folder.run(command);
            assert_eq!(ended.code, Some(2), "{ended}");
            assert!(ended.err.contains("holds no secret"), "{ended}");
            assert!(ended.err.contains("head -c 24 /dev/urandom | base64"), "{ended}");
        }
    }
    let ended = folder.run(&["server", "-p", "0", "--secret-file", "/dev/zero"]);
    assert_eq!(ended.code, Some(2), "{ended}");
}

#[test]
fn a_server_without_the_secret_receives_no_plan() {
    let folder = TestDir::new();
    folder.write_secret("secret.txt", SECRET);
    let known = ["-t", "0.2", "--transport", "tcp", "--secret-file", "secret.txt"];
    let ignorant = Hostile::start(Misbehaviour::Report(Arc::from("{}")));
    let ended = measure(&folder, ignorant.port, &known);
    assert_eq!(ended.code, Some(2), "{ended}");
    assert!(ended.err.contains("does not ask for the secret"), "{ended}");
    let heard = ignorant.received();
    assert!(!heard.contains(&"Plan".to_owned()), "{heard:?}");
    let liar = Hostile::start(Misbehaviour::Liar);
    let ended = measure(&folder, liar.port, &known);
    assert_eq!(ended.code, Some(2), "{ended}");
    assert!(ended.err.contains("it does not know the secret"), "{ended}");
    assert!(!liar.received().contains(&"Plan".to_owned()), "{:?}", liar.received());
    let doctor = ["doctor", "--secret-file", "secret.txt", "--json", "--peer"];
    let ended = folder.run(&[&doctor[..], &[&format!("127.0.0.1:{}", liar.port)]].concat());
    assert!(ended.out.contains("it does not know the secret"), "{ended}");
    folder.write_secret("other.txt", "another secret of somebody else\n");
    let (_server, port, _) = server(&folder, &["--secret-file", "other.txt"]);
    let ended = measure(&folder, port, &known);
    assert_eq!(ended.code, Some(2), "{ended}");
    assert!(ended.err.contains("the secret is wrong"), "{ended}");
}

#[test]
fn with_a_secret_control_is_encrypted_and_replay_is_useless() {
    let folder = TestDir::new();
    folder.write_secret("secret.txt", SECRET);
    let (_server, port, _) = server(&folder, &["--secret-file", "secret.txt"]);
    let tap = Tap::before(port);
    for transport in ["tcp", "mptcp"] {
        let known = ["-t", "0.3", "--transport", transport, "--secret-file", "secret.txt"];
        let ended = measure(&folder, tap.port, &known);
        assert_eq!(ended.code, Some(0), "{ended}");
        let name = format!("results/live-{transport}-1.jsonl.zst");
        let shown = &folder.stored(&name).meta.conditions["server certificate"];
        assert!(shown.contains("knows the secret"), "{shown}");
    }
    for connection in tap.received() {
        let preamble = Preamble::read(&connection).unwrap().unwrap();
        assert!(!contains(&connection, b"\"say\""), "a word can be read");
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
    let mut wire = connect(port, CONTROL, tls)?;
    let mut frames = FrameDecoder::default();
    wire.send(&hello())?;
    let Some(ServerMessage::Welcome { challenge: Some(server), .. }) = wire.recv(&mut frames)?
    else {
        return Err(io::Error::other("no challenge"));
    };
    let binding = ChannelBinding(if tls { wire.binding() } else { [0; 32] });
    let meeting = AuthTranscript { binding, server, client: Challenge([5; 32]) };
    let secret = Secret::from_text(secret.as_bytes()).unwrap();
    let proof = secret.prove(AuthRole::Client, &meeting).unwrap();
    wire.send(&ClientMessage::Proof { proof, challenge: meeting.client })?;
    wire.recv(&mut frames)
}

fn refusal(said: io::Result<Option<ServerMessage>>) -> String {
    match said.unwrap() {
        Some(ServerMessage::Refused { reason: why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn wrong_secrets_are_logged_and_get_slower() {
    let folder = TestDir::new();
    folder.write_secret("secret.txt", SECRET);
    let (server, port, _) = server(&folder, &["--secret-file", "secret.txt"]);
    assert!(matches!(prove(port, SECRET, true), Ok(Some(ServerMessage::Proved { .. }))));
    let plain = refusal(prove(port, SECRET, false));
    assert!(plain.contains("encrypted connection only"), "{plain}");
    let guess = "a guess of a secret of both";
    let answers: Vec<_> = (0..60).map(|_| refusal(prove(port, guess, true))).collect();
    let looked_at = answers.iter().filter(|why| why.contains("is wrong")).count();
    // On a busy machine the guesses take a while, during which the server checks some more.
    assert!((3..=12).contains(&looked_at), "{answers:?}");
    let refused = answers.iter().filter(|why| why.contains("too many wrong secrets")).count();
    assert_eq!(looked_at + refused, answers.len(), "{answers:?}");
    let lines = server.stderr().lines().filter(|line| line.contains("not know the secret")).count();
    assert!((1..=20).contains(&lines), "{}", server.stderr());
    // Soon the right secret is accepted again.
    wait_for("the right secret", || {
        matches!(prove(port, SECRET, true), Ok(Some(ServerMessage::Proved { .. }))).then_some(())
    });
}

/// Returns a server's snapshot of its host.
fn snapshot(port: u16, asked: u16) -> HostSnapshot {
    let (mut wire, mut frames) = (connect(port, CONTROL, false).unwrap(), FrameDecoder::default());
    wire.send(&hello()).unwrap();
    wire.send(&ClientMessage::Snapshot { port: asked }).unwrap();
    loop {
        match wire.recv(&mut frames).unwrap() {
            Some(ServerMessage::Snapshot(look)) => return *look,
            Some(ServerMessage::Welcome { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn unauthenticated_clients_learn_only_what_a_port_scan_shows() {
    let folder = TestDir::new();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let elsewhere = other.local_addr().unwrap().port();
    let (_server, port, _) = server(&folder, &[]);
    let told = snapshot(port, port);
    let expected = HostSnapshot { partial: true, ..HostSnapshot::default() };
    let HostSnapshot { listener, connections, .. } = told.clone();
    assert_eq!(told, HostSnapshot { listener, connections, ..expected.clone() });
    assert!(listener.is_some_and(|listener| listener.multipath || listener.plain));
    assert_eq!(snapshot(port, elsewhere), expected, "nothing of other ports");
    let (_server, port, _) = server(&folder, &["--public-diagnostics"]);
    let told = snapshot(port, elsewhere);
    assert!(!told.partial && !told.addresses.is_empty() && !told.kernel.is_empty());
    assert!(told.listener.is_some_and(|listener| listener.plain));
}

#[test]
fn doctor_queries_a_server_only_if_it_knows_the_secret() {
    let folder = TestDir::new();
    folder.write_secret("secret.txt", SECRET);
    let (_server, open, _) = server(&folder, &[]);
    let (_server, known, _) = server(&folder, &["--secret-file", "secret.txt"]);
    let ask = |port: u16, options: &[&str]| {
        let address = format!("127.0.0.1:{port}");
        let ended = folder.run(&[&["doctor", "--connect", &address, "--json"], options].concat());
        assert!(matches!(ended.code, Some(0 | 1)), "{ended}");
        ended.json().remove(0)
    };
    let whole = "the other host, as";
    let report = ask(open, &[]);
    assert!(!report["checked"].to_string().contains(whole), "{report}");
    let missing = report["not_checked"].to_string();
    assert!(missing.contains("tells strangers nothing of its host"), "{report}");
    let report = ask(known, &["--secret-file", "secret.txt"]);
    assert!(report["checked"].to_string().contains(whole), "{report}");
    let report = ask(known, &[]);
    assert!(report["not_checked"].to_string().contains("it wants a secret"), "{report}");
}

#[test]
fn the_line_that_a_server_prints_can_be_pasted() {
    let folder = TestDir::new();
    folder.write_secret("secret.txt", SECRET);
    for options in [&[][..], &["--secret-file", "secret.txt"]] {
        let (server, _, print) = server(&folder, options);
        let line = wait_for("the line", || {
            let said = server.stderr();
            let line = said.lines().find_map(|line| line.split_once("another host: "))?;
            said.ends_with('\n').then(|| line.1.to_owned())
        });
        assert!(line.contains(&print), "{line}");
        assert!(!server.stderr().contains(SECRET.trim()), "{}", server.stderr());
        let line = line.replace("FILE", "secret.txt");
        let mut words: Vec<_> = line.split_whitespace().skip(1).collect();
        words.extend(["-t", "0.2", "-q", "--transport", "tcp,quic", "-o", "results"]);
        let ended = folder.run(&words);
        assert_eq!(ended.code, Some(0), "{ended}");
    }
}

/// The server drops silent handshakes after a few seconds, so that no thread stays behind.
#[test]
fn an_unfinished_handshake_times_out() {
    let folder = TestDir::new();
    let (_server, port, _) = server(&folder, &[]);
    let mut silent = TcpStream::connect(("127.0.0.1", port)).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let first = Preamble { kind: ConnectionKind::Tls, flow: 0, stream: 0, token: TestToken::NONE };
    silent.write_all(&first.to_bytes()).unwrap();
    assert_eq!(silent.read(&mut [0; 16]).unwrap_or(0), 0, "it is closed");
}
