//! Neighbours: link-layer addresses that were learnt by ARP.

use std::net::IpAddr;

use super::RouteSocket;
use crate::error::NetlinkError;
use crate::wire::{Attributes, Malformed, Message, MessageBuilder, StructReader};

/// `NDA_DST`: the neighbour's address (`linux/neighbour.h`).
const NDA_DST: u16 = 1;
/// `NUD_NOARP` and `NUD_PERMANENT`: states of entries that were not learnt.
const STATIC_STATES: u16 = 0x40 | 0x80;
/// `struct ndmsg`: family, padding, interface, state, flags, type.
const NDMSG_BYTES: usize = 12;

/// Neighbour entry that was learnt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Neighbour {
    link_index: u32,
    address: IpAddr,
}

impl RouteSocket {
    /// Deletes the IPv4 neighbours learnt on `link`; the kernel resolves them again when needed.
    /// Entries that were set by hand remain.
    pub fn forget_neighbours(&mut self, link: &str) -> Result<(), NetlinkError> {
        let action = format_args!("flush the neighbours of `{link}`");
        let index = self.index(link, action)?;
        let payload = MessageBuilder::new(&ndmsg(0));
        let parse = Neighbour::parse;
        let neighbours = self.requests.dump(libc::RTM_GETNEIGH, &payload, action, parse)?;
        for neighbour in neighbours.iter().filter(|neighbour| neighbour.link_index == index) {
            let payload = MessageBuilder::new(&ndmsg(index)).ip(NDA_DST, neighbour.address);
            let result = self.requests.change(libc::RTM_DELNEIGH, 0, &payload, action);
            // The entry may have expired meanwhile.
            match result {
                Err(error) if error.errno() != Some(libc::ENOENT) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

fn ndmsg(link_index: u32) -> [u8; NDMSG_BYTES] {
    let [i0, i1, i2, i3] = link_index.to_ne_bytes();
    [libc::AF_INET as u8, 0, 0, 0, i0, i1, i2, i3, 0, 0, 0, 0]
}

impl Neighbour {
    /// Reads a row of the listing; `None` for one that was not learnt.
    fn parse(message: &Message<'_>) -> Result<Option<Self>, Malformed> {
        let mut reader = StructReader::new(message.body, "ndmsg");
        let [_family, _, _, _] = reader.take()?;
        let link_index = reader.u32()?;
        let state = reader.u16()?;
        let [_flags, _kind] = reader.take()?;
        let mut address = None;
        for attribute in Attributes::new(reader.rest()) {
            let attribute = attribute?;
            if attribute.kind == NDA_DST {
                address = Some(attribute.ip()?);
            }
        }
        let address = address.filter(|_| state & STATIC_STATES == 0);
        Ok(address.map(|address| Self { link_index, address }))
    }
}

#[cfg(test)]
#[cfg(target_endian = "little")]
mod tests {
    use super::*;
    use crate::wire::tests::{never_panics, parse_all};

    const RECORDED: &str = include_str!("../recorded/neighbours.hex");

    #[test]
    fn recorded_neighbours_are_distinguished_by_origin() {
        let neighbours = parse_all(RECORDED, |message| Neighbour::parse(message).unwrap());
        let address = "10.0.0.2".parse().unwrap();
        assert_eq!(neighbours, [Some(Neighbour { link_index: 3, address }), None]);
        never_panics(RECORDED, Neighbour::parse);
    }
}
