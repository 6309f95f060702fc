//! TLS without QUIC, for connections over TCP: the same certificates, pins and versions. A
//! comparison of transports can thus have the same encryption on both sides. No sockets.

use std::io::{BufRead, Read, Write};
use std::sync::Arc;

use noq_proto::rustls::pki_types::ServerName;
use noq_proto::rustls::{self, ClientConnection, Connection, ServerConnection};
use thiserror::Error;

use crate::certificate;
use crate::error::OpenError;
use crate::identity::{Fingerprint, Identity, Trust, UnpinnedCertificate};

/// Label of the secret that only both ends of a connection can derive from its keys
/// (RFC 8446 §7.5).
pub(crate) const EXPORT_LABEL: &[u8] = b"EXPORTER-towpath-binding";
/// Limit of plaintext that waits for encryption; more is not accepted.
const MAX_PLAINTEXT_BYTES: usize = 1 << 20;

/// Error: the peer does not speak TLS, or is not the expected one.
#[derive(Debug, Error)]
pub enum TlsError {
    /// The peer's certificate is not the expected one; its fingerprint.
    #[error("its certificate has the fingerprint {0}, which is not the expected one")]
    Untrusted(Fingerprint),
    /// The peer, or an attacker on the path, violated the protocol.
    #[error("TLS: {0}")]
    Protocol(rustls::Error),
}

impl From<rustls::Error> for TlsError {
    fn from(error: rustls::Error) -> Self {
        UnpinnedCertificate::of(&error).map_or(Self::Protocol(error), Self::Untrusted)
    }
}

/// One end of a connection with TLS 1.3 (RFC 8446).
#[derive(Debug)]
pub struct TlsSession {
    tls: Connection,
    /// Bytes received, including those already consumed.
    incoming: Vec<u8>,
    /// Bytes of `incoming` that the library has accepted.
    consumed: usize,
}

impl TlsSession {
    /// Creates the end that opened the connection.
    pub fn client(trust: &Trust) -> Result<Self, OpenError> {
        let config = Arc::new(certificate::client_config(trust)?);
        let name = ServerName::try_from(certificate::SERVER_NAME)
            .map_err(|error| rustls::Error::General(error.to_string()))?;
        Ok(Self::new(ClientConnection::new(config, name)?.into()))
    }

    /// Creates the end that accepted the connection.
    pub fn server(identity: &Identity) -> Result<Self, OpenError> {
        let config = Arc::new(certificate::server_config(Some(identity))?);
        Ok(Self::new(ServerConnection::new(config)?.into()))
    }

    fn new(mut tls: Connection) -> Self {
        tls.set_buffer_limit(Some(MAX_PLAINTEXT_BYTES));
        Self { tls, incoming: Vec::new(), consumed: 0 }
    }

    /// Returns true if the handshake is not complete.
    pub fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Returns the fingerprint of the peer's certificate, if it has sent one.
    pub fn peer(&self) -> Option<Fingerprint> {
        self.tls.peer_certificates()?.first().map(|certificate| Fingerprint::of(certificate))
    }

    /// Returns a secret that only both ends of this connection can derive; `None` before the
    /// handshake is complete.
    pub fn binding(&self) -> Option<[u8; 32]> {
        self.tls.export_keying_material([0; 32], EXPORT_LABEL, None).ok()
    }

    /// Queues plaintext to be sent, as far as there is room, and returns the accepted length.
    pub fn write(&mut self, data: &[u8]) -> usize {
        // Writing to memory fails only when the buffer is full.
        self.tls.writer().write(data).unwrap_or(0)
    }

    /// Ends the data of this end (`close_notify`).
    pub fn close(&mut self) {
        self.tls.send_close_notify();
    }

    /// Appends the bytes to send to the peer.
    pub fn take_outgoing(&mut self, out: &mut Vec<u8>) {
        while self.tls.wants_write() && self.tls.write_tls(out).is_ok_and(|bytes| bytes > 0) {}
    }

