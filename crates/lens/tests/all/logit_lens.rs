//! The logit lens says what TransformerLens says, and ends in the model's own logits.

use tenterhook_hooks::hook_fn;
use tenterhook_lens::analysis::LogitLensOptions;

use crate::support::*;

#[test]
fn every_point_equals_transformer_lens() {
    for family in ["gpt2", "llama", "neox", "gemma2"] {
        let (lm, reference) = (lm(family), Reference::of(family));
        let (ids, want) = (reference.ids("ids"), reference.get("lens.logits"));
        let vocab = lm.model().config().vocab;
        let options = LogitLensOptions {
            top: vocab,
            points: Some(lm.stream_points(true)),
            ..LogitLensOptions::default()
        };
        let lens = lm.logit_lens(&ids, &options).unwrap();
        assert_eq!(lens.rows.len(), want.dims()[0], "{family}");
        for (row, want) in lens.rows.iter().zip(want.to_vec3::<f32>().unwrap()) {
            for (place, (cell, want)) in row.cells.iter().zip(&want).enumerate() {
                let what = format!("{family}, {} at {place}", row.label);
                let sum: f64 = want.iter().map(|x| f64::from(*x).exp()).sum();
                assert!(cell.top.is_sorted_by(|a, b| a.logit >= b.logit), "{what}");
                for guess in &cell.top {
                    let logit = want[guess.id as usize];
                    assert!((guess.logit - logit).abs() <= 1e-4, "{what}: {} for {logit}", guess.logit);
                    let probability = (f64::from(logit).exp() / sum) as f32;
                    assert!((guess.probability - probability).abs() <= 1e-4, "{what}");
                }
                let Some(target) = &cell.target else {
                    assert_eq!(place, ids.len() - 1, "{what}: only the last token has no next");
                    continue;
                };
                assert_eq!(target.id, ids[place + 1], "{what}");
                let logit = want[target.id as usize];
                let log_prob = (f64::from(logit) - sum.ln()) as f32;
                assert!((target.log_prob - log_prob).abs() <= 1e-4, "{what}");
                let place_in_order = cell.top.iter().position(|guess| guess.id == target.id).unwrap();
                assert_eq!(target.rank, place_in_order, "{what}");
            }
        }
    }
}

#[test]
fn the_last_row_is_what_the_model_says() {
    for family in FAMILIES {
        let lm = lm(family);
        let ids = ids(6, 3);
        let lens = lm.logit_lens(&ids, &LogitLensOptions { top: 1, ..LogitLensOptions::default() }).unwrap();
        let (logits, _) = lm.forward(&lm.batch_of(&ids).unwrap()).unwrap();
        let logits = logits.squeeze(0).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(lens.rows.len(), lm.model().config().layers + 1);
        assert_eq!((lens.rows[0].label.as_str(), lens.rows[1].label.as_str()), ("0_pre", "0_post"));
        for (cell, logits) in lens.rows.last().unwrap().cells.iter().zip(logits) {
            let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(cell.top[0].logit, best, "{family}");
        }
    }
}

#[test]
fn a_chosen_token_is_followed_everywhere_and_hooks_take_part() {
    let lm = lm("gpt2");
    let options = LogitLensOptions { target: Some(5), ..LogitLensOptions::default() };
    let plain = lm.logit_lens(&ids(4, 0), &options).unwrap();
    assert!(plain.rows.iter().flat_map(|row| &row.cells).all(|cell| cell.target.as_ref().unwrap().id == 5));
    let id = lm
        .hooks()
        .register(hook_fn::edit("blocks.0.hook_attn_out", |_, x, _| Ok(Some(x.zeros_like()?))))
        .unwrap();
    let edited = lm.logit_lens(&ids(4, 0), &options).unwrap();
    assert_eq!(plain.rows[0].cells[3].top, edited.rows[0].cells[3].top, "before the edit");
    assert_ne!(plain.rows[1].cells[3].top, edited.rows[1].cells[3].top, "after it");
    assert_eq!(edited.report.receipt(&id).unwrap().edits, 1);
}

#[test]
fn nonsense_is_refused() {
    let lm = lm("gpt2");
    let options = |points: &str, target| LogitLensOptions {
        points: Some(points.into()),
        target,
        ..LogitLensOptions::default()
    };
    for (ids, options, word) in [
        (vec![], LogitLensOptions::default(), "at least one token"),
        (vec![99], LogitLensOptions::default(), "token id 99 is outside the vocabulary of 61"),
        (vec![1; 17], LogitLensOptions::default(), "16 positions"),
        (vec![1], options("blocks.*.hook_resid_post", Some(61)), "token id 61"),
        (vec![1], options("blocks.*.attn.hook_z", None), "axes"),
        (vec![1], options("blocks.*.hook_residpost", None), "hook_resid_post"),
    ] {
        let error = lm.logit_lens(&ids, &options).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn a_block_without_an_mlp_has_no_middle() {
    let lm = attention_only();
    let options = LogitLensOptions { points: Some(lm.stream_points(true)), ..LogitLensOptions::default() };
    assert_eq!(lm.logit_lens(&ids(5, 0), &options).unwrap().rows.len(), 3);
}
