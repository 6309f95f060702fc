//! QUIC connections of flows, and their streams, for the threads that start and sample them.
//! Bytes are moved in the hosts' QUIC threads.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use towpath_kernel::sample;
use towpath_kernel::sample::{MptcpInfo, SubflowSample, TcpInfo};
use towpath_net::Instant;
use towpath_quic::{
    ConnectionId, ConnectionStatus, PathNotice, PathState, PathStatus, QuicConfig, StreamId,
    congestion,
};

use super::app::{EventReceiver, StreamApp};
use crate::quic::{ConnectionEvent, DriverContext, QuicHandle, wait_interruptibly};

/// One end of a stream, for the sampler.
#[derive(Debug, Clone)]
pub struct QuicStreamHandle {
    /// Connection of the stream.
    pub connection: QuicConnection,
    /// True for the connection's first stream: only this one reports the paths, so that they count
    /// once.
    pub first: bool,
}

/// Handle of one end of a connection.
#[derive(Debug, Clone)]
pub struct QuicConnection {
    /// QUIC driver of the host.
    pub host: Arc<QuicHandle>,
    /// Connection within the host.
    pub id: ConnectionId,
    /// Log of the connection.
    pub log: Arc<Mutex<QuicEventLog>>,
}

/// Log of the events at one end of a connection.
#[derive(Debug, Default)]
pub struct QuicEventLog {
    /// Notices since the last call, with the addresses of their paths.
    notices: Vec<TimedNotice>,
    /// Number of notices by [`PathNotice::counter`](towpath_quic::PathNotice::counter).
    counts: BTreeMap<&'static str, u64>,
    /// Final status; `None` while the connection is open.
    final_status: Option<ConnectionStatus>,
}

/// Notice about the paths of a connection, with its time.
#[derive(Debug, Clone)]
pub struct TimedNotice {
    /// Time of the notice.
    pub at: Instant,
    /// Content of the notice.
    pub notice: PathNotice,
    /// Local and remote address of the path, if known.
    pub ends: Option<(SocketAddr, SocketAddr)>,
}

/// Locks a mutex, also after a panic of another thread.
pub fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl QuicEventLog {
    /// Records a connection's events in a log and passes each to `on_event`.
    pub fn attach(
        driver: &mut DriverContext<'_>,
        id: ConnectionId,
        mut on_event: impl FnMut(&mut DriverContext<'_>, &ConnectionEvent) + Send + 'static,
    ) -> Arc<Mutex<Self>> {
        let shared_log = Arc::default();
        let log: Arc<Mutex<Self>> = Arc::clone(&shared_log);
        driver.on_event(id, move |driver, id, event| {
            match event {
                ConnectionEvent::Notice(notice) => {
                    let status = driver.host.status(id);
                    let paths = status.iter().flat_map(|status| &status.paths);
                    let path = { paths }.find(|path| Some(path.number) == notice.path());
                    let ends = path.map(|path| (path.local, path.remote));
                    let mut log = lock(&log);
                    *log.counts.entry(notice.counter()).or_default() += 1;
                    log.notices.push(TimedNotice { at: driver.now, notice: notice.clone(), ends });
                }
                ConnectionEvent::Closed(_) => lock(&log).final_status = driver.host.status(id),
                ConnectionEvent::Connected
                | ConnectionEvent::StreamOpened(_)
                | ConnectionEvent::Readable(_) => {}
            }
            on_event(driver, event);
        });
        shared_log
    }
}

impl QuicConnection {
    /// Creates the handle of an accepted connection, with its log from [`QuicEventLog::attach`].
    pub fn accepted(
        host: Arc<QuicHandle>,
        id: ConnectionId,
        log: Arc<Mutex<QuicEventLog>>,
    ) -> Self {
        Self { host, id, log }
    }

    /// Opens a connection, from `local` if given, and waits until it is established.
    pub fn connect(
        host: &Arc<QuicHandle>,
        (local, remote): (Option<IpAddr>, SocketAddr),
        config: QuicConfig,
        timeout: Duration,
    ) -> io::Result<Self> {
        let (result_sender, results) = mpsc::channel();
        let (id, log) = host.call(move |driver| {
            let id = driver.connect(local, remote, config)?;
            let log = QuicEventLog::attach(driver, id, move |_, event| {
                let result = match event {
                    ConnectionEvent::Connected => Ok(()),
                    ConnectionEvent::Closed(Some(error)) => Err(io::Error::other(error.clone())),
                    ConnectionEvent::Closed(None) => Err(io::ErrorKind::ConnectionReset.into()),
                    ConnectionEvent::StreamOpened(_)
                    | ConnectionEvent::Readable(_)
                    | ConnectionEvent::Notice(_) => return,
                };
                let _ = result_sender.send(result); // the receiver may be gone
            });
            Ok::<_, io::Error>((id, log))
        })??;
        let connected = wait_interruptibly(timeout, |step| {
            results.recv_timeout(step).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        });
        if let Err(error) = connected {
            host.post(move |driver| driver.close(id));
            return Err(error);
        }
        Ok(Self { host: Arc::clone(host), id, log })
    }

    /// Opens a stream and writes `first`; its application is attached later. Waits until the peer
    /// admits another stream.
    pub fn open_stream(&self, first: &[u8], timeout: Duration) -> io::Result<StreamId> {
        const RETRY_INTERVAL: Duration = Duration::from_millis(1);
        let clock = self.host.clock();
        let deadline = clock.now() + timeout;
        loop {
            let (id, mut first) = (self.id, Bytes::copy_from_slice(first));
            let opened = self.host.call(move |driver| {
                let Some(stream) = driver.host.open_stream(id) else { return Ok(None) };
                let written = driver.host.write(driver.now, id, stream, &mut first);
                match written {
                    Ok(_) if first.is_empty() => Ok(Some(stream)),
                    Ok(_) | Err(_) => Err(io::Error::other("the peer accepts no data")),
                }
            })?;
            match opened? {
                Some(stream) => return Ok(stream),
                None if clock.now() >= deadline => {
                    return Err(io::Error::other("the peer admits no more streams"));
                }
                None => clock.sleep_until(clock.now() + RETRY_INTERVAL),
            }
        }
    }

    /// Attaches an application to a stream.
    pub fn attach(&self, stream: StreamId, app: StreamApp) {
        let id = self.id;
        self.host.post(move |driver| driver.attach(id, stream, Box::new(app)));
    }

    /// Returns the connection's ID within its host.
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// Opens a stream and attaches an application to it.
    pub fn open_app_stream(
        &self,
        (app, events): (StreamApp, EventReceiver),
    ) -> io::Result<EventReceiver> {
        let id = self.id;
        let opened = self.host.call(move |driver| {
            let stream = driver.host.open_stream(id)?;
            driver.attach(id, stream, Box::new(app));
            Some(())
        })?;
        opened.ok_or_else(|| io::Error::other("the peer admits no more streams"))?;
        Ok(events)
    }

    /// Returns the current status, or the last one of a closed connection.
    pub fn status(&self) -> Option<ConnectionStatus> {
        let id = self.id;
        let current = self.host.call(move |driver| driver.host.status(id)).ok().flatten();
        current.or_else(|| lock(&self.log).final_status.clone())
    }

    /// Returns the notices since the previous call.
    pub fn notices(&self) -> Vec<TimedNotice> {
        std::mem::take(&mut lock(&self.log).notices)
    }

    /// Returns the number of notices by name.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.log).counts.clone()
    }
}

