//! File of a campaign. Every mistake is reported with its line.

mod keys;

use std::time::Duration;

use towpath_scenario::document::{Problems, Section, SpannedProblem, Value, nearest, quote, read};
use towpath_scenario::{ScenarioErrors, Transport};

use crate::AddressFamily;
use keys::{CAMPAIGN, MAX_NAME_CHARS, MAX_ROUNDS, PATTERN, PATTERNS};

use crate::pattern::{
    Amounts, CampaignPattern, FIRST_KEY_LINE, amounts, parse_flow, payload_within, with_overhead,
};
pub use keys::reference_markdown;

/// Campaign of stable mode to start from.
pub const EXAMPLE_STABLE: &str = include_str!("example-stable.toml");
/// Campaign of mobile mode to start from.
pub const EXAMPLE_MOBILE: &str = include_str!("example-mobile.toml");

/// Maximum length of the description in bytes.
const MAX_DESCRIPTION_BYTES: usize = 1_000;
/// Shortest period of rounds: a campaign is not a load test.
const MIN_PERIOD: Duration = Duration::from_secs(10);
/// Longest period of rounds.
const MAX_PERIOD: Duration = Duration::from_secs(366 * 24 * 3_600);
/// Maximum number of runs in a round.
const MAX_RUNS: usize = 500;
/// Maximum number of patterns.
const MAX_PATTERNS: usize = 32;
/// Maximum number of servers that a campaign names.
const MAX_SERVERS: usize = 100;
/// Minimum rate of a stream that is limited by `max-bytes`, in bit/s.
const MIN_RATE_BPS: u64 = 100_000;

const TRANSPORTS: [(&str, Transport); 4] = [
    ("tcp", Transport::Tcp),
    ("mptcp", Transport::Mptcp),
    ("quic", Transport::Quic),
    ("mpquic", Transport::Mpquic),
];
const FAMILIES: [(&str, AddressFamily); 2] =
    [("ipv4", AddressFamily::Ipv4), ("ipv6", AddressFamily::Ipv6)];
const MODES: [(&str, CampaignMode); 2] =
    [("stable", CampaignMode::Stable), ("mobile", CampaignMode::Mobile)];

/// Patterns that continue until a network is lost.
const SESSION_PATTERNS: [&str; 4] = ["interactive", "reqres", "onoff", "udping"];

/// Forms of addresses in results; true for complete ones.
const ADDRESSES: [(&str, bool); 2] = [("prefix", false), ("full", true)];

/// Mode of a campaign, as in MultipathTester.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CampaignMode {
    /// The device stays at one place. Runs are made one after the other.
    Stable,
    /// The device moves. All transports run at the same time, until the first network is lost.
    Mobile,
}

impl CampaignMode {
    /// Returns the name in campaigns: `stable` or `mobile`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Mobile => "mobile",
        }
    }
}

/// Measurements that an operator plans.
#[derive(Debug, Clone, PartialEq)]
pub struct Campaign {
    /// Name, unique on a collector: lower-case letters, digits and hyphens.
    pub name: String,
    /// Purpose, shown to owners of devices.
    pub description: String,
    /// Stable or mobile.
    pub mode: CampaignMode,
    /// Start of the first period, in microseconds since 1970.
    pub start_us: u64,
    /// End, in microseconds since 1970: no run starts at or after it.
    pub end_us: u64,
    /// Period of the rounds.
    pub every: Duration,
    /// Maximum random delay of a round in its period.
    pub jitter: Duration,
    /// Maximum number of rounds of a device.
    pub rounds: Option<u32>,
    /// Test servers by name or address; empty for all that have registered with the collector.
    pub servers: Vec<String>,
    /// Bytes that a device may transfer on one day (UTC).
    pub bytes_per_day: u64,
    /// True if results keep complete IP addresses; else devices send network prefixes only.
    pub full_addresses: bool,
    /// Traffic, in order.
    pub patterns: Vec<CampaignPattern>,
}

