//! PNG rendering of a figure, for programs that cannot show SVG.
//!
//! The PNG is drawn from the SVG with glyph outlines from bundled fonts. So it has the same bytes
//! on every machine.

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree};
use thiserror::Error;

use super::glyphs::outline_texts;
use super::{Figure, svg};

/// Dots for each unit of the SVG: sharp in print and on dense screens.
const SCALE: f32 = 2.0;

/// Reason for a failed PNG rendering.
#[derive(Debug, Error)]
pub enum PngError {
    /// A bundled font that cannot be read.
    #[error("the font `{0}` cannot be read")]
    Font(&'static str),
    /// The SVG does not parse.
    #[error("the figure cannot be drawn: {0}")]
    Svg(#[from] resvg::usvg::Error),
    /// A picture too large for memory: width and height in dots.
    #[error("a picture of {0} x {1} dots is too large")]
    Size(u32, u32),
    /// PNG encoding failed; contains the encoder's message.
    #[error("the picture cannot be packed: {0}")]
    Packed(String),
}

/// Renders the figure as PNG, with two dots for each unit of the SVG.
pub fn png(figure: &Figure) -> Result<Vec<u8>, PngError> {
    let tree = Tree::from_str(&outline_texts(&svg(figure))?, &Options::default())?;
    let [across, down] =
        [tree.size().width(), tree.size().height()].map(|length| (length * SCALE).ceil() as u32);
    let mut dots = Pixmap::new(across, down).ok_or(PngError::Size(across, down))?;
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut dots.as_mut());
    dots.encode_png().map_err(|error| PngError::Packed(error.to_string()))
}
