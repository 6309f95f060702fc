//! Sends all results of a queue, one after the other.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

use towpath_result::upload::UploadReply;

use super::client::{PutOutcome, Refusal};
use super::spool::{Queue, QueuedRun};
use crate::error::CliError;

/// Times to wait after a failure. One more failure in sequence ends the call.
const BACKOFF: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(4)];
/// Maximum time that a collector may have its clients wait within one call.
const MAX_WAIT: Duration = Duration::from_mins(1);

/// Connection to a collector, and the time.
pub(super) struct Transfer<'a> {
    /// Sends a run, which has this content hash.
    pub(super) put: &'a mut dyn FnMut(&str, &QueuedRun, &[u8]) -> PutOutcome,
    /// Waits. Returns false after an interrupt, also if the time is zero.
    pub(super) pause: &'a mut dyn FnMut(Duration) -> bool,
}

/// Event that the user may see.
#[derive(Debug)]
pub(super) enum SendEvent<'a> {
    Progress { done: usize, total: usize },
    Stored { run: &'a QueuedRun, reply: &'a UploadReply },
    Refused { run: &'a QueuedRun, refusal: &'a Refusal, path: PathBuf },
    Unreadable { path: PathBuf, source: std::io::Error },
    Waiting { reason: &'a str, wait: Duration },
}

/// Outcome of sending a queue.
#[derive(Debug, Default)]
pub(super) struct SendReport {
    pub(super) stored: usize,
    pub(super) refused: usize,
    /// Number of runs that still wait.
    pub(super) waiting: usize,
    /// Reason why runs still wait.
    pub(super) reason: Option<WaitReason>,
}

/// Reason why runs still wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WaitReason {
    /// The user must change something.
    Blocked(Refusal),
    /// The collector could not be reached, or has no time.
    Failed(String),
    Interrupted,
}

