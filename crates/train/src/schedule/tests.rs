//! Factors by hand, by torch, and by property.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn factors(config: serde_json::Value, total: u64, steps: &[u64]) -> Vec<f64> {
    let schedule = Schedule::new(&serde_json::from_value(config).unwrap(), total).unwrap();
    steps.iter().map(|step| schedule.factor(*step)).collect()
}

fn check(config: serde_json::Value, total: u64, expected: &[(u64, f64)]) {
    let steps: Vec<u64> = expected.iter().map(|(step, _)| *step).collect();
    for (found, (step, factor)) in factors(config.clone(), total, &steps).iter().zip(expected) {
        assert!((found - factor).abs() < 1e-12, "{config} at {step}: {found}, not {factor}");
    }
}

#[test]
fn by_hand() {
    check(json!({}), 10, &[(0, 1.0), (9, 1.0), (1000, 1.0)]);
    check(json!({"kind": "constant", "warmup": 4}), 2, &[(0, 0.25), (3, 1.0), (4, 1.0)]);
    check(
        json!({"kind": "linear", "warmup": 2, "min_lr_ratio": 0.2}),
        10,
        &[(0, 0.5), (1, 1.0), (2, 1.0), (4, 0.8), (6, 0.6), (9, 0.3), (10, 0.2), (u64::MAX, 0.2)],
    );
    let half = 0.5_f64.sqrt();
    check(
        json!({"kind": "cosine", "warmup": 4, "steps": 8, "min_lr_ratio": 0.1}),
        99,
        &[
            (3, 1.0),
            (4, 1.0),
            (5, 0.55 + 0.45 * half),
            (6, 0.55),
            (7, 0.55 - 0.45 * half),
            (8, 0.1),
            (99, 0.1),
        ],
    );
    check(
        json!({"kind": "step", "warmup": 2, "step_size": 3, "gamma": 0.5}),
        10,
        &[(0, 0.5), (1, 1.0), (4, 1.0), (5, 0.5), (7, 0.5), (8, 0.25), (11, 0.125)],
    );
    let wsd =
        |shape| json!({"kind": "wsd", "warmup": 2, "decay": 4, "min_lr_ratio": 0.2, "decay_shape": shape});
    check(
        wsd("linear"),
        10,
        &[(0, 0.5), (2, 1.0), (6, 1.0), (7, 0.8), (8, 0.6), (9, 0.4), (10, 0.2), (11, 0.2)],
    );
    check(wsd("cosine"), 10, &[(6, 1.0), (7, 0.6 + 0.4 * half), (8, 0.6), (10, 0.2)]);
    check(wsd("sqrt"), 10, &[(6, 1.0), (7, 0.6), (8, 0.2 + 0.8 * (1.0 - half)), (10, 0.2)]);
    check(json!({"kind": "warmup_stable_decay", "decay": 1}), 3, &[(0, 1.0), (2, 1.0), (3, 0.0)]);
    // A warmup as long as the run: nothing is left to fall.
    check(json!({"kind": "cosine", "warmup": 3}), 3, &[(0, 1.0 / 3.0), (2, 1.0), (3, 0.0)]);
}

/// The learning rates of torch 2.15's schedulers around an SGD of rate 1.
#[test]
fn as_torch() {
    let steps: Vec<u64> = (0..12).collect();
    let agree = |config, total, torch: &[f64]| {
        for (ours, theirs) in factors(config, total, &steps[..torch.len()]).iter().zip(torch) {
            assert!((ours - theirs).abs() < 1e-12, "{ours} {theirs}");
        }
    };
    // CosineAnnealingLR(10, eta_min=0.1)
    let cosine = [
        1.0,
        0.9779754323328191,
        0.9140576474687263,
        0.8145033635316129,
        0.6890576474687263,
        0.55,
        0.41094235253127376,
        0.2854966364683872,
        0.18594235253127372,
        0.12202456766718092,
    ];
    agree(json!({"kind": "cosine", "min_lr_ratio": 0.1}), 10, &cosine);
    // LinearLR(start_factor=1, end_factor=0.2, total_iters=8)
    let linear = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.2, 0.2, 0.2];
    agree(json!({"kind": "linear", "min_lr_ratio": 0.2}), 8, &linear);
    // StepLR(3, gamma=0.3)
    let step = [1.0, 1.0, 1.0, 0.3, 0.3, 0.3, 0.09, 0.09, 0.09, 0.027, 0.027, 0.027];
    agree(json!({"kind": "step", "step_size": 3, "gamma": 0.3}), 12, &step);
    // SequentialLR([LinearLR(start_factor=0.25, total_iters=3), CosineAnnealingLR(8, eta_min=0.1)], milestones=[4])
    let warm = [
        0.25,
        0.5,
        0.75,
        1.0,
        1.0,
        0.9657457896300791,
        0.8681980515339464,
        0.7222075445642905,
        0.55,
        0.3777924554357097,
        0.2318019484660537,
        0.134254210369921,
    ];
    agree(json!({"kind": "cosine", "warmup": 4, "min_lr_ratio": 0.1}), 12, &warm);
}

