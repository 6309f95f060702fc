//! Parses the table `[hosts]`.

use super::link::integer;
use super::{NameTable, NamedTable, UNKNOWN_ENDS, stack};
use crate::keys::{ENDPOINT, HOST, MPTCP};
use crate::model::{Endpoint, Host, MptcpConfig, Path};
use crate::network::MAX_ENDPOINTS;
use crate::problem::quote;
use crate::section::{Section, Value};
use crate::stack::StackOverrides;

/// Maximum of the kernel's buffer sysctls.
const MAX_BUFFER: u64 = i32::MAX as u64;

pub(super) fn hosts(
    entries: &[NamedTable<'_>],
    names: &NameTable,
    paths: &[Path],
    run: &StackOverrides,
) -> Vec<Host> {
    if let [(_, span, value)] = entries {
        value.fail_at(span, "a scenario has two hosts or more", "add another one");
    }
    let parse_host = |(i, (name, _, value)): (usize, &NamedTable<'_>)| {
        let label = format!("host `{name}`");
        let mut section = value.section(&HOST, label, "expected a table: `[hosts.NAME]`")?;
        let host = Host {
            name: name.clone(),
            congestion_control: section
                .take("congestion-control")
                .and_then(|v| congestion_control_name(&v)),
            receive_buffer: section.take("receive-buffer").and_then(|v| buffer(&v)),
            send_buffer: section.take("send-buffer").and_then(|v| buffer(&v)),
            sysctls: section.take("sysctl").map_or_else(Vec::new, |v| sysctls(&v)),
            mptcp: section
                .take("mptcp")
                .and_then(|v| mptcp(&v, i, names, paths))
                .unwrap_or_default(),
            stack: stack::stack_overrides(&mut section).resolve(run),
        };
        section.finish();
        Some(host)
    };
    entries.iter().take(names.hosts.len()).enumerate().filter_map(parse_host).collect()
}

/// Parses the name of a congestion control, as `net.ipv4.tcp_congestion_control` takes it.
pub(super) fn congestion_control_name(value: &Value<'_>) -> Option<String> {
    let name = value.text()?;
    let is_valid = (1..=15).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if !is_valid {
        let message = format!("{} cannot be a congestion control", quote(name));
        value.fail(message, "expected a name such as `cubic`, `reno` or `bbr`");
        return None;
    }
    Some(name.to_owned())
}

fn buffer(value: &Value<'_>) -> Option<[u64; 3]> {
    let expected = "expected a size such as `400 KB`, or a list of minimum, default and maximum";
    let parse_size = |v: &Value<'_>| {
        let bytes = v.size()?;
        if bytes > MAX_BUFFER {
            v.fail("the kernel takes no buffer above 2 GiB", "expected less than `2 GiB`");
            return None;
        }
        Some(bytes)
    };
    if value.as_str().is_some() || value.as_number().is_some() {
        return parse_size(value).map(|bytes| [bytes; 3]);
    }
    let list = value.list(expected)?;
    let [min, default, max] = list.as_slice() else {
        value.fail(format!("a buffer has three sizes, not {}", list.len()), expected);
        return None;
    };
    let sizes = [parse_size(min), parse_size(default), parse_size(max)];
    let [Some(min), Some(default), Some(max)] = sizes else { return None };
    if min > default || default > max {
        value.fail("the sizes of a buffer do not decrease", expected);
    }
    Some([min, default, max])
}

/// An unquoted `net.mptcp.checksum_enabled = 1` is a nested table in TOML, with the same meaning.
fn sysctls(value: &Value<'_>) -> Vec<(String, String)> {
    let mut settings = Vec::new();
    if value.as_table().is_none() {
        value.wrong_type("expected a table such as `{ \"net.mptcp.checksum_enabled\" = 1 }`");
    }
    collect_sysctls(value, "", &mut settings);
    settings
}

