//! A small model of plain candle operations, and what the tests measure with.

use std::process::Command;
use std::sync::{Arc, Mutex};

use candle_core::{Device, Result, Tensor, Var};
use tenterhook_hooks::random::Stream;
use tenterhook_hooks::{Hook, HookManager, Pass, PassSetup, Point, PointId, PointTable, hook_fn};

pub(crate) const LAYERS: usize = 3;
const WIDTH: usize = 8;

/// Layers of `x + tanh(x w)`, with points at the input, the product and the output of each.
pub(crate) struct Mlp {
    pub(crate) table: Arc<PointTable>,
    pub(crate) weights: Vec<Var>,
    points: Vec<[PointId; 3]>,
}

impl Mlp {
    pub(crate) fn new() -> Self {
        let mut table = PointTable::builder();
        let (mut points, mut weights) = (Vec::new(), Vec::new());
        for i in 0..LAYERS {
            let mut point =
                |name: &str| table.point(Point::new(format!("layers.{i}.{name}"), "pos d").in_block(Some(i)));
            let [input, product, output] =
                ["hook_in", "hook_pre", "hook_out"].map(|name| point(name).unwrap());
            table.layer(&format!("layers.{i}"), input, output).unwrap();
            table.mark_block();
            points.push([input, product, output]);
            weights.push(Var::from_tensor(&random(&format!("w{i}"), WIDTH)).unwrap());
        }
        Self { table: table.build(), weights, points }
    }

    /// The loss.
    pub(crate) fn forward(&self, pass: &Pass) -> Result<Tensor> {
        pass.enter(&self.table)?;
        let mut x = random("input", 5);
        for ([input, product, output], w) in self.points.iter().zip(&self.weights) {
            x = pass.tap_shared(*input, None, x)?;
            let y = pass.tap(*product, x.matmul(w.as_tensor())?)?;
            x = pass.tap_output(*output, &x, (&x + y.tanh()?)?)?;
        }
        x.sqr()?.mean_all()
    }

    /// The bits of the loss and of every weight's gradient.
    pub(crate) fn bits(&self, hooks: &HookManager) -> Vec<Vec<u32>> {
        let loss = self.forward(&hooks.pass(PassSetup::train(0))).unwrap();
        let gradients = loss.backward().unwrap();
        let weights = self.weights.iter().map(|w| bits(gradients.get(w).unwrap()));
        std::iter::once(bits(&loss)).chain(weights).collect()
    }
}

fn random(name: &str, rows: usize) -> Tensor {
    let stream = Stream::new(1).named(name);
    let values: Vec<f32> = (0..rows * WIDTH).map(|i| stream.normal(i as u64) as f32 * 0.5).collect();
    Tensor::from_vec(values, (rows, WIDTH), &Device::Cpu).unwrap()
}

pub(crate) fn bits(x: &Tensor) -> Vec<u32> {
    x.flatten_all().unwrap().to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

pub(crate) fn tensor(values: &[f32]) -> Tensor {
    Tensor::new(values, &Device::Cpu).unwrap()
}

pub(crate) fn values(x: &Tensor) -> Vec<f32> {
    x.flatten_all().unwrap().to_vec1().unwrap()
}

/// What hooks wrote down, in order.
#[derive(Clone, Default)]
pub(crate) struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    pub(crate) fn write(&self, text: impl Into<String>) {
        self.0.lock().unwrap().push(text.into());
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    /// An observer that writes its name down.
    pub(crate) fn observer(&self, name: &str, points: &str) -> impl Hook + use<> {
        let (notes, name) = (self.clone(), name.to_string());
        hook_fn::observe(points, move |_, _, _| {
            notes.write(&name);
            Ok(())
        })
    }

    /// A controller that writes its name down and changes nothing.
    pub(crate) fn controller(&self, name: &str, points: &str) -> impl Hook + use<> {
        let (notes, name) = (self.clone(), name.to_string());
        hook_fn::edit(points, move |_, _, _| {
            notes.write(&name);
            Ok(None)
        })
    }
}

/// Runs `body` in a process of its own: no other test disturbs its memory, and its panics are not shown.
pub(crate) fn in_child(test: &str, body: impl FnOnce()) {
    in_child_with(test, &[], body);
}

/// The same with further variables in its environment.
pub(crate) fn in_child_with(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var("TENTERHOOK_CHILD").is_ok_and(|name| name == test) {
        std::panic::set_hook(Box::new(|_| {}));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        let _ = std::panic::take_hook();
        if let Err(payload) = outcome {
            let text = payload.downcast_ref::<String>().cloned();
            let text = text.or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string));
            panic!("{}", text.unwrap_or_default());
        }
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads", "1"])
        .env("TENTERHOOK_CHILD", test)
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let told =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{told}");
    assert!(told.contains("1 passed"), "the child ran another test: {told}");
}

/// A line of `/proc/self/status` in bytes: `VmRSS` (resident now) or `VmHWM` (at most so far). 0 where there is none.
pub(crate) fn memory(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let found = status.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(':'));
    found.map_or(0, |text| text.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10)
}
