//! Checks of a study: the collector's account, the agents' own records, and the truth.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::Path;

use serde_json::Value;

use super::devices::{CAP_BYTES, Device, DeviceCase};
use super::truth;
use crate::Result;

const CAMPAIGNS: [&str; 2] = ["stable", "mobile"];
/// Bytes that a host without an agent may still send, such as neighbour discovery.
const MAX_IDLE_BYTES: u64 = 5_000;

/// Checks that did not hold, and those that did.
#[derive(Debug, Default)]
pub(super) struct Findings {
    passed: u32,
    failed: Vec<String>,
}

impl Findings {
    pub(super) fn check(&mut self, holds: bool, text: impl FnOnce() -> String) {
        if holds {
            self.passed += 1;
        } else {
            self.failed.push(text());
        }
    }
}

/// A planned run: campaign, round and index.
type RunKey = (String, u64, u64);

/// Account of one device: what its agent printed, and the collector's counts.
#[derive(Debug)]
struct DeviceAccount {
    /// Number of printed results for each run.
    results: BTreeMap<RunKey, u32>,
    /// Last printed outcome of each run.
    outcomes: BTreeMap<RunKey, Value>,
    /// Counts of the collector, by campaign.
    counts: BTreeMap<String, Value>,
    /// Runs that the collector lists without a result.
    absent: Vec<Value>,
}

/// Prints the account of a study and its checks; returns true if all hold.
pub(super) fn report(folder: &Path, devices: &[Device], out: &mut dyn Write) -> Result<bool> {
    let mut findings = Findings::default();
    let mut progress = BTreeMap::new();
    for campaign in CAMPAIGNS {
        let text = fs::read_to_string(folder.join(format!("{campaign}.json")))?;
        progress.insert(campaign.to_owned(), serde_json::from_str::<Value>(&text)?);
    }
    for (campaign, value) in &progress {
        check_sums(campaign, value, &mut findings);
        writeln!(out, "{campaign}: {}", counts_text(&value["counts"]))?;
    }
    for device in devices {
        let account = account(folder, device, &progress);
        check_account(folder, device, &account, &mut findings)?;
        check_case(folder, device, &account, &mut findings)?;
        print_device(device, &account, out)?;
    }
    check_servers(folder, &mut findings)?;
    truth::check(folder, devices, &mut findings)?;
    writeln!(out, "{} checks hold, {} do not", findings.passed, findings.failed.len())?;
    for failure in &findings.failed {
        writeln!(out, "  {failure}")?;
    }
    Ok(findings.failed.is_empty())
}

pub(super) fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_default()
}

pub(super) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

pub(super) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn counts_text(counts: &Value) -> String {
    let reasons = counts["missing_by_reason"].as_object().into_iter().flatten();
    let reasons: Vec<_> = reasons.map(|(reason, count)| format!("{reason} {count}")).collect();
    format!(
        "planned {}, stored {}, invalid {}, missing {} ({}), not uploaded {}, not reported {}",
        number(counts, "planned"),
        number(counts, "stored"),
        number(counts, "invalid"),
        number(counts, "missing"),
        reasons.join(", "),
        number(counts, "not_uploaded"),
        number(counts, "not_reported"),
    )
}

/// Checks that each planned run is counted once and that each absent run is listed.
fn check_sums(campaign: &str, value: &Value, findings: &mut Findings) {
    let counts = &value["counts"];
    let [planned, stored, invalid, missing, not_uploaded, not_reported] =
        ["planned", "stored", "invalid", "missing", "not_uploaded", "not_reported"]
            .map(|key| number(counts, key));
    let sum = stored + invalid + missing + not_uploaded + not_reported;
    findings.check(planned > 0 && sum == planned, || {
        format!("{campaign}: {sum} runs are counted, {planned} planned")
    });
    findings.check(not_uploaded == 0, || format!("{campaign}: {not_uploaded} not uploaded"));
    let listed = list(value, "without_result").len() as u64;
    findings.check(listed == missing + not_uploaded + not_reported, || {
        format!("{campaign}: {listed} runs without a result are listed")
    });
}

fn account(folder: &Path, device: &Device, progress: &BTreeMap<String, Value>) -> DeviceAccount {
    let name = device.name();
    let mut account = DeviceAccount {
        results: BTreeMap::new(),
        outcomes: BTreeMap::new(),
        counts: BTreeMap::new(),
        absent: Vec::new(),
    };
    let printed = fs::read_to_string(folder.join(&name).join("outcomes.jsonl")).unwrap_or_default();
    for line in printed.lines() {
        // The last line of a killed agent may be cut.
        let Ok(outcome) = serde_json::from_str::<Value>(line) else { continue };
        let key = (
            text(&outcome, "campaign").to_owned(),
            number(&outcome, "round"),
            number(&outcome, "run"),
        );
        if text(&outcome, "state") != "missing" {
            *account.results.entry(key.clone()).or_default() += 1;
        }
        account.outcomes.insert(key, outcome);
    }
    for (campaign, value) in progress {
        let of_device = list(value, "devices").iter().find(|entry| text(entry, "name") == name);
        let counts = of_device.map(|entry| entry["counts"].clone());
        account.counts.insert(campaign.clone(), counts.unwrap_or_default());
        let absent = list(value, "without_result").iter().filter(|run| text(run, "device") == name);
        account.absent.extend(absent.cloned());
    }
    account
}

