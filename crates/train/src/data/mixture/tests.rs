//! The order of every strategy against a plain simulation with queues, and cut at every batch.

use std::collections::VecDeque;
use std::sync::Arc;

use super::*;
use crate::data::TokenStream;

const STRATEGIES: [Strategy; 4] =
    [Strategy::Sequential, Strategy::RoundRobin, Strategy::Weighted, Strategy::Alternating];

/// Loaders with so many examples, batches of this size and this weight each.
fn mixture(loaders: &[(u32, usize, f64)], strategy: Strategy, seed: u64) -> Mixture {
    let loaders = loaders.iter().enumerate().map(|(i, (examples, batch, weight))| {
        let set = TokenStream::new((0..=*examples).collect(), 1).unwrap();
        let loader = Loader::new(format!("set {i}"), Arc::new(set), *batch);
        Loader { shuffle: true, weight: *weight, seed, ..loader }
    });
    Mixture::new(loaders.collect(), strategy, seed).unwrap()
}

/// (loader, batch, its examples), for each batch of an epoch.
type Order = Vec<(usize, u64, Vec<u64>)>;

fn epoch(mixture: &Mixture, cursor: &mut Cursor) -> Order {
    let mut order = Vec::new();
    while let Some(next) = mixture.next(cursor, &Device::Cpu).unwrap() {
        order.push((next.loader_idx, next.batch_idx, next.batch.examples().to_vec()));
    }
    order
}

fn epochs(mixture: &Mixture, cursor: &mut Cursor, until: u64) -> Vec<Order> {
    let mut all = vec![epoch(mixture, cursor)];
    while cursor.epoch + 1 < until {
        cursor.next_epoch();
        all.push(epoch(mixture, cursor));
    }
    all
}

/// Which loader each batch comes from when queues take turns of these lengths.
fn turns(batches: &[u64], lengths: &[usize]) -> Vec<usize> {
    let mut queues: VecDeque<(usize, u64)> = batches.iter().copied().enumerate().collect();
    let mut order = Vec::new();
    while let Some((loader, left)) = queues.pop_front() {
        let now = left.min(lengths[loader] as u64);
        order.extend((0..now).map(|_| loader));
        if left > now {
            queues.push_back((loader, left - now));
        }
    }
    order
}

const SIZES: [(u32, usize, f64); 4] = [(11, 2, 2.4), (3, 3, 0.2), (9, 1, 1.0), (8, 2, 2.5)];

#[test]
fn turns_are_those_of_queues() {
    let batches = [6, 1, 9, 4];
    for (strategy, lengths) in [
        (Strategy::Sequential, [usize::MAX; 4]),
        (Strategy::RoundRobin, [1; 4]),
        (Strategy::Alternating, [2, 1, 1, 3]), // the weights, rounded
    ] {
        let mixture = mixture(&SIZES, strategy, 1);
        assert_eq!(mixture.batches_per_epoch(), 20);
        for order in epochs(&mixture, &mut mixture.cursor(), 3) {
            let loaders: Vec<usize> = order.iter().map(|(loader, _, _)| *loader).collect();
            assert_eq!(loaders, turns(&batches, &lengths), "{strategy:?}");
        }
    }
}

#[test]
fn an_epoch_has_every_example_of_every_set_once() {
    for strategy in [Strategy::Sequential, Strategy::RoundRobin, Strategy::Alternating] {
        let mixture = mixture(&SIZES, strategy, 7);
        let all = epochs(&mixture, &mut mixture.cursor(), 3);
        assert_ne!(all[0], all[1]);
        for (number, order) in all.iter().enumerate() {
            for (loader, (examples, _, _)) in SIZES.iter().enumerate() {
                let own = order.iter().filter(|(from, _, _)| *from == loader);
                let mut seen: Vec<u64> = own.flat_map(|(_, _, examples)| examples.clone()).collect();
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..u64::from(*examples)));
            }
            // Each batch is the one that the loader gives for this epoch.
            for (loader, batch, examples) in order {
                assert_eq!(*examples, mixture.loaders()[*loader].indices(number as u64, *batch));
            }
        }
    }
}

#[test]
fn cut_at_every_batch_the_order_is_that_of_the_uncut_run() {
    for strategy in STRATEGIES {
        let mixture = mixture(&SIZES, strategy, 3);
        let whole = epochs(&mixture, &mut mixture.cursor(), 3).concat();
        let mut running = mixture.cursor();
        for cut in 0..=whole.len() {
            let saved = serde_json::to_string(&running).unwrap();
            let mut restored: Cursor = serde_json::from_str(&saved).unwrap();
            assert_eq!(restored, running);
            let rest = epochs(&mixture, &mut restored, 3).concat();
            assert_eq!(rest, whole[cut..], "{strategy:?} cut at batch {cut}");
            if mixture.next(&mut running, &Device::Cpu).unwrap().is_none() && running.epoch < 2 {
                running.next_epoch();
                mixture.next(&mut running, &Device::Cpu).unwrap();
            }
        }
    }
}

