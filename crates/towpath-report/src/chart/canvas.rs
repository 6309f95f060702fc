//! A `plotters` back-end that writes bare outlines: the surrounding element's class styles them.

use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::rc::Rc;

use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind,
};

/// Units of the data area across: fine enough to zoom into.
pub(super) const WIDTH: u32 = 10_000;
/// Units of the data area from top to bottom.
pub(super) const HEIGHT: u32 = 1_000;

type DrawResult = Result<(), DrawingErrorKind<Infallible>>;

/// Output shared with the caller, who writes the groups around the outlines.
#[derive(Debug, Clone, Default)]
pub(super) struct Canvas(pub(super) Rc<RefCell<String>>);

impl Canvas {
    /// Appends markup to the shared output.
    pub(super) fn write(&self, markup: &str) {
        self.0.borrow_mut().push_str(markup);
    }

    fn outline(&self, points: impl IntoIterator<Item = BackendCoord>, closed: bool) {
        let mut out = self.0.borrow_mut();
        let mut points = points.into_iter().map(|(x, y)| (i64::from(x), i64::from(y)));
        let Some(first) = points.next() else { return };
        let _ = write!(out, "<path d=\"M{} {}", first.0, first.1);
        let (mut previous, mut has_length) = (first, false);
        for (x, y) in points {
            let _ = match (x - previous.0, y - previous.1) {
                (0, 0) => Ok(()),
                (0, dy) => write!(out, "v{dy}"),
                (dx, 0) => write!(out, "h{dx}"),
                (dx, dy) if dy < 0 => write!(out, "l{dx}{dy}"),
                (dx, dy) => write!(out, "l{dx} {dy}"),
            };
            has_length |= (x, y) != previous;
            previous = (x, y);
        }
        if !has_length {
            out.push_str("h0"); // round caps turn a single point into a dot
        }
        out.push_str(if closed { "z\"/>" } else { "\"/>" });
    }
}

impl DrawingBackend for Canvas {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        (WIDTH, HEIGHT)
    }

    fn ensure_prepared(&mut self) -> DrawResult {
        Ok(())
    }

    fn present(&mut self) -> DrawResult {
        Ok(())
    }

    fn draw_pixel(&mut self, _: BackendCoord, _: BackendColor) -> DrawResult {
        Ok(())
    }

    fn draw_line<S: BackendStyle>(
        &mut self,
        from: BackendCoord,
        to: BackendCoord,
        _: &S,
    ) -> DrawResult {
        self.outline([from, to], false);
        Ok(())
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        path: I,
        _: &S,
    ) -> DrawResult {
        self.outline(path, false);
        Ok(())
    }

    fn fill_polygon<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        path: I,
        _: &S,
    ) -> DrawResult {
        self.outline(path, true);
        Ok(())
    }

    // Text is written outside the stretched area.
    fn draw_text<S: BackendTextStyle>(&mut self, _: &str, _: &S, _: BackendCoord) -> DrawResult {
        Ok(())
    }
}
