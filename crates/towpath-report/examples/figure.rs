//! Draws the figure whose JSON comes on standard input, and prints it as SVG.

use std::io::{self, Write as _};

use towpath_report::figure;

fn main() -> io::Result<()> {
    let figure: figure::Figure = serde_json::from_reader(io::stdin().lock())?;
    io::stdout().write_all(figure::svg(&figure).as_bytes())
}
