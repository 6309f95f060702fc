//! A log of all events of a connection (draft-ietf-quic-qlog-main-schema), on demand.

use std::fmt;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time;

use noq_proto::{ConnectionId, QlogConfig, QlogFactory, Side};

type QlogWriter = Box<dyn Write + Send + Sync>;

/// Log of the first connection that uses it; later connections are not logged.
#[derive(Clone)]
pub struct Qlog(Arc<Mutex<Option<QlogWriter>>>);

impl Qlog {
    /// Creates a log that writes records to `log`, one JSON text each (RFC 7464).
    pub fn new(log: impl Write + Send + Sync + 'static) -> Self {
        Self(Arc::new(Mutex::new(Some(Box::new(log)))))
    }
}

impl fmt::Debug for Qlog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qlog").finish_non_exhaustive()
    }
}

impl PartialEq for Qlog {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Qlog {}

impl QlogFactory for Qlog {
    fn for_connection(
        &self,
        _side: Side,
        _remote: SocketAddr,
        _first: ConnectionId,
        now: time::Instant,
    ) -> Option<QlogConfig> {
        let log = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let mut config = QlogConfig::new(log);
        config.start_time(now);
        Some(config)
    }
}
