//! Patching against TransformerLens: `scripts/reference_patching.py` makes the numbers.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use tenterhook_lens::patching::{
    By, Contrast, Direction, LogitMetric, PatchingGrid, PathOptions, Receiver, Sender, Sweep,
};

use crate::support::*;

const TOLERANCE: f32 = 1e-4;

fn reference(name: &str) -> HashMap<String, Tensor> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/patching/{name}.safetensors"));
    candle_core::safetensors::load(path, &Device::Cpu).unwrap()
}

fn contrast(reference: &HashMap<String, Tensor>) -> Contrast {
    let ids = |key: &str| reference[key].to_dtype(DType::U32).unwrap().to_vec1::<u32>().unwrap();
    let tokens = ids("tokens");
    Contrast::new(ids("clean_ids"), ids("corrupted_ids"), LogitMetric::logit_diff(tokens[0], tokens[1]))
}

fn tensor(grid: &PatchingGrid) -> Tensor {
    Tensor::new(grid.values.clone(), &Device::Cpu).unwrap()
}

#[test]
fn sweeps_are_those_of_transformer_lens() {
    for name in FAMILIES {
        let (lm, reference) = (lm(name), reference(name));
        let contrast = contrast(&reference);
        let mut seen = 0;
        for sweep in ["resid_pre", "resid_mid", "attn_out", "mlp_out", "z", "q", "k", "v", "pattern"] {
            let Some(want) = reference.get(&format!("exact.{sweep}")) else { continue };
            let (grid, _) = lm.activation_patching(&contrast, &Sweep::of(sweep), |_, _| ()).unwrap();
            assert_close(&format!("{name} {sweep}"), &tensor(&grid), want, TOLERANCE);
            for (got, key) in [(grid.clean, "clean"), (grid.corrupted, "corrupted")] {
                assert!((got - reference[key].to_scalar::<f32>().unwrap()).abs() < TOLERANCE, "{name} {key}");
            }
            seen += 1;
        }
        assert!(seen >= 8);
        // Theirs is by layer, position and head.
        let both = Sweep::of("z").by(By::HeadPosition);
        let (grid, _) = lm.activation_patching(&contrast, &both, |_, _| ()).unwrap();
        let want = reference["exact.z_by_pos"].transpose(1, 2).unwrap().flatten(0, 1).unwrap();
        assert_close(
            &format!("{name} z by position"),
            &tensor(&grid),
            &want.contiguous().unwrap(),
            TOLERANCE,
        );
        let noise = contrast.direction(Direction::Noise);
        let (grid, _) = lm.activation_patching(&noise, &Sweep::of("resid_pre"), |_, _| ()).unwrap();
        assert_close(&format!("{name} noise"), &tensor(&grid), &reference["noise.resid_pre"], TOLERANCE);
    }
}

#[test]
fn attributions_are_those_of_transformer_lens() {
    for name in FAMILIES {
        let (lm, reference) = (lm(name), reference(name));
        for sweep in ["resid_pre", "attn_out", "mlp_out", "z"] {
            let (grid, _) = lm.attribution_patching(&contrast(&reference), &Sweep::of(sweep)).unwrap();
            assert_eq!(grid.block_evaluations, 4, "two forwards through two blocks");
            assert_close(
                &format!("{name} {sweep}"),
                &tensor(&grid),
                &reference[&format!("attribution.{sweep}")],
                TOLERANCE,
            );
        }
    }
}

