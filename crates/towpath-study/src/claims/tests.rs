use proptest::prelude::*;
use towpath_scenario::Transport;

use super::*;
use crate::plan::Plan;
use crate::row::{Parameter, RunRow};

const PLAN: &str = r#"
name = "buffers"
scenario = "builtin:wifi-3g"
[[variants]]
name = "TCP over WiFi"
transport = "tcp"
[[variants]]
name = "MPTCP"
transport = "mptcp"
[[axes]]
name = "receive buffer"
keys = ["hosts.server.receive-buffer"]
values = ["100 KB", "600 KB", "1 MB"]
"#;

fn plan() -> Plan {
    let no_files = |_: &str| Err(std::io::ErrorKind::NotFound.into());
    Plan::parse("plan.toml", PLAN, &no_files).unwrap()
}

fn row(variant: &str, buffer: &str, number: f64, seed: u64, goodput: f64) -> RunRow {
    let parameter = Parameter { text: buffer.into(), number: Some(number) };
    RunRow {
        key: format!("{variant}{buffer}{seed}"),
        variant: variant.into(),
        world: World::Sim,
        transport: Transport::Tcp,
        seed,
        parameters: [("receive buffer".to_owned(), parameter)].into(),
        error: None,
        metrics: [("goodput".to_owned(), goodput)].into(),
    }
}

/// Returns three seeds at each point.
fn rows() -> Vec<RunRow> {
    let mut rows = Vec::new();
    let points =
        [("100 KB", 1e5, 3e6, 2.8e6), ("600 KB", 6e5, 7.5e6, 9.2e6), ("1 MB", 1e6, 7.6e6, 9.4e6)];
    for (text, number, tcp, mptcp) in points {
        for seed in 1..=3 {
            let noise = (seed as f64 - 2.0) * 1e5;
            rows.push(row("TCP over WiFi", text, number, seed, tcp + noise));
            rows.push(row("MPTCP", text, number, seed, mptcp + noise));
        }
    }
    rows
}

fn verdict(checks: &str, rows: &[RunRow]) -> ClaimVerdict {
    let text = format!("[[claims]]\ntext = \"t\"\nsource = \"s\"\noutcome = \"holds\"\n{checks}");
    let expected = ClaimSet::parse("expected.toml", &text, &plan());
    let expected = expected.unwrap_or_else(|error| panic!("{error}"));
    expected.check(rows, World::Sim, false).remove(0)
}

fn check(check: &str, rows: &[RunRow]) -> (Option<ClaimOutcome>, String) {
    let verdict = verdict(&format!("[[claims.checks]]\nmetric = \"goodput\"\n{check}"), rows);
    (verdict.found, verdict.text())
}

#[test]
fn every_point_meets_a_bound_or_the_worst_is_named() {
    let (found, text) = check(
        "of = { variant = \"MPTCP\", \"receive buffer\" = \">= 600 KB\" }\nis = \">= 9 Mbit/s\"",
        &rows(),
    );
    assert_eq!(found, Some(ClaimOutcome::Holds));
    assert_eq!(text, "goodput: all 2 points: smallest 9.20 Mbit/s, asked ≥ 9 Mbit/s");
    let (found, text) = check("of = { variant = \"MPTCP\" }\nis = \">= 9 Mbit/s\"", &rows());
    assert_eq!(found, Some(ClaimOutcome::Fails));
    assert_eq!(
        text,
        "goodput: 1 of 3 points miss it: 2.80 Mbit/s at MPTCP, receive buffer 100 KB, asked ≥ 9 Mbit/s"
    );
}

#[test]
fn points_are_compared_at_equal_other_parameters() {
    let ratio = "of = { variant = \"MPTCP\" }\nthan = { variant = \"TCP over WiFi\" }\nratio = ";
    let (found, text) = check(&format!("{ratio}\">= 0.9\""), &rows());
    assert_eq!(
        (found, text.as_str()),
        (Some(ClaimOutcome::Holds), "goodput: all 3 points: smallest ratio 0.933, asked ≥ 0.9")
    );
    // Another point of the same variant.
    let text = check("of = { variant = \"MPTCP\", \"receive buffer\" = \"600 KB\" }\nthan = { \"receive buffer\" = \"1000 KB\" }\nratio = \"<= 1\"", &rows()).1;
    assert_eq!(text, "goodput: ratio 0.979, asked ≤ 1");
    let mptcp_rows: Vec<_> = rows().into_iter().filter(|row| row.variant == "MPTCP").collect();
    let (found, text) = check(&format!("{ratio}\">= 0.9\""), &mptcp_rows);
    assert_eq!(found, Some(ClaimOutcome::Fails));
    assert!(text.ends_with("was not run"), "{text}");
}

#[test]
fn one_point_or_the_mean_can_be_enough() {
    let check_over = |over: &str| {
        check(
            &format!("of = {{ variant = \"MPTCP\" }}\nis = \">= 7 Mbit/s\"\nover = \"{over}\""),
            &rows(),
        )
    };
    assert_eq!(check_over("all").0, Some(ClaimOutcome::Fails));
    assert_eq!(check_over("any").0, Some(ClaimOutcome::Holds));
    assert_eq!(
        check_over("mean"),
        (
            Some(ClaimOutcome::Holds),
            "goodput: mean of 3 points 7.13 Mbit/s, asked ≥ 7 Mbit/s".into()
        )
    );
}

