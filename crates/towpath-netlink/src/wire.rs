//! Netlink's wire format: messages, attributes and acknowledgements.
//!
//! Layout from `linux/netlink.h` and `linux/genetlink.h`. Numbers are in the host's byte order
//! unless a field is named `be`. Parsers accept any bytes and never panic.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::prefix::Prefix;

/// Size of `struct nlmsghdr`, in bytes.
const NLMSG_HEADER_BYTES: usize = 16;
/// Size of `struct nlattr`, in bytes.
const NLATTR_HEADER_BYTES: usize = 4;
/// Alignment of messages and attributes, in bytes.
const ALIGNMENT: usize = 4;
/// `NLA_F_NESTED`; with `NLA_F_NET_BYTEORDER` it takes the two upper bits of an attribute's type.
const NESTED: u16 = 0x8000;
const ATTRIBUTE_TYPE: u16 = 0x3fff;
/// `NLMSGERR_ATTR_MSG`: the text of an extended acknowledgement.
const EXTACK_TEXT: u16 = 1;

/// Bytes from the kernel that do not have the documented layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A message, structure or attribute ends too early.
    #[error("{item} is truncated: {got} of {need} bytes")]
    Short {
        /// Name of the item that was being parsed.
        item: &'static str,
        /// Number of bytes that the item needs.
        need: usize,
        /// Number of bytes that are left.
        got: usize,
    },
    /// A mandatory attribute is missing.
    #[error("no {0} in the reply")]
    Missing(&'static str),
}

/// Parser for the fields of a fixed structure, one after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StructReader<'a> {
    bytes: &'a [u8],
    item: &'static str,
}

impl<'a> StructReader<'a> {
    pub(crate) const fn new(bytes: &'a [u8], item: &'static str) -> Self {
        Self { bytes, item }
    }

    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (field, rest) = self.bytes.split_first_chunk::<N>().ok_or(Malformed::Short {
            item: self.item,
            need: N,
            got: self.bytes.len(),
        })?;
        self.bytes = rest;
        Ok(*field)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.take::<1>().map(u8::from_ne_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.take().map(u16::from_ne_bytes)
    }

    pub(crate) fn be16(&mut self) -> Result<u16, Malformed> {
        self.take().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_ne_bytes)
    }

    pub(crate) fn i32(&mut self) -> Result<i32, Malformed> {
        self.take().map(i32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_ne_bytes)
    }

    /// Returns the bytes that have not been read yet.
    pub(crate) const fn rest(self) -> &'a [u8] {
        self.bytes
    }
}

/// Builder of the part of a message after its header.
#[derive(Debug, Clone, Default)]
pub(crate) struct MessageBuilder(Vec<u8>);

impl MessageBuilder {
    /// Starts with a fixed structure, such as `struct ifinfomsg`.
    pub(crate) fn new(structure: &[u8]) -> Self {
        Self::default().raw(structure)
    }

    /// Starts with a generic netlink header.
    pub(crate) fn generic(command: u8, version: u8) -> Self {
        Self::new(&[command, version, 0, 0])
    }

    /// Appends a fixed structure.
    pub(crate) fn raw(mut self, structure: &[u8]) -> Self {
        self.0.extend_from_slice(structure);
        self.align()
    }