/// Keys of a scenario's flow that a campaign decides by itself, or that could name a program.
const EXCLUDED_KEYS: [(&str, &str); 10] = [
    ("from", "a device always measures to a server"),
    ("to", "a device always measures to a server"),
    ("via", "a device has its own paths"),
    ("run", "a campaign cannot run commands"),
    ("server", "a campaign cannot run commands"),
    ("messages", "a campaign cannot list messages"),
    ("load", "its bytes have no limit"),
    ("transport", "use `transports`"),
    ("family", "use `families`"),
    ("at", "a pattern starts with its run"),
];

impl Campaign {
    /// Reads a campaign that was created at `created_us`, in microseconds since 1970. `file_name` is
    /// only for messages.
    pub fn parse(file_name: &str, text: &str, created_us: u64) -> Result<Self, ScenarioErrors> {
        read(file_name, text, (&CAMPAIGN, "the campaign"), |top, problems| {
            campaign(top, problems, created_us)
        })
    }
}

/// Defaults of all patterns, and what the mode allows.
#[derive(Debug)]
struct PatternDefaults {
    mode: CampaignMode,
    transports: Vec<Transport>,
    families: Vec<AddressFamily>,
    ports: Vec<u16>,
}

fn campaign(top: &mut Section<'_>, problems: &Problems, created_us: u64) -> Campaign {
    let name = top.require("name", "name = \"wifi-2026\"").and_then(|value| campaign_name(&value));
    let description = top.take("description").and_then(|value| description(&value));
    let mode = top.require("mode", "mode = \"stable\"").and_then(|value| value.word(&MODES));
    let mode = mode.unwrap_or(CampaignMode::Stable);
    let start_us = top.take("start").and_then(|value| time_us(&value));
    let start_us = start_us.map_or(created_us, |start_us| start_us.max(created_us));
    let end = top.require("end", "end = 2026-12-31T00:00:00Z");
    let end_us = end.as_ref().and_then(time_us);
    if let (Some(value), Some(end_us)) = (&end, end_us)
        && end_us <= start_us
    {
        value.fail("`end` is not after the start", "expected a later time");
    }
    let (every, jitter) = period(top);
    let rounds = top.take("rounds").and_then(|value| value.integer(1, MAX_ROUNDS));
    let servers = top.take("servers").and_then(|value| servers(&value)).unwrap_or_default();
    let bytes = top.require("bytes-per-day", "bytes-per-day = \"500 MB\"");
    let bytes_per_day = bytes.as_ref().and_then(Value::size);
    let full_addresses = top.take("addresses").and_then(|value| value.word(&ADDRESSES));
    let defaults = PatternDefaults {
        mode,
        transports: list_of(top, "transports", transports).unwrap_or_else(|| match mode {
            CampaignMode::Stable => TRANSPORTS.map(|(_, transport)| transport).to_vec(),
            CampaignMode::Mobile => vec![Transport::Mptcp, Transport::Mpquic],
        }),
        families: list_of(top, "families", families).unwrap_or_else(|| match mode {
            CampaignMode::Stable => AddressFamily::ALL.to_vec(),
            CampaignMode::Mobile => vec![AddressFamily::Ipv4],
        }),
        ports: list_of(top, "ports", ports).unwrap_or_else(|| vec![443]),
    };
    let patterns = top.require("patterns", "[[patterns]]");
    let campaign = Campaign {
        name: name.unwrap_or_default(),
        description: description.unwrap_or_default(),
        mode,
        start_us,
        end_us: end_us.unwrap_or(u64::MAX),
        every: every.unwrap_or(MAX_PERIOD),
        jitter: jitter.unwrap_or_default(),
        rounds: rounds.map(|rounds| rounds as u32),
        servers,
        bytes_per_day: bytes_per_day.unwrap_or(u64::MAX),
        full_addresses: full_addresses.unwrap_or(false),
        patterns: patterns
            .as_ref()
            .map_or_else(Vec::new, |value| all_patterns(value, &defaults, problems)),
    };
    check_amounts(&campaign, (patterns.as_ref(), bytes.as_ref()));
    campaign
}

