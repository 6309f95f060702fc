//! Runs of a campaign: checks before a run, and the run itself.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use towpath_campaign::{
    AddressFamily, Campaign, CampaignMode, CampaignPattern, MissingReason, Outcome, OutcomeState,
    PlannedRun,
};
use towpath_live as live;
use towpath_live::interfaces_towards;
use towpath_live::protocol::Secret;
use towpath_os::clock::unix_us;
use towpath_os::interrupt;
use towpath_result::Record;
use towpath_result::format::text::wrap;
use towpath_result::store::{StoredRun, result_files};
use towpath_scenario::Transport;

use super::journal::{Journal, JournalEntry, RunKey, day_of, missing};
use super::run_result::{classify, is_complete, refusal_wait, stored_state, used_bytes};
use super::schedule::{KnownCampaign, WalkRound};
use super::servers::{MissingRun, NearestServer, nearest, servers};
use crate::error::CliError;
use crate::measure::{DeviceRun, PreparedRun, measure_together};
use crate::ui::Ui;
use crate::upload::{
    AddressForm, DeviceClient, DeviceError, OwnerLimits, QueueableResult, Uploader,
};

/// Age from which access to a server is renewed. Collectors grant it for 10 minutes.
const MAX_ACCESS_AGE: Duration = Duration::from_mins(4);
/// Maximum width of progress in columns.
const COLUMNS: usize = 100;
/// Addresses for documentation (RFC 5737, RFC 3849), to which nothing is sent.
const FOREIGN_ADDRESSES: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

/// Maker of runs.
#[derive(Debug)]
pub(super) struct RunMaker {
    pub(super) client: DeviceClient,
    pub(super) uploader: Uploader,
    pub(super) journal: Journal,
    pub(super) limits: OwnerLimits,
    /// Folder of results until they are queued.
    pub(super) folder: PathBuf,
    /// True if results also stay on this host.
    pub(super) keep: bool,
    /// True if outcomes are printed as JSON.
    pub(super) json: bool,
    /// True if a run that the user ends early has a result, as in a walk.
    pub(super) keeps_interrupted: bool,
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

/// Runs of a round that can begin, and those that an address or an interface prevents.
#[derive(Debug)]
struct CheckedRound<'a> {
    ready: Vec<(CheckedRun<'a>, DeviceRun)>,
    prevented: Vec<(CheckedRun<'a>, MissingRun)>,
}

/// Run that was made, or failed.
#[derive(Debug)]
pub(super) struct MeasuredRun {
    pub(super) transport: Transport,
    pub(super) state: OutcomeState,
    /// Result; `None` without one.
    pub(super) result: Option<StoredRun>,
}

/// Observer of the records of runs in progress, with the index of the run. Returns a line of
/// progress.
pub(super) type RunObserver<'a> = &'a (dyn Fn(usize, &Record) -> Option<String> + Sync);

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

impl RunMaker {
    /// Makes runs of a round, which end before `until_us` at the latest begin. One run, or all of a
    /// mobile round.
    pub(super) fn measure(
        &mut self,
        known: &KnownCampaign,
        (round, until_us): (u32, u64),
        planned: &[PlannedRun],
        ui: &mut Ui,
    ) -> Result<(), CliError> {
        let runs = checked_runs(&known.campaign, round, planned);
        let server = match self.verify_limits(known, planned) {
            Ok(()) => self.server(known, round, planned),
            Err(missing) => Err(missing),
        };
        let server = match server {
            Ok(server) => server,
            Err((reason, detail)) => {
                return runs.iter().try_for_each(|run| {
                    self.end(&run.key, missing(reason, &detail), 0, &label(run), ui)
                });
            }
        };
        let CheckedRound { ready, prevented } = self.prepare_all(known, runs, &server);
        for (run, (reason, detail)) in prevented {
            self.end(&run.key, missing(reason, &detail), 0, &label(&run), ui)?;
        }
        self.execute(&ready, until_us, &|_, _| None, ui).map(|_| ())
    }

    /// Makes the runs of a round that the user starts. If none of them can begin, returns the
    /// reason and leaves the journal unchanged, so that the round can be made later.
    pub(super) fn walk(
        &mut self,
        known: &KnownCampaign,
        walk: &WalkRound,
        observer: RunObserver<'_>,
        ui: &mut Ui,
    ) -> Result<Result<Vec<MeasuredRun>, MissingRun>, CliError> {
        let WalkRound { round, until_us, runs: planned, entry, .. } = walk;
        let runs = checked_runs(&known.campaign, *round, planned);
        let server = match self.verify_limits(known, planned) {
            Ok(()) => self.server(known, *round, planned),
            Err(missing) => Err(missing),
        };
        let server = match server {
            Ok(server) => server,
            Err(missing) => return Ok(Err(missing)),
        };
        let CheckedRound { ready, prevented } = self.prepare_all(known, runs, &server);
        if interrupt::is_interrupted() {
            let detail = "it was stopped before it began".to_owned();
            return Ok(Err((MissingReason::Interrupted, detail)));
        }
        if ready.is_empty() {
            let first = prevented.into_iter().map(|(_, missing)| missing).next();
            let empty = || (MissingReason::Failed, "the campaign has changed".to_owned());
            return Ok(Err(first.unwrap_or_else(empty)));
        }
        self.journal.add(entry.clone())?;
        let mut measured = Vec::new();
        for (run, (reason, detail)) in prevented {
            let state = missing(reason, &detail);
            self.end(&run.key, state.clone(), 0, &label(&run), ui)?;
            measured.push(MeasuredRun { transport: run.planned.transport, state, result: None });
        }
        measured.extend(self.execute(&ready, *until_us, observer, ui)?);
        Ok(Ok(measured))
    }

    /// Describes all runs for the engine, and separates those that are prevented.
    fn prepare_all<'b>(
        &self,
        known: &KnownCampaign,
        runs: Vec<CheckedRun<'b>>,
        server: &NearestServer,
    ) -> CheckedRound<'b> {
        let is_mobile = known.campaign.mode == CampaignMode::Mobile;
        let mut round = CheckedRound { ready: Vec::new(), prevented: Vec::new() };
        for run in runs {
            match self.prepare(&run, server, is_mobile) {
                Ok(device_run) => round.ready.push((run, device_run)),
                Err(missing) => round.prevented.push((run, missing)),
            }
        }
        round
    }

