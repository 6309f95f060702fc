//! Reader of `reference.csv`: the points that a source publishes in its text.

use towpath_measure::scenario::document::nearest;
use towpath_measure::scenario::units::{self, Dimension};

use super::points::may_have;
use crate::plan::Plan;

/// A point that a source publishes.
#[derive(Debug, Clone, PartialEq)]
pub struct PublishedPoint {
    /// Index of the only panel that has it, from 0; `None` for every panel that has its curve.
    pub panel: Option<usize>,
    /// Name of the curve to which it belongs.
    pub variant: String,
    /// Place on the horizontal axis.
    pub x: QuantityText,
    /// Value on the vertical axis.
    pub y: QuantityText,
    /// Place in the source.
    pub source_place: String,
}

/// A number, with its unit or in that of the axis.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantityText {
    /// Text as written in the file.
    pub text: String,
}

impl QuantityText {
    /// Returns the number in units of `size` base units; `None` if it does not parse.
    pub(super) fn value(&self, size: f64) -> Option<f64> {
        let quantity = units::quantity(&self.text).ok()?;
        let bare = quantity.dimension == Dimension::Count;
        Some(if bare { quantity.as_f64() } else { quantity.as_f64() / size })
    }
}

/// Header lines without and with the panel column.
const COLUMNS: [&str; 2] = ["variant,x,y,where", "panel,variant,x,y,where"];

/// Reads the points of a plan's figure. The first line names the columns `variant,x,y,where`,
/// optionally with `panel` before them. An error names the line and its mistake.
pub fn published(text: &str, plan: &Plan) -> Result<Vec<PublishedPoint>, String> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let [usual, with_panels] = COLUMNS;
    let panels = match lines.next() {
        Some((_, first)) if first == usual => false,
        Some((_, first)) if first == with_panels => true,
        Some((_, other)) => {
            return Err(format!("line 1 is `{other}`, expected `{usual}` or `{with_panels}`"));
        }
        None => return Err(format!("it is empty, expected `{usual}` or `{with_panels}`")),
    };
    let read = |(number, line)| {
        point(line, panels, plan).map_err(|why| format!("line {}: {why}", number + 1))
    };
    lines.map(read).collect()
}

fn point(line: &str, panels: bool, plan: &Plan) -> Result<PublishedPoint, String> {
    let mut cells = cells(line)?;
    if !panels {
        cells.insert(0, String::new());
    }
    let [panel, variant, x, y, place] = <[String; 5]>::try_from(cells).map_err(|cells| {
        let (found, expected) = if panels { (cells.len(), 5) } else { (cells.len() - 1, 4) };
        format!("there are {found} cells, expected {expected}")
    })?;
    if units::quantity(&y).is_err() {
        return Err(format!("`{y}` is no number, expected one, with its unit or the axis'"));
    }
    if place.trim().is_empty() {
        return Err("it is not said where the source gives this".to_owned());
    }
    let panel = if panel.is_empty() { None } else { Some(panel_of(&panel, plan)?) };
    let known = || plan.panels.iter().any(|drawing| may_have(plan, drawing, &variant));
    if panel.is_none() && plan.panels.len() > 1 && !known() {
        return Err(format!(
            "no panel has a curve `{variant}`; for a curve of its own, say in the column `panel` where"
        ));
    }
    Ok(PublishedPoint {
        panel,
        variant,
        x: QuantityText { text: x },
        y: QuantityText { text: y },
        source_place: place,
    })
}

/// Finds a panel by its title, else by its number from 1.
fn panel_of(text: &str, plan: &Plan) -> Result<usize, String> {
    let titles = || plan.panels.iter().map(|drawing| drawing.title.as_str());
    let by_number = || text.parse::<usize>().ok()?.checked_sub(1);
    let number = titles().position(|title| title == text).or_else(by_number);
    number.filter(|number| *number < plan.panels.len()).ok_or_else(|| {
        let near = nearest(text, titles()).map(|title| format!("; did you mean `{title}`?"));
        let count = plan.panels.len();
        let near = near.unwrap_or_default();
        format!("no panel is called `{text}`, expected a title or a number up to {count}{near}")
    })
}

/// Splits a line into cells. Cells with a comma are in double quotes, in which a quote is doubled.
fn cells(line: &str) -> Result<Vec<String>, String> {
    let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                cell.push('"');
                letters.next();
            }
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(std::mem::take(&mut cell)),
            other => cell.push(other),
        }
    }
    if quoted {
        return Err("a quote is not closed".to_owned());
    }
    cells.push(cell);
    Ok(cells.into_iter().map(|cell| cell.trim().to_owned()).collect())
}