/// Reads the period and the jitter of rounds.
fn period(top: &mut Section<'_>) -> (Option<Duration>, Option<Duration>) {
    let value = top.require("every", "every = \"6 h\"");
    let every = value.as_ref().and_then(|value| {
        let every = value.duration(MAX_PERIOD)?;
        if every < MIN_PERIOD {
            value.fail("`every` is less than 10 s", "expected at least 10 s");
            return None;
        }
        Some(every)
    });
    let jitter = top.take("jitter");
    let Some(jitter) = jitter else { return (every, every.map(|every| every / 10)) };
    (every, jitter.duration(every.unwrap_or(MAX_PERIOD)))
}

fn campaign_name(value: &Value<'_>) -> Option<String> {
    let name = value.text()?;
    let is_name = !name.is_empty()
        && name.len() <= MAX_NAME_CHARS
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.starts_with('-');
    if !is_name {
        value.fail(
            format!("{} is not a name", quote(name)),
            format!("expected lower-case letters, digits and hyphens, at most {MAX_NAME_CHARS}"),
        );
    }
    is_name.then(|| name.to_owned())
}

fn description(value: &Value<'_>) -> Option<String> {
    let text = value.text()?;
    if text.len() > MAX_DESCRIPTION_BYTES {
        value.fail("`description` is too long", format!("expected {MAX_DESCRIPTION_BYTES} bytes"));
        return None;
    }
    if text.contains(|c: char| c != '\n' && towpath_result::format::text::deceives(c)) {
        value.fail("`description` has control characters", "expected printable text");
        return None;
    }
    Some(text.to_owned())
}

/// Reads a date and time with its offset; in microseconds since 1970.
fn time_us(value: &Value<'_>) -> Option<u64> {
    const EXPECTED: &str = "expected a date and time with its offset: `2026-12-31T00:00:00Z`";
    let toml::Value::Datetime(time) = value.to_toml() else {
        value.wrong_type(EXPECTED);
        return None;
    };
    let (Some(date), Some(clock), Some(offset)) = (time.date, time.time, time.offset) else {
        value.fail("the time is not complete", EXPECTED);
        return None;
    };
    let offset_minutes = match offset {
        toml::value::Offset::Z => 0,
        toml::value::Offset::Custom { minutes } => i64::from(minutes),
    };
    let minutes = i64::from(clock.hour) * 60 + i64::from(clock.minute) - offset_minutes;
    let days = days_since_1970(date.year.into(), date.month.into(), date.day.into());
    let seconds = days * 86_400 + minutes * 60 + i64::from(clock.second.unwrap_or(0));
    let Ok(seconds) = u64::try_from(seconds) else {
        value.fail("the time is before 1970", EXPECTED);
        return None;
    };
    Some(seconds * 1_000_000 + u64::from(clock.nanosecond.unwrap_or(0) / 1_000))
}

/// Returns the days from 1970-01-01 to a date of the Gregorian calendar. Years begin in March here,
/// so that a leap day is the last day of a year.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468
}

/// Reads an optional list, without duplicates.
fn list_of<T: PartialEq>(
    section: &mut Section<'_>,
    key: &'static str,
    item: fn(&Value<'_>) -> Option<T>,
) -> Option<Vec<T>> {
    let value = section.take(key)?;
    let items = value.list("expected a list")?;
    if items.is_empty() {
        value.fail(format!("`{key}` is empty"), "expected at least one value");
    }
    let mut unique = Vec::new();
    for item in items.iter().filter_map(item) {
        if !unique.contains(&item) {
            unique.push(item);
        }
    }
    Some(unique)
}

fn transports(value: &Value<'_>) -> Option<Transport> {
    value.word(&TRANSPORTS)
}

fn families(value: &Value<'_>) -> Option<AddressFamily> {
    value.word(&FAMILIES)
}

fn ports(value: &Value<'_>) -> Option<u16> {
    value.integer(1, 65_535).map(|port| port as u16)
}

/// Reads names or addresses of servers, without ports.
fn servers(value: &Value<'_>) -> Option<Vec<String>> {
    let items = value.list("expected a list of names or addresses")?;
    if items.len() > MAX_SERVERS {
        value.fail(format!("{} servers", items.len()), format!("expected at most {MAX_SERVERS}"));
    }
    let server = |item: &Value<'_>| {
        let text = item.text()?;
        let is_host = !text.is_empty()
            && text.len() <= 253
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b".-:".contains(&b));
        if !is_host || text.starts_with('-') {
            item.fail(format!("{} is not a host", quote(text)), "expected a name or an address");
            return None;
        }
        Some(text.to_owned())
    };
    Some(items.iter().filter_map(server).collect())
}

