//! `towpath upload`, and the option `--to` of commands that make runs.
//!
//! Each result is first queued on disk ([`spool`]), then sent ([`send`], [`client`]). It leaves the
//! queue once the collector has confirmed it, so neither a missing network nor a killed process
//! loses it.
//!
//! A volunteer's device has a token of its own ([`device_file`]), with which it can also see and
//! delete its runs ([`device`]). Both serve `towpath agent`.

mod client;
mod content;
mod device;
mod device_file;
mod fetch;
#[cfg(test)]
pub(crate) mod fixtures;
mod heartbeat;
mod live;
mod owner_limits;
mod send;
mod spool;
mod url;
mod verb;

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Args;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use towpath_net::Instant;
use towpath_os::clock::unix_us;
use towpath_os::files::{UnsafePath, check_secret};
use towpath_os::{COLLECTOR_TOKEN, Clock, interrupt};
use towpath_result::store::{StoredRun, write_record};
use towpath_result::{Record, Warning, input};
use towpath_study::runs::StudyRun;
use ureq::tls::RootCerts;

pub(crate) use client::{Refusal, Token};
pub(crate) use device::{DeviceClient, DeviceError, LOCAL_HINT};
pub(crate) use device_file::{AcceptedConsent, DeviceFile, JoinedDevice};
pub(crate) use fetch::fetch_run;
pub(crate) use heartbeat::{HeartbeatClient, HeartbeatError, ServerRegistration};
pub(crate) use live::LiveFeed;
pub(crate) use owner_limits::{
    AllowedInterfaces, ByteLimit, HoursLimit, MeteredInterfaces, MeteredPolicy, OwnerLimits,
};
pub(crate) use url::CollectorUrl;
pub(crate) use verb::{UploadVerbArguments, upload};

use crate::error::{CliError, describe_error};
use crate::files::ResultFolder;
use crate::ui::Ui;

use client::{Client, parse_roots};
pub(crate) use content::AddressForm;
use content::{ContentError, PackedResult, inspect, pack};
use send::{SendEvent, SendReport, Transfer, WaitReason, send_all};
use spool::{Queue, QueuedRun, Spool, clean_host, file_text};

/// Maximum size of a token's file in bytes.
const MAX_TOKEN_FILE_BYTES: u64 = 10_000;
/// Maximum size of a file with certificate authorities, in bytes.
const MAX_ROOTS_BYTES: u64 = 4_000_000;
/// Time for sending what waits after the user has ended the command.
const LAST_ATTEMPT_TIME: Duration = Duration::from_secs(5);
/// Digits of a result's identifier.
const ID_DIGITS: usize = 20;
/// Number of addresses that a command prints; of more, it prints the number.
const MAX_SHOWN_RUNS: usize = 10;
const SPOOL_HINT: &str =
    "free space, or choose another folder: `towpath upload --spool DIR` or `XDG_STATE_HOME`";

/// Options of commands whose results can be sent to a collector.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct UploadArguments {
    /// Send each result to the collector at this address (see `towpath collect`)
    #[arg(long, value_name = "URL")]
    pub(crate) to: Option<String>,
    /// File with the collector's token [default: the environment variable `TOWPATH_TOKEN`, else the
    /// token of `towpath agent join`]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// File with the authorities (PEM) that may issue the collector's certificate [default: those
    /// of Mozilla]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
}

/// Uploader of results to one collector.
#[derive(Debug)]
pub(crate) struct Uploader {
    client: Client,
    queue: Queue,
    /// Name of the host that makes the runs.
    host: String,
    /// Command that sends what waits.
    command: String,
}

impl Uploader {
    /// Checks the options before anything runs; `None` without `--to`.
    pub(crate) fn prepare(
        arguments: &UploadArguments,
        ui: &mut Ui,
    ) -> Result<Option<Self>, CliError> {
        if arguments.to.is_none() {
            return Ok(None);
        }
        Self::new(arguments, (None, None), ui).map(Some)
    }

