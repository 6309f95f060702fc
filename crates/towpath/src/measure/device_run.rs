//! One run of a campaign on a device (`towpath agent run`), with the engine of `towpath measure`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::{Args as _, Command, FromArgMatches as _};
use towpath_live::path_name;
use towpath_live::protocol::Secret;
use towpath_live::{Fingerprint, LocalBind, MeasureRequest, MobileSession, interfaces_towards};
use towpath_result::Record;
use towpath_result::store::StoredRun;
use towpath_scenario::Transport;

use super::{MeasureArguments, measure_and_store, plan, test_plan};
use crate::error::CliError;
use crate::files::ResultFolder;

/// Time after which the server's results are given up.
const RESULT_TIMEOUT: Duration = Duration::from_secs(20);

/// Share of the maximum rate that a stream uses, for retransmissions and the last block.
const RATE_PERCENT: u64 = 97;
/// Bytes of a write of a stream with a maximum rate.
const RATED_BLOCK_BYTES: u64 = 16_384;

/// Description of one run.
#[derive(Debug, Clone)]
pub(crate) struct DeviceRun {
    /// Name of the server, for people and the result.
    pub(crate) server: String,
    /// Addresses of the server, of one family.
    pub(crate) targets: Vec<SocketAddr>,
    /// Reason for choosing this server.
    pub(crate) choice: Option<String>,
    /// Secret of an access grant, and the text of the grant.
    pub(crate) access: Option<(Secret, String)>,
    pub(crate) certificate: Option<Fingerprint>,
    pub(crate) transport: Transport,
    /// Name of the traffic pattern.
    pub(crate) pattern: String,
    /// Further keys of the flow with values as TOML.
    pub(crate) keys: Vec<(String, String)>,
    /// Maximum rate of each stream in bit/s.
    pub(crate) rate_bps: Option<u64>,
    /// True in mobile mode.
    pub(crate) mobile: bool,
    /// Number of the repetition, from 1.
    pub(crate) repeat: u32,
    /// Further conditions of the result.
    pub(crate) conditions: Vec<(String, String)>,
    /// Folder of the result, which is made.
    pub(crate) folder: PathBuf,
}

/// Run that is ready to start.
#[derive(Debug)]
pub(crate) struct PreparedRun {
    request: MeasureRequest,
    folder: ResultFolder,
}

impl PreparedRun {
    /// Prepares a run. `udping` adds datagrams over each interface.
    pub(crate) fn new(run: &DeviceRun, udping: bool) -> Result<Self, CliError> {
        let arguments = arguments(run)?;
        let paths = paths(run);
        let scenario = plan::scenario(&arguments, (&run.server, &paths), udping)?;
        let folder = ResultFolder::create(Some(&run.folder), &scenario.name)?;
        let (secret, grant) = run.access.clone().unzip();
        let request = MeasureRequest {
            name: run.server.clone(),
            targets: run.targets.clone(),
            choice: run.choice.clone(),
            source: LocalBind::default(),
            plan: test_plan(&arguments, &scenario, run.transport)?,
            scenario,
            secret,
            grant,
            server: run.certificate,
            qlog: None,
            repeat: run.repeat,
            run_order: None,
            seed: arguments.seed,
            result_timeout: RESULT_TIMEOUT,
            session: None,
            mobile: run.mobile,
        };
        Ok(Self { request, folder })
    }

    /// Returns the path of a stored result.
    pub(crate) fn result_path(&self, run: &StoredRun) -> Option<PathBuf> {
        Some(self.folder.path.join(run.file.as_deref()?))
    }
}

