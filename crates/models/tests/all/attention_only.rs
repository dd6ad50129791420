//! Transformers without MLPs, and dropout that a family's `config.json` has no word for.

use candle_core::{DType, Device, Tensor};
use serde_json::json;
use tenterhook_hooks::{Pass, PassSetup, Retention, hook_fn};
use tenterhook_models::Transformer;
use tenterhook_models::config::{Dropout, TransformerConfig};

use crate::support::*;

fn configs() -> [TransformerConfig; 3] {
    [
        TransformerConfig::gpt2(17, 8, 16, 2, 2),
        TransformerConfig::llama(17, 8, 16, 2, 2),
        TransformerConfig::neox(17, 8, 16, 2, 2),
    ]
}

fn ids() -> Tensor {
    Tensor::new(&[[1u32, 5, 9, 2], [16, 0, 0, 3]], &Device::Cpu).unwrap()
}

fn logits(model: &Transformer) -> Vec<u32> {
    bits(&model.forward(&ids(), &Pass::default()).unwrap())
}

#[test]
fn it_is_the_model_whose_mlps_add_nothing() {
    for config in configs() {
        let full = Transformer::init(config.clone(), 3, DType::F32, &Device::Cpu).unwrap();
        let bare = TransformerConfig { mlp_width: 0, ..config };
        let bare = Transformer::init(bare, 3, DType::F32, &Device::Cpu).unwrap();
        assert!(bare.params().iter().all(|param| !param.name().contains("mlp")));
        assert!(bare.params().len() < full.params().len());
        for param in bare.params().iter() {
            param.var().set(full.params().get(param.name()).unwrap().value()).unwrap();
        }
        let hooks = full.hook_manager();
        hooks.register(hook_fn::edit("blocks.*.hook_mlp_out", |_, x, _| Ok(Some(x.zeros_like()?)))).unwrap();
        let expected = full.forward(&ids(), &hooks.pass(eval())).unwrap();
        assert_eq!(logits(&bare), bits(&expected), "{:?}", bare.config().family);
    }
}

#[test]
fn its_points_are_those_of_attention() {
    for config in configs() {
        let config = TransformerConfig { mlp_width: 0, ..config };
        let model = Transformer::init(config, 3, DType::F32, &Device::Cpu).unwrap();
        for absent in [
            "hook_resid_mid",
            "hook_mlp_in",
            "hook_mlp_out",
            "mlp.hook_pre",
            "ln2.hook_scale",
            "ln2.hook_out",
        ] {
            assert!(model.points().find(&format!("blocks.0.{absent}")).is_none(), "{absent}");
        }
        let names: Vec<String> = model.points().iter().map(|(_, point)| point.name.clone()).collect();
        let hooks = model.hook_manager();
        let id = hooks
            .register(hook_fn::observe(names.clone(), |at, x, cx| cx.keep(at, x, Retention::All, None)))
            .unwrap();
        let watched = model.forward(&ids(), &hooks.pass(eval())).unwrap();
        assert_eq!(bits(&watched), logits(&model));
        let values = captured(&hooks, &id);
        assert_eq!(values.len(), names.len(), "every point fires");
        for block in 0..2 {
            let at = |end: &str| &values[&format!("blocks.{block}.{end}")];
            let sum = (at("hook_resid_pre") + at("hook_attn_out")).unwrap();
            assert_eq!(bits(&sum), bits(at("hook_resid_post")));
        }
    }
}

#[test]
fn its_gradients_pass_a_finite_difference_check() {
    for config in configs() {
        let config = TransformerConfig { mlp_width: 0, init_std: 0.3, ..config };
        let model = Transformer::init(config, 5, DType::F64, &Device::Cpu).unwrap();
        check_gradients(model.params(), |pass| model.next_token_loss(&ids(), pass).unwrap());
    }
}

#[test]
fn it_is_saved_as_what_transformers_does_not_know_and_read_back() {
    for config in configs() {
        let config = TransformerConfig { mlp_width: 0, ..config };
        let model = Transformer::init(config.clone(), 3, DType::F32, &Device::Cpu).unwrap();
        let json = model.config_json();
        assert_eq!(json["model_type"], format!("tenterhook_{}", config.family.model_type()));
        assert_eq!(
            (&json["architectures"], &json["tenterhook"]),
            (&json!([]), &json!({"attention_only": true}))
        );
        let dir = tempfile::tempdir().unwrap();
        model.save(dir.path(), None).unwrap();
        let again = Transformer::load(dir.path(), DType::F32, &Device::Cpu).unwrap();
        assert_eq!((again.config(), again.config_json()), (&config, json));
        assert_eq!(logits(&again), logits(&model));
    }
}

#[test]
fn dropout_works_for_every_family_and_survives_saving() {
    let rates = [
        Dropout { embedding: 0.2, attention: 0.2, residual: 0.2 },
        Dropout { embedding: 0.3, ..Default::default() },
        Dropout { residual: 0.3, ..Default::default() },
        Dropout { attention: 0.3, ..Default::default() },
    ];
    for config in configs() {
        for dropout in rates {
            let config = TransformerConfig { dropout, ..config.clone() };
            let family = config.family;
            let model = Transformer::init(config.clone(), 3, DType::F32, &Device::Cpu).unwrap();
            let dir = tempfile::tempdir().unwrap();
            model.save(dir.path(), None).unwrap();
            let again = Transformer::load(dir.path(), DType::F32, &Device::Cpu).unwrap();
            assert_eq!(again.config(), &config);
            let json = again.config_json();
            assert_eq!(
                (&json["model_type"], &json["architectures"]),
                (&json!(family.model_type()), &json!([family.architecture()]))
            );
            let run =
                |model: &Transformer, setup| bits(&model.forward(&ids(), &Pass::silent(setup)).unwrap());
            assert_eq!(run(&again, PassSetup::train(1)), run(&model, PassSetup::train(1)));
            assert_ne!(
                run(&model, PassSetup::train(1)),
                run(&model, PassSetup::train(2)),
                "{family:?} {dropout:?}"
            );
            assert_eq!(run(&model, PassSetup::eval(1)), run(&model, PassSetup::eval(2)));
        }
    }
}
