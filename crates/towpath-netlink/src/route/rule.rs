//! Policy routing rules: they select the routing table for a packet.

use std::fmt;

use super::RouteSocket;
use crate::error::NetlinkError;
use crate::prefix::Prefix;
use crate::wire::{Attribute, Attributes, Malformed, Message, MessageBuilder, StructReader};

/// Attributes of rules (`linux/fib_rules.h`).
const FRA_DST: u16 = 1;
const FRA_SRC: u16 = 2;
const FRA_IIFNAME: u16 = 3;
const FRA_GOTO: u16 = 4;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_SUPPRESS_IFGROUP: u16 = 13;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const FRA_OIFNAME: u16 = 17;
const FRA_PAD: u16 = 18;
const FRA_PROTOCOL: u16 = 21;
/// Kernel's value for "suppresses nothing".
const NO_SUPPRESSION: u32 = u32::MAX;
/// `FR_ACT_*`: the action of a rule.
const TO_TABLE: u8 = 1;
const GOTO: u8 = 2;
const NOP: u8 = 3;
const BLACKHOLE: u8 = 6;
const UNREACHABLE: u8 = 7;
const PROHIBIT: u8 = 8;
/// `FIB_RULE_INVERT`: the rule applies to packets that do *not* match.
const INVERT: u32 = 2;

/// Rule that directs some packets to a routing table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleSpec {
    /// Source addresses that match; [`Prefix::ALL_V4`] and [`Prefix::ALL_V6`] match all.
    pub from: Prefix,
    /// Destination addresses that match; all if `None`.
    pub to: Option<Prefix>,
    /// Number of the routing table.
    pub table: u32,
    /// Position: rules apply in ascending order. With `None`, the kernel puts the rule before its
    /// own.
    pub priority: Option<u32>,
}

/// Rule as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleEntry {
    /// Position: rules apply in ascending order.
    pub priority: u32,
    /// Source addresses that match; [`Prefix::ALL_V4`] and [`Prefix::ALL_V6`] match all.
    pub from: Prefix,
    /// Destination addresses that match; all for a prefix of length 0.
    pub to: Prefix,
    /// Action for packets that match.
    pub action: RuleAction,
    /// Name of the interface that packets arrive on.
    pub input: Option<String>,
    /// Name of the interface that the packet's socket is bound to.
    pub output: Option<String>,
    /// Packet mark to match, and the mask of its bits that count.
    pub mark: Option<(u32, u32)>,
    /// Routes with prefixes of at most this length are ignored.
    pub suppress_prefix_length: Option<u32>,
    /// True if the rule applies to packets that do *not* match.
    pub inverted: bool,
    /// Origin of the rule (`RTPROT_*`), such as `libc::RTPROT_KERNEL`.
    pub protocol: u8,
    /// True if further conditions exist that have no field here, such as ports or a user.
    pub has_further_conditions: bool,
}

/// Action of a rule (`FR_ACT_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleAction {
    /// Looks the packet up in this table; continues with the next rule if no route matches.
    Table(u32),
    /// Continues at the rule of this priority.
    Goto(u32),
    /// Continues with the next rule.
    Nop,
    /// Drops the packet without an error.
    Blackhole,
    /// Rejects the packet: network unreachable.
    Unreachable,
    /// Rejects the packet: administratively prohibited.
    Prohibit,
    /// Action that this version does not know, by its number.
    Other(u8),
}

impl RouteSocket {
    /// Adds a rule; an error if it exists.
    pub fn add_rule(&mut self, rule: &RuleSpec) -> Result<(), NetlinkError> {
        let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        let action = format_args!("add {rule}");
        self.requests.change(libc::RTM_NEWRULE, flags, &rule.payload(), action)
    }

    /// Deletes the first rule that matches `rule`.
    pub fn delete_rule(&mut self, rule: &RuleSpec) -> Result<(), NetlinkError> {
        let action = format_args!("delete {rule}");
        self.requests.change(libc::RTM_DELRULE, 0, &rule.payload(), action)
    }

    /// Lists all rules, IPv4 first, each family in the order of evaluation.
    pub fn rules(&mut self) -> Result<Vec<RuleEntry>, NetlinkError> {
        let payload = MessageBuilder::new(&[0; 12]);
        let action = format_args!("list rules");
        self.requests.dump(libc::RTM_GETRULE, &payload, action, RuleEntry::parse)
    }
}

impl RuleSpec {
    /// Builds `struct fib_rule_hdr` and its attributes.
    fn payload(&self) -> MessageBuilder {
        let Self { from, to, table, priority } = *self;
        let to = to.filter(|to| to.length() > 0);
        let to_length = to.map_or(0, Prefix::length);
        let header = [from.family(), to_length, from.length(), 0, 0, 0, 0, TO_TABLE, 0, 0, 0, 0];
        MessageBuilder::new(&header)
            .u32(FRA_TABLE, table)
            .maybe(Some(from).filter(|from| from.length() > 0), |payload, from| {
                payload.ip(FRA_SRC, from.network().address())
            })
            .maybe(to, |payload, to| payload.ip(FRA_DST, to.network().address()))
            .maybe(priority, |payload, priority| payload.u32(FRA_PRIORITY, priority))
    }
}

