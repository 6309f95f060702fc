//! Length of sentences in documents: their number may only fall.

use super::LintFinding;
use crate::repository::Repository;

/// Number of words from which a sentence counts as long.
const LONG_WORDS: usize = 31;

/// Long sentences that remain in documents. Lower it when fewer are left; never raise it.
const MAX_LONG_SENTENCES: usize = 41;

/// Long sentence of a document.
#[derive(Debug, PartialEq, Eq)]
struct LongSentence {
    /// Line on which its paragraph begins, from 1.
    line: usize,
    words: usize,
    start: String,
}

/// Checks all documents: more long sentences than [`MAX_LONG_SENTENCES`] are errors.
pub(super) fn check(repository: &Repository) -> Vec<LintFinding> {
    let is_document =
        |path: &&str| path.rsplit_once('.').is_some_and(|(_, extension)| extension == "md");
    let documents = repository.paths().filter(is_document);
    let texts = documents.filter_map(|path| Some((path, repository.text(path)?)));
    let sentences: Vec<_> = texts
        .flat_map(|(path, text)| long_sentences(text).into_iter().map(move |long| (path, long)))
        .collect();
    compare(&sentences, MAX_LONG_SENTENCES)
}

fn compare(sentences: &[(&str, LongSentence)], max_count: usize) -> Vec<LintFinding> {
    let count = sentences.len();
    if count < max_count {
        let text =
            format!("{count} long sentences are left, expected MAX_LONG_SENTENCES to say so");
        return vec![LintFinding::warning("xtask/src/tidy/sentences.rs", 1, text)];
    }
    if count == max_count {
        return Vec::new();
    }
    let describe = |(path, long): &(&str, LongSentence)| {
        let LongSentence { line, words, start } = long;
        let text =
            format!("a sentence of {words} words, expected fewer than {LONG_WORDS}: {start}…");
        LintFinding::error(path, *line, text)
    };
    sentences.iter().map(describe).collect()
}

/// Returns the long sentences of a document, without code, comments and quotations.
fn long_sentences(text: &str) -> Vec<LongSentence> {
    let mut found = Vec::new();
    for (line, block) in blocks(text) {
        let cells: Vec<&str> =
            if block.starts_with('|') { block.split('|').collect() } else { vec![&block] };
        for sentence in cells.into_iter().flat_map(sentences) {
            let words = sentence.split_whitespace().count();
            if words >= LONG_WORDS {
                let start = sentence.split_whitespace().take(6).collect::<Vec<_>>().join(" ");
                found.push(LongSentence { line, words, start });
            }
        }
    }
    found
}

/// Returns paragraphs, list items and table rows, with the line on which each begins.
fn blocks(text: &str) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let mut is_open = false;
    let mut is_in_code = false;
    let mut is_in_comment = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.starts_with("```") || line.starts_with("~~~") {
            is_in_code = !is_in_code;
            is_open = false;
            continue;
        }
        is_in_comment |= line.starts_with("<!--");
        if is_in_code || is_in_comment || line.is_empty() || line.starts_with('>') {
            is_in_comment &= !line.ends_with("-->");
            is_open = false;
            continue;
        }
        let is_item = ["- ", "* ", "+ ", "|", "#"].iter().any(|mark| line.starts_with(mark))
            || line.split_once(". ").is_some_and(|(n, _)| n.bytes().all(|b| b.is_ascii_digit()));
        match blocks.last_mut() {
            Some((_, block)) if is_open && !is_item => {
                block.push(' ');
                block.push_str(line);
            }
            _ => blocks.push((number, line.to_owned())),
        }
        is_open = true;
    }
    blocks
}

/// Splits a block at the ends of its sentences; code counts as one word, a link as its text.
fn sentences(block: &str) -> Vec<String> {
    let mut plain = String::new();
    for (index, part) in block.split('`').enumerate() {
        plain.push_str(if index % 2 == 1 { "CODE" } else { part });
    }
    let mut rest = plain.as_str();
    let mut text = String::new();
    while let Some((before, after)) = rest.split_once("](") {
        text.push_str(before);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    text.push_str(rest);
    let mut sentences = vec![String::new()];
    let mut words = text.split_whitespace().peekable();
    while let Some(word) = words.next() {
        if let Some(sentence) = sentences.last_mut() {
            sentence.push_str(word);
            sentence.push(' ');
        }
        let ends = word.trim_end_matches(['*', '"', ')', '\'']).ends_with(['.', '!', '?']);
        let next_starts = words.peek().is_some_and(|next| {
            next.trim_start_matches(['*', '"', '(', '[', '_']).starts_with(char::is_uppercase)
        });
        if ends && next_starts {
            sentences.push(String::new());
        }
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(count: usize) -> String {
        let mut text = vec!["word"; count].join(" ");
        text.replace_range(..1, "W");
        text
    }

    #[test]
    fn sentences_of_more_than_thirty_words_are_long() {
        let text = format!("Short. {}.\n\n{}. {}.\n", words(30), words(20), words(20));
        assert_eq!(long_sentences(&text), []);
        let text = format!("# Title\n\nShort one.\nLong {}.\n", words(30));
        let found = long_sentences(&text);
        assert_eq!(found.iter().map(|long| (long.line, long.words)).collect::<Vec<_>>(), [(3, 31)]);
        let cells = format!("| {} | {} |\n", words(20), words(20));
        assert_eq!(long_sentences(&cells), []);
        let items = format!("- {}\n- {}\n", words(20), words(20));
        assert_eq!(long_sentences(&items), []);
    }

    #[test]
    fn code_comments_and_quotations_do_not_count() {
        let long = words(40);
        assert_eq!(long_sentences(&format!("```\n{long}\n```\n")), []);
        assert_eq!(long_sentences(&format!("<!-- {long} -->\n")), []);
        assert_eq!(long_sentences(&format!("> {long}\n")), []);
        assert_eq!(long_sentences(&format!("`{long}` is [one {}](a b c d).\n", words(20))), []);
    }

    #[test]
    fn the_number_may_only_fall() {
        let long = || LongSentence { line: 1, words: 40, start: "A".to_owned() };
        let two = [("a.md", long()), ("b.md", long())];
        let texts = |max_count| -> Vec<String> {
            compare(&two, max_count).iter().map(ToString::to_string).collect()
        };
        assert_eq!(texts(2), [""; 0]);
        assert_eq!(texts(1).len(), 2);
        assert!(texts(3)[0].contains("2 long sentences are left"), "{:?}", texts(3));
    }
}
