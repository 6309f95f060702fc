//! Head of every page, with a policy that allows only the page's own style and script.
//!
//! A browser enforces it (Content Security Policy Level 3). If a text from a file ever became
//! markup in spite of [`crate::text`], it could neither run nor fetch anything.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use crate::text::esc;

/// Part of a page that a web server adds to a report.
#[derive(Debug, Clone, Copy)]
pub struct SiteFrame<'a> {
    /// Markup at the top of the body, in which all texts from outside are escaped.
    pub navigation: &'a str,
    /// Rules that follow the report's own style sheet.
    pub style: &'a str,
    /// Present on a page that changes while it is open.
    pub live: Option<LivePage<'a>>,
}

/// Part of a page that changes while it is open.
#[derive(Debug, Clone, Copy)]
pub struct LivePage<'a> {
    /// Script that fetches changes from the page's own site.
    pub script: &'a str,
    /// Seconds after which a browser without scripts loads the page again.
    pub reload_s: u32,
}

/// Returns the beginning of a page up to its body; `script` is the exact content of its only
/// executable script element.
pub(crate) fn head(title: &str, style: &str, script: Option<&str>) -> String {
    head_in(title, style, script, None)
}

/// Returns the beginning of a page in the frame of a site, whose forms are sent to the site itself.
pub(crate) fn head_in(
    title: &str,
    style: &str,
    script: Option<&str>,
    site: Option<&SiteFrame<'_>>,
) -> String {
    let style = &format!("{style}{}", site.map_or("", |site| site.style));
    let mut rules = format!(
        "default-src 'none'; base-uri 'none'; form-action '{}'; style-src '{}'",
        if site.is_some() { "self" } else { "none" },
        content_hash(style)
    );
    if let Some(script) = script {
        // Writing to a `String` cannot fail.
        let _ = write!(rules, "; script-src '{}'", content_hash(script));
    }
    let mut reload = String::new();
    if let Some(live) = site.and_then(|site| site.live) {
        rules.push_str("; connect-src 'self'");
        reload = format!(
            "<noscript><meta http-equiv=\"refresh\" content=\"{}\"/></noscript>",
            live.reload_s
        );
    }
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{rules}\"/>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\
         <meta name=\"color-scheme\" content=\"light dark\"/>\
         {reload}<title>{} – towpath</title><style>{style}</style></head><body>{}",
        esc(title),
        site.map_or("", |site| site.navigation)
    )
}

/// Returns the policy's source expression for allowed content: `sha256-` and the hash in base 64
/// (RFC 4648 §4).
fn content_hash(text: &str) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let hash = Sha256::digest(text.as_bytes());
    let mut out = "sha256-".to_owned();
    for bytes in hash.chunks(3) {
        let word = (0..3).fold(0_usize, |word, index| {
            (word << 8) | usize::from(bytes.get(index).copied().unwrap_or(0))
        });
        for digit in 0..4 {
            let letter = LETTERS.get((word >> (18 - 6 * digit)) & 63).copied();
            let letter = letter.filter(|_| digit <= bytes.len()).unwrap_or(b'=');
            out.push(char::from(letter));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_matches_the_one_browsers_compute() {
        // Example of Content Security Policy Level 2, section 7.17.1, and the hash of an empty
        // text.
        assert_eq!(
            content_hash("alert('Hello, world.');"),
            "sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng="
        );
        assert_eq!(content_hash(""), "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
    }

    #[test]
    fn a_page_names_its_style_and_its_script_and_nothing_else() {
        let head = head("<x>", "p{}", Some("1"));
        assert!(head.contains("default-src 'none'") && head.contains("<title>&lt;x&gt; – towpath"));
        assert_eq!(head.matches("'sha256-").count(), 2);
        assert!(!head.contains("unsafe"));
    }
}
