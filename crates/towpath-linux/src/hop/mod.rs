//! A router of our own between two ports of the emulator, and the box that may stand in it.
//!
//! It forwards as a router does: it counts the time to live down, answers a packet whose time is up
//! with an ICMP message that quotes all of its headers (RFC 1812 §4.3.2.3, RFC 4443 §2.4), and takes
//! from its inside only what has an address of there (RFC 2827). Its [`Rule`]s say what else it does
//! to packets: what the Internet's boxes are known to do to Multipath TCP.

pub(crate) mod packet;
mod translate;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use towpath_measure::scenario::LinkSide;
use towpath_mptcp::wire::{Flags, icmp};
use towpath_net::Instant;

use self::packet::{Kind, Tcp};
use self::translate::Translator;
use crate::netlink::Prefix;

/// Bytes of an IPv4 packet that a router quotes at most: its message then has 576 (RFC 1812).
const QUOTE_V4: usize = 548;
/// The same for IPv6: 1,280 in all (RFC 4443 §2.4).
const QUOTE_V6: usize = 1_232;

/// Packets that a rule is about; every field must fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packets {
    pub(crate) phase: Phase,
    /// Has a Multipath TCP option of this kind.
    pub(crate) option: Option<Kind>,
    /// Has at least so many bytes of payload.
    pub(crate) payload_bytes: usize,
}

/// Part of a connection's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Not TCP too.
    Any,
    Tcp,
    Syn,
    SynAck,
    /// Behind the handshake's first two packets.
    Later,
}

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Treatment {
    /// Options of this kind are overwritten by padding, as firewalls do it.
    Strip(Kind),
    Drop,
    /// The sender gets a reset, as if from the receiver.
    Reset,
    /// The sender gets an ICMP message.
    Unreachable(Reason),
    /// The sender gets an ICMP message that so many bytes would have passed, as it should be.
    TooBig(u16),
    /// One byte of the payload is changed, as gateways do that know the application.
    Rewrite,
    /// The inside's addresses are hidden behind the router's own (IPv4 only).
    Translate,
    /// The same; a connection that is silent for so many milliseconds is forgotten.
    TranslateFor(u16),
    /// A further subflow is no longer said to be a backup (RFC 8684 §3.2, the flag B).
    ClearBackup,
}

/// Why a destination is unreachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    Network,
    Host,
    Prohibited,
}

/// What the router does beyond forwarding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rule {
    /// Seen from the first port: up is away from there.
    pub(crate) side: LinkSide,
    pub(crate) packets: Packets,
    pub(crate) treatment: Treatment,
}

/// One router.
#[derive(Debug)]
pub(crate) struct Hop {
    v4: Ipv4Addr,
    v6: Ipv6Addr,
    /// Addresses at the first port; empty: any.
    inside: Vec<Prefix>,
    rules: Vec<Rule>,
    /// The time to live counts before the rules, as in a firewall's forward chain.
    late: bool,
    now: Instant,
    translator: Translator,
}

/// Where a packet goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    On,
    /// To the port from which the packet came that it answers.
    Back,
}

/// What a rule leaves.
enum Left {
    Packet(Vec<u8>),
    Answer(Option<Vec<u8>>),
}

impl Packets {
    /// Every packet.
    pub(crate) const ALL: Self = Self { phase: Phase::Any, option: None, payload_bytes: 0 };

    /// Packets of one phase.
    pub(crate) const fn of(phase: Phase) -> Self {
        Self { phase, ..Self::ALL }
    }

    /// Only those with an option of this kind.
    pub(crate) const fn with(self, option: Kind) -> Self {
        Self { option: Some(option), ..self }
    }

    /// Only those with at least so much payload.
    pub(crate) const fn carrying(self, payload_bytes: usize) -> Self {
        Self { payload_bytes, ..self }
    }

    fn fit(self, bytes: &[u8]) -> bool {
        if self == Self::ALL {
            return true;
        }
        let Some(tcp) = Tcp::parse(bytes) else { return false };
        let phase = match self.phase {
            Phase::Any | Phase::Tcp => true,
            Phase::Syn => tcp.has(Flags::SYN) && !tcp.has(Flags::ACK),
            Phase::SynAck => tcp.has(Flags::SYN.with(Flags::ACK)),
            Phase::Later => !tcp.has(Flags::SYN),
        };
        let option = self.option.is_none_or(|kind| tcp.options(bytes).any(|(_, own)| kind.is(own)));
        phase && option && tcp.payload(bytes).len() >= self.payload_bytes
    }
}

impl Hop {
    pub(crate) fn new(v4: Ipv4Addr, v6: Ipv6Addr, inside: Vec<Prefix>, rules: &[Rule]) -> Self {
        let (rules, translator) = (rules.to_vec(), Translator::new(v4));
        Self { v4, v6, inside, rules, late: false, now: Instant::default(), translator }
    }

