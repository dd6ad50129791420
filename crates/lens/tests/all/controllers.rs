//! What controllers do to a tensor, and to the gradient behind it.

use candle_core::{Device, Tensor};
use serde_json::{Value, json};
use tenterhook_hooks::{HookRegistry, HookResult, Mock, Point, PointTable};
use tenterhook_lens::controllers::{self, register_kinds, save_tensor};

use crate::support::values;

const STREAM: &str = "blocks.0.hook_resid_post";
const HEADS: &str = "blocks.0.attn.hook_z";
const SCORES: &str = "blocks.0.attn.hook_attn_scores";
const PATTERN: &str = "blocks.0.attn.hook_pattern";

fn mock() -> Mock {
    let mut points = PointTable::builder();
    points.point(Point::new(STREAM, "batch pos d_model")).unwrap();
    points.point(Point::new(HEADS, "batch pos head d_head")).unwrap();
    points.point(Point::new(SCORES, "batch head query_pos key_pos").masked()).unwrap();
    points.point(Point::new(PATTERN, "batch head query_pos key_pos")).unwrap();
    Mock::with_points(points.build())
}

fn kinds() -> HookRegistry {
    let mut kinds = HookRegistry::standard();
    register_kinds(&mut kinds).unwrap();
    kinds
}

/// 1, 2, 3 and so on in this shape.
fn counted(shape: &[usize]) -> Tensor {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (1..=count).map(|i| i as f32).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// What comes out of a point when a hook of this description is there.
fn edited(spec: Value, point: &str, x: &Tensor) -> Vec<f32> {
    let mut mock = mock();
    kinds().attach(mock.hooks(), &spec).unwrap_or_else(|error| panic!("{spec}: {error}"));
    mock.step();
    let y = mock.fire(point, x).unwrap();
    assert!(mock.report().errors.is_empty(), "{spec}: {}", mock.report());
    values(&y)
}

#[test]
fn parts_of_a_tensor_are_chosen_by_position_head_and_neuron() {
    let x = counted(&[1, 3, 2]);
    let zero = |more: Value| {
        let mut spec = json!({"kind": "zero_ablate", "points": STREAM});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        edited(spec, STREAM, &x)
    };
    assert_eq!(zero(json!({})), [0.0; 6]);
    assert_eq!(zero(json!({"positions": 0})), [0.0, 0.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(zero(json!({"positions": [-1, 0]})), [0.0, 0.0, 3.0, 4.0, 0.0, 0.0]);
    assert_eq!(zero(json!({"neurons": [1]})), [1.0, 0.0, 3.0, 0.0, 5.0, 0.0]);
    assert_eq!(zero(json!({"neurons": [1], "positions": 1})), [1.0, 2.0, 3.0, 0.0, 5.0, 6.0]);
    assert_eq!(zero(json!({"positions": 9})), values(&x), "a position that the text does not have");
    assert_eq!(zero(json!({"strength": 0.5})), [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]);
    assert_eq!(zero(json!({"strength": 0.0})), values(&x));
    let heads = counted(&[1, 2, 2, 1]);
    let spec = json!({"kind": "zero_ablate", "points": HEADS, "heads": [1], "positions": 0});
    assert_eq!(edited(spec, HEADS, &heads), [1.0, 0.0, 3.0, 4.0]);
}

#[test]
fn every_kind_does_what_it_says() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, key: &str, tensor: &Tensor| {
        let path = dir.path().join(name);
        save_tensor(&path, key, tensor).unwrap();
        path.to_str().unwrap().to_string()
    };
    let x = counted(&[1, 3, 2]);
    let vector = file("vector.safetensors", "vector", &Tensor::new(&[10f32, -10.0], &Device::Cpu).unwrap());
    let steer =
        json!({"kind": "steer", "points": STREAM, "vector": vector, "strength": 2.0, "positions": [1]});
    assert_eq!(edited(steer, STREAM, &x), [1.0, 2.0, 23.0, -16.0, 5.0, 6.0]);
    let scale = json!({"kind": "scale", "points": STREAM, "factor": 3.0, "neurons": [0]});
    assert_eq!(edited(scale, STREAM, &x), [3.0, 2.0, 9.0, 4.0, 15.0, 6.0]);
    let value = json!({"kind": "replace", "points": STREAM, "value": 7.0, "positions": 2});
    assert_eq!(edited(value, STREAM, &x), [1.0, 2.0, 3.0, 4.0, 7.0, 7.0]);
    let by = file("t.safetensors", "tensor", &Tensor::new(&[8f32, 9.0], &Device::Cpu).unwrap());
    let tensor = json!({"kind": "replace", "points": STREAM, "tensor": by});
    assert_eq!(edited(tensor, STREAM, &x), [8.0, 9.0, 8.0, 9.0, 8.0, 9.0]);
    let mean = json!({"kind": "mean_ablate", "points": STREAM});
    assert_eq!(edited(mean, STREAM, &x), [3.0, 4.0, 3.0, 4.0, 3.0, 4.0]);
    let stored = file("mean.safetensors", "mean", &Tensor::new(&[0f32, 1.0], &Device::Cpu).unwrap());
    let stored = json!({"kind": "mean_ablate", "points": STREAM, "mean": stored, "positions": 0});
    assert_eq!(edited(stored, STREAM, &x), [0.0, 1.0, 3.0, 4.0, 5.0, 6.0]);

    let other = (counted(&[1, 2, 2]) * -1.0).unwrap(); // one position shorter
    let clean = file("clean.safetensors", STREAM, &other);
    let patch = json!({"kind": "patch", "points": STREAM, "from": clean});
    assert_eq!(edited(patch.clone(), STREAM, &x), [-1.0, -2.0, -3.0, -4.0, 5.0, 6.0]);
    let mut moved = patch;
    moved["positions"] = json!([2, -2]);
    moved["from_positions"] = json!([0, 1]);
    assert_eq!(edited(moved, STREAM, &x), [1.0, 2.0, -3.0, -4.0, -1.0, -2.0]);

    let noise = |seed: u64| {
        let spec = json!({"kind": "noise", "points": STREAM, "std": 0.5, "seed": seed});
        let noise: Vec<f32> =
            edited(spec, STREAM, &counted(&[2, 50, 20])).iter().zip(1..).map(|(y, x)| y - x as f32).collect();
        noise
    };
    let sample = noise(1);
    let mean = sample.iter().sum::<f32>() / 2000.0;
    let variance = sample.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / 2000.0;
    assert!(mean.abs() < 0.05 && (variance.sqrt() - 0.5).abs() < 0.03, "{mean} {variance}");
    assert_eq!(sample, noise(1));
    assert_ne!(sample, noise(2));
}

#[test]
fn edges_of_attention_are_cut() {
    let x = counted(&[1, 2, 3, 3]);
    let pattern = json!({"kind": "knockout", "points": PATTERN, "edges": [[2, 0], [-2, 1]], "heads": [1]});
    let cut = edited(pattern, PATTERN, &x);
    let changed: Vec<usize> = (0..18).filter(|i| cut[*i] == 0.0).collect();
    assert_eq!(changed, [9 + 4, 9 + 6]);
    let scores = json!({"kind": "knockout", "points": SCORES, "keys": 0, "queries": [1, 2]});
    let cut = edited(scores, SCORES, &x);
    let gone: Vec<usize> = (0..18).filter(|i| cut[*i] == f32::NEG_INFINITY).collect();
    assert_eq!(gone, [3, 6, 12, 15]);
    let half = json!({"kind": "knockout", "points": SCORES, "edges": [[0, 0]], "strength": 0.5});
    assert!((edited(half, SCORES, &x)[0] - (1.0 + 0.5f32.ln())).abs() < 1e-6);
}

#[test]
fn a_query_is_never_left_without_a_key() {
    let mut mock = mock();
    let id =
        kinds().attach(mock.hooks(), &json!({"kind": "knockout", "points": SCORES, "queries": 1})).unwrap();
    mock.step();
    let error = mock.fire(SCORES, &counted(&[1, 1, 3, 3])).unwrap_err().to_string();
    assert!(error.contains(&id) && error.contains("every key of some query"), "{error}");
}

#[test]
fn gradients_follow_the_edit() -> HookResult {
    let (x, gradient) = (counted(&[1, 2, 2]), counted(&[1, 2, 2]));
    let mut zeroed = mock();
    zeroed.attach(controllers::zero_ablate(STREAM).positions([0]))?;
    assert_eq!(values(&zeroed.backward(STREAM, &x, &gradient)?), [0.0, 0.0, 3.0, 4.0]);
    let mut scaled = mock();
    scaled.attach(controllers::scale(STREAM, 3.0).neurons([1]).strength(0.5))?;
    assert_eq!(values(&scaled.backward(STREAM, &x, &gradient)?), [1.0, 4.0, 3.0, 8.0]);
    Ok(())
}

#[test]
fn what_cannot_work_is_refused_before_anything_runs() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("none.safetensors");
    let cases = [
        (json!({"kind": "zero_ablate", "points": STREAM, "heads": [0]}), "`heads` needs an axis of heads"),
        (json!({"kind": "zero_ablate", "points": STREAM, "positions": []}), "`positions` is empty"),
        (json!({"kind": "zero_ablate", "points": "blok.*"}), "no point matches"),
        (
            json!({"kind": "zero_ablate", "points": STREAM, "head": [0]}),
            "unknown option `head`; nearest: `heads`",
        ),
        (json!({"kind": "zero_ablate", "points": STREAM, "strength": "much"}), "`strength`"),
        (json!({"kind": "scale", "points": STREAM}), "option `factor` is missing"),
        (json!({"kind": "steer", "points": STREAM, "vector": empty.to_str()}), "none.safetensors"),
        (json!({"kind": "replace", "points": STREAM}), "give one of `value` and `tensor`"),
        (json!({"kind": "patch", "points": STREAM, "from": empty.to_str()}), "none.safetensors"),
        (json!({"kind": "noise", "points": STREAM, "std": -1.0}), "`std` is -1"),
        (json!({"kind": "knockout"}), "give `edges`"),
        (json!({"kind": "knockout", "points": STREAM, "keys": 0}), "has no edges of attention"),
    ];
    for (spec, part) in cases {
        let error = kinds().attach(mock().hooks(), &spec).err().map(|error| error.to_string());
        assert!(error.as_ref().is_some_and(|text| text.contains(part)), "{spec}: {error:?}");
    }
}

#[test]
fn a_head_that_is_not_there_ends_the_pass() {
    let mut mock = mock();
    mock.attach(controllers::zero_ablate(HEADS).heads([5])).unwrap();
    let error = mock.fire(HEADS, &counted(&[1, 2, 2, 3])).unwrap_err().to_string();
    assert!(error.contains("`heads` has 5") && error.contains("has 2 heads"), "{error}");
    assert!(!mock.report().degraded(), "it was asked for nonsense, it did not fail");
}
