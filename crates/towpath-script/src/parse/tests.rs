use towpath_wire::Flags;

use super::*;
use crate::script::{Checksum, DssPattern, MapPattern, NumberRange, OptionPattern, Presence};

const HEAD: &str = "title: it holds\nsection: rfc9293 3.1\n\n";

fn parse_single_step(text: &str) -> ScriptStep {
    parse("tcp/x", &format!("{HEAD}{text}\n")).unwrap().steps.remove(0)
}

fn parse_error(text: &str) -> String {
    parse("tcp/x", text).unwrap_err().to_string()
}

#[test]
fn a_script_header_names_sections_role_and_settings() {
    let text = "# first\n# second\n\ntitle: it holds\nsection: rfc9293 3.1, rfc8684 3.2\nrole: client\n\
                transport: mptcp\nset: endpoint 1 subflow backup\nline: 1 host 1 peer 0\n\nconnect\n";
    let script = parse("mptcp/x", text).unwrap();
    assert_eq!(script.sections, ["rfc9293 3.1", "rfc8684 3.2"]);
    assert_eq!((script.role, script.transport), (Role::Client, Transport::Mptcp));
    assert_eq!(endpoint(&script.settings[0].value).unwrap().0, 1);
    assert_eq!((script.routes[0].peer, script.routes[0].by_peer), (0, false));
}

#[test]
fn a_packet_has_its_fields_in_any_order() {
    let step =
        parse_single_step("+200ms..1.5s 2> FIN ACK 1:1001 ack 1 win 10.. <sack 5:7 9:11, ts * 4>");
    assert_eq!(step.when.to, Duration::from_millis(1_500));
    let StepAction::Expect { subflow: 2, packet } = step.action else { panic!("{step:?}") };
    assert_eq!(packet.flags, Flags::FIN.with(Flags::ACK));
    assert_eq!((packet.seq, packet.len), (Some(1), NumberRange::exactly(1_000)));
    assert_eq!(packet.window, Some(NumberRange { from: 10, to: u64::MAX }));
    assert_eq!(packet.options[0], OptionPattern::Sack(vec![(5, 7), (9, 11)]));
}

#[test]
fn a_packet_without_flags_is_an_ack() {
    let StepAction::Inject { packet, .. } = parse_single_step("< -1:99 <dss dsn 7 badcsum>").action
    else {
        panic!("no packet")
    };
    assert_eq!((packet.flags, packet.seq), (Flags::ACK, Some(u32::MAX)));
    let map = MapPattern { dsn: Some(7), checksum: Checksum::Invalid, ..MapPattern::default() };
    let dss = DssPattern { map: Presence::Given(map), ..DssPattern::default() };
    assert_eq!(packet.options, [OptionPattern::Dss(dss)]);
}

#[test]
fn a_difference_has_a_host_kind_and_a_name() {
    let step = parse_single_step("[linux: no-probe] silence 3s");
    assert_eq!(step.only, Some((HostKind::Linux, "no-probe".to_owned())));
    assert!(parse_error(&format!("{HEAD}[linux] silence 3s")).contains("[linux: NAME]"));
}

#[test]
fn invalid_script_lines_are_reported_with_their_number() {
    assert_eq!(parse_error("section: rfc1 1\n"), "line 1: no `title:`");
    for (text, expected) in [
        ("> SYM", "line 4: `SYM` is not a number"),
        ("+3 > SYN", "line 4: `3` is not a time"),
        ("< <mss 1460", "line 4: expected `>`"),
        ("read -> x", "line 4: `x` is not an outcome"),
        ("close now", "line 4: `now` was not expected"),
        ("+1s fly", "line 4: `fly` is not a step"),
    ] {
        let error = parse_error(&format!("{HEAD}{text}"));
        assert!(error.starts_with(expected), "{error}");
    }
}
