//! Tunnel in user space: IP packets of an interface in UDP datagrams over IPv6.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::thread;

use towpath_os::namespace::Namespace;
use towpath_os::sys;
use towpath_sockets::frame::{GsoFrame, GsoSegment, VirtioHeader};
use towpath_sockets::port::{BufferPool, EmulatorPort};

/// UDP port of both ends.
const PORT: u16 = 51_820;
/// Maximum datagram, in bytes.
const DATAGRAM_BYTES: usize = 2_048;

/// One end of a tunnel.
pub(super) struct TunnelEnd {
    /// Other end of the tunnel's interface.
    pub(super) port: EmulatorPort,
    /// Address of this end, which must exist.
    pub(super) local: IpAddr,
    /// Address of the other end.
    pub(super) remote: IpAddr,
}

/// Starts one end of a tunnel in a namespace; it ends with the process.
pub(super) fn start(namespace: &Namespace, end: TunnelEnd) -> io::Result<()> {
    let TunnelEnd { port, local, remote } = end;
    let socket = namespace.run(|| {
        let socket = UdpSocket::bind((local, PORT))?;
        socket.set_nonblocking(true)?;
        Ok::<_, io::Error>(socket)
    })??;
    thread::Builder::new().name("tunnel".into()).spawn(move || relay(port, &socket, remote))?;
    Ok(())
}

fn relay(mut port: EmulatorPort, socket: &UdpSocket, remote: IpAddr) {
    let mut pool = BufferPool::new();
    let mut datagram = [0; DATAGRAM_BYTES];
    let mut fds = [sys::input_pollfd(&port), sys::input_pollfd(socket)];
    while sys::poll(&mut fds, None).is_ok() {
        while let Ok(Some(received)) = port.read(&mut pool) {
            for segment in GsoSegment::split(received.frame) {
                // A datagram that cannot be sent is lost, as on any path.
                let _ = socket.send_to(&segment.to_bytes(), (remote, PORT));
            }
        }
        while let Ok(length) = socket.recv(&mut datagram) {
            let bytes = datagram.get(..length).unwrap_or_default().to_vec();
            // The interface may be down.
            let _ = port.write(&GsoSegment::whole(GsoFrame::new(VirtioHeader::default(), bytes)));
        }
    }
}
