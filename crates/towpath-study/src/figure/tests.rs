use towpath_scenario::{Transport, World};

use super::*;
use crate::row::Parameter;

const PLAN: &str = r#"
name = "buffers"
title = "Buffers"
scenario = "builtin:two-links"
[[variants]]
name = "TCP"
transport = "tcp"
[[variants]]
name = "MPTCP"
transport = "mptcp"
[[axes]]
name = "receive buffer"
keys = ["hosts.right.receive-buffer"]
values = ["100 KB", "1 MB"]
"#;

fn plan(figures: &str) -> Plan {
    let no_files = |_: &str| Err(std::io::ErrorKind::NotFound.into());
    Plan::parse("plan.toml", &format!("{PLAN}{figures}"), &no_files)
        .unwrap_or_else(|error| panic!("{error}"))
}

fn rows() -> Vec<RunRow> {
    let mut rows = Vec::new();
    for (variant, mbps) in [("TCP", 8.0), ("MPTCP", 10.0)] {
        for (text, number) in [("100 KB", 1e5), ("1 MB", 1e6)] {
            for seed in 1..=3 {
                let goodput = (mbps + seed as f64 + number / 1e6) * 1e6;
                let metrics = [
                    ("goodput", goodput),
                    ("path.first.goodput", goodput * 0.75),
                    ("path.second.goodput", goodput * 0.25),
                    ("second.0.goodput", goodput / 2.0),
                    ("second.1.goodput", goodput),
                ];
                let parameter = Parameter { text: text.into(), number: Some(number) };
                rows.push(RunRow {
                    key: format!("{variant}{text}{seed}"),
                    variant: variant.into(),
                    world: World::Sim,
                    transport: Transport::Tcp,
                    seed,
                    parameters: [("receive buffer".to_owned(), parameter)].into(),
                    error: None,
                    metrics: metrics.map(|(name, value)| (name.to_owned(), value)).into(),
                });
            }
        }
    }
    rows
}

fn draw_figure(figures: &str) -> Figure {
    figure(&plan(figures), &rows(), &[], None)
}

fn corners(curve: &Curve) -> Vec<(f64, f64)> {
    curve.points.iter().map(|point| (point.x, (point.middle * 100.0).round() / 100.0)).collect()
}

#[test]
fn curves_are_medians_in_the_units_of_the_axes() {
    let panel = draw_figure(
        "[[figures]]\nkind = \"lines\"\nx = \"receive buffer\"\ny = \"goodput\"\nx-unit = \"KB\"\n\
         y-unit = \"Mbit/s\"\ny-label = \"Goodput\"\nspread = \"range\"\n",
    )
    .panels
    .remove(0);
    assert_eq!(
        (panel.x.label.as_str(), panel.y.label.as_str()),
        ("receive buffer (KB)", "Goodput (Mbit/s)")
    );
    let [tcp, mptcp] = &panel.curves[..] else { panic!("{panel:?}") };
    assert_eq!(corners(tcp), [(100.0, 10.1), (1000.0, 11.0)]);
    assert_eq!((mptcp.name.as_str(), mptcp.style), ("MPTCP", 1));
    assert_eq!((tcp.points[0].spread, tcp.points[0].runs), ([9.1, 11.1], 3));
}

