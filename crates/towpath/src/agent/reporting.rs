//! Access of a device to its collector while it makes runs: campaigns, uploads and outcomes.

use std::process::ExitCode;

use towpath_campaign::{
    CampaignList, MAX_OUTCOMES, MissingReason, Outcome, OutcomeState, PublicKey,
};
use towpath_os::clock::unix_us;
use towpath_os::files::{Dir, ReadAccess};
use towpath_os::interrupt;
use towpath_result::device::DeviceState;

use super::journal::{Journal, JournalEntry, RunKey, missing, results_folder};
use super::offers::campaign_key;
use super::round::RunMaker;
use crate::error::CliError;
use crate::ui::Ui;
use crate::upload::{DeviceClient, DeviceError, DeviceFile, JoinedDevice, UploadState, Uploader};

/// Reason why work for a collector ends by itself.
#[derive(Debug)]
pub(super) enum AgentEnd {
    /// The collector does not accept the device, or cannot be reached although it is needed.
    Stopped(CliError),
    /// Problem of this host.
    Failed(CliError),
}

impl AgentEnd {
    /// Returns the exit code 1, after the reason is printed, unless the command line or this host
    /// is the reason.
    pub(super) fn conclude(self, ui: &mut Ui) -> Result<ExitCode, CliError> {
        match self {
            Self::Stopped(error) => {
                ui.error(&error);
                Ok(ExitCode::from(1))
            }
            Self::Failed(error) => Err(error),
        }
    }
}

impl From<CliError> for AgentEnd {
    fn from(error: CliError) -> Self {
        Self::Failed(error)
    }
}

impl RunMaker {
    /// Opens the journal and the queue of a device. Fails if another process uses them. Returns the
    /// key that verifies campaigns as well.
    pub(super) fn open(
        device: &JoinedDevice,
        file: &DeviceFile,
    ) -> Result<(Self, PublicKey), CliError> {
        let key = campaign_key(device, file)?;
        let (url, token) = (device.collector.clone(), Some(device.token.clone()));
        let client = DeviceClient::new(url, token, device.ca.as_deref())?;
        let uploader = Uploader::for_device(device)?;
        let journal = Journal::open(file, unix_us())?;
        let folder = results_folder(file);
        Dir::private(&folder, ReadAccess::OwnerOnly)
            .map_err(|source| CliError::unwritable(&folder, source, None))?;
        let maker = Self {
            client,
            uploader,
            journal,
            limits: device.limits.clone(),
            folder,
            keep: false,
            json: false,
            keeps_interrupted: false,
            selection: None,
        };
        Ok((maker, key))
    }

    /// Fetches the state of the device and the campaigns. Fails if a new consent is needed.
    pub(super) fn fetch(&self) -> Result<(DeviceState, CampaignList), FetchError> {
        let state = self.client.state().map_err(FetchError::Collector)?;
        if state.consent < state.current_consent {
            return Err(FetchError::Consent(outdated_consent(state.current_consent)));
        }
        let list = self.client.campaigns().map_err(FetchError::Collector)?;
        Ok((state, list))
    }

    /// Notes that a planned run gets no result, or uses the complete one of a killed process.
    pub(super) fn conclude_planned(
        &mut self,
        key: &RunKey,
        reason: MissingReason,
        detail: &str,
        ui: &mut Ui,
    ) -> Result<(), CliError> {
        let running = self.journal.state().running();
        if running.is_some_and(|(running, _)| running == key) {
            return self.recover(key, ui);
        }
        self.end(key, missing(reason, detail), 0, "", ui)
    }

    /// Uploads results and reports outcomes. After an interrupt, each is attempted once: what is not
    /// sent now is sent at the next start.
    pub(super) fn send_all(&mut self, ui: &mut Ui) -> Result<(), AgentEnd> {
        if interrupt::is_interrupted() {
            self.uploader.send_last(ui)?;
        } else if let Some(refusal) = self.uploader.send_waiting(ui)? {
            return Err(AgentEnd::Stopped(refusal.into()));
        }
        self.report(ui)
    }

    /// Reports outcomes whose results the collector has.
    fn report(&mut self, ui: &mut Ui) -> Result<(), AgentEnd> {
        let outcomes = self.reportable()?;
        for batch in outcomes.chunks(MAX_OUTCOMES) {
            match self.client.report(batch.to_vec()) {
                Ok(_) => {
                    let runs = batch.iter().map(RunKey::of).collect();
                    self.journal.add([JournalEntry::Reported { runs }])?;
                }
                Err(DeviceError::Unreachable(refusal) | DeviceError::Foreign(refusal)) => {
                    ui.progress(&format!("outcomes are not reported yet: {}", refusal.text));
                    return Ok(());
                }
                Err(error) => return Err(AgentEnd::Stopped(error.into())),
            }
        }
        Ok(())
    }

    /// Returns outcomes that can be reported. A result that the collector refuses is missing.
    fn reportable(&mut self) -> Result<Vec<Outcome>, CliError> {
        let mut outcomes = Vec::new();
        let mut refused = Vec::new();
        for outcome in self.journal.state().pending() {
            let (OutcomeState::Stored { result } | OutcomeState::Invalid { result, .. }) =
                &outcome.state
            else {
                outcomes.push(outcome.clone());
                continue;
            };
            match self.uploader.upload_state(result)? {
                UploadState::Waiting => {}
                UploadState::Sent => outcomes.push(outcome.clone()),
                UploadState::Refused(reason) => {
                    let detail = format!("the collector refuses the result: {reason}");
                    let state = missing(MissingReason::Failed, &detail);
                    refused.push(Outcome { state, ..outcome.clone() });
                }
            }
        }
        let entries = refused.iter().cloned().map(|outcome| JournalEntry::Pending { outcome });
        self.journal.add(entries)?;
        outcomes.extend(refused);
        Ok(outcomes)
    }
}

/// Reason why campaigns were not fetched.
#[derive(Debug)]
pub(super) enum FetchError {
    /// The owner must accept a newer consent text.
    Consent(CliError),
    /// The collector did not give them.
    Collector(DeviceError),
}

impl From<FetchError> for AgentEnd {
    fn from(error: FetchError) -> Self {
        match error {
            FetchError::Consent(error) => Self::Stopped(error),
            FetchError::Collector(error) => Self::Stopped(error.into()),
        }
    }
}

fn outdated_consent(version: u32) -> CliError {
    CliError::Unavailable {
        what: format!(
            "the collector has a newer consent text, version {version}: nothing is measured until \
             you accept it"
        ),
        hint: "read it with `towpath agent consent`, then repeat the command".to_owned(),
    }
}
