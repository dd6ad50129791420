//! What a model says after an intervention, against TransformerLens; steered generation, against transformers.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use tenterhook_hooks::Hook;
use tenterhook_lens::controllers::{self, Knockout, KnockoutOptions};
use tenterhook_lens::{CacheOptions, GenerateOptions};

use crate::support::*;

fn reference(family: &str) -> HashMap<String, Tensor> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    candle_core::safetensors::load(data.join(format!("interventions_{family}.safetensors")), &Device::Cpu)
        .unwrap()
}

#[test]
fn interventions_give_the_logits_of_transformer_lens() {
    for family in FAMILIES {
        let (lm, want) = (lm(family), reference(family));
        let ids = |name: &str| want[name].to_dtype(DType::U32).unwrap();
        let (_, other, _) = lm.run_with_cache(&ids("other_ids"), &CacheOptions::default()).unwrap();
        let edges = KnockoutOptions {
            points: "blocks.1.attn.hook_attn_scores".into(),
            queries: Some([3, 4, 5, 6].into()),
            keys: Some([1].into()),
            ..KnockoutOptions::default()
        };
        let stream = "blocks.0.hook_resid_post";
        let cases: Vec<(&str, Box<dyn Hook>)> = vec![
            ("zero_head", Box::new(controllers::zero_ablate("blocks.0.attn.hook_z").heads([1]))),
            ("zero_positions", Box::new(controllers::zero_ablate("blocks.1.hook_mlp_out").positions([0, 3]))),
            ("steer", Box::new(controllers::steer(stream, want["vector"].clone()).strength(1.5))),
            ("patch", Box::new(controllers::patch(stream, other.iter()).unwrap().positions([1, 4]))),
            (
                "patch_head",
                Box::new(controllers::patch("blocks.1.attn.hook_z", other.iter()).unwrap().heads([0])),
            ),
            ("mean", Box::new(controllers::mean_ablate("blocks.0.hook_attn_out", None))),
            ("scale_neurons", Box::new(controllers::scale("blocks.1.mlp.hook_post", -2.0).neurons([2, 5]))),
            ("knockout", Box::new(Knockout::new(edges).unwrap())),
        ];
        for (name, hook) in cases {
            let (logits, report) = lm.run_with_hooks(&ids("ids"), vec![hook]).unwrap();
            assert_close(&format!("{family} {name}"), &logits, &want[&format!("logits.{name}")], 1e-4);
            assert!(report.errors.is_empty() && report.hooks[0].receipt.elements_changed > 0, "{report}");
        }
    }
}

#[test]
fn steered_generation_is_that_of_transformers() {
    for family in FAMILIES {
        let (lm, want) = (lm(family), reference(family));
        let steer = controllers::steer("blocks.0.hook_resid_post", want["vector"].clone()).strength(1.5);
        lm.hooks().register(steer).unwrap();
        let prompt = want["ids"].get(0).unwrap().to_dtype(DType::U32).unwrap().to_vec1().unwrap();
        let options = GenerateOptions {
            max_new_tokens: 8,
            stop_tokens: Some(Vec::new()),
            keep_logits: true,
            ..GenerateOptions::default()
        };
        let made = lm.generate_tokens(vec![prompt], &options, |_| ControlFlow::Continue(())).unwrap();
        let ids = want["generated.ids"].to_dtype(DType::U32).unwrap().to_vec1::<u32>().unwrap();
        assert_eq!(made.new_tokens[0], ids, "{family}");
        assert_close(family, made.logits[0].as_ref().unwrap(), &want["generated.logits"], 1e-4);
    }
}
