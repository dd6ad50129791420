//! The numbers that torch 2.15 gives for the same small problem, and the same step on other devices' path.
//!
//! Made in float64 with `torch.nn.Parameter`, five steps of the optimizer named in each case, gradients set by
//! hand to `((i * 7 + step * 5) % 11 - 5) / 4` and weights to `(i * 3 % 7 - 3) / 2`, and where it says so with
//! `clip_grad_norm_(0.5)` or `clip_grad_value_(0.3)` before each step.

use serde_json::json;

use super::*;

fn weight(i: usize) -> f64 {
    ((i * 3 % 7) as f64 - 3.0) / 2.0
}

fn gradient(i: usize, step: usize) -> f64 {
    (((i * 7 + step * 5) % 11) as f64 - 5.0) / 4.0
}

fn train(config: &Value, clip: Clip, dtype: DType, in_place: bool, len: usize, steps: usize) -> Vec<f64> {
    let params = params(&[("w", &[len], (0..len).map(weight).collect())], dtype);
    let mut optimizers = build(std::slice::from_ref(config), &params);
    optimizers[0].in_place = in_place;
    for step in 0..steps {
        let grads = grads(&params, |_, i| gradient(i, step));
        let scale = clip.step_scale(grad_norms(&grads).unwrap().total);
        optimizers[0].step(&params, &grads, scale, &never).unwrap();
    }
    values(params.get("w").unwrap().value())
}

fn adamw() -> Value {
    json!({"kind": "adamw", "lr": 0.1, "betas": [0.9, 0.95], "weight_decay": 0.1, "decay_norms_and_biases": true})
}

fn sgd(momentum: f64, nesterov: bool) -> Value {
    json!({"kind": "sgd", "lr": 0.1, "momentum": momentum, "nesterov": nesterov, "weight_decay": 0.05,
        "decay_norms_and_biases": true})
}

fn low_betas() -> Value {
    json!({"kind": "adamw", "lr": 0.1, "betas": [0.4, 0.5], "eps": 1e-3, "weight_decay": 0.0})
}

#[rustfmt::skip]
fn cases() -> Vec<(Value, Clip, [f64; 6])> {
    vec![
        // AdamW(lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
        (adamw(), Clip::None, [-1.2977818187046029, 0.04453421786380909, 1.5523231632613568, -0.781526561547024, 0.9404707059172759, -0.6968355147977185]),
        (adamw(), Clip::Norm(0.5), [-1.2976911256042012, 0.05557967709655953, 1.5356590850548206, -0.7748424714339456, 0.9462980775250283, -0.7096441919720626]),
        // AdamW(lr=0.1, betas=(0.4, 0.5), eps=1e-3, weight_decay=0)
        (low_betas(), Clip::None, [-1.5013801055703935, 0.09670431291012882, 1.624233737934434, -0.7565879548610931, 0.9449660540376551, -0.7638011481345808]),
        // SGD(lr=0.1, weight_decay=0.05)
        (sgd(0.0, false), Clip::None, [-1.5392325671046874, 0.14912438746875, 1.5625018640890627, -0.7097686922640626, 0.9745043749812499, -0.7518637843250001]),
        // SGD(lr=0.1, momentum=0.9, weight_decay=0.05)
        (sgd(0.9, false), Clip::None, [-1.2903686654796875, 0.30851395996875, 1.5555892712140622, -1.1332400458890626, 1.04718316848125, -0.457296587825]),
        (sgd(0.9, false), Clip::Norm(0.5), [-1.3754074824252704, 0.087627258412978, 1.431838654997687, -0.6258183108632283, 0.9700981611287506, -0.8238166829019112]),
        // SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.05)
        (sgd(0.9, true), Clip::None, [-1.357917438919787, 0.42535104522221917, 1.6120988687885824, -1.2701708114328445, 1.0148639280925815, -0.26952775707948773]),
        (sgd(0.9, true), Clip::Value(0.3), [-1.3321603824726955, -0.01961705572129356, 1.4698807882699079, -0.5722994245049358, 0.8911909707612689, -0.8105350036861158]),
    ]
}

#[test]
fn as_torch_in_both_types_and_on_both_paths() {
    for (config, clip, torch) in cases() {
        for (dtype, tolerance) in [(DType::F64, 1e-13), (DType::F32, 1e-6)] {
            for in_place in [true, false] {
                let ours = train(&config, clip, dtype, in_place, 6, 5);
                for (ours, theirs) in ours.iter().zip(torch) {
                    let off = (ours - theirs).abs();
                    assert!(
                        off < tolerance,
                        "{config} {clip:?} {dtype:?} in place: {in_place}: {ours} {theirs}"
                    );
                }
            }
        }
    }
}

