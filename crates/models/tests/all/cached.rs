//! Incremental forwards give the logits of the whole sequence.

use tenterhook_hooks::{Gradients, Mode, Pass, PassSetup};
use tenterhook_models::KvCache;

use crate::support::*;

/// Feeds the sequence in pieces of these sizes.
fn check(name: &str, pieces: &[usize]) {
    let reference = Reference::load(name);
    let whole = reference.model.forward(&reference.ids, &Pass::default()).unwrap();
    let mut cache = KvCache::new();
    for &count in pieces {
        let first = cache.len();
        let mode = if first == 0 { Mode::Prefill } else { Mode::Decode };
        let pass = Pass::silent(PassSetup { mode, first_position: first, ..eval() });
        let ids = reference.ids.narrow(1, first, count).unwrap();
        let logits = reference.model.forward_cached(&ids, &mut cache, &pass).unwrap();
        assert_close(&format!("{name} from {first}"), &logits, &whole.narrow(1, first, count).unwrap(), 1e-5);
    }
    assert_eq!(cache.len(), pieces.iter().sum::<usize>());
}

#[test]
fn token_by_token_and_in_pieces() {
    for name in families() {
        if name == "phi3_longrope" {
            continue; // its rotation changes inside the sequence: see below
        }
        check(&name, &[1; 11]);
        check(&name, &[4, 1, 6]);
        check(&name, &[11]);
    }
}

#[test]
fn a_rotation_that_changes_with_the_length_is_refused_not_wrong() {
    check("phi3_longrope", &[11]);
    let reference = Reference::load("phi3_longrope");
    let mut cache = KvCache::new();
    let piece = |first: usize, count: usize, cache: &mut KvCache| {
        let pass = Pass::silent(PassSetup { first_position: first, ..eval() });
        reference.model.forward_cached(&reference.ids.narrow(1, first, count).unwrap(), cache, &pass)
    };
    piece(0, 5, &mut cache).unwrap();
    let error = piece(5, 6, &mut cache).unwrap_err().to_string();
    assert!(error.contains("rotation changes"), "{error}");
}

#[test]
fn a_truncated_cache_goes_on_from_there() {
    let reference = Reference::load("llama");
    let whole = reference.model.forward(&reference.ids, &Pass::default()).unwrap();
    let mut cache = KvCache::new();
    let feed = |first: usize, count: usize, cache: &mut KvCache| {
        let pass = Pass::silent(PassSetup { first_position: first, ..eval() });
        reference.model.forward_cached(&reference.ids.narrow(1, first, count).unwrap(), cache, &pass).unwrap()
    };
    feed(0, 9, &mut cache);
    cache.truncate(6);
    let logits = feed(6, 5, &mut cache);
    assert_close("after truncate", &logits, &whole.narrow(1, 6, 5).unwrap(), 1e-5);
}

#[test]
fn misuse_is_refused() {
    let reference = Reference::load("gpt2");
    let model = &reference.model;
    let mut cache = KvCache::new();
    let setup = PassSetup { first_position: 3, ..eval() };
    let error = model.forward_cached(&reference.ids, &mut cache, &Pass::silent(setup)).unwrap_err();
    assert!(error.to_string().contains("first position is 3"), "{error}");
    let tracked = Pass::silent(eval().gradients(Gradients::Parameters));
    assert!(model.forward_cached(&reference.ids, &mut cache, &tracked).is_err());
    model.forward_cached(&reference.ids, &mut cache, &Pass::default()).unwrap();
    let one = reference.ids.narrow(0, 0, 1).unwrap().narrow(1, 0, 1).unwrap();
    let error = model
        .forward_cached(&one, &mut cache, &Pass::silent(PassSetup { first_position: 11, ..eval() }))
        .unwrap_err();
    assert!(error.to_string().contains("batch"), "{error}");
    // The refusal left the cache as it was.
    let next = reference.ids.narrow(1, 0, 1).unwrap();
    let pass = Pass::silent(PassSetup { first_position: 11, ..eval() });
    let logits = model.forward_cached(&next, &mut cache, &pass).unwrap();
    let whole = candle_core::Tensor::cat(&[&reference.ids, &next], 1).unwrap();
    let whole = model.forward(&whole, &Pass::default()).unwrap().narrow(1, 11, 1).unwrap();
    assert_close("after the refusal", &logits, &whole, 1e-5);
}
