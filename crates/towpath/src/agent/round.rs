//! Runs of a campaign: checks before a run, the run itself, and its outcome.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use towpath_campaign::{
    AddressFamily, Campaign, CampaignMode, CampaignPattern, MissingReason, Outcome, OutcomeState,
    PlannedRun,
};
use towpath_live as live;
use towpath_live::protocol::Secret;
use towpath_live::{LiveError, interfaces_towards};
use towpath_os::clock::unix_us;
use towpath_os::interrupt;
use towpath_result::format::text::wrap;
use towpath_result::store::{StoredRun, result_files};
use towpath_result::{Record, SubflowEnd, Summary};
use towpath_scenario::Transport;

use super::journal::{Journal, JournalEntry, RunKey, day_of, missing, short};
use super::schedule::KnownCampaign;
use super::servers::{MissingRun, NearestServer, nearest, servers};
use crate::error::CliError;
use crate::measure::{DeviceRun, PreparedRun, measure_together};
use crate::ui::Ui;
use crate::upload::{
    AddressForm, DeviceClient, DeviceError, OwnerLimits, QueueableResult, Uploader,
};

/// Bytes of a run beyond its payload: handshakes, control connection and the server's report.
const RUN_OVERHEAD_BYTES: u64 = 500_000;
/// Part of [`RUN_OVERHEAD_BYTES`] for handshakes.
const HANDSHAKE_BYTES: u64 = 50_000;
/// Bytes of a retransmitted packet, at most.
const PACKET_BYTES: u64 = 1_500;
/// Bytes of a datagram of `udping` and its reply, with headers.
const PROBE_BYTES: u64 = 200;
/// Longest time that a server may have a device wait before the only repetition.
const MAX_REFUSAL_WAIT: Duration = Duration::from_mins(1);
/// Age from which access to a server is renewed. Collectors grant it for 10 minutes.
const MAX_ACCESS_AGE: Duration = Duration::from_mins(4);
/// Maximum width of progress in columns.
const COLUMNS: usize = 100;
/// Addresses for documentation (RFC 5737, RFC 3849), to which nothing is sent.
const FOREIGN_ADDRESSES: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

/// Maker of runs.
#[derive(Debug)]
pub(super) struct RunMaker<'a> {
    pub(super) client: &'a DeviceClient,
    pub(super) uploader: &'a Uploader,
    pub(super) journal: Journal,
    pub(super) limits: OwnerLimits,
    /// Folder of results until they are queued.
    pub(super) folder: PathBuf,
    /// True if results also stay on this host.
    pub(super) keep: bool,
    /// True if outcomes are printed as JSON.
    pub(super) json: bool,
    /// Server of a round.
    pub(super) selection: Option<ServerSelection>,
}

/// Server that was chosen for a round, or the reason why there is none.
#[derive(Debug)]
pub(super) struct ServerSelection {
    campaign: String,
    round: u32,
    /// Time at which the collector gave the access, in microseconds since 1970.
    access_us: u64,
    outcome: Result<NearestServer, MissingRun>,
}

/// Run that passed the checks which need no server.
#[derive(Debug, Clone)]
struct CheckedRun<'a> {
    key: RunKey,
    planned: &'a PlannedRun,
    pattern: &'a CampaignPattern,
    /// Bytes that the run can need at most.
    bytes: u64,
    /// Form of the addresses in its result.
    addresses: AddressForm,
}

impl ServerSelection {
    /// Fetches new access to the same server if the old one expires soon. A failure is left to the
    /// server, which refuses old access.
    fn renew_access(&mut self, client: &DeviceClient, campaign: &Campaign) {
        let now_us = unix_us();
        let Ok(nearest) = &mut self.outcome else { return };
        let is_old = now_us.abs_diff(self.access_us) > MAX_ACCESS_AGE.as_micros() as u64;
        if nearest.server.access.is_none() || !is_old {
            return;
        }
        let renewed = servers(client, campaign).unwrap_or_default();
        let renewed = renewed.into_iter().find(|server| server.name == nearest.server.name);
        if let Some(server) = renewed {
            nearest.server = server;
            self.access_us = now_us;
        }
    }
}

