//! Listener at the server: echoes received data, as far as the client reads it.

use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use towpath_kernel::sample::is_multipath;
use towpath_os::namespace::Namespace;

use super::case::{self, ServerBehaviour};
use super::servers;

/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// Maximum bytes per read.
const READ_BYTES: usize = 64 * 1024;

/// Listens in `namespace` until the process ends; returns when connections are accepted.
pub(crate) fn serve(namespace: &Namespace, port: u16, kind: ServerBehaviour) -> io::Result<()> {
    let protocol = match kind {
        ServerBehaviour::Nothing => return Ok(()),
        ServerBehaviour::Plain => Protocol::TCP,
        ServerBehaviour::Multipath
        | ServerBehaviour::Once
        | ServerBehaviour::Web
        | ServerBehaviour::Tls
        | ServerBehaviour::Ssh
        | ServerBehaviour::ClosesOnData
        | ServerBehaviour::Idle => Protocol::MPTCP,
    };
    let socket = namespace.run(|| {
        // Like programs with Multipath TCP support: fall back to plain TCP without it.
        let open = |protocol| Socket::new(Domain::IPV6, Type::STREAM, Some(protocol));
        let socket = open(protocol).or_else(|_| open(Protocol::TCP))?;
        socket.set_only_v6(false)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SockAddr::from(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))))?;
        socket.listen(BACKLOG)?;
        Ok::<_, io::Error>(socket)
    })??;
    thread::Builder::new().name("listener".into()).spawn(move || {
        while let Ok((connection, _)) = socket.accept() {
            let is_last = kind == ServerBehaviour::Once && is_multipath(&connection);
            // If no thread can be created, the connection is closed.
            let _ = thread::Builder::new().name("server".into()).spawn(move || match kind {
                ServerBehaviour::Web
                | ServerBehaviour::Tls
                | ServerBehaviour::Ssh
                | ServerBehaviour::ClosesOnData
                | ServerBehaviour::Idle => {
                    let _ = servers::serve(kind, &connection);
                } // the client may be gone
                ServerBehaviour::Multipath
                | ServerBehaviour::Plain
                | ServerBehaviour::Once
                | ServerBehaviour::Nothing => {
                    echo(&connection);
                }
            });
            if is_last {
                return;
            }
        }
    })?;
    Ok(())
}

/// Echoes data; drops what the client does not read in time.
fn echo(mut connection: &Socket) {
    let mut chunk = vec![0; READ_BYTES];
    loop {
        let Ok(read @ 1..) = connection.read(&mut chunk) else { return };
        let data = chunk.get(..read).unwrap_or(&[]);
        if connection.set_nonblocking(true).is_err() {
            return;
        }
        let _ = connection.write(data); // what does not fit is dropped
        if connection.set_nonblocking(false).is_err() {
            return;
        }
    }
}

/// Data that an application sends at each interval.
const KEEPALIVE_PAYLOAD: &[u8] = b"still there";
/// Interval between two keepalive payloads.
const SEND_INTERVAL: Duration = Duration::from_millis(50);
/// Size of a burst: more than a subflow's initial window, so that all subflows are used.
const BURST_BYTES: usize = 60_000;
/// Time between two bursts.
const BURST_PAUSE: Duration = Duration::from_millis(1_200);

/// Opens a connection of a client application, which sends on it regularly.
pub(crate) fn start_application(
    namespace: &Namespace,
    target: SocketAddr,
    kind: case::AppSocket,
) -> io::Result<()> {
    let (protocol, payload, interval) = match kind {
        case::AppSocket::Plain => (Protocol::TCP, KEEPALIVE_PAYLOAD.to_vec(), SEND_INTERVAL),
        case::AppSocket::Multipath => (Protocol::MPTCP, KEEPALIVE_PAYLOAD.to_vec(), SEND_INTERVAL),
        case::AppSocket::Bursts => (Protocol::MPTCP, vec![b'.'; BURST_BYTES], BURST_PAUSE),
    };
    let socket = namespace.run(|| {
        let domain = Domain::for_address(target);
        let socket = Socket::new(domain, Type::STREAM, Some(protocol))?;
        socket.connect(&SockAddr::from(target))?;
        Ok::<_, io::Error>(socket)
    })??;
    thread::Builder::new().name("application".into()).spawn(move || {
        let mut connection = &socket;
        // Linux opens further subflows only after data was acknowledged.
        let mut is_open = connection.write_all(KEEPALIVE_PAYLOAD).is_ok();
        while is_open {
            thread::sleep(interval);
            is_open = connection.write_all(&payload).is_ok();
        }
    })?;
    Ok(())
}