    /// Creates an uploader for runs of `host`, with another folder than the default one if given.
    ///
    /// The default host is this one. A device is known by the name that its operator gave.
    fn new(
        arguments: &UploadArguments,
        (host, root): (Option<String>, Option<&Path>),
        ui: &mut Ui,
    ) -> Result<Self, CliError> {
        let url = CollectorUrl::parse(arguments.to.as_deref().unwrap_or_default())?;
        let (client, device) = client(arguments, &url)?;
        let host = host.or(device).unwrap_or_else(host_name);
        warn_if_exposed(&url, ui);
        let spool = spool(root)?;
        let open = || -> io::Result<Queue> {
            let queue = spool.queue(url.as_str())?;
            queue.remove_leftovers(unix_us())?;
            Ok(queue)
        };
        let queue = open().map_err(|source| spool_error(spool.root(), source))?;
        let command = command(&url, arguments, root);
        Ok(Self { client, queue, host, command })
    }

    /// Creates an uploader for the runs of a device, which sends with the device's token.
    pub(crate) fn for_device(device: &JoinedDevice) -> Result<Self, CliError> {
        let url = device.collector.clone();
        let roots = device.ca.as_deref().map(read_roots).transpose()?;
        let client = Client::new(url.clone(), device.token.clone(), roots).with_device(true);
        let spool = spool(None)?;
        let open = || -> io::Result<Queue> {
            let queue = spool.queue(url.as_str())?;
            queue.remove_leftovers(unix_us())?;
            Ok(queue)
        };
        let queue = open().map_err(|source| spool_error(spool.root(), source))?;
        let command = format!("towpath upload --to {url}");
        Ok(Self { client, queue, host: device.name.clone(), command })
    }

    /// Queues a packed result.
    pub(crate) fn queue_result(&self, result: &QueueableResult) -> Result<(), CliError> {
        self.add(&result.packed, result.file.clone())
    }

    /// Sends all that waits. Returns the reason if no result can be sent until the user changes
    /// something; other failures are warnings.
    pub(crate) fn send_waiting(&self, ui: &mut Ui) -> Result<Option<Refusal>, CliError> {
        let report = self.send(&mut |_, _| Ok(()), ui)?;
        if let Some(WaitReason::Blocked(refusal)) = report.reason {
            return Ok(Some(refusal));
        }
        if report.reason != Some(WaitReason::Interrupted) {
            self.warn_of_waiting(&report, ui);
        }
        Ok(None)
    }

    /// Sends what waits after the user has ended the command: one attempt, and within 5 s.
    pub(crate) fn send_last(&self, ui: &mut Ui) -> Result<(), CliError> {
        let clock = Clock::start();
        let mut may_continue =
            |wait: Duration| wait.is_zero() && clock.now() < Instant::ZERO + LAST_ATTEMPT_TIME;
        self.send_with(&mut may_continue, &mut |_, _| Ok(()), ui).map(|_| ())
    }

    /// Returns where the result with this identifier is.
    pub(crate) fn upload_state(&self, id: &str) -> Result<UploadState, CliError> {
        let unreadable = |source| spool_error(self.queue.path(), source);
        if self.queue.waiting().map_err(unreadable)?.iter().any(|hash| hash.starts_with(id)) {
            return Ok(UploadState::Waiting);
        }
        let refusal = self.queue.refusal(id).map_err(unreadable)?;
        Ok(refusal.map_or(UploadState::Sent, UploadState::Refused))
    }

    /// Returns a sender for the records of one run that begins.
    pub(crate) fn live_feed(&self) -> LiveFeed {
        LiveFeed::new(self.client.clone(), self.host.clone())
    }

    /// Queues a result file. Returns the reason if it cannot be uploaded.
    fn queue_file(&self, path: &Path) -> Result<Result<(), ContentError>, CliError> {
        // The owner of a device has agreed to prefixes only.
        let is_device = self.client.is_device();
        let addresses = if is_device { AddressForm::Prefix } else { AddressForm::Full };
        match pack(path, addresses) {
            Ok(packed) => self.add(&packed, file_text(path)).map(Ok),
            Err(reason) => Ok(Err(reason)),
        }
    }

