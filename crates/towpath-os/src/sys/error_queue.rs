//! The ICMP message that ended a connection; users may read those of their own sockets (ip(7),
//! `IP_RECVERR`).

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use super::set_option;

/// ICMP message about a packet of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuedIcmpError {
    /// Address of the sender of the message.
    pub router: IpAddr,
    /// Type of the ICMP message.
    pub kind: u8,
    /// Code of the ICMP message.
    pub code: u8,
}

/// Buffer for the kernel's control messages, with their alignment.
#[repr(C, align(8))]
struct ErrorCmsgBuffer([u8; 256]);

/// Bytes of `struct cmsghdr`, and of `struct sock_extended_err` behind it.
const CMSG_HEADER_BYTES: usize = 16;
const SOCK_EXTENDED_ERR_BYTES: usize = 16;
/// Values of `ee_origin`: `SO_EE_ORIGIN_ICMP` and `SO_EE_ORIGIN_ICMP6`.
const ICMP_ORIGINS: [u8; 2] = [2, 3];

/// Makes the kernel keep messages about this socket's packets.
pub fn enable(fd: BorrowedFd<'_>, v4: bool) -> io::Result<()> {
    let (level, option) = if v4 {
        (libc::IPPROTO_IP, libc::IP_RECVERR)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
    };
    set_option(fd, level, option, &1_i32.to_ne_bytes())
}

/// Returns the first kept message; `None` without one.
pub fn first(fd: BorrowedFd<'_>) -> Option<QueuedIcmpError> {
    let mut control = ErrorCmsgBuffer([0; 256]);
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_control = (&raw mut control.0).cast();
    message.msg_controllen = control.0.len();
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: what `message` points to lives through the call, with the length given.
    let length = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, flags) };
    (length >= 0).then_some(())?;
    parse(control.0.get(..message.msg_controllen)?)
}

/// Parses a control message: its header, the error, and the address of the sender.
fn parse(control: &[u8]) -> Option<QueuedIcmpError> {
    let error = control.get(CMSG_HEADER_BYTES..)?;
    let &[_, _, _, _, origin, kind, code, ..] = error else { return None };
    let sender = error.get(SOCK_EXTENDED_ERR_BYTES..).filter(|_| ICMP_ORIGINS.contains(&origin))?;
    let family = i32::from(u16::from_ne_bytes(*sender.first_chunk()?));
    let router = match family {
        libc::AF_INET => Ipv4Addr::from(*sender.get(4..)?.first_chunk::<4>()?).into(),
        libc::AF_INET6 => Ipv6Addr::from(*sender.get(8..)?.first_chunk::<16>()?).into(),
        _ => return None,
    };
    Some(QueuedIcmpError { router, kind, code })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sender_of_a_message_is_read_with_its_type_and_code() {
        let error = [113, 0, 0, 0, 2, 3, 13, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let family = (libc::AF_INET as u16).to_ne_bytes();
        let sender = [&family[..], &[0, 0, 100, 64, 2, 2], &[0; 8]].concat();
        let control = [&[0; CMSG_HEADER_BYTES][..], &error, &sender].concat();
        let router = "100.64.2.2".parse().unwrap();
        assert_eq!(parse(&control), Some(QueuedIcmpError { router, kind: 3, code: 13 }));
        for length in 0..control.len() - 8 {
            assert_eq!(parse(&control[..length]), None, "{length}");
        }
    }
}
