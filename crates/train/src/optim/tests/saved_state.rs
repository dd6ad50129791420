//! State goes out and comes back, or is refused whole.

use std::collections::BTreeMap;

use serde_json::json;

use super::*;

fn start() -> Params {
    let weight = (0..12).map(|i| f64::from(i) * 0.1 - 0.5).collect();
    params(
        &[("bias", &[3], vec![0.1; 3]), ("still", &[2], vec![1.0; 2]), ("weight", &[4, 3], weight)],
        DType::F32,
    )
}

fn run(optimizers: &mut [Optimizer], params: &Params, steps: std::ops::Range<usize>) {
    for step in steps {
        let grads = grads(params, |_, i| ((i * 7 + step * 5) % 11) as f64 - 5.0);
        let still = |name: &str| name == "still";
        Optimizer::step_all(optimizers, params, &grads, StepScale::default(), &still).unwrap();
    }
}

fn kinds() -> [Vec<Value>; 3] {
    [
        vec![json!({"kind": "adamw", "lr": 0.1})],
        vec![json!({"kind": "sgd", "lr": 0.1, "momentum": 0.9})],
        vec![
            json!({"kind": "sgd", "lr": 0.1, "params": "bias"}),
            json!({"kind": "adamw", "lr": 0.1, "name": "rest"}),
        ],
    ]
}

fn saved(optimizers: &[Optimizer]) -> (BTreeMap<String, Tensor>, Vec<Value>) {
    let tensors = optimizers.iter().flat_map(|optimizer| optimizer.state_tensors().unwrap()).collect();
    // Through text, as in a file.
    let json = optimizers.iter().map(|optimizer| optimizer.state_json().to_string());
    (tensors, json.map(|text| serde_json::from_str(&text).unwrap()).collect())
}

#[test]
fn a_restored_optimizer_goes_on_with_the_same_bits() {
    for configs in kinds() {
        let whole = start();
        let mut optimizers = build(&configs, &whole);
        run(&mut optimizers, &whole, 0..3);
        let (tensors, json) = saved(&optimizers);
        let halfway = bits(&whole);
        run(&mut optimizers, &whole, 3..6);

        let resumed = start();
        for (param, values) in resumed.iter().zip(halfway) {
            let values: Vec<f64> = values.into_iter().map(f64::from_bits).collect();
            let values = Tensor::from_vec(values, param.value().shape(), &Device::Cpu).unwrap();
            param.var().set(&values.to_dtype(DType::F32).unwrap()).unwrap();
        }
        let mut again = build(&configs, &resumed);
        for (optimizer, json) in again.iter_mut().zip(&json) {
            optimizer.load_state(&tensors, json).unwrap();
        }
        run(&mut again, &resumed, 3..6);
        assert_eq!(bits(&resumed), bits(&whole), "{configs:?}");
        assert_eq!(state_bits(&again), state_bits(&optimizers), "{configs:?}");
    }
}

#[test]
fn names_rates_and_counts() {
    let params = start();
    let mut optimizers = build(&kinds()[2], &params);
    run(&mut optimizers, &params, 0..2);
    optimizers[1].scale_lr(0.5);
    let (tensors, json) = saved(&optimizers);
    assert_eq!(tensors.keys().collect::<Vec<_>>(), ["rest/exp_avg/weight", "rest/exp_avg_sq/weight"]);
    assert_eq!(json[0]["steps"], json!({"bias": 2}));
    assert_eq!(json[1]["steps"], json!({"still": 0, "weight": 2}));
    assert_eq!(json[1]["groups"][0], json!({"name": "decay", "lr": 0.05, "base_lr": 0.1}));
    let mut fresh = build(&kinds()[2], &params);
    fresh[1].load_state(&tensors, &json[1]).unwrap();
    assert_eq!((fresh[1].groups()[0].lr, fresh[1].groups()[0].base_lr), (0.05, 0.1));

    let state = optimizers[1].inspect("weight").unwrap().unwrap();
    assert_eq!((state.steps, state.tensors[0].0, state.tensors[1].0), (2, "exp_avg", "exp_avg_sq"));
    assert!(optimizers[1].inspect("still").unwrap().unwrap().tensors.is_empty());
    assert!(optimizers[1].inspect("bias").unwrap().is_none());
    // A snapshot stays what it was.
    let before = values(&state.tensors[0].1);
    run(&mut optimizers, &params, 2..3);
    assert_eq!(values(&state.tensors[0].1), before);
    assert_ne!(values(&optimizers[1].inspect("weight").unwrap().unwrap().tensors[0].1), before);
}

#[test]
fn a_state_that_does_not_fit_is_refused_whole() {
    let params = start();
    let mut optimizers = build(&kinds()[0], &params);
    run(&mut optimizers, &params, 0..2);
    let (tensors, json) = saved(&optimizers);
    let (tensors, json) = (tensors, json.into_iter().next().unwrap());
    run(&mut optimizers, &params, 2..3);
    let now = state_bits(&optimizers);
    let mut refuse = |edit: &dyn Fn(&mut BTreeMap<String, Tensor>, &mut Value), expected: &str| {
        let (mut tensors, mut json) = (tensors.clone(), json.clone());
        edit(&mut tensors, &mut json);
        let error = optimizers[0].load_state(&tensors, &json).unwrap_err().to_string();
        let expected = format!("the saved state of optimizer `adamw.0` does not fit: {expected}");
        assert_eq!(error, expected);
        assert_eq!(state_bits(&optimizers), now, "{expected}");
    };
    let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &Device::Cpu).unwrap();
    let key = "adamw.0/exp_avg_sq/weight";
    refuse(&|tensors, _| drop(tensors.remove(key)), "`adamw.0/exp_avg_sq/weight` is missing");
    refuse(
        &|tensors, _| drop(tensors.insert(key.into(), zeros(&[3, 4], DType::F32))),
        "`adamw.0/exp_avg_sq/weight` is f32 [3, 4], the parameter is f32 [4, 3]",
    );
    refuse(
        &|tensors, _| drop(tensors.insert(key.into(), zeros(&[4, 3], DType::F64))),
        "`adamw.0/exp_avg_sq/weight` is f64 [4, 3], the parameter is f32 [4, 3]",
    );
    let filled = |value: f32| Tensor::full(value, (4, 3), &Device::Cpu).unwrap();
    refuse(
        &|tensors, _| drop(tensors.insert(key.into(), filled(f32::NAN))),
        "`adamw.0/exp_avg_sq/weight` has NaN or infinity",
    );
    refuse(
        &|tensors, _| drop(tensors.insert(key.into(), filled(-1.0))),
        "`adamw.0/exp_avg_sq/weight` has negative elements",
    );
    refuse(
        &|tensors, _| drop(tensors.insert("adamw.0/exp_avg/still".into(), zeros(&[2], DType::F32))),
        "`adamw.0/exp_avg/still` belongs to no parameter that it updated",
    );
    refuse(&|_, json| json["name"] = json!("sgd.0"), "it was saved by \"sgd.0\"");
    refuse(
        &|_, json| json["groups"] = json!([{"name": "decay", "lr": 1.0, "base_lr": 1.0}]),
        "its groups are [\"decay\"], this optimizer has [\"decay\", \"no_decay\"]",
    );
    refuse(&|_, json| json["groups"][0]["lr"] = Value::Null, "`lr` of group \"decay\" is null, not a number");
    refuse(
        &|_, json| json["steps"]["other"] = json!(1),
        "it has steps of `other`, which this optimizer does not update",
    );
    refuse(&|_, json| json["steps"]["weight"] = Value::Null, "it has no usable count of steps of `weight`");
}