#[test]
fn bars_can_be_grouped_by_variant_and_stacked_by_part() {
    let y = "y = [\"path.first.goodput\", \"path.second.goodput\"]\ny-unit = \"Mbit/s\"\n\
             names = { \"path.first.goodput\" = \"link A\" }\n";
    let panel = draw_figure(&format!(
        "[[figures]]\nkind = \"bars\"\nx = \"variant\"\n{y}where = {{ \"receive buffer\" = \"1 MB\" }}\n"
    ));
    let panel = &panel.panels[0];
    assert_eq!(panel.x.scale, ScaleKind::Names(vec!["TCP".into(), "MPTCP".into()]));
    assert_eq!(panel.curves[0].name, "link A");
    assert_eq!(corners(&panel.curves[1]), [(0.0, 2.75), (1.0, 3.25)]);
    let panel =
        draw_figure(&format!("[[figures]]\nkind = \"stacked-bars\"\nx = \"receive buffer\"\n{y}"));
    let curves = &panel.panels[0].curves;
    let looks: Vec<_> = curves.iter().map(|c| (c.name.as_str(), c.style, c.group)).collect();
    assert_eq!(
        looks,
        [
            ("TCP: link A", 0, 0),
            ("TCP: path.second.goodput", 1, 0),
            ("MPTCP: link A", 0, 1),
            ("MPTCP: path.second.goodput", 1, 1)
        ]
    );
}

/// Returns the same rows in both worlds, TCP 1 Mbit/s slower over real kernels, and one curve only
/// there.
fn rows_of_two_worlds() -> Vec<RunRow> {
    let mut rows = rows();
    rows.retain(|row| row.variant == "TCP");
    let mut emulated_rows = rows.clone();
    for row in &mut emulated_rows {
        row.world = World::Emu;
        row.metrics.entry("goodput".to_owned()).and_modify(|goodput| *goodput -= 1e6);
    }
    let as_mptcp = |row: &RunRow| RunRow { variant: "MPTCP".into(), ..row.clone() };
    let mptcp_rows: Vec<_> = emulated_rows.iter().map(as_mptcp).collect();
    rows.into_iter().chain(emulated_rows).chain(mptcp_rows).collect()
}

#[test]
fn bars_of_one_name_have_one_colour_in_all_panels() {
    let panel = |y: &str| {
        format!("[[figures]]\nkind = \"bars\"\nx = \"variant\"\ny = {y}\ny-unit = \"Mbit/s\"\n")
    };
    let figures =
        panel("[\"goodput\"]") + &panel("[\"throughput\", \"goodput\"]") + &panel("\"throughput\"");
    let figure_drawn = figure(&plan(&figures), &rows(), &[], None);
    let styles = |panel: &Panel| panel.curves.iter().map(|curve| curve.style).collect::<Vec<_>>();
    let styles: Vec<_> = figure_drawn.panels.iter().map(styles).collect();
    assert_eq!(styles, [vec![0], vec![1, 0], vec![1]]);
}

#[test]
fn a_curve_of_two_worlds_is_two_of_one_colour() {
    let figures = "[[figures]]\nkind = \"lines\"\nx = \"receive buffer\"\ny = \"goodput\"\n\
                   x-unit = \"KB\"\ny-unit = \"Mbit/s\"\n\
                   [[figures]]\nkind = \"bars\"\nx = \"variant\"\ny = \"goodput\"\n\
                   y-unit = \"Mbit/s\"\nwhere = { \"receive buffer\" = \"1 MB\" }\n";
    let two_panel_plan = plan(figures);
    let published =
        published("variant,x,y,where\nTCP,100 KB,9 Mbit/s,a\n", &two_panel_plan).unwrap();
    let figure_drawn = figure(&two_panel_plan, &rows_of_two_worlds(), &published, None);
    let panel_looks = |panel: &Panel| -> Vec<_> {
        let curve_look = |c: &Curve| (c.name.clone(), c.style, c.emulated, corners(c));
        panel.curves.iter().map(curve_look).collect()
    };
    let [lines, bars] = &figure_drawn.panels[..] else { panic!() };
    assert_eq!(
        panel_looks(lines),
        [
            ("TCP".to_owned(), 0, false, vec![(100.0, 10.1), (1000.0, 11.0)]),
            ("TCP (kernel)".to_owned(), 0, true, vec![(100.0, 9.1), (1000.0, 10.0)]),
            ("MPTCP".to_owned(), 1, true, vec![(100.0, 9.1), (1000.0, 10.0)]),
        ]
    );
    assert_eq!((lines.references.len(), lines.references[0].name.as_str()), (1, "TCP"));
    assert_eq!(bars.x.scale, ScaleKind::Names(vec!["TCP".into(), "MPTCP".into()]));
    assert_eq!(
        panel_looks(bars),
        [
            ("goodput".to_owned(), 0, false, vec![(0.0, 11.0)]),
            ("goodput (kernel)".to_owned(), 0, true, vec![(0.0, 10.0), (1.0, 10.0)]),
        ]
    );
    // The emulated world alone is drawn like any other.
    let mut emulated_rows = rows_of_two_worlds();
    emulated_rows.retain(|row| row.world == World::Emu);
    let emulated_figure = figure(&plan(figures), &emulated_rows, &[], None);
    assert_eq!(emulated_figure.panels[0].curves[0].name, "TCP");
    assert!(
        emulated_figure.panels.iter().flat_map(|panel| &panel.curves).all(|curve| !curve.emulated)
    );
}

