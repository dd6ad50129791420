//! Many threads on the same weights, each with hooks of its own.

use std::ops::ControlFlow;

use tenterhook_hooks::hook_fn;
use tenterhook_lens::{CacheOptions, GenerateOptions, InferenceOptions, LanguageModel};

use crate::support::*;

const THREADS: usize = 16;
const NAME: &str = "blocks.0.hook_attn_out";

/// Everything a thread can see of its own hooks.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    logits: Vec<u32>,
    cached: Vec<(String, Vec<u32>)>,
    captured: Vec<(String, Vec<u32>)>,
    outputs: Vec<Vec<u32>>,
    new_tokens: Vec<Vec<u32>>,
    chosen_from: Vec<Vec<u32>>,
    receipts: Vec<(String, u64, u64, u64)>,
}

fn bits(x: &candle_core::Tensor) -> Vec<u32> {
    values(x).into_iter().map(f32::to_bits).collect()
}

/// The work of one thread: its own edits, its own captures, its own prompts; in a forward with a cache of activations, in a padded
/// batch, and in a generation.
fn work(lm: &LanguageModel, number: usize) -> Seen {
    let lm = lm.branch();
    let by = number as f64 / 4.0;
    lm.layers().register_hook(NAME, hook_fn::edit("*", move |_, x, _| Ok(Some((x * by)?)))).unwrap();
    let added = number as f64 * 0.01;
    if number.is_multiple_of(3) {
        let shift = hook_fn::edit("blocks.1.attn.hook_z", move |_, x, _| Ok(Some((x + added)?)));
        lm.hooks().register(shift).unwrap();
    }
    let glob = ["blocks.*.hook_resid_post", "blocks.*.attn.hook_pattern", "blocks.1.*"][number % 3];
    // What is captured lies in a store that branches share: every thread has an id of its own there.
    let id = format!("capture-of-{number}");
    let capture = tenterhook_hooks::Capture::new(tenterhook_hooks::CaptureOptions::new(glob)).unwrap();
    let options = tenterhook_hooks::HookOptions { id: Some(id.clone()), ..Default::default() };
    lm.hooks().register_with(capture, options).unwrap();

    let batch = lm.batch_of(&ids(6, 3 + number as u32)).unwrap();
    let (logits, cache, _) = lm.run_with_cache(&batch, &CacheOptions::points(NAME)).unwrap();
    let texts = vec![ids(5, number as u32), ids(2, 7)];
    let inference = lm.infer_tokens(texts.clone(), &InferenceOptions::default()).unwrap();
    let options = GenerateOptions {
        max_new_tokens: 6,
        keep_logits: true,
        stop_tokens: Some(vec![]),
        ..Default::default()
    };
    let generated = lm.generate_tokens(texts, &options, |_| ControlFlow::Continue(())).unwrap();

    let captured = lm.hooks().get_captured_states(&id).unwrap();
    let captured = captured.iter().map(|state| (state.point.to_string(), bits(&state.tensor))).collect();
    lm.hooks().clear_captured_states(Some(&id)).unwrap();
    let receipt = |hook: &tenterhook_hooks::HookInfo| {
        let receipt = &hook.receipt;
        (hook.id.clone(), receipt.fired, receipt.edits, receipt.elements_changed)
    };
    Seen {
        logits: bits(&logits),
        cached: cache.iter().map(|(name, x)| (name.to_string(), bits(x))).collect(),
        captured,
        outputs: inference.outputs.iter().map(bits).collect(),
        new_tokens: generated.new_tokens,
        chosen_from: generated.logits.iter().flatten().map(bits).collect(),
        receipts: lm.hooks().list_hooks().iter().map(receipt).collect(),
    }
}

#[test]
fn sixteen_threads_each_see_exactly_their_own_hooks() {
    for name in FAMILIES {
        let lm = lm(name);
        let serial: Vec<Seen> = (0..THREADS).map(|number| work(&lm, number)).collect();
        // Threads that did the same would see each other's without anybody noticing.
        for (a, b) in (0..THREADS).flat_map(|a| (0..a).map(move |b| (a, b))) {
            assert!(serial[a].logits != serial[b].logits && serial[a].outputs != serial[b].outputs);
        }
        assert!(serial.iter().all(|seen| !seen.captured.is_empty() && seen.chosen_from.len() == 2));
        let start_together = std::sync::Barrier::new(THREADS);
        let together: Vec<Seen> = std::thread::scope(|scope| {
            let start = |number: usize| {
                let (lm, start_together) = (&lm, &start_together);
                scope.spawn(move || {
                    start_together.wait();
                    let first = work(lm, number);
                    assert!(
                        (0..2).all(|_| work(lm, number) == first),
                        "thread {number} saw something else the next time"
                    );
                    first
                })
            };
            let threads: Vec<_> = (0..THREADS).map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (number, (together, serial)) in together.iter().zip(&serial).enumerate() {
            assert!(together == serial, "{name}: thread {number} saw another one's hooks");
        }
        assert!(lm.hooks().list_hooks().is_empty());
    }
}
