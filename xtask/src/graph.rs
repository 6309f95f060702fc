//! `cargo xtask graph`: draws which crate uses which, from cargo's metadata.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::Value;

use crate::tidy::{Platform, crate_platform};

/// Place of the picture in the repository.
pub(crate) const PATH: &str = "docs/images/crates.svg";

const BOX_WIDTH: usize = 92;
const BOX_HEIGHT: usize = 28;
const COLUMN: usize = 104;
const ROW: usize = 84;
const MARGIN: usize = 16;
/// Height of the headings above the boxes.
const HEADING: usize = 30;
/// Passes that order the boxes of a row by what they are connected to.
const ORDER_PASSES: usize = 8;

/// Crates, each with those of ours that it uses outside of its tests.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// Returns the picture as SVG.
pub(crate) fn draw(metadata: &Value) -> String {
    let uses = without_indirect(&uses(metadata));
    let rows = rows(&uses);
    let portable = columns(&uses, &rows, Platform::Any);
    let linux = columns(&uses, &rows, Platform::Linux);
    let portable_width = width(&portable);
    let mut places: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    let height = rows.values().max().map_or(0, |top| *top) * ROW + BOX_HEIGHT + HEADING;
    for (columns, left) in [(&portable, 0), (&linux, portable_width)] {
        let region = width(columns);
        for (row, names) in columns {
            let start = left + (region - names.len() * COLUMN) / 2;
            for (column, name) in (0..).zip(names) {
                let x = MARGIN + start + column * COLUMN + (COLUMN - BOX_WIDTH) / 2;
                places.insert(name, (x, MARGIN + height - BOX_HEIGHT - *row * ROW));
            }
        }
    }
    let size = (2 * MARGIN + portable_width + width(&linux), 2 * MARGIN + height);
    svg(&uses, &places, size, MARGIN + portable_width)
}

