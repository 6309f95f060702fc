//! `towpath agent run`: makes the runs of campaigns, and reports their outcomes.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use towpath_campaign::{CampaignList, PublicKey};
use towpath_live as live;
use towpath_net::Instant;
use towpath_os::clock::unix_us;
use towpath_os::{Clock, interrupt};
use towpath_result::Warning;
use towpath_result::format;

use super::offers::verify;
use super::reporting::{AgentEnd, FetchError};
use super::round::RunMaker;
use super::schedule::{KnownCampaign, NextStep, Participant, next_step};
use crate::error::CliError;
use crate::ui::Ui;
use crate::upload::{DeviceError, DeviceFile};

/// Bounds of the time between two requests for campaigns.
const MIN_POLL: Duration = Duration::from_secs(1);
const MAX_POLL: Duration = Duration::from_hours(1);
/// Time after the first failed request.
const FIRST_BACKOFF: Duration = Duration::from_secs(10);
/// Age from which campaigns are too old for a run: they may be paused or ended.
const MAX_OFFER_AGE: Duration = Duration::from_hours(1);
/// Longest sleep. The system's clock may be set meanwhile.
const MAX_SLEEP: Duration = Duration::from_secs(30);

/// Make the runs that the collector's campaigns plan for this device
///
/// Runs until it is stopped, such as by Ctrl-C. A campaign is used only if it has the signature of
/// the collector that the device has joined, and runs stay within the owner's limits (see `towpath
/// agent limits`). Each planned run is uploaded, or reported with the reason why it was not made.
/// Exit code 1 if the collector does not know the device any more, or needs a new consent.
#[derive(Debug, Args)]
pub(super) struct AgentRunArguments {
    /// Make what is due now, report it and exit
    #[arg(long)]
    once: bool,
    /// Also keep results in a folder next to the state of the device
    #[arg(long)]
    keep: bool,
    /// Print JSON, one line for each outcome
    #[arg(short = 'J', long)]
    json: bool,
}

pub(super) fn run(
    arguments: &AgentRunArguments,
    file: &DeviceFile,
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    let device = file.load_joined()?;
    let (maker, key) = RunMaker::open(&device, file)?;
    interrupt::catch();
    let clock = Clock::start();
    let mut agent = DeviceAgent {
        file,
        key,
        maker: RunMaker { keep: arguments.keep, json: arguments.json, ..maker },
        clock,
        poll: PollTimer::new(clock.now()),
        sending: PollTimer::new(clock.now()),
        campaigns: Vec::new(),
        participant: Participant { name: device.name, joined_us: 0 },
        warned: BTreeSet::new(),
    };
    match agent.run(arguments.once, ui) {
        Ok(()) if interrupt::is_interrupted() => Ok(ExitCode::from(130)),
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(end) => end.conclude(ui),
    }
}

/// Times of requests to the collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PollTimer {
    next: Instant,
    /// Failures in sequence.
    failures: u32,
    /// Time of the last reply.
    replied: Option<Instant>,
}

impl PollTimer {
    const fn new(now: Instant) -> Self {
        Self { next: now, failures: 0, replied: None }
    }

    /// Notes a reply that asks for the next request after `poll_s` seconds.
    fn on_reply(&mut self, now: Instant, poll_s: u32) {
        let interval = Duration::from_secs(poll_s.into()).clamp(MIN_POLL, MAX_POLL);
        *self = Self { next: now + interval, failures: 0, replied: Some(now) };
    }

    /// Notes a failure. The next request is later after each one, up to [`MAX_POLL`]; `random`
    /// spreads the requests of many devices over half of the time.
    fn on_failure(&mut self, now: Instant, random: u64) -> Duration {
        let longest = FIRST_BACKOFF.saturating_mul(1 << self.failures.min(16)).min(MAX_POLL);
        let half_ns = (longest / 2).as_nanos() as u64;
        let wait = Duration::from_nanos(half_ns + random % (half_ns + 1));
        self.failures = self.failures.saturating_add(1);
        self.next = now + wait;
        wait
    }

    /// Returns true if campaigns are known that are not too old for a run.
    fn is_fresh(&self, now: Instant) -> bool {
        self.replied.is_some_and(|replied| now.saturating_since(replied) <= MAX_OFFER_AGE)
    }
}

/// Agent of a device.
#[derive(Debug)]
struct DeviceAgent<'a> {
    file: &'a DeviceFile,
    key: PublicKey,
    maker: RunMaker,
    clock: Clock,
    poll: PollTimer,
    /// Times of uploads and reports.
    sending: PollTimer,
    campaigns: Vec<KnownCampaign>,
    participant: Participant,
    /// Warnings that were printed.
    warned: BTreeSet<String>,
}

