//! The kernel's end of every trial, and trials with the kernel at both ends.

use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use towpath_netlink::{
    Endpoint, EndpointFlags, MptcpPm, Prefix, RouteSocket, RouteSpec, RuleSpec, VethEnd,
};
use towpath_os::Namespace;

use crate::network::{PORT, address, configure_kernel, target};
use crate::{Case, Failure, Shared, TrialMetrics, observe};

/// Bytes per read or write call.
const CHUNK_BYTES: usize = 128 * 1024;
const HANG_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) fn create_socket(namespace: &Namespace, protocol: Protocol) -> Result<Socket, Failure> {
    let socket = namespace.run(|| Socket::new(Domain::IPV4, Type::STREAM, Some(protocol)))??;
    socket.set_tcp_congestion(b"cubic")?;
    Ok(socket)
}

/// Accepts one connection, and reads and counts or writes until the trial is over.
pub(crate) fn serve(
    namespace: &Namespace,
    protocol: Protocol,
    reads: bool,
    shared: &Arc<Shared>,
) -> Result<JoinHandle<()>, Failure> {
    let listener = create_socket(namespace, protocol)?;
    listener.set_reuse_address(true)?;
    listener.bind(&SockAddr::from(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), PORT)))?;
    listener.listen(8)?;
    listener.set_read_timeout(Some(HANG_TIMEOUT))?;
    let shared = Arc::clone(shared);
    Ok(thread::spawn(move || {
        let Ok((stream, _)) = listener.accept() else { return };
        let _ = stream.set_read_timeout(Some(Duration::from_millis(200))); // only delays the end
        let _ = stream.set_write_timeout(Some(Duration::from_millis(200)));
        if reads { read(&stream, &shared) } else { write(&stream, &shared) }
    }))
}

fn read(stream: &Socket, shared: &Shared) {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut reader = stream;
    while !shared.is_over() {
        match read_until_timeout(&mut reader, &mut buffer) {
            Some(0) => return,
            Some(length) => {
                shared.bytes.fetch_add(length as u64, Ordering::Relaxed);
            }
            None => {}
        }
    }
}

/// Reads data; `None` when nothing arrived in time.
fn read_until_timeout(reader: &mut &Socket, buffer: &mut [u8]) -> Option<usize> {
    match std::io::Read::read(reader, buffer) {
        Ok(length) => Some(length),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
        Err(_) => Some(0),
    }
}

fn write(stream: &Socket, shared: &Shared) {
    let data = vec![0x74; CHUNK_BYTES];
    while !shared.is_over() {
        match stream.send(&data) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
    let _ = stream.shutdown(Shutdown::Both); // may be closed already
}

/// Runs a trial with two kernels and a veth pair for each path.
pub(crate) fn trial(case: Case, length: Duration) -> Result<TrialMetrics, Failure> {
    let (near, far) = (Namespace::create()?, Namespace::create()?);
    far.run(configure_kernel)??;
    near.run(configure_kernel)??;
    let mut near_route = near.run(RouteSocket::open)??;
    let mut far_route = far.run(RouteSocket::open)??;
    for path in 0..case.paths {
        let name = format!("path{path}");
        let veth_end = |namespace| VethEnd { name: &name, namespace, ..VethEnd::default() };
        near_route.add_veth(&veth_end(None), &veth_end(Some(far.as_fd())))?;
        for (route, host) in [(&mut near_route, 2), (&mut far_route, 1)] {
            route.set_up(&name)?;
            route.add_address(&name, Prefix::new(address(path, host), 24)?)?;
        }
        let table = 100 + u32::from(path);
        let from = Prefix::host(address(path, 2));
        near_route.add_rule(&RuleSpec { from, to: None, table, priority: Some(table) })?;
        near_route.add_route(&RouteSpec {
            to: Prefix::ALL_V4,
            link: &name,
            gateway: Some(address(path, 1)),
            source: None,
            table: Some(table),
            metric: None,
        })?;
        let link_index = Some(near_route.link(&name)?.index);
        let flags = EndpointFlags::SUBFLOW;
        let endpoint =
            Endpoint { address: address(path, 2), id: None, port: None, flags, link_index };
        near.run(|| MptcpPm::open()?.add_endpoint(&endpoint))??;
    }
    let shared = Arc::new(Shared::default());
    // The kernel's subflows are not queried: both paths are configured.
    shared.subflows.store(u64::from(case.paths), Ordering::Relaxed);
    let server = serve(&far, Protocol::MPTCP, true, &shared)?;
    let client = create_socket(&near, Protocol::MPTCP)?;
    client.connect_timeout(&SockAddr::from(target()), HANG_TIMEOUT)?;
    let writer = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || write(&client, &shared))
    };
    let metrics = observe(case, length, &shared);
    let sent_bytes: Vec<u64> = (0..case.paths)
        .map(|path| near_route.link(&format!("path{path}")).map(|link| link.stats.tx_bytes))
        .collect::<Result<_, _>>()?;
    shared.over.store(true, Ordering::Relaxed);
    let _ = (writer.join(), server.join()); // a panic has already been printed
    if sent_bytes.iter().any(|bytes| *bytes < 1_000_000) {
        return Err(format!("not every path was used: {sent_bytes:?} bytes").into());
    }
    metrics
}
