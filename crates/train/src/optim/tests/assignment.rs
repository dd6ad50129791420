//! Every parameter has its place, and every pattern a parameter.

use serde_json::json;

use super::*;

fn model(dtype: DType) -> Params {
    let of: [(&str, &[usize]); 4] =
        [("h.0.mlp.bias", &[2]), ("h.0.mlp.weight", &[2, 2]), ("ln.weight", &[2]), ("wte.weight", &[3, 2])];
    params(&of.map(|(name, shape)| (name, shape, vec![0.0; shape.iter().product()])), dtype)
}

fn outcome(configs: &[Value], allow_unassigned: bool) -> std::result::Result<Vec<Optimizer>, String> {
    let configs: Vec<OptimizerConfig> = configs.iter().cloned().map(config).collect();
    Optimizer::build(&configs, &model(DType::F32), allow_unassigned).map_err(|error| error.to_string())
}

/// `optimizer/group weight_decay: parameters`, line by line.
fn shape_of(optimizers: &[Optimizer]) -> Vec<String> {
    let line = |optimizer: &Optimizer, group: &Group| {
        format!("{}/{} {}: {}", optimizer.name(), group.name, group.weight_decay, group.params.join(" "))
    };
    let lines = |optimizer| Optimizer::groups(optimizer).iter().map(|group| line(optimizer, group)).collect();
    optimizers.iter().flat_map(|optimizer| -> Vec<String> { lines(optimizer) }).collect()
}

#[test]
fn who_gets_what() {
    let cases: [(Vec<Value>, bool, Vec<&str>); 4] = [
        (
            vec![json!({"kind": "adamw", "lr": 1.0})],
            false,
            vec![
                "adamw.0/decay 0.01: h.0.mlp.weight wte.weight",
                "adamw.0/no_decay 0: h.0.mlp.bias ln.weight",
            ],
        ),
        (
            vec![json!({"kind": "adamw", "lr": 1.0, "weight_decay": 0.1, "decay_norms_and_biases": true})],
            false,
            vec!["adamw.0/decay 0.1: h.0.mlp.bias h.0.mlp.weight ln.weight wte.weight"],
        ),
        (
            vec![
                json!({"kind": "sgd", "lr": 1.0, "params": ["wte.*", "ln.weight"], "name": "ends"}),
                json!({"kind": "adamw", "lr": 1.0}),
            ],
            false,
            vec![
                "ends/decay 0: wte.weight",
                "ends/no_decay 0: ln.weight",
                "adamw.1/decay 0.01: h.0.mlp.weight",
                "adamw.1/no_decay 0: h.0.mlp.bias",
            ],
        ),
        (
            vec![json!({"kind": "sgd", "lr": 1.0, "params": "*.bias"})],
            true,
            vec!["sgd.0/no_decay 0: h.0.mlp.bias"],
        ),
    ];
    for (configs, allow_unassigned, expected) in cases {
        assert_eq!(shape_of(&outcome(&configs, allow_unassigned).unwrap()), expected);
    }
}

#[test]
fn what_is_refused() {
    let cases = [
        (
            vec![json!({"kind": "sgd", "lr": 1.0, "params": ["*", "wte.wieght"]})],
            "optimizer `sgd.0`: no parameter matches `wte.wieght`; nearest: `wte.weight`",
        ),
        (
            vec![json!({"kind": "sgd", "lr": 1.0}), json!({"kind": "sgd", "lr": 1.0, "params": "ln.*"})],
            "optimizer `sgd.1` gets no parameter: those before it take all that it matches",
        ),
        (
            vec![json!({"kind": "sgd", "lr": 1.0, "params": "*.weight"})],
            "no optimizer updates `h.0.mlp.bias`; add a pattern that matches, or freeze",
        ),
        (vec![], "no optimizer updates `h.0.mlp.bias`, `h.0.mlp.weight`, `ln.weight`, `wte.weight`;"),
        (vec![json!({"kind": "sgd", "lr": -1.0})], "optimizer `sgd.0`: `lr` is -1; it must be 0 or more"),
        (
            vec![
                json!({"kind": "sgd", "lr": 1.0, "params": "ln.*", "name": "x"}),
                json!({"kind": "sgd", "lr": 1.0, "name": "x"}),
            ],
            "optimizer `x`: `name` is the name of two optimizers",
        ),
    ];
    for (configs, expected) in cases {
        match outcome(&configs, false) {
            Ok(_) => panic!("accepted: {configs:?}"),
            Err(error) => assert!(error.starts_with(expected), "{error}"),
        }
    }
    let configs = [OptimizerConfig::new(Kind::Sgd, 1.0)];
    let error = Optimizer::build(&configs, &model(DType::BF16), false).err().unwrap().to_string();
    assert!(error.starts_with("parameter `h.0.mlp.bias` is bf16"), "{error}");
}
