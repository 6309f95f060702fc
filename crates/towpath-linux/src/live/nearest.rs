//! How far servers are: a few questions to each, all of them at the same time.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use towpath_measure::scenario::Transport;

use super::check::{ProbeOutcome, over_tcp};
use super::pause;
use crate::clock::Clock;

/// Questions that count.
pub const PINGS: usize = 5;
/// Between two of them.
const PING_INTERVAL: Duration = Duration::from_millis(100);
/// Nobody is asked for longer, however slowly he answers.
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// Servers that are asked at the same time.
const MAX_CONCURRENT: usize = 128;

/// A server and how fast it answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PingResult {
    /// The address that answered.
    pub target: Option<SocketAddr>,
    /// Times from a question to its answer, in their order.
    pub answers: Vec<Duration>,
    /// Why there are fewer than asked for.
    pub finding: ProbeOutcome,
}

impl PingResult {
    /// The median, if most questions were answered.
    pub fn median(&self) -> Option<Duration> {
        let mut sorted = self.answers.clone();
        sorted.sort_unstable();
        (sorted.len() * 2 > PINGS).then(|| sorted.get(sorted.len() / 2).copied())?
    }
}

/// Pings servers, each by its first address that answers: a greeting on a new connection of TCP, after
/// one that does not count. In their order.
pub fn ping(servers: &[Vec<SocketAddr>]) -> Vec<PingResult> {
    let clock = Clock::start();
    servers.chunks(MAX_CONCURRENT).flat_map(|some| at_once(some, clock)).collect()
}

fn at_once(servers: &[Vec<SocketAddr>], clock: Clock) -> Vec<PingResult> {
    thread::scope(|scope| {
        let ask = |targets| {
            let asking = thread::Builder::new().spawn_scoped(scope, move || one(targets, clock));
            // Where the system gives no more threads, this one asks.
            asking.map_err(|_| one(targets, clock))
        };
        let asked: Vec<_> = servers.iter().map(|targets| ask(targets)).collect();
        let lost =
            |_| PingResult { target: None, answers: Vec::new(), finding: ProbeOutcome::Silent };
        let answer = |asked: Result<thread::ScopedJoinHandle<'_, _>, _>| {
            asked.map_or_else(|answer| answer, |asked| asked.join().unwrap_or_else(lost))
        };
        asked.into_iter().map(answer).collect()
    })
}

fn one(targets: &[SocketAddr], clock: Clock) -> PingResult {
    let mut pinged =
        PingResult { target: None, answers: Vec::new(), finding: ProbeOutcome::Silent };
    let deadline = clock.now() + PING_TIMEOUT;
    for target in targets {
        if clock.now() >= deadline {
            break;
        }
        let (tried, _) = over_tcp(*target, Transport::Tcp, clock);
        pinged.finding = tried.finding;
        if pinged.finding == ProbeOutcome::Works {
            pinged.target = Some(*target);
            break;
        }
    }
    let Some(target) = pinged.target else { return pinged };
    for _ in 0..PINGS {
        pause(PING_INTERVAL);
        if clock.now() >= deadline {
            break;
        }
        let (tried, _) = over_tcp(target, Transport::Tcp, clock);
        match tried.answer_ns {
            Some(nanos) => pinged.answers.push(Duration::from_nanos(nanos)),
            None => pinged.finding = tried.finding,
        }
    }
    pinged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_needs_most_of_the_answers() {
        let pinged = |millis: &[u64]| PingResult {
            target: None,
            answers: millis.iter().map(|one| Duration::from_millis(*one)).collect(),
            finding: ProbeOutcome::Works,
        };
        assert_eq!(pinged(&[9, 1, 5, 7, 3]).median(), Some(Duration::from_millis(5)));
        assert_eq!(pinged(&[9, 1, 5]).median(), Some(Duration::from_millis(5)));
        assert_eq!(pinged(&[9, 1]).median(), None);
    }
}
