//! The server's end of a control connection, as a state machine.

use std::time::Duration;

use super::limits::Limits;
use super::message::{FromClient, FromServer, Plan, Seen};
use super::preamble::Token;
use super::secret::{Challenge, Secret};
use crate::scenario::Scenario;

/// How long a client may be silent before its test runs: it opens connections meanwhile.
const GATHERING: Duration = Duration::from_secs(30);
/// How long it may be silent while nothing can be wrong: a test runs, or a result is kept.
const SILENCE: Duration = Duration::from_secs(3_600);
/// How often a client may ask how the server looks, which costs a few listings of the kernel.
const MOST_LOOKS: u32 = 16;

/// What the server has to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// Say this.
    Say(FromServer),
    /// Say what time it is.
    TellTime {
        /// What was asked with.
        client_ns: u64,
    },
    /// Make room for a test; then call [`Control::admitted`], or say why not and close.
    Admit(Box<(Plan, Scenario)>),
    /// Say how this host looks from inside, with who listens on a port.
    Look(u16),
    /// Start the traffic of a test at this time of the server's clock.
    Begin(Token, u64),
    /// End the traffic of a test at once.
    Stop(Token),
    /// End the traffic of a test at this time of the server's clock, with what was begun before.
    End(Token, u64),
    /// Say [`FromServer::Part`]s of a test's result from here on, or [`FromServer::Pending`].
    Deliver(Token, u64),
    /// The result of a test is not needed any more.
    Forget(Token),
    /// Close the connection.
    Close,
}

/// The server's end of a control connection.
///
/// `Greeting` ─hello▶ (`Proving` ─proof▶) `Planning` ─plan▶ `Gathering` ─begin▶ `Running`. Who comes
/// back with a token is in `Running` at once. Whoever says something out of turn is closed.
#[derive(Debug, Clone)]
pub struct Control {
    state: State,
    secret: Option<Secret>,
    challenge: Challenge,
    seen: Option<Seen>,
    datagrams: bool,
    quic: bool,
    /// Questions how this host looks.
    looks: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Greeting,
    Proving,
    Planning,
    Gathering(Token),
    Running(Token),
    Closed,
}

impl Control {
    /// A new connection. `challenge` is random and never used before. A connection with a token
    /// belongs to a test that exists: its client has lost the first one.
    pub fn new(token: Option<Token>, secret: Option<Secret>, challenge: Challenge) -> Self {
        let state = token.map_or(State::Greeting, State::Running);
        Self { state, secret, challenge, seen: None, datagrams: false, quic: false, looks: 0 }
    }

    /// What the client is told with the greeting: what was seen of its connection, and whether, on
    /// this port, datagrams are sent back and QUIC is spoken.
    #[must_use]
    pub fn telling(self, seen: Option<Seen>, datagrams: bool, quic: bool) -> Self {
        Self { seen, datagrams, quic, ..self }
    }

    /// How long the client may be silent now.
    pub fn patience(&self, limits: &Limits) -> Duration {
        match self.state {
            State::Greeting | State::Proving | State::Planning => limits.patience,
            State::Gathering(_) => GATHERING,
            State::Running(_) | State::Closed => SILENCE,
        }
    }

    /// The test that dies with this connection, because it has not begun.
    pub fn unbegun(&self) -> Option<Token> {
        match self.state {
            State::Gathering(token) => Some(token),
            State::Greeting
            | State::Proving
            | State::Planning
            | State::Running(_)
            | State::Closed => None,
        }
    }

    /// The test whose client this is, once its traffic has begun.
    pub fn running(&self) -> Option<Token> {
        match self.state {
            State::Running(token) => Some(token),
            State::Greeting
            | State::Proving
            | State::Planning
            | State::Gathering(_)
            | State::Closed => None,
        }
    }

    /// There is room for the test.
    pub fn admitted(&mut self, token: Token) -> FromServer {
        self.state = State::Gathering(token);
        FromServer::Accepted { token }
    }

