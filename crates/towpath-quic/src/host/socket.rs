//! A UDP socket of a host, and the library's configuration of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use noq_proto::crypto::HmacKey;
use noq_proto::crypto::rustls::QuicServerConfig;
use noq_proto::{
    ConnectionId as WireId, ConnectionIdGenerator, Endpoint, EndpointConfig, ServerConfig,
};
use towpath_net::stream_seed;

use crate::certificate;
use crate::config::{AddressValidation, QuicConfig};
use crate::congestion::CongestionFactory;
use crate::error::OpenError;
use crate::status::{ConnectionId, ListenerId};
use crate::time::TimeConverter;

/// Length of our connection identifiers, in bytes.
const CID_BYTES: usize = 8;
/// Largest UDP payload accepted from peers.
const MAX_DATAGRAM_BYTES: u16 = 65_527;

/// Listener that accepts connections on a socket.
#[derive(Clone)]
pub(super) struct ListenerEntry {
    pub(super) id: ListenerId,
    pub(super) config: QuicConfig,
    pub(super) tls: Arc<QuicServerConfig>,
}

impl ListenerEntry {
    /// Returns the library's configuration, with a new congestion control for each connection:
    /// coupling must not reach beyond it.
    pub(super) fn server_config(
        &self,
        clock: TimeConverter,
    ) -> Result<Arc<ServerConfig>, OpenError> {
        let Self { id: _, config, tls } = self;
        let factory = CongestionFactory::new(&config.congestion_control, clock)?;
        let mut server_config = if config.validation == AddressValidation::NONE {
            let mut server_config = ServerConfig::new(tls.clone(), Arc::new(certificate::NoTokens));
            server_config.time_source(Arc::new(certificate::FixedTimeSource));
            server_config
        } else {
            // The library draws the key that seals tokens.
            ServerConfig::with_crypto(tls.clone())
        };
        server_config.migration(config.validation.migration);
        server_config.transport_config(Arc::new(config.transport(factory)));
        Ok(Arc::new(server_config))
    }
}

/// A UDP socket and the connections over it.
pub(super) struct Socket {
    pub(super) endpoint: Endpoint,
    pub(super) listener: Option<ListenerEntry>,
    /// Connections by the library's handle.
    pub(super) by_handle: BTreeMap<usize, ConnectionId>,
}

impl Socket {
    pub(super) fn is_used(&self) -> bool {
        self.listener.is_some() || !self.by_handle.is_empty()
    }
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let listener = self.listener.as_ref().map(|listener| listener.id);
        f.debug_struct("Socket").field("listener", &listener).finish_non_exhaustive()
    }
}

/// Returns the library's configuration of the socket with that port; a host without a seed gets
/// random keys.
pub(super) fn endpoint_config(seed: Option<u64>, port: u16) -> Arc<EndpointConfig> {
    let Some(seed) = seed else {
        let mut config = EndpointConfig::default();
        // This bit distinguishes QUIC from another protocol on the same port. (RFC 9287 §3 lets
        // peers clear it only if this end allows that.)
        config.grease_quic_bit(false);
        // Cannot fail: the library accepts every size that a datagram can have.
        let _ = config.max_udp_payload_size(MAX_DATAGRAM_BYTES);
        return Arc::new(config);
    };
    let seed = |purpose| stream_seed(seed, &port.to_string(), purpose);
    let reset_key: Arc<dyn HmacKey> = Arc::new(certificate::StatelessResetKey(seed("reset key")));
    let mut config = EndpointConfig::new(reset_key);
    let cid_seed = seed("connection identifiers");
    let mut rng_seed = [0; 32];
    for (part, word) in rng_seed.as_chunks_mut::<8>().0.iter_mut().zip(0_u64..) {
        *part = stream_seed(seed("library"), "", &word.to_string()).to_be_bytes();
    }
    config
        .rng_seed(Some(rng_seed))
        .cid_generator(Arc::new(move || Box::new(SeededCidGenerator { seed: cid_seed, count: 0 })));
    // Cannot fail: the library accepts every size that a datagram can have.
    let _ = config.max_udp_payload_size(MAX_DATAGRAM_BYTES);
    Arc::new(config)
}

/// Connection identifiers from a seed; they need only be distinct among our own.
#[derive(Debug)]
struct SeededCidGenerator {
    seed: u64,
    count: u64,
}

impl ConnectionIdGenerator for SeededCidGenerator {
    fn generate_cid(&mut self) -> WireId {
        self.count = self.count.wrapping_add(1);
        WireId::new(&stream_seed(self.seed, "", &self.count.to_string()).to_be_bytes())
    }

    fn cid_len(&self) -> usize {
        CID_BYTES
    }

    fn cid_lifetime(&self) -> Option<std::time::Duration> {
        None
    }
}
