use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use towpath_os::clock::unix_us;

use super::*;
use crate::upload::client::{PutOutcome, Refusal};
use crate::upload::fixtures::{TestFolder, copy_folder, queued};
use crate::upload::send::{Transfer, send_all};
use towpath_result::upload::UploadReply;

/// Function that is called before each change of a file.
#[derive(Default)]
pub(crate) struct ChangeHook(Option<Box<dyn Fn() + Send + Sync>>);

impl ChangeHook {
    pub(super) fn call(&self) {
        if let Some(hook) = &self.0 {
            hook();
        }
    }
}

impl fmt::Debug for ChangeHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChangeHook")
    }
}

const URL: &str = "http://127.0.0.1:7080";

fn open(root: &Path) -> Queue {
    Spool::new(root.to_owned()).queue(URL).unwrap()
}

fn add(queue: &Queue, seed: u64) -> String {
    let (run, bytes) = queued(seed);
    let hash = inspect(&bytes).unwrap().hash;
    queue.add(&hash, &run, &bytes).unwrap();
    hash
}

/// Does `work` and copies the folder before each change and after the last one.
///
/// Each copy is what a process leaves that is killed at that point.
fn crashes(root: &Path, folder: &TestFolder, work: impl Fn(&Queue)) -> Vec<PathBuf> {
    let copies = Arc::new(Mutex::new(Vec::new()));
    let copy = {
        let (root, copies) = (root.to_owned(), Arc::clone(&copies));
        let target = folder.path("crash");
        move || {
            let mut copies = copies.lock().unwrap();
            let target = target.with_extension(copies.len().to_string());
            copy_folder(&root, &target);
            copies.push(target);
        }
    };
    let mut queue = open(root);
    queue.on_change = ChangeHook(Some(Box::new(copy.clone())));
    work(&queue);
    copy();
    let copies = copies.lock().unwrap().clone();
    assert!(copies.len() > 2);
    copies
}

fn in_two_days() -> u64 {
    unix_us() + 2 * MAX_LEFTOVER_AGE.as_micros() as u64
}

fn confirm(hash: &str) -> PutOutcome {
    PutOutcome::Stored(UploadReply { id: hash.to_owned(), url: String::new(), created: true })
}

fn refuse() -> PutOutcome {
    PutOutcome::Refused(Refusal { text: "no".to_owned(), hint: None })
}

/// Sends the queue; `reply` is the collector.
fn send(queue: &Queue, reply: &mut dyn FnMut(&str, &QueuedRun, &[u8]) -> PutOutcome) {
    let mut transfer = Transfer { put: reply, pause: &mut |_| true };
    send_all(queue, &mut transfer, &mut |_| Ok(())).unwrap();
}

#[test]
fn a_queued_result_reads_back_in_order_and_is_removed() {
    let folder = TestFolder::new("spool");
    let queue = open(&folder.path("spool"));
    let hashes = [3, 1, 2].map(|seed| (queued(seed).0.queued_us, add(&queue, seed)));
    let mut in_order = hashes.clone();
    in_order.sort();
    assert_eq!(queue.waiting().unwrap(), in_order.map(|(_, hash)| hash));
    let (_, hash) = &hashes[0];
    assert_eq!(queue.read(hash).unwrap().unwrap(), queued(3));
    assert_eq!(queue.describe(hash).unwrap().unwrap(), queued(3).0);
    queue.remove(hash).unwrap();
    assert_eq!(queue.read(hash).unwrap(), None);
    assert_eq!(queue.waiting().unwrap().len(), 2);
}

#[test]
fn each_collector_has_its_own_queue() {
    let folder = TestFolder::new("spool-queues");
    let spool = Spool::new(folder.path("spool"));
    assert!(spool.queues().unwrap().is_empty());
    add(&spool.queue("https://b.example").unwrap(), 1);
    let queue = spool.queue("https://a.example").unwrap();
    assert!(queue.waiting().unwrap().is_empty());
    let urls: Vec<_> = spool.queues().unwrap().iter().map(|queue| queue.url.clone()).collect();
    assert_eq!(urls, ["https://a.example", "https://b.example"]);
}

#[test]
#[cfg(target_os = "linux")]
fn other_users_cannot_read_what_waits() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = TestFolder::new("spool-private");
    let queue = open(&folder.path("spool"));
    let hash = add(&queue, 1);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o077;
    assert_eq!(mode(queue.path()), 0);
    assert_eq!(mode(&queue.path().join(format!("{hash}.{DATA}"))), 0);
}

