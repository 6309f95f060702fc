//! `reference.csv`: the points that a source's text gives.

use towpath_measure::scenario::units::{self, Dimension};

/// A point that somebody else gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// The curve to which it belongs.
    pub variant: String,
    /// Place on the horizontal axis.
    pub x: Amount,
    /// Value.
    pub y: Amount,
    /// Where the source says so.
    pub place: String,
}

/// A number, with its unit or in that of the axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Amount {
    /// As it is written.
    pub text: String,
}

impl Amount {
    /// In units of `size` base units.
    pub(super) fn value(&self, size: f64) -> Option<f64> {
        let quantity = units::quantity(&self.text).ok()?;
        let bare = quantity.dimension == Dimension::Count;
        Some(if bare { quantity.as_f64() } else { quantity.as_f64() / size })
    }
}

/// Reads the points; the first line names the columns `variant,x,y,where`. An error says which line
/// is wrong and how.
pub fn published(text: &str) -> Result<Vec<Published>, String> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    match lines.next() {
        Some((_, "variant,x,y,where")) => {}
        Some((_, other)) => {
            return Err(format!("line 1 is `{other}`, expected `variant,x,y,where`"));
        }
        None => return Err("it is empty, expected `variant,x,y,where`".to_owned()),
    }
    lines
        .map(|(number, line)| point(line).map_err(|why| format!("line {}: {why}", number + 1)))
        .collect()
}

fn point(line: &str) -> Result<Published, String> {
    let cells = cells(line)?;
    let [variant, x, y, place] = <[String; 4]>::try_from(cells)
        .map_err(|cells| format!("there are {} cells, expected 4", cells.len()))?;
    if units::quantity(&y).is_err() {
        return Err(format!("`{y}` is no number, expected one, with its unit or the axis'"));
    }
    if place.trim().is_empty() {
        return Err("it is not said where the source gives this".to_owned());
    }
    Ok(Published { variant, x: Amount { text: x }, y: Amount { text: y }, place })
}

/// The cells of a line; those with a comma stand in quotes, in which a quote is written twice.
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
