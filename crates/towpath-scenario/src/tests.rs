//! Tests of the whole reader.

use std::io;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::Value as Json;
use towpath_net::Rate;
use towpath_net::config::{
    JitterDistribution, Loss, PipelineOrder, Probability, Queue, QueueLimit, QueuePosition, Shaper,
    WhenDown,
};

use super::*;

const HEAD: &str = "name = \"t\"\n[hosts.a]\n[hosts.b]\n[paths.p]\nbetween = [\"a\", \"b\"]\n";

fn parse_scenario(text: &str) -> Scenario {
    Scenario::parse("t.toml", text, &load_file).unwrap_or_else(|errors| panic!("{errors}"))
}

fn parse_body(body: &str) -> Scenario {
    parse_scenario(&format!("{HEAD}{body}"))
}

fn load_file(name: &str) -> io::Result<String> {
    match name {
        "lte.up" => Ok("1\n2\n9\n".to_owned()),
        "talk.txt" => Ok("# a talk\n1.5 s down 20 kB 9 B\n\n0 s up 2000 B 750 B # hello\n\
                          500 ms down 100 B 1 MB\n"
            .to_owned()),
        _ => no_files(name),
    }
}

#[test]
fn every_builtin_scenario_is_valid_and_describes_itself() {
    for builtin in builtin() {
        let scenario = builtin.scenario().unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(scenario.name, builtin.name);
        assert!(scenario.description.len() > 20 && !scenario.flows.is_empty(), "{}", builtin.name);
        assert_eq!(builtin.description(), scenario.description);
    }
}

#[test]
fn the_handover_scenario_has_the_values_of_its_file() {
    let scenario = builtin()[0].scenario().unwrap();
    let [wifi, cellular] = scenario.paths.as_slice() else { panic!("two paths") };
    assert_eq!((wifi.name.as_str(), wifi.between), ("wifi", [0, 1]));
    assert_eq!(wifi.up.shaper, Shaper::Line(Rate::from_bps(40_000_000).unwrap()));
    assert_eq!(wifi.up.queue, Queue::DropTail(QueueLimit::Time(Duration::from_millis(80))));
    assert_eq!((&wifi.up, cellular.down.delay.base), (&wifi.down, Duration::from_millis(40)));
    let event = &scenario.timeline[0];
    assert_eq!((event.at, event.target), (Duration::from_secs(3), TimelineTarget::Path(0)));
    assert_eq!(event.change, TimelineChange::Down(DownMode::Silent));
    assert_eq!(scenario.run.transports, [Transport::Tcp, Transport::Mptcp]);
    let goodput = &scenario.expect[1];
    assert_eq!((goodput.transport, goodput.metric.as_str()), (Some(Transport::Mptcp), "goodput"));
    assert!(
        goodput.operator.holds(15e6, goodput.bound) && !goodput.operator.holds(14e6, goodput.bound)
    );
    assert_eq!(goodput.text, "mptcp.goodput >= 15 Mbit/s");
    assert_eq!((scenario.expect[0].bound, scenario.expect[2].bound), (1.0, 3.0));
}

