//! Reader of `reference.csv`: the points that a source publishes in its text.

use towpath_scenario::document::nearest;
use towpath_scenario::units;
use towpath_scenario::units::Dimension;

use super::points::may_have_curve;
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
        let is_plain_number = quantity.dimension == Dimension::Count;
        Some(if is_plain_number { quantity.as_f64() } else { quantity.as_f64() / size })
    }
}

/// Header lines without and with the panel column.
const COLUMNS: [&str; 2] = ["variant,x,y,where", "panel,variant,x,y,where"];

/// Reads the points of a plan's figure. The first line names the columns `variant,x,y,where`,
/// optionally with `panel` before them. An error names the line and its mistake.
pub fn published(text: &str, plan: &Plan) -> Result<Vec<PublishedPoint>, String> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let [without_panels, with_panels] = COLUMNS;
    let has_panel_column = match lines.next() {
        Some((_, first)) if first == without_panels => false,
        Some((_, first)) if first == with_panels => true,
        Some((_, other)) => {
            return Err(format!(
                "line 1 is `{other}`, expected `{without_panels}` or `{with_panels}`"
            ));
        }
        None => return Err(format!("it is empty, expected `{without_panels}` or `{with_panels}`")),
    };
    let parse_line = |(number, line)| {
        point(line, has_panel_column, plan).map_err(|error| format!("line {}: {error}", number + 1))
    };
    lines.map(parse_line).collect()
}

fn point(line: &str, has_panel_column: bool, plan: &Plan) -> Result<PublishedPoint, String> {
    let mut cells = cells(line)?;
    if !has_panel_column {
        cells.insert(0, String::new());
    }
    let [panel, variant, x, y, source_place] = <[String; 5]>::try_from(cells).map_err(|cells| {
        let (found, expected) =
            if has_panel_column { (cells.len(), 5) } else { (cells.len() - 1, 4) };
        format!("there are {found} cells, expected {expected}")
    })?;
    if units::quantity(&y).is_err() {
        return Err(format!("`{y}` is not a number, expected one, with its unit or the axis'"));
    }
    if source_place.trim().is_empty() {
        return Err("it is not said where the source gives this".to_owned());
    }
    let panel = if panel.is_empty() { None } else { Some(panel_of(&panel, plan)?) };
    let has_curve = || plan.panels.iter().any(|spec| may_have_curve(plan, spec, &variant));
    if panel.is_none() && plan.panels.len() > 1 && !has_curve() {
        return Err(format!(
            "no panel has a curve `{variant}`; for a curve of its own, say in the column `panel` where"
        ));
    }
    Ok(PublishedPoint {
        panel,
        variant,
        x: QuantityText { text: x },
        y: QuantityText { text: y },
        source_place,
    })
}

/// Finds a panel by its title, else by its number from 1.
fn panel_of(text: &str, plan: &Plan) -> Result<usize, String> {
    let titles = || plan.panels.iter().map(|spec| spec.title.as_str());
    let by_number = || text.parse::<usize>().ok()?.checked_sub(1);
    let number = titles().position(|title| title == text).or_else(by_number);
    number.filter(|number| *number < plan.panels.len()).ok_or_else(|| {
        let suggestion = nearest(text, titles()).map(|title| format!("; did you mean `{title}`?"));
        let count = plan.panels.len();
        let suggestion = suggestion.unwrap_or_default();
        format!(
            "no panel is called `{text}`, expected a title or a number up to {count}{suggestion}"
        )
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
