use candle_core::{DType, Result, Tensor, Var};
use std::sync::Arc;

use super::*;
use crate::ops::check::{assert_same_bits, check_gradients, random};
use crate::ops::compare::same_on_any_threads;
use crate::ops::{
    Activation, AttentionSpec, NormWatch, activate, add, attention_of_stack, gated, layer_norm, linear,
    rms_norm,
};

const WIDTH: usize = 24;
const HIDDEN: usize = 40;
const D_HEAD: usize = 4;

#[derive(Clone, Copy, Debug)]
enum Case {
    Attention { kv_heads: usize },
    Mlp,
    Gated,
}

const CASES: [Case; 4] =
    [Case::Attention { kv_heads: 6 }, Case::Attention { kv_heads: 2 }, Case::Mlp, Case::Gated];

fn layout(case: Case) -> WeightLayout {
    if matches!(case, Case::Gated) { WeightLayout::OutIn } else { WeightLayout::InOut }
}

/// The stream, gain and bias of the norm, then weights and biases of the projections.
fn inputs(case: Case, rows: usize, dtype: DType) -> Vec<Tensor> {
    let mut seed = 0;
    let mut next = |shape: &[usize]| {
        seed += 1;
        random(shape, seed, dtype)
    };
    let mut all = vec![next(&[rows, 5, WIDTH]), next(&[WIDTH]), next(&[WIDTH])];
    let sizes = match case {
        Case::Attention { kv_heads } => {
            vec![(WIDTH, (WIDTH / D_HEAD + 2 * kv_heads) * D_HEAD), (WIDTH, WIDTH)]
        }
        Case::Mlp => vec![(WIDTH, HIDDEN), (HIDDEN, WIDTH)],
        Case::Gated => vec![(WIDTH, HIDDEN), (WIDTH, HIDDEN), (HIDDEN, WIDTH)],
    };
    for (inputs, outputs) in sizes {
        all.push(match layout(case) {
            WeightLayout::InOut => next(&[inputs, outputs]),
            WeightLayout::OutIn => next(&[outputs, inputs]),
        });
        all.push(next(&[outputs]));
    }
    all
}

/// A buffer for every input, as a trainer has them.
fn buffers(inputs: &[Tensor]) -> Vec<Option<Arc<GradBuffer>>> {
    inputs.iter().map(|x| Some(Arc::new(GradBuffer::new(x.shape())))).collect()
}

fn whole(case: Case, v: &[Tensor], buffers: &[Option<Arc<GradBuffer>>]) -> Result<Tensor> {
    let centered = !matches!(case, Case::Gated);
    let norm = BranchNorm {
        centered,
        eps: 1e-5,
        gain_offset: if centered { 0.0 } else { 1.0 },
        gain: (v[1].clone(), buffers[1].clone()),
        bias: centered.then(|| (v[2].clone(), buffers[2].clone())),
    };
    let projection = |i: usize| Projection {
        weight: v[i].clone(),
        bias: Some(v[i + 1].clone()),
        layout: layout(case),
        grads: LinearGrads { weight: buffers[i].clone(), bias: buffers[i + 1].clone() },
    };
    let y = match case {
        Case::Attention { kv_heads } => {
            let (qkv, out) = (projection(3), projection(5));
            let spec = AttentionSpec::causal(D_HEAD);
            attention_branch(&v[0], &norm, &qkv, (D_HEAD, kv_heads), &spec, &out)?
        }
        Case::Mlp | Case::Gated => {
            let has_gate = matches!(case, Case::Gated);
            let mlp = BranchMlp {
                gate: has_gate.then(|| projection(3)),
                up: projection(if has_gate { 5 } else { 3 }),
                activation: Activation::GeluTanh,
                down: projection(if has_gate { 7 } else { 5 }),
            };
            mlp_branch(&v[0], &norm, &mlp)?
        }
    };
    y.ok_or_else(|| candle_core::Error::msg("not one op"))
}

