//! Records of a run in progress, sent to the collector as they arrive.
//!
//! The collector only shows them; the result itself is uploaded at the end of the run. So failures
//! here are silent, and a run never waits for the network.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use towpath_result::store::write_record;
use towpath_result::upload::{MAX_LIVE_BYTES, live_id};
use towpath_result::{Meta, Record};

use super::client::{Client, PostOutcome};

/// Time between two requests, which collect the records of this time.
const SEND_INTERVAL: Duration = Duration::from_secs(1);
/// Space for records that wait. Beyond it, the oldest are dropped.
const MAX_WAITING_BYTES: usize = MAX_LIVE_BYTES / 2;

/// Sender of a run's records to a collector. Sends the last of them when dropped.
#[derive(Debug)]
pub(crate) struct LiveFeed {
    client: Client,
    host: String,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Address of the run's page, until it is announced.
    page: Option<String>,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

/// Records that wait to be sent.
#[derive(Debug, Default)]
struct Waiting {
    lines: String,
    /// Number of records before these lines.
    first: u64,
    /// Set when the collector has shown the run.
    is_shown: bool,
    /// Set when no more records follow.
    is_ended: bool,
    /// Set when the collector does not want these records.
    is_refused: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // A panic elsewhere leaves complete lines behind.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LiveFeed {
    pub(super) fn new(client: Client, host: String) -> Self {
        Self { client, host, shared: Arc::default(), thread: None, page: None }
    }

    /// Adds a record of the run, the first of which must be its conditions.
    ///
    /// Returns the address of the run's page, once, after the collector has shown it.
    pub(crate) fn push(&mut self, record: &Record) -> Option<String> {
        if let Record::Meta(meta) = record
            && self.thread.is_none()
        {
            self.start(meta);
        }
        let is_shown =
            matches!(record, Record::Interval(_) | Record::Subflow(_) | Record::Event(_));
        let mut line = Vec::new();
        if is_shown && self.thread.is_some() && write_record(&mut line, record).is_ok() {
            self.shared.lock().push(&String::from_utf8_lossy(&line));
        }
        if self.shared.lock().is_shown { self.page.take() } else { None }
    }

    fn start(&mut self, meta: &Meta) {
        let Some(id) = live_id(meta, &self.host) else { return };
        // The page shows no scenario, which may be long.
        let meta = Meta { scenario_toml: String::new(), ..meta.clone() };
        let mut meta_line = Vec::new();
        if write_record(&mut meta_line, &Record::Meta(Box::new(meta))).is_err() {
            return;
        }
        let meta_line = String::from_utf8_lossy(&meta_line).into_owned();
        self.page = Some(self.client.live_page(&id));
        let (client, host) = (self.client.clone(), self.host.clone());
        let shared = Arc::clone(&self.shared);
        let post = move |first: u64, lines: &str| {
            client.post_live((&id, &host), first, &format!("{meta_line}{lines}"))
        };
        let body = move || send(&shared, &post);
        self.thread = thread::Builder::new().name("live-feed".to_owned()).spawn(body).ok();
    }
}

impl Drop for LiveFeed {
    fn drop(&mut self) {
        self.shared.lock().is_ended = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic there does not concern the run
        }
    }
}

impl Waiting {
    fn push(&mut self, line: &str) {
        if self.is_refused {
            return;
        }
        self.lines.push_str(line);
        while self.lines.len() > MAX_WAITING_BYTES
            && let Some(end) = self.lines.find('\n')
        {
            self.lines.drain(..=end);
            self.first += 1;
        }
    }

    /// Removes lines that the collector has. Some of them may have been dropped meanwhile.
    fn remove(&mut self, first: u64, count: u64) {
        while self.first < first + count
            && let Some(end) = self.lines.find('\n')
        {
            self.lines.drain(..=end);
            self.first += 1;
        }
    }
}

/// Sends what waits, once in [`SEND_INTERVAL`], until the run ends or the collector refuses.
fn send(shared: &Shared, post: &dyn Fn(u64, &str) -> PostOutcome) {
    loop {
        let (first, lines, is_ended) = {
            let waiting = shared.lock();
            let waiting = shared
                .changed
                .wait_timeout_while(waiting, SEND_INTERVAL, |waiting| !waiting.is_ended)
                .map_or_else(|error| error.into_inner().0, |(waiting, _)| waiting);
            (waiting.first, waiting.lines.clone(), waiting.is_ended)
        };
        let outcome = post(first, &lines);
        let mut waiting = shared.lock();
        match outcome {
            PostOutcome::Accepted => {
                waiting.is_shown = true;
                waiting.remove(first, lines.lines().count() as u64);
            }
            PostOutcome::Refused => {
                waiting.is_refused = true;
                return;
            }
            PostOutcome::Failed => {}
        }
        if is_ended {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends lines with a collector that answers `outcomes`; returns what it received.
    fn sent(lines: &[&str], outcomes: &[PostOutcome]) -> Vec<(u64, String)> {
        let shared = Arc::new(Shared::default());
        let received = Mutex::new(Vec::new());
        for line in lines {
            shared.lock().push(line);
        }
        let post = |first: u64, text: &str| {
            let mut received = received.lock().unwrap();
            received.push((first, text.to_owned()));
            if received.len() == outcomes.len() {
                shared.lock().is_ended = true;
            } else {
                shared.lock().push(&format!("later {}\n", received.len()));
            }
            outcomes[received.len().min(outcomes.len()) - 1]
        };
        send(&shared, &post);
        received.into_inner().unwrap()
    }

    #[test]
    fn lines_are_sent_until_the_collector_has_them() {
        use PostOutcome::{Accepted, Failed};
        let received = sent(&["a\n", "b\n"], &[Failed, Accepted, Accepted]);
        let texts: Vec<_> = received.iter().map(|(first, text)| (*first, text.as_str())).collect();
        assert_eq!(texts[0], (0, "a\nb\n"));
        assert_eq!(texts[1], (0, "a\nb\nlater 1\n"));
        assert_eq!(texts[2], (3, "later 2\n"));
    }

    #[test]
    fn a_refusal_ends_the_feed() {
        use PostOutcome::{Accepted, Refused};
        assert_eq!(sent(&["a\n"], &[Refused, Accepted]).len(), 1);
    }

    #[test]
    fn without_a_collector_the_newest_lines_are_kept() {
        let mut waiting = Waiting::default();
        let line = "x".repeat(999) + "\n";
        for _ in 0..2_000 {
            waiting.push(&line);
        }
        assert_eq!(waiting.first, 1_500);
        assert_eq!(waiting.lines.len(), MAX_WAITING_BYTES);
        waiting.remove(1_000, 600);
        assert_eq!((waiting.first, waiting.lines.len()), (1_600, 400_000));
    }
}
