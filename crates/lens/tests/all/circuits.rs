//! Circuits of heads: singular values, copying and composition scores are TransformerLens'.

use tenterhook_lens::analysis::{CircuitOptions, Composition};

use crate::support::*;

#[test]
fn singular_values_and_copying_scores_equal_transformer_lens() {
    for family in ["gpt2", "llama", "neox", "gemma2"] {
        let (lm, reference) = (lm(family), Reference::of(family));
        let found = lm.head_circuits(&CircuitOptions::default()).unwrap();
        let of = |values: &dyn Fn(&tenterhook_lens::analysis::HeadCircuit) -> Vec<f64>| -> Vec<f64> {
            found.heads.iter().flat_map(values).collect()
        };
        let close = |name: &str, got: &[f64]| reference.assert_close(family, name, got, 1e-4);
        close("qk.singular", &of(&|head| head.qk.singular_values.clone()));
        close("ov.singular", &of(&|head| head.ov.singular_values.clone()));
        close("ov.copying", &of(&|head| vec![head.copying]));
        let rotates = found.notes.iter().any(|note| note.contains("rotation"));
        assert_eq!(rotates, family != "gpt2", "what is left out is said");
    }
}

#[test]
fn composition_scores_equal_transformer_lens() {
    for family in ["gpt2", "llama", "neox", "gemma2"] {
        let (lm, reference) = (lm(family), Reference::of(family));
        for kind in [Composition::Q, Composition::K, Composition::V] {
            let found = lm.composition_scores(kind).unwrap();
            let flat: Vec<f64> = found.scores.iter().flatten().flatten().flatten().copied().collect();
            reference.assert_close(family, &format!("composition.{kind}"), &flat, 1e-4);
            let top = found.top(3);
            assert!(top.is_sorted_by(|a, b| a.score >= b.score) && top[0].from.0 < top[0].to.0);
            assert_eq!(top[0].score, flat.iter().copied().fold(0.0, f64::max), "{family}");
        }
    }
}

#[test]
fn directions_are_shown_by_the_tokens_nearest_to_them() {
    let lm = lm("llama");
    let options = CircuitOptions { blocks: Some(vec![1]), heads: Some(vec![3]), directions: 2, top: 4 };
    let found = lm.head_circuits(&options).unwrap();
    let [head] = &found.heads[..] else { panic!("one head was asked for") };
    assert_eq!((head.block, head.head, head.ov.directions.len()), (1, 3, 2));
    let svd = lm.ov_circuit(1, 3).unwrap().svd();
    let embedding = lm.model().embedding_weights().to_vec2::<f32>().unwrap();
    let unembedding = lm.model().unembedding_weights().unwrap().t().unwrap().to_vec2::<f32>().unwrap();
    for (i, direction) in head.ov.directions.iter().enumerate() {
        assert_eq!(direction.singular_value, svd.singular_values[i]);
        for (tokens, table, vector) in
            [(&direction.from, &embedding, &svd.left[i]), (&direction.to, &unembedding, &svd.right[i])]
        {
            let score = |row: &Vec<f32>| row.iter().zip(vector).map(|(a, b)| f64::from(*a) * b).sum::<f64>();
            let best = table.iter().map(score).fold(f64::NEG_INFINITY, f64::max);
            assert_eq!(tokens.len(), 4);
            assert!((f64::from(tokens[0].score) - best).abs() < 1e-4);
            assert!((score(&table[tokens[3].id as usize]) - f64::from(tokens[3].score)).abs() < 1e-4);
            assert!(tokens.is_sorted_by(|a, b| a.score >= b.score));
        }
    }
}

#[test]
fn heads_that_are_not_there_are_refused() {
    let lm = lm("gpt2");
    let error = lm.qk_circuit(0, 4).unwrap_err().to_string();
    assert!(error.contains("no head 4") && error.contains("0 to 3"), "{error}");
    let options = CircuitOptions { blocks: Some(vec![0, 2]), ..CircuitOptions::default() };
    let error = lm.head_circuits(&options).unwrap_err().to_string();
    assert!(error.contains("no block 2"), "{error}");
}