impl RunMaker<'_> {
    /// Makes runs of a round, which end before `until_us` at the latest begin. One run, or all of a
    /// mobile round.
    pub(super) fn measure(
        &mut self,
        known: &KnownCampaign,
        (round, until_us): (u32, u64),
        planned: &[PlannedRun],
        ui: &mut Ui,
    ) -> Result<(), CliError> {
        let campaign = &known.campaign;
        let is_mobile = campaign.mode == CampaignMode::Mobile;
        let runs = planned.iter().filter_map(|run| {
            let pattern = campaign.patterns.get(run.pattern)?;
            let key = RunKey { campaign: campaign.name.clone(), round, run: run.index };
            let addresses =
                if campaign.full_addresses { AddressForm::Full } else { AddressForm::Prefix };
            Some(CheckedRun { key, planned: run, pattern, bytes: pattern.max_bytes, addresses })
        });
        let runs: Vec<_> = runs.collect();
        if let Err((reason, detail)) = self.verify_limits(known, &runs) {
            return runs.iter().try_for_each(|run| {
                self.end(&run.key, missing(reason, &detail), 0, &label(run), ui)
            });
        }
        let server = match self.server(known, round, planned) {
            Ok(server) => server,
            Err((reason, detail)) => {
                return runs.iter().try_for_each(|run| {
                    self.end(&run.key, missing(reason, &detail), 0, &label(run), ui)
                });
            }
        };
        let mut ready = Vec::new();
        for run in runs {
            match self.prepare(&run, &server, is_mobile) {
                Ok(device_run) => ready.push((run, device_run)),
                Err((reason, detail)) => {
                    self.end(&run.key, missing(reason, &detail), 0, &label(&run), ui)?;
                }
            }
        }
        self.execute(&ready, until_us, ui)
    }

    /// Checks the limits of owner and campaign, which no run may exceed.
    fn verify_limits(
        &self,
        known: &KnownCampaign,
        runs: &[CheckedRun<'_>],
    ) -> Result<(), MissingRun> {
        let now_us = unix_us();
        let day = day_of(now_us);
        let bytes = runs.iter().map(|run| run.bytes).fold(0, u64::saturating_add);
        let duration = runs.iter().map(|run| run.pattern.duration).max().unwrap_or_default();
        let state = self.journal.state();
        let by_owner = |reason| (MissingReason::OwnerLimit, reason);
        self.limits.verify_time(now_us, duration).map_err(by_owner)?;
        self.limits.verify_bytes(state.used(day, None), bytes).map_err(by_owner)?;
        let used = state.used(day, Some(&known.campaign.name));
        if used.saturating_add(bytes) > known.campaign.bytes_per_day {
            let detail = format!("{used} bytes of the campaign are used today");
            return Err((MissingReason::CampaignLimit, detail));
        }
        Ok(())
    }

    /// Returns the server of a round, which is chosen once.
    fn server(
        &mut self,
        known: &KnownCampaign,
        round: u32,
        planned: &[PlannedRun],
    ) -> Result<NearestServer, MissingRun> {
        let campaign = &known.campaign;
        let selected = self.selection.as_mut();
        let selected = selected.filter(|old| old.campaign == campaign.name && old.round == round);
        if let Some(selection) = selected {
            selection.renew_access(self.client, campaign);
            return selection.outcome.clone();
        }
        let port = planned.first().map_or(0, |run| run.port);
        let limits = &self.limits;
        let verify = |address: IpAddr| verify_interfaces(limits, &interfaces(address, false));
        let access_us = unix_us();
        let outcome = match servers(self.client, campaign) {
            Ok(servers) => nearest(servers, port, &verify),
            Err(error) => Err((MissingReason::NoServer, server_list_failure(&error))),
        };
        let name = campaign.name.clone();
        let selection = ServerSelection { campaign: name, round, access_us, outcome };
        let outcome = selection.outcome.clone();
        self.selection = Some(selection);
        outcome
    }

    /// Describes a run for the engine, unless an address or an interface prevents it.
    fn prepare(
        &self,
        run: &CheckedRun<'_>,
        server: &NearestServer,
        is_mobile: bool,
    ) -> Result<DeviceRun, MissingRun> {
        let PlannedRun { transport, family, port, .. } = *run.planned;
        let targets = server.targets((family, port), transport)?;
        let is_multipath = matches!(transport, Transport::Mptcp | Transport::Mpquic);
        for target in &targets {
            let interfaces = interfaces(target.ip(), is_multipath || is_mobile);
            if interfaces.is_empty() {
                let detail = format!("this device has no {family} address");
                return Err((MissingReason::NoAddress, detail));
            }
            verify_interfaces(&self.limits, &interfaces)
                .map_err(|reason| (MissingReason::OwnerLimit, reason))?;
        }
        let access = server.server.access.as_ref().map(|access| {
            let secret = Secret::from_text(access.secret.as_bytes());
            secret.map(|secret| (secret, access.grant.clone()))
        });
        let access = access.transpose().map_err(|error| {
            (MissingReason::Failed, format!("the collector's access is damaged: {error}"))
        })?;
        let RunKey { campaign, round, run: index } = &run.key;
        let condition = |name: &str, value: String| (name.to_owned(), value);
        Ok(DeviceRun {
            server: server.server.name.clone(),
            targets,
            choice: server.choice.clone(),
            access,
            certificate: server.server.certificate,
            transport,
            pattern: run.pattern.name.clone(),
            keys: run.pattern.keys.clone(),
            rate_bps: run.pattern.rate_limit_bps,
            mobile: is_mobile,
            repeat: round.saturating_add(1),
            conditions: vec![
                condition("campaign", campaign.clone()),
                condition("campaign run", format!("{round}/{index}")),
                condition("address family", family.to_string()),
                condition("port", port.to_string()),
            ],
            folder: self.run_folder(&run.key),
        })
    }

    /// Makes the runs at the same time, and notes their outcomes.
    fn execute(
        &mut self,
        runs: &[(CheckedRun<'_>, DeviceRun)],
        until_us: u64,
        ui: &mut Ui,
    ) -> Result<(), CliError> {
        let mut prepared = Vec::new();
        let mut checked = Vec::new();
        for (index, (run, device_run)) in runs.iter().enumerate() {
            match PreparedRun::new(device_run, device_run.mobile && index == 0) {
                Ok(ready) => {
                    prepared.push(ready);
                    checked.push(run);
                }
                Err(error) => {
                    let state = missing(MissingReason::Failed, &error.to_string());
                    self.end(&run.key, state, 0, &label(run), ui)?;
                }
            }
        }
        let day = day_of(unix_us());
        // On disk before the first packet: a killed process does not repeat a run.
        self.journal.add(checked.iter().map(|run| JournalEntry::Begin {
            key: run.key.clone(),
            day,
            bytes: run.bytes,
        }))?;
        let mut results = measure_together(&mut prepared);
        if let [Err(error)] = results.as_slice()
            && let Some(wait) = refusal_wait(error)
            && unix_us().saturating_add(wait.as_micros() as u64) < until_us
        {
            ui.progress(&format!("the server refuses; next attempt in {} s", wait.as_secs()));
            live::pause(wait);
            if !interrupt::is_interrupted() {
                results = measure_together(&mut prepared);
            }
        }
        for ((run, prepared), result) in checked.iter().zip(&prepared).zip(results) {
            let (state, bytes) = self.conclude(run, prepared, result);
            self.end(&run.key, state, bytes, &label(run), ui)?;
            self.remove_result(&run.key);
        }
        Ok(())
    }

    /// Returns the outcome of a run that was made, and its bytes. Queues its result.
    fn conclude(
        &self,
        run: &CheckedRun<'_>,
        prepared: &PreparedRun,
        result: Result<StoredRun, CliError>,
    ) -> (OutcomeState, u64) {
        let result = match result {
            Ok(result) => result,
            Err(error) => {
                let (reason, bytes) = classify(&error, run.bytes);
                return (missing(reason, &error.to_string()), bytes);
            }
        };
        let bytes = used_bytes(&result);
        if interrupt::is_interrupted() {
            let state = missing(MissingReason::Interrupted, "the agent was stopped during the run");
            return (state, bytes);
        }
        let path = prepared.result_path(&result);
        let queued = path.map(|path| self.queue(&path, run.addresses)).transpose();
        let state = match queued {
            Ok(Some(id)) => stored_state(id, result.summary.as_ref()),
            Ok(None) => missing(MissingReason::Failed, "the result has no file"),
            Err(error) => missing(MissingReason::Failed, &error.to_string()),
        };
        (state, bytes)
    }

    /// Queues a result file. Returns its identifier.
    fn queue(&self, path: &Path, addresses: AddressForm) -> Result<String, CliError> {
        let result = QueueableResult::pack(path, addresses)?;
        self.uploader.queue_result(&result)?;
        Ok(result.id())
    }

    /// Concludes a run that an earlier process has begun. A complete result is used.
    pub(super) fn recover(&mut self, key: &RunKey, ui: &mut Ui) -> Result<(), CliError> {
        let bytes = self.journal.state().running().map_or(0, |(_, bytes)| bytes);
        let complete = result_files(&self.run_folder(key)).ok().and_then(|files| {
            let file =
                files.into_iter().find(|path| path.extension().is_some_and(|e| e == "zst"))?;
            let summary = crate::files::read_back(&file).ok()?.summary?;
            Some(stored_state(self.queue(&file, AddressForm::Prefix).ok()?, Some(&summary)))
        });
        let state = complete.unwrap_or_else(|| {
            missing(MissingReason::Interrupted, "the agent was killed during the run")
        });
        self.end(key, state, bytes, "", ui)?;
        self.remove_result(key);
        Ok(())
    }

    /// Notes the outcome of a run and the bytes that it needed, and prints it.
    pub(super) fn end(
        &mut self,
        key: &RunKey,
        state: OutcomeState,
        bytes: u64,
        label: &str,
        ui: &mut Ui,
    ) -> Result<(), CliError> {
        let outcome = key.outcome(state, unix_us());
        self.journal.add([JournalEntry::End { outcome: outcome.clone(), bytes }])?;
        print(&outcome, label, self.json, ui)
    }

    fn run_folder(&self, key: &RunKey) -> PathBuf {
        self.folder.join(format!("{}-{}-{}", key.campaign, key.round, key.run))
    }

    /// Removes the local result of a run that is queued, unless it is kept.
    fn remove_result(&self, key: &RunKey) {
        if !self.keep {
            let _ = fs::remove_dir_all(self.run_folder(key)); // a failed run has none
        }
    }
}

/// Prints an outcome: a line of progress, and JSON on request.
fn print(outcome: &Outcome, label: &str, json: bool, ui: &mut Ui) -> Result<(), CliError> {
    use std::io::Write as _;
    let Outcome { campaign, round, run, state, .. } = outcome;
    let text = match state {
        OutcomeState::Stored { result } => format!("result {result}"),
        OutcomeState::Invalid { result, detail } => format!("result {result} is invalid: {detail}"),
        OutcomeState::Missing { detail, .. } => format!("no result: {detail}"),
    };
    let text = format!("{campaign}, round {round}, run {run}: {label}{text}");
    ui.progress_lines(wrap(&text, COLUMNS));
    if json {
        let line = serde_json::to_string(outcome).map_err(|e| CliError::Internal(e.to_string()))?;
        writeln!(ui.out, "{line}")?;
        ui.out.flush()?;
    }
    Ok(())
}

/// Returns the pattern and the place of a run, for people.
fn label(run: &CheckedRun<'_>) -> String {
    let PlannedRun { transport, family, port, .. } = run.planned;
    format!("{} over {transport}, {family}, port {port}: ", run.pattern.name)
}

/// Returns the outcome of a run whose result is queued.
fn stored_state(result: String, summary: Option<&Summary>) -> OutcomeState {
    let warnings = summary.map(|summary| summary.warnings.as_slice()).unwrap_or_default();
    let invalid = warnings.iter().find_map(|warning| warning.text.strip_prefix("invalid: "));
    match (invalid, summary) {
        (Some(detail), _) => OutcomeState::Invalid { result, detail: short(detail) },
        (None, Some(_)) => OutcomeState::Stored { result },
        (None, None) => {
            OutcomeState::Invalid { result, detail: "the result has no summary".to_owned() }
        }
    }
}

/// Returns the reason of a failed run, and the bytes that count: all reserved ones unless the
/// traffic cannot have begun.
fn classify(error: &CliError, reserved: u64) -> (MissingReason, u64) {
    if interrupt::is_interrupted() {
        return (MissingReason::Interrupted, reserved);
    }
    let before_traffic = RUN_OVERHEAD_BYTES.min(reserved);
    match live_error(error) {
        Some(LiveError::Connect { .. } | LiveError::FirstPath { .. }) => {
            (MissingReason::Unreachable, before_traffic)
        }
        Some(LiveError::Refused(_)) => (MissingReason::Refused, before_traffic),
        Some(
            LiveError::Untrusted { .. }
            | LiveError::Unprotected { .. }
            | LiveError::Exhausted { .. }
            | LiveError::Listen { .. },
        ) => (MissingReason::Failed, before_traffic),
        Some(LiveError::Protocol(_) | LiveError::System { .. }) | None => {
            (MissingReason::Failed, reserved)
        }
    }
}

fn live_error(error: &CliError) -> Option<&LiveError> {
    let CliError::Failed { source, .. } = error else { return None };
    source.downcast_ref()
}

/// Returns the time after which a refused run may be repeated, if the server names one.
fn refusal_wait(error: &CliError) -> Option<Duration> {
    let Some(LiveError::Refused(refusal)) = live_error(error) else { return None };
    let wait = Duration::from_secs(refusal.retry_after_s?.into());
    (wait <= MAX_REFUSAL_WAIT).then_some(wait)
}

fn server_list_failure(error: &DeviceError) -> String {
    format!("the collector names no test server: {}", error.refusal().text)
}

/// Returns the bytes that a run needed: payload, headers, retransmissions, and the control
/// connection.
fn used_bytes(run: &StoredRun) -> u64 {
    let mut sent = std::collections::BTreeMap::new();
    let (mut probes, mut interface_bytes) = (0_u64, 0_u64);
    for record in &run.records {
        match record {
            Record::Subflow(subflow) => {
                let key = (subflow.flow, subflow.stream, subflow.direction, subflow.subflow);
                let bytes = match subflow.side {
                    SubflowEnd::Sender => subflow.bytes_sent,
                    SubflowEnd::Receiver => subflow.bytes_received,
                };
                let max = sent.entry(key).or_insert(0_u64);
                *max = bytes.max(*max);
            }
            Record::Probe(_) => probes += 1,
            Record::Interface(interface) => {
                interface_bytes = interface_bytes
                    .saturating_add(interface.rx_bytes)
                    .saturating_add(interface.tx_bytes);
            }
            Record::Meta(_)
            | Record::Interval(_)
            | Record::Link(_)
            | Record::Account(_)
            | Record::Event(_)
            | Record::Message(_)
            | Record::Datagrams(_)
            | Record::Capture(_)
            | Record::Sequence(_)
            | Record::Counter(_)
            | Record::Timing(_)
            | Record::Summary(_) => {}
        }
    }
    let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.fold(0, u64::saturating_add);
    let (mut carried, mut payload) = (sum(&mut sent.into_values()), 0);
    if let Some(summary) = &run.summary {
        let retransmitted = summary.subflows.iter().map(|flow| flow.retransmissions * PACKET_BYTES);
        let arrived = summary.subflows.iter().map(|subflow| subflow.bytes);
        carried = carried.max(sum(&mut arrived.chain(retransmitted)));
        payload = sum(&mut summary.flows.iter().map(|flow| flow.bytes));
    }
    // Those of paths contain retransmissions. With QUIC, they also contain the handshake, and all
    // but the headers of IP and UDP.
    let headers = |bytes: u64, share: u64| bytes.saturating_add(bytes / share);
    let transferred = headers(payload, 8)
        .saturating_add(RUN_OVERHEAD_BYTES)
        .max(headers(carried, 16).saturating_add(RUN_OVERHEAD_BYTES - HANDSHAKE_BYTES));
    transferred.saturating_add(probes.saturating_mul(PROBE_BYTES)).max(interface_bytes)
}

/// Returns the interfaces that a run to an address could use: that of the route, or all.
pub(super) fn interfaces(target: IpAddr, all: bool) -> Vec<String> {
    let towards = |target| interfaces_towards(target, None).unwrap_or_default();
    let mut found = towards(target);
    if !all {
        found.truncate(1);
    } else if !target.is_loopback() && !found.is_empty() {
        // Subflows may also use the other family.
        let others = FOREIGN_ADDRESSES.iter().filter_map(|address| address.parse().ok());
        let others = others.filter(|other: &IpAddr| other.is_ipv4() != target.is_ipv4());
        found.extend(others.flat_map(towards).filter(|other| !other.address.is_loopback()));
    }
    let mut names: Vec<String> = Vec::new();
    for interface in found {
        if !names.contains(&interface.name) {
            names.push(interface.name);
        }
    }
    names
}

/// Returns the interfaces that a run to any server of a family could use.
pub(super) fn interfaces_of_family(family: AddressFamily, all: bool) -> Vec<String> {
    let address = match family {
        AddressFamily::Ipv4 => FOREIGN_ADDRESSES.first(),
        AddressFamily::Ipv6 => FOREIGN_ADDRESSES.last(),
    };
    let address = address.and_then(|address| address.parse().ok());
    address.map_or_else(Vec::new, |address| interfaces(address, all))
}

/// Checks interfaces against the owner's limits. The error is a reason for people.
pub(super) fn verify_interfaces(limits: &OwnerLimits, names: &[String]) -> Result<(), String> {
    names.iter().try_for_each(|name| {
        let path = Path::new("/sys/class/net").join(name).join("uevent");
        limits.verify_interface(name, &fs::read_to_string(path).unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use towpath_result::Warning;
    use towpath_result::input::ReadBudget;
    use towpath_result::store::read_run_within;

    use super::*;

    fn stored_run() -> StoredRun {
        let text = include_str!("../../../towpath-result/tests/fixtures/result-v1.jsonl");
        StoredRun::new(read_run_within(text.as_bytes(), &ReadBudget::of(u64::MAX)).unwrap(), None)
    }

    #[test]
    fn a_network_change_makes_a_result_invalid_and_a_failed_flow_does_not() {
        let mut summary = stored_run().summary.unwrap();
        summary.ok = false;
        let stored = OutcomeState::Stored { result: "ab".to_owned() };
        assert_eq!(stored_state("ab".to_owned(), Some(&summary)), stored);
        let text = format!("invalid: at 1.2 s, {}", "wlan0 lost its carrier ".repeat(20));
        summary.warnings.push(Warning { text, hint: None });
        let OutcomeState::Invalid { detail, .. } = stored_state("ab".to_owned(), Some(&summary))
        else {
            panic!()
        };
        assert!(detail.starts_with("at 1.2 s, wlan0") && detail.len() <= 200, "{detail}");
        let without = stored_state("ab".to_owned(), None);
        assert!(matches!(without, OutcomeState::Invalid { .. }));
    }

    #[test]
    fn bytes_of_a_run_have_headers_and_the_control_connection() {
        let run = stored_run();
        let payload: u64 =
            run.summary.iter().flat_map(|all| &all.flows).map(|flow| flow.bytes).sum();
        let used = used_bytes(&run);
        assert!(used >= payload + payload / 8 + RUN_OVERHEAD_BYTES, "{used} {payload}");
        let empty = StoredRun { summary: None, records: Vec::new(), ..run };
        assert_eq!(used_bytes(&empty), RUN_OVERHEAD_BYTES);
    }

    #[test]
    fn only_failures_before_the_traffic_return_their_bytes() {
        let failed = |error: LiveError| classify(&CliError::failed(error, None), 9_000_000);
        let connect = LiveError::Connect {
            target: "eu-1".to_owned(),
            transport: Transport::Tcp,
            reason: "no answer".to_owned(),
        };
        assert_eq!(failed(connect), (MissingReason::Unreachable, RUN_OVERHEAD_BYTES));
        let lost = LiveError::Protocol("the connection ended".to_owned());
        assert_eq!(failed(lost), (MissingReason::Failed, 9_000_000));
        let internal = CliError::Internal("x".to_owned());
        assert_eq!(classify(&internal, 100), (MissingReason::Failed, 100));
        assert_eq!(refusal_wait(&internal), None);
    }
}
