//! Attribution patching puts the same places first as exact patching, on a model that has learned something.

use tenterhook::hooks::random::Stream;
use tenterhook::lens::LanguageModel;
use tenterhook::lens::patching::{Contrast, LogitMetric, PatchingGrid, Sweep};

use crate::lab::Lab;

/// Sequences that repeat every 8 tokens; the model has to find what came 8 tokens ago. Dropout makes several heads learn it.
const REPEATS: &str = r#"
[run]
name = "repeats"

[model]
kind = "gpt"
vocab = 12
context = 24
d_model = 32
n_heads = 4
n_layers = 3
d_mlp = 64
dropout = 0.2

[[data.train]]
kind = "induction"
examples = 20000
block = 16
batch = 32

[data.val]
kind = "induction"
examples = 64
block = 16
batch = 64

[train]
steps = 250
grad_clip = 1.0
validate_every = 250
checkpoint_every = 250

[[optimizer]]
kind = "adamw"
lr = 5e-3

[schedule]
kind = "cosine"
warmup = 20
"#;

/// A repeating sequence, cut off where the token that is changed in the corrupted one comes next.
fn contrast(number: u64) -> Contrast {
    let random = Stream::new(1).named("prompts").at(number);
    let once: Vec<u32> = (0..8).map(|i| random.below(i, 12) as u32).collect();
    let clean: Vec<u32> = once.iter().chain(&once[..4]).copied().collect();
    let (answer, wrong) = (once[4], (once[4] + 1 + (number % 10) as u32) % 12);
    let mut corrupted = clean.clone();
    corrupted[4] = wrong;
    Contrast::new(clean, corrupted, LogitMetric::logit_diff(answer, wrong))
}

/// The mean over several prompts, on the scale from 0 to 1.
fn mean(grids: &[PatchingGrid]) -> PatchingGrid {
    let mut mean = grids[0].clone();
    for (row, values) in mean.normalised.iter_mut().flatten().enumerate() {
        for (column, value) in values.iter_mut().enumerate() {
            let of = |grid: &PatchingGrid| grid.normalised.as_ref().unwrap()[row][column];
            *value = grids.iter().map(of).sum::<f32>() / grids.len() as f32;
        }
    }
    mean
}

#[test]
fn attribution_ranks_places_as_exact_patching_does_on_a_trained_model() {
    let lab = Lab::with(REPEATS);
    lab.ok(&["train", "run.toml"]);
    let validated =
        lab.metrics("repeats").into_iter().rev().find(|row| row.get("val/accuracy").is_some()).unwrap();
    assert!(validated["val/accuracy"].as_f64().unwrap() > 0.95, "it has learned nothing: {validated}");
    let lm = LanguageModel::from_pretrained(lab.checkpoint("repeats").to_str().unwrap()).unwrap();
    for sweep in ["resid_pre", "resid_mid", "attn_out", "mlp_out", "z"].map(Sweep::of) {
        let (mut exact, mut estimate) = (Vec::new(), Vec::new());
        for contrast in (0..16).map(contrast) {
            let (grid, _) = lm.activation_patching(&contrast, &sweep, |_, _| ()).unwrap();
            assert!(
                grid.clean > 3.0 && grid.corrupted < -3.0,
                "the model knows both answers: {} {}",
                grid.clean,
                grid.corrupted
            );
            exact.push(grid);
            estimate.push(lm.attribution_patching(&contrast, &sweep).unwrap().0);
        }
        let (exact, estimate) = (mean(&exact), mean(&estimate));
        let differ = exact.normalised.iter().flatten().flatten().filter(|value| value.abs() > 0.01).count();
        let least = if sweep.name == "z" { 3 } else { 1 };
        assert!(differ >= least, "{}: {:?}", sweep.name, exact.normalised);
        let agreement = exact.rank_agreement(&estimate).unwrap();
        assert!(agreement >= 0.9, "{}: {agreement}", sweep.name);
    }
}
