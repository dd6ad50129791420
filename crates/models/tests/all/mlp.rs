//! The MLP over a window computes what a plain loop computes, differentiates, and is watched like any model.

use candle_core::{DType, Device, Tensor};
use tenterhook_hooks::{Pass, PassSetup, Retention, hook_fn};
use tenterhook_models::Mlp;
use tenterhook_models::config::MlpConfig;
use tenterhook_nn::ops::{Activation, cross_entropy};
use tenterhook_nn::{GradBuffers, backward, check_coverage};

use crate::support::{bits, captured, check_gradients};

fn config() -> MlpConfig {
    MlpConfig {
        vocab: 11,
        context: 3,
        d_model: 4,
        d_mlp: 6,
        n_layers: 2,
        activation: Activation::Silu,
        dropout: 0.0,
    }
}

fn windows() -> (Tensor, Tensor) {
    let ids = Tensor::new(&[[1u32, 7, 3], [7, 3, 3], [10, 0, 2]], &Device::Cpu).unwrap();
    (ids, Tensor::new(&[3i64, 9, 4], &Device::Cpu).unwrap())
}

/// `W x + b` by plain loops.
fn affine(model: &Mlp, path: &str, x: &[f64]) -> Vec<f64> {
    let get = |name: &str| model.params().get(&format!("{path}.{name}")).unwrap().value();
    let (weight, bias) = (get("weight").to_vec2::<f64>().unwrap(), get("bias").to_vec1::<f64>().unwrap());
    let dot = |row: &Vec<f64>| {
        assert_eq!(row.len(), x.len());
        row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>()
    };
    weight.iter().zip(bias).map(|(row, b)| dot(row) + b).collect()
}

#[test]
fn it_computes_what_plain_loops_compute() {
    let model = Mlp::init(config(), 5, DType::F64, &Device::Cpu).unwrap();
    // Biases begin at 0; here they must count.
    for param in model.params().iter().filter(|param| param.name().ends_with("bias")) {
        let values: Vec<f64> = (0..param.value().elem_count()).map(|i| 0.1 * i as f64 - 0.2).collect();
        param.var().set(&Tensor::from_vec(values, param.value().shape(), &Device::Cpu).unwrap()).unwrap();
    }
    let (ids, _) = windows();
    let logits = model.forward(&ids, &Pass::default()).unwrap().to_vec2::<f64>().unwrap();
    let embed = model.params().get("embed.weight").unwrap().value().to_vec2::<f64>().unwrap();
    for (window, logits) in ids.to_vec2::<u32>().unwrap().iter().zip(logits) {
        let mut x: Vec<f64> = window.iter().flat_map(|id| embed[*id as usize].clone()).collect();
        for path in ["layers.0.fc", "layers.1.fc"] {
            x = affine(&model, path, &x).into_iter().map(|x| x / (1.0 + (-x).exp())).collect();
        }
        for (got, want) in logits.iter().zip(affine(&model, "head", &x)) {
            assert!((got - want).abs() < 1e-12, "{got} against {want}");
        }
    }
}

#[test]
fn it_passes_a_finite_difference_check() {
    let model = Mlp::init(config(), 5, DType::F64, &Device::Cpu).unwrap();
    let (ids, targets) = windows();
    check_gradients(model.params(), |pass| {
        cross_entropy(&model.forward(&ids, pass).unwrap(), &targets, None).unwrap()
    });
}

