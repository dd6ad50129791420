//! Change a value on its way through the model and read gradients, in one training pass: `cargo run --example 02_edit_and_gradients`.

#![allow(clippy::print_stdout)]

use candle_core::{DType, Device, Tensor};
use tenterhook::hooks::{BoxError, PassSetup, hook_fn};
use tenterhook::models::Transformer;
use tenterhook::models::config::TransformerConfig;
use tenterhook::nn::{backward, check_coverage};

fn main() -> Result<(), BoxError> {
    let model = Transformer::init(TransformerConfig::gpt2(100, 32, 64, 4, 4), 42, DType::F32, &Device::Cpu)?;
    let ids = Tensor::new(&[[5u32, 17, 5, 17, 5, 17, 5, 17]], &Device::Cpu)?;
    let hooks = model.hook_manager();

    // Silence head 2 of the second block: z is [batch, pos, head, d_head].
    hooks.register(hook_fn::edit("blocks.1.attn.hook_z", |_, z, _| {
        let keep = Tensor::new(&[1f32, 1.0, 0.0, 1.0], z.device())?.reshape((1, 1, 4, 1))?;
        Ok(Some(z.broadcast_mul(&keep)?))
    }))?;
    // Watch the gradient on its way back.
    let flow = hooks.register_gradient_flow("blocks.*.hook_resid_post", None, 1e-7, 1e3)?;

    let pass = hooks.pass(PassSetup::train(0));
    let loss = model.next_token_loss(&ids, &pass)?;
    let grads = backward(&loss, model.params(), None)?;
    check_coverage(&grads, model.params())?; // every parameter got one, or an error that names those that did not

    println!("loss {:.4}, {} gradients", loss.to_scalar::<f32>()?, grads.iter().count());
    for layer in hooks.gradient_flow(&flow)? {
        println!("{:26} norm {:.5} {:?}", layer.point, layer.norm.unwrap_or(f64::NAN), layer.verdict);
    }
    println!("\n{}", pass.report());
    Ok(())
}
