//! Reads an autoencoder, encodes and decodes activations with it, and writes it again: for `scripts/interop_sae.py`.
//!
//! `roundtrip_sae SAE_DIR INPUT.safetensors OUTPUT.safetensors NEW_SAE_DIR`: `input` is read, `acts` and `recons` are written.

use std::path::Path;

use tenterhook_hooks::BoxError;
use tenterhook_models::files::{read_tensors, save_tensors};
use tenterhook_sae::Sae;

fn main() -> Result<(), BoxError> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, input, output, again] = args.as_slice() else {
        return Err("expected SAE_DIR INPUT.safetensors OUTPUT.safetensors NEW_SAE_DIR".into());
    };
    let sae = Sae::load(Path::new(dir))?;
    let tensors = read_tensors(Path::new(input))?;
    let (_, x) = tensors.iter().find(|(name, _)| name == "input").ok_or("there is no tensor `input`")?;
    let latents = sae.encode(x)?;
    let recons = sae.decode(&latents)?;
    save_tensors(Path::new(output), &[("acts".to_string(), latents.acts), ("recons".to_string(), recons)])?;
    Ok(sae.save(Path::new(again))?)
}