#[test]
fn problems_name_the_setting() {
    let cases = [
        (json!({"kind": "cosine", "warmup": 10}), vec![]),
        (json!({"kind": "cosine", "min_lr_ratio": 1.5}), vec!["min_lr_ratio"]),
        (json!({"kind": "constant", "min_lr_ratio": 0.5}), vec!["min_lr_ratio"]),
        (json!({"kind": "linear", "steps": 0}), vec!["steps"]),
        (json!({"kind": "linear", "warmup": 11}), vec!["warmup"]),
        (json!({"kind": "linear", "warmup": 5, "steps": 4}), vec!["warmup"]),
        (json!({"kind": "step"}), vec!["step_size"]),
        (json!({"kind": "step", "step_size": 0}), vec!["step_size"]),
        (json!({"kind": "step", "step_size": 1, "gamma": 0.0}), vec!["gamma"]),
        (json!({"kind": "cosine", "step_size": 1, "gamma": 0.5}), vec!["step_size", "gamma"]),
        (json!({"kind": "wsd"}), vec!["decay"]),
        (json!({"kind": "wsd", "decay": 0}), vec!["decay"]),
        (json!({"kind": "wsd", "decay": 6, "warmup": 5}), vec!["decay"]),
        (json!({"kind": "wsd", "decay": u64::MAX, "warmup": 5}), vec!["decay"]),
        (json!({"kind": "linear", "decay": 2, "decay_shape": "sqrt"}), vec!["decay", "decay_shape"]),
    ];
    for (config, keys) in cases {
        let found = match Schedule::new(&serde_json::from_value(config.clone()).unwrap(), 10) {
            Ok(_) => vec![],
            Err(ScheduleError(problems)) => problems.into_iter().map(|(key, _)| key).collect(),
        };
        assert_eq!(found, keys, "{config}");
    }
    let error = Schedule::new(&ScheduleConfig { gamma: f64::NAN, ..Default::default() }, 1).unwrap_err();
    assert!(error.to_string().starts_with("schedule: `gamma` is NaN"), "{error}");
}

proptest! {
    #[test]
    fn rises_then_never_rises_again(
        kind in prop::sample::select(vec!["constant", "linear", "cosine", "wsd"]),
        total in 1u64..200, warmup in 0u64..200, decay in 1u64..200, ratio in 0.0..1.0,
    ) {
        let warmup = warmup.min(total - 1);
        let falls = kind != "constant";
        let config = ScheduleConfig {
            kind: serde_json::from_value(json!(kind)).unwrap(),
            warmup,
            min_lr_ratio: if falls { ratio } else { 0.0 },
            decay: (kind == "wsd").then_some(decay.min(total - warmup)),
            ..Default::default()
        };
        let schedule = Schedule::new(&config, total).unwrap();
        let factor = |step| schedule.factor(step);
        prop_assert!((1..warmup).all(|step| factor(step) > factor(step - 1)));
        prop_assert!((warmup + 1..total + 9).all(|step| factor(step) <= factor(step - 1)));
        prop_assert_eq!(factor(warmup), 1.0);
        let last = if falls { ratio } else { 1.0 };
        prop_assert!((factor(total) - last).abs() < 1e-15 && factor(total) == factor(u64::MAX));
    }
}
