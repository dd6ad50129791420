//! Detectors are handles: what was registered can be asked, switched and cleared.

use tenterhook_lens::{CacheOptions, InferenceOptions, LayerActivationDetector};

use crate::support::*;

#[test]
fn a_detector_remembers_the_latest_forward_until_it_is_cleared() {
    let lm = lm("gpt2");
    let layer = "transformer.h.0.mlp.c_fc";
    let detector = LayerActivationDetector::new("*");
    lm.layers().register_hook(layer, detector.clone()).unwrap();
    let input = LayerActivationDetector::new(layer).before();
    lm.hooks().register(input.clone()).unwrap();
    assert!(detector.tensor_metadata("activations").is_none());

    let texts = vec![ids(5, 1), ids(5, 2), ids(5, 3)];
    let options = InferenceOptions { batch_size: 2, ..InferenceOptions::default() };
    lm.infer_tokens(texts.clone(), &options).unwrap();
    let kept = detector.tensor_metadata("activations").unwrap();
    let (_, cache, _) = lm
        .without_hooks()
        .run_with_cache(&lm.batch_of(&texts[2]).unwrap(), &CacheOptions::points("blocks.0.mlp.hook_pre"))
        .unwrap();
    assert_close("the last batch", &kept, cache.get("blocks.0.mlp.hook_pre").unwrap(), 0.0);
    assert_eq!(input.get_captured().len(), 1);
    assert!(detector.tensor_metadata("logits").is_none());

    detector.disable();
    lm.infer_tokens(vec![ids(3, 0)], &options).unwrap();
    assert_eq!(detector.tensor_metadata("activations").unwrap().dims(), kept.dims(), "it was off");
    assert!(!detector.is_enabled());
    detector.enable();
    detector.clear_captured();
    assert!(detector.get_captured().is_empty());
    lm.infer_tokens(vec![ids(3, 0)], &options).unwrap();
    assert_eq!(detector.get_captured().len(), 1);
}

#[test]
fn what_goes_into_a_model_and_what_comes_out() {
    for family in ["gpt2", "llama", "neox", "gemma2"] {
        let lm = lm(family);
        let input = LayerActivationDetector::model_input(&lm).unwrap().keeping_every_pass();
        let output = LayerActivationDetector::model_output(&lm).unwrap();
        lm.hooks().register(input.clone()).unwrap();
        lm.hooks().register(output.clone()).unwrap();
        let batch = lm.batch_of(&ids(4, 7)).unwrap();
        let (logits, _) = lm.forward(&batch).unwrap();
        assert_close(family, &output.tensor_metadata("logits").unwrap(), &logits, 0.0);
        let seen = input.tensor_metadata("input_ids").unwrap();
        assert_eq!(seen.to_vec2::<u32>().unwrap(), [ids(4, 7)], "{family}");
        lm.forward(&batch).unwrap();
        assert_eq!((input.get_captured().len(), output.get_captured().len()), (2, 1));
    }
}