/// Makes runs at the same time. Those of a mobile host end together. Returns results in the order
/// of the runs.
///
/// `on_record` receives the index of a run and each of its live records, from several threads.
pub(crate) fn measure_together(
    runs: &mut [PreparedRun],
    on_record: &(dyn Fn(usize, &Record) + Sync),
) -> Vec<Result<StoredRun, CliError>> {
    if let Some(first) = runs.first().filter(|run| run.request.mobile) {
        let session = MobileSession::new(&first.request.scenario);
        for run in runs.iter_mut() {
            run.request.session = Some(session.clone());
        }
    }
    thread::scope(|scope| {
        let threads: Vec<_> = runs
            .iter()
            .enumerate()
            .map(|(index, run)| {
                let mut on_record = move |record: &Record| on_record(index, record);
                scope.spawn(move || measure_and_store(&run.request, &run.folder, &mut on_record))
            })
            .collect();
        let panicked = || Err(CliError::Internal("a thread panicked".to_owned()));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked())).collect()
    })
}

/// Returns arguments as of a command line. Names and values of a campaign never become options.
fn arguments(run: &DeviceRun) -> Result<MeasureArguments, CliError> {
    let mut words: Vec<String> = vec!["measure".to_owned(), "--quiet".to_owned()];
    let mut add = |option: &str, value: String| words.extend([option.to_owned(), value]);
    add("--transport", run.transport.to_string());
    if let Some(rate) = run.rate_bps {
        // A sender may be ahead of its rate by a block.
        add("--bitrate", (rate / 100 * RATE_PERCENT).to_string());
        add("--length", RATED_BLOCK_BYTES.to_string());
    }
    if let Some(certificate) = run.certificate {
        add("--server-cert", certificate.to_string());
    }
    words.extend(run.mobile.then(|| "--mobile".to_owned()));
    words.extend(["--".to_owned(), run.server.clone(), run.pattern.clone()]);
    let matches = MeasureArguments::augment_args(Command::new("measure"))
        .try_get_matches_from(words)
        .and_then(|matches| MeasureArguments::from_arg_matches(&matches));
    let mut arguments = matches.map_err(|error| CliError::Internal(error.to_string()))?;
    arguments.flow_keys = Some(run.keys.clone());
    arguments.conditions.clone_from(&run.conditions);
    Ok(arguments)
}

/// Returns the names of the paths to the server.
fn paths(run: &DeviceRun) -> Vec<String> {
    let interfaces = run.targets.first().map(|target| interfaces_towards(target.ip(), None));
    let mut paths: Vec<String> = Vec::new();
    for interface in interfaces.and_then(Result::ok).unwrap_or_default() {
        let name = path_name(&interface.name);
        if !paths.contains(&name) {
            paths.push(name);
        }
    }
    if paths.is_empty() {
        paths.push("unknown".to_owned());
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_campaign_are_never_options() {
        let run = DeviceRun {
            server: "--out".to_owned(),
            targets: Vec::new(),
            choice: None,
            access: None,
            certificate: None,
            transport: Transport::Mptcp,
            pattern: "bulk".to_owned(),
            keys: vec![("size".to_owned(), "\"1 MB\"".to_owned())],
            rate_bps: Some(5_000_000),
            mobile: false,
            repeat: 3,
            conditions: vec![("campaign".to_owned(), "study".to_owned())],
            folder: PathBuf::new(),
        };
        let arguments = arguments(&run).unwrap();
        assert_eq!((arguments.host(), arguments.pattern()), (Some("--out"), "bulk"));
        assert!(arguments.out.is_none() && arguments.quiet && !arguments.mobile);
        let paths = ["wlan0".to_owned()];
        let scenario = plan::scenario(&arguments, ("server", &paths), false).unwrap();
        assert!(scenario.source.contains("size = \"1 MB\""), "{}", scenario.source);
        assert!(!scenario.source.contains("duration"), "{}", scenario.source);
        assert_eq!(scenario.remarks.get("campaign").map(String::as_str), Some("study"));
        let plan = test_plan(&arguments, &scenario, run.transport).unwrap();
        assert_eq!(plan.settings.rate_bps, Some(4_850_000));
        assert_eq!(plan.settings.block_bytes, Some(16_384));
    }
}
