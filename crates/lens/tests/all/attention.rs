//! Attention patterns are those that pass at the model's points.

use candle_core::{DType, Device};
use tenterhook_lens::analysis::HeadPattern;

use crate::support::*;

#[test]
fn patterns_equal_transformer_lens_and_only_chosen_heads_are_there() {
    for family in ["gpt2", "llama", "neox", "mistral"] {
        let lm = lm(family);
        let reference = directory(family).join("reference.safetensors");
        let reference = candle_core::safetensors::load(reference, &Device::Cpu).unwrap();
        let ids = reference["input_ids"].to_dtype(DType::U32).unwrap().get(0).unwrap();
        let ids: Vec<u32> = ids.to_vec1().unwrap();
        let found = lm.attention_patterns(&ids, Some(&[1]), Some(&[2, 0])).unwrap();
        let places: Vec<(usize, usize)> = found.heads.iter().map(|head| (head.block, head.head)).collect();
        assert_eq!((places, found.tokens.len()), (vec![(1, 2), (1, 0)], ids.len()));
        let all = &reference["point.blocks.1.attn.hook_pattern"].get(0).unwrap();
        for HeadPattern { head, pattern, .. } in &found.heads {
            let want = all.get(*head).unwrap().to_vec2::<f32>().unwrap();
            let pairs = pattern.iter().flatten().zip(want.iter().flatten());
            assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() < 1e-4), "{family} {head}");
        }
        assert_eq!(lm.attention_patterns(&ids, None, None).unwrap().heads.len(), {
            let config = lm.model().config();
            config.layers * config.heads
        });
    }
}

#[test]
fn heads_that_are_not_there_are_refused() {
    let lm = lm("neox");
    let error = lm.attention_patterns(&[1, 2], Some(&[2]), None).unwrap_err().to_string();
    assert!(error.contains("no block 2"), "{error}");
    let error = lm.attention_patterns(&[1, 2], None, Some(&[0, 3])).unwrap_err().to_string();
    assert!(error.contains("no head 3: the model has 3"), "{error}");
}