/// More than one chunk: every element must be reached, with its own state.
#[test]
fn long_parameters_move_as_short_ones() {
    let len = 2 * kernel::CHUNK + 77;
    for config in [adamw(), sgd(0.9, true), sgd(0.0, false)] {
        let long = train(&config, Clip::Value(0.7), DType::F32, true, len, 3);
        // Weights and gradients repeat after 77 elements.
        let short = train(&config, Clip::Value(0.7), DType::F32, true, 77, 3);
        assert!((0..len).all(|i| long[i].to_bits() == short[i % 77].to_bits()), "{config}");
    }
}

#[test]
fn the_same_bits_with_any_number_of_threads() {
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let len = 3 * kernel::CHUNK + 5;
        pool.install(|| train(&adamw(), Clip::Norm(1.0), DType::F32, true, len, 2))
    };
    let one: Vec<u64> = run(1).into_iter().map(f64::to_bits).collect();
    assert!(run(4).into_iter().map(f64::to_bits).eq(one));
}

#[test]
fn gradients_that_are_views() {
    let params = params(&[("w", &[2, 3], vec![0.0; 6])], DType::F32);
    let mut optimizers = build(&[json!({"kind": "sgd", "lr": 1.0})], &params);
    let transposed = Tensor::new(&[[1f32, 4.0], [2.0, 5.0], [3.0, 6.0]], &Device::Cpu).unwrap().t().unwrap();
    let grads = [("w".to_string(), transposed)].into_iter().collect();
    optimizers[0].step(&params, &grads, StepScale::default(), &never).unwrap();
    let weight = params.get("w").unwrap().value();
    assert_eq!(values(weight), [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]);

    // The weight itself as its gradient: half of it goes.
    let grads = [("w".to_string(), weight.clone())].into_iter().collect();
    optimizers[0].step(&params, &grads, StepScale { scale: 0.5, clamp: None }, &never).unwrap();
    assert_eq!(values(weight), [-0.5, -1.0, -1.5, -2.0, -2.5, -3.0]);
}

/// As in torch, where a parameter without a gradient is passed over.
#[test]
fn a_frozen_parameter_stands_still_and_its_count_too() {
    let start = || params(&[("a", &[2], vec![1.0, 2.0]), ("b", &[2], vec![1.0, 2.0])], DType::F64);
    let (params, fresh) = (start(), start());
    let mut frozen_twice = build(&[adamw()], &params);
    for step in 0..3 {
        let grads = grads(&params, |_, i| gradient(i, step));
        let frozen = |name: &str| name == "b" && step < 2;
        let stats = frozen_twice[0].step(&params, &grads, StepScale::default(), &frozen).unwrap();
        assert_eq!((stats.updated, stats.skipped), if step < 2 { (1, 1) } else { (2, 0) });
    }
    let mut once = build(&[adamw()], &fresh);
    let grads = grads(&fresh, |_, i| gradient(i, 2));
    once[0].step(&fresh, &grads, StepScale::default(), &never).unwrap();
    assert_eq!(values(params.get("b").unwrap().value()), values(fresh.get("b").unwrap().value()));
    let steps = |name| frozen_twice[0].inspect(name).unwrap().unwrap().steps;
    assert_eq!((steps("a"), steps("b")), (3, 1));
}

#[test]
fn rates_by_group_and_by_schedule() {
    let params = params(&[("bias", &[1], vec![1.0]), ("weight", &[1, 1], vec![1.0])], DType::F64);
    let mut optimizer = build(&[json!({"kind": "sgd", "lr": 0.5})], &params).remove(0);
    let rates =
        |optimizer: &Optimizer| -> Vec<f64> { optimizer.groups().iter().map(|group| group.lr).collect() };
    optimizer.set_lr(Some(1), 0.25).unwrap();
    assert_eq!(rates(&optimizer), [0.5, 0.25]);
    optimizer.step(&params, &grads(&params, |_, _| 1.0), StepScale::default(), &never).unwrap();
    assert_eq!(values(params.get("weight").unwrap().value()), [0.5]);
    assert_eq!(values(params.get("bias").unwrap().value()), [0.75]);
    optimizer.scale_lr(0.1);
    assert_eq!(rates(&optimizer), [0.05, 0.05]);
    optimizer.set_lr(None, 2.0).unwrap();
    assert_eq!(rates(&optimizer), [2.0, 2.0]);
    let error = optimizer.set_lr(Some(2), 1.0).unwrap_err().to_string();
    assert_eq!(error, "optimizer `sgd.0` has 2 groups, there is no group 2");
}
