//! The residual stream is the sum of its parts, and the parts are TransformerLens'.

use candle_core::Tensor;
use tenterhook_lens::CacheOptions;
use tenterhook_lens::analysis::{By, ComponentKind, DecomposeOptions, Decomposition};

use crate::support::*;

const ALL: [By; 3] = [By::Layer, By::Head, By::Neuron];

/// The parts of one kind, in order.
fn only(found: &Decomposition, kind: ComponentKind) -> Tensor {
    let chosen: Vec<Tensor> = (0..found.components.len())
        .filter(|i| found.components[*i].kind == kind)
        .map(|i| found.stack.get(i).unwrap())
        .collect();
    Tensor::stack(&chosen, 0).unwrap()
}

#[test]
fn parts_equal_transformer_lens() {
    for family in ["gpt2", "llama", "neox", "gemma2"] {
        let (lm, reference) = (lm(family), Reference::of(family));
        let ids = reference.ids("ids");
        let take = |by, positions| {
            let options = DecomposeOptions { by, positions, before_block: None };
            lm.decompose_resid(&ids, &options).unwrap()
        };
        assert_close(family, &take(By::Layer, None).stack, reference.get("layers"), 1e-4);
        let heads = take(By::Head, None);
        assert_close(family, &only(&heads, ComponentKind::Head), reference.get("heads"), 1e-4);
        let neurons = take(By::Neuron, Some(vec![3, -1]));
        assert_close(family, &only(&neurons, ComponentKind::Neuron), reference.get("neurons"), 1e-4);
    }
}

#[test]
fn parts_add_up_to_the_stream_before_every_block() {
    let families =
        ["gpt2", "llama", "neox", "neox_sequential", "qwen2", "qwen3", "mistral", "phi3", "gemma2"];
    for family in families {
        let lm = lm(family);
        let (ids, layers) = (ids(7, 5), lm.model().config().layers);
        let options = CacheOptions::points(lm.stream_points(false));
        let (_, streams, _) = lm.run_with_cache(&lm.batch_of(&ids).unwrap(), &options).unwrap();
        for by in ALL {
            for block in 0..=layers {
                let options = DecomposeOptions { by, before_block: Some(block), positions: None };
                let sum = lm.decompose_resid(&ids, &options).unwrap().sum().unwrap();
                let name = match block {
                    0 => "blocks.0.hook_resid_pre".to_string(),
                    block => format!("blocks.{}.hook_resid_post", block - 1),
                };
                let stream = streams.get(&name).unwrap().squeeze(0).unwrap();
                assert_close(&format!("{family} by {by} before {block}"), &sum, &stream, 1e-4);
            }
        }
    }
}

#[test]
fn parts_have_names_and_a_model_of_attention_alone_has_no_mlp() {
    let lm = attention_only();
    let options = DecomposeOptions { by: By::Head, ..DecomposeOptions::default() };
    let found = lm.decompose_resid(&ids(4, 1), &options).unwrap();
    let labels: Vec<&str> = found.components.iter().map(|part| part.label.as_str()).collect();
    let heads = |block: usize| (0..3).map(move |head| format!("L{block}H{head}"));
    let want = ["embed".to_string(), "pos_embed".to_string()]
        .into_iter()
        .chain(heads(0))
        .chain(["0_attn_bias".to_string()])
        .chain(heads(1))
        .chain(["1_attn_bias".to_string()]);
    assert_eq!(labels, want.collect::<Vec<_>>());
    assert_eq!(found.get("L1H2").unwrap().dims(), [4, 12]);
    assert!(found.get("L1H9").unwrap_err().to_string().contains("nearest: L1H"));
    let (_, cache, _) = lm
        .run_with_cache(&lm.batch_of(&ids(4, 1)).unwrap(), &CacheOptions::points("blocks.1.hook_resid_post"))
        .unwrap();
    let stream = cache.get("blocks.1.hook_resid_post").unwrap().squeeze(0).unwrap();
    assert_close("attention alone", &found.sum().unwrap(), &stream, 1e-4);
}

#[test]
fn nonsense_is_refused() {
    let lm = lm("llama");
    let refuse = |options: DecomposeOptions, word: &str| {
        let error = lm.decompose_resid(&ids(3, 0), &options).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    };
    refuse(DecomposeOptions { before_block: Some(3), ..Default::default() }, "no block 3");
    refuse(DecomposeOptions { positions: Some(vec![3]), ..Default::default() }, "position 3");
    refuse(DecomposeOptions { positions: Some(vec![-4]), ..Default::default() }, "position -4");
}
