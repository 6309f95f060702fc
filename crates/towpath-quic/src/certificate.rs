//! TLS configuration; by default with one fixed Ed25519 certificate, which proves nothing.
//!
//! In a simulation or emulation towpath runs both ends, which trust this certificate only. It is
//! fixed, and Ed25519, so that handshakes have the same lengths in every run: ECDSA signatures vary
//! by a byte or two. Session tickets and early data are off. Instead of a clock, a fixed day is
//! compared with the certificate's dates.
//!
//! The TLS library still draws keys from the system's randomness, so the bytes of two runs differ,
//! while lengths and times do not.

use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use noq_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use noq_proto::crypto::{CryptoError, HandshakeTokenKey, HmacKey};
use noq_proto::rustls::client::Resumption;
use noq_proto::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use noq_proto::rustls::time_provider::TimeProvider;
use noq_proto::rustls::{self, RootCertStore};
use sha2::Sha256;

use crate::error::OpenError;
use crate::identity::{Fingerprint, Identity, PinVerifier, Trust};

/// Host name in the fixed certificate.
pub(crate) const SERVER_NAME: &str = "towpath";
/// Application protocol of the streams (ALPN): towpath's own traffic patterns.
const ALPN: &[u8] = b"towpath";
/// Fixed date 2027-01-01, within the certificate's hundred years.
const FIXED_DATE: Duration = Duration::from_secs(1_798_761_600);

/// `openssl req -x509 -new -key KEY -subj /CN=towpath -addext subjectAltName=DNS:towpath
/// -addext basicConstraints=critical,CA:FALSE -days 36500 -outform DER`
#[rustfmt::skip]
const CERTIFICATE: [u8; 335] = [
    0x30, 0x82, 0x01, 0x4b, 0x30, 0x81, 0xfe, 0xa0, 0x03, 0x02, 0x01, 0x02, 0x02, 0x14, 0x2b, 0xf6,
    0x3d, 0xbf, 0x16, 0x52, 0x2e, 0xa0, 0x6e, 0x55, 0xaa, 0xc3, 0xc9, 0x70, 0x6a, 0x0c, 0xe7, 0xa3,
    0xbd, 0xb9, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x30, 0x12, 0x31, 0x10, 0x30, 0x0e, 0x06,
    0x03, 0x55, 0x04, 0x03, 0x0c, 0x07, 0x74, 0x6f, 0x77, 0x70, 0x61, 0x74, 0x68, 0x30, 0x20, 0x17,
    0x0d, 0x32, 0x36, 0x31, 0x31, 0x32, 0x32, 0x30, 0x33, 0x34, 0x33, 0x34, 0x31, 0x5a, 0x18, 0x0f,
    0x32, 0x31, 0x32, 0x36, 0x31, 0x30, 0x32, 0x39, 0x30, 0x33, 0x34, 0x33, 0x34, 0x31, 0x5a, 0x30,
    0x12, 0x31, 0x10, 0x30, 0x0e, 0x06, 0x03, 0x55, 0x04, 0x03, 0x0c, 0x07, 0x74, 0x6f, 0x77, 0x70,
    0x61, 0x74, 0x68, 0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00, 0x4a,
    0x07, 0x5f, 0x65, 0x19, 0xca, 0x0d, 0x70, 0x9e, 0x9b, 0xf8, 0x3c, 0x2b, 0x1c, 0x70, 0xba, 0x41,
    0x93, 0x99, 0x03, 0x95, 0x61, 0xe8, 0x3a, 0xfe, 0xd0, 0x8a, 0x8c, 0xee, 0xa4, 0x4f, 0xda, 0xa3,
    0x64, 0x30, 0x62, 0x30, 0x1d, 0x06, 0x03, 0x55, 0x1d, 0x0e, 0x04, 0x16, 0x04, 0x14, 0x3f, 0x28,
    0x21, 0xf3, 0x1a, 0xe7, 0x13, 0x00, 0x0c, 0xa0, 0x56, 0x10, 0x30, 0x30, 0x99, 0xa6, 0xf2, 0xb7,
    0xb8, 0xeb, 0x30, 0x1f, 0x06, 0x03, 0x55, 0x1d, 0x23, 0x04, 0x18, 0x30, 0x16, 0x80, 0x14, 0x3f,
    0x28, 0x21, 0xf3, 0x1a, 0xe7, 0x13, 0x00, 0x0c, 0xa0, 0x56, 0x10, 0x30, 0x30, 0x99, 0xa6, 0xf2,
    0xb7, 0xb8, 0xeb, 0x30, 0x12, 0x06, 0x03, 0x55, 0x1d, 0x11, 0x04, 0x0b, 0x30, 0x09, 0x82, 0x07,
    0x74, 0x6f, 0x77, 0x70, 0x61, 0x74, 0x68, 0x30, 0x0c, 0x06, 0x03, 0x55, 0x1d, 0x13, 0x01, 0x01,
    0xff, 0x04, 0x02, 0x30, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x41, 0x00, 0x3c,
    0xb7, 0xf1, 0x55, 0x8f, 0x58, 0xf7, 0x9f, 0xa6, 0x47, 0xcb, 0x4a, 0xbe, 0x63, 0xcb, 0x16, 0xb9,
    0x40, 0x8e, 0xbe, 0x1f, 0x1e, 0xd4, 0xd4, 0xcc, 0xdb, 0x81, 0x30, 0x7a, 0xbc, 0x4e, 0xaa, 0x06,
    0xb0, 0xcd, 0x5f, 0x9e, 0x41, 0x16, 0x6e, 0xef, 0xc2, 0xbb, 0x28, 0xc2, 0x53, 0xac, 0x5e, 0x4b,
    0x2c, 0x8c, 0xc3, 0xe2, 0x0a, 0x30, 0xb1, 0xab, 0x21, 0xf3, 0x84, 0x03, 0x06, 0x65, 0x0b,
];

