//! A model that is written and read again is the same model.

use candle_core::{DType, Device, Tensor};
use tenterhook_hooks::Pass;
use tenterhook_models::Transformer;
use tenterhook_models::config::TransformerConfig;

use crate::support::*;

#[test]
fn every_family_comes_back_with_the_same_bits() {
    for name in families() {
        let reference = Reference::load(&name);
        let dir = tempfile::tempdir().unwrap();
        reference.model.save(dir.path(), None).unwrap();
        let again = Transformer::load(dir.path(), DType::F32, &Device::Cpu).unwrap();
        assert_eq!(reference.model.config(), again.config());
        let logits = |model: &Transformer| bits(&model.forward(&reference.ids, &Pass::default()).unwrap());
        assert_eq!(logits(&reference.model), logits(&again), "{name}");
    }
}

#[test]
fn a_new_model_is_a_function_of_its_seed_and_can_be_saved() {
    let ids = Tensor::new(&[[1u32, 5, 9, 2]], &Device::Cpu).unwrap();
    let configs = [
        TransformerConfig::gpt2(23, 16, 12, 2, 3),
        TransformerConfig::llama(23, 16, 12, 2, 3),
        TransformerConfig::neox(23, 16, 24, 2, 3),
    ];
    for config in configs {
        let make = |seed| Transformer::init(config.clone(), seed, DType::F32, &Device::Cpu).unwrap();
        let logits = |model: &Transformer| bits(&model.forward(&ids, &Pass::default()).unwrap());
        assert_eq!(logits(&make(1)), logits(&make(1)));
        assert_ne!(logits(&make(1)), logits(&make(2)));
        let dir = tempfile::tempdir().unwrap();
        make(1).save(dir.path(), None).unwrap();
        let again = Transformer::load(dir.path(), DType::F32, &Device::Cpu).unwrap();
        assert_eq!(logits(&make(1)), logits(&again));
    }
}
