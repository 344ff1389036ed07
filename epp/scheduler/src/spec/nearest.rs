//! The known name closest to one that is not known.

/// The closest of `known` to `name`, if it is close enough to be meant: at most a third of its letters differ.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.to_lowercase();
    known
        .into_iter()
        .map(|candidate| (distance(&name, &candidate.to_lowercase()), candidate))
        .filter(|(cost, candidate)| *cost <= candidate.chars().count().max(3) / 3)
        .min_by_key(|(cost, _)| *cost)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein distance: insertions, deletions and changes of one letter.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        let mut cells = row.iter_mut();
        if let Some(first) = cells.next() {
            *first = left;
        }
        for (cell, to) in cells.zip(b.chars()) {
            let change = diagonal + usize::from(from != to);
            diagonal = *cell;
            left = change.min(diagonal + 1).min(left + 1);
            *cell = left;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_of_known_pairs() {
        let pairs = [
            ("kitten", "sitting", 3),
            ("", "abc", 3),
            ("abc", "", 3),
            ("same", "same", 0),
            ("flaw", "lawn", 2),
        ];
        for (a, b, cost) in pairs {
            assert_eq!(distance(a, b), cost, "{a} {b}");
        }
    }

    #[test]
    fn only_a_close_name_is_offered() {
        let known = ["queue-scorer", "random-picker", "threshold"];
        assert_eq!(nearest("queue-scorre", known), Some("queue-scorer"));
        assert_eq!(nearest("Treshold", known), Some("threshold"));
        assert_eq!(nearest("zebra", known), None);
    }
}
