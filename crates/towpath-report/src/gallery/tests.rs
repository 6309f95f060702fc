use super::*;
use crate::figure::{Axis, Curve, CurveKind, CurvePoint, Panel, ScaleKind};

fn entry() -> GalleryEntry {
    let axis = |label: &str| Axis { label: label.into(), scale: ScaleKind::Linear, range: None };
    let point = |x| CurvePoint { x, middle: x * 2.0, spread: [x, x * 3.0], runs: 3 };
    let curve = Curve {
        name: "MPTCP".into(),
        style: 0,
        group: 0,
        emulated: false,
        given: false,
        points: vec![point(1.0), point(2.0)],
    };
    let panel = Panel {
        title: "goodput".into(),
        kind: CurveKind::Lines,
        x: axis("buffer (KB)"),
        y: axis("goodput (Mbit/s)"),
        curves: vec![curve],
        references: vec![],
        lines: vec![],
        diagonal: None,
    };
    let claim = |text: &str, holds, deviation: Option<&str>| ClaimEntry {
        text: text.into(),
        source: "section 3".into(),
        world: None,
        holds,
        expected: holds.is_some(),
        measured: "goodput: 9 Mbit/s, asked ≥ 9 Mbit/s".into(),
        deviation: deviation.map(str::to_owned),
    };
    GalleryEntry {
        name: "miguel-singh-c".into(),
        title: "Goodput <over> the buffer".into(),
        source: "the `blog`".into(),
        worlds: vec!["sim".into()],
        quick: true,
        runs: 12,
        failed: 1,
        unreliable: 0,
        made_by: "towpath 0.1.0".into(),
        figure: Figure { title: "t".into(), panels: vec![panel], source: None },
        claims: vec![
            claim("A | holds", Some(true), None),
            claim("B fails", Some(false), Some("because\n  of this")),
            claim("C", None, Some("not shown")),
        ],
        verdict: "1 of 2 claims hold".into(),
        published: vec![[
            "goodput".into(),
            "MPTCP".into(),
            "600 KB".into(),
            "9".into(),
            "end".into(),
        ]],
        readme: "# T\n\nSource: x\n\n## Ours\n\nText".into(),
        files: vec!["miguel-singh-c.csv".into()],
    }
}

#[test]
fn an_entry_survives_being_stored() {
    let text = serde_json::to_string(&entry()).unwrap();
    assert_eq!(serde_json::from_str::<GalleryEntry>(&text).unwrap(), entry());
}

#[test]
fn the_page_needs_nothing_but_itself_and_shows_both_sides() {
    let text = page(&[entry()]);
    for part in [
        "Goodput &lt;over&gt; the buffer",
        "the <code>blog</code>",
        "12 runs, 1 failed, only a part of the runs",
        "B fails<small>section 3</small>",
        "because of this",
        "<a href=\"miguel-singh-c.csv\">",
        "<h4>Ours</h4>",
        "600 KB",
        "expected to come out otherwise",
    ] {
        assert!(text.contains(part), "{part}");
    }
    assert!(!text.contains("not shown"));
    assert!(!text.contains("src=") && !text.contains("<script") && !text.contains("@import"));
}

#[test]
fn a_plot_of_two_worlds_names_the_world_of_each_claim() {
    let mut two_worlds = entry();
    two_worlds.worlds = vec!["sim".into(), "emu".into()];
    two_worlds.quick = false;
    two_worlds.unreliable = 2;
    two_worlds.claims[1].world = Some("emu".into());
    assert_eq!(
        (entry().stem(), two_worlds.stem()),
        ("miguel-singh-c".into(), "miguel-singh-c-sim-emu".into())
    );
    assert_eq!(two_worlds.conditions(), "worlds `sim` and `emu`, 12 runs, 1 failed, 2 unreliable");
    let text = markdown(&[two_worlds.clone()], "images");
    assert!(
        text.contains("`towpath reproduce all --world sim,emu --docs docs/reference`"),
        "{text}"
    );
    assert!(text.contains("](images/miguel-singh-c-sim-emu.svg)"), "{text}");
    assert!(text.contains("B fails (section 3; in `emu`)"), "{text}");
    assert!(text.contains("1 not checked |"), "{text}");
    assert!(page(&[two_worlds]).contains("section 3; in <code>emu</code>"));
}

#[test]
fn the_document_has_a_row_for_each_claim() {
    let text = markdown(&[entry()], "images/reproductions");
    assert!(text.contains("](images/reproductions/miguel-singh-c.svg)"), "{text}");
    assert!(
        text.contains("| ✓ | A \\| holds (section 3) | Goodput: 9 Mbit/s, asked ≥ 9 Mbit/s |"),
        "{text}"
    );
    assert!(text.contains("*because of this* |"), "{text}");
    assert!(
        text.contains("| 1 of 3 hold, 1 not checked with these few runs | 1 of 2 claims hold |"),
        "{text}"
    );
}