impl QuicStreamHandle {
    /// Creates a handle; only the `first` stream reports its connection's paths.
    pub fn new(connection: QuicConnection, first: bool) -> Self {
        Self { connection, first }
    }

    /// Samples the connection like [`sample::connection`] does for the kernel's sockets.
    pub fn sample(&self) -> io::Result<sample::ConnectionSample> {
        let status = if self.first { self.connection.status() } else { None };
        let status = status.ok_or(io::ErrorKind::NotConnected)?;
        let control = congestion::names().map(|(name, _)| name);
        let control = { control }.find(|name| *name == status.congestion_control);
        let mut paths: Vec<SubflowSample> =
            status.paths.iter().map(|path| path_sample(path, control)).collect();
        if status.multipath || paths.len() > 1 {
            let info = MptcpInfo { fallback: !status.multipath, ..MptcpInfo::default() };
            return Ok(sample::ConnectionSample::Multipath(info, paths));
        }
        let single_path = paths.pop().ok_or(io::ErrorKind::NotConnected)?;
        Ok(sample::ConnectionSample::Single(single_path, None))
    }

    /// Returns true if this stream reports its connection's paths.
    pub fn is_first(&self) -> bool {
        self.first
    }
}

/// Converts a path's status to a subflow sample. Bytes are UDP payload: the library does not count
/// stream bytes by path.
fn path_sample(path: &PathStatus, congestion_control: Option<&'static str>) -> SubflowSample {
    let mtu = u64::from(path.mtu_bytes.max(1));
    let micros = |span: Duration| u32::try_from(span.as_micros()).unwrap_or(u32::MAX);
    let packets = |bytes: u64| u32::try_from(bytes / mtu).unwrap_or(u32::MAX);
    let ssthresh = path.ssthresh_bytes.map_or(u32::MAX, packets);
    SubflowSample {
        number: path.number,
        local: path.local,
        remote: path.remote,
        backup: Some(path.backup),
        stream_frames: Some(path.received_stream_frames),
        congestion_control,
        info: TcpInfo {
            state: match path.state {
                PathState::Validating => TcpInfo::QUIC_VALIDATING,
                PathState::Established => TcpInfo::ESTABLISHED,
                PathState::Abandoned { .. } => TcpInfo::QUIC_ABANDONED,
            },
            rto_us: micros(path.pto),
            mss_bytes: u32::from(path.mtu_bytes),
            unacked: packets(path.in_flight_bytes.saturating_add(mtu - 1)),
            srtt_us: micros(path.srtt),
            rttvar_us: micros(path.rttvar),
            // In Linux, an unset threshold is a very large number of packets.
            ssthresh: ssthresh.min(i32::MAX as u32),
            cwnd: packets(path.cwnd_bytes),
            total_retrans: u32::try_from(path.lost_packets).unwrap_or(u32::MAX),
            bytes_acked: path.acked_bytes,
            bytes_received: path.received_bytes,
            bytes_sent: path.sent_bytes,
            ..TcpInfo::default()
        },
    }
}
