//! Parses `[paths]` and `[bottlenecks]`.

use towpath_net::config::DirectionConfig;

use super::link::{integer, link};
use super::{NameTable, NamedTable, ReadContext, UNKNOWN_ENDS};
use crate::scenario::keys::{BOTTLENECK, PATH};
use crate::scenario::model::{Bottleneck, Path, SegmentationMode};
use crate::scenario::problem::quote;
use crate::scenario::section::{Section, Value};

const A_PAIR: &str = "expected two hosts such as `[\"client\", \"server\"]`";
const DEFAULT_MTU_BYTES: u32 = 1_500;

pub(super) fn bottlenecks(
    entries: &[NamedTable<'_>],
    names: &NameTable,
    context: &ReadContext<'_>,
) -> Vec<Bottleneck> {
    let read = |(name, span, value): &NamedTable<'_>| {
        if names.paths.contains(name) {
            let message = format!("{} is also the name of a path", quote(name));
            value.fail_at(span, message, "expected a name of its own");
        }
        let what = format!("bottleneck `{name}`");
        let section = value.section(&BOTTLENECK, what, "expected a table: `[bottlenecks.NAME]`");
        let [up, down] = section.map_or_else(Default::default, |mut section| {
            let sides = link(&mut section, context, None);
            section.finish();
            sides
        });
        Bottleneck { name: name.clone(), up, down }
    };
    entries.iter().map(read).collect()
}

pub(super) fn paths(
    entries: &[NamedTable<'_>],
    names: &NameTable,
    context: &ReadContext<'_>,
) -> Vec<Path> {
    let read = |(name, _, value): &NamedTable<'_>| {
        let what = format!("path `{name}`");
        let Some(mut section) = value.section(&PATH, what, "expected a table: `[paths.NAME]`")
        else {
            // Keeps the indices of the other paths; the scenario is rejected anyway.
            return unknown(name);
        };
        let path = path(name, &mut section, names, context);
        section.finish();
        path
    };
    entries.iter().map(read).collect()
}

fn path(
    name: &str,
    section: &mut Section<'_>,
    names: &NameTable,
    context: &ReadContext<'_>,
) -> Path {
    let between = section
        .require("between", "between = [\"client\", \"server\"]")
        .and_then(|value| ends(&value, names));
    let mtu_bytes = integer(section.take("mtu"), 576, 65_535).unwrap_or(DEFAULT_MTU_BYTES);
    let [up, down] = link(section, context, Some(mtu_bytes));
    let backup = section.take("backup").and_then(|v| v.boolean()).unwrap_or(false);
    let through = section.take("through").map_or_else(Vec::new, |v| through(&v, names));
    let words = [
        ("auto", SegmentationMode::Auto),
        ("split", SegmentationMode::Split),
        ("coalesced", SegmentationMode::Coalesced),
    ];
    let segments =
        section.take("segmentation").and_then(|v| v.word(&words)).unwrap_or(SegmentationMode::Auto);
    let (name, between) = (name.to_owned(), between.unwrap_or(UNKNOWN_ENDS));
    Path { name, between, up, down, mtu_bytes, backup, through, segmentation: segments }
}

fn unknown(name: &str) -> Path {
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

fn ends(value: &Value<'_>, names: &NameTable) -> Option<[usize; 2]> {
    let list = value.list(A_PAIR)?;
    let [first, second] = list.as_slice() else {
        value.fail(format!("a path has two ends, not {}", list.len()), A_PAIR);
        return None;
    };
    let (from, to) = (names.host(first), names.host(second));
    let (from, to) = (from?, to?);
    if from == to {
        second.fail("a path cannot lead from a host to itself", "expected another host");
        return None;
    }
    Some([from, to])
}

fn through(value: &Value<'_>, names: &NameTable) -> Vec<usize> {
    let mut found = Vec::new();
    for element in value.list("expected a list of bottlenecks in brackets").unwrap_or_default() {
        let Some(index) = names.bottleneck(&element) else { continue };
        if found.contains(&index) {
            element.fail("a path goes through a bottleneck once", "remove the second");
        } else {
            found.push(index);
        }
    }
    found
}