impl DeviceAccount {
    fn sum(&self, key: &str) -> u64 {
        self.counts.values().map(|counts| number(counts, key)).sum()
    }

    /// Returns the reasons of the absent runs that `is_chosen` selects.
    fn reasons(&self, is_chosen: impl Fn(&Value) -> bool) -> BTreeSet<&str> {
        self.absent.iter().filter(|run| is_chosen(run)).map(|run| text(run, "reason")).collect()
    }

    fn count(&self, reason: &str) -> usize {
        self.absent.iter().filter(|run| text(run, "reason") == reason).count()
    }
}

/// Compares the collector's counts with the outcomes that the agent printed.
fn check_account(
    folder: &Path,
    device: &Device,
    account: &DeviceAccount,
    findings: &mut Findings,
) -> Result<()> {
    let name = device.name();
    let repeated = account.results.iter().filter(|(_, count)| **count > 1).count();
    findings.check(repeated == 0, || format!("{name}: {repeated} runs were made twice"));
    let planned: u64 = account.sum("planned");
    findings.check(planned > 0, || format!("{name}: no run was planned"));
    let here = account.sum("stored") + account.sum("invalid");
    let made = account.results.len() as u64;
    let may_differ = match device.case {
        // Before its death, an agent may have stored an outcome that it did not print.
        DeviceCase::Killed => here.abs_diff(made) <= 1,
        // Results that wait when the operator revokes the device are not accepted any more.
        DeviceCase::Revoked => here <= made,
        DeviceCase::Healthy
        | DeviceCase::FadingWifi
        | DeviceCase::Ipv6Only
        | DeviceCase::Ipv4Only
        | DeviceCase::UdpBlocked
        | DeviceCase::OnlyPort443
        | DeviceCase::Leaves
        | DeviceCase::Capped
        | DeviceCase::Forgets => false,
    };
    findings.check(here == made || may_differ, || {
        format!("{name}: the agent made {made} results, the collector has {here}")
    });
    let listed = fs::read_to_string(folder.join("devices.json"))?;
    let listed = listed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let runs = listed.into_iter().find(|entry| text(entry, "name") == name);
    let runs = runs.map_or(0, |entry| number(&entry, "runs"));
    findings.check(runs == here, || {
        format!("{name}: {runs} stored runs, {here} of them belong to planned runs")
    });
    Ok(())
}

/// Checks what the case of a device implies.
fn check_case(
    folder: &Path,
    device: &Device,
    account: &DeviceAccount,
    findings: &mut Findings,
) -> Result<()> {
    let name = device.name();
    let own = folder.join(&name);
    let only = |reasons: &BTreeSet<&str>, reason: &str| reasons.iter().eq([&reason]);
    let mut expect = |holds: bool, expected: &str| {
        findings.check(holds, || {
            let reasons: Vec<_> = account.reasons(|_| true).into_iter().collect();
            format!("{name} ({:?}): expected {expected}; got {reasons:?}", device.case)
        });
    };
    match device.case {
        DeviceCase::Healthy => expect(account.absent.is_empty(), "all runs"),
        DeviceCase::FadingWifi => {
            expect(account.sum("invalid") > 0, "runs that a network change makes invalid");
            let mobile = account.counts.get("mobile").cloned().unwrap_or_default();
            expect(number(&mobile, "stored") == 2, "two mobile runs");
        }
        DeviceCase::Ipv6Only | DeviceCase::Ipv4Only => {
            let is_v6_only = device.case == DeviceCase::Ipv6Only;
            let (own, other) = if is_v6_only { ("ipv6", "ipv4") } else { ("ipv4", "ipv6") };
            let of_other = account.reasons(|run| text(run, "family") == other);
            expect(only(&of_other, "no-address"), "no address of the other family");
            let of_own = account.reasons(|run| text(run, "family") == own);
            expect(of_own.is_empty(), "all runs over its family");
        }
        DeviceCase::UdpBlocked => {
            let udp = account.reasons(|run| text(run, "transport").ends_with("quic"));
            expect(only(&udp, "unreachable"), "unreachable QUIC");
            let tcp = account.reasons(|run| text(run, "transport").ends_with("tcp"));
            expect(tcp.is_empty(), "all runs over TCP and Multipath TCP");
        }
        DeviceCase::OnlyPort443 => {
            let other = account.reasons(|run| number(run, "port") != 443);
            expect(only(&other, "unreachable"), "unreachable port 6121");
            let https = account.reasons(|run| number(run, "port") == 443);
            expect(https.is_empty(), "all runs on port 443");
        }
        DeviceCase::Leaves => {
            expect(account.count("interrupted") == 1, "one interrupted run");
            expect(account.count("not-reported") > 0, "runs without a report");
        }
        DeviceCase::Killed => {
            expect(account.count("interrupted") == 1, "one interrupted run");
            expect(account.absent.len() == 1, "all other runs");
        }
        DeviceCase::Capped => {
            let reasons = account.reasons(|_| true);
            expect(only(&reasons, "owner-limit"), "the owner's limit");
            let used = interface_bytes(&own.join("counters"))?;
            expect(used <= CAP_BYTES, &format!("at most {CAP_BYTES} B, not {used}"));
            expect(account.sum("stored") > 0, "some runs");
        }
        DeviceCase::Revoked => {
            let sent = sent_after_revocation(&own)?;
            expect(sent <= MAX_IDLE_BYTES, &format!("no traffic, not {sent} B"));
            let log = fs::read_to_string(own.join("log"))?;
            expect(log.ends_with("exit 1\n"), "exit code 1");
        }
        DeviceCase::Forgets => expect(is_forgotten(folder, &own)?, "no byte of its runs"),
    }
    Ok(())
}

