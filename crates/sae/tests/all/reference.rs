//! What SAELens wrote is read, and gives the numbers that SAELens computes.

use crate::support::*;

use candle_core::Tensor;
use tenterhook_sae::Sae;

#[test]
fn p39_latents_and_reconstructions_are_those_of_saelens() {
    for name in SAVED {
        let sae = Sae::load(&data(name)).unwrap();
        let want = tensors(&data(name).join("reference.safetensors"));
        let latents = sae.encode(&want["input"]).unwrap();
        assert_close(&format!("{name}: latents"), &latents.acts, &want["acts"], 1e-5);
        let recons = sae.decode(&latents).unwrap();
        assert_close(&format!("{name}: reconstruction"), &recons, &want["recons"], 1e-5);
        let decoded = sae.decode(&latents.with_acts(want["acts"].clone())).unwrap();
        assert_close(&format!("{name}: decoded"), &decoded, &want["recons"], 1e-5);
    }
}

#[test]
fn what_is_written_is_read_again_bit_for_bit() {
    for name in SAVED {
        let (sae, dir) = (Sae::load(&data(name)).unwrap(), tempfile::tempdir().unwrap());
        let path = dir.path().join("made/on/the/way");
        sae.save(&path).unwrap();
        let again = Sae::load(&path).unwrap();
        assert_eq!(again.config(), sae.config(), "{name}");
        for (a, b) in sae.params().iter().zip(again.params().iter()) {
            assert_eq!((a.name(), values(a.value())), (b.name(), values(b.value())), "{name}");
        }
        let mut files: Vec<_> =
            std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        files.sort();
        assert_eq!(files, ["cfg.json", "sae_weights.safetensors"], "nothing else is left");
    }
}

#[test]
fn the_metadata_says_where_it_belongs() {
    let sae = Sae::load(&data("topk")).unwrap();
    assert_eq!(sae.config().hook_name(), Some("blocks.1.hook_resid_post"));
    assert_eq!(sae.config().metadata["model_name"], "tiny");
    assert_eq!(Sae::load(&data("batchtopk")).unwrap().config().architecture.name(), "jumprelu");
}

/// The gradient with respect to the input, which goes through the sparse kernels, is that of the dense formula.
#[test]
fn activations_get_the_gradient_of_the_formula() {
    for name in ["standard", "topk", "jumprelu", "gated"] {
        let sae = Sae::load(&data(name)).unwrap();
        let want = tensors(&data(name).join("reference.safetensors"));
        let x = candle_core::Var::from_tensor(&want["input"]).unwrap();
        let out = sae.decode(&sae.encode(&x).unwrap()).unwrap();
        let grads = out.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        let (w_enc, w_dec) = (param(&sae, "W_enc"), param(&sae, "W_dec"));
        let active = want["acts"].gt(0.0).unwrap().to_dtype(x.dtype()).unwrap();
        let back = (want["recons"].affine(2.0, 0.0).unwrap().broadcast_matmul(&w_dec.t().unwrap()).unwrap()
            * active)
            .unwrap();
        let back = match name {
            "gated" => back.broadcast_mul(&param(&sae, "r_mag").exp().unwrap()).unwrap(),
            _ => back,
        };
        let expected = back.broadcast_matmul(&w_enc.t().unwrap()).unwrap();
        assert_close(name, grads.get(&x).unwrap(), &expected, 1e-4);
    }
}

fn param(sae: &Sae, name: &str) -> Tensor {
    sae.params().get(name).unwrap().value().clone()
}
