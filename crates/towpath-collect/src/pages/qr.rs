//! QR codes (ISO/IEC 18004) as SVG.

use std::fmt::Write as _;

use maud::{Markup, html};
use qrcode::{Color, EcLevel, QrCode};

/// Width of the empty border in modules (ISO/IEC 18004 §9.1).
const QUIET_MODULES: usize = 4;
/// Width of a module in CSS pixels.
const MODULE_PX: usize = 5;

/// Draws a text as a QR code, dark on white in all colour schemes; `None` if the text is too long.
pub(super) fn qr_code(text: &str, label: &str) -> Option<Markup> {
    let code = QrCode::with_error_correction_level(text, EcLevel::M).ok()?;
    let side = code.width() + 2 * QUIET_MODULES;
    Some(html! {
        svg.qr viewBox={ "0 0 " (side) " " (side) } width=(side * MODULE_PX)
            height=(side * MODULE_PX) role="img" aria-label=(label) shape-rendering="crispEdges" {
            rect width=(side) height=(side) fill="#fff" {}
            path d=(dark_modules(&code)) fill="#000" {}
        }
    })
}

/// Returns the outlines of all dark modules: one rectangle for each run of them in a row.
fn dark_modules(code: &QrCode) -> String {
    let (width, colors) = (code.width().max(1), code.to_colors());
    let mut path = String::new();
    for (y, row) in colors.chunks(width).enumerate() {
        let mut x = 0;
        for run in row.chunk_by(|a, b| a == b) {
            if run.first() == Some(&Color::Dark) {
                let (left, top, length) = (x + QUIET_MODULES, y + QUIET_MODULES, run.len());
                let _ = write!(path, "M{left} {top}h{length}v1h-{length}z"); // cannot fail
            }
            x += run.len();
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMAND: &str = "towpath agent join https://collector.example.org 7K3M-9QPX-VB2D";

    /// Returns the numbers of a path or an attribute.
    fn numbers(text: &str) -> Vec<usize> {
        let parts = text.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty());
        parts.map(|part| part.parse().unwrap()).collect()
    }

    /// Returns the side and the dark modules of a drawing.
    fn modules(svg: &str) -> (usize, Vec<(usize, usize)>) {
        let after = |start: &str| svg.split_once(start).unwrap().1.split('"').next().unwrap();
        let side = numbers(after("viewBox=\""))[2];
        let mut dark = Vec::new();
        for run in after("d=\"").split_terminator('z') {
            let [x, y, length, 1, back] = numbers(run)[..] else { panic!("{run}") };
            assert_eq!(length, back);
            dark.extend((x..x + length).map(|x| (x, y)));
        }
        (side, dark)
    }

    #[test]
    fn another_program_reads_the_text_of_a_code() {
        for text in [COMMAND, "a", &"x".repeat(300)] {
            let (side, dark) = modules(&qr_code(text, "Code").unwrap().0);
            // A decoder for cameras needs several pixels for each module.
            let scale = 3;
            let is_dark = |x: usize, y: usize| dark.contains(&(x / scale, y / scale));
            let mut picture =
                rqrr::PreparedImage::prepare_from_greyscale(side * scale, side * scale, |x, y| {
                    if is_dark(x, y) { 0 } else { 255 }
                });
            let grids = picture.detect_grids();
            assert_eq!(grids.len(), 1, "{text}");
            assert_eq!(grids[0].decode().unwrap().1, text);
        }
    }

    #[test]
    fn a_code_has_a_quiet_zone_of_four_modules_and_a_label() {
        let svg = qr_code(COMMAND, "A <label>").unwrap().0;
        let (side, dark) = modules(&svg);
        let inner = 4..side - 4;
        assert!(dark.iter().all(|(x, y)| inner.contains(x) && inner.contains(y)));
        assert!(dark.contains(&(4, 4)), "the finder pattern is in the corner");
        assert!(svg.contains("role=\"img\"") && svg.contains("aria-label=\"A &lt;label&gt;\""));
        assert!(svg.contains("fill=\"#fff\"") && svg.contains("fill=\"#000\""));
    }

    #[test]
    fn a_text_that_is_too_long_has_no_code() {
        assert!(qr_code(&"x".repeat(5_000), "Code").is_none());
    }
}
