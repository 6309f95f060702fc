//! Unauthenticated clients of a server with a secret.

use std::io::{self, Read, Write};
use std::net::UdpSocket;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use towpath_live::protocol::secret::{
    AuthProof, AuthRole, AuthTranscript, Challenge, ChannelBinding,
};
use towpath_live::protocol::{
    ClientMessage, ConnectionKind, FrameDecoder, Secret, ServerMessage, frame,
};
use towpath_quic::Trust;
use towpath_quic::tls::TlsSession;
use towpath_run::datagram::EchoDatagram;
use towpath_run::token::TestToken;

use super::client::TlsClient;
use super::{ControlClient, hello, preamble, start_server_on_all_addresses};
use crate::program::TestDir;
use crate::security::clients::hostile::TestConnection;
use crate::security::fixture::{AttackedServer, times};
use crate::security::unauthenticated::ClientRoute;

const SECRET: &str = "a secret of both hosts";

/// Starts a server with a secret. The file's folder must live until the server has read it.
fn start_guarded_server() -> AttackedServer {
    start_with_secret(AttackedServer::new)
}
/// Starts a server with a secret by a function that gets the additional arguments.
fn start_with_secret(start: impl Fn(&[&str]) -> AttackedServer) -> AttackedServer {
    let folder = TestDir::new();
    folder.write_secret("secret.txt", SECRET);
    let file = folder.work().join("secret.txt");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    start(&["--secret-file", file.to_str().unwrap()])
}

/// Unauthenticated client on an encrypted connection that has sent its hello.
struct UnauthenticatedClient {
    connection: TestConnection,
    frames: FrameDecoder,
    challenge: Challenge,
}

impl UnauthenticatedClient {
    fn connect(route: ClientRoute) -> io::Result<Self> {
        let socket = route.connect(ConnectionKind::Tls, TestToken::NONE, (0, 0))?;
        let session = TlsSession::client(&Trust::Any).unwrap();
        let mut connection = TestConnection::secure(socket, session)?;
        connection.send_raw(&preamble(ConnectionKind::Control, TestToken::NONE).to_bytes())?;
        let mut frames = FrameDecoder::default();
        connection.send(&hello())?;
        match connection.recv(&mut frames)? {
            Some(ServerMessage::Welcome { challenge: Some(challenge), .. }) => {
                Ok(Self { connection, frames, challenge })
            }
            other => Err(io::Error::other(format!("{other:?}"))),
        }
    }

    fn transcript(&self, client: Challenge) -> AuthTranscript {
        let binding = ChannelBinding(self.connection.binding());
        AuthTranscript { binding, server: self.challenge, client }
    }

    fn prove(
        &mut self,
        proof: AuthProof,
        challenge: Challenge,
    ) -> io::Result<Option<ServerMessage>> {
        self.connection.send(&ClientMessage::Proof { proof, challenge, grant: None })?;
        self.connection.recv(&mut self.frames)
    }

    /// Sends a secret. Returns the reason of a refusal; `None` if it was accepted.
    fn guess(&mut self, secret: &str) -> io::Result<Option<String>> {
        let client = Challenge([5; 32]);
        let secret = Secret::from_text(secret.as_bytes()).unwrap();
        let proof = secret.prove(AuthRole::Client, &self.transcript(client)).unwrap();
        match self.prove(proof, client)? {
            Some(ServerMessage::Proved { .. }) => Ok(None),
            Some(ServerMessage::Refused { reason, .. }) => Ok(Some(reason)),
            other => Err(io::Error::other(format!("{other:?}"))),
        }
    }
}

/// Returns the maximum of checked guesses in that time.
///
/// Three are free, then waits of 1 s, 2 s, 4 s follow. One more, since client and server read their
/// clocks at different times.
fn max_attempts(elapsed: Duration) -> usize {
    let waits = (1..).scan(0, |total_wait, attempt| {
        *total_wait += 1_u64 << (attempt - 1);
        Some(*total_wait)
    });
    3 + waits.take_while(|wait_end| *wait_end <= elapsed.as_secs()).count() + 1
}

/// S7: simultaneous guesses on connections that were opened earlier do not beat sequential ones.
#[test]
fn parallel_guesses_are_not_faster() {
    let site = start_guarded_server();
    let start = Instant::now();
    let mut clients: Vec<_> = (0..times(40, 150))
        .filter_map(|_| UnauthenticatedClient::connect(site.route(1)).ok())
        .collect();
    assert!(clients.len() >= 20, "{} came in", clients.len());
    let barrier = Barrier::new(clients.len());
    let replies: Vec<_> = thread::scope(|scope| {
        let guesses: Vec<_> = clients
            .iter_mut()
            .map(|client| {
                scope.spawn(|| {
                    barrier.wait();
                    client.guess("a guess of a secret of both")
                })
            })
            .collect();
        guesses.into_iter().map(|guess| guess.join().unwrap()).collect()
    });
    let elapsed = start.elapsed();
    let is_wrong = |reply: &&io::Result<Option<String>>| matches!(reply, Ok(Some(reason)) if reason.contains("is wrong"));
    let checked_guesses = replies.iter().filter(is_wrong).count();
    assert!(checked_guesses >= 1, "{replies:?}");
    assert!(
        checked_guesses <= max_attempts(elapsed),
        "{checked_guesses} guesses were looked at in {elapsed:?}"
    );
    assert!(site.running.stderr().contains("127.1.0.1"), "{}", site.running.stderr());
    // Other sources do not wait.
    assert_eq!(UnauthenticatedClient::connect(site.route(2)).unwrap().guess(SECRET).unwrap(), None);
}

