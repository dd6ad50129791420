//! Parallel loops whose threads stay awake from one loop to the next.
//!
//! A forward is some hundred loops, some of them of a few microseconds, with as little between them. rayon puts a caller from outside its
//! pool to sleep for each of them and wakes its threads through the system; `benches/loops.rs` measures what that costs. Here
//! the caller works too, whoever comes late finds less to do, and helpers look out for the next loop for a while before they sleep.
//!
//! How many threads there are is rayon's to say (`RAYON_NUM_THREADS`, or the pool that a caller is in). What a loop computes never depends on
//! it: parts are fixed, results come back in order.
//!
//! ```
//! use tenterhook_nn::parallel;
//!
//! let mut values = vec![1u64; 1000];
//! parallel::for_chunks(&mut values, 100, |start, part| part[0] = start as u64);
//! let sums = parallel::map_chunks(&values, 100, |_, part| part.iter().sum::<u64>());
//! assert_eq!(sums[9], 900 + 99);
//! ```

mod pool;

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) use pool::share;

/// How many threads a loop may use.
pub fn threads() -> usize {
    rayon::current_num_threads()
}

/// Calls `f` with every number below `tasks`, each once, in no order.
pub fn for_each(tasks: usize, f: impl Fn(usize) + Sync) {
    for_each_with(tasks, || (), |(), task| f(task));
}

/// The same with something that every thread makes once for itself.
pub fn for_each_with<S>(tasks: usize, make: impl Fn() -> S + Sync, f: impl Fn(&mut S, usize) + Sync) {
    let threads = threads().min(tasks);
    if threads <= 1 {
        let mut own = make();
        return (0..tasks).for_each(|task| f(&mut own, task));
    }
    let next = AtomicUsize::new(0);
    share(threads, &|_| {
        let mut own = None;
        loop {
            let task = next.fetch_add(1, Ordering::Relaxed);
            if task >= tasks {
                break;
            }
            f(own.get_or_insert_with(&make), task);
        }
    });
}

/// Calls `f(start, part)` for every `len` elements of `values`; the last part may be shorter.
pub fn for_chunks<T: Send>(values: &mut [T], len: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    let parts = Chunks::of(values, len);
    for_each(parts.count(), |i| {
        // SAFETY: every part is asked for once.
        f(i * len, unsafe { parts.get(i) });
    });
}

/// `f` of every number below `tasks`, in order.
pub fn map<R: Send>(tasks: usize, f: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let mut results: Vec<MaybeUninit<R>> = (0..tasks).map(|_| MaybeUninit::uninit()).collect();
    // Very small tasks go together.
    let together = (tasks / (64 * threads())).clamp(1, 64);
    // A panic leaves the results that are there unfreed, which is safe.
    for_chunks(&mut results, together, |start, slots| {
        for (i, slot) in (start..).zip(slots) {
            slot.write(f(i));
        }
    });
    // SAFETY: every task has written its own.
    results.into_iter().map(|result| unsafe { result.assume_init() }).collect()
}

/// `f(start, part)` of every `len` elements of `values`, in order; the last part may be shorter.
pub fn map_chunks<T: Sync, R: Send>(values: &[T], len: usize, f: impl Fn(usize, &[T]) -> R + Sync) -> Vec<R> {
    let part = |i: usize| f(i * len, &values[i * len..((i + 1) * len).min(values.len())]);
    map(values.len().div_ceil(len.max(1)), part)
}

/// The parts of a slice, for tasks that each have one of them: several slices in one loop, where [`for_chunks`] has one.
pub struct Chunks<'a, T> {
    data: *mut T,
    len: usize,
    chunk: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: `get` is the only way to the data, and its caller promises that no two tasks have the same part.
unsafe impl<T: Send> Sync for Chunks<'_, T> {}

impl<'a, T> Chunks<'a, T> {
    /// Parts of `chunk` elements; the last may be shorter.
    pub fn of(values: &'a mut [T], chunk: usize) -> Self {
        assert!(chunk > 0 || values.is_empty(), "parts of no length");
        Self { data: values.as_mut_ptr(), len: values.len(), chunk: chunk.max(1), borrow: PhantomData }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.len.div_ceil(self.chunk)
    }

    /// Part `i`.
    ///
    /// # Safety
    /// Nobody else may have the same part.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn get(&self, i: usize) -> &mut [T] {
        assert!(i < self.count(), "there is no part {i}");
        let start = i * self.chunk;
        let end = start.saturating_add(self.chunk).min(self.len);
        // SAFETY: it lies inside the slice, and the caller has it for itself.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(start), end - start) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn on<R: Send>(threads: usize, f: impl FnOnce() -> R + Send) -> R {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(f)
    }

    #[test]
    fn every_task_is_done_once_whatever_the_number_of_threads() {
        for threads in [1, 2, 3, 7] {
            on(threads, || {
                for tasks in [0, 1, 2, 5, 1000] {
                    let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                    for_each(tasks, |i| {
                        counts[i].fetch_add(1, Ordering::Relaxed);
                    });
                    assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
                    assert_eq!(map(tasks, |i| i * i), (0..tasks).map(|i| i * i).collect::<Vec<_>>());
                }
            });
        }
    }

    #[test]
    fn chunks_are_the_slice_cut_in_order() {
        let mut values = vec![0usize; 1003];
        for_chunks(&mut values, 10, |start, part| {
            assert_eq!(part.len(), 10.min(1003 - start));
            part.iter_mut().zip(start..).for_each(|(value, i)| *value = i);
        });
        assert!(values.iter().enumerate().all(|(i, value)| i == *value));
    }

    #[test]
    fn loops_inside_loops_and_on_many_threads_at_once_are_complete() {
        let sum = |n: usize| map(n, |i| map(i, |j| j).into_iter().sum::<usize>()).into_iter().sum::<usize>();
        let expected: usize = (0..60).map(|i: usize| (0..i).sum::<usize>()).sum();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        assert_eq!(sum(60), expected);
                    }
                });
            }
        });
    }

    #[test]
    fn a_panic_in_any_task_reaches_the_caller_and_the_next_loop_works() {
        on(4, || {
            for bad in [0, 1, 17, 99] {
                let loop_ = || {
                    for_each(100, |i| {
                        std::thread::sleep(std::time::Duration::from_micros(20));
                        assert_ne!(i, bad, "task {bad}");
                    });
                };
                let panic = std::panic::catch_unwind(loop_).unwrap_err();
                assert!(panic.downcast_ref::<String>().unwrap().contains(&format!("task {bad}")));
                assert_eq!(map(50, |i| i).len(), 50);
            }
            // Everybody at once: none of these panics belongs to the next loop.
            let all = || for_each(100, |i| panic!("task {i}"));
            assert!(std::panic::catch_unwind(all).is_err());
            assert_eq!(map(50, |i| i).len(), 50);
        });
    }
}
