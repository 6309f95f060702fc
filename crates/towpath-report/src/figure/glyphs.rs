//! Texts of our own SVG as outlines of their letters, so that no font has to be installed.

use std::fmt::Write as _;

use ttf_parser::{Face, GlyphId, OutlineBuilder};

use super::layout::TICK_FONT_SIZE;
use super::png::PngError;

const REGULAR: (&str, &[u8]) = ("Arimo", include_bytes!("font/Arimo-Regular.ttf"));
const BOLD: (&str, &[u8]) = ("Arimo Bold", include_bytes!("font/Arimo-Bold.ttf"));
/// Replacement for a letter that the fonts do not have.
const REPLACEMENT: char = '\u{fffd}';

/// Replaces every `<text>` of the picture with a `<path>`. Understands only the output of `layout`
/// and `marks`.
pub(super) fn outline_texts(svg: &str) -> Result<String, PngError> {
    let [regular, bold] = [Font::read(REGULAR)?, Font::read(BOLD)?];
    let mut out = String::with_capacity(svg.len() * 2);
    let mut remaining = svg;
    while let Some((before, text)) = remaining.split_once("<text ") {
        out.push_str(before);
        let (text, after) = text.split_once("</text>").unwrap_or((text, ""));
        let (attributes, content) = text.split_once('>').unwrap_or((text, ""));
        let text = SvgText::read(attributes);
        let font = if text.bold { &bold } else { &regular };
        font.write(&mut out, &text, &unescape(content));
        remaining = after;
    }
    out.push_str(remaining);
    Ok(out)
}

/// Parsed attributes of a text.
#[derive(Debug)]
struct SvgText<'a> {
    /// Position of the anchor on the base line.
    at: [f32; 2],
    size: f32,
    bold: bool,
    /// Part of the width that lies left of the position, 0 to 1.
    anchor: f32,
    /// Attributes that a path also has.
    others: Vec<(&'a str, &'a str)>,
}

impl<'a> SvgText<'a> {
    fn read(attributes: &'a str) -> Self {
        let (at, size) = ([0.0; 2], TICK_FONT_SIZE as f32);
        let mut text = Self { at, size, bold: false, anchor: 0.0, others: Vec::new() };
        let mut parts = attributes.split('"');
        while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
            let number = || value.parse().unwrap_or(0.0);
            match name.trim().trim_end_matches('=') {
                "x" => text.at[0] = number(),
                "y" => text.at[1] = number(),
                "font-size" => text.size = number(),
                "font-weight" => text.bold = true,
                "text-anchor" if value == "middle" => text.anchor = 0.5,
                "text-anchor" if value == "end" => text.anchor = 1.0,
                other => text.others.push((other, value)),
            }
        }
        text
    }
}

/// Undoes `text::esc`. The ampersand comes last, as it begins the other escapes.
fn unescape(text: &str) -> String {
    let escapes = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")];
    escapes.iter().fold(text.to_owned(), |text, (escaped, letter)| text.replace(escaped, letter))
}

struct Font {
    face: Face<'static>,
    /// Font units per em.
    units: f32,
}

impl Font {
    fn read((name, bytes): (&'static str, &'static [u8])) -> Result<Self, PngError> {
        let face = Face::parse(bytes, 0).map_err(|_| PngError::Font(name))?;
        let units = f32::from(face.units_per_em());
        Ok(Self { face, units })
    }

    /// Returns a letter's glyph and its advance width, in units of the font.
    fn glyph(&self, letter: char) -> (GlyphId, f32) {
        let known_or_replacement =
            self.face.glyph_index(letter).or_else(|| self.face.glyph_index(REPLACEMENT));
        let glyph = known_or_replacement.unwrap_or_default();
        (glyph, self.face.glyph_hor_advance(glyph).map_or(0.0, f32::from))
    }

