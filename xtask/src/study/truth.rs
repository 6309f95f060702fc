//! Checks of the analysis: its figures against what the study made to happen.
//!
//! The bounds were written down before the first run. Shares are exact, because the number of
//! devices of each case is known. Times may differ by [`MAX_TIME_ERROR_S`].

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::check::{Findings, list, number, text};
use super::devices::{Device, DeviceCase, LINK_LOG};
use super::network::ROUNDS;
use crate::Result;

/// Largest difference between a loss of the Wi-Fi and its time in the analysis, in seconds.
const MAX_TIME_ERROR_S: f64 = 1.0;
/// Longest time from the return of the Wi-Fi until the host uses it again, in seconds.
const MAX_RETURN_S: f64 = 2.0;
/// Longest time from the begin of the fading to the loss of the interface, in seconds.
const MAX_FADE_S: f64 = 6.0;
/// Longest time without a packet before the loss of the interface, in seconds.
const MAX_SILENCE_S: f64 = 2.0;
/// Two sampling periods, in seconds.
const MAX_SAMPLE_S: f64 = 0.2;
/// Longest delay without an outage, in seconds.
const MAX_HEALTHY_DELAY_S: f64 = 2.0;
/// Transports of attempts that a blocked UDP makes fail.
const UDP_TRANSPORTS: [&str; 2] = ["quic", "mpquic"];

/// Analysis of one campaign.
struct StudyAnalysis(Value);

impl StudyAnalysis {
    fn read(folder: &Path, campaign: &str) -> Result<Self> {
        let path = folder.join(format!("{campaign}-analysis/analysis.json"));
        Ok(Self(serde_json::from_str(&fs::read_to_string(path)?)?))
    }

    /// Returns the rows of a table of a figure.
    fn rows(&self, figure: &str, table: usize) -> &[Value] {
        let figure = list(&self.0, "figures").iter().find(|value| text(value, "id") == figure);
        figure
            .and_then(|figure| figure["tables"].get(table))
            .map_or(&[], |table| list(table, "rows"))
    }
}

/// Checks the analyses of both campaigns.
pub(super) fn check(folder: &Path, devices: &[Device], findings: &mut Findings) -> Result<()> {
    let stable = StudyAnalysis::read(folder, "stable")?;
    let mobile = StudyAnalysis::read(folder, "mobile")?;
    check_connectivity(&stable, devices, findings);
    check_families(&stable, devices, findings);
    check_networks(&stable, findings);
    check_rounds(folder, &mobile, devices, findings)?;
    for campaign in ["stable", "mobile"] {
        check_equal_bytes(folder, campaign, findings)?;
    }
    Ok(())
}

