use std::path::Path;

use candle_core::{DType, Device, Tensor};
use proptest::prelude::*;
use schemars::schema_for;
use serde_json::{Value, json};
use tenterhook_hooks::Pass;
use tenterhook_nn::ops::Activation;

use super::{ActivationName, ModelDescription, ModelKind, Precision};
use crate::config::{Dropout, Family, Positions, TransformerConfig};
use crate::model::Model;

fn described(json: Value) -> ModelDescription {
    serde_json::from_value(json).unwrap()
}

fn with(more: Value) -> ModelDescription {
    let mut json =
        json!({"kind": "gpt", "vocab": 17, "context": 8, "d_model": 16, "n_heads": 2, "n_layers": 2});
    json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    described(json)
}

fn build(described: &ModelDescription) -> Model {
    described.build(Path::new("."), 1, &Device::Cpu).unwrap_or_else(|error| panic!("{error}"))
}

fn transformer(model: &Model) -> &TransformerConfig {
    match model {
        Model::Transformer(model) => model.config(),
        Model::Mlp(_) => panic!("an MLP"),
    }
}

fn bits(model: &Model) -> Vec<u64> {
    let ids = Tensor::new(&[[1u32, 5, 9, 2, 0, 16, 3, 3]], &Device::Cpu).unwrap();
    let logits = model.forward(&ids, &Pass::default()).unwrap().to_dtype(DType::F64).unwrap();
    logits.flatten_all().unwrap().to_vec1::<f64>().unwrap().into_iter().map(f64::to_bits).collect()
}

#[test]
fn every_problem_is_named_with_the_way_out() {
    // What is changed, the keys that are wrong, in order, and words of each message.
    let cases: &[(Value, &[(&str, &str)])] = &[
        (json!({}), &[]),
        (json!({"kind": null}), &[("kind", "`from`")]),
        (json!({"from": "x"}), &[("from", "remove `from`")]),
        (
            json!({"kind": null, "from": "x", "seed": 1}),
            &[
                ("vocab", "remove `vocab`"),
                ("context", "its own"),
                ("d_model", "its own"),
                ("n_heads", "its own"),
                ("n_layers", "its own"),
                ("seed", "random"),
            ],
        ),
        (json!({"vocab": null}), &[("vocab", "`tokenizer`")]),
        (json!({"vocab": null, "tokenizer": "t.json"}), &[]),
        (json!({"context": null, "n_heads": null}), &[("context", "missing"), ("n_heads", "`n_heads = 4`")]),
        (json!({"n_heads": 3}), &[("n_heads", "2 or 4 could")]),
        (json!({"n_heads": 17}), &[("n_heads", ": 16 could")]),
        (json!({"n_heads": 0, "d_model": 0}), &[("d_model", "from 1"), ("n_heads", "from 1")]),
        (json!({"context": 1u64 << 40}), &[("context", "1099511627776")]),
        (json!({"n_layers": 10_001}), &[("n_layers", "10000")]),
        (json!({"d_model": 1 << 20}), &[("d_model", "parameters")]),
        (json!({"n_kv_heads": 1}), &[("n_kv_heads", "`gpt`")]),
        (json!({"kind": "llama", "n_kv_heads": 1}), &[]),
        (json!({"kind": "llama", "n_heads": 8, "n_kv_heads": 3}), &[("n_kv_heads", "2 or 4 could")]),
        (json!({"kind": "llama", "d_model": 6}), &[("n_heads", "size 3")]),
        (json!({"kind": "neox", "d_model": 2}), &[("n_heads", "at least 2")]),
        (json!({"kind": "neox", "d_model": 6}), &[]),
        (json!({"rope_theta": 1e4}), &[("rope_theta", "llama, neox")]),
        (json!({"kind": "neox", "rope_theta": 0.0}), &[("rope_theta", "positive")]),
        (json!({"dropout": 1.0}), &[("dropout", "below 1")]),
        (json!({"init_std": -1.0, "norm_eps": 2.0}), &[("init_std", "from 0"), ("norm_eps", "from 0")]),
        (json!({"d_mlp": 0}), &[]),
        (json!({"d_mlp": 0, "activation": "relu"}), &[("activation", "remove")]),
        (
            json!({"kind": "mlp", "d_mlp": 0, "tied": true, "init_std": 0.1, "norm_eps": 0.1}),
            &[
                ("n_heads", "no attention"),
                ("tied", "`mlp`"),
                ("init_std", "`mlp`"),
                ("norm_eps", "norms"),
                ("d_mlp", "at least 1"),
            ],
        ),
        (json!({"kind": "mlp", "n_heads": null}), &[]),
    ];
    for (changed, expected) in cases {
        let described = with(changed.clone());
        let problems = described.problems();
        let keys: Vec<&str> = problems.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, expected.iter().map(|(key, _)| *key).collect::<Vec<_>>(), "{changed}: {problems:?}");
        for ((key, message), (_, word)) in problems.iter().zip(*expected) {
            assert!(message.contains(word), "{changed}: `{key}` {message}\nshould contain {word}");
        }
        if !problems.is_empty() {
            let error = described.build(Path::new("."), 1, &Device::Cpu).err().unwrap().to_string();
            assert!(problems.iter().all(|(_, message)| error.contains(message)), "{error}");
        }
    }
}

