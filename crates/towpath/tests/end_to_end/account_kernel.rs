//! The account of capacity over real kernels: each network has one known limit, which the account
//! must name.

use towpath_result::{AccountSummary, Part, PartGroup, Parts, Record};

use crate::program::{TestDir, acquire_emulator, busy};

/// Returns a scenario of two hosts: keys of sender and receiver, then paths and flows.
fn scenario(sender: &str, receiver: &str, paths_and_flows: &str) -> String {
    format!(
        "name = \"one-limit\"\n[hosts.left]\n{sender}\n[hosts.right]\n{receiver}\n{paths_and_flows}"
    )
}

fn path(name: &str, rate: &str, delay: &str, extra_keys: &str) -> String {
    format!(
        "[paths.{name}]\nbetween = [\"left\", \"right\"]\nrate = \"{rate}\"\ndelay = \"{delay}\"\n\
         {extra_keys}\n"
    )
}

fn bulk(duration: &str) -> String {
    format!(
        "[[flows]]\nfrom = \"left\"\nto = \"right\"\npattern = \"bulk\"\nduration = \"{duration}\"\n"
    )
}

const RENO: &str = "[run]\ncongestion-control = \"reno\"\n";

/// Returns a run's account after checking that all records and the summary add up.
///
/// Also returns true if the machine was too busy for the checks; `None` if this machine cannot
/// emulate.
fn account(scenario: &str, transport: &str) -> Option<(AccountSummary, bool)> {
    let _permit = acquire_emulator()?;
    let result = TestDir::new().result(scenario, transport);
    let is_busy = busy(&result).is_some();
    let account = *result.summary.unwrap().account.unwrap();
    let links = account.links.iter().map(|link| &link.parts);
    for parts in links.chain([&account.total]) {
        assert_eq!(parts.sum(), parts.capacity_bytes, "{account:#?}");
        assert!(parts.capacity_bytes > 0, "{account:#?}");
    }
    let mut record_bytes = 0;
    for record in &result.records {
        let Record::Account(record_account) = record else { continue };
        assert_eq!(
            record_account.parts.sum(),
            record_account.parts.capacity_bytes,
            "{record_account:#?}"
        );
        record_bytes += record_account.parts.capacity_bytes;
    }
    assert_eq!(record_bytes, account.total.capacity_bytes, "{account:#?}");
    Some((account, is_busy))
}

fn link<'a>(account: &'a AccountSummary, path: &str) -> &'a Parts {
    &account.links.iter().find(|link| link.path == path).unwrap().parts
}

/// Fails unless `part` is the largest loss of a link. Ignored on a busy machine.
fn assert_largest((account, is_busy): &(AccountSummary, bool), path: &str, part: Part) {
    let largest_part = link(account, path).missing_parts().first().map(|(part, _)| *part);
    assert!(
        *is_busy || largest_part == Some(part),
        "{path}: {largest_part:?}, not {part:?}: {account:#?}"
    );
}

#[test]
fn a_small_receive_buffer_is_named() {
    let rest = path("one", "40 Mbit/s", "25 ms", "") + &bulk("3 s");
    let Some(account) = account(&scenario("", "receive-buffer = \"100 KB\"", &rest), "tcp") else {
        return;
    };
    assert_largest(&account, "one", Part::PeerWindow);
}

#[test]
fn a_small_send_buffer_is_named() {
    let rest = path("one", "40 Mbit/s", "25 ms", "") + &bulk("3 s");
    let Some(account) = account(&scenario("send-buffer = \"60 KB\"", "", &rest), "tcp") else {
        return;
    };
    assert_largest(&account, "one", Part::SendBuffer);
}

#[test]
fn an_application_limited_flow_is_named() {
    let flow =
        "[[flows]]\nfrom = \"left\"\nto = \"right\"\npattern = \"onoff\"\nduration = \"3 s\"\n";
    let paths = path("one", "40 Mbit/s", "10 ms", "") + &path("two", "20 Mbit/s", "10 ms", "");
    for transport in ["tcp", "mptcp"] {
        let Some(account) = account(&scenario("", "", &(paths.clone() + flow)), transport) else {
            return;
        };
        assert_largest(&account, "one", Part::Application);
        assert_largest(&account, "two", Part::Application);
    }
}

