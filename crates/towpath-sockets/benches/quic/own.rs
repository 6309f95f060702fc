//! Our own QUIC over UDP sockets.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use towpath_net::Instant;
use towpath_os::Clock;
use towpath_quic::{ConnectionError, QuicConfig};
use towpath_sockets::ByteStream;
use towpath_sockets::quic::{
    ConnectionEvent, HostConfig, InterfacePolicy, QuicHandle, StreamHandler,
};

use super::{CHUNK_BYTES, Failure, MAX_DATAGRAM, Shared, WINDOW_BYTES};

/// Endpoint that writes as much as it can.
struct Source(Bytes);

impl StreamHandler for Source {
    fn progress(&mut self, now: Instant, stream: &mut dyn ByteStream) {
        while stream.write(now, &mut self.0.clone()) == self.0.len() {}
    }

    fn closed(&mut self, _: Instant, _: Option<&ConnectionError>) {}
}

/// Endpoint that reads and counts all data, and reports the end of the trial.
struct Sink(Arc<Shared>, mpsc::Sender<()>);

impl StreamHandler for Sink {
    fn progress(&mut self, now: Instant, stream: &mut dyn ByteStream) {
        while let Some(data) = stream.read(now) {
            if data.is_empty() {
                return;
            }
            self.0.add_bytes(data.len());
        }
        if self.0.is_over() {
            let _ = self.1.send(()); // the receiver may be gone
        }
    }

    fn closed(&mut self, _: Instant, _: Option<&ConnectionError>) {}
}

fn start_host(name: &str) -> Result<QuicHandle, Failure> {
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
    let (server, client) = (start_host("server")?, start_host("client")?);
    let server_config = config.clone();
    let (_, port) = server.call(|driver| {
        driver.listen(0, server_config, |driver, connection| {
            driver.on_event(connection, |driver, connection, event| {
                if let ConnectionEvent::StreamOpened(stream) = event {
                    let data = Bytes::from(vec![7; CHUNK_BYTES]);
                    driver.attach(connection, *stream, Box::new(Source(data)));
                }
            });
        })
    })??;
    let (done_sender, done) = mpsc::channel();
    let shared = Arc::clone(shared);
    client.call(move |driver| {
        let remote = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        let connection = driver.connect(None, remote, config)?;
        driver.on_event(connection, move |driver, connection, event| {
            if *event != ConnectionEvent::Connected {
                return;
            }
            let Some(stream) = driver.host.open_stream(connection) else { return };
            // The peer sees a stream only after data or its end was sent on it.
            let _ = driver.host.finish(driver.now, connection, stream);
            let sink = Sink(Arc::clone(&shared), done_sender.clone());
            driver.attach(connection, stream, Box::new(sink));
        });
        Ok::<_, std::io::Error>(())
    })??;
    done.recv_timeout(Duration::from_secs(120))?;
    client.finish()?;
    server.finish()?;
    Ok(())
}
