//! Unauthenticated clients of a server with a secret.

use std::io::{self, Read, Write};
use std::net::UdpSocket;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use towpath_measure::live::datagram::EchoDatagram;
use towpath_measure::live::secret::{
    AuthProof, AuthRole, AuthTranscript, Challenge, ChannelBinding,
};
use towpath_measure::live::{
    ClientMessage, ConnectionKind, FrameDecoder, Secret, ServerMessage, TestToken, frame,
};
use towpath_quic::Trust;
use towpath_quic::tls::TlsSession;

use super::client::TlsClient;
use super::{ControlClient, everywhere, hello, preamble};
use crate::program::TestDir;
use crate::security::clients::hostile::TestConnection;
use crate::security::fixture::{AttackedServer, times};
use crate::security::unauthenticated::ClientRoute;

const SECRET: &str = "a secret of both hosts";

/// Starts a server with a secret. The file's folder must live until the server has read it.
fn guarded() -> AttackedServer {
    with_secret(AttackedServer::new)
}

fn with_secret(start: impl Fn(&[&str]) -> AttackedServer) -> AttackedServer {
    let folder = TestDir::new();
    folder.write_secret("secret.txt", SECRET);
    let file = folder.work().join("secret.txt");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    start(&["--secret-file", file.to_str().unwrap()])
}

/// Unauthenticated client on an encrypted connection that has sent its hello.
struct UnauthenticatedClient {
    wire: TestConnection,
    frames: FrameDecoder,
    challenge: Challenge,
}

impl UnauthenticatedClient {
    fn connect(route: ClientRoute) -> io::Result<Self> {
        let socket = route.connect(ConnectionKind::Tls, TestToken::NONE, (0, 0))?;
        let session = TlsSession::client(&Trust::Any).unwrap();
        let mut wire = TestConnection::secure(socket, session)?;
        wire.send_raw(&preamble(ConnectionKind::Control, TestToken::NONE).to_bytes())?;
        let mut frames = FrameDecoder::default();
        wire.send(&hello())?;
        match wire.recv(&mut frames)? {
            Some(ServerMessage::Welcome { challenge: Some(challenge), .. }) => {
                Ok(Self { wire, frames, challenge })
            }
            other => Err(io::Error::other(format!("{other:?}"))),
        }
    }

    fn transcript(&self, client: Challenge) -> AuthTranscript {
        let binding = ChannelBinding(self.wire.binding());
        AuthTranscript { binding, server: self.challenge, client }
    }

    fn prove(
        &mut self,
        proof: AuthProof,
        challenge: Challenge,
    ) -> io::Result<Option<ServerMessage>> {
        self.wire.send(&ClientMessage::Proof { proof, challenge })?;
        self.wire.recv(&mut self.frames)
    }

    /// Sends a secret. Returns the reason of a refusal; `None` if it was accepted.
    fn guess(&mut self, secret: &str) -> io::Result<Option<String>> {
        let client = Challenge([5; 32]);
        let secret = Secret::from_text(secret.as_bytes()).unwrap();
        let proof = secret.prove(AuthRole::Client, &self.transcript(client)).unwrap();
        match self.prove(proof, client)? {
            Some(ServerMessage::Proved { .. }) => Ok(None),
            Some(ServerMessage::Refused { reason: why, .. }) => Ok(Some(why)),
            other => Err(io::Error::other(format!("{other:?}"))),
        }
    }
}

/// Returns the maximum of checked guesses in that time.
///
/// Three are free, then waits of 1 s, 2 s, 4 s follow. One more, since client and server read their
/// clocks at different times.
fn max_attempts(took: Duration) -> usize {
    let waits = (1..).scan(0, |sum, n| {
        *sum += 1_u64 << (n - 1);
        Some(*sum)
    });
    3 + waits.take_while(|at| *at <= took.as_secs()).count() + 1
}