    fn add(&self, packed: &PackedResult, file: String) -> Result<(), CliError> {
        let run = QueuedRun {
            url: self.queue.url().to_owned(),
            host: self.host.clone(),
            time_us: packed.modified_us.filter(|_| packed.facts.started_us.is_none()),
            expanded_bytes: packed.facts.expanded_bytes,
            compressed_bytes: packed.bytes.len() as u64,
            file,
            queued_us: unix_us(),
        };
        let added = self.queue.add(&packed.facts.hash, &run, &packed.bytes);
        added.map_err(|source| spool_error(self.queue.path(), source))
    }

    /// Queues the result of a run in a study, with the plan and the variant as conditions.
    pub(crate) fn queue_study_run(
        &self,
        plan: &str,
        run: &StudyRun,
        records: &[Record],
    ) -> Result<(), CliError> {
        let mut lines = Vec::new();
        for record in records {
            if let Record::Meta(meta) = record {
                let mut meta = meta.clone();
                let variant = (!run.row.variant.is_empty()).then(|| run.row.variant.clone());
                meta.conditions.extend(variant.map(|variant| ("variant".to_owned(), variant)));
                meta.conditions.insert("plan".to_owned(), plan.to_owned());
                write_record(&mut lines, &Record::Meta(meta))
            } else {
                write_record(&mut lines, record)
            }
            .map_err(|error| CliError::Internal(error.to_string()))?;
        }
        let row = &run.row;
        let name = format!("{plan}-{}-{}-{}.jsonl.zst", row.variant, row.transport, row.seed);
        let bytes = compress_to_vec(&lines[..], CompressionLevel::Fastest);
        let facts = inspect(&bytes).map_err(|error| CliError::Internal(error.to_string()))?;
        let modified_us = Some(unix_us());
        self.add(&PackedResult { facts, bytes, modified_us }, file_text(Path::new(&name)))
    }

