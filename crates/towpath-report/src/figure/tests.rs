use super::*;

fn axis(label: &str, scale: ScaleKind) -> Axis {
    Axis { label: label.into(), scale, range: None }
}

fn curve(name: &str, style: usize, values: &[(f64, f64)]) -> Curve {
    let point =
        |(x, y): &(f64, f64)| CurvePoint { x: *x, middle: *y, spread: [y * 0.9, y * 1.1], runs: 5 };
    let points = values.iter().map(point).collect();
    Curve { name: name.into(), style, group: 0, emulated: false, given: false, points }
}

fn buffers() -> Panel {
    let sizes = [10.0, 50.0, 100.0, 200.0, 500.0, 1000.0];
    let capped_curve = |top: f64| sizes.map(|x: f64| (x, (x / 60.0).min(top))).to_vec();
    Panel {
        title: "goodput".into(),
        kind: CurveKind::Lines,
        x: axis("receive buffer (KB)", ScaleKind::Log),
        y: axis("goodput (Mbit/s)", ScaleKind::Linear),
        curves: vec![
            curve("TCP over WiFi", 0, &capped_curve(7.6)),
            curve("TCP over 3G", 1, &capped_curve(1.9)),
            curve("MPTCP, M1 & M2", 2, &capped_curve(9.4)),
        ],
        references: vec![ReferencePoint {
            style: Some(2),
            name: "MPTCP, M1 & M2".into(),
            x: 600.0,
            y: 9.5,
        }],
        lines: vec![HorizontalLine { at: 10.0, text: "both links".into() }],
        diagonal: None,
    }
}

fn shares() -> Panel {
    let names = ScaleKind::Names(["0 %", "1 %", "3 %"].map(String::from).to_vec());
    let stacked_curve = |name: &str, style, group, y: f64| {
        let points = curve(name, style, &[(0.0, y), (1.0, y / 2.0), (2.0, y / 4.0)]).points;
        Curve { name: name.into(), style, group, emulated: false, given: false, points }
    };
    Panel {
        title: "per subflow".into(),
        kind: CurveKind::StackedBars,
        x: axis("loss on link B", names),
        y: axis("goodput (Gbit/s)", ScaleKind::Linear),
        curves: vec![
            stacked_curve("A, coupled", 0, 0, 0.9),
            stacked_curve("B, coupled", 1, 0, 0.8),
            stacked_curve("A, Reno", 0, 1, 0.8),
            stacked_curve("B, Reno", 1, 1, 0.7),
        ],
        references: vec![],
        lines: vec![],
        diagonal: None,
    }
}

fn delays() -> Panel {
    let steps: Vec<_> = (1..=40).map(|n| (f64::from(n * n) / 100.0, f64::from(n) * 2.5)).collect();
    Panel {
        title: "delays".into(),
        kind: CurveKind::Cdf,
        x: axis("delay (s)", ScaleKind::Linear),
        y: axis("runs (%)", ScaleKind::Linear),
        curves: vec![curve("MPTCP", 0, &steps), curve("MPQUIC", 1, &steps[..30])],
        references: vec![ReferencePoint { style: None, name: "MPTCP".into(), x: 2.6, y: 50.0 }],
        lines: vec![],
        diagonal: None,
    }
}

fn bars() -> Panel {
    let names =
        ScaleKind::Names(["one link", "two links", "larger buffers"].map(String::from).to_vec());
    let points = &[(0.0, 9.3), (1.0, 13.0), (2.0, 17.0)];
    let (x, kind) = (axis("", names), CurveKind::Bars);
    let curves = vec![curve("ours", 0, points), curve("the kernel", 1, points)];
    Panel { title: String::new(), kind, x, curves, references: vec![], ..buffers() }
}

#[test]
fn kernel_runs_have_the_same_style_with_ring_markers() {
    let mut panel = buffers();
    panel.curves.truncate(1);
    let twin = Curve { name: "TCP (kernel)".into(), emulated: true, ..panel.curves[0].clone() };
    panel.references.clear();
    panel.curves.push(twin);
    let figure = Figure { title: String::new(), panels: vec![panel], source: None };
    let text = svg(&figure);
    // A dot for each of six points, and one in the legend.
    assert_eq!(text.matches("r=\"1.5\"").count(), 7, "{text}");
    assert!(text.contains("stroke-width=\"1.1\" stroke-linejoin"), "{text}");
    let mut stored = serde_json::to_value(&figure).unwrap();
    let curve = stored["panels"][0]["curves"][0].as_object_mut().unwrap();
    assert_eq!(curve.remove("emulated"), Some(false.into()));
    assert_eq!(serde_json::from_value::<Figure>(stored).unwrap(), figure);
}

