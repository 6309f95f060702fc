//! Our own QUIC over UDP sockets.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use towpath_linux::quic::{
    ConnectionEvent, HostConfig, InterfacePolicy, QuicHandle, StreamHandler,
};
use towpath_linux::{ByteStream, Clock};
use towpath_net::Instant;
use towpath_quic::{ConnectionError, QuicConfig};

use super::{CHUNK_BYTES, Failure, MAX_DATAGRAM, Shared, WINDOW_BYTES};

/// Endpoint that writes as much as it can.
struct Source(Bytes);

impl StreamHandler for Source {
    fn progress(&mut self, now: Instant, pipe: &mut dyn ByteStream) {
        while pipe.write(now, &mut self.0.clone()) == self.0.len() {}
    }

    fn closed(&mut self, _: Instant, _: Option<&ConnectionError>) {}
}

/// Endpoint that reads and counts all data.
struct Sink(Arc<Shared>, mpsc::Sender<()>);

impl StreamHandler for Sink {
    fn progress(&mut self, now: Instant, pipe: &mut dyn ByteStream) {
        while let Some(data) = pipe.read(now) {
            if data.is_empty() {
                return;
            }
            self.0.read(data.len());
        }
        if self.0.is_over() {
            let _ = self.1.send(());
        }
    } // the receiver may be gone
    fn closed(&mut self, _: Instant, _: Option<&ConnectionError>) {}
}

fn host(name: &str) -> Result<QuicHandle, Failure> {
    let config = HostConfig {
        name: name.to_owned(),
        clock: Clock::start(),
        seed: None,
        namespace: None,
        interfaces: InterfacePolicy::all(),
    };
    Ok(QuicHandle::start(config)?)
}

pub(super) fn run(shared: &Arc<Shared>, multipath: bool) -> Result<(), Failure> {
    let config = QuicConfig {
        multipath,
        max_datagram_bytes: MAX_DATAGRAM,
        receive_window_bytes: u64::from(WINDOW_BYTES),
        ..QuicConfig::default()
    };
    let (server, client) = (host("server")?, host("client")?);
    let accepting = config.clone();
    let (_, port) = server.call(|turn| {
        turn.listen(0, accepting, |turn, connection| {
            turn.on_event(connection, |turn, connection, happened| {
                if let ConnectionEvent::StreamOpened(stream) = happened {
                    let data = Bytes::from(vec![7; CHUNK_BYTES]);
                    turn.attach(connection, *stream, Box::new(Source(data)));
                }
            });
        })
    })??;
    let (ended, end) = mpsc::channel();
    let shared = Arc::clone(shared);
    client.call(move |turn| {
        let remote = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        let connection = turn.connect(None, remote, config)?;
        turn.on_event(connection, move |turn, connection, happened| {
            if *happened != ConnectionEvent::Connected {
                return;
            }
            let Some(stream) = turn.host.open_stream(connection) else { return };
            // The peer sees a stream only after data or its end was sent on it.
            let _ = turn.host.finish(turn.now, connection, stream);
            let sink = Sink(Arc::clone(&shared), ended.clone());
            turn.attach(connection, stream, Box::new(sink));
        });
        Ok::<_, std::io::Error>(())
    })??;
    end.recv_timeout(Duration::from_secs(120))?;
    client.finish()?;
    server.finish()?;
    Ok(())
}
