//! Certificates and keys, from files or newly made, and the fingerprints that identify them.
//!
//! Two hosts of one person need no authority: the client identifies the server by the SHA-256
//! fingerprint of its certificate, as with SSH. Names and dates in the certificate are ignored.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use noq_proto::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use noq_proto::rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use noq_proto::rustls::pki_types::pem::PemObject;
use noq_proto::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use noq_proto::rustls::{
    self, CertificateError, DigitallySignedStruct, OtherError, SignatureScheme,
};
use sha2::{Digest, Sha256};
use thiserror::Error;

/// SHA-256 of a certificate (DER).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    pub(crate) fn of(certificate: &[u8]) -> Self {
        Self(Sha256::digest(certificate).into())
    }

    /// Returns the fingerprint of the first certificate that a peer has sent.
    pub(crate) fn of_peer(session: &dyn noq_proto::crypto::Session) -> Option<Self> {
        let identity = session.peer_identity()?;
        let chain = identity.downcast_ref::<Vec<CertificateDer<'static>>>()?;
        chain.first().map(|certificate| Self::of(certificate))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// Error: the text is not a fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a fingerprint has 64 hexadecimal digits, with or without colons between pairs")]
pub struct InvalidFingerprint;

impl FromStr for Fingerprint {
    type Err = InvalidFingerprint;

    fn from_str(text: &str) -> Result<Self, InvalidFingerprint> {
        let text = text.trim();
        // The format of openssl.
        let text = text.strip_prefix("sha256:").unwrap_or(text);
        let digits = text.chars().filter(|char| *char != ':').map(|char| char.to_digit(16));
        let digits: Vec<u32> = digits.collect::<Option<_>>().ok_or(InvalidFingerprint)?;
        let mut bytes = [0; 32];
        let (pairs, rest) = digits.as_chunks::<2>();
        if pairs.len() != bytes.len() || !rest.is_empty() {
            return Err(InvalidFingerprint);
        }
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = (high << 4 | low) as u8;
        }
        Ok(Self(bytes))
    }
}

/// A certificate chain and its private key.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: Arc<[u8]>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never print the key.
        f.debug_struct("Identity").field("fingerprint", &self.fingerprint()).finish_non_exhaustive()
    }
}

/// Reason for rejecting a certificate or key.
#[derive(Debug, Error)]
pub enum IdentityError {
    /// The input has no certificate.
    #[error("it contains no certificate")]
    NoCertificate,
    /// The certificate is not valid PEM.
    #[error("the certificate cannot be read: {0}")]
    Certificate(rustls::pki_types::pem::Error),
    /// The input is not valid PEM or has no private key.
    #[error("the private key cannot be read: {0}")]
    Key(rustls::pki_types::pem::Error),
    /// Key and certificate do not match, or the kind of key is not supported.
    #[error("certificate and key cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
    /// A certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
}

/// A new identity in PEM format, as stored in files.
#[derive(Clone)]
pub struct PemIdentity {
    /// The certificate in PEM format.
    pub certificate: String,
    /// Private key in PEM format: a secret.
    pub key: String,
}

impl fmt::Debug for PemIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PemIdentity")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

