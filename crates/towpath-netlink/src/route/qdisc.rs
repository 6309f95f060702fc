//! Queueing disciplines: the token bucket filter, and counters of any.

use towpath_net::Rate;

use super::RouteSocket;
use crate::error::NetlinkError;
use crate::wire::{Attribute, Attributes, Malformed, Message, MessageBuilder, StructReader};

/// `TC_H_ROOT`: the parent of an interface's first queueing discipline.
const ROOT: u32 = 0xffff_ffff;
/// Handle `1:`; with it, a later call changes the discipline and keeps its queue.
const HANDLE: u32 = 0x0001_0000;
/// Attributes of the token bucket filter (`linux/pkt_sched.h`).
const TBF_PARMS: u16 = 1;
const TBF_RTAB: u16 = 2;
const TBF_RATE64: u16 = 4;
const TBF_BURST: u16 = 6;
/// Link layer type `TC_LINKLAYER_ETHERNET` (`linux/pkt_sched.h`).
const ETHERNET: u8 = 1;
/// Nanoseconds of a tick of the packet scheduler (`PSCHED_SHIFT`).
const TICK_NS: u128 = 64;
/// The rate table has a cell for every 8 bytes, up to packets of 2,048 bytes.
const CELL_LOG: u8 = 3;
/// Nested in `TCA_STATS2` (`linux/gen_stats.h`).
const STATS_BASIC: u16 = 1;
const STATS_QUEUE: u16 = 3;
const STATS_PACKETS64: u16 = 8;

/// Parameters of a token bucket filter (tc-tbf(8)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tbf {
    /// Rate of tokens, for IP packets with their link headers. The kernel counts whole bytes per
    /// second.
    pub rate: Rate,
    /// Size of the bucket in bytes; a packet that is larger is cut (GSO) or dropped.
    pub burst_bytes: u32,
    /// Maximum bytes that wait for tokens; packets beyond it are dropped.
    pub limit_bytes: u32,
}

/// Counters of an interface's queueing discipline since it was added.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QdiscStats {
    /// Kind of the queueing discipline, such as `tbf`.
    pub kind: String,
    /// Rate of a token bucket filter; `None` for other kinds.
    pub rate: Option<Rate>,
    /// Bytes sent since the discipline was added.
    pub bytes: u64,
    /// Packets sent since the discipline was added.
    pub packets: u64,
    /// Packets dropped since the discipline was added.
    pub drops: u32,
    /// Number of times that a packet had to wait.
    pub overlimits: u32,
    /// Packets that the interface returned to the queue.
    pub requeues: u32,
    /// Packets that are in the queue now.
    pub backlog_packets: u32,
    /// Bytes that are in the queue now.
    pub backlog_bytes: u32,
}

impl RouteSocket {
    /// Limits the rate at which `link` sends. An existing filter of ours is changed and keeps its
    /// queue.
    pub fn set_tbf(&mut self, link: &str, tbf: &Tbf) -> Result<(), NetlinkError> {
        let Tbf { rate, burst_bytes, limit_bytes } = *tbf;
        let action = format_args!(
            "limit `{link}` to {rate}, burst {burst_bytes} bytes, queue {limit_bytes} bytes"
        );
        let index = self.index(link, action)?;
        let payload = MessageBuilder::new(&tcmsg(index, HANDLE))
            .text(libc::TCA_KIND, "tbf")
            .nest(libc::TCA_OPTIONS, |options| tbf.options(options));
        let flags = libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
        self.requests.change(libc::RTM_NEWQDISC, flags, &payload, action)
    }

    /// Deletes the root queueing discipline of `link`; the kernel's default takes its place.
    pub fn delete_qdisc(&mut self, link: &str) -> Result<(), NetlinkError> {
        let action = format_args!("delete the queueing discipline of `{link}`");
        let index = self.index(link, action)?;
        self.requests.change(libc::RTM_DELQDISC, 0, &MessageBuilder::new(&tcmsg(index, 0)), action)
    }