/// Returns the value of an estimate with an interval.
fn estimate(row: &Value, column: &str) -> f64 {
    row.pointer(&format!("/{column}/value")).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

fn count(devices: &[Device], case: DeviceCase) -> u64 {
    devices.iter().filter(|device| device.case == case).count() as u64
}

/// Checks the failures of each transport, family and port. All of them come from two cases.
fn check_connectivity(analysis: &StudyAnalysis, devices: &[Device], findings: &mut Findings) {
    let udp_blocked = count(devices, DeviceCase::UdpBlocked);
    let only_443 = count(devices, DeviceCase::OnlyPort443);
    let rows = analysis.rows("connectivity", 0);
    findings.check(rows.len() >= 10, || format!("connectivity: {} rows", rows.len()));
    for row in rows {
        let (transport, port) = (text(row, "transport"), number(row, "port"));
        let is_udp = UDP_TRANSPORTS.contains(&transport);
        let mut failing = if is_udp { udp_blocked } else { 0 };
        failing += if port == 443 { 0 } else { only_443 };
        let attempts = number(row, "attempts");
        let success = estimate(row, "success");
        let failed = (attempts as f64 * (1.0 - success)).round() as u64;
        // A device tries each pattern once in a round. Two patterns use QUIC on port 443.
        let patterns = match (transport, text(row, "family"), port) {
            ("quic" | "mpquic", "ipv4", 443) => 2,
            _ => 1,
        };
        let expected = failing * ROUNDS * patterns;
        findings.check(failed == expected && attempts > failed, || {
            format!("connectivity: {failed} of {attempts} attempts failed, not {expected}: {row}")
        });
    }
}

/// Checks the share of devices with IPv6.
fn check_families(analysis: &StudyAnalysis, devices: &[Device], findings: &mut Findings) {
    let rows = analysis.rows("connectivity", 1);
    let [row] = rows else {
        findings.check(false, || format!("devices with IPv6: {rows:?}"));
        return;
    };
    let known = number(row, "devices");
    let without = known as f64 * (1.0 - estimate(row, "with IPv6"));
    let expected = count(devices, DeviceCase::Ipv4Only);
    // Devices that were stopped early, or had used up their bytes, may never have tried.
    let most = devices.len() as u64;
    findings
        .check(without.round() as u64 == expected && (most - 4..=most).contains(&known), || {
            format!("{without} of {known} devices are without IPv6, not {expected}")
        });
}

/// Checks the kinds of networks: every device has one Wi-Fi and one cellular network.
fn check_networks(analysis: &StudyAnalysis, findings: &mut Findings) {
    let rows = analysis.rows("usage", 1);
    let kinds: Vec<&str> = rows.iter().map(|row| text(row, "kind")).collect();
    findings.check(kinds == ["cellular", "wifi"], || format!("kinds of networks: {kinds:?}"));
    for row in rows {
        let (networks, devices) = (number(row, "IPv4 networks"), number(row, "devices"));
        // A device without IPv4 has no IPv4 network.
        findings.check(devices.saturating_sub(1) <= networks && networks <= devices, || {
            format!("{devices} devices have {networks} networks: {row}")
        });
    }
}

/// Checks the mobile rounds: a loss exactly where the Wi-Fi was made to disappear.
fn check_rounds(
    folder: &Path,
    analysis: &StudyAnalysis,
    devices: &[Device],
    findings: &mut Findings,
) -> Result<()> {
    let mut losses = 0;
    for round in list(&analysis.0, "rounds") {
        let name = text(round, "device");
        let Some(device) = devices.iter().find(|device| device.name() == name) else {
            findings.check(false, || format!("mobile round of the unknown device {name}"));
            continue;
        };
        for run in list(round, "runs") {
            let label = format!("{name}, {}", text(run, "transport"));
            if text(run, "invalid_reason") == "lost-at-start" {
                // The round has begun during an outage.
                let is_fading = device.case == DeviceCase::FadingWifi;
                findings.check(is_fading, || format!("{label}: a loss at the start"));
                losses += 1;
            } else if device.case == DeviceCase::FadingWifi {
                losses += 1;
                check_loss(folder, device, (run, &label), findings)?;
            } else {
                let delays = ["max_delay_up_s", "max_delay_down_s"].map(|key| run[key].as_f64());
                let longest = delays.into_iter().flatten().fold(0.0, f64::max);
                findings.check(run["network_lost_s"].is_null(), || format!("{label}: a loss"));
                let second = text(run, "second_network");
                findings.check(second != "handover", || format!("{label}: a handover"));
                findings.check(longest > 0.0 && longest < MAX_HEALTHY_DELAY_S, || {
                    format!("{label}: a delay of {longest} s without an outage")
                });
            }
        }
    }
    let expected = 2 * count(devices, DeviceCase::FadingWifi);
    findings.check(losses == expected, || format!("{losses} losses, not {expected}"));
    Ok(())
}

/// Checks a run during which the Wi-Fi disappeared.
fn check_loss(
    folder: &Path,
    device: &Device,
    (run, label): (&Value, &str),
    findings: &mut Findings,
) -> Result<()> {
    let log = fs::read_to_string(folder.join(device.name()).join(LINK_LOG))?;
    let started_s = number(run, "started_us") as f64 / 1e6;
    let Some(lost_s) = run["network_lost_s"].as_f64() else {
        findings.check(false, || format!("{label}: the loss of the Wi-Fi is missing"));
        return Ok(());
    };
    let at_s = started_s + lost_s;
    let distance_s = |times: Vec<f64>| {
        let distances = times.into_iter().map(|time| (time - at_s).abs());
        distances.fold(f64::INFINITY, f64::min)
    };
    let (down_s, up_s) = (distance_s(times(&log, "DOWN")), distance_s(times(&log, "UP")));
    // A round that begins during an outage ends when the Wi-Fi comes back.
    findings.check(down_s <= MAX_TIME_ERROR_S || up_s <= MAX_RETURN_S, || {
        format!("{label}: the loss is {down_s:.3} s away from the nearest one that was made")
    });
    if down_s <= MAX_TIME_ERROR_S {
        check_handover(device, (run, label), lost_s, findings);
    }
    Ok(())
}

/// Checks the change to the cellular network in a run that lost the Wi-Fi at `lost_s`.
fn check_handover(
    device: &Device,
    (run, label): (&Value, &str),
    lost_s: f64,
    findings: &mut Findings,
) {
    let second = text(run, "second_network");
    // Without a backup, the scheduler of Multipath TCP may use both networks or the faster one.
    // Multipath QUIC always uses both.
    let expected: &[&str] = match (text(run, "transport"), device.has_backup()) {
        ("mptcp", true) => &["handover"],
        ("mptcp", false) => &["handover", "from-start"],
        _ => &["from-start"],
    };
    findings.check(expected.contains(&second), || format!("{label}: {second}, not {expected:?}"));
    if second == "handover" {
        let time_s = |key: &str| run[key].as_f64().unwrap_or(f64::NAN);
        let start_s = time_s("handover_start_s");
        let bounds = lost_s - MAX_FADE_S..=lost_s + MAX_FADE_S;
        findings.check(bounds.contains(&start_s), || {
            format!("{label}: the handover begins at {start_s} s, the loss is at {lost_s} s")
        });
        // The Wi-Fi carries packets until it is switched off.
        let received_s = start_s + time_s("handover_received_s");
        let bounds = lost_s - MAX_SILENCE_S..=lost_s + MAX_SAMPLE_S;
        findings.check(bounds.contains(&received_s), || {
            format!("{label}: the last packet comes at {received_s} s, the loss is at {lost_s} s")
        });
    }
}

/// Returns the times at which the host saw its interface go down or come up, in seconds since 1970.
fn times(log: &str, state: &str) -> Vec<f64> {
    let is_state = |line: &&str| match state {
        "DOWN" => line.contains("state DOWN"),
        _ => line.contains("LOWER_UP"),
    };
    let lines = log.lines().filter(is_state);
    lines.filter_map(|line| parse_time(line.strip_prefix('[')?.split(']').next()?)).collect()
}

/// Parses `2026-11-29T04:05:06.123456` (UTC), as `ip -ts` writes it.
fn parse_time(text: &str) -> Option<f64> {
    let (date, time) = text.split_once('T')?;
    let mut date = date.split('-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.split(':').map(|part| part.parse::<f64>().ok());
    let seconds = time.next()?? * 3_600.0 + time.next()?? * 60.0 + time.next()??;
    // Days from 1 March of year 0 (Gregorian calendar), so that leap days come last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    Some((days - 719_468) as f64 * 86_400.0 + seconds)
}

/// Compares the analysis of the collector with that of an exported folder.
fn check_equal_bytes(folder: &Path, campaign: &str, findings: &mut Findings) -> Result<()> {
    let names = |folder: &Path| -> Result<Vec<String>> {
        let entries = fs::read_dir(folder)?;
        let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let mut names = names.collect::<Result<Vec<String>>>()?;
        names.sort();
        Ok(names)
    };
    let (one, other) =
        (folder.join(format!("{campaign}-analysis")), folder.join(format!("{campaign}-again")));
    let files = names(&one)?;
    findings.check(!files.is_empty() && files == names(&other)?, || {
        format!("{campaign}: the analyses of collector and folder have other files")
    });
    for name in files {
        let is_equal =
            fs::read(one.join(&name))? == fs::read(other.join(&name)).unwrap_or_default();
        findings.check(is_equal, || format!("{campaign}: {name} differs for collector and folder"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_link_log_are_seconds_since_1970() {
        let log = "[2026-11-29T04:05:06.250000] 3: wifi9@if4: <BROADCAST> mtu 1500 state DOWN\n\
                   [2026-11-29T04:05:12.000000] 3: wifi9@if4: <BROADCAST,UP,LOWER_UP> mtu 1500 state UP\n\
                   [2024-02-29T00:00:00.000000] 3: wifi9: state DOWN\n";
        assert_eq!(times(log, "DOWN"), [1_795_925_106.25, 1_709_164_800.0]);
        assert_eq!(times(log, "UP"), [1_795_925_112.0]);
    }
}