#[test]
fn weighted_draws_by_weight_and_goes_through_each_set_in_turn() {
    let two = mixture(&[(700, 1, 3.0), (300, 1, 1.0)], Strategy::Weighted, 5);
    let all = epochs(&two, &mut two.cursor(), 4);
    assert!(all.iter().all(|order| order.len() == 1000));
    let whole = all.concat();
    for (loader, share) in [(0, 0.75), (1, 0.25)] {
        let own: Vec<u64> = whole
            .iter()
            .filter(|(from, _, _)| *from == loader)
            .flat_map(|(_, _, seen)| seen.clone())
            .collect();
        assert!((own.len() as f64 / 4000.0 - share).abs() < 0.03);
        // Also across epochs, nothing comes again before everything came.
        let len = two.loaders()[loader].dataset.len();
        let mut orders = Vec::new();
        for (pass, seen) in own.chunks_exact(len as usize).enumerate() {
            assert!(
                seen.iter().copied().eq((0..len).flat_map(|i| two.loaders()[loader].indices(pass as u64, i)))
            );
            orders.push(seen);
        }
        assert!(orders.len() >= 3 && orders[0] != orders[1]);
    }
    let drawn = |seed| {
        let mixture = mixture(&[(50, 1, 1.0), (50, 1, 1.0)], Strategy::Weighted, seed);
        epoch(&mixture, &mut mixture.cursor()).iter().map(|(from, _, _)| *from).collect::<Vec<_>>()
    };
    assert_ne!(drawn(1), drawn(2));
}

#[test]
fn an_epoch_that_is_cut_short_is_followed_by_a_whole_one() {
    for strategy in STRATEGIES {
        let mixture = mixture(&SIZES, strategy, 3);
        let mut cursor = mixture.cursor();
        for _ in 0..7 {
            mixture.next(&mut cursor, &Device::Cpu).unwrap();
        }
        let taken = cursor.taken.clone();
        cursor.next_epoch();
        let order = epoch(&mixture, &mut cursor);
        assert_eq!(order.len(), 20);
        if strategy != Strategy::Weighted {
            assert_eq!(order, epochs(&mixture, &mut mixture.cursor(), 2)[1], "{strategy:?}");
        }
        assert_eq!(cursor.taken.iter().sum::<u64>() - taken.iter().sum::<u64>(), 20);
    }
}

#[test]
fn a_cursor_of_other_data_is_an_error_and_changes_nothing() {
    let mixture = mixture(&SIZES, Strategy::RoundRobin, 3);
    let mut broken = [Cursor::new(2), mixture.cursor(), mixture.cursor(), mixture.cursor(), mixture.cursor()];
    broken[1].batch = 3;
    broken[2].begun[1] = 1;
    broken[3].taken = vec![u64::MAX; 4];
    (broken[4].taken[1], broken[4].batch) = (2, 2); // the second set has one batch
    for cursor in broken {
        let mut after = cursor.clone();
        let error = mixture.next(&mut after, &Device::Cpu).unwrap_err();
        assert!(matches!(error, DataError::Cursor(_)), "{error}");
        assert_eq!(after, cursor);
    }
    let error = mixture.next(&mut Cursor::new(2), &Device::Cpu).unwrap_err().to_string();
    assert!(error.contains("it is of 2 data sets, and there are 4"), "{error}");
    let mut far = Cursor { epoch: u64::MAX, batch: 0, taken: vec![u64::MAX; 4], begun: vec![u64::MAX; 4] };
    assert!(mixture.next(&mut far, &Device::Cpu).unwrap().is_some());
    far.next_epoch(); // no overflow
}

#[test]
fn loaders_that_cannot_be_mixed_are_refused_with_all_reasons() {
    let set = || Arc::new(TokenStream::new(vec![1; 4], 1).unwrap());
    let loaders = vec![
        Loader { weight: 0.0, ..Loader::new("a", set(), 1) },
        Loader { drop_last: true, ..Loader::new("a", set(), 4) },
        Loader { weight: f64::NAN, ..Loader::new("b", set(), 0) },
    ];
    let error = Mixture::new(loaders, Strategy::Weighted, 0).err().unwrap().to_string();
    for part in [
        "`a` has `weight = 0`",
        "two are named `a`",
        "`a` has 3 examples, and with `batch = 4` no batch",
        "`b` has `batch = 0`",
        "`b` has `weight = NaN`",
    ] {
        assert!(error.contains(part), "{error}");
    }
    assert!(Mixture::new(vec![], Strategy::Weighted, 0).is_err());
    let heavy = |name: &str| Loader { weight: f64::MAX, ..Loader::new(name, set(), 1) };
    assert!(Mixture::new(vec![heavy("a"), heavy("b")], Strategy::Weighted, 0).is_err());
}

#[test]
fn strategies_are_written_in_snake_case() {
    let names = STRATEGIES.map(|strategy| serde_json::to_value(strategy).unwrap());
    assert_eq!(names, ["sequential", "round_robin", "weighted", "alternating"]);
}