    /// The client said something.
    pub fn on_message(&mut self, message: FromClient, limits: &Limits) -> Vec<Act> {
        self.looks =
            self.looks.saturating_add(u32::from(matches!(message, FromClient::Look { .. })));
        if self.looks > MOST_LOOKS {
            self.state = State::Closed;
            return vec![Act::Close];
        }
        let (state, acts) = self.step(message, limits);
        self.state = state;
        acts
    }

    fn welcome(&self) -> FromServer {
        let challenge = self.secret.as_ref().map(|_| self.challenge);
        let towpath = env!("CARGO_PKG_VERSION").to_owned();
        let Self { seen, datagrams, quic, .. } = *self;
        FromServer::Welcome { towpath, challenge, seen, datagrams, quic }
    }

    fn step(&self, message: FromClient, limits: &Limits) -> (State, Vec<Act>) {
        match (self.state, message) {
            (State::Greeting, FromClient::Hello { towpath: _ }) => {
                let next = if self.secret.is_some() { State::Proving } else { State::Planning };
                (next, vec![Act::Say(self.welcome())])
            }
            (State::Proving, FromClient::Proof { proof }) => {
                let knows = |secret: &Secret| secret.accepts(self.challenge, proof);
                if self.secret.as_ref().is_some_and(knows) {
                    (State::Planning, Vec::new())
                } else {
                    // Who guesses learns nothing else.
                    let why = "the secret is wrong".to_owned();
                    let hint = Some("use the server's --secret-file".to_owned());
                    (State::Closed, vec![Act::Say(FromServer::Refused { why, hint }), Act::Close])
                }
            }
            (State::Planning, FromClient::Plan(plan)) => match limits.admit(&plan) {
                Ok(scenario) => (State::Planning, vec![Act::Admit(Box::new((*plan, scenario)))]),
                Err(refusal) => (State::Closed, vec![Act::Say(refusal.into()), Act::Close]),
            },
            (State::Planning, FromClient::Look { port }) => {
                (State::Planning, vec![Act::Look(port)])
            }
            (State::Proving, FromClient::Plan(_) | FromClient::Look { .. }) => {
                let why = "this server wants a secret".to_owned();
                let hint = Some("give it with --secret-file".to_owned());
                (State::Closed, vec![Act::Say(FromServer::Refused { why, hint }), Act::Close])
            }
            (State::Gathering(token), FromClient::Begin { at_ns }) => {
                (State::Running(token), vec![Act::Begin(token, at_ns)])
            }
            (
                state @ (State::Gathering(_) | State::Running(_)),
                FromClient::Probe { client_ns },
            ) => (state, vec![Act::TellTime { client_ns }]),
            (state @ State::Running(token), FromClient::Stop) => (state, vec![Act::Stop(token)]),
            (state @ State::Running(token), FromClient::End { at_ns }) => {
                (state, vec![Act::End(token, at_ns)])
            }
            (state @ State::Running(token), FromClient::Fetch { offset }) => {
                (state, vec![Act::Deliver(token, offset)])
            }
            (State::Running(token), FromClient::Bye) => {
                (State::Closed, vec![Act::Forget(token), Act::Close])
            }
            (
                _,
                FromClient::Hello { .. }
                | FromClient::Proof { .. }
                | FromClient::Plan(_)
                | FromClient::Look { .. }
                | FromClient::Probe { .. }
                | FromClient::Begin { .. }
                | FromClient::Stop
                | FromClient::End { .. }
                | FromClient::Fetch { .. }
                | FromClient::Bye,
            ) => (State::Closed, vec![Act::Close]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: Token = Token([5; 16]);

    fn control(secret: Option<&str>) -> Control {
        let secret = secret.and_then(|text| Secret::from_text(text.as_bytes()));
        Control::new(None, secret, Challenge([9; 32]))
    }

    fn hello() -> FromClient {
        FromClient::Hello { towpath: "0.1".into() }
    }

    fn plan() -> FromClient {
        let scenario = "name = \"t\"\n[hosts.client]\n[hosts.server]\n[paths.p]\n\
            between = [\"client\", \"server\"]\n[[flows]]\nfrom = \"client\"\nto = \"server\"\n\
            pattern = \"iperf\"\n";
        FromClient::Plan(Box::new(Plan {
            scenario: scenario.to_owned(),
            transport: crate::scenario::Transport::Mptcp,
            settings: super::super::Settings::default(),
        }))
    }

    #[test]
    fn a_test_goes_from_hello_to_bye() {
        let limits = Limits::default();
        let mut control = control(None);
        let acts = control.on_message(hello(), &limits);
        assert!(matches!(&acts[..], [Act::Say(FromServer::Welcome { challenge: None, .. })]));
        let acts = control.on_message(plan(), &limits);
        assert!(matches!(&acts[..], [Act::Admit(_)]));
        control.admitted(TOKEN);
        assert_eq!(control.unbegun(), Some(TOKEN));
        let acts = control.on_message(FromClient::Begin { at_ns: 7 }, &limits);
        assert_eq!(acts, [Act::Begin(TOKEN, 7)]);
        assert_eq!(control.unbegun(), None);
        let acts = control.on_message(FromClient::Fetch { offset: 3 }, &limits);
        assert_eq!(acts, [Act::Deliver(TOKEN, 3)]);
        let acts = control.on_message(FromClient::Bye, &limits);
        assert_eq!(acts, [Act::Forget(TOKEN), Act::Close]);
        assert_eq!(control.on_message(FromClient::Bye, &limits), [Act::Close]);
    }

    #[test]
    fn without_the_secret_there_is_no_test() {
        let limits = Limits::default();
        for answer in [
            plan(),
            FromClient::Proof { proof: super::super::secret::Proof([0; 32]) },
            FromClient::Begin { at_ns: 0 },
        ] {
            let mut control = control(Some("key"));
            control.on_message(hello(), &limits);
            let acts = control.on_message(answer, &limits);
            assert_eq!(acts.last(), Some(&Act::Close));
            assert_eq!(control.on_message(plan(), &limits), [Act::Close]);
        }
        let mut control = control(Some("key"));
        let acts = control.on_message(hello(), &limits);
        let [Act::Say(FromServer::Welcome { challenge: Some(challenge), .. })] = &acts[..] else {
            panic!("{acts:?}");
        };
        let proof = Secret::from_text(b"key").unwrap().prove(*challenge).unwrap();
        assert_eq!(control.on_message(FromClient::Proof { proof }, &limits), []);
        assert!(matches!(&control.on_message(plan(), &limits)[..], [Act::Admit(_)]));
    }

    #[test]
    fn who_asks_how_the_server_looks_is_told_once_he_is_let_in() {
        let limits = Limits::default();
        let look = FromClient::Look { port: 80 };
        let mut open = control(None);
        assert_eq!(open.clone().on_message(look.clone(), &limits), [Act::Close]);
        open.on_message(hello(), &limits);
        for _ in 0..2 {
            assert_eq!(open.on_message(look.clone(), &limits), [Act::Look(80)]);
        }
        assert!(matches!(&open.clone().on_message(plan(), &limits)[..], [Act::Admit(_)]));
        let answers =
            (0..100).filter(|_| open.on_message(look.clone(), &limits) == [Act::Look(80)]);
        assert_eq!(answers.count() as u32 + 2, MOST_LOOKS);
        let mut closed = control(Some("key"));
        closed.on_message(hello(), &limits);
        let acts = closed.on_message(look, &limits);
        assert!(matches!(&acts[..], [Act::Say(FromServer::Refused { .. }), Act::Close]));
    }

    #[test]
    fn who_comes_back_with_a_token_can_only_do_what_is_left_to_do() {
        let limits = Limits::default();
        let back = Control::new(Some(TOKEN), None, Challenge([0; 32]));
        let acts = back.clone().on_message(FromClient::Fetch { offset: 0 }, &limits);
        assert_eq!(acts, [Act::Deliver(TOKEN, 0)]);
        for word in [hello(), plan(), FromClient::Begin { at_ns: 0 }] {
            assert_eq!(back.clone().on_message(word, &limits), [Act::Close]);
        }
    }
}