    /// Its rules see only packets whose time is not up.
    pub(crate) fn late(self) -> Self {
        Self { late: true, ..self }
    }

    /// From now on the router does this instead; it keeps its translations.
    pub(crate) fn set_rules(&mut self, rules: &[Rule]) {
        self.rules = rules.to_vec();
    }

    /// It is so late now.
    pub(crate) fn set_time(&mut self, now: Instant) {
        self.now = now;
    }

    /// Takes a packet from the first port (`up`) or the second, with complete checksums.
    pub(crate) fn pass(&mut self, up: bool, mut bytes: Vec<u8>) -> Option<(Way, Vec<u8>)> {
        let (from, to) = packet::addresses(&bytes)?;
        if is_local(from) || is_local(to) || (up && !self.is_inside(from)) {
            return None;
        }
        if self.late && !packet::age(&mut bytes) {
            return self.error(&bytes, packet::TIME_EXCEEDED).map(|answer| (Way::Back, answer));
        }
        for index in 0..self.rules.len() {
            let Some(&rule) = self.rules.get(index) else { break };
            let seen = match rule.side {
                LinkSide::Both => true,
                LinkSide::Up => up,
                LinkSide::Down => !up,
            };
            if !seen || !rule.packets.fit(&bytes) {
                continue;
            }
            match self.treat(rule.treatment, up, bytes) {
                Left::Packet(changed) => bytes = changed,
                Left::Answer(answer) => return answer.map(|answer| (Way::Back, answer)),
            }
        }
        if self.late || packet::age(&mut bytes) {
            return Some((Way::On, bytes));
        }
        self.error(&bytes, packet::TIME_EXCEEDED).map(|answer| (Way::Back, answer))
    }

    fn is_inside(&self, from: IpAddr) -> bool {
        self.inside.is_empty() || self.inside.iter().any(|prefix| prefix.contains(from))
    }

    fn treat(&mut self, treatment: Treatment, up: bool, mut bytes: Vec<u8>) -> Left {
        match treatment {
            Treatment::Strip(kind) => {
                packet::strip(&mut bytes, kind);
                Left::Packet(bytes)
            }
            Treatment::Drop => Left::Answer(None),
            Treatment::Reset => Left::Answer(packet::reset(&bytes)),
            Treatment::Unreachable(reason) => Left::Answer(self.error(&bytes, reason.code())),
            Treatment::TooBig(mtu) => Left::Answer(self.message(&bytes, packet::TOO_BIG, mtu)),
            Treatment::Rewrite => {
                packet::rewrite(&mut bytes);
                Left::Packet(bytes)
            }
            Treatment::Translate => self.translate(up, bytes, Duration::MAX),
            Treatment::TranslateFor(ms) => {
                self.translate(up, bytes, Duration::from_millis(ms.into()))
            }
            Treatment::ClearBackup => {
                packet::clear_backup(&mut bytes);
                Left::Packet(bytes)
            }
        }
    }

    fn translate(&mut self, up: bool, mut bytes: Vec<u8>, idle: Duration) -> Left {
        let known = self.translator.pass(up, &mut bytes, (self.now, idle));
        if known { Left::Packet(bytes) } else { Left::Answer(None) }
    }

    /// An ICMP message about a packet, never about another message.
    fn error(&self, about: &[u8], codes: [(u8, u8); 2]) -> Option<Vec<u8>> {
        self.message(about, codes, 0)
    }

    /// The same, with a number in its header's last word.
    fn message(&self, about: &[u8], [v4, v6]: [(u8, u8); 2], word: u16) -> Option<Vec<u8>> {
        let (from, _) = packet::addresses(about)?;
        if packet::is_icmp_error(about) {
            return None;
        }
        let (router, (kind, code), most) = match from {
            IpAddr::V4(_) => (self.v4.into(), v4, QUOTE_V4),
            IpAddr::V6(_) => (self.v6.into(), v6, QUOTE_V6),
        };
        let quote = about.get(..most).unwrap_or(about);
        let [high, low] = word.to_be_bytes();
        let head = [kind, code, 0, 0, 0, 0, high, low];
        icmp::router_error(router, from, head, quote).map(|message| message.to_vec())
    }
}

impl Reason {
    /// Type and code in IPv4 (RFC 792, RFC 1812 §5.2.7.1) and IPv6 (RFC 4443 §3.1).
    const fn code(self) -> [(u8, u8); 2] {
        match self {
            Self::Network => [(3, 0), (1, 0)],
            Self::Host => [(3, 1), (1, 3)],
            Self::Prohibited => [(3, 13), (1, 1)],
        }
    }
}

/// Not for a router: multicast, and addresses of one link.
fn is_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_multicast() || v4.is_broadcast() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_multicast() || v6.is_unicast_link_local() || v6.is_unspecified(),
    }
}

#[cfg(test)]
mod tests;
