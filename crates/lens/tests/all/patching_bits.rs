//! Patching sweeps have the bits of a whole run per cell, and cost far less.

use candle_core::{DType, Device, Tensor};
use tenterhook_hooks::{At, BoxError, hook_fn};
use tenterhook_lens::LanguageModel;
use tenterhook_lens::patching::{By, Contrast, Direction, LogitMetric, PatchingGrid, Sweep};
use tenterhook_models::Transformer;
use tenterhook_models::config::TransformerConfig;

use crate::support::*;

fn contrast(length: usize) -> Contrast {
    let clean = ids(length, 3);
    let mut corrupted = clean.clone();
    corrupted[0] += 1;
    corrupted[2] += 2;
    Contrast::new(clean, corrupted, LogitMetric::logit_diff(7, 23))
}

fn new_model(config: TransformerConfig) -> LanguageModel {
    LanguageModel::new(Transformer::init(config, 11, DType::F32, &Device::Cpu).unwrap()).unwrap()
}

/// What is patched of a tensor, written anew: ranges of the axes by name.
fn put(
    at: &At,
    x: &Tensor,
    source: &Tensor,
    position: Option<usize>,
    head: Option<usize>,
) -> Result<Tensor, BoxError> {
    let axes: Vec<&str> = at.point().axes.split_whitespace().collect();
    let range = |(axis, size): (&&str, &usize)| match *axis {
        "pos" | "query_pos" => position.map_or(0..*size, |one| one..one + 1),
        "head" | "kv_head" => head.map_or(0..*size, |one| one..one + 1),
        _ => 0..*size,
    };
    let ranges: Vec<_> = axes.iter().zip(x.dims()).map(range).collect();
    let mut part = source.clone();
    for (axis, range) in ranges.iter().enumerate() {
        part = part.narrow(axis, range.start, range.len())?;
    }
    Ok(x.contiguous()?.slice_assign(&ranges, &part.contiguous()?)?)
}