/// PKCS#8 private key, made by `openssl genpkey -algorithm ED25519 -outform DER`; published on
/// purpose.
#[rustfmt::skip]
const PRIVATE_KEY: [u8; 48] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
    0x1b, 0xa4, 0xa4, 0xa6, 0xdb, 0x7a, 0x95, 0xea, 0xb9, 0xbd, 0x5e, 0xe2, 0x00, 0x0c, 0x3e, 0x1e,
    0xf1, 0x16, 0x05, 0xd1, 0x48, 0x27, 0xf3, 0xf1, 0x3b, 0xdb, 0x1c, 0xfc, 0xdc, 0xc2, 0xe6, 0xb1,
];

/// Clock that always returns the fixed day.
#[derive(Debug)]
struct FixedTimeProvider;

impl TimeProvider for FixedTimeProvider {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(FIXED_DATE))
    }
}

/// Returns the QUIC configuration of the end that opens a connection.
pub(crate) fn client(trust: &Trust) -> Result<Arc<QuicClientConfig>, OpenError> {
    Ok(Arc::new(QuicClientConfig::try_from(client_config(trust)?)?))
}

/// Returns the TLS configuration of the opener, for QUIC or TCP.
pub(crate) fn client_config(trust: &Trust) -> Result<rustls::ClientConfig, OpenError> {
    match trust {
        Trust::Fixed => fixed_client_config(),
        Trust::Pinned(pins) => pinning_client_config(Some(pins.clone())),
        Trust::Any => pinning_client_config(None),
    }
}

/// Returns the QUIC configuration of the end that accepts connections.
pub(crate) fn server(identity: Option<&Identity>) -> Result<Arc<QuicServerConfig>, OpenError> {
    Ok(Arc::new(QuicServerConfig::try_from(server_config(identity)?)?))
}

/// Returns the TLS configuration of the acceptor, for QUIC or TCP.
pub(crate) fn server_config(
    identity: Option<&Identity>,
) -> Result<rustls::ServerConfig, OpenError> {
    let Some(identity) = identity else { return fixed_server_config() };
    let (chain, key) = identity.parts()?;
    let builder = rustls::ServerConfig::builder_with_provider(provider());
    finish_server_config(builder.with_protocol_versions(&[&rustls::version::TLS13])?, chain, key)
}

/// Returns the TLS configuration of an opener that accepts these fingerprints; `None` accepts any.
fn pinning_client_config(
    pins: Option<Vec<Fingerprint>>,
) -> Result<rustls::ClientConfig, OpenError> {
    let verifier = Arc::new(PinVerifier::new(pins, provider()));
    let mut config = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Adds certificate, ALPN and ticket settings to a server configuration.
fn finish_server_config(
    builder: rustls::ConfigBuilder<rustls::ServerConfig, rustls::WantsVerifier>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<rustls::ServerConfig, OpenError> {
    let mut config = builder.with_no_client_auth().with_single_cert(chain, key)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Returns the TLS configuration of an opener that trusts the fixed certificate only.
pub(crate) fn fixed_client_config() -> Result<rustls::ClientConfig, OpenError> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_slice(&CERTIFICATE))?;
    let mut config =
        rustls::ClientConfig::builder_with_details(provider(), Arc::new(FixedTimeProvider))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Returns the TLS configuration of an acceptor with the fixed certificate.
pub(crate) fn fixed_server_config() -> Result<rustls::ServerConfig, OpenError> {
    let chain = vec![CertificateDer::from_slice(&CERTIFICATE)];
    let key = PrivateKeyDer::Pkcs8(PRIVATE_KEY.as_slice().into());
    let builder =
        rustls::ServerConfig::builder_with_details(provider(), Arc::new(FixedTimeProvider));
    finish_server_config(builder.with_protocol_versions(&[&rustls::version::TLS13])?, chain, key)
}

pub(crate) fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Key of stateless resets, derived from the host's seed.
#[derive(Debug)]
pub(crate) struct StatelessResetKey(pub(crate) u64);

impl StatelessResetKey {
    fn mac(&self, data: &[u8]) -> Hmac<Sha256> {
        let mut block = [0; 64];
        for chunk in block.as_chunks_mut::<8>().0 {
            *chunk = self.0.to_be_bytes();
        }
        let mut mac = Hmac::<Sha256>::new(&block.into());
        mac.update(data);
        mac
    }
}

impl HmacKey for StatelessResetKey {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        for (out, byte) in signature_out.iter_mut().zip(self.mac(data).finalize().into_bytes()) {
            *out = byte;
        }
    }

    fn signature_len(&self) -> usize {
        32
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        self.mac(data).verify_slice(signature).map_err(|_| CryptoError)
    }
}

/// Token key that neither issues nor accepts address validation tokens.
#[derive(Debug)]
pub(crate) struct NoTokens;

impl HandshakeTokenKey for NoTokens {
    fn seal(&self, _: u128, _: &mut Vec<u8>) -> Result<(), CryptoError> {
        Err(CryptoError)
    }

    fn open<'a>(&self, _: u128, _: &'a mut [u8]) -> Result<&'a [u8], CryptoError> {
        Err(CryptoError)
    }
}

/// Time source of the library that always returns the fixed day.
#[derive(Debug)]
pub(crate) struct FixedTimeSource;

impl noq_proto::TimeSource for FixedTimeSource {
    fn now(&self) -> std::time::SystemTime {
        std::time::SystemTime::UNIX_EPOCH + FIXED_DATE
    }
}
