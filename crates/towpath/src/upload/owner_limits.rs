//! Limits that the owner of a device sets. Neither a campaign nor a server can exceed them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use towpath_result::format;

use crate::amounts;

/// Bytes of a device on one day, unless its owner sets another limit.
const DEFAULT_BYTES_PER_DAY: u64 = 1_000_000_000;
const HOUR_US: u64 = 3_600_000_000;
const DAY_US: u64 = 24 * HOUR_US;
/// Maximum length of an interface's name in bytes (`IFNAMSIZ` without its end).
const MAX_INTERFACE_BYTES: usize = 15;
/// Beginnings of the names of cellular and dial-up interfaces.
const METERED_PREFIXES: [&str; 3] = ["wwan", "rmnet", "ppp"];

/// Limits of a device's owner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OwnerLimits {
    pub(crate) bytes_per_day: ByteLimit,
    pub(crate) hours: HoursLimit,
    pub(crate) interfaces: AllowedInterfaces,
    pub(crate) metered: MeteredPolicy,
    /// Interfaces that the owner names as metered, in addition to those that are known as such.
    pub(crate) metered_interfaces: MeteredInterfaces,
}

/// Maximum number of bytes on one day (UTC); `None` for no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ByteLimit(pub(crate) Option<u64>);

impl Default for ByteLimit {
    fn default() -> Self {
        Self(Some(DEFAULT_BYTES_PER_DAY))
    }
}

impl ByteLimit {
    /// Returns true if `needed` more bytes stay within the limit after `used` bytes.
    pub(crate) fn allows(self, used: u64, needed: u64) -> bool {
        self.0.is_none_or(|max| used.saturating_add(needed) <= max)
    }
}

impl fmt::Display for ByteLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(bytes) => write!(f, "{bytes} B"),
            None => f.write_str("none"),
        }
    }
}

impl FromStr for ByteLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        amounts::size(text).map(|bytes| Self(Some(bytes)))
    }
}

/// Hours of the day (UTC) in which runs may be made; `None` for all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct HoursLimit(pub(crate) Option<DailyHours>);

/// Hours from the start of one hour to the start of another one, which may be on the next day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DailyHours {
    /// First hour, 0 to 23.
    from: u8,
    /// End, 0 to 24.
    to: u8,
}

impl HoursLimit {
    /// Returns true if a run of this duration begins and ends within the hours. `now_us` is in
    /// microseconds since 1970.
    pub(crate) fn allows(self, now_us: u64, duration: Duration) -> bool {
        let Some(DailyHours { from, to }) = self.0 else { return true };
        let (from_us, to_us) = (u64::from(from) * HOUR_US, u64::from(to) * HOUR_US);
        let length_us = match to_us.checked_sub(from_us) {
            Some(0) | None => to_us + DAY_US - from_us,
            Some(length_us) => length_us,
        };
        let since_us = (now_us % DAY_US + DAY_US - from_us) % DAY_US;
        let duration_us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        since_us < length_us && duration_us <= length_us - since_us
    }
}

impl fmt::Display for HoursLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(DailyHours { from, to }) => write!(f, "{from}-{to}"),
            None => f.write_str("none"),
        }
    }
}

impl FromStr for HoursLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const EXPECTED: &str = "expected hours (UTC) such as 22-6, or none";
        if text == "none" {
            return Ok(Self(None));
        }
        let (from, to) = text.split_once('-').ok_or(EXPECTED)?;
        let hour = |text: &str, max: u8| text.trim().parse().ok().filter(|hour| *hour <= max);
        let (from, to) = (hour(from, 23).ok_or(EXPECTED)?, hour(to, 24).ok_or(EXPECTED)?);
        if from == to {
            return Err(format!("{from}-{to} has no length; {EXPECTED}"));
        }
        Ok(Self(Some(DailyHours { from, to })))
    }
}

/// Interfaces that a measurement may use; `None` for all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AllowedInterfaces(pub(crate) Option<Vec<String>>);

impl fmt::Display for AllowedInterfaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(names) => f.write_str(&names.join(",")),
            None => f.write_str("all"),
        }
    }
}

impl FromStr for AllowedInterfaces {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self(None));
        }
        interface_names(text).map(|names| Self(Some(names)))
    }
}