#[test]
fn unknown_keys_and_names_are_refused() {
    for json in [
        json!({"d_modell": 3}),
        json!({"kind": "bert"}),
        json!({"activation": "mish"}),
        json!({"dtype": "f16"}),
    ] {
        serde_json::from_value::<ModelDescription>(json.clone()).unwrap_err();
    }
    let schema = schema_for!(ModelDescription).to_value();
    let properties = schema["properties"].as_object().unwrap();
    assert_eq!(properties.len(), 18);
    for (key, property) in properties {
        assert!(property["description"].as_str().is_some_and(|help| help.len() > 20), "{key}: {property}");
    }
    assert_eq!(schema["additionalProperties"], json!(false));
}

#[test]
fn every_option_reaches_the_model() {
    let plain = transformer(&build(&with(json!({})))).clone();
    assert_eq!(plain, TransformerConfig::gpt2(17, 8, 16, 2, 2));
    let gpt = json!({"d_mlp": 24, "dropout": 0.1, "activation": "relu", "tied": false, "init_std": 0.5, "norm_eps": 0.25});
    let dropout = Dropout { embedding: 0.1, attention: 0.1, residual: 0.1 };
    let expected = TransformerConfig {
        mlp_width: 24,
        dropout,
        activation: Activation::Relu,
        tied_embeddings: false,
        init_std: 0.5,
        norm_eps: 0.25,
        ..plain
    };
    assert_eq!(*transformer(&build(&with(gpt))), expected);
    let llama = build(&with(json!({"kind": "llama", "n_kv_heads": 1, "rope_theta": 77.0, "dtype": "f64"})));
    let Positions::Rotary(rope) = &transformer(&llama).positions else { panic!("no rotation") };
    assert_eq!(
        (rope.theta, transformer(&llama).kv_heads, transformer(&llama).family),
        (77.0, 1, Family::Llama)
    );
    assert!(llama.params().iter().all(|param| param.value().dtype() == DType::F64));
    assert_eq!(llama.config_json()["dtype"], "float64");
    let neox = build(&with(json!({"kind": "neox", "dropout": 0.2})));
    assert_eq!(transformer(&neox).family, Family::NeoX);
    let Model::Mlp(mlp) =
        build(&with(json!({"kind": "mlp", "n_heads": null, "activation": "silu", "dropout": 0.5})))
    else {
        panic!("a transformer")
    };
    assert_eq!(
        (mlp.config().d_mlp, mlp.config().dropout, mlp.config().activation),
        (64, 0.5, Activation::Silu)
    );
}

#[test]
fn the_seed_is_the_descriptions_or_the_runs() {
    let device = &Device::Cpu;
    let run =
        |described: &ModelDescription, seed| bits(&described.build(Path::new("."), seed, device).unwrap());
    for kind in [json!({}), json!({"kind": "mlp", "n_heads": null})] {
        let plain = with(kind);
        let seeded = ModelDescription { seed: Some(7), ..plain.clone() };
        assert_ne!(run(&plain, 1), run(&plain, 2));
        assert_eq!(run(&seeded, 1), run(&seeded, 2));
        assert_eq!(run(&seeded, 1), run(&plain, 7));
    }
}

/// A directory written for a model, whichever kind, is loaded as that kind, and dropout can be changed on the way.
#[test]
fn a_saved_model_comes_back_from_its_directory() {
    let changes = [
        json!({}),
        json!({"d_mlp": 0}),
        json!({"kind": "llama", "d_mlp": 0, "dropout": 0.2}),
        json!({"kind": "neox", "dropout": 0.2}),
        json!({"kind": "mlp", "n_heads": null, "dropout": 0.2}),
    ];
    for change in changes {
        let base = tempfile::tempdir().unwrap();
        let model = build(&with(change.clone()));
        let dir = base.path().join("saved");
        match &model {
            Model::Transformer(model) => model.save(&dir, None).unwrap(),
            Model::Mlp(model) => model.save(&dir, None).unwrap(),
        }
        let from = described(json!({"from": "saved"}));
        let again = from.build(base.path(), 99, &Device::Cpu).unwrap();
        assert_eq!(bits(&again), bits(&model), "{change}");
        assert_eq!(again.config_json(), model.config_json(), "{change}");
        assert_eq!((again.vocab(), again.context(), again.tokenizer()), (17, 8, None));
        assert_eq!(again.points().len(), model.points().len());
        for rate in [0.0, 0.3] {
            let other = ModelDescription { dropout: Some(rate), ..from.clone() };
            let other = other.build(base.path(), 99, &Device::Cpu).unwrap();
            let written = build(&ModelDescription { dropout: Some(rate), ..with(change.clone()) });
            assert_eq!(other.config_json(), written.config_json(), "{change}, {rate}");
        }
        let double = ModelDescription { dtype: Precision::F64, ..from };
        let double = double.build(base.path(), 99, &Device::Cpu).unwrap();
        assert!(double.params().iter().all(|param| param.value().dtype() == DType::F64));
    }
}

