//! Settings of QUIC connections and listeners.

use std::num::ParseIntError;
use std::sync::Arc;
use std::time::Duration;

use noq_proto::congestion::ControllerFactory;
use noq_proto::{IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
pub use towpath_multipath::settings::SettingError;

use crate::congestion::CongestionFactory;
use crate::identity::{Identity, Trust};
use crate::qlog::Qlog;

/// Largest flow-control window. Above it the library mistakes many small packets in the reorder
/// buffer for an attack and closes the connection ("too many gaps in stream buffer").
pub const MAX_WINDOW_BYTES: u64 = 1_250_000;
/// Limit of concurrent paths per connection.
const MAX_PATHS: u32 = 8;
/// Default limit of streams that the peer may have open at the same time.
const MAX_STREAMS: u32 = 1_024;
/// UDP payload that every path must carry, in bytes (RFC 9000 §14).
pub(crate) const MIN_DATAGRAM_BYTES: u16 = 1_200;

/// Policy that selects the paths carrying data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PathPolicy {
    /// All paths at once, except those from backup addresses.
    #[default]
    Aggregate,
    /// The first path; another one after it is abandoned.
    Backup,
    /// The first path; another one as soon as the first is slow.
    ///
    /// Slow is any of: an expiring probe timeout, data unacknowledged for 600 ms, an srtt above 600
    /// ms, or a timeout above 1500 ms.
    Ios,
}

impl PathPolicy {
    /// Every policy with its name in settings.
    pub const ALL: [(&str, Self); 3] =
        [("aggregate", Self::Aggregate), ("backup", Self::Backup), ("ios", Self::Ios)];
}

/// Settings of a connection, or of all connections of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuicConfig {
    /// True to offer Multipath QUIC, or accept it.
    pub multipath: bool,
    /// Name of the congestion control, see [`crate::congestion::names`].
    pub congestion_control: String,
    /// Policy that selects the paths carrying data.
    pub policy: PathPolicy,
    /// Bytes that the peer may send before this end reads them, for each stream and for all
    /// together. Larger values are clamped to [`MAX_WINDOW_BYTES`].
    pub receive_window_bytes: u64,
    /// Limit of bytes written and not yet acknowledged.
    pub send_window_bytes: u64,
    /// Receive window of all streams of an accepted connection together, until
    /// [`crate::QuicStack::configure`] is called. `None` uses `receive_window_bytes` from the
    /// start.
    pub initial_window_bytes: Option<u64>,
    /// Limit of streams that the peer may have open at the same time. [`crate::QuicStack::configure`]
    /// can raise it.
    pub max_streams: u32,
    /// Idle time after which the connection is abandoned.
    pub idle_timeout: Duration,
    /// Interval of keep-alive packets on an otherwise idle connection; `None` sends none.
    pub keep_alive: Option<Duration>,
    /// Largest UDP payload; path MTU discovery (RFC 8899) finds the size that passes.
    pub max_datagram_bytes: u16,
    /// Limit of datagrams in one transmission.
    pub segments: usize,
    /// Certificates that a connecting host accepts from the server.
    pub trust: Trust,
    /// Certificate and key of a listener; `None` uses the program's fixed certificate, which proves
    /// nothing.
    pub identity: Option<Identity>,
    /// Log of a connection that this host opens; `None` logs nothing.
    pub qlog: Option<Qlog>,
    /// Protection of a listener, and of third parties, against forged source addresses.
    pub validation: AddressValidation,
}

/// Limits of a listener before it accepts a peer's address (RFC 9000 §8.1).
///
/// Without migration, an address that has not answered receives at most three times the bytes that
/// it sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressValidation {
    /// Number of unfinished handshakes from which new peers must validate their address by a Retry
    /// packet, which costs a round trip. 0 is always.
    pub retry_from: usize,
    /// Number of unfinished handshakes from which new peers are ignored.
    pub max_handshakes: usize,
    /// Number of connections of any kind from which new peers are ignored.
    pub max_connections: usize,
    /// True if a client may move a path to another address (RFC 9000 §9). It can open paths from
    /// other addresses in any case. The library does not report when it has validated the new
    /// address, and sends it a datagram of 1,200 bytes for a small one.
    pub migration: bool,
}

impl AddressValidation {
    /// Connection migration, and no limits except those of the library: for networks without forged
    /// addresses.
    pub const NONE: Self = Self {
        retry_from: usize::MAX,
        max_handshakes: usize::MAX,
        max_connections: usize::MAX,
        migration: true,
    };
}

