//! The server's end of datagrams that are sent back at once.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use towpath_measure::live::Token;
use towpath_measure::live::datagram::{self, Datagram};

use crate::traffic::kernel::is_impatient;

/// How often the thread looks whether it shall end.
const PATIENCE: Duration = Duration::from_millis(200);

/// A socket for datagrams; without an address for both families.
pub(super) fn bind(address: Option<IpAddr>, port: u16) -> io::Result<UdpSocket> {
    match open(address.unwrap_or(Ipv6Addr::UNSPECIFIED.into()), port, address.is_none()) {
        // A host without IPv6.
        Err(error) if address.is_none() && error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
            open(Ipv4Addr::UNSPECIFIED.into(), port, false)
        }
        bound => bound,
    }
}

fn open(address: IpAddr, port: u16, both: bool) -> io::Result<UdpSocket> {
    let address = SocketAddr::new(address, port);
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    if domain == Domain::IPV6 {
        socket.set_only_v6(!both)?;
    }
    socket.bind(&SockAddr::from(address))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket.into())
}

/// Answers until `ends`. Whoever cannot be reached does not end it for others.
pub(super) fn answer_all(
    socket: &UdpSocket,
    admits: impl Fn(Token) -> bool,
    ends: impl Fn() -> bool,
) {
    // One byte more shows what is too long.
    let mut room = [0; Datagram::BYTES + 1];
    while !ends() {
        match socket.recv_from(&mut room) {
            Ok((length, from)) => {
                let question = room.get(..length).unwrap_or_default();
                if let Some(answer) = datagram::answer(question, &admits) {
                    let _lost_as_others = socket.send_to(&answer, from);
                }
            }
            // An earlier answer was refused, or the time is over.
            Err(error) if is_impatient(&error) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(_) => std::thread::sleep(PATIENCE),
        }
    }
}