    /// Appends an attribute.
    ///
    /// A value over 65,531 bytes is cut. The kernel accepts no attribute of nearly that size, so
    /// it also refuses the rest.
    pub(crate) fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        let max_bytes = usize::from(u16::MAX) - NLATTR_HEADER_BYTES;
        let value = value.get(..max_bytes).unwrap_or(value);
        let length = (value.len() + NLATTR_HEADER_BYTES) as u16;
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.align()
    }

    pub(crate) fn u8(self, kind: u16, value: u8) -> Self {
        self.attribute(kind, &[value])
    }

    pub(crate) fn u16(self, kind: u16, value: u16) -> Self {
        self.attribute(kind, &value.to_ne_bytes())
    }

    pub(crate) fn u32(self, kind: u16, value: u32) -> Self {
        self.attribute(kind, &value.to_ne_bytes())
    }

    pub(crate) fn u64(self, kind: u16, value: u64) -> Self {
        self.attribute(kind, &value.to_ne_bytes())
    }

    /// Appends a text with the terminating NUL that the kernel requires.
    pub(crate) fn text(self, kind: u16, text: &str) -> Self {
        let mut value = text.as_bytes().to_vec();
        value.push(0);
        self.attribute(kind, &value)
    }

    pub(crate) fn ip(self, kind: u16, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => self.attribute(kind, &v4.octets()),
            IpAddr::V6(v6) => self.attribute(kind, &v6.octets()),
        }
    }

    /// Appends what `fill` builds as one nested attribute.
    pub(crate) fn nest(self, kind: u16, fill: impl FnOnce(Self) -> Self) -> Self {
        let Self(inner) = fill(Self::default());
        self.attribute(kind | NESTED, &inner)
    }

    /// Appends separately built parts as the value of one attribute.
    pub(crate) fn enclose(self, kind: u16, parts: &Self) -> Self {
        self.attribute(kind, &parts.0)
    }

    /// Returns the number of bytes so far.
    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Appends attributes that were built separately.
    pub(crate) fn append(self, attributes: &Self) -> Self {
        self.raw(&attributes.0)
    }

    /// Applies `add` only if there is a value.
    pub(crate) fn maybe<T>(self, value: Option<T>, add: impl FnOnce(Self, T) -> Self) -> Self {
        match value {
            Some(value) => add(self, value),
            None => self,
        }
    }

    /// Returns the whole message, ready to be sent.
    pub(crate) fn message(&self, kind: u16, flags: u16, sequence: u32) -> Vec<u8> {
        let length = (self.0.len() + NLMSG_HEADER_BYTES) as u32;
        let mut message = Vec::with_capacity(self.0.len() + NLMSG_HEADER_BYTES);
        message.extend(length.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        message.extend(sequence.to_ne_bytes());
        message.extend(0_u32.to_ne_bytes()); // port: the kernel fills in the sender's
        message.extend_from_slice(&self.0);
        message
    }

    fn align(mut self) -> Self {
        self.0.resize(self.0.len().next_multiple_of(ALIGNMENT), 0);
        self
    }
}

/// One netlink message of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    pub(crate) body: &'a [u8],
}

/// Iterator over the messages of a datagram; ends after the first malformed one.
#[derive(Debug, Clone)]
pub(crate) struct Messages<'a>(&'a [u8]);

impl<'a> Messages<'a> {
    pub(crate) const fn new(datagram: &'a [u8]) -> Self {
        Self(datagram)
    }

    fn split(bytes: &'a [u8]) -> Result<(Message<'a>, &'a [u8]), Malformed> {
        let mut reader = StructReader::new(bytes, "message header");
        let length = reader.u32()? as usize;
        let (kind, flags, sequence) = (reader.u16()?, reader.u16()?, reader.u32()?);
        let _port = reader.u32()?;
        let short = Malformed::Short { item: "message", need: length, got: bytes.len() };
        let body = bytes.get(NLMSG_HEADER_BYTES..length).ok_or(short)?;
        let rest = bytes.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Ok((Message { kind, flags, sequence, body }, rest))
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let split = Self::split(self.0);
        self.0 = split.map_or(&[], |(_, rest)| rest);
        Some(split.map(|(message, _)| message))
    }
}

/// One attribute; its type excludes the flags for nesting and byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attribute<'a> {
    pub(crate) kind: u16,
    pub(crate) value: &'a [u8],
}

impl<'a> Attribute<'a> {
    pub(crate) fn u8(self) -> Result<u8, Malformed> {
        self.reader().u8()
    }

    pub(crate) fn u16(self) -> Result<u16, Malformed> {
        self.reader().u16()
    }

    pub(crate) fn be16(self) -> Result<u16, Malformed> {
        self.reader().be16()
    }

    pub(crate) fn u32(self) -> Result<u32, Malformed> {
        self.reader().u32()
    }

    pub(crate) fn u64(self) -> Result<u64, Malformed> {
        self.reader().u64()
    }

    /// Returns an IPv4 or IPv6 address, depending on the value's length.
    pub(crate) fn ip(self) -> Result<IpAddr, Malformed> {
        if let Ok(octets) = <[u8; 16]>::try_from(self.value) {
            return Ok(Ipv6Addr::from(octets).into());
        }
        self.reader().take::<4>().map(|octets| Ipv4Addr::from(octets).into())
    }

    /// Returns a prefix of `length` bits.
    pub(crate) fn prefix(self, length: u8) -> Result<Prefix, Malformed> {
        Prefix::new(self.ip()?, length).map_err(|_| Malformed::Missing("prefix length"))
    }

    /// Returns the text up to its NUL; invalid UTF-8 is replaced.
    pub(crate) fn text(self) -> String {
        let text = self.value.split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    }

    pub(crate) const fn nested(self) -> Attributes<'a> {
        Attributes::new(self.value)
    }

    const fn reader(self) -> StructReader<'a> {
        StructReader::new(self.value, "attribute")
    }
}

