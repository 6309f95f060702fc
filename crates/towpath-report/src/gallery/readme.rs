//! Rendering of the Markdown in reproduction pages: headings, paragraphs, lists, tables, code and
//! links. Anything else stays text.

use std::fmt::Write as _;

use crate::text::esc;

/// Renders everything after the first heading and the source line as HTML. Headings are moved
/// below the level of a figure's heading.
pub(super) fn render_markdown(markdown: &str) -> String {
    let mut out = String::new();
    let mut block: Vec<&str> = Vec::new();
    let lines =
        markdown.lines().skip_while(|line| line.starts_with("# ") || line.trim().is_empty());
    let lines = lines.filter(|line| !line.starts_with("Source:"));
    for line in lines.chain([""]) {
        let starts_block = line.starts_with('#') || line.starts_with("- ");
        if (line.trim().is_empty() || starts_block) && !block.is_empty() {
            write_block(&mut out, &block);
            block.clear();
        }
        if !line.trim().is_empty() {
            block.push(line.trim());
        }
        if line.starts_with('#') {
            write_block(&mut out, &block);
            block.clear();
        }
    }
    // Each item was rendered as a list of its own; consecutive items form one list.
    out.replace("</ul><ul>", "")
}

fn write_block(out: &mut String, lines: &[&str]) {
    let Some(first) = lines.first() else { return };
    let text = lines.join(" ");
    // Writing to a `String` cannot fail.
    let _ = if first.starts_with('#') {
        write!(out, "<h4>{}</h4>", inline(text.trim_start_matches('#').trim()))
    } else if let Some(item) = text.strip_prefix("- ") {
        write!(out, "<ul><li>{}</li></ul>", inline(item))
    } else if first.starts_with('|') {
        table(out, lines);
        Ok(())
    } else {
        write!(out, "<p>{}</p>", inline(&text))
    };
}

fn table(out: &mut String, lines: &[&str]) {
    out.push_str("<div class=\"scroll\"><table class=\"list\">");
    let is_no_rule = |line: &&&str| !line.chars().all(|c| matches!(c, '|' | '-' | ':' | ' '));
    for (number, line) in lines.iter().filter(is_no_rule).enumerate() {
        let tag = if number == 0 { "th" } else { "td" };
        out.push_str("<tr>");
        for cell in line.trim_matches('|').split('|') {
            let _ = write!(out, "<{tag}>{}</{tag}>", inline(cell.trim()));
        }
        out.push_str("</tr>");
    }
    out.push_str("</table></div>");
}

/// Renders code, bold and links within a paragraph.
fn inline(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['`', '*', '[']) {
        let (plain, marked) = rest.split_at(at);
        let _ = write!(out, "{}", esc(plain));
        rest = piece(&mut out, marked).unwrap_or_else(|| {
            // A mark without its partner is only a character.
            let (mark, after) = marked.split_at(1);
            out.push_str(mark);
            after
        });
    }
    let _ = write!(out, "{}", esc(rest));
    out
}

/// Renders the code, bold, italic or link at the beginning of `marked`; returns the text after it.
///
/// `None` if its end is missing.
fn piece<'a>(out: &mut String, marked: &'a str) -> Option<&'a str> {
    if let Some(code) = marked.strip_prefix('`') {
        let (code, after) = code.split_once('`')?;
        let _ = write!(out, "<code>{}</code>", esc(code));
        return Some(after);
    }
    if let Some(bold) = marked.strip_prefix("**") {
        let (bold, after) = bold.split_once("**")?;
        let _ = write!(out, "<b>{}</b>", esc(bold));
        return Some(after);
    }
    if let Some(italic) = marked.strip_prefix('*') {
        let (italic, after) = italic.split_once('*')?;
        let _ = write!(out, "<i>{}</i>", esc(italic));
        return Some(after);
    }
    let (text, after) = marked.strip_prefix('[')?.split_once("](")?;
    let (url, after) = after.split_once(')')?;
    let is_web_link = ["https://", "http://"].iter().any(|scheme| url.starts_with(scheme));
    // Links to files of the repository lead nowhere from a page.
    let _ = if is_web_link {
        write!(out, "<a href=\"{}\">{}</a>", esc(url), esc(text))
    } else {
        write!(out, "{}", esc(text))
    };
    Some(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_markdown_is_rendered_and_everything_else_is_text() {
        let text = "# Title\n\nSource: me\n\n## Ours\nOne `a<b`\nand **two**.\n\n- first\n- second\n  line\n\n\
                    | a | b |\n|---|---|\n| 1 | *2* |\n\nA [link](https://a.b/?c&d), [none](c.md), 2 * 3, <script>";
        assert_eq!(
            render_markdown(text),
            "<h4>Ours</h4><p>One <code>a&lt;b</code> and <b>two</b>.</p><ul><li>first</li>\
             <li>second line</li></ul><div class=\"scroll\"><table class=\"list\"><tr><th>a</th>\
             <th>b</th></tr><tr><td>1</td><td><i>2</i></td></tr></table></div><p>A \
             <a href=\"https://a.b/?c&amp;d\">link</a>, none, 2 * 3, &lt;script&gt;</p>"
        );
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic_or_becomes_a_script(text in "(?s)[<\\[\\]()*`|# a-]{0,80}(<script>)?") {
            proptest::prop_assert!(!render_markdown(&text).contains("<script"));
        }
    }
}
