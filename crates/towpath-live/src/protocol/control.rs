//! Server side of a control connection, as a state machine.

use std::time::Duration;

use towpath_run::token::TestToken;
use towpath_scenario::Scenario;

use super::grant::{ProvedGrant, ServerAccess};
use super::limits::{AdmissionError, ServerLimits};
use super::message::{ClientMessage, ObservedProtocol, ServerMessage, TestPlan};
use super::secret::{AuthProof, AuthRole, AuthTranscript, Challenge, ChannelBinding, Secret};

/// Maximum silence of a client before its test runs; it opens connections meanwhile.
const SETUP_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum silence while silence is normal: a test runs, or a result is retained.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3_600);
/// Estimated time until the collector has sent the key of a server that has just started.
const KEY_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of snapshot requests per connection; each costs a few kernel dumps.
const MAX_SNAPSHOT_REQUESTS: u32 = 16;

/// Action that the server must take next.
#[derive(Debug, Clone, PartialEq)]
pub enum ControlAction {
    /// Send this message to the client.
    Send(ServerMessage),
    /// Send [`ServerMessage::Clock`] with the current time.
    SendClock {
        /// Client's clock from the probe, in nanoseconds.
        client_ns: u64,
    },
    /// Admit a test; then call [`ControlSession::on_admitted`], or refuse and close.
    Admit(Box<(TestPlan, Scenario)>),
    /// Send a snapshot of this host.
    Snapshot {
        /// Port whose listener to include.
        port: u16,
        /// True for a complete snapshot, false for one redacted for unauthenticated clients.
        complete: bool,
    },
    /// Record a failed authentication attempt.
    AuthFailed,
    /// Start the traffic of a test at this time of the server's clock.
    Begin(TestToken, u64),
    /// End the traffic of a test at once.
    Stop(TestToken),
    /// End the traffic of a test at this time of the server's clock; started requests complete.
    End(TestToken, u64),
    /// Send [`ServerMessage::Part`]s of the result from this offset, or [`ServerMessage::Pending`].
    Deliver(TestToken, u64),
    /// Drop the result of a test.
    Forget(TestToken),
    /// Close the control connection.
    Close,
}

/// Admission of clients with access grants on one connection.
#[derive(Debug, Clone)]
pub struct GrantPolicy {
    /// Name and key of the server; `None` until its collector has sent them.
    pub access: Option<ServerAccess>,
    /// True if a client needs a grant or the server's own secret.
    pub is_required: bool,
    /// Time in seconds since 1970, for the expiry of grants.
    pub now_s: u64,
}

/// Reason why a proof is not accepted.
enum ProofError {
    /// The proof is wrong, which counts as a failed attempt.
    Wrong(AdmissionError),
    Refused(AdmissionError),
}

/// Server side of a control connection.
///
/// `Greeting` ─hello▶ (`Proving` or `Open` ─proof▶) `Planning` ─plan▶ `Gathering` ─begin▶ `Running`. A client
/// may omit the proof in `Open`. A client that reconnects with a token starts in `Running`. A message out of order closes the connection.
/// Tests are identified by their [public IDs](TestToken::public_id) here.
#[derive(Debug, Clone)]
pub struct ControlSession {
    state: ControlState,
    secret: Option<Secret>,
    challenge: Challenge,
    observed: Option<ObservedProtocol>,
    datagrams: bool,
    quic: bool,
    /// Channel binding of the connection, if it is encrypted.
    binding: Option<ChannelBinding>,
    /// Set if unauthenticated clients get complete snapshots.
    public_diagnostics: bool,
    /// Number of snapshot requests received.
    snapshot_requests: u32,
    /// Admission of clients with access grants; `None` if there is none.
    grants: Option<GrantPolicy>,
    /// Grant that the client has proved.
    proved_grant: Option<ProvedGrant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ControlState {
    Greeting,
    /// The client must prove a secret.
    Proving,
    /// The client may prove the secret of a grant, and need not.
    Open,
    Planning,
    SetUp(TestToken),
    Running(TestToken),
    Closed,
}

impl ControlSession {
    /// Creates the state of a new connection; `challenge` must be random and unused.
    ///
    /// `test` is the public ID of an existing test whose client lost its first connection.
    pub fn new(test: Option<TestToken>, secret: Option<Secret>, challenge: Challenge) -> Self {
        let state = test.map_or(ControlState::Greeting, ControlState::Running);
        let (observed, datagrams, quic) = (None, false, false);
        let (binding, public_diagnostics, snapshot_requests) = (None, false, 0);
        Self {
            state,
            secret,
            challenge,
            observed,
            datagrams,
            quic,
            binding,
            public_diagnostics,
            snapshot_requests,
            grants: None,
            proved_grant: None,
        }
    }

