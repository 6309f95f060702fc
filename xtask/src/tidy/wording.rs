//! Words that readers of messages and documents cannot look up.
//!
//! STYLE.md says which terms to use. Former names of keys and values are allowed where they are
//! read as aliases.

use super::LintFinding;

/// Words, each with the field's term.
const BANNED: [(&str, &str); 27] = [
    ("stranger", "untrusted client"),
    ("strangers", "untrusted clients"),
    ("zoo", "failure catalogue"),
    ("in vain", "without effect, spurious"),
    ("mend", "fix"),
    ("mends", "fixes"),
    ("mended", "fixed"),
    ("sent again", "retransmitted, reinjected"),
    ("takes root", "needs root"),
    ("nobody knows", "is unknown"),
    ("purse", "budget"),
    ("--thin", "--quick"),
    ("lab break", "lab failure"),
    ("seed00", "the name of the paper"),
    ("nobody", "no client, no program, neither host"),
    ("somebody", "a user, a client, another program"),
    ("everybody", "all users"),
    ("anybody", "any client, any user"),
    ("whoever", "a client that"),
    ("beside", "with, next to, compared with"),
    ("in place of", "instead of"),
    ("hold against", "compare with"),
    ("holds against", "compares with"),
    ("held against", "compared with"),
    ("all the same", "still"),
    ("none the less", "still"),
    ("for ever", "without end"),
];

/// Files that show the words on purpose.
const EXEMPT: [&str; 4] = [
    "STYLE.md",
    "xtask/src/tidy/",
    "crates/towpath-scenario/src/section.rs",
    "crates/towpath-scenario/src/tests.rs",
];

/// Words that are names in these files, such as Unix's user `nobody`.
const NAMES: [(&str, &str); 4] = [
    ("nobody", "crates/towpath-emu/benches/emulator/"),
    ("nobody", "crates/towpath/tests/end_to_end/command_errors.rs"),
    ("nobody", "docs/lab/"),
    ("seed00", "reproductions/deconinck2019-"),
];

/// Checks the lines of a document, source file or scenario, comments and strings included.
pub(super) fn check(path: &str, text: &str) -> Vec<LintFinding> {
    if EXEMPT.iter().any(|exempt| path.starts_with(exempt)) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let lower_case = line.to_lowercase();
        let is_banned = |word: &str| has_word(&lower_case, word) && !is_name(word, path);
        for (word, term) in BANNED.iter().filter(|(word, _)| is_banned(word)) {
            let text = format!("says `{word}`, expected the field's term: {term}");
            findings.push(LintFinding::error(path, number, text));
        }
    }
    findings
}

/// Returns true if the word is a name in this file.
fn is_name(word: &str, path: &str) -> bool {
    NAMES.iter().any(|(name, place)| *name == word && path.starts_with(place))
}

/// Returns true if `word` is in the line and is not part of a longer word.
fn has_word(line: &str, word: &str) -> bool {
    let is_letter = |c: Option<char>| c.is_some_and(char::is_alphabetic);
    line.match_indices(word).any(|(start, _)| {
        let before = line.get(..start).and_then(|text| text.chars().next_back());
        let after = line.get(start + word.len()..).and_then(|text| text.chars().next());
        !is_letter(before) && !is_letter(after)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn banned_words_are_found_alone_and_not_in_longer_words() {
        let texts = |text| -> Vec<String> {
            check("docs/a.md", text).into_iter().map(|finding| finding.text).collect()
        };
        assert_eq!(texts("Data is Sent again.\n").len(), 1);
        assert_eq!(texts("Use `--thin`; a stranger\nmends it\n").len(), 3);
        assert_eq!(texts("an amended recommendation of 2000, estranged\n"), [""; 0]);
        assert!(check("STYLE.md", "mend\n").is_empty());
        assert_eq!(texts("Nobody runs as the user `nobody`\n").len(), 1);
        assert_eq!(check("docs/lab/performance.md", "the user `nobody`\n").len(), 0);
    }
}
