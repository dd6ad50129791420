//! Head detectors equal TransformerLens', on repeated tokens and on texts.

use std::slice::from_ref;

use tenterhook_lens::analysis::{HeadKind, HeadScoreOptions};

use crate::support::*;

/// As `scripts/reference_analysis.py` calls them.
const NAMED: [(HeadKind, &str); 3] = [
    (HeadKind::Induction, "induction"),
    (HeadKind::PreviousToken, "previous_token"),
    (HeadKind::DuplicateToken, "duplicate_token"),
];

#[test]
fn scores_equal_transformer_lens() {
    for family in ["gpt2", "llama", "neox", "gemma2"] {
        let (lm, reference) = (lm(family), Reference::of(family));
        let found = lm.head_scores(&[reference.ids("repeated_ids")], &HeadKind::ALL).unwrap();
        for (scores, (kind, name)) in found.kinds.iter().zip(NAMED) {
            assert_eq!(scores.kind, kind);
            let close = |name: String, got: &[Vec<f64>]| {
                reference.assert_close(family, &name, &got.concat(), 1e-4);
            };
            close(format!("detector.{name}"), &scores.share);
            close(format!("stripe.{name}"), &scores.scores);
            assert_eq!(scores.places, if kind == HeadKind::PreviousToken { 13 } else { 7 });
        }
    }
}

#[test]
fn several_texts_count_by_their_places() {
    let lm = lm("llama");
    let (a, b) = (vec![1, 2, 3, 1, 2], vec![4, 4, 5]);
    let of = |texts: &[Vec<u32>]| lm.head_scores(texts, &[HeadKind::DuplicateToken]).unwrap().kinds.remove(0);
    let (first, second, both) = (of(from_ref(&a)), of(from_ref(&b)), of(&[a.clone(), b.clone()]));
    assert_eq!((first.places, second.places, both.places), (2, 1, 3));
    let want = (2.0 * first.scores[1][2] + second.scores[1][2]) / 3.0;
    assert!((both.scores[1][2] - want).abs() < 1e-9);
    let share = (first.share[1][2] + second.share[1][2]) / 2.0;
    assert!((both.share[1][2] - share).abs() < 1e-9);
    let (block, head, most) = both.top(1)[0];
    assert_eq!(both.scores[block][head], most);
    assert!(both.scores.iter().flatten().all(|score| *score <= most));
}

#[test]
fn attention_that_is_left_out_does_not_count() {
    let lm = lm("gpt2");
    let (texts, kinds) = ([ids(8, 1)], [HeadKind::PreviousToken]);
    let options = HeadScoreOptions { exclude_bos: true, exclude_current_token: true };
    let found = lm.head_scores_with(&texts, &kinds, &options).unwrap();
    let patterns = lm.attention_patterns(&texts[0], None, None).unwrap();
    for head in &patterns.heads {
        let counts = |q: usize, k: usize| k > 0 && k < q;
        let sum = |keep: &dyn Fn(usize, usize) -> bool| -> f64 {
            let pairs = (0..8).flat_map(|q| (0..8).map(move |k| (q, k)));
            pairs.filter(|(q, k)| keep(*q, *k)).map(|(q, k)| f64::from(head.pattern[q][k])).sum()
        };
        let want = sum(&|q, k| counts(q, k) && k + 1 == q) / sum(&counts);
        assert!((found.kinds[0].share[head.block][head.head] - want).abs() < 1e-6);
    }
}

#[test]
fn random_texts_are_a_function_of_the_seed_and_come_twice() {
    let lm = lm("gpt2");
    let texts = lm.repeated_random_tokens(3, 7, 5, Some(false)).unwrap();
    assert_eq!(texts, lm.repeated_random_tokens(3, 7, 5, Some(false)).unwrap());
    assert_ne!(texts, lm.repeated_random_tokens(3, 7, 6, Some(false)).unwrap());
    assert!(texts.iter().all(|text| text.len() == 14 && text[..7] == text[7..]));
    assert!(texts[0] != texts[1] && texts.concat().iter().all(|id| *id < 61));
    let with_bos = lm.repeated_random_tokens(1, 7, 5, None).unwrap();
    assert_eq!((with_bos[0][0], &with_bos[0][1..]), (1, &texts[0][..]), "config.json names one");
    for length in [0, 8] {
        let error = lm.repeated_random_tokens(1, length, 0, None).unwrap_err().to_string();
        assert!(error.contains("between 1 and 7"), "{error}");
    }
}

#[test]
fn a_text_without_repetitions_says_so() {
    let lm = lm("gpt2");
    let found = lm.head_scores(&[vec![1, 2, 3]], &[HeadKind::Induction]).unwrap();
    assert_eq!(found.kinds[0].places, 0);
    assert!(found.kinds[0].scores.iter().flatten().all(|score| *score == 0.0));
    assert!(lm.head_scores(&[], &HeadKind::ALL).is_err() && lm.head_scores(&[vec![1]], &[]).is_err());
    assert!(lm.head_scores(&[vec![]], &HeadKind::ALL).is_err());
}