#[test]
fn seconds_are_drawn_at_their_middle_and_distributions_reach_everything() {
    let figure = draw_figure(
        "[[figures]]\nkind = \"series\"\ny = \"goodput\"\ny-unit = \"Mbit/s\"\nstatistic = \"mean\"\n\
         [[figures]]\nkind = \"cdf\"\nx = \"goodput\"\nx-unit = \"Mbit/s\"\nvariants = [\"TCP\"]\n",
    );
    let [series, cdf] = &figure.panels[..] else { panic!() };
    assert_eq!(corners(&series.curves[0]), [(0.5, 5.28), (1.5, 10.55)]);
    assert_eq!(series.x.label, "time (s)");
    assert_eq!((cdf.curves.len(), cdf.curves[0].points.len()), (1, 6));
    assert_eq!(cdf.y.label, "share of the runs (%)");
    assert!(cdf.curves[0].points.last().is_some_and(|point| (point.middle - 100.0).abs() < 1e-9));
}

#[test]
fn published_points_are_on_their_curve_in_its_units() {
    let figures = "[[figures]]\nkind = \"lines\"\nx = \"receive buffer\"\ny = \"goodput\"\n\
                   x-unit = \"KB\"\ny-unit = \"Mbit/s\"\n";
    let text = "variant,x,y,where\nMPTCP,600 KB,9.5,\"section 3, end\"\nMPTCP,600,9.5 Mbit/s,a\n";
    let plan = plan(figures);
    let points = published(text, &plan).unwrap();
    let figure = figure(&plan, &rows(), &points, Some("seed 004"));
    let references = &figure.panels[0].references;
    assert_eq!(references.len(), 2);
    assert_eq!(references[0], references[1]);
    assert_eq!((references[0].style, references[0].x, references[0].y), (Some(1), 600.0, 9.5));
}

/// Returns two panels with published points, some of which name their panel.
fn two_panels(points: &str) -> Result<Figure, String> {
    let panel = |title: &str, y: &str| {
        format!(
            "[[figures]]\ntitle = \"{title}\"\nkind = \"lines\"\nx = \"receive buffer\"\n\
             y = \"{y}\"\nx-unit = \"KB\"\ny-unit = \"Mbit/s\"\n"
        )
    };
    let panels = [panel("all of it", "goodput"), panel("one link", "path.first.goodput")].concat();
    let plan = plan(&panels);
    Ok(figure(&plan, &rows(), &published(points, &plan)?, None))
}

#[test]
fn a_published_point_is_in_its_named_panel_or_with_its_curve() {
    let points = "panel,variant,x,y,where\none link,TCP,100,5,a\n1,MPTCP,100,7,b\n,TCP,200,6,c\n";
    let figure = two_panels(points).unwrap();
    let references = |panel: &Panel| -> Vec<(String, f64)> {
        panel.references.iter().map(|point| (point.name.clone(), point.y)).collect()
    };
    let [goodput_panel, link_panel] = &figure.panels[..] else { panic!() };
    assert_eq!(references(goodput_panel), [("MPTCP".to_owned(), 7.0), ("TCP".to_owned(), 6.0)]);
    assert_eq!(references(link_panel), [("TCP".to_owned(), 5.0), ("TCP".to_owned(), 6.0)]);
}

