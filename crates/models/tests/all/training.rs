//! Models train, and a gradient that never arrives is noticed.

use candle_core::{DType, Device, Tensor};
use tenterhook_hooks::{HookOptions, NamedGrads, OnError, Pass, PassSetup, hook_fn};
use tenterhook_models::Transformer;
use tenterhook_models::config::TransformerConfig;
use tenterhook_nn::{GradBuffers, backward, check_coverage};

use crate::support::check_gradients;

fn tiny() -> (Transformer, Tensor) {
    let config = TransformerConfig::gpt2(17, 16, 16, 2, 2);
    let model = Transformer::init(config, 3, DType::F32, &Device::Cpu).unwrap();
    let ids: Vec<u32> = (0..4 * 16).map(|i| (i * i % 17) as u32).collect();
    (model, Tensor::from_vec(ids, (4, 16), &Device::Cpu).unwrap())
}

fn step(model: &Transformer, ids: &Tensor, pass: &Pass, buffers: &GradBuffers) -> (f32, NamedGrads) {
    let loss = model.next_token_loss(ids, pass).unwrap();
    let grads = backward(&loss, model.params(), Some(buffers)).unwrap();
    (loss.to_scalar().unwrap(), grads)
}

#[test]
fn a_hundred_steps_of_gradient_descent_lower_the_loss() {
    let (model, ids) = tiny();
    let buffers = GradBuffers::new(model.params());
    let mut losses = Vec::new();
    for i in 0..100 {
        let (loss, grads) =
            step(&model, &ids, &Pass::silent(PassSetup::train(i).with(buffers.clone())), &buffers);
        check_coverage(&grads, model.params()).unwrap();
        for param in model.params().iter() {
            let update = (grads.get(param.name()).unwrap() * 0.2).unwrap();
            param.var().set(&(param.value() - update).unwrap()).unwrap();
        }
        losses.push(loss);
    }
    assert!((losses[0] - (17f32).ln()).abs() < 0.2, "begins at {}", losses[0]);
    assert!(losses[99] < 0.8 * losses[0], "from {} to {}", losses[0], losses[99]);
}

/// A controller that hands back a detached tensor cuts the tape, as an op without a backward would.
#[test]
fn p14_a_cut_gradient_is_named() {
    let (model, ids) = tiny();
    let hooks = model.hook_manager();
    hooks.register(hook_fn::edit("blocks.1.mlp.hook_pre", |_, x, _| Ok(Some(x.detach())))).unwrap();
    let buffers = GradBuffers::new(model.params());
    let (_, grads) = step(&model, &ids, &hooks.pass(PassSetup::train(0).with(buffers.clone())), &buffers);
    let error = check_coverage(&grads, model.params()).unwrap_err();
    let cut = ["ln_2.bias", "ln_2.weight", "mlp.c_fc.bias", "mlp.c_fc.weight"];
    assert_eq!(error.missing, cut.map(|name| format!("transformer.h.1.{name}")));
    assert!(error.to_string().contains("transformer.h.1.mlp.c_fc.weight"), "{error}");
}

#[test]
fn dropout_is_on_in_training_only_and_differs_by_step() {
    let mut config = TransformerConfig::gpt2(17, 16, 16, 2, 2);
    config.dropout.residual = 0.3;
    config.dropout.attention = 0.2;
    config.dropout.embedding = 0.1;
    let model = Transformer::init(config, 3, DType::F32, &Device::Cpu).unwrap();
    let ids = Tensor::new(&[[1u32, 5, 9, 2]], &Device::Cpu).unwrap();
    let logits = |setup| crate::support::bits(&model.forward(&ids, &Pass::silent(setup)).unwrap());
    assert_eq!(logits(PassSetup::eval(0)), logits(PassSetup::eval(1)));
    assert_eq!(logits(PassSetup::train(1)), logits(PassSetup::train(1)));
    assert_ne!(logits(PassSetup::train(1)), logits(PassSetup::train(2)));
    assert_ne!(logits(PassSetup::train(1)), logits(PassSetup { seed: 1, ..PassSetup::train(1) }));
    let untracked = PassSetup { gradients: Default::default(), ..PassSetup::train(1) };
    assert_eq!(logits(PassSetup::train(1)), logits(untracked), "the same with and without the tape");
}

/// The whole model in f64: the gradient of parameters, against central differences.
#[test]
fn p15_whole_models_pass_a_finite_difference_check() {
    for config in [
        TransformerConfig::gpt2(11, 8, 12, 2, 2),
        TransformerConfig::llama(11, 8, 12, 2, 2),
        TransformerConfig::neox(11, 8, 16, 2, 2),
    ] {
        let model =
            Transformer::init(TransformerConfig { init_std: 0.3, ..config }, 5, DType::F64, &Device::Cpu)
                .unwrap();
        let ids = Tensor::new(&[[1u32, 7, 3, 3, 9], [2, 2, 8, 0, 4]], &Device::Cpu).unwrap();
        check_gradients(model.params(), |pass| model.next_token_loss(&ids, pass).unwrap());
    }
}

/// A backward that fails half-way leaves nothing behind for the next step.
#[test]
fn p19_an_aborted_backward_does_not_leak_into_the_next() {
    let (model, ids) = tiny();
    let buffers = GradBuffers::new(model.params());
    let clean = step(&model, &ids, &Pass::silent(PassSetup::train(0).with(buffers.clone())), &buffers).1;
    let hooks = model.hook_manager();
    let fails = hook_fn::observe_gradient("blocks.0.hook_resid_post", |_, _, _| Err("no".into()));
    hooks.register_with(fails, HookOptions { on_error: OnError::Abort, ..HookOptions::default() }).unwrap();
    let pass = hooks.pass(PassSetup::train(0).with(buffers.clone()));
    let loss = model.next_token_loss(&ids, &pass).unwrap();
    assert!(backward(&loss, model.params(), Some(&buffers)).is_err());
    assert_eq!(pass.fatal().unwrap().point.as_deref(), Some("blocks.0.hook_resid_post"));
    let again = step(&model, &ids, &Pass::silent(PassSetup::train(0).with(buffers.clone())), &buffers).1;
    for (name, grad) in clean.iter() {
        assert_eq!(crate::support::bits(grad), crate::support::bits(again.get(name).unwrap()), "{name}");
    }
}
