//! Round-trip times to several servers, measured concurrently.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use towpath_os::clock::Clock;
use towpath_scenario::Transport;

use super::check::{ProbeOutcome, probe_tcp};
use super::pause;

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
    servers.chunks(MAX_CONCURRENT).flat_map(|chunk| ping_concurrently(chunk, clock)).collect()
}

fn ping_concurrently(servers: &[Vec<SocketAddr>], clock: Clock) -> Vec<PingResult> {
    thread::scope(|scope| {
        let spawn_ping = |targets| {
            let spawned =
                thread::Builder::new().spawn_scoped(scope, move || ping_server(targets, clock));
            // Without a further thread, the calling thread does the work.
            spawned.map_err(|_| ping_server(targets, clock))
        };
        let pings: Vec<_> = servers.iter().map(|targets| spawn_ping(targets)).collect();
        let silent_result =
            |_| PingResult { target: None, answers: Vec::new(), finding: ProbeOutcome::Silent };
        let join = |ping: Result<thread::ScopedJoinHandle<'_, _>, _>| {
            ping.map_or_else(|result| result, |thread| thread.join().unwrap_or_else(silent_result))
        };
        pings.into_iter().map(join).collect()
    })
}

fn ping_server(targets: &[SocketAddr], clock: Clock) -> PingResult {
    let mut result =
        PingResult { target: None, answers: Vec::new(), finding: ProbeOutcome::Silent };
    let deadline = clock.now() + PING_TIMEOUT;
    for target in targets {
        if clock.now() >= deadline {
            break;
        }
        let (probe, _) = probe_tcp(*target, Transport::Tcp, clock);
        result.finding = probe.finding;
        if result.finding == ProbeOutcome::Works {
            result.target = Some(*target);
            break;
        }
    }
    let Some(target) = result.target else { return result };
    for _ in 0..PINGS {
        pause(PING_INTERVAL);
        if clock.now() >= deadline {
            break;
        }
        let (probe, _) = probe_tcp(target, Transport::Tcp, clock);
        match probe.answer_ns {
            Some(nanos) => result.answers.push(Duration::from_nanos(nanos)),
            None => result.finding = probe.finding,
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_needs_most_of_the_answers() {
        let result = |millis: &[u64]| PingResult {
            target: None,
            answers: millis.iter().map(|ms| Duration::from_millis(*ms)).collect(),
            finding: ProbeOutcome::Works,
        };
        assert_eq!(result(&[9, 1, 5, 7, 3]).median(), Some(Duration::from_millis(5)));
        assert_eq!(result(&[9, 1, 5]).median(), Some(Duration::from_millis(5)));
        assert_eq!(result(&[9, 1]).median(), None);
    }
}
