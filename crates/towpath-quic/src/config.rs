//! How connections behave.

use std::num::ParseIntError;
use std::sync::Arc;
use std::time::Duration;

use noq_proto::congestion::ControllerFactory;
use noq_proto::{IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
pub use towpath_multipath::settings::SettingError;

use crate::congestion::CongestionFactory;
use crate::identity::{Identity, Trust};
use crate::qlog::Qlog;

/// Flow-control window at most. Above it the library takes many small packets in the reorder buffer
/// for an attack and closes the connection ("too many gaps in stream buffer").
pub const MAX_WINDOW_BYTES: u64 = 1_250_000;
/// Paths that a connection may have at the same time.
const MAX_PATHS: u32 = 8;
/// Streams that the peer may have open at the same time, unless it is told otherwise.
const MAX_STREAMS: u32 = 1_024;
/// UDP payload that every path must carry (RFC 9000 §14).
pub(crate) const MIN_DATAGRAM_BYTES: u16 = 1_200;

/// Which paths carry data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PathPolicy {
    /// All of them at once, but for those whose address is called a backup.
    #[default]
    Aggregate,
    /// The first one; another one when that is given up.
    Backup,
    /// The first one; another one already when the first is slow or late: it has a probe timeout
    /// running out, data that is unacknowledged for 600 ms, a smoothed round-trip time above 600 ms
    /// or a timeout above 1500 ms.
    Ios,
}

impl PathPolicy {
    /// Every policy with its name.
    pub const ALL: [(&str, Self); 3] =
        [("aggregate", Self::Aggregate), ("backup", Self::Backup), ("ios", Self::Ios)];
}

/// How a connection behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuicConfig {
    /// Offer Multipath QUIC, or accept it.
    pub multipath: bool,
    /// Name of the congestion control, see [`crate::congestion::names`].
    pub congestion_control: String,
    /// Which paths carry data.
    pub policy: PathPolicy,
    /// Bytes that the peer may send and we have not read, for each stream and all of them; more
    /// than [`MAX_WINDOW_BYTES`] is that.
    pub receive_window_bytes: u64,
    /// Bytes written and not yet acknowledged.
    pub send_window_bytes: u64,
    /// Of a connection that is accepted: the receive window of all its streams together, until
    /// [`crate::QuicStack::configure`] says what it is for. `None` is the window that it has later.
    pub initial_window_bytes: Option<u64>,
    /// Streams that the peer may have open at the same time.
    pub max_streams: u32,
    /// Silence after which the connection is given up.
    pub idle_timeout: Duration,
    /// So often something is sent where nothing else is, to keep the connection.
    pub keep_alive: Option<Duration>,
    /// UDP payload at most; path MTU discovery (RFC 8899) finds out what passes.
    pub max_datagram_bytes: u16,
    /// Datagrams in one transmission.
    pub segments: usize,
    /// Whom a host that begins connections speaks to.
    pub trust: Trust,
    /// Who a listener is; without one, anybody with this program.
    pub identity: Option<Identity>,
    /// Where a connection that this host begins is logged.
    pub qlog: Option<Qlog>,
    /// How a listener protects itself, and others, from forged source addresses.
    pub validation: AddressValidation,
}

/// What a listener does before it believes a peer's address (RFC 9000 §8.1). Whatever is chosen, at
/// most three times the bytes of an address go back to it until it has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressValidation {
    /// With so many unfinished handshakes, new peers must first show that they get what is sent to
    /// them: a Retry packet, and a round trip more. 0 is always.
    pub retry_from: usize,
    /// With so many, new peers get no answer.
    pub max_handshakes: usize,
    /// With so many connections of any kind, new peers get no answer.
    pub max_connections: usize,
}

impl AddressValidation {
    /// Nobody is asked or left out: for networks where all addresses are true.
    pub const NONE: Self =
        Self { retry_from: usize::MAX, max_handshakes: usize::MAX, max_connections: usize::MAX };
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
    /// The default, changed by settings by name: how scenarios reach this crate, which knows nothing
    /// of them. Sizes are bytes, buffers the three numbers of Linux. A later setting wins.
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
        let wrong = || SettingError::value(name, value);
        match name {
            "congestion-control" => value.clone_into(&mut self.congestion_control),
            "path-policy" => {
                let found = PathPolicy::ALL.into_iter().find(|(name, _)| *name == value);
                self.policy = found.ok_or_else(wrong)?.1;
            }
            "receive-buffer" => self.receive_window_bytes = max(value).map_err(|_| wrong())?,
            "send-buffer" => self.send_window_bytes = max(value).map_err(|_| wrong())?,
            _ => return Err(SettingError::Unknown(name.to_owned())),
        }
        Ok(())
    }

    /// The receive window that is really used.
    pub fn window_bytes(&self) -> u64 {
        self.receive_window_bytes.clamp(1, MAX_WINDOW_BYTES)
    }

    /// What the library is told.
    pub(crate) fn transport(&self, factory: CongestionFactory) -> TransportConfig {
        let mut transport = TransportConfig::default();
        let window = window(self.window_bytes());
        let first = self.initial_window_bytes.map_or(window, |first| self::window(first.max(1)));
        let most = self.max_datagram_bytes.max(MIN_DATAGRAM_BYTES);
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(most);
        let factory: Arc<dyn ControllerFactory + Send + Sync> = Arc::new(factory);
        transport
            .stream_receive_window(window)
            .receive_window(first)
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
            // Never a path's own idle timeout: acknowledgements of all paths return on one of
            // them, so that healthy paths would be given up.
            transport.max_concurrent_multipath_paths(MAX_PATHS);
        }
        transport
    }
}

/// As the library has it.
pub(crate) fn window(bytes: u64) -> VarInt {
    VarInt::from_u64(bytes).unwrap_or(VarInt::MAX)
}

/// The last of several sizes: buffers that grow have three.
fn max(value: &str) -> Result<u64, ParseIntError> {
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
    fn a_window_never_exceeds_what_the_library_survives() {
        let config = QuicConfig { receive_window_bytes: 16_000_000, ..QuicConfig::default() };
        assert_eq!(config.window_bytes(), MAX_WINDOW_BYTES);
    }
}