    /// Checks the limits of owner and campaign, which no run may exceed.
    pub(super) fn verify_limits(
        &self,
        known: &KnownCampaign,
        planned: &[PlannedRun],
    ) -> Result<(), MissingRun> {
        let now_us = unix_us();
        let day = day_of(now_us);
        let patterns = || planned.iter().filter_map(|run| known.campaign.patterns.get(run.pattern));
        let bytes = patterns().map(|pattern| pattern.max_bytes).fold(0, u64::saturating_add);
        let duration = patterns().map(|pattern| pattern.duration).max().unwrap_or_default();
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
            selection.renew_access(&self.client, campaign);
            return selection.outcome.clone();
        }
        let port = planned.first().map_or(0, |run| run.port);
        let limits = &self.limits;
        let verify = |address: IpAddr| verify_interfaces(limits, &interfaces(address, false));
        let access_us = unix_us();
        let outcome = match servers(&self.client, campaign) {
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
        observer: RunObserver<'_>,
        ui: &mut Ui,
    ) -> Result<Vec<MeasuredRun>, CliError> {
        let mut measured = Vec::new();
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
                    self.end(&run.key, state.clone(), 0, &label(run), ui)?;
                    let transport = run.planned.transport;
                    measured.push(MeasuredRun { transport, state, result: None });
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
        let mut results = measure(&mut prepared, observer, ui);
        if let [Err(error)] = results.as_slice()
            && let Some(wait) = refusal_wait(error)
            && unix_us().saturating_add(wait.as_micros() as u64) < until_us
        {
            ui.progress(&format!("the server refuses; next attempt in {} s", wait.as_secs()));
            live::pause(wait);
            if !interrupt::is_interrupted() {
                results = measure(&mut prepared, observer, ui);
            }
        }
        for ((run, prepared), result) in checked.iter().zip(&prepared).zip(results) {
            let (state, bytes) = match &result {
                Ok(result) => self.conclude(run, prepared, result),
                Err(error) => {
                    let (reason, bytes) = classify(error, run.bytes);
                    (missing(reason, &error.to_string()), bytes)
                }
            };
            self.end(&run.key, state.clone(), bytes, &label(run), ui)?;
            self.remove_result(&run.key);
            let transport = run.planned.transport;
            measured.push(MeasuredRun { transport, state, result: result.ok() });
        }
        Ok(measured)
    }

    /// Returns the outcome of a run that was made, and its bytes. Queues its result.
    fn conclude(
        &self,
        run: &CheckedRun<'_>,
        prepared: &PreparedRun,
        result: &StoredRun,
    ) -> (OutcomeState, u64) {
        let bytes = used_bytes(result);
        let is_usable = self.keeps_interrupted || result.summary.as_ref().is_some_and(is_complete);
        if interrupt::is_interrupted() && !is_usable {
            let state = missing(MissingReason::Interrupted, "the agent was stopped during the run");
            return (state, bytes);
        }
        let path = prepared.result_path(result);
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

/// Returns the runs of a round whose patterns the campaign has.
fn checked_runs<'a>(
    campaign: &'a Campaign,
    round: u32,
    planned: &'a [PlannedRun],
) -> Vec<CheckedRun<'a>> {
    let addresses = if campaign.full_addresses { AddressForm::Full } else { AddressForm::Prefix };
    let checked = planned.iter().filter_map(|run| {
        let pattern = campaign.patterns.get(run.pattern)?;
        let key = RunKey { campaign: campaign.name.clone(), round, run: run.index };
        Some(CheckedRun { key, planned: run, pattern, bytes: pattern.max_bytes, addresses })
    });
    checked.collect()
}

/// Makes runs at the same time, and prints the lines of the observer meanwhile.
fn measure(
    prepared: &mut [PreparedRun],
    observer: RunObserver<'_>,
    ui: &mut Ui,
) -> Vec<Result<StoredRun, CliError>> {
    let ui = Mutex::new(ui);
    measure_together(prepared, &|index, record| {
        if let Some(line) = observer(index, record) {
            ui.lock().unwrap_or_else(PoisonError::into_inner).progress(&line);
        }
    })
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

fn server_list_failure(error: &DeviceError) -> String {
    format!("the collector names no test server: {}", error.refusal().text)
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