/// A word tokenizer with a gap in its ids.
const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "c": 9}, "unk_token": "a"}}"#;

#[test]
fn a_tokenizer_gives_the_vocabulary_and_must_fit() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("words.json");
    std::fs::write(&path, TOKENIZER).unwrap();
    let with = |vocab: Value| with(json!({"tokenizer": "words.json", "vocab": vocab}));
    let model = with(json!(null)).build(base.path(), 1, &Device::Cpu).unwrap();
    assert_eq!((model.vocab(), model.tokenizer()), (10, Some(path.as_path())));
    assert_eq!(with(json!(12)).build(base.path(), 1, &Device::Cpu).unwrap().vocab(), 12);
    let error = with(json!(9)).build(base.path(), 1, &Device::Cpu).err().unwrap().to_string();
    assert!(error.contains("need a vocabulary of 10") && error.contains("words.json"), "{error}");

    let Model::Transformer(model) = model else { panic!("an MLP") };
    model.save(&base.path().join("saved"), model.tokenizer()).unwrap();
    let again = described(json!({"from": "saved"})).build(base.path(), 1, &Device::Cpu).unwrap();
    assert_eq!(again.tokenizer(), Some(base.path().join("saved/tokenizer.json").as_path()));
}

#[test]
fn a_missing_directory_is_named() {
    let error = described(json!({"from": "nowhere"})).build(Path::new("."), 1, &Device::Cpu).err().unwrap();
    assert!(error.to_string().contains("nowhere"), "{error}");
}

fn any_description() -> impl Strategy<Value = ModelDescription> {
    let size = || prop::option::weighted(0.95, prop_oneof![8 => 1usize..13, 1 => Just(0usize)]);
    let kinds = [ModelKind::Gpt, ModelKind::Llama, ModelKind::Neox, ModelKind::Mlp];
    let sizes = (size(), size(), size(), size(), size(), prop::option::of(0usize..9));
    let more = (
        prop::option::weighted(0.2, 1usize..5),
        prop::option::weighted(0.3, 0.0..1.1f64),
        prop::option::weighted(0.2, any::<bool>()),
        prop::option::weighted(
            0.2,
            prop::sample::select(vec![ActivationName::Relu, ActivationName::GeluTanh]),
        ),
        prop::option::weighted(0.2, 0.5..1e6f64),
    );
    // Left to chance, heads rarely divide the width.
    (prop::sample::select(kinds.to_vec()), sizes, more, any::<bool>()).prop_map(
        |(kind, sizes, more, divided)| {
            let (vocab, context, d_model, n_heads, n_layers, d_mlp) = sizes;
            let (n_kv_heads, dropout, tied, activation, rope_theta) = more;
            let n_heads = n_heads.filter(|_| kind != ModelKind::Mlp);
            let d_model =
                d_model.map(|d_model| if divided { 2 * d_model * n_heads.unwrap_or(1) } else { d_model });
            ModelDescription {
                kind: Some(kind),
                vocab,
                context,
                d_model,
                n_heads,
                n_kv_heads,
                n_layers,
                d_mlp,
                dropout,
                activation,
                tied,
                rope_theta,
                ..Default::default()
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// What has no problems can be built, run and read back; what has some is refused.
    #[test]
    fn problems_are_exactly_what_cannot_be_built(described in any_description()) {
        let problems = described.problems();
        let built = described.build(Path::new("."), 1, &Device::Cpu);
        prop_assert_eq!(problems.is_empty(), built.is_ok(), "{:?}", problems);
        // Nothing falls through to the check of the whole.
        prop_assert!(problems.iter().all(|(key, _)| key != "kind"), "{:?}", problems);
        if let Ok(model) = built {
            let ids = Tensor::zeros((2, model.context()), DType::U32, &Device::Cpu).unwrap();
            let logits = model.forward(&ids, &Pass::default()).unwrap();
            prop_assert_eq!(logits.dims().last(), Some(&model.vocab()));
            let json = serde_json::to_value(&described).unwrap();
            prop_assert_eq!(serde_json::from_value::<ModelDescription>(json).unwrap(), described);
        }
    }
}
