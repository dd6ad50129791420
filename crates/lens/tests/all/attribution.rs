//! Direct logit attribution: the parts are TransformerLens', and add up to the logit.

use tenterhook_hooks::hook_fn;
use tenterhook_lens::analysis::{AttributeOptions, Attribution, By, ComponentKind};

use crate::support::*;

/// As in `scripts/reference_analysis.py`.
const ANSWER: u32 = 7;
const WRONG: u32 = 30;

fn only(found: &Attribution, kinds: &[ComponentKind]) -> Vec<f64> {
    let parts = found.components.iter().filter(|part| kinds.contains(&part.component.kind));
    parts.map(|part| part.value).collect()
}

#[test]
fn parts_equal_transformer_lens() {
    use ComponentKind::*;
    for family in ["gpt2", "llama", "neox", "gemma2"] {
        let (lm, reference) = (lm(family), Reference::of(family));
        let explain = |by| {
            let options = AttributeOptions { wrong: Some(WRONG), by, ..AttributeOptions::answer(ANSWER) };
            lm.attribute(&reference.ids("ids"), &options).unwrap()
        };
        let layers = explain(By::Layer);
        let close = |name: &str, got: &[f64]| reference.assert_close(family, name, got, 1e-4);
        close("attribution.layer", &only(&layers, &[Embed, PosEmbed, Attention, Mlp]));
        close("attribution.constant", &[layers.constant]);
        close("attribution.logit", &[layers.logit]);
        close("attribution.head", &only(&explain(By::Head), &[Head]));
        close("attribution.neuron", &only(&explain(By::Neuron), &[Neuron]));
    }
}

#[test]
fn parts_and_constant_add_up_to_the_logit() {
    for family in ["gpt2", "llama", "neox", "neox_sequential", "qwen2", "qwen3", "mistral", "phi3", "gemma2"]
    {
        let lm = lm(family);
        let ids = ids(7, 2);
        let (logits, _) = lm.forward(&lm.batch_of(&ids).unwrap()).unwrap();
        let logits = logits.squeeze(0).unwrap().to_vec2::<f32>().unwrap();
        for by in [By::Layer, By::Head, By::Neuron] {
            for (wrong, position) in [(None, -1), (Some(9), -1), (Some(9), 2)] {
                let what = format!("{family} by {by}, {wrong:?} at {position}");
                let options = AttributeOptions { wrong, by, position, ..AttributeOptions::answer(4) };
                let found = lm.attribute(&ids, &options).unwrap();
                let sum: f64 = found.components.iter().map(|part| part.value).sum();
                assert!((sum + found.constant - found.logit).abs() < 1e-4, "{what}");
                assert!(found.remainder.abs() < 1e-4, "{what}: {}", found.remainder);
                let place = if position < 0 { 6 } else { 2 };
                assert_eq!(found.position, place);
                // The cap is put on every logit by itself, so that only a single one can be compared behind it.
                let logit = |token: usize| f64::from(logits[place][token]);
                match (found.soft_cap, wrong) {
                    (None, wrong) => {
                        let real = logit(4) - wrong.map_or(0.0, |wrong| logit(wrong as usize));
                        assert!((found.logit - real).abs() < 1e-4, "{what}: {} for {real}", found.logit);
                    }
                    (Some(cap), None) => {
                        let real = cap * (found.logit / cap).tanh();
                        assert!((real - logit(4)).abs() < 1e-4, "{what}: {real} for {}", logit(4));
                    }
                    (Some(_), Some(_)) => {}
                }
            }
        }
    }
}

#[test]
fn the_largest_come_first() {
    let lm = lm("gpt2");
    let options = AttributeOptions { by: By::Neuron, ..AttributeOptions::answer(3) };
    let found = lm.attribute(&ids(5, 0), &options).unwrap();
    let top = found.top(4);
    assert_eq!(top.len(), 4);
    assert!(top.is_sorted_by(|a, b| a.value.abs() >= b.value.abs()));
    assert!(found.components.iter().all(|part| part.value.abs() <= top[0].value.abs()));
}

#[test]
fn what_hooks_put_into_the_stream_is_shown_as_a_remainder() {
    let lm = lm("gpt2");
    let explain = || lm.attribute(&ids(5, 0), &AttributeOptions::answer(3)).unwrap();
    let plain = explain();
    let id = lm
        .hooks()
        .register(hook_fn::edit("blocks.0.hook_resid_post", |_, x, _| Ok(Some((x * 1.5)?))))
        .unwrap();
    let edited = explain();
    assert!(edited.remainder.abs() > 1e-2, "{}", edited.remainder);
    assert_eq!(edited.report.receipt(&id).unwrap().edits, 1);
    let (logits, _) = lm.forward(&lm.batch_of(&ids(5, 0)).unwrap()).unwrap();
    let real = f64::from(logits.to_vec3::<f32>().unwrap()[0][4][3]);
    assert!((edited.logit - real).abs() < 1e-4 && edited.logit != plain.logit);
}

#[test]
fn nonsense_is_refused() {
    let lm = lm("gpt2");
    for (options, word) in [
        (AttributeOptions::answer(61), "token id 61"),
        (AttributeOptions { wrong: Some(99), ..AttributeOptions::answer(1) }, "token id 99"),
        (AttributeOptions { position: 5, ..AttributeOptions::answer(1) }, "position 5"),
    ] {
        let error = lm.attribute(&ids(5, 0), &options).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    let by_neuron = AttributeOptions { by: By::Neuron, ..AttributeOptions::answer(1) };
    let error = attention_only().attribute(&ids(5, 0), &by_neuron).unwrap_err().to_string();
    assert!(error.contains("no neurons"), "{error}");
}