impl Default for QuicConfig {
    fn default() -> Self {
        Self {
            multipath: false,
            congestion_control: "cubic".to_owned(),
            policy: PathPolicy::Aggregate,
            receive_window_bytes: MAX_WINDOW_BYTES,
            send_window_bytes: 4 * MAX_WINDOW_BYTES,
            initial_window_bytes: None,
            max_streams: MAX_STREAMS,
            idle_timeout: Duration::from_secs(30),
            keep_alive: None,
            max_datagram_bytes: 1_472,
            segments: 10,
            trust: Trust::Fixed,
            identity: None,
            qlog: None,
            validation: AddressValidation::NONE,
        }
    }
}

impl QuicConfig {
    /// Parses settings given by name, which change the default. Scenarios use this because this
    /// crate does not know them.
    ///
    /// Sizes are bytes; buffers take the three numbers of Linux. A later setting wins.
    pub fn from_texts<'a>(
        settings: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, SettingError> {
        let mut config = Self::default();
        for (name, value) in settings {
            config.set(name, value)?;
        }
        Ok(config)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), SettingError> {
        let invalid_value = || SettingError::value(name, value);
        match name {
            "congestion-control" => value.clone_into(&mut self.congestion_control),
            "path-policy" => {
                let entry = PathPolicy::ALL.into_iter().find(|(name, _)| *name == value);
                self.policy = entry.ok_or_else(invalid_value)?.1;
            }
            "receive-buffer" => {
                self.receive_window_bytes = largest_size(value).map_err(|_| invalid_value())?;
            }
            "send-buffer" => {
                self.send_window_bytes = largest_size(value).map_err(|_| invalid_value())?;
            }
            _ => return Err(SettingError::Unknown(name.to_owned())),
        }
        Ok(())
    }

    /// Returns the receive window in use, clamped to [`MAX_WINDOW_BYTES`].
    pub fn window_bytes(&self) -> u64 {
        self.receive_window_bytes.clamp(1, MAX_WINDOW_BYTES)
    }

    /// Builds the library's transport settings.
    pub(crate) fn transport(&self, factory: CongestionFactory) -> TransportConfig {
        let mut transport = TransportConfig::default();
        let window = var_int(self.window_bytes());
        let connection_window =
            self.initial_window_bytes.map_or(window, |bytes| var_int(bytes.max(1)));
        let max_bytes = self.max_datagram_bytes.max(MIN_DATAGRAM_BYTES);
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(max_bytes);
        let factory: Arc<dyn ControllerFactory + Send + Sync> = Arc::new(factory);
        transport
            .stream_receive_window(window)
            .receive_window(connection_window)
            .send_window(self.send_window_bytes.max(1))
            .max_concurrent_bidi_streams(self.max_streams.into())
            .max_concurrent_uni_streams(0_u32.into())
            .max_idle_timeout(IdleTimeout::try_from(self.idle_timeout).ok())
            .keep_alive_interval(self.keep_alive)
            .mtu_discovery_config(Some(discovery))
            .allow_spin(false)
            .datagram_receive_buffer_size(None)
            .congestion_controller_factory(factory);
        if let Some(qlog) = &self.qlog {
            transport.qlog_factory(Arc::new(qlog.clone()));
        }
        if self.multipath {
            // Never set a path's own idle timeout: acknowledgements of all paths return on one of
            // them, so healthy paths would be abandoned.
            transport.max_concurrent_multipath_paths(MAX_PATHS);
        }
        transport
    }
}

/// Converts a window to the library's integer.
pub(crate) fn var_int(bytes: u64) -> VarInt {
    VarInt::from_u64(bytes).unwrap_or(VarInt::MAX)
}

/// Parses the last number: Linux's buffer settings have three, of which the last is the largest.
fn largest_size(value: &str) -> Result<u64, ParseIntError> {
    value.split_ascii_whitespace().next_back().unwrap_or_default().parse()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_by_name() {
        let texts = [("path-policy", "ios"), ("receive-buffer", "4096 131072 400000")];
        let config = QuicConfig::from_texts(texts).unwrap();
        assert_eq!((config.policy, config.window_bytes()), (PathPolicy::Ios, 400_000));
        let error = QuicConfig::from_texts([("path-policy", "fastest")]).unwrap_err();
        assert_eq!(error.to_string(), "`path-policy` cannot be `fastest`");
        let error = QuicConfig::from_texts([("checksum", "true")]).unwrap_err();
        assert_eq!(error, SettingError::Unknown("checksum".to_owned()));
    }

    #[test]
    fn a_window_never_exceeds_the_library_limit() {
        let config = QuicConfig { receive_window_bytes: 16_000_000, ..QuicConfig::default() };
        assert_eq!(config.window_bytes(), MAX_WINDOW_BYTES);
    }
}