fn separate(case: Case, v: &[Tensor]) -> Result<Tensor> {
    let silent = NormWatch::default();
    let normed = match case {
        Case::Gated => rms_norm(&v[0], &v[1], 1e-5, 1.0, &silent)?.y,
        _ => layer_norm(&v[0], &v[1], Some(&v[2]), 1e-5, &silent)?.y,
    };
    let none = LinearGrads::default();
    let of = |x: &Tensor, i: usize| linear(x, &v[i], Some(&v[i + 1]), layout(case), &none);
    let act = Activation::GeluTanh;
    let y = match case {
        Case::Attention { kv_heads } => {
            let all = of(&normed, 3)?;
            let (batch, len, width) = all.dims3()?;
            let all = all.reshape((batch, len, width / D_HEAD, D_HEAD))?;
            of(&attention_of_stack(&all, kv_heads, &AttentionSpec::causal(D_HEAD))?, 5)?
        }
        Case::Mlp => of(&activate(&of(&normed, 3)?, act)?, 5)?,
        Case::Gated => of(&gated(&of(&normed, 3)?, &of(&normed, 5)?, act)?, 7)?,
    };
    add(&v[0], &y)
}

fn tensors(vars: &[Var]) -> Vec<Tensor> {
    vars.iter().map(|var| var.as_tensor().clone()).collect()
}

/// The result and the gradients of a branch, those of parameters from their buffers.
fn whole_with_gradients(case: Case, inputs: &[Tensor]) -> Result<(Tensor, Vec<Option<Tensor>>)> {
    let vars = inputs.iter().map(Var::from_tensor).collect::<Result<Vec<_>>>()?;
    let buffers = buffers(inputs);
    let y = whole(case, &tensors(&vars), &buffers)?;
    let store = y.sqr()?.sum_all()?.backward()?;
    let from_buffer = |buffer: &Option<Arc<GradBuffer>>| buffer.as_ref().unwrap().take();
    let mut grads = vec![store.get(&vars[0]).cloned()];
    for (var, buffer) in vars.iter().zip(&buffers).skip(1) {
        assert!(store.get(var).is_none(), "the tape knows nothing of parameters");
        grads.push(from_buffer(buffer)?);
    }
    Ok((y.detach(), grads))
}

#[test]
fn the_bits_are_those_of_the_separate_ops() -> Result<()> {
    for case in CASES {
        for rows in [1, 3, 70] {
            let inputs = inputs(case, rows, DType::F32);
            let (y, grads) = whole_with_gradients(case, &inputs)?;
            let vars = inputs.iter().map(Var::from_tensor).collect::<Result<Vec<_>>>()?;
            let expected = separate(case, &tensors(&vars))?;
            assert_same_bits(&format!("{case:?}"), &y, &expected);
            let store = expected.sqr()?.sum_all()?.backward()?;
            for (i, (var, grad)) in vars.iter().zip(&grads).enumerate() {
                match (store.get(var), grad) {
                    (Some(a), Some(b)) => assert_same_bits(&format!("{case:?}, gradient {i}"), b, a),
                    (None, None) => assert!(matches!(case, Case::Gated) && i == 2),
                    (a, b) => panic!("{case:?}, gradient {i}: {} {}", a.is_some(), b.is_some()),
                }
            }
            // Without a tape nothing is kept, and nothing changes.
            let constant = whole(case, &inputs, &buffers(&inputs))?;
            assert!(!constant.track_op());
            assert_same_bits("constant", &constant, &y);
        }
    }
    Ok(())
}

#[test]
fn gradients_of_the_stream_are_those_of_finite_differences() {
    for case in CASES {
        let inputs = inputs(case, 2, DType::F64);
        let (stream, parameters) = inputs.split_at(1);
        check_gradients(&format!("{case:?}"), stream, |v| {
            let all: Vec<Tensor> = tensors(v).into_iter().chain(parameters.iter().cloned()).collect();
            whole(case, &all, &buffers(&all))
        });
    }
}

