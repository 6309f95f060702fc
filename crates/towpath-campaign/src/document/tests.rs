use proptest::prelude::*;

use super::*;

const CREATED_US: u64 = 1_700_000_000_000_000;

fn parse(text: &str) -> Result<Campaign, ScenarioErrors> {
    Campaign::parse("c.toml", text, CREATED_US)
}

/// Campaign with further keys at the top and these patterns.
fn with(top: &str, patterns: &str) -> String {
    format!(
        "name = \"c\"\nmode = \"stable\"\nend = 2030-01-01T00:00:00Z\nevery = \"1 h\"\n\
         bytes-per-day = \"10 GB\"\n{top}\n{patterns}"
    )
}

const PING: &str = "[[patterns]]\npattern = \"ping\"\n";

fn error(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn the_examples_are_campaigns() {
    let stable = parse(EXAMPLE_STABLE).unwrap();
    assert_eq!((stable.mode, stable.patterns.len()), (CampaignMode::Stable, 4));
    assert_eq!((stable.start_us, stable.end_us), (CREATED_US, 1_893_456_000_000_000));
    let [ping, bulk, iperf, interactive] = &stable.patterns[..] else { panic!() };
    assert_eq!((&ping.ports[..], ping.rate_limit_bps), (&[443, 6121][..], None));
    assert_eq!(bulk.max_bytes, 10_000_000 / 8 * 9 + 500_000);
    // 44 MB of payload in 10 s.
    assert_eq!((iperf.max_bytes, iperf.rate_limit_bps), (50_000_000, Some(35_200_000)));
    assert_eq!(iperf.families, [AddressFamily::Ipv4]);
    assert!(interactive.max_bytes < 20_000_000, "{}", interactive.max_bytes);
    let mobile = parse(EXAMPLE_MOBILE).unwrap();
    assert_eq!(mobile.mode, CampaignMode::Mobile);
    assert_eq!(mobile.patterns[0].duration.as_secs() / 60, 5);
}

#[test]
fn omitted_keys_have_the_documented_defaults() {
    let campaign = parse(&with("", PING)).unwrap();
    assert_eq!(campaign.jitter, Duration::from_secs(360));
    assert_eq!((campaign.rounds, campaign.servers.len()), (None, 0));
    assert!(!campaign.full_addresses);
    assert!(parse(&with("addresses = \"full\"", PING)).unwrap().full_addresses);
    let pattern = &campaign.patterns[0];
    assert_eq!(pattern.transports, Transport::ALL);
    assert_eq!((&pattern.families[..], &pattern.ports[..]), (&AddressFamily::ALL[..], &[443][..]));
    // A start before the creation has no effect.
    let campaign = parse(&with("start = 2020-01-01T00:00:00Z", PING)).unwrap();
    assert_eq!(campaign.start_us, CREATED_US);
}

#[test]
fn times_have_an_offset_and_count_leap_days() {
    let end_of = |time: &str| {
        let text = with("", PING).replace("2030-01-01T00:00:00Z", time);
        parse(&text).map(|campaign| campaign.end_us / 1_000_000)
    };
    assert_eq!(end_of("2028-02-29T12:00:00.5Z").unwrap(), 1_835_438_400);
    assert_eq!(end_of("2028-02-29T13:30:00+01:30").unwrap(), 1_835_438_400);
    assert_eq!(
        end_of("2028-03-01T00:00:00Z").unwrap() - end_of("2028-02-28T00:00:00Z").unwrap(),
        2 * 86_400
    );
    for invalid in ["2028-02-29", "2028-02-29T12:00:00", "\"2028-02-29T12:00:00Z\"", "5"] {
        let error = end_of(invalid).unwrap_err().to_string();
        assert!(error.contains("offset"), "{invalid}: {error}");
    }
    let error = end_of("2020-01-01T00:00:00Z").unwrap_err().to_string();
    assert!(error.contains("not after the start"), "{error}");
}

#[test]
fn mistakes_are_reported_where_they_are() {
    for (top, patterns, expected) in [
        ("jitter = \"2 h\"", PING, "`jitter` is more than 1 h"),
        ("transports = [\"sctp\"]", PING, "cannot be `sctp`"),
        ("ports = []", PING, "`ports` is empty"),
        ("ports = [0]", PING, "out of range"),
        ("servers = [\"a b\"]", PING, "is not a host"),
        ("servers = [\"-o\"]", PING, "is not a host"),
        ("description = \"a\\u001b[2J\"", PING, "control characters"),
        ("evry = 3", PING, "did you mean `every`?"),
        ("", "", "no `patterns`"),
        ("", "patterns = []", "0 patterns"),
        ("", "[[patterns]]\n", "no `pattern`"),
        ("", "[[patterns]]\npattern = \"pong\"", "did you mean `ping`?"),
        ("", "[[patterns]]\npattern = \"latency\"", "not a pattern of campaigns"),
        ("", "[[patterns]]\npattern = \"bulk\"\nsize = \"10 XB\"", "10 XB"),
        ("", "[[patterns]]\npattern = \"bulk\"\nsiz = \"10 MB\"", "did you mean `size`?"),
        ("", "[[patterns]]\npattern = \"ping\"\nsize = \"10 MB\"", "does not apply"),
        ("", "[[patterns]]\npattern = \"iperf\"", "have no limit"),
        ("", "[[patterns]]\npattern = \"bulk\"\nsize = \"1 MB\"\nmax-bytes = \"1 MB\"", "can need"),
        (
            "",
            "[[patterns]]\npattern = \"iperf\"\nmax-bytes = \"1 MB\"\nduration = \"1 h\"",
            "100 kbit/s",
        ),
        ("", "[[patterns]]\npattern = \"bulk\"\nsize = \"2 GB\"\n", "more than `bytes-per-day`"),
    ] {
        let error = error(&with(top, patterns));
        assert!(error.contains(expected), "{expected}: {error}");
        assert!(error.contains("c.toml"), "{error}");
    }
    let error = error(&with("", "[[patterns]]\npattern = \"bulk\"\nsiz = \"10 MB\""));
    assert!(error.contains("c.toml:9:1"), "{error}");
}

#[test]
fn a_campaign_cannot_run_commands_or_name_files() {
    for key in [
        "run = \"reboot\"",
        "messages = [\"0 up 1 B\"]",
        "server = \"nc -l 1\"",
        "from = \"server\"",
        "via = \"wlan0\"",
        "load = \"up\"",
    ] {
        let error = error(&with("", &format!("{PING}{key}\n")));
        assert!(error.contains("cannot be used in a campaign"), "{key}: {error}");
    }
    for line in [
        "\"x = 1\\nrun\" = \"reboot\"",
        "\"ru\\u006e\" = \"reboot\"",
        "count = \"5\\\"\\nrun = \\\"reboot\"",
        "count = [5]",
        "count = { run = \"reboot\" }",
        "count.run = \"reboot\"",
        "x.\"y\\nrun\" = \"reboot\"",
    ] {
        let error = error(&with("", &format!("{PING}{line}\n")));
        assert!(!error.contains("panicked"), "{line}: {error}");
    }
    for name in ["trace", "run", "call"] {
        let error = error(&with("", &format!("[[patterns]]\npattern = \"{name}\"\n")));
        assert!(error.contains("is not a pattern of campaigns"), "{error}");
    }
}

#[test]
fn a_mobile_campaign_has_one_pattern_that_continues() {
    let mobile = |patterns: &str| {
        parse(&with("", patterns).replace("\"stable\"", "\"mobile\""))
            .map(|_| ())
            .map_err(|e| e.to_string())
    };
    assert_eq!(mobile("[[patterns]]\npattern = \"interactive\"\n"), Ok(()));
    assert!(mobile(PING).unwrap_err().contains("mobile campaign"));
    let bytes = |mode: &str| {
        let text = with("", "[[patterns]]\npattern = \"interactive\"\nduration = \"60 s\"\n");
        parse(&text.replace("stable", mode)).unwrap().patterns[0].max_bytes
    };
    // Datagrams over each path are sent at the same time.
    assert!(
        bytes("mobile") > bytes("stable") + 60 * 200 * 8,
        "{} {}",
        bytes("mobile"),
        bytes("stable")
    );
    let two = "[[patterns]]\npattern = \"interactive\"\n".repeat(2);
    assert!(mobile(&two).unwrap_err().contains("one pattern"));
}

#[test]
fn timed_transfers_share_their_bytes_between_streams_and_directions() {
    let limit = |keys: &str| {
        let text = with(
            "",
            &format!(
                "[[patterns]]\npattern = \"iperf\"\nduration = \"10 s\"\nmax-bytes = \"50 MB\"\nfamilies = [\"ipv4\"]\n{keys}"
            ),
        );
        parse(&text).unwrap().patterns[0].rate_limit_bps
    };
    assert_eq!(limit(""), Some(35_200_000));
    assert_eq!(limit("streams = 4"), Some(8_800_000));
    assert_eq!(limit("streams = 4\ndirection = \"both\""), Some(4_400_000));
}

proptest! {
    #[test]
    fn any_text_is_a_campaign_or_an_error(text in "[ -~\n]{0,300}", cut in any::<proptest::sample::Index>()) {
        let _ = parse(&text);
        let cut = cut.index(EXAMPLE_STABLE.len() + 1);
        let _ = parse(&EXAMPLE_STABLE[..EXAMPLE_STABLE.floor_char_boundary(cut)]);
        let _ = parse(&format!("{}{text}", &EXAMPLE_STABLE[..EXAMPLE_STABLE.floor_char_boundary(cut)]));
    }

    #[test]
    fn a_round_of_any_campaign_stays_within_its_bytes(
        size in 1_u64..100_000_000, streams in 1_u32..9, seconds in 1_u64..60, limit in 2_000_000_u64..200_000_000,
        direction in prop::sample::select(vec!["up", "down", "both"]),
    ) {
        let patterns = format!(
            "[[patterns]]\npattern = \"bulk\"\nsize = \"{size} B\"\ndirection = \"{direction}\"\n\
             [[patterns]]\npattern = \"iperf\"\nduration = \"{seconds} s\"\nstreams = {streams}\n\
             direction = \"{direction}\"\nmax-bytes = \"{limit} B\"\n"
        );
        let Ok(campaign) = parse(&with("", &patterns)) else { return Ok(()) };
        let sides = if direction == "both" { 2 } else { 1 };
        prop_assert!(campaign.patterns[0].max_bytes >= size * sides);
        let iperf = &campaign.patterns[1];
        let bits = iperf.rate_limit_bps.unwrap() * u64::from(streams) * sides * seconds;
        prop_assert!(bits / 8 <= iperf.max_bytes - 500_000);
        prop_assert!(campaign.bytes_per_round() <= campaign.bytes_per_day);
    }
}