impl PemIdentity {
    /// Makes a key (Ed25519) and a self-signed certificate for these names and addresses.
    pub fn make(names: &[String]) -> Result<Self, IdentityError> {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519)?;
        let certificate = rcgen::CertificateParams::new(names)?.self_signed(&key)?;
        Ok(Self { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

impl Identity {
    /// Parses the contents of the files of certificate and key.
    pub fn from_pem(certificates: &str, key: &str) -> Result<Self, IdentityError> {
        let chain = CertificateDer::pem_slice_iter(certificates.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(IdentityError::Certificate)?;
        if chain.is_empty() {
            return Err(IdentityError::NoCertificate);
        }
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(IdentityError::Key)?;
        // Checked now, so that errors are reported at once.
        rustls::sign::CertifiedKey::from_der(
            chain.clone(),
            key.clone_key(),
            &crate::certificate::provider(),
        )?;
        Ok(Self { chain, key: key.secret_der().into() })
    }

    /// Returns the fingerprint by which clients identify this certificate.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(self.chain.first().map_or(&[], |first| first))
    }

    pub(crate) fn parts(
        &self,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), rustls::Error> {
        let key = PrivateKeyDer::try_from(self.key.to_vec());
        let key = key.map_err(|error| rustls::Error::General(error.to_owned()))?;
        Ok((self.chain.clone(), key))
    }
}

/// Rule for accepting a server's certificate.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Trust {
    /// The program's fixed certificate only: for tests and emulations, where it proves nothing.
    #[default]
    Fixed,
    /// One of these fingerprints. An empty list admits no server.
    Pinned(Vec<Fingerprint>),
    /// Any certificate: an attacker on the path can read and forge data. The fingerprint is in
    /// [`crate::ConnectionStatus`].
    Any,
}

/// Error: the certificate is not among the pinned ones.
#[derive(Debug, Clone, Copy, Error)]
#[error("the certificate has the fingerprint {0}")]
pub(crate) struct UnpinnedCertificate(Fingerprint);

impl UnpinnedCertificate {
    /// Returns the certificate's fingerprint, if this error made a handshake fail.
    pub(crate) fn of(
        error: &(dyn std::error::Error + Send + Sync + 'static),
    ) -> Option<Fingerprint> {
        let rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(cause))) =
            error.downcast_ref()?
        else {
            return None;
        };
        cause.downcast_ref::<Self>().map(|unpinned| unpinned.0)
    }
}

/// Certificate verifier that compares fingerprints.
#[derive(Debug)]
pub(crate) struct PinVerifier {
    /// Accepted fingerprints; `None` accepts any certificate.
    pins: Option<Vec<Fingerprint>>,
    provider: Arc<CryptoProvider>,
}

impl PinVerifier {
    pub(crate) fn new(pins: Option<Vec<Fingerprint>>, provider: Arc<CryptoProvider>) -> Self {
        Self { pins, provider }
    }
}

impl ServerCertVerifier for PinVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let fingerprint = Fingerprint::of(end_entity);
        match &self.pins {
            Some(pins) if !pins.contains(&fingerprint) => {
                Err(CertificateError::Other(OtherError(Arc::new(UnpinnedCertificate(fingerprint))))
                    .into())
            }
            Some(_) | None => Ok(ServerCertVerified::assertion()),
        }
    }

    // The server's possession of the private key is still checked.
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_made_identity_is_read_back_from_its_files() {
        let pem = PemIdentity::make(&["towpath".to_owned()]).unwrap();
        let identity = Identity::from_pem(&pem.certificate, &pem.key).unwrap();
        let reread = Identity::from_pem(&pem.certificate, &pem.key).unwrap();
        assert_eq!(identity, reread);
        assert!(!format!("{identity:?}{pem:?}").contains("PRIVATE"));
        let other_pem = PemIdentity::make(&["towpath".to_owned()]).unwrap();
        assert!(matches!(
            Identity::from_pem(&pem.certificate, &other_pem.key),
            Err(IdentityError::Unusable(_))
        ));
        assert!(matches!(Identity::from_pem("", &pem.key), Err(IdentityError::NoCertificate)));
        assert!(matches!(Identity::from_pem(&pem.certificate, ""), Err(IdentityError::Key(_))));
    }

    #[test]
    fn fingerprints_are_read_as_openssl_prints_them() {
        let fingerprint = Fingerprint::of(b"towpath");
        let text = fingerprint.to_string();
        assert_eq!(text.parse(), Ok(fingerprint));
        let pairs: Vec<_> = (0..32).map(|n| text[2 * n..2 * n + 2].to_uppercase()).collect();
        assert_eq!(pairs.join(":").parse(), Ok(fingerprint));
        for invalid in ["", &text[1..], &format!("{text}0"), &text.replace(&text[..1], "g")] {
            assert_eq!(invalid.parse::<Fingerprint>(), Err(InvalidFingerprint), "{invalid}");
        }
    }

    proptest! {
        #[test]
        fn parsing_any_text_never_panics(text in ".{0,100}") {
            let _ = text.parse::<Fingerprint>();
            let _ = Identity::from_pem(&text, &text);
        }
    }
}