/// candle does not walk through everything that looks tracked: the gradients of a branch's parameters arrive all the same.
#[test]
fn parameters_get_their_gradients_where_the_stream_has_none() -> Result<()> {
    for case in CASES {
        let inputs = inputs(case, 3, DType::F32);
        let (_, expected) = whole_with_gradients(case, &inputs)?;
        let vars = inputs.iter().map(Var::from_tensor).collect::<Result<Vec<_>>>()?;
        // The same values as a constant, and behind an op where gradients end.
        let ended = (vars[0].round()? * 0.0)?.add(&inputs[0])?;
        assert!(ended.track_op());
        for stream in [inputs[0].clone(), ended] {
            let buffers = buffers(&inputs);
            let mut all = tensors(&vars);
            all[0] = stream;
            whole(case, &all, &buffers)?.sqr()?.sum_all()?.backward()?;
            for (i, (buffer, expected)) in buffers.iter().zip(&expected).enumerate().skip(1) {
                match (buffer.as_ref().unwrap().take()?, expected) {
                    (Some(a), Some(b)) => assert_same_bits(&format!("{case:?}, gradient {i}"), &a, b),
                    (None, None) => {}
                    _ => panic!("{case:?}, gradient {i} is missing"),
                }
            }
        }
    }
    Ok(())
}

#[test]
fn sizes_that_do_not_fit_are_errors() -> Result<()> {
    for case in CASES {
        let inputs = inputs(case, 2, DType::F32);
        // Every parameter with one element, row or column too many.
        for i in 1..inputs.len() {
            for axis in 0..inputs[i].rank() {
                if matches!(case, Case::Gated) && i == 2 {
                    continue; // it has no bias
                }
                let mut wrong = inputs.clone();
                wrong[i] = inputs[i].pad_with_zeros(axis, 0, 1)?;
                assert!(
                    whole(case, &wrong, &buffers(&wrong)).is_err(),
                    "{case:?}, parameter {i}, axis {axis}"
                );
            }
        }
        let mut empty = inputs.clone();
        empty[0] = inputs[0].narrow(0, 0, 0)?;
        assert!(whole(case, &empty, &buffers(&empty)).is_err());
    }
    Ok(())
}

#[test]
fn any_number_of_threads_gives_the_same_bits() -> Result<()> {
    for case in CASES {
        let inputs = inputs(case, 300, DType::F32);
        let (stream, parameters) = inputs.split_at(1);
        same_on_any_threads(&format!("{case:?}"), stream, |v| {
            let all: Vec<Tensor> = tensors(v).into_iter().chain(parameters.iter().cloned()).collect();
            whole(case, &all, &buffers(&all))
        })?;
    }
    Ok(())
}

#[test]
fn a_gradient_that_could_not_arrive_is_no_branch() -> Result<()> {
    let inputs = inputs(Case::Mlp, 1, DType::F32);
    let buffer = buffers(&inputs);
    let var = |i: usize| Var::from_tensor(&inputs[i]).map(|var| var.as_tensor().clone());
    let norm = BranchNorm {
        centered: true,
        eps: 1e-5,
        gain_offset: 0.0,
        gain: (inputs[1].clone(), None),
        bias: None,
    };
    let projection = |weight: Tensor, buffer: Option<Arc<GradBuffer>>| Projection {
        weight,
        bias: None,
        layout: WeightLayout::InOut,
        grads: LinearGrads { weight: buffer, bias: None },
    };
    let fits = |x: &Tensor, weight: Tensor, buffer: Option<Arc<GradBuffer>>| {
        fits(x, &norm, &[&projection(weight, buffer)])
    };
    assert!(fits(&var(0)?, var(3)?, buffer[3].clone()));
    assert!(!fits(&var(0)?, var(3)?, None), "trained, without a buffer");
    assert!(fits(&inputs[0], var(3)?, buffer[3].clone()));
    assert!(!fits(&var(0)?, (var(3)? * 2.0)?, buffer[3].clone()), "not the parameter itself");
    assert!(fits(&inputs[0], inputs[3].clone(), None));
    let vars = inputs.iter().map(Var::from_tensor).collect::<Result<Vec<_>>>()?;
    let without = vec![None; inputs.len()];
    assert!(
        whole(Case::Mlp, &tensors(&vars), &without).is_err() && whole(Case::Mlp, &inputs, &without).is_ok()
    );
    let half = inputs[0].to_dtype(DType::BF16)?;
    assert!(!fits(&half, inputs[3].clone(), None));
    Ok(())
}