/// Iterator over the attributes in `bytes`; ends after the first malformed one.
#[derive(Debug, Clone)]
pub(crate) struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn split(bytes: &'a [u8]) -> Result<(Attribute<'a>, &'a [u8]), Malformed> {
        let mut reader = StructReader::new(bytes, "attribute header");
        let (length, kind) = (usize::from(reader.u16()?), reader.u16()? & ATTRIBUTE_TYPE);
        let short = Malformed::Short { item: "attribute", need: length, got: bytes.len() };
        let value = bytes.get(NLATTR_HEADER_BYTES..length).ok_or(short)?;
        let rest = bytes.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Ok((Attribute { kind, value }, rest))
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        // Fewer bytes than a header are padding, as for the kernel's own `nla_ok`.
        if self.0.len() < NLATTR_HEADER_BYTES {
            return None;
        }
        let split = Self::split(self.0);
        self.0 = split.map_or(&[], |(_, rest)| rest);
        Some(split.map(|(attribute, _)| attribute))
    }
}

/// Kernel's reply at the end of a request: an acknowledgement if `errno` is zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NetlinkAck {
    pub(crate) errno: i32,
    /// Text of the extended acknowledgement, if the kernel sent one.
    pub(crate) extack: Option<String>,
}

impl NetlinkAck {
    /// Reads `NLMSG_ERROR` (`struct nlmsgerr`) and, as its second form, `NLMSG_DONE`.
    pub(crate) fn parse(message: &Message<'_>) -> Result<Self, Malformed> {
        let is_error = i32::from(message.kind) == libc::NLMSG_ERROR;
        let has_flag = |flag: i32| i32::from(message.flags) & flag != 0;
        let mut reader = StructReader::new(message.body, "verdict");
        // Before Linux 2.6 NLMSG_DONE had no body at all.
        if !is_error && message.body.is_empty() {
            return Ok(Self { errno: 0, extack: None });
        }
        let errno = reader.i32()?.wrapping_neg();
        let mut extras = reader.rest();
        if is_error {
            let request = reader.u32()? as usize;
            // Only an uncapped error message has the whole request between the header and the
            // extras.
            let skip = if has_flag(libc::NLM_F_CAPPED) { NLMSG_HEADER_BYTES } else { request };
            extras = extras.get(skip.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        }
        let mut extack = None;
        if has_flag(libc::NLM_F_ACK_TLVS) {
            for attribute in Attributes::new(extras) {
                let attribute = attribute?;
                if attribute.kind == EXTACK_TEXT {
                    extack = Some(attribute.text());
                }
            }
        }
        Ok(Self { errno, extack })
    }
}

/// Returns the 32-bit number in the machine's byte order at `offset`; 0 if `bytes` is too short.
pub fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    bytes.get(offset..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_ne_bytes(*b))
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::TestRunner;

    use super::*;

