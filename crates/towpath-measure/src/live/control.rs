//! The server's end of a control connection, as a state machine.

use std::time::Duration;

use super::limits::{Limits, Refusal};
use super::message::{FromClient, FromServer, Plan, Seen};
use super::preamble::Token;
use super::secret::{Binding, Challenge, Meeting, Proof, Secret, Side};
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
    /// Say how this host looks.
    Look {
        /// With who listens on this port.
        port: u16,
        /// All of it, or only what a stranger may know.
        whole: bool,
    },
    /// Remember that somebody has given a wrong secret.
    WrongSecret,
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
/// back with a token is in `Running` at once. Whoever says something out of turn is closed. Tests are
/// told apart by their [names](Token::name) here.
#[derive(Debug, Clone)]
pub struct Control {
    state: State,
    secret: Option<Secret>,
    challenge: Challenge,
    seen: Option<Seen>,
    datagrams: bool,
    quic: bool,
    /// Of the connection, if it is encrypted.
    binding: Option<Binding>,
    /// Strangers are told how this host looks.
    open: bool,
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
    /// A new connection. `challenge` is random and never used before. A connection with the name of a
    /// test belongs to one that exists: its client has lost the first one.
    pub fn new(test: Option<Token>, secret: Option<Secret>, challenge: Challenge) -> Self {
        let state = test.map_or(State::Greeting, State::Running);
        let (seen, datagrams, quic) = (None, false, false);
        let (binding, open, looks) = (None, false, 0);
        Self { state, secret, challenge, seen, datagrams, quic, binding, open, looks }
    }

    /// Over an encrypted connection: a secret is proved nowhere else.
    #[must_use]
    pub fn bound_to(self, binding: Option<Binding>) -> Self {
        Self { binding, ..self }
    }