    /// Sends all that waits. `on_stored` receives each run that the collector has.
    fn send(
        &self,
        on_stored: &mut dyn FnMut(SendEvent<'_>, &mut Ui) -> Result<(), CliError>,
        ui: &mut Ui,
    ) -> Result<SendReport, CliError> {
        self.send_with(&mut pause, on_stored, ui)
    }

    /// Sends what waits. `wait_for` waits before a further attempt, and returns false to end.
    fn send_with(
        &self,
        wait_for: &mut dyn FnMut(Duration) -> bool,
        on_stored: &mut dyn FnMut(SendEvent<'_>, &mut Ui) -> Result<(), CliError>,
        ui: &mut Ui,
    ) -> Result<SendReport, CliError> {
        let mut transfer = Transfer {
            put: &mut |hash, run, bytes| self.client.put(hash, run, bytes),
            pause: wait_for,
        };
        send_all(&self.queue, &mut transfer, &mut |event| {
            match &event {
                SendEvent::Progress { done, total } => ui.bar(*done, *total),
                SendEvent::Stored { .. } => on_stored(event, ui)?,
                SendEvent::Refused { run, refusal, path } => ui.warn(&Warning {
                    text: format!("the collector refuses `{}`: {}", run.file, refusal.text),
                    hint: Some(format!("its copy is in {}", path.display())),
                }),
                SendEvent::Unreadable { path, source } => ui.warn(&Warning {
                    text: format!("cannot read `{}`: {}", path.display(), describe(source)),
                    hint: None,
                }),
                SendEvent::Waiting { reason, wait } => {
                    ui.progress(&format!("{reason}; next attempt in {} s", wait.as_secs()));
                }
            }
            Ok(())
        })
    }

    /// Queues and sends the results that a command has written. Failures are warnings.
    pub(crate) fn upload_runs(&self, runs: &[StoredRun], folder: &ResultFolder, ui: &mut Ui) {
        let paths = runs.iter().filter_map(|run| Some(folder.path.join(run.file.as_deref()?)));
        let paths: Vec<_> = paths.collect();
        if let Err(error) = self.queue_all(&paths, ui) {
            let hint = format!("`{} RESULT…` sends them later", self.command);
            let text = format!("not all results are uploaded: {}", describe(&error));
            ui.warn(&Warning { text, hint: Some(hint) });
        }
        self.send_or_warn(ui);
    }

    /// Queues result files, and warns of those that cannot be uploaded. Returns true if all are
    /// queued.
    fn queue_all(&self, paths: &[PathBuf], ui: &mut Ui) -> Result<bool, CliError> {
        let mut all_queued = true;
        for path in paths {
            if let Err(reason) = self.queue_file(path)? {
                let text = format!("`{}` is not uploaded: {}", path.display(), describe(&reason));
                ui.warn(&Warning { text, hint: None });
                all_queued = false;
            }
        }
        Ok(all_queued)
    }

    /// Sends all that waits. Failures are warnings.
    pub(crate) fn send_or_warn(&self, ui: &mut Ui) {
        let mut urls = Vec::new();
        let report = self.send(
            &mut |event, _| {
                if let SendEvent::Stored { reply, .. } = event {
                    urls.push(reply.url.clone());
                }
                Ok(())
            },
            ui,
        );
        if urls.len() <= MAX_SHOWN_RUNS {
            ui.progress_lines(urls.iter().map(|url| format!("uploaded: {url}")));
        } else {
            ui.progress(&format!("uploaded: {} runs to {}", urls.len(), self.queue.url()));
        }
        match report {
            Ok(report) => self.warn_of_waiting(&report, ui),
            Err(error) => ui.warn(&Warning {
                text: format!("results are not uploaded: {}", describe(&error)),
                hint: Some(format!("`{}` sends them later", self.command)),
            }),
        }
    }

    /// Warns if runs still wait, and says why.
    fn warn_of_waiting(&self, report: &SendReport, ui: &mut Ui) {
        if report.waiting == 0 {
            return;
        }
        let runs = waiting_text(report.waiting);
        let (reason, hint) = match &report.reason {
            Some(WaitReason::Blocked(refusal)) => (refusal.text.as_str(), refusal.hint.as_deref()),
            Some(WaitReason::Failed(reason)) => (reason.as_str(), None),
            Some(WaitReason::Interrupted) => ("interrupted", None),
            None => ("not all could be read", None),
        };
        let later = format!("`{}` sends what waits", self.command);
        ui.warn(&Warning {
            text: format!("{runs}: {reason}"),
            hint: Some(hint.map_or(later.clone(), |hint| format!("{hint}; then {later}"))),
        });
    }
}

/// Result that can be queued, with its identifier.
#[derive(Debug)]
pub(crate) struct QueueableResult {
    packed: PackedResult,
    file: String,
}

impl QueueableResult {
    /// Reads and compresses a result file, with its addresses in this form.
    pub(crate) fn pack(path: &Path, addresses: AddressForm) -> Result<Self, CliError> {
        let packed = pack(path, addresses).map_err(|error| CliError::failed(error, None))?;
        Ok(Self { packed, file: file_text(path) })
    }

    /// Returns the identifier of the result on collectors.
    pub(crate) fn id(&self) -> String {
        self.packed.facts.hash.chars().take(ID_DIGITS).collect()
    }
}

/// Place of a result that was queued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UploadState {
    /// The result waits in the queue.
    Waiting,
    /// The collector has refused it for this reason.
    Refused(String),
    /// The collector has it.
    Sent,
}

/// Warns if other hosts could read the token.
pub(crate) fn warn_if_exposed(url: &CollectorUrl, ui: &mut Ui) {
    if url.is_exposed() {
        ui.warn(&Warning {
            text: format!("the token crosses the network to `{url}` unencrypted"),
            hint: Some("use `https://`, unless all hosts of the network are trusted".to_owned()),
        });
    }
}

/// Removes the results that wait for a collector, from the default folder without `root`. Returns
/// their number.
pub(crate) fn discard_waiting(url: &CollectorUrl, root: Option<&Path>) -> Result<u64, CliError> {
    let spool = spool(root)?;
    let discard = || {
        let mut count = 0;
        for queue in spool.queues()?.iter().filter(|queue| queue.url() == url.as_str()) {
            for hash in queue.waiting()? {
                queue.remove(&hash)?;
                count += 1;
            }
        }
        Ok(count)
    };
    discard().map_err(|source| spool_error(spool.root(), source))
}

/// Describes an error within a warning.
fn describe(error: &dyn std::error::Error) -> String {
    describe_error(&error.to_string())
}

/// Returns the number of runs that wait as text.
fn waiting_text(count: usize) -> String {
    match count {
        1 => "1 run waits to be uploaded".to_owned(),
        count => format!("{count} runs wait to be uploaded"),
    }
}

/// Waits until an interrupt at most. Returns false after one.
fn pause(span: Duration) -> bool {
    const POLL_INTERVAL: Duration = Duration::from_millis(50);
    let clock = Clock::start();
    let end = clock.now() + span;
    while clock.now() < end && !interrupt::is_interrupted() {
        clock.sleep_until(end.min(clock.now() + POLL_INTERVAL));
    }
    !interrupt::is_interrupted()
}

/// Returns the command that sends what waits for this collector.
fn command(url: &CollectorUrl, arguments: &UploadArguments, root: Option<&Path>) -> String {
    let options = [
        ("--token-file", arguments.token_file.as_deref()),
        ("--ca", arguments.ca.as_deref()),
        ("--spool", root),
    ];
    let options = options.iter().filter_map(|(name, path)| Some((name, (*path)?)));
    options.fold(format!("towpath upload --to {url}"), |command, (name, path)| {
        format!("{command} {name} {}", path.display())
    })
}

fn spool(root: Option<&Path>) -> Result<Spool, CliError> {
    let root = root.map(Path::to_owned).or_else(Spool::default_root);
    root.map(Spool::new).ok_or_else(|| CliError::Unavailable {
        what: "no folder is known for results that wait to be uploaded".to_owned(),
        hint: "set `XDG_STATE_HOME` or `HOME`, or use `towpath upload --spool DIR`".to_owned(),
    })
}

/// Returns the error for a spool that cannot be written.
fn spool_error(path: &Path, source: io::Error) -> CliError {
    CliError::unwritable(path, source, Some(SPOOL_HINT))
}

/// Creates a client with the token of the options, of the environment, or of a device that has
/// joined this collector.
fn client(
    arguments: &UploadArguments,
    url: &CollectorUrl,
) -> Result<(Client, Option<String>), CliError> {
    let has_token = arguments.token_file.is_some()
        || std::env::var_os(COLLECTOR_TOKEN).is_some_and(|token| !token.is_empty());
    let device = if has_token { None } else { DeviceFile::joined(url)? };
    let name = device.as_ref().map(|device| device.name.clone());
    let mut ca = arguments.ca.clone();
    let token = match device {
        Some(device) => {
            ca = ca.or(device.ca);
            device.token
        }
        None => read_token(arguments.token_file.as_deref())?,
    };
    let roots = ca.as_deref().map(read_roots).transpose()?;
    Ok((Client::new(url.clone(), token, roots).with_device(name.is_some()), name))
}

/// Reads the token from a file that others cannot read, or from the environment.
fn read_token(file: Option<&Path>) -> Result<Token, CliError> {
    let hint = "create one on the collector's host: `towpath collect token create --name HOST \
                --role uploader`";
    let Some(path) = file else {
        let text = std::env::var_os(COLLECTOR_TOKEN).unwrap_or_default();
        if text.is_empty() {
            return Err(CliError::Unavailable {
                what: "the collector needs a token".to_owned(),
                hint: format!("give it with `--token-file FILE` or in `{COLLECTOR_TOKEN}`; {hint}"),
            });
        }
        return Token::parse(&text.to_string_lossy()).ok_or_else(|| CliError::Unavailable {
            what: format!("the environment variable `{COLLECTOR_TOKEN}` is not a token"),
            hint: hint.to_owned(),
        });
    };
    let read_file = || {
        check_secret(path)?;
        let mut text = Vec::new();
        input::open(path)?.take(MAX_TOKEN_FILE_BYTES).read_to_end(&mut text)?;
        Ok(text)
    };
    let text = read_file().map_err(|source: io::Error| match UnsafePath::of(&source) {
        Some(refusal) => CliError::failed(refusal.clone(), Some(refusal.hint().to_owned())),
        None => CliError::Read { path: path.to_owned(), source },
    })?;
    Token::parse(&String::from_utf8_lossy(&text)).ok_or_else(|| CliError::Unavailable {
        what: format!("`{}` does not contain a token", path.display()),
        hint: hint.to_owned(),
    })
}

fn read_roots(path: &Path) -> Result<RootCerts, CliError> {
    let mut pem = Vec::new();
    let read = input::open(path).and_then(|file| file.take(MAX_ROOTS_BYTES).read_to_end(&mut pem));
    read.map_err(|source| CliError::Read { path: path.to_owned(), source })?;
    parse_roots(&pem).ok_or_else(|| CliError::Unavailable {
        what: format!("`{}` does not contain certificates", path.display()),
        hint: "`--ca` expects certificate authorities in PEM".to_owned(),
    })
}

/// Returns the name of this host; empty if it is unknown.
fn host_name() -> String {
    let from_kernel = || fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let from_program = || {
        let output = Command::new("hostname").output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    clean_host(&from_kernel().or_else(from_program).unwrap_or_default())
}

impl From<Refusal> for CliError {
    fn from(refusal: Refusal) -> Self {
        let hint = refusal.hint.unwrap_or_else(|| "check the address and the token".to_owned());
        Self::Unavailable { what: refusal.text, hint }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upload::fixtures::{RESULT, TestFolder, TestServer, result, stored};

    fn arguments(folder: &TestFolder, to: &str) -> UploadArguments {
        let token_file = folder.path("token");
        write_secret(&token_file, "towpath_secret\n");
        UploadArguments { to: Some(to.to_owned()), token_file: Some(token_file), ca: None }
    }

    fn write_secret(path: &Path, text: &str) {
        fs::write(path, text).unwrap();
        #[cfg(unix)]
        set_mode(path, 0o600);
    }

    #[cfg(unix)]
    fn set_mode(path: &Path, mode: u32) {
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn uploader(folder: &TestFolder, to: &str, ui: &mut Ui) -> Result<Uploader, CliError> {
        let root = folder.path("spool");
        Uploader::new(&arguments(folder, to), (Some("lab".to_owned()), Some(&root)), ui)
    }

    #[test]
    fn results_are_queued_and_sent_with_the_host_and_the_time_of_their_file() {
        let (folder, mut ui) = (TestFolder::new("upload"), Ui::from_environment());
        let server = TestServer::start(|_, request| stored(request, true));
        let uploader = uploader(&folder, &server.url, &mut ui).unwrap();
        let (plain, other) = (folder.path("tcp-1.jsonl"), folder.path("other.jsonl"));
        let with_start = folder.path("tcp-2.jsonl");
        fs::write(&plain, RESULT).unwrap();
        fs::write(&other, "other\n").unwrap();
        let started = "\"started_us\":1700000000000000,\"seed\":";
        fs::write(&with_start, result(2).replacen("\"seed\":", started, 1)).unwrap();
        let all_queued = uploader.queue_all(&[plain.clone(), other, with_start], &mut ui).unwrap();
        assert!(!all_queued, "a file is not a result");
        let mut files = Vec::new();
        let report = uploader.send(
            &mut |event, _| {
                if let SendEvent::Stored { run, .. } = event {
                    files.push(run.file.clone());
                }
                Ok(())
            },
            &mut ui,
        );
        assert_eq!(
            (report.unwrap().stored, files.join(" ")),
            (2, "tcp-1.jsonl tcp-2.jsonl".into())
        );
        let requests = server.requests();
        assert!(requests.iter().all(|request| request.header("towpath-host") == Some("lab")));
        let modified_us = pack(&plain, AddressForm::Full).unwrap().modified_us.unwrap().to_string();
        let times: Vec<_> = requests.iter().map(|request| request.header("towpath-time")).collect();
        assert_eq!(times, [Some(modified_us.as_str()), None]);
        assert!(plain.exists());
    }

    #[test]
    fn the_command_for_later_has_all_options() {
        let (folder, mut ui) = (TestFolder::new("upload-command"), Ui::from_environment());
        let uploader = uploader(&folder, "https://Example.org/", &mut ui).unwrap();
        let (token, spool) = (folder.path("token"), folder.path("spool"));
        let expected = format!(
            "towpath upload --to https://example.org --token-file {} --spool {}",
            token.display(),
            spool.display()
        );
        assert_eq!(uploader.command, expected);
    }

    #[test]
    fn wrong_options_are_refused_before_anything_runs() {
        let (folder, mut ui) = (TestFolder::new("upload-options"), Ui::from_environment());
        assert!(Uploader::prepare(&UploadArguments::default(), &mut ui).unwrap().is_none());
        assert!(uploader(&folder, "example.org", &mut ui).is_err());
        let with = |token: &str, ca: Option<&str>| {
            let (token_file, ca_file) = (folder.path("token"), folder.path("ca"));
            write_secret(&token_file, token);
            fs::write(&ca_file, ca.unwrap_or_default()).unwrap();
            UploadArguments {
                to: Some("https://example.org".to_owned()),
                token_file: Some(token_file),
                ca: ca.map(|_| ca_file),
            }
        };
        let refuse = |arguments: &UploadArguments, ui: &mut Ui| {
            let root = folder.path("spool");
            Uploader::new(arguments, (Some("lab".to_owned()), Some(&root)), ui).unwrap_err()
        };
        for (token, ca) in [("two words", None), ("towpath_secret", Some("text"))] {
            let error = refuse(&with(token, ca), &mut ui);
            assert!(error.hint().is_some(), "{error}");
        }
        let missing = UploadArguments { token_file: Some(folder.path("none")), ..with("x", None) };
        assert!(matches!(refuse(&missing, &mut ui), CliError::Read { .. }));
        assert!(!folder.path("spool").exists());
    }

    #[test]
    fn results_that_wait_for_one_collector_are_discarded_without_those_of_others() {
        let (folder, mut ui) = (TestFolder::new("upload-discard"), Ui::from_environment());
        let file = folder.path("tcp-1.jsonl");
        fs::write(&file, RESULT).unwrap();
        let [first, second] = ["https://a.example", "https://b.example"];
        for url in [first, second] {
            let uploader = uploader(&folder, url, &mut ui).unwrap();
            assert!(uploader.queue_all(std::slice::from_ref(&file), &mut ui).unwrap());
        }
        let spool = Spool::new(folder.path("spool"));
        let url = CollectorUrl::parse(first).unwrap();
        assert_eq!(discard_waiting(&url, Some(spool.root())).unwrap(), 1);
        assert_eq!(discard_waiting(&url, Some(spool.root())).unwrap(), 0);
        let waiting = |queue: &Queue| (queue.url().to_owned(), queue.waiting().unwrap().len());
        let left: Vec<_> = spool.queues().unwrap().iter().map(waiting).collect();
        assert_eq!(left, [(first.to_owned(), 0), (second.to_owned(), 1)]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_token_that_others_can_read_is_refused_with_a_hint() {
        let folder = TestFolder::new("upload-secret");
        let token = folder.path("token");
        write_secret(&token, "towpath_secret");
        assert!(read_token(Some(&token)).is_ok());
        set_mode(&token, 0o644);
        let error = read_token(Some(&token)).unwrap_err();
        assert!(error.hint().is_some_and(|hint| hint.contains("chmod")), "{error}");
    }
}