#[test]
fn points_of_an_unknown_curve_form_their_own_curve() {
    let points = "panel,variant,x,y,where\n1,theirs,300,6,a\n1,theirs,200 KB,5 Mbit/s,b\n\
                  2,others,200,4,c\n";
    let figure = two_panels(points).unwrap();
    let [goodput_panel, link_panel] = &figure.panels[..] else { panic!() };
    let [_, _, theirs] = &goodput_panel.curves[..] else { panic!("{goodput_panel:?}") };
    assert_eq!((theirs.name.as_str(), theirs.given, theirs.style), ("theirs", true, 2));
    assert_eq!(corners(theirs), [(200.0, 5.0), (300.0, 6.0)]);
    assert_eq!(link_panel.curves.iter().map(|curve| curve.style).collect::<Vec<_>>(), [0, 1, 3]);
    assert!(goodput_panel.references.is_empty() && link_panel.references.is_empty());
}

#[test]
fn a_point_outside_every_panel_is_reported() {
    let error_of =
        |line: &str| two_panels(&format!("panel,variant,x,y,where\n{line}\n")).unwrap_err();
    assert_eq!(
        error_of(",theirs,1,1,a"),
        "line 2: no panel has a curve `theirs`; for a curve of its own, say in the column `panel` \
         where"
    );
    assert_eq!(
        error_of("one lonk,TCP,1,1,a"),
        "line 2: no panel is called `one lonk`, expected a title or a number up to 2; did you mean \
         `one link`?"
    );
    assert!(error_of("3,TCP,1,1,a").contains("no panel is called `3`"));
    assert!(error_of("0,TCP,1,1,a").contains("no panel is called `0`"));
}

#[test]
fn a_wrong_table_of_points_is_reported_with_its_line() {
    let plan = plan("");
    let error_of = |text: &str| published(text, &plan).unwrap_err();
    assert_eq!(
        error_of("a,b\n"),
        "line 1 is `a,b`, expected `variant,x,y,where` or `panel,variant,x,y,where`"
    );
    assert_eq!(
        error_of("variant,x,y,where\n\nTCP,1,fast,p\n"),
        "line 3: `fast` is not a number, expected one, with its unit or the axis'"
    );
    assert_eq!(error_of("variant,x,y,where\nTCP,1,2\n"), "line 2: there are 3 cells, expected 4");
    assert_eq!(
        error_of("variant,x,y,where\nTCP,1,2,\n"),
        "line 2: it is not said where the source gives this"
    );
}

#[test]
fn a_figure_that_the_plan_cannot_draw_is_an_error() {
    let no_files = |_: &str| Err(std::io::ErrorKind::NotFound.into());
    let figures = "[[figures]]\nkind = \"line\"\nx = \"recieve buffer\"\ny = \"goodput\"\ny-unit = \"Mbits\"\n\
                   variants = [\"MTPCP\"]\ny-range = [\"10 Mbit/s\", \"0\"]\ncolour = \"red\"\n";
    let errors = Plan::parse("plan.toml", &format!("{PLAN}{figures}"), &no_files).unwrap_err();
    insta::assert_snapshot!(errors.to_string());
}

#[test]
fn each_curve_has_a_line_of_sparks() {
    let lines = sparks(&draw_figure(
        "[[figures]]\nkind = \"lines\"\nx = \"receive buffer\"\ny = \"goodput\"\ny-unit = \"Mbit/s\"\n",
    ));
    assert_eq!(lines[1], "  TCP    ▇▇  10.1 … 11.0");
    assert_eq!(lines[2], "  MPTCP  ██  12.1 … 13.0");
}
