//! Parses `[paths]` and `[bottlenecks]`.

use towpath_net::config::DirectionConfig;

use super::link::{integer, link};
use super::{NameTable, NamedTable, ReadContext, UNKNOWN_ENDS};
use crate::keys::{BOTTLENECK, PATH};
use crate::model::{Bottleneck, Path, SegmentationMode};
use crate::problem::quote;
use crate::section::{Section, Value};

const EXPECTED_PAIR: &str = "expected two hosts such as `[\"client\", \"server\"]`";
const DEFAULT_MTU_BYTES: u32 = 1_500;

pub(super) fn bottlenecks(
    entries: &[NamedTable<'_>],
    names: &NameTable,
    context: &ReadContext<'_>,
) -> Vec<Bottleneck> {
    let parse_entry = |(name, span, value): &NamedTable<'_>| {
        if names.paths.contains(name) {
            let message = format!("{} is also the name of a path", quote(name));
            value.fail_at(span, message, "expected a name of its own");
        }
        let label = format!("bottleneck `{name}`");
        let section = value.section(&BOTTLENECK, label, "expected a table: `[bottlenecks.NAME]`");
        let [up, down] = section.map_or_else(Default::default, |mut section| {
            let sides = link(&mut section, context, None);
            section.finish();
            sides
        });
        Bottleneck { name: name.clone(), up, down }
    };
    entries.iter().map(parse_entry).collect()
}

pub(super) fn paths(
    entries: &[NamedTable<'_>],
    names: &NameTable,
    context: &ReadContext<'_>,
) -> Vec<Path> {
    let parse_entry = |(name, _, value): &NamedTable<'_>| {
        let label = format!("path `{name}`");
        let Some(mut section) = value.section(&PATH, label, "expected a table: `[paths.NAME]`")
        else {
            // Keeps the indices of the other paths; the scenario is rejected anyway.
            return placeholder_path(name);
        };
        let path = path(name, &mut section, names, context);
        section.finish();
        path
    };
    entries.iter().map(parse_entry).collect()
}

fn path(
    name: &str,
    section: &mut Section<'_>,
    names: &NameTable,
    context: &ReadContext<'_>,
) -> Path {
    let between = section
        .require("between", "between = [\"client\", \"server\"]")
        .and_then(|value| host_pair(&value, names));
    let mtu_bytes = integer(section.take("mtu"), 576, 65_535).unwrap_or(DEFAULT_MTU_BYTES);
    let [up, down] = link(section, context, Some(mtu_bytes));
    let backup = section.take("backup").and_then(|v| v.boolean()).unwrap_or(false);
    let through = section.take("through").map_or_else(Vec::new, |v| bottleneck_indices(&v, names));
    let words = [
        ("auto", SegmentationMode::Auto),
        ("split", SegmentationMode::Split),
        ("coalesced", SegmentationMode::Coalesced),
    ];
    let segmentation =
        section.take("segmentation").and_then(|v| v.word(&words)).unwrap_or(SegmentationMode::Auto);
    let (name, between) = (name.to_owned(), between.unwrap_or(UNKNOWN_ENDS));
    Path { name, between, up, down, mtu_bytes, backup, through, segmentation }
}

fn placeholder_path(name: &str) -> Path {
    Path {
        name: name.to_owned(),
        between: UNKNOWN_ENDS,
        up: DirectionConfig::default(),
        down: DirectionConfig::default(),
        mtu_bytes: DEFAULT_MTU_BYTES,
        backup: false,
        through: Vec::new(),
        segmentation: SegmentationMode::Auto,
    }
}

fn host_pair(value: &Value<'_>, names: &NameTable) -> Option<[usize; 2]> {
    let list = value.list(EXPECTED_PAIR)?;
    let [first, second] = list.as_slice() else {
        value.fail(format!("a path has two ends, not {}", list.len()), EXPECTED_PAIR);
        return None;
    };
    let (first_host, second_host) = (names.host(first), names.host(second));
    let (first_host, second_host) = (first_host?, second_host?);
    if first_host == second_host {
        second.fail("a path cannot lead from a host to itself", "expected another host");
        return None;
    }
    Some([first_host, second_host])
}

fn bottleneck_indices(value: &Value<'_>, names: &NameTable) -> Vec<usize> {
    let mut indices = Vec::new();
    for element in value.list("expected a list of bottlenecks in brackets").unwrap_or_default() {
        let Some(index) = names.bottleneck(&element) else { continue };
        if indices.contains(&index) {
            element.fail("a path goes through a bottleneck once", "remove the second");
        } else {
            indices.push(index);
        }
    }
    indices
}
