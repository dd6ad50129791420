//! A sequence gives the same logits alone and in a batch with longer ones, however it is padded.

use std::sync::Arc;

use candle_core::Tensor;
use tenterhook_hooks::{Pass, PassSetup, Rows};
use tenterhook_models::KvCache;

use crate::support::*;

const LENGTHS: [usize; 3] = [7, 3, 5];
const LONGEST: usize = 7;

/// The sequences of a reference, cut to `LENGTHS` and padded before or behind with token 0.
fn padded(reference: &Reference, left: bool) -> Tensor {
    let rows = LENGTHS.iter().enumerate().map(|(i, length)| {
        let real = reference.ids.narrow(0, i % reference.ids.dim(0).unwrap(), 1).unwrap();
        let real = real.narrow(1, 0, *length).unwrap();
        let filler = Tensor::zeros((1, LONGEST - length), real.dtype(), real.device()).unwrap();
        let parts = if left { [&filler, &real] } else { [&real, &filler] };
        Tensor::cat(&parts.into_iter().filter(|part| part.elem_count() > 0).collect::<Vec<_>>(), 1).unwrap()
    });
    Tensor::cat(&rows.collect::<Vec<_>>(), 0).unwrap()
}

fn left_padding() -> Option<Arc<Rows>> {
    Some(Arc::new(Rows(LENGTHS.map(|length| LONGEST - length..LONGEST).to_vec())))
}

/// The logits of each sequence alone.
fn alone(reference: &Reference, row: usize) -> Tensor {
    let ids = padded(reference, false).narrow(0, row, 1).unwrap().narrow(1, 0, LENGTHS[row]).unwrap();
    reference.model.forward(&ids, &Pass::default()).unwrap()
}

#[test]
fn padding_before_and_behind_changes_no_logit() {
    for name in families() {
        let reference = Reference::load(&name);
        let behind = reference.model.forward(&padded(&reference, false), &Pass::default()).unwrap();
        let setup = PassSetup { rows: left_padding(), ..PassSetup::default() };
        let before = reference.model.forward(&padded(&reference, true), &Pass::silent(setup)).unwrap();
        for (row, length) in LENGTHS.into_iter().enumerate() {
            let want = alone(&reference, row);
            let part = |logits: &Tensor, first: usize| {
                logits.narrow(0, row, 1).unwrap().narrow(1, first, length).unwrap()
            };
            assert_close(&format!("{name} behind, row {row}"), &part(&behind, 0), &want, 2e-5);
            assert_close(&format!("{name} before, row {row}"), &part(&before, LONGEST - length), &want, 2e-5);
        }
    }
}

#[test]
fn padded_sequences_go_on_from_a_cache() {
    for name in ["gpt2", "llama", "neox", "mistral"] {
        let reference = Reference::load(name);
        let ids = padded(&reference, true);
        let mut cache = KvCache::new();
        let mut pieces = Vec::new();
        for (first, count) in [(0, 2), (2, 4), (6, 1)] {
            let setup = PassSetup { first_position: first, rows: left_padding(), ..PassSetup::default() };
            let piece = ids.narrow(1, first, count).unwrap();
            pieces.push(reference.model.forward_cached(&piece, &mut cache, &Pass::silent(setup)).unwrap());
        }
        let logits = Tensor::cat(&pieces, 1).unwrap();
        for (row, length) in LENGTHS.into_iter().enumerate() {
            let got = logits.narrow(0, row, 1).unwrap().narrow(1, LONGEST - length, length).unwrap();
            assert_close(&format!("{name}, row {row}"), &got, &alone(&reference, row), 2e-5);
        }
    }
}

#[test]
fn padding_of_another_batch_is_refused() {
    let reference = Reference::load("gpt2");
    let rows = Some(Arc::new(Rows(vec![1..7; 5])));
    let pass = Pass::silent(PassSetup { rows, ..PassSetup::default() });
    let error = reference.model.forward(&padded(&reference, true), &pass).unwrap_err().to_string();
    assert!(error.contains("5 sequences"), "{error}");
}
