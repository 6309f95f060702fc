//! Interfaces that a subflow has used. Its address may move from one to another.

use std::net::IpAddr;

use towpath_kernel::sample::TcpInfo;
use towpath_net::Instant;

/// Time of a subflow on one interface.
#[derive(Debug)]
struct InterfacePeriod {
    path: String,
    from: Instant,
    /// Counters at the start.
    before: TcpInfo,
}

/// Traffic of a subflow on one interface.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PeriodTotals<'a> {
    pub(super) path: &'a str,
    pub(super) from: Instant,
    /// End of the period; `None` if it lasted until the end.
    pub(super) until: Option<Instant>,
    pub(super) bytes_acked: u64,
    pub(super) bytes_received: u64,
    pub(super) retransmissions: u64,
}

/// All periods of a subflow, in order of time. The last one is the current one.
#[derive(Debug)]
pub(super) struct InterfaceHistory {
    earlier: Vec<InterfacePeriod>,
    current: InterfacePeriod,
}

impl InterfaceHistory {
    /// Begins on `interface`, `None` if no interface has the address.
    pub(super) fn begin(interface: Option<String>, address: IpAddr, from: Instant) -> Self {
        let fallback = || if address.is_loopback() { "lo" } else { "unknown" }.to_owned();
        let path = interface.unwrap_or_else(fallback);
        let current = InterfacePeriod { path, from, before: TcpInfo::default() };
        Self { earlier: Vec::new(), current }
    }

    /// Returns the current interface.
    pub(super) fn path(&self) -> &str {
        &self.current.path
    }

    /// Returns the interfaces in order of time.
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.all().map(|period| period.path.as_str())
    }

    /// Compares the address's interface at `time` with the current one; describes a change. A
    /// subflow whose address is gone keeps the interface that had it.
    pub(super) fn follow(
        &mut self,
        interface: Option<String>,
        address: IpAddr,
        counters: &TcpInfo,
        time: Instant,
    ) -> Option<String> {
        let path = interface.filter(|path| *path != self.current.path)?;
        let text = format!("{address} has moved from {} to {path}", self.current.path);
        let next = InterfacePeriod { path, from: time, before: *counters };
        self.earlier.push(std::mem::replace(&mut self.current, next));
        Some(text)
    }

    /// Returns the traffic of each period; `counters` are those at the end.
    pub(super) fn list(
        &self,
        counters: &TcpInfo,
        closed_at: Option<Instant>,
    ) -> Vec<PeriodTotals<'_>> {
        let ends = self.all().skip(1).map(|next| (&next.before, Some(next.from)));
        let ends = ends.chain([(counters, closed_at)]);
        let totals = self.all().zip(ends).map(|(period, (after, until))| PeriodTotals {
            path: &period.path,
            from: period.from,
            until,
            bytes_acked: after.bytes_acked.saturating_sub(period.before.bytes_acked),
            bytes_received: after.bytes_received.saturating_sub(period.before.bytes_received),
            retransmissions: after.total_retrans.saturating_sub(period.before.total_retrans).into(),
        });
        totals.collect()
    }

    fn all(&self) -> impl Iterator<Item = &InterfacePeriod> {
        self.earlier.iter().chain([&self.current])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(bytes_acked: u64) -> TcpInfo {
        TcpInfo { bytes_acked, total_retrans: 1, ..TcpInfo::default() }
    }

    #[test]
    fn each_interface_has_its_own_times_and_traffic() {
        let at = |second: u64| Instant::from_nanos(second * 1_000_000_000);
        for address in ["10.0.0.1", "2001:db8::1"] {
            let ip: IpAddr = address.parse().unwrap();
            let mut history = InterfaceHistory::begin(Some("eth0".to_owned()), ip, at(1));
            assert_eq!(history.follow(None, ip, &counters(10), at(2)), None, "it is gone");
            let to = |name: &str| Some(name.to_owned());
            let text = history.follow(to("eth1"), ip, &counters(30), at(3)).unwrap();
            assert_eq!(text, format!("{address} has moved from eth0 to eth1"));
            assert_eq!(history.follow(to("eth1"), ip, &counters(40), at(4)), None);
            let total_of = |path, from, until, bytes_acked, retransmissions| {
                let bytes_received = 0;
                PeriodTotals { path, from, until, bytes_acked, bytes_received, retransmissions }
            };
            let list = history.list(&counters(100), Some(at(5)));
            let expected = [
                total_of("eth0", at(1), Some(at(3)), 30, 1),
                total_of("eth1", at(3), Some(at(5)), 70, 0),
            ];
            assert_eq!(list, expected);
            assert_eq!(history.paths().collect::<Vec<_>>(), ["eth0", "eth1"]);
        }
    }
}
