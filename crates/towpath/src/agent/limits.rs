//! `towpath agent limits`: what the owner allows.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use towpath_os::clock::unix_us;
use towpath_result::format;

use super::journal::{Journal, day_of};
use crate::error::CliError;
use crate::ui::Ui;
use crate::upload::{
    AllowedInterfaces, ByteLimit, DeviceFile, HoursLimit, MeteredInterfaces, MeteredPolicy,
    OwnerLimits,
};

/// Show or set the limits of this device's owner
///
/// No campaign and no server can exceed them: `towpath agent run` makes no run that could. Without
/// options, the limits are shown. A running agent applies a change from its next run on.
#[derive(Debug, Args)]
pub(super) struct LimitsArguments {
    /// Maximum number of bytes of all measurements on one day (UTC), such as `500MB`, or `none`
    /// [default: 1 GB]
    #[arg(long, value_name = "SIZE")]
    bytes_per_day: Option<ByteLimit>,
    /// Hours (UTC) in which runs may be made, such as `22-6`, or `none` for all [default: none]
    #[arg(long, value_name = "FROM-TO")]
    hours: Option<HoursLimit>,
    /// Interfaces that runs may use, such as `wlan0,eth0`, or `all` [default: all]
    #[arg(long, value_name = "LIST")]
    interfaces: Option<AllowedInterfaces>,
    /// Use of metered interfaces: `refuse` or `allow` [default: refuse]
    #[arg(long, value_name = "POLICY")]
    metered: Option<MeteredPolicy>,
    /// Metered interfaces in addition to cellular ones, which are known by name or driver, or `none`
    /// [default: none]
    #[arg(long, value_name = "LIST")]
    metered_interfaces: Option<MeteredInterfaces>,
    /// Print JSON
    #[arg(short = 'J', long)]
    json: bool,
}

pub(super) fn limits(
    arguments: &LimitsArguments,
    file: &DeviceFile,
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    let mut device = file.load_joined()?;
    let changed = apply(arguments, &device.limits);
    if changed != device.limits {
        device.limits = changed;
        file.store(&device)?;
    }
    let used = Journal::peek(file).used(day_of(unix_us()), None);
    if arguments.json {
        writeln!(ui.out, "{}", to_json(&device.limits, used))?;
        return Ok(ExitCode::SUCCESS);
    }
    for (label, value) in rows(&device.limits, used) {
        writeln!(ui.out, "{label:18}  {value}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the limits with the options of the command line.
fn apply(arguments: &LimitsArguments, limits: &OwnerLimits) -> OwnerLimits {
    let mut limits = limits.clone();
    if let Some(bytes_per_day) = arguments.bytes_per_day {
        limits.bytes_per_day = bytes_per_day;
    }
    if let Some(hours) = arguments.hours {
        limits.hours = hours;
    }
    if let Some(interfaces) = &arguments.interfaces {
        limits.interfaces = interfaces.clone();
    }
    if let Some(metered) = arguments.metered {
        limits.metered = metered;
    }
    if let Some(metered_interfaces) = &arguments.metered_interfaces {
        limits.metered_interfaces = metered_interfaces.clone();
    }
    limits
}

/// Returns the labels and values of limits.
fn rows(limits: &OwnerLimits, used: u64) -> [(&'static str, String); 6] {
    let OwnerLimits { bytes_per_day, hours, interfaces, metered, metered_interfaces } = limits;
    let hours = match hours.0 {
        Some(_) => format!("{hours} (UTC)"),
        None => "all".to_owned(),
    };
    [
        ("bytes per day", bytes_per_day.0.map_or("no limit".to_owned(), format::bytes)),
        ("used today", format::bytes(used)),
        ("hours", hours),
        ("interfaces", interfaces.to_string()),
        ("metered", metered.to_string()),
        ("metered interfaces", format!("{metered_interfaces}, and cellular ones")),
    ]
}

fn to_json(limits: &OwnerLimits, used: u64) -> Value {
    json!({
        "bytes_per_day": limits.bytes_per_day.0,
        "used_today": used,
        "hours": limits.hours.0.map(|_| limits.hours.to_string()),
        "interfaces": limits.interfaces.0,
        "metered": limits.metered.to_string(),
        "metered_interfaces": limits.metered_interfaces.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_given_options_change_limits() {
        let none = LimitsArguments {
            bytes_per_day: None,
            hours: None,
            interfaces: None,
            metered: None,
            metered_interfaces: None,
            json: false,
        };
        let limits = OwnerLimits { hours: "22-6".parse().unwrap(), ..OwnerLimits::default() };
        assert_eq!(apply(&none, &limits), limits);
        let some = LimitsArguments {
            bytes_per_day: Some(ByteLimit(None)),
            metered: Some(MeteredPolicy::Allow),
            ..none
        };
        let changed = apply(&some, &limits);
        assert_eq!(changed.hours, limits.hours);
        let json = to_json(&changed, 5);
        assert!(json["bytes_per_day"].is_null() && json["interfaces"].is_null());
        assert_eq!((&json["metered"], &json["hours"]), (&"allow".into(), &"22-6".into()));
        assert!(rows(&changed, 5).contains(&("bytes per day", "no limit".to_owned())));
    }
}