/// Returns the dependencies of our crates; tests and chores do not count.
fn uses(metadata: &Value) -> Uses {
    let list = |value: &Value, key: &str| {
        value.get(key).and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let text = |value: &Value, key: &str| {
        value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let packages = list(metadata, "packages");
    let names: BTreeSet<String> = packages
        .iter()
        .map(|package| text(package, "name"))
        .filter(|name| name != "xtask")
        .collect();
    let dependencies = |package: &Value| {
        let dependencies = list(package, "dependencies").into_iter();
        let outside_of_tests =
            dependencies.filter(|dependency| text(dependency, "kind").is_empty());
        let used = outside_of_tests.map(|dependency| text(&dependency, "name"));
        used.filter(|name| names.contains(name)).collect()
    };
    let ours = packages.iter().filter(|package| names.contains(&text(package, "name")));
    ours.map(|package| (text(package, "name"), dependencies(package))).collect()
}

/// Leaves out what a crate also uses through another one.
fn without_indirect(uses: &Uses) -> Uses {
    let direct = |name: &String| uses.get(name).cloned().unwrap_or_default();
    let all = |name: &String| {
        let (mut found, mut open) = (BTreeSet::new(), vec![name.clone()]);
        while let Some(name) = open.pop() {
            open.extend(direct(&name).into_iter().filter(|used| found.insert(used.clone())));
        }
        found
    };
    let reduced = uses.iter().map(|(name, used)| {
        let indirect: BTreeSet<String> = used.iter().flat_map(all).collect();
        (name.clone(), used.difference(&indirect).cloned().collect())
    });
    reduced.collect()
}

/// Returns the row of each crate: one above all that it uses.
fn rows(uses: &Uses) -> BTreeMap<String, usize> {
    let mut rows = BTreeMap::new();
    // Each pass settles at least the next row.
    for _ in 0..uses.len() {
        for (name, used) in uses {
            let below: Option<Vec<usize>> =
                used.iter().map(|used| rows.get(used).copied()).collect();
            if let Some(below) = below {
                rows.insert(name.clone(), below.into_iter().max().map_or(0, |row| row + 1));
            }
        }
    }
    rows
}

/// Returns the crates of a platform by row, in an order in which few arrows cross.
fn columns(
    uses: &Uses,
    rows: &BTreeMap<String, usize>,
    platform: Platform,
) -> BTreeMap<usize, Vec<String>> {
    let mut columns: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for (name, row) in rows.iter().filter(|(name, _)| crate_platform(name) == platform) {
        columns.entry(*row).or_default().push(name.clone());
    }
    for _ in 0..ORDER_PASSES {
        let mut positions: BTreeMap<String, f64> = BTreeMap::new();
        for names in columns.values() {
            let count = names.len() as f64;
            for (column, name) in (0_u32..).zip(names) {
                positions.insert(name.clone(), (f64::from(column) + 0.5) / count);
            }
        }
        let mean = |name: &String| {
            let below = uses.get(name).into_iter().flatten();
            let above = uses.iter().filter(|(_, used)| used.contains(name)).map(|(user, _)| user);
            let neighbours: Vec<f64> =
                below.chain(above).filter_map(|name| positions.get(name).copied()).collect();
            let own = positions.get(name).copied().unwrap_or_default();
            (neighbours.iter().sum::<f64>() + own) / (neighbours.len() + 1) as f64
        };
        for names in columns.values_mut() {
            names.sort_by(|a, b| mean(a).total_cmp(&mean(b)));
        }
    }
    columns
}

fn width(columns: &BTreeMap<usize, Vec<String>>) -> usize {
    columns.values().map(Vec::len).max().map_or(0, |most| most * COLUMN)
}

fn svg(
    uses: &Uses,
    places: &BTreeMap<&str, (usize, usize)>,
    (width, height): (usize, usize),
    border: usize,
) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <title>Crates of towpath: an arrow leads from a crate to one that it uses</title>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n\
         <rect x=\"{border}\" width=\"{}\" height=\"{height}\" fill=\"#f4f1ea\"/>\n\
         <text x=\"{MARGIN}\" y=\"26\" fill=\"#555\">builds on any system</text>\n\
         <text x=\"{}\" y=\"26\" fill=\"#555\">Linux only</text>\n",
        width - border,
        border + MARGIN
    );
    for (name, used) in uses {
        for used in used {
            let (Some((x, y)), Some((used_x, used_y))) =
                (places.get(name.as_str()), places.get(used.as_str()))
            else {
                continue;
            };
            let (from, to) = (x + BOX_WIDTH / 2, used_x + BOX_WIDTH / 2);
            let (top, bottom) = (y + BOX_HEIGHT, *used_y);
            let middle = usize::midpoint(top, bottom);
            let _ = writeln!(
                out,
                "<path d=\"M{from} {top}C{from} {middle} {to} {middle} {to} {bottom}\" fill=\"none\" \
                 stroke=\"#7a8794\"/>"
            );
        }
    }
    for (name, (x, y)) in places {
        let short = name.strip_prefix("towpath-").unwrap_or(name);
        let (fill, stroke) = match crate_platform(name) {
            Platform::Any => ("#dfeaf5", "#33658a"),
            Platform::Linux => ("#f5e3cd", "#9a5b13"),
        };
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{BOX_WIDTH}\" height=\"{BOX_HEIGHT}\" rx=\"4\" \
             fill=\"{fill}\" stroke=\"{stroke}\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{short}</text>",
            x + BOX_WIDTH / 2,
            y + 19
        );
    }
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn metadata() -> Value {
        let package = |name: &str, used: &[(&str, Option<&str>)]| {
            let dependencies: Vec<_> =
                used.iter().map(|(name, kind)| json!({"name": name, "kind": kind})).collect();
            json!({"name": name, "dependencies": dependencies})
        };
        json!({"packages": [
            package("towpath-net", &[("serde", None)]),
            package("towpath-wire", &[("towpath-net", None)]),
            package("towpath-mptcp", &[("towpath-net", None), ("towpath-wire", None)]),
            package("towpath-emu", &[("towpath-mptcp", None), ("towpath-script", Some("dev"))]),
            package("towpath-script", &[]),
            package("xtask", &[]),
        ]})
    }

    #[test]
    fn arrows_are_direct_uses_outside_of_tests() {
        let uses = without_indirect(&uses(&metadata()));
        let of = |name: &str| uses[name].iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!(of("towpath-mptcp"), ["towpath-wire"]);
        assert_eq!(of("towpath-emu"), ["towpath-mptcp"]);
        assert!(!uses.contains_key("xtask"));
        assert_eq!(rows(&uses)["towpath-emu"], 3);
    }

    #[test]
    fn each_crate_has_a_box_in_the_region_of_its_platform() {
        let picture = draw(&metadata());
        for name in ["net", "wire", "mptcp", "emu", "script"] {
            assert_eq!(picture.matches(&format!(">{name}</text>")).count(), 1, "{picture}");
        }
        assert_eq!(picture.matches("<path").count(), 3);
        assert_eq!(picture.matches("fill=\"#f5e3cd\"").count(), 1);
        assert_eq!(picture, draw(&metadata()));
    }
}
