//! Identifiers and doc comments that a reader cannot look up.
//!
//! STYLE.md says how names are chosen. Words listed here were private to this project once, or say
//! less than the field's term.

use std::collections::BTreeMap;

use super::LintFinding;
use super::scan::scan;

/// Type names that are participles, pronouns, questions or an allegory.
const TYPES: &[&str] = &[
    "Purse",
    "Seat",
    "Books",
    "Door",
    "Desk",
    "Guest",
    "Caller",
    "Callers",
    "LetIn",
    "Visit",
    "Visitor",
    "Attendance",
    "Meeting",
    "Introduction",
    "Speaker",
    "Ears",
    "LastWords",
    "Strand",
    "Lane",
    "Way",
    "Ways",
    "Look",
    "Whose",
    "Asker",
    "Talk",
    "Talks",
    "Half",
    "Halves",
    "Fate",
    "Birth",
    "Told",
    "Said",
    "Heard",
    "Seen",
    "Known",
    "Stranger",
    "Strangers",
    "Mine",
    "Met",
    "Tried",
    "Manner",
    "Whole",
    "Wanted",
    "Happened",
    "Happening",
    "Situation",
];
/// Constants that say neither what they bound nor a unit.
const CONSTANTS: &[&str] = &[
    "PATIENCE",
    "NAP",
    "DOUBT",
    "QUIET",
    "FAREWELL",
    "FORGOTTEN",
    "PURSE",
    "WORDS",
    "STEP",
    "SILENCE",
];
/// Parts of constants' names: a bound is MAX or MIN.
const SUPERLATIVES: &[&str] = &[
    "MOST",
    "LEAST",
    "LONGEST",
    "LARGEST",
    "SHORTEST",
    "SMALLEST",
    "FEWEST",
    "FASTEST",
    "SLOWEST",
    "WIDEST",
    "NARROWEST",
    "LATEST",
    "COARSEST",
];
const FUNCTIONS: &[&str] = &[
    "hear",
    "hears",
    "heard",
    "tell",
    "tells",
    "told",
    "say",
    "said",
    "speak",
    "speaks",
    "spoken",
    "pay",
    "paid",
    "spend",
    "mend",
    "obey",
    "look",
    "looks",
    "comes_back",
    "greet",
    "suffer",
    "turn_round",
];
const FUNCTION_PARTS: &[&str] = &["_is_right", "stranger", "in_vain"];
const FUNCTION_PREFIXES: &[&str] = &["look_", "seal_"];
/// Names of fields and parameters.
const FIELDS: &[&str] =
    &["purse", "seat", "patience", "half", "talk", "stranger", "told", "heard", "way", "ways"];
/// Names of files and folders.
const FILES: &[&str] = &[
    "purse",
    "door",
    "desk",
    "reception",
    "introduction",
    "speaker",
    "departure",
    "words",
    "look",
    "ways",
    "half",
    "talk",
    "zoo",
    "twin",
    "oracle",
    "abuse",
    "strangers",
    "whole",
];
/// Endings of bindings that hold an RAII guard.
const GUARDS: &[&str] = &["_guard", "_permit", "_thread"];
/// First words of doc comments that do not name the item.
const OPENINGS: &[&str] = &[
    "what",
    "whatever",
    "whether",
    "who",
    "whoever",
    "whose",
    "whom",
    "how",
    "which",
    "where",
    "why",
    "it",
    "its",
    "they",
    "them",
    "those",
    "these",
    "this",
    "that",
    "he",
    "she",
    "his",
    "nobody",
    "somebody",
    "anybody",
    "everybody",
    "mine",
    "ours",
    "theirs",
];

/// Checks the names that a file defines, its bindings and its doc comments.
pub(super) fn check(path: &str, text: &str) -> Vec<LintFinding> {
    let scanned = scan(text);
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(scanned.code.lines()) {
        let tokens: Vec<_> = tokens(line).collect();
        findings.extend(
            definitions(&tokens)
                .filter_map(banned_name)
                .chain(field(&tokens))
                .chain(binding(&tokens))
                .map(|text| LintFinding::error(path, number, text)),
        );
    }
    findings.extend(doc_comments(path, &scanned.comments));
    findings
}

