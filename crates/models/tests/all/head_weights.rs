//! The matrices by what they do are those that the forward uses.

use candle_core::Tensor;
use tenterhook_hooks::PassSetup;
use tenterhook_models::NormWeights;

use crate::support::*;

/// `x [batch, pos, d_in] @ w + b`.
fn project(x: &Tensor, w: &Tensor, b: &Option<Tensor>) -> Tensor {
    let y = x.broadcast_matmul(w).unwrap();
    b.as_ref().map_or(y.clone(), |b| y.broadcast_add(b).unwrap())
}

#[test]
fn heads_are_put_together_from_their_matrices() {
    for name in ["gpt2", "llama", "neox", "qwen2", "gemma2", "phi3"] {
        let reference = Reference::load(name);
        let (model, config) = (&reference.model, reference.model.config());
        let hooks = model.hook_manager();
        let last = config.layers - 1;
        let point = |end: &str| format!("blocks.{last}.{end}");
        let names = ["ln1.hook_out", "attn.hook_q", "attn.hook_k", "attn.hook_v", "attn.hook_z"].map(point);
        capture(
            &hooks,
            &names.iter().map(String::as_str).chain([point("attn.hook_out").as_str()]).collect::<Vec<_>>(),
        );
        model.forward(&reference.ids, &hooks.pass(PassSetup::default())).unwrap();
        let seen = captured(&hooks, &hooks.list_hooks()[0].id);
        let at = |end: &str| seen[&point(end)].clone();
        let head_of = |x: &Tensor, head: usize| x.narrow(2, head, 1).unwrap().squeeze(2).unwrap();
        let mut sum: Option<Tensor> = None;
        for head in 0..config.heads {
            let weights = model.head_weights(last, head).unwrap();
            let (x, kv) = (at("ln1.hook_out"), head / (config.heads / config.kv_heads));
            let q = project(&x, &weights.q, &weights.q_bias);
            assert_close(&format!("{name} q {head}"), &q, &head_of(&at("attn.hook_q"), head), 1e-5);
            let k = project(&x, &weights.k, &weights.k_bias);
            assert_close(&format!("{name} k {head}"), &k, &head_of(&at("attn.hook_k"), kv), 1e-5);
            let v = project(&x, &weights.v, &weights.v_bias);
            assert_close(&format!("{name} v {head}"), &v, &head_of(&at("attn.hook_v"), kv), 1e-5);
            let part = project(&head_of(&at("attn.hook_z"), head), &weights.o, &None);
            sum = Some(sum.map_or(part.clone(), |sum| (sum + part).unwrap()));
        }
        let bias = model.attention_bias(last);
        let sum = bias.map_or(sum.clone().unwrap(), |bias| sum.unwrap().broadcast_add(&bias).unwrap());
        assert_close(&format!("{name} out"), &sum, &at("attn.hook_out"), 1e-5);
        assert!(model.head_weights(last, config.heads).is_err() && model.head_weights(last + 1, 0).is_err());
    }
}

#[test]
fn neurons_write_through_their_matrix_and_logits_come_from_the_last_one() {
    for name in ["gpt2", "llama", "neox"] {
        let reference = Reference::load(name);
        let (model, hooks) = (&reference.model, reference.model.hook_manager());
        capture(&hooks, &["blocks.0.mlp.hook_post", "blocks.0.mlp.hook_out", "ln_final.hook_out"]);
        let logits = model.forward(&reference.ids, &hooks.pass(PassSetup::default())).unwrap();
        let seen = captured(&hooks, &hooks.list_hooks()[0].id);
        let (matrix, bias) = model.mlp_out_weights(0).unwrap().unwrap();
        let out = project(&seen["blocks.0.mlp.hook_post"], &matrix, &bias);
        assert_close(&format!("{name} mlp"), &out, &seen["blocks.0.mlp.hook_out"], 1e-5);
        let unembedding = model.unembedding_weights().unwrap().contiguous().unwrap();
        let again = project(&seen["ln_final.hook_out"], &unembedding, &None);
        assert_close(&format!("{name} logits"), &again, &logits, 1e-5);
    }
}

/// `(x, minus its mean where centered) / scale * gain + bias`.
fn normed(x: &Tensor, scale: &Tensor, norm: &NormWeights) -> Tensor {
    let x = match norm.centered {
        true => x.broadcast_sub(&x.mean_keepdim(2).unwrap()).unwrap(),
        false => x.clone(),
    };
    let y = x.broadcast_div(scale).unwrap().broadcast_mul(&norm.gain).unwrap();
    norm.bias.as_ref().map_or(y.clone(), |bias| y.broadcast_add(bias).unwrap())
}

#[test]
fn norms_are_put_together_from_their_weights_and_their_divisor() {
    for name in ["gpt2", "llama", "neox", "gemma2"] {
        let reference = Reference::load(name);
        let (model, hooks) = (&reference.model, reference.model.hook_manager());
        let post = [("ln1_post", "attn"), ("ln2_post", "mlp")];
        let mut points: Vec<String> = ["in", "scale", "out"].map(|end| format!("ln_final.hook_{end}")).into();
        if model.config().post_norms {
            points.extend(post.iter().flat_map(|(norm, branch)| {
                let norm = ["in", "scale"].map(|end| format!("blocks.0.{norm}.hook_{end}"));
                norm.into_iter().chain([format!("blocks.0.hook_{branch}_out")])
            }));
        }
        capture(&hooks, &points.iter().map(String::as_str).collect::<Vec<_>>());
        model.forward(&reference.ids, &hooks.pass(PassSetup::default())).unwrap();
        let seen = captured(&hooks, &hooks.list_hooks()[0].id);
        let check = |norm: &NormWeights, path: &str, out: &str| {
            let (x, scale) = (&seen[&format!("{path}.hook_in")], &seen[&format!("{path}.hook_scale")]);
            assert_close(&format!("{name} {path}"), &normed(x, scale, norm), &seen[out], 1e-5);
        };
        check(&model.final_norm_weights().unwrap(), "ln_final", "ln_final.hook_out");
        let found = [model.attention_post_norm(0).unwrap(), model.mlp_post_norm(0).unwrap()];
        for (norm, (path, branch)) in found.iter().zip(post) {
            assert_eq!(norm.is_some(), model.config().post_norms, "{name}");
            if let Some(norm) = norm {
                check(norm, &format!("blocks.0.{path}"), &format!("blocks.0.hook_{branch}_out"));
            }
        }
    }
}