    fn write(&self, out: &mut String, text: &SvgText<'_>, content: &str) {
        let scale = text.size / self.units;
        let width: f32 = content.chars().map(|letter| self.glyph(letter).1).sum();
        let [x, y] = text.at;
        let mut pen = OutlineWriter { out, scale, at: [x - width * scale * text.anchor, y] };
        pen.out.push_str("<path d=\"M0 0");
        for letter in content.chars() {
            let (glyph, advance) = self.glyph(letter);
            // A space has no outline.
            let _ = self.face.outline_glyph(glyph, &mut pen);
            pen.at[0] += advance * scale;
        }
        out.push('"');
        for (name, value) in &text.others {
            // Writing to a `String` cannot fail.
            let _ = write!(out, " {name}=\"{value}\"");
        }
        out.push_str("/>");
    }
}

/// Writes outlines. The y axis points down in a picture, and up in a font.
struct OutlineWriter<'a> {
    out: &'a mut String,
    scale: f32,
    at: [f32; 2],
}

impl OutlineWriter<'_> {
    fn points(&mut self, command: char, points: &[[f32; 2]]) {
        self.out.push(command);
        for [x, y] in points {
            let (x, y) = (self.at[0] + x * self.scale, self.at[1] - y * self.scale);
            // Writing to a `String` cannot fail.
            let _ = write!(self.out, "{x:.3} {y:.3} ");
        }
    }
}

impl OutlineBuilder for OutlineWriter<'_> {
    fn move_to(&mut self, x: f32, y: f32) {
        self.points('M', &[[x, y]]);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        self.points('L', &[[x, y]]);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        self.points('Q', &[[x1, y1], [x, y]]);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        self.points('C', &[[x1, y1], [x2, y2], [x, y]]);
    }

    fn close(&mut self) {
        self.out.push('Z');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the minimum and maximum of a path's points, across and down.
    fn path_extent(path: &str) -> [(f32, f32); 2] {
        let (_, d) = path.split_once("d=\"M0 0").unwrap();
        let d = d.split('"').next().unwrap();
        let numbers: Vec<f32> =
            d.split([' ', 'M', 'L', 'Q', 'C', 'Z']).filter_map(|word| word.parse().ok()).collect();
        [0, 1].map(|first| {
            let coordinates = || numbers.iter().skip(first).step_by(2).copied();
            (
                coordinates().fold(f32::INFINITY, f32::min),
                coordinates().fold(f32::NEG_INFINITY, f32::max),
            )
        })
    }

    fn outline(text: &str) -> String {
        outline_texts(text).unwrap()
    }

    #[test]
    fn a_text_becomes_a_path_and_keeps_its_other_attributes() {
        let path =
            outline("<g><text x=\"100\" y=\"50.5\" font-size=\"20\" fill=\"red\">HIH</text></g>");
        assert!(path.starts_with("<g><path d=\"M0 0M") && path.ends_with("\" fill=\"red\"/></g>"));
        // Capitals are 0.7 of the size high; two of 0.72 and one of 0.28 are wide.
        let [(left, right), (top, foot)] = path_extent(&path);
        assert!(
            (100.0..103.0).contains(&left) && (131.0..134.5).contains(&right),
            "{left} {right}"
        );
        assert!((foot - 50.5).abs() < 0.1 && (top - 36.3).abs() < 0.5, "{top} {foot}");
    }

    #[test]
    fn an_anchor_is_the_middle_or_the_end_of_the_text() {
        let place = |anchor: &str| {
            let [(left, right), _] = path_extent(&outline(&format!(
                "<text x=\"0\" y=\"0\" text-anchor=\"{anchor}\">HHHH</text>"
            )));
            (left, right)
        };
        let (left, right) = place("middle");
        assert!((left + right).abs() < 0.1 && right > 10.0, "{left} {right}");
        let (left, right) = place("end");
        assert!(right < 0.0 && left < -25.0, "{left} {right}");
    }

    #[test]
    fn bold_letters_are_heavier_and_escaped_ones_are_one_letter() {
        assert_ne!(outline("<text >a</text>"), outline("<text font-weight=\"600\">a</text>"));
        assert_eq!(unescape("a &lt; b &amp;amp; &quot;c&#39;"), "a < b &amp; \"c'");
        // A letter missing in all fonts is shown as the replacement, not left out.
        assert_eq!(outline("<text >\u{4e00}</text>"), outline("<text >\u{fffd}</text>"));
        assert!(path_extent(&outline("<text >\u{4e00}</text>"))[0].1 > 5.0);
    }
}