impl DeviceAgent<'_> {
    fn run(&mut self, once: bool, ui: &mut Ui) -> Result<(), AgentEnd> {
        let ended = self.run_until_interrupt(once, ui);
        if interrupt::is_interrupted() {
            self.maker.send_all(ui)?;
        }
        ended
    }

    fn run_until_interrupt(&mut self, once: bool, ui: &mut Ui) -> Result<(), AgentEnd> {
        while !interrupt::is_interrupted() {
            if self.clock.now() >= self.poll.next {
                self.poll(once, ui)?;
                // Also between the runs of a long round: a device that is lost has sent most results.
                self.send(ui)?;
            }
            if !self.poll.is_fresh(self.clock.now()) {
                self.sleep(None);
                continue;
            }
            let state = self.maker.journal.state();
            match next_step(state, &self.campaigns, &self.participant, unix_us()) {
                NextStep::Note(entry) => self.maker.journal.add([entry])?,
                NextStep::Conclude { key, reason, detail } => {
                    self.maker.conclude_planned(&key, reason, detail, ui)?;
                }
                NextStep::Measure { campaign, round, until_us, runs } => {
                    self.maker.limits = self.file.load_joined()?.limits;
                    if let Some(known) = self.campaigns.get(campaign) {
                        self.maker.measure(known, (round, until_us), &runs, ui)?;
                    }
                }
                NextStep::Wait(until_us) => {
                    self.send(ui)?;
                    if once {
                        return Ok(());
                    }
                    self.sleep(until_us);
                }
            }
        }
        Ok(())
    }

    /// Sleeps until the next request or the next round, in microseconds since 1970.
    fn sleep(&self, until_us: Option<u64>) {
        let until_poll = self.poll.next.saturating_since(self.clock.now());
        let until_round = until_us.map(|until_us| until_us.saturating_sub(unix_us()));
        let until_round = until_round.map_or(MAX_SLEEP, Duration::from_micros);
        live::pause(until_poll.min(until_round).min(MAX_SLEEP));
    }

    /// Fetches and verifies the campaigns. Only an error that needs the owner ends the agent.
    fn poll(&mut self, once: bool, ui: &mut Ui) -> Result<(), AgentEnd> {
        match self.maker.fetch() {
            Ok((state, list)) => {
                self.participant.joined_us = u64::try_from(state.joined_us).unwrap_or_default();
                self.poll.on_reply(self.clock.now(), list.poll_s);
                self.accept(&list, ui);
                Ok(())
            }
            Err(FetchError::Collector(
                DeviceError::Unreachable(refusal) | DeviceError::Foreign(refusal),
            )) if !once => {
                let wait = self.poll.on_failure(self.clock.now(), random());
                let text = format!("{}; next attempt in {} s", refusal.text, wait.as_secs());
                ui.progress(&text);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn accept(&mut self, list: &CampaignList, ui: &mut Ui) {
        let (known, refused) = verify(&list.campaigns, &self.key);
        for offer in refused {
            let text = format!("campaign {} is refused: {}", offer.number, offer.reason);
            if self.warned.insert(text.clone()) {
                let hint = Some("ask the operator of the collector".to_owned());
                ui.warn(&Warning { text, hint });
            }
        }
        if known != self.campaigns {
            let names: Vec<_> = known.iter().map(|known| known.campaign.name.as_str()).collect();
            let count = format::count(known.len() as u64, "campaign");
            ui.progress(&format!("{count}: {}", names.join(", ")));
            self.campaigns = known;
        }
    }

    /// Uploads results, then reports outcomes. What the collector does not take now waits longer
    /// after each attempt.
    fn send(&mut self, ui: &mut Ui) -> Result<(), AgentEnd> {
        let is_all_sent = |agent: &Self| agent.maker.journal.state().pending().next().is_none();
        let waits = interrupt::is_interrupted() || self.clock.now() < self.sending.next;
        if is_all_sent(self) || waits {
            return Ok(());
        }
        self.maker.send_all(ui)?;
        self.maker.journal.compact(self.file, unix_us())?;
        let now = self.clock.now();
        if is_all_sent(self) {
            self.sending = PollTimer::new(now);
        } else {
            self.sending.on_failure(now, random());
        }
        Ok(())
    }
}

/// Returns a random number; 0 if the system has none.
fn random() -> u64 {
    let mut bytes = [0; 8];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_or(0, |()| u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_reply_resets_the_wait_and_its_interval_has_bounds() {
        let start = Instant::ZERO;
        let mut timer = PollTimer::new(start);
        assert!(!timer.is_fresh(start));
        timer.on_failure(start, 7);
        for (poll_s, expected) in [(0, 1), (60, 60), (1_000_000, 3_600)] {
            timer.on_reply(start, poll_s);
            assert_eq!(timer.next.saturating_since(start), Duration::from_secs(expected));
        }
        assert!(timer.is_fresh(start + MAX_OFFER_AGE));
        assert!(!timer.is_fresh(start + MAX_OFFER_AGE + Duration::from_nanos(1)));
    }

    proptest! {
        #[test]
        fn waits_double_up_to_an_hour_and_differ_between_devices(randoms: [u64; 24]) {
            let (now, mut timer) = (Instant::ZERO, PollTimer::new(Instant::ZERO));
            let mut longest = FIRST_BACKOFF;
            for random in randoms {
                let wait = timer.on_failure(now, random);
                prop_assert!((longest / 2..=longest).contains(&wait), "{wait:?} {longest:?}");
                prop_assert_eq!(timer.next, now + wait);
                longest = (longest * 2).min(MAX_POLL);
            }
        }
    }
}
