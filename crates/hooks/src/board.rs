//! Where hooks leave things for each other.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::sync::lock;

type Shelf = Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>;

/// A typed notice board: one value per type, for this step or for the whole run.
///
/// ```
/// use tenterhook_hooks::Board;
/// struct WorstLayer(String);
/// let board = Board::default();
/// board.put_for_step(WorstLayer("blocks.3".into()));
/// assert_eq!(board.get::<WorstLayer>().unwrap().0, "blocks.3");
/// board.end_step();
/// assert!(board.get::<WorstLayer>().is_none());
/// ```
#[derive(Debug, Default)]
pub struct Board {
    step: Shelf,
    run: Shelf,
}

impl Board {
    /// Leaves a value until the end of the step.
    pub fn put_for_step<T: Any + Send + Sync>(&self, value: T) {
        put(&self.step, value);
    }

    /// Leaves a value until the end of the run.
    pub fn put_for_run<T: Any + Send + Sync>(&self, value: T) {
        put(&self.run, value);
    }

    /// The value of this type: this step's, else the run's.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let find = |shelf: &Shelf| lock(shelf).get(&TypeId::of::<T>()).cloned();
        find(&self.step).or_else(|| find(&self.run)).and_then(|value| value.downcast().ok())
    }

    /// Clears what was left for the step.
    pub fn end_step(&self) {
        let gone = std::mem::take(&mut *lock(&self.step));
        drop(gone); // outside the lock: a value's drop may come back to the board
    }
}

fn put<T: Any + Send + Sync>(shelf: &Shelf, value: T) {
    let previous = lock(shelf).insert(TypeId::of::<T>(), Arc::new(value));
    drop(previous); // outside the lock, as above
}