/// Checks the names of a file and its folders.
pub(super) fn check_path(path: &str) -> Option<LintFinding> {
    let stems = path.split('/').map(|part| part.split_once('.').map_or(part, |(stem, _)| stem));
    let name = stems.into_iter().find(|stem| FILES.contains(stem))?;
    Some(LintFinding::error(
        path,
        1,
        format!("called `{name}`, expected the field's term (STYLE.md)"),
    ))
}

/// Finds types that one crate defines twice under one name.
pub(super) fn repeated_types<'a>(
    files: impl Iterator<Item = (&'a str, &'a str)>,
) -> Vec<LintFinding> {
    let mut type_locations = BTreeMap::<(&str, String), String>::new();
    let mut findings = Vec::new();
    for (path, text) in files {
        let Some((package, _)) = path.split_once("/src/") else { continue };
        // The same types for other systems than Linux; no build has both.
        if path.ends_with("/portable.rs") {
            continue;
        }
        for (number, line) in (1..).zip(scan(text).code.lines()) {
            // An indented `type` belongs to a trait.
            if line.starts_with(' ') && line.trim_start().starts_with("type ") {
                continue;
            }
            let tokens: Vec<_> = tokens(line).collect();
            let types = definitions(&tokens).filter(|(kind, _)| kind.is_type());
            for (_, name) in types {
                let location = format!("{path}:{number}");
                if let Some(first_location) =
                    type_locations.insert((package, name.to_owned()), location)
                {
                    let text =
                        format!("type `{name}`, expected one of this name (see {first_location})");
                    findings.push(LintFinding::error(path, number, text));
                }
            }
        }
    }
    findings
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameKind {
    Type,
    Constant,
    Function,
}

impl NameKind {
    fn is_type(self) -> bool {
        self == Self::Type
    }
}

/// Returns the identifiers and single punctuation characters of a line.
fn tokens(line: &str) -> impl Iterator<Item = &str> {
    let mut rest = line;
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        let first_char = rest.chars().next()?;
        let word_bytes =
            rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let (token, after_token) =
            rest.split_at(if word_bytes == 0 { first_char.len_utf8() } else { word_bytes });
        rest = after_token;
        Some(token)
    })
}

/// Returns the names that a line defines, with their kinds.
fn definitions<'a>(tokens: &[&'a str]) -> impl Iterator<Item = (NameKind, &'a str)> {
    let pairs: Vec<_> = tokens
        .windows(2)
        .filter_map(|pair| match *pair {
            ["struct" | "enum" | "trait" | "type" | "union", name] => Some((NameKind::Type, name)),
            ["const" | "static", name] if name != "fn" => Some((NameKind::Constant, name)),
            ["fn", name] => Some((NameKind::Function, name)),
            _ => None,
        })
        .collect();
    pairs.into_iter().filter(|(_, name)| name.starts_with(|c: char| c.is_alphabetic()))
}

fn banned_name((kind, name): (NameKind, &str)) -> Option<String> {
    let (noun, is_banned) = match kind {
        NameKind::Type => ("type", TYPES.contains(&name)),
        NameKind::Constant => {
            let is_superlative =
                name.split('_').any(|has_banned_part| SUPERLATIVES.contains(&has_banned_part));
            ("constant", CONSTANTS.contains(&name) || is_superlative)
        }
        NameKind::Function => {
            let has_banned_part =
                FUNCTION_PARTS.iter().any(|has_banned_part| name.contains(has_banned_part));
            let has_banned_prefix = FUNCTION_PREFIXES
                .iter()
                .any(|has_banned_prefix| name.starts_with(has_banned_prefix));
            ("function", FUNCTIONS.contains(&name) || has_banned_part || has_banned_prefix)
        }
    };
    is_banned.then(|| format!("{noun} `{name}`, expected the field's term (STYLE.md)"))
}