#[test]
fn paths_are_those_of_transformer_lens() {
    for name in FAMILIES {
        let (lm, reference) = (lm(name), reference(name));
        let contrast = contrast(&reference);
        let base = reference["corrupted"].to_scalar::<f32>().unwrap();
        let mut effects = 0;
        for (case, senders, receivers) in [
            ("0.1.to.1.0.q", vec!["0.1"], vec!["1.0.q"]),
            ("0.0.to.1.1.k", vec!["0.0"], vec!["1.1.k"]),
            ("0.2.to.1.0.v", vec!["0.2"], vec!["1.0.v"]),
            ("0.mlp.to.1.mlp", vec!["0.mlp"], vec!["1.mlp"]),
            ("0.1.to.final", vec!["0.1"], vec!["final"]),
            ("0.0.0.1.to.1.2.q.1.1.v", vec!["0.0", "0.1"], vec!["1.2.q", "1.1.v"]),
        ] {
            let senders: Vec<Sender> = senders.iter().map(|text| text.parse().unwrap()).collect();
            let receivers: Vec<Receiver> = receivers.iter().map(|text| text.parse().unwrap()).collect();
            for (freeze_mlps, end) in [(false, "free"), (true, "frozen")] {
                let options = PathOptions { freeze_mlps };
                let (path, _) = lm.path_patching(&contrast, &senders, &receivers, options).unwrap();
                let want = reference[&format!("path.{case}.{end}")].to_scalar::<f32>().unwrap();
                assert!(
                    (path.value - want).abs() < TOLERANCE,
                    "{name} {case} {end}: {} instead of {want}",
                    path.value
                );
                assert!(path.block_evaluations <= path.naive_block_evaluations);
                effects += usize::from((want - base).abs() > 10.0 * TOLERANCE);
            }
        }
        assert!(effects >= 6, "{name}: only {effects} paths do anything");
        // A sweep has the numbers of its single paths, and nothing where no path is.
        let receivers: Vec<Receiver> = vec!["1.0.q".parse().unwrap(), "1.1.v".parse().unwrap()];
        let (grid, _) =
            lm.path_patching_sweep(&contrast, &receivers, PathOptions::default(), |_, _| ()).unwrap();
        let sender = [Sender::Head { layer: 0, head: 1 }];
        let (one, _) = lm.path_patching(&contrast, &sender, &receivers, PathOptions::default()).unwrap();
        assert_eq!(grid.values[0][1].to_bits(), one.value.to_bits());
        assert!(grid.values[1].iter().all(|value| *value == grid.corrupted));
        assert!(grid.block_evaluations < grid.naive_block_evaluations);
    }
}

#[test]
fn paths_that_lead_nowhere_are_refused() {
    let lm = lm("gpt2");
    let contrast = Contrast::new(vec![1, 2], vec![1, 3], LogitMetric::logit_diff(7, 23));
    let told = |senders: &[&str], receivers: &[&str]| {
        let senders: Vec<Sender> = senders.iter().map(|text| text.parse().unwrap()).collect();
        let receivers: Vec<Receiver> = receivers.iter().map(|text| text.parse().unwrap()).collect();
        lm.path_patching(&contrast, &senders, &receivers, PathOptions::default()).unwrap_err().to_string()
    };
    assert!(told(&["1.0"], &["1.1.q"]).contains("no path leads to `1.1.q`"));
    assert!(told(&["0.0", "1.0"], &["1.1.q"]).contains("no path leads from `1.0`"));
    assert!(told(&["2.0"], &["final"]).contains("there is no block 2, the model has 2"));
    assert!(told(&["0.4"], &["final"]).contains("there is no head 4, a block has 4 heads"));
    assert!(told(&[], &["final"]).contains("needs a sender"));
}

/// The embedding to everybody who reads it is the whole prompt.
#[test]
fn all_paths_from_the_tokens_make_the_other_run() {
    for name in FAMILIES {
        let lm = lm(name);
        let contrast = Contrast::new(ids(5, 1), ids(5, 2), LogitMetric::logit_diff(7, 23));
        let senders = ["embed", "0.attn", "0.mlp", "1.attn", "1.mlp"].map(|text| text.parse().unwrap());
        let (path, _) =
            lm.path_patching(&contrast, &senders, &[Receiver::Final], PathOptions::default()).unwrap();
        assert!(
            (path.value - path.clean).abs() < 1e-5 && (path.normalised.unwrap() - 1.0).abs() < 1e-4,
            "{name}"
        );
        assert!((path.clean - path.corrupted).abs() > 1e-3);
    }
}
