//! Several loaders take turns as documented.

use tenterhook::train::data::{Loader, Mixture, Strategy};
use tenterhook::train::{Settings, TrainModel, Trainer};

use crate::recorder::Recorder;
use crate::small::{Chain, Notes, attach, examples, sgd};

/// Which loader every batch of these epochs came from: `a` has four batches and thrice or twice the weight, `b` has three.
fn turns(strategy: Strategy, weight: f64, seed: u64, epochs: u64) -> Vec<String> {
    let model = Chain::new(1);
    let a = Loader { weight, ..Loader::new("a", examples(8), 2) };
    let b = Loader::new("b", examples(3), 1);
    let data = Mixture::new(vec![a, b], strategy, seed).unwrap();
    let settings = Settings::epochs(epochs, &data);
    let optimizers = sgd(&*model, 0.01);
    let mut trainer = Trainer::new(model, data, optimizers, settings).unwrap();
    let notes = Notes::default();
    attach(&mut trainer, Recorder::new(&notes));
    trainer.train().unwrap();
    let mut names = Vec::new();
    for line in notes.take() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["on_train_batch_start", name, _] => names.push(name.to_string()),
            ["on_epoch_start", _] => names.push("|".to_string()),
            _ => {}
        }
    }
    names
}

#[test]
fn loaders_take_turns_by_their_strategy() {
    for (strategy, weight, expected) in [
        (Strategy::Sequential, 1.0, "| a a a a b b b | a a a a b b b"),
        (Strategy::RoundRobin, 1.0, "| a b a b a b a | a b a b a b a"),
        (Strategy::Alternating, 2.0, "| a a b a a b b | a a b a a b b"),
        (Strategy::Alternating, 3.0, "| a a a b a b b | a a a b a b b"),
    ] {
        assert_eq!(turns(strategy, weight, 0, 2).join(" "), expected, "{strategy:?}");
    }
}

#[test]
fn weighted_loaders_are_drawn_by_their_weights_and_the_seed() {
    let drawn = turns(Strategy::Weighted, 3.0, 1, 40);
    let batches = drawn.iter().filter(|name| *name != "|").count();
    assert_eq!(batches, 40 * 7, "an epoch is as long as all loaders together");
    let share = drawn.iter().filter(|name| *name == "a").count() as f64 / batches as f64;
    assert!((share - 0.75).abs() < 0.08, "{share}");
    assert_eq!(drawn, turns(Strategy::Weighted, 3.0, 1, 40));
    assert_ne!(drawn, turns(Strategy::Weighted, 3.0, 2, 40));
}

/// The configuration says the same as the library.
#[test]
fn names_and_numbers_of_loaders_reach_the_state() {
    let model = Chain::new(1);
    let loaders = vec![Loader::new("a", examples(4), 2), Loader::new("b", examples(2), 2)];
    let data = Mixture::new(loaders, Strategy::RoundRobin, 0).unwrap();
    let optimizers = sgd(&*model, 0.01);
    let count = model.params().element_count();
    let trainer = Trainer::new(model, data, optimizers, Settings::steps(5)).unwrap();
    let state = trainer.state();
    assert_eq!((state.batches_per_epoch, state.total_steps, state.model_params), (3, Some(5), count));
}