    /// Sets the admission of clients with access grants.
    #[must_use]
    pub fn with_grants(self, grants: Option<GrantPolicy>) -> Self {
        Self { grants, ..self }
    }

    /// Returns the grant that the client has proved.
    pub fn proved_grant(&self) -> Option<&ProvedGrant> {
        self.proved_grant.as_ref()
    }

    /// Sets the channel binding of an encrypted connection; authentication requires one.
    #[must_use]
    pub fn with_binding(self, binding: Option<ChannelBinding>) -> Self {
        Self { binding, ..self }
    }

    /// Sets whether unauthenticated clients get complete snapshots, as authenticated ones do.
    #[must_use]
    pub fn with_public_diagnostics(self, public_diagnostics: bool) -> Self {
        Self { public_diagnostics, ..self }
    }

    /// Sets the greeting: the observed protocol, and support for datagram echo and QUIC on this
    /// port.
    #[must_use]
    pub fn with_greeting(
        self,
        observed: Option<ObservedProtocol>,
        datagrams: bool,
        quic: bool,
    ) -> Self {
        Self { observed, datagrams, quic, ..self }
    }

    /// Returns the maximum time that the client may be silent in this state.
    pub fn idle_timeout(&self, limits: &ServerLimits) -> Duration {
        match self.state {
            ControlState::Greeting
            | ControlState::Proving
            | ControlState::Open
            | ControlState::Planning => limits.preamble_timeout,
            ControlState::SetUp(_) => SETUP_TIMEOUT,
            ControlState::Running(_) | ControlState::Closed => IDLE_TIMEOUT,
        }
    }

    /// Returns the test that is aborted when this connection closes, because it has not begun.
    pub fn pending_test(&self) -> Option<TestToken> {
        match self.state {
            ControlState::SetUp(token) => Some(token),
            ControlState::Greeting
            | ControlState::Proving
            | ControlState::Open
            | ControlState::Planning
            | ControlState::Running(_)
            | ControlState::Closed => None,
        }
    }

    /// Returns the test of this client, once its traffic has begun.
    pub fn running_test(&self) -> Option<TestToken> {
        match self.state {
            ControlState::Running(token) => Some(token),
            ControlState::Greeting
            | ControlState::Proving
            | ControlState::Open
            | ControlState::Planning
            | ControlState::SetUp(_)
            | ControlState::Closed => None,
        }
    }

    /// Refuses the client and closes the connection.
    pub fn refuse(&mut self, refusal: AdmissionError) -> Vec<ControlAction> {
        self.state = ControlState::Closed;
        vec![ControlAction::Send(refusal.into()), ControlAction::Close]
    }

    /// Handles the admission of the test; returns the reply.
    pub fn on_admitted(&mut self, token: TestToken) -> ServerMessage {
        self.state = ControlState::SetUp(token.public_id());
        ServerMessage::Accepted { token }
    }

    /// Handles a message from the client.
    pub fn on_message(
        &mut self,
        message: ClientMessage,
        limits: &ServerLimits,
    ) -> Vec<ControlAction> {
        self.snapshot_requests = self
            .snapshot_requests
            .saturating_add(u32::from(matches!(message, ClientMessage::Snapshot { .. })));
        if self.snapshot_requests > MAX_SNAPSHOT_REQUESTS {
            self.state = ControlState::Closed;
            return vec![ControlAction::Close];
        }
        let (state, actions) = self.step(message, limits);
        self.state = state;
        actions
    }

    /// Returns true if a client without any secret gets no test.
    pub(super) fn requires_proof(&self) -> bool {
        self.secret.is_some() || self.grants.as_ref().is_some_and(|grants| grants.is_required)
    }

    fn welcome(&self) -> ServerMessage {
        let challenge = self.requires_proof().then_some(self.challenge);
        let grant_challenge = self.grants.as_ref().map(|_| self.challenge);
        let towpath = env!("CARGO_PKG_VERSION").to_owned();
        let Self { observed, datagrams, quic, .. } = *self;
        ServerMessage::Welcome { towpath, challenge, grant_challenge, observed, datagrams, quic }
    }

    /// Returns the refusal of a client that proves nothing.
    fn missing_proof(&self) -> AdmissionError {
        if self.secret.is_some() {
            return AdmissionError::new("this server requires a secret", "add --secret-file FILE");
        }
        AdmissionError::new(
            "this server admits devices of a collector only",
            "join the collector (`towpath agent join`), or measure towards another server",
        )
    }