#[test]
fn random_loss_and_a_shallow_queue_are_distinguished() {
    for (more, part) in
        [("loss = \"1 %\"", Part::AfterLoss), ("queue = \"5 packets\"", Part::AfterOverflow)]
    {
        let rest = path("one", "40 Mbit/s", "25 ms", more) + &bulk("4 s") + RENO;
        let Some(account) = account(&scenario("", "", &rest), "tcp") else { return };
        assert_largest(&account, "one", part);
    }
}

#[test]
fn a_backup_path_is_named() {
    let paths =
        path("one", "20 Mbit/s", "10 ms", "") + &path("two", "20 Mbit/s", "10 ms", "backup = true");
    let Some(account) = account(&scenario("", "", &(paths + &bulk("3 s"))), "mptcp") else {
        return;
    };
    assert_largest(&account, "two", Part::Backup);
}

#[test]
fn a_single_path_transport_is_named_on_the_unused_paths() {
    let paths = path("one", "20 Mbit/s", "10 ms", "") + &path("two", "20 Mbit/s", "10 ms", "");
    for transport in ["tcp", "quic"] {
        let Some(account) = account(&scenario("", "", &(paths.clone() + &bulk("3 s"))), transport)
        else {
            return;
        };
        assert_largest(&account, "two", Part::SinglePath);
    }
}

#[test]
fn a_path_that_is_down_is_named_and_keeps_its_capacity() {
    let paths = path("one", "20 Mbit/s", "10 ms", "") + &path("two", "20 Mbit/s", "10 ms", "");
    let event = "[[timeline]]\nat = \"1 s\"\npath = \"two\"\nset = \"down\"\n";
    let Some(account) = account(&scenario("", "", &(paths + &bulk("3 s") + event)), "mptcp") else {
        return;
    };
    assert_largest(&account, "two", Part::Down);
    let two = link(&account.0, "two");
    let down = two.of(Part::Down) as f64 / two.capacity_bytes as f64;
    assert!((0.6..0.7).contains(&down), "{account:#?}");
}

#[test]
fn a_window_full_of_data_that_waits_for_a_slow_path_names_it() {
    let paths = path("wifi", "8 Mbit/s", "10 ms", "queue = \"80 ms\"")
        + &path("umts", "2 Mbit/s", "75 ms", "queue = \"2 s\"");
    let rest = paths + &bulk("8 s") + RENO;
    let Some(account) = account(&scenario("", "receive-buffer = \"200 KB\"", &rest), "mptcp")
    else {
        return;
    };
    assert_largest(&account, "wifi", Part::HeadOfLineBlocking);
    assert!(link(&account.0, "wifi").blocked_by.contains_key("umts"), "{account:#?}");
    let names_path = account.0.sentence.contains("waiting for umts");
    assert!(account.1 || names_path, "{}", account.0.sentence);
}

#[test]
fn two_links_without_a_limit_are_full() {
    let paths = path("one", "20 Mbit/s", "5 ms", "") + &path("two", "20 Mbit/s", "5 ms", "");
    let Some((account, is_busy)) = account(&scenario("", "", &(paths + &bulk("4 s"))), "mptcp")
    else {
        return;
    };
    let share = |bytes: u64| bytes as f64 / account.total.capacity_bytes as f64;
    let carried = share(account.total.carried_bytes());
    assert!(is_busy || carried > 0.9, "{account:#?}");
    // A full packet of 1514 bytes has 1428 bytes of payload.
    let payload = share(account.total.of(Part::Delivered)) / carried;
    assert!((0.90..0.95).contains(&payload), "{account:#?}");
    let wasted = share(account.total.of_group(PartGroup::Wasted));
    assert!(is_busy || wasted < 0.02, "{account:#?}");
}
