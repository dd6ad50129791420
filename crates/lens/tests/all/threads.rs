//! Many threads on the same weights, each with hooks of its own.

use tenterhook_hooks::hook_fn;
use tenterhook_lens::{CacheOptions, LanguageModel};

use crate::support::*;

fn scaled(lm: &LanguageModel, by: f64) -> (Vec<f32>, Vec<f32>) {
    let lm = lm.branch();
    let name = "blocks.0.hook_attn_out";
    lm.layers().register_hook(name, hook_fn::edit("*", move |_, x, _| Ok(Some((x * by)?)))).unwrap();
    let batch = lm.batch_of(&ids(6, 3)).unwrap();
    let (logits, cache, _) = lm.run_with_cache(&batch, &CacheOptions::points(name)).unwrap();
    (values(&logits), values(cache.get(name).unwrap()))
}

#[test]
fn sixteen_threads_each_see_exactly_their_own_hooks() {
    let lm = lm("llama");
    let factor = |i: usize| i as f64 / 4.0;
    let serial: Vec<_> = (0..16).map(|i| scaled(&lm, factor(i))).collect();
    let together: Vec<_> = std::thread::scope(|scope| {
        let start = |i: usize| {
            let lm = &lm;
            scope.spawn(move || {
                let again: Vec<_> = (0..5).map(|_| scaled(lm, factor(i))).collect();
                assert!(again.iter().all(|one| *one == again[0]));
                again[0].clone()
            })
        };
        let threads: Vec<_> = (0..16).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(together == serial, "a thread saw another one's hooks");
    assert!(lm.hooks().list_hooks().is_empty());
}
