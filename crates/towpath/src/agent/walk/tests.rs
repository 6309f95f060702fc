use towpath_campaign::{EXAMPLE_MOBILE, EXAMPLE_STABLE};

use super::*;
use crate::agent::journal::JournalState;

const NOW_US: u64 = 1_800_000_000_000_000;

fn known(text: &str, name: &str, state: CampaignState) -> KnownCampaign {
    let mut campaign = Campaign::parse("campaign", text, NOW_US).unwrap();
    name.clone_into(&mut campaign.name);
    KnownCampaign { campaign, state }
}

fn mobile(name: &str, state: CampaignState) -> KnownCampaign {
    known(EXAMPLE_MOBILE, name, state)
}

#[test]
fn the_only_active_mobile_campaign_needs_no_name() {
    let stable = known(EXAMPLE_STABLE, "stable", CampaignState::Active);
    let all =
        |second| vec![stable.clone(), mobile("a", CampaignState::Active), mobile("b", second)];
    let selected = |known, name| select(known, name, NOW_US);
    let only = selected(all(CampaignState::Paused), None).unwrap();
    assert_eq!(only.campaign.name, "a");
    let error = selected(all(CampaignState::Active), None).unwrap_err();
    assert_eq!(error.to_string(), "there are several mobile campaigns: `a` and `b`");
    assert!(error.hint().unwrap().contains("walk CAMPAIGN"));
    let named = selected(all(CampaignState::Active), Some("b")).unwrap();
    assert_eq!(named.campaign.name, "b");
    let error = selected(vec![stable], None).unwrap_err();
    assert_eq!(error.to_string(), "the collector has no active mobile campaign");
}

#[test]
fn a_campaign_that_cannot_be_walked_is_refused_with_the_reason() {
    let all = || {
        vec![
            known(EXAMPLE_STABLE, "stable", CampaignState::Active),
            mobile("paused", CampaignState::Paused),
            mobile("ended", CampaignState::Ended),
            mobile("active", CampaignState::Active),
        ]
    };
    let reason = |name, now_us| select(all(), Some(name), now_us).unwrap_err().to_string();
    assert_eq!(
        reason("stable", NOW_US),
        "`stable` is a stable campaign, and a walk needs a mobile one"
    );
    assert_eq!(reason("paused", NOW_US), "`paused` is paused");
    assert_eq!(reason("ended", NOW_US), "`ended` has ended");
    assert_eq!(reason("other", NOW_US), "the collector has no campaign `other`");
    let end_us = all()[3].campaign.end_us;
    assert_eq!(reason("active", end_us), "`active` has ended");
}

#[test]
fn without_a_terminal_a_walk_needs_a_confirmation() {
    let error = is_confirmed(None).unwrap_err();
    assert!(error.to_string().contains("not a terminal"), "{error}");
    assert!(error.hint().unwrap().contains("`--yes`"));
    for (answer, expected) in [("yes\n", true), ("y\n", false), ("", false)] {
        assert_eq!(is_confirmed(Some(&mut answer.as_bytes())).unwrap(), expected, "{answer}");
    }
}

#[test]
fn the_offer_names_all_that_is_measured_and_sent() {
    let known = mobile("mobile-1", CampaignState::Active);
    let device = Participant { name: "phone".to_owned(), joined_us: NOW_US };
    let step = next_walk_step(&JournalState::default(), &known, &device, NOW_US);
    let WalkStep::Walk(round) = step else { panic!("{step:?}") };
    let lines = offer_lines(&known.campaign, &round, NOW_US);
    assert!(lines.iter().all(|line| line.chars().count() <= 100), "{lines:#?}");
    let text = lines.join("\n");
    for expected in [
        "walk      mobile-1: Shows how far your Wi-Fi reaches",
        "five pings",
        "interactive over mptcp and mpquic at the same time",
        "after 5 min 3 s at the latest",
        "is made now",
        "bytes     at most ",
        "network prefixes",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}