#[test]
fn a_process_that_is_killed_while_it_queues_does_no_harm() {
    let folder = TestFolder::new("spool-add");
    let root = folder.path("spool");
    add(&open(&root), 1);
    let copies = crashes(&root, &folder, |queue| drop(add(queue, 2)));
    for (number, copy) in copies.iter().enumerate() {
        let queue = open(copy);
        let is_complete = number + 1 == copies.len();
        assert_eq!(queue.waiting().unwrap().len(), 1 + usize::from(is_complete), "{number}");
        for hash in queue.waiting().unwrap() {
            let (run, bytes) = queue.read(&hash).unwrap().unwrap();
            assert_eq!(inspect(&bytes).unwrap().hash, hash);
            assert!(run == queued(1).0 || run == queued(2).0, "{number}");
        }
        // Another attempt completes it, and nothing else stays for more than a day.
        add(&queue, 2);
        queue.remove_leftovers(in_two_days()).unwrap();
        let names = entries(queue.path()).unwrap();
        assert_eq!(names.len(), 5, "{number}: {names:?}");
    }
}

#[test]
fn leftovers_stay_for_a_day() {
    let folder = TestFolder::new("spool-leftovers");
    let queue = open(&folder.path("spool"));
    let hash = add(&queue, 1);
    fs::remove_file(queue.path().join(format!("{hash}.{DATA}"))).unwrap();
    fs::write(queue.path().join(format!(".{hash}.json.1-0.part")), "{").unwrap();
    queue.remove_leftovers(unix_us()).unwrap();
    assert_eq!(entries(queue.path()).unwrap().len(), 3);
    queue.remove_leftovers(in_two_days()).unwrap();
    assert_eq!(entries(queue.path()).unwrap(), [queue.path().join(URL_FILE)]);
}

#[test]
fn a_process_that_is_killed_after_the_confirmation_loses_nothing() {
    let folder = TestFolder::new("spool-remove");
    let root = folder.path("spool");
    let (first, second) = (add(&open(&root), 1), add(&open(&root), 2));
    for copy in crashes(&root, &folder, |queue| queue.remove(&first).unwrap()) {
        let queue = open(&copy);
        let mut received = BTreeSet::from([first.clone()]);
        send(&queue, &mut |hash, _, _| {
            received.insert(hash.to_owned());
            confirm(hash)
        });
        assert_eq!(received, BTreeSet::from([first.clone(), second.clone()]));
        assert!(queue.waiting().unwrap().is_empty());
    }
}

#[test]
fn a_process_that_is_killed_after_a_refusal_loses_nothing() {
    let folder = TestFolder::new("spool-refuse");
    let root = folder.path("spool");
    let hash = add(&open(&root), 1);
    for copy in crashes(&root, &folder, |queue| queue.refuse(&hash, "no").unwrap()) {
        let queue = open(&copy);
        send(&queue, &mut |_, _, _| refuse());
        assert!(queue.waiting().unwrap().is_empty());
        let refused = queue.refused_path();
        assert_eq!(fs::read_to_string(refused.join(format!("{hash}.txt"))).unwrap(), "no\n");
        let bytes = fs::read(refused.join(format!("{hash}.{DATA}"))).unwrap();
        assert_eq!(bytes, queued(1).1);
    }
}

#[test]
fn a_result_without_description_is_sent_with_defaults() {
    let folder = TestFolder::new("spool-default");
    let queue = open(&folder.path("spool"));
    let hash = add(&queue, 1);
    let description = queue.path().join(format!("{hash}.json"));
    for content in [None, Some("{"), Some("{}")] {
        let _ = fs::remove_file(&description); // missing in the second round
        if let Some(content) = content {
            fs::write(&description, content).unwrap();
        }
        let (run, bytes) = queue.read(&hash).unwrap().unwrap();
        let (expected_run, expected_bytes) = queued(1);
        assert_eq!(bytes, expected_bytes);
        assert_eq!(run.expanded_bytes, expected_run.expanded_bytes);
        assert!(run.url == URL && run.time_us.is_some());
        assert_eq!(queue.waiting().unwrap(), [hash.as_str()]);
    }
}

