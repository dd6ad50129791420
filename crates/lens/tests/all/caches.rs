//! `run_with_cache` keeps what the model really used, and leaves everybody's hooks alone.

use candle_core::DType;
use tenterhook_hooks::{Positions, hook_fn};
use tenterhook_lens::CacheOptions;

use crate::support::*;

#[test]
fn a_cache_holds_every_point_and_changes_nothing() {
    for family in FAMILIES {
        let lm = lm(family);
        let batch = lm.batch_of(&ids(6, 2)).unwrap();
        let (plain, _) = lm.forward(&batch).unwrap();
        let (logits, cache, report) = lm.run_with_cache(&batch, &CacheOptions::default()).unwrap();
        assert_eq!(values(&logits), values(&plain), "{family}");
        assert!(report.hooks.is_empty() && lm.hooks().list_hooks().is_empty(), "{family}");
        let last = lm.model().config().layers - 1;
        let resid = cache.get(&format!("blocks.{last}.hook_resid_post")).unwrap();
        assert_close(family, &lm.model().unembed(resid, &Default::default()).unwrap(), &plain, 0.0);
        assert!(cache.names().any(|name| name == "blocks.0.attn.hook_pattern"));
        let error = cache.get("blocks.0.hook_residpost").unwrap_err().to_string();
        assert!(error.contains("blocks.0.hook_resid_post"), "{error}");
    }
}

#[test]
fn registered_hooks_take_part_and_stay() {
    let lm = lm("gpt2");
    let id = lm
        .layers()
        .register_hook("blocks.0.hook_resid_pre", hook_fn::edit("*", |_, x, _| Ok(Some((x * 2.0)?))))
        .unwrap();
    let batch = lm.batch_of(&ids(4, 0)).unwrap();
    let (logits, cache, report) =
        lm.run_with_cache(&batch, &CacheOptions::points("blocks.0.hook_resid_pre")).unwrap();
    assert_eq!(values(&logits), values(&lm.forward(&batch).unwrap().0));
    assert_eq!(report.receipt(&id).unwrap().edits, 1);
    let (_, plain, _) =
        lm.without_hooks().run_with_cache(&batch, &CacheOptions::points("blocks.0.hook_resid_pre")).unwrap();
    let name = "blocks.0.hook_resid_pre";
    assert_close("doubled", cache.get(name).unwrap(), &(plain.get(name).unwrap() * 2.0).unwrap(), 0.0);
}

#[test]
fn gradients_positions_types_and_an_early_end() {
    let lm = lm("llama");
    let batch = lm.batch_of(&ids(6, 1)).unwrap();
    let name = "blocks.0.hook_resid_post";
    let options = CacheOptions { gradients: true, ..CacheOptions::points(name) };
    let (_, cache, _) = lm.run_with_cache(&batch, &options).unwrap();
    assert_eq!(cache.get(&format!("grad.{name}")).unwrap().dims(), cache.get(name).unwrap().dims());

    let options = CacheOptions {
        positions: Some(Positions(vec![-1])),
        dtype: Some(DType::BF16),
        ..CacheOptions::points(name)
    };
    let (_, last, _) = lm.run_with_cache(&batch, &options).unwrap();
    let last = last.get(name).unwrap();
    assert_eq!((last.dims()[1], last.dtype()), (1, DType::BF16));

    let options = CacheOptions { stop_at_block: Some(1), ..CacheOptions::points(name) };
    let (resid, early, _) = lm.run_with_cache(&batch, &options).unwrap();
    assert_close("the stream", &resid, early.get(name).unwrap(), 0.0);
    assert_close("as in a whole run", &resid, cache.get(name).unwrap(), 0.0);
    let options = CacheOptions { start_at_block: Some(1), ..CacheOptions::points("blocks.1.hook_resid_pre") };
    let (logits, late, _) = lm.run_with_cache(&resid, &options).unwrap();
    assert_close("from the middle", &logits, &lm.forward(&batch).unwrap().0, 0.0);
    assert_close("the stream", &resid, late.get("blocks.1.hook_resid_pre").unwrap(), 0.0);
    let options = CacheOptions { stop_at_block: Some(99), ..CacheOptions::points(name) };
    assert!(lm.run_with_cache(&batch, &options).unwrap_err().to_string().contains("99"));
    let options = CacheOptions { gradients: true, stop_at_block: Some(1), ..CacheOptions::points(name) };
    assert!(lm.run_with_cache(&batch, &options).unwrap_err().to_string().contains("no loss"));
    assert!(lm.run_with_cache(&batch, &CacheOptions::points("blocks.0.nothing")).is_err());
}