/// S7: hundreds of clients without the secret do not block a source with it.
#[test]
fn guesses_from_many_sources_do_not_block_authenticated_clients() {
    let site = start_guarded_server();
    thread::scope(|scope| {
        let guessers: Vec<_> = (0..4)
            .map(|guesser| {
                let site = &site;
                scope.spawn(move || {
                    let mut wrong = 0;
                    for n in 0..times(15, 150) as u16 {
                        let route = site.route(10 + 4 * n + guesser);
                        for _ in 0..4 {
                            let Ok(mut client) = UnauthenticatedClient::connect(route) else {
                                continue;
                            };
                            wrong += usize::from(matches!(
                                client.guess("sixteen bytes or more"),
                                Ok(Some(_))
                            ));
                        }
                    }
                    wrong
                })
            })
            .collect();
        for _ in 0..times(3, 20) {
            assert_eq!(
                UnauthenticatedClient::connect(site.route(1)).unwrap().guess(SECRET).unwrap(),
                None
            );
        }
        let wrong: usize = guessers.into_iter().map(|guesser| guesser.join().unwrap()).sum();
        assert!(wrong > 100, "{wrong} wrong ones");
    });
    let lines = site.running.stderr().lines().count();
    assert!(lines < 60, "{lines} lines in the log");
    site.assert_memory();
    site.wait_until_idle();
}

/// S7: a proof authenticates one connection in one direction: not another one, not reflected, not
/// twice.
#[test]
fn replayed_and_reflected_proofs_are_refused() {
    let site = start_guarded_server();
    let secret = Secret::from_text(SECRET.as_bytes()).unwrap();
    let client_challenge = Challenge([5; 32]);
    let assert_refused = |client: &mut UnauthenticatedClient, proof, challenge| {
        let reply = client.prove(proof, challenge).unwrap();
        assert!(
            matches!(&reply, Some(ServerMessage::Refused { reason, .. }) if reason.contains("wrong")),
            "{reply:?}"
        );
        // The server ignores further messages.
        let _ = client.connection.send(&ClientMessage::Snapshot { port: 1 });
        assert!(!matches!(
            client.connection.recv::<ServerMessage>(&mut client.frames),
            Ok(Some(_))
        ));
    };
    let mut first_client = UnauthenticatedClient::connect(site.route(1)).unwrap();
    let first_transcript = first_client.transcript(client_challenge);
    let valid_proof = secret.prove(AuthRole::Client, &first_transcript).unwrap();
    let Some(ServerMessage::Proved { proof: server_proof }) =
        first_client.prove(valid_proof, client_challenge).unwrap()
    else {
        panic!("the right proof is refused");
    };
    // The same proof on another connection, and another connection's challenge or keys with its
    // own.
    let mut second_client = UnauthenticatedClient::connect(site.route(2)).unwrap();
    assert!(second_client.challenge != first_client.challenge, "a challenge was used twice");
    assert_refused(&mut second_client, valid_proof, client_challenge);
    let mut third_client = UnauthenticatedClient::connect(site.route(3)).unwrap();
    let moved_transcript = AuthTranscript {
        binding: first_transcript.binding,
        ..third_client.transcript(client_challenge)
    };
    assert_refused(
        &mut third_client,
        secret.prove(AuthRole::Client, &moved_transcript).unwrap(),
        client_challenge,
    );
    let mut fourth_client = UnauthenticatedClient::connect(site.route(4)).unwrap();
    let old_transcript = AuthTranscript {
        server: first_transcript.server,
        ..fourth_client.transcript(client_challenge)
    };
    assert_refused(
        &mut fourth_client,
        secret.prove(AuthRole::Client, &old_transcript).unwrap(),
        client_challenge,
    );
    // The server's own proof, sent back or computed for it.
    let mut fifth_client = UnauthenticatedClient::connect(site.route(5)).unwrap();
    assert_refused(&mut fifth_client, server_proof, client_challenge);
    let mut sixth_client = UnauthenticatedClient::connect(site.route(6)).unwrap();
    let reflected = AuthTranscript {
        client: sixth_client.challenge,
        ..sixth_client.transcript(client_challenge)
    };
    let reflected = secret.prove(AuthRole::Server, &reflected).unwrap();
    let challenge = sixth_client.challenge;
    assert_refused(&mut sixth_client, reflected, challenge);
    // A second proof on an authenticated connection ends it.
    let second_reply = first_client.prove(valid_proof, client_challenge);
    assert!(!matches!(second_reply, Ok(Some(ServerMessage::Proved { .. }))), "{second_reply:?}");
}

