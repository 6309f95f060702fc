//! Emulated router between two ports of the emulator, and the middlebox that it may contain.
//!
//! It decrements the time to live. Packets whose time to live expires are answered with an ICMP
//! message that quotes all of their headers (RFC 1812 §4.3.2.3, RFC 4443 §2.4). From the inside
//! port it accepts only inside source addresses (RFC 2827). Its [`RouterRule`]s add what
//! middleboxes of the Internet are known to do to Multipath TCP.

mod nat;
pub(crate) mod packet;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use towpath_net::Instant;
use towpath_netlink::Prefix;
use towpath_scenario::LinkSide;
use towpath_wire::{Flags, icmp};

use self::nat::Nat;
use self::packet::{MptcpOptionKind, TcpHeader};

/// Maximum IPv4 quote in bytes, for a message of 576 (RFC 1812 §4.3.2.3).
const MAX_QUOTE_V4_BYTES: usize = 548;
/// Maximum IPv6 quote in bytes, for a message of 1,280 (RFC 4443 §2.4).
const MAX_QUOTE_V6_BYTES: usize = 1_232;

/// Packets that a rule applies to; every field must match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PacketMatch {
    pub(crate) phase: ConnectionPhase,
    /// Kind of Multipath TCP option that a packet must have; `None` matches all.
    pub(crate) option: Option<MptcpOptionKind>,
    /// Minimum payload in bytes.
    pub(crate) payload_bytes: usize,
    /// TCP port of either end; `None` matches all.
    pub(crate) port: Option<u16>,
}

/// Phase of a connection that a packet belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionPhase {
    /// Every packet, TCP or not.
    Any,
    Tcp,
    Syn,
    SynAck,
    /// TCP packets after the SYN and SYN/ACK.
    Later,
}

/// Action of a rule on a matching packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PacketAction {
    /// Options of this kind are overwritten with padding, as firewalls do.
    Strip(MptcpOptionKind),
    Drop,
    /// The sender gets a reset, as if from the receiver.
    Reset,
    /// The sender gets an ICMP "destination unreachable" message.
    Unreachable(UnreachableReason),
    /// The sender gets a correct ICMP "packet too big" message with this MTU, in bytes.
    TooBig(u16),
    /// One byte of the payload is changed, as application-layer gateways do.
    Rewrite,
    /// Inside addresses are hidden behind the router's own (IPv4 only).
    Translate,
    /// As `Translate`; a connection that is idle for this many milliseconds is forgotten.
    TranslateFor(u16),
    /// A further subflow loses its backup flag B (RFC 8684 §3.2).
    ClearBackup,
    /// The server's public address is translated to its private one (RFC 3022 §2.1). Packets to
    /// the private address are dropped.
    MapServer {
        public: Ipv4Addr,
        private: Ipv4Addr,
    },
}

/// Reason for an ICMP "destination unreachable".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnreachableReason {
    Network,
    Host,
    Prohibited,
}

/// Rule that the router applies in addition to forwarding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RouterRule {
    /// Direction as seen from the first port: up is away from it.
    pub(crate) side: LinkSide,
    pub(crate) packets: PacketMatch,
    pub(crate) treatment: PacketAction,
}

/// Emulated router with its rules and address translation.
#[derive(Debug)]
pub(crate) struct EmulatedRouter {
    v4: Ipv4Addr,
    v6: Ipv6Addr,
    /// Prefixes at the first port; empty allows any address.
    inside: Vec<Prefix>,
    rules: Vec<RouterRule>,
    /// Set to decrement the time to live before the rules, as a firewall's forward chain does.
    late: bool,
    now: Instant,
    translator: Nat,
}

/// Direction in which a packet leaves the router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ForwardDecision {
    Forward,
    /// To the port from which the answered packet came.
    Reply,
}

/// Result of applying a rule.
enum RuleResult {
    /// The packet, for further processing.
    Packet(Vec<u8>),
    /// The packet is dropped; its sender gets this reply, if any.
    Answer(Option<Vec<u8>>),
}

impl PacketMatch {
    /// Matches every packet, TCP or not.
    pub(crate) const ALL: Self =
        Self { phase: ConnectionPhase::Any, option: None, payload_bytes: 0, port: None };

    /// Matches packets of one phase.
    pub(crate) const fn of(phase: ConnectionPhase) -> Self {
        Self { phase, ..Self::ALL }
    }

    /// Restricts the match to packets with an option of this kind.
    pub(crate) const fn with(self, option: MptcpOptionKind) -> Self {
        Self { option: Some(option), ..self }
    }

    /// Restricts the match to packets with at least this much payload, in bytes.
    pub(crate) const fn carrying(self, payload_bytes: usize) -> Self {
        Self { payload_bytes, ..self }
    }

    /// Restricts the match to connections with this TCP port at either end.
    pub(crate) const fn on_port(self, port: u16) -> Self {
        Self { port: Some(port), ..self }
    }