    /// Turns recorded datagrams, written in hexadecimal with `#` comments, into bytes.
    pub(crate) fn parse_hex(text: &str) -> Vec<u8> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let digits: Vec<u8> =
            lines.flat_map(str::chars).filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
        digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }

    /// Returns the result of `parse` for each recorded message.
    pub(crate) fn parse_all<T>(recorded: &str, parse: impl Fn(&Message<'_>) -> T) -> Vec<T> {
        Messages::new(&parse_hex(recorded)).map(|message| parse(&message.unwrap())).collect()
    }

    /// Calls `parse` with every prefix of each recorded message, with recorded messages after
    /// random changes, and with random bytes.
    pub(crate) fn never_panics<T>(recorded: &str, parse: impl Fn(&Message<'_>) -> T) {
        let bytes = parse_hex(recorded);
        for message in Messages::new(&bytes) {
            let message = message.unwrap();
            for cut in 0..=message.body.len() {
                parse(&Message { body: &message.body[..cut], ..message });
            }
        }
        let changes = proptest::collection::vec((0..bytes.len(), any::<u8>()), 1..8);
        let random_body = any::<Vec<u8>>();
        let result =
            TestRunner::default().run(&(changes, random_body), |(changes, random_body)| {
                let mut damaged = bytes.clone();
                for (index, byte) in changes {
                    damaged[index] = byte;
                }
                for message in Messages::new(&damaged).map_while(Result::ok) {
                    parse(&message);
                    parse(&Message { body: &random_body, ..message });
                }
                Ok(())
            });
        result.unwrap();
    }

    #[test]
    fn a_built_message_reads_back() {
        let payload = MessageBuilder::generic(3, 1)
            .text(2, "wifi")
            .u8(3, 7)
            .nest(4, |nest| nest.u32(1, 9).ip(2, Ipv4Addr::LOCALHOST.into()))
            .maybe(None::<u16>, |payload, value| payload.u16(5, value));
        let bytes = payload.message(0x1b, 5, 42);
        let messages: Vec<_> = Messages::new(&bytes).map(Result::unwrap).collect();
        let [Message { kind: 0x1b, flags: 5, sequence: 42, body }] = messages[..] else {
            panic!("{messages:?}")
        };
        let attributes: Vec<_> = Attributes::new(&body[4..]).map(Result::unwrap).collect();
        assert_eq!(attributes.iter().map(|a| a.kind).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!((attributes[0].text(), attributes[1].u8()), ("wifi".to_owned(), Ok(7)));
        let nested: Vec<_> = attributes[2].nested().map(Result::unwrap).collect();
        assert_eq!(nested[0].u32(), Ok(9));
        assert_eq!(nested[1].ip(), Ok(Ipv4Addr::LOCALHOST.into()));
    }

    #[test]
    fn a_value_too_large_for_an_attribute_is_clamped() {
        let payload =
            MessageBuilder::default().text(3, &"x".repeat(70_000)).u8(4, 1).message(16, 0, 1);
        let message = Messages::new(&payload).next().unwrap().unwrap();
        let attributes: Vec<_> = Attributes::new(message.body).map(Result::unwrap).collect();
        assert_eq!(attributes[0].value.len(), 65_531);
        assert_eq!(attributes[1].u8(), Ok(1));
    }

    #[test]
    fn an_acknowledgement_and_a_refusal_are_distinguished() {
        let request = MessageBuilder::new(&[0; 16]).message(16, 5, 7);
        let ack =
            MessageBuilder::new(&0_i32.to_ne_bytes()).raw(&request[..16]).message(2, 0x100, 7);
        let parsed = NetlinkAck::parse(&Messages::new(&ack).next().unwrap().unwrap());
        assert_eq!(parsed, Ok(NetlinkAck { errno: 0, extack: None }));

        // Once with the header alone (capped), once with the whole request.
        for (flags, echo) in [(0x300, &request[..16]), (0x200, &request[..])] {
            let refusal =
                MessageBuilder::new(&(-17_i32).to_ne_bytes()).raw(echo).text(1, "no room");
            let refusal = refusal.message(2, flags, 7);
            let parsed = NetlinkAck::parse(&Messages::new(&refusal).next().unwrap().unwrap());
            assert_eq!(parsed, Ok(NetlinkAck { errno: 17, extack: Some("no room".to_owned()) }));
        }
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn recorded_refusals_contain_the_kernels_message() {
        let recorded = include_str!("recorded/refusals.hex");
        let refusals = parse_all(recorded, |message| NetlinkAck::parse(message).unwrap());
        let refusals = refusals.into_iter().map(|verdict| (verdict.errno, verdict.extack.unwrap()));
        let expected = [
            (libc::EEXIST, "ipv4: Address already assigned"),
            (libc::EINVAL, "mtu greater than device maximum"),
            (libc::ERANGE, "Attribute failed policy validation"),
            (libc::EINVAL, "flags mustn't have both signal and fullmesh"),
        ];
        assert_eq!(refusals.collect::<Vec<_>>(), expected.map(|(e, text)| (e, text.to_owned())));
        never_panics(recorded, NetlinkAck::parse);
    }

    #[test]
    fn wrong_lengths_are_errors() {
        let mut bytes = MessageBuilder::new(&[1, 2, 3, 4]).message(16, 0, 1);
        bytes[0] = 200;
        let short = Malformed::Short { item: "message", need: 200, got: 20 };
        assert_eq!(Messages::new(&bytes).collect::<Vec<_>>(), [Err(short)]);
        bytes[0] = 3; // shorter than its own header
        assert!(Messages::new(&bytes).next().unwrap().is_err());
        assert!(Attributes::new(&[2, 0, 1, 0]).next().unwrap().is_err());
        assert!(Attributes::new(&[0; 3]).next().is_none(), "padding is no attribute");
    }

    proptest! {
        #[test]
        fn parsers_accept_arbitrary_bytes(bytes: Vec<u8>) {
            for message in Messages::new(&bytes).map_while(Result::ok) {
                let _ = NetlinkAck::parse(&message);
            }
            for attribute in Attributes::new(&bytes).map_while(Result::ok) {
                let _ = (attribute.ip(), attribute.u64(), attribute.text());
                let _ = attribute.nested().count();
            }
            for (kind, flags) in [(2, 0x300), (2, 0x200), (3, 0x200)] {
                let message = Message { kind, flags, sequence: 0, body: &bytes };
                let _ = NetlinkAck::parse(&message);
            }
        }
    }
}