#[test]
fn a_diagonal_is_where_both_axes_are_equal() {
    let range = Some([1.0, 100.0]);
    let square = |label: &str| Axis { range, ..axis(label, ScaleKind::Log) };
    let panel = Panel {
        kind: CurveKind::Scatter,
        x: square("kernel (Mbit/s)"),
        y: square("simulated (Mbit/s)"),
        curves: vec![curve("TCP", 0, &[(10.0, 10.0)])],
        references: vec![],
        lines: vec![],
        diagonal: Some(1.12),
        ..buffers()
    };
    let (x, y) = (axis::horizontal(&panel, 300.0), axis::vertical(&panel, 200.0));
    let mut text = String::new();
    marks::draw(&mut text, &panel, &marks::PlotArea { x: &x, y: &y, size: [300.0, 200.0] });
    assert!(text.contains("<path d=\"M0.0 200.0L300.0 0.0\""), "{text}");
    // Half a band: 200 px for two decades.
    let band = 100.0 * 1.12_f64.log10();
    let corner_path = format!("M0.0 {:.1}L300.0 {:.1}L", 200.0 - band, -band);
    assert!(text.contains(&corner_path), "{corner_path} {text}");
}

fn four_panels() -> Figure {
    Figure {
        title: "Goodput <over> \"everything\"".into(),
        panels: vec![buffers(), shares(), delays(), bars()],
        source: Some("seed 004".into()),
    }
}

#[test]
fn a_figure_is_complete_and_well_formed() {
    let text = svg(&four_panels());
    assert!(text.starts_with("<svg xmlns=") && text.ends_with("</svg>\n"));
    // Every element that is opened is closed.
    let mut open: Vec<&str> = Vec::new();
    for piece in text.split('<').skip(1) {
        let (tag, _) = piece.split_once('>').unwrap();
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(tag.split(' ').next().unwrap());
        }
    }
    assert!(open.is_empty(), "{open:?}");
    for word in ["receive buffer (KB)", "(d)", "MPTCP, M1 &amp; M2", "seed 004", "both links"] {
        assert!(text.contains(word), "{word}");
    }
    assert!(!text.contains("NaN") && !text.contains("inf"), "a coordinate is not a number");
    assert!(!text.contains("href"), "it needs another file");
}

#[test]
fn the_same_figure_is_the_same_text() {
    assert_eq!(svg(&four_panels()), svg(&four_panels()));
    assert_eq!(panels(&four_panels()).len(), 4);
}

#[test]
fn the_picture_of_dots_is_twice_as_large_and_has_the_same_bytes_each_time() {
    let (png_bytes, text) = (png(&four_panels()).unwrap(), svg(&four_panels()));
    assert_eq!(png_bytes, png(&four_panels()).unwrap());
    let Some((head, [_, _, _, _, b'I', b'H', b'D', b'R', size @ ..])) =
        png_bytes.split_first_chunk::<8>()
    else {
        panic!("no PNG");
    };
    assert_eq!(head, b"\x89PNG\r\n\x1a\n");
    let size_at = |offset: usize| u32::from_be_bytes(size[offset..offset + 4].try_into().unwrap());
    assert!(text.contains(&format!("width=\"{}\" height=\"{}\"", size_at(0) / 2, size_at(4) / 2)));
    // Another text yields another picture: glyphs are drawn, independent of the machine's fonts.
    let other = Figure { title: "Another one".into(), ..four_panels() };
    assert_ne!(png_bytes, png(&other).unwrap());
}

#[test]
fn values_that_are_not_numbers_are_not_drawn() {
    let mut figure = four_panels();
    for panel in &mut figure.panels {
        for curve in &mut panel.curves {
            let not_a_number =
                CurvePoint { x: f64::NAN, middle: f64::INFINITY, spread: [f64::NAN; 2], runs: 0 };
            curve.points.push(not_a_number);
            curve.points.push(CurvePoint { x: 0.0, middle: f64::NAN, ..not_a_number });
        }
    }
    let text = svg(&figure);
    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
}

