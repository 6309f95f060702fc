//! The palette of pages: text is legible on every background on which it may appear, in both
//! schemes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "other tests use the rest")]
mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::pair;
use towpath_report::html;

/// Colours of a scheme by name, as `#rrggbb`.
type Palette = BTreeMap<String, String>;

fn style() -> String {
    let page = html(&pair());
    page.split("<style>").nth(1).unwrap().split("</style>").next().unwrap().to_owned()
}

/// Returns the colours declared as `--name: #rrggbb`.
fn colours(text: &str) -> Palette {
    let pairs = text.split("--").skip(1).filter_map(|part| {
        let (name, rest) = part.split_once(": #")?;
        let digits: String = rest.chars().take_while(char::is_ascii_hexdigit).collect();
        let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        // Eight digits include transparency, so no text has such a background alone.
        let digits = match digits.len() {
            3 => digits.chars().flat_map(|digit| [digit, digit]).collect(),
            _ => digits,
        };
        (is_name && digits.len() == 6).then(|| (name.to_owned(), digits))
    });
    pairs.collect()
}

/// Returns the light and the dark scheme.
fn schemes(style: &str) -> [(&'static str, Palette); 2] {
    let (light, rest) = style.split_once("@media screen and (prefers-color-scheme: dark)").unwrap();
    let dark = rest.split("* {").next().unwrap();
    let light = colours(light);
    let mut dark_palette = light.clone();
    dark_palette.extend(colours(dark));
    assert!(light.len() > 20 && dark_palette != light, "{light:?}");
    [("light", light), ("dark", dark_palette)]
}

/// Returns the names of the colours that rules set for a property.
fn colours_used(style: &str, property: &str) -> BTreeSet<String> {
    let start = format!("{property}: var(--");
    let uses = style.match_indices(&start).filter(|(index, _)| {
        // `color`, not `border-color`.
        !style[..*index].ends_with('-')
    });
    let name = |(index, _): (usize, &str)| style[index + start.len()..].split([')', ',']).next();
    uses.filter_map(name).map(str::to_owned).collect()
}

/// Returns the relative luminance (WCAG 2.2, sRGB).
fn luminance(colour: &str) -> f64 {
    let channel = |offset: usize| {
        let value = f64::from(u8::from_str_radix(&colour[offset..offset + 2], 16).unwrap()) / 255.0;
        if value <= 0.040_45 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    };
    0.2126 * channel(0) + 0.7152 * channel(2) + 0.0722 * channel(4)
}

fn contrast(a_colour: &str, b_colour: &str) -> f64 {
    let (a, b) = (luminance(a_colour), luminance(b_colour));
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

#[test]
fn every_text_contrasts_with_its_background_in_both_schemes() {
    assert!((contrast("000000", "ffffff") - 21.0).abs() < 1e-9);
    let style = style();
    let mut texts = colours_used(&style, "color");
    texts.extend(["ink".to_owned(), "soft".to_owned()]); // what charts write with
    let backgrounds = colours_used(&style, "background");
    assert!(backgrounds.len() >= 3, "{backgrounds:?}");
    assert!(["good", "bad", "soft"].iter().all(|name| texts.contains(*name)), "{texts:?}");
    for (scheme, palette) in schemes(&style) {
        let page_backgrounds =
            backgrounds.iter().filter(|name| ["bg", "panel", "warn-bg"].contains(&name.as_str()));
        for background in page_backgrounds {
            for text in &texts {
                let ratio = contrast(&palette[text], &palette[background]);
                assert!(ratio >= 4.5, "{scheme}: {text} on {background} has {ratio:.2}:1");
            }
        }
    }
}

#[test]
fn every_line_and_band_contrasts_with_the_page_in_both_schemes() {
    let style = style();
    let series = colours_used(&style, "--c");
    assert!(series.len() > 20, "{series:?}");
    for (scheme, palette) in schemes(&style) {
        for name in &series {
            let ratio = contrast(&palette[name], &palette["bg"]);
            assert!(ratio >= 3.0, "{scheme}: {name} has {ratio:.2}:1");
        }
        for name in ["tcp", "mptcp", "quic", "mpquic"] {
            let ratio = contrast(&palette[name], &palette["bg"]);
            assert!(ratio >= 4.5, "{scheme}: {name} has {ratio:.2}:1");
        }
    }
}