impl RuleEntry {
    /// Reads `RTM_NEWRULE` and `RTM_DELRULE`; `None` for a family other than IP.
    pub(crate) fn parse(message: &Message<'_>) -> Result<Option<Self>, Malformed> {
        let mut reader = StructReader::new(message.body, "fib_rule_hdr");
        let [family, to_length, from_length, service, table, _, _, action] = reader.take()?;
        let flags = reader.u32()?;
        let Some(any_address) = Prefix::all(family) else { return Ok(None) };
        let mut entry = Self {
            priority: 0,
            from: any_address,
            to: any_address,
            action: RuleAction::from_kernel(action, u32::from(table)),
            input: None,
            output: None,
            mark: None,
            suppress_prefix_length: None,
            inverted: flags & INVERT != 0,
            protocol: 0,
            has_further_conditions: service != 0,
        };
        for attribute in Attributes::new(reader.rest()) {
            entry.set(attribute?, to_length, from_length)?;
        }
        Ok(Some(entry))
    }

    fn set(
        &mut self,
        attribute: Attribute<'_>,
        to_length: u8,
        from_length: u8,
    ) -> Result<(), Malformed> {
        match attribute.kind {
            FRA_DST => self.to = attribute.prefix(to_length)?,
            FRA_SRC => self.from = attribute.prefix(from_length)?,
            FRA_IIFNAME => self.input = Some(attribute.text()),
            FRA_OIFNAME => self.output = Some(attribute.text()),
            FRA_PRIORITY => self.priority = attribute.u32()?,
            FRA_PROTOCOL => self.protocol = attribute.u8()?,
            FRA_FWMARK => self.mark = Some((attribute.u32()?, self.mark.map_or(!0, |(_, m)| m))),
            FRA_FWMASK => {
                let mark = self.mark.map_or(0, |(mark, _)| mark);
                self.mark = Some((mark, attribute.u32()?));
            }
            FRA_SUPPRESS_PREFIXLEN => {
                self.suppress_prefix_length =
                    Some(attribute.u32()?).filter(|&length| length != NO_SUPPRESSION);
            }
            FRA_TABLE => {
                if let RuleAction::Table(table) = &mut self.action {
                    *table = attribute.u32()?;
                }
            }
            FRA_GOTO => {
                if let RuleAction::Goto(target) = &mut self.action {
                    *target = attribute.u32()?;
                }
            }
            FRA_PAD => {}
            FRA_SUPPRESS_IFGROUP => {
                self.has_further_conditions |= attribute.u32()? != NO_SUPPRESSION;
            }
            _ => self.has_further_conditions = true,
        }
        Ok(())
    }
}

impl RuleAction {
    const fn from_kernel(number: u8, table: u32) -> Self {
        match number {
            TO_TABLE => Self::Table(table),
            GOTO => Self::Goto(0),
            NOP => Self::Nop,
            BLACKHOLE => Self::Blackhole,
            UNREACHABLE => Self::Unreachable,
            PROHIBIT => Self::Prohibit,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for RuleSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, table, priority } = *self;
        write!(f, "rule from {from}")?;
        to.map_or(Ok(()), |to| write!(f, " to {to}"))?;
        write!(f, " for table {table}")?;
        priority.map_or(Ok(()), |priority| write!(f, " with priority {priority}"))
    }
}

#[cfg(test)]
#[cfg(target_endian = "little")]
mod tests {
    use super::*;
    use crate::wire::tests::{never_panics, parse_all};

    const RECORDED: &str = include_str!("../recorded/rules.hex");

    #[test]
    fn recorded_rules_are_understood() {
        let rules = parse_all(RECORDED, |message| RuleEntry::parse(message).unwrap());
        assert_eq!(rules.iter().filter(|rule| rule.is_none()).count(), 2, "multicast routing's");
        let rules: Vec<_> = rules.into_iter().flatten().collect();
        let summary = |rule: &RuleEntry| (rule.priority, rule.from.to_string(), rule.action);
        let expected = [
            (0, "0.0.0.0/0", RuleAction::Table(255)),
            (500, "10.0.0.1/32", RuleAction::Table(1_001)),
            (600, "0.0.0.0/0", RuleAction::Table(77)),
            (700, "10.0.0.0/8", RuleAction::Unreachable),
            (800, "0.0.0.0/0", RuleAction::Table(254)),
            (900, "0.0.0.0/0", RuleAction::Table(5)),
            (1_000, "10.9.0.0/16", RuleAction::Goto(32_766)),
            (32_766, "0.0.0.0/0", RuleAction::Table(254)),
            (32_767, "0.0.0.0/0", RuleAction::Table(253)),
            (0, "::/0", RuleAction::Table(255)),
            (500, "fd00::1/128", RuleAction::Table(100_001)),
            (32_766, "::/0", RuleAction::Table(254)),
        ];
        let expected = expected.map(|(priority, from, action)| (priority, from.into(), action));
        assert_eq!(rules.iter().map(summary).collect::<Vec<_>>(), expected);
        let marked = &rules[2];
        assert_eq!(
            (marked.to.to_string().as_str(), marked.mark),
            ("192.0.2.0/24", Some((16, 240)))
        );
        let interfaces = (marked.input.as_deref(), marked.output.as_deref());
        assert_eq!(interfaces, (Some("wifi"), Some("server")));
        assert!(rules[3].inverted && !rules[2].inverted);
        assert_eq!(
            (rules[4].suppress_prefix_length, rules[1].suppress_prefix_length),
            (Some(0), None)
        );
        let further: Vec<_> = rules
            .iter()
            .filter(|rule| rule.has_further_conditions)
            .map(|rule| rule.priority)
            .collect();
        assert_eq!(further, [900], "ports and a protocol");
        assert_eq!(
            (rules[0].protocol, rules[1].protocol),
            (libc::RTPROT_KERNEL, libc::RTPROT_UNSPEC)
        );
    }

    #[test]
    fn no_rule_message_panics() {
        never_panics(RECORDED, RuleEntry::parse);
    }
}