#[test]
fn an_empty_plot_is_still_an_image() {
    let mut empty = four_panels();
    for panel in &mut empty.panels {
        (panel.curves, panel.references, panel.lines) = (vec![], vec![], vec![]);
    }
    assert!(!svg(&empty).contains("NaN"));
    assert!(svg(&Figure::default()).ends_with("</svg>\n"));
}

#[test]
fn a_curve_has_one_style_in_all_panels_and_one_legend_entry() {
    let figure = Figure { panels: vec![buffers(), buffers()], ..four_panels() };
    let text = svg(&figure);
    assert_eq!(text.matches(">TCP over 3G<").count(), 1);
    let [first, second] = &panels(&figure)[..] else { panic!() };
    assert_eq!(first.replace("(a)", ""), second.replace("(b)", ""));
}

/// Returns one panel of each kind, with a curve of published points.
fn panels_with_given_curves() -> Figure {
    let mut figure = four_panels();
    for panel in &mut figure.panels {
        panel.references.clear();
        let given = Curve { given: true, ..curve("theirs", 7, &[(1.0, 3.0), (2.0, 4.0)]) };
        panel.curves.push(given);
    }
    figure
}

#[test]
fn a_point_that_belongs_to_a_bar_is_at_that_bar() {
    let mut panel = bars();
    let reference = |name: &str, style| ReferencePoint { style, name: name.into(), x: 0.0, y: 9.0 };
    panel.references = vec![
        reference("ours", Some(0)),
        reference("unknown", None),
        reference("the kernel", Some(1)),
    ];
    let picture = panels(&Figure { panels: vec![panel], ..Figure::default() }).remove(0);
    let hollow = picture.split("<circle ").filter(|part| part.contains("fill=\"#fff\" stroke=\"#"));
    let center_x = |part: &str| part.split('"').nth(1).unwrap().parse::<f64>().unwrap();
    let centers: Vec<f64> = hollow.map(center_x).collect();
    // The last one is a square.
    let [ours, unassigned] = centers[..] else { panic!("{centers:?}") };
    assert!(unassigned - ours > 10.0, "{centers:?}");
}

#[test]
fn published_values_are_hollow_and_once_in_the_legend() {
    let figure = panels_with_given_curves();
    // The colour is that of no other curve; a hollow circle is white inside it.
    let hollow = "fill=\"#fff\" stroke=\"#66727d\" stroke-width=\"1.6\"";
    for (panel, panel_data) in panels(&figure).iter().zip(&figure.panels) {
        assert_eq!(panel.matches(hollow).count(), 2, "{:?}", panel_data.kind);
        assert!(
            !panel.contains("fill=\"#66727d\""),
            "{:?}: a bar or a full marker",
            panel_data.kind
        );
    }
    let text = svg(&figure);
    assert_eq!(text.matches(">theirs<").count(), 1);
    assert!(!text.contains("seed 004"), "there are no points that belong to our curves");
    assert!(
        csv(&figure).contains("\ngoodput,theirs,receive buffer (KB),1,goodput (Mbit/s),3,,,\n")
    );
}

#[test]
fn the_table_has_every_point_with_its_runs() {
    let figure = Figure { panels: vec![buffers(), bars()], ..four_panels() };
    let table = csv(&figure);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 1 + 3 * 6 + 1 + 2 * 3);
    assert_eq!(lines[0], "panel,variant,x_label,x,y_label,middle,low,high,runs");
    let tcp =
        "goodput,TCP over WiFi,receive buffer (KB),50,goodput (Mbit/s),0.833333,0.75,0.916667,5";
    assert_eq!(lines[2], tcp);
    let reference =
        "goodput,\"MPTCP, M1 & M2 (seed 004)\",receive buffer (KB),600,goodput (Mbit/s),9.5,,,";
    assert!(lines.contains(&reference), "{table}");
    assert!(lines.contains(&"2,ours,,two links,goodput (Mbit/s),13,11.7,14.3,5"), "{table}");
}
