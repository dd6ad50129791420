//! Fail points as debug builds have them.

use std::cell::RefCell;
use std::io;
use std::marker::PhantomData;
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use super::Op;
use super::spec::{Action, Rule, parse};

/// The variable that holds for the whole process.
const VARIABLE: &str = "TENTERHOOK_FAULTS";

/// Something that listens at the points of a thread.
#[derive(Debug)]
enum Layer {
    Faults(Mutex<Vec<Rule>>),
    Trace(Mutex<Log>),
}

#[derive(Clone, Debug, Default)]
struct Log {
    ops: Vec<Op>,
    points: Vec<String>,
}

thread_local! {
    static LAYERS: RefCell<Vec<Arc<Layer>>> = const { RefCell::new(Vec::new()) };
}

/// A panic while the lock is held leaves whole entries, so its contents stay usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The faults and traces of a thread, to be handed to another one.
///
/// A thread that writes on behalf of another one enters its scope, so that what a test installs reaches it too.
#[derive(Clone, Debug)]
pub struct Scope(Vec<Arc<Layer>>);

impl Scope {
    /// What holds for this thread.
    pub fn current() -> Self {
        Self(LAYERS.with_borrow(Clone::clone))
    }

    /// Lets it hold for the calling thread until the guard is dropped.
    pub fn enter(&self) -> Entered {
        let outer = LAYERS.replace(self.0.clone());
        Entered { outer, stays_on_its_thread: PhantomData }
    }
}

/// A thread that is inside a [`Scope`].
#[derive(Debug)]
pub struct Entered {
    outer: Vec<Arc<Layer>>,
    stays_on_its_thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        LAYERS.set(std::mem::take(&mut self.outer));
    }
}

/// A layer of this thread, gone when it is dropped.
#[derive(Debug)]
struct Pushed {
    layer: Arc<Layer>,
    stays_on_its_thread: PhantomData<*const ()>,
}

impl Pushed {
    fn new(layer: Layer) -> Self {
        let layer = Arc::new(layer);
        LAYERS.with_borrow_mut(|layers| layers.push(layer.clone()));
        Self { layer, stays_on_its_thread: PhantomData }
    }
}

impl Drop for Pushed {
    fn drop(&mut self) {
        LAYERS.with_borrow_mut(|layers| layers.retain(|layer| !Arc::ptr_eq(layer, &self.layer)));
    }
}

/// Faults that hold for this thread until it is dropped.
#[derive(Debug)]
pub struct Installed {
    _layer: Pushed,
}

/// Installs faults for this thread; the module's documentation has the language.
pub fn install(spec: &str) -> io::Result<Installed> {
    let rules = parse(spec).map_err(|problem| io::Error::new(io::ErrorKind::InvalidInput, problem))?;
    Ok(Installed { _layer: Pushed::new(Layer::Faults(Mutex::new(rules))) })
}

/// Collects what this thread does on the disk, until it is dropped.
#[derive(Debug)]
pub struct Trace {
    layer: Pushed,
}

/// Begins a trace for this thread.
pub fn trace() -> Trace {
    Trace { layer: Pushed::new(Layer::Trace(Mutex::default())) }
}

impl Trace {
    /// The operations so far.
    pub fn ops(&self) -> Vec<Op> {
        self.log().ops
    }

    /// The names of the points that were passed so far.
    pub fn points(&self) -> Vec<String> {
        self.log().points
    }

    fn log(&self) -> Log {
        match &*self.layer.layer {
            Layer::Trace(log) => lock(log).clone(),
            Layer::Faults(_) => Log::default(),
        }
    }
}

/// What stands in the environment, read once.
fn of_the_process() -> &'static Mutex<Result<Vec<Rule>, String>> {
    static RULES: OnceLock<Mutex<Result<Vec<Rule>, String>>> = OnceLock::new();
    RULES.get_or_init(|| {
        let spec = std::env::var(VARIABLE).unwrap_or_default();
        Mutex::new(parse(&spec).map_err(|problem| format!("{VARIABLE}: {problem}")))
    })
}

/// Passes a point and says what is to happen. Every rule counts the hit, the first one that fires decides.
fn pass(name: &str) -> io::Result<Option<Action>> {
    let mut action = match &mut *lock(of_the_process()) {
        Ok(rules) => first_hit(rules, name),
        // Faults that were asked for and misspelt must not look like a disk without faults.
        Err(problem) => return Err(io::Error::new(io::ErrorKind::InvalidInput, problem.clone())),
    };
    for layer in Scope::current().0 {
        match &*layer {
            Layer::Trace(log) => lock(log).points.push(name.to_string()),
            Layer::Faults(rules) => {
                let hit = first_hit(&mut lock(rules), name);
                action = action.or(hit);
            }
        }
    }
    match action {
        Some(Action::Abort) => process::abort(),
        Some(Action::Sleep(time)) => {
            tracing::warn!("sleeps at `{name}`"); // whoever wants to catch the process here has to know
            thread::sleep(time);
            Ok(None)
        }
        action => Ok(action),
    }
}

fn first_hit(rules: &mut [Rule], name: &str) -> Option<Action> {
    rules.iter_mut().fold(None, |first, rule| {
        let hit = rule.hit(name);
        first.or(hit)
    })
}

/// Passes a fail point: an error when one was asked for here.
pub fn point(name: &str) -> io::Result<()> {
    match pass(name)?.and_then(|action| action.error(name)) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Passes `disk.write`: how many of the bytes to write, and the error to return after that.
pub(crate) fn on_write(bytes: usize) -> (usize, Option<io::Error>) {
    const NAME: &str = "disk.write";
    match pass(NAME) {
        Err(error) => (0, Some(error)),
        Ok(None) => (bytes, None),
        Ok(Some(Action::Short)) => (bytes / 2, Action::Short.error(NAME)),
        Ok(Some(action)) => (0, action.error(NAME)),
    }
}

/// Adds an operation to the traces of this thread.
pub(crate) fn record(op: impl FnOnce() -> Op) {
    LAYERS.with_borrow(|layers| {
        let mut logs = layers.iter().filter_map(|layer| match &**layer {
            Layer::Trace(log) => Some(log),
            Layer::Faults(_) => None,
        });
        if let Some(first) = logs.next() {
            let op = op();
            logs.for_each(|log| lock(log).ops.push(op.clone()));
            lock(first).ops.push(op);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_hold_for_their_thread_and_those_that_enter_its_scope() {
        let faults = install("here=eio").unwrap();
        assert!(point("here").is_err());
        let scope = Scope::current();
        let elsewhere = thread::spawn(move || {
            let before = point("here").is_ok();
            let entered = scope.enter();
            let inside = point("here").is_err();
            drop(entered);
            (before, inside, point("here").is_ok())
        });
        assert_eq!(elsewhere.join().unwrap(), (true, true, true));
        drop(faults);
        assert!(point("here").is_ok());
    }

    #[test]
    fn a_trace_lists_the_points_that_were_passed() {
        let trace = trace();
        point("one").unwrap();
        let faults = install("two=enospc").unwrap();
        assert_eq!(point("two").unwrap_err().kind(), io::ErrorKind::StorageFull);
        drop(faults);
        assert_eq!(trace.points(), ["one", "two"]);
    }
}
