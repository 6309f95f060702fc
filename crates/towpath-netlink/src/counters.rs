//! The counters of a network namespace: `TcpExt`, `IpExt`, `MPTcpExt`.

use std::collections::BTreeMap;
use std::fs;
use std::io;

/// Counters of the calling thread's namespace; a thread can have a namespace of its own.
const NETSTAT_PATH: &str = "/proc/thread-self/net/netstat";

/// Counters of `/proc/net/netstat`, by group and name, such as `MPTcpExt` and `MPTCPRetrans`.
///
/// All count since the namespace was created, except a few gauges such as `MPCurrEstab`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MibCounters(BTreeMap<String, u64>);

/// The file of the counters could not be read.
#[derive(Debug, thiserror::Error)]
#[error("read {NETSTAT_PATH}: {0}")]
pub struct UnreadableCounters(io::Error);

impl MibCounters {
    /// Reads the counters of the calling thread's network namespace; needs no privilege.
    pub fn read() -> Result<Self, UnreadableCounters> {
        fs::read_to_string(NETSTAT_PATH).map(|text| Self::parse(&text)).map_err(UnreadableCounters)
    }

    /// Parses the text of the file: pairs of lines, the names and the values of a group.
    ///
    /// Skips lines and values that do not fit: kernels add counters, and some write negative
    /// numbers.
    pub fn parse(text: &str) -> Self {
        let mut counters = BTreeMap::new();
        let mut lines = text.lines();
        while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
            let (Some((group, names)), Some((values_group, values))) =
                (names.split_once(':'), values.split_once(':'))
            else {
                continue;
            };
            if group != values_group {
                continue;
            }
            for (name, value) in names.split_whitespace().zip(values.split_whitespace()) {
                if let Ok(value) = value.parse() {
                    counters.insert(format!("{group}.{name}"), value);
                }
            }
        }
        Self(counters)
    }

    /// Returns a counter by its full name, such as `MPTcpExt.MPTCPRetrans`; `None` if this kernel
    /// does not have it.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    /// Returns all counters by their full names, in alphabetical order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, &value)| (name.as_str(), value))
    }

    /// Returns the growth of each counter since `earlier`, without counters that did not grow.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let grown = |(name, &now): (&String, &u64)| {
            let growth = now.saturating_sub(earlier.get(name).unwrap_or(0));
            (growth > 0).then(|| (name.clone(), growth))
        };
        Self(self.0.iter().filter_map(grown).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RECORDED: &str = "\
TcpExt: SyncookiesSent TW TCPRetransFail
TcpExt: 0 12 3
IpExt: InNoRoutes InOctets
IpExt: 1 18446744073709551615
MPTcpExt: MPCapableSYNRX MPTCPRetrans
MPTcpExt: 4 5
";

    #[test]
    fn every_group_of_the_file_is_read() {
        let counters = MibCounters::parse(RECORDED);
        assert_eq!(counters.iter().count(), 7);
        assert_eq!(counters.get("TcpExt.TW"), Some(12));
        assert_eq!(counters.get("IpExt.InOctets"), Some(u64::MAX));
        assert_eq!(counters.get("MPTcpExt.MPTCPRetrans"), Some(5));
        assert_eq!(counters.get("MPTcpExt.NoSuch"), None);
    }

    #[test]
    fn malformed_counters_are_skipped() {
        let counters = MibCounters::parse("A: x y\nA: -1 2 3\nB: z\nC: 4\nD: w");
        assert_eq!(counters.iter().collect::<Vec<_>>(), [("A.y", 2)]);
    }

    #[test]
    fn a_difference_contains_only_increased_counters() {
        let later = MibCounters::parse(&RECORDED.replace("12", "20"));
        let grown = later.since(&MibCounters::parse(RECORDED));
        assert_eq!(grown.iter().collect::<Vec<_>>(), [("TcpExt.TW", 8)]);
    }

    proptest! {
        #[test]
        fn any_text_is_accepted(text: String) {
            let _ = MibCounters::parse(&text);
        }
    }
}