#[test]
fn every_key_of_a_link_reaches_the_link_model() {
    let scenario = parse_body(
        "rate = { up-trace = \"lte.up\", down = \"8 Mbit/s\" }
        delay = { up = \"10 ms\", down = \"20 ms\" }
        jitter = { distribution = \"pareto\", sd = \"2 ms\", reorder = true }
        loss = { up = { burst = { start = \"0.1 %\", length = \"5 packets\" } }, down = \"1 %\" }
        duplicate = \"1 %\"
        corrupt = \"2 %\"
        queue = { codel = { limit = \"unlimited\" } }
        queue-position = \"host\"
        overhead = 18
        mtu = 1400
        link-mtu = 1300
        when-down = \"hold\"
        backup = true
        segmentation = \"split\"
        ",
    );
    let Path { up, down, mtu_bytes, backup, segmentation, .. } = &scenario.paths[0];
    assert!(matches!(&up.shaper, Shaper::Trace(trace) if trace.opportunities_ms == [1, 2, 9]));
    assert_eq!(down.shaper, Shaper::Line(Rate::from_bps(8_000_000).unwrap()));
    assert_eq!(down.delay.base, Duration::from_millis(20));
    let jitter = up.delay.jitter.unwrap();
    assert_eq!((jitter.distribution, jitter.reorder), (JitterDistribution::Pareto, true));
    let start = Probability::from_millionths(1_000);
    assert_eq!(up.loss, Loss::Burst { start, length_packets: 5 });
    assert_eq!(down.loss, Loss::Random(Probability::from_millionths(10_000)));
    assert_eq!(up.corrupt, Probability::from_millionths(20_000));
    let (target, interval) = (Duration::from_millis(5), Duration::from_millis(100));
    assert_eq!(up.queue, Queue::CoDel { target, interval, limit: QueueLimit::Unlimited });
    assert_eq!((up.position, up.overhead_bytes, up.mtu_bytes), (QueuePosition::Host, 18, 1_300));
    assert_eq!((up.when_down, *mtu_bytes, *backup), (WhenDown::Hold, 1_400, true));
    assert_eq!(*segmentation, SegmentationMode::Split);
}

#[test]
fn host_keys_override_run_keys_which_override_the_profile() {
    let scenario = parse_scenario(
        "name = \"t\"\n[hosts.a]\nstack = \"towpath\"\nscheduler = \"redundant\"
        profile-switches = { tsq = false, cpu-per-packet = \"2 us\" }\nmss = \"smallest\"
        [hosts.b]\nprofile = \"ideal\"
        [paths.p]\nbetween = [\"a\", \"b\"]
        [run]\nprofile = \"linux-3.2-mptcp\"\npenalisation = \"off\"\nchecksum = true
        profile-switches = { tsq = true, hystart = false }\n",
    );
    let [a, b] = scenario.hosts.as_slice() else { panic!("two hosts") };
    assert_eq!((a.stack.stack, b.stack.stack), (StackKind::Towpath, StackKind::Kernel));
    assert_eq!((a.stack.profile, b.stack.profile), (Profile::Linux32Mptcp, Profile::Ideal));
    let switches = a.stack.switches;
    assert_eq!((switches.tsq, switches.hystart, switches.pacing), (Some(false), Some(false), None));
    assert_eq!(switches.cpu_per_packet, Some(Duration::from_micros(2)));
    assert_eq!((a.stack.scheduler.as_deref(), &b.stack.scheduler), (Some("redundant"), &None));
    let m1 = a.stack.opportunistic_retransmission;
    assert_eq!((m1, a.stack.penalisation), (OpportunisticMode::Guarded, OpportunisticMode::Off));
    let modes = (a.stack.receive_buffer_mode, b.stack.receive_buffer_mode);
    assert_eq!(modes, (ReceiveBufferMode::Linux, ReceiveBufferMode::Fixed));
    assert!(a.stack.checksum && b.stack.checksum && a.stack.smallest_mss && !b.stack.smallest_mss);
    assert_eq!(
        a.stack.given,
        ["profile-switches", "scheduler", "mss", "profile", "penalisation", "checksum"]
    );
    assert!(parse_body("").hosts[0].stack.given.is_empty());
}

#[test]
fn files_with_former_names_are_read_like_files_with_present_names() {
    let text = "\
        [[middleboxes]]\npath = \"p\"\naction = \"strip-dss\"
        [paths.q]\nbetween = [\"a\", \"b\"]\nrate = \"5 Mbit/s\"
        queue-position = \"host\"\nsegmentation = \"split\"
        [[timeline]]\nat = \"1 s\"\npath = \"p\"\nset = \"down\"
        mode = \"interface\"\nhost = \"a\"
        [[flows]]\nfrom = \"a\"\nto = \"b\"\npattern = \"onoff\"
        preset = \"voice-assistant\"\nreply-timeout = \"7 s\"
        [run]\nstack = \"towpath\"\npenalisation = \"mptcp-org\"
        receive-buffer-mode = \"barre2011\"\n";
    let former_text = text
        .replace("action =", "do =")
        .replace("queue-position =", "position =")
        .replace("segmentation =", "segments =")
        .replace("mode = \"interface", "how = \"interface")
        .replace("voice-assistant", "siri")
        .replace("reply-timeout =", "patience =")
        .replace("mptcp-org", "guarded")
        .replace("barre2011", "seed003");
    assert_ne!(text, former_text);
    let source = String::new();
    assert_eq!(
        Scenario { source, ..parse_body(&former_text) },
        Scenario { source: String::new(), ..parse_body(text) }
    );
}

#[test]
fn a_key_under_both_names_is_an_error() {
    let text = format!("{HEAD}queue-position = \"host\"\nposition = \"host\"\n");
    let error = Scenario::parse("t.toml", &text, &load_file).unwrap_err().to_string();
    assert!(error.contains("unknown key `position`"), "{error}");
}

#[test]
fn a_middlebox_belongs_to_a_path() {
    let boxes =
        parse_body("[[middleboxes]]\npath = \"p\"\naction = \"strip-dss\"\ndirection = \"up\"")
            .middleboxes;
    let expected = Middlebox { path: 0, side: LinkSide::Up, action: MiddleboxAction::StripDss };
    assert_eq!(boxes, [expected]);
}

#[test]
fn htb_is_the_parent_of_netem() {
    let link = parse_body("rate = \"8 Mbit/s\"\nqueue = { htb = { burst = \"15 KB\" } }")
        .paths
        .remove(0)
        .up;
    let rate = Rate::from_bps(8_000_000).unwrap();
    assert_eq!(link.shaper, Shaper::Htb { rate, burst_bytes: 15_000, cburst_bytes: 1_600 });
    assert_eq!((link.order, link.limit_packets), (PipelineOrder::DelayThenServer, Some(1_000)));
}

#[test]
fn flows_have_the_usual_defaults() {
    let flows = parse_body(
        "[[flows]]\nfrom = \"b\"\nto = \"a\"\npattern = \"bulk\"\nsize = \"1 MB\"\n
        [[flows]]\nfrom = \"a\"\nto = \"b\"\npattern = \"iperf\"\n
        [[flows]]\nfrom = \"a\"\nto = \"b\"\nrun = \"curl b\"\nfamily = \"v6\"\n
        [[flows]]\nfrom = \"a\"\nto = \"b\"\npattern = \"iperf\"\ntransport = \"tcp\"\n",
    )
    .flows;
    let minute = Duration::from_secs(60);
    let up = DataDirection::Up;
    let bulk = Pattern::Bulk { size_bytes: Some(1_000_000), duration: minute, direction: up };
    assert_eq!((&flows[0].pattern, flows[0].via, flows[0].from), (&bulk, 0, 1));
    let duration = Duration::from_secs(10);
    assert_eq!(flows[1].pattern, Pattern::Iperf { duration, direction: up, streams: 1 });
    assert_eq!((flows[2].pattern.duration(), flows[2].family), (minute, Family::V6));
    let transports = [&flows[1], &flows[3]].map(|flow| flow.transport_in(Transport::Mptcp));
    assert_eq!(transports, [Transport::Mptcp, Transport::Tcp]);
}

#[test]
fn host_settings_are_parsed() {
    let scenario = parse_scenario(
        "name = \"t\"\n[hosts.a]\nreceive-buffer = \"400 KB\"\ncongestion-control = \"reno\"
        sysctl = { \"net.mptcp.checksum_enabled\" = 1, net.ipv4.tcp_sack = \"0\" }
        mptcp = { subflows = 2, endpoints = [{ path = \"p\", flags = [\"signal\", \"backup\"] }] }
        [hosts.b]\n[paths.p]\nbetween = [\"a\", \"b\"]\n",
    );
    let host = &scenario.hosts[0];
    assert_eq!((host.receive_buffer, host.send_buffer), (Some([400_000; 3]), None));
    let sysctl = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let expected = [sysctl("net.mptcp.checksum_enabled", "1"), sysctl("net.ipv4.tcp_sack", "0")];
    assert_eq!(host.sysctls, expected);
    let endpoint = host.mptcp.endpoints.as_ref().unwrap()[0];
    assert!(endpoint.signal && endpoint.backup && !endpoint.subflow);
    assert_eq!((host.mptcp.subflows, host.mptcp.add_addr_accepted), (Some(2), None));
}

#[test]
fn events_are_sorted_and_fades_expanded() {
    let timeline = parse_body(
        "rate = \"40 Mbit/s\"
        [[timeline]]\nat = \"5 s\"\npath = \"p\"\nset = \"up\"
        [[timeline]]\nat = \"1 s\"\npath = \"p\"\nset = \"rate\"\nrate = \"20 Mbit/s\"
        [[timeline]]\nat = \"2 s\"\npath = \"p\"\nset = \"fade\"
        over = \"100 ms\"\nrate = \"10 Mbit/s\"
        [[timeline]]\nat = \"2060 ms\"\npath = \"p\"\nset = \"down\"\nmode = \"carrier\"\n",
    )
    .timeline;
    let times_ms: Vec<u128> = timeline.iter().map(|event| event.at.as_millis()).collect();
    assert_eq!(times_ms, [1_000, 2_050, 2_060, 2_100, 5_000]);
    // The fade starts from the rate set by the previous event.
    let midpoint = Rate::from_bps(15_000_000).unwrap();
    assert_eq!(timeline[1].change, TimelineChange::Rate(LinkSide::Both, midpoint));
    assert_eq!(timeline[2].change, TimelineChange::Down(DownMode::Carrier));
}

#[test]
fn a_new_delay_keeps_the_jitter() {
    let timeline = parse_body(
        "delay = \"10 ms\"\njitter = { sd = \"1 ms\" }
        [[timeline]]\nat = \"1 s\"\npath = \"p\"\nset = \"delay\"\ndelay = \"30 ms\"\n",
    )
    .timeline;
    let TimelineChange::Delay(LinkSide::Both, delay) = timeline[0].change else {
        panic!("{timeline:?}")
    };
    assert_eq!(delay.base, Duration::from_millis(30));
    assert_eq!(delay.jitter.unwrap().sd, Duration::from_millis(1));
}

/// Pattern of the only flow.
fn pattern(keys: &str) -> Pattern {
    let flow = format!("[[flows]]\nfrom = \"a\"\nto = \"b\"\n{keys}\n");
    parse_body(&flow).flows.remove(0).pattern
}

#[test]
fn the_presets_match_the_paper_and_its_program() {
    let fixed_schedule = |keys: &str| {
        let Pattern::Exchange(MessageExchange { schedule, direction, warm_up, .. }) = pattern(keys)
        else {
            panic!("{keys}")
        };
        let Schedule::Every { period, count, request_bytes, reply_bytes, ack } = schedule else {
            panic!("{keys}")
        };
        ((request_bytes, reply_bytes, ack), period.as_millis(), count, direction, warm_up)
    };
    let (up, both) = (DataDirection::Up, DataDirection::Both);
    let paper = ((2_000, 750, true), 100, 100, both, 0);
    assert_eq!(fixed_schedule("pattern = \"interactive\""), paper);
    assert_eq!(fixed_schedule("pattern = \"interactive\"\npreset = \"paper\""), paper);
    let code = fixed_schedule("pattern = \"interactive\"\npreset = \"code\"\nduration = \"7 s\"");
    assert_eq!(code, ((2_000, 9, false), 100, 70, both, 0));
    assert_eq!(fixed_schedule("pattern = \"ping\""), ((100, 10, false), 200, 6, up, 1));
    let reqres = fixed_schedule("pattern = \"reqres\"\nrequest = \"1 kB\"\nperiod = \"350 ms\"");
    assert_eq!(reqres, ((1_000, 750, false), 350, 40, up, 0));
    let bulk = pattern("pattern = \"bulk\"\npreset = \"paper\"");
    let duration = Duration::from_secs(60);
    let (size_bytes, direction) = (Some(10_000_000), DataDirection::Down);
    assert_eq!(bulk, Pattern::Bulk { size_bytes, duration, direction });
    let iperf = pattern("pattern = \"iperf\"\npreset = \"paper\"");
    let duration = Duration::from_secs(7);
    assert_eq!(iperf, Pattern::Iperf { duration, direction: up, streams: 1 });
}

#[test]
fn a_list_of_messages_may_be_a_file_and_need_not_be_in_order() {
    let text = "pattern = \"trace\"\nmessages = \"talk.txt\"";
    let Pattern::Exchange(MessageExchange { schedule, direction, .. }) = pattern(text) else {
        panic!("{text}")
    };
    assert_eq!(direction, DataDirection::Both);
    let request_at = |direction, index| {
        let request: PlannedRequest = schedule.get(direction, index)?;
        Some((request.at.as_millis(), request.request_bytes, request.reply_bytes))
    };
    assert_eq!(request_at(DataDirection::Up, 0), Some((0, 2_000, 750)));
    assert_eq!(request_at(DataDirection::Up, 1), None);
    assert_eq!(request_at(DataDirection::Down, 0), Some((500, 100, 1_000_000)));
    assert_eq!(request_at(DataDirection::Down, 1), Some((1_500, 20_000, 9)));
}

#[test]
fn a_load_is_a_separate_flow() {
    let flows = parse_body(
        "[[flows]]\nfrom = \"a\"\nto = \"b\"\npattern = \"ping\"\nload = \"down\"\nstart = \"2 s\"\n
        [[flows]]\nfrom = \"b\"\nto = \"a\"\npattern = \"web\"\n",
    )
    .flows;
    let names: Vec<_> = flows.iter().map(|flow| (flow.pattern.name(), flow.from)).collect();
    assert_eq!(names, [("ping", 0), ("iperf", 0), ("web", 1)]);
    assert_eq!(flows[1].start, Duration::from_secs(2));
    assert_eq!(flows[1].pattern.duration(), flows[0].pattern.duration());
    assert!(flows[0].pattern.limit() > flows[0].pattern.duration());
}

#[test]
fn expectations_may_be_written_without_quotes_in_the_key() {
    let expect =
        parse_body("[expect]\nmptcp.stall.longest = \"<= 500 ms\"\nshare.p = \"> 10 %\"\n").expect;
    assert_eq!((expect[0].metric.as_str(), expect[0].bound), ("stall.longest", 0.5));
    assert_eq!((expect[1].metric.as_str(), expect[1].bound), ("share.p", 0.1));
    assert_eq!(expect[1].transport, None);
}

#[test]
fn every_key_of_the_tables_is_read() {
    let reader_source = [
        include_str!("read/call.rs"),
        include_str!("read/flows.rs"),
        include_str!("read/hosts.rs"),
        include_str!("read/link.rs"),
        include_str!("read/mod.rs"),
        include_str!("read/paths.rs"),
        include_str!("read/pattern.rs"),
        include_str!("read/stack.rs"),
        include_str!("read/timeline.rs"),
        include_str!("section.rs"),
    ]
    .concat();
    // The last table lists metrics, not keys.
    let schemas = keys::ALL.iter().take(keys::ALL.len() - 1);
    for key in schemas.flat_map(|schema| schema.keys()) {
        assert!(reader_source.contains(&format!("\"{}\"", key.name)), "{}", key.name);
    }
}

/// Checks that `value` matches `schema`, except for regular expressions.
fn check_schema(schema: &Json, value: &Json, location: &str) -> Result<(), String> {
    if let Some(options) = schema["anyOf"].as_array() {
        let results: Vec<_> = options.iter().map(|s| check_schema(s, value, location)).collect();
        return if results.iter().any(Result::is_ok) {
            Ok(())
        } else {
            results.into_iter().next().unwrap()
        };
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.contains(value)
    {
        return Err(format!("{location}: {value} is not one of {words:?}"));
    }
    let is_type = |name: &Json| match name.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64(),
        "boolean" => value.is_boolean(),
        unknown => panic!("{unknown}"),
    };
    if schema["type"].is_string() && !is_type(&schema["type"]) {
        return Err(format!("{location}: {value} is not {}", schema["type"]));
    }
    for (i, element) in value.as_array().into_iter().flatten().enumerate() {
        check_schema(&schema["items"], element, &format!("{location}[{i}]"))?;
    }
    let Some(object) = value.as_object() else { return Ok(()) };
    for key in schema["required"].as_array().into_iter().flatten() {
        if !object.contains_key(key.as_str().unwrap()) {
            return Err(format!("{location}: no {key}"));
        }
    }
    for (key, inner) in object {
        let location = format!("{location}.{key}");
        match (schema["properties"].get(key), &schema["additionalProperties"]) {
            (Some(property), _) => check_schema(property, inner, &location)?,
            (None, Json::Bool(false)) => return Err(format!("{location}: unknown key")),
            (None, _) if schema["patternProperties"].is_object() => {}
            (None, default) => check_schema(default, inner, &location)?,
        }
    }
    Ok(())
}

#[test]
fn every_builtin_scenario_fits_the_schema() {
    let schema = json_schema();
    for builtin in builtin() {
        let value: Json = toml::from_str(builtin.text).unwrap();
        check_schema(&schema, &value, builtin.name).unwrap();
    }
    let invalid: Json = toml::from_str(&format!("{HEAD}rte = \"1 Mbit/s\"")).unwrap();
    assert_eq!(check_schema(&schema, &invalid, "t").unwrap_err(), "t.paths.p.rte: unknown key");
}

/// Parses anything; errors must fit into lines of at most 100 columns.
fn parse_any(bytes: &[u8]) -> Result<(), TestCaseError> {
    if let Err(errors) = Scenario::parse_bytes("f.toml", bytes, &load_file) {
        for line in errors.to_string().lines() {
            prop_assert!(line.chars().count() <= 100, "{line}");
        }
    }
    Ok(())
}

/// Fragments from which random scenarios are built.
const FRAGMENTS: [&str; 24] = [
    "name = \"t\"\n",
    "[hosts.a]\n",
    "[hosts.b]\n",
    "[paths.p]\n",
    "between = [\"a\", \"b\"]\n",
    "rate = ",
    "delay = ",
    "queue = ",
    "\"40 Mbit/s\"\n",
    "\"15 ms\"\n",
    "-1\n",
    "{ up = ",
    "[[timeline]]\n",
    "at = \"1 s\"\n",
    "path = \"p\"\n",
    "set = \"fade\"\n",
    "over = \"1 s\"\n",
    "[[flows]]\n",
    "pattern = \"bulk\"\n",
    "[expect]\n",
    "\"goodput\" = \">= 1 Mbit/s\"\n",
    "[run]\n",
    "preset = \"mahimahi\"\n",
    "{ htb = {} }\n",
];

proptest! {
    #[test]
    fn no_bytes_cause_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        parse_any(&bytes)?;
    }

    #[test]
    fn no_sequence_of_fragments_causes_a_panic(
        indices in proptest::collection::vec(0..24_usize, 0..40),
    ) {
        let text: String = indices.iter().map(|&i| FRAGMENTS[i]).collect();
        parse_any(text.as_bytes())?;
    }

    #[test]
    fn no_edit_of_a_builtin_causes_a_panic(
        builtin_index in 0..9_usize,
        edits in proptest::collection::vec(
            (any::<prop::sample::Index>(), 0..12_usize, ".{0,8}"),
            1..6,
        ),
    ) {
        let mut bytes = builtin()[builtin_index].text.as_bytes().to_vec();
        for (position, length, inserted) in edits {
            let start = position.index(bytes.len().max(1)).min(bytes.len());
            let end = (start + length).min(bytes.len());
            bytes.splice(start..end, inserted.bytes());
        }
        parse_any(&bytes)?;
    }

    #[test]
    fn no_change_of_a_value_causes_a_panic(
        builtin_index in 0..9_usize,
        line in any::<prop::sample::Index>(),
        value in prop_oneof![
            Just("1"), Just("-1"), Just("true"), Just("[]"), Just("{}"), Just("\"\""),
            Just("\"0 s\""), Just("\"1 packets\""), Just("1979-05-27"), Just("[[{}]]"),
            Just("{ up = 1, down = {} }"), Just("\"99999999 h\""), Just("nan"), Just("\"a.b\""),
        ],
    ) {
        let lines: Vec<&str> = builtin()[builtin_index].text.lines().collect();
        let changed = line.index(lines.len());
        let text: String = lines
            .iter()
            .enumerate()
            .map(|(i, line)| match line.split_once('=') {
                Some((key, _)) if i == changed => format!("{key} = {value}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        parse_any(text.as_bytes())?;
    }
}