fn collect_sysctls(value: &Value<'_>, prefix: &str, settings: &mut Vec<(String, String)>) {
    for (key, inner) in value.as_table().into_iter().flatten() {
        let name = format!("{prefix}{}", key.get_ref());
        let inner = value.nested(&name, key.span(), inner);
        if inner.as_table().is_some() {
            collect_sysctls(&inner, &format!("{name}."), settings);
            continue;
        }
        let is_valid = name.starts_with("net.")
            && !name.contains("..")
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
        if !is_valid {
            let message = format!("{} is not a setting of a network namespace", quote(&name));
            inner.fail_at(&key.span(), message, "expected a name that starts with `net.`");
            continue;
        }
        match (inner.as_str(), inner.as_number()) {
            (Some(text), _) if !text.contains(['\n', '\0']) => {
                settings.push((name, text.to_owned()));
            }
            (Some(_), _) => inner.fail("a setting is one line", "expected a text or an integer"),
            (None, Some(number)) if !number.contains('.') => settings.push((name, number)),
            (None, _) => inner.wrong_type("expected a text or an integer"),
        }
    }
}

fn mptcp(value: &Value<'_>, host: usize, names: &NameTable, paths: &[Path]) -> Option<MptcpConfig> {
    let expected = "expected a table such as `{ subflows = 2 }`";
    let mut section = value.section(&MPTCP, "the MPTCP settings", expected)?;
    let limit = |v| integer(v, 0, 8).and_then(|n| u8::try_from(n).ok());
    let subflows = limit(section.take("subflows"));
    let add_addr_accepted = limit(section.take("add-addr-accepted"));
    let endpoints = section.take("endpoints").map(|v| endpoints(&v, host, names, paths));
    section.finish();
    Some(MptcpConfig { subflows, add_addr_accepted, endpoints })
}

fn endpoints(value: &Value<'_>, host: usize, names: &NameTable, paths: &[Path]) -> Vec<Endpoint> {
    let expected = "expected a list such as `[{ path = \"wifi\", flags = [\"subflow\"] }]`";
    let list = super::sections(value, &ENDPOINT, "the endpoint", expected);
    if list.len() > MAX_ENDPOINTS {
        value.fail("the kernel takes at most 8 endpoints", "remove some");
    }
    let mut parsed: Vec<Endpoint> = Vec::new();
    for mut section in list {
        let endpoint = endpoint(&mut section, host, names, paths);
        if let Some(endpoint) = endpoint {
            if parsed.iter().any(|other| other.path == endpoint.path) {
                section.fail("this path has an endpoint already", "give it all flags at once");
            }
            parsed.push(endpoint);
        }
        section.finish();
    }
    parsed
}

fn endpoint(
    section: &mut Section<'_>,
    host: usize,
    names: &NameTable,
    paths: &[Path],
) -> Option<Endpoint> {
    let path = section.require("path", "path = \"wifi\"").and_then(|value| {
        let index = names.path(&value)?;
        let ends = paths.get(index).map(|path| path.between);
        if ends.is_some_and(|ends| ends != UNKNOWN_ENDS && !ends.contains(&host)) {
            value.fail("this path does not end at this host", "expected one of the host's paths");
        }
        Some(index)
    });
    let flags = section.require("flags", "flags = [\"subflow\"]");
    let mut endpoint = Endpoint {
        path: 0,
        subflow: false,
        signal: false,
        backup: false,
        fullmesh: false,
        laminar: false,
    };
    if let Some(flags) = flags {
        set_flags(&flags, &mut endpoint);
    }
    Some(Endpoint { path: path?, ..endpoint })
}

fn set_flags(flags: &Value<'_>, endpoint: &mut Endpoint) {
    let words = [("subflow", 0), ("signal", 1), ("backup", 2), ("fullmesh", 3), ("laminar", 4)];
    let list = flags.list("expected a list such as `[\"subflow\"]`").unwrap_or_default();
    if list.is_empty() && flags.list("").is_some() {
        flags.fail("an endpoint without flag does nothing", "expected one such as `subflow`");
    }
    for flag in list {
        match flag.word(&words) {
            Some(0) => endpoint.subflow = true,
            Some(1) => endpoint.signal = true,
            Some(2) => endpoint.backup = true,
            Some(3) => endpoint.fullmesh = true,
            Some(_) => endpoint.laminar = true,
            None => {}
        }
    }
    if endpoint.signal && endpoint.fullmesh {
        let expected = "expected one of them, as the kernel does";
        flags.fail("`signal` and `fullmesh` exclude each other", expected);
    }
}
