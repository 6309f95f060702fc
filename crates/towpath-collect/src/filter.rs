//! Query of the list of runs: read from an address, written to one, and applied by the catalogue.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::time::{day_text, parse_day};

/// Runs on one page.
pub(crate) const PAGE_RUNS: i64 = 50;
/// Runs of a series: more would only cover each other in its drawing.
pub(crate) const SERIES_RUNS: i64 = 1_000;
/// Maximum number of values of one facet in a query.
pub(crate) const MAX_VALUES: usize = 50;
/// Maximum length of a value in bytes.
const MAX_VALUE_BYTES: usize = 500;
/// Number of the last page that can be asked for.
pub(crate) const MAX_PAGE: i64 = 100_000;
/// Parameter with the first day.
pub(crate) const SINCE: &str = "since";
/// Parameter with the last day.
pub(crate) const UNTIL: &str = "until";
/// Parameter with the order.
pub(crate) const SORT: &str = "sort";
/// Parameter with the page, from 1.
pub(crate) const PAGE: &str = "page";

/// Property of runs by which a page filters and counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Facet {
    Transport,
    Scenario,
    World,
    Host,
    Server,
    Family,
    Version,
    Outcome,
}

impl Facet {
    /// All facets, in the order of the page.
    pub(crate) const ALL: [Self; 8] = [
        Self::Transport,
        Self::Scenario,
        Self::World,
        Self::Host,
        Self::Server,
        Self::Family,
        Self::Version,
        Self::Outcome,
    ];

    /// Returns the facet's name in addresses and in the catalogue.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Transport => "transport",
            Self::Scenario => "scenario",
            Self::World => "world",
            Self::Host => "host",
            Self::Server => "server",
            Self::Family => "family",
            Self::Version => "version",
            Self::Outcome => "outcome",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|facet| facet.name() == name)
    }
}

/// Order of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Sort {
    #[default]
    Time,
    Goodput,
    Delay,
    Stall,
}

impl Sort {
    pub(crate) const ALL: [Self; 4] = [Self::Time, Self::Goodput, Self::Delay, Self::Stall];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Goodput => "goodput",
            Self::Delay => "delay",
            Self::Stall => "stall",
        }
    }

    /// Returns the column of the catalogue.
    pub(crate) fn column(self) -> &'static str {
        match self {
            Self::Time => "started_us",
            Self::Goodput => "goodput_bps",
            Self::Delay => "delay_p99_us",
            Self::Stall => "stall_us",
        }
    }
}

/// Query of the list of runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct RunFilter {
    /// Accepted values of each facet; any value of a facet that is absent.
    pub(crate) values: BTreeMap<Facet, Vec<String>>,
    /// First day, in days since 1970.
    pub(crate) since: Option<i64>,
    /// Last day.
    pub(crate) until: Option<i64>,
    pub(crate) sort: Sort,
    /// Set when the smallest or oldest comes first.
    pub(crate) ascending: bool,
    /// Page, from 0.
    pub(crate) page: i64,
}

impl RunFilter {
    /// Reads a query. An empty value counts as absent, as a form sends it.
    ///
    /// Fails with a sentence for people.
    pub(crate) fn parse(pairs: &[(String, String)]) -> Result<Self, String> {
        let mut filter = Self::default();
        for (key, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
            if value.len() > MAX_VALUE_BYTES {
                return Err(format!("the value of `{}` is too long", key.escape_debug()));
            }
            if let Some(facet) = Facet::from_name(key) {
                let values = filter.values.entry(facet).or_default();
                if values.len() >= MAX_VALUES {
                    return Err(format!("`{key}` has more than {MAX_VALUES} values"));
                }
                // A form cannot send an empty value, so the page writes a dash for it.
                let value = if value == "-" { String::new() } else { value.clone() };
                if !values.contains(&value) {
                    values.push(value);
                }
                continue;
            }
            match key.as_str() {
                SINCE => filter.since = Some(day(key, value)?),
                UNTIL => filter.until = Some(day(key, value)?),
                SORT => {
                    let name = value.strip_prefix('+').or(value.strip_prefix(' ')).unwrap_or(value);
                    filter.ascending = name != value;
                    let sort = Sort::ALL.into_iter().find(|sort| sort.name() == name);
                    filter.sort = sort.ok_or("`sort` is time, goodput, delay or stall")?;
                }
                PAGE => {
                    let page = value.parse().ok().filter(|page| (1..=MAX_PAGE).contains(page));
                    filter.page = page.ok_or("`page` is a number from 1")? - 1;
                }
                _ => {
                    let names: Vec<_> = Facet::ALL.into_iter().map(Facet::name).collect();
                    return Err(format!(
                        "there is no filter `{}`; there are {}, since, until, sort and page",
                        key.escape_debug(),
                        names.join(", ")
                    ));
                }
            }
        }
        Ok(filter)
    }

