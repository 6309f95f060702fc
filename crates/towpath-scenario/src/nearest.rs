//! Suggestions for mistyped words.

/// Words longer than this are not typing errors.
const MAX_WORD: usize = 40;

/// Returns the candidate closest to `word`, if it is close enough to be a typing error.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let letters: Vec<char> = word.to_lowercase().chars().take(MAX_WORD + 1).collect();
    if letters.is_empty() || letters.len() > MAX_WORD {
        return None;
    }
    let max_edits = match letters.len() {
        0..=4 => 1,
        5..=8 => 2,
        _ => 3,
    };
    candidates
        .into_iter()
        .map(|candidate| {
            let candidate_letters: Vec<char> = candidate.to_lowercase().chars().collect();
            (distance(&letters, &candidate_letters), candidate)
        })
        .filter(|&(edits, candidate)| edits <= max_edits && edits < candidate.chars().count())
        .min_by_key(|&(edits, _)| edits)
        .map(|(_, candidate)| candidate)
}

/// Returns the edit distance with adjacent transpositions (optimal string alignment).
fn distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    let mut older_row: Vec<usize> = row.clone();
    let mut previous_x = None;
    for (i, x) in a.iter().enumerate() {
        let (previous_row, mut edits) = (row.clone(), i + 1);
        let mut next_row = vec![edits];
        for (j, y) in b.iter().enumerate() {
            let cost = |row: &[usize], j: usize| row.get(j).copied().unwrap_or(usize::MAX - 1);
            let substituted = cost(&previous_row, j) + usize::from(x != y);
            edits = substituted.min(edits + 1).min(cost(&previous_row, j + 1) + 1);
            let previous_y = j.checked_sub(1).and_then(|k| b.get(k).map(|y| (k, y)));
            if let (Some((k, y_before)), Some(x_before)) = (previous_y, previous_x)
                && y_before == x
                && x_before == y
            {
                edits = edits.min(cost(&older_row, k) + 1);
            }
            next_row.push(edits);
        }
        (older_row, row, previous_x) = (previous_row, next_row, Some(x));
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_counts_single_edits() {
        let distance_of = |a: &str, b: &str| {
            distance(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>())
        };
        assert_eq!(distance_of("rate", "rate"), 0);
        assert_eq!(distance_of("rte", "rate"), 1);
        assert_eq!(distance_of("kitten", "sitting"), 3);
        assert_eq!(distance_of("", "abc"), 3);
        assert_eq!(distance_of("rtae", "rate"), 1);
    }

    #[test]
    fn only_similar_words_are_suggested() {
        let keys = ["rate", "delay", "queue"];
        assert_eq!(nearest("dely", keys), Some("delay"));
        assert_eq!(nearest("Rate", keys), Some("rate"));
        assert_eq!(nearest("colour", keys), None);
        assert_eq!(nearest(&"x".repeat(1_000_000), keys), None);
    }
}
