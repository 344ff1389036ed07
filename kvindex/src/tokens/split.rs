//! Where a tokeniser cuts a text before it does anything else with it.
//!
//! A Hugging Face tokeniser takes added tokens out of a text first, those that are not normalised in one pass over the
//! text, the others in a second pass over each normalised piece. What stays between is treated piece by piece. So a text
//! may be cut at an added token if the same token is found there in the piece alone: when it takes no white space with
//! it and does not ask what stands beside it. Other added tokens are found, so that nothing overlaps wrongly, and left
//! where they are.

use aho_corasick::{AhoCorasick, MatchKind};

use super::TokensError;

/// An added token of a tokeniser.
#[derive(Clone, Debug)]
pub(super) struct Added {
    pub(super) id: u32,
    pub(super) content: String,
    /// It takes white space beside it, or asks what stands there.
    pub(super) greedy: bool,
    pub(super) normalized: bool,
}

/// A part of a text, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece<'t, 's> {
    /// A token at which the text is cut.
    Token(u32),
    /// Text between two of them, never empty. `after` is the token before it, absent at the start of the text.
    Text {
        text: &'t str,
        after: Option<&'s str>,
    },
}

#[derive(Debug)]
struct Pass {
    finder: AhoCorasick,
    /// For each pattern its token and whether the text is cut there.
    tokens: Vec<(Added, bool)>,
}

#[derive(Debug)]
pub(super) struct Splitter {
    passes: Vec<Pass>,
}

impl Splitter {
    /// `plain` says that the tokeniser has no normaliser, or one that changes nothing.
    pub(super) fn new(added: &[Added], plain: bool) -> Result<Splitter, TokensError> {
        let (second, first): (Vec<_>, Vec<_>) = added
            .iter()
            .filter(|token| !token.content.is_empty())
            .cloned()
            .partition(|token| token.normalized);
        let mut passes = Vec::new();
        let first = Pass::new(first)?;
        let soft = |pass: &Pass| pass.tokens.iter().any(|(_, cut)| !cut);
        // The second pass looks at normalised text, between all tokens of the first one.
        let again = plain && !first.as_ref().is_some_and(soft);
        passes.extend(first);
        if again {
            passes.extend(Pass::new(second)?);
        }
        Ok(Splitter { passes })
    }

    /// Cuts a text.
    pub(super) fn split<'t, 's, E>(
        &'s self,
        text: &'t str,
        mut each: impl FnMut(Piece<'t, 's>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut after = None;
        split(&self.passes, text, &mut |piece: Cut<'t, 's>| match piece {
            Cut::Token(token) => {
                after = Some(token.content.as_str());
                each(Piece::Token(token.id))
            }
            Cut::Text(text) => each(Piece::Text { text, after }),
        })
    }
}

enum Cut<'t, 's> {
    Token(&'s Added),
    Text(&'t str),
}

fn split<'t, 's, E>(
    passes: &'s [Pass],
    text: &'t str,
    each: &mut dyn FnMut(Cut<'t, 's>) -> Result<(), E>,
) -> Result<(), E> {
    if text.is_empty() {
        return Ok(());
    }
    let Some((pass, later)) = passes.split_first() else {
        return each(Cut::Text(text));
    };
    let mut start = 0;
    for found in pass.finder.find_iter(text) {
        let Some((token, true)) = pass.tokens.get(found.pattern().as_usize()) else {
            continue;
        };
        split(
            later,
            text.get(start..found.start()).unwrap_or_default(),
            each,
        )?;
        each(Cut::Token(token))?;
        start = found.end();
    }
    split(later, text.get(start..).unwrap_or_default(), each)
}

impl Pass {
    fn new(tokens: Vec<Added>) -> Result<Option<Pass>, TokensError> {
        if tokens.is_empty() {
            return Ok(None);
        }
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|token| &token.content))
            .map_err(|error| TokensError::File {
                file: "tokenizer.json",
                why: error.to_string(),
            })?;
        let tokens = tokens.into_iter().map(|token| {
            let cut = !token.greedy && is_wall(&token.content);
            (token, cut)
        });
        Ok(Some(Pass {
            finder,
            tokens: tokens.collect(),
        }))
    }
}

/// No neighbour takes white space of it for its own, or its letters for a word.
fn is_wall(content: &str) -> bool {
    let wall = |edge: Option<char>| {
        edge.is_some_and(|edge| !edge.is_whitespace() && !edge.is_alphanumeric() && edge != '_')
    };
    wall(content.chars().next()) && wall(content.chars().next_back())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(id: u32, content: &str, greedy: bool, normalized: bool) -> Added {
        Added {
            id,
            content: content.to_owned(),
            greedy,
            normalized,
        }
    }

    fn pieces(splitter: &Splitter, text: &str) -> Vec<String> {
        let mut all = Vec::new();
        let done: Result<(), ()> = splitter.split(text, |piece| {
            all.push(match piece {
                Piece::Token(id) => id.to_string(),
                Piece::Text { text, after } => format!("{}{text}", after.unwrap_or_default()),
            });
            Ok(())
        });
        done.unwrap();
        all
    }

    #[test]
    fn the_longest_of_the_leftmost_is_found_and_soft_tokens_only_take_their_place() {
        let tokens = [
            added(1, "<a>", false, false),
            added(2, "<a><b>", false, false),
            added(3, "<b><c>", true, false),
            added(4, "<c>", false, false),
            added(5, "word", false, false),
            added(6, "<n>", false, true),
        ];
        let splitter = Splitter::new(&tokens, true).unwrap();
        assert_eq!(
            pieces(&splitter, "x<a><b>y<a>z"),
            ["x", "2", "<a><b>y", "1", "<a>z"]
        );
        // The greedy one takes `<c>` with it; normalised ones wait for a second pass that soft tokens forbid.
        assert_eq!(pieces(&splitter, "<b><c>t<c>"), ["<b><c>t", "4"]);
        assert_eq!(pieces(&splitter, "word<n>"), ["word<n>"]);
        assert_eq!(pieces(&splitter, ""), [""; 0]);
        let hard = [added(1, "<a>", false, false), added(6, "<n>", false, true)];
        let both = Splitter::new(&hard, true).unwrap();
        assert_eq!(pieces(&both, "t<n>u<a>v"), ["t", "6", "<n>u", "1", "<a>v"]);
        let first = Splitter::new(&hard, false).unwrap();
        assert_eq!(pieces(&first, "t<n>u<a>v"), ["t<n>u", "1", "<a>v"]);
    }
}