/// S7: simultaneous guesses on connections that were opened earlier do not beat sequential ones.
#[test]
fn parallel_guesses_are_not_faster() {
    let site = guarded();
    let began = Instant::now();
    let mut crowd: Vec<_> = (0..times(40, 150))
        .filter_map(|_| UnauthenticatedClient::connect(site.route(1)).ok())
        .collect();
    assert!(crowd.len() >= 20, "{} came in", crowd.len());
    let together = Barrier::new(crowd.len());
    let answers: Vec<_> = thread::scope(|scope| {
        let guessing: Vec<_> = crowd
            .iter_mut()
            .map(|client| {
                scope.spawn(|| {
                    together.wait();
                    client.guess("a guess of a secret of both")
                })
            })
            .collect();
        guessing.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let took = began.elapsed();
    let is_wrong = |answer: &&io::Result<Option<String>>| matches!(answer, Ok(Some(why)) if why.contains("is wrong"));
    let looked_at = answers.iter().filter(is_wrong).count();
    assert!(looked_at >= 1, "{answers:?}");
    assert!(looked_at <= max_attempts(took), "{looked_at} guesses were looked at in {took:?}");
    assert!(site.running.stderr().contains("127.1.0.1"), "{}", site.running.stderr());
    // Other sources do not wait.
    assert_eq!(UnauthenticatedClient::connect(site.route(2)).unwrap().guess(SECRET).unwrap(), None);
}

/// S7: hundreds of clients without the secret do not block a source with it.
#[test]
fn guesses_from_many_sources_do_not_block_authenticated_clients() {
    let site = guarded();
    thread::scope(|scope| {
        let guessing: Vec<_> = (0..4)
            .map(|part| {
                let site = &site;
                scope.spawn(move || {
                    let mut wrong = 0;
                    for n in 0..times(15, 150) as u16 {
                        let way = site.route(10 + 4 * n + part);
                        for _ in 0..4 {
                            let Ok(mut client) = UnauthenticatedClient::connect(way) else {
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
        let wrong: usize = guessing.into_iter().map(|one| one.join().unwrap()).sum();
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
    let site = guarded();
    let secret = Secret::from_text(SECRET.as_bytes()).unwrap();
    let mine = Challenge([5; 32]);
    let refused = |guest: &mut UnauthenticatedClient, proof, challenge| {
        let said = guest.prove(proof, challenge).unwrap();
        assert!(
            matches!(&said, Some(ServerMessage::Refused { reason, .. }) if reason.contains("wrong")),
            "{said:?}"
        );
        // The server ignores further messages.
        let _ = guest.wire.send(&ClientMessage::Snapshot { port: 1 });
        assert!(!matches!(guest.wire.recv::<ServerMessage>(&mut guest.frames), Ok(Some(_))));
    };
    let mut first = UnauthenticatedClient::connect(site.route(1)).unwrap();
    let meeting = first.transcript(mine);
    let good = secret.prove(AuthRole::Client, &meeting).unwrap();
    let Some(ServerMessage::Proved { proof: theirs }) = first.prove(good, mine).unwrap() else {
        panic!("the right proof is refused");
    };
    // The same proof on another connection, and another connection's challenge or keys with its
    // own.
    let mut second = UnauthenticatedClient::connect(site.route(2)).unwrap();
    assert!(second.challenge != first.challenge, "a challenge was used twice");
    refused(&mut second, good, mine);
    let mut third = UnauthenticatedClient::connect(site.route(3)).unwrap();
    let moved = AuthTranscript { binding: meeting.binding, ..third.transcript(mine) };
    refused(&mut third, secret.prove(AuthRole::Client, &moved).unwrap(), mine);
    let mut fourth = UnauthenticatedClient::connect(site.route(4)).unwrap();
    let old = AuthTranscript { server: meeting.server, ..fourth.transcript(mine) };
    refused(&mut fourth, secret.prove(AuthRole::Client, &old).unwrap(), mine);
    // The server's own proof, sent back or computed for it.
    let mut fifth = UnauthenticatedClient::connect(site.route(5)).unwrap();
    refused(&mut fifth, theirs, mine);
    let mut sixth = UnauthenticatedClient::connect(site.route(6)).unwrap();
    let reflected = AuthTranscript { client: sixth.challenge, ..sixth.transcript(mine) };
    let reflected = secret.prove(AuthRole::Server, &reflected).unwrap();
    let challenge = sixth.challenge;
    refused(&mut sixth, reflected, challenge);
    // A second proof on an authenticated connection ends it.
    let again = first.prove(good, mine);
    assert!(!matches!(again, Ok(Some(ServerMessage::Proved { .. }))), "{again:?}");
}

/// S7: without the secret nothing comes back over TCP: no echo, no snapshot, no test.
///
/// This holds for any omitted message.
#[test]
fn without_the_secret_nothing_is_granted_over_tcp() {
    let site = guarded();
    let refusing = |words: &[ClientMessage]| {
        let mut line = ControlClient::open(site.route(1), TestToken::NONE).unwrap();
        let all: Vec<u8> = words.iter().flat_map(|word| frame::to_bytes(word).unwrap()).collect();
        let _ = line.stream.write_all(&all); // the server may have closed it
        while let Ok(heard) = line.recv() {
            let harmless = matches!(
                heard,
                ServerMessage::Welcome { challenge: Some(_), .. } | ServerMessage::Refused { .. }
            );
            assert!(harmless, "{heard:?} to {words:?}");
        }
    };
    let (snapshot, probe) =
        (ClientMessage::Snapshot { port: 1 }, ClientMessage::Probe { client_ns: 1 });
    let proof = ClientMessage::Proof { proof: AuthProof([0; 32]), challenge: Challenge([0; 32]) };
    let (begin, fetch) = (ClientMessage::Begin { at_ns: 0 }, ClientMessage::Fetch { offset: 0 });
    let all =
        [snapshot, probe, proof, begin, fetch, ClientMessage::Stop, ClientMessage::Bye, hello()];
    for word in &all {
        refusing(std::slice::from_ref(word));
        refusing(&[hello(), word.clone()]);
        refusing(&[hello(), word.clone(), all[0].clone()]);
    }
    for token in [TestToken::NONE, TestToken([1; 16]), TestToken([0xff; 16])] {
        for kind in [ConnectionKind::Echo, ConnectionKind::Data] {
            let mut socket = site.route(1).connect(kind, token, (0, 0)).unwrap();
            let _ = socket.write_all(&[7; 1_000]); // the server may have closed it
            let heard = socket.read(&mut [0; 1_000]).unwrap_or(0);
            assert_eq!(heard, 0, "{kind:?} with {token}");
        }
    }
    site.wait_until_idle();
}

/// S7: the same over UDP and QUIC.
#[test]
fn without_the_secret_nothing_is_granted_over_udp_and_quic() {
    let site = guarded();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(site.route(1).server).unwrap();
    for number in 0..200 {
        let token = if number % 2 == 0 { TestToken::NONE } else { TestToken([number as u8; 16]) };
        socket.send(&EchoDatagram { token, number, sent_ns: 1 }.to_bytes()).unwrap();
    }
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let heard = socket.recv(&mut [0; 100]);
    assert!(heard.is_err(), "{heard:?}");
    let mut client = TlsClient::connect(site.route(2)).unwrap();
    let word = frame::to_bytes(&ClientMessage::Snapshot { port: 1 }).unwrap();
    let streams: Vec<_> = [
        (ConnectionKind::Echo, 0),
        (ConnectionKind::Echo, 1),
        (ConnectionKind::Data, 1),
        (ConnectionKind::Control, 0),
    ]
    .into_iter()
    .map(|(kind, token)| {
        let stream = client.open().unwrap();
        let first = preamble(kind, TestToken([token; 16])).to_bytes();
        client.write(stream, &[&first[..], &word].concat());
        stream
    })
    .collect();
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(800) {
        client.turn();
        for stream in &streams {
            let said = client.read(*stream).unwrap_or_default();
            let text = String::from_utf8_lossy(&said).into_owned();
            assert!(said.is_empty() || text.contains("refused"), "{text}");
        }
        thread::sleep(Duration::from_millis(2));
    }
    client.close();
    site.wait_until_idle();
}

/// S7: also on a dual-stack server, guesses of one IPv4 source do not count for another.
#[test]
fn a_dual_stack_server_counts_guesses_per_ipv4_source() {
    let site = with_secret(everywhere);
    let guess = || {
        UnauthenticatedClient::connect(site.route(1))
            .unwrap()
            .guess("a guess of a secret of both")
            .unwrap()
    };
    let answers: Vec<_> = (0..30).filter_map(|_| guess()).collect();
    assert!(answers.iter().any(|why| why.contains("too many wrong secrets")), "{answers:?}");
    assert_eq!(UnauthenticatedClient::connect(site.route(2)).unwrap().guess(SECRET).unwrap(), None);
}
