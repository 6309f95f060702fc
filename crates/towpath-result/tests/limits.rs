//! Warnings about limits of a network, for generated scenarios.

use towpath_result::{Warning, limits, path_text};
use towpath_scenario::{Scenario, Transport, World, no_files};

const WORLDS: [World; 2] = [World::Emu, World::Sim];

fn parse(text: &str) -> Scenario {
    Scenario::parse("test.toml", text, &no_files)
        .unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

fn path(name: &str, keys: &str) -> String {
    format!("[paths.{name}]\nbetween = [\"a\", \"b\"]\n{keys}\n")
}

/// Returns a scenario with `count` paths and a flow for each family.
fn many_paths(count: usize, families: &[&str], host: &str) -> Scenario {
    let paths: String = (0..count).map(|i| path(&format!("p{i}"), "rate = \"5 Mbit/s\"")).collect();
    let flow = |family: &&str| {
        format!(
            "[[flows]]\nfrom = \"a\"\nto = \"b\"\npattern = \"bulk\"\nduration = \"1 s\"\n\
             family = \"{family}\"\n"
        )
    };
    let flows: String = families.iter().map(flow).collect();
    parse(&format!("name = \"t\"\n[hosts.a]\n{host}\n[hosts.b]\n{paths}{flows}"))
}

fn texts(warnings: &[Warning]) -> Vec<&str> {
    warnings.iter().map(|warning| warning.text.as_str()).collect()
}

#[test]
fn paths_beyond_the_endpoint_limit_are_named() {
    for (families, fitting) in [(&["v4"][..], 8), (&["v6"], 8), (&["v4", "v6"], 4)] {
        for count in 1..=12_usize {
            let scenario = many_paths(count, families, "");
            let found = limits::warnings(&scenario, &[Transport::Mptcp], &WORLDS);
            let idle: Vec<_> = (fitting..count).map(|index| format!("p{index}")).collect();
            if idle.is_empty() {
                assert_eq!(found, [], "{count} paths, {families:?}");
                continue;
            }
            let [only] = found.as_slice() else { panic!("{count}: {found:?}") };
            let start = format!("Multipath TCP can use {fitting} of the {count} paths of host `a`");
            assert!(only.text.starts_with(&start), "{}", only.text);
            assert!(idle.iter().all(|name| only.text.contains(name)), "{}", only.text);
            let used = format!("p{}", fitting - 1);
            let names = only.text.split("; ").last().unwrap_or_default();
            assert!(!names.contains(&used), "{}", only.text);
            for transport in [Transport::Tcp, Transport::Quic, Transport::Mpquic] {
                assert_eq!(limits::warnings(&scenario, &[transport], &WORLDS), []);
            }
        }
    }
}

#[test]
fn the_ideal_profile_has_no_endpoint_limit() {
    let scenario = many_paths(9, &["v4"], "profile = \"ideal\"");
    let of = |worlds: &[World]| limits::warnings(&scenario, &[Transport::Mptcp], worlds).len();
    assert_eq!((of(&[World::Sim]), of(&WORLDS)), (0, 1));
    let own = many_paths(9, &["v4"], "profile = \"ideal\"\nstack = \"towpath\"");
    assert_eq!(limits::warnings(&own, &[Transport::Mptcp], &WORLDS), []);
}

/// Returns the warnings of a network with one path and, if given, one event.
fn one_path(keys: &str, event: &str) -> Vec<Warning> {
    let path = path("p", keys);
    let event = match event {
        "" => String::new(),
        event => format!("[[timeline]]\nat = \"1 s\"\npath = \"p\"\n{event}\n"),
    };
    let scenario = parse(&format!("name = \"t\"\n[hosts.a]\n[hosts.b]\n{path}{event}"));
    limits::warnings(&scenario, &[Transport::Tcp], &WORLDS)
}

#[test]
fn netems_limit_is_compared_with_the_product_of_rate_and_delay() {
    for preset in ["netem", "htb+netem", "mininet"] {
        for (rate, delay_ms, queue) in [
            (200, 100, 0),
            (100, 100, 0),
            (50, 200, 0),
            (100, 200, 0),
            (100, 100, 2_000),
            (20, 100, 100),
        ] {
            let limit = if queue == 0 { 1_000 } else { queue };
            let queue_key = match queue {
                0 => String::new(),
                packets => format!("queue = \"{packets} packets\""),
            };
            let keys = format!(
                "preset = \"{preset}\"\nrate = \"{rate} Mbit/s\"\ndelay = \"{delay_ms} ms\"\n{queue_key}"
            );
            let bound_mbps = f64::from(limit) * 1_514.0 * 8.0 / (f64::from(delay_ms) * 1e3);
            let found = one_path(&keys, "");
            let is_bound = f64::from(rate) > bound_mbps;
            assert_eq!(found.len(), usize::from(is_bound), "{keys}: {found:?}");
            if let [only] = found.as_slice() {
                let start = format!("the limit of {limit} packets of netem bounds path `p` to ");
                assert!(only.text.starts_with(&start), "{}", only.text);
                let rest = only.text.strip_prefix(&start).unwrap_or_default();
                let value: f64 = rest.split(' ').next().unwrap_or_default().parse().expect(rest);
                assert!((value - bound_mbps).abs() < bound_mbps / 100.0, "{value} {bound_mbps}");
            }
        }
    }
}

#[test]
fn netem_without_a_rate_or_with_a_later_delay_is_bounded_too() {
    let found = one_path("preset = \"netem\"\ndelay = \"100 ms\"", "");
    assert!(texts(&found)[0].contains("to 121 Mbit/s"), "{found:?}");
    let keys = "preset = \"netem\"\nrate = \"100 Mbit/s\"\ndelay = \"20 ms\"";
    assert_eq!(one_path(keys, ""), []);
    let found = one_path(keys, "set = \"delay\"\ndelay = \"200 ms\"");
    assert!(texts(&found)[0].contains("to 60.6 Mbit/s"), "{found:?}");
    let found = one_path(keys, "set = \"delay\"\ndelay = \"200 ms\"\ndirection = \"down\"");
    assert!(texts(&found)[0].contains("path `p` down"), "{found:?}");
}

#[test]
fn rates_at_which_a_packet_takes_as_long_as_a_timeout_are_named() {
    for (rate, is_slow) in
        [("63 kbit/s", true), ("64 kbit/s", false), ("9.6 kbit/s", true), ("1 Mbit/s", false)]
    {
        let keys = format!("rate = \"{rate}\"\ndelay = \"10 ms\"");
        let found = one_path(&keys, "");
        assert_eq!(found.len(), usize::from(is_slow), "{rate}: {found:?}");
        assert!(texts(&found).iter().all(|text| text.contains(rate)), "{found:?}");
        let event = format!("set = \"rate\"\nrate = \"{rate}\"\ndirection = \"up\"");
        let later = one_path("rate = \"5 Mbit/s\"\ndelay = \"10 ms\"", &event);
        assert_eq!(later.len(), usize::from(is_slow), "{rate}: {later:?}");
        assert!(texts(&later).iter().all(|text| text.contains("path `p` up")), "{later:?}");
    }
    let found = one_path("rate = \"56 kbit/s\"\ndelay = \"10 ms\"\nmtu = 576", "");
    assert_eq!(found, [], "a short packet takes less");
}

#[test]
fn a_trace_shows_its_mean_rate() {
    let text = "name = \"t\"\n[hosts.a]\n[hosts.b]\n[paths.p]\nbetween = [\"a\", \"b\"]\n\
                rate = { trace = \"t.trace\" }\ndelay = \"10 ms\"\n";
    for (trace, rate) in
        [("1\n2\n3\n4\n", "12.0 Mbit/s"), ("10\n", "1.20 Mbit/s"), ("400\n", "30.1 kbit/s")]
    {
        let scenario = Scenario::parse("t.toml", text, &|_| Ok(trace.to_owned()));
        let scenario = scenario.unwrap_or_else(|errors| panic!("{errors}"));
        let link = path_text(&scenario, &scenario.paths[0]);
        assert!(link.contains(&format!("rate from a trace (mean {rate})")), "{link}");
        let found = limits::warnings(&scenario, &[Transport::Tcp], &WORLDS);
        assert_eq!(found.len(), usize::from(trace == "400\n"), "{found:?}");
    }
}
