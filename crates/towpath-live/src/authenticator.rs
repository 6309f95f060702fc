//! Client side of mutual authentication with a shared secret.

use std::io;

use super::control_channel::ControlChannel;
use super::random;
use crate::protocol::secret::{AuthRole, AuthTranscript, Challenge};
use crate::protocol::{AdmissionError, ClientMessage, Secret, ServerMessage};

/// Authentication exchange on one connection.
#[derive(Debug)]
pub struct Authenticator<'a> {
    secret: &'a Secret,
    transcript: AuthTranscript,
    grant: Option<&'a str>,
}

impl<'a> Authenticator<'a> {
    /// Creates the exchange from the server's challenge. Fails if the connection is not encrypted.
    pub fn new(
        secret: &'a Secret,
        server: Challenge,
        channel: &ControlChannel,
    ) -> io::Result<Self> {
        let unprotected = || io::Error::other("the connection is not encrypted");
        let binding = channel.binding().ok_or_else(unprotected)?;
        let transcript = AuthTranscript { binding, server, client: Challenge(random()?) };
        Ok(Self { secret, transcript, grant: None })
    }

    /// Sets the text of the access grant that the secret belongs to.
    #[must_use]
    pub fn with_grant(self, grant: Option<&'a str>) -> Self {
        Self { grant, ..self }
    }

    /// Returns the client's proof message, which includes its challenge.
    pub fn proof_message(&self) -> io::Result<ClientMessage> {
        let proof = self.secret.prove(AuthRole::Client, &self.transcript);
        let proof = proof.ok_or_else(|| io::Error::other("the secret is not a valid key"))?;
        let grant = self.grant.map(str::to_owned);
        Ok(ClientMessage::Proof { proof, challenge: self.transcript.client, grant })
    }

    /// Returns true if the server's message proves knowledge of the secret.
    pub fn verify_reply(&self, reply: &ServerMessage) -> bool {
        let ServerMessage::Proved { proof } = reply else { return false };
        self.secret.accepts(AuthRole::Server, &self.transcript, *proof)
    }
}

/// Returns the error for a server that does not require the client's secret.
pub fn secret_not_required() -> AdmissionError {
    AdmissionError::new(
        "it does not request the secret, so it cannot prove that it knows it",
        "start it with --secret-file, or omit --secret-file here",
    )
}

/// Returns the error for a server that accepts no access grants.
pub fn grant_not_accepted() -> AdmissionError {
    AdmissionError::new(
        "it admits no devices of a collector",
        "start it with --register, or use --secret-file",
    )
}

/// Returns the error for a server that failed to prove the secret.
pub fn server_unproven() -> AdmissionError {
    AdmissionError::new(
        "it does not know the secret: a different server answers, or a man in the middle",
        "use the same file for --secret-file on both hosts",
    )
}