#[test]
fn the_runs_of_a_point_are_aggregated_as_requested() {
    let text_of = |aggregation: &str| {
        check(
            &format!(
                "of = {{ variant = \"MPTCP\", \"receive buffer\" = \"1 MB\" }}\n{aggregation}"
            ),
            &rows(),
        )
        .1
    };
    assert_eq!(
        text_of("statistic = \"min\"\nis = \">= 9 Mbit/s\""),
        "smallest goodput: 9.30 Mbit/s, asked ≥ 9 Mbit/s"
    );
    assert_eq!(
        text_of("statistic = \"percentile 75\"\nis = [\">= 9 Mbit/s\", \"<= 10 Mbit/s\"]"),
        "percentile 75 of goodput: 9.45 Mbit/s, asked ≥ 9 Mbit/s and ≤ 10 Mbit/s"
    );
    assert_eq!(
        text_of("statistic = \"share\"\nkeeps = \">= 9.4 Mbit/s\"\nis = \">= 60 %\""),
        "share of runs with goodput ≥ 9.4 Mbit/s: 66.7 %, asked ≥ 60 %"
    );
}

#[test]
fn failed_runs_are_counted_and_a_check_without_data_fails() {
    let mut rows = rows();
    for row in rows.iter_mut().filter(|row| row.seed == 2) {
        (row.error, row.metrics) = (Some("no".into()), [].into());
    }
    let text = check("of = { variant = \"MPTCP\" }\nis = \">= 1 Mbit/s\"", &rows).1;
    assert!(text.ends_with("(3 of 9 runs failed)"), "{text}");
    let (found, text) = check("is = \">= 1 Mbit/s\"", &[]);
    assert_eq!(
        (found, text.as_str()),
        (Some(ClaimOutcome::Fails), "no run has `goodput`, of those that are meant")
    );
}

#[test]
fn values_of_never_meet_no_upper_bound() {
    let mut rows = rows();
    for row in &mut rows {
        row.metrics.insert("goodput".into(), f64::INFINITY);
    }
    let (found, text) = check("is = \"<= 10 s\"", &rows);
    assert_eq!(found, Some(ClaimOutcome::Fails));
    assert!(text.contains("never"), "{text}");
}

#[test]
fn a_claim_needs_all_its_checks_and_a_quick_run_skips_some() {
    let checks = "[[claims.checks]]\nmetric = \"goodput\"\nis = \">= 1 bit/s\"\n\
        [[claims.checks]]\nmetric = \"goodput\"\nis = \">= 1 Gbit/s\"\nquick = false\n";
    let full_verdict = verdict(checks, &rows());
    assert_eq!(full_verdict.found, Some(ClaimOutcome::Fails));
    assert!(!full_verdict.as_expected());
    let text = format!("[[claims]]\ntext = \"t\"\nsource = \"s\"\noutcome = \"holds\"\n{checks}");
    let expected = ClaimSet::parse("expected.toml", &text, &plan()).unwrap();
    assert_eq!(expected.check(&rows(), World::Sim, true)[0].found, Some(ClaimOutcome::Holds));
    let emulated_only = text.replace("outcome", "worlds = [\"emu\"]\noutcome");
    let expected = ClaimSet::parse("expected.toml", &emulated_only, &plan()).unwrap();
    let verdict = expected.check(&rows(), World::Sim, false).remove(0);
    assert_eq!((verdict.found, verdict.as_expected()), (None, true));
}

#[test]
fn mistakes_are_reported_with_their_position() {
    let text = r#"
[[claims]]
text = "t"
outcome = "fails"
[[claims.checks]]
metric = "goodput"
of = { variant = "MPTPC", "recieve buffer" = ">= 600 KB" }
is = "9 Mbit/s"
quik = false
[[claims.checks]]
metric = "goodput"
statistic = "share"
is = ">= 9 Mbits"
"#;
    let errors = ClaimSet::parse("expected.toml", text, &plan()).unwrap_err();
    insta::assert_snapshot!(errors.to_string());
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in "(?s).{0,200}") {
        let _ = ClaimSet::parse("expected.toml", &text, &plan());
    }

    /// Checks that `all`, `any` and `mean` agree for one point, and follow the statistic.
    #[test]
    fn the_verdict_follows_the_bound(values in prop::collection::vec(1.0..1e9_f64, 1..20), bound in 1_u32..1_000) {
        let rows: Vec<_> = values.iter().enumerate().map(|(n, v)| row("MPTCP", "1 MB", 1e6, n as u64, *v)).collect();
        let min = values.iter().copied().fold(f64::INFINITY, f64::min);
        for over in ["all", "any", "mean"] {
            let (found, _) = check(&format!("statistic = \"min\"\nover = \"{over}\"\nis = \">= {bound} Mbit/s\""), &rows);
            prop_assert_eq!(found == Some(ClaimOutcome::Holds), min >= f64::from(bound) * 1e6);
        }
    }
}