    /// Whether strangers are told how this host looks, as those are who know its secret.
    #[must_use]
    pub fn open_to_strangers(self, open: bool) -> Self {
        Self { open, ..self }
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

    /// Ends the conversation.
    pub fn refuse(&mut self, refusal: Refusal) -> Vec<Act> {
        self.state = State::Closed;
        vec![Act::Say(refusal.into()), Act::Close]
    }

    /// There is room for the test.
    pub fn admitted(&mut self, token: Token) -> FromServer {
        self.state = State::Gathering(token.name());
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

    /// Whether a client knows the secret; who guesses learns nothing else.
    fn judge(&self, proof: Proof, client: Challenge) -> (State, Vec<Act>) {
        let refused = |why: &str, hint: &str| Act::Say(Refusal::new(why, hint).into());
        let Some(binding) = self.binding else {
            let why = "a secret is proved over an encrypted connection only";
            let hint = "use the same version of towpath on both hosts";
            return (State::Closed, vec![refused(why, hint), Act::Close]);
        };
        let meeting = Meeting { binding, server: self.challenge, client };
        let secret = self.secret.as_ref();
        let known = secret.filter(|secret| secret.accepts(Side::Client, &meeting, proof));
        if let Some(proof) = known.and_then(|secret| secret.prove(Side::Server, &meeting)) {
            return (State::Planning, vec![Act::Say(FromServer::Proved { proof })]);
        }
        let refused = refused("the secret is wrong", "use the server's --secret-file");
        (State::Closed, vec![Act::WrongSecret, refused, Act::Close])
    }

    fn step(&self, message: FromClient, limits: &Limits) -> (State, Vec<Act>) {
        match (self.state, message) {
            (State::Greeting, FromClient::Hello { towpath: _ }) => {
                let next = if self.secret.is_some() { State::Proving } else { State::Planning };
                (next, vec![Act::Say(self.welcome())])
            }
            (State::Proving, FromClient::Proof { proof, challenge }) => {
                self.judge(proof, challenge)
            }
            (State::Planning, FromClient::Plan(plan)) => match limits.admit(&plan) {
                Ok(scenario) => (State::Planning, vec![Act::Admit(Box::new((*plan, scenario)))]),
                Err(refusal) => (State::Closed, vec![Act::Say(refusal.into()), Act::Close]),
            },
            (State::Planning, FromClient::Look { port }) => {
                // Where there is a secret, it has been proved by now.
                let whole = self.secret.is_some() || self.open;
                (State::Planning, vec![Act::Look { port, whole }])
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
    const KEY: &str = "a key of 16 bytes";
    const BINDING: Binding = Binding([3; 32]);
    const CLIENT: Challenge = Challenge([8; 32]);

    fn control(secret: Option<&str>) -> Control {
        let secret = secret.map(|text| Secret::from_text(text.as_bytes()).unwrap());
        Control::new(None, secret, Challenge([9; 32])).bound_to(Some(BINDING))
    }

    /// What the client of a connection says to prove a secret.
    fn proof(secret: &str, binding: Binding, server: Challenge) -> FromClient {
        let meeting = Meeting { binding, server, client: CLIENT };
        let secret = Secret::from_text(secret.as_bytes()).unwrap();
        let proof = secret.prove(Side::Client, &meeting).unwrap();
        FromClient::Proof { proof, challenge: CLIENT }
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
        let name = TOKEN.name();
        assert_eq!(control.unbegun(), Some(name));
        let acts = control.on_message(FromClient::Begin { at_ns: 7 }, &limits);
        assert_eq!(acts, [Act::Begin(name, 7)]);
        assert_eq!(control.unbegun(), None);
        let acts = control.on_message(FromClient::Fetch { offset: 3 }, &limits);
        assert_eq!(acts, [Act::Deliver(name, 3)]);
        let acts = control.on_message(FromClient::Bye, &limits);
        assert_eq!(acts, [Act::Forget(name), Act::Close]);
        assert_eq!(control.on_message(FromClient::Bye, &limits), [Act::Close]);
    }

    #[test]
    fn without_the_secret_there_is_no_test() {
        let limits = Limits::default();
        let guess = Proof([0; 32]);
        for answer in [
            plan(),
            FromClient::Proof { proof: guess, challenge: CLIENT },
            FromClient::Begin { at_ns: 0 },
        ] {
            let mut control = control(Some(KEY));
            control.on_message(hello(), &limits);
            let wrong = matches!(answer, FromClient::Proof { .. });
            let acts = control.on_message(answer, &limits);
            assert_eq!(acts.last(), Some(&Act::Close));
            assert_eq!(acts.first() == Some(&Act::WrongSecret), wrong);
            assert_eq!(control.on_message(plan(), &limits), [Act::Close]);
        }
    }

    #[test]
    fn both_prove_the_secret_and_on_their_own_connection_only() {
        let limits = Limits::default();
        let mut control = control(Some(KEY));
        let acts = control.on_message(hello(), &limits);
        let [Act::Say(FromServer::Welcome { challenge: Some(server), .. })] = acts[..] else {
            panic!("{acts:?}");
        };
        // Somebody who stands between has another connection to each of them.
        let elsewhere = proof(KEY, Binding([4; 32]), server);
        let acts = control.clone().on_message(elsewhere, &limits);
        assert_eq!(acts.first(), Some(&Act::WrongSecret), "{acts:?}");
        let acts = control.clone().bound_to(None).on_message(proof(KEY, BINDING, server), &limits);
        let [Act::Say(FromServer::Refused { why, .. }), Act::Close] = &acts[..] else {
            panic!("{acts:?}")
        };
        assert!(why.contains("encrypted"), "{why}");
        let acts = control.on_message(proof(KEY, BINDING, server), &limits);
        let [Act::Say(FromServer::Proved { proof })] = acts[..] else { panic!("{acts:?}") };
        let meeting = Meeting { binding: BINDING, server, client: CLIENT };
        let secret = Secret::from_text(KEY.as_bytes()).unwrap();
        assert!(secret.accepts(Side::Server, &meeting, proof));
        assert!(matches!(&control.on_message(plan(), &limits)[..], [Act::Admit(_)]));
    }

    #[test]
    fn who_asks_how_the_server_looks_is_told_once_he_is_let_in() {
        const STRANGER: Act = Act::Look { port: 80, whole: false };
        let limits = Limits::default();
        let look = FromClient::Look { port: 80 };
        let mut open = control(None);
        assert_eq!(open.clone().on_message(look.clone(), &limits), [Act::Close]);
        open.on_message(hello(), &limits);
        for _ in 0..2 {
            assert_eq!(open.on_message(look.clone(), &limits), [STRANGER]);
        }
        let told = open.clone().open_to_strangers(true).on_message(look.clone(), &limits);
        assert_eq!(told, [Act::Look { port: 80, whole: true }]);
        assert!(matches!(&open.clone().on_message(plan(), &limits)[..], [Act::Admit(_)]));
        let answers = (0..100).filter(|_| open.on_message(look.clone(), &limits) == [STRANGER]);
        assert_eq!(answers.count() as u32 + 2, MOST_LOOKS);
        let mut closed = control(Some(KEY));
        closed.on_message(hello(), &limits);
        let acts = closed.clone().on_message(look.clone(), &limits);
        assert!(matches!(&acts[..], [Act::Say(FromServer::Refused { .. }), Act::Close]));
        closed.on_message(proof(KEY, BINDING, Challenge([9; 32])), &limits);
        assert_eq!(closed.on_message(look, &limits), [Act::Look { port: 80, whole: true }]);
    }

    #[test]
    fn who_comes_back_with_a_token_can_only_do_what_is_left_to_do() {
        let limits = Limits::default();
        let name = TOKEN.name();
        let back = Control::new(Some(name), None, Challenge([0; 32]));
        let acts = back.clone().on_message(FromClient::Fetch { offset: 0 }, &limits);
        assert_eq!(acts, [Act::Deliver(name, 0)]);
        for word in [hello(), plan(), FromClient::Begin { at_ns: 0 }] {
            assert_eq!(back.clone().on_message(word, &limits), [Act::Close]);
        }
    }
}