/// S7: without the secret, a client gets nothing over TCP: no echo, no snapshot, no test.
///
/// This holds for any omitted message.
#[test]
fn without_the_secret_nothing_is_granted_over_tcp() {
    let site = start_guarded_server();
    let assert_no_grant = |messages: &[ClientMessage]| {
        let mut connection = ControlClient::open(site.route(1), TestToken::NONE).unwrap();
        let bytes: Vec<u8> =
            messages.iter().flat_map(|message| frame::to_bytes(message).unwrap()).collect();
        let _ = connection.stream.write_all(&bytes); // the server may have closed it
        while let Ok(reply) = connection.recv() {
            let is_harmless = matches!(
                reply,
                ServerMessage::Welcome { challenge: Some(_), .. } | ServerMessage::Refused { .. }
            );
            assert!(is_harmless, "{reply:?} to {messages:?}");
        }
    };
    let (snapshot, probe) =
        (ClientMessage::Snapshot { port: 1 }, ClientMessage::Probe { client_ns: 1 });
    let proof = ClientMessage::Proof {
        proof: AuthProof([0; 32]),
        challenge: Challenge([0; 32]),
        grant: None,
    };
    let (begin, fetch) = (ClientMessage::Begin { at_ns: 0 }, ClientMessage::Fetch { offset: 0 });
    let messages =
        [snapshot, probe, proof, begin, fetch, ClientMessage::Stop, ClientMessage::Bye, hello()];
    for message in &messages {
        assert_no_grant(std::slice::from_ref(message));
        assert_no_grant(&[hello(), message.clone()]);
        assert_no_grant(&[hello(), message.clone(), messages[0].clone()]);
    }
    for token in [TestToken::NONE, TestToken([1; 16]), TestToken([0xff; 16])] {
        for kind in [ConnectionKind::Echo, ConnectionKind::Data] {
            let mut socket = site.route(1).connect(kind, token, (0, 0)).unwrap();
            let _ = socket.write_all(&[7; 1_000]); // the server may have closed it
            let received = socket.read(&mut [0; 1_000]).unwrap_or(0);
            assert_eq!(received, 0, "{kind:?} with {token}");
        }
    }
    site.wait_until_idle();
}

/// Sends a request on each of two streams, and expects nothing but refusals.
fn nothing_is_granted_over_quic(site: &AttackedServer, pair: [(ConnectionKind, u8); 2]) {
    let mut client = TlsClient::connect(site.route(2)).unwrap();
    let message = frame::to_bytes(&ClientMessage::Snapshot { port: 1 }).unwrap();
    let streams = pair.map(|(kind, token)| {
        let stream = client.open().unwrap();
        let preamble_bytes = preamble(kind, TestToken([token; 16])).to_bytes();
        client.write(stream, &[&preamble_bytes[..], &message].concat());
        stream
    });
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(800) {
        client.poll();
        for stream in &streams {
            let reply = client.read(*stream).unwrap_or_default();
            let text = String::from_utf8_lossy(&reply).into_owned();
            assert!(reply.is_empty() || text.contains("refused"), "{text}");
        }
        thread::sleep(Duration::from_millis(2));
    }
    client.close();
}

/// S7: the same over UDP and QUIC.
#[test]
fn without_the_secret_nothing_is_granted_over_udp_and_quic() {
    let site = start_guarded_server();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(site.route(1).server).unwrap();
    for number in 0..200 {
        let token = if number % 2 == 0 { TestToken::NONE } else { TestToken([number as u8; 16]) };
        socket.send(&EchoDatagram { token, number, sent_ns: 1 }.to_bytes()).unwrap();
    }
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let received = socket.recv(&mut [0; 100]);
    assert!(received.is_err(), "{received:?}");
    // A connection has two streams until it belongs to a test.
    for pair in [
        [(ConnectionKind::Echo, 0), (ConnectionKind::Echo, 1)],
        [(ConnectionKind::Data, 1), (ConnectionKind::Control, 0)],
    ] {
        nothing_is_granted_over_quic(&site, pair);
    }
    site.wait_until_idle();
}

/// S7: also on a dual-stack server, guesses of one IPv4 source do not count for another.
#[test]
fn a_dual_stack_server_counts_guesses_per_ipv4_source() {
    let site = start_with_secret(start_server_on_all_addresses);
    let guess = || {
        UnauthenticatedClient::connect(site.route(1))
            .unwrap()
            .guess("a guess of a secret of both")
            .unwrap()
    };
    let refusals: Vec<_> = (0..30).filter_map(|_| guess()).collect();
    assert!(
        refusals.iter().any(|reason| reason.contains("too many wrong secrets")),
        "{refusals:?}"
    );
    assert_eq!(UnauthenticatedClient::connect(site.route(2)).unwrap().guess(SECRET).unwrap(), None);
}
