//! Generating with a cache is generating without one, hooks included.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use tenterhook_hooks::{Mode, hook_fn};
use tenterhook_lens::{GenerateOptions, LanguageModel, Sampling};

use crate::support::*;

fn options() -> GenerateOptions {
    GenerateOptions {
        max_new_tokens: 6,
        stop_tokens: Some(vec![]),
        keep_logits: true,
        ..GenerateOptions::default()
    }
}

fn generate(lm: &LanguageModel, prompts: &[usize], options: &GenerateOptions) -> tenterhook_lens::Generation {
    let prompts = prompts.iter().enumerate().map(|(i, n)| ids(*n, i as u32)).collect();
    lm.generate_tokens(prompts, options, |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn cached_is_recomputed_also_in_batches_and_with_a_steering_hook() {
    for family in FAMILIES {
        let lm = lm(family);
        let steer = |lm: &LanguageModel| {
            let add = hook_fn::edit("*", |_, x, _| Ok(Some((x + 0.3)?)));
            lm.layers().register_hook("blocks.0.hook_resid_post", add).unwrap();
        };
        for (prompts, steered) in [(&[4][..], false), (&[4, 2, 5], false), (&[4, 2, 5], true)] {
            let lm = lm.without_hooks();
            if steered {
                steer(&lm);
            }
            let cached = generate(&lm, prompts, &options());
            let whole = generate(&lm, prompts, &GenerateOptions { use_cache: false, ..options() });
            assert_eq!(cached.new_tokens, whole.new_tokens, "{family}, {prompts:?}, {steered}");
            for (a, b) in cached.logits.iter().zip(&whole.logits) {
                assert_close(family, a.as_ref().unwrap(), b.as_ref().unwrap(), 1e-5);
            }
            // A text of a batch is as it would be alone.
            let alone =
                lm.generate_tokens(vec![ids(prompts[0], 0)], &options(), |_| ControlFlow::Continue(()));
            assert_eq!(cached.new_tokens[0], alone.unwrap().new_tokens[0], "{family}");
        }
    }
}

#[test]
fn hooks_know_the_position_and_whether_it_is_the_prompt() {
    let lm = lm("gpt2");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = seen.clone();
    let watch = hook_fn::observe("hook_embed", move |_, x, cx| {
        notes.lock().unwrap().push((cx.mode(), cx.first_position(), x.dim(1)?));
        Ok(())
    });
    let id = lm.hooks().register(watch).unwrap();
    let generation = generate(&lm, &[4], &GenerateOptions { max_new_tokens: 3, ..options() });
    let want = [(Mode::Prefill, 0, 4), (Mode::Decode, 4, 1), (Mode::Decode, 5, 1)];
    assert_eq!(*seen.lock().unwrap(), want);
    assert_eq!(generation.report.receipt(&id).unwrap().fired, 3);
}

#[test]
fn it_ends_at_stop_tokens_when_told_and_at_the_limit() {
    let lm = lm("llama");
    let free = generate(&lm, &[3], &options()).new_tokens.remove(0);
    let stop = GenerateOptions { stop_tokens: Some(vec![free[2]]), ..options() };
    let first = free.iter().position(|id| *id == free[2]).unwrap();
    assert_eq!(generate(&lm, &[3], &stop).new_tokens[0], free[..=first]);

    let mut heard = Vec::new();
    let told = lm.generate_tokens(vec![ids(3, 0)], &options(), |token| {
        heard.push((token.prompt, token.id, token.position));
        if heard.len() == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(told.unwrap().new_tokens[0], free[..2]);
    assert_eq!(heard, [(0, free[0], 3), (0, free[1], 4)]);
    assert!(
        generate(&lm, &[3], &GenerateOptions { max_new_tokens: 0, ..options() }).new_tokens[0].is_empty()
    );
}

#[test]
fn chance_is_a_function_of_the_seed() {
    let lm = lm("gpt2");
    let hot = |seed: u64| {
        let sampling = Sampling { temperature: 1.5, top_k: Some(20), seed, ..Sampling::default() };
        generate(&lm, &[3], &GenerateOptions { sampling, ..options() }).new_tokens
    };
    assert_eq!(hot(1), hot(1));
    assert!((2..20).any(|seed| hot(seed) != hot(1)));
}

#[test]
fn nonsense_is_refused() {
    let lm = lm("gpt2");
    let go = |_| ControlFlow::Continue(());
    assert!(lm.generate_tokens(vec![], &options(), go).is_err());
    assert!(lm.generate_tokens(vec![vec![]], &options(), go).is_err());
    let cold = Sampling { temperature: -1.0, ..Sampling::default() };
    assert!(
        lm.generate_tokens(vec![ids(2, 0)], &GenerateOptions { sampling: cold, ..options() }, go).is_err()
    );
    // Learned positions have an end.
    let long = GenerateOptions { max_new_tokens: 1000, ..options() };
    let error = lm.generate_tokens(vec![ids(2, 0)], &long, go).unwrap_err().to_string();
    assert!(error.contains("positions"), "{error}");
}