    /// Returns the query in the form of an address, without the question mark.
    pub(crate) fn query(&self) -> String {
        let mut out = String::new();
        for (facet, values) in &self.values {
            for value in values {
                push(&mut out, facet.name(), if value.is_empty() { "-" } else { value });
            }
        }
        for (key, day) in [(SINCE, self.since), (UNTIL, self.until)] {
            if let Some(day) = day {
                push(&mut out, key, &day_text(day));
            }
        }
        if self.sort != Sort::default() || self.ascending {
            let sign = if self.ascending { "+" } else { "" };
            push(&mut out, SORT, &format!("{sign}{}", self.sort.name()));
        }
        if self.page > 0 {
            push(&mut out, PAGE, &(self.page + 1).to_string());
        }
        out
    }

    /// Returns true if a run with `value` passes the condition of one facet.
    pub(crate) fn accepts(&self, facet: Facet, value: &str) -> bool {
        self.values.get(&facet).is_none_or(|values| values.iter().any(|wanted| wanted == value))
    }

    /// Returns true if the query has any condition.
    pub(crate) fn is_filtered(&self) -> bool {
        !self.values.is_empty() || self.since.is_some() || self.until.is_some()
    }
}

fn day(key: &str, value: &str) -> Result<i64, String> {
    parse_day(value).ok_or_else(|| format!("`{key}` is a day such as 2026-11-28"))
}

/// Appends a parameter with its value in percent-encoding.
pub(crate) fn push(out: &mut String, key: &str, value: &str) {
    if !out.is_empty() {
        out.push('&');
    }
    out.push_str(key);
    out.push('=');
    encode(out, value);
}

/// Appends a value in percent-encoding (RFC 3986 §2.1).
pub(crate) fn encode(out: &mut String, value: &str) {
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}"); // cannot fail
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_query_survives_a_round_trip() {
        let filter = RunFilter::parse(&pairs(&[
            ("transport", "tcp"),
            ("transport", "mptcp"),
            ("host", "lab 3 & <b>"),
            ("server", "-"),
            ("since", "2026-11-01"),
            ("sort", "+goodput"),
            ("page", "3"),
            ("until", ""),
        ]))
        .unwrap();
        let query = filter.query();
        assert_eq!(
            query,
            "transport=tcp&transport=mptcp&host=lab%203%20%26%20%3Cb%3E&server=-&since=2026-11-01\
             &sort=%2Bgoodput&page=3"
        );
        assert!(filter.accepts(Facet::Server, "") && !filter.accepts(Facet::Server, "x"));
        assert!(filter.accepts(Facet::World, "sim") && filter.is_filtered());
    }

    #[test]
    fn an_invalid_query_is_refused_with_the_choices() {
        for (key, value, words) in [
            ("colour", "red", "no filter `colour`"),
            ("since", "yesterday", "`since` is a day"),
            ("sort", "name", "`sort` is time"),
            ("page", "0", "from 1"),
            ("page", "99999999999999999999", "from 1"),
        ] {
            let error = RunFilter::parse(&pairs(&[(key, value)])).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
