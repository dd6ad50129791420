//! What comes out does not depend on how texts are put together.

use tenterhook_hooks::hook_fn;
use tenterhook_lens::{InferenceOptions, LensError, PaddingSide};

use crate::support::*;

#[test]
fn outputs_do_not_depend_on_batch_and_padding() {
    for family in FAMILIES {
        let lm = lm(family);
        let texts: Vec<Vec<u32>> = [7, 3, 5, 1].iter().enumerate().map(|(i, n)| ids(*n, i as u32)).collect();
        let run = |batch_size: usize, padding: PaddingSide| {
            let options = InferenceOptions { batch_size, padding, ..InferenceOptions::default() };
            lm.infer_tokens(texts.clone(), &options).unwrap()
        };
        let alone = run(1, PaddingSide::Right);
        for (batch_size, padding) in
            [(4, PaddingSide::Right), (4, PaddingSide::Left), (3, PaddingSide::Left), (2, PaddingSide::Right)]
        {
            let together = run(batch_size, padding);
            assert_eq!(together.encodings, texts);
            for (i, (got, want)) in together.outputs.iter().zip(&alone.outputs).enumerate() {
                assert_close(&format!("{family}, {batch_size} {padding:?}, text {i}"), got, want, 2e-5);
            }
        }
    }
}

#[test]
fn without_controllers_observers_see_the_model_as_it_is() {
    let lm = lm("gpt2");
    let plain = lm.infer_tokens(vec![ids(5, 1)], &InferenceOptions::default()).unwrap();
    let edit =
        lm.hooks().register(hook_fn::edit("blocks.0.hook_mlp_out", |_, x, _| Ok(Some((x * 0.0)?)))).unwrap();
    let seen = lm.hooks().register(hook_fn::observe("blocks.0.hook_mlp_out", |_, _, _| Ok(()))).unwrap();
    let with = lm.infer_tokens(vec![ids(5, 1)], &InferenceOptions::default()).unwrap();
    let without = InferenceOptions { with_controllers: false, ..InferenceOptions::default() };
    let without = lm.infer_tokens(vec![ids(5, 1)], &without).unwrap();
    assert_ne!(values(&with.outputs[0]), values(&plain.outputs[0]));
    assert_eq!(values(&without.outputs[0]), values(&plain.outputs[0]));
    assert_eq!(with.report.receipt(&edit).unwrap().edits, 1);
    assert_eq!(without.report.receipt(&seen).unwrap().fired, 1);
    assert!(without.report.receipt(&edit).is_none());
    assert_eq!(lm.hooks().list_hooks().len(), 2, "nothing was removed");
}

#[test]
fn hooks_of_one_run_are_gone_afterwards() {
    let lm = lm("gpt2");
    let batch = lm.batch_of(&ids(4, 0)).unwrap();
    let (plain, _) = lm.forward(&batch).unwrap();
    let turn = hook_fn::edit("blocks.1.hook_resid_post", |_, x, _| Ok(Some((x * -1.0)?)));
    let (edited, report) = lm.run_with_hooks(&batch, vec![Box::new(turn)]).unwrap();
    assert_eq!(report.hooks[0].receipt.edits, 1);
    assert_ne!(values(&edited), values(&plain));
    assert_eq!(values(&lm.forward(&batch).unwrap().0), values(&plain));
    let nowhere = hook_fn::observe("blocks.9.hook_resid_post", |_, _, _| Ok(()));
    assert!(lm.run_with_hooks(&batch, vec![Box::new(nowhere)]).is_err());
}

#[test]
fn reports_add_up_over_batches() {
    let lm = lm("gpt2");
    let id = lm.hooks().register(hook_fn::observe("hook_embed", |_, _, _| Ok(()))).unwrap();
    let options = InferenceOptions { batch_size: 2, ..InferenceOptions::default() };
    let inference = lm.infer_tokens((1..6).map(|n| ids(n, 0)).collect(), &options).unwrap();
    assert_eq!(inference.report.receipt(&id).unwrap().fired, 3);
}

#[test]
fn a_failing_hook_whose_policy_is_to_abort_is_the_error() {
    let lm = lm("gpt2");
    let options = tenterhook_hooks::HookOptions {
        on_error: tenterhook_hooks::OnError::Abort,
        ..tenterhook_hooks::HookOptions::id("broken")
    };
    lm.hooks().register_with(hook_fn::observe("hook_embed", |_, _, _| Err("no".into())), options).unwrap();
    let error = lm.infer_tokens(vec![ids(3, 0)], &InferenceOptions::default()).unwrap_err();
    assert!(matches!(&error, LensError::Hook(hook) if hook.hook_id == "broken"), "{error}");
}

#[test]
fn texts_go_through_the_tokenizer() {
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(directory("gpt2").join(file), dir.path().join(file)).unwrap();
    }
    let tokenizer = concat!(env!("CARGO_MANIFEST_DIR"), "/../tenterhook/tests/data/tokenizer.json");
    std::fs::copy(tokenizer, dir.path().join("tokenizer.json")).unwrap();
    let lm = tenterhook_lens::LanguageModel::from_pretrained(dir.path().to_str().unwrap()).unwrap();
    assert_eq!(lm.to_tokens("hello", None).unwrap(), [12, 11], "as the tokenizer does it");
    assert_eq!(lm.to_tokens("hello", Some(false)).unwrap(), [11]);
    assert_eq!(lm.to_str_tokens("hello", None).unwrap(), ["<|end|>", "hello"]);
    let inference = lm.execute_inference(&["hello", "hellohello"], &InferenceOptions::default()).unwrap();
    assert_eq!(inference.encodings.len(), 2);
    assert_eq!(inference.outputs[0].dims()[0], inference.encodings[0].len());
}

#[test]
fn nonsense_is_refused() {
    let lm = lm("gpt2");
    for (texts, options, word) in [
        (vec![vec![]], InferenceOptions::default(), "text 0 has no tokens"),
        (vec![ids(2, 0)], InferenceOptions { batch_size: 0, ..InferenceOptions::default() }, "batch_size"),
    ] {
        let error = lm.infer_tokens(texts, &options).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    let error = lm.execute_inference(&["x"], &InferenceOptions::default()).unwrap_err().to_string();
    assert!(error.contains("no tokenizer.json"), "{error}");
}
