//! Round-trip times to several servers, measured concurrently.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use towpath_measure::scenario::Transport;

use super::check::{ProbeOutcome, over_tcp};
use super::pause;
use crate::clock::Clock;

/// Round trips measured for each server, after a first connection that does not count.
pub const PINGS: usize = 5;
/// Pause before each round trip.
const PING_INTERVAL: Duration = Duration::from_millis(100);
/// Time limit for one server.
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// Maximum number of servers that are measured concurrently.
const MAX_CONCURRENT: usize = 128;

/// Round-trip times to one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PingResult {
    /// First address that replied; `None` without a reply.
    pub target: Option<SocketAddr>,
    /// Round-trip times in order of measurement.
    pub answers: Vec<Duration>,
    /// Outcome of the last probe that failed; `Works` if all succeeded.
    pub finding: ProbeOutcome,
}

impl PingResult {
    /// Returns the median round-trip time; `None` unless most requests were answered.
    pub fn median(&self) -> Option<Duration> {
        let mut sorted = self.answers.clone();
        sorted.sort_unstable();
        (sorted.len() * 2 > PINGS).then(|| sorted.get(sorted.len() / 2).copied())?
    }
}

/// Measures the round-trip time to each server at its first address that replies. Each sample is a
/// hello exchange on a new TCP connection. Returns results in the order of `servers`.
pub fn ping(servers: &[Vec<SocketAddr>]) -> Vec<PingResult> {
    let clock = Clock::start();
    servers.chunks(MAX_CONCURRENT).flat_map(|some| at_once(some, clock)).collect()
}

fn at_once(servers: &[Vec<SocketAddr>], clock: Clock) -> Vec<PingResult> {
    thread::scope(|scope| {
        let ask = |targets| {
            let asking = thread::Builder::new().spawn_scoped(scope, move || one(targets, clock));
            // Without a further thread, the calling thread does the work.
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
