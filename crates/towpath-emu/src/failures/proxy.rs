//! Transparent proxy: a router that accepts the clients' TCP connections in the server's name.
//!
//! For each connection it opens one of plain TCP to the server, from its own address. Multipath TCP
//! therefore ends at the proxy.

use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, Shutdown, SocketAddr};
use std::sync::Arc;
use std::thread;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use towpath_netlink::{Prefix, RuleSpec};

use super::PORT;
use crate::network::{HostNamespace, NetworkError};

/// Routing table of the addresses that the proxy accepts, and the priority of its rules.
const TABLE: u32 = 200;
/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// Maximum bytes per read.
const READ_BYTES: usize = 64 * 1024;

/// Makes a router accept connections from `clients` to `servers`; it ends with the process.
pub(super) fn start(
    router: &HostNamespace,
    clients: [Prefix; 2],
    servers: &[Prefix],
) -> Result<(), NetworkError> {
    let mut route = router.route();
    let mut add_routes = || {
        for from in clients {
            let rule = RuleSpec { from, to: None, table: TABLE, priority: Some(TABLE) };
            route.add_rule(&rule)?;
        }
        servers.iter().try_for_each(|server| route.add_local_route(*server, TABLE))
    };
    add_routes().map_err(NetworkError::kernel(&router.name))?;
    accept_connections(router).map_err(NetworkError::system("start a proxy"))
}

fn accept_connections(router: &HostNamespace) -> io::Result<()> {
    let listener = router.namespace.run(|| {
        let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_only_v6(false)?;
        socket.set_ip_transparent_v4(true).or_else(|_| socket.set_ip_transparent_v6(true))?;
        socket.bind(&SockAddr::from(SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT))))?;
        socket.listen(BACKLOG)?;
        Ok::<_, io::Error>(socket)
    })??;
    let namespace = router.namespace.clone();
    thread::Builder::new().name("proxy".into()).spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let Ok(server_address) = client.local_addr() else { continue };
            let namespace = namespace.clone();
            // If no thread can be created, the connection is closed.
            let _ = thread::Builder::new().name("proxied".into()).spawn(move || {
                let connect = || {
                    let server = Socket::new(server_address.domain(), Type::STREAM, None)?;
                    server.connect(&server_address)?;
                    Ok::<_, io::Error>(server)
                };
                if let Ok(Ok(server)) = namespace.run(connect) {
                    relay(client, server);
                }
            });
        }
    })?;
    Ok(())
}

/// Copies data in both directions until both have ended.
fn relay(client: Socket, server: Socket) {
    let (client, server) = (Arc::new(client), Arc::new(server));
    let (from, to) = (Arc::clone(&client), Arc::clone(&server));
    let upload = thread::Builder::new().name("upload".into()).spawn(move || copy(&from, &to));
    copy(&server, &client);
    // The thread may have panicked; its connection is then closed.
    let _ = upload.map(thread::JoinHandle::join);
}

fn copy(mut from: &Socket, mut to: &Socket) {
    let mut chunk = vec![0; READ_BYTES];
    while let Ok(read @ 1..) = from.read(&mut chunk) {
        if to.write_all(chunk.get(..read).unwrap_or_default()).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write); // the other end may be gone
}
