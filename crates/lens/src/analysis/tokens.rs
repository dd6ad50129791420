//! Tokens with numbers.

use serde::Serialize;

use crate::language_model::LanguageModel;

/// A token and how it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Its text, or `#id` where the model has no tokenizer.
    pub token: String,
}

/// A token and its score.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenScore {
    /// Its id.
    pub id: u32,
    /// Its text, or `#id` where the model has no tokenizer.
    pub token: String,
    /// The score.
    pub score: f32,
}

impl LanguageModel {
    pub(super) fn token(&self, id: u32) -> Token {
        Token { id, token: self.token_label(id) }
    }

    /// The tokens with the largest scores, largest first.
    pub(super) fn top_tokens(&self, scores: &[f32], count: usize) -> Vec<TokenScore> {
        let scored =
            |id: usize| TokenScore { id: id as u32, token: self.token_label(id as u32), score: scores[id] };
        largest(scores, count).into_iter().map(scored).collect()
    }
}

/// Where the largest values are, largest first; equal ones in their order.
pub(super) fn largest(values: &[f32], count: usize) -> Vec<usize> {
    let first = |a: &usize, b: &usize| values[*b].total_cmp(&values[*a]).then(a.cmp(b));
    let mut order: Vec<usize> = (0..values.len()).collect();
    if count < order.len() {
        order.select_nth_unstable_by(count, first);
        order.truncate(count);
    }
    order.sort_unstable_by(first);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_come_first_and_equal_ones_in_order() {
        let values = [1.0, 3.0, 2.0, 3.0, -1.0];
        assert_eq!(largest(&values, 3), [1, 3, 2]);
        assert_eq!(largest(&values, 9), [1, 3, 2, 0, 4]);
        assert!(largest(&values, 0).is_empty() && largest(&[], 2).is_empty());
    }
}