    /// Handles a client's proof. A wrong guess reveals nothing about the secret.
    fn on_proof(
        &mut self,
        (proof, client_challenge): (AuthProof, Challenge),
        grant: Option<&str>,
    ) -> (ControlState, Vec<ControlAction>) {
        let (mut actions, refusal) = match self.verify_proof(proof, client_challenge, grant) {
            Ok((proof, proved_grant)) => {
                self.proved_grant = proved_grant;
                let proved = ControlAction::Send(ServerMessage::Proved { proof });
                return (ControlState::Planning, vec![proved]);
            }
            Err(ProofError::Wrong(refusal)) => (vec![ControlAction::AuthFailed], refusal),
            Err(ProofError::Refused(refusal)) => (Vec::new(), refusal),
        };
        actions.extend([ControlAction::Send(refusal.into()), ControlAction::Close]);
        (ControlState::Closed, actions)
    }

    /// Verifies a client's proof; returns the server's proof and the grant.
    fn verify_proof(
        &self,
        proof: AuthProof,
        client_challenge: Challenge,
        grant: Option<&str>,
    ) -> Result<(AuthProof, Option<ProvedGrant>), ProofError> {
        let binding = self.binding.ok_or_else(|| {
            ProofError::Refused(AdmissionError::new(
                "a secret requires an encrypted connection",
                "use the same version of towpath on both hosts",
            ))
        })?;
        let transcript =
            AuthTranscript { binding, server: self.challenge, client: client_challenge };
        let verify = |secret: &Secret| {
            let is_right = secret.accepts(AuthRole::Client, &transcript, proof);
            is_right.then(|| secret.prove(AuthRole::Server, &transcript)).flatten()
        };
        let Some(text) = grant else {
            let secret =
                self.secret.as_ref().ok_or_else(|| ProofError::Refused(self.missing_proof()))?;
            let wrong =
                AdmissionError::new("the secret is wrong", "use the server's --secret-file");
            return Ok((verify(secret).ok_or(ProofError::Wrong(wrong))?, None));
        };
        let Some(grants) = &self.grants else {
            let hint = "start it with --register, or use --secret-file";
            let refusal = AdmissionError::new("it admits no devices of a collector", hint);
            return Err(ProofError::Refused(refusal));
        };
        let Some(access) = &grants.access else {
            let reason = "its collector has not sent the key for access grants yet";
            return Err(ProofError::Refused(AdmissionError::busy(reason, KEY_TIMEOUT)));
        };
        access.verify_name(text).map_err(ProofError::Refused)?;
        let wrong = || {
            let reason = "the secret of the access grant is wrong";
            let hint = "request new access from the collector; `towpath agent` does";
            ProofError::Wrong(AdmissionError::new(reason, hint))
        };
        let secret = access.secret(text).ok_or_else(wrong)?;
        let server_proof = verify(&secret).ok_or_else(wrong)?;
        let proved = access.accept(text, grants.now_s).map_err(ProofError::Refused)?;
        Ok((server_proof, Some(proved)))
    }