/// One whole run with one hook.
fn naive_cell(
    lm: &LanguageModel,
    contrast: &Contrast,
    point: &str,
    position: Option<usize>,
    head: Option<usize>,
) -> f32 {
    let (source, base) = match contrast.direction {
        Direction::Denoise => (&contrast.clean, &contrast.corrupted),
        Direction::Noise => (&contrast.corrupted, &contrast.clean),
    };
    let options = tenterhook_lens::CacheOptions::points(point);
    let (_, cache, _) = lm.run_with_cache(&lm.batch_of(source).unwrap(), &options).unwrap();
    let source = cache.get(point).unwrap().clone();
    let patch = hook_fn::edit(point, move |at, x, _| Ok(Some(put(at, x, &source, position, head)?)));
    let (logits, report) = lm.run_with_hooks(&lm.batch_of(base).unwrap(), vec![Box::new(patch)]).unwrap();
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    contrast.metric.of(&logits.get(0).unwrap()).unwrap().to_scalar().unwrap()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Every cell of a grid against its own whole run.
fn check(
    what: &str,
    lm: &LanguageModel,
    contrast: &Contrast,
    sweep: &Sweep,
    points: &[String],
) -> PatchingGrid {
    let (grid, report) = lm.activation_patching(contrast, sweep, |_, _| ()).unwrap();
    assert!(!report.degraded());
    let per_point = grid.rows.len() / points.len();
    for (row, values) in grid.values.iter().enumerate() {
        let point = &points[row / per_point];
        let cell = |column: usize| {
            let (position, head) = match (sweep.by, grid.column_axis.as_str()) {
                (Some(By::HeadPosition), _) => (Some(column), Some(row % per_point)),
                (Some(By::Head { position }), _) => (position.map(|one| one as usize), Some(column)),
                (_, "head") => (None, Some(column)),
                (_, "position") => (Some(column), None),
                _ => (None, None),
            };
            naive_cell(lm, contrast, point, position, head)
        };
        let naive: Vec<f32> = (0..values.len()).map(cell).collect();
        assert_eq!(
            bits(values),
            bits(&naive),
            "{what} {}: row {}: {values:?} {naive:?}",
            sweep.name,
            grid.rows[row]
        );
    }
    grid
}

fn of_every_block(layers: usize, end: &str) -> Vec<String> {
    (0..layers).map(|block| format!("blocks.{block}.{end}")).collect()
}

#[test]
fn every_sort_of_sweep_is_bit_equal_on_every_family() {
    for name in ["gpt2", "llama", "neox", "gemma2"] {
        let lm = lm(name);
        let layers = lm.model().config().layers;
        let contrast = contrast(6);
        let has_mid = lm.model().points().find("blocks.0.hook_resid_mid").is_some();
        for (sweep, end) in [
            ("resid_pre", "hook_resid_pre"),
            ("resid_mid", "hook_resid_mid"),
            ("resid_post", "hook_resid_post"),
            ("attn_out", "hook_attn_out"),
            ("mlp_out", "hook_mlp_out"),
            ("z", "attn.hook_z"),
            ("q", "attn.hook_q"),
            ("k", "attn.hook_k"),
            ("v", "attn.hook_v"),
            ("pattern", "attn.hook_pattern"),
        ] {
            if sweep == "resid_mid" && !has_mid {
                continue;
            }
            check(name, &lm, &contrast, &Sweep::of(sweep), &of_every_block(layers, end));
        }
        let z = of_every_block(layers, "attn.hook_z");
        check(name, &lm, &contrast, &Sweep::of("z").by(By::HeadPosition), &z);
        check(name, &lm, &contrast, &Sweep::of("z").by(By::Head { position: Some(5) }), &z);
        check(name, &lm, &contrast, &Sweep::of("z").by(By::Layer), &z);
        check(
            name,
            &lm,
            &contrast,
            &Sweep::of("pattern").by(By::HeadPosition),
            &of_every_block(layers, "attn.hook_pattern"),
        );
        check(name, &lm, &contrast, &Sweep::of("result"), &of_every_block(layers, "attn.hook_result"));
        let noise = contrast.direction(Direction::Noise);
        check(name, &lm, &noise, &Sweep::of("resid_pre"), &of_every_block(layers, "hook_resid_pre"));
    }
}

#[test]
fn points_outside_the_blocks_are_swept_too() {
    let (lm, contrast) = (lm("gpt2"), contrast(6));
    for point in ["hook_embed", "hook_pos_embed", "ln_final.hook_normalized", "ln_final.hook_scale"] {
        let grid = check("gpt2", &lm, &contrast, &Sweep::of(point), &[point.to_string()]);
        assert_eq!((grid.rows[0].as_str(), grid.columns.len()), (point, 6));
    }
    let metrics =
        [LogitMetric::prob(4), LogitMetric::log_prob(4).at(3), LogitMetric::own("sum", |x| x.sum_all())];
    for metric in metrics {
        let contrast = Contrast { metric, ..contrast.clone() };
        check("gpt2", &lm, &contrast, &Sweep::of("attn_out"), &of_every_block(2, "hook_attn_out"));
    }
}

/// A tiny product may be summed in another order than a large one, so sequences go together only where that changes nothing.
#[test]
fn sequences_go_together_only_where_no_bit_changes() {
    for (width, heads) in [(8, 2), (64, 4), (96, 3)] {
        for config in [
            TransformerConfig::gpt2(61, 16, width, 2, heads),
            TransformerConfig::llama(61, 16, width, 2, heads),
            TransformerConfig::neox(61, 16, width, 2, heads),
        ] {
            let (lm, family) = (new_model(config), width.to_string());
            for (sweep, end) in
                [("resid_pre", "hook_resid_pre"), ("resid_post", "hook_resid_post"), ("z", "attn.hook_z")]
            {
                for batch_size in [1, 4, 64] {
                    let sweep = Sweep { batch_size, ..Sweep::of(sweep).by(By::Position) };
                    let grid = check(&family, &lm, &contrast(11), &sweep, &of_every_block(2, end));
                    assert!(grid.largest_batch <= batch_size);
                    // In a model of any size worth the name they do go together.
                    assert!(width < 96 || batch_size == 1 || grid.largest_batch > 1, "{width} {batch_size}");
                }
            }
        }
    }
}

#[test]
fn a_sweep_is_bit_equal_to_the_naive_one_and_costs_at_most_six_tenths_of_its_blocks() {
    let (layers, length) = (8, 10);
    for config in [
        TransformerConfig::gpt2(61, 16, 32, layers, 4),
        TransformerConfig::llama(61, 16, 32, layers, 4),
        TransformerConfig::neox(61, 16, 32, layers, 4),
    ] {
        let lm = new_model(config);
        for (sweep, end) in [
            ("resid_pre", "hook_resid_pre"),
            ("resid_post", "hook_resid_post"),
            ("attn_out", "hook_attn_out"),
            ("mlp_out", "hook_mlp_out"),
        ] {
            // The first token differs, so that no cell is free.
            let grid = check("cost", &lm, &contrast(length), &Sweep::of(sweep), &of_every_block(layers, end));
            assert_eq!(grid.naive_block_evaluations, (layers * (layers * length + 2)) as u64);
            let share = grid.block_evaluations as f64 / grid.naive_block_evaluations as f64;
            assert!(share <= 0.6, "{sweep}: {share}");
            assert!(
                grid.block_evaluations > grid.naive_block_evaluations / 4,
                "the count leaves something out"
            );
        }
    }
}

#[test]
fn what_is_the_same_in_both_runs_is_not_run_at_all() {
    let lm = lm("llama");
    let clean = ids(8, 3);
    let mut corrupted = clean.clone();
    corrupted[6] += 1;
    let contrast = Contrast::new(clean, corrupted, LogitMetric::logit_diff(7, 23));
    let sweep = Sweep { batch_size: 1, ..Sweep::of("resid_pre") };
    let grid = check("same", &lm, &contrast, &sweep, &of_every_block(2, "hook_resid_pre"));
    // Two runs of both prompts; positions 6 and 7, but at the first block position 7 is still the same.
    assert_eq!(grid.block_evaluations, 2 * 2 + 2 + 2);
    assert!(grid.values.iter().all(|row| row[..6].iter().all(|value| *value == grid.corrupted)));
    assert_eq!(grid.values[0][6], grid.clean);
    let normalised = grid.normalised.unwrap();
    assert_eq!((normalised[0][5], normalised[0][6]), (0.0, 1.0));
}

#[test]
fn hooks_of_the_user_take_part_in_every_run() {
    let lm = lm("gpt2").branch();
    let half = hook_fn::edit("blocks.0.hook_attn_out", |_, x, _| Ok(Some((x * 0.5)?)));
    lm.hooks().register(half).unwrap();
    let again = hook_fn::edit("blocks.1.hook_resid_pre", |_, x, _| Ok(Some((x * 1.25)?)));
    lm.hooks().register(again).unwrap();
    let watch = hook_fn::observe("blocks.0.hook_resid_post", |_, _, _| Ok(()));
    lm.hooks().register(watch).unwrap();
    for (sweep, end) in
        [("resid_pre", "hook_resid_pre"), ("resid_post", "hook_resid_post"), ("mlp_out", "hook_mlp_out")]
    {
        check("hooked", &lm, &contrast(6), &Sweep::of(sweep), &of_every_block(2, end));
    }
    let (_, report) = lm.activation_patching(&contrast(6), &Sweep::of("resid_pre"), |_, _| ()).unwrap();
    let told: Vec<&str> = report.hooks.iter().map(|hook| hook.id.as_str()).collect();
    assert_eq!(told, ["edit_fn", "edit_fn-2", "observe_fn"], "only the user's hooks have receipts");
    // Two whole runs, and the five positions of block 0 that differ there... all six in block 1.
    assert!(report.hooks[1].receipt.fired >= 2 + 6);
}

#[test]
fn bad_contrasts_are_refused_with_their_reason() {
    let lm = lm("gpt2");
    let told = |contrast: Contrast, sweep: &str| {
        lm.activation_patching(&contrast, &Sweep::of(sweep), |_, _| ()).unwrap_err().to_string()
    };
    let of = |clean: Vec<u32>, corrupted: Vec<u32>| {
        Contrast::new(clean, corrupted, LogitMetric::logit_diff(7, 23))
    };
    let uneven = told(of(vec![1, 2, 3], vec![1, 2]), "z");
    assert!(
        uneven.contains("3 tokens") && uneven.contains("2:") && uneven.contains("same length"),
        "{uneven}"
    );
    assert!(told(of(vec![], vec![]), "z").contains("at least one token"));
    assert!(told(of(vec![1], vec![61]), "z").contains("outside the vocabulary of 61"));
    assert!(told(of(vec![1, 2], vec![1, 2]), "z").contains("nothing to patch"));
    let far = Contrast { metric: LogitMetric::prob(61), ..of(vec![1], vec![2]) };
    assert!(told(far, "z").contains("token 61"));
    assert!(told(of(vec![1], vec![2]), "zz").contains("no point matches"));
    let tokens = Sweep::of("transformer.wte.hook_in");
    let no_gradient = lm.attribution_patching(&of(vec![1], vec![2]), &tokens).unwrap_err().to_string();
    assert!(no_gradient.contains("transformer.wte.hook_in"), "{no_gradient}");
}

#[test]
fn progress_is_told_to_the_end() {
    let (lm, mut told) = (lm("gpt2"), Vec::new());
    lm.activation_patching(&contrast(6), &Sweep::of("resid_pre"), |done, of| told.push((done, of))).unwrap();
    assert!(told.windows(2).all(|two| two[0].0 <= two[1].0), "{told:?}");
    assert_eq!(told.last(), Some(&(12, 12)));
}