/// Returns the bytes that a revoked device sent and received after its agent had stopped.
fn sent_after_revocation(own: &Path) -> Result<u64> {
    let bytes = |file: &str| interface_bytes(&own.join(file));
    Ok(bytes("counters-later")?.saturating_sub(bytes("counters-stopped")?))
}

/// Returns the bytes of all interfaces except loopback, from `ip -s -j link`.
fn interface_bytes(path: &Path) -> Result<u64> {
    let links: Value = serde_json::from_str(&fs::read_to_string(path)?)?;
    let links = links.as_array().into_iter().flatten();
    let bytes = links.filter(|link| text(link, "ifname") != "lo").map(|link| {
        let count = |side: &str| link.pointer(&format!("/stats64/{side}/bytes"))?.as_u64();
        count("rx").unwrap_or_default() + count("tx").unwrap_or_default()
    });
    Ok(bytes.sum())
}

/// Returns true if the device had runs, and no file of the collector contains any of them.
fn is_forgotten(folder: &Path, own: &Path) -> Result<bool> {
    let results = fs::read_to_string(own.join("results.jsonl"))?;
    let ids: Vec<String> = results
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .map(|run| text(&run, "id").to_owned())
        .collect();
    let is_confirmed = fs::read_to_string(own.join("forgotten"))?.contains("; 0 remain");
    Ok(!ids.is_empty() && is_confirmed && !contains_any(&folder.join("collector"), &ids)?)
}

/// Searches names and contents of all files in a folder.
fn contains_any(folder: &Path, ids: &[String]) -> Result<bool> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if ids.iter().any(|id| name.contains(id.as_str())) {
            return Ok(true);
        }
        let is_found = if entry.file_type()?.is_dir() {
            contains_any(&entry.path(), ids)?
        } else {
            let bytes = fs::read(entry.path())?;
            ids.iter().any(|id| bytes.windows(id.len()).any(|part| part == id.as_bytes()))
        };
        if is_found {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Checks that devices selected the nearer server.
fn check_servers(folder: &Path, findings: &mut Findings) -> Result<()> {
    let tests = |server: &str| -> Result<usize> {
        let log = fs::read_to_string(folder.join(server).join("log"))?;
        Ok(log.lines().filter(|line| line.contains("test-started")).count())
    };
    let (near, far) = (tests("eu")?, tests("us")?);
    findings.check(near > 0 && far == 0, || {
        format!("{near} tests at the nearer server, {far} at the other")
    });
    Ok(())
}

fn print_device(device: &Device, account: &DeviceAccount, out: &mut dyn Write) -> Result<()> {
    let mut reasons: BTreeMap<&str, u32> = BTreeMap::new();
    for run in &account.absent {
        *reasons.entry(text(run, "reason")).or_default() += 1;
    }
    let reasons: Vec<_> =
        reasons.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    writeln!(
        out,
        "{}  {:<12}  planned {:>3}  stored {:>3}  invalid {:>2}  {}",
        device.name(),
        format!("{:?}", device.case),
        account.sum("planned"),
        account.sum("stored"),
        account.sum("invalid"),
        reasons.join(", "),
    )?;
    Ok(())
}