#[test]
fn names_of_hosts_and_files_are_cleaned() {
    assert_eq!(clean_host(" lab\u{1b}[2J\n"), "lab\u{fffd}[2J");
    assert_eq!(clean_host(&"ä".repeat(200)).len(), MAX_HOST_BYTES - 1);
    assert_eq!(file_text(Path::new("/a/b/tcp-1.jsonl")), "tcp-1.jsonl");
}

/// Step of a random sequence.
#[derive(Debug, Clone)]
enum Step {
    Add(u64),
    /// Sends with these outcomes; 0: stored, 1: refused, 2: failed, 3: blocked.
    Send(Vec<u8>),
    RemoveLeftovers,
}

fn steps() -> impl Strategy<Value = Vec<(Step, Option<usize>)>> {
    let step = prop_oneof![
        3 => (1_u64..6).prop_map(Step::Add),
        3 => prop::collection::vec(0_u8..4, 1..6).prop_map(Step::Send),
        1 => Just(Step::RemoveLeftovers),
    ];
    // Of half of the steps, only some changes of files happen.
    let crash = prop::option::of(0_usize..12);
    prop::collection::vec((step, crash), 1..15)
}

/// Does a step. Returns the content hash of a result that it has queued.
fn apply(queue: &Queue, step: &Step, received: &Mutex<BTreeSet<String>>) -> Option<String> {
    match step {
        Step::Add(seed) => return Some(add(queue, *seed)),
        Step::RemoveLeftovers => {
            queue.remove_leftovers(in_two_days()).unwrap();
        }
        Step::Send(outcomes) => {
            let mut outcomes = outcomes.iter().cycle();
            let mut attempts = 0;
            send(queue, &mut |hash, _, bytes| {
                attempts += 1;
                assert_eq!(inspect(bytes).unwrap().hash, hash);
                match outcomes.next() {
                    _ if attempts > 50 => {
                        PutOutcome::Blocked(Refusal { text: String::new(), hint: None })
                    }
                    Some(0) => {
                        received.lock().unwrap().insert(hash.to_owned());
                        confirm(hash)
                    }
                    Some(1) => refuse(),
                    Some(2) => PutOutcome::Failed { reason: "busy".to_owned(), retry_after: None },
                    _ => PutOutcome::Blocked(Refusal { text: "token".to_owned(), hint: None }),
                }
            });
        }
    }
    None
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn no_sequence_of_crashes_loses_a_queued_result(steps in steps()) {
        let folder = TestFolder::new("spool-random");
        let mut root = folder.path("spool");
        let (mut enqueued, received) = (BTreeSet::new(), Arc::new(Mutex::new(BTreeSet::new())));
        for (number, (step, crash)) in steps.iter().enumerate() {
            let copies = Arc::new(Mutex::new(Vec::new()));
            let mut queue = open(&root);
            if crash.is_some() {
                let (root, copies) = (root.clone(), Arc::clone(&copies));
                let received = Arc::clone(&received);
                let target = folder.path(&format!("crash-{number}"));
                queue.on_change = ChangeHook(Some(Box::new(move || {
                    let mut copies = copies.lock().unwrap();
                    let target = target.with_extension(copies.len().to_string());
                    copy_folder(&root, &target);
                    copies.push((target, received.lock().unwrap().clone()));
                })));
            }
            let added = apply(&queue, step, &received);
            match crash.and_then(|crash| copies.lock().unwrap().get(crash).cloned()) {
                // The process was killed before it returned.
                Some((copy, received_before)) => {
                    root = copy;
                    *received.lock().unwrap() = received_before;
                }
                None => enqueued.extend(added),
            }
            let queue = open(&root);
            let waiting: BTreeSet<_> = queue.waiting().unwrap().into_iter().collect();
            let refused = entries(&queue.refused_path()).unwrap();
            let refused: BTreeSet<_> =
                refused.iter().filter_map(|path| hash_of(path, DATA)).collect();
            let received = received.lock().unwrap();
            for hash in &enqueued {
                prop_assert!(
                    received.contains(hash) || waiting.contains(hash) || refused.contains(hash),
                    "{hash} is lost after step {number}"
                );
            }
        }
        // A collector that works receives all that waits.
        let queue = open(&root);
        send(&queue, &mut |hash, _, _| confirm(hash));
        prop_assert!(queue.waiting().unwrap().is_empty());
    }
}
