//! Parses the stack keys, which `[run]` and hosts share, and `[[middleboxes]]`.

use std::time::Duration;

use super::NameTable;
use crate::keys::{MIDDLEBOX, PROFILE_SWITCHES};
use crate::model::LinkSide;
use crate::problem::quote;
use crate::section::{Section, Value};
use crate::stack::{
    Middlebox, MiddleboxAction, OpportunisticMode, PathPolicy, Profile, ProfileSwitches,
    ReceiveBufferMode, StackKind, StackOverrides,
};

/// Maximum timer granularity; no system has coarser timers.
const MAX_TIMER_GRANULARITY: Duration = Duration::from_secs(1);
/// Maximum CPU time per packet; no host is slower.
const MAX_PACKET_TIME: Duration = Duration::from_millis(100);
/// Maximum number of middleboxes in a scenario.
const MAX_MIDDLEBOXES: usize = 64;

/// Parses the stack keys of `section`.
pub(super) fn stack_overrides(section: &mut Section<'_>) -> StackOverrides {
    let mut present_keys = Vec::new();
    let mut take = |key: &'static str| {
        let value = section.take(key);
        if value.is_some() {
            present_keys.push(key);
        }
        value
    };
    let opportunistic_modes = [
        ("off", OpportunisticMode::Off),
        ("nsdi12", OpportunisticMode::Nsdi12),
        ("mptcp-org", OpportunisticMode::Guarded),
    ];
    let profiles = [
        ("linux-6.18", Profile::Linux618),
        ("linux-6.x", Profile::Linux6),
        ("linux-3.2-mptcp", Profile::Linux32Mptcp),
        ("ideal", Profile::Ideal),
    ];
    let modes = [
        ("linux", ReceiveBufferMode::Linux),
        ("fixed", ReceiveBufferMode::Fixed),
        ("barre2011", ReceiveBufferMode::Barre2011),
    ];
    let policies = [
        ("aggregate", PathPolicy::Aggregate),
        ("backup", PathPolicy::Backup),
        ("ios", PathPolicy::Ios),
    ];
    let stacks = [("kernel", StackKind::Kernel), ("towpath", StackKind::Towpath)];
    let mut overrides = StackOverrides {
        stack: None,
        profile: take("profile").and_then(|v| v.word(&profiles)),
        switches: take("profile-switches").and_then(|v| switches(&v)).unwrap_or_default(),
        scheduler: take("scheduler").and_then(|v| name(&v, "a scheduler", "min-rtt")),
        path_manager: take("path-manager").and_then(|v| name(&v, "a path manager", "default")),
        opportunistic_retransmission: take("opportunistic-retransmission")
            .and_then(|v| v.word(&opportunistic_modes)),
        penalisation: take("penalisation").and_then(|v| v.word(&opportunistic_modes)),
        checksum: take("checksum").and_then(|v| v.boolean()),
        receive_buffer_mode: take("receive-buffer-mode").and_then(|v| v.word(&modes)),
        smallest_mss: take("mss").and_then(|v| v.word(&[("own", false), ("smallest", true)])),
        path_policy: take("path-policy").and_then(|v| v.word(&policies)),
        quic_congestion_control: take("quic-congestion-control")
            .and_then(|v| name(&v, "a congestion control", "olia")),
        given: Vec::new(),
    };
    overrides.given = present_keys;
    overrides.stack = section.take("stack").and_then(|v| v.word(&stacks));
    overrides
}

/// Parses a name that only the world can validate.
fn name(value: &Value<'_>, noun: &str, example: &str) -> Option<String> {
    let text = value.text()?;
    let is_name_char = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !(1..=32).contains(&text.len()) || !text.chars().all(is_name_char) {
        let message = format!("{} cannot be {noun}", quote(text));
        value.fail(message, format!("expected a name such as `{example}`"));
        return None;
    }
    Some(text.to_owned())
}

fn switches(value: &Value<'_>) -> Option<ProfileSwitches> {
    let expected = "expected a table such as `{ tsq = false }`";
    let mut section = value.section(&PROFILE_SWITCHES, "the profile's switches", expected)?;
    let mut boolean = |key| section.take(key).and_then(|v| v.boolean());
    let switches = ProfileSwitches {
        delayed_ack: boolean("delayed-ack"),
        tso_autosizing: boolean("tso-autosizing"),
        tsq: boolean("tsq"),
        linear_syn: boolean("linear-syn"),
        hystart: boolean("hystart"),
        linux_hystart: boolean("linux-hystart"),
        pacing: boolean("pacing"),
        rmem_scaling: boolean("rmem-scaling"),
        window_overstep: boolean("window-overstep"),
        segmentation_offload: boolean("segmentation-offload"),
        timer_granularity: section
            .take("timer-granularity")
            .and_then(|v| v.duration(MAX_TIMER_GRANULARITY)),
        cpu_per_packet: section.take("cpu-per-packet").and_then(|v| v.duration(MAX_PACKET_TIME)),
    };
    section.finish();
    Some(switches)
}

/// Parses the tables `[[middleboxes]]`.
pub(super) fn middleboxes(value: &Value<'_>, names: &NameTable) -> Vec<Middlebox> {
    let expected = "expected `[[middleboxes]]`";
    let list = super::sections(value, &MIDDLEBOX, "the middlebox", expected);
    if list.len() > MAX_MIDDLEBOXES {
        value.fail("a scenario has at most 64 middleboxes", "remove some");
        return Vec::new();
    }
    let parse_middlebox = |mut section: Section<'_>| {
        let parsed = middlebox(&mut section, names);
        section.finish();
        parsed
    };
    list.into_iter().filter_map(parse_middlebox).collect()
}

fn middlebox(section: &mut Section<'_>, names: &NameTable) -> Option<Middlebox> {
    let sides = [("up", LinkSide::Up), ("down", LinkSide::Down), ("both", LinkSide::Both)];
    let actions = [
        ("strip-mptcp", MiddleboxAction::StripMptcp),
        ("strip-mptcp-syn", MiddleboxAction::StripMptcpSyn),
        ("strip-dss", MiddleboxAction::StripDss),
        ("strip-add-addr", MiddleboxAction::StripAddAddr),
        ("split", MiddleboxAction::Split),
        ("coalesce", MiddleboxAction::Coalesce),
        ("nat", MiddleboxAction::Nat),
        ("shift-sequence", MiddleboxAction::ShiftSequence),
        ("rewrite-payload", MiddleboxAction::RewritePayload),
    ];
    let path = section.require("path", "path = \"wifi\"").and_then(|v| names.path(&v));
    let action =
        section.require("action", "action = \"strip-mptcp\"").and_then(|v| v.word(&actions));
    let direction = section.take("direction");
    let side = direction.as_ref().map_or(Some(LinkSide::Both), |v| v.word(&sides));
    let two_way = matches!(action, Some(MiddleboxAction::Nat | MiddleboxAction::ShiftSequence));
    if let (Some(value), Some(LinkSide::Up | LinkSide::Down), true) = (direction, side, two_way) {
        value.fail("this box must see both directions", "expected `both`");
    }
    Some(Middlebox { path: path?, side: side?, action: action? })
}
