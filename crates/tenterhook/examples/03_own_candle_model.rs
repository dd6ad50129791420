//! Hooks on a candle model of your own: `cargo run --example 03_own_candle_model`.

#![allow(clippy::print_stdout)]

use candle_core::{Device, Module, Result, Tensor, Var};
use tenterhook::hooks::{
    AttachError, BoxError, HookManager, Hooked, Pass, PassSetup, PointTable, PointTableBuilder, hook_fn,
};

/// A layer as you may have it already.
struct Dense(Var);

impl Module for Dense {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.matmul(&self.0)?.tanh()
    }
}

/// One line per layer puts its input and output on the map.
struct Mlp {
    first: Hooked<Dense>,
    second: Hooked<Dense>,
}

impl Mlp {
    fn new(points: &mut PointTableBuilder) -> std::result::Result<Self, BoxError> {
        let weight = |scale: f32| {
            Var::from_tensor(
                &(Tensor::ones((3, 3), candle_core::DType::F32, &Device::Cpu)? * f64::from(scale))?,
            )
        };
        Ok(Self {
            first: Hooked::new(points, "mlp.first", Dense(weight(0.3)?))?,
            second: Hooked::new(points, "mlp.second", Dense(weight(0.2)?))?,
        })
    }

    fn forward(&self, x: &Tensor, pass: &Pass) -> Result<Tensor> {
        self.second.forward_with(&self.first.forward_with(x, pass)?, pass)
    }
}

fn main() -> std::result::Result<(), BoxError> {
    let mut points = PointTable::builder();
    let model = Mlp::new(&mut points)?;
    let hooks = HookManager::new(points.build());

    hooks.register(hook_fn::observe("mlp.*", |at, x, _| {
        println!("{:22} {:?}", at.name(), x.to_vec2::<f32>()?);
        Ok(())
    }))?;
    hooks.register(hook_fn::observe_gradient("mlp.first", |at, g, _| {
        println!("gradient at {:10} {:?}", at.name(), g.to_vec2::<f32>()?);
        Ok(())
    }))?;

    let pass = hooks.pass(PassSetup::train(0));
    let y = model.forward(&Tensor::new(&[[1f32, 2.0, 3.0]], &Device::Cpu)?, &pass)?;
    y.sum_all()?.backward()?;

    // A name that matches nothing is an error, with the nearest names.
    let wrong: std::result::Result<_, AttachError> =
        hooks.register(hook_fn::observe("mlp.frist", |_, _, _| Ok(())));
    println!("\n{}", wrong.err().map(|error| error.to_string()).unwrap_or_default());
    Ok(())
}
