//! A router of our own between two ports of the emulator, and the box that may stand in it.
//!
//! It forwards as a router does: it counts the time to live down, answers a packet whose time is up
//! with an ICMP message that quotes all of its headers (RFC 1812 §4.3.2.3, RFC 4443 §2.4), and takes
//! from its inside only what has an address of there (RFC 2827). Its [`RouterRule`]s say what else it does
//! to packets: what the Internet's boxes are known to do to Multipath TCP.

pub(crate) mod packet;
mod translate;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use towpath_measure::scenario::LinkSide;
use towpath_mptcp::wire::{Flags, icmp};
use towpath_net::Instant;

use self::packet::{MptcpOptionKind, TcpHeader};
use self::translate::Nat;
use crate::netlink::Prefix;

/// Bytes of an IPv4 packet that a router quotes at most: its message then has 576 (RFC 1812).
const MAX_QUOTE_V4_BYTES: usize = 548;
/// The same for IPv6: 1,280 in all (RFC 4443 §2.4).
const MAX_QUOTE_V6_BYTES: usize = 1_232;

/// Packets that a rule is about; every field must fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PacketMatch {
    pub(crate) phase: ConnectionPhase,
    /// Has a Multipath TCP option of this kind.
    pub(crate) option: Option<MptcpOptionKind>,
    /// Has at least so many bytes of payload.
    pub(crate) payload_bytes: usize,
}

/// Part of a connection's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionPhase {
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
pub(crate) enum PacketAction {
    /// Options of this kind are overwritten by padding, as firewalls do it.
    Strip(MptcpOptionKind),
    Drop,
    /// The sender gets a reset, as if from the receiver.
    Reset,
    /// The sender gets an ICMP message.
    Unreachable(UnreachableReason),
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
pub(crate) enum UnreachableReason {
    Network,
    Host,
    Prohibited,
}

/// What the router does beyond forwarding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RouterRule {
    /// Seen from the first port: up is away from there.
    pub(crate) side: LinkSide,
    pub(crate) packets: PacketMatch,
    pub(crate) treatment: PacketAction,
}

/// One router.
#[derive(Debug)]
pub(crate) struct EmulatedRouter {
    v4: Ipv4Addr,
    v6: Ipv6Addr,
    /// Addresses at the first port; empty: any.
    inside: Vec<Prefix>,
    rules: Vec<RouterRule>,
    /// The time to live counts before the rules, as in a firewall's forward chain.
    late: bool,
    now: Instant,
    translator: Nat,
}

/// Where a packet goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ForwardDecision {
    Forward,
    /// To the port from which the packet came that it answers.
    Reply,
}

/// What a rule leaves.
enum RuleResult {
    Packet(Vec<u8>),
    Answer(Option<Vec<u8>>),
}

impl PacketMatch {
    /// Every packet.
    pub(crate) const ALL: Self =
        Self { phase: ConnectionPhase::Any, option: None, payload_bytes: 0 };

    /// Packets of one phase.
    pub(crate) const fn of(phase: ConnectionPhase) -> Self {
        Self { phase, ..Self::ALL }
    }

    /// Only those with an option of this kind.
    pub(crate) const fn with(self, option: MptcpOptionKind) -> Self {
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
        let Some(tcp) = TcpHeader::parse(bytes) else { return false };
        let phase = match self.phase {
            ConnectionPhase::Any | ConnectionPhase::Tcp => true,
            ConnectionPhase::Syn => tcp.has(Flags::SYN) && !tcp.has(Flags::ACK),
            ConnectionPhase::SynAck => tcp.has(Flags::SYN.with(Flags::ACK)),
            ConnectionPhase::Later => !tcp.has(Flags::SYN),
        };
        let option = self.option.is_none_or(|kind| tcp.options(bytes).any(|(_, own)| kind.is(own)));
        phase && option && tcp.payload(bytes).len() >= self.payload_bytes
    }
}

