//! A client's side of a secret: it is proved, and the server has to prove it, too.

use std::io;

use towpath_measure::live::secret::{AuthRole, AuthTranscript, Challenge};
use towpath_measure::live::{AdmissionError, ClientMessage, Secret, ServerMessage};

use super::random;
use super::speaker::ControlChannel;

/// What is said about a secret on one connection.
#[derive(Debug)]
pub(crate) struct Authenticator<'a> {
    secret: &'a Secret,
    meeting: AuthTranscript,
}

impl<'a> Authenticator<'a> {
    /// `server` is what the server wants the secret to be proved with.
    pub(crate) fn new(
        secret: &'a Secret,
        server: Challenge,
        speaker: &ControlChannel,
    ) -> io::Result<Self> {
        let unprotected = || io::Error::other("the connection is not encrypted");
        let binding = speaker.binding().ok_or_else(unprotected)?;
        let meeting = AuthTranscript { binding, server, client: Challenge(random()?) };
        Ok(Self { secret, meeting })
    }

    /// The client's word.
    pub(crate) fn proof_message(&self) -> io::Result<ClientMessage> {
        let proof = self.secret.prove(AuthRole::Client, &self.meeting);
        let proof = proof.ok_or_else(|| io::Error::other("the secret is no key"))?;
        Ok(ClientMessage::Proof { proof, challenge: self.meeting.client })
    }

    /// Whether the server's word shows that it knows the secret.
    pub(crate) fn verify_reply(&self, said: &ServerMessage) -> bool {
        let ServerMessage::Proved { proof } = said else { return false };
        self.secret.accepts(AuthRole::Server, &self.meeting, *proof)
    }
}

/// A server that does not want the secret that a client has.
pub(crate) fn secret_not_required() -> AdmissionError {
    AdmissionError::new(
        "it does not ask for the secret, so nothing shows that it knows it",
        "start it with --secret-file, or leave out --secret-file here",
    )
}

/// A server that has not proved the secret.
pub(crate) fn server_unproven() -> AdmissionError {
    AdmissionError::new(
        "it does not know the secret: somebody else answers, or stands between",
        "both hosts need the same file for --secret-file",
    )
}