fn all_patterns(
    value: &Value<'_>,
    defaults: &PatternDefaults,
    problems: &Problems,
) -> Vec<CampaignPattern> {
    let Some(items) = value.list("expected `[[patterns]]`") else { return Vec::new() };
    if items.is_empty() || items.len() > MAX_PATTERNS {
        value.fail(format!("{} patterns", items.len()), format!("expected 1 to {MAX_PATTERNS}"));
    }
    if defaults.mode == CampaignMode::Mobile && items.len() > 1 {
        value.fail("a mobile campaign has one pattern", "remove the others");
    }
    items.iter().filter_map(|item| read_pattern(item, defaults, problems)).collect()
}

/// Reads one pattern. Keys of the flow are checked by the reader of scenarios.
fn read_pattern(
    item: &Value<'_>,
    defaults: &PatternDefaults,
    problems: &Problems,
) -> Option<CampaignPattern> {
    let table = item.as_table();
    let mut section = item.section(&PATTERN, "the pattern", "expected `[[patterns]]`")?;
    let name_value = section.require("pattern", "pattern = \"bulk\"")?;
    let name = pattern_name(&name_value, defaults.mode)?;
    section.set_label(format!("the pattern `{name}`"));
    let transports = list_of(&mut section, "transports", transports);
    let families = list_of(&mut section, "families", families);
    let ports = list_of(&mut section, "ports", ports);
    let limit_value = section.take("max-bytes");
    let limit = match &limit_value {
        Some(value) => Some(value.size()?),
        None => None,
    };
    // The section is not finished: keys of the flow are not in its schema.
    let flow_keys: Vec<_> = table?.iter().filter(|(key, _)| !PATTERN.has(key.get_ref())).collect();
    let mut keys = Vec::new();
    for (key, value) in &flow_keys {
        let excluded = EXCLUDED_KEYS.iter().find(|(name, _)| key.get_ref() == name);
        if let Some((name, reason)) = excluded {
            let message = format!("`{name}` cannot be used in a campaign: {reason}");
            problems.push(SpannedProblem::new(key.span(), message, "remove it"));
            return None;
        }
        let nested = item.nested(key.get_ref(), key.span(), value);
        keys.push((key.get_ref().to_string(), flow_value(&nested, key.get_ref())?));
    }
    let scenario = match parse_flow(name, &keys) {
        Ok(scenario) => scenario,
        Err(errors) => {
            report_flow_errors(&errors, &flow_keys, item, problems);
            return None;
        }
    };
    let mut amounts = amounts(&scenario);
    if defaults.mode == CampaignMode::Mobile && name != "udping" {
        amounts = amounts.with_datagrams();
    }
    let (max_bytes, rate_limit_bps) = limits(&amounts, limit, &section)?;
    Some(CampaignPattern {
        name: name.to_owned(),
        keys,
        transports: transports.unwrap_or_else(|| defaults.transports.clone()),
        families: families.unwrap_or_else(|| defaults.families.clone()),
        ports: ports.unwrap_or_else(|| defaults.ports.clone()),
        duration: amounts.duration,
        max_bytes,
        rate_limit_bps,
    })
}

/// Returns the value of a flow's key as one line of TOML.
///
/// Key and value become part of a scenario, so both are limited to plain characters.
fn flow_value(value: &Value<'_>, key: &str) -> Option<String> {
    if !key.bytes().all(|b| b.is_ascii_lowercase() || b == b'-') {
        let span = value.key_span();
        value.fail_at(&span, format!("unknown key {}", quote(key)), "not a key of a flow");
        return None;
    }
    let number = || value.as_number().or_else(|| value.as_bool().map(|b| b.to_string()));
    let Some(text) = value.as_str() else {
        return number().or_else(|| {
            value.wrong_type("expected a text, a number, `true` or `false`");
            None
        });
    };
    if !text.bytes().all(|b| b.is_ascii_graphic() && b != b'"' && b != b'\\' || b == b' ') {
        value.fail(format!("`{key}` has special characters"), "expected plain text");
        return None;
    }
    Some(format!("\"{text}\""))
}

