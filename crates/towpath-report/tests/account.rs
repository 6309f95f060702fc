//! Capacity accounting on the page.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(dead_code, reason = "other tests use the rest of the model")]

mod common;

use std::collections::BTreeMap;

use towpath_report::html;
use towpath_result::store::StoredRun;
use towpath_result::{Account, AccountSummary, Basis, LinkAccount, Part, Parts, Record};
use towpath_scenario::{DataDirection, Transport};

use common::{handover, run};

const PERIOD_NS: u64 = 100_000_000;

fn parts(bytes_by_part: &[(Part, u64)]) -> Parts {
    let mut parts = Parts::default();
    for (part, bytes) in bytes_by_part {
        parts.add(*part, *bytes);
    }
    parts
}

/// Returns a run over Wi-Fi of 40 and cellular of 20 Mbit/s. Wi-Fi goes down, and its data fills
/// the window for a while.
fn run_with_account() -> StoredRun {
    let mut run = run(&handover(Transport::Mptcp, 1));
    let mut links = Vec::new();
    for (path, bytes) in [("wifi", 500_000), ("cellular", 250_000)] {
        let mut link_parts = Parts::default();
        for period in 1..=100 {
            let is_down = path == "wifi" && period > 30;
            let mut period_parts = if is_down {
                parts(&[(Part::Down, bytes)])
            } else if (31..40).contains(&period) {
                parts(&[(Part::HeadOfLineBlocking, bytes)])
            } else {
                parts(&[
                    (Part::Delivered, bytes * 92 / 100),
                    (Part::Headers, bytes * 6 / 100),
                    (Part::SlowStart, bytes * 2 / 100),
                ])
            };
            if period_parts.of(Part::HeadOfLineBlocking) > 0 {
                period_parts.blocked_by.insert("wi<fi".to_owned(), bytes);
            }
            link_parts.add_all(&period_parts);
            run.records.push(Record::Account(Box::new(Account {
                t_ns: period * PERIOD_NS,
                span_ns: PERIOD_NS,
                path: path.to_owned(),
                direction: DataDirection::Up,
                parts: period_parts,
            })));
        }
        links.push(LinkAccount {
            path: path.to_owned(),
            direction: DataDirection::Up,
            paths: vec![path.to_owned()],
            parts: link_parts,
            limits_ns: BTreeMap::new(),
        });
    }
    let mut total = Parts::default();
    for link in &links {
        total.add_all(&link.parts);
    }
    run.summary.as_mut().unwrap().account = Some(Box::new(AccountSummary {
        basis: Basis::Sampled,
        span_ns: 100 * PERIOD_NS,
        sentence: "of 60 Mbit/s, 30 were not used: <28> because wifi was down".to_owned(),
        total,
        links,
        unlimited: Vec::new(),
        sufficient_bytes: None,
        advice: None,
        estimate: None,
    }));
    run
}

/// Returns the page's section about capacity accounting.
fn account_section(page: &str) -> &str {
    let start = page.find("Where the capacity went").unwrap();
    let length = page[start..].find("Subflows (").unwrap();
    &page[start..start + length]
}

#[test]
fn the_sentence_precedes_the_table_and_the_table_the_charts() {
    let page = html(&[run_with_account()]);
    let section = account_section(&page);
    let position_of =
        |text: &str| section.find(text).unwrap_or_else(|| panic!("{text}: {section}"));
    let order = ["Of 60 Mbit/s, 30 were not used", "capacity, Mbit/s", "Capacity of wifi"];
    assert!(order.map(position_of).is_sorted(), "{section}");
    assert!(section.contains("&lt;28&gt;") && !section.contains("<28>"), "texts are escaped");
    assert!(section.contains("wi&lt;fi"), "the path that was waited for is named");
    assert!(section.contains("Capacity of cellular"));
}

#[test]
fn the_table_has_rates_and_shares_of_each_link_and_of_all() {
    let page = html(&[run_with_account()]);
    let row = |label: &str| {
        let start = page.find(label).unwrap_or_else(|| panic!("{label}"));
        let row = &page[start..];
        let text = row[..row.find("</tr>").unwrap()].to_owned();
        text.replace("<small>", "").replace("</small>", "")
    };
    let capacity = row("capacity, Mbit/s");
    assert!(["40.0", "20.0", "60.0"].iter().all(|rate| capacity.contains(rate)), "{capacity}");
    let down = row("path down");
    assert!(down.contains(">28.0 70 %<") && down.contains(">–<"), "{down}");
    assert!(down.contains(">28.0 46.7 %<"), "{down}");
}

#[test]
fn the_charts_bands_are_named_where_they_are_thick() {
    let page = html(&[run_with_account()]);
    let section = account_section(&page);
    let names = section.split("<g class=\"names\">").skip(1);
    let names: Vec<&str> = names.map(|names| names.split("</g>").next().unwrap()).collect();
    let [wifi, cellular] = names[..] else { panic!("{} charts", names.len()) };
    assert!(wifi.contains(">delivered<") && wifi.contains(">path not usable<"), "{wifi}");
    assert!(cellular.contains(">delivered<"), "{cellular}");
    assert!(!wifi.contains(">headers<"), "too thin for a name: {wifi}");
}

#[test]
fn a_result_without_an_account_has_no_account_section() {
    let page = html(&[run(&handover(Transport::Mptcp, 1))]);
    assert!(!page.contains("Where the capacity went"));
}

#[test]
fn the_page_grows_by_a_fifth_at_most() {
    let bytes_with_account = html(&[run_with_account()]).len();
    let bytes_without_account = html(&[run(&handover(Transport::Mptcp, 1))]).len();
    assert!(
        bytes_with_account * 5 <= bytes_without_account * 6,
        "{bytes_without_account} bytes became {bytes_with_account}"
    );
}

#[test]
fn text_on_every_band_can_be_read() {
    // Relative luminance and contrast as WCAG 2.2 defines them; names are written in #14171a.
    let style = include_str!("../src/account.css");
    let colours: BTreeMap<&str, &str> = style
        .split('.')
        .filter_map(|rule| rule.split_once(" { --c: #"))
        .map(|(name, colour)| (name, &colour[..6]))
        .collect();
    assert_eq!(colours.len(), 14, "{colours:?}");
    let luminance = |hex: &str| -> f64 {
        let channel = |offset: usize| {
            let value =
                f64::from(u8::from_str_radix(&hex[offset..offset + 2], 16).unwrap()) / 255.0;
            if value <= 0.040_45 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.212_6 * channel(0) + 0.715_2 * channel(2) + 0.072_2 * channel(4)
    };
    for (name, colour) in colours {
        let contrast = (luminance(colour) + 0.05) / (luminance("14171a") + 0.05);
        assert!(contrast >= 4.5, "{name} {colour}: {contrast:.1}");
    }
}
