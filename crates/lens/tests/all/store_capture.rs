//! What a model's points show is what a store has.

use tenterhook_hooks::hook_fn;
use tenterhook_lens::{CacheOptions, CaptureToOptions, LocalStore, LongTexts, StoreOptions};

use crate::support::*;

#[test]
fn a_store_has_what_run_with_cache_gives_however_texts_are_batched() {
    for family in FAMILIES {
        let lm = lm(family);
        let dir = tempfile::tempdir().unwrap();
        let store = LocalStore::new(dir.path());
        let texts: Vec<Vec<u32>> =
            [7, 3, 5, 1, 6].iter().enumerate().map(|(i, n)| ids(*n, i as u32)).collect();
        for batch_size in [1, 2, 5] {
            let run = format!("run-{batch_size}");
            let mut writer = store.create(&run, StoreOptions::default()).unwrap();
            let points = [
                "blocks.*.hook_resid_post",
                "blocks.0.attn.hook_z",
                "blocks.1.attn.hook_pattern",
                "blocks.0.ln1.hook_scale",
                "hook_*embed",
            ];
            let options = CaptureToOptions {
                batch_size,
                logits: true,
                ..CaptureToOptions::points(points.map(String::from).to_vec())
            };
            let mut told = 0;
            let captured = lm
                .capture_tokens_to(&mut writer, texts.iter().cloned().map(Ok), &options, |far| {
                    told = far.tokens
                })
                .unwrap();
            assert_eq!((captured.tokens, told, captured.sequences), (22, 22, 5));
            let receipt = &captured.report.hooks[0].receipt;
            assert!(receipt.fired > 0 && receipt.bytes_captured > 0, "there is a receipt");
            assert_eq!(writer.finish().unwrap().rows, 22);
            let reader = store.open(&run).unwrap();
            for (number, text) in texts.iter().enumerate() {
                let (logits, cache, _) =
                    lm.run_with_cache(&lm.batch_of(text).unwrap(), &CacheOptions::default()).unwrap();
                for layer in reader.layers() {
                    let want = if layer.name == "logits" { &logits } else { cache.get(&layer.name).unwrap() };
                    let got = reader.sequence(&layer.name, number as u64).unwrap();
                    assert_close(
                        &format!("{family} {run} {}", layer.name),
                        &got,
                        &want.get(0).unwrap(),
                        5e-5,
                    );
                }
            }
        }
    }
}

#[test]
fn long_texts_are_split_or_cut_and_hooks_take_part() {
    let lm = lm("llama");
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::new(dir.path());
    let texts = [ids(7, 1), ids(3, 2)];
    lm.hooks().register(hook_fn::edit("blocks.0.hook_resid_post", |_, x, _| Ok(Some((x * 0.0)?)))).unwrap();
    for (long_texts, positions) in
        [(LongTexts::Split, vec![0, 1, 2, 0, 1, 2, 0, 0, 1, 2]), (LongTexts::Cut, vec![0, 1, 2, 0, 1, 2])]
    {
        let run = format!("{long_texts:?}");
        let mut writer = store.create(&run, StoreOptions::default()).unwrap();
        let options = CaptureToOptions {
            context: Some(3),
            long_texts,
            ..CaptureToOptions::points("blocks.0.hook_resid_post")
        };
        let captured =
            lm.capture_tokens_to(&mut writer, texts.iter().cloned().map(Ok), &options, |_| ()).unwrap();
        assert_eq!((captured.texts, captured.long_texts), (2, 1));
        writer.finish().unwrap();
        let reader = store.open(&run).unwrap();
        let rows = reader.rows("blocks.0.hook_resid_post").unwrap();
        let read = reader.read_rows("blocks.0.hook_resid_post", 0..rows).unwrap();
        assert_eq!(read.positions, positions);
        assert!(values(&read.activations).iter().all(|value| *value == 0.0), "what the model really uses");
    }
}

#[test]
fn nonsense_is_refused_and_the_store_stays_readable() {
    let lm = lm("gpt2");
    let dir = tempfile::tempdir().unwrap();
    let mut writer = LocalStore::new(dir.path()).create("a", StoreOptions::default()).unwrap();
    let points = || CaptureToOptions::points("hook_embed");
    let mut run = |text: Vec<u32>, options: CaptureToOptions| {
        lm.capture_tokens_to(&mut writer, [Ok(text)], &options, |_| ())
            .map(drop)
            .map_err(|error| error.to_string())
    };
    run(ids(3, 0), points()).unwrap();
    for (text, options, word) in [
        (vec![], points(), "text 0 has no tokens"),
        (vec![1, 1_000_000], points(), "outside the vocabulary"),
        (ids(3, 0), CaptureToOptions { batch_size: 0, ..points() }, "batch_size"),
        (ids(3, 0), CaptureToOptions::points("hook_embedd"), "nearest"),
        (ids(3, 0), CaptureToOptions::points("blocks.0.hook_resid_pre"), "hook_embed"),
    ] {
        let error = run(text, options).unwrap_err();
        assert!(error.contains(word), "{error}");
    }
    run(ids(3, 0), points()).unwrap();
    assert_eq!(writer.finish().unwrap().rows, 6);
    assert!(lm.hooks().list_hooks().is_empty(), "nothing stays registered");
}