impl EmulatedRouter {
    pub(crate) fn new(
        v4: Ipv4Addr,
        v6: Ipv6Addr,
        inside: Vec<Prefix>,
        rules: &[RouterRule],
    ) -> Self {
        let (rules, translator) = (rules.to_vec(), Nat::new(v4));
        Self { v4, v6, inside, rules, late: false, now: Instant::default(), translator }
    }

    /// Its rules see only packets whose time is not up.
    pub(crate) fn with_late_rules(self) -> Self {
        Self { late: true, ..self }
    }

    /// From now on the router does this instead; it keeps its translations.
    pub(crate) fn set_rules(&mut self, rules: &[RouterRule]) {
        self.rules = rules.to_vec();
    }

    /// It is so late now.
    pub(crate) fn set_time(&mut self, now: Instant) {
        self.now = now;
    }

    /// Takes a packet from the first port (`up`) or the second, with complete checksums.
    pub(crate) fn forward(
        &mut self,
        up: bool,
        mut bytes: Vec<u8>,
    ) -> Option<(ForwardDecision, Vec<u8>)> {
        let (from, to) = packet::addresses(&bytes)?;
        if is_local(from) || is_local(to) || (up && !self.is_inside(from)) {
            return None;
        }
        if self.late && !packet::decrement_ttl(&mut bytes) {
            return self
                .error(&bytes, packet::TIME_EXCEEDED)
                .map(|answer| (ForwardDecision::Reply, answer));
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
            match self.apply(rule.treatment, up, bytes) {
                RuleResult::Packet(changed) => bytes = changed,
                RuleResult::Answer(answer) => {
                    return answer.map(|answer| (ForwardDecision::Reply, answer));
                }
            }
        }
        if self.late || packet::decrement_ttl(&mut bytes) {
            return Some((ForwardDecision::Forward, bytes));
        }
        self.error(&bytes, packet::TIME_EXCEEDED).map(|answer| (ForwardDecision::Reply, answer))
    }

    fn is_inside(&self, from: IpAddr) -> bool {
        self.inside.is_empty() || self.inside.iter().any(|prefix| prefix.contains(from))
    }

    fn apply(&mut self, treatment: PacketAction, up: bool, mut bytes: Vec<u8>) -> RuleResult {
        match treatment {
            PacketAction::Strip(kind) => {
                packet::strip(&mut bytes, kind);
                RuleResult::Packet(bytes)
            }
            PacketAction::Drop => RuleResult::Answer(None),
            PacketAction::Reset => RuleResult::Answer(packet::build_reset(&bytes)),
            PacketAction::Unreachable(reason) => {
                RuleResult::Answer(self.error(&bytes, reason.code()))
            }
            PacketAction::TooBig(mtu) => {
                RuleResult::Answer(self.message(&bytes, packet::TOO_BIG, mtu))
            }
            PacketAction::Rewrite => {
                packet::rewrite_payload(&mut bytes);
                RuleResult::Packet(bytes)
            }
            PacketAction::Translate => self.translate(up, bytes, Duration::MAX),
            PacketAction::TranslateFor(ms) => {
                self.translate(up, bytes, Duration::from_millis(ms.into()))
            }
            PacketAction::ClearBackup => {
                packet::clear_backup(&mut bytes);
                RuleResult::Packet(bytes)
            }
        }
    }

    fn translate(&mut self, up: bool, mut bytes: Vec<u8>, idle: Duration) -> RuleResult {
        let known = self.translator.translate(up, &mut bytes, (self.now, idle));
        if known { RuleResult::Packet(bytes) } else { RuleResult::Answer(None) }
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
            IpAddr::V4(_) => (self.v4.into(), v4, MAX_QUOTE_V4_BYTES),
            IpAddr::V6(_) => (self.v6.into(), v6, MAX_QUOTE_V6_BYTES),
        };
        let quote = about.get(..most).unwrap_or(about);
        let [high, low] = word.to_be_bytes();
        let head = [kind, code, 0, 0, 0, 0, high, low];
        icmp::router_error(router, from, head, quote).map(|message| message.to_vec())
    }
}

impl UnreachableReason {
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