#[test]
fn every_point_fires_once_and_watching_changes_no_bit() {
    let model = Mlp::init(MlpConfig { dropout: 0.3, ..config() }, 5, DType::F32, &Device::Cpu).unwrap();
    let (ids, targets) = windows();
    let buffers = GradBuffers::new(model.params());
    let setup = || PassSetup::train(3).with(buffers.clone());
    let run = |pass: &Pass| {
        let logits = model.forward(&ids, pass).unwrap();
        let loss = cross_entropy(&logits, &targets, None).unwrap();
        let grads = backward(&loss, model.params(), Some(&buffers)).unwrap();
        check_coverage(&grads, model.params()).unwrap();
        (bits(&logits), grads.iter().map(|(_, grad)| bits(grad)).collect::<Vec<_>>())
    };
    let silent = run(&Pass::silent(setup()));
    let names: Vec<String> = model.points().iter().map(|(_, point)| point.name.clone()).collect();
    let expected = [
        "hook_embed",
        "embed.hook_in",
        "layers.0.hook_in",
        "layers.0.hook_pre",
        "layers.0.hook_post",
        "layers.1.hook_pre",
        "layers.1.hook_post",
        "logits",
    ];
    assert_eq!(names, expected);
    for (alias, name) in [
        ("layers.1.hook_in", "layers.0.hook_post"),
        ("layers.1.fc.hook_in", "layers.0.hook_post"),
        ("layers.1.fc", "layers.1.hook_pre"),
        ("head", "logits"),
    ] {
        assert_eq!(model.points().find(alias), model.points().find(name), "{alias}");
    }
    assert_eq!(
        model.points().blocks().map(|layer| layer.path.as_str()).collect::<Vec<_>>(),
        ["layers.0", "layers.1"]
    );

    let hooks = model.hook_manager();
    let id = hooks
        .register(hook_fn::observe(names.clone(), |at, x, cx| cx.keep(at, x, Retention::All, None)))
        .unwrap();
    assert_eq!(run(&hooks.pass(setup())), silent);
    let states = hooks.get_captured_states(&id).unwrap();
    assert_eq!(states.len(), names.len());
    let values = captured(&hooks, &id);
    assert_eq!(values["layers.0.hook_in"].dims(), [3, 12]);
    assert_eq!(bits(&values["logits"]), silent.0);
    let pre: Vec<f32> = values["layers.1.hook_pre"].flatten_all().unwrap().to_vec1().unwrap();
    let post: Vec<f32> = values["layers.1.hook_post"].flatten_all().unwrap().to_vec1().unwrap();
    let dropped = post.iter().filter(|x| **x == 0.0).count();
    assert!((1..post.len()).contains(&dropped), "{dropped} of {} dropped", post.len());
    for (pre, post) in pre.iter().zip(&post).filter(|(_, post)| **post != 0.0) {
        assert!((pre / (1.0 + (-pre).exp()) / 0.7 - post).abs() < 1e-6);
    }
}

#[test]
fn gradients_are_seen_at_its_points_and_edits_reach_the_logits() {
    let model = Mlp::init(config(), 5, DType::F32, &Device::Cpu).unwrap();
    let (ids, targets) = windows();
    let hooks = model.hook_manager();
    let id = hooks
        .register(hook_fn::observe_gradient(
            vec!["hook_embed", "layers.*.hook_post", "logits"],
            |at, x, cx| cx.keep(at, x, Retention::All, None),
        ))
        .unwrap();
    let pass = hooks.pass(PassSetup::train(0));
    let loss = cross_entropy(&model.forward(&ids, &pass).unwrap(), &targets, None).unwrap();
    backward(&loss, model.params(), None).unwrap();
    assert_eq!(hooks.get_captured_states(&id).unwrap().len(), 4);

    let hooks = model.hook_manager();
    hooks.register(hook_fn::edit("layers.1.hook_post", |_, x, _| Ok(Some(x.zeros_like()?)))).unwrap();
    let logits = model.forward(&ids, &hooks.pass(PassSetup::eval(0))).unwrap();
    assert!(bits(&logits).iter().all(|bits| *bits == 0), "the head's bias is 0 at first");
}

#[test]
fn it_is_saved_and_read_back() {
    let (ids, _) = windows();
    let config = MlpConfig { dropout: 0.25, activation: Activation::GeluTanh, ..config() };
    for dtype in [DType::F32, DType::F64] {
        let model = Mlp::init(config.clone(), 5, dtype, &Device::Cpu).unwrap();
        let dir = tempfile::tempdir().unwrap();
        model.save(dir.path(), None).unwrap();
        let again = Mlp::load(dir.path(), dtype, &Device::Cpu).unwrap();
        assert_eq!(again.config(), &config);
        assert_eq!(again.config_json(), model.config_json());
        let logits = |model: &Mlp| {
            let logits = model.forward(&ids, &Pass::default()).unwrap();
            logits.to_dtype(DType::F64).unwrap().to_vec2::<f64>().unwrap()
        };
        assert_eq!(logits(&again), logits(&model));
    }
}

#[test]
fn what_is_no_mlp_is_refused() {
    let model = Mlp::init(config(), 5, DType::F32, &Device::Cpu).unwrap();
    let dir = tempfile::tempdir().unwrap();
    model.save(dir.path(), None).unwrap();
    let error =
        tenterhook_models::Transformer::load(dir.path(), DType::F32, &Device::Cpu).err().unwrap().to_string();
    assert!(error.contains("Mlp::load"), "{error}");
    let mut json = model.config_json();
    json["d_mlp"] = 7.into();
    std::fs::write(dir.path().join("config.json"), json.to_string()).unwrap();
    let error = Mlp::load(dir.path(), DType::F32, &Device::Cpu).err().unwrap().to_string();
    assert!(error.contains("`layers.0.fc.weight`: expected shape [7, 12], found [6, 12]"), "{error}");
    let long = Tensor::zeros((1, 4), DType::U32, &Device::Cpu).unwrap();
    let error = model.forward(&long, &Pass::default()).unwrap_err().to_string();
    assert!(error.contains("windows of 4 tokens") && error.contains("exactly 3"), "{error}");
}