fn pattern_name(value: &Value<'_>, mode: CampaignMode) -> Option<&'static str> {
    let text = value.text()?;
    let Some(name) = PATTERNS.into_iter().find(|name| *name == text) else {
        let problem = SpannedProblem::new(
            value.span(),
            format!("{} is not a pattern of campaigns", quote(text)),
            format!("expected one of {}", PATTERNS.join(", ")),
        );
        value.push(match nearest(text, PATTERNS) {
            Some(near) => problem.hint(format!("did you mean `{near}`?")),
            None => problem,
        });
        return None;
    };
    if mode == CampaignMode::Mobile && !SESSION_PATTERNS.contains(&name) {
        value.fail(
            format!("`{name}` cannot be used in a mobile campaign"),
            format!("expected one of {}", SESSION_PATTERNS.join(", ")),
        );
        return None;
    }
    Some(name)
}

/// A key of a table with its value, and both positions.
type SpannedKey<'a> =
    (&'a toml::Spanned<toml::de::DeString<'a>>, &'a toml::Spanned<toml::de::DeValue<'a>>);

/// Reports problems of a flow at the keys that cause them.
fn report_flow_errors(
    errors: &ScenarioErrors,
    keys: &[SpannedKey<'_>],
    item: &Value<'_>,
    problems: &Problems,
) {
    for problem in errors.problems() {
        let line = problem.position.map(|(line, _)| line);
        let key = line
            .and_then(|line| line.checked_sub(FIRST_KEY_LINE))
            .and_then(|index| keys.get(index));
        let span = key.map_or_else(|| item.highlight_span(), |(key, _)| key.span());
        let reported = SpannedProblem::new(span, problem.message.clone(), problem.expected.clone());
        problems.push(match &problem.hint {
            Some(hint) => reported.hint(hint.clone()),
            None => reported,
        });
    }
}

/// Returns the maximum bytes of a run, and the rate limit of each stream that it implies.
fn limits(
    amounts: &Amounts,
    limit: Option<u64>,
    section: &Section<'_>,
) -> Option<(u64, Option<u64>)> {
    let computed = amounts.payload_bytes.map(with_overhead);
    match (computed, limit) {
        (Some(computed), Some(limit)) if computed > limit => {
            section.fail(
                format!("the pattern can need {computed} bytes, more than its `max-bytes`"),
                "use a smaller pattern, or a larger `max-bytes`",
            );
            None
        }
        (Some(computed), _) => Some((computed, None)),
        (None, None) => {
            section.fail(
                "the bytes of this transfer have no limit",
                "add `max-bytes`, or a size: `size = \"10 MB\"`",
            );
            None
        }
        (None, Some(limit)) => {
            let milliseconds = u64::try_from(amounts.duration.as_millis()).unwrap_or(u64::MAX);
            let bits = payload_within(limit).saturating_mul(8_000);
            let rate = bits / milliseconds.max(1) / amounts.fast_streams.max(1);
            if rate < MIN_RATE_BPS {
                section.fail(
                    "`max-bytes` allows less than 100 kbit/s for each stream",
                    "use a larger `max-bytes`, or a shorter `duration`",
                );
                return None;
            }
            Some((limit, Some(rate)))
        }
    }
}

/// Reports a round that has too many runs, or that cannot fit into a day's bytes.
fn check_amounts(campaign: &Campaign, (patterns, bytes): (Option<&Value<'_>>, Option<&Value<'_>>)) {
    let runs = campaign.runs_per_round() as usize;
    if let Some(value) = patterns.filter(|_| runs > MAX_RUNS) {
        value.fail(format!("a round has {runs} runs"), format!("expected at most {MAX_RUNS}"));
    }
    let needed = campaign.bytes_per_round();
    if let Some(value) = bytes.filter(|_| needed > campaign.bytes_per_day) {
        value.fail(
            format!("a round can need {needed} bytes, more than `bytes-per-day`"),
            "use a larger `bytes-per-day`, or fewer runs",
        );
    }
}

#[cfg(test)]
mod tests;