    /// Processes bytes received from the peer.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), TlsError> {
        self.incoming.drain(..self.consumed);
        self.consumed = 0;
        self.incoming.extend_from_slice(bytes);
        self.process_incoming()
    }

    /// Reads received plaintext into `buffer`, or skips it if that is `None`. Returns its length, 0
    /// at the end of the data, `None` while more must arrive.
    pub fn read(&mut self, buffer: Option<&mut [u8]>) -> Result<Option<usize>, TlsError> {
        self.process_incoming()?;
        let mut reader = self.tls.reader();
        let result = match buffer {
            Some(buffer) => reader.read(buffer),
            None => reader.fill_buf().map(<[u8]>::len).inspect(|length| {
                self.tls.reader().consume(*length);
            }),
        };
        match result {
            Ok(length) => Ok(Some(length)),
            // The peer ended without close_notify. Callers that count bytes notice missing data.
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(Some(0)),
            Err(_) => Ok(None),
        }
    }

    /// Processes as much as the library accepts, until plaintext waits to be read.
    fn process_incoming(&mut self) -> Result<(), TlsError> {
        while let Some(mut rest) =
            self.incoming.get(self.consumed..).filter(|rest| !rest.is_empty())
        {
            match self.tls.read_tls(&mut rest) {
                Ok(length) if length > 0 => self.consumed += length,
                // The library's buffer is full: plaintext must be read first.
                Ok(_) | Err(_) => return Ok(()),
            }
            self.tls.process_new_packets()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::PemIdentity;

    fn new_identity() -> Identity {
        let pem = PemIdentity::make(&["towpath".to_owned()]).unwrap();
        Identity::from_pem(&pem.certificate, &pem.key).unwrap()
    }

    /// Exchanges bytes in both directions until both ends are idle.
    fn exchange(a: &mut TlsSession, b: &mut TlsSession) -> Result<(), TlsError> {
        loop {
            let (mut from_a, mut from_b) = (Vec::new(), Vec::new());
            a.take_outgoing(&mut from_a);
            b.take_outgoing(&mut from_b);
            if from_a.is_empty() && from_b.is_empty() {
                return Ok(());
            }
            b.feed(&from_a)?;
            a.feed(&from_b)?;
        }
    }

    #[test]
    fn written_data_and_its_end_are_read_in_any_segmentation() {
        let identity = new_identity();
        let trust = Trust::Pinned(vec![identity.fingerprint()]);
        let mut client = TlsSession::client(&trust).unwrap();
        let mut server = TlsSession::server(&identity).unwrap();
        exchange(&mut client, &mut server).unwrap();
        assert!(!client.is_handshaking() && !server.is_handshaking());
        assert_eq!(client.peer(), Some(identity.fingerprint()));
        assert!(client.binding().is_some() && client.binding() == server.binding());
        let data: Vec<u8> = (0..300_000_u32).map(|n| n as u8).collect();
        assert_eq!(client.write(&data), data.len());
        client.close();
        let mut wire = Vec::new();
        client.take_outgoing(&mut wire);
        let (mut read, mut buffer, mut ended) = (Vec::new(), vec![0; 10_000], false);
        for piece in wire.chunks(7_001) {
            server.feed(piece).unwrap();
            while let Some(length) = server.read(Some(&mut buffer)).unwrap() {
                ended = length == 0;
                if ended {
                    break;
                }
                read.extend_from_slice(&buffer[..length]);
            }
        }
        assert!(ended && read == data, "{ended} {}", read.len());
    }

    #[test]
    fn an_unexpected_certificate_is_refused_and_shown() {
        let (pinned, server_identity) = (new_identity(), new_identity());
        let mut client = TlsSession::client(&Trust::Pinned(vec![pinned.fingerprint()])).unwrap();
        let mut server = TlsSession::server(&server_identity).unwrap();
        let error = exchange(&mut client, &mut server).unwrap_err();
        let TlsError::Untrusted(fingerprint) = error else { panic!("{error}") };
        assert_eq!(fingerprint, server_identity.fingerprint());
    }

    #[test]
    fn two_connections_have_different_bindings() {
        let identity = new_identity();
        let binding = || {
            let mut client = TlsSession::client(&Trust::Any).unwrap();
            let mut server = TlsSession::server(&identity).unwrap();
            assert_eq!(client.binding(), None, "before the handshake");
            exchange(&mut client, &mut server).unwrap();
            server.binding().unwrap()
        };
        assert_ne!(binding(), binding());
    }

    #[test]
    fn data_that_is_not_tls_is_an_error() {
        let mut server = TlsSession::server(&new_identity()).unwrap();
        assert!(matches!(server.feed(&[b'x'; 100]), Err(TlsError::Protocol(_))));
    }
}