/// Finds a banned field or parameter: a name before a single colon.
fn field(tokens: &[&str]) -> Option<String> {
    let mut triples = tokens.windows(3);
    let name = triples.find_map(|triple| match *triple {
        [name, ":", next] if next != ":" && FIELDS.contains(&name) => Some(name),
        _ => None,
    })?;
    Some(format!("field or parameter `{name}`, expected the field's term (STYLE.md)"))
}

/// Finds `let _several_words = …` that is not a guard.
fn binding(tokens: &[&str]) -> Option<String> {
    let name = tokens.windows(2).find_map(|pair| match *pair {
        ["let", name] if name.starts_with('_') => Some(name),
        _ => None,
    })?;
    let is_guard = GUARDS.iter().any(|ending| name.ends_with(ending));
    let has_several_words = name.trim_start_matches('_').contains('_') && !is_guard;
    has_several_words.then(|| format!("binding `{name}`, expected `let _ = …; // reason`"))
}

/// Finds doc comments that begin with a question word or pronoun.
fn doc_comments(path: &str, comments: &str) -> Vec<LintFinding> {
    let mut is_continued = false;
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(comments.lines()) {
        let doc = line.trim_start().strip_prefix("///");
        let first_word = doc.filter(|_| !is_continued).and_then(|doc| tokens(doc).next());
        is_continued = doc.is_some();
        if let Some(word) =
            first_word.filter(|word| OPENINGS.contains(&word.to_lowercase().as_str()))
        {
            let text = format!("a doc comment that begins with `{word}`, expected a noun or verb");
            findings.push(LintFinding::error(path, number, text));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding_texts(code: &str) -> Vec<String> {
        check("a.rs", code).into_iter().map(|finding| finding.text).collect()
    }

    #[test]
    fn private_words_are_found_where_they_are_defined() {
        for code in [
            "pub(crate) struct Purse {",
            "const PATIENCE: Duration = D;",
            "pub const MOST_SOURCES: usize = 1;",
            "    pub(crate) fn hear(&mut self) {",
            "fn checksum_is_right() {}",
            "    half: HostReport,",
            "let _nobody_waits = tx.send(x);",
        ] {
            assert_eq!(finding_texts(code).len(), 1, "{code}");
        }
    }

    #[test]
    fn the_fields_terms_and_uses_of_others_names_pass() {
        for code in [
            "pub struct TrafficBudget {",
            "const MAX_SOURCES: usize = 1;",
            "const fn lookup() {}",
            "let half = look::half(1);",
            "let _rate_guard = lock();",
            "let _ = tx.send(x); // purse: the receiver may be gone",
            "state: half_open::State,",
        ] {
            assert_eq!(finding_texts(code), Vec::<String>::new(), "{code}");
        }
    }

    #[test]
    fn only_the_beginning_of_a_doc_comment_must_be_a_noun_or_verb() {
        assert_eq!(finding_texts("/// What it is.\nstruct A;").len(), 1);
        assert_eq!(
            finding_texts("/// Sequence number,\n/// which wraps.\nstruct A;"),
            Vec::<String>::new()
        );
        assert_eq!(finding_texts("// What it is.\nstruct A;"), Vec::<String>::new());
    }

    #[test]
    fn a_type_has_one_definition_in_a_crate() {
        let files = [
            ("crates/a/src/x.rs", "struct Line;\nimpl I for Line {\n    type Item = u8;\n}\n"),
            ("crates/a/src/y.rs", "enum Line {}\nimpl I for B {\n    type Item = u8;\n}\n"),
            ("crates/b/src/x.rs", "struct Line;"),
            ("crates/b/src/files/portable.rs", "struct Line;"),
        ];
        let findings = repeated_types(files.into_iter());
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(findings[0].path, "crates/a/src/y.rs");
    }

    #[test]
    fn files_have_names_of_the_field() {
        assert!(check_path("crates/a/src/purse.rs").is_some());
        assert!(check_path("crates/a/src/door/mod.rs").is_some());
        assert_eq!(check_path("crates/a/src/lookup.rs"), None);
    }
}