    fn matches(self, bytes: &[u8]) -> bool {
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
        let option = self
            .option
            .is_none_or(|kind| tcp.options(bytes).any(|(_, subtype)| kind.matches(subtype)));
        let port = self
            .port
            .is_none_or(|port| tcp.ports(bytes).is_some_and(|ports| ports.contains(&port)));
        phase && option && port && tcp.payload(bytes).len() >= self.payload_bytes
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

    /// Creates a router with the addresses of each family; one of the other family is ignored.
    pub(crate) fn at(v4: IpAddr, v6: IpAddr, inside: Vec<Prefix>, rules: &[RouterRule]) -> Self {
        let v4 = if let IpAddr::V4(v4) = v4 { v4 } else { Ipv4Addr::UNSPECIFIED };
        let v6 = if let IpAddr::V6(v6) = v6 { v6 } else { Ipv6Addr::UNSPECIFIED };
        Self::new(v4, v6, inside, rules)
    }

    /// Makes the rules apply only to packets whose time to live has not expired.
    pub(crate) fn with_late_rules(self) -> Self {
        Self { late: true, ..self }
    }

    /// Replaces the rules; translations are kept.
    pub(crate) fn set_rules(&mut self, rules: &[RouterRule]) {
        self.rules = rules.to_vec();
    }

    /// Sets the current time, for the timeouts of translations.
    pub(crate) fn set_time(&mut self, now: Instant) {
        self.now = now;
    }

    /// Processes a packet from the first port (`up`) or the second, with complete checksums.
    pub(crate) fn forward(
        &mut self,
        up: bool,
        mut bytes: Vec<u8>,
    ) -> Option<(ForwardDecision, Vec<u8>)> {
        let (source, destination) = packet::addresses(&bytes)?;
        if is_local(source) || is_local(destination) || (up && !self.is_inside(source)) {
            return None;
        }
        if self.late && !packet::decrement_ttl(&mut bytes) {
            return self
                .icmp_error(&bytes, packet::TIME_EXCEEDED)
                .map(|answer| (ForwardDecision::Reply, answer));
        }
        for index in 0..self.rules.len() {
            let Some(&rule) = self.rules.get(index) else { break };
            let applies = match rule.side {
                LinkSide::Both => true,
                LinkSide::Up => up,
                LinkSide::Down => !up,
            };
            if !applies || !rule.packets.matches(&bytes) {
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
        self.icmp_error(&bytes, packet::TIME_EXCEEDED)
            .map(|answer| (ForwardDecision::Reply, answer))
    }

    fn is_inside(&self, source: IpAddr) -> bool {
        self.inside.is_empty() || self.inside.iter().any(|prefix| prefix.contains(source))
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
                RuleResult::Answer(self.icmp_error(&bytes, reason.code()))
            }
            PacketAction::TooBig(mtu) => {
                RuleResult::Answer(self.icmp_message(&bytes, packet::TOO_BIG, mtu))
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
            PacketAction::MapServer { public, private } => {
                if nat::map_server(up, &mut bytes, public, private) {
                    RuleResult::Packet(bytes)
                } else {
                    RuleResult::Answer(None)
                }
            }
        }
    }

    fn translate(&mut self, up: bool, mut bytes: Vec<u8>, idle: Duration) -> RuleResult {
        let translated = self.translator.translate(up, &mut bytes, (self.now, idle));
        if translated { RuleResult::Packet(bytes) } else { RuleResult::Answer(None) }
    }

    /// Builds an ICMP message about a packet; never about another ICMP error.
    fn icmp_error(&self, original: &[u8], codes: [(u8, u8); 2]) -> Option<Vec<u8>> {
        self.icmp_message(original, codes, 0)
    }

    /// Builds an ICMP message whose header ends with the number `word`.
    fn icmp_message(&self, original: &[u8], [v4, v6]: [(u8, u8); 2], word: u16) -> Option<Vec<u8>> {
        let (source, _) = packet::addresses(original)?;
        if packet::is_icmp_error(original) {
            return None;
        }
        let (router, (kind, code), max_quote_bytes) = match source {
            IpAddr::V4(_) => (self.v4.into(), v4, MAX_QUOTE_V4_BYTES),
            IpAddr::V6(_) => (self.v6.into(), v6, MAX_QUOTE_V6_BYTES),
        };
        let quote = original.get(..max_quote_bytes).unwrap_or(original);
        let [high, low] = word.to_be_bytes();
        let head = [kind, code, 0, 0, 0, 0, high, low];
        icmp::router_error(router, source, head, quote).map(|message| message.to_vec())
    }
}

impl UnreachableReason {
    /// Returns type and code in IPv4 (RFC 792, RFC 1812 §5.2.7.1) and IPv6 (RFC 4443 §3.1).
    const fn code(self) -> [(u8, u8); 2] {
        match self {
            Self::Network => [(3, 0), (1, 0)],
            Self::Host => [(3, 1), (1, 3)],
            Self::Prohibited => [(3, 13), (1, 1)],
        }
    }
}

/// Returns true for addresses that are not routed: multicast and link-local.
fn is_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_multicast() || v4.is_broadcast() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_multicast() || v6.is_unicast_link_local() || v6.is_unspecified(),
    }
}

#[cfg(test)]
mod tests;