    /// Returns the counters of `link`'s root queueing discipline; `None` if it has none.
    pub fn qdisc(&mut self, link: &str) -> Result<Option<QdiscStats>, NetlinkError> {
        let action = format_args!("read the queueing discipline of `{link}`");
        let index = self.index(link, action)?;
        // A request for one link would notify every listener; the list is silent.
        let payload = MessageBuilder::new(&tcmsg(index, 0));
        let rows = self.requests.dump(libc::RTM_GETQDISC, &payload, action, |message| {
            QdiscStats::parse(message, index)
        })?;
        Ok(rows.into_iter().next())
    }
}

impl Tbf {
    /// Appends `struct tc_tbf_qopt` and its later additions.
    fn options(&self, options: MessageBuilder) -> MessageBuilder {
        let Self { rate, burst_bytes, limit_bytes } = *self;
        let bytes_per_second = (rate.as_bps() / 8).max(1);
        let short_rate = u32::try_from(bytes_per_second).unwrap_or(u32::MAX);
        let ticks = |bytes: u64| {
            let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_second);
            u32::try_from(nanos / TICK_NS).unwrap_or(u32::MAX)
        };
        let mut parameters = Vec::with_capacity(36);
        // `struct tc_ratespec`: cell_log, link layer, overhead, cell_align, mpu, rate.
        parameters.extend([CELL_LOG, ETHERNET, 0, 0, 0, 0, 0, 0]);
        parameters.extend(short_rate.to_ne_bytes());
        parameters.extend([0; 12]); // no peak rate
        parameters.extend(limit_bytes.to_ne_bytes());
        parameters.extend(ticks(burst_bytes.into()).to_ne_bytes());
        parameters.extend(0_u32.to_ne_bytes());
        // Kernels before 3.8 read a packet's transmission time from this table.
        let table = (1..=256_u64).flat_map(|cell| ticks(cell << CELL_LOG).to_ne_bytes());
        let table: Vec<u8> = table.collect();
        let long_rate = Some(bytes_per_second).filter(|&rate| rate >= u64::from(u32::MAX));
        options
            .attribute(TBF_PARMS, &parameters)
            .attribute(TBF_RTAB, &table)
            .maybe(long_rate, |options, rate| options.u64(TBF_RATE64, rate))
            .u32(TBF_BURST, burst_bytes)
    }
}

impl QdiscStats {
    /// Reads `RTM_NEWQDISC`; `None` unless it is the root discipline of link `index`.
    fn parse(message: &Message<'_>, index: u32) -> Result<Option<Self>, Malformed> {
        let mut reader = StructReader::new(message.body, "tcmsg");
        let _family = reader.u32()?;
        let (link_index, _handle, parent) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let _info = reader.u32()?;
        if link_index != index || parent != ROOT {
            return Ok(None);
        }
        let (mut stats, mut options) = (Self::default(), None);
        for attribute in Attributes::new(reader.rest()) {
            let attribute = attribute?;
            match attribute.kind {
                libc::TCA_KIND => stats.kind = attribute.text(),
                libc::TCA_OPTIONS => options = Some(attribute),
                libc::TCA_STATS2 => stats.set_counters(attribute)?,
                _ => {}
            }
        }
        if let Some(options) = options.filter(|_| stats.kind == "tbf") {
            stats.rate = tbf_rate(options)?;
        }
        Ok(Some(stats))
    }