    fn step(
        &mut self,
        message: ClientMessage,
        limits: &ServerLimits,
    ) -> (ControlState, Vec<ControlAction>) {
        use {ClientMessage as Message, ControlAction as Action, ControlState as State};

        match (self.state, message) {
            (State::Greeting, Message::Hello { towpath: _ }) => {
                let next_state = if self.requires_proof() {
                    State::Proving
                } else if self.grants.is_some() {
                    State::Open
                } else {
                    State::Planning
                };
                (next_state, vec![Action::Send(self.welcome())])
            }
            (State::Proving | State::Open, Message::Proof { proof, challenge, grant }) => {
                self.on_proof((proof, challenge), grant.as_deref())
            }
            (State::Open | State::Planning, Message::Plan(plan)) => match limits.admit(&plan) {
                Ok(scenario) => (State::Planning, vec![Action::Admit(Box::new((*plan, scenario)))]),
                Err(refusal) => (State::Closed, vec![Action::Send(refusal.into()), Action::Close]),
            },
            (state @ (State::Open | State::Planning), Message::Snapshot { port }) => {
                // A client that gets here has proved the secret, if there is one, or a grant. A
                // grant gives access to tests only.
                let has_secret = self.secret.is_some() && self.proved_grant.is_none();
                let complete = has_secret || self.public_diagnostics;
                (state, vec![Action::Snapshot { port, complete }])
            }
            (State::Proving, Message::Plan(_) | Message::Snapshot { .. }) => {
                (State::Closed, vec![Action::Send(self.missing_proof().into()), Action::Close])
            }
            (State::SetUp(token), Message::Begin { at_ns }) => {
                (State::Running(token), vec![Action::Begin(token, at_ns)])
            }
            (state @ (State::SetUp(_) | State::Running(_)), Message::Probe { client_ns }) => {
                (state, vec![Action::SendClock { client_ns }])
            }
            (state @ State::Running(token), Message::Stop) => (state, vec![Action::Stop(token)]),
            (state @ State::Running(token), Message::End { at_ns }) => {
                (state, vec![Action::End(token, at_ns)])
            }
            (state @ State::Running(token), Message::Fetch { offset }) => {
                (state, vec![Action::Deliver(token, offset)])
            }
            (State::Running(token), Message::Bye) => {
                (State::Closed, vec![Action::Forget(token), Action::Close])
            }
            (
                _,
                Message::Hello { .. }
                | Message::Proof { .. }
                | Message::Plan(_)
                | Message::Snapshot { .. }
                | Message::Probe { .. }
                | Message::Begin { .. }
                | Message::Stop
                | Message::End { .. }
                | Message::Fetch { .. }
                | Message::Bye,
            ) => (State::Closed, vec![Action::Close]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: TestToken = TestToken([5; 16]);
    const KEY: &str = "a key of 16 bytes";
    const BINDING: ChannelBinding = ChannelBinding([3; 32]);
    const CLIENT: Challenge = Challenge([8; 32]);

    fn control_session(secret: Option<&str>) -> ControlSession {
        let secret = secret.map(|text| Secret::from_text(text.as_bytes()).unwrap());
        ControlSession::new(None, secret, Challenge([9; 32])).with_binding(Some(BINDING))
    }

    /// Proof message of a client with this secret.
    fn proof_message(secret: &str, binding: ChannelBinding, server: Challenge) -> ClientMessage {
        let transcript = AuthTranscript { binding, server, client: CLIENT };
        let secret = Secret::from_text(secret.as_bytes()).unwrap();
        let proof = secret.prove(AuthRole::Client, &transcript).unwrap();
        ClientMessage::Proof { proof, challenge: CLIENT, grant: None }
    }

    fn hello() -> ClientMessage {
        ClientMessage::Hello { towpath: "0.1".into() }
    }

    fn plan() -> ClientMessage {
        let scenario = "name = \"t\"\n[hosts.client]\n[hosts.server]\n[paths.p]\n\
            between = [\"client\", \"server\"]\n[[flows]]\nfrom = \"client\"\nto = \"server\"\n\
            pattern = \"iperf\"\n";
        ClientMessage::Plan(Box::new(TestPlan {
            scenario: scenario.to_owned(),
            transport: towpath_scenario::Transport::Mptcp,
            settings: super::super::TransferSettings::default(),
        }))
    }

    #[test]
    fn a_test_goes_from_hello_to_bye() {
        let limits = ServerLimits::default();
        let mut control = control_session(None);
        let actions = control.on_message(hello(), &limits);
        assert!(matches!(
            &actions[..],
            [ControlAction::Send(ServerMessage::Welcome { challenge: None, .. })]
        ));
        let actions = control.on_message(plan(), &limits);
        assert!(matches!(&actions[..], [ControlAction::Admit(_)]));
        control.on_admitted(TOKEN);
        let public_id = TOKEN.public_id();
        assert_eq!(control.pending_test(), Some(public_id));
        let actions = control.on_message(ClientMessage::Begin { at_ns: 7 }, &limits);
        assert_eq!(actions, [ControlAction::Begin(public_id, 7)]);
        assert_eq!(control.pending_test(), None);
        let actions = control.on_message(ClientMessage::Fetch { offset: 3 }, &limits);
        assert_eq!(actions, [ControlAction::Deliver(public_id, 3)]);
        let actions = control.on_message(ClientMessage::Bye, &limits);
        assert_eq!(actions, [ControlAction::Forget(public_id), ControlAction::Close]);
        assert_eq!(control.on_message(ClientMessage::Bye, &limits), [ControlAction::Close]);
    }

    #[test]
    fn a_client_without_the_secret_gets_no_test() {
        let limits = ServerLimits::default();
        let wrong_proof = AuthProof([0; 32]);
        for message in [
            plan(),
            ClientMessage::Proof { proof: wrong_proof, challenge: CLIENT, grant: None },
            ClientMessage::Begin { at_ns: 0 },
        ] {
            let mut control = control_session(Some(KEY));
            control.on_message(hello(), &limits);
            let is_wrong_proof = matches!(message, ClientMessage::Proof { .. });
            let actions = control.on_message(message, &limits);
            assert_eq!(actions.last(), Some(&ControlAction::Close));
            assert_eq!(actions.first() == Some(&ControlAction::AuthFailed), is_wrong_proof);
            assert_eq!(control.on_message(plan(), &limits), [ControlAction::Close]);
        }
    }

    #[test]
    fn both_ends_prove_the_secret_for_their_own_connection_only() {
        let limits = ServerLimits::default();
        let mut control = control_session(Some(KEY));
        let actions = control.on_message(hello(), &limits);
        let [ControlAction::Send(ServerMessage::Welcome { challenge: Some(server), .. })] =
            actions[..]
        else {
            panic!("{actions:?}");
        };
        // A man in the middle has separate connections, with separate bindings, to both.
        let relayed_proof = proof_message(KEY, ChannelBinding([4; 32]), server);
        let actions = control.clone().on_message(relayed_proof, &limits);
        assert_eq!(actions.first(), Some(&ControlAction::AuthFailed), "{actions:?}");
        let actions = control
            .clone()
            .with_binding(None)
            .on_message(proof_message(KEY, BINDING, server), &limits);
        let [ControlAction::Send(ServerMessage::Refused { reason, .. }), ControlAction::Close] =
            &actions[..]
        else {
            panic!("{actions:?}")
        };
        assert!(reason.contains("encrypted"), "{reason}");
        let actions = control.on_message(proof_message(KEY, BINDING, server), &limits);
        let [ControlAction::Send(ServerMessage::Proved { proof })] = actions[..] else {
            panic!("{actions:?}")
        };
        let transcript = AuthTranscript { binding: BINDING, server, client: CLIENT };
        let secret = Secret::from_text(KEY.as_bytes()).unwrap();
        assert!(secret.accepts(AuthRole::Server, &transcript, proof));
        assert!(matches!(&control.on_message(plan(), &limits)[..], [ControlAction::Admit(_)]));
    }

    #[test]
    fn a_host_snapshot_is_sent_only_after_authentication() {
        const UNAUTHENTICATED: ControlAction =
            ControlAction::Snapshot { port: 80, complete: false };
        let limits = ServerLimits::default();
        let request = ClientMessage::Snapshot { port: 80 };
        let mut without_secret = control_session(None);
        assert_eq!(
            without_secret.clone().on_message(request.clone(), &limits),
            [ControlAction::Close]
        );
        without_secret.on_message(hello(), &limits);
        for _ in 0..2 {
            assert_eq!(without_secret.on_message(request.clone(), &limits), [UNAUTHENTICATED]);
        }
        let actions = without_secret
            .clone()
            .with_public_diagnostics(true)
            .on_message(request.clone(), &limits);
        assert_eq!(actions, [ControlAction::Snapshot { port: 80, complete: true }]);
        assert!(matches!(
            &without_secret.clone().on_message(plan(), &limits)[..],
            [ControlAction::Admit(_)]
        ));
        let answered = (0..100)
            .filter(|_| without_secret.on_message(request.clone(), &limits) == [UNAUTHENTICATED]);
        assert_eq!(answered.count() as u32 + 2, MAX_SNAPSHOT_REQUESTS);
        let mut with_secret = control_session(Some(KEY));
        with_secret.on_message(hello(), &limits);
        let actions = with_secret.clone().on_message(request.clone(), &limits);
        assert!(matches!(
            &actions[..],
            [ControlAction::Send(ServerMessage::Refused { .. }), ControlAction::Close]
        ));
        with_secret.on_message(proof_message(KEY, BINDING, Challenge([9; 32])), &limits);
        assert_eq!(
            with_secret.on_message(request, &limits),
            [ControlAction::Snapshot { port: 80, complete: true }]
        );
    }

    #[test]
    fn a_client_resuming_with_a_token_can_only_continue_its_test() {
        let limits = ServerLimits::default();
        let public_id = TOKEN.public_id();
        let resumed = ControlSession::new(Some(public_id), None, Challenge([0; 32]));
        let actions = resumed.clone().on_message(ClientMessage::Fetch { offset: 0 }, &limits);
        assert_eq!(actions, [ControlAction::Deliver(public_id, 0)]);
        for message in [hello(), plan(), ClientMessage::Begin { at_ns: 0 }] {
            assert_eq!(resumed.clone().on_message(message, &limits), [ControlAction::Close]);
        }
    }
}