/// Sends all results that wait. A failure of one does not keep the others waiting: the next attempt
/// follows them.
pub(super) fn send_all(
    queue: &Queue,
    transfer: &mut Transfer<'_>,
    on_event: &mut dyn FnMut(SendEvent<'_>) -> Result<(), CliError>,
) -> Result<SendReport, CliError> {
    let unwritable = |source| super::spool_error(queue.path(), source);
    let mut pending = VecDeque::from(queue.waiting().map_err(unwritable)?);
    let total = pending.len();
    let (mut report, mut failures, mut unreadable) = (SendReport::default(), 0, 0);
    while let Some(hash) = pending.pop_front() {
        if !(transfer.pause)(Duration::ZERO) {
            pending.push_front(hash);
            report.reason = Some(WaitReason::Interrupted);
            break;
        }
        on_event(SendEvent::Progress { done: total - pending.len() - 1, total })?;
        let (run, bytes) = match queue.read(&hash) {
            Ok(Some(entry)) => entry,
            // Another process has sent it.
            Ok(None) => continue,
            Err(source) => {
                unreadable += 1;
                on_event(SendEvent::Unreadable { path: queue.path().join(&hash), source })?;
                continue;
            }
        };
        match (transfer.put)(&hash, &run, &bytes) {
            PutOutcome::Stored(reply) => {
                failures = 0;
                report.stored += 1;
                queue.remove(&hash).map_err(unwritable)?;
                on_event(SendEvent::Stored { run: &run, reply: &reply })?;
            }
            PutOutcome::Refused(refusal) => {
                failures = 0;
                report.refused += 1;
                queue.refuse(&hash, &refusal.text).map_err(unwritable)?;
                let path = queue.refused_path();
                on_event(SendEvent::Refused { run: &run, refusal: &refusal, path })?;
            }
            PutOutcome::Blocked(refusal) => {
                pending.push_front(hash);
                report.reason = Some(WaitReason::Blocked(refusal));
                break;
            }
            PutOutcome::Failed { reason, retry_after } => {
                pending.push_back(hash);
                let Some(wait) = backoff(failures, retry_after) else {
                    report.reason = Some(WaitReason::Failed(reason));
                    break;
                };
                failures += 1;
                on_event(SendEvent::Waiting { reason: &reason, wait })?;
                if !(transfer.pause)(wait) {
                    report.reason = Some(WaitReason::Interrupted);
                    break;
                }
            }
        }
    }
    report.waiting = pending.len() + unreadable;
    if report.waiting == 0 {
        on_event(SendEvent::Progress { done: total, total })?;
    }
    Ok(report)
}

/// Returns the time to wait after some failures in sequence and another one; `None` to give up.
fn backoff(earlier_failures: usize, retry_after: Option<Duration>) -> Option<Duration> {
    let wait = *BACKOFF.get(earlier_failures)?;
    Some(retry_after.unwrap_or(wait).max(wait)).filter(|wait| *wait <= MAX_WAIT)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::{fs, thread};

    use super::*;
    use crate::upload::client::{Client, Token};
    use crate::upload::content::inspect;
    use crate::upload::fixtures::{Received, TestFolder, TestServer, queued, response, stored};
    use crate::upload::spool::Spool;
    use crate::upload::url::CollectorUrl;

    /// Queue with the results of some seeds.
    fn queue_of(folder: &TestFolder, url: &str, seeds: &[u64]) -> Queue {
        let queue = Spool::new(folder.path("spool")).queue(url).unwrap();
        for seed in seeds {
            let (run, bytes) = queued(*seed);
            queue.add(&inspect(&bytes).unwrap().hash, &run, &bytes).unwrap();
        }
        queue
    }

    /// Sends a queue. Returns the report and all times that were waited.
    fn send(queue: &Queue) -> (SendReport, Vec<u64>) {
        let client = client(queue.url());
        let mut waits = Vec::new();
        let report = send_all(
            queue,
            &mut Transfer {
                put: &mut |hash, run, bytes| client.put(hash, run, bytes),
                pause: &mut |wait| {
                    waits.extend((!wait.is_zero()).then_some(wait.as_secs()));
                    true
                },
            },
            &mut |_| Ok(()),
        );
        (report.unwrap(), waits)
    }

    fn client(url: &str) -> Client {
        let url = CollectorUrl::parse(url).unwrap();
        Client::new(url, Token::parse("towpath_secret").unwrap(), None)
    }

    fn start(
        name: &str,
        seeds: &[u64],
        reply: impl Fn(usize, &Received) -> Vec<u8> + Send + Sync + 'static,
    ) -> (TestFolder, TestServer, Queue) {
        let (folder, server) = (TestFolder::new(name), TestServer::start(reply));
        let queue = queue_of(&folder, &server.url, seeds);
        (folder, server, queue)
    }

    #[test]
    fn all_results_are_sent_and_leave_the_queue() {
        let (_folder, server, queue) =
            start("send-all", &[1, 2, 3], |number, request| stored(request, number != 1));
        let (report, waits) = send(&queue);
        assert_eq!((report.stored, report.refused, report.waiting), (3, 0, 0));
        assert!(waits.is_empty() && report.reason.is_none());
        assert!(queue.waiting().unwrap().is_empty());
        let requests = server.requests();
        let starts: Vec<_> =
            requests.iter().map(|request| request.header("towpath-time")).collect();
        let expected = [1, 2, 3].map(|seed| queued(seed).0.time_us.unwrap().to_string());
        assert_eq!(starts, expected.each_ref().map(|start| Some(start.as_str())));
        assert_eq!(send(&queue).0.stored, 0);
    }

    #[test]
    fn a_busy_collector_gets_the_results_later() {
        let (_folder, server, queue) =
            start("send-busy", &[1, 2], |number, request| match number {
                0 | 1 => response("503 Busy", "", "{\"error\":\"busy\"}"),
                2 => response("429 Slow", "retry-after: 9\r\n", ""),
                _ => stored(request, true),
            });
        // The third failure in sequence ends a call.
        let (report, waits) = send(&queue);
        assert_eq!((report.waiting, waits), (2, vec![1, 4]));
        assert!(matches!(report.reason, Some(WaitReason::Failed(_))));
        let (report, waits) = send(&queue);
        assert_eq!((report.stored, report.waiting, waits.len()), (2, 0, 0));
        assert_eq!(server.requests().len(), 5);
    }

    #[test]
    fn the_collector_says_how_long_to_wait() {
        let (_folder, _server, queue) = start("send-wait", &[1], |number, request| match number {
            0 => response("429 Slow", "retry-after: 9\r\n", ""),
            1 => response("503 Busy", "retry-after: Fri, 31 Dec 1999 23:59:59 GMT\r\n", ""),
            _ => stored(request, true),
        });
        assert_eq!(send(&queue).1, [9, 4]);
        let (_folder, server, queue) =
            start("send-long", &[1], |_, _| response("503 Busy", "retry-after: 3600\r\n", ""));
        let (report, waits) = send(&queue);
        assert_eq!((report.waiting, waits.len(), server.requests().len()), (1, 0, 1));
    }

    #[test]
    fn one_result_that_always_fails_does_not_keep_others_waiting() {
        let (_folder, server, queue) =
            start("send-one", &[1, 2, 3], |_, request| match request.header("towpath-time") {
                Some("1700000000000001") => response("500 Broken", "", ""),
                _ => stored(request, true),
            });
        let (report, waits) = send(&queue);
        assert_eq!((report.stored, report.waiting), (2, 1));
        // It is tried before the others, and twice after them.
        assert_eq!((waits, server.requests().len()), (vec![1, 1, 4], 6));
    }

    #[test]
    fn a_refused_result_is_kept_with_the_reason() {
        let (_folder, _server, queue) =
            start("send-refused", &[1, 2], |number, request| match number {
                0 => response("422 Wrong", "", "{\"error\":\"no\\u001b[2J result\"}"),
                _ => stored(request, true),
            });
        let refused_hash = queue.waiting().unwrap().remove(0);
        let (report, _) = send(&queue);
        assert_eq!((report.stored, report.refused, report.waiting), (1, 1, 0));
        let path = queue.refused_path().join(&refused_hash);
        let reason = fs::read_to_string(path.with_extension("txt")).unwrap();
        assert_eq!(reason, "no\u{fffd}[2J result\n");
        assert_eq!(fs::read(path.with_extension("jsonl.zst")).unwrap(), queued(1).1);
        assert!(path.with_extension("json").exists());
    }

    #[test]
    fn a_wrong_token_keeps_everything() {
        let (_folder, server, queue) = start("send-token", &[1, 2], |_, _| {
            response("401 No", "", "{\"error\":\"revoked\",\"hint\":\"ask\"}")
        });
        let (report, _) = send(&queue);
        assert_eq!((report.waiting, server.requests().len()), (2, 1));
        let Some(WaitReason::Blocked(refusal)) = report.reason else { panic!() };
        assert!(refusal.text.ends_with("does not accept the token: revoked"), "{}", refusal.text);
        assert_eq!(refusal.hint.as_deref(), Some("ask"));
        assert_eq!(queue.waiting().unwrap().len(), 2);
    }

    #[test]
    fn a_missing_network_keeps_everything() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let folder = TestFolder::new("send-offline");
        let queue = queue_of(&folder, &url, &[1, 2]);
        let (report, waits) = send(&queue);
        assert_eq!((report.waiting, waits), (2, vec![1, 4]));
        assert_eq!(queue.waiting().unwrap().len(), 2);
    }

    #[test]
    fn a_server_that_stops_after_it_stored_a_run_gets_it_twice() {
        let (_folder, server, queue) = start("send-twice", &[1], |number, request| {
            let reply = stored(request, number == 0);
            if number == 0 { Vec::new() } else { reply }
        });
        assert_eq!(send(&queue).0.stored, 1);
        let requests = server.requests();
        assert!(requests.len() >= 2);
        assert_eq!(requests.first().unwrap().hash(), requests.last().unwrap().hash());
    }

    #[test]
    fn two_processes_may_send_at_once() {
        let seeds: Vec<u64> = (1..=12).collect();
        let (_folder, server, queue) =
            start("send-two", &seeds, |_, request| stored(request, true));
        let barrier = Barrier::new(2);
        let reports = thread::scope(|scope| {
            [(); 2]
                .map(|()| {
                    scope.spawn(|| {
                        barrier.wait();
                        send(&queue).0
                    })
                })
                .map(|thread| thread.join().unwrap())
        });
        assert!(reports.iter().all(|report| report.waiting == 0 && report.refused == 0));
        assert!(queue.waiting().unwrap().is_empty());
        let mut hashes: Vec<_> = server.requests().iter().map(Received::hash).collect();
        assert!(reports.iter().map(|report| report.stored).sum::<usize>() == hashes.len());
        hashes.sort();
        hashes.dedup();
        assert_eq!(hashes.len(), seeds.len());
    }

    #[test]
    fn an_interrupt_keeps_the_rest() {
        let (_folder, server, queue) =
            start("send-interrupt", &[1, 2], |_, request| stored(request, true));
        let client = client(queue.url());
        let mut rounds = 0;
        let report = send_all(
            &queue,
            &mut Transfer {
                put: &mut |hash, run, bytes| client.put(hash, run, bytes),
                pause: &mut |_| {
                    rounds += 1;
                    rounds < 2
                },
            },
            &mut |_| Ok(()),
        );
        let report = report.unwrap();
        assert_eq!((report.stored, report.waiting), (1, 1));
        assert_eq!(report.reason, Some(WaitReason::Interrupted));
        assert_eq!(server.requests().len(), 1);
    }
}