    fn set_counters(&mut self, counters: Attribute<'_>) -> Result<(), Malformed> {
        for attribute in counters.nested() {
            let attribute = attribute?;
            let mut reader = StructReader::new(attribute.value, "queueing counters");
            match attribute.kind {
                STATS_BASIC => {
                    self.bytes = reader.u64()?;
                    self.packets = self.packets.max(reader.u32()?.into());
                }
                STATS_QUEUE => {
                    self.backlog_packets = reader.u32()?;
                    self.backlog_bytes = reader.u32()?;
                    self.drops = reader.u32()?;
                    self.requeues = reader.u32()?;
                    self.overlimits = reader.u32()?;
                }
                STATS_PACKETS64 => self.packets = reader.u64()?,
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns the rate in a token bucket filter's options.
fn tbf_rate(options: Attribute<'_>) -> Result<Option<Rate>, Malformed> {
    let (mut rate32, mut rate64) = (0, None);
    for attribute in options.nested() {
        let attribute = attribute?;
        match attribute.kind {
            TBF_PARMS => {
                let mut reader = StructReader::new(attribute.value, "tc_tbf_qopt");
                let _ratespec = reader.u64()?;
                rate32 = reader.u32()?;
            }
            TBF_RATE64 => rate64 = Some(attribute.u64()?),
            _ => {}
        }
    }
    Ok(Rate::from_bps(rate64.unwrap_or(rate32.into()).saturating_mul(8)))
}

/// Returns the `struct tcmsg` for the root of a link.
fn tcmsg(link_index: u32, handle: u32) -> [u8; 20] {
    let [i0, i1, i2, i3] = link_index.to_ne_bytes();
    let [h0, h1, h2, h3] = handle.to_ne_bytes();
    let [p0, p1, p2, p3] = ROOT.to_ne_bytes();
    [0, 0, 0, 0, i0, i1, i2, i3, h0, h1, h2, h3, p0, p1, p2, p3, 0, 0, 0, 0]
}

#[cfg(test)]
#[cfg(target_endian = "little")]
mod tests {
    use super::*;
    use crate::wire::tests::{never_panics, parse_all};

    const RECORDED: &str = include_str!("../recorded/qdiscs.hex");

    #[test]
    fn recorded_counters_are_understood() {
        let rows = parse_all(RECORDED, |message| QdiscStats::parse(message, 3).unwrap());
        let [None, None, Some(slow), Some(fast)] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((slow.kind.as_str(), slow.rate), ("tbf", Rate::from_bps(1_000_000)));
        assert_eq!((slow.packets, slow.bytes, slow.drops), (2, 2_084, 89));
        assert_eq!((slow.backlog_packets, slow.backlog_bytes), (9, 9_378));
        assert_eq!((slow.overlimits, slow.requeues), (98, 0));
        assert_eq!(fast.rate, Rate::from_bps(50_000_000_000), "more than 32 bits");
    }

    #[test]
    fn a_filter_is_described_in_the_kernels_structures() {
        let rate = Rate::from_bps(8_000_000).unwrap(); // a byte takes a microsecond
        let tbf = Tbf { rate, burst_bytes: 1_600, limit_bytes: 30_000 };
        let message = tbf.options(MessageBuilder::default()).message(0, 0, 0);
        let attributes: Vec<_> =
            Attributes::new(&message[16..]).map(|attribute| attribute.unwrap()).collect();
        let [parameters, table, burst] = &attributes[..] else { panic!("{attributes:?}") };
        assert_eq!((parameters.kind, parameters.value.len()), (TBF_PARMS, 36));
        let word = |offset: usize| {
            u32::from_ne_bytes(parameters.value[offset..offset + 4].try_into().unwrap())
        };
        assert_eq!((word(8), word(24), word(28)), (1_000_000, 30_000, 1_600 * 1_000 / 64));
        assert_eq!((table.kind, table.value.len()), (TBF_RTAB, 1_024));
        assert_eq!(table.u32(), Ok(8 * 1_000 / 64));
        assert_eq!((burst.kind, burst.u32()), (TBF_BURST, Ok(1_600)));
    }

    #[test]
    fn no_queueing_message_panics() {
        never_panics(RECORDED, |message| QdiscStats::parse(message, 3));
    }
}