/// Interfaces that the owner names as metered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MeteredInterfaces(pub(crate) Vec<String>);

impl fmt::Display for MeteredInterfaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { f.write_str("none") } else { f.write_str(&self.0.join(",")) }
    }
}

impl FromStr for MeteredInterfaces {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(Vec::new()));
        }
        interface_names(text).map(Self)
    }
}

/// Use of metered interfaces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum MeteredPolicy {
    /// No run is made that could use a metered interface.
    #[default]
    Refuse,
    Allow,
}

impl fmt::Display for MeteredPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refuse => "refuse",
            Self::Allow => "allow",
        })
    }
}

impl FromStr for MeteredPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "refuse" => Ok(Self::Refuse),
            "allow" => Ok(Self::Allow),
            _ => Err("expected refuse or allow".to_owned()),
        }
    }
}

fn interface_names(text: &str) -> Result<Vec<String>, String> {
    let mut names: Vec<String> = Vec::new();
    for name in text.split(',').map(str::trim) {
        let is_name = (1..=MAX_INTERFACE_BYTES).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
        if !is_name {
            return Err(format!("`{name}` is not the name of an interface"));
        }
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

impl OwnerLimits {
    /// Returns all limits as text: bytes, hours, interfaces, metered, metered interfaces.
    pub(crate) fn texts(&self) -> [String; 5] {
        let Self { bytes_per_day, hours, interfaces, metered, metered_interfaces } = self;
        [
            bytes_per_day.to_string(),
            hours.to_string(),
            interfaces.to_string(),
            metered.to_string(),
            metered_interfaces.to_string(),
        ]
    }

    /// Parses what [`OwnerLimits::texts`] returns; a missing text is the default.
    pub(super) fn parse(texts: &[Option<String>; 5]) -> Result<Self, String> {
        fn or_default<T: FromStr<Err = String> + Default>(
            text: Option<&String>,
        ) -> Result<T, String> {
            text.map_or_else(|| Ok(T::default()), |text| text.parse())
        }
        let [bytes_per_day, hours, interfaces, metered, metered_interfaces] =
            texts.each_ref().map(Option::as_ref);
        Ok(Self {
            bytes_per_day: or_default(bytes_per_day)?,
            hours: or_default(hours)?,
            interfaces: or_default(interfaces)?,
            metered: or_default(metered)?,
            metered_interfaces: or_default(metered_interfaces)?,
        })
    }

    /// Checks the time of a run. The error is a reason for people.
    pub(crate) fn verify_time(&self, now_us: u64, duration: Duration) -> Result<(), String> {
        if self.hours.allows(now_us, duration) {
            return Ok(());
        }
        Err(format!("the owner allows runs in the hours {} (UTC) only", self.hours))
    }

    /// Checks `needed` more bytes after `used` bytes of this day. The error is a reason for people.
    pub(crate) fn verify_bytes(&self, used: u64, needed: u64) -> Result<(), String> {
        match self.bytes_per_day {
            limit if limit.allows(used, needed) => Ok(()),
            ByteLimit(max) => Err(format!(
                "the run can need {}, and {} of the owner's {} for today are used",
                format::bytes(needed),
                format::bytes(used),
                format::bytes(max.unwrap_or_default()),
            )),
        }
    }

    /// Checks one interface that a run could use. `uevent` is the text of the kernel's file of this
    /// name for the interface. The error is a reason for people.
    pub(crate) fn verify_interface(&self, name: &str, uevent: &str) -> Result<(), String> {
        let is_allowed = |names: &Vec<String>| names.iter().any(|allowed| allowed == name);
        if !self.interfaces.0.as_ref().is_none_or(is_allowed) {
            return Err(format!("the run could use {name}, which the owner does not allow"));
        }
        if self.metered == MeteredPolicy::Refuse && self.is_metered(name, uevent) {
            return Err(format!("the run could use {name}, which is metered"));
        }
        Ok(())
    }

    fn is_metered(&self, name: &str, uevent: &str) -> bool {
        self.metered_interfaces.0.iter().any(|metered| metered == name)
            || METERED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            || uevent.lines().any(|line| line.trim() == "DEVTYPE=wwan")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hours(text: &str) -> HoursLimit {
        text.parse().unwrap()
    }

    #[test]
    fn bytes_are_allowed_up_to_the_limit_exactly() {
        let limit = ByteLimit(Some(1_000));
        assert!(limit.allows(400, 600) && limit.allows(0, 1_000) && limit.allows(1_000, 0));
        assert!(!limit.allows(400, 601) && !limit.allows(1_001, 0) && !limit.allows(u64::MAX, 1));
        assert!(ByteLimit(None).allows(u64::MAX, u64::MAX));
        assert_eq!(ByteLimit::default().to_string(), "1000000000 B");
        assert_eq!("500 MB".parse(), Ok(ByteLimit(Some(500_000_000))));
    }

    #[test]
    fn hours_may_pass_midnight_and_a_run_must_end_in_them() {
        let at = |hour: u64, minute: u64| 20_000 * DAY_US + hour * HOUR_US + minute * 60_000_000;
        let (night, minute) = (hours("22-6"), Duration::from_mins(1));
        for (hour, min) in [(22, 0), (23, 59), (0, 0), (5, 59)] {
            assert!(night.allows(at(hour, min), minute), "{hour}:{min}");
        }
        for (hour, min) in [(21, 59), (6, 0), (12, 0)] {
            assert!(!night.allows(at(hour, min), minute), "{hour}:{min}");
        }
        assert!(!night.allows(at(5, 59), minute + Duration::from_micros(1)));
        assert!(!night.allows(at(22, 0), Duration::from_hours(9)));
        let day = hours("6-24");
        assert!(day.allows(at(23, 59), minute) && !day.allows(at(0, 0), minute));
        assert!(hours("0-24").allows(at(0, 0), Duration::from_hours(24)));
        assert!(hours("none").allows(at(3, 0), Duration::MAX));
    }

    #[test]
    fn metered_interfaces_are_known_by_owner_name_or_kernel() {
        let limits = OwnerLimits {
            metered_interfaces: "usb0".parse().unwrap(),
            interfaces: "usb0,wwan0,wlan0,ww-x".parse().unwrap(),
            ..OwnerLimits::default()
        };
        assert!(limits.verify_interface("wlan0", "DEVTYPE=wlan\n").is_ok());
        for (name, uevent) in [("usb0", ""), ("wwan0", ""), ("ww-x", "A=b\nDEVTYPE=wwan\n")] {
            assert!(limits.verify_interface(name, uevent).unwrap_err().contains("metered"));
            let allowed = OwnerLimits { metered: MeteredPolicy::Allow, ..limits.clone() };
            assert!(allowed.verify_interface(name, uevent).is_ok());
        }
        assert!(limits.verify_interface("eth0", "").unwrap_err().contains("does not allow"));
    }

    #[test]
    fn mistakes_in_limits_are_refused() {
        for text in ["", "6", "6-6", "24-3", "3-25", "a-b", "-1-4"] {
            assert!(text.parse::<HoursLimit>().is_err(), "{text}");
        }
        for text in ["", "a,,b", "a/b", "sixteen-letters-x", "a b"] {
            assert!(text.parse::<AllowedInterfaces>().is_err(), "{text}");
        }
        assert!("lots".parse::<ByteLimit>().is_err() && "ask".parse::<MeteredPolicy>().is_err());
    }

    proptest! {
        #[test]
        fn limits_survive_a_round_trip(
            bytes: Option<u64>, from in 0_u8..24, to in 0_u8..=24, names in "[a-z0-9]{1,15}",
        ) {
            prop_assume!(from != to);
            // Sizes of files are at most 2^53, the largest exact number of their reader.
            let bytes = ByteLimit(bytes.map(|bytes| bytes >> 11));
            prop_assert_eq!(bytes.to_string().parse(), Ok(bytes));
            let hours = HoursLimit(Some(DailyHours { from, to }));
            prop_assert_eq!(hours.to_string().parse(), Ok(hours));
            prop_assume!(names != "all" && names != "none");
            let interfaces = names.parse();
            prop_assert_eq!(interfaces, Ok(AllowedInterfaces(Some(vec![names]))));
        }
    }
}
